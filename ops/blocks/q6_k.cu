/* q6_k.cu: Q6_K: nibbles and a plane of two high bits, less 32 through the start of a sum; signed sub-scales of
 * 16 columns, f16 d for 256. */
#include "kernels.cuh"

struct block_q6_k {
    static const int UNIT = 3360;
    static const int CODES = 3072;
    static const int TABLES = 0;
    static const int ZEROS = 0;
    static const int SMALL = 0;
    static const int X = BLOCK_X_START_16;
    static const int OFFSET = 32;
    static const int DEPTH = 4;
    static const int BULK_DEPTH = 4;
    static const int PAIRS = 0;
    static const int MIXED = 0;
    static const int APART = 0;
    static const int TOGETHER = 1;
};

static __device__ __forceinline__ void block_codes(block_q6_k, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
    block_nibbles(unit, lane, q, codes);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint2 v = *(const uint2 *)(unit + 2048 + h * 512 + lane * 16 + q * 8);

#pragma unroll
        for (int slot = 0; slot < 8; slot++) {
            const uint32_t high = slot % 2 ? v.y : v.x;
            const int at = slot / 2 * 2;

            codes[slot / 2][slot % 2 * 2 + h] |= (at <= 4 ? high << (4 - at) : high >> 2) & 0x30303030;
        }
    }
}

static __device__ __forceinline__ void block_own_scales(block_q6_k, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    const uint2 v = *(const uint2 *)(unit + 3072 + block_own_row(lane) * 16 + block_own_run(lane) * 8);
    const float d = ptx_f32_from_f16(*(const uint16_t *)(unit + 3328 + block_own_row(lane) * 2));

#pragma unroll
    for (int j = 0; j < 4; j++) { /* two signed bytes to 16 bits each */
        const uint32_t word = j < 2 ? v.x : v.y, pair = j & 1 ? word >> 16 : word;

        s->w[j] = d;
        s->sub[j] = ptx_prmt(pair, 0, 0x9180);
    }
}

BLOCK_KERNELS(q6_k)
