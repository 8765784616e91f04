/* args_sm90.cuh: what the kernel of gemm_fp8 above 64 tokens on Hopper is given, and its shared memory. A tile is a
 * struct T of constants, tiles_sm90.cuh; kernel_sm90.cuh says how the kernel works. */
#ifndef RIDGE_GEMM_FP8_ARGS_SM90_CUH
#define RIDGE_GEMM_FP8_ARGS_SM90_CUH

#include <cuda.h>

#include "cuda/num.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/sm90/scheduler.cuh"
#include "cuda/sm90/wgmma_narrow.cuh"

enum { BK = 128, BUNDLE_M = 8 /* rows of cluster tiles that share L2 */, UNITS = 16 };

/* Scales, as DeepGEMM names them. 1D2D: those of B are 128 x 128 (RIDGE_SCALE_B_BLK128); 1D1D: those of B are by row
 * and 128 of k (ROW128); in both A's are by row, or 128 x 128, and 128 of k, and every block of k is promoted with its
 * scales. Epilogue: a scale a tensor or a row, once at the end. */
enum { SCALE_EPILOGUE = 0, SCALE_1D2D, SCALE_1D1D };

/* Kernels by what they write: bf16 or f32 at aligned addresses, or anything. The epilogue runs once a tile, so that
 * its instructions come from far caches: it is as short as it can be. */
enum { OUT_BF16 = 0, OUT_F32, OUT_ANY };

enum { MAX_CUTS = 81 }; /* of 160 SMs in clusters of two */

typedef struct gemm_args {
    CUtensorMap a, b, d, map_scale_a, map_scale_b;
    const float *scale_a, *scale_b;
    int64_t ld_a, ld_b; /* row strides of the scale tables; 0: one scale for the tensor */
    /* by 128 of k: the scale of row r in block kb is at (r >> shift_a) * row_a + kb * step_a; of B likewise */
    int64_t row_a, step_a, row_b, step_b;
    char *out;
    const void *bias;
    int64_t stride;             /* of D, elements */
    int m, n, k_blocks;         /* blocks of 128 of k */
    int tiles_m, tiles_n;       /* cluster tiles: the tiles of one cluster */
    int last_row;               /* no tile begins at a later row */
    int a_rows;                 /* T::SMALL_M: rows of A that a CTA loads of a tile */
    int warpgroups;             /* T::SMALL_M: consumer warpgroups that have rows */
    int data_parallel;          /* cluster tiles that one cluster computes; the others are split by stream-K: */
    stream_k_cut cut[MAX_CUTS]; /* cluster c from cut[c] to cut[c + 1] */
    float *partial;             /* accumulators of tiles that two clusters share; NULL: no stream-K */
    uint64_t *flag, nonce;      /* flag[i] == nonce: partial accumulator i has been saved */
    uint64_t *progress;         /* data-parallel round that each cluster is in, or another launch's */
    int sync_every;             /* rounds after which clusters wait for each other; 0: never */
    int shift_a, shift_b;
    int scale_tma; /* scales by TMA, else by a warp, 4 bytes at a time */
    int dtype, aligned, accumulate, bias_f32;
    /* T::SMALL_M: */
    int block_m, stages;   /* rows of a tile, and the stages that they leave room for */
    int scale_a_skew;      /* gemm_flat_scales: elements of map_scale_a before the first scale */
    CUtensorMap d_tail;    /* d with boxes of as many rows as the last warpgroup has */
    CUtensorMap a_part[2]; /* GROUPED_M: a with boxes for one and for two units of a tile's rows */
    /* T::GROUPED: m, rows of all groups of A, with GROUPED_K of one; n and tiles_n of one group; k_blocks of all */
    const void *offsets; /* in device memory, [groups + 1], of a masked call [groups] */
    int wide, groups;    /* wide: offsets are 64-bit */
    int scale_step;      /* of the scales of B, from a group to the next: rows of their table, or scales */
    int masked;          /* rows of a group of A and D of which the first offsets[group] count; 0: groups follow each
                            other */
    uint32_t by_bundle, by_rows[BUNDLE_M + 1]; /* scheduler_reciprocal of a bundle's tiles, and of 1 .. BUNDLE_M */
} gemm_args;

/* T::GROUPED: D of each group, see include/ridge.h. */
enum { GROUPED_NO = 0, GROUPED_M, GROUPED_K };
enum { GROUPED_TABLE = 256 }; /* groups that a CTA has in shared memory */

