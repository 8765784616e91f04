/* rows_sm90.cu: the rows of gemm_fp8 for m above 64 on Hopper: launch, cost. The kernel: kernel_sm90.cuh; the
 * tiles: tiles_sm90.cuh. */
#include "tiles_sm90.cuh"

enum { FEW_TILE = 16, SPAN_TILE = 32 };

static const gemm_tile *tile_of(const ridge_kernel *kernel)
{
    static const gemm_tile *const table[] = {ridge_gemm_tiles_large, ridge_gemm_tiles_few, ridge_gemm_tiles_span};

    return &table[kernel->param[0] / FEW_TILE][kernel->param[0] % FEW_TILE];
}

static ridge_status prepare_tile(const ridge_device *device, const gemm_tile *tile)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 3 && !status; i++)
        if (tile->mode[i].memory)
            status = host_prepare(device, tile->mode[i].function[0], 3 * 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)tile->mode[i].memory, "gemm_fp8: loading kernels");
    return status;
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    for (int i = 0; i < TILES_LARGE && !status; i++)
        status = prepare_tile(device, &ridge_gemm_tiles_large[i]);
    for (int i = 0; i < TILES_FEW && !status; i++)
        status = prepare_tile(device, &ridge_gemm_tiles_few[i]);
    for (int i = 0; i < TILES_SPAN && !status; i++)
        status = prepare_tile(device, &ridge_gemm_tiles_span[i]);
    return status;
}

/* Clusters that run at once, and items: what a cluster does at a time. */
static int64_t clusters_of(const ridge_device *device, const gemm_tile *tile)
{
    return device->units / (tile->cm * tile->cn);
}

static int64_t items_of(const gemm_tile *tile, const int64_t *dim)
{
    const int64_t rows = tile->bm * tile->cm, cols = tile->bn * tile->cn;

    return (dim[0] + rows - 1) / rows * ((dim[1] + cols - 1) / cols);
}

/* Rows of a tile: with few they are shared out evenly, in whole swizzles for each CTA that loads a part. */
static int64_t high_of(const gemm_tile *tile, int64_t m)
{
    const int64_t tiles = (m + tile->bm * tile->cm - 1) / (tile->bm * tile->cm) * tile->cm;

    return tile->few ? ((m + tiles - 1) / tiles + 8 * tile->cn - 1) / (8 * tile->cn) * (8 * tile->cn) : tile->bm;
}

/* Warpgroups that have rows. */
static int64_t groups_of(const gemm_tile *tile, int64_t m)
{
    return tile->few ? (high_of(tile, m) + 63) / 64 : tile->wgs;
}

/* Bytes of `fin` that a warpgroup leaves to the next cluster. */
static size_t part_bytes(const gemm_tile *tile)
{
    return (size_t)64 * tile->slices * tile->bn * 4;
}

