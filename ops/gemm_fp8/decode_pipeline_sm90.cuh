/* decode_pipeline_sm90.cuh: what the roles of decode_sm90.cu share (it tells the design): the arguments, shared memory,
 * a CTA's work, the two producer warps, and the consumers' side of the pipelines. */
#ifndef RIDGE_GEMM_FP8_DECODE_PIPELINE_CUH
#define RIDGE_GEMM_FP8_DECODE_PIPELINE_CUH

#include <stddef.h>

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/sm90/wgmma_narrow.cuh"

enum { MMA_ROWS = 64, BK = 128, GROUPS = 2 /* MMA warpgroups */, MAX_SPLIT = 8 };
enum { SPLIT_BLOCKS = 4 /* k is split at multiples of so many blocks */ };
enum {
    CONSUMERS = 128 * GROUPS,
    THREADS = CONSUMERS + 64,
    TILES_PER_GROUP = 2 /* of a warpgroup, in a pass */,
    TILES_PER_PASS = GROUPS * TILES_PER_GROUP,
    MAX_W_STAGES = 12 /* of a warpgroup */
};
enum { SMEM_HALF = 115712 /* bytes that allow a second CTA on the SM */, SMEM_FULL = 232448, SMEM_ALIGN = 1024 };
/* Scales that do not depend on k are applied by the epilogue, others when a block's products are promoted. */
enum { SCALE_EPILOGUE = 0, SCALE_BLOCK };

/* Blocks of k of a stage: 4 or 2. One TMA instruction, which takes 100 to 150 ns to issue, loads all of a tile's. */
enum { MAX_STAGE_BLOCKS = 4 };
/* Blocks whose wgmma are one group: while they are in flight, the warpgroup promotes the group before. */
#define BATCH(n) ((n) >= 32 ? 1 : 2)
/* Blocks of the ring of tokens at most. A box of tokens arrives behind the weights that were issued before it, so this
 * ring reaches as far along k as the ring of weights, and a stage further. */
#define MAX_X_BLOCKS(n) ((n) == 64 ? 16 : 40)

typedef struct decode_args {
    CUtensorMap w, x, x_scales, d;
    const float *scale_x, *scale_w;
    int64_t ld_x, ld_w;     /* of the tables of scales; 0: one scale for the tensor */
    int64_t x_row, x_block; /* by 128 of k: from token to token, from block to block */
    char *out;
    const void *bias;
    int64_t ld_d;       /* elements */
    int m, n, blocks;   /* blocks of k */
    int tiles, block_n; /* tiles of block_n rows of weights */
    int split_shift;    /* k is split over 1 << split_shift CTAs */
    int stage_blocks;   /* blocks of k of a stage: 4 or 2 */
    int x_stages, w_stages;
    int prefetch_first; /* tiles whose first stage is prefetched into L2 before the primary grid has ended */
    int prefetch_next;  /* tiles whose first stage beyond the ring is prefetched into L2 */
    int off_w, off_sums, smem_bytes; /* shared memory: the ring of weights, the partial sums, all */
    int w_box;                       /* bytes of a tile's rows of one block of k */
    int k_lines; /* the maps have lines of 128 bytes as their third dimension, so one TMA instruction loads a stage */
    int x_scales_bytes; /* of a stage's block scales of tokens, which TMA loads; 0: alignment does not allow it */
    int dtype, accumulate, bias_f32;
    int weights_const;                        /* weights may be loaded before the primary grid has ended */
    int x_rows;                               /* tokens of a box of x, rounded up to 8 (decode_tokens_sm90.cuh) */
    int max_units, unit_begin[MAX_SPLIT + 1]; /* rank r reduces units unit_begin[r] to unit_begin[r + 1] of a tile */
    /* D by TMA: units of each rank (0: by ordinary stores), the panels in shared memory, and the address bits that the
     * swizzle inverts */
    int tma_units, off_d;
    uint32_t d_swizzle;
    int vector_d; /* eight neighbours of D can be stored at once: 16 bits, aligned, not added to */
} decode_args;

