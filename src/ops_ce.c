/* ops_ce.c: the op rows of linear_ce_eval, linear_ce_train, linear_ce_backward, ce_fwd, ce_bwd and ce_combine:
 * operands, problem text, rules. */
#include <math.h>

#include "internal.h"

#define F32 (1u << RIDGE_F32)
#define INTS (1u << RIDGE_I64 | 1u << RIDGE_I32)
#define I64 (1u << RIDGE_I64)
#define CONTRACT (RIDGE_STABLE | RIDGE_CLOSE)
#define BOUND                                                                                           \
    "the error of a model whose logits are rounded to x's dtype (f32: to 16 bits), by rms per tensor; " \
    "elementwise the worst that such logits can do"
#define OPTION(field) ((int)offsetof(ridge_ce_options, field))

static const char *const reductions[] = {"mean", "sum", "none", NULL};
static const char *const layouts[] = {"vh", "hv", NULL};

static bool has(const ridge_call *call, int arg)
{
    return call->arg[arg].dtype != RIDGE_NONE && call->arg[arg].data != NULL;
}

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

    if (slice && (has(call, loss) || has(call, token_loss)))
        return "operands loss and token_loss of a slice of the vocabulary come from ce_combine: they must be absent";
    for (int arg = token_loss + 1; slice && arg <= token_loss + 5; arg++)
        if (arg != token_loss + 4 && has(call, arg))
            return "operands lse, target_logit, entropy and accuracy of a slice come from ce_combine: they must be "
                   "absent";
    if (!has(call, loss) && !(record >= 0 && has(call, record)) && rows)
        return "operand loss is NULL";
    if ((call->flags & RIDGE_CE_RECORD_SUMS) && !(record >= 0 && has(call, record)) && rows)
        return "flag RIDGE_CE_RECORD_SUMS goes with operand record";
    return NULL;
}

static const char *eval_rule(const ridge_call *call)
{
    const char *reason = options_rule(call);

    if (reason)
        return reason;
    return call->op == RIDGE_CE_FWD
               ? slice_rule(call, RIDGE_CE_FWD_LOSS, RIDGE_CE_FWD_TOKEN_LOSS, RIDGE_CE_FWD_RECORD)
               : slice_rule(call, RIDGE_LINEAR_CE_LOSS, RIDGE_LINEAR_CE_TOKEN_LOSS, RIDGE_LINEAR_CE_RECORD);
}

static const char *dw_rule(const ridge_call *call, int dw)
{
    if (has(call, dw) && call->arg[dw].dtype != RIDGE_F32 && call->arg[dw].dtype != call->arg[0].dtype)
        return "operand dw must be f32 or have the dtype of x";
    return NULL;
}

static const char *train_rule(const ridge_call *call)
{
    const char *reason = options_rule(call);

    if (reason)
        return reason;
    if ((call->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE)
        return "flag RIDGE_CE_NONE has no one gradient: run linear_ce_eval, then linear_ce_backward";
    if (is_slice(call))
        return "options vocab_offset and vocab_total: a slice is trained by linear_ce_eval, ce_combine and "
               "linear_ce_backward";
    if (!has(call, RIDGE_LINEAR_CE_LOSS))
        return "operand loss is NULL";
    return dw_rule(call, RIDGE_LINEAR_CE_DW);
}

static const char *backward_rule(const ridge_call *call)
{
    const char *reason = options_rule(call);

    if (reason || call->op == RIDGE_CE_BWD)
        return reason;
    return dw_rule(call, RIDGE_LINEAR_CE_BACKWARD_DW);
}

static const char *combine_rule(const ridge_call *call)
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
    if (!has(call, RIDGE_CE_COMBINE_LOSS) && (rows || !(call->flags & RIDGE_CE_NONE)))
        return "operand loss is NULL";
    if (!sums && rows && call->opt.ce.label_smoothing != 0.0f)
        return "option label_smoothing needs records with RIDGE_CE_RECORD_SUMS";
    if (!sums && rows && has(call, RIDGE_CE_COMBINE_ENTROPY))
        return "operand entropy needs records with RIDGE_CE_RECORD_SUMS";
    if (!has(call, RIDGE_CE_COMBINE_SHARD_ARGMAX) &&
        (has(call, RIDGE_CE_COMBINE_ARGMAX) || has(call, RIDGE_CE_COMBINE_ACCURACY)) && rows)
        return "operand shard_argmax is NULL but argmax or accuracy is asked for";
    return NULL;
}

