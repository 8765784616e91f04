/* whole.cu: quantize_fp8 with one scale for the tensor or one a row, on CUDA. Leaves out: scales of 128 columns and of
 * blocks (tile.cu).
 *
 * TENSOR: one grid leaves the largest magnitude that each of its blocks found in the workspace; a second grid reduces
 * them and encodes. The second grid goes through the tensor backwards, because what the first one read last is still in
 * L2. With given scales only the encoding grid runs, and a grid that reduces the magnitudes only if amax is asked for.
 * ROW: one block a row, which it keeps in registers between its largest magnitude and its codes; a row too long for
 * that, or not aligned, is read twice (the second time from L2). Magnitudes are compared as integers: any order gives
 * the same bits. */
#include "quantize.cuh"

/* TENSOR: a block takes work units of FLIGHT groups of 8 columns a thread, all of their loads in flight. ROW: a thread
 * keeps up to HELD groups, in 32 registers. */
enum { THREADS = 256, FLIGHT = 4, UNIT = THREADS * 8 * FLIGHT, BLOCKS_PER_SM = 8, MOST_PARTIALS = 32768 };
enum { HOLD_LEAST = 64, HOLD_MOST = 1024 }; /* threads of a block */
#define HELD(dtype) ((dtype) == RIDGE_F32 ? 4 : 8)
#define ELEMENT(dtype) ((dtype) == RIDGE_F32 ? 4 : 2)

/* The largest of all threads, in every thread. */
static __device__ uint32_t block_largest(uint32_t most)
{
    __shared__ uint32_t warps[HOLD_MOST / 32];
    uint32_t all;

    most = __reduce_max_sync(~0u, most);
    __syncthreads(); /* all threads have read warps[] of the previous call before it is written */
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = most;
    __syncthreads(); /* warps[] is written before all threads read it */
    all = warps[0];
    for (uint32_t w = 1; w < blockDim.x / 32; w++)
        all = max(all, warps[w]);
    return all;
}

/* Stores n codes of 8 elements times r. With given scales an infinite element becomes 7F, as NaN does. */
template <int DTYPE>
static __device__ __forceinline__ void encode(const quantize_args &p, uint8_t *to, int64_t n, bool vector,
                                              const uint32_t *raw, float r, bool e5m2)
{
    float v[8];

    quantize_unpack<DTYPE>(raw, v);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const bool infinite = p.given && ridge_magnitude(v[i]) >= 0x7f800000u;

        v[i] = infinite ? __uint_as_float(0x7fc00000u) : v[i] * r;
    }
    quantize_store8(to, v, n, vector, e5m2);
}

static __device__ __forceinline__ float amax_value(uint32_t amax)
{
    return __uint_as_float(amax >= 0x7f800000u ? 0x7fc00000u : amax);
}

/* This thread's groups of a work unit. */
typedef struct unit {
    const char *from;
    uint8_t *to;
    int64_t left; /* columns of the row from here on */
    bool whole;   /* all groups of all threads are inside the row, and their loads and stores are aligned */
} unit;

template <int DTYPE> static __device__ __forceinline__ unit locate(const quantize_args &p, int64_t u)
{
    const int64_t row = p.rows == 1 ? 0 : u / p.across, begin = (u - row * p.across) * UNIT;
    const int64_t col = begin + threadIdx.x * 8;
    const unit s = {p.x + (row * p.stride + col) * ELEMENT(DTYPE), p.row.q + row * p.row.stride + col, p.cols - col,
                    p.whole && p.cols - begin >= UNIT};

    return s;
}

/* All groups of a whole unit. */
template <int DTYPE>
static __device__ __forceinline__ void load_unit(const unit &s, uint32_t (*raw)[QUANTIZE_WORDS(DTYPE)])
{
#pragma unroll
    for (int g = 0; g < FLIGHT; g++)
        quantize_load<DTYPE>(s.from + g * THREADS * 8 * ELEMENT(DTYPE), 8, true, raw[g]);
}

