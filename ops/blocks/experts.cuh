/* experts.cuh: moe_gate_up_swiglu and moe_down with weights in block formats: the main loop of mma.cuh on the tiles of
 * the experts that a list names (ops/moe/list.cuh), sm_80 up, with copies by cp.async.
 *
 * A product is a tile of 16 rows of an entry of the list; its columns are the entry's pairs of token and slot: eight,
 * or one where there is one token. A warp computes a product alone, or 2 or 4 warps share it (`split`) where there are
 * few products. The units of a product are four chains, unit modulo four, which a warp goes through one after another.
 * No barrier lies between products; copies go on from one into the next, the first as soon as the list is known.
 *
 *     gate_up  4 * split warps have 32 rows of an entry, which become a block of codes: two tiles of gate, two of up
 *     down     a CTA's products are those of `batch` tiles times all entries, which its warps share out; then all
 *              threads add the slots of these tiles
 *
 * Results wait in shared memory. A barrier (named 1 + team for gate_up) orders their writes before their reads. Those
 * of gate_up have two buffers, so that it orders the reads of one before its next writes too; down has a second
 * barrier. */
#ifndef RIDGE_BLOCKS_EXPERTS_CUH
#define RIDGE_BLOCKS_EXPERTS_CUH

#include "mma.cuh"
#include "ops/moe/args.cuh"
#include "ops/moe/list.cuh"

/* Warps of a CTA: as many as registers allow. */
#define EXPERT_WARPS(columns) ((columns) == 1 ? 16 : 8)

typedef struct block_expert_args {
    moe_args p;
    block_mma_args x; /* x, units, depth */
    int tiles, works; /* of 16 rows; of 32 rows of gate_up */
    int warps;        /* of a CTA */
    int split;        /* of a product: 1, 2 or 4 warps */
    int batch;        /* tiles of down whose products are shared out together */
    int results;      /* floats of one buffer: of a team of gate_up, of the CTA */
    int64_t tile_bytes;
    uint32_t at_list, at_results;
} block_expert_args;

/* ---------------------------------------------------------------------------------------------------------- products
 */

/* A warp's products, one after another. gate_up: `work` is 32 rows of an entry. down: a batch of tiles, and the product
 * in it. */
typedef struct expert_pos {
    int work, item;
} expert_pos;

/* What a warp is: which share of a product, and which product of its team. */
typedef struct expert_warp {
    int lane, share, team, half, sub;
} expert_warp;

static __device__ __forceinline__ expert_warp expert_warp_of(const block_expert_args &a)
{
    const int warp = threadIdx.x / 32, product = warp / a.split;

    return {(int)threadIdx.x % 32, warp % a.split, a.p.down ? product : product / 4, product & 1, product >> 1 & 1};
}

static __device__ __forceinline__ int expert_teams(const block_expert_args &a)
{
    return a.warps / (a.p.down ? a.split : 4 * a.split);
}