/* ----------------------------------------------------------------------------------------------------------- extents
 */

static void set_extent(int64_t *rows, int64_t *cols, int64_t r, int64_t c)
{
    *rows = r;
    *cols = c;
}

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

    set_extent(rows, cols, call->dim[hv ? 1 : 2], call->dim[hv ? 2 : 1]);
}

static void linear_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool train = call->op == RIDGE_LINEAR_CE_TRAIN;

    set_extent(rows, cols, 1, call->dim[0]); /* one number a token */
    if (arg == RIDGE_LINEAR_CE_X || (train && arg == RIDGE_LINEAR_CE_DX))
        set_extent(rows, cols, call->dim[0], call->dim[1]);
    else if (arg == RIDGE_LINEAR_CE_W || (train && arg == RIDGE_LINEAR_CE_DW))
        w_extent(call, rows, cols);
    else if (arg == RIDGE_LINEAR_CE_LOSS)
        *cols = loss_length(call);
    else if (arg == RIDGE_LINEAR_CE_BIAS || (train && arg == RIDGE_LINEAR_CE_DBIAS))
        *cols = call->dim[2];
    else if (arg == RIDGE_LINEAR_CE_CLASS_WEIGHT)
        *cols = total(call);
    else if (arg == RIDGE_LINEAR_CE_ACCURACY || arg == RIDGE_LINEAR_CE_ERRORS ||
             (train && arg == RIDGE_LINEAR_CE_GRAD_SCALE))
        *cols = 1;
    else if (!train && arg == RIDGE_LINEAR_CE_RECORD)
        set_extent(rows, cols, call->dim[0], record_width(call));
}

static void backward_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    set_extent(rows, cols, 1, call->dim[0]);
    switch (arg) {
    case RIDGE_LINEAR_CE_BACKWARD_X:
    case RIDGE_LINEAR_CE_BACKWARD_DX:
        set_extent(rows, cols, call->dim[0], call->dim[1]);
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
    default:
        break;
    }
}

static void ce_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool forward = call->op == RIDGE_CE_FWD;

    set_extent(rows, cols, 1, call->dim[0]);
    if (arg == 0 || (!forward && arg == RIDGE_CE_BWD_DLOGITS))
        set_extent(rows, cols, call->dim[0], call->dim[1]);
    else if (arg == (forward ? (int)RIDGE_CE_FWD_LOSS : (int)RIDGE_CE_BWD_DLOSS))
        *cols = loss_length(call);
    else if (arg == (forward ? (int)RIDGE_CE_FWD_CLASS_WEIGHT : (int)RIDGE_CE_BWD_CLASS_WEIGHT))
        *cols = total(call);
    else if (forward && (arg == RIDGE_CE_FWD_ACCURACY || arg == RIDGE_CE_FWD_ERRORS))
        *cols = 1;
    else if (forward && arg == RIDGE_CE_FWD_RECORD)
        set_extent(rows, cols, call->dim[0], record_width(call));
}

