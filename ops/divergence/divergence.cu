/* divergence.cu: divergence on CUDA. A block a row, which reads its logits three times: for the two softmax sums, for
 * the divergence, and for the gradient, which needs the divergence. */
#include "divergence.cuh"

enum { THREADS = 512, WARPS = THREADS / 32 };

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

static __device__ __forceinline__ void finish_softmax(row_softmax *s, float sum, float rate, float *shared)
{
    const float own = s->max, max = block_reduce<true>(own, shared);

    s->max = base_of(max);
    s->log_sum = lg2(block_reduce<false>(sum * ptx_ex2((own - s->max) * rate), shared));
}

template <int D>
static __device__ __forceinline__ void softmax_pass(const divergence_args &a, const char *student, const char *teacher,
                                                    row_softmax *of_p, row_softmax *of_q, float *shared)
{
    const float rate = LOG2E / a.temperature;
    const int64_t groups = groups_of(a.cols);
    float sum_p = 0.0f, sum_q = 0.0f;

    *of_p = *of_q = {-CUDART_INF_F, 0.0f};
    for (int64_t group = threadIdx.x; group < groups; group += THREADS) {
        float z[GROUP], y[GROUP];

        load_group<D>(a, student, group, groups, z);
        load_group<D>(a, teacher, group, groups, y);
        add_group(of_p, &sum_p, rate, z);
        add_group(of_q, &sum_q, rate, y);
    }
    finish_softmax(of_p, sum_p, rate, shared);
    finish_softmax(of_q, sum_q, rate, shared);
}

/* A thread's terms of the two sums. */
template <int D>
static __device__ __forceinline__ void terms_pass(const divergence_args &a, const char *student, const char *teacher,
                                                  row_softmax of_p, row_softmax of_q, float *own, float *other)
{
    const float rate = LOG2E / a.temperature;
    const int64_t groups = groups_of(a.cols);

    for (int64_t group = threadIdx.x; group < groups; group += THREADS) {
        float z[GROUP], y[GROUP];

        load_group<D>(a, student, group, groups, z);
        load_group<D>(a, teacher, group, groups, y);
        add_terms(a, of_p, of_q, rate, z, y, own, other);
    }
}

template <int D>
static __device__ __forceinline__ void gradient_row(const divergence_args &a, int64_t r, const char *student,
                                                    const char *teacher, row_softmax of_p, row_softmax of_q, float own)
{
    const float rate = LOG2E / a.temperature, factor = factor_of(a, r);
    const int64_t groups = groups_of(a.cols);

    for (int64_t group = threadIdx.x; group < groups; group += THREADS) {
        float z[GROUP], y[GROUP], unused[4] = {};

        load_group<D>(a, student, group, groups, z);
        load_group<D>(a, teacher, group, groups, y);
        add_terms(a, of_p, of_q, rate, z, y, unused, unused + 2);
        store_group_gradients<D>(a, r, group, factor, own, z, y);
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 2) divergence(const __grid_constant__ divergence_args a)
{
    __shared__ float shared[WARPS];
    const int64_t r = blockIdx.x, size = D == RIDGE_F32 ? 4 : 2;
    const char *student = a.student + r * a.student_stride * size, *teacher = a.teacher + r * a.teacher_stride * size;
    row_softmax of_p, of_q;
    float own[2] = {0.0f, 0.0f}, other[2] = {0.0f, 0.0f};

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    if (a.scale && a.scale[r] == 0.0f) {
        const float zero[GROUP] = {};

        for (int64_t group = threadIdx.x; group < groups_of(a.cols) && a.dlogits; group += THREADS)
            store_gradients<D>(a, r, group, zero);
        if (threadIdx.x == 0 && a.loss)
            store_loss(a, r, 0.0f, 0.0f);
        return;
    }
    if (a.lse) {
        of_p = given_softmax(a, a.lse[r]);
        of_q = given_softmax(a, a.teacher_lse[r]);
        own[0] = a.dlogits ? a.own[r] * LOG2E : 0.0f;
    } else {
        softmax_pass<D>(a, student, teacher, &of_p, &of_q, shared);
    }
    if (a.loss) {
        terms_pass<D>(a, student, teacher, of_p, of_q, own, other);
        own[0] = block_reduce<false>(own[0] + own[1], shared);
        other[0] = block_reduce<false>(other[0] + other[1], shared);
        if (threadIdx.x == 0)
            store_loss(a, r, own[0], other[0]);
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
    divergence_args p = vector_args_of(bound);

    if (p.rows == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[p.student_dtype - RIDGE_F32], dim3((unsigned)p.rows), THREADS,
                       &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return problem->dim[0] > 0x7fffffff ? "more than 2^31 - 1 rows" : NULL;
}

/* Three reads of two matrices, or two without a gradient, and a write. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const bool gradient = problem->dtype[RIDGE_DIVERGENCE_DLOGITS] != RIDGE_NONE;

    return 4 + divergence_bytes(problem, gradient ? 3 : 2) * 1e-3 / device->copy_gbps;
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
