/* op.c: the op rows of linear_ce_eval, linear_ce_train, linear_ce_backward, ce_fwd, ce_bwd and ce_combine, and
 * their builders: operands and problem text. */
#include "op.h"

#define F32 (1u << RIDGE_F32)
#define INTS (1u << RIDGE_I64 | 1u << RIDGE_I32)
#define I64 (1u << RIDGE_I64)
#define CONTRACT (RIDGE_STABLE | RIDGE_CLOSE)
#define BOUND                                                                                           \
    "the error of a model whose logits are rounded to x's dtype (f32: to 16 bits), by rms per tensor; " \
    "elementwise the worst that such logits can do"

static const char *const reductions[] = {"mean", "sum", "none", NULL};
static const char *const layouts[] = {"vh", "hv", NULL};
static const char *const phases[] = {"all", "begin", "dx", "dw", NULL};
static const uint32_t phase_bits[] = {0, RIDGE_CE_BEGIN, RIDGE_CE_DX, RIDGE_CE_DW};

/* ------------------------------------------------------------------------------------------------ the rest of a row */

/* dW and dbias are inputs too when they are added to; in phases lse is one. */
static uint8_t gradient_role(const ridge_call *call, int arg)
{
    const int dx = call->op == RIDGE_LINEAR_CE_TRAIN ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;

    if (arg == dx + 1 || arg == dx + 2)
        return call->flags & RIDGE_ACCUMULATE ? RIDGE_IN | RIDGE_OUT : RIDGE_OUT;
    if (call->op == RIDGE_LINEAR_CE_TRAIN && arg == RIDGE_LINEAR_CE_LSE && call->flags & RIDGE_CE_PHASE)
        return RIDGE_IN;
    return ridge_op_at(call->op)->arg[arg].role;
}

static bool ce_plain(const ridge_call *call)
{
    const ridge_ce_options *o = &call->opt.ce;

    return o->label_smoothing == 0.0f && o->softcap == 0.0f && o->temperature == 1.0f && o->lse_square_scale == 0.0f &&
           o->vocab_offset == 0 && o->vocab_total == 0;
}

/* Option ids: `count` operands from `ids` on. */
static void derive_ids(ridge_call *call, int ids, int count)
{
    for (int i = 0; i < count; i++)
        call->arg[ids + i].dtype = !call->opt.ce.ids ? (uint32_t)RIDGE_NONE
                                   : i               ? (uint32_t)RIDGE_F32
                                                     : call->arg[RIDGE_LINEAR_CE_TARGET].dtype;
}

/* dX has x's dtype, whatever "dx=1" took; dentropy needs entropy. */
static void ce_derive(ridge_call *call)
{
    const int dx = call->op == RIDGE_LINEAR_CE_TRAIN ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;
    const bool linear = call->op == RIDGE_LINEAR_CE_TRAIN || call->op == RIDGE_LINEAR_CE_BACKWARD;

    if (linear && call->arg[dx].dtype != RIDGE_NONE)
        call->arg[dx].dtype = call->arg[0].dtype;
    if (call->op == RIDGE_LINEAR_CE_TRAIN && call->flags & RIDGE_CE_PHASE) { /* by default train has a loss alone */
        call->arg[RIDGE_LINEAR_CE_LOSS].dtype = RIDGE_NONE;
        call->arg[RIDGE_LINEAR_CE_LSE].dtype = call->arg[RIDGE_LINEAR_CE_RECORD].dtype = RIDGE_F32;
    }
    if (call->op == RIDGE_LINEAR_CE_BACKWARD)
        call->arg[RIDGE_LINEAR_CE_BACKWARD_ENTROPY].dtype = call->arg[RIDGE_LINEAR_CE_BACKWARD_DENTROPY].dtype;
    if (call->op == RIDGE_LINEAR_CE_EVAL) {
        derive_ids(call, RIDGE_LINEAR_CE_IDS, 2);
        call->arg[RIDGE_LINEAR_CE_TOP_ID].dtype = (uint32_t)(call->opt.ce.topk ? RIDGE_I64 : RIDGE_NONE);
        call->arg[RIDGE_LINEAR_CE_TOP_LOGPROB].dtype = (uint32_t)(call->opt.ce.topk ? RIDGE_F32 : RIDGE_NONE);
        call->arg[RIDGE_LINEAR_CE_SEED].dtype = call->arg[RIDGE_LINEAR_CE_SAMPLE_ID].dtype;
        call->arg[RIDGE_LINEAR_CE_COUNTER].dtype = call->arg[RIDGE_LINEAR_CE_SAMPLE_ID].dtype;
        call->arg[RIDGE_LINEAR_CE_SAMPLE_LOGPROB].dtype =
            (uint32_t)(call->arg[RIDGE_LINEAR_CE_SAMPLE_ID].dtype != RIDGE_NONE ? RIDGE_F32 : RIDGE_NONE);
    }
    if (call->op == RIDGE_LINEAR_CE_BACKWARD)
        derive_ids(call, RIDGE_LINEAR_CE_BACKWARD_IDS, 3);
    if (call->op == RIDGE_CE_BWD)
        call->arg[RIDGE_CE_BWD_ENTROPY].dtype = call->arg[RIDGE_CE_BWD_DENTROPY].dtype;
}

