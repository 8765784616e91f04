/* cpu.c: cross entropy on the CPU: what a call means, the totals over its rows, the outputs from the rows' softmax
 * sums, the combination of shards, and the kernel list. */
#include "cpu.h"

#include <math.h>
#include <string.h>

#include "cpu_fast.h"
#include "cpu/num.h"
#include "cpu/team.h"

/* class_weight .. errors: eight slots in the same order in every op that has them. */
static void args_outputs(ce_args *a, const ridge_operand *arg, int loss, int class_weight)
{
    a->loss = arg[loss].data;
    a->class_weight = arg[class_weight].data;
    a->token_loss = arg[class_weight + 1].data;
    a->lse = arg[class_weight + 2].data;
    a->target_logit = arg[class_weight + 3].data;
    a->entropy = arg[class_weight + 4].data;
    a->argmax = arg[class_weight + 5].data;
    a->accuracy = arg[class_weight + 6].data;
    a->errors = arg[class_weight + 7].data;
}

static void args_gradients(ce_args *a, const ridge_operand *arg, int dx)
{
    a->dx = arg[dx].data;
    a->dx_stride = arg[dx].stride;
    a->dw = arg[dx + 1].data;
    a->dw_stride = arg[dx + 1].stride;
    a->dw_dtype = arg[dx + 1].dtype;
    a->dbias = arg[dx + 2].data;
}

/* ids and id_logprob. */
static void args_ids(ce_args *a, const ridge_operand *ids)
{
    a->ids = ids[0].data;
    a->ids_stride = ids[0].stride;
    a->id_logprob = ids[1].data;
    a->id_stride = ids[1].stride;
}

static void args_linear(ce_args *a, const ridge_call *call)
{
    const bool backward = call->op == RIDGE_LINEAR_CE_BACKWARD;
    const int bias = backward ? (int)RIDGE_LINEAR_CE_BACKWARD_BIAS : (int)RIDGE_LINEAR_CE_BIAS;
    const ridge_operand *arg = call->arg;

    a->hidden = call->dim[1];
    a->vocab = call->dim[2];
    a->hv = (call->flags & RIDGE_CE_W_HV) != 0;
    a->w = arg[RIDGE_LINEAR_CE_W].data;
    a->w_stride = arg[RIDGE_LINEAR_CE_W].stride;
    a->bias = arg[bias].data;
    a->bias_dtype = arg[bias].dtype;
    if (backward) {
        a->lse_in = arg[RIDGE_LINEAR_CE_BACKWARD_LSE].data;
        a->dloss = arg[RIDGE_LINEAR_CE_BACKWARD_DLOSS].data;
        a->class_weight = arg[RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT].data;
        a->entropy_in = arg[RIDGE_LINEAR_CE_BACKWARD_ENTROPY].data;
        a->dentropy = arg[RIDGE_LINEAR_CE_BACKWARD_DENTROPY].data;
        args_ids(a, &arg[RIDGE_LINEAR_CE_BACKWARD_IDS]);
        a->did = arg[RIDGE_LINEAR_CE_BACKWARD_DID_LOGPROB].data;
        a->did_stride = arg[RIDGE_LINEAR_CE_BACKWARD_DID_LOGPROB].stride;
        args_gradients(a, arg, RIDGE_LINEAR_CE_BACKWARD_DX);
        return;
    }
    args_outputs(a, arg, RIDGE_LINEAR_CE_LOSS, RIDGE_LINEAR_CE_CLASS_WEIGHT);
    if (call->op == RIDGE_LINEAR_CE_TRAIN) {
        a->dloss = arg[RIDGE_LINEAR_CE_GRAD_SCALE].data;
        args_gradients(a, arg, RIDGE_LINEAR_CE_DX);
    } else {
        a->record = arg[RIDGE_LINEAR_CE_RECORD].data;
        a->record_stride = arg[RIDGE_LINEAR_CE_RECORD].stride;
        args_ids(a, &arg[RIDGE_LINEAR_CE_IDS]);
        a->top_id = arg[RIDGE_LINEAR_CE_TOP_ID].data;
        a->top_id_stride = arg[RIDGE_LINEAR_CE_TOP_ID].stride;
        a->top_logprob = arg[RIDGE_LINEAR_CE_TOP_LOGPROB].data;
        a->top_stride = arg[RIDGE_LINEAR_CE_TOP_LOGPROB].stride;
        a->seed = arg[RIDGE_LINEAR_CE_SEED].data;
        a->counter = arg[RIDGE_LINEAR_CE_COUNTER].data;
        a->sample_id = arg[RIDGE_LINEAR_CE_SAMPLE_ID].data;
        a->sample_logprob = arg[RIDGE_LINEAR_CE_SAMPLE_LOGPROB].data;
        a->sample_score = arg[RIDGE_LINEAR_CE_SAMPLE_SCORE].data;
    }
}

