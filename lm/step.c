/* step.c: the calls of a step, its memory, and the graphs that it becomes.
 *
 * A step of up to 512 tokens: embed; in each layer the norm and the product with q|k|v in one call, kv_append and
 * attention_decode for every session, the product with the output's weights added to the residual, the norm and
 * gate_up_swiglu, the product with down added to the residual; then the norm and the head, and sample.
 * Tokens of a prompt may have attention_prefill instead (RIDGE_LM_FAST).
 * In a graph, kv_append and attention_decode of several sessions are branches that run side by side.
 * q8_0_matmul_hc_expand with one stream and factors of 1 is a product added to a residual. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

typedef struct work work;

/* What a step does with its calls: measure the workspace or run them. */
typedef ridge_status on_call(const work *w, const ridge_call *call);

struct work {
    lm_batch *b;
    on_call *each;
    const lm_step *s;
    int now;  /* which of x holds the residual */
    int lane; /* the branch of the graph that calls go to; -1: its trunk */
};

static ridge_status measure(const work *w, const ridge_call *call)
{
    int64_t *most = &w->b->workspace_bytes[w->s->tokens > 1];
    size_t bytes;

    LM_TRY(lm_ridge_failed(ridge_workspace_bytes(w->b->lm->device, call, &bytes)));
    *most = (int64_t)bytes > *most ? (int64_t)bytes : *most;
    return RIDGE_OK;
}

/* Every branch has a stream and a workspace of its own, behind that of the trunk. */
static ridge_status run(const work *w, const ridge_call *call)
{
    const lm_batch *b = w->b;
    const int64_t trunk = b->workspace_bytes[1], branch = b->workspace_bytes[0];
    char *workspace = (char *)b->workspace + (w->lane < 0 ? 0 : trunk + w->lane * branch);

    return lm_ridge_failed(ridge_run(b->lm->device, call, workspace, (size_t)(w->lane < 0 ? trunk : branch),
                                     b->lm->backend->stream(b->state, w->lane)));
}

static ridge_tensor f32(const float *data)
{
    return ridge_matrix(data, RIDGE_F32);
}

/* Quantised activations of `cols` columns, from token `first` on. */
static ridge_tensor codes(const lm_batch *b, int64_t first, int64_t cols)
{
    return ridge_scaled(b->codes + first * cols, RIDGE_I8, b->scales + first * (cols / 32), RIDGE_SCALING_ROW32);
}

/* The model's weights are not written while it is open. */
static ridge_status weights_call(const work *w, ridge_call *call)
{
    call->flags |= RIDGE_WEIGHTS_CONST;
    return w->each(w, call);
}

static ridge_status norm(const work *w, const float *x, const float *weight, int64_t rows, ridge_tensor out)
{
    ridge_call call = ridge_add_rms_norm(rows, w->b->lm->config.hidden, f32(x), (ridge_tensor){0}, f32(weight),
                                         (ridge_tensor){0}, out);

    call.opt.norm.eps = (float)w->b->lm->config.eps;
    return weights_call(w, &call);
}

/* The codes of a norm. */
static ridge_status norm_codes(const work *w, const float *x, const float *weight, int64_t rows)
{
    return norm(w, x, weight, rows, codes(w->b, 0, w->b->lm->config.hidden));
}

/* A product with weights in a block format, of x or, where that is NULL, of the codes of a norm: rows of out are `ld`
 * apart. bias and residual (packed): NULL: none. */
static ridge_status block_product(const work *w, const lm_matrix *m, const float *x, int64_t tokens, const float *bias,
                                  const float *residual, float *out, int64_t ld)
{
    ridge_tensor to = f32(out);
    ridge_call call;

    to.stride = ld;
    call = ridge_block_matmul(tokens, m->cols, m->rows, x ? f32(x) : codes(w->b, 0, m->cols), lm_weights(m), to);
    ridge_set(&call, RIDGE_BLOCK_MATMUL_BIAS, RIDGE_F32, bias, 0);
    ridge_set(&call, RIDGE_BLOCK_MATMUL_RESIDUAL, RIDGE_F32, residual, 0);
    return weights_call(w, &call);
}

