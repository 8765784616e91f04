/* mma_grouped.cu: gemm_fp8_grouped by mma.sync, for any shape, stride and alignment: the kernel of mma.cuh for m above
 * 64, whose CTAs look for the group of their tile. The grid has as many CTAs as groups of any sizes can have tiles. */
#include <math.h>

#include "cuda/launch.cuh"
#include "groups.cuh"
#include "mma.cuh"
#include "src/util.h"

enum { WIDTH = 32, BLOCK_N = 2 * WIDTH, CTAS = 2 };

/* p: m, n and k of the call; a, b and d of its first group. */
typedef struct grouped_args {
    mma_args p;
    group_args groups;
    int64_t scale_step_a, scale_step_b; /* from the scales of a group to those of the next: of A in groups of k alone */
    int by_k, size, bias_size;          /* bytes of an element of D, and of a bias */
} grouped_args;

/* The arguments of a group. */
static __device__ __forceinline__ mma_args args_of_group(const grouped_args &g, int group, int64_t from, int64_t to)
{
    mma_args p = g.p;
    const int64_t row = g.groups.masked || g.by_k ? (int64_t)group * p.m : from;

    p.d += row * p.ldd * g.size;
    p.bias = (const char *)p.bias + (int64_t)group * p.n * g.bias_size;
    p.scale_b.at += group * g.scale_step_b;
    if (g.by_k) {
        p.a += from;
        p.b += from;
        p.scale_a.at += group * g.scale_step_a + from / BK * p.scale_a.block;
        p.scale_b.at += from / BK * p.scale_b.block;
        p.k = (int)(to - from);
        p.blocks = p.k / BK;
        return p;
    }
    p.a += row * p.lda;
    p.scale_a.at += row * p.scale_a.row;
    p.b += (int64_t)group * p.n * p.ldb;
    p.m = (int)(to - from);
    p.tiles_m = (p.m + LARGE_M - 1) / LARGE_M;
    return p;
}

template <int E5_A, int E5_B>
static __global__ void __launch_bounds__(LARGE_THREADS, CTAS) gemm_grouped(const __grid_constant__ grouped_args g)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int64_t index = blockIdx.x, from, to;

    ptx_grid_dependency_wait();
    for (int group = 0; group < g.groups.groups && group_at(g.groups, group, &from, &to); group++) {
        const int rows = g.by_k ? g.p.m : (int)(to - from);
        /* D + 0 is D, to the sign of its zeros */
        const bool idle = g.by_k && from == to && g.p.accumulate && g.p.bias_dtype == RIDGE_NONE;
        const int64_t tiles = idle ? 0 : (int64_t)((rows + LARGE_M - 1) / LARGE_M) * g.p.tiles_n;

        if (index < tiles) {
            mma_large_tile<KIND_DECODE, E5_A, E5_B, WIDTH>(args_of_group(g, group, from, to), index, shared);
            return;
        }
        index -= tiles;
    }
    ptx_launch_dependents();
}

static const void *const functions[] = {(const void *)gemm_grouped<0, 0>, (const void *)gemm_grouped<0, 1>,
                                        (const void *)gemm_grouped<1, 0>};

static double most_tiles(uint32_t flags, const int64_t *dim)
{
    const double rows = (double)ridge_ceil_div(dim[0], LARGE_M), cols = (double)ridge_ceil_div(dim[1], BLOCK_N);
    const double groups = (double)dim[3];

    return dim[0] == 0 ? 0 : cols * ((flags & RIDGE_GROUPED) == RIDGE_GROUPED_M ? rows + groups : rows * groups);
}

