/* products.h: calls of moe_gate_up_swiglu and moe_down as their CPU and CUDA rows take them, and the order in which the
 * products of floats add. */
#ifndef RIDGE_MOE_PRODUCTS_H
#define RIDGE_MOE_PRODUCTS_H

#include <string.h>

#include "src/internal.h"
#include "src/math/swiglu.h"
#include "src/util.h"

/* Column j of a product of floats belongs to chain j % 256, which adds fma(w, x, acc) from +0 in ascending j; then
 * chain[i] += chain[i + s] for i a multiple of 2 s, s = 1, 2, 4, ..., 128. */
enum { MOE_CHAINS = 256 };

/* A weight of all experts: row r of expert e begins at data + e * stride + r * cols * (its element's size), or, in
 * block formats, tile r / 16 at data + e * stride + r / 16 * (a tile's bytes). */
typedef struct moe_weight {
    const char *data, *scales;
    int64_t stride, scales_stride; /* bytes, from expert to expert */
    const float *bias;             /* NULL: none */
    int64_t bias_stride;
} moe_weight;

/* A block format: tiles of block_repack. */
static inline bool moe_is_tiles(uint32_t dtype)
{
    return dtype >= RIDGE_Q4_0 && dtype < RIDGE_DTYPES;
}

/* Bytes of a weight of floats or e4m3. */
static inline int moe_weight_size(int form)
{
    return form == RIDGE_F32 ? 4 : form == RIDGE_BF16 ? 2 : 1;
}

/* Weights of codes, whose x is codes too. */
static inline bool moe_is_codes(uint32_t dtype)
{
    return dtype == RIDGE_I8 || moe_is_tiles(dtype);
}

typedef struct moe_args {
    moe_weight weight[2]; /* gate and up, or down alone */
    const char *x;
    const float *x_scales;     /* of codes */
    int64_t x_stride, x_ld;    /* elements from here on; from token to token */
    int64_t x_slot, x_slot_ld; /* from slot to slot: 0 where the slots of a token share x */
    int64_t x_block;           /* of e4m3: from 128 columns to the next, in x_scales */
    int64_t cols, rows;
    int32_t tokens, experts, slots;
    int32_t form, x_bf16, x_fp8, down; /* form: the dtype of the weights */
    int32_t weights_const;
    const int32_t *ids;
    int64_t ids_stride;
    void *out;
    float *out_scales;
    int64_t out_stride, out_ld;
    int32_t out_dtype;
    uint32_t act; /* gate_up */
    ridge_swiglu_options swiglu;
    const float *weights; /* down */
    const void *shared, *residual;
    int64_t weights_stride, shared_stride, residual_stride;
    int32_t shared_bf16, residual_bf16;
    const float *post, *comb, *res; /* down with n_hc above 0 */
    int64_t post_stride, comb_stride, res_stride;
    int32_t n_hc;
} moe_args;

static inline moe_weight moe_weight_of(const ridge_call *call, int slot, int bias)
{
    const ridge_operand *w = &call->arg[slot], *s = &call->arg[slot + 1], *b = &call->arg[bias];
    moe_weight m;

    m.data = (const char *)w->data;
    m.stride = w->stride * (int64_t)ridge_dtype_size(w->dtype);
    m.scales = (const char *)s->data;
    m.scales_stride = s->stride * (s->dtype == RIDGE_F16 ? 2 : 4);
    m.bias = (const float *)b->data;
    m.bias_stride = b->stride;
    return m;
}

static inline void moe_collect_down(const ridge_call *call, moe_args *p)
{
    const ridge_operand *arg = call->arg;

    p->down = 1;
    p->x_slot = p->cols;
    p->x_slot_ld = p->x_fp8 ? 1 : p->cols / 32;
    p->weight[0] = moe_weight_of(call, RIDGE_MOE_DOWN_W, RIDGE_MOE_DOWN_BIAS);
    p->weights = (const float *)arg[RIDGE_MOE_DOWN_WEIGHTS].data;
    p->weights_stride = arg[RIDGE_MOE_DOWN_WEIGHTS].stride;
    p->shared = arg[RIDGE_MOE_DOWN_SHARED].data;
    p->shared_stride = arg[RIDGE_MOE_DOWN_SHARED].stride;
    p->shared_bf16 = arg[RIDGE_MOE_DOWN_SHARED].dtype == RIDGE_BF16;
    p->residual = arg[RIDGE_MOE_DOWN_RESIDUAL].data;
    p->residual_stride = arg[RIDGE_MOE_DOWN_RESIDUAL].stride;
    p->residual_bf16 = arg[RIDGE_MOE_DOWN_RESIDUAL].dtype == RIDGE_BF16;
    p->n_hc = (int32_t)call->opt.moe_down.n_hc;
    p->post = (const float *)arg[RIDGE_MOE_DOWN_POST].data;
    p->post_stride = arg[RIDGE_MOE_DOWN_POST].stride;
    p->comb = (const float *)arg[RIDGE_MOE_DOWN_COMB].data;
    p->comb_stride = arg[RIDGE_MOE_DOWN_COMB].stride;
    p->res = (const float *)arg[RIDGE_MOE_DOWN_RES].data;
    p->res_stride = arg[RIDGE_MOE_DOWN_RES].stride;
}

static inline moe_args moe_args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const bool down = call->op == RIDGE_MOE_DOWN;
    const int ids = down ? (int)RIDGE_MOE_DOWN_IDS : (int)RIDGE_MOE_GATE_UP_SWIGLU_IDS;
    const int out = down ? (int)RIDGE_MOE_DOWN_OUT : (int)RIDGE_MOE_GATE_UP_SWIGLU_OUT;
    moe_args p;

    memset(&p, 0, sizeof p);
    p.tokens = (int32_t)call->dim[0];
    p.cols = call->dim[1];
    p.rows = call->dim[2];
    p.experts = (int32_t)call->dim[3];
    p.slots = (int32_t)call->dim[4];
    p.form = (int32_t)arg[2].dtype;
    p.weights_const = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    p.x = (const char *)arg[0].data;
    p.x_stride = arg[0].stride;
    p.x_bf16 = arg[0].dtype == RIDGE_BF16;
    p.x_scales = (const float *)arg[1].data;
    p.x_fp8 = arg[0].dtype == RIDGE_E4M3;
    p.x_ld = p.x_fp8 ? (down ? p.slots : 1) : arg[1].stride;
    p.x_block = arg[1].stride;
    p.ids = (const int32_t *)arg[ids].data;
    p.ids_stride = arg[ids].stride;
    p.out = arg[out].data;
    p.out_stride = arg[out].stride;
    p.out_dtype = (int32_t)arg[out].dtype;
    if (down) {
        moe_collect_down(call, &p);
        return p;
    }
    p.weight[0] = moe_weight_of(call, RIDGE_MOE_GATE_UP_SWIGLU_GATE, RIDGE_MOE_GATE_UP_SWIGLU_GATE_BIAS);
    p.weight[1] = moe_weight_of(call, RIDGE_MOE_GATE_UP_SWIGLU_UP, RIDGE_MOE_GATE_UP_SWIGLU_UP_BIAS);
    p.out_scales = (float *)arg[RIDGE_MOE_GATE_UP_SWIGLU_OUT_SCALES].data;
    p.out_ld = arg[RIDGE_MOE_GATE_UP_SWIGLU_OUT_SCALES].stride;
    p.act = call->flags & RIDGE_ACTIVATION;
    p.swiglu = ridge_swiglu_resolve(call->opt.swiglu);
    return p;
}

#endif
