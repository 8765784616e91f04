/* tiles_grouped_k_sm90.cu: the kernels of gemm_fp8_grouped for groups of k. */
#include "tiles_sm90.cuh"

GEMM_TILES_GROUPED_K(GEMM_TILE)
