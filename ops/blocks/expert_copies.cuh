/* expert_copies.cuh: of experts.cuh: the arguments, which products a warp has, and how it copies their weights. */
#ifndef RIDGE_BLOCKS_EXPERT_COPIES_CUH
#define RIDGE_BLOCKS_EXPERT_COPIES_CUH

#include "mma.cuh"
#include "ops/moe/args.cuh"
#include "ops/moe/list.cuh"

/* Tiles of a product, at most. Warps of a CTA: as many as registers allow; x: as in F::X. Products of a team of
 * gate_up: 32 rows. */
#define EXPERT_SIDE(F, columns, down) ((down) ? 1 : BLOCK_SIDE(F, columns, 0))
#define EXPERT_BULK(columns) ((columns) == 1 && BLOCK_HAS_BULK)
#define EXPERT_WARPS(columns, side, bulk, x) \
    ((columns) > 1 ? 8 : !(bulk) || (side) == 2 ? 16 : (x) == BLOCK_X_START_16 ? 20 : 24)
#define EXPERT_TEAM(side) ((side) == 2 ? 2 : 4)
typedef struct block_expert_args {
    moe_args p;
    block_mma_args x; /* x, units, depth */
    int tiles, works; /* of 16 rows; steps of 32 rows of gate_up, of 16 of down */
    int warps, teams; /* of a CTA; of down, products at once */
    int split, own;   /* of a product: 1, 2 or 4 warps; chains of a warp */
    int steps, more;  /* of down: each CTA has `steps`, the first `more` CTAs one more */
    int batch;        /* steps of down whose products are shared out together */
    int results;      /* floats of one buffer of a team of gate_up, of a step of down */
    int64_t tile_bytes;
    uint32_t at_list, at_states, at_results;
} block_expert_args;

/* ---------------------------------------------------------------------------------------------------------- products
 */

/* A warp's products, one after another: a step of rows of an entry. gate_up: of all; down: the steps are this CTA's. No
 * division: they would be a third of all instructions outside of the loop over units. */
typedef struct expert_pos {
    int step, entry;
} expert_pos;

/* What a warp is: which share of a product, and which product of its team. The thread's number is read again wherever
 * that is asked for: in registers, the answers would spill others. */
typedef struct expert_warp {
    int lane, share, product, team;
} expert_warp;

template <int DOWN, int SIDE> static __device__ __forceinline__ expert_warp expert_warp_of(const block_expert_args &a)
{
    unsigned thread = threadIdx.x;

    asm volatile("" : "+r"(thread));

    const unsigned warp = thread / 32, product = warp >> (a.split >> 1), team = DOWN ? 1 : EXPERT_TEAM(SIDE);

    return {(int)(thread % 32), (int)warp & (a.split - 1), (int)(product % team), (int)(product / team)};
}

/* down: how many steps this CTA has. */
static __device__ __forceinline__ int expert_steps(const block_expert_args &a)
{
    return a.steps + ((int)blockIdx.x < a.more);
}

template <int DOWN, int SIDE> static __device__ __forceinline__ expert_pos expert_begin(const block_expert_args &a)
{
    const expert_warp w = expert_warp_of<DOWN, SIDE>(a);

    return DOWN ? expert_pos{0, w.team} : expert_pos{(int)blockIdx.x + w.team * (int)gridDim.x, 0};
}

/* Goes to the next position that is one of a product; false: there is none. */
template <int DOWN, int SIDE, class L>
static __device__ __forceinline__ bool expert_find(const block_expert_args &a, const L *list, expert_pos *at)
{
    const int entries = list->entries;

    if constexpr (DOWN) {
        for (; entries && at->entry >= entries; at->entry -= entries)
            at->step++;
        return entries && at->step < expert_steps(a);
    } else {
        for (; at->step >= a.works; at->step -= a.works)
            at->entry++;
        return expert_warp_of<DOWN, SIDE>(a).team < a.teams && at->entry < entries;
    }
}

