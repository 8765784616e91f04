/* rows_grouped_sm90.cu: the rows of gemm_fp8_grouped on Hopper: what each can run, its cost, its launch. A row's
 * variant is a tile of tiles_sm90.cuh; the kernel is gemm_fp8's, kernel_sm90.cuh, whose scheduler goes through the
 * groups. */
#include <math.h>

#include "groups.cuh"
#include "rows_sm90.cuh"
#include "src/util.h"

/* Clusters that run at once. */
static int64_t clusters_of(const ridge_device *device, const gemm_shape *t)
{
    return device->units / t->cluster_n;
}

static int64_t tiles_n_of(const gemm_variant *v, int64_t n)
{
    return ridge_ceil_div(n, v->shape.cluster_n * v->shape.block_n);
}

/* The most cluster tiles that groups of any sizes can have. */
static double most_tiles(const gemm_variant *v, uint32_t flags, const int64_t *dim)
{
    const double rows = (double)ridge_ceil_div(dim[0], v->block_m), groups = (double)dim[3];

    return (double)tiles_n_of(v, dim[1]) * ((flags & RIDGE_GROUPED) == RIDGE_GROUPED_M ? rows + groups : rows * groups);
}

/* ----------------------------------------------------------------------------------------------------------- launch */

enum { GROUPED_SCALES = RIDGE_SCALE | RIDGE_SCALE_B | RIDGE_SCALE_T | RIDGE_SCALE_B_T };

/* SCALE_*. Groups of k have no kernel for scales of B by 128 x 128: they take the way of those by row. */
static int mode_of(uint32_t flags)
{
    const uint32_t of_b = flags & RIDGE_SCALE_B;

    if (of_b == RIDGE_SCALE_B_TENSOR || of_b == RIDGE_SCALE_B_ROW)
        return SCALE_EPILOGUE;
    return of_b == RIDGE_SCALE_B_BLK128 && (flags & RIDGE_GROUPED) != RIDGE_GROUPED_K ? SCALE_1D2D : SCALE_1D1D;
}

