/* moe.h: the arithmetic of moe_route in its bit-exact order.
 *
 * One source for the C reference and CUDA. Of a row of logits l (logit_bias already added):
 *     score    softmax: e / sum, e = exp(l - max), the sum by 32 partials (expert e belongs to e % 32), ascending in
 *              each, then part[p] += part[p + s] for p < s, s = 16, 8, 4, 2, 1
 *              topk_softmax: l.  sigmoid: 1 / (1 + exp(-l)).  sqrt_softplus: sqrt(log(1 + exp(l)))
 *     choice   score + bias, as a key: an unsigned number that grows with it; +-0 are one; NaN is below all numbers
 *     weight   sums over the chosen go through the slots in order, from +0
 * Leaves out: loads, the search for the largest keys. docs/numerics.md, Mixtures of experts. */
#ifndef RIDGE_MOE_MATH_H
#define RIDGE_MOE_MATH_H

#include "norm.h"
#include "ridge.h"
#include "sample.h"

/* Keys of an expert that cannot be chosen, and of one whose choice is NaN. */
enum { RIDGE_ROUTE_EXCLUDED = 0, RIDGE_ROUTE_NAN = 1, RIDGE_ROUTE_PARTS = 32 };

RIDGE_FN uint32_t ridge_route_key(float choice)
{
    return choice == choice ? ridge_sample_key(choice + 0.0f) : (uint32_t)RIDGE_ROUTE_NAN;
}

/* What a key stands for; -infinity for one that is no number. */
RIDGE_FN float ridge_route_value(uint32_t key)
{
    return key > RIDGE_ROUTE_NAN ? ridge_sample_logit(key) : ridge_float(0xff800000u);
}

/* exp(l - max), 1 for the largest itself, so that infinite logits share the weight; l is not NaN. */
RIDGE_FN float ridge_route_exp(float l, float max)
{
    return l == max ? 1.0f : ridge_exp(l - max);
}

/* log(1 + t) for t in [0, 1], error <= 2 ulp: 2 atanh(t / (2 + t)) by its series, which ends at s^15. */
RIDGE_FN float ridge_log1p_unit(float t)
{
    const float s = t / (2.0f + t), z = s * s;
    float p = 0x1.111112p-4f; /* 1/15, 1/13, ..., 1/3 */

    p = ridge_fma(p, z, 0x1.3b13b2p-4f);
    p = ridge_fma(p, z, 0x1.745d18p-4f);
    p = ridge_fma(p, z, 0x1.c71c72p-4f);
    p = ridge_fma(p, z, 0x1.24924ap-3f);
    p = ridge_fma(p, z, 0x1.99999ap-3f);
    p = ridge_fma(p, z, 0x1.555556p-2f);
    p = ridge_fma(p * z, s, s);
    return p + p;
}

/* sqrt(log(1 + exp(l))) */
RIDGE_FN float ridge_sqrt_softplus(float l)
{
    return ridge_sqrt((l > 0.0f ? l : 0.0f) + ridge_log1p_unit(ridge_exp_neg(l)));
}

/* The score of a logit that is not NaN, for the rules whose scores depend on nothing else; `rule` is a flag. */
RIDGE_FN float ridge_route_score(uint32_t rule, float l)
{
    return rule == RIDGE_ROUTE_SIGMOID         ? ridge_sigmoid(l)
           : rule == RIDGE_ROUTE_SQRT_SOFTPLUS ? ridge_sqrt_softplus(l)
                                               : l;
}

#endif
