/* op.c: the op rows of moe_permute, moe_combine, moe_combine_bwd and moe_route_bwd and their builders: operands,
 * problem text, rules. */
#include "op.h"

#include <math.h>

const char *ridge_experts_pairs_rule(int64_t tokens, int64_t slots)
{
    if (slots < 1 || slots > RIDGE_MOE_MAX_SLOTS)
        return "slots is outside 1 .. 32";
    return tokens > ((INT64_C(1) << 31) - (1 << 17)) / slots ? "more than 2^31 - 2^17 pairs of a token and a slot"
                                                             : NULL;
}

const char *ridge_experts_rule(int64_t experts)
{
    return experts < 1 || experts > RIDGE_MOE_MAX_EXPERTS ? "experts is outside 1 .. 1024" : NULL;
}

/* ----------------------------------------------------------------------------------------------------- moe_permute */

static const ridge_field no_fields[] = {END};

static const char *permute_rule(const ridge_call *call)
{
    const char *reason = ridge_experts_pairs_rule(call->dim[0], call->dim[1]);

    return reason ? reason : ridge_experts_rule(call->dim[2]);
}

static void permute_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg == RIDGE_MOE_PERMUTE_OFFSETS)
        ridge_set_extent(rows, cols, 1, call->dim[2] + 1);
    else if (arg == RIDGE_MOE_PERMUTE_ROWS)
        ridge_set_extent(rows, cols, 1,
                         ridge_experts_pairs_rule(call->dim[0], call->dim[1]) ? 0 : call->dim[0] * call->dim[1]);
    else
        ridge_set_extent(rows, cols, call->dim[0], call->dim[1]);
}

static double permute_flops(const ridge_problem *problem)
{
    return 4.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_moe_permute(int64_t tokens, int64_t slots, int64_t experts, const int32_t *ids, int32_t *offsets,
                             int32_t *rows, int32_t *place)
{
    ridge_call call = ridge_begin(RIDGE_MOE_PERMUTE, tokens, slots, experts, 0);

    ridge_set(&call, RIDGE_MOE_PERMUTE_IDS, RIDGE_I32, ids, 0);
    ridge_set(&call, RIDGE_MOE_PERMUTE_OFFSETS, RIDGE_I32, offsets, 0);
    ridge_set(&call, RIDGE_MOE_PERMUTE_ROWS, RIDGE_I32, rows, 0);
    ridge_set(&call, RIDGE_MOE_PERMUTE_PLACE, RIDGE_I32, place, 0);
    return call;
}

RIDGE_DEFAULTS(permute_defaults, ridge_moe_permute(0, 0, 0, NULL, NULL, NULL, NULL))

const ridge_op_row ridge_op_moe_permute = {
    .id = RIDGE_MOE_PERMUTE,
    .name = "moe_permute",
    .summary = "pairs of a token and a slot, sorted by expert",
    .dims = 3,
    .dim_name = {"tokens", "slots", "experts"},
    .args = 4,
    .arg =
        {
            {"ids", RIDGE_IN, 0, -1, RIDGE_MATRIX, EXPERTS_I32, 0, "[tokens, slots]"},
            {"offsets", RIDGE_OUT, 0, -1, RIDGE_VECTOR, EXPERTS_I32, 0, "[experts + 1]"},
            {"rows", RIDGE_OUT, 0, -1, RIDGE_VECTOR, EXPERTS_I32, 0, "[tokens * slots]"},
            {"place", RIDGE_OUT, 0, -1, RIDGE_MATRIX, EXPERTS_I32, 0, "[tokens, slots]"},
        },
    .fields = no_fields,
    .contract = EXPERTS_CONTRACT,
    .bound = "equal",
    .rule = permute_rule,
    .extent = permute_extent,
    .flops = permute_flops,
    .defaults = permute_defaults,
};

/* ----------------------------------------------------------------------------------------------------- moe_combine */

static const ridge_field combine_fields[] = {
    DTYPE("y", RIDGE_MOE_COMBINE_Y),
    DTYPE("out", RIDGE_MOE_COMBINE_OUT),
    HAS("weights", RIDGE_MOE_COMBINE_WEIGHTS),
    HAS("shared", RIDGE_MOE_COMBINE_SHARED),
    HAS("residual", RIDGE_MOE_COMBINE_RESIDUAL),
    END,
};

static const char *combine_rule(const ridge_call *call)
{
    return ridge_experts_pairs_rule(call->dim[0], call->dim[1]);
}

/* 0 pairs where their number is refused. */
static int64_t pairs_of(const ridge_call *call)
{
    return combine_rule(call) ? 0 : call->dim[0] * call->dim[1];
}

static void combine_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg == RIDGE_MOE_COMBINE_PLACE || arg == RIDGE_MOE_COMBINE_WEIGHTS)
        ridge_set_extent(rows, cols, call->dim[0], call->dim[1]);
    else
        ridge_set_extent(rows, cols, arg == RIDGE_MOE_COMBINE_Y ? pairs_of(call) : call->dim[0], call->dim[2]);
}

