/* kernel_sm90.cuh: the kernel of gemm_fp8 for more than 64 tokens on Hopper: TMA, wgmma, warp-specialised, persistent.
 * docs/design.md has a drawing of its roles and barriers.
 *
 *     fin = fma(rn(sA sB), P_b, fin) over the 128-blocks b of k, ascending; P_b by four wgmma of k 32
 *     (1D1D: scales_1d1d_sm90.cuh, scale_outer_sm90.cuh)
 *
 * A cluster of CLUSTER_M x CLUSTER_N CTAs computes as many neighbouring tiles. Tiles of one row need the same part of
 * A: each of their CTAs loads 1 / CLUSTER_N of it and multicasts it to the others; likewise 1 / CLUSTER_M of B.
 *
 * Warpgroup 0 is the producer: one thread issues the TMA loads, other warps load or rearrange scales, signal saved
 * partial accumulators, and copy D. The other warpgroups are consumers, each of one or two slices of 64 rows: while one
 * promotes its accumulators to fin (one fma an element, in 1D1D two), the wgmma of the others run.
 *
 *     full[s]   stage s has its codes and scales: orders the writes of TMA and of the scale warps before the reads of
 *               wgmma and of the consumers
 *     ready[s]  1D1D: its scales are rearranged: orders those writes before the consumers' reads, or before wgmma's
 *     empty[s]  the consumer warps of every CTA that this one writes to have released stage s: orders their reads
 *               before the next writes */
#ifndef RIDGE_GEMM_FP8_SM90_CUH
#define RIDGE_GEMM_FP8_SM90_CUH

#include "args_sm90.cuh"
#include "epilogue_sm90.cuh"
#include "mainloop_single_sm90.cuh"
#include "mainloop_sm90.cuh"
#include "scale_outer_sm90.cuh"
#include "scales_sm90.cuh"
#include "scheduler_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* --------------------------------------------------------------------------------------------------------- producer */

/* The TMA producer, one thread: the codes of every stage, and its scales where TMA can load them. Few instructions lie
 * between the acquire and the loads, so that a released stage is filled soon; `expect` comes after them. */
template <class T, int MODE> static __device__ void gemm_produce(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    enum { UNIT = GROUPED_UNIT(T::BLOCK_M) };
    const int rank = (int)ptx_cluster_rank(), rank_m = rank % T::CLUSTER_M, rank_n = rank / T::CLUSTER_M;
    const int all_rows = gemm_a_rows<T>(p), cols = rank_m * (T::BLOCK_N / T::CLUSTER_M);
    const uint32_t scale_bytes = p.scale_tma ? (all_rows * T::CLUSTER_N + (gemm_flat_scales<T, MODE>() ? 4 : 0)) * 4 +
                                                   (MODE == SCALE_1D1D ? T::BLOCK_N * 4 : 0)
                                             : 0;
    const uint16_t same_row = (uint16_t)((T::CLUSTER_N == 1 ? 1 : 1 | 1 << T::CLUSTER_M) << rank_m);
    const uint16_t same_col = (uint16_t)(((1 << T::CLUSTER_M) - 1) << rank_n * T::CLUSTER_M);
    const uint32_t step_a = gemm_block_m<T>(p) * BK;
    const uint32_t to_b = ptx_shared(T::SMALL_M ? s->a[0] + p.stages * p.block_m * BK : s->b[0]) + cols * BK;
    gemm_unit unit = s->unit[0], next = {};
    gemm_group group = s->group[0], next_group = {};
    gemm_walk walk = {s->table};
    gemm_ring ring = {PIPELINE_PRODUCER, gemm_stages<T>(p)};

    ptx_grid_dependency_wait();
    for (int number = 1; unit.end; number++) {
        const int row = unit.row, col = unit.col, b_row = T::GROUPED ? group.b_row + col : col;
        const int units = min((group.last - row + UNIT - 1) / UNIT, T::BLOCK_M / UNIT);
        const bool part = T::GROUPED == GROUPED_M && units < T::BLOCK_M / UNIT;
        const int a_rows = part ? units * UNIT / T::CLUSTER_N : all_rows, rows = rank_n * a_rows;
        const uint32_t bytes = a_rows * T::CLUSTER_N * BK + T::BLOCK_N * BK + scale_bytes;
        const uint32_t to_a = ptx_shared(s->a[0]) + rows * BK;
        const CUtensorMap *map_a = part ? &p.a_part[units - 1] : &p.a;

        for (int kb = unit.begin; kb < unit.end; kb++) {
            const uint32_t stage = ring.at.stage, full = ptx_shared(&s->full[0]) + stage * 8;
            const uint32_t a = to_a + stage * step_a, b = to_b + stage * (T::BLOCK_N * BK);

            pipeline_acquire(ptx_shared(&s->empty[0]), ring.at);
            if (T::CLUSTER_N == 1)
                ptx_tma_load_2d(a, map_a, kb * BK, row, full);
            else
                ptx_tma_load_2d_multicast(a, map_a, kb * BK, row + rows, full, same_row);
            if (T::CLUSTER_M == 1)
                ptx_tma_load_2d(b, &p.b, kb * BK, b_row, full);
            else
                ptx_tma_load_2d_multicast(b, &p.b, kb * BK, b_row + cols, full, same_col);
            if (MODE != SCALE_EPILOGUE && p.scale_tma)
                ptx_tma_load_2d(ptx_shared(s->scale_a[0]) + stage * (gemm_layout<T, MODE>::PITCH * 4), &p.map_scale_a,
                                gemm_flat_scales<T, MODE>() ? (p.scale_a_skew + row + kb * (int)p.ld_a) & ~3 : row,
                                gemm_flat_scales<T, MODE>() ? 0 : kb, full);
            if (MODE == SCALE_1D1D && p.scale_tma)
                ptx_tma_load_2d(ptx_shared(s->scale_b[0]) + stage * (T::BLOCK_N * 4), &p.map_scale_b, col, kb, full);
            if (kb == unit.begin) { /* its divisions take long: now, while the first loads are in flight */
                next = gemm_unit_of<T>(p, number, &walk, &next_group);
                if (T::GROUPED)
                    s->group[number % UNITS] = next_group;
                s->unit[number % UNITS] = next; /* the arrival at full orders these writes before their readers */
            }
            ptx_mbarrier_expect(full, bytes);
            gemm_advance<T::STAGES>(&ring);
        }
        unit = next;
        group = next_group;
    }
    /* Drain: other CTAs of the cluster arrive at this one's `empty` until then, so it must not exit before. */
    for (uint32_t i = 0; i < gemm_stages<T>(p); i++) {
        pipeline_acquire(ptx_shared(&s->empty[0]), ring.at);
        gemm_advance<T::STAGES>(&ring);
    }
}

