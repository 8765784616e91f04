/* mma.cuh: two blocks of Q8_0 weights by mma.sync, as matmul_mma.cu and the experts of ops/moe have them. A lane
 * (g = lane / 4, t = lane % 4) has 16 bytes of row g: quarter t of two blocks, where quarters 0 and 1 are the first
 * block. One m16n8k32 takes 8 bytes of every lane. Its 16 rows are the same 8 tokens twice: rows 0 to 7 have zeros for
 * x where the second block lies, rows 8 to 15 where the first lies. So two instructions compute the dots of both blocks
 * for 8 tokens and 8 weight rows, and no weight moves between lanes. The integer sum starts at 0x4b400000, the bits of
 * 12582912.0f: read as a float, less 12582912, it is exactly the dot. */
#ifndef RIDGE_Q8_0_MMA_CUH
#define RIDGE_Q8_0_MMA_CUH

#include "cuda/num.cuh"

/* Four scales, or two and two zeros, whose blocks change no bit. */
static __device__ __forceinline__ uint2 q8_0_load_words(const uint8_t *from, bool whole)
{
    return make_uint2(*(const uint32_t *)from, whole ? *(const uint32_t *)(from + 4) : 0);
}

/* Adds two blocks to acc: token g, weight rows 2t and 2t + 1. x: quarter t of token g, whose scales are s0 and s1;
 * first: lane % 4 < 2; pair0, pair1: the two blocks' f16 scales of rows 2t and 2t + 1. */
static __device__ __forceinline__ void q8_0_mma_blocks(uint4 x, bool first, float s0, float s1, uint4 code,
                                                       uint32_t pair0, uint32_t pair1, float *acc)
{
    const uint32_t lower[4] = {first ? x.x : 0, first ? 0 : x.x, first ? x.y : 0, first ? 0 : x.y};
    const uint32_t upper[4] = {first ? x.z : 0, first ? 0 : x.z, first ? x.w : 0, first ? 0 : x.w};
    const uint32_t b0[2] = {code.x, code.y}, b1[2] = {code.z, code.w};
    int32_t d[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};

    ptx_mma_s8(d, lower, b0);
    ptx_mma_s8(d, upper, b1);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float w0, w1;

        num_unpack2<RIDGE_F16>(r ? pair1 : pair0, &w0, &w1);
        acc[r] = __fmaf_rn(__fmul_rn(w0, s0), __fadd_rn(__int_as_float(d[r]), -12582912.0f), acc[r]);
        acc[r] = __fmaf_rn(__fmul_rn(w1, s1), __fadd_rn(__int_as_float(d[2 + r]), -12582912.0f), acc[r]);
    }
}

#endif
