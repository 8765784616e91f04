/* tiles_n96_n160_sm90.cu: the tiles of kernel_sm90.cuh whose columns can lie in two blocks of 128: for few rows and
 * scales of B by 128 x 128, where they leave fewer multiprocessors idle than others. CTAs are alone: pairs that share
 * loads are up to 3 % slower. */
#include "tiles_sm90.cuh"

TILE(tile_128x96, 2, 1, 96, 1, 1, 7, 1, 0, 0);
TILE(tile_128x160, 2, 1, 160, 1, 1, 5, 1, 0, 0);

const gemm_tile ridge_gemm_tiles_span[TILES_SPAN] = {
    {SIZES(tile_128x96), {{}, BY_OUT_TWO(tile_128x96, SCALE_BLOCK), {}}},
    {SIZES(tile_128x160), {{}, BY_OUT_TWO(tile_128x160, SCALE_BLOCK), {}}}};
