/* logits_coop_sm90.cu: the first product of the linear cross entropy on Hopper, logits x W^T, with its epilogue in
 * registers: P^T and the sum of E, or the maximum and sum of exponentials by row and part, with whatever options and
 * outputs (*_EXTRA); those of rows loaded by their numbers (CE_LISTED); or u of a sample of the classes (CE_LOOK).
 * CE_STATS and CE_PROBS themselves have logits_pingpong_sm90.cu. */
#include "logits_epilogue_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What the warpgroup's put_probs leaves in shared memory. */
static __device__ __forceinline__ void send_probs(const ce_product &a, const logits_plan &g, logits_memory *s,
                                                  int group)
{
    ce_ring ring = ce_ring_of(&s->items);

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.items; i = ce_next_item(&ring)) {
        const logits_item item = item_of(g, i);
        int pair, tile_n;

        gemm16_tile(g.tiles, item.first, &pair, &tile_n);
        const int row = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + group * 64;

        for (int c = tile_n * G16_N, end = c + item.count * G16_N; c < end; c += G16_N / 2)
            send_panel(a, g.tiles, ptx_shared(s->product.d[group][0]), group, row, c);
    }
    if (threadIdx.x % 32 == 0)
        ptx_tma_wait();
}

/* A piece of the sample's u. */
static __device__ __forceinline__ void put_look(const ce_product &a, const gemm16_work &w, int first, int piece,
                                                const float *acc)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = a.c.look + (piece * a.c.rows + first + 8 * h) * CE_SAMPLE + 2 * (threadIdx.x % 4);

        if (first + 8 * h >= w.m)
            continue;
#pragma unroll
        for (int j = 0; j < G16_N / 8; j++)
            *(float2 *)(to + 8 * j) = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
}

/* Rows of A by their numbers, see ce_by_number: each of the loading warps brings EACH of them, a row a box, which TMA
 * swizzles by the address as it does a row of a whole box. One elected lane sends them off, STEP at a time without a
 * branch: 32 lanes with a row each would leave 50 clocks apart, too late. */
enum { LOADERS = 4, EACH = G16_M / LOADERS };

template <int MN_B, int STEP>
static __device__ __forceinline__ void gather_item(const ce_product &a, const gemm16_work &w, gemm16_memory *s,
                                                   int item, uint32_t *n)
{
    const ce_params &p = a.c.p;
    const int rank = (int)ptx_cluster_rank(), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const uint32_t to = ptx_shared(s->a[0]) + warp * (EACH * 128);
    const bool one = ptx_elect();
    int pair, tile_n;

    gemm16_locate(w, item, &pair, &tile_n);
    const int row = (G16_CLUSTER * pair + rank) * G16_M + threadIdx.x;
    const int token = row < w.m ? p.list[a.c.begin + row] : (int)p.tokens; /* beyond the last one: zeros */

    for (int kb = 0; kb < w.blocks; kb++, ++*n) {
        const uint32_t stage = *n % G16_STAGES, full = ptx_shared(&s->full[stage]);

        ptx_mbarrier_wait(ptx_shared(&s->empty[stage]), (*n / G16_STAGES & 1) ^ 1);
        if (warp == 0 && one) {
            ptx_mbarrier_expect(full, gemm16_memory::BYTES);
            gemm16_load_half<MN_B, G16_N>(&a.maps.b, ptx_shared(s->b[stage]), tile_n * G16_N, kb * G16_K,
                                          (uint32_t)rank, full);
        }
#pragma unroll STEP
        for (int i = 0; i < EACH; i++) {
            const int at = __shfl_sync(~0u, token, i);

            if (one)
                ptx_tma_load_2d(to + stage * (G16_M * G16_K * 2) + i * 128, &a.maps.a[1], kb * G16_K, at, full);
        }
    }
}

#endif

