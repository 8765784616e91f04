/* op_quantize.c: the op rows of moe_permute_quantize, moe_swiglu_quantize and moe_swiglu_bwd_quantize, and their
 * builders. */
#include <math.h>

#include "op.h"
#include "ops/swiglu/op.h"
#include "src/util.h"

#define FP8 (1u << RIDGE_E4M3 | 1u << RIDGE_E5M2)
#define BOUND "those of quantize_fp8_dual of every group"

int64_t ridge_ld_groups(int64_t rows, int64_t experts)
{
    return rows >= 0 && experts >= 0 && ridge_max(rows, experts) <= INT64_C(1) << 40
               ? (rows + 127 * ridge_min(rows, experts)) / 128 * 128
               : 0;
}

/* The parts of the ops that are one: slots of q, scale, q_t, scale_t and offsets_t are consecutive. */
static void output_extent(int part, int64_t pairs, int64_t cols, int64_t experts, int64_t *rows, int64_t *wide)
{
    const int64_t padded = ridge_ld_groups(pairs, experts);

    if (part == 0)
        ridge_set_extent(rows, wide, pairs, cols);
    else if (part == 1)
        ridge_scale_extent(RIDGE_SCALE_ROW128, pairs, cols, rows, wide);
    else if (part == 2)
        ridge_set_extent(rows, wide, cols, padded);
    else if (part == 3)
        ridge_scale_extent(RIDGE_SCALE_ROW128, cols, padded, rows, wide);
    else
        ridge_set_extent(rows, wide, 1, experts + 1);
}

static const char *outputs_rule(const ridge_call *call, int q, float floor)
{
    if (!(floor >= 0.0f) || isinf(floor))
        return "option floor must be finite and not negative";
    if (ridge_has(call, q + 2) != ridge_has(call, q + 3))
        return "operands q_t and scale_t come together";
    return NULL;
}

/* Sets q and q_t in slots q .. q + 3, and offsets_t in the one after them. */
static void put_outputs(ridge_call *call, int slot, ridge_tensor q, ridge_tensor q_t, const int32_t *offsets_t)
{
    const bool dual = q_t.dtype != RIDGE_NONE;

    if (q.scaling != RIDGE_SCALING_ROW128 || (dual && q_t.scaling != RIDGE_SCALING_ROW128))
        call->invalid = "the scaling of q or of q_t is not row128";
    ridge_put_scaled(call, slot, q, RIDGE_F32);
    ridge_put_scaled(call, slot + 2, q_t, dual ? RIDGE_F32 : RIDGE_NONE);
    ridge_set(call, slot + 4, RIDGE_I32, offsets_t, 0);
}

static void derive_outputs(ridge_call *call, int q)
{
    if (call->arg[q + 2].dtype == RIDGE_NONE)
        call->arg[q + 3].dtype = RIDGE_NONE;
}

#define OUTPUTS(q, rows, cols)                                                                            \
    {"q", RIDGE_OUT, 0, -1, RIDGE_MATRIX, FP8, 0, "[" rows ", " cols "]"},                                \
        {"scale", RIDGE_OUT, 0, -1, RIDGE_TABLE, EXPERTS_F32, 0, "[ceil(" cols "/128), " rows "]"},       \
        {"q_t", RIDGE_OUT, 1, q, RIDGE_MATRIX, FP8, 0, "[" cols ", ridge_ld_groups(" rows ", experts)]"}, \
        {"scale_t",   RIDGE_OUT,   1, -1,                                                                 \
         RIDGE_TABLE, EXPERTS_F32, 0, "[ridge_ld_groups(" rows ", experts)/128, " cols "]"},              \
    {                                                                                                     \
        "offsets_t", RIDGE_OUT, 1, -1, RIDGE_VECTOR, EXPERTS_I32, 0, "[experts + 1]"                      \
    }

/* ------------------------------------------------------------------------------------------ moe_permute_quantize */

static const ridge_field permute_fields[] = {
    DTYPE("dtype", RIDGE_MOE_PERMUTE_QUANTIZE_X),           DTYPE("format", RIDGE_MOE_PERMUTE_QUANTIZE_Q),
    HAS("rows", RIDGE_MOE_PERMUTE_QUANTIZE_ROWS),           HAS("q_t", RIDGE_MOE_PERMUTE_QUANTIZE_Q_T),
    HAS("offsets_t", RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS_T), FLAG("pow2", RIDGE_POW2),
    F32_OPTION(ridge_quantize_options, floor, 0),           END,
};

