/* mma_host.cuh: the host side of the kernels in mma.cuh: arguments, stages, launch, cost. One copy a
 * file that includes it; that file has `functions`. */
#ifndef RIDGE_GEMM_FP8_MMA_HOST_CUH
#define RIDGE_GEMM_FP8_MMA_HOST_CUH

#include "mma.cuh"
#include "cuda/launch.cuh"

/* One kernel, for all formats. */
typedef struct mma_tile {
    int high, wide, warps;
    int ctas; /* of an SM, as its registers allow */
    size_t fixed, stage,
        sums; /* shared memory: always, a stage (of each warp in gemm_small), sums if there are four warps */
    const void *function[3]; /* e4m3 e4m3, e4m3 e5m2, e5m2 e4m3 */
} mma_tile;

#define MMA_FORMATS(kernel, kind, ...)                                                                \
    {                                                                                                 \
        (const void *)kernel<kind, 0, 0, __VA_ARGS__>, (const void *)kernel<kind, 0, 1, __VA_ARGS__>, \
            (const void *)kernel<kind, 1, 0, __VA_ARGS__>                                             \
    }
#define MMA_LARGE(kind, width, ctas)                                                                             \
    {                                                                                                            \
        LARGE_M, 2 * width, LARGE_THREADS / 32, ctas,                                                            \
            sizeof(mma_large_memory<2 * width>) - sizeof(mma_stage<2 * width>), sizeof(mma_stage<2 * width>), 0, \
            MMA_FORMATS(gemm_large, kind, width, ctas)                                                           \
    }
#define MMA_SMALL(kind, tokens)                                                                        \
    {                                                                                                  \
        tokens, SMALL_N, PARTS, 2, sizeof(mma_small_memory<tokens>) - sizeof(mma_small_stage<tokens>), \
            sizeof(mma_small_stage<tokens>), sizeof(float) * PARTS *tokens *SMALL_N,                   \
            MMA_FORMATS(gemm_small, kind, tokens)                                                      \
    }

/* The least of stages and warps fits the least of devices. */
static_assert(sizeof(mma_small_memory<32>) + sizeof(mma_small_stage<32>) * (2 * (PARTS / 2) - 1) +
                      sizeof(float) * PARTS * 32 * SMALL_N <=
                  99 << 10,
              "gemm_small");
static_assert(sizeof(mma_large_memory<96>) + sizeof(mma_stage<96>) <= 99 << 10, "gemm_large");

static bool mma_is_small(const mma_tile *tile)
{
    return tile->high < LARGE_M;
}

/* Shared memory that a CTA may have, and that an SM has for all of its CTAs (CUDA C programming guide, technical
 * specifications per compute capability). */
static size_t mma_most(const ridge_device *device)
{
    switch (device->arch) {
    case RIDGE_ARCH_SM80:
        return 163 << 10;
    case RIDGE_ARCH_SM90:
    case RIDGE_ARCH_SM100:
    case RIDGE_ARCH_SM103:
        return 227 << 10;
    default:
        return 99 << 10;
    }
}

static size_t mma_memory(const mma_tile *tile, int warps, int stages)
{
    return tile->fixed + tile->stage * (size_t)(stages * (mma_is_small(tile) ? warps : 1)) +
           (warps < tile->warps ? tile->sums : 0);
}

/* Warps and stages. The SM is shared by as many CTAs as registers allow, unless there are fewer tiles than SMs, or it
 * would leave less than two stages; at most 4 stages, which is what mma_copy_wait knows. */
static void mma_shape(const ridge_device *device, const mma_tile *tile, int64_t tiles, int *warps, int *stages)
{
    const size_t most = mma_most(device);
    const size_t part = tiles > device->units ? (most + 1024) / (size_t)tile->ctas - 1024 : most;

    *warps = tile->warps;
    *stages = 4;
    while (*stages > 2 && mma_memory(tile, *warps, *stages) > part)
        --*stages;
    if (mma_memory(tile, *warps, *stages) <= most)
        return;
    *warps = PARTS / 2; /* of gemm_small: each takes two parts of k */
    while (*stages > 2 && mma_memory(tile, *warps, *stages) > most)
        --*stages;
}

static ridge_status mma_prepare(const ridge_device *device, const mma_tile *tile, int count)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < count && !status; i++)
        status = host_prepare(device, tile[i].function, 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (int)mma_most(device), "gemm_fp8: loading kernels");
    return status;
}

static int64_t mma_stride(const ridge_operand *x, int64_t packed)
{
    return x->stride ? x->stride : packed;
}

static mma_scale mma_scale_of(const ridge_operand *table, uint32_t mode, int64_t rows, int64_t blocks)
{
    mma_scale s = {(const float *)table->data, 0, 0, 0};

    if (mode == RIDGE_SCALE_ROW || mode == RIDGE_SCALE_ROW128)
        s.row = 1;
    if (mode == RIDGE_SCALE_ROW128)
        s.block = mma_stride(table, rows);
    if (mode == RIDGE_SCALE_BLK128) {
        s.row = mma_stride(table, blocks);
        s.block = 1;
        s.shift = 7;
    }
    return s;
}

