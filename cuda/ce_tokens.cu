/* ce_tokens.cu: cross entropy on CUDA: the work of size B: which rows are listed, what the mean divides by, and every
 * output from the rows' softmax sums (or, ce_combine, from the records of shards). */
#include "ce.cuh"

enum { SCAN = 512, WARPS = SCAN / 32, EACH = 8, QUAD = EACH * WARPS / 32, TREE = 256, FINISH_WARPS = TREE / 32 };

/* ------------------------------------------------------------------------------------------- which rows, and totals */

/* Places of this thread's tokens, which are SCAN apart, among the listed ones: mask[i] has those of its warp; counts:
 * room for all warps' numbers. Returns how many are listed. */
static __device__ int ce_scan(const uint32_t *mask, int *counts, int *at)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = 0, before = 0, all;

    if (lane == 0)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            counts[i * WARPS + warp] = __popc(mask[i]);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < QUAD; k++) { /* a lane has QUAD numbers; of those with this warp's, those before it */
        const int count = counts[lane * QUAD + k];

        sum += count;
        before += k < warp % QUAD ? count : 0;
    }
    all = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, all, step);

        all += lane >= step ? other : 0;
    }
    before += all - sum;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        at[i] = __shfl_sync(~0u, before, (i * WARPS + warp) / QUAD) + __popc(mask[i] & ((1u << lane) - 1));
    return __shfl_sync(~0u, all, 31);
}

/* Sum over the block in a fixed order. */
static __device__ double ce_block_sum(double value, double *room)
{
    __syncthreads();
    room[threadIdx.x] = value;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
    }
    __syncthreads();
    return room[0];
}

/* The list of rows in the order of tokens, and the totals. */
static __device__ void ce_list(const ce_params &p, int list_bad)
{
    __shared__ int counts[2][EACH * WARPS]; /* in turn, so that one barrier a round is enough */
    __shared__ double room[SCAN];
    double weight = 0, weights = 0, count = 0, errors = 0;
    int rows = 0, turn = 0;

    for (int64_t first = threadIdx.x; first - threadIdx.x < p.tokens; first += SCAN * EACH, turn ^= 1) {
        int64_t y[EACH];
        uint32_t mask[EACH];
        int at[EACH], total;

#pragma unroll
        for (int i = 0; i < EACH; i++)
            y[i] = first + i * SCAN < p.tokens ? ce_target(p, first + i * SCAN) : (int64_t)CE_IGNORED;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            mask[i] = __ballot_sync(~0u, y[i] >= 0 || (y[i] == CE_BAD && list_bad));
        total = ce_scan(mask, counts[turn], at);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int64_t token = first + i * SCAN;
            const bool here = mask[i] >> threadIdx.x % 32 & 1;

            at[i] += rows;
            if (token < p.tokens)
                p.place[token] = here ? at[i] : -1;
            if (here) {
                p.list[at[i]] = (int32_t)token;
                p.label[at[i]] = y[i] >= p.offset && y[i] < p.offset + p.vocab ? (int32_t)(y[i] - p.offset) : -1;
            }
            count += y[i] != CE_IGNORED;
            errors += y[i] == CE_BAD;
            weight += y[i] == CE_IGNORED ? 0 : y[i] >= 0 && p.class_weight ? (double)p.class_weight[y[i]] : 1;
        }
        rows += total;
    }
    for (int64_t c = threadIdx.x; c < p.total && p.class_weight; c += SCAN)
        weights += (double)p.class_weight[c];
    weight = ce_block_sum(weight, room);
    weights = ce_block_sum(weights, room);
    count = ce_block_sum(count, room);
    errors = ce_block_sum(errors, room);
    if (threadIdx.x == 0)
        *p.totals = {weight, p.class_weight ? weights : (double)p.total, count, rows, (int32_t)errors, 0, 0, 0, 0, 0};
}

/* Places of the shards when sorted by their offsets. */
static __device__ void ce_order(const ce_params &p)
{
    for (int64_t i = threadIdx.x; i < p.shards; i += blockDim.x) {
        int rank = 0;

        for (int64_t j = 0; j < p.shards; j++)
            rank += p.shard_offset[j] < p.shard_offset[i] || (p.shard_offset[j] == p.shard_offset[i] && j < i);
        p.order[rank] = (int32_t)i;
    }
}

typedef struct begin_args {
    ce_params p;
    int list_bad;
} begin_args;

