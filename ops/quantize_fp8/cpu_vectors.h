/* cpu_vectors.h: 128 elements at a time for the quantisers, once an instruction set: load, amax, scales, fp8 codes and
 * their store.
 *
 * A group's amax, scale and codes stay in registers and L1; a group cut short by an edge is padded with zeros, which
 * change no amax. 16-bit elements are compared as the packed integers that they are. Intrinsics under a small set of
 * names, because gcc 12 and clang 14 make scalar code or long shuffles of the plain loops.
 *
 * The fp8 encoding of |y|, 2^e <= |y| < 2^(e+1) (or the least normal number's e below it): |y| + 2^(e+20) rounds |y| to
 * units of 2^(e-3), three bits after the leading one, nearest even, and leaves the count of units in the low bits of
 * the sum. The exponent joins by an addition, so that rounding up to the next power of two carries. (e5m2 has one bit
 * less.) */
#ifndef RIDGE_CPU_QUANTIZE_VECTORS_H
#define RIDGE_CPU_QUANTIZE_VECTORS_H

#include <immintrin.h>
#include <string.h>

#include "cpu.h"
#include "cpu/num.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Names for the intrinsics of both vector widths. pack_* saturates and interleaves 16-byte lanes; in_order() undoes
 * that. */
#ifdef __AVX512F__
enum { LANES = 16, VECTOR_BYTES = 64 };
typedef __m512i ints;
typedef __m512 floats;
#define load(from) _mm512_loadu_si512((const void *)(from))
#define store(to, x) _mm512_storeu_si512((void *)(to), x)
#define stream_store(to, x) _mm512_stream_si512((void *)(to), x)
#define load_half(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define store_half(to, x) _mm256_storeu_si256((__m256i *)(void *)(to), x)
#define all8(x) _mm512_set1_epi8((char)(x))
#define all16(x) _mm512_set1_epi16((short)(x))
#define all32(x) _mm512_set1_epi32((int)(x))
#define all_f32(x) _mm512_set1_ps(x)
#define zeros() _mm512_setzero_si512()
#define and_bits(x, y) _mm512_and_si512(x, y)
#define or_bits(x, y) _mm512_or_si512(x, y)
#define add32(x, y) _mm512_add_epi32(x, y)
#define sub32(x, y) _mm512_sub_epi32(x, y)
#define sub_saturated(x, y) _mm512_subs_epu16(x, y)
#define max16(x, y) _mm512_max_epi16(x, y)
#define max32(x, y) _mm512_max_epi32(x, y)
#define shift_right32(x, n) _mm512_srli_epi32(x, (unsigned)(n))
#define low16(x, y) _mm512_unpacklo_epi16(x, y)
#define high16(x, y) _mm512_unpackhi_epi16(x, y)
#define pack_u32(x, y) _mm512_packus_epi32(x, y)
#define pack_u16(x, y) _mm512_packus_epi16(x, y)
#define pack_s32(x, y) _mm512_packs_epi32(x, y)
#define pack_s16(x, y) _mm512_packs_epi16(x, y)
#define shuffle32(order, x) _mm512_permutexvar_epi32(order, x)
#define f32_from_f16(x) _mm512_cvtph_ps(x)
#define f16_from_f32(x) _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)
#define truncated(x) _mm512_cvttps_epi32(x)
#define rounded(x) _mm512_cvtps_epi32(x)
#define mul(x, y) _mm512_mul_ps(x, y)
#define add(x, y) _mm512_add_ps(x, y)
#define least(x, y) _mm512_min_ps(x, y)
#define as_f32(x) _mm512_castsi512_ps(x)
#define as_ints(x) _mm512_castps_si512(x)
#define low8(x, y) _mm512_unpacklo_epi8(x, y)
#define high8(x, y) _mm512_unpackhi_epi8(x, y)
#else
enum { LANES = 8, VECTOR_BYTES = 32 };
typedef __m256i ints;
typedef __m256 floats;
#define load(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define store(to, x) _mm256_storeu_si256((__m256i *)(void *)(to), x)
#define stream_store(to, x) _mm256_stream_si256((__m256i *)(void *)(to), x)
#define load_half(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define store_half(to, x) _mm_storeu_si128((__m128i *)(void *)(to), x)
#define all8(x) _mm256_set1_epi8((char)(x))
#define all16(x) _mm256_set1_epi16((short)(x))
#define all32(x) _mm256_set1_epi32((int)(x))
#define all_f32(x) _mm256_set1_ps(x)
#define zeros() _mm256_setzero_si256()
#define and_bits(x, y) _mm256_and_si256(x, y)
#define or_bits(x, y) _mm256_or_si256(x, y)
#define add32(x, y) _mm256_add_epi32(x, y)
#define sub32(x, y) _mm256_sub_epi32(x, y)
#define sub_saturated(x, y) _mm256_subs_epu16(x, y)
#define max16(x, y) _mm256_max_epi16(x, y)
#define max32(x, y) _mm256_max_epi32(x, y)
#define shift_right32(x, n) _mm256_srli_epi32(x, n)
#define low16(x, y) _mm256_unpacklo_epi16(x, y)
#define high16(x, y) _mm256_unpackhi_epi16(x, y)
#define pack_u32(x, y) _mm256_packus_epi32(x, y)
#define pack_u16(x, y) _mm256_packus_epi16(x, y)
#define pack_s32(x, y) _mm256_packs_epi32(x, y)
#define pack_s16(x, y) _mm256_packs_epi16(x, y)
#define shuffle32(order, x) _mm256_permutevar8x32_epi32(x, order)
#define f32_from_f16(x) _mm256_cvtph_ps(x)
#define f16_from_f32(x) _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)
#define truncated(x) _mm256_cvttps_epi32(x)
#define rounded(x) _mm256_cvtps_epi32(x)
#define mul(x, y) _mm256_mul_ps(x, y)
#define add(x, y) _mm256_add_ps(x, y)
#define least(x, y) _mm256_min_ps(x, y)
#define as_f32(x) _mm256_castsi256_ps(x)
#define as_ints(x) _mm256_castps_si256(x)
#define low8(x, y) _mm256_unpacklo_epi8(x, y)
#define high8(x, y) _mm256_unpackhi_epi8(x, y)
#endif

