/* cpu_approx.h: plain SwiGLU of bf16 in about half the instructions, with the bits of the exact formula.
 *
 * A short exponential and an approximate reciprocal give f32 results whose error is a few units in the last place.
 * Rounded to bf16 they are the exact formula's results, unless a rounding boundary is as near as that. Where one is, or
 * where a result is not finite or a gate far from zero, a whole STEP is computed by the exact formula.
 * tests/test_swiglu.c tries every gate with every significand it can meet.
 *
 * dgate has no relative bound, since 1 + a (1 - s) crosses zero: the least and the largest result that its error
 * allows must round to the same. */
#ifndef RIDGE_CPU_SWIGLU_APPROX_H
#define RIDGE_CPU_SWIGLU_APPROX_H

#include "cpu_lanes.h"

/* Units in the last place of f32 that results may be wrong by (10 at most on a Xeon and a Zen 4; 13.4 by adding up
 * where dgate is subnormal), and the magnitude of a gate from which on the exact formula is taken, 16, as bf16 shifted
 * left by one. */
enum { APPROX_ULPS = 14, APPROX_GATES = 2 * 0x4180 };

typedef uint16_t u16_lanes __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef uint32_t u32_lanes __attribute__((vector_size(VECTOR_BYTES), may_alias));

#ifdef __AVX512F__
enum { POWERS = 32 };
#define splat(x) _mm512_set1_ps(x)
#define fma_lanes(a, b, c) _mm512_fmadd_ps(a, b, c)
#define fnma_lanes(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define approx_rcp(x) _mm512_rcp14_ps(x)
#define load_words(from) ((u32_lanes)_mm512_loadu_si512(from))
#define store_words(to, x) _mm512_storeu_si512(to, (__m512i)(x))
#define stream_words(to, x) _mm512_stream_si512((void *)(to), (__m512i)(x))
#define min_halves(a, b) ((u16_lanes)_mm512_min_epu16((__m512i)(a), (__m512i)(b)))
#define max_halves(a, b) ((u16_lanes)_mm512_max_epu16((__m512i)(a), (__m512i)(b)))
#define minus_halves(a, b) ((u32_lanes)_mm512_subs_epu16((__m512i)(a), (__m512i)(b)))
#define low_and_high(low, high) ((u32_lanes)_mm512_mask_mov_epi16((__m512i)(low), 0xaaaaaaaau, (__m512i)(high)))
#define bits_by_mask(mask, one, zero) \
    ((u32_lanes)_mm512_ternarylogic_epi32((__m512i)(mask), (__m512i)(one), (__m512i)(zero), 0xca))
#define any_bit(x) (_mm512_test_epi32_mask((__m512i)(x), (__m512i)(x)) != 0)

/* 2^(j / 32) for the low five bits j, minus j at the bit that the index is shifted to. */
static inline u32_lanes approx_power(f32_lanes j)
{
    const u32_lanes one = {0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a,
                           0x3f79c3d3, 0x3f78f4f0, 0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043,
                           0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6};
    const u32_lanes two = {0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be,
                           0x3f76248c, 0x3f76a81e, 0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907,
                           0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3};

    return (u32_lanes)_mm512_permutex2var_epi32((__m512i)one, (__m512i)j, (__m512i)two);
}
#else
enum { POWERS = 8 };
#define splat(x) _mm256_set1_ps(x)
#define fma_lanes(a, b, c) _mm256_fmadd_ps(a, b, c)
#define fnma_lanes(a, b, c) _mm256_fnmadd_ps(a, b, c)
#define approx_rcp(x) _mm256_rcp_ps(x)
#define load_words(from) ((u32_lanes)_mm256_loadu_si256((const __m256i *)(const void *)(from)))
#define store_words(to, x) _mm256_storeu_si256((__m256i *)(void *)(to), (__m256i)(x))
#define stream_words(to, x) _mm256_stream_si256((__m256i *)(void *)(to), (__m256i)(x))
#define min_halves(a, b) ((u16_lanes)_mm256_min_epu16((__m256i)(a), (__m256i)(b)))
#define max_halves(a, b) ((u16_lanes)_mm256_max_epu16((__m256i)(a), (__m256i)(b)))
#define minus_halves(a, b) ((u32_lanes)_mm256_subs_epu16((__m256i)(a), (__m256i)(b)))
#define low_and_high(low, high) ((u32_lanes)_mm256_blend_epi16((__m256i)(low), (__m256i)(high), 0xaa))
#define bits_by_mask(mask, one, zero) (((mask) & (u32_lanes)(one)) | (~(mask) & (u32_lanes)(zero)))
#define any_bit(x) (!_mm256_testz_si256((__m256i)(x), (__m256i)(x)))

