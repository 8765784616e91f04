/* cases.c: the test cases of Q8_0: of its quantisers, and of decode every number of tokens by itself and together, both
 * forms of weights and activations, columns from one block to many, hostile scales
 * and codes (fill.c). */
#include <stdio.h>

#include "q8_0.h"

static const char *const x_forms[] = {"f32", "i8", "bf16"};
static const char *const w_forms[] = {"u8", "i8"};
static const char *const out_dtypes[] = {"f32", "bf16"};

/* Columns and rows. k is shared out over partitions of a row in rounds: one block, less than one round, ragged rounds
 * (by whole blocks, runs of a partition and halves of one), whole rounds; fewer rows than a vector has, odd numbers,
 * many. */
static const struct {
    int cols, rows;
} shapes[] = {{32, 1},   {96, 3},    {128, 17},   {160, 8},   {992, 5},    {1024, 33},
              {1056, 9}, {2080, 2},  {4096, 100}, {3168, 31}, {14336, 6},  {1024, 300},
              {576, 50}, {1600, 21}, {0, 4},      {64, 0},    {20480, 17}, {140288, 3}};

/* The last two: more rounds than a pipeline has stages, and more boxes than x may have at one token. */
enum { SHAPES = (int)(sizeof shapes / sizeof shapes[0]) - 2 };

/* Prompts: more tokens than a tile of decoding has. Ragged tiles of tokens and of rows, fewer rounds than one, ragged
 * rounds by runs and by halves of one, rows that are no multiple of anything; columns that Hopper's row takes, by whole
 * and ragged rounds; more tiles than a GPU has SMs. slices: compare every token with a call of its own. */
static const struct {
    int tokens, cols, rows, form;
    bool slices;
} prompts[] = {
    {17, 1088, 150, 3, true},  {17, 96, 20, 0, true},      {33, 2112, 70, 5, true},    {64, 4096, 129, 4, true},
    {100, 576, 257, 4, true},  {100, 1600, 21, 1, false},  {129, 64, 300, 3, false},   {257, 1216, 130, 5, true},
    {512, 1024, 72, 4, false}, {512, 3200, 33, 3, false},  {1030, 320, 40, 5, false},  {130, 2304, 270, 4, true},
    {21, 256, 140, 3, true},   {300, 1280, 520, 5, false}, {260, 512, 5800, 4, false},
};
enum { PROMPTS = (int)(sizeof prompts / sizeof prompts[0]) };

/* shape: counts cases, for what varies with them. */
static void sized_text(const ridge_op_row *op, int tokens, int cols, int rows, int shape, int form, char *text,
                       size_t size)
{
    const char *x = x_forms[form % 3], *w = w_forms[form / 3 % 2], *out = out_dtypes[(form + shape) % 2];
    static const char *const swiglu[] = {"",
                                         "limit=10 token_scale=1",
                                         "act=gelu_tanh up_offset=1",
                                         "act=gelu_erf",
                                         "alpha=1.702 limit=7 gate_mul=0.5",
                                         "act=relu2 down_mul=2 token_scale=1"};
    static const char *const norm[] = {"", " norm=1", " norm=1 eps=0.01"};
    const char *normed = x[0] == 'i' ? "" : norm[(shape + tokens + form / 3) % 3];
    static const char *const hc[] = {"n_hc=4", "n_hc=4 add=1", "n_hc=4 y=1", "n_hc=1 add=1 y=1", "n_hc=3", "n_hc=16"};

    switch (op->id) {
    case RIDGE_Q8_0_MATMUL:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s out=%s%s", tokens, cols, rows, x, w, out, normed);
        break;
    case RIDGE_Q8_0_PAIR:
        snprintf(text, size, "tokens=%d cols=%d rows0=%d rows1=%d x=%s w=%s out=%s", tokens, cols, rows,
                 form % 4 == 3 ? 0 : rows / 2 + 1, x, w, out);
        break;
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s out=%s %s%s", tokens, cols, rows, x, w, out,
                 swiglu[(shape + form) % 6], normed);
        break;
    default:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s %s", tokens, cols, rows, x, w,
                 hc[(shape + form) % 6]);
        break;
    }
}

static void product_text(const ridge_op_row *op, int tokens, int shape, int form, char *text, size_t size)
{
    sized_text(op, tokens, shapes[shape].cols, shapes[shape].rows, shape, form, text, size);
}

static void prompt_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    char text[256];

    for (int i = 0; i < PROMPTS; i++) {
        test_case layout = {
            .fill = i % 2 ? FILL_GROUPS : FILL_NORMAL, .slices = prompts[i].slices, .pad = i % 3 == 1 ? 64 : 0};

        if (level == CASES_QUICK && i % 3 == 1)
            continue;
        sized_text(op, prompts[i].tokens, prompts[i].cols, prompts[i].rows, i, prompts[i].form, text, sizeof text);
        cases_add(list, op, text, layout);
    }
}

static void product_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const fill_kind fill[] = {FILL_NORMAL, FILL_GROUPS, FILL_NORMAL, FILL_EDGE};
    char text[256];
    int n = 0;

    for (int tokens = 1; tokens <= 16; tokens++) /* each number, as columns of their own */
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
            test_case layout = {.fill = fill[n % 4], .slices = form % 3 < 2, .pad = n % 3 == 1 ? 64 : 0};

            if (level == CASES_QUICK && (form + shape) % 3)
                continue;
            layout.shift = n % 7 == 3 ? 1 : 0;
            product_text(op, some[(shape + form) % 8], shape, form, text, sizeof text);
            cases_add(list, op, text, layout);
        }
    for (int i = 0; i < 7; i++) { /* one token's floats, as in text */
        static const int some[] = {12, 5, 13, 11, 11, 12, 5};

        product_text(op, 1, some[i], i % 2 ? 5 : 3, text, sizeof text);
        cases_add(list, op, text, (test_case){.fill = i < 4 ? FILL_NORMAL : FILL_GROUPS, .slices = i > 2});
    }
    for (int i = 0; i < 2; i++) { /* three whole k steps of it */
        sized_text(op, 1, 3072, 100, 3 * i, i ? 5 : 3, text, sizeof text);
        cases_add(list, op, text, (test_case){.fill = FILL_NORMAL});
    }
    for (int i = 0; i < 5; i++) {
        static const int some[] = {1, 3, 16, 1, 1}, form[] = {4, 4, 4, 1, 4};

        product_text(op, some[i], SHAPES + i / 4, form[i], text, sizeof text);
        cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = some[i] > 1});
    }
    prompt_cases(op, level, list);
    product_text(op, 0, 2, 0, text, sizeof text);
    cases_add(list, op, text, (test_case){.fill = FILL_NORMAL});
    product_text(op, 3, 4, 1, text, sizeof text);
    cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .repeats = level == CASES_QUICK ? 50 : 500});
}

static void block_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const char *const dtypes[] = {"bf16", "f16", "f32"}, *const of_rows[] = {"f32", "bf16"};
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
            if (level == CASES_QUICK && forms > 1 && (i + (size_t)d) % 2)
                continue;
            snprintf(text, sizeof text, forms > 1 ? "%s dtype=%s" : "%s", shape[i].shape, dtype[d]);
            cases_add(list, op, text, shape[i].layout);
        }
}

void cases_q8_0(const ridge_op_row *op, case_level level, case_list *list)
{
    if (is_product(op->id))
        product_cases(op, level, list);
    else
        block_cases(op, level, list);
}
