/* transpose.c: the cases of transpose_fp8, its oracle, and the faults that a transpose may have. */
#include <math.h>

#include "quantize.h"

extern const ridge_family ridge_family_transpose_fp8;

static void transpose_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", {.fill = FILL_NORMAL}},
        {"rows=64 cols=0", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1", {.fill = FILL_EDGE}},
        {"rows=1 cols=300", {.fill = FILL_EDGE}},
        {"rows=300 cols=1", {.fill = FILL_EDGE}},
        {"rows=128 cols=128", {.fill = FILL_EDGE}},
        {"rows=130 cols=264", {.fill = FILL_EDGE}},
        {"rows=129 cols=255", {.fill = FILL_EDGE, .shift = 1}},
        {"rows=144 cols=272", {.fill = FILL_NORMAL, .pad = 16}},
        {"rows=131 cols=137", {.fill = FILL_EDGE, .pad = 3, .shift = 3}},
        {"rows=256 cols=1032", {.fill = FILL_EDGE, .pad = 8}},
        {"rows=1031 cols=2056", {.fill = FILL_EDGE, .repeats = 100}},
        {"rows=640 cols=4096", {.fill = FILL_NORMAL}},
    };
    char text[64];

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (size_t format = 0; format < 2; format++) {
            if (level == CASES_QUICK && (i + format) % 2)
                continue;
            snprintf(text, sizeof text, "%s format=%s", shape[i].shape, format ? "e5m2" : "e4m3");
            cases_add(list, op, text, shape[i].layout);
        }
    if (level == CASES_LARGE)
        cases_add(list, op, "rows=65664 cols=65544", (test_case){.fill = FILL_PERIOD});
}

/* Every element of both outputs is the input's at the mirrored place. */
static void transpose_oracle(oracle_run *run)
{
    const int64_t rows = run->im->call.dim[0], cols = run->im->call.dim[1];
    int64_t down, across;

    for (int arg = RIDGE_TRANSPOSE_FP8_Q; arg <= RIDGE_TRANSPOSE_FP8_SCALE && rows && cols; arg++) {
        down = arg == RIDGE_TRANSPOSE_FP8_Q ? rows : (rows + 127) / 128;
        across = arg == RIDGE_TRANSPOSE_FP8_Q ? cols : (cols + 127) / 128;
        for (int64_t r = 0; r < down; r++)
            for (int64_t c = 0; c < across; c++) {
                const double want = oracle_in(run, arg, r, c), got = oracle_out(run, arg + 2, c, r);

                oracle_note(run, isnan(want) ? (isnan(got) ? 0 : INFINITY) : (got == want ? 0 : INFINITY),
                            arg == RIDGE_TRANSPOSE_FP8_Q ? "q_t" : "scale_t", c, r);
            }
    }
}

static const suite_row suites[] = {
    {"quick", "transpose_fp8 rows=256 cols=1024"},
    {"quantize", "transpose_fp8 rows=28672 cols=4096"},
    {"quantize", "transpose_fp8 rows=4096 cols=14336"},
    {"quantize", "transpose_fp8 rows=28672 cols=8192"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {"transpose_fp8 rows=133 cols=264 pad=0", NULL};

/* The scales of the input's first block where those of another belong. */
static ridge_status keeps_the_first_scale(const faulty_run *r)
{
    const size_t first = r->im->offset[RIDGE_TRANSPOSE_FP8_SCALE_T];
    ridge_status status = fault_run(r, r->call);
    float scale[2] = {0, 0};

    status = status ? status : fault_read(r, first, &scale[0], sizeof(float));
    status = status ? status : fault_read(r, first + sizeof(float), &scale[1], sizeof(float));
    if (!status && scale[0] == scale[1])
        return fault_impossible("two scales are the same");
    return status ? status : fault_write(r, first + sizeof(float), &scale[0], sizeof(float));
}

static const planted_fault faults[] = {
    {.name = "changes a transposed code", .fault = fault_spoils_an_element, .operand = "q_t"},
    {.name = "keeps the first block's scale", .fault = keeps_the_first_scale},
    {0},
};

const check_family check_transpose_fp8 = {
    .family = &ridge_family_transpose_fp8,
    .cases = transpose_cases,
    .oracle = transpose_oracle,
    .periodic = UINT64_C(1) << RIDGE_TRANSPOSE_FP8,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
