/* exact64.h: logarithm, sine and cosine of a double for ops that promise `exact`.
 *
 * As exact.h: one source for C and CUDA, fixed sequences of correctly rounded f64 operations, fma only where written,
 * no libm, no libdevice. Results are f32. Coefficients: our own fits (Chebyshev nodes, 60-digit arithmetic) rounded to
 * f64; docs/numerics.md states the errors, tests/test_exact64.c measures them. */
#ifndef RIDGE_EXACT64_H
#define RIDGE_EXACT64_H

#include "exact.h"

RIDGE_FN double ridge_fma64(double a, double b, double c)
{
#ifdef __CUDA_ARCH__
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}

RIDGE_FN uint64_t ridge_bits64(double x)
{
#ifdef __CUDA_ARCH__
    return (uint64_t)__double_as_longlong(x);
#else
    union {
        double d;
        uint64_t u;
    } v;
    v.d = x;
    return v.u;
#endif
}

RIDGE_FN double ridge_double64(uint64_t u)
{
#ifdef __CUDA_ARCH__
    return __longlong_as_double((long long)u);
#else
    union {
        double d;
        uint64_t u;
    } v;
    v.u = u;
    return v.d;
#endif
}

/* log x of a normal positive x, to 2^-46 of itself also near 1: x = 2^k m, m - 1 is exact, and with s = (m - 1) / (m +
 * 1) of at most 0.172 log m = 2 atanh s by its series. */
RIDGE_FN double ridge_log64(double x)
{
    const uint64_t bits = ridge_bits64(x);
    const int64_t k = (int64_t)(bits - UINT64_C(0x3fe6a09e667f3bcd)) >> 52; /* m from sqrt(1/2) on */
    const double f = ridge_double64(bits - ((uint64_t)k << 52)) - 1, s = f / (2 + f), q = s * s;
    double p = 2.0 / 17;

    p = ridge_fma64(p, q, 2.0 / 15);
    p = ridge_fma64(p, q, 2.0 / 13);
    p = ridge_fma64(p, q, 2.0 / 11);
    p = ridge_fma64(p, q, 2.0 / 9);
    p = ridge_fma64(p, q, 2.0 / 7);
    p = ridge_fma64(p, q, 2.0 / 5);
    p = ridge_fma64(p, q, 2.0 / 3);
    return ridge_fma64((double)k, 0.69314718055994530942, ridge_fma64(s * q, p, 2 * s));
}

/* *s = sin(x), *c = cos(x), to f32; both canonical NaN where |x| is 2^47 or more, infinite or NaN.
 *
 * x = n pi/2 + r. n comes out of the low bits of a sum with a large constant. pi/2 stands in three doubles: the first
 * product and difference are exact (r is below 1 and a multiple of 2^-53), so that what is left has a relative error of
 * 2^-52 however close x is to a multiple of pi/2. */
RIDGE_FN void ridge_sincos(double x, float *s, float *c)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    const int inside = (ridge_bits64(x) & 0x7fffffffffffffffu) < 0x42e0000000000000u;
    double y = inside ? x : 0.0, t, n, r, z, p, q;
    float sine, cosine, swap;
    uint32_t quarter;

    t = ridge_fma64(y, 0x1.45f306dc9c883p-1, magic);
    n = t - magic;
    quarter = (uint32_t)ridge_bits64(t);
    r = ridge_fma64(n, -0x1.921fb54442d18p+0, y);
    r = ridge_fma64(n, -0x1.1a62633145c07p-54, r);
    r = ridge_fma64(n, 0x1.f1976b7ed8fbcp-110, r);
    z = r * r;
    p = ridge_fma64(0x1.5e0af186af739p-33, z, -0x1.ae600a926c89ap-26);
    p = ridge_fma64(p, z, 0x1.71de37961e4c6p-19);
    p = ridge_fma64(p, z, -0x1.a01a019e8357dp-13);
    p = ridge_fma64(p, z, 0x1.1111111110bb1p-7);
    p = ridge_fma64(p, z, -0x1.5555555555555p-3);
    p = ridge_fma64(p * z, r, r);
    q = ridge_fma64(-0x1.8ff9a50ab914fp-37, z, 0x1.1eea7ed58e4c6p-29);
    q = ridge_fma64(q, z, -0x1.27e4f8e43de29p-22);
    q = ridge_fma64(q, z, 0x1.a01a019de0bd9p-16);
    q = ridge_fma64(q, z, -0x1.6c16c16c15d75p-10);
    q = ridge_fma64(q, z, 0x1.5555555555551p-5);
    q = ridge_fma64(q, z, -0x1.0000000000000p-1);
    q = ridge_fma64(q, z, 1.0);
    sine = (float)p;
    cosine = (float)q;
    swap = sine;
    sine = quarter & 1u ? cosine : sine;
    cosine = quarter & 1u ? swap : cosine;
    sine = quarter & 2u ? -sine : sine;
    cosine = (quarter + 1u) & 2u ? -cosine : cosine;
    *s = inside ? sine : ridge_float(0x7fc00000u);
    *c = inside ? cosine : ridge_float(0x7fc00000u);
}

#endif
