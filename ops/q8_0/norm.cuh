/* norm.cuh: rms_norm of x inside a product, before x is quantised, with the bits of add_rms_norm. 256 threads have the
 * row of a token: thread i the columns i, i + 256, ..., which are partial sum i of the canonical order
 * (src/math/norm.h), so that a warp's columns are a block of 32. The row is read twice, the second time from L1. */
#ifndef RIDGE_Q8_0_NORM_CUH
#define RIDGE_Q8_0_NORM_CUH

#include "args.cuh"
#include "ops/norm/rows.cuh"

enum { Q8_0_NORM_FLIGHT = 8 }; /* columns that a thread requests together */

static_assert(PARTS == 256 && RIDGE_Q8_0_BLOCK == 32, "a warp has a block");

/* Brings the weights into L2, which is right at any time. */
static __device__ __forceinline__ void q8_0_prefetch_norm(const q8_0_matmul_args &p, int thread, int threads)
{
    for (int i = thread * 16; p.norm && i < (int)p.blocks * RIDGE_Q8_0_BLOCK; i += threads * 16)
        ptx_prefetch_l2(p.norm + i);
}

/* This thread's columns from `first` on; zeros past the row. */
static __device__ __forceinline__ void q8_0_norm_load(const char *row, int first, int n, bool bf16, float *v)
{
#pragma unroll
    for (int k = 0; k < Q8_0_NORM_FLIGHT; k++) {
        const int j = first + PARTS * k;

        v[k] = 0.0f;
        if (j < n)
            v[k] = bf16 ? num_load<RIDGE_BF16>(row, j) : num_load<RIDGE_F32>(row, j);
    }
}

/* This thread's sum of squares. */
static __device__ __forceinline__ float q8_0_norm_partial(const char *row, int n, bool bf16)
{
    const int thread = threadIdx.x % PARTS;
    float sum = 0.0f;

    for (int first = thread; first - thread < n; first += PARTS * Q8_0_NORM_FLIGHT) {
        float v[Q8_0_NORM_FLIGHT];

        q8_0_norm_load(row, first, n, bf16, v);
#pragma unroll
        for (int k = 0; k < Q8_0_NORM_FLIGHT; k++)
            sum = ridge_fma(v[k], v[k], sum); /* zeros are added to what is not -0 */
    }
    return sum;
}

/* The code of an element of a warp's block, and the block's scale; zeros where the block is past the row. */
static __device__ __forceinline__ int q8_0_norm_code(float v, float factor, float weight, bool inside, float *scale)
{
    const float y = inside ? v * factor * weight : 0.0f;
    const uint32_t most = __reduce_max_sync(~0u, ridge_magnitude(y));
    float r;

    *scale = ridge_q8_0_x_scale(most, &r);
    return ridge_q8_0_x_code(y, r);
}

#endif
