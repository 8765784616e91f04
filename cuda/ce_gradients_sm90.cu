/* ce_gradients_sm90.cu: the other two products of the linear cross entropy on Hopper, with their epilogues:
 *
 *     dX = n_r (P W)   -> rows of dX by the list, with the targets' du_y W_y
 *     dW = P^T (n_r x) -> f32, stored or added; or 16 bits, with the targets' du_y x; or an f32 sum in two planes
 *
 * One kernel has both. A tile of dX runs over the whole vocabulary, one of dW over the rows of a chunk alone, and dX
 * may have fewer tiles than there are clusters: those without one make tiles of dW meanwhile. Which cluster makes a
 * tile is found as they run; its bits do not depend on it. */
#include "ce_items_sm90.cuh"
#include "ce_planes_sm90.cuh"

typedef struct grad_memory {
    gemm16_memory product;
    ce_items items;
} grad_memory;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Items: tiles of dX, then tiles of dW from the last class on. Clusters take them in this order as they come free. */
typedef struct grad_plan {
    gemm16_work dx, dw;
    int items;
} grad_plan;

static __device__ __forceinline__ gemm16_work product_of(int m, int n, int k, int bundle, int pieces)
{
    gemm16_work w = {};

    w.m = m;
    w.n = n;
    w.width = G16_N;
    w.bundle = bundle;
    gemm16_plan(&w, (k + G16_K - 1) / G16_K, pieces);
    return w;
}

static __device__ __forceinline__ grad_plan plan_of(const ce_gradients &a)
{
    const ce_params &p = a.c.p;
    const int rows = ce_chunk_rows(a.c), hidden = (int)p.hidden, vocab = (int)p.vocab;
    grad_plan g;

    /* bundles of 1024 rows: 1 to 3 % faster than 2048 */
    g.dx = product_of(rows, hidden, vocab, G16_PAIRS / 2, a.c.pieces);
    g.dw = product_of(p.hv ? hidden : vocab, p.hv ? vocab : hidden, rows, CE_BUNDLE / (G16_CLUSTER * G16_M), 1);
    if (!a.dx)
        g.dx.items = 0;
    if (!a.dw || rows == 0)
        g.dw.items = 0;
    g.items = g.dx.items + g.dw.items;
    return g;
}

/* Number of a tile of dW as gemm16_locate counts. */
static __device__ __forceinline__ int dw_tile(const grad_plan &g, int item)
{
    return g.items - 1 - item;
}

/* ------------------------------------------------------------------------------- P^T that lies in the memory of dW */

/* Row v of P^T lies in row v - split of dW, which is written when the tiles of dX, all of them, and those of dW of row
 * v have read it. turns: [0] items taken; [1] tiles of dX done, [2 + i] tiles of bundle i of dW done, once by each CTA.
 * All that an item waits for are items before it, and these are with clusters that run: no cluster waits for one that
 * does not. */
static __device__ __forceinline__ bool overlaid(const ce_gradients &a)
{
    return a.c.probs.split < a.c.p.vocab;
}

static __device__ __forceinline__ void wait_for(const uint64_t *turns, int count)
{
    while (ptx_load_acquire(turns) < (uint64_t)(G16_CLUSTER * count))
        __nanosleep(200);
}

/* *ready: the last bundle that has been waited for. */
static __device__ __forceinline__ void wait_for_place(const ce_gradients &a, const grad_plan &g, int tile, int *ready)
{
    const gemm16_work &w = g.dw;
    int pair, tile_n;

    gemm16_locate(w, tile, &pair, &tile_n);
    pair += a.c.probs.split / (G16_CLUSTER * G16_M);
    const int bundle = pair / w.bundle;

    if (pair >= w.pairs || bundle == *ready)
        return;
    wait_for(a.c.turns + 1, g.dx.items);
    wait_for(a.c.turns + 2 + bundle, min(w.bundle, w.pairs - bundle * w.bundle) * w.tiles_n);
    *ready = bundle;
}

