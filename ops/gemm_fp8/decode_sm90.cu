/* decode_sm90.cu: gemm_fp8 for m of 1 to 64 on Hopper: every byte of weight once, at the speed of the memory.
 *
 *     D[t, r] = sum over blocks b of 128 of k, ascending, of  sA sB P_b[t, r]
 *
 * The operands are swapped: rows of weights are the 64 rows of a matrix instruction and the tokens, rounded up to 8,
 * 16 or 32, its columns, so few tokens cost nothing extra; more tokens are its rows (decode_tokens_sm90.cuh), so
 * that slices of less than 64 rows cost nothing extra either. The bits are the same. A slice is `high` rows of weights,
 * a multiple of 8 up to 64, such that all CTAs get nearly the same number of rows; the rest of the instruction's rows
 * is rubbish that nobody stores. k is split over a cluster of 1, 2, 4 or 8 CTAs, which walks a run of slices, up to
 * four at a time, two a warpgroup. One thread keeps a ring of weights in flight, one warp a ring of the tokens and
 * their scales; a stage is what one TMA instruction brings, 4 (or 2) blocks of 128 of k: a thread issues one in 100 to
 * 150 ns, so that an instruction a block (4 to 8 KB) would hold a multiprocessor back. When a slice is done, each CTA
 * sends the partial sums that another CTA of the cluster finishes to that CTA's shared memory, 8 rows at a time, and
 * the finisher adds them in ascending k. How k is split follows from n, k and the device, never from m.
 *
 * Barriers: w_full, x_full: a stage has its bytes (and scales). w_empty, x_empty: the warps have finished with it.
 * sums_full[slot]: the partial sums of a slot's slice have come from all others; sums_free[slot]: all finishers of the
 * cluster have read theirs, so the next slice's may be sent (none after the last slice: the receiver may have left).
 *
 * Results of many tokens leave through shared memory and TMA, a warp's 16 tokens in a box.
 *
 * A CTA's first stages of weights are asked into L2 before the previous kernel has ended: that is right whatever that
 * kernel writes, since all writes meet in L2.
 *
 * With RIDGE_WEIGHTS_CONST a CTA begins to load weights before the previous kernel has ended: when the previous CTA
 * leaves the multiprocessor, or beside it where the work is so small that half of the shared memory will do. The next
 * kernel is let in at the start: later, those of its CTAs that find a multiprocessor empty would come in pairs. */
#include "decode_tokens_sm90.cuh"

/* N tokens are the columns of the matrix instruction, or of up to 64 tokens its rows: then a slice's rows of weights,
 * up to H, are its columns. */
template <int N, int H, int MODE, int FORMATS> static __device__ __forceinline__ void stream_body(const stream_args &p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    stream_memory<N> *s = (stream_memory<N> *)shared;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const stream_share a = stream_locate(p);

    if (threadIdx.x == CONSUMERS) {
        ptx_prefetch_map(&p.w);
        stream_prepare<N>(p, s);
    } else if (threadIdx.x == CONSUMERS + 32) {
        ptx_prefetch_map(&p.x);
    }
    ptx_grid_release();
    __syncwarp();
    /* The thread that made the mbarriers goes on at once; the others wait for them. */
    if (warp == CONSUMERS / 32)
        ptx_barrier_arrive(1, THREADS);
    else
        ptx_barrier_sync(1, THREADS);
    /* Without a cluster its barrier would be __syncthreads, at which loaders and consumers would wait for each other.
     */
    if (p.shift)
        ptx_cluster_arrive_relaxed();
    if (warp < CONSUMERS / 32)
        ptx_grid_wait(); /* the loading warps: before their first loads */
    if (warp == CONSUMERS / 32) {
        if (threadIdx.x % 32 == 0)
            stream_load_weights<N>(p, s, a);
    } else if (warp == CONSUMERS / 32 + 1) {
        stream_load_tokens<N, MODE>(p, s, a);
    } else {
        if (p.shift)
            ptx_cluster_wait(); /* the mbarriers of the cluster before anybody sends */
        if constexpr (H > 0)
            tokens_multiply<H, MODE, FORMATS>(p, s, a, warp / 4);
        else
            stream_multiply<N, MODE, FORMATS>(p, s, a, warp / 4);
    }
    /* A CTA leaves when it has got what was sent to it; nobody arrives at it after that. */
#endif
}

