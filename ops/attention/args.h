/* args.h: a call of kv_append, attention_decode, attention_prefill or kv_append_attention as its CPU and CUDA rows take
 * it. Strides are bytes. */
#ifndef RIDGE_ATTENTION_ARGS_H
#define RIDGE_ATTENTION_ARGS_H

#include <stdbool.h>
#include <string.h>

#include "src/internal.h"
#include "src/math/attention.h"
#include "src/math/norm.h"
#include "src/math/quantize.h"
#include "src/util.h"

typedef struct append_args {
    const char *x;
    char *out, *k, *v;
    const int32_t *pos;
    const double *freqs;
    const float *bias, *q_norm, *k_norm; /* NULL: absent */
    int64_t tokens, heads, kv_heads, n, n_rot, positions;
    int64_t x_stride, out_stride, k_stride, v_stride;
    float eps, mscale;
    int x_bf16, out_bf16, halves;
    uint32_t kv;    /* f16, bf16; u8: blocks of Q8_0 */
    int64_t kv_row; /* bytes of a position */
} append_args;

typedef struct attention_args {
    const char *q, *k, *v;
    char *out;
    const int32_t *pos;
    const float *sinks; /* NULL: none */
    float *pieces;      /* the workspace: by token, head and piece o [n], m, l */
    int64_t tokens, heads, kv_heads, group, n, positions, window;
    int64_t q_stride, k_stride, v_stride, out_stride;
    float scale, softcap;
    int q_bf16, out_bf16;
    uint32_t kv;    /* f16, bf16; u8: blocks of Q8_0 */
    int64_t kv_row; /* bytes of a position */
} attention_args;

/* The slot of the cache's keys, which that of its values follows. */
static inline int attention_keys(uint32_t op)
{
    return op == RIDGE_KV_APPEND || op == RIDGE_KV_APPEND_ATTENTION ? (int)RIDGE_KV_APPEND_K
                                                                    : (int)RIDGE_ATTENTION_DECODE_K;
}

/* Elements of a row of head_dim elements in the cache, of its dtype. */
static inline int64_t attention_row_elements(uint32_t kv, int64_t n)
{
    return kv == RIDGE_U8 ? n / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES : n;
}

static inline int64_t attention_row_bytes(uint32_t kv, int64_t n)
{
    return attention_row_elements(kv, n) * (int64_t)ridge_dtype_size(kv);
}

/* Of kv_append, or kv_append_attention, whose first operands and options are the same. */
static inline append_args append_args_of(const ridge_call *call)
{
    const ridge_operand *x = &call->arg[RIDGE_KV_APPEND_QKV], *out = &call->arg[RIDGE_KV_APPEND_OUT];
    const ridge_operand *k = &call->arg[RIDGE_KV_APPEND_K], *v = &call->arg[RIDGE_KV_APPEND_V];
    append_args p;

    memset(&p, 0, sizeof p);
    p.tokens = call->dim[0];
    p.heads = call->dim[1];
    p.kv_heads = call->dim[2];
    p.n = call->dim[3];
    p.positions = call->dim[4];
    p.n_rot = call->opt.kv_append.n_rot ? call->opt.kv_append.n_rot : p.n;
    p.eps = call->opt.kv_append.eps;
    p.mscale = call->opt.kv_append.mscale;
    p.halves = (call->flags & RIDGE_ROPE_HALVES) != 0;
    p.x = (const char *)x->data;
    p.x_bf16 = x->dtype == RIDGE_BF16;
    p.x_stride = x->stride * (p.x_bf16 ? 2 : 4);
    p.out = (char *)out->data;
    p.out_bf16 = out->dtype == RIDGE_BF16;
    p.out_stride = out->stride * (p.out_bf16 ? 2 : 4);
    p.k = (char *)k->data;
    p.v = (char *)v->data;
    p.kv = k->dtype;
    p.kv_row = attention_row_bytes(p.kv, p.n);
    p.k_stride = k->stride * (int64_t)ridge_dtype_size(k->dtype);
    p.v_stride = v->stride * (int64_t)ridge_dtype_size(v->dtype);
    p.pos = (const int32_t *)call->arg[RIDGE_KV_APPEND_POS].data;
    p.freqs = (const double *)call->arg[RIDGE_KV_APPEND_FREQS].data;
    p.bias = (const float *)call->arg[RIDGE_KV_APPEND_BIAS].data;
    p.q_norm = (const float *)call->arg[RIDGE_KV_APPEND_Q_NORM].data;
    p.k_norm = (const float *)call->arg[RIDGE_KV_APPEND_K_NORM].data;
    return p;
}

