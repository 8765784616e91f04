/* cluster.cu: divergence on Hopper and later: a cluster of eight or sixteen CTAs a row, so that the row's logits are
 * read once.
 *
 *     pass 1   waits for the logits; the two softmax sums of the CTA's slice, then of the cluster
 *     pass 2   what each class adds to the divergence; p and its factor r take the place of the logits
 *     pass 3   the gradient, from p, r and the divergence
 *
 * A thread has groups of eight classes, 512 groups apart. The first HELD of them stay in shared memory, one more in
 * registers: 131072 classes of a row and eight CTAs. What a longer row has beyond them is read again in each pass. Two
 * CTAs are on a multiprocessor, so that one reads while the other computes. */
#include "cuda/mma.cuh"
#include "divergence.cuh"

enum { RANKS_MAX = 16, THREADS = 512, WARPS = THREADS / 32, HELD = 3 };

/* logits: of a held group the student's and the teacher's, then p and r. sums: a warp's, all ranks'. */
typedef struct cluster_smem {
    float4 logits[HELD][2][GROUP / 4][THREADS];
    float warp[4][WARPS], rank[2][4][RANKS_MAX];
} cluster_smem;

#if __CUDA_ARCH__ >= 900

/* A slice of a row: groups from `first` on to `end`, a thread's own one after the other. */
typedef struct slice {
    int first, end;
} slice;

template <int RANKS> static __device__ __forceinline__ slice slice_of(const divergence_args &a)
{
    const int groups = (int)groups_of(a.cols);
    const int each = (groups + 32 * RANKS - 1) / (32 * RANKS) * 32, first = min((int)ptx_cluster_rank() * each, groups);

    return {first, min(first + each, groups)};
}

static __device__ __forceinline__ void hold(cluster_smem *s, int k, const float *z, const float *y)
{
#pragma unroll
    for (int i = 0; i < GROUP / 4; i++) {
        s->logits[k][0][i][threadIdx.x] = make_float4(z[4 * i], z[4 * i + 1], z[4 * i + 2], z[4 * i + 3]);
        s->logits[k][1][i][threadIdx.x] = make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
    }
}

static __device__ __forceinline__ void take(const cluster_smem *s, int k, float *z, float *y)
{
#pragma unroll
    for (int i = 0; i < GROUP / 4; i++) {
        *(float4 *)(z + 4 * i) = s->logits[k][0][i][threadIdx.x];
        *(float4 *)(y + 4 * i) = s->logits[k][1][i][threadIdx.x];
    }
}

/* A thread's own group of row r into its place, as it is, by cp.async where it is whole: all of a row's loads are under
 * way before the first of them is waited for, and without a register. */
template <int D>
static __device__ __forceinline__ void fetch(const divergence_args &a, cluster_smem *s, int k, int64_t r, int group,
                                             int end)
{
    const int64_t size = D == RIDGE_F32 ? 4 : 2, col = group < end ? col_of<D>(group) : a.cols;

#pragma unroll
    for (int t = 0; t < 2; t++) {
        const char *row = t ? a.teacher + r * a.teacher_stride * size : a.student + r * a.student_stride * size;
        float4(*to)[THREADS] = s->logits[k][t];

        if (a.vector && col + (D == RIDGE_F32 ? 132 : GROUP) <= a.cols) {
#pragma unroll
            for (int i = 0; i < GROUP / SPAN(D); i++)
                mma_copy16(ptx_shared(&to[i][threadIdx.x]), row + (col + 128 * i) * size, 16);
        } else {
            float v[GROUP];

            load_group<D>(a, row, group, end, v);
#pragma unroll
            for (int i = 0; i < GROUP / SPAN(D); i++)
                *(uint4 *)&to[i][threadIdx.x] = num_pack<D>(v + 4 * i);
        }
    }
    mma_copy_commit();
}

