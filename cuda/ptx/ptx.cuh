/* ptx.cuh: one inline function per PTX instruction that CUDA C has no name for. */
#ifndef RIDGE_PTX_CUH
#define RIDGE_PTX_CUH

#include <stdint.h>

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

/* 16 bytes that nobody reads soon. */
static __device__ __forceinline__ void ptx_store_once(void *p, uint4 v)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* (hi, lo) to two bf16, round to nearest even. NaN becomes 7FFF. */
static __device__ __forceinline__ uint32_t ptx_bf16x2(float hi, float lo)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

static __device__ __forceinline__ uint32_t ptx_f16x2(float hi, float lo)
{
    uint32_t v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

/* 2^x, error below 2^-22, results under the least normal are 0. */
static __device__ __forceinline__ float ptx_ex2(float x)
{
    float v;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
    return v;
}

static __device__ __forceinline__ float ptx_f32_from_f16(uint16_t h)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

/* Per half: v * 0 + sum. Stays 0 while no v is infinite or NaN. */
static __device__ __forceinline__ uint32_t ptx_taint_bf16x2(uint32_t v, uint32_t sum)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(v), "r"(0u), "r"(sum));
    return d;
}

static __device__ __forceinline__ uint32_t ptx_taint_f16x2(uint32_t v, uint32_t sum)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(v), "r"(0u), "r"(sum));
    return d;
}

/* Per half: the larger, NaN if either is NaN. */
static __device__ __forceinline__ uint32_t ptx_max_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

static __device__ __forceinline__ uint32_t ptx_max_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

#if __CUDA_ARCH__ >= 890
/* (hi, lo) to two fp8 codes, nearest even, saturating; NaN becomes 7F. sm_89 up. */
static __device__ __forceinline__ uint32_t ptx_e4m3x2(float hi, float lo)
{
    uint16_t v;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(hi), "f"(lo));
    return v;
}

static __device__ __forceinline__ uint32_t ptx_e5m2x2(float hi, float lo)
{
    uint16_t v;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(v) : "f"(hi), "f"(lo));
    return v;
}

/* (d, c, b, a) to four codes, d in the highest byte: the second conversion merges into the first one's register. */
static __device__ __forceinline__ uint32_t ptx_e4m3x4(float d, float c, float b, float a)
{
    uint32_t v;
    asm("{\n.reg .b16 lo, hi;\n"
        "cvt.rn.satfinite.e4m3x2.f32 lo, %3, %4;\n"
        "cvt.rn.satfinite.e4m3x2.f32 hi, %1, %2;\n"
        "mov.b32 %0, {lo, hi};\n}"
        : "=r"(v)
        : "f"(d), "f"(c), "f"(b), "f"(a));
    return v;
}

static __device__ __forceinline__ uint32_t ptx_e5m2x4(float d, float c, float b, float a)
{
    uint32_t v;
    asm("{\n.reg .b16 lo, hi;\n"
        "cvt.rn.satfinite.e5m2x2.f32 lo, %3, %4;\n"
        "cvt.rn.satfinite.e5m2x2.f32 hi, %1, %2;\n"
        "mov.b32 %0, {lo, hi};\n}"
        : "=r"(v)
        : "f"(d), "f"(c), "f"(b), "f"(a));
    return v;
}
#endif

/* 8 bytes that nobody reads soon. */
static __device__ __forceinline__ void ptx_store_once8(void *p, uint2 v)
{
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" : : "l"(p), "r"(v.x), "r"(v.y) : "memory");
}

/* Programmatic dependent launch, sm_90 up: wait for the kernels that this one depends on (no-op in an ordinary launch),
 * and let the next kernel's blocks be scheduled. */
static __device__ __forceinline__ void ptx_grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void ptx_grid_release(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The shared-memory address that PTX instructions take. */
static __device__ __forceinline__ uint32_t ptx_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
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

/* Named barriers 1 .. 15: wait for, or only announce, `threads` threads. */
static __device__ __forceinline__ void ptx_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void ptx_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

/* d += a b: a 16 x 32 and b 32 x 8 signed bytes, the sum in int32. */
static __device__ __forceinline__ void ptx_mma_s8(int32_t *d, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* d = a b + c in all elements: c stays where it is for the next product. */
static __device__ __forceinline__ void ptx_mma_s8_onto(int32_t *d, const uint32_t *a, const uint32_t *b, int32_t c)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
}

/* 16 bytes that no other thread reads, past the first cache; and 8 through it. */
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

#if __CUDA_ARCH__ >= 900
/* mbarriers: `count` arrivals and the announced bytes complete a phase. */
static __device__ __forceinline__ void ptx_mbarrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(bar), "r"(count) : "memory");
}

