/* op_products.c: the op rows of moe_gate_up_swiglu and moe_down and their builders: operands, problem text, rules. */
#include "ops/blocks/layout.h"
#include "ops/swiglu/op.h"
#include "products.h"

/* Of x in e4m3; of all else rows are exact too. */
#define CONTRACT (RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define F32 (1u << RIDGE_F32)
#define OUT_DTYPES (1u << RIDGE_F32 | 1u << RIDGE_BF16 | 1u << RIDGE_I8)
#define X_DTYPES (OUT_DTYPES | 1u << RIDGE_E4M3)
#define TILES (((1u << RIDGE_DTYPES) - 1) & ~((1u << RIDGE_Q4_0) - 1))
#define W_DTYPES (F32 | 1u << RIDGE_I8 | 1u << RIDGE_BF16 | 1u << RIDGE_E4M3 | TILES)
#define BOUND                                                                                                         \
    "i8: as q8_0_matmul; block formats: as block_matmul; f32, bf16, e4m3: (cols/256 + 10) units of 2^-24 of the sum " \
    "of "                                                                                                             \
    "|terms|, e4m3 with x * scale "                                                                                   \
    "rounded; x in e4m3: 2^-15 + (cols/128 + 12) units of that sum; "

/* dim: tokens, cols, rows, experts, slots */
#define W_ROWS(name, same)                                                                                          \
    {name, RIDGE_IN, 0, same, RIDGE_MATRIX, W_DTYPES, 0, "[experts, rows*cols, or ceil(rows/16) tiles]"},           \
    {                                                                                                               \
        name "_scales", RIDGE_IN, 1, -1, RIDGE_TABLE, 1u << RIDGE_F16 | F32, 0, "[experts, a scale for each group]" \
    }

