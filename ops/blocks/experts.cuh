/* experts.cuh: moe_gate_up_swiglu and moe_down with weights in block formats: the main loop of mma.cuh on the tiles of
 * the experts that a list names (ops/moe/list.cuh), sm_80 up, with copies by cp.async.
 *
 * A CTA has four teams. A product is a tile of 16 rows of an entry of the list; its columns are the entry's pairs of
 * token and slot: eight, or one where there is one token. Copies go on from one product into the next.
 *
 *     gate_up  two teams have 32 rows of an entry, each a tile of gate and then of up, so that the rows can become a
 *              block of codes
 *     down     the CTA has a tile of all entries, which its teams share out; their results wait in shared memory for
 *              the weighted sums
 *
 * Named barrier 1 + team orders a product's partial sums before their reads. The sums have two buffers, so that it
 * orders the reads of a product before the writes of the one after the next too; so have the results, whose barrier is
 * that of two teams (5 and 6) or of the CTA. */
#ifndef RIDGE_BLOCKS_EXPERTS_CUH
#define RIDGE_BLOCKS_EXPERTS_CUH

#include "mma.cuh"
#include "ops/moe/args.cuh"
#include "ops/moe/list.cuh"

enum { EXPERT_TEAMS = 4, EXPERT_THREADS = EXPERT_TEAMS * BLOCK_TEAM };

static_assert((int)EXPERT_THREADS == (int)MOE_PAIRS, "a thread a pair of the list");

typedef struct block_expert_args {
    moe_args p;
    block_mma_args x; /* x, units, depth */
    int tiles, works; /* of 16 rows; of a matrix: tiles of down, 32 rows of gate_up */
    int results;      /* floats of one buffer */
    int64_t tile_bytes;
    uint32_t at_list, at_results;
} block_expert_args;

/* A team's products, one after another: `sub` is the weight of gate_up, the entry of down. */
typedef struct expert_pos {
    int work, sub;
} expert_pos;

static __device__ __forceinline__ expert_pos expert_begin(const block_expert_args &a, int team)
{
    if (a.p.down)
        return {(int)blockIdx.x, team};
    return {(int)blockIdx.x + team / 2 * (int)gridDim.x, 0};
}

static __device__ __forceinline__ int expert_step(const block_expert_args &a)
{
    return (a.p.down ? 1 : 2) * (int)gridDim.x;
}

static __device__ __forceinline__ int expert_entry(const block_expert_args &a, expert_pos at)
{
    return a.p.down ? at.sub : at.work / a.works;
}

/* The first row of a product's tile, which may lie behind the last one. */
static __device__ __forceinline__ int expert_row(const block_expert_args &a, expert_pos at, int team)
{
    return BLOCK_ROWS * (a.p.down ? at.work : 2 * (at.work % a.works) + (team & 1));
}

/* ---------------------------------------------------------------------------------------------------------- weights */

typedef struct expert_loader {
    expert_pos at;
    int left;
    const uint8_t *from;
} expert_loader;

template <class F>
static __device__ __forceinline__ void expert_seek(const block_expert_args &a, const moe_list *list, expert_loader *l,
                                                   int team, int part)
{
    const moe_weight &w = a.p.weight[a.p.down ? 0 : l->at.sub];
    const int tile = min(expert_row(a, l->at, team) / BLOCK_ROWS, a.tiles - 1);

    l->from = (const uint8_t *)w.data + list->expert[expert_entry(a, l->at)] * w.stride + tile * a.tile_bytes +
              part * F::UNIT;
}

/* Copies the next unit of this warp into a stage and advances. */
template <class F>
static __device__ __forceinline__ void expert_copy(const block_expert_args &a, const moe_list *list, expert_loader *l,
                                                   uint32_t stage, int team, int part, int lane, int mine, int works,
                                                   int subs)
{
    if (l->at.work < works) {
        block_copy_unit<F, 0>(l->from, F::SMALL && a.x.tail && l->left == 1 && (a.x.units - 1) % 4 == part, stage, 0,
                              lane);
        l->from += 4 * F::UNIT;
        if (--l->left == 0) {
            l->left = mine;
            l->at.sub += a.p.down ? EXPERT_TEAMS : 1;
            if (l->at.sub >= subs) {
                l->at.sub = a.p.down ? team : 0;
                l->at.work += expert_step(a);
            }
            if (l->at.work < works)
                expert_seek<F>(a, list, l, team, part);
        }
    }
    mma_copy_commit();
}

/* ----------------------------------------------------------------------------------------------------------- results
 */

