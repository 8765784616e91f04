/* args.h: calls of embed and sample as their CPU and CUDA rows take them. */
#ifndef RIDGE_GENERATE_ARGS_H
#define RIDGE_GENERATE_ARGS_H

#include <string.h>

#include "src/internal.h"

typedef struct embed_args {
    const char *table;
    const void *scales; /* f16, of planes */
    const void *ids;
    char *out;
    int64_t tokens, cols, vocab;
    int64_t stride, scales_stride, out_stride; /* elements; of blocks bytes */
    float scale;
    int32_t table_dtype, out_dtype, ids64;
} embed_args;

typedef struct sample_args {
    const float *logits;
    const int64_t *seed, *counter;
    const int32_t *history;
    void *token;
    float *copy; /* logits with the penalty, a row of vocab each; NULL: without history */
    int64_t rows, vocab, past, stride, history_stride, top_k;
    float temperature, top_p, min_p, penalty;
    int32_t token64;
} sample_args;

static inline embed_args embed_args_of(const ridge_call *call)
{
    const ridge_operand *table = &call->arg[RIDGE_EMBED_TABLE], *out = &call->arg[RIDGE_EMBED_OUT];
    embed_args p;

    memset(&p, 0, sizeof p);
    p.tokens = call->dim[0];
    p.cols = call->dim[1];
    p.vocab = call->dim[2];
    p.table = (const char *)table->data;
    p.table_dtype = (int32_t)table->dtype;
    p.stride = table->stride;
    p.scales = call->arg[RIDGE_EMBED_TABLE_SCALES].data;
    p.scales_stride = call->arg[RIDGE_EMBED_TABLE_SCALES].stride;
    p.ids = call->arg[RIDGE_EMBED_IDS].data;
    p.ids64 = call->arg[RIDGE_EMBED_IDS].dtype == RIDGE_I64;
    p.out = (char *)out->data;
    p.out_dtype = (int32_t)out->dtype;
    p.out_stride = out->stride;
    p.scale = call->opt.embed.scale;
    return p;
}

static inline sample_args sample_args_of(const ridge_call *call)
{
    const ridge_operand *logits = &call->arg[RIDGE_SAMPLE_LOGITS], *history = &call->arg[RIDGE_SAMPLE_HISTORY];
    sample_args p;

    memset(&p, 0, sizeof p);
    p.rows = call->dim[0];
    p.vocab = call->dim[1];
    p.past = history->data ? call->dim[2] : 0;
    p.logits = (const float *)logits->data;
    p.stride = logits->stride;
    p.seed = (const int64_t *)call->arg[RIDGE_SAMPLE_SEED].data;
    p.counter = (const int64_t *)call->arg[RIDGE_SAMPLE_COUNTER].data;
    p.history = (const int32_t *)history->data;
    p.history_stride = history->stride;
    p.token = call->arg[RIDGE_SAMPLE_TOKEN].data;
    p.token64 = call->arg[RIDGE_SAMPLE_TOKEN].dtype == RIDGE_I64;
    p.top_k = call->opt.sample.top_k;
    p.temperature = call->opt.sample.temperature;
    p.top_p = call->opt.sample.top_p;
    p.min_p = call->opt.sample.min_p;
    p.penalty = call->opt.sample.penalty;
    return p;
}

#endif
