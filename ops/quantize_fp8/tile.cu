/* tile.cu: quantize_fp8 (ROW128, BLK128), quantize_fp8_dual and swiglu_quantize on CUDA: the kernel around a tile
 * (tile.cuh), its instances and the kernel rows. Takes any alignment, layout and option, on any architecture. One block
 * of 256 threads quantises one tile of 128 x 128 elements, which it loads straight into registers. Moves 2 bytes in and
 * 2 out an element for bf16 dual. Leaves out: one scale for a row or for the tensor (whole.cu). */
#include "tile.cuh"

/* Rows of tiles in a bundle: blocks go down a bundle's column of tiles before they go to its next column. A bundle of
 * one row is faster where a block prefetches the tile of a later block. */
#define BUNDLE(col, source) ((source) == FROM_SWIGLU || (col) == QUANTIZE_ABSENT ? 4u : 1u)

/* Prefetches half of a tile into L2, the first 64 bytes of each line. Measured on an H200 only: all of the tile, or a
 * longer distance, makes everything slower. */
template <int DTYPE, int SOURCE>
static __device__ __forceinline__ void tile_prefetch(const quantize_args &p, uint32_t tile)
{
#if __CUDA_ARCH__ == 900
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2, LINE = 128;
    const int64_t row = (int64_t)(tile / p.across) * 128 + threadIdx.x / 2, col = (int64_t)(tile % p.across) * 128;
    const int half = threadIdx.x & 1; /* of a row, or gate and up */
    const char *from;

    if (row >= p.rows || col + 128 > p.cols)
        return;
    from = SOURCE == FROM_X ? p.x + (row * p.stride + col + half * 64) * SIZE
           : half           ? p.up + (row * p.up_stride + col) * SIZE
                            : p.x + (row * p.stride + col) * SIZE;
#pragma unroll
    for (int at = 0; at < (SOURCE == FROM_X ? 64 : 128) * SIZE; at += LINE)
        ptx_prefetch_l2(from + at);
#endif
}

/* Blocks that a multiprocessor holds: three where the registers suffice. */
#define BLOCKS(dtype, col, source) ((dtype) != RIDGE_F32 && (source) == FROM_X && (col) == QUANTIZE_ABSENT ? 3 : 2)

/* The template parameters are what decides the registers and the loops over them: the words of an element (DTYPE), what
 * lies in registers besides the tile (SOURCE), and which scales go through shared memory (ROW, COL). The fp8 format is
 * an argument, and with FROM_SWIGLU so are the forms: a tile takes one uniform branch for each. */
