/* grouped.c: gemm_fp8_grouped in the driver: cases, offsets, suites, planted faults, and the oracle: each group is held
 * against float64, and on Hopper against the model of its tensor cores, as a product of gemm_fp8; of the others nothing
 * may be written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

extern const ridge_family ridge_family_gemm_fp8_grouped;

enum { BLOCK = 128 };

/* What the word variant= says of the offsets; from DECREASES on some group is bad, or with NO_MULTIPLE may be. */
enum { RAGGED, ONE_GROUP, EQUAL, ZIPF, GAPS, DECREASES, NEGATIVE, BEYOND, NO_MULTIPLE, VARIANTS };

static uint32_t mode_of(const image *im)
{
    return im->call.flags & RIDGE_GROUPED;
}

/* ---------------------------------------------------------------------------------------------------------- offsets */

static void store_offset(const image *im, int64_t i, int64_t value)
{
    const int32_t narrow = (int32_t)value;
    const bool wide = im->call.arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS].dtype == RIDGE_I64;

    memcpy(im->host + im->offset[RIDGE_GEMM_FP8_GROUPED_OFFSETS] + i * (wide ? 8 : 4),
           wide ? (const void *)&value : (const void *)&narrow, wide ? 8 : 4);
}

static int64_t load_offset(const image *im, const unsigned char *base, int64_t i)
{
    return (int64_t)dtype_load(base + im->offset[RIDGE_GEMM_FP8_GROUPED_OFFSETS] +
                                   i * (int64_t)ridge_dtype_size(im->call.arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS].dtype),
                               im->call.arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS].dtype);
}

/* The size of a group of `left` that it shares with those after it; sizes of 0 and 1 are frequent. */
static int64_t ragged(int64_t left, int64_t groups, uint64_t *seed)
{
    const uint64_t z = random_next(seed);
    int64_t size = (int64_t)(z >> 8) % (2 * left / groups + 1);

    if (groups == 1)
        return left;
    if (z % 5 < 2)
        size = (int64_t)(z % 5);
    return size < left ? size : left;
}

/* Rows of a group, and how many there are at most. */
static void fill_counts(const test_case *c, const image *im, uint64_t seed)
{
    const int64_t m = im->call.dim[0], groups = im->call.dim[3];

    for (int64_t g = 0; g < groups; g++) {
        const int64_t some = ragged(m, 2, &seed);
        const int64_t count[VARIANTS] = {some, g == groups / 2 ? m : 0, m, m / (g + 1), 0, m + 1, -1, INT32_MAX, some};

        store_offset(im, g, c->variant < DECREASES || g == groups / 2 ? count[c->variant] : some);
    }
}

static void fill_offsets(const test_case *c, const image *im, uint64_t seed)
{
    const bool by_k = mode_of(im) == RIDGE_GROUPED_K;
    const int64_t all = im->call.dim[by_k ? 2 : 0] / (by_k ? BLOCK : 1), groups = im->call.dim[3], bad = groups / 2;
    const int64_t first = c->variant == GAPS ? all / 5 : 0, last = all - (c->variant == GAPS ? all / 7 : 0);
    const int64_t wide = im->call.arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS].dtype == RIDGE_I64;
    double weight = 0, sum = 0;
    int64_t at = first;

    for (int64_t g = 0; g < groups; g++)
        weight += 1.0 / (double)(g + 1);
    for (int64_t g = 0; g < groups; g++) {
        store_offset(im, g, at * (by_k ? BLOCK : 1));
        sum += 1.0 / (double)(g + 1);
        if (c->variant == ONE_GROUP)
            at = g < bad ? first : last;
        else if (c->variant == EQUAL)
            at = all * (g + 1) / groups;
        else if (c->variant == ZIPF)
            at = g + 1 < groups ? (int64_t)((double)all * sum / weight) : last;
        else
            at += ragged(last - at, groups - g, &seed);
    }
    store_offset(im, groups, at * (by_k ? BLOCK : 1));
    if (c->variant == DECREASES)
        store_offset(im, bad + 1, load_offset(im, im->host, bad) - BLOCK);
    if (c->variant == NEGATIVE)
        store_offset(im, bad, wide ? -(INT64_C(1) << 40) : -BLOCK);
    if (c->variant == BEYOND)
        store_offset(im, bad + 1, wide ? INT64_C(1) << 40 : all * (by_k ? BLOCK : 1) + BLOCK);
    if (c->variant == NO_MULTIPLE && by_k)
        store_offset(im, bad, load_offset(im, im->host, bad) + 1);
}

