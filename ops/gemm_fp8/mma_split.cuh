/* mma_split.cuh: gemm_fp8 by mma.sync for m of up to 64, where all tokens are one tile. gemm_small reads and decodes
 * the weights once for every 32 tokens, and the tokens once for every 32 rows of weights: at m = 64 that is four times
 * the bytes of the weights from L2. Here a CTA of four warps has 64 tokens x 128 rows of B, each warp 64 x 32, so that
 * a code of B is decoded once, and tokens are read once for 128 rows.
 *
 * The parts of k are those of gemm_small, and so are the bits. Since tiles are few, `split` CTAs share a tile: each
 * computes 8 / split of the parts, one after another, adds two, and writes the sum to the workspace. A second kernel
 * adds these sums in gemm_small's order and stores. */
#ifndef RIDGE_GEMM_FP8_MMA_SPLIT_CUH
#define RIDGE_GEMM_FP8_MMA_SPLIT_CUH

#include "mma.cuh"

enum { SPLIT_N = 128, SPLIT_TOKENS = 64, SPLIT_MT = 2, SPLIT_NT = SPLIT_TOKENS / 8 };

typedef struct mma_split_args {
    mma_args p;
    float *sum; /* [split][m][n] */
    int split;  /* 4 or 8 */
} mma_split_args;

struct alignas(128) mma_split_stage {
    uint8_t b[SPLIT_N * BK], a[SPLIT_TOKENS * BK];
    float scale_b[SPLIT_N], scale_a[SPLIT_TOKENS];
};

struct mma_split_memory {
    int nan_b[SPLIT_N], nan_a[SPLIT_TOKENS];
    mma_split_stage stage[1]; /* p.stages of them */
};

/* The blocks of k of a CTA, in its order: those of its first part, then those of its second one. */
typedef struct mma_walk {
    int part, block;
} mma_walk;

static __device__ __forceinline__ void mma_step(mma_walk *w, int blocks)
{
    w->block += PARTS;
    if (w->block >= blocks)
        w->block = ++w->part;
}

/* Block kb of k: of B, of A. */
static __device__ __forceinline__ void mma_load_split_b(const mma_args &p, mma_split_stage *s, int col, int kb)
{
    mma_copy_rows<SPLIT_N, LARGE_THREADS>(p, ptx_shared(s->b), p.b, p.ldb, p.copy_b, col, p.n, kb, threadIdx.x);
    if (!p.scale_last)
        mma_copy_scales<SPLIT_N, LARGE_THREADS>(ptx_shared(s->scale_b), p.scale_b, col, p.n, kb, threadIdx.x);
}

static __device__ __forceinline__ void mma_load_split_a(const mma_args &p, mma_split_stage *s, int kb)
{
    mma_copy_rows<SPLIT_TOKENS, LARGE_THREADS>(p, ptx_shared(s->a), p.a, p.lda, p.copy_a, 0, p.m, kb, threadIdx.x);
    if (!p.scale_last)
        mma_copy_scales<SPLIT_TOKENS, LARGE_THREADS>(ptx_shared(s->scale_a), p.scale_a, 0, p.m, kb, threadIdx.x);
}

/* sum = fin for the first part, sum + fin for the second; fin = 0. */
static __device__ __forceinline__ void mma_add_part(bool first, float (*fin)[SPLIT_NT][4], float (*sum)[SPLIT_NT][4])
{
#pragma unroll
    for (int i = 0; i < SPLIT_MT; i++)
#pragma unroll
        for (int j = 0; j < SPLIT_NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sum[i][j][e] = first ? fin[i][j][e] : sum[i][j][e] + fin[i][j][e];
                fin[i][j][e] = 0;
            }
}

/* Writes a warp's sums; NaN where a row or a token has one. */
template <bool MARKS>
static __device__ __forceinline__ void mma_write_sums(const mma_split_args &q, const mma_split_memory *s, int part,
                                                      int col, int warp_row, float (*sum)[SPLIT_NT][4])
{
    const int lane = threadIdx.x % 32;
    float *to = q.sum + (int64_t)part * q.p.m * q.p.n;

#pragma unroll
    for (int i = 0; i < SPLIT_MT; i++)
#pragma unroll
        for (int j = 0; j < SPLIT_NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int t = 8 * j + lane % 4 * 2 + e % 2, r = warp_row + 16 * i + lane / 4 + e / 2 * 8;
                const bool bad = MARKS && (s->nan_a[t] | s->nan_b[r]);

                if (t < q.p.m && col + r < q.p.n)
                    to[(int64_t)t * q.p.n + col + r] = bad ? __int_as_float(0x7fc00000) : sum[i][j][e];
            }
}

