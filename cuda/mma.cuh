/* mma.cuh: what sm_80 and later have for a matrix product by warps: cp.async, ldmatrix, mma.sync, and fp8 codes as f16.
 *
 * Fragments (g = lane / 4, t = lane % 4): of the 16 x 32 codes of A, rows g and g + 8, codes 4 t .. 4 t + 3 of the
 * first and of the second 16 of k; of the 32 x 8 codes of B column g likewise. Results d[0], d[1]: row g, columns 2 t,
 * 2 t + 1; d[2], d[3]: row g + 8. With f16 the same four codes stand for k 2 t, 2 t + 1, 2 t + 8, 2 t + 9 in the order
 * 0, 2, 1, 3: any order of k serves that A and B share. */
#ifndef RIDGE_MMA_CUH
#define RIDGE_MMA_CUH

#include <stdint.h>

#include "cuda/ptx/load_store.cuh"

/* 16 bytes from global to shared memory, of which the first `bytes` are read and the rest become zero. */
static __device__ __forceinline__ void mma_copy16(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(bytes) : "memory");
}

/* 16 bytes, or zeros. */
static __device__ __forceinline__ void mma_copy16_if(uint32_t to, const void *from, bool wanted)
{
    asm volatile("{\n.reg .pred none;\nsetp.eq.b32 none, %2, 0;\n"
                 "cp.async.cg.shared.global [%0], [%1], 16, none;\n}"
                 :
                 : "r"(to), "l"(from), "r"((int)wanted)
                 : "memory");
}

static __device__ __forceinline__ void mma_copy4(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void mma_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `stages` - 2 of this thread's groups are in flight: with `stages` - 1 in flight, the oldest one.
 */
static __device__ __forceinline__ void mma_copy_wait(int stages)
{
    if (stages == 2)
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (stages == 3)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 2;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void mma_copy_wait_for(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

/* 16 bytes of each of ROWS rows, a multiple of 32, or so many and 8 or 16; lane l names rows l, l + 32, ..., which are
 * 128 bytes apart. v[i] receives bytes 4 t .. 4 t + 3 of row 8 i + g. */
template <int ROWS> static __device__ __forceinline__ void mma_load(uint32_t *v, uint32_t shared)
{
#pragma unroll
    for (int i = 0; i < ROWS / 8; i += 4)
        if (ROWS / 8 - i >= 4)
            ptx_ldmatrix4(v + i, shared + i * 8 * 128);
        else if (ROWS / 8 - i >= 2)
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                         : "=r"(v[i]), "=r"(v[i + 1])
                         : "r"(shared + i * 8 * 128)
                         : "memory");
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                         : "=r"(v[i])
                         : "r"(shared + i * 8 * 128)
                         : "memory");
}

static __device__ __forceinline__ void mma_write16(uint32_t shared, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(shared), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Four codes as f16, exactly: e5m2 is the upper half of an f16; e4m3 becomes 2^-8 of its value, and its NaN 480 of
 * those. The first and third, and the second and fourth. PRMT doubles the sign: s s s s s s s s s e e e e m m m, of
 * which the product with 128 leaves s s e e e e m m m and, from the lower half's sign, ones at the bottom of the upper
 * half. */
template <int E5M2> static __device__ __forceinline__ void mma_decode(uint32_t w, uint32_t *even, uint32_t *odd)
{
    if (E5M2) {
        *even = w << 8 & 0xff00ff00u;
        *odd = w & 0xff00ff00u;
    } else {
        uint32_t x, y;

        asm("prmt.b32 %0, %1, 0, 0xa280;" : "=r"(x) : "r"(w));
        asm("prmt.b32 %0, %1, 0, 0xb391;" : "=r"(y) : "r"(w));
        *even = x * 128 & 0xbf80bf80u;
        *odd = y * 128 & 0xbf80bf80u;
    }
}

#if __CUDA_ARCH__ >= 890
/* By the instruction of sm_89 up, to the value itself: the first two, and the last two. */
template <int E5M2> static __device__ __forceinline__ void mma_convert(uint32_t w, uint32_t *low, uint32_t *high)
{
    if (E5M2)
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\n"
            "cvt.rn.f16x2.e5m2x2 %0, l;\ncvt.rn.f16x2.e5m2x2 %1, h;\n}"
            : "=r"(*low), "=r"(*high)
            : "r"(w));
    else
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\n"
            "cvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
            : "=r"(*low), "=r"(*high)
            : "r"(w));
}
#endif

/* Bit 7 of a byte is set if a code of the 16 is e4m3's NaN. */
static __device__ __forceinline__ uint32_t mma_find_nan(uint4 v)
{
    const uint32_t low = 0x7f7f7f7fu, one = 0x01010101u;

    return (((v.x & low) + one) | ((v.y & low) + one) | ((v.z & low) + one) | ((v.w & low) + one));
}

/* d = a b + (keep ? d : 0), a 16 x 16, b 16 x 8 of f16. */
static __device__ __forceinline__ void mma_f16(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1, bool keep)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%10, %11, %12, %13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(keep ? d[0] : 0.0f),
                   "f"(keep ? d[1] : 0.0f), "f"(keep ? d[2] : 0.0f), "f"(keep ? d[3] : 0.0f));
}

/* d += a b, a 16 x 16, b 16 x 8 of bf16 or f16. */
template <int BF16> static __device__ __forceinline__ void mma_16(float *d, const uint32_t *a, const uint32_t *b)
{
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#if __CUDA_ARCH__ >= 890
#define MMA_FP8(types)                                                                                                \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%10, %11, %12, %13};"                                                                              \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                     \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(keep ? d[0] : 0.0f),                     \
                   "f"(keep ? d[1] : 0.0f), "f"(keep ? d[2] : 0.0f), "f"(keep ? d[3] : 0.0f))

/* The same of 16 x 32 and 32 x 8 codes, by the fp8 instruction of sm_89 up. */
template <int E5_A, int E5_B>
static __device__ __forceinline__ void mma_fp8(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1, bool keep)
{
    if (E5_A && E5_B)
        MMA_FP8("e5m2.e5m2");
    else if (E5_A)
        MMA_FP8("e5m2.e4m3");
    else if (E5_B)
        MMA_FP8("e4m3.e5m2");
    else
        MMA_FP8("e4m3.e4m3");
}
#endif

#endif
