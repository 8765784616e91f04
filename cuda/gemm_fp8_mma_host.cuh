/* gemm_fp8_mma_host.cuh: the host side of the kernels in gemm_fp8_mma.cuh: arguments, stages, launch, cost. One copy a
 * file that includes it; that file has `functions`. */
#ifndef RIDGE_GEMM_FP8_MMA_HOST_CUH
#define RIDGE_GEMM_FP8_MMA_HOST_CUH

#include "gemm_fp8_mma.cuh"
#include "host.cuh"

/* param[0] of a row: which kernel. Columns of a warp of the large ones: 48, and 32 with the fp8 instruction, which on
 * Hopper is several f16 ones and would spill. */
enum { TILE_8_WARPS = 0, TILE_4_WARPS, TOKENS_16, TOKENS_32, TILES };

/* Kernels by tile and formats (e4m3 e4m3, e4m3 e5m2, e5m2 e4m3). */
typedef struct mma_table {
    int width;
    const void *function[TILES][3];
} mma_table;

#define MMA_FORMATS(kernel, kind, ...)                                                                \
    {                                                                                                 \
        (const void *)kernel<kind, 0, 0, __VA_ARGS__>, (const void *)kernel<kind, 0, 1, __VA_ARGS__>, \
            (const void *)kernel<kind, 1, 0, __VA_ARGS__>                                             \
    }
#define MMA_TABLE(kind, width)                                                                \
    {                                                                                         \
        width,                                                                                \
        {                                                                                     \
            MMA_FORMATS(gemm_large, kind, 4, width), MMA_FORMATS(gemm_large, kind, 2, width), \
                MMA_FORMATS(gemm_small, kind, 16), MMA_FORMATS(gemm_small, kind, 32)          \
        }                                                                                     \
    }

static int mma_wide(int tile, int width)
{
    return tile == TILE_8_WARPS ? 4 * width : tile == TILE_4_WARPS ? 2 * width : SMALL_N;
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

static size_t mma_memory(int tile, int width, int warps, int stages)
{
    const int wide = warps / 2 * width;

    switch (tile) {
    case TILE_8_WARPS:
    case TILE_4_WARPS: /* marks of NaN, stages */
        return (size_t)(LARGE_M + wide) * 4 + (size_t)(LARGE_M + wide) * (BK + 4) * (size_t)stages;
    case TOKENS_16:
        return sizeof(mma_small_memory<16>) + sizeof(mma_small_stage<16>) * (size_t)(stages * warps - 1) +
               (warps < PARTS ? sizeof(float) * PARTS * 16 * SMALL_PITCH : 0);
    default:
        return sizeof(mma_small_memory<32>) + sizeof(mma_small_stage<32>) * (size_t)(stages * warps - 1) +
               (warps < PARTS ? sizeof(float) * PARTS * 32 * SMALL_PITCH : 0);
    }
}

/* Warps and stages. Two CTAs an SM for the smaller tiles, unless there is one tile for each SM at most, or that would
 * leave less than two stages; at most 4 stages, which is what mma_copy_wait knows. */
static void mma_shape(const ridge_device *device, int tile, int width, int64_t tiles, int *warps, int *stages)
{
    const size_t most = mma_most(device), half = (most - 1024) / 2;
    const bool share = tile != TILE_8_WARPS && tiles > device->units;

    *warps = tile == TILE_4_WARPS ? 4 : 8;
    *stages = 4;
    while (*stages > 2 && mma_memory(tile, width, *warps, *stages) > (share ? half : most))
        --*stages;
    if (mma_memory(tile, width, *warps, *stages) <= most)
        return;
    *warps = 4; /* of the small kernel: each takes two parts of k */
    while (*stages > 2 && mma_memory(tile, width, *warps, *stages) > most)
        --*stages;
}

static ridge_status mma_prepare(const ridge_device *device, const mma_table &functions)
{
    return host_prepare(device, &functions.function[0][0], TILES * 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        (int)mma_most(device), "gemm_fp8: loading kernels");
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

static mma_args mma_collect(const ridge_call *call, int tile, int width)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B],
                        *d = &call->arg[RIDGE_GEMM_FP8_D], *bias = &call->arg[RIDGE_GEMM_FP8_BIAS];
    const int64_t m = call->dim[0], n = call->dim[1], k = call->dim[2], blocks = (k + BK - 1) / BK;
    const int high = tile == TOKENS_16 ? 16 : tile == TOKENS_32 ? 32 : LARGE_M;
    const int wide = mma_wide(tile, width);
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
    p.tiles_m = (int)((m + high - 1) / high);
    p.tiles_n = (int)((n + wide - 1) / wide);
    p.grain_a = mma_grain(p.a, p.lda);
    p.grain_b = mma_grain(p.b, p.ldb);
    p.dtype = (int)d->dtype;
    p.bias_dtype = (int)bias->dtype;
    p.whole = mode == RIDGE_SCALE_TENSOR || mode == RIDGE_SCALE_ROW;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.paired = ((uint64_t)(uintptr_t)p.d | (uint64_t)p.ldd * size) % (2 * size) == 0;
    return p;
}

