/* cpu_tile.h: one 128 x 128 tile in both forms, by rows and transposed. */
#ifndef RIDGE_CPU_QUANTIZE_TILE_H
#define RIDGE_CPU_QUANTIZE_TILE_H

#include "cpu_runs.h"

/* What a tile's first pass leaves for the later ones. The elements are copied: rows a power of two apart share few sets
 * of the caches, from which they would be evicted before the second pass. */
typedef struct tile_work {
    _Alignas(64) char x[G * G * 4]; /* rows of 128 elements, zeros beyond the edges */
    char columns[G * 4];            /* amax of the columns, in x's format less its sign */
    uint32_t amax[G];               /* of the rows */
    float s[2][G], r[2][G];         /* scales and reciprocals of the rows, of the columns */
    uint8_t codes[G][G];            /* of x, by rows */
    int64_t rows, cols;
} tile_work;

enum { TOGETHER = 4 };

/* Groups of TOGETHER rows: copies them to `to`, leaves the largest elements of each, lane by lane, in most, and updates
 * the amax of every column. */
INLINE void absorb_vectors(uint32_t dtype, const char *const *x, char *to, char *columns, ints *most)
{
    const int pitch = G * size_of(dtype);

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
}

/* The same, reduced to the amax of each row. */
INLINE void absorb_groups(uint32_t dtype, const char *const *x, char *to, char *columns, uint32_t *amax)
{
    ints most[TOGETHER];

    absorb_vectors(dtype, x, to, columns, most);
    UNROLL
    for (int k = 0; k < TOGETHER; k++)
        amax[k] = magnitude_bits(dtype, largest_lane(dtype, most[k]));
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

/* Prefetches into the second-level cache TOGETHER rows of this tile or of the next, AHEAD rows after row i. A whole
 * tile ahead, rows a multiple of 16 KB apart would evict each other. */
INLINE void prefetch_rows(const quantize_args *a, const char *x, const char *next, int64_t i)
{
    enum { AHEAD = 16 };
    const int64_t row = i + AHEAD - (i + AHEAD < G ? 0 : G);
    const char *from = i + AHEAD < G ? x : next;

    for (int k = 0; next && k < TOGETHER; k++)
        for (int z = 0; z < G * a->size; z += 64)
            __builtin_prefetch(from + (row + k) * a->stride + z, 0, 2);
}

/* Copies the elements and takes the amax of rows, columns (in place of widen()) and all. Rows beyond the edge are those
 * of the copy, zeros. */
static uint32_t first_pass(const quantize_args *a, tile_work *w, const char *x, int64_t stride, const char *next)
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
        prefetch_rows(a, x, next, i);
        absorb(a->dtype, from, to, w->columns, w->amax + i);
    }
    for (int64_t i = 0; i < w->rows; i++)
        most = w->amax[i] > most ? w->amax[i] : most;
    memset(w->amax + w->rows, 0, (size_t)(G - w->rows) * sizeof *w->amax);
    return most;
}

