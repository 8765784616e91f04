/* few.cuh: the kernel of products of up to 16 tokens with weights in block formats: teams, their tiles, the epilogue
 * (mma.cuh has the main loop). */
#ifndef RIDGE_BLOCKS_FEW_CUH
#define RIDGE_BLOCKS_FEW_CUH

#include "mma.cuh"

/* --------------------------------------------------------------------------------------------------------- epilogue */

/* Where partial sums of a tile lie: of one token [partition][row]; of several, the 32 of a warp for two tokens and 16
 * rows lie together, in an order in which neither writes nor reads meet one bank twice. */
template <int TOKENS> static __device__ __forceinline__ int block_sum_at(int part, int token, int r)
{
    const int pair = token >> 1 & 3, group = (token & 1) * 2 + (r >> 3);

    if (TOKENS == 1)
        return part * 16 + r;
    return (part * TOKENS + (token & ~7)) * 16 + pair * 32 + (pair ^ group) * 8 + (r & 7);
}

template <int TOKENS>
static __device__ __forceinline__ void block_write_sums(float *sums, int part, int lane,
                                                        const float (*acc)[TOKENS == 1 ? 1 : TOKENS / 2])
{
    const int g = lane / 4, t = lane % 4;

    if constexpr (TOKENS == 1) {
        sums[block_sum_at<1>(2 * part + (t >> 1), 0, g + 8 * (t & 1))] = acc[0][0];
    } else {
#pragma unroll
        for (int e = 0; e < TOKENS / 2; e++)
            sums[block_sum_at<TOKENS>(part, 8 * (e / 4) + 2 * t + (e & 1), g + 8 * (e >> 1 & 1))] =
                acc[0][e] + acc[1][e];
    }
}

template <int TOKENS> static __device__ __forceinline__ float block_read_sum(const float *sums, int token, int r)
{
    float part[BLOCK_PARTS(TOKENS)];

#pragma unroll
    for (int i = 0; i < BLOCK_PARTS(TOKENS); i++)
        part[i] = sums[block_sum_at<TOKENS>(i, token, r)];
    if constexpr (TOKENS == 1)
        return ridge_block_tree(part);
    else
        return (part[0] + part[1]) + (part[2] + part[3]) + 0.0f;
}

template <int TOKENS>
static __device__ __forceinline__ void block_store_tile(const block_mma_args &a, const float *sums, int work, int first)
{
    const bool second = !a.gate_up && work >= a.tiles;
    const block_weight &w = a.weight[second];
    const int tile = second ? work - a.tiles : work;

    for (int i = (threadIdx.x + first) % BLOCK_TEAM; i < a.tokens * BLOCK_ROWS; i += BLOCK_TEAM) {
        const int r = i % BLOCK_ROWS, row = tile * BLOCK_ROWS + r, token = i / BLOCK_ROWS;
        float y;

        if (row >= w.rows)
            continue;
        y = block_add_bias(w.bias, row, block_read_sum<TOKENS>(sums, token, r));
        if (a.gate_up) {
            const float up = block_add_bias(a.weight[1].bias, row,
                                            block_read_sum<TOKENS>(sums + BLOCK_PARTS(TOKENS) * TOKENS * 16, token, r));

            y = q8_0_swiglu(a.act, y, up, a.token_scale ? a.token_scale[token] : 1.0f, a.swiglu);
        } else if (a.residual) {
            y += block_residual(a, row, token);
        }
        block_store(a, w, row, token, y);
    }
}

/* ----------------------------------------------------------------------------------------------------------- kernel */

/* Sums of a tile: of one token the one that a lane owns, of several [run][as the D operand has them]. */
template <int TOKENS> struct block_acc {
    float v[2][TOKENS / 2];
};
template <> struct block_acc<1> {
    float v[1][1];
};

/* N units, PITCH bytes apart. */
template <class F, int N, int PITCH, int TOKENS, int RECORDS>
static __device__ __forceinline__ void block_units(const char *unit, const char *tables, char *hand, const char *record,
                                                   int64_t tile_stride, int lane, const uint32_t *column,
                                                   block_acc<TOKENS> *acc)
{
    if constexpr (TOKENS == 1 && N == 1)
        block_unit_1<F>(unit, tables, record, lane, column, &acc->v[0][0]);
    else if constexpr (TOKENS == 1)
        block_units_1<F, N, PITCH>(unit, tables, record, lane, &acc->v[0][0]);
    else
        block_units_8<F, N, PITCH, TOKENS / 8, RECORDS ? BLOCK_X_WORDS : BLOCK_X_MATRIX,
                      BLOCK_HANDS && !(RECORDS && F::X >= BLOCK_X_START_16)>(
            unit, tables, hand, block_x_at{record, {NULL, NULL}}, tile_stride, lane, &acc->v);
}

