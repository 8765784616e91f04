/* quantize.cu: moe_permute_quantize and moe_swiglu_quantize on CUDA. One CTA lists the tiles, 128 padded rows of one
 * group each; then a CTA of 256 threads quantises a tile of 128 x 128 elements as quantize_fp8_dual does (tile.cuh),
 * its rows gathered. Rows that a tile has not are zeros in the transposed codes and are not stored in the others. */
#include "ops/quantize_fp8/tile.cuh"

enum { PLAN = RIDGE_MOE_MAX_EXPERTS };

typedef struct group_args {
    quantize_args q;
    const int32_t *rows, *offsets;
    int32_t *offsets_t;
    int2 *tile; /* of each tile: its first row, and how many it has; 0: it belongs to no group */
    int64_t pairs;
    int32_t slots, experts, tiles;
} group_args;

/* The largest, or the sum, of the values of the threads before this one and its own. */
template <bool SUM> static __device__ __forceinline__ int scan_block(int v, int *warps)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
        const int other = __shfl_up_sync(~0u, v, s);

        if (lane >= s)
            v = SUM ? v + other : max(v, other);
    }
    if (lane == 31)
        warps[warp] = v;
    __syncthreads(); /* the warps' results are written before they are read */
    for (int w = 0; w < warp; w++)
        v = SUM ? v + warps[w] : max(v, warps[w]);
    __syncthreads(); /* and read before the next scan writes */
    return v;
}

static __global__ void __launch_bounds__(PLAN) group_plan(const __grid_constant__ group_args p)
{
    __shared__ int warps[PLAN / 32], start[PLAN + 1], first[PLAN + 1];
    const int e = threadIdx.x, pairs = (int)p.pairs;
    int from, to, count, end;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    from = e < p.experts ? min(max(p.offsets[e], 0), pairs) : 0;
    from = scan_block<false>(from, warps);
    start[e] = from;
    if (e == 0)
        start[p.experts] = min(max(p.offsets[p.experts], 0), pairs);
    __syncthreads(); /* the starts are written before they are read */
    to = e < p.experts - 1 ? start[e + 1] : max(start[p.experts], from);
    __syncthreads(); /* and read before the last one is corrected */
    if (e == p.experts - 1)
        start[p.experts] = to;
    count = e < p.experts ? (to - from + 127) / 128 : 0;
    end = scan_block<true>(count, warps);
    if (e < p.experts) {
        first[e + 1] = end;
        if (p.offsets_t)
            p.offsets_t[e + 1] = end * 128;
    }
    if (e == 0) {
        first[0] = 0;
        if (p.offsets_t)
            p.offsets_t[0] = 0;
    }
    __syncthreads(); /* starts and first tiles are complete */
    for (int tile = e; tile < p.tiles; tile += PLAN) {
        int low = 0, high = p.experts; /* the last group whose first tile is not behind this one */

        while (high - low > 1) {
            const int middle = (low + high) / 2;

            if (first[middle] <= tile)
                low = middle;
            else
                high = middle;
        }
        from = start[low] + (tile - first[low]) * 128;
        p.tile[tile] = make_int2(from, tile < first[p.experts] ? min(128, start[low + 1] - from) : 0);
    }
}