/* Matrices of one x, one after the other, as one product. norm: of x; NULL: none. */
static ridge_status products(const work *w, const lm_matrix *m, int count, const float *x, const float *norm,
                             int64_t tokens, float *out)
{
    int64_t ld = 0, at = 0;
    bool coded = false;

    for (int i = 0; i < count; i++)
        ld += m[i].rows;
    for (int i = 0; i < count && m[i].rows; at += m[i++].rows) {
        ridge_tensor to = f32(out + at);
        ridge_call call;

        if (m[i].format != RIDGE_I8) {
            if (norm && !coded)
                LM_TRY(norm_codes(w, x, norm, tokens));
            coded = true;
            LM_TRY(block_product(w, &m[i], norm ? NULL : x, tokens, NULL, NULL, out + at, ld));
            continue;
        }
        to.stride = ld;
        call = ridge_q8_0_matmul(tokens, m[i].cols, m[i].rows, f32(x), lm_weights(&m[i]), to);
        call.opt.q8_0.eps = (float)w->b->lm->config.eps;
        ridge_set(&call, RIDGE_Q8_0_MATMUL_NORM, RIDGE_F32, norm, 0);
        LM_TRY(weights_call(w, &call));
    }
    return RIDGE_OK;
}

/* residual += m x, into the other buffer; with a norm between product and sum where the family has one. */
static ridge_status add_product(work *w, const lm_matrix *m, const float *x, const float *post_norm)
{
    lm_batch *b = w->b;
    const int64_t n = w->s->tokens;
    const float *ones = b->lm->ones, *residual = b->x[w->now];
    const ridge_tensor planes = ridge_scaled(ones, RIDGE_I8, ones, RIDGE_SCALING_ROW32);
    ridge_call call;

    w->now ^= 1;
    if (!post_norm && m->format != RIDGE_I8)
        return block_product(w, m, x, n, NULL, residual, b->x[w->now], m->rows);
    if (!post_norm) {
        call = ridge_q8_0_matmul_hc_expand(n, m->cols, m->rows, 1, f32(x), lm_weights(m), ones, ones, residual,
                                           b->x[w->now]);
        return weights_call(w, &call);
    }
    LM_TRY(products(w, m, 1, x, NULL, n, b->branch));
    LM_TRY(norm(w, b->branch, post_norm, n, f32(b->normed)));
    /* A product of no columns is zero: what is left of the op is the sum of two matrices. */
    call = ridge_q8_0_matmul_hc_expand(n, 0, m->rows, 1, f32(x), planes, ones, ones, residual, b->x[w->now]);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD, RIDGE_F32, b->normed, 0);
    return w->each(w, &call);
}

/* residual += m x + bias: the product of an only expert, which takes a bias. */
static ridge_status add_biased(work *w, const lm_matrix *m, const float *x, const float *bias)
{
    lm_batch *b = w->b;
    const int64_t n = w->s->tokens, most = RIDGE_MOE_MAX_TOKENS;
    const float *residual = b->x[w->now];
    ridge_call call = ridge_q8_0_quantize_rows(n, m->cols, f32(x), codes(b, 0, m->cols));

    w->now ^= 1;
    if (m->format != RIDGE_I8)
        return block_product(w, m, x, n, bias, residual, b->x[w->now], m->rows);
    LM_TRY(w->each(w, &call));
    for (int64_t first = 0; first < n; first += most) {
        call = ridge_moe_down(n - first < most ? n - first : most, m->cols, m->rows, 1, 1, codes(b, first, m->cols),
                              lm_expert_weights(m), b->lm->zeros, b->lm->ones, f32(b->x[w->now] + first * m->rows));
        ridge_set(&call, RIDGE_MOE_DOWN_BIAS, RIDGE_F32, bias, 0);
        ridge_set(&call, RIDGE_MOE_DOWN_RESIDUAL, RIDGE_F32, residual + first * m->rows, 0);
        LM_TRY(weights_call(w, &call));
    }
    return RIDGE_OK;
}