/* The fixed part of shared memory. The rings of tokens and of weights and the partial sums follow. */
template <int N> struct decode_smem {
    alignas(128) float scale_x[MAX_X_BLOCKS(N)][N];
    float scale_w[MAX_X_BLOCKS(N)][TILES_PER_PASS][2]; /* index: stage * stage_blocks + block of the stage */
    uint64_t w_full[GROUPS * MAX_W_STAGES], w_empty[GROUPS * MAX_W_STAGES], x_full[MAX_X_BLOCKS(N) / 2],
        x_empty[MAX_X_BLOCKS(N) / 2];
    uint64_t sums_full[TILES_PER_PASS], sums_free[TILES_PER_PASS];
};

#define FIXED_SMEM(n) (((int)sizeof(decode_smem<n>) + SMEM_ALIGN - 1) / SMEM_ALIGN * SMEM_ALIGN)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The address of shared memory, computed once: in a cluster, each __cvta_generic_to_shared reads a special register. */
static __device__ __forceinline__ uint32_t smem_base(const void *shared)
{
    uint32_t base = ptx_shared(shared);

    asm volatile("" : "+r"(base));
    return base;
}

#define SMEM_OFFSET(n, member) (uint32_t) offsetof(decode_smem<n>, member)

/* The work of a CTA: tiles [first, last) of its cluster, blocks [begin, end) of k. */
typedef struct decode_work {
    int rank, first, last, begin, end;
} decode_work;

static __device__ __forceinline__ decode_work assign_work(const decode_args &p)
{
    const int cluster = (int)blockIdx.x >> p.split_shift, clusters = (int)gridDim.x >> p.split_shift;
    const int64_t k_groups = (p.blocks + SPLIT_BLOCKS - 1) / SPLIT_BLOCKS;
    decode_work a;

    a.rank = (int)blockIdx.x & ((1 << p.split_shift) - 1);
    a.first = (int)((int64_t)cluster * p.tiles / clusters);
    a.last = (int)((int64_t)(cluster + 1) * p.tiles / clusters);
    a.begin = (int)(a.rank * k_groups >> p.split_shift) * SPLIT_BLOCKS;
    a.end = min((int)((a.rank + 1) * k_groups >> p.split_shift) * SPLIT_BLOCKS, p.blocks);
    return a;
}

/* ------------------------------------------------------------------------------------------------------ producers */

/* Prefetches the first stage of the first tile, or of the first two (prefetch_first; 0: none), into L2 before the
 * primary grid has ended. Correct whatever the primary writes, since its writes go through L2. More stages are slower.
 */
static __device__ __forceinline__ void prefetch_weights(const decode_args &p, const decode_work &a)
{
    for (int g = 0; g < p.prefetch_first && p.k_lines && a.begin < a.end; g++)
        if (a.first + g < a.last)
            ptx_tma_prefetch_3d(&p.w, 0, (a.first + g) * p.block_n, a.begin);
}

/* The producer of weights, one thread. Pass by pass, it goes along k and loads a stage of each of the pass's tiles
 * before it advances. Each warpgroup has a ring of its own: stages may be filled out of order, and a warpgroup that
 * does not wait for the other's stages could mistake an older phase of a common barrier for the one it waits for. With
 * constant weights and many tokens the ring is full long before the tokens have arrived; then one stage more is
 * prefetched into L2. */
