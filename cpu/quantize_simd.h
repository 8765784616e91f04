/* quantize_simd.h: the SIMD spans of the FP8 and Q8_0 quantisers, once per instruction set with QUANTIZE_VECTORS
 * defined.
 *
 * Everything works on 128 elements at a time, whose amax, scale and codes stay in registers and L1; a group cut short
 * by an edge is padded with zeros, which change no amax. 16-bit elements are compared as the packed integers that they
 * are. Intrinsics through a small vocabulary, because gcc 12 and clang 14 make scalar code or long shuffles of the
 * plain loops; that vocabulary is why this is one file of more than 600 lines. Leaves out: threads (quantize.c,
 * q8_0.c), and the fence after stores that bypass the cache: theirs.
 *
 * The fp8 encoding of |y|, 2^e <= |y| < 2^(e+1) (or the least normal number's e below it): |y| + 2^(e+20) rounds |y| to
 * units of 2^(e-3), three bits after the leading one, nearest even, and leaves the count of units in the low bits of
 * the sum. The exponent joins by an addition, so that rounding up to the next power of two carries. (e5m2 has one bit
 * less.) */
#include <immintrin.h>
#include <string.h>

#include "num.h"
#include "quantize.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* The vocabulary. pack_* saturates and interleaves 16-byte lanes; in_order() undoes that. */
#ifdef __AVX512F__
enum { LANES = 16, VECTOR_BYTES = 64 };
typedef __m512i ints;
typedef __m512 floats;
#define load(from) _mm512_loadu_si512((const void *)(from))
#define store(to, x) _mm512_storeu_si512((void *)(to), x)
#define stream_store(to, x) _mm512_stream_si512((void *)(to), x)
#define load_half(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
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
#define truncated(x) _mm512_cvttps_epi32(x)
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
#define truncated(x) _mm256_cvttps_epi32(x)
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

/* Where dword d of a packed vector comes from: from four vectors packed in turn, or from two of 16-bit elements. */
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
    /* There is an instruction for the least of eight. */
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

enum { TOGETHER = 4 };

/* Groups of as many rows: copied to `to`, their amax taken, and the amax of every column brought up to date. */
INLINE void absorb_groups(uint32_t dtype, const char *const *x, char *to, char *columns, uint32_t *amax)
{
    const int pitch = G * size_of(dtype);
    ints most[TOGETHER];

    UNROLL
    for (int k = 0; k < TOGETHER; k++)
        most[k] = zeros();
    for (int i = 0; i < pitch; i += VECTOR_BYTES) {
        ints column = load(columns + i);

        UNROLL
        for (int k = 0; k < TOGETHER; k++) {
            const ints v = load(x[k] + i), m = magnitudes(dtype, v);

            store(to + k * pitch + i, v);
            most[k] = larger(dtype, most[k], m);
            column = larger(dtype, column, m);
        }
        store(columns + i, column);
    }
    UNROLL
    for (int k = 0; k < TOGETHER; k++)
        amax[k] = magnitude_bits(dtype, largest_lane(dtype, most[k]));
}

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

static void absorb(uint32_t dtype, const char *const *x, char *to, char *columns, uint32_t *amax)
{
    switch (dtype) {
    case RIDGE_BF16:
        absorb_groups(RIDGE_BF16, x, to, columns, amax);
        break;
    case RIDGE_F16:
        absorb_groups(RIDGE_F16, x, to, columns, amax);
        break;
    default:
        absorb_groups(RIDGE_F32, x, to, columns, amax);
    }
}

