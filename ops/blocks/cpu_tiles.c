/* cpu_tiles.c: block_repack and block_unpack on the CPU, byte by byte as layout.h says where each comes from. */
#include "cpu.h"
#include "cpu/team.h"
#include "src/util.h"

/* Calls a function of a format with the format as a constant: the compiler then knows every shift and division of
 * layout.h, which is two to three times as fast. */
#define EACH_FORMAT(format, call) \
    switch (format) {             \
        ONE(RIDGE_Q4_0, call);    \
        ONE(RIDGE_Q4_1, call);    \
        ONE(RIDGE_Q8_0, call);    \
        ONE(RIDGE_MXFP4, call);   \
        ONE(RIDGE_Q2_K, call);    \
        ONE(RIDGE_Q4_K, call);    \
        ONE(RIDGE_Q5_K, call);    \
        ONE(RIDGE_Q6_K, call);    \
        ONE(RIDGE_IQ2_XXS, call); \
    }
#define ONE(constant, call)                      \
    case constant: {                             \
        static const uint32_t FORMAT = constant; \
        call;                                    \
    } break
#define INLINE static inline __attribute__((always_inline))

INLINE void row_of_unit(uint32_t format, const uint8_t *unit, int runs, int row, int count, uint8_t *blocks)
{
    const block_layout f = block_layout_of(format);

    for (int b = 0; b < count; b += f.columns / 32)
        for (int i = 0; i < f.bytes; i++)
            *blocks++ = block_byte(format, f, unit, runs, row, b, i);
}

void ridge_block_row_of_unit(uint32_t format, const uint8_t *unit, int runs, int row, int count, uint8_t *blocks)
{
    EACH_FORMAT(format, row_of_unit(FORMAT, unit, runs, row, count, blocks))
}

/* One unit: 256 columns of 16 rows, or what there is of them. */
typedef struct unit_place {
    uint8_t *unit;
    const uint8_t *blocks;
    int rows, count, runs; /* rows; blocks of 32; runs */
} unit_place;

static unit_place place_of(const ridge_call *call, block_layout f, int64_t tile, int64_t u)
{
    const ridge_operand *blocks = &call->arg[RIDGE_BLOCK_REPACK_BLOCKS], *tiles = &call->arg[RIDGE_BLOCK_REPACK_TILES];
    const int64_t cols = call->dim[1], left = cols - u * BLOCK_UNIT;
    unit_place p;

    p.unit = (uint8_t *)tiles->data + 16 * tile * tiles->stride + u * block_unit_bytes(f, 2);
    p.blocks =
        (const uint8_t *)blocks->data + tile * BLOCK_ROWS * blocks->stride + u * (BLOCK_UNIT / f.columns) * f.bytes;
    p.rows = (int)ridge_min(BLOCK_ROWS, call->dim[0] - tile * BLOCK_ROWS);
    p.count = (int)ridge_min(8, left / 32);
    p.runs = u == block_units(cols) - 1 ? block_last_runs(cols) : 2;
    return p;
}

INLINE void unit_of_rows(uint32_t format, unit_place p, int64_t stride)
{
    const block_layout f = block_layout_of(format);
    const block_source s = {p.blocks, stride, p.rows, p.count};

    for (int at = 0; at < block_unit_bytes(f, p.runs); at++)
        p.unit[at] = block_tile_byte(format, f, s, p.runs, at);
}

static void repack_unit(uint32_t format, unit_place p, int64_t stride)
{
    EACH_FORMAT(format, unit_of_rows(FORMAT, p, stride))
}

static void unpack_unit(uint32_t format, unit_place p, int64_t stride)
{
    for (int row = 0; row < p.rows; row++)
        ridge_block_row_of_unit(format, p.unit, p.runs, row, p.count, (uint8_t *)p.blocks + row * stride);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;
    const uint32_t format = call->arg[RIDGE_BLOCK_REPACK_TILES].dtype;
    const block_layout f = block_layout_of(format);
    const int64_t stride = call->arg[RIDGE_BLOCK_REPACK_BLOCKS].stride;
    const int64_t units = block_units(call->dim[1]), all = ridge_ceil_div(call->dim[0], BLOCK_ROWS) * units;
    ridge_team *const team = ridge_team_begin((double)all * 20, all);

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
#pragma omp parallel num_threads(team->threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < all; i++) {
            const unit_place p = place_of(call, f, i / units, i % units);

            if (call->op == RIDGE_BLOCK_REPACK)
                repack_unit(format, p, stride);
            else
                unpack_unit(format, p, stride);
        }
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * 1e-3;
}

#define CONTRACTS (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE)
#define ROW(text, number)                                                                                \
    {                                                                                                    \
        .name = "cpu." text ".c", .op = number, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512, \
        .contract = CONTRACTS, .cost = cost, .launch = launch                                            \
    }

static const ridge_kernel rows[] = {
    ROW("block_repack", RIDGE_BLOCK_REPACK),
    ROW("block_unpack", RIDGE_BLOCK_UNPACK),
};

const ridge_kernel_list ridge_cpu_blocks_tiles = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
