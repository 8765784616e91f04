/* wgmma.cuh: the warpgroup matrix instructions of sm_90a: D (64 x N, f32 registers) += A (64 x 32 fp8) B (N x 32 fp8),
 * both in shared memory, K contiguous in rows of 128 bytes with the 128-byte swizzle. Thread t of the warpgroup holds
 * rows 16 (t / 32) + (t % 32) / 4 and 8 more, columns 8 j + 2 (t % 4) and the next: d[4 j], d[4 j + 1] of the first
 * row, d[4 j + 2], d[4 j + 3] of the second. */
#ifndef RIDGE_WGMMA_CUH
#define RIDGE_WGMMA_CUH

#include <stdint.h>

/* Formats of A and B. */
enum { WGMMA_E4M3_E4M3 = 0, WGMMA_E4M3_E5M2, WGMMA_E5M2_E4M3 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Descriptor of a tile whose rows are 128 bytes, at a multiple of 1024 bytes; + 2 for each step of 32 along K. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t shared)
{
    return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same from its low word. */
static __device__ __forceinline__ uint64_t wgmma_descriptor_of(uint32_t low)
{
    return (uint64_t)(1024 >> 4 | 1u << 30) << 32 | low;
}

/* Orders the registers of D between ordinary instructions and wgmma. */
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Descriptor of 16-bit elements whose M (or N) is contiguous: rows of 64 of those for each k, 128-byte swizzle, panels
 * of 64 `panel` bytes apart; + 128 for each step of 16 along K. */
static __device__ __forceinline__ uint64_t wgmma_descriptor_mn(uint32_t shared, uint32_t panel)
{
    return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Waits for all but the last group. */
static __device__ __forceinline__ void wgmma_wait_before(void)
{
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

/* Waits for all groups. */
static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* clang-format off */
/* Registers 0 to 63, 64 to 95, 96 to 127. */
#define WGMMA_REGISTERS_A \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_OPERANDS_A(d) \
    "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7]), \
    "+f"((d)[8]), "+f"((d)[9]), "+f"((d)[10]), "+f"((d)[11]), "+f"((d)[12]), "+f"((d)[13]), "+f"((d)[14]), "+f"((d)[15]), \
    "+f"((d)[16]), "+f"((d)[17]), "+f"((d)[18]), "+f"((d)[19]), "+f"((d)[20]), "+f"((d)[21]), "+f"((d)[22]), "+f"((d)[23]), \
    "+f"((d)[24]), "+f"((d)[25]), "+f"((d)[26]), "+f"((d)[27]), "+f"((d)[28]), "+f"((d)[29]), "+f"((d)[30]), "+f"((d)[31]), \
    "+f"((d)[32]), "+f"((d)[33]), "+f"((d)[34]), "+f"((d)[35]), "+f"((d)[36]), "+f"((d)[37]), "+f"((d)[38]), "+f"((d)[39]), \
    "+f"((d)[40]), "+f"((d)[41]), "+f"((d)[42]), "+f"((d)[43]), "+f"((d)[44]), "+f"((d)[45]), "+f"((d)[46]), "+f"((d)[47]), \
    "+f"((d)[48]), "+f"((d)[49]), "+f"((d)[50]), "+f"((d)[51]), "+f"((d)[52]), "+f"((d)[53]), "+f"((d)[54]), "+f"((d)[55]), \
    "+f"((d)[56]), "+f"((d)[57]), "+f"((d)[58]), "+f"((d)[59]), "+f"((d)[60]), "+f"((d)[61]), "+f"((d)[62]), "+f"((d)[63])
#define WGMMA_REGISTERS_B \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_OPERANDS_B(d) \
    "+f"((d)[64]), "+f"((d)[65]), "+f"((d)[66]), "+f"((d)[67]), "+f"((d)[68]), "+f"((d)[69]), "+f"((d)[70]), "+f"((d)[71]), \
    "+f"((d)[72]), "+f"((d)[73]), "+f"((d)[74]), "+f"((d)[75]), "+f"((d)[76]), "+f"((d)[77]), "+f"((d)[78]), "+f"((d)[79]), \
    "+f"((d)[80]), "+f"((d)[81]), "+f"((d)[82]), "+f"((d)[83]), "+f"((d)[84]), "+f"((d)[85]), "+f"((d)[86]), "+f"((d)[87]), \
    "+f"((d)[88]), "+f"((d)[89]), "+f"((d)[90]), "+f"((d)[91]), "+f"((d)[92]), "+f"((d)[93]), "+f"((d)[94]), "+f"((d)[95])
#define WGMMA_REGISTERS_C \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_OPERANDS_C(d) \
    "+f"((d)[96]), "+f"((d)[97]), "+f"((d)[98]), "+f"((d)[99]), "+f"((d)[100]), "+f"((d)[101]), "+f"((d)[102]), "+f"((d)[103]), \
    "+f"((d)[104]), "+f"((d)[105]), "+f"((d)[106]), "+f"((d)[107]), "+f"((d)[108]), "+f"((d)[109]), "+f"((d)[110]), "+f"((d)[111]), \
    "+f"((d)[112]), "+f"((d)[113]), "+f"((d)[114]), "+f"((d)[115]), "+f"((d)[116]), "+f"((d)[117]), "+f"((d)[118]), "+f"((d)[119]), \
    "+f"((d)[120]), "+f"((d)[121]), "+f"((d)[122]), "+f"((d)[123]), "+f"((d)[124]), "+f"((d)[125]), "+f"((d)[126]), "+f"((d)[127])
#define WGMMA_REGISTERS_128 "{" WGMMA_REGISTERS_A "}"
#define WGMMA_OPERANDS_128(d) WGMMA_OPERANDS_A(d)
#define WGMMA_REGISTERS_192 "{" WGMMA_REGISTERS_A ", " WGMMA_REGISTERS_B "}"
#define WGMMA_OPERANDS_192(d) WGMMA_OPERANDS_A(d), WGMMA_OPERANDS_B(d)
#define WGMMA_REGISTERS_256 "{" WGMMA_REGISTERS_A ", " WGMMA_REGISTERS_B ", " WGMMA_REGISTERS_C "}"
#define WGMMA_OPERANDS_256(d) WGMMA_OPERANDS_A(d), WGMMA_OPERANDS_B(d), WGMMA_OPERANDS_C(d)
#define WGMMA_128(types, d, a, b, keep) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32." types " " WGMMA_REGISTERS_128 ", %64, %65, p, 1, 1;\n}" \
                 : WGMMA_OPERANDS_128(d) : "l"(a), "l"(b), "r"(keep))
#define WGMMA_128_16BIT(types, d, a, b, keep, major_a, major_b) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." types " " WGMMA_REGISTERS_128 \
                 ", %64, %65, p, 1, 1, %67, %68;\n}" \
                 : WGMMA_OPERANDS_128(d) : "l"(a), "l"(b), "r"(keep), "n"(major_a), "n"(major_b))
#define WGMMA_192(types, d, a, b, keep, major_a, major_b) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32." types " " WGMMA_REGISTERS_192 \
                 ", %96, %97, p, 1, 1, %99, %100;\n}" \
                 : WGMMA_OPERANDS_192(d) : "l"(a), "l"(b), "r"(keep), "n"(major_a), "n"(major_b))
