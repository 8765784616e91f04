/* mma_fp8.cu: gemm_fp8 with what sm_89 has for fp8, on sm_89 and later: the conversion to f16 in place of integer
 * instructions (sm89f16: the same f16 products), or the fp8 mma.sync, which on Ada adds with few bits
 * (docs/numerics.md). Hopper has no such instruction: the compiler makes it of conversions and f16 products. */
#include "mma_host.cuh"

static const mma_tile tiles[] = {MMA_LARGE(KIND_CONVERT, 48, 2), MMA_LARGE(KIND_CONVERT, 32, 3),
                                 MMA_SMALL(KIND_CONVERT, 16),    MMA_SMALL(KIND_CONVERT, 32),
                                 MMA_LARGE(KIND_FP8, 32, 2),     MMA_SMALL(KIND_FP8, 16),
                                 MMA_SMALL(KIND_FP8, 32)};

enum { TILES = (int)(sizeof tiles / sizeof tiles[0]) };

static ridge_status prepare(const ridge_device *device)
{
    return device->arch >= RIDGE_ARCH_SM89 ? mma_prepare(device, tiles, TILES) : RIDGE_OK;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_call *call = &bound->call;

    return mma_launch(device, kernel, &tiles[kernel->param[0]], call, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return mma_why_not(&tiles[kernel->param[0]], problem);
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return mma_cost(device, &tiles[kernel->param[0]], kernel->param[1], problem);
}

#define ROW(name, tile, rate, close)                                                                              \
    {                                                                                                             \
        "cuda.gemm_fp8." name, RIDGE_GEMM_FP8, RIDGE_ARCH_SM89, RIDGE_ARCH_SM121,                                 \
            RIDGE_STABLE | RIDGE_INVARIANT | close | RIDGE_FALLBACK, 0, {tile, rate}, why_not, NULL, cost, launch \
    }

/* param: the tile, multiply-adds a clock of one CTA alone. */
static const ridge_kernel rows[] = {
    ROW("sm89f16.128x96", 0, 562, RIDGE_CLOSE), ROW("sm89f16.128x64", 1, 496, RIDGE_CLOSE),
    ROW("sm89f16.m16", 2, 330, RIDGE_CLOSE),    ROW("sm89f16.m32", 3, 415, RIDGE_CLOSE),
    ROW("sm89.128x64", 4, 395, RIDGE_TYPICAL),  ROW("sm89.m16", 5, 290, RIDGE_TYPICAL),
    ROW("sm89.m32", 6, 350, RIDGE_TYPICAL),
};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm89 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
