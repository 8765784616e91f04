/* decode_sm90.cu: gemm_fp8 for m of 1 to 64 on Hopper: reads every byte of weights once, at the rate of memory.
 *
 *     D[t, r] = sum over blocks b of 128 of k, ascending, of  sA sB P_b[t, r]
 *
 * Tiles. The weights are cut into tiles of block_n rows, a multiple of 8 up to 64, so that all CTAs get nearly the same
 * number of rows. Swap-AB (decode_swap_ab_sm90.cuh): the weights are the 64 rows of wgmma and the tokens, rounded up to
 * 8, 16 or 32, its columns, so few tokens cost nothing extra; the rows beyond block_n are padding, never stored. More
 * tokens are wgmma's rows (decode_tokens_sm90.cuh), so that tiles of less than 64 rows cost nothing extra either. The
 * bits are the same.
 *
 * Split-K in a cluster. k is split over a cluster of 1, 2, 4 or 8 CTAs, which computes a run of tiles, up to four a
 * pass, two an MMA warpgroup. When a tile's k is done, each CTA sends its partial sums to the shared memory of the rank
 * that owns them, in units of 8 rows of weights; that rank adds them in ascending k, and stores. The split follows from
 * n, k and the device, never from m, so a row's bits do not depend on m.
 *
 * Roles: a thread that produces stages of weights, a warp that produces tokens and scales, two MMA warpgroups, which
 * are also the epilogue. A stage is what one TMA instruction loads, 4 (or 2) blocks of 128 of k: a thread issues one in
 * 100 to 150 ns, so an instruction a block (4 to 8 KB) would limit the SM. Results of many tokens leave through shared
 * memory and TMA, 16 tokens of a warp in a box.
 *
 * mbarriers:
 *     w_full, x_full    a stage's bytes (and scales) have arrived: orders these writes before the MMA warps' reads
 *     w_empty, x_empty  an arrival an MMA warp: its reads come before TMA's next writes of the stage
 *     sums_full[slot]   the partial sums of the slot's tile have arrived from all other ranks
 *     sums_free[slot]   all owners in the cluster have read theirs, so the next pass's may be sent; no arrive after the
 *                       last pass, since its receiver may have exited
 *
 * Programmatic launch. A CTA prefetches its first stages of weights into L2 before the primary grid has ended, which is
 * correct whatever the primary writes, since its writes go through L2. With RIDGE_WEIGHTS_CONST it loads weights
 * before that: as soon as the primary's CTA leaves the SM, or beside it where the work is so small that half of the
 * shared memory will do. launch_dependents at entry: triggered later, two CTAs of the dependent grid would land on the
 * same idle SM. */
#include "decode_swap_ab_sm90.cuh"
#include "decode_tokens_sm90.cuh"
#include "src/util.h"

/* H = 0: swap-AB with N columns of tokens. Else tokens are wgmma's rows (N = 64) and its H columns a tile's weights. */
template <int N, int H, int MODE, int FORMATS> static __device__ __forceinline__ void decode_body(const decode_args &p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    decode_smem<N> *s = (decode_smem<N> *)shared;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const decode_work a = assign_work(p);

    if (threadIdx.x == CONSUMERS) {
        ptx_prefetch_map(&p.w);
        init_barriers<N>(p, s);
    } else if (threadIdx.x == CONSUMERS + 32) {
        ptx_prefetch_map(&p.x);
    }
    ptx_launch_dependents();
    __syncwarp();
    /* Orders the initialisation of the mbarriers before their use. The thread that did it goes on at once. */
    if (warp == CONSUMERS / 32)
        ptx_barrier_arrive(1, THREADS);
    else
        ptx_barrier_sync(1, THREADS);
    /* Without a cluster, its barrier would make producers and consumers wait for each other like __syncthreads. */
    if (p.split_shift)
        ptx_cluster_arrive_relaxed();
    if (warp < CONSUMERS / 32)
        ptx_grid_dependency_wait(); /* the producers wait before their first loads */
    if (warp == CONSUMERS / 32) {
        if (threadIdx.x % 32 == 0)
            produce_weights<N>(p, s, a);
    } else if (warp == CONSUMERS / 32 + 1) {
        produce_tokens<N, MODE>(p, s, a);
    } else {
        if (p.split_shift)
            ptx_cluster_wait(); /* all mbarriers of the cluster are initialised before the first send */
        if constexpr (H > 0)
            tokens_consume<H, MODE, FORMATS>(p, s, a, warp / 4);
        else
            swap_ab_consume<N, MODE, FORMATS>(p, s, a, warp / 4);
    }
    /* A CTA exits when it has received what was sent to it; no rank arrives at it after that. */
#endif
}