static bool fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    if (arg == RIDGE_GEMM_FP8_GROUPED_SCALE_A || arg == RIDGE_GEMM_FP8_GROUPED_SCALE_B)
        gemm_fill_scales(c, im, arg, seed);
    else if (arg != RIDGE_GEMM_FP8_GROUPED_OFFSETS)
        return false;
    else if (mode_of(im) == RIDGE_GROUPED_MASKED)
        fill_counts(c, im, seed * 31);
    else if (im->call.dim[3])
        fill_offsets(c, im, seed * 31);
    else
        store_offset(im, 0, 0);
    return true;
}

/* ----------------------------------------------------------------------------------------------------------- oracle */

/* The rows, or the elements of k, of a group, as the offsets in `base` say; false: it is bad. */
static bool group_of(const image *im, int64_t g, int64_t *from, int64_t *to)
{
    const bool by_k = mode_of(im) == RIDGE_GROUPED_K, masked = mode_of(im) == RIDGE_GROUPED_MASKED;
    const int64_t all = im->call.dim[by_k ? 2 : 0];

    *from = masked ? 0 : load_offset(im, im->host, g);
    *to = load_offset(im, im->host, masked ? g : g + 1);
    if (by_k && (*from % BLOCK || *to % BLOCK))
        return false;
    return *from >= 0 && *to >= *from && *to <= all;
}

static int64_t good_groups(const image *im)
{
    int64_t g = 0, from, to;

    while (g < im->call.dim[3] && group_of(im, g, &from, &to))
        g++;
    return g;
}

/* Operand `to` of the part: operand `arg` of the whole from (row, col) on. */
static void place(const image *im, int arg, int64_t row, int64_t col, image *part, int to)
{
    const int64_t size = (int64_t)ridge_dtype_size(im->call.arg[arg].dtype);
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    part->call.arg[to] = im->call.arg[arg];
    part->call.arg[to].stride = im->call.arg[arg].stride ? im->call.arg[arg].stride : cols;
    part->offset[to] = im->offset[arg] + (size_t)((row * part->call.arg[to].stride + col) * size);
    part->length[to] = im->length[arg];
}

/* The scales of A or B of the part, whose first row is `row` of its table, of group `g` where a matrix has one scale,
 * and whose k begins at `from` in groups of k. */
static void place_scales(const image *im, image *part, bool of_a, int64_t row, int64_t g, int64_t from)
{
    const uint32_t mode = of_a ? im->call.flags & RIDGE_SCALE : (im->call.flags & RIDGE_SCALE_B) >> 4;
    const bool transposed = im->call.flags & (of_a ? RIDGE_SCALE_T : RIDGE_SCALE_B_T);
    const int64_t block = mode_of(im) == RIDGE_GROUPED_K ? from / BLOCK : 0, n = im->call.dim[1];
    const int arg = of_a ? RIDGE_GEMM_FP8_GROUPED_SCALE_A : RIDGE_GEMM_FP8_GROUPED_SCALE_B;
    const int to = of_a ? RIDGE_GEMM_FP8_SCALE_A : RIDGE_GEMM_FP8_SCALE_B;

    if (mode == RIDGE_SCALE_TENSOR)
        place(im, arg, 0, g, part, to);
    else if (mode == RIDGE_SCALE_ROW)
        place(im, arg, 0, row, part, to);
    else if (mode == RIDGE_SCALE_BLK128) /* the blocks of B begin anew with each group's n rows */
        place(im, arg, row ? row / n * ((n + BLOCK - 1) / BLOCK) : 0, block, part, to);
    else if (transposed)
        place(im, arg, row, block, part, to);
    else
        place(im, arg, block, row, part, to);
}

