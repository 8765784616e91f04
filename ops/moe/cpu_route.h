/* cpu_route.h: what moe_route and moe_route_bwd share on the CPU: the scores of a row, and the softmax of slots. */
#ifndef RIDGE_MOE_CPU_ROUTE_H
#define RIDGE_MOE_CPU_ROUTE_H

#include <stdbool.h>

#include "src/math/moe.h"

/* The scores of a row in place of its logits. NaN stays. */
static inline void route_scores(uint32_t rule, int32_t experts, float *score)
{
    float max = ridge_float(0xff800000u), part[RIDGE_ROUTE_PARTS] = {0};

    for (int32_t e = 0; e < experts; e++)
        max = score[e] > max ? score[e] : max;
    for (int32_t e = 0; e < experts && rule == RIDGE_ROUTE_SOFTMAX; e++)
        if (score[e] == score[e]) {
            score[e] = ridge_route_exp(score[e], max);
            part[e % RIDGE_ROUTE_PARTS] += score[e];
        }
    for (int s = RIDGE_ROUTE_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    for (int32_t e = 0; e < experts; e++)
        if (score[e] == score[e])
            score[e] = rule == RIDGE_ROUTE_SOFTMAX ? score[e] / part[0] : ridge_route_score(rule, score[e]);
}

/* w, the scores of the slots, become the softmax over those with an expert (valid). */
static inline void route_softmax_of_slots(int32_t slots, const bool *valid, float *w)
{
    float max = ridge_float(0xff800000u), sum = 0.0f;

    for (int32_t s = 0; s < slots; s++)
        max = valid[s] && w[s] > max ? w[s] : max;
    for (int32_t s = 0; s < slots; s++) {
        w[s] = valid[s] && w[s] == w[s] ? ridge_route_exp(w[s], max) : 0.0f;
        sum += w[s];
    }
    for (int32_t s = 0; s < slots; s++)
        w[s] = w[s] / sum;
}

#endif
