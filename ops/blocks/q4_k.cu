/* q4_k.cu: Q4_K: nibbles, 6-bit scales and minima a block, f16 d and dmin for eight. */
#include "kernels.cuh"

struct block_q4_k {
    static const int UNIT = 2304;
    static const int CODES = 2048;
    static const int TABLES = 0;
    static const int ZEROS = 0;
    static const int SMALL = 0;
    static const int X = BLOCK_X_SUM;
    static const int OFFSET = 0;
    static const int DEPTH = 4;
    static const int BULK_DEPTH = 4;
    static const int PAIRS = 0;
    static const int MIXED = 0;
    static const int APART = 0;
    static const int TOGETHER = 0;
};

static __device__ __forceinline__ void block_codes(block_q4_k, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    block_nibbles(unit, lane, q, codes);
}

static __device__ __forceinline__ void block_own_scales(block_q4_k, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    block_k_scales(unit + block_q4_k::CODES, lane, s);
}

BLOCK_KERNELS(q4_k)
