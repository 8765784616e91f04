/* mxfp4.cu: MXFP4: nibbles are indices of a table of 16 values, which prmt looks up four at a time: magnitudes
 * of both signs by the low three bits, then a choice by the high one. It takes the nibbles of two bytes in order, so
 * that a word has two columns of each half of a block; x is laid out so too (MIXED). The scale is a power of two a
 * block. */
#include "mma.cuh"

struct block_mxfp4 {
    static const int UNIT = 2176;
    static const int CODES = 2048;
    static const int TABLES = 0;
    static const int SMALL = 1;
    static const int X = BLOCK_X_PLAIN;
    static const int OFFSET = 0;
    static const int PAIRS = 0;
    static const int MIXED = 1;
};

/* Four values, for the nibbles of the low half of `index`; sign: a nibble i, or i + 4 where value i is negative. */
static __device__ __forceinline__ uint32_t block_e2m1_x4(uint32_t index, uint32_t sign)
{
    const uint32_t plus = ptx_prmt(0x03020100, 0x0c080604, index), minus = ptx_prmt(0xfdfeff00, 0xf4f8fafc, index);

    return ptx_prmt(plus, minus, sign);
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
            const uint32_t index = w[j] & 0x77777777, sign = (w[j] >> 1 & 0x44444444) | 0x32103210;

            codes[j][h] = block_e2m1_x4(index, sign);
            codes[j][2 + h] = block_e2m1_x4(index >> 16, sign >> 16);
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
