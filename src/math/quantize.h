/* quantize.h: scales and codes of quantize_fp8 and Q8_0 for one group, in their bit-exact order.
 *
 * One source for the C reference, the SIMD rows and CUDA. Leaves out: loads, and the fp8 encoding, which has an
 * instruction on some devices (cpu/num.h, cuda/num.cuh). docs/numerics.md, FP8 and Q8_0. */
#ifndef RIDGE_QUANTIZE_MATH_H
#define RIDGE_QUANTIZE_MATH_H

#include "exact.h"

enum { RIDGE_GROUP = 128, RIDGE_Q8_0_BLOCK = 32, RIDGE_Q8_0_BYTES = 34 };

/* The bits of |x|, whose maximum over a group is exact in any order; from 7F800000 on something is not finite. */
RIDGE_FN uint32_t ridge_magnitude(float x)
{
    return ridge_bits(x) & 0x7fffffffu;
}

/* rn(m / 448) for finite m >= 0, where it is at least 2^-126: a product and one fused correction (Markstein); tests
 * compare it with the division for every float. GPUs have no division instruction, and the compiler's is a call. */
RIDGE_FN float ridge_over_448(float m)
{
    const float r = 0x1.24924ap-9f; /* rn(1/448) */
    float q = m * r;

    return ridge_fma(ridge_fma(-q, 448.0f, m), r, q);
}

/* The scale of a group from its amax: amax / 448, or / 57344 = 448 * 128 with e5m2. */
RIDGE_FN float ridge_fp8_scale(uint32_t amax, float floor, int e5m2, int pow2)
{
    float m = ridge_float(amax), s;
    uint32_t bits;

    if (amax >= 0x7f800000u)
        return ridge_float(0x7fc00000u);
    m = m > floor ? m : floor;
    s = ridge_over_448(m) * (e5m2 ? 0x1p-7f : 1.0f);
    s = s < 0x1p-126f ? 0x1p-126f : s;
    bits = ridge_bits(s);
    s = pow2 ? ridge_float((bits + 0x7fffffu) & 0xff800000u) : s;
    return m == 0.0f ? 1.0f : s;
}

/* What elements are multiplied by: 1/s, s taken within [2^-126, 2^126]; NaN for a scale that is not finite and
 * positive, which only a caller's can be. */
RIDGE_FN float ridge_fp8_reciprocal(float s)
{
    float bounded = s < 0x1p-126f ? 0x1p-126f : s;

    bounded = bounded > 0x1p126f ? 0x1p126f : bounded;
    return s > 0.0f && s < ridge_float(0x7f800000u) ? ridge_rcp(bounded) : ridge_float(0x7fc00000u);
}

/* Column sums: groups of 8 rows from +0 in order; 16 groups make a tile of 128 rows, summed as pairs and then the 8
 * pairs in order; tiles in order. */
enum { RIDGE_SUM_ROWS = 8 };

/* Q8_0: d = amax / 127 and what elements are multiplied by. */
RIDGE_FN float ridge_q8_0_scale(uint32_t amax, float *reciprocal)
{
    float d = ridge_float(amax) / 127.0f, r;

    if (amax >= 0x7f800000u) {
        *reciprocal = 0.0f;
        return ridge_float(0x7fc00000u);
    }
    r = 1.0f / d;
    *reciprocal = ridge_magnitude(r) < 0x7f800000u ? r : 0.0f; /* d is 0, or so small that 1/d overflows */
    return d;
}

/* The integer nearest to x, halves away from zero; 0 for NaN (|x| <= 127 otherwise). */
RIDGE_FN int32_t ridge_q8_0_code(float x)
{
    float size = ridge_float(ridge_magnitude(x));
    int32_t whole;

    size = size < 128.0f ? size : 0.0f;
    whole = (int32_t)size;
    whole += size - (float)whole >= 0.5f;
    return x < 0.0f ? -whole : whole;
}

#endif
