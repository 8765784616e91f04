/* route.cu: moe_route on CUDA. Experts are scored and then chosen by one warp, whose lane i has the experts i, i + 32,
 * ...; each slot is one search of the largest key, first among a lane's registers, then by redux over the warp. Of few
 * tokens a CTA is a token: eight warps score, an expert a thread, and leave scores and keys in shared memory for the
 * first; of many tokens a CTA is a warp that does both. Bytes moved: the logits. */
#include "args.h"
#include "route.cuh"
#include "src/math/moe.h"

enum { FEW = 16, SCORERS = 256 }; /* tokens that get a CTA each; its threads */

/* The scores of this lane's experts, in place of their logits, and the keys of the choice. Returns whether any choice
 * of the row is NaN. */
template <int PER>
static __device__ __forceinline__ bool score_row(const route_args &p, int64_t t, int lane, float *score, uint32_t *key)
{
    float max = __uint_as_float(0xff800000u), sum = 0.0f;
    bool bad = false;

#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + 32 * i;
        const int64_t at = t * p.stride + e;

        score[i] = __uint_as_float(0xff800000u);
        if (e < p.experts) {
            score[i] = p.bf16 ? num_load<RIDGE_BF16>(p.logits, at) : num_load<RIDGE_F32>(p.logits, at);
            score[i] = p.logit_bias ? score[i] + p.logit_bias[e] : score[i];
        }
        max = score[i] > max ? score[i] : max;
    }
    if (p.rule == RIDGE_ROUTE_SOFTMAX) {
        max = warp_max(max);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (lane + 32 * i < p.experts && score[i] == score[i]) {
                score[i] = ridge_route_exp(score[i], max);
                sum += score[i];
            }
#pragma unroll
        for (int s = 16; s > 0; s /= 2)
            sum += __shfl_xor_sync(WARP, sum, s);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + 32 * i;

        key[i] = RIDGE_ROUTE_EXCLUDED;
        if (e < p.experts) {
            if (score[i] == score[i])
                score[i] = p.rule == RIDGE_ROUTE_SOFTMAX ? score[i] / sum : ridge_route_score(p.rule, score[i]);
            key[i] = ridge_route_key(p.bias ? score[i] + p.bias[e] : score[i]);
        }
        bad |= key[i] == RIDGE_ROUTE_NAN;
    }
    return __any_sync(WARP, bad);
}