/* down: how many tiles this CTA has in a batch. */
static __device__ __forceinline__ int expert_batch_tiles(const block_expert_args &a, int batch)
{
    const int all = (a.tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;

    return max(0, min(a.batch, all - batch * a.batch));
}

static __device__ __forceinline__ expert_pos expert_begin(const block_expert_args &a, const expert_warp &w)
{
    if (a.p.down)
        return {0, w.team};
    return {(int)blockIdx.x + w.team * (int)gridDim.x, 0};
}

/* Goes to the next position that is one of a product; false: there is none. */
static __device__ __forceinline__ bool expert_find(const block_expert_args &a, int entries, const expert_warp &w,
                                                   expert_pos *at)
{
    if (!a.p.down)
        return w.team < expert_teams(a) && at->work < a.works * entries;
    for (int tiles; (tiles = expert_batch_tiles(a, at->work)) > 0; at->work++, at->item = w.team)
        if (at->item < tiles * entries)
            return true;
    return false;
}

static __device__ __forceinline__ void expert_advance(const block_expert_args &a, expert_pos *at)
{
    if (a.p.down)
        at->item += expert_teams(a);
    else
        at->work += expert_teams(a) * (int)gridDim.x;
}

static __device__ __forceinline__ int expert_entry(const block_expert_args &a, int entries, expert_pos at)
{
    return a.p.down ? at.item % entries : at.work / a.works;
}

/* The tile of a product; gate_up may have one behind the last. */
static __device__ __forceinline__ int expert_tile(const block_expert_args &a, int entries, const expert_warp &w,
                                                  expert_pos at)
{
    if (a.p.down)
        return (int)blockIdx.x + (int)gridDim.x * (at.work * a.batch + at.item / entries);
    return 2 * (at.work % a.works) + w.half;
}

/* The unit after `unit` in a share, which has the chains share * (4 / split) and so on; those behind the last: none. */
static __device__ __forceinline__ int expert_next_unit(const block_expert_args &a, const expert_warp &w, int unit)
{
    const int own = 4 / a.split, chain = (unit & 3) + 1;

    if (unit + 4 < a.x.units)
        return unit + 4;
    return chain < (w.share + 1) * own && chain < a.x.units ? chain : a.x.units;
}

/* ---------------------------------------------------------------------------------------------------------- weights */

typedef struct expert_loader {
    expert_pos at;
    int unit; /* -1: all are copied */
    const uint8_t *from;
} expert_loader;

/* Goes to the first unit of the product at l->at, or of the next. */
static __device__ __forceinline__ void expert_seek(const block_expert_args &a, const moe_list *list,
                                                   const expert_warp &w, int unit_bytes, expert_loader *l)
{
    const int entries = list->entries, first = w.share * (4 / a.split);

    l->unit = -1;
    if (first < a.x.units && expert_find(a, entries, w, &l->at)) {
        const moe_weight &m = a.p.weight[a.p.down ? 0 : w.sub];
        const int tile = min(expert_tile(a, entries, w, l->at), a.tiles - 1);

        l->unit = first;
        l->from = (const uint8_t *)m.data + list->expert[expert_entry(a, entries, l->at)] * m.stride +
                  tile * a.tile_bytes + first * unit_bytes;
    }
}

/* Copies the next unit of this warp into a stage and advances. */
template <class F>
static __device__ __forceinline__ void expert_copy(const block_expert_args &a, const moe_list *list,
                                                   const expert_warp &w, expert_loader *l, uint32_t stage)
{
    if (l->unit >= 0) {
        const int next = expert_next_unit(a, w, l->unit);

        block_copy_unit<F, 0>(l->from, F::SMALL && a.x.tail && l->unit == a.x.units - 1, stage, 0, w.lane);
        l->from += (next - l->unit) * F::UNIT;
        l->unit = next;
        if (next >= a.x.units) {
            expert_advance(a, &l->at);
            expert_seek(a, list, w, F::UNIT, l);
        }
    }
    mma_copy_commit();
}

/* ------------------------------------------------------------------------------------------------------------- sums */

/* Sums of a chain. Of one token that of the run and row that a lane owns; of several [run][as the D operand has them].
 * And of the chains before it. */
template <int COLUMNS> struct expert_sums {
    float v[2][4];
    float all[4], last[4];
};
template <> struct expert_sums<1> {
    float v;
    float all[1], last[1];
};

/* Element e of a chain, in lanes that expert_row and expert_column name. */
static __device__ __forceinline__ float expert_sum(const expert_sums<1> *s, int)
{
    return s->v + __shfl_xor_sync(~0u, s->v, 2);
}

static __device__ __forceinline__ float expert_sum(const expert_sums<8> *s, int e)
{
    return s->v[0][e] + s->v[1][e];
}

static __device__ __forceinline__ void expert_clear(expert_sums<1> *s)
{
    s->v = 0.0f;
}

static __device__ __forceinline__ void expert_clear(expert_sums<8> *s)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        s->v[i / 4][i % 4] = 0.0f;
}