/* Stores two neighbouring tiles, the second if there is one: of one token at once. */
template <int TOKENS>
static __device__ __forceinline__ void block_store_two(const block_mma_args &a, const float *sums, int work, int first)
{
    const int side = (int)(threadIdx.x + first) % BLOCK_TEAM / BLOCK_ROWS;

    if constexpr (TOKENS == 1) {
        if (side < 2 && 2 * work + side < a.all)
            block_store_tile<1>(a, sums + side * RIDGE_Q8_0_PARTS * BLOCK_ROWS, 2 * work + side,
                                first + BLOCK_TEAM - side * BLOCK_ROWS);
    } else {
#pragma unroll 1
        for (int i = 0; i < 2 && 2 * work + i < a.all; i++)
            block_store_tile<TOKENS>(a, sums + i * BLOCK_PARTS(TOKENS) * TOKENS * 16, 2 * work + i, first);
    }
}

/* The partial sums of a team's tile. The thread's number is read again: in a register it would spill others. */
static __device__ __forceinline__ float *block_sums(const block_mma_args &a, char *memory, int tile_sums, int buffer)
{
    int thread = (int)threadIdx.x;

    asm volatile("" : "+r"(thread));
    return (float *)(memory + a.at_sums) + thread / BLOCK_TEAM * 2 * tile_sums + buffer;
}

/* Where a warp is: its ring of stages, or its team's, and their mbarriers, the stage that it reads next, and what it
 * copies next. A team has two mbarriers a stage: one that its bytes have arrived, and, BLOCK_READ bytes behind
 * it, one that the three other warps have read them. */
typedef struct block_ring {
    char *stages;
    uint32_t bars, parity;
    int at;
    bool copies;
    block_loader next;
} block_ring;

enum { BLOCK_READ = BLOCK_MAX_DEPTH * 8 };

/* All lanes have read the stage, which may be written again. A bulk copy could overtake their loads; behind a vote over
 * sums that depend on all that was loaded it cannot. No sum has the bits that are asked for, so that this is true. */
template <int BULK, int TOKENS, int SIDE>
static __device__ __forceinline__ bool block_has_read(const block_acc<TOKENS> *acc)
{
    if constexpr (BULK) {
        bool found = false; /* "or", so that a sum that is a constant drops out and the others stay */

#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int run = 0; run < (TOKENS > 1 ? 2 : 1); run++)
                found = found || __float_as_uint(acc[i].v[run][0]) == 0x7f800001;
        return !__any_sync(~0u, found);
    } else {
        __syncwarp();
        return true;
    }
}

/* Stages of weights that are requested before x, and so arrive before it; 0: all. */
#define BLOCK_EARLY(F, tokens) ((tokens) > 8 ? 0 : F::DEPTH / 2)

/* Bytes of a stage: of one token there is always room for two tiles. */
template <class F, int TOKENS, int BULK> static __device__ __forceinline__ int block_stage(const block_mma_args &a)
{
    enum { SIDE = BLOCK_SIDE(F, TOKENS, BULK), PITCH = BLOCK_PITCH(BLOCK_TOGETHER(F, TOKENS, BULK) * F::UNIT) };

    return SIDE == 2 && TOKENS > 1 ? a.stage : SIDE * PITCH;
}

/* Copies into a stage. */
template <class F, int TOKENS, int BULK>
static __device__ __forceinline__ void block_fill(const block_mma_args &a, block_ring *ring, int at, int part, int lane,
                                                  int mine, int step)
{
    enum { SIDE = BLOCK_SIDE(F, TOKENS, BULK), TOGETHER = BLOCK_TOGETHER(F, TOKENS, BULK) };

    block_copy<F, SIDE, BULK, TOGETHER>(a, &ring->next,
                                        ptx_shared(ring->stages) + (uint32_t)(at * block_stage<F, TOKENS, BULK>(a)),
                                        ring->bars + (uint32_t)at * 8, part, lane, mine, step);
}

/* This warp has read its stage, and copies into it. Of a team three warps say so, and the fourth copies into the stage
 * before, which the others are then likely to have left. */