template <int N, int MODE, int FORMATS>
static __global__ void __launch_bounds__(THREADS, N >= 32 ? 1 : 2) stream_sm90(const __grid_constant__ stream_args p)
{
    stream_body<N, 0, MODE, FORMATS>(p);
}

template <int H, int MODE, int FORMATS>
static __global__ void __launch_bounds__(THREADS, 1) stream_tokens_sm90(const __grid_constant__ stream_args p)
{
    stream_body<64, H, MODE, FORMATS>(p);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORMATS(kernel, n, mode)                                                                     \
    {                                                                                                   \
        (const void *)kernel<n, mode, WGMMA_E4M3_E4M3>, (const void *)kernel<n, mode, WGMMA_E4M3_E5M2>, \
            (const void *)kernel<n, mode, WGMMA_E5M2_E4M3>                                              \
    }
#define BY_MODE(kernel, n)                                                    \
    {                                                                         \
        BY_FORMATS(kernel, n, SCALE_LAST), BY_FORMATS(kernel, n, SCALE_BLOCK) \
    }

/* [8, 16, 32 tokens, or of 64 slices of up to 32, 48, 64 rows][mode][formats] */
enum { TOKENS_8, TOKENS_16, TOKENS_32, ROWS_32, ROWS_48, ROWS_64, SHAPES };
static const void *const functions[SHAPES][2][3] = {BY_MODE(stream_sm90, 8),         BY_MODE(stream_sm90, 16),
                                                    BY_MODE(stream_sm90, 32),        BY_MODE(stream_tokens_sm90, 32),
                                                    BY_MODE(stream_tokens_sm90, 48), BY_MODE(stream_tokens_sm90, 64)};
static const int fixed[4] = {FIXED(8), FIXED(16), FIXED(32), FIXED(64)};
static const int x_most[4] = {X_MOST(8), X_MOST(16), X_MOST(32), X_MOST(64)};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    status = host_prepare(device, &functions[0][0][0], SHAPES * 2 * 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                          FULL, "gemm_fp8: loading kernels");
    return status ? status
                  : host_prepare(device, &functions[0][0][0], SHAPES * 2 * 3,
                                 cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared,
                                 "gemm_fp8: loading kernels");
}

/* How a matrix of weights is cut: into slices of `high` rows for `clusters` of 1 << shift CTAs, each a part of k. */
typedef struct stream_cut {
    int shift, clusters, high, slices;
    int most;       /* slices of the cluster that has most */
    int64_t blocks; /* of the CTA that has most */
} stream_cut;

/* The smallest split with which a CTA has about 72 rows, or 60 once k is split: the tokens, which every CTA reads for
 * all its k, then cost little. Few weights, of which a CTA's shared memory holds all, are over before that matters:
 * from 48 rows on the exchange costs more. */
static int shift_of(const ridge_device *device, int64_t n, int64_t k)
{
    const int64_t quads = (k + QUAD * BK - 1) / (QUAD * BK);
    const int64_t whole = (n + device->units - 1) / device->units * k <= 128 * 1024 ? 48 : 72; /* rows */
    int shift = 0;

    while (1 << shift < SPLIT_MOST && n << shift < (shift == 0 ? whole : 60) * device->units && 2 << shift <= quads)
        shift++;
    return shift;
}

/* Slices as even as can be. The split is a function of n, k and the device, as the bits must not depend on m. Clusters
 * of more than two do not fill every GPC: an H200 runs 30 of 4 and 15 of 8 at a time. */
static stream_cut cut_of(const ridge_device *device, int64_t n, int64_t k)
{
    stream_cut best = {};
    int64_t rows, least, quads = (k + QUAD * BK - 1) / (QUAD * BK);

    best.shift = shift_of(device, n, k);
    best.clusters = (best.shift > 1 ? device->units * 10 / 11 : device->units) >> best.shift;
    best.clusters = best.clusters ? best.clusters : 1;
    best.blocks = ((quads - 1) / (1 << best.shift) + 1) * QUAD;
    rows = (n + best.clusters - 1) / best.clusters;
    least = (rows + ROWS - 1) / ROWS;
    least = least < GROUPS ? (int64_t)GROUPS : least; /* work for both warpgroups */
    for (int64_t each = least; each <= least + 2; each++) {
        const int64_t high = ((rows + each - 1) / each + 7) / 8 * 8, slices = (n + high - 1) / high;
        const int64_t most = (slices + best.clusters - 1) / best.clusters;

        if (best.high == 0 || most * high < (int64_t)best.most * best.high) {
            best.high = (int)high;
            best.slices = (int)slices;
            best.most = (int)most;
        }
    }
    best.clusters = best.clusters < best.slices ? best.clusters : best.slices;
    return best;
}

