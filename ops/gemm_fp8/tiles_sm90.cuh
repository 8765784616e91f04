/* tiles_sm90.cuh: the tiles of gemm_fp8 above 64 tokens on Hopper, one line each, and their kernels.
 * tiles_large_sm90.cu, tiles_small_m_sm90.cu and tiles_n96_n160_sm90.cu compile one list each, since nvcc takes minutes
 * for it; rows_sm90.cu uses them all. */
#ifndef RIDGE_GEMM_FP8_TILES_SM90_CUH
#define RIDGE_GEMM_FP8_TILES_SM90_CUH

#include "kernel_sm90.cuh"

/* Bits of gemm_shape.modes. */
enum { MODE_EPILOGUE = 1 << SCALE_EPILOGUE, MODE_1D2D = 1 << SCALE_1D2D, MODE_1D1D = 1 << SCALE_1D1D };

/* What a line says; what it leaves out is 0. */
typedef struct gemm_shape {
    int warpgroups = 0, slices = 0; /* consumers, and slices of 64 rows of each: block_m = 64 warpgroups slices */
    int block_n = 0;
    int cluster_m = 0, cluster_n = 0; /* CTAs of a cluster, down and across */
    int stages = 0;                   /* small_m: at most */
    int stages_f32 = 0;  /* 1D1D: stages of a kernel that writes f32 through shared memory; 0: from registers */
    int modes = 0;       /* MODE_* */
    int out_f32 = 0;     /* has a kernel of its own for f32 */
    int small_m = 0;     /* divides the rows evenly among tiles, and has as many stages as a call leaves room for */
    int scale_outer = 0; /* 1D1D: tensor cores multiply the scales */
    int grouped = 0;     /* GROUPED_*: rows of gemm_fp8_grouped */
    /* measured, for the cost model: TFLOP/s of the main loop, in 1D1D, and, with small_m or grouped, the least us a
     * block of k, grouped: without the share of its rows */
    double rate = 0, rate_1d1d = 0, block_us = 0;
} gemm_shape;

/* Tiles for many rows. 256x128 has registers for one mode only. */
#define GEMM_TILES_LARGE(TILE)                                                                               \
    TILE(192x128, .warpgroups = 3, .slices = 1, .block_n = 128, .cluster_m = 1, .cluster_n = 2, .stages = 4, \
         .stages_f32 = 3, .modes = MODE_EPILOGUE | MODE_1D2D | MODE_1D1D, .out_f32 = 1, .rate = 1280,        \
         .rate_1d1d = 940)                                                                                   \
    TILE(128x128, .warpgroups = 2, .slices = 1, .block_n = 128, .cluster_m = 2, .cluster_n = 1, .stages = 5, \
         .modes = MODE_EPILOGUE | MODE_1D2D | MODE_1D1D, .out_f32 = 1, .rate = 1140, .rate_1d1d = 870)       \
    TILE(256x128, .warpgroups = 2, .slices = 2, .block_n = 128, .cluster_m = 1, .cluster_n = 2, .stages = 3, \
         .modes = MODE_1D2D, .out_f32 = 1, .rate = 1200)                                                     \
    TILE(192x96, .warpgroups = 3, .slices = 1, .block_n = 96, .cluster_m = 1, .cluster_n = 2, .stages = 4,   \
         .modes = MODE_1D1D, .scale_outer = 1, .rate_1d1d = 1020)

/* Tiles for small m: 65 to some hundreds. _cluster_m: two tiles of different rows share B. */
#define GEMM_TILES_SMALL_M(TILE)                                                                                      \
    TILE(192x64, .warpgroups = 3, .slices = 1, .block_n = 64, .cluster_m = 1, .cluster_n = 2, .stages = 7,            \
         .modes = MODE_EPILOGUE | MODE_1D2D | MODE_1D1D, .out_f32 = 1, .small_m = 1, .rate = 1100, .rate_1d1d = 850,  \
         .block_us = 0.30)                                                                                            \
    TILE(128x64, .warpgroups = 2, .slices = 1, .block_n = 64, .cluster_m = 1, .cluster_n = 2, .stages = 12,           \
         .modes = MODE_EPILOGUE | MODE_1D2D | MODE_1D1D, .out_f32 = 1, .small_m = 1, .rate = 1100, .rate_1d1d = 850,  \
         .block_us = 0.25)                                                                                            \
    TILE(128x64_cluster_m, .warpgroups = 2, .slices = 1, .block_n = 64, .cluster_m = 2, .cluster_n = 1, .stages = 12, \
         .modes = MODE_EPILOGUE | MODE_1D2D, .small_m = 1, .rate = 2000, .block_us = 0.27)                            \
    TILE(64x64_cluster_m, .warpgroups = 1, .slices = 1, .block_n = 64, .cluster_m = 2, .cluster_n = 1, .stages = 14,  \
         .modes = MODE_EPILOGUE | MODE_1D2D, .small_m = 1, .rate = 2000, .block_us = 0.17)                            \
    TILE(128x128_small_m, .warpgroups = 2, .slices = 1, .block_n = 128, .cluster_m = 1, .cluster_n = 2, .stages = 8,  \
         .modes = MODE_EPILOGUE | MODE_1D2D, .small_m = 1, .rate = 2000, .block_us = 0.38)

