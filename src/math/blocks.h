/* blocks.h: the arithmetic of products with weights in block formats, in its bit-exact order. The order of sums is that
 * of Q8_0 decode (q8_0.h), of which this is the general form: a block of 32 columns has a scale w, an integer I, and
 * in formats with minima one or two m, exact as f32 all of them, and adds
 *     acc_p = fma(w * xs, I, acc_p)               I: sum of products of codes; of 16 by 16 columns, times sub-scales
 *     acc_p = fma(m, xs * X, acc_p)               X: sum of the activations' codes that m belongs to
 * to its partition p; the result is the tree of eight partitions + 0, so that it is never -0. A block of zero codes,
 * scales and activations changes no bit of that.
 * |I| < 2^24 in every format: its conversion is exact. docs/numerics.md, Block formats. */
#ifndef RIDGE_BLOCKS_MATH_H
#define RIDGE_BLOCKS_MATH_H

#include "q8_0.h"

/* What a minimum is multiplied by: the scale of 32 activations times the sum of those codes that it belongs to. */
RIDGE_FN float ridge_block_x_sum(float xs, int32_t sum)
{
    return xs * (float)sum;
}

RIDGE_FN float ridge_block_min_step(float acc, float min, float x_sum)
{
    return ridge_fma(min, x_sum, acc);
}

RIDGE_FN float ridge_block_tree(const float *acc)
{
    return ridge_q8_0_tree(acc) + 0.0f;
}

/* The scale of an MXFP4 block: 2^(e - 128), half of what OCP says, because ggml's table of codes has twice E2M1's
 * values. 255, NaN in OCP, is 2^127 as in ggml. */
RIDGE_FN float ridge_block_e8m0(uint32_t e)
{
    return ridge_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* Code to value of MXFP4, twice that of E2M1. */
RIDGE_FN int ridge_block_e2m1(unsigned code)
{
    const unsigned m = code & 7, v = m < 4 ? m : m < 6 ? 2 * m - 4 : 4 * m - 16;

    return code & 8 ? -(int)v : (int)v;
}

#endif