template <int N> static __device__ void produce_weights(const decode_args &p, decode_smem<N> *s, decode_work a)
{
    const uint64_t policy = ptx_policy_evict_first();
    const uint32_t w = ptx_shared(s) + (uint32_t)p.off_w, full = ptx_shared(s->w_full), empty = ptx_shared(s->w_empty);
    const uint32_t bytes = (uint32_t)(p.w_box * p.stage_blocks), stages = (uint32_t)p.w_stages;
    pipeline_state even = PIPELINE_PRODUCER, odd = PIPELINE_PRODUCER; /* of the first and the second warpgroup */
    bool wait_primary = !p.weights_const;

    if (wait_primary)
        prefetch_weights(p, a);
    for (int tile = a.first; tile < a.last; tile += TILES_PER_PASS) {
        const int count = min((int)TILES_PER_PASS, a.last - tile);

        for (int kb = a.begin; kb < a.end; kb += p.stage_blocks)
            for (int g = 0; g < count; g++) {
                pipeline_state r = g % 2 ? odd : even;
                const uint32_t stage = (g % 2 ? stages : 0) + r.stage, to = w + stage * bytes;
                const int row = (tile + g) * p.block_n;

                ptx_mbarrier_wait(empty + 8 * stage, r.phase);
                pipeline_expect(full, stage, bytes);
                if (wait_primary) /* as late as here, so that the code that follows is in the instruction cache */
                    ptx_grid_dependency_wait();
                wait_primary = false;
                if (p.k_lines)
                    ptx_tma_load_3d_policy(to, &p.w, 0, row, kb, full + 8 * stage, policy);
                else
                    for (int i = 0; i < p.stage_blocks; i++)
                        ptx_tma_load_2d_policy(to + (uint32_t)(i * p.w_box), &p.w, (kb + i) * BK, row, full + 8 * stage,
                                               policy);
                if (g < p.prefetch_next && kb == a.begin && tile == a.first && p.k_lines &&
                    kb + (int)stages * p.stage_blocks < a.end)
                    ptx_tma_prefetch_3d(&p.w, 0, row, kb + (int)stages * p.stage_blocks);
                pipeline_advance(&r, stages);
                if (g % 2)
                    odd = r;
                else
                    even = r;
            }
    }
}

/* Copies a stage's block scales of tokens where alignment excludes TMA. Those of padding tokens stay undefined. */
template <int N> static __device__ __forceinline__ void copy_x_scales(const decode_args &p, uint32_t to, int kb)
{
    for (int t = threadIdx.x % 32; t < p.stage_blocks * N; t += 32)
        if (t % N < p.m)
            ptx_copy_async4(to + 4 * (uint32_t)t,
                            p.scale_x + min(kb + t / N, p.blocks - 1) * p.x_block + t % N * p.x_row);
}

/* The producer of tokens and scales, one warp. Block scales of weights: a tile may lie in two blocks of 128 rows, so
 * each tile of the pass has two. Scales of tokens that do not depend on k come with the first stage, behind its tokens.
 * x_full has 33 arrivals: the lane that expects TMA's bytes, and each lane's copies. */
