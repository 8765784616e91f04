/* op.c: the op rows of quantize_fp8, quantize_fp8_dual and swiglu_quantize: operands, problem text, rules. */
#include <math.h>

#include "ops/swiglu/op.h"

#define FP8 (1u << RIDGE_E4M3 | 1u << RIDGE_E5M2)
#define SCALES (1u << RIDGE_F32)
#define EXACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE)
#define BOUND \
    "scale within 1 ulp of amax / 448 (57344), code one of the two fp8 neighbours of x / scale, the nearer to 2^-20"

static const char *const scale_modes[] = {"tensor", "row", "row128", "blk128", NULL};
static const char *const dual_forms[] = {"row_row", "row_blk", "blk_blk", NULL};

static const char *floor_rule(float floor)
{
    return floor >= 0.0f && !isinf(floor) ? NULL : "option floor must be finite and not negative";
}

/* amax, a division per group, a product and an encoding per element: counted one each. */
static double quantize_flops(const ridge_problem *problem)
{
    return 3.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

/* ---------------------------------------------------------------------------------------------------- quantize_fp8 */

static const ridge_field quantize_fields[] = {
    {.name = "rows", .kind = RIDGE_FIELD_DIM, .index = 0},
    {.name = "cols", .kind = RIDGE_FIELD_DIM, .index = 1},
    {.name = "dtype", .kind = RIDGE_FIELD_DTYPE, .index = RIDGE_QUANTIZE_FP8_X},
    {.name = "format", .kind = RIDGE_FIELD_DTYPE, .index = RIDGE_QUANTIZE_FP8_Q},
    {.name = "scale", .kind = RIDGE_FIELD_CHOICE, .mask = RIDGE_SCALE, .choices = scale_modes},
    {.name = "pow2", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_POW2},
    {.name = "given", .kind = RIDGE_FIELD_HAS, .index = RIDGE_QUANTIZE_FP8_GIVEN},
    {.name = "amax", .kind = RIDGE_FIELD_HAS, .index = RIDGE_QUANTIZE_FP8_AMAX},
    {.name = "floor", .kind = RIDGE_FIELD_F32, .index = offsetof(ridge_quantize_options, floor)},
    {.name = NULL},
};

static const char *quantize_rule(const ridge_call *call)
{
    const uint32_t mode = call->flags & RIDGE_SCALE;
    const bool given = ridge_has(call, RIDGE_QUANTIZE_FP8_GIVEN),
               whole = mode == RIDGE_SCALE_TENSOR || mode == RIDGE_SCALE_ROW;

    if (floor_rule(call->opt.quantize.floor))
        return floor_rule(call->opt.quantize.floor);
    if (call->dim[0] == 0 || call->dim[1] == 0)
        return NULL;
    if (given && ridge_has(call, RIDGE_QUANTIZE_FP8_SCALE))
        return "operand scale must be absent when the scales are given";
    if (!given && !ridge_has(call, RIDGE_QUANTIZE_FP8_SCALE))
        return "operand scale is NULL";
    if (given && !whole)
        return "operand given goes with one scale a tensor or a row";
    if (given && call->opt.quantize.floor != 0.0f)
        return "option floor has no meaning when the scales are given";
    if (given && (call->flags & RIDGE_POW2))
        return "flag RIDGE_POW2 has no meaning when the scales are given";
    if (ridge_has(call, RIDGE_QUANTIZE_FP8_AMAX) && !whole)
        return "operand amax goes with one scale a tensor or a row";
    return NULL;
}

static void quantize_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = call->dim[0];
    *cols = call->dim[1];
    if (arg >= RIDGE_QUANTIZE_FP8_SCALE)
        ridge_scale_extent(call->flags & RIDGE_SCALE, call->dim[0], call->dim[1], rows, cols);
}

