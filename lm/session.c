/* session.c: a text: its cache, the calls of a step, and the panels that a prompt goes through in.
 *
 * A step of up to 16 tokens, in each layer: rms_norm, the product with q|k|v, kv_append, attention_decode, the product
 * with the output's weights added to the residual, rms_norm, gate_up_swiglu, the product with down added to the
 * residual. q8_0_matmul_hc_expand with one stream and factors of 1 is a product added to a residual. */
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

enum { TOKENS = RIDGE_Q8_0_MAX_TOKENS, GRAPHS = 64 };

/* A captured step: of `tokens` tokens with logits of `rows` of them, in a cache of at most `positions`. */
typedef struct step_graph {
    void *graph;
    int64_t tokens, rows, positions;
} step_graph;

struct ridge_lm_session {
    ridge_lm *lm;
    int64_t positions, at;
    char *k, *v; /* [layers][kv_heads][positions][head_dim] f16 */
    float *x[2], *normed, *branch, *qkv, *q, *heads, *wide, *logits;
    int32_t *pos;
    void *workspace;
    int64_t workspace_bytes;
    float *host_x, *host_logits;
    step_graph graph[GRAPHS];
    int graphs;
};

/* ------------------------------------------------------------------------------------------------------------ a step
 */

/* What a step does with its calls: measure the workspace or run them. */
typedef ridge_status on_call(ridge_lm_session *s, const ridge_call *call);

typedef struct step {
    ridge_lm_session *s;
    on_call *each;
    int64_t n, rows, positions; /* tokens; the last so many get logits; of the cache that attention sees */
    int now;                    /* which of x holds the residual */
} step;

static ridge_tensor f32(const float *data)
{
    return ridge_matrix(data, RIDGE_F32);
}

static ridge_tensor planes(const lm_matrix *m)
{
    ridge_tensor t = ridge_scaled(m->codes, RIDGE_I8, m->scales, RIDGE_SCALING_ROW32);

    t.stride = ridge_ld_q8_0(m->cols);
    return t;
}

/* The model's weights are not written while it is open. */
static ridge_status weights_call(const step *p, ridge_call *call)
{
    call->flags |= RIDGE_WEIGHTS_CONST;
    return p->each(p->s, call);
}

static ridge_status norm(const step *p, const float *x, const float *w, int64_t rows, float *out)
{
    ridge_call call = ridge_rms_norm(rows, p->s->lm->config.hidden, f32(x), f32(w), f32(out));

    call.opt.norm.eps = (float)p->s->lm->config.eps;
    return p->each(p->s, &call);
}

static ridge_status product(const step *p, const lm_matrix *m, const float *x, int64_t rows, float *out)
{
    ridge_call call = ridge_q8_0_matmul(rows, m->cols, m->rows, f32(x), planes(m), f32(out));

    return weights_call(p, &call);
}

/* residual += m x, into the other buffer; with a norm between product and sum where the family has one. */
static ridge_status add_product(step *p, const lm_matrix *m, const float *x, const float *post_norm)
{
    ridge_lm_session *s = p->s;
    const float *ones = s->lm->ones, *residual = s->x[p->now];
    ridge_call call;

    p->now ^= 1;
    if (!post_norm) {
        call = ridge_q8_0_matmul_hc_expand(p->n, m->cols, m->rows, 1, f32(x), planes(m), ones, ones, residual,
                                           s->x[p->now]);
        return weights_call(p, &call);
    }
    TRY(product(p, m, x, p->n, s->branch));
    TRY(norm(p, s->branch, post_norm, p->n, s->normed));
    /* A product of no columns is zero: what is left of the op is the sum of two matrices. */
    call = ridge_q8_0_matmul_hc_expand(p->n, 0, m->rows, 1, f32(x), planes(m), ones, ones, residual, s->x[p->now]);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD, RIDGE_F32, s->normed, 0);
    return p->each(s, &call);
}