/* Tokens of one call of attention: its workspace grows with them and with the positions. */
static int64_t attention_tokens(const work *w)
{
    const lm_config *c = &w->b->lm->config;
    const int64_t each = c->heads * ((w->s->positions + 127) / 128) * (c->head_dim + 2) * 4;
    const int64_t most = LM_ATTENTION_BYTES / each;

    return most > LM_GRAPH_TOKENS ? most : LM_GRAPH_TOKENS;
}

/* kv_append and attention of `count` tokens from `first` on, all of one session; of one token in one call. */
static ridge_status attend(const work *w, int64_t layer, int32_t slot, int64_t first, int64_t count)
{
    lm_batch *b = w->b;
    const lm_config *c = &b->lm->config;
    const lm_layer *l = &b->lm->layer[layer];
    const int64_t q = c->heads * c->head_dim, size = c->kv_heads * b->positions * c->head_dim * 2;
    const int64_t at = (layer * b->slots + slot) * size, most = attention_tokens(w);
    const bool alone = count == 1 && !w->s->fast;
    ridge_tensor k = ridge_matrix(b->k + at, RIDGE_F16), v = ridge_matrix(b->v + at, RIDGE_F16);
    ridge_call call;

    k.stride = v.stride = b->positions * c->head_dim;
    call = (alone ? ridge_kv_append_attention : ridge_kv_append)(
        count, c->heads, c->kv_heads, c->head_dim, w->s->positions,
        f32(b->qkv + first * (q + 2 * c->kv_heads * c->head_dim)), b->inputs[b->turn]->pos + first, l->freqs,
        f32((alone ? b->heads : b->q) + first * q), k, v);
    call.flags |= c->family->halves ? RIDGE_ROPE_HALVES : 0;
    call.opt.kv_append.n_rot = c->n_rot;
    call.opt.kv_append.eps = (float)c->eps;
    call.opt.kv_append.mscale = l->mscale;
    ridge_set(&call, RIDGE_KV_APPEND_BIAS, l->bias ? RIDGE_F32 : RIDGE_NONE, l->bias, 0);
    ridge_set(&call, RIDGE_KV_APPEND_Q_NORM, l->q_norm ? RIDGE_F32 : RIDGE_NONE, l->q_norm, 0);
    ridge_set(&call, RIDGE_KV_APPEND_K_NORM, l->k_norm ? RIDGE_F32 : RIDGE_NONE, l->k_norm, 0);
    if (alone) {
        call.opt.kv_append_attention.scale = (float)c->attention_scale;
        call.opt.kv_append_attention.window = l->window;
        ridge_set(&call, RIDGE_KV_APPEND_ATTENTION_SINKS, l->sinks ? RIDGE_F32 : RIDGE_NONE, l->sinks, 0);
        call.flags |= RIDGE_WEIGHTS_CONST; /* earlier steps wrote the cache */
    }
    LM_TRY(w->each(w, &call));
    for (int64_t i = first, n; i < first + count && !alone; i += n) {
        n = first + count - i < most || w->s->fast ? first + count - i : most;
        call = (w->s->fast ? ridge_attention_prefill : ridge_attention_decode)(
            n, c->heads, c->kv_heads, c->head_dim, w->s->positions, f32(b->q + i * q), k, v,
            b->inputs[b->turn]->pos + i, f32(b->heads + i * q));
        call.opt.attention.scale = (float)c->attention_scale;
        call.opt.attention.window = l->window;
        ridge_set(&call, RIDGE_ATTENTION_DECODE_SINKS, l->sinks ? RIDGE_F32 : RIDGE_NONE, l->sinks, 0);
        LM_TRY(w->each(w, &call));
    }
    return RIDGE_OK;
}