static grouped_args args_of(const ridge_call *call)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_GROUPED_A], *b = &call->arg[RIDGE_GEMM_FP8_GROUPED_B],
                        *d = &call->arg[RIDGE_GEMM_FP8_GROUPED_D],
                        *scale_a = &call->arg[RIDGE_GEMM_FP8_GROUPED_SCALE_A],
                        *scale_b = &call->arg[RIDGE_GEMM_FP8_GROUPED_SCALE_B],
                        *bias = &call->arg[RIDGE_GEMM_FP8_GROUPED_BIAS];
    const uint32_t of_a = call->flags & RIDGE_SCALE, of_b = (call->flags & RIDGE_SCALE_B) >> 4;
    grouped_args g = {};
    mma_args *p = &g.p;

    g.groups = group_args_of(call);
    g.by_k = (call->flags & RIDGE_GROUPED) == RIDGE_GROUPED_K;
    g.size = (int)ridge_dtype_size(d->dtype);
    p->a = (const uint8_t *)a->data;
    p->b = (const uint8_t *)b->data;
    p->d = (char *)d->data;
    p->lda = a->stride;
    p->ldb = b->stride;
    p->ldd = d->stride;
    p->scale_last = of_a == RIDGE_SCALE_TENSOR || of_a == RIDGE_SCALE_ROW;
    p->scale_a = gemm_scale_of(scale_a, of_a, call->flags & RIDGE_SCALE_T);
    p->scale_b = gemm_scale_of(scale_b, of_b, call->flags & RIDGE_SCALE_B_T);
    if (g.by_k) {
        g.scale_step_a = of_a == RIDGE_SCALE_ROW ? call->dim[0] : 0;
        g.scale_step_b = of_b == RIDGE_SCALE_ROW ? call->dim[1] : 0;
    } else
        g.scale_step_b = of_b == RIDGE_SCALE_TENSOR   ? 1
                         : of_b == RIDGE_SCALE_BLK128 ? ridge_ceil_div(call->dim[1], BK) * scale_b->stride
                                                      : call->dim[1] * p->scale_b.row;
    p->m = (int)call->dim[0];
    p->n = (int)call->dim[1];
    p->k = (int)call->dim[2];
    p->blocks = (int)ridge_ceil_div(call->dim[2], BK);
    p->tiles_m = (int)ridge_ceil_div(call->dim[0], LARGE_M);
    p->tiles_n = (int)ridge_ceil_div(call->dim[1], BLOCK_N);
    p->copy_a = mma_copy_bytes(a);
    p->copy_b = mma_copy_bytes(b);
    p->whole = p->copy_a == 16 && p->copy_b == 16 && p->k % 16 == 0;
    p->dtype = (int)d->dtype;
    p->bias = bias->data;
    p->bias_dtype = (int)bias->dtype;
    g.bias_size = bias->dtype == RIDGE_NONE ? 0 : (int)ridge_dtype_size(bias->dtype);
    p->accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p->paired = ((uint64_t)(uintptr_t)p->d | (uint64_t)p->ldd * (uint64_t)g.size) % (uint64_t)(2 * g.size) == 0;
    return g;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_operand *arg = bound->call.arg;
    const int formats =
        arg[RIDGE_GEMM_FP8_GROUPED_A].dtype == RIDGE_E5M2 ? 2 : arg[RIDGE_GEMM_FP8_GROUPED_B].dtype == RIDGE_E5M2;
    const size_t fixed = sizeof(mma_large_memory<BLOCK_N>) - sizeof(mma_stage<BLOCK_N>);
    const size_t part = ((size_t)host_max_shared(device) + 1024) / CTAS - 1024;
    const double tiles = most_tiles(bound->call.flags, bound->call.dim);
    grouped_args g = args_of(&bound->call);
    const ridge_status status = groups_report_bad(device, kernel, bound, stream);

    if (status || tiles == 0)
        return status;
    g.p.stages = 4; /* the most that mma_copy_wait can wait for */
    while (g.p.stages > 2 && fixed + (size_t)g.p.stages * sizeof(mma_stage<BLOCK_N>) > part)
        g.p.stages--;
    return host_launch_shared(device, kernel->name, functions[formats], dim3((unsigned)tiles), LARGE_THREADS,
                              fixed + (size_t)g.p.stages * sizeof(mma_stage<BLOCK_N>), &g, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dim[0] > 0x7fffff00 || problem->dim[1] > 0x7fffff00 || most_tiles(problem->flags, problem->dim) > 2e9)
        return "more than 2^31 tiles";
    return NULL;
}

/* Microseconds: the multiply-adds at 292 a clock of an SM, as gemm_fp8's row with these tiles, or, if that is longer, a
 * read of A and B and a write of D. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const bool by_k = (problem->flags & RIDGE_GROUPED) == RIDGE_GROUPED_K;
    const bool masked = (problem->flags & RIDGE_GROUPED) == RIDGE_GROUPED_MASKED;
    const double n = (double)problem->dim[1], k = (double)problem->dim[2], groups = fmax((double)problem->dim[3], 1);
    const double rows = (double)problem->dim[0] * (masked ? groups : 1), d_rows = by_k ? groups * rows : rows;
    const double bytes = (double)ridge_dtype_size(problem->dtype[RIDGE_GEMM_FP8_GROUPED_D]);
    const double moved = (rows + (by_k ? 1 : groups) * n) * k + d_rows * n * bytes;
    const double macs = (double)LARGE_M * BLOCK_N * k / (by_k ? groups : 1) * most_tiles(problem->flags, problem->dim);

    return 4 + fmax(macs / (292e3 * device->clock_ghz * device->units), moved / (900 * device->copy_gbps));
}

static const ridge_kernel rows[] = {
    {"cuda.gemm_fp8_grouped.mma_f16.128x64",
     RIDGE_GEMM_FP8_GROUPED,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_STABLE | RIDGE_CLOSE | RIDGE_FALLBACK,
     NULL,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

static ridge_status prepare(const ridge_device *device)
{
    const ridge_status status = host_prepare(device, functions, 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             host_max_shared(device), "gemm_fp8_grouped: loading kernels");

    return status ? status : groups_prepare(device);
}

extern "C" const ridge_kernel_list ridge_cuda_gemm_fp8_grouped_mma = {rows, 1, prepare};
