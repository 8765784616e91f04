/* grads_sm90.cu: the other two products of the linear cross entropy on Hopper, with their epilogues:
 *
 *     dX = n_r (P W)   -> rows of dX by the list, with the targets' du_y W_y
 *     dW = P^T (n_r x) -> f32, stored or added; or 16 bits, with the targets' du_y x; or the f32 sum of a 16-bit one
 *
 * One kernel has both. A tile of dX runs over the whole vocabulary, one of dW over the rows of a chunk alone, and dX
 * may have fewer tiles than there are clusters: those without one make tiles of dW meanwhile. Which cluster makes a
 * tile is found as they run; its bits do not depend on it. Warpgroups make dX together, long as its tiles are, and dW
 * in turn (cuda/sm90/gemm_bf16.cuh). */
#include "dw_epilogue_sm90.cuh"
#include "scheduler_sm90.cuh"

/* Items: tiles of dX, then tiles of dW from the last class on. Clusters take them in this order as they come free. */
typedef struct grad_plan {
    gemm16_work dx, dw;
    int items;
} grad_plan;

/* dX's stages lie where dW's do, its mbarriers behind those: a cluster has its tiles of dX first. */
template <class DW> struct dx_memory {
    enum { M = G16_M, N = G16_N, S = G16_STAGES, BYTES = (M + N) * G16_K * 2, SAME_ROWS = 0 };
    uint8_t a[S][M * G16_K * 2];
    uint8_t b[S][N * G16_K * 2];
    uint8_t beside[sizeof(DW) - S * BYTES];
    uint64_t full[S], empty[S];
};

/* How a tile of dW ends: dw_epilogue_sm90.cuh. */
enum { FORM_F32 = 0, FORM_SUM, FORM_ONCE, FORM_ADDED };

