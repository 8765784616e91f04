/* plan.c: decides what happens to each tensor. Shape and type say what is possible, names what is sensible; the user's
 * patterns come before the names. docs/numerics.md, Checkpoints, has the rules for readers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "quantize.h"

static const struct {
    const char *name;
    uint32_t file_type; /* GGUF's general.file_type */
} formats[TO_FORMATS] = {
    [TO_FP8_BLOCK128] = {"fp8-block128", 0},
    [TO_FP8_ROW] = {"fp8-row", 0},
    [TO_FP8_BLOCK32] = {"fp8-block32", 0},
    [TO_BF16] = {"bf16", 0},
    [TO_F16] = {"f16", 0},
    [TO_Q8_0] = {"q8_0", 7},
    [TO_Q4_0] = {"q4_0", 2},
    [TO_Q4_K_M] = {"q4_k_m", 15},
    [TO_Q5_K_M] = {"q5_k_m", 17},
    [TO_Q6_K] = {"q6_k", 18},
    [TO_MXFP4] = {"mxfp4", 38},
};

const char *quantize_to_name(quantize_to to)
{
    return formats[to].name;
}

uint32_t quantize_file_type(quantize_to to)
{
    return formats[to].file_type;
}

/* A pattern of names in Llama-family checkpoints and GGUF, and what a tensor of that name is. */
typedef struct name_rule {
    const char *pattern, *why;
} name_rule;

/* FP8 loaders quantise linear layers only: norms, embeddings and the output head are other kinds of layer for them. A
 * router has few rows, and rounding them changes which experts run. */
static const name_rule fp8_rules[] = {{"*norm*", "norm"},
                                      {"*embd*", "embedding"},
                                      {"*embed*", "embedding"},
                                      {"*wte.*", "embedding"},
                                      {"*wpe.*", "embedding"},
                                      {"*shared.weight", "embedding"},
                                      {"lm_head.*", "output head"},
                                      {"*.lm_head.*", "output head"},
                                      {"output.weight", "output head"},
                                      {"*.gate.weight", "router"},
                                      {"*ffn_gate_inp*", "router"},
                                      {"*router*", "router"},
                                      {"*shared_expert_gate*", "router"},
                                      {"*conv1d*", "convolution"},
                                      {NULL, NULL}};

/* What llama.cpp does not quantise: norms, routers, positions, token types, and the small matrices of state-space
 * models; under its own names and under those of transformers. */
static const name_rule gguf_rules[] = {{"*_norm.weight", "norm"},
                                       {"*norm.weight", "norm"},
                                       {"*.gate.weight", "router"},
                                       {"*ffn_gate_inp*", "router"},
                                       {"*router*", "router"},
                                       {"*shared_expert_gate*", "router"},
                                       {"*position_embd*", "positions"},
                                       {"*pos_embd*", "positions"},
                                       {"*position_embeddings*", "positions"},
                                       {"*embed_positions*", "positions"},
                                       {"*wpe.*", "positions"},
                                       {"*token_types*", "token types"},
                                       {"*token_type_embeddings*", "token types"},
                                       {"*conv1d*", "convolution"},
                                       {"*time_mix_*", "state space"},
                                       {"*attn_rel_b*", "positions"},
                                       {"*relative_attention_bias*", "positions"},
                                       {NULL, NULL}};

static bool any_matches(const args_list *patterns, const char *name)
{
    for (int i = 0; i < patterns->count; i++)
        if (name_matches(patterns->at[i], name))
            return true;
    return false;
}

/* A mixture's experts in one tensor, which is one matrix after the other. */
static bool is_experts(const char *name)
{
    return name_matches("*expert*", name) || name_matches("*_exps*", name) || name_matches("*_moe.*", name);
}

/* Fused experts have no .weight in their names. */
static bool is_weight_name(const char *name)
{
    return path_ends(name, "weight") || path_ends(name, "experts.gate_up_proj") || path_ends(name, "experts.down_proj");
}

/* NULL, or why a tensor of this name is kept. */
static const char *name_reason(const quantize_options *o, const char *name)
{
    const name_rule *rule = to_gguf(o->to) ? gguf_rules : fp8_rules;

    if (any_matches(&o->exclude, name))
        return "excluded";
    if (o->include.count)
        return any_matches(&o->include, name) ? NULL : "not included";
    if (o->to == TO_BF16 || o->to == TO_F16)
        return NULL;
    for (; rule->pattern; rule++)
        if (name_matches(rule->pattern, name))
            return rule->why;
    return is_weight_name(name) ? NULL : "not a weight";
}