template <int DTYPE, int ROW, int COL, int SOURCE>
static __global__ void __launch_bounds__(TILE_THREADS,
                                         SOURCE == FROM_SILU ? 2 : TILE_BLOCKS(BLOCKS(DTYPE, COL, SOURCE)))
    quantize_tile(const __grid_constant__ quantize_args p)
{
    constexpr int W = QUANTIZE_WORDS(DTYPE), TOGETHER = SOURCE == FROM_X ? TILE_ROWS : DTYPE == RIDGE_F32 ? 1 : 4;
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2;
    constexpr uint32_t DEEP = BUNDLE(COL, SOURCE);
    constexpr bool SUMS = SOURCE == FROM_X && COL != QUANTIZE_ABSENT;
    __shared__ __align__(16) tile_memory m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t bundle = blockIdx.x / (DEEP * p.across), index = blockIdx.x % (DEEP * p.across);
    const uint32_t down = min(DEEP, (uint32_t)((p.rows + 127) / 128) - bundle * DEEP);
    const int tr = (int)(bundle * DEEP + index % down), tc = (int)(index / down);
    const int row = tr * 128 + warp * 16 + lane / 16 * 8, col = tc * 128 + (lane & 15) * 8;
    uint32_t raw[TILE_ROWS][W];

    if (!TILE_HAS(SOURCE))
        return;
    if (COL == QUANTIZE_ABSENT)
        quantize_wait();
    else
        ptx_grid_dependency_wait();
    if constexpr (SOURCE != FROM_SWIGLU) {
        if (p.whole && tr * 128 + 128 <= p.rows && tc * 128 + 128 <= p.cols) {
            const char *from = p.x + (row * p.stride + col) * SIZE, *with = p.up + (row * p.up_stride + col) * SIZE;
            uint32_t up[SOURCE == FROM_SILU ? TILE_ROWS : 1][W];

#pragma unroll
            for (int i = 0; i < TILE_ROWS; i++, from += p.stride * SIZE, with += p.up_stride * SIZE) {
                quantize_load<DTYPE>(from, 8, true, raw[i]);
                if constexpr (SOURCE == FROM_SILU)
                    quantize_load<DTYPE>(with, 8, true, up[i]);
            }
            if (COL != QUANTIZE_ABSENT) /* memory would idle while the few blocks compute */
                tile_prefetch<DTYPE, SOURCE>(p, blockIdx.x + p.ahead);
            ptx_launch_dependents(); /* it takes time: after the loads are issued */
            if constexpr (SOURCE == FROM_SILU)
                tile_silu<DTYPE, false>(p, row, col, raw, up);
            tile_finish<DTYPE, ROW, COL, SUMS>(p, m, raw, tr, tc, true);
            return;
        }
    }
#pragma unroll
    for (int first = 0; first < TILE_ROWS; first += TOGETHER) {
        uint32_t up[TOGETHER][W];

#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            tile_load_row<DTYPE, SOURCE>(p, row + first + i, col, row + first + i < p.rows ? p.cols - col : 0,
                                         raw[first + i], up[i]);
        if (SOURCE != FROM_X)
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                tile_swiglu<DTYPE, SOURCE>(p, row + first + i < p.rows ? row + first + i : 0,
                                           row + first + i < p.rows ? p.cols - col : 0, raw[first + i], up[i]);
    }
    ptx_launch_dependents();
    if constexpr (SOURCE != FROM_SWIGLU)
        tile_finish<DTYPE, ROW, COL, SUMS>(p, m, raw, tr, tc, false);
    else if ((p.flags & RIDGE_DUAL) == RIDGE_DUAL_ROW_ROW)
        tile_finish<DTYPE, QUANTIZE_ROW128, QUANTIZE_ROW128, false>(p, m, raw, tr, tc, false);
    else if ((p.flags & RIDGE_DUAL) == RIDGE_DUAL_ROW_BLK)
        tile_finish<DTYPE, QUANTIZE_ROW128, QUANTIZE_BLK128, false>(p, m, raw, tr, tc, false);
    else
        tile_finish<DTYPE, QUANTIZE_BLK128, QUANTIZE_BLK128, false>(p, m, raw, tr, tc, false);
}

typedef struct matrices_args {
    quantize_args q;
    uint32_t rows, tiles; /* of a matrix, and its tiles of 128 rows */
} matrices_args;

/* The same for several matrices one below another, each of which begins anew. */
template <int DTYPE, int ROW, int COL>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS(2))
    quantize_matrices(const __grid_constant__ matrices_args p)
{
    __shared__ __align__(16) tile_memory m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tr = (int)(blockIdx.x / p.q.across), tc = (int)(blockIdx.x % p.q.across);
    const int matrix = tr / (int)p.tiles, in = tr % (int)p.tiles, rows = min(128, (int)p.rows - in * 128);
    const int mine = warp * 16 + lane / 16 * 8, col = tc * 128 + (lane & 15) * 8;
    const int64_t first = (int64_t)matrix * p.rows + in * 128;
    const bool whole = p.q.whole && rows == 128 && tc * 128 + 128 <= p.q.cols;
    quantize_args q = p.q;
    uint32_t raw[TILE_ROWS][QUANTIZE_WORDS(DTYPE)];

    ptx_grid_dependency_wait();
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++)
        tile_load_row<DTYPE, FROM_X>(q, first + mine + i, col, mine + i < rows ? q.cols - col : 0, raw[i], raw[i]);
    if (whole && p.rows % 128 == 0)
        tile_prefetch<DTYPE, FROM_X>(q, blockIdx.x + q.ahead);
    ptx_launch_dependents();
    /* As if row tr * 128 of both forms were the tile's first. */
    q.rows = q.rows_t = (int64_t)tr * 128 + rows;
    q.row.q += (first - (int64_t)tr * 128) * q.row.stride;
    q.row.scale += ROW == QUANTIZE_ROW128 ? first - (int64_t)tr * 128 : 0;
    q.col.q += matrix * q.cols * q.col.stride + (int64_t)(in - tr) * 128;
    q.col.scale += COL == QUANTIZE_ROW128 ? (in - tr) * q.col.ld + matrix * q.cols
                                          : (int64_t)matrix * q.across * q.col.ld + in - tr;
    if (whole)
        tile_finish<DTYPE, ROW, COL, false>(q, m, raw, tr, tc, true);
    else
        tile_finish<DTYPE, ROW, COL, false>(q, m, raw, tr, tc, false);
}

