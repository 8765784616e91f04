/* tiles_sm90.cuh: tables of tiles: sizes and kernels. tiles_large_sm90.cu, tiles_small_m_sm90.cu and
 * tiles_n96_n160_sm90.cu have them, rows_sm90.cu uses them; nvcc takes minutes for each. */
#ifndef RIDGE_GEMM_FP8_TILES_CUH
#define RIDGE_GEMM_FP8_TILES_CUH

#include "kernel_sm90.cuh"

/* Warpgroups, slices of 64 rows of each, columns, CTAs of a cluster down and across, stages, whether for few rows (then
 * as many stages as a call leaves room for: STAGES 0, stages at most), whether for f32 through shared memory, whether
 * tensor cores multiply scales. */
#define TILE(name, wgs, slices, bn, cm, cn, stages, few, wide, factor) \
    struct name {                                                      \
        enum {                                                         \
            WGS = wgs,                                                 \
            SLICES = slices,                                           \
            BM = 64 * wgs * slices,                                    \
            BN = bn,                                                   \
            CM = cm,                                                   \
            CN = cn,                                                   \
            MOST = stages,                                             \
            STAGES = few ? 0 : stages,                                 \
            FEW = few,                                                 \
            WIDE = wide,                                               \
            FACTOR = factor                                            \
        };                                                             \
    }

typedef struct gemm_tile {
    int bm, bn, cm, cn, wgs, slices, few, most;
    struct {
        const void *function[3][3]; /* by output, formats */
        size_t memory;
        int ring; /* bytes of it, when few */
    } mode[3];
} gemm_tile;

enum { TILES_LARGE = 4, TILES_FEW = 5, TILES_SPAN = 2 };
extern "C" const gemm_tile ridge_gemm_tiles_large[TILES_LARGE], ridge_gemm_tiles_few[TILES_FEW],
    ridge_gemm_tiles_span[TILES_SPAN];

#define BY_FORMATS(T, mode, out)                                    \
    {                                                               \
        (const void *)gemm_sm90<T, mode, WGMMA_E4M3_E4M3, out>,     \
            (const void *)gemm_sm90<T, mode, WGMMA_E4M3_E5M2, out>, \
            (const void *)gemm_sm90<T, mode, WGMMA_E5M2_E4M3, out>  \
    }

template <class T, class F, int MODE> union gemm_memories {
    gemm_memory<T, MODE> t;
    gemm_memory<F, MODE> f;
};

#define BY_OUT(T, mode)                                                                              \
    {                                                                                                \
        {BY_FORMATS(T, mode, OUT_BF16), BY_FORMATS(T, mode, OUT_F32), BY_FORMATS(T, mode, OUT_ANY)}, \
            sizeof(gemm_memory<T, mode>), T::FEW *(int)gemm_room<T, mode>::RING                      \
    }
/* No kernel of its own for f32. */
#define BY_OUT_TWO(T, mode)                                                                          \
    {                                                                                                \
        {BY_FORMATS(T, mode, OUT_BF16), BY_FORMATS(T, mode, OUT_ANY), BY_FORMATS(T, mode, OUT_ANY)}, \
            sizeof(gemm_memory<T, mode>), T::FEW *(int)gemm_room<T, mode>::RING                      \
    }
/* A scale for each column: f32, by tile F where it is aligned (no kernel for others: the first is never launched) ...
 */
#define BY_OUT_F32(T, F)                                                                             \
    {                                                                                                \
        {BY_FORMATS(T, SCALE_COLUMN, OUT_ANY), BY_FORMATS(F, SCALE_COLUMN, OUT_F32),                 \
         BY_FORMATS(T, SCALE_COLUMN, OUT_ANY)},                                                      \
            sizeof(gemm_memories<T, F, SCALE_COLUMN>), T::FEW *(int)gemm_room<T, SCALE_COLUMN>::RING \
    }
/* ... and 16 bits. */
#define BY_OUT_16BIT(T)                                                               \
    {                                                                                 \
        {BY_FORMATS(T, SCALE_COLUMN, OUT_BF16), BY_FORMATS(T, SCALE_COLUMN, OUT_ANY), \
         BY_FORMATS(T, SCALE_COLUMN, OUT_ANY)},                                       \
            sizeof(gemm_memory<T, SCALE_COLUMN>), 0                                   \
    }
#define SIZES(T) T::BM, T::BN, T::CM, T::CN, T::WGS, T::SLICES, T::FEW, T::MOST

#endif
