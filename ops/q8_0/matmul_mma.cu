/* matmul_mma.cu: the Q8_0 products from planes by mma.sync, sm_80 up. Weights go from global memory straight to the
 * registers of the instruction.
 *
 * A team of eight warps computes a tile of 8 or 16 weight rows: warp p has partition p of the canonical order
 * (src/math/q8_0.h), which is a run of 4 blocks, 128 bytes a row, of each k step of 1024 columns. A lane (g = lane / 4,
 * t = lane % 4) loads 16 bytes of row g from each half of the run: quarter t of the half's two blocks, where quarters 0
 * and 1 are the first block. One m16n8k32 takes 8 bytes of every lane. Its 16 rows are the same 8 tokens twice: rows 0
 * to 7 have zeros for x where the second block lies, rows 8 to 15 where the first lies. So two instructions compute the
 * dots of both blocks for 8 tokens and 8 weight rows, and no weight moves between lanes. The integer sum starts at
 * 0x4b400000, the bits of 12582912.0f: read as a float, less 12582912, it is exactly the dot. The epilogue adds the
 * partitions through shared memory. The last run of a row may have two blocks only.
 *
 * Each warp keeps the loads of DEPTH k steps in flight, also from one tile into the next. x and its scales lie in
 * shared memory; a small x is quantised while it is copied there. Named barrier 1 + team orders the writes of the
 * partial sums before their reads. The sums have two buffers, so that the next tile's barrier also orders these reads
 * before the writes of the tile after it. */
#include "cuda/mma.cuh"

#include "args.cuh"
#include "mma.cuh"
#include "norm.cuh"

enum { TEAM = 32 * RIDGE_Q8_0_PARTS, MAX_TEAMS = 2, MAX_THREADS = TEAM * MAX_TEAMS, SUB = 8, RUN = 128 };
/* Up to so many activations a CTA is one team: then CTAs of this kernel and of the next one share a multiprocessor, and
 * the next one's weights are in its registers when this one ends. A larger x is copied and quantised by two. */
enum { MAX_X_OF_A_TEAM = 2048 };

/* What a kernel is compiled for. All but ANY: one token, one tile a team, all of a tile's weights in flight before the
 * primary grid has ended. STEP has one k step and so few registers that three CTAs, or these and the next kernel's, are
 * on a multiprocessor (Qwen3-0.6B 651 -> 618 us a step, H200). FEW has three k steps of 8 rows (634 -> 625, H100; two
 * are as fast by ANY). Smaller weights: matmul_one.cu. */
enum { ANY, STEP, FEW };
enum { STEP_CTAS = 3, FEW_CTAS = 2, FEW_STEPS = 3 };

/* k steps that a warp has in flight. */
#define IN_FLIGHT(subs, token_tiles, form)         \
    ((form) == STEP                    ? 1         \
     : (form) == FEW                   ? FEW_STEPS \
     : (subs) == 1 && token_tiles == 1 ? 4         \
     : (subs) == 1                     ? 3         \
                                       : 3 - (token_tiles))

typedef struct q8_0_mma_args {
    int units[2]; /* of 8 rows */
    int tiles, runs, gate_up, teams;
    int short_part; /* the partition whose last run has two blocks only, or -1: then rows of scales are words */
    int weights_const;
    int x_dtype; /* RIDGE_I8: codes and scales */
    int x_pitch, scale_pitch;
    uint32_t at_scales, at_sums, at_args;
    const void *x;
    int64_t x_stride; /* bytes */
    q8_0_matmul_args p;
} q8_0_mma_args;

/* A run of 8 rows, for one k step: codes of row g, scales of rows 2t and 2t + 1. */
typedef struct run_regs {
    uint4 code[2];
    uint2 scale[2];
} run_regs;

/* The next load. A warp has `mine` k steps of a tile: those in which its partition has a run. */
typedef struct load_pos {
    int tile, left, mine;
    const uint8_t *code[2], *scale[2]; /* [subs] */
    int scale_stride[2];               /* to row 2t + 1, or 0 where there is none */
} load_pos;

