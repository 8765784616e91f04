/* gemm.h: what the files of this folder share. */
#ifndef RIDGE_CHECK_GEMM_H
#define RIDGE_CHECK_GEMM_H

#include "check/family.h"

enum { PAIRS = 5 };
extern const char *const gemm_pairs[PAIRS]; /* of scale modes; the first three are those of decoding */

void cases_gemm(const ridge_op_row *op, case_level level, case_list *list);
void oracle_gemm(oracle_run *run);
/* The row is one of Hopper's fp8 instructions, of which every bit is known (docs/numerics.md, FP8 GEMM). */
bool oracle_gemm_has_bits(const ridge_kernel *kernel);
/* D has the bits that such a row gives; where m is at most 64 for one of the ways that it may split k in. */
bool oracle_gemm_bits(const image *im, const unsigned char *got, char *text, size_t size);
/* D in a copy of the image as such a row leaves it, k in 1 << shift runs; false: no memory. */
bool oracle_gemm_store_bits(const image *im, int shift, unsigned char *bits);
/* Scales of codes: what `fill` of gemm_fp8 and of gemm_fp8_grouped puts into such a table. */
void gemm_fill_scales(const test_case *c, const image *im, int arg, uint64_t seed);
extern const planted_fault gemm_faults[];

#endif
