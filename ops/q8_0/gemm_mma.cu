/* gemm_mma.cu: the Q8_0 products of many tokens (prompts) from planes, by mma.sync on int8 tensor cores, sm_80 up.
 *
 * A CTA computes a tile of weight rows by tokens. The canonical order (src/math/q8_0.h) is eight sums of an element,
 * one a partition, which a tree adds. The kernel therefore goes through k partition by partition: all runs of partition
 * 0, then all of partition 1, and so on. An element so needs one running sum, and the tree at most three sums of
 * earlier partitions (KEEP), which stay in registers or, where the tile is too large for that, in shared memory.
 *
 * A block of 32 columns is one m16n8k32: weights are its 16 rows, tokens its 8 columns. The integer sum starts at
 * 0x4b400000, the bits of 12582912.0f: read as a float, less 12582912, it is exactly the dot. So an element costs three
 * FP32 instructions a block: the product of the two scales, the subtraction, the fma. These bound the kernel: at 128
 * a clock and SM, 32 products of codes an element, an H200 (132 SMs, 1.75 GHz) does at most 630 TOP/s.
 *
 * A stage of the pipeline has two blocks (64 columns, half a run) of every row and token, which cp.async copies to
 * shared memory. One barrier a stage: it orders the copies of all threads before the reads of the next stage, and the
 * reads of the last stage before the copies that replace it. Chunk c of 16 bytes of line r is at c ^ (r / 2 % 4), so
 * that the eight addresses of an 8 x 16-byte matrix (ldmatrix) are in eight different groups of banks. */
#include "cuda/mma.cuh"
#include "gemm.cuh"

enum { STAGE_COLS = 64, STAGE_BLOCKS = STAGE_COLS / RIDGE_Q8_0_BLOCK, CHUNKS = STAGE_COLS / 16 };

/* SPLIT groups of WARPS_M x WARPS_N warps, each with 16 TM rows and 8 TN tokens. SPLIT is 1, or 8: then group p has
 * partition p and a ring of its own. RING stages in shared memory; with SPLIT 1 KEEP_REGS of the sums of earlier
 * partitions in registers. */
template <int SPLIT_, int WARPS_M_, int WARPS_N_, int TM_, int TN_, int RING_, int KEEP_REGS_, int CTAS_>
struct gemm_tile {
    enum {
        SPLIT = SPLIT_,
        WARPS_M = WARPS_M_,
        WARPS_N = WARPS_N_,
        TM = TM_,
        TN = TN_,
        RING = RING_,
        CTAS = CTAS_, /* of an SM */
        GROUP = 32 * WARPS_M * WARPS_N,
        THREADS = GROUP * SPLIT,
        BM = 16 * TM * WARPS_M,
        BN = 8 * TN * WARPS_N,
        ELEMENTS = 4 * TM * TN,
        KEEP_REGS = KEEP_REGS_,
        AHEAD = SPLIT == 1 ? STAGE_BLOCKS : 1, /* where a warp has a partition, there is no register for two */
        KEEP = SPLIT == 1 ? 3 * ELEMENTS : KEEP_REGS,
        /* Of a stage: codes of the weights and of x, scales of the weights [BM][2] and of x [2][BN]. */
        AT_X = BM * STAGE_COLS,
        AT_SCALES = AT_X + BN * STAGE_COLS,
        AT_X_SCALES = AT_SCALES + BM * 2 * STAGE_BLOCKS,
        STAGE_BYTES = AT_X_SCALES + BN * 4 * STAGE_BLOCKS,
        RING_BYTES = RING * STAGE_BYTES,
        SHARED = SPLIT * RING_BYTES + (KEEP - KEEP_REGS) * THREADS * 4,
        /* Of results in the epilogue: lanes write different banks. */
        PITCH = BM + 4,
        PLANE = BN * PITCH
    };
    static_assert(SPLIT * PLANE * 4 <= SHARED && STAGE_BYTES % 128 == 0 && BM <= GROUP, "layout of shared memory");
    static_assert(SPLIT == 1 || (SPLIT + 0 == RIDGE_Q8_0_PARTS + 0 && GROUP == 32), "a warp a partition");
};

/* -------------------------------------------------------------------------------------------- position along k */

