/* gemm_bf16.cuh: the product of 16-bit matrices on Hopper: persistent, warp-specialised, TMA and wgmma, clusters of two
 * CTAs. A kernel adds its tile scheduler and its epilogues (ops/linear_ce/: logits_coop_sm90.cu,
 * logits_pingpong_sm90.cu, grads_sm90.cu).
 *
 *     D [m, n] = A [m, k] B [n, k]^T, f32 in registers; A and B may each be contiguous along k (K-major) or along
 *     their rows (MN-major)
 *
 * A CTA has one producer warpgroup, of which one thread issues the TMA loads, and two consumer warpgroups, which issue
 * wgmma and run the epilogue. There are two schedules of one main loop:
 *
 *     cooperative  the consumers share a tile of 128 x 256, 64 rows each. The second one starts G16_STAGGER stages
 *                  late, so that the epilogue of one overlaps the main loop of the other
 *     pingpong     each consumer has its own tile, of 128 x 192, 192 x 128 or 128 x 128. They alternate over the tiles
 *                  of the cluster, so that the epilogue of one overlaps the main loop of the other
 *
 * The CTAs of a cluster share one operand; each loads half of it and multicasts that half to both:
 *
 *     cluster 2x1  two row tiles of one column tile: B is multicast
 *     cluster 1x2  two column tiles of one row tile: A is multicast
 *
 * The pipeline has two mbarriers a stage (sm90/pipeline.cuh). full[s]: this CTA's stage s has landed (orders TMA's
 * writes before wgmma's reads). empty[s]: every consumer warp of the cluster that reads stage s, 16 (cooperative) or 8
 * (pingpong), has released it. It counts both CTAs, because either CTA's next multicast writes into both. */
#ifndef RIDGE_GEMM_BF16_SM90_CUH
#define RIDGE_GEMM_BF16_SM90_CUH

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "pipeline.cuh"
#include "scheduler.cuh"
#include "wgmma.cuh"

enum {
    G16_CLUSTER = 2,
    G16_BLOCK_M = 128,
    G16_BLOCK_K = 64,
    G16_COOP_N = 256,     /* block_n, cooperative */
    G16_PINGPONG_N = 192, /* block_n, pingpong, cluster 2x1 */
    G16_1X2_N = 128,      /* block_n, pingpong, cluster 1x2; block_m is 128 or 192 */
    G16_THREADS = 384,
    G16_BUNDLE = 8,       /* row-tile pairs of a bundle */
    G16_PANEL = 64 * 128, /* bytes of 64 rows of 64 elements */
    G16_STAGGER = 3,      /* stages by which the second cooperative consumer starts late */
    G16_FETCH_AHEAD = 3   /* k blocks before the end of a work tile at which the next one is fetched */
};

/* Shared memory of a schedule. ROWS: of the tile that a consumer computes. */
typedef struct gemm16_coop {
    enum { BLOCK_M = G16_BLOCK_M, BLOCK_N = G16_COOP_N, ROWS = 64, STAGES = 4, PINGPONG = 0, MULTICAST_A = 0 };
    enum { STAGE_BYTES = (BLOCK_M + BLOCK_N) * G16_BLOCK_K * 2 };
    uint8_t a[STAGES][BLOCK_M * G16_BLOCK_K * 2];
    uint8_t b[STAGES][BLOCK_N * G16_BLOCK_K * 2];
    uint8_t d[2][2][G16_PANEL];  /* by consumer: two panels of results for TMA to store */
    float column[2][G16_COOP_N]; /* by consumer: what an epilogue needs of each column */
    uint64_t full[STAGES], empty[STAGES];
} gemm16_coop;

typedef struct gemm16_pingpong {
    enum { BLOCK_M = G16_BLOCK_M, BLOCK_N = G16_PINGPONG_N, ROWS = BLOCK_M, STAGES = 5, PINGPONG = 1, MULTICAST_A = 0 };
    enum { STAGE_BYTES = (BLOCK_M + BLOCK_N) * G16_BLOCK_K * 2 };
    uint8_t a[STAGES][BLOCK_M * G16_BLOCK_K * 2];
    uint8_t b[STAGES][BLOCK_N * G16_BLOCK_K * 2];
    uint64_t full[STAGES], empty[STAGES];
} gemm16_pingpong;

