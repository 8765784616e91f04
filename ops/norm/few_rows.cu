/* few_rows.cu: add_rms_norm of a few rows of f32, as in decoding, where the time is the latency of one row. `small`, up
 * to 4096 columns: a CTA of 256 threads, which holds the row in registers and so finds room beside a product by TMA,
 * whose CTAs have all shared memory but 5 KB. `row`, up to 8192: a CTA of 1024 threads, so that a thread has 4 columns
 * of 4096; the row goes through shared memory once, because a partial sum of the canonical order (column j belongs to
 * partial j % 256) has columns of 16 threads. */
#include "rows.cuh"
#include "src/math/q8_0.h"

enum { HELD = 16, HELD_FEW = 4 };                               /* columns of a thread of 256 */
enum { THREADS = 1024, STEPS = 2, MOST = 4 * THREADS * STEPS }; /* columns: 4 a thread and step */

typedef struct few_args {
    add_norm_args p;
    int w_const; /* the weights may be read before the primary grid has ended */
    int w_vector;
} few_args;

static __device__ __forceinline__ float4 load4(const char *from, int64_t col, bool vector)
{
    const float *at = (const float *)from + col;

    return vector ? *(const float4 *)at : make_float4(at[0], at[1], at[2], at[3]);
}

static __device__ __forceinline__ void load_weights(const few_args &a, float4 *w)
{
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int col = 4 * (threadIdx.x + THREADS * i);

        w[i] = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        if (col < a.p.n && a.p.w.data)
            w[i] = load4(a.p.w.data, col, a.w_vector);
    }
}

static __device__ __forceinline__ float4 canonical4(float4 v)
{
    return make_float4(__uint_as_float(num_canonical_f32(v.x)), __uint_as_float(num_canonical_f32(v.y)),
                       __uint_as_float(num_canonical_f32(v.z)), __uint_as_float(num_canonical_f32(v.w)));
}

/* Four codes of a block that 8 lanes have; all lanes of the warp take part, those past the row with zeros. */
static __device__ __forceinline__ void put_codes(const add_norm_args &p, int64_t row, int col, float4 v)
{
    uint32_t most =
        max(max(ridge_magnitude(v.x), ridge_magnitude(v.y)), max(ridge_magnitude(v.z), ridge_magnitude(v.w)));
    float r, scale;

    most = col < p.n ? most : 0; /* 0 * factor may be NaN */
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
        most = max(most, __shfl_xor_sync(~0u, most, s));
    scale = ridge_q8_0_x_scale(most, &r);
    if (col >= p.n)
        return;
    *(uint32_t *)(p.out.data + row * p.out.stride + col) =
        (uint32_t)(uint8_t)ridge_q8_0_x_code(v.x, r) | (uint32_t)(uint8_t)ridge_q8_0_x_code(v.y, r) << 8 |
        (uint32_t)(uint8_t)ridge_q8_0_x_code(v.z, r) << 16 | (uint32_t)(uint8_t)ridge_q8_0_x_code(v.w, r) << 24;
    if (col % RIDGE_Q8_0_BLOCK == 0)
        p.scale[row * p.ld + col / RIDGE_Q8_0_BLOCK] = scale;
}

template <bool CODES> static __global__ void __launch_bounds__(THREADS) add_norm_few(const __grid_constant__ few_args a)
{
    extern __shared__ float4 shared[];
    __shared__ float part[PARTS];
    const add_norm_args &p = a.p;
    const int64_t row = blockIdx.x;
    float4 v[STEPS], w[STEPS];
    float factor;

    ptx_launch_dependents();
    if (a.w_const)
        load_weights(a, w);
    ptx_grid_dependency_wait();
    if (!a.w_const)
        load_weights(a, w);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int col = 4 * (threadIdx.x + THREADS * i);

        v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (col >= p.n)
            continue;
        v[i] = load4(p.x.data + row * p.x.stride, col, true);
        if (p.residual.data) {
            const float4 more = load4(p.residual.data + row * p.residual.stride, col, true);

            v[i] = canonical4(make_float4(v[i].x + more.x, v[i].y + more.y, v[i].z + more.z, v[i].w + more.w));
        }
        if (p.sum.data)
            *(float4 *)(p.sum.data + row * p.sum.stride + (int64_t)col * 4) = v[i];
        shared[col / 4] = v[i];
    }
    __syncthreads(); /* the row is written before its partial sums read it */
    if (threadIdx.x < PARTS) {
        float sum = 0.0f;

#pragma unroll 8
        for (int j = threadIdx.x; j < p.n; j += PARTS)
            sum = ridge_fma(((const float *)shared)[j], ((const float *)shared)[j], sum);
        part[threadIdx.x] = sum;
    }
    __syncthreads(); /* all partial sums are written before they are read */
    factor = ridge_rms_factor(rows_tree(part), p.n, p.eps);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int col = 4 * (threadIdx.x + THREADS * i);

        if (THREADS * 4 * i >= p.n) /* the whole CTA */
            break;
        v[i] = make_float4(v[i].x * factor * w[i].x, v[i].y * factor * w[i].y, v[i].z * factor * w[i].z,
                           v[i].w * factor * w[i].w);
        if (CODES)
            put_codes(p, row, col, v[i]);
        else if (col < p.n)
            *(float4 *)(p.out.data + row * p.out.stride + (int64_t)col * 4) = canonical4(v[i]);
    }
}

/* ---------------------------------------------------------------------------------------------- a CTA of 256 threads
 */

