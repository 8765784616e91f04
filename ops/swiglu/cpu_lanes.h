/* cpu_lanes.h: blocks of 256 columns for the SIMD rows of SwiGLU: their load, arithmetic and store, once an instruction
 * set.
 *
 * A block lives in L1: load and widen to f32, compute, narrow and store. The loops are plain C with constant trip
 * counts, written so that gcc and clang turn them into packed instructions; the formulas are those of
 * src/math/swiglu.h, so the bits are the reference's. Intrinsics only where C has no way to say it: f16 conversions and
 * stores that bypass the cache. A block that is cut short by the end of the row is padded with zeros to whole groups of
 * STEP columns: there is no scalar tail. */
#ifndef RIDGE_CPU_SWIGLU_LANES_H
#define RIDGE_CPU_SWIGLU_LANES_H

#include <immintrin.h>
#include <string.h>

#include "cpu.h"
#include "cpu/num.h"

/* Intrinsics for the few loops that compilers do not vectorise well by themselves. The processor's f16 conversions keep
 * subnormals whatever the mode; NaN is made canonical before narrowing. */
#ifdef __AVX512F__
enum { STEP = 64, VECTOR_BYTES = 64, LANES = 16 };
typedef __m512 f32_lanes;
typedef __m256i f16_lanes;
#define load_f32(from) _mm512_loadu_ps(from)
#define store_f32(to, x) _mm512_store_ps(to, x)
#define load_f16(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define store_f16_two(to, x, y) _mm512_storeu_si512(to, _mm512_inserti64x4(_mm512_castsi256_si512(x), y, 1))
#define f32_from_f16(x) _mm512_cvtph_ps(x)
#define stream_bytes(to, from) _mm512_stream_si512((void *)(to), _mm512_loadu_si512(from))

static inline f16_lanes f16_from_f32(f32_lanes x)
{
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32((int)RIDGE_NAN_F32));
    return _mm512_cvtps_ph(_mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan),
                           _MM_FROUND_TO_NEAREST_INT);
}
#else
enum { STEP = 32, VECTOR_BYTES = 32, LANES = 8 };
typedef __m256 f32_lanes;
typedef __m128i f16_lanes;
#define load_f32(from) _mm256_loadu_ps(from)
#define store_f32(to, x) _mm256_store_ps(to, x)
#define load_f16(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define store_f16_two(to, x, y) _mm256_storeu_si256((__m256i *)(void *)(to), _mm256_set_m128i(y, x))
#define f32_from_f16(x) _mm256_cvtph_ps(x)
#define stream_bytes(to, from) \
    _mm256_stream_si256((__m256i *)(void *)(to), _mm256_loadu_si256((const __m256i *)(const void *)(from)))

static inline f16_lanes f16_from_f32(f32_lanes x)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)RIDGE_NAN_F32));
    return _mm256_cvtps_ph(_mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)), _MM_FROUND_TO_NEAREST_INT);
}
#endif

/* A pair of 16-bit elements anywhere in memory. */
typedef uint32_t __attribute__((may_alias, aligned(1))) any_pair;

enum { BLOCK = 256 };

/* One block. Inputs a (gate), b (up), dy; outputs y0 (out or dgate), y1 (dup), p (the terms of drow). With `split`, the
 * even columns come first and the odd ones from whole_steps(n) / 2 on: see widen_split. */
typedef struct lanes {
    _Alignas(64) float a[BLOCK];
    float b[BLOCK], dy[BLOCK], y0[BLOCK], y1[BLOCK], dh[BLOCK], p[BLOCK];
    uint32_t pair[2 * BLOCK]; /* raw elements, after their load or before their store */
    uint16_t half[2][BLOCK];
} lanes;

/* for (j = 0; j < n; j++), n a multiple of STEP. The inner trip count is constant: no tail, and unrolled by the
 * compiler. */
