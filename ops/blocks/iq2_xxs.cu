/* iq2_xxs.cu: IQ2_XXS: eight columns are an entry of a codebook of 256, and seven sign bits. A table in shared memory
 * holds an entry as eight nibbles that say which of three magnitudes each column has; with a bit for the sign a nibble
 * is what prmt selects by among the magnitudes and their negatives, four columns at a time. A word of the table has 32
 * copies, 128 bytes an entry, so that each lane reads a bank of its own, and dp4a makes an address of a byte of codes.
 * (As eight bytes each, entries need twice the time of shared memory.)
 *
 * Signs come out of their parities (layout.h), four entries at once: those of block j are bit j of each nibble. So that
 * they need no shift, the sign takes the place of bit j, and the other two bits of three tell magnitudes apart
 * whichever that is: 000, 011 and 101 differ in two bits each. What prmt selects from then depends on j. Lane t of four
 * has entry t of a block, eight columns in a row (PAIRS). Four bits of scale of each block lie above the parities, of
 * those blocks whose scales the lane owns. */
#include "kernels.cuh"
#include "src/math/iq2.h"

struct block_iq2_xxs {
    static const int UNIT = 1056;
    static const int CODES = 1024;
    static const int TABLES = 33024;
    static const int ZEROS = 32768;
    static const int SMALL = 0;
    static const int X = BLOCK_X_PLAIN;
    static const int OFFSET = 0;
    static const int DEPTH = 2;
    static const int BULK_DEPTH = 3;
    static const int PAIRS = 1;
    static const int MIXED = 0;
    static const int APART = 2;
    static const int TOGETHER = 1;
};

/* Where the lower halves lie of what prmt selects from: as constants in the code, they would be moved to a register
 * before every prmt. */
enum { BLOCK_IQ2_MAGNITUDES = 32768 + 128 };

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
        x = (x | x << 2) & 0x33333333; /* 0, 1 or 2, to 000, 011 or 101 */
        x = (x & 0x11111111) * 3 | (x & 0x22222222) >> 1 | (x & 0x22222222) << 1;
#pragma unroll
        for (uint32_t copy = 0; copy < 4; copy++)
            *(uint4 *)(tables + i / 2 * 128 + i % 2 * 64 + 16 * (copy ^ i / 2 % 4)) = make_uint4(x, x, x, x);
    }
    if (threadIdx.x < 32)
        *(uint32_t *)(tables + block_iq2_xxs::ZEROS + threadIdx.x * 4) = 0;
    if (threadIdx.x == 0)
        *(uint4 *)(tables + BLOCK_IQ2_MAGNITUDES) = make_uint4(0xe719f808, 0xe7f81908, 0x19002b08, 0);
}

/* Selectors of block j: the sign in place of bit j, the entry's bits in the others. One instruction, which the compiler
 * does not find. */
static __device__ __forceinline__ uint32_t block_iq2_select(uint32_t entry, uint32_t signs, uint32_t mask)
{
    uint32_t select;

    asm("lop3.b32 %0, %1, %2, %3, 0xd8;" : "=r"(select) : "r"(entry), "r"(signs), "r"(mask));
    return select;
}

static __device__ __forceinline__ void block_codes(block_iq2_xxs, const char *unit, const char *tables, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    const uint4 low = *(const uint4 *)(tables + BLOCK_IQ2_MAGNITUDES);

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 both = *(const uint4 *)(unit + h * 512 + lane * 16);
        const uint2 v = q ? make_uint2(both.z, both.w) : make_uint2(both.x, both.y);
        const uint32_t signs = (v.y & 0x0fffffffu) ^ v.y << 4; /* bit 4 k + j: column k of block j */

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t at = __dp4a(v.x, 128u << 8 * j, (uint32_t)lane * 4);
            const uint32_t mask = 0x11111111u << (j < 3 ? j : 2);
            const uint32_t select =
                block_iq2_select(*(const uint32_t *)(tables + at), j < 3 ? signs : signs >> 1, mask);
            const uint32_t plus = j == 0 ? low.x : j == 1 ? low.y : low.z;
            const uint32_t more = j == 0 ? 0x0000d52b : j == 1 ? 0xd5002b00 : 0xe700d5f8;

            codes[j][h] = ptx_prmt(plus, more, select);
            codes[j][2 + h] = ptx_prmt(plus, more, block_right_16(select));
        }
    }
}

/* The upper four bits of a word and a half. As the last bits of 8388608.0f, where one instruction puts them (lea.hi),
 * they need neither a mask nor a conversion. */
static __device__ __forceinline__ float block_iq2_scale(uint32_t word)
{
    uint32_t scale;

    asm("mad.hi.u32 %0, %1, 16, 0x4b000000;" : "=r"(scale) : "r"(word));
    return __fadd_rn(__uint_as_float(scale), -8388607.5f);
}

static __device__ __forceinline__ void block_own_scales(block_iq2_xxs, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    const float d = __fmul_rn(ptx_f32_from_f16(*(const uint16_t *)(unit + 1024 + block_own_row(lane) * 2)), 0.25f);

#pragma unroll
    for (int j = 0; j < 4; j++) { /* of the words that block_codes reads */
        const uint4 both = *(const uint4 *)(unit + (j >> 1) * 512 + lane * 16);

        s->w[j] = __fmul_rn(d, block_iq2_scale(j & 1 ? both.w : both.y));
    }
}

BLOCK_KERNELS(iq2_xxs)
