/* args.cu: cross entropy on CUDA: a call's operands and options as ce_params, and its part of the workspace. */
#include "ce.cuh"
#include "phase.h"
#include "src/util.h"

/* class_weight .. errors: eight slots in the same order in every op that has them. */
static void collect_outputs(ce_params *p, const ridge_operand *arg, int loss, int class_weight)
{
    p->loss = (float *)arg[loss].data;
    p->class_weight = (const float *)arg[class_weight].data;
    p->token_loss = (float *)arg[class_weight + 1].data;
    p->lse = (float *)arg[class_weight + 2].data;
    p->target_logit = (float *)arg[class_weight + 3].data;
    p->entropy = (float *)arg[class_weight + 4].data;
    p->argmax = (int64_t *)arg[class_weight + 5].data;
    p->accuracy = (float *)arg[class_weight + 6].data;
    p->errors = (int32_t *)arg[class_weight + 7].data;
}

static void collect_record(ce_params *p, const ridge_operand *record)
{
    p->record = (float *)record->data;
    p->record_stride = record->stride;
}

static void collect_gradients(ce_params *p, const ridge_operand *arg, int dx)
{
    p->dx = arg[dx].data;
    p->dx_stride = arg[dx].stride;
    p->dw = arg[dx + 1].data;
    p->dw_stride = arg[dx + 1].stride;
    p->dw_dtype = (int)arg[dx + 1].dtype;
    p->dbias = (float *)arg[dx + 2].data;
}

/* ids and id_logprob. */
static void collect_ids(ce_params *p, const ridge_call *call, int ids)
{
    p->k = (int)call->opt.ce.ids;
    p->ids = call->arg[ids].data;
    p->ids_stride = call->arg[ids].stride;
    p->id_logprob = (float *)call->arg[ids + 1].data;
    p->id_stride = call->arg[ids + 1].stride;
}

static void collect_linear(ce_params *p, const ridge_call *call)
{
    const bool backward = call->op == RIDGE_LINEAR_CE_BACKWARD;
    const int bias = backward ? (int)RIDGE_LINEAR_CE_BACKWARD_BIAS : (int)RIDGE_LINEAR_CE_BIAS;
    const ridge_operand *arg = call->arg;

    p->hidden = call->dim[1];
    p->vocab = call->dim[2];
    p->hv = (call->flags & RIDGE_CE_W_HV) != 0;
    p->w = arg[RIDGE_LINEAR_CE_W].data;
    p->w_stride = arg[RIDGE_LINEAR_CE_W].stride;
    p->bias = arg[bias].data;
    p->bias_dtype = (int)arg[bias].dtype;
    p->target = arg[RIDGE_LINEAR_CE_TARGET].data;
    p->target64 = arg[RIDGE_LINEAR_CE_TARGET].dtype == RIDGE_I64;
    if (backward) {
        p->lse_in = (const float *)arg[RIDGE_LINEAR_CE_BACKWARD_LSE].data;
        p->dloss = (const float *)arg[RIDGE_LINEAR_CE_BACKWARD_DLOSS].data;
        p->class_weight = (const float *)arg[RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT].data;
        p->entropy_in = (const float *)arg[RIDGE_LINEAR_CE_BACKWARD_ENTROPY].data;
        p->dentropy = (const float *)arg[RIDGE_LINEAR_CE_BACKWARD_DENTROPY].data;
        collect_ids(p, call, RIDGE_LINEAR_CE_BACKWARD_IDS);
        p->did = (const float *)arg[RIDGE_LINEAR_CE_BACKWARD_DID_LOGPROB].data;
        p->did_stride = arg[RIDGE_LINEAR_CE_BACKWARD_DID_LOGPROB].stride;
        collect_gradients(p, arg, RIDGE_LINEAR_CE_BACKWARD_DX);
        return;
    }
    collect_outputs(p, arg, RIDGE_LINEAR_CE_LOSS, RIDGE_LINEAR_CE_CLASS_WEIGHT);
    collect_record(p, &arg[RIDGE_LINEAR_CE_RECORD]);
    if (call->op == RIDGE_LINEAR_CE_TRAIN) {
        if (call->flags & RIDGE_CE_PHASE) {
            p->lse_in = call->flags & RIDGE_CE_BEGIN ? NULL : p->lse;
            p->lse = NULL;
        }
        p->dloss = (const float *)arg[RIDGE_LINEAR_CE_GRAD_SCALE].data;
        collect_gradients(p, arg, RIDGE_LINEAR_CE_DX);
    } else {
        collect_ids(p, call, RIDGE_LINEAR_CE_IDS);
        p->top_k = (int)call->opt.ce.topk;
        p->top_id = (int64_t *)arg[RIDGE_LINEAR_CE_TOP_ID].data;
        p->top_id_stride = arg[RIDGE_LINEAR_CE_TOP_ID].stride;
        p->top_logprob = (float *)arg[RIDGE_LINEAR_CE_TOP_LOGPROB].data;
        p->top_stride = arg[RIDGE_LINEAR_CE_TOP_LOGPROB].stride;
        p->seed = (const int64_t *)arg[RIDGE_LINEAR_CE_SEED].data;
        p->counter = (const int64_t *)arg[RIDGE_LINEAR_CE_COUNTER].data;
        p->sample_id = (int64_t *)arg[RIDGE_LINEAR_CE_SAMPLE_ID].data;
        p->sample_logprob = (float *)arg[RIDGE_LINEAR_CE_SAMPLE_LOGPROB].data;
        p->sample_score = (float *)arg[RIDGE_LINEAR_CE_SAMPLE_SCORE].data;
    }
}

