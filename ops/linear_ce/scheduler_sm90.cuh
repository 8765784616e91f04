/* scheduler_sm90.cuh: what clusters take from a counter as they come free: the first CTA's loading thread takes an item
 * and hands it through a ring to everybody else in both CTAs. */
#ifndef RIDGE_CE_ITEMS_SM90_CUH
#define RIDGE_CE_ITEMS_SM90_CUH

#include "cuda/sm90/gemm_bf16.cuh"

enum { CE_RING = 4 };

/* full[i]: the item is there. empty[i], the first CTA's: all others have read it. */
typedef struct ce_items {
    int2 item[CE_RING];
    uint64_t full[CE_RING], empty[CE_RING];
} ce_items;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Where a reader stands: addresses of item[0] and full[0], of empty[0] in the first CTA, and items read so far. */
typedef struct ce_ring {
    uint32_t item, full, empty, n;
} ce_ring;

/* By one thread, before gemm16_begin, which has the fence. warps: of both CTAs, that multiply or store. */
static __device__ __forceinline__ void ce_items_begin(ce_items *s, int warps)
{
    for (int i = 0; i < CE_RING; i++) {
        ptx_mbarrier_init(ptx_shared(&s->full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->empty[i]), (uint32_t)(warps + G16_CLUSTER - 1)); /* the other loading thread */
    }
}

static __device__ __forceinline__ ce_ring ce_ring_of(ce_items *s)
{
    return {ptx_shared(&s->item[0]), ptx_shared(&s->full[0]), ptx_map(ptx_shared(&s->empty[0]), 0), 0};
}

/* The first CTA's loading thread: an item to both CTAs. */
static __device__ __forceinline__ void ce_hand_out(ce_items *s, ce_ring *ring, int item)
{
    const uint32_t at = ring->n % CE_RING * 8;

    ptx_mbarrier_wait(ptx_shared(&s->empty[0]) + at, (ring->n / CE_RING & 1) ^ 1);
    ptx_mbarrier_expect(ring->full + at, 8);
#pragma unroll
    for (int i = 0; i < G16_CLUSTER; i++)
        ptx_store_async2(ptx_map(ring->item + at, (uint32_t)i), __int_as_float(item), 0.0f,
                         ptx_map(ring->full + at, (uint32_t)i));
    ring->n++;
}

static __device__ __forceinline__ int read_item(ce_ring *ring, bool warp)
{
    const uint32_t at = ring->n % CE_RING * 8;

    ptx_mbarrier_wait(ring->full + at, ring->n / CE_RING & 1);
    const int item = (int)ptx_load_shared1(ring->item + at);

    if (warp)
        __syncwarp(); /* all lanes have read it */
    if (!warp || threadIdx.x % 32 == 0)
        ptx_mbarrier_arrive_cluster(ring->empty + at);
    ring->n++;
    return item;
}

/* Everybody else's next item: the lanes of a warp together; the other CTA's loading thread alone. */
static __device__ __forceinline__ int ce_next_item(ce_ring *ring)
{
    return read_item(ring, true);
}

static __device__ __forceinline__ int ce_next_to_load(ce_ring *ring)
{
    ptx_mbarrier_expect(ring->full + ring->n % CE_RING * 8, 8);
    return read_item(ring, false);
}

#endif

#endif
