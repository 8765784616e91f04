/* route.c: the cases of moe_route, each model's rule among them, and its oracle in float64. A choice must be the best
 * of what is left but for rounding, and the first of those that are equal; ids are different and within the experts,
 * whatever the logits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "moe.h"

static const char *const rules[] = {
    "experts=8 slots=2 normalise=1",                                                                 /* Mixtral */
    "experts=128 slots=8 normalise=1 logits=bf16",                                                   /* Qwen3-MoE */
    "experts=60 slots=4",                                                                            /* Qwen2-MoE */
    "experts=160 slots=6 groups=8 top_groups=3 group_max=1 scale=16",                                /* DeepSeek-V2 */
    "experts=256 slots=8 groups=8 top_groups=4 rule=sigmoid normalise=1 bias=1 scale=2.5 eps=1e-20", /* DeepSeek-V3 */
    "experts=384 slots=8 rule=sigmoid normalise=1 bias=1 scale=2.827 eps=1e-20",                     /* Kimi K2 */
    "experts=256 slots=6 rule=sqrt_softplus normalise=1 bias=1 scale=1.5 eps=1e-20",                 /* DeepSeek-V4 */
    "experts=256 slots=6 rule=sqrt_softplus normalise=1 given=1 scale=1.5 eps=1e-20", /* and its layers of given ids */
    "experts=128 slots=4 rule=topk_softmax logit_bias=1 logits=bf16",                 /* gpt-oss */
    "experts=16 slots=1 rule=sigmoid",                                                /* Llama 4 */
    "experts=1024 slots=32 bias=1 logit_bias=1",
    "experts=1 slots=1 normalise=1",
    "experts=32 slots=32 rule=topk_softmax normalise=1",
    "experts=96 slots=5 groups=32 top_groups=2 rule=sigmoid",
    "experts=32 slots=3 groups=32 top_groups=7 bias=1",
    "experts=40 slots=7 rule=topk_softmax bias=1 scale=-3",
    "experts=513 slots=9 rule=topk_softmax given=1",
    "experts=71 slots=3 given=1 normalise=1",
};

void cases_moe_route(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        int tokens;
        test_case layout;
    } shape[] = {
        {0, {.fill = FILL_NORMAL}},
        {1, {.fill = FILL_UNIT}},
        {6, {.fill = FILL_UNIT, .slices = true, .pad = 5}}, /* integers: many equal ones */
        {17, {.fill = FILL_UNIT, .slices = true, .shift = 1}},
        {33, {.fill = FILL_EDGE}},
        {5, {.fill = FILL_NORMAL, .pad = 3, .repeats = 50}},
        {9, {.fill = FILL_GROUPS, .slices = true}},
    };
    char text[256];

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int r = 0; r < (int)(sizeof rules / sizeof rules[0]); r++) {
            if (level == CASES_QUICK && (i + r) % 2)
                continue;
            snprintf(text, sizeof text, "tokens=%d %s", shape[i].tokens, rules[r]);
            cases_add(list, op, text, shape[i].layout);
        }
}

/* ----------------------------------------------------------------------------------------------------------- oracle */

enum { MOST = RIDGE_MOE_MAX_EXPERTS };

/* A row in float64: score, choice and how far the library's f32 choice may be from it. */
typedef struct row64 {
    double l[MOST], score[MOST], choice[MOST], slack[MOST], max;
    bool sure[MOST], possible[MOST]; /* its group is among the best: certainly, or but for rounding */
    bool nan, infinite;
} row64;

static double softplus(double l)
{
    return (l > 0 ? l : 0) + log1p(exp(-fabs(l)));
}

static void load_row(const oracle_run *s, int64_t t, row64 *r)
{
    const ridge_call *call = &s->im->call;
    const int64_t n = call->dim[1];
    const uint32_t rule = call->flags & RIDGE_ROUTE_RULE;
    const bool more = s->im->length[RIDGE_MOE_ROUTE_LOGIT_BIAS] > 0, biased = s->im->length[RIDGE_MOE_ROUTE_BIAS] > 0;
    double sum = 0;

    r->max = -(double)INFINITY;
    r->nan = r->infinite = false;
    for (int64_t e = 0; e < n; e++) {
        r->l[e] = oracle_in(s, RIDGE_MOE_ROUTE_LOGITS, t, e);
        if (more)
            r->l[e] = (double)(float)(r->l[e] + oracle_in(s, RIDGE_MOE_ROUTE_LOGIT_BIAS, 0, e));
        r->nan = r->nan || isnan(r->l[e]);
        r->infinite = r->infinite || isinf(r->l[e]);
        r->max = fmax(r->max, r->l[e]);
    }
    for (int64_t e = 0; e < n; e++)
        sum += exp(r->l[e] - r->max);
    for (int64_t e = 0; e < n; e++) {
        const double b = biased ? oracle_in(s, RIDGE_MOE_ROUTE_BIAS, 0, e) : 0;

        r->score[e] = rule == RIDGE_ROUTE_SOFTMAX         ? exp(r->l[e] - r->max) / sum
                      : rule == RIDGE_ROUTE_SIGMOID       ? oracle_sigmoid(r->l[e])
                      : rule == RIDGE_ROUTE_SQRT_SOFTPLUS ? sqrt(softplus(r->l[e]))
                                                          : r->l[e];
        r->choice[e] = r->score[e] + b;
        r->slack[e] =
            rule == RIDGE_ROUTE_TOPK_SOFTMAX
                ? 0x1p-24 * (biased ? fabs(r->choice[e]) : 0)
                : 0x1p-24 * ((64 + 4 * fmin(r->max - r->l[e], 104)) * fabs(r->score[e]) + fabs(r->choice[e])) +
                      0x1p-120;
    }
}

