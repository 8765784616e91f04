/* q4_0.cu: Q4_0: nibbles less 8, the -8 through the start of a sum; an f16 scale a block. */
#include "kernels.cuh"

struct block_q4_0 {
    static const int UNIT = 2304;
    static const int CODES = 2048;
    static const int TABLES = 0;
    static const int ZEROS = 0;
    static const int SMALL = 1;
    static const int X = BLOCK_X_START;
    static const int OFFSET = 8;
    static const int DEPTH = 4;
    static const int BULK_DEPTH = 4;
    static const int PAIRS = 0;
    static const int MIXED = 0;
    static const int APART = 0;
    static const int TOGETHER = 0;
};

static __device__ __forceinline__ void block_codes(block_q4_0, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    block_nibbles(unit, lane, q, codes);
}

static __device__ __forceinline__ void block_own_scales(block_q4_0, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    block_half_scales(unit + block_q4_0::CODES, lane, s);
}

BLOCK_KERNELS(q4_0)
