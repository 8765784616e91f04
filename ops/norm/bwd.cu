/* bwd.cu: rms_norm_bwd on CUDA.
 *
 * A block, or a warp, works on a group of 16 rows, one after the other: sums of x x and of dout w x, then dx
 * (rows.cuh); dout x' is added to this group's part of dw, which stays in registers and goes to the workspace. A second
 * kernel adds the groups' parts in the order of src/math/norm.h. Bytes moved: dout, x, dsum and dx once, 1/8 of an f32
 * dx for the parts. */
#include "rows.cuh"

enum { GROUP = RIDGE_NORM_GROUP, CHAINS = RIDGE_NORM_CHAINS };

/* Stores this thread's part of dw of a group. */
template <int V, int HELD>
static __device__ __forceinline__ void bwd_part(const norm_bwd_args &p, int64_t group, int64_t col, const float *dw)
{
    float *to = p.partial + group * p.n + col;

    if (!p.dw.data)
        return;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (col + k / V * PARTS < p.n)
            to[k / V * PARTS + k % V] = dw[k];
}

/* Operands of one dtype, weights of WEIGHTS. */
template <int W, int HELD, int DTYPE, int WEIGHTS>
static __global__ void __launch_bounds__(FAST_THREADS, DTYPE == RIDGE_F32 ? 4 : 3)
    bwd_fast(const __grid_constant__ norm_bwd_args p)
{
    constexpr int V = 8 / W, TOGETHER = FAST_THREADS / (32 * W), SIZE = DTYPE == RIDGE_F32 ? 4 : 2;
    constexpr int WORDS = ROWS_WORDS(DTYPE, HELD);
    __shared__ float part[TOGETHER][2][2][PARTS];
    const int at = threadIdx.x / (32 * W), thread = threadIdx.x % (32 * W), col = thread * V, left = (int)p.n - col;
    const int64_t group = (int64_t)blockIdx.x * TOGETHER + at, end = min((group + 1) * GROUP, p.rows);
    uint32_t w[ROWS_WORDS(WEIGHTS, HELD)];
    float dw[HELD] = {};

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (TOGETHER > 1 && group >= p.groups) /* a whole warp */
        return;
    rows_load<WEIGHTS, V, HELD>(p.w.data + col * (WEIGHTS == RIDGE_F32 ? 4 : 2), p.w.data ? left : 0, ROWS_ONE(WEIGHTS),
                                w);
    for (int64_t row = group * GROUP; row < end; row++) {
        float(*const sums)[PARTS] = part[at][row % 2];
        float squares[V] = {}, dots[V] = {}, r, mean;
        uint32_t x[WORDS], dout[WORDS], dsum[WORDS], taint = 0;

        rows_forget<ROWS_WORDS(WEIGHTS, HELD)>(w);
        rows_load<DTYPE, V, HELD>(p.x.data + row * p.x.stride + col * SIZE, left, 0, x);
        rows_load<DTYPE, V, HELD>(p.dout.data + row * p.dout.stride + col * SIZE, left, 0, dout);
        rows_load<DTYPE, V, HELD>(p.dsum.data + row * p.dsum.stride + col * SIZE, p.dsum.data ? left : 0,
                                  ROWS_NONE(DTYPE), dsum);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const float xk = rows_value<DTYPE>(x, k), g = rows_value<DTYPE>(dout, k) * rows_value<WEIGHTS>(w, k);

            squares[k % V] = ridge_fma(xk, xk, squares[k % V]);
            dots[k % V] = ridge_fma(g, xk, dots[k % V]);
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            sums[0][thread * V + k] = squares[k];
            sums[1][thread * V + k] = dots[k];
        }
        rows_sync<W>(); /* all partial sums are written before they are read; the next row's go elsewhere */
        r = ridge_rms_factor(rows_tree(sums[0]), p.n, p.eps);
        mean = ridge_rms_bwd_mean(rows_tree(sums[1]), p.n, r);
        rows_forget<WORDS>(x);
        rows_forget<WORDS>(dout);
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            float dx[HELD / WORDS];

#pragma unroll
            for (int e = 0; e < HELD / WORDS; e++) {
                const int k = HELD / WORDS * i + e;
                const float xk = rows_value<DTYPE>(x, k), dk = rows_value<DTYPE>(dout, k);

                dw[k] = ridge_fma(dk, xk * r, dw[k]);
                dx[e] = ridge_rms_bwd(dk * rows_value<WEIGHTS>(w, k), xk, mean, r) + rows_value<DTYPE>(dsum, k);
            }
            x[i] = rows_word<DTYPE>(dx, &taint);
        }
        if (p.dx.data) {
            rows_mend<DTYPE, WORDS>(x, taint);
            rows_store<DTYPE, V, HELD>(p.dx.data + row * p.dx.stride + col * SIZE, left, x);
        }
    }
    bwd_part<V, HELD>(p, group, col, dw);
}

