/* tiles_grouped_m_sm90.cu: the kernels of gemm_fp8_grouped for groups of many rows. */
#include "tiles_sm90.cuh"

GEMM_TILES_GROUPED_M(GEMM_TILE)
