/* experts.cuh: moe_gate_up_swiglu and moe_down with weights in block formats: the main loop of mma.cuh on the tiles of
 * the experts that a list names (ops/moe/list.cuh), sm_80 up.
 *
 * A product is a tile of 16 rows of an entry of the list. Its columns are the entry's pairs of token and slot: one for
 * one token and where there are no more pairs than experts, so that few of them share one; those that do find its
 * weights in L2. Otherwise eight. A warp computes a product alone, or 2 or 4 warps share it (`split`) where there are
 * few products. The units of a product are four chains, unit modulo four, which a warp goes through one after another.
 * No barrier lies between products; copies go on from one into the next, the first as soon as the list is known
 * (expert_copies.cuh).
 *
 * With one pair an entry, latencies and not only instructions are what takes time, so that 24 warps do better than 12
 * with two tiles each. They have 80 registers: bulk copies, which are one instruction, and all that is wanted once a
 * unit or once a product lies in shared memory. Where instructions bound one token (APART, see mma.cuh), a product of
 * gate_up is a tile of gate and the same of up side by side, by 16 warps: x, waits and copies serve both.
 *
 *     gate_up  the products of 32 rows of an entry, which become a block of codes, are a team's
 *     down     a CTA's products are those of `batch` steps of 16 rows times all entries, which its warps share out;
 *              then all threads add the slots of these rows
 *
 * One token whose rows of x begin at multiples of 16 bytes has kernels of its own (L::ONE, by the type of the list):
 * no list of pairs, no x in global memory or at odd addresses, no division by slots. Most of the code runs once, so
 * that its length counts: it is a third shorter.
 *
 * Results wait in shared memory. A barrier (named 1 + team for gate_up) orders their writes before their reads. Those
 * of gate_up have two buffers, so that it orders the reads of one before its next writes too; down has a second
 * barrier. */
#ifndef RIDGE_BLOCKS_EXPERTS_CUH
#define RIDGE_BLOCKS_EXPERTS_CUH

#include "expert_copies.cuh"

/* ------------------------------------------------------------------------------------------------------------- sums */

/* Sums of a chain. Of one token those of the run and row that a lane owns, in each tile of the product: chains are
 * written as they end. Of several [run][as the D operand has them], and of the chains before it. */
template <int COLUMNS> struct expert_sums {
    float v[2][4];
    float all[4], last[4];
};
template <> struct expert_sums<1> {
    float v[2];
};

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

/* Parts of a result: the chains, or the shares. */
template <int COLUMNS> static __device__ __forceinline__ int expert_parts(const block_expert_args &a)
{
    return COLUMNS == 1 ? 4 : a.split;
}

/* Where a part of a product's tile n of gate_up lies, [part][gate, up][column][32 rows], or of down,
 * [pair][part][rows]. */
template <int COLUMNS, int SIDE, int DOWN, class L>
static __device__ __forceinline__ float *expert_part(const block_expert_args &a, const L *list, const expert_state *at,
                                                     int column, int part, int n, float *results)
{
    const int product = expert_warp_of<0, SIDE>(a).product, up = SIDE == 2 ? n : product >> 1;

    if (DOWN)
        return results + at->now.to +
               (list->pair[at->now.pos.entry][column] * expert_parts<COLUMNS>(a) + part) * BLOCK_ROWS;
    return results + at->now.to + ((part * 2 + up) * COLUMNS + column) * 32 + (product & 1) * BLOCK_ROWS;
}

/* Ends a chain. */
template <int SIDE, int DOWN, class L>
static __device__ __forceinline__ void expert_end_chain(const block_expert_args &a, const L *list,
                                                        const expert_state *at, int chain, expert_sums<1> *s,
                                                        float *results)
{
    const expert_warp w = expert_warp_of<DOWN, SIDE>(a);

#pragma unroll
    for (int n = 0; n < SIDE; n++)
        expert_part<1, SIDE, DOWN>(a, list, at, 0, chain, n, results)[block_own_row(w.lane)] =
            s->v[n] + __shfl_xor_sync(~0u, s->v[n], 2);
    expert_clear(s);
}

