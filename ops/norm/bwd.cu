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

/* One row's columns, raw. */
template <int WORDS> struct bwd_columns {
    uint32_t x[WORDS], dout[WORDS], dsum[WORDS];
};

template <int DTYPE, int V, int HELD>
static __device__ __forceinline__ void bwd_load(const norm_bwd_args &p, int64_t row, int64_t col, int left,
                                                bwd_columns<ROWS_WORDS(DTYPE, HELD)> &c)
{
    const int64_t at = col * (DTYPE == RIDGE_F32 ? 4 : 2);

    rows_load<DTYPE, V, HELD>(p.x.data + row * p.x.stride + at, left, 0, c.x);
    rows_load<DTYPE, V, HELD>(p.dout.data + row * p.dout.stride + at, left, 0, c.dout);
    rows_load<DTYPE, V, HELD>(p.dsum.data + row * p.dsum.stride + at, p.dsum.data ? left : 0, ROWS_NONE(DTYPE), c.dsum);
}

/* The weights of part `part` of a thread's columns. They are read again for every row, from L1: registers are short. */
template <int WEIGHTS, int V, int COLUMNS>
static __device__ __forceinline__ void bwd_weights(const norm_bwd_args &p, int64_t col, int left, int part, uint32_t *w)
{
    const int on = part * (COLUMNS / V) * PARTS;

    rows_load<WEIGHTS, V, COLUMNS>(p.w.data + (col + on) * (WEIGHTS == RIDGE_F32 ? 4 : 2), p.w.data ? left - on : 0,
                                   ROWS_ONE(WEIGHTS), w);
}

/* dx of one row, and its addition to dw. */
template <int W, int HELD, int DTYPE, int WEIGHTS>
static __device__ __forceinline__ void bwd_row(const norm_bwd_args &p, int64_t row, int thread, float (*sums)[PARTS],
                                               bwd_columns<ROWS_WORDS(DTYPE, HELD)> &c, float *dw)
{
    constexpr int V = 8 / W, WORDS = ROWS_WORDS(DTYPE, HELD), EACH = HELD / WORDS;
    constexpr int PART = HELD > 8 ? 8 : HELD; /* columns a part of the weights */
    const int col = thread * V, left = (int)p.n - col;
    float squares[V] = {}, dots[V] = {}, r, mean;
    uint32_t taint = 0;

#pragma unroll
    for (int part = 0; part < HELD / PART; part++) {
        uint32_t w[ROWS_WORDS(WEIGHTS, PART)];

        bwd_weights<WEIGHTS, V, PART>(p, col, left, part, w);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            const int k = part * PART + i;
            const float x = rows_value<DTYPE>(c.x, k), g = rows_value<DTYPE>(c.dout, k) * rows_value<WEIGHTS>(w, i);

            squares[k % V] = ridge_fma(x, x, squares[k % V]);
            dots[k % V] = ridge_fma(g, x, dots[k % V]);
        }
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        sums[0][thread * V + k] = squares[k];
        sums[1][thread * V + k] = dots[k];
    }
    rows_sync<W>(); /* all partial sums are written before they are read; the next row's go elsewhere */
    r = ridge_rms_factor(rows_tree(sums[0]), p.n, p.eps);
    mean = ridge_rms_bwd_mean(rows_tree(sums[1]), p.n, r);
    rows_forget<WORDS>(c.x);
    rows_forget<WORDS>(c.dout);
#pragma unroll
    for (int part = 0; part < HELD / PART; part++) {
        uint32_t w[ROWS_WORDS(WEIGHTS, PART)];

        bwd_weights<WEIGHTS, V, PART>(p, col, left, part, w);
#pragma unroll
        for (int i = 0; i < PART; i += EACH) {
            float dx[EACH];

#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int k = part * PART + i + e;
                const float x = rows_value<DTYPE>(c.x, k), dout = rows_value<DTYPE>(c.dout, k);

                dw[k] = ridge_fma(dout, x * r, dw[k]);
                dx[e] = ridge_rms_bwd(dout * rows_value<WEIGHTS>(w, i + e), x, mean, r) + rows_value<DTYPE>(c.dsum, k);
            }
            c.x[(part * PART + i) / EACH] = rows_word<DTYPE>(dx, &taint);
        }
    }
    if (!p.dx.data)
        return;
    rows_mend<DTYPE, WORDS>(c.x, taint);
    rows_store<DTYPE, V, HELD>(p.dx.data + row * p.dx.stride + col * (DTYPE == RIDGE_F32 ? 4 : 2), left, c.x);
}

/* Blocks of a multiprocessor: what the registers allow, by words that a thread holds and whether weights have the
 * dtype of the rest. */
#define BWD_BLOCKS(words, same) ((words) <= 4 ? ((same) ? 8 : 6) : (words) <= 8 ? 5 : (words) > 16 ? 2 : (same) ? 4 : 3)

