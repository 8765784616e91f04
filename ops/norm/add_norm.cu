/* add_norm.cu: add_rms_norm on CUDA, and rms_norm: sum, norm and codes of a row in one pass over it
 * (rows.cuh). */
#include "rows.cuh"
#include "src/math/q8_0.h"

/* The largest of `LANES` threads' magnitudes, 32 at most. */
template <int LANES> static __device__ __forceinline__ uint32_t amax_lanes(uint32_t most)
{
    if constexpr (LANES == 32) {
        return __reduce_max_sync(~0u, most);
    } else {
#pragma unroll
        for (int s = LANES / 2; s > 0; s /= 2)
            most = max(most, __shfl_xor_sync(~0u, most, s));
        return most;
    }
}

/* The largest magnitude of a run of V columns; past the row, where 0 * factor may be NaN, 0. */
template <int V> static __device__ __forceinline__ uint32_t amax_run(const float *v, bool inside)
{
    uint32_t most = 0;

#pragma unroll
    for (int k = 0; k < V; k++)
        most = max(most, ridge_magnitude(v[k]));
    return inside ? most : 0;
}

/* The codes of a run of V columns. */
template <int V> static __device__ __forceinline__ void store_codes(char *to, const uint32_t *words)
{
    if (V == 1)
        *(uint8_t *)to = (uint8_t)words[0];
    else if (V == 2)
        *(uint16_t *)to = (uint16_t)words[0];
    else
        *(uint2 *)to = make_uint2(words[0], words[1]);
}

template <int V>
static __device__ __forceinline__ void run_fp8(const add_norm_args &p, int64_t row, int64_t j, const float *v,
                                               uint32_t most)
{
    const bool e5m2 = p.out.dtype == RIDGE_E5M2;
    const float scale = ridge_fp8_scale(most, 0.0f, e5m2, p.pow2), r = ridge_fp8_reciprocal(scale);
    uint32_t words[2] = {0, 0};

    if (j >= p.n)
        return;
#pragma unroll
    for (int k = 0; k < V; k += 2)
        words[k / 4] |= num_fp8x2(v[k + 1 < V ? k + 1 : k] * r, v[k] * r, e5m2) << (k % 4 * 8);
    store_codes<V>(p.out.data + row * p.out.stride + j, words);
    if (j % RIDGE_GROUP == 0)
        p.scale[j / RIDGE_GROUP * p.ld + row] = scale;
}

template <int V>
static __device__ __forceinline__ void run_q8_0(const add_norm_args &p, int64_t row, int64_t j, const float *v)
{
    const uint32_t most = amax_lanes<RIDGE_Q8_0_BLOCK / V>(amax_run<V>(v, j < p.n));
    uint32_t words[2] = {0, 0};
    float r;
    const float scale = ridge_q8_0_x_scale(most, &r);

    if (j >= p.n)
        return;
#pragma unroll
    for (int k = 0; k < V; k++)
        words[k / 4] |= (uint32_t)(uint8_t)ridge_q8_0_x_code(v[k], r) << (k % 4 * 8);
    store_codes<V>(p.out.data + row * p.out.stride + j, words);
    if (j % RIDGE_Q8_0_BLOCK == 0)
        p.scale[row * p.ld + j / RIDGE_Q8_0_BLOCK] = scale;
}

/* Runs of V columns every 256 from `col` on as codes. An fp8 group of 128 columns is 128 / V threads: part of a warp,
 * or several warps, whose maxima meet in shared memory. */
