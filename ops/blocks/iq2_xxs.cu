/* iq2_xxs.cu: IQ2_XXS: eight columns are an entry of a codebook of 256, and seven sign bits. Tables in shared memory
 * hold an entry as eight bytes, and the signs as a mask of eight bytes, ones where there is a minus. The sum of the
 * columns is that of all magnitudes less twice that of the masked ones (MINUS): two instructions of the tensor cores,
 * and one of logic for four codes, where that pipe is the bound. Entries lie 256 bytes apart, 16 copies each, half of
 * them signs: a lane has a copy in banks of its own, and a byte of codes becomes its address by one prmt. Lane t of
 * four has entry t of a block, eight columns in a row (PAIRS). Four bits of scale of each block lie above the signs, of
 * those blocks whose scales the lane owns. */
#include "experts.cuh"
#include "src/math/iq2.h"

struct block_iq2_xxs {
    static const int UNIT = 1056;
    static const int CODES = 1024;
    static const int TABLES = 65536;
    static const int SMALL = 0;
    static const int X = BLOCK_X_PLAIN;
    static const int OFFSET = 0;
    static const int PAIRS = 1;
    static const int MIXED = 0;
    static const int MINUS = 1;
};

/* Signs 128 bytes behind the codebook's entry of the same number. */
enum { BLOCK_IQ2_SIGNS = 128 };

static __device__ __forceinline__ void block_fill_tables(block_iq2_xxs, char *tables)
{
    char *const to = tables + threadIdx.x % 16 * 8;

#pragma unroll 4
    for (int i = threadIdx.x / 16; i < 384; i += blockDim.x / 16) {
        const bool sign = i >= 256;
        uint32_t x = sign ? ridge_iq2_signs((unsigned)i - 256) : ridge_iq2_xxs_grid[i];

        if (sign) { /* eight nibbles of one bit, or of two: what prmt selects by */
            x = (x | x << 12) & 0x000f000f;
            x = (x | x << 6) & 0x03030303;
            x = (x | x << 3) & 0x11111111;
        } else {
            x = (x | x << 8) & 0x00ff00ff;
            x = (x | x << 4) & 0x0f0f0f0f;
            x = (x | x << 2) & 0x33333333;
        }
        *(uint2 *)(to + (sign ? (i - 256) * 256 + BLOCK_IQ2_SIGNS : i * 256)) =
            make_uint2(ptx_prmt(sign ? 0xff00 : 0x002b1908, 0, x), ptx_prmt(sign ? 0xff00 : 0x002b1908, 0, x >> 16));
    }
}

static __device__ __forceinline__ void block_codes(block_iq2_xxs, const char *unit, const char *tables, int lane, int q,
                                                   uint32_t (*codes)[8])
{
    const uint32_t copy = (uint32_t)lane % 16 * 8, signs = copy | BLOCK_IQ2_SIGNS;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint2 v = *(const uint2 *)(unit + h * 512 + lane * 16 + q * 8);

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = 7 * j; /* of the signs' number, which becomes bits 8 to 14 */
            const uint2 g = *(const uint2 *)(tables + ptx_prmt(v.x, copy, 0x7704u | (uint32_t)j << 4));
            const uint2 m =
                *(const uint2 *)(tables + (((at < 8 ? v.y << (8 - at) : v.y >> (at - 8)) & 0x7f00u) | signs));

            codes[j][h] = g.x;
            codes[j][2 + h] = g.y;
            codes[j][4 + h] = g.x & m.x;
            codes[j][6 + h] = g.y & m.y;
        }
    }
}

static __device__ __forceinline__ void block_own_scales(block_iq2_xxs, const char *unit, int lane, block_scales *s)
{
    const float d = __fmul_rn(ptx_f32_from_f16(*(const uint16_t *)(unit + 1024 + block_own_row(lane) * 2)), 0.125f);

#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t word = *(const uint32_t *)(unit + (j >> 1) * 512 + lane * 16 + (j & 1) * 8 + 4);

        s->w[j] = __fmul_rn(d, (float)(2 * (word >> 28) + 1));
    }
}

BLOCK_KERNELS(iq2_xxs)
