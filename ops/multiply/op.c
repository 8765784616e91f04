/* op.c: the op row of multiply and its builder: operands, problem text, rules. */
#include "src/ops.h"

static const ridge_field fields[] = {
    DTYPE("x", RIDGE_MULTIPLY_X),
    DTYPE("out", RIDGE_MULTIPLY_OUT),
    END,
};

static void extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = arg == RIDGE_MULTIPLY_FACTOR ? 1 : call->dim[0];
    *cols = arg == RIDGE_MULTIPLY_FACTOR ? 1 : call->dim[1];
}

static double flops(const ridge_problem *problem)
{
    return (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_multiply(int64_t rows, int64_t cols, ridge_tensor x, const float *factor, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_MULTIPLY, rows, cols, 0, 0);

    ridge_put(&call, RIDGE_MULTIPLY_X, x);
    ridge_set(&call, RIDGE_MULTIPLY_FACTOR, RIDGE_F32, factor, 0);
    ridge_put(&call, RIDGE_MULTIPLY_OUT, out);
    return call;
}

RIDGE_DEFAULTS(defaults, ridge_multiply(0, 0, ridge_matrix(NULL, RIDGE_F32), NULL, ridge_matrix(NULL, RIDGE_F32)))

const ridge_op_row ridge_op_multiply = {
    .id = RIDGE_MULTIPLY,
    .name = "multiply",
    .summary = "x * factor, in place at once where the factor is 1",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 3,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"factor", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_F32, 0, "[1]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 1u << RIDGE_MULTIPLY_X, "[rows, cols]"},
        },
    .fields = fields,
    .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
    .invariant_max = INT64_MAX,
    .bound = "half an ulp of out and 2^-24 of |ref|",
    .extent = extent,
    .flops = flops,
    .defaults = defaults,
};