/* Warpgroup 0, by warp. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_producer(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

    if (warp == 0) {
        if (ptx_elect())
            gemm_produce<T, MODE>(p, s);
    } else if (MODE != SCALE_EPILOGUE && !p.scale_tma && warp == 1)
        gemm_produce_scales<T, MODE>(p, s);
    else if (T::SCALE_OUTER && p.scale_tma)
        gemm_split_scales<T, MODE, T::SCALE_OUTER ? 96 : 128>(s);
    else if (T::SCALE_OUTER)
        gemm_split_scales<T, MODE, T::SCALE_OUTER ? 64 : 128>(s);
    else if (threadIdx.x == (T::STAGED_F32 ? 32 : 64)) /* STAGED_F32 has no stream-K where warp 1 loads scales */
        gemm_signal_saved<T>(p, s->saved);
    else if (T::STAGED_F32 && threadIdx.x == 64)
        gemm_copy_d<T, MODE>(p, s);
    else if constexpr (MODE == SCALE_1D2D) {
        if (warp == 3)
            gemm_produce_scales_b<T>(p, s);
    } else if (MODE == SCALE_1D1D && threadIdx.x >= 96)
        gemm_permute_scales_b<T, MODE>(p, s);
}

/* --------------------------------------------------------------------------------------------------------- consumer */

/* A number that is the same in all lanes, hidden from the compiler, which would otherwise compute it anew for every
 * block of k; 1D1D: in a uniform register, since this mode has no other to spare. */
template <int MODE> static __device__ __forceinline__ uint32_t gemm_uniform(uint32_t x)
{
    return MODE == SCALE_1D1D ? __reduce_max_sync(~0u, x) : __shfl_sync(~0u, x, 0);
}

/* A work unit from shared memory. The reductions tell the compiler that all lanes have the same values: loops bounded
 * by them then keep their state in uniform registers. */
static __device__ __forceinline__ gemm_unit gemm_read_unit(const gemm_unit *from)
{
    gemm_unit unit = *from;

    unit.row = __reduce_max_sync(~0u, unit.row);
    unit.col = __reduce_max_sync(~0u, unit.col);
    unit.begin = __reduce_max_sync(~0u, unit.begin);
    unit.end = __reduce_max_sync(~0u, unit.end);
    return unit;
}

