/* tensor_core.h: what a matrix instruction of Hopper's tensor cores (wgmma) adds up, bit for bit: docs/numerics.md,
 * "How an fp8 tensor core adds". Measured on an H200; other chips differ. */
#ifndef RIDGE_TENSOR_CORE_H
#define RIDGE_TENSOR_CORE_H

#include <stdbool.h>
#include <stdint.h>

enum { TENSOR_E4M3 = -6, TENSOR_E5M2 = -14, TENSOR_BF16 = -126 }; /* exponents of the smallest normal numbers */

/* Numbers of one of these formats along k. */
typedef struct tensor_numbers {
    const float *value;
    const int16_t *exponent; /* tensor_exponent of each */
    bool special;            /* there are infinities or NaN */
} tensor_numbers;

static inline tensor_numbers tensor_from(const tensor_numbers *x, int64_t at)
{
    return (tensor_numbers){x->value + at, x->exponent + at, x->special};
}

/* Of a number of the format; of 0 less than of any product. */
int16_t tensor_exponent(float value, int format);

/* acc and 32 products of fp8. acc: of an exponent that such products have, as results of this function are. */
float tensor_add_fp8(tensor_numbers a, tensor_numbers b, float acc);

/* 16 products of bf16, the largest of 2^-100 to 2^127. */
float tensor_add_bf16(tensor_numbers a, tensor_numbers b);

#endif
