/* combine.cu: moe_combine and moe_combine_bwd on CUDA. Forward: a thread has 8 columns of a token and reads them from
 * the row of each slot, eight rows at a time. Backward: a CTA a token, a warp for each of its slots; lane i has the
 * columns of partial i of the sum. Moves every element once (dout comes from L1 for all slots but one). */
#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/math/experts.h"
#include "src/util.h"

enum { THREADS = 256, COLUMNS = RIDGE_EXPERTS_GROUP, AHEAD = 8 };

/* 8 columns of a row from column `col` on, as they are; `n` of them are there, the others become 0. */
template <int DTYPE>
static __device__ __forceinline__ void load8_raw(const experts_matrix &m, int64_t row, int64_t col, int64_t n,
                                                 bool vector, uint32_t *raw)
{
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2;
    const char *at = m.data + (row * m.stride + col) * SIZE;

    if (vector && n >= 8) {
#pragma unroll
        for (int i = 0; i < SIZE / 2; i++) {
            const uint4 v = ((const uint4 *)at)[i];

            raw[4 * i] = v.x, raw[4 * i + 1] = v.y, raw[4 * i + 2] = v.z, raw[4 * i + 3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (DTYPE == RIDGE_F32)
            raw[i] = i < n ? ((const uint32_t *)at)[i] : 0;
        else if (i % 2 == 0)
            raw[i / 2] = (i < n ? ((const uint16_t *)at)[i] : 0u) | (i + 1 < n ? ((const uint16_t *)at)[i + 1] : 0u)
                                                                        << 16;
    }
}

template <int DTYPE> static __device__ __forceinline__ void unpack8(const uint32_t *raw, float *x)
{
    num_unpack<DTYPE>(make_uint4(raw[0], raw[1], raw[2], raw[3]), x);
    if (DTYPE == RIDGE_F32)
        num_unpack<DTYPE>(make_uint4(raw[4], raw[5], raw[6], raw[7]), x + 4);
}

template <int DTYPE>
static __device__ __forceinline__ void load8(const experts_matrix &m, int64_t row, int64_t col, int64_t n, bool vector,
                                             float *x)
{
    uint32_t raw[DTYPE == RIDGE_F32 ? 8 : 4];

    load8_raw<DTYPE>(m, row, col, n, vector, raw);
    unpack8<DTYPE>(raw, x);
}

template <int DTYPE>
static __device__ __forceinline__ void store8(const experts_matrix &m, int64_t row, int64_t col, int64_t n, bool vector,
                                              const float *x)
{
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2;
    char *at = m.data + (row * m.stride + col) * SIZE;

    if (vector && n >= 8) {
        *(uint4 *)at = num_pack<DTYPE>(x);
        if (DTYPE == RIDGE_F32)
            *(uint4 *)(at + 16) = num_pack<DTYPE>(x + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n)
            num_store<DTYPE>(at, i, x[i]);
}

/* The same of a matrix whose dtype is known at run time. */
static __device__ __forceinline__ void load8_any(const experts_matrix &m, int64_t row, int64_t col, int64_t n,
                                                 bool vector, float *x)
{
    if (m.dtype == RIDGE_F32)
        load8<RIDGE_F32>(m, row, col, n, vector, x);
    else if (m.dtype == RIDGE_BF16)
        load8<RIDGE_BF16>(m, row, col, n, vector, x);
    else
        load8<RIDGE_F16>(m, row, col, n, vector, x);
}

static __device__ __forceinline__ bool has_row(const combine_args &p, int row)
{
    return row >= 0 && row < p.pairs;
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) moe_combine(const __grid_constant__ combine_args p)
{
    const int64_t across = (p.cols + COLUMNS - 1) / COLUMNS, at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t t = at / across, col = at % across * COLUMNS, n = p.cols - col;
    float sum[COLUMNS] = {};

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (t >= p.tokens)
        return;
    for (int first = 0; first < p.slots; first += AHEAD) {
        uint32_t raw[AHEAD][DTYPE == RIDGE_F32 ? 8 : 4];
        float w[AHEAD];
        int row[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const bool slot = first + i < p.slots;

            row[i] = slot ? p.place[t * p.place_stride + first + i] : -1;
            w[i] = slot && p.weights ? p.weights[t * p.weights_stride + first + i] : 1.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (has_row(p, row[i]))
                load8_raw<DTYPE>(p.y, row[i], col, n, p.vector, raw[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float y[COLUMNS];

            unpack8<DTYPE>(raw[i], y);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) /* times 1 is exact: without weights this is a sum */
                sum[j] = has_row(p, row[i]) ? ridge_fma(w[i], y[j], sum[j]) : sum[j];
        }
    }
    if (p.shared.data) {
        float x[COLUMNS];

        load8_any(p.shared, t, col, n, p.vector, x);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            sum[j] = x[j] + sum[j];
    }
    if (p.residual.data) {
        float x[COLUMNS];

        load8_any(p.residual, t, col, n, p.vector, x);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            sum[j] = x[j] + sum[j];
    }
    if (p.out.dtype == RIDGE_F32)
        store8<RIDGE_F32>(p.out, t, col, n, p.vector, sum);
    else if (p.out.dtype == RIDGE_BF16)
        store8<RIDGE_BF16>(p.out, t, col, n, p.vector, sum);
    else
        store8<RIDGE_F16>(p.out, t, col, n, p.vector, sum);
}

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) moe_combine_bwd(const __grid_constant__ combine_args p)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t t = blockIdx.x;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    for (int s = warp; s < p.slots; s += THREADS / 32) {
        const int row = p.place[t * p.place_stride + s];
        const float w = p.weights ? p.weights[t * p.weights_stride + s] : 1.0f;
        const int64_t cols = has_row(p, row) ? p.cols : 0;
        float dot = 0.0f;

        for (int64_t col = lane * COLUMNS; col < cols; col += 32 * COLUMNS) {
            float g[COLUMNS], y[COLUMNS];

            load8<DTYPE>(p.out, t, col, cols - col, p.vector, g);
            if (p.dweights) {
                load8<DTYPE>(p.y, row, col, cols - col, p.vector, y);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    dot = col + j < cols ? ridge_fma(g[j], y[j], dot) : dot;
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                y[j] = w * g[j];
            store8<DTYPE>(p.dy, row, col, cols - col, p.vector, y);
        }
#pragma unroll
        for (int half = 16; half > 0; half /= 2)
            dot += __shfl_xor_sync(0xffffffffu, dot, half);
        if (p.dweights && lane == 0)
            num_store<RIDGE_F32>(p.dweights, t * p.dweights_stride + s, dot);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[2][3] = {
    {(const void *)moe_combine<RIDGE_F32>, (const void *)moe_combine<RIDGE_F16>, (const void *)moe_combine<RIDGE_BF16>},
    {(const void *)moe_combine_bwd<RIDGE_F32>, (const void *)moe_combine_bwd<RIDGE_F16>,
     (const void *)moe_combine_bwd<RIDGE_BF16>}};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, &functions[0][0], 6, "moe_combine: loading kernels");
}

/* An absent matrix is aligned. */
static bool aligned(const experts_matrix &m)
{
    return !m.data || ((uintptr_t)m.data % 16 == 0 && m.stride * (m.dtype == RIDGE_F32 ? 4 : 2) % 16 == 0);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const bool backward = kernel->op == RIDGE_MOE_COMBINE_BWD;
    combine_args p = combine_args_of(&bound->call);
    const int64_t across = ridge_ceil_div(p.cols, COLUMNS);
    const void *function = functions[backward][bound->call.arg[0].dtype - RIDGE_F32];

    static_assert(RIDGE_F16 == RIDGE_F32 + 1 && RIDGE_BF16 == RIDGE_F32 + 2, "the order of `functions`");
    if (p.tokens == 0 || (p.cols == 0 && !p.dweights))
        return RIDGE_OK;
    p.vector = aligned(p.y) && aligned(p.out) && aligned(p.shared) && aligned(p.residual) && aligned(p.dy);
    return host_launch(device, kernel->name, function,
                       dim3((unsigned)(backward ? p.tokens : ridge_ceil_div(p.tokens * across, THREADS))), THREADS, &p,
                       stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dim[0] > 0x7fffffff)
        return "more than 2^31 - 1 tokens";
    return (double)problem->dim[0] * ((double)problem->dim[2] / COLUMNS + 1) / THREADS > 2147483646.0
               ? "more than 2^31 - 1 blocks"
               : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * 4e-3 / device->copy_gbps;
}

#define ROW(name, number)                                                                                \
    {                                                                                                    \
        "cuda." name ".rows", number, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                             \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE, 0, {}, why_not, NULL, cost, launch \
    }

static const ridge_kernel rows[] = {
    ROW("moe_combine", RIDGE_MOE_COMBINE),
    ROW("moe_combine_bwd", RIDGE_MOE_COMBINE_BWD),
};

extern "C" const ridge_kernel_list ridge_cuda_experts_combine = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