static void quantize_settle(ridge_call *call)
{
    if (call->arg[RIDGE_QUANTIZE_FP8_GIVEN].dtype != RIDGE_NONE)
        call->arg[RIDGE_QUANTIZE_FP8_SCALE].dtype = RIDGE_NONE;
}

static bool quantize_plain(const ridge_call *call)
{
    return call->opt.quantize.floor == 0.0f;
}

static void quantize_defaults(ridge_call *call)
{
    *call = ridge_quantize_fp8(0, 0, RIDGE_BF16, NULL, RIDGE_SCALE_ROW128, RIDGE_E4M3, NULL, NULL);
}

const ridge_op_row ridge_op_quantize_fp8 = {
    .id = RIDGE_QUANTIZE_FP8,
    .name = "quantize_fp8",
    .summary = "codes and scales of x: value = code * scale",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 5,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"q", RIDGE_OUT, 0, -1, RIDGE_MATRIX, FP8, 0, "[rows, cols]"},
            {"scale", RIDGE_OUT, 1, -1, RIDGE_TABLE, SCALES, 0,
             "[1]; [rows]; [ceil(cols/128), rows]; [ceil(rows/128), ceil(cols/128)]"},
            {"given", RIDGE_IN, 1, -1, RIDGE_VECTOR, SCALES, 0, "[1]; [rows]"},
            {"amax", RIDGE_OUT, 1, -1, RIDGE_VECTOR, SCALES, 0, "[1]; [rows]"},
        },
    .fields = quantize_fields,
    .flags = RIDGE_SCALE | RIDGE_POW2,
    .contract = EXACT,
    .bound = BOUND,
    .rule = quantize_rule,
    .extent = quantize_extent,
    .plain = quantize_plain,
    .settle = quantize_settle,
    .flops = quantize_flops,
    .defaults = quantize_defaults,
};

/* ------------------------------------------------------------------------------------------------ dual, and swiglu */

static const ridge_field dual_fields[] = {
    {.name = "rows", .kind = RIDGE_FIELD_DIM, .index = 0},
    {.name = "cols", .kind = RIDGE_FIELD_DIM, .index = 1},
    {.name = "dtype", .kind = RIDGE_FIELD_DTYPE, .index = RIDGE_QUANTIZE_FP8_DUAL_X},
    {.name = "format", .kind = RIDGE_FIELD_DTYPE, .index = RIDGE_QUANTIZE_FP8_DUAL_Q},
    {.name = "form", .kind = RIDGE_FIELD_CHOICE, .mask = RIDGE_DUAL, .choices = dual_forms},
    {.name = "pow2", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_POW2},
    {.name = "colsum", .kind = RIDGE_FIELD_HAS, .index = RIDGE_QUANTIZE_FP8_DUAL_COLSUM},
    {.name = "floor", .kind = RIDGE_FIELD_F32, .index = offsetof(ridge_quantize_options, floor)},
    {.name = NULL},
};

static const char *form_rule(uint32_t flags)
{
    return (flags & RIDGE_DUAL) == RIDGE_DUAL ? "flags 0x30000 name no form (RIDGE_DUAL_*)" : NULL;
}

static const char *dual_rule(const ridge_call *call)
{
    const char *reason = floor_rule(call->opt.quantize.floor);

    return reason ? reason : form_rule(call->flags);
}

/* Operand `part` of the four outputs: q, scale, q_t, scale_t. */
static void dual_output_extent(const ridge_call *call, int part, int64_t *rows, int64_t *cols)
{
    const uint32_t form = call->flags & RIDGE_DUAL;
    const int64_t r = call->dim[0], c = call->dim[1];

    if (part == 1)
        ridge_scale_extent(form == RIDGE_DUAL_BLK_BLK ? RIDGE_SCALE_BLK128 : RIDGE_SCALE_ROW128, r, c, rows, cols);
    else if (part == 3)
        ridge_scale_extent(form == RIDGE_DUAL_ROW_ROW ? RIDGE_SCALE_ROW128 : RIDGE_SCALE_BLK128, c, r, rows, cols);
    else {
        *rows = part ? c : r;
        *cols = part ? r : c;
    }
}

