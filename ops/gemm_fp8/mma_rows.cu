/* mma_rows.cu: the rows of gemm_fp8 by mma.sync and their host side: arguments, stages, launch, cost. They run on
 * every architecture that has the instruction; the kernels are in mma.cuh.
 *
 *     mma_f16     sm_80 to sm_90: integer instructions decode codes to f16 (exact), mma.sync adds in f32. From
 *                 sm_89 on it is the slower one, and is there to be tested: no A100 is at hand
 *     mma_f16cvt  sm_89 up: the same f16 products, decoded by the conversion instruction
 *     mma_fp8     sm_89 up: the fp8 mma.sync, which on Ada adds with few bits (docs/numerics.md). Hopper has no such
 *                 instruction: the compiler emulates it by conversions and f16 products */
#include "cuda/launch.cuh"
#include "mma_split.cuh"
#include "src/util.h"

/* One kernel, for all formats. */
typedef struct mma_tile {
    int block_m, block_n, warps;
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
#define MMA_SPLIT(kind)                                                                                   \
    {                                                                                                     \
        SPLIT_TOKENS, SPLIT_N, LARGE_THREADS / 32, 2, sizeof(mma_split_memory) - sizeof(mma_split_stage), \
            sizeof(mma_split_stage), 0,                                                                   \
        {                                                                                                 \
            (const void *)gemm_split<kind, 0, 0>, (const void *)gemm_split<kind, 0, 1>,                   \
                (const void *)gemm_split<kind, 1, 0>                                                      \
        }                                                                                                 \
    }
#define MMA_SMALL(kind, tokens)                                                                        \
    {                                                                                                  \
        tokens, SMALL_N, PARTS, 2, sizeof(mma_small_memory<tokens>) - sizeof(mma_small_stage<tokens>), \
            sizeof(mma_small_stage<tokens>), sizeof(float) * PARTS *tokens *SMALL_N,                   \
            MMA_FORMATS(gemm_small, kind, tokens)                                                      \
    }

/* Those from SM89_TILES on run from sm_89 on only. */
enum { SM89_TILES = 6 };
static const mma_tile tiles[] = {
    MMA_LARGE(KIND_DECODE, 48, 2),  MMA_LARGE(KIND_DECODE, 32, 3),  MMA_SMALL(KIND_DECODE, 8),
    MMA_SMALL(KIND_DECODE, 16),     MMA_SMALL(KIND_DECODE, 32),     MMA_SPLIT(KIND_DECODE),
    MMA_LARGE(KIND_CONVERT, 48, 2), MMA_LARGE(KIND_CONVERT, 32, 3), MMA_SMALL(KIND_CONVERT, 8),
    MMA_SMALL(KIND_CONVERT, 16),    MMA_SMALL(KIND_CONVERT, 32),    MMA_SPLIT(KIND_CONVERT),
    MMA_LARGE(KIND_FP8, 32, 2)};
static const void *const sum_function[] = {(const void *)gemm_split_sum};

enum { TILES = (int)(sizeof tiles / sizeof tiles[0]) };

enum { NATIVE_FP8_MACS = 640 }; /* multiply-adds a clock, see cost */

/* The fewest stages and warps fit the smallest shared memory, sm_86's. */
static_assert(sizeof(mma_small_memory<32>) + sizeof(mma_small_stage<32>) * (2 * (PARTS / 2) - 1) +
                      sizeof(float) * PARTS * 32 * SMALL_N <=
                  99 << 10,
              "gemm_small");
static_assert(sizeof(mma_large_memory<96>) + sizeof(mma_stage<96>) <= 99 << 10, "gemm_large");
static_assert(sizeof(mma_split_memory) + 2 * sizeof(mma_split_stage) <= 99 << 10, "gemm_split");

static bool is_small(const mma_tile *tile)
{
    return tile->warps == PARTS;
}

static bool is_split(const mma_tile *tile)
{
    return tile->block_m == SPLIT_TOKENS;
}

/* CTAs that share a tile of gemm_split: four, or eight where four leave SMs without one. */
static int split_of(const ridge_device *device, const mma_tile *tile, int64_t n)
{
    return ridge_ceil_div(n, tile->block_n) * 4 < device->units ? 8 : 4;
}

static ridge_status prepare(const ridge_device *device)
{
    const int count = device->arch >= RIDGE_ARCH_SM89 ? (int)TILES : (int)SM89_TILES;
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < count && !status; i++)
        status = host_prepare(device, tiles[i].function, 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              host_max_shared(device), "gemm_fp8: loading kernels");
    return status ? status : host_load(device, sum_function, 1, "gemm_fp8: loading kernels");
}

