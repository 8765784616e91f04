/* cases.c: the test cases of gemm_fp8 and its bench suites: `train84` (84 layers of seven models, three passes
 * each), `train84-fwd`, `train84-dgrad` and `train84-wgrad` (one of them), `decode` and `decode-models` (six weight
 * matrices, those of the models, m up to 64), `sweep-m` (four of the six, m up to 512), and chains for `ridge bench
 * --chain`: `step` (84 times what a layer's training step runs: x, w and the gradient quantised both ways, three
 * products), `step-w` (w is quantised already), `step-f32` (the gradient of w is added to an f32 one). */
#include <stdio.h>

#include "check/check.h"

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

enum { SHAPES = (int)(sizeof shape_table / sizeof shape_table[0]), PAIRS = 5 };

/* Few tokens and weights that wrap rings, split k and take several passes (ops/gemm_fp8/decode_sm90.cu). */
static const char *const decode_table[] = {"m=1 n=12680 k=1040 d=bf16", "m=33 n=9000 k=144 d=bf16 bias=1",
                                           "m=2 n=34824 k=160 d=f16", "m=9 n=520 k=8208 d=f32",
                                           "m=2 n=3304 k=4096 d=bf16 accumulate=1"};

enum { DECODE_CASES = (int)(sizeof decode_table / sizeof decode_table[0]) };

/* Strides that a tensor map must not be given as they are: those of inputs packed in rows that are no multiple of 16,
 * beside a padded output, and those of single rows, which nobody has looked at. */
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

static const char *const pairs[PAIRS] = {"tensor", "row", "row128_blk128", "row128_row128", "blk128_row128"};