template <class F, int TOKENS, int BULK>
static __device__ __forceinline__ void block_next_stage(const block_mma_args &a, block_ring *ring, int part, int lane,
                                                        int mine, int step)
{
    if constexpr (BLOCK_TOGETHER(F, TOKENS, BULK) == 1) {
        block_fill<F, TOKENS, BULK>(a, ring, ring->at, part, lane, mine, step);
    } else if (ring->copies) {
        const int before = (ring->at ? ring->at : a.depth) - 1;

        ptx_mbarrier_wait(ring->bars + BLOCK_READ + (uint32_t)before * 8, ring->parity ^ !ring->at);
        block_fill<F, TOKENS, BULK>(a, ring, before, 0, lane, mine, step);
    } else if (ptx_elect()) {
        ptx_mbarrier_arrive(ring->bars + BLOCK_READ + (uint32_t)ring->at * 8);
    }
}

/* The tiles of a team. RECORDS: x lies in global memory, else in shared memory. A few warps have most of the work of
 * storing a tile; they take turns, since those of all teams with one number share a scheduler. */
template <class F, int TOKENS, int BULK, int RECORDS>
static __device__ __forceinline__ void block_tiles(const block_mma_args &a, char *memory, block_ring *ring, int mine)
{
    enum { RECORD = TOKENS == 1 ? BLOCK_RECORD_1(F::X) : BLOCK_RECORD_8(F::X), SIDE = BLOCK_SIDE(F, TOKENS, BULK) };
    enum { TOGETHER = BLOCK_TOGETHER(F, TOKENS, BULK), PITCH = BLOCK_PITCH(TOGETHER * F::UNIT) };
    enum { PART_SUMS = BLOCK_PARTS(TOKENS) * TOKENS * 16 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / 4, part = warp % 4;
    const int step = (int)gridDim.x * a.teams;
    const int tile_sums = (SIDE == 2 && (TOKENS == 1 || a.each == 2) ? 2 : 1 + a.gate_up) * PART_SUMS;
    const int64_t tile_stride = (int64_t)a.units * RECORD;
    char *const hand = memory + a.at_hand + warp * (SIDE == 2 ? a.each : 1) * BLOCK_HAND(F::X);
    int buffer = 0, first = team * 32;
    uint32_t column[8];

    if (SIDE == 1)
        block_columns(lane, column);
    for (int work = (int)blockIdx.x + team * (int)gridDim.x; work < a.work; work += step) {
        for (int sub = 0; sub < block_passes<SIDE>(a); sub++) {
            block_acc<TOKENS> acc[SIDE] = {};
            int record = part * RECORD;

#pragma unroll 1
            for (; record < (TOGETHER > 1 ? 4 * mine : a.units) * RECORD; record += 4 * RECORD) {
                char *const unit =
                    ring->stages + ring->at * block_stage<F, TOKENS, BULK>(a) + (TOGETHER > 1 ? part * F::UNIT : 0);

                block_wait<BULK>(ring->bars + (uint32_t)ring->at * 8, ring->parity, a.depth);
                if (TOGETHER == 1 || record < a.units * RECORD) { /* else the last stage has no unit for this warp */
                    const char *const x = (RECORDS ? a.records : memory + F::TABLES) + record;

                    if (SIDE == 2 && (TOKENS == 1 || !RECORDS) && a.each == 2) {
                        asm volatile("// two units"); /* or the first would be taken out of both branches */
                        block_units<F, SIDE, PITCH, TOKENS, RECORDS>(unit, memory, hand, x, tile_stride, lane, column,
                                                                     acc);
                    } else {
                        block_units<F, 1, 0, TOKENS, RECORDS>(unit, memory, hand, x, tile_stride, lane, column, acc);
                    }
                }
                if (block_has_read<BULK, TOKENS, SIDE>(acc))
                    block_next_stage<F, TOKENS, BULK>(a, ring, part, lane, mine, step);
                if (++ring->at == a.depth) {
                    ring->at = 0;
                    ring->parity ^= 1;
                }
            }
            block_write_sums<TOKENS>(block_sums(a, memory, tile_sums, buffer) + sub * PART_SUMS, part, lane, acc[0].v);
            if (SIDE == 2 && a.each == 2)
                block_write_sums<TOKENS>(block_sums(a, memory, tile_sums, buffer) + PART_SUMS, part, lane,
                                         acc[SIDE - 1].v);
        }
        ptx_barrier_sync(1 + team, BLOCK_TEAM);
        if (SIDE == 2 && a.each == 2 && !a.gate_up)
            block_store_two<TOKENS>(a, block_sums(a, memory, tile_sums, buffer), work, first);
        else
            block_store_tile<TOKENS>(a, block_sums(a, memory, tile_sums, buffer), work, first);
        buffer = tile_sums - buffer;
        first += 32;
    }
}

template <class F, int TOKENS, int BULK> static __device__ __forceinline__ void block_product(const block_mma_args &a)
{
    enum { SIDE = BLOCK_SIDE(F, TOKENS, BULK), TOGETHER = BLOCK_TOGETHER(F, TOKENS, BULK) };
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = warp / 4;
    const int part = TOGETHER > 1 ? 0 : warp % 4, owner = TOGETHER > 1 ? team : warp;
    const int step = (int)gridDim.x * a.teams, mine = (a.units - part + 3) / 4;
    /* Warps that copy no weights load x first: with four teams warps 0, 5, 10 and 15 copy. */
    const int x_thread = TOGETHER == 1 ? (int)threadIdx.x : warp ? (int)threadIdx.x - 32 : (int)blockDim.x - 32 + lane;
    /* a team's last stage is copied behind its first units */
    const int all = a.depth - (TOGETHER > 1), early = BLOCK_EARLY(F, TOKENS) ? min(all, BLOCK_EARLY(F, TOKENS)) : all;
    uint32_t base = ptx_shared(shared), table;
    char *memory;
    block_ring ring = {NULL, 0, 0, 0, true, {(int)blockIdx.x + team * (int)gridDim.x, 0, mine, -1, {NULL, NULL}}};

    asm volatile("" : "+r"(base)); /* or it would be made anew for every unit */
    memory = (char *)__cvta_shared_to_generic(base);
    ring.stages = memory + a.at_ring + owner * a.depth * block_stage<F, TOKENS, BULK>(a);
    ring.bars = base + a.at_bars + (uint32_t)(owner * BLOCK_MAX_DEPTH * 8 * (TOGETHER > 1 ? 2 : 1));
    if (TOGETHER > 1)
        ring.copies = warp % 4 == team % 4; /* of each scheduler's warps one */
    table = block_load_table(F());
    ptx_launch_dependents();
    if constexpr (BULK) {
        const bool reads = warp % 4 == (team + 1) % 4; /* another warp, which has nothing to copy */

        if (TOGETHER == 1 && lane < a.depth)
            ptx_mbarrier_init(ring.bars + (uint32_t)lane * 8, 1);
        if (TOGETHER > 1 && (ring.copies || reads) && ptx_elect())
#pragma unroll
            for (uint32_t i = 0; i < BLOCK_MAX_DEPTH; i++)
                ptx_mbarrier_init(ring.bars + (reads ? BLOCK_READ : 0) + i * 8, reads ? 3 : 1);
        ptx_mbarrier_fence_init();
        __syncwarp();
    }
    if (!a.weights_const)
        ptx_grid_dependency_wait();
    if (ring.next.work >= a.work)
        ring.next.left = 0;
    if (a.tail && (a.units - 1) % 4 == part) /* no format whose teams copy together has one */
        ring.next.tail = 1;
    if (ring.next.left)
        block_seek<F, SIDE>(a, &ring.next, part);
    if (ring.copies)
#pragma unroll 1
        for (int i = 0; i < early; i++)
            block_fill<F, TOKENS, BULK>(a, &ring, i, part, lane, mine, step);
    if (TOKENS > 1 || SIDE == 1)
        block_store_table(F(), memory, table);
    if (a.weights_const)
        ptx_grid_dependency_wait();
    const auto rest = [&] {
        if (BLOCK_EARLY(F, TOKENS) && ring.copies)
#pragma unroll 1
            for (int i = early; i < all; i++)
                block_fill<F, TOKENS, BULK>(a, &ring, i, part, lane, mine, step);
    };
    /* Done while x is loaded. Formats that bytes bound wait with it: more copies would delay x. */
    const auto meanwhile = [&] {
        if (TOKENS == 1 && SIDE == 2) {
            block_store_table(F(), memory, table);
            rest();
        }
    };
    if (a.records)
        meanwhile();
    else
        block_make_x<F, TOKENS>(a, memory + F::TABLES, x_thread, meanwhile);
    if (TOKENS > 1 || SIDE == 1)
        rest();
    __syncthreads(); /* orders the writes of x and of tables before their reads */
    if (a.records)   /* two calls, so that each is compiled for its kind of memory */
        block_tiles<F, TOKENS, BULK, 1>(a, memory, &ring, mine);
    else
        block_tiles<F, TOKENS, BULK, 0>(a, memory, &ring, mine);
}

template <class F, int TOKENS, int BULK>
static __global__ void __launch_bounds__(BLOCK_TEAM *BLOCK_MAX_TEAMS(F, TOKENS, BULK), 1)
    block_mma(const __grid_constant__ block_mma_args a)
{
    if constexpr (!BULK || BLOCK_HAS_BULK)
        block_product<F, TOKENS, BULK>(a);
}

#endif
