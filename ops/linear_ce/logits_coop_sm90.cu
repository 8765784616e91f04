/* logits_coop_sm90.cu: the product x W^T on Hopper, tiles of 128 x 256 in the cooperative schedule
 * (cuda/sm90/gemm_bf16.cuh), where the epilogue needs more registers than two pingpong tiles leave:
 *
 *     CE_STATS_OPTIONS  the sums of each row, in parts, with every option and output
 *     CE_PROBS_OPTIONS  P^T and the sum of E, with every option; CE_PROBS_OPTIONS_BEND: and the entropy's gradient
 *     CE_STATS_GATHER   maximum and sum of the listed rows, which the producer warps gather one by one
 *     CE_SAMPLE         u of a sample of the classes, with split-K
 *     CE_STATS_TOP      maximum, sum and entropy of each row with every option, and the lists of its top classes
 *     CE_STATS_DRAW     the same, and the class that is drawn
 *
 * The other kinds are in logits_pingpong_sm90.cu. */
#include "picks_sm90.cuh"

typedef struct coop_smem {
    gemm16_coop product;
    scheduler_queue queue;
    logits_plan plan;
} coop_smem;

/* The kinds that make P^T. */
#define PROBS_OF(what) ((what) == CE_PROBS_OPTIONS || (what) == CE_PROBS_OPTIONS_BEND)
/* Those that pick classes. What they keep of their rows lies where the others' panels do. */
#define PICKS_OF(what) ((what) == CE_STATS_TOP || (what) == CE_STATS_DRAW)
static_assert(sizeof(pick_smem) <= 2 * G16_PANEL, "a consumer has two panels");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ------------------------------------------------------------------------------------------------------- producer */

/* Gathered rows of A (ce_gathers_rows): each of the four warps of the producer warpgroup loads EACH rows of a stage, a
 * row a box, which TMA swizzles by the address as it does a row of a larger box. One elected lane issues them, STEP at
 * a time without a branch, as many as do not spill: issued by 32 lanes, a row each, they would leave 50 clocks apart,
 * which is too slow. */
enum { PRODUCER_WARPS = 4, EACH = G16_BLOCK_M / PRODUCER_WARPS };

template <int MN_B, int STEP>
static __device__ __forceinline__ void produce_gathered_tile(const ce_logits_args &a, const gemm16_plan &w,
                                                             gemm16_coop *s, int tile, uint32_t *n)
{
    const ce_params &p = a.c.p;
    const int rank = (int)ptx_cluster_rank(), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const uint32_t to = ptx_shared(s->a[0]) + warp * (EACH * 128), empty = ptx_shared(&s->empty[0]);
    const bool elected = ptx_elect();
    int pair, tile_n;

    gemm16_locate(w, tile, &pair, &tile_n);
    const int row = (G16_CLUSTER * pair + rank) * G16_BLOCK_M + threadIdx.x;
    const int token = row < w.m ? p.list[a.c.begin + row] : (int)p.tokens; /* beyond the last one: zeros */

    for (int kb = 0; kb < w.k_blocks; kb++, ++*n) {
        const pipeline_state at = pipeline_producer_at<gemm16_coop::STAGES>(*n);
        const uint32_t full = ptx_shared(&s->full[at.stage]);

        pipeline_acquire(empty, at);
        if (warp == 0 && elected) {
            ptx_mbarrier_expect(full, gemm16_coop::STAGE_BYTES);
            gemm16_load_half<MN_B, G16_COOP_N>({&a.w, tile_n * G16_COOP_N, kb * G16_BLOCK_K},
                                               ptx_shared(s->b[at.stage]), (uint32_t)rank, full);
        }
#pragma unroll STEP
        for (int i = 0; i < EACH; i++) {
            const int from = __shfl_sync(~0u, token, i);

            if (elected)
                ptx_tma_load_2d(to + at.stage * (G16_BLOCK_M * G16_BLOCK_K * 2) + i * 128, &a.x[1], kb * G16_BLOCK_K,
                                from, full);
        }
    }
}

