/* quantize_simd.h: the SIMD spans of the FP8 and Q8_0 quantisers, once per instruction set with QUANTIZE_VECTORS
 * defined.
 *
 * The loops are plain C over 128 elements, written so that gcc and clang turn them into packed instructions; the
 * formulas are those of quantize_math.h and num.h, so the bits are the reference's. A group cut short by an edge is
 * padded with zeros, which change no amax. Intrinsics only for the byte transpose. Leaves out: threads (quantize.c). */
#include <immintrin.h>
#include <string.h>

#include "num.h"
#include "quantize.h"

enum { G = RIDGE_GROUP };

/* n <= 128 elements as f32, padded with zeros. */
static void widen(uint32_t dtype, const void *from, int64_t n, float *to)
{
    uint32_t raw[G];

    if (n < G) {
        memset(raw, 0, sizeof raw);
        memcpy(raw, from, (size_t)n * (dtype == RIDGE_F32 ? 4 : 2));
        from = raw;
    }
    if (dtype == RIDGE_BF16) {
        uint16_t x[G];

        memcpy(x, from, sizeof x);
        for (int i = 0; i < G; i++)
            to[i] = ridge_f32_from_bf16(x[i]);
    } else if (dtype == RIDGE_F16) {
        for (int i = 0; i < G; i += 8)
            _mm256_storeu_ps(
                to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)from + i))));
    } else {
        memcpy(to, from, G * sizeof *to);
    }
}

static uint32_t largest(const float *x)
{
    uint32_t most = 0, u[G];

    memcpy(u, x, sizeof u);
    for (int i = 0; i < G; i++)
        most = (u[i] & 0x7fffffffu) > most ? u[i] & 0x7fffffffu : most;
    return most;
}

static inline __attribute__((always_inline)) void encode_group(const float *x, float r, int e5m2, uint8_t *q)
{
    for (int i = 0; i < G; i++)
        q[i] = ridge_fp8_from_f32(x[i] * r, e5m2);
}

static void encode(const float *x, float r, int e5m2, uint8_t *q)
{
    if (e5m2)
        encode_group(x, r, 1, q);
    else
        encode_group(x, r, 0, q);
}

/* n codes to memory that may be shorter than a group. */
static void put(uint8_t *to, const uint8_t *q, int64_t n)
{
    if (n == G)
        memcpy(to, q, G);
    else
        memcpy(to, q, (size_t)n);
}

static float scale_of(const quantize_args *a, uint32_t amax)
{
    return ridge_fp8_scale(amax, a->floor, a->e5m2, a->pow2);
}

static uint32_t amax_all(uint32_t dtype, const void *x, int64_t n)
{
    const int size = dtype == RIDGE_F32 ? 4 : 2;
    uint32_t most = 0;
    float v[G];

    for (int64_t i = 0; i < n; i += G) {
        uint32_t m;

        widen(dtype, (const char *)x + i * size, n - i < G ? n - i : G, v);
        m = largest(v);
        most = m > most ? m : most;
    }
    return most;
}

static void encode_all(uint32_t dtype, const void *x, int64_t n, float reciprocal, int e5m2, bool guard, uint8_t *q)
{
    const int size = dtype == RIDGE_F32 ? 4 : 2;
    uint8_t codes[G];
    float v[G];

    for (int64_t i = 0; i < n; i += G) {
        const int64_t count = n - i < G ? n - i : G;

        widen(dtype, (const char *)x + i * size, count, v);
        if (guard && largest(v) >= 0x7f800000u)
            for (int j = 0; j < G; j++)
                v[j] = ridge_magnitude(v[j]) >= 0x7f800000u ? ridge_float(RIDGE_NAN_F32) : v[j];
        encode(v, reciprocal, e5m2, codes);
        put(q + i, codes, count);
    }
}

static void row128(const quantize_args *a, int64_t row)
{
    const unsigned char *x = a->x + row * a->stride;
    uint8_t codes[G];
    float v[G];

    for (int64_t col = 0, g = 0; col < a->cols; col += G, g++) {
        const int64_t n = a->cols - col < G ? a->cols - col : G;
        float s;

        widen(a->dtype, x + col * a->size, n, v);
        s = scale_of(a, largest(v));
        a->row.scale[g * a->row.ld + row] = s;
        encode(v, ridge_fp8_reciprocal(s), a->e5m2, codes);
        put(a->row.q + row * a->row.stride + col, codes, n);
    }
}

/* ------------------------------------------------------------------------------------------------------------ tiles */

/* What a tile's first pass leaves for the others. */
typedef struct tile_work {
    _Alignas(64) float r[G];  /* reciprocals of the columns */
    uint32_t amax[G];         /* of the columns */
    float sum[G], pair[2][G]; /* of the columns */
    uint8_t codes[G][G];      /* of x, by rows; then transposed */
    int64_t rows, cols;
} tile_work;

