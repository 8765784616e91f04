/* cases.c: the test cases of gemm_fp8. */
#include "gemm.h"

/* Shapes and layouts; each goes with every pair of scale modes, the formats, dtypes and options spread over them. */
static const struct {
    const char *shape;
    test_case layout;
} shape_table[] = {
    {"m=0 n=24 k=64", {.fill = FILL_NORMAL}},
    {"m=5 n=0 k=64", {.fill = FILL_NORMAL}},
    {"m=5 n=24 k=0", {.fill = FILL_NORMAL}},
    {"m=70 n=24 k=0", {.fill = FILL_EXACT, .pad = 8}},
    {"m=1 n=1 k=1", {.fill = FILL_NORMAL}},
    {"m=1 n=136 k=512", {.fill = FILL_NORMAL}},
    {"m=3 n=33 k=127", {.fill = FILL_EXACT}},
    {"m=7 n=130 k=129", {.fill = FILL_EDGE, .pad = 3, .shift = 1}},
    {"m=2 n=256 k=1024", {.fill = FILL_EXACT, .pad = 16}},
    {"m=17 n=72 k=272", {.fill = FILL_NORMAL, .pad = 16, .slices = true}},
    {"m=64 n=160 k=384", {.fill = FILL_NORMAL, .slices = true, .repeats = 100}},
    {"m=33 n=95 k=500", {.fill = FILL_NORMAL, .slices = true, .shift = 3}},
    {"m=16 n=264 k=2064", {.fill = FILL_NORMAL, .slices = true}},
    {"m=65 n=129 k=96", {.fill = FILL_EDGE}},
    {"m=24 n=136 k=1040", {.fill = FILL_EDGE, .pad = 16, .slices = true}},
    {"m=70 n=136 k=400", {.fill = FILL_EDGE, .pad = 16, .slices = true}},
    {"m=128 n=128 k=128", {.fill = FILL_EXACT}},
    {"m=130 n=136 k=640", {.fill = FILL_NORMAL, .slices = true}},
    {"m=200 n=264 k=400", {.fill = FILL_EXACT, .pad = 32}},
    {"m=257 n=384 k=256", {.fill = FILL_NORMAL, .repeats = 50}},
    {"m=131 n=257 k=391", {.fill = FILL_NORMAL, .pad = 1, .shift = 1}},
    {"m=256 n=256 k=1040", {.fill = FILL_NORMAL}},
    {"m=420 n=328 k=272", {.fill = FILL_NORMAL, .slices = true}},
};

enum { SHAPES = (int)(sizeof shape_table / sizeof shape_table[0]) };

/* Decoding (ops/gemm_fp8/decode_sm90.cu): weights that wrap the pipeline, split-K, several passes. */
static const char *const decode_table[] = {"m=1 n=12680 k=1040 d=bf16", "m=33 n=9000 k=144 d=bf16 bias=1",
                                           "m=2 n=34824 k=160 d=f16", "m=9 n=520 k=8208 d=f32",
                                           "m=2 n=3304 k=4096 d=bf16 accumulate=1"};

enum { DECODE_CASES = (int)(sizeof decode_table / sizeof decode_table[0]) };

/* Strides that a tensor map must not be given as they are: those of inputs packed in rows that are no multiple of 16,
 * beside a padded output, and those of single rows, which are never used. */
static const struct {
    const char *shape;
    test_case layout;
} stride_table[] = {
    {"m=70 n=136 k=1000", {.fill = FILL_EXACT, .pad = 8, .pad_of = PAD_OUTPUTS}},
    {"m=5 n=264 k=1000", {.fill = FILL_EXACT, .pad = 3, .pad_of = PAD_OUTPUTS}},
    {"m=1 n=136 k=512", {.fill = FILL_EXACT, .pad = 3, .pad_of = PAD_SINGLE_ROWS}},
    {"m=70 n=1 k=1024", {.fill = FILL_EXACT, .pad = 5, .pad_of = PAD_SINGLE_ROWS}},
    {"m=1 n=1 k=300", {.fill = FILL_EXACT, .pad = 1, .pad_of = PAD_SINGLE_ROWS}},
};

const char *const gemm_pairs[PAIRS] = {"tensor", "row", "row128_blk128", "row128_row128", "blk128_row128"};

/* Pairs that rows run as they run those above: scales of different kinds meet, tables are read in another order. Each
 * shape goes with one of them, or with all. */
static const char *const other_pairs[] = {"row_tensor", "tensor_row", "row128_t_blk128", "row128_t_row128_t",
                                          "blk128_row128_t"};

enum { OTHER_PAIRS = (int)(sizeof other_pairs / sizeof other_pairs[0]), OTHER_OF_BLOCKS = 4 };

static const char *const format[] = {"a=e4m3 b=e4m3", "a=e5m2 b=e4m3", "a=e4m3 b=e5m2"};
static const char *const option[] = {"d=bf16", "d=f32 accumulate=1", "d=f16 bias=1", "d=bf16 bias=bf16 accumulate=1",
                                     "d=f32",  "d=f16 bias=f16",     "d=bf16 bias=1"};

