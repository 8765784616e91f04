/* mbarrier.cuh: named barriers and mbarriers, one inline function an instruction. cuda/sm90/pipeline.cuh builds rings
 * of stages from them. */
#ifndef RIDGE_PTX_MBARRIER_CUH
#define RIDGE_PTX_MBARRIER_CUH

#include <stdint.h>

/* Named barriers 1 .. 15 (bar.sync, bar.arrive): wait for `threads` threads, or arrive without waiting. */
static __device__ __forceinline__ void ptx_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void ptx_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

/* The same wait; whether `found` is not 0 in any of them. */
static __device__ __forceinline__ int ptx_barrier_or(int id, int threads, int found)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\nbarrier.cta.red.or.pred p, %1, %2, p;\n"
                 "selp.s32 %0, 1, 0, p;\n}"
                 : "+r"(found)
                 : "r"(id), "r"(threads)
                 : "memory");
    return found;
}

#if __CUDA_ARCH__ >= 900
/* mbarriers: `count` arrivals and all announced bytes complete a phase. */
static __device__ __forceinline__ void ptx_mbarrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(bar), "r"(count) : "memory");
}

/* Makes initialised mbarriers visible to TMA and to the cluster. */
static __device__ __forceinline__ void ptx_mbarrier_fence_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives: this thread's earlier writes are visible to whoever waits for the phase. */
static __device__ __forceinline__ void ptx_mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(bar) : "memory");
}

/* Arrives at an mbarrier of any CTA of the cluster (address: ptx_map). Orders this thread's completed reads, which is
 * all that the release of a stage needs; with .release.cluster the compiler puts a fence of the whole GPU in front,
 * 1 us each. */
static __device__ __forceinline__ void ptx_mbarrier_arrive_cluster(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(bar) : "memory");
}

/* Arrives and announces `bytes` that TMA will bring before the phase completes. */
static __device__ __forceinline__ void ptx_mbarrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(bar), "r"(bytes) : "memory");
}

/* Waits until the phase of that parity has completed. */
static __device__ __forceinline__ void ptx_mbarrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* One arrival, which the mbarrier's count includes, when all earlier cp.async of this thread have landed. */
static __device__ __forceinline__ void ptx_copy_async_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(bar) : "memory");
}
#endif

#endif