/* (0 + 1) + (2 + 3), written with the last one. */
template <int SIDE, int DOWN, class L>
static __device__ __forceinline__ void expert_end_chain(const block_expert_args &a, const L *list,
                                                        const expert_state *at, int chain, expert_sums<8> *s,
                                                        float *results)
{
    const expert_warp w = expert_warp_of<DOWN, SIDE>(a);
    const int i = chain & (a.own - 1);

#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int column = 2 * (w.lane % 4) + (e & 1);
        const float v = s->v[0][e] + s->v[1][e];

        if (i == 0)
            s->all[e] = v;
        else if (i == 1)
            s->all[e] += v;
        else if (i == 2)
            s->last[e] = v;
        else
            s->all[e] += s->last[e] + v;
        if (i == a.own - 1 && (!DOWN || column < list->count[at->now.pos.entry]))
            expert_part<8, SIDE, DOWN>(a, list, at, column, w.share, 0, results)[w.lane / 4 + 8 * (e >> 1)] = s->all[e];
    }
    expert_clear(s);
}

/* A result: its parts are `pitch` floats apart. */
template <int COLUMNS>
static __device__ __forceinline__ float expert_result(const block_expert_args &a, const float *from, int pitch)
{
    float v = from[0];

    if (COLUMNS == 1 || a.split > 1)
        v += from[pitch];
    if (COLUMNS == 1 || a.split > 2)
        v += from[2 * pitch] + from[3 * pitch];
    return v;
}

/* ----------------------------------------------------------------------------------------------------------- results
 */

/* gate_up: the warps of a team store the entry's pairs. One pair is stored by a warp of another number in each team:
 * those of one number share a scheduler. */
template <int COLUMNS, int SIDE, class L>
static __device__ __forceinline__ void expert_store_slots(const block_expert_args &a, const L *list,
                                                          const expert_pos &at, const float *results)
{
    const expert_warp w = expert_warp_of<0, SIDE>(a);
    const int expert = list->expert[at.entry], count = list->count[at.entry];
    const int row = at.step * 2 * BLOCK_ROWS, team = EXPERT_TEAM(SIDE) * a.split;
    const int mine = w.product * a.split + w.share;

    for (int column = COLUMNS == 1 ? mine ^ (w.team & (team - 1)) : mine; column < count; column += team) {
        const float *from = results + column * 32 + w.lane;
        const int pair = list->pair[at.entry][column], pitch = 2 * COLUMNS * 32;
        const int bias = min(row + w.lane, (int)a.p.rows - 1);
        const float gate = moe_bias(a.p.weight[0], expert, bias, expert_result<COLUMNS>(a, from, pitch));
        const float up = moe_bias(a.p.weight[1], expert, bias, expert_result<COLUMNS>(a, from + COLUMNS * 32, pitch));

        moe_store_slot(a.p, L::ONE ? 0 : pair / a.p.slots, L::ONE ? pair : pair % a.p.slots, row,
                       moe_swiglu_inline(a.p.act, gate, up, a.p.swiglu));
    }
}

/* down: the results of the steps from `first` on are [step][pair][part][rows]; a thread has a row of a token. Slots
 * without an expert add nothing, whatever lies there. */
template <int COLUMNS, class L>
static __device__ __forceinline__ void expert_store_sums(const block_expert_args &a, const L *list, int first,
                                                         int steps, const float *results)
{
    const int tokens = L::ONE ? 1 : a.p.tokens;

    for (int i = threadIdx.x; i < BLOCK_ROWS * tokens * steps; i += (int)blockDim.x) {
        const int r = i % BLOCK_ROWS, step = i / BLOCK_ROWS / tokens, token = i / BLOCK_ROWS % tokens;
        const int row = expert_tile(first + step) * BLOCK_ROWS + r;
        float sum = 0.0f;

        if (row >= a.p.rows)
            continue;
#pragma unroll 4
        for (int slot = 0; slot < a.p.slots; slot++) {
            const int pair = token * a.p.slots + slot, expert = ((const int *)list->ids)[pair];
            const float *from = results + step * a.results + pair * expert_parts<COLUMNS>(a) * BLOCK_ROWS + r;
            const float v = expert_result<COLUMNS>(a, from, BLOCK_ROWS);

            if (expert >= 0)
                sum = __fmaf_rn(list->weight[pair], moe_bias(a.p.weight[0], expert, row, v), sum);
        }
        moe_store_sum(a.p, token, row, sum);
    }
}

