/* swiglu_bwd.cu: moe_swiglu_bwd_quantize on CUDA. After the plan (plan.cuh) a CTA of 256 threads computes swiglu_bwd of
 * 128 rows of one group and 128 columns and quantises dgate and dup, two tiles, from registers (tile.cuh); where the
 * width is no multiple of 128, or in f32, each tile of the outputs is computed by itself. A last kernel adds the sums
 * of drow. Moves 6 bytes in and 4 out an element for bf16, where writing dgate and dup would add 4 and reading them 4.
 */
#include "plan.cuh"
#include "src/math/experts.h"

typedef struct bwd_args {
    group_args g; /* q.x is gate, q.cols those of dgate and dup side by side */
    const char *dout;
    int64_t dout_stride, cols;
    float *part, *drow; /* part: of drow [ceil(cols / 128)][rows]; drow NULL: not asked for */
    int plain;          /* SiLU with default options */
    int whole;          /* every load and store of a full tile is aligned */
} bwd_args;

/* swiglu_bwd of an element: gate becomes dgate and up dup; returns its term of drow. */
template <int ACT>
static __device__ __forceinline__ float bwd_element(uint32_t flags, const ridge_swiglu_options &o, float dout,
                                                    float scale, float *gate, float *up)
{
    const float b = ridge_swiglu_up(*up, o), dy = ridge_swiglu_scale(dout, scale, o);
    float dh, h = ridge_act_bwd(ACT < 0 ? flags & RIDGE_ACTIVATION : (unsigned)ACT, ridge_swiglu_gate(*gate, o),
                                o.alpha, &dh);

    *up = ridge_swiglu_dup(dy * h, *up, o);
    *gate = ridge_swiglu_dgate(dy * b, dh, *gate, o);
    return dout * ridge_swiglu_drow(h, b, o);
}

/* The default options as ridge_swiglu_resolve leaves them. */
static __device__ __forceinline__ ridge_swiglu_options bwd_defaults(void)
{
    ridge_swiglu_options o = {};

    o.gate_mul = o.down_mul = o.alpha = 1.0f;
    o.up_offset = -0.0f;
    o.limit = __int_as_float(0x7f800000);
    return o;
}

/* The sum over the 16 lanes that have a row, its 128 columns in pairs of neighbours first, to part[tc][row]. */
static __device__ __forceinline__ void bwd_store_part(const bwd_args &p, int tc, int64_t row, bool has, float sum)
{
#pragma unroll
    for (int s = 1; s < 16; s *= 2)
        sum += __shfl_xor_sync(~0u, sum, s);
    if (has && threadIdx.x % 16 == 0)
        p.part[tc * p.g.pairs + row] = sum;
}

/* 8 columns of a row of the outputs, of which the first `inside` exist and the first `left` are dgate's, the others
 * dup's. In and out: x has gate and becomes the outputs. A call, since it holds all activations. */
typedef struct bwd_columns {
    float x[8], up[8], dout[8], sum;
} bwd_columns;

static __device__ __noinline__ bwd_columns bwd_any_columns(bwd_columns c, int inside, int left, uint32_t flags,
                                                           ridge_swiglu_options o, float scale)
{
    c.sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float a = c.x[j], b = c.up[j];
        const float term = bwd_element<-1>(flags, o, c.dout[j], scale, &a, &b);

        c.sum = j < inside && j < left ? c.sum + term : c.sum;
        c.x[j] = j >= inside ? 0.0f : j < left ? a : b;
    }
    return c;
}

