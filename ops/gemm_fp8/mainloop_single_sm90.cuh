/* mainloop_single_sm90.cuh: the main loop of gemm_fp8 on Hopper for tiles with a single consumer warpgroup. No other
 * warpgroup's wgmma run while it promotes, so it keeps two blocks of k in flight. */
#ifndef RIDGE_GEMM_FP8_MAINLOOP_SINGLE_SM90_CUH
#define RIDGE_GEMM_FP8_MAINLOOP_SINGLE_SM90_CUH

#include "args_sm90.cuh"
#include "mainloop_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A block of k whose wgmma are in flight: its stage, and the scales that will promote it. */
typedef struct gemm_in_flight {
    uint32_t stage;
    gemm_scales v;
} gemm_in_flight;

template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ gemm_in_flight gemm_issue(const gemm_memory<T, MODE> *s, const gemm_addresses &at,
                                                            gemm_ring *ring, float *acc)
{
    const uint32_t stage = ring->at.stage, a = at.a + stage * at.a_step, b = at.b + stage * (T::BLOCK_N * BK / 16);
    gemm_in_flight f = {stage, {}};

    pipeline_wait(at.full, ring->at);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        gemm_wgmma<T::BLOCK_N, FORMATS>(acc, wgmma_descriptor_of(a + 2 * k), wgmma_descriptor_of(b + 2 * k), k > 0);
    wgmma_commit();
    if (MODE == SCALE_1D2D) {
        const float scale_b = s->scale_b[stage][0];

        f.v.upper = s->scale_a[stage][at.row + ring->skew] * scale_b;
        f.v.lower = s->scale_a[stage][at.row + ring->skew + 8] * scale_b;
    }
    ring->skew = (ring->skew + at.skew_step) & 3;
    gemm_advance<T::STAGES>(ring);
    return f;
}

/* After the wait for its wgmma: releases the stage, then promotes. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_retire(const gemm_addresses &at, const gemm_in_flight &f, float *acc,
                                                   float *fin)
{
    wgmma_pin<T::BLOCK_N / 2>(acc); /* no use of acc moves before the wait */
    __syncwarp();                   /* all lanes have read their scales before any releases the stage */
    if (threadIdx.x % 32 < T::CLUSTER_M + T::CLUSTER_N - 1)
        pipeline_release_cluster(at.empty, f.stage);
    if (MODE == SCALE_1D2D)
        gemm_promote_1d2d<T::BLOCK_N>(f.v, f.v, 128, acc, fin);
    else
#pragma unroll
        for (int i = 0; i < T::BLOCK_N / 2; i++)
            fin[i] += acc[i];
}

/* All blocks of k of a work unit, added to fin: while one is promoted, the wgmma of the next run. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_mainloop_single(gemm_memory<T, MODE> *s, const gemm_addresses &at,
                                                            gemm_ring *ring, const gemm_unit &unit, float *fin)
{
    float even[T::BLOCK_N / 2], odd[T::BLOCK_N / 2];
    gemm_in_flight first, second;
    int left = unit.end - unit.begin - 1;

    ring->skew = gemm_first_skew<T>(at, unit);
    first = gemm_issue<T, MODE, FORMATS>(s, at, ring, even);
#pragma unroll 1
    for (; left >= 2; left -= 2) {
        second = gemm_issue<T, MODE, FORMATS>(s, at, ring, odd);
        wgmma_wait_before();
        gemm_retire<T, MODE>(at, first, even, fin);
        first = gemm_issue<T, MODE, FORMATS>(s, at, ring, even);
        wgmma_wait_before();
        gemm_retire<T, MODE>(at, second, odd, fin);
    }
    if (left) {
        second = gemm_issue<T, MODE, FORMATS>(s, at, ring, odd);
        wgmma_wait_before();
        gemm_retire<T, MODE>(at, first, even, fin);
        wgmma_wait();
        gemm_retire<T, MODE>(at, second, odd, fin);
    } else {
        wgmma_wait();
        gemm_retire<T, MODE>(at, first, even, fin);
    }
}

#endif

#endif