/* A group of n elements (of the first 128), padded with zeros into `room` if it is short. */
INLINE const char *whole_group(const char *x, int64_t n, int size, char *room)
{
    if (n >= G)
        return x;
    memset(room, 0, (size_t)(G * size));
    memcpy(room, x, (size_t)(n * size));
    return room;
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

/* EACH: an r for every element, in the order of widen(). ONE: the same. Both come from amax, so that no product exceeds
 * the largest code's rounding range; a caller's r may do that: CAPPED. */
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

/* Whole groups, group by group a step further in x, in the codes, and in what to fetch meanwhile. */
typedef struct group_run {
    int n; /* at most G */
    const char *x;
    int64_t x_step;
    uint8_t *q;
    int64_t q_step;
    const char *next; /* NULL: nothing to fetch */
    int64_t next_step;
    int next_bytes;
    bool stream;
} group_run;

/* Fetches what the next pass over the memory will read into the second-level cache: without it memory would be idle
 * while codes are computed. */
INLINE void fetch(const group_run *g, int i)
{
    for (int k = 0; g->next && k < g->next_bytes; k += 64)
        __builtin_prefetch(g->next + i * g->next_step + k, 0, 2);
}

#ifdef __AVX512VBMI__
#include "quantize_tables.h"
#endif

/* One group of a run. */
INLINE void encode_one(encoder *encode, const group_run *g, int i, float s, const float *r)
{
    _Alignas(64) uint8_t codes[G];

    encode_scaled(encode, g->x + i * g->x_step, s, r, codes);
    put(g->q + i * g->q_step, codes, G, g->stream);
}

/* The codes of a run. The scale of group i and its reciprocal are s[i * step] and r[i * step]. */
static void encode_run(const quantize_args *a, const group_run *g, const float *s, const float *r, int step)
{
    encoder *encode = pick_encoder(a->dtype, a->e5m2, ONE);

#ifdef __AVX512VBMI__
    if (a->tables) {
        uint8_t left[G];
        const int count =
            a->e5m2 ? run_by_table(a->tables, 1, *g, r, step, left) : run_by_table(a->tables, 0, *g, r, step, left);

        for (int k = 0; k < count; k++)
            encode_one(encode, g, left[k], s[left[k] * step], r + left[k] * step);
        return;
    }
#endif
    for (int i = 0; i < g->n; i++) {
        fetch(g, i);
        encode_one(encode, g, i, s[i * step], r + i * step);
    }
}

/* The n < 128 elements at the edge. */
static void encode_edge(const quantize_args *a, const char *x, int64_t n, float s, float r, uint8_t *q)
{
    _Alignas(64) uint8_t codes[G];
    _Alignas(64) char room[G * 4];

    if (n > 0) {
        encode_scaled(pick_encoder(a->dtype, a->e5m2, ONE), whole_group(x, n, a->size, room), s, &r, codes);
        put(q, codes, n, a->stream);
    }
}

/* ------------------------------------------------------------------------------------------------------------- rows */

INLINE uint32_t amax_long(uint32_t dtype, const char *x, int64_t n)
{
    const int64_t bytes = n * size_of(dtype), whole = bytes / (4 * VECTOR_BYTES) * (4 * VECTOR_BYTES);
    ints most[4] = {zeros(), zeros(), zeros(), zeros()};
    _Alignas(64) char rest[4 * VECTOR_BYTES] = {0};

    for (int64_t i = 0; i < whole; i += 4 * VECTOR_BYTES)
        UNROLL
    for (int k = 0; k < 4; k++)
        most[k] = larger(dtype, most[k], magnitudes(dtype, load(x + i + k * VECTOR_BYTES)));
    memcpy(rest, x + whole, (size_t)(bytes - whole));
    UNROLL
    for (int k = 0; k < 4; k++)
        most[k] = larger(dtype, most[k], magnitudes(dtype, load(rest + k * VECTOR_BYTES)));
    most[0] = larger(dtype, larger(dtype, most[0], most[1]), larger(dtype, most[2], most[3]));
    return magnitude_bits(dtype, largest_lane(dtype, most[0]));
}

static uint32_t amax_all(uint32_t dtype, const void *x, int64_t n)
{
    switch (dtype) {
    case RIDGE_BF16:
        return amax_long(RIDGE_BF16, x, n);
    case RIDGE_F16:
        return amax_long(RIDGE_F16, x, n);
    default:
        return amax_long(RIDGE_F32, x, n);
    }
}

/* 7F where an element of x is infinite or NaN. */
static void guard_group(uint32_t dtype, const char *x, uint8_t *q)
{
    for (int i = 0; i < G; i++) {
        uint32_t m = 0;

        memcpy(&m, x + i * size_of(dtype), (size_t)size_of(dtype));
        m &= dtype == RIDGE_F32 ? 0x7fffffffu : 0x7fffu;
        q[i] = magnitude_bits(dtype, m) >= 0x7f800000u ? 0x7f : q[i];
    }
}

/* The codes of n elements of which some may be infinite, NaN or beyond the largest code. */
static void encode_guarded(const quantize_args *a, const char *x, int64_t n, float r, uint8_t *q)
{
    encoder *encode = pick_encoder(a->dtype, a->e5m2, CAPPED);
    _Alignas(64) uint8_t codes[G];
    _Alignas(64) char room[G * 4];

    for (int64_t i = 0; i < n; i += G) {
        const char *from = whole_group(x + i * a->size, n - i, a->size, room);

        encode_scaled(encode, from, r, &r, codes);
        guard_group(a->dtype, from, codes);
        put(q + i, codes, n - i, a->stream);
    }
}

/* The largest of n amax; of n elements less than a group besides. */
INLINE uint32_t most_of(const quantize_args *a, const char *x, int64_t n)
{
    uint32_t amax[SOME + 1], most = 0;
    _Alignas(64) char room[G * 4];

    amax_groups(a->dtype, x, n / G, amax);
    if (n % G)
        amax_groups(a->dtype, whole_group(x + n / G * G * a->size, n % G, a->size, room), 1, amax + n / G);
    for (int64_t g = 0; g < (n + G - 1) / G; g++)
        most = amax[g] > most ? amax[g] : most;
    return most;
}

static uint32_t encode_all(const quantize_args *a, const void *x, float reciprocal, bool cached, bool guard, uint8_t *q,
                           const void *next)
{
    const char *row_after = next;
    const float largest = a->e5m2 ? 57344.0f : 448.0f;
    uint32_t all = 0;

    for (int64_t i = 0; i < a->cols; i += SOME * G) {
        const char *from = (const char *)x + i * a->size;
        const bool within = !cached && i + SOME * G < a->cols; /* what comes next is in this row */
        const char *ahead = within ? from + SOME * G * a->size : row_after;
        const int64_t n = a->cols - i < SOME * G ? a->cols - i : SOME * G, whole = n / G * G;
        const uint32_t most = guard ? most_of(a, from, n) : 0;
        const group_run g = {(int)(n / G), from, G * a->size, q + i, G, ahead, G * a->size, G * a->size, a->stream};

        if (cached && row_after)
            row_after += SOME * G * a->size;
        all = most > all ? most : all;
        if (guard && !(ridge_float(most) * reciprocal <= largest)) {
            encode_guarded(a, from, n, reciprocal, q + i);
            continue;
        }
        encode_run(a, &g, &reciprocal, &reciprocal, 0);
        encode_edge(a, from + whole * a->size, n - whole, reciprocal, reciprocal, q + i + whole);
    }
    return all;
}

/* Up to ROWS rows, so that their scales, neighbours in memory, leave as whole lines: one by one they would share few
 * sets of the caches with those of the other groups, a power of two apart. Several groups at a time: the codes of one
 * would wait for its amax and two divisions, and with them the group after it, because the processor looks no further
 * than one group ahead. */
static void row128(const quantize_args *a, int64_t row, int64_t rows)
{
    enum { MOST = 4 * SOME, ROWS = QUANTIZE_ROWS };
    const int wide = G * a->size;
    float kept[MOST][ROWS], s[SOME], r[SOME];
    uint32_t amax[SOME] = {0};
    _Alignas(64) char room[G * 4];

    for (int64_t first = 0; first < a->cols; first += MOST * G) {
        const int64_t last = a->cols - first < MOST * G ? a->cols : first + MOST * G;

        for (int64_t i = 0; i < rows; i++) {
            const char *x = (const char *)a->x + (row + i) * a->stride;
            uint8_t *q = a->row.q + (row + i) * a->row.stride;

            for (int64_t begin = first; begin < last; begin += SOME * G) {
                const int64_t end = last - begin < SOME * G ? last : begin + SOME * G, n = (end - begin) / G;
                const int64_t edge = begin + n * G;
                const char *from = x + begin * a->size, *ahead = i + 1 < rows ? x + a->stride + first * a->size : NULL;
                group_run g = {(int)n, from, wide, q + begin, G, x + end * a->size, wide, wide, a->stream};

                if (end == last)
                    g.next = ahead;
                amax_groups(a->dtype, from, n, amax);
                if (edge < end)
                    amax_groups(a->dtype, whole_group(x + edge * a->size, end - edge, a->size, room), 1, amax + n);
                scales_of(a, SOME, amax, s, r);
                for (int64_t k = 0; k < n + (edge < end); k++)
                    kept[(begin - first) / G + k][i] = s[k];
                encode_run(a, &g, s, r, 1);
                if (edge < end)
                    encode_edge(a, x + edge * a->size, end - edge, s[n], r[n], q + edge);
            }
        }
        for (int64_t col = first; col < last; col += G)
            memcpy(a->row.scale + col / G * a->row.ld + row, kept[(col - first) / G], (size_t)rows * sizeof(float));
    }
}

/* The amax of blocks of 128 columns side by side, the last of which may be short. Half of what comes next is fetched
 * meanwhile. */
INLINE void amax_blocks(uint32_t dtype, const quantize_args *a, const char *x, int64_t rows, int64_t cols, bool more,
                        uint32_t *amax)
{
    const int wide = G * size_of(dtype);
    const int64_t count = (cols + G - 1) / G;
    _Alignas(64) char room[G * 4];
    ints most[QUANTIZE_STRIP / 2 / G];

    for (int64_t g = 0; g < count; g++)
        most[g] = zeros();
    for (int64_t i = 0; i < rows; i++, x += a->stride)
        for (int64_t g = 0; g < count; g++) {
            const char *from = whole_group(x + g * wide, cols - g * G, size_of(dtype), room);

            if (more)
                for (int k = 0; k < wide / 2; k += 64)
                    __builtin_prefetch(x + g * wide + QUANTIZE_STRIP + k, 0, 2);
            UNROLL
            for (int k = 0; k < wide; k += VECTOR_BYTES)
                most[g] = larger(dtype, most[g], magnitudes(dtype, load(from + k)));
        }
    for (int64_t g = 0; g < count; g++)
        amax[g] = magnitude_bits(dtype, largest_lane(dtype, most[g]));
}

/* BLK128 alone: blocks side by side, so that memory is read and written in long stretches. The second pass finds them
 * in the second-level cache. */
static void blocks128(const quantize_args *a, int64_t tr, int64_t col, int64_t cols, bool more)
{
    const int64_t rows = a->rows - tr * G < G ? a->rows - tr * G : G, count = (cols + G - 1) / G, whole = cols / G;
    const char *x = (const char *)a->x + tr * G * a->stride + col * a->size;
    const int wide = G * a->size;
    enum { MOST = QUANTIZE_STRIP / 2 / G, PLACES = MOST < 16 ? 16 : MOST };
    uint32_t amax[PLACES] = {0};
    float s[PLACES], r[PLACES];

    switch (a->dtype) {
    case RIDGE_BF16:
        amax_blocks(RIDGE_BF16, a, x, rows, cols, more, amax);
        break;
    case RIDGE_F16:
        amax_blocks(RIDGE_F16, a, x, rows, cols, more, amax);
        break;
    default:
        amax_blocks(RIDGE_F32, a, x, rows, cols, more, amax);
    }
    scales_of(a, PLACES, amax, s, r);
    memcpy(a->row.scale + tr * a->row.ld + col / G, s, (size_t)count * sizeof *s);
    for (int64_t i = 0; i < rows; i++, x += a->stride) {
        uint8_t *q = a->row.q + (tr * G + i) * a->row.stride + col;
        const char *next = more ? x + QUANTIZE_STRIP + wide / 2 : NULL;
        const group_run g = {(int)whole, x, wide, q, G, next, wide, wide / 2, a->stream};

        encode_run(a, &g, s, r, 1);
        if (whole < count)
            encode_edge(a, x + whole * wide, cols - whole * G, s[whole], r[whole], q + whole * G);
    }
}

/* ------------------------------------------------------------------------------------------------------------ tiles */

/* What a tile's first pass leaves for the others. The elements are copied: rows a power of two apart share few sets of
 * the caches, from which they would be gone by the second pass. */
typedef struct tile_work {
    _Alignas(64) char x[G * G * 4]; /* rows of 128 elements, zeros beyond the edges */
    char columns[G * 4];            /* amax of the columns, in x's format less its sign */
    uint32_t amax[G];               /* of the rows */
    float s[2][G], r[2][G];         /* scales and reciprocals of the rows, of the columns */
    uint8_t codes[G][G];            /* of x, by rows */
    int64_t rows, cols;
} tile_work;

/* Copies the elements and takes the amax of rows, columns (in place of widen()) and all. Rows beyond the edge are those
 * of the copy, zeros. */
static uint32_t first_pass(const quantize_args *a, tile_work *w, const char *x, int64_t stride)
{
    const int pitch = G * a->size;
    uint32_t most = 0;

    memset(w->columns, 0, sizeof w->columns);
    memset(w->x + w->rows * pitch, 0, (size_t)((G - w->rows) * pitch));
    for (int64_t i = 0; i < w->rows; i += TOGETHER) {
        char *to = w->x + i * pitch;
        const char *from[TOGETHER];

        for (int k = 0; k < TOGETHER; k++)
            from[k] =
                i + k < w->rows ? whole_group(x + (i + k) * stride, w->cols, a->size, to + k * pitch) : to + k * pitch;
        absorb(a->dtype, from, to, w->columns, w->amax + i);
    }
    for (int64_t i = 0; i < w->rows; i++)
        most = w->amax[i] > most ? w->amax[i] : most;
    memset(w->amax + w->rows, 0, (size_t)(G - w->rows) * sizeof *w->amax);
    return most;
}

/* Sums of the columns in the order of quantize_math.h. Rows of zeros change nothing: no partial sum is -0. */
INLINE void sum_columns(uint32_t dtype, const tile_work *w, float *sums)
{
    const int size = size_of(dtype);

    for (int j = 0; j < G; j += ELEMENTS) {
        const char *x = w->x + j * size;
        floats total[4], group[2][4], v[4];

        for (int k = 0; k < 4; k++)
            total[k] = all_f32(0);
        for (int i = 0; i < G; i += 2 * RIDGE_SUM_ROWS) {
            for (int h = 0; h < 2; h++) {
                for (int k = 0; k < 4; k++)
                    group[h][k] = all_f32(0);
                for (int n = 0; n < RIDGE_SUM_ROWS; n++, x += G * size) {
                    widen(dtype, x, false, v);
                    for (int k = 0; k < 4; k++)
                        group[h][k] = add(group[h][k], v[k]);
                }
            }
            for (int k = 0; k < 4; k++)
                total[k] = add(total[k], add(group[0][k], group[1][k]));
        }
        for (int k = 0; k < 4; k++)
            store(sums + j + k * LANES, as_ints(total[k]));
    }
}

/* Place p of an elementwise operand of widen() belongs to this column. */
INLINE int column_at(uint32_t dtype, int p)
{
    const int vector = p / LANES, lane = p % LANES;

    if (dtype != RIDGE_BF16)
        return p;
    return vector / 2 * 2 * LANES + lane / 4 * 8 + vector % 2 * 4 + lane % 4;
}

static void put_sums(const quantize_args *a, const tile_work *w, float *to)
{
    float sums[G], ordered[G];

    switch (a->dtype) {
    case RIDGE_BF16:
        sum_columns(RIDGE_BF16, w, sums);
        break;
    case RIDGE_F16:
        sum_columns(RIDGE_F16, w, sums);
        break;
    default:
        sum_columns(RIDGE_F32, w, sums);
    }
    for (int p = 0; p < G; p++)
        ordered[column_at(a->dtype, p)] = sums[p];
    memcpy(to, ordered, (size_t)w->cols * sizeof *to);
}

/* Scales of the columns; their reciprocals in the order of widen(), or as they are for columns_by_table(). */
static void scale_columns(const quantize_args *a, tile_work *w)
{
    uint32_t amax[G];
    uint16_t half[G];
    float r[G];

    memcpy(half, w->columns, sizeof half);
    if (a->dtype == RIDGE_F32)
        memcpy(amax, w->columns, sizeof amax);
    else if (a->dtype == RIDGE_BF16)
        for (int j = 0; j < G; j++)
            amax[j] = magnitude_bits(RIDGE_BF16, half[j]);
    else
        for (int j = 0; j < G; j++)
            amax[j] = magnitude_bits(RIDGE_F16, half[j]);
    scales_of(a, G, amax, w->s[1], r);
    for (int p = 0; p < G; p++)
        w->r[1][p] = r[a->tables ? p : column_at(a->dtype, p)];
}

/* The rows of a tile as groups, what is fetched meanwhile beginning at byte `first` of a row of the next one. */
static group_run tile_rows(const quantize_args *a, const tile_work *w, const char *next, int first, int bytes)
{
    const group_run g = {(int)w->rows, w->x,  G * a->size, NULL, 0, next ? next + first : NULL,
                         a->stride,    bytes, a->stream};

    return g;
}

/* The row form with a scale for every row. */
static void encode_rows(const quantize_args *a, const tile_work *w, int64_t tr, int64_t tc, const char *next)
{
    uint8_t *q = a->row.q + tr * G * a->row.stride + tc * G;
    group_run g = tile_rows(a, w, next, 0, G * a->size / 2);

    g.q = q;
    g.q_step = a->row.stride;
    if (w->cols == G)
        encode_run(a, &g, w->s[0], w->r[0], 1);
    else
        for (int64_t i = 0; i < w->rows; i++)
            encode_edge(a, w->x + i * G * a->size, w->cols, w->s[0][i], w->r[0][i], q + i * a->row.stride);
}

/* The codes of the columns; they stay in the tile. */
static void encode_columns(const quantize_args *a, tile_work *w, const char *next)
{
    encoder *each = pick_encoder(a->dtype, a->e5m2, EACH);
    const group_run g = tile_rows(a, w, next, G * a->size / 2, G * a->size / 2);

    for (int i = 0; i < w->rows; i++) {
        fetch(&g, i);
        each(w->x + i * G * a->size, w->r[1], w->codes[i]);
    }
    for (int j = 0; j < G; j++)
        if (w->s[1][j] != w->s[1][j])
            for (int64_t i = 0; i < w->rows; i++)
                w->codes[i][j] = 0x7f;
}

/* 16-byte vectors at from, from + 16 pitch, ...: each lane its own. */
INLINE ints load_lanes(const uint8_t *from)
{
    const __m128i *x = (const __m128i *)(const void *)from;
    const int step = 16 * G / (int)sizeof *x;
    __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(x)), _mm_loadu_si128(x + step), 1);