/* Makes initialised mbarriers visible to TMA and to the cluster. */
static __device__ __forceinline__ void ptx_mbarrier_fence_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void ptx_mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(bar) : "memory");
}

static __device__ __forceinline__ void ptx_mbarrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(bar), "r"(bytes) : "memory");
}

/* Waits until the phase of that parity is complete. */
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

/* A word that other CTAs wait for: written after, and read before, what it stands for. */
static __device__ __forceinline__ void ptx_store_release(uint64_t *to, uint64_t x)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" : : "l"(to), "l"(x) : "memory");
}

static __device__ __forceinline__ uint64_t ptx_load_acquire(const uint64_t *from)
{
    uint64_t x;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

/* A box of a tensor map to shared memory; its bytes count towards the mbarrier. x is the inner coordinate. */
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

static __device__ __forceinline__ void ptx_tma_load_3d_policy(uint32_t to, const void *map, int x, int y, int z,
                                                              uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;"
                 :
                 : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(policy)
                 : "memory");
}

/* What is read once goes first. */
static __device__ __forceinline__ uint64_t ptx_policy_evict_first(void)
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* A box of a three-dimensional map; x is the inner coordinate. */
static __device__ __forceinline__ void ptx_tma_load_3d(uint32_t to, const void *map, int x, int y, int z, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];"
        :
        : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z)
        : "memory");
}

/* 64 bytes, those around an address, to L2 only, where every kernel's writes meet: right at any time, before a wait
 * too. */
static __device__ __forceinline__ void ptx_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p) : "memory");
}

/* `bytes` of them; both are multiples of 16. From sm_90 on. */
static __device__ __forceinline__ void ptx_prefetch_l2_bulk(const void *p, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(bytes) : "memory");
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

/* Fetches a tensor map into the cache of maps. */
static __device__ __forceinline__ void ptx_prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}

/* The same box to the same place in every CTA of `mask`, completing on each one's mbarrier at that place. */
static __device__ __forceinline__ void ptx_tma_load_2d_multicast(uint32_t to, const void *map, int x, int y,
                                                                 uint32_t bar, uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 :
                 : "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}

/* A box from shared memory to a tensor map; commit, then wait until the sources have been read, or all is written. */
static __device__ __forceinline__ void ptx_tma_store_2d(const void *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 :
                 : "l"(map), "r"(from), "r"(x), "r"(y)
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

/* Four 8 x 8 tiles of 16-bit elements to shared memory, transposed: lane 8 t + i gives the address of column i of tile
 * t; each lane holds row lane / 4, columns 2 (lane % 4) and the next, of every tile. */
static __device__ __forceinline__ void ptx_store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* Adds to four floats of global memory without waiting for them. */
static __device__ __forceinline__ void ptx_add_f32x4(float *to, float4 v)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* 4 bytes from global to shared memory without registers; then, when all of this thread's have landed, one arrival that
 * the mbarrier's count already expects. */
static __device__ __forceinline__ void ptx_copy_async4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void ptx_copy_async_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(bar) : "memory");
}

/* Makes this thread's ordinary stores to shared memory visible to TMA and wgmma. */
static __device__ __forceinline__ void ptx_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Four 8 x 8 matrices of 16 bits, one row a lane: lanes 8 i .. 8 i + 7 name the rows of matrix i, 16 bytes each. */
static __device__ __forceinline__ void ptx_store_matrix(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
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

/* The address in the cluster of this place in CTA `rank`. */
static __device__ __forceinline__ uint32_t ptx_map(uint32_t shared, uint32_t rank)
{
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(rank));
    return remote;
}

/* Arrives at an mbarrier of the cluster. Orders reads that are complete, which is all that giving a stage back needs;
 * with .release.cluster the compiler puts a fence of the whole GPU in front, 1 us each. */
static __device__ __forceinline__ void ptx_mbarrier_arrive_cluster(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(bar) : "memory");
}

static __device__ __forceinline__ uint32_t ptx_cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

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

static __device__ __forceinline__ void ptx_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* The two halves of ptx_cluster_sync for threads that hand over nothing but initialised mbarriers: no fence. */
static __device__ __forceinline__ void ptx_cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void ptx_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* 8 or 16 bytes to shared memory of the cluster; they count towards the mbarrier beside them. */
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
