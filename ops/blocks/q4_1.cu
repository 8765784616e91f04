/* q4_1.cu: Q4_1: nibbles, an f16 scale and an f16 minimum a block. */
#include "kernels.cuh"

struct block_q4_1 {
    static const int UNIT = 2560;
    static const int CODES = 2048;
    static const int TABLES = 0;
    static const int ZEROS = 0;
    static const int SMALL = 1;
    static const int X = BLOCK_X_SUM;
    static const int OFFSET = 0;
    static const int DEPTH = 4;
    static const int BULK_DEPTH = 4;
    static const int PAIRS = 0;
    static const int MIXED = 0;
    static const int APART = 0;
    static const int TOGETHER = 0;
};

static __device__ __forceinline__ void block_codes(block_q4_1, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    block_nibbles(unit, lane, q, codes);
}

static __device__ __forceinline__ void block_own_scales(block_q4_1, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    const uint4 v = *(const uint4 *)(unit + block_q4_1::CODES + block_own_row(lane) * 32 + block_own_run(lane) * 16);
    const uint32_t pair[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
    for (int j = 0; j < 4; j++) {
        s->w[j] = block_low_half(pair[j]);
        s->m[j] = block_high_half(pair[j]);
    }
}

BLOCK_KERNELS(q4_1)
