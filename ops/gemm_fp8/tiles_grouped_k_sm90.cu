/* tiles_grouped_k_sm90.cu: the kernels of gemm_fp8_grouped for groups of k, and of rows with scales of B by row and 128
 * of k. */
#include "tiles_sm90.cuh"

GEMM_TILES_GROUPED_K(GEMM_TILE)
GEMM_TILES_GROUPED_1D1D(GEMM_TILE)
