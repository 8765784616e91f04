/* rope.cu: rope on CUDA.
 *
 * A block takes some tokens: it loads the first columns of its threads, computes the tokens' sines and cosines into
 * shared memory meanwhile, and rotates. A unit of work is two vectors of 16 bytes: of halves one from each half, else
 * consecutive ones. The row for any alignment has a thread for each pair of a token, which goes through the heads. */
#include "rows.cuh"

enum { THREADS = 128, AHEAD = 2, PAIR_THREADS = 256 };

static __device__ __forceinline__ int64_t position(const rope_args &p, int64_t token)
{
    return p.pos64 ? ((const int64_t *)p.pos)[token] : ((const int32_t *)p.pos)[token];
}

/* Where a unit's two vectors are, in columns of the token, and the first of its pairs; -1: it is copied. */
typedef struct rope_unit {
    int64_t token;
    int at, first, second, pair; /* at: the token's number in the block */
} rope_unit;

template <int V> static __device__ __forceinline__ rope_unit unit_of(const rope_args &p, int64_t base, int index)
{
    const int units = (int)p.n / (2 * V), rotated = (int)p.n_rot / (2 * V), heads = (int)p.heads;
    const int unit = index % units, head = index / units % heads;
    const bool halves = p.halves && unit < rotated;
    rope_unit u;

    u.at = index / units / heads;
    u.token = base + u.at;
    u.first = head * (int)p.n + unit * (halves ? V : 2 * V);
    u.second = u.first + (halves ? (int)p.n_rot / 2 : V);
    u.pair = unit < rotated ? unit * V : -1;
    return u;
}

template <int DTYPE>
static __device__ __forceinline__ void rotate(const rope_args &p, const float2 *angle, rope_unit u, uint4 a, uint4 b)
{
    constexpr int V = DTYPE == RIDGE_F32 ? 4 : 8, SIZE = 16 / V;
    char *out = p.out.data + u.token * p.out.stride;
    float x[2 * V];

    num_unpack<DTYPE>(a, x);
    num_unpack<DTYPE>(b, x + V);
    if (u.pair >= 0) {
        const float2 *cs = angle + u.at * (int)p.n_rot / 2 + u.pair;

#pragma unroll
        for (int i = 0; i < V; i++) {
            const float2 t = cs[i];
            const float x0 = p.halves ? x[i] : x[2 * i], x1 = p.halves ? x[V + i] : x[2 * i + 1];
            float y0, y1;

            ridge_rope_rotate(x0, x1, t.x, t.y, &y0, &y1);
            if (p.halves)
                x[i] = y0, x[V + i] = y1;
            else
                x[2 * i] = y0, x[2 * i + 1] = y1;
        }
    }
    ptx_store_once(out + (int64_t)u.first * SIZE, num_pack<DTYPE>(x));
    ptx_store_once(out + (int64_t)u.second * SIZE, num_pack<DTYPE>(x + V));
}

template <int DTYPE> static __global__ void __launch_bounds__(THREADS) rope_vectors(const __grid_constant__ rope_args p)
{
    constexpr int V = DTYPE == RIDGE_F32 ? 4 : 8, SIZE = 16 / V;
    extern __shared__ float2 angle[];
    const int64_t base = (int64_t)blockIdx.x * p.batch;
    const int tokens = (int)min((int64_t)p.batch, p.tokens - base), pairs = (int)p.n_rot / 2;
    const int total = tokens * (int)p.heads * ((int)p.n / (2 * V));
    uint4 a[AHEAD], b[AHEAD];

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const int index = threadIdx.x + THREADS * i;

        if (index < total) {
            const rope_unit u = unit_of<V>(p, base, index);
            const char *x = p.x.data + u.token * p.x.stride;

            a[i] = ptx_load_once(x + (int64_t)u.first * SIZE);
            b[i] = ptx_load_once(x + (int64_t)u.second * SIZE);
        }
    }
    for (int i = threadIdx.x; i < tokens * pairs; i += THREADS)
        ridge_rope_angle(position(p, base + i / pairs), p.freqs[i % pairs], p.mscale, p.inverse, &angle[i].x,
                         &angle[i].y);
    __syncthreads(); /* all angles are written before they are read */
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if ((int)threadIdx.x + THREADS * i < total)
            rotate<DTYPE>(p, angle, unit_of<V>(p, base, threadIdx.x + THREADS * i), a[i], b[i]);
    for (int index = threadIdx.x + THREADS * AHEAD; index < total; index += THREADS) {
        const rope_unit u = unit_of<V>(p, base, index);
        const char *x = p.x.data + u.token * p.x.stride;

        rotate<DTYPE>(p, angle, u, ptx_load_once(x + (int64_t)u.first * SIZE),
                      ptx_load_once(x + (int64_t)u.second * SIZE));
    }
}

