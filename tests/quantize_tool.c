/* quantize_tool.c: models for tests/quantize.sh, and the check of what `ridge quantize` made of them.
 *     quantize_tool make FORMAT TYPE FILE [PART PARTS]   a small model, its weights of TYPE; part of a sharded one
 *     quantize_tool sparse FILE MEGABYTES                one large BF16 weight of zeros that takes no space
 *     quantize_tool check IN OUT                         every tensor of OUT is, bit for bit, what the C reference rows
 *                                                        and ridge_dequantize make of IN's */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/num.h"
#include "ridge_io.h"

static void die(const char *what, const char *why)
{
    fprintf(stderr, "quantize_tool: %s: %s\n", what, why);
    exit(1);
}

static void *allocate(int64_t bytes)
{
    void *memory = aligned_alloc(256, ((size_t)bytes + 256) / 256 * 256);

    if (!memory)
        die("memory", "none");
    return memory;
}

/* ------------------------------------------------------------------------------------------------------------- make */

typedef struct entry {
    const char *hf, *gguf;
    int32_t rank;
    int64_t shape[3];
    uint32_t type; /* NONE: the one asked for */
} entry;

/* Ragged in 128 and 32, one K that fits nothing, a router, 3-D experts, integers. */
static const entry model[] = {
    {"model.embed_tokens.weight", "token_embd.weight", 2, {300, 192}, RIDGE_TYPE_NONE},
    {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", 1, {192}, RIDGE_TYPE_F32},
    {"model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", 2, {192, 192}, RIDGE_TYPE_NONE},
    {"model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias", 1, {192}, RIDGE_TYPE_F16},
    {"model.layers.0.mlp.gate.weight", "blk.0.ffn_gate_inp.weight", 2, {8, 192}, RIDGE_TYPE_F32},
    {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", 2, {400, 192}, RIDGE_TYPE_NONE},
    {"model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight", 2, {400, 192}, RIDGE_TYPE_NONE},
    {"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight", 2, {192, 400}, RIDGE_TYPE_NONE},
    {"model.layers.0.experts.weight", "blk.0.ffn_up_exps.weight", 3, {3, 40, 64}, RIDGE_TYPE_NONE},
    {"model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", 2, {48, 512}, RIDGE_TYPE_NONE},
    {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight", 2, {48, 512}, RIDGE_TYPE_NONE},
    {"model.odd.weight", "odd.weight", 2, {10, 50}, RIDGE_TYPE_NONE},
    {"model.counter", "counter", 1, {3}, RIDGE_TYPE_I64},
    {"model.norm.weight", "output_norm.weight", 1, {192}, RIDGE_TYPE_BF16},
    {"lm_head.weight", "output.weight", 2, {5500, 192}, RIDGE_TYPE_NONE}, /* large enough for bench to verify parts */
};

enum { ENTRIES = (int)(sizeof model / sizeof model[0]) };

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Between -1 and 1 times a power of two that changes along the tensor. */
static float value(uint32_t *state, int64_t i)
{
    float scale = ridge_float((uint32_t)(120 + i / 1000 % 9) << 23);

    return ((float)next(state) * 0x1p-23f - 1.0f) * scale;
}

static uint32_t type_named(const char *name)
{
    for (uint32_t type = 1; type < RIDGE_TYPES; type++)
        if (strcmp(ridge_type_query(type)->name, name) == 0)
            return type;
    die(name, "no such type");
    return 0;
}

static void fill(uint32_t type, int64_t elements, unsigned char *to, uint32_t *state)
{
    for (int64_t i = 0; i < elements; i++) {
        float v = value(state, i);
        uint16_t half = type == RIDGE_TYPE_BF16 ? ridge_bf16_from_f32(v) : ridge_f16_from_f32(v);
        int64_t whole = i;

        if (type == RIDGE_TYPE_F32)
            memcpy(to + 4 * i, &v, 4);
        else if (type == RIDGE_TYPE_BF16 || type == RIDGE_TYPE_F16)
            memcpy(to + 2 * i, &half, 2);
        else if (type == RIDGE_TYPE_I64)
            memcpy(to + 8 * i, &whole, 8);
    }
    if (type == RIDGE_TYPE_MXFP4) /* e, 32 nibbles */
        for (int64_t block = 0; block < elements / 32; block++, to += 17) {
            to[0] = (unsigned char)(118 + next(state) % 5);
            for (int i = 1; i < 17; i++)
                to[i] = (unsigned char)next(state);
        }
    if (type == RIDGE_TYPE_Q4_1) /* d, m, 32 nibbles */
        for (int64_t block = 0; block < elements / 32; block++, to += 20) {
            uint16_t d = ridge_f16_from_f32(value(state, block * 32)), m = ridge_f16_from_f32(value(state, block));

            memcpy(to, &d, 2);
            memcpy(to + 2, &m, 2);
            for (int i = 4; i < 20; i++)
                to[i] = (unsigned char)next(state);
        }
}

static void make(const char *format, const char *type_name, const char *path, int part, int parts)
{
    bool gguf = strcmp(format, "gguf") == 0;
    uint32_t type = type_named(type_name), state = 1;
    ridge_writer *w;
    int64_t index[ENTRIES];

    if (ridge_writer_open(path, gguf ? RIDGE_GGUF : RIDGE_SAFETENSORS, &w) != RIDGE_OK)
        die(path, ridge_io_error());
    ridge_writer_meta_string(w, gguf ? "general.architecture" : "made_by", gguf ? "llama" : "a test");
    if (gguf) {
        ridge_writer_meta_string(w, "general.name", "small");
        ridge_writer_meta_u32(w, "llama.block_count", 1);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < ENTRIES; i++) {
            const entry *e = &model[i];
            uint32_t t = e->type ? e->type : type;
            int64_t elements = 1;

            for (int32_t k = 0; k < e->rank; k++)
                elements *= e->shape[k];
            if (e->shape[e->rank - 1] % ridge_type_query(t)->block)
                t = RIDGE_TYPE_F16;
            if (i % parts != part)
                continue;
            if (pass == 0) {
                if (ridge_writer_tensor(w, gguf ? e->gguf : e->hf, t, e->rank, e->shape, &index[i]) != RIDGE_OK)
                    die(path, ridge_io_error());
            } else {
                int64_t bytes = elements / ridge_type_query(t)->block * ridge_type_query(t)->bytes;
                unsigned char *data = allocate(bytes);

                fill(t, elements, data, &state);
                if (ridge_writer_write(w, index[i], 0, data, bytes) != RIDGE_OK)
                    die(path, ridge_io_error());
                free(data);
            }
        }
        if (pass == 0 && ridge_writer_begin(w) != RIDGE_OK)
            die(path, ridge_io_error());
    }
    if (ridge_writer_finish(w) != RIDGE_OK)
        die(path, ridge_io_error());
}

static void sparse(const char *path, long megabytes)
{
    char header[256] = {0};
    long bytes = megabytes << 20, length;
    FILE *to = fopen(path, "wb");

    if (!to)
        die(path, "cannot be written");
    length = snprintf(header + 8, sizeof header - 8,
                      "{\"big.weight\":{\"dtype\":\"BF16\",\"shape\":[%ld,4096],\"data_offsets\":[0,%ld]}}",
                      bytes / 8192, bytes);
    memcpy(header, &length, sizeof length);
    if (fwrite(header, 1, (size_t)length + 8, to) != (size_t)length + 8 || fflush(to) ||
        ftruncate(fileno(to), length + 8 + bytes) || fclose(to))
        die(path, "cannot be written");
}

/* ------------------------------------------------------------------------------------------------------------ check */

static void *load(const ridge_file *file, const ridge_entry *t)
{
    void *memory = allocate(t->bytes);

    if (ridge_file_read(file, t, 0, memory, t->bytes) != RIDGE_OK)
        die(t->name, ridge_io_error());
    return memory;
}

static void same(const char *name, const void *a, const void *b, int64_t bytes)
{
    if (memcmp(a, b, (size_t)bytes) != 0)
        die(name, "differs from the reference");
}

/* The scales of an FP8 tensor; *block: one for each 128 x 128, else one a row. */
static const ridge_entry *scales_of(const ridge_file *file, const char *weight, bool *block)
{
    char name[256];
    const ridge_entry *scale;

    snprintf(name, sizeof name, "%s_scale_inv", weight);
    scale = ridge_file_find(file, name);
    *block = scale != NULL;
    snprintf(name, sizeof name, "%s_scale", weight);
    return scale ? scale : ridge_file_find(file, name);
}

/* Blocks of 32 x 32, each as a tensor of its own with a scale that is a power of two. */
static void check_block32(const ridge_device *cpu, const ridge_entry *scale, const ridge_entry *in, const float *floats,
                          const unsigned char *codes, const unsigned char *got)
{
    const int64_t rows = in->shape[in->rank - 2], cols = in->shape[in->rank - 1], size = rows * cols;
    const int64_t down = (rows + 31) / 32, across = (cols + 31) / 32;

    if (scale->rank != in->rank || scale->shape[in->rank - 2] != down || scale->shape[in->rank - 1] != across)
        die(in->name, "has no scales of the right shape");
    for (int64_t b = 0; b < in->elements / size * down * across; b++) {
        const int64_t row = b / across % down * 32, col = b % across * 32;
        const int64_t at = b / (down * across) * size + row * cols + col;
        const int64_t tall = rows - row < 32 ? rows - row : 32, wide = cols - col < 32 ? cols - col : 32;
        ridge_tensor x = ridge_matrix(floats + at, RIDGE_F32);
        unsigned char q[32 * 32];
        ridge_call call;
        float s = 0;

        x.stride = cols;
        call = ridge_quantize_fp8(tall, wide, x, ridge_scaled(q, RIDGE_E4M3, &s, RIDGE_SCALING_TENSOR));
        call.flags |= RIDGE_POW2;
        if (ridge_run(cpu, &call, NULL, 0, NULL) != RIDGE_OK)
            die(in->name, ridge_error());
        if (s != ridge_float((uint32_t)got[b] << 23))
            die(scale->name, "differs from the reference");
        for (int64_t i = 0; i < tall; i++)
            same(in->name, q + i * wide, codes + at + i * cols, wide);
    }
}

/* Matrix by matrix: 2-D tensors, and 3-D ones of experts. */
static void check_fp8(const ridge_device *cpu, const ridge_file *out, const ridge_entry *in, const float *floats,
                      const unsigned char *codes)
{
    bool block;
    const ridge_entry *scale = scales_of(out, in->name, &block);
    const int64_t rows = in->shape[in->rank - 2], cols = in->shape[in->rank - 1], size = rows * cols;
    const int64_t down = block ? (rows + 127) / 128 : rows, across = block ? (cols + 127) / 128 : 1;
    unsigned char *q = allocate(size);
    float *s = allocate(4 * down * across), *got;

    if (scale && scale->type == RIDGE_TYPE_F8_E8M0) {
        got = load(out, scale);
        check_block32(cpu, scale, in, floats, codes, (const unsigned char *)got);
        free(q);
        free(s);
        free(got);
        return;
    }
    if (!scale || scale->type != RIDGE_TYPE_F32 || scale->rank != in->rank || scale->shape[in->rank - 2] != down ||
        scale->shape[in->rank - 1] != across || (in->rank == 3 && scale->shape[0] != in->shape[0]))
        die(in->name, "has no scales of the right shape");
    got = load(out, scale);
    for (int64_t i = 0; i < in->elements / size; i++) {
        ridge_call call =
            ridge_quantize_fp8(rows, cols, ridge_matrix(floats + i * size, RIDGE_F32),
                               ridge_scaled(q, RIDGE_E4M3, s, block ? RIDGE_SCALING_BLK128 : RIDGE_SCALING_ROW));

        call.flags |= block && in->type == RIDGE_TYPE_MXFP4 ? RIDGE_POW2 : 0;
        if (ridge_run(cpu, &call, NULL, 0, NULL) != RIDGE_OK)
            die(in->name, ridge_error());
        same(in->name, q, codes + i * size, size);
        same(scale->name, s, got + i * down * across, 4 * down * across);
    }
    free(q);
    free(s);
    free(got);
}

/* FP8 in: code * scale in f32. */
static void apply_scales(const ridge_file *in, const ridge_entry *t, float *floats)
{
    bool block;
    const ridge_entry *scale = scales_of(in, t->name, &block);
    const bool e8m0 = scale && scale->type == RIDGE_TYPE_F8_E8M0;
    const int64_t side = e8m0 ? 32 : 128;
    const int64_t rows = t->shape[t->rank - 2], cols = t->shape[t->rank - 1], across = (cols + side - 1) / side;
    float *s;

    if (!scale)
        die(t->name, "is FP8 without scales");
    s = load(in, scale);
    if (e8m0) {
        unsigned char *exponents = (unsigned char *)s;

        s = allocate(4 * scale->elements);
        for (int64_t i = 0; i < scale->elements; i++)
            s[i] = ridge_float((uint32_t)exponents[i] << 23);
        free(exponents);
    }
    for (int64_t i = 0; i < t->elements; i++) {
        const int64_t matrix = i / (rows * cols), row = i / cols % rows, col = i % cols;

        floats[i] *= block ? s[(matrix * ((rows + side - 1) / side) + row / side) * across + col / side]
                           : s[matrix * rows + row];
    }
    free(s);
}

/* bf16 and f16 are exact in f32, so that the reference may work on f32 whatever the tool took. */
static void check_tensor(const ridge_device *cpu, const ridge_file *from, const ridge_file *out, const ridge_entry *in,
                         const ridge_entry *t, const void *raw, const void *got)
{
    float *floats = allocate(4 * in->elements);
    unsigned char *wanted = allocate(4 * in->elements);

    if (ridge_dequantize(in->type, raw, in->elements, floats) != RIDGE_OK)
        die(in->name, ridge_io_error());
    if (in->type == RIDGE_TYPE_F8_E4M3)
        apply_scales(from, in, floats);
    for (int64_t i = 0; i < in->elements; i++) {
        uint16_t half = t->type == RIDGE_TYPE_BF16 ? ridge_bf16_from_f32(floats[i]) : ridge_f16_from_f32(floats[i]);

        memcpy(wanted + 2 * i, &half, 2);
    }
    if (t->type == RIDGE_TYPE_F8_E4M3) {
        check_fp8(cpu, out, in, floats, got);
    } else if (t->type == RIDGE_TYPE_Q8_0) {
        int64_t cols = in->shape[in->rank - 1];
        ridge_call call = ridge_q8_0_quantize(in->elements / cols, cols, ridge_matrix(floats, RIDGE_F32), wanted);

        if (ridge_run(cpu, &call, NULL, 0, NULL) != RIDGE_OK)
            die(in->name, ridge_error());
        same(in->name, wanted, got, t->bytes);
    } else if (ridge_type_query(t->type)->block > 1) {
        if (ridge_quantize(t->type, floats, in->elements, wanted) != RIDGE_OK)
            die(in->name, ridge_io_error());
        same(in->name, wanted, got, t->bytes);
    } else {
        same(in->name, t->type == RIDGE_TYPE_F32 ? (void *)floats : (void *)wanted, got, t->bytes);
    }
    free(floats);
    free(wanted);
}

static bool is_scale_of_fp8(const ridge_file *file, const char *name)
{
    const char *end = strstr(name, "_scale");
    char weight[256];
    const ridge_entry *t;

    snprintf(weight, sizeof weight, "%.*s", end ? (int)(end - name) : 0, name);
    t = ridge_file_find(file, weight);
    return t && t->type == RIDGE_TYPE_F8_E4M3;
}

static void check(const char *in_path, const char *out_path)
{
    ridge_file *in, *out;
    ridge_device *cpu;
    int64_t scales = 0, applied = 0, converted = 0;

    if (ridge_file_open(in_path, &in) != RIDGE_OK || ridge_file_open(out_path, &out) != RIDGE_OK)
        die("open", ridge_io_error());
    if (ridge_open("cpu:c", &cpu) != RIDGE_OK)
        die("device", ridge_error());
    for (int64_t i = 0; i < ridge_file_tensors(in); i++) {
        const ridge_entry *t = ridge_file_tensor(in, i), *o = ridge_file_find(out, t->name);
        void *raw, *got;

        if (!o && is_scale_of_fp8(in, t->name)) {
            applied++;
            continue;
        }
        raw = load(in, t);
        if (!o || o->rank != t->rank || memcmp(o->shape, t->shape, sizeof o->shape) != 0)
            die(t->name, "is not there, or of another shape");
        got = load(out, o);
        if (o->type == t->type)
            same(t->name, raw, got, t->bytes);
        else
            check_tensor(cpu, in, out, t, o, raw, got);
        converted += o->type != t->type;
        scales += o->type == RIDGE_TYPE_F8_E4M3 && t->type != o->type;
        free(raw);
        free(got);
    }
    if (ridge_file_tensors(out) != ridge_file_tensors(in) + scales - applied)
        die(out_path, "has tensors too many");
    printf("converted %d of %d\n", (int)converted, (int)ridge_file_tensors(in));
    ridge_close(cpu);
    ridge_file_close(in);
    ridge_file_close(out);
}

int main(int count, char **words)
{
    if ((count == 5 || count == 7) && strcmp(words[1], "make") == 0)
        make(words[2], words[3], words[4], count == 7 ? atoi(words[5]) : 0, count == 7 ? atoi(words[6]) : 1);
    else if (count == 4 && strcmp(words[1], "sparse") == 0)
        sparse(words[2], atol(words[3]));
    else if (count == 4 && strcmp(words[1], "check") == 0)
        check(words[2], words[3]);
    else
        return 2;
    return fflush(stdout) != 0;
}
