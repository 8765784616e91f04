/* config.c: the numbers of a model, by the keys of its family. Defaults are those that the files' writers rely on
 * (llama.cpp, src/llama-model.cpp and src/models/). */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "lm.h"

static const lm_family families[] = {
    {.name = "llama"},
    {.name = "qwen2", .halves = true},
    {.name = "qwen3", .halves = true, .qk_norm = true},
    {.name = "qwen3moe", .halves = true, .qk_norm = true, .experts = true},
    {.name = "gpt-oss", .halves = true, .experts = true, .pattern = 2, .oss = true},
    {.name = "gemma3",
     .halves = true,
     .qk_norm = true,
     .post_norms = true,
     .gelu = true,
     .root_embed = true,
     .pattern = 6},
};

#define TRY(expression)                       \
    do {                                      \
        const ridge_status s_ = (expression); \
        if (s_)                               \
            return s_;                        \
    } while (0)

const lm_family *lm_family_of(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(name, families[i].name) == 0)
            return &families[i];
    return NULL;
}

static ridge_status read_sizes(const lm_meta *m, lm_config *c)
{
    int64_t value_length;

    TRY(lm_meta_integer(m, ".block_count", 1, 1024, &c->layers));
    TRY(lm_meta_integer(m, ".context_length", 1, 1 << 24, &c->context));
    TRY(lm_meta_integer(m, ".embedding_length", 32, 1 << 20, &c->hidden));
    TRY(lm_meta_integer(m, ".feed_forward_length", 32, 1 << 24, &c->ffn));
    TRY(lm_meta_integer(m, ".attention.head_count", 1, 1 << 16, &c->heads));
    if (!c->layers || !c->context || !c->hidden || !c->ffn || !c->heads)
        return lm_fail(RIDGE_ERR_FILE, "%s.%s is missing", m->arch,
                       !c->layers    ? "block_count"
                       : !c->context ? "context_length"
                       : !c->hidden  ? "embedding_length"
                       : !c->ffn     ? "feed_forward_length"
                                     : "attention.head_count");
    c->kv_heads = c->heads;
    TRY(lm_meta_integer(m, ".attention.head_count_kv", 1, 1 << 16, &c->kv_heads));
    if (c->heads % c->kv_heads)
        return lm_fail(RIDGE_ERR_FILE,
                       "%s.attention.head_count_kv is %" PRId64 ", which does not divide %" PRId64 " heads", m->arch,
                       c->kv_heads, c->heads);
    c->head_dim = c->hidden / c->heads;
    TRY(lm_meta_integer(m, ".attention.key_length", 1, RIDGE_MAX_HEAD_DIM, &c->head_dim));
    value_length = c->head_dim;
    TRY(lm_meta_integer(m, ".attention.value_length", 1, RIDGE_MAX_HEAD_DIM, &value_length));
    if (value_length != c->head_dim || c->head_dim % 16 || c->head_dim < 16 || c->head_dim > RIDGE_MAX_HEAD_DIM)
        return lm_fail(RIDGE_ERR_UNSUPPORTED,
                       "%s: heads of %" PRId64 " (keys) and %" PRId64 " (values) columns: they "
                       "must be equal, a multiple of 16, and at most %d",
                       m->arch, c->head_dim, value_length, (int)RIDGE_MAX_HEAD_DIM);
    if (c->hidden % 32 || c->ffn % 32 || c->heads * c->head_dim % 32)
        return lm_fail(RIDGE_ERR_UNSUPPORTED,
                       "%s: rows of %" PRId64 ", %" PRId64 " and %" PRId64 " columns: Q8_0 needs "
                       "multiples of 32",
                       m->arch, c->hidden, c->ffn, c->heads * c->head_dim);
    c->n_rot = c->head_dim;
    TRY(lm_meta_integer(m, ".rope.dimension_count", 2, c->head_dim, &c->n_rot));
    if (c->n_rot % 2)
        return lm_fail(RIDGE_ERR_FILE, "%s.rope.dimension_count is %" PRId64 ", which is odd", m->arch, c->n_rot);
    return RIDGE_OK;
}

static ridge_status read_experts(const lm_meta *m, lm_config *c)
{
    TRY(lm_meta_integer(m, ".expert_count", c->family->experts, RIDGE_MOE_MAX_EXPERTS, &c->experts));
    if (!c->experts)
        return c->family->experts ? lm_fail(RIDGE_ERR_FILE, "%s.expert_count is missing", m->arch) : RIDGE_OK;
    if (!c->family->experts)
        return lm_fail(RIDGE_ERR_UNSUPPORTED,
                       "%s.expert_count is %" PRId64 ": %s models with experts are not supported", m->arch, c->experts,
                       m->arch);
    TRY(lm_meta_integer(m, ".expert_used_count", 1, c->experts < RIDGE_MOE_MAX_SLOTS ? c->experts : RIDGE_MOE_MAX_SLOTS,
                        &c->used));
    if (!c->used)
        return lm_fail(RIDGE_ERR_FILE, "%s.expert_used_count is missing", m->arch);
    c->expert_ffn = c->ffn;
    TRY(lm_meta_integer(m, ".expert_feed_forward_length", 32, 1 << 24, &c->expert_ffn));
    return c->expert_ffn % 32
               ? lm_fail(RIDGE_ERR_UNSUPPORTED, "%s: experts of %" PRId64 " rows: Q8_0 needs a multiple of 32", m->arch,
                         c->expert_ffn)
               : RIDGE_OK;
}

