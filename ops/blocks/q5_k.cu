/* q5_k.cu: Q5_K: Q4_K with a fifth bit, in a plane of its own: bit s of each byte belongs to slot s. */
#include "kernels.cuh"

struct block_q5_k {
    static const int UNIT = 2816;
    static const int CODES = 2560;
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

static __device__ __forceinline__ void block_codes(block_q5_k, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    block_nibbles(unit, lane, q, codes);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t high = *(const uint32_t *)(unit + 2048 + h * 256 + lane * 8 + q * 4);

#pragma unroll
        for (int slot = 0; slot < 8; slot++)
            codes[slot / 2][slot % 2 * 2 + h] |= (slot <= 4 ? high << (4 - slot) : high >> (slot - 4)) & 0x10101010;
    }
}

static __device__ __forceinline__ void block_own_scales(block_q5_k, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    block_k_scales(unit + block_q5_k::CODES, lane, s);
}

BLOCK_KERNELS(q5_k)
