/* mma.cu: moe_gate_up_swiglu and moe_down from planes of Q8_0 by mma.sync, sm_80 up. An expert's weights go once from
 * global memory to the registers of the instruction, for all of its tokens (8 at a time).
 *
 * A team of eight warps computes an item: 8 rows of an entry of the list (list.cuh), of gate and of up or of down. Warp
 * p has partition p of the canonical order (src/math/q8_0.h), which is a run of 4 blocks, 128 bytes a row, of each k
 * step of 1024 columns; the entry's pairs are the tokens of q8_0/mma.cuh. Each warp keeps the loads of DEPTH k steps in
 * flight, weights and x, also from one item into the next. The partitions are added through shared memory.
 *
 *     gate_up  a tile is 32 rows of an entry: four items, whose results wait in shared memory for the 32 rows to be
 *              stored, or to become a block of codes
 *     down     a tile is 8 rows of all entries: the results of all pairs wait in shared memory for their weighted sums
 *
 * Named barrier 1 + team orders a team's writes of partial sums before their reads, and of an item's results before
 * those of the tile's end. The sums have two buffers, so that the next item's barrier also orders the reads of an item
 * before the writes of the item after it; the results are read before the next tile's first barrier and written after
 * it. */
#include "args.cuh"
#include "list.cuh"
#include "ops/q8_0/mma.cuh"

enum { TEAM = 32 * RIDGE_Q8_0_PARTS, TEAMS = 2, THREADS = TEAM * TEAMS, SUB = 8, RUN = 128, TILE = 32, STEP = 1024 };

static_assert((int)THREADS == (int)MOE_PAIRS, "a thread a pair of the list");

#define SUBS(down) ((down) ? 1 : 2)
#define PITCH(down) ((down) ? SUB : 2 * SUB + 8) /* eight tokens begin in different banks */
#define PLANE(down) (MOE_COLUMNS * PITCH(down))
#define SUMS(down) (RIDGE_Q8_0_PARTS * PLANE(down)) /* floats of a buffer */

typedef struct mma_args {
    moe_args p;
    int runs, row_tiles;
    int short_part; /* the partition whose last run has two blocks only, or -1: then rows of scales are words */
    int results;    /* floats of a team's results */
} mma_args;

/* x of token lane / 4 for one k step. */
typedef struct x_regs {
    uint4 code[2];
    float2 scale[2];
} x_regs;

/* 8 rows for one k step: codes of row lane / 4, scales of rows 2 (lane % 4) and the next; of down x too. The slots of
 * gate_up share x, so that it is in L1 when it is needed. */
template <int DOWN> struct step_regs {
    uint4 code[SUBS(DOWN)][2];
    uint2 scale[SUBS(DOWN)][2];
    x_regs x[1];
};

/* Where the x of token lane / 4 is, if the entry has one. */
typedef struct x_pos {
    const char *code;
    const float *scale;
    bool valid;
} x_pos;

/* A team's items, one after another. */
typedef struct item_pos {
    int tile, item;
} item_pos;

/* The next load. A warp has `mine` k steps of an item: those in which its partition has a run. */
typedef struct load_pos {
    item_pos at;
    int left;
    const char *code[2]; /* [subs] */
    const uint8_t *scale[2];
    bool second; /* there is a second row of scales */
    x_pos x;     /* of down */
} load_pos;

template <int DOWN> static __device__ __forceinline__ int tiles_of(const mma_args &a, const moe_list *list)
{
    return DOWN ? (list->entries ? a.row_tiles : 0) : a.row_tiles * list->entries;
}

template <int DOWN> static __device__ __forceinline__ int items_of(const moe_list *list)
{
    return DOWN ? list->entries : TILE / SUB;
}

/* The entry and the first row of an item. */
template <int DOWN> static __device__ __forceinline__ int find_item(const mma_args &a, item_pos at, int *row)
{
    *row = DOWN ? at.tile * SUB : at.tile % a.row_tiles * TILE + at.item * SUB;
    return DOWN ? at.item : at.tile / a.row_tiles;
}

static __device__ __forceinline__ x_pos seek_x(const mma_args &a, const moe_list *list, int entry, int part, int lane)
{
    x_pos x = {NULL, NULL, lane / 4 < list->count[entry]};

    if (x.valid) {
        const int pair = list->pair[entry][lane / 4], token = pair / a.p.slots, slot = pair % a.p.slots;

        x.code = a.p.x + token * a.p.x_stride + slot * a.p.x_slot + part * RUN + lane % 4 * 16;
        x.scale = a.p.x_scales + token * a.p.x_ld + slot * a.p.x_slot_ld + part * RIDGE_Q8_0_RUN;
    }
    return x;
}

