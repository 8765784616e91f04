/* tiles_large_sm90.cu: the tiles of rows_sm90.cu for many rows. */
#include "tiles_sm90.cuh"

TILE(tile_192x128, 3, 1, 128, 1, 2, 4, 0, 0, 0);
TILE(tile_192x128_wide, 3, 1, 128, 1, 2, 3, 0, 1, 0);
TILE(tile_192x96, 3, 1, 96, 1, 2, 4, 0, 0, 1);
TILE(tile_128x128, 2, 1, 128, 2, 1, 5, 0, 0, 0);
TILE(tile_256x128, 2, 2, 128, 1, 2, 3, 0, 0, 0);

const gemm_tile ridge_gemm_tiles_large[TILES_LARGE] = {
    {SIZES(tile_192x128),
     {BY_OUT(tile_192x128, SCALE_LAST), BY_OUT(tile_192x128, SCALE_BLOCK),
      BY_OUT_F32(tile_192x128, tile_192x128_wide)}},
    {SIZES(tile_128x128),
     {BY_OUT(tile_128x128, SCALE_LAST), BY_OUT(tile_128x128, SCALE_BLOCK), BY_OUT_F32(tile_128x128, tile_128x128)}},
    {SIZES(tile_256x128), {{}, BY_OUT(tile_256x128, SCALE_BLOCK), {}}}, /* registers for one mode only */
    {SIZES(tile_192x96), {{}, {}, BY_OUT_16BIT(tile_192x96)}}};
