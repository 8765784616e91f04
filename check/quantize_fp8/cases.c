/* cases.c: the test cases of the FP8 and Q8_0 quantisers. */
#include <stdio.h>

#include "check/check.h"

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

void cases_quantize(const ridge_op_row *op, case_list *list, case_level level)
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
    if (level == CASES_LARGE)
        cases_add(list, op, "rows=65664 cols=32776 dtype=bf16", (test_case){.fill = FILL_PERIOD});
}

void cases_q8_0(const ridge_op_row *op, case_list *list, case_level level)
{
    static const char *const of_rows[] = {"f32", "bf16"};
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", {.fill = FILL_NORMAL}},
        {"rows=3 cols=0", {.fill = FILL_NORMAL}},
        {"rows=1 cols=32", {.fill = FILL_NORMAL}},
        {"rows=7 cols=96", {.fill = FILL_GROUPS, .slices = true}},
        {"rows=16 cols=4096", {.fill = FILL_EVERY}},
        {"rows=33 cols=2048", {.fill = FILL_NORMAL, .slices = true, .repeats = 200}},
        {"rows=65 cols=4160", {.fill = FILL_GROUPS, .pad = 2}},
        {"rows=5 cols=1056", {.fill = FILL_EDGE, .pad = 16, .shift = 1}},
        {"rows=300 cols=128", {.fill = FILL_GROUPS, .shift = 3}},
    };
    const char *const *dtype = op->id == RIDGE_Q8_0_QUANTIZE_ROWS ? of_rows : dtypes;
    const int forms = op->id == RIDGE_Q8_0_QUANTIZE ? 3 : op->id == RIDGE_Q8_0_QUANTIZE_ROWS ? 2 : 1;
    char text[128];

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int d = 0; d < forms; d++) {
            if (level == CASES_QUICK && (i + (size_t)d) % 2)
                continue;
            snprintf(text, sizeof text, forms > 1 ? "%s dtype=%s" : "%s", shape[i].shape, dtype[d]);
            cases_add(list, op, text, shape[i].layout);
        }
}
