/* scheduler_sm90.cuh: which work units a cluster of gemm_fp8 above 64 tokens computes, in which order, and the partial
 * accumulators of the tiles that two clusters share.
 *
 * A cluster tile is the tiles of one cluster over all of k. Without `partial` cluster c of C computes cluster tiles c,
 * c + C, ..., and some clusters idle in the last round. With it the last C to 2 C cluster tiles are split by stream-K
 * (stream_k_at): the cluster that has a tile's head computes it first of its share and saves its accumulators in
 * `partial`; the next cluster has the tail, computes it last, loads them and goes on. So no cluster waits for long, and
 * every element is summed in ascending order of k wherever the cuts are: the same bits. The data-parallel tiles come
 * first, while all clusters are at the same block of k and find each other's loads in L2. CTAs are dispatched in
 * ascending order, so that the cluster whose partial accumulators another one waits for is running. A flag that holds
 * the launch's nonce says that they have been saved; its reader clears it. */
#ifndef RIDGE_GEMM_FP8_SCHEDULER_SM90_CUH
#define RIDGE_GEMM_FP8_SCHEDULER_SM90_CUH

#include "args_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Work unit `number` of this CTA. A tile that would reach beyond A's last row begins earlier instead, since TMA takes
 * its time over rows outside: some rows are computed twice, in the same order of sums, and the same bits written twice.
 */
template <class T> static __device__ __forceinline__ gemm_unit gemm_unit_at(const gemm_args &p, int number)
{
    enum { CTAS = T::CLUSTER_M * T::CLUSTER_N, STREAM_K = CTAS > 1 };
    const int clusters = (int)gridDim.x / CTAS, c = (int)blockIdx.x / CTAS, rank = (int)ptx_cluster_rank();
    const raster r = {p.tiles_m, p.tiles_n, BUNDLE_M, 0, 0, 0};
    const stream_k_unit u = stream_k_at(number, c, clusters, p.data_parallel, p.k_blocks, p.cut[STREAM_K ? c : 0],
                                        p.cut[STREAM_K ? c + 1 : 0]);
    int tile_m, tile_n;

    raster_tile(r, u.tile, &tile_m, &tile_n);
    return {min((tile_m * T::CLUSTER_M + rank % T::CLUSTER_M) * gemm_block_m<T>(p), p.last_row),
            (tile_n * T::CLUSTER_N + rank / T::CLUSTER_M) * T::BLOCK_N, u.begin, u.end};
}

/* T::GROUPED: an offset, or -1 if it is bad. */
template <class T> static __device__ __forceinline__ int gemm_read_offset(const gemm_args &p, int i)
{
    const int64_t at = p.wide ? ((const int64_t *)p.offsets)[i] : ((const int32_t *)p.offsets)[i];
    const int64_t most = T::GROUPED == GROUPED_K ? (int64_t)p.k_blocks * BK : p.masked ? p.masked : p.m;

    return at < 0 || at > most || (T::GROUPED == GROUPED_K && at % BK) ? -1 : (int)at;
}

/* Where the rows, or the elements of k, of a group begin and end, and how many rows of cluster tiles it has; -1: it is
 * bad. */
template <class T>
static __device__ __forceinline__ int gemm_read_group(const gemm_args &p, int group, int *from, int *to)
{
    *from = p.masked ? 0 : gemm_read_offset<T>(p, group);
    *to = gemm_read_offset<T>(p, p.masked ? group : group + 1);
    if (*from < 0 || *to < *from)
        return -1;
    if (T::GROUPED == GROUPED_K)
        return *from == *to && p.accumulate ? 0 : (p.m + T::BLOCK_M - 1) / T::BLOCK_M;
    return (*to - *from + T::BLOCK_M - 1) / T::BLOCK_M;
}

/* T::GROUPED, all threads: the first groups to shared memory. One thread alone takes 200 clocks a group to walk through
 * offsets, since each of its loads and divisions waits for the one before (H200). */
template <class T> static __device__ __forceinline__ void gemm_load_groups(const gemm_args &p, gemm_table *table)
{
    for (int i = (int)threadIdx.x; i < p.groups && i < GROUPED_TABLE; i += (int)blockDim.x) {
        int from;

        table->tiles_m[i] = gemm_read_group<T>(p, i, &from, &table->offset[i + 1]);
        if (i == 0)
            table->offset[0] = from;
    }
}