/* GROUPED_M: a tile loads as many units of A as it has rows in. */
#define GROUPED_UNIT(block_m) ((block_m) > 64 ? 64 : 32)

/* A work unit of a CTA: blocks begin .. end - 1 of k of the tile at row, col. end = 0: there is no more. */
typedef struct gemm_unit {
    int row, col, begin, end;
} gemm_unit;

/* T::GROUPED, of a work unit: its columns are rows of B from b_row on, its rows are rows of D from d_row on, of which
 * the tile ends at `last`, and its scales of B lie from row scale_b of their table on (SCALE_EPILOGUE and 1D1D: from
 * that scale on; SCALE_EPILOGUE of a group without any k: -1). */
typedef struct gemm_group {
    int b_row, d_row, last, scale_b;
} gemm_group;

/* T::GROUPED: the first offsets (masked: the counts, from [1] on), and their groups' rows of cluster tiles, -1 for a
 * bad group. */
typedef struct gemm_table {
    int offset[GROUPED_TABLE + 1], tiles_m[GROUPED_TABLE];
} gemm_table;

/* T::GROUPED: how far a thread has gone through the groups; `first`: the number of the first cluster tile of `group`.
 */
typedef struct gemm_walk {
    const gemm_table *table;
    int group, first;
} gemm_walk;

/* TWO: a tile's columns can lie in two blocks of 128, and so have two scales in 1D2D; then every GRAIN of them, counted
 * from the tile's first, lie in one. A warp reads the scales of CHUNK blocks of k at once. */
template <int BLOCK_N> struct gemm_b_scales {
    enum { TWO = BLOCK_N % 128 && 128 % BLOCK_N, GRAIN = TWO ? BLOCK_N & -BLOCK_N : BLOCK_N, CHUNK = TWO ? 16 : 32 };
    static_assert(!TWO || (BLOCK_N % GRAIN == 0 && BLOCK_N <= 128 + GRAIN), "two blocks at most");
};

/* PITCH: floats of a stage of A's scales. RING: with T::SMALL_M a stage has as many rows as the tiles of this call and
 * there are as many stages as fit; these are the bytes of A and B together: all that the rest leaves, of which less
 * than 1 KB is not counted here. */
template <class T, int MODE> struct gemm_layout {
    enum {
        FLAT = MODE == SCALE_1D2D && (T::SMALL_M || T::GROUPED == (int)GROUPED_M), /* gemm_flat_scales */
        PITCH = T::BLOCK_M + (FLAT ? 32 : 0),
        SCALES = MODE == SCALE_EPILOGUE ? 0
                                        : PITCH * 4 + (MODE == SCALE_1D1D ? (2 * T::BLOCK_N + 16) * 4
                                                                          : 4 + 4 * gemm_b_scales<T::BLOCK_N>::TWO),
        RING = (232448 - T::BLOCK_M * T::BLOCK_N * 2 - T::MAX_STAGES * SCALES - T::WARPGROUPS * T::BLOCK_N * 8 - 1024) /
               1024 * 1024
    };
};

