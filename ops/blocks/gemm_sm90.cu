/* gemm_sm90.cu: the host half of products of many tokens with weights in block formats on Hopper, and the kernel that
 * lays out their x. The products are in gemm_sm90.cuh. */
#include "problem.h"
#include "gemm_args.cuh"

static const int widths[3] = {128, 64, 32};

/* ---------------------------------------------------------------------------------------------------------------- x */

/* x in the workspace: codes [tokens][cols] in the order of k that the format's A operand has, and numbers
 * [number][planes][tokens], by block and in the order of q8_0_scale_place; both rounded up with zeros, columns to whole
 * runs, tokens to 16. */
typedef struct layout_args {
    block_mma_args p;
    char *codes;
    float *numbers;
    int64_t cols, tokens; /* rounded up */
    int planes;
    int kind, pairs, mixed;
} layout_args;

/* By four lanes a block: lane u of them has columns 8 u .. 8 u + 7. */
static __global__ void __launch_bounds__(256) block_gemm_x(const __grid_constant__ layout_args a)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, per_token = a.cols / 8;
    const int token = (int)(i / per_token), at = (int)(i % per_token), u = at % 4, block = at / 4;
    const bool there = token < a.p.tokens && block < a.p.blocks;
    const char *row = (const char *)a.p.x + token * a.p.x_stride;
    uint2 codes = make_uint2(0, 0);
    uint32_t *to;
    float xs = 0, x[8] = {};
    int sum, sum16, other;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (a.p.x_dtype == RIDGE_I8) {
        if (there) {
            codes = block_load_codes(a.p, row + at * 8);
            xs = a.p.x_scales[token * a.p.x_ld + block];
        }
    } else {
        if (there)
            block_load8(a.p, row, at * 8, x);
        codes = q8_0_quantise8(x, &xs);
    }
    sum = __dp4a((int)codes.x, 0x01010101, __dp4a((int)codes.y, 0x01010101, 0));
    sum16 = sum + __shfl_xor_sync(~0u, sum, 1);
    other = __shfl_xor_sync(~0u, sum16, 2);
    if (a.mixed) { /* two columns of the low half, two of the high half in a word */
        const uint32_t mine = u < 2 ? codes.x : codes.y, got = __shfl_xor_sync(~0u, u < 2 ? codes.y : codes.x, 2);
        const uint32_t low = u < 2 ? mine : got, high = u < 2 ? got : mine;

        codes = make_uint2(ptx_prmt(low, high, 0x5140), ptx_prmt(low, high, 0x7362));
    }
    if (token >= a.tokens) /* whole warps */
        return;
    to = (uint32_t *)(a.codes + token * a.cols + block * 32);
    if (a.mixed || a.pairs) { /* a lane of the product has both words next to each other */
        const int t = a.pairs ? u : u < 2 ? 2 * u : 2 * u - 3;

        to[t] = codes.x;
        to[4 + t] = codes.y;
    } else {
        to[2 * u] = codes.x;
        to[2 * u + 1] = codes.y;
    }
    if (u == 0) {
        float *number = a.numbers + block * a.tokens + q8_0_scale_place(token);

        number[0] = xs;
        if (a.kind == BLOCK_X_SUM)
            number[a.planes * a.tokens] = ridge_block_x_sum(xs, sum16 + other);
        if (a.kind == BLOCK_X_SUM_16) {
            number[a.planes * a.tokens] = ridge_block_x_sum(xs, sum16);
            number[2 * a.planes * a.tokens] = ridge_block_x_sum(xs, other);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static ridge_status prepare(const ridge_device *device)
{
    static const void *const lay_out = (const void *)block_gemm_x;
    ridge_status status = RIDGE_OK;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    status = host_load(device, &lay_out, 1, "block_matmul: loading kernels");
    for (uint32_t format = RIDGE_Q4_0; format < RIDGE_DTYPES && !status; format++) {
        const block_kernels *f = ridge_block_kernels_of(format);

        for (int i = 0; i < 3 && !status; i++)
            status = host_prepare(device, &f->gemm[i], 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  f->gemm_shared[i], "block_matmul: loading kernels");
    }
    return status;
}

static layout_args take(const ridge_problem *problem, char *at)
{
    const block_kernels *f = ridge_block_kernels_of(problem->dtype[2]);
    layout_args x = {};

    x.kind = f->x;
    x.pairs = f->pairs;
    x.mixed = f->mixed;
    x.cols = ridge_round_up(problem->dim[1], BLOCK_RUN);
    x.tokens = ridge_round_up(problem->dim[0], 16);
    x.planes = (int)(x.cols / 32);
    x.codes = (char *)ridge_take(&at, x.tokens * x.cols);
    x.numbers = (float *)ridge_take(&at, GEMM_NUMBERS(f->x) * x.planes * x.tokens * (int64_t)sizeof(float));
    return x;
}

static size_t workspace(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const layout_args x = take(problem, NULL);

    return (size_t)((uintptr_t)x.numbers + (uint64_t)(GEMM_NUMBERS(x.kind) * x.planes * x.tokens) * sizeof(float));
}

/* Clusters that a GPU with GPCs of 16 and 18 SMs holds at once: 66 of two, 30 of four, 15 of eight on 132. */
static int64_t clusters_of(const ridge_device *device, int split)
{
    const int64_t some = split > 2 ? device->units * 30 / 132 * 4 / split : device->units / split;

    return some ? some : 1;
}

/* Time of a tile's products in units of its runs, and the CTAs that share it: what ends first. */
static double best_split(const ridge_device *device, const ridge_problem *problem, int bn, int *split)
{
    const int64_t work = ridge_block_work(problem, GEMM_BM, bn);
    const double runs = (double)ridge_ceil_div(problem->dim[1], BLOCK_RUN);
    double best = 0;

    *split = 0;
    for (int s = bn == 128 ? 2 : 1; s <= RIDGE_Q8_0_PARTS; s *= 2) {
        /* a cluster's sums, exchanged, take as long as two runs */
        const double time = (double)ridge_ceil_div(work, clusters_of(device, s)) * (runs / s + 1 + (s > 1));

        if (*split == 0 || time < best) {
            best = time;
            *split = s;
        }
    }
    return best;
}

static ridge_status make_maps(const ridge_device *device, int bn, const layout_args *x, block_gemm_args *a)
{
    ridge_status status =
        host_tensor_map(device, &a->x, RIDGE_I8, x->codes, x->cols, x->p.tokens, x->cols, BLOCK_RUN, bn, 128);

    if (!status)
        status = host_tensor_map(device, &a->numbers, RIDGE_F32, x->numbers, x->tokens,
                                 (int64_t)GEMM_NUMBERS(x->kind) * x->planes, x->tokens, bn, 4, 0);
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *space, size_t, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const block_kernels *f = ridge_block_kernels_of(problem->dtype[2]);
    const int bn = widths[kernel->param[0]];
    layout_args x = take(problem, (char *)space);
    block_gemm_args a = {};
    ridge_status status;

    a.p = block_collect(&bound->call);
    x.p = a.p;
    a.planes = x.planes;
    a.runs = x.planes / 4;
    a.tiles[0] = (int)ridge_block_tiles(problem, 0, GEMM_BM);
    a.tiles[1] = (int)ridge_block_tiles(problem, 1, GEMM_BM);
    a.token_tiles = (int)ridge_ceil_div(problem->dim[0], bn);
    a.work = (int)ridge_block_work(problem, GEMM_BM, bn);
    best_split(device, problem, bn, &a.split);
    if (a.work == 0)
        return RIDGE_OK;
    status = host_launch(device, kernel->name, (const void *)block_gemm_x,
                         dim3((unsigned)ridge_ceil_div(x.tokens * x.cols / 8, 256)), 256, &x, stream);
    if (!status)
        status = make_maps(device, bn, &x, &a);
    if (status)
        return status;
    return host_launch_cluster(device, kernel->name, f->gemm[kernel->param[0]],
                               dim3((unsigned)(ridge_min(a.work, clusters_of(device, a.split)) * a.split)), a.split,
                               GEMM_CTA_THREADS, (size_t)f->gemm_shared[kernel->param[0]], &a, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dim[0] == 0 || problem->dim[1] == 0)
        return "nothing to multiply";
    if (problem->dim[1] > 1 << 24 || problem->dim[2] > 1 << 30 || problem->dim[3] > 1 << 30 ||
        ridge_block_work(problem, GEMM_BM, 32) > 0x3fffffff)
        return "more than 2^24 columns, or 2^30 rows or tiles";
    return NULL;
}

/* Microseconds on an H200. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    static const double run_us[3] = {2.5, 1.9, 1.4}; /* a run of a CTA */
    int split;
    const double products = best_split(device, problem, widths[kernel->param[0]], &split) * run_us[kernel->param[0]] *
                            1.98 / device->clock_ghz;
    const double load = ridge_block_bytes(problem) * 1e-3 / device->copy_gbps;

    return 9 + (products > load ? products : load);
}

#define ROW(op_name, op_id, name, width)                                                                            \
    {                                                                                                               \
        "cuda." op_name ".wgmma" name, op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90, Q8_0_CONTRACT, 0, {width}, why_not, \
            workspace, cost, launch                                                                                 \
    }
#define ROWS(op_name, op_id) \
    ROW(op_name, op_id, "128x128", 0), ROW(op_name, op_id, "128x64", 1), ROW(op_name, op_id, "128x32", 2)

/* param: index of widths. */
static const ridge_kernel rows[] = {
    ROWS("block_matmul", RIDGE_BLOCK_MATMUL),
    ROWS("block_pair", RIDGE_BLOCK_PAIR),
    ROWS("block_gate_up_swiglu", RIDGE_BLOCK_GATE_UP_SWIGLU),
};

extern "C" const ridge_kernel_list ridge_cuda_blocks_gemm = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
