/* args.h: calls of hc_mix and hc_split as their CPU and CUDA rows take them. */
#ifndef RIDGE_HC_ARGS_H
#define RIDGE_HC_ARGS_H

#include <string.h>

#include "src/internal.h"
#include "src/util.h"

typedef struct hc_args {
    const float *res;
    const void *fn;
    float *mix; /* hc_mix writes it; hc_split has none of its own */
    int64_t res_stride, fn_stride, mix_stride;
    uint32_t fn_dtype;
    int64_t tokens, cols;
    int32_t n_hc, mixes;
    float eps;
    /* hc_split */
    const float *scale, *base;
    const void *w; /* NULL: none */
    float *post, *comb;
    void *out;
    float *out_scales, *floats;
    int64_t post_stride, comb_stride, out_stride, out_ld, floats_stride;
    uint32_t w_dtype, out_dtype;
    float hc_eps;
    int32_t iterations, weights_const;
} hc_args;

/* The numbers that hc_split takes of a token: without post and comb those of pre only. */
static inline int64_t hc_mixes(const ridge_call *call)
{
    return call->arg[RIDGE_HC_SPLIT_POST].dtype == RIDGE_NONE ? call->dim[2] : call->dim[2] * (2 + call->dim[2]);
}

static inline hc_args hc_args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const bool split = call->op == RIDGE_HC_SPLIT;
    const ridge_operand *fn = &arg[split ? (int)RIDGE_HC_SPLIT_FN : (int)RIDGE_HC_MIX_FN];
    hc_args p;

    memset(&p, 0, sizeof p);
    p.tokens = call->dim[0];
    p.cols = call->dim[1];
    p.n_hc = (int32_t)call->dim[2];
    p.mixes = (int32_t)(split ? hc_mixes(call) : call->dim[3]);
    p.res = (const float *)arg[0].data;
    p.res_stride = arg[0].stride;
    p.fn = fn->data;
    p.fn_stride = fn->stride;
    p.fn_dtype = fn->dtype;
    p.eps = call->opt.hc.eps;
    if (!split) {
        p.mix = (float *)arg[RIDGE_HC_MIX_OUT].data;
        p.mix_stride = arg[RIDGE_HC_MIX_OUT].stride;
        return p;
    }
    p.scale = (const float *)arg[RIDGE_HC_SPLIT_SCALE].data;
    p.base = (const float *)arg[RIDGE_HC_SPLIT_BASE].data;
    p.w = arg[RIDGE_HC_SPLIT_W].data;
    p.w_dtype = arg[RIDGE_HC_SPLIT_W].dtype;
    p.post = (float *)arg[RIDGE_HC_SPLIT_POST].data;
    p.post_stride = arg[RIDGE_HC_SPLIT_POST].stride;
    p.comb = (float *)arg[RIDGE_HC_SPLIT_COMB].data;
    p.comb_stride = arg[RIDGE_HC_SPLIT_COMB].stride;
    p.out = arg[RIDGE_HC_SPLIT_OUT].data;
    p.out_dtype = arg[RIDGE_HC_SPLIT_OUT].dtype;
    p.out_stride = arg[RIDGE_HC_SPLIT_OUT].stride;
    p.out_scales = (float *)arg[RIDGE_HC_SPLIT_OUT_SCALES].data;
    p.out_ld = arg[RIDGE_HC_SPLIT_OUT_SCALES].stride;
    p.floats = (float *)arg[RIDGE_HC_SPLIT_FLOATS].data;
    p.floats_stride = arg[RIDGE_HC_SPLIT_FLOATS].stride;
    p.hc_eps = call->opt.hc.hc_eps;
    p.iterations = (int32_t)call->opt.hc.iterations;
    p.weights_const = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    return p;
}

#endif
