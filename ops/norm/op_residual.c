/* op_residual.c: the op rows of add_rms_norm and rms_norm_bwd and their builders: operands, problem text, rules. */
#include "op.h"

#define CODES (1u << RIDGE_E4M3 | 1u << RIDGE_E5M2 | 1u << RIDGE_I8)

/* ---------------------------------------------------------------------------------------------------- add_rms_norm */

static const ridge_field add_fields[] = {
    DTYPE("x", RIDGE_ADD_RMS_NORM_X),
    HAS("residual", RIDGE_ADD_RMS_NORM_RESIDUAL),
    HAS("w", RIDGE_ADD_RMS_NORM_W),
    HAS("sum", RIDGE_ADD_RMS_NORM_SUM),
    DTYPE("out", RIDGE_ADD_RMS_NORM_OUT),
    FLAG("pow2", RIDGE_POW2),
    F32_OPTION(ridge_norm_options, eps, 1e-6),
    END,
};

static bool is_code(uint32_t dtype)
{
    return dtype < RIDGE_DTYPES && (CODES >> dtype & 1u);
}

static const char *add_rule(const ridge_call *call)
{
    const uint32_t out = call->arg[RIDGE_ADD_RMS_NORM_OUT].dtype;
    const bool scaled = ridge_has(call, RIDGE_ADD_RMS_NORM_SCALE), work = call->dim[0] && call->dim[1];
    const char *reason = norm_rule(&call->opt.norm);

    if (reason)
        return reason;
    if (ridge_has(call, RIDGE_ADD_RMS_NORM_SUM) && !ridge_has(call, RIDGE_ADD_RMS_NORM_RESIDUAL))
        return "operand sum must be absent without residual";
    if (call->flags & RIDGE_POW2 && (!is_code(out) || out == RIDGE_I8))
        return "flag RIDGE_POW2 goes with an out of e4m3 or e5m2";
    if (out == RIDGE_I8 && call->dim[1] % 32)
        return "out is i8, cols must be a multiple of 32";
    if (work && is_code(out) && !scaled)
        return "operand scale is NULL, out has codes";
    return scaled && !is_code(out) ? "operand scale must be absent, out has no codes" : NULL;
}

static void add_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = arg == RIDGE_ADD_RMS_NORM_W ? 1 : call->dim[0];
    *cols = call->dim[1];
    if (arg == RIDGE_ADD_RMS_NORM_SCALE && call->arg[RIDGE_ADD_RMS_NORM_OUT].dtype == RIDGE_I8)
        *cols = call->dim[1] / 32;
    else if (arg == RIDGE_ADD_RMS_NORM_SCALE)
        ridge_scale_extent(RIDGE_SCALE_ROW128, call->dim[0], call->dim[1], rows, cols);
}

static void add_derive(ridge_call *call)
{
    const uint32_t residual = call->arg[RIDGE_ADD_RMS_NORM_RESIDUAL].dtype;

    if (call->arg[RIDGE_ADD_RMS_NORM_SUM].dtype != RIDGE_NONE)
        call->arg[RIDGE_ADD_RMS_NORM_SUM].dtype = residual;
    call->arg[RIDGE_ADD_RMS_NORM_SCALE].dtype =
        is_code(call->arg[RIDGE_ADD_RMS_NORM_OUT].dtype) ? RIDGE_F32 : RIDGE_NONE;
}

static double add_flops(const ridge_problem *problem)
{
    return 5.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_add_rms_norm(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor residual, ridge_tensor w,
                              ridge_tensor sum, ridge_tensor out)
{
    const ridge_scaling scaling = out.dtype == RIDGE_I8 ? RIDGE_SCALING_ROW32
                                  : is_code(out.dtype)  ? RIDGE_SCALING_ROW128
                                                        : RIDGE_SCALING_NONE;
    ridge_call call = ridge_begin(RIDGE_ADD_RMS_NORM, rows, cols, 0, 0);

    call.opt.norm = (ridge_norm_options){.eps = 1e-6f, .mscale = 1.0f};
    ridge_put(&call, RIDGE_ADD_RMS_NORM_X, x);
    norm_put_optional(&call, RIDGE_ADD_RMS_NORM_RESIDUAL, residual);
    norm_put_optional(&call, RIDGE_ADD_RMS_NORM_W, w);
    norm_put_optional(&call, RIDGE_ADD_RMS_NORM_SUM, sum);
    if (out.scaling != scaling)
        call.invalid = "the scaling of out is not that of its dtype: none; row128 of e4m3 and e5m2; row32 of i8";
    ridge_put_scaled(&call, RIDGE_ADD_RMS_NORM_OUT, out, is_code(out.dtype) ? RIDGE_F32 : RIDGE_NONE);
    return call;
}

static void add_defaults(ridge_call *call)
{
    const ridge_tensor none = ridge_matrix(NULL, RIDGE_BF16);

    *call = ridge_add_rms_norm(0, 0, none, none, none, none, none);
    call->arg[RIDGE_ADD_RMS_NORM_RESIDUAL].dtype = RIDGE_BF16;
    call->arg[RIDGE_ADD_RMS_NORM_W].dtype = RIDGE_BF16;
    call->arg[RIDGE_ADD_RMS_NORM_SUM].dtype = RIDGE_BF16;
}

const ridge_op_row ridge_op_add_rms_norm = {
    .id = RIDGE_ADD_RMS_NORM,
    .name = "add_rms_norm",
    .summary = "sum = x + residual; out = rms_norm(sum), as floats or as fp8 or Q8_0 codes",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 6,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"residual", RIDGE_IN, 1, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"w", RIDGE_IN, 1, -1, RIDGE_VECTOR, RIDGE_FLOATS, 0, "[cols]"},
            {"sum", RIDGE_OUT, 1, RIDGE_ADD_RMS_NORM_RESIDUAL, RIDGE_MATRIX, RIDGE_FLOATS,
             1u << RIDGE_ADD_RMS_NORM_RESIDUAL, "[rows, cols]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS | CODES, 1u << RIDGE_ADD_RMS_NORM_X, "[rows, cols]"},
            {"scale", RIDGE_OUT, 1, -1, RIDGE_TABLE, 1u << RIDGE_F32, 0,
             "[ceil(cols/128), rows] with e4m3, e5m2; [rows, cols/32] with i8"},
        },
    .fields = add_fields,
    .flags = RIDGE_POW2,
    .contract = NORM_CONTRACT,
    .invariant_max = INT64_MAX,
    .bound =
        "sum half an ulp; out (cols/512 + 8) units of 2^-23 of |ref| and half an ulp; codes those of a value so near",
    .rule = add_rule,
    .extent = add_extent,
    .plain = norm_plain,
    .derive = add_derive,
    .flops = add_flops,
    .defaults = add_defaults,
};