#ifdef __AVX512F__
    __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(x + 2 * step)),
                                           _mm_loadu_si128(x + 3 * step), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
    return low;
#endif
}

/* 16 columns of VECTOR_BYTES rows: as many rows of VECTOR_BYTES columns, both with a pitch of 128. */
INLINE void transpose(const uint8_t *from, uint8_t *to)
{
    ints a[16], b[16];

    UNROLL
    for (int i = 0; i < 16; i++)
        a[i] = load_lanes(from + i * G);
    UNROLL
    for (int step = 0; step < 4; step++) { /* each step interleaves row i with row i + 8 */
        UNROLL
        for (int i = 0; i < 8; i++) {
            b[2 * i] = low8(a[i], a[i + 8]);
            b[2 * i + 1] = high8(a[i], a[i + 8]);
        }
        UNROLL
        for (int i = 0; i < 16; i++)
            a[i] = b[i];
    }
    UNROLL
    for (int i = 0; i < 16; i++)
        store(to + i * G, a[i]);
}

/* The transposed form from the codes of the tile. */
static void put_transposed(const quantize_args *a, const tile_work *w, int64_t tr, int64_t tc)
{
    _Alignas(64) uint8_t turned[16 * G];

    for (int64_t j = 0; j < w->cols; j += 16) {
        for (int i = 0; i < G; i += VECTOR_BYTES)
            transpose(&w->codes[i][j], turned + i);
        for (int64_t k = j; k < w->cols && k < j + 16; k++)
            put(a->col.q + (tc * G + k) * a->col.stride + tr * G, turned + (k - j) * G, w->rows, a->stream);
    }
}