static void dual_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = arg == RIDGE_QUANTIZE_FP8_DUAL_X ? call->dim[0] : 1;
    *cols = call->dim[1];
    if (arg >= RIDGE_QUANTIZE_FP8_DUAL_Q && arg <= RIDGE_QUANTIZE_FP8_DUAL_SCALE_T)
        dual_output_extent(call, arg - RIDGE_QUANTIZE_FP8_DUAL_Q, rows, cols);
}

static void dual_defaults(ridge_call *call)
{
    *call = ridge_quantize_fp8_dual(0, 0, RIDGE_BF16, NULL, RIDGE_DUAL_ROW_ROW, RIDGE_E4M3, NULL, NULL, NULL, NULL);
}

#define Q_SHAPE "[rows, cols]"
#define Q_T_SHAPE "[cols, rows]"
#define SCALE_SHAPE "[ceil(cols/128), rows] or [ceil(rows/128), ceil(cols/128)]"
#define SCALE_T_SHAPE "[ceil(rows/128), cols] or [ceil(cols/128), ceil(rows/128)]"

const ridge_op_row ridge_op_quantize_fp8_dual = {
    .id = RIDGE_QUANTIZE_FP8_DUAL,
    .name = "quantize_fp8_dual",
    .summary = "codes and scales of x and of its transpose in one read",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 6,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"q", RIDGE_OUT, 0, -1, RIDGE_MATRIX, FP8, 0, Q_SHAPE},
            {"scale", RIDGE_OUT, 0, -1, RIDGE_TABLE, SCALES, 0, SCALE_SHAPE},
            {"q_t", RIDGE_OUT, 0, RIDGE_QUANTIZE_FP8_DUAL_Q, RIDGE_MATRIX, FP8, 0, Q_T_SHAPE},
            {"scale_t", RIDGE_OUT, 0, -1, RIDGE_TABLE, SCALES, 0, SCALE_T_SHAPE},
            {"colsum", RIDGE_OUT, 1, -1, RIDGE_VECTOR, SCALES, 0, "[cols]"},
        },
    .fields = dual_fields,
    .flags = RIDGE_DUAL | RIDGE_POW2,
    .contract = EXACT,
    .bound = BOUND,
    .rule = dual_rule,
    .extent = dual_extent,
    .plain = quantize_plain,
    .flops = quantize_flops,
    .defaults = dual_defaults,
};

static const ridge_field swiglu_quantize_fields[] = {
    {.name = "rows", .kind = RIDGE_FIELD_DIM, .index = 0},
    {.name = "cols", .kind = RIDGE_FIELD_DIM, .index = 1},
    {.name = "dtype", .kind = RIDGE_FIELD_DTYPE, .index = RIDGE_SWIGLU_QUANTIZE_GATE},
    {.name = "format", .kind = RIDGE_FIELD_DTYPE, .index = RIDGE_SWIGLU_QUANTIZE_Q},
    {.name = "form", .kind = RIDGE_FIELD_CHOICE, .mask = RIDGE_DUAL, .choices = dual_forms},
    {.name = "pow2", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_POW2},
    RIDGE_ACT_FIELD,
    {.name = "round_gate", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_ROUND_GATE},
    {.name = "interleaved", .kind = RIDGE_FIELD_FLAG, .mask = RIDGE_INTERLEAVED},
    {.name = "row_scale", .kind = RIDGE_FIELD_HAS, .index = RIDGE_SWIGLU_QUANTIZE_ROW_SCALE},
    RIDGE_SWIGLU_FIELDS,
    {.name = "floor",
     .kind = RIDGE_FIELD_F32,
     .index = (int)offsetof(ridge_swiglu_quantize_options, floor),
     .preset = 0.0f},
    {.name = NULL},
};