static const char *permute_rule(const ridge_call *call)
{
    const char *reason = ridge_experts_pairs_rule(call->dim[0], call->dim[1]);

    reason = reason ? reason : ridge_experts_rule(call->dim[3]);
    if (!reason && call->dim[1] != 1 && call->dim[0] && !ridge_has(call, RIDGE_MOE_PERMUTE_QUANTIZE_ROWS))
        return "without operand rows, x is sorted already: slots must be 1";
    return reason ? reason : outputs_rule(call, RIDGE_MOE_PERMUTE_QUANTIZE_Q, call->opt.quantize.floor);
}

static void permute_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const int64_t pairs = ridge_experts_pairs_rule(call->dim[0], call->dim[1]) ? 0 : call->dim[0] * call->dim[1];

    if (arg == RIDGE_MOE_PERMUTE_QUANTIZE_X)
        ridge_set_extent(rows, cols, call->dim[0], call->dim[2]);
    else if (arg == RIDGE_MOE_PERMUTE_QUANTIZE_ROWS)
        ridge_set_extent(rows, cols, 1, pairs);
    else if (arg == RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS)
        ridge_set_extent(rows, cols, 1, call->dim[3] + 1);
    else
        output_extent(arg - RIDGE_MOE_PERMUTE_QUANTIZE_Q, pairs, call->dim[2], call->dim[3], rows, cols);
}

static void permute_derive(ridge_call *call)
{
    derive_outputs(call, RIDGE_MOE_PERMUTE_QUANTIZE_Q);
}

static double permute_flops(const ridge_problem *problem)
{
    return 3.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2];
}

ridge_call ridge_moe_permute_quantize(int64_t tokens, int64_t slots, int64_t cols, int64_t experts, ridge_tensor x,
                                      const int32_t *rows, const int32_t *offsets, ridge_tensor q, ridge_tensor q_t,
                                      int32_t *offsets_t)
{
    ridge_call call = ridge_begin(RIDGE_MOE_PERMUTE_QUANTIZE, tokens, slots, cols, experts);

    ridge_put(&call, RIDGE_MOE_PERMUTE_QUANTIZE_X, x);
    ridge_set(&call, RIDGE_MOE_PERMUTE_QUANTIZE_ROWS, RIDGE_I32, rows, 0);
    ridge_set(&call, RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS, RIDGE_I32, offsets, 0);
    put_outputs(&call, RIDGE_MOE_PERMUTE_QUANTIZE_Q, q, q_t, offsets_t);
    return call;
}

RIDGE_DEFAULTS(permute_defaults,
               ridge_moe_permute_quantize(0, 0, 0, 0, ridge_matrix(NULL, RIDGE_BF16), NULL, NULL,
                                          ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128),
                                          ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128), NULL))

const ridge_op_row ridge_op_moe_permute_quantize = {
    .id = RIDGE_MOE_PERMUTE_QUANTIZE,
    .name = "moe_permute_quantize",
    .summary = "codes and scales of rows sorted by expert, and of their transpose",
    .dims = 4,
    .dim_name = {"tokens", "slots", "cols", "experts"},
    .args = 8,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, cols]"},
            {"rows", RIDGE_IN, 1, -1, RIDGE_VECTOR, EXPERTS_I32, 0, "[tokens * slots]"},
            {"offsets", RIDGE_IN, 0, -1, RIDGE_VECTOR, EXPERTS_I32, 0, "[experts + 1]"},
            OUTPUTS(RIDGE_MOE_PERMUTE_QUANTIZE_Q, "tokens * slots", "cols"),
        },
    .fields = permute_fields,
    .flags = RIDGE_POW2,
    .contract = EXPERTS_CONTRACT,
    .bound = BOUND,
    .rule = permute_rule,
    .extent = permute_extent,
    .derive = permute_derive,
    .flops = permute_flops,
    .defaults = permute_defaults,
};

/* ------------------------------------------------------------------------------------------- moe_swiglu_quantize */

static const ridge_field swiglu_fields[] = {
    DTYPE("dtype", RIDGE_MOE_SWIGLU_QUANTIZE_GATE),
    DTYPE("format", RIDGE_MOE_SWIGLU_QUANTIZE_Q),
    HAS("q_t", RIDGE_MOE_SWIGLU_QUANTIZE_Q_T),
    HAS("offsets_t", RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS_T),
    FLAG("pow2", RIDGE_POW2),
    RIDGE_ACT_FIELD,
    FLAG("round_gate", RIDGE_ROUND_GATE),
    FLAG("interleaved", RIDGE_INTERLEAVED),
    HAS("row_scale", RIDGE_MOE_SWIGLU_QUANTIZE_ROW_SCALE),
    RIDGE_SWIGLU_FIELDS,
    F32_OPTION(ridge_swiglu_quantize_options, floor, 0),
    END,
};