/* This CTA's part of the tile has been read: nothing to publish, so that no fence is needed. */
static __device__ __forceinline__ void tell(const ce_gradients &a, int which, int group)
{
    if (overlaid(a) && group == 0 && threadIdx.x % 128 == 0)
        atomicAdd((unsigned long long *)a.c.turns + which, 1ull);
}

/* --------------------------------------------------------------------------------------------------- epilogues */

/* dX: rows by the list, each times its factor, and the targets' part. */
template <int BF16>
static __device__ __forceinline__ void put_dx(const ce_gradients &a, const gemm16_work &w, int first, int first_col,
                                              const float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    const int col = first_col + 2 * (threadIdx.x % 4);
    const ce_params &p = a.c.p;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = (int)a.c.begin + first + 8 * h;

        if (first + 8 * h >= w.m)
            continue;
        const float f = a.c.factor[row];
        const int v = p.label[row];
        const float g = v >= 0 ? a.c.at_target[row] : 0.0f;
        const int64_t step = p.hv ? p.w_stride : 1;
        const uint16_t *line = (const uint16_t *)p.w + (p.hv ? v : v * p.w_stride) + col * step;
        uint16_t *to = (uint16_t *)p.dx + p.list[row] * p.dx_stride + col;

#pragma unroll
        for (int j = 0; j < G16_N / 8; j++) {
            float x = 0.0f, y = 0.0f;

            if (col + 8 * j >= w.n)
                continue;
            if (v >= 0) {
                x = num_load<dtype>(line, 8 * j * step);
                y = num_load<dtype>(line, (8 * j + 1) * step);
            }
            *(uint32_t *)(to + 8 * j) =
                num_pack2<dtype>(__fmaf_rn(g, x, acc[4 * j + 2 * h] * f), __fmaf_rn(g, y, acc[4 * j + 2 * h + 1] * f));
        }
    }
}

/* One piece of dX, in f32: ce_steps_sm90.cu adds the pieces. */
static __device__ __forceinline__ void put_partial(const ce_gradients &a, const gemm16_work &w, int first, int piece,
                                                   int first_col, const float *acc)
{
    const int col = first_col + 2 * (threadIdx.x % 4);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = a.c.partial + (piece * a.c.rows + first + 8 * h) * (int64_t)w.n + col;

        if (first + 8 * h >= w.m)
            continue;
#pragma unroll
        for (int j = 0; j < G16_N / 8; j++)
            if (col + 8 * j < w.n)
                *(float2 *)(to + 8 * j) = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
}

/* The power of two that keeps n_r x in the range of f16. */
static __device__ __forceinline__ float scale_back(const ce_params &p)
{
    const uint32_t exponent = p.totals->largest >> 23;

    return exponent == 0 || exponent == 255 ? 1.0f : __uint_as_float(max(exponent, 27u) << 23);
}

/* du_y x of all rows of the chunk whose target is one of this thread's two classes, in order, or the sum made before.
 * (To an f32 dW a step adds it: here it takes longer, since the loads depend on each other.) */
template <int BF16>
static __device__ __forceinline__ void add_targets(const ce_gradients &a, const gemm16_work &w, int first,
                                                   int first_col, float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    const int col = first_col + 2 * (threadIdx.x % 4);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int2 same = first + 8 * h < w.m ? a.c.same[first + 8 * h] : make_int2(0, 0);
        const bool common = same.y > CE_COMMON;
        int row = same.x;
        float g = same.y ? a.c.at_target[row] : 0.0f;
        int64_t at = same.y ? a.c.p.list[row] : 0;

        if (common) {
            const float *sum = a.c.sums + a.c.next[row] * ce_sum_length(a.c.p.hidden) + col;

#pragma unroll
            for (int j = 0; j < G16_N / 8; j++)
                if (col + 8 * j < w.n) {
                    const float2 v = *(const float2 *)(sum + 8 * j);

                    acc[4 * j + 2 * h] += v.x;
                    acc[4 * j + 2 * h + 1] += v.y;
                }
        }
        for (int left = common ? 0 : same.y; left > 0; left--) {
            const uint16_t *line = (const uint16_t *)a.c.p.x + at * a.c.p.x_stride + col;
            const float factor = g;
            uint32_t word[G16_N / 8];

#pragma unroll
            for (int j = 0; j < G16_N / 8; j++)
                word[j] = col + 8 * j < w.n ? *(const uint32_t *)(line + 8 * j) : 0;
            if (left > 1) { /* the next row is on its way while this one's words are */
                row = a.c.next[row];
                g = a.c.at_target[row];
                at = a.c.p.list[row];
            }
#pragma unroll
            for (int j = 0; j < G16_N / 8; j++) {
                float x, y;

                num_unpack2<dtype>(word[j], &x, &y);
                acc[4 * j + 2 * h] = __fmaf_rn(factor, x, acc[4 * j + 2 * h]);
                acc[4 * j + 2 * h + 1] = __fmaf_rn(factor, y, acc[4 * j + 2 * h + 1]);
            }
        }
    }
}

