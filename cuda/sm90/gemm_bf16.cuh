/* gemm_bf16.cuh: the product of 16-bit matrices on Hopper that ops/linear_ce/logits_coop_sm90.cu,
 * ops/linear_ce/logits_pingpong_sm90.cu and ops/linear_ce/grads_sm90.cu put their epilogues on: TMA, wgmma,
 * warp-specialised, persistent, clusters of two.
 *
 *     D [m, n] = A [m, k] B [n, k]^T in f32 registers; either factor may be contiguous along k or along m (n)
 *
 * A cluster takes a pair of row tiles of one column tile: each CTA loads its own 128 rows of A and half of the rows of
 * B, which it multicasts to both (tall tiles: a pair of column tiles, and half of the rows of A). In a CTA one thread
 * loads and two warpgroups multiply and run the epilogues, in one of two ways:
 *
 *     together  a tile of 128 x 256, 64 rows each; the second warpgroup begins a few stages late, so that the epilogue
 *               of one runs beside the matrix instructions of the other
 *     in turn   a tile of their own each, 128 x 192, 192 x 128 or 128 x 128: the end of one's tile runs beside the
 *               matrix instructions of the other's
 *
 * full[s]: stage s has landed (orders TMA's writes before wgmma's reads). empty[s]: all warps of the cluster that
 * multiply it, 16 or 8, have finished with stage s (orders their reads before the next writes of either CTA). */
#ifndef RIDGE_GEMM16_SM90_CUH
#define RIDGE_GEMM16_SM90_CUH

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "wgmma.cuh"

enum {
    G16_CLUSTER = 2,
    G16_M = 128,
    G16_N = 256,      /* together */
    G16_TURN_N = 192, /* in turn */
    G16_TALL_N = 128, /* in turn, of 128 or 192 rows */
    G16_K = 64,
    G16_STAGES = 4,
    G16_THREADS = 384,
    G16_PAIRS = 16 / G16_CLUSTER,
    G16_SHARE = G16_N / G16_CLUSTER,
    G16_PANEL = 64 * 128,
    G16_STAGGER = 3 /* stages by which the second warpgroup begins late */
};

/* Loads. a: where a coordinate of A (of its rows, or along k) lies below `split` the first map has it, else the second,
 * from 0 on; and from the other coordinate `tail` on the third has it, whatever `split` says, from `more` on the
 * fourth. Boxes: where k is contiguous 64 of it, by all rows that a CTA loads of the factor; where it is not 64 rows,
 * by 64 of k, or 32 (gemm16_load_half). */
typedef struct gemm16_maps {
    CUtensorMap a[4], b;
    int split_m, split_k, tail_m, tail_k, more_m, more_k; /* INT32_MAX = never */
} gemm16_maps;

/* What a launch has to do; some of it is known on the device alone. */
typedef struct gemm16_work {
    int m, n, blocks;                               /* blocks of k */
    int pairs, height, width, tiles_n, items;       /* an item: two times height rows, width columns */
    int pieces, piece;                              /* of k, one after another; blocks of one */
    int first_m;                                    /* added to the rows of A that are loaded */
    int pick;                                       /* of a[], where nothing is split */
    int bundle, last;                               /* row-tile pairs of a bundle, of the last one */
    uint32_t by_piece, by_bundle, by_pair, by_last; /* reciprocals for gemm16_locate */
} gemm16_work;

/* M, N: rows and columns of a tile; S: stages; BYTES: of a stage. */
typedef struct gemm16_memory {
    enum { M = G16_M, N = G16_N, S = G16_STAGES, BYTES = (M + N) * G16_K * 2, SAME_ROWS = 0 };
    uint8_t a[G16_STAGES][G16_M * G16_K * 2];
    uint8_t b[G16_STAGES][G16_N * G16_K * 2];
    uint8_t d[2][2][G16_PANEL]; /* by warpgroup: two panels of results on their way out */
    float column[2][G16_N];     /* by warpgroup: numbers that an epilogue needs of each column */
    uint64_t full[G16_STAGES], empty[G16_STAGES];
} gemm16_memory;