static const char *swiglu_rule(const ridge_call *call)
{
    const bool interleaved = (call->flags & RIDGE_INTERLEAVED) != 0;
    const bool up = ridge_has(call, RIDGE_MOE_SWIGLU_QUANTIZE_UP);
    const char *reason = ridge_swiglu_options_rule(&call->opt.swiglu_quantize.swiglu, call->flags);

    reason = reason ? reason : ridge_experts_rule(call->dim[2]);
    reason = reason ? reason : ridge_experts_pairs_rule(call->dim[0], 1);
    if (!reason)
        reason = outputs_rule(call, RIDGE_MOE_SWIGLU_QUANTIZE_Q, call->opt.swiglu_quantize.floor);
    if (reason || call->dim[0] == 0 || call->dim[1] == 0)
        return reason;
    if (interleaved && up)
        return "operand up must be absent with RIDGE_INTERLEAVED (gate holds both)";
    return interleaved || up ? NULL : "operand up is NULL";
}

static void swiglu_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const int64_t wide = arg == RIDGE_MOE_SWIGLU_QUANTIZE_GATE && (call->flags & RIDGE_INTERLEAVED) ? 2 : 1;

    if (arg <= RIDGE_MOE_SWIGLU_QUANTIZE_UP)
        ridge_set_extent(rows, cols, call->dim[0], wide * call->dim[1]);
    else if (arg == RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS)
        ridge_set_extent(rows, cols, 1, call->dim[2] + 1);
    else if (arg == RIDGE_MOE_SWIGLU_QUANTIZE_ROW_SCALE)
        ridge_set_extent(rows, cols, 1, call->dim[0]);
    else
        output_extent(arg - RIDGE_MOE_SWIGLU_QUANTIZE_Q, call->dim[0], call->dim[1], call->dim[2], rows, cols);
}

static void swiglu_derive(ridge_call *call)
{
    if (call->flags & RIDGE_INTERLEAVED)
        call->arg[RIDGE_MOE_SWIGLU_QUANTIZE_UP].dtype = RIDGE_NONE;
    derive_outputs(call, RIDGE_MOE_SWIGLU_QUANTIZE_Q);
}

static bool swiglu_plain(const ridge_call *call)
{
    return ridge_swiglu_options_plain(&call->opt.swiglu_quantize.swiglu) && call->opt.swiglu_quantize.floor == 0.0f;
}

static double swiglu_flops(const ridge_problem *problem)
{
    return 8.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_moe_swiglu_quantize(int64_t rows, int64_t cols, int64_t experts, ridge_dtype dtype, const void *gate,
                                     const void *up, const int32_t *offsets, ridge_tensor q, ridge_tensor q_t,
                                     int32_t *offsets_t)
{
    ridge_call call = ridge_begin(RIDGE_MOE_SWIGLU_QUANTIZE, rows, cols, experts, 0);

    call.opt.swiglu_quantize.swiglu = ridge_swiglu_defaults;
    ridge_set(&call, RIDGE_MOE_SWIGLU_QUANTIZE_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_MOE_SWIGLU_QUANTIZE_UP, dtype, up, 0);
    ridge_set(&call, RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS, RIDGE_I32, offsets, 0);
    put_outputs(&call, RIDGE_MOE_SWIGLU_QUANTIZE_Q, q, q_t, offsets_t);
    return call;
}

RIDGE_DEFAULTS(swiglu_defaults,
               ridge_moe_swiglu_quantize(0, 0, 0, RIDGE_BF16, NULL, NULL, NULL,
                                         ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128),
                                         ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128), NULL))

const ridge_op_row ridge_op_moe_swiglu_quantize = {
    .id = RIDGE_MOE_SWIGLU_QUANTIZE,
    .name = "moe_swiglu_quantize",
    .summary = "swiglu_fwd, then moe_permute_quantize, in one pass",
    .dims = 3,
    .dim_name = {"rows", "cols", "experts"},
    .args = 9,
    .arg =
        {
            {"gate", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols], interleaved [rows, 2 cols]"},
            {"up", RIDGE_IN, 1, RIDGE_MOE_SWIGLU_QUANTIZE_GATE, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"offsets", RIDGE_IN, 0, -1, RIDGE_VECTOR, EXPERTS_I32, 0, "[experts + 1]"},
            OUTPUTS(RIDGE_MOE_SWIGLU_QUANTIZE_Q, "rows", "cols"),
            {"row_scale", RIDGE_IN, 1, -1, RIDGE_VECTOR, EXPERTS_F32, 0, "[rows]"},
        },
    .fields = swiglu_fields,
    .flags = RIDGE_POW2 | RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED,
    .contract = EXPERTS_CONTRACT,
    .bound = BOUND,
    .rule = swiglu_rule,
    .extent = swiglu_extent,
    .derive = swiglu_derive,
    .plain = swiglu_plain,
    .flops = swiglu_flops,
    .defaults = swiglu_defaults,
};