template <int N, int MODE, int FORMATS>
static __global__ void __launch_bounds__(THREADS, N >= 32 ? 1 : 2)
    decode_swap_ab_sm90(const __grid_constant__ decode_args p)
{
    decode_body<N, 0, MODE, FORMATS>(p);
}

template <int H, int MODE, int FORMATS>
static __global__ void __launch_bounds__(THREADS, 1) decode_tokens_sm90(const __grid_constant__ decode_args p)
{
    decode_body<64, H, MODE, FORMATS>(p);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORMATS(kernel, n, mode)                                                                     \
    {                                                                                                   \
        (const void *)kernel<n, mode, WGMMA_E4M3_E4M3>, (const void *)kernel<n, mode, WGMMA_E4M3_E5M2>, \
            (const void *)kernel<n, mode, WGMMA_E5M2_E4M3>                                              \
    }
#define BY_MODE(kernel, n)                                                        \
    {                                                                             \
        BY_FORMATS(kernel, n, SCALE_EPILOGUE), BY_FORMATS(kernel, n, SCALE_BLOCK) \
    }

/* [swap-AB with 8, 16, 32 tokens, or up to 64 tokens with tiles of up to 32, 48, 64 rows][mode][formats] */
enum { TOKENS_8, TOKENS_16, TOKENS_32, ROWS_32, ROWS_48, ROWS_64, SHAPES, TOKENS_64 = ROWS_32 };
static const void *const functions[SHAPES][2][3] = {BY_MODE(decode_swap_ab_sm90, 8),  BY_MODE(decode_swap_ab_sm90, 16),
                                                    BY_MODE(decode_swap_ab_sm90, 32), BY_MODE(decode_tokens_sm90, 32),
                                                    BY_MODE(decode_tokens_sm90, 48),  BY_MODE(decode_tokens_sm90, 64)};
/* by TOKENS_8 .. TOKENS_64 */
static const int fixed[4] = {FIXED_SMEM(8), FIXED_SMEM(16), FIXED_SMEM(32), FIXED_SMEM(64)};
static const int max_x_blocks[4] = {MAX_X_BLOCKS(8), MAX_X_BLOCKS(16), MAX_X_BLOCKS(32), MAX_X_BLOCKS(64)};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    status = host_prepare(device, &functions[0][0][0], SHAPES * 2 * 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                          SMEM_FULL, "gemm_fp8: loading kernels");
    return status ? status
                  : host_prepare(device, &functions[0][0][0], SHAPES * 2 * 3,
                                 cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared,
                                 "gemm_fp8: loading kernels");
}

/* The tile scheduler's plan: tiles of block_n rows for `clusters` clusters of 1 << split_shift CTAs, which split k. */
typedef struct decode_plan {
    int split_shift, clusters, block_n, tiles;
    int max_tiles;  /* of a cluster */
    int64_t blocks; /* of k of the CTA that has most */
} decode_plan;

/* The smallest split with which a CTA has about 72 rows, or 60 once k is split: then the tokens, which every CTA reads
 * for all its k, cost little. Where a CTA's shared memory holds all of its weights, 48 rows are enough: there the
 * exchange of partial sums costs more than the tokens. */
