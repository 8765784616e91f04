/* logits_pingpong_sm90.cu: the product x W^T on Hopper without options, tiles of 128 x 192 in the pingpong schedule
 * (cuda/sm90/gemm_bf16.cuh), and the targets' logits. CE_STATS (eval; train where a prediction was bad): maximum and
 * sum of exponentials of each row, in parts. CE_PROBS: P^T and the sum of E. CE_PROBS_BEND: P^T with the gradient of
 * the entropy. CE_STATS_TOP_PLAIN: sums, entropy and the lists of the top classes, at any temperature; CE_STATS_IDS:
 * the same with the logits of given ids in place of lists.
 *
 * Warpgroup 0: thread 0 is the producer; warps 1 and 2 (CE_PROBS) store the panels of P^T of one consumer each.
 * Warpgroups 1 and 2: the consumers. docs/design.md has a drawing. */
#include "picks_sm90.cuh"

/* acc of 64 rows; classes of a panel: a tile's P^T leaves in four panels of 96 classes x 64 rows. */
enum { HALF = G16_PINGPONG_N / 2, PANEL_CLASSES = G16_PINGPONG_N / 2, CONSUMER_WARPS = 4 };

/* The kinds that make P^T. */
#define IS_PROBS(what) ((what) == CE_PROBS || (what) == CE_PROBS_BEND)
/* Those that pick classes. */
#define IS_PICKS(what) ((what) == CE_STATS_TOP_PLAIN || (what) == CE_STATS_IDS)

static_assert(sizeof(pick_smem) <= PANEL_CLASSES * 128, "a consumer that picks has its pick_smem in its panel");

typedef struct pingpong_smem {
    uint8_t d[2][PANEL_CLASSES * 128]; /* by consumer: a panel for TMA to store */
    gemm16_pingpong product;
    scheduler_queue queue;
    logits_plan plan;
} pingpong_smem;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The epilogue of 64 rows of a tile: P^T and the sum of E, or maximum and sum. */
template <int BF16, int WHAT>
static __device__ __forceinline__ void epilogue_half(const ce_logits_args &a, const gemm16_plan &w, pingpong_smem *s,
                                                     int consumer, int first, int col, row_sums *sums, float *acc)
{
    row_state t =
        rows_of<WHAT == CE_PROBS>(a, w, first); /* loaded once a tile: kept from tile to tile it would spill */

    mask_columns<G16_PINGPONG_N>(w, col, acc);
    store_target_logit<G16_PINGPONG_N>(a, t, col, acc);
    if (IS_PROBS(WHAT)) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            t.sum[h] = sums->sum[h];
        probs_to_shared<BF16, WHAT == CE_PROBS_BEND ? PROB_BEND : 0, G16_PINGPONG_N>(
            a, w, NULL, ptx_shared(s->d[consumer]), consumer, &t, col, acc);
#pragma unroll
        for (int h = 0; h < 2; h++)
            sums->sum[h] = t.sum[h];
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++)
            add_logits<G16_PINGPONG_N, WHAT == CE_STATS_SPREAD>(sums, h, acc);
    }
}

/* The epilogue of 64 rows of a tile of CE_STATS_TOP_PLAIN or CE_STATS_IDS. */
template <int WHAT>
static __device__ __forceinline__ void epilogue_picks(const ce_logits_args &a, const gemm16_plan &w, pick_smem *s,
                                                      int half, int col, float *acc)
{
    const row_state t = rows_of<0>(a, w, pick_row_of(&s->tile, half));
    const float cool = s->tile.cool[pick_warp()];

#pragma unroll
    for (int i = 0; i < HALF; i++)
        acc[i] *= cool;
    mask_columns<G16_PINGPONG_N>(w, col, acc);
    store_target_logit<G16_PINGPONG_N>(a, t, col, acc);
    if (WHAT == CE_STATS_IDS)
        add_sums_and_ids<G16_PINGPONG_N>(a, s, half, col, acc);
    else
        add_picks<G16_PINGPONG_N, false>(a, w, s, half, col, acc);
}

