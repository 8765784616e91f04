/* op.c: the op row of sum and its builder: operands, problem text, rules. */
#include "src/ops.h"

static const ridge_field fields[] = {
    DTYPE("x", RIDGE_SUM_X),
    DTYPE("out", RIDGE_SUM_OUT),
    END,
};

static const char *rule(const ridge_call *call)
{
    return call->dim[2] < 1 || call->dim[2] > 4096 ? "parts must be 1 to 4096" : NULL;
}

static void extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = rule(call) ? 0 : call->dim[0] * (arg == RIDGE_SUM_X ? call->dim[2] : 1);
    *cols = call->dim[1];
}

static double flops(const ridge_problem *problem)
{
    return (double)problem->dim[0] * (double)problem->dim[1] * (double)(problem->dim[2] - 1);
}

ridge_call ridge_sum(int64_t rows, int64_t cols, int64_t parts, ridge_tensor x, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_SUM, rows, cols, parts, 0);

    ridge_put(&call, RIDGE_SUM_X, x);
    ridge_put(&call, RIDGE_SUM_OUT, out);
    return call;
}

RIDGE_DEFAULTS(defaults, ridge_sum(0, 0, 1, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_F32)))

const ridge_op_row ridge_op_sum = {
    .id = RIDGE_SUM,
    .name = "sum",
    .summary = "part 0 + part 1 + ... in this order, in f32, rounded once",
    .dims = 3,
    .dim_name = {"rows", "cols", "parts"},
    .args = 2,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[parts*rows, cols]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
        },
    .fields = fields,
    .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE,
    .bound = "half an ulp of out and (parts - 1) * 2^-24 of the sum of |part|",
    .rule = rule,
    .extent = extent,
    .flops = flops,
    .defaults = defaults,
};