enum { G = RIDGE_GROUP, ELEMENTS = 4 * LANES /* of a step: one vector of codes */, SOME = 16 /* groups at a time */ };

/* ---------------------------------------------------------------------------------------------------- load and amax */

/* Four vectors of f32, with signs or as magnitudes. bf16 comes in the order that packing undoes within lanes. */
INLINE void widen(uint32_t dtype, const char *from, bool magnitude, floats *v)
{
    if (dtype == RIDGE_BF16) {
        UNROLL
        for (int i = 0; i < 2; i++) {
            ints x = load(from + i * VECTOR_BYTES);

            x = magnitude ? and_bits(x, all16(0x7fff)) : x;
            v[2 * i] = as_f32(low16(zeros(), x));
            v[2 * i + 1] = as_f32(high16(zeros(), x));
        }
        return;
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = dtype == RIDGE_F16 ? f32_from_f16(load_half(from + i * VECTOR_BYTES / 2))
                                  : as_f32(load(from + i * VECTOR_BYTES));
        if (magnitude)
            v[i] = as_f32(and_bits(as_ints(v[i]), all32(0x7fffffff)));
    }
}

/* Where dword d of a packed vector comes from: of four vectors packed one after another, or of two of 16-bit elements.
 */
#ifdef __AVX512F__
#define ORDER_FOUR _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)
#define ORDER_TWO _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)
#else
#define ORDER_FOUR _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)
#define ORDER_TWO _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)
#endif

INLINE ints in_order(uint32_t dtype, ints x)
{
    return dtype == RIDGE_BF16 ? shuffle32(ORDER_TWO, x) : shuffle32(ORDER_FOUR, x);
}

