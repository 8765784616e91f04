/* exact.h: the transcendental functions of every op that promises `exact`.
 *
 * One source for C and CUDA: fixed sequences of correctly rounded add, mul, fma, division and integer operations, so
 * that the same input gives the same bits on every backend. Nothing here calls libm or libdevice. Compile C with
 * -ffp-contract=off and CUDA with -fmad=false: an fma is used exactly where fmaf is written.
 * Leaves out: dtype conversions (cpu/num.h, cuda/num.cuh) and the formulas of the ops (swiglu.h, norm.h, ... beside
 * this file). Coefficients: our own minimax fits in 40-digit arithmetic, rounded to f32; docs/numerics.md states the
 * errors.
 */
#ifndef RIDGE_EXACT_H
#define RIDGE_EXACT_H

#include <stdint.h>

#ifdef __CUDACC__
#define RIDGE_FN static __host__ __device__ __forceinline__
#else
#include <math.h>
#define RIDGE_FN static inline
#endif

RIDGE_FN uint32_t ridge_bits(float x)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    union {
        float f;
        uint32_t u;
    } v;
    v.f = x;
    return v.u;
#endif
}

RIDGE_FN float ridge_float(uint32_t u)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(u);
#else
    union {
        float f;
        uint32_t u;
    } v;
    v.u = u;
    return v.f;
#endif
}

