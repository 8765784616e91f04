/* kv_append.cu: kv_append on CUDA, a warp a head of a token (append_head.cuh). */
#include "append_head.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

template <int HELD> static __global__ void __launch_bounds__(THREADS) append(const __grid_constant__ append_args p)
{
    __shared__ float rows[WARPS][32 * HELD];
    const int all = (int)(p.heads + 2 * p.kv_heads);
    const int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t = index / all;
    const int h = (int)(index % all), kv = h - (int)p.heads;
    float *row = rows[threadIdx.x / 32];

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (t >= p.tokens || !append_head<HELD>(p, t, h, row)) /* warps exit whole */
        return;
    char *to = kv < 0            ? p.out + t * p.out_stride + (int64_t)h * p.n * (p.out_bf16 ? 2 : 4)
               : kv < p.kv_heads ? p.k + kv * p.k_stride + p.pos[t] * p.kv_row
                                 : p.v + (kv - p.kv_heads) * p.v_stride + p.pos[t] * p.kv_row;

    append_row(to, row, (int)p.n, kv >= 0 ? (int)p.kv : p.out_bf16 ? (int)RIDGE_BF16 : (int)RIDGE_F32);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[2] = {(const void *)append<APPEND_FEW>, (const void *)append<APPEND_MANY>};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 2, "kv_append: loading kernels");
}

extern "C" ridge_status ridge_append_launch(const ridge_device *device, const char *name, append_args *p, void *stream)
{
    const int64_t heads = p->tokens * (p->heads + 2 * p->kv_heads);

    if (heads == 0 || p->n == 0)
        return RIDGE_OK;
    return host_launch(device, name, functions[p->n > 32 * APPEND_FEW], dim3((unsigned)ridge_ceil_div(heads, WARPS)),
                       THREADS, p, stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    append_args p = append_args_of(&bound->call);

    return ridge_append_launch(device, kernel->name, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const double heads = (double)problem->dim[1] + 2 * (double)problem->dim[2];

    return (double)problem->dim[0] * heads > 2147483647.0 ? "more than 2^31 - 1 heads of tokens" : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double heads = (double)problem->dim[1] + 2 * (double)problem->dim[2];

    return 3 + heads * (double)problem->dim[0] * (double)problem->dim[3] * 8e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.kv_append.warp",
     RIDGE_KV_APPEND,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_kv_append = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