/* Which groups may be among the best. */
static void load_groups(const ridge_call *call, row64 *r)
{
    const int64_t groups = call->opt.moe_route.groups, size = call->dim[1] / groups;
    double score[32], slack[32];

    for (int64_t g = 0; g < groups; g++) {
        double first = -(double)INFINITY, second = -(double)INFINITY;

        slack[g] = 0;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            second = r->choice[e] > first ? first : fmax(second, r->choice[e]);
            first = fmax(first, r->choice[e]);
            slack[g] = fmax(slack[g], 4 * r->slack[e]);
        }
        score[g] = size == 1 || (call->flags & RIDGE_ROUTE_GROUP_MAX) ? first : first + second;
        slack[g] += 0x1p-24 * fabs(score[g]);
    }
    for (int64_t e = 0; e < call->dim[1]; e++) {
        int64_t above = 0, near = 0;

        for (int64_t g = 0; g < groups; g++) {
            const double room = slack[g] + slack[e / size], d = score[g] - score[e / size];

            above += g != e / size && d > room;
            near += g != e / size && d >= -room;
        }
        r->possible[e] = above < call->opt.moe_route.top_groups;
        r->sure[e] = near < call->opt.moe_route.top_groups;
    }
}

static void check_choice(oracle_run *s, int64_t t, const row64 *r, const int64_t *id)
{
    const int64_t n = s->im->call.dim[1], slots = s->im->call.dim[2];
    bool taken[MOST] = {false};

    for (int64_t i = 0; i < slots; i++) {
        if (id[i] < 0 || id[i] >= n || taken[id[i]]) {
            oracle_note(s, INFINITY, "id outside the experts or twice", t, i);
            return;
        }
        taken[id[i]] = true;
        if (r->nan || r->infinite)
            continue;
        oracle_note(s, r->possible[id[i]] ? 0 : INFINITY, "id of a group that is not among the best", t, i);
        for (int64_t e = 0; e < n; e++) {
            const double d = r->choice[e] - r->choice[id[i]];

            if (taken[e] || !r->sure[e])
                continue;
            oracle_note(s, d > r->slack[e] + r->slack[id[i]] ? INFINITY : 0, "id that is not the best left", t, i);
            oracle_note(s, d == 0 && r->l[e] == r->l[id[i]] && e < id[i] && r->sure[id[i]] ? INFINITY : 0,
                        "id behind an equal one", t, i);
        }
    }
}

static void check_weights(oracle_run *s, int64_t t, const row64 *r, const int64_t *id)
{
    const ridge_call *call = &s->im->call;
    const ridge_moe_route_options *o = &call->opt.moe_route;
    double w[RIDGE_MOE_MAX_SLOTS], max = -(double)INFINITY, sum = 0, far = 0;

    for (int64_t i = 0; i < call->dim[2]; i++) {
        w[i] = id[i] >= 0 && id[i] < call->dim[1] ? r->score[id[i]] : 0;
        if (id[i] >= 0 && id[i] < call->dim[1]) {
            max = fmax(max, r->l[id[i]]);
            far = fmax(far, fmin(r->max - r->l[id[i]], 104));
        }
    }
    if ((call->flags & RIDGE_ROUTE_RULE) == RIDGE_ROUTE_TOPK_SOFTMAX) {
        for (int64_t i = 0; i < call->dim[2]; i++) {
            w[i] = id[i] >= 0 && id[i] < call->dim[1] ? exp(r->l[id[i]] - max) : 0;
            sum += w[i];
        }
        for (int64_t i = 0; i < call->dim[2]; i++)
            w[i] = sum > 0 ? w[i] / sum : 0;
    }
    sum = 0;
    for (int64_t i = 0; i < call->dim[2]; i++)
        sum += w[i];
    for (int64_t i = 0; i < call->dim[2]; i++) {
        const double got = oracle_out(s, RIDGE_MOE_ROUTE_WEIGHTS, t, i);

        if (id[i] < 0 || id[i] >= call->dim[1]) {
            oracle_note(s, got == 0 ? 0 : INFINITY, "weight of no expert", t, i);
            continue;
        }
        if (r->nan)
            oracle_note(s, isnan(got) ? 0 : INFINITY, "weight of a row with NaN", t, i);
        if (r->nan || r->infinite || (call->flags & RIDGE_ROUTE_NORMALISE && sum + (double)o->eps < 0x1p-100))
            continue;
        if (call->flags & RIDGE_ROUTE_NORMALISE)
            w[i] /= sum + (double)o->eps;
        w[i] *= (double)o->scale;
        oracle_compare(s, got, w[i], 0x1p-24 * (64 + 8 * far) * fabs(w[i]) + 0x1p-120, "weights", t, i);
    }
}

void oracle_moe_route(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    static _Thread_local row64 row;

    for (int64_t t = 0; t < call->dim[0]; t++) {
        const bool given = (call->flags & RIDGE_ROUTE_GIVEN) != 0;
        int64_t id[RIDGE_MOE_MAX_SLOTS];

        load_row(s, t, &row);
        load_groups(call, &row);
        for (int64_t i = 0; i < call->dim[2]; i++)
            id[i] =
                (int64_t)(given ? oracle_in(s, RIDGE_MOE_ROUTE_IDS, t, i) : oracle_out(s, RIDGE_MOE_ROUTE_IDS, t, i));
        if (!given)
            check_choice(s, t, &row, id);
        check_weights(s, t, &row, id);
    }
}
