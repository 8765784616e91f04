/* q8_0_stream.cuh: arguments, loading warp and computing warps of q8_0_stream.cu, where the design is told. */
#ifndef RIDGE_Q8_0_STREAM_CUH
#define RIDGE_Q8_0_STREAM_CUH

#include "q8_0_decode.cuh"

enum { CONSUMERS = RIDGE_Q8_0_PARTS, LOADER = CONSUMERS, MOST_STAGES = 16, SUMS = 2 };

/* Large tiles have one block a multiprocessor and much to finish, small ones two and little. */
#define LARGE(subs, tokens) ((subs) * (tokens) > 16)
#define FINISHERS(subs, tokens) (LARGE(subs, tokens) ? 4 : 2)
#define THREADS(subs, tokens) (32 * (CONSUMERS + 1 + FINISHERS(subs, tokens)))

/* Shared memory of 8 rows and a turn. Rows of blocks and of scales are 16 bytes longer than needed, so that eight of
 * them begin in different banks. */
enum {
    SUB = 8,
    RAW_PITCH = Q8_0_TURN * RIDGE_Q8_0_BYTES + 16,
    SCALE_PITCH = 2 * Q8_0_TURN + 16,
    X_SCALE_PITCH = 4 * Q8_0_TURN + 16,
    RAW_BYTES = SUB * RAW_PITCH,
    CODE_BYTES = SUB * 1024,
    SCALE_BYTES = SUB * SCALE_PITCH,
    BAR_BYTES = 8 * (2 * MOST_STAGES + 2 * SUMS)
};

/* Of hyper-connections with the usual four streams: post and comb of a token. */
enum { HC_STREAMS = 4, HC_FACTORS = HC_STREAMS + HC_STREAMS * HC_STREAMS };

/* Partial sums: rows of every other token begin 8 banks apart. */
#define SUMS_PITCH(subs) ((subs)*SUB + 4)
#define SUMS_BYTES(subs, tokens) (4 * RIDGE_Q8_0_PARTS * (tokens)*SUMS_PITCH(subs))

typedef struct stream_args {
    /* What the loops need, in one line of the constant cache. */
    int tiles0, tiles; /* of the first weight, and all */
    int turns, stages, gate_up;
    int high;     /* rows of a tile: with gate_up half of the stage's */
    int resident; /* x stays in shared memory */
    int early;    /* turns that are loaded before the kernels in front have finished, */
    int ahead;    /* or brought into L2 */
    int tokens, x_scales_slot;
    int x_dtype; /* RIDGE_I8: codes and scales, by TMA; else the computing warps quantise x into its resident place */
    uint32_t at_x, at_scales, at_x_scales, at_sums, at_factors, at_bars;
    CUtensorMap codes[2], scales[2], x, x_scales; /* codes: of raw blocks where there are no planes */
    const char *x_floats;
    int64_t x_stride; /* bytes */
    q8_0_args p;
} stream_args;

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
/* The weight of a tile and its first row. */
static __device__ __forceinline__ int tile_rows(const stream_args &a, int tile, int *row)
{
    const int which = tile >= a.tiles0;

    *row = (which ? tile - a.tiles0 : tile) * a.high;
    return which;
}

/* ------------------------------------------------------------------------------------------------- the loading warp */

/* The turns of all tiles of this block, one after another. */
typedef struct cursor {
    int tile, turn, stage, first; /* first: the block's first tile */
} cursor;

static __device__ __forceinline__ void next_turn(const stream_args &a, cursor *c)
{
    c->stage = c->stage + 1 == a.stages ? 0 : c->stage + 1;
    if (++c->turn == a.turns) {
        c->turn = c->first = 0;
        c->tile += gridDim.x;
    }
}