void cases_gemm(const ridge_op_row *op, case_list *list, case_level level)
{
    static const char *const format[] = {"a=e4m3 b=e4m3", "a=e5m2 b=e4m3", "a=e4m3 b=e5m2"};
    static const char *const option[] = {
        "d=bf16", "d=f32 accumulate=1", "d=f16 bias=1", "d=bf16 bias=bf16 accumulate=1",
        "d=f32",  "d=f16 bias=f16",     "d=bf16 bias=1"};
    char text[160];

    for (int i = 0; i < SHAPES; i++)
        for (int pair = 0; pair < PAIRS; pair++)
            for (int way = 0; way < 3; way++) {
                test_case layout = shape_table[i].layout;

                if (level == CASES_QUICK && (i + pair + way) % 3)
                    continue;
                snprintf(text, sizeof text, "%s %s scales=%s %s", shape_table[i].shape, format[(i + pair + way) % 3],
                         pairs[pair], option[(i * 3 + pair * 5 + way) % 7]);
                if (layout.slices && pair == 4) /* a part may begin inside a 128-block of rows */
                    layout.slices = false;
                cases_add(list, op, text, layout);
            }
    for (size_t i = 0; i < sizeof stride_table / sizeof stride_table[0]; i++)
        for (int pair = 0; pair < PAIRS; pair++) {
            snprintf(text, sizeof text, "%s scales=%s %s", stride_table[i].shape, pairs[pair],
                     option[((int)i + pair) % 7]);
            cases_add(list, op, text, stride_table[i].layout);
        }
    for (int i = 0; i < DECODE_CASES; i++)
        for (int pair = 0; pair < 3; pair++) {
            if (level == CASES_QUICK && (i + pair) % 3)
                continue;
            snprintf(text, sizeof text, "%s scales=%s", decode_table[i], pairs[pair]);
            cases_add(list, op, text, (test_case){.fill = FILL_NORMAL, .slices = i == 1});
        }
    for (int m = level == CASES_QUICK ? 6 : 1; m <= 64; m += level == CASES_QUICK ? 8 : 1) { /* k is split */
        const test_case alone = {.fill = FILL_NORMAL, .slices = true};
        const test_case wider = {.fill = FILL_NORMAL, .slices = true, .gpu = m % 8 != 6}; /* CPU rows: some */

        snprintf(text, sizeof text, "m=%d n=136 k=1040 scales=%s %s", m, pairs[m % 3], option[m % 7]);
        cases_add(list, op, text, alone);
        snprintf(text, sizeof text, "m=%d n=520 k=2064 %s scales=%s d=bf16", m, format[m % 3], pairs[m / 3 % 4]);
        cases_add(list, op, text, wider);
    }
    { /* wide enough that the clusters of a GPU share tiles */
        const test_case wide = {.fill = FILL_EXACT, .repeats = 2, .gpu = true};
        /* rings of many stages that are filled again, tiles that share out the rows */
        const test_case rings = {.fill = FILL_EXACT, .pad = 8, .slices = true, .gpu = true};

        cases_add(list, op, "m=66 n=17416 k=272 d=bf16", wide);
        cases_add(list, op, "m=101 n=456 k=4112 d=bf16", rings);
        cases_add(list, op, "m=203 n=456 k=4112 d=bf16 scales=row", rings);
        /* a last tile of rows that begins early, and unaligned scales of shared tiles */
        cases_add(list, op, "m=389 n=8456 k=528 d=bf16", wide);
        cases_add(list, op, "m=388 n=456 k=400 scales=row128_row128 d=f32", rings);
        if (level == CASES_QUICK)
            return;
        cases_add(list, op, "m=66 n=17416 k=1040", wide);
        cases_add(list, op, "m=70 n=17416 k=1040 scales=row128_row128 d=f32 accumulate=1", wide);
        cases_add(list, op, "m=72 n=17416 k=1040 scales=row128_row128 d=f32 accumulate=1", wide); /* scales by TMA */
        cases_add(list, op, "m=72 n=17416 k=1040 scales=row128_row128", wide);
        cases_add(list, op, "m=200 n=13000 k=912 scales=row128_row128 d=f16",
                  (test_case){.fill = FILL_NORMAL, .repeats = 2, .gpu = true});
    }
    if (level == CASES_LARGE) {
        cases_add(list, op, "m=150 n=8200 k=1040", (test_case){.fill = FILL_NORMAL, .repeats = 1000});
        cases_add(list, op, "m=450 n=8200 k=1040", (test_case){.fill = FILL_NORMAL, .repeats = 1000});
        cases_add(list, op, "m=65664 n=32776 k=32", (test_case){.fill = FILL_EXACT});
    }
}

/* ----------------------------------------------------------------------------------------------------------- suites */

static const struct {
    int seq, hidden, inner, heads, kv;
} models[] = {
    {4096, 4096, 11008, 32, 32},  /* Llama-2-7B */
    {4096, 8192, 28672, 64, 8},   /* Llama-2-70B */
    {8192, 4096, 14336, 32, 8},   /* Llama-3.1-8B */
    {8192, 16384, 53248, 128, 8}, /* Llama-3.1-405B */
    {8192, 3584, 18944, 28, 4},   /* Qwen2.5-7B */
    {8192, 8192, 29568, 64, 8},   /* Qwen2.5-72B */
    {4096, 4096, 14336, 32, 8},   /* Mistral-7B */
};

enum {
    MODELS = (int)(sizeof models / sizeof models[0]),
    TRAIN = MODELS * 3 * 4 * 3,
    DECODE = 6 * 7 * 3,
    SWEEP = 4 * 18,
    STEP = 6,
    LAYERS = TRAIN / 3,
    DECODE_MODELS = MODELS * 4 * 7 * 3
};

/* The weights [n, k] of layer qkv, out, gate_up, down of a model. */
static void layer_shape(int model, int layer, int *n, int *k)
{
    const int h = models[model].hidden, f = models[model].inner;

    *n = layer == 0 ? (models[model].heads + 2 * models[model].kv) * 128 : layer == 2 ? 2 * f : h;
    *k = layer == 3 ? f : h;
}

