/* oracle.h: the float64 references, one file per op family. */
#ifndef RIDGE_ORACLE_H
#define RIDGE_ORACLE_H

#include "check.h"

/* Element (r, j) of an operand in a copy of the image at base. */
const void *oracle_address(const image *im, const unsigned char *base, int arg, int64_t r, int64_t j);

/* A check of what a run left. */
typedef struct oracle_run {
    const image *im;
    const unsigned char *got;
    double worst; /* error over bound; text says which */
    char *text;
    size_t size;
} oracle_run;

/* An element of an operand before the run, and after it. */
double oracle_in(const oracle_run *run, int arg, int64_t r, int64_t j);
double oracle_out(const oracle_run *run, int arg, int64_t r, int64_t j);

/* Another error over bound, infinity for NaN. */
void oracle_note(oracle_run *run, double ratio, const char *what, int64_t row, int64_t col);
void oracle_fail(oracle_run *run, const char *why);
/* Notes the error over bound of one number; NaN and infinity must be what the reference is. */
void oracle_compare(oracle_run *run, double got, double ref, double bound, const char *what, int64_t row, int64_t col);

/* Error over bound of one number of the dtype: NaN and infinity must be where the reference has them, infinity may
 * also be what rounds to it within the bound. */
double oracle_ratio(double got, double reference, double bound, uint32_t dtype);

double oracle_sigmoid(double x);

typedef void oracle(oracle_run *run);
oracle oracle_swiglu, oracle_quantize, oracle_q8_0, oracle_gemm, oracle_quantize_rows, oracle_decode, oracle_norm,
    oracle_ce, oracle_ce_combine, oracle_multiply;

/* The row is one of Hopper's fp8 instructions, of which every bit is known (docs/numerics.md, FP8 GEMM). */
bool oracle_gemm_has_bits(const ridge_kernel *kernel);
/* D has the bits that such a row gives; where m is at most 64 for one of the ways that it may split k in. */
bool oracle_gemm_bits(const image *im, const unsigned char *got, char *text, size_t size);

#endif
