/* tokens.cu: cross entropy on CUDA: the work of size B: which rows are listed, what the mean divides by, and every
 * output from the rows' softmax sums (or, ce_combine, from the records of shards). */
#include "ce.cuh"

enum { SCAN = 512, WARPS = SCAN / 32, EACH = 8, QUAD = EACH * WARPS / 32, LISTS = 16 };
enum { TREE = 256, GROUP = 8, TOKENS = TREE / GROUP, AHEAD = 16 }; /* ce_finish_kernel's */

/* ------------------------------------------------------------------------------------------- which rows, and totals */

/* The ranks of this thread's tokens, which are SCAN apart, among the listed ones: mask[i] has the listed ones of its
 * warp; counts: one number for each warp and i. Returns how many tokens are listed. */
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
    for (int k = 0; k < QUAD; k++) { /* a lane has QUAD numbers; `before` are those of earlier warps among them */
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

/* COUNT sums over the block in a fixed order. scratch: blockDim.x numbers for each. */
template <int COUNT> static __device__ void ce_block_sums(double *value, double *scratch)
{
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        scratch[i * blockDim.x + threadIdx.x] = value[i];
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                scratch[i * blockDim.x + threadIdx.x] += scratch[i * blockDim.x + threadIdx.x + half];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        value[i] = scratch[i * blockDim.x];
}

/* EACH targets of a thread, SCAN apart, all loads in flight at once; beyond `end` CE_IGNORED. */
static __device__ __forceinline__ void ce_targets_of(const ce_params &p, int64_t first, int64_t end, int64_t *y)
{
#pragma unroll
    for (int i = 0; i < EACH; i++)
        y[i] = first + i * SCAN < end ? ce_target(p, first + i * SCAN) : (int64_t)CE_IGNORED;
}

static __device__ __forceinline__ bool ce_listed(int64_t y, int list_bad)
{
    return y >= 0 || (y == CE_BAD && list_bad);
}

/* How many of the tokens before `end` are listed. counts: one number for each warp. */
static __device__ int ce_count(const ce_params &p, int list_bad, int64_t end, int *counts)
{
    int mine = 0, all = 0;

    for (int64_t first = threadIdx.x; first - threadIdx.x < end; first += SCAN * EACH) {
        int64_t y[EACH];

        ce_targets_of(p, first, end, y);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            mine += ce_listed(y[i], list_bad);
    }
    for (int step = 16; step > 0; step /= 2)
        mine += __shfl_xor_sync(~0u, mine, step);
    if (threadIdx.x % 32 == 0)
        counts[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        all += counts[i];
    __syncthreads(); /* orders the reads before the next writes */
    return all;
}

/* Lists the rows of tokens [begin, end), in their order. */
static __device__ void ce_list(const ce_params &p, int list_bad, int64_t begin, int64_t end)
{
    __shared__ int counts[2][EACH * WARPS]; /* double-buffered, so that one barrier a round is enough */
    int rows = ce_count(p, list_bad, begin, counts[0]), buffer = 0;

    for (int64_t first = begin + threadIdx.x; first - threadIdx.x < end; first += SCAN * EACH, buffer ^= 1) {
        int64_t y[EACH];
        uint32_t mask[EACH];
        int at[EACH], total;

        ce_targets_of(p, first, end, y);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            mask[i] = __ballot_sync(~0u, ce_listed(y[i], list_bad));
        total = ce_scan(mask, counts[buffer], at);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int64_t token = first + i * SCAN;
            const bool here = mask[i] >> threadIdx.x % 32 & 1;

            at[i] += rows;
            if (token < end)
                p.row_of[token] = here ? at[i] : -1;
            if (here) {
                p.list[at[i]] = (int32_t)token;
                p.label[at[i]] = y[i] >= p.offset && y[i] < p.offset + p.vocab ? (int32_t)(y[i] - p.offset) : -1;
            }
        }
        rows += total;
    }
}

static __device__ void ce_total(const ce_params &p, int list_bad)
{
    __shared__ double scratch[4 * SCAN];
    double sum[4] = {0, 0, 0, 0}; /* weights of the targets, of the classes; rows that are not ignored; errors */

    for (int64_t first = threadIdx.x; first - threadIdx.x < p.tokens; first += SCAN * EACH) {
        int64_t y[EACH];

        ce_targets_of(p, first, p.tokens, y);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            sum[0] += y[i] == CE_IGNORED ? 0 : y[i] >= 0 && p.class_weight ? (double)p.class_weight[y[i]] : 1;
            sum[2] += y[i] != CE_IGNORED;
            sum[3] += y[i] == CE_BAD;
        }
    }
    for (int64_t c = threadIdx.x; c < p.total && p.class_weight; c += SCAN)
        sum[1] += (double)p.class_weight[c];
    ce_block_sums<4>(sum, scratch);
    if (threadIdx.x == 0)
        *p.totals = {sum[0],
                     p.class_weight ? sum[1] : (double)p.total,
                     sum[2],
                     (int32_t)(list_bad ? sum[2] : sum[2] - sum[3]),
                     (int32_t)sum[3],
                     0,
                     0,
                     0,
                     0,
                     0};
}

