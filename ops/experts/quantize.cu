/* quantize.cu: moe_permute_quantize and moe_swiglu_quantize on CUDA. After the plan (plan.cuh) a CTA of 256 threads
 * quantises a tile of 128 x 128 elements as quantize_fp8_dual does (tile.cuh), its rows gathered. Rows that a tile has
 * not are zeros in the transposed codes and are not stored in the others. */
#include "plan.cuh"

enum { STRIP_BYTES = 16000000 };

/* DUAL: the transposed codes too. */
template <int DTYPE, int SOURCE, bool DUAL>
static __global__ void __launch_bounds__(TILE_THREADS,
                                         TILE_BLOCKS(SOURCE == FROM_X && !DUAL && DTYPE != RIDGE_F32 ? 3 : 2))
    group_tile(const __grid_constant__ group_args p)
{
    constexpr int W = QUANTIZE_WORDS(DTYPE), TOGETHER = SOURCE == FROM_X ? TILE_ROWS : DTYPE == RIDGE_F32 ? 2 : 4;
    constexpr int COL = DUAL ? QUANTIZE_ROW128 : QUANTIZE_ABSENT;
    __shared__ __align__(16) tile_memory m;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t strip = blockIdx.x / ((uint32_t)p.tiles * p.strip), in = blockIdx.x % ((uint32_t)p.tiles * p.strip);
    const uint32_t wide = min(p.strip, p.q.across - strip * p.strip);
    const int tr = (int)(in / wide), tc = (int)(strip * p.strip + in % wide);
    const int mine = warp * 16 + lane / 16 * 8, col = tc * 128 + (lane & 15) * 8;
    quantize_args q;
    uint32_t raw[TILE_ROWS][W];
    bool whole;
    int2 tile;

    if (!TILE_HAS(SOURCE))
        return;
    ptx_grid_dependency_wait();
    tile = p.tile[tr];
    ptx_launch_dependents();
    if (tile.y == 0)
        return;
    whole = p.q.whole && tile.y == 128 && tc * 128 + 128 <= p.q.cols;
    if constexpr (SOURCE == FROM_SILU) {
        if (whole && p.q.vector_x) {
            uint32_t up[TILE_ROWS][W];

#pragma unroll
            for (int i = 0; i < TILE_ROWS; i++)
                tile_load_row<DTYPE, SOURCE>(p.q, tile.x + mine + i, col, 8, raw[i], up[i]);
            tile_silu<DTYPE, true>(p.q, tile.x + mine, col, raw, up);
            q = p.q;
            group_move(&q, tr, tile);
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
            int64_t row = tile.x + r, n = r < tile.y ? p.q.cols - col : 0;

            if (SOURCE == FROM_X && p.rows && n > 0) {
                const int pair = p.rows[row];

                row = (unsigned)pair / (unsigned)p.slots;
                n = pair >= 0 && pair < p.pairs ? n : 0;
            }
            tile_load_row<DTYPE, SOURCE>(p.q, row, col, n, raw[first + i], up[i]);
        }
        if (SOURCE != FROM_X)
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int r = mine + first + i;

                tile_swiglu<DTYPE, SOURCE>(p.q, r < tile.y ? tile.x + r : tile.x, r < tile.y ? p.q.cols - col : 0,
                                           raw[first + i], up[i]);
            }
    }
    q = p.q; /* not before: it would take registers from the loads */
    group_move(&q, tr, tile);
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
    ridge_status status = host_load(device, &functions[0][0], 3 * FUNCTIONS, "moe_permute_quantize: loading kernels");

    return status ? status : group_prepare(device);
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

    p.slots = swiglu ? 1 : (int32_t)call->dim[1];
    p.rows = swiglu ? NULL : (const int32_t *)arg[RIDGE_MOE_PERMUTE_QUANTIZE_ROWS].data;
    group_outputs(call, q, pairs_of(call->op, call->dim), cols_of(call->op, call->dim), call->dim[swiglu ? 2 : 3], &p);
    p.offsets =
        (const int32_t *)arg[swiglu ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS : (int)RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS]
            .data;
    p.q.x = (const char *)arg[0].data;
    p.q.stride = arg[0].stride;
    p.q.vector_x = quantize_aligned(p.q.x, p.q.stride * size, 16);
    p.q.floor = call->opt.quantize.floor;
    if (swiglu) {
        p.q.up = (const char *)arg[RIDGE_MOE_SWIGLU_QUANTIZE_UP].data;
        p.q.up_stride = arg[RIDGE_MOE_SWIGLU_QUANTIZE_UP].stride;
        p.q.vector_x = p.q.vector_x && (!p.q.up || quantize_aligned(p.q.up, p.q.up_stride * size, 16));
        p.q.flags = call->flags;
        p.q.o = ridge_swiglu_resolve(call->opt.swiglu_quantize.swiglu);
        p.q.floor = call->opt.swiglu_quantize.floor;
        p.q.row_scale = (const float *)arg[RIDGE_MOE_SWIGLU_QUANTIZE_ROW_SCALE].data;
    }
    return p;
}

/* Gathered rows are read for each of their slots: of so many columns at a time that they stay in L2 from one to the
 * next.
 */
static uint32_t strip_of(const ridge_call *call, const group_args *p)
{
    const int64_t column = call->dim[0] * 128 * (call->arg[0].dtype == RIDGE_F32 ? 4 : 2);

    if (!p->rows || p->slots == 1)
        return p->q.across;
    return (uint32_t)ridge_min(ridge_max(STRIP_BYTES / ridge_max(column, 1), 1), p->q.across);
}

/* As swiglu_quantize's: two tensors, SiLU, default options but the rows' scales, where there are kernels for it. */
static int source_of(const ridge_device *device, const ridge_bound *bound)
{
    if (bound->call.op != RIDGE_MOE_SWIGLU_QUANTIZE)
        return OF_X;
    return device->arch >= TILE_SILU_FIRST && device->arch <= TILE_SILU_LAST && bound->problem.plain &&
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
    p.strip = strip_of(&bound->call, &p);
    if (!p.offsets_t && (p.tiles == 0 || p.q.cols == 0))
        return RIDGE_OK;
    status = group_begin(device, kernel, &p, stream);
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
