/* op.c: the op rows of quantize_fp8, quantize_fp8_dual and swiglu_quantize and their builders: operands, problem text,
 * rules. */
#include <math.h>

#include "ops/swiglu/op.h"
#include "src/util.h"

#define FP8 (1u << RIDGE_E4M3 | 1u << RIDGE_E5M2)
#define SCALES (1u << RIDGE_F32)
#define EXACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE)
#define NO_FORM "the scalings of q and q_t are no form (row128 and row128, row128 and blk128, blk128 and blk128)"
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
    DTYPE("dtype", RIDGE_QUANTIZE_FP8_X),         DTYPE("format", RIDGE_QUANTIZE_FP8_Q),
    CHOICE("scale", RIDGE_SCALE, scale_modes),    FLAG("pow2", RIDGE_POW2),
    HAS("given", RIDGE_QUANTIZE_FP8_GIVEN),       HAS("amax", RIDGE_QUANTIZE_FP8_AMAX),
    F32_OPTION(ridge_quantize_options, floor, 0), END,
};

static const char *quantize_rule(const ridge_call *call)
{
    const uint32_t mode = call->flags & RIDGE_SCALE;
    const bool given = ridge_has(call, RIDGE_QUANTIZE_FP8_GIVEN),
               whole = mode == RIDGE_SCALE_TENSOR || mode == RIDGE_SCALE_ROW;

    if (floor_rule(call->opt.quantize.floor))
        return floor_rule(call->opt.quantize.floor);
    if (call->opt.quantize.matrices > 1)
        return "option matrices goes with quantize_fp8_dual";
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

static void quantize_derive(ridge_call *call)
{
    if (call->arg[RIDGE_QUANTIZE_FP8_GIVEN].dtype != RIDGE_NONE)
        call->arg[RIDGE_QUANTIZE_FP8_SCALE].dtype = RIDGE_NONE;
}

static bool quantize_plain(const ridge_call *call)
{
    return call->opt.quantize.floor == 0.0f;
}

int64_t ridge_ld_fp8(int64_t cols)
{
    return cols >= 0 && cols <= INT64_C(1) << 40 ? ridge_round_up(cols, 16) : 0;
}

int64_t ridge_ld_scale(int64_t rows)
{
    return rows >= 0 && rows <= INT64_C(1) << 40 ? ridge_round_up(rows, 4) : 0;
}

ridge_call ridge_quantize_fp8(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor q)
{
    ridge_call call = ridge_begin(RIDGE_QUANTIZE_FP8, rows, cols, 0, 0);

    if (q.scaling >= RIDGE_SCALING_TENSOR && q.scaling <= RIDGE_SCALING_BLK128)
        call.flags = RIDGE_SCALE_ROW * (uint32_t)(q.scaling - 1);
    else
        call.invalid = "the scaling of q is none of tensor, row, row128, blk128";
    ridge_put(&call, RIDGE_QUANTIZE_FP8_X, x);
    ridge_put_scaled(&call, RIDGE_QUANTIZE_FP8_Q, q, RIDGE_F32);
    return call;
}

RIDGE_DEFAULTS(quantize_defaults, ridge_quantize_fp8(0, 0, ridge_matrix(NULL, RIDGE_BF16),
                                                     ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128)))

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
    .derive = quantize_derive,
    .flops = quantize_flops,
    .defaults = quantize_defaults,
};

/* ------------------------------------------------------------------------------------------------ dual, and swiglu */

static const ridge_field dual_fields[] = {
    DTYPE("dtype", RIDGE_QUANTIZE_FP8_DUAL_X),       DTYPE("format", RIDGE_QUANTIZE_FP8_DUAL_Q),
    CHOICE("form", RIDGE_DUAL, dual_forms),          FLAG("pow2", RIDGE_POW2),
    HAS("colsum", RIDGE_QUANTIZE_FP8_DUAL_COLSUM),   F32_OPTION(ridge_quantize_options, floor, 0),
    I64_OPTION(ridge_quantize_options, matrices, 1), END,
};

static const char *form_rule(uint32_t flags)
{
    return (flags & RIDGE_DUAL) == RIDGE_DUAL ? NO_FORM : NULL;
}

/* Of quantize_fp8_dual; as if it were one matrix where the rule does not hold. */
static int64_t matrices_of(const ridge_call *call)
{
    const int64_t matrices = call->op == RIDGE_QUANTIZE_FP8_DUAL ? call->opt.quantize.matrices : 1;

    return matrices > 1 && call->dim[0] % matrices == 0 ? matrices : 1;
}