/* Thread i holds columns i, i + 256, ..., which are partial sum i; a warp's columns are blocks of 32. */
template <bool CODES, int COLUMNS>
static __global__ void __launch_bounds__(PARTS, 4) add_norm_small(const __grid_constant__ few_args a)
{
    __shared__ float part[PARTS];
    const add_norm_args &p = a.p;
    const int64_t row = blockIdx.x;
    const int n = (int)p.n, lane = threadIdx.x % 32;
    float v[COLUMNS], w[COLUMNS], sum = 0.0f, factor;

    ptx_launch_dependents();
    if (!a.w_const)
        ptx_grid_dependency_wait();
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
        const int col = threadIdx.x + PARTS * k;

        w[k] = p.w.data && col < n ? ((const float *)p.w.data)[col] : 1.0f;
    }
    if (a.w_const)
        ptx_grid_dependency_wait();
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
        const int col = threadIdx.x + PARTS * k;

        v[k] = col < n ? ((const float *)(p.x.data + row * p.x.stride))[col] : 0.0f;
    }
    if (p.residual.data)
#pragma unroll
        for (int k = 0; k < COLUMNS; k++) {
            const int col = threadIdx.x + PARTS * k;

            if (col < n)
                v[k] = __uint_as_float(
                    num_canonical_f32(v[k] + ((const float *)(p.residual.data + row * p.residual.stride))[col]));
        }
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
        const int col = threadIdx.x + PARTS * k;

        if (p.sum.data && col < n)
            ((float *)(p.sum.data + row * p.sum.stride))[col] = v[k];
        sum = ridge_fma(v[k], v[k], sum);
    }
    part[threadIdx.x] = sum;
    __syncthreads(); /* all partial sums are written before they are read */
    factor = ridge_rms_factor(rows_tree(part), p.n, p.eps);
#pragma unroll
    for (int k = 0; k < COLUMNS; k++)
        v[k] = v[k] * factor * w[k];
    if (CODES) {
        float r;
        const float scale = rows_scales<COLUMNS>(v, &r);

        if (lane < COLUMNS && (int)threadIdx.x - lane + PARTS * lane < n)
            p.scale[row * p.ld + threadIdx.x / 32 + PARTS / 32 * lane] = scale;
#pragma unroll
        for (int k = 0; k < COLUMNS; k++) {
            const int col = threadIdx.x + PARTS * k;
            const int code = ridge_q8_0_x_code(v[k], __shfl_sync(~0u, r, k));

            if (col < n)
                (p.out.data + row * p.out.stride)[col] = (char)code;
        }
    } else {
#pragma unroll
        for (int k = 0; k < COLUMNS; k++) {
            const int col = threadIdx.x + PARTS * k;

            if (col < n)
                ((float *)(p.out.data + row * p.out.stride))[col] = __uint_as_float(num_canonical_f32(v[k]));
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* [up to 1024 columns][codes] */
static const void *const small_functions[4] = {
    (const void *)add_norm_small<false, HELD>, (const void *)add_norm_small<true, HELD>,
    (const void *)add_norm_small<false, HELD_FEW>, (const void *)add_norm_small<true, HELD_FEW>};
static const void *const functions[2] = {(const void *)add_norm_few<false>, (const void *)add_norm_few<true>};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = host_load(device, small_functions, 4, "add_rms_norm: loading kernels");

    return status ? status : host_load(device, functions, 2, "add_rms_norm: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    few_args a = {};

    a.p = add_norm_args_of(&bound->call);
    a.w_const = (bound->call.flags & RIDGE_WEIGHTS_CONST) != 0;
    a.w_vector = (uintptr_t)a.p.w.data % 16 == 0;
    if (a.p.rows == 0 || a.p.n == 0)
        return RIDGE_OK;
    if (kernel->param[0])
        return host_launch(device, kernel->name, small_functions[2 * (a.p.n <= PARTS * HELD_FEW) + (a.p.scale != NULL)],
                           dim3((unsigned)a.p.rows), PARTS, &a, stream);
    return host_launch_shared(device, kernel->name, functions[a.p.scale != NULL], dim3((unsigned)a.p.rows), THREADS,
                              (size_t)a.p.n * sizeof(float), &a, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const uint32_t out = problem->dtype[RIDGE_ADD_RMS_NORM_OUT], w = problem->dtype[RIDGE_ADD_RMS_NORM_W];
    const uint32_t residual = problem->dtype[RIDGE_ADD_RMS_NORM_RESIDUAL];

    if (problem->dim[0] > 0x7fffffff)
        return "more than 2^31 - 1 rows";
    if (problem->dtype[0] != RIDGE_F32 || (w != RIDGE_NONE && w != RIDGE_F32) ||
        (residual != RIDGE_NONE && residual != RIDGE_F32) || (out != RIDGE_F32 && out != RIDGE_I8))
        return "operands are not f32, and out not f32 or Q8_0 codes";
    if (problem->dim[1] > (kernel->param[0] ? PARTS * HELD : MOST))
        return "a row has more columns than a CTA holds";
    return problem->dim[1] % 4 || problem->align < 4 ? "rows are not whole vectors of 16 bytes" : NULL;
}

/* The latency of a row, and beyond the rows that run side by side more than the other kernels' time. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double n = (double)problem->dim[1], rows = (double)problem->dim[0];

    return (kernel->param[0] ? 1.4 : 1.6) + n / 256 * 0.005 + rows * n * 12e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.add_rms_norm.row",
     RIDGE_ADD_RMS_NORM,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
    {"cuda.add_rms_norm.small",
     RIDGE_ADD_RMS_NORM,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {1},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_add_rms_norm_few = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