/* A warp's 16 x 256 of dW, 128 bytes of its rows at a time, turned in shared memory so that whole lines are written.
 * (TMA stores from there took longer, with room for two panels.) BYTES: of an element. */
template <int BF16, int BYTES>
static __device__ __forceinline__ void put_dw(const ce_gradients &a, const gemm16_work &w, gemm16_memory *s, int group,
                                              int first_row, int first_col, const float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    const int lane = threadIdx.x % 32, row = lane / 4, line = lane / 8, piece = lane % 8 * 16;
    constexpr int COLS = 128 / BYTES, PANEL = 16 * 128, STEP = BYTES == 4 ? 32 : 16, MASK = BYTES == 4 ? 3 : 7;
    uint8_t *panels = s->d[group][0] + threadIdx.x % 128 / 32 * (2 * PANEL);
    const int64_t ld = a.dw_at.high_ld;
    char *to = (char *)a.dw_at.high + ((first_row + line) * ld + first_col) * BYTES + piece;

#pragma unroll
    for (int q = 0; q < G16_N / COLS; q++) {
        uint8_t *panel = panels + q % 2 * PANEL;

#pragma unroll
        for (int i = 0; i < COLS / 8; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int j = q * (COLS / 8) + i, at = (2 * (lane % 4) + 8 * i) * BYTES; /* in a line of 128 bytes */
                uint8_t *in = panel + (row + 8 * h) * 128 + (at ^ (row & MASK) * STEP);

                if (BYTES == 4)
                    *(float2 *)in = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
                else
                    *(uint32_t *)in = num_pack2<dtype>(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
            }
        __syncwarp(); /* all of the panel; the one before has been read */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float4 v = *(const float4 *)(panel + (line + 4 * k) * 128 + (piece ^ ((line + 4 * k) & MASK) * STEP));
            char *out = to + 4 * k * ld * BYTES + 128 * q;

            if (first_row + line + 4 * k >= w.m || first_col + q * COLS + piece / BYTES >= w.n)
                continue;
            if (BYTES == 4 && a.before != CE_DW_NOTHING)
                ptx_add_f32x4((float *)out, v);
            else
                *(float4 *)out = v;
        }
    }
}

static __device__ __forceinline__ void clear_lines(void *to, int64_t lines, int64_t bytes, int64_t stride)
{
    for (int64_t i = blockIdx.x; i < lines; i += gridDim.x)
        for (int64_t at = threadIdx.x * 16; at < bytes; at += G16_THREADS * 16)
            *(uint4 *)((char *)to + i * stride + at) = make_uint4(0, 0, 0, 0);
}

/* dW of no rows. */
static __device__ __forceinline__ void clear_dw(const ce_gradients &a)
{
    const ce_params &p = a.c.p;
    const int64_t size = a.dw_dtype == RIDGE_F32 ? 4 : 2, lines = p.hv ? p.hidden : p.vocab;
    const int64_t length = p.hv ? p.vocab : p.hidden;

    clear_lines(a.dw_at.high, lines, length * size, a.dw_at.high_ld * size);
    if (a.after == CE_DW_PLANES)
        clear_lines(a.dw_at.low, lines, length * 2, a.dw_at.low_ld * 2);
}