/* NULL, or why a tensor of this shape is kept. */
static const char *shape_reason(quantize_to to, const ridge_entry *t)
{
    int64_t cols = t->rank ? t->shape[t->rank - 1] : 1;

    if (to == TO_BF16 || to == TO_F16)
        return NULL;
    if (t->elements == 0)
        return "empty";
    if (to_gguf(to))
        return t->rank < 2 ? "fewer than 2 dimensions" : cols % 32 ? "K is not a multiple of 32" : NULL;
    if (t->rank != 2 && !(t->rank == 3 && is_experts(t->name)))
        return "not 2-D";
    return cols % 16 ? "K is not a multiple of 16" : NULL;
}

/* Some models store fused experts as [experts, in, out]: there K is not the last dimension, along which all quantisers
 * work. The shapes of gate_up_proj and down_proj together tell. NULL, or why they are kept. */
static const char *experts_reason(const ridge_file *file, const ridge_entry *t)
{
    const bool up = path_ends(t->name, "experts.gate_up_proj"), down = path_ends(t->name, "experts.down_proj");
    const ridge_entry *other, *gate_up, *back;
    char name[512];

    if ((!up && !down) || t->rank != 3)
        return NULL;
    snprintf(name, sizeof name, "%.*s%s", (int)(strrchr(t->name, '.') - t->name) + 1, t->name,
             up ? "down_proj" : "gate_up_proj");
    other = ridge_file_find(file, name);
    gate_up = up ? t : other;
    back = up ? other : t;
    if (other && other->rank == 3 && gate_up->shape[1] == 2 * back->shape[2] && gate_up->shape[2] == back->shape[1])
        return NULL;
    return "experts stored [in, out]";
}

/* A tensor that is not quantised: unchanged where the output's format can hold it, else cast to the next wider type. */
static bool keep(const plan *p, plan_tensor *t)
{
    const ridge_type_info *info = ridge_type_query(t->in->type);
    bool gguf = p->format == RIDGE_GGUF, floating = info->dequantize && (!is_fp8(t->in->type) || t->scale);

    t->action = ACTION_KEEP;
    t->type = t->in->type;
    if (gguf && t->in->rank < 2 && floating && t->in->type != RIDGE_TYPE_F32) {
        t->action = ACTION_CAST; /* llama.cpp computes with vectors in F32 only */
        t->type = RIDGE_TYPE_F32;
    } else if (gguf ? info->gguf < 0 : !info->safetensors) {
        t->action = ACTION_CAST;
        t->type = t->in->rank < 2 ? RIDGE_TYPE_F32 : RIDGE_TYPE_BF16;
        if (!floating) {
            line_print(stderr, "ridge quantize: %s is %s, which %s cannot hold and ridge cannot convert", t->in->name,
                       info->name, gguf ? "GGUF" : "safetensors");
            return false;
        }
    }
    return true;
}

static bool decide(const plan *p, plan_tensor *t)
{
    const quantize_to to = p->o->to;

    if (t->action == ACTION_DROP)
        return true;
    t->why = shape_reason(to, t->in);
    if (!t->why)
        t->why = name_reason(p->o, t->in->name);
    if (!t->why && to != TO_BF16 && to != TO_F16 && !t->packed)
        t->why = experts_reason(p->file, t->in);
    if (!t->why && to_fp8(to) && p->packed && !t->packed)
        t->why = "not MXFP4, as others are";
    if (!t->why && !ridge_type_query(t->in->type)->dequantize)
        t->why = "not of a floating type that ridge reads";
    if (is_fp8(t->in->type) && to_fp8(to))
        t->why = "FP8 already";
    if (is_fp8(t->in->type) && t->why && (to == TO_BF16 || to == TO_F16)) {
        line_print(stderr, "ridge quantize: %s would stay FP8 (%s), in a model that no longer says so", t->in->name,
                   t->why);
        return false;
    }
    if (t->why)
        return keep(p, t);
    if (to_fp8(to)) {
        t->action = to == TO_FP8_ROW ? ACTION_FP8_ROW : to == TO_FP8_BLOCK32 ? ACTION_FP8_BLOCK32 : ACTION_FP8_BLOCK128;
        t->type = RIDGE_TYPE_F8_E4M3;
        return scales_declare(p, t);
    }
    t->type = to == TO_BF16 ? RIDGE_TYPE_BF16 : to == TO_F16 ? RIDGE_TYPE_F16 : mix_type(p, t->in);
    t->action = t->in->type == t->type       ? ACTION_KEEP
                : !to_gguf(to)               ? ACTION_CAST
                : t->type == RIDGE_TYPE_Q8_0 ? ACTION_Q8_0
                                             : ACTION_BLOCKS;
    if (t->action == ACTION_KEEP)
        t->why = "of this type already";
    return true;
}

