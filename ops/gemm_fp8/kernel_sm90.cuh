/* kernel_sm90.cuh: the device side of gemm_fp8 for more than 64 rows on Hopper: TMA, wgmma, warp-specialised,
 * persistent.
 *
 *     fin = fma(rn(sA sB), P_b, fin) over the 128-blocks b of k, ascending; P_b by four wgmma of k 32
 *     (with a scale for each column of D: scales_1d1d_sm90.cuh)
 *
 * A cluster of CM x CN CTAs takes CM x CN neighbouring tiles. Tiles of one row need the same part of A: each of their
 * CTAs loads 1 / CN of it and multicasts it to the others; likewise 1 / CM of B. In a CTA one thread loads, a warp
 * brings the scales of B that are BLK128, and WGS warpgroups of one or two slices of 64 rows each multiply: while one
 * promotes its accumulators to `fin` (one fma an element, two where both operands are ROW128), the matrix instructions
 * of the others run. full[s]: stage s has its codes and scales (orders those writes before wgmma's and the warps'
 * reads). ready[s]: its scales of B are spread. empty[s]: the multiplying warps of every CTA that this one writes to
 * have finished with stage s (orders their reads before the next writes). */
#ifndef RIDGE_GEMM_FP8_SM90_CUH
#define RIDGE_GEMM_FP8_SM90_CUH

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/sm90/wgmma_narrow.cuh"

enum { BK = 128, GROUP_ROWS = 8, PIECES = 16 };
/* TENSOR and ROW: one product at the end. Else every block: the scales of B are BLK128, or ROW128 (with A's either). */
enum { SCALE_LAST = 0, SCALE_BLOCK, SCALE_COLUMN };

/* Kernels by what they write: bf16 or f32 at aligned addresses, or anything. The code of a tile's end runs
 * once a tile, so that it comes from far caches: as little of it as possible. */
enum { OUT_BF16 = 0, OUT_F32, OUT_ANY };

/* Where a cluster's part of the shared items begins. */
typedef struct gemm_cut {
    int item, block;
} gemm_cut;

enum { CUTS = 81 }; /* of 160 SMs in pairs */

typedef struct gemm_args {
    CUtensorMap a, b, d, map_scale_a, map_scale_b;
    const float *scale_a, *scale_b;
    int64_t ld_a, ld_b; /* of the scale tables; 0: one scale for the tensor */
    char *out;
    const void *bias;
    int64_t stride;       /* of D, elements */
    int m, n, blocks;     /* blocks of k */
    int items_m, items_n; /* clusters of tiles */
    int last;             /* row at which a tile begins at the latest */
    int slice;            /* rows of A that a CTA loads of a tile, when T::FEW */
    int groups;           /* warpgroups that have rows, when T::FEW */
    int plain;            /* items that one cluster does; the others are shared: */
    gemm_cut cut[CUTS];   /* cluster c from cut[c] to cut[c + 1], items counted from `plain` */
    float *partial;       /* of items that two clusters share, NULL: none */
    uint64_t *flag, nonce;
    uint64_t *progress; /* round of plain items that each cluster is in, or another launch's */
    int every;          /* rounds after which clusters wait for each other, 0: never */
    int block_a;        /* the scales of A are BLK128 */
    int scale_tma;      /* scales by TMA, else by a warp, 4 bytes at a time */
    int dtype, aligned, accumulate, bias_f32;
    /* when T::FEW: */
    int high, stages;   /* rows of a tile, stages that they leave room for */
    int from;           /* where the scales of A begin in their map, see gemm_flat */
    CUtensorMap d_last; /* d for the rows of the last warpgroup */
} gemm_args;

/* Blocks begin .. end - 1 of the tile at row, col. end = 0: there is no more. */
typedef struct gemm_piece {
    int row, col, begin, end;
} gemm_piece;

/* Whether a tile's columns can lie in two blocks of 128, and so have two scales in BLK128. Every GRAIN of them, counted
 * from the tile's first, lie in one. A warp reads the scales of CHUNK blocks of k at once. */