static double combine_flops(const ridge_problem *problem)
{
    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2];
}

ridge_call ridge_moe_combine(int64_t tokens, int64_t slots, int64_t cols, ridge_tensor y, const int32_t *place,
                             const float *weights, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_MOE_COMBINE, tokens, slots, cols, 0);

    ridge_put(&call, RIDGE_MOE_COMBINE_Y, y);
    ridge_set(&call, RIDGE_MOE_COMBINE_PLACE, RIDGE_I32, place, 0);
    ridge_set(&call, RIDGE_MOE_COMBINE_WEIGHTS, RIDGE_F32, weights, 0);
    ridge_put(&call, RIDGE_MOE_COMBINE_OUT, out);
    return call;
}

RIDGE_DEFAULTS(combine_defaults,
               ridge_moe_combine(0, 0, 0, ridge_matrix(NULL, RIDGE_BF16), NULL, NULL, ridge_matrix(NULL, RIDGE_BF16)))

const ridge_op_row ridge_op_moe_combine = {
    .id = RIDGE_MOE_COMBINE,
    .name = "moe_combine",
    .summary = "the weighted sum of the rows of each token's slots",
    .dims = 3,
    .dim_name = {"tokens", "slots", "cols"},
    .args = 6,
    .arg =
        {
            {"y", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens * slots, cols]"},
            {"place", RIDGE_IN, 0, -1, RIDGE_MATRIX, EXPERTS_I32, 0, "[tokens, slots]"},
            {"weights", RIDGE_IN, 1, -1, RIDGE_MATRIX, EXPERTS_F32, 0, "[tokens, slots]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, cols]"},
            {"shared", RIDGE_IN, 1, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, cols]"},
            {"residual", RIDGE_IN, 1, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, cols]"},
        },
    .fields = combine_fields,
    .contract = EXPERTS_CONTRACT,
    .bound = "(slots + 2) units of 2^-24 of the sum of magnitudes, and half a unit of the dtype",
    .rule = combine_rule,
    .extent = combine_extent,
    .flops = combine_flops,
    .defaults = combine_defaults,
};

/* ------------------------------------------------------------------------------------------------- moe_combine_bwd */

static const ridge_field combine_bwd_fields[] = {
    DTYPE("dtype", RIDGE_MOE_COMBINE_BWD_DOUT),
    HAS("weights", RIDGE_MOE_COMBINE_BWD_WEIGHTS),
    HAS("dweights", RIDGE_MOE_COMBINE_BWD_DWEIGHTS),
    END,
};

static const char *combine_bwd_rule(const ridge_call *call)
{
    const char *reason = combine_rule(call);

    if (reason || call->dim[0] == 0 || call->dim[2] == 0)
        return reason;
    if (ridge_has(call, RIDGE_MOE_COMBINE_BWD_DWEIGHTS) != ridge_has(call, RIDGE_MOE_COMBINE_BWD_Y))
        return "operands y and dweights come together";
    return NULL;
}