/* A group as the image of a product; false: nothing is written for it. */
static bool part_of(const image *im, int64_t g, image *part)
{
    const int64_t m = im->call.dim[0], n = im->call.dim[1], k = im->call.dim[2];
    const bool by_k = mode_of(im) == RIDGE_GROUPED_K, masked = mode_of(im) == RIDGE_GROUPED_MASKED;
    int64_t from, to, row;

    if (!group_of(im, g, &from, &to))
        return false;
    if (by_k && from == to && (im->call.flags & RIDGE_ACCUMULATE) && !im->length[RIDGE_GEMM_FP8_GROUPED_BIAS])
        return false;
    row = by_k || masked ? g * m : from;
    *part = (image){.bytes = im->bytes, .host = im->host};
    part->fill = im->fill == FILL_EXACT ? FILL_NORMAL : im->fill; /* the bits of all groups are compared together */
    part->call.op = RIDGE_GEMM_FP8;
    part->call.flags = im->call.flags & ~RIDGE_GROUPED_MASKED; /* add_block asks for RIDGE_GROUPED_K */
    part->call.dim[0] = by_k ? m : to - from;
    part->call.dim[1] = n;
    part->call.dim[2] = by_k ? to - from : k;
    place(im, RIDGE_GEMM_FP8_GROUPED_A, by_k ? 0 : row, by_k ? from : 0, part, RIDGE_GEMM_FP8_A);
    place_scales(im, part, true, by_k && (im->call.flags & RIDGE_SCALE) != RIDGE_SCALE_ROW ? 0 : row, 0, from);
    place(im, RIDGE_GEMM_FP8_GROUPED_B, by_k ? 0 : g * n, by_k ? from : 0, part, RIDGE_GEMM_FP8_B);
    place_scales(im, part, false, by_k && (im->call.flags & RIDGE_SCALE_B) != RIDGE_SCALE_B_ROW ? 0 : g * n,
                 by_k ? 0 : g, from);
    place(im, RIDGE_GEMM_FP8_GROUPED_D, row, 0, part, RIDGE_GEMM_FP8_D);
    if (im->length[RIDGE_GEMM_FP8_GROUPED_BIAS])
        place(im, RIDGE_GEMM_FP8_GROUPED_BIAS, 0, g * n, part, RIDGE_GEMM_FP8_BIAS);
    return part->call.dim[0] && n;
}

static void store_bad(const image *im, unsigned char *base)
{
    const int64_t good = good_groups(im);
    const int32_t bad = good < im->call.dim[3] ? (int32_t)good + 1 : 0;

    if (im->length[RIDGE_GEMM_FP8_GROUPED_BAD])
        memcpy(base + im->offset[RIDGE_GEMM_FP8_GROUPED_BAD], &bad, sizeof bad);
}

/* D of a group as a run left it. */
static void copy_part(const image *part, const unsigned char *got, unsigned char *to)
{
    for (int64_t i = 0; i < part->call.dim[0]; i++)
        memcpy((void *)oracle_address(part, to, RIDGE_GEMM_FP8_D, i, 0),
               oracle_address(part, got, RIDGE_GEMM_FP8_D, i, 0),
               (size_t)part->call.dim[1] * ridge_dtype_size(part->call.arg[RIDGE_GEMM_FP8_D].dtype));
}

