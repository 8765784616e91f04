/* block32.c: FP8 in blocks of 32 x 32 whose scales are powers of two, stored as E8M0: each block is what quantize_fp8
 * gives for it as a whole tensor with RIDGE_POW2. And which blocks of FP8 have kept MXFP4's values without any error.
 */
#include <math.h>
#include <string.h>

#include "cpu/num.h"
#include "quantize.h"

enum { SIDE = 32 };

int64_t fp8_block(const plan_tensor *t)
{
    return t->action == ACTION_FP8_BLOCK128 ? 128 : t->action == ACTION_FP8_BLOCK32 ? SIDE : 0;
}

/* The smallest power of two, 2^-126 at least, that takes `most` to 448 or below; as E8M0. 255: NaN. */
static uint8_t scale_of(uint32_t most)
{
    int exponent;
    const float share = frexpf(ridge_float(most), &exponent);

    if (most >= 0x7f800000u)
        return 255;
    exponent = most == 0 ? 0 : share <= 0.875f ? exponent - 9 : exponent - 8;
    return (uint8_t)(exponent < -126 ? 1 : exponent + 127);
}

/* Rows of one block: codes, and what they decode to. */
static uint8_t quantise_block(const float *x, int64_t cols, int64_t rows, int64_t wide, uint8_t *code, float *decoded)
{
    uint32_t most = 0;
    uint8_t scale;
    float s, r;

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < wide; j++) {
            const uint32_t size = ridge_bits(x[i * cols + j]) & 0x7fffffffu;

            most = size > most ? size : most;
        }
    scale = scale_of(most);
    s = scale == 255 ? NAN : ldexpf(1.0f, scale - 127);
    r = 1.0f / s;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < wide; j++) {
            const int64_t at = i * cols + j;

            code[at] = ridge_fp8_from_f32(x[at] * r, 0);
            if (scale == 255)
                code[at] = 0x7f;
            if (decoded)
                decoded[at] = ridge_f32_from_fp8(code[at], 0) * s;
        }
    return scale;
}

void block32_quantise(const float *x, int64_t rows, int64_t cols, uint8_t *code, uint8_t *scale, float *decoded)
{
    const int64_t across = (cols + SIDE - 1) / SIDE;

    for (int64_t i = 0; i < rows; i += SIDE)
        for (int64_t j = 0; j < cols; j += SIDE)
            scale[i / SIDE * across + j / SIDE] = quantise_block(
                x + i * cols + j, cols, rows - i < SIDE ? rows - i : SIDE, cols - j < SIDE ? cols - j : SIDE,
                code + i * cols + j, decoded ? decoded + i * cols + j : NULL);
}

void block128_decode(const uint8_t *code, const float *scale, int64_t rows, int64_t cols, float *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            to[i * cols + j] =
                ridge_f32_from_fp8(code[i * cols + j], 0) * scale[i / 128 * ((cols + 127) / 128) + j / 128];
}

static bool same_block(const float *x, const float *y, int64_t cols, int64_t rows, int64_t wide)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < wide; j++)
            if (!(x[i * cols + j] == y[i * cols + j]))
                return false;
    return true;
}

void exact_count(const float *x, const float *y, int64_t rows, int64_t cols, int64_t side, error_stats *s)
{
    for (int64_t i = 0; i < rows; i += side)
        for (int64_t j = 0; j < cols; j += side) {
            s->blocks++;
            s->inexact += !same_block(x + i * cols + j, y + i * cols + j, cols, rows - i < side ? rows - i : side,
                                      cols - j < side ? cols - j : side);
        }
}