static double linear_flops(const ridge_problem *p)
{
    const double gemm = 2.0 * (double)p->dim[0] * (double)p->dim[1] * (double)p->dim[2];
    const bool train = p->op == RIDGE_LINEAR_CE_TRAIN;
    const int dx = train ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;

    if (p->op == RIDGE_LINEAR_CE_EVAL || (train && p->flags & RIDGE_CE_BEGIN))
        return gemm;
    if (train && p->flags & RIDGE_CE_DX)
        return p->dtype[dx] != RIDGE_NONE ? gemm : 0;
    if (train && p->flags & RIDGE_CE_DW)
        return p->dtype[dx + 1] != RIDGE_NONE ? gemm : 0;
    return gemm * (1 + (p->dtype[dx] != RIDGE_NONE) + (p->dtype[dx + 1] != RIDGE_NONE));
}

/* Nominal: exponential, comparison and sum an element. */
static double ce_flops(const ridge_problem *p)
{
    return (double)p->dim[0] * (p->op == RIDGE_CE_COMBINE ? 4.0 * (double)p->dim[2] : 4.0 * (double)p->dim[1]);
}

/* -------------------------------------------------------------------------------------------------------- builders */

static ridge_call begin(ridge_op op, int64_t dim0, int64_t dim1, int64_t dim2)
{
    ridge_call call = ridge_begin(op, dim0, dim1, dim2, 0);

    call.opt.ce.ignore_index = -100;
    call.opt.ce.temperature = 1.0f;
    call.opt.ce.grad_scale = 1.0f;
    return call;
}

static ridge_call begin_linear(ridge_op op, int64_t tokens, int64_t hidden, int64_t vocab, ridge_tensor x,
                               ridge_tensor w, ridge_tensor target)
{
    ridge_call call = begin(op, tokens, hidden, vocab);

    ridge_put(&call, RIDGE_LINEAR_CE_X, x); /* the first three slots of linear_ce_backward too */
    ridge_put(&call, RIDGE_LINEAR_CE_W, w);
    ridge_put(&call, RIDGE_LINEAR_CE_TARGET, target);
    return call;
}

ridge_call ridge_linear_ce_eval(int64_t tokens, int64_t hidden, int64_t vocab, ridge_tensor x, ridge_tensor w,
                                ridge_tensor target, float *loss)
{
    ridge_call call = begin_linear(RIDGE_LINEAR_CE_EVAL, tokens, hidden, vocab, x, w, target);

    ridge_set(&call, RIDGE_LINEAR_CE_LOSS, RIDGE_F32, loss, 0);
    return call;
}

ridge_call ridge_linear_ce_train(int64_t tokens, int64_t hidden, int64_t vocab, ridge_tensor x, ridge_tensor w,
                                 ridge_tensor target, float *loss, ridge_tensor dx, ridge_tensor dw)
{
    ridge_call call = begin_linear(RIDGE_LINEAR_CE_TRAIN, tokens, hidden, vocab, x, w, target);

    ridge_set(&call, RIDGE_LINEAR_CE_LOSS, RIDGE_F32, loss, 0);
    ridge_put(&call, RIDGE_LINEAR_CE_DX, dx);
    ridge_put(&call, RIDGE_LINEAR_CE_DW, dw);
    return call;
}

