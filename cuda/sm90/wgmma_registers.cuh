/* wgmma_registers.cuh: the matrix instructions of wgmma.cuh whose A is in registers. */
#ifndef RIDGE_WGMMA_REGISTERS_CUH
#define RIDGE_WGMMA_REGISTERS_CUH

#include "wgmma_narrow.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* clang-format off */
#define WGMMA_FROM_REGISTERS(n, registers, operands, a0, a1, a2, a3, b_index, types, d, a, b) \
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " " registers ", {" a0 ", " a1 ", " a2 ", " a3 "}, " b_index \
                 ", p, 1, 1, 1;\n}" : operands(d) : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b))
/* clang-format on */

/* D (64 x N) += A (64 x 16) B (16 x N), 16-bit elements, N = 64 or 128: A's fragment in registers, which must stay as
 * they are until the product has been waited for; N is contiguous in B (wgmma_descriptor_mn). */
template <int N, int BF16>
static __device__ __forceinline__ void wgmma_from_registers(float *d, const uint32_t *a, uint64_t b)
{
    if constexpr (N == 128 && BF16)
        WGMMA_FROM_REGISTERS(128, WGMMA_REGISTERS_128, WGMMA_OPERANDS_128, "%64", "%65", "%66", "%67", "%68",
                             "bf16.bf16", d, a, b);
    else if constexpr (N == 128)
        WGMMA_FROM_REGISTERS(128, WGMMA_REGISTERS_128, WGMMA_OPERANDS_128, "%64", "%65", "%66", "%67", "%68", "f16.f16",
                             d, a, b);
    else if constexpr (BF16)
        WGMMA_FROM_REGISTERS(64, WGMMA_NARROW_REGISTERS_64, WGMMA_NARROW_OPERANDS_64, "%32", "%33", "%34", "%35", "%36",
                             "bf16.bf16", d, a, b);
    else
        WGMMA_FROM_REGISTERS(64, WGMMA_NARROW_REGISTERS_64, WGMMA_NARROW_OPERANDS_64, "%32", "%33", "%34", "%35", "%36",
                             "f16.f16", d, a, b);
}

#endif

#endif