/* Adds the partitions of a product: down has results as [pair][row], gate_up those of its two teams as [column][row];
 * the thread that writes a row of gate is the one that reads it with up. */
template <int COLUMNS>
static __device__ __forceinline__ void expert_finish(const block_expert_args &a, const moe_list *list, expert_pos at,
                                                     int team, const float *sums, float *results)
{
    const int entry = expert_entry(a, at), count = list->count[entry], expert = list->expert[entry];
    const int first = expert_row(a, at, team);

    for (int i = threadIdx.x % BLOCK_TEAM; i < count * BLOCK_ROWS; i += BLOCK_TEAM) {
        const int r = i % BLOCK_ROWS, column = i / BLOCK_ROWS;
        float y, *to;

        if (first + r >= a.p.rows)
            continue;
        y = moe_bias(a.p.weight[a.p.down ? 0 : at.sub], expert, first + r, block_read_sum<COLUMNS>(sums, column, r));
        if (a.p.down) {
            results[list->pair[entry][column] * BLOCK_ROWS + r] = y;
        } else {
            to = results + column * 2 * BLOCK_ROWS + (team & 1) * BLOCK_ROWS + r;
            *to = at.sub ? moe_swiglu(a.p.act, *to, y, a.p.swiglu) : y;
        }
    }
}

/* gate_up: warp w of two teams stores 32 rows of the entry's pair w. */
static __device__ __forceinline__ void expert_store_slots(const block_expert_args &a, const moe_list *list, int work,
                                                          const float *results)
{
    const int entry = work / a.works, column = threadIdx.x / 32 % 8;

    if (column < list->count[entry]) {
        const int pair = list->pair[entry][column];

        moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, work % a.works * 2 * BLOCK_ROWS,
                       results[column * 2 * BLOCK_ROWS + threadIdx.x % 32]);
    }
}

/* down: a thread has a row of a token. */
static __device__ __forceinline__ void expert_store_sums(const block_expert_args &a, const moe_list *list, int tile,
                                                         const float *results)
{
    for (int i = threadIdx.x; i < BLOCK_ROWS * a.p.tokens; i += EXPERT_THREADS) {
        const int token = i / BLOCK_ROWS, r = i % BLOCK_ROWS, row = tile * BLOCK_ROWS + r;
        float sum = 0.0f;

        if (row >= a.p.rows)
            continue;
        for (int slot = 0; slot < a.p.slots; slot++)
            if (((const int *)list->ids)[token * a.p.slots + slot] >= 0)
                sum = __fmaf_rn(a.p.weights[token * a.p.weights_stride + slot],
                                results[(token * a.p.slots + slot) * BLOCK_ROWS + r], sum);
        moe_store_sum(a.p, token, row, sum);
    }
}