#define WGMMA_256(types, d, a, b, keep, major_a, major_b) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." types " " WGMMA_REGISTERS_256 \
                 ", %128, %129, p, 1, 1, %131, %132;\n}" \
                 : WGMMA_OPERANDS_256(d) : "l"(a), "l"(b), "r"(keep), "n"(major_a), "n"(major_b))
/* clang-format on */

/* D = A B + (keep ? D : 0) */
template <int N, int FORMATS>
static __device__ __forceinline__ void wgmma_fp8(float *d, uint64_t a, uint64_t b, int keep)
{
    if (N == 128 && FORMATS == WGMMA_E4M3_E4M3)
        WGMMA_128("e4m3.e4m3", d, a, b, keep);
    if (N == 128 && FORMATS == WGMMA_E4M3_E5M2)
        WGMMA_128("e4m3.e5m2", d, a, b, keep);
    if (N == 128 && FORMATS == WGMMA_E5M2_E4M3)
        WGMMA_128("e5m2.e4m3", d, a, b, keep);
}

/* D (64 x N) = A (64 x 16) B (N x 16)^T + (keep ? D : 0), 16-bit elements, N = 128, 192 or 256. MN_A, MN_B: M or N is
 * contiguous and the descriptor is wgmma_descriptor_mn's; else K is, + 2 for each step of 16. */
template <int N, int BF16, int MN_A, int MN_B>
static __device__ __forceinline__ void wgmma_16bit(float *d, uint64_t a, uint64_t b, int keep)
{
    if constexpr (N == 128 && BF16)
        WGMMA_128_16BIT("bf16.bf16", d, a, b, keep, MN_A, MN_B);
    else if constexpr (N == 128)
        WGMMA_128_16BIT("f16.f16", d, a, b, keep, MN_A, MN_B);
    else if constexpr (N == 192 && BF16)
        WGMMA_192("bf16.bf16", d, a, b, keep, MN_A, MN_B);
    else if constexpr (N == 192)
        WGMMA_192("f16.f16", d, a, b, keep, MN_A, MN_B);
    else if constexpr (BF16)
        WGMMA_256("bf16.bf16", d, a, b, keep, MN_A, MN_B);
    else
        WGMMA_256("f16.f16", d, a, b, keep, MN_A, MN_B);
}

/* Keeps the compiler from moving ordinary uses of D across a wait. */
template <int N> static __device__ __forceinline__ void wgmma_pin(float *d)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#endif

#endif
