/* layout.h: where each bit of GGUF's blocks lies in tiles, the form that the products read.
 *
 * A tile holds 16 rows, as a list of units of 256 columns. A unit holds codes, then what scales them, in up to four
 * planes:
 *     low    the low 2, 4 or 8 bits of each code
 *     high   its high 1 or 2 bits: Q5_K, Q6_K
 *     scale  `scale` bytes a row: row 0, row 1, ...
 *     more   `more` bytes a row, likewise
 * The order of codes is that of the A operand of mma.m16n8k32: lane 4 g + t of a warp has rows g and g + 8, and of a
 * block of 32 the columns 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3. Of four blocks j (a run, 128 columns) a lane has
 * eight slots s = 2 j + half of four columns each; codes of one slot lie in the four bytes of one word, of two bits
 * those of all blocks and one half. What a lane has of a row lies together, 16 bytes where there are as many, and the
 * lanes of a warp one after another. A matrix is as large as its blocks, but for rows that are no multiple of 16, and
 * columns that are no multiple of 128 (codes of whole runs, scales of whole units). What there is not is zero. */
#ifndef RIDGE_BLOCKS_LAYOUT_H
#define RIDGE_BLOCKS_LAYOUT_H

#include <stdbool.h>

#include "ridge.h"
#include "src/math/exact.h"

enum { BLOCK_ROWS = 16, BLOCK_UNIT = 256, BLOCK_RUN = 128 };

/* One format. Blocks have `columns` codes and `bytes` bytes; the bytes of the planes `scale` and `more` lie in them
 * from scale_at and more_at on. */
typedef struct block_layout {
    int columns, bytes;
    int low, high;   /* bits of a code in each plane */
    int scale, more; /* bytes of a row */
    int scale_at, more_at;
    int codes_at; /* the low bits, in a block */
} block_layout;

/* columns = 0: not one of the formats. */
RIDGE_FN block_layout block_layout_of(uint32_t format)
{
    switch (format) {
    case RIDGE_Q4_0:
        return (block_layout){32, 18, 4, 0, 16, 0, 0, 0, 2};
    case RIDGE_Q4_1:
        return (block_layout){32, 20, 4, 0, 32, 0, 0, 0, 4};
    case RIDGE_Q8_0:
        return (block_layout){32, 34, 8, 0, 16, 0, 0, 0, 2};
    case RIDGE_MXFP4:
        return (block_layout){32, 17, 4, 0, 8, 0, 0, 0, 1};
    case RIDGE_Q2_K:
        return (block_layout){256, 84, 2, 0, 16, 4, 0, 80, 16};
    case RIDGE_Q4_K:
        return (block_layout){256, 144, 4, 0, 16, 0, 0, 0, 16};
    case RIDGE_Q5_K:
        return (block_layout){256, 176, 4, 1, 16, 0, 0, 0, 48};
    case RIDGE_Q6_K:
        return (block_layout){256, 210, 4, 2, 16, 2, 192, 208, 0};
    case RIDGE_IQ2_XXS:
        return (block_layout){256, 66, 2, 0, 2, 0, 0, 0, 2};
    default:
        return (block_layout){0, 0, 0, 0, 0, 0, 0, 0, 0};
    }
}

/* Bytes of a unit with `runs` runs, and of its planes before `scale`. */
RIDGE_FN int block_codes_bytes(block_layout f, int runs)
{
    return 256 * runs * (f.low + f.high);
}

RIDGE_FN int block_unit_bytes(block_layout f, int runs)
{
    return block_codes_bytes(f, runs) + BLOCK_ROWS * (f.scale + f.more);
}

/* Units of a tile, runs of its last one, bytes of it; bytes of a row in blocks. */
RIDGE_FN int64_t block_units(int64_t cols)
{
    return (cols + BLOCK_UNIT - 1) / BLOCK_UNIT;
}

RIDGE_FN int block_last_runs(int64_t cols)
{
    return (cols - 1) % BLOCK_UNIT < BLOCK_RUN ? 1 : 2;
}

RIDGE_FN int64_t block_tile_bytes(block_layout f, int64_t cols)
{
    return cols <= 0 ? 0
                     : (block_units(cols) - 1) * block_unit_bytes(f, 2) + block_unit_bytes(f, block_last_runs(cols));
}