/* Excludes the experts of all groups but the best: lane g has group g. */
template <int PER>
static __device__ __forceinline__ void choose_groups(const route_args &p, int lane, uint32_t *shared, uint32_t *key)
{
    const int size = p.experts / p.groups;
    uint32_t first = RIDGE_ROUTE_EXCLUDED, second = RIDGE_ROUTE_EXCLUDED, group = RIDGE_ROUTE_EXCLUDED, kept = 0;

#pragma unroll
    for (int i = 0; i < PER; i++)
        shared[lane + 32 * i] = key[i];
    __syncwarp(); /* the keys are written before they are read */
    if (lane < p.groups) {
        for (int i = 0; i < size; i++) {
            const uint32_t k = shared[lane * size + i];

            second = k > first ? first : k > second ? k : second;
            first = k > first ? k : first;
        }
        group =
            p.group_max || size == 1 ? first : ridge_route_key(ridge_route_value(first) + ridge_route_value(second));
    }
    for (int i = 0; i < p.top_groups; i++) {
        const uint32_t best = __reduce_max_sync(WARP, group);
        const int owner = __ffs((int)__ballot_sync(WARP, group == best)) - 1;

        kept |= 1u << owner;
        if (lane == owner)
            group = RIDGE_ROUTE_EXCLUDED;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (!(kept >> ((lane + 32 * i) / size & 31) & 1))
            key[i] = RIDGE_ROUTE_EXCLUDED;
}

/* The expert with the largest key, the first of equal ones; it is excluded from then on. */
template <int PER> static __device__ __forceinline__ int take_best(int lane, uint32_t *key)
{
    uint32_t most[PER], best;
    int at[PER], id;

#pragma unroll
    for (int i = 0; i < PER; i++) {
        most[i] = key[i];
        at[i] = i;
    }
#pragma unroll
    for (int s = 1; s < PER; s *= 2)
#pragma unroll
        for (int i = 0; i < PER; i += 2 * s)
            if (most[i + s] > most[i]) { /* the first of equal ones stays */
                most[i] = most[i + s];
                at[i] = at[i + s];
            }
    best = __reduce_max_sync(WARP, most[0]);
    id = (int)__reduce_min_sync(WARP, most[0] == best ? (unsigned)(lane + 32 * at[0]) : ~0u);
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (lane + 32 * i == id)
            key[i] = RIDGE_ROUTE_EXCLUDED;
    return id;
}

/* The weight of this lane's slot from its score w. */
static __device__ __forceinline__ float weigh(const route_args &p, bool bad, bool valid, float w)
{
    if (p.rule == RIDGE_ROUTE_TOPK_SOFTMAX) {
        const float max = warp_max(valid && w == w ? w : __uint_as_float(0xff800000u));

        w = valid && w == w ? ridge_route_exp(w, max) : 0.0f;
        w = w / sum_slots(w, p.slots);
    }
    if (p.normalise)
        w = w / (sum_slots(valid ? w : 0.0f, p.slots) + p.eps);
    w = w * p.scale;
    return !valid ? 0.0f : bad ? __uint_as_float(0x7fc00000u) : w;
}

/* Chooses the experts of a token by their keys, and stores ids and weights. score: of all experts. */
template <int PER>
static __device__ __forceinline__ void choose(const route_args &p, int64_t t, int lane, bool bad, const float *score,
                                              uint32_t *key)
{
    float w = 0.0f;
    int mine = -1;
    bool valid;

    if (p.given) {
        mine = lane < p.slots ? p.ids[t * p.ids_stride + lane] : -1;
    } else {
        for (int s = 0; s < p.slots; s++) {
            const int id = take_best<PER>(lane, key);

            mine = lane == s ? id : mine;
        }
    }
    valid = mine >= 0 && mine < p.experts;
    if (valid)
        w = score[mine];
    w = weigh(p, bad, valid, w);
    if (lane < p.slots) {
        num_store<RIDGE_F32>(p.weights, t * p.weights_stride + lane, w);
        if (!p.given)
            p.ids[t * p.ids_stride + lane] = mine;
    }
}

/* ---------------------------------------------------------------------------------------------------------- kernels */

template <int PER> static __global__ void __launch_bounds__(THREADS) moe_route(const __grid_constant__ route_args p)
{
    __shared__ uint32_t keys[32 * PER];
    __shared__ float scores[32 * PER];
    const int lane = threadIdx.x;
    const int64_t t = blockIdx.x;
    uint32_t key[PER];
    float score[PER];
    bool bad;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    bad = score_row<PER>(p, t, lane, score, key);
#pragma unroll
    for (int i = 0; i < PER; i++)
        scores[lane + 32 * i] = score[i];
    __syncwarp(); /* the scores are written before they are read */
    if (!p.given && p.groups > 1)
        choose_groups<PER>(p, lane, keys, key);
    choose<PER>(p, t, lane, bad, scores, key);
}

/* What score_row does, by all threads: thread i has the experts i, i + 256, ... Of SOFTMAX, powers: exp(l - max) of all
 * experts; warps: the largest logit of each warp. */
template <int PER>
static __device__ __forceinline__ void score_few(const route_args &p, int64_t t, float *powers, float *warps,
                                                 float *scores, uint32_t *keys)
{
    enum { OWN = (32 * PER + SCORERS - 1) / SCORERS };
    const int lane = threadIdx.x % 32;
    float score[OWN], bias[OWN], max = __uint_as_float(0xff800000u), sum = 0.0f;

#pragma unroll
    for (int i = 0; i < OWN; i++) { /* all loads at once */
        const int e = (int)threadIdx.x + SCORERS * i;
        const int64_t at = t * p.stride + e;
        float logit_bias = 0.0f;

        score[i] = __uint_as_float(0xff800000u);
        bias[i] = 0.0f;
        if (e < p.experts) {
            bias[i] = p.bias ? p.bias[e] : 0.0f;
            logit_bias = p.logit_bias ? p.logit_bias[e] : 0.0f;
            score[i] = p.bf16 ? num_load<RIDGE_BF16>(p.logits, at) : num_load<RIDGE_F32>(p.logits, at);
        }
        score[i] = p.logit_bias ? score[i] + logit_bias : score[i];
    }
    if (p.rule == RIDGE_ROUTE_SOFTMAX) {
#pragma unroll
        for (int i = 0; i < OWN; i++)
            max = score[i] > max ? score[i] : max;
        max = warp_max(max);
        if (lane == 0)
            warps[threadIdx.x / 32] = max;
        __syncthreads(); /* the warps' largest are written before they are read */
        max = warp_max(warps[lane % (SCORERS / 32)]);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            score[i] = score[i] == score[i] ? ridge_route_exp(score[i], max) : score[i];
            if ((int)threadIdx.x + SCORERS * i < p.experts)
                powers[threadIdx.x + SCORERS * i] = score[i];
        }
        __syncthreads(); /* the powers are written before they are read */
        for (int e = lane; e < p.experts; e += 32)
            sum = powers[e] == powers[e] ? sum + powers[e] : sum;
#pragma unroll
        for (int s = 16; s > 0; s /= 2)
            sum += __shfl_xor_sync(WARP, sum, s);
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int e = (int)threadIdx.x + SCORERS * i;
        uint32_t key = RIDGE_ROUTE_EXCLUDED;

        if (e < p.experts) {
            if (score[i] == score[i])
                score[i] = p.rule == RIDGE_ROUTE_SOFTMAX ? score[i] / sum : ridge_route_score(p.rule, score[i]);
            key = ridge_route_key(p.bias ? score[i] + bias[i] : score[i]);
        }
        if (e < 32 * PER) {
            scores[e] = score[i];
            keys[e] = key;
        }
    }
}