static void collect_given(ce_params *p, const ridge_call *call)
{
    const ridge_operand *arg = call->arg;

    p->vocab = call->dim[1];
    p->target = arg[RIDGE_CE_FWD_TARGET].data;
    p->target64 = arg[RIDGE_CE_FWD_TARGET].dtype == RIDGE_I64;
    if (call->op == RIDGE_CE_FWD) {
        collect_outputs(p, arg, RIDGE_CE_FWD_LOSS, RIDGE_CE_FWD_CLASS_WEIGHT);
        collect_record(p, &arg[RIDGE_CE_FWD_RECORD]);
        return;
    }
    p->lse_in = (const float *)arg[RIDGE_CE_BWD_LSE].data;
    p->dloss = (const float *)arg[RIDGE_CE_BWD_DLOSS].data;
    p->class_weight = (const float *)arg[RIDGE_CE_BWD_CLASS_WEIGHT].data;
    p->entropy_in = (const float *)arg[RIDGE_CE_BWD_ENTROPY].data;
    p->dentropy = (const float *)arg[RIDGE_CE_BWD_DENTROPY].data;
    p->dx = arg[RIDGE_CE_BWD_DLOGITS].data;
    p->dx_stride = arg[RIDGE_CE_BWD_DLOGITS].stride;
}

static void collect_combine(ce_params *p, const ridge_call *call)
{
    const ridge_operand *arg = call->arg;

    p->vocab = call->dim[1];
    p->shards = call->dim[2];
    p->target = arg[RIDGE_CE_COMBINE_TARGET].data;
    p->target64 = arg[RIDGE_CE_COMBINE_TARGET].dtype == RIDGE_I64;
    p->record_in = (const float *)arg[RIDGE_CE_COMBINE_RECORD].data;
    p->record_stride = arg[RIDGE_CE_COMBINE_RECORD].stride;
    p->shard_offset = (const int64_t *)arg[RIDGE_CE_COMBINE_OFFSET].data;
    p->shard_argmax = (const int64_t *)arg[RIDGE_CE_COMBINE_SHARD_ARGMAX].data;
    p->shard_argmax_stride = arg[RIDGE_CE_COMBINE_SHARD_ARGMAX].stride;
    collect_outputs(p, arg, RIDGE_CE_COMBINE_LOSS, RIDGE_CE_COMBINE_CLASS_WEIGHT);
}

