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

#define FORMS(kv)                                                                                            \
    {                                                                                                        \
        {(const void *)tile<kv, 64, 0>, (const void *)tile<kv, 128, 0>, (const void *)tile<kv, 256, 0>},     \
            {(const void *)tile<kv, 64, 1>, (const void *)tile<kv, 128, 1>, (const void *)tile<kv, 256, 1>}, \
    }

/* By the cache's dtype, CLUSTERED, and head_dim 64, 128, 256. */
static const void *const functions[3][2][3] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16), FORMS(RIDGE_U8)};
static const void *const merge_function[1] = {(const void *)merge};

static ridge_status prepare(const ridge_device *device)
{
    const int64_t n[3] = {64, 128, 256};
    ridge_status status = host_load(device, merge_function, 1, "attention_decode: loading kernels");

    for (int i = 0; i < 18 && !status; i++)
        if (shared_bytes(n[i % 3], ROWS) <= (size_t)host_max_shared(device))
            status = host_prepare(device, &functions[0][0][0] + i, 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared_bytes(n[i % 3], ROWS), "attention_decode: loading kernels");
    return status;
}

static bool is_clustered(const ridge_kernel *kernel)
{
    return kernel->param[0] != 0;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    attention_args p = attention_args_of(&bound->call, workspace);
    const int clustered = is_clustered(kernel);
    const void *function = functions[p.kv == RIDGE_U8 ? 2 : p.kv == RIDGE_BF16][clustered][p.n == 64    ? 0
                                                                                           : p.n == 128 ? 1
                                                                                                        : 2];
    dim3 grid((unsigned)attention_pieces_of(p.positions), (unsigned)p.kv_heads,
              (unsigned)ridge_ceil_div(p.tokens * p.group, ROWS));
    ridge_status status = RIDGE_OK;
    int cluster = 1;

    if (p.tokens * p.heads == 0)
        return RIDGE_OK;
    if (clustered) {
        while (cluster < (int)grid.x)
            cluster *= 2;
        grid.x = (unsigned)cluster;
    }
    if (grid.x)
        status = host_launch_cluster(device, kernel->name, function, grid, cluster, clustered ? 512 : 256,
                                     shared_bytes(p.n, p.tokens * p.group), &p, stream);
    return status || clustered ? status : merge_launch(device, kernel->name, &p, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1];
    const int64_t n = problem->dim[3];

    if (n != 64 && n != 128 && n != 256)
        return "head_dim is not 64, 128 or 256";
    const int64_t head = problem->dim[4] * attention_row_bytes(problem->dtype[RIDGE_ATTENTION_DECODE_K], n);

    if (problem->align < 4 || (problem->packed && head % 16))
        return "an operand or row stride is not a multiple of 16 bytes";
    if (shared_bytes(n, ROWS) > (size_t)host_max_shared(device))
        return "the tiles do not fit in shared memory";
    if (is_clustered(kernel) && problem->dim[4] > CLUSTER * PIECE)
        return "more than 1024 positions";
    if (problem->dim[2] > 65535 || (problem->dim[2] && queries / (double)problem->dim[2] > 65535.0 * ROWS))
        return "more than 65535 KV heads, or 2^20 queries of one";
    return queries > 2147483647.0 ? "more than 2^31 - 1 queries" : NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return is_clustered(kernel) ? 0 : attention_workspace(problem);
}

/* Latency, and the cache's bytes at the copy rate. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return (is_clustered(kernel) ? 4 : 6) +
           (double)problem->dim[2] * (double)problem->dim[3] * (double)problem->dim[4] * 4e-3 / device->copy_gbps;
}

#define ROW(name, arch, clustered)                                                                               \
    {                                                                                                            \
        "cuda.attention_decode." name, RIDGE_ATTENTION_DECODE, arch, RIDGE_ARCH_CUDA_LAST,                       \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {clustered}, why_not, \
            workspace_bytes, cost, launch                                                                        \
    }

static const ridge_kernel rows[] = {
    ROW("cluster", RIDGE_ARCH_SM90, 1),
    ROW("tile", RIDGE_ARCH_SM80, 0),
};

extern "C" const ridge_kernel_list ridge_cuda_attention_tile = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
