/* divergence.cu: divergence on CUDA. A block a row, which reads its logits three times: for the two softmax sums, for
 * the divergence, and for the gradient, which needs the divergence. Probabilities are powers of two in f32. */
#include <math_constants.h>

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/util.h"

enum { THREADS = 512, WARPS = THREADS / 32, GROUP = 8 }; /* classes that a thread takes at once */

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

/* By a block, the sum or the maximum of all threads' x, for all of them, in a fixed order. */
template <bool MAX> static __device__ __forceinline__ float block_reduce(float x, float *shared)
{
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(~0u, x, step);

        x = MAX ? fmaxf(x, other) : x + other;
    }
    __syncthreads(); /* orders the last call's reads before these writes */
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads(); /* and these before the reads */
    x = shared[0];
    for (int i = 1; i < WARPS; i++)
        x = MAX ? fmaxf(x, shared[i]) : x + shared[i];
    return x;
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

static __device__ __forceinline__ void finish_softmax(row_softmax *s, float sum, float rate, float *shared)
{
    const float own = s->max, max = block_reduce<true>(own, shared);

    s->max = base_of(max);
    s->log_sum = lg2(block_reduce<false>(sum * ptx_ex2((own - s->max) * rate), shared));
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

template <int D>
static __device__ __forceinline__ void gradient_row(const divergence_args &a, int64_t r, const char *student,
                                                    const char *teacher, row_softmax of_p, row_softmax of_q, float own)
{
    const float rate = LOG2E / a.temperature, scale = (a.scale ? a.scale[r] : 1.0f) / a.temperature;
    const float factor = scale * (a.beta == 0.0f ? 1.0f : a.beta == 1.0f ? LN2 : LN2 * (1.0f - a.beta));

    for (int64_t col = (int64_t)threadIdx.x * GROUP; col < a.cols; col += THREADS * GROUP) {
        float z[GROUP], y[GROUP];

        load_group<D>(student, col, a.cols, a.vector, z);
        load_group<D>(teacher, col, a.cols, a.vector, y);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            float p, q;
            const class_logs l = logs_of(a, z[i], y[i], of_p, of_q, rate, &p, &q);

            if (a.beta == 0.0f)
                z[i] = factor * (p - q);
            else
                z[i] = factor * (p > 0.0f ? p * (l.p - l.m) - p * own : p); /* 0 also beside an infinite own */
        }
        store_gradients(a, r, col, z);
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 2) divergence(const __grid_constant__ divergence_args a)
{
    __shared__ float shared[WARPS];
    const int64_t r = blockIdx.x, size = D == RIDGE_F32 ? 4 : 2;
    const char *student = a.student + r * a.student_stride * size, *teacher = a.teacher + r * a.teacher_stride * size;
    const float rate = LOG2E / a.temperature;
    row_softmax of_p = {-CUDART_INF_F, 0.0f}, of_q = of_p;
    float sum_p = 0.0f, sum_q = 0.0f, own[2] = {0.0f, 0.0f}, other[2] = {0.0f, 0.0f};

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    if (a.scale && a.scale[r] == 0.0f) {
        const float zero[GROUP] = {};

        for (int64_t col = (int64_t)threadIdx.x * GROUP; col < a.cols && a.dlogits; col += THREADS * GROUP)
            store_gradients(a, r, col, zero);
        if (threadIdx.x == 0)
            a.loss[r] = 0.0f;
        return;
    }
    for (int64_t col = (int64_t)threadIdx.x * GROUP; col < a.cols; col += THREADS * GROUP) {
        float z[GROUP], y[GROUP];

        load_group<D>(student, col, a.cols, a.vector, z);
        load_group<D>(teacher, col, a.cols, a.vector, y);
        add_group(&of_p, &sum_p, rate, z);
        add_group(&of_q, &sum_q, rate, y);
    }
    finish_softmax(&of_p, sum_p, rate, shared);
    finish_softmax(&of_q, sum_q, rate, shared);
    for (int64_t col = (int64_t)threadIdx.x * GROUP; col < a.cols; col += THREADS * GROUP) {
        float z[GROUP], y[GROUP];

        load_group<D>(student, col, a.cols, a.vector, z);
        load_group<D>(teacher, col, a.cols, a.vector, y);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            float p, q;
            const class_logs l = logs_of(a, z[i], y[i], of_p, of_q, rate, &p, &q);

            own[i % 2] += term_of(p, l.p, l.m);
            other[i % 2] += term_of(q, l.q, l.m);
        }
    }
    own[0] = block_reduce<false>(own[0] + own[1], shared);
    other[0] = block_reduce<false>(other[0] + other[1], shared);
    if (threadIdx.x == 0) {
        const float loss = a.beta == 0.0f   ? other[0]
                           : a.beta == 1.0f ? own[0]
                                            : __fmaf_rn(a.beta, other[0], (1.0f - a.beta) * own[0]);

        a.loss[r] = __uint_as_float(num_canonical_f32(LN2 * loss));
    }
    if (a.dlogits)
        gradient_row<D>(a, r, student, teacher, of_p, of_q, own[0]);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[3] = {(const void *)divergence<RIDGE_F32>, (const void *)divergence<RIDGE_F16>,
                                         (const void *)divergence<RIDGE_BF16>};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 3, "divergence: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    divergence_args p = divergence_args_of(bound);

    if (p.rows == 0)
        return RIDGE_OK;
    /* a packed call counts as one row */
    p.vector = bound->problem.align == 4 && (!bound->problem.packed || p.cols % GROUP == 0);
    return host_launch(device, kernel->name, functions[p.student_dtype - RIDGE_F32], dim3((unsigned)p.rows), THREADS,
                       &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return problem->dim[0] > 0x7fffffff ? "more than 2^31 - 1 rows" : NULL;
}

/* Three reads of two matrices in f32 at most, a write. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 4 + (double)problem->dim[0] * (double)problem->dim[1] * 26e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.divergence.row",
     RIDGE_DIVERGENCE,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_divergence = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