static const char *swiglu_quantize_rule(const ridge_call *call)
{
    const bool interleaved = (call->flags & RIDGE_INTERLEAVED) != 0, up = ridge_has(call, RIDGE_SWIGLU_QUANTIZE_UP);
    const char *reason = ridge_swiglu_options_rule(&call->opt.swiglu_quantize.swiglu, call->flags);

    if (!reason)
        reason = floor_rule(call->opt.swiglu_quantize.floor);
    if (!reason)
        reason = form_rule(call->flags);
    if (reason || call->dim[0] == 0 || call->dim[1] == 0)
        return reason;
    if (interleaved && up)
        return "operand up must be absent with RIDGE_INTERLEAVED (gate holds both)";
    return interleaved || up ? NULL : "operand up is NULL";
}

static void swiglu_quantize_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = call->dim[0];
    *cols = call->dim[1];
    if (arg == RIDGE_SWIGLU_QUANTIZE_GATE && (call->flags & RIDGE_INTERLEAVED))
        *cols *= 2;
    if (arg >= RIDGE_SWIGLU_QUANTIZE_Q && arg <= RIDGE_SWIGLU_QUANTIZE_SCALE_T)
        dual_output_extent(call, arg - RIDGE_SWIGLU_QUANTIZE_Q, rows, cols);
    if (arg == RIDGE_SWIGLU_QUANTIZE_ROW_SCALE) {
        *rows = 1;
        *cols = call->dim[0];
    }
}

static void swiglu_quantize_settle(ridge_call *call)
{
    if (call->flags & RIDGE_INTERLEAVED)
        call->arg[RIDGE_SWIGLU_QUANTIZE_UP].dtype = RIDGE_NONE;
}

static bool swiglu_quantize_plain(const ridge_call *call)
{
    return ridge_swiglu_options_plain(&call->opt.swiglu_quantize.swiglu) && call->opt.swiglu_quantize.floor == 0.0f;
}

static double swiglu_quantize_flops(const ridge_problem *problem)
{
    return 8.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

static void swiglu_quantize_defaults(ridge_call *call)
{
    *call = ridge_swiglu_quantize(0, 0, RIDGE_BF16, NULL, NULL, RIDGE_DUAL_ROW_ROW, RIDGE_E4M3, NULL, NULL, NULL, NULL);
}

const ridge_op_row ridge_op_swiglu_quantize = {
    .id = RIDGE_SWIGLU_QUANTIZE,
    .name = "swiglu_quantize",
    .summary = "swiglu_fwd, then quantize_fp8_dual, in one pass",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 7,
    .arg =
        {
            {"gate", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols], interleaved [rows, 2 cols]"},
            {"up", RIDGE_IN, 1, 0, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols], absent when interleaved"},
            {"q", RIDGE_OUT, 0, -1, RIDGE_MATRIX, FP8, 0, Q_SHAPE},
            {"scale", RIDGE_OUT, 0, -1, RIDGE_TABLE, SCALES, 0, SCALE_SHAPE},
            {"q_t", RIDGE_OUT, 0, RIDGE_SWIGLU_QUANTIZE_Q, RIDGE_MATRIX, FP8, 0, Q_T_SHAPE},
            {"scale_t", RIDGE_OUT, 0, -1, RIDGE_TABLE, SCALES, 0, SCALE_T_SHAPE},
            {"row_scale", RIDGE_IN, 1, -1, RIDGE_VECTOR, SCALES, 0, "[rows]"},
        },
    .fields = swiglu_quantize_fields,
    .flags = RIDGE_DUAL | RIDGE_POW2 | RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED,
    .contract = EXACT,
    .bound = "the bounds of swiglu_fwd, then of quantize_fp8_dual",
    .rule = swiglu_quantize_rule,
    .extent = swiglu_quantize_extent,
    .plain = swiglu_quantize_plain,
    .settle = swiglu_quantize_settle,
    .flops = swiglu_quantize_flops,
    .defaults = swiglu_quantize_defaults,
};
