/* tiles_large_sm90.cu: the kernels of gemm_fp8's tiles for many rows. */
#include "tiles_sm90.cuh"

GEMM_TILES_LARGE(GEMM_TILE)
