/* matmul_mma.cu: the products of Q8_0 decode from planes, weights straight from memory to the registers of the matrix
 * instruction; sm_80 up.
 *
 * Eight warps are a slot: warp p has the partition p of the canonical order (src/math/q8_0.h) of a tile of 8 or 16
 * rows, so of each turn of 1024 columns a run of 4 blocks, 128 bytes a row. A lane (g = lane / 4, t = lane % 4) loads
 * 16 bytes of row g for each half of the run: quarter t of two blocks, 0 and 1 being of the first. An instruction
 * m16n8k32 multiplies 8 bytes of every lane; its 16 rows are the 8 tokens twice, the first time with x zero where the
 * second block lies, the second time the other way round, so that two instructions give both blocks' sums for 8 tokens
 * and 8 weight rows, and no weight moves between lanes. The sum starts at 0x4b400000, the bits of 12582912.0: read as a
 * float and less that number it is the dot product, exactly. Partitions meet in shared memory at the tile's end. The
 * last run of a row may have two blocks only.
 *
 * DEPTH turns of loads are always in flight, over the ends of tiles. x and its scales lie in shared memory, quantised
 * on the way there if there are few. Barriers: 1 + slot orders the partial sums' writes before their reads; two buffers
 * in turn, so that the next tile's barrier also orders these reads before the writes after next. */
#include "args.cuh"

enum { SLOT = 32 * RIDGE_Q8_0_PARTS, MOST_SLOTS = 2, MOST_THREADS = SLOT * MOST_SLOTS, SUB = 8, RUN = 128 };

typedef struct direct_args {
    int units[2]; /* of 8 rows */
    int tiles, runs, gate_up, slots;
    int short_part; /* the partition whose last run has two blocks only, or -1: then rows of scales are words */
    int early;      /* weights may be read before the kernels in front have finished */
    int x_dtype;    /* RIDGE_I8: codes and scales */
    int x_pitch, scale_pitch;
    uint32_t at_scales, at_sums, at_args;
    const void *x;
    int64_t x_stride; /* bytes */
    q8_0_args p;
} direct_args;

/* One turn's run of 8 rows: codes of row g, scales of rows 2t and 2t + 1. */
typedef struct run_regs {
    uint4 code[2];
    uint2 scale[2];
} run_regs;

/* Where the next load is. A warp has `mine` turns of a tile: those in which its partition has a run. */
typedef struct cursor {
    int tile, left, mine;
    const uint8_t *code[2], *scale[2]; /* [subs] */
    int scale_stride[2];               /* to row 2t + 1, or 0 where there is none */
} cursor;

static __device__ __forceinline__ int sub_rows(const direct_args &a, int tile, int subs, int s, int *row)
{
    const int unit = tile * subs + s;
    int which;

    if (a.gate_up) { /* gate and up of the same rows, in turn */
        *row = unit / 2 * SUB;
        return s & 1;
    }
    which = unit >= a.units[0] && a.units[1];
    *row = (which ? unit - a.units[0] : unit) * SUB;
    return which;
}

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Rows that are not there are read from the last one and dropped at the end. */
template <int SUBS>
static __device__ __forceinline__ void begin_tile(const direct_args &a, cursor *c, int part, int lane)
{
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
        int row;
        const q8_0_weight &m = a.p.weight[sub_rows(a, c->tile, SUBS, s, &row)];
        const int last = (int)m.rows - 1, code_row = min(row + lane / 4, last),
                  scale_row = min(row + lane % 4 * 2, last);

        c->code[s] = m.codes + code_row * m.stride + part * RUN + lane % 4 * 16;
        c->scale[s] = m.scales + scale_row * m.scale_stride + part * (2 * RIDGE_Q8_0_RUN);
        c->scale_stride[s] = scale_row < last ? (int)m.scale_stride : 0;
    }
}

/* Four scales, or two and zeros: blocks that change nothing. */
static __device__ __forceinline__ uint2 load_words(const uint8_t *from, bool whole)
{
    return make_uint2(*(const uint32_t *)from, whole ? *(const uint32_t *)(from + 4) : 0);
}