typedef struct gemm16_in_turn {
    enum { M = G16_M, N = G16_TURN_N, S = 5, BYTES = (M + N) * G16_K * 2, SAME_ROWS = 0 };
    uint8_t a[S][M * G16_K * 2];
    uint8_t b[S][N * G16_K * 2];
    uint64_t full[S], empty[S];
} gemm16_in_turn;

/* Both CTAs have the same rows. */
template <int ROWS> struct gemm16_tall {
    enum { M = ROWS, N = G16_TALL_N, S = ROWS == 192 ? 5 : 6, BYTES = (M + N) * G16_K * 2, SAME_ROWS = 1 };
    uint8_t a[S][M * G16_K * 2];
    uint8_t b[S][N * G16_K * 2];
    uint64_t full[S], empty[S];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Addresses that a multiplying warpgroup computes once: descriptors of its rows of A and of B in stage 0, full[0], and
 * empty[0] in both CTAs. */
typedef struct gemm16_places {
    uint64_t a, b;
    uint32_t full, empty[G16_CLUSTER];
} gemm16_places;

/* Where a warpgroup stands: stages consumed so far, and whether the second one has been let go. */
typedef struct gemm16_turn {
    uint32_t n;
    bool handed;
} gemm16_turn;

/* n / d and n % d, where gemm16_reciprocal(d) is at hand: a tenth of the time of the division itself, which would stand
 * between every two tiles. */
static __device__ __forceinline__ uint32_t gemm16_reciprocal(int d)
{
    return 0xffffffffu / (uint32_t)max(d, 1);
}

static __device__ __forceinline__ int gemm16_divide(int n, int d, uint32_t reciprocal, int *rest)
{
    int q = (int)__umulhi((uint32_t)n, reciprocal); /* this or one less */

    *rest = n - q * d;
    if (*rest >= d) {
        *rest -= d;
        q++;
    }
    return q;
}

/* The rest of a plan that has m, n, height, width and bundle. */
static __device__ __forceinline__ void gemm16_plan(gemm16_work *w, int blocks, int pieces)
{
    w->blocks = blocks;
    w->pieces = pieces;
    w->piece = (blocks + pieces - 1) / pieces;
    w->pairs = (w->m + G16_CLUSTER * w->height - 1) / (G16_CLUSTER * w->height);
    w->tiles_n = (w->n + w->width - 1) / w->width;
    w->items = w->pairs * w->tiles_n * pieces;
    w->last = w->pairs - (w->pairs - 1) / w->bundle * w->bundle;
    w->by_piece = gemm16_reciprocal(w->pairs * w->tiles_n);
    w->by_bundle = gemm16_reciprocal(w->bundle * w->tiles_n);
    w->by_pair = gemm16_reciprocal(w->bundle);
    w->by_last = gemm16_reciprocal(w->last);
}

/* Work item `place` of one piece: bundles of row-tile pairs, column tiles within, so that what runs at once shares
 * L2. */
static __device__ __forceinline__ void gemm16_tile(const gemm16_work &w, int place, int *pair, int *tile_n)
{
    const int bundle = gemm16_divide(place, w.bundle * w.tiles_n, w.by_bundle, &place);
    const bool last = (bundle + 1) * w.bundle >= w.pairs;

    *tile_n = gemm16_divide(place, last ? w.last : w.bundle, last ? w.by_last : w.by_pair, &place);
    *pair = bundle * w.bundle + place;
}

/* The same of several: returns the piece of k. */
static __device__ __forceinline__ int gemm16_locate(const gemm16_work &w, int index, int *pair, int *tile_n)
{
    int place;
    const int piece = gemm16_divide(index, w.pairs * w.tiles_n, w.by_piece, &place);

    gemm16_tile(w, place, pair, tile_n);
    return piece;
}

/* The first of a piece's blocks of k, and how many. */
static __device__ __forceinline__ int gemm16_blocks(const gemm16_work &w, int piece, int *first)
{
    *first = piece * w.piece;
    return min(w.piece, w.blocks - *first);
}

/* N rows of this CTA's own: one box, or some of 64. */
template <int MN, int N>
static __device__ __forceinline__ void gemm16_load_own(const CUtensorMap *map, uint32_t to, int row, int k,
                                                       uint32_t full)
{
    if (!MN)
        ptx_tma_load_2d(to, map, k, row, full);
    else
#pragma unroll
        for (int i = 0; i < N / 64; i++)
            ptx_tma_load_2d(to + i * G16_PANEL, map, row + 64 * i, k, full);
}

/* This CTA's half of N rows that both need, to both. Boxes: all rows of it where k is contiguous, else 64 rows; and
 * there half of the block's k, where the half is no whole number of 64 rows. */
template <int MN, int N>
static __device__ __forceinline__ void gemm16_load_half(const CUtensorMap *map, uint32_t to, int row, int k,
                                                        uint32_t rank, uint32_t full)
{
    constexpr int SHARE = N / G16_CLUSTER, BOXES = SHARE / (G16_K / 2); /* half boxes */

    if constexpr (MN && SHARE % 64) {
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            const int at = (int)rank * BOXES + i;

            ptx_tma_load_2d_multicast(to + at * (G16_PANEL / 2), map, row + at / 2 * 64, k + at % 2 * (G16_K / 2), full,
                                      (1 << G16_CLUSTER) - 1);
        }
    } else {
        to += rank * (SHARE * G16_K * 2);
        row += (int)rank * SHARE;
#pragma unroll
        for (int i = 0; i < (MN ? SHARE / 64 : 1); i++)
            ptx_tma_load_2d_multicast(to + i * G16_PANEL, map, MN ? row + 64 * i : k, MN ? k : row, full,
                                      (1 << G16_CLUSTER) - 1);
    }
}