/* The sizes, the scales, the offsets and D, without the tensor maps. */
static gemm_args make_args(const ridge_bound *bound, const gemm_variant *v)
{
    const ridge_call *call = &bound->call;
    const ridge_operand *arg = call->arg, *d = &arg[RIDGE_GEMM_FP8_GROUPED_D];
    const uint32_t mode = call->flags & RIDGE_GROUPED, of_a = call->flags & RIDGE_SCALE,
                   of_b = call->flags & RIDGE_SCALE_B;
    gemm_args p = {};

    p.m = (int)bound->rows[RIDGE_GEMM_FP8_GROUPED_A];
    p.n = (int)call->dim[1];
    p.k_blocks = (int)ridge_ceil_div(call->dim[2], BK);
    p.tiles_n = (int)tiles_n_of(v, p.n);
    p.scale_a = (const float *)arg[RIDGE_GEMM_FP8_GROUPED_SCALE_A].data;
    p.scale_b = (const float *)arg[RIDGE_GEMM_FP8_GROUPED_SCALE_B].data;
    p.ld_a = of_a == RIDGE_SCALE_TENSOR ? 0 : arg[RIDGE_GEMM_FP8_GROUPED_SCALE_A].stride;
    p.ld_b = of_b == RIDGE_SCALE_B_TENSOR ? 0 : arg[RIDGE_GEMM_FP8_GROUPED_SCALE_B].stride;
    p.shift_a = of_a == RIDGE_SCALE_BLK128 ? 7 : 0;
    p.shift_b = of_b == RIDGE_SCALE_B_BLK128 ? 7 : 0;
    p.row_a = p.shift_a || call->flags & RIDGE_SCALE_T ? p.ld_a : 1;
    p.step_a = p.shift_a || call->flags & RIDGE_SCALE_T ? 1 : p.ld_a;
    p.row_b = p.shift_b || call->flags & RIDGE_SCALE_B_T ? p.ld_b : 1;
    p.step_b = p.shift_b || call->flags & RIDGE_SCALE_B_T ? 1 : p.ld_b;
    p.scale_a_skew = (int)((uintptr_t)p.scale_a % 16 / 4);
    if (mode == RIDGE_GROUPED_K) {
        p.scale_step = of_b == RIDGE_SCALE_B_ROW ? p.n : 0;
        p.scale_tma = (call->flags & GROUPED_SCALES) == (RIDGE_SCALE_ROW128 | RIDGE_SCALE_B_ROW128) &&
                      scales_by_tma(p.scale_a, p.ld_a) && scales_by_tma(p.scale_b, p.ld_b);
    } else { /* by TMA: gemm_flat_scales */
        p.scale_step = of_b == RIDGE_SCALE_B_BLK128   ? (int)ridge_ceil_div(p.n, 128)
                       : of_b == RIDGE_SCALE_B_TENSOR ? 1
                                                      : p.n;
        p.scale_tma = (call->flags & GROUPED_SCALES) == (RIDGE_SCALE_ROW128 | RIDGE_SCALE_B_BLK128) &&
                      p.ld_a * p.k_blocks < 0x7fffff00;
    }
    p.dtype = (int)d->dtype;
    p.out = (char *)d->data;
    p.stride = d->stride;
    p.bias = arg[RIDGE_GEMM_FP8_GROUPED_BIAS].data;
    p.bias_f32 = arg[RIDGE_GEMM_FP8_GROUPED_BIAS].dtype == RIDGE_F32;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.aligned = ((uintptr_t)d->data | (uintptr_t)(p.stride * (int64_t)ridge_dtype_size(d->dtype))) % 16 == 0;
    p.offsets = arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS].data;
    p.wide = arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS].dtype == RIDGE_I64;
    p.groups = (int)call->dim[3];
    p.masked = mode == RIDGE_GROUPED_MASKED ? (int)call->dim[0] : 0;
    p.by_bundle = scheduler_reciprocal(BUNDLE_M * p.tiles_n);
    for (int rows = 1; rows <= BUNDLE_M; rows++)
        p.by_rows[rows] = scheduler_reciprocal(rows);
    return p;
}

