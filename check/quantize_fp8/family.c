/* family.c: the cases, inputs and suites of the FP8 quantisers. */
#include <string.h>

#include "cpu/num.h"
#include "quantize.h"

extern const ridge_family ridge_family_quantize_fp8;

static const char *const dtypes[] = {"bf16", "f16", "f32"};

/* Shapes: whole tiles, ragged tiles, single rows and columns, and each layout. */
static const struct {
    const char *shape;
    test_case layout;
} shape_table[] = {
    {"rows=0 cols=64", {.fill = FILL_NORMAL}},
    {"rows=64 cols=0", {.fill = FILL_NORMAL}},
    {"rows=1 cols=1", {.fill = FILL_NORMAL}},
    {"rows=1 cols=300", {.fill = FILL_GROUPS}},
    {"rows=300 cols=1", {.fill = FILL_GROUPS}},
    {"rows=128 cols=128", {.fill = FILL_GROUPS}},
    {"rows=130 cols=264", {.fill = FILL_GROUPS}},
    {"rows=16 cols=4096", {.fill = FILL_EVERY}},
    {"rows=129 cols=255", {.fill = FILL_GROUPS, .shift = 1}},
    {"rows=144 cols=272", {.fill = FILL_NORMAL, .pad = 16}},
    {"rows=131 cols=137", {.fill = FILL_EDGE, .pad = 3, .shift = 3}},
    {"rows=257 cols=1024", {.fill = FILL_NORMAL}},
    {"rows=64 cols=2056", {.fill = FILL_NORMAL, .repeats = 200}},
    {"rows=20 cols=14337", {.fill = FILL_GROUPS}},
    {"rows=400 cols=512", {.fill = FILL_GROUPS}},
};

enum { SHAPES = (int)(sizeof shape_table / sizeof shape_table[0]) };

static void quantize_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const char *const single[] = {"scale=row128",        "scale=blk128",         "scale=tensor",
                                         "scale=row",           "scale=tensor given=1", "scale=row given=1 amax=1",
                                         "scale=tensor amax=1", "scale=row amax=1"};
    static const char *const dual[] = {"form=row_row",          "form=row_blk",          "form=blk_blk",
                                       "form=row_row colsum=1", "form=row_blk colsum=1", "form=blk_blk colsum=1"};
    static const char *const swiglu[] = {"form=row_row",
                                         "form=row_blk act=gelu_tanh",
                                         "form=blk_blk limit=2",
                                         "form=row_row interleaved=1 row_scale=1 round_gate=1",
                                         "form=row_row act=relu2 row_scale=1",
                                         "form=row_blk act=gelu_erf gate_mul=-0.75 down_mul=1.5",
                                         "form=blk_blk alpha=1.702 up_offset=1 limit=7"};
    const bool is_single = op->id == RIDGE_QUANTIZE_FP8;
    const char *const *mode = is_single ? single : op->id == RIDGE_QUANTIZE_FP8_DUAL ? dual : swiglu;
    const int modes = is_single ? 8 : op->id == RIDGE_QUANTIZE_FP8_DUAL ? 6 : 7;
    char text[256];
    int n = 0;

    for (int i = 0; i < SHAPES; i++)
        for (int m = 0; m < modes; m++)
            for (int d = 0; d < 3; d++, n++) {
                test_case layout = shape_table[i].layout;
                const bool derived = !is_single || m < 4 || m == 7, e5m2 = (i + m + d) % 3 == 1;

                if (level == CASES_QUICK && n % 5)
                    continue;
                layout.slices =
                    is_single && (m == 3 || m == 5 || m == 7 || (m == 0 && layout.pad)) && layout.fill == FILL_NORMAL;
                snprintf(text, sizeof text, "%s dtype=%s format=%s %s%s%s", shape_table[i].shape, dtypes[d],
                         e5m2 ? "e5m2" : "e4m3", mode[m], derived && (i + d) % 4 == 2 ? " pow2=1" : "",
                         derived && (i + m) % 5 == 3 ? " floor=0.0001" : "");
                cases_add(list, op, text, layout);
            }
    for (int i = 0; i < 8 && op->id == RIDGE_QUANTIZE_FP8_DUAL; i++) {
        static const char *const matrices[] = {"rows=384 cols=256 matrices=3 form=blk_blk",
                                               "rows=393 cols=264 matrices=3 form=row_row",
                                               "rows=520 cols=130 matrices=2 form=row_blk",
                                               "rows=20 cols=137 matrices=20 form=blk_blk",
                                               "rows=1024 cols=384 matrices=4 form=row_row",
                                               "rows=900 cols=400 matrices=5 form=blk_blk",
                                               "rows=0 cols=64 matrices=7",
                                               "rows=512 cols=128 matrices=4 form=row_blk"};
        const test_case layout = {.fill = i % 3 == 2 ? FILL_EDGE : FILL_GROUPS,
                                  .pad = i % 4 == 1 ? 3 : 0,
                                  .shift = i % 4 == 1,
                                  .repeats = i == 4 ? 50 : 0};

        snprintf(text, sizeof text, "%s dtype=%s format=%s%s", matrices[i], dtypes[i % 3], i % 4 == 3 ? "e5m2" : "e4m3",
                 i % 2 ? " pow2=1" : "");
        cases_add(list, op, text, layout);
    }
    if (level == CASES_LARGE)
        cases_add(list, op, "rows=65664 cols=32776 dtype=bf16", (test_case){.fill = FILL_PERIOD});
}

