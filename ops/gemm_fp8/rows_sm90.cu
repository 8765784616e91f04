/* rows_sm90.cu: the rows of gemm_fp8 for m above 64 on Hopper: what each can run, its cost, its launch. A row's variant
 * is a tile of tiles_sm90.cuh; a row with a workspace splits its last tiles by stream-K. The kernel: kernel_sm90.cuh.
 */
#include <limits.h>

#include "rows_sm90.cuh"
#include "src/util.h"

static bool is_stream_k(const ridge_kernel *kernel)
{
    return kernel->workspace != NULL;
}

/* Clusters that run at once, and cluster tiles: what one of them computes at a time. */
static int64_t clusters_of(const ridge_device *device, const gemm_shape *t)
{
    return device->units / (t->cluster_m * t->cluster_n);
}

static int64_t tiles_m_of(const gemm_variant *v, int64_t m)
{
    return ridge_ceil_div(m, v->block_m * v->shape.cluster_m);
}

static int64_t tiles_of(const gemm_variant *v, const int64_t *dim)
{
    return tiles_m_of(v, dim[0]) * ridge_ceil_div(dim[1], v->shape.block_n * v->shape.cluster_n);
}

/* Rows of a tile: with small_m they are divided evenly, in whole swizzles for each CTA that loads a part of them. */
static int64_t block_m_of(const gemm_variant *v, int64_t m)
{
    const int64_t tiles = tiles_m_of(v, m) * v->shape.cluster_m;

    return v->shape.small_m ? ridge_round_up(ridge_ceil_div(m, tiles), 8 * v->shape.cluster_n) : v->block_m;
}

/* Consumer warpgroups that have rows. */
static int64_t warpgroups_of(const gemm_variant *v, int64_t m)
{
    return v->shape.small_m ? ridge_ceil_div(block_m_of(v, m), 64) : v->shape.warpgroups;
}

/* Bytes of the partial accumulators that a warpgroup saves for the next cluster. */
static size_t partial_bytes(const gemm_shape *t)
{
    return (size_t)64 * t->slices * t->block_n * 4;
}

static size_t workspace_bytes(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *)
{
    const gemm_shape *t = &variant_of(kernel)->shape;

    return (size_t)device->units * (t->warpgroups * (partial_bytes(t) + sizeof(uint64_t)) + sizeof(uint64_t));
}

/* A number that no other launch of this process has, and that memory does not hold by chance. */
static uint64_t new_nonce(void)
{
    static uint64_t count;
    uint64_t z =
        (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) + (uint64_t)(uintptr_t)&count) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) | 1;
}

/* The sizes, the scales and D, without the tensor maps. flat: gemm_flat_scales, whose elements have 32-bit numbers. */
static gemm_args make_args(const ridge_call *call, const gemm_variant *v, bool flat)
{
    const ridge_operand *arg = call->arg, *d = &arg[RIDGE_GEMM_FP8_D];
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = call->flags & RIDGE_SCALE_B;
    gemm_args p = {};

    p.m = (int)call->dim[0];
    p.n = (int)call->dim[1];
    p.k_blocks = (int)ridge_ceil_div(call->dim[2], BK);
    p.tiles_m = (int)tiles_m_of(v, p.m);
    p.tiles_n = (int)ridge_ceil_div(p.n, v->shape.block_n * v->shape.cluster_n);
    p.block_m = (int)block_m_of(v, p.m);
    p.a_rows = p.block_m / v->shape.cluster_n;
    p.warpgroups = (int)warpgroups_of(v, p.m);
    p.scale_a = (const float *)arg[RIDGE_GEMM_FP8_SCALE_A].data;
    p.scale_b = (const float *)arg[RIDGE_GEMM_FP8_SCALE_B].data;
    p.shift_a = mode_a == RIDGE_SCALE_BLK128 ? 7 : 0;
    p.ld_a = mode_a == RIDGE_SCALE_TENSOR ? 0 : arg[RIDGE_GEMM_FP8_SCALE_A].stride;
    p.ld_b = mode_b == RIDGE_SCALE_B_TENSOR ? 0 : arg[RIDGE_GEMM_FP8_SCALE_B].stride;
    p.row_a = p.shift_a || call->flags & RIDGE_SCALE_T ? p.ld_a : 1;
    p.step_a = p.shift_a || call->flags & RIDGE_SCALE_T ? 1 : p.ld_a;
    p.row_b = call->flags & RIDGE_SCALE_B_T ? p.ld_b : 1;
    p.step_b = call->flags & RIDGE_SCALE_B_T ? 1 : p.ld_b;
    p.scale_a_skew = (int)((uintptr_t)p.scale_a % 16 / 4);
    p.scale_tma = mode_a == RIDGE_SCALE_ROW128 && !(call->flags & (RIDGE_SCALE_T | RIDGE_SCALE_B_T)) &&
                  (flat ? p.ld_a * p.k_blocks < 0x7fffff00 : scales_by_tma(p.scale_a, p.ld_a)) &&
                  (mode_b != RIDGE_SCALE_B_ROW128 || scales_by_tma(p.scale_b, p.ld_b));
    p.dtype = (int)d->dtype;
    p.out = (char *)d->data;
    p.stride = d->stride;
    p.bias = arg[RIDGE_GEMM_FP8_BIAS].data;
    p.bias_f32 = arg[RIDGE_GEMM_FP8_BIAS].dtype == RIDGE_F32;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    /* with accumulation no row may be computed twice; the scales of A begin at a multiple of 16 bytes */
    p.last_row = p.accumulate || p.m < p.block_m ? INT_MAX : (int)ridge_round_up(p.m - p.block_m, 4);
    p.aligned = ((uintptr_t)d->data | (uintptr_t)(p.stride * (int64_t)ridge_dtype_size(d->dtype))) % 16 == 0;
    return p;
}

