/* swiglu.cuh: what fwd.cu and bwd.cu share: loads and stores of groups of columns, how a kernel row's geometry becomes
 * a grid, the launch, and the table of kernel rows. Leaves out: the formulas, which are src/math/swiglu.h's, so that
 * all rows give the same bits.
 *
 * Geometry. A work tile is some columns of one row. A block of threads works through its tile in groups of 8 columns a
 * thread (4 for f32 in the plain kernels), with the loads of several groups in flight before the first is used. The
 * rows of the table differ in the work tile only: a whole row; 1024 or 2048 columns; or, for packed operands, a part of
 * the whole tensor taken as one long row (flat), which is aligned whatever the width. */
#ifndef RIDGE_SWIGLU_CUH
#define RIDGE_SWIGLU_CUH

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/util.h"

/* The most threads of a block: of the plain kernels, and of the general ones, where drow needs a thread for each
 * partial sum. */
enum { SWIGLU_GROUP = RIDGE_DROW_GROUP, SWIGLU_PLAIN_THREADS = 128, SWIGLU_THREADS = RIDGE_DROW_PARTS };

/* Blocks of a kernel that must fit a multiprocessor, which caps its registers: `hopper` was measured for SiLU on an
 * H200; elsewhere `other` leaves ptxas enough registers not to spill. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SWIGLU_BLOCKS(dtype, act, hopper, other) ((act) == RIDGE_SILU && (dtype) != RIDGE_F32 ? (hopper) : (other))
#else
#define SWIGLU_BLOCKS(dtype, act, hopper, other) (other)
#endif

#define SWIGLU_GENERAL_BLOCKS(dtype, act) SWIGLU_BLOCKS(dtype, act, 4, 2)

/* The part of a row that this block works on. */
typedef struct swiglu_work_tile {
    int64_t row, begin, end;
} swiglu_work_tile;

static __device__ __forceinline__ swiglu_work_tile swiglu_locate(const swiglu_args &p)
{
    swiglu_work_tile tile;
    uint32_t row = p.tiles == 1 ? blockIdx.x : p.rows == 1 ? 0 : blockIdx.x / p.tiles;

    tile.row = row;
    tile.begin = (int64_t)(blockIdx.x - row * p.tiles) * p.tile;
    tile.end = p.cols - tile.begin < p.tile ? p.cols : tile.begin + p.tile;
    return tile;
}

/* The options of a call; DEFAULTS: constants, as ridge_swiglu_resolve leaves them. */
template <int DEFAULTS> static __device__ __forceinline__ ridge_swiglu_options swiglu_options(const swiglu_args &p)
{
    ridge_swiglu_options o = p.o;

    if (DEFAULTS) {
        o.gate_mul = o.down_mul = o.alpha = 1.0f;
        o.up_offset = -0.0f;
        o.limit = __int_as_float(0x7f800000);
    }
    return o;
}

/* What this thread of a flat kernel computes: a group of 16 bytes, or one of the elements after the last whole group.
 */
typedef struct swiglu_flat {
    int64_t byte; /* from the beginning of each operand */
    bool group, element;
} swiglu_flat;

template <int DTYPE> static __device__ __forceinline__ swiglu_flat swiglu_locate_flat(const swiglu_args &p)
{
    constexpr int SIZE = DTYPE == RIDGE_F32 ? 4 : 2, V = 16 / SIZE;
    const int64_t index = (int64_t)blockIdx.x * SWIGLU_PLAIN_THREADS + threadIdx.x, groups = p.cols / V;
    swiglu_flat at;

    at.group = index < groups;
    at.element = index - groups < p.cols - groups * V;
    at.byte = at.group ? index * 16 : groups * 16 + (index - groups) * SIZE;
    return at;
}

template <int DTYPE> static __device__ __forceinline__ char *swiglu_at(const swiglu_matrix &m, int64_t row, int64_t col)
{
    return m.data + (row * m.stride + col) * (DTYPE == RIDGE_F32 ? 4 : 2);
}