static size_t memory_of(const mma_tile *tile, int warps, int stages)
{
    return tile->fixed + tile->stage * (size_t)(stages * (is_small(tile) ? warps : 1)) +
           (warps < tile->warps ? tile->sums : 0);
}

/* CTAs of an SM: as registers allow, and shared memory with two stages each (on sm_86, sm_89 and sm_120 often one). */
static int ctas_of(const ridge_device *device, const mma_tile *tile)
{
    const size_t most = (size_t)host_max_shared(device) + 1024, two = memory_of(tile, tile->warps, 2) + 1024;
    const int fit = most < two ? 1 : (int)(most / two);

    return fit < tile->ctas ? fit : tile->ctas;
}

/* Warps and stages. CTAs share the SM unless there are fewer tiles than SMs; at most 4 stages, the most that
 * mma_copy_wait can wait for. */
static void choose_stages(const ridge_device *device, const mma_tile *tile, int64_t tiles, int *warps, int *stages)
{
    const size_t most = (size_t)host_max_shared(device);
    const size_t part = tiles > device->units ? (most + 1024) / (size_t)ctas_of(device, tile) - 1024 : most;

    *warps = tile->warps;
    *stages = 4;
    while (*stages > 2 && memory_of(tile, *warps, *stages) > part)
        --*stages;
    if (memory_of(tile, *warps, *stages) <= most)
        return;
    *warps = PARTS / 2; /* of gemm_small: each takes two parts of k */
    while (*stages > 2 && memory_of(tile, *warps, *stages) > most)
        --*stages;
}

static mma_args args_of(const ridge_call *call, const mma_tile *tile)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B],
                        *d = &call->arg[RIDGE_GEMM_FP8_D], *bias = &call->arg[RIDGE_GEMM_FP8_BIAS];
    const uint32_t mode = call->flags & RIDGE_SCALE, size = (uint32_t)ridge_dtype_size(d->dtype);
    mma_args p = {};

    p.a = (const uint8_t *)a->data;
    p.b = (const uint8_t *)b->data;
    p.d = (char *)d->data;
    p.bias = bias->data;
    p.lda = a->stride;
    p.ldb = b->stride;
    p.ldd = d->stride;
    p.scale_a = gemm_scale_of(&call->arg[RIDGE_GEMM_FP8_SCALE_A], mode, call->flags & RIDGE_SCALE_T);
    p.scale_b = gemm_scale_of(&call->arg[RIDGE_GEMM_FP8_SCALE_B], (call->flags & RIDGE_SCALE_B) >> 4,
                              call->flags & RIDGE_SCALE_B_T);
    p.m = (int)call->dim[0];
    p.n = (int)call->dim[1];
    p.k = (int)call->dim[2];
    p.blocks = (int)ridge_ceil_div(call->dim[2], BK);
    p.tiles_m = (int)ridge_ceil_div(call->dim[0], tile->block_m);
    p.tiles_n = (int)ridge_ceil_div(call->dim[1], tile->block_n);
    p.copy_a = mma_copy_bytes(a);
    p.copy_b = mma_copy_bytes(b);
    p.whole = p.copy_a == 16 && p.copy_b == 16 && p.k % 16 == 0;
    p.dtype = (int)d->dtype;
    p.bias_dtype = (int)bias->dtype;
    p.scale_last = mode == RIDGE_SCALE_TENSOR || mode == RIDGE_SCALE_ROW;
    p.weights_const = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.paired = ((uint64_t)(uintptr_t)p.d | (uint64_t)p.ldd * size) % (2 * size) == 0;
    return p;
}