/* Stage `half` (64 columns) of partition `part`. */
typedef struct k_pos {
    int half, part;
} k_pos;

/* To the next half of the run, else to the partition's next run, else to the next partition. Loops end by their count
 * of stages. */
static __device__ __forceinline__ void k_advance(k_pos *k, int stages)
{
    if (k->half % 2 == 0 && k->half + 1 < stages) {
        k->half++;
        return;
    }
    k->half = (k->half & ~1) + 2 * RIDGE_Q8_0_PARTS;
    if (k->half >= stages)
        k->half = 2 * ++k->part;
}

/* --------------------------------------------------------------------------------------- global to shared memory */

/* What a thread copies in each stage. Rows and tokens beyond the last one are copies of the last one, which the
 * epilogue does not store. */
template <class T> struct gemm_copy {
    enum { STEP = T::GROUP / CHUNKS, ROWS = (T::BM + STEP - 1) / STEP, TOKENS = (T::BN + STEP - 1) / STEP };
    enum { X_SCALES = (T::BN * STAGE_BLOCKS + T::GROUP - 1) / T::GROUP };
    const uint8_t *row[ROWS], *token[TOKENS], *scale;
    const float *x_scale[X_SCALES];
    uint32_t to; /* of codes, in the stage */
};

template <class T>
static __device__ __forceinline__ gemm_copy<T> gemm_copy_of(const q8_0_gemm_args &a, int tile, int first_token)
{
    const int thread = threadIdx.x % T::GROUP;
    using copy = gemm_copy<T>;
    const int line = thread / CHUNKS, chunk = thread % CHUNKS, last_token = a.p.tokens - 1;
    int64_t row;
    copy c;

#pragma unroll
    for (int i = 0; i < copy::ROWS; i++) {
        const q8_0_weight &m = a.p.weight[gemm_row<T>(a, tile, line + i * copy::STEP, &row)];

        c.row[i] = m.codes + min(row, m.rows - 1) * m.stride + chunk * 16;
    }
#pragma unroll
    for (int i = 0; i < copy::TOKENS; i++)
        c.token[i] =
            (const uint8_t *)a.p.x + min(first_token + line + i * copy::STEP, last_token) * a.p.x_stride + chunk * 16;
    {
        const q8_0_weight &m = a.p.weight[gemm_row<T>(a, tile, thread % T::BM, &row)];

        c.scale = m.scales + min(row, m.rows - 1) * m.scale_stride;
    }
#pragma unroll
    for (int i = 0; i < copy::X_SCALES; i++) {
        const int at = thread + i * T::GROUP;

        c.x_scale[i] = a.p.x_scales + min(first_token + at % T::BN, last_token) * a.p.x_ld + at / T::BN * a.x_step;
    }
    c.to = line * STAGE_COLS + (chunk ^ line / 2 % 4) * 16;
    return c;
}

template <class T>
static __device__ __forceinline__ void gemm_copy_stage(const q8_0_gemm_args &a, const gemm_copy<T> &c, uint32_t stage,
                                                       int half)
{
    using copy = gemm_copy<T>;
    const int64_t column = (int64_t)half * STAGE_COLS;
    const int thread = threadIdx.x % T::GROUP, line = thread / CHUNKS;

#pragma unroll
    for (int i = 0; i < copy::ROWS; i++)
        if (T::BM % copy::STEP == 0 || line + i * copy::STEP < T::BM)
            mma_copy16(stage + c.to + i * copy::STEP * STAGE_COLS, c.row[i] + column, 16);
#pragma unroll
    for (int i = 0; i < copy::TOKENS; i++)
        if (T::BN % copy::STEP == 0 || line + i * copy::STEP < T::BN)
            mma_copy16(stage + T::AT_X + c.to + i * copy::STEP * STAGE_COLS, c.token[i] + column, 16);
    if (T::GROUP == T::BM || thread < T::BM)
        mma_copy4(stage + T::AT_SCALES + thread * 4, c.scale + half * (2 * STAGE_BLOCKS), 4);
#pragma unroll
    for (int i = 0; i < copy::X_SCALES; i++)
        if (T::BN * STAGE_BLOCKS % T::GROUP == 0 || thread + i * T::GROUP < T::BN * STAGE_BLOCKS)
            mma_copy4(stage + T::AT_X_SCALES + (thread + i * T::GROUP) * 4,
                      c.x_scale[i] + (int64_t)half * STAGE_BLOCKS * a.x_step, 4);
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Adds a block to the warp's sums. */
template <class T>
static __device__ __forceinline__ void gemm_block(const uint32_t (*w)[4], const uint32_t (*x)[2], uint32_t scales,
                                                  uint32_t x_scales, float (*acc)[T::TN][4])
{
    uint2 xs[T::TN];

#pragma unroll
    for (int j = 0; j < T::TN; j++)
        xs[j] = ptx_load_shared2(x_scales + j * 32);
#pragma unroll
    for (int i = 0; i < T::TM; i++) {
        const float wd[2] = {ptx_f32_from_f16(ptx_load_shared_half(scales + i * 64)),
                             ptx_f32_from_f16(ptx_load_shared_half(scales + i * 64 + 32))};

#pragma unroll
        for (int j = 0; j < T::TN; j++) {
            int32_t d[4];

            ptx_mma_s8_onto(d, w[i], x[j], 0x4b400000);
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const float s = __fmul_rn(wd[q / 2], __uint_as_float(q % 2 ? xs[j].y : xs[j].x));

                acc[i][j][q] = __fmaf_rn(s, __fadd_rn(__int_as_float(d[q]), -12582912.0f), acc[i][j][q]);
            }
        }
    }
}

