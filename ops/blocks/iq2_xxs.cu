/* iq2_xxs.cu: IQ2_XXS: eight columns are an entry of a codebook of 256, and seven sign bits. Tables in shared memory
 * hold an entry as eight nibbles, the numbers of its magnitudes, and the signs as eight nibbles of 4 or 0: one OR of
 * both is what prmt selects by among three magnitudes and their negatives, four columns at a time. A table's word has
 * 32 copies, so that each lane reads a bank of its own, and entries lie 256 bytes apart, so that a byte of codes
 * becomes an address by one prmt; signs lie 128 bytes behind the codebook's entry of the same number. (As eight bytes
 * each, tables need twice the time of shared memory, and as masks of bytes a second instruction of the tensor cores.)
 * Lane t of four has entry t of a block, eight columns in a row (PAIRS). Four bits of scale of each block lie above the
 * signs, of those blocks whose scales the lane owns. */
#include "kernels.cuh"
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
};

/* And where the magnitudes lie: as a constant in the code, they would be moved to a register before every prmt. */
enum { BLOCK_IQ2_SIGNS = 128, BLOCK_IQ2_ENTRIES = 256 + 128, BLOCK_IQ2_MAGNITUDES = 255 * 256 + BLOCK_IQ2_SIGNS };

/* By whole warps: a thread makes an entry and stores its copies, the lanes to different banks each time. */
static __device__ __forceinline__ void block_fill_tables(block_iq2_xxs, char *tables)
{
    for (int i = threadIdx.x; i < BLOCK_IQ2_ENTRIES; i += blockDim.x) {
        const bool sign = i >= 256;
        uint32_t x = sign ? ridge_iq2_signs((unsigned)i - 256) : ridge_iq2_xxs_grid[i];
        char *const to = tables + (sign ? (i - 256) * 256 + BLOCK_IQ2_SIGNS : i * 256);

        if (sign) { /* to eight nibbles of one bit, or of two */
            x = (x | x << 12) & 0x000f000f;
            x = (x | x << 6) & 0x03030303;
            x = ((x | x << 3) & 0x11111111) << 2;
        } else {
            x = (x | x << 8) & 0x00ff00ff;
            x = (x | x << 4) & 0x0f0f0f0f;
            x = (x | x << 2) & 0x33333333;
        }
#pragma unroll 8
        for (uint32_t copy = 0; copy < 32; copy++)
            *(uint32_t *)(to + 4 * (copy ^ threadIdx.x % 32)) = x;
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

#pragma unroll
        for (int j = 0; j < 4; j++) { /* bits 7 j .. of the signs become bits 8 to 14 */
            const uint32_t at = j == 0 ? v.y << 8 : j == 1 ? v.y << 1 : v.y >> (7 * j - 8);
            const uint32_t entry = *(const uint32_t *)(tables + ptx_prmt(v.x, copy, 0x7704u | (uint32_t)j << 4));
            const uint32_t sign = *(const uint32_t *)(tables + BLOCK_IQ2_SIGNS + ((at & 0x7f00u) | copy));
            const uint32_t select = block_sum(sign, entry);

            codes[j][h] = ptx_prmt(plus, 0x00d5e7f8, select);
            codes[j][2 + h] = ptx_prmt(plus, 0x00d5e7f8, select >> 16);
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