static ridge_status launch_split(const ridge_device *device, const ridge_kernel *kernel, const void *function,
                                 const mma_args *p, void *workspace, void *stream)
{
    const mma_tile *tile = &tiles[kernel->param[0]];
    mma_split_args q = {*p, (float *)workspace, split_of(device, tile, p->n)};
    const int64_t ctas = (int64_t)p->tiles_n * q.split, pairs = (int64_t)p->m * ridge_ceil_div(p->n, 2);
    ridge_status status;
    int warps;

    choose_stages(device, tile, ctas, &warps, &q.p.stages);
    status = host_launch_shared(device, kernel->name, function, dim3((unsigned)ctas), LARGE_THREADS,
                                memory_of(tile, warps, q.p.stages), &q, stream);
    if (status)
        return status;
    return host_launch(device, kernel->name, sum_function[0], dim3((unsigned)ridge_ceil_div(pairs, 256)), 256, &q,
                       stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const mma_tile *tile = &tiles[kernel->param[0]];
    const ridge_operand *arg = bound->call.arg;
    const int formats = arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E5M2 ? 2 : arg[RIDGE_GEMM_FP8_B].dtype == RIDGE_E5M2;
    mma_args p = args_of(&bound->call, tile);
    const int64_t count = (int64_t)p.tiles_m * p.tiles_n;
    int warps;

    /* D + 0 is D, to the sign of its zeros */
    if (p.m == 0 || p.n == 0 || (p.k == 0 && p.accumulate && p.bias_dtype == RIDGE_NONE))
        return RIDGE_OK;
    if (is_split(tile))
        return launch_split(device, kernel, tile->function[formats], &p, workspace, stream);
    choose_stages(device, tile, count, &warps, &p.stages);
    return host_launch_shared(device, kernel->name, tile->function[formats], dim3((unsigned)count), warps * 32,
                              memory_of(tile, warps, p.stages), &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool small = tiles[kernel->param[0]].block_m < LARGE_M;
    const int64_t m = problem->dim[0], n = problem->dim[1];

    if (small && m > 64)
        return "is for m up to 64";
    if (!small && m <= 64)
        return "is for m above 64";
    if (m > 0x7fffff00 || n > 0x7fffff00 || (double)((m + 127) / 128) * (double)((n + 31) / 32) > 2e9)
        return "more than 2^31 tiles";
    return NULL;
}

static size_t split_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1];

    return (size_t)split_of(device, &tiles[kernel->param[0]], n) * (size_t)m * (size_t)n * sizeof(float);
}

