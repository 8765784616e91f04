/* quantize_whole.cu: quantize_fp8 with one scale for the tensor or one a row, on CUDA.
 *
 * TENSOR: one grid leaves the largest magnitude of each of its blocks in the workspace; a second one folds them, and
 * encodes. It walks the tensor backwards, so that what the first read last is still in L2. With given scales there is
 * one grid, and a third only if amax is asked for. ROW: one block a row, which it reads twice (the second time from
 * L2). Largest magnitudes are integers: any order gives the same bits. */
#include "quantize.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    GROUP = 16,
    UNIT = THREADS * GROUP,
    BLOCKS_PER_SM = 8,
    MOST_PARTIALS = 2048
};

/* The largest of all threads, in every thread. */
static __device__ uint32_t block_largest(uint32_t most)
{
    __shared__ uint32_t warps[WARPS];
    uint32_t all;

    most = __reduce_max_sync(~0u, most);
    __syncthreads(); /* everybody has read the previous use */
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = most;
    __syncthreads(); /* warps[] before all threads read it */
    all = warps[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        all = max(all, warps[w]);
    return all;
}

/* 16 elements of a row at `col`; n are inside. */
template <int DTYPE> struct sixteen {
    uint32_t raw[2][QUANTIZE_WORDS(DTYPE)];
};

template <int DTYPE>
static __device__ __forceinline__ void load16(const quantize_args &p, int64_t row, int64_t col, int64_t n,
                                              sixteen<DTYPE> &x)
{
    const int size = DTYPE == RIDGE_F32 ? 4 : 2;
    const char *at = p.x + (row * p.stride + col) * size;

    quantize_load<DTYPE>(at, n, p.vector_x, x.raw[0]);
    quantize_load<DTYPE>(at + 8 * size, n - 8, p.vector_x, x.raw[1]);
}

template <int DTYPE> static __device__ __forceinline__ uint32_t largest16(const sixteen<DTYPE> &x)
{
    return quantize_fold<DTYPE>(
        quantize_larger<DTYPE>(quantize_amax8<DTYPE>(x.raw[0]), quantize_amax8<DTYPE>(x.raw[1])));
}

/* Codes of x * r; with given scales an infinite element is 7F, as NaN is. */
template <int DTYPE>
static __device__ __forceinline__ void encode16(const quantize_args &p, int64_t row, int64_t col, int64_t n,
                                                const sixteen<DTYPE> &x, float r)
{
    uint8_t *to = p.row.q + row * p.row.stride + col;
    float v[GROUP];
    uint4 codes;

    quantize_unpack<DTYPE>(x.raw[0], v);
    quantize_unpack<DTYPE>(x.raw[1], v + 8);
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const bool infinite = p.given && ridge_magnitude(v[i]) >= 0x7f800000u;

        v[i] = infinite ? __uint_as_float(0x7fc00000u) : v[i] * r;
    }
    if (!p.vector_row || n < GROUP) {
        quantize_store8(to, v, n, false, p.e5m2);
        quantize_store8(to + 8, v + 8, n - 8, false, p.e5m2);
        return;
    }
    codes = make_uint4(num_fp8x4(v[0], v[1], v[2], v[3], p.e5m2), num_fp8x4(v[4], v[5], v[6], v[7], p.e5m2),
                       num_fp8x4(v[8], v[9], v[10], v[11], p.e5m2), num_fp8x4(v[12], v[13], v[14], v[15], p.e5m2));
    ptx_store_once(to, codes);
}

static __device__ __forceinline__ float amax_value(uint32_t amax)
{
    return __uint_as_float(amax >= 0x7f800000u ? 0x7fc00000u : amax);
}

