/* weights.c: which tensors a file of each family has, and what becomes of them on the device: matrices (matrix.c),
 * norms, biases and RoPE's frequencies. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

ridge_status lm_take(ridge_lm *lm, int64_t bytes, void **memory)
{
    void **more = realloc(lm->owned, (size_t)(lm->owned_count + 1) * sizeof *more);

    if (!more)
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for a list of %" PRId64 " entries", lm->owned_count + 1);
    lm->owned = more;
    TRY(lm->backend->alloc(lm->state, bytes, memory));
    lm->owned[lm->owned_count++] = *memory;
    return RIDGE_OK;
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

/* Is this its shape? cols 0: a vector of `rows`; experts 0: no third dimension. */
static bool has_shape(const ridge_entry *e, int64_t experts, int64_t rows, int64_t cols, bool more)
{
    if (experts)
        return e->rank == 3 && e->shape[0] == experts && e->shape[1] == rows && e->shape[2] == cols;
    return e->rank == (cols ? 2 : 1) && (e->shape[0] == rows || (more && e->shape[0] > rows)) &&
           (!cols || e->shape[1] == cols);
}

/* A tensor of this shape; a matrix may have more rows with `more`. NULL in *entry where it is absent and not `needed`.
 */
static ridge_status find_experts(lm_loader *l, const char *name, int64_t experts, int64_t rows, int64_t cols,
                                 bool needed, bool more, const ridge_entry **entry)
{
    const ridge_entry *e = ridge_file_find(l->lm->file, name);
    const ridge_type_info *type = e ? ridge_type_query(e->type) : NULL;
    const bool plain = e && (e->type == RIDGE_TYPE_F32 || e->type == RIDGE_TYPE_F16 || e->type == RIDGE_TYPE_BF16);

    *entry = e;
    if (!e)
        return needed ? lm_fail(RIDGE_ERR_FILE, "tensor %s is missing", name) : RIDGE_OK;
    for (int64_t i = 0; i < ridge_file_tensors(l->lm->file); i++)
        if (ridge_file_tensor(l->lm->file, i) == e)
            l->used[i] = true;
    if (!has_shape(e, experts, rows, cols, more))
        return experts
                   ? lm_fail(RIDGE_ERR_FILE, "tensor %s has another shape than %" PRId64 " x %" PRId64 " x %" PRId64,
                             name, experts, rows, cols)
                   : lm_fail(RIDGE_ERR_FILE, "tensor %s has another shape than %" PRId64 " x %" PRId64, name, rows,
                             cols ? cols : 1);
    if (!type || !type->dequantize || (!cols && !plain))
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "tensor %s is of type %s, which has no conversion here", name,
                       type ? type->name : "(none)");
    return RIDGE_OK;
}

static ridge_status find(lm_loader *l, const char *name, int64_t rows, int64_t cols, bool needed, bool more,
                         const ridge_entry **entry)
{
    return find_experts(l, name, 0, rows, cols, needed, more, entry);
}

static ridge_status load_vector(lm_loader *l, const char *name, int64_t count, bool needed, float *to, bool *found)
{
    const ridge_entry *e;

    TRY(find(l, name, count, 0, needed, false, &e));
    *found = e != NULL;
    if (!e)
        return RIDGE_OK;
    TRY(lm_io_failed(ridge_file_read(l->lm->file, e, 0, l->raw, e->bytes)));
    return lm_io_failed(ridge_dequantize(e->type, l->raw, count, to));
}

static ridge_status put_vector(lm_loader *l, const float *from, int64_t count, float **to)
{
    void *memory;

    TRY(lm_take(l->lm, count * 4, &memory));
    *to = memory;
    l->lm->step_bytes += count * 4;
    return l->lm->backend->upload(l->lm->state, memory, from, count * 4);
}

/* A norm's weight, or none. */
static ridge_status vector(lm_loader *l, const char *name, int64_t count, bool needed, float **to)
{
    bool found;

    TRY(load_vector(l, name, count, needed, l->values, &found));
    return found ? put_vector(l, l->values, count, to) : RIDGE_OK;
}

static ridge_status matrix(lm_loader *l, const ridge_entry *const *parts, const int64_t *rows, int count, int64_t cols,
                           lm_matrix *m)
{
    return lm_matrix_load(l, parts, rows, count, cols, false, m);
}

