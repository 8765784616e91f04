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
    static const int ZEROS = 128; /* between the copies of two entries */
    static const int SMALL = 0;
    static const int X = BLOCK_X_PLAIN;
    static const int OFFSET = 0;
    static const int DEPTH = 2;
    static const int WORDS = 4;
    static const int PAIRS = 1;
    static const int MIXED = 0;
    static const int APART = 1;
};

/* Where the magnitudes lie: as a constant in the code, they would be moved to a register before every prmt. */
enum { BLOCK_IQ2_MAGNITUDES = 255 * 256 + 128 };

/* This thread's first entry, which is asked for before the weights: behind them it would come late. */
static __device__ __forceinline__ uint32_t block_load_table(block_iq2_xxs)
{
    return threadIdx.x < 512 ? ridge_iq2_xxs_grid[threadIdx.x / 2] : 0;
}

/* Two threads make an entry and store 16 copies each, four at once, the lanes to different banks each time. */
static __device__ __forceinline__ void block_store_table(block_iq2_xxs, char *tables, uint32_t own)
{
    for (uint32_t i = threadIdx.x; i < 512; i += blockDim.x) {
        uint32_t x = i == threadIdx.x ? own : ridge_iq2_xxs_grid[i / 2];

        x = (x | x << 8) & 0x00ff00ff;
        x = (x | x << 4) & 0x0f0f0f0f;
        x = (x | x << 2) & 0x33333333;
#pragma unroll
        for (uint32_t copy = 0; copy < 4; copy++)
            *(uint4 *)(tables + i / 2 * 256 + i % 2 * 64 + 16 * (copy ^ i / 2 % 4)) = make_uint4(x, x, x, x);
    }
    if (threadIdx.x < 32)
        *(uint32_t *)(tables + block_iq2_xxs::ZEROS + threadIdx.x * 4) = 0;
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

static __device__ __forceinline__ void block_own_scales(block_iq2_xxs, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    const float d = __fmul_rn(ptx_f32_from_f16(*(const uint16_t *)(unit + 1024 + block_own_row(lane) * 2)), 0x1p-30f);

#pragma unroll
    for (int j = 0; j < 4; j++) { /* of the words that block_codes reads */
        const uint4 both = *(const uint4 *)(unit + (j >> 1) * 512 + lane * 16);

        s->w[j] = __fmul_rn(d, (float)(((j & 1 ? both.w : both.y) & 0xf0000000u) | 0x08000000u));
    }
}

BLOCK_KERNELS(iq2_xxs)
