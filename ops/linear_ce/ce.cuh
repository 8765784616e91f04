/* ce.cuh: cross entropy on CUDA: what every row shares. tokens.cu has the work of size B (which rows count, what the
 * mean divides by, the outputs from the rows' softmax sums), in double as on the CPU, so that its rounding never
 * counts; softmax_rows.cu the passes over rows of logits; linear_mma.cu and linear_chunks.cuh the products.
 *
 * The tokens that are not ignored are listed in order: a `row` is an index into that list, a `token` one into the call.
 * The device makes the list; the host only knows upper bounds. */
#ifndef RIDGE_CE_CUH
#define RIDGE_CE_CUH

#include <math_constants.h>

#include "cuda/launch.cuh"
#include "cuda/num.cuh"

enum { CE_IGNORED = -1, CE_BAD = -2 };

/* What the mean divides by, what smoothing sums, and how many rows are listed. */
typedef struct ce_totals {
    double weight;  /* sum of w_y over rows that are not ignored; a target out of range has weight 1 */
    double weights; /* sum of the class weights of the whole vocabulary */
    double count;   /* rows that are not ignored */
    int32_t rows;   /* rows listed: all of `count`, or without those out of range */
    int32_t errors;
    int32_t redo;             /* linear_chunks.cuh: a predicted exponent was bad */
    int32_t frequent;         /* linear_chunks.cuh: number of frequent targets */
    uint32_t largest;         /* linear_chunks.cuh: bits of the largest factor of a row */
    int32_t done;             /* tokens.cu: blocks that have written their tokens' losses */
    unsigned long long queue; /* Hopper: tickets of the logits' tile scheduler; 0 between launches */
} ce_totals;

/* A part of a row's softmax sum, over some of the classes; `ce_more` only where an output needs it. */
typedef struct ce_part {
    float max, sum; /* sum e^(z - max) */
} ce_part;
typedef struct ce_more {
    float spread, z, wz; /* sum e^(z - max) (z - max), sum z, sum w z */
    int32_t argmax;      /* in this slice; INT32_MAX = none */
} ce_more;

/* A row's loss: what class weights apply to, the z-loss, and whether argmax = y. */
typedef struct ce_loss {
    double ce, square, right;
} ce_loss;

typedef struct ce_params {
    uint32_t op, flags;
    int64_t tokens, hidden, vocab, shards;
    int64_t offset, total;
    int64_t ignore_index;
    float smoothing, softcap, temperature, square_scale, grad_scale;
    const void *x, *w, *bias; /* x: the logits in ce_fwd and ce_bwd */
    int64_t x_stride, w_stride;
    int dtype, bias_dtype, hv, target64, dw_dtype;
    const void *target;
    const float *class_weight, *lse_in, *dloss, *record_in;
    const int64_t *shard_offset, *shard_argmax;
    int64_t record_stride, shard_argmax_stride;
    void *dx, *dw; /* dx: dlogits in ce_bwd */
    int64_t dx_stride, dw_stride;
    float *dbias;
    float *loss, *token_loss, *lse, *target_logit, *entropy, *accuracy, *record;
    int64_t *argmax;
    int32_t *errors;
    /* workspace */
    ce_totals *totals;
    int32_t *list, *row_of; /* token of a row; row of a token, -1 = not listed */
    int32_t *label;         /* by row: the target in this slice, or below 0 */
    float *target_z;        /* by row: z of the target, -inf if it is not in this slice */
    double *losses;         /* [3][tokens]: the ce_loss of each; members that no output needs are not written */
    ce_part *part;          /* [rows][parts] */
    ce_more *more;
    int32_t *order; /* ce_combine: shards by offset */
    int parts;
    int full; /* entropy, argmax, sums: `more` is written */
    const float *entropy_in, *dentropy;
    const void *ids; /* [tokens, k], of target's dtype */
    const float *did;
    float *id_logprob; /* backward: an input */
    int64_t ids_stride, id_stride, did_stride;
    double2 *id_sums; /* by token: sum of did, and of its absolute values; NULL without ids */
    /* [CE_TOP_ROWS][k]: a row's ids in this slice by class, each with its k; the others behind them, with INT32_MAX;
     * and their z in that order. NULL where the product x W^T does not give them. */
    int2 *id_order;
    float *id_z;
    int k;
    int64_t *top_id; /* [tokens, top_k] */
    float *top_logprob;
    int64_t top_id_stride, top_stride;
    uint64_t *top;      /* [CE_TOP_ROWS][parts][CE_TOP_LIST]: the best of a part of a row's classes (top.cuh) */
    int32_t *top_count; /* [rows][parts]: how many of them there are */
    uint32_t *top_bins; /* by row: how many logits in lists are of a bin: (z - x) y of top_scale */
    float2 *top_scale;
    float *top_least; /* by row: at first only larger logits are listed; NaN: all are */
    int top_k;
    const int64_t *seed, *counter;
    int64_t *sample_id; /* [tokens]: a class drawn, with two more outputs */
    float *sample_logprob, *sample_score;
    uint64_t *draw; /* by row: the entry of the largest score (top.cuh), 0 at first */
} ce_params;