static void oracle(oracle_run *run)
{
    const image *im = run->im;
    const int64_t good = good_groups(im);
    unsigned char *expected = malloc(im->bytes);
    image part;

    if (!expected) {
        oracle_fail(run, "the oracle ran out of memory");
        return;
    }
    memcpy(expected, im->host, im->bytes);
    store_bad(im, expected);
    for (int64_t g = 0; g < good; g++) {
        struct image_memo memo = {0};
        oracle_run one = {&part, run->got, 0, run->text, run->size};

        if (!part_of(im, g, &part))
            continue;
        part.memo = &memo;
        copy_part(&part, run->got, expected);
        if (run->worst <= 1)
            oracle_gemm(&one);
        run->worst = one.worst > run->worst ? one.worst : run->worst;
        free(memo.reference);
        free(memo.bound);
    }
    if (run->worst <= 1 && !image_equal(im, expected, run->got, run->text, run->size))
        run->worst = INFINITY;
    free(expected);
}

static bool bits(const image *im, const unsigned char *got, char *text, size_t size)
{
    const int64_t groups = good_groups(im);
    unsigned char **expected = &im->memo->bits[0];
    bool good = true;
    image part;

    if (!*expected && (*expected = malloc(im->bytes)) != NULL) {
        memcpy(*expected, im->host, im->bytes);
        store_bad(im, *expected);
        for (int64_t g = 0; g < groups && good; g++)
            good = !part_of(im, g, &part) || oracle_gemm_store_bits(&part, 0, *expected);
    }
    if (*expected && good)
        return image_equal(im, *expected, got, text, size);
    snprintf(text, size, "out of memory");
    return false;
}

/* ------------------------------------------------------------------------------------------------------------ cases */

static const char *const format[] = {"a=e4m3 b=e4m3", "a=e5m2 b=e4m3", "a=e4m3 b=e5m2"};

/* A shape that ends with `bias=` has one of D's dtype. */
static void add(const ridge_op_row *op, case_list *list, const char *shape, int number, test_case layout)
{
    static const char *const dtype[] = {"d=bf16", "d=f32 bad=1", "d=f16 offsets=i64", "d=bf16 bad=1 offsets=i64"};
    static const char *const dtype_k[] = {"d=bf16",
                                          "d=f32 accumulate=1 bad=1",
                                          "d=f16 bad=1",
                                          "d=f32 offsets=i64",
                                          "d=bf16 accumulate=1",
                                          "d=f32 accumulate=1 offsets=i64 bad=1"};
    const bool by_k = strstr(shape, "mode=k") != NULL;
    const char *d = by_k ? dtype_k[number % 6] : dtype[number % 4];
    const int own = shape[strlen(shape) - 1] == '=' ? (int)strcspn(d + 2, " ") : 0;
    char text[200];

    snprintf(text, sizeof text, "%s%.*s %s %s", shape, own, d + 2, format[number % 3], d);
    cases_add(list, op, text, layout);
}

