/* tiles_small_m_sm90.cu: the kernels of gemm_fp8's tiles for small m. */
#include "tiles_sm90.cuh"

GEMM_TILES_SMALL_M(GEMM_TILE)
