/* plan.c: decides what happens to each tensor. Shape and type say what is possible, names what is sensible; the user's
 * patterns come before the names. docs/numerics.md, Checkpoints, has the rules for readers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "quantize.h"

const char *quantize_to_name(quantize_to to)
{
    static const char *const name[TO_FORMATS] = {"fp8-block128", "fp8-row", "q8_0", "bf16", "f16"};

    return name[to];
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
                                      {"*conv1d*", "convolution"},
                                      {NULL, NULL}};

/* What llama.cpp does not quantise: norms, routers, positions, and the small matrices of state-space models. */
static const name_rule q8_0_rules[] = {{"*_norm.weight", "norm"},
                                       {"*norm.weight", "norm"},
                                       {"*.gate.weight", "router"},
                                       {"*ffn_gate_inp*", "router"},
                                       {"*position_embd*", "positions"},
                                       {"*pos_embd*", "positions"},
                                       {"*token_types*", "token types"},
                                       {"*conv1d*", "convolution"},
                                       {"*time_mix_*", "state space"},
                                       {"*attn_rel_b*", "positions"},
                                       {NULL, NULL}};

static bool any_matches(const args_list *patterns, const char *name)
{
    for (int i = 0; i < patterns->count; i++)
        if (name_matches(patterns->at[i], name))
            return true;
    return false;
}

/* NULL, or why a tensor of this name is kept. */
static const char *name_reason(const quantize_options *o, const char *name)
{
    const name_rule *rule = o->to == TO_Q8_0 ? q8_0_rules : fp8_rules;
    size_t length = strlen(name);

    if (any_matches(&o->exclude, name))
        return "excluded";
    if (o->include.count)
        return any_matches(&o->include, name) ? NULL : "not included";
    if (o->to == TO_BF16 || o->to == TO_F16)
        return NULL;
    for (; rule->pattern; rule++)
        if (name_matches(rule->pattern, name))
            return rule->why;
    return length >= 6 && strcmp(name + length - 6, "weight") == 0 ? NULL : "not a weight";
}

/* NULL, or why a tensor of this shape is kept. */
static const char *shape_reason(quantize_to to, const ridge_entry *t)
{
    int64_t cols = t->rank ? t->shape[t->rank - 1] : 1;

    if (to == TO_BF16 || to == TO_F16)
        return NULL;
    if (t->elements == 0)
        return "empty";
    if (to == TO_Q8_0)
        return t->rank < 2 ? "fewer than 2 dimensions" : cols % 32 ? "K is not a multiple of 32" : NULL;
    return t->rank != 2 ? "not 2-D" : cols % 16 ? "K is not a multiple of 16" : NULL;
}

static bool is_fp8(uint32_t type)
{
    return type == RIDGE_TYPE_F8_E4M3 || type == RIDGE_TYPE_F8_E5M2 || type == RIDGE_TYPE_F8_E4M3FNUZ ||
           type == RIDGE_TYPE_F8_E5M2FNUZ;
}

/* A tensor that is not quantised: unchanged where the output's format can hold it, else cast to the next wider type. */
static bool keep(const plan *p, plan_tensor *t)
{
    const ridge_type_info *info = ridge_type_query(t->in->type);
    bool gguf = p->format == RIDGE_GGUF, floating = info->dequantize && !is_fp8(t->in->type);

    t->action = ACTION_KEEP;
    t->type = t->in->type;
    if (gguf && t->in->rank < 2 && floating && t->in->type != RIDGE_TYPE_F32) {
        t->action = ACTION_CAST; /* llama.cpp computes with vectors in F32 only */
        t->type = RIDGE_TYPE_F32;
    } else if (gguf ? info->gguf < 0 : !info->safetensors) {
        t->action = ACTION_CAST;
        t->type = t->in->rank < 2 ? RIDGE_TYPE_F32 : RIDGE_TYPE_BF16;
        if (!floating) {
            fprintf(stderr, "ridge quantize: %s is %s, which %s cannot hold and ridge cannot convert\n", t->in->name,
                    info->name, gguf ? "GGUF" : "safetensors");
            return false;
        }
    }
    return true;
}

