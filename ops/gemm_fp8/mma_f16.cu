/* mma_f16.cu: gemm_fp8 on sm_80 and later: codes become f16 in registers (exact), mma.sync adds in f32. */
#include "mma_host.cuh"

static const mma_tile tiles[] = {MMA_LARGE(KIND_DECODE, 48, 2), MMA_LARGE(KIND_DECODE, 32, 3),
                                 MMA_SMALL(KIND_DECODE, 16), MMA_SMALL(KIND_DECODE, 32)};

enum { TILES = (int)(sizeof tiles / sizeof tiles[0]) };

static ridge_status prepare(const ridge_device *device)
{
    return mma_prepare(device, tiles, TILES);
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

#define ROW(name, tile, rate)                                                                                    \
    {                                                                                                            \
        "cuda.gemm_fp8.sm80." name, RIDGE_GEMM_FP8, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121,                           \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE | RIDGE_FALLBACK, 0, {tile, rate}, why_not, NULL, cost, \
            launch                                                                                               \
    }

/* param: the tile, multiply-adds a clock of one CTA alone. */
static const ridge_kernel rows[] = {ROW("128x96", 0, 425), ROW("128x64", 1, 340), ROW("m16", 2, 225),
                                    ROW("m32", 3, 300)};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm80 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