static ridge_status make_maps(const ridge_device *device, const ridge_bound *bound, const gemm_shape *t, int block_m,
                              int out, int mode, gemm_args *p)
{
    const ridge_operand *a = &bound->call.arg[RIDGE_GEMM_FP8_GROUPED_A],
                        *b = &bound->call.arg[RIDGE_GEMM_FP8_GROUPED_B];
    const int64_t k = bound->call.dim[2], d_rows = bound->rows[RIDGE_GEMM_FP8_GROUPED_D];
    const bool by_k = t->grouped == GROUPED_K;
    const int cols = t->block_n % 64 ? 32 : 64;
    ridge_status status =
        host_tensor_map(device, &p->a, RIDGE_E4M3, a->data, k, p->m, a->stride, BK, block_m / t->cluster_n, 128);

    for (int units = 1; units * GROUPED_UNIT(block_m) < block_m && !status && !by_k; units++)
        status = host_tensor_map(device, &p->a_part[units - 1], RIDGE_E4M3, a->data, k, p->m, a->stride, BK,
                                 units * GROUPED_UNIT(block_m) / t->cluster_n, 128);
    if (!status)
        status = host_tensor_map(device, &p->b, RIDGE_E4M3, b->data, k, bound->rows[RIDGE_GEMM_FP8_GROUPED_B],
                                 b->stride, BK, t->block_n, 128);
    if (!status && p->aligned && !p->accumulate && p->dtype != RIDGE_F32)
        status = host_tensor_map(device, &p->d, p->dtype, p->out, p->n, d_rows, p->stride, cols, 64, 2 * cols);
    if (!status && out == OUT_F32 && by_k && mode == SCALE_1D1D)
        status = host_tensor_map(device, &p->d, p->dtype, p->out, p->n, d_rows, p->stride, 32, 64, 128);
    if (!status && p->scale_tma && by_k)
        status =
            host_tensor_map(device, &p->map_scale_a, RIDGE_F32, p->scale_a, p->m, p->k_blocks, p->ld_a, block_m, 1, 0);
    if (!status && p->scale_tma && !by_k)
        status = host_tensor_map(device, &p->map_scale_a, RIDGE_F32, p->scale_a - p->scale_a_skew,
                                 p->scale_a_skew + (p->k_blocks - 1) * p->ld_a + p->m, 1, 0, block_m + 4, 1, 0);
    if (!status && p->scale_tma && by_k)
        status = host_tensor_map(device, &p->map_scale_b, RIDGE_F32, p->scale_b, p->n, p->k_blocks, p->ld_b, t->block_n,
                                 1, 0);
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    const gemm_variant *v = variant_of(kernel);
    const gemm_shape *t = &v->shape;
    const int mode = mode_of(call->flags);
    const int formats = call->arg[RIDGE_GEMM_FP8_GROUPED_A].dtype == RIDGE_E5M2   ? WGMMA_E5M2_E4M3
                        : call->arg[RIDGE_GEMM_FP8_GROUPED_B].dtype == RIDGE_E5M2 ? WGMMA_E4M3_E5M2
                                                                                  : WGMMA_E4M3_E4M3;
    const double tiles = most_tiles(v, call->flags, call->dim);
    gemm_args p = make_args(bound, v);
    const int out = !p.aligned                               ? OUT_ANY
                    : p.dtype == RIDGE_F32                   ? OUT_F32
                    : p.dtype == RIDGE_BF16 && !p.accumulate ? OUT_BF16
                                                             : OUT_ANY;
    const int64_t most = clusters_of(device, t), clusters = tiles < (double)most ? (int64_t)tiles : most;
    ridge_status status = make_maps(device, bound, t, v->block_m, out, mode, &p);

    if (!status)
        status = groups_report_bad(device, kernel, bound, stream);
    if (status)
        return status;
    return host_launch_cluster(device, kernel->name, (const void *)v->mode[mode].function[out][formats],
                               dim3((unsigned)(clusters * t->cluster_n)), t->cluster_n, t->warpgroups * 128 + 128,
                               v->mode[mode].memory, &p, stream);
}

/* -------------------------------------------------------------------------------------------------------------- rows
 */

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1], k = problem->dim[2], groups = problem->dim[3];
    const gemm_shape *t = &variant_of(kernel)->shape;
    const bool by_k = (problem->flags & RIDGE_GROUPED) == RIDGE_GROUPED_K;
    const bool f32 = problem->dtype[RIDGE_GEMM_FP8_GROUPED_D] == RIDGE_F32;
    const int mode = mode_of(problem->flags);

    if ((t->grouped == GROUPED_K) != by_k)
        return by_k ? "is for groups of rows" : "is for groups of k";
    if (!(t->modes >> mode & 1))
        return "does not have these scales";
    if (mode == SCALE_1D1D && f32 != !t->scale_outer)
        return f32 ? "is for d of 16 bits" : "with these scales is for d of f32";
    if (by_k && problem->dtype[RIDGE_GEMM_FP8_GROUPED_BIAS] != RIDGE_NONE)
        return "has no bias for groups of k";
    if (m == 0 || n == 0 || k == 0 || groups == 0)
        return "nothing to multiply";
    if (by_k && f32 && mode == SCALE_1D1D && m % 64) /* TMA stores D in boxes of 64 rows */
        return "needs m to be a multiple of 64";
    if (problem->inputs_align < 4 || (problem->packed && k % 16))
        return "TMA needs rows of a and b that begin at multiples of 16 bytes";
    if (most_tiles(variant_of(kernel), problem->flags, problem->dim) > 1e9 || k > 0x7fffff00 || m > 0x7fffff00 ||
        n > 0x7fffff00)
        return "more than 2^30 tiles";
    if (device->units < 2)
        return "is for two multiprocessors or more";
    return NULL;
}