/* The rows of one weight to `rows` rows of the stage from `first` on. */
template <int SUBS, int RAW>
static __device__ __forceinline__ void load_rows(const stream_args &a, const cursor &c, uint32_t shared, uint32_t full,
                                                 int which, int row, int first)
{
    if (RAW) {
        ptx_tma_load_2d(shared + c.stage * (SUBS * RAW_BYTES) + first * RAW_PITCH, &a.codes[which],
                        c.turn * (Q8_0_TURN * RIDGE_Q8_0_BYTES / 8), row, full);
    } else {
        ptx_tma_load_3d(shared + c.stage * (SUBS * CODE_BYTES) + first * 1024, &a.codes[which], 0, row, c.turn * 8,
                        full);
        ptx_tma_load_2d(shared + a.at_scales + c.stage * (SUBS * SCALE_BYTES) + first * SCALE_PITCH, &a.scales[which],
                        c.turn * Q8_0_TURN, row, full);
    }
}

template <int SUBS, int RAW>
static __device__ __forceinline__ void load_weights(const stream_args &a, const cursor &c, uint32_t shared,
                                                    uint32_t full)
{
    const bool with_x = (c.first || !a.resident) && a.x_dtype == RIDGE_I8;
    int row;
    const int which = tile_rows(a, c.tile, &row);

    ptx_mbarrier_expect(full, SUBS * (RAW ? RAW_BYTES : CODE_BYTES + SCALE_BYTES) +
                                  (with_x ? a.tokens * (1024 + X_SCALE_PITCH) : 0));
    load_rows<SUBS, RAW>(a, c, shared, full, which, row, 0);
    if (a.gate_up)
        load_rows<SUBS, RAW>(a, c, shared, full, 1, row, a.high);
}

static __device__ __forceinline__ void load_x(const stream_args &a, const cursor &c, uint32_t shared, uint32_t full)
{
    const int slot = a.resident ? c.turn : c.stage;

    if ((!c.first && a.resident) || a.x_dtype != RIDGE_I8)
        return;
    ptx_tma_load_3d(shared + a.at_x + slot * a.tokens * 1024, &a.x, 0, 0, c.turn * 8, full);
    ptx_tma_load_2d(shared + a.at_x_scales + slot * a.x_scales_slot, &a.x_scales, c.turn * Q8_0_TURN, 0, full);
}

/* A turn's weights to L2, where every kernel's writes meet: unlike a load this is right at any time. */
template <int RAW> static __device__ __forceinline__ void fetch_weights(const stream_args &a, const cursor &c)
{
    int row;
    const int which = tile_rows(a, c.tile, &row);

    for (int i = which; i <= which + a.gate_up; i++)
        if (RAW) {
            ptx_tma_prefetch_2d(&a.codes[i], c.turn * (Q8_0_TURN * RIDGE_Q8_0_BYTES / 8), row);
        } else {
            ptx_tma_prefetch_3d(&a.codes[i], 0, row, c.turn * 8);
            ptx_tma_prefetch_2d(&a.scales[i], c.turn * Q8_0_TURN, row);
        }
}

template <int SUBS, int RAW> static __device__ __forceinline__ void produce(const stream_args &a, uint32_t shared)
{
    const uint32_t full = shared + a.at_bars, empty = full + 8 * MOST_STAGES;
    cursor w = {(int)blockIdx.x, 0, 0, 1}, x = w;
    uint32_t parity = 1;
    int n = 0;

    if (a.x_dtype == RIDGE_I8) { /* x too, a turn of it from this block: a kernel in front may still write it */
        ptx_tma_prefetch_3d(&a.x, 0, 0, (int)blockIdx.x % a.turns * 8);
        ptx_tma_prefetch_2d(&a.x_scales, (int)blockIdx.x % a.turns * Q8_0_TURN, 0);
    }
    for (; n < a.early && w.tile < a.tiles; n++, next_turn(a, &w))
        load_weights<SUBS, RAW>(a, w, shared, full + 8 * w.stage);
    for (int i = 0; i < a.ahead && x.tile < a.tiles; i++, next_turn(a, &x))
        fetch_weights<RAW>(a, x);
    x = (cursor){(int)blockIdx.x, 0, 0, 1};
    ptx_grid_wait();
    for (int i = 0; i < n; i++, next_turn(a, &x))
        load_x(a, x, shared, full + 8 * x.stage);
    for (; n < a.stages && w.tile < a.tiles; n++, next_turn(a, &w)) {
        load_weights<SUBS, RAW>(a, w, shared, full + 8 * w.stage);
        load_x(a, w, shared, full + 8 * w.stage);
    }
    while (w.tile < a.tiles) {
        if (w.stage == 0)
            parity ^= 1;
        ptx_mbarrier_wait(empty + 8 * w.stage, parity);
        load_weights<SUBS, RAW>(a, w, shared, full + 8 * w.stage);
        load_x(a, w, shared, full + 8 * w.stage);
        next_turn(a, &w);
    }
}