template <int PER> static __global__ void __launch_bounds__(SCORERS) moe_route_few(const __grid_constant__ route_args p)
{
    __shared__ uint32_t keys[32 * PER];
    __shared__ float scores[32 * PER], powers[32 * PER], warps[SCORERS / 32];
    const int lane = threadIdx.x % 32;
    const int64_t t = blockIdx.x;
    uint32_t key[PER];
    bool bad = false;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    score_few<PER>(p, t, powers, warps, scores, keys);
    __syncthreads(); /* scores and keys are written before the first warp reads them */
    if (threadIdx.x >= 32)
        return;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        key[i] = keys[lane + 32 * i];
        bad |= key[i] == RIDGE_ROUTE_NAN;
    }
    bad = __any_sync(WARP, bad);
    if (!p.given && p.groups > 1)
        choose_groups<PER>(p, lane, keys, key);
    choose<PER>(p, t, lane, bad, scores, key);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* [few tokens][experts up to 128, 256, 512, 1024] */
static const void *const functions[2][4] = {
    {(const void *)moe_route<4>, (const void *)moe_route<8>, (const void *)moe_route<16>, (const void *)moe_route<32>},
    {(const void *)moe_route_few<4>, (const void *)moe_route_few<8>, (const void *)moe_route_few<16>,
     (const void *)moe_route_few<32>}};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, &functions[0][0], 8, "moe_route: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const route_args p = route_args_of(&bound->call);
    const int few = p.tokens <= FEW;

    return route_launch(device, kernel, functions[few], few ? (int)SCORERS : (int)THREADS, 1, p, stream);
}

static const ridge_kernel rows[] = {ROUTE_ROW("cuda.moe_route.warp", RIDGE_MOE_ROUTE, launch)};

extern "C" const ridge_kernel_list ridge_cuda_moe_route = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