static int split_shift_of(const ridge_device *device, int64_t n, int64_t k)
{
    const int64_t k_groups = ridge_ceil_div(k, SPLIT_BLOCKS * BK);
    const int64_t unsplit_rows = ridge_ceil_div(n, device->units) * k <= 128 * 1024 ? 48 : 72;
    int shift = 0;

    while (1 << shift < MAX_SPLIT && n << shift < (shift == 0 ? unsplit_rows : 60) * device->units &&
           2 << shift <= k_groups)
        shift++;
    return shift;
}

/* Tiles as even as possible. The split is a function of n, k and the device, because the bits must not depend on m.
 * Clusters of more than two do not fill every GPC: an H200 runs 30 of 4 and 15 of 8 at a time. */
static decode_plan plan_of(const ridge_device *device, int64_t n, int64_t k)
{
    decode_plan best = {};
    int64_t rows, min_tiles;

    best.split_shift = split_shift_of(device, n, k);
    best.clusters = (best.split_shift > 1 ? device->units * 10 / 11 : device->units) >> best.split_shift;
    best.clusters = best.clusters ? best.clusters : 1;
    best.blocks = ridge_ceil_div(ridge_ceil_div(k, SPLIT_BLOCKS * BK), 1 << best.split_shift) * SPLIT_BLOCKS;
    rows = ridge_ceil_div(n, best.clusters);
    min_tiles = ridge_ceil_div(rows, MMA_ROWS);
    min_tiles = min_tiles < GROUPS ? (int64_t)GROUPS : min_tiles; /* work for both warpgroups */
    for (int64_t each = min_tiles; each <= min_tiles + 2; each++) {
        const int64_t block_n = ridge_round_up(ridge_ceil_div(rows, each), 8), tiles = ridge_ceil_div(n, block_n);
        const int64_t most = ridge_ceil_div(tiles, best.clusters);

        if (best.block_n == 0 || most * block_n < (int64_t)best.max_tiles * best.block_n) {
            best.block_n = (int)block_n;
            best.tiles = (int)tiles;
            best.max_tiles = (int)most;
        }
    }
    best.clusters = best.clusters < best.tiles ? best.clusters : best.tiles;
    return best;
}

/* Assigns a tile's units of 8 rows to the ranks of a cluster: in pairs, stored together, if there are enough. */
static void assign_units_to_ranks(decode_args *p, const decode_plan *plan)
{
    const int split = 1 << plan->split_shift, units = plan->block_n / 8, each = units >= 2 * split ? 2 : 1;
    const int parts = (units + each - 1) / each;

    for (int r = 0; r <= split; r++) {
        p->unit_begin[r] = r * parts / split * each < units ? r * parts / split * each : units;
        if (r && p->unit_begin[r] - p->unit_begin[r - 1] > p->max_units)
            p->max_units = p->unit_begin[r] - p->unit_begin[r - 1];
    }
}

/* Bytes of weights of the CTA that has most. */
static int64_t cta_weight_bytes(const decode_plan *plan)
{
    return plan->blocks * BK * plan->max_tiles * plan->block_n;
}

/* Up to so many bytes of weights of a CTA, its start is a large part of its time. */
enum { SHORT_LOAD = 1000 * 1000 };

/* The start waits for the primary grid, and is a large part of the CTA's time. */
static bool cold_start(const decode_args *p, const decode_plan *plan)
{
    return !p->weights_const && cta_weight_bytes(plan) <= SHORT_LOAD;
}

/* TMA stores the results of many tokens where all ranks own the same number of units; a box is all of a rank's. */
static void plan_tma_store(decode_args *p, const decode_plan *plan, int tokens)
{
    const int split = 1 << plan->split_shift, units = plan->block_n / 8;

    if (tokens < TOKENS_64 || split > 2 || !p->vector_d || p->unit_begin[1] * split != units)
        return;
    p->tma_units = units / split;
    p->d_swizzle = p->tma_units == 8 ? 0x70 : p->tma_units == 4 ? 0x30 : p->tma_units == 2 ? 0x10 : 0;
}