/* Sums of the columns in the order of src/math/quantize.h. Rows of zeros change nothing: no partial sum is -0. */
INLINE void sum_columns(uint32_t dtype, const char *from, int64_t stride, float *sums)
{
    const int size = size_of(dtype);

    for (int j = 0; j < G; j += ELEMENTS) {
        const char *x = from + j * size;
        floats total[4], group[2][4], v[4];

        for (int k = 0; k < 4; k++)
            total[k] = all_f32(0);
        for (int i = 0; i < G; i += 2 * RIDGE_SUM_ROWS) {
            for (int h = 0; h < 2; h++) {
                for (int k = 0; k < 4; k++)
                    group[h][k] = all_f32(0);
                for (int n = 0; n < RIDGE_SUM_ROWS; n++, x += stride) {
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

/* The column that element p in the order of widen() belongs to. */
INLINE int column_at(uint32_t dtype, int p)
{
    const int vector = p / LANES, lane = p % LANES;

    if (dtype != RIDGE_BF16)
        return p;
    return vector / 2 * 2 * LANES + lane / 4 * 8 + vector % 2 * 4 + lane % 4;
}

static void put_sums(const quantize_args *a, const char *x, int64_t stride, int64_t cols, float *to)
{
    float sums[G], ordered[G];

    switch (a->dtype) {
    case RIDGE_BF16:
        sum_columns(RIDGE_BF16, x, stride, sums);
        break;
    case RIDGE_F16:
        sum_columns(RIDGE_F16, x, stride, sums);
        break;
    default:
        sum_columns(RIDGE_F32, x, stride, sums);
    }
    for (int p = 0; p < G; p++)
        ordered[column_at(a->dtype, p)] = sums[p];
    memcpy(to, ordered, (size_t)cols * sizeof *to);
}

/* Scales of the columns; their reciprocals as they are or in the order of widen(). */
static void scale_columns(const quantize_args *a, tile_work *w, bool plain)
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
        w->r[1][p] = r[plain ? p : column_at(a->dtype, p)];
}

/* The rows of a tile as groups. */
static group_run tile_rows(const quantize_args *a, const tile_work *w, uint8_t *q, int64_t q_step)
{
    const group_run g = {
        .n = (int)w->rows, .x = w->x, .x_step = G * a->size, .q = q, .q_step = q_step, .stream = a->stream};

    return g;
}

/* The row form with a scale for every row. */
static void encode_rows(const quantize_args *a, const tile_work *w, int64_t tr, int64_t tc)
{
    uint8_t *q = a->row.q + tr * G * a->row.stride + tc * G;
    const group_run g = tile_rows(a, w, q, a->row.stride);

    if (w->cols == G)
        encode_run(a, &g, w->s[0], w->r[0], 1);
    else
        for (int64_t i = 0; i < w->rows; i++)
            encode_edge(a, w->x + i * G * a->size, w->cols, w->s[0][i], w->r[0][i], q + i * a->row.stride);
}

/* The codes of the columns; they stay in the tile. */
static void encode_columns(const quantize_args *a, tile_work *w)
{
    encoder *each = pick_encoder(a->dtype, a->e5m2, EACH);

    for (int i = 0; i < w->rows; i++)
        each(w->x + i * G * a->size, w->r[1], w->codes[i]);
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
    _Alignas(64) uint8_t columns[16 * G];

    for (int64_t j = 0; j < w->cols; j += 16) {
        for (int i = 0; i < G; i += VECTOR_BYTES)
            transpose(&w->codes[i][j], columns + i);
        for (int64_t k = j; k < w->cols && k < j + 16; k++)
            put(a->col.q + (tc * G + k) * a->col.stride + tr * G, columns + (k - j) * G, w->rows, a->stream);
    }
}

/* The codes of the tile with its one scale; the row form too, if that has it. */
static void encode_block(const quantize_args *a, tile_work *w, int64_t tr, int64_t tc, float s)
{
    const bool both = a->row.form == QUANTIZE_BLK128;
    const float r = ridge_fp8_reciprocal(s);
    group_run g = tile_rows(a, w, w->codes[0], G);

    g.stream = false;
    encode_run(a, &g, &s, &r, 0);
    for (int64_t i = 0; both && i < w->rows; i++)
        put(a->row.q + (tr * G + i) * a->row.stride + tc * G, w->codes[i], w->cols, a->stream);
}

#ifdef __AVX512VBMI__
enum { LINE = 32 /* bf16 columns */, PITCH = G * 2 };

/* 32 rows of 32 columns of bf16, a line each: as many columns of 32 rows, PITCH bytes apart. */
static void transpose_lines(const char *from, int64_t stride, char *to)
{
    ints part[4][8];

    UNROLL
    for (int k = 0; k < 4; k++) { /* 8 rows: each lane transposes its 8 columns */
        ints a[8], b[8];

        UNROLL
        for (int i = 0; i < 8; i++)
            a[i] = load(from + (8 * k + i) * stride);
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
            part[k][i] = a[i];
    }
    UNROLL
    for (int i = 0; i < 8; i++) { /* lanes: columns 8 apart become rows 8 apart */
        const ints even0 = _mm512_shuffle_i32x4(part[0][i], part[1][i], 0x88);
        const ints even1 = _mm512_shuffle_i32x4(part[2][i], part[3][i], 0x88);
        const ints odd0 = _mm512_shuffle_i32x4(part[0][i], part[1][i], 0xdd);
        const ints odd1 = _mm512_shuffle_i32x4(part[2][i], part[3][i], 0xdd);

        store(to + i * PITCH, _mm512_shuffle_i32x4(even0, even1, 0x88));
        store(to + (8 + i) * PITCH, _mm512_shuffle_i32x4(odd0, odd1, 0x88));
        store(to + (16 + i) * PITCH, _mm512_shuffle_i32x4(even0, even1, 0xdd));
        store(to + (24 + i) * PITCH, _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
}

/* A whole tile of bf16 with a scale for every row and every column. Rows are encoded while they are in L1; columns are
 * read again, whole lines, from L2, so that little evicts the tables from L1. Rows a multiple of 8 KB apart use so few
 * sets of L2 that they would not be there: these are transposed at once. */
static void whole_tile(const quantize_args *a, tile_work *w, int64_t tr, int64_t tc, const char *x, int64_t stride,
                       const char *next)
{
    enum { CHUNK = 16 };
    const bool at_once = stride % 8192 == 0;
    _Alignas(64) char chunk[LINE * PITCH];
    ints most[CHUNK];
    uint8_t *q = a->row.q + tr * G * a->row.stride + tc * G;
    group_run g = {.n = CHUNK, .x_step = PITCH, .q = q, .q_step = a->row.stride, .stream = a->stream};

    memset(w->columns, 0, sizeof w->columns);
    for (int first = 0; first < G; first += CHUNK) {
        char *const rows = at_once ? chunk + first % LINE * PITCH : chunk;

        for (int i = 0; i < CHUNK; i += TOGETHER) {
            const char *from[TOGETHER];

            for (int k = 0; k < TOGETHER; k++)
                from[k] = x + (first + i + k) * stride;
            prefetch_rows(a, x, next, first + i);
            absorb_vectors(RIDGE_BF16, from, rows + i * PITCH, w->columns, most + i);
        }
        largest_of_rows(RIDGE_BF16, most, w->amax);
        scales_of(a, CHUNK, w->amax, w->s[0] + first, w->r[0] + first);
        g.x = rows;
        encode_run(a, &g, w->s[0] + first, w->r[0] + first, 1);
        g.q += CHUNK * g.q_step;
        for (int j = 0; j < G && at_once && first % LINE; j += LINE)
            transpose_lines(chunk + j * 2, PITCH, w->x + j * PITCH + first / LINE * LINE * 2);
    }
    memcpy(a->row.scale + tc * a->row.ld + tr * G, w->s[0], G * sizeof(float));
    if (a->tile_sums)
        put_sums(a, x, stride, G, a->tile_sums + tr * a->cols + tc * G);
    scale_columns(a, w, true);
    memcpy(a->col.scale + tr * a->col.ld + tc * G, w->s[1], G * sizeof(float));
    g.n = LINE;
    g.q_step = a->col.stride;
    for (int j = 0; j < G; j += LINE) {
        for (int i = 0; i < G && !at_once; i += LINE)
            transpose_lines(x + i * stride + j * 2, stride, w->x + i * 2);
        g.x = at_once ? w->x + j * PITCH : w->x;
        g.q = a->col.q + (tc * G + j) * a->col.stride + tr * G;
        encode_run(a, &g, w->s[1] + j, w->r[1] + j, 1);
    }
}
#endif

static void tile(const quantize_args *a, int64_t tr, int64_t tc, const void *elements, int64_t stride, const void *next)
{
    tile_work w;
    float block;

    w.rows = a->rows - tr * G < G ? a->rows - tr * G : G;
    w.cols = a->cols - tc * G < G ? a->cols - tc * G : G;
#ifdef __AVX512VBMI__
    if (a->tables && a->row.form == QUANTIZE_ROW128 && a->col.form == QUANTIZE_ROW128 && w.rows == G && w.cols == G) {
        whole_tile(a, &w, tr, tc, elements, stride, next);
        return;
    }
#endif
    block = ridge_fp8_scale(first_pass(a, &w, elements, stride, next), a->floor, a->e5m2, a->pow2);
    if (a->tile_sums)
        put_sums(a, w.x, G * a->size, w.cols, a->tile_sums + tr * a->cols + tc * G);
    if (a->row.form == QUANTIZE_BLK128)
        a->row.scale[tr * a->row.ld + tc] = block;
    if (a->col.form == QUANTIZE_BLK128)
        a->col.scale[tc * a->col.ld + tr] = block;
    if (a->row.form == QUANTIZE_ROW128) {
        scales_of(a, G, w.amax, w.s[0], w.r[0]);
        memcpy(a->row.scale + tc * a->row.ld + tr * G, w.s[0], (size_t)w.rows * sizeof(float));
        encode_rows(a, &w, tr, tc);
    }
    if (a->col.form == QUANTIZE_ROW128) {
        scale_columns(a, &w, false);
        memcpy(a->col.scale + tr * a->col.ld + tc * G, w.s[1], (size_t)w.cols * sizeof(float));
        encode_columns(a, &w);
    } else {
        encode_block(a, &w, tr, tc, block);
    }
    if (w.rows < G)
        memset(w.codes[w.rows], 0, (size_t)(G - w.rows) * G);
    if (a->col.form != QUANTIZE_ABSENT)
        put_transposed(a, &w, tr, tc);
}

#endif
