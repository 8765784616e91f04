/* num.h: number formats on the CPU, and the floating-point mode that every worker runs in.
 *
 * Conversions are exact or round to nearest even, keep subnormals, and give the one canonical NaN of the format. They
 * are branch-free, so that compilers turn loops of them into packed instructions. (VCVTNEPS2BF16 is no substitute: it
 * flushes subnormals.) Leaves out: the 8-bit formats, which come with their ops. */
#ifndef RIDGE_CPU_NUM_H
#define RIDGE_CPU_NUM_H

#include <stdint.h>

#include "exact.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

enum { RIDGE_NAN_BF16 = 0x7fc0, RIDGE_NAN_F16 = 0x7e00 };
#define RIDGE_NAN_F32 0x7fc00000u

/* x with any NaN replaced by the canonical one: what a store of f32 writes. */
static inline float ridge_f32_canonical(float x)
{
    return x != x ? ridge_float(RIDGE_NAN_F32) : x;
}

static inline float ridge_f32_from_bf16(uint16_t x)
{
    return ridge_float((uint32_t)x << 16);
}

static inline uint16_t ridge_bf16_from_f32(float x)
{
    uint32_t u = ridge_bits(x);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)(x != x ? RIDGE_NAN_BF16 : r);
}

static inline float ridge_f32_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t mag = (uint32_t)(x & 0x7fffu) << 13;
    /* As f32 bits, mag is the value times 2^-112, for subnormals of f16 too, unless it is infinity or NaN. Adding the
     * exponent as an integer does for normal numbers; for the others subtract the hidden bit that appears. */
    uint32_t normal = mag + (112u << 23);
    float small = ridge_float(normal + (1u << 23)) - 0x1p-14f;
    uint32_t u = mag < (1u << 23) ? ridge_bits(small) : normal;
    u = mag >= (31u << 23) ? mag | 0x7f800000u : u;
    return ridge_float(u | sign);
}

static inline uint16_t ridge_f16_from_f32(float x)
{
    uint32_t u = ridge_bits(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    uint32_t cut = mag < 0x47800000u ? mag : 0x47800000u; /* 65536 rounds to infinity like all above it */
    uint32_t normal = (cut - (112u << 23) + 0xfffu + ((cut >> 13) & 1u)) >> 13;
    /* Below 2^-14 the sum with 0.5 has units of 2^-24, the smallest f16: the adder rounds. */
    uint32_t small = ridge_bits(ridge_float(cut) + 0.5f) - 0x3f000000u;
    uint32_t r = cut < 0x38800000u ? small : normal;
    return (uint16_t)(mag > 0x7f800000u ? RIDGE_NAN_F16 : r | sign);
}

/* Sets round to nearest, no flush-to-zero, no denormals-are-zero, exceptions masked; returns the caller's mode. The
 * work between begin and end must sit behind a call that is not inlined: compilers move arithmetic across these two. */
static inline unsigned ridge_fp_begin(void)
{
#if defined(__SSE__)
    unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1f80u);
    return mode;
#else
    return 0;
#endif
}

static inline void ridge_fp_end(unsigned mode)
{
#if defined(__SSE__)
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

#endif