/* The order of the shards by their offsets. */
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
    int list_bad, lists; /* blocks that make the list, each of them that of `share` tokens */
    int64_t share;
} begin_args;

/* Block 0 computes the totals, the next `lists` blocks list the rows, the others reset the parts. (More than one block
 * an SM would spill registers.) */
static __global__ void __launch_bounds__(SCAN, 1) ce_begin_kernel(const begin_args a)
{
    const ce_params &p = a.p;
    const int64_t before = 1 + a.lists, list = (int64_t)blockIdx.x - 1;
    const int64_t step = (gridDim.x - before) * SCAN, first = (blockIdx.x - before) * SCAN + threadIdx.x;

    ptx_grid_dependency_wait();
    if (blockIdx.x == 0) {
        ce_total(p, a.list_bad);
        if (p.order)
            ce_order(p);
        return;
    }
    if (list < a.lists) {
        ce_list(p, a.list_bad, list * a.share, min((list + 1) * a.share, p.tokens));
        return;
    }
    for (int64_t i = first; i < p.tokens * p.parts && p.part; i += step) {
        p.part[i] = {-CUDART_INF_F, 0.0f};
        if (p.full)
            p.more[i] = {0.0f, 0.0f, 0.0f, INT32_MAX};
        if (p.top_count)
            p.top_count[i] = 0;
    }
    for (int64_t i = first; i < p.tokens && p.target_z; i += step)
        p.target_z[i] = -CUDART_INF_F;
    for (int64_t i = first; i < p.tokens && p.draw; i += step)
        p.draw[i] = 0;
}

/* ---------------------------------------------------------------------------------------------------------- outputs */

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

/* A token's sums, by GROUP lanes (the other lanes of the warp have other tokens; row < 0: none): each lane merges every
 * GROUP-th part, then a tree over the lanes. */
