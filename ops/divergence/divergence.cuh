/* divergence.cuh: divergence on CUDA, what its kernels share: groups of eight classes, the softmax of a row, and what a
 * class adds. Probabilities are powers of two in f32. */
#ifndef RIDGE_DIVERGENCE_CUH
#define RIDGE_DIVERGENCE_CUH

#include <math_constants.h>

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/util.h"

enum { GROUP = 8 }; /* classes that a thread takes at once */

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/* Of a row of logits, t = (z - max) log2 e / temperature: log2 of the sum of 2^t. */
typedef struct row_softmax {
    float max, log_sum;
} row_softmax;

static __device__ __forceinline__ float lg2(float x)
{
    float y;

    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* GROUP classes from `col` on; beyond the last one -inf, of which nothing comes. */
template <int D>
static __device__ __forceinline__ void load_group(const char *row, int64_t col, int64_t cols, bool vector, float *v)
{
    if (vector && col + GROUP <= cols) {
        const uint4 *from = (const uint4 *)(row + col * (D == RIDGE_F32 ? 4 : 2));

        num_unpack<D>(from[0], v);
        if (D == RIDGE_F32)
            num_unpack<D>(from[D == RIDGE_F32], v + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        v[i] = col + i < cols ? num_load<D>(row, col + i) : -CUDART_INF_F;
}

template <int D>
static __device__ __forceinline__ void store_group(char *row, int64_t col, int64_t cols, bool vector, const float *v)
{
    if (vector && col + GROUP <= cols) {
        uint4 *to = (uint4 *)(row + col * (D == RIDGE_F32 ? 4 : 2));

        to[0] = num_pack<D>(v);
        if (D == RIDGE_F32)
            to[D == RIDGE_F32] = num_pack<D>(v + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        if (col + i < cols)
            num_store<D>(row, col + i, v[i]);
}

static __device__ __forceinline__ void store_gradients(const divergence_args &p, int64_t r, int64_t col, const float *v)
{
    char *row = p.dlogits + r * p.dlogits_stride * (p.dlogits_dtype == RIDGE_F32 ? 4 : 2);

    if (p.dlogits_dtype == RIDGE_F32)
        store_group<RIDGE_F32>(row, col, p.cols, p.vector, v);
    else if (p.dlogits_dtype == RIDGE_BF16)
        store_group<RIDGE_BF16>(row, col, p.cols, p.vector, v);
    else
        store_group<RIDGE_F16>(row, col, p.cols, p.vector, v);
}

/* What t is made of: z - base, where base is the maximum, or 0 if all are -inf. */
static __device__ __forceinline__ float base_of(float max)
{
    return max == -CUDART_INF_F ? 0.0f : max;
}

/* A thread's part of a row's sum, in which GROUP more logits go. */
static __device__ __forceinline__ void add_group(row_softmax *s, float *sum, float rate, const float *v)
{
    float max = s->max, base, total = 0.0f;

#pragma unroll
    for (int i = 0; i < GROUP; i++)
        max = fmaxf(max, v[i]);
    base = base_of(max);
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        total += ptx_ex2((v[i] - base) * rate);
    *sum = *sum * ptx_ex2((s->max - base) * rate) + total;
    s->max = max;
}

/* log2 of p, q and m of a class. */
typedef struct class_logs {
    float p, q, m;
} class_logs;

static __device__ __forceinline__ class_logs logs_of(const divergence_args &a, float z, float y, row_softmax of_p,
                                                     row_softmax of_q, float rate, float *p, float *q)
{
    class_logs l;

    l.p = (z - of_p.max) * rate - of_p.log_sum;
    l.q = (y - of_q.max) * rate - of_q.log_sum;
    *p = ptx_ex2(l.p);
    *q = ptx_ex2(l.q);
    const float m = __fmaf_rn(a.beta, *q, (1.0f - a.beta) * *p);

    l.m = a.beta == 0.0f ? l.p : a.beta == 1.0f ? l.q : lg2(m < 0x1p-126f ? 0x1p-126f : m); /* NaN stays */
    return l;
}

/* p log2(p / m); p if that is 0 or NaN. */
static __device__ __forceinline__ float term_of(float p, float log_p, float log_m)
{
    return p > 0.0f ? p * (log_p - log_m) : p;
}

/* What divergence_args says of a row's gradients: what p (r - own) is multiplied by. */
static __device__ __forceinline__ float factor_of(const divergence_args &a, int64_t r)
{
    const float scale = (a.scale ? a.scale[r] : 1.0f) / a.temperature;

    return scale * (a.beta == 0.0f ? 1.0f : a.beta == 1.0f ? LN2 : LN2 * (1.0f - a.beta));
}

/* The terms of GROUP classes: z becomes p, y what its gradient multiplies p by, or for beta 0 q. */
static __device__ __forceinline__ void add_terms(const divergence_args &a, row_softmax of_p, row_softmax of_q,
                                                 float rate, float *z, float *y, float *own, float *other)
{
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        float p, q;
        const class_logs l = logs_of(a, z[i], y[i], of_p, of_q, rate, &p, &q);

        own[i % 2] += term_of(p, l.p, l.m);
        other[i % 2] += term_of(q, l.q, l.m);
        z[i] = p;
        y[i] = a.beta == 0.0f ? q : l.p - l.m;
    }
}

/* The gradients of GROUP classes from what add_terms left of them; 0 also where p is 0 beside an infinite own. */
static __device__ __forceinline__ void store_group_gradients(const divergence_args &a, int64_t r, int64_t col,
                                                             float factor, float own, const float *p, const float *with)
{
    float v[GROUP];

#pragma unroll
    for (int i = 0; i < GROUP; i++)
        v[i] = factor * (a.beta == 0.0f ? p[i] - with[i] : p[i] > 0.0f ? p[i] * with[i] - p[i] * own : p[i]);
    store_gradients(a, r, col, v);
}

/* The softmax of a row whose log of the sum of e^(logit / temperature) is given: max rounds their product, log_sum has
 * what that lost. */
static __device__ __forceinline__ row_softmax given_softmax(const divergence_args &a, float lse)
{
    const float max = lse * a.temperature;

    return {max, __fmaf_rn(lse, a.temperature, -max) * (LOG2E / a.temperature)};
}

static __device__ __forceinline__ void store_loss(const divergence_args &a, int64_t r, float own, float other)
{
    const float loss = a.beta == 0.0f ? other : a.beta == 1.0f ? own : __fmaf_rn(a.beta, other, (1.0f - a.beta) * own);

    a.loss[r] = __uint_as_float(num_canonical_f32(LN2 * loss));
    if (a.own)
        a.own[r] = __uint_as_float(num_canonical_f32(LN2 * own));
}

static inline double size_of(uint32_t dtype)
{
    return dtype == RIDGE_NONE ? 0 : dtype == RIDGE_F32 ? 4 : 2;
}

/* Bytes of a kernel that reads both matrices so many times. */
static inline double divergence_bytes(const ridge_problem *problem, int reads)
{
    return (double)problem->dim[0] * (double)problem->dim[1] *
           (2 * reads * size_of(problem->dtype[RIDGE_DIVERGENCE_STUDENT]) +
            size_of(problem->dtype[RIDGE_DIVERGENCE_DLOGITS]));
}

/* The arguments, with what kernels know of alignment: a packed call counts as one row. */
static inline divergence_args vector_args_of(const ridge_bound *bound)
{
    divergence_args p = divergence_args_of(bound);

    p.vector = bound->problem.align == 4 && (!bound->problem.packed || p.cols % GROUP == 0);
    return p;
}

#endif