/* Loads blocks [first_block, end) of a tile, whose rows of A begin at `row` and whose rows of B at `col`; *n counts the
 * stages. Where items are taken from a counter, the next one is asked for shortly before the end: taken sooner, it
 * would wait here while other clusters have nothing left. */
enum { G16_ASK = 3 };
template <int MN_A, int MN_B, class MEMORY>
static __device__ __forceinline__ void gemm16_load_tile(const gemm16_maps &maps, int pick, MEMORY *s, int row, int col,
                                                        int first_block, int end, uint32_t *n,
                                                        unsigned long long *taken = NULL, int *next = NULL)
{
    const uint32_t rank = ptx_cluster_rank();
    const bool tail_m = row >= maps.tail_m, more_m = row >= maps.more_m;

    for (int kb = first_block; kb < end; kb++, ++*n) {
        const uint32_t stage = *n % MEMORY::S, full = ptx_shared(&s->full[stage]);
        const int k = kb * G16_K;
        const bool tail = tail_m || k >= maps.tail_k, later_m = !tail && row >= maps.split_m,
                   later_k = !tail && k >= maps.split_k;
        const bool more_k = k >= maps.more_k;
        const int which = more_m || more_k ? 3 : tail ? 2 : later_m || later_k ? 1 : pick;
        const int from_row = row - (more_m ? maps.more_m : tail_m ? maps.tail_m : later_m ? maps.split_m : 0);
        const int from_k = k - (more_k ? maps.more_k : k >= maps.tail_k ? maps.tail_k : later_k ? maps.split_k : 0);

        if (taken && kb == max(end - G16_ASK, first_block))
            *next = (int)atomicAdd(taken, 1ull);
        ptx_mbarrier_wait(ptx_shared(&s->empty[stage]), (*n / MEMORY::S & 1) ^ 1);
        ptx_mbarrier_expect(full, MEMORY::BYTES);
        const uint32_t a = ptx_shared(s->a[stage]), b = ptx_shared(s->b[stage]);

        if (MEMORY::SAME_ROWS) {
            gemm16_load_half<MN_A, MEMORY::M>(&maps.a[which], a, from_row, from_k, rank, full);
            gemm16_load_own<MN_B, MEMORY::N>(&maps.b, b, col, k, full);
        } else {
            gemm16_load_own<MN_A, MEMORY::M>(&maps.a[which], a, from_row, from_k, full);
            gemm16_load_half<MN_B, MEMORY::N>(&maps.b, b, col, k, rank, full);
        }
    }
}

