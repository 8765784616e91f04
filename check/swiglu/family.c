/* family.c: the cases, suites and faults of swiglu_fwd and swiglu_bwd. */
#include <string.h>

#include "ops/swiglu/op.h"
#include "swiglu.h"

extern const ridge_family ridge_family_swiglu;

static const char *const swiglu_acts[] = {"silu", "gelu_tanh", "gelu_erf", "relu2"};
static const char *const swiglu_dtypes[] = {"bf16", "f16", "f32"};

/* Shapes and layouts, in each dtype, plain SiLU. */
static void swiglu_shapes(const ridge_op_row *op, case_list *list, bool quick)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", {.fill = FILL_NORMAL}},
        {"rows=3 cols=0", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1", {.fill = FILL_NORMAL}},
        {"rows=1 cols=7", {.fill = FILL_NORMAL}},
        {"rows=3 cols=8", {.fill = FILL_NORMAL, .shift = 1}},
        {"rows=2 cols=513", {.fill = FILL_EDGE}},
        {"rows=17 cols=127", {.fill = FILL_NORMAL, .slices = true}},
        {"rows=5 cols=2048", {.fill = FILL_NORMAL, .slices = true, .repeats = 1000}},
        {"rows=3 cols=4096", {.fill = FILL_EDGE, .pad = 8}},
        {"rows=3 cols=4100", {.fill = FILL_EDGE, .pad = 3}},
        {"rows=4 cols=1024", {.fill = FILL_NORMAL, .fused = true}},
        {"rows=4 cols=1031", {.fill = FILL_NORMAL, .fused = true}},
        {"rows=4 cols=1024", {.fill = FILL_EDGE, .alias = true}},
        {"rows=7 cols=1027", {.fill = FILL_EDGE, .alias = true, .pad = 5, .shift = 3}},
        {"rows=4 cols=520", {.fill = FILL_EDGE, .alias = true, .fused = true}},
        {"rows=3 cols=11009", {.fill = FILL_NORMAL}},
        {"rows=3 cols=14337", {.fill = FILL_NORMAL}},
        {"rows=2 cols=16384", {.fill = FILL_NORMAL}},
        {"rows=64 cols=14336", {.fill = FILL_NORMAL}},
        {"rows=300 cols=264", {.fill = FILL_NORMAL}},
    };
    char text[256];

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int d = 0; d < 3; d++)
            for (int pair = 0; pair < 2; pair++) {
                if ((pair && shape[i].layout.fused) || (quick && (i + (size_t)d + (size_t)pair) % 3))
                    continue;
                snprintf(text, sizeof text, "%s dtype=%s interleaved=%d", shape[i].shape, swiglu_dtypes[d], pair);
                cases_add(list, op, text, shape[i].layout);
            }
}

/* Activations, options and flags; every 16-bit gate value. */
static void swiglu_options(const ridge_op_row *op, case_list *list, bool quick)
{
    static const char *const option[] = {
        "",
        "ROUND=1",
        "gate_mul=0.5 down_mul=1.5",
        "limit=2.5",
        "row_scale=1",
        "DROW",
        "limit=1.25 up_offset=1 gate_mul=-0.75 down_mul=3 row_scale=1 ROUND=1 DROW",
        "limit=7 up_offset=1 ALPHA",
    };
    static const test_case layout[] = {{.fill = FILL_EDGE}, {.fill = FILL_EVERY}, {.fill = FILL_NORMAL, .pad = 16}};
    bool backward = op->id == RIDGE_SWIGLU_BWD;
    char text[256], words[160];

    for (int act = 0; act < 4; act++)
        for (size_t i = 0; i < sizeof option / sizeof option[0]; i++)
            for (int d = 0; d < 3; d++)
                for (int pair = 0; pair < 2; pair++) {
                    size_t which = ((size_t)act + i + (size_t)d + (size_t)pair) % 3;
                    char *at;

                    if (quick && ((size_t)act * 5 + i * 3 + (size_t)d + (size_t)pair) % 7)
                        continue;
                    snprintf(words, sizeof words, "%s", option[i]);
                    if ((at = strstr(words, "ROUND=1")) != NULL) {
                        char rest[80];

                        snprintf(rest, sizeof rest, "%s", at + 7);
                        snprintf(at, sizeof words - (size_t)(at - words), "%s=1%s",
                                 backward ? "round_gate_bwd" : "round_gate", rest);
                    }
                    if ((at = strstr(words, "DROW")) != NULL)
                        snprintf(at, sizeof words - (size_t)(at - words), "%s", backward ? "drow=1" : "");
                    if ((at = strstr(words, "ALPHA")) != NULL)
                        snprintf(at, sizeof words - (size_t)(at - words), "%s", act ? "" : "alpha=1.702");
                    snprintf(text, sizeof text, "rows=%s dtype=%s act=%s interleaved=%d %s",
                             which == 1 && d < 2 ? "16 cols=4096" : "6 cols=1288", swiglu_dtypes[d], swiglu_acts[act],
                             pair, words);
                    cases_add(list, op, text, layout[which]);
                }
}