template <class T, int MODE> struct gemm_memory {
    static_assert(T::MAX_STAGES + 2 <= UNITS, "units that the stages can belong to, the one being read, the next");
    /* T::SMALL_M: one ring, the stages of A, then those of B */
    uint8_t a[T::SMALL_M ? 1 : T::MAX_STAGES][T::SMALL_M ? gemm_layout<T, MODE>::RING - 1024 : T::BLOCK_M * BK];
    uint8_t b[T::SMALL_M ? 1 : T::MAX_STAGES][T::SMALL_M ? 1024 : T::BLOCK_N * BK];
    /* panels of 64 rows x 128 bytes of results, or 64 bytes where BLOCK_N is no multiple of 64 columns of 16 bits */
    uint8_t d[(1 + T::STAGED_F32) * T::BLOCK_M * T::BLOCK_N * 2];
    float scale_a[MODE == SCALE_EPILOGUE && T::SMALL_M ? 1 : T::MAX_STAGES]
                 [MODE == SCALE_EPILOGUE && T::SMALL_M ? 32 : gemm_layout<T, MODE>::PITCH];
    /* 8: `bias` is read in pairs */
    float scale_b[MODE == SCALE_1D2D                    ? T::MAX_STAGES > 8 ? 16 : 8
                  : MODE == SCALE_EPILOGUE &&T::SMALL_M ? (int)T::WARPGROUPS
                                                        : (int)T::MAX_STAGES]
                 [MODE == SCALE_1D2D ? 1 + (int)gemm_b_scales<T::BLOCK_N>::TWO : (int)T::BLOCK_N];
    /* T::SCALE_OUTER: scales as rows of eight bf16. compute-sanitizer takes 96 such rows for 3072 bytes: more must
     * follow them */
    uint8_t split_a[T::SCALE_OUTER ? T::MAX_STAGES : 1][T::SCALE_OUTER ? T::BLOCK_M * 16 : 16];
    uint8_t split_b[T::SCALE_OUTER ? T::MAX_STAGES : 1][T::SCALE_OUTER ? T::BLOCK_N * 16 : 16];
    float scale_b_lanes[MODE == SCALE_1D1D && !T::SCALE_OUTER ? T::MAX_STAGES : 1]
                       [MODE == SCALE_1D1D ? T::BLOCK_N + 16 : 4];
    float bias[T::WARPGROUPS][T::BLOCK_N];
    uint64_t full[T::MAX_STAGES], empty[T::MAX_STAGES], ready[T::MAX_STAGES];
    uint64_t saved[T::WARPGROUPS];                              /* a warpgroup has stored its partial accumulator */
    uint64_t d_loaded[T::WARPGROUPS], d_written[T::WARPGROUPS]; /* T::STAGED_F32: `d` holds D; it holds the results */
    gemm_unit unit[UNITS];                                      /* by number */
    gemm_group group[T::GROUPED != 0 ? (int)UNITS : 1];         /* likewise */
    gemm_table table[T::GROUPED != 0];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Addresses that a consumer thread computes once: descriptors of its rows of A and of B in stage 0 (low words), the
 * barriers of stage 0, and empty[0] of the CTA to which this lane releases stages. */
typedef struct gemm_addresses {
    uint32_t a, b, full, ready, empty;
    int row;                       /* of A, in the tile */
    int mma_barrier, next_barrier; /* 1D1D: named barriers of this warpgroup and of the one after it */
    uint32_t a_step;               /* T::SMALL_M: from a stage of A to the next, in low words */
    /* see gemm_flat_scales: of the first block of k, besides the bits of the tile's first row that skew_row has; from
     * one block to the next, mod 4 */
    int skew, skew_row, skew_step;
} gemm_addresses;

/* The scales of A of this thread's two rows for a block of k; in 1D2D their products with the scale of B. */
typedef struct gemm_scales {
    float upper, lower;
} gemm_scales;

/* A position in the pipeline; T::SMALL_M: of how many stages, and the skew of this one's scales of A. */
typedef struct gemm_ring {
    pipeline_state at;
    uint32_t stages;
    int skew;
} gemm_ring;

template <int STAGES> static __device__ __forceinline__ void gemm_advance(gemm_ring *ring)
{
    pipeline_advance(&ring->at, STAGES ? STAGES : ring->stages);
}

/* With T::SMALL_M the rows are divided evenly among the tiles, which load only what they have, within 16 rows or 8, and
 * warpgroups without rows do nothing: TMA takes its time over rows outside, and the tensor cores over zeros. */
template <class T> static __device__ __forceinline__ int gemm_block_m(const gemm_args &p)
{
    return T::SMALL_M ? p.block_m : (int)T::BLOCK_M;
}

/* Where the rows of the tile at `row` end. */
template <class T> static __device__ __forceinline__ int gemm_rows_end(const gemm_args &p, int row)
{
    return T::SMALL_M ? min(p.m, row + p.block_m) : p.m;
}

template <class T> static __device__ __forceinline__ uint32_t gemm_stages(const gemm_args &p)
{
    return T::SMALL_M ? (uint32_t)p.stages : (uint32_t)T::MAX_STAGES;
}

template <class T> static __device__ __forceinline__ int gemm_a_rows(const gemm_args &p)
{
    return T::SMALL_M ? p.a_rows : T::BLOCK_M / T::CLUSTER_N;
}

template <class T> static __device__ __forceinline__ int gemm_warpgroups(const gemm_args &p)
{
    return T::SMALL_M ? p.warpgroups : (int)T::WARPGROUPS;
}

/* The scales of A as one line, so that they need no alignment: TMA begins at a multiple of 16 bytes, and the reader
 * `skew` elements, 0 to 3, later. */
template <class T, int MODE> static __device__ __forceinline__ constexpr bool gemm_flat_scales(void)
{
    return gemm_layout<T, MODE>::FLAT;
}

#endif

#endif