static void args_given(ce_args *a, const ridge_call *call)
{
    const ridge_operand *arg = call->arg;

    a->vocab = call->dim[1];
    if (call->op == RIDGE_CE_FWD) {
        args_outputs(a, arg, RIDGE_CE_FWD_LOSS, RIDGE_CE_FWD_CLASS_WEIGHT);
        a->record = arg[RIDGE_CE_FWD_RECORD].data;
        a->record_stride = arg[RIDGE_CE_FWD_RECORD].stride;
    } else {
        a->lse_in = arg[RIDGE_CE_BWD_LSE].data;
        a->dloss = arg[RIDGE_CE_BWD_DLOSS].data;
        a->class_weight = arg[RIDGE_CE_BWD_CLASS_WEIGHT].data;
        a->entropy_in = arg[RIDGE_CE_BWD_ENTROPY].data;
        a->dentropy = arg[RIDGE_CE_BWD_DENTROPY].data;
        a->dx = arg[RIDGE_CE_BWD_DLOGITS].data;
        a->dx_stride = arg[RIDGE_CE_BWD_DLOGITS].stride;
    }
}

static void args_combine(ce_args *a, const ridge_call *call)
{
    const ridge_operand *arg = call->arg;

    a->vocab = call->dim[1];
    a->shards = call->dim[2];
    a->record_in = arg[RIDGE_CE_COMBINE_RECORD].data;
    a->record_stride = arg[RIDGE_CE_COMBINE_RECORD].stride;
    a->shard_offset = arg[RIDGE_CE_COMBINE_OFFSET].data;
    a->shard_argmax = arg[RIDGE_CE_COMBINE_SHARD_ARGMAX].data;
    a->shard_argmax_stride = arg[RIDGE_CE_COMBINE_SHARD_ARGMAX].stride;
    args_outputs(a, arg, RIDGE_CE_COMBINE_LOSS, RIDGE_CE_COMBINE_CLASS_WEIGHT);
}

ce_args ridge_cpu_ce_args(const ridge_call *call)
{
    const int target = call->op == RIDGE_CE_COMBINE                           ? (int)RIDGE_CE_COMBINE_TARGET
                       : call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD ? (int)RIDGE_CE_FWD_TARGET
                                                                              : (int)RIDGE_LINEAR_CE_TARGET;
    ce_args a;

    memset(&a, 0, sizeof a);
    a.op = call->op;
    a.flags = call->flags;
    a.o = call->opt.ce;
    a.tokens = call->dim[0];
    a.x = call->arg[0].data;
    a.dtype = call->arg[0].dtype;
    a.target = call->arg[target].data;
    a.target64 = call->arg[target].dtype == RIDGE_I64;
    a.x_stride = call->arg[0].stride;
    if (call->op == RIDGE_CE_COMBINE)
        args_combine(&a, call);
    else if (call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD)
        args_given(&a, call);
    else
        args_linear(&a, call);
    a.offset = call->opt.ce.vocab_offset;
    a.total = call->opt.ce.vocab_total ? call->opt.ce.vocab_total : a.vocab;
    return a;
}