/* Adds the two blocks of a stage to the warp's sums. The codes of AHEAD blocks are loaded together, so that the
 * second's pass during the first's products. */
template <class T>
static __device__ __forceinline__ void gemm_multiply(uint32_t stage, int warp_m, int warp_n, float (*acc)[T::TN][4])
{
    const int lane = threadIdx.x % 32, swizzle = lane / 2 % 4;
    const uint32_t rows =
        stage + (warp_m * 16 * T::TM + lane % 16) * STAGE_COLS + ((uint32_t)(lane / 16) ^ swizzle) * 16;
    /* x: matrices of the first and second 16 codes of 8 tokens, then those of the next 8 */
    const uint32_t tokens = stage + T::AT_X + (warp_n * 8 * T::TN + lane % 8 + lane / 16 * 8) * STAGE_COLS +
                            ((uint32_t)(lane / 8 % 2) ^ swizzle) * 16;
    const uint32_t scales = stage + T::AT_SCALES + (warp_m * 16 * T::TM + lane / 4) * 4;
    const uint32_t x_scales = stage + T::AT_X_SCALES + (warp_n * 8 * T::TN + lane % 4 * 2) * 4;

#pragma unroll 1
    for (int first = 0; first < STAGE_BLOCKS; first += T::AHEAD) {
        uint32_t w[T::AHEAD][T::TM][4], x[T::AHEAD][T::TN][2];

#pragma unroll
        for (int b = 0; b < T::AHEAD; b++) {
#pragma unroll
            for (int j = 0; j < T::TN; j += 2)
                ptx_ldmatrix4(x[b][j], (tokens ^ (first + b) * 32) + j * 8 * STAGE_COLS);
#pragma unroll
            for (int i = 0; i < T::TM; i++)
                ptx_ldmatrix4(w[b][i], (rows ^ (first + b) * 32) + i * 16 * STAGE_COLS);
        }
#pragma unroll
        for (int b = 0; b < T::AHEAD; b++)
            gemm_block<T>(w[b], x[b], scales + (first + b) * 2, x_scales + (first + b) * T::BN * 4, acc);
    }
}

/* Stages of partition `part`: two a run, of the last run perhaps one. */
static __device__ __forceinline__ int gemm_stages_of(int stages, int part)
{
    const int runs = ((stages + 1) / 2 - part + RIDGE_Q8_0_PARTS - 1) / RIDGE_Q8_0_PARTS;

    return max(0, 2 * runs - (stages % 2 && stages / 2 % RIDGE_Q8_0_PARTS == part));
}

