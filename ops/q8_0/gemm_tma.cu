/* gemm_tma.cu: the Q8_0 products of many tokens by TMA and mma.sync, sm_90 up: the kernel of gemm_mma.cu with tiles of
 * 128 x 128, whose stages TMA brings, so that the warps issue no copies and meet at no barrier.
 *
 * A stage is a run: 4 blocks, 128 columns of 128 weight rows and 128 tokens, with their scales; the ring has two.
 *     full[s]   the bytes of stage s have arrived: orders TMA's writes before the warps' reads
 *     empty[s]  an arrival a warp: its reads of stage s come before TMA's next writes
 * Warp 0 refills a stage in the middle of the next one, when the other warps have long released it. TMA swizzles lines
 * of 128 bytes: chunk c of 16 bytes of line r is at c ^ (r % 8). Outside of the matrices it fills with zeros: blocks of
 * zero codes and zero scales, which change no bit. The fragments of a block are loaded during the products of the block
 * before it. Most of the sums of earlier partitions are in shared memory. */
#include "cuda/sm90/pipeline.cuh"
#include "gemm.cuh"

enum {
    RUN_COLS = RIDGE_Q8_0_RUN * RIDGE_Q8_0_BLOCK,
    BOX_ROWS = 32,
    SCALE_BOX = 8 /* TMA's least: 16 bytes */
};

typedef struct gemm_tma_tile {
    enum {
        SPLIT = 1,
        WARPS_M = 2,
        WARPS_N = 4,
        TM = 4,
        TN = 4,
        THREADS = 256,
        BM = 128,
        BN = 128,
        ELEMENTS = 64,
        KEEP_REGS = 38,
        KEEP = 3 * ELEMENTS,
        RING = 2,
        /* Of a stage: codes of the weights and of x, scales of the weights [BM][SCALE_BOX] and of x [4][BN]. */
        AT_X = BM * RUN_COLS,
        AT_SCALES = AT_X + BN * RUN_COLS,
        AT_X_SCALES = AT_SCALES + BM * 2 * SCALE_BOX,
        STAGE_BYTES = AT_X_SCALES + BN * 4 * RIDGE_Q8_0_RUN,
        RING_BYTES = RING * STAGE_BYTES,
        AT_BARS = RING_BYTES + (KEEP - KEEP_REGS) * THREADS * 4,
        SHARED = AT_BARS + 8 * 2 * RING,
        PITCH = BM + 4,
        PLANE = BN * PITCH
    };
} gemm_tma_tile;

typedef struct q8_0_gemm_tma_args {
    CUtensorMap codes[2], scales[2], x, x_scales;
    int runs;
    q8_0_gemm_args g;
} q8_0_gemm_tma_args;

#if __CUDA_ARCH__ >= 900
typedef gemm_tma_tile T;

/* Fragments of a block. */
typedef struct gemm_frags {
    uint32_t w[T::TM][4], x[T::TN][2];
} gemm_frags;

/* rows, tokens: where this lane's addresses of block 0 begin. */
static __device__ __forceinline__ void load_frags(gemm_frags *f, uint32_t rows, uint32_t tokens, int b)
{
#pragma unroll
    for (int j = 0; j < T::TN; j += 2)
        ptx_ldmatrix4(f->x[j], (tokens ^ b * 32) + j * 8 * RUN_COLS);
#pragma unroll
    for (int i = 0; i < T::TM; i++)
        ptx_ldmatrix4(f->w[i], (rows ^ b * 32) + i * 16 * RUN_COLS);
}

