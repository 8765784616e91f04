/* sum.cu: sum on CUDA. A thread adds the parts of 8 elements in their order, with the loads of up to four parts in
 * flight; the number of blocks is fixed and each goes over several parts of the matrix. */
#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/util.h"

enum { THREADS = 256, GROUP = 8, AHEAD = 4, BLOCKS = 8 }; /* elements of a group, parts in flight, blocks an SM */

/* Adds 8 elements of the next AHEAD of `parts` parts to total; of the first of all, instead of adding to 0, which would
 * lose the sign of -0, takes them. */
template <int X>
static __device__ __forceinline__ void add_parts(const char *from, int64_t step, int64_t parts, bool first,
                                                 float *total)
{
    uint4 v[AHEAD][X == RIDGE_F32 ? 2 : 1];

#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (k < parts) {
            v[k][0] = ptx_load_once(from + k * step);
            if (X == RIDGE_F32)
                v[k][X == RIDGE_F32] = ptx_load_once(from + k * step + 16);
        }
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (k < parts) {
            float x[GROUP];

            num_unpack<X>(v[k][0], x);
            if (X == RIDGE_F32)
                num_unpack<X>(v[k][X == RIDGE_F32], x + 4);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                total[i] = k == 0 && first ? x[i] : total[i] + x[i];
        }
}

template <int X, int OUT> static __global__ void __launch_bounds__(THREADS) sum(const __grid_constant__ sum_args p)
{
    constexpr int X_SIZE = X == RIDGE_F32 ? 4 : 2, OUT_SIZE = OUT == RIDGE_F32 ? 4 : 2;
    const int64_t step = (int64_t)gridDim.x * THREADS, at = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    if (!p.vector) {
        for (int64_t i = at; i < p.rows * p.cols; i += step) {
            const int64_t row = i / p.cols, col = i % p.cols, from = row * p.x_stride + col;
            float total = num_load<X>(p.x, from);

            for (int64_t part = 1; part < p.parts; part++)
                total += num_load<X>(p.x, from + part * p.part);
            num_store<OUT>(p.out, row * p.out_stride + col, total);
        }
        return;
    }
    const int64_t width = p.cols / GROUP, groups = p.rows * width;

    for (int64_t i = at; i < groups; i += step) {
        const int64_t row = i / width, col = i % width * GROUP;
        const char *from = p.x + (row * p.x_stride + col) * X_SIZE;
        char *to = p.out + (row * p.out_stride + col) * OUT_SIZE;
        float total[GROUP];

        for (int64_t part = 0; part < p.parts; part += AHEAD)
            add_parts<X>(from + part * p.part * X_SIZE, p.part * X_SIZE, p.parts - part, part == 0, total);
        ptx_store_once(to, num_pack<OUT>(total));
        if (OUT == RIDGE_F32)
            ptx_store_once(to + 16, num_pack<OUT>(total + 4));
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define OUTPUTS(x)                                                                                         \
    {                                                                                                      \
        (const void *)sum<x, RIDGE_F32>, (const void *)sum<x, RIDGE_F16>, (const void *)sum<x, RIDGE_BF16> \
    }

/* By the dtypes of x and out: f32, f16, bf16. */
static const void *const functions[3][3] = {OUTPUTS(RIDGE_F32), OUTPUTS(RIDGE_F16), OUTPUTS(RIDGE_BF16)};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, &functions[0][0], 9, "sum: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_operand *x = &bound->call.arg[RIDGE_SUM_X], *out = &bound->call.arg[RIDGE_SUM_OUT];
    sum_args p = sum_args_of(bound);
    const int64_t elements = p.rows * p.cols, most = (int64_t)device->units * BLOCKS;
    const int64_t part_bytes = p.part * (x->dtype == RIDGE_F32 ? 4 : 2);
    int64_t blocks;

    if (elements == 0)
        return RIDGE_OK;
    /* A packed call counts as one row: its parts need not begin at 16 bytes. */
    p.vector = bound->problem.align == 4 && p.cols % GROUP == 0 && part_bytes % 16 == 0;
    blocks = ridge_min(ridge_ceil_div(p.vector ? elements / GROUP : elements, THREADS), most);
    return host_launch(device, kernel->name, functions[x->dtype - RIDGE_F32][out->dtype - RIDGE_F32],
                       dim3((unsigned)blocks), THREADS, &p, stream);
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 +
           (double)problem->dim[0] * (double)problem->dim[1] * (double)(problem->dim[2] + 1) * 4e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.sum.stream",
     RIDGE_SUM,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE,
     0,
     {},
     NULL,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_sum = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