/* Issues one turn's loads and moves on. */
template <int SUBS>
static __device__ __forceinline__ void load_turn(const direct_args &a, cursor *c, run_regs *to, int part, int lane,
                                                 int step)
{
    if (c->tile >= a.tiles)
        return;
#pragma unroll
    for (int s = 0; s < SUBS; s++) {
        const bool whole = part != a.short_part || c->left > 1;

        to[s].code[0] = ptx_load_stream(c->code[s]);
        to[s].code[1] = whole ? ptx_load_stream(c->code[s] + 64) : make_uint4(0, 0, 0, 0);
        if (a.short_part < 0) {
            to[s].scale[0] = ptx_load8(c->scale[s]);
            to[s].scale[1] = ptx_load8(c->scale[s] + c->scale_stride[s]);
        } else {
            to[s].scale[0] = load_words(c->scale[s], whole);
            to[s].scale[1] = load_words(c->scale[s] + c->scale_stride[s], whole);
        }
        c->code[s] += RUN * RIDGE_Q8_0_PARTS;
        c->scale[s] += 2 * Q8_0_TURN;
    }
    if (--c->left == 0) {
        c->left = c->mine;
        c->tile += step;
        if (c->tile < a.tiles)
            begin_tile<SUBS>(a, c, part, lane);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- x */

/* x to shared memory, codes and scales; floats are quantised on the way, four lanes a block. */
static __device__ __forceinline__ void fill_quantised(const direct_args &a, char *memory)
{
    const int units = (int)a.p.blocks * 4; /* of 8 columns */

    for (int i = threadIdx.x; i < a.p.tokens * units; i += blockDim.x) {
        const int token = i / units, u = i % units;
        float x[8], scale;

        q8_0_load8((const char *)a.x + token * a.x_stride, u * 8, a.x_dtype == RIDGE_BF16, x);
        *(uint2 *)(memory + token * a.x_pitch + u * 8) = q8_0_quantise8(x, &scale);
        if (u % 4 == 0)
            ((float *)(memory + a.at_scales))[token * a.scale_pitch + u / 4] = scale;
    }
}

static __device__ __forceinline__ void fill_codes(const direct_args &a, char *memory)
{
    const int words = (int)a.p.blocks * 2, scales = (int)a.p.blocks;

    for (int i = threadIdx.x; i < a.p.tokens * words; i += blockDim.x)
        *(uint4 *)(memory + i / words * a.x_pitch + i % words * 16) =
            ptx_load_once((const char *)a.x + i / words * a.x_stride + i % words * 16);
    for (int i = threadIdx.x; i < a.p.tokens * scales; i += blockDim.x)
        ((float *)(memory + a.at_scales))[i / scales * a.scale_pitch + i % scales] =
            a.p.x_scales[i / scales * a.p.x_ld + i % scales];
}

/* --------------------------------------------------------------------------------------------------------- the turn */

/* 4 blocks of SUBS * 8 rows and 8 * WIDE tokens onto the chains. codes and scales: of this lane, for this run. */
template <int SUBS, int WIDE>
static __device__ __forceinline__ void multiply(const direct_args &a, const char *codes, const char *scales,
                                                const run_regs *w, int lane, float (*acc)[2 * WIDE])
{
    const bool first = lane % 4 < 2;

#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        const bool there = lane / 4 + 8 * i < a.p.tokens;
        const float4 xs = *(const float4 *)(scales + (there ? 8 * i * a.scale_pitch * 4 : 0));

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 x = there ? *(const uint4 *)(codes + 8 * i * a.x_pitch + 64 * h) : make_uint4(0, 0, 0, 0);
            const uint32_t low[4] = {first ? x.x : 0, first ? 0 : x.x, first ? x.y : 0, first ? 0 : x.y};
            const uint32_t high[4] = {first ? x.z : 0, first ? 0 : x.z, first ? x.w : 0, first ? 0 : x.w};
            const float s0 = h ? xs.z : xs.x, s1 = h ? xs.w : xs.y;

#pragma unroll
            for (int s = 0; s < SUBS; s++) {
                const uint32_t b0[2] = {w[s].code[h].x, w[s].code[h].y}, b1[2] = {w[s].code[h].z, w[s].code[h].w};
                int32_t d[4] = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};

                ptx_mma_s8(d, low, b0);
                ptx_mma_s8(d, high, b1);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t pair = h ? w[s].scale[r].y : w[s].scale[r].x;
                    float *sum = &acc[s][2 * i + r], w0, w1;

                    num_unpack2<RIDGE_F16>(pair, &w0, &w1);
                    *sum = __fmaf_rn(__fmul_rn(w0, s0), __fadd_rn(__int_as_float(d[r]), -12582912.0f), *sum);
                    *sum = __fmaf_rn(__fmul_rn(w1, s1), __fadd_rn(__int_as_float(d[2 + r]), -12582912.0f), *sum);
                }
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- tile's end */

#define ROWS_PITCH(subs) ((subs) == 1 ? SUB : (subs)*SUB + 8) /* eight tokens begin in different banks */
#define SUMS_BYTES(subs, wide) (4 * RIDGE_Q8_0_PARTS * 8 * (wide)*ROWS_PITCH(subs))

/* Partial sums [partition][token][row], then an element a thread; `turned` spreads the few of a tile over the warps. */
template <int SUBS, int WIDE>
static __device__ __forceinline__ void finish(const direct_args &a, const q8_0_args &p, float *sums, int tile, int slot,
                                              int turned, float (*acc)[2 * WIDE])
{
    enum { ROWS = SUBS * SUB, PITCH = ROWS_PITCH(SUBS), PLANE = 8 * WIDE * PITCH };
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % RIDGE_Q8_0_PARTS;

#pragma unroll
    for (int s = 0; s < SUBS; s++)
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            *(float2 *)&sums[part * PLANE + (lane / 4 + 8 * i) * PITCH + s * SUB + lane % 4 * 2] =
                make_float2(acc[s][2 * i], acc[s][2 * i + 1]);
    ptx_barrier_sync(1 + slot, SLOT);
    for (int i = (threadIdx.x + turned * 32) % SLOT; i < ROWS * p.tokens; i += SLOT) {
        const int token = i / ROWS, r = i % ROWS;
        const float *from = sums + token * PITCH + r;
        int row;
        const int which = sub_rows(a, tile, SUBS, r / SUB, &row);

        row += r % SUB;
        if (row >= p.weight[which].rows || (a.gate_up && which))
            continue;
        if (a.gate_up) {
            q8_0_finish_gate_up(p, row, token, q8_0_sum_parts<PLANE>(from), q8_0_sum_parts<PLANE>(from + SUB));
        } else {
            q8_0_finish(p, which, row, token, q8_0_sum_parts<PLANE>(from), NULL);
        }
    }
}

template <int SUBS, int WIDE>
static __global__ void __launch_bounds__(MOST_THREADS, 1) q8_0_direct(const __grid_constant__ direct_args a)
{
    enum { DEPTH = SUBS * WIDE == 4 ? 1 : SUBS == 2 ? 2 : WIDE == 2 ? 3 : 4 };
    extern __shared__ __align__(128) char memory[];
    const int slot = threadIdx.x / SLOT, part = threadIdx.x / 32 % RIDGE_Q8_0_PARTS, lane = threadIdx.x % 32;
    const int step = (int)gridDim.x * a.slots, begin = (int)blockIdx.x + slot * (int)gridDim.x;
    const q8_0_args &p = *(const q8_0_args *)(memory + a.at_args);
    float *sums = (float *)(memory + a.at_sums + slot * 2 * SUMS_BYTES(SUBS, WIDE));
    const int mine = (a.runs - part + RIDGE_Q8_0_PARTS - 1) / RIDGE_Q8_0_PARTS;
    const int token = lane / 4 < a.p.tokens ? lane / 4 : 0; /* lanes without a token read the first one's and drop it */
    const char *codes = memory + token * a.x_pitch + part * RUN + lane % 4 * 16;
    const char *scales = memory + a.at_scales + (token * a.scale_pitch + part * RIDGE_Q8_0_RUN) * 4;
    cursor c = {mine > 0 ? begin : a.tiles, mine, mine};
    run_regs w[DEPTH][SUBS];
    int count = 0, at = 0;

    ptx_grid_release();
    if (!a.early)
        ptx_grid_wait();
    if (c.tile < a.tiles)
        begin_tile<SUBS>(a, &c, part, lane);
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        load_turn<SUBS>(a, &c, w[d], part, lane, step);
    /* Arguments come from far away the first time: all at once here, one by one at the end of a tile otherwise. */
    for (int i = threadIdx.x; i < (int)(sizeof a.p / 4); i += blockDim.x)
        ((uint32_t *)(memory + a.at_args))[i] = ((const uint32_t *)&a.p)[i];
    if (a.early)
        ptx_grid_wait();
    if (a.x_dtype == RIDGE_I8)
        fill_codes(a, memory);
    else
        fill_quantised(a, memory);
    for (int i = threadIdx.x; a.short_part >= 0 && i < 2 * a.p.tokens; i += blockDim.x) /* no block, but read */
        ((float *)(memory + a.at_scales))[i / 2 * a.scale_pitch + (int)a.p.blocks + i % 2] = 0.0f;
    __syncthreads(); /* x and arguments before they are read */
    for (int tile = begin; tile < a.tiles; tile += step, count++) {
        float acc[SUBS][2 * WIDE] = {};

        for (int turn = 0; turn < mine; turn++) {
#pragma unroll
            for (int d = 0; d < DEPTH; d++) /* which registers: known at compile time in each branch */
                if (d == at) {
                    multiply<SUBS, WIDE>(a, codes + turn * (RUN * RIDGE_Q8_0_PARTS), scales + turn * (4 * Q8_0_TURN),
                                         w[d], lane, acc);
                    load_turn<SUBS>(a, &c, w[d], part, lane, step);
                }
            at = at + 1 == DEPTH ? 0 : at + 1;
        }
        finish<SUBS, WIDE>(a, p, sums + (count & 1) * (SUMS_BYTES(SUBS, WIDE) / 4), tile, slot, count, acc);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

enum { MEMORY_MOST_SM90 = 227 * 1024, MEMORY_MOST_SM86 = 99 * 1024 };

static const void *const functions[4] = {(const void *)q8_0_direct<1, 1>, (const void *)q8_0_direct<1, 2>,
                                         (const void *)q8_0_direct<2, 1>, (const void *)q8_0_direct<2, 2>};

/* Shared memory of a block: sm_80 has 163 KB, sm_86 and its like 99 KB, sm_90 and its like 227 KB. */
static int memory_most(const ridge_device *device)
{
    switch (device->arch) {
    case RIDGE_ARCH_SM80:
        return 163 * 1024;
    case RIDGE_ARCH_SM90:
    case RIDGE_ARCH_SM100:
    case RIDGE_ARCH_SM103:
        return MEMORY_MOST_SM90;
    default:
        return MEMORY_MOST_SM86;
    }
}

static ridge_status prepare(const ridge_device *device)
{
    return host_prepare(device, functions, 4, cudaFuncAttributeMaxDynamicSharedMemorySize, memory_most(device),
                        "q8_0_direct: loading kernels");
}

/* Offsets, and the bytes of all. */
static int64_t lay_out(direct_args *a, int64_t tokens, int64_t cols, int subs, int slots)
{
    const int64_t blocks = cols / RIDGE_Q8_0_BLOCK;

    a->x_pitch = (int)((cols + 127) / 128 * 128 + 32); /* eight tokens begin in different banks, here and below */
    a->scale_pitch = (int)((blocks + 31) / 32 * 32 + 4);
    a->at_scales = (uint32_t)(tokens * a->x_pitch);
    a->at_sums = (uint32_t)(a->at_scales + tokens * a->scale_pitch * 4 + 127) / 128 * 128;
    a->at_args = a->at_sums + (uint32_t)(slots * 2 * SUMS_BYTES(subs, tokens > 8 ? 2 : 1));
    return a->at_args + (int64_t)sizeof a->p;
}

static bool tables_aligned(const q8_0_args *p)
{
    uintptr_t bits = 0;

    for (int i = 0; i < 2; i++)
        if (p->weight[i].rows)
            bits |= (uintptr_t)p->weight[i].scales | (uintptr_t)p->weight[i].scale_stride;
    return bits % (p->blocks % RIDGE_Q8_0_RUN ? 4 : 8) == 0;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *memory, size_t, void *stream)
{
    const ridge_problem *problem = &bound->problem;
    const ridge_call *call = &bound->call;

    const int subs = kernel->param[0] / SUB, slots = kernel->param[1], wide = call->dim[0] > 8;
    const bool inside = q8_0_inside(problem);
    direct_args a = {};
    ridge_status status = q8_0_begin(device, kernel, call, !inside, memory, stream, &a.p);
    int64_t bytes, most;

    if (status)
        return status;
    for (int i = 0; i < 2; i++)
        a.units[i] = (int)((a.p.weight[i].rows + SUB - 1) / SUB);
    a.tiles = (a.units[0] + a.units[1] + subs - 1) / subs;
    a.runs = (int)((a.p.blocks + RIDGE_Q8_0_RUN - 1) / RIDGE_Q8_0_RUN);
    a.short_part = a.p.blocks % RIDGE_Q8_0_RUN ? (a.runs - 1) % RIDGE_Q8_0_PARTS : -1;
    a.gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    a.slots = slots;
    a.early = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    a.x_dtype = inside ? (int)call->arg[0].dtype : (int)RIDGE_I8;
    a.x = inside ? call->arg[0].data : a.p.x;
    a.x_stride = inside ? (call->arg[0].stride ? call->arg[0].stride : call->dim[1]) * (a.x_dtype == RIDGE_F32 ? 4 : 2)
                        : a.p.x_stride;
    if (!a.tiles)
        return RIDGE_OK;
    if (!tables_aligned(&a.p)) { /* tables are not part of a problem: seen here only */
        status = inside ? q8_0_begin(device, kernel, call, true, memory, stream, &a.p) : RIDGE_OK;
        return status ? status : q8_0_launch_portable(device, kernel->name, &a.p, stream);
    }
    bytes = lay_out(&a, call->dim[0], call->dim[1], subs, slots);
    most = (int64_t)device->units * (MOST_SLOTS / slots);
    return host_launch_shared(device, kernel->name, functions[2 * (subs == 2) + wide],
                              dim3((unsigned)(a.tiles < most ? a.tiles : most)), SLOT * slots, (size_t)bytes, &a,
                              stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t cols = problem->dim[1], rows = problem->dim[2];
    direct_args a;

    if (problem->dim[0] == 0 || cols == 0)
        return "nothing to multiply";
    if (problem->dtype[2] == RIDGE_U8)
        return "weights are in blocks: planes only";
    if (cols % (RUN / 2))
        return "needs cols that are a multiple of 64";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (cols > 0x3fff00 || rows > 0x3fffff00 || problem->dim[3] > 0x3fffff00)
        return "more than 2^30 rows or 2^22 columns";
    if (lay_out(&a, problem->dim[0], cols, kernel->param[0] / SUB, kernel->param[1]) * (MOST_SLOTS / kernel->param[1]) >
        memory_most(device))
        return "x does not fit in shared memory";
    return NULL;
}

/* Slower than q8_0_stream everywhere, faster than dp4a but for one token of small matrices. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double rows = q8_0_bytes(problem) / ((double)problem->dim[1] * (34.0 / 32.0));
    const bool few = rows < 16.0 * device->units;

    return (problem->flags & RIDGE_WEIGHTS_CONST ? 2.2 : 2.7) +
           45e-6 * (double)problem->dim[0] * (double)problem->dim[1] +
           q8_0_bytes(problem) * 1.25e-3 / device->copy_gbps + ((kernel->param[0] == 8) == few ? 0 : 0.5);
}

#define ROW(op_name, op_id, name, high, slots)                                                                        \
    {                                                                                                                 \
        "cuda." op_name "." name, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121, Q8_0_CONTRACT, 0, {high, slots}, why_not, \
            q8_0_workspace, cost, launch                                                                              \
    }
#define WIDE(op_name, op_id) ROW(op_name, op_id, "direct16", 16, 2)
#define ROWS(op_name, op_id) WIDE(op_name, op_id), ROW(op_name, op_id, "direct8", 8, 2)

/* param: rows of a tile, slots of a block. Gate and up have 8 rows each. */
static const ridge_kernel rows[] = {
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    WIDE("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_direct = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
