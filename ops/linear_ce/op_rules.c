/* op_rules.c: rules and operand shapes of the cross entropy ops, whose rows are in op.c. */
#include <math.h>

#include "op.h"

/* Classes of the whole vocabulary. */
static int64_t total(const ridge_call *call)
{
    const int64_t here = call->dim[call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD ? 1 : 2];

    if (call->op == RIDGE_CE_COMBINE)
        return call->dim[1];
    return call->opt.ce.vocab_total ? call->opt.ce.vocab_total : here;
}

static bool is_slice(const ridge_call *call)
{
    const ridge_ce_options *o = &call->opt.ce;
    const int64_t here = call->dim[call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD ? 1 : 2];

    return call->op != RIDGE_CE_COMBINE && (o->vocab_offset != 0 || (o->vocab_total != 0 && o->vocab_total != here));
}

enum { MOST_IDS = 256 };

/* `count` operands from `ids` on go with option ids. */
static const char *ids_rule(const ridge_call *call, int ids, int count)
{
    const int64_t k = call->opt.ce.ids;

    if (k < 0 || k > MOST_IDS)
        return "option ids must lie in 0 .. 256";
    for (int i = 0; i < count; i++) {
        if (k == 0 && ridge_has(call, ids + i))
            return "operands ids, id_logprob and did_logprob need option ids";
        if (k > 0 && call->dim[0] != 0 && !ridge_has(call, ids + i))
            return i == 0   ? "operand ids is NULL, which option ids asks for"
                   : i == 1 ? "operand id_logprob is NULL, which option ids asks for"
                            : "operand did_logprob is NULL, which option ids asks for";
    }
    return NULL;
}

/* Operands top_id and top_logprob go with option topk. */
static const char *topk_rule(const ridge_call *call)
{
    const int64_t k = call->opt.ce.topk;

    if (k < 0 || k > MOST_IDS)
        return "option topk must lie in 0 .. 256";
    if (k > call->dim[2])
        return "option topk is above vocab";
    for (int arg = RIDGE_LINEAR_CE_TOP_ID; arg <= (int)RIDGE_LINEAR_CE_TOP_LOGPROB; arg++) {
        if (k == 0 && ridge_has(call, arg))
            return "operands top_id and top_logprob need option topk";
        if (k > 0 && call->dim[0] != 0 && !ridge_has(call, arg))
            return arg == RIDGE_LINEAR_CE_TOP_ID ? "operand top_id is NULL, which option topk asks for"
                                                 : "operand top_logprob is NULL, which option topk asks for";
    }
    return NULL;
}

/* Operands seed, counter and sample_logprob go with sample_id. */
static const char *sample_rule(const ridge_call *call)
{
    static const struct {
        int arg;
        const char *without, *missing;
    } with[] = {
        {RIDGE_LINEAR_CE_SEED, "operand seed needs sample_id", "operand seed is NULL, which sample_id needs"},
        {RIDGE_LINEAR_CE_COUNTER, "operand counter needs sample_id", "operand counter is NULL, which sample_id needs"},
        {RIDGE_LINEAR_CE_SAMPLE_LOGPROB, "operand sample_logprob needs sample_id",
         "operand sample_logprob is NULL, which sample_id needs"},
        {RIDGE_LINEAR_CE_SAMPLE_SCORE, "operand sample_score needs sample_id", NULL},
    };
    const bool draws = ridge_has(call, RIDGE_LINEAR_CE_SAMPLE_ID);

    for (int i = 0; i < 4 && call->dim[0] != 0; i++) {
        if (!draws && ridge_has(call, with[i].arg))
            return with[i].without;
        if (draws && with[i].missing && !ridge_has(call, with[i].arg))
            return with[i].missing;
    }
    if (draws && call->opt.ce.vocab_offset % 16)
        return "option vocab_offset must be a multiple of 16 where a class is drawn";
    return NULL;
}

