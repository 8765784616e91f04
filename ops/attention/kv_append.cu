/* kv_append.cu: kv_append on CUDA. A warp computes a head of a token: lane l holds columns l + 32 i, which are the
 * partial sums of rms_norm's order (src/math/norm.h); the head then lies in shared memory, where either form of pairs
 * is read. In decoding the time is that of one load after another, so position, head, bias, weights and frequencies are
 * requested together, and the angles are computed while the head arrives. */
#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };
enum { FEW = 128 / 32, MANY = RIDGE_MAX_HEAD_DIM / 32 }; /* columns that a lane holds */
enum { AHEAD = FEW / 2 }; /* pairs of a lane whose angles are computed before the head arrives */

static __device__ __forceinline__ void store(void *base, int64_t i, float v, int dtype)
{
    if (dtype == RIDGE_F32)
        num_store<RIDGE_F32>(base, i, v);
    else if (dtype == RIDGE_BF16)
        num_store<RIDGE_BF16>(base, i, v);
    else
        num_store<RIDGE_F16>(base, i, v);
}

/* q8_0_quantize of a head by a warp, a block at a time. */
static __device__ __forceinline__ void store_blocks(char *to, const float *row, int n)
{
    const int lane = threadIdx.x % 32;

    for (int b = 0; b < n; b += RIDGE_Q8_0_BLOCK, to += RIDGE_Q8_0_BYTES) {
        const float x = row[b + lane];
        const uint32_t amax = __reduce_max_sync(~0u, ridge_magnitude(x));
        float r;
        const float d = ridge_q8_0_scale(amax, &r);

        if (lane == 0) { /* a block may lie at an odd address */
            const uint32_t bits = num_canonical<RIDGE_F16>(num_pack2<RIDGE_F16>(d, 0.0f) & 0xffffu);

            to[0] = (char)bits;
            to[1] = (char)(bits >> 8);
        }
        to[2 + lane] = (char)ridge_q8_0_code(x * r);
    }
}

/* The norm of a head in the registers of a warp, as its weights are. */
template <int HELD> static __device__ __forceinline__ void norm(const append_args &p, const float *w, float *y)
{
    float part[8], factor;

#pragma unroll
    for (int i = 0; i < 8; i++) { /* columns past the head are +0 and change no sum */
        part[i] = i < HELD ? ridge_fma(y[i % HELD], y[i % HELD], 0.0f) : 0.0f;
        if (HELD > 8)
            part[i] = ridge_fma(y[(i + 8) % HELD], y[(i + 8) % HELD], part[i]);
    }
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            part[i] += part[i + s];
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
        part[0] += __shfl_down_sync(~0u, part[0], s);
    factor = ridge_rms_factor(__shfl_sync(~0u, part[0], 0), p.n, p.eps);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        y[i] = y[i] * factor * w[i];
}

/* Turns the pair of `row` and the element `far` behind it. */
static __device__ __forceinline__ void turn(float *row, int far, float c, float s)
{
    float y0, y1;

    ridge_rope_rotate(row[0], row[far], c, s, &y0, &y1);
    row[0] = y0;
    row[far] = y1;
}

template <int HELD> static __global__ void __launch_bounds__(THREADS) append(const __grid_constant__ append_args p)
{
    __shared__ float rows[WARPS][32 * HELD];
    const int lane = threadIdx.x % 32, all = (int)(p.heads + 2 * p.kv_heads), n = (int)p.n;
    const int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t = index / all;
    const int h = (int)(index % all), kv = h - (int)p.heads;
    const bool is_v = kv >= p.kv_heads;
    float *row = rows[threadIdx.x / 32], y[HELD];

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (t >= p.tokens) /* warps exit whole */
        return;
    const bool is_q = kv < 0;
    const int64_t first = (int64_t)h * n;
    const float *w = is_q ? p.q_norm : is_v ? NULL : p.k_norm;
    const char *x = p.x + t * p.x_stride;
    const int dtype = is_q ? (p.out_bf16 ? (int)RIDGE_BF16 : (int)RIDGE_F32) : (int)p.kv;
    const int turned = is_v ? 0 : (int)p.n_rot, far = p.halves ? turned / 2 : 1, step = p.halves ? 1 : 2;
    const int64_t pos = p.pos[t];
    double freq[AHEAD];
    float bias[HELD], weight[HELD], c[AHEAD], s[AHEAD];

#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        freq[i] = lane + 32 * i < turned / 2 ? p.freqs[lane + 32 * i] : 0.0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int64_t at = first + lane + 32 * i;

        y[i] = bias[i] = weight[i] = 0.0f;
        if (lane + 32 * i < n) {
            y[i] = p.x_bf16 ? num_load<RIDGE_BF16>(x, at) : num_load<RIDGE_F32>(x, at);
            if (p.bias)
                bias[i] = p.bias[at];
            if (w)
                weight[i] = w[lane + 32 * i];
        }
    }
    if (!is_q && (pos < 0 || pos >= p.positions))
        return;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (32 * i < turned / 2)
            ridge_rope_angle(pos, freq[i], p.mscale, 0, &c[i], &s[i]);
    if (p.bias)
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (lane + 32 * i < n)
                y[i] += bias[i];
    if (w)
        norm<HELD>(p, weight, y);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + 32 * i < n)
            row[lane + 32 * i] = y[i];
    __syncwarp(); /* the head is written before other lanes read it */
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (lane + 32 * i < turned / 2)
            turn(row + step * (lane + 32 * i), far, c[i], s[i]);
    for (int i = lane + 32 * AHEAD; i < turned / 2; i += 32) {
        ridge_rope_angle(pos, p.freqs[i], p.mscale, 0, &c[0], &s[0]);
        turn(row + step * i, far, c[0], s[0]);
    }
    __syncwarp(); /* the head is turned before other lanes read it */
    char *to = is_q   ? p.out + t * p.out_stride + first * (p.out_bf16 ? 2 : 4)
               : is_v ? p.v + (kv - p.kv_heads) * p.v_stride + pos * p.kv_row
                      : p.k + kv * p.k_stride + pos * p.kv_row;

    if (dtype == RIDGE_U8)
        store_blocks(to, row, n);
    else
        for (int i = lane; i < n; i += 32)
            store(to, i, row[i], dtype);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[2] = {(const void *)append<FEW>, (const void *)append<MANY>};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 2, "kv_append: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    append_args p = append_args_of(&bound->call);
    const int64_t heads = p.tokens * (p.heads + 2 * p.kv_heads);

    if (heads == 0 || p.n == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[p.n > 32 * FEW], dim3((unsigned)ridge_ceil_div(heads, WARPS)),
                       THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const double heads = (double)problem->dim[1] + 2 * (double)problem->dim[2];

    return (double)problem->dim[0] * heads > 2147483647.0 ? "more than 2^31 - 1 heads of tokens" : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double heads = (double)problem->dim[1] + 2 * (double)problem->dim[2];

    return 3 + heads * (double)problem->dim[0] * (double)problem->dim[3] * 8e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.kv_append.warp",
     RIDGE_KV_APPEND,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_kv_append = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
