/* logits_pingpong_sm90.cu: the logits' product on Hopper without options, whose warpgroups have tiles of their own that
 * they take in turn (cuda/sm90/gemm_bf16.cuh): the maximum and sum of exponentials by row and part (CE_STATS: eval,
 * train where a guess was bad), or P^T and the sum of E (CE_PROBS); and the targets' logits. */
#include "logits_epilogue_sm90.cuh"

/* Of a thread in one half, 64 rows, of its warpgroup's tile. A tile's P^T leaves in four panels. */
enum { LOGITS = G16_TURN_N / 2, CLASSES = G16_TURN_N / 2 /* of a panel */, MULTIPLYING = 4 /* warps of one stage */ };

typedef struct turns_memory {
    uint8_t d[2][CLASSES * 128]; /* by warpgroup: a panel on its way out */
    gemm16_in_turn product;
    ce_items items;
    logits_plan plan;
} turns_memory;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The end of a half tile: P^T and the sum of E, or the maximum and sum. */
template <int BF16, int PROBS>
static __device__ __forceinline__ void end_half(const ce_product &a, const gemm16_work &w, turns_memory *s, int group,
                                                int first, int col, item_sums *sums, float *acc)
{
    item_rows t = rows_of<PROBS>(a, w, first); /* kept from tile to tile they would spill */

    clip_columns<G16_TURN_N>(w, col, acc);
    put_target<G16_TURN_N>(a, t, col, acc);
    if (PROBS) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            t.sum[h] = sums->sum[h];
        put_probs<BF16, 0, G16_TURN_N>(a, w, NULL, ptx_shared(s->d[group]), group, &t, col, acc);
#pragma unroll
        for (int h = 0; h < 2; h++)
            sums->sum[h] = t.sum[h];
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++)
            add_logits<G16_TURN_N>(sums, h, acc);
    }
}

/* After an item: the sums of E to its part, which is 0 before: of two that are added the order does not matter. */
static __device__ __forceinline__ void add_sums(const ce_product &a, const gemm16_work &w, const float *sums, int first,
                                                int part)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = quad_sum(sums[h]);

        if (first + 8 * h < w.m && threadIdx.x % 4 == 0)
            atomicAdd(&part_of(a, (int)a.c.begin + first + 8 * h, part)->sum, sum);
    }
}

/* A warpgroup's tiles of all items. */
template <int BF16, int MN_B, int PROBS>
static __device__ __forceinline__ void multiply_items(const ce_product &a, const logits_plan &g, turns_memory *s,
                                                      int group)
{
    const gemm16_work &w = g.tiles;
    const int thread = threadIdx.x % 128;
    const gemm16_places at = gemm16_places_of<0, MN_B>(&s->product, 0);
    ce_ring ring = ce_ring_of(&s->items);
    uint32_t tiles = 0;

    gemm16_begin_turns(group);
    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.items; i = ce_next_item(&ring)) {
        const logits_item item = item_of(g, i);
        const int own = gemm16_first_own(tiles, group);
        int pair, tile_n;

        gemm16_tile(w, item.first, &pair, &tile_n);
        const int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + thread / 32 * 16 + thread % 32 / 4;
        item_sums sums[2] = {{{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}},
                             {{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}}};

        for (int k = own; k < item.count; k += 2) {
            float acc[2 * LOGITS];

            gemm16_multiply_turn<BF16, 0, MN_B, gemm16_in_turn>(at, w.blocks,
                                                                (tiles + (uint32_t)k) * (uint32_t)w.blocks, group, acc);
#pragma unroll
            for (int half = 0; half < 2; half++)
                end_half<BF16, PROBS>(a, w, s, group, first + 64 * half, (tile_n + k) * G16_TURN_N, &sums[half],
                                      acc + half * LOGITS);
        }
        tiles += (uint32_t)item.count;
        if (own < item.count)
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (!PROBS)
                    put_stats(a, w, sums[half], first + 64 * half, item.part + own);
                else if (a.sums)
                    add_sums(a, w, sums[half].sum, first + 64 * half, item.part);
    }
    gemm16_end_turns(group, tiles);
}

/* A warpgroup's panels of P^T. */
static __device__ __forceinline__ void send_items(const ce_product &a, const logits_plan &g, turns_memory *s, int group)
{
    ce_ring ring = ce_ring_of(&s->items);
    uint32_t tiles = 0;

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.items; i = ce_next_item(&ring)) {
        const logits_item item = item_of(g, i);
        int pair, tile_n;

        gemm16_tile(g.tiles, item.first, &pair, &tile_n);
        const int row = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M;

        for (int k = gemm16_first_own(tiles, group); k < item.count; k += 2)
            for (int at = 0; at < 4; at++)
                send_panel(a, g.tiles, ptx_shared(s->d[group]), group, row + at / 2 * 64,
                           (tile_n + k) * G16_TURN_N + at % 2 * CLASSES);
        tiles += (uint32_t)item.count;
    }
    if (threadIdx.x % 32 == 0)
        ptx_tma_wait();
}

#endif

template <int BF16, int MN_B, int PROBS>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_turns(const __grid_constant__ ce_product a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    turns_memory *s = (turns_memory *)shared;

    if (threadIdx.x == 0)
        ce_items_begin(&s->items, (2 * MULTIPLYING + (PROBS ? 2 : 0)) * G16_CLUSTER);
    gemm16_begin(&s->product, MULTIPLYING);
    if (threadIdx.x == 0) {
        s->plan = plan_of(a, false, G16_TURN_N, PROBS ? 1 : 2);
        if (!PROBS && ce_by_number(a.c)) /* CE_LISTED's */
            s->plan.items = 0;
    }
    __syncthreads();
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;

    if (group < 0) {
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x == 0)
            load_items<MN_B>(a, s->plan, &s->product, &s->items);
        else if (PROBS && (warp == 1 || warp == 2))
            send_items(a, s->plan, s, warp - 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        multiply_items<BF16, MN_B, PROBS>(a, s->plan, s, group);
    }
    __syncwarp();       /* one thread alone went through the loading loop, or sent P^T; the barrier is an aligned one */
    ptx_cluster_sync(); /* nobody leaves while the other one may write to it */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype, and by layout of W, [V, H] or [H, V]: CE_STATS, CE_PROBS. */
#define TURNS_OF(bf16)                                                                                          \
    (const void *)ce_turns<bf16, 0, 0>, (const void *)ce_turns<bf16, 0, 1>, (const void *)ce_turns<bf16, 1, 0>, \
        (const void *)ce_turns<bf16, 1, 1>

enum { FUNCTIONS = 4 };
static const void *const functions[2][FUNCTIONS] = {{TURNS_OF(0)}, {TURNS_OF(1)}};

ridge_status ce_turns_prepare(const ridge_device *device)
{
    return host_prepare(device, &functions[0][0], 2 * FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        (int)sizeof(turns_memory), "linear_ce: loading kernels");
}

ridge_status ce_turns_launch(const ridge_device *device, const char *name, int what, ce_product *g, unsigned blocks,
                             void *stream)
{
    return host_launch_cluster(device, name, functions[g->c.p.dtype == RIDGE_BF16][2 * g->c.p.hv + (what == CE_PROBS)],
                               dim3(blocks), G16_CLUSTER, G16_THREADS, sizeof(turns_memory), g, stream);
}