static const struct {
    const char *shape;
    test_case layout;
} shapes[] = {
    {"m=0 n=24 k=64 groups=3", {.fill = FILL_NORMAL}},
    {"m=5 n=0 k=64 groups=3", {.fill = FILL_NORMAL}},
    {"m=5 n=24 k=0 groups=3", {.fill = FILL_EXACT}},
    {"m=5 n=24 k=64 groups=0", {.fill = FILL_NORMAL}},
    {"m=40 n=33 k=127 groups=1", {.fill = FILL_EXACT}},
    {"m=77 n=72 k=272 groups=5", {.fill = FILL_NORMAL, .pad = 16}},
    {"m=300 n=264 k=400 groups=7", {.fill = FILL_EDGE, .repeats = 50}},
    {"m=203 n=136 k=400 groups=33", {.fill = FILL_EXACT, .pad = 16}},
    {"m=530 n=256 k=256 groups=3", {.fill = FILL_SPECIAL}},
    {"m=131 n=257 k=391 groups=4", {.fill = FILL_NORMAL, .pad = 1, .shift = 1}},
    {"m=140 n=136 k=2064 groups=3", {.fill = FILL_NORMAL, .pad = 16}},
    {"m=560 n=8 k=16 groups=520", {.fill = FILL_NORMAL}},
    {"m=420 n=264 k=400 groups=4", {.fill = FILL_NORMAL, .repeats = 20}},
    {"m=330 n=264 k=400 groups=6 scales=row", {.fill = FILL_NORMAL}},
    {"m=150 n=136 k=272 groups=5 scales=tensor", {.fill = FILL_EXACT, .pad = 16}},
    {"m=270 n=72 k=528 groups=3 scales=row_tensor", {.fill = FILL_EDGE, .pad = 16}},
    {"m=85 n=77 k=391 groups=4 scales=tensor_row", {.fill = FILL_NORMAL, .pad = 1, .shift = 1}},
    {"m=250 n=200 k=400 groups=4 scales=row128_t_blk128", {.fill = FILL_NORMAL}},
    {"m=200 n=136 k=2064 groups=2 scales=row128_row128", {.fill = FILL_NORMAL, .pad = 16}},
    {"mode=masked m=70 n=264 k=400 groups=5 scales=row", {.fill = FILL_NORMAL}},
    {"mode=masked m=0 n=24 k=64 groups=3", {.fill = FILL_NORMAL}},
    {"mode=masked m=9 n=24 k=64 groups=0", {.fill = FILL_NORMAL}},
    {"mode=masked m=9 n=40 k=272 groups=4", {.fill = FILL_NORMAL}},
    {"mode=masked m=72 n=264 k=400 groups=5", {.fill = FILL_EXACT, .pad = 16}},
    {"mode=masked m=200 n=136 k=2064 groups=3", {.fill = FILL_NORMAL, .repeats = 20}},
    {"mode=masked m=33 n=95 k=500 groups=3", {.fill = FILL_EDGE, .shift = 3}},
    {"mode=k m=24 n=40 k=0 groups=3 scales=row128_row128", {.fill = FILL_EXACT}},
    {"mode=k m=0 n=40 k=128 groups=2 scales=row128_row128", {.fill = FILL_NORMAL}},
    {"mode=k m=24 n=40 k=256 groups=0 scales=row128_row128", {.fill = FILL_NORMAL}},
    {"mode=k m=64 n=72 k=640 groups=3 scales=row128_row128", {.fill = FILL_NORMAL, .pad = 16}},
    {"mode=k m=128 n=264 k=1152 groups=5 scales=row128_row128", {.fill = FILL_EXACT, .repeats = 20}},
    {"mode=k m=192 n=200 k=2048 groups=4 scales=row128_row128", {.fill = FILL_EDGE, .pad = 16}},
    {"mode=k m=320 n=136 k=1024 groups=9 scales=row128_row128", {.fill = FILL_SPECIAL}},
    {"mode=k m=131 n=57 k=512 groups=3 scales=row128_row128", {.fill = FILL_NORMAL, .pad = 1, .shift = 1}},
    {"mode=k m=128 n=136 k=2304 groups=2 scales=row128_row128", {.fill = FILL_NORMAL}},
    {"m=330 n=200 k=528 groups=6 scales=row128_row128", {.fill = FILL_NORMAL}},
    {"m=203 n=136 k=400 groups=5 scales=row128_t_row128_t", {.fill = FILL_EXACT, .pad = 16}},
    {"m=150 n=77 k=391 groups=4 scales=row128_row128", {.fill = FILL_EDGE, .pad = 1, .shift = 1}},
    {"mode=masked m=150 n=200 k=400 groups=4 scales=row128_row128", {.fill = FILL_NORMAL, .pad = 16}},
    {"mode=masked m=90 n=136 k=272 groups=3 scales=tensor", {.fill = FILL_NORMAL}},
    {"m=310 n=264 k=400 groups=5 bias=f32", {.fill = FILL_NORMAL}},
    {"m=140 n=130 k=272 groups=4 scales=row bias=", {.fill = FILL_NORMAL, .pad = 16}},
    {"m=210 n=200 k=272 groups=3 scales=row128_row128 bias=", {.fill = FILL_NORMAL}},
    {"mode=masked m=70 n=72 k=272 groups=4 bias=", {.fill = FILL_EXACT}},
    {"mode=k m=192 n=200 k=1024 groups=4 scales=row128_row128 bias=f32", {.fill = FILL_NORMAL}},
    {"mode=k m=200 n=136 k=1152 groups=5 scales=tensor", {.fill = FILL_NORMAL}},
    {"mode=k m=192 n=264 k=1024 groups=4 scales=row", {.fill = FILL_EXACT, .pad = 16}},
    {"mode=k m=130 n=72 k=640 groups=3 scales=row_tensor", {.fill = FILL_EDGE}},
    {"mode=k m=77 n=200 k=640 groups=3 scales=tensor_row", {.fill = FILL_NORMAL, .pad = 1, .shift = 1}},
    {"mode=k m=192 n=200 k=1024 groups=4 scales=row128_blk128", {.fill = FILL_NORMAL}},
    {"mode=k m=256 n=264 k=896 groups=3 scales=row128_t_blk128", {.fill = FILL_EXACT, .pad = 16}},
    {"mode=k m=320 n=136 k=1024 groups=4 scales=blk128_row128", {.fill = FILL_NORMAL, .pad = 16}},
    {"mode=k m=192 n=96 k=640 groups=3 scales=blk128_row128_t", {.fill = FILL_EDGE}},
    {"mode=k m=128 n=200 k=640 groups=3 scales=row128_t_row128_t", {.fill = FILL_NORMAL}},
};

