/* hc.cu: hc_mix and hc_split on any GPU from sm_80 on, with any shape. hc_mix has a CTA for a number of a token;
 * hc_split a CTA for a token, behind hc_mix into the workspace. Streams are
 * read again from the L2 cache for the norm. */
#include "hc.cuh"

/* Adds the partials of a CTA; the sum is in every thread. shared: 8 warps' sums of each own partial. */
static __device__ __forceinline__ float tree_cta(float *v, float (*shared)[HC_OWN])
{
    float part[HC_OWN];

    __syncthreads(); /* the sums of the call before have been read */
#pragma unroll
    for (int i = 0; i < HC_OWN; i++) {
        v[i] = hc_tree_lanes(v[i]);
        if (threadIdx.x % 32 == 0)
            shared[threadIdx.x / 32][i] = v[i];
    }
    __syncthreads(); /* the sums are written before they are read */
#pragma unroll
    for (int i = 0; i < HC_OWN; i++) {
        float warp[HC_OWN];

#pragma unroll
        for (int k = 0; k < HC_OWN; k++)
            warp[k] = shared[k][i];
        part[i] = hc_tree_8(warp);
    }
    return hc_tree_8(part);
}

static __global__ void __launch_bounds__(HC_THREADS) hc_mix(const __grid_constant__ hc_args p)
{
    __shared__ float shared[HC_OWN][HC_OWN];
    const int64_t t = blockIdx.y, i = blockIdx.x;
    const float *res = p.res + t * p.res_stride;
    float dot[HC_OWN] = {}, square[HC_OWN] = {}, sum;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    for (int h = 0; h < p.n_hc; h++)
        for (int64_t c = 0; c < p.cols; c += 2 * RIDGE_HC_PARTS)
#pragma unroll
            for (int k = 0; k < HC_OWN; k++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int64_t j = c + 2 * (threadIdx.x + HC_THREADS * k) + e, at = h * p.cols + j;

                    if (j < p.cols) {
                        const float x = res[at];

                        dot[k] = __fmaf_rn(hc_load(p.fn_dtype, p.fn, i * p.fn_stride + at), x, dot[k]);
                        square[k] = __fmaf_rn(x, x, square[k]);
                    }
                }
    sum = tree_cta(dot, shared);
    sum *= ridge_rms_factor(tree_cta(square, shared), p.n_hc * p.cols, p.eps);
    if (threadIdx.x == 0)
        num_store<RIDGE_F32>(p.mix, t * p.mix_stride + i, sum);
}

/* The mixture of a token by one warp: lane i has row i, or column i. */
static __device__ __forceinline__ void sinkhorn(const hc_args &p, int64_t t, const float *z, float *k, float *u,
                                                float *v)
{
    const int n = p.n_hc, i = threadIdx.x;
    const bool mine = i < n;
    float row = 1.0f, col = 1.0f;

    if (mine) {
        float max = z[i * n], sum = 0.0f;

        for (int c = 1; c < n; c++)
            max = z[i * n + c] > max || max != max ? z[i * n + c] : max;
        for (int c = 0; c < n; c++) {
            k[i * n + c] = ridge_hc_exp(z[i * n + c], max);
            sum += k[i * n + c];
        }
        for (int c = 0; c < n; c++)
            k[i * n + c] = ridge_hc_entry(k[i * n + c], sum, p.hc_eps);
        u[i] = v[i] = 1.0f;
    }
    for (int step = 0; step < 2 * p.iterations - 1; step++) {
        __syncwarp(); /* the factors of the step before are written before they are read */
        if (mine && step % 2)
            u[i] = ridge_hc_factor(k + i * n, 1, v, n, p.hc_eps, &row);
        else if (mine)
            v[i] = ridge_hc_factor(k + i, n, u, n, p.hc_eps, &col);
    }
    __syncwarp(); /* and the last ones */
    for (int j = i; j < n * n; j += 32)
        num_store<RIDGE_F32>(p.comb, t * p.comb_stride + j, u[j / n] * k[j] * v[j % n]);
}

/* The sublayer's input in column c before its norm. */
static __device__ __forceinline__ float input(const hc_args &p, const float *res, const float *pre, int64_t c)
{
    float y = pre[0] * res[c];

    for (int h = 1; h < p.n_hc; h++)
        y = __fmaf_rn(pre[h], res[h * p.cols + c], y);
    return y;
}