/* Host side, args.cu. */
ce_params ce_collect(const ridge_bound *bound);
/* The workspace that ce_params itself needs: its bytes; ce_layout sets the pointers and returns what follows. */
size_t ce_workspace_bytes(const ridge_problem *problem, int parts);
char *ce_layout(ce_params *p, const ridge_problem *problem, int parts, void *workspace);
/* tokens.cu: the first and the last launch of a call. */
ridge_status ce_begin(const ridge_device *device, const char *name, ce_params *p, void *stream);
ridge_status ce_finish(const ridge_device *device, const char *name, ce_params *p, void *stream);
/* softmax_rows.cu: the rows of dX that no product writes: 0 where ignored, NaN where the target is out of range. */
ridge_status ce_other_rows(const ridge_device *device, const char *name, ce_params *p, void *stream);
bool ce_needs_stats(uint32_t op);
ridge_status ce_tokens_prepare(const ridge_device *device);

/* A block of f32 logits in the workspace: rows [begin, begin + rows) of the list, classes [first, first + count). */
typedef struct ce_block {
    ce_params p;
    float *z;
    int64_t ld, begin, rows, first, count;
} ce_block;

/* u to sums (unless first is 0 merged into part[row]); u to du. */
ridge_status ce_block_stats(const ridge_device *device, const char *name, ce_block *b, void *stream);
ridge_status ce_block_gradient(const ridge_device *device, const char *name, ce_block *b, void *stream);

/* ids.cu, nothing without ids: id_order of listed rows [begin, begin + rows), before their sums, and log-probabilities
 * from id_z behind them; the other log-probabilities, also of a class that was drawn, after the sums; before the first
 * gradient; behind ce_block_gradient. */
enum { CE_MOST_IDS = 256 };
ridge_status ce_ids_rows(const ridge_device *device, const char *name, ce_params *p, int64_t begin, int64_t rows,
                         bool summed, void *stream);
ridge_status ce_ids_eval(const ridge_device *device, const char *name, ce_params *p, void *stream);
ridge_status ce_ids_begin(const ridge_device *device, const char *name, ce_params *p, void *stream);
ridge_status ce_ids_block(const ridge_device *device, const char *name, ce_block *b, void *stream);
ridge_status ce_ids_prepare(const ridge_device *device);

/* top.cu, nothing without option topk or sample_id: the best of a block of logits to the list of part 0 of its rows,
 * and to their draw; the outputs of option topk of listed rows [begin, begin + rows) from their lists and sums. rows is
 * at most CE_TOP_ROWS. */
