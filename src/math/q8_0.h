/* q8_0.h: the arithmetic of Q8_0 decode in its bit-exact order: activation codes, the sum over blocks, HC expand.
 *
 * One source for the C reference, the SIMD rows and CUDA. A result is a sum over the 32-column blocks of a row:
 *     dot_b  = sum of the 32 products of codes, an exact int32 (at most 2^19 in size, so exact as f32 too)
 *     s_b    = wd_b * xs_b, one rounding
 *     acc_p  = fma(s_b, dot_b, acc_p) over the blocks of partition p = (b / 4) % 8, ascending, from +0
 *     result = ((0+1)+(2+3)) + ((4+5)+(6+7)) of the eight partitions, empty ones included
 * Nothing of it depends on the number of tokens, on the grid or on the form of the operands. A block of zero codes and
 * zero scales changes no bit (acc_p is never -0), so kernels may pad with such blocks; a real one may not be skipped,
 * for its scale may be NaN or infinite. Leaves out: loads, the integer dot, SwiGLU (swiglu.h).
 * docs/numerics.md, Q8_0 decode. */
#ifndef RIDGE_Q8_0_MATH_H
#define RIDGE_Q8_0_MATH_H

#include "quantize.h"

enum { RIDGE_Q8_0_PARTS = 8, RIDGE_Q8_0_RUN = 4 }; /* partitions, and consecutive blocks of one partition */

/* The partition of block b. */
RIDGE_FN int ridge_q8_0_part(int64_t b)
{
    return (int)(b / RIDGE_Q8_0_RUN % RIDGE_Q8_0_PARTS);
}

/* One block: wd is f32 of the weight's f16 scale. */
RIDGE_FN float ridge_q8_0_step(float acc, float wd, float xs, int32_t dot)
{
    return ridge_fma(wd * xs, (float)dot, acc);
}

/* The eight partitions. */
RIDGE_FN float ridge_q8_0_tree(const float *acc)
{
    return ((acc[0] + acc[1]) + (acc[2] + acc[3])) + ((acc[4] + acc[5]) + (acc[6] + acc[7]));
}

/* Scale of 32 activations from their amax (bits of |x|), and what they are multiplied by. A group that is not finite
 * has scale NaN, one whose scale is subnormal 0; both have codes 0 because the factor is 0 and ridge_q8_0_x_code keeps
 * NaN away. */
RIDGE_FN float ridge_q8_0_x_scale(uint32_t amax, float *reciprocal)
{
    float d = ridge_float(amax) / 127.0f;

    *reciprocal = 0.0f;
    if (amax >= 0x7f800000u)
        return ridge_float(0x7fc00000u);
    if (d < 0x1p-126f)
        return 0.0f;
    *reciprocal = 1.0f / d;
    return d;
}

/* The integer nearest to x * reciprocal, halves to even. The sum with 1.5 * 2^23 rounds; its low bits are the code.
 * |x * reciprocal| is at most 127 and a little, or NaN with reciprocal 0 and an x that is not finite: code 0. */
RIDGE_FN int32_t ridge_q8_0_x_code(float x, float reciprocal)
{
    float y = x * reciprocal;

    y = y == y ? y : 0.0f;
    return (int32_t)(ridge_bits(y + 12582912.0f) - 0x4b400000u);
}

/* HC expand, one destination stream: starts at v * post, then one step per source, ascending. */
RIDGE_FN float ridge_hc_start(float v, float post)
{
    return v * post;
}

RIDGE_FN float ridge_hc_step(float acc, float comb, float res)
{
    return ridge_fma(comb, res, acc);
}

#endif