/* What a consumer thread of a warpgroup keeps in registers. */
template <class T, int MODE>
static __device__ __forceinline__ gemm_addresses gemm_addresses_of(const gemm_args &p, gemm_memory<T, MODE> *s,
                                                                   int rank, int warpgroup, int local)
{
    enum { ROWS = 64 * T::SLICES };
    /* Lanes 0 .. CLUSTER_M - 1 release stages to the CTAs of this one's column, the next lanes to the others of its
     * row. */
    const int lane = threadIdx.x % 128 % 32;
    const int peer = lane < T::CLUSTER_M                      ? rank / T::CLUSTER_M * T::CLUSTER_M + lane
                     : lane < T::CLUSTER_M + T::CLUSTER_N - 1 ? rank ^ T::CLUSTER_M
                                                              : rank;

    return {gemm_uniform<MODE>((uint32_t)wgmma_descriptor(ptx_shared(s->a[0] + warpgroup * ROWS * BK))),
            gemm_uniform<MODE>(
                (uint32_t)wgmma_descriptor(ptx_shared(T::SMALL_M ? s->a[0] + p.stages * p.block_m * BK : s->b[0]))),
            ptx_shared(&s->full[0]),
            ptx_shared(&s->ready[0]),
            ptx_map(ptx_shared(&s->empty[0]), (uint32_t)peer),
            local,
            1 + warpgroup,
            warpgroup + 1 == gemm_warpgroups<T>(p) ? 1 : 2 + warpgroup,
            (uint32_t)gemm_block_m<T>(p) * (BK / 16),
            p.scale_tma ? p.scale_a_skew : 0,
            p.scale_tma ? 3 : 0,
            p.scale_tma ? (int)(p.ld_a & 3) : 0};
}

/* T::GROUPED, a work unit of whose rows this warpgroup has none. */
template <class T>
static __device__ __forceinline__ void gemm_skip(const gemm_addresses &at, gemm_ring *ring, const gemm_unit &unit)
{
#pragma unroll 1
    for (int kb = unit.begin; kb < unit.end; kb++) {
        pipeline_wait(at.full, ring->at);
        __syncwarp(); /* all lanes have seen this phase before the release lets the next one complete */
        if (threadIdx.x % 32 < T::CLUSTER_M + T::CLUSTER_N - 1)
            pipeline_release_cluster(at.empty, ring->at.stage);
        gemm_advance<T::STAGES>(ring);
    }
}

/* A work unit: fin = the sums over its blocks of k, on top of the partial accumulators of the tile, if it has any. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_consume(const gemm_args &p, gemm_memory<T, MODE> *s,
                                                    const gemm_addresses &at, const gemm_split_addresses &split,
                                                    gemm_ring *ring, const gemm_unit &unit, int warpgroup, float *fin)
{
    gemm_load_partial<T>(p, T::GROUPED ? 0 : unit.begin, warpgroup, fin);
    if constexpr (T::SCALE_OUTER)
        gemm_mainloop_outer<T, MODE, FORMATS>(s, at, split, ring, unit, fin);
    else if constexpr (T::WARPGROUPS == 1)
        gemm_mainloop_single<T, MODE, FORMATS>(s, at, ring, unit, fin);
    else
        gemm_mainloop<T, MODE, FORMATS>(s, at, ring, unit, fin);
}

/* --------------------------------------------------------------------------------------------------------- epilogue */

/* The first bias of the group of work unit `number`. */
template <class T, int MODE>
static __device__ __forceinline__ int gemm_first_bias(const gemm_args &p, const gemm_memory<T, MODE> *s, int number)
{
    return T::GROUPED == GROUPED_M && p.bias ? s->group[number % UNITS].b_row : 0;
}