#ifdef __AVX512VBMI__
/* 8 columns of 128 rows of bf16: as many rows. */
INLINE void transpose_words(const char *from, uint16_t (*to)[G])
{
    const int pitch = G * 2;

    for (int row = 0; row < G; row += 32) {
        ints a[8], b[8];

        UNROLL
        for (int i = 0; i < 8; i++) { /* lanes are 8 rows apart */
            const char *x = from + (row + i) * pitch;

            a[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)x));
            a[i] = _mm512_inserti32x4(a[i], _mm_loadu_si128((const __m128i *)(const void *)(x + 8 * pitch)), 1);
            a[i] = _mm512_inserti32x4(a[i], _mm_loadu_si128((const __m128i *)(const void *)(x + 16 * pitch)), 2);
            a[i] = _mm512_inserti32x4(a[i], _mm_loadu_si128((const __m128i *)(const void *)(x + 24 * pitch)), 3);
        }
        UNROLL
        for (int step = 0; step < 3; step++) { /* each step interleaves row i with row i + 4 */
            UNROLL
            for (int i = 0; i < 4; i++) {
                b[2 * i] = low16(a[i], a[i + 4]);
                b[2 * i + 1] = high16(a[i], a[i + 4]);
            }
            UNROLL
            for (int i = 0; i < 8; i++)
                a[i] = b[i];
        }
        UNROLL
        for (int i = 0; i < 8; i++)
            store(to[i] + row, a[i]);
    }
}

