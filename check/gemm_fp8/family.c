/* family.c: the bench suites, scales and refused calls of gemm_fp8. Its suites are `train84` (84 layers of seven
 * models, three passes each), `train84-fwd`, `train84-dgrad` and `train84-wgrad` (one of them), `train135` (the same
 * with the heads and two more models, 135 layers), `decode` and
 * `decode-models` (six weight matrices, those of the models, m up to 64), `sweep-m` (four of the six, m up to 512), and
 * chains for `ridge bench --chain`: `step` (84 times what a layer's training step runs: x, w and the gradient quantised
 * both ways, three products), `step-w` (w is quantised already), `step-f32` (the gradient of w is added to an f32 one).
 */
#include <math.h>
#include <string.h>

#include "cpu/num.h"
#include "gemm.h"

extern const ridge_family ridge_family_gemm_fp8;

static const suite_row suites[] = {
    {"quick", "gemm_fp8 m=16 n=512 k=1024"},
    {"quick", "gemm_fp8 m=256 n=512 k=512"},
    {NULL, NULL},
};

static const struct {
    int seq, hidden, inner, heads, kv, vocab;
} models[] = {
    {4096, 4096, 11008, 32, 32, 32000},   /* Llama-2-7B */
    {4096, 8192, 28672, 64, 8, 32000},    /* Llama-2-70B */
    {8192, 4096, 14336, 32, 8, 128256},   /* Llama-3.1-8B */
    {8192, 16384, 53248, 128, 8, 128256}, /* Llama-3.1-405B */
    {8192, 3584, 18944, 28, 4, 152064},   /* Qwen2.5-7B */
    {8192, 8192, 29568, 64, 8, 152064},   /* Qwen2.5-72B */
    {4096, 4096, 14336, 32, 8, 32000},    /* Mistral-7B */
    {4096, 5120, 16384, 40, 8, 202048},   /* Llama-4-Scout and, below, -Maverick: 202048 is no multiple of 128 */
    {4096, 5120, 16384, 40, 8, 202048},
};

enum {
    ALL_MODELS = (int)(sizeof models / sizeof models[0]),
    MODELS = ALL_MODELS - 2,
    TRAIN_HEADS = ALL_MODELS * 3 * 5 * 3,
    TRAIN = MODELS * 3 * 4 * 3,
    DECODE = 6 * 7 * 3,
    SWEEP = 4 * 18,
    STEP = 6,
    LAYERS = TRAIN / 3,
    DECODE_MODELS = MODELS * 4 * 7 * 3,
    LINES = 2 * TRAIN + TRAIN_HEADS + DECODE + DECODE_MODELS + SWEEP + LAYERS * (3 * STEP - 1)
};

/* The weights [n, k] of layer qkv, out, gate_up, down, head of a model. */
static void layer_shape(int model, int layer, int *n, int *k)
{
    const int h = models[model].hidden, f = models[model].inner;

    *n = layer == 0   ? (models[model].heads + 2 * models[model].kv) * 128
         : layer == 2 ? 2 * f
         : layer == 4 ? models[model].vocab
                      : h;
    *k = layer == 3 ? f : h;
}

/* A layer of a model at M = seq * {1, 2, 4}: y [m, n] = x [m, k] w [n, k]^T. */
static void train_shape(int index, int *m, int *n, int *k)
{
    *m = models[index / 12].seq * (1 << index / 4 % 3);
    layer_shape(index / 12, index % 4, n, k);
}

/* In pass forward, dgrad, wgrad. */
static void pass_line(int pass, int m, int n, int k, const char *option, char *text, size_t size)
{
    if (pass == 0)
        snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d", m, n, k);
    else if (pass == 1)
        snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d", m, k, n);
    else
        snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d scales=row128_row128%s", n, k, m, option);
}

static void train_line(int index, const char *option, char *text, size_t size)
{
    int m, n, k;

    train_shape(index / 3, &m, &n, &k);
    pass_line(index % 3, m, n, k, option, text, size);
}

/* As train_line, of all models and with their heads: the list of Primus-Turbo's benchmark since July 2026. */
static void heads_line(int index, char *text, size_t size)
{
    const int model = index / 45;
    int n, k;

    layer_shape(model, index / 3 % 5, &n, &k);
    pass_line(index % 3, models[model].seq * (1 << index / 15 % 3), n, k, "", text, size);
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

    snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d scales=%s", m, w[0], w[1], gemm_pairs[mode]);
}

static void decode_models_line(int index, char *text, size_t size)
{
    int n, k;

    layer_shape(index / 84, index / 21 % 4, &n, &k);
    snprintf(text, size, "gemm_fp8 m=%d n=%d k=%d scales=%s", 1 << index / 3 % 7, n, k, gemm_pairs[index % 3]);
}

