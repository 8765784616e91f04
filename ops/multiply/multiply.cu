/* multiply.cu: multiply on CUDA: x * factor, the factor read on the device. The number of blocks is fixed and each goes
 * over several parts of the matrix, so that a factor of 1 in place costs no more than their launch. */
#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/util.h"

enum { THREADS = 256, GROUP = 8, AHEAD = 4, BLOCKS = 8 }; /* elements of a group, groups in flight, blocks an SM */

template <int X, int OUT>
static __device__ __forceinline__ void one_group(const multiply_args &p, float factor, const uint4 *v, char *to)
{
    float y[GROUP];

    num_unpack<X>(v[0], y);
    if (X == RIDGE_F32)
        num_unpack<X>(v[1], y + 4);
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        y[i] *= factor;
    ptx_store_once(to, num_pack<OUT>(y));
    if (OUT == RIDGE_F32)
        ptx_store_once(to + 16, num_pack<OUT>(y + 4));
}

template <int X, int OUT>
static __global__ void __launch_bounds__(THREADS) multiply(const __grid_constant__ multiply_args p)
{
    constexpr int X_SIZE = X == RIDGE_F32 ? 4 : 2, OUT_SIZE = OUT == RIDGE_F32 ? 4 : 2;
    const int64_t step = (int64_t)gridDim.x * THREADS, at = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    const float factor = *p.factor;

    if (p.x == p.out && factor == 1.0f)
        return;
    if (!p.vector) {
        for (int64_t i = at; i < p.rows * p.cols; i += step) {
            const int64_t row = i / p.cols, col = i % p.cols;

            num_store<OUT>(p.out, row * p.out_stride + col, num_load<X>(p.x, row * p.x_stride + col) * factor);
        }
        return;
    }
    const int64_t width = p.cols / GROUP, groups = p.rows * width;

    for (int64_t first = at; first < groups; first += AHEAD * step) {
        uint4 v[AHEAD][X == RIDGE_F32 ? 2 : 1];
        char *to[AHEAD];

#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t i = first + k * step, row = i / width, col = i % width * GROUP;
            const char *from = p.x + (row * p.x_stride + col) * X_SIZE;

            to[k] = p.out + (row * p.out_stride + col) * OUT_SIZE;
            if (i < groups) {
                v[k][0] = ptx_load_once(from);
                if (X == RIDGE_F32)
                    v[k][X == RIDGE_F32] = ptx_load_once(from + 16);
            }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (first + k * step < groups)
                one_group<X, OUT>(p, factor, v[k], to[k]);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define OUTPUTS(x)                                                                  \
    {                                                                               \
        (const void *)multiply<x, RIDGE_F32>, (const void *)multiply<x, RIDGE_F16>, \
            (const void *)multiply<x, RIDGE_BF16>                                   \
    }

/* By the dtypes of x and out: f32, f16, bf16. */
static const void *const functions[3][3] = {OUTPUTS(RIDGE_F32), OUTPUTS(RIDGE_F16), OUTPUTS(RIDGE_BF16)};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, &functions[0][0], 9, "multiply: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_operand *x = &bound->call.arg[RIDGE_MULTIPLY_X], *out = &bound->call.arg[RIDGE_MULTIPLY_OUT];
    multiply_args p = multiply_args_of(bound);
    const int64_t elements = p.rows * p.cols, most = (int64_t)device->units * BLOCKS;
    int64_t blocks;

    if (elements == 0)
        return RIDGE_OK;
    p.vector = bound->problem.align == 4 && p.cols % GROUP == 0;
    blocks = ridge_min(ridge_ceil_div(p.vector ? elements / GROUP : elements, THREADS), most);
    return host_launch(device, kernel->name, functions[x->dtype - RIDGE_F32][out->dtype - RIDGE_F32],
                       dim3((unsigned)blocks), THREADS, &p, stream);
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + (double)problem->dim[0] * (double)problem->dim[1] * 8e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.multiply.stream",
     RIDGE_MULTIPLY,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     NULL,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_multiply = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