static __device__ __forceinline__ int sub_rows(const q8_0_mma_args &a, int tile, int subs, int s, int *row)
{
    const int unit = tile * subs + s;
    int which;

    if (a.gate_up) { /* subtiles alternate between gate and up of the same rows */
        *row = unit / 2 * SUB;
        return s & 1;
    }
    which = unit >= a.units[0] && a.units[1];
    *row = (which ? unit - a.units[0] : unit) * SUB;
    return which;
}

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Rows beyond the last one read the last one again; the epilogue does not store them. */
template <int SUBS>
static __device__ __forceinline__ void seek_tile(const q8_0_mma_args &a, load_pos *c, int part, int lane)
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

/* Issues the loads of one k step and advances. */
template <int SUBS>
static __device__ __forceinline__ void load_step(const q8_0_mma_args &a, load_pos *c, run_regs *to, int part, int lane,
                                                 int tile_step)
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
            to[s].scale[0] = q8_0_load_words(c->scale[s], whole);
            to[s].scale[1] = q8_0_load_words(c->scale[s] + c->scale_stride[s], whole);
        }
        c->code[s] += RUN * RIDGE_Q8_0_PARTS;
        c->scale[s] += 2 * Q8_0_STEP;
    }
    if (--c->left == 0) {
        c->left = c->mine;
        c->tile += tile_step;
        if (c->tile < a.tiles)
            seek_tile<SUBS>(a, c, part, lane);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- x */

/* Writes codes and scales of x, or of what stands for it, to shared memory: quantises floats, four lanes a block, and
 * LOADS of a thread at a time. */
template <int LOADS> static __device__ __forceinline__ void quantise_x(const q8_0_mma_args &a, char *memory)
{
    const int units = (int)a.p.blocks * 4, all = a.p.tokens * units; /* of 8 columns */

    for (int first = threadIdx.x; first < all; first += LOADS * (int)blockDim.x) {
        float x[LOADS][8], scale;

#pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const int i = first + k * (int)blockDim.x;

            if (i < all)
                q8_0_load8((const char *)a.x + i / units * a.x_stride, i % units * 8, a.x_dtype == RIDGE_BF16, x[k]);
        }
#pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const int i = first + k * (int)blockDim.x, token = i / units, u = i % units;

            if (i >= all) /* whole blocks */
                break;
            *(uint2 *)(memory + token * a.x_pitch + u * 8) = q8_0_quantise8(x[k], &scale);
            if (u % 4 == 0)
                ((float *)(memory + a.at_scales))[token * a.scale_pitch + u / 4] = scale;
        }
    }
}

/* The same of one token with a norm. Row and weights are requested together. */
template <int HELD> static __device__ __forceinline__ void normalise_x(const q8_0_mma_args &a, char *memory)
{
    const bool bf16 = a.x_dtype == RIDGE_BF16;
    const int first = threadIdx.x;
    float w[HELD];

    if (first < PARTS)
        q8_0_norm_load<HELD>((const char *)(a.p.norm + first), (int)a.p.blocks * RIDGE_Q8_0_BLOCK - first, false, w);
    q8_0_normalise<HELD, false>((const char *)a.x + first * (bf16 ? 2 : 4), bf16, (int)a.p.blocks, a.p.eps, w,
                                (float *)(memory + a.at_sums), memory, (float *)(memory + a.at_scales));
}

