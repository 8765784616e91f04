/* cpu_route.c: moe_route_bwd on the CPU, in C. A token is one thread's. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/math/experts.h"

/* The scores of a row in place of its logits, which `logit` keeps for the experts. Returns whether any is NaN. */
static bool score_row(const route_bwd_args *a, int64_t t, float *logit, float *score)
{
    float max = ridge_float(0xff800000u), part[RIDGE_ROUTE_PARTS] = {0};
    bool bad = false;

    for (int32_t e = 0; e < a->experts; e++) {
        const float l = ridge_load_element(a->logits.dtype, a->logits.data, t * a->logits.stride + e);

        logit[e] = a->logit_bias ? l + a->logit_bias[e] : l;
        bad = bad || logit[e] != logit[e];
        max = logit[e] > max ? logit[e] : max;
    }
    for (int32_t e = 0; e < a->experts && a->rule == RIDGE_ROUTE_SOFTMAX; e++)
        if (logit[e] == logit[e]) {
            score[e] = ridge_route_exp(logit[e], max);
            part[e % RIDGE_ROUTE_PARTS] += score[e];
        }
    for (int s = RIDGE_ROUTE_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    for (int32_t e = 0; e < a->experts; e++)
        if (logit[e] == logit[e])
            score[e] = a->rule == RIDGE_ROUTE_SOFTMAX ? score[e] / part[0] : ridge_route_score(a->rule, logit[e]);
    return bad;
}

/* w, the scores of the slots, become the softmax over those with an expert. */
static void softmax_of_slots(const route_bwd_args *a, const bool *valid, float *w)
{
    float max = ridge_float(0xff800000u), sum = 0.0f;

    for (int32_t s = 0; s < a->slots; s++)
        max = valid[s] && w[s] > max ? w[s] : max;
    for (int32_t s = 0; s < a->slots; s++) {
        w[s] = valid[s] && w[s] == w[s] ? ridge_route_exp(w[s], max) : 0.0f;
        sum += w[s];
    }
    for (int32_t s = 0; s < a->slots; s++)
        w[s] = w[s] / sum;
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

static void token(const route_bwd_args *a, int64_t t)
{
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
        softmax_of_slots(a, valid, w);
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
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const work)(const route_bwd_args *, int64_t) = token;
    const route_bwd_args a = route_bwd_args_of(&bound->call);
    ridge_team *team = ridge_team_begin((double)(a.tokens * a.experts) * (a.slots + 8) / 1000, a.tokens);

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < a.tokens; t++)
            work(&a, t);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
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
