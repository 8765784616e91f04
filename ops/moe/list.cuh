/* list.cuh: the experts of a call, made by every CTA for itself from the ids (16 * 32 at most), so that nothing of the
 * launch depends on them. An entry is an expert and up to `columns` (8, or 1) of its (token, slot) pairs, in the
 * order of the pairs; an expert with more has several entries. Ids outside of the experts are in none. */
#ifndef RIDGE_MOE_LIST_CUH
#define RIDGE_MOE_LIST_CUH

#include "args.cuh"

enum { MOE_PAIRS = RIDGE_MOE_MAX_TOKENS * RIDGE_MOE_MAX_SLOTS, MOE_COLUMNS = 8 };

/* In shared memory; of as many pairs as calls have, or of one token's. A pair is token * slots + slot. */
template <int PAIRS> struct moe_list_of {
    static const bool ONE = PAIRS == RIDGE_MOE_MAX_SLOTS;
    int4 ids[PAIRS / 4];
    int expert[PAIRS], count[PAIRS];
    uint16_t pair[PAIRS][MOE_COLUMNS];
    uint16_t entry[PAIRS];                /* of a pair that begins one */
    uint16_t begin[PAIRS], before[PAIRS]; /* the pair that begins this one's entry; pairs of its expert before */
    int warp[PAIRS / 32];
    int entries;
    float weight[PAIRS]; /* down: of a pair, see moe_keep_weights */
};
typedef moe_list_of<MOE_PAIRS> moe_list;
typedef moe_list_of<RIDGE_MOE_MAX_SLOTS> moe_list_1;

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

/* The id of a pair; -1: of no expert. Not from L1, so that it can be read again when the kernels before have ended. */
static __device__ __forceinline__ int moe_load_id(const moe_args &p, int pair)
{
    const int id = pair < p.tokens * p.slots ? __ldcg(p.ids + pair / p.slots * p.ids_stride + pair % p.slots) : -1;

    return id >= 0 && id < p.experts ? id : -1;
}

/* For moe_make_list_1: the ids of one token in the first warp, as they lie there, so that nothing waits for them yet.
 */
static __device__ __forceinline__ int moe_load_id_1(const moe_args &p)
{
    return threadIdx.x < p.slots ? __ldcg(p.ids + threadIdx.x) : -1;
}

/* Whether the ids are still those of the list. By all threads of the CTA. */
template <class L> static __device__ __forceinline__ bool moe_list_holds(const moe_args &p, const L *list)
{
    bool same = true;

    for (int i = threadIdx.x; i < p.tokens * p.slots; i += blockDim.x)
        same = same && ((const int *)list->ids)[i] == moe_load_id(p, i);
    return __syncthreads_and(same);
}

/* Weights of the slots to shared memory, behind the requests of the first copies, which take longer. From global memory
 * the first slot of a row would wait for its own. */
template <class L> static __device__ __forceinline__ void moe_keep_weights(const moe_args &p, L *list)
{
    for (int i = threadIdx.x; i < p.tokens * p.slots; i += blockDim.x)
        list->weight[i] = p.weights[i / p.slots * p.weights_stride + i % p.slots];
}

/* By all threads of the CTA, whole warps. A thread has the pairs threadIdx.x, threadIdx.x + blockDim.x, ... */
static __device__ __forceinline__ void moe_make_list(const moe_args &p, moe_list *list, int columns)
{
    const int pairs = p.tokens * p.slots, all = (pairs + 31) / 32 * 32, step = blockDim.x;
    int *const ids = (int *)list->ids;

    for (int i = threadIdx.x; i < all; i += step) {
        ids[i] = moe_load_id(p, i);
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

/* The same of one token, whose pairs have an entry each. The first warp makes it for all: ids that are read while they
 * may still be written would differ from warp to warp. loaded: by moe_load_id_1. */
static __device__ __forceinline__ void moe_make_list_1(const moe_args &p, int loaded, moe_list_1 *list)
{
    if (threadIdx.x < 32) {
        const int lane = threadIdx.x, id = loaded >= 0 && loaded < p.experts ? loaded : -1;
        const unsigned all = __ballot_sync(0xffffffffu, id >= 0);
        const int entry = __popc(all & ((1u << lane) - 1));

        if (id >= 0) {
            list->expert[entry] = id;
            list->count[entry] = 1;
            list->pair[entry][0] = (uint16_t)lane;
        }
        ((int *)list->ids)[lane] = id;
        if (lane == 0)
            list->entries = __popc(all);
    }
    __syncthreads(); /* the list is complete before it is read */
}

/* gate_up: slots without an expert, which no entry stores. Out is floats. */
static __device__ __forceinline__ void moe_store_rest(const moe_args &p, const moe_list *list)
{
    for (int pair = 0; pair < p.tokens * p.slots; pair++)
        if (((const int *)list->ids)[pair] < 0)
            for (int row = (int)(blockIdx.x * blockDim.x + threadIdx.x); row < p.rows;
                 row += (int)(gridDim.x * blockDim.x))
                moe_store(p, pair / p.slots * p.out_stride + pair % p.slots * p.rows + row, 0.0f);
}

/* down: the sums of `groups` groups of ROWS rows of every token, from group `base` on. A thread has a row of a token;
 * results: [pair][groups * ROWS], of every pair that has an expert. */
template <int ROWS>
static __device__ __forceinline__ void moe_store_sums(const moe_args &p, int groups, const moe_list *list, int base,
                                                      const float *results)
{
    const int wide = groups * ROWS;

    for (int i = threadIdx.x; i < p.tokens * wide; i += (int)blockDim.x) {
        const int token = i / wide, r = i - token * wide, row = base * ROWS + r;
        const float *const from = results + token * p.slots * wide + r;
        float sum = 0.0f;

        if (row >= p.rows)
            continue;
        for (int slot = 0; slot < p.slots; slot++)
            if (((const int *)list->ids)[token * p.slots + slot] >= 0)
                sum = __fmaf_rn(list->weight[token * p.slots + slot], from[slot * wide], sum);
        moe_store_sum(p, token, row, sum);
    }
}

#endif
