/* scales_sm90.cuh: the producer warps of gemm_fp8 on Hopper that load scales: those that TMA cannot load, and those of
 * B by 128 x 128. */
#ifndef RIDGE_GEMM_FP8_SCALES_SM90_CUH
#define RIDGE_GEMM_FP8_SCALES_SM90_CUH

#include "args_sm90.cuh"
#include "scheduler_sm90.cuh"

static __device__ const float gemm_zero = 0.0f; /* a scale of a group without any k */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* One warp, where TMA cannot load them: the scales of every stage that pass through shared memory, by cp.async. As few
 * instructions as possible: while wgmma run, all others issue at a third of the clock. */
template <class T, int MODE> static __device__ void gemm_produce_scales(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    enum { A = T::BLOCK_M / 32, B = MODE == SCALE_1D1D ? T::BLOCK_N / 32 : 0 };
    const int lane = threadIdx.x % 32;
    gemm_ring ring = {PIPELINE_PRODUCER, gemm_stages<T>(p)};
    gemm_unit unit;
    gemm_walk walk = {s->table};
    gemm_group group;

    ptx_grid_dependency_wait();
    for (int number = 0; unit = gemm_unit_of<T>(p, number, &walk, &group), unit.end; number++) {
        const float *from[A + B]; /* this lane's scales of the next block of k */

#pragma unroll
        for (int i = 0; i < A + B; i++) {
            const int row = min(unit.row + lane + 32 * i, p.m - 1), col = min(unit.col + lane + 32 * (i - A), p.n - 1);

            from[i] =
                i >= A ? p.scale_b + ((T::GROUPED == (int)GROUPED_M ? group.scale_b : 0) + (col >> p.shift_b)) * p.row_b
                       : p.scale_a + (row >> p.shift_a) * p.row_a;
            from[i] += unit.begin * (i < A ? p.step_a : p.step_b);
            if (T::GROUPED == (int)GROUPED_K && unit.begin == p.k_blocks)
                from[i] = &gemm_zero;
        }
#pragma unroll 1
        for (int kb = unit.begin; kb < unit.end; kb++) {
            ptx_mbarrier_wait(ptx_shared(&s->empty[ring.at.stage]), ring.at.phase);
#pragma unroll
            for (int i = 0; i < A + B; i++) {
                ptx_copy_async4(i < A ? ptx_shared(&s->scale_a[ring.at.stage][lane + 32 * i])
                                      : ptx_shared(&s->scale_b[ring.at.stage][lane + 32 * (i - A)]),
                                from[i]);
                from[i] += i < A ? p.step_a : p.step_b;
            }
            ptx_copy_async_arrive(ptx_shared(&s->full[ring.at.stage]));
            gemm_advance<T::STAGES>(&ring);
        }
    }
}

/* 1D2D: the scales of B of CHUNK blocks of k, one a lane; with TWO the upper lanes have those of the last columns.
 * first: the first row of the group's table. */
template <int BLOCK_N>
static __device__ __forceinline__ float gemm_read_scales_b(const gemm_args &p, int first, int col, int kb)
{
    const int lane = (int)threadIdx.x % 32;

    if (gemm_b_scales<BLOCK_N>::TWO && lane >= 16)
        col += BLOCK_N - 1;
    return p.scale_b[(first + min(col, p.n - 1) / 128) * p.ld_b +
                     min(kb + lane % gemm_b_scales<BLOCK_N>::CHUNK, p.k_blocks - 1)];
}

/* 1D2D, one warp: the scales of B of every stage. It reads CHUNK at a time and ahead, into the next work unit too: the
 * consumers would otherwise wait for that load at every tile's start. */
template <class T> static __device__ void gemm_produce_scales_b(const gemm_args &p, gemm_memory<T, SCALE_1D2D> *s)
{
    enum { SYNCS = T::WARPGROUPS == 3 && !T::SMALL_M && !T::GROUPED }; /* the tiles that have stream-K */
    enum { TWO = gemm_b_scales<T::BLOCK_N>::TWO, CHUNK = gemm_b_scales<T::BLOCK_N>::CHUNK };
    gemm_unit unit = s->unit[0], after = {};
    gemm_ring ring = {PIPELINE_PRODUCER, gemm_stages<T>(p)};
    int first = T::GROUPED ? s->group[0].scale_b : 0;
    float next;

    ptx_grid_dependency_wait();
    next = gemm_read_scales_b<T::BLOCK_N>(p, first, unit.col, unit.begin);
    for (int number = 1; unit.end; number++, unit = after)
        for (int kb = unit.begin; kb < unit.end; kb += CHUNK) {
            const float scales = next;
            const int count = min((int)CHUNK, unit.end - kb);

            if (SYNCS && kb == 0)
                gemm_sync_clusters<T>(p, number - 1);
            for (int i = 0; i < count; i++) {
                const uint32_t full = ptx_shared(&s->full[ring.at.stage]);
                const float scale = __shfl_sync(~0u, scales, i);
                const float last = TWO ? __shfl_sync(~0u, scales, i + CHUNK) : 0.0f;

                ptx_mbarrier_wait(ptx_shared(&s->empty[ring.at.stage]), ring.at.phase);
                __syncwarp(); /* all lanes have seen this phase before lane 0's arrival lets the next one complete */
                if (threadIdx.x % 32 == 0) {
                    s->scale_b[ring.at.stage][0] = scale;
                    if (TWO)
                        s->scale_b[ring.at.stage][TWO] = last;
                    ptx_mbarrier_arrive(full);
                }
                if (i == 0 && kb + CHUNK < unit.end) {
                    next = gemm_read_scales_b<T::BLOCK_N>(p, first, unit.col, kb + CHUNK);
                } else if (i == 0) {
                    ptx_mbarrier_wait(
                        full, ring.at.phase ^ 1); /* orders the next unit, which the producer wrote, before this read */
                    after = s->unit[number % UNITS];
                    first = T::GROUPED ? s->group[number % UNITS].scale_b : 0;
                    next = gemm_read_scales_b<T::BLOCK_N>(p, first, after.col, after.begin);
                }
                gemm_advance<T::STAGES>(&ring);
            }
        }
    if (SYNCS && p.sync_every && threadIdx.x % 32 == 0 && ptx_cluster_rank() == 0)
        p.progress[blockIdx.x / (T::CLUSTER_M * T::CLUSTER_N)] =
            0; /* a graph launches this again with the same nonce */
}

#endif

#endif
