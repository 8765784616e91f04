/* gemm_sm90.cu: the Q8_0 products of many tokens (prompts) on Hopper, by TMA and wgmma on int8 tensor cores.
 *
 * A CTA computes tiles of 128 weight rows by BN tokens: a producer warp brings stages, two or four consumer warpgroups
 * have 64 rows and up to 64 tokens each. As in gemm_mma.cu the kernel goes through k partition by partition, so that an
 * element needs one running sum, and the tree at most three sums of earlier partitions, which are in shared memory but
 * for KEEP_REGS of each thread's. The grid is persistent. Tiles that do not fill a wave are shared by clusters: each
 * CTA has some of the partitions, and the tree goes on over their sums in distributed shared memory.
 *
 * A block of 32 columns is one wgmma of k = 32 onto zero, and an element of it costs three instructions: the conversion
 * of the dot (I2FP, exact), the product of the two scales, the fma. These bound the kernel: 128 of them a clock and SM.
 * While a warpgroup waits for its wgmma, the others scale.
 *
 * A stage has two blocks (64 columns, half a run) of every row and token, in lines of 64 bytes that TMA swizzles, and
 * their scales: of a row the 8 around them, since a box has at least 16 bytes; of x by block, within 16 tokens in the
 * order in which a thread has them (q8_0_scale_place). TMA fills rows and tokens beyond the last with zeros.
 *     full[s]   the bytes of stage s have arrived: orders TMA's writes before the consumers' reads
 *     empty[s]  an arrival of each consumer warp: its reads of stage s come before TMA's next writes */
#include "cuda/sm90/await.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/sm90/wgmma_s8.cuh"
#include "gemm.cuh"

enum {
    STAGE_COLS = 64,
    STAGE_BLOCKS = STAGE_COLS / RIDGE_Q8_0_BLOCK,
    RUN_STAGES = RIDGE_Q8_0_RUN / STAGE_BLOCKS,
    RUN_COLS = RIDGE_Q8_0_RUN * RIDGE_Q8_0_BLOCK,
    SCALE_BOX = 8, /* scales */
    BM = 128,
    WG_ROWS = 64 /* of a warpgroup */
};

/* The numbers of a tile with BN tokens. THREADS, and ELEMENTS of a thread, are those of a warpgroup (gemm_fold). */
template <int BN_, int WG_TOKENS_, int RING_, int KEEP_REGS_, int REGS_, int PRODUCER_REGS_> struct wgmma_tile {
    enum {
        BN = BN_,
        WG_TOKENS = WG_TOKENS_,
        RING = RING_,
        KEEP_REGS = KEEP_REGS_,
        REGS = REGS_, /* of a consumer's thread */
        PRODUCER_REGS = PRODUCER_REGS_,
        CONSUMERS = BM / WG_ROWS * BN / WG_TOKENS,
        CTA_THREADS = 128 + 128 * CONSUMERS,
        THREADS = 128,
        ELEMENTS = WG_ROWS * WG_TOKENS / THREADS,
        /* Of a stage: codes of the weights and of x, scales of the weights [BM][SCALE_BOX] and of x [2][BN]. */
        AT_X = BM * STAGE_COLS,
        AT_SCALES = AT_X + BN * STAGE_COLS,
        AT_X_SCALES = AT_SCALES + BM * 2 * SCALE_BOX,
        BOX_BYTES = AT_X_SCALES + BN * 4 * STAGE_BLOCKS,
        STAGE_BYTES = (BOX_BYTES + 511) / 512 * 512,
        /* Of a warpgroup: sums of earlier partitions, or the results before they are stored. */
        PITCH = WG_ROWS + 4, /* lanes write different banks */
        KEPT = (3 * ELEMENTS - KEEP_REGS) * THREADS,
        FLOATS = KEPT > WG_TOKENS *PITCH ? KEPT + 0 : WG_TOKENS *PITCH,
        AT_FLOATS = RING * STAGE_BYTES,
        AT_BARS = AT_FLOATS + CONSUMERS * FLOATS * 4,
        SHARED = AT_BARS + 2 * RING * 8
    };
    static_assert(AT_X % 512 == 0 && AT_X_SCALES % 128 == 0 && SHARED <= 232448, "swizzled lines, boxes; a CTA's most");
};

