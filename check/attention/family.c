/* family.c: the cases and inputs of kv_append, attention_decode, attention_prefill and kv_append_attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"

extern const ridge_family ridge_family_attention;

/* The word variant=: the queries are the last tokens of the cache, as when a text is written. */
enum { LAST_TOKENS = 1 };

typedef struct attention_shape {
    const char *shape;
    test_case layout;
} attention_shape;

static int64_t head_dim(const char *shape)
{
    return atoll(strstr(shape, "head_dim=") + 9);
}

/* Every shape with every form; quick: each form with a third of the shapes. */
static void add_forms(const ridge_op_row *op, case_level level, case_list *list, const attention_shape *shape,
                      size_t shapes, const char *const *form, size_t forms)
{
    char text[256];

    for (size_t i = 0; i < shapes; i++)
        for (size_t f = 0; f < forms; f++) {
            if ((level == CASES_QUICK && (i + f) % 3) || (strstr(form[f], "kv=u8") && head_dim(shape[i].shape) % 32))
                continue;
            snprintf(text, sizeof text, "%s %s", shape[i].shape, form[f]);
            cases_add(list, op, text, shape[i].layout);
        }
}

static void append_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const attention_shape shape[] = {
        {"tokens=0 heads=4 kv_heads=2 head_dim=64 positions=8", {.fill = FILL_NORMAL}},
        {"tokens=2 heads=0 kv_heads=0 head_dim=64 positions=8", {.fill = FILL_NORMAL}},
        {"tokens=1 heads=2 kv_heads=2 head_dim=64 positions=0", {.fill = FILL_NORMAL}},
        {"tokens=1 heads=9 kv_heads=3 head_dim=64 positions=40", {.fill = FILL_NORMAL}},
        {"tokens=5 heads=4 kv_heads=2 head_dim=128 positions=33", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=3 heads=4 kv_heads=1 head_dim=256 positions=20", {.fill = FILL_EDGE, .pad = 8}},
        {"tokens=16 heads=6 kv_heads=2 head_dim=80 positions=64", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=2 heads=3 kv_heads=1 head_dim=512 positions=9", {.fill = FILL_GROUPS, .pad = 3, .shift = 1}},
        {"tokens=70 heads=8 kv_heads=4 head_dim=128 positions=90", {.fill = FILL_NORMAL, .repeats = 20}},
        {"tokens=3 heads=1 kv_heads=1 head_dim=16 positions=5", {.fill = FILL_EDGE}},
    };
    static const char *const forms[] = {
        "qkv=f32 out=f32 kv=f16",
        "qkv=f32 out=f32 kv=bf16 halves=1 q_norm=1 k_norm=1",
        "qkv=bf16 out=f32 kv=f16 bias=1 halves=1",
        "qkv=f32 out=bf16 kv=bf16 bias=1 k_norm=1 mscale=1.25 eps=0.001",
        "qkv=bf16 out=bf16 kv=f16 n_rot=16 q_norm=1",
        "qkv=f32 out=f32 kv=f16 n_rot=8 halves=1 bias=1 q_norm=1 k_norm=1",
        "qkv=f32 out=f32 kv=u8 bias=1",
        "qkv=bf16 out=bf16 kv=u8 halves=1 k_norm=1",
        "qkv=f32 out=f32 kv=u8 n_rot=8 mscale=1.25",
    };
    add_forms(op, level, list, shape, sizeof shape / sizeof shape[0], forms, sizeof forms / sizeof forms[0]);
}

static const char *const attention_forms[] = {
    "q=f32 kv=f16 out=f32 scale=0.125",
    "q=f32 kv=bf16 out=f32 scale=0.0625 window=65",
    "q=bf16 kv=f16 out=bf16 scale=0.2 sinks=1",
    "q=f32 kv=f16 out=f32 scale=0.125 softcap=3 window=200",
    "q=bf16 kv=bf16 out=f32 scale=0.1 sinks=1 window=1",
    "q=f32 kv=bf16 out=bf16 scale=-0.05 softcap=30",
    "q=f32 kv=u8 out=f32 scale=0.125",
    "q=bf16 kv=u8 out=bf16 scale=0.0625 window=65 sinks=1",
    "q=f32 kv=u8 out=f32 scale=0.1 softcap=30",
};
/* Those of attention_prefill, whose cache is of floats, and all. */
enum { FLOAT_FORMS = 6, ATTENTION_FORMS = sizeof attention_forms / sizeof attention_forms[0] };

static void decode_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const attention_shape shape[] = {
        {"tokens=0 heads=4 kv_heads=2 head_dim=64 positions=8", {.fill = FILL_UNIT}},
        {"tokens=2 heads=4 kv_heads=2 head_dim=64 positions=0", {.fill = FILL_UNIT}},
        {"tokens=1 heads=9 kv_heads=3 head_dim=64 positions=1", {.fill = FILL_UNIT}},
        {"tokens=1 heads=9 kv_heads=3 head_dim=64 positions=517", {.fill = FILL_UNIT}},
        {"tokens=5 heads=8 kv_heads=2 head_dim=128 positions=300", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=16 heads=4 kv_heads=4 head_dim=80 positions=129", {.fill = FILL_UNIT, .slices = true, .pad = 8}},
        {"tokens=3 heads=8 kv_heads=1 head_dim=256 positions=128", {.fill = FILL_NORMAL}},
        {"tokens=7 heads=12 kv_heads=2 head_dim=48 positions=260", {.fill = FILL_UNIT, .pad = 3, .shift = 1}},
        {"tokens=2 heads=3 kv_heads=1 head_dim=512 positions=140", {.fill = FILL_UNIT}},
        {"tokens=4 heads=4 kv_heads=2 head_dim=64 positions=200", {.fill = FILL_EDGE}},
        {"tokens=4 heads=6 kv_heads=2 head_dim=32 positions=97", {.fill = FILL_GROUPS}},
        {"tokens=2 heads=4 kv_heads=2 head_dim=128 positions=300", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=1 heads=4 kv_heads=2 head_dim=64 positions=200", {.fill = FILL_EDGE}},
        /* for a GPU's many SMs; a CPU takes seconds, and positions=1030 has 9 pieces for it */
        {"tokens=16 heads=16 kv_heads=4 head_dim=128 positions=1500", {.fill = FILL_UNIT, .repeats = 20, .gpu = true}},
        {"tokens=33 heads=6 kv_heads=2 head_dim=16 positions=400", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=6 heads=8 kv_heads=1 head_dim=128 positions=1024", {.fill = FILL_UNIT, .variant = LAST_TOKENS}},
        {"tokens=9 heads=8 kv_heads=2 head_dim=64 positions=1030", {.fill = FILL_UNIT, .repeats = 20}},
        {"tokens=5 heads=6 kv_heads=2 head_dim=256 positions=700", {.fill = FILL_UNIT, .variant = LAST_TOKENS}},
    };
    add_forms(op, level, list, shape, sizeof shape / sizeof shape[0], attention_forms, ATTENTION_FORMS);
}

static void prefill_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const attention_shape shape[] = {
        {"tokens=0 heads=4 kv_heads=2 head_dim=64 positions=8", {.fill = FILL_UNIT}},
        {"tokens=2 heads=4 kv_heads=2 head_dim=64 positions=0", {.fill = FILL_UNIT}},
        {"tokens=17 heads=9 kv_heads=3 head_dim=64 positions=17", {.fill = FILL_UNIT, .variant = LAST_TOKENS}},
        {"tokens=70 heads=4 kv_heads=1 head_dim=128 positions=300",
         {.fill = FILL_UNIT, .variant = LAST_TOKENS, .slices = true}},
        {"tokens=150 heads=3 kv_heads=3 head_dim=64 positions=150", {.fill = FILL_UNIT, .variant = LAST_TOKENS}},
        {"tokens=40 heads=6 kv_heads=2 head_dim=128 positions=200", {.fill = FILL_NORMAL, .slices = true, .pad = 8}},
        {"tokens=33 heads=4 kv_heads=2 head_dim=256 positions=130", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=20 heads=2 kv_heads=1 head_dim=80 positions=70", {.fill = FILL_UNIT, .variant = LAST_TOKENS}},
        {"tokens=24 heads=5 kv_heads=1 head_dim=96 positions=100", {.fill = FILL_UNIT}},
        {"tokens=5 heads=20 kv_heads=1 head_dim=48 positions=90", {.fill = FILL_UNIT, .pad = 3, .shift = 1}},
        {"tokens=20 heads=4 kv_heads=2 head_dim=64 positions=140", {.fill = FILL_EDGE}},
        {"tokens=20 heads=6 kv_heads=2 head_dim=128 positions=97", {.fill = FILL_GROUPS, .slices = true}},
        /* for a GPU's many SMs; the last shape has as many pieces for a CPU */
        {"tokens=100 heads=8 kv_heads=2 head_dim=128 positions=700",
         {.fill = FILL_UNIT, .variant = LAST_TOKENS, .repeats = 20, .gpu = true}},
        {"tokens=3 heads=2 kv_heads=1 head_dim=512 positions=140", {.fill = FILL_UNIT}},
        {"tokens=36 heads=2 kv_heads=1 head_dim=128 positions=700",
         {.fill = FILL_UNIT, .variant = LAST_TOKENS, .repeats = 20}},
    };

    add_forms(op, level, list, shape, sizeof shape / sizeof shape[0], attention_forms, FLOAT_FORMS);
}

static void both_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const attention_shape shape[] = {
        {"tokens=0 heads=4 kv_heads=2 head_dim=64 positions=8", {.fill = FILL_UNIT}},
        {"tokens=1 heads=0 kv_heads=0 head_dim=64 positions=8", {.fill = FILL_UNIT}},
        {"tokens=1 heads=4 kv_heads=2 head_dim=64 positions=0", {.fill = FILL_UNIT}},
        {"tokens=1 heads=9 kv_heads=3 head_dim=64 positions=1", {.fill = FILL_UNIT}},
        {"tokens=1 heads=9 kv_heads=3 head_dim=64 positions=517", {.fill = FILL_UNIT, .variant = LAST_TOKENS}},
        {"tokens=1 heads=8 kv_heads=2 head_dim=128 positions=300", {.fill = FILL_UNIT, .repeats = 20, .slices = true}},
        {"tokens=3 heads=8 kv_heads=2 head_dim=128 positions=300", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=1 heads=14 kv_heads=1 head_dim=128 positions=1024", {.fill = FILL_UNIT, .pad = 8, .slices = true}},
        {"tokens=1 heads=4 kv_heads=4 head_dim=80 positions=129", {.fill = FILL_UNIT, .pad = 8}},
        {"tokens=1 heads=6 kv_heads=2 head_dim=256 positions=700", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=1 heads=15 kv_heads=1 head_dim=64 positions=140", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=1 heads=12 kv_heads=2 head_dim=48 positions=260", {.fill = FILL_UNIT, .pad = 3, .shift = 1}},
        {"tokens=1 heads=3 kv_heads=1 head_dim=512 positions=140", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=1 heads=4 kv_heads=2 head_dim=64 positions=200", {.fill = FILL_EDGE}},
        {"tokens=1 heads=6 kv_heads=2 head_dim=128 positions=97", {.fill = FILL_GROUPS}},
        {"tokens=1 heads=16 kv_heads=4 head_dim=128 positions=1500",
         {.fill = FILL_UNIT, .repeats = 20, .variant = LAST_TOKENS}},
        {"tokens=1 heads=4 kv_heads=2 head_dim=64 positions=1030", {.fill = FILL_NORMAL, .slices = true}},
    };
    static const char *const forms[] = {
        "qkv=f32 kv=f16 out=f32 scale=0.125",
        "qkv=f32 kv=bf16 out=f32 scale=0.0625 window=65 halves=1 q_norm=1 k_norm=1",
        "qkv=bf16 kv=f16 out=bf16 scale=0.2 sinks=1 bias=1 halves=1",
        "qkv=f32 kv=f16 out=f32 scale=0.125 softcap=3 window=200 bias=1 k_norm=1 mscale=1.25 eps=0.001",
        "qkv=bf16 kv=bf16 out=f32 scale=0.1 sinks=1 window=1 n_rot=16 q_norm=1",
        "qkv=f32 kv=bf16 out=bf16 scale=-0.05 softcap=30 n_rot=8 halves=1 bias=1 q_norm=1 k_norm=1",
        "qkv=f32 kv=u8 out=f32 scale=0.125 halves=1 q_norm=1 k_norm=1",
        "qkv=bf16 kv=u8 out=bf16 scale=0.0625 window=65 sinks=1 bias=1",
        "qkv=f32 kv=u8 out=f32 scale=0.1 softcap=30 n_rot=8 mscale=1.25",
    };

    add_forms(op, level, list, shape, sizeof shape / sizeof shape[0], forms, sizeof forms / sizeof forms[0]);
}

static void attention_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    (op->id == RIDGE_KV_APPEND             ? append_cases
     : op->id == RIDGE_ATTENTION_DECODE    ? decode_cases
     : op->id == RIDGE_KV_APPEND_ATTENTION ? both_cases
                                           : prefill_cases)(op, level, list);
}

/* kv_append, with attention or without: one after the other, the first or the last now and then outside the cache. The
 * others: any, most in the upper half, some before the first position and beyond the last. Or the last tokens of the
 * cache. */
static void fill_positions(const test_case *c, const image *im, unsigned char *to, uint64_t state)
{
    const int64_t tokens = im->call.dim[0], positions = im->call.dim[4];
    const uint64_t room = positions > tokens ? (uint64_t)(positions - tokens) : 0;
    int64_t first = (int64_t)(random_next(&state) % (room + 3)) - 1;

    for (int64_t t = 0; t < tokens; t++) {
        const uint64_t z = random_next(&state);
        int32_t pos = (int32_t)(first + t);

        if (im->call.op == RIDGE_ATTENTION_DECODE || im->call.op == RIDGE_ATTENTION_PREFILL) {
            pos = (int32_t)(positions ? (int64_t)(z >> 8) % positions : 0);
            if (z % 4)
                pos = (int32_t)(positions - 1 - pos / 2);
            if (z % 16 == 1)
                pos = z & 16 ? (int32_t)positions + 5 : -3;
        }
        if (c->variant == LAST_TOKENS)
            pos = (int32_t)(positions - tokens + t);
        memcpy(to + 4 * t, &pos, 4);
    }
}

/* Blocks of Q8_0: scales around 2^-6, random codes; fill=edge: random bytes. */
static void fill_blocks(const test_case *c, unsigned char *row, int64_t bytes, uint64_t *state)
{
    for (int64_t i = 0; i < bytes; i++) {
        const uint64_t z = random_next(state);
        const float d = (float)(z >> 40) * 0x1p-30f;

        if (i % 34 == 0 && i + 1 < bytes && c->fill != FILL_EDGE) {
            dtype_store(row + i, RIDGE_F16, d);
            i++;
        } else {
            row[i] = (unsigned char)(z >> 32);
        }
    }
}

static bool attention_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    unsigned char *base = im->host + im->offset[arg];
    int64_t rows, cols;

    op->extent(&im->call, arg, &rows, &cols);
    if (strcmp(op->arg[arg].name, "pos") == 0)
        fill_positions(c, im, base, seed + (uint64_t)arg);
    else if (strcmp(op->arg[arg].name, "freqs") == 0)
        for (int64_t i = 0; i < cols; i++) {
            const double f = pow(10000.0, -(double)i / (double)cols);

            memcpy(base + 8 * i, &f, 8);
        }
    else if (im->call.arg[arg].dtype == RIDGE_U8)
        for (int64_t r = 0; r < rows; r++) {
            uint64_t state = seed + (uint64_t)(arg + r * 64);

            fill_blocks(c, base + r * (im->call.arg[arg].stride ? im->call.arg[arg].stride : cols), cols, &state);
        }
    else
        return false;
    return true;
}

static bool attention_steady(const ridge_call *call, int arg)
{
    return call->op == RIDGE_KV_APPEND_ATTENTION && arg == RIDGE_KV_APPEND_ATTENTION_POS;
}

static int attention_bad_calls(const ridge_call *good, bad_call *list)
{
    int count = 0;

    list[count] = (bad_call){*good, "heads in no whole groups", "kv_heads"};
    list[count++].call.dim[1] = 3;
    list[count] = (bad_call){*good, "more positions than an i32 counts", "positions"};
    list[count].call.dim[4] = INT64_C(1) << 31;
    for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++) /* rows that are longer than the call's strides are refused first */
        list[count].call.arg[arg].stride = 0;
    count++;
    if (good->op != RIDGE_ATTENTION_PREFILL) {
        const int k = good->op == RIDGE_ATTENTION_DECODE ? (int)RIDGE_ATTENTION_DECODE_K : (int)RIDGE_KV_APPEND_K;

        list[count] = (bad_call){*good, "half a block a row", "head_dim"};
        list[count].call.dim[3] = 48;
        for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++)
            list[count].call.arg[arg].stride = 0;
        list[count].call.arg[k].dtype = list[count].call.arg[k + 1].dtype = RIDGE_U8;
        count++;
    }
    if (good->op == RIDGE_KV_APPEND || good->op == RIDGE_KV_APPEND_ATTENTION) {
        list[count] = (bad_call){*good, "odd n_rot", "n_rot"};
        list[count++].call.opt.kv_append.n_rot = 3;
        list[count] = (bad_call){*good, "n_rot above head_dim", "n_rot"};
        list[count++].call.opt.kv_append.n_rot = good->dim[3] + 2;
        list[count] = (bad_call){*good, "negative n_rot", "n_rot"};
        list[count++].call.opt.kv_append.n_rot = -2;
        list[count] = (bad_call){*good, "negative eps", "eps"};
        list[count++].call.opt.kv_append.eps = -1e-6f;
    } else {
        list[count] = (bad_call){*good, "negative window", "window"};
        list[count++].call.opt.attention.window = -1;
        list[count] = (bad_call){*good, "negative softcap", "softcap"};
        list[count++].call.opt.attention.softcap = -1.0f;
    }
    if (good->op == RIDGE_KV_APPEND_ATTENTION) {
        list[count] = (bad_call){*good, "negative window", "window"};
        list[count++].call.opt.kv_append_attention.window = -1;
        list[count] = (bad_call){*good, "negative softcap", "softcap"};
        list[count++].call.opt.kv_append_attention.softcap = -1.0f;
    }
    return count;
}