/* The largest of the lanes, none of which is negative. */
INLINE uint32_t largest_lane(uint32_t dtype, ints x)
{
#ifdef __AVX512F__
    const __m256i y = _mm512_castsi512_si256(x), z = _mm512_extracti64x4_epi64(x, 1);
    const __m256i half = dtype == RIDGE_F32 ? _mm256_max_epi32(y, z) : _mm256_max_epi16(y, z);
#else
    const __m256i half = x;
#endif
    __m128i a = _mm256_castsi256_si128(half), b = _mm256_extracti128_si256(half, 1);

    if (dtype == RIDGE_F32) {
        a = _mm_max_epi32(a, b);
        a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
        a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1));
        return (uint32_t)_mm_cvtsi128_si32(a);
    }
    /* One instruction finds the smallest of eight. */
    a = _mm_minpos_epu16(_mm_xor_si128(_mm_max_epi16(a, b), _mm_set1_epi16(-1)));
    return ~(uint32_t)_mm_cvtsi128_si32(a) & 0xffffu;
}

/* The bits of a magnitude as f32. */
INLINE uint32_t magnitude_bits(uint32_t dtype, uint32_t m)
{
    return dtype == RIDGE_F32 ? m : dtype == RIDGE_BF16 ? m << 16 : ridge_bits(ridge_f32_from_f16((uint16_t)m));
}

INLINE ints magnitudes(uint32_t dtype, ints x)
{
    return and_bits(x, dtype == RIDGE_F32 ? all32(0x7fffffff) : all16(0x7fff));
}

INLINE ints larger(uint32_t dtype, ints x, ints y)
{
    return dtype == RIDGE_F32 ? max32(x, y) : max16(x, y);
}

INLINE int size_of(uint32_t dtype)
{
    return dtype == RIDGE_F32 ? 4 : 2;
}

/* The largest magnitude of `bytes` bytes, a multiple of the vector, as f32 bits. */
INLINE uint32_t amax_of(uint32_t dtype, const char *x, int bytes)
{
    ints most = zeros();

    UNROLL
    for (int i = 0; i < bytes; i += VECTOR_BYTES)
        most = larger(dtype, most, magnitudes(dtype, load(x + i)));
    return magnitude_bits(dtype, largest_lane(dtype, most));
}

#ifdef __AVX512F__
/* The largest word of each of 16 vectors, as f32 bits: three instructions a row, where one by one they are ten. */
INLINE void largest_of_rows(uint32_t dtype, const ints *v, uint32_t *amax)
{
    __m128i even, odd;
    __m256i all;
    ints a[16];

    UNROLL
    for (int i = 0; i < 16; i++)
        a[i] = v[i];
    UNROLL
    for (int half = 8; half > 1; half /= 2) /* words of rows i and i + half alternate */
        UNROLL
    for (int i = 0; i < half; i++)
        a[i] = max16(low16(a[i], a[i + half]), high16(a[i], a[i + half]));
    a[0] = max16(_mm512_shuffle_i32x4(a[0], a[1], 0x44), _mm512_shuffle_i32x4(a[0], a[1], 0xee));
    a[0] = max16(a[0], _mm512_shuffle_i32x4(a[0], a[0], 0xb1));
    even = _mm512_castsi512_si128(a[0]);
    odd = _mm512_extracti32x4_epi32(a[0], 2);
    all = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(even, odd)), _mm_unpackhi_epi16(even, odd),
                                  1);
    store(amax, dtype == RIDGE_BF16 ? _mm512_slli_epi32(_mm512_cvtepu16_epi32(all), 16) : as_ints(f32_from_f16(all)));
}
#endif

/* The amax of n whole groups side by side. */
static void amax_groups(uint32_t dtype, const char *x, int64_t n, uint32_t *amax)
{
    switch (dtype) {
    case RIDGE_BF16:
        for (int64_t g = 0; g < n; g++)
            amax[g] = amax_of(RIDGE_BF16, x + g * G * 2, G * 2);
        break;
    case RIDGE_F16:
        for (int64_t g = 0; g < n; g++)
            amax[g] = amax_of(RIDGE_F16, x + g * G * 2, G * 2);
        break;
    default:
        for (int64_t g = 0; g < n; g++)
            amax[g] = amax_of(RIDGE_F32, x + g * G * 4, G * 4);
    }
}

/* A group of n elements (of the first 128), padded with zeros into `padded` if it is short. */
INLINE const char *whole_group(const char *x, int64_t n, int size, char *padded)
{
    if (n >= G)
        return x;
    memset(padded, 0, (size_t)(G * size));
    memcpy(padded, x, (size_t)(n * size));
    return padded;
}