/* ----------------------------------------------------------------------------------------------------------- layers */

static const char *in_layer(char *text, size_t size, int64_t layer, const char *name)
{
    snprintf(text, size, "blk.%" PRId64 ".%s", layer, name);
    return text;
}

/* packed: for products of experts, which take no stride. */
static ridge_status layer_matrix(lm_loader *l, int64_t i, const char *name, int64_t rows, int64_t cols, bool packed,
                                 lm_matrix *m)
{
    const ridge_entry *e;
    char full[64];

    TRY(find(l, in_layer(full, sizeof full, i, name), rows, cols, true, false, &e));
    return lm_matrix_load(l, &e, &rows, 1, cols, packed, m);
}

static ridge_status layer_vector(lm_loader *l, int64_t i, const char *name, int64_t count, bool needed, float **to)
{
    char full[64];

    return vector(l, in_layer(full, sizeof full, i, name), count, needed, to);
}

/* q, k and v: those that follow each other in one format become one matrix. Rows of heads are whole tiles of 16. */
static ridge_status put_qkv(lm_loader *l, const ridge_entry *const *parts, const int64_t *rows, lm_layer *to)
{
    for (int first = 0, n, number = 0; first < 3; first += n) {
        n = 1;
        while (first + n < 3 && lm_stored_as(l->lm, parts[first + n]) == lm_stored_as(l->lm, parts[first]))
            n++;
        TRY(matrix(l, parts + first, rows + first, n, l->lm->config.hidden, &to->qkv[number++]));
    }
    return RIDGE_OK;
}

/* q, k and v, and their biases as one vector where the file has them. */
static ridge_status load_qkv(lm_loader *l, int64_t i, lm_layer *to)
{
    static const char *const names[] = {"attn_q", "attn_k", "attn_v"};
    const lm_config *c = &l->lm->config;
    const int64_t rows[] = {c->heads * c->head_dim, c->kv_heads * c->head_dim, c->kv_heads * c->head_dim};
    const ridge_entry *parts[3];
    int64_t at = 0;
    int biases = 0;
    char full[64];

    for (int j = 0; j < 3; j++) {
        bool found;

        snprintf(full, sizeof full, "blk.%" PRId64 ".%s.weight", i, names[j]);
        TRY(find(l, full, rows[j], c->hidden, true, false, &parts[j]));
        snprintf(full, sizeof full, "blk.%" PRId64 ".%s.bias", i, names[j]);
        TRY(load_vector(l, full, rows[j], false, l->values + at, &found));
        biases += found;
        at += rows[j];
    }
    if (biases % 3)
        return lm_fail(RIDGE_ERR_FILE, "layer %" PRId64 " has biases for some of q, k and v only", i);
    if (biases)
        TRY(put_vector(l, l->values, at, &to->bias));
    return put_qkv(l, parts, rows, to);
}

/* One matrix of all experts. */
static ridge_status expert_matrix(lm_loader *l, int64_t i, const char *name, int64_t rows, int64_t cols, lm_matrix *m)
{
    const int64_t experts = l->lm->config.experts, all = experts * rows;
    const ridge_entry *e;
    char full[64];

    TRY(find_experts(l, in_layer(full, sizeof full, i, name), experts, rows, cols, true, false, &e));
    return lm_matrix_load(l, &e, &all, 1, cols, true, m);
}

/* Vectors of all experts, one after the other, that gpt-oss adds to their products. */
static ridge_status expert_biases(lm_loader *l, int64_t i, const char *name, int64_t rows, float **to)
{
    const int64_t experts = l->lm->config.experts, before = l->lm->step_bytes;
    const ridge_entry *e;
    char full[64];

    TRY(find(l, in_layer(full, sizeof full, i, name), experts, rows, true, false, &e));
    if (experts * rows > LM_LOAD_PANEL)
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "tensor %s has more than %d elements", full, (int)LM_LOAD_PANEL);
    TRY(lm_io_failed(ridge_file_read(l->lm->file, e, 0, l->raw, e->bytes)));
    TRY(lm_io_failed(ridge_dequantize(e->type, l->raw, experts * rows, l->values)));
    TRY(put_vector(l, l->values, experts * rows, to));
    l->lm->step_bytes = before + l->lm->config.used * rows * 4;
    return RIDGE_OK;
}