enum { CE_TOP_ROWS = 2048, CE_TOP_LIST = 512, CE_TOP_BINS = 32 };
static inline bool ce_wants_top(const ridge_problem *problem)
{
    return problem->op == RIDGE_LINEAR_CE_EVAL && problem->dtype[RIDGE_LINEAR_CE_TOP_ID] != RIDGE_NONE;
}
static inline bool ce_wants_sample(const ridge_problem *problem)
{
    return problem->op == RIDGE_LINEAR_CE_EVAL && problem->dtype[RIDGE_LINEAR_CE_SAMPLE_ID] != RIDGE_NONE;
}
/* The ids' logits may come with the sums; what else the call wants decides. */
static inline bool ce_may_order_ids(const ridge_problem *problem)
{
    return problem->op == RIDGE_LINEAR_CE_EVAL && problem->dtype[RIDGE_LINEAR_CE_IDS] != RIDGE_NONE &&
           problem->dtype[RIDGE_LINEAR_CE_BIAS] == RIDGE_NONE && !ce_wants_top(problem) && !ce_wants_sample(problem);
}
ridge_status ce_top_block(const ridge_device *device, const char *name, ce_block *b, void *stream);
typedef struct ce_top {
    ce_params p;
    int64_t begin, rows;
    int bins;    /* the rows have bins, and may have begun above a logit of the sample */
    int if_redo; /* nothing, unless a row had too few */
} ce_top;
ridge_status ce_top_finish(const ridge_device *device, const char *name, ce_top *t, void *stream);
ridge_status ce_top_prepare(const ridge_device *device);

#ifdef __CUDACC__

#define CE_LOG2E 1.4426950408889634f

static __device__ __forceinline__ int64_t ce_class(const ce_params &p, const void *from, int64_t i)
{
    const int64_t t = p.target64 ? ((const int64_t *)from)[i] : ((const int32_t *)from)[i];

    if (t == p.ignore_index)
        return CE_IGNORED;
    return t >= 0 && t < p.total ? t : CE_BAD;
}

static __device__ __forceinline__ int64_t ce_target(const ce_params &p, int64_t token)
{
    return ce_class(p, p.target, token);
}

/* dz_c = p_c * (all + bend * log p_c) - [c = y] * label - w_c * smooth; all and label are separate so that p_y - 1 is
 * formed first. bend: minus the gradient of the entropy H, whose -p_c (log p_c + H) is in `all` as to H. */
typedef struct ce_factors {
    double all, label, smooth, bend;
} ce_factors;

static __device__ __forceinline__ double ce_inverse(double x)
{
    return x == 0 ? 0 : 1 / x;
}

