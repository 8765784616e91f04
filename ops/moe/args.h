/* args.h: calls of moe_route as its CPU and CUDA rows take them. */
#ifndef RIDGE_MOE_ARGS_H
#define RIDGE_MOE_ARGS_H

#include <string.h>

#include "src/internal.h"

typedef struct route_args {
    const void *logits;
    const float *bias, *logit_bias; /* NULL: none */
    int32_t *ids;
    float *weights;
    int64_t tokens, stride, ids_stride, weights_stride;
    int32_t experts, slots, groups, top_groups, bf16;
    uint32_t rule; /* RIDGE_ROUTE_SOFTMAX .. */
    int32_t normalise, group_max, given;
    float scale, eps;
} route_args;

static inline route_args route_args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const ridge_moe_route_options *o = &call->opt.moe_route;
    route_args p;

    memset(&p, 0, sizeof p);
    p.tokens = call->dim[0];
    p.experts = (int32_t)call->dim[1];
    p.slots = (int32_t)call->dim[2];
    p.logits = arg[RIDGE_MOE_ROUTE_LOGITS].data;
    p.stride = arg[RIDGE_MOE_ROUTE_LOGITS].stride;
    p.bf16 = arg[RIDGE_MOE_ROUTE_LOGITS].dtype == RIDGE_BF16;
    p.bias = (const float *)arg[RIDGE_MOE_ROUTE_BIAS].data;
    p.logit_bias = (const float *)arg[RIDGE_MOE_ROUTE_LOGIT_BIAS].data;
    p.ids = (int32_t *)arg[RIDGE_MOE_ROUTE_IDS].data;
    p.ids_stride = arg[RIDGE_MOE_ROUTE_IDS].stride;
    p.weights = (float *)arg[RIDGE_MOE_ROUTE_WEIGHTS].data;
    p.weights_stride = arg[RIDGE_MOE_ROUTE_WEIGHTS].stride;
    p.groups = (int32_t)o->groups;
    p.top_groups = (int32_t)o->top_groups;
    p.rule = call->flags & RIDGE_ROUTE_RULE;
    p.normalise = (call->flags & RIDGE_ROUTE_NORMALISE) != 0;
    p.group_max = (call->flags & RIDGE_ROUTE_GROUP_MAX) != 0;
    p.given = (call->flags & RIDGE_ROUTE_GIVEN) != 0;
    p.scale = o->scale;
    p.eps = o->eps;
    return p;
}

#endif