ridge_call ridge_linear_ce_backward(int64_t tokens, int64_t hidden, int64_t vocab, ridge_tensor x, ridge_tensor w,
                                    ridge_tensor target, const float *lse, ridge_tensor dx, ridge_tensor dw)
{
    ridge_call call = begin_linear(RIDGE_LINEAR_CE_BACKWARD, tokens, hidden, vocab, x, w, target);

    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_LSE, RIDGE_F32, lse, 0);
    ridge_put(&call, RIDGE_LINEAR_CE_BACKWARD_DX, dx);
    ridge_put(&call, RIDGE_LINEAR_CE_BACKWARD_DW, dw);
    return call;
}

ridge_call ridge_ce_fwd(int64_t tokens, int64_t vocab, ridge_tensor logits, ridge_tensor target, float *loss)
{
    ridge_call call = begin(RIDGE_CE_FWD, tokens, vocab, 0);

    ridge_put(&call, RIDGE_CE_FWD_LOGITS, logits);
    ridge_put(&call, RIDGE_CE_FWD_TARGET, target);
    ridge_set(&call, RIDGE_CE_FWD_LOSS, RIDGE_F32, loss, 0);
    return call;
}

ridge_call ridge_ce_bwd(int64_t tokens, int64_t vocab, ridge_tensor logits, ridge_tensor target, const float *lse,
                        ridge_tensor dlogits)
{
    ridge_call call = begin(RIDGE_CE_BWD, tokens, vocab, 0);

    ridge_put(&call, RIDGE_CE_BWD_LOGITS, logits);
    ridge_put(&call, RIDGE_CE_BWD_TARGET, target);
    ridge_set(&call, RIDGE_CE_BWD_LSE, RIDGE_F32, lse, 0);
    ridge_put(&call, RIDGE_CE_BWD_DLOGITS, dlogits);
    return call;
}

ridge_call ridge_ce_combine(int64_t tokens, int64_t vocab, int64_t shards, const float *record, const int64_t *offset,
                            ridge_tensor target, float *loss)
{
    ridge_call call = begin(RIDGE_CE_COMBINE, tokens, vocab, shards);

    ridge_set(&call, RIDGE_CE_COMBINE_RECORD, RIDGE_F32, record, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_OFFSET, RIDGE_I64, offset, 0);
    ridge_put(&call, RIDGE_CE_COMBINE_TARGET, target);
    ridge_set(&call, RIDGE_CE_COMBINE_LOSS, RIDGE_F32, loss, 0);
    return call;
}

/* What problem text begins with: bf16 and, where builders leave an operand to its slot, what tests want by default. */
#define HALF ridge_matrix(NULL, RIDGE_BF16)
#define INDEX ridge_matrix(NULL, RIDGE_I64)

RIDGE_DEFAULTS(eval_defaults, ridge_linear_ce_eval(0, 0, 1, HALF, HALF, INDEX, NULL))
RIDGE_DEFAULTS(train_defaults,
               ridge_linear_ce_train(0, 0, 1, HALF, HALF, INDEX, NULL, HALF, ridge_matrix(NULL, RIDGE_F32)))

static void backward_defaults(ridge_call *call)
{
    *call = ridge_linear_ce_backward(0, 0, 1, HALF, HALF, INDEX, NULL, HALF, ridge_matrix(NULL, RIDGE_F32));
    call->arg[RIDGE_LINEAR_CE_BACKWARD_DLOSS].dtype = RIDGE_F32;
}

RIDGE_DEFAULTS(ce_fwd_defaults, ridge_ce_fwd(0, 1, HALF, INDEX, NULL))

static void ce_bwd_defaults(ridge_call *call)
{
    *call = ridge_ce_bwd(0, 1, HALF, INDEX, NULL, HALF);
    call->arg[RIDGE_CE_BWD_DLOSS].dtype = RIDGE_F32;
}

static void combine_defaults(ridge_call *call)
{
    *call = ridge_ce_combine(0, 1, 1, NULL, NULL, INDEX, NULL);
    call->arg[RIDGE_CE_COMBINE_LSE].dtype = RIDGE_F32;
}

/* ----------------------------------------------------------------------------------------------------------- fields */