static ridge_status map_operands(const ridge_device *device, const ridge_call *call, const gemm_shape *t, gemm_args *p)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B];
    const int64_t k = call->dim[2];
    ridge_status status = host_tensor_map(device, &p->a, RIDGE_E4M3, a->data, k, p->m, a->stride, BK, p->a_rows, 128);

    if (!status)
        status = host_tensor_map_l2(
            device, &p->b, RIDGE_E4M3, b->data, k, p->n, b->stride, BK, t->block_n / t->cluster_m, 128,
            t->small_m ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    return status;
}

/* The maps of D where TMA stores it, or, in 1D1D, where f32 passes through shared memory. */
static ridge_status map_d(const ridge_device *device, const gemm_shape *t, int mode, int out, gemm_args *p)
{
    const int cols = t->block_n % 64 ? 32 : 64;
    ridge_status status = RIDGE_OK;

    if (p->aligned && !p->accumulate && p->dtype != RIDGE_F32)
        status = host_tensor_map(device, &p->d, p->dtype, p->out, p->n, p->m, p->stride, cols, 64, 2 * cols);
    if (!status && p->aligned && !p->accumulate && p->dtype != RIDGE_F32 && t->small_m)
        status = host_tensor_map(device, &p->d_tail, p->dtype, p->out, p->n, p->m, p->stride, cols,
                                 p->block_m - 64 * (p->warpgroups - 1), 2 * cols);
    if (!status && out == OUT_F32 && mode == SCALE_1D1D)
        status = host_tensor_map(device, &p->d, p->dtype, p->out, p->n, p->m, p->stride, 32, 64, 128);
    return status;
}

static ridge_status map_scales(const ridge_device *device, const gemm_shape *t, int mode, bool flat, gemm_args *p)
{
    ridge_status status;

    if (!p->scale_tma)
        return RIDGE_OK;
    if (flat)
        status = host_tensor_map(device, &p->map_scale_a, RIDGE_F32, p->scale_a - p->scale_a_skew,
                                 p->scale_a_skew + (p->k_blocks - 1) * p->ld_a + p->m, 1, 0, p->block_m + 4, 1, 0);
    else
        status = host_tensor_map(device, &p->map_scale_a, RIDGE_F32, p->scale_a, p->m, p->k_blocks, p->ld_a, p->block_m,
                                 1, 0);
    if (!status && mode == SCALE_1D1D)
        status = host_tensor_map(device, &p->map_scale_b, RIDGE_F32, p->scale_b, p->n, p->k_blocks, p->ld_b, t->block_n,
                                 1, 0);
    return status;
}

enum { SYNC_BLOCKS = 2048 }; /* blocks of k, 1.2 ms, after which clusters wait for each other: some 7 us */