/* Lays out `bytes` of shared memory with p->stage_blocks blocks a stage: partial sums, and the longest rings that fit.
 * False if none do. */
static bool lay_out_stages(decode_args *p, const decode_plan *plan, int tokens, int mode, int bytes)
{
    const int columns = 8 << tokens, x_rows = tokens == TOKENS_64 ? p->x_rows : columns;
    const int split = 1 << plan->split_shift,
              slots = plan->max_tiles < TILES_PER_PASS ? plan->max_tiles : (int)TILES_PER_PASS;
    const int group_tiles = (slots + 1) / 2, stage = p->stage_blocks * p->w_box,
              x_stage = p->stage_blocks * x_rows * BK;
    const int units = tokens == TOKENS_64 ? p->max_units : (plan->block_n / 8 + split - 1) / split,
              sums = slots * (split - 1) * units * 8 * columns * 4;
    const int overread = MMA_ROWS * BK - p->w_box; /* wgmma reads 64 rows of the last box too */
    const int64_t all = ridge_ceil_div(plan->blocks, p->stage_blocks) * ridge_ceil_div(plan->max_tiles, TILES_PER_PASS);

    /* Where all weights could be in flight at once, the tokens would queue behind them, and scales behind both: two
     * stages. The same at a cold start, where four stages lose up to 1.4 us of 17. */
    const bool short_k = tokens == TOKENS_64 && all <= 4;

    for (int stages = short_k || cold_start(p, plan) ? 2 : MAX_W_STAGES; stages >= 2; stages--) {
        const int x_stages = (stages + group_tiles - 1) / group_tiles + (short_k && mode == SCALE_BLOCK ? 0 : 1),
                  most = max_x_blocks[tokens] / p->stage_blocks;

        if (stages > 2 && stages > all * group_tiles)
            continue;
        p->x_stages = x_stages < most ? x_stages : most;
        p->x_stages = p->x_stages < all ? p->x_stages : (int)all;
        p->w_stages = stages;
        p->off_w = fixed[tokens] + p->x_stages * x_stage;
        p->off_sums = p->off_w + GROUPS * stages * stage + overread;
        p->off_d = (int)ridge_round_up(p->off_sums + sums, SMEM_ALIGN);
        p->smem_bytes = p->tma_units ? p->off_d + 4 * GROUPS * 16 * 16 * p->tma_units : p->off_sums + sums;
        if (p->smem_bytes <= bytes)
            return true;
    }
    return false;
}

static bool lay_out(decode_args *p, const decode_plan *plan, int tokens, int mode, int bytes)
{
    p->stage_blocks = MAX_STAGE_BLOCKS;
    if (lay_out_stages(p, plan, tokens, mode, bytes))
        return true;
    p->stage_blocks = MAX_STAGE_BLOCKS / 2;
    return lay_out_stages(p, plan, tokens, mode, bytes);
}

static decode_args collect(const ridge_call *call)
{
    const ridge_operand *arg = call->arg, *d = &arg[RIDGE_GEMM_FP8_D];
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = call->flags & RIDGE_SCALE_B;
    decode_args p = {};

    p.m = (int)call->dim[0];
    p.n = (int)call->dim[1];
    p.blocks = (int)ridge_ceil_div(call->dim[2], BK);
    p.scale_x = (const float *)arg[RIDGE_GEMM_FP8_SCALE_A].data;
    p.scale_w = (const float *)arg[RIDGE_GEMM_FP8_SCALE_B].data;
    p.ld_x = mode_a == RIDGE_SCALE_TENSOR ? 0 : arg[RIDGE_GEMM_FP8_SCALE_A].stride;
    p.ld_w = mode_b == RIDGE_SCALE_B_TENSOR ? 0 : arg[RIDGE_GEMM_FP8_SCALE_B].stride;
    p.x_row = call->flags & RIDGE_SCALE_T ? p.ld_x : 1;
    p.x_block = call->flags & RIDGE_SCALE_T ? 1 : p.ld_x;
    p.dtype = (int)d->dtype;
    p.out = (char *)d->data;
    p.ld_d = d->stride;
    p.bias = arg[RIDGE_GEMM_FP8_BIAS].data;
    p.bias_f32 = arg[RIDGE_GEMM_FP8_BIAS].dtype == RIDGE_F32;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.weights_const = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    p.vector_d =
        d->dtype != RIDGE_F32 && !p.accumulate && p.ld_d % 8 == 0 && p.n % 8 == 0 && (uintptr_t)p.out % 16 == 0;
    return p;
}

