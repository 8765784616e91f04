/* args.h: calls of this folder's ops as their CPU and CUDA rows take them. */
#ifndef RIDGE_EXPERTS_ARGS_H
#define RIDGE_EXPERTS_ARGS_H

#include <string.h>

#include "src/internal.h"

/* A matrix; data is NULL where it is absent. */
typedef struct experts_matrix {
    char *data;
    int64_t stride; /* elements */
    uint32_t dtype;
} experts_matrix;

static inline experts_matrix experts_operand(const ridge_operand *x)
{
    experts_matrix m;

    m.data = (char *)x->data;
    m.stride = x->stride;
    m.dtype = x->dtype;
    return m;
}

typedef struct permute_args {
    const int32_t *ids;
    int32_t *offsets, *rows, *place;
    int32_t *counts; /* CUDA: [parts][experts], the pairs of each expert in a part, then those before it */
    int64_t ids_stride, place_stride, pairs;
    int32_t slots, experts, parts;
} permute_args;

static inline permute_args permute_args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    permute_args p;

    memset(&p, 0, sizeof p);
    p.ids = (const int32_t *)arg[RIDGE_MOE_PERMUTE_IDS].data;
    p.ids_stride = arg[RIDGE_MOE_PERMUTE_IDS].stride;
    p.offsets = (int32_t *)arg[RIDGE_MOE_PERMUTE_OFFSETS].data;
    p.rows = (int32_t *)arg[RIDGE_MOE_PERMUTE_ROWS].data;
    p.place = (int32_t *)arg[RIDGE_MOE_PERMUTE_PLACE].data;
    p.place_stride = arg[RIDGE_MOE_PERMUTE_PLACE].stride;
    p.slots = (int32_t)call->dim[1];
    p.experts = (int32_t)call->dim[2];
    p.pairs = call->dim[0] * call->dim[1];
    return p;
}

/* moe_combine and moe_combine_bwd. */
typedef struct combine_args {
    experts_matrix y, out, shared, residual; /* of the gradient: y is an input too, out is dout */
    experts_matrix dy;
    const int32_t *place;
    const float *weights; /* NULL: all 1 */
    float *dweights;
    int64_t place_stride, weights_stride, dweights_stride, tokens, cols, pairs;
    int32_t slots, vector; /* vector: CUDA, every group of 8 columns of every matrix begins at a multiple of 16 bytes */
} combine_args;

static inline combine_args combine_args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const bool backward = call->op == RIDGE_MOE_COMBINE_BWD;
    const ridge_operand *place = &arg[backward ? (int)RIDGE_MOE_COMBINE_BWD_PLACE : (int)RIDGE_MOE_COMBINE_PLACE];
    combine_args p;

    memset(&p, 0, sizeof p);
    p.tokens = call->dim[0];
    p.slots = (int32_t)call->dim[1];
    p.cols = call->dim[2];
    p.pairs = p.tokens * p.slots;
    p.place = (const int32_t *)place->data;
    p.place_stride = place->stride;
    p.weights = (const float *)place[1].data;
    p.weights_stride = place[1].stride;
    if (backward) {
        p.out = experts_operand(&arg[RIDGE_MOE_COMBINE_BWD_DOUT]);
        p.y = experts_operand(&arg[RIDGE_MOE_COMBINE_BWD_Y]);
        p.dy = experts_operand(&arg[RIDGE_MOE_COMBINE_BWD_DY]);
        p.dweights = (float *)arg[RIDGE_MOE_COMBINE_BWD_DWEIGHTS].data;
        p.dweights_stride = arg[RIDGE_MOE_COMBINE_BWD_DWEIGHTS].stride;
    } else {
        p.y = experts_operand(&arg[RIDGE_MOE_COMBINE_Y]);
        p.out = experts_operand(&arg[RIDGE_MOE_COMBINE_OUT]);
        p.shared = experts_operand(&arg[RIDGE_MOE_COMBINE_SHARED]);
        p.residual = experts_operand(&arg[RIDGE_MOE_COMBINE_RESIDUAL]);
    }
    return p;
}

typedef struct route_bwd_args {
    experts_matrix logits, dlogits;
    const int32_t *ids;
    const float *dweights, *logit_bias; /* logit_bias NULL: none */
    int64_t ids_stride, dweights_stride, tokens;
    int32_t experts, slots, normalise;
    uint32_t rule;
    float scale, eps;
} route_bwd_args;

static inline route_bwd_args route_bwd_args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    route_bwd_args p;

    memset(&p, 0, sizeof p);
    p.tokens = call->dim[0];
    p.experts = (int32_t)call->dim[1];
    p.slots = (int32_t)call->dim[2];
    p.logits = experts_operand(&arg[RIDGE_MOE_ROUTE_BWD_LOGITS]);
    p.dlogits = experts_operand(&arg[RIDGE_MOE_ROUTE_BWD_DLOGITS]);
    p.ids = (const int32_t *)arg[RIDGE_MOE_ROUTE_BWD_IDS].data;
    p.ids_stride = arg[RIDGE_MOE_ROUTE_BWD_IDS].stride;
    p.dweights = (const float *)arg[RIDGE_MOE_ROUTE_BWD_DWEIGHTS].data;
    p.dweights_stride = arg[RIDGE_MOE_ROUTE_BWD_DWEIGHTS].stride;
    p.logit_bias = (const float *)arg[RIDGE_MOE_ROUTE_BWD_LOGIT_BIAS].data;
    p.rule = call->flags & RIDGE_ROUTE_RULE;
    p.normalise = (call->flags & RIDGE_ROUTE_NORMALISE) != 0;
    p.scale = call->opt.moe_route.scale;
    p.eps = call->opt.moe_route.eps;
    return p;
}

#endif
