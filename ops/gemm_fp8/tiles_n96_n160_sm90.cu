/* tiles_n96_n160_sm90.cu: the kernels of gemm_fp8's tiles with 96 and 160 columns. */
#include "tiles_sm90.cuh"

GEMM_TILES_N96_N160(GEMM_TILE)
