/* cpu_route.c: moe_route_bwd on the CPU, in C. A token is one thread's. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "ops/moe/cpu_route.h"
#include "src/math/experts.h"

/* The logits of a row and their scores. Returns whether any is NaN. */
static bool score_row(const route_bwd_args *a, int64_t t, float *logit, float *score)
{
    bool bad = false;

    for (int32_t e = 0; e < a->experts; e++) {
        const float l = ridge_load_element(a->logits.dtype, a->logits.data, t * a->logits.stride + e);

        logit[e] = a->logit_bias ? l + a->logit_bias[e] : l;
        bad = bad || logit[e] != logit[e];
    }
    memcpy(score, logit, (size_t)a->experts * sizeof *score);
    route_scores(a->rule, a->experts, score);
    return bad;
}

/* d of each slot from w, and the sum of d * w that the two softmaxes subtract. */
static float slot_gradients(const route_bwd_args *a, int64_t t, const bool *valid, const float *w, float *d)
{
    float sum = 0.0f, dot = 0.0f;

    for (int32_t s = 0; s < a->slots; s++) {
        d[s] = valid[s] ? a->dweights[t * a->dweights_stride + s] * a->scale : 0.0f;
        sum += valid[s] ? w[s] : 0.0f;
        dot += valid[s] ? d[s] * w[s] : 0.0f;
    }
    for (int32_t s = 0; s < a->slots && a->normalise; s++)
        d[s] = valid[s] ? ridge_route_bwd_normalised(d[s], dot, sum + a->eps) : 0.0f;
    dot = 0.0f;
    for (int32_t s = 0; s < a->slots; s++)
        dot += valid[s] ? d[s] * w[s] : 0.0f;
    return dot;
}

static void token(const void *args, int64_t t)
{
    const route_bwd_args *a = args;
    const int32_t *ids = a->ids + t * a->ids_stride;
    const ridge_operand out = {a->dlogits.data, a->dlogits.stride, a->dlogits.dtype, 0};
    float logit[RIDGE_MOE_MAX_EXPERTS], score[RIDGE_MOE_MAX_EXPERTS], w[RIDGE_MOE_MAX_SLOTS], d[RIDGE_MOE_MAX_SLOTS];
    bool valid[RIDGE_MOE_MAX_SLOTS];
    const bool bad = score_row(a, t, logit, score);
    float dot;

    for (int32_t s = 0; s < a->slots; s++) {
        valid[s] = ids[s] >= 0 && ids[s] < a->experts;
        w[s] = valid[s] && !bad ? score[ids[s]] : 0.0f;
    }
    if (a->rule == RIDGE_ROUTE_TOPK_SOFTMAX)
        route_softmax_of_slots(a->slots, valid, w);
    dot = slot_gradients(a, t, valid, w, d);
    for (int32_t e = 0; e < a->experts; e++) {
        float sum = 0.0f, result;
        bool chosen = false;

        for (int32_t s = 0; s < a->slots; s++)
            if (ids[s] == e) {
                chosen = true;
                sum += a->rule == RIDGE_ROUTE_SOFTMAX        ? d[s]
                       : a->rule == RIDGE_ROUTE_TOPK_SOFTMAX ? w[s] * (d[s] - dot)
                                                             : ridge_route_bwd_score(a->rule, d[s], w[s], logit[e]);
            }
        result = a->rule == RIDGE_ROUTE_SOFTMAX ? score[e] * (sum - dot) : chosen ? sum : 0.0f;
        ridge_store_element(&out, t * out.stride + e, bad ? ridge_float(RIDGE_NAN_F32) : result);
    }
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const route_bwd_args a = route_bwd_args_of(&bound->call);

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    ridge_team_run((double)(a.tokens * a.experts) * (a.slots + 8) / 1000, a.tokens, token, &a);
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * 1e-2;
}

static const ridge_kernel rows[] = {
    {.name = "cpu.moe_route_bwd.c",
     .op = RIDGE_MOE_ROUTE_BWD,
     .arch_min = RIDGE_ARCH_C,
     .arch_max = RIDGE_ARCH_AVX512,
     .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     .cost = cost,
     .launch = launch},
};

const ridge_kernel_list ridge_cpu_experts_route = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