template <int M> struct gemm16_pingpong_1x2 {
    enum { BLOCK_M = M, BLOCK_N = G16_1X2_N, ROWS = M, STAGES = M == 192 ? 5 : 6, PINGPONG = 1, MULTICAST_A = 1 };
    enum { STAGE_BYTES = (BLOCK_M + BLOCK_N) * G16_BLOCK_K * 2 };
    uint8_t a[STAGES][BLOCK_M * G16_BLOCK_K * 2];
    uint8_t b[STAGES][BLOCK_N * G16_BLOCK_K * 2];
    uint64_t full[STAGES], empty[STAGES];
};

/* The work tiles of a product, computed on the device, since some of the extents are known only there: a cluster
 * computes a tile of 2 block_m x block_n over one split of k. */
typedef struct gemm16_plan {
    int m, n, k_blocks;
    int block_m, block_n;
    raster tiles;             /* tiles_m: pairs of row tiles; their rows of A stay in L2 over a bundle */
    int count;                /* work tiles of all splits */
    int splits, split_blocks; /* split-K: splits, and k blocks of one */
    uint32_t by_split;        /* scheduler_reciprocal of the tiles of a split */
} gemm16_plan;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ----------------------------------------------------------------------------------------------------- work tiles */

static __device__ __forceinline__ raster gemm16_raster(int tiles_m, int tiles_n, int bundle)
{
    const int last = tiles_m - (tiles_m - 1) / bundle * bundle;

    return {tiles_m,
            tiles_n,
            bundle,
            scheduler_reciprocal(bundle * tiles_n),
            scheduler_reciprocal(bundle),
            scheduler_reciprocal(last)};
}

static __device__ __forceinline__ gemm16_plan gemm16_plan_of(int m, int n, int k, int block_m, int block_n, int bundle,
                                                             int splits)
{
    const int k_blocks = (k + G16_BLOCK_K - 1) / G16_BLOCK_K, rows = G16_CLUSTER * block_m;
    gemm16_plan w = {m, n, k_blocks, block_m, block_n, {}, 0, splits, (k_blocks + splits - 1) / splits, 0};

    w.tiles = gemm16_raster((m + rows - 1) / rows, (n + block_n - 1) / block_n, bundle);
    w.count = w.tiles.tiles_m * w.tiles.tiles_n * splits;
    w.by_split = scheduler_reciprocal(w.tiles.tiles_m * w.tiles.tiles_n);
    return w;
}

/* A tile of one split. Without the assumptions raster_tile keeps its path for rasters without reciprocals. */
static __device__ __forceinline__ void gemm16_tile(const raster &r, int index, int *pair, int *tile_n)
{
    const raster q = r;

    __builtin_assume(q.by_bundle != 0);
    __builtin_assume(q.by_rows != 0);
    __builtin_assume(q.by_last != 0);
    raster_tile(q, index, pair, tile_n);
}

/* A tile of all splits. Returns the split. */
static __device__ __forceinline__ int gemm16_locate(const gemm16_plan &w, int index, int *pair, int *tile_n)
{
    const uint32_t by_split = w.by_split;
    int in_split;

    __builtin_assume(by_split != 0);
    const int split = scheduler_divide(index, w.tiles.tiles_m * w.tiles.tiles_n, by_split, &in_split);

    gemm16_tile(w.tiles, in_split, pair, tile_n);
    return split;
}

/* The first k block of a split, and how many it has. */
static __device__ __forceinline__ int gemm16_blocks(const gemm16_plan &w, int split, int *first)
{
    *first = split * w.split_blocks;
    return min(w.split_blocks, w.k_blocks - *first);
}

/* -------------------------------------------------------------------------------------------------------- prologue */

/* By one thread, before gemm16_prologue, which has the fence. warps: consumer warps of a CTA that read a stage. */
template <class SMEM> static __device__ __forceinline__ void gemm16_pipeline_init(SMEM *s, int warps)
{
    pipeline_init(ptx_shared(&s->full[0]), ptx_shared(&s->empty[0]), SMEM::STAGES, 1, (uint32_t)(warps * G16_CLUSTER));
}

