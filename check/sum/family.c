/* family.c: the cases of sum, its float64 oracle, and the faults that a sum of parts may have. */
#include <math.h>

#include "check/family.h"

extern const ridge_family ridge_family_sum;

static void sum_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64 parts=2", {.fill = FILL_NORMAL}},
        {"rows=3 cols=0 parts=2", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1 parts=1", {.fill = FILL_EDGE}},
        {"rows=1 cols=7 parts=3", {.fill = FILL_EDGE}},
        {"rows=3 cols=1031 parts=2", {.fill = FILL_EDGE, .pad = 3, .shift = 1}},
        {"rows=5 cols=4096 parts=1", {.fill = FILL_EDGE}},
        {"rows=4 cols=512 parts=4", {.fill = FILL_EDGE, .pad = 8}},
        {"rows=9 cols=264 parts=5", {.fill = FILL_EDGE}},
        {"rows=2 cols=24 parts=4096", {.fill = FILL_NORMAL}},
        {"rows=300 cols=2049 parts=3", {.fill = FILL_NORMAL, .repeats = 20}},
        {"rows=512 cols=4096 parts=8", {.fill = FILL_NORMAL}},
    };
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    char text[128];

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (size_t form = 0; form < 9; form++) {
            if (level == CASES_QUICK && (i + form) % 3)
                continue;
            snprintf(text, sizeof text, "%s x=%s out=%s", shape[i].shape, dtypes[form % 3], dtypes[form / 3]);
            cases_add(list, op, text, shape[i].layout);
        }
}

static void sum_oracle(oracle_run *run)
{
    const uint32_t out = run->im->call.arg[RIDGE_SUM_OUT].dtype;
    const int64_t rows = run->im->call.dim[0], parts = run->im->call.dim[2];

    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < run->im->call.dim[1]; j++) {
            double ref = 0, size = 0, bound;

            for (int64_t part = 0; part < parts; part++) {
                const double x = oracle_in(run, RIDGE_SUM_X, part * rows + r, j);

                ref += x;
                size += isfinite(x) ? fabs(x) : 0;
            }
            bound = 0.5 * dtype_ulp(ref, out) + (double)(parts - 1) * 0x1p-24 * size + 0x1p-149;
            /* Past f32's largest number the order of the parts decides whether a sum on the way is infinite. */
            if (size <= 0x1.fffffep127)
                oracle_note(run, oracle_ratio(oracle_out(run, RIDGE_SUM_OUT, r, j), ref, bound, out), "out", r, j);
        }
}

static const suite_row suites[] = {
    {"sum", "sum rows=8192 cols=4096 parts=2 x=f32 out=bf16"},
    {"sum", "sum rows=4096 cols=4096 parts=2 x=bf16 out=bf16"},
    {"sum", "sum rows=1024 cols=4096 parts=8 x=bf16 out=f32"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "sum rows=5 cols=264 parts=4 x=f32 out=f32",
    NULL,
};

/* The same parts as though there were one less of them. */
static ridge_status leaves_out_the_last_part(const faulty_run *r)
{
    ridge_call less = fault_with_strides(r->call);

    less.dim[2]--;
    return fault_run_changed(r, &less);
}

/* Of four parts the last two first: in f32 another order is another sum. */
static ridge_status adds_in_another_order(const faulty_run *r)
{
    const ridge_operand *out = &r->call->arg[RIDGE_SUM_OUT];
    const int64_t rows = r->call->dim[0], cols = r->call->dim[1];
    ridge_status status = fault_run(r, r->call);

    for (int64_t row = 0; row < rows && !status; row++)
        for (int64_t col = 0; col < cols && !status; col++) {
            float part[4], total;

            for (int k = 0; k < 4 && !status; k++)
                status = fault_read(r, fault_at(r->im, RIDGE_SUM_X, k * rows + row, col), &part[k], sizeof part[k]);
            total = part[2] + part[3] + part[0] + part[1];
            if (!status && out->dtype == RIDGE_F32)
                status = fault_write(r, fault_at(r->im, RIDGE_SUM_OUT, row, col), &total, sizeof total);
        }
    return status;
}

static const planted_fault faults[] = {
    {.name = "leaves out the last part", .fault = leaves_out_the_last_part},
    {.name = "adds in another order", .fault = adds_in_another_order, .cpu = true},
    {0},
};

const check_family check_sum = {
    .family = &ridge_family_sum,
    .cases = sum_cases,
    .oracle = sum_oracle,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