static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *)
{
    const gemm_tile *tile = tile_of(kernel);

    return (size_t)device->units * (tile->wgs * (part_bytes(tile) + sizeof(uint64_t)) + sizeof(uint64_t));
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

static int64_t stride_of(const ridge_operand *x, int64_t packed)
{
    return x->stride ? x->stride : packed;
}

/* The kernels that take the scales of A as one line (gemm_flat), whose elements have 32-bit numbers. */
static bool is_flat(const gemm_tile *tile, uint32_t mode_b)
{
    return tile->few && mode_b == RIDGE_SCALE_B_BLK128;
}

static bool scales_by_tma(const float *scale, int64_t ld)
{
    return ((uintptr_t)scale | (uintptr_t)(ld * 4)) % 16 == 0;
}

static ridge_status map_scales_a(const ridge_device *device, const gemm_tile *tile, uint32_t mode_b, gemm_args *p)
{
    if (is_flat(tile, mode_b))
        return host_tensor_map(device, &p->map_scale_a, RIDGE_F32, p->scale_a - p->from,
                               p->from + (p->blocks - 1) * p->ld_a + p->m, 1, 0, p->high + 4, 1, 0);
    return host_tensor_map(device, &p->map_scale_a, RIDGE_F32, p->scale_a, p->m, p->blocks, p->ld_a, p->high, 1, 0);
}

/* What the kernel needs besides the tensor maps. */
static gemm_args collect(const ridge_call *call, const gemm_tile *tile)
{
    const ridge_operand *arg = call->arg, *d = &arg[RIDGE_GEMM_FP8_D];
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = call->flags & RIDGE_SCALE_B;
    const int rows = tile->bm * tile->cm, cols = tile->bn * tile->cn;
    gemm_args p = {};

    p.m = (int)call->dim[0];
    p.n = (int)call->dim[1];
    p.blocks = (int)((call->dim[2] + BK - 1) / BK);
    p.items_m = (p.m + rows - 1) / rows;
    p.items_n = (p.n + cols - 1) / cols;
    p.high = (int)high_of(tile, p.m);
    p.slice = p.high / tile->cn;
    p.groups = (int)groups_of(tile, p.m);
    p.scale_a = (const float *)arg[RIDGE_GEMM_FP8_SCALE_A].data;
    p.scale_b = (const float *)arg[RIDGE_GEMM_FP8_SCALE_B].data;
    p.block_a = mode_a == RIDGE_SCALE_BLK128;
    p.ld_a = mode_a == RIDGE_SCALE_TENSOR ? 0 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_A], p.block_a ? p.blocks : p.m);
    p.ld_b = mode_b == RIDGE_SCALE_B_TENSOR
                 ? 0
                 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_B], mode_b == RIDGE_SCALE_B_BLK128 ? p.blocks : p.n);
    p.from = (int)((uintptr_t)p.scale_a % 16 / 4);
    p.scale_tma = mode_a == RIDGE_SCALE_ROW128 &&
                  (is_flat(tile, mode_b) ? p.ld_a * p.blocks < 0x7fffff00 : scales_by_tma(p.scale_a, p.ld_a)) &&
                  (mode_b != RIDGE_SCALE_B_ROW128 || scales_by_tma(p.scale_b, p.ld_b));
    p.dtype = (int)d->dtype;
    p.out = (char *)d->data;
    p.stride = stride_of(d, p.n);
    p.bias = arg[RIDGE_GEMM_FP8_BIAS].data;
    p.bias_f32 = arg[RIDGE_GEMM_FP8_BIAS].dtype == RIDGE_F32;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    /* nothing is added twice; the scales of A begin at a multiple of 16 bytes */
    p.last = p.accumulate || p.m < p.high ? INT_MAX : (p.m - p.high + 3) / 4 * 4;
    p.aligned = ((uintptr_t)d->data | (uintptr_t)(p.stride * (int64_t)ridge_dtype_size(d->dtype))) % 16 == 0;
    return p;
}

enum { MEET = 2048 }; /* blocks of k, 1.2 ms, after which clusters wait for each other: some 7 us */