/* Before anything else in a kernel. */
template <class SMEM> static __device__ __forceinline__ void gemm16_prologue(SMEM *s, int warps)
{
    if (threadIdx.x == 0) {
        gemm16_pipeline_init(s, warps);
        ptx_mbarrier_fence_init();
    }
    ptx_cluster_sync(); /* orders the initialisation of the mbarriers of both CTAs before their first use */
    ptx_grid_dependency_wait();
    ptx_launch_dependents();
}

/* -------------------------------------------------------------------------------------------------------- producer */

/* Where the A of a k block is loaded from: a tensor map, and coordinates in it. The kernel passes an object SOURCE for
 * which there is gemm16_a_source(const SOURCE &, row, k). Boxes of A and B: 64 of k by all rows that one TMA loads
 * (K-major); 64 rows by 64 of k, or by 32 where gemm16_load_half says so (MN-major). */
typedef struct gemm16_source {
    const CUtensorMap *map;
    int row, k;
} gemm16_source;

/* A matrix in one tensor map. */
static __device__ __forceinline__ gemm16_source gemm16_a_source(const CUtensorMap &map, int row, int k)
{
    return {&map, row, k};
}

/* N rows for this CTA only: one box, or boxes of 64 rows. */
template <int MN, int N>
static __device__ __forceinline__ void gemm16_load_own(const gemm16_source &from, uint32_t to, uint32_t full)
{
    if (!MN)
        ptx_tma_load_2d(to, from.map, from.k, from.row, full);
    else
#pragma unroll
        for (int i = 0; i < N / 64; i++)
            ptx_tma_load_2d(to + i * G16_PANEL, from.map, from.row + 64 * i, from.k, full);
}

/* This CTA's half of N rows that both CTAs need, multicast to both. A box has all rows of the half (K-major), or 64
 * rows (MN-major); where the half is not a multiple of 64 rows, 64 rows by half of the k block. */
template <int MN, int N>
static __device__ __forceinline__ void gemm16_load_half(const gemm16_source &from, uint32_t to, uint32_t rank,
                                                        uint32_t full)
{
    constexpr int HALF = N / G16_CLUSTER, BOXES = HALF / (G16_BLOCK_K / 2);

    if constexpr (MN && HALF % 64) {
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            const int box = (int)rank * BOXES + i;

            ptx_tma_load_2d_multicast(to + box * (G16_PANEL / 2), from.map, from.row + box / 2 * 64,
                                      from.k + box % 2 * (G16_BLOCK_K / 2), full, (1 << G16_CLUSTER) - 1);
        }
    } else {
        const int row = from.row + (int)rank * HALF;

        to += rank * (HALF * G16_BLOCK_K * 2);
#pragma unroll
        for (int i = 0; i < (MN ? HALF / 64 : 1); i++)
            ptx_tma_load_2d_multicast(to + i * G16_PANEL, from.map, MN ? row + 64 * i : from.k, MN ? from.k : row, full,
                                      (1 << G16_CLUSTER) - 1);
    }
}

/* Loads k blocks [first, end) of a tile whose rows of A begin at `row` and rows of B at `col`. *n counts the stages
 * filled so far. With a queue the next ticket is drawn into *next G16_FETCH_AHEAD blocks before the end: an atomic
 * issued earlier would reserve work here while other clusters have none left, a later one would be waited for. */
