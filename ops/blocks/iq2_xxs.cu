/* iq2_xxs.cu: IQ2_XXS: eight columns are an entry of a codebook of 256, and seven sign bits. Tables in shared memory
 * hold both as eight nibbles, 0 .. 2 for the magnitude and 4 for minus; the sum of the two selects signed bytes by
 * prmt. Every lane has a copy of the tables in a bank of its own (48 KB in all): one copy would serve 0.6 of the rate
 * at which Hopper's memory delivers codes. Lane t of four has entry t of a block, eight columns in a row (PAIRS). Four
 * bits of scale of each block lie above the signs, of those blocks whose scales the lane owns. */
#include "experts.cuh"
#include "src/math/iq2.h"

struct block_iq2_xxs {
    static const int UNIT = 1056;
    static const int CODES = 1024;
    static const int TABLES = 49152;
    static const int SMALL = 0;
    static const int X = BLOCK_X_PLAIN;
    static const int OFFSET = 0;
    static const int PAIRS = 1;
    static const int MIXED = 0;
};

static __device__ __forceinline__ void block_fill_tables(block_iq2_xxs, char *tables)
{
    uint32_t *to = (uint32_t *)tables + threadIdx.x % 32;

    for (int i = threadIdx.x / 32; i < 384; i += blockDim.x / 32) {
        uint32_t x;

        if (i < 256) {
            x = ridge_iq2_xxs_grid[i];
            x = (x | x << 8) & 0x00ff00ff;
            x = (x | x << 4) & 0x0f0f0f0f;
            x = (x | x << 2) & 0x33333333;
        } else {
            x = ridge_iq2_signs((unsigned)i - 256);
            x = (x | x << 12) & 0x000f000f;
            x = (x | x << 6) & 0x03030303;
            x = (x | x << 3) & 0x11111111;
            x <<= 2;
        }
        to[i * 32] = x;
    }
}

/* Where this lane's copy of an entry lies in a table: `bits` bits from bit `at` on are its number. */
static __device__ __forceinline__ uint32_t block_iq2_offset(uint32_t word, int at, int bits, int lane)
{
    return ((at < 7 ? word << (7 - at) : word >> (at - 7)) & ((1u << bits) - 1) << 7) | (uint32_t)lane * 4;
}

static __device__ __forceinline__ void block_codes(block_iq2_xxs, const char *unit, const char *tables, int lane, int q,
                                                   uint32_t (*codes)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint2 v = *(const uint2 *)(unit + h * 512 + lane * 16 + q * 8);

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t select = *(const uint32_t *)(tables + block_iq2_offset(v.x, 8 * j, 8, lane)) |
                                    *(const uint32_t *)(tables + 32768 + block_iq2_offset(v.y, 7 * j, 7, lane));

            codes[j][h] = ptx_prmt(0x002b1908, 0x00d5e7f8, select);
            codes[j][2 + h] = ptx_prmt(0x002b1908, 0x00d5e7f8, select >> 16);
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