template <int BN> struct gemm_span {
    enum { TWO = BN % 128 && 128 % BN, GRAIN = TWO ? 32 : BN, CHUNK = TWO ? 16 : 32 };
    static_assert(!TWO || (BN % GRAIN == 0 && BN <= 128 + GRAIN), "two blocks at most");
};

/* Bytes of the ring of A and B when T::FEW, where a stage has as many rows as the tiles of this call and there are as
 * many stages as fit: all that the rest, less than 1 KB besides what is counted here, leaves. */
template <class T, int MODE> struct gemm_room {
    enum {
        PITCH = T::BM + (T::FEW && MODE == SCALE_BLOCK ? 32 : 0), /* of the scales of A */
        SCALES = MODE == SCALE_LAST
                     ? 0
                     : PITCH * 4 + (MODE == SCALE_COLUMN ? (2 * T::BN + 16) * 4 : 4 + 4 * gemm_span<T::BN>::TWO),
        RING = (232448 - T::BM * T::BN * 2 - T::MOST * SCALES - T::WGS * T::BN * 8 - 1024) / 1024 * 1024
    };
};

template <class T, int MODE> struct gemm_memory {
    static_assert(T::MOST + 2 <= PIECES, "pieces that the stages can belong to, the one being read, the next");
    /* T::FEW: one ring, stages of A, then those of B */
    uint8_t a[T::FEW ? 1 : T::MOST][T::FEW ? gemm_room<T, MODE>::RING - 1024 : T::BM * BK];
    uint8_t b[T::FEW ? 1 : T::MOST][T::FEW ? 1024 : T::BN * BK];
    /* panels of 64 rows x 128 bytes of results, or 64 bytes where BN is no multiple of 64 columns of 16 bits */
    uint8_t d[(1 + T::WIDE) * T::BM * T::BN * 2];
    float scale_a[MODE == SCALE_LAST && T::FEW ? 1 : T::MOST]
                 [MODE == SCALE_LAST && T::FEW ? 32 : gemm_room<T, MODE>::PITCH];
    float scale_b[MODE == SCALE_BLOCK            ? T::FEW ? 16 : 8
                  : MODE == SCALE_LAST && T::FEW ? T::WGS
                                                 : T::MOST]
                 [MODE == SCALE_BLOCK ? 1 + (int)gemm_span<T::BN>::TWO : (int)T::BN]; /* 8: `bias` is read in pairs */
    /* rows of eight bf16; memcheck takes 96 for 3072 bytes, so that more must follow them */
    uint8_t cut_a[T::FACTOR ? T::MOST : 1][T::FACTOR ? T::BM * 16 : 16];
    uint8_t cut_b[T::FACTOR ? T::MOST : 1][T::FACTOR ? T::BN * 16 : 16];
    float spread[MODE == SCALE_COLUMN && !T::FACTOR ? T::MOST : 1][MODE == SCALE_COLUMN ? T::BN + 16 : 4];
    float bias[T::WGS][T::BN];
    uint64_t full[T::MOST], empty[T::MOST], ready[T::MOST], left[T::WGS];
    uint64_t added[T::WGS], stored[T::WGS]; /* T::WIDE: the panels have D; they have the results */
    gemm_piece piece[PIECES];               /* by number */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Addresses that a multiplying thread computes once: descriptors of its rows of A and of B in stage 0, full[0], and
 * empty[0] in the CTA that this lane gives stages back to. */
typedef struct gemm_places {
    uint32_t a, b, full, ready, empty; /* a, b: low words */
    int row;                           /* of A, in the tile */
    int turn, after;                   /* barriers: this warpgroup's turn, the next one's */
    uint32_t step;                     /* from a stage of A to the next, in low words, when T::FEW */
    int from, shift;                   /* how far the first block's scales of A begin late, and how much more each */
} gemm_places;

/* A position in the pipeline; when T::FEW, of how many stages, and how far this one's scales of A begin late. */
typedef struct gemm_ring {
    pipeline_state at;
    uint32_t stages;
    int late;
} gemm_ring;

template <int STAGES> static __device__ __forceinline__ void gemm_advance(gemm_ring *ring)
{
    pipeline_advance(&ring->at, STAGES ? STAGES : ring->stages);
}

/* With FEW the rows are shared out evenly to the tiles, which load only what they have, within 16 rows or 8, and
 * warpgroups without rows stay out: TMA takes its time over rows outside, and the tensor cores over zeros. */
template <class T> static __device__ __forceinline__ int gemm_high(const gemm_args &p)
{
    return T::FEW ? p.high : (int)T::BM;
}

/* Where the rows of the tile at `row` end. */
template <class T> static __device__ __forceinline__ int gemm_rows_end(const gemm_args &p, int row)
{
    return T::FEW ? min(p.m, row + p.high) : p.m;
}

template <class T> static __device__ __forceinline__ uint32_t gemm_stages(const gemm_args &p)
{
    return T::FEW ? (uint32_t)p.stages : (uint32_t)T::MOST;
}

#include "scheduler_sm90.cuh"

template <class T> static __device__ __forceinline__ int gemm_slice(const gemm_args &p)
{
    return T::FEW ? p.slice : T::BM / T::CN;
}

template <class T> static __device__ __forceinline__ int gemm_groups(const gemm_args &p)
{
    return T::FEW ? p.groups : (int)T::WGS;
}

/* The scales of A as one line, so that they need no alignment: TMA begins at a multiple of 16 bytes and the reader up
 * to three elements later. */
template <class T, int MODE> static __device__ __forceinline__ constexpr bool gemm_flat(void)
{
    return T::FEW && MODE == SCALE_BLOCK;
}

/* One thread: the codes, and where TMA can the scales, of every stage; else gemm_load_scales brings those. Few
 * instructions between the end of a wait and the loads: a stage that comes back is filled so much sooner. */
template <class T, int MODE> static __device__ void gemm_load(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    const int rank = (int)ptx_cluster_rank(), rank_m = rank % T::CM, rank_n = rank / T::CM;
    const int slice = gemm_slice<T>(p), rows = rank_n * slice, cols = rank_m * (T::BN / T::CM);
    const uint32_t bytes =
        slice * T::CN * BK + T::BN * BK +
        (p.scale_tma ? (slice * T::CN + (gemm_flat<T, MODE>() ? 4 : 0)) * 4 + (MODE == SCALE_COLUMN ? T::BN * 4 : 0)
                     : 0);
    const uint16_t same_row = (uint16_t)((T::CN == 1 ? 1 : 1 | 1 << T::CM) << rank_m);
    const uint16_t same_col = (uint16_t)(((1 << T::CM) - 1) << rank_n * T::CM);
    const uint32_t step_a = gemm_high<T>(p) * BK, to_a = ptx_shared(s->a[0]) + rows * BK;
    const uint32_t to_b = ptx_shared(T::FEW ? s->a[0] + p.stages * p.high * BK : s->b[0]) + cols * BK;
    gemm_piece piece = s->piece[0], ahead = s->piece[1], later = {};
    gemm_ring ring = {PIPELINE_PRODUCER, gemm_stages<T>(p)};

    ptx_grid_wait();
    for (int number = 1; piece.end; number++) {
        const int row = piece.row, col = piece.col;

        s->piece[number % PIECES] = ahead; /* the next piece; arriving at full publishes it */
        for (int kb = piece.begin; kb < piece.end; kb++) {
            const uint32_t stage = ring.at.stage, full = ptx_shared(&s->full[0]) + stage * 8;
            const uint32_t a = to_a + stage * step_a, b = to_b + stage * (T::BN * BK);

            pipeline_acquire(ptx_shared(&s->empty[0]), ring.at);
            if (T::CN == 1)
                ptx_tma_load_2d(a, &p.a, kb * BK, row, full);
            else
                ptx_tma_load_2d_multicast(a, &p.a, kb * BK, row + rows, full, same_row);
            if (T::CM == 1)
                ptx_tma_load_2d(b, &p.b, kb * BK, col, full);
            else
                ptx_tma_load_2d_multicast(b, &p.b, kb * BK, col + cols, full, same_col);
            if (MODE != SCALE_LAST && p.scale_tma)
                ptx_tma_load_2d(ptx_shared(s->scale_a[0]) + stage * (gemm_room<T, MODE>::PITCH * 4), &p.map_scale_a,
                                gemm_flat<T, MODE>() ? (p.from + row + kb * (int)p.ld_a) & ~3 : row,
                                gemm_flat<T, MODE>() ? 0 : kb, full);
            if (MODE == SCALE_COLUMN && p.scale_tma)
                ptx_tma_load_2d(ptx_shared(s->scale_b[0]) + stage * (T::BN * 4), &p.map_scale_b, col, kb, full);
            ptx_mbarrier_expect(full, bytes);
            gemm_advance<T::STAGES>(&ring);
            if (kb == piece.begin) /* many divisions: while the stages are full */
                later = gemm_piece_at<T>(p, number + 1);
        }
        piece = ahead;
        ahead = later;
    }
    /* Drain: other CTAs of the cluster arrive at this one's `empty` until then, so it must not exit before. */
    for (uint32_t i = 0; i < gemm_stages<T>(p); i++) {
        pipeline_acquire(ptx_shared(&s->empty[0]), ring.at);
        gemm_advance<T::STAGES>(&ring);
    }
}

#include "scales_sm90.cuh"

/* Scales of a block: of this thread's two rows; in SCALE_BLOCK their products with the scale of B. */
typedef struct gemm_scales {
    float upper, lower;
} gemm_scales;

/* fin = fma(scale, acc, fin); from column `border` of the tile on with the scales of the second block of columns. */
template <int BN>
static __device__ __forceinline__ void gemm_promote_block(const gemm_scales &v, const gemm_scales &second, int border,
                                                          const float *acc, float *fin)
{
    enum { GRAIN = gemm_span<BN>::GRAIN };

#pragma unroll
    for (int col = 0; col < BN; col += GRAIN) {
        const bool beyond = col >= 128 || (col > 0 && col >= border);
        const float upper = beyond ? second.upper : v.upper, lower = beyond ? second.lower : v.lower;

#pragma unroll
        for (int i = col / 2; i < (col + GRAIN) / 2; i++)
            fin[i] = __fmaf_rn(i & 2 ? lower : upper, acc[i], fin[i]);
    }
}

#include "scales_1d1d_sm90.cuh"

template <int N, int FORMATS>
static __device__ __forceinline__ void gemm_wgmma(float *acc, uint64_t a, uint64_t b, int keep)
{
    if constexpr (N != 128)
        wgmma_fp8_narrow<N, FORMATS>(acc, a, b, keep);
    else
        wgmma_fp8<N, FORMATS>(acc, a, b, keep);
}

/* A slice of 64 rows, one block of k: four matrix instructions, then the promotion. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_step(gemm_memory<T, MODE> *s, const gemm_places &at, uint32_t stage,
                                                 int slice, uint32_t a, uint32_t b, float2 column, int border,
                                                 uint32_t phase, int late, float *fin)
{
    float acc[T::BN / 2];
    const float *const spread = s->spread[stage] + (MODE == SCALE_COLUMN ? threadIdx.x % 4 * gemm_lane_pitch<T>() : 0);
    float2 first = {};
    gemm_scales v, second = {};

    if (MODE != SCALE_LAST) {
        v.upper = s->scale_a[stage][at.row + slice * 64 + late];
        v.lower = s->scale_a[stage][at.row + slice * 64 + late + 8];
    }
    if (MODE == SCALE_BLOCK) {
        second = {v.upper * column.y, v.lower * column.y};
        v.upper *= column.x;
        v.lower *= column.x;
    }
    if (MODE == SCALE_COLUMN)
        ptx_barrier_sync(at.turn, 256); /* our turn at the tensor cores */
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        gemm_wgmma<T::BN, FORMATS>(acc, wgmma_descriptor_of(a + 2 * k), wgmma_descriptor_of(b + 2 * k), k > 0);
    wgmma_commit();
    if (MODE == SCALE_COLUMN)
        ptx_barrier_arrive(at.after, 256); /* the next warpgroup's turn */
    if (MODE == SCALE_COLUMN) {
        ptx_mbarrier_wait(ptx_shared(&s->ready[stage]), phase);
        first = *(const float2 *)spread;
    }
    wgmma_wait();
    if (MODE == SCALE_COLUMN)
        gemm_promote_column<T::BN>(v, spread, first, acc, fin);
    if (MODE != SCALE_LAST && slice == T::SLICES - 1)
        __syncwarp(); /* the warp has read its scales */
    if (slice == T::SLICES - 1 && threadIdx.x % 32 < T::CM + T::CN - 1)
        ptx_mbarrier_arrive_cluster(MODE == SCALE_COLUMN /* no register for its place */
                                        ? ptx_map(ptx_shared(&s->empty[stage]), threadIdx.x % 32)
                                        : at.empty + stage * 8); /* the stage goes back */
    if (MODE == SCALE_BLOCK)
        gemm_promote_block<T::BN>(v, second, border, acc, fin);
    if (MODE == SCALE_LAST)
#pragma unroll
        for (int i = 0; i < T::BN / 2; i++)
            fin[i] += acc[i];
}