/* One block; scales, x_scales: of this lane's first row and token. */
static __device__ __forceinline__ void multiply(const gemm_frags &f, uint32_t scales, uint32_t x_scales,
                                                float (*acc)[T::TN][4])
{
    uint2 xs[T::TN];

#pragma unroll
    for (int j = 0; j < T::TN; j++)
        xs[j] = ptx_load_shared2(x_scales + j * 32);
#pragma unroll
    for (int i = 0; i < T::TM; i++) {
        const float wd[2] = {ptx_f32_from_f16(ptx_load_shared_half(scales + i * 32 * SCALE_BOX)),
                             ptx_f32_from_f16(ptx_load_shared_half(scales + (i * 32 + 16) * SCALE_BOX))};

#pragma unroll
        for (int j = 0; j < T::TN; j++) {
            int32_t d[4];

            ptx_mma_s8_onto(d, f.w[i], f.x[j], 0x4b400000);
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float s = __fmul_rn(wd[q / 2], __uint_as_float(q % 2 ? xs[j].y : xs[j].x));

                acc[i][j][q] = __fmaf_rn(s, __fadd_rn(__int_as_float(d[q]), -12582912.0f), acc[i][j][q]);
            }
        }
    }
}

/* By one thread: run `run` into the stage. TMA wants inner coordinates at multiples of 16 bytes (else the GPU reports
 * an illegal instruction): scales come from the even run on. */
static __device__ __forceinline__ void load_stage(const q8_0_gemm_tma_args &a, int tile, int first_token, int run,
                                                  uint32_t stage, uint32_t full)
{
    ptx_mbarrier_expect(full, T::STAGE_BYTES);
#pragma unroll
    for (int i = 0; i < T::BM / BOX_ROWS; i++) {
        int64_t row;
        const int which = gemm_row<T>(a.g, tile, i * BOX_ROWS, &row);

        ptx_tma_load_2d(stage + i * BOX_ROWS * RUN_COLS, &a.codes[which], run * RUN_COLS, (int)row, full);
        ptx_tma_load_2d(stage + T::AT_SCALES + i * BOX_ROWS * 2 * SCALE_BOX, &a.scales[which],
                        (run & ~1) * RIDGE_Q8_0_RUN, (int)row, full);
    }
    ptx_tma_load_2d(stage + T::AT_X, &a.x, run * RUN_COLS, first_token, full);
    ptx_tma_load_2d(stage + T::AT_X_SCALES, &a.x_scales, first_token, run * RIDGE_Q8_0_RUN, full);
}

/* The next run of the partition, or the first of the next one. */
static __device__ __forceinline__ void next_run(int *run, int *part, int runs)
{
    *run += RIDGE_Q8_0_PARTS;
    if (*run >= runs)
        *run = ++*part;
}
#endif