/* Work tiles assigned beforehand: every `clusters`-th. */
template <int MN_B, int STEP>
static __device__ __forceinline__ void produce_gathered(const ce_logits_args &a, coop_smem *s, int clusters)
{
    const logits_plan &g = s->plan;
    uint32_t n = 0;

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.count; i += clusters) {
        const logits_tile work = logits_tile_of(g, i);

        for (int k = 0; k < work.count; k++)
            produce_gathered_tile<MN_B, STEP>(a, g.tiles, &s->product, work.first + k * work.step, &n);
    }
}

template <int MN_B>
static __device__ __forceinline__ void produce_sample(const ce_logits_args &a, coop_smem *s, int clusters)
{
    uint32_t n = 0;

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < s->plan.count; i += clusters)
        gemm16_produce_tile<0, MN_B>(a.x[s->plan.compact], a.w, s->plan.tiles, s->plan.first_m, &s->product, i, &n);
}

/* -------------------------------------------------------------------------------------------------------- consumer */

/* A split of the sample's u. */
static __device__ __forceinline__ void store_sample(const ce_logits_args &a, const gemm16_plan &w, int first, int split,
                                                    const float *acc)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = a.c.sample_u + (split * a.c.rows + first + 8 * h) * CE_SAMPLE_CLASSES + 2 * (threadIdx.x % 4);

        if (first + 8 * h >= w.m)
            continue;
#pragma unroll
        for (int j = 0; j < G16_COOP_N / 8; j++)
            *(float2 *)(to + 8 * j) = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
}

template <int BF16, int MN_B>
static __device__ __forceinline__ void consume_sample(const ce_logits_args &a, const gemm16_plan &w,
                                                      const gemm16_operands &at, int consumer, int clusters)
{
    const int thread = threadIdx.x % 128;
    gemm16_state state = {0, false};

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < w.count; i += clusters) {
        int pair, tile_n, first;
        const int split = gemm16_locate(w, i, &pair, &tile_n);
        float acc[G16_COOP_N / 2];

        gemm16_mainloop<BF16, 0, MN_B, gemm16_coop>(at, gemm16_blocks(w, split, &first), consumer, &state, acc);
        store_sample(a, w,
                     (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M + consumer * 64 + thread / 32 * 16 +
                         thread % 32 / 4,
                     split, acc);
    }
}

/* The epilogue of a tile of 64 x 256. */
template <int BF16, int WHAT>
static __device__ __forceinline__ void epilogue(const ce_logits_args &a, const gemm16_plan &w, gemm16_coop *s,
                                                int consumer, int part, int col, row_state *t, row_sums *sums,
                                                float *acc)
{
    constexpr int OPTIONS = WHAT == CE_STATS_OPTIONS || PICKS_OF(WHAT) || PROBS_OF(WHAT);
    constexpr int WITH = PROB_OPTIONS | (WHAT == CE_PROBS_OPTIONS_BEND ? PROB_BEND : 0);

#pragma unroll
    for (int h = 0; h < 2; h++) /* first use: else the first main loop would wait for these loads */
        asm volatile("" : "+r"(t->target[h]), "+f"(t->exponent[h]));
    to_logits<OPTIONS>(a, w, s, consumer, col, acc);
    store_target_logit<G16_COOP_N>(a, *t, col, acc);
    if (WHAT == CE_STATS_GATHER)
#pragma unroll
        for (int h = 0; h < 2; h++)
            add_logits<G16_COOP_N, 0>(sums, h, acc);
    if (PICKS_OF(WHAT))
        add_picks<G16_COOP_N, WHAT == CE_STATS_DRAW>(a, w, (pick_smem *)s->d[consumer][0], 0, col, acc);
    if (WHAT == CE_STATS_OPTIONS) {
        columns_to_shared(a, w, s, consumer, col, true);
        add_stats_options(a, w, s, consumer, *t, part, col, acc);
    }
    if (PROBS_OF(WHAT))
        probs_to_shared<BF16, WITH, G16_COOP_N>(a, w, s, ptx_shared(s->d[consumer][0]), consumer, t, col, acc);
}