/* Pair i of a token in every head, or a pair of columns that is copied. */
static __global__ void __launch_bounds__(PAIR_THREADS) rope_pairs(const __grid_constant__ rope_args p)
{
    const int64_t per_token = p.n / 2, index = (int64_t)blockIdx.x * PAIR_THREADS + threadIdx.x;
    const int64_t token = index / per_token, i = index % per_token, pairs = p.n_rot / 2;
    const bool halves = p.halves && i < pairs;
    const int64_t first = halves ? i : 2 * i, second = halves ? i + pairs : 2 * i + 1;
    float c, s;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (token >= p.tokens)
        return;
    if (i < pairs)
        ridge_rope_angle(position(p, token), p.freqs[i], p.mscale, p.inverse, &c, &s);
    for (int64_t head = 0; head < p.heads * p.n; head += p.n) {
        float y0 = rows_element(p.x, token, head + first), y1 = rows_element(p.x, token, head + second);

        if (i < pairs)
            ridge_rope_rotate(y0, y1, c, s, &y0, &y1);
        rows_put(p.out, token, head + first, y0);
        rows_put(p.out, token, head + second, y1);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[4] = {(const void *)rope_vectors<RIDGE_F32>, (const void *)rope_vectors<RIDGE_F16>,
                                         (const void *)rope_vectors<RIDGE_BF16>, (const void *)rope_pairs};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 4, "rope: loading kernels");
}

enum { MOST_SHARED = 40 << 10 };

static ridge_status launch_vectors(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                   void *, size_t, void *stream)
{
    rope_args p = rope_args_of(&bound->call);
    const int64_t units = p.heads * p.n / (p.x.dtype == RIDGE_F32 ? 8 : 16), angles = p.n_rot / 2 * 8;

    if (p.tokens == 0 || units == 0)
        return RIDGE_OK;
    p.batch = (int)ridge_ceil_div(THREADS * AHEAD, units);
    if (p.tokens < 16 * (int64_t)device->units) /* few tokens: a block each */
        p.batch = 1;
    if (angles > 0 && p.batch * angles > MOST_SHARED)
        p.batch = (int)(MOST_SHARED / angles);
    return host_launch_shared(device, kernel->name, functions[p.x.dtype - RIDGE_F32],
                              dim3((unsigned)ridge_ceil_div(p.tokens, p.batch)), THREADS, (size_t)(p.batch * angles),
                              &p, stream);
}

static ridge_status launch_pairs(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                 void *, size_t, void *stream)
{
    rope_args p = rope_args_of(&bound->call);

    if (p.tokens == 0 || p.heads == 0 || p.n == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[3],
                       dim3((unsigned)ridge_ceil_div(p.tokens * (p.n / 2), PAIR_THREADS)), PAIR_THREADS, &p, stream);
}

static const char *why_not_vectors(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t unit = problem->dtype[RIDGE_ROPE_X] == RIDGE_F32 ? 8 : 16, heads = problem->dim[1];

    if (problem->dtype[RIDGE_ROPE_X] != problem->dtype[RIDGE_ROPE_OUT])
        return "x and out have different dtypes";
    if (problem->align < 4)
        return "operands are not aligned to 16 bytes";
    if (problem->dim[2] % unit || problem->dim[3] % unit)
        return unit == 8 ? "head_dim or n_rot is no multiple of 8" : "head_dim or n_rot is no multiple of 16";
    if (problem->dim[3] / 2 * 8 > MOST_SHARED)
        return "the angles of a token do not fit shared memory";
    if (problem->dim[0] > 0x7fffffff || (heads > 0 && problem->dim[2] > (1 << 24) / heads))
        return "more than 2^31 - 1 tokens, or 2^24 columns";
    return NULL;
}

static const char *why_not_pairs(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (double)problem->dim[0] * (double)problem->dim[2] / 2 / PAIR_THREADS > 2147483646.0
               ? "more than 2^31 - 1 thread blocks"
               : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double elements = (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2];

    return 3 + elements * 4e-3 / device->copy_gbps * 0.01 * kernel->param[0];
}

#define ROW(name, percent, why_not, launch)                                                                          \
    {                                                                                                                \
        "cuda.rope." name, RIDGE_ROPE, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                                        \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {percent}, why_not, NULL, \
            cost, launch                                                                                             \
    }

static const ridge_kernel rows[] = {ROW("vectors", 105, why_not_vectors, launch_vectors),
                                    ROW("pairs", 400, why_not_pairs, launch_pairs)};

extern "C" const ridge_kernel_list ridge_cuda_rope = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
