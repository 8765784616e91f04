/* grads_sm90.cu: the other two products of the linear cross entropy on Hopper, with their epilogues:
 *
 *     dX = n_r (P W)   -> the listed rows of dX, with the targets' du_y W_y; or a partial sum (split-K)
 *     dW = P^T (n_r x) -> f32, stored or added; or 16 bits, with the targets' du_y x; or the f32 sum of a 16-bit one
 *
 * One kernel computes both. k of a dX tile is the whole vocabulary, k of a dW tile the rows of the chunk; dX may have
 * fewer tiles than there are clusters, and those without one compute tiles of dW meanwhile. The queue of
 * cuda/sm90/scheduler.cuh decides which cluster computes a tile; its bits do not depend on that. dX is cooperative,
 * cluster 2x1: its main loop is long. dW is pingpong, cluster 1x2 (cuda/sm90/gemm_bf16.cuh).
 *
 * Warpgroup 0: thread 0 is the producer. Warpgroups 1 and 2: the consumers. */
#include "dw_epilogue_sm90.cuh"

/* The work tiles: those of dX, then those of dW from the last class on. Clusters draw them in this order. */
typedef struct grad_plan {
    gemm16_plan dx, dw;
    int count;
} grad_plan;

/* dX's stages are aliased with dW's, its mbarriers lie behind those: every cluster computes its tiles of dX first. */
template <class DW> struct dx_smem {
    enum { BLOCK_M = G16_BLOCK_M, BLOCK_N = G16_COOP_N, ROWS = 64, STAGES = 4, PINGPONG = 0, MULTICAST_A = 0 };
    enum { STAGE_BYTES = (BLOCK_M + BLOCK_N) * G16_BLOCK_K * 2 };
    uint8_t a[STAGES][BLOCK_M * G16_BLOCK_K * 2];
    uint8_t b[STAGES][BLOCK_N * G16_BLOCK_K * 2];
    uint8_t rest_of_dw[sizeof(DW) - STAGES * STAGE_BYTES];
    uint64_t full[STAGES], empty[STAGES];
};

/* The epilogue of dW, see dw_epilogue_sm90.cuh. */
enum { EPI_F32 = 0, EPI_SUM, EPI_16, EPI_ADD_16 };

