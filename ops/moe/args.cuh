/* args.cuh: what the CUDA rows of moe_gate_up_swiglu and moe_down share: what happens to finished products. */
#ifndef RIDGE_MOE_ARGS_CUH
#define RIDGE_MOE_ARGS_CUH

#include "cuda/launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/num.cuh"
#include "products.h"
#include "src/math/q8_0.h"

#define MOE_CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)

static __device__ __forceinline__ float moe_swiglu_inline(unsigned act, float gate, float up, ridge_swiglu_options o)
{
    const float a = ridge_swiglu_gate(gate, o), b = ridge_swiglu_up(up, o);

    return ridge_swiglu_scale(ridge_act_fwd_any(act, a, o.alpha) * b, 1.0f, o);
}

static __device__ __noinline__ float moe_swiglu(unsigned act, float gate, float up, ridge_swiglu_options o)
{
    return moe_swiglu_inline(act, gate, up, o);
}

static __device__ __forceinline__ float moe_from_e4m3(uint32_t code)
{
    const uint32_t mag = code & 0x7f;

    return mag == 0x7f ? __uint_as_float(0x7fc00000u) : __uint_as_float(mag << 20 | (code & 0x80) << 24) * 0x1p120f;
}

/* Four codes of e4m3. */
static __device__ __forceinline__ void moe_unpack_e4m3(uint32_t w, float *v)
{
#if __CUDA_ARCH__ >= 890
    uint32_t low, high;

    mma_convert<0>(w, &low, &high);
    num_unpack2<RIDGE_F16>(low, v, v + 1);
    num_unpack2<RIDGE_F16>(high, v + 2, v + 3);
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = moe_from_e4m3(w >> 8 * i & 0xff);
#endif
}

/* Adds the bias of expert e to a product. */
static __device__ __forceinline__ float moe_bias(const moe_weight &w, int e, int64_t row, float y)
{
    return w.bias ? y + w.bias[e * w.bias_stride + row] : y;
}

static __device__ __forceinline__ void moe_store(const moe_args &p, int64_t at, float y)
{
    if (p.out_dtype == RIDGE_BF16)
        num_store<RIDGE_BF16>(p.out, at, y);
    else
        num_store<RIDGE_F32>(p.out, at, y);
}

/* Stores rows [row, row + 32) of a token's slot, of which this lane has row + lane; all lanes of a warp call it. */
static __device__ __forceinline__ void moe_store_slot(const moe_args &p, int token, int slot, int64_t row, float y)
{
    const int lane = threadIdx.x % 32;
    const int64_t at = slot * p.rows + row + lane;

    if (p.out_dtype == RIDGE_I8) {
        float factor;
        const float scale = ridge_q8_0_x_scale(__reduce_max_sync(0xffffffffu, ridge_magnitude(y)), &factor);

        ((int8_t *)p.out)[token * p.out_stride + at] = (int8_t)ridge_q8_0_x_code(y, factor);
        if (lane == 0)
            p.out_scales[token * p.out_ld + at / 32] = scale;
    } else if (row + lane < p.rows) {
        moe_store(p, token * p.out_stride + at, y);
    }
}

static __device__ __forceinline__ float moe_load(const void *from, int bf16, int64_t at)
{
    return bf16 ? num_load<RIDGE_BF16>(from, at) : num_load<RIDGE_F32>(from, at);
}

/* The streams of a row of a token, from its result: N of them with all loads at once, or any number with N of 0. */
template <int N> static __device__ __forceinline__ void moe_expand(const moe_args &p, int token, int64_t row, float v)
{
    const float *post = p.post + token * p.post_stride, *comb = p.comb + token * p.comb_stride;
    const float *res = p.res + token * p.res_stride + row;
    const int n = N ? N : p.n_hc;

#pragma unroll(N ? N : 1)
    for (int dst = 0; dst < n; dst++) {
        float acc = ridge_hc_start(v, post[dst]);

#pragma unroll(N ? N : 1)
        for (int src = 0; src < n; src++)
            acc = ridge_hc_step(acc, comb[dst + n * src], res[src * p.rows]);
        num_store<RIDGE_F32>(p.out, token * p.out_stride + dst * p.rows + row, acc);
    }
}

/* A function of its own, where four streams at once would take too many registers. */
static __device__ __noinline__ void moe_expand_apart(const moe_args &p, int token, int64_t row, float v)
{
    moe_expand<0>(p, token, row, v);
}

/* Adds the shared expert and the residual to the sum over slots. */
static __device__ __forceinline__ float moe_add(const moe_args &p, int token, int64_t row, float sum)
{
    if (p.shared)
        sum = moe_load(p.shared, p.shared_bf16, token * p.shared_stride + row) + sum;
    if (p.residual)
        sum = moe_load(p.residual, p.residual_bf16, token * p.residual_stride + row) + sum;
    return sum;
}

/* The same, and stores it, or the streams that it becomes. N: 4, or 0 in kernels whose registers would spill. */
template <int N = 4>
static __device__ __forceinline__ void moe_store_sum(const moe_args &p, int token, int64_t row, float sum)
{
    sum = moe_add(p, token, row, sum);
    if (N && p.n_hc == N)
        moe_expand<N>(p, token, row, sum);
    else if (N && p.n_hc)
        moe_expand<0>(p, token, row, sum);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 /* else ptxas keeps the call, and mma.cu spills */
    else if (!N && p.n_hc)
#else
    else if (p.n_hc)
#endif
        moe_expand_apart(p, token, row, sum);
    else
        moe_store(p, token * p.out_stride + row, sum);
}

/* any.cu: launches any call, also for rows whose tables of scales turn out to be misaligned at launch: their alignment
 * is not part of a problem. */
ridge_status moe_launch_any(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                            void *workspace, size_t bytes, void *stream);

/* floats.cu: why neither `floats` nor `pairs` takes a problem; NULL: nothing that both ask for is missing. */
const char *moe_floats_why_not(const ridge_problem *problem);

#endif