static ridge_status mma_launch(const ridge_device *device, const ridge_kernel *kernel, const mma_table &functions,
                               const ridge_call *call, void *stream)
{
    const int formats = call->arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E5M2   ? 2
                        : call->arg[RIDGE_GEMM_FP8_B].dtype == RIDGE_E5M2 ? 1
                                                                          : 0;
    const bool bias = call->arg[RIDGE_GEMM_FP8_BIAS].dtype != RIDGE_NONE;
    const int tile = kernel->param[0];
    mma_args p = mma_collect(call, tile, functions.width);
    int warps;

    if (p.m == 0 || p.n == 0 || (p.k == 0 && p.accumulate && !bias)) /* D stays, to the sign of its zeros */
        return RIDGE_OK;
    mma_shape(device, tile, functions.width, (int64_t)p.tiles_m * p.tiles_n, &warps, &p.stages);
    return host_launch_shared(device, kernel->name, functions.function[tile][formats],
                              dim3((unsigned)((int64_t)p.tiles_m * p.tiles_n)), warps * 32,
                              mma_memory(tile, functions.width, warps, p.stages), &p, stream);
}

static const char *mma_why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1];
    const bool small = kernel->param[0] == TOKENS_16 || kernel->param[0] == TOKENS_32;

    if (small && m > 64)
        return "is for m up to 64";
    if (!small && m <= 64)
        return "is for m above 64";
    if (m > 0x7fffff00 || n > 0x7fffff00 || (double)((m + 127) / 128) * (double)((n + 31) / 32) > 2e9)
        return "more than 2^31 tiles";
    return NULL;
}

/* Multiply-adds a clock and SM that the inner loop reaches (param[1]), in whole waves; or the bytes of both operands
 * where they take longer. Copies in pieces take four or sixteen times the instructions. */
static double mma_cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double m = (double)problem->dim[0], n = (double)problem->dim[1], k = (double)problem->dim[2];
    const int tile = kernel->param[0];
    const double high = tile == TOKENS_16 ? 16 : tile == TOKENS_32 ? 32 : LARGE_M;
    const double wide = mma_wide(tile, kernel->param[2]);
    const double tiles = (double)(int64_t)((m + high - 1) / high) * (double)(int64_t)((n + wide - 1) / wide);
    const bool slow = problem->align < 4 || (problem->packed && problem->dim[2] % 16);
    double waves = tiles / device->units, us;

    if (tile < TOKENS_16)
        waves = waves > (double)(int64_t)waves ? (double)(int64_t)waves + 1 : waves;
    us = 4 + waves * (1.5 + (k + 128) * high * wide / (kernel->param[1] * 1700.0));
    if (tile >= TOKENS_16) {
        const double read = (n * k + n * m) / (device->copy_gbps * 0.8e3);

        us = us > 4 + read ? us : 4 + read;
    }
    return slow ? 4 * us : us;
}

#endif
