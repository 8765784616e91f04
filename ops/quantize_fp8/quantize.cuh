/* quantize.cuh: what the files of the quantisers share: the arguments of their kernels, and groups of 8 elements in
 * memory order, kept raw in registers (16-bit elements two a word, f32 one) until they are encoded. */
#ifndef RIDGE_QUANTIZE_CUH
#define RIDGE_QUANTIZE_CUH

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/math/quantize.h"
#include "src/math/swiglu.h"
#include "src/util.h"

/* How a form scales: not at all, one scale for 128 columns of a row, one for a block of 128 x 128; or as the call says.
 */
enum { QUANTIZE_ABSENT = 0, QUANTIZE_ROW128, QUANTIZE_BLK128, QUANTIZE_BY_CALL };

/* One form: codes and their scale table, strides in elements. */
typedef struct quantize_out {
    uint8_t *q;
    float *scale;
    int64_t stride, ld;
} quantize_out;

typedef struct quantize_args {
    const char *x, *up; /* up, row_scale, o: with SwiGLU */
    int64_t stride, up_stride;
    int64_t rows, cols;
    int64_t rows_t;  /* columns of the transposed codes; `rows`, but for groups */
    uint32_t across; /* tiles, or units, a row */
    uint32_t ahead;  /* how many tiles ahead of its own a block prefetches one into L2 */
    int e5m2, pow2;
    int vector_x, vector_row, vector_col; /* 16-byte loads of x and up, 8-byte and 16-byte stores are aligned */
    int whole;                            /* all of them are */
    float floor;
    quantize_out row, col;
    float *sums;   /* [tiles][cols] */
    float *colsum; /* [cols] */
    const float *given;
    float *amax;
    uint32_t *partial; /* largest magnitude of every block of a grid */
    uint32_t partials;
    const float *row_scale;
    uint32_t flags;
    ridge_swiglu_options o;
} quantize_args;

/* Waits for the preceding kernels. A small grid, as for few tokens, triggers the programmatic launch of its dependent
 * before it waits: a GEMM after it may then prefetch its weights early. In a large grid the trigger takes time, and the
 * kernel issues it after its loads. */
static __device__ __forceinline__ void quantize_wait(void)
{
    if (gridDim.x <= 128)
        ptx_launch_dependents();
    ptx_grid_dependency_wait();
}

/* 32-bit words of 8 elements. */
#define QUANTIZE_WORDS(dtype) ((dtype) == RIDGE_F32 ? 8 : 4)

template <int DTYPE> static __device__ __forceinline__ void quantize_unpack(const uint32_t *raw, float *x)
{
    num_unpack<DTYPE>(make_uint4(raw[0], raw[1], raw[2], raw[3]), x);
    if (DTYPE == RIDGE_F32)
        num_unpack<DTYPE>(make_uint4(raw[4], raw[5], raw[6], raw[7]), x + 4);
}

/* n of 8 consecutive elements, raw; the others are 0. */
template <int DTYPE>
static __device__ __forceinline__ void quantize_load(const char *from, int64_t n, bool vector, uint32_t *raw)
{
    if (vector && n >= 8) {
        uint4 v = ptx_load_once(from);

        raw[0] = v.x, raw[1] = v.y, raw[2] = v.z, raw[3] = v.w;
        if (DTYPE == RIDGE_F32) {
            v = ptx_load_once(from + 16);
            raw[4] = v.x, raw[5] = v.y, raw[6] = v.z, raw[7] = v.w;
        }
        return;
    }
    if (DTYPE == RIDGE_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            raw[i] = i < n ? ((const uint32_t *)from)[i] : 0;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            raw[i] = (2 * i < n ? ((const uint16_t *)from)[2 * i] : 0) |
                     (2 * i + 1 < n ? (uint32_t)((const uint16_t *)from)[2 * i + 1] << 16 : 0);
    }
}

/* Magnitudes of a word. quantize_larger: the larger of two, per half for 16-bit elements (a NaN wins, since its bits
 * are the largest). */
template <int DTYPE> static __device__ __forceinline__ uint32_t quantize_magnitude(uint32_t word)
{
    return word & (DTYPE == RIDGE_F32 ? 0x7fffffffu : 0x7fff7fffu);
}

template <int DTYPE> static __device__ __forceinline__ uint32_t quantize_larger(uint32_t a, uint32_t b)
{
    return DTYPE == RIDGE_F32 ? max(a, b) : DTYPE == RIDGE_BF16 ? ptx_max_bf16x2(a, b) : ptx_max_f16x2(a, b);
}

/* The larger half of a word, as the bits of an f32. */
template <int DTYPE> static __device__ __forceinline__ uint32_t quantize_fold(uint32_t word)
{
    float lo, hi;

    if (DTYPE == RIDGE_F32)
        return word;
    num_unpack2<DTYPE>(word, &lo, &hi);
    return max(__float_as_uint(lo), __float_as_uint(hi));
}

/* The larger word of 8 elements. */
template <int DTYPE> static __device__ __forceinline__ uint32_t quantize_amax8(const uint32_t *raw)
{
    uint32_t most = quantize_magnitude<DTYPE>(raw[0]);

#pragma unroll
    for (int k = 1; k < QUANTIZE_WORDS(DTYPE); k++)
        most = quantize_larger<DTYPE>(most, quantize_magnitude<DTYPE>(raw[k]));
    return most;
}

static __device__ __forceinline__ float quantize_scale(const quantize_args &p, uint32_t amax)
{
    return ridge_fp8_scale(amax, p.floor, p.e5m2, p.pow2);
}

/* Stores the first n of 8 codes. */
static __device__ __forceinline__ void quantize_store8(uint8_t *to, const float *x, int64_t n, bool vector, bool e5m2)
{
    const uint2 v = make_uint2(num_fp8x4(x[0], x[1], x[2], x[3], e5m2), num_fp8x4(x[4], x[5], x[6], x[7], e5m2));

    if (vector && n >= 8) {
        ptx_store_once8(to, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n)
            to[i] = (uint8_t)((i < 4 ? v.x : v.y) >> (i % 4 * 8));
}

/* ------------------------------------------------------------------------------------------------------------ host */

static inline int64_t quantize_groups(int64_t n)
{
    return ridge_ceil_div(n, RIDGE_GROUP);
}

/* Codes in slot q, their scales in the slot after it. */
static inline quantize_out quantize_output(const ridge_call *call, int q)
{
    const ridge_operand *codes = &call->arg[q], *scale = &call->arg[q + 1];
    const quantize_out o = {(uint8_t *)codes->data, (float *)scale->data, codes->stride, scale->stride};

    return o;
}

static inline int quantize_aligned(const void *pointer, int64_t stride, int bytes)
{
    return ((uintptr_t)pointer | (uintptr_t)stride) % (uintptr_t)bytes == 0;
}

#define QUANTIZE_CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE)

#endif