template <int MN_A, int MN_B, class SMEM, class SOURCE>
static __device__ __forceinline__ void gemm16_produce(const SOURCE &a, const CUtensorMap &b, SMEM *s, int row, int col,
                                                      int first, int end, uint32_t *n, unsigned long long *queue = NULL,
                                                      int *next = NULL)
{
    const uint32_t rank = ptx_cluster_rank(), empty = ptx_shared(&s->empty[0]);

#pragma unroll 1
    for (int kb = first; kb < end; kb++, ++*n) {
        const pipeline_state at = pipeline_producer_at<SMEM::STAGES>(*n);
        const uint32_t full = ptx_shared(&s->full[at.stage]);
        const gemm16_source from_a = gemm16_a_source(a, row, kb * G16_BLOCK_K), from_b = {&b, col, kb * G16_BLOCK_K};

        if (queue && kb == max(end - G16_FETCH_AHEAD, first))
            *next = (int)atomicAdd(queue, 1ull);
        pipeline_acquire(empty, at);
        ptx_mbarrier_expect(full, SMEM::STAGE_BYTES);
        if (SMEM::MULTICAST_A) {
            gemm16_load_half<MN_A, SMEM::BLOCK_M>(from_a, ptx_shared(s->a[at.stage]), rank, full);
            gemm16_load_own<MN_B, SMEM::BLOCK_N>(from_b, ptx_shared(s->b[at.stage]), full);
        } else {
            gemm16_load_own<MN_A, SMEM::BLOCK_M>(from_a, ptx_shared(s->a[at.stage]), full);
            gemm16_load_half<MN_B, SMEM::BLOCK_N>(from_b, ptx_shared(s->b[at.stage]), rank, full);
        }
    }
}

/* A work tile of a cluster 2x1. first_row: of A, added to the tile's rows. */
template <int MN_A, int MN_B, class SMEM, class SOURCE>
static __device__ __forceinline__ void gemm16_produce_tile(const SOURCE &a, const CUtensorMap &b, const gemm16_plan &w,
                                                           int first_row, SMEM *s, int tile, uint32_t *n,
                                                           unsigned long long *queue = NULL, int *next = NULL)
{
    static_assert(!SMEM::MULTICAST_A, "each CTA has rows of its own");
    int pair, tile_n, first;
    const int blocks = gemm16_blocks(w, gemm16_locate(w, tile, &pair, &tile_n), &first);
    const int row = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * SMEM::BLOCK_M + first_row;

    gemm16_produce<MN_A, MN_B>(a, b, s, row, tile_n * SMEM::BLOCK_N, first, first + blocks, n, queue, next);
}

/* -------------------------------------------------------------------------------------------------------- consumer */

/* What a consumer computes once: descriptors of its rows of A and of B in stage 0, the address of full[0], and those of
 * empty[0] in both CTAs. */
typedef struct gemm16_operands {
    uint64_t a, b;
    uint32_t full, empty[G16_CLUSTER];
} gemm16_operands;

/* panel: the first panel of the tile's A that the consumer reads. */
template <int MN_A, int MN_B, class SMEM>
static __device__ __forceinline__ gemm16_operands gemm16_operands_of(SMEM *s, int panel)
{
    const uint32_t a = ptx_shared(s->a[0] + panel * G16_PANEL), b = ptx_shared(s->b[0]);
    gemm16_operands at;

    at.a = MN_A ? wgmma_descriptor_mn(a, G16_PANEL) : wgmma_descriptor(a);
    at.b = MN_B ? wgmma_descriptor_mn(b, G16_PANEL) : wgmma_descriptor(b);
    at.full = ptx_shared(&s->full[0]);
#pragma unroll
    for (int i = 0; i < G16_CLUSTER; i++)
        at.empty[i] = ptx_map(ptx_shared(&s->empty[0]), (uint32_t)i);
    return at;
}

/* The stages consumed so far; cooperative: whether the second consumer has been released. */
typedef struct gemm16_state {
    uint32_t n;
    bool released;
} gemm16_state;

/* A warp releases a stage in both CTAs. */
static __device__ __forceinline__ void gemm16_release(const gemm16_operands &at, uint32_t stage)
{
    __syncwarp(); /* orders the completion of the warp's wgmma before the arrival of one lane */
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < G16_CLUSTER; i++)
            pipeline_release_cluster(at.empty[i], stage);
    }
}

/* Named barriers. STAGGER: the second cooperative consumer may start. ORDER + consumer: that consumer may issue its
 * main loop (pingpong). */
enum { G16_BARRIER_STAGGER = 1, G16_BARRIER_ORDER = 9 };

/* Cooperative: the second consumer waits here once, if there is any work. */
static __device__ __forceinline__ void gemm16_stagger_wait(int consumer, bool any)
{
    if (consumer == 1 && any)
        ptx_barrier_sync(G16_BARRIER_STAGGER, 256);
}