/* What fetch has brought. */
template <int D> static __device__ __forceinline__ void take_logits(const cluster_smem *s, int k, float *z, float *y)
{
#pragma unroll
    for (int i = 0; i < GROUP / SPAN(D); i++) {
        num_unpack<D>(*(const uint4 *)&s->logits[k][0][i][threadIdx.x], z + 4 * i);
        num_unpack<D>(*(const uint4 *)&s->logits[k][1][i][threadIdx.x], y + 4 * i);
    }
}

/* A part of a row's sum, taken relative to another maximum. */
static __device__ __forceinline__ float rescale(float sum, float from, float to, float rate)
{
    return sum * ptx_ex2((from - base_of(to)) * rate);
}

/* By a cluster, for all threads and in a fixed order: the softmax of the row from each thread's maximum and sum. Those
 * of the student lie in x[0] and x[1], those of the teacher in x[2] and x[3]. */
template <int RANKS> static __device__ __forceinline__ void cluster_softmax(cluster_smem *s, float *x, float rate)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const float own = x[i];

        for (int step = 16; step > 0; step /= 2)
            x[i] = fmaxf(x[i], __shfl_xor_sync(~0u, x[i], step));
        x[i + 1] = rescale(x[i + 1], own, x[i], rate);
        for (int step = 16; step > 0; step /= 2)
            x[i + 1] += __shfl_xor_sync(~0u, x[i + 1], step);
        if (threadIdx.x % 32 == 0) {
            s->warp[i][threadIdx.x / 32] = x[i];
            s->warp[i + 1][threadIdx.x / 32] = x[i + 1];
        }
    }
    __syncthreads(); /* orders these writes before the reads */
    if (threadIdx.x < 2 * RANKS) {
        const int i = threadIdx.x / RANKS * 2;
        const uint32_t rank = ptx_cluster_rank(), to = threadIdx.x % RANKS;
        float max = s->warp[i][0], sum = 0.0f;

        for (int k = 1; k < WARPS; k++)
            max = fmaxf(max, s->warp[i][k]);
        for (int k = 0; k < WARPS; k++)
            sum += rescale(s->warp[i + 1][k], s->warp[i][k], max, rate);
        ptx_store_cluster(ptx_map(ptx_shared(&s->rank[0][i][rank]), to), max);
        ptx_store_cluster(ptx_map(ptx_shared(&s->rank[0][i + 1][rank]), to), sum);
    }
    ptx_cluster_sync(); /* orders the ranks' writes before these reads, and the reads of `warp` before the next writes
                         */
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        x[i] = s->rank[0][i][0];
        for (int k = 1; k < RANKS; k++)
            x[i] = fmaxf(x[i], s->rank[0][i][k]);
        x[i + 1] = 0.0f;
        for (int k = 0; k < RANKS; k++)
            x[i + 1] += rescale(s->rank[0][i + 1][k], s->rank[0][i][k], x[i], rate);
    }
}

/* By a cluster, so too: two sums. */
template <int RANKS> static __device__ __forceinline__ void cluster_sums(cluster_smem *s, float *x)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        for (int step = 16; step > 0; step /= 2)
            x[i] += __shfl_xor_sync(~0u, x[i], step);
        if (threadIdx.x % 32 == 0)
            s->warp[i][threadIdx.x / 32] = x[i];
    }
    __syncthreads(); /* orders these writes before the reads */
    if (threadIdx.x < 2 * RANKS) {
        const int i = threadIdx.x / RANKS;
        float sum = s->warp[i][0];

        for (int k = 1; k < WARPS; k++)
            sum += s->warp[i][k];
        ptx_store_cluster(ptx_map(ptx_shared(&s->rank[1][i][ptx_cluster_rank()]), threadIdx.x % RANKS), sum);
    }
    ptx_cluster_sync(); /* orders the ranks' writes before these reads */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x[i] = s->rank[1][i][0];
        for (int k = 1; k < RANKS; k++)
            x[i] += s->rank[1][i][k];
    }
}