static ridge_status attention(step *p, int64_t i)
{
    ridge_lm_session *s = p->s;
    const lm_config *c = &s->lm->config;
    const lm_layer *l = &s->lm->layer[i];
    const int64_t size = c->kv_heads * s->positions * c->head_dim * 2;
    ridge_tensor k = ridge_matrix(s->k + i * size, RIDGE_F16), v = ridge_matrix(s->v + i * size, RIDGE_F16);
    ridge_call call;

    k.stride = v.stride = s->positions * c->head_dim;
    TRY(norm(p, s->x[p->now], l->attn_norm, p->n, s->normed));
    TRY(product(p, &l->qkv, s->normed, p->n, s->qkv));
    call = ridge_kv_append(p->n, c->heads, c->kv_heads, c->head_dim, p->positions, f32(s->qkv), s->pos, l->freqs,
                           f32(s->q), k, v);
    call.flags |= c->family->halves ? RIDGE_ROPE_HALVES : 0;
    call.opt.kv_append.n_rot = c->n_rot;
    call.opt.kv_append.eps = (float)c->eps;
    call.opt.kv_append.mscale = l->mscale;
    ridge_set(&call, RIDGE_KV_APPEND_BIAS, l->bias ? RIDGE_F32 : RIDGE_NONE, l->bias, 0);
    ridge_set(&call, RIDGE_KV_APPEND_Q_NORM, l->q_norm ? RIDGE_F32 : RIDGE_NONE, l->q_norm, 0);
    ridge_set(&call, RIDGE_KV_APPEND_K_NORM, l->k_norm ? RIDGE_F32 : RIDGE_NONE, l->k_norm, 0);
    TRY(p->each(s, &call));
    call = ridge_attention_decode(p->n, c->heads, c->kv_heads, c->head_dim, p->positions, f32(s->q), k, v, s->pos,
                                  f32(s->heads));
    call.opt.attention.scale = (float)c->attention_scale;
    call.opt.attention.window = l->window;
    TRY(p->each(s, &call));
    return add_product(p, &l->out, s->heads, l->post_attn_norm);
}

static ridge_status feed_forward(step *p, int64_t i)
{
    ridge_lm_session *s = p->s;
    const lm_layer *l = &s->lm->layer[i];
    ridge_call call;

    TRY(norm(p, s->x[p->now], l->ffn_norm, p->n, s->normed));
    call = ridge_q8_0_gate_up_swiglu(p->n, l->gate.cols, l->gate.rows, f32(s->normed), planes(&l->gate), planes(&l->up),
                                     f32(s->wide));
    call.flags |= s->lm->config.family->gelu ? RIDGE_GELU_TANH : RIDGE_SILU;
    TRY(weights_call(p, &call));
    return add_product(p, &l->down, s->wide, l->post_ffw_norm);
}

static ridge_status all_calls(step *p)
{
    ridge_lm_session *s = p->s;
    const int64_t hidden = s->lm->config.hidden;

    p->now = 0;
    for (int64_t i = 0; i < s->lm->config.layers; i++) {
        TRY(attention(p, i));
        TRY(feed_forward(p, i));
    }
    if (!p->rows)
        return RIDGE_OK;
    TRY(norm(p, s->x[p->now] + (p->n - p->rows) * hidden, s->lm->output_norm, p->rows, s->normed));
    return product(p, &s->lm->head, s->normed, p->rows, s->logits);
}

static ridge_status measure(ridge_lm_session *s, const ridge_call *call)
{
    size_t bytes;

    TRY(lm_ridge_failed(ridge_workspace_bytes(s->lm->device, call, &bytes)));
    s->workspace_bytes = (int64_t)bytes > s->workspace_bytes ? (int64_t)bytes : s->workspace_bytes;
    return RIDGE_OK;
}

static ridge_status run(ridge_lm_session *s, const ridge_call *call)
{
    return lm_ridge_failed(
        ridge_run(s->lm->device, call, s->workspace, (size_t)s->workspace_bytes, s->lm->backend->stream(s->lm->state)));
}

/* ------------------------------------------------------------------------------------------------------------ graphs
 */