static void cases(const ridge_op_row *op, case_level level, case_list *list)
{
    enum { SHAPES = (int)(sizeof shapes / sizeof shapes[0]) };

    for (int i = 0; i < SHAPES; i++)
        for (int variant = 0; variant < VARIANTS; variant++) {
            test_case layout = shapes[i].layout;

            layout.variant = variant;
            if (level == CASES_QUICK && variant != i % VARIANTS && variant != (i + 4) % VARIANTS && variant != RAGGED)
                continue;
            add(op, list, shapes[i].shape, i + variant, layout);
            if (variant == RAGGED)
                add(op, list, shapes[i].shape, i + variant + 1, layout);
        }
    if (level == CASES_LARGE)
        for (int i = 0; i < 3; i++)
            add(op, list,
                i == 0   ? "m=4000 n=520 k=1040 groups=16"
                : i == 1 ? "mode=masked m=300 n=520 k=1040 groups=16"
                         : "mode=k m=384 n=520 k=8192 groups=16 scales=row128_row128",
                i, (test_case){.fill = FILL_NORMAL, .repeats = 1000});
}

/* ------------------------------------------------------------------------------------------------ suites and faults */

static const suite_row suites[] = {
    {"quick", "gemm_fp8_grouped m=1024 n=512 k=512 groups=4"},
    {"quick", "gemm_fp8_grouped mode=k m=512 n=512 k=1024 groups=4 scales=row128_row128"},
    {NULL, NULL},
};

/* Groups, n and k of a layer's two products, of the experts of one of eight devices: DeepSeek-V3, Kimi K2,
 * Qwen3-30B-A3B, Qwen3-235B-A22B, gpt-oss-120b; all of Mixtral's. */
static const struct {
    int groups, n, k;
} products[] = {{32, 4096, 7168}, {32, 7168, 2048}, {48, 4096, 7168}, {48, 7168, 2048},
                {16, 1536, 2048}, {16, 2048, 768},  {16, 3072, 4096}, {16, 4096, 1536},
                {16, 5760, 2880}, {16, 2880, 2880}, {8, 28672, 4096}, {8, 4096, 14336}};

