/* lm_model.h: small models with random weights for tests, written with ridge_io: every family, either tokeniser. */
#ifndef RIDGE_TESTS_LM_MODEL_H
#define RIDGE_TESTS_LM_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ridge_io.h"

/* What a test changes of a good file; zeros change nothing. */
typedef struct lm_spoil {
    const char *key;    /* this metadata key ... */
    uint32_t kind;      /* ... gets a value of this kind (RIDGE_META_*), or is left out where it is RIDGE_META_ARRAY */
    double number;      /* its value */
    const char *text;   /* or text */
    const char *tensor; /* this tensor is left out, or, where it is none of the model's, added */
} lm_spoil;

enum { LM_HEADS = 4, LM_KV = 2, LM_MERGES = 40, LM_EXPERTS = 6, LM_USED = 2 };

typedef struct lm_writer {
    ridge_writer *w;
    const lm_spoil *spoil;
    char arch[32], form; /* form: 0: Q8_0 (gpt-oss: and MXFP4); 'k': formats of blocks of 256; '4': of 32 */
    int64_t hidden, ffn, dim, expert_ffn; /* columns; rows of 256 take larger ones */
    char key[128];
    uint64_t state;
    struct {
        char name[64];
        int64_t index, rows, cols; /* of experts: all of their rows */
    } tensor[256];
    int tensors;
} lm_writer;

static inline void lm_must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "lm_model: %s: %s\n", what, ridge_io_error());
    exit(1);
}

/* Uniform in -1 .. 1. */
static inline float lm_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

static inline const char *lm_key(lm_writer *m, const char *key)
{
    snprintf(m->key, sizeof m->key, "%s%s", key[0] == '.' ? m->arch : "", key);
    return m->key;
}

static inline void lm_meta_value(lm_writer *m, const char *key, uint32_t kind, const void *data, int64_t bytes)
{
    const ridge_meta meta = {lm_key(m, key), kind, kind, 1, data, bytes};

    lm_must(ridge_writer_meta(m->w, &meta) == RIDGE_OK, key);
}

static inline bool lm_spoiled(const lm_writer *m, const char *key)
{
    return m->spoil && m->spoil->key && strcmp(m->spoil->key, key) == 0;
}

static inline void lm_u32(lm_writer *m, const char *key, uint32_t value)
{
    if (!lm_spoiled(m, key))
        lm_meta_value(m, key, RIDGE_META_U32, &value, 4);
}

static inline void lm_f32(lm_writer *m, const char *key, float value)
{
    if (!lm_spoiled(m, key))
        lm_meta_value(m, key, RIDGE_META_F32, &value, 4);
}

static inline void lm_text(lm_writer *m, const char *key, const char *value)
{
    if (!lm_spoiled(m, key))
        lm_must(ridge_writer_meta_string(m->w, lm_key(m, key), value) == RIDGE_OK, key);
}

/* The value that a test wants under its key. */
static inline void lm_spoil_key(lm_writer *m)
{
    const lm_spoil *s = m->spoil;
    const float f = s ? (float)s->number : 0;
    const double d = s ? s->number : 0;
    const int64_t whole = s && d > -9e18 && d < 9e18 ? (int64_t)d : 0;

    if (!s || !s->key || s->kind == RIDGE_META_ARRAY)
        return;
    if (s->kind == RIDGE_META_STRING)
        lm_must(ridge_writer_meta_string(m->w, lm_key(m, s->key), s->text) == RIDGE_OK, s->key);
    else if (s->kind == RIDGE_META_F32)
        lm_meta_value(m, s->key, s->kind, &f, 4);
    else if (s->kind == RIDGE_META_F64)
        lm_meta_value(m, s->key, s->kind, &d, 8);
    else
        lm_meta_value(m, s->key, s->kind, &whole, s->kind == RIDGE_META_U64 || s->kind == RIDGE_META_I64 ? 8 : 4);
}

/* ------------------------------------------------------------------------------------------------------- tokeniser */

typedef struct lm_array {
    unsigned char bytes[1 << 16];
    int64_t size, count;
} lm_array;

