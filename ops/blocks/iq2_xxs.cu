/* iq2_xxs.cu: IQ2_XXS: eight columns are an entry of a codebook of 256, and seven sign bits. A table in shared memory
 * holds an entry as eight nibbles, the numbers of its magnitudes; with 4 added where a sign is minus they are what prmt
 * selects by among three magnitudes and their negatives, four columns at a time. A word of the table has 32 copies, so
 * that each lane reads a bank of its own, and entries lie 256 bytes apart, so that a byte of codes becomes an address
 * by one prmt. (As eight bytes each, entries need twice the time of shared memory.) Signs come out of their parities
 * (layout.h), four entries at once. Lane t of four has entry t of a block, eight columns in a row (PAIRS). Four bits of
 * scale of each block lie above the parities, of those blocks whose scales the lane owns. */
#include "kernels.cuh"
#include "src/math/iq2.h"

struct block_iq2_xxs {
    static const int UNIT = 1056;
    static const int CODES = 1024;
    static const int TABLES = 65536;
    static const int SMALL = 0;
    static const int X = BLOCK_X_PLAIN;
    static const int OFFSET = 0;
    static const int DEPTH = 2;
    static const int WORDS = 4;
    static const int PAIRS = 1;
    static const int MIXED = 0;
};

/* Where the magnitudes lie: as a constant in the code, they would be moved to a register before every prmt. */
enum { BLOCK_IQ2_MAGNITUDES = 255 * 256 + 128 };

/* By whole warps: four threads make an entry and store eight copies each, the lanes to different banks each time. */
static __device__ __forceinline__ void block_fill_tables(block_iq2_xxs, char *tables)
{
    for (int i = threadIdx.x; i < 4 * 256; i += blockDim.x) {
        const int first = i % 4 * 8, skew = i / 4 % 8;
        uint32_t x = ridge_iq2_xxs_grid[i / 4];

        x = (x | x << 8) & 0x00ff00ff;
        x = (x | x << 4) & 0x0f0f0f0f;
        x = (x | x << 2) & 0x33333333;
#pragma unroll
        for (int copy = 0; copy < 8; copy++)
            *(uint32_t *)(tables + i / 4 * 256 + 4 * (first + (copy ^ skew))) = x;
    }
    if (threadIdx.x == 0)
        *(uint32_t *)(tables + BLOCK_IQ2_MAGNITUDES) = 0x002b1908;
}

static __device__ __forceinline__ void block_codes(block_iq2_xxs, const char *unit, const char *tables, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    const uint32_t copy = (uint32_t)lane * 4, plus = *(const uint32_t *)(tables + BLOCK_IQ2_MAGNITUDES);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 both = *(const uint4 *)(unit + h * 512 + lane * 16);
        const uint2 v = q ? make_uint2(both.z, both.w) : make_uint2(both.x, both.y);
        const uint32_t signs = (v.y & 0x0fffffffu) ^ v.y << 4; /* bit 4 k + j: column k of block j */

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t entry = *(const uint32_t *)(tables + ptx_prmt(v.x, copy, 0x7704u | (uint32_t)j << 4));
            const uint32_t select = ((j < 3 ? signs << (2 - j) : signs >> 1) & 0x44444444u) | entry;

            codes[j][h] = ptx_prmt(plus, 0x00d5e7f8, select);
            codes[j][2 + h] = ptx_prmt(plus, 0x00d5e7f8, block_right_16(select));
        }
    }
}

static __device__ __forceinline__ void block_own_scales(block_iq2_xxs, const char *unit, int lane, block_scales *s)
{
    const float d = __fmul_rn(ptx_f32_from_f16(*(const uint16_t *)(unit + 1024 + block_own_row(lane) * 2)), 0.125f);

#pragma unroll
    for (int j = 0; j < 4; j++) { /* of the words that block_codes reads */
        const uint4 both = *(const uint4 *)(unit + (j >> 1) * 512 + lane * 16);

        s->w[j] = __fmul_rn(d, (float)(2 * ((j & 1 ? both.w : both.y) >> 28) + 1));
    }
}

BLOCK_KERNELS(iq2_xxs)