/* Adds a share's chain of number i: (0 + 1) + (2 + 3). */
template <int COLUMNS> static __device__ __forceinline__ void expert_add_chain(expert_sums<COLUMNS> *s, int i)
{
#pragma unroll
    for (int e = 0; e < (COLUMNS == 1 ? 1 : 4); e++) {
        const float v = expert_sum(s, e);

        if (i == 0)
            s->all[e] = v;
        else if (i == 1)
            s->all[e] += v;
        else if (i == 2)
            s->last[e] = v;
        else
            s->all[e] += s->last[e] + v;
    }
    expert_clear(s);
}

template <int COLUMNS> static __device__ __forceinline__ int expert_row(int lane, int e)
{
    return COLUMNS == 1 ? block_own_row(lane) : lane / 4 + 8 * (e >> 1);
}

template <int COLUMNS> static __device__ __forceinline__ int expert_column(int lane, int e)
{
    return COLUMNS == 1 ? 0 : 2 * (lane % 4) + (e & 1);
}

/* Writes a share's part of a product of gate_up, [column][32 rows], or of down, [pair][share][16 rows]. */
template <int COLUMNS>
static __device__ __forceinline__ void expert_write(const block_expert_args &a, const moe_list *list,
                                                    const expert_warp &w, const expert_sums<COLUMNS> *s, int entry,
                                                    float *to)
{
#pragma unroll
    for (int e = 0; e < (COLUMNS == 1 ? 1 : 4); e++) {
        const float v = s->all[e];
        const int column = expert_column<COLUMNS>(w.lane, e), row = expert_row<COLUMNS>(w.lane, e);

        if (!a.p.down)
            to[column * 32 + row] = v;
        else if (column < list->count[entry])
            to[(list->pair[entry][column] * a.split + w.share) * BLOCK_ROWS + row] = v;
    }
}

/* The shares of a result, `pitch` floats apart. */
static __device__ __forceinline__ float expert_add_shares(const block_expert_args &a, const float *from, int pitch)
{
    float v = from[0];

    if (a.split > 1)
        v += from[pitch];
    if (a.split > 2)
        v += from[2 * pitch] + from[3 * pitch];
    return v;
}

/* ----------------------------------------------------------------------------------------------------------- results
 */

/* gate_up: a team's results are [share][gate, up][column][32 rows]; its warps store the entry's pairs. */
template <int COLUMNS>
static __device__ __forceinline__ void expert_store_slots(const block_expert_args &a, const moe_list *list, int work,
                                                          const float *results)
{
    const int entry = work / a.works, expert = list->expert[entry], lane = threadIdx.x % 32;
    const int row = work % a.works * 2 * BLOCK_ROWS, step = 4 * a.split;

    for (int column = threadIdx.x / 32 % step; column < list->count[entry]; column += step) {
        const float *from = results + column * 32 + lane;
        const int pair = list->pair[entry][column], pitch = 2 * COLUMNS * 32;
        const int bias = min(row + lane, (int)a.p.rows - 1);
        const float gate = moe_bias(a.p.weight[0], expert, bias, expert_add_shares(a, from, pitch));
        const float up = moe_bias(a.p.weight[1], expert, bias, expert_add_shares(a, from + COLUMNS * 32, pitch));

        moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, row, moe_swiglu_inline(a.p.act, gate, up, a.p.swiglu));
    }
}

