/* rows_sm90.cuh: what rows_sm90.cu and rows_grouped_sm90.cu share of rows whose variant is a tile of tiles_sm90.cuh. */
#ifndef RIDGE_GEMM_FP8_ROWS_SM90_CUH
#define RIDGE_GEMM_FP8_ROWS_SM90_CUH

#include "cuda/launch.cuh"
#include "tiles_sm90.cuh"

static inline const gemm_variant *variant_of(const ridge_kernel *kernel)
{
    return (const gemm_variant *)kernel->variant;
}

static inline bool scales_by_tma(const float *scale, int64_t ld)
{
    return ((uintptr_t)scale | (uintptr_t)(ld * 4)) % 16 == 0;
}

/* Loads the kernels of all rows; `what` is for its error. */
static inline ridge_status rows_prepare(const ridge_device *device, const ridge_kernel *rows, size_t count,
                                        const char *what)
{
    ridge_status status = RIDGE_OK;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    for (size_t row = 0; row < count; row++)
        for (int mode = 0; mode < 3; mode++)
            for (int i = 0; i < 9 && !status && variant_of(&rows[row])->mode[mode].memory; i++) {
                const void *function = (const void *)variant_of(&rows[row])->mode[mode].function[i / 3][i % 3];

                status = host_prepare(device, &function, 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)variant_of(&rows[row])->mode[mode].memory, what);
            }
    return status;
}

#endif