static inline u32_lanes approx_power(f32_lanes j)
{
    const u32_lanes power = {0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                             0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};

    return (u32_lanes)_mm256_permutevar8x32_epi32((__m256i)power, (__m256i)j);
}
#endif

/* The same bits in every word, as a float constant: compilers load that, where they would compute an integer in the
 * loop. */
static inline u32_lanes words(uint32_t bits)
{
    return (u32_lanes)splat(ridge_float(bits));
}

/* What decides whether a step must be computed exactly. */
typedef struct approx_check {
    u16_lanes gate, finite; /* the largest gates and results, shifted left to lose their signs */
    u16_lanes distance;     /* the least of (low half - (8000 - APPROX_ULPS)) mod 10000, hexadecimal */
    u32_lanes differ;       /* bits in which the two roundings differ */
} approx_check;

/* 1 + exp(-a), |a| < 80: exp(-a) = 2^(n / POWERS) 2^r. */
static inline f32_lanes approx_one_plus_exp(f32_lanes a)
{
    const f32_lanes log2e = splat(-0x1.715476p+0f), magic = splat(0x1.8p+23f / POWERS), one = splat(1.0f);
    f32_lanes z = fma_lanes(a, log2e, magic), r = fma_lanes(a, log2e, magic - z), p;
    u32_lanes power = approx_power(z) + ((u32_lanes)z << (POWERS == 32 ? 18 : 20));

    if (POWERS == 32) {
        p = fma_lanes(splat(0x1.ebfbe0p-3f), r, splat(0x1.62e584p-1f));
    } else {
        p = fma_lanes(splat(0x1.c6b08ep-5f), r, splat(0x1.ec0c30p-3f));
        p = fma_lanes(p, r, splat(0x1.62e430p-1f));
    }
    return fma_lanes(fma_lanes(p, r, one), (f32_lanes)power, one);
}

/* x plus half a unit of bf16 plus APPROX_ULPS: its high half is the rounded result if the low half is 2 APPROX_ULPS or
 * more. */
static inline u32_lanes approx_rounded(f32_lanes x)
{
    return (u32_lanes)x + words(0x8000u + APPROX_ULPS);
}

/* Rounds even and odd columns into words of two, and notes how near they were to a boundary. */
static inline u32_lanes approx_join(f32_lanes even, f32_lanes odd, approx_check *d)
{
    u32_lanes e = approx_rounded(even), o = approx_rounded(odd);

    d->distance = min_halves(d->distance, low_and_high(e, o << 16));
    return low_and_high(e >> 16, o);
}

static inline u32_lanes approx_finite(u32_lanes x, approx_check *d)
{
    d->finite = max_halves(d->finite, (u16_lanes)x + (u16_lanes)x);
    return x;
}

/* The same for results whose error may be larger by 2 units of `size`, a number of the same sign. */
static inline u32_lanes approx_join_wide(const f32_lanes *x, const f32_lanes *size, approx_check *d)
{
    const f32_lanes unit = splat(0x1p-22f);
    u32_lanes most[2], least[2];

    for (int i = 0; i < 2; i++) {
        most[i] = (u32_lanes)fma_lanes(size[i], unit, x[i]) + words(0x8000u + APPROX_ULPS);
        least[i] = (u32_lanes)fnma_lanes(size[i], unit, x[i]) + words(0x8000u - APPROX_ULPS);
    }
    most[0] = low_and_high(most[0] >> 16, most[1]);
    d->differ |= most[0] ^ low_and_high(least[0] >> 16, least[1]);
    return most[0];
}

/* The even or the odd columns of words of two. */
static inline f32_lanes approx_column(u32_lanes word, int odd)
{
    if (odd)
        return (f32_lanes)(word & words(0xffff0000u));
    return (f32_lanes)(word << 16);
}

static inline __attribute__((always_inline)) u32_lanes approx_fwd(u32_lanes gate, u32_lanes up, approx_check *d)
{
    f32_lanes y[2];

    d->gate = max_halves(d->gate, (u16_lanes)gate + (u16_lanes)gate);
    for (int i = 0; i < 2; i++) {
        f32_lanes a = approx_column(gate, i);
        f32_lanes b = approx_column(up, i);
        f32_lanes t = approx_one_plus_exp(a), r = approx_rcp(t), h = a * r;

        y[i] = fma_lanes(h, fnma_lanes(t, r, splat(1.0f)), h) * b;
    }
    return approx_finite(approx_join(y[0], y[1], d), d);
}