/* CTA number i: share i % split of the parts of tile i / split. */
template <int KIND, int E5_A, int E5_B>
static __global__ void __launch_bounds__(LARGE_THREADS, 2) gemm_split(const __grid_constant__ mma_split_args q)
{
    extern __shared__ __align__(128) uint8_t shared[];

    if (!MMA_RUNS(KIND))
        return;
    const mma_args &p = q.p;
    mma_split_memory *s = (mma_split_memory *)shared;
    const int share = blockIdx.x % q.split, col = blockIdx.x / q.split * SPLIT_N, count = PARTS / q.split;
    const int first = share * count, end = first + count, warp_row = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    const int lane_b = warp_row * BK + (int)mma_chunk(lane, 0), lane_a = (int)mma_chunk(lane, 0);
    float fin[SPLIT_MT][SPLIT_NT][4] = {}, sum[SPLIT_MT][SPLIT_NT][4] = {};
    mma_walk load = {first, first}, at = {first, first};
    int now = 0, next = p.stages - 1;

    for (int i = threadIdx.x; i < SPLIT_N + SPLIT_TOKENS; i += LARGE_THREADS) {
        s->nan_b[i] = 0; /* nan_a follows */
        for (int stage = 0; stage < p.stages && p.scale_last; stage++)
            s->stage[stage].scale_b[i] = 1.0f; /* scale_a follows */
    }
    __syncthreads(); /* marks are cleared before a thread sets one */
    ptx_launch_dependents();
    if (!p.weights_const)
        ptx_grid_dependency_wait();
    for (int i = 0; i < p.stages - 1 && load.part < end && load.block < p.blocks; i++) {
        mma_load_split_b(p, &s->stage[i], col, load.block);
        mma_step(&load, p.blocks);
    }
    ptx_grid_dependency_wait(); /* constant weights have been loaded beside the primary grid */
    load = at;
    for (int i = 0; i < p.stages - 1; i++) {
        if (load.part < end && load.block < p.blocks) {
            mma_load_split_a(p, &s->stage[i], load.block);
            mma_step(&load, p.blocks);
        }
        mma_copy_commit();
    }
    while (at.part < end && at.block < p.blocks) {
        mma_split_stage *stage = &s->stage[now];
        float acc[SPLIT_MT][SPLIT_NT][4];
        const int part = at.part;

        mma_copy_wait(p.stages);
        if (KIND == KIND_DECODE && !E5_B)
            mma_mark_nan<SPLIT_N, LARGE_THREADS>(stage->b, s->nan_b, threadIdx.x);
        if (KIND == KIND_DECODE && !E5_A)
            mma_mark_nan<SPLIT_TOKENS, LARGE_THREADS>(stage->a, s->nan_a, threadIdx.x);
        /* orders all copies of this stage before reads of it, and all reads of stage `next` before its next copies */
        __syncthreads();
        if (load.part < end && load.block < p.blocks) {
            mma_load_split_b(p, &s->stage[next], col, load.block);
            mma_load_split_a(p, &s->stage[next], load.block);
            mma_step(&load, p.blocks);
        }
        mma_copy_commit();
        mma_block<KIND, E5_B, E5_A, SPLIT_MT, SPLIT_NT>(ptx_shared(stage->b) + lane_b, ptx_shared(stage->a) + lane_a,
                                                        acc);
        if (mma_scale_of_tiles(p))
            mma_promote_rows<SPLIT_MT, SPLIT_NT>(stage->scale_b[0], stage->scale_a, mma_unit<KIND, E5_A, E5_B>(), acc,
                                                 fin);
        else
            mma_promote<SPLIT_MT, SPLIT_NT>(stage->scale_b + warp_row, stage->scale_a, mma_unit<KIND, E5_A, E5_B>(),
                                            acc, fin);
        mma_step(&at, p.blocks);
        if (at.part != part)
            mma_add_part(part == first, fin, sum);
        now = now + 1 == p.stages ? 0 : now + 1;
        next = next + 1 == p.stages ? 0 : next + 1;
    }
    for (; at.part < end; at.part++) /* parts without a block: zeros */
        mma_add_part(at.part == first, fin, sum);
    __syncthreads(); /* all marks are set before they are read */
    mma_write_sums<KIND == KIND_DECODE>(q, s, share, col, warp_row, sum);
}

/* Adds the sums and stores, two columns a thread. */
static __global__ void __launch_bounds__(256) gemm_split_sum(const __grid_constant__ mma_split_args q)
{
    const mma_args &p = q.p;
    const int pairs = (p.n + 1) / 2, i = (int)(blockIdx.x * 256 + threadIdx.x), row = i / pairs, col = i % pairs * 2;
    const int64_t step = (int64_t)p.m * p.n;
    const float *from = q.sum + (int64_t)row * p.n + col;
    const bool both = p.n % 2 == 0; /* the two columns are one aligned word */
    float2 v[PARTS], x;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (row >= p.m)
        return;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const float *at = from + part * step;

        v[part] = make_float2(0, 0);
        if (part < q.split && both)
            v[part] = __ldcg((const float2 *)at);
        else if (part < q.split)
            v[part] = make_float2(__ldcg(at), col + 1 < p.n ? __ldcg(at + 1) : 0);
    }
    x.x = (v[0].x + v[1].x) + (v[2].x + v[3].x);
    x.y = (v[0].y + v[1].y) + (v[2].y + v[3].y);
    if (q.split == PARTS) {
        x.x += (v[4].x + v[5].x) + (v[6].x + v[7].x);
        x.y += (v[4].y + v[5].y) + (v[6].y + v[7].y);
    }
    mma_store_two(p, row, col, x.x, x.y);
}

#endif
