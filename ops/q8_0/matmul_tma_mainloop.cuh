/* matmul_tma_mainloop.cuh: arguments, loading warp and computing warps of matmul_tma.cu, where the design is told. */
#ifndef RIDGE_Q8_0_STREAM_CUH
#define RIDGE_Q8_0_STREAM_CUH

#include "args.cuh"

enum { MOST_STAGES = 16, SUMS = 2 };

/* Large tiles have one block a multiprocessor and much to finish, small ones two and little. Tiles of 32 rows have two
 * groups of computing warps, 16 rows each: a warp alone waits for its own loads and products most of the time. */
#define LARGE(subs, tokens) ((subs) * (tokens) > 32 || (subs) == 4)
#define GROUPS(subs) ((subs) == 4 ? 2 : 1)
#define CONSUMERS(subs) (RIDGE_Q8_0_PARTS * GROUPS(subs))
#define FINISHERS(subs, tokens) ((subs) == 4 ? 6 : LARGE(subs, tokens) ? 4 : 2)
#define THREADS(subs, tokens) (32 * (CONSUMERS(subs) + 2 + FINISHERS(subs, tokens)))

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
    READY = 8 * (2 * MOST_STAGES + 2 * SUMS), /* a barrier */
    X_FULL = READY + 8,                       /* and those of x, one a stage or a box */
    BAR_BYTES = X_FULL + 8 * MOST_STAGES
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
    int high;         /* rows of a tile: with gate_up half of the stage's */
    int resident;     /* x stays in shared memory */
    int early;        /* turns that are loaded before the kernels in front have finished (at most the stages), */
    int ahead;        /* and that are brought into L2 after them */
    int window;       /* turns on their way, */
    int early_window; /* and before the kernels in front have finished */
    int share, rest;  /* tiles of every block; how many blocks have one more */
    int late;         /* turns that a block has still to ask for when the next kernel is let in */
    int tokens, x_scales_slot;
    int x_shift; /* a box of x has 1 << x_shift turns: 0 where x shares the ring */
    int x_dtype; /* RIDGE_I8: codes and scales, by TMA; else the computing warps quantise x into its resident place */
    int two;     /* teams of finishing warps, which take the tiles in turn; else one */
    uint32_t at_x, at_scales, at_x_scales, at_sums, at_factors, at_bars;
    CUtensorMap codes[2], scales[2], x, x_scales; /* codes: of raw blocks where there are no planes */
    const char *x_floats;
    int64_t x_stride; /* bytes */
    q8_0_args p;
} stream_args;

#if __CUDA_ARCH__ >= 900
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
    int tile, turn, stage;
} cursor;