/* Loads k step `k_step`; whole: not the two blocks of a short last run. */
static __device__ __forceinline__ void load_x(x_pos from, int k_step, bool whole, x_regs *to)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool there = from.valid && (h == 0 || whole);

        to->code[h] = there ? *(const uint4 *)(from.code + k_step * STEP + 64 * h) : make_uint4(0, 0, 0, 0);
        to->scale[h] = there ? *(const float2 *)(from.scale + k_step * (STEP / 32) + 2 * h) : make_float2(0.0f, 0.0f);
    }
}

template <int DOWN>
static __device__ __forceinline__ void seek_item(const mma_args &a, const moe_list *list, load_pos *c, int part,
                                                 int lane)
{
    int row;
    const int entry = find_item<DOWN>(a, c->at, &row), last = (int)a.p.rows - 1;
    const int code_row = min(row + lane / 4, last), scale_row = min(row + lane % 4 * 2, last);
    const int64_t expert = list->expert[entry];

#pragma unroll
    for (int s = 0; s < SUBS(DOWN); s++) {
        const moe_weight &w = a.p.weight[s];

        c->code[s] = w.data + expert * w.stride + code_row * a.p.cols + part * RUN + lane % 4 * 16;
        c->scale[s] = (const uint8_t *)w.scales + expert * w.scales_stride + scale_row * (a.p.cols / 16) +
                      part * (2 * RIDGE_Q8_0_RUN);
    }
    c->second = scale_row < last;
    if (DOWN)
        c->x = seek_x(a, list, entry, part, lane);
}

/* Issues the loads of one k step and advances. */
template <int DOWN>
static __device__ __forceinline__ void load_step(const mma_args &a, const moe_list *list, load_pos *c,
                                                 step_regs<DOWN> *to, int part, int lane, int mine, int tiles,
                                                 int tile_step)
{
    const bool whole = part != a.short_part || c->left > 1;
    const int second = c->second ? (int)(a.p.cols / 16) : 0;

    if (c->at.tile >= tiles)
        return;
#pragma unroll
    for (int s = 0; s < SUBS(DOWN); s++) {
        to->code[s][0] = ptx_load_stream(c->code[s]);
        to->code[s][1] = whole ? ptx_load_stream(c->code[s] + 64) : make_uint4(0, 0, 0, 0);
        if (a.short_part < 0) {
            to->scale[s][0] = ptx_load8(c->scale[s]);
            to->scale[s][1] = ptx_load8(c->scale[s] + second);
        } else {
            to->scale[s][0] = q8_0_load_words(c->scale[s], whole);
            to->scale[s][1] = q8_0_load_words(c->scale[s] + second, whole);
        }
        c->code[s] += STEP;
        c->scale[s] += STEP / 16;
    }
    if (DOWN)
        load_x(c->x, mine - c->left, whole, to->x);
    if (--c->left == 0) {
        c->left = mine;
        if (++c->at.item == items_of<DOWN>(list)) {
            c->at.item = 0;
            c->at.tile += tile_step;
        }
        if (c->at.tile < tiles)
            seek_item<DOWN>(a, list, c, part, lane);
    }
}

/* Writes an item's partial sums as [partition][token][row]; then each thread adds one element at a time, and puts it
 * where the tile's end reads it: gate_up [token of the entry][row of the tile], down [pair][row]. */
template <int DOWN>
static __device__ __forceinline__ void finish_item(const mma_args &a, const moe_list *list, item_pos at, float *sums,
                                                   float *results, int team, const float (*acc)[2])
{
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % RIDGE_Q8_0_PARTS;
    int row;
    const int entry = find_item<DOWN>(a, at, &row), count = list->count[entry], expert = list->expert[entry];

#pragma unroll
    for (int s = 0; s < SUBS(DOWN); s++)
        *(float2 *)&sums[part * PLANE(DOWN) + lane / 4 * PITCH(DOWN) + s * SUB + lane % 4 * 2] =
            make_float2(acc[s][0], acc[s][1]);
    ptx_barrier_sync(1 + team, TEAM);
    for (int i = threadIdx.x % TEAM; i < SUB * count; i += TEAM) {
        const int token = i / SUB, r = i % SUB;
        const float *from = sums + token * PITCH(DOWN) + r;
        float part_sums[RIDGE_Q8_0_PARTS], y[2];

        if (row + r >= a.p.rows)
            continue;
#pragma unroll
        for (int s = 0; s < SUBS(DOWN); s++) {
#pragma unroll
            for (int k = 0; k < RIDGE_Q8_0_PARTS; k++)
                part_sums[k] = from[k * PLANE(DOWN) + s * SUB];
            y[s] = moe_bias(a.p.weight[s], expert, row + r, ridge_q8_0_tree(part_sums));
        }
        if (DOWN)
            results[list->pair[entry][token] * SUB + r] = y[0];
        else
            results[token * TILE + at.item * SUB + r] = moe_swiglu(a.p.act, y[0], y[1], a.p.swiglu);
    }
}