/* ----------------------------------------------------------------------------------------------------------- encode */

/* The code of every y >= 0 in its lane, without saturation. */
INLINE ints fp8_code(floats y, int e5m2)
{
    const int drop = e5m2 ? 21 : 20, first = e5m2 ? 113 : 121; /* exponent of the least normal number */
    const ints exponent = and_bits(sub_saturated(as_ints(y), all32(first << 23)), all32(0x7f800000));
    const ints magic = add32(exponent, all32((first + drop) << 23));
    const ints units = sub32(as_ints(add(y, as_f32(magic))), magic);

    return add32(units, shift_right32(exponent, drop));
}

/* The sign bits of a step's elements, in the order of the packed codes. */
INLINE ints packed_signs(uint32_t dtype, const char *x)
{
    const ints a = load(x), b = load(x + VECTOR_BYTES);

    if (dtype != RIDGE_F32)
        return pack_s16(a, b);
    return pack_s16(pack_s32(a, b), pack_s32(load(x + 2 * VECTOR_BYTES), load(x + 3 * VECTOR_BYTES)));
}

/* EACH: r has a factor for every element, in the order of widen(). ONE: one factor for all. Both come from amax, so
 * that no product exceeds the largest code's rounding range. CAPPED: one factor of the caller's, whose products may
 * exceed it. */
enum { EACH, ONE, CAPPED };

/* 128 codes of x * r; no product may be NaN. */
INLINE void encode_group(uint32_t dtype, int e5m2, int how, const char *x, const float *r, uint8_t *q)
{
    const floats most = all_f32(e5m2 ? 57344.0f : 448.0f), one = all_f32(r[0]);

    UNROLL
    for (int j = 0; j < G; j += ELEMENTS) {
        const char *at = x + j * size_of(dtype);
        ints codes, signs, t[4];
        floats v[4];

        widen(dtype, at, true, v);
        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = mul(v[i], how == EACH ? as_f32(load(r + j + i * LANES)) : one);
            t[i] = fp8_code(how == CAPPED ? least(v[i], most) : v[i], e5m2);
        }
        codes = pack_u16(pack_u32(t[0], t[1]), pack_u32(t[2], t[3]));
        signs = and_bits(packed_signs(dtype, at), all8(0x80));
        if (dtype == RIDGE_F16)
            store(q + j, or_bits(in_order(dtype, codes), in_order(RIDGE_BF16, signs)));
        else
            store(q + j, in_order(dtype, or_bits(codes, signs)));
    }
}

typedef void encoder(const char *x, const float *r, uint8_t *q);

#define ENCODER(name, dtype, e5m2, how)                         \
    static void name(const char *x, const float *r, uint8_t *q) \
    {                                                           \
        encode_group(dtype, e5m2, how, x, r, q);                \
    }