static void combine_bwd_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool all = arg == RIDGE_MOE_COMBINE_BWD_Y || arg == RIDGE_MOE_COMBINE_BWD_DY;

    if (arg == RIDGE_MOE_COMBINE_BWD_PLACE || arg == RIDGE_MOE_COMBINE_BWD_WEIGHTS ||
        arg == RIDGE_MOE_COMBINE_BWD_DWEIGHTS)
        ridge_set_extent(rows, cols, call->dim[0], call->dim[1]);
    else
        ridge_set_extent(rows, cols, all ? pairs_of(call) : call->dim[0], call->dim[2]);
}

static void combine_bwd_derive(ridge_call *call)
{
    if (call->arg[RIDGE_MOE_COMBINE_BWD_DWEIGHTS].dtype == RIDGE_NONE)
        call->arg[RIDGE_MOE_COMBINE_BWD_Y].dtype = RIDGE_NONE;
}

ridge_call ridge_moe_combine_bwd(int64_t tokens, int64_t slots, int64_t cols, ridge_tensor dout, ridge_tensor y,
                                 const int32_t *place, const float *weights, ridge_tensor dy, float *dweights)
{
    ridge_call call = ridge_begin(RIDGE_MOE_COMBINE_BWD, tokens, slots, cols, 0);

    ridge_put(&call, RIDGE_MOE_COMBINE_BWD_DOUT, dout);
    ridge_put(&call, RIDGE_MOE_COMBINE_BWD_Y, y);
    ridge_set(&call, RIDGE_MOE_COMBINE_BWD_PLACE, RIDGE_I32, place, 0);
    ridge_set(&call, RIDGE_MOE_COMBINE_BWD_WEIGHTS, RIDGE_F32, weights, 0);
    ridge_put(&call, RIDGE_MOE_COMBINE_BWD_DY, dy);
    ridge_set(&call, RIDGE_MOE_COMBINE_BWD_DWEIGHTS, RIDGE_F32, dweights, 0);
    return call;
}

RIDGE_DEFAULTS(combine_bwd_defaults,
               ridge_moe_combine_bwd(0, 0, 0, ridge_matrix(NULL, RIDGE_BF16), ridge_matrix(NULL, RIDGE_BF16), NULL,
                                     NULL, ridge_matrix(NULL, RIDGE_BF16), NULL))

const ridge_op_row ridge_op_moe_combine_bwd = {
    .id = RIDGE_MOE_COMBINE_BWD,
    .name = "moe_combine_bwd",
    .summary = "the gradients of moe_combine",
    .dims = 3,
    .dim_name = {"tokens", "slots", "cols"},
    .args = 6,
    .arg =
        {
            {"dout", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, cols]"},
            {"y", RIDGE_IN, 1, RIDGE_MOE_COMBINE_BWD_DOUT, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens * slots, cols]"},
            {"place", RIDGE_IN, 0, -1, RIDGE_MATRIX, EXPERTS_I32, 0, "[tokens, slots]"},
            {"weights", RIDGE_IN, 1, -1, RIDGE_MATRIX, EXPERTS_F32, 0, "[tokens, slots]"},
            {"dy", RIDGE_OUT, 0, RIDGE_MOE_COMBINE_BWD_DOUT, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens * slots, cols]"},
            {"dweights", RIDGE_OUT, 1, -1, RIDGE_MATRIX, EXPERTS_F32, 0, "[tokens, slots]"},
        },
    .fields = combine_bwd_fields,
    .contract = EXPERTS_CONTRACT,
    .bound = "dy: half a unit of the dtype; dweights: (cols / 32 + 8) units of 2^-24 of the sum of magnitudes",
    .rule = combine_bwd_rule,
    .extent = combine_bwd_extent,
    .derive = combine_bwd_derive,
    .flops = combine_flops,
    .defaults = combine_bwd_defaults,
};

/* --------------------------------------------------------------------------------------------------- moe_route_bwd */

static const char *const route_rules[] = {"softmax", "topk_softmax", "sigmoid", "sqrt_softplus", NULL};

static const ridge_field route_bwd_fields[] = {
    DTYPE("logits", RIDGE_MOE_ROUTE_BWD_LOGITS),
    CHOICE("rule", RIDGE_ROUTE_RULE, route_rules),
    FLAG("normalise", RIDGE_ROUTE_NORMALISE),
    HAS("logit_bias", RIDGE_MOE_ROUTE_BWD_LOGIT_BIAS),
    F32_OPTION(ridge_moe_route_options, scale, 1.0),
    F32_OPTION(ridge_moe_route_options, eps, 0.0),
    END,
};

