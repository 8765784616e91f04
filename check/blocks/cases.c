/* cases.c: the test cases of block formats: the repacks with whole and ragged tiles; of products every number of tokens
 * by itself and together, every format, columns from one block to many, hostile scales and codes (fill.c). */
#include <stdio.h>

#include "blocks.h"
#include "ops/blocks/layout.h"

static const char *const x_forms[] = {"f32", "i8", "bf16"};
static const char *const out_dtypes[] = {"f32", "bf16"};

enum { FORMATS = RIDGE_DTYPES - RIDGE_Q4_0 };

/* Columns of formats with blocks of 256 and of 32, and rows: one tile and less, more than one, ragged ones; units that
 * do not fill a round of all partitions, whole rounds and more; runs and blocks that do not fill a unit. */
static const struct {
    int cols, small_cols, rows;
} shapes[] = {{256, 32, 1},    {512, 96, 3},      {768, 128, 17},    {1024, 160, 16},  {1280, 992, 33},
              {256, 1056, 40}, {2048, 2880, 5},   {3328, 4096, 100}, {4096, 1376, 31}, {0, 0, 4},
              {256, 64, 0},    {14336, 14432, 6}, {1024, 288, 300}};

enum { SHAPES = (int)(sizeof shapes / sizeof shapes[0]) };

/* Prompts: ragged tiles of tokens and rows, columns of less than a run for each partition and of several, last units
 * with one run and with blocks missing, more tiles than a GPU has SMs. slices: compare every token with a call of its
 * own. */
static const struct {
    int tokens, cols, small_cols, rows, form;
    bool slices;
} prompts[] = {
    {17, 256, 96, 20, 0, true},      {33, 1024, 1120, 140, 1, true},   {64, 2304, 2272, 129, 4, true},
    {130, 512, 1376, 70, 5, true},   {100, 4096, 4128, 257, 1, false}, {257, 1280, 992, 130, 3, false},
    {512, 256, 160, 600, 4, false},  {300, 2048, 2048, 330, 2, false}, {1030, 512, 64, 40, 1, false},
    {129, 256, 128, 8200, 4, false},
};
enum { PROMPTS = (int)(sizeof prompts / sizeof prompts[0]) };

static void sized_text(const ridge_op_row *op, int tokens, int cols, int rows, int shape, int format, int form,
                       char *text, size_t size)
{
    static const char *const matmul[] = {"", "bias=1", "residual=1", "bias=1 residual=1"};
    static const char *const pair[] = {"", "bias0=1", "bias1=1", "bias0=1 bias1=1"};
    static const char *const swiglu[] = {"",
                                         "limit=10 token_scale=1",
                                         "act=gelu_tanh up_offset=1 gate_bias=1",
                                         "act=gelu_erf up_bias=1",
                                         "alpha=1.702 limit=7 up_offset=1 gate_bias=1 up_bias=1",
                                         "act=relu2 down_mul=2 token_scale=1"};
    const char *x = x_forms[form % 3], *out = out_dtypes[(form + shape) % 2];
    const char *w = ridge_dtype_name((uint32_t)(RIDGE_Q4_0 + format));

    switch (op->id) {
    case RIDGE_BLOCK_MATMUL:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s out=%s %s", tokens, cols, rows, x, w, out,
                 matmul[(shape + form) % 4]);
        break;
    case RIDGE_BLOCK_PAIR:
        snprintf(text, size, "tokens=%d cols=%d rows0=%d rows1=%d x=%s w=%s out=%s %s", tokens, cols, rows,
                 form % 4 == 3 ? 0 : rows / 2 + 1, x, w, out, pair[(shape + form) % 4]);
        break;
    default:
        snprintf(text, size, "tokens=%d cols=%d rows=%d x=%s w=%s out=%s %s", tokens, cols, rows, x, w, out,
                 swiglu[(shape + form) % 6]);
        break;
    }
}

static bool has_small_blocks(int format)
{
    return block_layout_of((uint32_t)(RIDGE_Q4_0 + format)).columns == 32;
}

static void product_text(const ridge_op_row *op, int tokens, int shape, int format, int form, char *text, size_t size)
{
    sized_text(op, tokens, has_small_blocks(format) ? shapes[shape].small_cols : shapes[shape].cols, shapes[shape].rows,
               shape, format, form, text, size);
}

/* Of a prompt's formats quick runs one in five. The plain C row takes seconds for a large prompt, so that full runs two
 * in five of those. */