#define REDUCTION CHOICE("reduction", RIDGE_CE_REDUCTION, reductions)
#define LAYOUT CHOICE("layout", RIDGE_CE_W_HV, layouts)
#define I64_CE(option, value) I64_OPTION(ridge_ce_options, option, value)
#define F32_CE(option, value) F32_OPTION(ridge_ce_options, option, value)
#define LOSS_OPTIONS I64_CE(ignore_index, -100), F32_CE(label_smoothing, 0), F32_CE(lse_square_scale, 0)
#define LOGIT_OPTIONS F32_CE(softcap, 0), F32_CE(temperature, 1)
#define SLICE_OPTIONS I64_CE(vocab_offset, 0), I64_CE(vocab_total, 0)
/* class_weight .. errors, by the slot of class_weight: the same order in every op that has them */
#define ROW_OUTPUTS(slot)                                                                      \
    HAS("class_weight", slot), HAS("token_loss", (slot) + 1), HAS("target_logit", (slot) + 3), \
        HAS("entropy", (slot) + 4), HAS("argmax", (slot) + 5), HAS("accuracy", (slot) + 6), HAS("errors", (slot) + 7)

static const ridge_field eval_fields[] = {
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
    I64_CE(ids, 0),
    I64_CE(topk, 0),
    HAS("sample", RIDGE_LINEAR_CE_SAMPLE_ID),
    HAS("sample_score", RIDGE_LINEAR_CE_SAMPLE_SCORE),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    END,
};

static const ridge_field train_fields[] = {
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
    {.name = "phase", .kind = RIDGE_FIELD_CHOICE, .mask = RIDGE_CE_PHASE, .choices = phases, .bits = phase_bits},
    FLAG("sums", RIDGE_CE_RECORD_SUMS),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    F32_CE(grad_scale, 1),
    END,
};

static const ridge_field backward_fields[] = {
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
    HAS("dentropy", RIDGE_LINEAR_CE_BACKWARD_DENTROPY),
    I64_CE(ids, 0),
    FLAG("accumulate", RIDGE_ACCUMULATE),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    END,
};

static const ridge_field ce_fwd_fields[] = {
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
    DTYPE("dtype", RIDGE_CE_BWD_LOGITS),
    DTYPE("target", RIDGE_CE_BWD_TARGET),
    REDUCTION,
    HAS("dloss", RIDGE_CE_BWD_DLOSS),
    HAS("class_weight", RIDGE_CE_BWD_CLASS_WEIGHT),
    HAS("dentropy", RIDGE_CE_BWD_DENTROPY),
    LOSS_OPTIONS,
    LOGIT_OPTIONS,
    SLICE_OPTIONS,
    END,
};

static const ridge_field combine_fields[] = {
    DTYPE("target", RIDGE_CE_COMBINE_TARGET),
    REDUCTION,
    FLAG("sums", RIDGE_CE_RECORD_SUMS),
    ROW_OUTPUTS(RIDGE_CE_COMBINE_CLASS_WEIGHT),
    HAS("lse", RIDGE_CE_COMBINE_LSE),
    HAS("shard_argmax", RIDGE_CE_COMBINE_SHARD_ARGMAX),
    LOSS_OPTIONS,
    END,
};

/* ------------------------------------------------------------------------------------------------------------- rows */

#define VECTOR(name, role, optional, dtypes, shape)              \
    {                                                            \
        name, role, optional, -1, RIDGE_VECTOR, dtypes, 0, shape \
    }
#define CLASS_WEIGHT VECTOR("class_weight", RIDGE_IN, 1, F32, "[vocab_total]")
#define TARGET VECTOR("target", RIDGE_IN, 0, INTS, "[tokens]")
#define BIAS VECTOR("bias", RIDGE_IN, 1, RIDGE_FLOATS, "[vocab]")
#define LSE_IN VECTOR("lse", RIDGE_IN, 0, F32, "[tokens]")
#define DLOSS VECTOR("dloss", RIDGE_IN, 1, F32, "[1]; [tokens]")
#define DENTROPY VECTOR("entropy", RIDGE_IN, 1, F32, "[tokens]"), VECTOR("dentropy", RIDGE_IN, 1, F32, "[tokens]")
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

#define OF_IDS(name, role)                                      \
    {                                                           \
        name, role, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, ids]" \
    }
#define IDS                                                                               \
    {                                                                                     \
        "ids", RIDGE_IN, 1, RIDGE_LINEAR_CE_TARGET, RIDGE_TABLE, INTS, 0, "[tokens, ids]" \
    }