/* DUAL: the transposed codes too. */
template <int DTYPE, int SOURCE, bool DUAL>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS(2)) group_tile(const __grid_constant__ group_args p)
{
    constexpr int W = QUANTIZE_WORDS(DTYPE), TOGETHER = SOURCE == FROM_X ? TILE_ROWS : DTYPE == RIDGE_F32 ? 2 : 4;
    constexpr int COL = DUAL ? QUANTIZE_ROW128 : QUANTIZE_ABSENT;
    __shared__ __align__(16) tile_memory m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tr = (int)(blockIdx.x / p.q.across), tc = (int)(blockIdx.x % p.q.across);
    const int mine = warp * 16 + lane / 16 * 8, col = tc * 128 + (lane & 15) * 8;
    quantize_args q = p.q;
    uint32_t raw[TILE_ROWS][W];
    bool whole;
    int2 tile;

    ptx_grid_dependency_wait();
    tile = p.tile[tr];
    ptx_launch_dependents();
    if (tile.y == 0)
        return;
    whole = q.whole && tile.y == 128 && tc * 128 + 128 <= q.cols;
    /* As if row tr * 128 of the outputs were the tile's first. */
    q.rows = (int64_t)tr * 128 + tile.y;
    q.row.q += (tile.x - (int64_t)tr * 128) * q.row.stride;
    q.row.scale += tile.x - (int64_t)tr * 128;
    if constexpr (SOURCE == FROM_SILU) {
        if (whole && q.vector_x) {
            uint32_t up[TILE_ROWS][W];

#pragma unroll
            for (int i = 0; i < TILE_ROWS; i++)
                tile_load_row<DTYPE, SOURCE>(q, tile.x + mine + i, col, 8, raw[i], up[i]);
            tile_silu<DTYPE, true>(q, tile.x + mine, col, raw, up);
            tile_finish<DTYPE, QUANTIZE_ROW128, COL, false>(q, m, raw, tr, tc, true);
            return;
        }
    }
#pragma unroll
    for (int first = 0; first < TILE_ROWS; first += TOGETHER) {
        uint32_t up[TOGETHER][W];

#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int r = mine + first + i;
            int64_t row = tile.x + r, n = r < tile.y ? q.cols - col : 0;

            if (SOURCE == FROM_X && p.rows && n > 0) {
                const int pair = p.rows[row];

                row = (unsigned)pair / (unsigned)p.slots;
                n = pair >= 0 && pair < p.pairs ? n : 0;
            }
            tile_load_row<DTYPE, SOURCE>(q, row, col, n, raw[first + i], up[i]);
        }
        if (SOURCE != FROM_X)
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int r = mine + first + i;

                tile_swiglu<DTYPE, SOURCE>(q, r < tile.y ? tile.x + r : tile.x, r < tile.y ? q.cols - col : 0,
                                           raw[first + i], up[i]);
            }
    }
    if (whole)
        tile_finish<DTYPE, QUANTIZE_ROW128, COL, false>(q, m, raw, tr, tc, true);
    else
        tile_finish<DTYPE, QUANTIZE_ROW128, COL, false>(q, m, raw, tr, tc, false);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_SOURCE(DTYPE)                                                                           \
    (const void *)group_tile<DTYPE, FROM_X, false>, (const void *)group_tile<DTYPE, FROM_X, true>, \
        (const void *)group_tile<DTYPE, FROM_SWIGLU, false>, (const void *)group_tile<DTYPE, FROM_SWIGLU, true>
#define OF_SILU(DTYPE) \
    (const void *)group_tile<DTYPE, FROM_SILU, false>, (const void *)group_tile<DTYPE, FROM_SILU, true>

/* [f32, f16, bf16][of x, SwiGLU with any option, SiLU with default options][without, with the transposed codes]. f32
 * has no kernel for SiLU: tiles of two f32 tensors do not fit the registers. */
enum { OF_X = 0, OF_SWIGLU = 2, OF_PLAIN = 4, FUNCTIONS = 6 };
static const void *const functions[3][FUNCTIONS] = {{BY_SOURCE(RIDGE_F32),
                                                     (const void *)group_tile<RIDGE_F32, FROM_SWIGLU, false>,
                                                     (const void *)group_tile<RIDGE_F32, FROM_SWIGLU, true>},
                                                    {BY_SOURCE(RIDGE_F16), OF_SILU(RIDGE_F16)},
                                                    {BY_SOURCE(RIDGE_BF16), OF_SILU(RIDGE_BF16)}};

static ridge_status prepare(const ridge_device *device)
{
    const void *const plan = (const void *)group_plan;
    ridge_status status = host_load(device, &functions[0][0], 3 * FUNCTIONS, "moe_permute_quantize: loading kernels");

    return status ? status : host_load(device, &plan, 1, "moe_permute_quantize: loading kernels");
}

static int64_t pairs_of(uint32_t op, const int64_t *dim)
{
    return op == RIDGE_MOE_SWIGLU_QUANTIZE ? dim[0] : dim[0] * dim[1];
}

static int64_t cols_of(uint32_t op, const int64_t *dim)
{
    return dim[op == RIDGE_MOE_SWIGLU_QUANTIZE ? 1 : 2];
}

static int64_t tiles_of(uint32_t op, const int64_t *dim)
{
    return ridge_ld_groups(pairs_of(op, dim), dim[op == RIDGE_MOE_SWIGLU_QUANTIZE ? 2 : 3]) / 128;
}