static int64_t class_at(const ce_args *a, const void *from, int64_t i)
{
    const int64_t t = a->target64 ? ((const int64_t *)from)[i] : ((const int32_t *)from)[i];

    if (t == a->o.ignore_index)
        return CE_IGNORED;
    return t >= 0 && t < a->total ? t : CE_BAD;
}

int64_t ridge_cpu_ce_target(const ce_args *a, int64_t token)
{
    return class_at(a, a->target, token);
}

int64_t ridge_cpu_ce_id(const ce_args *a, int64_t token, int64_t k)
{
    return class_at(a, a->ids, token * a->ids_stride + k);
}

bool ridge_cpu_ce_hit(const ce_args *a, int64_t token, int64_t k, double *hit)
{
    const int64_t c = ridge_cpu_ce_id(a, token, k);

    for (int64_t j = 0; j < k && c >= 0; j++)
        if (ridge_cpu_ce_id(a, token, j) == c)
            return false;
    *hit = 0;
    for (int64_t j = k; j < a->o.ids && c >= 0; j++)
        if (ridge_cpu_ce_id(a, token, j) == c)
            *hit += (double)a->did[token * a->did_stride + j];
    return c >= 0;
}

double ridge_cpu_ce_id_du(const ce_args *a, const ce_factors *f, int64_t token, int64_t k, double lse, double hit,
                          double *slope)
{
    const int64_t c = ridge_cpu_ce_id(a, token, k);
    const double log_p = (double)a->id_logprob[token * a->id_stride + k], p = exp(log_p);
    const double t = a->o.softcap > 0 ? (log_p + lse) * (double)a->o.temperature / (double)a->o.softcap : 0;
    const double smooth = f->smooth * (a->class_weight ? (double)a->class_weight[c] : 1);

    *slope = (1 - t * t) / (double)a->o.temperature;
    return (expm1(log_p) * f->all + (f->all + hit) + (p > 0 ? p * log_p * f->bend : 0) - smooth) * *slope;
}

void ridge_cpu_ce_top(const ce_args *a, int64_t token, int64_t c, float z)
{
    float *top = a->top_logprob + token * a->top_stride;
    int64_t *id = a->top_id + token * a->top_id_stride, at = c < a->o.topk ? c : a->o.topk;

    for (; at > 0 && (isnan(z) ? !isnan(top[at - 1]) : z > top[at - 1]); at--)
        if (at < a->o.topk) {
            top[at] = top[at - 1];
            id[at] = id[at - 1];
        }
    if (at < a->o.topk) {
        top[at] = z;
        id[at] = a->offset + c;
    }
}

ce_totals ridge_cpu_ce_totals(const ce_args *a)
{
    ce_totals t = {0, 0, 0, 0};

    for (int64_t i = 0; i < a->tokens; i++) {
        const int64_t y = ridge_cpu_ce_target(a, i);

        if (y == CE_IGNORED)
            continue;
        t.count += 1;
        t.errors += y == CE_BAD;
        t.weight += a->class_weight && y >= 0 ? (double)a->class_weight[y] : 1;
    }
    t.weights = (double)a->total;
    if (a->class_weight) {
        t.weights = 0;
        for (int64_t c = 0; c < a->total; c++)
            t.weights += (double)a->class_weight[c];
    }
    return t;
}

static double inverse(double x)
{
    return x == 0 ? 0 : 1 / x;
}

