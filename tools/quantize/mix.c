/* mix.c: which type a weight gets in a GGUF file. The mixes are llama.cpp's (src/llama-quant.cpp of the version that
 * llama-cpp-python 0.3.36 carries: llama_tensor_get_type_impl, tensor_type_fallback), so that a file of that name holds
 * what its users expect. Names are those of GGUF or of transformers. Leaves out: Falcon's exceptions. */
#include <stdlib.h>
#include <string.h>

#include "quantize.h"

typedef enum kind {
    KIND_OTHER,
    KIND_OUTPUT,
    KIND_EMBEDDING,
    KIND_QKV,
    KIND_V,
    KIND_K,
    KIND_ATTENTION_OUT,
    KIND_DOWN
} kind;

static kind kind_of(const char *name)
{
    static const struct {
        const char *pattern;
        kind kind;
    } list[] = {{"output.weight", KIND_OUTPUT},
                {"*lm_head.weight", KIND_OUTPUT},
                {"*token_embd.weight", KIND_EMBEDDING},
                {"*embed_tokens.weight", KIND_EMBEDDING},
                {"*attn_qkv.weight", KIND_QKV},
                {"*qkv_proj.weight", KIND_QKV},
                {"*query_key_value.weight", KIND_QKV},
                {"*attn_v.weight", KIND_V},
                {"*v_proj.weight", KIND_V},
                {"*attn_kv_b.weight", KIND_V},
                {"*kv_b_proj.weight", KIND_V},
                {"*attn_k.weight", KIND_K},
                {"*k_proj.weight", KIND_K},
                {"*attn_output.weight", KIND_ATTENTION_OUT},
                {"*o_proj.weight", KIND_ATTENTION_OUT},
                {"*ffn_down*", KIND_DOWN},
                {"*down_proj*", KIND_DOWN},
                {"*experts.*.w2.weight", KIND_DOWN}};

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (name_matches(list[i].pattern, name))
            return list[i].kind;
    return KIND_OTHER;
}

/* The number after `word`; -1: there is none. */
static int64_t number_after(const char *name, const char *word)
{
    const char *at = strstr(name, word);

    at = at ? at + strlen(word) : "";
    return *at >= '0' && *at <= '9' ? (int64_t)strtol(at, NULL, 10) : -1;
}

static int64_t layer_of(const char *name)
{
    return number_after(name, name[0] == 'b' ? "blk." : "layers.");
}

/* What the rules ask of the whole model. */
typedef struct model {
    int64_t layers, experts;
    int64_t values, before; /* matrices of v, and how many of them come before this one */
    bool tied;              /* the embedding is the output too */
} model;

static model look_over(const plan *p, const ridge_entry *t)
{
    const int64_t layer = layer_of(t->name);
    model m = {.tied = true};

    for (int64_t i = 0; i < p->count; i++) {
        const ridge_entry *other = p->at[i].in;
        const kind kind = kind_of(other->name);
        const int64_t of = layer_of(other->name);
        int64_t experts = number_after(other->name, "experts.") + 1;

        if (other->rank == 3 && (strstr(other->name, "_exps.") || strstr(other->name, "experts.")))
            experts = other->shape[0];
        m.experts = experts > m.experts ? experts : m.experts;
        m.layers = of >= m.layers ? of + 1 : m.layers;
        m.tied &= kind != KIND_OUTPUT;
        m.values += kind == KIND_V || kind == KIND_QKV;
        m.before += (kind == KIND_V || kind == KIND_QKV) && of < layer;
    }
    return m;
}

/* The first eighth of the layers, the last, and every third between them. */
static bool more_bits(int64_t i, int64_t n)
{
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/* The exceptions of Q4_K_M and Q5_K_M. */
static uint32_t mixed(const plan *p, const ridge_entry *t, const model *m, uint32_t base)
{
    const bool q4 = p->o->to == TO_Q4_K_M, eight = m->experts == 8;

    switch (kind_of(t->name)) {
    case KIND_V:
        if (eight)
            return RIDGE_TYPE_Q8_0;
        if (more_bits(m->before, m->values))
            return RIDGE_TYPE_Q6_K;
        return m->layers == 80 && q4 && matrix_rows(t) < matrix_cols(t) ? RIDGE_TYPE_Q5_K : base; /* Llama 70B */
    case KIND_QKV:
        return q4 ? RIDGE_TYPE_Q5_K : RIDGE_TYPE_Q6_K;
    case KIND_K:
        return eight ? RIDGE_TYPE_Q8_0 : base;
    case KIND_ATTENTION_OUT:
        return eight && q4 ? RIDGE_TYPE_Q5_K : base;
    case KIND_DOWN:
        return more_bits(layer_of(t->name), m->layers) ? RIDGE_TYPE_Q6_K : base;
    default:
        return base;
    }
}

/* Rows of no whole number of blocks of 256 get a type with blocks of 32. */
static uint32_t fallback(uint32_t type, int64_t cols)
{
    if (cols % ridge_type_query(type)->block == 0)
        return type;
    return type == RIDGE_TYPE_Q4_K ? RIDGE_TYPE_Q5_0 : type == RIDGE_TYPE_Q5_K ? RIDGE_TYPE_Q5_1 : RIDGE_TYPE_Q8_0;
}

uint32_t mix_type(const plan *p, const ridge_entry *t)
{
    static const uint32_t bases[TO_FORMATS] = {
        [TO_Q8_0] = RIDGE_TYPE_Q8_0,   [TO_Q4_0] = RIDGE_TYPE_Q4_0, [TO_Q4_K_M] = RIDGE_TYPE_Q4_K,
        [TO_Q5_K_M] = RIDGE_TYPE_Q5_K, [TO_Q6_K] = RIDGE_TYPE_Q6_K, [TO_MXFP4] = RIDGE_TYPE_MXFP4};
    const uint32_t base = bases[p->o->to];
    const kind kind = kind_of(t->name);
    model m;

    if (p->o->to == TO_Q8_0)
        return base;
    if (p->o->to == TO_MXFP4) /* of its experts, if the user does not say what */
        return t->rank > 2 || strstr(t->name, ".experts.") || p->o->include.count ? base : RIDGE_TYPE_Q8_0;
    m = look_over(p, t);
    if (kind == KIND_OUTPUT || (kind == KIND_EMBEDDING && m.tied))
        return matrix_cols(t) % ridge_type_query(base)->block ? RIDGE_TYPE_Q8_0
                                                              : fallback(RIDGE_TYPE_Q6_K, matrix_cols(t));
    if (p->o->to == TO_Q4_K_M || p->o->to == TO_Q5_K_M)
        return fallback(mixed(p, t, &m, base), matrix_cols(t));
    return fallback(base, matrix_cols(t));
}