/* Of attention_decode, or attention_prefill, whose operands have the same numbers, or kv_append_attention, whose q is
 * set apart. */
static inline attention_args attention_args_of(const ridge_call *call, void *workspace)
{
    const bool appends = call->op == RIDGE_KV_APPEND_ATTENTION;
    const ridge_operand *q = &call->arg[RIDGE_ATTENTION_DECODE_Q];
    const ridge_operand *out =
        &call->arg[appends ? (int)RIDGE_KV_APPEND_ATTENTION_OUT : (int)RIDGE_ATTENTION_DECODE_OUT];
    const ridge_operand *k = &call->arg[attention_keys(call->op)], *v = k + 1;
    attention_args p;

    memset(&p, 0, sizeof p);
    p.tokens = call->dim[0];
    p.heads = call->dim[1];
    p.kv_heads = call->dim[2];
    p.group = p.kv_heads ? p.heads / p.kv_heads : 0;
    p.n = call->dim[3];
    p.positions = call->dim[4];
    p.window = appends ? call->opt.kv_append_attention.window : call->opt.attention.window;
    p.scale = appends ? call->opt.kv_append_attention.scale : call->opt.attention.scale;
    p.softcap = appends ? call->opt.kv_append_attention.softcap : call->opt.attention.softcap;
    p.q = (const char *)q->data;
    p.q_bf16 = q->dtype == RIDGE_BF16;
    p.q_stride = q->stride * (p.q_bf16 ? 2 : 4);
    p.out = (char *)out->data;
    p.out_bf16 = out->dtype == RIDGE_BF16;
    p.out_stride = out->stride * (p.out_bf16 ? 2 : 4);
    p.k = (const char *)k->data;
    p.v = (const char *)v->data;
    p.kv = k->dtype;
    p.kv_row = attention_row_bytes(p.kv, p.n);
    p.k_stride = k->stride * (int64_t)ridge_dtype_size(k->dtype);
    p.v_stride = v->stride * (int64_t)ridge_dtype_size(v->dtype);
    p.pos =
        (const int32_t *)call->arg[appends ? (int)RIDGE_KV_APPEND_ATTENTION_POS : (int)RIDGE_ATTENTION_DECODE_POS].data;
    p.sinks =
        (const float *)call->arg[appends ? (int)RIDGE_KV_APPEND_ATTENTION_SINKS : (int)RIDGE_ATTENTION_DECODE_SINKS]
            .data;
    p.pieces = (float *)workspace;
    return p;
}

/* The two halves of kv_append_attention: q in f32 comes first in the workspace. */
static inline append_args attention_halves(const ridge_call *call, void *workspace, attention_args *attend)
{
    append_args p = append_args_of(call);

    *attend = attention_args_of(call, (float *)workspace + p.tokens * p.heads * p.n);
    p.out = (char *)workspace;
    p.out_bf16 = attend->q_bf16 = 0;
    p.out_stride = attend->q_stride = p.heads * p.n * 4;
    attend->q = p.out;
    return p;
}

RIDGE_FN int64_t attention_pieces_of(int64_t positions)
{
    return (positions + RIDGE_ATTENTION_PIECE - 1) / RIDGE_ATTENTION_PIECE;
}

/* The floats that attention leaves for every query, head and piece; kv_append_attention's q before them. */
static inline size_t attention_workspace(const ridge_problem *problem)
{
    const size_t queries = (size_t)problem->dim[0] * (size_t)problem->dim[1], n = (size_t)problem->dim[3];

    return queries * (size_t)attention_pieces_of(problem->dim[4]) * (n + 2) * sizeof(float) +
           (problem->op == RIDGE_KV_APPEND_ATTENTION ? queries * n * sizeof(float) : 0);
}

/* The keys that a query at pos sees: from *first up to *end - 1; none where *first >= *end. */
RIDGE_FN void attention_range(const attention_args *p, int64_t pos, int64_t *first, int64_t *end)
{
    const int64_t last = pos < p->positions ? pos + 1 : p->positions;

    *first = p->window && pos + 1 > p->window ? pos + 1 - p->window : 0;
    *end = last > 0 ? last : 0;
}

#endif