/* All blocks of an item. */
template <int MN_A, int MN_B, class MEMORY>
static __device__ __forceinline__ void gemm16_load(const gemm16_maps &maps, const gemm16_work &w, MEMORY *s, int item,
                                                   uint32_t *n, unsigned long long *taken = NULL, int *next = NULL)
{
    static_assert(!MEMORY::SAME_ROWS, "each CTA has rows of its own");
    int pair, tile_n, first_block;
    const int blocks = gemm16_blocks(w, gemm16_locate(w, item, &pair, &tile_n), &first_block);
    const int row = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * MEMORY::M + w.first_m;

    gemm16_load_tile<MN_A, MN_B>(maps, w.pick, s, row, tile_n * MEMORY::N, first_block, first_block + blocks, n, taken,
                                 next);
}

static __device__ __forceinline__ void gemm16_give_back(const gemm16_places &at, uint32_t stage)
{
    __syncwarp(); /* the warp's matrix instructions are complete */
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < G16_CLUSTER; i++)
            ptx_mbarrier_arrive_cluster(at.empty[i] + stage * 8);
    }
}

/* The second warpgroup waits for its turn, if there is anything to do. */
static __device__ __forceinline__ void gemm16_stagger(int group, bool any)
{
    if (group == 1 && any)
        ptx_barrier_sync(1, 256);
}

/* All blocks of k, at least one, into acc. One stage's instructions stay in flight while the next one's are issued. (A
 * product of no blocks would have to clear acc, and that with 128 selects in front of every tile.) WIDTH: columns of an
 * instruction, 256 or 128. */
template <int BF16, int MN_A, int MN_B, int WIDTH = G16_N>
static __device__ __forceinline__ void gemm16_multiply(const gemm16_places &at, int blocks, int group,
                                                       gemm16_turn *turn, float *acc)
{
    uint32_t before = 0;

    for (int kb = 0; kb < blocks; kb++) {
        const uint32_t stage = turn->n % G16_STAGES;
        const uint64_t a = at.a + stage * (G16_M * G16_K * 2 / 16), b = at.b + stage * (G16_N * G16_K * 2 / 16);

        ptx_mbarrier_wait(at.full + stage * 8, turn->n / G16_STAGES & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < G16_K / 16; k++)
#pragma unroll
            for (int i = 0; i < G16_N / WIDTH; i++)
                wgmma_16bit<WIDTH, BF16, MN_A, MN_B>(acc + i * (WIDTH / 2), a + k * (MN_A ? 128 : 2),
                                                     b + i * (WIDTH * G16_K * 2 / 16) + k * (MN_B ? 128 : 2),
                                                     kb > 0 || k > 0);
        wgmma_commit();
        if (kb > 0) {
            wgmma_wait_before();
            gemm16_give_back(at, before);
        }
        before = stage;
        if (++turn->n == G16_STAGGER && group == 0 && !turn->handed) {
            ptx_barrier_arrive(1, 256);
            turn->handed = true;
        }
    }
    wgmma_wait();
    wgmma_pin<G16_N / 2>(acc);
    gemm16_give_back(at, before);
    if (group == 0 && !turn->handed) {
        ptx_barrier_arrive(1, 256);
        turn->handed = true;
    }
}

/* In turn: whose turn it is, by named barriers TURN + group, on which the other warpgroup arrives when it has issued
 * its tile's last instructions: until then its stages are not all there, and the parity of a later one would mislead.
 */
enum { G16_TURN = 9 };

/* A cluster's tiles go to its warpgroups in turn, whatever item they are of, and both know how many there were: nobody
 * is ever alone. tiles: before an item. Returns the first of the item's that is this warpgroup's: that and every other
 * one from there on. */
static __device__ __forceinline__ int gemm16_first_own(uint32_t tiles, int group)
{
    return (int)((tiles + (uint32_t)group) & 1);
}