RIDGE_FN int64_t block_row_bytes(block_layout f, int64_t cols)
{
    return f.columns ? cols / f.columns * f.bytes : 0;
}

/* ------------------------------------------------------------------------------------------------- codes in a block */

/* Code e of a block, without an offset; not of IQ2_XXS. */
RIDGE_FN unsigned block_code(uint32_t format, const uint8_t *block, int e)
{
    const uint8_t *low = block + block_layout_of(format).codes_at;
    const int half = e >> 7, part = e >> 5, i = e & 31;

    switch (format) {
    case RIDGE_Q8_0:
        return low[e];
    case RIDGE_Q2_K:
        return low[32 * half + i] >> 2 * (part & 3) & 3;
    case RIDGE_Q4_K:
        return low[32 * (e >> 6) + i] >> 4 * (part & 1) & 15;
    case RIDGE_Q5_K:
        return (low[32 * (e >> 6) + i] >> 4 * (part & 1) & 15) | (unsigned)(block[16 + i] >> part & 1) << 4;
    case RIDGE_Q6_K:
        return (low[64 * half + 32 * (part & 1) + i] >> 4 * (part >> 1 & 1) & 15) |
               (unsigned)(block[128 + 32 * half + i] >> 2 * (part & 3) & 3) << 4;
    default: /* two codes a byte, 16 columns apart */
        return low[e & 15] >> 4 * (e >> 4) & 15;
    }
}

/* ------------------------------------------------------------------------------------------------ codes in a tile */

/* Where code `bits` wide of row, block b of 8 and column e of 32 lies in its plane: byte, and *shift in it. */
RIDGE_FN int block_place(int bits, int row, int b, int e, int *shift)
{
    const int run = b >> 2, slot = 2 * (b & 3) + (e >> 4), byte = e & 3;
    const int lane = (row >> 3) * 32 + (row & 7) * 4 + ((e & 15) >> 2);

    *shift = bits == 2 ? 2 * (b & 3) : bits * slot & 7;
    if (bits == 8)
        return run << 11 | slot >> 2 << 10 | lane << 4 | (slot & 3) << 2 | byte;
    if (bits == 4)
        return run << 10 | lane << 4 | slot >> 1 << 2 | byte;
    if (bits == 2)
        return lane << 4 | run << 3 | (slot & 1) << 2 | byte;
    return lane << 3 | run << 2 | byte;
}

/* What a byte of a plane holds: the row, and the first of its 8 / bits codes as block and column; each further code is
 * 16 columns on, every second one in the next block, or, of two bits, 32 columns on. */
RIDGE_FN void block_holds(int bits, int at, int *row, int *b, int *e)
{
    const int lane = (bits >= 4 ? at >> 4 : bits == 2 ? at >> 4 : at >> 3) & 63;
    const int run = bits == 8 ? at >> 11 : bits == 4 ? at >> 10 : bits == 2 ? at >> 3 & 1 : at >> 2 & 1;
    const int slot = bits == 8   ? (at >> 10 & 1) * 4 + (at >> 2 & 3)
                     : bits == 4 ? (at >> 2 & 3) * 2
                     : bits == 2 ? at >> 2 & 1
                                 : 0;

    *row = (lane >> 5) * 8 + (lane >> 2 & 7);
    *b = 4 * run + (slot >> 1);
    *e = 16 * (slot & 1) + 4 * (lane & 3) + (at & 3);
}

/* IQ2_XXS has the same 16 bytes a lane, 8 a run: the word of grid indices t of blocks j = 0 .. 3, and a word of their
 * signs, whose bit 4 k + j is the parity of signs 0 .. k of block j's entry t, k = 0 .. 6. So one shift and an XOR give
 * the eight signs of all four entries, the one that is not stored with them. On top the 4-bit scale of a block: of row
 * g + 8 (t & 1), block 4 (t >> 1) + 2 h + run, where h says whether the lane's piece is of row g or of g + 8. */
RIDGE_FN int block_iq2_scale_piece(int row, int b)
{
    const int lane = (b >> 1 & 1) * 32 + (row & 7) * 4 + (b >> 2) * 2 + (row >> 3);

    return lane << 4 | (b & 1) << 3;
}