/* down: the results of a batch are [tile][pair][share][16 rows]; a thread has a row of a token. */
static __device__ __forceinline__ void expert_store_sums(const block_expert_args &a, const moe_list *list, int batch,
                                                         const float *results)
{
    const int per_tile = BLOCK_ROWS * a.p.tokens, pairs = a.p.tokens * a.p.slots;

    for (int i = threadIdx.x; i < per_tile * expert_batch_tiles(a, batch); i += (int)blockDim.x) {
        const int tile = i / per_tile, token = i % per_tile / BLOCK_ROWS, r = i % BLOCK_ROWS;
        const int row = ((int)blockIdx.x + (int)gridDim.x * (batch * a.batch + tile)) * BLOCK_ROWS + r;
        float sum = 0.0f;

        if (row >= a.p.rows)
            continue;
        for (int slot = 0; slot < a.p.slots; slot++) {
            const int pair = token * a.p.slots + slot, expert = ((const int *)list->ids)[pair];

            if (expert >= 0) {
                const float *from = results + (tile * pairs + pair) * a.split * BLOCK_ROWS + r;

                sum = __fmaf_rn(a.p.weights[token * a.p.weights_stride + slot],
                                moe_bias(a.p.weight[0], expert, row, expert_add_shares(a, from, BLOCK_ROWS)), sum);
            }
        }
        moe_store_sum(a.p, token, row, sum);
    }
}

/* gate_up: slots without an expert, which no entry stores. */
static __device__ __forceinline__ void expert_store_rest(const block_expert_args &a, const moe_list *list)
{
    const int warps = (int)gridDim.x * a.warps, warp = (int)blockIdx.x + threadIdx.x / 32 * gridDim.x;

    for (int pair = 0; pair < a.p.tokens * a.p.slots; pair++)
        if (((const int *)list->ids)[pair] < 0)
            for (int tile = warp; tile < a.works; tile += warps)
                moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, tile * 2 * BLOCK_ROWS, 0.0f);
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* One unit; x: where the records of the entry's pairs for this unit lie (expert_x). */
template <class F>
static __device__ __forceinline__ void expert_unit(const char *unit, const char *tables, const char *records,
                                                   const uint32_t *x, int lane, const uint32_t *column,
                                                   expert_sums<1> *s)
{
    block_unit_1<F>(unit, tables, records + x[0], lane, column, &s->v);
}

template <class F>
static __device__ __forceinline__ void expert_unit(const char *unit, const char *tables, const char *records,
                                                   const uint32_t *x, int lane, const uint32_t *, expert_sums<8> *s)
{
    block_unit_8<F, 1, 1>(unit, tables, block_x_at{records + x[0], {records + x[1], records + x[2]}}, 0, lane, s->v);
}

/* Where the records of the pair in column `column` of an entry begin, of the first one beyond the last. */
template <class F>
static __device__ __forceinline__ uint32_t expert_x(const block_expert_args &a, const moe_list *list, int entry,
                                                    int column)
{
    const int pair = list->pair[entry][column < list->count[entry] ? column : 0];

    return (uint32_t)((a.p.down ? pair : pair / a.p.slots) * a.x.units * BLOCK_RECORD_1(F::X));
}

/* A share of a product; at: the stage with its first unit. */
template <class F, int COLUMNS>
static __device__ __forceinline__ void
expert_product(const block_expert_args &a, const moe_list *list, const expert_warp &w, const uint32_t *column,
               const char *memory, const char *ring, expert_loader *l, int *at, int entry, expert_sums<COLUMNS> *s)
{
    const int lane = w.lane, t = lane % 4, own = 4 / a.split;
    const uint32_t x[3] = {expert_x<F>(a, list, entry, COLUMNS == 1 ? 0 : lane / 4),
                           expert_x<F>(a, list, entry, COLUMNS == 1 ? 0 : 2 * t),
                           expert_x<F>(a, list, entry, COLUMNS == 1 ? 0 : 2 * t + 1)};

    expert_clear(s);
    for (int i = 0; i < own; i++) {
        for (int unit = w.share * own + i; unit < a.x.units; unit += 4) {
            const char *stage = ring + *at * F::UNIT;
            const uint32_t skip = (uint32_t)(unit * BLOCK_RECORD_1(F::X));
            const uint32_t own_x[3] = {x[0] + skip, x[1] + skip, x[2] + skip};

            block_wait<0>(0, 0, a.x.depth);
            if (a.x.records) /* two calls, so that each is compiled for its kind of memory */
                expert_unit<F>(stage, memory, a.x.records, own_x, lane, column, s);
            else
                expert_unit<F>(stage, memory, memory + F::TABLES, own_x, lane, column, s);
            __syncwarp(); /* all lanes have read the stage before it is written again */
            expert_copy<F>(a, list, w, l, ptx_shared(stage));
            *at = *at + 1 == a.x.depth ? 0 : *at + 1;
        }
        expert_add_chain(s, i);
    }
}