static __device__ __forceinline__ void next_turn(const stream_args &a, cursor *c)
{
    c->stage = c->stage + 1 == a.stages ? 0 : c->stage + 1;
    if (++c->turn == a.turns) {
        c->turn = 0;
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
    int row;
    const int which = tile_rows(a, c.tile, &row);

    ptx_mbarrier_expect(full, SUBS * (RAW ? RAW_BYTES : CODE_BYTES + SCALE_BYTES));
    load_rows<SUBS, RAW>(a, c, shared, full, which, row, 0);
    if (a.gate_up)
        load_rows<SUBS, RAW>(a, c, shared, full, 1, row, a.high);
}

/* x of 1 << x_shift turns from `turn` on to their slots, for the barrier with this number. */
static __device__ __forceinline__ void load_x(const stream_args &a, uint32_t shared, int turn, int slot, int number)
{
    const uint32_t full = shared + a.at_bars + X_FULL + 8 * number;
    const int scale_bytes = a.tokens == 1 ? 4 * Q8_0_TURN : a.tokens * X_SCALE_PITCH;
    uint32_t to = shared + a.at_x_scales + slot * a.x_scales_slot;

    ptx_mbarrier_expect(full, (a.tokens * 1024 + scale_bytes) << a.x_shift);
    ptx_tma_load_3d(shared + a.at_x + slot * a.tokens * 1024, &a.x, 0, 0, turn * 8, full);
    if (a.tokens == 1) { /* scales of all turns in one row */
        ptx_tma_load_2d(to, &a.x_scales, turn * Q8_0_TURN, 0, full);
        return;
    }
    for (int i = 0; i < 1 << a.x_shift; i++, to += a.x_scales_slot)
        ptx_tma_load_2d(to, &a.x_scales, (turn + i) * Q8_0_TURN, 0, full);
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

/* Turn n of the block has its place in the ring when the turn that was there has been read, and its turn to be asked
 * for when turn n - window has come: more bytes on their way than the memory needs only make what others ask for wait,
 * x and the residuals above all. */
template <int SUBS, int RAW> static __device__ __forceinline__ void produce(const stream_args &a, uint32_t shared)
{
    const uint32_t full = shared + a.at_bars, empty = full + 8 * MOST_STAGES;
    cursor w = {(int)blockIdx.x, 0, 0};
    const int release = max(0, (a.share + ((int)blockIdx.x < a.rest)) * a.turns - a.late);
    uint32_t parity = 1, come_parity = 0;
    int come = 0, come_n = 0;

    for (int n = 0; w.tile < a.tiles; n++, next_turn(a, &w)) {
        if (n == release)
            ptx_grid_release();
        if (n == a.early) {
            cursor next = w;

            for (int i = 0; i < a.ahead && next.tile < a.tiles; i++, next_turn(a, &next))
                fetch_weights<RAW>(a, next);
            ptx_grid_wait();
        }
        if (w.stage == 0)
            parity ^= 1;
        if (n == a.stages)
            ptx_mbarrier_wait(full + READY, 0);
        if (n >= a.stages)
            ptx_mbarrier_wait(empty + 8 * w.stage, parity ^ 1);
        while (come_n <= n - (n < a.early ? a.early_window : a.window)) {
            ptx_mbarrier_wait(full + 8 * come, come_parity);
            come = come + 1 == a.stages ? 0 : come + 1;
            come_parity ^= come == 0;
            come_n++;
        }
        load_weights<SUBS, RAW>(a, w, shared, full + 8 * w.stage);
        if (n >= a.stages && !a.resident && a.x_dtype == RIDGE_I8)
            load_x(a, shared, w.turn, w.stage, w.stage);
    }
}

/* x, by a warp of its own: the loading one may be waiting for weights. All of it where it stays in shared memory, else
 * of the ring's first round. */
static __device__ __forceinline__ void send_x(const stream_args &a, uint32_t shared)
{
    cursor x = {(int)blockIdx.x, 0, 0};

    if (threadIdx.x % 32 || a.x_dtype != RIDGE_I8)
        return;
    ptx_grid_wait();
    if (a.resident)
        for (int box = 0; box << a.x_shift < a.turns; box++)
            load_x(a, shared, box << a.x_shift, box << a.x_shift, box);
    else
        for (int n = 0; n < a.stages && x.tile < a.tiles; n++, next_turn(a, &x))
            load_x(a, shared, x.turn, x.stage, x.stage);
}

/* --------------------------------------------------------------------------------------------- the computing warps */

/* Keeps the compiler from computing a value again in every turn, or reading a kernel parameter, in front of what
 * depends on it. */
static __device__ __forceinline__ uint32_t kept(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* Where a lane reads in shared memory, at stage and slot 0. */
template <int TOKENS> struct lane_reads {
    uint32_t codes, scales; /* of the weights; of raw blocks only codes */
    uint32_t x[TOKENS / 8], x_scales[TOKENS / 8][2];
};

/* Only the tokens that there are lie in shared memory; the others' columns of the instruction hold copies of the last
 * one, whose sums nobody reads. The swizzle is the same in every slot: a slot has a multiple of 8 lines. */
template <int SUBS, int TOKENS, int RAW>
static __device__ __forceinline__ lane_reads<TOKENS> start_reads(const stream_args &a, uint32_t shared, int part,
                                                                 int lane, int sub)
{
    enum { BOTH = SUBS > 1 };
    /* TMA writes [line of 128 columns][row]; with gate_up two boxes, gate's rows and up's. */
    const uint32_t second = BOTH && lane & 8 ? 1024 + (SUBS == 2 && a.gate_up ? CODE_BYTES - 1024 : 0) : 0;
    const uint32_t chunk = BOTH ? lane / 16 : lane / 8;
    lane_reads<TOKENS> at;

    if (RAW) {
        at.codes = shared + sub * RAW_BYTES + lane / 4 * RAW_PITCH + part * (RIDGE_Q8_0_RUN * RIDGE_Q8_0_BYTES);
        at.scales = 0;
    } else {
        at.codes = shared + part * a.high * 128 + lane % 8 * 128 + second + sub * 1024 +
                   (sub && a.gate_up ? sub * (CODE_BYTES - 1024) : 0) + ((chunk ^ (lane % 8)) << 4);
        at.scales = shared + a.at_scales + sub * SCALE_BYTES + lane / 4 * SCALE_PITCH + part * 8;
    }
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
        const int line = part * a.tokens + min(8 * n + lane % 8, a.tokens - 1); /* of 128 bytes */

        at.x[n] = shared + a.at_x + line * 128 + (((lane / 8) ^ (line & 7)) << 4);
        if (TOKENS == 8) /* 16 leave no registers for it */
            at.x[n] = kept(at.x[n]);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            at.x_scales[n][t] =
                shared + a.at_x_scales + part * 16 + min(8 * n + lane % 4 * 2 + t, a.tokens - 1) * X_SCALE_PITCH;
            if (TOKENS == 8)
                at.x_scales[n][t] = kept(at.x_scales[n][t]);
        }
    }
    at.codes = kept(at.codes);
    at.scales = kept(at.scales);
    return at;
}

/* x of this warp's 4 blocks and 8 tokens: the operand b of four matrix instructions, and the scales of this lane's
 * tokens, 2 (lane % 4) and the next. */
static __device__ __forceinline__ void read_x(uint32_t codes, uint32_t scales, uint32_t next, uint32_t (*code)[2],
                                              float (*scale)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t v[4];

        ptx_ldmatrix4(v, codes ^ (h << 6));
        code[2 * h][0] = v[0], code[2 * h][1] = v[1], code[2 * h + 1][0] = v[2], code[2 * h + 1][1] = v[3];
    }
    ptx_load_shared4(scale[0], scales);
    ptx_load_shared4(scale[1], next);
}

