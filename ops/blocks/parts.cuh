/* parts.cuh: what formats share in unpacking: which row and run a lane owns, nibbles, scales. */
#ifndef RIDGE_BLOCKS_PARTS_CUH
#define RIDGE_BLOCKS_PARTS_CUH

#include "args.cuh"

/* What a lane owns: scales w and minima m of four blocks of a row. With sub-scales: d, dmin and packed sub-scales. */
typedef struct block_scales {
    float w[4], m[4];
    uint32_t sub[4];
    uint32_t subs[2], mins[2]; /* of Q2_K, bytes of two blocks each, for one token */
} block_scales;

/* w >> 16 without the pipe of logic and permutes, which is the busiest: the upper half times 1. A high product, which
 * shifts by any number there, takes twice as long, and with what else that pipe has is slower than a plain shift. */
static __device__ __forceinline__ uint32_t block_right_16(uint32_t w)
{
    return __dp2a_lo(w, 0x100u, 0u);
}

/* 1, unknown to the compiler: a product with it goes to the multiplier, a sum may not. */
static __constant__ uint32_t block_one = 1;

static __device__ __forceinline__ uint32_t block_sum(uint32_t a, uint32_t b)
{
    return a * block_one + b;
}

/* codes[j][h] and codes[j][2 + h]: columns 4 t .. and 16 + 4 t .. of block j of a run, of rows g (h = 0) and g + 8. */
static __device__ __forceinline__ void block_nibbles(const char *unit, int lane, int q, uint32_t (*codes)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 v = *(const uint4 *)(unit + q * 1024 + h * 512 + lane * 16);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            codes[j][h] = w[j] & 0x0f0f0f0f;
            codes[j][2 + h] = w[j] >> 4 & 0x0f0f0f0f;
        }
    }
}

/* The row, and the run, whose scales a lane owns. */
static __device__ __forceinline__ int block_own_row(int lane)
{
    return lane / 4 + 8 * (lane & 1);
}

static __device__ __forceinline__ int block_own_run(int lane)
{
    return lane >> 1 & 1;
}

static __device__ __forceinline__ float block_low_half(uint32_t pair)
{
    return ptx_f32_from_f16((uint16_t)pair);
}

static __device__ __forceinline__ float block_high_half(uint32_t pair)
{
    return ptx_f32_from_f16((uint16_t)(pair >> 16));
}

/* Four f16 scales of a lane's run, where a row has eight. */
static __device__ __forceinline__ void block_half_scales(const char *plane, int lane, block_scales *s)
{
    const uint2 d = *(const uint2 *)(plane + block_own_row(lane) * 16 + block_own_run(lane) * 8);

    s->w[0] = block_low_half(d.x);
    s->w[1] = block_high_half(d.x);
    s->w[2] = block_low_half(d.y);
    s->w[3] = block_high_half(d.y);
}

/* d, dmin and packed 6-bit scales and minima of Q4_K and Q5_K. */
static __device__ __forceinline__ void block_k_scales(const char *plane, int lane, block_scales *s)
{
    const uint4 v = *(const uint4 *)(plane + block_own_row(lane) * 16);
    const bool high = block_own_run(lane);
    const uint32_t scale = high ? (v.w & 0x0f0f0f0f) | (v.y >> 2 & 0x30303030) : v.y & 0x3f3f3f3f;
    const uint32_t min = high ? (v.w >> 4 & 0x0f0f0f0f) | (v.z >> 2 & 0x30303030) : v.z & 0x3f3f3f3f;
    const float d = block_low_half(v.x), dmin = block_high_half(v.x);

#pragma unroll
    for (int j = 0; j < 4; j++) {
        s->w[j] = __fmul_rn(d, (float)(scale >> 8 * j & 255));
        s->m[j] = -__fmul_rn(dmin, (float)(min >> 8 * j & 255));
    }
}

#endif