template <int DOWN, int SIDE>
static __device__ __forceinline__ void expert_advance(const block_expert_args &a, expert_pos *at)
{
    if (DOWN)
        at->entry += a.teams;
    else
        at->step += a.teams * (int)gridDim.x;
}

/* A step of this CTA's down in the weight: its tile. */
static __device__ __forceinline__ int expert_tile(int step)
{
    return (int)blockIdx.x + (int)gridDim.x * step;
}

/* The unit after `unit` in a share, which has `own` chains, from a multiple of that on; those behind the last: none. */
static __device__ __forceinline__ int expert_next_unit(const block_expert_args &a, int unit)
{
    const int chain = (unit & 3) + 1;

    if (unit + 4 < a.x.units)
        return unit + 4;
    return (chain & (a.own - 1)) && chain < a.x.units ? chain : a.x.units;
}

/* ---------------------------------------------------------------------------------------------------------- weights */

/* What a warp copies next: the unit, or where there are no more (a.x.units) those of the first product from `at` on. */
typedef struct expert_loader {
    const uint8_t *from[2]; /* the product's tiles */
    expert_pos at;
    int unit; /* -1: all are copied */
} expert_loader;

/* What a warp computes, where its results begin, in floats, and where the records of the entry's first pair do. */
typedef struct expert_now {
    expert_pos pos;
    int to;
    uint32_t x;
} expert_now;

/* Where a warp is. By bulk copies it lies in shared memory, since 80 registers do not have room for it. The lane that
 * copies reads and writes `next`; the first lane writes `now`, and lanes wait for each other around that. */
typedef struct expert_state {
    expert_loader next;
    expert_now now;
    uint64_t bars[BLOCK_MAX_DEPTH];
} expert_state;

template <int BULK, class T> static __device__ __forceinline__ void expert_keep(T *to, const T &from)
{
    if (BULK)
        __syncwarp(); /* all lanes have read the former */
    if (!BULK || threadIdx.x % 32 == 0)
        *to = from;
    if (BULK)
        __syncwarp(); /* the new one is there before it is read */
}

/* The stages of a warp, and their mbarriers; the next one's number and phase. */
typedef struct expert_ring {
    char *stages;
    uint32_t bars, phase;
    int at;
} expert_ring;

template <int DOWN, int SIDE> static __device__ __forceinline__ expert_loader expert_first(const block_expert_args &a)
{
    return {{NULL, NULL},
            expert_begin<DOWN, SIDE>(a),
            expert_warp_of<DOWN, SIDE>(a).share * a.own < a.x.units ? a.x.units : -1};
}

/* Goes to the first unit of the next product. A tile behind the last is the last one again. */
template <int DOWN, int SIDE, class L>
static __device__ __forceinline__ void expert_seek(const block_expert_args &a, const L *list, expert_loader *l)
{
    const expert_warp w = expert_warp_of<DOWN, SIDE>(a);
    expert_pos at = l->at;

    l->unit = -1;
    if (!expert_find<DOWN, SIDE>(a, list, &at))
        return;
#pragma unroll
    for (int n = 0; n < SIDE; n++) {
        const moe_weight &m = a.p.weight[DOWN ? 0 : SIDE == 2 ? n : w.product >> 1];
        const int tile = DOWN ? expert_tile(at.step) : 2 * at.step + (w.product & 1);

        l->from[n] =
            (const uint8_t *)m.data + list->expert[at.entry] * m.stride + min(tile, a.tiles - 1) * a.tile_bytes;
    }
    l->unit = w.share * a.own;
    expert_advance<DOWN, SIDE>(a, &at);
    l->at = at;
}

