/* transpose.cu: transpose_fp8 on CUDA: a block of 256 threads takes a tile of 128 x 128 codes. A thread transposes 8
 * rows of 8 in registers; the tile leaves through shared memory as those of quantize_fp8_dual do (tile.cuh). Takes any
 * layout; one byte in and one out a code. */
#include "tile.cuh"

enum { BLOCKS = 5 }; /* of a multiprocessor: 40 KB of loads in flight */

/* 8 codes of a row from `from` on, of which n are inside. */
static __device__ __forceinline__ uint2 load8(const uint8_t *from, int64_t n, bool vector)
{
    uint32_t word[2] = {0, 0};

    if (vector && n >= 8)
        return *(const uint2 *)from;
#pragma unroll
    for (int i = 0; i < 8; i++)
        word[i / 4] |= i < n ? (uint32_t)from[i] << (i % 4 * 8) : 0;
    return make_uint2(word[0], word[1]);
}

/* Bytes i of four words a, b, c and d become word i. */
static __device__ __forceinline__ void transpose4(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t *out)
{
    const uint32_t ab = __byte_perm(a, b, 0x5140), ab2 = __byte_perm(a, b, 0x7362);
    const uint32_t cd = __byte_perm(c, d, 0x5140), cd2 = __byte_perm(c, d, 0x7362);

    out[0] = __byte_perm(ab, cd, 0x5410);
    out[1] = __byte_perm(ab, cd, 0x7632);
    out[2] = __byte_perm(ab2, cd2, 0x5410);
    out[3] = __byte_perm(ab2, cd2, 0x7632);
}

static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS(BLOCKS))
    transpose(const __grid_constant__ quantize_args p)
{
    __shared__ __align__(16) tile_memory m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, x = lane & 15;
    const int tr = (int)(blockIdx.x / p.across), tc = (int)(blockIdx.x % p.across);
    const int64_t row = (int64_t)tr * 128 + warp * 16 + lane / 16 * 8, col = (int64_t)tc * 128 + x * 8;
    uint2 v[TILE_ROWS];

    quantize_wait();
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++)
        v[i] = load8(p.row.q + (row + i) * p.row.stride + col, row + i < p.rows ? p.cols - col : 0, p.vector_row);
    if (gridDim.x > 128)
        ptx_launch_dependents();
    if (threadIdx.x == 0)
        ((uint32_t *)p.col.scale)[tc * p.col.ld + tr] = ((const uint32_t *)p.row.scale)[tr * p.row.ld + tc];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t upper[4], lower[4]; /* of four columns: rows 0 to 3, and 4 to 7 */

        transpose4(half ? v[0].y : v[0].x, half ? v[1].y : v[1].x, half ? v[2].y : v[2].x, half ? v[3].y : v[3].x,
                   upper);
        transpose4(half ? v[4].y : v[4].x, half ? v[5].y : v[5].x, half ? v[6].y : v[6].x, half ? v[7].y : v[7].x,
                   lower);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(uint2 *)&m.codes[(8 * x + 4 * half + j) * 128 + 8 * ((2 * warp + lane / 16) ^ x)] =
                make_uint2(upper[j], lower[j]);
    }
    __syncthreads();
    tile_store_transposed(p, m, tr * 128, tc * 128,
                          p.vector_col && tr * 128 + 128 <= p.rows && tc * 128 + 128 <= p.cols);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[] = {(const void *)transpose};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 1, "transpose_fp8: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    quantize_args p = {};

    p.rows = p.rows_t = call->dim[0];
    p.cols = call->dim[1];
    p.across = (uint32_t)quantize_groups(p.cols);
    p.row = quantize_output(call, RIDGE_TRANSPOSE_FP8_Q);
    p.col = quantize_output(call, RIDGE_TRANSPOSE_FP8_Q_T);
    p.vector_row = quantize_aligned(p.row.q, p.row.stride, 8);
    p.vector_col = quantize_aligned(p.col.q, p.col.stride, 16);
    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[0], dim3((unsigned)(quantize_groups(p.rows) * p.across)),
                       TILE_THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dim[0] > 0x7fffff00 || problem->dim[1] > 0x7fffff00)
        return "2^31 rows or columns";
    if ((double)quantize_groups(problem->dim[0]) * (double)quantize_groups(problem->dim[1]) > 2147483647.0)
        return "more than 2^31 - 1 tiles";
    return NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 2 + 2 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.transpose_fp8.tile128",
     RIDGE_TRANSPOSE_FP8,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     QUANTIZE_CONTRACT,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_transpose_fp8 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
