/* num.cuh: elements between memory and f32 registers: bf16, f16, f32, with canonical NaN when stored.
 * The counterpart of cpu/num.h; the same bits. */
#ifndef RIDGE_NUM_CUH
#define RIDGE_NUM_CUH

#include "src/math/exact.h"
#include "cuda/ptx/ptx.cuh"
#include "ridge.h"

/* Two 16-bit elements of a word as f32. */
template <int DTYPE> static __device__ __forceinline__ void num_unpack2(uint32_t word, float *lo, float *hi)
{
    if (DTYPE == RIDGE_BF16) {
        *lo = __uint_as_float(word << 16);
        *hi = __uint_as_float(word & 0xffff0000u);
    } else {
        *lo = ptx_f32_from_f16((uint16_t)word);
        *hi = ptx_f32_from_f16((uint16_t)(word >> 16));
    }
}

/* Two f32 rounded to a word of two 16-bit elements; a NaN is 7FFF here. */
template <int DTYPE> static __device__ __forceinline__ uint32_t num_pack2(float lo, float hi)
{
    return DTYPE == RIDGE_BF16 ? ptx_bf16x2(hi, lo) : ptx_f16x2(hi, lo);
}

/* x rounded to the dtype. */
template <int DTYPE> static __device__ __forceinline__ float num_round(float x)
{
    float lo, hi;

    if (DTYPE == RIDGE_F32)
        return x;
    num_unpack2<DTYPE>(num_pack2<DTYPE>(x, 0.0f), &lo, &hi);
    return lo;
}

/* A 16-bit element with any NaN made canonical. */
template <int DTYPE> static __device__ __forceinline__ uint32_t num_canonical(uint32_t half)
{
    const uint32_t infinity = DTYPE == RIDGE_BF16 ? 0x7f80u : 0x7c00u, nan = DTYPE == RIDGE_BF16 ? 0x7fc0u : 0x7e00u;

    return (half & 0x7fffu) > infinity ? nan : half;
}

static __device__ __forceinline__ uint32_t num_canonical_f32(float x)
{
    return x == x ? __float_as_uint(x) : 0x7fc00000u;
}