/* A thread's first pieces of x, eight codes each, requested before the list is made and written to records behind the
 * requests of weights; the others follow at once. */
enum { EXPERT_HELD = 3 };

typedef struct expert_held {
    uint2 codes[EXPERT_HELD];
    float xs[EXPERT_HELD];
} expert_held;

/* Piece i of x: which record, which block of it. */
template <class F>
static __device__ __forceinline__ void expert_load_x(const block_expert_args &a, int i, uint2 *codes, float *xs)
{
    const int per_row = a.x.units * 32, row = i / per_row, u = i % per_row;
    const int token = row / a.x.x_slots, slot = row % a.x.x_slots;
    const bool there = row < a.x.tokens && u / 4 < a.x.blocks;

    *codes = there ? block_load_codes(a.x, (const char *)a.x.x + token * a.x.x_stride + slot * a.x.x_slot + u * 8)
                   : make_uint2(0, 0);
    *xs = there ? a.x.x_scales[token * a.x.x_ld + slot * a.x.x_slot_ld + u / 4] : 0.0f;
}

template <class F>
static __device__ __forceinline__ void expert_write_x(const block_expert_args &a, char *to, int i, uint2 codes,
                                                      float xs)
{
    const int per_row = a.x.units * 32, u = i % per_row;

    block_write_x<F, 1>(to + (i / per_row * a.x.units + u / 32) * BLOCK_RECORD_1(F::X), u / 4 % 8, 0, u % 4, codes, xs);
}

/* The records of all rows of x. By whole warps; per_row is a multiple of 32. */
template <class F>
static __device__ __forceinline__ void expert_write_held(const block_expert_args &a, char *to, const expert_held &held)
{
    const int all = a.x.units * 32 * a.x.tokens, step = (int)blockDim.x;
    int i = (int)threadIdx.x;

#pragma unroll
    for (int k = 0; k < EXPERT_HELD; k++, i += step)
        if (i < all)
            expert_write_x<F>(a, to, i, held.codes[k], held.xs[k]);
    for (; i < all; i += step) {
        uint2 codes;
        float xs;

        expert_load_x<F>(a, i, &codes, &xs);
        expert_write_x<F>(a, to, i, codes, xs);
    }
}

