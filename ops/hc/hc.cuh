/* hc.cuh: what the kernels of hc_mix and hc_split share: the tree over a CTA's partials, loads and stores. */
#ifndef RIDGE_HC_CUH
#define RIDGE_HC_CUH

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "cuda/ptx/cluster.cuh"
#include "src/math/hc.h"
#include "src/math/q8_0.h"

#define HC_CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define HC_ALL 0xffffffffu

/* A thread has the partials threadIdx.x + 256 i. */
enum { HC_THREADS = 256, HC_OWN = RIDGE_HC_PARTS / HC_THREADS };

/* Neighbours of neighbours among the lanes of a warp. */
static __device__ __forceinline__ float hc_tree_lanes(float v)
{
#pragma unroll
    for (int s = 1; s < 32; s *= 2)
        v += __shfl_xor_sync(HC_ALL, v, s);
    return v;
}

/* The same of eight numbers. */
static __device__ __forceinline__ float hc_tree_8(const float *v)
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

static __device__ __forceinline__ float hc_load(uint32_t dtype, const void *from, int64_t at)
{
    return dtype == RIDGE_F32    ? num_load<RIDGE_F32>(from, at)
           : dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(from, at)
                                 : num_load<RIDGE_F16>(from, at);
}

/* Stores out's columns c and c + 1 of a token; `two`: there is a second one. The 16 threads with a block's columns call
 * it together. */
static __device__ __forceinline__ void hc_store(const hc_args &p, int64_t t, int64_t c, bool one, bool two, float a,
                                                float b)
{
    const int64_t at = t * p.out_stride + c;

    if (p.out_dtype == RIDGE_I8) {
        uint32_t most = one ? max(ridge_magnitude(a), ridge_magnitude(b)) : 0;
        float factor, scale;

#pragma unroll
        for (int s = 1; s < 16; s *= 2)
            most = max(most, __shfl_xor_sync(HC_ALL, most, s));
        scale = ridge_q8_0_x_scale(most, &factor);
        if (!one)
            return;
        if (p.floats) {
            num_store<RIDGE_F32>(p.floats, t * p.floats_stride + c, a);
            num_store<RIDGE_F32>(p.floats, t * p.floats_stride + c + 1, b);
        }
        ((int8_t *)p.out)[at] = (int8_t)ridge_q8_0_x_code(a, factor);
        ((int8_t *)p.out)[at + 1] = (int8_t)ridge_q8_0_x_code(b, factor);
        if (c % 32 == 0)
            p.out_scales[t * p.out_ld + c / 32] = scale;
    } else if (p.out_dtype == RIDGE_BF16) {
        if (one)
            num_store<RIDGE_BF16>(p.out, at, a);
        if (two)
            num_store<RIDGE_BF16>(p.out, at + 1, b);
    } else {
        if (one)
            num_store<RIDGE_F32>(p.out, at, a);
        if (two)
            num_store<RIDGE_F32>(p.out, at + 1, b);
    }
}

#endif