static inline __attribute__((always_inline)) u32_lanes approx_bwd(u32_lanes gate, u32_lanes up, u32_lanes dout,
                                                                  u32_lanes *dup, approx_check *d)
{
    const f32_lanes one = splat(1.0f);
    f32_lanes db[2], da[2], size[2];

    d->gate = max_halves(d->gate, (u16_lanes)gate + (u16_lanes)gate);
    for (int i = 0; i < 2; i++) {
        f32_lanes a = approx_column(gate, i);
        f32_lanes b = approx_column(up, i);
        f32_lanes dy = approx_column(dout, i);
        f32_lanes t = approx_one_plus_exp(a), r = approx_rcp(t), s = fma_lanes(r, fnma_lanes(t, r, one), r);
        f32_lanes w = dy * b * s;

        db[i] = dy * (a * s);
        da[i] = w * fma_lanes(a, one - s, one);
        size[i] = (f32_lanes)bits_by_mask(words(0x7fffffffu), w, da[i]);
    }
    *dup = approx_join(db[0], db[1], d);
    return approx_finite(approx_join_wide(da, size, d), d); /* dup is finite where dgate is */
}

static inline bool approx_fails(const approx_check *d)
{
    return any_bit((d->differ & words(0x7fff7fffu)) | minus_halves(words(2 * APPROX_ULPS * 0x10001u), d->distance) |
                   minus_halves(d->gate, words((APPROX_GATES - 2) * 0x10001u)) |
                   minus_halves(d->finite, words((2 * 0x7f80u - 2) * 0x10001u)));
}

static inline void approx_put(char *to, u32_lanes x, bool stream)
{
    if (stream)
        stream_words(to, x);
    else
        store_words(to, x);
}

enum { APPROX_WORDS = STEP * 2 / VECTOR_BYTES };

/* A step by the exact formula: result 0 is out or dgate, result 1 dup. */
static __attribute__((noinline)) void exact_step(const char *gate, const char *up, const char *dout,
                                                 u32_lanes result[2][APPROX_WORDS])
{
    const char *const from[3] = {gate, up, dout};
    lanes l;
    float *const to[3] = {l.a, l.b, l.dy};

    for (int i = 0; i < (dout ? 3 : 2); i++)
        widen_split(to[i], to[i] + STEP / 2, (const any_pair *)(const void *)from[i], STEP);
    if (!dout) {
        fwd_plain(RIDGE_SILU, &l, STEP);
    } else {
        bwd_plain(RIDGE_SILU, &l, STEP);
        narrow_split((any_pair *)result[1], l.y1, l.y1 + STEP / 2, STEP);
    }
    narrow_split((any_pair *)result[0], l.y0, l.y0 + STEP / 2, STEP);
}

/* Computes the whole steps of n columns; returns how many columns they are. Forward has no dout and dup. */
static inline __attribute__((always_inline)) int64_t approx_steps(const char *gate, const char *up, const char *dout,
                                                                  char *out, char *dup, int64_t n, bool backward,
                                                                  bool stream)
{
    const bool stream_out = stream && (uintptr_t)out % VECTOR_BYTES == 0;
    const bool stream_dup = stream && (uintptr_t)dup % VECTOR_BYTES == 0;
    const int step = backward ? STEP : 2 * STEP, count = 2 * step / VECTOR_BYTES;
    int64_t j = 0;

    for (; j + step <= n; j += step) {
        approx_check d = {.distance = (u16_lanes){0} + 0xffffu};
        u32_lanes y[2 * APPROX_WORDS], z[2 * APPROX_WORDS];

        for (int i = 0; i < count; i++) {
            const int64_t at = 2 * j + i * VECTOR_BYTES;
            u32_lanes g = load_words(gate + at), u = load_words(up + at);

            prefetch_ahead(gate + at, VECTOR_BYTES);
            prefetch_ahead(up + at, VECTOR_BYTES);
            if (backward)
                prefetch_ahead(dout + at, VECTOR_BYTES);
            y[i] = backward ? approx_bwd(g, u, load_words(dout + at), &z[i], &d) : approx_fwd(g, u, &d);
        }
        if (__builtin_expect(approx_fails(&d), false))
            for (int i = 0; i < count; i += APPROX_WORDS) {
                const int64_t at = 2 * j + i * VECTOR_BYTES;
                u32_lanes exact[2][APPROX_WORDS];

                exact_step(gate + at, up + at, backward ? dout + at : NULL, exact);
                for (int k = 0; k < APPROX_WORDS; k++) {
                    y[i + k] = exact[0][k];
                    if (backward)
                        z[i + k] = exact[1][k];
                }
            }
        for (int i = 0; i < count; i++) {
            approx_put(out + 2 * j + i * VECTOR_BYTES, y[i], stream_out);
            if (backward)
                approx_put(dup + 2 * j + i * VECTOR_BYTES, z[i], stream_dup);
        }
    }
    return j;
}

#endif