ce_factors ridge_cpu_ce_factors(const ce_args *a, const ce_totals *t, int64_t token, int64_t target, double lse)
{
    const bool none = (a->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE;
    const bool mean = (a->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_MEAN;
    const double up = (a->dloss ? (double)a->dloss[none ? token : 0] : 1) * (double)a->o.grad_scale;
    const double ce = mean ? up * inverse(t->weight) : up, square = mean ? up * inverse(t->count) : up;
    const double eps = (double)a->o.label_smoothing, w = a->class_weight ? (double)a->class_weight[target] : 1;
    ce_factors f;

    f.label = ce * (1 - eps) * w;
    f.smooth = ce * eps / (double)a->total;
    f.all = f.label + f.smooth * t->weights + square * 2 * (double)a->o.lse_square_scale * lse;
    f.bend = a->dentropy ? -(double)a->dentropy[token] : 0;
    if (f.bend != 0)
        f.all += f.bend * (double)a->entropy_in[token];
    for (int64_t k = 0; k < a->o.ids; k++)
        f.all -= ridge_cpu_ce_id(a, token, k) >= 0 ? (double)a->did[token * a->did_stride + k] : 0;
    return f;
}

double ridge_cpu_ce_lse(const ce_stat *s)
{
    return (double)s->max + log(s->sum);
}

ce_stat ridge_cpu_ce_empty(void)
{
    return (ce_stat){.max = -INFINITY, .target = -INFINITY, .argmax = -1};
}

void ridge_cpu_ce_merge(ce_stat *into, const ce_stat *more)
{
    /* A part whose logits are all -inf adds nothing, and its max must not meet another -inf in a difference. */
    const bool grows = more->max > into->max || isnan(more->max);
    const double gap = grows ? (double)into->max - (double)more->max : (double)more->max - (double)into->max;
    ce_stat low = grows ? *into : *more;
    const ce_stat high = grows ? *more : *into;
    const double scale = low.max == -INFINITY && !isnan(gap + low.sum) ? 0 : exp(gap);

    if (low.sum > 0 || isnan(low.sum)) {
        low.spread = scale > 0 || isnan(scale) ? scale * (low.spread + gap * low.sum) : 0;
        low.sum *= scale;
    }
    if (isnan(into->max)) { /* NaN counts as largest, and the first one wins */
        into->sum = NAN;
        into->spread = NAN;
    } else {
        into->max = high.max;
        into->argmax = grows || into->argmax < 0 ? more->argmax : into->argmax;
        into->sum = high.sum + low.sum;
        into->spread = high.spread + low.spread;
    }
    into->z += more->z;
    into->wz += more->wz;
    into->target = more->target == -INFINITY ? into->target : more->target;
}

/* ---------------------------------------------------------------------------------------------------------- outputs */

enum { TREE = 256 };

/* Sum over rows: partial i % 256 in ascending i, then halves onto halves: an order that no blocking can change. */
typedef struct tree_sum {
    double part[TREE];
} tree_sum;

static double tree_total(tree_sum *s)
{
    for (int half = TREE / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            s->part[i] += s->part[i + half];
    return s->part[0];
}

static void put(float *to, int64_t i, double value)
{
    if (to)
        to[i] = ridge_f32_canonical((float)value);
}

static void put_record(const ce_args *a, int64_t token, const ce_stat *s)
{
    float *r = a->record + token * a->record_stride;

    r[0] = ridge_f32_canonical(s->max);
    r[1] = ridge_f32_canonical((float)s->sum);
    r[2] = ridge_f32_canonical((float)s->target);
    if (a->flags & RIDGE_CE_RECORD_SUMS) {
        put(r, 3, s->z);
        put(r, 4, s->wz);
        put(r, 5, s->sum > 0 || isnan(s->sum) ? s->spread + (double)s->max * s->sum : 0);
    }
}

/* The two parts of a row's loss: what class weights apply to, and the z-loss. */
static void row_loss(const ce_args *a, const ce_totals *t, const ce_stat *s, int64_t y, double *ce, double *square)
{
    const double lse = ridge_cpu_ce_lse(s), eps = (double)a->o.label_smoothing;
    const double w = a->class_weight ? (double)a->class_weight[y] : 1;

    /* log sum + (max - z_y), not lse - z_y: with all logits near 1e4 the difference of the maxima is exact */
    *ce = w == 0 || eps == 1 ? 0 : (1 - eps) * w * (log(s->sum) + ((double)s->max - s->target));
    if (eps != 0)
        *ce += eps / (double)a->total * (t->weights * lse - s->wz);
    *square = a->o.lse_square_scale != 0.0f ? (double)a->o.lse_square_scale * lse * lse : 0;
}

/* z of the ids, which the rows have left there, to their log-probabilities: not above 0, whatever z and sum are rounded
 * to. A slice leaves z. */
static void put_ids(const ce_args *a, int64_t token, int64_t y, const ce_stat *s)
{
    const bool slice = a->offset != 0 || a->total != a->vocab;
    float *to = a->id_logprob + token * a->id_stride;

    for (int64_t k = 0; k < a->o.ids; k++) {
        const int64_t c = ridge_cpu_ce_id(a, token, k);
        const double log_p = -(log(s->sum) + ((double)s->max - (double)to[k]));

        if (y == CE_IGNORED || c < 0)
            put(to, k, y == CE_IGNORED || c == CE_IGNORED ? 0 : NAN);
        else if (!slice)
            put(to, k, log_p > 0 ? 0 : log_p);
    }
}

/* z of the top classes, which the rows have left there, likewise. */
static void put_top(const ce_args *a, int64_t token, int64_t y, const ce_stat *s)
{
    const bool slice = a->offset != 0 || a->total != a->vocab;
    float *to = a->top_logprob + token * a->top_stride;

    for (int64_t k = 0; k < a->o.topk; k++) {
        const double log_p = slice ? (double)to[k] : -(log(s->sum) + ((double)s->max - (double)to[k]));

        if (y == CE_IGNORED)
            a->top_id[token * a->top_id_stride + k] = -1;
        put(to, k, y == CE_IGNORED || (!slice && log_p > 0) ? 0 : log_p);
    }
}

/* z of the class that was drawn likewise, and its score. */
static void put_sample(const ce_args *a, int64_t token, int64_t y, const ce_stat *s)
{
    const bool slice = a->offset != 0 || a->total != a->vocab;
    const float z = a->sample_logprob[token];
    const double log_p = slice ? (double)z : -(log(s->sum) + ((double)s->max - (double)z));

    put(a->sample_score, token, y == CE_IGNORED ? 0 : (double)ridge_cpu_ce_score(a, token, a->sample_id[token], z));
    if (y == CE_IGNORED)
        a->sample_id[token] = -1;
    put(a->sample_logprob, token, y == CE_IGNORED || (!slice && log_p > 0) ? 0 : log_p);
}

static void put_row(const ce_args *a, int64_t i, int64_t y, const ce_stat *s, double loss)
{
    put(a->token_loss, i, loss);
    if ((a->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE)
        put(a->loss, i, loss);
    put(a->lse, i, y == CE_IGNORED ? 0 : ridge_cpu_ce_lse(s));
    put(a->target_logit, i, y == CE_IGNORED ? 0 : y == CE_BAD ? NAN : s->target);
    put(a->entropy, i, y == CE_IGNORED ? 0 : log(s->sum) - s->spread / s->sum);
    if (a->argmax)
        a->argmax[i] = y == CE_IGNORED ? -1 : s->argmax;
    if (a->record)
        put_record(a, i, s);
    if (a->id_logprob)
        put_ids(a, i, y, s);
    if (a->top_id)
        put_top(a, i, y, s);
    if (a->sample_id)
        put_sample(a, i, y, s);
}

void ridge_cpu_ce_finish(const ce_args *a, const ce_totals *t, const ce_stat *stat)
{
    const bool mean = (a->flags & RIDGE_CE_REDUCTION) == RIDGE_CE_MEAN, rows = a->loss || a->token_loss;
    const ce_stat empty = ridge_cpu_ce_empty();
    tree_sum ce_sum = {{0}}, square_sum = {{0}};
    int64_t right = 0;

    for (int64_t i = 0; i < a->tokens; i++) {
        const int64_t y = ridge_cpu_ce_target(a, i);
        const ce_stat *s = y == CE_IGNORED ? &empty : &stat[i];
        double ce = 0, square = 0;

        if (y >= 0 && rows)
            row_loss(a, t, s, y, &ce, &square);
        else if (y == CE_BAD)
            ce = NAN;
        ce_sum.part[i % TREE] += ce;
        square_sum.part[i % TREE] += square;
        right += y >= 0 && s->argmax == y;
        put_row(a, i, y, s, ce + square);
    }
    if ((a->flags & RIDGE_CE_REDUCTION) != RIDGE_CE_NONE) {
        double ce = tree_total(&ce_sum), square = tree_total(&square_sum);

        if (mean) {
            ce = t->weight != 0 ? ce / t->weight : isnan(ce) ? NAN : 0;
            square *= inverse(t->count);
        }
        put(a->loss, 0, ce + square);
    }
    put(a->accuracy, 0, (double)right * inverse(t->count));
    if (a->errors)
        *a->errors = (int32_t)(t->errors < INT32_MAX ? t->errors : INT32_MAX);
}

/* ---------------------------------------------------------------------------------------------------------- combine */

static ce_stat read_record(const ce_args *a, int64_t shard, int64_t token)
{
    const float *r = a->record_in + (shard * a->tokens + token) * a->record_stride;
    ce_stat s = ridge_cpu_ce_empty();

    s.max = r[0];
    s.sum = (double)r[1];
    s.target = (double)r[2];
    s.argmax = a->shard_argmax ? a->shard_argmax[shard * a->shard_argmax_stride + token] : 0;
    if (a->flags & RIDGE_CE_RECORD_SUMS) {
        s.z = (double)r[3];
        s.wz = (double)r[4];
        s.spread = s.sum > 0 || isnan(s.sum) ? (double)r[5] - (double)s.max * s.sum : 0;
    }
    return s;
}

static void combine(const ce_args *a, void *workspace)
{
    const ce_totals t = ridge_cpu_ce_totals(a);
    ce_stat *stat = workspace;
    int64_t *order = (int64_t *)(stat + a->tokens);
    ridge_team *team;

    for (int64_t i = 0; i < a->shards; i++) {
        int64_t at = i;

        for (; at > 0 && a->shard_offset[order[at - 1]] > a->shard_offset[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    team = ridge_team_begin((double)(a->tokens * a->shards) / 256, a->tokens);
    (void)team; /* without OpenMP */
#pragma omp parallel num_threads(team->threads)
    {
        const unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static)
        for (int64_t token = 0; token < a->tokens; token++) {
            stat[token] = ridge_cpu_ce_empty();
            for (int64_t i = 0; i < a->shards; i++) {
                const ce_stat more = read_record(a, order[i], token);

                ridge_cpu_ce_merge(&stat[token], &more);
            }
        }
        ridge_fp_end(mode);
    }
    ridge_cpu_ce_finish(a, &t, stat);
}

static ridge_status launch_combine(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                   void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const work)(const ce_args *, void *) = combine;
    const ce_args a = ridge_cpu_ce_args(&bound->call);
    const unsigned mode = ridge_fp_begin();

    (void)device, (void)kernel, (void)bytes, (void)stream;
    work(&a, workspace);
    ridge_fp_end(mode);
    return RIDGE_OK;
}

static size_t combine_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (size_t)problem->dim[0] * sizeof(ce_stat) + (size_t)problem->dim[2] * sizeof(int64_t);
}

/* ------------------------------------------------------------------------------------------------------------- list */

/* param[0]: GFLOP/s of a core; param[1]: tokens of a chunk; param[2]: the logits of a chunk are kept, not computed
 * again. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double gemms = problem->op == RIDGE_LINEAR_CE_EVAL                         ? 2
                         : problem->op == RIDGE_LINEAR_CE_TRAIN && !kernel->param[2] ? 8
                         : problem->op < RIDGE_CE_FWD                                ? 6
                                                                                     : 16;
    double product = gemms;

    for (int d = 0; d < 3; d++)
        product *= problem->dim[d] ? (double)problem->dim[d] : 1;
    return product * 1e-3 / kernel->param[0] / (device->units ? device->units : 1);
}

#define ROW(op_name, op_id, arch_name, low, gflops, chunk, keep, work, launcher)                                 \
    {                                                                                                            \
        .name = "cpu." op_name "." arch_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512,       \
        .contract = RIDGE_STABLE | RIDGE_CLOSE, .param = {gflops, chunk, keep}, .workspace = work, .cost = cost, \
        .launch = launcher                                                                                       \
    }

#define REFERENCE(op_name, op_id) \
    ROW(op_name, op_id, "c", RIDGE_ARCH_C, 1, 1, 0, ridge_cpu_ce_reference_workspace, ridge_cpu_ce_reference)

#if defined(__x86_64__)
#define FAST(op_name, op_id, variant, chunk, keep, avx512, avx2)                                               \
    ROW(op_name, op_id, "avx512" variant, RIDGE_ARCH_AVX512, avx512, chunk, keep, ridge_cpu_ce_fast_workspace, \
        ridge_cpu_ce_fast),                                                                                    \
        ROW(op_name, op_id, "avx2" variant, RIDGE_ARCH_AVX2, avx2, chunk, keep, ridge_cpu_ce_fast_workspace,   \
            ridge_cpu_ce_fast),
#else
#define FAST(op_name, op_id, variant, chunk, keep, avx512, avx2)
#endif

static const ridge_kernel rows[] = {
    FAST("linear_ce_eval", RIDGE_LINEAR_CE_EVAL, "", 512, 0, 80, 50)              //
    FAST("linear_ce_eval", RIDGE_LINEAR_CE_EVAL, ".small", 32, 0, 40, 30)         //
    REFERENCE("linear_ce_eval", RIDGE_LINEAR_CE_EVAL),                            //
    FAST("linear_ce_train", RIDGE_LINEAR_CE_TRAIN, "", 512, 1, 80, 50)            //
    FAST("linear_ce_train", RIDGE_LINEAR_CE_TRAIN, ".recompute", 512, 0, 80, 50)  //
    FAST("linear_ce_train", RIDGE_LINEAR_CE_TRAIN, ".small", 32, 0, 40, 30)       //
    REFERENCE("linear_ce_train", RIDGE_LINEAR_CE_TRAIN),                          //
    FAST("linear_ce_backward", RIDGE_LINEAR_CE_BACKWARD, "", 512, 0, 80, 50)      //
    FAST("linear_ce_backward", RIDGE_LINEAR_CE_BACKWARD, ".small", 32, 0, 40, 30) //
    REFERENCE("linear_ce_backward", RIDGE_LINEAR_CE_BACKWARD),                    //
    FAST("ce_fwd", RIDGE_CE_FWD, "", 64, 0, 40, 30)                               //
    REFERENCE("ce_fwd", RIDGE_CE_FWD),                                            //
    FAST("ce_bwd", RIDGE_CE_BWD, "", 64, 0, 40, 30)                               //
    REFERENCE("ce_bwd", RIDGE_CE_BWD),                                            //
    ROW("ce_combine", RIDGE_CE_COMBINE, "c", RIDGE_ARCH_C, 1, 1, 0, combine_workspace, launch_combine),
};

const ridge_kernel_list ridge_cpu_ce = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