/* Seven sign bits to their parities four bits apart, and back. */
RIDGE_FN uint32_t block_iq2_parities(uint32_t signs)
{
    uint32_t parity = signs ^ signs << 1, word = 0;

    parity ^= parity << 2;
    parity ^= parity << 4;
    for (int k = 0; k < 7; k++)
        word |= (parity >> k & 1) << 4 * k;
    return word;
}

RIDGE_FN uint32_t block_iq2_signs(uint32_t word)
{
    uint32_t parity = 0;

    for (int k = 0; k < 7; k++)
        parity |= (word >> 4 * k & 1) << k;
    return (parity ^ parity << 1) & 127;
}

/* A code in a unit, all its bits; not of IQ2_XXS. */
RIDGE_FN unsigned block_unit_code(block_layout f, const uint8_t *unit, int runs, int row, int b, int e)
{
    int shift, at = block_place(f.low, row, b, e, &shift);
    unsigned code = unit[at] >> shift & ((1u << f.low) - 1);

    if (f.high) {
        at = 256 * runs * f.low + block_place(f.high, row, b, e, &shift);
        code |= (unit[at] >> shift & ((1u << f.high) - 1)) << f.low;
    }
    return code;
}

/* --------------------------------------------------------------------------------------------------- blocks to tiles
 */

/* A unit's part of 16 rows in blocks: row r is at from + r * stride, `rows` of them and `blocks` blocks of 32 columns
 * exist. */
typedef struct block_source {
    const uint8_t *from;
    int64_t stride;
    int rows, blocks;
} block_source;

/* The block that holds columns 32 b of a row, and the number of the first of them in it. */
RIDGE_FN const uint8_t *block_of(block_layout f, block_source s, int row, int b, int *first)
{
    *first = f.columns == 32 ? 0 : 32 * b;
    return s.from + row * s.stride + (f.columns == 32 ? b * f.bytes : 0);
}

RIDGE_FN uint32_t block_iq2_word(block_source s, int row, int b, int which)
{
    uint32_t word = 0;

    for (int i = 0; i < 4; i++)
        word |= (uint32_t)(row < s.rows ? s.from[row * s.stride + 2 + 8 * b + 4 * which + i] : 0) << 8 * i;
    return word;
}

/* Byte `at` of the codes of a unit of IQ2_XXS. */
RIDGE_FN uint8_t block_iq2_byte(block_source s, int at)
{
    const int lane = at >> 4, t = lane & 3, g = lane >> 2 & 7, h = lane >> 5, run = at >> 3 & 1;
    const int row = 8 * h + g;
    uint32_t word = 0;

    if (!(at & 4))
        return (uint8_t)(block_iq2_word(s, row, 4 * run + (at & 3), 0) >> 8 * t);
    for (int j = 0; j < 4; j++)
        word |= block_iq2_parities(block_iq2_word(s, row, 4 * run + j, 1) >> 7 * t & 127) << j;
    word |= block_iq2_word(s, 8 * (t & 1) + g, 4 * (t >> 1) + 2 * h + run, 1) >> 28 << 28;
    return (uint8_t)(word >> 8 * (at & 3));
}

/* Byte `at` of a unit with `runs` runs. */
RIDGE_FN uint8_t block_tile_byte(uint32_t format, block_layout f, block_source s, int runs, int at)
{
    const int low = 256 * runs * f.low, codes = block_codes_bytes(f, runs);
    const bool high = at >= low;
    const int bits = high ? f.high : f.low;
    unsigned byte = 0;
    int row, b, e, first;

    if (at >= codes + BLOCK_ROWS * f.scale) {
        at -= codes + BLOCK_ROWS * f.scale;
        row = at / f.more;
        return row < s.rows ? block_of(f, s, row, 0, &first)[f.more_at + at % f.more] : 0;
    }
    if (at >= codes) {
        const int each = f.columns == 32 ? f.scale / 8 : f.scale;

        at -= codes;
        row = at / f.scale;
        b = f.columns == 32 ? at % f.scale / each : 0;
        return row < s.rows && b < s.blocks ? block_of(f, s, row, b, &first)[f.scale_at + at % f.scale % each] : 0;
    }
    if (format == RIDGE_IQ2_XXS)
        return block_iq2_byte(s, at);
    block_holds(bits, high ? at - low : at, &row, &b, &e);
    for (int i = 0; i < 8 / bits; i++) {
        if (row < s.rows && b < s.blocks) {
            const uint8_t *block = block_of(f, s, row, b, &first);
            const unsigned code = block_code(format, block, first + e);

            byte |= ((high ? code >> f.low : code) & ((1u << bits) - 1)) << bits * i;
        }
        e ^= bits == 2 ? 0 : 16;
        b += bits == 2 || e < 16;
    }
    return (uint8_t)byte;
}