/* By one thread: units of N tiles to a stage. The last unit of a tile may lack its second run (block_copy_unit). */
template <class F, int N>
static __device__ __forceinline__ void expert_bulk(const uint8_t *const *from, bool tail, uint32_t stage, uint32_t bar)
{
    const uint32_t codes = tail ? F::CODES / 2 : F::CODES, rest = F::UNIT - F::CODES;

    ptx_mbarrier_expect(bar, N * (codes + rest));
#pragma unroll
    for (int n = 0; n < N; n++) {
        block_bulk(stage + n * BLOCK_PITCH(F::UNIT), from[n], tail ? codes : F::UNIT, bar);
        if (tail)
            block_bulk(stage + n * BLOCK_PITCH(F::UNIT) + F::CODES, from[n] + codes, rest, bar);
    }
}

/* Copies the next unit of this warp, or two of as many tiles, into a stage; false: there is none. By bulk copies one
 * thread calls it, else all of the warp. */
template <class F, int COLUMNS, int DOWN, class L>
static __device__ __forceinline__ bool expert_copy_next(const block_expert_args &a, const L *list, expert_loader *l,
                                                        uint32_t stage, uint32_t bar)
{
    enum { SIDE = EXPERT_SIDE(F, COLUMNS, DOWN), BULK = EXPERT_BULK(COLUMNS) };
    int unit = l->unit;

    if (unit >= a.x.units) {
        expert_seek<DOWN, SIDE>(a, list, l);
        unit = l->unit;
    }
    if (unit >= 0) {
        const bool tail = F::SMALL && a.x.tail && unit == a.x.units - 1;
        const uint8_t *const from[2] = {l->from[0] + unit * F::UNIT, SIDE == 2 ? l->from[1] + unit * F::UNIT : NULL};

        if constexpr (BULK)
            expert_bulk<F, SIDE>(from, tail, stage, bar);
        else
#pragma unroll
            for (int n = 0; n < SIDE; n++)
                block_copy_unit<F, 0>(from[n], tail, stage + n * BLOCK_PITCH(F::UNIT), bar, threadIdx.x % 32);
        l->unit = expert_next_unit(a, unit);
    }
    return unit >= 0;
}

template <class F, int COLUMNS, int DOWN, class L>
static __device__ __forceinline__ bool expert_copy(const block_expert_args &a, const L *list, expert_loader *l,
                                                   uint32_t stage, uint32_t bar)
{
    bool copies = false;

    if (!EXPERT_BULK(COLUMNS) || ptx_elect())
        copies = expert_copy_next<F, COLUMNS, DOWN>(a, list, l, stage, bar);
    if (!EXPERT_BULK(COLUMNS))
        mma_copy_commit();
    return copies;
}

/* Copies the first units, to all stages but one. How many there are, for those who copy them. */
template <class F, int COLUMNS, int DOWN, class L>
static __device__ __forceinline__ int expert_fill(const block_expert_args &a, const L *list, expert_loader *l,
                                                  const expert_ring &ring)
{
    int count = 0;

#pragma unroll 1
    for (int i = 0; i < a.x.depth - 1; i++)
        count += expert_copy<F, COLUMNS, DOWN>(
            a, list, l, ptx_shared(ring.stages + i * EXPERT_SIDE(F, COLUMNS, DOWN) * BLOCK_PITCH(F::UNIT)),
            ring.bars + 8 * (uint32_t)i);
    return count;
}

/* Waits for the first units, which are not wanted: their stages are written again. Of the mbarriers all go on to the
 * next phase, also those of stages that got nothing. */
template <int BULK>
static __device__ __forceinline__ void expert_drop(const block_expert_args &a, int count, expert_ring *ring)
{
    if constexpr (BULK) {
#pragma unroll 1
        for (int i = 0; i < a.x.depth; i++) {
            const uint32_t bar = ring->bars + 8 * (uint32_t)i;

            if (ptx_elect() && i >= count)
                ptx_mbarrier_expect(bar, 0);
            ptx_mbarrier_wait(bar, 0);
        }
        ring->phase = 1;
    } else {
        mma_copy_wait_for<0>();
    }
}

#endif
