/* load_store.cuh: loads, stores and prefetches of global and shared memory, one inline function an instruction. */
#ifndef RIDGE_PTX_LOAD_STORE_CUH
#define RIDGE_PTX_LOAD_STORE_CUH

#include <stdint.h>

/* The shared-memory address that PTX instructions take. */
static __device__ __forceinline__ uint32_t ptx_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes that this thread reads once. A plain load: not .nc, since the caller may write the same address later in
 * this kernel (outputs may lie on inputs), and not L1::no_allocate, with which what other kernels left in L2 stays
 * there and the stores below lose room: 5 to 7 % of SwiGLU's time on an H200 as soon as other kernels ran in between.
 */
static __device__ __forceinline__ uint4 ptx_load_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

/* 16 bytes that are not read again soon: evicted first. */
static __device__ __forceinline__ void ptx_store_once(void *p, uint4 v)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* 8 bytes, likewise. */
static __device__ __forceinline__ void ptx_store_once8(void *p, uint2 v)
{
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" : : "l"(p), "r"(v.x), "r"(v.y) : "memory");
}

/* The L2 policies of data that is read once, and of other data. */
static __device__ __forceinline__ uint64_t ptx_policy_evict_first(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ __forceinline__ uint64_t ptx_policy_evict_normal(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* 16 bytes that no other thread reads, without a line in L1. */
static __device__ __forceinline__ uint4 ptx_load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

static __device__ __forceinline__ uint2 ptx_load8(const void *p)
{
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

/* The same with an L2 policy. */
static __device__ __forceinline__ uint2 ptx_load8_policy(const void *p, uint64_t policy)
{
    uint2 v;
    asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;" : "=r"(v.x), "=r"(v.y) : "l"(p), "l"(policy));
    return v;
}

/* Four 8 x 8 matrices of 16-bit words from shared memory: lane 8 i + r gives the address of row r of matrix i, and
 * receives in v[i] the word lane % 4 of row lane / 4. */
static __device__ __forceinline__ void ptx_ldmatrix4(uint32_t *v, uint32_t shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(shared)
                 : "memory");
}

/* The same matrices, each transposed. */
static __device__ __forceinline__ void ptx_ldmatrix4_transposed(uint32_t *v, uint32_t shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(shared)
                 : "memory");
}

/* 16, 8, 4 and 2 bytes from shared memory. Volatile: they stay behind the wait for the barrier that fills it. */
static __device__ __forceinline__ void ptx_load_shared4(float *v, uint32_t shared)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"(shared)
                 : "memory");
}

static __device__ __forceinline__ uint2 ptx_load_shared2(uint32_t shared)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared) : "memory");
    return v;
}

static __device__ __forceinline__ uint32_t ptx_load_shared1(uint32_t shared)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared) : "memory");
    return v;
}

static __device__ __forceinline__ uint16_t ptx_load_shared_half(uint32_t shared)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(shared) : "memory");
    return v;
}

/* The 64 bytes around an address to L2 only, where the writes of all kernels meet: allowed at any time, before
 * ptx_grid_dependency_wait too. */
static __device__ __forceinline__ void ptx_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p) : "memory");
}

#if __CUDA_ARCH__ >= 900
/* A flag in global memory that other CTAs poll: the store comes after this thread's earlier writes, ... */
static __device__ __forceinline__ void ptx_store_release(uint64_t *to, uint64_t x)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(to), "l"(x) : "memory");
}

/* ... and the load before its later reads. */
static __device__ __forceinline__ uint64_t ptx_load_acquire(const uint64_t *from)
{
    uint64_t x;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

/* Adds to four floats of global memory without waiting for them. */
static __device__ __forceinline__ void ptx_add_f32x4(float *to, float4 v)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* Four 8 x 8 matrices of 16 bits, one row a lane: lanes 8 i .. 8 i + 7 name the rows of matrix i, 16 bytes each. */
static __device__ __forceinline__ void ptx_store_matrix(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* Four 8 x 8 tiles of 16-bit elements to shared memory, transposed: lane 8 t + i gives the address of column i of tile
 * t; each lane holds row lane / 4, columns 2 (lane % 4) and the next, of every tile. */
static __device__ __forceinline__ void ptx_store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* A warp's 8 x 8 matrix of 16-bit elements, two a lane and row by row, transposed. */
static __device__ __forceinline__ uint32_t ptx_transpose(uint32_t v)
{
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    return t;
}

/* 4 bytes from global to shared memory, without registers (cp.async). */
static __device__ __forceinline__ void ptx_copy_async4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from) : "memory");
}

/* `bytes` bytes to L2; address and size are multiples of 16. */
static __device__ __forceinline__ void ptx_prefetch_l2_bulk(const void *p, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(bytes) : "memory");
}
#endif

#endif