static ridge_status attention(work *w, int64_t layer)
{
    lm_batch *b = w->b;
    const lm_backend *backend = b->lm->backend;
    const lm_layer *l = &b->lm->layer[layer];
    const bool branches = backend->fork && w->s->runs > 1 && w->each == run;
    int64_t first = 0;

    LM_TRY(products(w, l->qkv, 3, b->x[w->now], l->attn_norm, w->s->tokens, b->qkv));
    if (branches)
        LM_TRY(backend->fork(b->state, (int)w->s->runs));
    for (int64_t i = 0; i < w->s->runs; i++) {
        w->lane = branches ? (int)i : -1;
        LM_TRY(attend(w, layer, w->s->run[i].slot, first, w->s->run[i].count));
        first += w->s->run[i].count;
    }
    w->lane = -1;
    if (branches)
        LM_TRY(backend->join(b->state, (int)w->s->runs));
    return l->out_bias ? add_biased(w, &l->out, b->heads, l->out_bias)
                       : add_product(w, &l->out, b->heads, l->post_attn_norm);
}

/* A layer's experts for `n` tokens from `first` on, RIDGE_MOE_MAX_TOKENS at most: their logits, choice and products,
 * and the weighted sum added to the residual. */
static ridge_status experts(const work *w, const lm_layer *l, int64_t first, int64_t n)
{
    const lm_batch *b = w->b;
    const lm_config *c = &b->lm->config;
    const ridge_tensor mid = ridge_scaled(b->mid, RIDGE_I8, b->mid_scales, RIDGE_SCALING_ROW32);
    ridge_call call =
        ridge_moe_down(n, c->hidden, c->experts, 1, 1, f32(b->normed + first * c->hidden),
                       ridge_matrix(l->router, l->router_dtype), b->lm->zeros, b->lm->ones, f32(b->route));

    LM_TRY(weights_call(w, &call)); /* the router is the matrix of an only expert */
    call = ridge_moe_route(n, c->experts, c->used, f32(b->route), b->ids, b->route_weights);
    call.flags |= c->family->oss ? RIDGE_ROUTE_TOPK_SOFTMAX : RIDGE_ROUTE_NORMALISE;
    ridge_set(&call, RIDGE_MOE_ROUTE_LOGIT_BIAS, l->router_bias ? RIDGE_F32 : RIDGE_NONE, l->router_bias, 0);
    LM_TRY(w->each(w, &call));
    call = ridge_moe_gate_up_swiglu(n, c->hidden, c->expert_ffn, c->experts, c->used, codes(b, first, c->hidden),
                                    lm_expert_weights(&l->gate), lm_expert_weights(&l->up), b->ids, mid);
    if (c->family->oss) {
        call.opt.swiglu.alpha = 1.702f;
        call.opt.swiglu.up_offset = 1.0f;
        call.opt.swiglu.limit = 7.0f;
        ridge_set(&call, RIDGE_MOE_GATE_UP_SWIGLU_GATE_BIAS, RIDGE_F32, l->gate_bias, 0);
        ridge_set(&call, RIDGE_MOE_GATE_UP_SWIGLU_UP_BIAS, RIDGE_F32, l->up_bias, 0);
    }
    LM_TRY(weights_call(w, &call));
    call = ridge_moe_down(n, c->expert_ffn, c->hidden, c->experts, c->used, mid, lm_expert_weights(&l->down), b->ids,
                          b->route_weights, f32(b->x[w->now ^ 1] + first * c->hidden));
    ridge_set(&call, RIDGE_MOE_DOWN_RESIDUAL, RIDGE_F32, b->x[w->now] + first * c->hidden, 0);
    ridge_set(&call, RIDGE_MOE_DOWN_BIAS, l->down_bias ? RIDGE_F32 : RIDGE_NONE, l->down_bias, 0);
    return weights_call(w, &call);
}

static ridge_status mixture(work *w, const lm_layer *l)
{
    const lm_batch *b = w->b;
    const int64_t n = w->s->tokens, most = RIDGE_MOE_MAX_TOKENS;
    ridge_call call;

    LM_TRY(norm(w, b->x[w->now], l->ffn_norm, n, f32(b->normed)));
    call = ridge_q8_0_quantize_rows(n, b->lm->config.hidden, f32(b->normed), codes(b, 0, b->lm->config.hidden));
    LM_TRY(w->each(w, &call));
    for (int64_t first = 0; first < n; first += most)
        LM_TRY(experts(w, l, first, n - first < most ? n - first : most));
    w->now ^= 1;
    return RIDGE_OK;
}

