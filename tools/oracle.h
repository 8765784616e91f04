/* oracle.h: the float64 references, one file per op family. */
#ifndef RIDGE_ORACLE_H
#define RIDGE_ORACLE_H

#include "tools.h"

/* Element (r, j) of an operand in a copy of the image at base. */
const void *oracle_address(const image *im, const unsigned char *base, int arg, int64_t r, int64_t j);

/* Each: error over bound of the worst output of `got`; false and a text if above 1. */
typedef bool oracle(const image *im, const unsigned char *got, double *worst, char *text, size_t size);
oracle oracle_swiglu, oracle_quantize, oracle_q8_0, oracle_gemm, oracle_quantize_rows, oracle_decode, oracle_norm,
    oracle_ce, oracle_ce_combine, oracle_multiply;

/* The row is one of Hopper's fp8 instructions, of which every bit is known (docs/numerics.md, FP8 GEMM). */
bool oracle_gemm_has_bits(const ridge_kernel *kernel);
/* D has the bits that such a row gives; where m is at most 64 for one of the ways that it may split k in. */
bool oracle_gemm_bits(const image *im, const unsigned char *got, char *text, size_t size);

#endif