/* Scales that a caller gives: positive, over many binades, the last one wrong when there are several. A benchmark's
 * are those of an amax of 4 to 8. */
static bool fill_given(const test_case *c, const image *im, int arg, uint64_t seed)
{
    static const float extreme[] = {0x1p127f, 0x1.8p126f, 0x1.fffffep127f, 0x1p-127f, 0x1p-140f, 0x1p-149f};
    unsigned char *to = im->host + im->offset[arg];
    int64_t rows, count;

    if (im->call.op != RIDGE_QUANTIZE_FP8 || arg != RIDGE_QUANTIZE_FP8_GIVEN)
        return false;
    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &count);
    for (int64_t i = 0; i < count; i++, to += 4) {
        uint64_t z = random_next(&seed);
        float value = ridge_float((uint32_t)(z % (40u << 23)) + (107u << 23));

        if (c->fill == FILL_EDGE && (count == 1 || i % 3 == 1)) /* used within [2^-126, 2^126] */
            value = extreme[(z >> 40) % 6];
        else if (c->fill == FILL_UNIT)
            value = (4.0f + (float)(z >> 40) * 0x1p-22f) / 448.0f;
        else if (i > 2 && i == count - 1)
            value = -value;
        memcpy(to, &value, 4);
    }
    return true;
}

/* A result row depends on nothing but its own inputs. */
static bool is_row_wise(const ridge_call *call)
{
    const uint32_t scale = call->flags & RIDGE_SCALE;

    return call->op == RIDGE_QUANTIZE_FP8 && (scale == RIDGE_SCALE_ROW || scale == RIDGE_SCALE_ROW128);
}