/* gathers: work tiles are assigned beforehand instead of drawn from the queue. */
template <int BF16, int MN_B, int WHAT>
static __device__ __forceinline__ void consume(const ce_logits_args &a, coop_smem *s, const gemm16_operands &at,
                                               int consumer, int clusters, bool gathers)
{
    const logits_plan &g = s->plan;
    const gemm16_plan &w = g.tiles;
    const int thread = threadIdx.x % 128;
    gemm16_state state = {0, false};
    queue_state queue = queue_begin(&s->queue);

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.count; i = gathers ? i + clusters : queue_next(&queue)) {
        const logits_tile work = logits_tile_of(g, i);
        int pair, tile_n;

        gemm16_tile(w.tiles, work.first, &pair, &tile_n);
        const int local = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M + consumer * 64 +
                          thread / 32 * 16 + thread % 32 / 4;
        float acc[G16_COOP_N / 2];
        row_state t = {};
        row_sums sums = {{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}, {0.0f, 0.0f}};
        pick_smem *picks = (pick_smem *)s->product.d[consumer][0];

        if (PICKS_OF(WHAT))
            top_begin(a, picks, 64, local - pick_first(), work.part);
        if (WHAT != CE_STATS_OPTIONS && !PICKS_OF(WHAT)) /* there it would spill */
            t = rows_of<PROBS_OF(WHAT)>(a, w, local);
        for (int col = tile_n * G16_COOP_N, end = col + work.count * G16_COOP_N; col < end; col += G16_COOP_N) {
            if (WHAT == CE_STATS_TOP)
                top_before_tile<G16_COOP_N>(a, picks, 64);
            gemm16_mainloop<BF16, 0, MN_B, gemm16_coop>(at, w.k_blocks, consumer, &state, acc);
            if (WHAT == CE_STATS_OPTIONS || PICKS_OF(WHAT))
                t = rows_of<0>(a, w, local);
            epilogue<BF16, WHAT>(a, w, &s->product, consumer, work.part, col, &t, &sums, acc);
        }
        if (WHAT == CE_STATS_GATHER)
            store_part<0>(a, w, sums, local, work.part);
        if (PICKS_OF(WHAT))
            store_picks<WHAT == CE_STATS_DRAW>(a, w, picks, 0);
        if (PROBS_OF(WHAT) && a.sums)
            store_sums(a, t, work.part);
    }
}

/* The store warp of a consumer. */
static __device__ __forceinline__ void store_probs(const ce_logits_args &a, coop_smem *s, int consumer)
{
    const logits_plan &g = s->plan;
    queue_state queue = queue_begin(&s->queue);

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.count; i = queue_next(&queue)) {
        const logits_tile work = logits_tile_of(g, i);
        int pair, tile_n;

        gemm16_tile(g.tiles.tiles, work.first, &pair, &tile_n);
        const int row = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M + consumer * 64;

        for (int c = tile_n * G16_COOP_N, end = c + work.count * G16_COOP_N; c < end; c += G16_COOP_N / 2)
            store_panel(a, g.tiles, ptx_shared(s->product.d[consumer][0]), consumer, row, c);
    }
    if (threadIdx.x % 32 == 0)
        ptx_tma_wait();
}

#endif