/* One block of k. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_block(gemm_memory<T, MODE> *s, const gemm_places &at, gemm_ring *ring,
                                                  int border, float *fin)
{
    const uint32_t stage = ring->at.stage, a = at.a + stage * (T::FEW ? at.step : T::BM * BK / 16);
    const uint32_t b = at.b + stage * (T::BN * BK / 16);
    float2 column = {};

    pipeline_wait(at.full, ring->at);
    if (MODE == SCALE_BLOCK)
        column = {s->scale_b[stage][0], s->scale_b[stage][(int)gemm_span<T::BN>::TWO]};
#pragma unroll
    for (int slice = 0; slice < T::SLICES; slice++)
        gemm_step<T, MODE, FORMATS>(s, at, stage, slice, a + slice * (64 * BK / 16), b, column, border, ring->at.phase,
                                    gemm_flat<T, MODE>() ? ring->late : 0, fin + slice * (T::BN / 2));
    ring->late = (ring->late + at.shift) & 3;
    gemm_advance<T::STAGES>(ring);
}

/* A number that all lanes have, its origin hidden from the compiler; SCALE_COLUMN: in a uniform register, since it has
 * no other to spare. */
template <int MODE> static __device__ __forceinline__ uint32_t gemm_hide(uint32_t x)
{
    return MODE == SCALE_COLUMN ? __reduce_max_sync(~0u, x) : __shfl_sync(~0u, x, 0);
}