/* Which units of 8 rows of a slice each rank of a cluster finishes: two at a time, which are stored together, where
 * there are enough. */
static void share_units(stream_args *p, const stream_cut *cut)
{
    const int split = 1 << cut->shift, units = cut->high / 8, each = units >= 2 * split ? 2 : 1;
    const int parts = (units + each - 1) / each;

    for (int r = 0; r <= split; r++) {
        p->begins[r] = r * parts / split * each < units ? r * parts / split * each : units;
        if (r && p->begins[r] - p->begins[r - 1] > p->most)
            p->most = p->begins[r] - p->begins[r - 1];
    }
}

/* Bytes of weights of the CTA that has most. */
static int64_t bytes_of(const stream_cut *cut)
{
    return cut->blocks * BK * cut->most * cut->high;
}

/* Bytes of weights of a CTA up to which how it starts is a large part of the whole. */
enum { BRIEF = 1000 * 1000 };

/* A start that waits for the grid before, and is a large part of the whole. */
static bool starts_cold(const stream_args *p, const stream_cut *cut)
{
    return !p->settled && bytes_of(cut) <= BRIEF;
}

/* Results of many tokens leave by TMA where all ranks finish as many units; then a box is all of a rank's. */
static void share_out(stream_args *p, const stream_cut *cut, int tokens)
{
    const int split = 1 << cut->shift, units = cut->high / 8;

    if (tokens < 3 || split > 2 || !p->whole || p->begins[1] * split != units)
        return;
    p->leave_units = units / split;
    p->leave_mask = p->leave_units == 8 ? 0x70 : p->leave_units == 4 ? 0x30 : p->leave_units == 2 ? 0x10 : 0;
}

/* Shares out `bytes` of shared memory with p->chunk blocks a stage: sums, and the longest rings that fit. False: they
 * do not. */
static bool lay_out_chunk(stream_args *p, const stream_cut *cut, int tokens, int mode, int bytes)
{
    const int columns = 8 << tokens, x_rows = tokens == 3 ? p->rows : columns, split = 1 << cut->shift,
              slots = cut->most < SLOTS ? cut->most : SLOTS;
    const int turns = (slots + 1) / 2, stage = p->chunk * p->box, x_stage = p->chunk * x_rows * BK;
    const int units = tokens == 3 ? p->most : (cut->high / 8 + split - 1) / split,
              sums = slots * (split - 1) * units * 8 * columns * 4;
    const int more = ROWS * BK - p->box; /* a slice's reads are of 64 rows */
    const int64_t passes = (cut->most + SLOTS - 1) / SLOTS, all = (cut->blocks + p->chunk - 1) / p->chunk * passes;

    /* Few weights that could all be on their way at once: the tokens would come behind them, and scales behind both. So
     * too at a cold start: up to 1.4 us of 17 are lost with four stages instead of two. */
    const bool few = tokens == 3 && all <= 4;

    for (int stages = few || starts_cold(p, cut) ? 2 : W_MOST; stages >= 2; stages--) {
        const int ahead = (stages + turns - 1) / turns + (few && mode == SCALE_BLOCK ? 0 : 1),
                  most = x_most[tokens] / p->chunk;

        if (stages > 2 && stages > all * turns)
            continue;
        p->x_stages = ahead < most ? ahead : most;
        p->x_stages = p->x_stages < all ? p->x_stages : (int)all;
        p->w_stages = stages;
        p->boxes = fixed[tokens] + p->x_stages * x_stage;
        p->sums = p->boxes + GROUPS * stages * stage + more;
        p->leave = (p->sums + sums + PLACE - 1) / PLACE * PLACE;
        p->bytes = p->leave_units ? p->leave + 4 * GROUPS * 16 * 16 * p->leave_units : p->sums + sums;
        if (p->bytes <= bytes)
            return true;
    }
    return false;
}