static __device__ __forceinline__ ce_factors ce_factors_of(const ce_params &p, int64_t token, int64_t target,
                                                           double lse)
{
    const bool none = (p.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE;
    const bool mean = (p.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_MEAN;
    const double up = (p.dloss ? (double)p.dloss[none ? token : 0] : 1) * (double)p.grad_scale;
    const double ce = mean ? up * ce_inverse(p.totals->weight) : up;
    const double square = mean ? up * ce_inverse(p.totals->count) : up;
    const double eps = (double)p.smoothing, w = p.class_weight ? (double)p.class_weight[target] : 1;
    ce_factors f;

    f.label = ce * (1 - eps) * w;
    f.smooth = ce * eps / (double)p.total;
    f.all = f.label + f.smooth * p.totals->weights + square * 2 * (double)p.square_scale * lse;
    f.bend = p.dentropy ? -(double)p.dentropy[token] : 0;
    if (f.bend != 0)
        f.all += f.bend * (double)p.entropy_in[token];
    if (p.id_sums)
        f.all -= p.id_sums[token].x;
    return f;
}

static __device__ __forceinline__ float ce_bias(const ce_params &p, int64_t c)
{
    if (!p.bias)
        return 0.0f;
    return p.bias_dtype == RIDGE_F32    ? ((const float *)p.bias)[c]
           : p.bias_dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(p.bias, c)
                                        : num_load<RIDGE_F16>(p.bias, c);
}

/* u (with its bias) to z. */
static __device__ __forceinline__ float ce_logit(const ce_params &p, float u, float cap_inverse, float cool)
{
    if (p.softcap > 0.0f)
        u = p.softcap * ridge_tanh(u * cap_inverse);
    return u * cool;
}

/* dz/du from z. */
static __device__ __forceinline__ float ce_slope(const ce_params &p, float z, float cap_inverse, float cool)
{
    const float t = z * p.temperature * cap_inverse;

    return p.softcap > 0.0f ? (1.0f - t * t) * cool : cool;
}

/* A row's softmax sum, in double. */
typedef struct ce_sum {
    double sum, spread, z, wz;
    float max;
    int64_t argmax;
} ce_sum;

static __device__ __forceinline__ ce_sum ce_sum_empty(void)
{
    const ce_sum s = {0, 0, 0, 0, -CUDART_INF_F, INT64_MAX};

    return s;
}

/* Merges another part. A part whose logits are all -inf adds nothing; NaN counts as largest. */
static __device__ __forceinline__ void ce_sum_merge(ce_sum *a, const ce_sum &b)
{
    const bool nan_a = a->max != a->max, nan_b = b.max != b.max;
    const bool better = nan_b ? !nan_a || b.argmax < a->argmax
                              : !nan_a && (b.max > a->max || (b.max == a->max && b.argmax < a->argmax));
    const float high = better ? b.max : a->max;
    const double gap_a = (double)a->max - (double)high, gap_b = (double)b.max - (double)high;

    if (a->sum != 0 && gap_a != 0) {
        const double scale = exp(gap_a);

        a->spread = scale > 0 || scale != scale ? scale * (a->spread + gap_a * a->sum) : 0;
        a->sum *= scale;
    }
    if (b.sum != 0) {
        const double scale = gap_b != 0 ? exp(gap_b) : 1;

        a->spread += scale > 0 || scale != scale ? scale * (b.spread + (gap_b != 0 ? gap_b * b.sum : 0)) : 0;
        a->sum += scale * b.sum;
    }
    a->z += b.z;
    a->wz += b.wz;
    a->argmax = better ? b.argmax : a->argmax;
    a->max = high;
}

static __device__ __forceinline__ ce_sum ce_sum_shuffle(const ce_sum &s, int step)
{
    ce_sum other;

    other.sum = __shfl_xor_sync(~0u, s.sum, step);
    other.spread = __shfl_xor_sync(~0u, s.spread, step);
    other.z = __shfl_xor_sync(~0u, s.z, step);
    other.wz = __shfl_xor_sync(~0u, s.wz, step);
    other.max = __shfl_xor_sync(~0u, s.max, step);
    other.argmax = __shfl_xor_sync(~0u, s.argmax, step);
    return other;
}

/* One part of a row. */
static __device__ __forceinline__ ce_sum ce_sum_part(const ce_params &p, int64_t row, int index)
{
    const ce_part part = p.part[row * p.parts + index];
    ce_sum s = ce_sum_empty();

    s.max = part.max;
    s.sum = (double)part.sum;
    if (p.full) {
        const ce_more more = p.more[row * p.parts + index];

        s.spread = (double)more.spread;
        s.z = (double)more.z;
        s.wz = (double)more.wz;
        s.argmax = more.argmax == INT32_MAX ? INT64_MAX : p.offset + more.argmax;
    }
    return s;
}

/* Maximum and sum of a row (below 0: none) from all its parts, by LANES lanes of a warp. */
template <int LANES> static __device__ __forceinline__ ce_sum ce_row_sum(const ce_params &p, int64_t row)
{
    const int lane = threadIdx.x % LANES, parts = row < 0 ? 0 : p.parts;
    ce_sum s = ce_sum_empty();

    for (int first = lane; first < parts; first += 8 * LANES) { /* eight loads in flight */
        float v[8];

#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = first + i * LANES < parts ? p.part[row * p.parts + first + i * LANES].max : -CUDART_INF_F;
#pragma unroll
        for (int i = 0; i < 8; i++)
            s.max = fmaxf(s.max, v[i]);
    }
    for (int step = LANES / 2; step > 0; step /= 2)
        s.max = fmaxf(s.max, __shfl_xor_sync(~0u, s.max, step));
    for (int k = lane; k < parts; k += LANES) {
        const ce_part part = p.part[row * p.parts + k];

        if (part.sum != 0.0f)
            s.sum += (double)(part.max == s.max ? part.sum : part.sum * ptx_ex2((part.max - s.max) * CE_LOG2E));
    }
    for (int step = LANES / 2; step > 0; step /= 2)
        s.sum += __shfl_xor_sync(~0u, s.sum, step);
    return s;
}

static __device__ __forceinline__ void ce_sum_store(const ce_params &p, int64_t row, int index, const ce_sum &s)
{
    p.part[row * p.parts + index] = {s.max, (float)s.sum};
    if (p.full)
        p.more[row * p.parts + index] = {(float)s.spread, (float)s.z, (float)s.wz,
                                         s.argmax == INT64_MAX ? INT32_MAX : (int32_t)(s.argmax - p.offset)};
}

#endif

#endif