template <class T>
static __global__ void __launch_bounds__(T::THREADS, T::CTAS) q8_0_gemm(const __grid_constant__ q8_0_gemm_args a)
{
    extern __shared__ __align__(128) char memory[];
    const int tile = (int)(blockIdx.x / (unsigned)a.token_tiles);
    const int first_token = (int)(blockIdx.x % (unsigned)a.token_tiles) * T::BN;
    const int group = T::SPLIT == 1 ? 0 : threadIdx.x / T::GROUP, warp = threadIdx.x % T::GROUP / 32;
    const int warp_m = warp % T::WARPS_M, warp_n = warp / T::WARPS_M;
    const int stages = T::SPLIT == 1 ? a.stages : gemm_stages_of(a.stages, group);
    const uint32_t ring = ptx_shared(memory) + group * T::RING_BYTES, end = ring + T::RING_BYTES;
    uint32_t slot = ring, free_slot = ring;
    k_pos to_copy = {2 * group, group}, k = to_copy;
    float acc[T::TM][T::TN][4];
    gemm_kept<T> kept;
    int part = 0;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    const gemm_copy<T> copy = gemm_copy_of<T>(a, tile, first_token);

    kept.shared = ptx_shared(memory) + T::RING_BYTES + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        (&acc[0][0][0])[i] = 0.0f;
    for (int s = 0; s < T::RING - 1; s++) {
        if (s < stages)
            gemm_copy_stage<T>(a, copy, free_slot, to_copy.half);
        mma_copy_commit();
        k_advance(&to_copy, a.stages);
        free_slot += T::STAGE_BYTES;
    }
    for (int s = 0; s < stages; s++) {
        mma_copy_wait_for<T::RING - 2>();
        /* orders the group's copies before its reads of this stage, its last reads before the next copies */
        if (T::SPLIT == 1)
            __syncthreads();
        else
            __syncwarp();
        gemm_multiply<T>(slot, warp_m, warp_n, acc);
        if (s + T::RING - 1 < stages) { /* behind the loads of the products, which would wait for it */
            gemm_copy_stage<T>(a, copy, free_slot, to_copy.half);
            k_advance(&to_copy, a.stages);
        }
        mma_copy_commit();
        slot = slot + T::STAGE_BYTES == end ? ring : slot + T::STAGE_BYTES;
        free_slot = free_slot + T::STAGE_BYTES == end ? ring : free_slot + T::STAGE_BYTES;
        if (T::SPLIT == 1) {
            k_advance(&k, a.stages);
            if (k.part != part)
                gemm_fold<T>(&kept, part++, &acc[0][0][0]);
        }
    }
    for (; T::SPLIT == 1 && part < RIDGE_Q8_0_PARTS; part++) /* partitions without a block */
        gemm_fold<T>(&kept, part, &acc[0][0][0]);
    gemm_store<T>(a, tile, first_token, group, warp_m, warp_n, (float *)memory, acc);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* Split, warps, tiles of a warp, stages, kept sums in registers, CTAs of an SM. */
typedef gemm_tile<1, 2, 4, 4, 4, 4, 36, 1> tile_128x128; /* 216 KB of shared memory: sm_90, sm_100 */
typedef gemm_tile<1, 4, 2, 2, 4, 4, 80, 1> tile_128x64;
typedef gemm_tile<1, 2, 2, 2, 2, 4, 48, 3> tile_64x32;
typedef gemm_tile<8, 1, 1, 2, 4, 3, 4, 2> tile_32x32;

typedef struct gemm_variant {
    const void *function;
    int bm, bn, threads, shared, ctas;
    double stage_us; /* a stage of a CTA on an H200, with as many CTAs on the SM as it takes */
} gemm_variant;

#define VARIANT(tile, us)                                                                              \
    {                                                                                                  \
        (const void *)q8_0_gemm<tile>, tile::BM, tile::BN, tile::THREADS, tile::SHARED, tile::CTAS, us \
    }
static const gemm_variant variants[] = {VARIANT(tile_128x128, 1.42), VARIANT(tile_128x64, 0.80),
                                        VARIANT(tile_64x32, 0.76), VARIANT(tile_32x32, 0.20)};
enum { VARIANTS = (int)(sizeof variants / sizeof variants[0]) };

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < VARIANTS && !status; i++)
        if (variants[i].shared <= host_max_shared(device))
            status = host_prepare(device, &variants[i].function, 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  variants[i].shared, "q8_0_matmul: loading kernels");
    return status;
}