/* gate_up: slots without an expert, which no entry stores. */
template <class L> static __device__ __forceinline__ void expert_store_rest(const block_expert_args &a, const L *list)
{
    const int warps = (int)gridDim.x * a.warps, warp = (int)blockIdx.x + threadIdx.x / 32 * gridDim.x;

    if (L::ONE && list->entries == a.p.slots) /* there is none */
        return;
    for (int pair = 0; pair < a.p.tokens * a.p.slots; pair++)
        if (((const int *)list->ids)[pair] < 0)
            for (int step = warp; step < a.works; step += warps)
                moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, step * 2 * BLOCK_ROWS, 0.0f);
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* A unit of each of the product's tiles; x: where the records of the entry's pairs for it lie (expert_x). */
template <class F, int SIDE>
static __device__ __forceinline__ void expert_unit(const char *unit, const char *tables, const char *records,
                                                   const uint32_t *x, int lane, const uint32_t *column,
                                                   expert_sums<1> *s)
{
    if constexpr (SIDE == 2)
        block_units_1<F, 2, BLOCK_PITCH(F::UNIT)>(unit, tables, records + x[0], lane, s->v);
    else
        block_unit_1<F>(unit, tables, records + x[0], lane, column, s->v);
}

template <class F, int SIDE>
static __device__ __forceinline__ void expert_unit(const char *unit, const char *tables, const char *records,
                                                   const uint32_t *x, int lane, const uint32_t *, expert_sums<8> *s)
{
    block_units_8<F, 1, 0, 1, BLOCK_X_OWN>(
        unit, tables, NULL, block_x_at{records + x[0], {records + x[1], records + x[2]}}, 0, lane, &s->v);
}

/* Where the records of the pair in column `column` of an entry begin, of the first one beyond the last. */
template <class F, int DOWN, class L>
static __device__ __forceinline__ uint32_t expert_x(const block_expert_args &a, const L *list, int entry, int column)
{
    const int pair = list->pair[entry][column < list->count[entry] ? column : 0];
    const int row = DOWN ? pair : L::ONE || a.p.tokens == 1 ? 0 : pair / a.p.slots;

    return (uint32_t)(row * a.x.units * BLOCK_RECORD_1(F::X));
}

