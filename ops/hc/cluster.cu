/* cluster.cu: hc_split in one launch, for four streams of up to 4096 columns, sm_90 up. A cluster of eight CTAs makes
 * a token's input; CTA r has the partials 256 r .. 256 r + 255, that is 512 columns of every stream, two neighbouring
 * ones a thread. With post and comb a second cluster makes the mixture meanwhile, and two groups of 256 threads have
 * half of their cluster's rows of fn each: with 64 registers a thread a CTA finds room beside the product before it,
 * and loads fn while that runs.
 *
 *     before the wait   columns of fn and of the norm's weights, scale and base to registers, if weights are constant
 *     all warps         products with the rows of fn; a butterfly over the lanes, which halves the numbers as it goes,
 *                       leaves every lane with one number
 *     warp 0            adds the warps and sends the CTA's sums to all CTAs of the cluster: `sums`, by st.async
 *     input             all CTAs wait for `sums`, add the CTAs in order, make pre; the input of their columns and its
 *                       square, which meet in the same way in `squares`; norm and store. Warp 8 of CTA 0 makes post.
 *     mixture           warp 0 of CTA 0 alone: every lane makes all 16 entries
 *
 * mbarrier 0 orders the stores into `sums` before their reads, mbarrier 1 those into `squares`. The cluster barrier at
 * the start orders their initialisation before remote stores; both are waited for by every CTA to which something is
 * sent, so that none exits before all of it has come. */
#include "cuda/ptx/mbarrier.cuh"
#include "hc.cuh"

enum { HC_RANKS = 8, HC_STREAMS = 4, HC_WARPS = 8, HC_ENTRIES = HC_STREAMS * HC_STREAMS };

#if __CUDA_ARCH__ >= 900

typedef struct hc_shared {
    float warp[2][HC_WARPS][16], sums[HC_RANKS][2][16]; /* of either group: a number a row, then the square */
    float square[HC_WARPS], squares[HC_RANKS];
    uint64_t bar[2];
} hc_shared;

/* Adds lane pairs STEP, 2 STEP, .. 16 apart, of N numbers half as many after each, until one is left. */
template <int N, int STEP> static __device__ __forceinline__ void reduce_lanes(float *v, int lane)
{
    const bool high = lane & STEP;

    if constexpr (N == 1) {
        v[0] += __shfl_xor_sync(HC_ALL, v[0], STEP);
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float mine = high ? v[i + N / 2] : v[i], other = high ? v[i] : v[i + N / 2];

            v[i] = mine + __shfl_xor_sync(HC_ALL, other, STEP);
        }
    }
    if constexpr (STEP < 16)
        reduce_lanes<(N + 1) / 2, 2 * STEP>(v, lane);
}

/* One of four numbers. */
static __device__ __forceinline__ float pick(const float *v, int i)
{
    return i == 0 ? v[0] : i == 1 ? v[1] : i == 2 ? v[2] : v[3];
}

/* The mixture of a token by one warp; z: lane i has that of entry i. A lane makes one entry, that of lane % 16, and
 * then has all of them: a step of the factors is four chains of 5 + 3 instructions at once, which is shorter than one
 * chain and an exchange. */
static __device__ __forceinline__ void write_mixture(const hc_args &p, int64_t t, int lane, float z)
{
    const int entry = lane % HC_ENTRIES, r = entry / HC_STREAMS, c = entry % HC_STREAMS;
    float k[HC_ENTRIES], u[HC_STREAMS], v[HC_STREAMS], row[HC_STREAMS], col[HC_STREAMS];
    float max = 0.0f, sum = 0.0f, mine;

    mine = __shfl_sync(HC_ALL, z, entry);
#pragma unroll
    for (int i = 0; i < HC_STREAMS; i++) {
        const float other = __shfl_sync(HC_ALL, mine, r * HC_STREAMS + i);

        max = i == 0 || other > max || max != max ? other : max;
    }
    mine = ridge_hc_exp(mine, max);
#pragma unroll
    for (int i = 0; i < HC_STREAMS; i++)
        sum += __shfl_sync(HC_ALL, mine, r * HC_STREAMS + i);
    mine = ridge_hc_entry(mine, sum, p.hc_eps);
#pragma unroll
    for (int i = 0; i < HC_ENTRIES; i++)
        k[i] = __shfl_sync(HC_ALL, mine, i);
#pragma unroll
    for (int i = 0; i < HC_STREAMS; i++)
        u[i] = v[i] = row[i] = col[i] = 1.0f;
#pragma unroll
    for (int i = 0; i < HC_STREAMS; i++)
        v[i] = ridge_hc_factor(k + i, HC_STREAMS, u, HC_STREAMS, p.hc_eps, &col[i]);
    for (int step = 1; step < p.iterations; step++) {
#pragma unroll
        for (int i = 0; i < HC_STREAMS; i++)
            u[i] = ridge_hc_factor(k + i * HC_STREAMS, 1, v, HC_STREAMS, p.hc_eps, &row[i]);
#pragma unroll
        for (int i = 0; i < HC_STREAMS; i++)
            v[i] = ridge_hc_factor(k + i, HC_STREAMS, u, HC_STREAMS, p.hc_eps, &col[i]);
    }
    if (lane == entry)
        num_store<RIDGE_F32>(p.comb, t * p.comb_stride + entry, pick(u, r) * mine * pick(v, c));
}

