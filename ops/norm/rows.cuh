/* rows.cuh: what add_norm.cu, bwd.cu and rope.cu share: columns of a row in registers, and its sums in canonical order.
 *
 * Column j belongs to partial sum j % 256 of the canonical order (src/math/norm.h). Where W warps work on a row, a
 * thread has V = 8 / W consecutive columns of every 256, and V partial sums. A thread of a fast kernel loads all its
 * columns before it uses the first, and keeps them raw: 16-bit elements two a word, f32 one; these kernels take
 * operands of one dtype (weights may be f32). The kernels for everything else have eight warps a row, V = 1, read
 * element by element, and what they read twice comes from L1. */
#ifndef RIDGE_NORM_ROWS_CUH
#define RIDGE_NORM_ROWS_CUH

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/math/q8_0.h"
#include "src/util.h"

enum { PARTS = RIDGE_NORM_PARTS, FAST_THREADS = 128, ANY_THREADS = PARTS };

/* Words that hold so many columns. */
#define ROWS_WORDS(dtype, columns) ((dtype) == RIDGE_F32 ? (columns) : (columns) / 2)

/* The word that holds two 16-bit elements, or one f32, of value 1 or -0: what stands for operands that are absent. A
 * product with 1 and a sum with -0 leave every number as it is. */
#define ROWS_ONE(dtype) ((dtype) == RIDGE_F32 ? 0x3f800000u : (dtype) == RIDGE_BF16 ? 0x3f803f80u : 0x3c003c00u)
#define ROWS_NONE(dtype) ((dtype) == RIDGE_F32 ? 0x80000000u : 0x80008000u)

/* This thread's V columns of every 256 from `at` on, `left` columns before the row's end; `other` where there are none,
 * or no operand. */
template <int DTYPE, int V, int COLUMNS>
static __device__ __forceinline__ void rows_load(const char *at, int left, uint32_t other, uint32_t *raw)
{
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2, RUN = ROWS_WORDS(DTYPE, V);

#pragma unroll
    for (int i = 0; i < COLUMNS / V; i++) {
        const char *from = at + (int64_t)PARTS * SIZE * i;
        const bool in = PARTS * i < left;

        if (RUN == 1) {
            raw[i] = in ? *(const uint32_t *)from : other;
        } else if (RUN == 2) {
            const uint2 v = in ? *(const uint2 *)from : make_uint2(other, other);
            raw[2 * i] = v.x, raw[2 * i + 1] = v.y;
        } else {
#pragma unroll
            for (int k = 0; k < RUN; k += 4) {
                const uint4 v = in ? *(const uint4 *)(from + 4 * k) : make_uint4(other, other, other, other);
                raw[RUN * i + k] = v.x, raw[RUN * i + k + 1] = v.y;
                raw[RUN * i + k + 2] = v.z, raw[RUN * i + k + 3] = v.w;
            }
        }
    }
}

template <int DTYPE, int V, int COLUMNS>
static __device__ __forceinline__ void rows_store(char *at, int left, const uint32_t *raw)
{
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2, RUN = ROWS_WORDS(DTYPE, V);

#pragma unroll
    for (int i = 0; i < COLUMNS / V; i++) {
        char *to = at + (int64_t)PARTS * SIZE * i;

        if (PARTS * i >= left)
            continue;
        if (RUN == 1)
            *(uint32_t *)to = raw[i];
        else if (RUN == 2)
            *(uint2 *)to = make_uint2(raw[2 * i], raw[2 * i + 1]);
        else
#pragma unroll
            for (int k = 0; k < RUN; k += 4)
                *(uint4 *)(to + 4 * k) =
                    make_uint4(raw[RUN * i + k], raw[RUN * i + k + 1], raw[RUN * i + k + 2], raw[RUN * i + k + 3]);
    }
}

/* Column k of those that raw holds. */
template <int DTYPE> static __device__ __forceinline__ float rows_value(const uint32_t *raw, int k)
{
    float lo, hi;

    if (DTYPE == RIDGE_F32)
        return __uint_as_float(raw[k]);
    num_unpack2<DTYPE>(raw[k / 2], &lo, &hi);
    return k % 2 ? hi : lo;
}

/* One or two f32 to a word, rounded; *taint stays 0 while none of a thread's 16-bit elements is NaN or infinite. */
template <int DTYPE> static __device__ __forceinline__ uint32_t rows_word(const float *v, uint32_t *taint)
{
    uint32_t word;

    if (DTYPE == RIDGE_F32)
        return num_canonical_f32(v[0]);
    word = num_pack2<DTYPE>(v[0], v[1]);
    *taint = DTYPE == RIDGE_BF16 ? ptx_taint_bf16x2(word, *taint) : ptx_taint_f16x2(word, *taint);
    return word;
}

