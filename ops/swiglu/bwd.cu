/* bwd.cu: dgate and dup from dout and the saved gate and up on CUDA; h is computed again, not saved.
 *
 *     dy = (dout * down_mul) * row_scale[row];  dup = dy * h;  dgate = ((dy * b) * g) * act'(a') (src/math/swiglu.h)
 *     drow[row] = sum over columns of dout * ((h * b) * down_mul), in the order of RIDGE_DROW_GROUP and
 * RIDGE_DROW_PARTS
 *
 * Moves 5 tensors' bytes (3 read, 2 written) and is bound by them. docs/measured.md has the rates. */
#include "swiglu.cuh"

/* One group of 16 bytes a tensor. */
template <int DTYPE, int ACT>
static __device__ __forceinline__ void swiglu_bwd_group(uint4 dout, uint4 gate, uint4 up, char *dgate, char *dup)
{
    constexpr int V = DTYPE == RIDGE_F32 ? 4 : 8;
    float a[V], b[V], dy[V], dh;

    num_unpack<DTYPE>(gate, a);
    num_unpack<DTYPE>(up, b);
    num_unpack<DTYPE>(dout, dy);
#pragma unroll
    for (int i = 0; i < V; i++) {
        float h = ridge_act_bwd(ACT, a[i], 1.0f, &dh);

        a[i] = dy[i] * b[i] * dh;
        b[i] = dy[i] * h;
    }
    ptx_store_once(dgate, num_pack<DTYPE>(a));
    ptx_store_once(dup, num_pack<DTYPE>(b));
}

/* Default options, aligned tensors: each thread has the loads of U groups in flight. */
template <int DTYPE, int ACT, int U>
static __global__ void __launch_bounds__(SWIGLU_PLAIN_THREADS, SWIGLU_BLOCKS(DTYPE, ACT, U == 1 ? 10 : 6, 5))
    swiglu_bwd_plain(const __grid_constant__ swiglu_args p)
{
    constexpr int V = DTYPE == RIDGE_F32 ? 4 : 8;
    const swiglu_unit unit = swiglu_locate(p);
    const int step = blockDim.x * 16;
    const int64_t first = unit.begin + threadIdx.x * V;
    const char *gate = swiglu_at<DTYPE>(p.gate, unit.row, first), *up = swiglu_at<DTYPE>(p.up, unit.row, first);
    const char *dout = swiglu_at<DTYPE>(p.dout, unit.row, first);
    char *dgate = swiglu_at<DTYPE>(p.out, unit.row, first), *dup = swiglu_at<DTYPE>(p.second, unit.row, first);
    int64_t left =
        (unit.end - unit.begin) / V - threadIdx.x; /* groups from this thread's first to the end of the unit */
    int64_t at = 0;

    ptx_grid_wait();
    if (U > 1)
        ptx_grid_release();
    for (; left > (U - 1) * (int)blockDim.x; left -= U * (int)blockDim.x) {
        uint4 a[U], b[U], dy[U];

#pragma unroll
        for (int u = 0; u < U; u++) {
            a[u] = ptx_load_once(gate + at + u * step);
            b[u] = ptx_load_once(up + at + u * step);
            dy[u] = ptx_load_once(dout + at + u * step);
        }
        if (U == 1) /* it takes its time: behind the loads, where registers allow */
            ptx_grid_release();
#pragma unroll
        for (int u = 0; u < U; u++)
            swiglu_bwd_group<DTYPE, ACT>(dy[u], a[u], b[u], dgate + at + u * step, dup + at + u * step);
        at += U * step;
    }
    for (; U > 1 && left > 0; left -= blockDim.x, at += step)
        swiglu_bwd_group<DTYPE, ACT>(ptx_load_once(dout + at), ptx_load_once(gate + at), ptx_load_once(up + at),
                                     dgate + at, dup + at);
    /* The last group of a row whose width is no multiple of V: one thread an element. */
    for (int64_t col = unit.end / V * V + threadIdx.x; col < unit.end; col += blockDim.x) {
        float y = num_load<DTYPE>(swiglu_at<DTYPE>(p.dout, unit.row, col), 0), dh;
        float x = num_load<DTYPE>(swiglu_at<DTYPE>(p.gate, unit.row, col), 0);
        float w = num_load<DTYPE>(swiglu_at<DTYPE>(p.up, unit.row, col), 0);
        float h = ridge_act_bwd(ACT, x, 1.0f, &dh);

        num_store<DTYPE>(swiglu_at<DTYPE>(p.out, unit.row, col), 0, y * w * dh);
        num_store<DTYPE>(swiglu_at<DTYPE>(p.second, unit.row, col), 0, y * h);
    }
}