template <int DTYPE, int GROUPS>
static __device__ __forceinline__ uint32_t largest(const uint32_t (*raw)[QUANTIZE_WORDS(DTYPE)])
{
    uint32_t most = quantize_amax8<DTYPE>(raw[0]);

#pragma unroll
    for (int g = 1; g < GROUPS; g++)
        most = quantize_larger<DTYPE>(most, quantize_amax8<DTYPE>(raw[g]));
    return quantize_fold<DTYPE>(most);
}

/* The largest magnitude of a unit at an edge, a group at a time; ENCODE: its codes too. */
template <int DTYPE, bool ENCODE>
static __device__ __forceinline__ uint32_t edge_unit(const quantize_args &p, const unit &s, float r)
{
    uint32_t most = 0;

#pragma unroll 1
    for (int at = 0; at < UNIT && at < s.left; at += THREADS * 8) {
        uint32_t raw[QUANTIZE_WORDS(DTYPE)];

        quantize_load<DTYPE>(s.from + at * ELEMENT(DTYPE), s.left - at, p.vector_x, raw);
        most = max(most, quantize_fold<DTYPE>(quantize_amax8<DTYPE>(raw)));
        if (ENCODE)
            encode<DTYPE>(p, s.to + at, s.left - at, p.vector_row, raw, r, p.e5m2);
    }
    return most;
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 4) tensor_amax(const __grid_constant__ quantize_args p)
{
    const int64_t units = p.rows * p.across;
    uint32_t most = 0;

    quantize_wait();
    ptx_launch_dependents();
    for (int64_t u = blockIdx.x; u < units; u += gridDim.x) {
        const unit s = locate<DTYPE>(p, u);
        uint32_t raw[FLIGHT][QUANTIZE_WORDS(DTYPE)];

        if (s.whole) {
            load_unit<DTYPE>(s, raw);
            most = max(most, largest<DTYPE, FLIGHT>(raw));
        } else {
            most = max(most, edge_unit<DTYPE, false>(p, s, 0.0f));
        }
    }
    most = block_largest(most);
    if (threadIdx.x == 0)
        p.partial[blockIdx.x] = most;
}

/* The scale of the tensor from the partial results of tensor_amax; block 0 stores it. */
static __device__ float tensor_scale(const quantize_args &p)
{
    uint32_t most = 0;
    float s;

    for (uint32_t i = threadIdx.x; i < p.partials; i += THREADS)
        most = max(most, p.partial[i]);
    most = block_largest(most);
    s = quantize_scale(p, most);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *p.row.scale = s;
        if (p.amax)
            *p.amax = amax_value(most);
    }
    return s;
}

template <int DTYPE, int E5M2>
static __global__ void __launch_bounds__(THREADS, 4) tensor_encode(const __grid_constant__ quantize_args p)
{
    const int64_t units = p.rows * p.across;
    const bool track = p.given && p.amax;
    uint32_t most = 0;
    float r;

    quantize_wait();
    r = ridge_fp8_reciprocal(p.given ? *p.given : tensor_scale(p));
    for (int64_t u = units - 1 - blockIdx.x; u >= 0; u -= gridDim.x) {
        const unit s = locate<DTYPE>(p, u);
        uint32_t raw[FLIGHT][QUANTIZE_WORDS(DTYPE)];

        if (!s.whole) {
            most = max(most, edge_unit<DTYPE, true>(p, s, r));
            continue;
        }
        load_unit<DTYPE>(s, raw);
        ptx_launch_dependents();
        if (track)
            most = max(most, largest<DTYPE, FLIGHT>(raw));
#pragma unroll
        for (int g = 0; g < FLIGHT; g++)
            encode<DTYPE>(p, s.to + g * THREADS * 8, 8, true, raw[g], r, E5M2);
    }
    if (track) {
        most = block_largest(most);
        if (threadIdx.x == 0)
            p.partial[blockIdx.x] = most;
    }
}

static __global__ void __launch_bounds__(HOLD_MOST) tensor_fold(const __grid_constant__ quantize_args p)
{
    uint32_t most = 0;

    quantize_wait();
    ptx_launch_dependents();
    for (uint32_t i = threadIdx.x; i < p.partials; i += HOLD_MOST)
        most = max(most, p.partial[i]);
    most = block_largest(most);
    if (threadIdx.x == 0)
        *p.amax = amax_value(most);
}