/* fma with one rounding. C code is vectorised by the compiler, so the builtin and not the library call. */
RIDGE_FN float ridge_fma(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* The smaller of x and hi; hi for NaN. */
RIDGE_FN float ridge_min_f32(float x, float hi)
{
#ifdef __CUDA_ARCH__
    return fminf(x, hi);
#else
    return x < hi ? x : hi;
#endif
}

/* rn(1/d) for d in [2^-126, 2^126]. On a GPU the approximate reciprocal (1 ulp) takes one fused Newton step, which is
 * the correctly rounded quotient for every mantissa: `ridge test` tries all 2^23 of them on the present GPU. */
RIDGE_FN float ridge_rcp(float d)
{
#ifdef __CUDA_ARCH__
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
#else
    return 1.0f / d;
#endif
}

/* exp(-|x|), error <= 2.3 ulp for |x| < 10, growing to 4.9 ulp of a normal result, subnormals rounded once more; 0 from
 * 104 up and for NaN.
 * -|x| = n ln2 + r; the degree-5 polynomial of r is scaled by 2^(n+32) in its exponent bits, then by 2^-32, so that
 * subnormal results are right. Adding the constant rounds to the integer n and leaves n + 32 in the low bits of the
 * sum. Two instructions fewer than degree 6 with ln2 in two parts, which has 0.86 ulp: 1 % of SwiGLU's time on an H200,
 * and a rounding error that no 16-bit result sees. */
RIDGE_FN float ridge_exp_neg(float x)
{
    const float magic = 12582912.0f + 32.0f;
    float z, n, r, p;

#ifdef __CUDA_ARCH__
    x = fmaxf(-fabsf(x), -104.0f); /* one instruction; NaN becomes -104 */
#else
    uint32_t u = ridge_bits(x) | 0x80000000u; /* the same in two integer instructions of a vector */
    x = ridge_float(u < 0xc2d00000u ? u : 0xc2d00000u);
#endif
    z = ridge_fma(x, 0x1.715476p+0f, magic);
    n = z - magic;
    r = ridge_fma(n, -0x1.62e430p-1f, x);
    p = ridge_fma(0x1.10625ep-7f, r, 0x1.572a44p-5f);
    p = ridge_fma(p, r, 0x1.5557b0p-3f);
    p = ridge_fma(p, r, 0x1.fffdfcp-2f);
    p = ridge_fma(p, r, 1.0f);
    p = ridge_fma(p, r, 1.0f);
    p = ridge_float(ridge_bits(p) + (ridge_bits(z) << 23));
    return p * 0x1p-32f;
}

/* exp(x), error <= 1.1 ulp of a normal result, subnormals rounded once more; infinity from 88.73 up, 0 below -104; NaN
 * stays NaN. As ridge_exp_neg with degree 6, ln2 in two parts and the power of two in two factors. */
RIDGE_FN float ridge_exp(float x)
{
    const float magic = 12582912.0f + 256.0f;
    float z, n, r, p;
    uint32_t k, half;

    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    z = ridge_fma(x, 0x1.715476p+0f, magic);
    n = z - magic;
    r = ridge_fma(n, -0x1.62e400p-1f, x);
    r = ridge_fma(n, -0x1.7f7d1cp-20f, r);
    p = ridge_fma(0x1.6d112cp-10f, r, 0x1.120b90p-7f);
    p = ridge_fma(p, r, 0x1.55551ap-5f);
    p = ridge_fma(p, r, 0x1.5554dcp-3f);
    p = ridge_fma(p, r, 0.5f);
    p = ridge_fma(p * r, r, r) + 1.0f;
    k = ridge_bits(z) & 0x3ffu; /* n + 256 */
    half = k >> 1;
    return p * ridge_float((half - 1u) << 23) * ridge_float((k - half - 1u) << 23);
}

/* tanh(x), error <= 2.7 ulp: an odd polynomial of degree 11 below 0.5, 1 - 2t / (1 + t), t = exp(-2|x|), above. */
RIDGE_FN float ridge_tanh(float x)
{
    float a = ridge_float(ridge_bits(x) & 0x7fffffffu), s = a * a;
    float t = ridge_exp(-2.0f * a);
    float large = 1.0f - 2.0f * t / (1.0f + t);
    float p = ridge_fma(-0x1.c6f7b8p-8f, s, 0x1.5fc4f2p-6f);

    p = ridge_fma(p, s, -0x1.b9d288p-5f);
    p = ridge_fma(p, s, 0x1.111080p-3f);
    p = ridge_fma(p, s, -0x1.555554p-2f);
    p = a < 0.5f ? ridge_fma(p * s, a, a) : large;
    return ridge_float(ridge_bits(p) | (ridge_bits(x) & 0x80000000u));
}

/* 1 / (1 + exp(-x)) without cancellation on either side: t = exp(-|x|), (x >= 0 ? 1 : t) / (1 + t). */
RIDGE_FN float ridge_sigmoid(float x)
{
    float t = ridge_exp_neg(x);
    float r = ridge_rcp(1.0f + t);
    return (x >= 0.0f ? 1.0f : t) * r;
}

/* Standard normal distribution function; *bell receives exp(-x^2/2). With u = 1/(1 + 0.35 |x|) the lower tail is
 * u Q(u) exp(-x^2/2), Q of degree 8 (relative error 0.27 ulp); the rounding error of x^2 is put back after the
 * exponential. Beyond |x| = 15 both are 0 or 1. */
RIDGE_FN float ridge_normal_cdf(float x, float *bell)
{
    float a = ridge_min_f32(ridge_float(ridge_bits(x) & 0x7fffffffu), 15.0f);
    float sq = a * a;
    float lo = ridge_fma(a, a, -sq);
    float e = ridge_exp_neg(0.5f * sq);
    float u = ridge_rcp(ridge_fma(0.35f, a, 1.0f));
    float q = ridge_fma(-0x1.ddd1dep-6f, u, 0x1.27090ep-3f);

    e = ridge_fma(-0.5f * e, lo, e);
    q = ridge_fma(q, u, -0x1.060ad8p-2f);
    q = ridge_fma(q, u, 0x1.466f28p-3f);
    q = ridge_fma(q, u, -0x1.7d243cp-6f);
    q = ridge_fma(q, u, 0x1.b06edep-4f);
    q = ridge_fma(q, u, 0x1.eac3bcp-4f);
    q = ridge_fma(q, u, 0x1.1e7130p-3f);
    q = ridge_fma(q, u, 0x1.1df1c0p-3f);
    q = q * u * e;
    *bell = e;
    return x >= 0.0f ? 1.0f - q : q;
}

#endif