static __device__ ce_sum ce_gather(const ce_params &p, int64_t token, int64_t row, double *target)
{
    const int lane = threadIdx.x % GROUP;
    const bool combine = p.op == RIDGE_CE_COMBINE;
    ce_sum s = ce_sum_empty();

    *target = row >= 0 && !combine ? (double)p.target_z[row] : -CUDART_INF;
    if (!combine && !p.full)
        return ce_row_sum<GROUP>(p, row);
    if (combine) {
        for (int64_t k = lane; k < p.shards && token < p.tokens; k += GROUP)
            ce_sum_merge(&s, ce_read_record(p, p.order[k], token, target));
    } else {
        for (int k = lane; k < p.parts && row >= 0; k += GROUP)
            ce_sum_merge(&s, ce_sum_part(p, row, k));
    }
    for (int step = GROUP / 2; step > 0; step /= 2) {
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

/* One lane: every output of a token. For the sums over tokens it leaves the loss in p.losses. */
static __device__ void ce_put_token(const ce_params &p, int64_t token, int64_t y, const ce_sum &found, double target)
{
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
    p.losses[token] = l.ce;
    if (p.square_scale != 0.0f)
        p.losses[p.tokens + token] = l.square;
    if (p.accuracy)
        p.losses[2 * p.tokens + token] = l.right;
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

/* One thread's sum over its tokens, in their order. */
static __device__ __forceinline__ double ce_own_sum(const double *from, int64_t tokens)
{
    double sum = 0;

    for (int64_t first = threadIdx.x; first < tokens; first += AHEAD * TREE) {
        double v[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            v[i] = first + i * TREE < tokens ? from[first + i * TREE] : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            sum += v[i];
    }
    return sum;
}

/* Sums over tokens: 256 partial sums of every 256th token in ascending order, then a tree. */
static __device__ __forceinline__ void ce_put_loss(const ce_params &p)
{
    __shared__ double scratch[3 * TREE];
    const bool mean = (p.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_MEAN;
    double sum[3] = {ce_own_sum(p.losses, p.tokens), 0, 0};

    if (p.square_scale != 0.0f)
        sum[1] = ce_own_sum(p.losses + p.tokens, p.tokens);
    if (p.accuracy)
        sum[2] = ce_own_sum(p.losses + 2 * p.tokens, p.tokens);
    ce_block_sums<3>(sum, scratch);
    double ce = sum[0], square = sum[1];
    if (threadIdx.x)
        return;
    if ((p.flags & RIDGE_CE_REDUCTION) != RIDGE_CE_NONE) {
        if (mean) {
            ce = p.totals->weight != 0 ? ce / p.totals->weight : ce != ce ? ce : 0;
            square *= ce_inverse(p.totals->count);
        }
        ce_put(p.loss, 0, ce + square);
    }
    ce_put(p.accuracy, 0, sum[2] * ce_inverse(p.totals->count));
    if (p.errors)
        *p.errors = p.totals->errors;
}

/* GROUP lanes a token; the block that finishes last sums over all tokens. */
static __global__ void __launch_bounds__(TREE) ce_finish_kernel(const ce_params p)
{
    const int64_t token = (int64_t)blockIdx.x * TOKENS + threadIdx.x / GROUP;
    __shared__ bool last;
    double target;

    ptx_grid_dependency_wait();
    const bool here = token < p.tokens;
    const int64_t y = here ? ce_target(p, token) : (int64_t)CE_IGNORED;
    const ce_sum s = ce_gather(p, token, here ? p.row_of[token] : -1, &target);

    if (here && threadIdx.x % GROUP == 0)
        ce_put_token(p, token, y, s, target);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* orders this block's losses before the count, */
        last = atomicAdd(&p.totals->done, 1) == (int)gridDim.x - 1;
        __threadfence(); /* and the count before the reads of the other blocks' losses */
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
    const int64_t round = SCAN * EACH, rounds = (p->tokens + round - 1) / round;
    const int64_t share = (rounds + LISTS - 1) / LISTS, work = p->tokens * p->parts / SCAN / 4;
    begin_args a = {*p, ce_needs_stats(p->op), share ? (int)((rounds + share - 1) / share) : 0, share * round};

    return host_launch(device, name, plain[0], dim3((unsigned)(2 + a.lists + (work < 115 ? work : 115))), SCAN, &a,
                       stream);
}

ridge_status ce_finish(const ridge_device *device, const char *name, ce_params *p, void *stream)
{
    const int64_t blocks = (p->tokens + TOKENS - 1) / TOKENS;

    return host_launch(device, name, plain[1], dim3((unsigned)(blocks ? blocks : 1)), TREE, p, stream);
}