typedef struct q8_0_wgmma_args {
    CUtensorMap codes[2], scales[2], x, x_scales;
    int runs, box_rows;     /* runs of k; rows of a box of weights */
    int work, whole, split; /* tiles; those of a CTA by itself; the others are shared by `split` CTAs, a cluster */
    uint32_t none;          /* 0, see cuda/sm90/await.cuh */
    q8_0_gemm_args g;
} q8_0_wgmma_args;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A CTA's place among the `split` that share a tile. */
static __device__ __forceinline__ int rank_of(int split)
{
    return split == 1 ? 0 : (int)ptx_cluster_rank();
}

/* The tile that a cluster's CTAs share, behind those that a CTA has for itself. */
static __device__ __forceinline__ int shared_tile(const q8_0_wgmma_args &a)
{
    return a.whole + (int)(blockIdx.x / (unsigned)a.split);
}

/* Row `i` of tile `tile`: which weight, and its row. With gate_up a warpgroup has 32 rows of gate and the same 32 of
 * up. */
static __device__ __forceinline__ int row_of(const q8_0_gemm_args &a, int tile, int i, int *row)
{
    const int which = tile >= a.tiles[0];

    if (a.gate_up) {
        *row = tile * (BM / 2) + i / WG_ROWS * (WG_ROWS / 2) + i % (WG_ROWS / 2);
        return i / (WG_ROWS / 2) % 2;
    }
    *row = (which ? tile - a.tiles[0] : tile) * BM + i;
    return which;
}

/* --------------------------------------------------------------------------------------------------------- producer */

/* Weights of a stage, from two maps: `rows` rows of one matrix. */
static __device__ __forceinline__ void load_rows(const CUtensorMap *codes, const CUtensorMap *scales, uint32_t to,
                                                 uint32_t to_scales, int column, int scale, int row, uint32_t full)
{
    ptx_tma_load_2d(to, codes, column, row, full);
    ptx_tma_load_2d(to_scales, scales, scale, row, full);
}

/* By one thread: all stages of the partitions [first, first + count) of a tile. Few instructions a stage: the warp has
 * one scheduler's slots in turn with four consumers, and at 200 of them it was what they waited for. */
template <class T>
static __device__ __forceinline__ void load_tile(const q8_0_wgmma_args &a, int tile, int first, int count,
                                                 uint32_t ring, uint32_t full, uint32_t empty, pipeline_state *at)
{
    const int first_token = tile % a.g.token_tiles * T::BN;
    int row;
    const int which = row_of(a.g, tile / a.g.token_tiles, 0, &row);
    const CUtensorMap *codes = &a.codes[which], *scales = &a.scales[which];

#pragma unroll 1
    for (int part = first; part < first + count; part++)
#pragma unroll 1
        for (int run = part; run < a.runs; run += RIDGE_Q8_0_PARTS)
#pragma unroll
            for (int half = 0; half < RUN_STAGES; half++) {
                const uint32_t to = ring + at->stage * T::STAGE_BYTES, bar = full + at->stage * 8;
                const int column = run * RUN_COLS + half * STAGE_COLS, scale = (run & ~1) * RIDGE_Q8_0_RUN;

                pipeline_acquire(empty, *at);
                ptx_mbarrier_expect(bar, T::BOX_BYTES);
                if (a.g.gate_up) {
#pragma unroll
                    for (int i = 0; i < BM; i += WG_ROWS / 2)
                        load_rows(&a.codes[i / (WG_ROWS / 2) % 2], &a.scales[i / (WG_ROWS / 2) % 2],
                                  to + i * STAGE_COLS, to + T::AT_SCALES + i * 2 * SCALE_BOX, column, scale,
                                  row + i / WG_ROWS * (WG_ROWS / 2), bar);
                } else {
                    load_rows(codes, scales, to, to + T::AT_SCALES, column, scale, row, bar);
                }
                ptx_tma_load_2d(to + T::AT_X, &a.x, column, first_token, bar);
                ptx_tma_load_2d(to + T::AT_X_SCALES, &a.x_scales, first_token,
                                run * RIDGE_Q8_0_RUN + half * STAGE_BLOCKS, bar);
                pipeline_advance(at, T::RING);
            }
}