static bool lay_out(stream_args *p, const stream_cut *cut, int tokens, int mode, int bytes)
{
    p->chunk = CHUNK_MOST;
    if (lay_out_chunk(p, cut, tokens, mode, bytes))
        return true;
    p->chunk = CHUNK_MOST / 2;
    return lay_out_chunk(p, cut, tokens, mode, bytes);
}

static int64_t stride_of(const ridge_operand *x, int64_t packed)
{
    return x->stride ? x->stride : packed;
}

static stream_args collect(const ridge_call *call)
{
    const ridge_operand *arg = call->arg, *d = &arg[RIDGE_GEMM_FP8_D];
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = call->flags & RIDGE_SCALE_B;
    stream_args p = {};

    p.m = (int)call->dim[0];
    p.n = (int)call->dim[1];
    p.blocks = (int)((call->dim[2] + BK - 1) / BK);
    p.scale_x = (const float *)arg[RIDGE_GEMM_FP8_SCALE_A].data;
    p.scale_w = (const float *)arg[RIDGE_GEMM_FP8_SCALE_B].data;
    p.ld_x = mode_a == RIDGE_SCALE_TENSOR ? 0 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_A], p.m);
    p.ld_w = mode_b == RIDGE_SCALE_B_TENSOR
                 ? 0
                 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_B], mode_b == RIDGE_SCALE_B_BLK128 ? p.blocks : p.n);
    p.dtype = (int)d->dtype;
    p.out = (char *)d->data;
    p.stride = stride_of(d, p.n);
    p.bias = arg[RIDGE_GEMM_FP8_BIAS].data;
    p.bias_f32 = arg[RIDGE_GEMM_FP8_BIAS].dtype == RIDGE_F32;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.settled = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    p.whole = d->dtype != RIDGE_F32 && !p.accumulate && p.stride % 8 == 0 && p.n % 8 == 0 && (uintptr_t)p.out % 16 == 0;
    return p;
}

/* All of the shared memory for a CTA, or half of it, so that the next call's CTAs are there when this one ends? */
static int takes_all(const ridge_call *call, const stream_cut *cut)
{
    return bytes_of(cut) > (call->dim[0] > 16 ? 0 : call->flags & RIDGE_WEIGHTS_CONST ? 300 : 700) * 1000;
}

/* The tensor maps of x, of its scales and of w: by lines, or by blocks where a last block is not whole. */
static ridge_status map_all(const ridge_device *device, const ridge_call *call, int tokens, stream_args *p)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B];
    const CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B; /* 256 bytes cost 5 to 10 % */
    const int64_t k = call->dim[2];
    const int rows = tokens == 3 ? p->rows : 8 << tokens;
    ridge_status status;

    if (p->scales_box) { /* boxes begin at multiples of 128 bytes of shared memory */
        status = host_tensor_map_l2(device, &p->tokens_scales, RIDGE_F32, p->scale_x, p->m, p->blocks, p->ld_x,
                                    8 << tokens, p->chunk, 0, promotion);
        if (status)
            return status;
    }
    if (p->leave_units) { /* boxes of a warp's 16 tokens */
        const int width = p->leave_units * 16;

        status = host_tensor_map_l2(device, &p->d, p->dtype, p->out, p->n, p->m, p->stride, width / 2, 16,
                                    p->leave_mask ? width : 0, promotion);
        if (status)
            return status;
    }
    p->lines = k % BK == 0;
    if (p->lines) {
        status = host_tensor_map_lines_l2(device, &p->x, a->data, k, p->m, stride_of(a, k), rows, p->chunk, promotion);
        return status ? status
                      : host_tensor_map_lines_l2(device, &p->w, b->data, k, p->n, stride_of(b, k), p->high, p->chunk,
                                                 promotion);
    }
    status = host_tensor_map_l2(device, &p->x, RIDGE_E4M3, a->data, k, p->m, stride_of(a, k), BK, rows, 128, promotion);
    return status ? status
                  : host_tensor_map_l2(device, &p->w, RIDGE_E4M3, b->data, k, p->n, stride_of(b, k), BK, p->high, 128,
                                       promotion);
}