/* --------------------------------------------------------------------------------------------------- tiles to blocks
 */

/* Byte i of the codes of a block (its low bits, with Q5_K's and Q6_K's high bits) whose first column of 32 is b. */
RIDGE_FN uint8_t block_codes_byte(uint32_t format, block_layout f, const uint8_t *unit, int runs, int row, int b, int i)
{
    unsigned byte = 0;

    switch (format) {
#define CODE(column) block_unit_code(f, unit, runs, row, b + ((column) >> 5), (column)&31)
    case RIDGE_Q8_0:
        return (uint8_t)CODE(i);
    case RIDGE_Q2_K:
        for (int part = 0; part < 4; part++)
            byte |= CODE(128 * (i >> 5) + 32 * part + (i & 31)) << 2 * part;
        return (uint8_t)byte;
    case RIDGE_Q5_K:
        if (i < 32) {
            for (int part = 0; part < 8; part++)
                byte |= (CODE(32 * part + i) >> 4) << part;
            return (uint8_t)byte;
        }
        i -= 32;
        return (uint8_t)((CODE(64 * (i >> 5) + (i & 31)) & 15) | (CODE(64 * (i >> 5) + 32 + (i & 31)) & 15) << 4);
    case RIDGE_Q4_K:
        return (uint8_t)(CODE(64 * (i >> 5) + (i & 31)) | CODE(64 * (i >> 5) + 32 + (i & 31)) << 4);
    case RIDGE_Q6_K:
        if (i < 128) /* byte 64 half + l holds columns 128 half + l and 128 half + 64 + l */
            return (uint8_t)((CODE(128 * (i >> 6) + (i & 63)) & 15) | (CODE(128 * (i >> 6) + 64 + (i & 63)) & 15) << 4);
        for (int part = 0; part < 4; part++)
            byte |= (CODE(128 * ((i - 128) >> 5) + 32 * part + (i & 31)) >> 4) << 2 * part;
        return (uint8_t)byte;
    default:
        return (uint8_t)(CODE(i) | CODE(i + 16) << 4);
#undef CODE
    }
}

RIDGE_FN uint32_t block_read32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Byte i after d of a block of IQ2_XXS. */
RIDGE_FN uint8_t block_iq2_codes_byte(const uint8_t *unit, int row, int i)
{
    const int b = i >> 3, lane = (row >> 3) * 32 + (row & 7) * 4;
    uint32_t word = 0;

    if (!(i & 4))
        return unit[(lane + (i & 3)) << 4 | (b >> 2) << 3 | (b & 3)];
    for (int t = 0; t < 4; t++)
        word |= block_iq2_signs(block_read32(unit + ((lane + t) << 4 | (b >> 2) << 3 | 4)) >> (b & 3)) << 7 * t;
    word |= block_read32(unit + (block_iq2_scale_piece(row, b) | 4)) >> 28 << 28;
    return (uint8_t)(word >> 8 * (i & 3));
}

/* Byte i of the block of `row` whose first column of 32 is b, out of a unit. */
RIDGE_FN uint8_t block_byte(uint32_t format, block_layout f, const uint8_t *unit, int runs, int row, int b, int i)
{
    const uint8_t *scale = unit + block_codes_bytes(f, runs) + row * f.scale;
    const uint8_t *more = unit + block_codes_bytes(f, runs) + BLOCK_ROWS * f.scale + row * f.more;
    const int each = f.columns == 32 ? f.scale / 8 : f.scale;

    if (i >= f.scale_at && i < f.scale_at + each)
        return scale[(f.columns == 32 ? b * each : 0) + i - f.scale_at];
    if (f.more && i >= f.more_at && i < f.more_at + f.more)
        return more[i - f.more_at];
    if (format == RIDGE_IQ2_XXS)
        return block_iq2_codes_byte(unit, row, i - 2);
    if (format == RIDGE_Q5_K)
        return block_codes_byte(format, f, unit, runs, row, b, i - 16);
    return block_codes_byte(format, f, unit, runs, row, b, i - f.codes_at);
}

#endif