/* What gpt-oss has beside the others' tensors. */
static ridge_status load_oss(lm_loader *l, int64_t i, lm_layer *to)
{
    const lm_config *c = &l->lm->config;

    TRY(layer_vector(l, i, "attn_sinks.weight", c->heads, true, &to->sinks));
    TRY(layer_vector(l, i, "attn_output.bias", c->hidden, true, &to->out_bias));
    TRY(layer_vector(l, i, "ffn_gate_inp.bias", c->experts, true, &to->router_bias));
    TRY(expert_biases(l, i, "ffn_gate_exps.bias", c->expert_ffn, &to->gate_bias));
    TRY(expert_biases(l, i, "ffn_up_exps.bias", c->expert_ffn, &to->up_bias));
    return expert_biases(l, i, "ffn_down_exps.bias", c->hidden, &to->down_bias);
}

/* Whether all values are bf16's: the low half of the bits is zero. */
static bool is_bf16(const float *values, int64_t count)
{
    uint32_t low = 0;

    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, values + i, sizeof bits);
        low |= bits & 0xffff;
    }
    return low == 0;
}

/* The router's weights: f32, as a file has them, or bf16 where that is the same, as it is if a model was trained so. */
static ridge_status load_router(lm_loader *l, int64_t i, lm_layer *to)
{
    const lm_config *c = &l->lm->config;
    const int64_t count = c->experts * c->hidden;
    const float one = 1.0f;
    const ridge_entry *e;
    ridge_status status;
    ridge_call call;
    char full[64];
    float *values;
    void *raw, *bf16;
    bool half;

    TRY(find(l, in_layer(full, sizeof full, i, "ffn_gate_inp.weight"), c->experts, c->hidden, true, false, &e));
    values = malloc((size_t)(6 * count + e->bytes));
    if (!values)
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for %" PRId64 " bytes", 6 * count + e->bytes);
    bf16 = values + count;
    raw = (char *)bf16 + 2 * count;
    status = lm_io_failed(ridge_file_read(l->lm->file, e, 0, raw, e->bytes));
    status = status ? status : lm_io_failed(ridge_dequantize(e->type, raw, count, values));
    half = !status && is_bf16(values, count);
    to->router_dtype = half ? RIDGE_BF16 : RIDGE_F32;
    call = ridge_multiply(c->experts, c->hidden, ridge_matrix(values, RIDGE_F32), &one, ridge_matrix(bf16, RIDGE_BF16));
    status = status ? status : lm_ridge_failed(ridge_run(l->lm->cpu, &call, NULL, 0, NULL));
    status = status ? status : lm_take(l->lm, (half ? 2 : 4) * count, &to->router);
    status =
        status ? status
               : l->lm->backend->upload(l->lm->state, to->router, half ? bf16 : (void *)values, (half ? 2 : 4) * count);
    l->lm->step_bytes += (half ? 2 : 4) * count;
    free(values);
    return status;
}

static ridge_status load_experts(lm_loader *l, int64_t i, lm_layer *to)
{
    const lm_config *c = &l->lm->config;
    const int64_t before = l->lm->step_bytes;

    TRY(expert_matrix(l, i, "ffn_gate_exps.weight", c->expert_ffn, c->hidden, &to->gate));
    TRY(expert_matrix(l, i, "ffn_up_exps.weight", c->expert_ffn, c->hidden, &to->up));
    TRY(expert_matrix(l, i, "ffn_down_exps.weight", c->hidden, c->expert_ffn, &to->down));
    /* A step of one token reads those of its experts. */
    l->lm->step_bytes = before + (l->lm->step_bytes - before) / c->experts * c->used;
    return load_router(l, i, to);
}

