/* list.cuh: the experts of a call, made by every CTA for itself from the ids (16 * 32 at most), so that nothing of the
 * launch depends on them. An entry is an expert and up to `columns` (8, or 1) of its (token, slot) pairs, in the
 * order of the pairs; an expert with more has several entries. Ids outside of the experts are in none. */
#ifndef RIDGE_MOE_LIST_CUH
#define RIDGE_MOE_LIST_CUH

#include "products.h"

enum { MOE_PAIRS = RIDGE_MOE_MAX_TOKENS * RIDGE_MOE_MAX_SLOTS, MOE_COLUMNS = 8 };

/* In shared memory. A pair is token * slots + slot. */
typedef struct moe_list {
    int4 ids[MOE_PAIRS / 4];
    int expert[MOE_PAIRS], count[MOE_PAIRS];
    uint16_t pair[MOE_PAIRS][MOE_COLUMNS];
    uint16_t entry[MOE_PAIRS]; /* of a pair that begins one */
    uint16_t begin[MOE_PAIRS],
        before[MOE_PAIRS]; /* the pair that begins this one's entry; pairs of its expert before */
    int warp[MOE_PAIRS / 32];
    int entries;
} moe_list;

/* The pairs of this one's expert before it, and which of these begins its entry. */
static __device__ __forceinline__ void moe_look_back(moe_list *list, int i, int pairs, int columns)
{
    const int id = ((const int *)list->ids)[i];
    int before = 0, begin = i;

    for (int j = 0; j < i && j < pairs; j += 4) {
        const int4 other = list->ids[j / 4];

#pragma unroll
        for (int k = 0; k < 4; k++)
            if (j + k < i && (k == 0 ? other.x : k == 1 ? other.y : k == 2 ? other.z : other.w) == id) {
                begin = before % columns == 0 ? j + k : begin;
                before++;
            }
    }
    list->begin[i] = (uint16_t)(before % columns == 0 ? i : begin);
    list->before[i] = (uint16_t)before;
}

/* By all threads of the CTA, whole warps. A thread has the pairs threadIdx.x, threadIdx.x + blockDim.x, ... */
static __device__ __forceinline__ void moe_make_list(const moe_args &p, moe_list *list, int columns)
{
    const int pairs = p.tokens * p.slots, all = (pairs + 31) / 32 * 32, step = blockDim.x;
    int *const ids = (int *)list->ids;

    for (int i = threadIdx.x; i < all; i += step) {
        const int id = i < pairs ? p.ids[i / p.slots * p.ids_stride + i % p.slots] : -1;

        ids[i] = id >= 0 && id < p.experts ? id : -1;
        list->count[i] = 0;
    }
    __syncthreads(); /* the ids are written before they are read */
    for (int i = threadIdx.x; i < all; i += step) {
        unsigned ballot;

        moe_look_back(list, i, pairs, columns);
        ballot = __ballot_sync(0xffffffffu, ids[i] >= 0 && list->begin[i] == i);
        if (i % 32 == 0)
            list->warp[i / 32] = __popc(ballot);
    }
    __syncthreads(); /* the warps' counts are written before they are read */
    for (int i = threadIdx.x; i < all; i += step) {
        const bool first = ids[i] >= 0 && list->begin[i] == i;
        int entry = __popc(__ballot_sync(0xffffffffu, first) & ((1u << i % 32) - 1));

        for (int w = 0; w < i / 32; w++)
            entry += list->warp[w];
        if (first) {
            list->entry[i] = (uint16_t)entry;
            list->expert[entry] = ids[i];
        }
        if (i == all - 1)
            list->entries = entry + first;
    }
    __syncthreads(); /* the entries are written before their pairs look for them */
    for (int i = threadIdx.x; i < all; i += step)
        if (ids[i] >= 0) {
            const int entry = list->entry[list->begin[i]];

            list->pair[entry][list->before[i] % columns] = (uint16_t)i;
            atomicAdd(&list->count[entry], 1);
        }
    __syncthreads(); /* the list is complete before it is read */
}

/* The same of one token, whose pairs have an entry each. Every warp makes it, all the same, so that none waits for
 * another. */
static __device__ __forceinline__ void moe_make_list_1(const moe_args &p, moe_list *list)
{
    const int lane = threadIdx.x % 32, id = lane < p.slots ? p.ids[lane] : -1;
    const bool valid = id >= 0 && id < p.experts;
    const unsigned all = __ballot_sync(0xffffffffu, valid);
    const int entry = __popc(all & ((1u << lane) - 1));

    if (valid) {
        list->expert[entry] = id;
        list->count[entry] = 1;
        list->pair[entry][0] = (uint16_t)lane;
    }
    ((int *)list->ids)[lane] = valid ? id : -1;
    if (lane == 0)
        list->entries = __popc(all);
    __syncwarp(); /* what a warp reads it has written */
}

#endif