/* The transposed form with a scale for every column: elements are turned, not codes, so that a column has its table. */
static void columns_by_table(const quantize_args *a, const tile_work *w, int64_t tr, int64_t tc, const char *next)
{
    const float *s = w->s[1], *r = w->r[1];
    _Alignas(64) uint16_t turned[8][G];

    for (int64_t j = 0; j < w->cols; j += 8) {
        group_run g = tile_rows(a, w, next ? next + j * a->stride : NULL, G, G);
        const int64_t n = w->cols - j < 8 ? w->cols - j : 8;

        g.n = (int)n;
        g.x = (const char *)turned;
        g.q = a->col.q + (tc * G + j) * a->col.stride + tr * G;
        g.q_step = a->col.stride;
        transpose_words(w->x + j * 2, turned);
        if (w->rows == G)
            encode_run(a, &g, s + j, r + j, 1);
        else
            for (int64_t k = 0; k < n; k++)
                encode_edge(a, (const char *)turned[k], w->rows, s[j + k], r[j + k], g.q + k * g.q_step);
    }
}
#endif

/* The codes of the tile with its one scale; the row form too, if that has it. */
static void encode_block(const quantize_args *a, tile_work *w, int64_t tr, int64_t tc, const char *next, float s)
{
    const bool both = a->row.form == QUANTIZE_BLK128;
    const int wide = G * a->size;
    const float r = ridge_fp8_reciprocal(s);
    group_run g = tile_rows(a, w, next, both ? 0 : wide / 2, both ? wide : wide / 2);

    g.q = w->codes[0];
    g.q_step = G;
    g.stream = false;
    encode_run(a, &g, &s, &r, 0);
    for (int64_t i = 0; both && i < w->rows; i++)
        put(a->row.q + (tr * G + i) * a->row.stride + tc * G, w->codes[i], w->cols, a->stream);
}