/* Unit u: a stretch of UNIT columns of one row. */
template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 4) tensor_amax(const __grid_constant__ quantize_args p)
{
    const int64_t units = p.rows * p.across;
    uint32_t most = 0;

    ptx_grid_release(); /* a product behind this may begin to load its weights */
    ptx_grid_wait();
    for (int64_t u = blockIdx.x; u < units; u += gridDim.x) {
        const int64_t col = u % p.across * UNIT + threadIdx.x * GROUP;
        sixteen<DTYPE> x;

        load16<DTYPE>(p, u / p.across, col, p.cols - col, x);
        most = max(most, largest16<DTYPE>(x));
    }
    most = block_largest(most);
    if (threadIdx.x == 0)
        p.partial[blockIdx.x] = most;
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 4) tensor_encode(const __grid_constant__ quantize_args p)
{
    const int64_t units = p.rows * p.across;
    uint32_t most = 0;
    float s, r;

    ptx_grid_release(); /* a product behind this may begin to load its weights */
    ptx_grid_wait();
    if (p.given) {
        s = *p.given;
    } else {
        for (uint32_t i = threadIdx.x; i < p.partials; i += THREADS)
            most = max(most, p.partial[i]);
        most = block_largest(most);
        s = quantize_scale(p, most);
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            *p.row.scale = s;
            if (p.amax)
                *p.amax = amax_value(most);
        }
        most = 0;
    }
    r = ridge_fp8_reciprocal(s);
    for (int64_t u = units - 1 - blockIdx.x; u >= 0; u -= gridDim.x) {
        const int64_t row = u / p.across, col = u % p.across * UNIT + threadIdx.x * GROUP;
        sixteen<DTYPE> x;

        load16<DTYPE>(p, row, col, p.cols - col, x);
        if (p.given && p.amax)
            most = max(most, largest16<DTYPE>(x));
        encode16<DTYPE>(p, row, col, p.cols - col, x, r);
    }
    if (p.given && p.amax) {
        most = block_largest(most);
        if (threadIdx.x == 0)
            p.partial[blockIdx.x] = most;
    }
}