static group_args args_of(const ridge_call *call)
{
    const bool swiglu = call->op == RIDGE_MOE_SWIGLU_QUANTIZE;
    const int q = swiglu ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_Q : (int)RIDGE_MOE_PERMUTE_QUANTIZE_Q;
    const ridge_operand *arg = call->arg;
    const int size = arg[0].dtype == RIDGE_F32 ? 4 : 2;
    group_args p = {};

    p.pairs = pairs_of(call->op, call->dim);
    p.tiles = (int32_t)tiles_of(call->op, call->dim);
    p.slots = swiglu ? 1 : (int32_t)call->dim[1];
    p.experts = (int32_t)call->dim[swiglu ? 2 : 3];
    p.rows = swiglu ? NULL : (const int32_t *)arg[RIDGE_MOE_PERMUTE_QUANTIZE_ROWS].data;
    p.offsets =
        (const int32_t *)arg[swiglu ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS : (int)RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS]
            .data;
    p.offsets_t = (int32_t *)arg[q + 4].data;
    p.q.rows_t = (int64_t)p.tiles * 128;
    p.q.cols = cols_of(call->op, call->dim);
    p.q.x = (const char *)arg[0].data;
    p.q.stride = arg[0].stride;
    p.q.across = (uint32_t)quantize_groups(p.q.cols);
    p.q.e5m2 = arg[q].dtype == RIDGE_E5M2;
    p.q.pow2 = (call->flags & RIDGE_POW2) != 0;
    p.q.vector_x = quantize_aligned(p.q.x, p.q.stride * size, 16);
    p.q.row = quantize_output(call, q);
    p.q.vector_row = quantize_aligned(p.q.row.q, p.q.row.stride, 8);
    p.q.floor = call->opt.quantize.floor;
    if (arg[q + 2].data) {
        p.q.col = quantize_output(call, q + 2);
        p.q.vector_col = quantize_aligned(p.q.col.q, p.q.col.stride, 16);
    }
    if (swiglu) {
        p.q.up = (const char *)arg[RIDGE_MOE_SWIGLU_QUANTIZE_UP].data;
        p.q.up_stride = arg[RIDGE_MOE_SWIGLU_QUANTIZE_UP].stride;
        p.q.vector_x = p.q.vector_x && (!p.q.up || quantize_aligned(p.q.up, p.q.up_stride * size, 16));
        p.q.flags = call->flags;
        p.q.o = ridge_swiglu_resolve(call->opt.swiglu_quantize.swiglu);
        p.q.floor = call->opt.swiglu_quantize.floor;
        p.q.row_scale = (const float *)arg[RIDGE_MOE_SWIGLU_QUANTIZE_ROW_SCALE].data;
    }
    p.q.whole = p.q.vector_row && (!p.q.col.q || p.q.vector_col);
    return p;
}

/* As swiglu_quantize's: two tensors, SiLU, default options but the rows' scales, where the registers leave two CTAs. */
static int source_of(const ridge_device *device, const ridge_bound *bound)
{
    if (bound->call.op != RIDGE_MOE_SWIGLU_QUANTIZE)
        return OF_X;
    return device->arch >= RIDGE_ARCH_SM90 && device->arch <= RIDGE_ARCH_SM103 && bound->problem.plain &&
                   !(bound->call.flags & (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED))
               ? OF_PLAIN
               : OF_SWIGLU;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    group_args p = args_of(&bound->call);
    ridge_status status;

    p.tile = (int2 *)workspace;
    if (!p.offsets_t && (p.tiles == 0 || p.q.cols == 0))
        return RIDGE_OK;
    status = host_launch(device, kernel->name, (const void *)group_plan, dim3(1), PLAN, &p, stream);
    if (status || p.tiles == 0 || p.q.cols == 0)
        return status;
    return host_launch(device, kernel->name,
                       functions[bound->call.arg[0].dtype - RIDGE_F32][source_of(device, bound) + (p.q.col.q != NULL)],
                       dim3((unsigned)p.tiles * p.q.across), TILE_THREADS, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (cols_of(problem->op, problem->dim) > 0x7fffff00)
        return "2^31 columns";
    if ((double)tiles_of(problem->op, problem->dim) * (double)quantize_groups(cols_of(problem->op, problem->dim)) >
        2147483647.0)
        return "more than 2^31 - 1 tiles";
    return NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (size_t)tiles_of(problem->op, problem->dim) * sizeof(int2);
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 5 + 4 * (double)pairs_of(problem->op, problem->dim) * (double)cols_of(problem->op, problem->dim) * 1e-3 /
                   device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                          \
    {                                                                                                                \
        "cuda." op_name ".tile128", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, QUANTIZE_CONTRACT, 0, {}, why_not, \
            workspace_bytes, cost, launch                                                                            \
    }

static const ridge_kernel rows[] = {
    ROW("moe_permute_quantize", RIDGE_MOE_PERMUTE_QUANTIZE),
    ROW("moe_swiglu_quantize", RIDGE_MOE_SWIGLU_QUANTIZE),
};

extern "C" const ridge_kernel_list ridge_cuda_experts_quantize = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