/* Microseconds, the longest of
 * - the multiply-adds at param[1] a clock, what a CTA reaches on an SM of an H200 that it has to itself, where the
 *   tensor cores are no limit; gemm_large in full waves of tiles, and each further CTA on the SM adds 0.42 of the time
 *   of one; gemm_small one tile after another. The fp8 instruction, where it is not emulated, 1.5 times those of
 *   mma_f16cvt.128x64 (assumed: half as many mma.sync and no conversions);
 * - the multiply-adds at 0.9 of what the chip's mma.sync has, or 0.6 for an emulated fp8 instruction;
 * - a read of the weights, and for gemm_large of A, B and D;
 * and for gemm_split what its sums take, written and read (at m = 64 on an H100 0.5 us a MB).
 * Operands that are not copied by 16 bytes take three times as long. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const mma_tile *tile = &tiles[kernel->param[0]];
    const bool is_fp8 = (kernel->contract & RIDGE_ARITHMETIC) == RIDGE_ARITHMETIC_2;
    const bool fp8 = is_fp8 && device->mma_fp8 > 0, emulated = is_fp8 && !fp8;
    const int64_t tiles_m = ridge_ceil_div(problem->dim[0], tile->block_m),
                  tiles_n = ridge_ceil_div(problem->dim[1], tile->block_n);
    const double m = (double)problem->dim[0], n = (double)problem->dim[1], k = (double)problem->dim[2],
                 count = (double)tiles_m * (double)tiles_n, macs = tile->block_m * tile->block_n * (k + 256);
    const double single = macs / ((fp8 ? NATIVE_FP8_MACS : kernel->param[1]) * 1e3 * device->clock_ghz);
    const double tensor =
        (fp8 ? 0.9e3 * device->mma_fp8 : (emulated ? 0.6e3 : 0.9e3) * device->mma_f16) * device->clock_ghz;
    const bool few = tile->block_m < LARGE_M, split = is_split(tile);
    const double sums = split ? 0.5 + 1.5e-3 * (double)split_workspace(device, kernel, problem) / device->copy_gbps : 0;
    const double moved = few ? n * k : m * k + n * k + 2 * m * n;
    const int ctas = ctas_of(device, tile);
    const bool slow = problem->inputs_align < 4 || (problem->packed && problem->dim[2] % 16);
    double per_sm = count / device->units, us = few ? per_sm * single : 0, waves;

    us = us < per_sm * macs / tensor ? per_sm * macs / tensor : us;
    if (!few) {
        per_sm = per_sm > ctas ? ctas : per_sm > 1 ? (double)(int64_t)(per_sm + 0.999) : 1;
        waves = (double)(int64_t)(count / (per_sm * device->units) + 0.999);
        waves = (waves > 1 ? waves : 1) * single * (1 + 0.42 * (per_sm - 1));
        us = us < waves ? waves : us;
    }
    if (us < moved / (device->copy_gbps * 0.9e3))
        us = moved / (device->copy_gbps * 0.9e3);
    us += 4 + sums;
    return slow ? 3 * us : us;
}

/* Products of f16 numbers add in f32, those of the fp8 instruction do not: other bits, of which one range of m has one.
 */
#define F16 RIDGE_CLOSE | RIDGE_ARITHMETIC_1
#define FP8 RIDGE_TYPICAL | RIDGE_ARITHMETIC_2

/* The first and the last architecture of a row. */
#define BY_INTEGERS RIDGE_ARCH_SM80, RIDGE_ARCH_SM90
#define BY_CONVERSION RIDGE_ARCH_SM89, RIDGE_ARCH_CUDA_LAST
#define ROW(name, archs, tile, rate, arithmetic, workspace)                                                            \
    {                                                                                                                  \
        "cuda.gemm_fp8." name, RIDGE_GEMM_FP8, archs, RIDGE_STABLE | RIDGE_INVARIANT | arithmetic | RIDGE_FALLBACK, 0, \
            {tile, rate}, why_not, workspace, cost, launch                                                             \
    }

/* param: the tile; multiply-adds a clock of a CTA that has an SM to itself, of gemm_split of all of an SM's (H100). */
static const ridge_kernel rows[] = {
    ROW("mma_f16cvt.128x96", BY_CONVERSION, 6, 528, F16, NULL),
    ROW("mma_f16cvt.128x64", BY_CONVERSION, 7, 432, F16, NULL),
    ROW("mma_f16cvt.8x32", BY_CONVERSION, 8, 196, F16, NULL),
    ROW("mma_f16cvt.16x32", BY_CONVERSION, 9, 283, F16, NULL),
    ROW("mma_f16cvt.32x32", BY_CONVERSION, 10, 356, F16, NULL),
    ROW("mma_f16cvt.64x128", BY_CONVERSION, 11, 575, F16, split_workspace),
    ROW("mma_fp8.128x64", BY_CONVERSION, 12, 339, FP8, NULL),
    ROW("mma_f16.128x96", BY_INTEGERS, 0, 384, F16, NULL),
    ROW("mma_f16.128x64", BY_INTEGERS, 1, 297, F16, NULL),
    ROW("mma_f16.8x32", BY_INTEGERS, 2, 129, F16, NULL),
    ROW("mma_f16.16x32", BY_INTEGERS, 3, 193, F16, NULL),
    ROW("mma_f16.32x32", BY_INTEGERS, 4, 258, F16, NULL),
    ROW("mma_f16.64x128", BY_INTEGERS, 5, 410, F16, split_workspace),
};

extern "C" const ridge_kernel_list ridge_cuda_gemm_mma = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