#define FOR_LANES(j, n)                                      \
    for (int j##_step = 0; j##_step < (n); j##_step += STEP) \
        for (int j = j##_step; j < j##_step + STEP; j++)

/* ---------------------------------------------------------------------------------------------------------- compute */

/* Plain calls: default options, which fold away. Rounding is for the general functions only. */
static inline __attribute__((always_inline)) void fwd_plain(uint32_t act, lanes *l, int n)
{
    FOR_LANES (j, n) {
        l->y0[j] = ridge_act_fwd(act, l->a[j], 1.0f) * l->b[j];
    }
}

static inline __attribute__((always_inline)) void bwd_plain(uint32_t act, lanes *l, int n)
{
    FOR_LANES (j, n) {
        float dh, h = ridge_act_bwd(act, l->a[j], 1.0f, &dh);
        l->y1[j] = l->dy[j] * h;
        l->y0[j] = (l->dy[j] * l->b[j]) * dh;
    }
}

/* x rounded to the dtype, in place. */
static void round_lanes(uint32_t dtype, float *x, int n)
{
    if (dtype == RIDGE_BF16)
        FOR_LANES (j, n) {
            x[j] = ridge_f32_from_bf16(ridge_bf16_from_f32(x[j]));
        }
    if (dtype == RIDGE_F16)
        for (int j = 0; j < n; j += LANES)
            store_f32(x + j, f32_from_f16(f16_from_f32(load_f32(x + j))));
}

static inline __attribute__((always_inline)) void fwd_general(uint32_t act, lanes *l, int n, uint32_t round, float row,
                                                              ridge_swiglu_options o)
{
    FOR_LANES (j, n) {
        l->y0[j] = ridge_act_fwd(act, ridge_swiglu_gate(l->a[j], o), o.alpha);
    }
    round_lanes(round, l->y0, n);
    FOR_LANES (j, n) {
        l->y0[j] = ridge_swiglu_scale(l->y0[j] * ridge_swiglu_up(l->b[j], o), row, o);
    }
}

static inline __attribute__((always_inline)) void bwd_general(uint32_t act, lanes *l, int n, uint32_t round, float row,
                                                              ridge_swiglu_options o)
{
    FOR_LANES (j, n) {
        float b = ridge_swiglu_up(l->b[j], o);
        float dh, h = ridge_act_bwd(act, ridge_swiglu_gate(l->a[j], o), o.alpha, &dh);
        l->p[j] = l->dy[j] * ridge_swiglu_drow(h, b, o);
        l->dy[j] = ridge_swiglu_scale(l->dy[j], row, o);
        l->y0[j] = l->dy[j] * b;
        l->y1[j] = h;
        l->dh[j] = dh;
    }
    round_lanes(round, l->y0, n);
    round_lanes(round, l->y1, n);
    FOR_LANES (j, n) {
        l->y0[j] = ridge_swiglu_dgate(l->y0[j], l->dh[j], l->a[j], o);
        l->y1[j] = ridge_swiglu_dup(l->dy[j] * l->y1[j], l->b[j], o);
    }
}

/* `round` is the dtype that RIDGE_ROUND_GATE(_BWD) rounds to, or RIDGE_NONE. */
typedef void lanes_fn(lanes *l, int n, uint32_t round, float row, ridge_swiglu_options o);

#define ACTIVATION(name, act)                                                                          \
    static void fwd_##name##_plain(lanes *l, int n, uint32_t round, float row, ridge_swiglu_options o) \
    {                                                                                                  \
        (void)round, (void)row, (void)o;                                                               \
        fwd_plain(act, l, n);                                                                          \
    }                                                                                                  \
    static void bwd_##name##_plain(lanes *l, int n, uint32_t round, float row, ridge_swiglu_options o) \
    {                                                                                                  \
        (void)round, (void)row, (void)o;                                                               \
        bwd_plain(act, l, n);                                                                          \
    }                                                                                                  \
    static void fwd_##name(lanes *l, int n, uint32_t round, float row, ridge_swiglu_options o)         \
    {                                                                                                  \
        fwd_general(act, l, n, round, row, o);                                                         \
    }                                                                                                  \
    static void bwd_##name(lanes *l, int n, uint32_t round, float row, ridge_swiglu_options o)         \
    {                                                                                                  \
        bwd_general(act, l, n, round, row, o);                                                         \
    }

ACTIVATION(silu, RIDGE_SILU)
ACTIVATION(gelu_tanh, RIDGE_GELU_TANH)
ACTIVATION(gelu_erf, RIDGE_GELU_ERF)
ACTIVATION(relu2, RIDGE_RELU2)

static lanes_fn *pick_lanes(const swiglu_args *args)
{
    static lanes_fn *const table[2][2][4] = {
        {{fwd_silu, fwd_gelu_tanh, fwd_gelu_erf, fwd_relu2},
         {fwd_silu_plain, fwd_gelu_tanh_plain, fwd_gelu_erf_plain, fwd_relu2_plain}},
        {{bwd_silu, bwd_gelu_tanh, bwd_gelu_erf, bwd_relu2},
         {bwd_silu_plain, bwd_gelu_tanh_plain, bwd_gelu_erf_plain, bwd_relu2_plain}},
    };

    return table[args->backward][args->plain][(args->flags & RIDGE_ACTIVATION) / RIDGE_GELU_TANH];
}

/* -------------------------------------------------------------------------------------------------- load and store */

static inline int whole_steps(int n)
{
    return (n + STEP - 1) / STEP * STEP;
}

/* Two bf16 are one word: the even column is its low half, the odd one its high half, which already is an f32 once the
 * low half is cleared. Splitting even from odd columns so costs half the instructions of widening them in order. */
static void widen_split(float *restrict even, float *restrict odd, const any_pair *restrict from, int n)
{
    const int pairs =
        n / STEP *
        (STEP / 2); /* tells the compiler that there is no tail (clang 14 unrolls short inner loops instead) */

    for (int j = 0; j < pairs; j++) {
        uint32_t u = from[j];
        even[j] = ridge_float(u << 16);
        odd[j] = ridge_float(u & 0xffff0000u);
    }
}

/* bf16 in the upper half of the word; the lower half has no meaning. The steps of ridge_bf16_from_f32. */
static inline __attribute__((always_inline)) uint32_t bf16_upper(float x)
{
    uint32_t u = ridge_bits(x);
    uint32_t r = u + 0x7fffu + ((u >> 16) & 1u);
    return x != x ? (uint32_t)RIDGE_NAN_BF16 << 16 : r;
}

static void narrow_split(any_pair *restrict to, const float *restrict even, const float *restrict odd, int n)
{
    const int pairs = n / STEP * (STEP / 2);

    for (int j = 0; j < pairs; j++)
        to[j] = bf16_upper(even[j]) >> 16 | (bf16_upper(odd[j]) & 0xffff0000u);
}

static void widen_f16(float *to, const char *from, int n)
{
    for (int j = 0; j < n; j += LANES)
        store_f32(to + j, f32_from_f16(load_f16(from + 2 * (size_t)j)));
}

static void narrow_f16(char *to, const float *from, int n)
{
    for (int j = 0; j < n; j += 2 * LANES)
        store_f16_two(to + 2 * (size_t)j, f16_from_f32(load_f32(from + j)), f16_from_f32(load_f32(from + j + LANES)));
}

static void canonical_f32(float *x, int n)
{
    FOR_LANES (j, n) {
        x[j] = ridge_f32_canonical(x[j]);
    }
}

/* In column order: interleaved operands, whose pairs already are the split. */
static void widen(uint32_t dtype, float *to, const uint16_t *from, int n)
{
    if (dtype == RIDGE_F16)
        widen_f16(to, (const char *)from, n);
    else
        FOR_LANES (j, n) {
            to[j] = ridge_f32_from_bf16(from[j]);
        }
}

static void narrow(uint32_t dtype, uint16_t *restrict to, const float *restrict from, int n)
{
    if (dtype == RIDGE_F16)
        narrow_f16((char *)to, from, n);
    else
        FOR_LANES (j, n) {
            to[j] = ridge_bf16_from_f32(from[j]);
        }
}

/* n elements at `from` become f32, zeros up to whole steps. Whole vectors are stored where whole vectors will be
 * loaded: after memcpy, whose stores are narrower, the loads would wait for L1 (relu2, f32: 28 GB/s instead of 45 on
 * Zen 4). */
static void load_block(uint32_t dtype, bool split, float *to, const char *from, int n, uint16_t *half)
{
    int whole = whole_steps(n);

    if (dtype == RIDGE_F32) {
        int j = 0;
        for (; j + LANES <= n; j += LANES)
            store_f32(to + j, load_f32((const float *)(const void *)from + j));
        memcpy(to + j, from + (size_t)j * sizeof *to, (size_t)(n - j) * sizeof *to);
        memset(to + n, 0, (size_t)(whole - n) * sizeof *to);
        return;
    }
    if (whole != n || !(split || dtype == RIDGE_F16)) {
        memcpy(half, from, (size_t)n * sizeof *half);
        memset(half + n, 0, (size_t)(whole - n) * sizeof *half);
        from = (const char *)half;
    }
    if (split)
        widen_split(to, to + whole / 2, (const any_pair *)(const void *)from, whole);
    else
        widen(dtype, to, (const uint16_t *)(const void *)from, whole);
}

/* n pairs (gate, up) at `from` become l->a and l->b. */
static void load_pairs(uint32_t dtype, lanes *l, const char *from, int n)
{
    int whole = whole_steps(n);
    size_t pair = dtype == RIDGE_F32 ? 8 : 4;

    memcpy(l->pair, from, (size_t)n * pair);
    memset((char *)l->pair + (size_t)n * pair, 0, (size_t)(whole - n) * pair);
    if (dtype == RIDGE_F32) {
        FOR_LANES (j, whole) {
            l->a[j] = ridge_float(l->pair[2 * j]);
            l->b[j] = ridge_float(l->pair[2 * j + 1]);
        }
    } else if (dtype == RIDGE_BF16) {
        FOR_LANES (j, whole) {
            l->a[j] = ridge_float(l->pair[j] << 16);
            l->b[j] = ridge_float(l->pair[j] & 0xffff0000u);
        }
    } else {
        FOR_LANES (j, whole) {
            l->half[0][j] = (uint16_t)l->pair[j];
            l->half[1][j] = (uint16_t)(l->pair[j] >> 16);
        }
        widen_f16(l->a, (const char *)l->half[0], whole);
        widen_f16(l->b, (const char *)l->half[1], whole);
    }
}

/* Copies out of L1. A streaming store needs an aligned destination and saves the read of the line that a plain store
 * costs. */
static void put(char *to, const void *from, size_t bytes, bool stream)
{
    size_t i = 0;

    if (stream && (uintptr_t)to % VECTOR_BYTES == 0)
        for (; i + VECTOR_BYTES <= bytes; i += VECTOR_BYTES)
            stream_bytes(to + i, (const char *)from + i);
    memcpy(to + i, (const char *)from + i, bytes - i);
}

static void store_block(uint32_t dtype, bool split, char *to, float *from, int n, uint16_t *half, bool stream)
{
    int whole = whole_steps(n);
    bool direct = whole == n && !stream;

    if (dtype == RIDGE_F32) {
        canonical_f32(from, whole);
        put(to, from, (size_t)n * sizeof *from, stream);
        return;
    }
    if (split)
        narrow_split((any_pair *)(void *)(direct ? to : (char *)half), from, from + whole / 2, whole);
    else if (dtype == RIDGE_F16)
        narrow_f16(direct ? to : (char *)half, from, whole);
    else
        narrow(dtype, half, from, whole), direct = false;
    if (!direct)
        put(to, half, (size_t)n * sizeof *half, stream);
}

/* l->y0 and l->y1 as pairs (dgate, dup). */
static void store_pairs(uint32_t dtype, char *to, lanes *l, int n, bool stream)
{
    int whole = whole_steps(n);

    if (dtype == RIDGE_F32) {
        FOR_LANES (j, whole) {
            l->pair[2 * j] = ridge_bits(ridge_f32_canonical(l->y0[j]));
            l->pair[2 * j + 1] = ridge_bits(ridge_f32_canonical(l->y1[j]));
        }
        put(to, l->pair, (size_t)n * 8, stream);
        return;
    }
    if (dtype == RIDGE_BF16) {
        FOR_LANES (j, whole) {
            l->pair[j] = bf16_upper(l->y0[j]) >> 16 | (bf16_upper(l->y1[j]) & 0xffff0000u);
        }
    } else {
        narrow_f16((char *)l->half[0], l->y0, whole);
        narrow_f16((char *)l->half[1], l->y1, whole);
        FOR_LANES (j, whole) {
            l->pair[j] = l->half[0][j] | (uint32_t)l->half[1][j] << 16;
        }
    }
    put(to, l->pair, (size_t)n * 4, stream);
}

/* Prefetches what lies some lines after these bytes: while a block is computed, the processor's own prefetcher has
 * stopped. (Inline: gcc 12 drops calls of a function that only prefetches.) */
static inline __attribute__((always_inline)) void prefetch_ahead(const char *from, int64_t bytes)
{
    enum { AHEAD = 2048 };

    for (int64_t k = 0; k < bytes; k += 64)
        __builtin_prefetch(from + AHEAD + k, 0, 3);
}

#endif