/* Rows of a tile that are rows of the result. */
static int64_t result_rows(const gemm_variant *v, uint32_t op)
{
    return op == RIDGE_Q8_0_GATE_UP_SWIGLU ? v->bm / 2 : v->bm;
}

static ridge_status launch_variant(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                   void *workspace, size_t size, void *stream, const gemm_variant *v)
{
    const ridge_call *call = &bound->call;
    const int64_t tile_rows = result_rows(v, call->op);
    q8_0_gemm_args a = {};
    ridge_status status;

    a.p = q8_0_collect(call);
    if (!q8_0_scales_aligned(&a.p, 4))
        return q8_0_launch_dp4a(device, kernel, bound, workspace, size, stream);
    a.gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    a.tiles[0] = (int)ridge_ceil_div(a.p.weight[0].rows, tile_rows);
    a.tiles[1] = a.gate_up ? 0 : (int)ridge_ceil_div(a.p.weight[1].rows, tile_rows);
    a.token_tiles = (int)ridge_ceil_div(a.p.tokens, v->bn);
    a.stages = (int)(a.p.blocks / STAGE_BLOCKS);
    if (a.tiles[0] + a.tiles[1] == 0)
        return RIDGE_OK;
    status = q8_0_quantise_by_block(device, kernel, call, workspace, stream, false, &a.p, &a.x_step);
    if (status)
        return status;
    return host_launch_shared(device, kernel->name, v->function,
                              dim3((unsigned)((a.tiles[0] + a.tiles[1]) * (int64_t)a.token_tiles)), v->threads,
                              (size_t)v->shared, &a, stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    return launch_variant(device, kernel, bound, workspace, size, stream, &variants[kernel->param[0]]);
}

ridge_status q8_0_launch_gemm(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                              void *workspace, size_t size, void *stream)
{
    return launch_variant(device, kernel, bound, workspace, size, stream, &variants[1]);
}

static int64_t tiles_of(const gemm_variant *v, const ridge_problem *problem)
{
    const int64_t tile_rows = result_rows(v, problem->op);
    int64_t tiles = ridge_ceil_div(problem->dim[2], tile_rows);

    if (problem->op == RIDGE_Q8_0_PAIR)
        tiles += ridge_ceil_div(problem->dim[3], tile_rows);
    return tiles * ridge_ceil_div(problem->dim[0], v->bn);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const gemm_variant *v = &variants[kernel->param[0]];

    if (problem->dim[0] == 0 || problem->dim[1] == 0)
        return "nothing to multiply";
    if (problem->dtype[2] == RIDGE_U8)
        return "weights are in blocks: planes only";
    if (problem->dim[1] % STAGE_COLS)
        return "needs cols that are a multiple of 64";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (v->shared > host_max_shared(device))
        return "needs more shared memory than a CTA may have here";
    if (problem->dim[1] > 0x3fffff00 || problem->dim[2] > 0x3fffff00 || problem->dim[3] > 0x3fffff00 ||
        tiles_of(v, problem) > 0x7fffffff)
        return "more than 2^30 rows or columns, or 2^31 tiles";
    return NULL;
}

/* Microseconds on an H200, by whole waves of CTAs. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const gemm_variant *v = &variants[kernel->param[0]];
    const int64_t waves = ridge_ceil_div(tiles_of(v, problem), (int64_t)device->units * v->ctas);

    const double products =
        (double)waves * (2 + v->stage_us * (double)problem->dim[1] / STAGE_COLS) * 1.98 / device->clock_ghz;
    const double load = q8_0_bytes(problem) * 1e-3 / device->copy_gbps;

    return 5 + (problem->dtype[0] == RIDGE_I8 ? 0 : 3) + (products > load ? products : load);
}

#define ROW(op_name, op_id, name, variant)                                                                       \
    {                                                                                                            \
        "cuda." op_name ".gemm" name, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, Q8_0_CONTRACT, 0, {variant}, \
            why_not, q8_0_gemm_workspace, cost, launch                                                           \
    }
#define ROWS(op_name, op_id)                                                                              \
    ROW(op_name, op_id, "128x128", 0), ROW(op_name, op_id, "128x64", 1), ROW(op_name, op_id, "64x32", 2), \
        ROW(op_name, op_id, "32x32", 3)

/* param: index of variants. */
static const ridge_kernel rows[] = {
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROWS("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_gemm = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