/* The rare second half of rows_word: NaN made canonical. */
template <int DTYPE, int WORDS> static __device__ __forceinline__ void rows_mend(uint32_t *raw, uint32_t taint)
{
    if constexpr (DTYPE != RIDGE_F32)
        if (taint & 0x7fff7fffu) {
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                raw[i] = num_canonical<DTYPE>(raw[i] & 0xffffu) | num_canonical<DTYPE>(raw[i] >> 16) << 16;
        }
}

/* The same words, of which the compiler forgets what it knows: it unpacks them again instead of keeping both forms in
 * registers. */
template <int WORDS> static __device__ __forceinline__ void rows_forget(uint32_t *raw)
{
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        asm volatile("" : "+r"(raw[i]));
}

/* Waits for the threads of a row. */
template <int W> static __device__ __forceinline__ void rows_sync(void)
{
    if (W == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* The sum of the 256 partial sums of a row in the tree's order, in every thread: each warp reads all of them, adds
 * halves onto halves down to 32 in registers, and the rest by shuffles. */
static __device__ __forceinline__ float rows_tree(const float *part)
{
    float v[8];

#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = part[threadIdx.x % 32 + 32 * i];
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            v[i] += v[i + s];
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
        v[0] += __shfl_xor_sync(~0u, v[0], s);
    return v[0];
}

/* A warp's blocks of Q8_0, of which v[k] is this lane's element of block k: lane k gets the scale of block k, and by *r
 * its reciprocal, so that the divisions are made once. */
template <int BLOCKS> static __device__ __forceinline__ float rows_scales(const float *v, float *r)
{
    uint32_t most = 0;

#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        const uint32_t block = __reduce_max_sync(~0u, ridge_magnitude(v[k]));

        most = (int)threadIdx.x % 32 == k ? block : most;
    }
    return ridge_q8_0_x_scale(most, r);
}

/* One element of any dtype. */
static __device__ __forceinline__ float rows_element(const norm_matrix &m, int64_t row, int64_t j)
{
    const char *from = m.data + row * m.stride;

    return m.dtype == RIDGE_F32    ? num_load<RIDGE_F32>(from, j)
           : m.dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(from, j)
                                   : num_load<RIDGE_F16>(from, j);
}

static __device__ __forceinline__ void rows_put(const norm_matrix &m, int64_t row, int64_t j, float v)
{
    char *to = m.data + row * m.stride;

    if (m.dtype == RIDGE_F32)
        num_store<RIDGE_F32>(to, j, v);
    else if (m.dtype == RIDGE_BF16)
        num_store<RIDGE_BF16>(to, j, v);
    else
        num_store<RIDGE_F16>(to, j, v);
}

static __device__ __forceinline__ float rows_rounded(int32_t dtype, float v)
{
    return dtype == RIDGE_F32 ? v : dtype == RIDGE_BF16 ? num_round<RIDGE_BF16>(v) : num_round<RIDGE_F16>(v);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* A kernel row: `warps` a row, and columns that a thread holds of 16-bit operands; 0: any row. */
typedef struct rows_form {
    int warps, held;
} rows_form;

/* The most columns of a fast kernel's row. f32 operands take twice the registers: those of the widest form stay out. */
static inline int64_t rows_span(const rows_form *form)
{
    return (int64_t)form->held * 32 * form->warps;
}

/* NULL, or why the row cannot run the problem. `first` is an operand that the others, but for slots w and any that
 * `skip` masks, must have the dtype of. */
static inline const char *rows_why_not(const rows_form *form, const ridge_problem *problem, int w, uint32_t skip)
{
    const uint32_t dtype = problem->dtype[0];
    const int v = 8 / form->warps, size = (int)ridge_dtype_size(dtype);

    if (problem->dim[0] > 0x7fffffff)
        return "more than 2^31 - 1 rows";
    if (!form->held)
        return NULL;
    for (int arg = 1; arg < RIDGE_MAX_ARGS; arg++)
        if (problem->dtype[arg] != RIDGE_NONE && problem->dtype[arg] != dtype && !(skip >> arg & 1u) &&
            !(arg == w && problem->dtype[arg] == RIDGE_F32))
            return "operands have different dtypes";
    if (problem->dim[1] > rows_span(form))
        return "a row does not fit the registers of its warps";
    if (problem->dim[1] % v)
        return v == 8 ? "cols is no multiple of 8" : "cols is odd";
    return 1 << problem->align < ridge_min(16, v * size) ? "operands are not aligned to its vectors" : NULL;
}

/* The vectors of weights are aligned, which is no part of the problem. */
static inline bool rows_aligned(const norm_matrix &w, const rows_form *form)
{
    return (uintptr_t)w.data % (uintptr_t)ridge_min(16, 8 / form->warps * w.size) == 0;
}

#endif
