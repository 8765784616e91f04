/* shape.c: models of known shapes with random weights, made on the device without a file: for `ridge bench --model`.
 * They have no tokeniser. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lm.h"

#define TRY(expression)                       \
    do {                                      \
        const ridge_status s_ = (expression); \
        if (s_)                               \
            return s_;                        \
    } while (0)

typedef struct shape {
    const char *name, *family;
    int64_t layers, hidden, ffn, heads, kv_heads, head_dim, context;
    double base;
    int32_t vocabulary;
    bool tied; /* the output matrix is the embeddings' */
    int64_t experts, used, expert_ffn;
} shape;

static const shape shapes[] = {
    {"gpt-oss-120b:q8_0", "gpt-oss", 36, 2880, 2880, 64, 8, 64, 1 << 17, 15e4, 201088, false, 128, 4, 2880},
    {"gpt-oss-20b:q8_0", "gpt-oss", 24, 2880, 2880, 64, 8, 64, 1 << 17, 15e4, 201088, false, 32, 4, 2880},
    {"llama-3-8b:q8_0", "llama", 32, 4096, 14336, 32, 8, 128, 1 << 17, 5e5, 128256, false, 0, 0, 0},
    {"qwen3-0.6b:q8_0", "qwen3", 28, 1024, 3072, 16, 8, 128, 1 << 17, 1e6, 151936, true, 0, 0, 0},
    {"qwen3-30b-a3b:q8_0", "qwen3moe", 48, 2048, 6144, 32, 4, 128, 1 << 17, 1e6, 151936, false, 128, 8, 768},
    {"smollm2-135m:q8_0", "llama", 30, 576, 1536, 9, 3, 64, 1 << 17, 1e5, 49152, true, 0, 0, 0},
};

enum { PANEL = 1 << 24 }; /* bytes of random numbers, used again and again */

typedef struct maker {
    ridge_lm *lm;
    uint64_t *random, *scales;
    uint16_t *router;
    float *ones;
} maker;

static ridge_status fill(const maker *m, void *to, const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += PANEL)
        TRY(m->lm->backend->upload(m->lm->state, (char *)to + at, from, bytes - at < PANEL ? bytes - at : PANEL));
    return RIDGE_OK;
}

static ridge_status matrix(const maker *m, int64_t rows, int64_t cols, lm_matrix *to)
{
    const int64_t codes = rows * ridge_ld_q8_0(cols), scales = rows * (cols / 32) * 2;

    to->rows = rows;
    to->cols = cols;
    TRY(lm_take(m->lm, codes, &to->codes));
    TRY(lm_take(m->lm, scales, &to->scales));
    TRY(fill(m, to->codes, m->random, codes));
    m->lm->weight_bytes += codes + scales;
    m->lm->step_bytes += codes + scales;
    return fill(m, to->scales, m->scales, scales);
}

static ridge_status vector(const maker *m, int64_t count, float **to)
{
    TRY(lm_take(m->lm, count * 4, (void **)to));
    m->lm->step_bytes += count * 4;
    return m->lm->backend->upload(m->lm->state, *to, m->ones, count * 4);
}

/* Experts, of which a token reads some, and a router. */
static ridge_status experts(const maker *m, lm_layer *to)
{
    const lm_config *c = &m->lm->config;
    const int64_t before = m->lm->step_bytes, router = 2 * c->experts * c->hidden;

    TRY(matrix(m, c->experts * c->expert_ffn, c->hidden, &to->gate));
    TRY(matrix(m, c->experts * c->expert_ffn, c->hidden, &to->up));
    TRY(matrix(m, c->experts * c->hidden, c->expert_ffn, &to->down));
    if (c->family->oss) {
        TRY(vector(m, c->experts, &to->router_bias));
        TRY(vector(m, c->experts * c->expert_ffn, &to->gate_bias));
        TRY(vector(m, c->experts * c->expert_ffn, &to->up_bias));
        TRY(vector(m, c->experts * c->hidden, &to->down_bias));
    }
    m->lm->step_bytes = before + (m->lm->step_bytes - before) / c->experts * c->used + router;
    m->lm->weight_bytes += router;
    TRY(lm_take(m->lm, router, &to->router));
    return m->lm->backend->upload(m->lm->state, to->router, m->router, router);
}

static ridge_status layer(const maker *m, int64_t i, lm_layer *to)
{
    const lm_config *c = &m->lm->config;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    to->freqs = m->lm->freqs;
    to->mscale = 1.0f;
    TRY(vector(m, c->hidden, &to->attn_norm));
    TRY(vector(m, c->hidden, &to->ffn_norm));
    if (c->family->qk_norm) {
        TRY(vector(m, c->head_dim, &to->q_norm));
        TRY(vector(m, c->head_dim, &to->k_norm));
    }
    TRY(matrix(m, q + 2 * kv, c->hidden, &to->qkv));
    TRY(matrix(m, c->hidden, q, &to->out));
    if (c->family->oss) {
        TRY(vector(m, c->heads, &to->sinks));
        TRY(vector(m, c->hidden, &to->out_bias));
        TRY(vector(m, q + 2 * kv, &to->bias));
        to->window = i % 2 ? 0 : 128;
    }
    if (c->experts)
        return experts(m, to);
    TRY(matrix(m, c->ffn, c->hidden, &to->gate));
    TRY(matrix(m, c->ffn, c->hidden, &to->up));
    return matrix(m, c->hidden, c->ffn, &to->down);
}