static __device__ __forceinline__ void gemm16_stagger_release(int consumer, gemm16_state *state)
{
    if (consumer == 0 && !state->released) {
        ptx_barrier_arrive(G16_BARRIER_STAGGER, 256);
        state->released = true;
    }
}

/* Pingpong: the consumers alternate over all tiles of the cluster, across work tiles, so that one's epilogue always
 * overlaps the other's main loop. tiles: of the cluster before this work tile. Returns the first tile of the work tile
 * that is this consumer's; every second one from there on is too. */
static __device__ __forceinline__ int gemm16_first_own(uint32_t tiles, int consumer)
{
    return (int)((tiles + (uint32_t)consumer) & 1);
}

/* The second consumer's arrival lets the first one begin. */
static __device__ __forceinline__ void gemm16_order_begin(int consumer)
{
    __syncwarp(); /* named barriers are .aligned: here and below, diverged lanes must reconverge first */
    if (consumer == 1)
        ptx_barrier_arrive(G16_BARRIER_ORDER, 256);
}

/* The last arrival belongs to no tile; the consumer that would have had the next tile receives it. */
static __device__ __forceinline__ void gemm16_order_end(int consumer, uint32_t tiles)
{
    __syncwarp();
    if (gemm16_first_own(tiles, consumer) == 0)
        ptx_barrier_sync(G16_BARRIER_ORDER + consumer, 256);
}

/* The main loop: k_blocks, at least one, into acc: the tile's first 64 rows, the next 64, ... (No blocks would have to
 * clear acc, with 128 selects before every tile.) The wgmma of one stage stay in flight while those of the next are
 * issued; a stage is released when the wgmma of the one after it are in flight. WIDTH: columns of one wgmma.
 *
 * Pingpong: a consumer waits for its order barrier, on which the other one arrives when it has issued its last wgmma.
 * Before that the other consumer's stages have not all been filled, and a wait for the parity of a later phase of the
 * same stage would succeed too early. */
template <int BF16, int MN_A, int MN_B, class SMEM, int WIDTH = SMEM::BLOCK_N>
static __device__ __forceinline__ void gemm16_mainloop(const gemm16_operands &at, int k_blocks, int consumer,
                                                       gemm16_state *state, float *acc)
{
    uint32_t before = 0;

    if (SMEM::PINGPONG) {
        __syncwarp();
        ptx_barrier_sync(G16_BARRIER_ORDER + consumer, 256);
    }
    for (int kb = 0; kb < k_blocks; kb++) {
        const pipeline_state p = pipeline_at<SMEM::STAGES>(state->n);
        const uint64_t a = at.a + p.stage * (SMEM::BLOCK_M * G16_BLOCK_K * 2 / 16),
                       b = at.b + p.stage * (SMEM::BLOCK_N * G16_BLOCK_K * 2 / 16);

        pipeline_wait(at.full, p);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < G16_BLOCK_K / 16; k++)
#pragma unroll
            for (int i = 0; i < SMEM::ROWS / 64 * (SMEM::BLOCK_N / WIDTH); i++)
                wgmma_16bit<WIDTH, BF16, MN_A, MN_B>(
                    acc + i * (WIDTH / 2), a + i / (SMEM::BLOCK_N / WIDTH) * (G16_PANEL / 16) + k * (MN_A ? 128 : 2),
                    b + i % (SMEM::BLOCK_N / WIDTH) * (WIDTH * G16_BLOCK_K * 2 / 16) + k * (MN_B ? 128 : 2),
                    kb > 0 || k > 0);
        wgmma_commit();
        if (kb > 0) {
            wgmma_wait_before();
            gemm16_release(at, before);
        }
        before = p.stage;
        if (++state->n == G16_STAGGER && !SMEM::PINGPONG)
            gemm16_stagger_release(consumer, state);
    }
    if (SMEM::PINGPONG) {
        __syncwarp();
        ptx_barrier_arrive(G16_BARRIER_ORDER + 1 - consumer, 256);
    }
    wgmma_wait();
    wgmma_pin<SMEM::ROWS / 64 * (SMEM::BLOCK_N / 2)>(acc);
    gemm16_release(at, before);
    if (!SMEM::PINGPONG)
        gemm16_stagger_release(consumer, state);
}

#endif

#endif
