/* mainloop_sm90.cuh: the main loop of gemm_fp8 above 64 tokens on Hopper: wgmma into acc, and the promotion of acc to
 * fin, the f32 sums, after every block of k. Other main loops: scale_outer_sm90.cuh, mainloop_single_sm90.cuh. */
#ifndef RIDGE_GEMM_FP8_MAINLOOP_SM90_CUH
#define RIDGE_GEMM_FP8_MAINLOOP_SM90_CUH

#include "args_sm90.cuh"
#include "scales_1d1d_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* fin = fma(scale, acc, fin); columns of the tile from `border` on take the scales of the second block of 128. */
template <int BLOCK_N>
static __device__ __forceinline__ void gemm_promote_1d2d(const gemm_scales &v, const gemm_scales &second, int border,
                                                         const float *acc, float *fin)
{
    enum { GRAIN = gemm_b_scales<BLOCK_N>::GRAIN };

#pragma unroll
    for (int col = 0; col < BLOCK_N; col += GRAIN) {
        const bool beyond = col >= 128 || (col > 0 && col >= border);
        const float upper = beyond ? second.upper : v.upper, lower = beyond ? second.lower : v.lower;

#pragma unroll
        for (int i = col / 2; i < (col + GRAIN) / 2; i++)
            fin[i] = __fmaf_rn(i & 2 ? lower : upper, acc[i], fin[i]);
    }
}

template <int N, int FORMATS>
static __device__ __forceinline__ void gemm_wgmma(float *acc, uint64_t a, uint64_t b, int keep)
{
    if constexpr (N != 128)
        wgmma_fp8_narrow<N, FORMATS>(acc, a, b, keep);
    else
        wgmma_fp8<N, FORMATS>(acc, a, b, keep);
}

/* A slice of 64 rows, one block of k: four wgmma, the release of the stage, the promotion. 1D1D: two named barriers
 * alternate the warpgroups, so that one promotes while the wgmma of the others run. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_step(gemm_memory<T, MODE> *s, const gemm_addresses &at, uint32_t stage,
                                                 int slice, uint32_t a, uint32_t b, float2 scale_b, int border,
                                                 uint32_t phase, int skew, float *fin)
{
    float acc[T::BLOCK_N / 2];
    const float *const lane_scales =
        s->scale_b_lanes[stage] + (MODE == SCALE_1D1D ? threadIdx.x % 4 * gemm_lane_pitch<T>() : 0);
    float2 first = {};
    gemm_scales v, second = {};

    if (MODE != SCALE_EPILOGUE) {
        v.upper = s->scale_a[stage][at.row + slice * 64 + skew];
        v.lower = s->scale_a[stage][at.row + slice * 64 + skew + 8];
    }
    if (MODE == SCALE_1D2D) {
        second = {v.upper * scale_b.y, v.lower * scale_b.y};
        v.upper *= scale_b.x;
        v.lower *= scale_b.x;
    }
    if (MODE == SCALE_1D1D)
        ptx_barrier_sync(at.mma_barrier, 256); /* the warpgroup before has issued its wgmma */
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        gemm_wgmma<T::BLOCK_N, FORMATS>(acc, wgmma_descriptor_of(a + 2 * k), wgmma_descriptor_of(b + 2 * k), k > 0);
    wgmma_commit();
    if (MODE == SCALE_1D1D)
        ptx_barrier_arrive(at.next_barrier, 256);
    if (MODE == SCALE_1D1D) {
        ptx_mbarrier_wait(ptx_shared(&s->ready[stage]), phase);
        first = *(const float2 *)lane_scales;
    }
    wgmma_wait();
    if (MODE == SCALE_1D1D)
        gemm_promote_1d1d<T::BLOCK_N>(v, lane_scales, first, acc, fin);
    if (MODE != SCALE_EPILOGUE && slice == T::SLICES - 1)
        __syncwarp(); /* all lanes have read their scales before any releases the stage */
    if (slice == T::SLICES - 1 && threadIdx.x % 32 < T::CLUSTER_M + T::CLUSTER_N - 1) {
        if (MODE == SCALE_1D1D) /* no register for at.empty */
            ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->empty[stage]), threadIdx.x % 32));
        else
            pipeline_release_cluster(at.empty, stage);
    }
    if (MODE == SCALE_1D2D)
        gemm_promote_1d2d<T::BLOCK_N>(v, second, border, acc, fin);
    if (MODE == SCALE_EPILOGUE)
#pragma unroll
        for (int i = 0; i < T::BLOCK_N / 2; i++)
            fin[i] += acc[i];
}

/* One block of k. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_k_block(gemm_memory<T, MODE> *s, const gemm_addresses &at, gemm_ring *ring,
                                                    int border, float *fin)
{
    const uint32_t stage = ring->at.stage, a = at.a + stage * (T::SMALL_M ? at.a_step : T::BLOCK_M * BK / 16);
    const uint32_t b = at.b + stage * (T::BLOCK_N * BK / 16);
    float2 scale_b = {};

    pipeline_wait(at.full, ring->at);
    if (MODE == SCALE_1D2D)
        scale_b = {s->scale_b[stage][0], s->scale_b[stage][(int)gemm_b_scales<T::BLOCK_N>::TWO]};
#pragma unroll
    for (int slice = 0; slice < T::SLICES; slice++)
        gemm_step<T, MODE, FORMATS>(s, at, stage, slice, a + slice * (64 * BK / 16), b, scale_b, border, ring->at.phase,
                                    gemm_flat_scales<T, MODE>() ? ring->skew : 0, fin + slice * (T::BLOCK_N / 2));
    ring->skew = (ring->skew + at.skew_step) & 3;
    gemm_advance<T::STAGES>(ring);
}

/* gemm_flat_scales: the skew of a work unit's first block of k. */
template <class T>
static __device__ __forceinline__ int gemm_first_skew(const gemm_addresses &at, const gemm_unit &unit)
{
    return T::GROUPED ? (at.skew + (unit.row & at.skew_row)) & 3 : at.skew;
}

/* All blocks of k of a work unit, added to fin. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_mainloop(gemm_memory<T, MODE> *s, const gemm_addresses &at, gemm_ring *ring,
                                                     const gemm_unit &unit, float *fin)
{
    ring->skew = gemm_first_skew<T>(at, unit);
#pragma unroll(MODE == SCALE_1D1D ? 1 : (MODE == SCALE_1D2D && !T::SMALL_M ? 8 : 4) / T::SLICES)
    for (int kb = unit.begin; kb < unit.end; kb++)
        gemm_k_block<T, MODE, FORMATS>(s, at, ring, 128 - unit.col % 128, fin);
}

#endif

#endif