/* The same for packed tensors, which are one long row: one group a thread and as many threads as fit a multiprocessor.
 */
template <int DTYPE, int ACT>
static __global__ void __launch_bounds__(SWIGLU_PLAIN_THREADS, SWIGLU_BLOCKS(DTYPE, ACT, 12, 8))
    swiglu_bwd_flat(const __grid_constant__ swiglu_args p)
{
    const swiglu_place at = swiglu_place_of<DTYPE>(p);

    ptx_grid_wait();
    if (at.group) {
        const uint4 a = ptx_load_once(p.gate.data + at.byte), b = ptx_load_once(p.up.data + at.byte);
        const uint4 dy = ptx_load_once(p.dout.data + at.byte);

        ptx_grid_release(); /* takes time: behind the loads */
        swiglu_bwd_group<DTYPE, ACT>(dy, a, b, p.out.data + at.byte, p.second.data + at.byte);
    } else if (at.element) {
        const float x = num_load<DTYPE>(p.gate.data + at.byte, 0), w = num_load<DTYPE>(p.up.data + at.byte, 0);
        const float y = num_load<DTYPE>(p.dout.data + at.byte, 0);
        float dh, h = ridge_act_bwd(ACT, x, 1.0f, &dh);

        num_store<DTYPE>(p.out.data + at.byte, 0, y * w * dh);
        num_store<DTYPE>(p.second.data + at.byte, 0, y * h);
    }
}

/* One element of the general kernel; returns its term of drow. */
template <int DTYPE, int ACT, int DEFAULTS>
static __device__ __forceinline__ float swiglu_bwd_element(const ridge_swiglu_options &o, bool round, float scale,
                                                           float dout, float *gate, float *up)
{
    float b = DEFAULTS ? *up : ridge_swiglu_up(*up, o), dh;
    float h = ridge_act_bwd(ACT, DEFAULTS ? *gate : ridge_swiglu_gate(*gate, o), o.alpha, &dh);
    float dy = ridge_swiglu_scale(dout, scale, o), dyb = dy * b;
    float db = dy * (round ? num_round<DTYPE>(h) : h);

    *up = ridge_swiglu_dup(db, *up, o);
    *gate = ridge_swiglu_dgate(round ? num_round<DTYPE>(dyb) : dyb, dh, *gate, o);
    return dout * ridge_swiglu_drow(h, b, o);
}

/* drow of a row from the 256 threads' partial sums: the fixed tree. The shared memory is there only if drow is, since
 * L1 has all the rest (swiglu_prepare) and would leave room for three or four blocks. */
static __device__ void swiglu_bwd_drow(const swiglu_args &p, int64_t row, float sum)
{
    extern __shared__ float part[]; /* [RIDGE_DROW_PARTS] */

    part[threadIdx.x] = sum;
    for (int s = RIDGE_DROW_PARTS / 2; s > 0; s /= 2) {
        __syncthreads(); /* the sums of the step before are written before they are read */
        if (threadIdx.x < s)
            part[threadIdx.x] += part[threadIdx.x + s];
    }
    if (threadIdx.x == 0)
        ((uint32_t *)p.drow)[row] = num_canonical_f32(part[0]);
}