static ridge_status load_layer(lm_loader *l, int64_t i)
{
    const lm_config *c = &l->lm->config;
    const bool local = c->window && c->pattern && i % c->pattern != c->pattern - 1;
    lm_layer *to = &l->lm->layer[i];

    to->window = local ? c->window : 0;
    to->freqs = local && !c->family->oss ? l->lm->local_freqs : l->lm->freqs;
    to->mscale = local && !c->family->oss ? 1.0f : l->lm->mscale;
    TRY(layer_vector(l, i, "attn_norm.weight", c->hidden, true, &to->attn_norm));
    TRY(load_qkv(l, i, to));
    TRY(layer_vector(l, i, "attn_q_norm.weight", c->head_dim, c->family->qk_norm, &to->q_norm));
    TRY(layer_vector(l, i, "attn_k_norm.weight", c->head_dim, c->family->qk_norm, &to->k_norm));
    TRY(layer_matrix(l, i, "attn_output.weight", c->hidden, c->heads * c->head_dim, c->family->oss, &to->out));
    if (c->family->oss)
        TRY(load_oss(l, i, to));
    if (c->family->post_norms) {
        TRY(layer_vector(l, i, "post_attention_norm.weight", c->hidden, true, &to->post_attn_norm));
        TRY(layer_vector(l, i, "post_ffw_norm.weight", c->hidden, true, &to->post_ffw_norm));
    }
    TRY(layer_vector(l, i, c->family->oss ? "post_attention_norm.weight" : "ffn_norm.weight", c->hidden, true,
                     &to->ffn_norm));
    if (c->experts)
        return load_experts(l, i, to);
    TRY(layer_matrix(l, i, "ffn_gate.weight", c->ffn, c->hidden, false, &to->gate));
    TRY(layer_matrix(l, i, "ffn_up.weight", c->ffn, c->hidden, false, &to->up));
    return layer_matrix(l, i, "ffn_down.weight", c->hidden, c->ffn, false, &to->down);
}

/* ------------------------------------------------------------------------------------------------------------- RoPE */

static ridge_status load_freqs(lm_loader *l)
{
    ridge_lm *lm = l->lm;
    const lm_config *c = &lm->config;
    const ridge_yarn yarn = {
        sizeof yarn,  0,           1 / c->scale_factor, c->original_context, c->ext_factor, c->attn_factor,
        c->beta_fast, c->beta_slow};
    const int64_t pairs = c->n_rot / 2;
    double freqs[RIDGE_MAX_HEAD_DIM / 2], local[RIDGE_MAX_HEAD_DIM / 2];
    bool found;

    TRY(lm_ridge_failed(ridge_rope_freqs(c->n_rot, c->base, c->yarn ? &yarn : NULL, freqs, &lm->mscale)));
    TRY(lm_ridge_failed(ridge_rope_freqs(c->n_rot, c->local_base, NULL, local, NULL)));
    for (int64_t i = 0; i < pairs && !c->yarn; i++)
        freqs[i] /= c->scale_factor;
    TRY(load_vector(l, "rope_freqs.weight", pairs, false, l->values, &found));
    for (int64_t i = 0; i < pairs && found; i++) {
        if (!(l->values[i] > 0) || isinf(l->values[i]))
            return lm_fail(RIDGE_ERR_FILE, "rope_freqs.weight[%" PRId64 "] is %g", i, (double)l->values[i]);
        freqs[i] /= (double)l->values[i];
    }
    TRY(lm_take(lm, pairs * 8, (void **)&lm->freqs));
    TRY(lm_take(lm, pairs * 8, (void **)&lm->local_freqs));
    TRY(lm->backend->upload(lm->state, lm->freqs, freqs, pairs * 8));
    return lm->backend->upload(lm->state, lm->local_freqs, local, pairs * 8);
}

/* -------------------------------------------------------------------------------------------------------------- all */

/* The embeddings are on the device as in the file, or f32. On the host they stay in the file. */
static ridge_dtype table_format(const ridge_entry *e)
{
    const ridge_dtype kept = lm_format_of(e->type);

    return e->type == RIDGE_TYPE_Q8_0 ? RIDGE_I8 : kept == RIDGE_I8 || kept == RIDGE_IQ2_XXS ? RIDGE_F32 : kept;
}

static int64_t table_bytes(const ridge_lm *lm, const ridge_entry *e, int64_t rows, int64_t cols)
{
    const ridge_dtype format = table_format(e);

    return lm->backend->host     ? 0
           : format == RIDGE_F32 ? 4 * rows * cols
                                 : lm_code_bytes(format, rows, cols, false) + lm_scale_bytes(format, rows, cols);
}