/* Number `slot` of a group, from the sums of all CTAs. */
static __device__ __forceinline__ float gather(const hc_shared *s, int group, int slot)
{
    float v[HC_RANKS];

#pragma unroll
    for (int k = 0; k < HC_RANKS; k++)
        v[k] = s->sums[k][group][slot];
    return hc_tree_8(v);
}

/* Waits for the preceding kernels; the products of this thread's columns x with ROWS rows of fn, and their square,
 * added over the warp, to `to`. */
template <int FN, int ROWS>
static __device__ __forceinline__ void sum_rows(const hc_args &p, int64_t row, const float *res, int64_t first,
                                                float2 *x, float *to)
{
    enum { N = 2 * ROWS };
    const int lane = threadIdx.x % 32;
    const uint16_t *const fn = (const uint16_t *)p.fn + row * p.fn_stride + first;
    const bool there = first < p.cols;
    uint32_t w[HC_STREAMS][ROWS];
    float sum[N] = {};

#pragma unroll
    for (int h = 0; h < HC_STREAMS; h++)
#pragma unroll
        for (int m = 0; m < ROWS; m++)
            w[h][m] = there ? *(const uint32_t *)(fn + m * p.fn_stride + h * p.cols) : 0;
    if (p.weights_const)
        ptx_grid_dependency_wait();
#pragma unroll
    for (int h = 0; h < HC_STREAMS; h++)
        x[h] = there ? *(const float2 *)(res + h * p.cols + first) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int h = 0; h < HC_STREAMS; h++) {
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            float lo, hi;

            num_unpack2<FN>(w[h][m], &lo, &hi);
            sum[m] = __fmaf_rn(hi, x[h].y, __fmaf_rn(lo, x[h].x, sum[m]));
        }
        sum[ROWS] = __fmaf_rn(x[h].y, x[h].y, __fmaf_rn(x[h].x, x[h].x, sum[ROWS]));
    }
    reduce_lanes<N, 1>(sum, lane);
    if (lane < N)
        to[__brev((unsigned)lane) >> (ROWS == 4 ? 29 : 28)] = sum[0];
}

#endif