/* Everything else: any alignment, layout and option; DEFAULTS: but default numbers, which fold away. With drow the
 * block owns a whole row and has 256 threads, so that thread t meets exactly the columns of partial t, in ascending
 * order. */
template <int DTYPE, int ACT, int DEFAULTS>
static __global__ void __launch_bounds__(SWIGLU_THREADS, SWIGLU_GENERAL_BLOCKS(DTYPE, ACT))
    swiglu_bwd_general(const __grid_constant__ swiglu_args p)
{
    const ridge_swiglu_options o = swiglu_options<DEFAULTS>(p);
    const bool round = (p.flags & RIDGE_ROUND_GATE_BWD) != 0;
    const swiglu_unit unit = swiglu_locate(p);
    const int64_t step = (int64_t)blockDim.x * SWIGLU_GROUP;
    float a[SWIGLU_GROUP], b[SWIGLU_GROUP], dy[SWIGLU_GROUP], scale, sum = 0.0f;

    ptx_grid_wait();
    scale = p.row_scale ? p.row_scale[unit.row] : 1.0f;
    for (int64_t col = unit.begin + threadIdx.x * SWIGLU_GROUP; col < unit.end; col += step) {
        const int n = unit.end - col < SWIGLU_GROUP ? (int)(unit.end - col) : SWIGLU_GROUP;
        const int64_t turned = swiglu_turned<DTYPE>(p, unit, col);

        if (turned >= 0) {
            swiglu_load_turned_pairs<DTYPE>(swiglu_at<DTYPE>(p.gate, unit.row, 2 * turned), a, b);
        } else if (p.flags & RIDGE_INTERLEAVED) {
            swiglu_load_pairs<DTYPE>(swiglu_at<DTYPE>(p.gate, unit.row, 2 * col), n, p.vectors, a, b);
        } else {
            swiglu_load<DTYPE>(swiglu_at<DTYPE>(p.gate, unit.row, col), n, p.vectors, a);
            swiglu_load<DTYPE>(swiglu_at<DTYPE>(p.up, unit.row, col), n, p.vectors, b);
        }
        if (turned >= 0)
            swiglu_load_turned<DTYPE>(swiglu_at<DTYPE>(p.dout, unit.row, turned), dy);
        else
            swiglu_load<DTYPE>(swiglu_at<DTYPE>(p.dout, unit.row, col), n, p.vectors, dy);
        ptx_grid_release();
#pragma unroll
        for (int i = 0; i < SWIGLU_GROUP; i++) {
            float term = swiglu_bwd_element<DTYPE, ACT, DEFAULTS>(o, round, scale, dy[i], &a[i], &b[i]);

            if (i < n)
                sum += term;
        }
        if (turned >= 0) {
            swiglu_store_turned_pairs<DTYPE>(swiglu_at<DTYPE>(p.out, unit.row, 2 * turned), a, b);
        } else if (p.flags & RIDGE_INTERLEAVED) {
            swiglu_store_pairs<DTYPE>(swiglu_at<DTYPE>(p.out, unit.row, 2 * col), n, p.vectors, a, b);
        } else {
            swiglu_store<DTYPE>(swiglu_at<DTYPE>(p.out, unit.row, col), n, p.vectors, a);
            swiglu_store<DTYPE>(swiglu_at<DTYPE>(p.second, unit.row, col), n, p.vectors, b);
        }
    }
    if (p.drow)
        swiglu_bwd_drow(p, unit.row, sum);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* Groups in flight of the wide plain kernel. */
enum { WIDE = 3 };

#define BY_KIND(DTYPE, ACT)                                                                              \
    {                                                                                                    \
        (const void *)swiglu_bwd_plain<DTYPE, ACT, 1>, (const void *)swiglu_bwd_plain<DTYPE, ACT, WIDE>, \
            (const void *)swiglu_bwd_flat<DTYPE, ACT>, (const void *)swiglu_bwd_general<DTYPE, ACT, 0>,  \
            (const void *)swiglu_bwd_general<DTYPE, ACT, 1>                                              \
    }
#define BY_ACT(DTYPE)                                                                                \
    {                                                                                                \
        BY_KIND(DTYPE, RIDGE_SILU), BY_KIND(DTYPE, RIDGE_GELU_TANH), BY_KIND(DTYPE, RIDGE_GELU_ERF), \
            BY_KIND(DTYPE, RIDGE_RELU2)                                                              \
    }

/* [f32, f16, bf16][activation][plain with one group in flight, with WIDE groups, flat, general, general with default
 * options] */
static const void *const functions[3][4][5] = {BY_ACT(RIDGE_F32), BY_ACT(RIDGE_F16), BY_ACT(RIDGE_BF16)};

static ridge_status prepare(const ridge_device *device)
{
    return swiglu_prepare(device, &functions[0][0][0], 3 * 4 * 5);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const ridge_call *call = &bound->call;

    const int dtype = problem->dtype[RIDGE_SWIGLU_BWD_DOUT];
    const bool plain = swiglu_is_plain(kernel, problem);
    const int64_t cols = call->dim[1], wide = call->flags & RIDGE_INTERLEAVED ? 2 * cols : cols;
    const int act = (int)((call->flags & RIDGE_ACTIVATION) / RIDGE_GELU_TANH);
    const int vector = plain && dtype == RIDGE_F32 ? 4 : SWIGLU_GROUP;
    swiglu_args p = {};
    uint32_t blocks;
    int threads;

    p.drow = (float *)call->arg[RIDGE_SWIGLU_BWD_DROW].data;
    if (call->dim[0] == 0 || (cols == 0 && !p.drow))
        return RIDGE_OK;
    p.dout = swiglu_operand(&call->arg[RIDGE_SWIGLU_BWD_DOUT], cols);
    p.gate = swiglu_operand(&call->arg[RIDGE_SWIGLU_BWD_GATE], wide);
    p.up = swiglu_operand(&call->arg[RIDGE_SWIGLU_BWD_UP], cols);
    p.out = swiglu_operand(&call->arg[RIDGE_SWIGLU_BWD_DGATE], wide);
    p.second = swiglu_operand(&call->arg[RIDGE_SWIGLU_BWD_DUP], cols);
    p.row_scale = (const float *)call->arg[RIDGE_SWIGLU_BWD_ROW_SCALE].data;
    p.rows = call->dim[0];
    p.cols = cols;
    p.flags = call->flags;
    p.vectors = swiglu_has_vectors(kernel, problem);
    p.o = ridge_swiglu_resolve(call->opt.swiglu);
    blocks = swiglu_geometry(kernel, &p, vector, plain, &threads);
    return host_launch_shared(device, kernel->name,
                              functions[dtype - RIDGE_F32][act][swiglu_variant(kernel, problem, plain)], dim3(blocks),
                              threads, p.drow ? RIDGE_DROW_PARTS * sizeof(float) : 0, &p, stream);
}

#define ROW(name, tile, threads, groups, percent)                                                         \
    {                                                                                                     \
        "cuda.swiglu_bwd." name, RIDGE_SWIGLU_BWD, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121, SWIGLU_CONTRACT, 0, \
            {tile, threads, groups, percent}, swiglu_why_not, NULL, swiglu_cost, launch                   \
    }

/* param: tile, threads, groups a thread has in flight, percent of the bytes' time at the copy rate (measured on H200,
 * docs/measured.md). */
static const ridge_kernel rows[] = {
    ROW("flat", SWIGLU_FLAT, 128, 1, 99), ROW("tile1024", 1024, 128, 1, 110),    ROW("tile512", 512, 64, 1, 110),
    ROW("tile2048", 2048, 64, WIDE, 104), ROW("tile4096", 4096, 128, WIDE, 104), ROW("row", SWIGLU_ROW, 128, WIDE, 104),
};

extern "C" const ridge_kernel_list ridge_cuda_swiglu_bwd = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
