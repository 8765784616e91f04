/* tile.cu: quantize_fp8 (ROW128, BLK128), quantize_fp8_dual and swiglu_quantize on CUDA: one block of 256
 * threads a tile of 128 x 128, elements loaded straight into registers. Takes any alignment, layout and option, on any
 * architecture. Bytes: 2 read, 2 written an element for bf16 dual. */
#include "tile.cuh"

/* Rows of tiles that are taken together before the next column of tiles. One is faster where a block fetches ahead. */
#define BUNDLE(col, source) ((source) == FROM_SWIGLU || (col) == QUANTIZE_ABSENT ? 4u : 1u)

/* Fetches half of a tile into L2, the first 64 bytes of each line. Measured on an H200 only: all of it, or a distance
 * too long, makes everything slower. */
template <int DTYPE, int SOURCE>
static __device__ __forceinline__ void tile_fetch(const quantize_args &p, uint32_t tile)
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

/* What a multiprocessor holds: three where the registers suffice. */
#define BLOCKS(dtype, col, source) ((dtype) != RIDGE_F32 && (source) == FROM_X && (col) == QUANTIZE_ABSENT ? 3 : 2)

/* E5M2 is 0 or 1, or 2 for "see p.e5m2". */
template <int DTYPE, int ROW, int COL, int SOURCE, int E5M2>
static __global__ void __launch_bounds__(TILE_THREADS,
                                         SOURCE == FROM_SILU ? 2 : TILE_BLOCKS(BLOCKS(DTYPE, COL, SOURCE)))
    quantize_tile(const __grid_constant__ quantize_args p)
{
    constexpr int W = QUANTIZE_WORDS(DTYPE), TOGETHER = SOURCE == FROM_X ? TILE_ROWS : DTYPE == RIDGE_F32 ? 2 : 4;
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2;
    constexpr uint32_t DEEP = BUNDLE(COL, SOURCE);
    __shared__ __align__(16) tile_memory m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t bundle = blockIdx.x / (DEEP * p.across), place = blockIdx.x % (DEEP * p.across);
    const uint32_t down = min(DEEP, (uint32_t)((p.rows + 127) / 128) - bundle * DEEP);
    const int tr = (int)(bundle * DEEP + place % down), tc = (int)(place / down);
    const int row = tr * 128 + warp * 16 + lane / 16 * 8, col = tc * 128 + (lane & 15) * 8;
    uint32_t raw[TILE_ROWS][W];

    if (COL == QUANTIZE_ABSENT)
        quantize_wait();
    else
        ptx_grid_wait();
    if (SOURCE != FROM_SWIGLU && p.whole && tr * 128 + 128 <= p.rows && tc * 128 + 128 <= p.cols) {
        const char *from = p.x + (row * p.stride + col) * SIZE, *with = p.up + (row * p.up_stride + col) * SIZE;
        uint32_t up[SOURCE == FROM_SILU ? TILE_ROWS : 1][W];

#pragma unroll
        for (int i = 0; i < TILE_ROWS; i++, from += p.stride * SIZE, with += p.up_stride * SIZE) {
            quantize_load<DTYPE>(from, 8, true, raw[i]);
            if constexpr (SOURCE == FROM_SILU)
                quantize_load<DTYPE>(with, 8, true, up[i]);
        }
        if (COL != QUANTIZE_ABSENT) /* memory would idle while the few blocks compute */
            tile_fetch<DTYPE, SOURCE>(p, blockIdx.x + p.ahead);
        ptx_grid_release(); /* takes time: behind the loads */
        if constexpr (SOURCE == FROM_SILU)
            tile_silu<DTYPE>(p, row, col, raw, up);
        tile_finish<DTYPE, ROW, COL, SOURCE == FROM_X && COL != QUANTIZE_ABSENT>(p, m, raw, tr, tc, true,
                                                                                 E5M2 == 2 ? p.e5m2 : E5M2);
        return;
    }
#pragma unroll
    for (int first = 0; first < TILE_ROWS; first += TOGETHER) {
        uint32_t up[TOGETHER][W];

#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            tile_element_loads<DTYPE, SOURCE>(p, row + first + i, col, row + first + i < p.rows ? p.cols - col : 0,
                                              raw[first + i], up[i]);
        if (SOURCE != FROM_X)
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                tile_swiglu<DTYPE, SOURCE>(p, row + first + i < p.rows ? row + first + i : 0,
                                           row + first + i < p.rows ? p.cols - col : 0, raw[first + i], up[i]);
    }
    ptx_grid_release();
    tile_finish<DTYPE, ROW, COL, SOURCE == FROM_X && COL != QUANTIZE_ABSENT>(p, m, raw, tr, tc, false,
                                                                             E5M2 == 2 ? p.e5m2 : E5M2);
}

