/* single.cuh: the list of experts (list.cuh) where an entry has one pair, and which products of them a warp computes.
 */
#ifndef RIDGE_MOE_SINGLE_CUH
#define RIDGE_MOE_SINGLE_CUH

#include <stddef.h>

#include "list.cuh"

/* Entries of one pair each, where every expert's weights are read for every pair: the pairs that have an expert, in
 * their order. In shared memory, as long as there are pairs. */
typedef struct moe_pairs {
    int entries;
    unsigned valid[MOE_PAIRS / 32]; /* pairs with an expert */
    int pad[3];
    struct {
        int id;
        float weight;     /* down: of the slot */
        int expert, pair; /* of the entry of this number */
    } of[MOE_PAIRS];
} moe_pairs;

/* Bytes for `pairs` pairs, a multiple of 16. */
static inline int64_t moe_pairs_bytes(int64_t pairs)
{
    return (int64_t)offsetof(moe_pairs, of) + pairs * 16;
}

/* down: the weight of a pair's slot. Not from L1, like its id; both are requested together. */
template <int WEIGHTS> static __device__ __forceinline__ float moe_load_weight(const moe_args &p, int pair)
{
    return WEIGHTS && pair < p.tokens * p.slots ? __ldcg(p.weights + pair / p.slots * p.weights_stride + pair % p.slots)
                                                : 0.0f;
}

/* By all threads of the CTA, whole warps. WEIGHTS: of down, with the slots' weights. */
template <int WEIGHTS> static __device__ __forceinline__ void moe_make_pairs(const moe_args &p, moe_pairs *list)
{
    const int pairs = p.tokens * p.slots, step = blockDim.x;

#pragma unroll 1
    for (int i = threadIdx.x; i < (pairs + 31) / 32 * 32; i += step) {
        const float weight = moe_load_weight<WEIGHTS>(p, i);
        const int id = moe_load_id(p, i);
        const unsigned valid = __ballot_sync(0xffffffffu, id >= 0);

        if (i < pairs) {
            list->of[i].id = id;
            if (WEIGHTS)
                list->of[i].weight = weight;
        }
        if (i % 32 == 0)
            list->valid[i / 32] = valid;
    }
    __syncthreads(); /* ids and masks are written before they are read */
#pragma unroll 1
    for (int i = threadIdx.x; i < pairs; i += step) {
        const int id = list->of[i].id;
        int entry = __popc(list->valid[i / 32] & ((1u << i % 32) - 1));

        for (int w = 0; w < i / 32; w++)
            entry += __popc(list->valid[w]);
        if (id >= 0) {
            list->of[entry].expert = id;
            list->of[entry].pair = i;
        }
        if (i == pairs - 1)
            list->entries = entry + (id >= 0);
    }
    __syncthreads(); /* the list is complete before it is read */
}

/* down: whether the ids are still those of the list; WEIGHTS: the slots' weights become those of now. By all threads of
 * the CTA. */
template <int WEIGHTS> static __device__ __forceinline__ bool moe_pairs_hold(const moe_args &p, moe_pairs *list)
{
    bool same = true;

#pragma unroll 1
    for (int i = threadIdx.x; i < p.tokens * p.slots; i += blockDim.x) {
        const float weight = moe_load_weight<WEIGHTS>(p, i);

        same = same && list->of[i].id == moe_load_id(p, i);
        if (WEIGHTS)
            list->of[i].weight = weight;
    }
    return __syncthreads_and(same);
}

/* down: the slots' weights alone, behind the requests of the first copies. */
static __device__ __forceinline__ void moe_keep_pair_weights(const moe_args &p, moe_pairs *list)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < p.tokens * p.slots; i += blockDim.x)
        list->of[i].weight = p.weights[i / p.slots * p.weights_stride + i % p.slots];
}