/* The rare second half of num_pack: a NaN or an infinity is among the words. */
template <int DTYPE> static __device__ __forceinline__ uint4 num_canonical_words(uint4 v)
{
    uint32_t w[4] = {v.x, v.y, v.z, v.w};

    for (int i = 0; i < 4; i++)
        w[i] = num_canonical<DTYPE>(w[i] & 0xffffu) | num_canonical<DTYPE>(w[i] >> 16) << 16;
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* 16 bytes to f32: 8 elements, or 4 of f32. */
template <int DTYPE> static __device__ __forceinline__ void num_unpack(uint4 v, float *x)
{
    if (DTYPE == RIDGE_F32) {
        x[0] = __uint_as_float(v.x);
        x[1] = __uint_as_float(v.y);
        x[2] = __uint_as_float(v.z);
        x[3] = __uint_as_float(v.w);
    } else {
        num_unpack2<DTYPE>(v.x, x, x + 1);
        num_unpack2<DTYPE>(v.y, x + 2, x + 3);
        num_unpack2<DTYPE>(v.z, x + 4, x + 5);
        num_unpack2<DTYPE>(v.w, x + 6, x + 7);
    }
}

/* f32 to 16 bytes, rounded, NaN canonical. The hardware's NaN is 7FFF: one fused multiply-add by zero a word tests for
 * any, which costs 5 instructions for 8 elements instead of 3 for each. */
template <int DTYPE> static __device__ __forceinline__ uint4 num_pack(const float *x)
{
    uint4 v;
    uint32_t taint;

    if (DTYPE == RIDGE_F32)
        return make_uint4(num_canonical_f32(x[0]), num_canonical_f32(x[1]), num_canonical_f32(x[2]),
                          num_canonical_f32(x[3]));
    v = make_uint4(num_pack2<DTYPE>(x[0], x[1]), num_pack2<DTYPE>(x[2], x[3]), num_pack2<DTYPE>(x[4], x[5]),
                   num_pack2<DTYPE>(x[6], x[7]));
    if (DTYPE == RIDGE_BF16)
        taint = ptx_taint_bf16x2(v.x, ptx_taint_bf16x2(v.y, ptx_taint_bf16x2(v.z, ptx_taint_bf16x2(v.w, 0))));
    else
        taint = ptx_taint_f16x2(v.x, ptx_taint_f16x2(v.y, ptx_taint_f16x2(v.z, ptx_taint_f16x2(v.w, 0))));
    if (taint & 0x7fff7fffu)
        v = num_canonical_words<DTYPE>(v);
    return v;
}

/* The fp8 code of x as cpu/num.h has it, in integers: for devices without the instruction. */
static __device__ __forceinline__ uint32_t num_fp8_software(float x, bool e5m2)
{
    const uint32_t shift = e5m2 ? 21 : 20, most = e5m2 ? 0x47600000u : 0x43e00000u;
    const uint32_t least = e5m2 ? 0x38800000u : 0x3c800000u, bias = e5m2 ? 112u << 2 : 120u << 3;
    const float magic = e5m2 ? 0x1p7f : 0x1p14f;
    const uint32_t u = __float_as_uint(x), mag = u & 0x7fffffffu, cut = min(mag, most);
    const uint32_t normal = ((cut + ((1u << (shift - 1)) - 1) + ((cut >> shift) & 1u)) >> shift) - bias;
    const uint32_t small = __float_as_uint(__uint_as_float(cut) + magic) - __float_as_uint(magic);
    const uint32_t r = cut < least ? small : normal;

    return mag > 0x7f800000u ? 0x7fu : r | (u >> 24 & 0x80u);
}

#if __CUDA_ARCH__ < 890
/* Four codes. A call, since tiles convert 128 values a thread: inlined, sm_80's code took 71 of the 122 CPU seconds
 * that quantize_fp8/tile.cu compiles for three architectures. */
static __device__ __noinline__ uint32_t num_fp8x4_software(float a, float b, float c, float d, bool e5m2)
{
    return num_fp8_software(d, e5m2) << 24 | num_fp8_software(c, e5m2) << 16 | num_fp8_software(b, e5m2) << 8 |
           num_fp8_software(a, e5m2);
}
#endif

/* Two fp8 codes, hi << 8 | lo. */
static __device__ __forceinline__ uint32_t num_fp8x2(float hi, float lo, bool e5m2)
{
#if __CUDA_ARCH__ >= 890
    return e5m2 ? ptx_e5m2x2(hi, lo) : ptx_e4m3x2(hi, lo);
#else
    return num_fp8_software(hi, e5m2) << 8 | num_fp8_software(lo, e5m2);
#endif
}

/* Four, the first in the lowest byte. */
static __device__ __forceinline__ uint32_t num_fp8x4(float a, float b, float c, float d, bool e5m2)
{
#if __CUDA_ARCH__ >= 890
    return e5m2 ? ptx_e5m2x4(d, c, b, a) : ptx_e4m3x4(d, c, b, a);
#else
    return num_fp8x4_software(a, b, c, d, e5m2);
#endif
}

template <int DTYPE> static __device__ __forceinline__ float num_load(const void *base, int64_t i)
{
    float lo, hi;

    if (DTYPE == RIDGE_F32)
        return ((const float *)base)[i];
    num_unpack2<DTYPE>(((const uint16_t *)base)[i], &lo, &hi);
    return lo;
}

template <int DTYPE> static __device__ __forceinline__ void num_store(void *base, int64_t i, float x)
{
    if (DTYPE == RIDGE_F32)
        ((uint32_t *)base)[i] = num_canonical_f32(x);
    else
        ((uint16_t *)base)[i] = (uint16_t)num_canonical<DTYPE>(num_pack2<DTYPE>(x, 0.0f) & 0xffffu);
}

#endif