/* Positions that attention is launched for: a power of two, so that a graph serves many steps. */
static int64_t reach(const ridge_lm_session *s, int64_t end)
{
    int64_t positions = 256;

    while (positions < end)
        positions *= 2;
    return positions < s->positions ? positions : s->positions;
}

static void drop_graphs(ridge_lm_session *s)
{
    for (int i = 0; i < s->graphs; i++)
        s->lm->backend->graph_free(s->lm->state, s->graph[i].graph);
    s->graphs = 0;
}

static ridge_status run_step(step *p)
{
    ridge_lm_session *s = p->s;
    const lm_backend *b = s->lm->backend;
    step_graph *g = s->graph;
    ridge_status status;

    p->each = run;
    if (!b->graph_begin)
        return all_calls(p);
    while (g < s->graph + s->graphs && !(g->tokens == p->n && g->rows == p->rows && g->positions == p->positions))
        g++;
    if (g < s->graph + s->graphs)
        return b->graph_launch(s->lm->state, g->graph);
    if (s->graphs == GRAPHS)
        drop_graphs(s);
    g = &s->graph[s->graphs];
    TRY(b->graph_begin(s->lm->state));
    status = all_calls(p);
    *g = (step_graph){NULL, p->n, p->rows, p->positions};
    if (status) {
        void *unused = NULL;

        if (!b->graph_end(s->lm->state, &unused))
            b->graph_free(s->lm->state, unused);
        return status;
    }
    TRY(b->graph_end(s->lm->state, &g->graph));
    s->graphs++;
    return b->graph_launch(s->lm->state, g->graph);
}

/* --------------------------------------------------------------------------------------------------------- sessions */

typedef struct buffer {
    void *at; /* address of the pointer */
    int64_t bytes;
} buffer;

static int buffers_of(ridge_lm_session *s, buffer *list)
{
    const lm_config *c = &s->lm->config;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const buffer all[] = {{&s->k, c->layers * kv * s->positions * 2},
                          {&s->v, c->layers * kv * s->positions * 2},
                          {&s->x[0], TOKENS * c->hidden * 4},
                          {&s->x[1], TOKENS * c->hidden * 4},
                          {&s->normed, TOKENS * c->hidden * 4},
                          {&s->branch, TOKENS * c->hidden * 4},
                          {&s->qkv, TOKENS * (q + 2 * kv) * 4},
                          {&s->q, TOKENS * q * 4},
                          {&s->heads, TOKENS * q * 4},
                          {&s->wide, TOKENS * c->ffn * 4},
                          {&s->logits, TOKENS * (int64_t)s->lm->vocab.count * 4},
                          {&s->pos, TOKENS * 4},
                          {&s->workspace, s->workspace_bytes}};

    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof all[0]);
}

static ridge_status allocate(ridge_lm_session *s)
{
    const lm_backend *b = s->lm->backend;
    const int64_t there = b->free_bytes(s->lm->state);
    step p = {s, measure, TOKENS, TOKENS, s->positions, 0};
    int64_t sum = 0;
    buffer list[16];
    int count = buffers_of(s, list);

    /* ridge_workspace_bytes looks at alignment only: any address that is no NULL serves to measure. */
    for (int i = 0; i < count; i++)
        *(void **)list[i].at = (void *)(uintptr_t)((uint64_t)(i + 1) << 42);
    TRY(all_calls(&p));
    p.n = p.rows = 1;
    TRY(all_calls(&p));
    count = buffers_of(s, list);
    for (int i = 0; i < count; i++) {
        *(void **)list[i].at = NULL;
        sum += list[i].bytes;
    }
    if (there && sum > there)
        return lm_fail(RIDGE_ERR_DEVICE, "a text of %" PRId64 " positions takes %.1f MB, and there are %.1f MB",
                       s->positions, (double)sum * 1e-6, (double)there * 1e-6);
    for (int i = 0; i < count; i++)
        TRY(b->alloc(s->lm->state, list[i].bytes ? list[i].bytes : 1, list[i].at));
    s->host_x = malloc((size_t)(TOKENS * s->lm->config.hidden) * sizeof(float));
    return s->host_x ? RIDGE_OK : lm_fail(RIDGE_ERR_DEVICE, "no memory for a session");
}