static __device__ __forceinline__ float weighted(const norm_bwd_args &p, float dout, int64_t j)
{
    return p.w.data ? dout * rows_element(p.w, 0, j) : dout;
}

/* 1/rms and mean of a row by a block. */
static __device__ __forceinline__ void bwd_factors(const norm_bwd_args &p, int64_t row, float (*sums)[PARTS], float *r,
                                                   float *mean)
{
    float square = 0.0f, dot = 0.0f;

#pragma unroll 4
    for (int64_t j = threadIdx.x; j < p.n; j += PARTS) {
        const float x = rows_element(p.x, row, j);

        square = ridge_fma(x, x, square);
        dot = ridge_fma(weighted(p, rows_element(p.dout, row, j), j), x, dot);
    }
    sums[0][threadIdx.x] = square;
    sums[1][threadIdx.x] = dot;
    __syncthreads(); /* all partial sums are written before they are read; the next row's go elsewhere */
    *r = ridge_rms_factor(rows_tree(sums[0]), p.n, p.eps);
    *mean = ridge_rms_bwd_mean(rows_tree(sums[1]), p.n, *r);
}

enum { ANY_HELD = 16 };

/* Any dtypes, alignment and length: a span of columns at a time, the rows' factors from the first on. A thread writes
 * to its own columns only, after it has read them. */
static __global__ void __launch_bounds__(ANY_THREADS) bwd_any(const __grid_constant__ norm_bwd_args p)
{
    __shared__ float sums[2][2][PARTS], factor[GROUP][2];
    const int64_t group = blockIdx.x, first = group * GROUP;
    const int rows = (int)min((int64_t)GROUP, p.rows - first);

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    for (int i = 0; i < rows; i++) {
        float r, mean;

        bwd_factors(p, first + i, sums[i % 2], &r, &mean);
        if (threadIdx.x == 0)
            factor[i][0] = r, factor[i][1] = mean;
    }
    __syncthreads(); /* all factors are written before they are read */
    for (int64_t j = threadIdx.x; j < p.n; j += PARTS) {
        float dw = 0.0f;

#pragma unroll 4
        for (int i = 0; i < rows; i++) {
            const float x = rows_element(p.x, first + i, j), dout = rows_element(p.dout, first + i, j);
            const float r = factor[i][0], dx = ridge_rms_bwd(weighted(p, dout, j), x, factor[i][1], r);

            dw = ridge_fma(dout, x * r, dw);
            if (p.dx.data)
                rows_put(p.dx, first + i, j, p.dsum.data ? dx + rows_element(p.dsum, first + i, j) : dx);
        }
        if (p.dw.data)
            p.partial[group * p.n + j] = dw;
    }
}

/* dw from the groups' parts: 8 columns a block, a thread a chain of one. */
enum { SUM_COLUMNS = 8, SUM_THREADS = SUM_COLUMNS * CHAINS };