template <int D, int RANKS>
static __device__ __forceinline__ void divergence_slice(const divergence_args &a, cluster_smem *s, int64_t r)
{
    const int64_t size = D == RIDGE_F32 ? 4 : 2;
    const char *student = a.student + r * a.student_stride * size, *teacher = a.teacher + r * a.teacher_stride * size;
    const float rate = LOG2E / a.temperature, factor = factor_of(a, r);
    const slice part = slice_of<RANKS>(a);
    const int first = part.first + (int)threadIdx.x;
    row_softmax of_p = {-CUDART_INF_F, 0.0f}, of_q = of_p;
    float last[2][GROUP], z[GROUP], y[GROUP], sum[2] = {0.0f, 0.0f}, both[4] = {0.0f, 0.0f, 0.0f, 0.0f};

#pragma unroll
    for (int k = 0; k < HELD; k++)
        fetch<D>(a, s, k, r, first + k * THREADS, part.end);
    load_group<D>(a, student, first + HELD * THREADS, part.end, last[0]);
    load_group<D>(a, teacher, first + HELD * THREADS, part.end, last[1]);
#pragma unroll 1
    for (int k = 0; k < HELD; k++) {
        mma_copy_wait(HELD + 1 - k);
        take_logits<D>(s, k, z, y);
        add_group(&of_p, &sum[0], rate, z);
        add_group(&of_q, &sum[1], rate, y);
    }
    add_group(&of_p, &sum[0], rate, last[0]);
    add_group(&of_q, &sum[1], rate, last[1]);
    for (int g = first + (HELD + 1) * THREADS; g < part.end; g += THREADS) {
        load_group<D>(a, student, g, part.end, z);
        load_group<D>(a, teacher, g, part.end, y);
        add_group(&of_p, &sum[0], rate, z);
        add_group(&of_q, &sum[1], rate, y);
    }
    float row[4] = {of_p.max, sum[0], of_q.max, sum[1]};

    ptx_cluster_wait();
    cluster_softmax<RANKS>(s, row, rate);
    of_p = {base_of(row[0]), lg2(row[1])};
    of_q = {base_of(row[2]), lg2(row[3])};

#pragma unroll 1
    for (int k = 0; k < HELD; k++) {
        if (first + k * THREADS >= part.end)
            break;
        take_logits<D>(s, k, z, y);
        add_terms(a, of_p, of_q, rate, z, y, both, both + 2);
        hold(s, k, z, y);
    }
    if (first + HELD * THREADS < part.end)
        add_terms(a, of_p, of_q, rate, last[0], last[1], both, both + 2);
    for (int g = first + (HELD + 1) * THREADS; g < part.end; g += THREADS) {
        load_group<D>(a, student, g, part.end, z);
        load_group<D>(a, teacher, g, part.end, y);
        add_terms(a, of_p, of_q, rate, z, y, both, both + 2);
    }
    both[0] += both[1];
    both[1] = both[2] + both[3];
    cluster_sums<RANKS>(s, both);
    if (threadIdx.x == 0 && ptx_cluster_rank() == 0)
        store_loss(a, r, both[0], both[1]);
    if (!a.dlogits)
        return;
#pragma unroll 1
    for (int k = 0; k < HELD; k++) {
        if (first + k * THREADS >= part.end)
            return;
        take(s, k, z, y);
        store_group_gradients<D>(a, r, first + k * THREADS, factor, both[0], z, y);
    }
    if (first + HELD * THREADS < part.end)
        store_group_gradients<D>(a, r, first + HELD * THREADS, factor, both[0], last[0], last[1]);
    for (int g = first + (HELD + 1) * THREADS; g < part.end; g += THREADS) {
        float unused[4] = {0.0f, 0.0f, 0.0f, 0.0f};

        load_group<D>(a, student, g, part.end, z);
        load_group<D>(a, teacher, g, part.end, y);
        add_terms(a, of_p, of_q, rate, z, y, unused, unused + 2);
        store_group_gradients<D>(a, r, g, factor, both[0], z, y);
    }
}

#endif