/* The 4 blocks of up to 16 rows, two subs: the operand a, and the scales of rows lane / 4 and that + 8. */
template <int BOTH>
static __device__ __forceinline__ void read_planes(uint32_t codes, uint32_t scales, uint32_t (*code)[4],
                                                   float (*scale)[2])
{
    if (BOTH) {
#pragma unroll
        for (int b = 0; b < 4; b++)
            ptx_ldmatrix4(code[b], codes ^ (b << 5));
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t v[4];

            ptx_ldmatrix4(v, codes ^ (h << 6));
            code[2 * h][0] = v[0], code[2 * h][2] = v[1], code[2 * h + 1][0] = v[2], code[2 * h + 1][2] = v[3];
            code[2 * h][1] = code[2 * h][3] = code[2 * h + 1][1] = code[2 * h + 1][3] = 0;
        }
    }
#pragma unroll
    for (int r = 0; r < 1 + BOTH; r++) {
        const uint2 v = ptx_load_shared2(scales + r * SCALE_BYTES);

        num_unpack2<RIDGE_F16>(v.x, &scale[0][r], &scale[1][r]);
        num_unpack2<RIDGE_F16>(v.y, &scale[2][r], &scale[3][r]);
    }
}

/* The same from blocks of 34 bytes: the codes of blocks 0 and 2 of a partition begin in the middle of a word. */
template <int BOTH>
static __device__ __forceinline__ void read_raw(uint32_t rows, int lane, uint32_t (*code)[4], float (*scale)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t run = rows + r * RAW_BYTES;

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

/* One turn: 4 blocks of 16 rows (BOTH) or 8, and 8 tokens, onto the chains: this lane has rows lane / 4 and that + 8,
 * tokens 2 (lane % 4) and the next. */
template <int BOTH>
static __device__ __forceinline__ void multiply(const uint32_t (*w)[4], const float (*ws)[2], const uint32_t (*x)[2],
                                                const float (*xs)[4], float *acc)
{
#pragma unroll
    for (int b = 0; b < 4; b++) {
        int32_t d[4];

        ptx_mma_s8_onto(d, w[b], x[b], 0x4b400000);
#pragma unroll
        for (int i = 0; i < 2 + 2 * BOTH; i++)
            acc[i] =
                __fmaf_rn(__fmul_rn(ws[b][i / 2], xs[i % 2][b]), __fadd_rn(__int_as_float(d[i]), -12582912.0f), acc[i]);
    }
}

/* x of all turns, where TMA would put it, zeros behind the last column: four lanes a block, and the loads of four
 * blocks in flight. */
template <int WIDTH> static __device__ __forceinline__ void quantise_x(const stream_args &a, char *memory)
{
    enum { FLIGHT = 1024 / WIDTH };
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
    enum {
        BOTH = SUBS > 1,
        PITCH = SUMS_PITCH(SUBS),
        WIDTH = 32 * CONSUMERS(SUBS),
        STEP = SUBS * (RAW ? RAW_BYTES : CODE_BYTES)
    };
    const int warp = threadIdx.x / 32, part = warp % RIDGE_Q8_0_PARTS, lane = threadIdx.x % 32;
    const int sub = warp / RIDGE_Q8_0_PARTS * 2, tiles = a.tiles, turns = a.turns, stages = a.stages;
    const int x_step = a.tokens * 1024, x_scales_step = a.x_scales_slot, resident = a.resident, x_shift = a.x_shift;
    const bool waits = a.x_dtype == RIDGE_I8;
    const uint32_t full = shared + a.at_bars, summed = full + 16 * MOST_STAGES;
    const lane_reads<TOKENS> at = start_reads<SUBS, TOKENS, RAW>(a, shared, part, lane, sub);
    uint32_t x[4][2], parity = 0, sums_parity = 1;
    float xs[2][4];
    int stage = 0, sums = 0, had = -1;

    if (a.x_dtype != RIDGE_I8) {
        const int row_bytes = (int)a.p.blocks * RIDGE_Q8_0_BLOCK * (a.x_dtype == RIDGE_F32 ? 4 : 2);

        for (int token = 0; token < a.tokens; token++)
            for (int at = threadIdx.x * 128; at < row_bytes; at += WIDTH * 128)
                ptx_prefetch_l2(a.x_floats + token * a.x_stride + at);
        ptx_grid_wait();
        quantise_x<WIDTH>(a, memory);
        ptx_barrier_sync(1, WIDTH); /* all of x before any is read */
    }
    __syncwarp();
    for (int tile = blockIdx.x; tile < tiles; tile += kept(gridDim.x)) {
        float acc[TOKENS / 8][4] = {}, *to;
        int thread = threadIdx.x;

        for (int turn = 0; turn < turns; turn++) {
            const uint32_t bar = full + 8 * stage;
            const int slot = resident ? turn : stage;
            uint32_t w[4][4];
            float ws[4][2];

            ptx_mbarrier_wait(bar, parity);
            if (waits && (!resident || tile == blockIdx.x))
                ptx_mbarrier_wait(resident ? full + X_FULL + 8 * (turn >> x_shift) : bar + X_FULL,
                                  resident ? 0 : parity);
            if (TOKENS == 8 && (!resident || slot != had)) /* of one turn, x stays in registers */
                read_x(at.x[0] + slot * x_step, at.x_scales[0][0] + slot * x_scales_step,
                       at.x_scales[0][1] + slot * x_scales_step, x, xs);
            if (RAW)
                read_raw<BOTH>(at.codes + stage * STEP, lane, w, ws);
            else
                read_planes<BOTH>(at.codes + stage * STEP, at.scales + stage * (SUBS * SCALE_BYTES), w, ws);
#pragma unroll
            for (int n = 0; n < TOKENS / 8; n++) {
                if (TOKENS > 8)
                    read_x(at.x[n] + slot * x_step, at.x_scales[n][0] + slot * x_scales_step,
                           at.x_scales[n][1] + slot * x_scales_step, x, xs);
                multiply<BOTH>(w, ws, x, xs, acc[n]);
            }
            had = slot;
            __syncwarp(); /* every lane has read the stage */
            if (lane == 0)
                ptx_mbarrier_arrive(bar + 8 * MOST_STAGES);
            stage = stage + 1 == stages ? 0 : stage + 1;
            parity ^= stage == 0;
        }
        /* [partition][token][row] */
        asm volatile("" : "+r"(thread)); /* addresses anew every tile: registers are few */
        to = (float *)(memory + a.at_sums) +
             (sums * RIDGE_Q8_0_PARTS + thread / 32 % RIDGE_Q8_0_PARTS) * (TOKENS * PITCH) + thread % 4 * 2 * PITCH +
             thread % 32 / 4 + thread / (32 * RIDGE_Q8_0_PARTS) * 2 * SUB;
        ptx_mbarrier_wait(summed + 8 * (SUMS + sums), sums_parity);
#pragma unroll
        for (int r = 0; r < 1 + BOTH; r++)
#pragma unroll
            for (int t = 0; t < TOKENS / 4; t++)
                to[(t / 2 * 8 + t % 2) * PITCH + r * SUB] = acc[t / 2][r * 2 + t % 2];
        __syncwarp(); /* every lane has written */
        if (lane == 0)
            ptx_mbarrier_arrive(summed + 8 * sums);
        sums ^= 1;
        sums_parity ^= sums == 0;
    }
}
#endif

#endif
