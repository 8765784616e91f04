/* fill.c: weights in tiles. Rows of random blocks are made with scales of a sensible size, and go through block_repack.
 * With FILL_GROUPS and FILL_EDGE every row is of a kind of its own: all bits of codes 0 or 1, scales 0, subnormal,
 * 65504, one NaN or infinity. With FILL_EVERY the scales of row r are the bits of r, so that 65536 rows have all of
 * them, and minima other ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "cpu/num.h"
#include "ops/blocks/layout.h"
#include "src/util.h"

/* Kinds of rows; the last is plain. */
enum { ZERO = 0, SUBNORMAL, LARGEST, WITH_NAN, WITH_INFINITY, KINDS = 9 };

/* The f16 numbers of a block: how many, and where the first one lies. */
typedef struct block_halves {
    int count, first;
} block_halves;

static block_halves halves_of(uint32_t format)
{
    const bool two = format == RIDGE_Q4_1 || format == RIDGE_Q2_K || format == RIDGE_Q4_K || format == RIDGE_Q5_K;
    const int first = format == RIDGE_Q2_K ? 80 : format == RIDGE_Q6_K ? 208 : 0;

    return (block_halves){format == RIDGE_MXFP4 ? 0 : 1 + two, first};
}

static uint16_t half_scale(unsigned kind, uint64_t *state, bool special)
{
    const uint16_t any = ridge_f16_from_f32(random_normal(state) * 0x1p-8f);

    switch (kind) {
    case ZERO:
        return any & 0x8000;
    case SUBNORMAL:
        return any & 0x83ff;
    case LARGEST:
        return (uint16_t)(0x7bff | (any & 0x8000));
    case WITH_NAN:
        return special ? 0x7e01 : any;
    case WITH_INFINITY:
        return special ? (uint16_t)(0x7c00 | (any & 0x8000)) : any;
    default:
        return any;
    }
}

/* Gives all blocks of row r its scales. */
static void number_row(uint32_t format, int64_t r, uint8_t *row, int64_t cols)
{
    const block_layout f = block_layout_of(format);
    const block_halves at = halves_of(format);
    const uint16_t scale = (uint16_t)r, min = (uint16_t)(r * 40503); /* odd: a permutation */

    for (int64_t b = 0; b < cols / f.columns; b++) {
        if (format == RIDGE_MXFP4)
            row[b * f.bytes] = (uint8_t)(r + b);
        if (at.count > 0)
            memcpy(row + b * f.bytes + at.first, &scale, 2);
        if (at.count > 1)
            memcpy(row + b * f.bytes + at.first + 2, &min, 2);
    }
}

/* One row of blocks: random bytes, then its f16 scales and minima. */
static void fill_row(uint32_t format, unsigned kind, uint8_t *row, int64_t cols, uint64_t state)
{
    const block_layout f = block_layout_of(format);
    const int64_t blocks = cols / f.columns, bytes = block_row_bytes(f, cols);
    const int64_t special = blocks ? (int64_t)(random_next(&state) % (uint64_t)blocks) : 0;
    const unsigned codes = kind < KINDS ? (unsigned)(random_next(&state) % 4) : 3;
    const block_halves at = halves_of(format);

    for (int64_t i = 0; i < bytes; i++)
        row[i] = codes == 0 ? 0 : codes == 1 ? 0xff : (uint8_t)(random_next(&state) >> 24);
    for (int64_t b = 0; b < blocks; b++) {
        for (int i = 0; i < at.count; i++) {
            const uint16_t half = half_scale(kind, &state, b == special);

            memcpy(row + b * f.bytes + at.first + 2 * i, &half, 2);
        }
        if (format == RIDGE_MXFP4)
            row[b * 17] = (uint8_t)(kind == ZERO        ? random_next(&state) % 3
                                    : kind == WITH_NAN  ? 255 - random_next(&state) % 4
                                    : kind == LARGEST   ? 180
                                    : kind == SUBNORMAL ? 60
                                                        : 118 + random_next(&state) % 8);
    }
}

bool fill_tiles(uint32_t format, int64_t rows, int64_t cols, fill_scales scales, void *tiles, int64_t stride,
                uint64_t seed)
{
    const int64_t pitch = block_row_bytes(block_layout_of(format), cols);
    ridge_tensor to = ridge_matrix(tiles, (ridge_dtype)format);
    uint8_t *blocks = malloc((size_t)(rows * pitch) + 1);
    ridge_device *cpu = NULL;
    ridge_call call;

    if (!blocks || ridge_open("cpu", &cpu) != RIDGE_OK) {
        free(blocks);
        return false;
    }
#pragma omp parallel for schedule(static) if (rows * cols > 100000)
    for (int64_t r = 0; r < rows; r++) {
        uint64_t state = seed ^ (uint64_t)(r + 1) * UINT64_C(0xd1342543de82ef95);
        const unsigned kind = scales == SCALES_HARD ? (unsigned)(random_next(&state) % KINDS) : KINDS;

        fill_row(format, kind, blocks + r * pitch, cols, state);
        if (scales == SCALES_EVERY)
            number_row(format, r, blocks + r * pitch, cols);
    }
    to.stride = stride;
    call = ridge_block_repack(rows, cols, blocks, to);
    if (ridge_run(cpu, &call, NULL, 0, NULL) != RIDGE_OK)
        fprintf(stderr, "fill: %s\n", ridge_error());
    ridge_close(cpu);
    free(blocks);
    return true;
}

bool fill_blocks(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const ridge_operand *operand = &im->call.arg[arg];
    const fill_scales scales = c->fill == FILL_EVERY                            ? SCALES_EVERY
                               : c->fill == FILL_GROUPS || c->fill == FILL_EDGE ? SCALES_HARD
                                                                                : SCALES_PLAIN;
    int64_t tiles, bytes;

    if (!is_block_format(operand->dtype))
        return false;
    op->extent(&im->call, arg, &tiles, &bytes);
    tiles = im->periodic && tiles > IMAGE_PERIOD ? IMAGE_PERIOD : tiles;
    return fill_tiles(operand->dtype, tiles * BLOCK_ROWS, im->call.dim[1], scales, im->host + im->offset[arg],
                      operand->stride, seed + (uint64_t)arg);
}
