/* quantize_rows.cu: q8_0_quantize_rows on CUDA, and the launch that quantises the activations of a product whose row
 * takes codes only. A warp quantises 256 columns: a lane 8, four lanes a block. */
#include "args.cuh"
#include "ops/quantize_fp8/quantize.cuh"

enum { THREADS = 128, WARP_COLS = 256 };

template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) q8_0_quantize_rows(const __grid_constant__ q8_0_rows_args p)
{
    const int64_t index = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t row = index / p.units, first = index % p.units * WARP_COLS + threadIdx.x % 32 * 8;
    const int lane = threadIdx.x % 32, size = DTYPE == RIDGE_F32 ? 4 : 2;
    uint32_t words[QUANTIZE_WORDS(DTYPE)];
    float x[8], scale;
    int8_t *codes;
    uint2 v;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (row >= p.rows) /* whole warps leave */
        return;
    quantize_load<DTYPE>(p.x + row * p.stride + first * size, p.cols - first, p.vector_x, words);
    quantize_unpack<DTYPE>(words, x);
    v = q8_0_quantise8(x, &scale);
    if (first >= p.cols)
        return;
    codes = p.codes + row * p.codes_stride + first;
    if (p.vector_codes)
        *(uint2 *)codes = v;
    else
        for (int i = 0; i < 8; i++)
            codes[i] = (int8_t)((i < 4 ? v.x : v.y) >> (i % 4 * 8));
    if (lane % 4 == 0)
        p.scales[(p.paired ? q8_0_scale_place(row) : row) * p.scales_stride +
                 first / RIDGE_Q8_0_BLOCK * p.scales_step] = scale;
}

/* scales[column, row] = x[row, column] of floats. */
static __global__ void __launch_bounds__(THREADS) q8_0_transpose(const __grid_constant__ q8_0_rows_args p)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i % p.rows, column = i / p.rows;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (column < p.cols)
        p.scales[column * p.scales_step + (p.paired ? q8_0_scale_place(row) : row)] =
            *(const float *)(p.x + row * p.stride + column * 4);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[3] = {(const void *)q8_0_quantize_rows<RIDGE_F32>,
                                         (const void *)q8_0_quantize_rows<RIDGE_BF16>, (const void *)q8_0_transpose};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 3, "q8_0_quantize_rows: loading kernels");
}

ridge_status q8_0_launch_quantize(const ridge_device *device, const char *name, const ridge_operand *x,
                                  q8_0_rows_args *p, void *stream)
{
    if (p->rows == 0 || p->cols == 0)
        return RIDGE_OK;
    p->x = (const char *)x->data;
    p->stride = q8_0_row_bytes(x);
    p->units = ridge_ceil_div(p->cols, WARP_COLS);
    p->scales_step = p->scales_step ? p->scales_step : 1;
    p->vector_x = quantize_aligned(p->x, p->stride, 16);
    p->vector_codes = quantize_aligned(p->codes, p->codes_stride, 8);
    return host_launch(device, name, functions[x->dtype == RIDGE_BF16],
                       dim3((unsigned)ridge_ceil_div(p->rows * p->units, THREADS / 32)), THREADS, p, stream);
}

ridge_status q8_0_launch_transpose(const ridge_device *device, const char *name, const ridge_operand *x,
                                   q8_0_rows_args *p, void *stream)
{
    p->x = (const char *)x->data;
    p->stride = q8_0_row_bytes(x);
    return host_launch(device, name, functions[2], dim3((unsigned)ridge_ceil_div(p->rows * p->cols, THREADS)), THREADS,
                       p, stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_operand *arg = bound->call.arg, *codes = &arg[RIDGE_Q8_0_QUANTIZE_ROWS_CODES],
                        *scales = &arg[RIDGE_Q8_0_QUANTIZE_ROWS_SCALES];
    q8_0_rows_args p = {};

    p.rows = bound->call.dim[0];
    p.cols = bound->call.dim[1];
    p.codes = (int8_t *)codes->data;
    p.codes_stride = codes->stride;
    p.scales = (float *)scales->data;
    p.scales_stride = scales->stride;
    return q8_0_launch_quantize(device, kernel->name, &arg[RIDGE_Q8_0_QUANTIZE_ROWS_X], &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (double)problem->dim[0] * ((double)problem->dim[1] / 1024 + 1) > 2147483647.0
               ? "more than 2^31 - 1 thread blocks"
               : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + 5.0 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

static const ridge_kernel row = {"cuda.q8_0_quantize_rows.warp8",
                                 RIDGE_Q8_0_QUANTIZE_ROWS,
                                 RIDGE_ARCH_SM80,
                                 RIDGE_ARCH_CUDA_LAST,
                                 Q8_0_CONTRACT,
                                 0,
                                 {},
                                 why_not,
                                 NULL,
                                 cost,
                                 launch};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_quantize_rows = {&row, 1, prepare};