/* a * b, or what no operand may be as wide as: extents are asked for before the rule has seen the dimensions. */
static int64_t times(int64_t a, int64_t b)
{
    int64_t product;

    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* Columns of the scales of a weight of this dtype: an expert's. */
static int64_t scale_cols(const ridge_call *call, uint32_t dtype)
{
    const int64_t cols = call->dim[1], rows = call->dim[2];

    return dtype == RIDGE_E4M3 ? times(ridge_ceil_div(rows, 128), ridge_ceil_div(cols, 128)) : times(rows, cols / 32);
}

static uint32_t scale_dtype(uint32_t dtype)
{
    return dtype == RIDGE_I8 ? RIDGE_F16 : dtype == RIDGE_E4M3 ? RIDGE_F32 : RIDGE_NONE;
}

/* Of x, and of what gate_up writes. */
static uint32_t x_scale_dtype(uint32_t dtype)
{
    return dtype == RIDGE_I8 || dtype == RIDGE_E4M3 ? RIDGE_F32 : RIDGE_NONE;
}

/* Sets the operand in `slot` and its scales in slot + 1: codes with their scaling, floats without. */
static void put(ridge_call *call, int slot, ridge_tensor tensor, bool weight)
{
    const ridge_scaling scaling = tensor.dtype == RIDGE_I8     ? RIDGE_SCALING_ROW32
                                  : tensor.dtype != RIDGE_E4M3 ? RIDGE_SCALING_NONE
                                  : weight                     ? RIDGE_SCALING_BLK128
                                                               : RIDGE_SCALING_ROW128;

    if (tensor.scaling != scaling)
        call->invalid = "the scaling of an operand is not that of its dtype: row32 of i8, blk128 of weights in e4m3, "
                        "row128 of x in e4m3, else none";
    ridge_put_scaled(call, slot, tensor,
                     (ridge_dtype)(weight ? scale_dtype(tensor.dtype) : x_scale_dtype(tensor.dtype)));
}

/* The weights, in slot 2 and for gate_up in slot 4; x is in slot 0. */
static const char *products_rule(const ridge_call *call)
{
    const uint32_t x = call->arg[0].dtype;
    const bool codes = moe_is_codes(call->arg[2].dtype);
    const block_layout f = block_layout_of(call->arg[2].dtype);

    if (call->dim[0] > RIDGE_MOE_MAX_TOKENS)
        return "tokens is above 16";
    if (call->dim[4] < 1 || call->dim[4] > RIDGE_MOE_MAX_SLOTS)
        return "slots is outside 1 .. 32";
    if (call->dim[3] < 1 || call->dim[3] > 0x7fffffff)
        return "experts is outside 1 .. 2^31 - 1";
    if (codes != (x == RIDGE_I8))
        return codes ? "operand x must be i8 codes, as the weights are" : "operand x must be f32, bf16 or e4m3";
    if (x == RIDGE_E4M3 && call->arg[2].dtype != RIDGE_E4M3)
        return "operand x is e4m3, the weights must be too";
    if (f.columns && call->dim[1] % f.columns)
        return "cols is no multiple of 256, which a block of this format has";
    if (call->dim[0] == 0 || call->dim[1] == 0 || call->dim[2] == 0)
        return NULL;
    if ((x_scale_dtype(x) != RIDGE_NONE) != ridge_has(call, 1))
        return x_scale_dtype(x) ? "operand x_scales is NULL, x is codes"
                                : "operand x_scales must be absent, x is not codes";
    for (int arg = 2; arg < (call->op == RIDGE_MOE_DOWN ? 3 : 6); arg += 2) {
        if (call->arg[arg + 1].dtype != scale_dtype(call->arg[arg].dtype))
            return "the scales of the weights are f16 with i8, f32 with e4m3, and absent with f32, bf16 and block "
                   "formats";
        if (scale_dtype(call->arg[arg].dtype) && !ridge_has(call, arg + 1))
            return "the scales of the weights are NULL";
    }
    return NULL;
}

/* After parsing: the scales that the dtypes imply. */
static void products_derive(ridge_call *call)
{
    call->arg[1].dtype = x_scale_dtype(call->arg[0].dtype);
    for (int arg = 2; arg < (call->op == RIDGE_MOE_DOWN ? 3 : 6); arg += 2)
        call->arg[arg + 1].dtype = scale_dtype(call->arg[arg].dtype);
}

/* x of a token, or in down of each of its slots, and its scales. */
static void x_extent(const ridge_call *call, int arg, int64_t each, int64_t *rows, int64_t *cols)
{
    if (arg && call->arg[0].dtype == RIDGE_E4M3)
        ridge_set_extent(rows, cols, ridge_ceil_div(call->dim[1], 128), times(call->dim[0], each));
    else
        ridge_set_extent(rows, cols, call->dim[0], arg ? times(each, call->dim[1]) / 32 : times(each, call->dim[1]));
}

static void weight_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const uint32_t dtype = call->arg[arg - arg % 2].dtype;
    const int64_t tiles =
        times(ridge_ceil_div(call->dim[2], BLOCK_ROWS), ridge_block_tile_bytes((ridge_dtype)dtype, call->dim[1]) / 16);

    ridge_set_extent(rows, cols, call->dim[3],
                     arg % 2               ? scale_cols(call, dtype)
                     : moe_is_tiles(dtype) ? tiles
                                           : times(call->dim[2], call->dim[1]));
}

/* Of what experts have, as if every token's slots named others, as long as there are some. */
static double products_used(const ridge_call *call, int arg)
{
    const double pairs = (double)call->dim[0] * (double)call->dim[4], experts = (double)call->dim[3];
    const bool of_experts =
        call->op == RIDGE_MOE_DOWN
            ? arg == RIDGE_MOE_DOWN_W || arg == RIDGE_MOE_DOWN_W_SCALES || arg == RIDGE_MOE_DOWN_BIAS
            : (arg >= RIDGE_MOE_GATE_UP_SWIGLU_GATE && arg <= RIDGE_MOE_GATE_UP_SWIGLU_UP_SCALES) ||
                  arg >= RIDGE_MOE_GATE_UP_SWIGLU_GATE_BIAS;

    return !of_experts || pairs >= experts ? 1 : pairs / experts;
}

/* -------------------------------------------------------------------------------------------------- moe_gate_up_swiglu
 */