/* us: rounds of tiles, as if the groups were of one size (masked: had half of their rows). A block of k takes a tile
 * block_us and a share of the rest for each slice of 64 rows, to the rate of the main loop, in TFLOP/s of an H200's 132
 * multiprocessors. Not less than A, B and D take to be moved once. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const gemm_variant *v = variant_of(kernel);
    const gemm_shape *t = &v->shape;
    const uint32_t mode = problem->flags & RIDGE_GROUPED;
    const bool by_k = mode == RIDGE_GROUPED_K;
    const double groups = (double)problem->dim[3], k = (double)problem->dim[2], n = (double)problem->dim[1];
    const double rows = (double)problem->dim[0] / (by_k ? 1 : mode == RIDGE_GROUPED_MASKED ? 2 : groups);
    const double blocks = ceil(k / BK) / (by_k ? groups : 1);
    /* groups of 64 rows in the mean: of rows that follow each other some have more */
    const double slices = rows > 64 ? ceil(rows / 64) : mode == RIDGE_GROUPED_M ? 2 : 1;
    const double tiles_m = ceil(slices / t->warpgroups);
    const double tiles = groups * tiles_m * (double)tiles_n_of(v, problem->dim[1]);
    const double rate =
        (mode_of(problem->flags) == SCALE_1D1D ? t->rate_1d1d : t->rate) * 1e6 / 132 * host_sm_share(device);
    const double full = 2 * BK * (double)v->block_m * t->block_n / rate, least = t->block_us * 1.98 / device->clock_ghz;
    const double share = by_k ? 1 : slices / tiles_m / t->warpgroups;
    const double block = full > least ? least + share * (full - least) : least;
    const double loop = 4 + ceil(tiles / (double)clusters_of(device, t)) * (0.5 + blocks * block);
    const double d_bytes = problem->dtype[RIDGE_GEMM_FP8_GROUPED_D] == RIDGE_F32 ? 4 : 2;
    const double move =
        by_k ? (rows + n) * k + d_bytes * groups * rows * n : groups * (n * k + rows * (k + d_bytes * n));

    return fmax(loop, 4 + move / (900 * device->copy_gbps)) + 1e-3 * loop;
}

#define ROW(tile, ...)                                \
    {                                                 \
        .name = "cuda.gemm_fp8_grouped.wgmma_" #tile, \
        .op = RIDGE_GEMM_FP8_GROUPED,                 \
        .arch_min = RIDGE_ARCH_SM90,                  \
        .arch_max = RIDGE_ARCH_SM90,                  \
        .contract = RIDGE_STABLE | RIDGE_TYPICAL,     \
        .variant = &ridge_gemm_##tile,                \
        .param = {},                                  \
        .why_not = why_not,                           \
        .workspace = NULL,                            \
        .cost = cost,                                 \
        .launch = launch,                             \
    },

/* clang-format off */
static const ridge_kernel rows[] = {
    GEMM_TILES_GROUPED_M(ROW)
    GEMM_TILES_GROUPED_1D1D(ROW)
    GEMM_TILES_GROUPED_FEW(ROW)
    GEMM_TILES_GROUPED_K(ROW)
};
/* clang-format on */

static ridge_status prepare(const ridge_device *device)
{
    const ridge_status status =
        rows_prepare(device, rows, sizeof rows / sizeof rows[0], "gemm_fp8_grouped: loading kernels");

    return status ? status : groups_prepare(device);
}

extern "C" const ridge_kernel_list ridge_cuda_gemm_fp8_grouped = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
