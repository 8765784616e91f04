/* bwd.cu: swiglu_bwd on CUDA: dgate and dup from dout and the saved gate and up; h is computed again, not saved.
 * Leaves out: what fwd.cu has too (swiglu.cuh).
 *
 *     dy = (dout * down_mul) * row_scale[row];  dup = dy * h;  dgate = ((dy * b) * g) * act'(a') (src/math/swiglu.h)
 *     drow[row] = sum over columns of dout * ((h * b) * down_mul), in the order that src/math/swiglu.h gives
 *
 * Moves 5 tensors' bytes (3 read, 2 written) and is bound by them. docs/measured.md has the rates. */
#include "swiglu.cuh"

/* One group: 16 bytes of every tensor. */
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
    const swiglu_work_tile tile = swiglu_locate(p);
    const int step = blockDim.x * 16;
    const int64_t first = tile.begin + threadIdx.x * V;
    const char *gate = swiglu_at<DTYPE>(p.gate, tile.row, first), *up = swiglu_at<DTYPE>(p.up, tile.row, first);
    const char *dout = swiglu_at<DTYPE>(p.dout, tile.row, first);
    char *dgate = swiglu_at<DTYPE>(p.out, tile.row, first), *dup = swiglu_at<DTYPE>(p.second, tile.row, first);
    int64_t left =
        (tile.end - tile.begin) / V - threadIdx.x; /* groups from this thread's first to the end of the tile */
    int64_t at = 0;

    ptx_grid_dependency_wait();
    if (U > 1)
        ptx_launch_dependents();
    for (; left > (U - 1) * (int)blockDim.x; left -= U * (int)blockDim.x) {
        uint4 a[U], b[U], dy[U];

#pragma unroll
        for (int u = 0; u < U; u++) {
            a[u] = ptx_load_once(gate + at + u * step);
            b[u] = ptx_load_once(up + at + u * step);
            dy[u] = ptx_load_once(dout + at + u * step);
        }
        if (U == 1) /* it takes time: after the loads are issued, where registers allow */
            ptx_launch_dependents();
#pragma unroll
        for (int u = 0; u < U; u++)
            swiglu_bwd_group<DTYPE, ACT>(dy[u], a[u], b[u], dgate + at + u * step, dup + at + u * step);
        at += U * step;
    }
    for (; U > 1 && left > 0; left -= blockDim.x, at += step)
        swiglu_bwd_group<DTYPE, ACT>(ptx_load_once(dout + at), ptx_load_once(gate + at), ptx_load_once(up + at),
                                     dgate + at, dup + at);
    /* The elements after the last whole group, where the width is no multiple of V: one thread an element. */
    for (int64_t col = tile.end / V * V + threadIdx.x; col < tile.end; col += blockDim.x) {
        float y = num_load<DTYPE>(swiglu_at<DTYPE>(p.dout, tile.row, col), 0), dh;
        float x = num_load<DTYPE>(swiglu_at<DTYPE>(p.gate, tile.row, col), 0);
        float w = num_load<DTYPE>(swiglu_at<DTYPE>(p.up, tile.row, col), 0);
        float h = ridge_act_bwd(ACT, x, 1.0f, &dh);

        num_store<DTYPE>(swiglu_at<DTYPE>(p.out, tile.row, col), 0, y * w * dh);
        num_store<DTYPE>(swiglu_at<DTYPE>(p.second, tile.row, col), 0, y * h);
    }
}

/* The same for packed tensors taken as one long row: one group a thread, and as many threads as fit a multiprocessor.
 */
