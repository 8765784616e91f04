/* products.c: the cases of moe_gate_up_swiglu and moe_down, and their oracle in float64: sums over plain columns in
 * doubles, with none of the library's arithmetic. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/blocks/blocks.h"
#include "moe.h"
#include "ops/blocks/cpu.h"
#include "ridge_io.h"

/* ------------------------------------------------------------------------------------------------------------ cases */

static const char *const gate_up_forms[] = {
    "x=i8 w=i8 out=i8",
    "x=i8 w=i8 out=f32 limit=7 alpha=1.702 up_offset=1 gate_bias=1 up_bias=1",
    "x=i8 w=i8 out=bf16 act=gelu_tanh up_bias=1",
    "x=f32 w=bf16 out=f32",
    "x=bf16 w=bf16 out=i8 limit=10 gate_bias=1",
    "x=bf16 w=e4m3 out=bf16",
    "x=f32 w=e4m3 out=i8 act=relu2",
    "x=bf16 w=bf16 out=f32 limit=10 gate_bias=1 up_bias=1",
    "x=f32 w=f32 out=i8 gate_bias=1",
    "x=bf16 w=f32 out=bf16",
};
static const char *const down_forms[] = {
    "x=i8 w=i8 out=f32",
    "x=i8 w=i8 out=bf16 shared=f32 residual=bf16",
    "x=i8 w=i8 out=f32 bias=1 residual=f32",
    "x=f32 w=bf16 out=f32",
    "x=bf16 w=bf16 out=bf16 shared=bf16",
    "x=f32 w=e4m3 out=bf16 bias=1 residual=bf16",
    "x=bf16 w=e4m3 out=f32 shared=f32",
    "x=bf16 w=bf16 out=f32 bias=1 residual=f32",
    "x=f32 w=f32 out=f32 shared=f32",
    "x=bf16 w=f32 out=bf16 bias=1",
};

/* Variants of the ids (family.c). */
enum { ANY_IDS = 0, ONE_EXPERT = 1, ALL_DIFFERENT = 2, NONE = 3 };

/* Weights in block formats: every format, one token and several, units and runs that are not whole, rows that do not
 * fill a tile. */