static bool add_scales(plan_tensor *t, bool block)
{
    t->type = RIDGE_TYPE_F8_E4M3;
    t->scale_shape[0] = block ? (t->in->shape[0] + 127) / 128 : t->in->shape[0];
    t->scale_shape[1] = block ? (t->in->shape[1] + 127) / 128 : 1;
    if (asprintf(&t->scale_name, "%s_scale%s", t->in->name, block ? "_inv" : "") >= 0)
        return true;
    t->scale_name = NULL;
    fprintf(stderr, "ridge quantize: out of memory\n");
    return false;
}

static bool decide(const plan *p, plan_tensor *t)
{
    const quantize_to to = p->o->to;
    const uint32_t wanted = to == TO_BF16 ? RIDGE_TYPE_BF16 : to == TO_F16 ? RIDGE_TYPE_F16 : RIDGE_TYPE_Q8_0;

    t->why = shape_reason(to, t->in);
    if (!t->why)
        t->why = name_reason(p->o, t->in->name);
    if (!t->why && !ridge_type_query(t->in->type)->dequantize)
        t->why = "not of a floating type that ridge reads";
    if (!t->why && is_fp8(t->in->type) && to > TO_FP8_ROW) {
        fprintf(stderr,
                "ridge quantize: %s is FP8 already: its scales would be lost; convert the original checkpoint\n",
                t->in->name);
        return false;
    }
    if (!t->why && is_fp8(t->in->type))
        t->why = "FP8 already";
    if (t->why)
        return keep(p, t);
    if (to <= TO_FP8_ROW) {
        t->action = to == TO_FP8_ROW ? ACTION_FP8_ROW : ACTION_FP8_BLOCK128;
        return add_scales(t, to == TO_FP8_BLOCK128);
    }
    t->type = wanted;
    t->action = t->in->type == wanted ? ACTION_KEEP : to == TO_Q8_0 ? ACTION_Q8_0 : ACTION_CAST;
    if (t->action == ACTION_KEEP)
        t->why = "of this type already";
    return true;
}

static void count(plan *p, const plan_tensor *t)
{
    p->bytes_in += t->in->bytes;
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
            fprintf(stderr, "ridge quantize: --%s: nothing matches '%s'\n", option, patterns->at[i]);
            return false;
        }
    }
    return true;
}

bool plan_build(const quantize_options *o, const ridge_file *file, plan *p)
{
    struct stat there;
    size_t length = strlen(o->in);
    bool index = length > 5 && strcmp(o->in + length - 5, ".json") == 0;

    *p = (plan){.o = o, .file = file, .format = o->to == TO_Q8_0 ? RIDGE_GGUF : RIDGE_SAFETENSORS};
    p->directory = o->to != TO_Q8_0 && (index || (stat(o->in, &there) == 0 && S_ISDIR(there.st_mode)));
    p->folder = folder_of(o->in);
    p->at = calloc((size_t)ridge_file_tensors(file) + 1, sizeof *p->at);
    if (!p->folder || !p->at) {
        fprintf(stderr, "ridge quantize: out of memory\n");
        return false;
    }
    for (; p->count < ridge_file_tensors(file); p->count++) {
        plan_tensor *t = &p->at[p->count];

        t->in = ridge_file_tensor(file, p->count);
        t->error.worst_at = -1;
        if (!decide(p, t))
            return false;
        t->bytes = t->in->elements / ridge_type_query(t->type)->block * ridge_type_query(t->type)->bytes;
        if (t->action == ACTION_KEEP)
            t->bytes = t->in->bytes; /* types of a fraction of a byte too */
        t->bytes += t->scale_name ? 4 * t->scale_shape[0] * t->scale_shape[1] : 0;
        count(p, t);
    }
    return patterns_used(p, &o->include, "include") && patterns_used(p, &o->exclude, "exclude");
}

void plan_free(plan *p)
{
    for (int64_t i = 0; p->at && i < p->count; i++)
        free(p->at[i].scale_name);
    free(p->at);
    free(p->folder);
}