template <int N, int MODE> static __device__ void produce_tokens(const decode_args &p, decode_smem<N> *s, decode_work a)
{
    const int lane = threadIdx.x % 32, slot = lane % (2 * TILES_PER_PASS);
    const uint32_t box = (uint32_t)((N == 64 ? p.x_rows : N) * BK);
    const uint32_t x_scales_bytes = MODE == SCALE_BLOCK ? (uint32_t)p.x_scales_bytes : 0;
    pipeline_state r = PIPELINE_PRODUCER;
    bool wait_primary = true;

    for (int tile = a.first; tile < a.last; tile += TILES_PER_PASS) {
        const int row = min((tile + slot / 2) * p.block_n + (slot & 1) * (p.block_n - 1), p.n - 1);

        for (int kb = a.begin; kb < a.end; kb += p.stage_blocks) {
            const uint32_t full = ptx_shared(&s->x_full[r.stage]),
                           to = ptx_shared(s) + FIXED_SMEM(N) + r.stage * (uint32_t)p.stage_blocks * box;

            ptx_mbarrier_wait(ptx_shared(&s->x_empty[r.stage]), r.phase);
            __syncwarp(); /* keeps the lanes in one phase: one that fell behind by two would wait for ever */
            if (lane == 0)
                ptx_mbarrier_expect(full, (uint32_t)p.stage_blocks * box + x_scales_bytes);
            if (wait_primary)
                ptx_grid_dependency_wait();
            if (lane == 0) {
                if (p.k_lines)
                    ptx_tma_load_3d(to, &p.x, 0, 0, kb, full);
                else
                    for (int i = 0; i < p.stage_blocks; i++)
                        ptx_tma_load_2d(to + (uint32_t)i * box, &p.x, (kb + i) * BK, 0, full);
                if (MODE == SCALE_BLOCK && x_scales_bytes)
                    ptx_tma_load_2d(ptx_shared(s->scale_x[r.stage * p.stage_blocks]), &p.x_scales, 0, kb, full);
            }
            if (MODE == SCALE_EPILOGUE && wait_primary)
                for (int t = lane; t < N; t += 32)
                    ptx_copy_async4(ptx_shared(&s->scale_x[0][t]), p.scale_x + (p.ld_x ? min(t, p.m - 1) : 0));
            wait_primary = false;
            if (MODE == SCALE_BLOCK) {
                if (!x_scales_bytes)
                    copy_x_scales<N>(p, ptx_shared(s->scale_x[r.stage * p.stage_blocks]), kb);
                if (lane < p.stage_blocks * TILES_PER_PASS * 2)
                    ptx_copy_async4(ptx_shared(&s->scale_w[r.stage * p.stage_blocks][0][0]) + 4 * (uint32_t)lane,
                                    p.scale_w + row / 128 * p.ld_w +
                                        min(kb + lane / (2 * TILES_PER_PASS), p.blocks - 1));
            }
            ptx_copy_async_arrive(full);
            pipeline_advance(&r, (uint32_t)p.x_stages);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ MMA warpgroups */

/* This warp's number in its warpgroup, which the compiler knows to be the same in all lanes: branches on it keep the
 * warp converged, and descriptors stay in uniform registers. */
static __device__ __forceinline__ int warp_in_group(void)
{
    return __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0);
}

/* A warpgroup's view of the pipelines. */
typedef struct decode_consumer {
    uint32_t base;                             /* of shared memory */
    uint32_t w_at, w_box, full, empty, stages; /* its own ring of weights */
    uint32_t x_stages, x_box;
    int group;
    pipeline_state w, x;
} decode_consumer;

static __device__ __forceinline__ void consumer_wait(const decode_consumer *r)
{
    pipeline_wait(r->full, r->w);
    __syncwarp();
}

static __device__ __forceinline__ void consumer_release(decode_consumer *r)
{
    __syncwarp(); /* every lane's reads of the stage come before its release */
    if (threadIdx.x % 32 == 0)
        pipeline_release(r->empty, r->w.stage);
    pipeline_advance(&r->w, r->stages);
}

static __device__ __forceinline__ float load_bias(const decode_args &p, int row)
{
    if (!p.bias)
        return 0.0f;
    return p.bias_f32              ? ((const float *)p.bias)[row]
           : p.dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(p.bias, row)
                                   : num_load<RIDGE_F16>(p.bias, row);
}

template <int N>
static __device__ __forceinline__ decode_consumer consumer_start(const decode_args &p, const decode_smem<N> *s,
                                                                 int group)
{
    const uint32_t base = smem_base(s), before = (uint32_t)(group * p.w_stages);

    return {base,
            base + (uint32_t)p.off_w + before * (uint32_t)(p.w_box * p.stage_blocks),
            (uint32_t)p.w_box,
            base + SMEM_OFFSET(N, w_full) + 8 * before,
            base + SMEM_OFFSET(N, w_empty) + 8 * before,
            (uint32_t)p.w_stages,
            (uint32_t)p.x_stages,
            (uint32_t)(p.x_rows * BK),
            group,
            PIPELINE_CONSUMER,
            PIPELINE_CONSUMER};
}

template <int N> static __device__ void init_barriers(const decode_args &p, decode_smem<N> *s)
{
    /* not pipeline_init, whose loop is unrolled: code that runs once costs as much as fetching it */
    for (int i = 0; i < GROUPS * p.w_stages; i++) {
        ptx_mbarrier_init(ptx_shared(&s->w_full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->w_empty[i]), 4);
    }
    for (int i = 0; i < p.x_stages; i++) {
        ptx_mbarrier_init(ptx_shared(&s->x_full[i]), 33);
        ptx_mbarrier_init(ptx_shared(&s->x_empty[i]), 4 * GROUPS);
    }
    for (int i = 0; i < TILES_PER_PASS; i++) {
        ptx_mbarrier_init(ptx_shared(&s->sums_full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->sums_free[i]), N == 64 ? 4u << p.split_shift : (uint32_t)p.block_n / 8);
    }
    ptx_mbarrier_fence_init();
}

#endif

#endif