template <int DTYPE, int ACT>
static __global__ void __launch_bounds__(SWIGLU_PLAIN_THREADS, SWIGLU_BLOCKS(DTYPE, ACT, 12, 8))
    swiglu_bwd_flat(const __grid_constant__ swiglu_args p)
{
    const swiglu_flat at = swiglu_locate_flat<DTYPE>(p);

    ptx_grid_dependency_wait();
    if (at.group) {
        const uint4 a = ptx_load_once(p.gate.data + at.byte), b = ptx_load_once(p.up.data + at.byte);
        const uint4 dy = ptx_load_once(p.dout.data + at.byte);

        ptx_launch_dependents(); /* it takes time: after the loads are issued */
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

/* drow of a row from the 256 threads' partial sums, by the fixed tree. The launch asks for the shared memory only if
 * there is a drow: L1 has all of the rest (swiglu_prepare), and shared memory in every block would leave room for three
 * or four blocks only. */
static __device__ void swiglu_bwd_drow(const swiglu_args &p, int64_t row, float sum)
{
    extern __shared__ float part[]; /* [RIDGE_DROW_PARTS] */

    part[threadIdx.x] = sum;
    for (int s = RIDGE_DROW_PARTS / 2; s > 0; s /= 2) {
        __syncthreads(); /* the sums that the previous step wrote, before this one reads them */
        if (threadIdx.x < s)
            part[threadIdx.x] += part[threadIdx.x + s];
    }
    if (threadIdx.x == 0)
        ((uint32_t *)p.drow)[row] = num_canonical_f32(part[0]);
}

/* Everything else: any alignment, layout and option. DEFAULTS: the numbers among the options are the defaults, which
 * fold away. With drow the block owns a whole row and has 256 threads, so that thread t sees exactly the columns of
 * partial t, in ascending order. */
template <int DTYPE, int ACT, int DEFAULTS>
static __global__ void __launch_bounds__(SWIGLU_THREADS, SWIGLU_GENERAL_BLOCKS(DTYPE, ACT))
    swiglu_bwd_general(const __grid_constant__ swiglu_args p)
{
    const ridge_swiglu_options o = swiglu_options<DEFAULTS>(p);
    const bool round = (p.flags & RIDGE_ROUND_GATE_BWD) != 0;
    const swiglu_work_tile tile = swiglu_locate(p);
    const int64_t step = (int64_t)blockDim.x * SWIGLU_GROUP;
    float a[SWIGLU_GROUP], b[SWIGLU_GROUP], dy[SWIGLU_GROUP], scale, sum = 0.0f;

    ptx_grid_dependency_wait();
    scale = p.row_scale ? p.row_scale[tile.row] : 1.0f;
    for (int64_t col = tile.begin + threadIdx.x * SWIGLU_GROUP; col < tile.end; col += step) {
        const int n = tile.end - col < SWIGLU_GROUP ? (int)(tile.end - col) : SWIGLU_GROUP;
        const int64_t striped = swiglu_striped<DTYPE>(p, tile, col);

        if (striped >= 0) {
            swiglu_load_striped_pairs<DTYPE>(swiglu_at<DTYPE>(p.gate, tile.row, 2 * striped), a, b);
        } else if (p.flags & RIDGE_INTERLEAVED) {
            swiglu_load_pairs<DTYPE>(swiglu_at<DTYPE>(p.gate, tile.row, 2 * col), n, p.vectors, a, b);
        } else {
            swiglu_load<DTYPE>(swiglu_at<DTYPE>(p.gate, tile.row, col), n, p.vectors, a);
            swiglu_load<DTYPE>(swiglu_at<DTYPE>(p.up, tile.row, col), n, p.vectors, b);
        }
        if (striped >= 0)
            swiglu_load_striped<DTYPE>(swiglu_at<DTYPE>(p.dout, tile.row, striped), dy);
        else
            swiglu_load<DTYPE>(swiglu_at<DTYPE>(p.dout, tile.row, col), n, p.vectors, dy);
        ptx_launch_dependents();
#pragma unroll
        for (int i = 0; i < SWIGLU_GROUP; i++) {
            float term = swiglu_bwd_element<DTYPE, ACT, DEFAULTS>(o, round, scale, dy[i], &a[i], &b[i]);

            if (i < n)
                sum += term;
        }
        if (striped >= 0) {
            swiglu_store_striped_pairs<DTYPE>(swiglu_at<DTYPE>(p.out, tile.row, 2 * striped), a, b);
        } else if (p.flags & RIDGE_INTERLEAVED) {
            swiglu_store_pairs<DTYPE>(swiglu_at<DTYPE>(p.out, tile.row, 2 * col), n, p.vectors, a, b);
        } else {
            swiglu_store<DTYPE>(swiglu_at<DTYPE>(p.out, tile.row, col), n, p.vectors, a);
            swiglu_store<DTYPE>(swiglu_at<DTYPE>(p.second, tile.row, col), n, p.vectors, b);
        }
    }
    if (p.drow)
        swiglu_bwd_drow(p, tile.row, sum);
}

/* ------------------------------------------------------------------------------------------------------------ host */

enum { UNROLLED = 3 }; /* groups in flight of the unrolled plain kernel */

static swiglu_functions functions = SWIGLU_FUNCTIONS(bwd, UNROLLED);

static ridge_status prepare(const ridge_device *device)
{
    return swiglu_prepare(device, functions);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    return swiglu_launch(device, kernel, bound, functions, stream);
}

#define ROW(name, tile, threads, groups, percent) \
    SWIGLU_KERNEL_ROW("swiglu_bwd", RIDGE_SWIGLU_BWD, name, tile, threads, groups, percent)

static const ridge_kernel rows[] = {
    ROW("flat", SWIGLU_FLAT, 128, 1, 99), ROW("tile1024", 1024, 128, 1, 110), ROW("tile2048", 2048, 64, UNROLLED, 104),
    ROW("row", SWIGLU_ROW, 128, UNROLLED, 104), /* the one that can sum drow */
};

extern "C" const ridge_kernel_list ridge_cuda_swiglu_bwd = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
