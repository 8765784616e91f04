/* cpu_simd.h: one row of rms_norm or one head of head_rms_norm_rope_tail, once an instruction set.
 *
 * Plain C over 256 columns, the partials of the canonical order, written so that gcc and clang turn the loops into
 * packed instructions. x is read twice; a row of 16384 floats stays in the second cache between.
 * Compiled for: avx2, avx512. */
#include <immintrin.h>
#include <string.h>

#include "cpu.h"
#include "cpu/num.h"

enum { PARTS = RIDGE_NORM_PARTS };

/* n <= 256 elements as f32. */
static void widen(int bf16, const void *x, int64_t first, int64_t n, float *to)
{
    if (bf16) {
        uint16_t raw[PARTS];

        memcpy(raw, (const uint16_t *)x + first, (size_t)n * sizeof *raw);
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_bf16(raw[i]);
    } else {
        memcpy(to, (const float *)x + first, (size_t)n * sizeof *to);
    }
}

static void narrow(int bf16, void *out, int64_t first, int64_t n, const float *from)
{
    if (bf16) {
        uint16_t raw[PARTS];

        for (int64_t i = 0; i < n; i++)
            raw[i] = ridge_bf16_from_f32(from[i]);
        memcpy((uint16_t *)out + first, raw, (size_t)n * sizeof *raw);
    } else {
        float raw[PARTS];

        for (int64_t i = 0; i < n; i++)
            raw[i] = ridge_f32_canonical(from[i]);
        memcpy((float *)out + first, raw, (size_t)n * sizeof *raw);
    }
}

static float factor_of(const norm_args *a, const void *x)
{
    float part[PARTS], v[PARTS];

    memset(part, 0, sizeof part);
    for (int64_t j = 0; j < a->n; j += PARTS) {
        const int64_t n = a->n - j < PARTS ? a->n - j : PARTS;

        widen(a->x_bf16, x, j, n, v);
        for (int64_t i = 0; i < n; i++)
            part[i] = ridge_fma(v[i], v[i], part[i]);
    }
    for (int s = PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    return ridge_rms_factor(part[0], a->n, a->eps);
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
        widen(a->x_bf16, x, j, n, v);
        if (a->norm)
            for (int64_t i = 0; i < n; i++)
                v[i] *= factor;
        if (a->w) {
            widen(a->w_bf16, a->w, j, n, w);
            for (int64_t i = 0; i < n; i++)
                v[i] *= w[i];
        }
        if (j >= tail)
            for (int64_t i = 0; i < n; i += 2) {
                const int64_t pair = (j - tail + i) / 2;

                ridge_rope_rotate(v[i], v[i + 1], c[pair], s[pair], &v[i], &v[i + 1]);
            }
        narrow(a->out_bf16, out, j, n, v);
    }
}