/* All copies are in flight together: one after another, by registers, 8 tokens of 14336 columns took 7 us more. */
static __device__ __forceinline__ void copy_x(const q8_0_mma_args &a, char *memory)
{
    const int words = (int)a.p.blocks * 2, scales = (int)a.p.blocks;
    const bool wide = ((uint64_t)(uintptr_t)a.p.x_scales | (uint64_t)a.p.x_ld * 4) % 16 == 0 && scales % 4 == 0;

    for (int token = 0; token < a.p.tokens; token++) {
        const uint32_t to = ptx_shared(memory + token * a.x_pitch),
                       scales_to = ptx_shared(memory + a.at_scales) + token * a.scale_pitch * 4;
        const char *from = (const char *)a.x + token * a.x_stride;
        const float *scales_from = a.p.x_scales + token * a.p.x_ld;

        for (int i = threadIdx.x; i < words; i += blockDim.x)
            mma_copy16(to + i * 16, from + i * 16, 16);
        for (int i = threadIdx.x; i < (wide ? scales / 4 : scales); i += blockDim.x)
            if (wide)
                mma_copy16(scales_to + i * 16, scales_from + i * 4, 16);
            else
                mma_copy4(scales_to + i * 4, scales_from + i, 4);
    }
    mma_copy_commit();
    mma_copy_wait_for<0>();
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Adds the products of 4 blocks, SUBS * 8 rows and 8 * TOKEN_TILES tokens to acc. codes, scales: where this lane reads
 * x for this run. */
template <int SUBS, int TOKEN_TILES>
static __device__ __forceinline__ void mma_run(const q8_0_mma_args &a, const char *codes, const char *scales,
                                               const run_regs *w, int lane, float (*acc)[2 * TOKEN_TILES])
{
    const bool first = lane % 4 < 2;

#pragma unroll
    for (int i = 0; i < TOKEN_TILES; i++) {
        const bool valid = lane / 4 + 8 * i < a.p.tokens;

#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 x = valid ? *(const uint4 *)(codes + 8 * i * a.x_pitch + 64 * h) : make_uint4(0, 0, 0, 0);
            const float2 xs = *(const float2 *)(scales + (valid ? 8 * i * a.scale_pitch * 4 : 0) + 8 * h);

#pragma unroll
            for (int s = 0; s < SUBS; s++)
                q8_0_mma_blocks(x, first, xs.x, xs.y, w[s].code[h], h ? w[s].scale[0].y : w[s].scale[0].x,
                                h ? w[s].scale[1].y : w[s].scale[1].x, &acc[s][2 * i]);
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- epilogue */

#define ROWS_PITCH(subs) ((subs) == 1 ? SUB : (subs)*SUB + 8) /* eight tokens begin in different banks */
#define SUMS_BYTES(subs, token_tiles) (4 * RIDGE_Q8_0_PARTS * 8 * (token_tiles)*ROWS_PITCH(subs))

/* The element of a tile that a thread finishes. A tile has few elements: `rotation` starts with another warp every
 * tile. */
static __device__ __forceinline__ int own_element(int rotation)
{
    return (threadIdx.x + rotation * 32) % TEAM;
}

/* Loads what HC expand of one stream reads for that element, beside the product. */
template <int SUBS>
static __device__ __forceinline__ void load_hc1(const q8_0_mma_args &a, int tile, int rotation, q8_0_hc1_inputs *s)
{
    enum { ROWS = SUBS * SUB };
    const int i = own_element(rotation), row = tile * ROWS + i % ROWS;

    if (a.p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND && a.p.n_hc == 1 && i < ROWS * a.p.tokens && row < a.p.weight[0].rows)
        q8_0_load_hc1(a.p, row, i / ROWS, s);
}

/* Writes the partial sums as [partition][token][row], then each thread adds an element and stores it. */
template <int SUBS, int TOKEN_TILES>
static __device__ __forceinline__ void store_tile(const q8_0_mma_args &a, const q8_0_matmul_args &p, float *sums,
                                                  int tile, int team, int rotation, const q8_0_hc1_inputs &hc1,
                                                  float (*acc)[2 * TOKEN_TILES])
{
    enum { ROWS = SUBS * SUB, PITCH = ROWS_PITCH(SUBS), PLANE = 8 * TOKEN_TILES * PITCH };
    static_assert(ROWS * 8 * TOKEN_TILES <= TEAM, "an element a thread");
    static_assert(2 * SUMS_BYTES(SUBS, TOKEN_TILES) >= 4 * PARTS, "the norm has them first");
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % RIDGE_Q8_0_PARTS;

#pragma unroll
    for (int s = 0; s < SUBS; s++)
#pragma unroll
        for (int i = 0; i < TOKEN_TILES; i++)
            *(float2 *)&sums[part * PLANE + (lane / 4 + 8 * i) * PITCH + s * SUB + lane % 4 * 2] =
                make_float2(acc[s][2 * i], acc[s][2 * i + 1]);
    if (team) /* by constants: a barrier that is computed would reserve all sixteen */
        ptx_barrier_sync(2, TEAM);
    else
        ptx_barrier_sync(1, TEAM);
    const int i = own_element(rotation), token = i / ROWS, r = i % ROWS;
    const float *from = sums + token * PITCH + r;
    int row;
    const int which = sub_rows(a, tile, SUBS, r / SUB, &row);

    row += r % SUB;
    if (i >= ROWS * p.tokens || row >= p.weight[which].rows || (a.gate_up && which))
        return;
    float y = q8_0_sum_parts<PLANE>(from);

    if (a.gate_up)
        y = q8_0_swiglu(p.act, y, q8_0_sum_parts<PLANE>(from + SUB), p.token_scale ? p.token_scale[token] : 1.0f,
                        p.swiglu);
    if (p.op != RIDGE_Q8_0_MATMUL_HC_EXPAND)
        q8_0_store(p, which, row, token, y);
    else if (p.n_hc == 1)
        q8_0_epilogue_hc1(p, row, token, y, hc1);
    else
        q8_0_epilogue_hc(p, row, token, y, NULL);
}

template <int SUBS, int TOKEN_TILES, int FORM>
static __global__ void __launch_bounds__(FORM ? TEAM : MAX_THREADS, FORM == STEP  ? STEP_CTAS
                                                                    : FORM == FEW ? FEW_CTAS
                                                                                  : 1)
    q8_0_mma(const __grid_constant__ q8_0_mma_args a)
{
    enum { DEPTH = IN_FLIGHT(SUBS, TOKEN_TILES, FORM), HELD = FORM == STEP ? 1024 / PARTS : Q8_0_NORM_HELD };
    extern __shared__ __align__(128) char memory[];
    const int team = threadIdx.x / TEAM, part = threadIdx.x / 32 % RIDGE_Q8_0_PARTS, lane = threadIdx.x % 32;
    const int tile_step = (int)gridDim.x * a.teams, begin = (int)blockIdx.x + team * (int)gridDim.x;
    const q8_0_matmul_args &p = *(const q8_0_matmul_args *)(memory + a.at_args);
    float *sums = (float *)(memory + a.at_sums + team * 2 * SUMS_BYTES(SUBS, TOKEN_TILES));
    const int mine = (a.runs - part + RIDGE_Q8_0_PARTS - 1) / RIDGE_Q8_0_PARTS;
    const int token = lane / 4 < a.p.tokens ? lane / 4 : 0; /* lanes without a token read token 0 and drop the result */
    const char *codes = memory + token * a.x_pitch + part * RUN + lane % 4 * 16;
    const char *scales = memory + a.at_scales + (token * a.scale_pitch + part * RIDGE_Q8_0_RUN) * 4;
    load_pos c = {mine > 0 ? begin : a.tiles, mine, mine};
    run_regs w[DEPTH][SUBS];
    q8_0_hc1_inputs hc1;
    int count = 0, at = 0;

    ptx_launch_dependents();
    if (!a.weights_const)
        ptx_grid_dependency_wait();
    if (c.tile < a.tiles)
        seek_tile<SUBS>(a, &c, part, lane);
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        load_step<SUBS>(a, &c, w[d], part, lane, tile_step);
    /* The first read of a kernel parameter misses the constant cache: copied here, the misses overlap; in the epilogue
     * they would come one after another. */
    for (int i = threadIdx.x; i < (int)(sizeof a.p / 4); i += blockDim.x)
        ((uint32_t *)(memory + a.at_args))[i] = ((const uint32_t *)&a.p)[i];
    if (a.weights_const)
        ptx_grid_dependency_wait();
    load_hc1<SUBS>(a, begin, 0, &hc1);
    if (a.x_dtype == RIDGE_I8)
        copy_x(a, memory);
    else if (a.p.norm)
        normalise_x<HELD>(a, memory);
    else
        quantise_x<FORM == STEP ? 1 : 2>(a, memory);
    /* scales of the two blocks that the last run lacks */
    for (int i = threadIdx.x; a.short_part >= 0 && i < 2 * a.p.tokens; i += blockDim.x)
        ((float *)(memory + a.at_scales))[i / 2 * a.scale_pitch + (int)a.p.blocks + i % 2] = 0.0f;
    __syncthreads(); /* orders the writes of x and of the arguments before their reads */
    for (int tile = begin; tile < a.tiles; tile += tile_step, count++) {
        float acc[SUBS][2 * TOKEN_TILES] = {};

        for (int k_step = 0; k_step < mine; k_step++) {
#pragma unroll
            for (int d = 0; d < DEPTH; d++) /* a branch for each d, so that registers are indexed by constants */
                if (d == at) {
                    mma_run<SUBS, TOKEN_TILES>(a, codes + k_step * (RUN * RIDGE_Q8_0_PARTS),
                                               scales + k_step * (4 * Q8_0_STEP), w[d], lane, acc);
                    if (FORM == ANY)
                        load_step<SUBS>(a, &c, w[d], part, lane, tile_step);
                }
            at = at + 1 == DEPTH ? 0 : at + 1;
        }
        store_tile<SUBS, TOKEN_TILES>(a, p, sums + (count & 1) * (SUMS_BYTES(SUBS, TOKEN_TILES) / 4), tile, team, count,
                                      hc1, acc);
        if (FORM != ANY)
            break;
        load_hc1<SUBS>(a, tile + tile_step, count + 1, &hc1);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[7] = {(const void *)q8_0_mma<1, 1, ANY>,  (const void *)q8_0_mma<1, 2, ANY>,
                                         (const void *)q8_0_mma<2, 1, ANY>,  (const void *)q8_0_mma<2, 2, ANY>,
                                         (const void *)q8_0_mma<1, 1, STEP>, (const void *)q8_0_mma<2, 1, STEP>,
                                         (const void *)q8_0_mma<1, 1, FEW>};

static ridge_status prepare(const ridge_device *device)
{
    return host_prepare(device, functions, 7, cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device),
                        "q8_0_matmul: loading kernels");
}

/* Lays out shared memory; returns its bytes. */
static int64_t lay_out(q8_0_mma_args *a, int64_t tokens, int64_t cols, int subs, int teams)
{
    const int64_t blocks = cols / RIDGE_Q8_0_BLOCK;

    a->x_pitch = (int)(ridge_round_up(cols, 128) + 32); /* eight tokens begin in different banks, here and below */
    a->scale_pitch = (int)(ridge_round_up(blocks, 32) + 4);
    a->at_scales = (uint32_t)(tokens * a->x_pitch);
    a->at_sums = (uint32_t)ridge_round_up(a->at_scales + tokens * a->scale_pitch * 4, 128);
    a->at_args = a->at_sums + (uint32_t)(teams * 2 * SUMS_BYTES(subs, tokens > 8 ? 2 : 1));
    return a->at_args + (int64_t)sizeof a->p;
}

/* Whether a tile of 8 rows has three k steps, and a multiprocessor at most one tile. */
static bool has_few_steps(const ridge_device *device, const ridge_problem *problem)
{
    const int64_t step = RUN * RIDGE_Q8_0_PARTS;

    return q8_0_follows(problem) && problem->op != RIDGE_Q8_0_PAIR && problem->dim[1] > (FEW_STEPS - 1) * step &&
           problem->dim[1] <= FEW_STEPS * step && problem->dim[2] <= SUB * (int64_t)device->units;
}

/* The form of the kernel for a problem of so many tiles and runs. */
static int form_of(const ridge_device *device, const ridge_problem *problem, int tiles, int runs, int subs)
{
    if (!(problem->flags & RIDGE_WEIGHTS_CONST) || problem->dim[0] != 1 || !q8_0_fuses_x(problem))
        return ANY;
    if (subs == 1 && has_few_steps(device, problem))
        return FEW;
    return runs <= RIDGE_Q8_0_PARTS && tiles <= STEP_CTAS * device->units ? STEP : ANY;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    const ridge_call *call = &bound->call;
    const int subs = kernel->param[0] / SUB, token_tiles = call->dim[0] > 8 ? 2 : 1;
    int teams = kernel->param[1], form;
    int64_t most;
    q8_0_mma_args a = {};
    ridge_status status = RIDGE_OK;
    int64_t bytes;

    a.p = q8_0_collect(call);
    if (!q8_0_scales_aligned(&a.p, a.p.blocks % RIDGE_Q8_0_RUN ? 4 : 8))
        return q8_0_launch_dp4a(device, kernel, bound, workspace, size, stream);
    for (int i = 0; i < 2; i++)
        a.units[i] = (int)ridge_ceil_div(a.p.weight[i].rows, SUB);
    a.tiles = (a.units[0] + a.units[1] + subs - 1) / subs;
    if (!a.tiles)
        return RIDGE_OK;
    a.runs = (int)ridge_ceil_div(a.p.blocks, RIDGE_Q8_0_RUN);
    form = form_of(device, &bound->problem, a.tiles, a.runs, subs);
    if (call->dim[0] * call->dim[1] <= MAX_X_OF_A_TEAM || form == FEW)
        teams = 1;
    most = (int64_t)device->units * (form == STEP ? (int)STEP_CTAS : MAX_TEAMS / teams);
    a.short_part = a.p.blocks % RIDGE_Q8_0_RUN ? (a.runs - 1) % RIDGE_Q8_0_PARTS : -1;
    a.gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    a.teams = teams;
    a.weights_const = a.p.weights_const;
    a.x_dtype = (int)RIDGE_I8;
    if (q8_0_fuses_x(&bound->problem)) {
        a.x_dtype = (int)call->arg[0].dtype;
        a.x = call->arg[0].data;
        a.x_stride = q8_0_row_bytes(&call->arg[0]);
    } else {
        status = q8_0_quantise(device, kernel, call, workspace, stream, &a.p);
        a.x = a.p.x;
        a.x_stride = a.p.x_stride;
    }
    if (status)
        return status;
    bytes = lay_out(&a, call->dim[0], call->dim[1], subs, teams);
    return host_launch_shared(device, kernel->name,
                              functions[form == FEW    ? 6
                                        : form == STEP ? 4 + (subs == 2)
                                                       : 2 * (subs == 2) + token_tiles - 1],
                              dim3((unsigned)(a.tiles < most ? a.tiles : most)), TEAM * teams, (size_t)bytes, &a,
                              stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t cols = problem->dim[1], rows = problem->dim[2];
    q8_0_mma_args a;

    if (problem->dim[0] == 0 || cols == 0)
        return "nothing to multiply";
    if (problem->dim[0] > Q8_0_DECODE_TOKENS)
        return "more than 16 tokens";
    if (problem->dtype[2] == RIDGE_U8)
        return "weights are in blocks: planes only";
    if (cols % (RUN / 2))
        return "needs cols that are a multiple of 64";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (cols > 0x3fff00 || rows > 0x3fffff00 || problem->dim[3] > 0x3fffff00)
        return "more than 2^30 rows or 2^22 columns";
    if (lay_out(&a, problem->dim[0], cols, kernel->param[0] / SUB, kernel->param[1]) * (MAX_TEAMS / kernel->param[1]) >
        host_max_shared(device))
        return "x does not fit in shared memory";
    return NULL;
}

/* Microseconds: slower than the TMA rows everywhere, and faster than dp4a except for one token of small matrices. x
 * costs 45 ns a 1000 activations, weights are read at 0.8 of the copy rate, and the wrong tile for the size costs 0.5
 * us: tiles of 8 rows are for fewer than 16 rows an SM. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double rows = q8_0_bytes(problem) / ((double)problem->dim[1] * (34.0 / 32.0));
    const bool small = rows < 16.0 * device->units && (has_few_steps(device, problem) || !q8_0_follows(problem) ||
                                                       q8_0_bytes(problem) <= Q8_0_SMALL_BYTES);

    return (problem->flags & RIDGE_WEIGHTS_CONST ? 2.2 : 2.7) +
           45e-6 * (double)problem->dim[0] * (double)problem->dim[1] +
           q8_0_bytes(problem) * 1.25e-3 / device->copy_gbps + ((kernel->param[0] == 8) == small ? 0 : 0.5);
}

#define ROW(op_name, op_id, name, rows, teams)                                                                   \
    {                                                                                                            \
        "cuda." op_name "." name, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, Q8_0_CONTRACT, 0, {rows, teams}, \
            why_not, q8_0_workspace, cost, launch                                                                \
    }
#define ROW16(op_name, op_id) ROW(op_name, op_id, "mma16", 16, 2)
#define ROWS(op_name, op_id) ROW16(op_name, op_id), ROW(op_name, op_id, "mma8", 8, 2)

/* param: rows of a tile (gate and up have 8 rows each), teams of a CTA. */
static const ridge_kernel rows[] = {
    ROWS("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROWS("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROW16("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROWS("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_mma = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
