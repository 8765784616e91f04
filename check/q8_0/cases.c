/* cases.c: the test cases of Q8_0 decode, rms_norm and RoPE: every number of tokens alone and together, both
 * forms of weights and activations, cols from one block over ragged turns of the partitions to many, hostile scales and
 * codes (fill.c). */
#include <stdio.h>

#include "check/check.h"

static const char *const x_forms[] = {"f32", "i8", "bf16"};
static const char *const w_forms[] = {"u8", "i8"};
static const char *const out_dtypes[] = {"f32", "bf16"};

/* Columns and rows: one block, less than one turn of the partitions, ragged (by whole blocks, runs of a partition and
 * halves of one), whole turns; fewer rows than a vector has, odd numbers, many. */
static const struct {
    int cols, rows;
} shapes[] = {{32, 1},   {96, 3},    {128, 17},   {160, 8},   {992, 5},    {1024, 33},
              {1056, 9}, {2080, 2},  {4096, 100}, {3168, 31}, {14336, 6},  {1024, 300},
              {576, 50}, {1600, 21}, {0, 4},      {64, 0},    {20480, 17}, {140288, 3}};

/* The last two: more turns than a ring of stages has places, and than x may have boxes at one token. */
enum { SHAPES = (int)(sizeof shapes / sizeof shapes[0]) - 2 };

static void product_text(const ridge_op_row *op, int tokens, int shape, int form, char *text, size_t size)
{
    const char *x = x_forms[form % 3], *w = w_forms[form / 3 % 2], *out = out_dtypes[(form + shape) % 2];
    const int cols = shapes[shape].cols, rows = shapes[shape].rows;
    static const char *const swiglu[] = {"",
                                         "limit=10 token_scale=1",
                                         "act=gelu_tanh up_offset=1",
                                         "act=gelu_erf",
                                         "alpha=1.702 limit=7 gate_mul=0.5",
                                         "act=relu2 down_mul=2 token_scale=1"};
    static const char *const hc[] = {"n_hc=4", "n_hc=4 add=1", "n_hc=4 y=1", "n_hc=1 add=1 y=1", "n_hc=3", "n_hc=16"};

    switch (op->id) {
    case RIDGE_Q8_0_MATMUL:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s out=%s", tokens, cols, rows, x, w, out);
        break;
    case RIDGE_Q8_0_PAIR:
        snprintf(text, size, "tokens=%d cols=%d rows0=%d rows1=%d x=%s w=%s out=%s", tokens, cols, rows,
                 form % 4 == 3 ? 0 : rows / 2 + 1, x, w, out);
        break;
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s out=%s %s", tokens, cols, rows, x, w, out,
                 swiglu[(shape + form) % 6]);
        break;
    default:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s %s", tokens, cols, rows, x, w,
                 hc[(shape + form) % 6]);
        break;
    }
}

static void product_cases(const ridge_op_row *op, case_list *list, case_level level)
{
    static const fill_kind fill[] = {FILL_NORMAL, FILL_GROUPS, FILL_NORMAL, FILL_EDGE};
    char text[256];
    int n = 0;

    for (int tokens = 1; tokens <= RIDGE_Q8_0_MAX_TOKENS; tokens++) /* each number, as columns of their own */
        for (int form = 0; form < 6; form++, n++) {
            test_case layout = {.fill = fill[n % 4], .slices = true, .pad = n % 5 == 2 ? 34 : 0};

            if (level == CASES_QUICK && (form + tokens) % 6 > 1)
                continue;
            product_text(op, tokens, 6 + n % 2, form, text, sizeof text);
            cases_add(list, op, text, layout);
        }
    for (int shape = 0; shape < SHAPES; shape++)
        for (int form = 0; form < 6; form++, n++) {
            static const int some[] = {1, 2, 3, 4, 7, 8, 16, 5};
            test_case layout = {.fill = fill[n % 4], .slices = form == 1, .pad = n % 3 == 1 ? 64 : 0};

            if (level == CASES_QUICK && (form + shape) % 3)
                continue;
            layout.shift = n % 7 == 3 ? 1 : 0;
            product_text(op, some[(shape + form) % 8], shape, form, text, sizeof text);
            cases_add(list, op, text, layout);
        }
    for (int i = 0; i < 5; i++) {
        static const int some[] = {1, 3, 16, 1, 1}, form[] = {4, 4, 4, 1, 4};

        product_text(op, some[i], SHAPES + i / 4, form[i], text, sizeof text);
        cases_add(list, op, text, (test_case){.fill = FILL_NORMAL});
    }
    product_text(op, 0, 2, 0, text, sizeof text);
    cases_add(list, op, text, (test_case){.fill = FILL_NORMAL});
    product_text(op, 3, 4, 1, text, sizeof text);
    cases_add(list, op, text,
              (test_case){.fill = FILL_NORMAL,
                          .repeats = level == CASES_QUICK   ? 50
                                     : level == CASES_LARGE ? 1000
                                                            : 500});
}