/* Sums of the tiles to sums of the columns, tiles in order. */
static __global__ void __launch_bounds__(128) quantize_add_sums(const __grid_constant__ quantize_args p)
{
    const int64_t col = (int64_t)blockIdx.x * 128 + threadIdx.x, tiles = (p.rows + 127) / 128;
    float sum = 0;

    ptx_grid_wait();
    ptx_grid_release();
    if (col >= p.cols)
        return;
#pragma unroll 32
    for (int64_t t = 0; t < tiles; t++)
        sum += p.sums[t * p.cols + col];
    p.colsum[col] = __uint_as_float(num_canonical_f32(sum));
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORM(DTYPE, SOURCE, E5M2)                                                        \
    (const void *)quantize_tile<DTYPE, QUANTIZE_ROW128, QUANTIZE_ROW128, SOURCE, E5M2>,     \
        (const void *)quantize_tile<DTYPE, QUANTIZE_ROW128, QUANTIZE_BLK128, SOURCE, E5M2>, \
        (const void *)quantize_tile<DTYPE, QUANTIZE_BLK128, QUANTIZE_BLK128, SOURCE, E5M2>
#define BY_SINGLE(DTYPE, E5M2)                                                          \
    (const void *)quantize_tile<DTYPE, QUANTIZE_ROW128, QUANTIZE_ABSENT, FROM_X, E5M2>, \
        (const void *)quantize_tile<DTYPE, QUANTIZE_BLK128, QUANTIZE_ABSENT, FROM_X, E5M2>
/* f32 tiles of two tensors do not fit the registers. */
#define PLAIN(DTYPE) ((DTYPE) == RIDGE_F32 ? FROM_SWIGLU : FROM_SILU)
#define BY_DTYPE(DTYPE)                                                                                 \
    {                                                                                                   \
        BY_FORM(DTYPE, FROM_X, 0), BY_SINGLE(DTYPE, 0), BY_FORM(DTYPE, FROM_X, 1), BY_SINGLE(DTYPE, 1), \
            BY_FORM(DTYPE, FROM_SWIGLU, 2), BY_FORM(DTYPE, PLAIN(DTYPE), DTYPE == RIDGE_F32 ? 2 : 0),   \
            BY_FORM(DTYPE, PLAIN(DTYPE), DTYPE == RIDGE_F32 ? 2 : 1)                                    \
    }

enum { ANY_SWIGLU = 10, PLAIN_SWIGLU = 13, FUNCTIONS = 19 };

/* [f32, f16, bf16][e5m2 * 5 + form, or 3 and 4 for ROW128 and BLK128 alone; SwiGLU by form; without options by e5m2 * 3
 * + form] */
static const void *const functions[3][FUNCTIONS] = {BY_DTYPE(RIDGE_F32), BY_DTYPE(RIDGE_F16), BY_DTYPE(RIDGE_BF16)};

static ridge_status prepare(const ridge_device *device)
{
    const void *const sums = (const void *)quantize_add_sums;
    ridge_status status = host_load(device, &functions[0][0], 3 * FUNCTIONS, "quantize: loading kernels");

    return status ? status : host_load(device, &sums, 1, "quantize: loading kernels");
}

/* SiLU of two tensors, nothing else, where that kernel's registers leave two blocks a multiprocessor. */
static bool plain_swiglu(const ridge_device *device, const ridge_problem *problem)
{
    return device->arch >= RIDGE_ARCH_SM90 && device->arch <= RIDGE_ARCH_SM103 && problem->plain &&
           problem->dtype[RIDGE_SWIGLU_QUANTIZE_ROW_SCALE] == RIDGE_NONE &&
           !(problem->flags & (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED));
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const ridge_call *call = &bound->call;

    const bool swiglu = call->op == RIDGE_SWIGLU_QUANTIZE, single = call->op == RIDGE_QUANTIZE_FP8;
    const int dtype = problem->dtype[0], form = (int)((call->flags & RIDGE_DUAL) / RIDGE_DUAL_ROW_BLK);
    const int alone = 3 + ((call->flags & RIDGE_SCALE) == RIDGE_SCALE_BLK128);
    quantize_args p = tile_collect(call, swiglu ? (int)RIDGE_SWIGLU_QUANTIZE_Q : (int)RIDGE_QUANTIZE_FP8_Q);
    float *colsum =
        call->op == RIDGE_QUANTIZE_FP8_DUAL ? (float *)call->arg[RIDGE_QUANTIZE_FP8_DUAL_COLSUM].data : NULL;
    const int which = swiglu ? plain_swiglu(device, problem) ? PLAIN_SWIGLU + p.e5m2 * 3 + form : ANY_SWIGLU + form
                             : p.e5m2 * 5 + (single ? alone : form);
    ridge_status status;

    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    p.ahead = (uint32_t)device->units * 3 / 4; /* of twice as many blocks as units; from 1.2 on it is slower */
    p.sums = colsum ? (float *)workspace : NULL;
    p.colsum = colsum;
    status = host_launch(device, kernel->name, functions[dtype - RIDGE_F32][which],
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

#define ROW(op_name, op_id)                                                                                      \
    {                                                                                                            \
        "cuda." op_name ".tile128", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121, QUANTIZE_CONTRACT, 0, {}, why_not, \
            workspace_bytes, cost, launch                                                                        \
    }

static const ridge_kernel rows[] = {
    ROW("quantize_fp8", RIDGE_QUANTIZE_FP8),
    ROW("quantize_fp8_dual", RIDGE_QUANTIZE_FP8_DUAL),
    ROW("swiglu_quantize", RIDGE_SWIGLU_QUANTIZE),
};

extern "C" const ridge_kernel_list ridge_cuda_quantize_tile = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