static __global__ void __launch_bounds__(THREADS) tensor_fold(const __grid_constant__ quantize_args p)
{
    uint32_t most = 0;

    ptx_grid_release(); /* a product behind this may begin to load its weights */
    ptx_grid_wait();
    for (uint32_t i = threadIdx.x; i < p.partials; i += THREADS)
        most = max(most, p.partial[i]);
    most = block_largest(most);
    if (threadIdx.x == 0)
        *p.amax = amax_value(most);
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 4) row_encode(const __grid_constant__ quantize_args p)
{
    const int64_t row = blockIdx.x;
    uint32_t most = 0;
    float s, r;

    ptx_grid_release(); /* a product behind this may begin to load its weights */
    ptx_grid_wait();
    if (!p.given || p.amax) {
        for (int64_t col = threadIdx.x * GROUP; col < p.cols; col += UNIT) {
            sixteen<DTYPE> x;

            load16<DTYPE>(p, row, col, p.cols - col, x);
            most = max(most, largest16<DTYPE>(x));
        }
        most = block_largest(most);
    }
    s = p.given ? p.given[row] : quantize_scale(p, most);
    r = ridge_fp8_reciprocal(s);
    if (threadIdx.x == 0 && !p.given)
        p.row.scale[row] = s;
    if (threadIdx.x == 0 && p.amax)
        p.amax[row] = amax_value(most);
    for (int64_t col = threadIdx.x * GROUP; col < p.cols; col += UNIT) {
        sixteen<DTYPE> x;

        load16<DTYPE>(p, row, col, p.cols - col, x);
        encode16<DTYPE>(p, row, col, p.cols - col, x, r);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_DTYPE(kernel)                                                                                   \
    {                                                                                                      \
        (const void *)kernel<RIDGE_F32>, (const void *)kernel<RIDGE_F16>, (const void *)kernel<RIDGE_BF16> \
    }

static const void *const functions[3][3] = {BY_DTYPE(tensor_amax), BY_DTYPE(tensor_encode), BY_DTYPE(row_encode)};

static ridge_status prepare(const ridge_device *device)
{
    const void *const fold = (const void *)tensor_fold;
    ridge_status status = host_load(device, &functions[0][0], 3 * 3, "quantize: loading kernels");

    return status ? status : host_load(device, &fold, 1, "quantize: loading kernels");
}

static quantize_args collect(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const int size = arg[RIDGE_QUANTIZE_FP8_X].dtype == RIDGE_F32 ? 4 : 2;
    quantize_args p = {};

    p.rows = call->dim[0];
    p.cols = call->dim[1];
    p.x = (const char *)arg[RIDGE_QUANTIZE_FP8_X].data;
    p.stride = arg[RIDGE_QUANTIZE_FP8_X].stride ? arg[RIDGE_QUANTIZE_FP8_X].stride : p.cols;
    p.row = quantize_output(call, RIDGE_QUANTIZE_FP8_Q, p.cols, p.rows);
    p.given = (const float *)arg[RIDGE_QUANTIZE_FP8_GIVEN].data;
    p.amax = (float *)arg[RIDGE_QUANTIZE_FP8_AMAX].data;
    p.e5m2 = arg[RIDGE_QUANTIZE_FP8_Q].dtype == RIDGE_E5M2;
    p.pow2 = (call->flags & RIDGE_POW2) != 0;
    p.floor = call->opt.quantize.floor;
    if ((call->flags & RIDGE_SCALE) == RIDGE_SCALE_TENSOR && p.stride == p.cols && p.row.stride == p.cols) {
        p.cols *= p.rows; /* one long row */
        p.stride = p.row.stride = p.cols;
        p.rows = 1;
    }
    p.vector_x = quantize_aligned(p.x, p.rows > 1 ? p.stride * size : 0, 16);
    p.vector_row = quantize_aligned(p.row.q, p.rows > 1 ? p.row.stride : 0, 16);
    p.across = (uint32_t)((p.cols + UNIT - 1) / UNIT);
    return p;
}

static ridge_status launch_row(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                               const ridge_call *call, void *, size_t, void *stream)
{
    quantize_args p = collect(call);

    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[2][problem->dtype[0] - RIDGE_F32], dim3((unsigned)p.rows),
                       THREADS, &p, stream);
}

static ridge_status launch_tensor(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                                  const ridge_call *call, void *workspace, size_t, void *stream)
{
    const int dtype = problem->dtype[0] - RIDGE_F32;
    quantize_args p = collect(call);
    int64_t blocks = (int64_t)device->units * BLOCKS_PER_SM;
    ridge_status status = RIDGE_OK;

    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    blocks = blocks < p.rows * p.across ? blocks : p.rows * p.across;
    p.partials = (uint32_t)(blocks < (int64_t)MOST_PARTIALS ? blocks : (int64_t)MOST_PARTIALS);
    p.partial = (uint32_t *)workspace;
    if (!p.given)
        status = host_launch(device, kernel->name, functions[0][dtype], dim3(p.partials), THREADS, &p, stream);
    if (!status)
        status = host_launch(device, kernel->name, functions[1][dtype], dim3(p.partials), THREADS, &p, stream);
    if (!status && p.given && p.amax)
        status = host_launch(device, kernel->name, (const void *)tensor_fold, dim3(1), THREADS, &p, stream);
    return status;
}

static const char *why_not_row(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if ((problem->flags & RIDGE_SCALE) != RIDGE_SCALE_ROW)
        return "does one scale a row only";
    return problem->dim[0] > 0x7fffffff ? "more than 2^31 - 1 rows" : NULL;
}

static const char *why_not_tensor(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if ((problem->flags & RIDGE_SCALE) != RIDGE_SCALE_TENSOR)
        return "does one scale for the tensor only";
    return (double)problem->dim[0] * (double)problem->dim[1] > 0x1p43 ? "more than 2^43 elements" : NULL;
}

static size_t workspace_tensor(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const bool given = problem->dtype[RIDGE_QUANTIZE_FP8_GIVEN] != RIDGE_NONE;

    return given && problem->dtype[RIDGE_QUANTIZE_FP8_AMAX] == RIDGE_NONE ? 0 : MOST_PARTIALS * sizeof(uint32_t);
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 3 + 5.0 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.quantize_fp8.row",
     RIDGE_QUANTIZE_FP8,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_SM121,
     QUANTIZE_CONTRACT,
     0,
     {},
     why_not_row,
     NULL,
     cost,
     launch_row},
    {"cuda.quantize_fp8.tensor",
     RIDGE_QUANTIZE_FP8,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_SM121,
     QUANTIZE_CONTRACT,
     0,
     {},
     why_not_tensor,
     workspace_tensor,
     cost,
     launch_tensor},
};

extern "C" const ridge_kernel_list ridge_cuda_quantize_whole = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