static ridge_status load_table(lm_loader *l, int64_t rows)
{
    ridge_lm *lm = l->lm;
    const ridge_entry *e = lm->embedding;
    const int64_t cols = lm->config.hidden, panel = LM_LOAD_PANEL / cols > 0 ? LM_LOAD_PANEL / cols : 1;
    const int64_t step_bytes = lm->step_bytes, row = e->bytes / e->shape[0];
    lm_matrix m;
    void *memory;

    if (table_format(e) != RIDGE_F32) {
        TRY(matrix(l, &e, &rows, 1, cols, &m));
        lm->step_bytes = step_bytes; /* a step reads one row */
        lm->table = lm_weights(&m);
        return RIDGE_OK;
    }
    TRY(lm_take(lm, rows * cols * 4, &memory));
    for (int64_t r = 0; r < rows; r += panel) {
        const int64_t some = rows - r < panel ? rows - r : panel;

        TRY(lm_io_failed(ridge_file_read(lm->file, e, r * row, l->raw, some * row)));
        TRY(lm_io_failed(ridge_dequantize(e->type, l->raw, some * cols, l->values)));
        TRY(lm->backend->upload(lm->state, (char *)memory + r * cols * 4, l->values, some * cols * 4));
    }
    lm->table = ridge_matrix(memory, RIDGE_F32);
    return RIDGE_OK;
}

/* Bytes of a tensor on the device. */
static int64_t device_bytes(const ridge_lm *lm, const ridge_entry *e)
{
    const bool head = strcmp(e->name, "output.weight") == 0, table = strcmp(e->name, "token_embd.weight") == 0;
    const int64_t cols = e->rank ? e->shape[e->rank - 1] : 1;
    const bool padded = e->rank < 3 && !(lm->config.family->oss && strstr(e->name, "attn_output"));
    int64_t rows = 1;

    for (int32_t i = 0; i + 1 < e->rank; i++)
        rows *= e->shape[i];
    if (head || table)
        rows = lm->vocab.count;
    if (strstr(e->name, "ffn_gate_inp.weight"))
        return 2 * rows * cols;
    if (e->rank < 2 || strstr(e->name, ".bias"))
        return 4 * rows * cols;
    if (table && ridge_file_find(lm->file, "output.weight"))
        return table_bytes(lm, e, rows, cols);
    return lm_code_bytes(lm_stored_as(lm, e), rows, cols, !padded) + lm_scale_bytes(lm_stored_as(lm, e), rows, cols) +
           (table && table_format(e) == RIDGE_F32 ? table_bytes(lm, e, rows, cols) : 0);
}

/* What all weights take, said and compared with what there is before anything is allocated. */
static ridge_status check_memory(ridge_lm *lm)
{
    const lm_config *c = &lm->config;
    const int64_t free_bytes = lm->backend->free_bytes(lm->state);
    int64_t limit = lm->options.memory_limit ? lm->options.memory_limit : free_bytes;

    lm->weight_bytes = 0;
    for (int64_t i = 0; i < ridge_file_tensors(lm->file); i++)
        lm->weight_bytes += device_bytes(lm, ridge_file_tensor(lm->file, i));
    lm_note(lm, "%s, %" PRId64 " layers of %" PRId64 " columns, %d tokens: %.1f MB of weights", c->family->name,
            c->layers, c->hidden, lm->vocab.count, (double)lm->weight_bytes * 1e-6);
    if (limit && lm->weight_bytes > limit)
        return lm_fail(RIDGE_ERR_DEVICE, "the weights take %.1f MB, and there are %.1f MB",
                       (double)lm->weight_bytes * 1e-6, (double)limit * 1e-6);
    return RIDGE_OK;
}

static ridge_status load_all(lm_loader *l)
{
    ridge_lm *lm = l->lm;
    const lm_config *c = &lm->config;
    const ridge_entry *head;
    const int64_t rows = lm->vocab.count;

    TRY(find(l, "token_embd.weight", rows, c->hidden, true, true, &lm->embedding));
    TRY(find(l, "output.weight", rows, c->hidden, false, true, &head));
    TRY(load_freqs(l));
    for (int i = 0; i < LM_MOST_TOKENS; i++)
        l->values[i] = 1.0f;
    TRY(put_vector(l, l->values, LM_MOST_TOKENS, &lm->ones));
    if (c->experts) {
        memset(l->values, 0, 16 * sizeof *l->values);
        TRY(put_vector(l, l->values, 16, (float **)&lm->zeros));
    }
    for (int64_t i = 0; i < c->layers; i++)
        TRY(load_layer(l, i));
    TRY(vector(l, "output_norm.weight", c->hidden, true, &lm->output_norm));
    TRY(matrix(l, head ? &head : &lm->embedding, &rows, 1, c->hidden, &lm->head));
    if (!head && table_format(lm->embedding) != RIDGE_F32)
        lm->table = lm_weights(&lm->head);
    else if (!lm->backend->host)
        TRY(load_table(l, rows));
    for (int64_t i = 0; i < ridge_file_tensors(lm->file); i++) /* one that is not known might change the result */
        if (!l->used[i])
            return lm_fail(RIDGE_ERR_UNSUPPORTED, "tensor %s is none that %s models have",
                           ridge_file_tensor(lm->file, i)->name, c->family->name);
    return RIDGE_OK;
}