/* The next piece. The reductions tell the compiler what it cannot see: all lanes have the same. Loops that these values
 * bound then keep their state in uniform registers. */
static __device__ __forceinline__ gemm_piece gemm_next_piece(const gemm_piece *from)
{
    gemm_piece piece = *from;

    piece.row = __reduce_max_sync(~0u, piece.row);
    piece.col = __reduce_max_sync(~0u, piece.col);
    piece.begin = __reduce_max_sync(~0u, piece.begin);
    piece.end = __reduce_max_sync(~0u, piece.end);
    return piece;
}

/* The blocks of a piece into fin. */
template <class T, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_multiply(gemm_memory<T, MODE> *s, const gemm_places &at, gemm_ring *ring,
                                                     const gemm_piece &piece, float *fin)
{
    ring->late = at.from;
#pragma unroll(MODE == SCALE_COLUMN ? 1 : (MODE == SCALE_BLOCK && !T::FEW ? 8 : 4) / T::SLICES)
    for (int kb = piece.begin; kb < piece.end; kb++)
        gemm_block<T, MODE, FORMATS>(s, at, ring, 128 - piece.col % 128, fin);
}

#include "scale_outer_sm90.cuh"
#include "mainloop_single_sm90.cuh"
#include "epilogue_sm90.cuh"