static void tile(const quantize_args *a, int64_t tr, int64_t tc, const void *elements, int64_t stride, const void *next)
{
    tile_work w;
    float block;

    w.rows = a->rows - tr * G < G ? a->rows - tr * G : G;
    w.cols = a->cols - tc * G < G ? a->cols - tc * G : G;
    block = ridge_fp8_scale(first_pass(a, &w, elements, stride), a->floor, a->e5m2, a->pow2);
    if (a->tile_sums)
        put_sums(a, &w, a->tile_sums + tr * a->cols + tc * G);
    if (a->row.form == QUANTIZE_BLK128)
        a->row.scale[tr * a->row.ld + tc] = block;
    if (a->col.form == QUANTIZE_BLK128)
        a->col.scale[tc * a->col.ld + tr] = block;
    if (a->row.form == QUANTIZE_ROW128) {
        scales_of(a, G, w.amax, w.s[0], w.r[0]);
        memcpy(a->row.scale + tc * a->row.ld + tr * G, w.s[0], (size_t)w.rows * sizeof(float));
        encode_rows(a, &w, tr, tc, next);
    }
    if (a->col.form == QUANTIZE_ROW128) {
        scale_columns(a, &w);
        memcpy(a->col.scale + tr * a->col.ld + tc * G, w.s[1], (size_t)w.cols * sizeof(float));
#ifdef __AVX512VBMI__
        if (a->tables) {
            columns_by_table(a, &w, tr, tc, next);
            return;
        }
#endif
        encode_columns(a, &w, next);
    } else {
        encode_block(a, &w, tr, tc, next, block);
    }
    if (w.rows < G)
        memset(w.codes[w.rows], 0, (size_t)(G - w.rows) * G);
    if (a->col.form != QUANTIZE_ABSENT)
        put_transposed(a, &w, tr, tc);
}