#define OF_TOP(name, dtypes)                                             \
    {                                                                    \
        name, RIDGE_OUT, 1, -1, RIDGE_TABLE, dtypes, 0, "[tokens, topk]" \
    }
/* a slot that another op with the same slots has */
#define NO_SLOT(name) VECTOR(name, RIDGE_OUT, 1, 0, "")

#define LINEAR_FLAGS (RIDGE_CE_REDUCTION | RIDGE_CE_W_HV)

const ridge_op_row ridge_op_linear_ce_eval = {
    .id = RIDGE_LINEAR_CE_EVAL,
    .name = "linear_ce_eval",
    .summary = "cross entropy of softmax(x W^T), without the logits",
    .dims = 3,
    .dim_name = {"tokens", "hidden", "vocab"},
    .args = 24,
    .arg = {X, W, TARGET, LOSS, BIAS, CLASS_WEIGHT, ROW_OPERANDS, RECORD, VECTOR("seed", RIDGE_IN, 1, I64, "[tokens]"),
            VECTOR("counter", RIDGE_IN, 1, I64, "[tokens]"), VECTOR("sample_score", RIDGE_OUT, 1, F32, "[tokens]"),
            NO_SLOT("dbias"), IDS, OF_IDS("id_logprob", RIDGE_OUT), OF_TOP("top_id", I64), OF_TOP("top_logprob", F32),
            VECTOR("sample_id", RIDGE_OUT, 1, I64, "[tokens]"),
            VECTOR("sample_logprob", RIDGE_OUT, 1, F32, "[tokens]")},
    .fields = eval_fields,
    .flags = LINEAR_FLAGS | RIDGE_CE_RECORD_SUMS,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = ridge_ce_eval_rule,
    .extent = ridge_ce_linear_extent,
    .plain = ce_plain,
    .derive = ce_derive,
    .flops = linear_flops,
    .defaults = eval_defaults,
};

const ridge_op_row ridge_op_linear_ce_train = {
    .id = RIDGE_LINEAR_CE_TRAIN,
    .name = "linear_ce_train",
    .summary = "the loss of linear_ce_eval and its gradients by x, W and bias",
    .dims = 3,
    .dim_name = {"tokens", "hidden", "vocab"},
    .args = 18,
    .arg = {X, W, TARGET, LOSS, BIAS, CLASS_WEIGHT, ROW_OPERANDS, RECORD,
            VECTOR("grad_scale", RIDGE_IN, 1, F32, "[1]; [tokens]"), GRADIENTS},
    .fields = train_fields,
    .flags = LINEAR_FLAGS | RIDGE_ACCUMULATE | RIDGE_CE_PHASE | RIDGE_CE_RECORD_SUMS,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = ridge_ce_train_rule,
    .extent = ridge_ce_linear_extent,
    .plain = ce_plain,
    .derive = ce_derive,
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
    .args = 15,
    .arg = {X, W, TARGET, LSE_IN, DLOSS, BIAS, CLASS_WEIGHT, GRADIENTS, DENTROPY, IDS, OF_IDS("id_logprob", RIDGE_IN),
            OF_IDS("did_logprob", RIDGE_IN)},
    .fields = backward_fields,
    .flags = LINEAR_FLAGS | RIDGE_ACCUMULATE,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = ridge_ce_backward_rule,
    .extent = ridge_ce_backward_extent,
    .plain = ce_plain,
    .derive = ce_derive,
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
    .rule = ridge_ce_eval_rule,
    .extent = ridge_ce_given_extent,
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
    .args = 8,
    .arg = {{"logits", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, vocab]"},
            TARGET,
            LSE_IN,
            DLOSS,
            CLASS_WEIGHT,
            {"dlogits", RIDGE_OUT, 0, 0, RIDGE_MATRIX, RIDGE_FLOATS, 1u << RIDGE_CE_BWD_LOGITS, "[tokens, vocab]"},
            DENTROPY},
    .fields = ce_bwd_fields,
    .flags = RIDGE_CE_REDUCTION,
    .contract = CONTRACT,
    .bound = BOUND,
    .rule = ridge_ce_backward_rule,
    .extent = ridge_ce_given_extent,
    .plain = ce_plain,
    .derive = ce_derive,
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
    .rule = ridge_ce_combine_rule,
    .extent = ridge_ce_combine_extent,
    .flops = ce_flops,
    .defaults = combine_defaults,
};