/* Cuts the shared items, laid end to end, into equal parts; not within NEAR blocks of an item's end. */
static void share(gemm_args *p, int64_t items, int64_t parts)
{
    enum { NEAR = 2 };

    for (int64_t c = 0; c <= parts; c++) {
        const int64_t at = items * p->blocks * c / parts, inside = at % p->blocks;
        const int64_t to = inside < NEAR ? at - inside : p->blocks - inside < NEAR ? at + p->blocks - inside : at;

        p->cut[c].item = (int)(to / p->blocks);
        p->cut[c].block = (int)(to % p->blocks);
    }
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *room,
                           size_t, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const ridge_call *call = &bound->call;

    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B];
    const gemm_tile *tile = tile_of(kernel);
    const uint32_t mode_b = call->flags & RIDGE_SCALE_B;
    const int mode = mode_b == RIDGE_SCALE_B_BLK128   ? SCALE_BLOCK
                     : mode_b == RIDGE_SCALE_B_ROW128 ? SCALE_COLUMN
                                                      : SCALE_LAST;
    const int formats = a->dtype == RIDGE_E5M2   ? WGMMA_E5M2_E4M3
                        : b->dtype == RIDGE_E5M2 ? WGMMA_E4M3_E5M2
                                                 : WGMMA_E4M3_E4M3;
    const int64_t k = call->dim[2], fit = clusters_of(device, tile), items = items_of(tile, problem->dim);
    gemm_args p = collect(call, tile);
    const int stages = tile->mode[mode].ring / ((p.high + tile->bn) * BK);
    const int out = !p.aligned                               ? OUT_ANY
                    : p.dtype == RIDGE_F32                   ? OUT_F32
                    : p.dtype == RIDGE_BF16 && !p.accumulate ? OUT_BF16
                                                             : OUT_ANY;
    ridge_status status;

    status = host_tensor_map(device, &p.a, RIDGE_E4M3, a->data, k, p.m, stride_of(a, k), BK, p.slice, 128);
    if (!status)
        status =
            host_tensor_map_l2(device, &p.b, RIDGE_E4M3, b->data, k, p.n, stride_of(b, k), BK, tile->bn / tile->cm, 128,
                               tile->few ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    if (!status && p.aligned && !p.accumulate && p.dtype != RIDGE_F32)
        status = host_tensor_map(device, &p.d, p.dtype, p.out, p.n, p.m, p.stride, tile->bn % 64 ? 32 : 64, 64,
                                 tile->bn % 64 ? 64 : 128);
    if (!status && p.aligned && !p.accumulate && p.dtype != RIDGE_F32 && tile->few)
        status = host_tensor_map(device, &p.d_last, p.dtype, p.out, p.n, p.m, p.stride, tile->bn % 64 ? 32 : 64,
                                 p.high - 64 * (p.groups - 1), tile->bn % 64 ? 64 : 128);
    if (!status && out == OUT_F32 && mode == SCALE_COLUMN)
        status = host_tensor_map(device, &p.d, p.dtype, p.out, p.n, p.m, p.stride, 32, 64, 128);
    if (!status && p.scale_tma)
        status = map_scales_a(device, tile, mode_b, &p);
    if (!status && p.scale_tma && mode == SCALE_COLUMN)
        status = host_tensor_map(device, &p.map_scale_b, RIDGE_F32, p.scale_b, p.n, p.blocks, p.ld_b, tile->bn, 1, 0);
    if (status)
        return status;
    p.stages = stages < tile->most ? stages : tile->most;
    p.plain = (int)items;
    if (kernel->param[3] && !tile->few && fit < CUTS && (mode != SCALE_COLUMN || p.scale_tma)) {
        p.plain = (int)((items / fit - 1) * fit);
        share(&p, items - p.plain, fit);
        p.partial = (float *)room;
        p.flag = (uint64_t *)((char *)room + (size_t)device->units * tile->wgs * part_bytes(tile));
        p.nonce = new_nonce();
        p.progress = p.flag + device->units * tile->wgs;
        p.every = (MEET + p.blocks - 1) / p.blocks;
    }
    return host_launch_cluster(device, kernel->name, tile->mode[mode].function[out][formats],
                               dim3((unsigned)((items < fit ? items : fit) * tile->cm * tile->cn)), tile->cm * tile->cn,
                               tile->wgs * 128 + 128, tile->mode[mode].memory, &p, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1], k = problem->dim[2];
    const gemm_tile *tile = tile_of(kernel);
    const bool column = (problem->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_ROW128;
    const bool column16 = column && problem->dtype[RIDGE_GEMM_FP8_D] != RIDGE_F32;
    const bool block = tile->mode[SCALE_BLOCK].memory && !tile->mode[SCALE_LAST].memory; /* for no other */

    if (m <= 64)
        return "is for m above 64";
    if (tile->few && block && m > 512)
        return "is for m of 65 to 512";
    if (tile->few && !block && tile->wgs < 3 && m > tile->bm * tile->cm)
        return tile->bm * tile->cm == 128 ? "is for m of 65 to 128" : "is for m of 65 to 256";
    if (column && !tile->mode[SCALE_COLUMN].memory)
        return "is not for scales of b by row and 128 of k";
    if (n == 0 || k == 0)
        return "nothing to multiply";
    if (block && (problem->flags & RIDGE_SCALE_B) != RIDGE_SCALE_B_BLK128)
        return "is for scales of b by 128 x 128";
    if (!tile->mode[SCALE_LAST].memory && !block && !column16)
        return "is for scales of b by row and 128 of k, to 16 bits";
    if (tile->mode[SCALE_LAST].memory && column16)
        return "is not for scales of b by row and 128 of k, to 16 bits";
    if (problem->align < 4 || (problem->packed && k % 16))
        return "TMA needs rows of a and b that begin at multiples of 16 bytes";
    if (m > 0x7fffff00 || n > 0x7fffff00 || k > 0x7fffff00 ||
        (double)((m + 127) / 128) * (double)((n + 127) / 128) > 2e9)
        return "more than 2^31 tiles";
    if (clusters_of(device, tile) < 1 || (tile->cm * tile->cn > 1 && clusters_of(device, tile) >= CUTS))
        return "is for 2 to 161 multiprocessors";
    if (kernel->param[3] && !tile->few && items_of(tile, problem->dim) <= clusters_of(device, tile))
        return "too few tiles to share";
    return NULL;
}

/* Few rows: a block of k takes a time of its own, whatever rows there are (192x64 and 128x64: by their number), and all
 * together not less than the weights at a rate below the memory's, which wide tiles come nearer to (docs/measured.md).
 * us. */
static double few_cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                       double blocks, double rate)
{
    const gemm_tile *tile = tile_of(kernel);
    const double ends = (double)((items_of(tile, problem->dim) - 1) / clusters_of(device, tile) + 1);
    const double rows = 64 * (double)groups_of(tile, problem->dim[0]);
    const double multiply = 2 * BK * rows * tile->bn / (rate * 1e6 / device->units), own = kernel->param[3] * 0.01;
    const double loop = 4 + ends * (1 + blocks * (multiply > own ? multiply : own));
    const double load = 4 + (double)problem->dim[1] * blocks * BK / ((tile->bn > 128 ? 930 : 860) * device->copy_gbps);

    return loop > load ? loop : load;
}