/* Amax of the columns, sums of the columns, and with a scale per row the row form itself. Returns the tile's amax. */
static uint32_t first_pass(const quantize_args *a, tile_work *w, int64_t tr, int64_t tc, const unsigned char *x,
                           int64_t stride)
{
    uint32_t most = 0;
    uint8_t codes[G];
    float v[G];

    memset(w->amax, 0, sizeof w->amax);
    memset(w->sum, 0, sizeof w->sum);
    memset(w->pair, 0, sizeof w->pair);
    for (int64_t i = 0; i < w->rows; i++) {
        const int64_t row = tr * G + i;
        uint32_t m;

        widen(a->dtype, x + i * stride, w->cols, v);
        m = largest(v);
        most = m > most ? m : most;
        for (int j = 0; j < G; j++)
            w->amax[j] = ridge_magnitude(v[j]) > w->amax[j] ? ridge_magnitude(v[j]) : w->amax[j];
        if (a->tile_sums) {
            float *part = w->pair[i / RIDGE_SUM_ROWS % 2];

            for (int j = 0; j < G; j++)
                part[j] += v[j];
            if (i % (2 * RIDGE_SUM_ROWS) == 2 * RIDGE_SUM_ROWS - 1 || i == w->rows - 1) {
                for (int j = 0; j < G; j++)
                    w->sum[j] += w->pair[0][j] + w->pair[1][j];
                memset(w->pair, 0, sizeof w->pair);
            }
        }
        if (a->row.form == QUANTIZE_ROW128) {
            const float s = scale_of(a, m);

            a->row.scale[tc * a->row.ld + row] = s;
            encode(v, ridge_fp8_reciprocal(s), a->e5m2, codes);
            put(a->row.q + row * a->row.stride + tc * G, codes, w->cols);
        }
    }
    return most;
}

/* 16 x 16 bytes: rows `from` to rows `to`, both with a pitch of 128. */
static void transpose16(const uint8_t *from, uint8_t *to)
{
    __m128i a[16], b[16];

    for (int i = 0; i < 16; i++)
        a[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + i * G));
    for (int step = 0; step < 4; step++) { /* each step interleaves row i with row i + 8 */
        for (int i = 0; i < 8; i++) {
            b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
            b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
        }
        memcpy(a, b, sizeof a);
    }
    for (int i = 0; i < 16; i++)
        _mm_storeu_si128((__m128i *)(void *)(to + i * G), a[i]);
}

/* The transposed form from the codes of the tile. */
static void put_transposed(const quantize_args *a, const tile_work *w, int64_t tr, int64_t tc)
{
    uint8_t turned[16 * G];

    for (int64_t j = 0; j < w->cols; j += 16) {
        for (int i = 0; i < G; i += 16)
            transpose16(&w->codes[i][j], turned + i);
        for (int64_t k = j; k < w->cols && k < j + 16; k++)
            put(a->col.q + (tc * G + k) * a->col.stride + tr * G, turned + (k - j) * G, w->rows);
    }
}

static void tile(const quantize_args *a, int64_t tr, int64_t tc, const void *elements, int64_t stride)
{
    const unsigned char *x = elements;
    tile_work w;
    uint32_t most;
    float v[G], block;

    w.rows = a->rows - tr * G < G ? a->rows - tr * G : G;
    w.cols = a->cols - tc * G < G ? a->cols - tc * G : G;
    most = first_pass(a, &w, tr, tc, x, stride);
    if (a->tile_sums)
        memcpy(a->tile_sums + tr * a->cols + tc * G, w.sum, (size_t)w.cols * sizeof(float));
    block = scale_of(a, most);
    if (a->row.form == QUANTIZE_BLK128)
        a->row.scale[tr * a->row.ld + tc] = block;
    if (a->col.form == QUANTIZE_BLK128)
        a->col.scale[tc * a->col.ld + tr] = block;
    for (int j = 0; j < G; j++) {
        const float s = a->col.form == QUANTIZE_ROW128 ? scale_of(a, w.amax[j]) : block;

        if (a->col.form == QUANTIZE_ROW128 && j < w.cols)
            a->col.scale[tr * a->col.ld + tc * G + j] = s;
        w.r[j] = ridge_fp8_reciprocal(s);
    }
    if (a->row.form == QUANTIZE_ROW128 && a->col.form == QUANTIZE_ABSENT)
        return;
    for (int64_t i = 0; i < w.rows; i++) {
        widen(a->dtype, x + i * stride, w.cols, v);
        for (int j = 0; j < G; j++)
            v[j] *= w.r[j];
        encode(v, 1.0f, a->e5m2, w.codes[i]);
        if (a->row.form == QUANTIZE_BLK128)
            put(a->row.q + (tr * G + i) * a->row.stride + tc * G, w.codes[i], w.cols);
    }
    if (a->col.form != QUANTIZE_ABSENT)
        put_transposed(a, &w, tr, tc);
}

/* ------------------------------------------------------------------------------------------------------------ Q8_0 */

static void q8_0(uint32_t dtype, const void *x, int64_t cols, uint8_t *blocks)
{
    const int size = dtype == RIDGE_F32 ? 4 : 2;
    float v[G];

    for (int64_t col = 0; col < cols; col += G) {
        const int64_t n = cols - col < G ? cols - col : G;

        widen(dtype, (const char *)x + col * size, n, v);
        for (int64_t b = 0; b < n; b += RIDGE_Q8_0_BLOCK, blocks += RIDGE_Q8_0_BYTES) {
            uint32_t amax = 0;
            int8_t codes[RIDGE_Q8_0_BLOCK];
            uint16_t half;
            float r, d;

            for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
                amax = ridge_magnitude(v[b + i]) > amax ? ridge_magnitude(v[b + i]) : amax;
            d = ridge_q8_0_scale(amax, &r);
            for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
                codes[i] = (int8_t)ridge_q8_0_code(v[b + i] * r);
            half = ridge_f16_from_f32(d);
            memcpy(blocks, &half, 2);
            memcpy(blocks + 2, codes, RIDGE_Q8_0_BLOCK);
        }
    }
}

const quantize_vectors QUANTIZE_VECTORS = {amax_all, encode_all, row128, tile, q8_0};