/* After a work tile: adds the sums of E to its part, which is 0 before. Two consumers add; the order of two does not
 * change the bits. */
static __device__ __forceinline__ void add_row_sums(const ce_logits_args &a, const gemm16_plan &w, const float *sums,
                                                    int first, int part)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = quad_sum(sums[h]);

        if (first + 8 * h < w.m && threadIdx.x % 4 == 0)
            atomicAdd(&part_of(a, (int)a.c.begin + first + 8 * h, part)->sum, sum);
    }
}

/* A consumer: its tiles of all work tiles. */
template <int BF16, int MN_B, int WHAT>
static __device__ __forceinline__ void consume(const ce_logits_args &a, pingpong_smem *s, int consumer)
{
    const logits_plan &g = s->plan;
    const gemm16_plan &w = g.tiles;
    const int thread = threadIdx.x % 128;
    const gemm16_operands at = gemm16_operands_of<0, MN_B>(&s->product, 0);
    queue_state queue = queue_begin(&s->queue);
    uint32_t tiles = 0;

    gemm16_order_begin(consumer);
    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.count; i = queue_next(&queue)) {
        const logits_tile work = logits_tile_of(g, i);
        const int own = gemm16_first_own(tiles, consumer);
        gemm16_state state = {(tiles + (uint32_t)own) * (uint32_t)w.k_blocks, false};
        int pair, tile_n;

        tiles += (uint32_t)work.count;
        if (own >= work.count)
            continue;
        gemm16_tile(w.tiles, work.first, &pair, &tile_n);
        const int first =
            (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M + thread / 32 * 16 + thread % 32 / 4;
        const int part = work.part + (IS_PROBS(WHAT) ? 0 : own), end = (tile_n + work.count) * G16_PINGPONG_N;
        row_sums sums[2] = {{{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}, {0.0f, 0.0f}},
                            {{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}, {0.0f, 0.0f}}};
        pick_smem *picks = (pick_smem *)s->d[consumer];

        if (WHAT == CE_STATS_TOP_PLAIN)
            top_begin(a, picks, G16_BLOCK_M, (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M, part);
        if (WHAT == CE_STATS_IDS)
            ids_begin(a, w, picks, G16_BLOCK_M, (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M, part,
                      (tile_n + own) * G16_PINGPONG_N);
        for (int col = (tile_n + own) * G16_PINGPONG_N; col < end; col += 2 * G16_PINGPONG_N) {
            float acc[2 * HALF];

            if (WHAT == CE_STATS_TOP_PLAIN)
                top_before_tile<G16_PINGPONG_N>(a, picks, G16_BLOCK_M);
            gemm16_mainloop<BF16, 0, MN_B, gemm16_pingpong>(at, w.k_blocks, consumer, &state, acc);
            state.n += (uint32_t)w.k_blocks; /* the other consumer's tile */
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (IS_PICKS(WHAT))
                    epilogue_picks<WHAT>(a, w, picks, half, col, acc + half * HALF);
                else
                    epilogue_half<BF16, WHAT>(a, w, s, consumer, first + 64 * half, col, &sums[half],
                                              acc + half * HALF);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (WHAT == CE_STATS_IDS)
                store_pick_sums(a, w, &picks->tile, half);
            else if (WHAT == CE_STATS_TOP_PLAIN)
                store_picks<false>(a, w, picks, half);
            else if (!IS_PROBS(WHAT))
                store_part<WHAT == CE_STATS_SPREAD>(a, w, sums[half], first + 64 * half, part);
            else if (WHAT == CE_PROBS && a.sums)
                add_row_sums(a, w, sums[half].sum, first + 64 * half, part);
    }
    gemm16_order_end(consumer, tiles);
}

/* The store warp of a consumer. */
static __device__ __forceinline__ void store_probs(const ce_logits_args &a, pingpong_smem *s, int consumer)
{
    const logits_plan &g = s->plan;
    queue_state queue = queue_begin(&s->queue);
    uint32_t tiles = 0;

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.count; i = queue_next(&queue)) {
        const logits_tile work = logits_tile_of(g, i);
        int pair, tile_n;

        gemm16_tile(g.tiles.tiles, work.first, &pair, &tile_n);
        const int row = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M;

        for (int k = gemm16_first_own(tiles, consumer); k < work.count; k += 2)
            for (int panel = 0; panel < 4; panel++)
                store_panel(a, g.tiles, ptx_shared(s->d[consumer]), consumer, row + panel / 2 * 64,
                            (tile_n + k) * G16_PINGPONG_N + panel % 2 * PANEL_CLASSES);
        tiles += (uint32_t)work.count;
    }
    if (threadIdx.x % 32 == 0)
        ptx_tma_wait();
}

#endif

template <int BF16, int MN_B, int WHAT>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_logits_pingpong(const __grid_constant__ ce_logits_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    pingpong_smem *s = (pingpong_smem *)shared;

    if (threadIdx.x == 0)
        queue_init<G16_CLUSTER>(&s->queue, (2 * CONSUMER_WARPS + (IS_PROBS(WHAT) ? 2 : 0)) * G16_CLUSTER);
    gemm16_prologue(&s->product, CONSUMER_WARPS);
    if (threadIdx.x == 0) {
        s->plan = logits_plan_of(a, false, G16_PINGPONG_N, IS_PROBS(WHAT) ? 1 : 2);
        if (!IS_PROBS(WHAT) && ce_gathers_rows(a.c)) /* CE_STATS_GATHER does it */
            s->plan.count = 0;
    }
    __syncthreads();
    const int consumer = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;

    if (consumer < 0) {
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

        if (IS_PICKS(WHAT))
            ptx_setmaxnreg_dec<40>();
        else
            ptx_setmaxnreg_dec<56>();
        if (threadIdx.x == 0)
            produce<MN_B>(a, s);
        else if (IS_PROBS(WHAT) && (warp == 1 || warp == 2))
            store_probs(a, s, warp - 1);
    } else {
        if (IS_PICKS(WHAT))
            ptx_setmaxnreg_inc<232>();
        else
            ptx_setmaxnreg_inc<224>();
        consume<BF16, MN_B, WHAT>(a, s, consumer);
    }
    __syncwarp();       /* the cluster barrier is .aligned; only one thread of the producer's warp ran its loop */
    ptx_cluster_sync(); /* a CTA's shared memory must outlive the other CTA's writes and arrivals */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype, and by layout of W, [V, H] or [H, V]: the kinds. */
#define PINGPONG_OF(bf16, mn_b)                                                                                     \
    (const void *)ce_logits_pingpong<bf16, mn_b, CE_STATS>, (const void *)ce_logits_pingpong<bf16, mn_b, CE_PROBS>, \
        (const void *)ce_logits_pingpong<bf16, mn_b, CE_PROBS_BEND>,                                                \
        (const void *)ce_logits_pingpong<bf16, mn_b, CE_STATS_SPREAD>,                                              \
        (const void *)ce_logits_pingpong<bf16, mn_b, CE_STATS_TOP_PLAIN>,                                           \
        (const void *)ce_logits_pingpong<bf16, mn_b, CE_STATS_IDS>

enum { KINDS = 6, FUNCTIONS = 2 * KINDS };
static const void *const functions[2][FUNCTIONS] = {{PINGPONG_OF(0, 0), PINGPONG_OF(0, 1)},
                                                    {PINGPONG_OF(1, 0), PINGPONG_OF(1, 1)}};

ridge_status ce_pingpong_prepare(const ridge_device *device)
{
    return host_prepare(device, &functions[0][0], 2 * FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        (int)sizeof(pingpong_smem), "linear_ce: loading kernels");
}

ridge_status ce_pingpong_launch(const ridge_device *device, const char *name, int what, ce_logits_args *g,
                                unsigned blocks, void *stream)
{
    const int kind = what <= CE_PROBS ? what : 2 + what - CE_PROBS_BEND;
    return host_launch_cluster(device, name, functions[g->c.p.dtype == RIDGE_BF16][KINDS * g->c.p.hv + kind],
                               dim3(blocks), G16_CLUSTER, G16_THREADS, sizeof(pingpong_smem), g, stream);
}
