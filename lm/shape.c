/* shape.c: models of known shapes with random weights, made on the device without a file: for `ridge bench --model`.
 * They have no tokeniser. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

typedef struct shape {
    const char *name, *family;
    int64_t layers, hidden, ffn, heads, kv_heads, head_dim, context;
    double base;
    int32_t vocabulary;
    bool tied; /* the output matrix is the embeddings' */
    int64_t experts, used, expert_ffn;
} shape;

static const shape shapes[] = {
    {"gpt-oss-120b", "gpt-oss", 36, 2880, 2880, 64, 8, 64, 1 << 17, 15e4, 201088, false, 128, 4, 2880},
    {"gpt-oss-20b", "gpt-oss", 24, 2880, 2880, 64, 8, 64, 1 << 17, 15e4, 201088, false, 32, 4, 2880},
    {"llama-3-8b", "llama", 32, 4096, 14336, 32, 8, 128, 1 << 17, 5e5, 128256, false, 0, 0, 0},
    {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 1 << 17, 5e5, 128256, true, 0, 0, 0},
    {"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 1 << 17, 1e6, 151936, true, 0, 0, 0},
    {"qwen3-30b-a3b", "qwen3moe", 48, 2048, 6144, 32, 4, 128, 1 << 17, 1e6, 151936, false, 128, 8, 768},
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 1 << 17, 1e5, 49152, true, 0, 0, 0},
};

/* Formats of weights: of most; of v and down in the layers where llama.cpp's mixes give more bits, and of the head; of
 * experts. */
typedef struct form {
    const char *name;
    ridge_dtype most, more, experts;
} form;

static const form forms[] = {
    {"q8_0", RIDGE_I8, RIDGE_I8, RIDGE_I8},         {"q4_0", RIDGE_Q4_0, RIDGE_Q4_0, RIDGE_Q4_0},
    {"q4_1", RIDGE_Q4_1, RIDGE_Q4_1, RIDGE_Q4_1},   {"q4_k_m", RIDGE_Q4_K, RIDGE_Q6_K, RIDGE_Q4_K},
    {"q5_k_m", RIDGE_Q5_K, RIDGE_Q6_K, RIDGE_Q5_K}, {"q6_k", RIDGE_Q6_K, RIDGE_Q6_K, RIDGE_Q6_K},
    {"q2_k", RIDGE_Q2_K, RIDGE_Q2_K, RIDGE_Q2_K},   {"iq2_xxs", RIDGE_IQ2_XXS, RIDGE_IQ2_XXS, RIDGE_IQ2_XXS},
    {"mxfp4", RIDGE_I8, RIDGE_I8, RIDGE_MXFP4},
};

/* How a block begins that random bytes fill: bytes from `at` on, so that rows of some thousand random weights keep the
 * size of what they are given. */
typedef struct head {
    ridge_dtype format;
    int columns, bytes, at, count;
    unsigned char byte[4];
} head;

static const head heads[] = {
    {RIDGE_Q4_0, 32, 18, 0, 2, {0x00, 0x20}},               /* d 2^-7 */
    {RIDGE_Q4_1, 32, 20, 0, 4, {0x00, 0x20, 0x80, 0xab}},   /* d 2^-7, m -7.5 d */
    {RIDGE_MXFP4, 32, 17, 0, 1, {121}},                     /* 2^-7 */
    {RIDGE_Q2_K, 256, 84, 80, 4, {0x00, 0x18, 0x00, 0x1c}}, /* d 2^-9, dmin 2^-8 */
    {RIDGE_Q4_K, 256, 144, 0, 4, {0x00, 0x08, 0x00, 0x14}}, /* d 2^-13, dmin 2^-10 */
    {RIDGE_Q5_K, 256, 176, 0, 4, {0x00, 0x04, 0x00, 0x14}}, /* d 2^-14, dmin 2^-10 */
    {RIDGE_Q6_K, 256, 210, 208, 2, {0x00, 0x02}},           /* d 2^-15 */
    {RIDGE_IQ2_XXS, 256, 66, 0, 2, {0x00, 0x14}},           /* d 2^-10 */
};

enum { PANEL = 1 << 24, TILES = 64 }; /* bytes of random numbers, and tiles, that are used again and again */