template <int M> struct grad_smem {
    static_assert(CE_BUNDLE_CLASSES % M == 0 && CE_BUNDLE_CLASSES % G16_PINGPONG_N == 0 &&
                      CE_BUNDLE_CLASSES % G16_BLOCK_K == 0,
                  "tiles across bundles");
    union {
        gemm16_pingpong_1x2<M> dw;
        dx_smem<gemm16_pingpong_1x2<M>> dx;
    };
    scheduler_queue queue;
    grad_plan plan;
    __align__(16) uint8_t panel[8][16 * 128]; /* by warp: results of dW to be stored */
    dw_target note[8][M / 4];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ grad_plan grad_plan_of(const ce_grads_args &a, int dw_block_m)
{
    const ce_params &p = a.c.p;
    const int rows = ce_chunk_rows(a.c), hidden = (int)p.hidden, vocab = (int)p.vocab;
    grad_plan g;

    g.dx = gemm16_plan_of(rows, hidden, vocab, G16_BLOCK_M, G16_COOP_N, G16_BUNDLE / 2, a.c.dx_splits);
    /* dW: a work tile is block_m rows by a tile of each CTA */
    g.dw = gemm16_plan_of(p.hv ? hidden : vocab, p.hv ? vocab : hidden, rows, dw_block_m / G16_CLUSTER,
                          G16_CLUSTER * G16_1X2_N, CE_BUNDLE_CLASSES / dw_block_m, 1);
    if (!a.dx)
        g.dx.count = 0;
    if (!a.dw || rows == 0)
        g.dw.count = 0;
    g.count = g.dx.count + g.dw.count;
    return g;
}

/* Work tile `work` of the launch as a tile of g.dw. */
static __device__ __forceinline__ int dw_tile(const grad_plan &g, int work)
{
    return g.count - 1 - work;
}

/* --------------------------------------------------------------------------------------- P^T in the memory of dW */

/* Row v of segment 1 of P^T lies in row v - class1 of dW, which may be written when all tiles of dX, and those tiles of
 * dW that compute row v, have read it. progress: [0] the queue's counter; [1] tiles of dX read, [2 + i] tiles of bundle
 * i of dW read, each counted once by each CTA. A work tile waits only for work tiles before it, which clusters that run
 * have drawn: no cluster waits for one that is not resident. */
static __device__ __forceinline__ bool probs_in_dw(const ce_grads_args &a)
{
    return a.c.probs.class1 < a.c.p.vocab;
}

static __device__ __forceinline__ void wait_progress(const uint64_t *counter, int count)
{
    while (ptx_load_acquire(counter) < (uint64_t)(G16_CLUSTER * count))
        __nanosleep(200);
}

/* Before a tile of dW is loaded: waits until the P^T that lies in its memory has been read. *ready: the last bundle
 * waited for. */
static __device__ __forceinline__ void wait_until_read(const ce_grads_args &a, const grad_plan &g, int tile, int *ready)
{
    const raster &r = g.dw.tiles;
    int pair, tile_n;

    gemm16_locate(g.dw, tile, &pair, &tile_n);
    pair += a.c.probs.class1 / CE_BUNDLE_CLASSES * r.bundle;
    const int bundle = pair / r.bundle;

    if (pair >= r.tiles_m || bundle == *ready)
        return;
    wait_progress(a.c.progress + 1, g.dx.count);
    wait_progress(a.c.progress + 2 + bundle, min(r.bundle, r.tiles_m - bundle * r.bundle) * r.tiles_n);
    *ready = bundle;
}

/* This CTA's main loop over the tile has ended: its P^T has been read. Nothing is published, so no fence is needed. */
static __device__ __forceinline__ void signal_progress(const ce_grads_args &a, int which)
{
    if (probs_in_dw(a) && threadIdx.x % 128 == 0)
        atomicAdd((unsigned long long *)a.c.progress + which, 1ull);
}

/* P^T as A: of dX (rows of the chunk by classes), of dW (classes by rows of the chunk). */
typedef struct dx_source {
    const CUtensorMap *segment;
    const ce_probs *probs;
} dx_source;
typedef struct dw_source {
    const CUtensorMap *segment;
    const ce_probs *probs;
} dw_source;

static __device__ __forceinline__ gemm16_source gemm16_a_source(const dx_source &a, int row, int k)
{
    const ce_segment at = ce_segment_of(*a.probs, k, row);

    return {a.segment + at.index, at.r, at.v};
}

static __device__ __forceinline__ gemm16_source gemm16_a_source(const dw_source &a, int row, int k)
{
    const ce_segment at = ce_segment_of(*a.probs, row, k);

    return {a.segment + at.index, at.v, at.r};
}

/* -------------------------------------------------------------------------------------------------------- producer */

/* Stages of dX and of dW that the producer has filled. */
typedef struct grad_producer {
    uint32_t dx, dw;
    int ready;
} grad_producer;

template <int HV, int M>
static __device__ __forceinline__ void produce_tile(const ce_grads_args &a, const grad_plan &g, grad_smem<M> *s,
                                                    int work, grad_producer *t, unsigned long long *counter, int *next)
{
    if (work < g.dx.count) {
        gemm16_produce_tile<1, !HV>(dx_source{a.dx_probs, &a.c.probs}, a.dx_w, g.dx, 0, &s->dx, work, &t->dx, counter,
                                    next);
        return;
    }
    const int tile = dw_tile(g, work);
    int pair, tile_n;

    if (t->dw == 0) { /* all of dX's stages have been released before the first of dW's is filled */
        enum { STAGES = dx_smem<gemm16_pingpong_1x2<M>>::STAGES };

        for (uint32_t i = 0; i < STAGES; i++)
            pipeline_acquire(ptx_shared(&s->dx.empty[0]), pipeline_producer_at<STAGES>(t->dx + i));
    }
    if (!HV && probs_in_dw(a))
        wait_until_read(a, g, tile, &t->ready);
    gemm16_locate(g.dw, tile, &pair, &tile_n);
    const int col = tile_n * (G16_CLUSTER * G16_1X2_N) + (int)ptx_cluster_rank() * G16_1X2_N;

    if constexpr (HV)
        gemm16_produce<1, 0>(a.dw_x_scaled, a.dw_probs[0], &s->dw, pair * M, col, 0, g.dw.k_blocks, &t->dw, counter,
                             next);
    else
        gemm16_produce<0, 1>(dw_source{a.dw_probs, &a.c.probs}, a.dw_x_scaled, &s->dw, pair * M, col, 0, g.dw.k_blocks,
                             &t->dw, counter, next);
}

/* The first CTA's producer draws the next work tile while it loads one, and broadcasts it. */
template <int HV, int M>
static __device__ __forceinline__ void produce(const ce_grads_args &a, const grad_plan &g, grad_smem<M> *s)
{
    unsigned long long *counter = (unsigned long long *)a.c.progress;
    queue_state queue = queue_begin(&s->queue);
    grad_producer t = {0, 0, -1};

    if (ptx_cluster_rank() == 0) {
        int work = (int)atomicAdd(counter, 1ull);

        while (work < g.count) {
            int next = g.count;

            queue_broadcast<G16_CLUSTER>(&s->queue, &queue, work);
            produce_tile<HV, M>(a, g, s, work, &t, counter, &next);
            work = next;
        }
        queue_broadcast<G16_CLUSTER>(&s->queue, &queue, work);
    } else {
        for (;;) {
            const int work = queue_next_producer(&queue);

            if (work >= g.count)
                return;
            produce_tile<HV, M>(a, g, s, work, &t, NULL, NULL);
        }
    }
}

/* --------------------------------------------------------------------------------------------------- epilogues */

/* dX: the listed rows, each times its factor, with the target's part. */
template <int BF16>
static __device__ __forceinline__ void store_dx(const ce_grads_args &a, const gemm16_plan &w, int first, int first_col,
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
        const float g = v >= 0 ? a.c.target_du[row] : 0.0f;
        const int64_t step = p.hv ? p.w_stride : 1;
        const uint16_t *line = (const uint16_t *)p.w + (p.hv ? v : v * p.w_stride) + col * step;
        uint16_t *to = (uint16_t *)p.dx + p.list[row] * p.dx_stride + col;

#pragma unroll
        for (int j = 0; j < G16_COOP_N / 8; j++) {
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

/* A partial sum of dX (split-K) in f32: reduce_dx in row_kernels.cu adds them. */
static __device__ __forceinline__ void store_dx_partial(const ce_grads_args &a, const gemm16_plan &w, int first,
                                                        int split, int first_col, const float *acc)
{
    const int col = first_col + 2 * (threadIdx.x % 4);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = a.c.dx_partial + (split * a.c.rows + first + 8 * h) * (int64_t)w.n + col;

        if (first + 8 * h >= w.m)
            continue;
#pragma unroll
        for (int j = 0; j < G16_COOP_N / 8; j++)
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

/* x is a power of two. */
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

/* A chunk without rows: dW is 0. */
static __device__ __forceinline__ void clear_dw(const ce_grads_args &a)
{
    const ce_params &p = a.c.p;
    const int64_t size = a.dw_dtype == RIDGE_F32 ? 4 : 2, lines = p.hv ? p.hidden : p.vocab;
    const int64_t length = p.hv ? p.vocab : p.hidden;

    clear_lines(a.dw_at.own, lines, length * size, a.dw_at.own_ld * size);
    if (a.writes == CE_DW_SUM)
        clear_lines(a.dw_at.spare, lines, length * 2, a.dw_at.spare_ld * 2);
}

/* -------------------------------------------------------------------------------------------------------- consumer */

/* A tile of dX. WIDTH: of one wgmma. */
template <int BF16, int MN_B, int WIDTH, class SMEM>
static __device__ __forceinline__ void consume_dx(const ce_grads_args &a, const gemm16_plan &w, const SMEM *,
                                                  const gemm16_operands &at, int consumer, int tile,
                                                  gemm16_state *state)
{
    const int thread = threadIdx.x % 128;
    int pair, tile_n, first_block;
    const int split = gemm16_locate(w, tile, &pair, &tile_n);
    float acc[G16_COOP_N / 2];

    const int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_BLOCK_M + consumer * 64;
    const int row = first + thread / 32 * 16 + thread % 32 / 4;

    gemm16_mainloop<BF16, 1, MN_B, SMEM, WIDTH>(at, gemm16_blocks(w, split, &first_block), consumer, state, acc);
    if (consumer == 0)
        signal_progress(a, 1);
    if (w.splits > 1)
        store_dx_partial(a, w, row, split, tile_n * G16_COOP_N, acc);
    else
        store_dx<BF16>(a, w, row, tile_n * G16_COOP_N, acc);
}

/* The first row and column of a warp of dW's tile. */
template <int M>
static __device__ __forceinline__ void locate_dw(const gemm16_plan &w, int tile, uint32_t thread, int *row, int *col)
{
    int pair, tile_n;

    gemm16_locate(w, tile, &pair, &tile_n);
    *row = pair * M + (int)(thread / 32 % 4 * 16);
    *col = tile_n * (G16_CLUSTER * G16_1X2_N) + (int)ptx_cluster_rank() * G16_1X2_N;
}

/* A consumer's tile of dW; both CTAs have its rows. n: stages consumed before it. */
template <int BF16, int MN_A, int MN_B, int EPI, int M>
static __device__ __forceinline__ void consume_dw(const ce_grads_args &a, const gemm16_plan &w,
                                                  const gemm16_operands &at, grad_smem<M> *s, int consumer, int tile,
                                                  uint32_t n)
{
    constexpr bool TARGETS = EPI == EPI_16 || EPI == EPI_ADD_16; /* only there: tested at run time it spills */
    constexpr bool READS = EPI == EPI_ADD_16 || EPI == EPI_SUM;  /* the previous dW */
    gemm16_state state = {n, false};
    float acc[M / 64 * (G16_1X2_N / 2)];
    uint32_t thread = thread_anew();
    int row, col;

    locate_dw<M>(w, tile, thread, &row, &col);
    if (TARGETS && a.targets)
        prefetch_targets<M>(a, w, s->note[thread / 32], row, col);
    if (READS)
#pragma unroll
        for (int i = 0; i < M / 64 * (G16_1X2_N / 2); i++) /* else acc lives on from the last tile's epilogue to here */
            asm volatile("mov.b32 %0, 0;" : "=f"(acc[i]));
    gemm16_mainloop<BF16, MN_A, MN_B, gemm16_pingpong_1x2<M>>(at, w.k_blocks, consumer, &state, acc);
    asm volatile("" : "+r"(tile)); /* located anew: row and column, kept over the main loop, would spill */
    thread = thread_anew();
    locate_dw<M>(w, tile, thread, &row, &col);
    signal_progress(a, 2 + row / CE_BUNDLE_CLASSES);
    const float scale = BF16 ? 1.0f : scale_back(a.c.p);

    if (READS)
        prefetch_dw<M>(a, w, row, col);
#pragma unroll
    for (int i = 0; i < M / 64; i++, row += 64) {
        float *part = acc + i * (G16_1X2_N / 2);

        thread = thread_anew();
        asm volatile("" : "+r"(col)); /* else its sign extension stays in a register and spills */
        if (TARGETS && a.targets)
            add_targets<BF16>(a, w, &s->note[thread / 32][16 * i + thread % 32 / 4], col, BF16 ? 1.0f : inverse(scale),
                              part);
        if (EPI == EPI_F32)
            store_f32<BF16>(a, w, row + (int)(thread % 32 / 4), col, scale, part);
        if (EPI == EPI_16)
            store_16<BF16>(a, w, s->panel[thread / 32], row, col, scale, part);
        if (EPI == EPI_ADD_16 && i == 0)
            add_16<BF16, 2>(a, w, row + (int)(thread % 32 / 4), col, scale, part);
        if (EPI == EPI_ADD_16 && i > 0)
            add_16<BF16, 4>(a, w, row + (int)(thread % 32 / 4), col, scale, part);
        if (EPI == EPI_SUM && i == 0)
            store_sums<BF16, 2>(a, w, row + (int)(thread % 32 / 4), col, scale, part);
        if (EPI == EPI_SUM && i > 0)
            store_sums<BF16, 4>(a, w, row + (int)(thread % 32 / 4), col, scale, part);
    }
}

/* A consumer: its tiles of dX, then its tiles of dW. */
template <int BF16, int HV, int EPI, int M>
static __device__ __forceinline__ void consume(const ce_grads_args &a, grad_smem<M> *s, int consumer)
{
    constexpr int WIDTH = M == 192 ? G16_COOP_N : G16_1X2_N; /* beside two of 128, one of 256 would be serialised */
    const grad_plan &g = s->plan;
    queue_state queue = queue_begin(&s->queue);
    gemm16_state state = {0, false};
    int work = queue_next(&queue);

    gemm16_stagger_wait(consumer, work < g.dx.count);
    const gemm16_operands dx = gemm16_operands_of<1, !HV>(&s->dx, consumer);
    for (; work < g.dx.count; work = queue_next(&queue))
        consume_dx<BF16, !HV, WIDTH>(a, g.dx, &s->dx, dx, consumer, work, &state);
    const gemm16_operands dw = gemm16_operands_of<HV, !HV>(&s->dw, 0);
    uint32_t tiles = 0; /* of dW so far, of both consumers */

    gemm16_order_begin(consumer);
    for (; work < g.count; tiles++, work = queue_next(&queue))
        if (gemm16_first_own(tiles, consumer) == 0)
            consume_dw<BF16, HV, !HV, EPI, M>(a, g.dw, dw, s, consumer, dw_tile(g, work),
                                              tiles * (uint32_t)g.dw.k_blocks);
    gemm16_order_end(consumer, tiles);
}

#endif

/* HV: W is [hidden, vocab]. */
template <int BF16, int HV, int EPI>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_grads_kernel(const __grid_constant__ ce_grads_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr int M = EPI == EPI_F32 || BF16 ? 192 : 128; /* as ce_dw_block_m */
    grad_smem<M> *s = (grad_smem<M> *)shared;

    if (threadIdx.x == 0) {
        queue_init<G16_CLUSTER>(&s->queue, 8 * G16_CLUSTER);
        gemm16_pipeline_init(&s->dx, 8);
    }
    gemm16_prologue(&s->dw, 4); /* a stage of dW is read by one consumer */
    if (threadIdx.x == 0)
        s->plan = grad_plan_of(a, M);
    if (a.dw && a.reads == CE_DW_NONE && a.writes != CE_DW_SUM_ADD && ce_chunk_rows(a.c) == 0)
        clear_dw(a);
    __syncthreads(); /* orders s->plan; and setmaxnreg is .aligned, which lanes leaving clear_dw's loop are not */
    if (threadIdx.x < 128) {
        ptx_setmaxnreg_dec<56>();
        if (threadIdx.x == 0)
            produce<HV, M>(a, s->plan, s);
    } else {
        const int consumer = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;

        ptx_setmaxnreg_inc<224>();
        consume<BF16, HV, EPI, M>(a, s, consumer);
    }
    __syncwarp();       /* the cluster barrier is .aligned; only one thread of the producer's warp ran its loop */
    ptx_cluster_sync(); /* a CTA's shared memory must outlive the other CTA's writes and arrivals */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By epilogue; the last two are those of W [H, V], where a 16-bit dW is always summed in f32. */
#define OF_DTYPE(bf16)                                                                                      \
    (const void *)ce_grads_kernel<bf16, 0, EPI_F32>, (const void *)ce_grads_kernel<bf16, 0, EPI_SUM>,       \
        (const void *)ce_grads_kernel<bf16, 0, EPI_16>, (const void *)ce_grads_kernel<bf16, 0, EPI_ADD_16>, \
        (const void *)ce_grads_kernel<bf16, 1, EPI_F32>, (const void *)ce_grads_kernel<bf16, 1, EPI_SUM>

enum { EPI_HV = EPI_ADD_16 + 1, EPILOGUES = EPI_HV + 2, FUNCTIONS = 2 * EPILOGUES, SHARED = sizeof(grad_smem<192>) };
static_assert(sizeof(grad_smem<128>) <= SHARED && SHARED <= 227 * 1024, "shared memory of a block");
static const void *const functions[FUNCTIONS] = {OF_DTYPE(0), OF_DTYPE(1)};

ridge_status ce_grads_prepare(const ridge_device *device)
{
    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    return host_prepare(device, functions, FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED,
                        "linear_ce: loading kernels");
}

ridge_status ce_grads_launch(const ridge_device *device, const char *name, ce_grads_args *g, void *stream)
{
    const ce_params *p = &g->c.p;
    const int64_t m = p->hv ? p->hidden : p->vocab, n = p->hv ? p->vocab : p->hidden;
    const int64_t rows = G16_CLUSTER * G16_BLOCK_M, block_m = ce_dw_block_m(p->dtype, g->dw_dtype);
    const int64_t dx = g->dx ? ridge_round_up(g->c.rows, rows) / rows *
                                   (ridge_round_up(p->hidden, G16_COOP_N) / G16_COOP_N) * g->c.dx_splits
                             : 0;
    const int64_t dw = g->dw ? ridge_round_up(m, block_m) / block_m * (ridge_round_up(n, G16_COOP_N) / G16_COOP_N) : 0;
    int epilogue = !g->dw || g->dw_dtype == RIDGE_F32 ? EPI_F32 : EPI_SUM;

    if (epilogue == EPI_SUM && g->targets)
        epilogue = g->reads == CE_DW_NONE ? EPI_16 : EPI_ADD_16;
    if (p->hv)
        epilogue += EPI_HV;
    if (dx + dw == 0)
        return RIDGE_OK;
    return host_launch_cluster(device, name, functions[EPILOGUES * (p->dtype == RIDGE_BF16) + epilogue],
                               dim3((unsigned)(ridge_min(dx + dw, device->units / G16_CLUSTER) * G16_CLUSTER)),
                               G16_CLUSTER, G16_THREADS, SHARED, g, stream);
}
