/* gemm_fp8_sm90.cu: the rows of gemm_fp8 for large m on Hopper: tiles, launch, cost. The kernel: gemm_fp8_sm90.cuh. */
#include "gemm_fp8_sm90.cuh"
#include <stdio.h>

/* Warpgroups of 64 rows, columns, CTAs of a cluster down and across, stages. */
#define TILE(name, wgs, bn, cm, cn, stages, ordered)                                                  \
    struct name {                                                                                             \
        enum { WGS = wgs, BM = 64 * wgs, BN = bn, CM = cm, CN = cn, STAGES = stages, ORDERED = ordered }; \
    }
TILE(tile_a, 2, 192, 2, 1, 4, 1);
TILE(tile_b, 2, 192, 2, 1, 4, 0);
TILE(tile_c, 2, 192, 2, 1, 4, 2);
TILE(tile_d, 3, 128, 1, 2, 4, 1);
TILE(tile_e, 3, 128, 1, 2, 4, 0);
TILE(tile_f, 3, 128, 2, 2, 4, 0);
TILE(tile_g, 2, 192, 2, 2, 4, 0);
TILE(tile_h, 2, 192, 1, 2, 4, 0);
TILE(tile_i, 3, 128, 1, 2, 4, 2);

typedef struct gemm_tile {
    int bm, bn, cm, cn;
    struct {
        const void *function[2][3]; /* by output, formats; NULL: not built */
        size_t memory;
    } mode[3];
} gemm_tile;

#ifdef GEMM_LAB
#define MODE_OF(T, m) {{{(const void *)gemm_sm90<T, m, WGMMA_E4M3_E4M3, OUT_FAST>, NULL, NULL}, {NULL, NULL, NULL}}, sizeof(gemm_memory<T, m>)}
#else
#define OUT_OF(T, m, out)                                                                                                \
    {(const void *)gemm_sm90<T, m, WGMMA_E4M3_E4M3, out>, (const void *)gemm_sm90<T, m, WGMMA_E4M3_E5M2, out>,                \
      (const void *)gemm_sm90<T, m, WGMMA_E5M2_E4M3, out>}
#define MODE_OF(T, m) {{OUT_OF(T, m, OUT_FAST), OUT_OF(T, m, OUT_ANY)}, sizeof(gemm_memory<T, m>)}
#endif
#define NO_MODE {{{NULL, NULL, NULL}, {NULL, NULL, NULL}}, 0}
#define TILE_ROW(T, last, block, column) {T::BM, T::BN, T::CM, T::CN, {last, block, column}}

#ifdef GEMM_LAB
static const gemm_tile tiles[] = {
    TILE_ROW(tile_a, NO_MODE, MODE_OF(tile_a, SCALE_BLOCK), MODE_OF(tile_a, SCALE_COLUMN)),
    TILE_ROW(tile_b, NO_MODE, MODE_OF(tile_b, SCALE_BLOCK), MODE_OF(tile_b, SCALE_COLUMN)),
    TILE_ROW(tile_c, NO_MODE, MODE_OF(tile_c, SCALE_BLOCK), NO_MODE),
    TILE_ROW(tile_d, NO_MODE, MODE_OF(tile_d, SCALE_BLOCK), MODE_OF(tile_d, SCALE_COLUMN)),
    TILE_ROW(tile_e, NO_MODE, MODE_OF(tile_e, SCALE_BLOCK), MODE_OF(tile_e, SCALE_COLUMN)),
    TILE_ROW(tile_f, NO_MODE, MODE_OF(tile_f, SCALE_BLOCK), MODE_OF(tile_f, SCALE_COLUMN)),
    TILE_ROW(tile_g, NO_MODE, MODE_OF(tile_g, SCALE_BLOCK), NO_MODE),
    TILE_ROW(tile_h, NO_MODE, MODE_OF(tile_h, SCALE_BLOCK), NO_MODE),
    TILE_ROW(tile_i, NO_MODE, MODE_OF(tile_i, SCALE_BLOCK), MODE_OF(tile_i, SCALE_COLUMN)),
};
#endif
static int most[16];

