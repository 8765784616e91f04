/* q2_k.cu: Q2_K: two bits, 4-bit sub-scales and minima of 16 columns, f16 d and dmin for 256. Codes of odd blocks stay
 * two bits above their place, as unsigned numbers, so that their sums are four times what they should be: block_step_16
 * divides. Sums of 16 columns then fit 16 bits, and codes times sub-scales, 180 at most, a byte. */
#include "kernels.cuh"

struct block_q2_k {
    static const int UNIT = 1344;
    static const int CODES = 1024;
    static const int TABLES = 0;
    static const int ZEROS = 0;
    static const int SMALL = 0;
    static const int X = BLOCK_X_SUM_16;
    static const int OFFSET = 0;
    static const int DEPTH = 2;
    static const int BULK_DEPTH = 2;
    static const int PAIRS = 0;
    static const int MIXED = 0;
    static const int APART = 2;
    static const int TOGETHER = 0;
};

static __device__ __forceinline__ void block_codes(block_q2_k, const char *unit, const char *, int lane, int q,
                                                   uint32_t (*codes)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 both = *(const uint4 *)(unit + h * 512 + lane * 16);
        const uint2 v = q ? make_uint2(both.z, both.w) : make_uint2(both.x, both.y);

#pragma unroll
        for (int j = 0; j < 4; j++) {
            codes[j][h] = (j < 2 ? v.x : v.x >> 4) & 0x03030303u << 2 * (j & 1);
            codes[j][2 + h] = (j < 2 ? v.y : v.y >> 4) & 0x03030303u << 2 * (j & 1);
        }
    }
}

static __device__ __forceinline__ void block_own_scales(block_q2_k, const char *unit, const char *, int lane,
                                                        block_scales *s)
{
    const uint2 v = *(const uint2 *)(unit + 1024 + block_own_row(lane) * 16 + block_own_run(lane) * 8);
    const uint32_t d = *(const uint32_t *)(unit + 1280 + block_own_row(lane) * 4);

#pragma unroll
    for (int i = 0; i < 2; i++) { /* scales in the low nibbles of two bytes, minima in the high ones */
        s->subs[i] = (i ? v.y : v.x) & 0x0f0f0f0f;
        s->mins[i] = (i ? v.y : v.x) >> 4 & 0x0f0f0f0f;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        s->w[j] = block_low_half(d);
        s->m[j] = block_high_half(d);
        s->sub[j] = ptx_prmt(s->subs[j >> 1], s->mins[j >> 1], j & 1 ? 0x7632 : 0x5410);
    }
}

BLOCK_KERNELS(q2_k)