static ridge_status block_gate_up(const work *w, const lm_layer *l)
{
    const lm_batch *b = w->b;
    ridge_call call = ridge_block_gate_up_swiglu(w->s->tokens, l->gate.cols, l->gate.rows, codes(b, 0, l->gate.cols),
                                                 lm_weights(&l->gate), lm_weights(&l->up), f32(b->wide));

    LM_TRY(norm_codes(w, b->x[w->now], l->ffn_norm, w->s->tokens));
    call.flags |= b->lm->config.family->gelu ? RIDGE_GELU_TANH : RIDGE_SILU;
    return weights_call(w, &call);
}

static ridge_status feed_forward(work *w, int64_t layer)
{
    lm_batch *b = w->b;
    const lm_layer *l = &b->lm->layer[layer];
    ridge_call call;

    if (b->lm->config.experts)
        return mixture(w, l);
    if (l->gate.format != RIDGE_I8) {
        LM_TRY(block_gate_up(w, l));
        return add_product(w, &l->down, b->wide, l->post_ffw_norm);
    }
    call = ridge_q8_0_gate_up_swiglu(w->s->tokens, l->gate.cols, l->gate.rows, f32(b->x[w->now]), lm_weights(&l->gate),
                                     lm_weights(&l->up), f32(b->wide));
    call.opt.q8_0.eps = (float)b->lm->config.eps;
    ridge_set(&call, RIDGE_Q8_0_GATE_UP_SWIGLU_NORM, RIDGE_F32, l->ffn_norm, 0);
    call.flags |= b->lm->config.family->gelu ? RIDGE_GELU_TANH : RIDGE_SILU;
    LM_TRY(weights_call(w, &call));
    return add_product(w, &l->down, b->wide, l->post_ffw_norm);
}

static ridge_status embed(const work *w)
{
    const ridge_lm *lm = w->b->lm;
    ridge_call call = ridge_embed(w->s->tokens, lm->config.hidden, lm->vocab.count, lm->table,
                                  ridge_matrix(w->b->inputs[w->b->turn]->token, RIDGE_I32), f32(w->b->x[0]));

    call.opt.embed.scale = lm_embed_scale(lm);
    return w->each(w, &call);
}

/* Draws are the tokens of the next step, which can go on with them. */
static ridge_status sample(const work *w)
{
    const lm_inputs *in = w->b->inputs[w->b->turn];
    int32_t *drawn = w->b->inputs[w->b->turn ^ 1]->token;
    ridge_call call = ridge_sample(w->s->rows, w->b->lm->vocab.count, 0, f32(w->b->logits), in->seed, in->counter,
                                   ridge_matrix(NULL, RIDGE_I32), ridge_matrix(drawn, RIDGE_I32));

    call.opt.sample = w->s->sample;
    return w->each(w, &call);
}

static ridge_status all_calls(void *data)
{
    work *w = data;
    lm_batch *b = w->b;
    const int64_t first = w->s->tokens - w->s->rows;

    w->now = 0;
    if (b->lm->table.dtype)
        LM_TRY(embed(w));
    for (int64_t i = 0; i < b->lm->config.layers; i++) {
        LM_TRY(attention(w, i));
        LM_TRY(feed_forward(w, i));
    }
    if (!w->s->rows)
        return RIDGE_OK;
    LM_TRY(products(w, &b->lm->head, 1, b->x[w->now] + first * b->lm->config.hidden, b->lm->output_norm, w->s->rows,
                    b->logits));
    return w->s->sampled ? sample(w) : RIDGE_OK;
}

/* ----------------------------------------------------------------------------------------------------------- graphs */

static void drop_graphs(lm_batch *b)
{
    for (int i = 0; i < b->graphs; i++)
        b->lm->backend->graph_free(b->state, b->graph[i].graph);
    b->graphs = 0;
}