static bool in_level(case_level level, int prompt, int n)
{
    const double products = (double)prompts[prompt].tokens * prompts[prompt].cols * prompts[prompt].rows;

    return level == CASES_LARGE || n % 5 == 1 || (level == CASES_FULL && (products < 32e6 || n % 5 == 3));
}

static void prompt_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    char text[256];

    for (int i = 0; i < PROMPTS; i++)
        for (int format = 0; format < FORMATS; format++) {
            test_case layout = {.fill = (i + format) % 2 ? FILL_GROUPS : FILL_NORMAL,
                                .slices = prompts[i].slices,
                                .pad = (i + format) % 3 == 1 ? 64 : 0,
                                .shift = (i + format) % 7 == 3 ? 1 : 0,
                                .alias = op->id == RIDGE_BLOCK_MATMUL && i % 4 == 2};

            if (!in_level(level, i, i + format))
                continue;
            sized_text(op, prompts[i].tokens, has_small_blocks(format) ? prompts[i].small_cols : prompts[i].cols,
                       prompts[i].rows, i, format, prompts[i].form, text, sizeof text);
            cases_add(list, op, text, layout);
        }
}

static void product_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const fill_kind fill[] = {FILL_NORMAL, FILL_GROUPS, FILL_NORMAL, FILL_EDGE};
    char text[256];
    int n = 0;

    for (int tokens = 1; tokens <= RIDGE_Q8_0_MAX_TOKENS; tokens++) /* each number, as columns of their own */
        for (int format = 0; format < FORMATS; format++, n++) {
            test_case layout = {.fill = fill[n % 4], .slices = true, .pad = n % 5 == 2 ? 48 : 0};

            if (level == CASES_QUICK && (format + tokens) % 4)
                continue;
            product_text(op, tokens, n % 2 ? 2 : 4, format, n % 3, text, sizeof text);
            cases_add(list, op, text, layout);
        }
    for (int shape = 0; shape < SHAPES; shape++)
        for (int format = 0; format < FORMATS; format++, n++) {
            static const int some[] = {1, 2, 3, 4, 7, 8, 16, 9};
            test_case layout = {.fill = fill[n % 4], .slices = n % 3 < 2, .pad = n % 3 == 1 ? 64 : 0};

            if (level == CASES_QUICK && (format + shape) % 4)
                continue;
            layout.shift = n % 7 == 3 ? 1 : 0;
            layout.alias = op->id == RIDGE_BLOCK_MATMUL && n % 5 == 0;
            product_text(op, some[(shape + format) % 8], shape, format, n % 5, text, sizeof text);
            cases_add(list, op, text, layout);
            if (shape == 3 || shape == 8) { /* one token, which has kernels of its own */
                product_text(op, 1, shape, format, n % 7, text, sizeof text);
                cases_add(list, op, text, (test_case){.fill = FILL_NORMAL});
            }
        }
    for (int format = 0; format < FORMATS && op->id == RIDGE_BLOCK_MATMUL && level != CASES_QUICK; format++)
        for (int tokens = 1; tokens <= 3; tokens += 2) { /* all scales that there are */
            sized_text(op, tokens, 256, 65536, 0, format, 0, text, sizeof text);
            cases_add(list, op, text, (test_case){.fill = FILL_EVERY});
        }
    prompt_cases(op, level, list);
    product_text(op, 0, 2, 0, 0, text, sizeof text);
    cases_add(list, op, text, (test_case){.fill = FILL_NORMAL});
    product_text(op, 3, 4, RIDGE_Q4_K - RIDGE_Q4_0, 1, text, sizeof text);
    cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .repeats = level == CASES_QUICK ? 50 : 500});
}

static void moved_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    char text[128];
    int n = 0;

    for (int shape = 0; shape < SHAPES; shape++)
        for (int format = 0; format < FORMATS; format++, n++) {
            const uint32_t dtype = (uint32_t)(RIDGE_Q4_0 + format);
            test_case layout = {.fill = FILL_NORMAL, .pad = n % 3 == 1 ? 7 : 0, .shift = n % 5 == 3 ? 1 : 0};

            if (level == CASES_QUICK && (format + shape) % 3)
                continue;
            snprintf(text, sizeof text, "rows=%d cols=%d format=%s", shapes[shape].rows,
                     block_layout_of(dtype).columns == 32 ? shapes[shape].small_cols : shapes[shape].cols,
                     ridge_dtype_name(dtype));
            cases_add(list, op, text, layout);
        }
}

void cases_blocks(const ridge_op_row *op, case_level level, case_list *list)
{
    if (is_block_product(op->id))
        product_cases(op, level, list);
    else
        moved_cases(op, level, list);
}