template <int BF16, int MN_B, int WHAT>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_logits_coop(const __grid_constant__ ce_logits_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int PROBS = PROBS_OF(WHAT), STATS = WHAT == CE_STATS_OPTIONS || WHAT == CE_STATS_GATHER || PICKS_OF(WHAT);
    extern __shared__ __align__(1024) uint8_t shared[];
    coop_smem *s = (coop_smem *)shared;
    const int clusters = (int)gridDim.x / G16_CLUSTER;

    if (threadIdx.x == 0)
        queue_init<G16_CLUSTER>(&s->queue, (PROBS ? 10 : 8) * G16_CLUSTER);
    gemm16_prologue(&s->product, 8);
    const bool gathers = STATS && ce_gathers_rows(a.c);
    if (threadIdx.x == 0) {
        s->plan = logits_plan_of(a, WHAT == CE_SAMPLE, G16_COOP_N, 1);
        if ((WHAT == CE_STATS_GATHER || (WHAT == CE_STATS_TOP && a.only_gathers)) && !gathers) /* pingpong does it */
            s->plan.count = 0;
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        ptx_setmaxnreg_dec<56>();
        if (gathers)
            produce_gathered<MN_B, WHAT == CE_STATS_GATHER ? EACH : WHAT == CE_STATS_TOP ? 16 : 8>(a, s, clusters);
        else if (WHAT == CE_SAMPLE && threadIdx.x == 0)
            produce_sample<MN_B>(a, s, clusters);
        else if (WHAT != CE_SAMPLE && threadIdx.x == 0)
            produce<MN_B>(a, s);
        if (PROBS && (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2))
            store_probs(a, s, (int)threadIdx.x / 32 - 1);
    } else {
        const int consumer = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;
        const gemm16_operands at = gemm16_operands_of<0, MN_B>(&s->product, consumer);

        ptx_setmaxnreg_inc<224>();
        gemm16_stagger_wait(consumer, (int)blockIdx.x / G16_CLUSTER < s->plan.count);
        if (WHAT == CE_SAMPLE)
            consume_sample<BF16, MN_B>(a, s->plan.tiles, at, consumer, clusters);
        else
            consume<BF16, MN_B, WHAT>(a, s, at, consumer, clusters, gathers);
    }
    __syncwarp();       /* the cluster barrier is .aligned; only one thread of the producer's warp ran its loop */
    ptx_cluster_sync(); /* a CTA's shared memory must outlive the other CTA's writes and arrivals */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype, and by layout of W, [V, H] or [H, V]: the products from CE_STATS_OPTIONS on. */
#define LOGITS_OF(bf16, mn_b)                                            \
    (const void *)ce_logits_coop<bf16, mn_b, CE_STATS_OPTIONS>,          \
        (const void *)ce_logits_coop<bf16, mn_b, CE_PROBS_OPTIONS>,      \
        (const void *)ce_logits_coop<bf16, mn_b, CE_SAMPLE>,             \
        (const void *)ce_logits_coop<bf16, mn_b, CE_STATS_GATHER>,       \
        (const void *)ce_logits_coop<bf16, mn_b, CE_PROBS_OPTIONS_BEND>, \
        (const void *)ce_logits_coop<bf16, mn_b, CE_STATS_TOP>,          \
        (const void *)ce_logits_coop<bf16, mn_b, CE_STATS_DRAW>

enum { KINDS = CE_STATS_DRAW - CE_STATS_OPTIONS + 1, FUNCTIONS = 2 * KINDS };
static const void *const functions[2][FUNCTIONS] = {{LOGITS_OF(0, 0), LOGITS_OF(0, 1)},
                                                    {LOGITS_OF(1, 0), LOGITS_OF(1, 1)}};

ridge_status ce_logits_prepare(const ridge_device *device)
{
    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    const ridge_status status =
        host_prepare(device, &functions[0][0], 2 * FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize,
                     (int)sizeof(coop_smem), "linear_ce: loading kernels");

    return status ? status : ce_pingpong_prepare(device);
}

int ce_row_parts(const ridge_device *device, const ridge_problem *problem)
{
    const int64_t tiles = (problem->dim[2] + G16_COOP_N - 1) / G16_COOP_N,
                  own = (problem->dim[2] + G16_PINGPONG_N - 1) / G16_PINGPONG_N;
    const int64_t clusters = device->units / G16_CLUSTER;
    /* Eval has 8 bytes of workspace a token and SM, of which other members take 48 a token. */
    const int64_t most = problem->op == RIDGE_LINEAR_CE_EVAL ? ridge_max(device->units - 6, 1) : clusters;

    if (ce_wants_top(problem)) { /* lists of at most CE_TOP_ROWS rows: two parts of a column of work tiles */
        const int64_t pairs = ridge_ceil_div(ridge_min(problem->dim[0], CE_TOP_ROWS), G16_CLUSTER * G16_BLOCK_M);

        return (int)ridge_max(ridge_min(own, 2), ridge_min(tiles, 2 * (clusters / ridge_max(pairs, 1) + 1)));
    }
    /* every tile may be a part until there are as many as clusters; of more tiles most are in pairs */
    return (int)ridge_min(ridge_max(tiles - tiles / 3, ridge_min(own, ridge_max(clusters, 2))), ridge_max(most, 2));
}

/* How the columns of tiles make work tiles, whose sums are `parts` parts of a row's sum if they are wide and one if
 * they are single: the narrowest wide ones that leave single tiles for the end, within the parts that there is
 * workspace for. Of choices that leave none, the one whose clusters finish first. There always is a choice: the first
 * one leaves at most as many parts as allowed. lists: rows have lists, so that few parts are better than single tiles:
 * each cluster has a wide work tile, and those for which none is left share the rest of the columns. */
static void choose_parts(const ridge_device *device, ce_logits_args *g, int block_n, int parts, bool lists)
{
    const int64_t tiles = ((int64_t)g->n + block_n - 1) / block_n, allowed = g->c.p.part ? g->c.p.parts : device->units;
    const int64_t most = ridge_max(allowed / parts * parts, 1);
    const int64_t pairs = (g->c.rows + G16_CLUSTER * G16_BLOCK_M - 1) / (G16_CLUSTER * G16_BLOCK_M);
    const int64_t least = (tiles + most - 1) / most, clusters = device->units / G16_CLUSTER;
    const int64_t even = (tiles * pairs + clusters - 1) / clusters;
    int64_t best = INT64_MAX;

    g->single_cols = 1;
    if (lists && (tiles + even - 1) / even * parts <= most) {
        g->wide = (int)(tiles / even);
        g->tile_cols = (int)even;
        g->single_cols = (int)ridge_max(tiles % even, 1);
        return;
    }
    for (int64_t each = least; each < least + 32 && best > even; each++) { /* tiles of a part of a wide work tile */
        const int64_t columns = each * parts, all = (tiles + columns - 1) / columns, saved = columns - parts;
        const int64_t wide = saved ? ridge_min((tiles - most + saved - 1) / saved, all) : 0;
        const int64_t time = (wide * pairs + clusters - 1) / clusters * columns;

        if (wide * parts + ridge_max(tiles - wide * columns, 0) > most || time >= best)
            continue;
        best = time;
        g->wide = (int)wide;
        g->tile_cols = (int)columns;
    }
}

ridge_status ce_logits_launch(const ridge_device *device, const char *name, int what, ce_logits_args *g, void *stream)
{
    const bool pingpong = ce_is_pingpong(what);
    const int64_t rows = G16_CLUSTER * G16_BLOCK_M;
    const int block_n = pingpong ? G16_PINGPONG_N : G16_COOP_N, clusters = device->units / G16_CLUSTER;
    const int64_t tiles = (g->c.rows + rows - 1) / rows * (((int64_t)g->n + block_n - 1) / block_n) * g->splits;
    const int64_t blocks = ridge_min(tiles, clusters) * G16_CLUSTER;

    if (tiles == 0)
        return RIDGE_OK;
    choose_parts(device, g, block_n, ce_parts_of_tile(what), what == CE_STATS_TOP || what == CE_STATS_TOP_PLAIN);
    if (pingpong)
        return ce_pingpong_launch(device, name, what, g, (unsigned)blocks, stream);
    return host_launch_cluster(device, name,
                               functions[g->c.p.dtype == RIDGE_BF16][what - CE_STATS_OPTIONS + KINDS * g->c.p.hv],
                               dim3((unsigned)blocks), G16_CLUSTER, G16_THREADS, sizeof(coop_smem), g, stream);
}
