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

/* What scales a block of rows g and g + 8: m of two halves of a block where minima have 16 columns, and then sub has
 * its two sub-scales; of Q6_K sub[][0] packs both. */
typedef struct block_row_scales {
    float w[2], m[2][2];
    uint32_t sub[2][2];
} block_row_scales;

/* Byte i of a word, as an integer; as a float: that of 2^23 + byte, less 2^23. */
static __device__ __forceinline__ uint32_t block_byte(uint32_t word, int i)
{
    return ptx_prmt(word, 0, 0x4440 | (uint32_t)i);
}

static __device__ __forceinline__ float block_byte_float(uint32_t word, int byte)
{
    return __fadd_rn(__uint_as_float(ptx_prmt(word, 0x4b000000, 0x7440 | (uint32_t)byte)), -8388608.0f);
}

template <class F>
static __device__ __forceinline__ void block_hand_rows(const block_scales *s, int q, int j, int lane,
                                                       block_row_scales *r)
{
    float m[2] = {};
    uint32_t sub[2] = {};

    block_hand_out<F>(s, q, j, lane, r->w, m, sub);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r->m[h][0] = m[h];
        r->sub[h][0] = sub[h];
        if (F::X == BLOCK_X_SUM_16)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                r->m[h][k] = -__fmul_rn(m[h], block_byte_float(sub[h], 2 + k));
                r->sub[h][k] = block_byte(sub[h], k);
            }
    }
}

/* The same through the warp's shared memory, which takes a third of the instructions: two planes of
 * [two blocks][g][two rows][block of the two], of scales and minima, or of packed sub-scales and of d by row. The two
 * rows are g and g + 8, of the second run g + 8 and g. Two lanes put those of a row, lane 2 r + run of row r, so that
 * reads and writes meet different banks.
 *
 * Of Q2_K a plane of [run][two blocks][row][block of the two][half], rows g xored with 4 in the second run, of minima,
 * which their owners multiply, and one of d by row. Sub-scales are read where they lie: to take bytes out of a word
 * costs more instructions than to read words, but a fifth of the wavefronts of shared memory. */
#define BLOCK_HAND(kind) ((kind) == BLOCK_X_SUM_16 ? 1152 : 1024)
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

    if constexpr (F::X == BLOCK_X_SUM_16) {
        char *const to = hand + run * 512 + second * 128 + (g ^ 4 * run) * 16;

#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            float m[4];

#pragma unroll
            for (int k = 0; k < 4; k++)
                m[k] = __fmul_rn(-s->m[0], block_byte_float(s->mins[pair], k));
            *(float4 *)(to + pair * 256) = make_float4(m[0], m[1], m[2], m[3]);
        }
        if (!run)
            *(float *)(hand + 1024 + g * 8 + second * 4) = s->w[0];
    } else {
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
            *(float *)(hand + 512 + g * 8 + second * 4) = s->w[0];
    }
}

/* Those of blocks 4 q + 2 pair and the next, of a unit. */
template <class F>
static __device__ __forceinline__ void block_get_scales(const char *unit, const char *hand, int q, int pair, int lane,
                                                        block_row_scales *r)
{
    const int g = lane >> 2;
    const char *const from = hand + g * 16 + (2 * q + pair) * 128;

    if (F::X >= BLOCK_X_START_16) {
        const float2 d = *(const float2 *)(hand + (F::X == BLOCK_X_SUM_16 ? 1024 : 512) + g * 8);

        r[0].w[0] = r[1].w[0] = d.x;
        r[0].w[1] = r[1].w[1] = d.y;
    }
    if constexpr (F::X == BLOCK_X_SUM_16) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int pair_at = q * 512 + pair * 256 + h * 128 + (g ^ 4 * q) * 16;
            const float4 m = *(const float4 *)(hand + pair_at);
            const uint32_t subs =
                *(const uint32_t *)(unit + F::CODES + (g + 8 * h) * 16 + (2 * q + pair) * 4) & 0x0f0f0f0f;

#pragma unroll
            for (int k = 0; k < 2; k++) {
                r[0].sub[h][k] = block_byte(subs, k);
                r[1].sub[h][k] = block_byte(subs, 2 + k);
            }
            r[0].m[h][0] = m.x, r[0].m[h][1] = m.y, r[1].m[h][0] = m.z, r[1].m[h][1] = m.w;
        }
    } else if constexpr (F::X == BLOCK_X_START_16) {
        const uint4 v = *(const uint4 *)from;

        r[0].sub[q][0] = v.x, r[1].sub[q][0] = v.y, r[0].sub[1 - q][0] = v.z, r[1].sub[1 - q][0] = v.w;
    } else {
        const float4 v = *(const float4 *)from;

        r[0].w[q] = v.x, r[1].w[q] = v.y, r[0].w[1 - q] = v.z, r[1].w[1 - q] = v.w;
    }
    if (F::X == BLOCK_X_SUM) {
        const float4 v = *(const float4 *)(from + 512);

        r[0].m[q][0] = v.x, r[1].m[q][0] = v.y, r[0].m[1 - q][0] = v.z, r[1].m[1 - q][0] = v.w;
    }
}

#endif