template <class T>
static __device__ void produce(const q8_0_wgmma_args &a, uint32_t ring, uint32_t full, uint32_t empty)
{
    pipeline_state at = PIPELINE_PRODUCER;

    for (int work = blockIdx.x; work < a.whole; work += gridDim.x)
        load_tile<T>(a, work, 0, RIDGE_Q8_0_PARTS, ring, full, empty, &at);
    if (a.split > 1 && shared_tile(a) < a.work)
        load_tile<T>(a, shared_tile(a), rank_of(a.split) * (RIDGE_Q8_0_PARTS / a.split), RIDGE_Q8_0_PARTS / a.split,
                     ring, full, empty, &at);
}

/* --------------------------------------------------------------------------------------------------------- consumers
 */

/* Where a consumer's operands lie in stage 0: descriptors of weights and x, scales of its first row, scales of x of its
 * first token. */
typedef struct consumer_at {
    uint32_t weights, x, scales, x_scales;
    uint32_t full, empty;
    uint32_t none; /* 0, see cuda/sm90/await.cuh */
} consumer_at;

/* The product of a block. line: from the descriptors' stage 0. */
template <class T> static __device__ __forceinline__ void issue(int32_t *d, const consumer_at &at, uint32_t line)
{
    wgmma_fence();
    wgmma_s8<T::WG_TOKENS>(d, wgmma_descriptor_rows64(at.weights + line), wgmma_descriptor_rows64(at.x + line));
    wgmma_commit();
}

/* Adds block `b` of a stage to the sums. */
template <class T>
static __device__ __forceinline__ void scale(const int32_t *d, const uint32_t *w, int b, const float *xs, float *acc)
{
    const float wd[2] = {ptx_f32_from_f16((uint16_t)(w[0] >> 16 * b)), ptx_f32_from_f16((uint16_t)(w[1] >> 16 * b))};

#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++) {
        const float s = __fmul_rn(wd[i / 2 % 2], xs[i / 4 * 2 + i % 2]);

        acc[i] = __fmaf_rn(s, __int2float_rn(d[i]), acc[i]);
    }
}

/* Adds a stage to the sums. second: is it the second stage of a run? scales: from at.scales to those of the run. */
template <class T>
static __device__ __forceinline__ void consume_stage(const consumer_at &at, uint32_t slot, int scales, int second,
                                                     float *acc)
{
    const uint32_t stage = slot * T::STAGE_BYTES, from = at.scales + scales + stage + second * 4;
    const uint32_t line = slot * (T::STAGE_BYTES >> 4);
    const uint32_t w[2] = {ptx_load_shared1(from), ptx_load_shared1(from + 8 * 2 * SCALE_BOX)};
    int32_t d[T::ELEMENTS];

    issue<T>(d, at, line);
#pragma unroll
    for (int b = 0; b < STAGE_BLOCKS; b++) {
        float xs[T::ELEMENTS / 2];

        wgmma_wait();
        wgmma_pin_s32<T::ELEMENTS>(d);
#pragma unroll
        for (int i = 0; i < T::ELEMENTS / 8; i++) /* no register for them before the wait */
            ptx_load_shared4(xs + 4 * i, at.x_scales + stage + b * T::BN * 4 + i * 16 * 4);
        scale<T>(d, w, b, xs, acc);
        if (b + 1 < STAGE_BLOCKS)
            issue<T>(d, at, line + (b + 1) * (RIDGE_Q8_0_BLOCK >> 4));
    }
    __syncwarp(); /* orders the warp's reads before the release; of 128 tokens they have arrived (SASS), and the sums
                     would cost 4 % */
    if (threadIdx.x % 32 == 0)
        pipeline_release(at.empty + (T::BN < 128 ? pipeline_behind_sums<T::ELEMENTS>(acc, at.none) : 0), slot);
}

