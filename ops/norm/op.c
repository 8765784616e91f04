/* op.c: the op rows of rms_norm and head_rms_norm_rope_tail and their builders: operands, problem text, rules. */
#include "op.h"

#define X_FLOATS (1u << RIDGE_F32 | 1u << RIDGE_BF16)

/* -------------------------------------------------------------------------------------------------------- rms_norm */

static const ridge_field rms_fields[] = {
    DTYPE("x", RIDGE_RMS_NORM_X),
    DTYPE("w", RIDGE_RMS_NORM_W),
    DTYPE("out", RIDGE_RMS_NORM_OUT),
    F32_OPTION(ridge_norm_options, eps, 1e-6),
    END,
};

static const char *rms_rule(const ridge_call *call)
{
    return norm_rule(&call->opt.norm);
}

static void rms_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = arg == RIDGE_RMS_NORM_W ? 1 : call->dim[0];
    *cols = call->dim[1];
}

static double rms_flops(const ridge_problem *problem)
{
    return 4.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_rms_norm(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor w, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_RMS_NORM, rows, cols, 0, 0);

    call.opt.norm = (ridge_norm_options){.eps = 1e-6f, .mscale = 1.0f};
    ridge_put(&call, RIDGE_RMS_NORM_X, x);
    norm_put_optional(&call, RIDGE_RMS_NORM_W, w);
    ridge_put(&call, RIDGE_RMS_NORM_OUT, out);
    return call;
}

RIDGE_DEFAULTS(rms_defaults, ridge_rms_norm(0, 0, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_F32),
                                            ridge_matrix(NULL, RIDGE_F32)))

const ridge_op_row ridge_op_rms_norm = {
    .id = RIDGE_RMS_NORM,
    .name = "rms_norm",
    .summary = "(x / sqrt(mean(x^2) + eps)) * w",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 3,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[rows, cols]"},
            {"w", RIDGE_IN, 1, -1, RIDGE_VECTOR, X_FLOATS, 0, "[cols]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 1u << RIDGE_RMS_NORM_X, "[rows, cols]"},
        },
    .fields = rms_fields,
    .contract = NORM_CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "(cols/512 + 8) units of 2^-23 of |ref|, and half an ulp of out",
    .rule = rms_rule,
    .extent = rms_extent,
    .plain = norm_plain,
    .flops = rms_flops,
    .defaults = rms_defaults,
};

/* ----------------------------------------------------------------------------------------- head_rms_norm_rope_tail */

static const ridge_field rope_fields[] = {
    DTYPE("x", RIDGE_HEAD_RMS_NORM_ROPE_TAIL_X),
    DTYPE("w", RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W),
    DTYPE("pos", RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS),
    DTYPE("out", RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT),
    FLAG("inverse", RIDGE_ROPE_INVERSE),
    FLAG("rope_only", RIDGE_ROPE_ONLY),
    F32_OPTION(ridge_norm_options, eps, 1e-6),
    F32_OPTION(ridge_norm_options, mscale, 1.0),
    END,
};

static const char *rope_rule(const ridge_call *call)
{
    const char *reason = norm_options_rule(&call->opt.norm);

    if (!reason && call->dim[3] > call->dim[2])
        reason = "n_rot is above head_dim";
    if (!reason && (call->flags & RIDGE_ROPE_ONLY) && call->arg[RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W].data)
        reason = "operand w must be absent with RIDGE_ROPE_ONLY";
    return reason;
}

static void rope_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = 1;
    switch (arg) {
    case RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W:
        *cols = call->dim[2];
        break;
    case RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS:
        *cols = call->dim[0];
        break;
    case RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS:
        *cols = call->dim[3] / 2;
        break;
    default:
        *rows = call->dim[0];
        *cols = norm_head_columns(call);
        break;
    }
}

static void rope_derive(ridge_call *call)
{
    if (call->flags & RIDGE_ROPE_ONLY)
        call->arg[RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W].dtype = RIDGE_NONE;
}

static double rope_flops(const ridge_problem *problem)
{
    const double heads = (double)problem->dim[0] * (double)problem->dim[1];

    return heads * (4.0 * (double)problem->dim[2] + 3.0 * (double)problem->dim[3]);
}

ridge_call ridge_head_rms_norm_rope_tail(int64_t tokens, int64_t heads, int64_t head_dim, int64_t n_rot, ridge_tensor x,
                                         ridge_tensor w, ridge_tensor pos, const double *freqs, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_HEAD_RMS_NORM_ROPE_TAIL, tokens, heads, head_dim, n_rot);

    call.opt.norm = (ridge_norm_options){.eps = 1e-6f, .mscale = 1.0f};
    ridge_put(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_X, x);
    norm_put_optional(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W, w);
    ridge_put(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS, pos);
    ridge_set(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS, RIDGE_F64, freqs, 0);
    ridge_put(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT, out);
    return call;
}

RIDGE_DEFAULTS(rope_defaults,
               ridge_head_rms_norm_rope_tail(0, 0, 0, 0, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_F32),
                                             ridge_matrix(NULL, RIDGE_I32), NULL, ridge_matrix(NULL, RIDGE_F32)))

const ridge_op_row ridge_op_head_rms_norm_rope_tail = {
    .id = RIDGE_HEAD_RMS_NORM_ROPE_TAIL,
    .name = "head_rms_norm_rope_tail",
    .summary = "rms_norm of every head, then RoPE on its last n_rot elements",
    .dims = 4,
    .dim_name = {"tokens", "heads", "head_dim", "n_rot"},
    .step = {0, 0, 2, 2},
    .args = 5,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, heads*head_dim]"},
            {"w", RIDGE_IN, 1, -1, RIDGE_VECTOR, X_FLOATS, 0, "[head_dim]"},
            {"pos", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_I32 | 1u << RIDGE_I64, 0, "[tokens]"},
            {"freqs", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_F64, 0, "[n_rot/2]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 1u << RIDGE_HEAD_RMS_NORM_ROPE_TAIL_X,
             "[tokens, heads*head_dim]"},
        },
    .fields = rope_fields,
    .flags = RIDGE_ROPE_INVERSE | RIDGE_ROPE_ONLY,
    .contract = NORM_CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "that of rms_norm with |x0 c| + |x1 s| for |ref|, and 3 units of 2^-24 of that for the rotation",
    .rule = rope_rule,
    .extent = rope_extent,
    .plain = norm_plain,
    .derive = rope_derive,
    .flops = rope_flops,
    .defaults = rope_defaults,
};
