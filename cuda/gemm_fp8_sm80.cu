/* gemm_fp8_sm80.cu: gemm_fp8 on sm_80 and later: codes become f16 in registers (exact), mma.sync adds in f32. */
#include "gemm_fp8_mma_host.cuh"

static const mma_table functions = MMA_TABLE(KIND_DECODE, 48);

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
        "cuda.gemm_fp8.sm80." name, RIDGE_GEMM_FP8, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121,                             \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {tile, rate, 48}, mma_why_not, NULL, mma_cost, launch \
    }

/* param: the kernel, multiply-adds a clock and SM, columns of a warp. */
static const ridge_kernel rows[] = {
    ROW("128x192", TILE_8_WARPS, 900),
    ROW("128x96", TILE_4_WARPS, 850),
    ROW("m16", TOKENS_16, 250),
    ROW("m32", TOKENS_32, 400),
};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm80 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
