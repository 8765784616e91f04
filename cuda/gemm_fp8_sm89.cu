/* gemm_fp8_sm89.cu: gemm_fp8 by the fp8 mma.sync of sm_89 and later. Ada adds with few bits (docs/numerics.md);
 * Hopper has no such instruction: there the compiler converts to f16, as the rows of sm_80 do. */
#include "gemm_fp8_mma_host.cuh"

static const mma_table functions = MMA_TABLE(KIND_FP8, 32);

static ridge_status prepare(const ridge_device *device)
{
    return mma_prepare(device, functions);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *,
                           const ridge_call *call, void *, size_t, void *stream)
{
    return mma_launch(device, kernel, functions, call, stream);
}

#define ROW(name, tile, rate)                                                                                      \
    {                                                                                                              \
        "cuda.gemm_fp8.sm89." name, RIDGE_GEMM_FP8, RIDGE_ARCH_SM89, RIDGE_ARCH_SM121,                             \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {tile, rate, 32}, mma_why_not, NULL, mma_cost, launch \
    }

/* param: the kernel, multiply-adds a clock and SM, columns of a warp. */
static const ridge_kernel rows[] = {
    ROW("128x128", TILE_8_WARPS, 900),
    ROW("128x64", TILE_4_WARPS, 850),
    ROW("m16", TOKENS_16, 250),
    ROW("m32", TOKENS_32, 400),
};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm89 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
