/* error.c: measures the error of the decoded result. Plain loops over chunks of a row, which compilers vectorise (this
 * file is built with -O3); the data is still in the cache from quantising. Sums are added row by row in order, so that
 * they do not depend on the number of threads. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/num.h"
#include "quantize.h"

enum { CHUNK = 128 };

typedef struct row_error {
    double signal, noise;
    float worst;
    int64_t at, not_finite;
} row_error;

double error_snr(const error_stats *s)
{
    return s->noise > 0 ? 10 * log10(s->signal / s->noise) : INFINITY;
}

/* Loads n elements from index `at` as f32. */
static void load_chunk(float *to, const void *from, uint32_t type, int64_t at, int n)
{
    const float *f = (const float *)from + at;
    const uint16_t *h = (const uint16_t *)from + at;

    if (type == RIDGE_TYPE_F32)
        memcpy(to, f, (size_t)n * sizeof *to);
    else if (type == RIDGE_TYPE_BF16)
        for (int i = 0; i < n; i++)
            to[i] = ridge_f32_from_bf16(h[i]);
    else
        for (int i = 0; i < n; i++)
            to[i] = ridge_f32_from_f16(h[i]);
}

/* The bits of an e4m3 code, shifted to the fields of f32, are its value times 2^-120, subnormals included. 7F decodes
 * to 480 here; its scale is NaN. */
static void decode_fp8(float *to, const uint8_t *code, float scale, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(code[i] & 0x80) << 24 | (uint32_t)(code[i] & 0x7f) << 20;

        to[i] = ridge_float(bits) * 0x1p120f * scale;
    }
}

static void decode_q8_0(float *to, const uint8_t *block, int n)
{
    for (; n > 0; n -= 32, to += 32, block += 34) {
        const int8_t *code = (const int8_t *)block + 2;
        uint16_t half;
        float d;

        memcpy(&half, block, 2);
        d = ridge_f32_from_f16(half);
        for (int i = 0; i < 32; i++)
            to[i] = d * (float)code[i];
    }
}

static void decode_chunk(float *to, const error_input *in, int64_t row, int64_t col, int n)
{
    const uint8_t *y = in->y;

    if (in->y_type == RIDGE_TYPE_F8_E4M3) {
        int64_t at = in->scale_cols ? row / 128 * in->scale_cols + col / 128 : row;

        decode_fp8(to, y + row * in->cols + col, in->scale[at], n);
    } else if (in->y_type == RIDGE_TYPE_Q8_0) {
        decode_q8_0(to, y + (row * in->cols + col) / 32 * 34, n);
    } else {
        load_chunk(to, y, in->y_type, row * in->cols + col, n);
    }
}

/* a[0] += a[1] + ... + a[CHUNK - 1], halving, so that every step vectorises. */
static float sum_chunk(float *a)
{
    for (int half = CHUNK / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

static float max_of_chunk(float *a)
{
    for (int half = CHUNK / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    return a[0];
}

/* The n elements of a chunk from index `first` on; what is beyond them is 0 in both. */
static void add_chunk(row_error *e, const float *x, const float *y, int64_t first, int n)
{
    float signal[CHUNK], noise[CHUNK], size[CHUNK], most;
    int32_t bad = 0;

    for (int i = 0; i < CHUNK; i++) {
        float d = x[i] - y[i], v;
        uint32_t finite = fabsf(d) <= FLT_MAX ? 0xffffffffu : 0;

        v = ridge_float(ridge_bits(x[i]) & finite);
        d = ridge_float(ridge_bits(d) & finite);
        signal[i] = v * v;
        noise[i] = d * d;
        size[i] = fabsf(d);
        bad += 1 + (int32_t)finite;
    }
    e->signal += (double)sum_chunk(signal);
    e->noise += (double)sum_chunk(noise);
    e->not_finite += bad;
    most = max_of_chunk(size);
    if (most > e->worst || e->at < 0) {
        int i = 0;

        while (i < n && !(fabsf(x[i] - y[i]) == most))
            i++;
        if (i == n) /* no difference is finite: `most` is the padding's */
            return;
        e->worst = most;
        e->at = first + i;
    }
}

static void add_row(row_error *e, const error_input *in, int64_t row)
{
    float x[CHUNK], y[CHUNK];

    *e = (row_error){.at = -1};
    for (int64_t col = 0; col < in->cols; col += CHUNK) {
        int n = (int)(in->cols - col < CHUNK ? in->cols - col : CHUNK);

        if (n < CHUNK) {
            memset(x, 0, sizeof x);
            memset(y, 0, sizeof y);
        }
        load_chunk(x, in->x, in->x_type, row * in->cols + col, n);
        decode_chunk(y, in, row, col, n);
        add_chunk(e, x, y, row * in->cols + col, n);
    }
}

void error_merge(error_stats *s, const error_stats *next)
{
    s->signal += next->signal;
    s->noise += next->noise;
    s->not_finite += next->not_finite;
    s->blocks += next->blocks;
    s->inexact += next->inexact;
    if (next->worst_at >= 0 && (next->worst > s->worst || s->worst_at < 0)) {
        s->worst = next->worst;
        s->value = next->value;
        s->worst_at = next->worst_at;
    }
}

void error_add(error_stats *s, const error_input *in)
{
    for (int64_t r = 0; r < in->rows; r++) {
        error_stats row;
        row_error e;

        add_row(&e, in, r);
        row = (error_stats){e.signal, e.noise, e.worst, 0, e.at, e.not_finite, 0, 0};
        if (e.at >= 0) {
            load_chunk(&row.value, in->x, in->x_type, e.at, 1);
            row.worst_at += in->first;
        }
        error_merge(s, &row);
    }
}
