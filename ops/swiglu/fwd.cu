/* fwd.cu: swiglu_fwd on CUDA: out = act(gate * g) * up. Leaves out: what bwd.cu has too (swiglu.cuh).
 *
 *     out = ((h * b) * down_mul) * row_scale[row],  h = act(a')        (src/math/swiglu.h)
 *
 * Moves 3 tensors' bytes (2 read, 1 written) and is bound by them: about 30 instructions an element for SiLU, of which
 * 26 are the exact exponential and division. docs/measured.md has the rates. */
#include "swiglu.cuh"

/* One group: 16 bytes of every tensor. */
template <int DTYPE, int ACT> static __device__ __forceinline__ uint4 swiglu_fwd_group(uint4 gate, uint4 up)
{
    constexpr int V = DTYPE == RIDGE_F32 ? 4 : 8;
    float a[V], b[V];

    num_unpack<DTYPE>(gate, a);
    num_unpack<DTYPE>(up, b);
#pragma unroll
    for (int i = 0; i < V; i++)
        a[i] = ridge_act_fwd(ACT, a[i], 1.0f) * b[i];
    return num_pack<DTYPE>(a);
}

/* Default options, aligned tensors: each thread has the loads of U groups in flight, then stores U groups. */
template <int DTYPE, int ACT, int U>
static __global__ void __launch_bounds__(SWIGLU_PLAIN_THREADS, SWIGLU_BLOCKS(DTYPE, ACT, U == 1 ? 12 : 10, 6))
    swiglu_fwd_plain(const __grid_constant__ swiglu_args p)
{
    constexpr int V = DTYPE == RIDGE_F32 ? 4 : 8;
    const swiglu_work_tile tile = swiglu_locate(p);
    const int step = blockDim.x * 16;
    const int64_t first = tile.begin + threadIdx.x * V;
    const char *gate = swiglu_at<DTYPE>(p.gate, tile.row, first), *up = swiglu_at<DTYPE>(p.up, tile.row, first);
    char *out = swiglu_at<DTYPE>(p.out, tile.row, first);
    int64_t left =
        (tile.end - tile.begin) / V - threadIdx.x; /* groups from this thread's first to the end of the tile */

    ptx_grid_dependency_wait();
    if (U > 1)
        ptx_launch_dependents();
    for (; left > (U - 1) * (int)blockDim.x; left -= U * (int)blockDim.x) {
        uint4 a[U], b[U];

#pragma unroll
        for (int u = 0; u < U; u++) {
            a[u] = ptx_load_once(gate + u * step);
            b[u] = ptx_load_once(up + u * step);
        }
        if (U == 1) /* it takes time: after the loads are issued, where registers allow */
            ptx_launch_dependents();
#pragma unroll
        for (int u = 0; u < U; u++)
            ptx_store_once(out + u * step, swiglu_fwd_group<DTYPE, ACT>(a[u], b[u]));
        gate += U * step;
        up += U * step;
        out += U * step;
    }
    for (; U > 1 && left > 0; left -= blockDim.x) {
        ptx_store_once(out, swiglu_fwd_group<DTYPE, ACT>(ptx_load_once(gate), ptx_load_once(up)));
        gate += step;
        up += step;
        out += step;
    }
    /* The elements after the last whole group, where the width is no multiple of V: one thread an element. */
    for (int64_t col = tile.end / V * V + threadIdx.x; col < tile.end; col += blockDim.x) {
        float x = num_load<DTYPE>(swiglu_at<DTYPE>(p.gate, tile.row, col), 0);
        float y = num_load<DTYPE>(swiglu_at<DTYPE>(p.up, tile.row, col), 0);

        num_store<DTYPE>(swiglu_at<DTYPE>(p.out, tile.row, col), 0, ridge_act_fwd(ACT, x, 1.0f) * y);
    }
}

/* The same for packed tensors taken as one long row: one group a thread, and as many threads as fit a multiprocessor.
 */
template <int DTYPE, int ACT>
static __global__ void __launch_bounds__(SWIGLU_PLAIN_THREADS, SWIGLU_BLOCKS(DTYPE, ACT, 16, 8))
    swiglu_fwd_flat(const __grid_constant__ swiglu_args p)
{
    const swiglu_flat at = swiglu_locate_flat<DTYPE>(p);

    ptx_grid_dependency_wait();
    if (at.group) {
        const uint4 a = ptx_load_once(p.gate.data + at.byte), b = ptx_load_once(p.up.data + at.byte);

        ptx_launch_dependents(); /* it takes time: after the loads are issued */
        ptx_store_once(p.out.data + at.byte, swiglu_fwd_group<DTYPE, ACT>(a, b));
    } else if (at.element) {
        const float x = num_load<DTYPE>(p.gate.data + at.byte, 0), y = num_load<DTYPE>(p.up.data + at.byte, 0);

        num_store<DTYPE>(p.out.data + at.byte, 0, ridge_act_fwd(ACT, x, 1.0f) * y);
    }
}

/* Everything else: any alignment, layout and option. DEFAULTS: the numbers among the options are the defaults, which
 * fold away. */
template <int DTYPE, int ACT, int DEFAULTS>
static __global__ void __launch_bounds__(SWIGLU_THREADS, SWIGLU_GENERAL_BLOCKS(DTYPE, ACT))
    swiglu_fwd_general(const __grid_constant__ swiglu_args p)
{
    const swiglu_work_tile tile = swiglu_locate(p);
    const int64_t step = (int64_t)blockDim.x * SWIGLU_GROUP;
    const ridge_swiglu_options o = swiglu_options<DEFAULTS>(p);
    float a[SWIGLU_GROUP], b[SWIGLU_GROUP], scale;

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
        ptx_launch_dependents();
#pragma unroll
        for (int i = 0; i < SWIGLU_GROUP; i++) {
            float h = ridge_act_fwd(ACT, DEFAULTS ? a[i] : ridge_swiglu_gate(a[i], o), o.alpha);

            if (p.flags & RIDGE_ROUND_GATE)
                h = num_round<DTYPE>(h);
            a[i] = ridge_swiglu_scale(h * (DEFAULTS ? b[i] : ridge_swiglu_up(b[i], o)), scale, o);
        }
        if (striped >= 0)
            swiglu_store_striped<DTYPE>(swiglu_at<DTYPE>(p.out, tile.row, striped), a);
        else
            swiglu_store<DTYPE>(swiglu_at<DTYPE>(p.out, tile.row, col), n, p.vectors, a);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

enum { UNROLLED = 4 }; /* groups in flight of the unrolled plain kernel */

static swiglu_functions functions = SWIGLU_FUNCTIONS(fwd, UNROLLED);

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
    SWIGLU_KERNEL_ROW("swiglu_fwd", RIDGE_SWIGLU_FWD, name, tile, threads, groups, percent)

static const ridge_kernel rows[] = {
    ROW("flat", SWIGLU_FLAT, 128, 1, 99),
    ROW("tile1024", 1024, 128, 1, 111),
    ROW("tile2048", 2048, 64, UNROLLED, 104),
};

extern "C" const ridge_kernel_list ridge_cuda_swiglu_fwd = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