/* --------------------------------------------------------------------------------------------- the computing warps */

/* x of this warp's 4 blocks: the operand b of four matrix instructions for every 8 tokens, and the scales of this
 * lane's tokens, 2 (lane % 4) and the next of every 8. Only the tokens that there are lie in shared memory; the others'
 * columns of the instruction hold copies of the last one, whose sums nobody reads. */
template <int TOKENS>
static __device__ __forceinline__ void read_x(const stream_args &a, uint32_t shared, int slot, int part, int lane,
                                              uint32_t (*code)[4][2], float (*scale)[2][4])
{
    const uint32_t scales = shared + a.at_x_scales + slot * a.x_scales_slot + part * 16;

#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
        const int line = (slot * 8 + part) * a.tokens + min(8 * n + lane % 8, a.tokens - 1); /* of 128 bytes */

#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t v[4];

            ptx_ldmatrix4(v, shared + a.at_x + line * 128 + (((h * 4 + lane / 8) ^ (line & 7)) << 4));
            code[n][2 * h][0] = v[0], code[n][2 * h][1] = v[1], code[n][2 * h + 1][0] = v[2],
                        code[n][2 * h + 1][1] = v[3];
        }
#pragma unroll
        for (int t = 0; t < 2; t++)
            ptx_load_shared4(scale[n][t], scales + min(8 * n + lane % 4 * 2 + t, a.tokens - 1) * X_SCALE_PITCH);
    }
}

/* The 4 blocks of up to 16 rows, two subs: the operand a, and the scales of rows lane / 4 and that + 8. line: of the
 * row whose address this lane gives. scales: of the first sub. */
template <int BOTH>
static __device__ __forceinline__ void read_planes(uint32_t line, uint32_t scales, int part, int lane,
                                                   uint32_t (*code)[4], float (*scale)[2])
{
    if (BOTH) {
#pragma unroll
        for (int b = 0; b < 4; b++)
            ptx_ldmatrix4(code[b], line + (((b * 2 + lane / 16) ^ (lane % 8)) << 4));
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t v[4];

            ptx_ldmatrix4(v, line + (((h * 4 + lane / 8) ^ (lane % 8)) << 4));
            code[2 * h][0] = v[0], code[2 * h][2] = v[1], code[2 * h + 1][0] = v[2], code[2 * h + 1][2] = v[3];
            code[2 * h][1] = code[2 * h][3] = code[2 * h + 1][1] = code[2 * h + 1][3] = 0;
        }
    }
#pragma unroll
    for (int r = 0; r < 1 + BOTH; r++) {
        const uint2 v = ptx_load_shared2(scales + r * SCALE_BYTES + lane / 4 * SCALE_PITCH + part * 8);

        num_unpack2<RIDGE_F16>(v.x, &scale[0][r], &scale[1][r]);
        num_unpack2<RIDGE_F16>(v.y, &scale[2][r], &scale[3][r]);
    }
}