/* Groups of rows, the problems of bench/peers_grouped.py: a product, and rows a group in the mean. */
static const struct {
    int product, rows, variant;
} problems[] = {{0, 64, EQUAL},   {0, 256, EQUAL},      {0, 1024, ZIPF},      {0, 4096, EQUAL}, {1, 128, ZIPF},
                {1, 512, EQUAL},  {1, 2048, ONE_GROUP}, {2, 64, ZIPF},        {2, 512, EQUAL},  {3, 256, EQUAL},
                {3, 1024, ZIPF},  {4, 256, EQUAL},      {4, 2048, ZIPF},      {4, 8192, EQUAL}, {5, 512, ZIPF},
                {5, 2048, EQUAL}, {6, 128, EQUAL},      {6, 1024, EQUAL},     {7, 4096, ZIPF},  {8, 256, ZIPF},
                {8, 1024, EQUAL}, {9, 2048, ZIPF},      {10, 512, ONE_GROUP}, {11, 2048, EQUAL}};

enum {
    PRODUCTS = (int)(sizeof products / sizeof products[0]),
    BY_ROWS = (int)(sizeof problems / sizeof problems[0]),
    FEW = 3,
    LINES = BY_ROWS + PRODUCTS * (FEW + 2)
};

/* Suites `grouped`; `grouped_masked`, 8 to 64 rows of each group; and `grouped_k`, the gradients of the weights from
 * 2048 rows a group, to bf16 and added to f32. */
static suite_line suite(int index)
{
    static char text[128];
    const int i = index < BY_ROWS ? problems[index].product : (index - BY_ROWS) / (FEW + 2);
    const int way = (index - BY_ROWS) % (FEW + 2), groups = products[i].groups, n = products[i].n, k = products[i].k;

    if (index < BY_ROWS)
        snprintf(text, sizeof text, "gemm_fp8_grouped m=%d n=%d k=%d groups=%d variant=%d",
                 groups * problems[index].rows, n, k, groups, problems[index].variant);
    else if (way < FEW)
        snprintf(text, sizeof text, "gemm_fp8_grouped mode=masked m=%d n=%d k=%d groups=%d variant=%d",
                 way == 0 ? 8 : 32 * way, n, k, groups, EQUAL);
    else
        snprintf(text, sizeof text,
                 "gemm_fp8_grouped mode=k m=%d n=%d k=%d groups=%d scales=row128_row128 %s variant=%d", n, k,
                 2048 * groups, groups, way == FEW ? "d=bf16" : "d=f32 accumulate=1", EQUAL);
    return (suite_line){index < BY_ROWS ? "grouped" : way < FEW ? "grouped_masked" : "grouped_k", text, 0};
}

static int bad_calls(const ridge_call *good, bad_call *list)
{
    list[0] = (bad_call){*good, "a pair of scalings that is not legal", "scalings of a and b"};
    list[0].call.flags = (good->flags & RIDGE_GROUPED) | RIDGE_SCALE_ROW | RIDGE_SCALE_B_BLK128;
    list[1] = (bad_call){*good, "e5m2 times e5m2", "e5m2"};
    list[1].call.arg[RIDGE_GEMM_FP8_GROUPED_A].dtype = list[1].call.arg[RIDGE_GEMM_FP8_GROUPED_B].dtype = RIDGE_E5M2;
    list[2] = (bad_call){*good, "two modes", "exclude each other"};
    list[2].call.flags |= RIDGE_GROUPED;
    list[3] = (bad_call){*good, "accumulation into f16, or of rows", "RIDGE_ACCUMULATE"};
    list[3].call.flags |= RIDGE_ACCUMULATE;
    list[3].call.arg[RIDGE_GEMM_FP8_GROUPED_D].dtype = RIDGE_F16;
    list[4] = (bad_call){*good, "bias of a third dtype", "operand bias"};
    ridge_set(&list[4].call, RIDGE_GEMM_FP8_GROUPED_BIAS, RIDGE_F16, good->arg[RIDGE_GEMM_FP8_GROUPED_D].data, 0);
    list[5] = (bad_call){*good, "scales of a by 128 x 128 in groups of rows", "RIDGE_GROUPED_K"};
    list[5].call.flags = RIDGE_SCALE_BLK128 | RIDGE_SCALE_B_ROW128;
    return 6;
}

