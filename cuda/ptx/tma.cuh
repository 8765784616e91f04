/* tma.cuh: TMA loads, stores and prefetches of boxes of a tensor map, one inline function an instruction. x is the
 * inner coordinate, in elements. */
#ifndef RIDGE_PTX_TMA_CUH
#define RIDGE_PTX_TMA_CUH

#include <stdint.h>

#include "cuda/ptx/load_store.cuh" /* L2 policies */

#if __CUDA_ARCH__ >= 900
/* Fetches a tensor map into the cache of maps. */
static __device__ __forceinline__ void ptx_prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}

/* Contiguous bytes from global to shared memory; addresses and size are multiples of 16. */
static __device__ __forceinline__ void ptx_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :
                 : "r"(to), "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* The same with an L2 policy. */
static __device__ __forceinline__ void ptx_bulk_load_policy(uint32_t to, const void *from, uint32_t bytes, uint32_t bar,
                                                            uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;"
                 :
                 : "r"(to), "l"(from), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}

/* A box of a tensor map to shared memory; its bytes count towards the mbarrier. */
static __device__ __forceinline__ void ptx_tma_load_2d(uint32_t to, const void *map, int x, int y, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];"
        :
        : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y)
        : "memory");
}

/* The same with an L2 policy. */
static __device__ __forceinline__ void ptx_tma_load_2d_policy(uint32_t to, const void *map, int x, int y, uint32_t bar,
                                                              uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 :
                 : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}

/* The same box to the same shared-memory offset in every CTA of `mask`; it completes on the mbarrier at the offset of
 * `bar` in each of them. */
static __device__ __forceinline__ void ptx_tma_load_2d_multicast(uint32_t to, const void *map, int x, int y,
                                                                 uint32_t bar, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 :
                 : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}

/* A box of a three-dimensional map. */
static __device__ __forceinline__ void ptx_tma_load_3d(uint32_t to, const void *map, int x, int y, int z, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];"
        :
        : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
        : "memory");
}

static __device__ __forceinline__ void ptx_tma_load_3d_policy(uint32_t to, const void *map, int x, int y, int z,
                                                              uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;"
                 :
                 : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(policy)
                 : "memory");
}

/* A box to L2 only. */
static __device__ __forceinline__ void ptx_tma_prefetch_2d(const void *map, int x, int y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 :
                 : "l"(map), "r"(x), "r"(y)
                 : "memory");
}

static __device__ __forceinline__ void ptx_tma_prefetch_3d(const void *map, int x, int y, int z)
{
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];"
                 :
                 : "l"(map), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Makes this thread's ordinary stores to shared memory visible to TMA and wgmma. */
static __device__ __forceinline__ void ptx_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A box from shared memory to a tensor map; commit the group, then wait until its sources have been read (the shared
 * memory may be written again), or until all is written. */
static __device__ __forceinline__ void ptx_tma_store_2d(const void *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 :
                 : "l"(map), "r"(from), "r"(x), "r"(y)
                 : "memory");
}

/* The same with an L2 policy. */
static __device__ __forceinline__ void ptx_tma_store_2d_policy(const void *map, int x, int y, uint32_t from,
                                                               uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;"
                 :
                 : "l"(map), "r"(from), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}

static __device__ __forceinline__ void ptx_tma_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

static __device__ __forceinline__ void ptx_tma_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

static __device__ __forceinline__ void ptx_tma_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

#endif