static __global__ void __launch_bounds__(gemm_tma_tile::THREADS, 1)
    q8_0_gemm_tma(const __grid_constant__ q8_0_gemm_tma_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char memory[];
    const int tile = (int)(blockIdx.x / (unsigned)a.g.token_tiles);
    const int first_token = (int)(blockIdx.x % (unsigned)a.g.token_tiles) * T::BN;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % T::WARPS_M, warp_n = warp / T::WARPS_M;
    const uint32_t ring = ptx_shared(memory), full = ring + T::AT_BARS, empty = full + 8 * T::RING;
    const uint32_t rows = (warp_m * 16 * T::TM + lane % 16) * RUN_COLS + (lane / 16 ^ lane % 8) * 16;
    const uint32_t tokens =
        T::AT_X + (warp_n * 8 * T::TN + lane % 8 + lane / 16 * 8) * RUN_COLS + (lane / 8 % 2 ^ lane % 8) * 16;
    const uint32_t scales = T::AT_SCALES + (warp_m * 16 * T::TM + lane / 4) * 2 * SCALE_BOX;
    const uint32_t x_scales = T::AT_X_SCALES + (warp_n * 8 * T::TN + lane % 4 * 2) * 4;
    int load_run = 0, load_part = 0, run = 0, part = 0, folded = 0;
    float acc[T::TM][T::TN][4];
    gemm_kept<T> kept;

    kept.shared = (float *)(memory + T::RING_BYTES) + threadIdx.x;
    if (threadIdx.x == 0) {
        pipeline_init(full, empty, T::RING, 1, T::THREADS / 32);
        ptx_mbarrier_fence_init();
    }
    __syncthreads(); /* orders the initialisation before any use */
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (warp == 0)
        for (int s = 0; s < T::RING && s < a.runs; s++) {
            if (ptx_elect())
                load_stage(a, tile, first_token, load_run, ring + s * T::STAGE_BYTES, full + s * 8);
            next_run(&load_run, &load_part, a.runs);
        }
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        (&acc[0][0][0])[i] = 0.0f;
    for (int s = 0; s < a.runs; s++) {
        const uint32_t slot = s % 2, other = slot ^ 1, stage = ring + slot * T::STAGE_BYTES;
        gemm_frags f, g;

        ptx_mbarrier_wait(full + slot * 8, s / 2 & 1);
        load_frags(&f, stage + rows, stage + tokens, 0);
#pragma unroll 1
        for (int b = 0; b < RIDGE_Q8_0_RUN; b += 2) {
            const uint32_t wd = stage + scales + (run % 2 * RIDGE_Q8_0_RUN + b) * 2;
            const uint32_t xs = stage + x_scales + b * T::BN * 4;

            load_frags(&g, stage + rows, stage + tokens, b + 1);
            multiply(f, wd, xs, acc);
            load_frags(&f, stage + rows, stage + tokens, b + 2 & 3); /* the last one is not used */
            multiply(g, wd + 2, xs + T::BN * 4, acc);
            if (b == 0 && warp == 0 && s && s + 1 < a.runs) {
                ptx_mbarrier_wait(empty + other * 8, (s - 1) / 2 & 1);
                if (ptx_elect())
                    load_stage(a, tile, first_token, load_run, ring + other * T::STAGE_BYTES, full + other * 8);
                next_run(&load_run, &load_part, a.runs);
            }
        }
        __syncwarp(); /* orders the warp's reads before the release */
        if (lane == 0)
            pipeline_release(empty, slot);
        next_run(&run, &part, a.runs);
        if (part != folded)
            gemm_fold<T>(&kept, folded++, &acc[0][0][0]);
    }
    for (; folded < RIDGE_Q8_0_PARTS; folded++) /* partitions without a block */
        gemm_fold<T>(&kept, folded, &acc[0][0][0]);
    gemm_store<T>(a.g, tile, first_token, 0, warp_m, warp_n, (float *)memory, acc);
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[1] = {(const void *)q8_0_gemm_tma};

static ridge_status prepare(const ridge_device *device)
{
    if (gemm_tma_tile::SHARED > host_max_shared(device))
        return RIDGE_OK;
    return host_prepare(device, functions, 1, cudaFuncAttributeMaxDynamicSharedMemorySize, gemm_tma_tile::SHARED,
                        "q8_0_matmul: loading kernels");
}

static int64_t tile_rows(uint32_t op)
{
    return op == RIDGE_Q8_0_GATE_UP_SWIGLU ? gemm_tma_tile::BM / 2 : gemm_tma_tile::BM;
}

static ridge_status make_maps(const ridge_device *device, q8_0_gemm_tma_args *a)
{
    const q8_0_matmul_args *p = &a->g.p;
    const int64_t cols = p->blocks * RIDGE_Q8_0_BLOCK;
    ridge_status status =
        host_tensor_map(device, &a->x, RIDGE_I8, p->x, cols, p->tokens, p->x_stride, RUN_COLS, gemm_tma_tile::BN, 128);

    if (!status)
        status = host_tensor_map(device, &a->x_scales, RIDGE_F32, p->x_scales, p->tokens, p->blocks, a->g.x_step,
                                 gemm_tma_tile::BN, RIDGE_Q8_0_RUN, 0);
    for (int i = 0; i < 2 && !status; i++) {
        const q8_0_weight *m = &p->weight[i];

        if (m->rows == 0)
            continue;
        status = host_tensor_map(device, &a->codes[i], RIDGE_I8, m->codes, cols, m->rows, m->stride, RUN_COLS, BOX_ROWS,
                                 128);
        if (!status)
            status = host_tensor_map(device, &a->scales[i], RIDGE_F16, m->scales, p->blocks, m->rows,
                                     m->scale_stride / 2, SCALE_BOX, BOX_ROWS, 0);
    }
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    const ridge_call *call = &bound->call;
    const int64_t height = tile_rows(call->op);
    q8_0_gemm_tma_args a = {};
    ridge_status status;

    a.g.p = q8_0_collect(call);
    if (!q8_0_scales_aligned(&a.g.p, 16)) /* not part of a problem */
        return q8_0_launch_gemm(device, kernel, bound, workspace, size, stream);
    a.g.gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    a.g.tiles[0] = (int)ridge_ceil_div(a.g.p.weight[0].rows, height);
    a.g.tiles[1] = a.g.gate_up ? 0 : (int)ridge_ceil_div(a.g.p.weight[1].rows, height);
    a.g.token_tiles = (int)ridge_ceil_div(a.g.p.tokens, gemm_tma_tile::BN);
    a.runs = (int)ridge_ceil_div(a.g.p.blocks, RIDGE_Q8_0_RUN);
    if (a.g.tiles[0] + a.g.tiles[1] == 0)
        return RIDGE_OK;
    status = q8_0_quantise_by_block(device, kernel, call, workspace, stream, &a.g.p, &a.g.x_step);
    if (!status)
        status = make_maps(device, &a);
    if (status)
        return status;
    return host_launch_shared(device, kernel->name, functions[0],
                              dim3((unsigned)((a.g.tiles[0] + a.g.tiles[1]) * (int64_t)a.g.token_tiles)),
                              gemm_tma_tile::THREADS, gemm_tma_tile::SHARED, &a, stream);
}

static int64_t tiles_of(const ridge_problem *problem)
{
    const int64_t height = tile_rows(problem->op);
    int64_t tiles = ridge_ceil_div(problem->dim[2], height);

    if (problem->op == RIDGE_Q8_0_PAIR)
        tiles += ridge_ceil_div(problem->dim[3], height);
    return tiles * ridge_ceil_div(problem->dim[0], gemm_tma_tile::BN);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    if (gemm_tma_tile::SHARED > host_max_shared(device))
        return "needs more shared memory than a CTA may have here";
    if (problem->dim[0] == 0 || problem->dim[1] == 0)
        return "nothing to multiply";
    if (problem->dtype[2] == RIDGE_U8)
        return "weights are in blocks: planes only";
    if (problem->dim[1] % 256)
        return "TMA needs cols that are a multiple of 256";
    if (problem->align < 4)
        return "TMA needs rows that begin at multiples of 16 bytes";
    if (problem->dim[1] > 0x3fffff00 || problem->dim[2] > 0x3fffff00 || problem->dim[3] > 0x3fffff00 ||
        tiles_of(problem) > 0x7fffffff)
        return "more than 2^30 rows or columns, or 2^31 tiles";
    return NULL;
}

/* Microseconds, by whole waves of CTAs. No GPU has timed this kernel yet: dearer than gemm_mma.cu's of the same tile,
 * so that it is not picked. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t waves = ridge_ceil_div(tiles_of(problem), (int64_t)device->units);

    return 5 + (problem->dtype[0] == RIDGE_I8 ? 1 : 3) +
           (double)waves * (2 + 4.0 * (double)problem->dim[1] / RUN_COLS) * 1.98 / device->clock_ghz;
}

#define ROW(op_name, op_id)                                                                                       \
    {                                                                                                             \
        "cuda." op_name ".gemm_tma", op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_CUDA_LAST, Q8_0_CONTRACT, 0, {}, why_not, \
            q8_0_gemm_workspace, cost, launch                                                                     \
    }

static const ridge_kernel rows[] = {
    ROW("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROW("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROW("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROW("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_gemm_tma = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
