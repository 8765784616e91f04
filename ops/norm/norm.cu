/* norm.cu: head_rms_norm_rope_tail on CUDA, and rms_norm of any alignment and width (add_norm.cu has its faster rows).
 *
 * A warp or a block of 256 threads computes a head, a block a row. Column j belongs to partial sum j % 256 of the
 * canonical order (src/math/norm.h): each thread of a block has one partial sum; lane l of a warp has the partial sums
 * l + 32 i. The tree adds halves onto halves: partial sums 32 or more apart in registers or shared memory, the rest by
 * shuffles. A warp reads x twice, the second time from cache. */
#include "rows.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

static __device__ __forceinline__ float load(const void *base, int64_t i, int bf16)
{
    return bf16 ? num_load<RIDGE_BF16>(base, i) : num_load<RIDGE_F32>(base, i);
}

static __device__ __forceinline__ void store(void *base, int64_t i, float v, int bf16)
{
    if (bf16)
        num_store<RIDGE_BF16>(base, i, v);
    else
        num_store<RIDGE_F32>(base, i, v);
}

/* The last five steps of the tree, s = 16 .. 1: lane 0 gets the sum. */
static __device__ __forceinline__ float warp_tree(float v)
{
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
        v += __shfl_down_sync(~0u, v, s);
    return v;
}

/* The sum of squares by one warp; every lane gets it. */
static __device__ float sum_warp(const norm_args &p, const char *x)
{
    const int lane = threadIdx.x % 32;
    float part[8] = {};

    for (int64_t j = lane; j < p.n; j += PARTS) {
        float v[8];

#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = j + 32 * i < p.n ? load(x, j + 32 * i, p.x_bf16) : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++)
            part[i] = ridge_fma(v[i], v[i], part[i]); /* past the row +0 is added to a partial sum that is not -0 */
    }
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            part[i] += part[i + s];
    return __shfl_sync(~0u, warp_tree(part[0]), 0);
}

enum { HELD = 16 };

/* HELD columns of this thread of a block, from column j on: addresses that differ by constants. */
template <int DTYPE>
static __device__ __forceinline__ void load_columns(const void *base, int64_t j, int64_t n, float *v)
{
    const char *from = (const char *)base + j * (DTYPE == RIDGE_F32 ? 4 : 2);
    const int left = (int)min(n - j, (int64_t)(PARTS * HELD));

#pragma unroll
    for (int i = 0; i < HELD; i++)
        v[i] = PARTS * i < left ? num_load<DTYPE>(from, PARTS * i) : 0.0f;
}

static __device__ __forceinline__ void load_held(const void *base, int64_t j, int64_t n, int bf16, float *v)
{
    if (bf16)
        load_columns<RIDGE_BF16>(base, j, n, v);
    else
        load_columns<RIDGE_F32>(base, j, n, v);
}

template <int DTYPE>
static __device__ __forceinline__ void store_columns(void *base, int64_t j, int64_t n, const float *v)
{
    char *to = (char *)base + j * (DTYPE == RIDGE_F32 ? 4 : 2);
    const int left = (int)min(n - j, (int64_t)(PARTS * HELD));

#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (PARTS * i < left)
            num_store<DTYPE>(to, PARTS * i, v[i]);
}

static __device__ __forceinline__ float add_squares(const float *v, float sum)
{
#pragma unroll
    for (int i = 0; i < HELD; i++)
        sum = ridge_fma(v[i], v[i], sum); /* past the row +0 is added to a partial sum that is not -0 */
    return sum;
}

/* Adds the squares of this thread's columns from column j on. */
static __device__ __forceinline__ float add_columns(const norm_args &p, const char *x, int64_t j, float sum)
{
    for (; j < p.n; j += PARTS * HELD) {
        float v[HELD];

        load_held(x, j, p.n, p.x_bf16, v);
        sum = add_squares(v, sum);
    }
    return sum;
}

/* The sum of the partial sums of a block's threads; each warp adds all of them, so that every thread gets it behind one
 * barrier. */
