/* norm.h: rms_norm, its backward and the rotation of RoPE in their bit-exact order.
 *
 * One source for the C reference, the SIMD rows and CUDA.
 *     sum of squares: column j belongs to partial j % 256; each adds fma(x, x, acc) from +0 in ascending j; then
 *     part[p] += part[p + s] for p < s, s = 128, 64, ..., 1
 *     y = (x * ridge_rms_factor(sum, n, eps)) * w        (no product where w is absent)
 * Backward, r being the factor: g = dout * w; dot = sum of fma(g, x, acc) in the order of the sum of squares;
 *     dx = fma(-(x * r), dot * r / n, g) * r (+ dsum); dw: groups of 16 rows add fma(dout, x * r, acc) from +0 in
 *     order; group g belongs to chain g % 128, which adds from +0 in ascending g; then halves onto halves
 * RoPE: c and s from ridge_rope_angle once per token and pair, whatever the head; ridge_rope_rotate for each pair.
 * docs/numerics.md, Norm and RoPE. */
#ifndef RIDGE_NORM_MATH_H
#define RIDGE_NORM_MATH_H

#include "exact64.h"

enum { RIDGE_NORM_PARTS = 256 };
enum { RIDGE_NORM_GROUP = 16, RIDGE_NORM_CHAINS = 128 }; /* dw: rows of a group, chains of groups */

RIDGE_FN float ridge_sqrt(float x)
{
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#else
    return __builtin_sqrtf(x);
#endif
}

/* What a row of n elements is multiplied by. */
RIDGE_FN float ridge_rms_factor(float sum, int64_t n, float eps)
{
    return 1.0f / ridge_sqrt(sum / (float)n + eps);
}

/* mean(g x') from the sum of g x, x' = x * r. */
RIDGE_FN float ridge_rms_bwd_mean(float dot, int64_t n, float r)
{
    return dot * r / (float)n;
}

/* dx but for dsum. */
RIDGE_FN float ridge_rms_bwd(float g, float x, float mean, float r)
{
    return ridge_fma(-(x * r), mean, g) * r;
}

/* Sine and cosine of one pair at a position; the product is rounded once, to f64. mscale 1 changes nothing; `inverse`
 * negates the sine. */
RIDGE_FN void ridge_rope_angle(int64_t pos, double freq, float mscale, int inverse, float *c, float *s)
{
    float sine, cosine;

    ridge_sincos((double)pos * freq, &sine, &cosine);
    *c = cosine * mscale;
    *s = (inverse ? -sine : sine) * mscale;
}

/* The pair (x0, x1) rotated. */
RIDGE_FN void ridge_rope_rotate(float x0, float x1, float c, float s, float *y0, float *y1)
{
    *y0 = ridge_fma(x0, c, -(x1 * s));
    *y1 = ridge_fma(x0, s, x1 * c);
}

#endif
