/* approx.cuh: SiLU(gate) * up of bf16 in half the instructions, with the bits of the exact formula.
 *
 * The fast exponential and the fast reciprocal give an f32 whose error is a few units in the last place. Rounded to
 * bf16 it is the exact formula's result, unless a rounding boundary lies within APPROX_ULPS units of it, that is,
 * unless its low half is within that distance of 8000 (hexadecimal). The caller collects the least distance of the low
 * halves (approx_silu2) and the gates so far below zero that the fast exponential overflows (approx_max_gates), and
 * computes such elements again by src/math/swiglu.h. A NaN is not made canonical: for callers that do not store the
 * result. Leaves out: the second computation, which depends on where the caller keeps its elements. */
#ifndef RIDGE_SWIGLU_APPROX_CUH
#define RIDGE_SWIGLU_APPROX_CUH

#include "cuda/num.cuh"
#include "src/math/swiglu.h"

/* Units in the last place of f32. The largest difference from the exact formula is 7, over all pairs of a bf16 gate
 * from -80 up and a bf16 up (H200; 4 from -4 up, 6 from -40 up). `ridge test exact` tries pairs, with --large all of
 * them. */
enum { APPROX_ULPS = 8 };

/* The same where the result is multiplied by a row's scale of at most APPROX_SCALE: 7 units become 14 where the product
 * has a mantissa near 2, two roundings add 1, and 7 units of a subnormal become 28. */
enum { APPROX_SCALED_ULPS = 32 };
#define APPROX_SCALE 4.0f

/* The errors of the fast functions have been measured on sm_90 only; elsewhere the exact formula computes everything,
 * also in PTX for compute_90, which newer chips run. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { APPROX = 1 };
#else
enum { APPROX = 0 };
#endif

/* 1/x, error 1 ulp. */
static __device__ __forceinline__ float approx_rcp(float x)
{
    float v;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}

/* exp(-a) = 2^(-a h) (1 - a l), log2(e) = h + l / ln 2 and h of 16 bits: a h is exact for an a of 8 bits. */
static __device__ __forceinline__ float approx_silu(float a, float up)
{
    const float t = ptx_ex2(a * -0x1.7154p+0f), w = __fmaf_rn(a, -0x1.480fb6p-18f, 1.0f);

    return a * approx_rcp(__fmaf_rn(t, w, 1.0f)) * up;
}

/* Two elements, of SCALED times `scale`. Each half of *distance becomes the least so far of (low half - (8000 - ULPS))
 * mod 10000, all hexadecimal, ULPS being APPROX_ULPS or APPROX_SCALED_ULPS: below 2 ULPS the low half is near the
 * boundary. */
template <bool SCALED>
static __device__ __forceinline__ uint32_t approx_silu2(uint32_t gate, uint32_t up, float scale, uint32_t *distance)
{
    const uint32_t above = (0x8000u + (SCALED ? APPROX_SCALED_ULPS : APPROX_ULPS)) * 0x10001u;
    float g[2], u[2], lo, hi;

    num_unpack2<RIDGE_BF16>(gate, g, g + 1);
    num_unpack2<RIDGE_BF16>(up, u, u + 1);
    lo = approx_silu(g[0], u[0]);
    hi = approx_silu(g[1], u[1]);
    if (SCALED)
        lo *= scale, hi *= scale;
    *distance = __viaddmin_u16x2(__byte_perm(__float_as_uint(lo), __float_as_uint(hi), 0x5410), above, *distance);
    return ptx_bf16x2(hi, lo);
}

/* A result of approx_silu2 was too near a rounding boundary. */
template <bool SCALED> static __device__ __forceinline__ bool approx_near_boundary(uint32_t distance)
{
    const uint32_t near = 2u * (SCALED ? APPROX_SCALED_ULPS : APPROX_ULPS) << 16;

    return distance < near || distance << 16 < near;
}

/* The largest bits, per half, of two words of gates and of `most`. As unsigned integers the largest bf16 are the most
 * negative, above positive ones. */
static __device__ __forceinline__ uint32_t approx_max_gates(uint32_t one, uint32_t two, uint32_t most)
{
    return __vimax3_u16x2(one, two, most);
}

/* A gate below -80 is among those of approx_max_gates. */
static __device__ __forceinline__ bool approx_out_of_range(uint32_t most)
{
    const uint32_t least = 0xc2a0u;

    return most >> 16 > least || (most & 0xffffu) > least;
}

/* For the gate in the high half and the up in the low half: the approximation is the exact formula's result, or it
 * would be computed again, or both results are not finite, which makes all codes of a group the same. */
template <bool SCALED> static __device__ __forceinline__ bool approx_holds_scaled(uint32_t pair, float scale)
{
    const float gate = __uint_as_float(pair & 0xffff0000u), up = __uint_as_float(pair << 16);
    const float y = ridge_act_fwd(RIDGE_SILU, gate, 1.0f) * up;
    const uint32_t exact = ptx_bf16x2(0.0f, SCALED ? y * scale : y);
    uint32_t distance = ~0u, approx = approx_silu2<SCALED>(pair >> 16, pair & 0xffffu, scale, &distance);

    return approx_near_boundary<SCALED>(distance) || approx_out_of_range(pair >> 16) ||
           (approx & 0xffffu) == (exact & 0xffffu) || ((approx & 0x7f80u) == 0x7f80u && (exact & 0x7f80u) == 0x7f80u);
}

/* Without a scale, and with one that the pair decides: of either sign, from 2^-30 to APPROX_SCALE. */
static __device__ __forceinline__ bool approx_holds(uint32_t pair)
{
    const uint32_t bits = pair * 0x9e3779b9u; /* an odd constant: as many scales as pairs */
    const float scale = __uint_as_float((bits & 0x80000000u) | (97 + (bits >> 8 & 31)) << 23 | (bits >> 3 & 0x7fffff));

    return !APPROX || (approx_holds_scaled<false>(pair, 1.0f) && approx_holds_scaled<true>(pair, scale));
}

#endif