/* ---------------------------------------------------------------------------------------------------- rms_norm_bwd */

static const ridge_field bwd_fields[] = {
    DTYPE("dout", RIDGE_RMS_NORM_BWD_DOUT),
    DTYPE("x", RIDGE_RMS_NORM_BWD_X),
    HAS("w", RIDGE_RMS_NORM_BWD_W),
    HAS("dx", RIDGE_RMS_NORM_BWD_DX),
    HAS("dw", RIDGE_RMS_NORM_BWD_DW),
    HAS("dsum", RIDGE_RMS_NORM_BWD_DSUM),
    F32_OPTION(ridge_norm_options, eps, 1e-6),
    END,
};

static const char *bwd_rule(const ridge_call *call)
{
    const bool dx = ridge_has(call, RIDGE_RMS_NORM_BWD_DX), dw = ridge_has(call, RIDGE_RMS_NORM_BWD_DW);
    const char *reason = norm_rule(&call->opt.norm);

    if (!reason && call->dim[0] && call->dim[1] && !dx && !dw)
        reason = "operands dx and dw are both absent";
    if (!reason && !dx && ridge_has(call, RIDGE_RMS_NORM_BWD_DSUM))
        reason = "operand dsum must be absent without dx";
    return reason;
}

static void bwd_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = arg == RIDGE_RMS_NORM_BWD_W || arg == RIDGE_RMS_NORM_BWD_DW ? 1 : call->dim[0];
    *cols = call->dim[1];
}

static void bwd_derive(ridge_call *call)
{
    if (call->arg[RIDGE_RMS_NORM_BWD_DX].dtype == RIDGE_NONE)
        call->arg[RIDGE_RMS_NORM_BWD_DSUM].dtype = RIDGE_NONE;
}

static double bwd_flops(const ridge_problem *problem)
{
    return 12.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_rms_norm_bwd(int64_t rows, int64_t cols, ridge_tensor dout, ridge_tensor x, ridge_tensor w,
                              ridge_tensor dx, ridge_tensor dw)
{
    ridge_call call = ridge_begin(RIDGE_RMS_NORM_BWD, rows, cols, 0, 0);

    call.opt.norm = (ridge_norm_options){.eps = 1e-6f, .mscale = 1.0f};
    ridge_put(&call, RIDGE_RMS_NORM_BWD_DOUT, dout);
    ridge_put(&call, RIDGE_RMS_NORM_BWD_X, x);
    norm_put_optional(&call, RIDGE_RMS_NORM_BWD_W, w);
    norm_put_optional(&call, RIDGE_RMS_NORM_BWD_DX, dx);
    norm_put_optional(&call, RIDGE_RMS_NORM_BWD_DW, dw);
    return call;
}

static void bwd_defaults(ridge_call *call)
{
    const ridge_tensor none = ridge_matrix(NULL, RIDGE_BF16);

    *call = ridge_rms_norm_bwd(0, 0, none, none, none, none, none);
    for (int arg = RIDGE_RMS_NORM_BWD_W; arg <= RIDGE_RMS_NORM_BWD_DW; arg++)
        call->arg[arg].dtype = RIDGE_BF16;
}

const ridge_op_row ridge_op_rms_norm_bwd = {
    .id = RIDGE_RMS_NORM_BWD,
    .name = "rms_norm_bwd",
    .summary = "the gradients of rms_norm and add_rms_norm",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 6,
    .arg =
        {
            {"dout", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"w", RIDGE_IN, 1, -1, RIDGE_VECTOR, RIDGE_FLOATS, 0, "[cols]"},
            {"dx", RIDGE_OUT, 1, -1, RIDGE_MATRIX, RIDGE_FLOATS,
             1u << RIDGE_RMS_NORM_BWD_DOUT | 1u << RIDGE_RMS_NORM_BWD_X | 1u << RIDGE_RMS_NORM_BWD_DSUM,
             "[rows, cols]"},
            {"dw", RIDGE_OUT, 1, -1, RIDGE_VECTOR, RIDGE_FLOATS, 0, "[cols]"},
            {"dsum", RIDGE_IN, 1, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
        },
    .fields = bwd_fields,
    .contract = NORM_CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "(cols/512 + 16) units of 2^-23 of the sum of |terms| and half an ulp",
    .rule = bwd_rule,
    .extent = bwd_extent,
    .plain = norm_plain,
    .derive = bwd_derive,
    .flops = bwd_flops,
    .defaults = bwd_defaults,
};