static const char *dual_rule(const ridge_call *call)
{
    const char *reason = floor_rule(call->opt.quantize.floor);

    reason = reason ? reason : form_rule(call->flags);
    if (reason || call->opt.quantize.matrices == 1)
        return reason;
    if (call->opt.quantize.matrices < 1 || call->dim[0] % call->opt.quantize.matrices)
        return "option matrices must divide rows";
    return ridge_has(call, RIDGE_QUANTIZE_FP8_DUAL_COLSUM) ? "operand colsum is of one matrix" : NULL;
}

/* Operand `part` of the four outputs: q, scale, q_t, scale_t. */
static void dual_output_extent(const ridge_call *call, int part, int64_t *rows, int64_t *cols)
{
    const uint32_t form = call->flags & RIDGE_DUAL;
    const int64_t n = matrices_of(call), r = call->dim[0] / n, c = call->dim[1];

    if (part == 1 && form != RIDGE_DUAL_BLK_BLK) {
        ridge_scale_extent(RIDGE_SCALE_ROW128, n * r, c, rows, cols);
    } else if (part == 3 && form == RIDGE_DUAL_ROW_ROW) {
        ridge_scale_extent(RIDGE_SCALE_ROW128, n * c, r, rows, cols);
    } else if (part & 1) { /* the blocks begin anew in each matrix */
        ridge_scale_extent(RIDGE_SCALE_BLK128, part == 1 ? r : c, part == 1 ? c : r, rows, cols);
        *rows *= n;
    } else {
        *rows = part ? n * c : n * r;
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

/* Sets q and q_t, in slots first and first + 2, with the form that their scalings are. */
static void put_dual(ridge_call *call, int first, ridge_tensor q, ridge_tensor q_t)
{
    if (q.scaling == RIDGE_SCALING_ROW128 && q_t.scaling == RIDGE_SCALING_ROW128)
        call->flags = RIDGE_DUAL_ROW_ROW;
    else if (q.scaling == RIDGE_SCALING_ROW128 && q_t.scaling == RIDGE_SCALING_BLK128)
        call->flags = RIDGE_DUAL_ROW_BLK;
    else if (q.scaling == RIDGE_SCALING_BLK128 && q_t.scaling == RIDGE_SCALING_BLK128)
        call->flags = RIDGE_DUAL_BLK_BLK;
    else
        call->invalid =
            "the scalings of q and q_t are no form (row128 and row128, row128 and blk128, blk128 and blk128)";
    ridge_put_scaled(call, first, q, RIDGE_F32);
    ridge_put_scaled(call, first + 2, q_t, RIDGE_F32);
}

ridge_call ridge_quantize_fp8_dual(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor q, ridge_tensor q_t)
{
    ridge_call call = ridge_begin(RIDGE_QUANTIZE_FP8_DUAL, rows, cols, 0, 0);

    call.opt.quantize.matrices = 1;
    ridge_put(&call, RIDGE_QUANTIZE_FP8_DUAL_X, x);
    put_dual(&call, RIDGE_QUANTIZE_FP8_DUAL_Q, q, q_t);
    return call;
}

RIDGE_DEFAULTS(dual_defaults, ridge_quantize_fp8_dual(0, 0, ridge_matrix(NULL, RIDGE_BF16),
                                                      ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128),
                                                      ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128)))

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
    DTYPE("dtype", RIDGE_SWIGLU_QUANTIZE_GATE),
    DTYPE("format", RIDGE_SWIGLU_QUANTIZE_Q),
    CHOICE("form", RIDGE_DUAL, dual_forms),
    FLAG("pow2", RIDGE_POW2),
    RIDGE_ACT_FIELD,
    FLAG("round_gate", RIDGE_ROUND_GATE),
    FLAG("interleaved", RIDGE_INTERLEAVED),
    HAS("row_scale", RIDGE_SWIGLU_QUANTIZE_ROW_SCALE),
    RIDGE_SWIGLU_FIELDS,
    F32_OPTION(ridge_swiglu_quantize_options, floor, 0),
    END,
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

static void swiglu_quantize_derive(ridge_call *call)
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

ridge_call ridge_swiglu_quantize(int64_t rows, int64_t cols, ridge_dtype dtype, const void *gate, const void *up,
                                 ridge_tensor q, ridge_tensor q_t)
{
    ridge_call call = ridge_begin(RIDGE_SWIGLU_QUANTIZE, rows, cols, 0, 0);

    call.opt.swiglu_quantize.swiglu = ridge_swiglu_defaults;
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_UP, dtype, up, 0);
    put_dual(&call, RIDGE_SWIGLU_QUANTIZE_Q, q, q_t);
    return call;
}

RIDGE_DEFAULTS(swiglu_quantize_defaults,
               ridge_swiglu_quantize(0, 0, RIDGE_BF16, NULL, NULL,
                                     ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128),
                                     ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128)))

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
    .derive = swiglu_quantize_derive,
    .flops = swiglu_quantize_flops,
    .defaults = swiglu_quantize_defaults,
};