static const suite_row suites[] = {
    {"quick", "quantize_fp8 rows=64 cols=1024 dtype=bf16 scale=row128"},
    {"quick", "quantize_fp8_dual rows=256 cols=1024 dtype=bf16"},
    {"quick", "swiglu_quantize rows=256 cols=1024 dtype=bf16"},
    {"quantize", "quantize_fp8 rows=8192 cols=4096 dtype=bf16 scale=row128"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=row128"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=blk128"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=row"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=tensor"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=bf16 scale=tensor given=1 amax=1"},
    {"quantize", "quantize_fp8 rows=8192 cols=14336 dtype=f32 scale=row128"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=4096 dtype=bf16"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16 format=e5m2"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16 colsum=1"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=f32"},
    {"quantize", "quantize_fp8_dual rows=28672 cols=8192 dtype=bf16 form=blk_blk"},
    {"quantize", "quantize_fp8_dual rows=8192 cols=14336 dtype=bf16 form=row_blk"},
    {"moe-train", "quantize_fp8_dual rows=196608 cols=2048 dtype=bf16 form=blk_blk matrices=128"},
    {"moe-train", "quantize_fp8_dual rows=262144 cols=768 dtype=bf16 form=blk_blk matrices=128"},
    {"quantize", "swiglu_quantize rows=8192 cols=14336 dtype=bf16"},
    {"quantize", "swiglu_quantize rows=8192 cols=28672 dtype=bf16"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "quantize_fp8 rows=5 cols=264 dtype=bf16 scale=row pow2=1 floor=0.25 amax=1",
    "quantize_fp8 rows=5 cols=264 dtype=bf16 pow2=1 floor=0.25",
    "quantize_fp8 rows=5 cols=264 dtype=bf16 scale=tensor floor=1000",
    "quantize_fp8_dual rows=133 cols=264 dtype=bf16 pow2=1 floor=0.25 colsum=1",
    "quantize_fp8_dual rows=384 cols=256 dtype=bf16 form=blk_blk matrices=3",
    "swiglu_quantize rows=133 cols=264 dtype=bf16 pow2=1 floor=0.25",
    NULL,
};

/* One scale of a table, half of what it is. */
static ridge_status halves_a_scale(const faulty_run *r)
{
    const size_t at = r->im->offset[fault_slot(r->call, r->planted->operand)];
    ridge_status status = fault_run(r, r->call);
    float scale = 0;

    status = status ? status : fault_read(r, at, &scale, sizeof scale);
    scale *= 0.5f;
    return status ? status : fault_write(r, at, &scale, sizeof scale);
}

static ridge_status swaps_two_scales(const faulty_run *r)
{
    const int arg = fault_slot(r->call, "scale");
    const size_t first = r->im->offset[arg], last = first + r->im->length[arg] - sizeof(float);
    ridge_status status = fault_run(r, r->call);
    float scale[2] = {0, 0};

    status = status ? status : fault_read(r, first, &scale[0], sizeof(float));
    status = status ? status : fault_read(r, last, &scale[1], sizeof(float));
    if (!status && scale[0] == scale[1])
        return fault_impossible("the first scale is the last one");
    status = status ? status : fault_write(r, first, &scale[1], sizeof(float));
    return status ? status : fault_write(r, last, &scale[0], sizeof(float));
}

/* A transposed code of the first matrix and one of the last, the other way round. */
static ridge_status swaps_two_matrices(const faulty_run *r)
{
    const int arg = RIDGE_QUANTIZE_FP8_DUAL_Q_T;
    const size_t first = r->im->offset[arg], last = first + r->im->length[arg] - 1;
    ridge_status status = fault_run(r, r->call);
    uint8_t code[2] = {0, 0};

    status = status ? status : fault_read(r, first, &code[0], 1);
    status = status ? status : fault_read(r, last, &code[1], 1);
    if (!status && code[0] == code[1])
        return fault_impossible("the first code is the last one");
    status = status ? status : fault_write(r, first, &code[1], 1);
    return status ? status : fault_write(r, last, &code[0], 1);
}

static ridge_status forgets_the_floor(const faulty_run *r)
{
    ridge_call copy = *r->call;

    if (copy.op == RIDGE_SWIGLU_QUANTIZE)
        copy.opt.swiglu_quantize.floor = 0;
    else
        copy.opt.quantize.floor = 0;
    return fault_run_changed(r, &copy);
}

static const planted_fault faults[] = {
    {.name = "halves a scale", .fault = halves_a_scale, .operand = "scale"},
    {.name = "halves a scale of the transpose", .fault = halves_a_scale, .operand = "scale_t"},
    {.name = "swaps two scales", .fault = swaps_two_scales, .operand = "scale"},
    {.name = "rounds a code to its neighbour", .fault = fault_spoils_an_element, .operand = "q"},
    {.name = "rounds a code of the transpose to its neighbour", .fault = fault_spoils_an_element, .operand = "q_t"},
    {.name = "gets an amax wrong", .fault = fault_spoils_an_element, .operand = "amax"},
    {.name = "gets a sum of a column wrong", .fault = fault_spoils_an_element, .operand = "colsum"},
    {.name = "swaps two matrices", .fault = swaps_two_matrices, .op = RIDGE_QUANTIZE_FP8_DUAL},
    {.name = "forgets the floor", .fault = forgets_the_floor},
    {.name = "forgets that scales are powers of two", .fault = fault_changes_flags, .flags = RIDGE_POW2},
    {0},
};

const check_family check_quantize_fp8 = {
    .family = &ridge_family_quantize_fp8,
    .cases = quantize_cases,
    .oracle = oracle_quantize,
    .fill = fill_given,
    .periodic = UINT64_C(1) << RIDGE_QUANTIZE_FP8_DUAL,
    .row_wise = is_row_wise,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