/* A layer of a model at M = seq * {1, 2, 4}: y [m, n] = x [m, k] w [n, k]^T. */
static void train_shape(int index, int *m, int *n, int *k)
{
    *m = models[index / 12].seq * (1 << index / 4 % 3);
    layer_shape(index / 12, index % 4, n, k);
}

/* In pass forward, dgrad, wgrad. */
static void train_line(int index, const char *option, char *text, size_t size)
{
    int m, n, k;

    train_shape(index / 3, &m, &n, &k);
    if (index % 3 == 0)
        snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d", m, n, k);
    else if (index % 3 == 1)
        snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d", m, k, n);
    else
        snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d scales=row128_row128%s", n, k, m, option);
}

/* Part 0 to 5 of a step: quantise w, x, the gradient of y; the products. */
static void step_line(int index, bool f32, char *text, size_t size)
{
    const int part = index % STEP;
    int m, n, k;

    train_shape(index / STEP, &m, &n, &k);
    if (part >= 3)
        train_line(index / STEP * 3 + part - 3, f32 ? " d=f32 accumulate=1" : "", text, size);
    else
        snprintf(text, size, "quantize_fp8_dual rows=%d cols=%d dtype=bf16%s", part ? m : n, part == 2 ? n : k,
                 part ? "" : " form=blk_blk");
}

static void sweep_line(int index, char *text, size_t size)
{
    static const int weight[4][2] = {{8192, 8192}, {57344, 8192}, {4096, 14336}, {7168, 2048}};
    static const int m[18] = {1, 16, 32, 48, 64, 65, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512};

    snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d", m[index % 18], weight[index / 18][0], weight[index / 18][1]);
}

static void decode_line(int index, char *text, size_t size)
{
    static const int weight[6][2] = {{8192, 8192},  {10240, 8192}, {57344, 8192},
                                     {8192, 28672}, {7168, 2048},  {4096, 14336}};
    const int mode = index % 3, m = 1 << index / 3 % 7, *w = weight[index / 21];

    snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d scales=%s", m, w[0], w[1], pairs[mode]);
}

static void decode_models_line(int index, char *text, size_t size)
{
    int n, k;

    layer_shape(index / 84, index / 21 % 4, &n, &k);
    snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d scales=%s", 1 << index / 3 % 7, n, k, pairs[index % 3]);
}

suite_line suite_gemm(int index)
{
    static const char *const pass[] = {"train84-fwd", "train84-dgrad", "train84-wgrad"};
    static const char *const step[] = {"step", "step-f32", "step-w"};
    static char text[96];
    suite_line line = {NULL, text, 0};

    if (index < 2 * TRAIN) {
        line.suite = index < TRAIN ? "train84" : pass[index % 3];
        train_line(index % TRAIN, "", text, sizeof text);
        return line;
    }
    index -= 2 * TRAIN;
    if (index < DECODE) {
        line.suite = "decode";
        decode_line(index, text, sizeof text);
        return line;
    }
    index -= DECODE;
    if (index < DECODE_MODELS) {
        line.suite = "decode-models";
        decode_models_line(index, text, sizeof text);
        return line;
    }
    index -= DECODE_MODELS;
    if (index < SWEEP) {
        line.suite = "sweep-m";
        sweep_line(index, text, sizeof text);
        return line;
    }
    index -= SWEEP;
    if (index < 2 * LAYERS * STEP) {
        line.suite = step[index / (LAYERS * STEP)];
        line.group = 1 + index / STEP;
        step_line(index % (LAYERS * STEP), index >= LAYERS * STEP, text, sizeof text);
        return line;
    }
    index -= 2 * LAYERS * STEP;
    if (index < LAYERS * (STEP - 1)) {
        line.suite = step[2];
        line.group = 1 + index / (STEP - 1);
        step_line(index / (STEP - 1) * STEP + index % (STEP - 1) + 1, false, text, sizeof text);
    }
    return line;
}