/* gate_up: slots without an expert, which no entry stores. */
static __device__ __forceinline__ void expert_store_rest(const block_expert_args &a, const moe_list *list)
{
    const int warps = (int)gridDim.x * (EXPERT_THREADS / 32), warp = (int)blockIdx.x + threadIdx.x / 32 * gridDim.x;

    for (int pair = 0; pair < a.p.tokens * a.p.slots; pair++)
        if (((const int *)list->ids)[pair] < 0)
            for (int tile = warp; tile < a.works; tile += warps)
                moe_store_slot(a.p, pair / a.p.slots, pair % a.p.slots, tile * 2 * BLOCK_ROWS, 0.0f);
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* One unit: the x of the entry's pairs, whose records begin at `records`. */
template <class F, int COLUMNS>
static __device__ __forceinline__ void expert_unit(const block_expert_args &a, const char *unit, const char *tables,
                                                   const char *records, const int *row, int at, int lane,
                                                   const uint32_t *column, float (*acc)[COLUMNS == 1 ? 1 : 4])
{
    const int64_t pitch = (int64_t)a.x.units * BLOCK_RECORD_1(F::X);
    const char *from = records + (int64_t)at * BLOCK_RECORD_1(F::X);

    if constexpr (COLUMNS == 1)
        block_unit_1<F>(unit, tables, from + row[0] * pitch, lane, column, &acc[0][0]);
    else
        block_unit_8<F, 1, 1>(unit, tables,
                              block_x_at{from + row[0] * pitch, {from + row[1] * pitch, from + row[2] * pitch}}, 0,
                              lane, acc);
}

/* The row of x of the pair in column `column` of an entry, of the first one beyond the last. */
static __device__ __forceinline__ int expert_x_row(const block_expert_args &a, const moe_list *list, int entry,
                                                   int column)
{
    const int pair = list->pair[entry][column < list->count[entry] ? column : 0];

    return a.p.down ? pair : pair / a.p.slots;
}

template <class F, int COLUMNS> static __device__ __forceinline__ void expert_product(const block_expert_args &a)
{
    extern __shared__ __align__(128) char memory[];
    enum { SUMS = RIDGE_Q8_0_PARTS * COLUMNS * BLOCK_ROWS };
    moe_list *const list = (moe_list *)(memory + a.at_list);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / 4, part = warp % 4;
    const int mine = (a.x.units - part + 3) / 4, step = expert_step(a);
    char *const ring = memory + a.x.at_ring + warp * a.x.depth * F::UNIT;
    float *const sums = (float *)(memory + a.x.at_sums) + team * 2 * SUMS;
    float *results = (float *)(memory + a.at_results) + (a.p.down ? 0 : team / 2 * 2 * a.results);
    expert_loader l = {expert_begin(a, team), mine, NULL};
    uint32_t column[4];
    int at = 0, count = 0, works, subs;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        column[j] = (lane >> 2 & 3) == j;
        asm("" : "+r"(column[j])); /* or the compiler makes selects of the products */
    }
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    moe_make_list(a.p, list, COLUMNS);
    works = a.works * (a.p.down ? 1 : list->entries);
    subs = a.p.down ? list->entries : 2;
    if (mine == 0 || l.at.sub >= subs)
        l.at.work = works;
    if (l.at.work < works)
        expert_seek<F>(a, list, &l, team, part);
    for (int i = 0; i < a.x.depth; i++)
        expert_copy<F>(a, list, &l, ptx_shared(ring + i * F::UNIT), team, part, lane, mine, works, subs);
    block_fill_tables(F(), memory);
    if (!a.x.records)
        block_make_records<F, 1>(a.x, memory + F::TABLES, (int)threadIdx.x, EXPERT_THREADS);
    if (!a.p.down)
        expert_store_rest(a, list);
    __syncthreads(); /* orders the writes of x and of tables before their reads */
    for (expert_pos w = expert_begin(a, team); w.work < works; w.work += step) {
        for (w.sub = a.p.down ? team : 0; w.sub < subs; w.sub += a.p.down ? EXPERT_TEAMS : 1, count++) {
            const int entry = expert_entry(a, w), t = lane % 4;
            const int row[3] = {expert_x_row(a, list, entry, COLUMNS == 1 ? 0 : lane / 4),
                                expert_x_row(a, list, entry, COLUMNS == 1 ? 0 : 2 * t),
                                expert_x_row(a, list, entry, COLUMNS == 1 ? 0 : 2 * t + 1)};
            float acc[2][COLUMNS == 1 ? 1 : 4] = {}, *const to = sums + (count & 1) * SUMS;

            for (int k = 0; k < mine; k++) {
                const char *unit = ring + at * F::UNIT;

                block_wait<0>(0, 0, a.x.depth);
                if (a.x.records) /* two calls, so that each is compiled for its kind of memory */
                    expert_unit<F, COLUMNS>(a, unit, memory, a.x.records, row, part + 4 * k, lane, column, acc);
                else
                    expert_unit<F, COLUMNS>(a, unit, memory, memory + F::TABLES, row, part + 4 * k, lane, column, acc);
                __syncwarp(); /* all lanes have read the stage before it is written again */
                expert_copy<F>(a, list, &l, ptx_shared(unit), team, part, lane, mine, works, subs);
                at = at + 1 == a.x.depth ? 0 : at + 1;
            }
            block_write_sums<COLUMNS>(to, part, lane, acc);
            ptx_barrier_sync(1 + team, BLOCK_TEAM);
            expert_finish<COLUMNS>(a, list, w, team, to, results);
        }
        if (a.p.down) {
            __syncthreads();
            expert_store_sums(a, list, w.work, results);
        } else {
            ptx_barrier_sync(5 + team / 2, 2 * BLOCK_TEAM);
            expert_store_slots(a, list, w.work, results);
        }
        results += (w.work / step & 1) ? -a.results : a.results;
    }
}

template <class F, int COLUMNS>
static __global__ void __launch_bounds__(EXPERT_THREADS, 1) block_experts(const __grid_constant__ block_expert_args a)
{
    expert_product<F, COLUMNS>(a);
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
        {BLOCK_TEAMS_OF(block_##name::X, 0), BLOCK_TEAMS_OF(block_##name::X, 1)},                                \
        {(const void *)block_experts<block_##name, 1>, (const void *)block_experts<block_##name, 8>}};

#endif