static __global__ void __launch_bounds__(SUM_THREADS) bwd_sum(const __grid_constant__ norm_bwd_args p)
{
    __shared__ float part[CHAINS][SUM_COLUMNS];
    const int chain = threadIdx.x / SUM_COLUMNS, column = threadIdx.x % SUM_COLUMNS;
    const int64_t j = (int64_t)blockIdx.x * SUM_COLUMNS + column;
    float sum = 0.0f;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
#pragma unroll 8
    for (int64_t g = chain; g < p.groups; g += CHAINS)
        sum += j < p.n ? p.partial[g * p.n + j] : 0.0f;
    part[chain][column] = sum;
#pragma unroll
    for (int s = CHAINS / 2; s > 0; s /= 2) {
        __syncthreads(); /* the sums of the preceding step are written */
        if (chain < s)
            part[chain][column] += part[chain + s][column];
    }
    if (chain == 0 && j < p.n)
        rows_put(p.dw, 0, j, part[0][column]);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* [f32, f16, bf16][weights of that dtype, f32] */
#define BY_DTYPE(w, held, f32_held)                                    \
    {                                                                  \
        {(const void *)bwd_fast<w, f32_held, RIDGE_F32, RIDGE_F32>,    \
         (const void *)bwd_fast<w, f32_held, RIDGE_F32, RIDGE_F32>},   \
            {(const void *)bwd_fast<w, held, RIDGE_F16, RIDGE_F16>,    \
             (const void *)bwd_fast<w, held, RIDGE_F16, RIDGE_F32>},   \
        {                                                              \
            (const void *)bwd_fast<w, held, RIDGE_BF16, RIDGE_BF16>,   \
                (const void *)bwd_fast<w, held, RIDGE_BF16, RIDGE_F32> \
        }                                                              \
    }

static const void *const by_warp[3][2] = BY_DTYPE(1, 32, 16), *const by_warps[3][2] = BY_DTYPE(4, 32, 16),
                         *const others[2] = {(const void *)bwd_any, (const void *)bwd_sum};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = host_load(device, others, 2, "rms_norm_bwd: loading kernels");

    if (!status)
        status = host_load(device, &by_warp[0][0], 6, "rms_norm_bwd: loading kernels");
    return status ? status : host_load(device, &by_warps[0][0], 6, "rms_norm_bwd: loading kernels");
}

static const rows_form warp = {1, 32}, warps4 = {4, 32}, block = {8, 0};

static const rows_form *form_of(const ridge_kernel *kernel)
{
    return (const rows_form *)kernel->variant;
}

static size_t workspace(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dtype[RIDGE_RMS_NORM_BWD_DW] == RIDGE_NONE)
        return 0;
    return (size_t)ridge_ceil_div(problem->dim[0], GROUP) * (size_t)problem->dim[1] * sizeof(float);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *work,
                           size_t, void *stream)
{
    const rows_form *form = form_of(kernel);
    norm_bwd_args p = norm_bwd_args_of(&bound->call);
    const void *function =
        (form == &warp ? by_warp : by_warps)[p.x.dtype - RIDGE_F32][p.w.data && p.w.dtype == RIDGE_F32];
    const bool fast = form != &block && rows_aligned(p.w, form);
    const int threads = fast ? (int)FAST_THREADS : (int)ANY_THREADS, together = fast ? threads / (32 * form->warps) : 1;
    ridge_status status = RIDGE_OK;

    if (p.n == 0)
        return RIDGE_OK;
    p.partial = (float *)work;
    if (p.rows > 0)
        status = host_launch(device, kernel->name, fast ? function : others[0],
                             dim3((unsigned)ridge_ceil_div(p.groups, together)), threads, &p, stream);
    if (status || !p.dw.data)
        return status;
    return host_launch(device, kernel->name, others[1], dim3((unsigned)ridge_ceil_div(p.n, SUM_COLUMNS)), SUM_THREADS,
                       &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const rows_form *form = form_of(kernel);

    if (form != &block && problem->dtype[0] == RIDGE_F32 && problem->dim[1] > rows_span(form) / 2)
        return "a row does not fit the registers of its warps";
    return rows_why_not(form, problem, RIDGE_RMS_NORM_BWD_W, 1u << RIDGE_RMS_NORM_BWD_DW);
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double n = (double)problem->dim[1], rows = (double)problem->dim[0];
    const double chain = (rows < 16 ? rows : 16) * (1.0 + n / 256 * (form_of(kernel) == &block ? 0.1 : 0.03));

    return 3.0 + 1e-2 * kernel->param[1] + chain + rows * n * 8e-3 / device->copy_gbps * 0.01 * kernel->param[0];
}

#define ROW(name, form, percent, latency)                                                                          \
    {                                                                                                              \
        "cuda.rms_norm_bwd." name, RIDGE_RMS_NORM_BWD, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                      \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, &form, {percent, latency}, \
            why_not, workspace, cost, launch                                                                       \
    }

static const ridge_kernel rows[] = {ROW("warp", warp, 100, 0), ROW("warps4", warps4, 102, 10),
                                    ROW("block", block, 180, 30)};

extern "C" const ridge_kernel_list ridge_cuda_rms_norm_bwd = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