/* The scale of a row from its largest magnitude, stored; its reciprocal. */
static __device__ __forceinline__ float row_reciprocal(const quantize_args &p, int64_t row, uint32_t most)
{
    const float s = p.given ? p.given[row] : quantize_scale(p, most);

    if (threadIdx.x == 0 && !p.given)
        p.row.scale[row] = s;
    if (threadIdx.x == 0 && p.amax)
        p.amax[row] = amax_value(most);
    return ridge_fp8_reciprocal(s);
}

/* Any row. */
template <int DTYPE>
static __global__ void __launch_bounds__(THREADS, 4) row_encode(const __grid_constant__ quantize_args p)
{
    const int64_t row = blockIdx.x, step = THREADS * 8;
    const char *from = p.x + row * p.stride * ELEMENT(DTYPE);
    uint32_t raw[QUANTIZE_WORDS(DTYPE)], most = 0;
    float r;

    quantize_wait();
    ptx_launch_dependents();
    if (!p.given || p.amax) {
        for (int64_t col = threadIdx.x * 8; col < p.cols; col += step) {
            quantize_load<DTYPE>(from + col * ELEMENT(DTYPE), p.cols - col, p.vector_x, raw);
            most = max(most, quantize_fold<DTYPE>(quantize_amax8<DTYPE>(raw)));
        }
        most = block_largest(most);
    }
    r = row_reciprocal(p, row, most);
    for (int64_t col = threadIdx.x * 8; col < p.cols; col += step) {
        quantize_load<DTYPE>(from + col * ELEMENT(DTYPE), p.cols - col, p.vector_x, raw);
        encode<DTYPE>(p, p.row.q + row * p.row.stride + col, p.cols - col, p.vector_row, raw, r, p.e5m2);
    }
}

/* A row of whole groups that the block's registers hold, with wide loads and stores. */
template <int DTYPE, int E5M2>
static __global__ void __launch_bounds__(HOLD_MOST, 1) row_hold(const __grid_constant__ quantize_args p)
{
    const int64_t row = blockIdx.x;
    const int first = (int)threadIdx.x, groups = (int)(p.cols / 8), step = (int)blockDim.x;
    const char *from = p.x + (row * p.stride + first * 8) * ELEMENT(DTYPE);
    uint8_t *to = p.row.q + row * p.row.stride + first * 8;
    uint32_t raw[HELD(DTYPE)][QUANTIZE_WORDS(DTYPE)], most = 0;
    float r;

    quantize_wait();
#pragma unroll
    for (int g = 0; g < HELD(DTYPE); g++) {
#pragma unroll
        for (int k = 0; k < QUANTIZE_WORDS(DTYPE); k++)
            raw[g][k] = 0;
        if (first + g * step < groups)
            quantize_load<DTYPE>(from + g * step * 8 * ELEMENT(DTYPE), 8, true, raw[g]);
    }
    ptx_launch_dependents(); /* it takes time: after the loads are issued */
    if (!p.given || p.amax)
        most = block_largest(largest<DTYPE, HELD(DTYPE)>(raw));
    r = row_reciprocal(p, row, most);
#pragma unroll
    for (int g = 0; g < HELD(DTYPE); g++)
        if (first + g * step < groups)
            encode<DTYPE>(p, to + g * step * 8, 8, true, raw[g], r, E5M2);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_DTYPE(kernel)                                                                                   \
    {                                                                                                      \
        (const void *)kernel<RIDGE_F32>, (const void *)kernel<RIDGE_F16>, (const void *)kernel<RIDGE_BF16> \
    }
#define BY_FORMAT(kernel, E5M2)                                                       \
    {                                                                                 \
        (const void *)kernel<RIDGE_F32, E5M2>, (const void *)kernel<RIDGE_F16, E5M2>, \
            (const void *)kernel<RIDGE_BF16, E5M2>                                    \
    }

enum { AMAX, ROW, ENCODE, HOLD = ENCODE + 2 };

/* [kernel; from ENCODE on two each, e4m3 and e5m2][dtype] */
static const void *const functions[6][3] = {BY_DTYPE(tensor_amax),       BY_DTYPE(row_encode),
                                            BY_FORMAT(tensor_encode, 0), BY_FORMAT(tensor_encode, 1),
                                            BY_FORMAT(row_hold, 0),      BY_FORMAT(row_hold, 1)};

static ridge_status prepare(const ridge_device *device)
{
    const void *const fold = (const void *)tensor_fold;
    ridge_status status = host_load(device, &functions[0][0], 6 * 3, "quantize: loading kernels");

    return status ? status : host_load(device, &fold, 1, "quantize: loading kernels");
}

static quantize_args args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    const int size = arg[RIDGE_QUANTIZE_FP8_X].dtype == RIDGE_F32 ? 4 : 2;
    quantize_args p = {};

    p.rows = call->dim[0];
    p.cols = call->dim[1];
    p.x = (const char *)arg[RIDGE_QUANTIZE_FP8_X].data;
    p.stride = arg[RIDGE_QUANTIZE_FP8_X].stride;
    p.row = quantize_output(call, RIDGE_QUANTIZE_FP8_Q);
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
    p.vector_row = quantize_aligned(p.row.q, p.rows > 1 ? p.row.stride : 0, 8);
    p.whole = p.vector_x && p.vector_row;
    p.across = (uint32_t)ridge_ceil_div(p.cols, UNIT);
    return p;
}