/* Does a CTA take all of the shared memory? With half, the dependent grid's CTAs are resident when this one ends. */
static int needs_full_smem(const ridge_call *call, const decode_plan *plan)
{
    return cta_weight_bytes(plan) > (call->dim[0] > 16 ? 0 : call->flags & RIDGE_WEIGHTS_CONST ? 300 : 700) * 1000;
}

/* Encodes the tensor maps of x, of its scales, of D and of w. x and w by lines, or by blocks where the last block of k
 * is not whole. */
static ridge_status encode_maps(const ridge_device *device, const ridge_call *call, int tokens, decode_args *p)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B];
    const CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B; /* 256 bytes cost 5 to 10 % */
    const int64_t k = call->dim[2];
    const int rows = tokens == TOKENS_64 ? p->x_rows : 8 << tokens;
    ridge_status status;

    if (p->x_scales_bytes) { /* boxes begin at multiples of 128 bytes of shared memory */
        status = host_tensor_map_l2(device, &p->x_scales, RIDGE_F32, p->scale_x, p->m, p->blocks, p->ld_x, 8 << tokens,
                                    p->stage_blocks, 0, promotion);
        if (status)
            return status;
    }
    if (p->tma_units) { /* boxes of the 16 tokens of a warp */
        const int width = p->tma_units * 16;

        status = host_tensor_map_l2(device, &p->d, p->dtype, p->out, p->n, p->m, p->ld_d, width / 2, 16,
                                    p->d_swizzle ? width : 0, promotion);
        if (status)
            return status;
    }
    p->k_lines = k % BK == 0;
    if (p->k_lines) {
        status = host_tensor_map_lines_l2(device, &p->x, a->data, k, p->m, a->stride, rows, p->stage_blocks, promotion);
        return status ? status
                      : host_tensor_map_lines_l2(device, &p->w, b->data, k, p->n, b->stride, p->block_n,
                                                 p->stage_blocks, promotion);
    }
    status = host_tensor_map_l2(device, &p->x, RIDGE_E4M3, a->data, k, p->m, a->stride, BK, rows, 128, promotion);
    return status ? status
                  : host_tensor_map_l2(device, &p->w, RIDGE_E4M3, b->data, k, p->n, b->stride, BK, p->block_n, 128,
                                       promotion);
}

/* Up to 16 tokens are wgmma's columns (swap-AB), more than 32 its rows. Between, they are its rows where the tiles are
 * small, since wgmma's time follows its columns. */