/* The first warpgroup begins. */
static __device__ __forceinline__ void gemm16_begin_turns(int group)
{
    __syncwarp(); /* here and below: the barrier is an .aligned one, lanes that went their own ways must be together */
    if (group == 1)
        ptx_barrier_arrive(G16_TURN, 256);
}

/* The last arrival of all belongs to no tile. */
static __device__ __forceinline__ void gemm16_end_turns(int group, uint32_t tiles)
{
    __syncwarp();
    if (gemm16_first_own(tiles, group) == 0)
        ptx_barrier_sync(G16_TURN + group, 256);
}

/* All blocks of k of a tile, before which the cluster has n stages: acc of its first 64 rows, of the next ones, ... */
template <int BF16, int MN_A, int MN_B, class MEMORY>
static __device__ __forceinline__ void gemm16_multiply_turn(const gemm16_places &at, int blocks, uint32_t n, int group,
                                                            float *acc)
{
    uint32_t before = 0;

    __syncwarp();
    ptx_barrier_sync(G16_TURN + group, 256);
    for (int kb = 0; kb < blocks; kb++, n++) {
        const uint32_t stage = n % MEMORY::S;
        const uint64_t a = at.a + stage * (MEMORY::M * G16_K * 2 / 16), b = at.b + stage * (MEMORY::N * G16_K * 2 / 16);

        ptx_mbarrier_wait(at.full + stage * 8, n / MEMORY::S & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < G16_K / 16; k++)
#pragma unroll
            for (int i = 0; i < MEMORY::M / 64; i++)
                wgmma_16bit<MEMORY::N, BF16, MN_A, MN_B>(acc + i * (MEMORY::N / 2),
                                                         a + i * (G16_PANEL / 16) + k * (MN_A ? 128 : 2),
                                                         b + k * (MN_B ? 128 : 2), kb > 0 || k > 0);
        wgmma_commit();
        if (kb > 0) {
            wgmma_wait_before();
            gemm16_give_back(at, before);
        }
        before = stage;
    }
    __syncwarp();
    ptx_barrier_arrive(G16_TURN + 1 - group, 256);
    wgmma_wait();
    wgmma_pin<MEMORY::M / 64 * (MEMORY::N / 2)>(acc);
    gemm16_give_back(at, before);
}

/* By one thread, before gemm16_begin. warps: of a CTA, that multiply a stage. */
template <class MEMORY> static __device__ __forceinline__ void gemm16_ring_begin(MEMORY *s, int warps)
{
    for (int i = 0; i < MEMORY::S; i++) {
        ptx_mbarrier_init(ptx_shared(&s->full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->empty[i]), (uint32_t)(warps * G16_CLUSTER));
    }
}

/* Before anything else. */
template <class MEMORY> static __device__ __forceinline__ void gemm16_begin(MEMORY *s, int warps)
{
    if (threadIdx.x == 0) {
        gemm16_ring_begin(s, warps);
        ptx_mbarrier_fence_init();
    }
    ptx_cluster_sync(); /* the mbarriers of both CTAs before anybody uses them */
    ptx_grid_wait();
    ptx_grid_release();
}

/* group: the first of the 64 rows of A's tile that it begins with, by 64. */
template <int MN_A, int MN_B, class MEMORY>
static __device__ __forceinline__ gemm16_places gemm16_places_of(MEMORY *s, int group)
{
    const uint32_t a = ptx_shared(s->a[0] + group * G16_PANEL), b = ptx_shared(s->b[0]);
    gemm16_places at;

    at.a = MN_A ? wgmma_descriptor_mn(a, G16_PANEL) : wgmma_descriptor(a);
    at.b = MN_B ? wgmma_descriptor_mn(b, G16_PANEL) : wgmma_descriptor(b);
    at.full = ptx_shared(&s->full[0]);
#pragma unroll
    for (int i = 0; i < G16_CLUSTER; i++)
        at.empty[i] = ptx_map(ptx_shared(&s->empty[0]), (uint32_t)i);
    return at;
}

#endif

#endif