static ridge_status fill_all(maker *m, const shape *s)
{
    ridge_lm *lm = m->lm;
    double freqs[RIDGE_MAX_HEAD_DIM / 2];

    TRY(lm_ridge_failed(ridge_rope_freqs(s->head_dim, s->base, NULL, freqs, &lm->mscale)));
    TRY(lm_take(lm, s->head_dim / 2 * 8, (void **)&lm->freqs));
    TRY(lm->backend->upload(lm->state, lm->freqs, freqs, s->head_dim / 2 * 8));
    TRY(vector(m, LM_MOST_TOKENS, &lm->ones));
    if (s->experts) {
        const int32_t zeros[RIDGE_MOE_MAX_TOKENS] = {0};

        TRY(lm_take(lm, sizeof zeros, (void **)&lm->zeros));
        TRY(lm->backend->upload(lm->state, lm->zeros, zeros, sizeof zeros));
    }
    for (int64_t i = 0; i < s->layers; i++)
        TRY(layer(m, i, &lm->layer[i]));
    TRY(vector(m, s->hidden, &lm->output_norm));
    TRY(matrix(m, s->vocabulary, s->hidden, &lm->head));
    lm->table = lm_planes(&lm->head);
    if (!s->tied) {
        lm_matrix table;

        TRY(matrix(m, s->vocabulary, s->hidden, &table));
        lm->step_bytes -= table.rows * (ridge_ld_q8_0(table.cols) + table.cols / 32 * 2);
        lm->table = lm_planes(&table);
    }
    return RIDGE_OK;
}

static ridge_status make(ridge_lm *lm, const shape *s)
{
    const int64_t router = s->experts * s->hidden, biases = s->experts * s->expert_ffn;
    const int64_t ones = s->hidden + s->heads * s->head_dim * 3 + LM_MOST_TOKENS + (router > biases ? router : biases);
    maker m = {lm, malloc(PANEL), malloc(PANEL), malloc((size_t)router * 2 + 2), malloc((size_t)ones * sizeof *m.ones)};
    uint64_t state = 88172645463325252u;
    ridge_status status = RIDGE_OK;

    lm->layer = calloc((size_t)s->layers, sizeof *lm->layer);
    if (!lm->layer || !m.random || !m.scales || !m.router || !m.ones)
        status = lm_fail(RIDGE_ERR_DEVICE, "no memory for a model");
    for (int64_t i = 0; i < PANEL / 8 && !status; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        m.random[i] = state;
        m.scales[i] =
            0x1000100010001000u; /* f16 2^-11: rows of 4096 random codes keep the size of what they are given */
    }
    for (int64_t i = 0; i < ones && !status; i++)
        m.ones[i] = 1.0f;
    for (int64_t i = 0; i < router && !status; i++) /* bf16 of 2^-7 in size, so that tokens go different ways */
        m.router[i] = (uint16_t)((m.random[i % (PANEL / 8)] >> 20 & 0x807f) | 0x3c00);
    status = status ? status : fill_all(&m, s);
    free(m.ones);
    free(m.router);
    free(m.scales);
    free(m.random);
    return status;
}

ridge_status lm_open_shape(const char *name, const ridge_device *device, ridge_lm **to)
{
    const shape *s = NULL;
    ridge_status status;
    ridge_lm *lm;

    *to = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0)
            s = &shapes[i];
    if (!s)
        return lm_fail(RIDGE_ERR_ARG,
                       "'%s' is no file, and no shape: gpt-oss-120b:q8_0, gpt-oss-20b:q8_0, llama-3-8b:q8_0, "
                       "qwen3-0.6b:q8_0, qwen3-30b-a3b:q8_0 and smollm2-135m:q8_0 are",
                       name);
    status = lm_begin(device, NULL, &lm);
    if (status)
        return status;
    lm->config = (lm_config){.family = lm_family_of(s->family),
                             .layers = s->layers,
                             .context = s->context,
                             .hidden = s->hidden,
                             .ffn = s->ffn,
                             .experts = s->experts,
                             .used = s->used,
                             .expert_ffn = s->expert_ffn,
                             .heads = s->heads,
                             .kv_heads = s->kv_heads,
                             .head_dim = s->head_dim,
                             .n_rot = s->head_dim,
                             .eps = 1e-5,
                             .attention_scale = 1 / sqrt((double)s->head_dim)};
    lm->vocab.count = s->vocabulary;
    status = lm->backend->start(device, &lm->state);
    lm->started = !status;
    status = status ? status : make(lm, s);
    if (status)
        ridge_lm_close(lm);
    else
        *to = lm;
    return status;
}
