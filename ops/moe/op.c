/* op.c: the op row of moe_route and its builder: operands, problem text, rules. */
#include <math.h>

#include "src/ops.h"

#define CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define F32 (1u << RIDGE_F32)

static const char *const route_rules[] = {"softmax", "topk_softmax", "sigmoid", "sqrt_softplus", NULL};

static const ridge_field route_fields[] = {
    DTYPE("logits", RIDGE_MOE_ROUTE_LOGITS),
    CHOICE("rule", RIDGE_ROUTE_RULE, route_rules),
    FLAG("normalise", RIDGE_ROUTE_NORMALISE),
    FLAG("group_max", RIDGE_ROUTE_GROUP_MAX),
    FLAG("given", RIDGE_ROUTE_GIVEN),
    HAS("bias", RIDGE_MOE_ROUTE_BIAS),
    HAS("logit_bias", RIDGE_MOE_ROUTE_LOGIT_BIAS),
    I64_OPTION(ridge_moe_route_options, groups, 1),
    I64_OPTION(ridge_moe_route_options, top_groups, 1),
    F32_OPTION(ridge_moe_route_options, scale, 1.0),
    F32_OPTION(ridge_moe_route_options, eps, 0.0),
    END,
};

static const char *route_rule(const ridge_call *call)
{
    const ridge_moe_route_options *o = &call->opt.moe_route;

    if (!isfinite(o->scale))
        return "option scale must be finite";
    if (!(o->eps >= 0.0f) || isinf(o->eps))
        return "option eps must be finite and not negative";
    if (call->dim[1] < 1 || call->dim[1] > RIDGE_MOE_MAX_EXPERTS)
        return "experts is outside 1 .. 1024";
    if (call->dim[2] < 1 || call->dim[2] > RIDGE_MOE_MAX_SLOTS || call->dim[2] > call->dim[1])
        return "slots is outside 1 .. 32, or above experts";
    if (o->groups < 1 || o->groups > 32 || call->dim[1] % o->groups)
        return "option groups must be within 1 .. 32 and divide experts";
    if (o->top_groups < 1 || o->top_groups > o->groups)
        return "option top_groups must be within 1 .. groups";
    if (call->dim[1] / o->groups * o->top_groups < call->dim[2])
        return "option top_groups leaves fewer experts than slots";
    if ((call->flags & RIDGE_ROUTE_GIVEN) && (ridge_has(call, RIDGE_MOE_ROUTE_BIAS) || o->groups > 1))
        return "with RIDGE_ROUTE_GIVEN there is nothing to choose: no bias, no groups";
    return NULL;
}

static void route_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool slots = arg == RIDGE_MOE_ROUTE_IDS || arg == RIDGE_MOE_ROUTE_WEIGHTS;

    ridge_set_extent(rows, cols, arg <= RIDGE_MOE_ROUTE_WEIGHTS ? call->dim[0] : 1, call->dim[slots ? 2 : 1]);
}

static uint8_t route_role(const ridge_call *call, int arg)
{
    if (arg == RIDGE_MOE_ROUTE_IDS)
        return call->flags & RIDGE_ROUTE_GIVEN ? RIDGE_IN : RIDGE_OUT;
    return arg == RIDGE_MOE_ROUTE_WEIGHTS ? RIDGE_OUT : RIDGE_IN;
}

static double route_flops(const ridge_problem *problem)
{
    return 20.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_moe_route(int64_t tokens, int64_t experts, int64_t slots, ridge_tensor logits, int32_t *ids,
                           float *weights)
{
    ridge_call call = ridge_begin(RIDGE_MOE_ROUTE, tokens, experts, slots, 0);

    call.opt.moe_route = (ridge_moe_route_options){.groups = 1, .top_groups = 1, .scale = 1.0f};
    ridge_put(&call, RIDGE_MOE_ROUTE_LOGITS, logits);
    ridge_set(&call, RIDGE_MOE_ROUTE_IDS, RIDGE_I32, ids, 0);
    ridge_set(&call, RIDGE_MOE_ROUTE_WEIGHTS, RIDGE_F32, weights, 0);
    return call;
}

RIDGE_DEFAULTS(route_defaults, ridge_moe_route(0, 0, 0, ridge_matrix(NULL, RIDGE_F32), NULL, NULL))

const ridge_op_row ridge_op_moe_route = {
    .id = RIDGE_MOE_ROUTE,
    .name = "moe_route",
    .summary = "the experts of each token and their weights",
    .dims = 3,
    .dim_name = {"tokens", "experts", "slots"},
    .args = 5,
    .arg =
        {
            {"logits", RIDGE_IN, 0, -1, RIDGE_MATRIX, F32 | 1u << RIDGE_BF16, 0, "[tokens, experts]"},
            {"ids", RIDGE_IN | RIDGE_OUT, 0, -1, RIDGE_MATRIX, 1u << RIDGE_I32, 0, "[tokens, slots]"},
            {"weights", RIDGE_OUT, 0, -1, RIDGE_MATRIX, F32, 0, "[tokens, slots]"},
            {"bias", RIDGE_IN, 1, -1, RIDGE_VECTOR, F32, 0, "[experts]"},
            {"logit_bias", RIDGE_IN, 1, -1, RIDGE_VECTOR, F32, 0, "[experts]"},
        },
    .fields = route_fields,
    .flags = RIDGE_ROUTE_RULE | RIDGE_ROUTE_NORMALISE | RIDGE_ROUTE_GROUP_MAX | RIDGE_ROUTE_GIVEN,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "weights: 64 units of 2^-24; an expert is chosen unless others are better by 16 units of |c|",
    .rule = route_rule,
    .extent = route_extent,
    .role = route_role,
    .flops = route_flops,
    .defaults = route_defaults,
};