/* A share of the product at->now. */
template <class F, int COLUMNS, int DOWN, class L>
static __device__ __forceinline__ void expert_product(const block_expert_args &a, const L *list, const uint32_t *column,
                                                      const char *memory, expert_ring *ring, expert_state *at,
                                                      float *results)
{
    enum { SIDE = EXPERT_SIDE(F, COLUMNS, DOWN), STAGE = SIDE * BLOCK_PITCH(F::UNIT) };
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int entry = at->now.pos.entry;
    int unit = expert_warp_of<DOWN, SIDE>(a).share * a.own;
    uint32_t x[3] = {};
    expert_sums<COLUMNS> s;

    if (COLUMNS > 1)
#pragma unroll
        for (int k = 0; k < 3; k++)
            x[k] = expert_x<F, DOWN>(a, list, entry, k ? 2 * t + k - 1 : lane / 4);

    expert_clear(&s);
    do { /* a chain */
#pragma unroll 1
        for (; unit < a.x.units; unit += 4) {
            char *const stage = ring->stages + ring->at * STAGE;
            const uint32_t bar = ring->bars + 8 * (uint32_t)ring->at;
            const uint32_t skip = (uint32_t)(unit * BLOCK_RECORD_1(F::X));
            const uint32_t own_x[3] = {(COLUMNS == 1 ? at->now.x : x[0]) + skip, x[1] + skip, x[2] + skip};
            const int last = (ring->at ? ring->at : a.x.depth) - 1; /* the stage before */

            __syncwarp(); /* all lanes have read it before it is written again */
            expert_copy<F, COLUMNS, DOWN>(a, list, &at->next, ptx_shared(ring->stages + last * STAGE),
                                          ring->bars + 8 * (uint32_t)last);
            block_wait<EXPERT_BULK(COLUMNS)>(bar, ring->phase, a.x.depth);
            if (!L::ONE && a.x.records) /* two calls, so that each is compiled for its kind of memory */
                expert_unit<F, SIDE>(stage, memory, a.x.records, own_x, lane, column, &s);
            else
                expert_unit<F, SIDE>(stage, memory, memory + F::TABLES, own_x, lane, column, &s);
            if (++ring->at == a.x.depth) {
                ring->at = 0;
                ring->phase ^= 1;
            }
        }
        expert_end_chain<SIDE, DOWN>(a, list, at, unit & 3, &s, results);
        unit = (unit & 3) + 1;
    } while (unit & (a.own - 1));
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

/* From any address. The loop is for those that are no multiples of eight: without it, or with predicates in its place,
 * what follows would wait for the loads. */
template <bool ONE>
static __device__ __forceinline__ uint2 expert_load_codes(const block_expert_args &a, const char *from)
{
    uint2 codes = make_uint2(0, 0);

    if (ONE || a.x.vector_x)
        return *(const uint2 *)from;
#pragma unroll 1
    for (int i = 7; i >= 0; i--)
        codes = make_uint2(codes.x << 8 | (uint8_t)from[i], __funnelshift_l(codes.x, codes.y, 8));
    return codes;
}

template <bool ONE>
static __device__ __forceinline__ expert_piece expert_load_x(const block_expert_args &a, const expert_record &r)
{
    const int u = r.unit * 32 + (int)threadIdx.x % 32;
    expert_piece x = {make_uint2(0, 0), 0.0f};

    if (r.token < (ONE ? 1 : a.p.tokens) && u / 4 < a.x.blocks) {
        x.codes = expert_load_codes<ONE>(a, (const char *)a.x.x + r.token * a.x.x_stride + r.slot * a.x.x_slot + u * 8);
        x.xs = a.x.x_scales[r.token * a.x.x_ld + r.slot * a.x.x_slot_ld + u / 4];
    }
    return x;
}

/* The first records of a warp are requested before the list is made and written behind the requests of weights; the
 * others follow at once. */
enum { EXPERT_HELD = 2 };

template <class F, bool ONE>
static __device__ __forceinline__ void expert_write_x(const block_expert_args &a, char *to, expert_record next,
                                                      const expert_piece *first)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = a.x.units * a.x.tokens;
    expert_piece held[EXPERT_HELD];

#pragma unroll
    for (int i = 0; i < EXPERT_HELD; i++)
        held[i] = first[i];
    for (int r = warp; r < all;) {
#pragma unroll
        for (int i = 0; i < EXPERT_HELD; i++, r += a.warps)
            if (r < all)
                block_write_x<F, 1>(to + r * BLOCK_RECORD_1(F::X), lane / 4, 0, lane % 4, held[i].codes, held[i].xs);
        if (r < all)
#pragma unroll
            for (int i = 0; i < EXPERT_HELD; i++) {
                held[i] = expert_load_x<ONE>(a, next);
                expert_skip(a, &next, a.warps);
            }
    }
}

template <class F, int COLUMNS, class L>
static __device__ __forceinline__ void expert_gate_up(const block_expert_args &a, const L *list, const char *memory,
                                                      expert_ring *ring, expert_state *at, float *results)
{
    enum { SIDE = EXPERT_SIDE(F, COLUMNS, 0) };
    expert_pos pos = expert_begin<0, SIDE>(a);
    uint32_t column[8];

    block_columns(threadIdx.x % 32, column);
    for (int to = 2 * expert_warp_of<0, SIDE>(a).team * a.results; expert_find<0, SIDE>(a, list, &pos);) {
        const int team = expert_warp_of<0, SIDE>(a).team;

        expert_keep<EXPERT_BULK(COLUMNS)>(&at->now, expert_now{pos, to, expert_x<F, 0>(a, list, pos.entry, 0)});
        expert_product<F, COLUMNS, 0>(a, list, column, memory, ring, at, results);
        pos = at->now.pos;
        to = at->now.to;
        ptx_barrier_sync(1 + team, 32 * EXPERT_TEAM(SIDE) * a.split);
        expert_store_slots<COLUMNS, SIDE>(a, list, pos, results + to);
        expert_advance<0, SIDE>(a, &pos);
        to = (4 * team + 1) * a.results - to; /* the team's other buffer */
    }
}

template <class F, int COLUMNS, class L>
static __device__ __forceinline__ void expert_down(const block_expert_args &a, const L *list, const char *memory,
                                                   expert_ring *ring, expert_state *at, float *results)
{
    expert_pos pos = expert_begin<1, 1>(a);
    uint32_t column[8];

    block_columns(threadIdx.x % 32, column);
    for (int first = 0; first < expert_steps(a); first += a.batch) {
        while (expert_find<1, 1>(a, list, &pos) && pos.step < first + a.batch) {
            expert_keep<EXPERT_BULK(COLUMNS)>(
                &at->now, expert_now{pos, (pos.step - first) * a.results, expert_x<F, 1>(a, list, pos.entry, 0)});
            expert_product<F, COLUMNS, 1>(a, list, column, memory, ring, at, results);
            pos = at->now.pos;
            expert_advance<1, 1>(a, &pos);
        }
        __syncthreads(); /* the batch's results are written before they are read */
        expert_store_sums<COLUMNS>(a, list, first, min(a.batch, expert_steps(a) - first), results);
        if (first + a.batch < expert_steps(a))
            __syncthreads(); /* and read before the next ones are written */
    }
}

