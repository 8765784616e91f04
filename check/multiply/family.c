/* family.c: the cases of multiply, its factor (variant=1: it is 1), and its float64 oracle. Where out is x and the
 * factor 1, x must be left as it is: the bits of a NaN too, which the reference's bits are the test of. */
#include <math.h>
#include <string.h>

#include "check/family.h"

extern const ridge_family ridge_family_multiply;

static void multiply_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", {.fill = FILL_NORMAL}},
        {"rows=3 cols=0", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1", {.fill = FILL_NORMAL}},
        {"rows=3 cols=1031", {.fill = FILL_EDGE, .pad = 3, .shift = 1}},
        {"rows=5 cols=4096", {.fill = FILL_EDGE, .slices = true}},
        {"rows=5 cols=4096", {.fill = FILL_EDGE, .variant = 1}},
        {"rows=7 cols=520", {.fill = FILL_EDGE, .alias = true}},
        {"rows=7 cols=520", {.fill = FILL_EDGE, .alias = true, .variant = 1}},
        {"rows=9 cols=264", {.fill = FILL_EDGE, .alias = true, .pad = 8}},
        {"rows=9 cols=264", {.fill = FILL_EDGE, .alias = true, .pad = 5, .variant = 1}},
        {"rows=300 cols=2049", {.fill = FILL_NORMAL, .repeats = 20}},
        {"rows=1024 cols=6144", {.fill = FILL_NORMAL}},
    };
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    char text[128];

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (size_t form = 0; form < 9; form++) {
            const char *x = dtypes[form % 3], *out = dtypes[shape[i].layout.alias ? form % 3 : form / 3];

            if ((shape[i].layout.alias && form >= 3) || (level == CASES_QUICK && (i + form) % 3))
                continue;
            snprintf(text, sizeof text, "%s x=%s out=%s", shape[i].shape, x, out);
            cases_add(list, op, text, shape[i].layout);
        }
}

static bool multiply_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const float one = 1.0f;

    (void)seed;
    if (arg != RIDGE_MULTIPLY_FACTOR || !c->variant)
        return false;
    memcpy(im->host + im->offset[arg], &one, sizeof one);
    return true;
}

static void multiply_oracle(oracle_run *run)
{
    const uint32_t out = run->im->call.arg[RIDGE_MULTIPLY_OUT].dtype;
    const double factor = oracle_in(run, RIDGE_MULTIPLY_FACTOR, 0, 0);

    for (int64_t r = 0; r < run->im->call.dim[0]; r++)
        for (int64_t j = 0; j < run->im->call.dim[1]; j++) {
            const double ref = oracle_in(run, RIDGE_MULTIPLY_X, r, j) * factor;
            const double bound = 0.5 * dtype_ulp(ref, out) + 0x1p-24 * fabs(ref) + 0x1p-149;

            oracle_note(run, oracle_ratio(oracle_out(run, RIDGE_MULTIPLY_OUT, r, j), ref, bound, out), "out", r, j);
        }
}

static const suite_row suites[] = {
    {"multiply", "multiply rows=128256 cols=4096 x=f32 out=bf16"},
    {"multiply", "multiply rows=128256 cols=4096 x=f32 out=f32"},
    {"multiply", "multiply rows=8192 cols=4096 x=bf16 out=bf16"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "multiply rows=5 cols=264 x=f32 out=f32",
    NULL,
};

static ridge_status multiplies_twice(const faulty_run *r)
{
    ridge_call again = *r->call;
    const ridge_status status = fault_run(r, r->call);

    if (r->call->arg[RIDGE_MULTIPLY_X].dtype != r->call->arg[RIDGE_MULTIPLY_OUT].dtype)
        return fault_impossible("x and out have other dtypes");
    again.arg[RIDGE_MULTIPLY_X] = r->call->arg[RIDGE_MULTIPLY_OUT];
    return status ? status : fault_run_changed(r, &again);
}

static const planted_fault faults[] = {
    {.name = "takes what is behind the factor", .fault = fault_takes_the_next, .operand = "factor"},
    {.name = "multiplies twice", .fault = multiplies_twice},
    {0},
};

const check_family check_multiply = {
    .family = &ridge_family_multiply,
    .cases = multiply_cases,
    .oracle = multiply_oracle,
    .fill = multiply_fill,
    .variants = 1,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
