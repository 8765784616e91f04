/* route.cu: moe_route_bwd on CUDA. A warp a token: lane i has the experts i, i + 32, ..., and slot i. Bytes moved: the
 * logits and their gradient. */
#include "args.h"
#include "ops/moe/route.cuh"
#include "src/math/experts.h"

enum { TOKENS = 4 /* warps of a CTA: with one, CTAs leave half of a multiprocessor's warps empty */ };

/* The logits of this lane's experts, and their scores. Returns whether any of the row is NaN. */
template <int PER>
static __device__ __forceinline__ bool score_row(const route_bwd_args &p, int64_t t, int lane, float *logit,
                                                 float *score)
{
    float max = __uint_as_float(0xff800000u), sum = 0.0f;
    bool bad = false;

#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + 32 * i;
        const int64_t at = t * p.logits.stride + e;

        logit[i] = __uint_as_float(0xff800000u);
        if (e < p.experts) {
            logit[i] = p.logits.dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(p.logits.data, at)
                                                    : num_load<RIDGE_F32>(p.logits.data, at);
            logit[i] = p.logit_bias ? logit[i] + p.logit_bias[e] : logit[i];
        }
        bad |= logit[i] != logit[i];
        max = logit[i] > max ? logit[i] : max;
        score[i] = 0.0f;
    }
    if (p.rule == RIDGE_ROUTE_SOFTMAX) {
        max = warp_max(max);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (lane + 32 * i < p.experts && logit[i] == logit[i]) {
                score[i] = ridge_route_exp(logit[i], max);
                sum += score[i];
            }
#pragma unroll
        for (int s = 16; s > 0; s /= 2)
            sum += __shfl_xor_sync(WARP, sum, s);
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (lane + 32 * i < p.experts && logit[i] == logit[i])
            score[i] = p.rule == RIDGE_ROUTE_SOFTMAX ? score[i] / sum : ridge_route_score(p.rule, logit[i]);
    return __any_sync(WARP, bad);
}

template <int PER>
static __global__ void __launch_bounds__(TOKENS *THREADS) moe_route_bwd(const __grid_constant__ route_bwd_args p)
{
    __shared__ float all[TOKENS][32 * PER];
    float *const shared = all[threadIdx.x / 32];
    const int lane = threadIdx.x % 32;
    const int64_t t = (int64_t)blockIdx.x * TOKENS + threadIdx.x / 32;
    float logit[PER], score[PER], own_score, w, d, g, dot;
    bool bad, valid;
    int id;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (t >= p.tokens)
        return;
    bad = score_row<PER>(p, t, lane, logit, score);
#pragma unroll
    for (int i = 0; i < PER; i++)
        shared[lane + 32 * i] = score[i];
    __syncwarp(); /* the scores are written before they are read */
    id = lane < p.slots ? p.ids[t * p.ids_stride + lane] : -1;
    valid = id >= 0 && id < p.experts;
    w = valid && !bad ? shared[id] : 0.0f;
    own_score = valid ? shared[id] : 0.0f;
    __syncwarp(); /* the scores are read before the logits take their place */
#pragma unroll
    for (int i = 0; i < PER; i++)
        shared[lane + 32 * i] = logit[i];
    __syncwarp(); /* the logits are written before they are read */
    if (p.rule == RIDGE_ROUTE_TOPK_SOFTMAX) {
        const float max = warp_max(valid ? w : __uint_as_float(0xff800000u));

        w = valid ? ridge_route_exp(w, max) : 0.0f;
        w = w / sum_slots(w, p.slots);
    }
    d = valid ? p.dweights[t * p.dweights_stride + lane] * p.scale : 0.0f;
    if (p.normalise) {
        const float z = sum_slots(valid ? w : 0.0f, p.slots) + p.eps;

        dot = sum_slots(valid ? d * w : 0.0f, p.slots);
        d = valid ? ridge_route_bwd_normalised(d, dot, z) : 0.0f;
    }
    dot = sum_slots(valid ? d * w : 0.0f, p.slots);
    g = p.rule == RIDGE_ROUTE_TOPK_SOFTMAX ? w * (d - dot) : d;
    if (p.rule >= RIDGE_ROUTE_SIGMOID && valid)
        g = ridge_route_bwd_score(p.rule, g, own_score, shared[id]);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int e = lane + 32 * i;
        float sum = 0.0f;
        bool chosen = false;

        for (int s = 0; s < p.slots; s++) {
            const bool its = __shfl_sync(WARP, id, s) == e;
            const float of_slot = __shfl_sync(WARP, g, s);

            chosen |= its;
            if (its)
                sum += of_slot;
        }
        if (p.rule == RIDGE_ROUTE_SOFTMAX)
            sum = score[i] * (sum - dot);
        else if (!chosen)
            sum = 0.0f;
        sum = bad ? __uint_as_float(0x7fc00000u) : sum;
        if (e < p.experts && p.dlogits.dtype == RIDGE_BF16)
            num_store<RIDGE_BF16>(p.dlogits.data, t * p.dlogits.stride + e, sum);
        else if (e < p.experts)
            num_store<RIDGE_F32>(p.dlogits.data, t * p.dlogits.stride + e, sum);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[4] = {(const void *)moe_route_bwd<4>, (const void *)moe_route_bwd<8>,
                                         (const void *)moe_route_bwd<16>, (const void *)moe_route_bwd<32>};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 4, "moe_route_bwd: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    return route_launch(device, kernel, functions, TOKENS * THREADS, TOKENS, route_bwd_args_of(&bound->call), stream);
}

static const ridge_kernel rows[] = {ROUTE_ROW("cuda.moe_route_bwd.warp", RIDGE_MOE_ROUTE_BWD, launch)};

extern "C" const ridge_kernel_list ridge_cuda_experts_route = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