static void add_shapes(const ridge_op_row *op, bool quick, case_list *list)
{
    char text[160];

    for (int i = 0; i < SHAPES; i++)
        for (int pair = 0; pair < PAIRS; pair++)
            for (int way = 0; way < 3; way++) {
                test_case layout = shape_table[i].layout;

                if (quick && (i + pair + way) % 3)
                    continue;
                snprintf(text, sizeof text, "%s %s scales=%s %s", shape_table[i].shape, format[(i + pair + way) % 3],
                         gemm_pairs[pair], option[(i * 3 + pair * 5 + way) % 7]);
                if (layout.slices && pair == 4) /* a part may begin inside a 128-block of rows */
                    layout.slices = false;
                cases_add(list, op, text, layout);
            }
    for (size_t i = 0; i < sizeof stride_table / sizeof stride_table[0]; i++)
        for (int pair = 0; pair < PAIRS; pair++) {
            snprintf(text, sizeof text, "%s scales=%s %s", stride_table[i].shape, gemm_pairs[pair],
                     option[((int)i + pair) % 7]);
            cases_add(list, op, text, stride_table[i].layout);
        }
}

static void add_other_pairs(const ridge_op_row *op, bool quick, case_list *list)
{
    char text[160];

    for (int i = 0; i < SHAPES; i++)
        for (int pair = 0; pair < OTHER_PAIRS; pair++) {
            test_case layout = shape_table[i].layout;

            if (quick && (i + pair) % OTHER_PAIRS)
                continue;
            snprintf(text, sizeof text, "%s %s scales=%s %s", shape_table[i].shape, format[(i + pair) % 3],
                     other_pairs[pair], option[(i + pair * 3) % 7]);
            layout.slices = layout.slices && pair != OTHER_OF_BLOCKS;
            cases_add(list, op, text, layout);
        }
    for (int i = 0; i < DECODE_CASES; i++) {
        snprintf(text, sizeof text, "%s scales=%s", decode_table[i], other_pairs[i % 3]);
        cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = i == 1});
    }
    for (int m = 3; m <= 64; m += quick ? 16 : 3) {
        snprintf(text, sizeof text, "m=%d n=136 k=1168 scales=%s %s", m, other_pairs[m % 3], option[m % 7]);
        cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = true});
    }
}

/* Up to 64 rows: weights that wrap the pipeline, and every m, where k is split. */
static void add_decode(const ridge_op_row *op, bool quick, case_list *list)
{
    char text[160];

    for (int i = 0; i < DECODE_CASES; i++)
        for (int pair = 0; pair < 3; pair++) {
            if (quick && (i + pair) % 3)
                continue;
            snprintf(text, sizeof text, "%s scales=%s", decode_table[i], gemm_pairs[pair]);
            cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = i == 1});
        }
    for (int m = quick ? 6 : 1; m <= 64; m += quick ? 8 : 1) {
        const test_case narrow = {.fill = FILL_NORMAL, .slices = true};
        const test_case wider = {.fill = FILL_NORMAL, .slices = true, .gpu = m % 8 != 6}; /* CPU rows: some */

        snprintf(text, sizeof text, "m=%d n=136 k=1040 scales=%s %s", m, gemm_pairs[m % 3], option[m % 7]);
        cases_add(list, op, text, narrow);
        snprintf(text, sizeof text, "m=%d n=520 k=2064 %s scales=%s d=bf16", m, format[m % 3], gemm_pairs[m / 3 % 4]);
        cases_add(list, op, text, wider);
    }
}

/* Grids that plan their work by the number of multiprocessors, as on GPUs with fewer: more tiles than clusters, which
 * stream-K wants, and few. Of two multiprocessors parts of the rows too, which such a grid still shares out. */
static void add_units(const ridge_op_row *op, bool quick, case_list *list)
{
    static const struct {
        int units, tiled, tiled_1d1d; /* columns of more tiles than clusters */
    } grid[] = {{2, 520, 424}, {16, 904, 712}, {60, 3016, 2296}, {78, 3880, 2944}, {114, 5608, 4240}};
    char text[200];

    for (int i = 0; i < 5; i++) {
        const test_case layout = {
            .fill = i == 1 ? FILL_EDGE : FILL_NORMAL, .slices = i == 0, .units = grid[i].units, .gpu = true};

        snprintf(text, sizeof text, "m=389 n=%d k=400 d=bf16 %s", grid[i].tiled, format[i % 3]);
        cases_add(list, op, text, layout);
        snprintf(text, sizeof text, "m=389 n=%d k=400 scales=row128_row128 d=bf16 %s", grid[i].tiled_1d1d,
                 format[(i + 1) % 3]);
        cases_add(list, op, text, layout);
        snprintf(text, sizeof text, "m=%d n=520 k=4112 scales=%s %s", 3 + 8 * i, gemm_pairs[i % 4], option[i]);
        cases_add(list, op, text, layout);
        snprintf(text, sizeof text, "m=%d n=328 k=%d scales=%s %s", 70 + 67 * i, quick ? 400 : 2064, gemm_pairs[i % 4],
                 option[i + 2]);
        cases_add(list, op, text, layout);
    }
    for (int i = 0; i < 2; i++) { /* and more blocks of k than a pipeline has stages */
        const test_case layout = {.fill = FILL_NORMAL, .slices = true, .units = i ? 4 : 2, .gpu = true};

        snprintf(text, sizeof text, "m=193 n=%d k=2064 d=bf16", i ? 1032 : 520);
        cases_add(list, op, text, layout);
        snprintf(text, sizeof text, "m=193 n=%d k=2064 scales=row128_row128 d=bf16", i ? 776 : 424);
        cases_add(list, op, text, layout);
    }
    cases_add(list, op, "m=193 n=520 k=5136 d=bf16", (test_case){.fill = FILL_NORMAL, .units = 2, .gpu = true});
    cases_add(list, op, "m=193 n=424 k=5136 scales=row128_row128 d=bf16",
              (test_case){.fill = FILL_NORMAL, .units = 2, .gpu = true});
}