enum { TILES = (int)(sizeof tiles / sizeof tiles[0]) };

static int mode_of(uint32_t mode_b)
{
    return mode_b == RIDGE_SCALE_B_BLK128 ? SCALE_BLOCK : mode_b == RIDGE_SCALE_B_ROW128 ? SCALE_COLUMN : SCALE_LAST;
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    for (int i = 0; i < TILES; i++)
        for (int j = 0; j < 6 && !status; j++)
            if (tiles[i].mode[j / 2].function[j % 2][0])
                status = host_prepare(device, tiles[i].mode[j / 2].function[j % 2],
                                      tiles[i].mode[j / 2].function[j % 2][1] ? 3 : 1,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)tiles[i].mode[j / 2].memory,
                                      "gemm_fp8: loading kernels");
    for (int i = 0; i < TILES; i++) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = tiles[i].cm * tiles[i].cn;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.gridDim = 132;
        config.blockDim = tiles[i].bm * 2 + 128;
        config.dynamicSmemBytes = tiles[i].mode[1].memory;
        config.attrs = &attribute;
        config.numAttrs = 1;
        cudaError_t e = cudaOccupancyMaxActiveClusters(&most[i], tiles[i].mode[1].function[0][0], &config);
        printf("tile %d: %d clusters of %d (%d)\n", i, most[i], tiles[i].cm * tiles[i].cn, e);
    }
    return status;
}

static int64_t stride_of(const ridge_operand *x, int64_t packed)
{
    return x->stride ? x->stride : packed;
}

