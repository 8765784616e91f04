/* cpu_decode.c: GGUF blocks to integers and scales, as the C reference takes them: one function a format. Scales times
 * sub-scales, and minima, are exact in f32 (f16 has 11 bits, the others 6 at most); of formats whose sub-scales go with
 * 16 columns the sub-scale stays an integer. */
#include <string.h>

#include "cpu.h"
#include "cpu/num.h"
#include "src/math/iq2.h"

static float half(const uint8_t *at)
{
    uint16_t bits;

    memcpy(&bits, at, sizeof bits);
    return ridge_f32_from_f16(bits);
}

static void nibbles(const uint8_t *from, int offset, int8_t *code)
{
    for (int i = 0; i < 16; i++) {
        code[i] = (int8_t)((from[i] & 15) - offset);
        code[i + 16] = (int8_t)((from[i] >> 4) - offset);
    }
}

static void decode_mxfp4(const uint8_t *block, block_values *to)
{
    to->scale = ridge_block_e8m0(block[0]);
    for (int i = 0; i < 16; i++) {
        to->code[i] = (int8_t)ridge_block_e2m1(block[1 + i] & 15);
        to->code[i + 16] = (int8_t)ridge_block_e2m1(block[1 + i] >> 4);
    }
}

/* Codes 32 b .. of a block of 256: `bits` of each byte from `low` on, those of block b next to those of block b - 1,
 * until a byte has no more. */
static void codes_of(const uint8_t *low, int bits, int b, int8_t *code)
{
    const int each = 8 / bits, shift = bits * (b % each);

    for (int i = 0; i < 32; i++)
        code[i] = (int8_t)(low[32 * (b / each) + i] >> shift & ((1 << bits) - 1));
}

/* d, dmin and eight 6-bit scales and minima in 12 bytes, of Q4_K and Q5_K. */
static void scales_of_k(const uint8_t *block, int b, block_values *to)
{
    const uint8_t *packed = block + 4;
    int s, m;

    if (b < 4) {
        s = packed[b] & 63;
        m = packed[b + 4] & 63;
    } else {
        s = (packed[b + 4] & 15) | packed[b - 4] >> 6 << 4;
        m = packed[b + 4] >> 4 | packed[b] >> 6 << 4;
    }
    to->scale = half(block) * (float)s;
    to->min[0] = to->min[1] = -(half(block + 2) * (float)m);
}

static void decode_q2_k(const uint8_t *block, int b, block_values *to)
{
    codes_of(block + 16, 2, b, to->code);
    to->scale = half(block + 80);
    for (int i = 0; i < 2; i++) {
        to->sub[i] = block[2 * b + i] & 15;
        to->min[i] = -(half(block + 82) * (float)(block[2 * b + i] >> 4));
    }
}

static void decode_q6_k(const uint8_t *block, int b, block_values *to)
{
    const uint8_t *low = block + 64 * (b / 4) + 32 * (b % 2);

    to->scale = half(block + 208);
    for (int i = 0; i < 2; i++)
        to->sub[i] = (int8_t)block[192 + 2 * b + i];
    codes_of(block + 128, 2, b, to->code); /* the high bits */
    for (int i = 0; i < 32; i++)
        to->code[i] = (int8_t)((to->code[i] << 4 | (low[i] >> 4 * (b / 2 % 2) & 15)) - 32);
}

static void decode_iq2_xxs(const uint8_t *block, int b, block_values *to)
{
    const uint8_t *at = block + 2 + 8 * b;
    const uint32_t word = block_read32(at + 4);

    to->scale = half(block) * (float)(2 * (word >> 28) + 1) * 0.125f;
    for (int j = 0; j < 4; j++) {
        const unsigned grid = ridge_iq2_xxs_grid[at[j]], signs = ridge_iq2_signs(word >> 7 * j & 127);

        for (int i = 0; i < 8; i++) {
            const int size = ridge_iq2_magnitude(grid >> 2 * i & 3);

            to->code[8 * j + i] = (int8_t)(signs >> i & 1 ? -size : size);
        }
    }
}

void ridge_block_decode(uint32_t format, const uint8_t *block, int b, block_values *to)
{
    to->sub[0] = to->sub[1] = 1;
    to->min[0] = to->min[1] = 0;
    switch (format) {
    case RIDGE_Q4_0:
        to->scale = half(block);
        nibbles(block + 2, 8, to->code);
        break;
    case RIDGE_Q4_1:
        to->scale = half(block);
        to->min[0] = to->min[1] = half(block + 2);
        nibbles(block + 4, 0, to->code);
        break;
    case RIDGE_Q8_0:
        to->scale = half(block);
        memcpy(to->code, block + 2, 32);
        break;
    case RIDGE_MXFP4:
        decode_mxfp4(block, to);
        break;
    case RIDGE_Q2_K:
        decode_q2_k(block, b, to);
        break;
    case RIDGE_Q4_K:
        scales_of_k(block, b, to);
        codes_of(block + 16, 4, b, to->code);
        break;
    case RIDGE_Q5_K:
        scales_of_k(block, b, to);
        codes_of(block + 48, 4, b, to->code);
        for (int i = 0; i < 32; i++)
            to->code[i] = (int8_t)(to->code[i] | (block[16 + i] >> b & 1) << 4);
        break;
    case RIDGE_Q6_K:
        decode_q6_k(block, b, to);
        break;
    default:
        decode_iq2_xxs(block, b, to);
        break;
    }
}

block_minima ridge_block_minima(uint32_t format)
{
    return format == RIDGE_Q4_1 || format == RIDGE_Q4_K || format == RIDGE_Q5_K ? BLOCK_MIN_32
           : format == RIDGE_Q2_K                                               ? BLOCK_MIN_16
                                                                                : BLOCK_NO_MIN;
}
