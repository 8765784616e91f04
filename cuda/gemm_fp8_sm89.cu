/* gemm_fp8_sm89.cu: gemm_fp8 with what sm_89 has for fp8, on sm_89 and later: the conversion to f16 in place of integer
 * instructions (sm89f16: the same f16 products), or the fp8 mma.sync, which on Ada adds with few bits
 * (docs/numerics.md). Hopper has no such instruction: the compiler makes it of conversions and f16 products. */
#include "gemm_fp8_mma_host.cuh"

/* By param[3]. */
static const mma_table tables[2] = {MMA_TABLE(KIND_CONVERT, 48), MMA_TABLE(KIND_FP8, 32)};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 2 && !status && device->arch >= RIDGE_ARCH_SM89; i++)
        status = mma_prepare(device, tables[i]);
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *,
                           const ridge_call *call, void *, size_t, void *stream)
{
    return mma_launch(device, kernel, tables[kernel->param[3]], call, stream);
}

#define ROW(name, tile, rate, width, table)                                                                           \
    {                                                                                                                 \
        "cuda.gemm_fp8." name, RIDGE_GEMM_FP8, RIDGE_ARCH_SM89, RIDGE_ARCH_SM121,                                     \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {tile, rate, width, table}, mma_why_not, NULL, mma_cost, \
            launch                                                                                                    \
    }

/* param: the kernel, multiply-adds a clock and SM, columns of a warp, table. */
static const ridge_kernel rows[] = {
    ROW("sm89f16.128x192", TILE_8_WARPS, 900, 48, 0), ROW("sm89f16.128x96", TILE_4_WARPS, 850, 48, 0),
    ROW("sm89f16.m16", TOKENS_16, 400, 48, 0),        ROW("sm89f16.m32", TOKENS_32, 500, 48, 0),
    ROW("sm89.128x128", TILE_8_WARPS, 500, 32, 1),    ROW("sm89.128x64", TILE_4_WARPS, 450, 32, 1),
    ROW("sm89.m16", TOKENS_16, 300, 32, 1),           ROW("sm89.m32", TOKENS_32, 350, 32, 1),
};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm89 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