/* A tile of dX. */
template <int BF16, int MN_B>
static __device__ __forceinline__ void tile_dx(const ce_gradients &a, const gemm16_work &w, const gemm16_places &at,
                                               int group, int item, gemm16_turn *turn)
{
    const int thread = threadIdx.x % 128;
    int pair, tile_n, first_block;
    const int piece = gemm16_locate(w, item, &pair, &tile_n);
    float acc[G16_N / 2];

    const int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + group * 64;
    const int row = first + thread / 32 * 16 + thread % 32 / 4;

    gemm16_multiply<BF16, 1, MN_B>(at, gemm16_blocks(w, piece, &first_block), group, turn, acc);
    tell(a, 1, group);
    if (w.pieces > 1)
        put_partial(a, w, row, piece, tile_n * G16_N, acc);
    else
        put_dx<BF16>(a, w, row, tile_n * G16_N, acc);
}

template <int BF16, int MN_A, int MN_B>
static __device__ __forceinline__ void tile_dw(const ce_gradients &a, const gemm16_work &w, const gemm16_places &at,
                                               gemm16_memory *s, int group, int tile, gemm16_turn *turn)
{
    const int thread = threadIdx.x % 128;
    int pair, tile_n;
    float acc[G16_N / 2];
    dw_old old[4];

    gemm16_locate(w, tile, &pair, &tile_n);
    int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + group * 64 + thread / 32 * 16;

    ask_old(a, w, first, tile_n * G16_N, old);
    gemm16_multiply<BF16, MN_A, MN_B>(at, w.blocks, group, turn, acc);
    asm volatile(""
                 : "+r"(first), "+r"(tile_n)); /* addresses are made again: kept through the product they would spill */
    tell(a, 2 + pair / w.bundle, group);
    if (!BF16) {
        const float scale = scale_back(a.c.p);

#pragma unroll
        for (int i = 0; i < G16_N / 2; i++)
            acc[i] *= scale;
    }
    if (a.before == CE_DW_PLANES) {
        if (a.after == CE_DW_PLANES)
            put_planes<BF16, CE_DW_PLANES, CE_DW_PLANES>(a, w, s, group, first, tile_n * G16_N, old, acc);
        else
            put_planes<BF16, CE_DW_PLANES, CE_DW_ITSELF>(a, w, s, group, first, tile_n * G16_N, old, acc);
        return;
    }
    if (a.targets)
        add_targets<BF16>(a, w, first + thread % 32 / 4, tile_n * G16_N, acc);
    if (a.dw_dtype == RIDGE_F32)
        put_dw<BF16, 4>(a, w, s, group, first, tile_n * G16_N, acc);
    else if (a.before == CE_DW_ITSELF && a.after == CE_DW_PLANES)
        put_planes<BF16, CE_DW_ITSELF, CE_DW_PLANES>(a, w, s, group, first, tile_n * G16_N, old, acc);
    else if (a.before == CE_DW_ITSELF)
        put_planes<BF16, CE_DW_ITSELF, CE_DW_ITSELF>(a, w, s, group, first, tile_n * G16_N, old, acc);
    else if (a.after == CE_DW_PLANES)
        put_planes<BF16, CE_DW_NOTHING, CE_DW_PLANES>(a, w, s, group, first, tile_n * G16_N, old, acc);
    else
        put_dw<BF16, 2>(a, w, s, group, first, tile_n * G16_N, acc);
}

template <int HV>
static __device__ __forceinline__ void load_item(const ce_gradients &a, const grad_plan &g, gemm16_memory *s, int item,
                                                 uint32_t *n, int *ready, unsigned long long *taken, int *next)
{
    if (item < g.dx.items) {
        gemm16_load<1, !HV>(a.dx_maps, g.dx, s, item, n, taken, next);
        return;
    }
    if (!HV && overlaid(a))
        wait_for_place(a, g, dw_tile(g, item), ready);
    gemm16_load<HV, !HV>(a.dw_maps, g.dw, s, dw_tile(g, item), n, taken, next);
}

