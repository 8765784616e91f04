/* experts.h: the arithmetic of the training of experts in its bit-exact order.
 *
 * One source for the C reference and CUDA. A sum over columns: column j belongs to partial (j / 8) % 32, which adds
 * from +0 in ascending j; then part[p] += part[p + s] for p < s, s = 16, 8, 4, 2, 1.
 * drow of moe_swiglu_bwd_quantize: 8 columns add from +0 in ascending order; of the 16 sums of 128 columns
 * part[p] += part[p + s] for every p that 2 s divides, s = 1, 2, 4, 8; the sums of 128 add from +0 in ascending order.
 *
 * moe_route_bwd. w is a weight, g its gradient times `scale`, sums go through the slots in order from +0, and e is the
 * expert of a slot:
 *     normalised   d = (g - (sum of g * w) / z) / z, w the weights before that, z = their sum + eps; else d = g
 *     softmax      dl[j] = p[j] * (d[slot of j, or 0] - sum of d * p[e])       for all experts j, p their softmax
 *     topk_softmax dl[e] = q * (d - sum of d * q)                              q the softmax over the slots
 *     sigmoid      dl[e] = d * (w * (1 - w))
 *     sqrt_softplus dl[e] = d * (sigmoid(l) / (2 w)), 0 where w is 0
 * Several slots of one expert add up in their order. docs/numerics.md, Mixtures of experts in training. */
#ifndef RIDGE_EXPERTS_MATH_H
#define RIDGE_EXPERTS_MATH_H

#include "moe.h"

enum { RIDGE_EXPERTS_GROUP = 8, RIDGE_EXPERTS_PARTS = 32 };

/* d from g, for normalised weights: `dot` is the sum of g * w. */
RIDGE_FN float ridge_route_bwd_normalised(float g, float dot, float z)
{
    return (g - dot / z) / z;
}

/* The gradient of a logit l whose score is w, for the rules whose scores depend on nothing else. */
RIDGE_FN float ridge_route_bwd_score(uint32_t rule, float d, float w, float l)
{
    if (rule == RIDGE_ROUTE_SIGMOID)
        return d * (w * (1.0f - w));
    return w == 0.0f ? 0.0f : d * (ridge_sigmoid(l) / (w + w));
}

#endif
