/* cpu_rows.h: fp8 of whole rows, of groups of 128 columns, and of 128 x 128 blocks. */
#ifndef RIDGE_CPU_QUANTIZE_ROWS_H
#define RIDGE_CPU_QUANTIZE_ROWS_H

#include "cpu_runs.h"

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
    _Alignas(64) char padded[G * 4];

    for (int64_t i = 0; i < n; i += G) {
        const char *from = whole_group(x + i * a->size, n - i, a->size, padded);

        encode_scaled(encode, from, r, &r, codes);
        guard_group(a->dtype, from, codes);
        put(q + i, codes, n - i, a->stream);
    }
}

/* The largest of n amax; of n elements less than a group besides. */
INLINE uint32_t most_of(const quantize_args *a, const char *x, int64_t n)
{
    uint32_t amax[SOME + 1], most = 0;
    _Alignas(64) char padded[G * 4];

    amax_groups(a->dtype, x, n / G, amax);
    if (n % G)
        amax_groups(a->dtype, whole_group(x + n / G * G * a->size, n % G, a->size, padded), 1, amax + n / G);
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
        const bool within = !cached && i + SOME * G < a->cols; /* the next groups are in this row */
        const char *ahead = within ? from + SOME * G * a->size : row_after;
        const int64_t n = a->cols - i < SOME * G ? a->cols - i : SOME * G, whole = n / G * G;
        const uint32_t most = guard ? most_of(a, from, n) : 0;
        const group_run g = {.n = (int)(n / G),
                             .x = from,
                             .x_step = G * a->size,
                             .q = q + i,
                             .q_step = G,
                             .next = ahead,
                             .next_step = G * a->size,
                             .next_bytes = G * a->size,
                             .stream = a->stream};

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

/* Up to ROWS rows, so that their scales, neighbours in memory, are stored as whole lines: stored one by one they would
 * share few sets of the caches with those of the other groups, a power of two apart. Several groups at a time: the
 * codes of one wait for its amax and two divisions, and so would the next group, because the processor looks no further
 * than one group ahead. */
static void row128(const quantize_args *a, int64_t row, int64_t rows)
{
    enum { MOST = 4 * SOME, ROWS = QUANTIZE_ROWS };
    const int wide = G * a->size;
    float kept[MOST][ROWS], s[SOME], r[SOME];
    uint32_t amax[SOME] = {0};
    _Alignas(64) char padded[G * 4];

    for (int64_t first = 0; first < a->cols; first += MOST * G) {
        const int64_t last = a->cols - first < MOST * G ? a->cols : first + MOST * G;

        for (int64_t i = 0; i < rows; i++) {
            const char *x = (const char *)a->x + (row + i) * a->stride;
            uint8_t *q = a->row.q + (row + i) * a->row.stride;

            for (int64_t begin = first; begin < last; begin += SOME * G) {
                const int64_t end = last - begin < SOME * G ? last : begin + SOME * G, n = (end - begin) / G;
                const int64_t edge = begin + n * G;
                const char *from = x + begin * a->size, *ahead = i + 1 < rows ? x + a->stride + first * a->size : NULL;
                group_run g = {.n = (int)n,
                               .x = from,
                               .x_step = wide,
                               .q = q + begin,
                               .q_step = G,
                               .next = x + end * a->size,
                               .next_step = wide,
                               .next_bytes = wide,
                               .stream = a->stream};

                if (end == last)
                    g.next = ahead;
                amax_groups(a->dtype, from, n, amax);
                if (edge < end)
                    amax_groups(a->dtype, whole_group(x + edge * a->size, end - edge, a->size, padded), 1, amax + n);
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

/* The amax of blocks of 128 columns side by side, the last of which may be short. */
INLINE void amax_blocks(uint32_t dtype, const quantize_args *a, const char *x, int64_t rows, int64_t cols,
                        uint32_t *amax)
{
    const int wide = G * size_of(dtype);
    const int64_t count = (cols + G - 1) / G;
    _Alignas(64) char padded[G * 4];
    ints most[QUANTIZE_STRIP / 2 / G];

    for (int64_t g = 0; g < count; g++)
        most[g] = zeros();
    for (int64_t i = 0; i < rows; i++, x += a->stride)
        for (int64_t g = 0; g < count; g++) {
            const char *from = whole_group(x + g * wide, cols - g * G, size_of(dtype), padded);

            UNROLL
            for (int k = 0; k < wide; k += VECTOR_BYTES)
                most[g] = larger(dtype, most[g], magnitudes(dtype, load(from + k)));
        }
    for (int64_t g = 0; g < count; g++)
        amax[g] = magnitude_bits(dtype, largest_lane(dtype, most[g]));
}

/* Only BLK128: blocks side by side, so that consecutive memory is read and written. The second pass finds them in the
 * second-level cache, and prefetches the strip to the right. */
static void blocks128(const quantize_args *a, int64_t tr, int64_t col, int64_t cols, bool more)
{
    const int64_t rows = a->rows - tr * G < G ? a->rows - tr * G : G, count = (cols + G - 1) / G, whole = cols / G;
    const char *x = (const char *)a->x + tr * G * a->stride + col * a->size;
    const int wide = G * a->size;
    enum { MOST = QUANTIZE_STRIP / 2 / G, SLOTS = MOST < 16 ? 16 : MOST };
    uint32_t amax[SLOTS] = {0};
    float s[SLOTS], r[SLOTS];
    uint8_t *q = a->row.q + tr * G * a->row.stride + col;
    const group_run g = {.n = (int)whole,
                         .x = x,
                         .x_step = wide,
                         .q = q,
                         .q_step = G,
                         .next = more ? x + QUANTIZE_STRIP : NULL,
                         .next_step = wide,
                         .next_bytes = wide,
                         .stream = a->stream,
                         .rows = rows,
                         .x_row = a->stride,
                         .q_row = a->row.stride};

    switch (a->dtype) {
    case RIDGE_BF16:
        amax_blocks(RIDGE_BF16, a, x, rows, cols, amax);
        break;
    case RIDGE_F16:
        amax_blocks(RIDGE_F16, a, x, rows, cols, amax);
        break;
    default:
        amax_blocks(RIDGE_F32, a, x, rows, cols, amax);
    }
    scales_of(a, SLOTS, amax, s, r);
    memcpy(a->row.scale + tr * a->row.ld + col / G, s, (size_t)count * sizeof *s);
    encode_run(a, &g, s, r, 1);
    for (int64_t i = 0; whole < count && i < rows; i++)
        encode_edge(a, x + i * a->stride + whole * wide, cols - whole * G, s[whole], r[whole],
                    q + i * a->row.stride + whole * G);
}

#endif