static const ridge_field gate_up_fields[] = {
    DTYPE("x", RIDGE_MOE_GATE_UP_SWIGLU_X),
    DTYPE("w", RIDGE_MOE_GATE_UP_SWIGLU_GATE),
    DTYPE("out", RIDGE_MOE_GATE_UP_SWIGLU_OUT),
    RIDGE_ACT_FIELD,
    HAS("gate_bias", RIDGE_MOE_GATE_UP_SWIGLU_GATE_BIAS),
    HAS("up_bias", RIDGE_MOE_GATE_UP_SWIGLU_UP_BIAS),
    RIDGE_SWIGLU_FIELDS,
    END,
};

static const char *gate_up_rule(const ridge_call *call)
{
    const char *reason = ridge_swiglu_options_rule(&call->opt.swiglu, call->flags);
    const bool codes = call->arg[RIDGE_MOE_GATE_UP_SWIGLU_OUT].dtype == RIDGE_I8;

    if (!reason)
        reason = products_rule(call);
    if (reason || call->dim[0] == 0 || call->dim[2] == 0)
        return reason;
    if (codes != ridge_has(call, RIDGE_MOE_GATE_UP_SWIGLU_OUT_SCALES))
        return codes ? "operand out_scales is NULL, out is i8" : "operand out_scales must be absent, out is not i8";
    return codes && call->dim[2] % 32 ? "out is i8 codes, rows must be a multiple of 32" : NULL;
}

static void gate_up_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const int64_t wide = times(call->dim[4], call->dim[2]);

    if (arg <= RIDGE_MOE_GATE_UP_SWIGLU_X_SCALES)
        x_extent(call, arg, 1, rows, cols);
    else if (arg <= RIDGE_MOE_GATE_UP_SWIGLU_UP_SCALES)
        weight_extent(call, arg, rows, cols);
    else if (arg >= RIDGE_MOE_GATE_UP_SWIGLU_GATE_BIAS)
        ridge_set_extent(rows, cols, call->dim[3], call->dim[2]);
    else
        ridge_set_extent(rows, cols, call->dim[0],
                         arg == RIDGE_MOE_GATE_UP_SWIGLU_IDS   ? call->dim[4]
                         : arg == RIDGE_MOE_GATE_UP_SWIGLU_OUT ? wide
                                                               : wide / 32);
}

static bool gate_up_plain(const ridge_call *call)
{
    return ridge_swiglu_options_plain(&call->opt.swiglu);
}

static void gate_up_derive(ridge_call *call)
{
    products_derive(call);
    call->arg[RIDGE_MOE_GATE_UP_SWIGLU_OUT_SCALES].dtype =
        call->arg[RIDGE_MOE_GATE_UP_SWIGLU_OUT].dtype == RIDGE_I8 ? RIDGE_F32 : RIDGE_NONE;
}

static double products_flops(const ridge_problem *problem)
{
    return (problem->op == RIDGE_MOE_DOWN ? 2.0 : 4.0) * (double)problem->dim[0] * (double)problem->dim[1] *
           (double)problem->dim[2] * (double)problem->dim[4];
}

ridge_call ridge_moe_gate_up_swiglu(int64_t tokens, int64_t cols, int64_t rows, int64_t experts, int64_t slots,
                                    ridge_tensor x, ridge_tensor gate, ridge_tensor up, const int32_t *ids,
                                    ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_MOE_GATE_UP_SWIGLU, tokens, cols, rows, experts);

    call.dim[4] = slots;
    call.opt.swiglu = ridge_swiglu_defaults;
    put(&call, RIDGE_MOE_GATE_UP_SWIGLU_X, x, false);
    put(&call, RIDGE_MOE_GATE_UP_SWIGLU_GATE, gate, true);
    put(&call, RIDGE_MOE_GATE_UP_SWIGLU_UP, up, true);
    put(&call, RIDGE_MOE_GATE_UP_SWIGLU_OUT, out, false);
    ridge_set(&call, RIDGE_MOE_GATE_UP_SWIGLU_IDS, RIDGE_I32, ids, 0);
    return call;
}

#define PLANES ridge_scaled(NULL, RIDGE_I8, NULL, RIDGE_SCALING_ROW32)