/* Llama-3-8B, Qwen3-0.6B and SmolLM2-135M at three depths. */
static const suite_row suites[] = {
    {"attention", "attention_decode tokens=1 heads=32 kv_heads=8 head_dim=128 positions=512 scale=0.088 variant=1"},
    {"attention", "attention_decode tokens=1 heads=32 kv_heads=8 head_dim=128 positions=4096 scale=0.088 variant=1"},
    {"attention", "attention_decode tokens=1 heads=32 kv_heads=8 head_dim=128 positions=16384 scale=0.088 variant=1"},
    {"attention", "attention_decode tokens=8 heads=32 kv_heads=8 head_dim=128 positions=4096 scale=0.088 variant=1"},
    {"attention", "attention_decode tokens=16 heads=32 kv_heads=8 head_dim=128 positions=512 scale=0.088 variant=1"},
    {"attention", "attention_decode tokens=1 heads=9 kv_heads=3 head_dim=64 positions=512 scale=0.125 variant=1"},
    {"prefill", "attention_prefill tokens=128 heads=32 kv_heads=8 head_dim=128 positions=128 scale=0.088 variant=1"},
    {"prefill", "attention_prefill tokens=512 heads=32 kv_heads=8 head_dim=128 positions=512 scale=0.088 variant=1"},
    {"prefill", "attention_prefill tokens=2048 heads=32 kv_heads=8 head_dim=128 positions=2048 scale=0.088 variant=1"},
    {"prefill", "attention_prefill tokens=4096 heads=32 kv_heads=8 head_dim=128 positions=4096 scale=0.088 variant=1"},
    {"prefill", "attention_prefill tokens=512 heads=32 kv_heads=8 head_dim=128 positions=16384 scale=0.088 variant=1"},
    {"prefill", "attention_prefill tokens=512 heads=9 kv_heads=3 head_dim=64 positions=512 scale=0.125 variant=1"},
    {"attention",
     "attention_decode tokens=1 heads=32 kv_heads=8 head_dim=128 positions=512 scale=0.088 kv=u8 variant=1"},
    {"attention",
     "attention_decode tokens=1 heads=32 kv_heads=8 head_dim=128 positions=16384 scale=0.088 kv=u8 variant=1"},
    {"attention",
     "kv_append_attention tokens=1 heads=32 kv_heads=8 head_dim=128 positions=512 scale=0.088 halves=1 variant=1"},
    {"attention",
     "kv_append_attention tokens=1 heads=16 kv_heads=8 head_dim=128 positions=512 scale=0.088 halves=1 q_norm=1 "
     "k_norm=1 variant=1"},
    {"attention", "kv_append_attention tokens=1 heads=9 kv_heads=3 head_dim=64 positions=512 scale=0.125 variant=1"},
    {"attention", "kv_append tokens=1 heads=32 kv_heads=8 head_dim=128 positions=512"},
    {"attention", "kv_append tokens=16 heads=9 kv_heads=3 head_dim=64 positions=512"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "kv_append tokens=5 heads=9 kv_heads=1 head_dim=64 positions=40",
    "attention_decode tokens=5 heads=9 kv_heads=1 head_dim=64 positions=300 scale=0.125",
    "attention_prefill tokens=20 heads=9 kv_heads=1 head_dim=64 positions=300 scale=0.125",
    "kv_append_attention tokens=5 heads=9 kv_heads=1 head_dim=64 positions=300 scale=0.125",
    "kv_append_attention tokens=1 heads=9 kv_heads=1 head_dim=64 positions=300 scale=0.125",
    "attention_decode tokens=1 heads=4 kv_heads=1 head_dim=64 positions=300 scale=0.125",
    "kv_append_attention tokens=1 heads=4 kv_heads=1 head_dim=64 positions=300 scale=0.125",
    NULL,
};

const check_family check_attention = {
    .family = &ridge_family_attention,
    .cases = attention_cases,
    .oracle = attention_oracle,
    .fill = attention_fill,
    .variants = LAST_TOKENS,
    .steady = attention_steady,
    .bad_calls = attention_bad_calls,
    .suites = suites,
    .fault_problems = fault_problems,
};