/* Rounds of items at the measured rate of the loop over k, or items shared evenly, which takes 10 us more. Fitted to
 * nine forward shapes, m 4096 and 8192, and six of m 257 to 512. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const gemm_tile *tile = tile_of(kernel);
    const bool column = (problem->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_ROW128;
    const double blocks = (double)((problem->dim[2] + 127) / 128), rate = kernel->param[column ? 2 : 1];
    const int64_t items = items_of(tile, problem->dim), clusters = clusters_of(device, tile);
    const double block = (double)(2 * BK * tile->bm * tile->bn) / (rate * 1e6 / device->units);
    const double item = 0.5 + 0.5 * tile->slices + blocks * block;

    if (tile->few)
        return few_cost(device, kernel, problem, blocks, rate);
    if (kernel->param[3])
        return 14 + item * (double)items / (double)clusters;
    return 4 + item * (double)((items + clusters - 1) / clusters);
}

#define ROW(name, index, rate, slow, share, room)                                                                      \
    {                                                                                                                  \
        "cuda.gemm_fp8.wgmma" name, RIDGE_GEMM_FP8, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90,                                  \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_TYPICAL, 0, {index, rate, slow, share}, why_not, room, cost, launch \
    }

/* param: tile, TFLOP/s of the loop with one fma an element and with a product more, whether clusters share items; few
 * rows: what a block takes at least, in 10 ns. */
static const ridge_kernel rows[] = {ROW("192x128.shared", 0, 1280, 940, 1, workspace),
                                    ROW("192x128", 0, 1280, 940, 0, NULL),
                                    ROW("128x128", 1, 1140, 870, 0, NULL),
                                    ROW("256x128", 2, 1200, 0, 0, NULL),
                                    ROW("192x64", FEW_TILE, 1100, 850, 30, NULL),
                                    ROW("128x64", FEW_TILE + 1, 1100, 850, 25, NULL),
                                    ROW("128x64.down", FEW_TILE + 2, 2000, 0, 27, NULL),
                                    ROW("64x64.down", FEW_TILE + 3, 2000, 0, 17, NULL),
                                    ROW("128x128.few", FEW_TILE + 4, 2000, 0, 38, NULL),
                                    ROW("128x96", SPAN_TILE, 1105, 0, 0, NULL),
                                    ROW("128x160", SPAN_TILE + 1, 1175, 0, 0, NULL),
                                    ROW("192x96.shared", 3, 0, 1020, 1, workspace),
                                    ROW("192x96", 3, 0, 1020, 0, NULL)};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