static void combine_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    set_extent(rows, cols, 1, call->dim[0]);
    switch (arg) {
    case RIDGE_CE_COMBINE_RECORD: /* both factors are at most 2^40 */
        if (__builtin_mul_overflow(call->dim[2], call->dim[0], rows))
            *rows = INT64_MAX;
        *cols = record_width(call);
        break;
    case RIDGE_CE_COMBINE_SHARD_ARGMAX:
        set_extent(rows, cols, call->dim[2], call->dim[0]);
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

/* ------------------------------------------------------------------------------------------------ the rest of a row */

/* dW and dbias are inputs too when they are added to. */
static uint8_t gradient_role(const ridge_call *call, int arg)
{
    const int dx = call->op == RIDGE_LINEAR_CE_TRAIN ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;

    if (arg > dx)
        return call->flags & RIDGE_ACCUMULATE ? RIDGE_IN | RIDGE_OUT : RIDGE_OUT;
    return ridge_op_table[call->op]->arg[arg].role;
}

static bool ce_plain(const ridge_call *call)
{
    const ridge_ce_options *o = &call->opt.ce;

    return o->label_smoothing == 0.0f && o->softcap == 0.0f && o->temperature == 1.0f && o->lse_square_scale == 0.0f &&
           o->vocab_offset == 0 && o->vocab_total == 0;
}

/* dX has x's dtype, whatever "dx=1" took. */
static void ce_settle(ridge_call *call)
{
    const int dx = call->op == RIDGE_LINEAR_CE_TRAIN ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;

    if (call->arg[dx].dtype != RIDGE_NONE)
        call->arg[dx].dtype = call->arg[0].dtype;
}

static double linear_flops(const ridge_problem *p)
{
    const double gemm = 2.0 * (double)p->dim[0] * (double)p->dim[1] * (double)p->dim[2];
    const bool train = p->op == RIDGE_LINEAR_CE_TRAIN;
    const int dx = train ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;

    if (p->op == RIDGE_LINEAR_CE_EVAL)
        return gemm;
    return gemm * (1 + (p->dtype[dx] != RIDGE_NONE) + (p->dtype[dx + 1] != RIDGE_NONE));
}

/* Nominal: exponential, comparison and sum an element. */
static double ce_flops(const ridge_problem *p)
{
    return (double)p->dim[0] * (p->op == RIDGE_CE_COMBINE ? 4.0 * (double)p->dim[2] : 4.0 * (double)p->dim[1]);
}

static void eval_defaults(ridge_call *call)
{
    *call = ridge_linear_ce_eval(0, 0, 1, RIDGE_BF16, NULL, NULL, RIDGE_I64, NULL, NULL);
}

static void train_defaults(ridge_call *call)
{
    *call = ridge_linear_ce_train(0, 0, 1, RIDGE_BF16, NULL, NULL, RIDGE_I64, NULL, NULL, NULL, NULL);
}

static void backward_defaults(ridge_call *call)
{
    *call = ridge_linear_ce_backward(0, 0, 1, RIDGE_BF16, NULL, NULL, RIDGE_I64, NULL, NULL, NULL, NULL, NULL);
}

static void ce_fwd_defaults(ridge_call *call)
{
    *call = ridge_ce_fwd(0, 1, RIDGE_BF16, NULL, RIDGE_I64, NULL, NULL);
}

static void ce_bwd_defaults(ridge_call *call)
{
    *call = ridge_ce_bwd(0, 1, RIDGE_BF16, NULL, RIDGE_I64, NULL, NULL, NULL, NULL);
}

static void combine_defaults(ridge_call *call)
{
    *call = ridge_ce_combine(0, 1, 1, NULL, NULL, RIDGE_I64, NULL, NULL, NULL);
}

/* ------------------------------------------------------------------------------------------------------------- fields
 */

#define DIM(text, i)                                             \
    {                                                            \
        .name = text, .kind = RIDGE_FIELD_DIM, .index = (int)(i) \
    }
#define DTYPE(text, slot)                                             \
    {                                                                 \
        .name = text, .kind = RIDGE_FIELD_DTYPE, .index = (int)(slot) \
    }
#define HAS(text, slot)                                             \
    {                                                               \
        .name = text, .kind = RIDGE_FIELD_HAS, .index = (int)(slot) \
    }
#define FLAG(text, bit)                                       \
    {                                                         \
        .name = text, .kind = RIDGE_FIELD_FLAG, .mask = (bit) \
    }
#define F32_OPTION(field, value)                                                                  \
    {                                                                                             \
        .name = #field, .kind = RIDGE_FIELD_F32, .index = OPTION(field), .preset = (float)(value) \
    }
#define I64_OPTION(field, value)                                                                  \
    {                                                                                             \
        .name = #field, .kind = RIDGE_FIELD_I64, .index = OPTION(field), .preset = (float)(value) \
    }
#define REDUCTION                                                                                          \
    {                                                                                                      \
        .name = "reduction", .kind = RIDGE_FIELD_CHOICE, .mask = RIDGE_CE_REDUCTION, .choices = reductions \
    }
#define LAYOUT                                                                                  \
    {                                                                                           \
        .name = "layout", .kind = RIDGE_FIELD_CHOICE, .mask = RIDGE_CE_W_HV, .choices = layouts \
    }
#define LOSS_OPTIONS I64_OPTION(ignore_index, -100), F32_OPTION(label_smoothing, 0), F32_OPTION(lse_square_scale, 0)
#define LOGIT_OPTIONS F32_OPTION(softcap, 0), F32_OPTION(temperature, 1)
#define SLICE_OPTIONS I64_OPTION(vocab_offset, 0), I64_OPTION(vocab_total, 0)
#define END          \
    {                \
        .name = NULL \
    }
/* class_weight .. errors, by the slot of class_weight: the same order in every op that has them */
#define ROW_OUTPUTS(slot)                                                                      \
    HAS("class_weight", slot), HAS("token_loss", (slot) + 1), HAS("target_logit", (slot) + 3), \
        HAS("entropy", (slot) + 4), HAS("argmax", (slot) + 5), HAS("accuracy", (slot) + 6), HAS("errors", (slot) + 7)

static const ridge_field eval_fields[] = {
    DIM("tokens", 0),
    DIM("hidden", 1),
    DIM("vocab", 2),
    DTYPE("dtype", RIDGE_LINEAR_CE_X),
    DTYPE("target", RIDGE_LINEAR_CE_TARGET),
    LAYOUT,
    REDUCTION,
    HAS("bias", RIDGE_LINEAR_CE_BIAS),
    ROW_OUTPUTS(RIDGE_LINEAR_CE_CLASS_WEIGHT),
    HAS("lse", RIDGE_LINEAR_CE_LSE),
    HAS("loss", RIDGE_LINEAR_CE_LOSS),
    HAS("record", RIDGE_LINEAR_CE_RECORD),
    FLAG("sums", RIDGE_CE_RECORD_SUMS),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    END,
};

static const ridge_field train_fields[] = {
    DIM("tokens", 0),
    DIM("hidden", 1),
    DIM("vocab", 2),
    DTYPE("dtype", RIDGE_LINEAR_CE_X),
    DTYPE("target", RIDGE_LINEAR_CE_TARGET),
    LAYOUT,
    REDUCTION,
    HAS("bias", RIDGE_LINEAR_CE_BIAS),
    ROW_OUTPUTS(RIDGE_LINEAR_CE_CLASS_WEIGHT),
    HAS("lse", RIDGE_LINEAR_CE_LSE),
    HAS("scale", RIDGE_LINEAR_CE_GRAD_SCALE),
    HAS("dx", RIDGE_LINEAR_CE_DX),
    HAS("dw", RIDGE_LINEAR_CE_DW),
    HAS("dbias", RIDGE_LINEAR_CE_DBIAS),
    FLAG("accumulate", RIDGE_ACCUMULATE),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    F32_OPTION(grad_scale, 1),
    END,
};

static const ridge_field backward_fields[] = {
    DIM("tokens", 0),
    DIM("hidden", 1),
    DIM("vocab", 2),
    DTYPE("dtype", RIDGE_LINEAR_CE_BACKWARD_X),
    DTYPE("target", RIDGE_LINEAR_CE_BACKWARD_TARGET),
    LAYOUT,
    REDUCTION,
    HAS("dloss", RIDGE_LINEAR_CE_BACKWARD_DLOSS),
    HAS("bias", RIDGE_LINEAR_CE_BACKWARD_BIAS),
    HAS("class_weight", RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT),
    HAS("dx", RIDGE_LINEAR_CE_BACKWARD_DX),
    HAS("dw", RIDGE_LINEAR_CE_BACKWARD_DW),
    HAS("dbias", RIDGE_LINEAR_CE_BACKWARD_DBIAS),
    FLAG("accumulate", RIDGE_ACCUMULATE),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    END,
};

static const ridge_field ce_fwd_fields[] = {
    DIM("tokens", 0),
    DIM("vocab", 1),
    DTYPE("dtype", RIDGE_CE_FWD_LOGITS),
    DTYPE("target", RIDGE_CE_FWD_TARGET),
    REDUCTION,
    ROW_OUTPUTS(RIDGE_CE_FWD_CLASS_WEIGHT),
    HAS("lse", RIDGE_CE_FWD_LSE),
    HAS("loss", RIDGE_CE_FWD_LOSS),
    HAS("record", RIDGE_CE_FWD_RECORD),
    FLAG("sums", RIDGE_CE_RECORD_SUMS),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    END,
};

static const ridge_field ce_bwd_fields[] = {
    DIM("tokens", 0),
    DIM("vocab", 1),
    DTYPE("dtype", RIDGE_CE_BWD_LOGITS),
    DTYPE("target", RIDGE_CE_BWD_TARGET),
    REDUCTION,
    HAS("dloss", RIDGE_CE_BWD_DLOSS),
    HAS("class_weight", RIDGE_CE_BWD_CLASS_WEIGHT),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    END,
};

static const ridge_field combine_fields[] = {
    DIM("tokens", 0),
    DIM("vocab", 1),
    DIM("shards", 2),
    DTYPE("target", RIDGE_CE_COMBINE_TARGET),
    REDUCTION,
    FLAG("sums", RIDGE_CE_RECORD_SUMS),
    ROW_OUTPUTS(RIDGE_CE_COMBINE_CLASS_WEIGHT),
    HAS("lse", RIDGE_CE_COMBINE_LSE),
    HAS("shard_argmax", RIDGE_CE_COMBINE_SHARD_ARGMAX),
    LOSS_OPTIONS,
    END,
};

/* --------------------------------------------------------------------------------------------------------------- rows
 */

#define VECTOR(name, role, optional, dtypes, shape)              \
    {                                                            \
        name, role, optional, -1, RIDGE_VECTOR, dtypes, 0, shape \
    }
#define CLASS_WEIGHT VECTOR("class_weight", RIDGE_IN, 1, F32, "[vocab_total]")
#define TARGET VECTOR("target", RIDGE_IN, 0, INTS, "[tokens]")
#define BIAS VECTOR("bias", RIDGE_IN, 1, RIDGE_FLOATS, "[vocab]")
#define LSE_IN VECTOR("lse", RIDGE_IN, 0, F32, "[tokens]")
#define DLOSS VECTOR("dloss", RIDGE_IN, 1, F32, "[1]; [tokens]")
#define LOSS VECTOR("loss", RIDGE_OUT, 1, F32, "[1]; [tokens]")
#define ROW_OPERANDS                                                                                             \
    VECTOR("token_loss", RIDGE_OUT, 1, F32, "[tokens]"), VECTOR("lse", RIDGE_OUT, 1, F32, "[tokens]"),           \
        VECTOR("target_logit", RIDGE_OUT, 1, F32, "[tokens]"), VECTOR("entropy", RIDGE_OUT, 1, F32, "[tokens]"), \
        VECTOR("argmax", RIDGE_OUT, 1, I64, "[tokens]"), VECTOR("accuracy", RIDGE_OUT, 1, F32, "[1]"),           \
        VECTOR("errors", RIDGE_OUT, 1, 1u << RIDGE_I32, "[1]")
#define RECORD                                                               \
    {                                                                        \
        "record", RIDGE_OUT, 1, -1, RIDGE_MATRIX, F32, 0, "[tokens, 3 or 6]" \
    }
#define X                                                                       \
    {                                                                           \
        "x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, hidden]" \
    }
#define W                                                                                     \
    {                                                                                         \
        "w", RIDGE_IN, 0, 0, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[vocab, hidden]; hv: transposed" \
    }
#define GRADIENTS                                                               \
    {"dx", RIDGE_OUT, 1, 0, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, hidden]"}, \
        {"dw", RIDGE_OUT, 1, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "as w"}, VECTOR("dbias", RIDGE_OUT, 1, F32, "[vocab]")

#define LINEAR_FLAGS (RIDGE_CE_REDUCTION | RIDGE_CE_W_HV)

const ridge_op_row ridge_op_linear_ce_eval = {
    .id = RIDGE_LINEAR_CE_EVAL,
    .name = "linear_ce_eval",
    .summary = "cross entropy of softmax(x W^T), without the logits",
    .dims = 3,
    .dim_name = {"tokens", "hidden", "vocab"},
    .args = 14,
    .arg = {X, W, TARGET, LOSS, BIAS, CLASS_WEIGHT, ROW_OPERANDS, RECORD},
    .fields = eval_fields,
    .flags = LINEAR_FLAGS | RIDGE_CE_RECORD_SUMS,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = eval_rule,
    .extent = linear_extent,
    .plain = ce_plain,
    .flops = linear_flops,
    .defaults = eval_defaults,
};

const ridge_op_row ridge_op_linear_ce_train = {
    .id = RIDGE_LINEAR_CE_TRAIN,
    .name = "linear_ce_train",
    .summary = "the loss of linear_ce_eval and its gradients by x, W and bias",
    .dims = 3,
    .dim_name = {"tokens", "hidden", "vocab"},
    .args = 17,
    .arg = {X, W, TARGET, LOSS, BIAS, CLASS_WEIGHT, ROW_OPERANDS, VECTOR("grad_scale", RIDGE_IN, 1, F32, "[1]"),
            GRADIENTS},
    .fields = train_fields,
    .flags = LINEAR_FLAGS | RIDGE_ACCUMULATE,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = train_rule,
    .extent = linear_extent,
    .plain = ce_plain,
    .settle = ce_settle,
    .role = gradient_role,
    .flops = linear_flops,
    .defaults = train_defaults,
};

const ridge_op_row ridge_op_linear_ce_backward = {
    .id = RIDGE_LINEAR_CE_BACKWARD,
    .name = "linear_ce_backward",
    .summary = "the gradients of linear_ce_eval from lse and the gradient of the loss",
    .dims = 3,
    .dim_name = {"tokens", "hidden", "vocab"},
    .args = 10,
    .arg = {X, W, TARGET, LSE_IN, DLOSS, BIAS, CLASS_WEIGHT, GRADIENTS},
    .fields = backward_fields,
    .flags = LINEAR_FLAGS | RIDGE_ACCUMULATE,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = backward_rule,
    .extent = backward_extent,
    .plain = ce_plain,
    .settle = ce_settle,
    .role = gradient_role,
    .flops = linear_flops,
    .defaults = backward_defaults,
};

const ridge_op_row ridge_op_ce_fwd = {
    .id = RIDGE_CE_FWD,
    .name = "ce_fwd",
    .summary = "cross entropy of given logits",
    .dims = 2,
    .dim_name = {"tokens", "vocab"},
    .args = 12,
    .arg = {{"logits", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, vocab]"},
            TARGET,
            LOSS,
            CLASS_WEIGHT,
            ROW_OPERANDS,
            RECORD},
    .fields = ce_fwd_fields,
    .flags = RIDGE_CE_REDUCTION | RIDGE_CE_RECORD_SUMS,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = eval_rule,
    .extent = ce_extent,
    .plain = ce_plain,
    .flops = ce_flops,
    .defaults = ce_fwd_defaults,
};

const ridge_op_row ridge_op_ce_bwd = {
    .id = RIDGE_CE_BWD,
    .name = "ce_bwd",
    .summary = "the gradient of ce_fwd by the logits",
    .dims = 2,
    .dim_name = {"tokens", "vocab"},
    .args = 6,
    .arg = {{"logits", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, vocab]"},
            TARGET,
            LSE_IN,
            DLOSS,
            CLASS_WEIGHT,
            {"dlogits", RIDGE_OUT, 0, 0, RIDGE_MATRIX, RIDGE_FLOATS, 1u << RIDGE_CE_BWD_LOGITS, "[tokens, vocab]"}},
    .fields = ce_bwd_fields,
    .flags = RIDGE_CE_REDUCTION,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = backward_rule,
    .extent = ce_extent,
    .plain = ce_plain,
    .flops = ce_flops,
    .defaults = ce_bwd_defaults,
};

const ridge_op_row ridge_op_ce_combine = {
    .id = RIDGE_CE_COMBINE,
    .name = "ce_combine",
    .summary = "records of slices of the vocabulary to the loss and lse of the whole",
    .dims = 3,
    .dim_name = {"tokens", "vocab", "shards"},
    .args = 13,
    .arg = {{"record", RIDGE_IN, 0, -1, RIDGE_MATRIX, F32, 0, "[shards * tokens, 3 or 6]"},
            VECTOR("offset", RIDGE_IN, 0, I64, "[shards]"),
            TARGET,
            LOSS,
            VECTOR("class_weight", RIDGE_IN, 1, F32, "[vocab]"),
            ROW_OPERANDS,
            {"shard_argmax", RIDGE_IN, 1, -1, RIDGE_TABLE, I64, 0, "[shards, tokens]"}},
    .fields = combine_fields,
    .flags = RIDGE_CE_REDUCTION | RIDGE_CE_RECORD_SUMS,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = combine_rule,
    .extent = combine_extent,
    .flops = ce_flops,
    .defaults = combine_defaults,
};