/* Tiles for small m whose columns can lie in two blocks of 128: for scales of B by 128 x 128, where they leave fewer
 * multiprocessors idle than others. No cluster: pairs that share loads are up to 3 % slower. */
#define GEMM_TILES_N96_N160(TILE)                                                                            \
    TILE(128x96, .warpgroups = 2, .slices = 1, .block_n = 96, .cluster_m = 1, .cluster_n = 1, .stages = 7,   \
         .modes = MODE_1D2D, .small_m = 1, .rate = 1105)                                                     \
    TILE(128x160, .warpgroups = 2, .slices = 1, .block_n = 160, .cluster_m = 1, .cluster_n = 1, .stages = 5, \
         .modes = MODE_1D2D, .small_m = 1, .rate = 1175)

/* Tiles of gemm_fp8_grouped: a cluster's CTAs lie side by side, so that they have the rows of one group. */
#define GEMM_TILES_GROUPED_K(TILE)                                                                              \
    TILE(k192x128, .warpgroups = 3, .slices = 1, .block_n = 128, .cluster_m = 1, .cluster_n = 2, .stages = 4,   \
         .stages_f32 = 3, .modes = MODE_EPILOGUE | MODE_1D1D, .out_f32 = 1, .grouped = GROUPED_K, .rate = 1280, \
         .rate_1d1d = 940)                                                                                      \
    TILE(k192x96, .warpgroups = 3, .slices = 1, .block_n = 96, .cluster_m = 1, .cluster_n = 2, .stages = 4,     \
         .modes = MODE_1D1D, .scale_outer = 1, .grouped = GROUPED_K, .rate_1d1d = 1020)

#define GEMM_TILES_GROUPED_M(TILE)                                                                            \
    TILE(m192x128, .warpgroups = 3, .slices = 1, .block_n = 128, .cluster_m = 1, .cluster_n = 2, .stages = 4, \
         .modes = MODE_EPILOGUE | MODE_1D2D | MODE_1D1D, .out_f32 = 1, .grouped = GROUPED_M, .rate = 1300,    \
         .rate_1d1d = 940, .block_us = 0.26)                                                                  \
    TILE(m128x192, .warpgroups = 2, .slices = 1, .block_n = 192, .cluster_m = 1, .cluster_n = 2, .stages = 4, \
         .modes = MODE_1D2D, .grouped = GROUPED_M, .rate = 1300, .block_us = 0.3)                             \
    TILE(m128x128, .warpgroups = 2, .slices = 1, .block_n = 128, .cluster_m = 1, .cluster_n = 2, .stages = 5, \
         .modes = MODE_EPILOGUE | MODE_1D2D, .out_f32 = 1, .grouped = GROUPED_M, .rate = 1220, .block_us = 0.2)

/* For groups of rows with scales of B by row and 128 of k, to 16 bits; to f32 m192x128 has them. */
#define GEMM_TILES_GROUPED_1D1D(TILE)                                                                       \
    TILE(m192x96, .warpgroups = 3, .slices = 1, .block_n = 96, .cluster_m = 1, .cluster_n = 2, .stages = 4, \
         .modes = MODE_1D1D, .scale_outer = 1, .grouped = GROUPED_M, .rate_1d1d = 1020, .block_us = 0.26)

/* For groups of few rows; no cluster. */
#define GEMM_TILES_GROUPED_FEW(TILE)                                                                         \
    TILE(m64x128, .warpgroups = 1, .slices = 1, .block_n = 128, .cluster_m = 1, .cluster_n = 1, .stages = 8, \
         .modes = MODE_EPILOGUE | MODE_1D2D, .grouped = GROUPED_M, .rate = 1100, .block_us = 0.27)           \
    TILE(m64x64, .warpgroups = 1, .slices = 1, .block_n = 64, .cluster_m = 1, .cluster_n = 1, .stages = 12,  \
         .modes = MODE_EPILOGUE | MODE_1D2D, .grouped = GROUPED_M, .rate = 1100, .block_us = 0.16)

typedef void gemm_function(const gemm_args);

/* A tile as a row's variant: its shape, and its kernels. */
typedef struct gemm_variant {
    gemm_shape shape;
    int block_m;
    struct {
        gemm_function *function[3][3]; /* by OUT_*, by WGMMA_*; NULL: the tile does not have the mode */
        size_t memory;                 /* bytes of shared memory */
        int ring;                      /* small_m: bytes of it for the stages of A and B */
    } mode[3];
} gemm_variant;