/* gate_up: warp w of the team stores the tile's rows of the entry's token w. */
static __device__ __forceinline__ void store_slots(const mma_args &a, const moe_list *list, int tile,
                                                   const float *results)
{
    const int entry = tile / a.row_tiles, column = threadIdx.x / 32 % RIDGE_Q8_0_PARTS;

    if (column < list->count[entry]) {
        const int pair = list->pair[entry][column];

        moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, tile % a.row_tiles * TILE,
                       results[column * TILE + threadIdx.x % 32]);
    }
}

/* down: a thread has a row of a token. */
static __device__ __forceinline__ void store_sums(const mma_args &a, const moe_list *list, int tile,
                                                  const float *results)
{
    for (int i = threadIdx.x % TEAM; i < SUB * a.p.tokens; i += TEAM) {
        const int token = i / SUB, r = i % SUB;
        float sum = 0.0f;

        if (tile * SUB + r >= a.p.rows)
            continue;
        for (int slot = 0; slot < a.p.slots; slot++)
            if (((const int *)list->ids)[token * a.p.slots + slot] >= 0)
                sum = __fmaf_rn(a.p.weights[token * a.p.weights_stride + slot],
                                results[(token * a.p.slots + slot) * SUB + r], sum);
        moe_store_sum(a.p, token, tile * SUB + r, sum);
    }
}

/* Slots without an expert, and tokens without any: what no entry stores. */
template <int DOWN> static __device__ __forceinline__ void store_rest(const mma_args &a, const moe_list *list)
{
    const int warps = (int)gridDim.x * (THREADS / 32), warp = (int)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;

    if (DOWN && list->entries == 0)
        for (int tile = warp; tile < a.row_tiles; tile += warps)
            for (int i = threadIdx.x % 32; i < SUB * a.p.tokens; i += 32)
                if (tile * SUB + i % SUB < a.p.rows)
                    moe_store_sum(a.p, i / SUB, tile * SUB + i % SUB, 0.0f);
    for (int pair = 0; !DOWN && pair < a.p.tokens * a.p.slots; pair++)
        if (((const int *)list->ids)[pair] < 0)
            for (int tile = warp; tile < a.row_tiles; tile += warps)
                moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, tile * TILE, 0.0f);
}