/* Block 0 lists the rows; the others empty the parts. */
static __global__ void __launch_bounds__(SCAN) ce_begin_kernel(const begin_args a)
{
    const ce_params &p = a.p;
    const int64_t step = (int64_t)(gridDim.x - 1) * SCAN, first = (int64_t)(blockIdx.x - 1) * SCAN + threadIdx.x;

    ptx_grid_wait();
    if (blockIdx.x == 0) {
        ce_list(p, a.list_bad);
        if (p.order)
            ce_order(p);
        return;
    }
    for (int64_t i = first; i < p.tokens * p.splits && p.part; i += step) {
        p.part[i] = {-CUDART_INF_F, 0.0f};
        if (p.full)
            p.more[i] = {0.0f, 0.0f, 0.0f, INT32_MAX};
    }
    for (int64_t i = first; i < p.tokens && p.target_z; i += step)
        p.target_z[i] = -CUDART_INF_F;
}

/* ----------------------------------------------------------------------------------------------------------- outputs
 */

static __device__ __forceinline__ void ce_put(float *to, int64_t i, double value)
{
    if (to)
        to[i] = __uint_as_float(num_canonical_f32((float)value));
}

/* A shard's record of a token. */
static __device__ ce_sum ce_read_record(const ce_params &p, int64_t shard, int64_t token, double *target)
{
    const float *r = p.record_in + (shard * p.tokens + token) * p.record_stride;
    ce_sum s = ce_sum_empty();

    s.max = r[0];
    s.sum = (double)r[1];
    if (r[2] != -CUDART_INF_F)
        *target = (double)r[2];
    s.argmax = p.shard_argmax ? p.shard_argmax[shard * p.shard_argmax_stride + token] : 0;
    if (p.flags & RIDGE_CE_RECORD_SUMS) {
        s.z = (double)r[3];
        s.wz = (double)r[4];
        s.spread = s.sum != 0 ? (double)r[5] - (double)s.max * s.sum : 0;
    }
    return s;
}

/* A token's sums, by a warp: each lane every 32nd part, then halves onto halves. */
static __device__ ce_sum ce_gather(const ce_params &p, int64_t token, double *target)
{
    const int lane = threadIdx.x % 32;
    const bool several = p.op == RIDGE_CE_COMBINE || p.full; /* lanes have something each */
    ce_sum s = ce_sum_empty();

    *target = -CUDART_INF;
    if (p.op == RIDGE_CE_COMBINE) {
        for (int64_t k = lane; k < p.shards; k += 32)
            ce_sum_merge(&s, ce_read_record(p, p.order[k], token, target));
    } else {
        const int64_t row = p.place[token];

        if (row >= 0 && !several)
            s = ce_row_sum(p, row);
        for (int k = lane; k < p.splits && row >= 0 && several; k += 32)
            ce_sum_merge(&s, ce_sum_part(p, row, k));
        if (row >= 0)
            *target = (double)p.target_z[row];
    }
    for (int step = 16; step > 0 && several; step /= 2) {
        const double other = __shfl_xor_sync(~0u, *target, step);

        *target = *target == -CUDART_INF ? other : *target;
        ce_sum_merge(&s, ce_sum_shuffle(s, step));
    }
    if (s.argmax == INT64_MAX)
        s.argmax = p.offset; /* every logit is -inf */
    return s;
}

static __device__ void ce_put_record(const ce_params &p, int64_t token, const ce_sum &s, double target)
{
    float *r = p.record + token * p.record_stride;

    ce_put(r, 0, (double)s.max);
    ce_put(r, 1, s.sum);
    ce_put(r, 2, target);
    if (p.flags & RIDGE_CE_RECORD_SUMS) {
        ce_put(r, 3, s.z);
        ce_put(r, 4, s.wz);
        ce_put(r, 5, s.sum != 0 ? s.spread + (double)s.max * s.sum : 0);
    }
}