/* Loads the first n of 8 consecutive elements; the others become 0. */
template <int DTYPE> static __device__ __forceinline__ void swiglu_load(const char *from, int n, bool vectors, float *x)
{
    if (vectors && n == SWIGLU_GROUP) {
        num_unpack<DTYPE>(ptx_load_once(from), x);
        if (DTYPE == RIDGE_F32)
            num_unpack<DTYPE>(ptx_load_once(from + 16), x + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < SWIGLU_GROUP; i++)
        x[i] = i < n ? num_load<DTYPE>(from, i) : 0.0f;
}

template <int DTYPE> static __device__ __forceinline__ void swiglu_store(char *to, int n, bool vectors, const float *x)
{
    if (vectors && n == SWIGLU_GROUP) {
        ptx_store_once(to, num_pack<DTYPE>(x));
        if (DTYPE == RIDGE_F32)
            ptx_store_once(to + 16, num_pack<DTYPE>(x + 4));
        return;
    }
#pragma unroll
    for (int i = 0; i < SWIGLU_GROUP; i++)
        if (i < n)
            num_store<DTYPE>(to, i, x[i]);
}

/* Loads the first n of 8 pairs (gate, up). */
template <int DTYPE>
static __device__ __forceinline__ void swiglu_load_pairs(const char *from, int n, bool vectors, float *a, float *b)
{
    const int bytes = DTYPE == RIDGE_F32 ? 4 : 2;
    float x[2 * SWIGLU_GROUP];
    int head = 2 * n < SWIGLU_GROUP ? 2 * n : SWIGLU_GROUP;

    swiglu_load<DTYPE>(from, head, vectors, x);
    swiglu_load<DTYPE>(from + SWIGLU_GROUP * bytes, 2 * n - head, vectors, x + SWIGLU_GROUP);
#pragma unroll
    for (int i = 0; i < SWIGLU_GROUP; i++) {
        a[i] = x[2 * i];
        b[i] = x[2 * i + 1];
    }
}

template <int DTYPE>
static __device__ __forceinline__ void swiglu_store_pairs(char *to, int n, bool vectors, const float *a, const float *b)
{
    const int bytes = DTYPE == RIDGE_F32 ? 4 : 2;
    float x[2 * SWIGLU_GROUP];
    int head = 2 * n < SWIGLU_GROUP ? 2 * n : SWIGLU_GROUP;

#pragma unroll
    for (int i = 0; i < SWIGLU_GROUP; i++) {
        x[2 * i] = a[i];
        x[2 * i + 1] = b[i];
    }
    swiglu_store<DTYPE>(to, head, vectors, x);
    swiglu_store<DTYPE>(to + SWIGLU_GROUP * bytes, 2 * n - head, vectors, x + SWIGLU_GROUP);
}

/* A striped arrangement of a warp's 256 columns: lane l has columns 4 l to 4 l + 3 of the first 128 and of the second
 * 128 instead of 8 consecutive ones, so that every load and store of the warp covers consecutive memory. `from` and
 * `to` are the warp's: 256 pairs, or 256 elements of the other operands. */
template <int DTYPE>
static __device__ __forceinline__ void swiglu_load_striped_pairs(const char *from, float *a, float *b)
{
    const char *at = from + threadIdx.x % 32 * 16;
    float x[2 * SWIGLU_GROUP];

    num_unpack<DTYPE>(ptx_load_once(at), x);
    num_unpack<DTYPE>(ptx_load_once(at + 512), x + SWIGLU_GROUP);
#pragma unroll
    for (int i = 0; i < SWIGLU_GROUP; i++) {
        a[i] = x[2 * i];
        b[i] = x[2 * i + 1];
    }
}

template <int DTYPE>
static __device__ __forceinline__ void swiglu_store_striped_pairs(char *to, const float *a, const float *b)
{
    char *at = to + threadIdx.x % 32 * 16;
    float x[2 * SWIGLU_GROUP];

#pragma unroll
    for (int i = 0; i < SWIGLU_GROUP; i++) {
        x[2 * i] = a[i];
        x[2 * i + 1] = b[i];
    }
    ptx_store_once(at, num_pack<DTYPE>(x));
    ptx_store_once(at + 512, num_pack<DTYPE>(x + SWIGLU_GROUP));
}

template <int DTYPE> static __device__ __forceinline__ void swiglu_load_striped(const char *from, float *x)
{
    const uint2 *at = (const uint2 *)(from + threadIdx.x % 32 * 8), lo = at[0], hi = at[32];

    num_unpack<DTYPE>(make_uint4(lo.x, lo.y, hi.x, hi.y), x);
}

template <int DTYPE> static __device__ __forceinline__ void swiglu_store_striped(char *to, const float *x)
{
    char *at = to + threadIdx.x % 32 * 8;
    const uint4 v = num_pack<DTYPE>(x);

    ptx_store_once8(at, make_uint2(v.x, v.y));
    ptx_store_once8(at + 256, make_uint2(v.z, v.w));
}

/* The first column of this thread's warp where the striped arrangement applies: 16-bit elements, aligned accesses, no
 * drow (whose partial sums need the blocked arrangement), 256 columns left. Else -1. */
template <int DTYPE>
static __device__ __forceinline__ int64_t swiglu_striped(const swiglu_args &p, const swiglu_work_tile &tile,
                                                         int64_t col)
{
    const int64_t first = col - threadIdx.x % 32 * SWIGLU_GROUP;
    const bool striped = DTYPE != RIDGE_F32 && (p.flags & RIDGE_INTERLEAVED) && p.vectors && !p.drow;

    return striped && tile.end - first >= 32 * SWIGLU_GROUP ? first : -1;
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* Tile widths of a kernel row: param[0]. */
enum { SWIGLU_ROW = 0, SWIGLU_FLAT = -1 };

/* Every group of 8 columns of every operand begins at a multiple of 16 bytes. */
static inline bool swiglu_has_vectors(const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t size = problem->dtype[0] == RIDGE_F32 ? 4 : 2;

    return problem->align == 4 &&
           (kernel->param[0] == SWIGLU_FLAT || problem->dim[0] <= 1 || problem->dim[1] * size % 16 == 0);
}

/* The kernel is a plain one: default options, no row factor, no drow, no extra rounding, aligned and not interleaved.
 */
static inline bool swiglu_is_plain(const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool backward = problem->op == RIDGE_SWIGLU_BWD;
    const int row_scale = backward ? (int)RIDGE_SWIGLU_BWD_ROW_SCALE : (int)RIDGE_SWIGLU_FWD_ROW_SCALE;
    const bool drow = backward && problem->dtype[RIDGE_SWIGLU_BWD_DROW] != RIDGE_NONE;

    return problem->plain && swiglu_has_vectors(kernel, problem) && problem->dtype[row_scale] == RIDGE_NONE && !drow &&
           !(problem->flags & (RIDGE_ROUND_GATE | RIDGE_ROUND_GATE_BWD | RIDGE_INTERLEAVED));
}

static inline const char *swiglu_why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const bool backward = problem->op == RIDGE_SWIGLU_BWD;
    const bool scaled =
        problem->dtype[backward ? (int)RIDGE_SWIGLU_BWD_ROW_SCALE : (int)RIDGE_SWIGLU_FWD_ROW_SCALE] != RIDGE_NONE;
    const bool drow = backward && problem->dtype[RIDGE_SWIGLU_BWD_DROW] != RIDGE_NONE;
    const int64_t rows = problem->dim[0], cols = problem->dim[1], most = 0x7fffffff;

    if (kernel->param[0] == SWIGLU_FLAT) {
        if (!problem->packed)
            return "takes the tensor as one row: needs packed operands";
        if (scaled || drow)
            return "takes the tensor as one row: has no row_scale and no drow";
        if (rows > 0 && cols > most * 256 / rows)
            return "more than 2^31 - 1 blocks";
        return NULL;
    }
    if (kernel->param[0] != SWIGLU_ROW && drow)
        return "drow needs one block a row";
    if (kernel->param[0] == SWIGLU_ROW ? rows > most : cols / kernel->param[0] + 1 > most / (rows > 0 ? rows : 1))
        return "more than 2^31 - 1 blocks";
    return NULL;
}

/* Sets the work tile and the threads of a block; returns the number of blocks. `vector` is the columns of one group; a
 * flat kernel has a thread for each group, and one for each element after the last whole group. */
static inline uint32_t swiglu_geometry(const ridge_kernel *kernel, swiglu_args *p, int vector, bool plain, int *threads)
{
    int64_t tile = kernel->param[0];

    *threads = kernel->param[1];
    if (tile == SWIGLU_ROW && !plain)
        *threads = SWIGLU_THREADS;
    if (tile == SWIGLU_FLAT) {
        p->cols *= p->rows;
        p->rows = 1;
        tile = (int64_t)kernel->param[1] * kernel->param[2] * vector;
    } else if (tile == SWIGLU_ROW) {
        tile = p->cols > 0 ? p->cols : 1;
    }
    p->tile = tile;
    p->tiles = (uint32_t)ridge_ceil_div(p->cols, tile);
    if (p->tiles == 0)
        p->tiles = 1; /* no columns, but drow is written */
    if (plain && kernel->param[0] == SWIGLU_FLAT)
        return (uint32_t)ridge_ceil_div(p->cols / vector + p->cols % vector, *threads);
    return (uint32_t)p->rows * p->tiles;
}

/* The functions of a file, `op` fwd or bwd: [f32, f16, bf16][activation][plain with one group in flight, plain with
 * `unrolled` groups in flight, flat, general, general with default options]. */
enum { SWIGLU_KINDS = 5 };
#define SWIGLU_BY_KIND(op, unrolled, dtype, act)                                                                   \
    {                                                                                                              \
        (const void *)swiglu_##op##_plain<dtype, act, 1>, (const void *)swiglu_##op##_plain<dtype, act, unrolled>, \
            (const void *)swiglu_##op##_flat<dtype, act>, (const void *)swiglu_##op##_general<dtype, act, 0>,      \
            (const void *)swiglu_##op##_general<dtype, act, 1>                                                     \
    }
#define SWIGLU_BY_ACT(op, unrolled, dtype)                                                                        \
    {                                                                                                             \
        SWIGLU_BY_KIND(op, unrolled, dtype, RIDGE_SILU), SWIGLU_BY_KIND(op, unrolled, dtype, RIDGE_GELU_TANH),    \
            SWIGLU_BY_KIND(op, unrolled, dtype, RIDGE_GELU_ERF), SWIGLU_BY_KIND(op, unrolled, dtype, RIDGE_RELU2) \
    }
#define SWIGLU_FUNCTIONS(op, unrolled)                                                  \
    {                                                                                   \
        SWIGLU_BY_ACT(op, unrolled, RIDGE_F32), SWIGLU_BY_ACT(op, unrolled, RIDGE_F16), \
            SWIGLU_BY_ACT(op, unrolled, RIDGE_BF16)                                     \
    }
typedef const void *const swiglu_functions[3][4][SWIGLU_KINDS];

/* Loads all functions and asks for all of L1 as cache: the loads in flight lie there, and a process whose other kernels
 * use shared memory would leave little of it. */
static inline ridge_status swiglu_prepare(const ridge_device *device, const swiglu_functions &functions)
{
    return host_prepare(device, &functions[0][0][0], 3 * 4 * SWIGLU_KINDS,
                        cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxL1,
                        "swiglu: loading kernels");
}

static inline ridge_status swiglu_launch(const ridge_device *device, const ridge_kernel *kernel,
                                         const ridge_bound *bound, const swiglu_functions &functions, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const bool plain = swiglu_is_plain(kernel, problem);
    const int act = (int)((problem->flags & RIDGE_ACTIVATION) / RIDGE_GELU_TANH);
    const int kind = !plain ? 3 + problem->plain : kernel->param[0] == SWIGLU_FLAT ? 2 : kernel->param[2] > 1;
    swiglu_args p = swiglu_args_of(&bound->call);
    uint32_t blocks;
    int threads;

    if (p.rows == 0 || (p.cols == 0 && !p.drow))
        return RIDGE_OK;
    p.vectors = swiglu_has_vectors(kernel, problem);
    blocks = swiglu_geometry(kernel, &p, plain && p.dtype == RIDGE_F32 ? 4 : SWIGLU_GROUP, plain, &threads);
    return host_launch_shared(device, kernel->name, functions[p.dtype - RIDGE_F32][act][kind], dim3(blocks), threads,
                              p.drow ? RIDGE_DROW_PARTS * sizeof(float) : 0, &p, stream);
}

/* The bytes' time at the copy rate, times the row's percentage, plus a latency that grows with what a thread does.
 * Several groups in flight pay where a group takes more instructions: GELU, and the general kernels. */
static inline double swiglu_cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double tensors = problem->op == RIDGE_SWIGLU_FWD ? 3 : 5, size = problem->dtype[0] == RIDGE_F32 ? 4 : 2;
    const double bytes = tensors * size * (double)problem->dim[0] * (double)problem->dim[1];
    const uint32_t act = problem->flags & RIDGE_ACTIVATION;
    int64_t wide = 1;
    double percent = kernel->param[3];

    while (wide < problem->dim[1])
        wide *= 2;
    if (kernel->param[2] == 1 && (act == RIDGE_GELU_TANH || act == RIDGE_GELU_ERF || !swiglu_is_plain(kernel, problem)))
        percent *= 1.15;
    /* Blackwell: tiles of 1024 columns keep 8 blocks an SM where one block a row keeps 1 (Liger-Kernel #1271). */
    if (device->arch >= RIDGE_ARCH_SM100 && wide >= 16384 && kernel->param[0] == 1024)
        percent = 90;
    return 0.5 + 0.45 * kernel->param[2] + percent / 100 * bytes * 1e-3 / device->copy_gbps;
}

/* A kernel row. param: tile, threads, groups a thread has in flight, percent of the bytes' time at the copy rate
 * (measured on H200, docs/measured.md). */
#define SWIGLU_KERNEL_ROW(op_name, op_id, row_name, tile, threads, groups, percent)        \
    {                                                                                      \
        "cuda." op_name "." row_name, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,        \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, \
            {tile, threads, groups, percent}, swiglu_why_not, NULL, swiglu_cost, launch    \
    }

#endif