/* ------------------------------------------------------------------------------------------ moe_swiglu_bwd_quantize */

static const ridge_field swiglu_bwd_fields[] = {
    DTYPE("dtype", RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT),
    DTYPE("format", RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q),
    HAS("q_t", RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q_T),
    HAS("offsets_t", RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS_T),
    FLAG("pow2", RIDGE_POW2),
    RIDGE_ACT_FIELD,
    HAS("row_scale", RIDGE_MOE_SWIGLU_BWD_QUANTIZE_ROW_SCALE),
    HAS("drow", RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW),
    RIDGE_SWIGLU_FIELDS,
    F32_OPTION(ridge_swiglu_quantize_options, floor, 0),
    END,
};

static const char *swiglu_bwd_rule(const ridge_call *call)
{
    const char *reason = ridge_swiglu_options_rule(&call->opt.swiglu_quantize.swiglu, call->flags);

    reason = reason ? reason : ridge_experts_rule(call->dim[2]);
    reason = reason ? reason : ridge_experts_pairs_rule(call->dim[0], 1);
    return reason ? reason : outputs_rule(call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q, call->opt.swiglu_quantize.floor);
}

static void swiglu_bwd_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg <= RIDGE_MOE_SWIGLU_BWD_QUANTIZE_UP)
        ridge_set_extent(rows, cols, call->dim[0], call->dim[1]);
    else if (arg == RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS)
        ridge_set_extent(rows, cols, 1, call->dim[2] + 1);
    else if (arg >= RIDGE_MOE_SWIGLU_BWD_QUANTIZE_ROW_SCALE)
        ridge_set_extent(rows, cols, 1, call->dim[0]);
    else
        output_extent(arg - RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q, call->dim[0], 2 * call->dim[1], call->dim[2], rows, cols);
}

static void swiglu_bwd_derive(ridge_call *call)
{
    derive_outputs(call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q);
}

static double swiglu_bwd_flops(const ridge_problem *problem)
{
    return 20.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_moe_swiglu_bwd_quantize(int64_t rows, int64_t cols, int64_t experts, ridge_dtype dtype,
                                         const void *dout, const void *gate, const void *up, const int32_t *offsets,
                                         ridge_tensor q, ridge_tensor q_t, int32_t *offsets_t)
{
    ridge_call call = ridge_begin(RIDGE_MOE_SWIGLU_BWD_QUANTIZE, rows, cols, experts, 0);

    call.opt.swiglu_quantize.swiglu = ridge_swiglu_defaults;
    ridge_set(&call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT, dtype, dout, 0);
    ridge_set(&call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_UP, dtype, up, 0);
    ridge_set(&call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS, RIDGE_I32, offsets, 0);
    put_outputs(&call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q, q, q_t, offsets_t);
    return call;
}

RIDGE_DEFAULTS(swiglu_bwd_defaults,
               ridge_moe_swiglu_bwd_quantize(0, 0, 0, RIDGE_BF16, NULL, NULL, NULL, NULL,
                                             ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128),
                                             ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128), NULL))

const ridge_op_row ridge_op_moe_swiglu_bwd_quantize = {
    .id = RIDGE_MOE_SWIGLU_BWD_QUANTIZE,
    .name = "moe_swiglu_bwd_quantize",
    .summary = "swiglu_bwd, then moe_permute_quantize, in one pass",
    .dims = 3,
    .dim_name = {"rows", "cols", "experts"},
    .args = 11,
    .arg =
        {
            {"dout", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"gate", RIDGE_IN, 0, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"up", RIDGE_IN, 0, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"offsets", RIDGE_IN, 0, -1, RIDGE_VECTOR, EXPERTS_I32, 0, "[experts + 1]"},
            OUTPUTS(RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q, "rows", "2 cols"),
            {"row_scale", RIDGE_IN, 1, -1, RIDGE_VECTOR, EXPERTS_F32, 0, "[rows]"},
            {"drow", RIDGE_OUT, 1, -1, RIDGE_VECTOR, EXPERTS_F32, 0, "[rows]"},
        },
    .fields = swiglu_bwd_fields,
    .flags = RIDGE_POW2 | RIDGE_ACTIVATION,
    .contract = EXPERTS_CONTRACT,
    .bound = BOUND,
    .rule = swiglu_bwd_rule,
    .extent = swiglu_bwd_extent,
    .derive = swiglu_bwd_derive,
    .plain = swiglu_plain,
    .flops = swiglu_bwd_flops,
    .defaults = swiglu_bwd_defaults,
};
