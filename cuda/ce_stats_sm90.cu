/* ce_stats_sm90.cu: the logits' product on Hopper where nothing but the maximum and sum of exponentials by row and part
 * is wanted of it (CE_STATS: eval without options, train where a guess was bad), and the targets' logits. Each
 * warpgroup has tiles of its own, taken in turn: gemm16_sm90.cuh. */
#include "ce_logits_sm90.cuh"

/* Of a thread in one half, 64 rows, of its warpgroup's tile. */
enum { LOGITS = G16_TURN_N / 2, MULTIPLYING = 4 /* warps of a CTA, of one stage */ };

/* What one warpgroup takes it takes in both CTAs, from a ring of its own. */
typedef struct stats_memory {
    gemm16_in_turn product;
    ce_items items[2];
    logits_plan plan;
    int ended[2]; /* by warpgroup: it has nothing left */
} stats_memory;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* An item of one warpgroup on its way through the loading threads. */
typedef struct loaded_item {
    int item, tile;
    ce_ring ring;
} loaded_item;

/* A warpgroup's first item: all clusters' first warpgroups come before the second ones. */
static __device__ __forceinline__ int first_item(int group)
{
    return (int)(blockIdx.x / G16_CLUSTER + group * (gridDim.x / G16_CLUSTER));
}

/* The next tile of a warpgroup's item. The first CTA's thread asks for the next item while it loads the last tile of
 * one, and hands it to everybody else; the last ticket of all puts the counter back. */
template <int MN_B>
static __device__ __forceinline__ void load_tile(const ce_product &a, const logits_plan &g, stats_memory *s, int group,
                                                 loaded_item *t, uint32_t *n)
{
    const bool leads = ptx_cluster_rank() == 0;
    const logits_item item = item_of(g, t->item);
    const int tile = item.first + t->tile * item.step, takers = 2 * (int)gridDim.x / G16_CLUSTER;
    unsigned long long *taken = &a.c.p.totals->taken;
    int ticket = 0;

    t->tile = t->tile + 1 == item.count ? 0 : t->tile + 1;
    gemm16_load<0, MN_B>(a.maps, g.tiles, &s->product, tile, n, t->tile == 0 && leads ? taken : NULL, &ticket);
    if (t->tile)
        return;
    if (!leads) {
        t->item = ce_next_to_load(&t->ring);
    } else {
        t->item = takers + ticket;
        if (ticket == g.items - 1)
            *taken = 0;
        ce_hand_out(&s->items[group], &t->ring, t->item);
    }
}

/* The loading thread: a tile of each warpgroup in turn. */
template <int MN_B>
static __device__ __forceinline__ void load_tiles(const ce_product &a, const logits_plan &g, stats_memory *s)
{
    loaded_item first = {first_item(0), 0, ce_ring_of(&s->items[0])},
                second = {first_item(1), 0, ce_ring_of(&s->items[1])};
    uint32_t n = 0;

    while (first.item < g.items || second.item < g.items) {
        if (first.item < g.items)
            load_tile<MN_B>(a, g, s, 0, &first, &n);
        if (second.item < g.items)
            load_tile<MN_B>(a, g, s, 1, &second, &n);
    }
}

/* A warpgroup: all that it takes. */
template <int BF16, int MN_B>
static __device__ __forceinline__ void multiply_items(const ce_product &a, const logits_plan &g, stats_memory *s,
                                                      int group)
{
    const gemm16_work &w = g.tiles;
    const int thread = threadIdx.x % 128;
    const gemm16_places at = gemm16_places_of<0, MN_B>(&s->product, 0);
    ce_ring ring = ce_ring_of(&s->items[group]);
    gemm16_place turn = gemm16_first_turn(group);

    for (int i = first_item(group); i < g.items; i = ce_next_item(&ring)) {
        const logits_item item = item_of(g, i);
        int pair, tile_n;

        gemm16_tile(w, item.first, &pair, &tile_n);
        const int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + thread / 32 * 16 + thread % 32 / 4;
        item_sums sums[2] = {{{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}},
                             {{-CUDART_INF_F, -CUDART_INF_F}, {0.0f, 0.0f}}};

        for (int col = tile_n * G16_TURN_N, end = col + item.count * G16_TURN_N; col < end; col += G16_TURN_N) {
            float acc[2 * LOGITS];

            gemm16_multiply_in_turn<BF16, MN_B>(at, w.blocks, &turn, s->ended, acc);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float *part = acc + half * LOGITS;
                const item_rows t = rows_of<0>(a, w, first + 64 * half); /* kept from tile to tile they would spill */

                clip_columns<G16_TURN_N>(w, col, part);
                put_target<G16_TURN_N>(a, t, col, part);
#pragma unroll
                for (int h = 0; h < 2; h++)
                    add_logits<G16_TURN_N>(&sums[half], h, part);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            put_stats(a, w, sums[half], first + 64 * half, item.part);
    }
    gemm16_last_turn(&turn, w.blocks, s->ended);
}

#endif

template <int BF16, int MN_B>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_stats(const __grid_constant__ ce_product a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    stats_memory *s = (stats_memory *)shared;

    if (threadIdx.x == 0) {
        ce_items_begin(&s->items[0], MULTIPLYING * G16_CLUSTER);
        ce_items_begin(&s->items[1], MULTIPLYING * G16_CLUSTER);
        s->ended[0] = s->ended[1] = 0;
    }
    gemm16_begin(&s->product, MULTIPLYING);
    if (threadIdx.x == 0) {
        s->plan = plan_of(a, false, G16_TURN_N);
        if (ce_by_number(a.c)) /* CE_LISTED's */
            s->plan.items = 0;
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x == 0)
            load_tiles<MN_B>(a, s->plan, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        multiply_items<BF16, MN_B>(a, s->plan, s, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1);
    }
    __syncwarp();       /* one thread alone went through the loading loop; the barrier is an aligned one */
    ptx_cluster_sync(); /* nobody leaves while the other one may write to it */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype and layout of W, [V, H] or [H, V]. */
static const void *const functions[2][2] = {{(const void *)ce_stats<0, 0>, (const void *)ce_stats<0, 1>},
                                            {(const void *)ce_stats<1, 0>, (const void *)ce_stats<1, 1>}};

ridge_status ce_stats_prepare(const ridge_device *device)
{
    return host_prepare(device, &functions[0][0], 4, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        (int)sizeof(stats_memory), "linear_ce: loading kernels");
}

ridge_status ce_stats_launch(const ridge_device *device, const char *name, ce_product *g, unsigned blocks, void *stream)
{
    return host_launch_cluster(device, name, functions[g->c.p.dtype == RIDGE_BF16][g->c.p.hv], dim3(blocks),
                               G16_CLUSTER, G16_THREADS, sizeof(stats_memory), g, stream);
}
