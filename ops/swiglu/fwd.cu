/* fwd.cu: out = act(gate * g) * up on CUDA.
 *
 *     out = ((h * b) * down_mul) * row_scale[row],  h = act(a')        (src/math/swiglu.h)
 *
 * Moves 3 tensors' bytes (2 read, 1 written) and is bound by them: about 30 instructions an element for SiLU, of which
 * 26 are the exact exponential and division. docs/measured.md has the rates. */
#include "swiglu.cuh"

/* One group of 16 bytes a tensor. */
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

/* Default options, two aligned tensors: each thread has the loads of U groups in flight, then stores U groups. */
template <int DTYPE, int ACT, int U>
static __global__ void __launch_bounds__(SWIGLU_PLAIN_THREADS, SWIGLU_BLOCKS(DTYPE, ACT, U == 1 ? 12 : 10, 6))
    swiglu_fwd_plain(const __grid_constant__ swiglu_args p)
{
    constexpr int V = DTYPE == RIDGE_F32 ? 4 : 8;
    const swiglu_unit unit = swiglu_locate(p);
    const int step = blockDim.x * 16;
    const int64_t first = unit.begin + threadIdx.x * V;
    const char *gate = swiglu_at<DTYPE>(p.gate, unit.row, first), *up = swiglu_at<DTYPE>(p.up, unit.row, first);
    char *out = swiglu_at<DTYPE>(p.out, unit.row, first);
    int64_t left =
        (unit.end - unit.begin) / V - threadIdx.x; /* groups from this thread's first to the end of the unit */

    ptx_grid_wait();
    if (U > 1)
        ptx_grid_release();
    for (; left > (U - 1) * (int)blockDim.x; left -= U * (int)blockDim.x) {
        uint4 a[U], b[U];

#pragma unroll
        for (int u = 0; u < U; u++) {
            a[u] = ptx_load_once(gate + u * step);
            b[u] = ptx_load_once(up + u * step);
        }
        if (U == 1) /* it takes its time: behind the loads, where registers allow */
            ptx_grid_release();
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
    /* The last group of a row whose width is no multiple of V: one thread an element. */
    for (int64_t col = unit.end / V * V + threadIdx.x; col < unit.end; col += blockDim.x) {
        float x = num_load<DTYPE>(swiglu_at<DTYPE>(p.gate, unit.row, col), 0);
        float y = num_load<DTYPE>(swiglu_at<DTYPE>(p.up, unit.row, col), 0);

        num_store<DTYPE>(swiglu_at<DTYPE>(p.out, unit.row, col), 0, ridge_act_fwd(ACT, x, 1.0f) * y);
    }
}

/* The same for packed tensors, which are one long row: one group a thread and as many threads as fit a multiprocessor.
 */
template <int DTYPE, int ACT>
static __global__ void __launch_bounds__(SWIGLU_PLAIN_THREADS, SWIGLU_BLOCKS(DTYPE, ACT, 16, 8))
    swiglu_fwd_flat(const __grid_constant__ swiglu_args p)
{
    const swiglu_place at = swiglu_place_of<DTYPE>(p);

    ptx_grid_wait();
    if (at.group) {
        const uint4 a = ptx_load_once(p.gate.data + at.byte), b = ptx_load_once(p.up.data + at.byte);

        ptx_grid_release(); /* takes time: behind the loads */
        ptx_store_once(p.out.data + at.byte, swiglu_fwd_group<DTYPE, ACT>(a, b));
    } else if (at.element) {
        const float x = num_load<DTYPE>(p.gate.data + at.byte, 0), y = num_load<DTYPE>(p.up.data + at.byte, 0);

        num_store<DTYPE>(p.out.data + at.byte, 0, ridge_act_fwd(ACT, x, 1.0f) * y);
    }
}

/* Everything else: any alignment, layout and option; DEFAULTS: but default numbers, which fold away. */
template <int DTYPE, int ACT, int DEFAULTS>
static __global__ void __launch_bounds__(SWIGLU_THREADS, SWIGLU_GENERAL_BLOCKS(DTYPE, ACT))
    swiglu_fwd_general(const __grid_constant__ swiglu_args p)
{
    const swiglu_unit unit = swiglu_locate(p);
    const int64_t step = (int64_t)blockDim.x * SWIGLU_GROUP;
    const ridge_swiglu_options o = swiglu_options<DEFAULTS>(p);
    float a[SWIGLU_GROUP], b[SWIGLU_GROUP], scale;

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
        ptx_grid_release();
#pragma unroll
        for (int i = 0; i < SWIGLU_GROUP; i++) {
            float h = ridge_act_fwd(ACT, DEFAULTS ? a[i] : ridge_swiglu_gate(a[i], o), o.alpha);

            if (p.flags & RIDGE_ROUND_GATE)
                h = num_round<DTYPE>(h);
            a[i] = ridge_swiglu_scale(h * (DEFAULTS ? b[i] : ridge_swiglu_up(b[i], o)), scale, o);
        }
        if (turned >= 0)
            swiglu_store_turned<DTYPE>(swiglu_at<DTYPE>(p.out, unit.row, turned), a);
        else
            swiglu_store<DTYPE>(swiglu_at<DTYPE>(p.out, unit.row, col), n, p.vectors, a);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* Groups in flight of the wide plain kernel. */
enum { WIDE = 4 };

#define BY_KIND(DTYPE, ACT)                                                                              \
    {                                                                                                    \
        (const void *)swiglu_fwd_plain<DTYPE, ACT, 1>, (const void *)swiglu_fwd_plain<DTYPE, ACT, WIDE>, \
            (const void *)swiglu_fwd_flat<DTYPE, ACT>, (const void *)swiglu_fwd_general<DTYPE, ACT, 0>,  \
            (const void *)swiglu_fwd_general<DTYPE, ACT, 1>                                              \
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

    const int dtype = problem->dtype[RIDGE_SWIGLU_FWD_GATE];
    const int64_t cols = call->dim[1];
    const bool plain = swiglu_is_plain(kernel, problem), pairs = (call->flags & RIDGE_INTERLEAVED) != 0;
    const int act = (int)((call->flags & RIDGE_ACTIVATION) / RIDGE_GELU_TANH);
    const int vector = plain && dtype == RIDGE_F32 ? 4 : SWIGLU_GROUP;
    swiglu_args p = {};
    uint32_t blocks;
    int threads;

    if (call->dim[0] == 0 || cols == 0)
        return RIDGE_OK;
    p.gate = swiglu_operand(&call->arg[RIDGE_SWIGLU_FWD_GATE], pairs ? 2 * cols : cols);
    p.up = swiglu_operand(&call->arg[RIDGE_SWIGLU_FWD_UP], cols);
    p.out = swiglu_operand(&call->arg[RIDGE_SWIGLU_FWD_OUT], cols);
    p.row_scale = (const float *)call->arg[RIDGE_SWIGLU_FWD_ROW_SCALE].data;
    p.rows = call->dim[0];
    p.cols = cols;
    p.flags = call->flags;
    p.vectors = swiglu_has_vectors(kernel, problem);
    p.o = ridge_swiglu_resolve(call->opt.swiglu);
    blocks = swiglu_geometry(kernel, &p, vector, plain, &threads);
    return host_launch(device, kernel->name, functions[dtype - RIDGE_F32][act][swiglu_variant(kernel, problem, plain)],
                       dim3(blocks), threads, &p, stream);
}

#define ROW(name, tile, threads, groups, percent)                                                         \
    {                                                                                                     \
        "cuda.swiglu_fwd." name, RIDGE_SWIGLU_FWD, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121, SWIGLU_CONTRACT, 0, \
            {tile, threads, groups, percent}, swiglu_why_not, NULL, swiglu_cost, launch                   \
    }

/* param: tile, threads, groups a thread has in flight, percent of the bytes' time at the copy rate (measured on H200,
 * docs/measured.md). */
static const ridge_kernel rows[] = {
    ROW("flat", SWIGLU_FLAT, 128, 1, 99), ROW("tile1024", 1024, 128, 1, 111),    ROW("tile512", 512, 64, 1, 167),
    ROW("tile2048", 2048, 64, WIDE, 104), ROW("tile4096", 4096, 128, WIDE, 104), ROW("row", SWIGLU_ROW, 128, WIDE, 104),
};

extern "C" const ridge_kernel_list ridge_cuda_swiglu_fwd = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
