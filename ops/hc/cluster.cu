/* cluster.cu: hc_split in one launch, for four streams of up to 4096 columns, sm_90 up. A token is a cluster of
 * eight CTAs; CTA r has the partials 256 r .. 256 r + 255, that is 512 columns of every stream, two neighbouring ones a
 * thread.
 *
 *     before the wait   columns of fn and of the norm's weights, scale and base to registers, if weights are constant
 *     warps 0 to 7      products with all rows of fn; a butterfly over the lanes, which halves the numbers as it goes,
 *                       leaves lane l with one number, number reverse(l)
 *     warp 0            adds the warps and sends the CTA's 32 sums to all CTAs of the cluster: `sums`, by st.async
 *     all warps         wait for `sums`, add the CTAs in order, make pre; the input of their columns and its square,
 *                       which meet in the same way in `squares`; norm and store
 *     warp 8 of CTA 0   post and the mixture meanwhile, every lane all 16 entries of it
 *
 * mbarrier 0 orders the stores into `sums` before their reads, mbarrier 1 those into `squares`. The cluster barrier at
 * the start orders their initialisation before remote stores; both are waited for by every CTA, so that none exits
 * before all that is sent to it has come. */
#include "cuda/ptx/mbarrier.cuh"
#include "hc.cuh"

enum { HC_RANKS = 8, HC_STREAMS = 4, HC_WARPS = 8, HC_FULL = HC_STREAMS * (2 + HC_STREAMS), HC_SQUARE = HC_FULL };

#if __CUDA_ARCH__ >= 900

typedef struct hc_shared {
    float warp[HC_WARPS][32], sums[HC_RANKS][32];
    float square[HC_WARPS], squares[HC_RANKS];
    uint64_t bar[2];
} hc_shared;

/* Adds lane pairs STEP, 2 STEP, .. 16 apart, half as many numbers after each. From 1 on v[0] becomes number
 * reverse(lane) of the warp. */
template <int STEP> static __device__ __forceinline__ void reduce_lanes(float *v, int lane)
{
    enum { HALF = 16 / STEP };
    const bool high = lane & STEP;

#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float mine = high ? v[i + HALF] : v[i], other = high ? v[i] : v[i + HALF];

        v[i] = mine + __shfl_xor_sync(HC_ALL, other, STEP);
    }
    if constexpr (STEP < 16)
        reduce_lanes<2 * STEP>(v, lane);
}

/* One of four numbers. */
static __device__ __forceinline__ float pick(const float *v, int i)
{
    return i == 0 ? v[0] : i == 1 ? v[1] : i == 2 ? v[2] : v[3];
}

/* The mixture and post of a token by one warp; z: this lane's number, lane i has number i. A lane makes one entry, that
 * of lane % 16, and then has all of them: a step of the factors is four chains of 5 + 3 instructions at once, which is
 * shorter than one chain and an exchange. */