static __global__ void __launch_bounds__(HC_THREADS, 1) hc_split(const __grid_constant__ hc_args p)
{
    __shared__ float shared[HC_OWN][HC_OWN], z[RIDGE_MAX_HC * (2 + RIDGE_MAX_HC)], k[RIDGE_MAX_HC * RIDGE_MAX_HC];
    __shared__ float pre[RIDGE_MAX_HC], u[RIDGE_MAX_HC], v[RIDGE_MAX_HC];
    const int64_t t = blockIdx.x;
    const float *res = p.res + t * p.res_stride;
    float square[HC_OWN] = {}, factor;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    for (int i = threadIdx.x; i < p.mixes; i += HC_THREADS) {
        z[i] = __fmaf_rn(p.mix[t * p.mix_stride + i], p.scale[ridge_hc_scale_of(p.n_hc, i)], p.base[i]);
        if (i < p.n_hc)
            pre[i] = ridge_hc_sigmoid(z[i]) + p.hc_eps;
        else if (i < 2 * p.n_hc)
            num_store<RIDGE_F32>(p.post, t * p.post_stride + i - p.n_hc, 2.0f * ridge_hc_sigmoid(z[i]));
    }
    __syncthreads(); /* z and pre are written before they are read */
    if (p.comb && threadIdx.x < 32)
        sinkhorn(p, t, z + 2 * p.n_hc, k, u, v);
    for (int64_t c = 0; c < p.cols; c += 2 * RIDGE_HC_PARTS)
#pragma unroll
        for (int i = 0; i < HC_OWN; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int64_t j = c + 2 * (threadIdx.x + HC_THREADS * i) + e;

                if (j < p.cols) {
                    const float y = input(p, res, pre, j);

                    square[i] = __fmaf_rn(y, y, square[i]);
                }
            }
    factor = ridge_rms_factor(tree_cta(square, shared), p.cols, p.eps);
    for (int64_t c = 2 * threadIdx.x; c - 2 * threadIdx.x < p.cols; c += 2 * HC_THREADS) {
        const bool one = c < p.cols, two = c + 1 < p.cols;
        float y[2] = {};

#pragma unroll
        for (int e = 0; e < 2; e++)
            if (e ? two : one) {
                y[e] = input(p, res, pre, c + e) * factor;
                y[e] = p.w ? y[e] * hc_load(p.w_dtype, p.w, c + e) : y[e];
            }
        hc_store(p, t, c, one, two, y[0], y[1]);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[2] = {(const void *)hc_mix, (const void *)hc_split};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 2, "hc_mix: loading kernels");
}

/* The numbers of hc_mix for hc_split. */
static size_t workspace(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t n = problem->dim[2], mixes = problem->dtype[RIDGE_HC_SPLIT_POST] == RIDGE_NONE ? n : n * (2 + n);

    if (problem->op == RIDGE_HC_MIX)
        return 0;
    return (size_t)(problem->dim[0] * mixes) * sizeof(float);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *space, size_t, void *stream)
{
    hc_args p = hc_args_of(&bound->call);
    ridge_status status;

    if (p.tokens == 0 || p.mixes == 0)
        return RIDGE_OK;
    if (bound->call.op == RIDGE_HC_SPLIT) {
        p.mix = (float *)space;
        p.mix_stride = p.mixes;
    }
    status = host_launch(device, kernel->name, functions[0], dim3((unsigned)p.mixes, (unsigned)p.tokens), HC_THREADS,
                         &p, stream);
    if (status || bound->call.op == RIDGE_HC_MIX)
        return status;
    return host_launch(device, kernel->name, functions[1], dim3((unsigned)p.tokens), HC_THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return problem->dim[0] > 65535                                       ? "more than 65535 tokens"
           : problem->op == RIDGE_HC_MIX && problem->dim[3] > 0x7fffffff ? "more than 2^31 - 1 numbers"
                                                                         : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 6 + (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * 8e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id, name)                                                                            \
    {                                                                                                        \
        "cuda." op_name "." name, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, HC_CONTRACT, 0, {}, why_not, \
            workspace, cost, launch                                                                          \
    }

static const ridge_kernel rows[] = {
    ROW("hc_mix", RIDGE_HC_MIX, "cta"),
    ROW("hc_split", RIDGE_HC_SPLIT, "cta"),
};

extern "C" const ridge_kernel_list ridge_cuda_hc = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