static ridge_status read_rope(const lm_meta *m, lm_config *c)
{
    char scaling[32];
    bool found;

    c->base = c->local_base = 10000;
    TRY(lm_meta_number(m, ".rope.freq_base", 1 + 1e-6, 1e12, &c->base));
    TRY(lm_meta_number(m, ".rope.freq_base_swa", 1 + 1e-6, 1e12, &c->local_base));
    TRY(lm_meta_text(m, ".rope.scaling.type", scaling, sizeof scaling, &found));
    c->scale_factor = 0;
    TRY(lm_meta_number(m, ".rope.scale_linear", 0, 1e6, &c->scale_factor));
    TRY(lm_meta_number(m, ".rope.scaling.factor", 0, 1e6, &c->scale_factor));
    c->scale_factor = c->scale_factor == 0 ? 1 : c->scale_factor; /* as writers mean it */
    if (found && strcmp(scaling, "none") == 0)
        c->scale_factor = 1;
    c->yarn = found && strcmp(scaling, "yarn") == 0;
    if (found && !c->yarn && strcmp(scaling, "none") != 0 && strcmp(scaling, "linear") != 0)
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "%s.rope.scaling.type is '%s': none, linear and yarn are supported",
                       m->arch, scaling);
    if (c->scale_factor < 1)
        return lm_fail(RIDGE_ERR_FILE, "%s.rope.scaling.factor is %g, below 1", m->arch, c->scale_factor);
    c->original_context = (double)c->context;
    c->ext_factor = c->attn_factor = c->beta_slow = 1;
    c->beta_fast = 32;
    TRY(lm_meta_number(m, ".rope.scaling.original_context_length", 1, 1 << 24, &c->original_context));
    TRY(lm_meta_number(m, ".rope.scaling.attn_factor", 1e-3, 1e3, &c->attn_factor));
    TRY(lm_meta_number(m, ".rope.scaling.yarn_ext_factor", 0, 1, &c->ext_factor));
    TRY(lm_meta_number(m, ".rope.scaling.yarn_beta_fast", 1e-3, 1e6, &c->beta_fast));
    return lm_meta_number(m, ".rope.scaling.yarn_beta_slow", 1e-3, 1e6, &c->beta_slow);
}

/* Layers that see a window only; the pattern may be a number or a bool for every layer. */
static ridge_status read_window(const lm_meta *m, lm_config *c)
{
    const ridge_meta *each = lm_meta_array(m, ".attention.sliding_window_pattern", RIDGE_META_BOOL);

    TRY(lm_meta_integer(m, ".attention.sliding_window", 0, 1 << 24, &c->window));
    c->pattern = c->family->pattern;
    if (!c->pattern) /* Mistral's first model has a window that no engine heeds */
        c->window = 0;
    if (!each) {
        if (c->pattern)
            TRY(lm_meta_integer(m, ".attention.sliding_window_pattern", 1, 1024, &c->pattern));
        return RIDGE_OK;
    }
    if (each->count != c->layers)
        return lm_fail(RIDGE_ERR_FILE,
                       "%s.attention.sliding_window_pattern has %" PRId64 " values for %" PRId64 " layers", m->arch,
                       each->count, c->layers);
    for (int64_t i = 0; i < c->layers && c->pattern; i++)
        if ((((const unsigned char *)each->data)[i] != 0) != (i % c->pattern != c->pattern - 1))
            return lm_fail(RIDGE_ERR_UNSUPPORTED,
                           "%s.attention.sliding_window_pattern: layer %" PRId64 " does not "
                           "follow the pattern of one in %" PRId64,
                           m->arch, i, c->pattern);
    return RIDGE_OK;
}

ridge_status lm_config_read(const lm_meta *m, lm_config *c)
{
    double softcap = 0;

    memset(c, 0, sizeof *c);
    c->family = lm_family_of(m->arch);
    if (!c->family)
        return lm_fail(RIDGE_ERR_UNSUPPORTED,
                       "general.architecture is '%s': llama, qwen2, qwen3, qwen3moe, gpt-oss "
                       "and gemma3 are supported",
                       m->arch);
    TRY(read_sizes(m, c));
    TRY(read_experts(m, c));
    c->eps = 0;
    TRY(lm_meta_number(m, ".attention.layer_norm_rms_epsilon", 1e-12, 1, &c->eps));
    if (c->eps == 0)
        return lm_fail(RIDGE_ERR_FILE, "%s.attention.layer_norm_rms_epsilon is missing", m->arch);
    TRY(read_rope(m, c));
    TRY(read_window(m, c));
    TRY(lm_meta_number(m, ".attn_logit_softcapping", 0, 1e6, &softcap));
    TRY(lm_meta_number(m, ".final_logit_softcapping", 0, 1e6, &c->final_softcap));
    if (softcap != 0)
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "%s.attn_logit_softcapping is %g: no supported family has one", m->arch,
                       softcap);
    /* Gemma 3's largest model scales by its embedding's share of a head; no key says so. */
    c->attention_scale = 1 / sqrt((double)c->head_dim);
    if (c->family->root_embed && c->layers == 62)
        c->attention_scale = 1 / sqrt((double)c->hidden / (double)c->heads);
    TRY(lm_meta_number(m, ".attention.scale", 1e-6, 1e3, &c->attention_scale));
    c->n_rot = c->family->halves || c->n_rot == c->head_dim ? c->n_rot : 0;
    return c->n_rot
               ? RIDGE_OK
               : lm_fail(RIDGE_ERR_UNSUPPORTED, "%s.rope.dimension_count differs from the length of a head", m->arch);
}