static void count(plan *p, plan_tensor *t)
{
    p->bytes_in += t->in->bytes;
    if (t->action == ACTION_DROP) {
        p->dropped++;
        return;
    }
    t->bytes = t->in->elements / ridge_type_query(t->type)->block * ridge_type_query(t->type)->bytes;
    if (t->action == ACTION_KEEP)
        t->bytes = t->in->bytes; /* types of a fraction of a byte too */
    if (t->scale_name)
        t->bytes +=
            (t->e8m0 ? 1 : 4) * t->scale_shape[0] * t->scale_shape[1] * (t->in->rank == 3 ? t->scale_shape[2] : 1);
    p->bytes_out += t->bytes;
    if (t->action == ACTION_KEEP)
        p->kept++;
    else if (t->why)
        p->cast++;
    else
        p->quantised++;
}

/* The directory that a path names or lies in. */
static char *folder_of(const char *path)
{
    struct stat there;
    const char *slash = strrchr(path, '/');

    if (stat(path, &there) == 0 && S_ISDIR(there.st_mode))
        return strdup(path);
    return slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
}

/* A pattern that matches nothing is a mistake worth an error. */
static bool patterns_used(const plan *p, const args_list *patterns, const char *option)
{
    for (int i = 0; i < patterns->count; i++) {
        int64_t hits = 0;

        for (int64_t k = 0; k < p->count; k++)
            hits += name_matches(patterns->at[i], p->at[k].in->name);
        if (!hits) {
            line_print(stderr, "ridge quantize: --%s: nothing matches '%s'", option, patterns->at[i]);
            return false;
        }
    }
    return true;
}

/* A checkpoint that is quantised in one way is not quantised in another: config.json has room for one. */
static bool quantised_once(const plan *p)
{
    char *method = config_string(p, "quantization_config", "quant_method");
    const char *there = method;

    for (int64_t i = 0; i < p->count && !there; i++)
        if (is_fp8(p->at[i].in->type))
            there = p->at[i].in->name;
    if (to_fp8(p->o->to) && p->quantised && !p->packed && there)
        line_print(stderr, "ridge quantize: %s is quantised already (%s): convert it with --to bf16 first", p->o->in,
                   there);
    else
        there = NULL;
    free(method);
    return !there;
}

bool plan_build(const quantize_options *o, const ridge_file *file, plan *p)
{
    struct stat there;

    *p = (plan){.o = o, .file = file, .format = to_gguf(o->to) ? RIDGE_GGUF : RIDGE_SAFETENSORS};
    p->many = path_ends(o->in, ".json") || (stat(o->in, &there) == 0 && S_ISDIR(there.st_mode));
    p->directory = !to_gguf(o->to) && p->many;
    p->folder = folder_of(o->in);
    p->at = calloc((size_t)ridge_file_tensors(file) + 1, sizeof *p->at);
    if (!p->folder || !p->at) {
        line_print(stderr, "ridge quantize: out of memory");
        return false;
    }
    p->count = ridge_file_tensors(file);
    for (int64_t i = 0; i < p->count; i++) {
        p->at[i].in = ridge_file_tensor(file, i);
        p->at[i].error.worst_at = -1;
    }
    if (!config_load(p))
        return false;
    for (int64_t i = 0; i < p->count; i++) {
        if (!packed_find(p, &p->at[i]))
            return false;
        if (p->at[i].packed) {
            p->packed++;
            p->at[p->at[i].exponents - ridge_file_tensor(file, 0)].action = ACTION_DROP;
        }
    }
    for (int64_t i = 0; i < p->count; i++)
        if (!to_fp8(o->to) && is_fp8(p->at[i].in->type) && !scales_find(p, &p->at[i]))
            return false;
    for (int64_t i = 0; i < p->count; i++)
        if (!decide(p, &p->at[i]))
            return false;
    for (int64_t i = 0; i < p->count; i++)
        count(p, &p->at[i]);
    return quantised_once(p) && patterns_used(p, &o->include, "include") && patterns_used(p, &o->exclude, "exclude");
}

void plan_free(plan *p)
{
    for (int64_t i = 0; p->at && i < p->count; i++)
        free(p->at[i].scale_name), free(p->at[i].view_name);
    free(p->at);
    free(p->folder);
    free(p->config);
}

int64_t matrix_rows(const ridge_entry *t)
{
    return t->rank > 1 ? t->shape[t->rank - 2] : 1;
}

int64_t matrix_cols(const ridge_entry *t)
{
    return t->rank ? t->shape[t->rank - 1] : 1;
}
