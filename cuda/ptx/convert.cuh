/* convert.cuh: conversions and arithmetic in registers, one inline function an instruction. */
#ifndef RIDGE_PTX_CONVERT_CUH
#define RIDGE_PTX_CONVERT_CUH

#include <stdint.h>

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

static __device__ __forceinline__ float ptx_f32_from_f16(uint16_t h)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
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

/* 2^x, error below 2^-22, results under the least normal are 0. */
static __device__ __forceinline__ float ptx_ex2(float x)
{
    float v;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(x));
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

/* Four bytes of a and b (0 .. 7), by the low four nibbles of `select`; 8 + i: the sign of byte i in all bits. */
static __device__ __forceinline__ uint32_t ptx_prmt(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(select));
    return d;
}

/* d += a b: a 16 x 32 and b 32 x 8 signed bytes, the sum in int32. */
static __device__ __forceinline__ void ptx_mma_s8(int32_t *d, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The same with 16 columns: a 16 x 16, b 16 x 8. */
static __device__ __forceinline__ void ptx_mma_s8_k16(int32_t *d, const uint32_t *a, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* d = a b + c in every element; c stays in its register for the next product. */
static __device__ __forceinline__ void ptx_mma_s8_onto(int32_t *d, const uint32_t *a, const uint32_t *b, int32_t c)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
}

#endif