/* The sums of a tile over the partitions [first, first + count): all runs of the first, then of the next, ... */
template <class T>
static __device__ __forceinline__ void consume_tile(const consumer_at &at, pipeline_state *ring, int runs, int first,
                                                    int count, gemm_kept<T> *kept, float *acc)
{
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        acc[i] = 0.0f;
#pragma unroll 1
    for (int part = 0; part < count; part++) {
        const int scales = (first + part) % 2 * 8; /* a box begins at the even run */

#pragma unroll 1
        for (int run = first + part; run < runs; run += RIDGE_Q8_0_PARTS)
#pragma unroll 1 /* unrolled, registers would spill */
            for (int second = 0; second < RUN_STAGES; second++) {
                pipeline_wait(at.full, *ring);
                consume_stage<T>(at, ring->stage, scales, second, acc);
                pipeline_advance(ring, T::RING);
            }
        gemm_fold<T>(kept, part, acc);
    }
    if (count < RIDGE_Q8_0_PARTS) /* acc is +0, which changes no bit of what has been put aside */
        gemm_add_kept<T>(*kept, 0, acc);
}

/* Results to the warpgroup's shared memory, [token][row], so that neighbouring threads store neighbouring rows. */
template <class T> static __device__ __forceinline__ void stage_results(int warpgroup, float *memory, const float *acc)
{
    const int lane = threadIdx.x % 32;
    float *to = memory + lane % 4 * 2 * T::PITCH + threadIdx.x % T::THREADS / 32 * 16 + lane / 4;

    ptx_barrier_sync(1 + warpgroup, T::THREADS); /* orders the warpgroup's reads of earlier sums before these writes */
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        to[(i / 4 * 8 + i % 2) * T::PITCH + i / 2 % 2 * 8] = acc[i];
    ptx_barrier_sync(1 + warpgroup, T::THREADS); /* orders the writes before the reads */
}

/* A result: of a CTA, or the tree over those of a cluster. */
static __device__ __forceinline__ float result_of(const float *from, int split)
{
    float part[RIDGE_Q8_0_PARTS];

    if (split == 1)
        return *from;
#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_PARTS; i++) /* the tree adds +0 for what is not there, which changes no bit */
        part[i] = i < split ? ptx_load_cluster(ptx_map(ptx_shared(from), (uint32_t)i)) : 0.0f;
    return ridge_q8_0_tree(part);
}

/* This CTA's share of the results of a warpgroup. */
/* The results of a warpgroup, or this CTA's share of those of a cluster: a thread has one row of every `step`-th token.
 * first: of the rows, in the tile. */
template <class T>
static __device__ __forceinline__ void store_results(const q8_0_wgmma_args &a, int work, int split, int first,
                                                     int token, const float *memory)
{
    const int shift = a.g.gate_up ? 5 : 6, thread = threadIdx.x % T::THREADS, column = thread & ((1 << shift) - 1);
    const int first_token = work % a.g.token_tiles * T::BN + token;
    const int tokens = min(a.g.p.tokens - first_token, (int)T::WG_TOKENS), step = T::THREADS * split >> shift;
    int row;
    const int which = row_of(a.g, work / a.g.token_tiles, first, &row);

    row += column;
    if (row >= a.g.p.weight[which].rows)
        return;
    if (a.g.gate_up) {
        for (int i = (T::THREADS * rank_of(split) + thread) >> shift; i < tokens; i += step)
            q8_0_epilogue_gate_up(a.g.p, row, first_token + i, result_of(memory + i * T::PITCH + column, split),
                                  result_of(memory + i * T::PITCH + column + WG_ROWS / 2, split));
    } else if (a.g.p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND) {
        for (int i = (T::THREADS * rank_of(split) + thread) >> shift; i < tokens; i += step)
            q8_0_epilogue_hc(a.g.p, row, first_token + i, result_of(memory + i * T::PITCH + column, split), NULL);
    } else if (split == 1) {
#pragma unroll 4
        for (int i = thread >> shift; i < tokens; i += T::THREADS / WG_ROWS)
            q8_0_store(a.g.p, which, row, first_token + i, memory[i * T::PITCH + column]);
    } else {
        for (int i = (T::THREADS * rank_of(split) + thread) >> shift; i < tokens; i += step)
            q8_0_store(a.g.p, which, row, first_token + i, result_of(memory + i * T::PITCH + column, split));
    }
}

