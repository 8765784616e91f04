/* tiles.cu: block_repack and block_unpack on CUDA: a thread for every byte of tiles, or for every four of blocks, as
 * layout.h says where each comes from. Weights are repacked once, so nothing here is tuned. */
#include "args.cuh"

enum { THREADS = 256 };

typedef struct tiles_args {
    uint8_t *tiles, *blocks;
    int64_t tile_stride, block_stride; /* bytes */
    int64_t rows, cols, words;         /* words: bytes of a tile, or words of 4 of a row of blocks */
    uint32_t format;
} tiles_args;

static __global__ void __launch_bounds__(THREADS) block_repack(const __grid_constant__ tiles_args p)
{
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x, tile = index / p.words;
    const int64_t at = index % p.words, first_row = tile * BLOCK_ROWS;
    const block_layout f = block_layout_of(p.format);
    const int64_t u = at / block_unit_bytes(f, 2), left = p.cols - u * BLOCK_UNIT;
    block_source s;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (first_row >= p.rows)
        return;
    s.from = p.blocks + first_row * p.block_stride + u * (BLOCK_UNIT / f.columns) * f.bytes;
    s.stride = p.block_stride;
    s.rows = (int)(p.rows - first_row < BLOCK_ROWS ? p.rows - first_row : BLOCK_ROWS);
    s.blocks = (int)(left < BLOCK_UNIT ? left / 32 : 8);
    p.tiles[tile * p.tile_stride + at] =
        block_tile_byte(p.format, f, s, left <= BLOCK_RUN ? 1 : 2, (int)(at - u * block_unit_bytes(f, 2)));
}

static __global__ void __launch_bounds__(THREADS) block_unpack(const __grid_constant__ tiles_args p)
{
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = index / p.words;
    const block_layout f = block_layout_of(p.format);
    const int64_t bytes = block_row_bytes(f, p.cols);

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (row >= p.rows)
        return;
    for (int64_t at = index % p.words * 4; at < bytes && at < (index % p.words + 1) * 4; at++) {
        const int64_t block = at / f.bytes, u = block * f.columns / BLOCK_UNIT, left = p.cols - u * BLOCK_UNIT;
        const uint8_t *unit = p.tiles + row / BLOCK_ROWS * p.tile_stride + u * block_unit_bytes(f, 2);

        p.blocks[row * p.block_stride + at] =
            block_byte(p.format, f, unit, left <= BLOCK_RUN ? 1 : 2, (int)(row % BLOCK_ROWS),
                       (int)(block * f.columns % BLOCK_UNIT / 32), (int)(at % f.bytes));
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[2] = {(const void *)block_repack, (const void *)block_unpack};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 2, "block_repack: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    const ridge_operand *blocks = &call->arg[RIDGE_BLOCK_REPACK_BLOCKS], *tiles = &call->arg[RIDGE_BLOCK_REPACK_TILES];
    const bool unpack = call->op == RIDGE_BLOCK_UNPACK;
    tiles_args p = {};
    int64_t threads;

    p.format = tiles->dtype;
    p.rows = call->dim[0];
    p.cols = call->dim[1];
    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    p.tiles = (uint8_t *)tiles->data;
    p.blocks = (uint8_t *)blocks->data;
    p.tile_stride = 16 * tiles->stride;
    p.block_stride = blocks->stride;
    p.words = unpack ? ridge_ceil_div(block_row_bytes(block_layout_of(p.format), p.cols), 4)
                     : block_tile_bytes(block_layout_of(p.format), p.cols);
    threads = p.words * (unpack ? p.rows : ridge_ceil_div(p.rows, BLOCK_ROWS));
    return host_launch(device, kernel->name, functions[unpack], dim3((unsigned)ridge_ceil_div(threads, THREADS)),
                       THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return ((double)problem->dim[0] + 16) * ((double)problem->dim[1] + 256) > 2147483647.0 * 64
               ? "more than 2^31 - 1 thread blocks"
               : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + 10.0 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

#define ROW(text, number)                                                                                \
    {                                                                                                    \
        "cuda." text ".bytes", number, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                            \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE, 0, {}, why_not, NULL, cost, launch \
    }

static const ridge_kernel rows[] = {
    ROW("block_repack", RIDGE_BLOCK_REPACK),
    ROW("block_unpack", RIDGE_BLOCK_UNPACK),
};

extern "C" const ridge_kernel_list ridge_cuda_blocks_tiles = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
