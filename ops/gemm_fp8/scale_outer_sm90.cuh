/* scale_outer_sm90.cuh: the main loop of gemm_fp8 on Hopper, 1D1D, where the tensor cores make the products of the
 * scales (T::SCALE_OUTER).
 *
 *     fin = fma(S_b, P_b, fin),  S_b = sA sB to 2^-21
 *
 * One fma an element and block of k instead of two operations: a fifth wgmma, 64 x BLOCK_N x 16 of bf16, makes the
 * outer product of the scales. Three producer warps, two where TMA cannot load the scales, split each scale into three
 * bf16, high + middle + low, exactly but for subnormal parts. Eight of the nine products (all but low low) come from
 * the eight elements of a row of A's and of B's splits. The instruction is 16 deep and takes the same eight twice, so
 * that B's splits are of half the scale. An infinite scale gives NaN (docs/numerics.md). */
#ifndef RIDGE_GEMM_FP8_SCALE_OUTER_SM90_CUH
#define RIDGE_GEMM_FP8_SCALE_OUTER_SM90_CUH

#include "args_sm90.cuh"
#include "mainloop_sm90.cuh"
#include "scheduler_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Low words of the descriptors of this warpgroup's splits of A and of those of B, in stage 0. */
typedef struct gemm_split_addresses {
    uint32_t a, b;
} gemm_split_addresses;

/* A scale's row. A: h h m h l m m l, B: h m h l h m l m. */
static __device__ __forceinline__ uint4 gemm_split_scale(float x, bool of_a)
{
    const float rest = x - __uint_as_float(__float_as_uint(x) & 0xffff0000u);
    const float low = rest - __uint_as_float(__float_as_uint(rest) & 0xffff0000u);
    const uint32_t h = __float_as_uint(x), m = __float_as_uint(rest), l = __float_as_uint(low);

    if (of_a)
        return make_uint4(__byte_perm(h, h, 0x7632), __byte_perm(m, h, 0x7632), __byte_perm(l, m, 0x7632),
                          __byte_perm(m, l, 0x7632));
    return make_uint4(__byte_perm(h, m, 0x7632), __byte_perm(h, l, 0x7632), __byte_perm(h, m, 0x7632),
                      __byte_perm(l, m, 0x7632));
}

/* The last THREADS of the producer warpgroup: splits the scales of every stage. */
template <class T, int MODE, int THREADS> static __device__ void gemm_split_scales(gemm_memory<T, MODE> *s)
{
    const int thread = threadIdx.x - (128 - THREADS);
    gemm_ring ring = {};
    gemm_unit unit;

    /* The first work unit needs no wait, but behind one ptxas keeps the address of shared memory: else the loop reads
     * SR_CgaCtaId for every block of k (dW 1.5 to 3.4 % slower). */
    if (T::GROUPED && !s->unit[0].end)
        return; /* no stage is ever filled */
    ptx_mbarrier_wait(ptx_shared(&s->full[0]), 0);
    unit = s->unit[0];
    for (int number = 1; unit.end; number++) {
        for (int kb = unit.begin; kb < unit.end; kb++) {
            ptx_mbarrier_wait(ptx_shared(&s->full[ring.at.stage]), ring.at.phase);
#pragma unroll
            for (int i = 0; i < T::BLOCK_M / THREADS; i++) {
                const int row = thread + i * THREADS;

                *(uint4 *)&s->split_a[ring.at.stage][row * 16] = gemm_split_scale(s->scale_a[ring.at.stage][row], true);
            }
#pragma unroll
            for (int row = thread; row < T::BLOCK_N; row += THREADS)
                *(uint4 *)&s->split_b[ring.at.stage][row * 16] =
                    gemm_split_scale(0.5f * s->scale_b[ring.at.stage][row], false);
            ptx_fence_async(); /* orders these stores before the reads of wgmma, which the arrival lets begin */
            ptx_mbarrier_arrive(ptx_shared(&s->ready[ring.at.stage]));
            gemm_advance<T::STAGES>(&ring);
        }
        unit = s->unit[number % UNITS];
    }
}

/* One block of k. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_k_block_outer(gemm_memory<T, MODE> *s, const gemm_addresses &at,
                                                          const gemm_split_addresses &split, gemm_ring *ring,
                                                          float *fin)
{
    const uint32_t stage = ring->at.stage, a = at.a + stage * (T::BLOCK_M * BK / 16),
                   b = at.b + stage * (T::BLOCK_N * BK / 16);
    float acc[T::BLOCK_N / 2], scale[T::BLOCK_N / 2];

    pipeline_wait(at.ready, ring->at); /* those who arrived had waited for `full`: the codes have landed too */
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        gemm_wgmma<T::BLOCK_N, FORMATS>(acc, wgmma_descriptor_of(a + 2 * k), wgmma_descriptor_of(b + 2 * k), k > 0);
    wgmma_bf16_96(scale, wgmma_descriptor_rows16(split.a + stage * T::BLOCK_M),
                  wgmma_descriptor_rows16(split.b + stage * T::BLOCK_N));
    wgmma_commit();
    wgmma_wait();
    if (threadIdx.x % 32 < T::CLUSTER_M + T::CLUSTER_N - 1)
        pipeline_release_cluster(at.empty, stage);
#pragma unroll
    for (int i = 0; i < T::BLOCK_N / 2; i++)
        fin[i] = __fmaf_rn(scale[i], acc[i], fin[i]);
    gemm_advance<T::STAGES>(ring);
}

/* All blocks of k of a work unit, added to fin. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_mainloop_outer(gemm_memory<T, MODE> *s, const gemm_addresses &at,
                                                           const gemm_split_addresses &split, gemm_ring *ring,
                                                           const gemm_unit &unit, float *fin)
{
#pragma unroll 1
    for (int kb = unit.begin; kb < unit.end; kb++)
        gemm_k_block_outer<T, MODE, FORMATS>(s, at, split, ring, fin);
}

/* Sets the flag of the partial accumulator that this warpgroup has saved, instead of gemm_signal_saved: here all
 * producer warps split scales. */
template <class T> static __device__ __forceinline__ void gemm_signal_own(const gemm_args &p, int warpgroup)
{
    __threadfence();
    ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128);
    if (threadIdx.x % 128 == 0)
        ptx_store_release(&p.flag[gemm_partial_slot<T>((int)blockIdx.x, warpgroup)], p.nonce);
}

#endif

#endif
