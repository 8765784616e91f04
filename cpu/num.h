/* num.h: number formats on the CPU, and the floating-point mode that every thread runs in.
 *
 * Conversions are exact or round to nearest even, keep subnormals, and give the one canonical NaN of the format. They
 * are branch-free, so that compilers turn loops of them into packed instructions. (VCVTNEPS2BF16 is no substitute: it
 * flushes subnormals.) */
#ifndef RIDGE_CPU_NUM_H
#define RIDGE_CPU_NUM_H

#include <stdint.h>
#include <string.h>

#include "ridge.h"
#include "src/math/exact.h"

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

/* e4m3 (OCP E4M3FN) or e5m2 by `e5m2`: nearest even, saturating (so does infinity); NaN is 7F. */
static inline uint8_t ridge_fp8_from_f32(float x, int e5m2)
{
    const uint32_t shift = e5m2 ? 21 : 20, most = e5m2 ? 0x47600000u : 0x43e00000u; /* 57344, 448 */
    const uint32_t least = e5m2 ? 0x38800000u : 0x3c800000u;                        /* 2^-14, 2^-6: normal from here */
    const uint32_t bias = e5m2 ? 112u << 2 : 120u << 3;
    const float magic = e5m2 ? 0x1p7f : 0x1p14f; /* its unit is the smallest fp8: the adder rounds */
    uint32_t u = ridge_bits(x), sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;
    uint32_t cut = mag < most ? mag : most;
    uint32_t normal = ((cut + ((1u << (shift - 1)) - 1) + ((cut >> shift) & 1u)) >> shift) - bias;
    uint32_t small = ridge_bits(ridge_float(cut) + magic) - ridge_bits(magic);
    uint32_t r = cut < least ? small : normal;
    return (uint8_t)(mag > 0x7f800000u ? 0x7fu : r | sign);
}

static inline float ridge_f32_from_fp8(uint8_t x, int e5m2)
{
    uint32_t mag = x & 0x7fu, sign = (uint32_t)(x & 0x80u) << 24;
    uint32_t normal = e5m2 ? (mag << 21) + (112u << 23) : (mag << 20) + (120u << 23);
    float small = (float)mag * (e5m2 ? 0x1p-16f : 0x1p-9f);
    uint32_t u = mag < (e5m2 ? 4u : 8u) ? ridge_bits(small) : normal;
    if (e5m2 && mag == 0x7cu)
        u = 0x7f800000u;
    if (mag > (e5m2 ? 0x7cu : 0x7eu))
        return ridge_float(RIDGE_NAN_F32);
    return ridge_float(u | sign);
}

/* n elements of f32, bf16 or f16 to f32, and back. */
static inline void ridge_widen(uint32_t dtype, const char *x, int64_t n, float *to)
{
    const uint16_t *half = (const uint16_t *)(const void *)x;

    if (dtype == RIDGE_F32)
        memcpy(to, x, (size_t)n * sizeof *to);
    else if (dtype == RIDGE_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_bf16(half[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_f16(half[i]);
}

/* Element i of a vector of f32, bf16 or f16. */
static inline float ridge_load_element(uint32_t dtype, const void *x, int64_t i)
{
    const uint16_t *half = (const uint16_t *)x;

    if (dtype == RIDGE_F32)
        return ((const float *)x)[i];
    return dtype == RIDGE_BF16 ? ridge_f32_from_bf16(half[i]) : ridge_f32_from_f16(half[i]);
}

static inline void ridge_store_element(const ridge_operand *x, int64_t i, float value)
{
    if (x->dtype == RIDGE_F32)
        ((float *)x->data)[i] = ridge_f32_canonical(value);
    else
        ((uint16_t *)x->data)[i] = x->dtype == RIDGE_BF16 ? ridge_bf16_from_f32(value) : ridge_f16_from_f32(value);
}

static inline void ridge_narrow(uint32_t dtype, char *out, int64_t n, const float *from)
{
    uint16_t *half = (uint16_t *)(void *)out;

    if (dtype == RIDGE_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)(void *)out)[i] = ridge_f32_canonical(from[i]);
    else if (dtype == RIDGE_BF16)
        for (int64_t i = 0; i < n; i++)
            half[i] = ridge_bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = ridge_f16_from_f32(from[i]);
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
