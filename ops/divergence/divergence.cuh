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

/* The first class of a thread's group. SPAN classes of it lie side by side, of f32 four and 128 further on the other
 * four, so that a warp reads whole lines. A row has a multiple of 32 groups. */
#define SPAN(D) ((D) == RIDGE_F32 ? 4 : (int)GROUP)

template <int D> static __device__ __forceinline__ int64_t col_of(int64_t group)
{
    const int lane = threadIdx.x % 32;

    return (group - lane) * GROUP + lane * SPAN(D);
}

static __device__ __forceinline__ int64_t groups_of(int64_t cols)
{
    return (cols + 32 * GROUP - 1) / (32 * GROUP) * 32;
}

/* The classes of a group; beyond the last class, and of a group that is not below `end`, -inf, of which nothing comes.
 */
template <int D>
static __device__ __forceinline__ void load_group(const divergence_args &a, const char *row, int64_t group, int64_t end,
                                                  float *v)
{
    const int64_t col = group < end ? col_of<D>(group) : a.cols;

#pragma unroll
    for (int i = 0; i < GROUP / SPAN(D); i++) {
        const int64_t at = col + 128 * i;

        if (a.vector && at + SPAN(D) <= a.cols)
            num_unpack<D>(*(const uint4 *)(row + at * (D == RIDGE_F32 ? 4 : 2)), v + SPAN(D) * i);
        else
#pragma unroll
            for (int e = 0; e < SPAN(D); e++)
                v[SPAN(D) * i + e] = at + e < a.cols ? num_load<D>(row, at + e) : -CUDART_INF_F;
    }
}

template <int D, int TO>
static __device__ __forceinline__ void store_group(const divergence_args &a, char *row, int64_t col, const float *v)
{
    const uint4 one = num_pack<TO>(v), two = num_pack<TO>(v + (TO == RIDGE_F32 ? 4 : 0));

#pragma unroll
    for (int i = 0; i < GROUP / SPAN(D); i++) {
        const int64_t at = col + 128 * i;
        uint4 *to = (uint4 *)(row + at * (TO == RIDGE_F32 ? 4 : 2));

        if (!a.vector || at + SPAN(D) > a.cols) {
#pragma unroll
            for (int e = 0; e < SPAN(D); e++)
                if (at + e < a.cols)
                    num_store<TO>(row, at + e, v[SPAN(D) * i + e]);
        } else if (TO != RIDGE_F32 && D == RIDGE_F32) {
            *(uint2 *)to = i ? make_uint2(one.z, one.w) : make_uint2(one.x, one.y);
        } else {
            to[0] = i ? two : one;
            if (TO == RIDGE_F32 && D != RIDGE_F32)
                to[1] = two;
        }
    }
}

template <int D>
static __device__ __forceinline__ void store_gradients(const divergence_args &p, int64_t r, int64_t group,
                                                       const float *v)
{
    char *row = p.dlogits + r * p.dlogits_stride * (p.dlogits_dtype == RIDGE_F32 ? 4 : 2);

    if (p.dlogits_dtype == RIDGE_F32)
        store_group<D, RIDGE_F32>(p, row, col_of<D>(group), v);
    else if (p.dlogits_dtype == RIDGE_BF16)
        store_group<D, RIDGE_BF16>(p, row, col_of<D>(group), v);
    else
        store_group<D, RIDGE_F16>(p, row, col_of<D>(group), v);
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

/* The larger one; NaN stays. */
static __device__ __forceinline__ float at_least(float x, float least)
{
    float y;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
    return y;
}

/* log2 of a probability; below -200 it makes no difference, since the probability is 0 in f32. */
static __device__ __forceinline__ float log_of(float z, row_softmax of, float rate)
{
    return at_least(__fmaf_rn(z - of.max, rate, -of.log_sum), -200.0f);
}

static __device__ __forceinline__ bool is_mixed(const divergence_args &a)
{
    return a.beta > 0.0f && a.beta < 1.0f;
}

/* add_terms for beta between 0 and 1, where neither sum can be infinite: no select, and products are added at once. */
static __device__ __forceinline__ void add_mixed_terms(const divergence_args &a, row_softmax of_p, row_softmax of_q,
                                                       float rate, float *z, float *y, float *own, float *other)
{
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const float log_p = log_of(z[i], of_p, rate), log_q = log_of(y[i], of_q, rate);
        const float p = ptx_ex2(log_p), q = ptx_ex2(log_q), m = __fmaf_rn(a.beta, q, (1.0f - a.beta) * p);
        const float log_m = lg2(at_least(m, 0x1p-126f));

        own[i % 2] = __fmaf_rn(p, log_p - log_m, own[i % 2]);
        other[i % 2] = __fmaf_rn(q, log_q - log_m, other[i % 2]);
        z[i] = p;
        y[i] = log_p - log_m;
    }
}

/* The terms of GROUP classes: z becomes p, y what its gradient multiplies p by, or for beta 0 q. */
static __device__ __forceinline__ void add_terms(const divergence_args &a, row_softmax of_p, row_softmax of_q,
                                                 float rate, float *z, float *y, float *own, float *other)
{
    if (is_mixed(a)) {
        add_mixed_terms(a, of_p, of_q, rate, z, y, own, other);
        return;
    }
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

/* The gradients of a group's classes from what add_terms left of them; 0 also where p is 0 beside an infinite own. */
template <int D>
static __device__ __forceinline__ void store_group_gradients(const divergence_args &a, int64_t r, int64_t group,
                                                             float factor, float own, const float *p, const float *with)
{
    const bool mixed = is_mixed(a);
    float v[GROUP];

#pragma unroll
    for (int i = 0; i < GROUP; i++)
        v[i] = mixed ? factor * p[i] * (with[i] - own)
                     : factor * (a.beta == 0.0f ? p[i] - with[i]
                                 : p[i] > 0.0f  ? p[i] * with[i] - p[i] * own
                                                : p[i]);
    store_gradients<D>(a, r, group, v);
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