/* The same from blocks of 34 bytes: the codes of blocks 0 and 2 of a partition begin in the middle of a word. */
template <int BOTH>
static __device__ __forceinline__ void read_raw(uint32_t rows, int part, int lane, uint32_t (*code)[4],
                                                float (*scale)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t run = rows + r * RAW_BYTES + lane / 4 * RAW_PITCH + part * (RIDGE_Q8_0_RUN * RIDGE_Q8_0_BYTES);

#pragma unroll
        for (int b = 0; b < 4; b++) {
            const uint32_t at = run + lane % 4 * 4 + b * RIDGE_Q8_0_BYTES + (b & 1 ? 2 : 0);

#pragma unroll
            for (int h = 0; h < 2; h++) {
                code[b][2 * h + r] = r <= BOTH ? ptx_load_shared1(at + 16 * h) : 0;
                if (!(b & 1) && r <= BOTH)
                    code[b][2 * h + r] = __byte_perm(code[b][2 * h + r], ptx_load_shared1(at + 16 * h + 4), 0x5432);
            }
            if (r <= BOTH)
                scale[b][r] = ptx_f32_from_f16(ptx_load_shared_half(run + b * RIDGE_Q8_0_BYTES));
        }
    }
}

/* One turn: 4 blocks of SUBS * 8 rows and TOKENS tokens onto the chains: of 16 rows and 8 tokens, this lane has rows
 * lane / 4 and that + 8, tokens 2 (lane % 4) and the next. */
template <int SUBS, int TOKENS, int RAW>
static __device__ __forceinline__ void multiply(const stream_args &a, uint32_t shared, int stage, int slot, int part,
                                                int lane, float (*acc)[TOKENS / 8][4])
{
    enum { BOTH = SUBS > 1, USED = 2 + 2 * BOTH };
    /* TMA writes [line of 128 columns][row]; with gate_up two boxes, gate's rows and up's. */
    const uint32_t second = BOTH && lane & 8 ? 1024 + (SUBS == 2 && a.gate_up ? CODE_BYTES - 1024 : 0) : 0;
    const uint32_t lines = shared + stage * (SUBS * CODE_BYTES) + part * a.high * 128 + lane % 8 * 128 + second;
    uint32_t x[TOKENS / 8][4][2];
    float xs[TOKENS / 8][2][4];

    read_x<TOKENS>(a, shared, slot, part, lane, x, xs);
#pragma unroll
    for (int s = 0; s < SUBS; s += 2) {
        uint32_t w[4][4];
        float ws[4][2];

        if (RAW)
            read_raw<BOTH>(shared + (stage * SUBS + s) * RAW_BYTES, part, lane, w, ws);
        else
            read_planes<BOTH>(lines + s * 1024 + (s >= 2 && a.gate_up ? 2 * (CODE_BYTES - 1024) : 0),
                              shared + a.at_scales + (stage * SUBS + s) * SCALE_BYTES, part, lane, w, ws);
#pragma unroll
        for (int b = 0; b < 4; b++)
#pragma unroll
            for (int n = 0; n < TOKENS / 8; n++) {
                int32_t d[4];

                ptx_mma_s8_onto(d, w[b], x[n][b], 0x4b400000);
#pragma unroll
                for (int i = 0; i < USED; i++)
                    acc[s / 2][n][i] = __fmaf_rn(__fmul_rn(ws[b][i / 2], xs[n][i % 2][b]),
                                                 __fadd_rn(__int_as_float(d[i]), -12582912.0f), acc[s / 2][n][i]);
            }
    }
}

template <int PLANE> static __device__ __forceinline__ float sum_parts(const float *from)
{
    float part[RIDGE_Q8_0_PARTS];

#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_PARTS; i++)
        part[i] = from[i * PLANE];
    return ridge_q8_0_tree(part);
}

/* x of all turns, where TMA would put it, zeros behind the last column: four lanes a block, and the loads of four
 * blocks in flight. */
