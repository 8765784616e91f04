/* experts.cuh: moe_gate_up_swiglu and moe_down with weights in block formats: the main loop of mma.cuh on the tiles of
 * the experts that a list names (ops/moe/list.cuh), sm_80 up, with copies by cp.async.
 *
 * A product is a tile of 16 rows of an entry of the list, of one pair two tiles with the same x: gate and up, or two of
 * down. Its columns are the entry's pairs of token and slot: eight, or one where there are no more pairs than experts,
 * so that few of them share one; those that do find its weights in L2. A warp computes
 * a product alone, or 2 or 4 warps share it (`split`) where there are few products. The units of a product are four
 * chains, unit modulo four, which a warp goes through one after another. No barrier lies between products; copies go on
 * from one into the next, the first as soon as the list is known.
 *
 *     gate_up  the warps of a team have 32 rows of an entry, which become a block of codes
 *     down     a CTA's products are those of `batch` steps of 16 or 32 rows times all entries, which its warps share
 *              out; then all threads add the slots of these rows
 *
 * Results wait in shared memory. A barrier (named 1 + team for gate_up) orders their writes before their reads. Those
 * of gate_up have two buffers, so that it orders the reads of one before its next writes too; down has a second
 * barrier. */
#ifndef RIDGE_BLOCKS_EXPERTS_CUH
#define RIDGE_BLOCKS_EXPERTS_CUH

#include "mma.cuh"
#include "ops/moe/args.cuh"
#include "ops/moe/list.cuh"

/* Warps of a CTA: as many as registers allow. Tiles of a product. Warps of gate_up's team with a product each: 32 rows.
 */
#define EXPERT_WARPS(columns) ((columns) == 1 ? 12 : 8)
#define EXPERT_TILES(columns) ((columns) == 1 ? 2 : 1)
#define EXPERT_TEAM(columns) (4 / EXPERT_TILES(columns))

typedef struct block_expert_args {
    moe_args p;
    block_mma_args x; /* x, units, depth */
    int tiles, works; /* of 16 rows; steps of 32 rows of gate_up, of 16 `each` of down */
    int warps;        /* of a CTA */
    int split;        /* of a product: 1, 2 or 4 warps */
    int each;         /* tiles of a product: EXPERT_TILES, or 1 of down that has few */
    int batch;        /* steps of down whose products are shared out together */
    int results;      /* floats of one buffer: of a team of gate_up, of the CTA */
    int64_t tile_bytes;
    uint32_t at_list, at_results;
} block_expert_args;

/* ---------------------------------------------------------------------------------------------------------- products
 */

/* A warp's products, one after another: a step of rows of an entry. gate_up: of all; down: of those of this CTA in a
 * batch. No division but at the beginning: they would be a third of all instructions outside of the loop over units. */
typedef struct expert_pos {
    int step, entry, batch;
} expert_pos;

/* What a warp is: which share of a product, and which product of its team; and what its CTA has. */
typedef struct expert_warp {
    int lane, share, product, team, teams;
    int own, entries, steps; /* chains of a share; of the list; of down, of this CTA */
} expert_warp;

