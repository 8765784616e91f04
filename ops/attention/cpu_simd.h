/* cpu_simd.h: kv_append and attention_decode once an instruction set.
 *
 * A piece: keys, then values, of 32 positions at a time become f32 in the first cache and serve up to 16 queries.
 * Sixteen lanes are the sixteen partials of a dot product, or sixteen columns of a value. Compiled for: avx2, avx512.
 */
#include <immintrin.h>

#include "cpu_rows.h"

enum { CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE, ROWS = RIDGE_ATTENTION_ROWS };

/* --------------------------------------------------------------------------------------------------- sixteen lanes */

#ifdef RIDGE_SIMD_avx512
typedef __m512 lanes;

static inline lanes lanes_zero(void)
{
    return _mm512_setzero_ps();
}

static inline lanes lanes_all(float x)
{
    return _mm512_set1_ps(x);
}

static inline lanes lanes_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

static inline void lanes_store(float *to, lanes v)
{
    _mm512_storeu_ps(to, v);
}

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return _mm512_add_ps(a, b);
}

static inline lanes lanes_widen(int bf16, const uint16_t *from)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)from);

    return bf16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)) : _mm512_cvtph_ps(half);
}

/* Within each eight halves onto halves, then the two eights. */
static inline float lanes_sum(lanes v)
{
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
    return _mm512_cvtss_f32(v) + _mm256_cvtss_f32(_mm512_extractf32x8_ps(v, 1));
}
#else
typedef struct lanes {
    __m256 a, b;
} lanes;

static inline lanes lanes_zero(void)
{
    return (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static inline lanes lanes_all(float x)
{
    return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline lanes lanes_load(const float *from)
{
    return (lanes){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

static inline void lanes_store(float *to, lanes v)
{
    _mm256_storeu_ps(to, v.a);
    _mm256_storeu_ps(to + 8, v.b);
}

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return (lanes){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)};
}

static inline __m256 widen8(int bf16, const uint16_t *from)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);

    return bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)) : _mm256_cvtph_ps(half);
}

static inline lanes lanes_widen(int bf16, const uint16_t *from)
{
    return (lanes){widen8(bf16, from), widen8(bf16, from + 8)};
}

static inline float sum8(__m256 v)
{
    v = _mm256_add_ps(v, _mm256_permute2f128_ps(v, v, 1));
    v = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
    v = _mm256_add_ps(v, _mm256_permute_ps(v, 0xb1));
    return _mm256_cvtss_f32(v);
}

/* Within each eight halves onto halves, then the two eights. */
static inline float lanes_sum(lanes v)
{
    return sum8(v.a) + sum8(v.b);
}
#endif

/* ------------------------------------------------------------------------------------------------------------ piece */

/* What a piece's queries have in common, and of each the keys that it sees, counted from the piece's first. */
typedef struct piece_work {
    const attention_args *a;
    int64_t n;
    int rows, first[ROWS], end[ROWS], lowest, highest;
    float *o[ROWS];
    float q[ROWS][RIDGE_MAX_HEAD_DIM], p[ROWS][PIECE], chunk[CHUNK * RIDGE_MAX_HEAD_DIM];
} piece_work;

/* Codes times their scale, exact. */
static inline void widen_blocks(const char *from, int64_t n, float *to)
{
    for (int64_t b = 0; b < n; b += RIDGE_Q8_0_BLOCK, from += RIDGE_Q8_0_BYTES) {
        const int8_t *codes = (const int8_t *)from + 2;
        uint16_t half;
        float d;

        memcpy(&half, from, 2);
        d = ridge_f32_from_f16(half);
        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            to[b + i] = d * (float)codes[i];
    }
}

/* Keys or values of positions [first, end) of a chunk as f32. */
static void widen_chunk(piece_work *w, const char *head, int64_t base, int chunk, int first, int end)
{
    for (int i = first; i < end; i++) {
        const char *from = head + (base + chunk + i) * w->a->kv_row;
        float *to = w->chunk + i * w->n;

        if (w->a->kv == RIDGE_U8)
            widen_blocks(from, w->n, to);
        else
            for (int64_t c = 0; c < w->n; c += 16)
                lanes_store(to + c, lanes_widen(w->a->kv == RIDGE_BF16, (const uint16_t *)(const void *)from + c));
    }
}

/* The part of [first, end) that lies in a chunk, counted from the chunk's first key. */
static inline void in_chunk(int first, int end, int chunk, int *low, int *high)
{
    *low = first > chunk ? first - chunk : 0;
    *high = end - chunk < CHUNK ? end - chunk : CHUNK;
}

static void scores_of_chunk(piece_work *w, int r, int chunk)
{
    const float *q = w->q[r];
    int i, end;

    in_chunk(w->first[r], w->end[r], chunk, &i, &end);
    for (; i + 4 <= end; i += 4) {
        const float *k = w->chunk + i * w->n;
        lanes a = lanes_zero(), b = a, c = a, d = a;

        for (int64_t j = 0; j < w->n; j += 16) {
            const lanes x = lanes_load(q + j);

            a = lanes_fma(x, lanes_load(k + j), a);
            b = lanes_fma(x, lanes_load(k + w->n + j), b);
            c = lanes_fma(x, lanes_load(k + 2 * w->n + j), c);
            d = lanes_fma(x, lanes_load(k + 3 * w->n + j), d);
        }
        w->p[r][chunk + i] = lanes_sum(a);
        w->p[r][chunk + i + 1] = lanes_sum(b);
        w->p[r][chunk + i + 2] = lanes_sum(c);
        w->p[r][chunk + i + 3] = lanes_sum(d);
    }
    for (; i < end; i++) {
        lanes a = lanes_zero();

        for (int64_t j = 0; j < w->n; j += 16)
            a = lanes_fma(lanes_load(q + j), lanes_load(w->chunk + i * w->n + j), a);
        w->p[r][chunk + i] = lanes_sum(a);
    }
}