/* GROUPED_M: where a tile's rows begin, of a group of `slices` times 64 rows, the last perhaps fewer. Its tiles have as
 * many slices each as there are warpgroups, and the last ones, where these do not come out even, one less: 32 groups of
 * 256 rows, 4096 x 7168, take 486 us as tiles of 128 rows and 541 us as 192 and 64, for four stages are few for so few
 * rows (H200). */
template <class T> static __device__ __forceinline__ int gemm_first_slice(int slices, int tiles_m, int tile_m)
{
    const int tall = tiles_m - (tiles_m * T::WARPGROUPS - slices);

    return tile_m * T::WARPGROUPS - max(tile_m - max(tall, 0), 0);
}

/* T::GROUPED: work unit `number` of this CTA, not below that of the call before. The groups' cluster tiles are counted
 * one group after another and dealt out to the clusters; a bad group ends them. Without any k a group has one block
 * beyond the last, which TMA reads as zeros; when accumulating it has no tiles. */
template <class T>
static __device__ gemm_unit gemm_grouped_unit_at(const gemm_args &p, int number, gemm_walk *walk, gemm_group *its)
{
    const int clusters = (int)gridDim.x / T::CLUSTER_N, rank = (int)ptx_cluster_rank();
    const int index = (int)blockIdx.x / T::CLUSTER_N + number * clusters;
    int from = 0, to = 0, tiles_m = 0, tile_m, tile_n;

    static_assert(!T::GROUPED || T::CLUSTER_M == 1, "a cluster's tiles have the rows of one group");
    for (; walk->group < p.groups; walk->group++) {
        const bool kept = walk->group < GROUPED_TABLE;

        tiles_m = kept ? walk->table->tiles_m[walk->group] : gemm_read_group<T>(p, walk->group, &from, &to);
        if (tiles_m < 0 || index - walk->first < tiles_m * p.tiles_n) {
            if (kept) {
                from = p.masked ? 0 : walk->table->offset[walk->group];
                to = walk->table->offset[walk->group + 1];
            }
            break;
        }
        walk->first += tiles_m * p.tiles_n;
    }
    if (walk->group >= p.groups || tiles_m < 0) {
        walk->group = p.groups;
        *its = {}; /* read by the warp that loads scales ahead */
        return {};
    }
    raster_tile({tiles_m, p.tiles_n, BUNDLE_M, p.by_bundle, p.by_rows[BUNDLE_M], p.by_rows[tiles_m % BUNDLE_M]},
                index - walk->first, &tile_m, &tile_n);
    if (T::GROUPED == GROUPED_K) {
        const bool empty = from == to;

        *its = {0, walk->group * p.m, p.m, empty ? -1 : walk->group * p.scale_step};
        return {tile_m * T::BLOCK_M, (tile_n * T::CLUSTER_N + rank) * T::BLOCK_N, empty ? p.k_blocks : from / BK,
                empty ? p.k_blocks + 1 : to / BK};
    } else {
        const int rows = to - from, slices = (rows + 63) / 64;
        const int first_row = p.masked ? walk->group * p.masked : from;

        *its = {walk->group * p.n, 0, first_row + min(rows, 64 * gemm_first_slice<T>(slices, tiles_m, tile_m + 1)),
                walk->group * p.scale_step};
        return {first_row + 64 * gemm_first_slice<T>(slices, tiles_m, tile_m),
                (tile_n * T::CLUSTER_N + rank) * T::BLOCK_N, 0, p.k_blocks};
    }
}

/* Either. */
template <class T>
static __device__ __forceinline__ gemm_unit gemm_unit_of(const gemm_args &p, int number, gemm_walk *walk,
                                                         gemm_group *its)
{
    if constexpr (T::GROUPED)
        return gemm_grouped_unit_at<T>(p, number, walk, its);
    else
        return gemm_unit_at<T>(p, number);
}

/* One warp, when the cluster begins data-parallel round `round`: a soft synchronisation of all clusters every
 * p.sync_every rounds. When they are far apart in k they do not find each other's loads in L2: at 16384 x 16384 x
 * 106496 that read three times as much of DRAM. The wait is bounded, since the others need not be running. */