RIDGE_DEFAULTS(gate_up_defaults,
               ridge_moe_gate_up_swiglu(0, 0, 0, 0, 0, PLANES, PLANES, PLANES, NULL, ridge_matrix(NULL, RIDGE_F32)))

const ridge_op_row ridge_op_moe_gate_up_swiglu = {
    .id = RIDGE_MOE_GATE_UP_SWIGLU,
    .name = "moe_gate_up_swiglu",
    .summary = "gate and up of each token's experts, then swiglu_fwd",
    .dims = 5,
    .dim_name = {"tokens", "cols", "rows", "experts", "slots"},
    .step = {0, 32, 0, 0, 0},
    .args = 11,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_DTYPES, 0, "[tokens, cols] f32, bf16, i8, e4m3"},
            {"x_scales", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0,
             "[tokens, cols/32] with i8, [ceil(cols/128), tokens] with e4m3"},
            W_ROWS("gate", -1),
            W_ROWS("up", RIDGE_MOE_GATE_UP_SWIGLU_GATE),
            {"ids", RIDGE_IN, 0, -1, RIDGE_TABLE, 1u << RIDGE_I32, 0, "[tokens, slots]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, OUT_DTYPES, 0, "[tokens, slots*rows] f32, bf16, i8"},
            {"out_scales", RIDGE_OUT, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, slots*rows/32], with i8"},
            {"gate_bias", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[experts, rows]"},
            {"up_bias", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[experts, rows]"},
        },
    .fields = gate_up_fields,
    .flags = RIDGE_ACTIVATION,
    .contract = CONTRACT,
    .invariant_max = RIDGE_MOE_MAX_TOKENS,
    .bound = BOUND "then of swiglu_fwd, and of q8_0_quantize_rows",
    .rule = gate_up_rule,
    .extent = gate_up_extent,
    .plain = gate_up_plain,
    .derive = gate_up_derive,
    .flops = products_flops,
    .used = products_used,
    .defaults = gate_up_defaults,
};

/* --------------------------------------------------------------------------------------------------------------
 * moe_down */

static const ridge_field down_fields[] = {
    DTYPE("x", RIDGE_MOE_DOWN_X),
    DTYPE("w", RIDGE_MOE_DOWN_W),
    DTYPE("out", RIDGE_MOE_DOWN_OUT),
    HAS("bias", RIDGE_MOE_DOWN_BIAS),
    HAS("shared", RIDGE_MOE_DOWN_SHARED),
    HAS("residual", RIDGE_MOE_DOWN_RESIDUAL),
    I64_OPTION(ridge_moe_down_options, n_hc, 0),
    END,
};

static const char *down_rule(const ridge_call *call)
{
    const int64_t n = call->opt.moe_down.n_hc;

    if (n < 0 || n > RIDGE_MAX_HC)
        return "option n_hc is outside 0 .. 16";
    if (n && call->arg[RIDGE_MOE_DOWN_OUT].dtype != RIDGE_F32)
        return "option n_hc is not 0, operand out must be f32";
    for (int arg = RIDGE_MOE_DOWN_POST; arg <= RIDGE_MOE_DOWN_RES; arg++)
        if (call->dim[0] && call->dim[2] && ridge_has(call, arg) != (n != 0))
            return n ? "option n_hc is not 0, operands post, comb and res must not be NULL"
                     : "option n_hc is 0, operands post, comb and res must be absent";
    return products_rule(call);
}

static void down_derive(ridge_call *call)
{
    products_derive(call);
    for (int arg = RIDGE_MOE_DOWN_POST; arg <= RIDGE_MOE_DOWN_RES; arg++)
        call->arg[arg].dtype = call->opt.moe_down.n_hc ? RIDGE_F32 : RIDGE_NONE;
}

static void down_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const int64_t given = call->opt.moe_down.n_hc;
    const int64_t n = given < 0 || given > RIDGE_MAX_HC ? 0 : given; /* what the rule will refuse, by its name */

    if (arg <= RIDGE_MOE_DOWN_X_SCALES)
        x_extent(call, arg, call->dim[4], rows, cols);
    else if (arg <= RIDGE_MOE_DOWN_W_SCALES)
        weight_extent(call, arg, rows, cols);
    else if (arg == RIDGE_MOE_DOWN_BIAS)
        ridge_set_extent(rows, cols, call->dim[3], call->dim[2]);
    else if (arg == RIDGE_MOE_DOWN_IDS || arg == RIDGE_MOE_DOWN_WEIGHTS)
        ridge_set_extent(rows, cols, call->dim[0], call->dim[4]);
    else if (arg == RIDGE_MOE_DOWN_POST || arg == RIDGE_MOE_DOWN_COMB)
        ridge_set_extent(rows, cols, call->dim[0], arg == RIDGE_MOE_DOWN_COMB ? n * n : n);
    else
        ridge_set_extent(rows, cols, call->dim[0],
                         arg == RIDGE_MOE_DOWN_RES || (arg == RIDGE_MOE_DOWN_OUT && n) ? times(n, call->dim[2])
                                                                                       : call->dim[2]);
}