static inline void lm_add(lm_array *a, const char *text)
{
    const uint64_t length = strlen(text);

    memcpy(a->bytes + a->size, &length, 8);
    memcpy(a->bytes + a->size + 8, text, length);
    a->size += 8 + (int64_t)length;
    a->count++;
}

static inline void lm_add_number(lm_array *a, const void *four)
{
    memcpy(a->bytes + a->size, four, 4);
    a->size += 4;
    a->count++;
}

static inline void lm_meta_list(lm_writer *m, const char *key, uint32_t element, const lm_array *a)
{
    const ridge_meta meta = {key, RIDGE_META_ARRAY, element, a->count, a->bytes, a->size};

    if (!lm_spoiled(m, key))
        lm_must(ridge_writer_meta(m->w, &meta) == RIDGE_OK, key);
}

/* The printable character that stands for a byte. */
static inline void lm_byte_name(unsigned byte, char *to)
{
    unsigned code = byte, other = 0;

    if (!((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae)) {
        for (unsigned b = 0; b < byte; b++)
            other += !((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae);
        code = 0x100 + other;
    }
    if (code < 0x80)
        snprintf(to, 4, "%c", (char)code);
    else
        snprintf(to, 4, "%c%c", (char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f)));
}

static inline void lm_token(lm_array *names, lm_array *types, lm_array *scores, const char *name, int32_t type,
                            float score)
{
    lm_add(names, name);
    lm_add_number(types, &type);
    lm_add_number(scores, &score);
}

/* Bytes, some merges of letters, a token of the user, control tokens. Returns how many. */
static inline int64_t lm_vocabulary(lm_writer *m, bool spm)
{
    static lm_array names, types, scores, merges;
    static const char *const control[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    char name[32];

    names.size = names.count = types.size = types.count = scores.size = scores.count = merges.size = merges.count = 0;
    lm_token(&names, &types, &scores, "<unk>", 2, 0);
    for (int i = 0; i < 5; i++)
        lm_token(&names, &types, &scores, control[i], 3, 0);
    lm_token(&names, &types, &scores, "<user>", 4, -1000);
    for (unsigned b = 0; b < 256; b++) {
        if (spm)
            snprintf(name, sizeof name, "<0x%02X>", b);
        else
            lm_byte_name(b, name);
        lm_token(&names, &types, &scores, name, spm ? 6 : 1, 0);
    }
    for (int i = 0; i < 26 && spm; i++) {
        snprintf(name, sizeof name, "%c", 'a' + i);
        lm_token(&names, &types, &scores, name, 1, -100.0f - (float)i);
    }
    if (spm)
        lm_token(&names, &types, &scores, "\xe2\x96\x81", 1, -99);
    for (int i = 0; i < LM_MERGES; i++) {
        const char a = (char)('a' + i * 7 % 26), b = (char)('a' + i * 11 % 25);
        char pair[8];

        snprintf(name, sizeof name, i % 3 ? "%c%c" : spm ? "\xe2\x96\x81%c%c" : "\xc4\xa0%c%c", a, b);
        snprintf(pair, sizeof pair, "%c %c", a, b);
        if (i % 3) {
            lm_token(&names, &types, &scores, name, 1, -(float)i);
            lm_add(&merges, pair);
        }
    }
    lm_text(m, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    lm_text(m, "tokenizer.ggml.pre", "smollm");
    lm_meta_list(m, "tokenizer.ggml.tokens", RIDGE_META_STRING, &names);
    lm_meta_list(m, "tokenizer.ggml.token_type", RIDGE_META_I32, &types);
    if (spm)
        lm_meta_list(m, "tokenizer.ggml.scores", RIDGE_META_F32, &scores);
    else
        lm_meta_list(m, "tokenizer.ggml.merges", RIDGE_META_STRING, &merges);
    lm_u32(m, "tokenizer.ggml.bos_token_id", 1);
    lm_u32(m, "tokenizer.ggml.eos_token_id", 2);
    lm_u32(m, "tokenizer.ggml.unknown_token_id", 0);
    lm_text(m, "tokenizer.chat_template", "{{ '<|im_start|>' + message['role'] }}");
    return names.count;
}

/* --------------------------------------------------------------------------------------------------------- tensors */

static inline bool lm_is_oss(const lm_writer *m)
{
    return strcmp(m->arch, "gpt-oss") == 0;
}

/* gpt-oss has its experts in MXFP4. Of '4', q, k and v have two formats or three, gate and up two in layer 0, where
 * down is converted. */
static inline uint32_t lm_type_of(const lm_writer *m, const char *name)
{
    const bool first = strncmp(name, "blk.0.", 6) == 0;

    if (lm_is_oss(m) && strstr(name, "_exps.weight"))
        return RIDGE_TYPE_MXFP4;
    if (m->form == 'k')
        return strstr(name, "attn_v") || strstr(name, "ffn_down")               ? RIDGE_TYPE_Q6_K
               : strstr(name, "attn_output") || (!first && strstr(name, "ffn")) ? RIDGE_TYPE_Q5_K
                                                                                : RIDGE_TYPE_Q4_K;
    if (m->form == '4')
        return strstr(name, "attn_k") || strstr(name, "attn_output") || (first && strstr(name, "ffn_up"))
                   ? RIDGE_TYPE_Q4_1
               : strstr(name, "attn_v") ? (first ? RIDGE_TYPE_Q8_0 : RIDGE_TYPE_Q4_1)
               : strstr(name, "down")   ? (first ? RIDGE_TYPE_Q5_0 : RIDGE_TYPE_MXFP4)
                                        : RIDGE_TYPE_Q4_0;
    return RIDGE_TYPE_Q8_0;
}

static inline void lm_tensor_of(lm_writer *m, const char *name, int64_t experts, int64_t rows, int64_t cols)
{
    const int64_t shape[] = {experts ? experts : rows, experts ? rows : cols, cols};
    const bool vector = cols == 0, plain = vector || strstr(name, "gate_inp") || strstr(name, "bias");

    if (m->spoil && m->spoil->tensor && strcmp(m->spoil->tensor, name) == 0)
        return;
    snprintf(m->tensor[m->tensors].name, sizeof m->tensor->name, "%s", name);
    m->tensor[m->tensors].rows = plain && cols ? rows * cols : (experts ? experts * rows : rows);
    m->tensor[m->tensors].cols = plain ? 0 : cols;
    lm_must(ridge_writer_tensor(m->w, name, plain ? RIDGE_TYPE_F32 : lm_type_of(m, name),
                                vector    ? 1
                                : experts ? 3
                                          : 2,
                                shape, &m->tensor[m->tensors].index) == RIDGE_OK,
            name);
    m->tensors++;
}

static inline void lm_tensor(lm_writer *m, const char *name, int64_t rows, int64_t cols)
{
    lm_tensor_of(m, name, 0, rows, cols);
}

static inline void lm_experts(lm_writer *m, int layer)
{
    static const char *const names[] = {"gate", "up", "down"};
    char full[64];

    snprintf(full, sizeof full, "blk.%d.ffn_gate_inp.weight", layer);
    lm_tensor(m, full, LM_EXPERTS, m->hidden);
    for (int i = 0; i < 3; i++) {
        snprintf(full, sizeof full, "blk.%d.ffn_%s_exps.weight", layer, names[i]);
        lm_tensor_of(m, full, LM_EXPERTS, i < 2 ? m->expert_ffn : m->hidden, i < 2 ? m->hidden : m->expert_ffn);
        snprintf(full, sizeof full, "blk.%d.ffn_%s_exps.bias", layer, names[i]);
        if (lm_is_oss(m))
            lm_tensor(m, full, LM_EXPERTS, i < 2 ? m->expert_ffn : m->hidden);
    }
}

static inline void lm_layer_tensor(lm_writer *m, int layer, const char *name, int64_t rows, int64_t cols)
{
    char full[64];

    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    lm_tensor(m, full, rows, cols);
}

static inline void lm_tensors(lm_writer *m, int layers, int64_t vocabulary, bool bias, bool qk, bool post)
{
    lm_tensor(m, "token_embd.weight", vocabulary, m->hidden);
    lm_tensor(m, "output_norm.weight", m->hidden, 0);
    for (int i = 0; i < layers; i++) {
        static const char *const names[] = {"attn_q", "attn_k", "attn_v"};

        lm_layer_tensor(m, i, "attn_norm.weight", m->hidden, 0);
        for (int j = 0; j < 3; j++) {
            char name[32];

            snprintf(name, sizeof name, "%s.weight", names[j]);
            lm_layer_tensor(m, i, name, (j ? LM_KV : LM_HEADS) * m->dim, m->hidden);
            snprintf(name, sizeof name, "%s.bias", names[j]);
            if (bias)
                lm_layer_tensor(m, i, name, (j ? LM_KV : LM_HEADS) * m->dim, 0);
        }
        if (qk) {
            lm_layer_tensor(m, i, "attn_q_norm.weight", m->dim, 0);
            lm_layer_tensor(m, i, "attn_k_norm.weight", m->dim, 0);
        }
        if (post) {
            lm_layer_tensor(m, i, "post_attention_norm.weight", m->hidden, 0);
            lm_layer_tensor(m, i, "post_ffw_norm.weight", m->hidden, 0);
        }
        lm_layer_tensor(m, i, "attn_output.weight", m->hidden, LM_HEADS * m->dim);
        lm_layer_tensor(m, i, lm_is_oss(m) ? "post_attention_norm.weight" : "ffn_norm.weight", m->hidden, 0);
        if (lm_is_oss(m)) {
            lm_layer_tensor(m, i, "attn_sinks.weight", LM_HEADS, 0);
            lm_layer_tensor(m, i, "attn_output.bias", m->hidden, 0);
            lm_layer_tensor(m, i, "ffn_gate_inp.bias", LM_EXPERTS, 0);
        }
        if (strcmp(m->arch, "qwen3moe") == 0 || lm_is_oss(m)) {
            lm_experts(m, i);
            continue;
        }
        lm_layer_tensor(m, i, "ffn_gate.weight", m->ffn, m->hidden);
        lm_layer_tensor(m, i, "ffn_up.weight", m->ffn, m->hidden);
        lm_layer_tensor(m, i, "ffn_down.weight", m->hidden, m->ffn);
    }
    if (m->form && strcmp(m->arch, "llama") == 0) /* how files of Llama 3.1 have their scaling of RoPE */
        lm_tensor(m, "rope_freqs.weight", m->dim / 2, 0);
    if (m->spoil && m->spoil->tensor && strncmp(m->spoil->tensor, "extra", 5) == 0)
        lm_tensor(m, "blk.0.attn_output.bias", m->hidden, 0);
}

static inline void lm_fill(lm_writer *m)
{
    static float values[1 << 19];
    static unsigned char blocks[1 << 20];
    ridge_device *cpu;

    lm_must(ridge_open("cpu", &cpu) == RIDGE_OK, "the CPU");
    for (int i = 0; i < m->tensors; i++) {
        const int64_t rows = m->tensor[i].rows, cols = m->tensor[i].cols, count = rows * (cols ? cols : 1);
        const bool is_norm = strstr(m->tensor[i].name, "norm") != NULL;
        const uint32_t type = lm_type_of(m, m->tensor[i].name);
        const ridge_type_info *info = ridge_type_query(type);

        for (int64_t j = 0; j < count; j++)
            values[j] = lm_random(&m->state) * (cols ? 0.25f : 0.5f) + (is_norm ? 1.0f : 0.0f);
        for (int64_t j = 0; j < count && strcmp(m->tensor[i].name, "rope_freqs.weight") == 0; j++)
            values[j] = j < count / 2 ? 1.0f : 8.0f;
        lm_must(count <= (int64_t)(sizeof values / sizeof values[0]), "room for a tensor");
        /* a router beside block formats has bf16's values, as real models have; elsewhere it needs f32 */
        for (int64_t j = 0; j < count && m->form && strstr(m->tensor[i].name, "gate_inp.weight"); j++) {
            uint32_t bits;

            memcpy(&bits, values + j, sizeof bits);
            bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
            memcpy(values + j, &bits, sizeof bits);
        }
        if (cols && type != RIDGE_TYPE_Q8_0) {
            lm_must(ridge_quantize(type, values, count, blocks) == RIDGE_OK, "quantise");
        } else if (cols) {
            const ridge_call call = ridge_q8_0_quantize(rows, cols, ridge_matrix(values, RIDGE_F32), blocks);

            lm_must(ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK, "quantise");
        }
        lm_must(ridge_writer_write(m->w, m->tensor[i].index, 0, cols ? (void *)blocks : (void *)values,
                                   cols ? count / info->block * info->bytes : count * 4) == RIDGE_OK,
                "write");
    }
    ridge_close(cpu);
}

/* Writes a model of a family: "llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss", "gemma3"; another name is a llama that
 * says so. ":k" and ":4" behind it: weights in block formats. */
static inline void lm_model_write(const char *path, const char *family, const lm_spoil *spoil)
{
    static lm_writer m;
    const size_t length = strcspn(family, ":");
    const bool gemma = strncmp(family, "gemma3", length) == 0, qwen3 = strncmp(family, "qwen3", 5) == 0;
    const bool oss = strncmp(family, "gpt-oss", length) == 0;
    const int layers = gemma ? 7 : oss ? 4 : 2;
    int64_t vocabulary;

    memset(&m, 0, sizeof m);
    m.spoil = spoil;
    snprintf(m.arch, sizeof m.arch, "%.*s", (int)length, family);
    m.form = family[length] ? family[length + 1] : 0;
    m.hidden = m.form == 'k' ? 256 : 64;
    m.ffn = m.form == 'k' ? 256 : 96;
    m.dim = m.form == 'k' ? 64 : 32;
    m.expert_ffn = m.form == 'k' ? 256 : 32;
    m.state = 1;
    lm_must(ridge_writer_open(path, RIDGE_GGUF, &m.w) == RIDGE_OK, path);
    lm_text(&m, "general.architecture", m.arch);
    lm_text(&m, "general.name", "a small test");
    lm_u32(&m, ".block_count", (uint32_t)layers);
    lm_u32(&m, ".context_length", 512);
    lm_u32(&m, ".embedding_length", (uint32_t)m.hidden);
    lm_u32(&m, ".feed_forward_length", (uint32_t)m.ffn);
    lm_u32(&m, ".attention.head_count", LM_HEADS);
    lm_u32(&m, ".attention.head_count_kv", LM_KV);
    lm_u32(&m, ".attention.key_length", (uint32_t)m.dim);
    lm_u32(&m, ".attention.value_length", (uint32_t)m.dim);
    lm_u32(&m, ".rope.dimension_count", (uint32_t)m.dim);
    lm_f32(&m, ".attention.layer_norm_rms_epsilon", 1e-5f);
    lm_f32(&m, ".rope.freq_base", 100000);
    if (strcmp(m.arch, "qwen3moe") == 0 || oss) {
        lm_u32(&m, ".expert_count", LM_EXPERTS);
        lm_u32(&m, ".expert_used_count", LM_USED);
        lm_u32(&m, ".expert_feed_forward_length", (uint32_t)m.expert_ffn);
    }
    if (oss) {
        lm_u32(&m, ".attention.sliding_window", 8);
        lm_text(&m, ".rope.scaling.type", "yarn");
        lm_f32(&m, ".rope.scaling.factor", 4);
        lm_u32(&m, ".rope.scaling.original_context_length", 64);
    }
    if (gemma) {
        lm_u32(&m, ".attention.sliding_window", 8);
        lm_text(&m, ".rope.scaling.type", "linear");
        lm_f32(&m, ".rope.scaling.factor", 8);
    }
    vocabulary = lm_vocabulary(&m, gemma);
    lm_spoil_key(&m);
    lm_tensors(&m, layers, vocabulary, strcmp(m.arch, "qwen2") == 0 || oss, gemma || qwen3, gemma);
    lm_must(ridge_writer_begin(m.w) == RIDGE_OK, "begin");
    lm_fill(&m);
    lm_must(ridge_writer_finish(m.w) == RIDGE_OK, "finish");
}

#endif