template <class T>
static __device__ void consume(const q8_0_wgmma_args &a, int warpgroup, uint32_t ring, float *memory, uint32_t full,
                               uint32_t empty)
{
    const int thread = threadIdx.x % T::THREADS, lane = threadIdx.x % 32;
    const int first_row = warpgroup % (BM / WG_ROWS) * WG_ROWS;
    const int token = warpgroup / (BM / WG_ROWS) * T::WG_TOKENS;
    const uint32_t scales_row = first_row + thread / 32 * 16 + lane / 4;
    const consumer_at at = {(ring + first_row * STAGE_COLS) >> 4 & 0x3fff, /* bits above name the CTA */
                            (ring + T::AT_X + token * STAGE_COLS) >> 4 & 0x3fff,
                            ring + T::AT_SCALES + scales_row * 2 * SCALE_BOX,
                            ring + T::AT_X_SCALES + token * 4 + lane % 4 * 16,
                            full,
                            empty,
                            a.none};
    pipeline_state state = PIPELINE_CONSUMER;
    float acc[T::ELEMENTS];
    gemm_kept<T> kept;

    kept.shared = ptx_shared(memory) + thread * 16;
    for (int work = blockIdx.x;; work += gridDim.x) {
        const int split = work < a.whole ? 1 : a.split, parts = RIDGE_Q8_0_PARTS / split;
        const int tile = split == 1 ? work : shared_tile(a);

        if (tile < a.work) {
            consume_tile<T>(at, &state, a.runs, rank_of(split) * parts, parts, &kept, acc);
            stage_results<T>(warpgroup, memory, acc);
        }
        if (split > 1)
            ptx_cluster_sync(); /* orders the results of all CTAs before their reads */
        if (tile < a.work)
            store_results<T>(a, tile, split, first_row, token, memory);
        if (work >= a.whole)
            break;
        ptx_barrier_sync(1 + warpgroup, T::THREADS); /* orders the reads before the next tile's sums */
    }
    if (a.split > 1)
        ptx_cluster_sync(); /* a CTA's results must outlive the other CTAs' reads */
}
#endif