static const char *route_bwd_rule(const ridge_call *call)
{
    const ridge_moe_route_options *o = &call->opt.moe_route;

    if (!isfinite(o->scale))
        return "option scale must be finite";
    if (!(o->eps >= 0.0f) || isinf(o->eps))
        return "option eps must be finite and not negative";
    if (ridge_experts_rule(call->dim[1]))
        return ridge_experts_rule(call->dim[1]);
    return call->dim[2] < 1 || call->dim[2] > RIDGE_MOE_MAX_SLOTS ? "slots is outside 1 .. 32" : NULL;
}

static void route_bwd_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool slots = arg == RIDGE_MOE_ROUTE_BWD_IDS || arg == RIDGE_MOE_ROUTE_BWD_DWEIGHTS;

    ridge_set_extent(rows, cols, arg == RIDGE_MOE_ROUTE_BWD_LOGIT_BIAS ? 1 : call->dim[0], call->dim[slots ? 2 : 1]);
}

static double route_bwd_flops(const ridge_problem *problem)
{
    return 20.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_moe_route_bwd(int64_t tokens, int64_t experts, int64_t slots, ridge_tensor logits, const int32_t *ids,
                               const float *dweights, ridge_tensor dlogits)
{
    ridge_call call = ridge_begin(RIDGE_MOE_ROUTE_BWD, tokens, experts, slots, 0);

    call.opt.moe_route = (ridge_moe_route_options){.groups = 1, .top_groups = 1, .scale = 1.0f};
    ridge_put(&call, RIDGE_MOE_ROUTE_BWD_LOGITS, logits);
    ridge_set(&call, RIDGE_MOE_ROUTE_BWD_IDS, RIDGE_I32, ids, 0);
    ridge_set(&call, RIDGE_MOE_ROUTE_BWD_DWEIGHTS, RIDGE_F32, dweights, 0);
    ridge_put(&call, RIDGE_MOE_ROUTE_BWD_DLOGITS, dlogits);
    return call;
}

RIDGE_DEFAULTS(route_bwd_defaults,
               ridge_moe_route_bwd(0, 0, 0, ridge_matrix(NULL, RIDGE_F32), NULL, NULL, ridge_matrix(NULL, RIDGE_F32)))

const ridge_op_row ridge_op_moe_route_bwd = {
    .id = RIDGE_MOE_ROUTE_BWD,
    .name = "moe_route_bwd",
    .summary = "the gradient of moe_route's logits",
    .dims = 3,
    .dim_name = {"tokens", "experts", "slots"},
    .args = 5,
    .arg =
        {
            {"logits", RIDGE_IN, 0, -1, RIDGE_MATRIX, EXPERTS_F32 | 1u << RIDGE_BF16, 0, "[tokens, experts]"},
            {"ids", RIDGE_IN, 0, -1, RIDGE_MATRIX, EXPERTS_I32, 0, "[tokens, slots]"},
            {"dweights", RIDGE_IN, 0, -1, RIDGE_MATRIX, EXPERTS_F32, 0, "[tokens, slots]"},
            {"dlogits", RIDGE_OUT, 0, RIDGE_MOE_ROUTE_BWD_LOGITS, RIDGE_MATRIX, EXPERTS_F32 | 1u << RIDGE_BF16, 0,
             "[tokens, experts]"},
            {"logit_bias", RIDGE_IN, 1, -1, RIDGE_VECTOR, EXPERTS_F32, 0, "[experts]"},
        },
    .fields = route_bwd_fields,
    .flags = RIDGE_ROUTE_RULE | RIDGE_ROUTE_NORMALISE,
    .contract = EXPERTS_CONTRACT | RIDGE_INVARIANT,
    .invariant_max = INT64_MAX,
    .bound = "256 units of 2^-24 of the sum of the magnitudes of the terms",
    .rule = route_bwd_rule,
    .extent = route_bwd_extent,
    .flops = route_bwd_flops,
    .defaults = route_bwd_defaults,
};
