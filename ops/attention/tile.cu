/* tile.cu: attention_decode by the CTAs of tile.cuh. */
#include "tile.cuh"

template <int KV, int N, int CLUSTERED>
static __global__ void __launch_bounds__(CLUSTERED ? 512 : 256, CLUSTERED || N == 256 ? 1 : 2)
    tile(const __grid_constant__ attention_args p)
{
#if __CUDA_ARCH__ < 900
    if (CLUSTERED)
        return;
#endif
    typedef tile_form<KV, N, CLUSTERED ? 16 : 8> form;
    extern __shared__ float4 shared[];
    tile_shared<N> *s = (tile_shared<N> *)shared;
    const int64_t first_row = (int64_t)blockIdx.z * ROWS;
    const int rows = (int)min(p.tokens * p.group - first_row, (int64_t)ROWS);
    const bool early = p.window == 0 && p.positions <= EARLY;

    ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* after the wait: merge reads positions before its own */
    if (early)
        load_all<form>(p, s, first_row, rows, 0,
                       (int)max(min(p.positions - (int64_t)blockIdx.x * PIECE, (int64_t)PIECE), (int64_t)0));
    read_ranges(p, s, first_row, rows);
    const bool seen = s->lowest < s->highest;

    if (seen) {
        if (!early)
            load_all<form>(p, s, first_row, rows, s->lowest, s->highest);
        mma_copy_wait_for<1>();
        __syncthreads(); /* queries and keys are written before all threads read them */
        multiply_keys<form>(s, rows);
    }
    mma_copy_wait_for<0>();
    __syncthreads(); /* all dot products, and the values, are written before they are read; all keys are read */
    finish<form, CLUSTERED>(p, s, first_row, rows);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const tile_functions functions = TILE_FUNCTIONS(tile);

static ridge_status prepare(const ridge_device *device)
{
    return tile_prepare(device, functions, "attention_decode: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    attention_args p = attention_args_of(&bound->call, workspace);

    return tile_launch(device, kernel, functions, &p, ridge_ceil_div(p.tokens * p.group, ROWS), p.tokens * p.group, &p,
                       stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1];
    const char *why = tile_why_not(device, kernel, problem);

    if (why)
        return why;
    if (problem->dim[2] > 65535 || (problem->dim[2] && queries / (double)problem->dim[2] > 65535.0 * ROWS))
        return "more than 65535 KV heads, or 2^20 queries of one";
    return queries > 2147483647.0 ? "more than 2^31 - 1 queries" : NULL;
}

static const ridge_kernel rows[] = {
    TILE_ROW("cuda.attention_decode.cluster", RIDGE_ATTENTION_DECODE, RIDGE_ARCH_SM90, 1),
    TILE_ROW("cuda.attention_decode.tile", RIDGE_ATTENTION_DECODE, RIDGE_ARCH_SM80, 0),
};

extern "C" const ridge_kernel_list ridge_cuda_attention_tile = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