/* One lane: every output of a token but the sums over tokens, for which its loss is left in p.losses. */
static __device__ void ce_put_token(const ce_params &p, int64_t token, const ce_sum &found, double target)
{
    const int64_t y = ce_target(p, token);
    const bool ignored = y == CE_IGNORED;
    const ce_sum s = ignored ? ce_sum_empty() : found;
    const double logsum = log(s.sum), lse = (double)s.max + logsum, eps = (double)p.smoothing;
    ce_loss l = {0, 0, 0};

    if (y == CE_BAD)
        l.ce = CUDART_NAN;
    if (y >= 0 && (p.loss || p.token_loss)) {
        const double w = p.class_weight ? (double)p.class_weight[y] : 1;

        /* log sum + (max - z_y), not lse - z_y: with all logits near 1e4 the difference of the maxima is exact */
        l.ce = w == 0 || eps == 1 ? 0 : (1 - eps) * w * (logsum + ((double)s.max - target));
        if (eps != 0)
            l.ce += eps / (double)p.total * (p.totals->weights * lse - s.wz);
        l.square = p.square_scale != 0.0f ? (double)p.square_scale * lse * lse : 0;
    }
    l.right = y >= 0 && s.argmax == y;
    p.losses[token] = l;
    ce_put(p.token_loss, token, l.ce + l.square);
    if ((p.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE)
        ce_put(p.loss, token, l.ce + l.square);
    ce_put(p.lse, token, ignored ? 0 : lse);
    ce_put(p.target_logit, token, ignored ? 0 : y == CE_BAD ? CUDART_NAN : target);
    ce_put(p.entropy, token, ignored ? 0 : logsum - s.spread / s.sum);
    if (p.argmax)
        p.argmax[token] = ignored ? -1 : s.argmax;
    if (p.record)
        ce_put_record(p, token, s, y < 0 ? -CUDART_INF : target);
}

/* Sums over tokens: partial i % 256 in ascending i, then halves onto halves. */
static __device__ __forceinline__ void ce_put_loss(const ce_params &p)
{
    __shared__ double room[TREE];
    const bool mean = (p.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_MEAN;
    double ce = 0, square = 0, right = 0;

#pragma unroll 16
    for (int64_t i = threadIdx.x; i < p.tokens; i += TREE) {
        const ce_loss l = p.losses[i];

        ce += l.ce;
        square += l.square;
        right += l.right;
    }
    ce = ce_block_sum(ce, room);
    square = ce_block_sum(square, room);
    right = ce_block_sum(right, room);
    if (threadIdx.x)
        return;
    if ((p.flags & RIDGE_CE_REDUCTION) != RIDGE_CE_NONE) {
        if (mean) {
            ce = p.totals->weight > 0 ? ce / p.totals->weight : ce != ce ? ce : 0;
            square *= ce_inverse(p.totals->count);
        }
        ce_put(p.loss, 0, ce + square);
    }
    ce_put(p.accuracy, 0, right * ce_inverse(p.totals->count));
    if (p.errors)
        *p.errors = p.totals->errors;
}

/* A warp a token; the block that ends last sums over all of them. */
static __global__ void __launch_bounds__(TREE) ce_finish_kernel(const ce_params p)
{
    const int64_t token = (int64_t)blockIdx.x * FINISH_WARPS + threadIdx.x / 32;
    __shared__ bool last;

    ptx_grid_wait();
    if (token < p.tokens) {
        double target;
        const ce_sum s = ce_gather(p, token, &target);

        if (threadIdx.x % 32 == 0)
            ce_put_token(p, token, s, target);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* this block's losses before the count, */
        last = atomicAdd(&p.totals->done, 1) == (int)gridDim.x - 1;
        __threadfence(); /* and the count before all others' losses */
    }
    __syncthreads();
    if (last)
        ce_put_loss(p);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const plain[2] = {(const void *)ce_begin_kernel, (const void *)ce_finish_kernel};

ridge_status ce_tokens_prepare(const ridge_device *device)
{
    return host_load(device, plain, 2, "cross entropy: loading kernels");
}

bool ce_needs_stats(uint32_t op)
{
    return op != RIDGE_LINEAR_CE_BACKWARD && op != RIDGE_CE_BWD;
}

ridge_status ce_begin(const ridge_device *device, const char *name, ce_params *p, void *stream)
{
    begin_args a = {*p, ce_needs_stats(p->op)};
    const int64_t work = p->tokens * p->splits / SCAN / 4;

    return host_launch(device, name, plain[0], dim3((unsigned)(2 + (work < 130 ? work : 130))), SCAN, &a, stream);
}

ridge_status ce_finish(const ridge_device *device, const char *name, ce_params *p, void *stream)
{
    const int64_t blocks = (p->tokens + FINISH_WARPS - 1) / FINISH_WARPS;

    return host_launch(device, name, plain[1], dim3((unsigned)(blocks ? blocks : 1)), TREE, p, stream);
}