ce_params ce_collect(const ridge_bound *bound)
{
    const ridge_call *call = &bound->call;
    const ridge_ce_options *o = &call->opt.ce;
    ce_params p = {};

    p.op = call->op;
    p.flags = call->flags;
    p.tokens = call->dim[0];
    p.ignore_index = o->ignore_index;
    p.smoothing = o->label_smoothing;
    p.softcap = o->softcap;
    p.temperature = o->temperature;
    p.square_scale = o->lse_square_scale;
    p.grad_scale = o->grad_scale;
    p.x = call->arg[0].data;
    p.dtype = (int)call->arg[0].dtype;
    p.x_stride = call->arg[0].stride;
    if (call->op == RIDGE_CE_COMBINE)
        collect_combine(&p, call);
    else if (call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD)
        collect_given(&p, call);
    else
        collect_linear(&p, call);
    p.offset = o->vocab_offset;
    p.total = o->vocab_total ? o->vocab_total : p.vocab;
    p.full = p.entropy || p.argmax || p.accuracy || (p.flags & RIDGE_CE_RECORD_SUMS) || p.smoothing != 0.0f ||
             p.top_k > 0 || p.sample_id;
    return p;
}

/* Whether a call of this problem may ask for more than maximum and sum. A problem does not show every option, only
 * that one of them is set. */
static bool may_be_full(const ridge_problem *problem)
{
    const bool given = problem->op == RIDGE_CE_FWD;
    const int entropy = given ? (int)RIDGE_CE_FWD_ENTROPY : (int)RIDGE_LINEAR_CE_ENTROPY;

    return !problem->plain || ce_wants_top(problem) || ce_wants_sample(problem) ||
           (problem->flags & RIDGE_CE_RECORD_SUMS) || problem->dtype[entropy] != RIDGE_NONE ||
           problem->dtype[entropy + 1] != RIDGE_NONE || problem->dtype[entropy + 2] != RIDGE_NONE;
}

char *ce_layout(ce_params *p, const ridge_problem *problem, int parts, void *workspace)
{
    const int64_t tokens = problem->dim[0];
    const bool combine = problem->op == RIDGE_CE_COMBINE, stats = ce_needs_stats(problem->op);
    char *at = (char *)workspace;

    p->parts = parts;
    p->totals = (ce_totals *)ridge_take(&at, sizeof(ce_totals));
    p->list = (int32_t *)ridge_take(&at, tokens * 4);
    p->row_of = (int32_t *)ridge_take(&at, tokens * 4);
    p->order = combine ? (int32_t *)ridge_take(&at, problem->dim[2] * 4) : NULL;
    p->label = (int32_t *)ridge_take(&at, tokens * 4);
    p->target_z = combine ? NULL : (float *)ridge_take(&at, tokens * 4);
    p->id_sums = problem->op == RIDGE_LINEAR_CE_BACKWARD && problem->dtype[RIDGE_LINEAR_CE_BACKWARD_IDS] != RIDGE_NONE
                     ? (double2 *)ridge_take(&at, tokens * 16)
                     : NULL;
    p->losses = stats ? (double *)ridge_take(&at, 3 * tokens * 8) : NULL;
    p->part = stats && !combine ? (ce_part *)ridge_take(&at, tokens * parts * (int64_t)sizeof(ce_part)) : NULL;
    p->more = stats && !combine && may_be_full(problem)
                  ? (ce_more *)ridge_take(&at, tokens * parts * (int64_t)sizeof(ce_more))
                  : NULL;
    p->draw = ce_wants_sample(problem) ? (uint64_t *)ridge_take(&at, tokens * 8) : NULL;
    if (ce_wants_top(problem)) {
        p->top_count = (int32_t *)ridge_take(&at, tokens * parts * 4);
        p->top_bins = (uint32_t *)ridge_take(&at, tokens * CE_TOP_BINS * 4);
        p->top_scale = (float2 *)ridge_take(&at, tokens * 8);
        p->top_least = (float *)ridge_take(&at, tokens * 4);
        p->top = (uint64_t *)ridge_take(&at, ridge_min(tokens, CE_TOP_ROWS) * parts * CE_TOP_LIST * 8);
    }
    return at;
}

size_t ce_workspace_bytes(const ridge_problem *problem, int parts)
{
    ce_params p = {};

    return (size_t)(uintptr_t)ce_layout(&p, problem, parts, NULL);
}
