/* top.cuh: the top-k classes of a row on CUDA, and the class that is drawn, as every kernel keeps them.
 *
 * The classes of a row come in parts, in ascending order within a part. Of a part a warp keeps a list of CE_TOP_LIST
 * entries at most: what is above `least`, which is NaN at first, so that everything is. A list that has no room for
 * another step is cut: entries that at least k others exceed go, and `least` becomes the value of the last one that
 * stays. An entry is one number, the larger the better, and no two are equal: so which ones are the k best does not
 * depend on the parts or on when a list is cut.
 *
 * The class that is drawn is that of the largest score (src/math/sample.h), an entry too, so that the parts of a row
 * meet by atomicMax in any order. Few classes can have it: a score takes two logarithms in double, its bound one
 * exponential. */
#ifndef RIDGE_LINEAR_CE_TOP_CUH
#define RIDGE_LINEAR_CE_TOP_CUH

#include "ce.cuh"
#include "src/math/sample.h"

enum { CE_TOP_STEP = 64 };

#ifdef __CUDACC__

/* z in the upper half, in an order in which NaN is largest and -0 is 0; the lower class is better. */
static __device__ __forceinline__ uint64_t top_entry(float z, int32_t v)
{
    const uint32_t bits = __float_as_uint(z + 0.0f);
    const uint32_t order = z != z ? 0xfffffffe : bits & 0x80000000 ? ~bits : bits | 0x80000000;

    return (uint64_t)order << 32 | (uint32_t)~v;
}

static __device__ __forceinline__ float top_value(uint64_t entry)
{
    const uint32_t order = (uint32_t)(entry >> 32);

    return __uint_as_float(order & 0x80000000 ? order & 0x7fffffff : ~order);
}

static __device__ __forceinline__ int32_t top_class(uint64_t entry)
{
    return (int32_t) ~(uint32_t)entry;
}

/* Whether z may belong to the best ones, for any z if least is NaN. */
static __device__ __forceinline__ bool top_may(float z, float least)
{
    return !(z <= least);
}

/* Below every logit of a bin, and of those above it, whatever they were rounded to there. */
static __device__ __forceinline__ float top_of_bin(int bin, float2 scale)
{
    return __fmaf_rd((float)bin - 0.5f, __frcp_rn(scale.y), scale.x);
}

/* What is known of a row: a number that k logits in its lists exceed, so that only larger ones may
 * be among its best; NaN: nothing. The logits of bin b and above are at least b / y from x on, but for rounding. */
static __device__ __forceinline__ float top_known(const ce_params &p, int64_t row)
{
    const uint4 *from = (const uint4 *)(p.top_bins + row * CE_TOP_BINS);
    const float2 scale = p.top_scale[row];
    int above = 0, bin = CE_TOP_BINS;

#pragma unroll 2
    for (int i = CE_TOP_BINS / 4 - 1; i >= 0; i--) {
        const uint4 four = __ldcg(from + i);
        const uint32_t count[4] = {four.x, four.y, four.z, four.w};

#pragma unroll
        for (int j = 3; j >= 0; j--) {
            bin = above < p.top_k ? 4 * i + j : bin;
            above += above < p.top_k ? (int)count[j] : 0;
        }
    }
    return above < p.top_k ? CUDART_NAN_F : top_of_bin(bin, scale);
}

/* The same by a warp. */
static __device__ __forceinline__ float top_known_by_warp(const ce_params &p, int64_t row)
{
    const int lane = threadIdx.x % 32;
    const float2 scale = p.top_scale[row];
    int above = (int)p.top_bins[row * CE_TOP_BINS + lane];

    static_assert(CE_TOP_BINS == 32, "a bin a lane");
    for (int step = 1; step < 32; step *= 2) {
        const int more = __shfl_down_sync(~0u, above, step);

        above += lane + step < 32 ? more : 0;
    }
    const uint32_t enough = __ballot_sync(~0u, above >= p.top_k);

    return enough ? top_of_bin(31 - __clz((int)enough), scale) : CUDART_NAN_F;
}

/* What draw_may takes of the best entry so far: its score in base 2, less what rounding does to it and to z. Of no
 * entry it is NaN. */
static __device__ __forceinline__ float draw_bound(uint64_t best)
{
    const float score = top_value(best) * CE_LOG2E;

    return score - __fmaf_rn(fabsf(score), 0x1p-21f, 0x1p-13f);
}

/* Whether the score of z may reach that of the best: -log(-log(1 - v)) is at most -log v, so v at most e^(z - best). v
 * is the word as a fraction, cut to 23 bits. */
static __device__ __forceinline__ bool draw_may(float z, uint32_t word, float bound)
{
    return !(__uint_as_float(word >> 9 | 0x3f800000) - 1.0f > ptx_ex2(__fmaf_rn(z, CE_LOG2E, -bound)));
}

/* By a warp: how many of the entries are `from` or better. */
static __device__ __forceinline__ int top_rank(const uint64_t *entry, int count, uint64_t from)
{
    int mine = 0;

#pragma unroll 1 /* Hopper's consumers have few registers */
    for (int i = threadIdx.x % 32; i < count; i += 32)
        mine += entry[i] >= from;
    return (int)__reduce_add_sync(~0u, (uint32_t)mine);
}

/* By a warp: cuts a list of k entries and more to k .. k + a quarter of what is then free before a step. Bisection:
 * `low` has k entries and more at or above it, `high` fewer; with HELD by the values alone, in registers, which
 * separate all but equal ones, then by the whole entries. */
template <bool HELD>
static __device__ __forceinline__ int top_cut(uint64_t *entry, int count, int k, int step, float *least)
{
    enum { EACH = CE_TOP_LIST / 32 };
    const int lane = threadIdx.x % 32, most = k + (CE_TOP_LIST - step - k) / 4;
    uint64_t low = 0, high = ~UINT64_C(0); /* no entry is that large */
    int at_low = count, left = 0;

    __syncwarp(); /* orders other lanes' writes before these reads */
    if (HELD) {
        uint32_t order[EACH], bottom = 0, top = ~0u;

#pragma unroll
        for (int i = 0; i < EACH; i++)
            order[i] = i * 32 + lane < count ? (uint32_t)(entry[i * 32 + lane] >> 32) : 0; /* no entry's is 0 */
        while (at_low > most && top - bottom > 1) {
            const uint32_t middle = bottom + (top - bottom) / 2;
            int above = 0;

#pragma unroll
            for (int i = 0; i < EACH; i++)
                above += order[i] >= middle;
            above = (int)__reduce_add_sync(~0u, (uint32_t)above);
            if (above >= k) {
                bottom = middle;
                at_low = above;
            } else {
                top = middle;
            }
        }
        low = (uint64_t)bottom << 32;
        high = (uint64_t)top << 32;
    }
    while (at_low > most) {
        const uint64_t middle = low + (high - low) / 2;
        const int above = top_rank(entry, count, middle);

        if (above >= k) {
            low = middle;
            at_low = above;
        } else {
            high = middle;
        }
    }
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
        const uint64_t e = first + lane < count ? entry[first + lane] : 0;
        const bool stays = first + lane < count && e >= low;
        const uint32_t mask = __ballot_sync(~0u, stays); /* orders the reads before the writes */

        if (stays)
            entry[left + __popc(mask & ((1u << lane) - 1))] = e;
        left += __popc(mask);
        __syncwarp();
    }
    *least = top_value(low);
    return left;
}

#endif

#endif