/* Line `index` of LINES. */
static suite_line suite(int index)
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
    if (index < TRAIN_HEADS) {
        line.suite = "train135";
        heads_line(index, text, sizeof text);
        return line;
    }
    index -= TRAIN_HEADS;
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
    line.suite = step[2];
    line.group = 1 + index / (STEP - 1);
    step_line(index / (STEP - 1) * STEP + index % (STEP - 1) + 1, false, text, sizeof text);
    return line;
}

/* ----------------------------------------------------------------------------------------------------------- inputs */

/* Scales of fp8 operands: 2^-6 .. 2^6, not powers of two; exact ones 1/2, 1, 2; among edges zeros and NaN, among
 * special ones infinity and NaN. */
static void fill_row(const test_case *c, unsigned char *to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++, to += 4) {
        uint64_t z = random_next(&seed);
        float value = ridge_float((uint32_t)(z >> 41) + ((uint32_t)(121 + (int)(z & 0xffff) % 12) << 23));

        if (c->fill == FILL_EXACT)
            value = ridge_float((uint32_t)(126 + (int)(z & 0xffff) % 3) << 23);
        if (c->fill == FILL_EDGE && (z >> 16 & 63) == 0)
            value = z >> 22 & 1 ? 0.0f : ridge_float(0x7fc00000u);
        if (c->fill == FILL_SPECIAL && (z >> 16 & 31) == 0)
            value = z >> 21 & 1 ? INFINITY : ridge_float(0x7fc00000u);
        memcpy(to, &value, 4);
    }
}

void gemm_fill_scales(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_operand *operand = &im->call.arg[arg];
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    rows = im->periodic && rows > IMAGE_PERIOD ? IMAGE_PERIOD : rows;
    for (int64_t r = 0; r < rows; r++)
        fill_row(c,
                 im->host + im->offset[arg] + r * (operand->stride ? operand->stride : cols) * (int64_t)sizeof(float),
                 cols, seed + (uint64_t)(arg * 1000003 + r) * 77);
}

static bool fill_scales(const test_case *c, const image *im, int arg, uint64_t seed)
{
    if (arg != RIDGE_GEMM_FP8_SCALE_A && arg != RIDGE_GEMM_FP8_SCALE_B)
        return false;
    gemm_fill_scales(c, im, arg, seed);
    return true;
}

static int bad_calls(const ridge_call *good, bad_call *list)
{
    list[0] = (bad_call){*good, "a pair of scalings that is not legal", "scalings of a and b"};
    list[0].call.flags = RIDGE_SCALE_ROW | RIDGE_SCALE_B_BLK128;
    list[1] = (bad_call){*good, "e5m2 times e5m2", "e5m2"};
    list[1].call.arg[RIDGE_GEMM_FP8_A].dtype = list[1].call.arg[RIDGE_GEMM_FP8_B].dtype = RIDGE_E5M2;
    list[2] = (bad_call){*good, "accumulation into f16", "operand d"};
    list[2].call.flags |= RIDGE_ACCUMULATE;
    list[2].call.arg[RIDGE_GEMM_FP8_D].dtype = RIDGE_F16;
    list[3] = (bad_call){*good, "bias of a third dtype", "operand bias"};
    ridge_set(&list[3].call, RIDGE_GEMM_FP8_BIAS, RIDGE_F16, good->arg[RIDGE_GEMM_FP8_D].data, 0);
    list[4] = (bad_call){*good, "m of 2^31", "m, n and k"};
    list[4].call.dim[0] = INT64_C(1) << 31;
    return 5;
}

/* Ragged, with padded rows: a column too many lands in the padding. */
static const char *const fault_problems[] = {
    "gemm_fp8 m=41 n=136 k=300 d=f32 scales=row128_row128 bias=1 accumulate=1",
    "gemm_fp8 m=41 n=136 k=304 d=f32 scales=row128_blk128 bias=1 accumulate=1 pad=16",
    "gemm_fp8 m=70 n=648 k=304 d=f32 scales=row128_row128 bias=1 accumulate=1 pad=16",
    "gemm_fp8 m=70 n=648 k=304 d=f32 scales=row128_blk128 bias=1 accumulate=1 pad=16",
    "gemm_fp8 m=70 n=648 k=304 d=bf16 scales=row128_row128 bias=bf16 accumulate=1 pad=16",
    NULL,
};

const check_family check_gemm_fp8 = {
    .family = &ridge_family_gemm_fp8,
    .cases = cases_gemm,
    .oracle = oracle_gemm,
    .fill = fill_scales,
    .exact_sums = true,
    .periodic = UINT64_C(1) << RIDGE_GEMM_FP8,
    .suites = suites,
    .suite = suite,
    .suite_lines = LINES,
    .has_bits = oracle_gemm_has_bits,
    .bits = oracle_gemm_bits,
    .bad_calls = bad_calls,
    .fault_problems = fault_problems,
    .faults = gemm_faults,
};