template <int M> struct grad_memory {
    static_assert(CE_BUNDLE % M == 0 && CE_BUNDLE % G16_TURN_N == 0 && CE_BUNDLE % G16_K == 0, "tiles across bundles");
    union {
        gemm16_tall<M> dw;
        dx_memory<gemm16_tall<M>> dx;
    };
    ce_items items;
    grad_plan plan;
    __align__(16) uint8_t panel[8][16 * 128]; /* by warp: results of dW on their way out */
    dw_target note[8][M / 4];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ gemm16_work product_of(int m, int n, int k, int height, int bundle, int pieces)
{
    gemm16_work w = {};

    w.m = m;
    w.n = n;
    w.height = height;
    w.width = G16_N; /* dW: a tile of each CTA, whose rows both have */
    w.bundle = bundle;
    gemm16_plan(&w, (k + G16_K - 1) / G16_K, pieces);
    return w;
}

/* height: of a tile of dW. */
static __device__ __forceinline__ grad_plan plan_of(const ce_gradients &a, int height)
{
    const ce_params &p = a.c.p;
    const int rows = ce_chunk_rows(a.c), hidden = (int)p.hidden, vocab = (int)p.vocab;
    grad_plan g;

    g.dx = product_of(rows, hidden, vocab, G16_M, G16_PAIRS / 2, a.c.pieces);
    g.dw = product_of(p.hv ? hidden : vocab, p.hv ? vocab : hidden, rows, height / G16_CLUSTER, CE_BUNDLE / height, 1);
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
    pair += a.c.probs.split / CE_BUNDLE * w.bundle;
    const int bundle = pair / w.bundle;

    if (pair >= w.pairs || bundle == *ready)
        return;
    wait_for(a.c.turns + 1, g.dx.items);
    wait_for(a.c.turns + 2 + bundle, min(w.bundle, w.pairs - bundle * w.bundle) * w.tiles_n);
    *ready = bundle;
}

/* This CTA's part of the item has been read: nothing to publish, so that no fence is needed. */
static __device__ __forceinline__ void tell(const ce_gradients &a, int which)
{
    if (overlaid(a) && threadIdx.x % 128 == 0)
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

/* One piece of dX, in f32: row_kernels_sm90.cu adds the pieces. */
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

/* Of a power of two. */
static __device__ __forceinline__ float inverse(float x)
{
    return __uint_as_float(0x7f000000u - __float_as_uint(x));
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

    clear_lines(a.dw_at.own, lines, length * size, a.dw_at.own_ld * size);
    if (a.after == CE_DW_SUM)
        clear_lines(a.dw_at.rest, lines, length * 2, a.dw_at.rest_ld * 2);
}

/* A tile of dX. WIDTH: as in gemm16_multiply. */
template <int BF16, int MN_B, int WIDTH>
static __device__ __forceinline__ void tile_dx(const ce_gradients &a, const gemm16_work &w, const gemm16_places &at,
                                               int group, int item, gemm16_turn *turn)
{
    const int thread = threadIdx.x % 128;
    int pair, tile_n, first_block;
    const int piece = gemm16_locate(w, item, &pair, &tile_n);
    float acc[G16_N / 2];

    const int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + group * 64;
    const int row = first + thread / 32 * 16 + thread % 32 / 4;

    gemm16_multiply<BF16, 1, MN_B, WIDTH>(at, gemm16_blocks(w, piece, &first_block), group, turn, acc);
    if (group == 0)
        tell(a, 1);
    if (w.pieces > 1)
        put_partial(a, w, row, piece, tile_n * G16_N, acc);
    else
        put_dx<BF16>(a, w, row, tile_n * G16_N, acc);
}

/* A warpgroup's tile of dW: both CTAs have its rows. n: stages before it. */
template <int BF16, int MN_A, int MN_B, int FORM, int M>
static __device__ __forceinline__ void tile_dw(const ce_gradients &a, const gemm16_work &w, const gemm16_places &at,
                                               grad_memory<M> *s, int group, int item, uint32_t n)
{
    constexpr bool TARGETS = FORM == FORM_ONCE || FORM == FORM_ADDED; /* `targets` is set; not asked for it spills */
    constexpr bool READS = FORM == FORM_ADDED || FORM == FORM_SUM;    /* what there is of dW */
    const int warp = threadIdx.x / 32 - 4;
    float acc[M / 64 * (G16_TALL_N / 2)];
    int pair, tile_n;

    gemm16_locate(w, item, &pair, &tile_n);
    int row = pair * M + warp % 4 * 16;
    const int col = tile_n * G16_N + (int)ptx_cluster_rank() * G16_TALL_N;

    if (TARGETS && a.targets)
        note_targets<M>(a, w, s->note[warp], row, col);
    if (READS)
#pragma unroll
        for (int i = 0; i < M / 64 * (G16_TALL_N / 2); i++) /* else it would live from the last tile's end to here */
            asm volatile("mov.b32 %0, 0;" : "=f"(acc[i]));
    gemm16_multiply_turn<BF16, MN_A, MN_B, gemm16_tall<M>>(at, w.blocks, n, group, acc);
    tell(a, 2 + pair / (CE_BUNDLE / M));
    const float scale = BF16 ? 1.0f : scale_back(a.c.p);

    if (READS)
        fetch_old<M>(a, w, row, col);
#pragma unroll
    for (int i = 0; i < M / 64; i++, row += 64) {
        float *part = acc + i * (G16_TALL_N / 2);

        if (TARGETS && a.targets)
            add_targets<BF16>(a, w, &s->note[warp][16 * i + threadIdx.x % 32 / 4], col, BF16 ? 1.0f : inverse(scale),
                              part);
        if (FORM == FORM_F32)
            put_f32<BF16>(a, w, row + threadIdx.x % 32 / 4, col, scale, part);
        if (FORM == FORM_ONCE)
            put_once<BF16>(a, w, s->panel[warp], row, col, scale, part);
        if (FORM == FORM_ADDED)
            put_added<BF16>(a, w, row + threadIdx.x % 32 / 4, col, scale, part);
        if (FORM == FORM_SUM && i == 0)
            put_sums<BF16, 2>(a, w, row + threadIdx.x % 32 / 4, col, scale, part);
        if (FORM == FORM_SUM && i > 0)
            put_sums<BF16, 4>(a, w, row + threadIdx.x % 32 / 4, col, scale, part);
    }
}

/* Where the loading thread stands: stages of dX and of dW. */
typedef struct grad_loads {
    uint32_t dx, dw;
    int ready;
} grad_loads;

template <int HV, int M>
static __device__ __forceinline__ void load_item(const ce_gradients &a, const grad_plan &g, grad_memory<M> *s, int item,
                                                 grad_loads *t, unsigned long long *taken, int *next)
{
    if (item < g.dx.items) {
        gemm16_load<1, !HV>(a.dx_maps, g.dx, &s->dx, item, &t->dx, taken, next);
        return;
    }
    const int tile = dw_tile(g, item);
    int pair, tile_n;

    if (t->dw == 0) /* all of dX's stages have been read */
        for (uint32_t i = t->dx; i < t->dx + G16_STAGES; i++)
            ptx_mbarrier_wait(ptx_shared(&s->dx.empty[i % G16_STAGES]), (i / G16_STAGES & 1) ^ 1);
    if (!HV && overlaid(a))
        wait_for_place(a, g, tile, &t->ready);
    gemm16_locate(g.dw, tile, &pair, &tile_n);
    gemm16_load_tile<HV, !HV>(a.dw_maps, 0, &s->dw, pair * M, tile_n * G16_N + (int)ptx_cluster_rank() * G16_TALL_N, 0,
                              g.dw.blocks, &t->dw, taken, next);
}

/* The loading thread. The first CTA's asks for the next item while it loads one. */
template <int HV, int M>
static __device__ __forceinline__ void load_items(const ce_gradients &a, const grad_plan &g, grad_memory<M> *s)
{
    unsigned long long *taken = (unsigned long long *)a.c.turns;
    ce_ring ring = ce_ring_of(&s->items);
    grad_loads t = {0, 0, -1};

    if (ptx_cluster_rank() == 0) {
        int item = (int)atomicAdd(taken, 1ull);

        while (item < g.items) {
            int next = g.items;

            ce_hand_out(&s->items, &ring, item);
            load_item<HV, M>(a, g, s, item, &t, taken, &next);
            item = next;
        }
        ce_hand_out(&s->items, &ring, item);
    } else {
        for (;;) {
            const int item = ce_next_to_load(&ring);

            if (item >= g.items)
                return;
            load_item<HV, M>(a, g, s, item, &t, NULL, NULL);
        }
    }
}

#endif

/* HV: W is [hidden, vocab]. */
template <int BF16, int HV, int FORM>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_gradients_kernel(const __grid_constant__ ce_gradients a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr int M = FORM == FORM_F32 || BF16 ? 192 : 128; /* as ce_dw_height */
    constexpr int WIDTH = M == 192 ? G16_N : G16_TALL_N;    /* beside two of 128, one of 256 would be serialised */
    grad_memory<M> *s = (grad_memory<M> *)shared;

    if (threadIdx.x == 0) {
        ce_items_begin(&s->items, 8 * G16_CLUSTER);
        gemm16_ring_begin(&s->dx, 8);
    }
    gemm16_begin(&s->dw, 4); /* stages of dW: by one warpgroup */
    if (threadIdx.x == 0)
        s->plan = plan_of(a, M);
    const grad_plan &g = s->plan;

    if (a.dw && a.before == CE_DW_NOTHING && a.after != CE_DW_MORE && ce_chunk_rows(a.c) == 0)
        clear_dw(a);
    __syncthreads(); /* setmaxnreg is an .aligned one, and lanes clear different numbers of pieces */
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x == 0)
            load_items<HV, M>(a, g, s);
    } else {
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;
        ce_ring ring = ce_ring_of(&s->items);
        gemm16_turn turn = {0, false};
        uint32_t tiles = 0;
        int item;

        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        item = ce_next_item(&ring);
        gemm16_stagger(group, item < g.dx.items);
        const gemm16_places dx = gemm16_places_of<1, !HV>(&s->dx, group);
        for (; item < g.dx.items; item = ce_next_item(&ring))
            tile_dx<BF16, !HV, WIDTH>(a, g.dx, dx, group, item, &turn);
        const gemm16_places dw = gemm16_places_of<HV, !HV>(&s->dw, 0);
        gemm16_begin_turns(group);
        for (; item < g.items; tiles++, item = ce_next_item(&ring))
            if (gemm16_first_own(tiles, group) == 0)
                tile_dw<BF16, HV, !HV, FORM, M>(a, g.dw, dw, s, group, dw_tile(g, item), tiles * g.dw.blocks);
        gemm16_end_turns(group, tiles);
    }
    __syncwarp(); /* of the loading warp one thread alone went through the loop, and the barrier is an aligned one */
    ptx_cluster_sync(); /* nobody leaves while the other one may write to it */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By form; the last two are those of W [H, V], where a 16-bit dW is always summed. */
#define OF_DTYPE(bf16)                                                                                                 \
    (const void *)ce_gradients_kernel<bf16, 0, FORM_F32>, (const void *)ce_gradients_kernel<bf16, 0, FORM_SUM>,        \
        (const void *)ce_gradients_kernel<bf16, 0, FORM_ONCE>, (const void *)ce_gradients_kernel<bf16, 0, FORM_ADDED>, \
        (const void *)ce_gradients_kernel<bf16, 1, FORM_F32>, (const void *)ce_gradients_kernel<bf16, 1, FORM_SUM>

enum { FORM_HV = FORM_ADDED + 1, FORMS = FORM_HV + 2, FUNCTIONS = 2 * FORMS, SHARED = sizeof(grad_memory<192>) };
static_assert(sizeof(grad_memory<128>) <= SHARED && SHARED <= 227 * 1024, "shared memory of a block");
static const void *const functions[FUNCTIONS] = {OF_DTYPE(0), OF_DTYPE(1)};

ridge_status ce_gradients_prepare(const ridge_device *device)
{
    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    return host_prepare(device, functions, FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED,
                        "linear_ce: loading kernels");
}

ridge_status ce_gradients_launch(const ridge_device *device, const char *name, ce_gradients *g, void *stream)
{
    const ce_params *p = &g->c.p;
    const int64_t m = p->hv ? p->hidden : p->vocab, n = p->hv ? p->vocab : p->hidden;
    const int64_t rows = G16_CLUSTER * G16_M, height = ce_dw_height(p->dtype, g->dw_dtype);
    const int64_t dx = g->dx ? ce_up(g->c.rows, rows) / rows * (ce_up(p->hidden, G16_N) / G16_N) * g->c.pieces : 0;
    const int64_t dw = g->dw ? ce_up(m, height) / height * (ce_up(n, G16_N) / G16_N) : 0;
    int form = !g->dw || g->dw_dtype == RIDGE_F32 ? FORM_F32 : FORM_SUM;

    if (form == FORM_SUM && g->targets)
        form = g->before == CE_DW_NOTHING ? FORM_ONCE : FORM_ADDED;
    if (p->hv)
        form += FORM_HV;
    if (dx + dw == 0)
        return RIDGE_OK;
    return host_launch_cluster(device, name, functions[FORMS * (p->dtype == RIDGE_BF16) + form],
                               dim3((unsigned)(ce_least(dx + dw, device->units / G16_CLUSTER) * G16_CLUSTER)),
                               G16_CLUSTER, G16_THREADS, SHARED, g, stream);
}