typedef struct maker {
    ridge_lm *lm;
    const form *form;
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

/* Random tiles: some of them, copied. */
static ridge_status fill_tiles(const maker *m, const lm_matrix *to, int64_t bytes)
{
    const lm_backend *backend = m->lm->backend;
    const int64_t some = to->rows < 16 * TILES ? to->rows : 16 * TILES;
    const int64_t first = lm_code_bytes(to->format, some, to->cols, true);
    unsigned char *blocks = NULL, *tiles = malloc((size_t)first);
    ridge_status status = RIDGE_OK;
    const head *h = heads;
    ridge_call call;

    while (h->format != to->format)
        h++;
    blocks = malloc((size_t)(some * (to->cols / h->columns) * h->bytes));
    if (!blocks || !tiles)
        status = lm_fail(RIDGE_ERR_DEVICE, "no memory for a model");
    for (int64_t i = 0; i < some * (to->cols / h->columns) && !status; i++) {
        memcpy(blocks + i * h->bytes, (char *)m->random + i * h->bytes % (PANEL / 2), (size_t)h->bytes);
        memcpy(blocks + i * h->bytes + h->at, h->byte, (size_t)h->count);
    }
    call = ridge_block_repack(some, to->cols, blocks, ridge_matrix(tiles, to->format));
    status = status ? status : lm_ridge_failed(ridge_run(m->lm->cpu, &call, NULL, 0, NULL));
    status = status ? status : backend->upload(m->lm->state, to->codes, tiles, first);
    for (int64_t at = first; at < bytes && !status; at *= 2)
        status = backend->copy(m->lm->state, (char *)to->codes + at, to->codes, at < bytes - at ? at : bytes - at);
    free(tiles);
    free(blocks);
    return status;
}

static ridge_status matrix(const maker *m, ridge_dtype format, int64_t rows, int64_t cols, lm_matrix *to)
{
    const int64_t codes = lm_code_bytes(format, rows, cols, false), scales = lm_scale_bytes(format, rows, cols);

    *to = (lm_matrix){.format = format, .rows = rows, .cols = cols};
    if (!codes)
        return lm_fail(RIDGE_ERR_ARG, "the shape has rows of %" PRId64 " columns, which blocks of 256 do not divide",
                       cols);
    m->lm->weight_bytes += codes + scales;
    m->lm->step_bytes += codes + scales;
    TRY(lm_take(m->lm, codes, &to->codes));
    if (format != RIDGE_I8)
        return fill_tiles(m, to, codes);
    TRY(lm_take(m->lm, scales, &to->scales));
    TRY(fill(m, to->codes, m->random, codes));
    return fill(m, to->scales, m->scales, scales);
}

static ridge_status vector(const maker *m, int64_t count, float **to)
{
    TRY(lm_take(m->lm, count * 4, (void **)to));
    m->lm->step_bytes += count * 4;
    return m->lm->backend->upload(m->lm->state, *to, m->ones, count * 4);
}

/* Whether layer i is one of those that llama.cpp's mixes give more bits: the first eighth, the last, and every third
 * between them. */
static bool more_bits(int64_t i, int64_t layers)
{
    return i < layers / 8 || i >= 7 * layers / 8 || (i - layers / 8) % 3 == 2;
}

static ridge_status qkv(const maker *m, ridge_dtype v, int64_t q_rows, int64_t kv_rows, lm_layer *to)
{
    const int64_t hidden = m->lm->config.hidden;

    if (v == m->form->most)
        return matrix(m, v, q_rows + 2 * kv_rows, hidden, &to->qkv[0]);
    TRY(matrix(m, m->form->most, q_rows + kv_rows, hidden, &to->qkv[0]));
    return matrix(m, v, kv_rows, hidden, &to->qkv[1]);
}

/* Experts, of which a token reads some, and a router. */
static ridge_status experts(const maker *m, ridge_dtype down, lm_layer *to)
{
    const lm_config *c = &m->lm->config;
    const int64_t before = m->lm->step_bytes, router = 2 * c->experts * c->hidden;

    TRY(matrix(m, m->form->experts, c->experts * c->expert_ffn, c->hidden, &to->gate));
    TRY(matrix(m, m->form->experts, c->experts * c->expert_ffn, c->hidden, &to->up));
    TRY(matrix(m, down, c->experts * c->hidden, c->expert_ffn, &to->down));
    if (c->family->oss) {
        TRY(vector(m, c->experts, &to->router_bias));
        TRY(vector(m, c->experts * c->expert_ffn, &to->gate_bias));
        TRY(vector(m, c->experts * c->expert_ffn, &to->up_bias));
        TRY(vector(m, c->experts * c->hidden, &to->down_bias));
    }
    m->lm->step_bytes = before + (m->lm->step_bytes - before) / c->experts * c->used + router;
    m->lm->weight_bytes += router;
    to->router_dtype = RIDGE_BF16;
    TRY(lm_take(m->lm, router, &to->router));
    return m->lm->backend->upload(m->lm->state, to->router, m->router, router);
}

static ridge_status layer(const maker *m, int64_t i, lm_layer *to)
{
    const lm_config *c = &m->lm->config;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const form *f = m->form;
    const bool more = more_bits(i, c->layers) && f->more != f->most;

    to->freqs = m->lm->freqs;
    to->mscale = 1.0f;
    TRY(vector(m, c->hidden, &to->attn_norm));
    TRY(vector(m, c->hidden, &to->ffn_norm));
    if (c->family->qk_norm) {
        TRY(vector(m, c->head_dim, &to->q_norm));
        TRY(vector(m, c->head_dim, &to->k_norm));
    }
    TRY(qkv(m, more ? f->more : f->most, q, kv, to));
    TRY(matrix(m, f->most, c->hidden, q, &to->out));
    if (c->family->oss) {
        TRY(vector(m, c->heads, &to->sinks));
        TRY(vector(m, c->hidden, &to->out_bias));
        TRY(vector(m, q + 2 * kv, &to->bias));
        to->window = i % 2 ? 0 : 128;
    }
    if (c->experts)
        return experts(m, more ? f->more : f->experts, to);
    TRY(matrix(m, f->most, c->ffn, c->hidden, &to->gate));
    TRY(matrix(m, f->most, c->ffn, c->hidden, &to->up));
    return matrix(m, more ? f->more : f->most, c->hidden, c->ffn, &to->down);
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
    TRY(matrix(m, m->form->more, s->vocabulary, s->hidden, &lm->head));
    lm->table = lm_weights(&lm->head);
    if (!s->tied || m->form->more == RIDGE_IQ2_XXS) { /* embed has no tables of that */
        const ridge_dtype format = m->form->most == RIDGE_IQ2_XXS ? RIDGE_I8 : m->form->most;
        const int64_t step_bytes = lm->step_bytes;
        lm_matrix table;

        TRY(matrix(m, format, s->vocabulary, s->hidden, &table));
        lm->step_bytes = step_bytes; /* a step reads one row */
        lm->table = lm_weights(&table);
    }
    return RIDGE_OK;
}

static ridge_status make(ridge_lm *lm, const shape *s, const form *f)
{
    const int64_t router = s->experts * s->hidden, biases = s->experts * s->expert_ffn;
    const int64_t ones = s->hidden + s->heads * s->head_dim * 3 + LM_MOST_TOKENS + (router > biases ? router : biases);
    maker m = {
        lm, f, malloc(PANEL), malloc(PANEL), malloc((size_t)router * 2 + 2), malloc((size_t)ones * sizeof *m.ones)};
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

/* "llama-3-8b:q4_k_m" as a shape and a form. */
static ridge_status find(const char *name, const shape **s, const form **f)
{
    const char *colon = strchr(name, ':');
    const size_t length = colon ? (size_t)(colon - name) : strlen(name);
    char list[512] = "";

    *s = NULL;
    *f = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list), " %s", shapes[i].name);
        if (strlen(shapes[i].name) == length && strncmp(shapes[i].name, name, length) == 0)
            *s = &shapes[i];
    }
    if (*s)
        list[0] = 0;
    else
        snprintf(list + strlen(list), sizeof list - strlen(list), "; with");
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list), " :%s", forms[i].name);
        if (colon && strcmp(forms[i].name, colon + 1) == 0)
            *f = &forms[i];
    }
    if (*s && *f)
        return RIDGE_OK;
    return *s ? lm_fail(RIDGE_ERR_ARG, "'%s' is a shape; behind it belongs one of%s", name, list)
              : lm_fail(RIDGE_ERR_ARG, "'%s' is no file, and no shape: there are%s", name, list);
}

ridge_status lm_open_shape(const char *name, const ridge_device *device, ridge_lm **to)
{
    const shape *s;
    const form *f;
    ridge_status status;
    ridge_lm *lm;

    *to = NULL;
    TRY(find(name, &s, &f));
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
    status = status ? status : lm_ridge_failed(ridge_open("cpu", &lm->cpu));
    status = status ? status : make(lm, s, f);
    if (status)
        ridge_lm_close(lm);
    else
        *to = lm;
    return status;
}