/* Splits the last `clusters` to 2 `clusters` tiles among the clusters. */
static void split_stream_k(const ridge_device *device, const gemm_shape *t, int64_t tiles, int64_t clusters,
                           void *workspace, gemm_args *p)
{
    p->data_parallel = (int)((tiles / clusters - 1) * clusters);
    for (int64_t c = 0; c <= clusters; c++)
        p->cut[c] = stream_k_cut_at(tiles - p->data_parallel, p->k_blocks, c, clusters);
    p->partial = (float *)workspace;
    p->flag = (uint64_t *)((char *)workspace + (size_t)device->units * t->warpgroups * partial_bytes(t));
    p->nonce = new_nonce();
    p->progress = p->flag + device->units * t->warpgroups;
    p->sync_every = (int)ridge_ceil_div(SYNC_BLOCKS, p->k_blocks);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    const gemm_variant *v = variant_of(kernel);
    const gemm_shape *t = &v->shape;
    const uint32_t mode_b = call->flags & RIDGE_SCALE_B;
    const int mode = mode_b == RIDGE_SCALE_B_BLK128   ? SCALE_1D2D
                     : mode_b == RIDGE_SCALE_B_ROW128 ? SCALE_1D1D
                                                      : SCALE_EPILOGUE;
    const int formats = call->arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E5M2   ? WGMMA_E5M2_E4M3
                        : call->arg[RIDGE_GEMM_FP8_B].dtype == RIDGE_E5M2 ? WGMMA_E4M3_E5M2
                                                                          : WGMMA_E4M3_E4M3;
    const bool flat = t->small_m && mode == SCALE_1D2D;
    const int64_t clusters = clusters_of(device, t), tiles = tiles_of(v, call->dim);
    const int ctas = t->cluster_m * t->cluster_n;
    gemm_args p = make_args(call, v, flat);
    const int stages = v->mode[mode].ring / ((p.block_m + t->block_n) * BK);
    const int out = !p.aligned                               ? OUT_ANY
                    : p.dtype == RIDGE_F32                   ? OUT_F32
                    : p.dtype == RIDGE_BF16 && !p.accumulate ? OUT_BF16
                                                             : OUT_ANY;
    ridge_status status = map_operands(device, call, t, &p);

    if (!status)
        status = map_d(device, t, mode, out, &p);
    if (!status)
        status = map_scales(device, t, mode, flat, &p);
    if (status)
        return status;
    p.stages = (int)ridge_min((int64_t)stages, t->stages);
    p.data_parallel = (int)tiles;
    if (is_stream_k(kernel) && clusters < MAX_CUTS && (mode != SCALE_1D1D || p.scale_tma))
        split_stream_k(device, t, tiles, clusters, workspace, &p);
    return host_launch_cluster(device, kernel->name, (const void *)v->mode[mode].function[out][formats],
                               dim3((unsigned)(ridge_min(tiles, clusters) * ctas)), ctas, t->warpgroups * 128 + 128,
                               v->mode[mode].memory, &p, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1], k = problem->dim[2];
    const gemm_variant *v = variant_of(kernel);
    const gemm_shape *t = &v->shape;
    const int64_t cluster_rows = v->block_m * t->cluster_m, clusters = clusters_of(device, t);
    const uint32_t mode_b = problem->flags & RIDGE_SCALE_B;
    const bool is_1d1d = mode_b == RIDGE_SCALE_B_ROW128;
    const bool is_1d1d_16bit = is_1d1d && problem->dtype[RIDGE_GEMM_FP8_D] != RIDGE_F32;

    if (m <= 64)
        return "is for m above 64";
    if (t->small_m && t->modes == MODE_1D2D && m > 512)
        return "is for m of 65 to 512";
    if (t->small_m && t->modes != MODE_1D2D && t->warpgroups < 3 && m > cluster_rows)
        return cluster_rows == 128 ? "is for m of 65 to 128" : "is for m of 65 to 256";
    if (is_1d1d && !(t->modes & MODE_1D1D))
        return "is not for scales of b by row and 128 of k";
    if (n == 0 || k == 0)
        return "nothing to multiply";
    if (t->modes == MODE_1D2D && mode_b != RIDGE_SCALE_B_BLK128)
        return "is for scales of b by 128 x 128";
    if (t->modes == MODE_1D1D && !is_1d1d_16bit)
        return "is for scales of b by row and 128 of k, to 16 bits";
    if (t->modes & MODE_EPILOGUE && is_1d1d_16bit)
        return "is not for scales of b by row and 128 of k, to 16 bits";
    if (problem->inputs_align < 4 || (problem->packed && k % 16))
        return "TMA needs rows of a and b that begin at multiples of 16 bytes";
    if (m > 0x7fffff00 || n > 0x7fffff00 || k > 0x7fffff00 ||
        (double)((m + 127) / 128) * (double)((n + 127) / 128) > 2e9)
        return "more than 2^31 tiles";
    if (device->units < 2 || device->units / 2 >= MAX_CUTS) /* of all tiles, so that no m is left to other arithmetic */
        return "is for 2 to 161 multiprocessors";
    if (is_stream_k(kernel) && tiles_of(v, problem->dim) <= clusters)
        return "too few tiles for stream-K";
    return NULL;
}