/* down: asks for what is added to the sums of `rows` rows, which would else come from memory when all else is done. */
static __device__ __forceinline__ void moe_prefetch_sums(const moe_args &p, int row, int rows)
{
    const int token = threadIdx.x / 32, at = row + threadIdx.x % 32;

    if (token < p.tokens && (int)threadIdx.x % 32 < rows && at < p.rows) {
        if (p.residual)
            ptx_prefetch_l2((const char *)p.residual + (token * p.residual_stride + at) * (p.residual_bf16 ? 2 : 4));
        if (p.shared)
            ptx_prefetch_l2((const char *)p.shared + (token * p.shared_stride + at) * (p.shared_bf16 ? 2 : 4));
    }
}

/* down: asks for the bias of these rows of every expert of the list. */
static __device__ __forceinline__ void moe_prefetch_bias(const moe_args &p, const moe_pairs *list, int row, int rows)
{
    const moe_weight &w = p.weight[0];

    if (w.bias && row < p.rows)
        for (int i = threadIdx.x; i < list->entries; i += blockDim.x)
            for (int r = 0; r < rows; r += 8)
                ptx_prefetch_l2(w.bias + list->of[i].expert * w.bias_stride + min(row + r, (int)p.rows - 1));
}

/* An item is a tile of rows of an entry. gate_up: those of all entries are dealt out to the CTAs one by one, and a
 * CTA's to its warps (or teams of warps). down: a CTA has `each` tiles of its own, one behind the other, in batches of
 * `batch`; a batch's items are dealt out to its warps entry by entry, so that warps read neighbouring rows at the same
 * time. */
typedef struct moe_walk {
    int number, first; /* of the item, in the batch; the batch's first tile in the CTA */
} moe_walk;

typedef struct moe_item {
    int entry, tile; /* down: in the batch */
} moe_item;

typedef struct moe_tiles {
    int all, each, batch; /* each, batch: of down; batch is 1, 2, 4, .. */
} moe_tiles;

/* down: the CTA's tiles from the batch's first on. */
static __device__ __forceinline__ int moe_tiles_left(moe_tiles t, moe_walk w)
{
    return min(t.each, t.all - (int)blockIdx.x * t.each) - w.first;
}

/* Goes to the next number that is one of an item. unit: the number of the warp (or team) in its CTA. */
template <int DOWN>
static __device__ __forceinline__ void moe_settle(const moe_pairs *list, moe_tiles t, int unit, moe_walk *w)
{
    if (DOWN)
        for (int left = moe_tiles_left(t, *w); left > 0 && w->number >= list->entries * min(left, t.batch);
             left -= t.batch) {
            w->number = unit;
            w->first += t.batch;
        }
}

template <int DOWN> static __device__ __forceinline__ moe_walk moe_begin(const moe_pairs *list, moe_tiles t, int unit)
{
    moe_walk w = {DOWN ? unit : (int)blockIdx.x + unit * (int)gridDim.x, 0};

    moe_settle<DOWN>(list, t, unit, &w);
    return w;
}

/* units: warps (or teams) of a CTA. */
template <int DOWN>
static __device__ __forceinline__ void moe_advance(const moe_pairs *list, moe_tiles t, int unit, int units, moe_walk *w)
{
    w->number += DOWN ? units : units * (int)gridDim.x;
    moe_settle<DOWN>(list, t, unit, w);
}

/* The item of a number; its entry is list->entries or more where there is none. An integer division takes five times as
 * long as this one, which is exact for quotients up to 2^20. */
template <int DOWN> static __device__ __forceinline__ moe_item moe_item_of(moe_tiles t, moe_walk w)
{
    const int left = DOWN ? moe_tiles_left(t, w) : 1, by = DOWN ? min(left, t.batch) : t.all;
    int entry = (int)__fdividef((float)w.number, (float)by), tile = w.number - entry * by;

    if (tile < 0)
        entry--, tile += by;
    if (tile >= by)
        entry++, tile -= by;
    return {left > 0 ? entry : MOE_PAIRS, tile};
}

/* The item's tile among those of the matrix. */
template <int DOWN> static __device__ __forceinline__ int moe_tile(moe_tiles t, moe_walk w, moe_item item)
{
    return DOWN ? (int)blockIdx.x * t.each + w.first + item.tile : item.tile;
}

#endif
