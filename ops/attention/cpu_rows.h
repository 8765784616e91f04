/* cpu_rows.h: what the reference and the instruction sets have in common, plain C that each compiles for itself: a
 * token of kv_append, and the merging of attention's pieces. The rows of kv_append differ by the instructions only. */
#ifndef RIDGE_CPU_ATTENTION_ROWS_H
#define RIDGE_CPU_ATTENTION_ROWS_H

#include <math.h>

#include "cpu.h"
#include "cpu/num.h"

static inline void row_load(int bf16, const char *from, int64_t n, float *to)
{
    if (bf16)
        for (int64_t i = 0; i < n; i++)
            to[i] = ridge_f32_from_bf16(((const uint16_t *)(const void *)from)[i]);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

static inline void row_store(int bf16, char *to, int64_t n, const float *from)
{
    if (bf16)
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)(void *)to)[i] = ridge_bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)(void *)to)[i] = ridge_f32_canonical(from[i]);
}

/* q8_0_quantize of a row. */
static inline void row_store_blocks(char *to, int64_t n, const float *from)
{
    for (int64_t b = 0; b < n; b += RIDGE_Q8_0_BLOCK, to += RIDGE_Q8_0_BYTES) {
        uint32_t amax = 0;
        uint16_t half;
        float r;

        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            amax = ridge_magnitude(from[b + i]) > amax ? ridge_magnitude(from[b + i]) : amax;
        half = ridge_f16_from_f32(ridge_q8_0_scale(amax, &r));
        memcpy(to, &half, 2);
        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            to[2 + i] = (char)ridge_q8_0_code(from[b + i] * r);
    }
}

static inline void row_store_cache(uint32_t dtype, char *to, int64_t n, const float *from)
{
    if (dtype == RIDGE_U8)
        row_store_blocks(to, n, from);
    else if (dtype == RIDGE_BF16)
        row_store(1, to, n, from);
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)(void *)to)[i] = ridge_f16_from_f32(from[i]);
}

/* rms_norm's order of one head. */
static inline void head_norm(const append_args *a, const float *w, float *y)
{
    float part[RIDGE_NORM_PARTS] = {0}, factor;

    for (int64_t j = 0; j < a->n; j += RIDGE_NORM_PARTS)
        for (int64_t i = 0; i < ridge_min(a->n - j, RIDGE_NORM_PARTS); i++)
            part[i] = ridge_fma(y[j + i], y[j + i], part[i]);
    for (int s = RIDGE_NORM_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    factor = ridge_rms_factor(part[0], a->n, a->eps);
    for (int64_t i = 0; i < a->n; i++)
        y[i] = y[i] * factor * w[i];
}

static inline void head_turn(const append_args *a, const float *c, const float *s, float *y)
{
    const int64_t pairs = a->n_rot / 2;

    if (a->halves)
        for (int64_t i = 0; i < pairs; i++) {
            const float y0 = y[i], y1 = y[i + pairs];

            ridge_rope_rotate(y0, y1, c[i], s[i], &y[i], &y[i + pairs]);
        }
    else
        for (int64_t i = 0; i < pairs; i++) {
            const float y0 = y[2 * i], y1 = y[2 * i + 1];

            ridge_rope_rotate(y0, y1, c[i], s[i], &y[2 * i], &y[2 * i + 1]);
        }
}

static inline void append_one_head(const append_args *a, int64_t t, int64_t h, const float *c, const float *s)
{
    const int64_t pos = a->pos[t], kv = h - a->heads, first = h * a->n;
    const bool is_v = kv >= a->kv_heads;
    const float *w = kv < 0 ? a->q_norm : is_v ? NULL : a->k_norm;
    float y[RIDGE_MAX_HEAD_DIM];

    if (kv >= 0 && (pos < 0 || pos >= a->positions))
        return;
    row_load(a->x_bf16, a->x + t * a->x_stride + first * (a->x_bf16 ? 2 : 4), a->n, y);
    if (a->bias)
        for (int64_t i = 0; i < a->n; i++)
            y[i] += a->bias[first + i];
    if (w)
        head_norm(a, w, y);
    if (!is_v)
        head_turn(a, c, s, y);
    if (kv < 0)
        row_store(a->out_bf16, a->out + t * a->out_stride + first * (a->out_bf16 ? 2 : 4), a->n, y);
    else
        row_store_cache(a->kv,
                        (is_v ? a->v + (kv - a->kv_heads) * a->v_stride : a->k + kv * a->k_stride) + pos * a->kv_row,
                        a->n, y);
}

/* Where the o of a piece begins; m and l follow it. */
static inline float *piece_at(const attention_args *a, int64_t t, int64_t head, int64_t piece)
{
    return a->pieces + ((t * a->heads + head) * attention_pieces_of(a->positions) + piece) * (a->n + 2);
}

static inline void merge_pieces(const attention_args *a, int64_t t, int64_t head)
{
    int64_t first, end, last;
    float o[RIDGE_MAX_HEAD_DIM] = {0}, top = -INFINITY, sum = 0.0f, factor;

    attention_range(a, a->pos[t], &first, &end);
    last = first < end ? attention_pieces_of(end) : 0;
    first /= RIDGE_ATTENTION_PIECE;
    for (int64_t i = first; i < last; i++)
        top = ridge_attention_max(top, piece_at(a, t, head, i)[a->n]);
    if (a->sinks)
        top = ridge_attention_max(top, a->sinks[head]);
    for (int64_t i = first; i < last; i++) {
        const float *piece = piece_at(a, t, head, i);
        const float w = ridge_exp_neg(top - piece[a->n]);

        sum = ridge_fma(w, piece[a->n + 1], sum);
        for (int64_t j = 0; j < a->n; j++)
            o[j] = ridge_fma(w, piece[j], o[j]);
    }
    if (a->sinks)
        sum += ridge_attention_weight(top, a->sinks[head]);
    factor = ridge_attention_factor(sum);
    for (int64_t j = 0; j < a->n; j++)
        o[j] *= factor;
    row_store(a->out_bf16, a->out + t * a->out_stride + head * a->n * (a->out_bf16 ? 2 : 4), a->n, o);
}

#endif
