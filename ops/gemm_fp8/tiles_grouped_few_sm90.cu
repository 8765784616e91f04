/* tiles_grouped_few_sm90.cu: the kernels of gemm_fp8_grouped for groups of few rows. */
#include "tiles_sm90.cuh"

GEMM_TILES_GROUPED_FEW(GEMM_TILE)