/* Operands of one dtype, weights of WEIGHTS. Where registers allow, the next row is loaded before this one is worked
 * on. */
template <int W, int HELD, int DTYPE, int WEIGHTS>
static __global__ void __launch_bounds__(FAST_THREADS, BWD_BLOCKS(ROWS_WORDS(DTYPE, HELD), DTYPE == WEIGHTS))
    bwd_fast(const __grid_constant__ norm_bwd_args p)
{
    constexpr int V = 8 / W, TOGETHER = FAST_THREADS / (32 * W), WORDS = ROWS_WORDS(DTYPE, HELD);
    constexpr bool AHEAD = WORDS <= 8;
    __shared__ float sums[TOGETHER][2][2][PARTS];
    const int at = threadIdx.x / (32 * W), thread = threadIdx.x % (32 * W), col = thread * V, left = (int)p.n - col;
    const int64_t group = (int64_t)blockIdx.x * TOGETHER + at, end = min((group + 1) * GROUP, p.rows);
    bwd_columns<WORDS> c, next;
    float dw[HELD] = {};

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (TOGETHER > 1 && group >= p.groups) /* a whole warp */
        return;
    if (AHEAD)
        bwd_load<DTYPE, V, HELD>(p, group * GROUP, col, left, next);
    for (int64_t row = group * GROUP; row < end; row++) {
        if (AHEAD) {
            c = next;
            if (row + 1 < end)
                bwd_load<DTYPE, V, HELD>(p, row + 1, col, left, next);
        } else {
            bwd_load<DTYPE, V, HELD>(p, row, col, left, c);
        }
        bwd_row<W, HELD, DTYPE, WEIGHTS>(p, row, thread, sums[at][row % 2], c, dw);
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

/* A kernel row: how many warps work on a row, columns that a thread of theirs holds; the functions. */
typedef struct bwd_form {
    rows_form rows;
    int f32_held;
    const void *function[3][2];
} bwd_form;

static const bwd_form head = {{1, 8}, 8, BY_DTYPE(1, 8, 8)}, warp = {{1, 32}, 16, BY_DTYPE(1, 32, 16)},
                      narrow = {{4, 16}, 8, BY_DTYPE(4, 16, 8)}, warps4 = {{4, 32}, 16, BY_DTYPE(4, 32, 16)},
                      wide = {{4, 64}, 32, BY_DTYPE(4, 64, 32)}, block = {{8, 0}, 0, {}};

static const void *const others[2] = {(const void *)bwd_any, (const void *)bwd_sum};

static ridge_status prepare(const ridge_device *device)
{
    static const bwd_form *const forms[] = {&head, &warp, &narrow, &warps4, &wide};
    ridge_status status = host_load(device, others, 2, "rms_norm_bwd: loading kernels");

    for (int i = 0; i < 5 && !status; i++)
        status = host_load(device, &forms[i]->function[0][0], 6, "rms_norm_bwd: loading kernels");
    return status;
}

static const bwd_form *form_of(const ridge_kernel *kernel)
{
    return (const bwd_form *)kernel->variant;
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
    const bwd_form *form = form_of(kernel);
    norm_bwd_args p = norm_bwd_args_of(&bound->call);
    const bool fast = form != &block && rows_aligned(p.w, &form->rows);
    const void *function = fast ? form->function[p.x.dtype - RIDGE_F32][p.w.data && p.w.dtype == RIDGE_F32] : others[0];
    const int threads = fast ? (int)FAST_THREADS : (int)ANY_THREADS,
              together = fast ? threads / (32 * form->rows.warps) : 1;
    ridge_status status = RIDGE_OK;

    if (p.n == 0)
        return RIDGE_OK;
    p.partial = (float *)work;
    if (p.rows > 0)
        status = host_launch(device, kernel->name, function, dim3((unsigned)ridge_ceil_div(p.groups, together)),
                             threads, &p, stream);
    if (status || !p.dw.data)
        return status;
    return host_launch(device, kernel->name, others[1], dim3((unsigned)ridge_ceil_div(p.n, SUM_COLUMNS)), SUM_THREADS,
                       &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bwd_form *form = form_of(kernel);

    if (form != &block && problem->dtype[0] == RIDGE_F32 && problem->dim[1] > form->f32_held * 32 * form->rows.warps)
        return "a row does not fit the registers of its warps";
    return rows_why_not(&form->rows, problem, RIDGE_RMS_NORM_BWD_W, 1u << RIDGE_RMS_NORM_BWD_DW);
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

static const ridge_kernel rows[] = {
    ROW("head", head, 100, 0),      ROW("warp", warp, 110, 5),  ROW("narrow", narrow, 102, 8),
    ROW("warps4", warps4, 105, 10), ROW("wide", wide, 115, 20), ROW("block", block, 900, 30),
};

extern "C" const ridge_kernel_list ridge_cuda_rms_norm_bwd = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
