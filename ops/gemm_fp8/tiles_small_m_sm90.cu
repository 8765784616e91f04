/* tiles_small_m_sm90.cu: the tiles of rows_sm90.cu for few rows. */
#include "tiles_sm90.cuh"

TILE(tile_192x64, 3, 1, 64, 1, 2, 7, 1, 0, 0);
TILE(tile_128x64, 2, 1, 64, 1, 2, 12, 1, 0, 0);
TILE(tile_128x64_down, 2, 1, 64, 2, 1, 12, 1, 0, 0);
TILE(tile_64x64_down, 1, 1, 64, 2, 1, 14, 1, 0, 0);
TILE(tile_128x128_few, 2, 1, 128, 1, 2, 8, 1, 0, 0);

const gemm_tile ridge_gemm_tiles_few[TILES_FEW] = {
    {SIZES(tile_192x64),
     {BY_OUT(tile_192x64, SCALE_LAST), BY_OUT(tile_192x64, SCALE_BLOCK), BY_OUT_F32(tile_192x64, tile_192x64)}},
    {SIZES(tile_128x64),
     {BY_OUT(tile_128x64, SCALE_LAST), BY_OUT(tile_128x64, SCALE_BLOCK), BY_OUT_F32(tile_128x64, tile_128x64)}},
    {SIZES(tile_128x64_down),
     {BY_OUT_TWO(tile_128x64_down, SCALE_LAST), BY_OUT_TWO(tile_128x64_down, SCALE_BLOCK), {}}},
    {SIZES(tile_64x64_down), {BY_OUT_TWO(tile_64x64_down, SCALE_LAST), BY_OUT_TWO(tile_64x64_down, SCALE_BLOCK), {}}},
    {SIZES(tile_128x128_few),
     {BY_OUT_TWO(tile_128x128_few, SCALE_LAST), BY_OUT_TWO(tile_128x128_few, SCALE_BLOCK), {}}}};