template <class T> static __device__ void gemm_sync_clusters(const gemm_args &p, int round)
{
    const int clusters = (int)gridDim.x / (T::CLUSTER_M * T::CLUSTER_N), lane = (int)threadIdx.x % 32;
    const uint64_t tag = p.nonce & ~UINT64_C(0xffffff), here = tag | (uint64_t)round;

    if (!p.sync_every || round == 0 || round % p.sync_every || round >= p.data_parallel / clusters)
        return;
    if (lane == 0 && ptx_cluster_rank() == 0)
        *(volatile uint64_t *)&p.progress[blockIdx.x / (T::CLUSTER_M * T::CLUSTER_N)] = here;
    for (int i = 0; i < 32; i++) {
        bool late = false;

        for (int c = lane; c < clusters; c += 32) {
            const uint64_t there = *(volatile uint64_t *)&p.progress[c];

            late |= there < here || (there ^ tag) >> 24;
        }
        if (!__any_sync(~0u, late))
            return;
        __nanosleep(200);
    }
}

/* Which of the partial accumulators, and of the flags, is that of a warpgroup of a CTA. */
template <class T> static __device__ __forceinline__ int64_t gemm_partial_slot(int block, int warpgroup)
{
    return (int64_t)block * T::WARPGROUPS + warpgroup;
}

/* Saves fin of a tile's head for the next cluster. Neighbours are swapped: a 16-byte load puts its four floats into
 * registers from a multiple of 4 on, as the accumulators lie, and an fma whose accumulator and fin are both in even or
 * both in odd registers takes longer. The warpgroup does not wait for its stores: gemm_signal_saved does. */
template <class T>
static __device__ __forceinline__ void gemm_save_partial(const gemm_args &p, uint64_t *saved, int warpgroup,
                                                         const float *fin)
{
    const int64_t slot = gemm_partial_slot<T>((int)blockIdx.x, warpgroup);
    float4 *to = (float4 *)p.partial + slot * (T::SLICES * T::BLOCK_N / 8 * 128) + threadIdx.x % 128;

#pragma unroll
    for (int i = 0; i < T::SLICES * T::BLOCK_N / 8; i++)
        to[i * 128] = make_float4(fin[4 * i + 1], fin[4 * i], fin[4 * i + 3], fin[4 * i + 2]);
    ptx_mbarrier_arrive(ptx_shared(saved)); /* orders the stores before the flag */
}

/* One thread: sets the flags of this CTA's head, if it has one, as each warpgroup has saved its part: the mbarrier and
 * the fence order the warpgroup's stores before the flag. */
template <class T> static __device__ void gemm_signal_saved(const gemm_args &p, uint64_t *saved)
{
    const uint32_t cluster = blockIdx.x / (T::CLUSTER_M * T::CLUSTER_N);

    if (!p.partial || p.cut[cluster + 1].block == 0)
        return;
    for (int warpgroup = 0; warpgroup < T::WARPGROUPS; warpgroup++) {
        ptx_mbarrier_wait(ptx_shared(&saved[warpgroup]), 0);
        __threadfence();
        ptx_store_release(&p.flag[gemm_partial_slot<T>((int)blockIdx.x, warpgroup)], p.nonce);
    }
}

/* fin at the beginning of a unit: zero, or what the cluster before has saved. */
template <class T>
static __device__ __forceinline__ void gemm_load_partial(const gemm_args &p, int begin, int warpgroup, float *fin)
{
    const int64_t slot = gemm_partial_slot<T>((int)blockIdx.x - T::CLUSTER_M * T::CLUSTER_N, warpgroup);
    const float4 *from = (const float4 *)p.partial + slot * (T::SLICES * T::BLOCK_N / 8 * 128) + threadIdx.x % 128;

    if (begin == 0) {
#pragma unroll
        for (int i = 0; i < T::SLICES * T::BLOCK_N / 2; i++)
            fin[i] = 0.0f;
        return;
    }
    if (threadIdx.x % 128 == 0) {
        while (ptx_load_acquire(&p.flag[slot]) != p.nonce)
            ;
        *(volatile uint64_t *)&p.flag[slot] = 0; /* not read again in this launch: no fence */
    }
    ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128); /* the flag was seen before any thread reads */
#pragma unroll
    for (int i = 0; i < T::SLICES * T::BLOCK_N / 8; i++) {
        const float4 v = from[i * 128];

        fin[4 * i + 1] = v.x;
        fin[4 * i] = v.y;
        fin[4 * i + 3] = v.z;
        fin[4 * i + 2] = v.w;
    }
}

#endif

#endif
