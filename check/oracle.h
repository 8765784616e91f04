/* oracle.h: what the float64 oracles of the families (check/<family>/oracle*.c) share. */
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

/* A value with the largest error that f32 arithmetic may have made. */
typedef struct estimate {
    double value, error;
} estimate;

/* Notes one output against its estimate. Beyond 2^120 an f32 intermediate may be infinite: only a NaN must show. */
void oracle_estimate(oracle_run *run, int out, int64_t r, int64_t j, estimate e);

double oracle_sigmoid(double x);

/* swiglu_fwd in f32 of two results, with the call's activation and options, times `row`. */
estimate oracle_gated(const ridge_call *call, estimate gate, estimate up, double row);

#endif