static ridge_status launch_row(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                               size_t, void *stream)
{
    const int dtype = bound->problem.dtype[0] - RIDGE_F32, held = 8 * HELD(bound->problem.dtype[0]);
    quantize_args p = args_of(&bound->call);
    int threads = HOLD_LEAST;

    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    while (threads < HOLD_MOST && threads * held < p.cols)
        threads *= 2;
    if (p.whole && p.cols % 8 == 0 && p.cols <= threads * held)
        return host_launch(device, kernel->name, functions[HOLD + p.e5m2][dtype], dim3((unsigned)p.rows), threads, &p,
                           stream);
    return host_launch(device, kernel->name, functions[ROW][dtype], dim3((unsigned)p.rows), THREADS, &p, stream);
}

static ridge_status launch_tensor(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t, void *stream)
{
    const int dtype = bound->problem.dtype[0] - RIDGE_F32;
    quantize_args p = args_of(&bound->call);
    int64_t blocks, units;
    ridge_status status = RIDGE_OK;

    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    units = p.rows * p.across;
    /* without given scales every block reduces all partial results: few blocks */
    blocks = p.given ? units : ridge_min(units, (int64_t)device->units * BLOCKS_PER_SM);
    p.partials = (uint32_t)ridge_min(blocks, MOST_PARTIALS);
    p.partial = (uint32_t *)workspace;
    if (!p.given)
        status = host_launch(device, kernel->name, functions[AMAX][dtype], dim3(p.partials), THREADS, &p, stream);
    if (!status)
        status =
            host_launch(device, kernel->name, functions[ENCODE + p.e5m2][dtype], dim3(p.partials), THREADS, &p, stream);
    if (!status && p.given && p.amax)
        status = host_launch(device, kernel->name, (const void *)tensor_fold, dim3(1), HOLD_MOST, &p, stream);
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
    const double units = (double)problem->dim[0] * (double)ridge_ceil_div(problem->dim[1], UNIT); /* or fewer */

    if (given && problem->dtype[RIDGE_QUANTIZE_FP8_AMAX] == RIDGE_NONE)
        return 0;
    return (size_t)(units < MOST_PARTIALS ? units : (double)MOST_PARTIALS) * sizeof(uint32_t);
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 3 + 5.0 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.quantize_fp8.row",
     RIDGE_QUANTIZE_FP8,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
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
     RIDGE_ARCH_CUDA_LAST,
     QUANTIZE_CONTRACT,
     0,
     {},
     why_not_tensor,
     workspace_tensor,
     cost,
     launch_tensor},
};

extern "C" const ridge_kernel_list ridge_cuda_quantize_whole = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