/* One tile of the outputs, whatever its size, element by element. */
template <int DTYPE, bool DUAL>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS(DTYPE == RIDGE_F32 ? 1 : 2))
    bwd_any(const __grid_constant__ bwd_args p)
{
    enum { COL = DUAL ? QUANTIZE_ROW128 : QUANTIZE_ABSENT };
    __shared__ __align__(16) tile_memory m;
    const int mine = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 16 * 8, tc = (int)(blockIdx.x % p.g.q.across);
    const int64_t col = (int64_t)tc * 128 + threadIdx.x % 16 * 8;
    quantize_args q = p.g.q;
    uint32_t raw[TILE_ROWS][QUANTIZE_WORDS(DTYPE)];
    const int tr = (int)(blockIdx.x / p.g.q.across);
    int2 tile;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    tile = p.g.tile[tr];
    if (tile.y == 0)
        return;
    group_move(&q, tr, tile);
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++) {
        const int64_t row = tile.x + mine + i;
        const bool has = mine + i < tile.y;
        const float scale = has ? tile_row_scale(q, row) : 1.0f;
        const int inside = has ? (int)min(q.cols - col, (int64_t)8) : 0, left = (int)min(p.cols - col, (int64_t)8);
        bwd_columns c;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int64_t at = col + j - (j < left ? 0 : p.cols);

            c.x[j] = j < inside ? num_load<DTYPE>(q.x, row * q.stride + at) : 0.0f;
            c.up[j] = j < inside ? num_load<DTYPE>(q.up, row * q.up_stride + at) : 0.0f;
            c.dout[j] = j < inside ? num_load<DTYPE>(p.dout, row * p.dout_stride + at) : 0.0f;
        }
        c = bwd_any_columns(c, inside, left, q.flags, q.o, scale);
        if (p.drow && tc * 128 < p.cols) /* of all lanes or none */
            bwd_store_part(p, tc, row, has, c.sum);
        tile_round<DTYPE>(c.x, raw[i]);
    }
    tile_finish<DTYPE, QUANTIZE_ROW128, COL, false>(q, m, raw, tr, tc, false);
}

typedef struct bwd_words {
    uint32_t dout[4], gate[4], up[4];
    float sum;
} bwd_words;

/* swiglu_bwd of 8 elements of a row in registers: gate becomes dgate and up dup, rounded, and sum their term of drow.
 */
template <int DTYPE, int ACT>
static __device__ __forceinline__ bwd_words bwd_row(bwd_words w, uint32_t flags, const ridge_swiglu_options &o,
                                                    float scale)
{
    float y[8], a[8], b[8];

    quantize_unpack<DTYPE>(w.dout, y);
    quantize_unpack<DTYPE>(w.gate, a);
    quantize_unpack<DTYPE>(w.up, b);
    w.sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++)
        w.sum += bwd_element<ACT>(flags, o, y[j], scale, &a[j], &b[j]);
    tile_round<DTYPE>(a, w.gate);
    tile_round<DTYPE>(b, w.up);
    return w;
}

/* The same with any option: a call, as above. */
template <int DTYPE>
static __device__ __noinline__ bwd_words bwd_any_row(bwd_words w, uint32_t flags, ridge_swiglu_options o, float scale)
{
    return bwd_row<DTYPE, -1>(w, flags, o, scale);
}

/* 16-bit elements, aligned, and a width that is a multiple of 128: a CTA both tiles of 128 columns. For rows that the
 * tile has not it computes the last one again, and zeros take its place. */