/* ------------------------------------------------------------------------------------------------------------ Q8_0 */

enum { BLOCK = RIDGE_Q8_0_BLOCK, BLOCKS = G / BLOCK, ROOM = 32 /* groups on their way out, whole lines in all */ };

/* ridge_q8_0_scale of n blocks, a multiple of four: the halves to store and the reciprocals. */
INLINE void q8_0_scales(int n, const uint32_t *amax, float *r, uint16_t *half)
{
    const __m128 infinity = _mm_castsi128_ps(_mm_set1_epi32(0x7f800000));
    const __m128 nan = _mm_castsi128_ps(_mm_set1_epi32((int)RIDGE_NAN_F32));

    for (int b = 0; b < n; b += 4) {
        const __m128 most = _mm_castsi128_ps(_mm_loadu_si128((const __m128i *)(const void *)(amax + b)));
        const __m128 d = _mm_div_ps(most, _mm_set1_ps(127.0f)), inverse = _mm_div_ps(_mm_set1_ps(1.0f), d);
        const __m128 finite = _mm_cmplt_ps(most, infinity), good = _mm_cmplt_ps(inverse, infinity);

        _mm_storeu_ps(r + b, _mm_and_ps(inverse, _mm_and_ps(finite, good)));
        _mm_storel_epi64((__m128i *)(void *)(half + b),
                         _mm_cvtps_ph(_mm_blendv_ps(nan, d, finite), _MM_FROUND_TO_NEAREST_INT));
    }
}

/* The codes of one step. Adding the number below 0.5 and dropping the fraction rounds halves away from zero, and does
 * not lift the number below 0.5 itself. */