static void norm_cases(const ridge_op_row *op, case_list *list, case_level level)
{
    static const struct {
        const char *rms, *rope;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", "tokens=0 heads=2 head_dim=64 n_rot=32", {.fill = FILL_NORMAL}},
        {"rows=3 cols=0", "tokens=3 heads=0 head_dim=64 n_rot=32", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1", "tokens=1 heads=1 head_dim=2 n_rot=2", {.fill = FILL_NORMAL}},
        {"rows=5 cols=4096", "tokens=5 heads=8 head_dim=512 n_rot=64", {.fill = FILL_NORMAL, .slices = true}},
        {"rows=3 cols=255", "tokens=9 heads=3 head_dim=66 n_rot=18", {.fill = FILL_NORMAL, .pad = 8, .slices = true}},
        {"rows=4 cols=257", "tokens=2 heads=4 head_dim=128 n_rot=128", {.fill = FILL_EDGE}},
        {"rows=6 cols=16384", "tokens=3 heads=2 head_dim=514 n_rot=0", {.fill = FILL_NORMAL}},
        {"rows=6 cols=1031", "tokens=6 heads=5 head_dim=70 n_rot=22", {.fill = FILL_GROUPS, .pad = 3, .shift = 1}},
        {"rows=4 cols=520", "tokens=4 heads=3 head_dim=192 n_rot=64", {.fill = FILL_NORMAL, .alias = true}},
        {"rows=33 cols=1536", "tokens=17 heads=4 head_dim=256 n_rot=64", {.fill = FILL_NORMAL, .repeats = 100}},
        {"rows=300 cols=96", "tokens=300 heads=2 head_dim=48 n_rot=32", {.fill = FILL_NORMAL, .slices = true}},
        {"rows=2 cols=700", "tokens=2 heads=2 head_dim=2100 n_rot=600", {.fill = FILL_NORMAL}},
    };
    static const char *const more[] = {"", "inverse=1 mscale=1.25", "rope_only=1 pos=i64", "eps=0.001 pos=i64",
                                       "rope_only=1 inverse=1"};
    const bool rope = op->id == RIDGE_HEAD_RMS_NORM_ROPE_TAIL;
    char text[256];

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int form = 0; form < 6; form++) {
            const char *x = out_dtypes[form % 2], *out = out_dtypes[shape[i].layout.alias ? form % 2 : form / 2 % 2];

            if (level == CASES_QUICK && (i + form) % 3)
                continue;
            snprintf(text, sizeof text, "%s x=%s out=%s%s%s %s", rope ? shape[i].rope : shape[i].rms, x, out,
                     form % 3 ? " w=" : "", form % 3 == 0 ? "" : out_dtypes[form % 3 - 1],
                     rope        ? more[(i + form) % 5]
                     : form == 4 ? "eps=0"
                                 : "");
            cases_add(list, op, text, shape[i].layout);
        }
}

void cases_decode(const ridge_op_row *op, case_list *list, case_level level)
{
    if (op->id == RIDGE_RMS_NORM || op->id == RIDGE_HEAD_RMS_NORM_ROPE_TAIL)
        norm_cases(op, list, level);
    else
        product_cases(op, list, level);
}