template <class F, int COLUMNS, int DOWN, class L>
static __device__ __forceinline__ void expert_products(const block_expert_args &a)
{
    extern __shared__ __align__(128) char shared[];
    uint32_t base = ptx_shared(shared);

    asm volatile("" : "+r"(base)); /* or it would be made anew for every unit */

    char *const memory = (char *)__cvta_shared_to_generic(base);
    L *const list = (L *)(memory + a.at_list);
    expert_state own, *const at =
                          EXPERT_BULK(COLUMNS) ? (expert_state *)(memory + a.at_states) + threadIdx.x / 32 : &own;
    expert_ring ring = {memory + a.x.at_ring +
                            threadIdx.x / 32 * a.x.depth * EXPERT_SIDE(F, COLUMNS, DOWN) * BLOCK_PITCH(F::UNIT),
                        EXPERT_BULK(COLUMNS) ? ptx_shared(at->bars) : 0, 0, 0};
    float *const results = (float *)(memory + a.at_results);
    const bool early = DOWN && a.p.weights_const, records = !L::ONE && a.x.records;
    const uint32_t table = block_load_table(F());
    expert_piece held[EXPERT_HELD];
    expert_record next = {0, 0, 0};
    int count = 0;

    if (EXPERT_BULK(COLUMNS)) {
        if (threadIdx.x % 32 < a.x.depth)
            ptx_mbarrier_init(ring.bars + 8 * (threadIdx.x % 32), 1);
        ptx_mbarrier_fence_init();
    }
    if (!records)
        expert_skip(a, &next, threadIdx.x / 32);
    /* Constant weights of down are requested by the ids as they are before the kernels in front have ended, which a
     * router has long written. If they have changed, all begins again. */
    for (int again = early; again >= 0; again--) {
        int id = -1;

        if (!again)
            ptx_grid_dependency_wait();
        if constexpr (L::ONE) /* in front of the loads of x */
            id = moe_load_id_1(a.p);
        if (!again) {
            if (!records)
#pragma unroll
                for (int k = 0; k < EXPERT_HELD; k++) {
                    held[k] = expert_load_x<L::ONE>(a, next);
                    expert_skip(a, &next, a.warps);
                }
            if (early) {
                if (moe_list_holds(a.p, list))
                    break;
                expert_drop<EXPERT_BULK(COLUMNS)>(a, count, &ring);
            }
        }
        expert_keep<EXPERT_BULK(COLUMNS)>(&at->next, expert_first<DOWN, EXPERT_SIDE(F, COLUMNS, DOWN)>(a));
        if constexpr (L::ONE)
            moe_make_list_1(a.p, id, list);
        else
            moe_make_list(a.p, list, COLUMNS);
        count = expert_fill<F, COLUMNS, DOWN>(a, list, &at->next, ring);
    }
    ptx_launch_dependents(); /* behind the first loads, which it would delay */
    block_store_table(F(), memory, table);
    if (!records)
        expert_write_x<F, L::ONE>(a, memory + F::TABLES, next, held);
    if (DOWN)
        moe_keep_weights(a.p, list);
    __syncthreads(); /* orders the writes of x and of tables before their reads */
    if constexpr (DOWN) {
        expert_down<F, COLUMNS>(a, list, memory, &ring, at, results);
    } else {
        expert_gate_up<F, COLUMNS>(a, list, memory, &ring, at, results);
        expert_store_rest(a, list);
    }
}

template <class F, int COLUMNS, int DOWN, int PAIRS>
static __global__ void
    __launch_bounds__(32 * EXPERT_WARPS(COLUMNS, EXPERT_SIDE(F, COLUMNS, DOWN), EXPERT_BULK(COLUMNS), F::X), 1)
        block_experts(const __grid_constant__ block_expert_args a)
{
    expert_products<F, COLUMNS, DOWN, moe_list_of<PAIRS>>(a);
}

#endif
