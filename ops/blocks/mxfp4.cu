/* mxfp4.cu: MXFP4: nibbles are indices of a table of 16 values, which prmt looks up four at a time. Its selector takes
 * eight bytes by three bits; with the fourth bit it gives the sign of the byte in all bits, here zeros. So one prmt
 * with three bits gives 16 - v, one with all four 2 v, for negative codes 0. Their sum is 16 + v or 16 - v: four sums
 * on the multiplier run beside permutes, another product on tensor cores would not. The 16 goes away with 12582912.
 * prmt takes the nibbles of two bytes in order, so that a word has two columns of each half of a block; x is laid out
 * so too (MIXED). The scale is a power of two a block. */
#include "kernels.cuh"

struct block_mxfp4 {
    static const int UNIT = 2176;
    static const int CODES = 2048;
    static const int TABLES = 1280;
    static const int ZEROS = 128;
    static const int SMALL = 1;
    static const int X = BLOCK_X_START;
    static const int OFFSET = 16;
    static const int DEPTH = 2;
    static const int BULK_DEPTH = 3;
    static const int PAIRS = 0;
    static const int MIXED = 1;
    static const int APART = 1;
    static const int TOGETHER = 0;
};

/* Where 2^(e - 128) lies for all e: subnormal numbers would want a branch. */
enum { BLOCK_MXFP4_SCALES = 256 };

/* The lower halves of both tables, which prmt wants in registers: as constants in the code they would be moved there
 * from uniform registers before every one. */
static __device__ __forceinline__ void block_store_table(block_mxfp4, char *tables, uint32_t)
{
    if (threadIdx.x == 0)
        *(uint2 *)tables = make_uint2(0x06040200, 0x0d0e0f10);
    if (threadIdx.x < 32)
        *(uint32_t *)(tables + block_mxfp4::ZEROS + threadIdx.x * 4) = 0;
    for (uint32_t e = threadIdx.x; e < 256; e += blockDim.x)
        *(float *)(tables + BLOCK_MXFP4_SCALES + e * 4) = ridge_block_e8m0(e);
}

static __device__ __forceinline__ void block_codes(block_mxfp4, const char *unit, const char *tables, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    const uint2 low = *(const uint2 *)tables;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 v = *(const uint4 *)(unit + q * 1024 + h * 512 + lane * 16);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t index = w[j] & 0x77777777, right = block_right_16(w[j]), right_index = block_right_16(index);

            codes[j][h] = block_sum(ptx_prmt(low.y, 0x04080a0c, index), ptx_prmt(low.x, 0x18100c08, w[j]));
            codes[j][2 + h] = block_sum(ptx_prmt(low.y, 0x04080a0c, right_index), ptx_prmt(low.x, 0x18100c08, right));
        }
    }
}

static __device__ __forceinline__ void block_own_scales(block_mxfp4, const char *unit, const char *tables, int lane,
                                                        block_scales *s)
{
    const uint32_t e =
        *(const uint32_t *)(unit + block_mxfp4::CODES + block_own_row(lane) * 8 + block_own_run(lane) * 4);

#pragma unroll
    for (int j = 0; j < 4; j++)
        s->w[j] = *(const float *)(tables + BLOCK_MXFP4_SCALES + ((j ? e >> (8 * j - 2) : e << 2) & 1020));
}

BLOCK_KERNELS(mxfp4)