ridge_status ridge_lm_session_open(ridge_lm *lm, int64_t positions, ridge_lm_session **to)
{
    ridge_lm_session *s;
    ridge_status status;

    if (to)
        *to = NULL;
    if (!lm || !to || positions < 1 || positions > 1 << 24)
        return lm_fail(RIDGE_ERR_ARG,
                       "ridge_lm_session_open: a pointer is NULL, or positions is %" PRId64 ", outside 1 .. 2^24",
                       positions);
    s = calloc(1, sizeof *s);
    if (!s)
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for a session");
    s->lm = lm;
    s->positions = positions;
    status = allocate(s);
    if (status)
        ridge_lm_session_close(s);
    else
        *to = s;
    return status;
}

void ridge_lm_session_close(ridge_lm_session *s)
{
    buffer list[16];
    int count;

    if (!s)
        return;
    if (s->lm->backend->graph_free)
        drop_graphs(s);
    count = buffers_of(s, list);
    for (int i = 0; i < count; i++)
        if (*(void **)list[i].at)
            s->lm->backend->release(s->lm->state, *(void **)list[i].at);
    free(s->host_x);
    free(s);
}

int64_t ridge_lm_position(const ridge_lm_session *s)
{
    return s ? s->at : 0;
}

ridge_status ridge_lm_rewind(ridge_lm_session *s, int64_t position)
{
    if (!s || position < 0 || position > s->at)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_rewind: to position %" PRId64 " of %" PRId64, position, s ? s->at : 0);
    s->at = position;
    return RIDGE_OK;
}

/* Up to 16 tokens at position `at`; logits of the last `rows` of them. */
static ridge_status panel(ridge_lm_session *s, const int32_t *tokens, int64_t n, int64_t at, int64_t rows,
                          float *logits)
{
    const lm_backend *b = s->lm->backend;
    void *state = s->lm->state;
    step p = {s, run, n, rows, reach(s, at + n), 0};
    int32_t pos[TOKENS];

    for (int64_t i = 0; i < n; i++)
        pos[i] = (int32_t)(at + i);
    TRY(lm_embed(s->lm, tokens, n, s->host_x));
    TRY(b->upload(state, s->pos, pos, n * 4));
    TRY(b->upload(state, s->x[0], s->host_x, n * s->lm->config.hidden * 4));
    TRY(run_step(&p));
    if (rows)
        TRY(b->download(state, logits, s->logits, rows * s->lm->vocab.count * 4));
    for (int64_t i = 0; i < rows * s->lm->vocab.count && s->lm->config.final_softcap > 0; i++)
        logits[i] = (float)s->lm->config.final_softcap * tanhf(logits[i] / (float)s->lm->config.final_softcap);
    return RIDGE_OK;
}

ridge_status ridge_lm_decode(ridge_lm_session *s, const int32_t *tokens, int64_t count, uint32_t flags, float *logits)
{
    if (!s || !tokens || count < 1 || flags & ~RIDGE_LM_ALL)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_decode: a pointer is NULL, count is %" PRId64 ", or a flag is unknown",
                       count);
    if (count > s->positions - s->at)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_decode: %" PRId64 " tokens at position %" PRId64 " of %" PRId64, count,
                       s->at, s->positions);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= s->lm->vocab.count)
            return lm_fail(RIDGE_ERR_ARG, "ridge_lm_decode: token %" PRId64 " is %d, outside 0 .. %d", i, tokens[i],
                           s->lm->vocab.count - 1);
    for (int64_t i = 0, n; i < count; i += n) {
        const bool all = logits && flags & RIDGE_LM_ALL;

        n = count - i < TOKENS ? count - i : TOKENS;
        TRY(panel(s, tokens + i, n, s->at + i, all ? n : logits && i + n == count,
                  all ? logits + i * s->lm->vocab.count : logits));
    }
    s->at += count;
    return RIDGE_OK;
}
