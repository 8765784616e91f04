/* chains.cuh: what kernels share whose warps have halves of the columns (products.h): warp h the chains 128 h .. 128 h
 * + 127, lane i of it those from 128 h + 4 i on. */
#ifndef RIDGE_MOE_CHAINS_CUH
#define RIDGE_MOE_CHAINS_CUH

#include "cuda/mma.cuh"

/* Until the oldest of `depth` stages of this thread has come, 5, 4, 3 or 2. */
static __device__ __forceinline__ void moe_wait_stage(int depth)
{
    if (depth == 5)
        mma_copy_wait_for<4>();
    else if (depth == 4)
        mma_copy_wait_for<3>();
    else if (depth == 3)
        mma_copy_wait_for<2>();
    else
        mma_copy_wait_for<1>();
}

/* A lane has added its own four chains of N sums: adds v[i] of all lanes, distances 1, 2, 4, 8, 16 one after another,
 * each lane in the end one sum: v[0] is that of index moe_chain_index<N>(lane). */
template <int N> static __device__ __forceinline__ void moe_add_lanes(float *v, int lane)
{
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
        const int n = N / (2 * far); /* sums left after this distance, or one */

#pragma unroll
        for (int i = 0; i < (N / 2 < 1 ? 1 : N / 2); i++) {
            const bool upper = (lane & far) != 0;

            if (i >= n && i > 0)
                continue;
            if (n > 0) {
                const float mine = upper ? v[i + n] : v[i], other = upper ? v[i] : v[i + n];

                v[i] = mine + __shfl_xor_sync(0xffffffffu, other, far);
            } else {
                v[i] += __shfl_xor_sync(0xffffffffu, v[i], far);
            }
        }
    }
}

template <int N> static __device__ __forceinline__ int moe_chain_index(int lane)
{
    int index = 0;

#pragma unroll
    for (int far = 1; far < N; far *= 2)
        index += lane & far ? N / (2 * far) : 0;
    return index;
}

#endif