static __device__ __forceinline__ float sum_block(float sum)
{
    __shared__ float part[PARTS];

    part[threadIdx.x] = sum;
    __syncthreads(); /* all partial sums are written before they are read */
    return rows_tree(part);
}

static __device__ __forceinline__ float element(const norm_args &p, const char *x, int64_t j, float factor)
{
    float y = load(x, j, p.x_bf16);

    y = p.norm ? y * factor : y;
    return p.w ? y * load(p.w, j, p.w_bf16) : y;
}

/* rms_norm of one row by a block, with the row and the weights in registers before the sum is known. */
static __global__ void __launch_bounds__(THREADS, 2) rms_block(const __grid_constant__ norm_args p)
{
    const char *x = p.x + blockIdx.x * p.stride;
    char *out = p.out + blockIdx.x * p.out_stride;
    float v[HELD], w[HELD], factor;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (p.w)
        load_held(p.w, threadIdx.x, p.n, p.w_bf16, w);
    load_held(x, threadIdx.x, p.n, p.x_bf16, v);
    factor = add_columns(p, x, (int64_t)threadIdx.x + PARTS * HELD, add_squares(v, 0.0f));
    factor = ridge_rms_factor(sum_block(factor), p.n, p.eps);
    for (int64_t j = threadIdx.x;;) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            v[i] = p.w ? v[i] * factor * w[i] : v[i] * factor;
        if (p.out_bf16)
            store_columns<RIDGE_BF16>(out, j, p.n, v);
        else
            store_columns<RIDGE_F32>(out, j, p.n, v);
        j += PARTS * HELD;
        if (j >= p.n)
            return;
        load_held(x, j, p.n, p.x_bf16, v);
        if (p.w)
            load_held(p.w, j, p.n, p.w_bf16, w);
    }
}

/* The angle of pair i of a token. */
static __device__ __forceinline__ void find_angle(const norm_args &p, int64_t token, int64_t i, float *c, float *s)
{
    const int64_t pos = p.pos64 ? ((const int64_t *)p.pos)[token] : ((const int32_t *)p.pos)[token];

    ridge_rope_angle(pos, p.freqs[i], p.mscale, p.inverse, c, s);
}

/* A head by a warp. */
static __global__ void __launch_bounds__(THREADS, 2) head_warp(const __grid_constant__ norm_args p)
{
    const int lane = threadIdx.x % 32;
    const int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int64_t token = index / p.heads, head = index % p.heads, tail = p.n - p.n_rot;
    const char *x = p.x + token * p.stride + head * p.n * (p.x_bf16 ? 2 : 4);
    char *out = p.out + token * p.out_stride + head * p.n * (p.out_bf16 ? 2 : 4);
    float factor = 1.0f;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (token >= p.rows) /* a whole warp */
        return;
    if (p.norm)
        factor = ridge_rms_factor(sum_warp(p, x), p.n, p.eps);
    for (int64_t i = lane; i < p.n_rot / 2; i += 32) {
        const int64_t j = tail + 2 * i;
        float c, s, y0, y1;

        find_angle(p, token, i, &c, &s);
        ridge_rope_rotate(element(p, x, j, factor), element(p, x, j + 1, factor), c, s, &y0, &y1);
        store(out, j, y0, p.out_bf16);
        store(out, j + 1, y1, p.out_bf16);
    }
    for (int64_t j = lane; j < tail; j += 32)
        store(out, j, element(p, x, j, factor), p.out_bf16);
}

/* A head by a block, whose last warps make the angles while x is loaded. A pair of columns is one of neighbouring
 * threads. */