static ridge_status takes_the_next_rows_scale_of_a(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.arg[RIDGE_GEMM_FP8_GROUPED_SCALE_A].data = (float *)copy.arg[RIDGE_GEMM_FP8_GROUPED_SCALE_A].data + 1;
    return fault_run_changed(r, &copy);
}

/* One group less, whose offsets begin one later. */
static ridge_status skips_the_first_group(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);
    ridge_operand *offsets = &copy.arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS];

    offsets->data = (char *)offsets->data + ridge_dtype_size(offsets->dtype);
    copy.dim[3]--;
    return fault_run_changed(r, &copy);
}

static ridge_status drops_the_last_group(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[3]--;
    return fault_run_changed(r, &copy);
}

/* A row more than the group has: of D the row after it. */
static ridge_status takes_a_row_too_many(const faulty_run *r)
{
    const int arg = RIDGE_GEMM_FP8_GROUPED_OFFSETS;
    const int64_t groups = r->call->dim[3];
    const size_t at = r->im->offset[arg] + (size_t)(groups / 2) * ridge_dtype_size(r->call->arg[arg].dtype);
    int32_t was, more;
    ridge_status status = fault_read(r, at, &was, sizeof was);

    more = was + ((r->call->flags & RIDGE_GROUPED) == RIDGE_GROUPED_K ? BLOCK : 1);
    status = status ? status : fault_write(r, at, &more, sizeof more);
    status = status ? status : fault_run(r, r->call);
    return status ? status : fault_write(r, at, &was, sizeof was);
}

static const planted_fault faults[] = {
    {.name = "takes the next row's scale of a", .fault = takes_the_next_rows_scale_of_a},
    {.name = "takes the next row of b", .fault = fault_takes_the_next, .operand = "b"},
    {.name = "skips the first group", .fault = skips_the_first_group},
    {.name = "drops the last group", .fault = drops_the_last_group},
    {.name = "takes a row too many", .fault = takes_a_row_too_many},
    {.name = "forgets the bias", .fault = fault_forgets_operand, .operand = "bias"},
    {.name = "takes the next column's bias", .fault = fault_takes_the_next, .operand = "bias"},
    {.name = "says nothing of bad groups", .fault = fault_never_writes, .operand = "bad"},
    {0},
};

/* All rows of D belong to a group. */
static const char *const fault_problems[] = {
    "gemm_fp8_grouped m=75 n=136 k=304 groups=5 d=f32 bad=1 bias=1 variant=2 pad=16",
    "gemm_fp8_grouped m=75 n=136 k=304 groups=5 scales=row128_row128 d=bf16 bad=1 bias=1 variant=2 pad=16",
    "gemm_fp8_grouped mode=k m=64 n=136 k=1280 groups=5 scales=row128_row128 d=f32 bad=1 variant=2 pad=16",
    "gemm_fp8_grouped mode=k m=64 n=136 k=1280 groups=5 scales=row128_row128 d=bf16 bad=1 variant=2 pad=16",
    NULL,
};

const check_family check_gemm_fp8_grouped = {
    .family = &ridge_family_gemm_fp8_grouped,
    .cases = cases,
    .oracle = oracle,
    .fill = fill,
    .variants = VARIANTS - 1,
    .exact_sums = true,
    .suites = suites,
    .suite = suite,
    .suite_lines = LINES,
    .has_bits = oracle_gemm_has_bits,
    .bits = bits,
    .bad_calls = bad_calls,
    .fault_problems = fault_problems,
    .faults = faults,
};
