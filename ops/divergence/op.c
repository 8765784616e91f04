/* op.c: the op row of divergence and its builder: operands, problem text, rules. */
#include <math.h>

#include "src/ops.h"

static const ridge_field fields[] = {
    DTYPE("dtype", RIDGE_DIVERGENCE_STUDENT),
    HAS("dlogits", RIDGE_DIVERGENCE_DLOGITS),
    HAS("scale", RIDGE_DIVERGENCE_SCALE),
    HAS("lse", RIDGE_DIVERGENCE_LSE),
    HAS("teacher_lse", RIDGE_DIVERGENCE_TEACHER_LSE),
    HAS("own", RIDGE_DIVERGENCE_OWN),
    F32_OPTION(ridge_divergence_options, beta, 0.5),
    F32_OPTION(ridge_divergence_options, temperature, 1.0),
    END,
};

static bool is_there(const ridge_call *call, int arg)
{
    return call->arg[arg].dtype != RIDGE_NONE;
}

/* Whether the call makes dlogits of a slice of the classes. */
static bool is_second(const ridge_call *call)
{
    return is_there(call, RIDGE_DIVERGENCE_LSE) && is_there(call, RIDGE_DIVERGENCE_DLOGITS);
}

static uint8_t role(const ridge_call *call, int arg)
{
    return arg == RIDGE_DIVERGENCE_OWN && is_second(call) ? RIDGE_IN : ridge_op_at(call->op)->arg[arg].role;
}

/* Problem text does not say loss. */
static void derive(ridge_call *call)
{
    if (is_second(call))
        call->arg[RIDGE_DIVERGENCE_LOSS].dtype = RIDGE_NONE;
}

static const char *rule(const ridge_call *call)
{
    const ridge_divergence_options *o = &call->opt.divergence;

    if (!(o->beta >= 0.0f && o->beta <= 1.0f))
        return "beta must be 0 to 1";
    if (!(o->temperature > 0.0f && isfinite(o->temperature)))
        return "temperature must be finite and above 0";
    if (is_there(call, RIDGE_DIVERGENCE_LSE) != is_there(call, RIDGE_DIVERGENCE_TEACHER_LSE))
        return "lse and teacher_lse go together";
    if (is_there(call, RIDGE_DIVERGENCE_OWN) && !is_there(call, RIDGE_DIVERGENCE_LSE))
        return "own is of a slice of the classes, which has lse and teacher_lse";
    if (is_second(call) && !is_there(call, RIDGE_DIVERGENCE_OWN))
        return "dlogits of a slice need own, the sum over all slices";
    if (is_second(call) == is_there(call, RIDGE_DIVERGENCE_LOSS))
        return is_second(call) ? "loss is made without dlogits where lse is given" : "loss is missing";
    return call->dim[1] < 1 ? "a row has no class" : NULL;
}

static void extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool vector = arg == RIDGE_DIVERGENCE_LOSS || arg >= RIDGE_DIVERGENCE_SCALE;

    *rows = vector ? 1 : call->dim[0];
    *cols = vector ? call->dim[0] : call->dim[1];
}

static double flops(const ridge_problem *problem)
{
    return 20.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_divergence(int64_t rows, int64_t cols, ridge_tensor student, ridge_tensor teacher, float *loss)
{
    ridge_call call = ridge_begin(RIDGE_DIVERGENCE, rows, cols, 0, 0);

    call.opt.divergence = (ridge_divergence_options){.beta = 0.5f, .temperature = 1.0f};
    ridge_put(&call, RIDGE_DIVERGENCE_STUDENT, student);
    ridge_put(&call, RIDGE_DIVERGENCE_TEACHER, teacher);
    ridge_set(&call, RIDGE_DIVERGENCE_LOSS, RIDGE_F32, loss, 0);
    return call;
}

RIDGE_DEFAULTS(defaults, ridge_divergence(0, 1, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_F32), NULL))

const ridge_op_row ridge_op_divergence = {
    .id = RIDGE_DIVERGENCE,
    .name = "divergence",
    .summary = "KL or Jensen-Shannon divergence of rows of logits from a teacher's, and its gradient",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 8,
    .arg =
        {
            {"student", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"teacher", RIDGE_IN, 0, RIDGE_DIVERGENCE_STUDENT, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"loss", RIDGE_OUT, 1, -1, RIDGE_VECTOR, 1u << RIDGE_F32, 0, "[rows]"},
            {"dlogits", RIDGE_OUT, 1, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"scale", RIDGE_IN, 1, -1, RIDGE_VECTOR, 1u << RIDGE_F32, 0, "[rows]"},
            {"lse", RIDGE_IN, 1, -1, RIDGE_VECTOR, 1u << RIDGE_F32, 0, "[rows]"},
            {"teacher_lse", RIDGE_IN, 1, -1, RIDGE_VECTOR, 1u << RIDGE_F32, 0, "[rows]"},
            {"own", RIDGE_OUT, 1, -1, RIDGE_VECTOR, 1u << RIDGE_F32, 0, "[rows]"},
        },
    .fields = fields,
    .contract = RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
    .invariant_max = INT64_MAX,
    .bound = "2^-20 (1 + the gap of a logit from the largest) of each probability, 2^-15 of the sum of |terms|",
    .rule = rule,
    .extent = extent,
    .role = role,
    .derive = derive,
    .flops = flops,
    .defaults = defaults,
};