static __global__ void __launch_bounds__(THREADS, 2) head_block(const __grid_constant__ norm_args p)
{
    extern __shared__ float2 angle[]; /* of the n_rot / 2 pairs */
    const int64_t token = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
    const int n = (int)p.n, tail = n - (int)p.n_rot;
    const char *x = p.x + token * p.stride + head * p.n * (p.x_bf16 ? 2 : 4);
    char *out = p.out + token * p.out_stride + head * p.n * (p.out_bf16 ? 2 : 4);
    float v[HELD], w[HELD], factor = 1.0f;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    load_held(x, threadIdx.x, p.n, p.x_bf16, v);
    if (p.w)
        load_held(p.w, threadIdx.x, p.n, p.w_bf16, w);
    for (int i = THREADS - 1 - (int)threadIdx.x; i < (int)p.n_rot / 2; i += THREADS)
        find_angle(p, token, i, &angle[i].x, &angle[i].y);
    factor = sum_block(add_squares(v, 0.0f)); /* its barrier also orders the angles before their reads */
    factor = p.norm ? ridge_rms_factor(factor, p.n, p.eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int j = (int)threadIdx.x + PARTS * i;
        float other;

        if (PARTS * i >= n) /* the whole block */
            break;
        v[i] = p.norm ? v[i] * factor : v[i];
        v[i] = p.w ? v[i] * w[i] : v[i];
        other = __shfl_xor_sync(~0u, v[i], 1);
        if (j >= tail && j < n) {
            const float2 turn = angle[(j - tail) / 2];
            float y0, y1;

            ridge_rope_rotate(j % 2 ? other : v[i], j % 2 ? v[i] : other, turn.x, turn.y, &y0, &y1);
            v[i] = j % 2 ? y1 : y0;
        }
        if (j < n)
            store(out, j, v[i], p.out_bf16);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[3] = {(const void *)head_warp, (const void *)head_block, (const void *)rms_block};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 3, "norm: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    norm_args p = norm_args_of(&bound->call);
    const bool block = kernel->param[0];
    const int64_t rows = p.rows * p.heads, blocks = block ? rows : ridge_ceil_div(rows, WARPS);

    if (rows == 0 || p.n == 0)
        return RIDGE_OK;
    return host_launch_shared(device, kernel->name, functions[block && bound->problem.op == RIDGE_RMS_NORM ? 2 : block],
                              dim3((unsigned)blocks), THREADS, block ? (size_t)p.n_rot * 4 : 0, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double heads = problem->op == RIDGE_RMS_NORM ? 1.0 : (double)problem->dim[1];

    if (problem->op != RIDGE_RMS_NORM && kernel->param[0] && (problem->dim[2] % 2 || problem->dim[2] > PARTS * HELD))
        return "heads of more than 4096 columns, or of an odd number";
    return (double)problem->dim[0] * heads > 2147483647.0 ? "more than 2^31 - 1 rows" : NULL;
}

/* The latency of the rounds of columns that a warp or a block goes through, plus the bytes' time at the copy rate. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool rope = problem->op != RIDGE_RMS_NORM;
    const double n = (double)problem->dim[rope ? 2 : 1],
                 rows = (double)problem->dim[0] * (rope ? (double)problem->dim[1] : 1);
    const double chain = kernel->param[0] ? (rope ? 2.0 : 2.5) + n / 1024 * 0.6 : 1.5 + n / 256 * 0.8;

    return chain + rows * n * 8e-3 / device->copy_gbps * (kernel->param[0] ? 1.2 : 1.0);
}

#define ROW(op_name, op_id, name, block)                                                                           \
    {                                                                                                              \
        "cuda." op_name "." name, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                                    \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {block}, why_not, NULL, \
            cost, launch                                                                                           \
    }

static const ridge_kernel rows[] = {
    ROW("rms_norm", RIDGE_RMS_NORM, "block", 1), /* what add_norm.cu's rows cannot run */
    ROW("head_rms_norm_rope_tail", RIDGE_HEAD_RMS_NORM_ROPE_TAIL, "warp", 0),
    ROW("head_rms_norm_rope_tail", RIDGE_HEAD_RMS_NORM_ROPE_TAIL, "block", 1),
};

extern "C" const ridge_kernel_list ridge_cuda_norm = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