/* BOTH: with post and comb. */
template <int FN, int BOTH>
static __global__ void __launch_bounds__(HC_THREADS << BOTH, 2) hc_cluster(const __grid_constant__ hc_args p)
{
#if __CUDA_ARCH__ >= 900
    __shared__ hc_shared s;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = (int)ptx_cluster_rank();
    const int group = BOTH ? warp / HC_WARPS : 0, cluster = (int)(blockIdx.x / HC_RANKS);
    const bool mixture = BOTH && cluster % 2;
    const int number = lane + (mixture ? 2 * HC_STREAMS : group * HC_STREAMS);
    const int64_t t = cluster >> BOTH, first = 2 * (HC_THREADS * rank + (int)threadIdx.x % HC_THREADS);
    const float *res = p.res + t * p.res_stride;
    const uint32_t bar = ptx_shared(s.bar);
    const bool there = first < p.cols, has = lane < (mixture ? HC_ENTRIES : HC_STREAMS);
    float2 x[HC_STREAMS];
    float2 y, norm = {};
    float z, factor, pre[HC_STREAMS], scale = 0.0f, base = 0.0f;

    ptx_launch_dependents();
    if (threadIdx.x == 0) {
        ptx_mbarrier_init(bar, 1);
        ptx_mbarrier_init(bar + 8, 1);
        ptx_mbarrier_fence_init();
        ptx_mbarrier_expect(bar, HC_RANKS * 32 * 4);
        ptx_mbarrier_expect(bar + 8, HC_RANKS * 4);
    }
    __syncthreads(); /* the barriers are initialised before this CTA waits for them */
    ptx_cluster_arrive_relaxed();
    if (!p.weights_const)
        ptx_grid_dependency_wait();
    if (has) {
        scale = p.scale[ridge_hc_scale_of(HC_STREAMS, number)];
        base = p.base[number];
    }
    if (!mixture && !group && p.w && there)
        norm = make_float2(hc_load(p.w_dtype, p.w, first), hc_load(p.w_dtype, p.w, first + 1));
    if (mixture)
        sum_rows<FN, 2 * HC_STREAMS>(p, 2 * HC_STREAMS * (1 + group), res, first, x, s.warp[group][warp % HC_WARPS]);
    else
        sum_rows<FN, HC_STREAMS>(p, group * HC_STREAMS, res, first, x, s.warp[group][warp % HC_WARPS]);
    ptx_cluster_wait(); /* all CTAs have their barriers; a warp that runs no further has been here */
    __syncthreads();    /* the warps' sums are written before they are read */
    if (warp == 0) {
        float v[HC_WARPS];

#pragma unroll
        for (int k = 0; k < HC_WARPS; k++)
            v[k] = s.warp[lane / 16][k][lane % 16];
        v[0] = hc_tree_8(v);
#pragma unroll
        for (int k = 0; k < HC_RANKS; k++)
            if (!mixture || k == 0)
                ptx_store_async1(ptx_map(ptx_shared(&s.sums[rank][lane / 16][lane % 16]), (uint32_t)k), v[0],
                                 ptx_map(bar, (uint32_t)k));
    }
    if (mixture ? rank || warp : group && (rank || warp > HC_WARPS))
        return;
    ptx_mbarrier_wait(bar, 0);
    factor = ridge_rms_factor(gather(&s, 0, mixture ? 2 * HC_STREAMS : HC_STREAMS), HC_STREAMS * p.cols, p.eps);
    z = 0.0f;
    if (has) {
        z = gather(&s, mixture ? lane / 8 : group, mixture ? lane % 8 : lane);
        z = __fmaf_rn(__uint_as_float(num_canonical_f32(z * factor)), scale, base);
    }
    if (mixture) {
        write_mixture(p, t, lane, z);
        return;
    }
    if (group) {
        if (has)
            num_store<RIDGE_F32>(p.post, t * p.post_stride + lane, 2.0f * ridge_hc_sigmoid(z));
        return;
    }
    z = ridge_hc_sigmoid(z) + p.hc_eps;
#pragma unroll
    for (int h = 0; h < HC_STREAMS; h++)
        pre[h] = __shfl_sync(HC_ALL, z, h);
    y = make_float2(pre[0] * x[0].x, pre[0] * x[0].y);
#pragma unroll
    for (int h = 1; h < HC_STREAMS; h++) {
        y.x = __fmaf_rn(pre[h], x[h].x, y.x);
        y.y = __fmaf_rn(pre[h], x[h].y, y.y);
    }
    z = hc_tree_lanes(there ? __fmaf_rn(y.y, y.y, __fmaf_rn(y.x, y.x, 0.0f)) : 0.0f);
    if (lane == 0)
        s.square[warp] = z;
    ptx_barrier_sync(1, HC_THREADS); /* the warps' sums are written before they are read */
    if (threadIdx.x < HC_RANKS)
        ptx_store_async1(ptx_map(ptx_shared(&s.squares[rank]), threadIdx.x), hc_tree_8(s.square),
                         ptx_map(bar + 8, threadIdx.x));
    ptx_mbarrier_wait(bar + 8, 0);
    factor = ridge_rms_factor(hc_tree_8(s.squares), p.cols, p.eps);
    y = make_float2(y.x * factor, y.y * factor);
    if (p.w && there) {
        y.x *= norm.x;
        y.y *= norm.y;
    }
    hc_store(p, t, first, there, there, y.x, y.y);
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* [f16, bf16][without post, with it] */
static const void *const functions[2][2] = {
    {(const void *)hc_cluster<RIDGE_F16, 0>, (const void *)hc_cluster<RIDGE_F16, 1>},
    {(const void *)hc_cluster<RIDGE_BF16, 0>, (const void *)hc_cluster<RIDGE_BF16, 1>}};

static ridge_status prepare(const ridge_device *device)
{
    return device->arch < RIDGE_ARCH_SM90 ? RIDGE_OK
                                          : host_load(device, &functions[0][0], 4, "hc_split: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    hc_args p = hc_args_of(&bound->call);
    const int both = p.post != NULL;

    if (p.tokens == 0)
        return RIDGE_OK;
    return host_launch_cluster(device, kernel->name, functions[p.fn_dtype == RIDGE_BF16][both],
                               dim3((unsigned)(p.tokens * HC_RANKS) << both), HC_RANKS, HC_THREADS << both, 0, &p,
                               stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int fn = problem->dtype[RIDGE_HC_SPLIT_FN];

    if (fn != RIDGE_F16 && fn != RIDGE_BF16)
        return "fn is neither f16 nor bf16";
    if (problem->dim[2] != HC_STREAMS)
        return "n_hc is not 4";
    if (problem->dim[1] > 4096 || problem->dim[1] % 32)
        return "cols is above 4096 or no multiple of 32";
    if (problem->align < 3)
        return "operands are not aligned to 8 bytes";
    return problem->dim[0] > 1 << 26 ? "more than 2^26 tokens" : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 3 + (double)problem->dim[0] * (double)problem->dim[1] * 40e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {{"cuda.hc_split.cluster",
                                     RIDGE_HC_SPLIT,
                                     RIDGE_ARCH_SM90,
                                     RIDGE_ARCH_CUDA_LAST,
                                     HC_CONTRACT,
                                     0,
                                     {},
                                     why_not,
                                     NULL,
                                     cost,
                                     launch}};

extern "C" const ridge_kernel_list ridge_cuda_hc_cluster = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