INLINE ints q8_0_codes(uint32_t dtype, const char *x, const float *r)
{
    const ints almost = all32(0x3effffff), sign = all32(0x80000000u);
    floats v[4];
    ints t[4];

    widen(dtype, x, false, v);
    UNROLL
    for (int i = 0; i < 4; i++) {
        const floats y = mul(v[i], all_f32(r[i * LANES / BLOCK]));

        t[i] = truncated(add(y, as_f32(or_bits(almost, and_bits(as_ints(y), sign)))));
    }
    return in_order(dtype, pack_s16(pack_s32(t[0], t[1]), pack_s32(t[2], t[3])));
}

/* 128 elements become four blocks. */
INLINE void q8_0_group(uint32_t dtype, const char *x, const float *r, const uint16_t *half, uint8_t *blocks)
{
    UNROLL
    for (int b = 0; b < BLOCKS; b += ELEMENTS / BLOCK, blocks += ELEMENTS / BLOCK * RIDGE_Q8_0_BYTES) {
        const ints codes = q8_0_codes(dtype, x + b * BLOCK * size_of(dtype), r + b);

        memcpy(blocks, half + b, 2);
#ifdef __AVX512F__
        memcpy(blocks + RIDGE_Q8_0_BYTES, half + b + 1, 2);
        _mm256_storeu_si256((__m256i *)(void *)(blocks + 2), _mm512_castsi512_si256(codes));
        _mm256_storeu_si256((__m256i *)(void *)(blocks + RIDGE_Q8_0_BYTES + 2), _mm512_extracti64x4_epi64(codes, 1));
#else
        store(blocks + 2, codes);
#endif
    }
}

/* Bytes to memory; whole lines may bypass the cache. */
static void put_bytes(uint8_t *to, const uint8_t *from, size_t n, bool stream)
{
    size_t i = -(uintptr_t)to % 64;

    if (!stream || n < i + 64) {
        memcpy(to, from, n);
        return;
    }
    memcpy(to, from, i);
    for (; i + 64 <= n; i += 64)
        for (size_t k = 0; k < 64; k += VECTOR_BYTES)
            stream_store(to + i + k, load(from + i + k));
    memcpy(to + i, from + i, n - i);
}

/* As row128: a stretch's scales before its codes. The stretch is put together in L1. */
INLINE void q8_0_row(uint32_t dtype, const char *x, int64_t cols, uint8_t *blocks, bool stream)
{
    enum { MOST = ROOM * BLOCKS };
    const int size = size_of(dtype);
    _Alignas(64) uint8_t out[MOST * RIDGE_Q8_0_BYTES];
    _Alignas(64) char room[G * 4];
    uint32_t amax[MOST] = {0};
    uint16_t half[MOST];
    float r[MOST];

    for (int64_t begin = 0; begin < cols; begin += ROOM * G) {
        const int64_t n = cols - begin < ROOM * G ? cols - begin : ROOM * G, count = n / BLOCK;
        const char *from = x + begin * size;
        uint32_t most = 0;

        for (int64_t b = 0; b < count; b++) {
            amax[b] = amax_of(dtype, from + b * BLOCK * size, BLOCK * size);
            most = amax[b] > most ? amax[b] : most;
        }
        q8_0_scales(MOST, amax, r, half);
        for (int64_t b = 0; b < count; b += BLOCKS)
            q8_0_group(dtype, whole_group(from + b * BLOCK * size, n - b * BLOCK, size, room), r + b, half + b,
                       out + b * RIDGE_Q8_0_BYTES);
        for (int64_t b = 0; b < count && most >= 0x7f800000u; b++) /* what r cannot: NaN has the code 0 */
            if (amax[b] >= 0x7f800000u)
                memset(out + b * RIDGE_Q8_0_BYTES + 2, 0, BLOCK);
        put_bytes(blocks, out, (size_t)count * RIDGE_Q8_0_BYTES, stream);
        blocks += count * RIDGE_Q8_0_BYTES;
    }
}

static void q8_0(uint32_t dtype, const void *x, int64_t cols, uint8_t *blocks, bool stream)
{
    switch (dtype) {
    case RIDGE_BF16:
        q8_0_row(RIDGE_BF16, x, cols, blocks, stream);
        break;
    case RIDGE_F16:
        q8_0_row(RIDGE_F16, x, cols, blocks, stream);
        break;
    default:
        q8_0_row(RIDGE_F32, x, cols, blocks, stream);
    }
}

const quantize_vectors QUANTIZE_VECTORS = {amax_all, encode_all, row128, blocks128, tile, q8_0};