ridge_status lm_run_step(lm_batch *b, const lm_step *step)
{
    const lm_backend *backend = b->lm->backend;
    work w = {b, run, step, 0, -1};
    ridge_status status;
    lm_graph *g;

    if (!backend->graph_begin || step->tokens > LM_GRAPH_TOKENS)
        return ridge_together(b->lm->device, all_calls, &w);
    for (int i = 0; i < b->graphs; i++)
        if (b->graph[i].turn == b->turn && memcmp(&b->graph[i].step, step, sizeof *step) == 0)
            return backend->graph_launch(b->state, b->graph[i].graph);
    if (b->graphs == LM_GRAPHS)
        drop_graphs(b);
    g = &b->graph[b->graphs];
    LM_TRY(backend->graph_begin(b->state));
    status = all_calls(&w);
    if (status) {
        void *unused = NULL;

        if (!backend->graph_end(b->state, &unused))
            backend->graph_free(b->state, unused);
        return status;
    }
    LM_TRY(backend->graph_end(b->state, &g->graph));
    memcpy(&g->step, step, sizeof *step);
    g->turn = b->turn;
    b->graphs++;
    return backend->graph_launch(b->state, g->graph);
}

/* ----------------------------------------------------------------------------------------------------------- memory */

typedef struct buffer {
    void *at; /* address of the pointer */
    int64_t bytes;
} buffer;

enum { BUFFERS = 21 };

static int64_t rows_of(int64_t tokens)
{
    return tokens < LM_ROWS ? tokens : LM_ROWS;
}

static void buffers_of(lm_batch *b, buffer list[BUFFERS])
{
    const lm_config *c = &b->lm->config;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, n = b->panel;
    const int64_t quantised = n * (c->family->oss && q > c->hidden ? q : c->hidden);
    const buffer all[BUFFERS] = {{&b->k, c->layers * b->slots * kv * b->positions * 2},
                                 {&b->v, c->layers * b->slots * kv * b->positions * 2},
                                 {&b->x[0], n * c->hidden * 4},
                                 {&b->x[1], n * c->hidden * 4},
                                 {&b->normed, n * c->hidden * 4},
                                 {&b->branch, n * c->hidden * 4},
                                 {&b->qkv, n * (q + 2 * kv) * 4},
                                 {&b->q, n * q * 4},
                                 {&b->heads, n * q * 4},
                                 {&b->wide, n * c->ffn * 4},
                                 {&b->logits, rows_of(n) * b->lm->vocab.count * 4},
                                 {&b->codes, quantised},
                                 {&b->scales, quantised / 32 * 4},
                                 {&b->inputs[0], sizeof *b->inputs[0]},
                                 {&b->inputs[1], sizeof *b->inputs[1]},
                                 {&b->route, RIDGE_MOE_MAX_TOKENS * c->experts * 4},
                                 {&b->ids, RIDGE_MOE_MAX_TOKENS * c->used * 4},
                                 {&b->route_weights, RIDGE_MOE_MAX_TOKENS * c->used * 4},
                                 {&b->mid, RIDGE_MOE_MAX_TOKENS * c->used * c->expert_ffn},
                                 {&b->mid_scales, RIDGE_MOE_MAX_TOKENS * c->used * c->expert_ffn / 32 * 4},
                                 {&b->workspace, b->workspace_bytes[1] + b->slots * b->workspace_bytes[0]}};

    memcpy(list, all, sizeof all);
}

/* The workspaces of the calls of one, of 16 and of the most tokens, in caches of all lengths that steps are made for.
 */
static ridge_status measure_steps(lm_batch *b, bool fast)
{
    const int64_t tokens[] = {1, LM_GRAPH_TOKENS, b->panel};
    lm_step step = {.runs = 1, .fast = fast, .sampled = 1, .sample = {.temperature = 0, .top_p = 1, .penalty = 1}};
    work w = {b, measure, &step, 0, -1};

    for (int64_t positions = LM_REACH; step.positions < b->positions; positions *= 2) {
        step.positions = positions < b->positions ? positions : b->positions;
        for (int i = 0; i < 3; i++) {
            step.tokens = tokens[i];
            step.rows = rows_of(tokens[i]);
            step.run[0].count = (int32_t)tokens[i];
            LM_TRY(all_calls(&w));
        }
    }
    return RIDGE_OK;
}