template <int BF16, int MN_B, int WHAT>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_gemm(const __grid_constant__ ce_product a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int EXTRA = WHAT == CE_STATS_EXTRA || WHAT == CE_PROBS_EXTRA;
    constexpr int PROBS = WHAT == CE_PROBS_EXTRA;
    extern __shared__ __align__(1024) uint8_t shared[];
    logits_memory *s = (logits_memory *)shared;
    constexpr int STATS = WHAT == CE_STATS_EXTRA || WHAT == CE_LISTED;
    const int clusters = (int)gridDim.x / G16_CLUSTER;

    if (threadIdx.x == 0)
        ce_items_begin(&s->items, (PROBS ? 10 : 8) * G16_CLUSTER);
    gemm16_begin(&s->product, 8);
    const bool gather = STATS && ce_by_number(a.c);
    if (threadIdx.x == 0) {
        s->plan = plan_of(a, WHAT == CE_LOOK, G16_N, 1);
        if (WHAT == CE_LISTED && !gather) /* CE_STATS's */
            s->plan.items = 0;
    }
    __syncthreads();
    const logits_plan &g = s->plan;
    const gemm16_work &w = g.tiles;
    const bool fixed = WHAT == CE_LOOK || gather; /* nobody takes anything: items are assigned beforehand */

    if (threadIdx.x < 128) {
        uint32_t n = 0;

        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (gather) {
            for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.items; i += clusters) {
                const logits_item item = item_of(g, i);

                for (int k = 0; k < item.count; k++)
                    gather_item<MN_B, WHAT == CE_LISTED ? EACH : 4>(a, w, &s->product, item.first + k * item.step,
                                                                    &n); /* more would spill */
            }
        } else if (WHAT == CE_LOOK) {
            for (int i = (int)blockIdx.x / G16_CLUSTER; threadIdx.x == 0 && i < g.items; i += clusters)
                gemm16_load<0, MN_B>(a.maps, w, &s->product, i, &n);
        } else if (threadIdx.x == 0) {
            load_items<MN_B>(a, g, &s->product, &s->items);
        }
        if (PROBS && (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2))
            send_probs(a, g, s, (int)threadIdx.x / 32 - 1);
    } else {
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1, thread = threadIdx.x % 128;
        const gemm16_places at = gemm16_places_of<0, MN_B>(&s->product, group);
        gemm16_turn turn = {0, false};
        ce_ring ring = ce_ring_of(&s->items);

        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        gemm16_stagger(group, (int)blockIdx.x / G16_CLUSTER < g.items);
        for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.items; i = fixed ? i + clusters : ce_next_item(&ring)) {
            const logits_item item = WHAT == CE_LOOK ? logits_item{i, 0, 1, 0} : item_of(g, i);
            int pair, tile_n, first_block;
            const int piece = WHAT == CE_LOOK ? gemm16_locate(w, item.first, &pair, &tile_n)
                                              : (gemm16_tile(w, item.first, &pair, &tile_n), 0);
            const int blocks = WHAT == CE_LOOK ? gemm16_blocks(w, piece, &first_block) : w.blocks;
            const int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + group * 64;
            const int local = first + thread / 32 * 16 + thread % 32 / 4;
            float acc[G16_N / 2];
            item_rows t = {};
            item_sums sums = {{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}};

            if (WHAT == CE_LOOK) {
                gemm16_multiply<BF16, 0, MN_B>(at, blocks, group, &turn, acc);
                put_look(a, w, local, piece, acc);
                continue;
            }
            if (WHAT != CE_STATS_EXTRA) /* there registers would spill */
                t = rows_of<PROBS>(a, w, local);
            for (int col = tile_n * G16_N, end = col + item.count * G16_N; col < end; col += G16_N) {
                gemm16_multiply<BF16, 0, MN_B>(at, blocks, group, &turn, acc);
                if (WHAT == CE_STATS_EXTRA)
                    t = rows_of<PROBS>(a, w, local);
#pragma unroll
                for (int h = 0; h < 2; h++) /* looked at here: else an item's first product would wait for them */
                    asm volatile("" : "+r"(t.target[h]), "+f"(t.exponent[h]));
                to_logits<EXTRA>(a, w, &s->product, group, col, acc);
                put_target<G16_N>(a, t, col, acc);
                if (WHAT == CE_LISTED)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        add_logits<G16_N>(&sums, h, acc);
                if (WHAT == CE_STATS_EXTRA) {
                    share_columns(a, w, &s->product, group, col, true);
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        put_stats_full(a, w, &s->product, group, t, item.part, h, col, acc);
                }
                if (PROBS)
                    put_probs<BF16, EXTRA, G16_N>(a, w, &s->product, ptx_shared(s->product.d[group][0]), group, &t, col,
                                                  acc);
            }
            if (WHAT == CE_LISTED)
                put_stats(a, w, sums, local, item.part);
            if (PROBS && a.sums)
                put_sums(a, t, item.part);
        }
    }
    __syncwarp();       /* one thread alone went through the loading loop, or sent P^T; the barrier is an aligned one */
    ptx_cluster_sync(); /* nobody leaves while the other one may write to it */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype, then: those that are not in turn, from CE_STATS_EXTRA on, with W [V, H], and with W [H, V]. */
