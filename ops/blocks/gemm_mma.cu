/* gemm_mma.cu: the host half of products of many tokens with weights in block formats by mma.sync. The kernel is in
 * gemm_mma.cuh. */
#include "problem.h"
#include "gemm_mma.cuh"

enum { GROUP = 8 }; /* tokens of a record */

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (uint32_t format = RIDGE_Q4_0; format < RIDGE_DTYPES && !status; format++) {
        const block_kernels *f = ridge_block_kernels_of(format);

        if (f->prompt_shared <= host_max_shared(device))
            status = host_prepare(device, &f->prompt, 1, cudaFuncAttributeMaxDynamicSharedMemorySize, f->prompt_shared,
                                  "block_matmul: loading kernels");
    }
    return status;
}

static int64_t groups_of(const ridge_problem *problem)
{
    return ridge_ceil_div(problem->dim[0], GROUP);
}

/* Records of x. */
static size_t workspace(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (size_t)(groups_of(problem) * block_units(problem->dim[1]) *
                    ridge_block_kernels_of(problem->dtype[2])->record[1]);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *space, size_t, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const block_kernels *f = ridge_block_kernels_of(problem->dtype[2]);
    const int64_t work = ridge_block_work(problem, PROMPT_BM, PROMPT_BN);
    block_prompt_args a = {};
    ridge_status status;

    if (work == 0)
        return RIDGE_OK;
    a.p = block_collect(&bound->call);
    a.p.records_out = (char *)space;
    a.p.records = (const char *)space;
    a.tiles[0] = (int)ridge_block_tiles(problem, 0, PROMPT_BM);
    a.tiles[1] = (int)ridge_block_tiles(problem, 1, PROMPT_BM);
    a.token_tiles = (int)ridge_ceil_div(problem->dim[0], PROMPT_BN);
    a.runs = (int)ridge_ceil_div(problem->dim[1], BLOCK_RUN);
    a.groups = (int)groups_of(problem);
    status = host_launch(device, kernel->name, f->records[1],
                         dim3((unsigned)ridge_ceil_div(groups_of(problem) * GROUP * a.p.units * 32, 256)), 256, &a.p,
                         stream);
    if (status)
        return status;
    return host_launch_shared(device, kernel->name, f->prompt, dim3((unsigned)work), PROMPT_THREADS,
                              (size_t)f->prompt_shared, &a, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dim[0] == 0 || problem->dim[1] == 0)
        return "nothing to multiply";
    if (ridge_block_kernels_of(problem->dtype[2])->prompt_shared > host_max_shared(device))
        return "needs more shared memory than a CTA may have here";
    if (problem->dim[1] > 1 << 24 || problem->dim[2] > 1 << 30 || problem->dim[3] > 1 << 30 ||
        groups_of(problem) * block_units(problem->dim[1]) > 0x7fffffff / 256 ||
        ridge_block_work(problem, PROMPT_BM, PROMPT_BN) > 0x7fffffff)
        return "more than 2^24 columns, 2^30 rows, or 2^31 codes of x or tiles";
    return NULL;
}

/* Microseconds on an H200, by whole waves of two CTAs. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t waves = ridge_ceil_div(ridge_block_work(problem, PROMPT_BM, PROMPT_BN), 2 * (int64_t)device->units);
    const double products = (double)waves * (2 + 1.85 * (double)problem->dim[1] / BLOCK_RUN) * 1.98 / device->clock_ghz;
    const double load = ridge_block_bytes(problem) * 1e-3 / device->copy_gbps;

    return 9 + (products > load ? products : load);
}

#define ROW(op_name, op_id)                                                                                       \
    {                                                                                                             \
        "cuda." op_name ".mma64x64", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, Q8_0_CONTRACT, 0, {}, why_not, \
            workspace, cost, launch                                                                               \
    }

static const ridge_kernel rows[] = {
    ROW("block_matmul", RIDGE_BLOCK_MATMUL),
    ROW("block_pair", RIDGE_BLOCK_PAIR),
    ROW("block_gate_up_swiglu", RIDGE_BLOCK_GATE_UP_SWIGLU),
};

extern "C" const ridge_kernel_list ridge_cuda_blocks_prompt = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