template <int COLUMNS> static __device__ __forceinline__ expert_warp expert_warp_of(const block_expert_args &a)
{
    enum { TEAM = EXPERT_TEAM(COLUMNS) };
    const int warp = threadIdx.x / 32, product = warp / a.split;
    expert_warp w = {(int)threadIdx.x % 32, warp % a.split, 0, product, a.warps / a.split, 4 / a.split, 0, 0};

    if (!a.p.down) {
        w.product = product % TEAM;
        w.team = product / TEAM;
        w.teams = a.warps / (TEAM * a.split);
    } else {
        w.steps = (a.works - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    }
    return w;
}

/* down: how many steps this CTA has in a batch. */
static __device__ __forceinline__ int expert_batch_steps(const block_expert_args &a, const expert_warp &w, int batch)
{
    return max(0, min(a.batch, w.steps - batch * a.batch));
}

static __device__ __forceinline__ expert_pos expert_begin(const block_expert_args &a, const expert_warp &w)
{
    const int first = (int)blockIdx.x + w.team * (int)gridDim.x;

    return a.p.down ? expert_pos{0, w.team, 0} : expert_pos{first % a.works, first / a.works, 0};
}

/* Goes to the next position that is one of a product; false: there is none. */
static __device__ __forceinline__ bool expert_find(const block_expert_args &a, const expert_warp &w, expert_pos *at)
{
    if (!a.p.down) {
        for (; at->step >= a.works; at->step -= a.works)
            at->entry++;
        return w.team < w.teams && at->entry < w.entries;
    }
    for (int steps; w.entries && (steps = expert_batch_steps(a, w, at->batch)) > 0;) {
        for (; at->entry >= w.entries; at->entry -= w.entries)
            at->step++;
        if (at->step < steps)
            return true;
        *at = {0, w.team, at->batch + 1};
    }
    return false;
}

static __device__ __forceinline__ void expert_advance(const block_expert_args &a, const expert_warp &w, expert_pos *at)
{
    if (a.p.down)
        at->entry += w.teams;
    else
        at->step += w.teams * (int)gridDim.x;
}

/* The step of down in the weight. */
static __device__ __forceinline__ int expert_step(const block_expert_args &a, int batch, int step)
{
    return (int)blockIdx.x + (int)gridDim.x * (batch * a.batch + step);
}

/* The unit after `unit` in a share, which has the chains share * (4 / split) and so on; those behind the last: none. */
static __device__ __forceinline__ int expert_next_unit(const block_expert_args &a, const expert_warp &w, int unit)
{
    const int chain = (unit & 3) + 1;

    if (unit + 4 < a.x.units)
        return unit + 4;
    return chain < (w.share + 1) * w.own && chain < a.x.units ? chain : a.x.units;
}

/* ---------------------------------------------------------------------------------------------------------- weights */

template <int COLUMNS> struct expert_loader {
    expert_pos at;
    int unit;                                   /* -1: all are copied */
    const uint8_t *from[EXPERT_TILES(COLUMNS)]; /* of each tile of the product */
};

/* Goes to the first unit of the product at l->at, or of the next. A tile behind the last is the last one again. */
template <int COLUMNS>
static __device__ __forceinline__ void expert_seek(const block_expert_args &a, const moe_list *list,
                                                   const expert_warp &w, int unit_bytes, expert_loader<COLUMNS> *l)
{
    enum { TILES = EXPERT_TILES(COLUMNS) };
    const int first = w.share * w.own;

    l->unit = -1;
    if (first >= a.x.units || !expert_find(a, w, &l->at))
        return;
    l->unit = first;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const int sub = a.p.down ? 0 : TILES == 2 ? i : w.product >> 1;
        const int tile =
            a.p.down ? a.each * expert_step(a, l->at.batch, l->at.step) + i : 2 * l->at.step + (w.product & 1);
        const moe_weight &m = a.p.weight[sub];

        l->from[i] = (const uint8_t *)m.data + list->expert[l->at.entry] * m.stride +
                     min(tile, a.tiles - 1) * a.tile_bytes + first * unit_bytes;
    }
}

/* Copies the next unit of this warp into a stage and advances. */
template <class F, int COLUMNS>
static __device__ __forceinline__ void expert_copy(const block_expert_args &a, const moe_list *list,
                                                   const expert_warp &w, expert_loader<COLUMNS> *l, uint32_t stage)
{
    if (l->unit >= 0) {
        const int next = expert_next_unit(a, w, l->unit);

#pragma unroll
        for (int i = 0; i < EXPERT_TILES(COLUMNS); i++) {
            if (i < a.each)
                block_copy_unit<F, 0>(l->from[i], F::SMALL && a.x.tail && l->unit == a.x.units - 1,
                                      stage + (uint32_t)(i * F::UNIT), 0, w.lane);
            l->from[i] += (next - l->unit) * F::UNIT;
        }
        l->unit = next;
        if (next >= a.x.units) {
            expert_advance(a, w, &l->at);
            expert_seek<COLUMNS>(a, list, w, F::UNIT, l);
        }
    }
    mma_copy_commit();
}

/* ------------------------------------------------------------------------------------------------------------- sums */

/* Sums of a chain. Of one token, for each tile, that of the run and row that a lane owns; of several [run][as the D
 * operand has them]. And of the chains before it. */
template <int COLUMNS> struct expert_sums {
    float v[2][4];
    float all[4], last[4];
};
template <> struct expert_sums<1> {
    float v[2];
    float all[2], last[2];
};

#define EXPERT_SUMS(COLUMNS) ((COLUMNS) == 1 ? 2 : 4)

/* Element e of a chain, in lanes that expert_row and expert_column name. */
static __device__ __forceinline__ float expert_sum(const expert_sums<1> *s, int e)
{
    return s->v[e] + __shfl_xor_sync(~0u, s->v[e], 2);
}

