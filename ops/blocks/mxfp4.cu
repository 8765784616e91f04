/* mxfp4.cu: MXFP4: nibbles are indices of a table of 16 values, which prmt looks up four at a time. Its selector takes
 * eight bytes by three bits; with the fourth bit it gives the sign of the byte in all bits, here ones. So one prmt with
 * all four bits and one with three, XORed, are 16 + v and, for negative codes, 16 - v; the -16 goes through the start
 * of a sum. prmt takes the nibbles of two bytes in order, so that a word has two columns of each half of a block; x is
 * laid out so too (MIXED). The scale is a power of two a block. */
#include "experts.cuh"

struct block_mxfp4 {
    static const int UNIT = 2176;
    static const int CODES = 2048;
    static const int TABLES = 0;
    static const int SMALL = 1;
    static const int X = BLOCK_X_START;
    static const int OFFSET = 16;
    static const int PAIRS = 0;
    static const int MIXED = 1;
};

/* 16 and the values of four codes, of v = 0, 1, 2, 3, 4, 6, 8, 12: the low half of `code`; index: its low three bits.
 * 16 - v inverted, and what makes 16 + v of that. */
static __device__ __forceinline__ uint32_t block_e2m1_x4(uint32_t code, uint32_t index)
{
    return ptx_prmt(0xe1e3e1ff, 0xe7efe3e7, code) ^ ptx_prmt(0xf2f1f0ef, 0xfbf7f5f3, index);
}

static __device__ __forceinline__ void block_codes(block_mxfp4, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 v = *(const uint4 *)(unit + q * 1024 + h * 512 + lane * 16);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t index = w[j] & 0x77777777;

            codes[j][h] = block_e2m1_x4(w[j], index);
            codes[j][2 + h] = block_e2m1_x4(w[j] >> 16, index >> 16);
        }
    }
}

static __device__ __forceinline__ void block_own_scales(block_mxfp4, const char *unit, int lane, block_scales *s)
{
    const uint32_t e =
        *(const uint32_t *)(unit + block_mxfp4::CODES + block_own_row(lane) * 8 + block_own_run(lane) * 4);

#pragma unroll
    for (int j = 0; j < 4; j++)
        s->w[j] = ridge_block_e8m0(e >> 8 * j & 255);
}

BLOCK_KERNELS(mxfp4)
