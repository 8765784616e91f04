/* hand.cuh: the scales of a unit, of which every lane owns four, handed out to the lanes whose rows they scale. */
#ifndef RIDGE_BLOCKS_HAND_CUH
#define RIDGE_BLOCKS_HAND_CUH

#include "parts.cuh"
#include "records.cuh"

/* The scales of a block for rows g and g + 8, from the lanes that own them. */
template <class F>
static __device__ __forceinline__ void block_hand_out(const block_scales *s, int q, int j, int lane, float *w, float *m,
                                                      uint32_t *sub)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int from = (lane & 28) + 2 * q + h;
        const bool each = F::X < BLOCK_X_START_16; /* else d and dmin are the same for all blocks of a row */

        w[h] = __shfl_sync(~0u, s->w[each ? j : 0], from);
        if (F::X == BLOCK_X_SUM || F::X == BLOCK_X_SUM_16)
            m[h] = __shfl_sync(~0u, s->m[each ? j : 0], from);
        if (!each)
            sub[h] = __shfl_sync(~0u, s->sub[j], from);
    }
}

/* The same through 1 KB of the warp's shared memory, which takes a third of the instructions: two planes of
 * [two blocks][g][two rows][block of the two], of scales and minima, or of sub-scales and of d and dmin by row. The two
 * rows are g and g + 8, of the second run g + 8 and g. Two lanes put those of a row, lane 2 r + run of row r, so that
 * reads and writes meet different banks. */
enum { BLOCK_HAND = 1024 };
#if __CUDA_ARCH__ >= 1000 /* there it spills registers */
enum { BLOCK_HANDS = 0 };
#else
enum { BLOCK_HANDS = 1 };
#endif

/* The lane whose scales (block_own_row, block_own_run) this lane puts. */
static __device__ __forceinline__ int block_hand_lane(int lane)
{
    return (lane >> 1 & 7) * 4 + (lane & 1) * 2 + (lane >> 4);
}

template <class F> static __device__ __forceinline__ void block_put_scales(const block_scales *s, int lane, char *hand)
{
    const int run = lane & 1, g = lane >> 1 & 7, second = lane >> 4;
    char *const to = hand + run * 256 + g * 16 + (second ^ run) * 8;

#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        const int j = 2 * pair;

        if (F::X < BLOCK_X_START_16)
            *(float2 *)(to + pair * 128) = make_float2(s->w[j], s->w[j + 1]);
        else
            *(uint2 *)(to + pair * 128) = make_uint2(s->sub[j], s->sub[j + 1]);
        if (F::X == BLOCK_X_SUM)
            *(float2 *)(to + 512 + pair * 128) = make_float2(s->m[j], s->m[j + 1]);
    }
    if (F::X >= BLOCK_X_START_16 && !run)
        *(float2 *)(hand + 512 + g * 16 + second * 8) = make_float2(s->w[0], F::X == BLOCK_X_SUM_16 ? s->m[0] : 0.0f);
    __syncwarp(); /* the lanes' scales are visible to each other */
}

/* Those of blocks 4 q + 2 pair and the next. */
template <class F>
static __device__ __forceinline__ void block_get_scales(const char *hand, int q, int pair, int lane, float (*w)[2],
                                                        float (*m)[2], uint32_t (*sub)[2])
{
    const char *const row = hand + (lane >> 2) * 16, *const from = row + (2 * q + pair) * 128;

    if (F::X < BLOCK_X_START_16) {
        const float4 v = *(const float4 *)from;

        w[0][q] = v.x, w[1][q] = v.y, w[0][1 - q] = v.z, w[1][1 - q] = v.w;
    } else {
        const uint4 v = *(const uint4 *)from;

        sub[0][q] = v.x, sub[1][q] = v.y, sub[0][1 - q] = v.z, sub[1][1 - q] = v.w;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            w[0][h] = w[1][h] = *(const float *)(row + 512 + 8 * h);
            if (F::X == BLOCK_X_SUM_16)
                m[0][h] = m[1][h] = *(const float *)(row + 512 + 8 * h + 4);
        }
    }
    if (F::X == BLOCK_X_SUM) {
        const float4 v = *(const float4 *)(from + 512);

        m[0][q] = v.x, m[1][q] = v.y, m[0][1 - q] = v.z, m[1][1 - q] = v.w;
    }
}

#endif
