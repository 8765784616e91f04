/* cluster.cuh: clusters, distributed shared memory, programmatic dependent launch and the registers of warpgroups, one
 * inline function an instruction. */
#ifndef RIDGE_PTX_CLUSTER_CUH
#define RIDGE_PTX_CLUSTER_CUH

#include <stdint.h>

/* Programmatic dependent launch, sm_90 up. griddepcontrol.wait: waits until the primary grids have completed and their
 * writes are visible; does nothing in an ordinary launch. */
static __device__ __forceinline__ void ptx_grid_dependency_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* griddepcontrol.launch_dependents: the dependent grid may be launched once every CTA has executed this or exited. It
 * orders no write: the dependent's ptx_grid_dependency_wait does. */
static __device__ __forceinline__ void ptx_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
/* True in one lane of a whole warp. The compiler knows that it is one: instructions with operands in uniform registers,
 * like those of TMA, are then no loops over the lanes. */
static __device__ __forceinline__ bool ptx_elect(void)
{
    uint32_t is;

    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.b32 %0, 1, 0, one;\n"
                 "}"
                 : "=r"(is));
    return is != 0;
}

/* setmaxnreg, sm_90a: this warpgroup keeps REGS registers a thread, or waits until others have freed as many. All warps
 * of the warpgroup execute it, converged. */
template <int REGS> static __device__ __forceinline__ void ptx_setmaxnreg_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(REGS));
}

template <int REGS> static __device__ __forceinline__ void ptx_setmaxnreg_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(REGS));
}

static __device__ __forceinline__ uint32_t ptx_cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The address in CTA `rank` of the cluster that corresponds to a shared-memory address of this CTA. */
static __device__ __forceinline__ uint32_t ptx_map(uint32_t shared, uint32_t rank)
{
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
    return remote;
}

/* A float of any CTA of the cluster (address: ptx_map). */
static __device__ __forceinline__ float ptx_load_cluster(uint32_t from)
{
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}

static __device__ __forceinline__ void ptx_store_cluster(uint32_t to, float x)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(to), "f"(x) : "memory");
}

static __device__ __forceinline__ void ptx_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* The two halves of ptx_cluster_sync. Relaxed: for threads that publish nothing but initialised mbarriers, which have a
 * fence of their own. */
static __device__ __forceinline__ void ptx_cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void ptx_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* 4, 8 or 16 bytes to shared memory of any CTA of the cluster; they count towards the mbarrier of that CTA. */
static __device__ __forceinline__ void ptx_store_async1(uint32_t to, float a, uint32_t bar)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 :
                 : "r"(to), "f"(a), "r"(bar)
                 : "memory");
}

static __device__ __forceinline__ void ptx_store_async2(uint32_t to, float a, float b, uint32_t bar)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 :
                 : "r"(to), "f"(a), "f"(b), "r"(bar)
                 : "memory");
}

static __device__ __forceinline__ void ptx_store_async4(uint32_t to, float a, float b, float c, float d, uint32_t bar)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :
                 : "r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(bar)
                 : "memory");
}
#endif

#endif