/* Dot products become weights; m and l are written. */
static void weights_of_row(piece_work *w, int r)
{
    const float scale = w->a->scale, softcap = w->a->softcap;
    float *p = w->p[r], most[16], m = -INFINITY, l = 0.0f;

    for (int i = w->first[r]; i < w->end[r]; i++)
        p[i] = ridge_attention_score(p[i], scale, softcap);
    for (int i = 0; i < 16; i++)
        most[i] = -INFINITY;
    for (int i = 0; i < PIECE; i += 16)
        for (int j = 0; j < 16; j++)
            most[j] = ridge_attention_max(most[j], p[i + j]);
    for (int i = 0; i < 16; i++)
        m = ridge_attention_max(m, most[i]);
    for (int i = 0; i < w->first[r]; i++)
        p[i] = 0.0f;
    for (int i = w->first[r]; i < w->end[r]; i++)
        p[i] = ridge_attention_weight(m, p[i]);
    for (int i = w->end[r]; i < PIECE; i++)
        p[i] = 0.0f;
    for (int chunk = 0; chunk < PIECE; chunk += CHUNK) {
        float part[CHUNK];

        memcpy(part, p + chunk, sizeof part);
        for (int s = CHUNK / 2; s > 0; s /= 2)
            for (int i = 0; i < s; i++)
                part[i] += part[i + s];
        l = chunk ? l + part[0] : part[0];
    }
    w->o[r][w->n] = m;
    w->o[r][w->n + 1] = l;
}

static void values_of_chunk(piece_work *w, int r, int chunk)
{
    const float *p = w->p[r] + chunk;
    int first, end;

    in_chunk(w->first[r], w->end[r], chunk, &first, &end);
    for (int64_t j = 0; j < w->n; j += 64) {
        const int blocks = w->n - j < 64 ? (int)(w->n - j) / 16 : 4;
        lanes sum[4] = {lanes_zero(), lanes_zero(), lanes_zero(), lanes_zero()};

        if (blocks == 4)
            for (int i = first; i < end; i++) {
                const float *v = w->chunk + i * w->n + j;
                const lanes x = lanes_all(p[i]);

                sum[0] = lanes_fma(x, lanes_load(v), sum[0]);
                sum[1] = lanes_fma(x, lanes_load(v + 16), sum[1]);
                sum[2] = lanes_fma(x, lanes_load(v + 32), sum[2]);
                sum[3] = lanes_fma(x, lanes_load(v + 48), sum[3]);
            }
        else
            for (int i = first; i < end; i++)
                for (int b = 0; b < blocks; b++)
                    sum[b] = lanes_fma(lanes_all(p[i]), lanes_load(w->chunk + i * w->n + j + 16 * b), sum[b]);
        for (int b = 0; b < blocks; b++) {
            float *o = w->o[r] + j + 16 * b;

            lanes_store(o, chunk ? lanes_add(lanes_load(o), sum[b]) : sum[b]);
        }
    }
}

/* The queries and the keys that they see of a piece; false: none sees one. */
static bool begin_piece(piece_work *w, const attention_args *a, int64_t kv_head, int64_t piece, int64_t first_row,
                        int rows)
{
    const int64_t base = piece * PIECE;

    w->a = a;
    w->n = a->n;
    w->rows = 0;
    w->lowest = PIECE;
    w->highest = 0;
    for (int64_t row = first_row; row < first_row + rows; row++) {
        const int64_t t = row / a->group, head = kv_head * a->group + row % a->group;
        const int r = w->rows;
        int64_t first, end;

        attention_range(a, a->pos[t], &first, &end);
        first = first > base ? first - base : 0;
        end = ridge_min(end - base, PIECE);
        if (first >= end)
            continue;
        w->first[r] = (int)first;
        w->end[r] = (int)end;
        w->lowest = w->first[r] < w->lowest ? w->first[r] : w->lowest;
        w->highest = w->end[r] > w->highest ? w->end[r] : w->highest;
        w->o[r] = piece_at(a, t, head, piece);
        row_load(a->q_bf16, a->q + t * a->q_stride + head * a->n * (a->q_bf16 ? 2 : 4), a->n, w->q[r]);
        for (int i = 0; i < PIECE; i++)
            w->p[r][i] = -INFINITY;
        w->rows++;
    }
    return w->rows > 0;
}

static void one_piece(const attention_args *a, int64_t kv_head, int64_t piece, int64_t first_row, int rows)
{
    const int64_t base = piece * PIECE;
    piece_work w;
    int first, end;

    if (!begin_piece(&w, a, kv_head, piece, first_row, rows))
        return;
    for (int chunk = 0; chunk < PIECE; chunk += CHUNK) {
        in_chunk(w.lowest, w.highest, chunk, &first, &end);
        widen_chunk(&w, a->k + kv_head * a->k_stride, base, chunk, first, end);
        for (int r = 0; r < w.rows; r++)
            scores_of_chunk(&w, r, chunk);
    }
    for (int r = 0; r < w.rows; r++)
        weights_of_row(&w, r);
    for (int chunk = 0; chunk < PIECE; chunk += CHUNK) {
        in_chunk(w.lowest, w.highest, chunk, &first, &end);
        widen_chunk(&w, a->v + kv_head * a->v_stride, base, chunk, first, end);
        for (int r = 0; r < w.rows; r++)
            values_of_chunk(&w, r, chunk);
    }
}

const attention_level RIDGE_SIMD(ridge_cpu_attention) = {append_one_head, one_piece, merge_pieces};