static __device__ __forceinline__ void quantise_x(const stream_args &a, char *memory)
{
    enum { FLIGHT = 4, WIDTH = 32 * CONSUMERS };
    const int units = a.turns * 128, there = (int)a.p.blocks * 4, all = a.tokens * units; /* of 8 columns */
    const bool bf16 = a.x_dtype == RIDGE_BF16;

    for (int first = threadIdx.x; first < all; first += FLIGHT * WIDTH) { /* all is a multiple of 32: whole warps */
        float x[FLIGHT][8];

#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
            const int i = first + k * WIDTH, token = i / units, u = i % units;

#pragma unroll
            for (int c = 0; c < 8; c++)
                x[k][c] = 0.0f;
            if (i < all && u < there)
                q8_0_load8(a.x_floats + token * a.x_stride, u * 8, bf16, x[k]);
        }
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
            const int i = first + k * WIDTH, token = i / units, u = i % units, line = u / 16 * a.tokens + token;
            float scale;
            const uint2 codes = q8_0_quantise8(x[k], &scale);

            if (i >= all)
                break;
            *(uint2 *)(memory + a.at_x + line * 128 + ((u / 2 % 8 ^ (line & 7)) << 4) + u % 2 * 8) = codes;
            if (u % 4 == 0)
                *(float *)(memory + a.at_x_scales + u / 128 * a.x_scales_slot + token * X_SCALE_PITCH +
                           u / 4 % 32 * 4) = scale;
        }
    }
}

template <int SUBS, int TOKENS, int RAW>
static __device__ __forceinline__ void consume(const stream_args &a, char *memory, uint32_t shared)
{
    enum { PITCH = SUMS_PITCH(SUBS) };
    const uint32_t full = shared + a.at_bars, empty = full + 8 * MOST_STAGES, summed = empty + 8 * MOST_STAGES,
                   taken = summed + 8 * SUMS;
    const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t parity = 0, sums_parity = 1;
    int stage = 0, sums = 0, here = lane;

    if (a.x_dtype != RIDGE_I8) {
        const int row_bytes = (int)a.p.blocks * RIDGE_Q8_0_BLOCK * (a.x_dtype == RIDGE_F32 ? 4 : 2);

        for (int token = 0; token < a.tokens; token++)
            for (int at = threadIdx.x * 128; at < row_bytes; at += 32 * CONSUMERS * 128)
                ptx_prefetch_l2(a.x_floats + token * a.x_stride + at);
        ptx_grid_wait();
        quantise_x(a, memory);
        ptx_barrier_sync(1, 32 * CONSUMERS); /* all of x before any is read */
    }
    for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        float acc[(SUBS + 1) / 2][TOKENS / 8][4] = {}, *to;

        for (int turn = 0; turn < a.turns; turn++) {
            ptx_mbarrier_wait(full + 8 * stage, parity);
#if __CUDA_ARCH__ >= 1000
            if (TOKENS > 8) /* addresses anew every turn: kept, they are one register too many for this compiler */
                asm volatile("" : "+r"(here));
#endif
            multiply<SUBS, TOKENS, RAW>(a, shared, stage, a.resident ? turn : stage, part, here, acc);
            __syncwarp(); /* every lane has read the stage */
            if (lane == 0)
                ptx_mbarrier_arrive(empty + 8 * stage);
            stage = stage + 1 == a.stages ? 0 : stage + 1;
            parity ^= stage == 0;
        }
        /* [partition][token][row] */
        to = (float *)(memory + a.at_sums) + (sums * RIDGE_Q8_0_PARTS + part) * (TOKENS * PITCH) +
             lane % 4 * 2 * PITCH + lane / 4;
        ptx_mbarrier_wait(taken + 8 * sums, sums_parity);
#pragma unroll
        for (int s = 0; s < SUBS; s++)
#pragma unroll
            for (int t = 0; t < TOKENS / 4; t++)
                to[(t / 2 * 8 + t % 2) * PITCH + s * SUB] = acc[s / 2][t / 2][s % 2 * 2 + t % 2];
        __syncwarp(); /* every lane has written */
        if (lane == 0)
            ptx_mbarrier_arrive(summed + 8 * sums);
        sums ^= 1;
        sums_parity ^= sums == 0;
    }
}
#endif

#endif