#define ENCODERS(name, dtype, e5m2)         \
    ENCODER(name##_each, dtype, e5m2, EACH) \
    ENCODER(name##_one, dtype, e5m2, ONE)   \
    ENCODER(name##_capped, dtype, e5m2, CAPPED)

ENCODERS(bf16_e4m3, RIDGE_BF16, 0)
ENCODERS(bf16_e5m2, RIDGE_BF16, 1)
ENCODERS(f16_e4m3, RIDGE_F16, 0)
ENCODERS(f16_e5m2, RIDGE_F16, 1)
ENCODERS(f32_e4m3, RIDGE_F32, 0)
ENCODERS(f32_e5m2, RIDGE_F32, 1)

static encoder *pick_encoder(uint32_t dtype, int e5m2, int how)
{
    static encoder *const table[3][2][3] = {
        {{bf16_e4m3_each, bf16_e4m3_one, bf16_e4m3_capped}, {bf16_e5m2_each, bf16_e5m2_one, bf16_e5m2_capped}},
        {{f16_e4m3_each, f16_e4m3_one, f16_e4m3_capped}, {f16_e5m2_each, f16_e5m2_one, f16_e5m2_capped}},
        {{f32_e4m3_each, f32_e4m3_one, f32_e4m3_capped}, {f32_e5m2_each, f32_e5m2_one, f32_e5m2_capped}},
    };

    return table[dtype == RIDGE_BF16 ? 0 : dtype == RIDGE_F16 ? 1 : 2][e5m2][how];
}

/* Codes of a group with the scale s, which may be NaN: then all are. */
INLINE void encode_scaled(encoder *encode, const char *x, float s, const float *r, uint8_t *q)
{
    if (s != s)
        memset(q, 0x7f, G);
    else
        encode(x, r, q);
}

/* 128 codes to memory. Whole lines may bypass the cache, which saves reading them. */
INLINE void put_vectors(uint8_t *to, const ints *q, bool stream)
{
    if (stream && (uintptr_t)to % 64 == 0)
        UNROLL
    for (int i = 0; i < G / VECTOR_BYTES; i++)
        stream_store(to + i * VECTOR_BYTES, q[i]);
    else UNROLL for (int i = 0; i < G / VECTOR_BYTES; i++) store(to + i * VECTOR_BYTES, q[i]);
}

/* n codes to memory that may be shorter than a group. */
INLINE void put(uint8_t *to, const uint8_t *q, int64_t n, bool stream)
{
    ints whole[G / VECTOR_BYTES];

    if (n < G) {
        memcpy(to, q, (size_t)n);
        return;
    }
    UNROLL
    for (int i = 0; i < G / VECTOR_BYTES; i++)
        whole[i] = load(q + i * VECTOR_BYTES);
    put_vectors(to, whole, stream);
}

/* ridge_fp8_scale and ridge_fp8_reciprocal of n groups, a multiple of LANES, without branches, so that the divisions
 * are packed and do not wait for each other. Of a group that is not finite the scale is NaN and the reciprocal 0. */
static void scales_of(const quantize_args *a, int n, const uint32_t *restrict amax, float *restrict s,
                      float *restrict r)
{
    const float floor = a->floor, largest = a->e5m2 ? 57344.0f : 448.0f;
    const uint32_t up = a->pow2 ? 0x7fffffu : 0, keep = a->pow2 ? 0xff800000u : ~0u;

    for (int j = 0; j < n / LANES * LANES; j++) {
        float m = ridge_float(amax[j]), scale;

        m = m > floor ? m : floor;
        scale = m / largest;
        scale = scale < 0x1p-126f ? 0x1p-126f : scale;
        scale = m == 0.0f ? 1.0f : scale;
        scale = ridge_float((ridge_bits(scale) + up) & keep);
        s[j] = amax[j] >= 0x7f800000u ? ridge_float(RIDGE_NAN_F32) : scale;
        r[j] = amax[j] >= 0x7f800000u ? 0.0f : 1.0f / scale;
    }
}

/* ------------------------------------------------------------------------------------------------------------- runs */

/* A run of whole groups: each lies a step after the one before, in x, in the codes, and in what to prefetch. */
typedef struct group_run {
    int n; /* at most G */
    const char *x;
    int64_t x_step;
    uint8_t *q;
    int64_t q_step;
    const char *next; /* NULL: nothing to prefetch */
    int64_t next_step;
    int next_bytes;
    bool stream;
    /* the run is repeated `rows` times with the same scales, each time so much further in x and next, and in q; 0: once
     */
    int64_t rows, x_row, q_row;
} group_run;

/* Prefetches into the second-level cache what the next pass over memory will read: without it memory would be idle
 * while codes are computed. */
INLINE void prefetch_next(const group_run *g, int i)
{
    for (int k = 0; g->next && k < g->next_bytes; k += 64)
        __builtin_prefetch(g->next + i * g->next_step + k, 0, 2);
}

/* One group of a run. */
INLINE void encode_one(encoder *encode, const group_run *g, int i, float s, const float *r)
{
    _Alignas(64) uint8_t codes[G];

    encode_scaled(encode, g->x + i * g->x_step, s, r, codes);
    put(g->q + i * g->q_step, codes, G, g->stream);
}

INLINE void next_row(group_run *g)
{
    g->x += g->x_row;
    g->q += g->q_row;
    if (g->next)
        g->next += g->x_row;
}

#endif