template <int DTYPE, bool DUAL>
static __global__ void __launch_bounds__(TILE_THREADS, TILE_BLOCKS(2)) bwd_pair(const __grid_constant__ bwd_args p)
{
    enum { TOGETHER = 2, HELD = 6, COL = DUAL ? QUANTIZE_ROW128 : QUANTIZE_ABSENT };
    __shared__ __align__(16) tile_memory m;
    __shared__ uint4 held[HELD][TILE_THREADS]; /* dup of each thread's first rows: registers hold dgate meanwhile */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = (int)(p.g.q.across / 2);
    const int tr = (int)blockIdx.x / half, tc = (int)blockIdx.x % half;
    const int mine = warp * 16 + lane / 16 * 8, col = tc * 128 + (lane & 15) * 8;
    quantize_args q;
    uint32_t gate[TILE_ROWS][4], last[TILE_ROWS - HELD][4];
    int plain = p.plain;
    int2 tile;

    ptx_grid_dependency_wait();
    tile = p.g.tile[tr];
    ptx_launch_dependents();
    if (tile.y == 0)
        return;
#pragma unroll
    for (int first = 0; first < TILE_ROWS; first += TOGETHER) {
        bwd_words w[TOGETHER];

#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int64_t row = tile.x + min(mine + first + i, tile.y - 1);

            quantize_load<DTYPE>(p.g.q.x + (row * p.g.q.stride + col) * 2, 8, true, w[i].gate);
            quantize_load<DTYPE>(p.g.q.up + (row * p.g.q.up_stride + col) * 2, 8, true, w[i].up);
            quantize_load<DTYPE>(p.dout + (row * p.dout_stride + col) * 2, 8, true, w[i].dout);
        }
        /* A branch in every step, so that the loads of the next ones, for which there are no registers, stay behind it.
         */
        asm volatile("" : "+r"(plain));
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const float scale = tile_row_scale(p.g.q, tile.x + min(mine + first + i, tile.y - 1));

            w[i] = plain ? bwd_row<DTYPE, RIDGE_SILU>(w[i], 0, bwd_defaults(), scale)
                         : bwd_any_row<DTYPE>(w[i], p.g.q.flags, p.g.q.o, scale);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const bool has = mine + first + i < tile.y;

#pragma unroll
            for (int k = 0; k < 4; k++) {
                gate[first + i][k] = has ? w[i].gate[k] : 0;
                w[i].up[k] = has ? w[i].up[k] : 0;
            }
            if (p.drow)
                bwd_store_part(p, tc, tile.x + mine + first + i, has, w[i].sum);
            if (first + i < HELD)
                held[first + i][threadIdx.x] = make_uint4(w[i].up[0], w[i].up[1], w[i].up[2], w[i].up[3]);
            else
#pragma unroll
                for (int k = 0; k < 4; k++)
                    last[first + i - HELD][k] = w[i].up[k];
        }
    }
    q = p.g.q; /* not before: it would take registers from the loads */
    group_move(&q, tr, tile);
    tile_finish<DTYPE, QUANTIZE_ROW128, COL, false>(q, m, gate, tr, tc, tile.y == 128);
#pragma unroll
    for (int i = 0; i < TILE_ROWS; i++) {
        const uint4 v = i < HELD ? held[i][threadIdx.x] : make_uint4(0, 0, 0, 0);

        gate[i][0] = v.x, gate[i][1] = v.y, gate[i][2] = v.z, gate[i][3] = v.w;
#pragma unroll
        for (int k = 0; k < 4 && i >= HELD; k++)
            gate[i][k] = last[i - HELD][k];
    }
    tile_sync(); /* all threads have read m before the second tile writes it */
    tile_finish<DTYPE, QUANTIZE_ROW128, COL, false>(q, m, gate, tr, tc + half, tile.y == 128);
}

