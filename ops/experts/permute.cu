/* permute.cu: moe_permute on CUDA: three kernels. A CTA counts the pairs of each expert in its part of them; one CTA
 * turns the counts into the numbers of pairs before each part, and into the offsets; a CTA places the pairs of its
 * part. A warp has consecutive pairs of its part and a table of its own in shared memory, so that nothing is added
 * atomically and the order is that of the pairs. */
#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/ptx/ptx.cuh"
#include "src/util.h"

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    OF_WARP = 256,
    PART = WARPS * OF_WARP,
    SCAN = RIDGE_MOE_MAX_EXPERTS,
    AHEAD = 16
};
#define WARP 0xffffffffu

/* The expert of a pair; -1: none, or there is no such pair. */
static __device__ __forceinline__ int expert_of(const permute_args &p, int64_t pair)
{
    int id;

    if (pair >= p.pairs)
        return -1;
    id = p.ids[pair / p.slots * p.ids_stride + pair % p.slots];
    return id >= 0 && id < p.experts ? id : -1;
}

/* Counts the pairs of this warp in its table. */
static __device__ __forceinline__ void count_warp(const permute_args &p, int64_t first, int lane, int *table)
{
    for (int i = lane; i < p.experts; i += 32)
        table[i] = 0;
    __syncwarp(); /* the table is zero before it is added to */
    for (int i = 0; i < OF_WARP; i += 32) {
        const int id = expert_of(p, first + i + lane);
        const unsigned same = __match_any_sync(WARP, id);

        if (id >= 0 && lane == __ffs((int)same) - 1)
            table[id] += __popc(same);
        __syncwarp(); /* of the next step another lane may add to this entry */
    }
}

static __global__ void __launch_bounds__(THREADS) permute_count(const __grid_constant__ permute_args p)
{
    extern __shared__ int table[]; /* [WARPS][experts] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    count_warp(p, (int64_t)blockIdx.x * PART + warp * OF_WARP, lane, table + warp * p.experts);
    __syncthreads(); /* all tables are complete before they are added */
    for (int e = threadIdx.x; e < p.experts; e += THREADS) {
        int sum = 0;

        for (int w = 0; w < WARPS; w++)
            sum += table[w * p.experts + e];
        p.counts[(int64_t)blockIdx.x * p.experts + e] = sum;
    }
}

/* Thread e has expert e. */
static __global__ void __launch_bounds__(SCAN) permute_scan(const __grid_constant__ permute_args p)
{
    __shared__ int warps[SCAN / 32];
    const int e = threadIdx.x, lane = e % 32;
    int sum = 0, before, all;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    for (int part = 0; part < p.parts && e < p.experts; part += AHEAD) {
        int *at = p.counts + (int64_t)part * p.experts + e, count[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            count[i] = part + i < p.parts ? at[(int64_t)i * p.experts] : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (part + i < p.parts)
                at[(int64_t)i * p.experts] = sum;
            sum += count[i];
        }
    }
    before = sum;
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
        const int other = __shfl_up_sync(WARP, before, s);

        before += lane >= s ? other : 0;
    }
    if (lane == 31)
        warps[e / 32] = before;
    __syncthreads(); /* the warps' sums are written before they are read */
    all = before - sum;
    for (int w = 0; w < e / 32; w++)
        all += warps[w];
    if (e < p.experts) {
        p.offsets[e] = all;
        if (e == p.experts - 1)
            p.offsets[p.experts] = all + sum;
    }
}

static __global__ void __launch_bounds__(THREADS) permute_place(const __grid_constant__ permute_args p)
{
    extern __shared__ int table[]; /* [WARPS][experts]: the next row of each expert for each warp */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t first = (int64_t)blockIdx.x * PART + warp * OF_WARP;
    int *mine = table + warp * p.experts, last;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    count_warp(p, first, lane, mine);
    __syncthreads(); /* all tables are complete before they are added */
    for (int e = threadIdx.x; e < p.experts; e += THREADS) {
        int next = p.offsets[e] + p.counts[(int64_t)blockIdx.x * p.experts + e];

        for (int w = 0; w < WARPS; w++) {
            const int count = table[w * p.experts + e];

            table[w * p.experts + e] = next;
            next += count;
        }
    }
    last = p.offsets[p.experts];
    __syncthreads(); /* the tables hold rows before pairs take them */
    for (int i = 0; i < OF_WARP; i += 32) {
        const int64_t pair = first + i + lane;
        const int id = expert_of(p, pair);
        const unsigned same = __match_any_sync(WARP, id);
        const int row = id >= 0 ? mine[id] + __popc(same & ((1u << lane) - 1)) : -1;

        __syncwarp(); /* every lane has read its entry before one of them moves it on */
        if (id >= 0 && lane == __ffs((int)same) - 1)
            mine[id] += __popc(same);
        __syncwarp(); /* and it has moved before the next step reads it */
        if (pair < p.pairs) {
            p.place[pair / p.slots * p.place_stride + pair % p.slots] = row;
            if (row >= 0)
                p.rows[row] = (int32_t)pair;
            if (pair >= last) /* as a row, it belongs to no expert */
                p.rows[pair] = -1;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[3] = {(const void *)permute_count, (const void *)permute_scan,
                                         (const void *)permute_place};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 3, "moe_permute: loading kernels");
}

static int64_t parts_of(const int64_t *dim)
{
    return ridge_max(1, ridge_ceil_div(dim[0] * dim[1], PART));
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    permute_args p = permute_args_of(&bound->call);
    const size_t tables = (size_t)p.experts * WARPS * sizeof(int);
    const int threads = (int)ridge_ceil_div(p.experts, 32) * 32;
    ridge_status status;

    p.parts = (int32_t)parts_of(bound->call.dim);
    p.counts = (int32_t *)workspace;
    status =
        host_launch_shared(device, kernel->name, functions[0], dim3((unsigned)p.parts), THREADS, tables, &p, stream);
    if (!status)
        status = host_launch(device, kernel->name, functions[1], dim3(1), threads, &p, stream);
    if (!status && p.pairs)
        status = host_launch_shared(device, kernel->name, functions[2], dim3((unsigned)p.parts), THREADS, tables, &p,
                                    stream);
    return status;
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *)
{
    return NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (size_t)parts_of(problem->dim) * (size_t)problem->dim[2] * sizeof(int32_t);
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 12 + (double)problem->dim[0] * (double)problem->dim[1] * 16e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {{"cuda.moe_permute.parts",
                                     RIDGE_MOE_PERMUTE,
                                     RIDGE_ARCH_SM80,
                                     RIDGE_ARCH_CUDA_LAST,
                                     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE,
                                     0,
                                     {},
                                     why_not,
                                     workspace_bytes,
                                     cost,
                                     launch}};

extern "C" const ridge_kernel_list ridge_cuda_experts_permute = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