ridge_call ridge_moe_down(int64_t tokens, int64_t cols, int64_t rows, int64_t experts, int64_t slots, ridge_tensor x,
                          ridge_tensor w, const int32_t *ids, const float *weights, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_MOE_DOWN, tokens, cols, rows, experts);

    call.dim[4] = slots;
    put(&call, RIDGE_MOE_DOWN_X, x, false);
    put(&call, RIDGE_MOE_DOWN_W, w, true);
    ridge_set(&call, RIDGE_MOE_DOWN_IDS, RIDGE_I32, ids, 0);
    ridge_set(&call, RIDGE_MOE_DOWN_WEIGHTS, RIDGE_F32, weights, 0);
    ridge_put(&call, RIDGE_MOE_DOWN_OUT, out);
    return call;
}

RIDGE_DEFAULTS(down_defaults, ridge_moe_down(0, 0, 0, 0, 0, PLANES, PLANES, NULL, NULL, ridge_matrix(NULL, RIDGE_F32)))

const ridge_op_row ridge_op_moe_down = {
    .id = RIDGE_MOE_DOWN,
    .name = "moe_down",
    .summary = "the weighted sum of each token's experts",
    .dims = 5,
    .dim_name = {"tokens", "cols", "rows", "experts", "slots"},
    .step = {0, 32, 0, 0, 0},
    .args = 13,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_DTYPES, 0, "[tokens, slots*cols] f32, bf16, i8, e4m3"},
            {"x_scales", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0,
             "[tokens, slots*cols/32] with i8, [ceil(cols/128), tokens*slots] with e4m3"},
            W_ROWS("w", -1),
            {"ids", RIDGE_IN, 0, -1, RIDGE_TABLE, 1u << RIDGE_I32, 0, "[tokens, slots]"},
            {"weights", RIDGE_IN, 0, -1, RIDGE_TABLE, F32, 0, "[tokens, slots]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, F32 | 1u << RIDGE_BF16,
             1u << RIDGE_MOE_DOWN_SHARED | 1u << RIDGE_MOE_DOWN_RESIDUAL,
             "[tokens, rows], with n_hc [tokens, n_hc*rows]"},
            {"bias", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[experts, rows]"},
            {"shared", RIDGE_IN, 1, -1, RIDGE_TABLE, F32 | 1u << RIDGE_BF16, 0, "[tokens, rows]"},
            {"residual", RIDGE_IN, 1, -1, RIDGE_TABLE, F32 | 1u << RIDGE_BF16, 0, "[tokens, rows]"},
            {"post", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, n_hc], with n_hc"},
            {"comb", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, n_hc*n_hc], with n_hc"},
            {"res", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, n_hc*rows], with n_hc"},
        },
    .fields = down_fields,
    .contract = CONTRACT,
    .invariant_max = RIDGE_MOE_MAX_TOKENS,
    .bound = BOUND "then (slots + 3) units of the sum of |terms|, and with n_hc (n_hc + 2) of that sum",
    .rule = down_rule,
    .extent = down_extent,
    .derive = down_derive,
    .flops = products_flops,
    .used = products_used,
    .defaults = down_defaults,
};