/* The rates of the tiles are those of an H200 at its power limit. A call of less than a millisecond is 1.05 to 1.25
 * times as fast (bench/records/20261123-h200-picks.csv, -h100-). */
static const double cool = 1.08;

/* us of a tile's block of k, at a rate in TFLOP/s of an H200's 132 multiprocessors. */
static double block_us(const ridge_device *device, double rows, double cols, double rate)
{
    return 2 * BK * rows * cols / (cool * rate * 1e6 / 132 * host_sm_share(device));
}

/* small_m: a block of k takes at least block_us, whatever rows there are (192x64 and 128x64: by their number), and the
 * whole not less than a read of the weights at a rate below the memory's, which a large block_n comes nearer to
 * (docs/measured.md). us. */
static double small_m_cost(const ridge_device *device, const gemm_variant *v, const ridge_problem *problem,
                           double blocks, double rate)
{
    const gemm_shape *t = &v->shape;
    const double rounds = (double)ridge_ceil_div(tiles_of(v, problem->dim), clusters_of(device, t));
    const double rows = 64 * (double)warpgroups_of(v, problem->dim[0]);
    const double multiply = block_us(device, rows, t->block_n, rate), least = t->block_us * 1.98 / device->clock_ghz;
    const double loop = 4 + rounds * (1 + blocks * (multiply > least ? multiply : least));
    const double load =
        4 + (double)problem->dim[1] * blocks * BK / ((t->block_n > 128 ? 930 : 860) * device->copy_gbps);

    return loop > load ? loop : load;
}

/* Rounds of tiles at the measured rate of the main loop, or tiles divided evenly by stream-K, which takes 5.4 us more
 * and writes and reads partial sums; not less than A, B and D take to be moved once. Fitted to nine forward shapes, m
 * 4096 and 8192, and six of m 257 to 512. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const gemm_variant *v = variant_of(kernel);
    const gemm_shape *t = &v->shape;
    const bool is_1d1d = (problem->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_ROW128;
    const double m = (double)problem->dim[0], n = (double)problem->dim[1], k = (double)problem->dim[2];
    const double blocks = (double)ridge_ceil_div(problem->dim[2], BK), rate = is_1d1d ? t->rate_1d1d : t->rate;
    const int64_t tiles = tiles_of(v, problem->dim), clusters = clusters_of(device, t);
    const double tile = 0.5 + 0.5 * t->slices + blocks * block_us(device, v->block_m, t->block_n, rate);
    const double load = 4 + (m * k + n * k + m * n * (problem->dtype[RIDGE_GEMM_FP8_D] == RIDGE_F32 ? 4 : 2)) /
                                (860 * device->copy_gbps);
    const double partial = (double)device->units * t->warpgroups * (double)partial_bytes(t);
    double loop;

    if (t->small_m)
        return small_m_cost(device, v, problem, blocks, rate);
    loop = is_stream_k(kernel) ? 9.4 + 2e-3 * partial / device->copy_gbps + tile * (double)tiles / (double)clusters
                               : 4 + tile * (double)ridge_ceil_div(tiles, clusters);
    return loop > load ? loop : load;
}

#define ROW_OF(row_name, tile, workspace_need)                      \
    {                                                               \
        .name = "cuda.gemm_fp8.wgmma" row_name,                     \
        .op = RIDGE_GEMM_FP8,                                       \
        .arch_min = RIDGE_ARCH_SM90,                                \
        .arch_max = RIDGE_ARCH_SM90,                                \
        .contract = RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_TYPICAL, \
        .variant = &ridge_gemm_##tile,                              \
        .param = {},                                                \
        .why_not = why_not,                                         \
        .workspace = workspace_need,                                \
        .cost = cost,                                               \
        .launch = launch,                                           \
    },
#define ROW(tile, ...) ROW_OF(#tile, tile, NULL)

/* clang-format off */
static const ridge_kernel rows[] = {
    ROW_OF("192x128_stream_k", 192x128, workspace_bytes)
    ROW_OF("192x96_stream_k", 192x96, workspace_bytes)
    GEMM_TILES_LARGE(ROW)
    GEMM_TILES_SMALL_M(ROW)
    GEMM_TILES_N96_N160(ROW)
};
/* clang-format on */

static ridge_status prepare(const ridge_device *device)
{
    return rows_prepare(device, rows, sizeof rows / sizeof rows[0], "gemm_fp8: loading kernels");
}

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
