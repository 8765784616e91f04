/* quantize_tile.h: one 128 x 128 tile in both forms, by rows and transposed. Part of quantize_simd.h. */
#ifndef RIDGE_CPU_QUANTIZE_TILE_H
#define RIDGE_CPU_QUANTIZE_TILE_H

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

/* The rows of a tile as groups. While they are encoded the rows at `next` are fetched, all in one pass: half of them in
 * another cost 10 % (16 cores of a Xeon, nothing computed). */
static group_run tile_rows(const quantize_args *a, const tile_work *w, const char *next)
{
    const int wide = G * a->size;
    const group_run g = {(int)w->rows, w->x, wide, NULL, 0, next, a->stride, wide, a->stream};

    return g;
}

/* The row form with a scale for every row. */
static void encode_rows(const quantize_args *a, const tile_work *w, int64_t tr, int64_t tc, const char *next)
{
    uint8_t *q = a->row.q + tr * G * a->row.stride + tc * G;
    group_run g = tile_rows(a, w, next);

    g.q = q;
    g.q_step = a->row.stride;
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
static void columns_by_table(const quantize_args *a, const tile_work *w, int64_t tr, int64_t tc)
{
    const float *s = w->s[1], *r = w->r[1];
    _Alignas(64) uint16_t turned[8][G];

    for (int64_t j = 0; j < w->cols; j += 8) {
        group_run g = tile_rows(a, w, NULL);
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
    const float r = ridge_fp8_reciprocal(s);
    group_run g = tile_rows(a, w, both ? next : NULL);

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
            columns_by_table(a, &w, tr, tc);
            return;
        }
#endif
        encode_columns(a, &w);
    } else {
        encode_block(a, &w, tr, tc, next, block);
    }
    if (w.rows < G)
        memset(w.codes[w.rows], 0, (size_t)(G - w.rows) * G);
    if (a->col.form != QUANTIZE_ABSENT)
        put_transposed(a, &w, tr, tc);
}

#endif
