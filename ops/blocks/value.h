/* value.h: one weight of a matrix in tiles, as ridge_dequantize has it: scale times code, plus a minimum, each rounded
 * once. Not of IQ2_XXS. */
#ifndef RIDGE_BLOCKS_VALUE_H
#define RIDGE_BLOCKS_VALUE_H

#include "layout.h"
#include "src/math/blocks.h"

/* What a code is multiplied by, and what is subtracted: f16 times an integer. */
typedef struct block_scale {
    uint16_t scale, min;
    int sub, sub_min;
} block_scale;

/* 6-bit scale and minimum of block b of Q4_K and Q5_K; from: d, dmin and 12 bytes. */
RIDGE_FN void block_k_subs(const uint8_t *from, int b, block_scale *s)
{
    if (b < 4) {
        s->sub = from[4 + b] & 63;
        s->sub_min = from[8 + b] & 63;
    } else {
        s->sub = (from[8 + b] & 15) | (from[b] >> 6) << 4;
        s->sub_min = from[8 + b] >> 4 | (from[4 + b] >> 6) << 4;
    }
}

RIDGE_FN uint16_t block_u16(const uint8_t *from)
{
    return (uint16_t)(from[0] | from[1] << 8);
}

/* The code, less its offset, and the scales of column 32 b + e of a unit; min of formats that have one. */
RIDGE_FN int block_parts(uint32_t format, block_layout f, const uint8_t *unit, int runs, int row, int b, int e,
                         block_scale *s)
{
    const uint8_t *scale = unit + block_codes_bytes(f, runs) + row * f.scale;
    const uint8_t *more = unit + block_codes_bytes(f, runs) + BLOCK_ROWS * f.scale + row * f.more;
    const int code = (int)block_unit_code(f, unit, runs, row, b, e), half = 2 * b + (e >> 4);

    s->sub = s->sub_min = 1;
    s->min = 0;
    switch (format) {
    case RIDGE_Q4_1:
        s->scale = block_u16(scale + 4 * b);
        s->min = block_u16(scale + 4 * b + 2);
        s->sub_min = -1;
        return code;
    case RIDGE_Q8_0:
        s->scale = block_u16(scale + 2 * b);
        return (int8_t)code;
    case RIDGE_Q2_K:
        s->scale = block_u16(more);
        s->min = block_u16(more + 2);
        s->sub = scale[half] & 15;
        s->sub_min = scale[half] >> 4;
        return code;
    case RIDGE_Q4_K:
    case RIDGE_Q5_K:
        s->scale = block_u16(scale);
        s->min = block_u16(scale + 2);
        block_k_subs(scale, b, s);
        return code;
    case RIDGE_Q6_K:
        s->scale = block_u16(more);
        s->sub = (int8_t)scale[half];
        return code - 32;
    default: /* Q4_0 */
        s->scale = block_u16(scale + 2 * b);
        return code - 8;
    }
}

RIDGE_FN bool block_has_min(uint32_t format)
{
    return format == RIDGE_Q4_1 || format == RIDGE_Q2_K || format == RIDGE_Q4_K || format == RIDGE_Q5_K;
}

RIDGE_FN float block_f16(uint16_t half)
{
    const uint32_t bits = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;

    if (bits >= 0x0f800000) /* infinity and NaN */
        return ridge_float(sign | bits | 0x7f800000);
    return ridge_float(sign | ridge_bits(ridge_float(bits) * 0x1p112f));
}

/* Column j of a row of a tile. */
RIDGE_FN float block_value(uint32_t format, const uint8_t *tile, int64_t cols, int row, int64_t j)
{
    const block_layout f = block_layout_of(format);
    const int64_t u = j / BLOCK_UNIT;
    const uint8_t *unit = tile + u * block_unit_bytes(f, 2);
    const int runs = u == block_units(cols) - 1 ? block_last_runs(cols) : 2;
    const int b = (int)(j % BLOCK_UNIT) / 32, e = (int)(j % 32);
    block_scale s;
    float product;
    int code;

    if (format == RIDGE_MXFP4)
        return ridge_block_e8m0(unit[block_codes_bytes(f, runs) + row * f.scale + b]) *
               (float)ridge_block_e2m1(block_unit_code(f, unit, runs, row, b, e));
    code = block_parts(format, f, unit, runs, row, b, e, &s);
    product = block_f16(s.scale) * (float)s.sub * (float)code;
    return block_has_min(format) ? product + -(block_f16(s.min) * (float)s.sub_min) : product;
}

#endif