/* drow of the rows of a tile, thread by thread. */
static __global__ void __launch_bounds__(128) bwd_drow(const __grid_constant__ bwd_args p)
{
    const int parts = (int)((p.cols + 127) / 128);
    float sum = 0.0f;
    int2 tile;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    tile = p.g.tile[blockIdx.x];
    if ((int)threadIdx.x >= tile.y)
        return;
#pragma unroll 8
    for (int i = 0; i < parts; i++)
        sum += p.part[i * p.g.pairs + tile.x + (int)threadIdx.x];
    ((uint32_t *)p.drow)[tile.x + (int)threadIdx.x] = num_canonical_f32(sum);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* [f16, bf16][without, with the transposed codes] */
static const void *const pairs[2][2] = {
    {(const void *)bwd_pair<RIDGE_F16, false>, (const void *)bwd_pair<RIDGE_F16, true>},
    {(const void *)bwd_pair<RIDGE_BF16, false>, (const void *)bwd_pair<RIDGE_BF16, true>}};
/* [f32, f16, bf16][without, with the transposed codes] */
static const void *const singles[3][2] = {
    {(const void *)bwd_any<RIDGE_F32, false>, (const void *)bwd_any<RIDGE_F32, true>},
    {(const void *)bwd_any<RIDGE_F16, false>, (const void *)bwd_any<RIDGE_F16, true>},
    {(const void *)bwd_any<RIDGE_BF16, false>, (const void *)bwd_any<RIDGE_BF16, true>}};

static ridge_status prepare(const ridge_device *device)
{
    const void *const drow = (const void *)bwd_drow;
    ridge_status status = host_load(device, &pairs[0][0], 4, "moe_swiglu_bwd_quantize: loading kernels");

    status = status ? status : host_load(device, &singles[0][0], 6, "moe_swiglu_bwd_quantize: loading kernels");
    status = status ? status : host_load(device, &drow, 1, "moe_swiglu_bwd_quantize: loading kernels");
    return status ? status : group_prepare(device);
}

static bwd_args args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg, *dout = &arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT];
    const ridge_operand *gate = &arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_GATE], *up = &arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_UP];
    const int size = dout->dtype == RIDGE_F32 ? 4 : 2;
    bwd_args p = {};

    group_outputs(call, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q, call->dim[0], 2 * call->dim[1], call->dim[2], &p.g);
    p.g.offsets = (const int32_t *)arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS].data;
    p.g.q.x = (const char *)gate->data;
    p.g.q.stride = gate->stride;
    p.g.q.up = (const char *)up->data;
    p.g.q.up_stride = up->stride;
    p.g.q.flags = call->flags;
    p.g.q.o = ridge_swiglu_resolve(call->opt.swiglu_quantize.swiglu);
    p.g.q.floor = call->opt.swiglu_quantize.floor;
    p.g.q.row_scale = (const float *)arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_ROW_SCALE].data;
    p.dout = (const char *)dout->data;
    p.dout_stride = dout->stride;
    p.cols = call->dim[1];
    p.drow = (float *)arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW].data;
    p.whole = size == 2 && p.cols % 128 == 0 && p.g.q.whole && quantize_aligned(p.dout, p.dout_stride * size, 16) &&
              quantize_aligned(gate->data, gate->stride * size, 16) &&
              quantize_aligned(up->data, up->stride * size, 16);
    return p;
}

static size_t plan_bytes(int64_t rows, int64_t experts)
{
    return (size_t)ridge_round_up(ridge_ld_groups(rows, experts) / 128 * (int64_t)sizeof(int2), 256);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const uint32_t dtype = bound->call.arg[0].dtype;
    bwd_args p = args_of(&bound->call);
    const bool dual = p.g.q.col.q != NULL;
    ridge_status status;

    p.plain = bound->problem.plain && (bound->call.flags & RIDGE_ACTIVATION) == RIDGE_SILU;
    p.g.tile = (int2 *)workspace;
    p.part = (float *)((char *)workspace + plan_bytes(p.g.pairs, p.g.experts));
    status = group_begin(device, kernel, &p.g, stream);
    if (status || p.g.tiles == 0)
        return status;
    if (p.cols)
        status = host_launch(device, kernel->name,
                             p.whole ? pairs[dtype - RIDGE_F16][dual] : singles[dtype - RIDGE_F32][dual],
                             dim3((unsigned)p.g.tiles * (p.g.q.across / (p.whole ? 2 : 1))), TILE_THREADS, &p, stream);
    if (status || !p.drow)
        return status;
    return host_launch(device, kernel->name, (const void *)bwd_drow, dim3((unsigned)p.g.tiles), 128, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dim[1] > 0x3fffff00)
        return "2^30 columns";
    if ((double)(ridge_ld_groups(problem->dim[0], problem->dim[2]) / 128) *
            (double)quantize_groups(2 * problem->dim[1]) >
        2147483647.0)
        return "more than 2^31 - 1 tiles";
    return NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const bool drow = problem->dtype[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW] != RIDGE_NONE;
    const int64_t parts = drow ? quantize_groups(problem->dim[1]) * problem->dim[0] : 0;

    return plan_bytes(problem->dim[0], problem->dim[2]) + (size_t)parts * sizeof(float);
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 7 + 10 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {{"cuda.moe_swiglu_bwd_quantize.tile128",
                                     RIDGE_MOE_SWIGLU_BWD_QUANTIZE,
                                     RIDGE_ARCH_SM80,
                                     RIDGE_ARCH_CUDA_LAST,
                                     QUANTIZE_CONTRACT,
                                     0,
                                     {},
                                     why_not,
                                     workspace_bytes,
                                     cost,
                                     launch}};

extern "C" const ridge_kernel_list ridge_cuda_experts_swiglu_bwd = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
