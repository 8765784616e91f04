/* groups.cuh: the offsets of gemm_fp8_grouped on the device, and the kernel that reports the first bad group. */
#ifndef RIDGE_GEMM_FP8_GROUPS_CUH
#define RIDGE_GEMM_FP8_GROUPS_CUH

#include "cuda/launch.cuh"
#include "cuda/ptx/ptx.cuh"

typedef struct group_args {
    const void *offsets; /* [groups + 1], of a masked call [groups] */
    int32_t *bad;        /* NULL: not asked for */
    int64_t most;        /* what no offset exceeds */
    int unit;            /* which every offset is a multiple of */
    int wide, groups, masked;
} group_args;

static inline group_args group_args_of(const ridge_call *call)
{
    const uint32_t mode = call->flags & RIDGE_GROUPED;
    const ridge_operand *offsets = &call->arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS];
    group_args g = {};

    g.offsets = offsets->data;
    g.bad = (int32_t *)call->arg[RIDGE_GEMM_FP8_GROUPED_BAD].data;
    g.most = call->dim[mode == RIDGE_GROUPED_K ? 2 : 0];
    g.unit = mode == RIDGE_GROUPED_K ? 128 : 1;
    g.wide = offsets->dtype == RIDGE_I64;
    g.groups = (int)call->dim[3];
    g.masked = mode == RIDGE_GROUPED_MASKED;
    return g;
}

/* Where a group begins and ends; false: it is bad. */
static __device__ __forceinline__ bool group_at(const group_args &g, int group, int64_t *from, int64_t *to)
{
    const int64_t *wide = (const int64_t *)g.offsets;
    const int32_t *narrow = (const int32_t *)g.offsets;
    const int next = g.masked ? group : group + 1;

    *from = g.masked ? 0 : g.wide ? wide[group] : narrow[group];
    *to = g.wide ? wide[next] : narrow[next];
    return *from >= 0 && *to >= *from && *to <= g.most && *from % g.unit == 0 && *to % g.unit == 0;
}

/* One warp. */
static __global__ void __launch_bounds__(32) groups_find_bad(const __grid_constant__ group_args g)
{
    int first = g.groups;
    int64_t from, to;

    ptx_grid_dependency_wait();
    for (int group = (int)threadIdx.x; group < first; group += 32)
        if (!group_at(g, group, &from, &to))
            first = group;
    first = (int)__reduce_min_sync(~0u, (unsigned)first);
    if (threadIdx.x == 0)
        *g.bad = first < g.groups ? first + 1 : 0;
    ptx_launch_dependents();
}

static inline ridge_status groups_report_bad(const ridge_device *device, const ridge_kernel *kernel,
                                             const ridge_bound *bound, void *stream)
{
    group_args g = group_args_of(&bound->call);

    return g.bad ? host_launch(device, kernel->name, (const void *)groups_find_bad, dim3(1), 32, &g, stream) : RIDGE_OK;
}

static inline ridge_status groups_prepare(const ridge_device *device)
{
    const void *const function[] = {(const void *)groups_find_bad};

    return host_load(device, function, 1, "gemm_fp8_grouped: loading kernels");
}

#endif
