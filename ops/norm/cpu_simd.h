/* cpu_simd.h: one row of rms_norm and add_rms_norm, one head of head_rms_norm_rope_tail, a group of rows of
 * rms_norm_bwd, a token of rope, once an instruction set.
 *
 * Plain C over 256 columns, the partials of the canonical order, written so that gcc and clang turn the loops into
 * packed instructions. x is read twice; a row of 16384 floats stays in the second cache between.
 * Compiled for: avx2, avx512. */
#include <immintrin.h>
#include <string.h>

#include "cpu.h"
#include "cpu/num.h"
#include "src/math/q8_0.h"

enum { PARTS = RIDGE_NORM_PARTS };

/* n <= 256 elements as f32. */
static void widen(int32_t dtype, const void *x, int64_t first, int64_t n, float *to)
{
    uint16_t raw[PARTS];

    if (dtype == RIDGE_F32) {
        memcpy(to, (const float *)x + first, (size_t)n * sizeof *to);
        return;
    }
    memcpy(raw, (const uint16_t *)x + first, (size_t)n * sizeof *raw);
    if (dtype == RIDGE_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_bf16(raw[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_f16(raw[i]);
}

static void narrow(int32_t dtype, void *out, int64_t first, int64_t n, const float *from)
{
    uint16_t raw[PARTS];
    float whole[PARTS];

    if (dtype == RIDGE_F32) {
        for (int64_t i = 0; i < n; i++)
            whole[i] = ridge_f32_canonical(from[i]);
        memcpy((float *)out + first, whole, (size_t)n * sizeof *whole);
        return;
    }
    if (dtype == RIDGE_BF16)
        for (int64_t i = 0; i < n; i++)
            raw[i] = ridge_bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            raw[i] = ridge_f16_from_f32(from[i]);
    memcpy((uint16_t *)out + first, raw, (size_t)n * sizeof *raw);
}

/* The partial sums of a row in the canonical order. */
static float tree(float *part)
{
    for (int s = PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    return part[0];
}

static int32_t float_or_bf16(int bf16)
{
    return bf16 ? RIDGE_BF16 : RIDGE_F32;
}

static float factor_of(const norm_args *a, const void *x)
{
    float part[PARTS], v[PARTS];

    memset(part, 0, sizeof part);
    for (int64_t j = 0; j < a->n; j += PARTS) {
        const int64_t n = a->n - j < PARTS ? a->n - j : PARTS;

        widen(float_or_bf16(a->x_bf16), x, j, n, v);
        for (int64_t i = 0; i < n; i++)
            part[i] = ridge_fma(v[i], v[i], part[i]);
    }
    return ridge_rms_factor(tree(part), a->n, a->eps);
}

void RIDGE_SIMD(ridge_cpu_norm)(const norm_args *a, const void *x, const float *c, const float *s, void *out)
{
    const float factor = a->norm ? factor_of(a, x) : 1.0f;
    const int64_t tail = a->n - a->n_rot;
    float v[PARTS], w[PARTS];

    /* Blocks begin and end at even columns of the tail, so that no pair is split. */
    for (int64_t j = 0, n; j < a->n; j += n) {
        n = j < tail ? tail - j : a->n - j;
        n = n < PARTS ? n : PARTS;
        widen(float_or_bf16(a->x_bf16), x, j, n, v);
        if (a->norm)
            for (int64_t i = 0; i < n; i++)
                v[i] *= factor;
        if (a->w) {
            widen(float_or_bf16(a->w_bf16), a->w, j, n, w);
            for (int64_t i = 0; i < n; i++)
                v[i] *= w[i];
        }
        if (j >= tail)
            for (int64_t i = 0; i < n; i += 2) {
                const int64_t pair = (j - tail + i) / 2;

                ridge_rope_rotate(v[i], v[i + 1], c[pair], s[pair], &v[i], &v[i + 1]);
            }
        narrow(float_or_bf16(a->out_bf16), out, j, n, v);
    }
}

/* ---------------------------------------------------------------------------------------------------- add_rms_norm */

static int64_t block(int64_t n, int64_t j)
{
    return n - j < PARTS ? n - j : PARTS;
}

static void load(const norm_matrix *m, int64_t row, int64_t j, int64_t n, float *to)
{
    widen(m->dtype, m->data + row * m->stride, j, n, to);
}

/* What is normed, columns j .. j + n: of x, or of the rounded sum. */
static void load_sum(const add_norm_args *a, int64_t row, int64_t j, int64_t n, float *v)
{
    float more[PARTS];
    char raw[PARTS * 4];

    load(&a->x, row, j, n, v);
    if (!a->residual.data)
        return;
    load(&a->residual, row, j, n, more);
    for (int64_t i = 0; i < n; i++)
        v[i] += more[i];
    narrow(a->residual.dtype, raw, 0, n, v);
    widen(a->residual.dtype, raw, 0, n, v);
}

static uint32_t amax_of(const float *v, int64_t n)
{
    uint32_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        const uint32_t m = ridge_magnitude(v[i]);

        most = m > most ? m : most;
    }
    return most;
}

static void store_fp8(const add_norm_args *a, int64_t row, int64_t j, int64_t n, const float *v)
{
    const int e5m2 = a->out.dtype == RIDGE_E5M2;

    for (int64_t at = 0; at < n; at += RIDGE_GROUP) {
        const int64_t count = n - at < RIDGE_GROUP ? n - at : RIDGE_GROUP;
        const float scale = ridge_fp8_scale(amax_of(v + at, count), 0.0f, e5m2, a->pow2);
        const float r = ridge_fp8_reciprocal(scale);
        uint8_t codes[RIDGE_GROUP];

        for (int64_t i = 0; i < count; i++)
            codes[i] = ridge_fp8_from_f32(v[at + i] * r, e5m2);
        memcpy(a->out.data + row * a->out.stride + j + at, codes, (size_t)count);
        a->scale[(j + at) / RIDGE_GROUP * a->ld + row] = scale;
    }
}

static void store_q8_0(const add_norm_args *a, int64_t row, int64_t j, int64_t n, const float *v)
{
    for (int64_t at = 0; at < n; at += RIDGE_Q8_0_BLOCK) {
        int8_t codes[RIDGE_Q8_0_BLOCK];
        float r;

        a->scale[row * a->ld + (j + at) / RIDGE_Q8_0_BLOCK] = ridge_q8_0_x_scale(amax_of(v + at, RIDGE_Q8_0_BLOCK), &r);
        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            codes[i] = (int8_t)ridge_q8_0_x_code(v[at + i], r);
        memcpy(a->out.data + row * a->out.stride + j + at, codes, sizeof codes);
    }
}

void RIDGE_SIMD(ridge_cpu_add_norm)(const add_norm_args *a, int64_t row)
{
    float part[PARTS], v[PARTS], w[PARTS], factor;

    memset(part, 0, sizeof part);
    for (int64_t j = 0; j < a->n; j += PARTS) {
        const int64_t n = block(a->n, j);

        load_sum(a, row, j, n, v);
        if (a->sum.data)
            narrow(a->sum.dtype, a->sum.data + row * a->sum.stride, j, n, v);
        for (int64_t i = 0; i < n; i++)
            part[i] = ridge_fma(v[i], v[i], part[i]);
    }
    factor = ridge_rms_factor(tree(part), a->n, a->eps);
    for (int64_t j = 0; j < a->n; j += PARTS) {
        const int64_t n = block(a->n, j);

        if (a->sum.data) /* residual may be gone: sum may lie on it */
            load(&a->sum, row, j, n, v);
        else
            load_sum(a, row, j, n, v);
        for (int64_t i = 0; i < n; i++)
            v[i] *= factor;
        if (a->w.data) {
            load(&a->w, 0, j, n, w);
            for (int64_t i = 0; i < n; i++)
                v[i] *= w[i];
        }
        if (a->out.dtype == RIDGE_I8)
            store_q8_0(a, row, j, n, v);
        else if (a->out.size == 1)
            store_fp8(a, row, j, n, v);
        else
            narrow(a->out.dtype, a->out.data + row * a->out.stride, j, n, v);
    }
}

/* ---------------------------------------------------------------------------------------------------- rms_norm_bwd */

/* dout * w. */
static void load_g(const norm_bwd_args *a, const float *dout, int64_t j, int64_t n, float *g)
{
    memcpy(g, dout, (size_t)n * sizeof *g);
    if (!a->w.data)
        return;
    load(&a->w, 0, j, n, g);
    for (int64_t i = 0; i < n; i++)
        g[i] *= dout[i];
}

static void bwd_row(const norm_bwd_args *a, int64_t row, float *sums)
{
    float squares[PARTS], dots[PARTS], x[PARTS], dout[PARTS], g[PARTS], r, mean;

    memset(squares, 0, sizeof squares);
    memset(dots, 0, sizeof dots);
    for (int64_t j = 0; j < a->n; j += PARTS) {
        const int64_t n = block(a->n, j);

        load(&a->x, row, j, n, x);
        load(&a->dout, row, j, n, dout);
        load_g(a, dout, j, n, g);
        for (int64_t i = 0; i < n; i++) {
            squares[i] = ridge_fma(x[i], x[i], squares[i]);
            dots[i] = ridge_fma(g[i], x[i], dots[i]);
        }
    }
    r = ridge_rms_factor(tree(squares), a->n, a->eps);
    mean = ridge_rms_bwd_mean(tree(dots), a->n, r);
    for (int64_t j = 0; j < a->n; j += PARTS) {
        const int64_t n = block(a->n, j);

        load(&a->x, row, j, n, x);
        load(&a->dout, row, j, n, dout);
        for (int64_t i = 0; i < n && sums; i++)
            sums[j + i] = ridge_fma(dout[i], x[i] * r, sums[j + i]);
        if (!a->dx.data)
            continue;
        load_g(a, dout, j, n, g);
        for (int64_t i = 0; i < n; i++)
            g[i] = ridge_rms_bwd(g[i], x[i], mean, r);
        if (a->dsum.data) {
            load(&a->dsum, row, j, n, x);
            for (int64_t i = 0; i < n; i++)
                g[i] += x[i];
        }
        narrow(a->dx.dtype, a->dx.data + row * a->dx.stride, j, n, g);
    }
}

void RIDGE_SIMD(ridge_cpu_norm_bwd)(const norm_bwd_args *a, int64_t group)
{
    const int64_t first = group * RIDGE_NORM_GROUP;
    const int64_t end = first + RIDGE_NORM_GROUP < a->rows ? first + RIDGE_NORM_GROUP : a->rows;
    float *sums = a->dw.data ? a->partial + group * a->n : NULL;

    if (sums)
        memset(sums, 0, (size_t)a->n * sizeof *sums);
    for (int64_t row = first; row < end; row++)
        bwd_row(a, row, sums);
}

/* ------------------------------------------------------------------------------------------------------------ rope */

static void rotate_adjacent(const float *c, const float *s, int64_t pairs, float *v)
{
    for (int64_t i = 0; i < pairs; i++)
        ridge_rope_rotate(v[2 * i], v[2 * i + 1], c[i], s[i], &v[2 * i], &v[2 * i + 1]);
}

/* Columns first .. first + n of a head to the same place of out, pairs of them rotated. */
static void rope_adjacent(const rope_args *a, const char *x, char *out, int64_t first, int64_t n, const float *c,
                          const float *s)
{
    float v[PARTS];

    widen(a->x.dtype, x, first, n, v);
    if (first < a->n_rot)
        rotate_adjacent(c + first / 2, s + first / 2, n / 2, v);
    narrow(a->out.dtype, out, first, n, v);
}

/* Pairs first .. first + n of a head, an element from each half. */
static void rope_halves(const rope_args *a, const char *x, char *out, int64_t first, int64_t n, const float *c,
                        const float *s)
{
    const int64_t half = a->n_rot / 2;
    float v0[PARTS], v1[PARTS];

    widen(a->x.dtype, x, first, n, v0);
    widen(a->x.dtype, x, half + first, n, v1);
    for (int64_t i = 0; i < n; i++)
        ridge_rope_rotate(v0[i], v1[i], c[first + i], s[first + i], &v0[i], &v1[i]);
    narrow(a->out.dtype, out, first, n, v0);
    narrow(a->out.dtype, out, half + first, n, v1);
}

void RIDGE_SIMD(ridge_cpu_rope)(const rope_args *a, int64_t token, float *angles)
{
    const int64_t pos = a->pos64 ? ((const int64_t *)a->pos)[token] : ((const int32_t *)a->pos)[token];
    const int64_t pairs = a->n_rot / 2;
    float *c = angles, *s = c + pairs;

    for (int64_t i = 0; i < pairs; i++)
        ridge_rope_angle(pos, a->freqs[i], a->mscale, a->inverse, &c[i], &s[i]);
    for (int64_t h = 0; h < a->heads; h++) {
        const char *x = a->x.data + token * a->x.stride + h * a->n * a->x.size;
        char *out = a->out.data + token * a->out.stride + h * a->n * a->out.size;

        for (int64_t i = 0; i < pairs && a->halves; i += PARTS)
            rope_halves(a, x, out, i, block(pairs, i), c, s);
        for (int64_t j = 0; j < a->n_rot && !a->halves; j += PARTS)
            rope_adjacent(a, x, out, j, block(a->n_rot, j), c, s);
        for (int64_t j = a->n_rot; j < a->n; j += PARTS)
            rope_adjacent(a, x, out, j, block(a->n, j), c, s);
    }
}