static void swiglu_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    swiglu_shapes(op, list, level == CASES_QUICK);
    swiglu_options(op, list, level == CASES_QUICK);
    if (level == CASES_LARGE)
        cases_add(list, op,
                  op->id == RIDGE_SWIGLU_FWD ? "rows=65600 cols=32768 dtype=bf16" : "rows=16448 cols=131075 dtype=bf16",
                  (test_case){.fill = FILL_PERIOD});
}

static const suite_row suites[] = {
    {"quick", "swiglu_fwd rows=64 cols=1024 dtype=bf16"},
    {"quick", "swiglu_bwd rows=64 cols=1024 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=64 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=1024 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=2048 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=4096 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=11008 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=18944 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=28672 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=29568 dtype=bf16"},
    {"swiglu", "swiglu_fwd rows=8192 cols=53248 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=64 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=1024 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=2048 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=4096 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=11008 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=14336 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=18944 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=28672 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=29568 dtype=bf16"},
    {"swiglu", "swiglu_bwd rows=8192 cols=53248 dtype=bf16"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=f16"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=f32"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 act=gelu_tanh"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 act=gelu_erf"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 act=relu2"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 round_gate=1"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 interleaved=1"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=14336 dtype=bf16 fused=1"},
    {"swiglu-options", "swiglu_fwd rows=8192 cols=11009 dtype=bf16"},
    {"swiglu-options",
     "swiglu_fwd rows=8192 cols=14336 dtype=bf16 interleaved=1 row_scale=1 alpha=1.702 up_offset=1 limit=7"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=f16"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=f32"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 act=gelu_tanh"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 act=gelu_erf"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 round_gate_bwd=1"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 interleaved=1"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 fused=1"},
    {"swiglu-options", "swiglu_bwd rows=8192 cols=14336 dtype=bf16 row_scale=1 drow=1"},
    {NULL, NULL},
};

static ridge_status mixes_gate_and_up(const faulty_run *r)
{
    int gate = r->call->op == RIDGE_SWIGLU_FWD ? RIDGE_SWIGLU_FWD_GATE : RIDGE_SWIGLU_BWD_GATE;
    ridge_call copy = *r->call;

    copy.arg[gate].data = r->call->arg[gate + 1].data;
    copy.arg[gate + 1].data = r->call->arg[gate].data;
    return fault_run(r, &copy);
}

static ridge_status takes_another_activation(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.flags ^= RIDGE_GELU_ERF;
    copy.opt.swiglu.alpha = 1; /* is of SiLU alone */
    return fault_run_changed(r, &copy);
}

#define OPTION(field) .option = offsetof(ridge_swiglu_options, field)

static const planted_fault faults[] = {
    {.name = "takes the next row's scale", .fault = fault_takes_the_next, .operand = "row_scale"},
    {.name = "forgets the row's scale", .fault = fault_forgets_operand, .operand = "row_scale"},
    {.name = "forgets the clamp", .fault = fault_changes_option, OPTION(limit), .value = 0},
    {.name = "forgets gate_mul", .fault = fault_changes_option, OPTION(gate_mul), .value = 1},
    {.name = "forgets up_offset", .fault = fault_changes_option, OPTION(up_offset), .value = 0},
    {.name = "forgets alpha", .fault = fault_changes_option, OPTION(alpha), .value = 1},
    {.name = "takes another activation", .fault = takes_another_activation},
    {.name = "gets a row's gradient wrong", .fault = fault_spoils_an_element, .operand = "drow"},
    {.name = "mixes gate and up", .fault = mixes_gate_and_up},
    {0},
};

/* Ragged, with padded rows: a column too many lands in the padding. */
static const char *const fault_problems[] = {
    "swiglu_fwd rows=5 cols=264 dtype=bf16 row_scale=1 limit=0.5 gate_mul=0.5 up_offset=1 alpha=1.5",
    "swiglu_fwd rows=5 cols=264 dtype=bf16 row_scale=1 limit=0.5",
    "swiglu_fwd rows=5 cols=264 dtype=bf16 limit=0.5 pad=0",
    "swiglu_bwd rows=5 cols=264 dtype=bf16 row_scale=1 limit=0.5 gate_mul=0.5 up_offset=1 alpha=1.5 drow=1",
    "swiglu_bwd rows=5 cols=264 dtype=bf16 row_scale=1 limit=0.5",
    "swiglu_bwd rows=5 cols=264 dtype=bf16 limit=0.5 pad=0",
    NULL,
};

static ridge_status approximation(const ridge_device *device, uint32_t first, uint32_t step, uint32_t count,
                                  float *holds)
{
#if RIDGE_HAVE_CUDA
    return ridge_cuda_swiglu_approx(device, first, step, count, holds);
#else
    (void)first, (void)step, (void)count, (void)holds;
    return ridge_fail(RIDGE_ERR_UNSUPPORTED, "%s: this build has no CUDA", device->name);
#endif
}

const check_family check_swiglu = {
    .family = &ridge_family_swiglu,
    .cases = swiglu_cases,
    .oracle = oracle_swiglu,
    .suites = suites,
    .proof_name = "the approximation of SwiGLU",
    .proof = approximation,
    .fault_problems = fault_problems,
    .faults = faults,
};