static ridge_status measure_all(lm_batch *b)
{
    ridge_status status;
    buffer list[BUFFERS];

    buffers_of(b, list);
    /* ridge_workspace_bytes looks at alignment only: any address that is no NULL serves to measure. */
    for (int i = 0; i < BUFFERS; i++)
        *(void **)list[i].at = (void *)(uintptr_t)((uint64_t)(i + 1) << 42);
    status = measure_steps(b, false);
    b->prefill = !status && measure_steps(b, true) == RIDGE_OK;
    for (int i = 0; i < BUFFERS; i++)
        *(void **)list[i].at = NULL;
    return status;
}

static ridge_status allocate(lm_batch *b)
{
    const lm_backend *backend = b->lm->backend;
    const int64_t there = backend->free_bytes(b->state);
    buffer list[BUFFERS];
    int64_t sum = 0;

    LM_TRY(measure_all(b));
    for (int i = 0; i < 2; i++) /* what is aligned stays so; a single token may need more than several */
        b->workspace_bytes[i] = (b->workspace_bytes[i] + 255) / 256 * 256;
    if (b->workspace_bytes[1] < b->workspace_bytes[0])
        b->workspace_bytes[1] = b->workspace_bytes[0];
    buffers_of(b, list);
    for (int i = 0; i < BUFFERS; i++)
        sum += list[i].bytes;
    if (there && sum > there)
        return lm_fail(RIDGE_ERR_DEVICE,
                       "%" PRId64 " text%s of %" PRId64 " positions take%s %.1f MB, and there are %.1f MB", b->slots,
                       b->slots > 1 ? "s" : "", b->positions, b->slots > 1 ? "" : "s", (double)sum * 1e-6,
                       (double)there * 1e-6);
    for (int i = 0; i < BUFFERS; i++)
        LM_TRY(backend->alloc(b->state, list[i].bytes ? list[i].bytes : 1, list[i].at));
    if (backend->branches && b->slots > 1)
        LM_TRY(backend->branches(b->state, (int)b->slots));
    for (int i = 0; i < 2; i++) {
        LM_TRY(backend->host_alloc(b->state, sizeof *b->host[i], (void **)&b->host[i]));
        LM_TRY(backend->host_alloc(b->state, RIDGE_LM_MAX_SESSIONS * sizeof *b->drawn[i], (void **)&b->drawn[i]));
    }
    b->host_x = malloc((size_t)(b->panel * b->lm->config.hidden) * sizeof *b->host_x);
    return b->host_x ? RIDGE_OK : lm_fail(RIDGE_ERR_DEVICE, "no memory for a session");
}

ridge_status lm_batch_open(ridge_lm *lm, int64_t positions, int64_t slots, lm_batch **to)
{
    lm_batch *b = calloc(1, sizeof *b);
    ridge_status status;

    *to = b;
    if (!b)
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for a session");
    b->lm = lm;
    b->positions = positions;
    b->slots = slots;
    b->panel = positions < LM_GRAPH_TOKENS ? LM_GRAPH_TOKENS : positions < LM_PANEL ? positions : LM_PANEL;
    status = lm->backend->start(lm->device, &b->state);
    if (status) {
        free(b);
        *to = NULL;
        return status;
    }
    status = allocate(b);
    if (status) {
        lm_batch_close(b);
        *to = NULL;
    }
    return status;
}

void lm_batch_close(lm_batch *b)
{
    const lm_backend *backend = b->lm->backend;
    buffer list[BUFFERS];

    if (backend->graph_free)
        drop_graphs(b);
    buffers_of(b, list);
    for (int i = 0; i < BUFFERS; i++)
        if (*(void **)list[i].at)
            backend->release(b->state, *(void **)list[i].at);
    for (int i = 0; i < 2; i++) {
        backend->host_release(b->state, b->host[i]);
        backend->host_release(b->state, b->drawn[i]);
    }
    backend->stop(b->state);
    free(b->host_x);
    free(b);
}