template <int DOWN> static __global__ void __launch_bounds__(THREADS, 1) moe_mma(const __grid_constant__ mma_args a)
{
    enum { DEPTH = DOWN ? 3 : 2 };
    extern __shared__ __align__(16) char memory[];
    moe_list *const list = (moe_list *)memory;
    const int team = threadIdx.x / TEAM, part = threadIdx.x / 32 % RIDGE_Q8_0_PARTS, lane = threadIdx.x % 32;
    const int tile_step = (int)gridDim.x * TEAMS, begin = (int)blockIdx.x + team * (int)gridDim.x;
    const int mine = (a.runs - part + RIDGE_Q8_0_PARTS - 1) / RIDGE_Q8_0_PARTS;
    float *const sums = (float *)(memory + sizeof *list) + team * (2 * SUMS(DOWN) + a.results);
    float *const results = sums + 2 * SUMS(DOWN);
    load_pos c = {{begin, 0}, mine};
    step_regs<DOWN> w[DEPTH];
    int tiles, items, stage = 0, count = 0;

    ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* not before: down then finds ids that are written (ops/blocks/experts.cuh) */
    moe_make_list(a.p, list, MOE_COLUMNS);
    tiles = tiles_of<DOWN>(a, list);
    items = items_of<DOWN>(list);
    if (mine <= 0)
        c.at.tile = tiles;
    if (c.at.tile < tiles)
        seek_item<DOWN>(a, list, &c, part, lane);
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
        load_step<DOWN>(a, list, &c, &w[d], part, lane, mine, tiles, tile_step);
    store_rest<DOWN>(a, list);
    for (item_pos at = {begin, 0}; at.tile < tiles; at.tile += tile_step) {
        for (at.item = 0; at.item < items; at.item++, count++) {
            float acc[SUBS(DOWN)][2] = {};
            x_pos pos = {};
            int row;

            if (!DOWN)
                pos = seek_x(a, list, find_item<DOWN>(a, at, &row), part, lane);
            for (int k_step = 0; k_step < mine; k_step++) {
#pragma unroll
                for (int d = 0; d < DEPTH; d++) /* a branch for each d, so that registers are indexed by constants */
                    if (d == stage) {
                        x_regs x;

                        if (DOWN)
                            x = w[d].x[0];
                        else
                            load_x(pos, k_step, part != a.short_part || k_step + 1 < mine, &x);
#pragma unroll
                        for (int h = 0; h < 2; h++)
#pragma unroll
                            for (int s = 0; s < SUBS(DOWN); s++)
                                q8_0_mma_blocks(x.code[h], lane % 4 < 2, x.scale[h].x, x.scale[h].y, w[d].code[s][h],
                                                h ? w[d].scale[s][0].y : w[d].scale[s][0].x,
                                                h ? w[d].scale[s][1].y : w[d].scale[s][1].x, acc[s]);
                        load_step<DOWN>(a, list, &c, &w[d], part, lane, mine, tiles, tile_step);
                    }
                stage = stage + 1 == DEPTH ? 0 : stage + 1;
            }
            finish_item<DOWN>(a, list, at, sums + (count & 1) * SUMS(DOWN), results, team, acc);
        }
        ptx_barrier_sync(1 + team, TEAM);
        if (DOWN)
            store_sums(a, list, at.tile, results);
        else
            store_slots(a, list, at.tile, results);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[2] = {(const void *)moe_mma<0>, (const void *)moe_mma<1>};

static ridge_status prepare(const ridge_device *device)
{
    return host_prepare(device, functions, 2, cudaFuncAttributeMaxDynamicSharedMemorySize, host_max_shared(device),
                        "moe: loading kernels");
}

static int64_t shared_bytes(bool down, int64_t pairs)
{
    const int64_t results = down ? pairs * SUB : MOE_COLUMNS * TILE;

    return (int64_t)sizeof(moe_list) + TEAMS * (2 * (down ? SUMS(1) : SUMS(0)) + results) * (int64_t)sizeof(float);
}

/* Tables of scales are at multiples of the bytes that one load takes. */
static bool aligned(const mma_args *a)
{
    const uintptr_t word = a->short_part < 0 ? 8 : 4, x = (uintptr_t)a->p.x_scales | (uintptr_t)(4 * a->p.x_ld);
    uintptr_t bits = 0;

    for (int i = 0; i < (a->p.down ? 1 : 2); i++)
        bits |= (uintptr_t)a->p.weight[i].scales | (uintptr_t)a->p.weight[i].scales_stride;
    return x % 8 == 0 && bits % word == 0;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t size, void *stream)
{
    const int64_t blocks = bound->call.dim[1] / 32;
    mma_args a = {};
    int64_t most;

    a.p = moe_args_of(&bound->call);
    a.runs = (int)ridge_ceil_div(blocks, RIDGE_Q8_0_RUN);
    a.short_part = blocks % RIDGE_Q8_0_RUN ? (a.runs - 1) % RIDGE_Q8_0_PARTS : -1;
    a.row_tiles = (int)ridge_ceil_div(a.p.rows, a.p.down ? SUB : TILE);
    a.results = a.p.down ? a.p.tokens * a.p.slots * SUB : MOE_COLUMNS * TILE;
    most = a.row_tiles * (a.p.down ? 1 : ridge_min(a.p.tokens * a.p.slots, MOE_PAIRS));
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    if (!aligned(&a))
        return moe_launch_any(device, kernel, bound, workspace, size, stream);
    return host_launch_shared(device, kernel->name, functions[a.p.down],
                              dim3((unsigned)(most < device->units ? most : device->units)), THREADS,
                              (size_t)shared_bytes(a.p.down, a.p.tokens * a.p.slots), &a, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t cols = problem->dim[1], rows = problem->dim[2];

    if (problem->dtype[2] != RIDGE_I8)
        return "weights are not planes of Q8_0";
    if (problem->dim[0] == 0 || cols == 0)
        return "nothing to multiply";
    if (cols % (RUN / 2))
        return "needs cols that are a multiple of 64";
    if (problem->align < 4)
        return "needs rows that begin at multiples of 16 bytes";
    if (cols > 0x3fff00 || rows > 0x3fff00)
        return "more than 2^22 - 256 rows or columns";
    return shared_bytes(problem->op == RIDGE_MOE_DOWN, problem->dim[0] * problem->dim[4]) > host_max_shared(device)
               ? "the list of experts does not fit in shared memory"
               : NULL;
}

/* The weights of as many experts as the tokens are expected to name. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double pairs = (double)problem->dim[0] * (double)problem->dim[4], experts = (double)problem->dim[3];

    return 3 + (double)problem->dim[1] * (double)problem->dim[2] * (problem->op == RIDGE_MOE_DOWN ? 1.1 : 2.2) *
                   (pairs < experts ? pairs : experts) * 1.3e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                       \
    {                                                                                                             \
        "cuda." op_name ".mma", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, NULL, \
            cost, launch                                                                                          \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

extern "C" const ridge_kernel_list ridge_cuda_moe_mma = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