/* Large enough that the clusters of a GPU share tiles. */
static void add_clusters(const ridge_op_row *op, bool quick, case_list *list)
{
    const test_case wide = {.fill = FILL_EXACT, .repeats = 2, .gpu = true};
    /* pipelines of many stages that are filled again, tiles that share out the rows */
    const test_case rings = {.fill = FILL_EXACT, .pad = 16, .slices = true, .gpu = true};
    const test_case random = {.fill = FILL_NORMAL, .pad = 16, .slices = true, .gpu = true};

    cases_add(list, op, "m=66 n=17416 k=272 d=bf16", wide);
    cases_add(list, op, "m=70 n=328 k=4112 d=bf16", random);
    cases_add(list, op, "m=140 n=328 k=2064 scales=row d=bf16", random);
    cases_add(list, op, "m=390 n=264 k=2064 scales=row128_row128 d=bf16 a=e5m2", random);
    cases_add(list, op, "m=101 n=456 k=4112 d=bf16", rings);
    cases_add(list, op, "m=203 n=456 k=4112 d=bf16 scales=row", rings);
    /* a last tile of rows that begins early, and unaligned scales of shared tiles */
    cases_add(list, op, "m=389 n=8456 k=528 d=bf16", wide);
    cases_add(list, op, "m=388 n=456 k=400 scales=row128_row128 d=f32", rings);
    cases_add(list, op, "m=101 n=456 k=4112 d=bf16 scales=row128_t_blk128", rings);
    cases_add(list, op, "m=203 n=456 k=2064 d=bf16 scales=row128_t_row128_t", rings);
    cases_add(list, op, "m=203 n=456 k=2064 d=bf16 scales=row_tensor", rings);
    if (quick)
        return;
    cases_add(list, op, "m=66 n=17416 k=1040", wide);
    cases_add(list, op, "m=70 n=17416 k=1040 scales=row128_row128 d=f32 accumulate=1", wide);
    cases_add(list, op, "m=72 n=17416 k=1040 scales=row128_row128 d=f32 accumulate=1", wide); /* scales by TMA */
    cases_add(list, op, "m=72 n=17416 k=1040 scales=row128_row128", wide);
    cases_add(list, op, "m=200 n=13000 k=912 scales=row128_row128 d=f16",
              (test_case){.fill = FILL_NORMAL, .repeats = 2, .gpu = true});
}

/* Infinities and NaN among codes, scales, bias and what is added to: D is NaN exactly where float64 has one. */
static void add_special(const ridge_op_row *op, case_list *list)
{
    static const char *const shape[] = {"m=37 n=136 k=400", "m=3 n=264 k=1040", "m=203 n=328 k=528"};
    const test_case layout = {.fill = FILL_SPECIAL};
    char text[160];

    for (int i = 0; i < 3; i++)
        for (int pair = 0; pair < PAIRS + OTHER_PAIRS; pair++) {
            snprintf(text, sizeof text, "%s %s scales=%s %s", shape[i], format[(i + pair) % 3],
                     pair < PAIRS ? gemm_pairs[pair] : other_pairs[pair - PAIRS], option[(i + pair) % 7]);
            cases_add(list, op, text, layout);
        }
}

void cases_gemm(const ridge_op_row *op, case_level level, case_list *list)
{
    const bool quick = level == CASES_QUICK;

    add_shapes(op, quick, list);
    add_other_pairs(op, quick, list);
    add_special(op, list);
    add_decode(op, quick, list);
    add_clusters(op, quick, list);
    add_units(op, quick, list);
    if (level == CASES_LARGE) {
        cases_add(list, op, "m=150 n=8200 k=1040", (test_case){.fill = FILL_NORMAL, .repeats = 1000});
        cases_add(list, op, "m=450 n=8200 k=1040", (test_case){.fill = FILL_NORMAL, .repeats = 1000});
        cases_add(list, op, "m=65664 n=32776 k=32", (test_case){.fill = FILL_EXACT});
    }
}