static __device__ __forceinline__ float expert_sum(const expert_sums<8> *s, int e)
{
    return s->v[0][e] + s->v[1][e];
}

static __device__ __forceinline__ void expert_clear(expert_sums<1> *s)
{
    s->v[0] = s->v[1] = 0.0f;
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
    for (int e = 0; e < EXPERT_SUMS(COLUMNS); e++) {
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

/* Writes a share's part of a product of gate_up, [share][gate, up][column][32 rows], or of down, [pair][share][rows of
 * a step]. */
template <int COLUMNS>
static __device__ __forceinline__ void expert_write(const block_expert_args &a, const moe_list *list,
                                                    const expert_warp &w, const expert_sums<COLUMNS> *s, int entry,
                                                    float *to)
{
    enum { TILES = EXPERT_TILES(COLUMNS) };

#pragma unroll
    for (int e = 0; e < EXPERT_SUMS(COLUMNS); e++) {
        const int column = COLUMNS == 1 ? 0 : 2 * (w.lane % 4) + (e & 1), tile = COLUMNS == 1 ? e : 0;
        const int row = COLUMNS == 1 ? block_own_row(w.lane) : w.lane / 4 + 8 * (e >> 1);
        const int sub = TILES == 2 ? tile : w.product >> 1;

        if (!a.p.down)
            to[((w.share * 2 + sub) * COLUMNS + column) * 32 + (w.product & 1) * BLOCK_ROWS + row] = s->all[e];
        else if (column < list->count[entry] && tile < a.each)
            to[((list->pair[entry][column] * a.split + w.share) * a.each + tile) * BLOCK_ROWS + row] = s->all[e];
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

/* gate_up: the warps of a team store the entry's pairs. */
template <int COLUMNS>
static __device__ __forceinline__ void expert_store_slots(const block_expert_args &a, const moe_list *list,
                                                          const expert_pos &at, const float *results)
{
    const int expert = list->expert[at.entry], lane = threadIdx.x % 32;
    const int row = at.step * 2 * BLOCK_ROWS, step = EXPERT_TEAM(COLUMNS) * a.split;

    for (int column = threadIdx.x / 32 % step; column < list->count[at.entry]; column += step) {
        const float *from = results + column * 32 + lane;
        const int pair = list->pair[at.entry][column], pitch = 2 * COLUMNS * 32;
        const int bias = min(row + lane, (int)a.p.rows - 1);
        const float gate = moe_bias(a.p.weight[0], expert, bias, expert_add_shares(a, from, pitch));
        const float up = moe_bias(a.p.weight[1], expert, bias, expert_add_shares(a, from + COLUMNS * 32, pitch));

        moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, row, moe_swiglu_inline(a.p.act, gate, up, a.p.swiglu));
    }
}

/* down: the results of a batch are [step][pair][share][rows of a step]; a thread has a row of a token. */
static __device__ __forceinline__ void expert_store_sums(const block_expert_args &a, const moe_list *list,
                                                         const expert_warp &w, int batch, const float *results)
{
    const int rows = a.each * BLOCK_ROWS, per_step = rows * a.p.tokens, pairs = a.p.tokens * a.p.slots;

    for (int i = threadIdx.x; i < per_step * expert_batch_steps(a, w, batch); i += (int)blockDim.x) {
        const int step = i / per_step, token = i % per_step / rows, r = i % rows;
        const int row = expert_step(a, batch, step) * rows + r;
        float sum = 0.0f;

        if (row >= a.p.rows)
            continue;
        for (int slot = 0; slot < a.p.slots; slot++) {
            const int pair = token * a.p.slots + slot, expert = ((const int *)list->ids)[pair];

            if (expert >= 0) {
                const float *from = results + (step * pairs + pair) * a.split * rows + r;

                sum = __fmaf_rn(list->weight[pair],
                                moe_bias(a.p.weight[0], expert, row, expert_add_shares(a, from, rows)), sum);
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
            for (int step = warp; step < a.works; step += warps)
                moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, step * 2 * BLOCK_ROWS, 0.0f);
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* One unit of each tile; x: where the records of the entry's pairs for this unit lie (expert_x). Two units without a
 * branch between them: their instructions go side by side, and what is made of x is made once. */
template <class F>
static __device__ __forceinline__ void expert_unit(const char *unit, const char *tables, const char *records,
                                                   const uint32_t *x, int each, int lane, const uint32_t *column,
                                                   expert_sums<1> *s)
{
    if (each == 1) {
        block_unit_1<F>(unit, tables, records + x[0], lane, column, &s->v[0]);
        return;
    }
    asm volatile("// two units"); /* or the first would be taken out of both branches */
    block_unit_1<F>(unit, tables, records + x[0], lane, column, &s->v[0]);
    block_unit_1<F>(unit + F::UNIT, tables, records + x[0], lane, column, &s->v[1]);
}

template <class F>
static __device__ __forceinline__ void expert_unit(const char *unit, const char *tables, const char *records,
                                                   const uint32_t *x, int, int lane, const uint32_t *,
                                                   expert_sums<8> *s)
{
    block_unit_8<F, 1, 1>(unit, tables, NULL, block_x_at{records + x[0], {records + x[1], records + x[2]}}, 0, lane,
                          s->v);
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
static __device__ __forceinline__ void expert_product(const block_expert_args &a, const moe_list *list,
                                                      const expert_warp &w, const uint32_t *column, const char *memory,
                                                      const char *ring, expert_loader<COLUMNS> *l, int *at, int entry,
                                                      expert_sums<COLUMNS> *s)
{
    const int lane = w.lane, t = lane % 4;
    const uint32_t x[3] = {expert_x<F>(a, list, entry, COLUMNS == 1 ? 0 : lane / 4),
                           expert_x<F>(a, list, entry, COLUMNS == 1 ? 0 : 2 * t),
                           expert_x<F>(a, list, entry, COLUMNS == 1 ? 0 : 2 * t + 1)};

    expert_clear(s);
    for (int i = 0; i < w.own; i++) {
        for (int unit = w.share * w.own + i; unit < a.x.units; unit += 4) {
            const char *stage = ring + *at * EXPERT_TILES(COLUMNS) * F::UNIT;
            const uint32_t skip = (uint32_t)(unit * BLOCK_RECORD_1(F::X));
            const uint32_t own_x[3] = {x[0] + skip, x[1] + skip, x[2] + skip};

            block_wait<0>(0, 0, a.x.depth);
            if (a.x.records) /* two calls, so that each is compiled for its kind of memory */
                expert_unit<F>(stage, memory, a.x.records, own_x, a.each, lane, column, s);
            else
                expert_unit<F>(stage, memory, memory + F::TABLES, own_x, a.each, lane, column, s);
            __syncwarp(); /* all lanes have read the stage before it is written again */
            expert_copy<F, COLUMNS>(a, list, w, l, ptx_shared(stage));
            *at = *at + 1 == a.x.depth ? 0 : *at + 1;
        }
        expert_add_chain(s, i);
    }
}

/* A warp's records of x, `warps` apart: each is a unit of a slot's row (of a token's, where the slots share it). */
typedef struct expert_record {
    int unit, slot, token;
} expert_record;

static __device__ __forceinline__ void expert_skip(const block_expert_args &a, expert_record *r, int records)
{
    for (r->unit += records; a.x.units && r->unit >= a.x.units; r->unit -= a.x.units)
        if (++r->slot == a.x.x_slots) {
            r->slot = 0;
            r->token++;
        }
}

/* This lane's eight codes of a record, and their scale. */
typedef struct expert_piece {
    uint2 codes;
    float xs;
} expert_piece;

static __device__ __forceinline__ expert_piece expert_load_x(const block_expert_args &a, const expert_record &r)
{
    const int u = r.unit * 32 + (int)threadIdx.x % 32;
    expert_piece x = {make_uint2(0, 0), 0.0f};

    if (r.token < a.p.tokens && u / 4 < a.x.blocks) {
        x.codes = block_load_codes(a.x, (const char *)a.x.x + r.token * a.x.x_stride + r.slot * a.x.x_slot + u * 8);
        x.xs = a.x.x_scales[r.token * a.x.x_ld + r.slot * a.x.x_slot_ld + u / 4];
    }
    return x;
}

/* The first records of a warp are requested before the list is made and written behind the requests of weights; the
 * others follow at once. */
enum { EXPERT_HELD = 4 };

template <class F>
static __device__ __forceinline__ void expert_write_x(const block_expert_args &a, char *to, expert_record next,
                                                      const expert_piece *held)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = a.x.units * a.x.tokens;

    for (int k = 0, r = warp; r < all; k++, r += a.warps) {
        expert_piece x;

#pragma unroll
        for (int i = 0; i < EXPERT_HELD; i++)
            if (k == i)
                x = held[i];
        if (k >= EXPERT_HELD) {
            x = expert_load_x(a, next);
            expert_skip(a, &next, a.warps);
        }
        block_write_x<F, 1>(to + r * BLOCK_RECORD_1(F::X), lane / 4, 0, lane % 4, x.codes, x.xs);
    }
}

template <class F, int COLUMNS> static __device__ __forceinline__ void expert_products(const block_expert_args &a)
{
    enum { STAGE = EXPERT_TILES(COLUMNS) * F::UNIT };
    extern __shared__ __align__(128) char memory[];
    moe_list *const list = (moe_list *)(memory + a.at_list);
    expert_warp w = expert_warp_of<COLUMNS>(a);
    const char *const ring = memory + a.x.at_ring + threadIdx.x / 32 * a.x.depth * STAGE;
    float *results = (float *)(memory + a.at_results) + (a.p.down ? 0 : w.team * 2 * a.results);
    expert_loader<COLUMNS> l = {expert_begin(a, w), -1};
    expert_sums<COLUMNS> s;
    expert_piece held[EXPERT_HELD];
    expert_record next = {0, 0, 0};
    expert_pos pos = l.at;
    uint32_t column[8];
    int at = 0, parity = 0;

    block_columns(w.lane, column);
    if constexpr (F::TABLES > 0)
        block_fill_tables(F(), memory);
    if (!a.x.records)
        expert_skip(a, &next, threadIdx.x / 32);
    /* Constant weights of down are requested by the ids as they are before the kernels in front have ended, which a
     * router has long written. If they have changed, all begins again. */
    for (int early = a.p.down && a.p.weights_const; early >= 0; early--) {
        if (!early) {
            ptx_grid_dependency_wait();
            if (!a.x.records)
#pragma unroll
                for (int k = 0; k < EXPERT_HELD; k++) {
                    held[k] = expert_load_x(a, next);
                    expert_skip(a, &next, a.warps);
                }
            if (a.p.down && a.p.weights_const) {
                if (moe_list_holds(a.p, list))
                    break;
                mma_copy_wait_for<0>(); /* what was copied is not wanted, and its stages are written again */
            }
        }
        if (COLUMNS == 1 && a.p.tokens == 1)
            moe_make_list_1(a.p, list);
        else
            moe_make_list(a.p, list, COLUMNS);
        w.entries = list->entries;
        l.at = pos;
        expert_seek<COLUMNS>(a, list, w, F::UNIT, &l);
        for (int i = 0; i < a.x.depth; i++)
            expert_copy<F, COLUMNS>(a, list, w, &l, ptx_shared(ring + i * STAGE));
    }
    ptx_launch_dependents(); /* behind the first loads, which it would delay */
    if (!a.x.records)
        expert_write_x<F>(a, memory + F::TABLES, next, held);
    if (a.p.down)
        moe_keep_weights(a.p, list);
    else
        expert_store_rest(a, list);
    __syncthreads(); /* orders the writes of x and of tables before their reads */
    if (!a.p.down) {
        for (; expert_find(a, w, &pos); expert_advance(a, w, &pos), parity ^= 1) {
            float *const to = results + (parity ? a.results : 0);

            expert_product<F, COLUMNS>(a, list, w, column, memory, ring, &l, &at, pos.entry, &s);
            expert_write<COLUMNS>(a, list, w, &s, pos.entry, to);
            ptx_barrier_sync(1 + w.team, 32 * EXPERT_TEAM(COLUMNS) * a.split);
            expert_store_slots<COLUMNS>(a, list, pos, to);
        }
        return;
    }
    for (int batch = 0; expert_batch_steps(a, w, batch) > 0; batch++) {
        for (; expert_find(a, w, &pos) && pos.batch == batch; expert_advance(a, w, &pos)) {
            const int each = a.p.tokens * a.p.slots * a.split * a.each * BLOCK_ROWS;

            expert_product<F, COLUMNS>(a, list, w, column, memory, ring, &l, &at, pos.entry, &s);
            expert_write<COLUMNS>(a, list, w, &s, pos.entry, results + pos.step * each);
        }
        __syncthreads();
        expert_store_sums(a, list, w, batch, results);
        if (expert_batch_steps(a, w, batch + 1) > 0)
            __syncthreads();
    }
}

template <class F, int COLUMNS>
static __global__ void __launch_bounds__(32 * EXPERT_WARPS(COLUMNS), 1)
    block_experts(const __grid_constant__ block_expert_args a)
{
    expert_products<F, COLUMNS>(a);
}

#endif