static __device__ __forceinline__ void write_factors(const hc_args &p, int64_t t, int lane, float z)
{
    const int entry = lane % (HC_STREAMS * HC_STREAMS), r = entry / HC_STREAMS, c = entry % HC_STREAMS;
    float k[HC_STREAMS * HC_STREAMS], u[HC_STREAMS], v[HC_STREAMS], row[HC_STREAMS], col[HC_STREAMS];
    float max = 0.0f, sum = 0.0f, mine;

    if (lane >= HC_STREAMS && lane < 2 * HC_STREAMS)
        num_store<RIDGE_F32>(p.post, t * p.post_stride + lane - HC_STREAMS, 2.0f * ridge_hc_sigmoid(z));
    mine = __shfl_sync(HC_ALL, z, 2 * HC_STREAMS + entry);
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
    for (int i = 0; i < HC_STREAMS * HC_STREAMS; i++)
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

/* This lane's number of the token, or the sum of squares, from the sums of all CTAs. */
static __device__ __forceinline__ float gather(const hc_shared *s, int slot)
{
    float v[HC_RANKS];

#pragma unroll
    for (int k = 0; k < HC_RANKS; k++)
        v[k] = s->sums[k][slot];
    return hc_tree_8(v);
}

#endif

template <int FN, int MIXES>
static __global__ void __launch_bounds__(HC_WARPS * 32 + 32) hc_cluster(const __grid_constant__ hc_args p)
{
#if __CUDA_ARCH__ >= 900
    __shared__ hc_shared s;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = (int)ptx_cluster_rank();
    const int64_t t = blockIdx.x / HC_RANKS, first = 2 * (HC_THREADS * rank + (int)threadIdx.x);
    const float *res = p.res + t * p.res_stride;
    const uint32_t bar = ptx_shared(s.bar);
    const bool there = first < p.cols;
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
    if (lane < MIXES) {
        scale = p.scale[ridge_hc_scale_of(HC_STREAMS, lane)];
        base = p.base[lane];
    }
    if (warp < HC_WARPS) {
        uint32_t w[HC_STREAMS][MIXES];
        float sum[32] = {};

        if (p.w && there)
            norm = make_float2(hc_load(p.w_dtype, p.w, first), hc_load(p.w_dtype, p.w, first + 1));
#pragma unroll
        for (int h = 0; h < HC_STREAMS; h++)
#pragma unroll
            for (int m = 0; m < MIXES; m++)
                w[h][m] =
                    there ? *(const uint32_t *)((const uint16_t *)p.fn + m * p.fn_stride + h * p.cols + first) : 0;
        if (p.weights_const)
            ptx_grid_dependency_wait();
#pragma unroll
        for (int h = 0; h < HC_STREAMS; h++)
            x[h] = there ? *(const float2 *)(res + h * p.cols + first) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int h = 0; h < HC_STREAMS; h++) {
#pragma unroll
            for (int m = 0; m < MIXES; m++) {
                float lo, hi;

                num_unpack2<FN>(w[h][m], &lo, &hi);
                sum[m] = __fmaf_rn(hi, x[h].y, __fmaf_rn(lo, x[h].x, sum[m]));
            }
            sum[HC_SQUARE] = __fmaf_rn(x[h].y, x[h].y, __fmaf_rn(x[h].x, x[h].x, sum[HC_SQUARE]));
        }
        reduce_lanes<1>(sum, lane);
        s.warp[warp][__brev((unsigned)lane) >> 27] = sum[0];
    } else if (p.weights_const) {
        ptx_grid_dependency_wait();
    }
    ptx_cluster_wait(); /* all CTAs have their barriers; a warp that runs no further has been here */
    __syncthreads();    /* the warps' sums are written before they are read */
    if (warp == 0) {
        float v[HC_WARPS];

#pragma unroll
        for (int k = 0; k < HC_WARPS; k++)
            v[k] = s.warp[k][lane];
        v[0] = hc_tree_8(v);
#pragma unroll
        for (int k = 0; k < HC_RANKS; k++)
            ptx_store_async1(ptx_map(ptx_shared(&s.sums[rank][lane]), (uint32_t)k), v[0], ptx_map(bar, (uint32_t)k));
    }
    if (warp == HC_WARPS && (rank != 0 || MIXES == HC_STREAMS))
        return;
    ptx_mbarrier_wait(bar, 0);
    factor = ridge_rms_factor(gather(&s, HC_SQUARE), HC_STREAMS * p.cols, p.eps);
    z = 0.0f;
    if (lane < MIXES) {
        z = __uint_as_float(num_canonical_f32(gather(&s, lane) * factor));
        z = __fmaf_rn(z, scale, base);
    }
    if (warp == HC_WARPS) {
        if constexpr (MIXES > HC_STREAMS)
            write_factors(p, t, lane, z);
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

/* [f16, bf16][with post, without] */
static const void *const functions[2][2] = {
    {(const void *)hc_cluster<RIDGE_F16, HC_FULL>, (const void *)hc_cluster<RIDGE_F16, HC_STREAMS>},
    {(const void *)hc_cluster<RIDGE_BF16, HC_FULL>, (const void *)hc_cluster<RIDGE_BF16, HC_STREAMS>}};

static ridge_status prepare(const ridge_device *device)
{
    return device->arch < RIDGE_ARCH_SM90 ? RIDGE_OK
                                          : host_load(device, &functions[0][0], 4, "hc_split: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    hc_args p = hc_args_of(&bound->call);

    if (p.tokens == 0)
        return RIDGE_OK;
    return host_launch_cluster(device, kernel->name, functions[p.fn_dtype == RIDGE_BF16][!p.post],
                               dim3((unsigned)(p.tokens * HC_RANKS)), HC_RANKS, HC_WARPS * 32 + 32, 0, &p, stream);
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
    return problem->dim[0] > 1 << 27 ? "more than 2^27 tokens" : NULL;
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
