/* keep.cuh: addresses that a kernel computes before it waits for the preceding one and keeps in registers. ptxas would
 * compute them where they are used, behind the wait and again behind each barrier, from parameters and special
 * registers that take 20 to 50 clocks each. */
#ifndef RIDGE_KEEP_CUH
#define RIDGE_KEEP_CUH

#include "cuda/ptx/ptx.cuh"

/* An address in global memory, another one in each lane: through a shuffle ptxas does not look. All lanes call it. */
static __device__ __forceinline__ const char *keep_global(const void *p)
{
    const void *kept = (const void *)__shfl_sync(~0u, (unsigned long long)p, (int)threadIdx.x % 32);

    __builtin_assume(__isGlobal(kept));
    return (const char *)kept;
}

/* An address in shared memory, which is read from a special register once. */
static __device__ __forceinline__ char *keep_shared(const void *p)
{
    uint32_t at = ptx_shared(p);

    asm volatile("" : "+r"(at));
    return (char *)__cvta_shared_to_generic(at);
}

#endif