#define LOGITS_OF(bf16, mn_b)                                                                             \
    (const void *)ce_gemm<bf16, mn_b, CE_STATS_EXTRA>, (const void *)ce_gemm<bf16, mn_b, CE_PROBS_EXTRA>, \
        (const void *)ce_gemm<bf16, mn_b, CE_LOOK>, (const void *)ce_gemm<bf16, mn_b, CE_LISTED>

enum { FUNCTIONS = 8 };
static const void *const functions[2][FUNCTIONS] = {{LOGITS_OF(0, 0), LOGITS_OF(0, 1)},
                                                    {LOGITS_OF(1, 0), LOGITS_OF(1, 1)}};

ridge_status ce_product_prepare(const ridge_device *device)
{
    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    const ridge_status status =
        host_prepare(device, &functions[0][0], 2 * FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize,
                     (int)sizeof(logits_memory), "linear_ce: loading kernels");

    return status ? status : ce_turns_prepare(device);
}

int ce_product_splits(const ridge_device *device, const ridge_problem *problem)
{
    const int64_t tiles = (problem->dim[2] + G16_N - 1) / G16_N, own = (problem->dim[2] + G16_TURN_N - 1) / G16_TURN_N;
    const int64_t clusters = device->units / G16_CLUSTER;
    /* Of eval's 8 bytes a token and SM, 48 are for what else it keeps of a token. */
    const int64_t most = problem->op == RIDGE_LINEAR_CE_EVAL ? ce_most(device->units - 6, 1) : clusters;

    /* every tile may be a part until there is one for each cluster; of more tiles most are in pairs */
    return (int)ce_least(ce_most(tiles - tiles / 3, ce_least(own, ce_most(clusters, 2))), ce_most(most, 2));
}

/* How columns of tiles make parts, an item's tiles one or two: as narrow ones as there may be that leave single tiles
 * for the end; sums of their own. If there are none such, whatever keeps all clusters busy for the shortest time. There
 * is always such a choice: the first one leaves at most as many parts as there may be. */
static void choose_parts(const ridge_device *device, ce_product *g, int width, int parts)
{
    const int64_t tiles = ((int64_t)g->n + width - 1) / width, room = g->c.p.part ? g->c.p.splits : device->units;
    const int64_t most = ce_most(room / parts * parts, 1);
    const int64_t pairs = (g->c.rows + G16_CLUSTER * G16_M - 1) / (G16_CLUSTER * G16_M);
    const int64_t least = (tiles + most - 1) / most, clusters = device->units / G16_CLUSTER;
    const int64_t even = (tiles * pairs + clusters - 1) / clusters;
    int64_t best = INT64_MAX;

    for (int64_t each = least; each < least + 32 && best > even; each++) { /* tiles of a part of a wide item */
        const int64_t columns = each * parts, all = (tiles + columns - 1) / columns, saved = columns - parts;
        const int64_t wide = saved ? ce_least((tiles - most + saved - 1) / saved, all) : 0;
        const int64_t time = (wide * pairs + clusters - 1) / clusters * columns;

        if (wide * parts + ce_most(tiles - wide * columns, 0) > most || time >= best)
            continue;
        best = time;
        g->wide = (int)wide;
        g->columns = (int)columns;
    }
}

ridge_status ce_product_launch(const ridge_device *device, const char *name, int what, ce_product *g, void *stream)
{
    const bool in_turn = ce_in_turn(what);
    const int64_t rows = G16_CLUSTER * G16_M;
    const int width = in_turn ? G16_TURN_N : G16_N, clusters = device->units / G16_CLUSTER;
    const int64_t items = (g->c.rows + rows - 1) / rows * (((int64_t)g->n + width - 1) / width) * g->pieces;
    const int64_t blocks = ce_least(items, clusters) * G16_CLUSTER;

    if (items == 0)
        return RIDGE_OK;
    choose_parts(device, g, width, ce_parts(what));
    if (in_turn)
        return ce_turns_launch(device, name, what, g, (unsigned)blocks, stream);
    return host_launch_cluster(device, name,
                               functions[g->c.p.dtype == RIDGE_BF16][what - CE_STATS_EXTRA + 4 * g->c.p.hv],
                               dim3((unsigned)blocks), G16_CLUSTER, G16_THREADS, sizeof(logits_memory), g, stream);
}