static const char *options_rule(const ridge_call *call)
{
    const ridge_ce_options *o = &call->opt.ce;
    const int64_t here = call->dim[call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD ? 1 : 2];

    if (!(o->label_smoothing >= 0.0f && o->label_smoothing <= 1.0f))
        return "option label_smoothing must lie in 0 .. 1";
    if (!(o->softcap >= 0.0f) || isinf(o->softcap))
        return "option softcap must be finite and positive, or 0 for none";
    if (!(o->temperature > 0.0f) || isinf(o->temperature))
        return "option temperature must be finite and positive";
    if (!(o->lse_square_scale >= 0.0f) || isinf(o->lse_square_scale))
        return "option lse_square_scale must be finite and not negative";
    if (!isfinite(o->grad_scale))
        return "option grad_scale must be finite";
    if (o->ids != 0 && call->op != RIDGE_LINEAR_CE_EVAL && call->op != RIDGE_LINEAR_CE_BACKWARD)
        return "option ids belongs to linear_ce_eval and linear_ce_backward";
    if (o->topk != 0 && call->op != RIDGE_LINEAR_CE_EVAL)
        return "option topk belongs to linear_ce_eval";
    if (o->grad_scale != 1.0f && call->op != RIDGE_LINEAR_CE_TRAIN)
        return "option grad_scale belongs to linear_ce_train; elsewhere it is operand dloss";
    if ((call->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_REDUCTION)
        return "flags RIDGE_CE_SUM and RIDGE_CE_NONE exclude each other";
    if (call->op == RIDGE_CE_COMBINE)
        return o->vocab_offset || o->vocab_total ? "options vocab_offset and vocab_total belong to the shards" : NULL;
    if (here == 0)
        return "dimension vocab is 0: there is no class";
    if (o->vocab_offset < 0 || o->vocab_total < 0)
        return "options vocab_offset and vocab_total must not be negative";
    if (o->vocab_offset > (INT64_C(1) << 40) || total(call) < o->vocab_offset + here)
        return "option vocab_total is below vocab_offset + vocab";
    return NULL;
}

/* Outputs of the whole vocabulary: a slice has none of them. loss .. accuracy without argmax, by slot. */
static const char *slice_rule(const ridge_call *call, int loss, int token_loss, int record)
{
    const bool slice = is_slice(call), rows = call->dim[0] != 0 || !(call->flags & RIDGE_CE_NONE);

    if (slice && (ridge_has(call, loss) || ridge_has(call, token_loss)))
        return "operands loss and token_loss of a slice of the vocabulary come from ce_combine: they must be absent";
    for (int arg = token_loss + 1; slice && arg <= token_loss + 5; arg++)
        if (arg != token_loss + 4 && ridge_has(call, arg))
            return "operands lse, target_logit, entropy and accuracy of a slice come from ce_combine: they must be "
                   "absent";
    if (!ridge_has(call, loss) && !(record >= 0 && ridge_has(call, record)) && rows)
        return "operand loss is NULL";
    if ((call->flags & RIDGE_CE_RECORD_SUMS) && !(record >= 0 && ridge_has(call, record)) && rows)
        return "flag RIDGE_CE_RECORD_SUMS goes with operand record";
    return NULL;
}

const char *ridge_ce_eval_rule(const ridge_call *call)
{
    const char *reason = options_rule(call);

    if (!reason && call->op == RIDGE_LINEAR_CE_EVAL)
        reason = ids_rule(call, RIDGE_LINEAR_CE_IDS, 2);
    if (!reason && call->op == RIDGE_LINEAR_CE_EVAL)
        reason = topk_rule(call);
    if (!reason && call->op == RIDGE_LINEAR_CE_EVAL)
        reason = sample_rule(call);
    if (reason)
        return reason;
    return call->op == RIDGE_CE_FWD
               ? slice_rule(call, RIDGE_CE_FWD_LOSS, RIDGE_CE_FWD_TOKEN_LOSS, RIDGE_CE_FWD_RECORD)
               : slice_rule(call, RIDGE_LINEAR_CE_LOSS, RIDGE_LINEAR_CE_TOKEN_LOSS, RIDGE_LINEAR_CE_RECORD);
}

static const char *dw_rule(const ridge_call *call, int dw)
{
    if (ridge_has(call, dw) && call->arg[dw].dtype != RIDGE_F32 && call->arg[dw].dtype != call->arg[0].dtype)
        return "operand dw must be f32 or have the dtype of x";
    return NULL;
}

/* linear_ce_train in phases. */
static const char *phase_rule(const ridge_call *call)
{
    const uint32_t phase = call->flags & RIDGE_CE_PHASE;

    if (phase & (phase - 1))
        return "flags RIDGE_CE_BEGIN, RIDGE_CE_DX and RIDGE_CE_DW exclude each other";
    if (ridge_has(call, RIDGE_LINEAR_CE_LOSS))
        return "operand loss of a phase comes from ce_combine: it must be absent";
    for (int arg = RIDGE_LINEAR_CE_TOKEN_LOSS; arg <= (int)RIDGE_LINEAR_CE_ERRORS; arg++)
        if (arg != RIDGE_LINEAR_CE_LSE && ridge_has(call, arg))
            return "operands token_loss, target_logit, entropy, argmax, accuracy and errors of a phase must be absent: "
                   "ce_combine has them";
    if (call->dim[0] != 0 && !ridge_has(call, RIDGE_LINEAR_CE_RECORD))
        return "operand record is NULL, which a phase needs";
    if (call->dim[0] != 0 && !ridge_has(call, RIDGE_LINEAR_CE_LSE))
        return "operand lse is NULL, which a phase needs";
    if (call->opt.ce.label_smoothing != 0.0f && !(call->flags & RIDGE_CE_RECORD_SUMS))
        return "option label_smoothing needs records with RIDGE_CE_RECORD_SUMS";
    return dw_rule(call, RIDGE_LINEAR_CE_DW);
}

const char *ridge_ce_train_rule(const ridge_call *call)
{
    const char *reason = options_rule(call);

    if (reason)
        return reason;
    if ((call->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE && call->dim[0] &&
        !ridge_has(call, RIDGE_LINEAR_CE_GRAD_SCALE))
        return "flag RIDGE_CE_NONE needs operand grad_scale, each row's gradient: where it is known only after the "
               "loss, run "
               "linear_ce_eval, then linear_ce_backward";
    if (call->flags & RIDGE_CE_PHASE)
        return phase_rule(call);
    if (is_slice(call))
        return "options vocab_offset and vocab_total: a slice is trained in phases, by flags RIDGE_CE_BEGIN, "
               "RIDGE_CE_DX and RIDGE_CE_DW";
    if (ridge_has(call, RIDGE_LINEAR_CE_RECORD) || call->flags & RIDGE_CE_RECORD_SUMS)
        return "operand record and flag RIDGE_CE_RECORD_SUMS belong to linear_ce_eval and to phases";
    if (!ridge_has(call, RIDGE_LINEAR_CE_LOSS))
        return "operand loss is NULL";
    return dw_rule(call, RIDGE_LINEAR_CE_DW);
}

const char *ridge_ce_backward_rule(const ridge_call *call)
{
    const char *reason = options_rule(call);
    const bool given = call->op == RIDGE_CE_BWD;
    const int entropy = given ? (int)RIDGE_CE_BWD_ENTROPY : (int)RIDGE_LINEAR_CE_BACKWARD_ENTROPY;

    if (!reason && call->dim[0] != 0 && ridge_has(call, entropy + 1) && !ridge_has(call, entropy))
        reason = "operand entropy is NULL, which dentropy needs";
    if (!reason && !given)
        reason = ids_rule(call, RIDGE_LINEAR_CE_BACKWARD_IDS, 3);
    if (reason || given)
        return reason;
    return dw_rule(call, RIDGE_LINEAR_CE_BACKWARD_DW);
}

const char *ridge_ce_combine_rule(const ridge_call *call)
{
    const char *reason = options_rule(call);
    const bool sums = (call->flags & RIDGE_CE_RECORD_SUMS) != 0, rows = call->dim[0] != 0;

    if (reason)
        return reason;
    if (call->dim[2] == 0 || call->dim[1] < call->dim[2])
        return "dimension shards must lie in 1 .. vocab";
    if (call->dim[2] > 4096)
        return "dimension shards is above 4096";
    if (call->opt.ce.softcap != 0.0f || call->opt.ce.temperature != 1.0f)
        return "options softcap and temperature belong to the shards: their records are of z";
    if (!ridge_has(call, RIDGE_CE_COMBINE_LOSS) && (rows || !(call->flags & RIDGE_CE_NONE)))
        return "operand loss is NULL";
    if (!sums && rows && call->opt.ce.label_smoothing != 0.0f)
        return "option label_smoothing needs records with RIDGE_CE_RECORD_SUMS";
    if (!sums && rows && ridge_has(call, RIDGE_CE_COMBINE_ENTROPY))
        return "operand entropy needs records with RIDGE_CE_RECORD_SUMS";
    if (!ridge_has(call, RIDGE_CE_COMBINE_SHARD_ARGMAX) &&
        (ridge_has(call, RIDGE_CE_COMBINE_ARGMAX) || ridge_has(call, RIDGE_CE_COMBINE_ACCURACY)) && rows)
        return "operand shard_argmax is NULL but argmax or accuracy is asked for";
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------- extents */

static int64_t record_width(const ridge_call *call)
{
    return call->flags & RIDGE_CE_RECORD_SUMS ? 6 : 3;
}

static int64_t loss_length(const ridge_call *call)
{
    return (call->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE ? call->dim[0] : 1;
}

static void w_extent(const ridge_call *call, int64_t *rows, int64_t *cols)
{
    const bool hv = (call->flags & RIDGE_CE_W_HV) != 0;

    ridge_set_extent(rows, cols, call->dim[hv ? 1 : 2], call->dim[hv ? 2 : 1]);
}

void ridge_ce_linear_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool train = call->op == RIDGE_LINEAR_CE_TRAIN;

    ridge_set_extent(rows, cols, 1, call->dim[0]); /* one number a token */
    if (arg == RIDGE_LINEAR_CE_X || (train && arg == RIDGE_LINEAR_CE_DX))
        ridge_set_extent(rows, cols, call->dim[0], call->dim[1]);
    else if (arg == RIDGE_LINEAR_CE_W || (train && arg == RIDGE_LINEAR_CE_DW))
        w_extent(call, rows, cols);
    else if (arg == RIDGE_LINEAR_CE_LOSS || (train && arg == RIDGE_LINEAR_CE_GRAD_SCALE))
        *cols = loss_length(call);
    else if (arg == RIDGE_LINEAR_CE_BIAS || (train && arg == RIDGE_LINEAR_CE_DBIAS))
        *cols = call->dim[2];
    else if (arg == RIDGE_LINEAR_CE_CLASS_WEIGHT)
        *cols = total(call);
    else if (arg == RIDGE_LINEAR_CE_ACCURACY || arg == RIDGE_LINEAR_CE_ERRORS)
        *cols = 1;
    else if (!train && (arg == RIDGE_LINEAR_CE_TOP_ID || arg == RIDGE_LINEAR_CE_TOP_LOGPROB))
        ridge_set_extent(rows, cols, call->dim[0], call->opt.ce.topk);
    else if (!train && (arg == RIDGE_LINEAR_CE_IDS || arg == RIDGE_LINEAR_CE_ID_LOGPROB))
        ridge_set_extent(rows, cols, call->dim[0], call->opt.ce.ids);
    else if (arg == RIDGE_LINEAR_CE_RECORD)
        ridge_set_extent(rows, cols, call->dim[0], record_width(call));
}

void ridge_ce_backward_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    ridge_set_extent(rows, cols, 1, call->dim[0]);
    switch (arg) {
    case RIDGE_LINEAR_CE_BACKWARD_X:
    case RIDGE_LINEAR_CE_BACKWARD_DX:
        ridge_set_extent(rows, cols, call->dim[0], call->dim[1]);
        break;
    case RIDGE_LINEAR_CE_BACKWARD_W:
    case RIDGE_LINEAR_CE_BACKWARD_DW:
        w_extent(call, rows, cols);
        break;
    case RIDGE_LINEAR_CE_BACKWARD_DLOSS:
        *cols = loss_length(call);
        break;
    case RIDGE_LINEAR_CE_BACKWARD_BIAS:
    case RIDGE_LINEAR_CE_BACKWARD_DBIAS:
        *cols = call->dim[2];
        break;
    case RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT:
        *cols = total(call);
        break;
    case RIDGE_LINEAR_CE_BACKWARD_IDS:
    case RIDGE_LINEAR_CE_BACKWARD_ID_LOGPROB:
    case RIDGE_LINEAR_CE_BACKWARD_DID_LOGPROB:
        ridge_set_extent(rows, cols, call->dim[0], call->opt.ce.ids);
        break;
    default:
        break;
    }
}

void ridge_ce_given_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool forward = call->op == RIDGE_CE_FWD;

    ridge_set_extent(rows, cols, 1, call->dim[0]);
    if (arg == 0 || (!forward && arg == RIDGE_CE_BWD_DLOGITS))
        ridge_set_extent(rows, cols, call->dim[0], call->dim[1]);
    else if (arg == (forward ? (int)RIDGE_CE_FWD_LOSS : (int)RIDGE_CE_BWD_DLOSS))
        *cols = loss_length(call);
    else if (arg == (forward ? (int)RIDGE_CE_FWD_CLASS_WEIGHT : (int)RIDGE_CE_BWD_CLASS_WEIGHT))
        *cols = total(call);
    else if (forward && (arg == RIDGE_CE_FWD_ACCURACY || arg == RIDGE_CE_FWD_ERRORS))
        *cols = 1;
    else if (forward && arg == RIDGE_CE_FWD_RECORD)
        ridge_set_extent(rows, cols, call->dim[0], record_width(call));
}

void ridge_ce_combine_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    ridge_set_extent(rows, cols, 1, call->dim[0]);
    switch (arg) {
    case RIDGE_CE_COMBINE_RECORD: /* both factors are at most 2^40 */
        if (__builtin_mul_overflow(call->dim[2], call->dim[0], rows))
            *rows = INT64_MAX;
        *cols = record_width(call);
        break;
    case RIDGE_CE_COMBINE_SHARD_ARGMAX:
        ridge_set_extent(rows, cols, call->dim[2], call->dim[0]);
        break;
    case RIDGE_CE_COMBINE_OFFSET:
        *cols = call->dim[2];
        break;
    case RIDGE_CE_COMBINE_LOSS:
        *cols = loss_length(call);
        break;
    case RIDGE_CE_COMBINE_CLASS_WEIGHT:
        *cols = call->dim[1];
        break;
    case RIDGE_CE_COMBINE_ACCURACY:
    case RIDGE_CE_COMBINE_ERRORS:
        *cols = 1;
        break;
    default:
        break;
    }
}