template <class T>
static __global__ void __launch_bounds__(T::CTA_THREADS, 1) q8_0_gemm_wgmma(const __grid_constant__ q8_0_wgmma_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char memory[];
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1; /* of the consumers */
    const uint32_t ring = ptx_shared(memory), full = ring + T::AT_BARS, empty = full + 8 * T::RING;
    float *results = (float *)(memory + T::AT_FLOATS) + warpgroup * T::FLOATS;

    if (threadIdx.x == 0) {
        pipeline_init(full, empty, T::RING, 1, 4 * T::CONSUMERS);
        ptx_mbarrier_fence_init();
    }
    __syncthreads(); /* orders the initialisation before any use */
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (warpgroup < 0) {
        ptx_setmaxnreg_dec<T::PRODUCER_REGS>();
        if (threadIdx.x < 32 && ptx_elect())
            produce<T>(a, ring, full, empty);
        __syncwarp(); /* the cluster barriers are .aligned */
        if (a.split > 1) {
            ptx_cluster_sync();
            ptx_cluster_sync();
        }
    } else {
        ptx_setmaxnreg_inc<T::REGS>();
        consume<T>(a, warpgroup, ring, results, full, empty);
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* Tokens, those of a warpgroup, stages, kept sums in registers, registers. */
typedef wgmma_tile<128, 64, 3, 12, 112, 32> tile_128;
typedef wgmma_tile<64, 64, 8, 96, 232, 40> tile_64;
typedef wgmma_tile<32, 32, 12, 48, 232, 40> tile_32;

typedef struct wgmma_variant {
    const void *function;
    int bn, threads, shared;
    double stage_us; /* a stage of a CTA on an H200 */
} wgmma_variant;

#define VARIANT(tile, us)                                                                  \
    {                                                                                      \
        (const void *)q8_0_gemm_wgmma<tile>, tile::BN, tile::CTA_THREADS, tile::SHARED, us \
    }
static const wgmma_variant variants[] = {VARIANT(tile_128, 0.86), VARIANT(tile_64, 0.54), VARIANT(tile_32, 0.36)};
enum { VARIANTS = (int)(sizeof variants / sizeof variants[0]) };

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    for (int i = 0; i < VARIANTS && !status; i++)
        status = host_prepare(device, &variants[i].function, 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              variants[i].shared, "q8_0_matmul: loading kernels");
    return status;
}

/* Rows of a tile that are rows of the result. */
static int64_t result_rows(uint32_t op)
{
    return op == RIDGE_Q8_0_GATE_UP_SWIGLU ? BM / 2 : BM;
}

/* The tiles beyond whole waves are shared by as many CTAs each as the GPU holds at once: two, or, where there is no
 * whole wave, up to eight, if GPCs of 16 and 18 SMs have them. */
static int split_of(const ridge_device *device, int64_t tiles, int64_t cols)
{
    const int64_t rest = tiles % device->units, most = tiles < device->units ? RIDGE_Q8_0_PARTS : 2;
    int split = 1;

    while (rest && 2 * split <= most && 2 * split * rest <= (device->units & ~7) && 2 * split * RUN_COLS <= cols)
        split *= 2;
    return split;
}

static ridge_status make_maps(const ridge_device *device, const wgmma_variant *v, q8_0_wgmma_args *a)
{
    const q8_0_matmul_args *p = &a->g.p;
    const int64_t cols = p->blocks * RIDGE_Q8_0_BLOCK;
    ridge_status status =
        host_tensor_map(device, &a->x, RIDGE_I8, p->x, cols, p->tokens, p->x_stride, STAGE_COLS, v->bn, 64);

    if (!status)
        status = host_tensor_map(device, &a->x_scales, RIDGE_F32, p->x_scales, a->g.x_step, p->blocks, a->g.x_step,
                                 v->bn, STAGE_BLOCKS, 0);
    for (int i = 0; i < 2 && !status; i++) {
        const q8_0_weight *m = &p->weight[i];

        if (m->rows == 0)
            continue;
        status = host_tensor_map(device, &a->codes[i], RIDGE_I8, m->codes, cols, m->rows, m->stride, STAGE_COLS,
                                 a->box_rows, 64);
        if (!status)
            status = host_tensor_map(device, &a->scales[i], RIDGE_F16, m->scales, p->blocks, m->rows,
                                     m->scale_stride / 2, SCALE_BOX, a->box_rows, 0);
    }
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    const wgmma_variant *v = &variants[kernel->param[0]];
    const ridge_call *call = &bound->call;
    const int64_t height = result_rows(call->op);
    q8_0_wgmma_args a = {};
    ridge_status status;
    int grid;

    a.g.p = q8_0_collect(call);
    if (!q8_0_scales_aligned(&a.g.p, 16)) /* not part of a problem */
        return q8_0_launch_gemm(device, kernel, bound, workspace, size, stream);
    a.g.gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    a.g.tiles[0] = (int)ridge_ceil_div(a.g.p.weight[0].rows, height);
    a.g.tiles[1] = a.g.gate_up ? 0 : (int)ridge_ceil_div(a.g.p.weight[1].rows, height);
    a.g.token_tiles = (int)ridge_ceil_div(a.g.p.tokens, v->bn);
    a.runs = (int)(a.g.p.blocks / RIDGE_Q8_0_RUN);
    a.work = (a.g.tiles[0] + a.g.tiles[1]) * a.g.token_tiles;
    a.box_rows = a.g.gate_up ? WG_ROWS / 2 : BM;
    a.split = split_of(device, a.work, call->dim[1]);
    a.whole = a.split == 1 ? a.work : a.work - a.work % device->units;
    grid = a.whole ? (a.work < device->units ? a.work : device->units / a.split * a.split) : a.work * a.split;
    if (a.work == 0)
        return RIDGE_OK;
    status = q8_0_quantise_by_block(device, kernel, call, workspace, stream, true, &a.g.p, &a.g.x_step);
    if (!status)
        status = make_maps(device, v, &a);
    if (status)
        return status;
    return host_launch_cluster(device, kernel->name, v->function, dim3((unsigned)grid), a.split, v->threads,
                               (size_t)v->shared, &a, stream);
}

static int64_t tiles_of(const wgmma_variant *v, const ridge_problem *problem)
{
    const int64_t height = result_rows(problem->op);
    int64_t tiles = ridge_ceil_div(problem->dim[2], height);

    if (problem->op == RIDGE_Q8_0_PAIR)
        tiles += ridge_ceil_div(problem->dim[3], height);
    return tiles * ridge_ceil_div(problem->dim[0], v->bn);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    if (problem->dim[0] == 0 || problem->dim[1] == 0)
        return "nothing to multiply";
    if (problem->dtype[2] == RIDGE_U8)
        return "weights are in blocks: planes only";
    if (problem->dim[1] % (2 * RUN_COLS))
        return "TMA needs cols that are a multiple of 256";
    if (problem->align < 4)
        return "TMA needs rows that begin at multiples of 16 bytes";
    if (problem->dim[1] > 0x3fffff00 || problem->dim[2] > 0x3fffff00 || problem->dim[3] > 0x3fffff00 ||
        tiles_of(&variants[kernel->param[0]], problem) > 0x3fffffff)
        return "more than 2^30 rows, columns or tiles";
    return NULL;
}

/* Microseconds on an H200, fitted to 45 times of 17 to 512 tokens. The SMs do not hold clusters of four and eight on
 * nearly all of them at once: those are two waves. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const wgmma_variant *v = &variants[kernel->param[0]];
    const int64_t tiles = tiles_of(v, problem), rest = tiles % device->units;
    const int split = split_of(device, tiles, problem->dim[1]);
    double waves = (double)(tiles / device->units);

    if (rest)
        waves += (split > 2 && rest * split > device->units * 7 / 8 ? 2.0 : 1.0) / split;
    const double products =
        ((split > 1 ? 3 : 0) + waves * v->stage_us * (double)problem->dim[1] / STAGE_COLS) * 1.98 / device->clock_ghz;
    const double load = q8_0_bytes(problem) * 1e-3 / device->copy_gbps;

    return 7 + (problem->dtype[0] == RIDGE_I8 ? 0 : 3) + (products > load ? products : load);
}

#define ROW(op_name, op_id, name, variant)                                                                            \
    {                                                                                                                 \
        "cuda." op_name ".wgmma" name, op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90, Q8_0_CONTRACT, 0, {variant}, why_not, \
            q8_0_gemm_workspace, cost, launch                                                                         \
    }
#define ROWS(op_name, op_id) \
    ROW(op_name, op_id, "128x128", 0), ROW(op_name, op_id, "128x64", 1), ROW(op_name, op_id, "128x32", 2)

/* param: index of variants. */
static const ridge_kernel rows[] = {
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROWS("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_wgmma = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