template <int V, int STEPS>
static __device__ __forceinline__ void store_runs(const add_norm_args &p, int64_t row, int64_t col, const float *v)
{
    constexpr int THREADS = RIDGE_GROUP / V, LANES = THREADS < 32 ? THREADS : 32, WARPS = THREADS / LANES;
    __shared__ uint32_t meet[WARPS > 1 ? STEPS : 1][8];
    const int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
    uint32_t most[STEPS];

    if (p.out.dtype == RIDGE_I8) {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            run_q8_0<V>(p, row, col + PARTS * i, v + V * i);
        return;
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        most[i] = amax_lanes<LANES>(amax_run<V>(v + V * i, col + PARTS * i < p.n));
    if (WARPS > 1) {
        __syncthreads(); /* the preceding call has read `meet` before this one writes it */
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            meet[i][warp] = most[i];
        __syncthreads(); /* all warps' maxima are written before they are read */
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int k = 0; k < WARPS; k++)
                most[i] = max(most[i], meet[i][first + k]);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        run_fp8<V>(p, row, col + PARTS * i, v + V * i, most[i]);
}

template <int DTYPE, int HELD> static __device__ __forceinline__ void pack(const float *v, uint32_t *raw)
{
    constexpr int WORDS = ROWS_WORDS(DTYPE, HELD);
    uint32_t taint = 0;

#pragma unroll
    for (int i = 0; i < WORDS; i++)
        raw[i] = rows_word<DTYPE>(v + HELD / WORDS * i, &taint);
    rows_mend<DTYPE, WORDS>(raw, taint);
}

/* Operands of one dtype, weights of WEIGHTS; CODES: out is fp8 or i8. */
template <int W, int HELD, int DTYPE, int WEIGHTS, bool CODES>
static __global__ void __launch_bounds__(FAST_THREADS, HELD > 32 ? 3 : 4)
    add_norm_fast(const __grid_constant__ add_norm_args p)
{
    constexpr int V = 8 / W, TOGETHER = FAST_THREADS / (32 * W), SIZE = DTYPE == RIDGE_F32 ? 4 : 2;
    constexpr int WORDS = ROWS_WORDS(DTYPE, HELD);
    __shared__ float part[TOGETHER][PARTS];
    const int at = threadIdx.x / (32 * W), thread = threadIdx.x % (32 * W), col = thread * V;
    const int64_t row = (int64_t)blockIdx.x * TOGETHER + at;
    const int left = (int)p.n - col;
    uint32_t x[WORDS], more[WORDS], w[ROWS_WORDS(WEIGHTS, HELD)];
    float v[HELD], sums[V] = {}, factor;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (TOGETHER > 1 && row >= p.rows) /* a whole warp */
        return;
    rows_load<DTYPE, V, HELD>(p.x.data + row * p.x.stride + col * SIZE, left, 0, x);
    rows_load<DTYPE, V, HELD>(p.residual.data + row * p.residual.stride + col * SIZE, p.residual.data ? left : 0,
                              ROWS_NONE(DTYPE), more);
    rows_load<WEIGHTS, V, HELD>(p.w.data + col * (WEIGHTS == RIDGE_F32 ? 4 : 2), p.w.data ? left : 0, ROWS_ONE(WEIGHTS),
                                w);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        v[k] = rows_value<DTYPE>(x, k) + rows_value<DTYPE>(more, k);
    pack<DTYPE, HELD>(v, x);
    if (p.sum.data)
        rows_store<DTYPE, V, HELD>(p.sum.data + row * p.sum.stride + col * SIZE, left, x);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        v[k] = rows_value<DTYPE>(x, k);
        sums[k % V] = ridge_fma(v[k], v[k], sums[k % V]); /* past the row 0 is added to what is not -0 */
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        part[at][thread * V + k] = sums[k];
    rows_sync<W>(); /* all partial sums are written before they are read */
    factor = ridge_rms_factor(rows_tree(part[at]), p.n, p.eps);
#pragma unroll
    for (int k = 0; k < HELD; k++)
        v[k] = v[k] * factor * rows_value<WEIGHTS>(w, k);
    if (CODES) {
        store_runs<V, HELD / V>(p, row, col, v);
    } else {
        pack<DTYPE, HELD>(v, x);
        rows_store<DTYPE, V, HELD>(p.out.data + row * p.out.stride + col * SIZE, left, x);
    }
}

/* Element j of what is normed: of x, or of the rounded sum. */
static __device__ __forceinline__ float summand(const add_norm_args &p, int64_t row, int64_t j)
{
    const float x = rows_element(p.x, row, j);

    return p.residual.data ? rows_rounded(p.residual.dtype, x + rows_element(p.residual, row, j)) : x;
}

/* Any dtypes, alignment and length. */
static __global__ void __launch_bounds__(ANY_THREADS) add_norm_any(const __grid_constant__ add_norm_args p)
{
    __shared__ float part[PARTS];
    const int64_t row = blockIdx.x;
    float sum = 0.0f, factor;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < p.n; j += PARTS) {
        const float v = summand(p, row, j);

        if (p.sum.data)
            rows_put(p.sum, row, j, v);
        sum = ridge_fma(v, v, sum);
    }
    part[threadIdx.x] = sum;
    __syncthreads(); /* all partial sums are written before they are read */
    factor = ridge_rms_factor(rows_tree(part), p.n, p.eps);
    for (int64_t j = threadIdx.x; j - threadIdx.x < p.n; j += PARTS) {
        float v = 0.0f; /* past the row, where a thread takes part in a group's maximum */

        if (j < p.n) {
            v = (p.sum.data ? rows_element(p.sum, row, j) : summand(p, row, j)) * factor;
            v = p.w.data ? v * rows_element(p.w, 0, j) : v;
        }
        if (p.scale)
            store_runs<1, 1>(p, row, j, &v);
        else if (j < p.n)
            rows_put(p.out, row, j, v);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_CODES(w, held, dtype, weights)                              \
    {                                                                  \
        (const void *)add_norm_fast<w, held, dtype, weights, false>,   \
            (const void *)add_norm_fast<w, held, dtype, weights, true> \
    }
/* [f32, f16, bf16][weights of that dtype, f32][codes] */
#define BY_DTYPE(w, held, f32_held)                                                                 \
    {                                                                                               \
        {BY_CODES(w, f32_held, RIDGE_F32, RIDGE_F32), BY_CODES(w, f32_held, RIDGE_F32, RIDGE_F32)}, \
            {BY_CODES(w, held, RIDGE_F16, RIDGE_F16), BY_CODES(w, held, RIDGE_F16, RIDGE_F32)},     \
        {                                                                                           \
            BY_CODES(w, held, RIDGE_BF16, RIDGE_BF16), BY_CODES(w, held, RIDGE_BF16, RIDGE_F32)     \
        }                                                                                           \
    }

typedef const void *const functions_of_form[3][2][2];

static functions_of_form by_warp = BY_DTYPE(1, 32, 32), by_warps = BY_DTYPE(4, 32, 32), by_wide = BY_DTYPE(4, 64, 32);
static const void *const any_form[1] = {(const void *)add_norm_any};

static ridge_status prepare(const ridge_device *device)
{
    static functions_of_form *const forms[] = {&by_warp, &by_warps, &by_wide};
    ridge_status status = host_load(device, any_form, 1, "add_rms_norm: loading kernels");

    for (int i = 0; i < 3 && !status; i++)
        status = host_load(device, &(*forms[i])[0][0][0], 12, "add_rms_norm: loading kernels");
    return status;
}

static const rows_form warp = {1, 32}, warps4 = {4, 32}, warps4_wide = {4, 64}, block = {8, 0};

static const rows_form *form_of(const ridge_kernel *kernel)
{
    return (const rows_form *)kernel->variant;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const rows_form *form = form_of(kernel);
    const functions_of_form &functions = form == &warp ? by_warp : form == &warps4 ? by_warps : by_wide;
    add_norm_args p = add_norm_args_of(&bound->call);
    const int together = FAST_THREADS / (32 * form->warps);

    if (p.rows == 0 || p.n == 0)
        return RIDGE_OK;
    if (form == &block || !rows_aligned(p.w, form))
        return host_launch(device, kernel->name, any_form[0], dim3((unsigned)p.rows), ANY_THREADS, &p, stream);
    return host_launch(device, kernel->name,
                       functions[p.x.dtype - RIDGE_F32][p.w.data && p.w.dtype == RIDGE_F32][p.scale != NULL],
                       dim3((unsigned)ridge_ceil_div(p.rows, together)), FAST_THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool add = problem->op == RIDGE_ADD_RMS_NORM;
    const bool codes = add && problem->dtype[RIDGE_ADD_RMS_NORM_SCALE] != RIDGE_NONE;

    if (form_of(kernel) == &warps4_wide && problem->dtype[0] == RIDGE_F32)
        return "operands are f32";
    return rows_why_not(form_of(kernel), problem, add ? (int)RIDGE_ADD_RMS_NORM_W : (int)RIDGE_RMS_NORM_W,
                        codes ? 1u << RIDGE_ADD_RMS_NORM_OUT | 1u << RIDGE_ADD_RMS_NORM_SCALE : 0);
}

/* A latency that grows with what a thread does one after the other, plus the bytes' time at the copy rate. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double n = (double)problem->dim[1], rows = (double)problem->dim[0];

    return 2.0 + 1e-2 * kernel->param[1] + n / 256 * (form_of(kernel) == &block ? 0.1 : 0.02) +
           rows * n * 8e-3 / device->copy_gbps * 0.01 * kernel->param[0];
}

#define ROW(op_name, op_id, name, form, percent, latency)                                                          \
    {                                                                                                              \
        "cuda." op_name "." name, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                                    \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, &form, {percent, latency}, \
            why_not, NULL, cost, launch                                                                            \
    }
#define ADD(name, form, percent, latency) ROW("add_rms_norm", RIDGE_ADD_RMS_NORM, name, form, percent, latency)
#define RMS(name, form, percent, latency) ROW("rms_norm", RIDGE_RMS_NORM, name, form, percent, latency)

static const ridge_kernel rows[] = {
    ADD("warp", warp, 100, 0),
    ADD("warps4", warps4, 102, 10),
    ADD("warps4.wide", warps4_wide, 105, 20),
    ADD("block", block, 300, 30),
    RMS("warp", warp, 100, 0), /* what they cannot run is norm.cu's */
    RMS("warps4", warps4, 102, 10),
    RMS("warps4.wide", warps4_wide, 105, 20),
};

extern "C" const ridge_kernel_list ridge_cuda_add_rms_norm = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
