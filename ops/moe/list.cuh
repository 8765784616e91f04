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
    int warp[MOE_PAIRS / 32];
    int entries;
} moe_list;

/* By all threads of the CTA, MOE_PAIRS of them: thread i has pair i. */
static __device__ __forceinline__ void moe_make_list(const moe_args &p, moe_list *list, int columns)
{
    const int i = threadIdx.x, pairs = p.tokens * p.slots, warp = i / 32;
    int id = -1, before = 0, begin = i, entry;
    bool first;
    unsigned ballot;

    if (i < pairs)
        id = p.ids[i / p.slots * p.ids_stride + i % p.slots];
    id = id >= 0 && id < p.experts ? id : -1;
    ((int *)list->ids)[i] = id;
    list->count[i] = 0;
    __syncthreads(); /* the ids are written before they are read */
    for (int j = 0; j < i && j < pairs; j += 4) {
        const int4 other = list->ids[j / 4];

#pragma unroll
        for (int k = 0; k < 4; k++)
            if (j + k < i && (k == 0 ? other.x : k == 1 ? other.y : k == 2 ? other.z : other.w) == id) {
                begin = before % columns == 0 ? j + k : begin;
                before++;
            }
    }
    begin = before % columns == 0 ? i : begin;
    first = id >= 0 && begin == i;
    ballot = __ballot_sync(0xffffffffu, first);
    if (i % 32 == 0)
        list->warp[warp] = __popc(ballot);
    __syncthreads(); /* the warps' counts are written before they are read */
    entry = __popc(ballot & ((1u << i % 32) - 1));
    for (int w = 0; w < warp; w++)
        entry += list->warp[w];
    if (first) {
        list->entry[i] = (uint16_t)entry;
        list->expert[entry] = id;
    }
    if (i == MOE_PAIRS - 1)
        list->entries = entry + first;
    __syncthreads(); /* the entries are written before their pairs look for them */
    if (id >= 0) {
        entry = list->entry[begin];
        list->pair[entry][before % columns] = (uint16_t)i;
        atomicAdd(&list->count[entry], 1);
    }
    __syncthreads(); /* the list is complete before it is read */
}

#endif
