/* wgmma_narrow.cuh: the matrix instructions of wgmma.cuh for few columns: 64 x N with N = 8, 16, 32, 48, 64, where
 * the 64 rows are weights and the columns tokens or the other way about, and 96, 160 and 192. */
#ifndef RIDGE_WGMMA_NARROW_CUH
#define RIDGE_WGMMA_NARROW_CUH

#include "wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* clang-format off */
#define WGMMA_NARROW_REGISTERS_8 "{" \
    "%0, %1, %2, %3" \
    "}"
#define WGMMA_NARROW_OPERANDS_8(d) \
    "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])
#define WGMMA_NARROW_REGISTERS_16 "{" \
    "%0, %1, %2, %3, %4, %5, %6, %7" \
    "}"
#define WGMMA_NARROW_OPERANDS_16(d) \
    "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7])
#define WGMMA_NARROW_REGISTERS_32 "{" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    "}"
#define WGMMA_NARROW_OPERANDS_32(d) \
    "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7]), \
    "+f"((d)[8]), "+f"((d)[9]), "+f"((d)[10]), "+f"((d)[11]), "+f"((d)[12]), "+f"((d)[13]), "+f"((d)[14]), "+f"((d)[15])
#define WGMMA_NARROW_REGISTERS_48 "{" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23" \
    "}"
#define WGMMA_NARROW_OPERANDS_48(d) \
    WGMMA_NARROW_OPERANDS_32(d), \
    "+f"((d)[16]), "+f"((d)[17]), "+f"((d)[18]), "+f"((d)[19]), "+f"((d)[20]), "+f"((d)[21]), "+f"((d)[22]), "+f"((d)[23])
#define WGMMA_NARROW_REGISTERS_64 "{" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
    "}"
#define WGMMA_NARROW_OPERANDS_64(d) \
    "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), "+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7]), \
    "+f"((d)[8]), "+f"((d)[9]), "+f"((d)[10]), "+f"((d)[11]), "+f"((d)[12]), "+f"((d)[13]), "+f"((d)[14]), "+f"((d)[15]), \
    "+f"((d)[16]), "+f"((d)[17]), "+f"((d)[18]), "+f"((d)[19]), "+f"((d)[20]), "+f"((d)[21]), "+f"((d)[22]), "+f"((d)[23]), \
    "+f"((d)[24]), "+f"((d)[25]), "+f"((d)[26]), "+f"((d)[27]), "+f"((d)[28]), "+f"((d)[29]), "+f"((d)[30]), "+f"((d)[31])
#define WGMMA_NARROW_REGISTERS_96 "{" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    "}"
#define WGMMA_NARROW_OPERANDS_96(d) \
    WGMMA_NARROW_OPERANDS_64(d), \
    "+f"((d)[32]), "+f"((d)[33]), "+f"((d)[34]), "+f"((d)[35]), "+f"((d)[36]), "+f"((d)[37]), "+f"((d)[38]), "+f"((d)[39]), \
    "+f"((d)[40]), "+f"((d)[41]), "+f"((d)[42]), "+f"((d)[43]), "+f"((d)[44]), "+f"((d)[45]), "+f"((d)[46]), "+f"((d)[47])
#define WGMMA_NARROW_REGISTERS_160 "{" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    "}"
#define WGMMA_NARROW_OPERANDS_160(d) \
    WGMMA_OPERANDS_128(d), \
    "+f"((d)[64]), "+f"((d)[65]), "+f"((d)[66]), "+f"((d)[67]), "+f"((d)[68]), "+f"((d)[69]), "+f"((d)[70]), "+f"((d)[71]), \
    "+f"((d)[72]), "+f"((d)[73]), "+f"((d)[74]), "+f"((d)[75]), "+f"((d)[76]), "+f"((d)[77]), "+f"((d)[78]), "+f"((d)[79])
#define WGMMA_NARROW_REGISTERS_192 WGMMA_REGISTERS_192
#define WGMMA_NARROW_OPERANDS_192(d) WGMMA_OPERANDS_192(d)
#define WGMMA_NARROW(n, a_index, b_index, keep_index, types, d, a, b, keep) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " keep_index ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." types " " WGMMA_NARROW_REGISTERS_##n ", " a_index ", " b_index \
                 ", p, 1, 1;\n}" : WGMMA_NARROW_OPERANDS_##n(d) : "l"(a), "l"(b), "r"(keep))
#define WGMMA_NARROW_BF16(n, a_index, b_index, d, a, b) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 " WGMMA_NARROW_REGISTERS_##n ", " a_index ", " b_index \
                 ", p, 1, 1, 0, 0;\n}" : WGMMA_NARROW_OPERANDS_##n(d) : "l"(a), "l"(b))
/* clang-format on */

#define WGMMA_NARROW_FORMATS(n, a_index, b_index, keep_index)                      \
    if (FORMATS == WGMMA_E4M3_E4M3)                                                \
        WGMMA_NARROW(n, a_index, b_index, keep_index, "e4m3.e4m3", d, a, b, keep); \
    if (FORMATS == WGMMA_E4M3_E5M2)                                                \
        WGMMA_NARROW(n, a_index, b_index, keep_index, "e4m3.e5m2", d, a, b, keep); \
    if (FORMATS == WGMMA_E5M2_E4M3)                                                \
    WGMMA_NARROW(n, a_index, b_index, keep_index, "e5m2.e4m3", d, a, b, keep)

/* D = A B + (keep ? D : 0) */
template <int N, int FORMATS>
static __device__ __forceinline__ void wgmma_fp8_narrow(float *d, uint64_t a, uint64_t b, int keep)
{
    if constexpr (N == 8) {
        WGMMA_NARROW_FORMATS(8, "%4", "%5", "%6");
    } else if constexpr (N == 16) {
        WGMMA_NARROW_FORMATS(16, "%8", "%9", "%10");
    } else if constexpr (N == 32) {
        WGMMA_NARROW_FORMATS(32, "%16", "%17", "%18");
    } else if constexpr (N == 48) {
        WGMMA_NARROW_FORMATS(48, "%24", "%25", "%26");
    } else if constexpr (N == 64) {
        WGMMA_NARROW_FORMATS(64, "%32", "%33", "%34");
    } else if constexpr (N == 96) {
        WGMMA_NARROW_FORMATS(96, "%48", "%49", "%50");
    } else if constexpr (N == 192) {
        WGMMA_NARROW_FORMATS(192, "%96", "%97", "%98");
    } else {
        WGMMA_NARROW_FORMATS(160, "%80", "%81", "%82");
    }
}

/* Rows of 16 bytes, packed; elements 8 .. 15 of k are 0 .. 7 again. The low word holds 14 bits of the address:
 * those above name the CTA. */
static __device__ __forceinline__ uint32_t wgmma_low_rows16(uint32_t shared)
{
    return shared >> 4 & 0x3fff;
}

static __device__ __forceinline__ uint64_t wgmma_descriptor_rows16(uint32_t low)
{
    return (uint64_t)(128 >> 4) << 32 | low;
}

/* D (64 x 96) = A (64 x 16) B (96 x 16)^T, bf16. */
static __device__ __forceinline__ void wgmma_bf16_96(float *d, uint64_t a, uint64_t b)
{
    WGMMA_NARROW_BF16(96, "%48", "%49", d, a, b);
}

#endif

#endif
