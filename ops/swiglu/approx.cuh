/* approx.cuh: plain SwiGLU of bf16 in half the instructions, with the bits of the exact formula.
 *
 * The fast exponential and the fast reciprocal give an f32 whose error is a few units in the last place. Rounded to
 * bf16 it is the exact formula's result, unless a boundary between two roundings lies within GUESS_NEAR units: then its
 * low half is within that of 8000. Whoever guesses collects how near the low halves come (guess_silu2), and which gates
 * are so far below zero that the fast exponential overflows (guess_range), and computes those elements again by
 * src/math/swiglu.h. NaN is not made canonical: for callers that do not store the result. */
#ifndef RIDGE_SWIGLU_GUESS_CUH
#define RIDGE_SWIGLU_GUESS_CUH

#include "cuda/num.cuh"
#include "src/math/swiglu.h"

/* Units in the last place of f32. The largest difference from the exact formula is 7, over all pairs of a bf16 gate
 * from -80 up and a bf16 up (H200; 4 from -4 up, 6 from -40 up). `ridge test exact` tries pairs, with --large all of
 * them. */
enum { GUESS_NEAR = 8 };

/* The fast functions have been measured on sm_90 only; elsewhere the exact formula does it all. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
enum { GUESS = 1 };
#else
enum { GUESS = 0 };
#endif

/* 1/x, error 1 ulp. */
static __device__ __forceinline__ float guess_rcp(float x)
{
    float v;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}

/* exp(-a) = 2^(-a h) (1 - a l), log2(e) = h + l / ln 2 and h of 16 bits: a h is exact for an a of 8 bits. */
static __device__ __forceinline__ float guess_silu(float a, float up)
{
    const float t = ptx_ex2(a * -0x1.7154p+0f), w = __fmaf_rn(a, -0x1.480fb6p-18f, 1.0f);

    return a * guess_rcp(__fmaf_rn(t, w, 1.0f)) * up;
}

/* Two elements; *near, of halves, becomes the least distance of a low half above 8000 - GUESS_NEAR. */
static __device__ __forceinline__ uint32_t guess_silu2(uint32_t gate, uint32_t up, uint32_t *near)
{
    const uint32_t above = (0x8000u + GUESS_NEAR) * 0x10001u;
    float g[2], u[2], lo, hi;

    num_unpack2<RIDGE_BF16>(gate, g, g + 1);
    num_unpack2<RIDGE_BF16>(up, u, u + 1);
    lo = guess_silu(g[0], u[0]);
    hi = guess_silu(g[1], u[1]);
    *near = __viaddmin_u16x2(__byte_perm(__float_as_uint(lo), __float_as_uint(hi), 0x5410), above, *near);
    return ptx_bf16x2(hi, lo);
}

/* One of the halves that guess_silu2 left is too near. */
static __device__ __forceinline__ bool guess_near(uint32_t near)
{
    return near < 2u * GUESS_NEAR << 16 || near << 16 < 2u * GUESS_NEAR << 16;
}

/* The largest bits, per half, of two words of gates and what was there: large ones are far below zero. */
static __device__ __forceinline__ uint32_t guess_range(uint32_t one, uint32_t two, uint32_t most)
{
    return __vimax3_u16x2(one, two, most);
}

/* A gate below -80 is among them. */
static __device__ __forceinline__ bool guess_far(uint32_t most)
{
    const uint32_t least = 0xc2a0u;

    return most >> 16 > least || (most & 0xffffu) > least;
}

/* The guess for the gate in the high half and the up in the low half is the exact formula's result, or doubted, or
 * either is not finite, which makes all codes of a group the same. */
static __device__ __forceinline__ bool guess_holds(uint32_t pair)
{
    const float gate = __uint_as_float(pair & 0xffff0000u), up = __uint_as_float(pair << 16);
    const uint32_t exact = ptx_bf16x2(0.0f, ridge_act_fwd(RIDGE_SILU, gate, 1.0f) * up);
    uint32_t near = ~0u, guess = guess_silu2(pair >> 16, pair & 0xffffu, &near);

    return !GUESS || guess_near(near) || guess_far(pair >> 16) || (guess & 0xffffu) == (exact & 0xffffu) ||
           ((guess & 0x7f80u) == 0x7f80u && (exact & 0x7f80u) == 0x7f80u);
}

#endif