#endif

template <class T, int MODE, int FORMATS, int OUT>
static __global__ void __launch_bounds__(T::WGS * 128 + 128, 1) gemm_sm90(const __grid_constant__ gemm_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(sizeof(gemm_memory<T, MODE>) <= 232448, "what a block can have");
    extern __shared__ __align__(1024) uint8_t shared[];
    gemm_memory<T, MODE> *s = (gemm_memory<T, MODE> *)shared;
    const int rank = (int)ptx_cluster_rank();

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < gemm_stages<T>(p); i++) {
            ptx_mbarrier_init(ptx_shared(&s->full[i]),
                              (MODE == SCALE_LAST || p.scale_tma ? 1 : 33) + (MODE == SCALE_BLOCK));
            ptx_mbarrier_init(ptx_shared(&s->ready[i]), !T::FACTOR ? 32 : p.scale_tma ? 96 : 64);
            ptx_mbarrier_init(ptx_shared(&s->empty[i]), 4 * gemm_groups<T>(p) * (T::CM + T::CN - 1));
        }
        for (int i = 0; i < T::WGS; i++) {
            ptx_mbarrier_init(ptx_shared(&s->left[i]), 128);
            ptx_mbarrier_init(ptx_shared(&s->added[i]), 1);
            ptx_mbarrier_init(ptx_shared(&s->stored[i]), 128);
        }
        ptx_mbarrier_fence_init();
        s->piece[0] = gemm_piece_at<T>(p, 0);
        s->piece[1] = gemm_piece_at<T>(p, 1);
    }
    if (threadIdx.x == 32) {
        ptx_prefetch_map(&p.a);
        ptx_prefetch_map(&p.b);
        if (MODE != SCALE_LAST && p.scale_tma)
            ptx_prefetch_map(&p.map_scale_a);
        if (MODE == SCALE_COLUMN && p.scale_tma)
            ptx_prefetch_map(&p.map_scale_b);
    }
    __syncwarp(); /* the barrier is an .aligned one: lanes that went their own ways must be together */
    ptx_cluster_arrive_relaxed();
    ptx_cluster_wait(); /* the mbarriers of all CTAs before anybody uses them */
    __syncthreads();    /* the first pieces */
    ptx_grid_release(); /* whoever touches global memory first waits for the kernels before: as late as it can */
    if (threadIdx.x < 128) {
        if (T::WGS == 2)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        else if (T::WGS == 3)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

        if (warp == 0) {
            if (ptx_elect())
                gemm_load<T, MODE>(p, s);
        } else if (MODE != SCALE_LAST && !p.scale_tma && warp == 1)
            gemm_load_scales<T, MODE>(p, s);
        else if (T::FACTOR && p.scale_tma)
            gemm_cut_scales<T, MODE, T::FACTOR ? 96 : 128>(s);
        else if (T::FACTOR)
            gemm_cut_scales<T, MODE, T::FACTOR ? 64 : 128>(s);
        else if (threadIdx.x == (T::WIDE ? 32 : 64)) /* WIDE shares nothing where warp 1 loads scales */
            gemm_publish<T>(p, s->left);
        else if (T::WIDE && threadIdx.x == 64)
            gemm_carry<T, MODE>(p, s);
        else if constexpr (MODE == SCALE_BLOCK) {
            if (warp == 3)
                gemm_load_column<T>(p, s);
        } else if (MODE == SCALE_COLUMN && threadIdx.x >= 96)
            gemm_spread_scales<T, MODE>(p, s);
    } else {
        enum { ROWS = 64 * T::SLICES, HALF = T::BN / 2 };
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1; /* uniform registers */
        const int thread = threadIdx.x % 128, local = group * ROWS + thread / 32 * 16 + thread % 32 / 4;
        /* stages go back to the CTAs of this one's column, lanes 0 .. CM - 1, then to the others of its row */
        const int lane = thread % 32, peer = lane < T::CM               ? rank / T::CM * T::CM + lane
                                             : lane < T::CM + T::CN - 1 ? rank ^ T::CM
                                                                        : rank;
        /* through a shuffle or a reduction: else the compiler computes the descriptors anew for every block of k */
        const gemm_places at = {gemm_hide<MODE>((uint32_t)wgmma_descriptor(ptx_shared(s->a[0] + group * ROWS * BK))),
                                gemm_hide<MODE>((uint32_t)wgmma_descriptor(
                                    ptx_shared(T::FEW ? s->a[0] + p.stages * p.high * BK : s->b[0]))),
                                ptx_shared(&s->full[0]),
                                ptx_shared(&s->ready[0]),
                                ptx_map(ptx_shared(&s->empty[0]), (uint32_t)peer),
                                local,
                                1 + group,
                                group + 1 == gemm_groups<T>(p) ? 1 : 2 + group,
                                (uint32_t)gemm_high<T>(p) * (BK / 16),
                                p.scale_tma ? p.from : 0,
                                p.scale_tma ? (int)(p.ld_a & 3) : 0};
        const gemm_cuts cuts = {gemm_hide<MODE>(wgmma_low_rows16(ptx_shared(s->cut_a[0]) + group * ROWS * 16)),
                                gemm_hide<MODE>(wgmma_low_rows16(ptx_shared(s->cut_b[0])))};
        gemm_ring ring = {PIPELINE_CONSUMER, gemm_stages<T>(p)};
        gemm_piece piece;
        int number = 0, done = 0; /* done: parity of the tiles that are finished */

        if (T::WGS == 2)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else if (T::WGS == 3)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
        if (MODE == SCALE_COLUMN && !T::FACTOR && group == gemm_groups<T>(p) - 1)
            ptx_barrier_arrive(1, 256); /* the first warpgroup begins */
        ptx_grid_wait();
        piece = gemm_next_piece(&s->piece[0]);
        if (T::FEW && group >= p.groups)
            piece.end = 0; /* no rows; nor may it wait: the ring does not wait for it */
        if (piece.end)     /* without this test ptxas keeps the loops' state in vector registers */
            ptx_mbarrier_wait(at.full, 0);
        while (piece.end) {
            const int row = piece.row, col = piece.col, end = piece.end, last = gemm_rows_end<T>(p, piece.row);
            float bias = MODE == SCALE_COLUMN ? 0.0f : gemm_bias_of<OUT>(p, col + thread);
            float fin[T::SLICES * HALF];

            gemm_resume<T>(p, piece.begin, group, fin);
            if constexpr (T::FACTOR)
                gemm_multiply_factor<T, MODE, FORMATS>(s, at, cuts, &ring, piece, fin);
            else if constexpr (T::WGS == 1)
                gemm_multiply_two<T, MODE, FORMATS>(s, at, &ring, piece, fin);
            else
                gemm_multiply<T, MODE, FORMATS>(s, at, &ring, piece, fin);
            if (MODE == SCALE_COLUMN) /* no register for it before */
                bias = gemm_bias_of<OUT>(p, col + thread);
            piece = gemm_next_piece(&s->piece[++number % PIECES]);
            if (end < p.blocks) {
                gemm_suspend<T>(p, &s->left[group], group, fin);
                if (T::FACTOR)
                    gemm_publish_own<T>(p, group);
                continue;
            }
#pragma unroll
            for (int slice = 0; slice < T::SLICES; slice++) {
                const int first_row = row + group * ROWS + slice * 64;
                float *part = fin + slice * HALF;

                if (MODE == SCALE_LAST)
                    gemm_scale_last<T, MODE>(p, s, group, local + slice * 64, row, col, part);
                if (OUT != OUT_ANY && p.bias)
                    gemm_add_bias<T, OUT>(p, s->bias[group], group, bias, col, part);
                if (OUT == OUT_BF16)
                    gemm_store_bf16<T, MODE>(p, s, group, slice, first_row, col, part);
                else if (OUT == OUT_F32)
                    gemm_store_f32<T, MODE>(p, s, group, slice, first_row, last, col, done, part);
                else if (p.dtype == RIDGE_BF16)
                    gemm_store<T, MODE, RIDGE_BF16>(p, s, group, slice, first_row, last, col, part);
                else if (p.dtype == RIDGE_F16)
                    gemm_store<T, MODE, RIDGE_F16>(p, s, group, slice, first_row, last, col, part);
                else
                    gemm_store<T, MODE, RIDGE_F32>(p, s, group, slice, first_row, last, col, part);
            }
            done ^= 1;
        }
        if (thread == 0)
            ptx_tma_wait_read();
    }
#endif
}

#endif
