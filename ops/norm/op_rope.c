/* op_rope.c: the op row of rope and its builder: operands, problem text, rules. */
#include "op.h"

static const ridge_field rope_fields[] = {
    DTYPE("x", RIDGE_ROPE_X),
    DTYPE("pos", RIDGE_ROPE_POS),
    DTYPE("out", RIDGE_ROPE_OUT),
    FLAG("halves", RIDGE_ROPE_HALVES),
    FLAG("inverse", RIDGE_ROPE_INVERSE),
    F32_OPTION(ridge_norm_options, mscale, 1.0),
    END,
};

static const char *rope_rule(const ridge_call *call)
{
    const char *reason = norm_options_rule(&call->opt.norm);

    return !reason && call->dim[3] > call->dim[2] ? "n_rot is above head_dim" : reason;
}

static void rope_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool matrix = arg == RIDGE_ROPE_X || arg == RIDGE_ROPE_OUT;

    *rows = matrix ? call->dim[0] : 1;
    *cols = matrix ? norm_head_columns(call) : arg == RIDGE_ROPE_POS ? call->dim[0] : call->dim[3] / 2;
}

static double rope_flops(const ridge_problem *problem)
{
    return 3.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[3];
}

ridge_call ridge_rope(int64_t tokens, int64_t heads, int64_t head_dim, int64_t n_rot, ridge_tensor x, ridge_tensor pos,
                      const double *freqs, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_ROPE, tokens, heads, head_dim, n_rot);

    call.opt.norm = (ridge_norm_options){.eps = 1e-6f, .mscale = 1.0f};
    ridge_put(&call, RIDGE_ROPE_X, x);
    ridge_put(&call, RIDGE_ROPE_POS, pos);
    ridge_set(&call, RIDGE_ROPE_FREQS, RIDGE_F64, freqs, 0);
    ridge_put(&call, RIDGE_ROPE_OUT, out);
    return call;
}

RIDGE_DEFAULTS(rope_defaults, ridge_rope(0, 0, 0, 0, ridge_matrix(NULL, RIDGE_BF16), ridge_matrix(NULL, RIDGE_I32),
                                         NULL, ridge_matrix(NULL, RIDGE_BF16)))

const ridge_op_row ridge_op_rope = {
    .id = RIDGE_ROPE,
    .name = "rope",
    .summary = "RoPE on the first n_rot elements of every head",
    .dims = 4,
    .dim_name = {"tokens", "heads", "head_dim", "n_rot"},
    .step = {0, 0, 2, 2},
    .args = 4,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, heads*head_dim]"},
            {"pos", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_I32 | 1u << RIDGE_I64, 0, "[tokens]"},
            {"freqs", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_F64, 0, "[n_rot/2]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 1u << RIDGE_ROPE_X, "[tokens, heads*head_dim]"},
        },
    .fields = rope_fields,
    .flags = RIDGE_ROPE_INVERSE | RIDGE_ROPE_HALVES,
    .contract = NORM_CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "2^-22 of |x0 c| + |x1 s|, and half an ulp of out",
    .rule = rope_rule,
    .extent = rope_extent,
    .plain = norm_plain,
    .flops = rope_flops,
    .defaults = rope_defaults,
};