#define GEMM_DECLARE(name, ...) extern const gemm_variant ridge_gemm_##name;
extern "C" {
GEMM_TILES_LARGE(GEMM_DECLARE)
GEMM_TILES_SMALL_M(GEMM_DECLARE)
GEMM_TILES_N96_N160(GEMM_DECLARE)
GEMM_TILES_GROUPED_K(GEMM_DECLARE)
GEMM_TILES_GROUPED_M(GEMM_DECLARE)
GEMM_TILES_GROUPED_1D1D(GEMM_DECLARE)
GEMM_TILES_GROUPED_FEW(GEMM_DECLARE)
}

/* A shape as the constants that the kernel is compiled for. */
#define GEMM_TILE(name, ...)                                \
    struct tile_##name {                                    \
        static constexpr gemm_shape shape = {__VA_ARGS__};  \
        enum {                                              \
            WARPGROUPS = shape.warpgroups,                  \
            SLICES = shape.slices,                          \
            BLOCK_M = 64 * shape.warpgroups * shape.slices, \
            BLOCK_N = shape.block_n,                        \
            CLUSTER_M = shape.cluster_m,                    \
            CLUSTER_N = shape.cluster_n,                    \
            MAX_STAGES = shape.stages,                      \
            STAGES = shape.small_m ? 0 : shape.stages,      \
            SMALL_M = shape.small_m,                        \
            STAGED_F32 = 0,                                 \
            SCALE_OUTER = shape.scale_outer,                \
            GROUPED = shape.grouped                         \
        };                                                  \
    };                                                      \
    const gemm_variant ridge_gemm_##name = gemm_variant_of<tile_##name>();

/* The same tile with f32 through shared memory. */
template <class T> struct gemm_staged : T {
    enum { MAX_STAGES = T::shape.stages_f32, STAGES = MAX_STAGES, STAGED_F32 = 1 };
};

template <class T, int MODE, int FORMATS, int OUT> constexpr gemm_function *gemm_kernel(void)
{
    if constexpr (!(T::shape.modes >> MODE & 1))
        return NULL;
    else if constexpr (MODE == SCALE_1D1D && OUT == OUT_F32 && T::shape.stages_f32 > 0)
        return gemm_sm90<gemm_staged<T>, MODE, FORMATS, OUT_F32>;
    else if constexpr (OUT == OUT_F32 && (!T::shape.out_f32 || (MODE != SCALE_1D1D && FORMATS != WGMMA_E4M3_E4M3)))
        return gemm_sm90<T, MODE, FORMATS, OUT_ANY>; /* gradients, which have E5M2, are f32 in 1D1D only */
    else if constexpr (MODE == SCALE_1D1D &&
                       !T::SCALE_OUTER && /* why_not: writes f32 only; of groups of rows it is rare */
                       (OUT == OUT_BF16 || T::GROUPED == (int)GROUPED_M))
        return gemm_sm90<T, MODE, FORMATS, OUT_ANY>;
    else
        return gemm_sm90<T, MODE, FORMATS, OUT>;
}

template <class T, int MODE> constexpr size_t gemm_memory_bytes(void)
{
    if constexpr (!(T::shape.modes >> MODE & 1))
        return 0;
    else if constexpr (MODE == SCALE_1D1D && T::shape.stages_f32 > 0)
        return sizeof(gemm_memory<T, MODE>) > sizeof(gemm_memory<gemm_staged<T>, MODE>)
                   ? sizeof(gemm_memory<T, MODE>)
                   : sizeof(gemm_memory<gemm_staged<T>, MODE>);
    else
        return sizeof(gemm_memory<T, MODE>);
}

#define GEMM_FORMATS(T, mode, out)                                                                  \
    {                                                                                               \
        gemm_kernel<T, mode, WGMMA_E4M3_E4M3, out>(), gemm_kernel<T, mode, WGMMA_E4M3_E5M2, out>(), \
            gemm_kernel<T, mode, WGMMA_E5M2_E4M3, out>()                                            \
    }
#define GEMM_MODE(T, mode)                                                                                         \
    {                                                                                                              \
        {GEMM_FORMATS(T, mode, OUT_BF16), GEMM_FORMATS(T, mode, OUT_F32), GEMM_FORMATS(T, mode, OUT_ANY)},         \
            gemm_memory_bytes<T, mode>(), T::SMALL_M &&T::shape.modes >> mode & 1 ? gemm_layout<T, mode>::RING : 0 \
    }

template <class T> constexpr gemm_variant gemm_variant_of(void)
{
    return {T::shape, T::BLOCK_M, {GEMM_MODE(T, SCALE_EPILOGUE), GEMM_MODE(T, SCALE_1D2D), GEMM_MODE(T, SCALE_1D1D)}};
}

#endif