static void block_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *dims;
        int cols, small_cols; /* of formats with blocks of 256 and of 32 columns */
        test_case layout;
    } shape[] = {
        {"tokens=1 rows=96 experts=16 slots=8", 1024, 928, {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=1 rows=64 experts=5 slots=3", 2304, 2880, {.fill = FILL_NORMAL, .slices = true, .pad = 32}},
        {"tokens=1 rows=160 experts=3 slots=6", 256, 32, {.fill = FILL_EDGE}},
        {"tokens=2 rows=32 experts=4 slots=2", 512, 96, {.fill = FILL_GROUPS, .slices = true, .pad = 64}},
        {"tokens=5 rows=64 experts=6 slots=4", 768, 1056, {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=8 rows=96 experts=12 slots=8", 512, 640, {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=16 rows=64 experts=3 slots=2", 1280, 288, {.fill = FILL_NORMAL, .variant = ONE_EXPERT}},
        {"tokens=11 rows=32 experts=40 slots=10", 256, 160, {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=3 rows=32 experts=2 slots=5", 256, 96, {.fill = FILL_NORMAL, .variant = NONE}},
        {"tokens=6 rows=128 experts=8 slots=4", 512, 512, {.fill = FILL_NORMAL, .repeats = 50}},
        {"tokens=1 rows=32 experts=2 slots=3", 0, 0, {.fill = FILL_NORMAL}},
        {"tokens=0 rows=64 experts=8 slots=2", 256, 256, {.fill = FILL_NORMAL}},
        {"tokens=6 rows=96 experts=40 slots=5", 1280, 1184, {.fill = FILL_NORMAL, .slices = true}},
    };
    static const char *const gate_up[] = {"f32", "i8 limit=10 alpha=1.702 up_offset=1 gate_bias=1 up_bias=1", "bf16"};
    static const char *const down[] = {"f32 shared=f32 residual=bf16", "f32 bias=1 residual=f32", "bf16 shared=bf16"};
    int n = 0;

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (uint32_t format = RIDGE_Q4_0; format < RIDGE_DTYPES; format++, n++) {
            const bool small = block_layout_of(format).columns == 32;
            char text[256];

            if (level == CASES_QUICK && (i + (int)format) % 3)
                continue;
            snprintf(text, sizeof text, "%s cols=%d x=i8 w=%s out=%s", shape[i].dims,
                     small ? shape[i].small_cols : shape[i].cols, ridge_dtype_name(format),
                     (op->id == RIDGE_MOE_DOWN ? down : gate_up)[n % 3]);
            cases_add(list, op, text, shape[i].layout);
        }
    for (int odd = 1; odd < 48; odd += 15) {
        char text[256];

        snprintf(text, sizeof text, "tokens=%d cols=512 rows=%d experts=4 slots=3 x=i8 w=q4_k out=f32", odd % 4 + 1,
                 odd);
        cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = true});
    }
}

/* x in e4m3: blocks of columns that are not whole, tiles and groups of tiles that are not, more than eight pairs of an
 * expert, several rounds of rows, few multiprocessors. */
static void fp8_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *dims;
        test_case layout;
    } shape[] = {
        {"tokens=1 cols=1024 rows=96 experts=16 slots=8", {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=4 cols=288 rows=64 experts=7 slots=3", {.fill = FILL_NORMAL, .slices = true, .pad = 64}},
        {"tokens=8 cols=768 rows=160 experts=12 slots=8", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=16 cols=1088 rows=33 experts=5 slots=4", {.fill = FILL_NORMAL, .slices = true, .variant = ONE_EXPERT}},
        {"tokens=5 cols=320 rows=129 experts=3 slots=32", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=16 cols=416 rows=277 experts=40 slots=2", {.fill = FILL_EDGE, .slices = true, .pad = 32}},
        {"tokens=7 cols=160 rows=96 experts=9 slots=2", {.fill = FILL_NORMAL, .slices = true, .shift = 1}},
        {"tokens=3 cols=96 rows=32 experts=2 slots=5", {.fill = FILL_NORMAL, .variant = NONE}},
        {"tokens=6 cols=512 rows=64 experts=8 slots=4", {.fill = FILL_NORMAL, .repeats = 50}},
        {"tokens=11 cols=1600 rows=40 experts=9 slots=6", {.fill = FILL_UNIT, .slices = true, .units = 2}},
        {"tokens=16 cols=128 rows=1003 experts=10 slots=32", {.fill = FILL_NORMAL, .units = 4}},
        {"tokens=9 cols=32 rows=7 experts=6 slots=3", {.fill = FILL_EDGE, .slices = true, .repeats = 50}},
        {"tokens=1 cols=4096 rows=35 experts=1 slots=1", {.fill = FILL_NORMAL, .variant = ONE_EXPERT}},
        {"tokens=2 cols=7168 rows=24 experts=4 slots=2", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=3 cols=0 rows=24 experts=4 slots=2", {.fill = FILL_NORMAL}},
        {"tokens=0 cols=128 rows=24 experts=4 slots=2", {.fill = FILL_NORMAL}},
        {"tokens=3 cols=128 rows=0 experts=4 slots=2", {.fill = FILL_NORMAL}},
    };
    static const char *const gate_up[] = {"out=bf16", "out=f32 limit=7 alpha=1.702 up_offset=1 gate_bias=1 up_bias=1"};
    static const char *const down[] = {"out=bf16 bias=1 shared=f32", "out=f32 residual=bf16"};
    char text[256];

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int f = 0; f < 2; f++) {
            if (level == CASES_QUICK && (i + f) % 2)
                continue;
            snprintf(text, sizeof text, "%s x=e4m3 w=e4m3 %s", shape[i].dims,
                     (op->id == RIDGE_MOE_DOWN ? down : gate_up)[f]);
            cases_add(list, op, text, shape[i].layout);
        }
    cases_add(list, op,
              op->id == RIDGE_MOE_DOWN
                  ? "tokens=5 cols=544 rows=50 experts=5 slots=3 x=e4m3 w=e4m3 out=f32 bias=1 n_hc=4"
                  : "tokens=5 cols=544 rows=64 experts=5 slots=3 x=e4m3 w=e4m3 out=i8 act=gelu_erf",
              (test_case){.fill = FILL_NORMAL, .slices = true});
}

/* Of an only expert. */
static void only_cases(const ridge_op_row *op, case_list *list)
{
    /* An only expert in bf16 or f32, as a router: columns in one piece of 4096, and in two. */
    static const struct {
        const char *text;
        test_case layout;
    } only[] = {
        {"tokens=1 cols=4096 rows=33 experts=1 slots=1 x=f32 w=bf16 out=f32",
         {.fill = FILL_NORMAL, .variant = ONE_EXPERT}},
        {"tokens=9 cols=416 rows=5 experts=1 slots=1 x=bf16 w=bf16 out=f32 bias=1 shared=f32",
         {.fill = FILL_NORMAL, .slices = true, .pad = 8}},
        {"tokens=3 cols=5216 rows=4 experts=1 slots=1 x=f32 w=bf16 out=bf16 residual=bf16",
         {.fill = FILL_EDGE, .slices = true, .repeats = 50}},
        {"tokens=16 cols=7168 rows=3 experts=1 slots=1 x=bf16 w=bf16 out=f32", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=1 cols=512 rows=64 experts=1 slots=1 x=f32 w=bf16 out=f32", {.fill = FILL_UNIT}},
        {"tokens=2 cols=1056 rows=96 experts=1 slots=1 x=bf16 w=bf16 out=bf16", {.fill = FILL_NORMAL}},
        {"tokens=1 cols=4096 rows=33 experts=1 slots=1 x=f32 w=f32 out=f32",
         {.fill = FILL_NORMAL, .variant = ONE_EXPERT}},
        {"tokens=16 cols=4192 rows=7 experts=1 slots=1 x=bf16 w=f32 out=f32 bias=1 shared=f32",
         {.fill = FILL_NORMAL, .slices = true, .pad = 8}},
        {"tokens=3 cols=9248 rows=4 experts=1 slots=1 x=f32 w=f32 out=bf16 residual=bf16",
         {.fill = FILL_EDGE, .slices = true, .repeats = 50}},
    };
    /* Of both ops: a layer's matrix as an only expert, every number of tokens that kernels take at once and what is
     * left, rows that are no multiple of any tile, x in one chunk of shared memory and in several. */
    static const struct {
        const char *text;
        test_case layout;
    } dense[] = {
        {"tokens=1 cols=4096 rows=35 experts=1 slots=1 x=bf16 w=e4m3 out=f32", {.fill = FILL_NORMAL}},
        {"tokens=2 cols=160 rows=260 experts=1 slots=1 x=f32 w=e4m3 out=bf16", {.fill = FILL_EDGE, .slices = true}},
        {"tokens=3 cols=1056 rows=9 experts=1 slots=1 x=bf16 w=e4m3 out=f32", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=7 cols=6304 rows=131 experts=1 slots=1 x=bf16 w=e4m3 out=bf16", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=16 cols=2304 rows=20 experts=1 slots=1 x=f32 w=e4m3 out=f32", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=1 cols=512 rows=4300 experts=1 slots=1 x=bf16 w=e4m3 out=f32", {.fill = FILL_NORMAL, .repeats = 50}},
        {"tokens=5 cols=288 rows=4230 experts=1 slots=1 x=f32 w=e4m3 out=f32", {.fill = FILL_UNIT}},
        {"tokens=4 cols=1312 rows=4250 experts=1 slots=1 x=bf16 w=bf16 out=f32", {.fill = FILL_NORMAL}},
        {"tokens=11 cols=800 rows=37 experts=1 slots=1 x=f32 w=bf16 out=bf16", {.fill = FILL_EDGE, .slices = true}},
    };

    for (int i = 0; i < (int)(sizeof dense / sizeof dense[0]); i++)
        cases_add(list, op, dense[i].text, dense[i].layout);
    for (int i = 0; op->id == RIDGE_MOE_DOWN && i < (int)(sizeof only / sizeof only[0]); i++)
        cases_add(list, op, only[i].text, only[i].layout);
}

/* Experts with so many rows that a multiprocessor has several tiles, of bf16 and e4m3 a batch of them, or with so many
 * pairs that they share entries. */
static void tall_cases(const ridge_op_row *op, case_list *list)
{
    static const struct {
        const char *dims;
        test_case layout;
    } shape[] = {
        {"tokens=1 cols=288 rows=3301 experts=9 slots=8", {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=1 cols=2080 rows=1100 experts=3 slots=3", {.fill = FILL_NORMAL}},
        {"tokens=3 cols=544 rows=1102 experts=5 slots=6", {.fill = FILL_NORMAL, .slices = true, .pad = 8}},
        {"tokens=16 cols=256 rows=533 experts=3 slots=2", {.fill = FILL_NORMAL, .slices = true, .repeats = 50}},
        {"tokens=9 cols=96 rows=2180 experts=40 slots=3", {.fill = FILL_EDGE}},
        {"tokens=2 cols=1312 rows=1060 experts=4 slots=5", {.fill = FILL_NORMAL, .variant = NONE}},
        /* Pairs outnumber experts: more entries than there is room for their x; results in several rounds; x of an
         * entry alone, and of one with fewer pairs. */
        {"tokens=16 cols=1312 rows=212 experts=24 slots=6", {.fill = FILL_NORMAL, .slices = true, .units = 3}},
        {"tokens=12 cols=96 rows=1500 experts=30 slots=4", {.fill = FILL_NORMAL, .slices = true, .units = 2}},
        {"tokens=16 cols=160 rows=1003 experts=10 slots=32", {.fill = FILL_EDGE, .units = 4}},
        {"tokens=16 cols=10400 rows=41 experts=6 slots=3", {.fill = FILL_NORMAL, .units = 2, .repeats = 50}},
        {"tokens=3 cols=24032 rows=24 experts=2 slots=2", {.fill = FILL_NORMAL, .units = 2}},
    };
    static const struct {
        const char *dims;
        test_case layout;
    } codes[] = {
        {"tokens=1 cols=576 rows=2176 experts=9 slots=8", {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=8 cols=64 rows=1120 experts=70 slots=8", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=3 cols=1600 rows=64 experts=40 slots=8", {.fill = FILL_GROUPS, .pad = 64, .repeats = 50}},
    };
    static const char *const code_form[2] = {"x=i8 w=i8 out=i8 limit=10 gate_bias=1",
                                             "x=i8 w=i8 out=f32 bias=1 residual=f32"};
    static const char *const form[2][2] = {
        {"x=bf16 w=bf16 out=bf16", "x=bf16 w=e4m3 out=f32 gate_bias=1 limit=7"},
        {"x=bf16 w=bf16 out=f32 bias=1", "x=bf16 w=e4m3 out=bf16 shared=f32 residual=bf16"}};
    char text[256];

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int f = 0; f < 2; f++) {
            test_case layout = shape[i].layout;

            layout.gpu = layout.units > 0; /* a CPU row has no entries, and takes up to ten seconds for one of these */
            snprintf(text, sizeof text, "%s %s", shape[i].dims, form[op->id == RIDGE_MOE_DOWN][f]);
            cases_add(list, op, text, layout);
        }
    for (int i = 0; i < (int)(sizeof codes / sizeof codes[0]); i++) {
        snprintf(text, sizeof text, "%s %s", codes[i].dims, code_form[op->id == RIDGE_MOE_DOWN]);
        cases_add(list, op, text, codes[i].layout);
    }
}

/* moe_down to streams of hyper-connections: every form of weights, so that every row has some; four streams and other
 * numbers of them; a token whose ids are of no expert. */
static void expand_cases(const ridge_op_row *op, case_list *list)
{
    static const struct {
        const char *text;
        test_case layout;
    } shape[] = {
        {"tokens=1 cols=512 rows=96 experts=16 slots=6 x=i8 w=i8 shared=f32 n_hc=4",
         {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=5 cols=288 rows=37 experts=6 slots=3 x=i8 w=i8 bias=1 n_hc=3", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=16 cols=96 rows=64 experts=9 slots=4 x=i8 w=i8 residual=bf16 n_hc=4",
         {.fill = FILL_NORMAL, .slices = true, .pad = 64}},
        {"tokens=3 cols=96 rows=32 experts=2 slots=5 x=i8 w=i8 n_hc=2", {.fill = FILL_NORMAL, .variant = NONE}},
        {"tokens=4 cols=160 rows=40 experts=5 slots=2 x=i8 w=i8 shared=bf16 n_hc=16", {.fill = FILL_EDGE}},
        {"tokens=1 cols=1024 rows=80 experts=16 slots=6 x=i8 w=q2_k shared=f32 n_hc=4",
         {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=6 cols=512 rows=67 experts=4 slots=3 x=i8 w=mxfp4 shared=f32 n_hc=4",
         {.fill = FILL_NORMAL, .slices = true, .repeats = 50}},
        {"tokens=2 cols=768 rows=48 experts=5 slots=4 x=i8 w=q4_k residual=f32 n_hc=1", {.fill = FILL_GROUPS}},
        {"tokens=16 cols=160 rows=48 experts=64 slots=4 x=i8 w=mxfp4 n_hc=4", {.fill = FILL_EDGE}},
        {"tokens=16 cols=160 rows=48 experts=64 slots=1 x=i8 w=q8_0 shared=f32 n_hc=16", {.fill = FILL_EDGE}},
        {"tokens=1 cols=288 rows=1100 experts=9 slots=6 x=bf16 w=e4m3 shared=f32 n_hc=4",
         {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=7 cols=544 rows=50 experts=5 slots=3 x=bf16 w=bf16 bias=1 n_hc=4",
         {.fill = FILL_NORMAL, .slices = true, .pad = 8}},
        {"tokens=3 cols=416 rows=33 experts=4 slots=2 x=f32 w=f32 shared=bf16 n_hc=5", {.fill = FILL_NORMAL}},
        {"tokens=1 cols=4096 rows=33 experts=1 slots=1 x=f32 w=bf16 residual=f32 n_hc=4",
         {.fill = FILL_NORMAL, .variant = ONE_EXPERT}},
        {"tokens=5 cols=1056 rows=35 experts=1 slots=1 x=bf16 w=e4m3 n_hc=4",
         {.fill = FILL_NORMAL, .slices = true, .variant = ONE_EXPERT}},
        {"tokens=0 cols=64 rows=32 experts=4 slots=2 x=i8 w=i8 n_hc=4", {.fill = FILL_NORMAL}},
        {"tokens=2 cols=0 rows=32 experts=4 slots=2 x=i8 w=i8 n_hc=4", {.fill = FILL_NORMAL}},
    };
    char text[256];

    for (int i = 0; op->id == RIDGE_MOE_DOWN && i < (int)(sizeof shape / sizeof shape[0]); i++) {
        snprintf(text, sizeof text, "%s out=f32", shape[i].text);
        cases_add(list, op, text, shape[i].layout);
    }
}

/* Every number of tokens, each of them compared with a call of that token alone, with fewer pairs than experts and with
 * more; and every combination of what moe_down adds, with streams and without. */
static void every_case(const ridge_op_row *op, case_level level, case_list *list)
{
    static const char *const forms[] = {"x=i8 w=i8",    "x=i8 w=q4_k",  "x=bf16 w=e4m3",
                                        "x=f32 w=bf16", "x=i8 w=mxfp4", "x=i8 w=iq2_xxs",
                                        "x=i8 w=q6_k",  "x=bf16 w=f32", "x=i8 w=q2_k"};
    enum { FORMS = sizeof forms / sizeof forms[0] };
    char text[256];

    for (int tokens = 1; tokens <= RIDGE_MOE_MAX_TOKENS; tokens++)
        for (int f = 0; f < FORMS; f++) {
            if (level == CASES_QUICK && (tokens + f) % 4)
                continue;
            snprintf(text, sizeof text, "tokens=%d cols=256 rows=32 experts=%d slots=3 %s out=f32", tokens,
                     (tokens + f / 4) % 2 ? 5 : 61, forms[f]);
            cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = true});
        }
    for (int of = 0; op->id == RIDGE_MOE_DOWN && of < 16; of++)
        for (int f = 0; f < FORMS; f++) {
            if (level == CASES_QUICK && (of + of / 4 + f) % 4)
                continue;
            snprintf(text, sizeof text, "tokens=3 cols=256 rows=35 experts=4 slots=2 %s out=f32%s%s%s%s", forms[f],
                     of & 1 ? " bias=1" : "", of & 2 ? " shared=f32" : "", of & 4 ? " residual=bf16" : "",
                     of & 8 ? " n_hc=4" : "");
            cases_add(list, op, text, (test_case){.fill = FILL_NORMAL});
        }
}

void cases_moe_products(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *dims;
        test_case layout;
    } shape[] = {
        {"tokens=0 cols=64 rows=32 experts=4 slots=2", {.fill = FILL_NORMAL}},
        {"tokens=2 cols=0 rows=32 experts=4 slots=2", {.fill = FILL_NORMAL}},
        {"tokens=3 cols=64 rows=0 experts=4 slots=2", {.fill = FILL_NORMAL}},
        {"tokens=1 cols=32 rows=32 experts=1 slots=1", {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=1 cols=1024 rows=96 experts=16 slots=8", {.fill = FILL_NORMAL, .variant = ALL_DIFFERENT}},
        {"tokens=4 cols=288 rows=64 experts=7 slots=3", {.fill = FILL_NORMAL, .slices = true, .pad = 64}},
        {"tokens=8 cols=768 rows=160 experts=12 slots=8", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=16 cols=1088 rows=32 experts=5 slots=4", {.fill = FILL_NORMAL, .slices = true, .variant = ONE_EXPERT}},
        {"tokens=16 cols=576 rows=64 experts=40 slots=2", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=5 cols=320 rows=128 experts=3 slots=32", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=2 cols=2112 rows=32 experts=6 slots=4", {.fill = FILL_EDGE}},
        {"tokens=7 cols=160 rows=96 experts=9 slots=2", {.fill = FILL_GROUPS, .slices = true, .shift = 1, .pad = 32}},
        {"tokens=3 cols=96 rows=32 experts=2 slots=5", {.fill = FILL_NORMAL, .variant = NONE}},
        {"tokens=6 cols=512 rows=64 experts=8 slots=4", {.fill = FILL_NORMAL, .repeats = 50}},
        {"tokens=11 cols=1600 rows=32 experts=9 slots=6", {.fill = FILL_UNIT, .slices = true}},
    };
    /* Odd rows, which codes cannot have. */
    static const char *const odd[] = {"tokens=9 cols=416 rows=37 experts=6 slots=3",
                                      "tokens=2 cols=4096 rows=1 experts=3 slots=2",
                                      "tokens=16 cols=128 rows=131 experts=3 slots=2"};
    const char *const *form = op->id == RIDGE_MOE_DOWN ? down_forms : gate_up_forms;
    char text[256];

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int f = 0; f < 10; f++) {
            if (level == CASES_QUICK && (i + f) % 3)
                continue;
            snprintf(text, sizeof text, "%s %s", shape[i].dims, form[f]);
            cases_add(list, op, text, shape[i].layout);
        }
    for (int i = 0; i < 3; i++)
        for (int f = 1; f < 6; f += 2) { /* no codes among them */
            snprintf(text, sizeof text, "%s %s", odd[i], form[f]);
            cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = true, .pad = i});
        }
    fp8_cases(op, level, list);
    only_cases(op, list);
    tall_cases(op, list);
    expand_cases(op, list);
    every_case(op, level, list);
    block_cases(op, level, list);
}

/* ----------------------------------------------------------------------------------------------------------- oracle */

/* The same in a block format: row r goes back to GGUF blocks, and those to floats by the reader of checkpoints. */
static estimate block_product(const oracle_run *s, int arg, int64_t e, int64_t r, int64_t t, int64_t x0)
{
    const ridge_call *call = &s->im->call;
    const uint32_t format = call->arg[arg].dtype;
    const block_layout f = block_layout_of(format);
    const int64_t cols = call->dim[1], pitch = block_row_bytes(f, cols);
    const uint8_t *unit =
        (const uint8_t *)oracle_address(s->im, s->im->host, arg, e, 0) + r / BLOCK_ROWS * block_tile_bytes(f, cols);
    uint8_t *blocks = malloc((size_t)pitch + BLOCK_MAX_ROW_BYTES);
    float *w = malloc((size_t)cols * sizeof *w), *scales = malloc((size_t)cols / 32 * sizeof *scales);
    int8_t *codes = malloc((size_t)cols);
    estimate y = {NAN, 0};

    if (!blocks || !w || !scales || !codes)
        abort();
    for (int64_t u = 0; u < block_units(cols); u++)
        ridge_block_row_of_unit(format, unit + u * block_unit_bytes(f, 2),
                                u == block_units(cols) - 1 ? block_last_runs(cols) : 2, (int)(r % BLOCK_ROWS),
                                (int)(cols - 256 * u < 256 ? cols / 32 - 8 * u : 8),
                                blocks + 256 * u / f.columns * f.bytes);
    memcpy(codes, oracle_address(s->im, s->im->host, 0, t, x0), (size_t)cols);
    memcpy(scales, oracle_address(s->im, s->im->host, 1, t, x0 / 32), (size_t)cols / 32 * sizeof *scales);
    if (ridge_dequantize(block_file_types[format], blocks, cols, w) == RIDGE_OK)
        y = oracle_block_product(format, cols, blocks, w, codes, scales);
    free(blocks);
    free(w);
    free(scales);
    free(codes);
    return y;
}

/* Row r of the weight in `arg` of expert e times the columns of x from x0 on. */
static estimate product(const oracle_run *s, int arg, int64_t e, int64_t r, int64_t t, int64_t x0)
{
    const ridge_call *call = &s->im->call;
    const uint32_t form = call->arg[arg].dtype;
    const int64_t cols = call->dim[1], block = form == RIDGE_I8 ? 32 : 128;
    const bool fp8 = call->arg[0].dtype == RIDGE_E4M3;
    const int64_t pair = call->op == RIDGE_MOE_DOWN ? t * call->dim[4] + (cols ? x0 / cols : 0) : t;
    const size_t x_size = ridge_dtype_size(call->arg[0].dtype), w_size = ridge_dtype_size(form);
    const char *x_row = oracle_address(s->im, s->im->host, 0, t, x0);
    const char *w_row = oracle_address(s->im, s->im->host, arg, e, r * cols);
    double sum = 0, size = 0, tiny = 0;
    bool infinite = false;

    if (is_block_format(form))
        return block_product(s, arg, e, r, t, x0);
    for (int64_t b = 0; b * block < cols; b++) {
        const int64_t scale = form == RIDGE_I8 ? r * (cols / 32) + b : r / 128 * ((cols + 127) / 128) + b;
        const double ws = form == RIDGE_BF16 || form == RIDGE_F32 ? 1 : oracle_in(s, arg + 1, e, scale);
        const double xs = form == RIDGE_I8 ? oracle_in(s, 1, t, x0 / 32 + b) : fp8 ? oracle_in(s, 1, b, pair) : 1;
        double dot = 0, all = 0;

        for (int64_t j = b * block; j < cols && j < (b + 1) * block; j++) {
            const double x = dtype_load(x_row + (size_t)j * x_size, call->arg[0].dtype);
            const double v =
                dtype_load(w_row + (size_t)j * w_size, form) * (fp8                  ? x * xs * ws
                                                                : form == RIDGE_E4M3 ? (double)(float)(x * ws)
                                                                                     : x);

            dot += v;
            all += fabs(v);
        }
        if (form == RIDGE_I8) {
            infinite = infinite || isinf((float)(ws * xs));
            dot *= isinf((float)(ws * xs)) ? (double)(float)(ws * xs) : ws * xs;
            all = fabs(dot);
            tiny += 32 * 127 * 127 * 0x1p-150; /* ws * xs may be subnormal */
        }
        sum += dot;
        size += all;
    }
    if (isnan(sum) || (infinite && size < INFINITY))
        return (estimate){NAN, 0};
    if (isinf(sum))
        return (estimate){sum, size < INFINITY ? INFINITY : 0};
    /* x in e4m3: tensor cores cut the products of a block */
    if (fp8)
        return (estimate){sum, (0x1p-15 + ((double)cols / 128 + 12) * 0x1p-24) * size + 0x1p-126};
    return (estimate){sum, (form == RIDGE_I8 ? (double)cols / 256 + 13 : (double)cols / 256 + 10) * 0x1p-24 * size +
                               tiny + (double)cols * 0x1p-149 + (size > 0x1p120 ? INFINITY : 0)};
}

static estimate biased(const oracle_run *s, estimate y, int bias, int64_t e, int64_t r)
{
    if (!s->im->length[bias])
        return y;
    y.value += oracle_in(s, bias, e, r);
    y.error += 0x1p-24 * fabs(y.value);
    return y;
}

/* 32 results as codes. */
static void check_codes(oracle_run *s, int64_t t, int64_t at, const estimate *y)
{
    const double scale = oracle_out(s, RIDGE_MOE_GATE_UP_SWIGLU_OUT_SCALES, t, at / 32);
    double amax = 0, error = 0;
    bool finite = true;

    for (int i = 0; i < 32; i++) {
        finite = finite && isfinite(y[i].value);
        amax = fmax(amax, fabs(y[i].value));
        error = fmax(error, y[i].error);
    }
    if (isinf(error) || amax > 0x1p120)
        return;
    if (finite)
        oracle_note(s, fabs(scale * 127 - amax) / (error + 0x1p-22 * amax + 127 * 0x1p-126), "out_scales", t, at / 32);
    else
        oracle_note(s, isnan(scale) ? 0 : INFINITY, "scale of what is not finite", t, at / 32);
    for (int i = 0; i < 32; i++) {
        const double code = oracle_out(s, RIDGE_MOE_GATE_UP_SWIGLU_OUT, t, at + i);

        oracle_note(s,
                    finite ? fabs(code * scale - y[i].value) /
                                 (y[i].error + (0.5 + 0x1p-14) * scale + (scale > 0 ? 0 : 0x1p-118))
                           : (code == 0 ? 0 : INFINITY),
                    "code", t, at + i);
    }
}

static void check_gate_up(oracle_run *s, int64_t t, int64_t slot)
{
    const ridge_call *call = &s->im->call;
    const int64_t rows = call->dim[2], e = (int64_t)oracle_in(s, RIDGE_MOE_GATE_UP_SWIGLU_IDS, t, slot);
    const bool known = e >= 0 && e < call->dim[3], codes = call->arg[RIDGE_MOE_GATE_UP_SWIGLU_OUT].dtype == RIDGE_I8;
    estimate y[32];

    for (int64_t r = 0; r < rows; r++) {
        estimate v = {0, 0};

        if (known)
            v = oracle_gated(
                call,
                biased(s, product(s, RIDGE_MOE_GATE_UP_SWIGLU_GATE, e, r, t, 0), RIDGE_MOE_GATE_UP_SWIGLU_GATE_BIAS, e,
                       r),
                biased(s, product(s, RIDGE_MOE_GATE_UP_SWIGLU_UP, e, r, t, 0), RIDGE_MOE_GATE_UP_SWIGLU_UP_BIAS, e, r),
                1);
        y[r % 32] = v;
        if (!codes)
            oracle_estimate(s, RIDGE_MOE_GATE_UP_SWIGLU_OUT, t, slot * rows + r, v);
        else if (r % 32 == 31)
            check_codes(s, t, slot * rows + r - 31, y);
    }
}

/* Stream dst of row r, of hyper-connections. */
static void check_stream(oracle_run *s, int64_t t, int64_t r, int64_t dst, estimate v)
{
    const int64_t rows = s->im->call.dim[2], n = s->im->call.opt.moe_down.n_hc;
    const double post = oracle_in(s, RIDGE_MOE_DOWN_POST, t, dst);
    double sum = v.value * post, size = fabs(sum);

    for (int64_t src = 0; src < n; src++) {
        const double term =
            oracle_in(s, RIDGE_MOE_DOWN_COMB, t, dst + n * src) * oracle_in(s, RIDGE_MOE_DOWN_RES, t, src * rows + r);

        sum += term;
        size += fabs(term);
    }
    if (isnan(v.value) || size < 0x1p120) /* v may be infinite, and NaN with a post of 0 */
        oracle_estimate(s, RIDGE_MOE_DOWN_OUT, t, dst * rows + r,
                        (estimate){sum, fabs(post) * v.error + ((double)n + 2) * (0x1p-24 * size + 0x1p-149)});
}

static void check_down(oracle_run *s, int64_t t, int64_t r)
{
    const ridge_call *call = &s->im->call;
    const int64_t n = call->opt.moe_down.n_hc;
    const int more[] = {RIDGE_MOE_DOWN_SHARED, RIDGE_MOE_DOWN_RESIDUAL};
    estimate sum = {0, 0};
    double size = 0;

    for (int64_t slot = 0; slot < call->dim[4]; slot++) {
        const int64_t e = (int64_t)oracle_in(s, RIDGE_MOE_DOWN_IDS, t, slot);

        if (e >= 0 && e < call->dim[3]) {
            const double w = oracle_in(s, RIDGE_MOE_DOWN_WEIGHTS, t, slot);
            const estimate y =
                biased(s, product(s, RIDGE_MOE_DOWN_W, e, r, t, slot * call->dim[1]), RIDGE_MOE_DOWN_BIAS, e, r);

            if (y.error == INFINITY) { /* not known: also with a weight that is infinite or 0 */
                sum = (estimate){isnan(w) ? NAN : sum.value, INFINITY};
                continue;
            }
            sum.value += w * y.value;
            sum.error += y.error > 0 ? fabs(w) * y.error : 0;
            size += fabs(w * y.value);
        }
    }
    for (int i = 0; i < 2; i++)
        if (s->im->length[more[i]]) {
            sum.value += oracle_in(s, more[i], t, r);
            size += fabs(oracle_in(s, more[i], t, r));
        }
    if (!isnan(sum.value) && !(size < 0x1p120 && sum.error < INFINITY))
        return;
    sum.error += ((double)call->dim[4] + 3) * (0x1p-24 * size + 0x1p-149);
    if (n == 0)
        oracle_estimate(s, RIDGE_MOE_DOWN_OUT, t, r, sum);
    for (int64_t dst = 0; dst < n; dst++)
        check_stream(s, t, r, dst, sum);
}

void oracle_moe_products(oracle_run *s)
{
    const ridge_call *call = &s->im->call;

    for (int64_t t = 0; t < call->dim[0]; t++) {
        for (int64_t slot = 0; slot < call->dim[4] && call->op != RIDGE_MOE_DOWN; slot++)
            check_gate_up(s, t, slot);
        for (int64_t r = 0; r < call->dim[2] && call->op == RIDGE_MOE_DOWN; r++)
            check_down(s, t, r);
    }
}