/* Up to 16 tokens are the columns of the matrix instruction, more than 32 its rows. Between, they are its rows where
 * that leaves it short. */
static int shape_of(int64_t m, const stream_cut *cut)
{
    if (m <= (cut->high <= 48 ? 16 : 32))
        return m <= 8 ? TOKENS_8 : m <= 16 ? TOKENS_16 : TOKENS_32;
    return cut->high <= 32 ? ROWS_32 : cut->high <= 48 ? ROWS_48 : ROWS_64;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_call *call = &bound->call;

    const stream_cut cut = cut_of(device, call->dim[1], call->dim[2]);
    const int shape = shape_of(call->dim[0], &cut), tokens = shape < ROWS_32 ? shape : 3;
    const int mode = (call->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_BLK128 ? SCALE_BLOCK : SCALE_LAST;
    const int first = tokens < 3 ? RIDGE_GEMM_FP8_B : RIDGE_GEMM_FP8_A; /* whose rows are the instruction's */
    const int formats =
        call->arg[first].dtype == RIDGE_E5M2 ? WGMMA_E5M2_E4M3
        : call->arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E5M2 || call->arg[RIDGE_GEMM_FP8_B].dtype == RIDGE_E5M2
            ? WGMMA_E4M3_E5M2
            : WGMMA_E4M3_E4M3;
    stream_args p = collect(call);
    ridge_status status;

    p.shift = cut.shift;
    p.rows = (p.m + 7) / 8 * 8;
    share_units(&p, &cut);
    p.high = cut.high;
    p.slices = cut.slices;
    p.box = cut.high * BK;
    share_out(&p, &cut, tokens);
    if ((takes_all(call, &cut) || !lay_out(&p, &cut, tokens, mode, HALF)) && !lay_out(&p, &cut, tokens, mode, FULL))
        return ridge_fail(RIDGE_ERR_DEVICE, "%s: no room for two stages", kernel->name);
    /* of up to 8 tokens one instruction of a warp brings as many */
    if (mode == SCALE_BLOCK && tokens > 0 && ((uintptr_t)p.scale_x | (uintptr_t)(p.ld_x * 4)) % 16 == 0)
        p.scales_box = p.chunk * (8 << tokens) * 4;
    /* measured: 3 to 7 % less time at 15 MB, none lost up to 84 MB, 1 to 2 % lost from 235 MB on */
    p.ahead = bytes_of(&cut) > BRIEF ? 0 : p.bytes > HALF ? GROUPS : 1;
    /* measured: 1 to 3 % less time, but 5 % more where the ring is half of all */
    p.beyond = p.settled && p.m > 32 && bytes_of(&cut) <= BRIEF && cut.blocks > 4 * p.chunk ? GROUPS : 0;
    status = map_all(device, call, tokens, &p);
    if (status)
        return status;
    return host_launch_cluster(device, kernel->name, functions[shape][mode][formats],
                               dim3((unsigned)(cut.clusters << cut.shift)), 1 << cut.shift, THREADS, (size_t)p.bytes,
                               &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1], k = problem->dim[2];

    if (m < 1 || m > 64)
        return "is for m of 1 to 64";
    if (n == 0 || k == 0)
        return "nothing to multiply";
    if ((problem->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_ROW128)
        return "does not take scales of b by 1x128";
    if (problem->align < 4 || (problem->packed && k % 16))
        return "TMA needs rows of a and b that begin at multiples of 16 bytes";
    if (n > 0x7fffff00 || k > 0x7fffff00)
        return "n or k above 2^31 - 256";
    return NULL;
}

/* The weights of the CTA that has most at its share of the memory's rate, and what a launch and a combination take. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const stream_cut cut = cut_of(device, problem->dim[1], problem->dim[2]);

    return 2.5 + 0.2 * (1 << cut.shift) + (double)bytes_of(&cut) * device->units * 1e-3 / (1.08 * device->copy_gbps);
}

static const ridge_kernel rows[] = {
    {"cuda.gemm_fp8.stream",
     RIDGE_GEMM_FP8,
     RIDGE_ARCH_SM90,
     RIDGE_ARCH_SM90,
     RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_TYPICAL,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_gemm_stream_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