/* fin of a tile to D. bias: of this thread's column; parity: of the tiles that the warpgroup has finished. */
template <class T, int MODE, int OUT>
static __device__ __forceinline__ void gemm_epilogue(const gemm_args &p, gemm_memory<T, MODE> *s, int warpgroup,
                                                     int local, int row, int last, int col, const gemm_group &group,
                                                     float bias, int parity, float *fin)
{
    enum { ROWS = 64 * T::SLICES, HALF = T::BLOCK_N / 2 };

#pragma unroll
    for (int slice = 0; slice < T::SLICES; slice++) {
        const int first_row = row + warpgroup * ROWS + slice * 64;
        float *part = fin + slice * HALF;

        if (MODE == SCALE_EPILOGUE && (T::GROUPED != (int)GROUPED_K || group.scale_b >= 0))
            gemm_scale_epilogue<T, MODE>(p, s, warpgroup, local + slice * 64, row, last, col, group.scale_b, part);
        if (p.bias)
            gemm_add_bias<T, OUT>(p, s->bias[warpgroup], warpgroup, bias, group.b_row, col, part);
        if (OUT == OUT_BF16)
            gemm_store_bf16<T, MODE>(p, s, warpgroup, slice, first_row, last, col, part);
        else if (OUT == OUT_F32)
            gemm_store_f32<T, MODE>(p, s, warpgroup, slice, first_row, last, col, parity, part);
        else
            gemm_store_any<T, MODE>(p, s, warpgroup, slice, first_row, last, col, part);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* By one thread: the mbarriers. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_init(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    for (uint32_t i = 0; i < gemm_stages<T>(p); i++) {
        ptx_mbarrier_init(ptx_shared(&s->full[i]),
                          (MODE == SCALE_EPILOGUE || p.scale_tma ? 1 : 33) + (MODE == SCALE_1D2D));
        ptx_mbarrier_init(ptx_shared(&s->ready[i]), !T::SCALE_OUTER ? 32 : p.scale_tma ? 96 : 64);
        ptx_mbarrier_init(ptx_shared(&s->empty[i]), 4 * gemm_warpgroups<T>(p) * (T::CLUSTER_M + T::CLUSTER_N - 1));
    }
    for (int i = 0; i < T::WARPGROUPS; i++) {
        ptx_mbarrier_init(ptx_shared(&s->saved[i]), 128);
        ptx_mbarrier_init(ptx_shared(&s->d_loaded[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->d_written[i]), 128);
    }
    ptx_mbarrier_fence_init();
}

/* By the same thread: the first work unit. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_first_unit(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    gemm_walk walk = {s->table};

    s->unit[0] = gemm_unit_of<T>(p, 0, &walk, &s->group[0]);
}

/* GROUPED_M, one thread, before the groups are known: B of the first stages, to L2, of the tile that this CTA begins
 * with if all groups have as many rows (masked: some, but one tile's at most). Where they have not, it is another
 * CTA's. */
template <class T> static __device__ __forceinline__ void gemm_prefetch_first(const gemm_args &p, int rank)
{
    const int tiles_m = p.masked ? 1 : max(1, (p.m / p.groups + T::BLOCK_M - 1) / T::BLOCK_M);
    const int cluster = (int)blockIdx.x / T::CLUSTER_N, group = cluster / (tiles_m * p.tiles_n);
    const int tile_n = cluster % (tiles_m * p.tiles_n) / min(tiles_m, (int)BUNDLE_M);

    for (int kb = 0; group < p.groups && kb < min(p.k_blocks, (int)T::MAX_STAGES); kb++)
        ptx_tma_prefetch_2d(&p.b, kb * BK, group * p.n + (tile_n * T::CLUSTER_N + rank) * T::BLOCK_N);
}

#endif

template <class T, int MODE, int FORMATS, int OUT>
static __global__ void __launch_bounds__(T::WARPGROUPS * 128 + 128, 1) gemm_sm90(const __grid_constant__ gemm_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(sizeof(gemm_memory<T, MODE>) <= 232448, "what a CTA can have");
    extern __shared__ __align__(1024) uint8_t shared[];
    gemm_memory<T, MODE> *s = (gemm_memory<T, MODE> *)shared;
    const int rank = (int)ptx_cluster_rank(); /* here: read by the consumers, ptxas would do so for every block of k */

    if (threadIdx.x == 0)
        gemm_init<T, MODE>(p, s);
    if (threadIdx.x == 32) {
        ptx_prefetch_map(&p.a);
        ptx_prefetch_map(&p.b);
        if (MODE != SCALE_EPILOGUE && p.scale_tma)
            ptx_prefetch_map(&p.map_scale_a);
        if (MODE == SCALE_1D1D && p.scale_tma)
            ptx_prefetch_map(&p.map_scale_b);
    }
    __syncwarp(); /* the next barrier is an .aligned one: lanes that diverged must have converged */
    ptx_cluster_arrive_relaxed();
    if (T::GROUPED) {
        ptx_grid_dependency_wait(); /* an earlier kernel may write the offsets */
        if (T::GROUPED == GROUPED_M && threadIdx.x == T::WARPGROUPS * 128 + 96) /* not of the warps that load groups */
            gemm_prefetch_first<T>(p, rank);
        __syncwarp();
        gemm_load_groups<T>(p, s->table);
        __syncthreads(); /* orders the groups before the first work unit */
    }
    if (threadIdx.x == 0)
        gemm_first_unit<T, MODE>(p, s);
    __syncwarp();
    ptx_cluster_wait();      /* orders the initialisation of all CTAs' mbarriers before their first use */
    __syncthreads();         /* orders the first work unit before its readers */
    ptx_launch_dependents(); /* here, since every thread that touches global memory waits with ptx_grid_dependency_wait,
                           as late as it can */
    if (threadIdx.x < 128) {
        if (T::WARPGROUPS == 2)
            ptx_setmaxnreg_dec<40>();
        else if (T::WARPGROUPS == 3)
            ptx_setmaxnreg_dec<56>();
        gemm_producer<T, MODE>(p, s);
    } else {
        enum { ROWS = 64 * T::SLICES, HALF = T::BLOCK_N / 2 };
        const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1; /* of the consumers; in a uniform register */
        const int thread = threadIdx.x % 128, local = warpgroup * ROWS + thread / 32 * 16 + thread % 32 / 4;
        const gemm_addresses at = gemm_addresses_of<T, MODE>(p, s, rank, warpgroup, local);
        const gemm_split_addresses split = {
            gemm_uniform<MODE>(wgmma_low_rows16(ptx_shared(s->split_a[0]) + warpgroup * ROWS * 16)),
            gemm_uniform<MODE>(wgmma_low_rows16(ptx_shared(s->split_b[0])))};
        gemm_ring ring = {PIPELINE_CONSUMER, gemm_stages<T>(p)};
        gemm_unit unit;
        int number = 0, parity = 0; /* parity: of the tiles that are finished */

        if (T::WARPGROUPS == 2)
            ptx_setmaxnreg_inc<232>();
        else if (T::WARPGROUPS == 3)
            ptx_setmaxnreg_inc<152>();
        if (MODE == SCALE_1D1D && !T::SCALE_OUTER && warpgroup == gemm_warpgroups<T>(p) - 1)
            ptx_barrier_arrive(1, 256); /* the first warpgroup begins */
        ptx_grid_dependency_wait();
        unit = gemm_read_unit(&s->unit[0]);
        if (T::SMALL_M && warpgroup >= p.warpgroups)
            unit.end = 0; /* no rows; nor may it wait: `empty` does not count it */
        if (unit.end)     /* without this test ptxas keeps the loops' state in vector registers */
            ptx_mbarrier_wait(at.full, 0);
        while (unit.end) {
            const int row = unit.row, col = unit.col, end = unit.end;
            const int last = T::GROUPED ? 0 : gemm_rows_end<T>(p, unit.row);
            float bias = 0.0f;
            float fin[T::SLICES * HALF];

            if (T::GROUPED == GROUPED_M && T::WARPGROUPS > 1 && (MODE != SCALE_1D1D || T::SCALE_OUTER) &&
                row + warpgroup * ROWS >= s->group[number % UNITS].last) {
                gemm_skip<T>(at, &ring, unit);
                unit = gemm_read_unit(&s->unit[++number % UNITS]);
                continue;
            }
            if (MODE != SCALE_1D1D && OUT != OUT_ANY) /* else there is no register for it before */
                bias = gemm_bias_of<OUT>(p, gemm_first_bias<T, MODE>(p, s, number), col + thread);
            gemm_consume<T, MODE, FORMATS>(p, s, at, split, &ring, unit, warpgroup, fin);
            if (MODE == SCALE_1D1D || OUT == OUT_ANY)
                bias = gemm_bias_of<OUT>(p, gemm_first_bias<T, MODE>(p, s, number), col + thread);
            if (T::GROUPED) {
                const gemm_group group = s->group[number % UNITS];

                unit = gemm_read_unit(&s->unit[++number % UNITS]);
                gemm_epilogue<T, MODE, OUT>(p, s, warpgroup, local, row + group.d_row, group.last + group.d_row, col,
                                            group, bias, parity, fin);
                parity ^= 1;
                continue;
            }
            unit = gemm_read_unit(&s->unit[++number % UNITS]);
            if (end < p.k_blocks) {
                gemm_save_partial<T>(p, &s->saved[warpgroup], warpgroup, fin);
                if (T::SCALE_OUTER)
                    gemm_signal_own<T>(p, warpgroup);
                continue;
            }
            gemm_epilogue<T, MODE, OUT>(p, s, warpgroup, local, row, last, col, {}, bias, parity, fin);
            parity ^= 1;
        }
        if (thread == 0)
            ptx_tma_wait_read(); /* TMA stores read shared memory until here */
    }
#endif
}

#endif