static int shape_of(int64_t m, const decode_plan *plan)
{
    if (m <= (plan->block_n <= 48 ? 16 : 32))
        return m <= 8 ? TOKENS_8 : m <= 16 ? TOKENS_16 : TOKENS_32;
    return plan->block_n <= 32 ? ROWS_32 : plan->block_n <= 48 ? ROWS_48 : ROWS_64;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    const decode_plan plan = plan_of(device, call->dim[1], call->dim[2]);
    const int shape = shape_of(call->dim[0], &plan), tokens = shape < TOKENS_64 ? shape : TOKENS_64;
    const int mode = (call->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_BLK128 ? SCALE_BLOCK : SCALE_EPILOGUE;
    const int first = tokens < TOKENS_64 ? RIDGE_GEMM_FP8_B : RIDGE_GEMM_FP8_A; /* wgmma's first operand */
    const int formats =
        call->arg[first].dtype == RIDGE_E5M2 ? WGMMA_E5M2_E4M3
        : call->arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E5M2 || call->arg[RIDGE_GEMM_FP8_B].dtype == RIDGE_E5M2
            ? WGMMA_E4M3_E5M2
            : WGMMA_E4M3_E4M3;
    decode_args p = collect(call);
    ridge_status status;

    p.split_shift = plan.split_shift;
    p.x_rows = (int)ridge_round_up(p.m, 8);
    assign_units_to_ranks(&p, &plan);
    p.block_n = plan.block_n;
    p.tiles = plan.tiles;
    p.w_box = plan.block_n * BK;
    plan_tma_store(&p, &plan, tokens);
    if ((needs_full_smem(call, &plan) || !lay_out(&p, &plan, tokens, mode, SMEM_HALF)) &&
        !lay_out(&p, &plan, tokens, mode, SMEM_FULL))
        return ridge_fail(RIDGE_ERR_DEVICE, "%s: two stages do not fit into shared memory", kernel->name);
    /* with up to 8 tokens, one cp.async of the warp loads as much */
    if (mode == SCALE_BLOCK && tokens > TOKENS_8 && !(call->flags & RIDGE_SCALE_T) &&
        ((uintptr_t)p.scale_x | (uintptr_t)(p.ld_x * 4)) % 16 == 0)
        p.x_scales_bytes = p.stage_blocks * (8 << tokens) * 4;
    /* measured, by MB of all weights: 3 to 7 % less time at 15, no loss up to 84, 1 to 2 % lost from 235 on */
    p.prefetch_first = cta_weight_bytes(&plan) > SHORT_LOAD ? 0 : p.smem_bytes > SMEM_HALF ? GROUPS : 1;
    /* measured: 1 to 3 % less time, but 5 % more where the ring is half of all */
    p.prefetch_next =
        p.weights_const && p.m > 32 && cta_weight_bytes(&plan) <= SHORT_LOAD && plan.blocks > 4 * p.stage_blocks
            ? GROUPS
            : 0;
    status = encode_maps(device, call, tokens, &p);
    if (status)
        return status;
    return host_launch_cluster(device, kernel->name, functions[shape][mode][formats],
                               dim3((unsigned)(plan.clusters << plan.split_shift)), 1 << plan.split_shift, THREADS,
                               (size_t)p.smem_bytes, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1], k = problem->dim[2];

    if (m < 1 || m > 64)
        return "is for m of 1 to 64";
    if (n == 0 || k == 0)
        return "nothing to multiply";
    if ((problem->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_ROW128)
        return "does not take scales of b by 1x128";
    if (problem->inputs_align < 4 || (problem->packed && k % 16))
        return "TMA needs rows of a and b that begin at multiples of 16 bytes";
    if (n > 0x7fffff00 || k > 0x7fffff00)
        return "n or k above 2^31 - 256";
    return NULL;
}

/* Microseconds: the weights of the CTA that has most, read at its part of 1.08 times the copy rate; 2.5 us for the
 * launch, 0.2 for each CTA that a reduction of partial sums waits for, and 2.5 where clusters have four CTAs or more.
 */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const decode_plan plan = plan_of(device, problem->dim[1], problem->dim[2]);

    return 2.5 + 0.2 * (1 << plan.split_shift) + (plan.split_shift > 1 ? 2.5 : 0) +
           (double)cta_weight_bytes(&plan) * device->units * 1e-3 / (1.08 * device->copy_gbps);
}

static const ridge_kernel row = {"cuda.gemm_fp8.decode",
                                 RIDGE_GEMM_FP8,
                                 RIDGE_ARCH_SM90,
                                 RIDGE_ARCH_SM90,
                                 RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_TYPICAL,
                                 0,
                                 {},
                                 why_not,
                                 NULL,
                                 cost,
                                 launch};

extern "C" const ridge_kernel_list ridge_cuda_gemm_decode_sm90 = {&row, 1, prepare};
