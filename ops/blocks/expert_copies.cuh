/* expert_copies.cuh: of experts.cuh: the arguments, which products a warp has, and how it copies their weights. */
#ifndef RIDGE_BLOCKS_EXPERT_COPIES_CUH
#define RIDGE_BLOCKS_EXPERT_COPIES_CUH

#include "mma.cuh"
#include "ops/moe/args.cuh"
#include "ops/moe/list.cuh"

/* Warps of a CTA: as many as registers allow; x: as in F::X. Products of a team of gate_up: 32 rows. */
#define EXPERT_BULK(columns) ((columns) == 1 && BLOCK_HAS_BULK)
#define EXPERT_WARPS(columns, bulk, x) ((columns) > 1 ? 8 : !(bulk) ? 16 : (x) == BLOCK_X_START_16 ? 20 : 24)
enum { EXPERT_TEAM = 4 };
/* Bytes of a stage: bulk copies want multiples of 128. */
#define EXPERT_STAGE(unit) (((unit) + 127) / 128 * 128)

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

template <int DOWN> static __device__ __forceinline__ expert_warp expert_warp_of(const block_expert_args &a)
{
    int thread = (int)threadIdx.x;

    asm volatile("" : "+r"(thread));

    const int warp = thread / 32, product = warp >> (a.split >> 1), share = warp & (a.split - 1);

    if (DOWN)
        return {thread % 32, share, 0, product};
    return {thread % 32, share, product % EXPERT_TEAM, product / EXPERT_TEAM};
}

/* down: how many steps this CTA has. */
static __device__ __forceinline__ int expert_steps(const block_expert_args &a)
{
    return a.steps + ((int)blockIdx.x < a.more);
}

template <int DOWN> static __device__ __forceinline__ expert_pos expert_begin(const block_expert_args &a)
{
    const expert_warp w = expert_warp_of<DOWN>(a);

    return DOWN ? expert_pos{0, w.team} : expert_pos{(int)blockIdx.x + w.team * (int)gridDim.x, 0};
}

/* Goes to the next position that is one of a product; false: there is none. */
template <int DOWN>
static __device__ __forceinline__ bool expert_find(const block_expert_args &a, const moe_list *list, expert_pos *at)
{
    const int entries = list->entries;

    if constexpr (DOWN) {
        for (; entries && at->entry >= entries; at->entry -= entries)
            at->step++;
        return entries && at->step < expert_steps(a);
    } else {
        for (; at->step >= a.works; at->step -= a.works)
            at->entry++;
        return expert_warp_of<DOWN>(a).team < a.teams && at->entry < entries;
    }
}

template <int DOWN> static __device__ __forceinline__ void expert_advance(const block_expert_args &a, expert_pos *at)
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
    expert_pos at;
    int unit; /* -1: all are copied */
    const uint8_t *from;
} expert_loader;

/* What a warp computes, and where its results begin, in floats. */
typedef struct expert_now {
    expert_pos pos;
    int to;
} expert_now;

/* Where a warp is. By bulk copies it lies in shared memory, since 80 registers do not have room for it; the first lane
 * writes it, and lanes wait for each other around that. */
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

template <int DOWN> static __device__ __forceinline__ expert_loader expert_first(const block_expert_args &a)
{
    return {expert_begin<DOWN>(a), expert_warp_of<DOWN>(a).share * a.own < a.x.units ? a.x.units : -1, NULL};
}

/* Goes to the first unit of the next product. A tile behind the last is the last one again. */
template <int DOWN>
static __device__ __forceinline__ void expert_seek(const block_expert_args &a, const moe_list *list, int unit_bytes,
                                                   expert_loader *l)
{
    const expert_warp w = expert_warp_of<DOWN>(a);
    const moe_weight &m = a.p.weight[DOWN ? 0 : w.product >> 1];

    l->unit = -1;
    if (expert_find<DOWN>(a, list, &l->at)) {
        const int tile = DOWN ? expert_tile(l->at.step) : 2 * l->at.step + (w.product & 1);

        l->unit = w.share * a.own;
        l->from = (const uint8_t *)m.data + list->expert[l->at.entry] * m.stride +
                  min(tile, a.tiles - 1) * a.tile_bytes + l->unit * unit_bytes;
        expert_advance<DOWN>(a, &l->at);
    }
}

/* Copies the next unit of this warp into a stage; false: there is none. */
template <class F, int COLUMNS, int DOWN>
static __device__ __forceinline__ bool expert_copy(const block_expert_args &a, const moe_list *list, expert_loader *own,
                                                   uint32_t stage, uint32_t bar)
{
    expert_loader l = *own;
    bool copies;

    if (l.unit >= a.x.units)
        expert_seek<DOWN>(a, list, F::UNIT, &l);
    copies = l.unit >= 0;
    if (copies) {
        const int next = expert_next_unit(a, l.unit);

        block_copy_unit<F, EXPERT_BULK(COLUMNS)>(l.from, F::SMALL && a.x.tail && l.unit == a.x.units - 1, stage, bar,
                                                 threadIdx.x % 32);
        l.from += (next - l.unit) * F::UNIT;
        l.unit = next;
    }
    expert_keep<EXPERT_BULK(COLUMNS)>(own, l);
    if (!EXPERT_BULK(COLUMNS))
        mma_copy_commit();
    return copies;
}

/* Copies the first units, one a stage. How many there are. */
template <class F, int COLUMNS, int DOWN>
static __device__ __forceinline__ int expert_fill(const block_expert_args &a, const moe_list *list, expert_loader *l,
                                                  const expert_ring &ring)
{
    int count = 0;

#pragma unroll 1
    for (int i = 0; i < a.x.depth; i++)
        count += expert_copy<F, COLUMNS, DOWN>(a, list, l, ptx_shared(ring.stages + i * EXPERT_STAGE(F::UNIT)),
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

            if (i >= count && ptx_elect())
                ptx_mbarrier_expect(bar, 0);
            ptx_mbarrier_wait(bar, 0);
        }
        ring->phase = 1;
    } else {
        mma_copy_wait_for<0>();
    }
}

#endif