/* What the kernel needs besides the tensor maps. */
static gemm_args collect(const ridge_call *call, const gemm_tile *tile)
{
    const ridge_operand *arg = call->arg, *d = &arg[RIDGE_GEMM_FP8_D];
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = call->flags & RIDGE_SCALE_B;
    const int rows = tile->bm * tile->cm, cols = tile->bn * tile->cn;
    gemm_args p = {};

    p.m = (int)call->dim[0];
    p.n = (int)call->dim[1];
    p.blocks = (int)((call->dim[2] + BK - 1) / BK);
    p.items_m = (p.m + rows - 1) / rows;
    p.items_n = (p.n + cols - 1) / cols;
    p.scale_a = (const float *)arg[RIDGE_GEMM_FP8_SCALE_A].data;
    p.scale_b = (const float *)arg[RIDGE_GEMM_FP8_SCALE_B].data;
    p.block_a = mode_a == RIDGE_SCALE_BLK128;
    p.ld_a = mode_a == RIDGE_SCALE_TENSOR ? 0 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_A], p.block_a ? p.blocks : p.m);
    p.ld_b = mode_b == RIDGE_SCALE_B_TENSOR
                 ? 0
                 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_B], mode_b == RIDGE_SCALE_B_BLK128 ? p.blocks : p.n);
    p.scale_tma = mode_a == RIDGE_SCALE_ROW128 && ((uintptr_t)p.scale_a | (uintptr_t)(p.ld_a * 4)) % 16 == 0 &&
                  (mode_b != RIDGE_SCALE_B_ROW128 || ((uintptr_t)p.scale_b | (uintptr_t)(p.ld_b * 4)) % 16 == 0);
    p.dtype = (int)d->dtype;
    p.out = (char *)d->data;
    p.stride = stride_of(d, p.n);
    p.bias = arg[RIDGE_GEMM_FP8_BIAS].data;
    p.bias_f32 = arg[RIDGE_GEMM_FP8_BIAS].dtype == RIDGE_F32;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.aligned = ((uintptr_t)d->data | (uintptr_t)(p.stride * (int64_t)ridge_dtype_size(d->dtype))) % 16 == 0;
    return p;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *,
                           const ridge_call *call, void *, size_t, void *stream)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B];
    const gemm_tile *tile = &tiles[kernel->param[0]];
    const int mode = mode_of(call->flags & RIDGE_SCALE_B), cluster = tile->cm * tile->cn;
    const int formats = a->dtype == RIDGE_E5M2   ? WGMMA_E5M2_E4M3
                        : b->dtype == RIDGE_E5M2 ? WGMMA_E4M3_E5M2
                                                 : WGMMA_E4M3_E4M3;
    const int64_t k = call->dim[2], fit = most[kernel->param[0]];
    gemm_args p = collect(call, tile);
    int64_t clusters = (int64_t)p.items_m * p.items_n;
    const int out = p.aligned && !p.accumulate && !p.bias && p.dtype == RIDGE_BF16 ? OUT_FAST : OUT_ANY;
    ridge_status status;

    status = host_tensor_map(device, &p.a, RIDGE_E4M3, a->data, k, p.m, stride_of(a, k), BK, tile->bm / tile->cn, 128);
    if (!status)
        status =
            host_tensor_map(device, &p.b, RIDGE_E4M3, b->data, k, p.n, stride_of(b, k), BK, tile->bn / tile->cm, 128);
    if (!status && p.aligned && !p.accumulate && p.dtype != RIDGE_F32)
        status = host_tensor_map(device, &p.d, p.dtype, p.out, p.n, p.m, p.stride, 64, 64, 128);
    if (!status && p.scale_tma)
        status = host_tensor_map(device, &p.map_scale_a, RIDGE_F32, p.scale_a, p.m, p.blocks, p.ld_a, tile->bm, 1, 0);
    if (!status && p.scale_tma && mode == SCALE_COLUMN)
        status = host_tensor_map(device, &p.map_scale_b, RIDGE_F32, p.scale_b, p.n, p.blocks, p.ld_b, tile->bn, 1, 0);
    if (status)
        return status;
    clusters = clusters < fit ? clusters : fit;
    return host_launch_cluster(device, kernel->name, tile->mode[mode].function[out][formats],
                               dim3((unsigned)(clusters * cluster)), cluster, tile->bm * 2 + 128,
                               tile->mode[mode].memory, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1], k = problem->dim[2];

    if (m <= 64)
        return "is for m above 64";
    if (n == 0 || k == 0)
        return "nothing to multiply";
    if (problem->align < 4 || (problem->packed && k % 16))
        return "TMA needs rows of a and b that begin at multiples of 16 bytes";
    if (m > 0x7fffff00 || n > 0x7fffff00 || k > 0x7fffff00 ||
        (double)((m + 255) / 256) * (double)((n + 127) / 128) > 2e9)
        return "more than 2^31 tiles";
    if (!tiles[kernel->param[0]].mode[mode_of(problem->flags & RIDGE_SCALE_B)].memory)
        return "this pair of scales has better tiles";
    return NULL;
}

/* Matrix time at the measured rate of the inner loop, in whole waves, plus a fixed start. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const gemm_tile *tile = &tiles[kernel->param[0]];
    const int64_t rows = tile->bm * tile->cm, cols = tile->bn * tile->cn, fit = device->units / (tile->cm * tile->cn);
    const int64_t items = (problem->dim[0] + rows - 1) / rows * ((problem->dim[1] + cols - 1) / cols);
    const double waves = (double)((items + fit - 1) / fit), blocks = (double)((problem->dim[2] + 127) / 128);

    return 4 + waves * (1.2 + blocks * 2 * BK * tile->bm * tile->bn / (kernel->param[1] * 1e6 / device->units));
}

#define ROW(index, name, rate)                                                               \
    {                                                                                        \
        "cuda.gemm_fp8.wgmma" name, RIDGE_GEMM_FP8, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90,        \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {index, rate}, why_not, NULL, cost, launch \
    }

/* param: tile, TFLOP/s of the inner loop. */
static const ridge_kernel rows[] = {ROW(0, "_a", 1450), ROW(1, "_b", 1450), ROW(2, "_c", 1450), ROW(3, "_d", 1450),
                                    ROW(4, "_e", 1450), ROW(5, "_f", 1450), ROW(6, "_g", 1350), ROW(7, "_h", 1350), ROW(8, "_i", 1350)};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
