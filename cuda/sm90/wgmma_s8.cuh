/* wgmma_s8.cuh: the warpgroup matrix instruction of wgmma.cuh for int8: D (64 x N, s32 registers) = A (64 x 32)
 * B (N x 32)^T, both in shared memory in rows of 64 bytes with the 64-byte swizzle, or A in registers. D as in
 * wgmma.cuh. */
#ifndef RIDGE_WGMMA_S8_CUH
#define RIDGE_WGMMA_S8_CUH

#include "wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Descriptor of a tile whose rows are 64 bytes, at a multiple of 512 bytes, from the 14 bits of its address in units of
 * 16 bytes; + 2 for each step of 32 along K. */
static __device__ __forceinline__ uint64_t wgmma_descriptor_rows64(uint32_t low)
{
    return (uint64_t)(512 >> 4 | 1u << 31) << 32 | low;
}

/* clang-format off */
#define WGMMA_S8_OPERANDS_16(d) \
    "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3]), "+r"((d)[4]), "+r"((d)[5]), "+r"((d)[6]), "+r"((d)[7]), \
    "+r"((d)[8]), "+r"((d)[9]), "+r"((d)[10]), "+r"((d)[11]), "+r"((d)[12]), "+r"((d)[13]), "+r"((d)[14]), "+r"((d)[15])
#define WGMMA_S8_OPERANDS_32(d) WGMMA_S8_OPERANDS_16(d), WGMMA_S8_OPERANDS_16((d) + 16)
#define WGMMA_S8_REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_S8_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_S8(n, registers, a_index, b_index, operands, a, b) \
    asm volatile("{\n.reg .pred onto;\nsetp.ne.b32 onto, 0, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.s8 {" registers "}, " a_index ", " b_index ", onto;\n}" \
                 : operands : "l"(a), "l"(b))
/* clang-format on */

/* N = 32 or 64. */
template <int N> static __device__ __forceinline__ void wgmma_s8(int32_t *d, uint64_t a, uint64_t b)
{
    if constexpr (N == 32)
        WGMMA_S8(32, WGMMA_S8_REGISTERS_16, "%16", "%17", WGMMA_S8_OPERANDS_16(d), a, b);
    else
        WGMMA_S8(64, WGMMA_S8_REGISTERS_32, "%32", "%33", WGMMA_S8_OPERANDS_32(d), a, b);
}

/* clang-format off */
#define WGMMA_S8_OPERANDS_8(d) \
    "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3]), "+r"((d)[4]), "+r"((d)[5]), "+r"((d)[6]), "+r"((d)[7])
#define WGMMA_S8_FROM_REGISTERS(n, registers, operands, a0, a1, a2, a3, b_index, a, b) \
    asm volatile("{\n.reg .pred onto;\nsetp.ne.b32 onto, 0, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.s8 {" registers "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b_index \
                 ", onto;\n}" : operands : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b))
/* clang-format on */

/* The same with A's fragment in registers, that of mma.m16n8k32 for each warp's 16 rows, which must stay as it is until
 * the product has been waited for. N = 16, 32 or 64. */
template <int N> static __device__ __forceinline__ void wgmma_s8_registers(int32_t *d, const uint32_t *a, uint64_t b)
{
    if constexpr (N == 16)
        WGMMA_S8_FROM_REGISTERS(16, "%0, %1, %2, %3, %4, %5, %6, %7", WGMMA_S8_OPERANDS_8(d), "%8", "%9", "%10", "%11",
                                "%12", a, b);
    else if constexpr (N == 32)
        WGMMA_S8_FROM_REGISTERS(32, WGMMA_S8_REGISTERS_16, WGMMA_S8_OPERANDS_16(d), "%16", "%17", "%18", "%19", "%20",
                                a, b);
    else
        WGMMA_S8_FROM_REGISTERS(64, WGMMA_S8_REGISTERS_32, WGMMA_S8_OPERANDS_32(d), "%32", "%33", "%34", "%35", "%36",
                                a, b);
}

/* Keeps the compiler from moving ordinary uses of D across a wait. */
template <int N> static __device__ __forceinline__ void wgmma_pin_s32(int32_t *d)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

#endif

#endif
