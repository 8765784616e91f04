/* q8_0.cu: Q8_0: signed bytes, an f16 scale a block. */
#include "kernels.cuh"

struct block_q8_0 {
    static const int UNIT = 4352;
    static const int CODES = 4096;
    static const int TABLES = 0;
    static const int ZEROS = 0;
    static const int SMALL = 1;
    static const int X = BLOCK_X_PLAIN;
    static const int OFFSET = 0;
    static const int DEPTH = 4;
    static const int BULK_DEPTH = 4;
    static const int PAIRS = 0;
    static const int MIXED = 0;
    static const int APART = 0;
    static const int TOGETHER = 0;
};

static __device__ __forceinline__ void block_codes(block_q8_0, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 v = *(const uint4 *)(unit + q * 2048 + i * 1024 + h * 512 + lane * 16);

            codes[2 * i][h] = v.x;
            codes[2 * i][2 + h] = v.y;
            codes[2 * i + 1][h] = v.z;
            codes[2 * i + 1][2 + h] = v.w;
        }
}

static __device__ __forceinline__ void block_own_scales(block_q8_0, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    block_half_scales(unit + block_q8_0::CODES, lane, s);
}

BLOCK_KERNELS(q8_0)