/* The loading thread. The first CTA's asks for the next item while it loads one. */
template <int HV>
static __device__ __forceinline__ void load_items(const ce_gradients &a, const grad_plan &g, grad_memory *s)
{
    unsigned long long *taken = (unsigned long long *)a.c.turns;
    ce_ring ring = ce_ring_of(&s->items);
    uint32_t n = 0;
    int ready = -1;

    if (ptx_cluster_rank() == 0) {
        int item = (int)atomicAdd(taken, 1ull);

        while (item < g.items) {
            int next = g.items;

            ce_hand_out(&s->items, &ring, item);
            load_item<HV>(a, g, &s->product, item, &n, &ready, taken, &next);
            item = next;
        }
        ce_hand_out(&s->items, &ring, item);
    } else {
        for (;;) {
            const int item = ce_next_to_load(&ring);

            if (item >= g.items)
                return;
            load_item<HV>(a, g, &s->product, item, &n, &ready, NULL, NULL);
        }
    }
}

#endif

/* HV: W is [hidden, vocab]. */
template <int BF16, int HV>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_gradients_kernel(const __grid_constant__ ce_gradients a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    grad_memory *s = (grad_memory *)shared;

    if (threadIdx.x == 0)
        ce_items_begin(&s->items, 8 * G16_CLUSTER);
    gemm16_begin(&s->product, 8);
    const grad_plan g = plan_of(a);

    if (a.dw && a.before == CE_DW_NOTHING && ce_chunk_rows(a.c) == 0)
        clear_dw(a);
    __syncwarp(); /* setmaxnreg is an .aligned one, and lanes clear different numbers of pieces */
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x == 0)
            load_items<HV>(a, g, s);
    } else {
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;
        const gemm16_places dx = gemm16_places_of<1, !HV>(&s->product, group),
                            dw = gemm16_places_of<HV, !HV>(&s->product, group);
        ce_ring ring = ce_ring_of(&s->items);
        gemm16_turn turn = {0, false};
        int item;

        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        item = ce_next_item(&ring);
        gemm16_stagger(group, item < g.items);
        for (; item < g.items; item = ce_next_item(&ring))
            if (item < g.dx.items)
                tile_dx<BF16, !HV>(a, g.dx, dx, group, item, &turn);
            else
                tile_dw<BF16, HV, !HV>(a, g.dw, dw, &s->product, group, dw_tile(g, item), &turn);
    }
    __syncwarp(); /* of the loading warp one thread alone went through the loop, and the barrier is an aligned one */
    ptx_cluster_sync(); /* nobody leaves while the other one may write to it */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[4] = {
    (const void *)ce_gradients_kernel<0, 0>,
    (const void *)ce_gradients_kernel<0, 1>,
    (const void *)ce_gradients_kernel<1, 0>,
    (const void *)ce_gradients_kernel<1, 1>,
};

ridge_status ce_gradients_prepare(const ridge_device *device)
{
    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    return host_prepare(device, functions, 4, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(grad_memory),
                        "linear_ce: loading kernels");
}

static int64_t tiles(int64_t m, int64_t n)
{
    const int64_t rows = G16_CLUSTER * G16_M;

    return (m + rows - 1) / rows * ((n + G16_N - 1) / G16_N);
}

ridge_status ce_gradients_launch(const ridge_device *device, const char *name, ce_gradients *g, void *stream)
{
    const ce_params *p = &g->c.p;
    const int64_t dx = g->dx ? tiles(g->c.rows, p->hidden) * g->c.pieces : 0, dw = !g->dw  ? 0
                                                                                   : p->hv ? tiles(p->hidden, p->vocab)
                                                                                           : tiles(p->vocab, p->hidden);
    int64_t blocks = device->units / G16_CLUSTER;

    if (dx + dw == 0)
        return RIDGE_OK;
    blocks = (dx + dw < blocks ? dx + dw : blocks) * G16_CLUSTER;
    return host_launch_cluster(device, name, functions[2 * (p->dtype == RIDGE_BF16) + p->hv], dim3((unsigned)blocks),
                               G16_CLUSTER, G16_THREADS, sizeof(grad_memory), g, stream);
}