template <class F, int COLUMNS> static __device__ __forceinline__ void expert_products(const block_expert_args &a)
{
    extern __shared__ __align__(128) char memory[];
    moe_list *const list = (moe_list *)(memory + a.at_list);
    const expert_warp w = expert_warp_of(a);
    const char *const ring = memory + a.x.at_ring + threadIdx.x / 32 * a.x.depth * F::UNIT;
    float *results = (float *)(memory + a.at_results) + (a.p.down ? 0 : w.team * 2 * a.results);
    expert_loader l = {expert_begin(a, w), -1, NULL};
    expert_sums<COLUMNS> s;
    expert_held held;
    expert_pos pos = l.at;
    uint32_t column[8];
    int at = 0, entries, parity = 0;

    block_columns(w.lane, column);
    ptx_launch_dependents();
    if constexpr (F::TABLES > 0)
        block_fill_tables(F(), memory);
    ptx_grid_dependency_wait();
    if (!a.x.records)
#pragma unroll
        for (int k = 0; k < EXPERT_HELD; k++)
            expert_load_x<F>(a, (int)threadIdx.x + k * (int)blockDim.x, &held.codes[k], &held.xs[k]);
    if (COLUMNS == 1)
        moe_make_list_1(a.p, list);
    else
        moe_make_list(a.p, list, COLUMNS);
    entries = list->entries;
    expert_seek(a, list, w, F::UNIT, &l);
    for (int i = 0; i < a.x.depth; i++)
        expert_copy<F>(a, list, w, &l, ptx_shared(ring + i * F::UNIT));
    if (!a.x.records)
        expert_write_held<F>(a, memory + F::TABLES, held);
    if (!a.p.down)
        expert_store_rest(a, list);
    __syncthreads(); /* orders the writes of x and of tables before their reads */
    if (!a.p.down) {
        for (; expert_find(a, entries, w, &pos); expert_advance(a, &pos), parity ^= 1) {
            float *const to = results + (parity ? a.results : 0);

            expert_product<F, COLUMNS>(a, list, w, column, memory, ring, &l, &at, pos.work / a.works, &s);
            expert_write<COLUMNS>(a, list, w, &s, pos.work / a.works,
                                  to + ((w.share * 2 + w.sub) * COLUMNS * 2 + w.half) * BLOCK_ROWS);
            ptx_barrier_sync(1 + w.team, 128 * a.split);
            expert_store_slots<COLUMNS>(a, list, pos.work, to);
        }
        return;
    }
    for (int batch = 0, tiles; (tiles = expert_batch_tiles(a, batch)) > 0; batch++) {
        for (int item = w.team; item < tiles * entries; item += expert_teams(a)) {
            const int entry = item % entries, pairs = a.p.tokens * a.p.slots;

            expert_product<F, COLUMNS>(a, list, w, column, memory, ring, &l, &at, entry, &s);
            expert_write<COLUMNS>(a, list, w, &s, entry, results + item / entries * pairs * a.split * BLOCK_ROWS);
        }
        __syncthreads();
        expert_store_sums(a, list, batch, results);
        if (expert_batch_tiles(a, batch + 1) > 0)
            __syncthreads();
    }
}

template <class F, int COLUMNS>
static __global__ void __launch_bounds__(32 * EXPERT_WARPS(COLUMNS), 1)
    block_experts(const __grid_constant__ block_expert_args a)
{
    expert_products<F, COLUMNS>(a);
}

/* -------------------------------------------------------------------------------------------------- a format's table
 */

#define BLOCK_KERNELS_OF(F, BULK)                                                                                      \
    {                                                                                                                  \
        (const void *)block_mma<F, 1, BULK>, (const void *)block_mma<F, 8, BULK>, (const void *)block_mma<F, 16, BULK> \
    }
/* Defines block_kernels_NAME, from struct block_NAME. */
#define BLOCK_KERNELS(name)                                                                                      \
    extern const block_kernels ridge_block_kernels_##name = {                                                    \
        {BLOCK_KERNELS_OF(block_##name, 0), BLOCK_KERNELS_OF(block_##name, 1)},                                  \
        {(const void *)block_records<block_##name, 1>, (const void *)block_records<block_##name, 8>,             \
         (const void *)block_records<block_##name, 16>},                                                         \
        block_##name::UNIT,                                                                                      \
        block_##name::TABLES,                                                                                    \
        {BLOCK_RECORD_1(block_##name::X), BLOCK_RECORD_8(block_##name::X), 2 * BLOCK_RECORD_8(block_##name::X)}, \
        {BLOCK_TEAMS_OF(block_##name, 0), BLOCK_TEAMS_OF(block_##name, 1)},                                      \
        {(const void *)block_experts<block_##name, 1>, (const void *)block_experts<block_##name, 8>}};

#endif