/* What became of the file's matrices. */
static void tell(const lm_loader *l)
{
    for (uint32_t type = 0; type < RIDGE_TYPES; type++) {
        const char *name = l->kept[type] || l->matrices[type] ? ridge_type_query(type)->name : NULL;

        if (l->kept[type])
            lm_note(l->lm, "matrices of %s: %" PRId64 " as in the file, %.1f MB", name, l->kept[type],
                    (double)l->kept_bytes[type] * 1e-6);
        if (l->matrices[type] && type != RIDGE_TYPE_Q8_0)
            lm_note(l->lm, "matrices of %s: %" PRId64 " became Q8_0, %.1f MB in the file, %.1f MB here", name,
                    l->matrices[type], (double)l->file_bytes[type] * 1e-6, (double)l->device_bytes[type] * 1e-6);
    }
}

ridge_status lm_weights_load(ridge_lm *lm)
{
    const lm_config *c = &lm->config;
    int64_t widest = c->ffn > c->hidden ? c->ffn : c->hidden, most;
    lm_loader l = {.lm = lm};
    ridge_status status = check_memory(lm);

    if (status)
        return status;
    widest = c->expert_ffn > widest ? c->expert_ffn : widest;
    most = LM_LOAD_PANEL + 4 * (widest + c->heads * c->head_dim * 3);
    lm->layer = calloc((size_t)c->layers, sizeof *lm->layer);
    l.raw_bytes = most * 8;
    l.raw = malloc((size_t)l.raw_bytes);
    l.blocks = malloc((size_t)most * 2);
    l.values = malloc((size_t)most * 4);
    l.used = calloc((size_t)ridge_file_tensors(lm->file) + 1, sizeof *l.used);
    status = lm->layer && l.used && l.raw && l.blocks && l.values
                 ? RIDGE_OK
                 : lm_fail(RIDGE_ERR_DEVICE, "no memory to convert weights");
    if (!status && !lm->backend->host)
        status = lm->backend->alloc(lm->state, l.raw_bytes, &l.staged);
    status = status ? status : load_all(&l);
    if (l.staged)
        lm->backend->release(lm->state, l.staged);
    free(l.used);
    free(l.values);
    free(l.blocks);
    free(l.raw);
    if (!status)
        tell(&l);
    return status;
}

void lm_weights_free(ridge_lm *lm)
{
    for (int64_t i = 0; i < lm->owned_count; i++)
        lm->backend->release(lm->state, lm->owned[i]);
    free(lm->owned);
    free(lm->layer);
}

float lm_embed_scale(const ridge_lm *lm)
{
    return lm->config.family->root_embed ? sqrtf((float)lm->config.hidden) : 1.0f;
}

ridge_status lm_embed(const ridge_lm *lm, const int32_t *tokens, int64_t count, float *to)
{
    const ridge_entry *e = lm->embedding;
    const int64_t row = e->bytes / e->shape[0], hidden = lm->config.hidden;
    const float factor = lm_embed_scale(lm);
    void *raw = malloc((size_t)row);
    ridge_status status = raw ? RIDGE_OK : lm_fail(RIDGE_ERR_DEVICE, "no memory for %" PRId64 " bytes", row);

    for (int64_t t = 0; t < count && !status; t++) {
        status = lm_io_failed(ridge_file_read(lm->file, e, tokens[t] * row, raw, row));
        if (!status)
            status = lm_io_failed(ridge_dequantize(e->type, raw, hidden, to + t * hidden));
        for (int64_t i = 0; i < hidden && factor != 1.0f; i++)
            to[t * hidden + i] *= factor;
    }
    free(raw);
    return status;
}