template <int D, int RANKS>
static __global__ void __launch_bounds__(THREADS, 2) divergence_cluster(const __grid_constant__ divergence_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) uint8_t shared[];
    const int64_t r = blockIdx.x / RANKS;

    ptx_cluster_arrive_relaxed(); /* and a wait before the first write to another CTA: all of them have started */
    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    if (!a.scale || a.scale[r] != 0.0f) {
        divergence_slice<D, RANKS>(a, (cluster_smem *)shared, r);
        return;
    }
    const slice part = slice_of<RANKS>(a);
    const float zero[GROUP] = {};

    ptx_cluster_wait();
    for (int g = part.first + (int)threadIdx.x; g < part.end && a.dlogits; g += THREADS)
        store_gradients<D>(a, r, g, zero);
    if (threadIdx.x == 0 && ptx_cluster_rank() == 0)
        a.loss[r] = 0.0f;
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[] = {
    (const void *)divergence_cluster<RIDGE_F32, 8>, (const void *)divergence_cluster<RIDGE_F16, 8>,
    (const void *)divergence_cluster<RIDGE_BF16, 8>, (const void *)divergence_cluster<RIDGE_F32, 16>};

/* Classes of a row that a cluster keeps. */
static int64_t held_by(int ranks)
{
    return (int64_t)ranks * THREADS * (HELD + 1) * GROUP;
}

/* CTAs of a cluster. Sixteen have twice as many classes, and Hopper alone is known to take them. */
static int ranks_of(const ridge_device *device, uint32_t dtype, int64_t cols)
{
    return device->arch == RIDGE_ARCH_SM90 && dtype == RIDGE_F32 && cols > held_by(8) ? 16 : 8;
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    if (device->arch < RIDGE_ARCH_SM90)
        return RIDGE_OK;
    if (device->arch == RIDGE_ARCH_SM90)
        status = host_prepare(device, functions + 3, 1, cudaFuncAttributeNonPortableClusterSizeAllowed, 1,
                              "divergence: clusters of 16");
    return status ? status
                  : host_prepare(device, functions, 4, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)sizeof(cluster_smem), "divergence: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    divergence_args p = vector_args_of(bound);
    const int ranks = ranks_of(device, p.student_dtype, p.cols);

    if (p.rows == 0)
        return RIDGE_OK;
    return host_launch_cluster(device, kernel->name, functions[ranks == 16 ? 3 : p.student_dtype - RIDGE_F32],
                               dim3((unsigned)(p.rows * ranks)), ranks, THREADS, sizeof(cluster_smem), &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dtype[RIDGE_DIVERGENCE_LSE] != RIDGE_NONE)
        return "is for whole rows";
    if (problem->dim[1] > 0x7fffffff)
        return "more than 2^31 - 1 classes";
    return problem->dim[0] > 0x7fffffff / RANKS_MAX ? "more than 2^27 - 1 rows" : NULL;
}

/* Of a row, us, fitted to an H200: what starts and ends it, or what it computes; classes that are not held are read
 * three times. Two CTAs are on a multiprocessor. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int ranks = ranks_of(device, problem->dtype[RIDGE_DIVERGENCE_STUDENT], problem->dim[1]);
    const double cols = (double)problem->dim[1] * 8 / ranks, held = (double)held_by(8);
    const double begun = 7.4 + 4.4e-5 * cols, over = cols > held ? cols - held : 0;
    const double computed = 1e-4 * (cols - over) + 1.74e-4 * over;
    const double clusters = ridge_max(2 * device->units / ranks, 1);
    const double rows = ceil((double)problem->dim[0] / clusters) * (begun > computed ? begun : computed);
    const double load = divergence_bytes(problem, 1) * 1e-3 / device->copy_gbps;

    return 6 + (rows > load ? rows : load);
}

static const ridge_kernel rows[] = {
    {"cuda.divergence.cluster",
     RIDGE_DIVERGENCE,
     RIDGE_ARCH_SM90,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE | RIDGE_ARITHMETIC_1, /* sums in another order than `row` */
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_divergence_cluster = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
