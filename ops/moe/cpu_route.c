/* cpu_route.c: moe_route on the CPU, in C. A token is one thread's. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "cpu_route.h"

/* A row's logits as scores, and the keys of the choice. Returns whether any choice is NaN. */
static bool score_row(const route_args *a, int64_t t, float *score, uint32_t *key)
{
    bool bad = false;

    for (int32_t e = 0; e < a->experts; e++) {
        const int64_t at = t * a->stride + e;
        const float l =
            a->bf16 ? ridge_f32_from_bf16(((const uint16_t *)a->logits)[at]) : ((const float *)a->logits)[at];

        score[e] = a->logit_bias ? l + a->logit_bias[e] : l;
    }
    route_scores(a->rule, a->experts, score);
    for (int32_t e = 0; e < a->experts; e++) {
        key[e] = ridge_route_key(a->bias ? score[e] + a->bias[e] : score[e]);
        bad = bad || key[e] == RIDGE_ROUTE_NAN;
    }
    return bad;
}

/* Excludes the experts of all groups but the best. */
static void choose_groups(const route_args *a, uint32_t *key)
{
    const int32_t size = a->experts / a->groups;
    uint32_t group[32], kept = 0;

    for (int32_t g = 0; g < a->groups; g++) {
        uint32_t first = RIDGE_ROUTE_EXCLUDED, second = RIDGE_ROUTE_EXCLUDED;

        for (int32_t e = g * size; e < (g + 1) * size; e++) {
            const uint32_t k = key[e];

            second = k > first ? first : k > second ? k : second;
            first = k > first ? k : first;
        }
        group[g] =
            a->group_max || size == 1 ? first : ridge_route_key(ridge_route_value(first) + ridge_route_value(second));
    }
    for (int32_t i = 0; i < a->top_groups; i++) {
        int32_t best = 0;

        for (int32_t g = 1; g < a->groups; g++)
            best = group[g] > group[best] ? g : best;
        group[best] = RIDGE_ROUTE_EXCLUDED;
        kept |= 1u << best;
    }
    for (int32_t e = 0; e < a->experts; e++)
        key[e] = kept >> (e / size) & 1 ? key[e] : (uint32_t)RIDGE_ROUTE_EXCLUDED;
}

/* The weights of the chosen from their scores; valid: the slot has an expert. */
static void weigh(const route_args *a, bool bad, const bool *valid, float *w)
{
    float sum = 0.0f;

    if (a->rule == RIDGE_ROUTE_TOPK_SOFTMAX)
        route_softmax_of_slots(a->slots, valid, w);
    for (int32_t s = 0; s < a->slots; s++)
        sum += valid[s] ? w[s] : 0.0f;
    for (int32_t s = 0; s < a->slots; s++) {
        w[s] = (a->normalise ? w[s] / (sum + a->eps) : w[s]) * a->scale;
        w[s] = !valid[s] ? 0.0f : bad ? ridge_float(RIDGE_NAN_F32) : ridge_f32_canonical(w[s]);
    }
}

static void route_token(const void *args, int64_t t)
{
    const route_args *a = args;
    int32_t *ids = a->ids + t * a->ids_stride;
    float score[RIDGE_MOE_MAX_EXPERTS], w[RIDGE_MOE_MAX_SLOTS];
    uint32_t key[RIDGE_MOE_MAX_EXPERTS];
    bool valid[RIDGE_MOE_MAX_SLOTS];
    const bool bad = score_row(a, t, score, key);

    if (!a->given && a->groups > 1)
        choose_groups(a, key);
    for (int32_t s = 0; s < a->slots; s++) {
        int32_t best = 0;

        for (int32_t e = 1; e < a->experts && !a->given; e++)
            best = key[e] > key[best] ? e : best;
        best = a->given ? ids[s] : best;
        valid[s] = best >= 0 && best < a->experts;
        w[s] = valid[s] ? score[best] : 0.0f;
        if (!a->given) {
            key[best] = RIDGE_ROUTE_EXCLUDED;
            ids[s] = best;
        }
    }
    weigh(a, bad, valid, w);
    memcpy(a->weights + t * a->weights_stride, w, (size_t)a->slots * sizeof *w);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const route_args a = route_args_of(&bound->call);

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    ridge_team_run((double)(a.tokens * a.experts) * (a.slots + 8) / 1000, a.tokens, route_token, &a);
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * 1e-2;
}

static const ridge_kernel rows[] = {
    {.name = "cpu.moe_route.c",
     .op = RIDGE_MOE_ROUTE,
     .arch_min = RIDGE_ARCH_C,
     .arch_max = RIDGE_ARCH_AVX512,
     .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     .cost = cost,
     .launch = launch},
};

const ridge_kernel_list ridge_cpu_moe_route = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