static int mma_grain(const void *data, int64_t stride)
{
    const uint64_t both = (uint64_t)(uintptr_t)data | (uint64_t)stride;

    return both % 16 == 0 ? 16 : both % 4 == 0 ? 4 : 1;
}

static mma_args mma_collect(const ridge_call *call, const mma_tile *tile)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B],
                        *d = &call->arg[RIDGE_GEMM_FP8_D], *bias = &call->arg[RIDGE_GEMM_FP8_BIAS];
    const int64_t m = call->dim[0], n = call->dim[1], k = call->dim[2], blocks = (k + BK - 1) / BK;
    const uint32_t mode = call->flags & RIDGE_SCALE, size = (uint32_t)ridge_dtype_size(d->dtype);
    mma_args p = {};

    p.a = (const uint8_t *)a->data;
    p.b = (const uint8_t *)b->data;
    p.d = (char *)d->data;
    p.bias = bias->data;
    p.lda = mma_stride(a, k);
    p.ldb = mma_stride(b, k);
    p.ldd = mma_stride(d, n);
    p.scale_a = mma_scale_of(&call->arg[RIDGE_GEMM_FP8_SCALE_A], mode, m, blocks);
    p.scale_b = mma_scale_of(&call->arg[RIDGE_GEMM_FP8_SCALE_B], (call->flags & RIDGE_SCALE_B) >> 4, n, blocks);
    p.m = (int)m;
    p.n = (int)n;
    p.k = (int)k;
    p.blocks = (int)blocks;
    p.tiles_m = (int)((m + tile->high - 1) / tile->high);
    p.tiles_n = (int)((n + tile->wide - 1) / tile->wide);
    p.grain_a = mma_grain(p.a, p.lda);
    p.grain_b = mma_grain(p.b, p.ldb);
    p.dtype = (int)d->dtype;
    p.bias_dtype = (int)bias->dtype;
    p.whole = mode == RIDGE_SCALE_TENSOR || mode == RIDGE_SCALE_ROW;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.paired = ((uint64_t)(uintptr_t)p.d | (uint64_t)p.ldd * size) % (2 * size) == 0;
    return p;
}

static ridge_status mma_launch(const ridge_device *device, const ridge_kernel *kernel, const mma_tile *tile,
                               const ridge_call *call, void *stream)
{
    const int formats = call->arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E5M2   ? 2
                        : call->arg[RIDGE_GEMM_FP8_B].dtype == RIDGE_E5M2 ? 1
                                                                          : 0;
    const bool bias = call->arg[RIDGE_GEMM_FP8_BIAS].dtype != RIDGE_NONE;
    mma_args p = mma_collect(call, tile);
    const int64_t tiles = (int64_t)p.tiles_m * p.tiles_n;
    int warps;

    if (p.m == 0 || p.n == 0 || (p.k == 0 && p.accumulate && !bias)) /* D stays, to the sign of its zeros */
        return RIDGE_OK;
    mma_shape(device, tile, tiles, &warps, &p.stages);
    return host_launch_shared(device, kernel->name, tile->function[formats], dim3((unsigned)tiles), warps * 32,
                              mma_memory(tile, warps, p.stages), &p, stream);
}

static const char *mma_why_not(const mma_tile *tile, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1];

    if (mma_is_small(tile) && m > 64)
        return "is for m up to 64";
    if (!mma_is_small(tile) && m <= 64)
        return "is for m above 64";
    if (m > 0x7fffff00 || n > 0x7fffff00 || (double)((m + 127) / 128) * (double)((n + 31) / 32) > 2e9)
        return "more than 2^31 tiles";
    return NULL;
}

/* Whole waves of tiles. `rate`: multiply-adds a clock that one CTA reaches alone on an SM; each further one that shares
 * it adds 0.42 of the time (H200). gemm_small's tiles follow one another without waves, and the weights' way from
 * memory is the least. Operands that are copied in pieces take three times as long. */
static double mma_cost(const ridge_device *device, const mma_tile *tile, double rate, const ridge_problem *problem)
{
    const double m = (double)problem->dim[0], n = (double)problem->dim[1], k = (double)problem->dim[2];
    const double tiles =
        (double)(int64_t)((m + tile->high - 1) / tile->high) * (double)(int64_t)((n + tile->wide - 1) / tile->wide);
    const double alone = tile->high * tile->wide * (k + 256) / (rate * 1.7e3),
                 read = n * k / (device->copy_gbps * 0.9e3);
    const bool slow = problem->align < 4 || (problem->packed && problem->dim[2] % 16);
    double shared = tiles / device->units, waves, us;

    if (mma_is_small(tile)) {
        us = shared * alone > read ? 4 + shared * alone : 4 + read;
    } else {
        shared = shared > tile->ctas ? tile->ctas : shared > 1 ? (double)(int64_t)(shared + 0.999) : 1;
        waves = (double)(int64_t)(tiles / (shared * device->units) + 0.999);
        us = 4 + (waves > 1 ? waves : 1) * alone * (1 + 0.42 * (shared - 1));
    }
    return slow ? 3 * us : us;
}

#endif