/* Column sums from the sums of the tiles, in order of the tiles. */
static __global__ void __launch_bounds__(128) quantize_add_sums(const __grid_constant__ quantize_args p)
{
    const int64_t col = (int64_t)blockIdx.x * 128 + threadIdx.x, tiles = (p.rows + 127) / 128;
    float sum = 0;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    if (col >= p.cols)
        return;
#pragma unroll 32
    for (int64_t t = 0; t < tiles; t++)
        sum += p.sums[t * p.cols + col];
    p.colsum[col] = __uint_as_float(num_canonical_f32(sum));
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORM(DTYPE, SOURCE)                                                        \
    (const void *)quantize_tile<DTYPE, QUANTIZE_ROW128, QUANTIZE_ROW128, SOURCE>,     \
        (const void *)quantize_tile<DTYPE, QUANTIZE_ROW128, QUANTIZE_BLK128, SOURCE>, \
        (const void *)quantize_tile<DTYPE, QUANTIZE_BLK128, QUANTIZE_BLK128, SOURCE>
#define ANY(DTYPE) (const void *)quantize_tile<DTYPE, QUANTIZE_BY_CALL, QUANTIZE_BY_CALL, FROM_SWIGLU>
#define SINGLE(DTYPE)                                                             \
    (const void *)quantize_tile<DTYPE, QUANTIZE_ROW128, QUANTIZE_ABSENT, FROM_X>, \
        (const void *)quantize_tile<DTYPE, QUANTIZE_BLK128, QUANTIZE_ABSENT, FROM_X>

/* [f32, f16, bf16][the three forms of dual; ROW128 and BLK128 alone; swiglu_quantize with any option; the three forms
 * of swiglu_quantize with SiLU and default options, which f32 lacks: tiles of two f32 tensors do not fit the registers]
 */
enum { DUAL_FORMS = 0, SINGLE_FORMS = 3, ANY_SWIGLU = 5, SILU_FORMS = 6, FUNCTIONS = 9 };
static const void *const functions[3][FUNCTIONS] = {
    {BY_FORM(RIDGE_F32, FROM_X), SINGLE(RIDGE_F32), ANY(RIDGE_F32), ANY(RIDGE_F32), ANY(RIDGE_F32), ANY(RIDGE_F32)},
    {BY_FORM(RIDGE_F16, FROM_X), SINGLE(RIDGE_F16), ANY(RIDGE_F16), BY_FORM(RIDGE_F16, FROM_SILU)},
    {BY_FORM(RIDGE_BF16, FROM_X), SINGLE(RIDGE_BF16), ANY(RIDGE_BF16), BY_FORM(RIDGE_BF16, FROM_SILU)},
};

#define OF_MATRICES(DTYPE)                                                            \
    {                                                                                 \
        (const void *)quantize_matrices<DTYPE, QUANTIZE_ROW128, QUANTIZE_ROW128>,     \
            (const void *)quantize_matrices<DTYPE, QUANTIZE_ROW128, QUANTIZE_BLK128>, \
            (const void *)quantize_matrices<DTYPE, QUANTIZE_BLK128, QUANTIZE_BLK128>  \
    }

static const void *const of_matrices[3][3] = {OF_MATRICES(RIDGE_F32), OF_MATRICES(RIDGE_F16), OF_MATRICES(RIDGE_BF16)};

static ridge_status prepare(const ridge_device *device)
{
    const void *const sums = (const void *)quantize_add_sums;
    ridge_status status = host_load(device, &functions[0][0], 3 * FUNCTIONS, "quantize: loading kernels");

    status = status ? status : host_load(device, &of_matrices[0][0], 9, "quantize: loading kernels");
    return status ? status : host_load(device, &sums, 1, "quantize: loading kernels");
}

/* SiLU of two tensors and nothing else, on a device that has kernels for it. */
static bool is_plain_silu(const ridge_device *device, const ridge_problem *problem)
{
    return device->arch >= TILE_SILU_FIRST && device->arch <= TILE_SILU_LAST && problem->plain &&
           problem->dtype[RIDGE_SWIGLU_QUANTIZE_ROW_SCALE] == RIDGE_NONE &&
           !(problem->flags & (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED));
}

static const void *function_of(const ridge_device *device, const ridge_problem *problem)
{
    const void *const *const of_dtype = functions[problem->dtype[0] - RIDGE_F32];
    const uint32_t form = (problem->flags & RIDGE_DUAL) / RIDGE_DUAL_ROW_BLK;

    if (problem->op == RIDGE_QUANTIZE_FP8)
        return of_dtype[SINGLE_FORMS + ((problem->flags & RIDGE_SCALE) == RIDGE_SCALE_BLK128)];
    if (problem->op == RIDGE_QUANTIZE_FP8_DUAL)
        return of_dtype[DUAL_FORMS + form];
    return of_dtype[is_plain_silu(device, problem) ? SILU_FORMS + form : (uint32_t)ANY_SWIGLU];
}

/* Option matrices of quantize_fp8_dual. */
static ridge_status launch_matrices(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                    void *stream)
{
    const ridge_call *call = &bound->call;
    const int64_t matrices = call->opt.quantize.matrices, rows = call->dim[0] / matrices;
    matrices_args p = {tile_args(call), (uint32_t)rows, (uint32_t)quantize_groups(rows)};

    p.q.ahead = (uint32_t)device->units * 3 / 4;
    return host_launch(device, kernel->name,
                       of_matrices[call->arg[0].dtype - RIDGE_F32][(call->flags & RIDGE_DUAL) / RIDGE_DUAL_ROW_BLK],
                       dim3((unsigned)(matrices * p.tiles) * p.q.across), TILE_THREADS, &p, stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    float *colsum =
        call->op == RIDGE_QUANTIZE_FP8_DUAL ? (float *)call->arg[RIDGE_QUANTIZE_FP8_DUAL_COLSUM].data : NULL;
    quantize_args p = tile_args(call);
    ridge_status status;

    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    if (call->op == RIDGE_QUANTIZE_FP8_DUAL && call->opt.quantize.matrices > 1)
        return launch_matrices(device, kernel, bound, stream);
    p.ahead = (uint32_t)device->units * 3 / 4; /* of twice as many blocks as units; from 1.2 on it is slower */
    p.sums = colsum ? (float *)workspace : NULL;
    p.colsum = colsum;
    status = host_launch(device, kernel->name, function_of(device, &bound->problem),
                         dim3((unsigned)(quantize_groups(p.rows) * p.across)), TILE_THREADS, &p, stream);
    if (status || !colsum)
        return status;
    return host_launch(device, kernel->name, (const void *)quantize_add_sums, dim3(p.across), 128, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const uint32_t scale = problem->flags & RIDGE_SCALE;

    if (problem->op == RIDGE_QUANTIZE_FP8 && scale != RIDGE_SCALE_ROW128 && scale != RIDGE_SCALE_BLK128)
        return "one scale a tensor or a row: another row does that";
    if (problem->dim[0] > 0x7fffff00 || problem->dim[1] > 0x7fffff00)
        return "2^31 rows or columns";
    if ((double)quantize_groups(problem->dim[0]) * (double)quantize_groups(problem->dim[1]) > 2147483647.0)
        return "more than 2^31 - 1 tiles";
    return NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const bool sums =
        problem->op == RIDGE_QUANTIZE_FP8_DUAL && problem->dtype[RIDGE_QUANTIZE_FP8_DUAL_COLSUM] != RIDGE_NONE;

    return sums ? (size_t)quantize_groups(problem->dim[0]) * (size_t)problem->dim[1] * sizeof(float) : 0;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double bytes = problem->op == RIDGE_QUANTIZE_FP8 ? 3 : problem->op == RIDGE_QUANTIZE_FP8_DUAL ? 4 : 6;

    return 2 + bytes * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                          \
    {                                                                                                                \
        "cuda." op_name ".tile128", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, QUANTIZE_CONTRACT, 0, {}, why_not, \
            workspace_bytes, cost, launch                                                                            \
    }

static const ridge_kernel rows[] = {
    ROW("quantize_fp8", RIDGE_QUANTIZE_FP8),
    ROW("quantize_fp8_dual", RIDGE_QUANTIZE_FP8_DUAL),
    ROW("swiglu_quantize", RIDGE_SWIGLU_QUANTIZE),
};

extern "C" const ridge_kernel_list ridge_cuda_quantize_tile = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
