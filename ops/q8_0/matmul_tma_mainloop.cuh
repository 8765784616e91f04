/* matmul_tma_mainloop.cuh: the TMA producers and the MMA warps of matmul_tma.cuh. */
#ifndef RIDGE_Q8_0_MATMUL_TMA_MAINLOOP_CUH
#define RIDGE_Q8_0_MATMUL_TMA_MAINLOOP_CUH

#include "matmul_tma.cuh"

#if __CUDA_ARCH__ >= 900
/* The weight of a tile, and the tile's first row. */
static __device__ __forceinline__ int locate_tile(const q8_0_tma_args &a, int tile, int *row)
{
    const int which = tile >= a.tiles0;

    *row = (which ? tile - a.tiles0 : tile) * a.tile_rows;
    return which;
}

/* --------------------------------------------------------------------------------------------------- TMA producers */

/* The k step to load next: those of all tiles of this CTA, one tile after another. */
typedef struct load_pos {
    int tile, k_step;
    pipeline_state at;
} load_pos;

static __device__ __forceinline__ void next_step(const q8_0_tma_args &a, load_pos *c)
{
    pipeline_advance(&c->at, a.stages);
    if (++c->k_step == a.k_steps) {
        c->k_step = 0;
        c->tile += gridDim.x;
    }
}

/* Issues the loads of one weight's rows, to the rows of the stage from `first` on. A call reads weights once, so that
 * they leave L2 first: what the kernels between large ones read, their code and arguments too, then stays there from
 * layer to layer. */
template <int SUBS, int RAW>
static __device__ __forceinline__ void load_rows(const q8_0_tma_args &a, const load_pos &c, uint32_t shared,
                                                 uint32_t full, int which, int row, int first)
{
    const uint64_t once = ptx_policy_evict_first();

    if (RAW) {
        ptx_tma_load_2d_policy(shared + c.at.stage * (SUBS * RAW_BYTES) + first * RAW_PITCH, &a.codes[which],
                               c.k_step * (Q8_0_STEP * RIDGE_Q8_0_BYTES / 8), row, full, once);
    } else {
        ptx_tma_load_3d_policy(shared + c.at.stage * (SUBS * CODE_BYTES) + first * 1024, &a.codes[which], 0, row,
                               c.k_step * 8, full, once);
        ptx_tma_load_2d_policy(shared + a.off_scales + c.at.stage * (SUBS * SCALE_BYTES) + first * SCALE_PITCH,
                               &a.scales[which], c.k_step * Q8_0_STEP, row, full, once);
    }
}

template <int SUBS, int RAW>
static __device__ __forceinline__ void load_weights(const q8_0_tma_args &a, const load_pos &c, uint32_t shared,
                                                    uint32_t full)
{
    int row;
    const int which = locate_tile(a, c.tile, &row);

    ptx_mbarrier_expect(full, SUBS * (RAW ? RAW_BYTES : CODE_BYTES + SCALE_BYTES));
    load_rows<SUBS, RAW>(a, c, shared, full, which, row, 0);
    if (a.gate_up)
        load_rows<SUBS, RAW>(a, c, shared, full, 1, row, a.tile_rows);
}

/* Issues the loads of x for 1 << x_shift k steps from k_step on, to their slots; `number` names the barrier. */
static __device__ __forceinline__ void load_x(const q8_0_tma_args &a, uint32_t shared, int k_step, int slot, int number)
{
    const uint32_t full = shared + a.off_bars + BAR_X_FULL + 8 * number;
    const int scale_bytes = a.tokens == 1 ? 4 * Q8_0_STEP : a.tokens * X_SCALE_PITCH;
    uint32_t to = shared + a.off_x_scales + slot * a.x_scales_slot;

    ptx_mbarrier_expect(full, (a.tokens * 1024 + scale_bytes) << a.x_shift);
    ptx_tma_load_3d(shared + a.off_x + slot * a.tokens * 1024, &a.x, 0, 0, k_step * 8, full);
    if (a.tokens == 1) { /* scales of all k steps in one row */
        ptx_tma_load_2d(to, &a.x_scales, k_step * Q8_0_STEP, 0, full);
        return;
    }
    for (int i = 0; i < 1 << a.x_shift; i++, to += a.x_scales_slot)
        ptx_tma_load_2d(to, &a.x_scales, (k_step + i) * Q8_0_STEP, 0, full);
}

/* Prefetches a k step's weights into L2. Unlike a load, this is correct before the primary grid has ended: its writes
 * go through L2 too. */
template <int RAW> static __device__ __forceinline__ void prefetch_weights(const q8_0_tma_args &a, const load_pos &c)
{
    int row;
    const int which = locate_tile(a, c.tile, &row);

    for (int i = which; i <= which + a.gate_up; i++)
        if (RAW) {
            ptx_tma_prefetch_2d(&a.codes[i], c.k_step * (Q8_0_STEP * RIDGE_Q8_0_BYTES / 8), row);
        } else {
            ptx_tma_prefetch_3d(&a.codes[i], 0, row, c.k_step * 8);
            ptx_tma_prefetch_2d(&a.scales[i], c.k_step * Q8_0_STEP, row);
        }
}

/* The weight producer. K step n may be issued when its stage is free and k step n - window has arrived: bounding the
 * bytes in flight keeps x and the residuals from queueing behind weights (x takes 1.0 us with 56 KB in flight, 2.4 us
 * with six stages; H200). The first early_steps do not wait for the primary grid (constant weights); where there are
 * none, prefetch_steps are prefetched into L2 before that wait. */
template <int SUBS, int RAW> static __device__ __forceinline__ void produce(const q8_0_tma_args &a, uint32_t shared)
{
    const uint32_t full = shared + a.off_bars, empty = full + 8 * MAX_STAGES;
    load_pos w = {(int)blockIdx.x, 0, PIPELINE_PRODUCER};
    const int trigger = max(0, (a.cta_tiles + ((int)blockIdx.x < a.extra_tiles)) * a.k_steps - a.trigger_left);
    pipeline_state arrived = PIPELINE_CONSUMER;
    int arrived_n = 0;

    for (int n = 0; w.tile < a.tiles; n++, next_step(a, &w)) {
        if (n == trigger) /* the dependent grid may start */
            ptx_launch_dependents();
        if (n == a.early_steps) {
            load_pos next = w;

            for (int i = 0; i < a.prefetch_steps && next.tile < a.tiles; i++, next_step(a, &next))
                prefetch_weights<RAW>(a, next);
            ptx_grid_dependency_wait();
        }
        if (n == a.stages)
            ptx_mbarrier_wait(full + BAR_READY, 0);
        if (n >= a.stages)
            pipeline_acquire(empty, w.at);
        while (arrived_n <= n - (n < a.early_steps ? a.early_window : a.window)) {
            pipeline_wait(full, arrived);
            pipeline_advance(&arrived, a.stages);
            arrived_n++;
        }
        load_weights<SUBS, RAW>(a, w, shared, full + 8 * w.at.stage);
        if (n >= a.stages && !a.x_resident && a.x_dtype == RIDGE_I8)
            load_x(a, shared, w.k_step, w.at.stage, w.at.stage);
    }
}

/* The x producer, a warp of its own because the weight producer may be waiting for weights. It loads all of x where x
 * is resident, else the x of the ring's first stages; the weight producer goes on from there. */
static __device__ __forceinline__ void produce_x(const q8_0_tma_args &a, uint32_t shared)
{
    load_pos x = {(int)blockIdx.x, 0, PIPELINE_PRODUCER};

    if (threadIdx.x % 32 || a.x_dtype != RIDGE_I8)
        return;
    ptx_grid_dependency_wait();
    if (a.x_resident)
        for (int box = 0; box << a.x_shift < a.k_steps; box++)
            load_x(a, shared, box << a.x_shift, box << a.x_shift, box);
    else
        for (int n = 0; n < a.stages && x.tile < a.tiles; n++, next_step(a, &x))
            load_x(a, shared, x.k_step, x.at.stage, x.at.stage);
}

/* ------------------------------------------------------------------------------------------------------- MMA warps */

/* The addresses of shared memory that a lane reads, for stage and slot 0. */
template <int TOKENS> struct lane_addresses {
    uint32_t codes, scales; /* of the weights; raw blocks have codes only */
    uint32_t x[TOKENS / 8], x_scales[TOKENS / 8][2];
};

/* Shared memory holds the call's tokens only; the instruction's other columns read the last token again, and no thread
 * reads their sums. The swizzle is the same in every slot: a slot has a multiple of 8 lines. */
template <int SUBS, int TOKENS, int RAW>
static __device__ __forceinline__ lane_addresses<TOKENS> find_addresses(const q8_0_tma_args &a, uint32_t shared,
                                                                        int part, int lane, int sub)
{
    enum { BOTH = SUBS > 1 };
    /* TMA writes [line of 128 columns][row]; with gate_up two boxes, the rows of gate and of up. */
    const uint32_t second = BOTH && lane & 8 ? 1024 + (SUBS == 2 && a.gate_up ? CODE_BYTES - 1024 : 0) : 0;
    const uint32_t chunk = BOTH ? lane / 16 : lane / 8;
    lane_addresses<TOKENS> at;

    if (RAW) {
        at.codes = shared + sub * RAW_BYTES + lane / 4 * RAW_PITCH + part * (RIDGE_Q8_0_RUN * RIDGE_Q8_0_BYTES);
        at.scales = 0;
    } else {
        at.codes = shared + part * a.tile_rows * 128 + lane % 8 * 128 + second + sub * 1024 +
                   (sub && a.gate_up ? sub * (CODE_BYTES - 1024) : 0) + ((chunk ^ (lane % 8)) << 4);
        at.scales = shared + a.off_scales + sub * SCALE_BYTES + lane / 4 * SCALE_PITCH + part * 8;
    }
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
        const int line = part * a.tokens + min(8 * n + lane % 8, a.tokens - 1); /* of 128 bytes */

        at.x[n] = shared + a.off_x + line * 128 + (((lane / 8) ^ (line & 7)) << 4);
        if (TOKENS == 8) /* with 16 tokens there are no registers for it */
            at.x[n] = opaque(at.x[n]);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            at.x_scales[n][t] =
                shared + a.off_x_scales + part * 16 + min(8 * n + lane % 4 * 2 + t, a.tokens - 1) * X_SCALE_PITCH;
            if (TOKENS == 8)
                at.x_scales[n][t] = opaque(at.x_scales[n][t]);
        }
    }
    at.codes = opaque(at.codes);
    at.scales = opaque(at.scales);
    return at;
}

/* Loads x of this warp's 4 blocks and 8 tokens: operand b of four instructions, and the scales of this lane's tokens,
 * 2 (lane % 4) and the next. */
static __device__ __forceinline__ void load_x_fragments(uint32_t codes, uint32_t scales, uint32_t next,
                                                        uint32_t (*code)[2], float (*scale)[4])
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

/* Loads 4 blocks of 16 rows (BOTH: two subtiles) or of 8 from planes: operand a, and the scales of rows lane / 4 and
 * lane / 4 + 8. */
template <int BOTH>
static __device__ __forceinline__ void load_w_planes(uint32_t codes, uint32_t scales, uint32_t (*code)[4],
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

/* The same from raw blocks of 34 bytes: the codes of blocks 0 and 2 of a partition begin in the middle of a word. */
template <int BOTH>
static __device__ __forceinline__ void load_w_raw(uint32_t rows, int lane, uint32_t (*code)[4], float (*scale)[2])
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

/* Adds a k step to acc: 4 blocks of 16 rows (BOTH) or 8, and 8 tokens. This lane has rows lane / 4 and lane / 4 + 8,
 * tokens 2 (lane % 4) and the next. */
template <int BOTH>
static __device__ __forceinline__ void mma_step(const uint32_t (*w)[4], const float (*ws)[2], const uint32_t (*x)[2],
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

/* Quantises x of all k steps to where TMA would write it, with zeros beyond the last column: four lanes a block. A
 * thread has the loads of FLIGHT eighths of a row in flight. */
template <int WIDTH> static __device__ __forceinline__ void quantise_x(const q8_0_tma_args &a, char *memory)
{
    enum { FLIGHT = 1024 / WIDTH };
    const int units = a.k_steps * 128, filled = (int)a.p.blocks * 4, all = a.tokens * units; /* of 8 columns */
    const bool bf16 = a.x_dtype == RIDGE_BF16;

    for (int first = threadIdx.x; first < all; first += FLIGHT * WIDTH) { /* all is a multiple of 32: whole warps */
        float x[FLIGHT][8];

#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
            const int i = first + k * WIDTH, token = i / units, u = i % units;

#pragma unroll
            for (int c = 0; c < 8; c++)
                x[k][c] = 0.0f;
            if (i < all && u < filled)
                q8_0_load8(a.x_floats + token * a.x_stride, u * 8, bf16, x[k]);
        }
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
            const int i = first + k * WIDTH, token = i / units, u = i % units, line = u / 16 * a.tokens + token;
            float scale;
            const uint2 codes = q8_0_quantise8(x[k], &scale);

            if (i >= all)
                break;
            *(uint2 *)(memory + a.off_x + line * 128 + ((u / 2 % 8 ^ (line & 7)) << 4) + u % 2 * 8) = codes;
            if (u % 4 == 0)
                *(float *)(memory + a.off_x_scales + u / 128 * a.x_scales_slot + token * X_SCALE_PITCH +
                           u / 4 % 32 * 4) = scale;
        }
    }
}

/* Without x as codes: the MMA warps bring x into L2, wait for the primary grid, which may write it, and quantise it. */
template <int WIDTH> static __device__ __forceinline__ void stage_x(const q8_0_tma_args &a, char *memory)
{
    const int row_bytes = (int)a.p.blocks * RIDGE_Q8_0_BLOCK * (a.x_dtype == RIDGE_F32 ? 4 : 2);

    for (int token = 0; token < a.tokens; token++)
        for (int at = threadIdx.x * 128; at < row_bytes; at += WIDTH * 128)
            ptx_prefetch_l2(a.x_floats + token * a.x_stride + at);
    ptx_grid_dependency_wait();
    quantise_x<WIDTH>(a, memory);
    ptx_barrier_sync(1, WIDTH); /* orders the MMA warps' writes of x before their reads */
}

/* Waits for a k step's weights and x. With x by TMA and resident, each box is waited for once, in the first tile. */
static __device__ __forceinline__ void wait_step(uint32_t bar, uint32_t full, uint32_t phase, bool wait_x,
                                                 int x_resident, int x_shift, int k_step)
{
    ptx_mbarrier_wait(bar, phase);
    if (wait_x)
        ptx_mbarrier_wait(x_resident ? full + BAR_X_FULL + 8 * (k_step >> x_shift) : bar + BAR_X_FULL,
                          x_resident ? 0 : phase);
}

/* Writes a warp's sums of a tile, [partition][token][row], for the epilogue warps. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void publish_sums(const q8_0_tma_args &a, char *memory, uint32_t sums_full, int lane,
                                                    pipeline_state *sums, const float (*acc)[4])
{
    enum { BOTH = SUBS > 1, PITCH = SUMS_PITCH(SUBS) };
    int thread = threadIdx.x;
    float *to;

    asm volatile("" : "+r"(thread)); /* addresses are computed anew every tile: registers are scarce */
    to = (float *)(memory + a.off_sums) +
         (sums->stage * RIDGE_Q8_0_PARTS + thread / 32 % RIDGE_Q8_0_PARTS) * (TOKENS * PITCH) + thread % 4 * 2 * PITCH +
         thread % 32 / 4 + thread / (32 * RIDGE_Q8_0_PARTS) * 2 * SUB;
    pipeline_acquire(sums_full + 8 * SUM_BUFFERS, *sums);
#pragma unroll
    for (int r = 0; r < 1 + BOTH; r++)
#pragma unroll
        for (int t = 0; t < TOKENS / 4; t++)
            to[(t / 2 * 8 + t % 2) * PITCH + r * SUB] = acc[t / 2][r * 2 + t % 2];
    __syncwarp(); /* every lane's sums are written before the warp arrives */
    if (lane == 0)
        ptx_mbarrier_arrive(sums_full + 8 * sums->stage);
    pipeline_advance(sums, SUM_BUFFERS);
}

/* Releases a stage, by a whole warp, behind a branch that follows the products: what multiplies the data has been
 * issued where a block ends, so that the arrive cannot overtake the loads (cuda/sm90/await.cuh). The dependency on the
 * data that is there costs 36 to 70 us of a token of DeepSeek-V4-Flash. */
static __device__ __forceinline__ void release_stage(uint32_t bar, int lane)
{
    __syncwarp(); /* every lane's reads of the stage come before its release */
    if (lane == 0)
        ptx_mbarrier_arrive(bar + 8 * MAX_STAGES); /* empty[stage] */
}

/* The MMA warps: for each tile, wait for a k step, load its fragments, multiply, release the stage; then publish. */
template <int SUBS, int TOKENS, int RAW>
static __device__ __forceinline__ void consume(const q8_0_tma_args &a, char *memory, uint32_t shared)
{
    enum {
        BOTH = SUBS > 1,
        WIDTH = 32 * MMA_WARPS(SUBS),
        STEP = SUBS * (RAW ? RAW_BYTES : CODE_BYTES),
        LATER = TOKENS == 8 || RAW
    };
    const int warp = threadIdx.x / 32, part = warp % RIDGE_Q8_0_PARTS, lane = threadIdx.x % 32;
    const int sub = warp / RIDGE_Q8_0_PARTS * 2, tiles = a.tiles, k_steps = a.k_steps, stages = a.stages;
    const int x_step = a.tokens * 1024, x_scales_step = a.x_scales_slot, x_resident = a.x_resident, x_shift = a.x_shift;
    const bool x_by_tma = a.x_dtype == RIDGE_I8;
    const uint32_t full = shared + a.off_bars, sums_full = full + 16 * MAX_STAGES;
    const lane_addresses<TOKENS> at = find_addresses<SUBS, TOKENS, RAW>(a, shared, part, lane, sub);
    pipeline_state pos = PIPELINE_CONSUMER, sums = PIPELINE_PRODUCER;
    uint32_t x[4][2];
    float xs[2][4];
    int loaded_slot = -1; /* whose x is in registers */

    if (a.x_dtype != RIDGE_I8)
        stage_x<WIDTH>(a, memory);
    __syncwarp();
    for (int tile = blockIdx.x; tile < tiles; tile += opaque(gridDim.x)) {
        float acc[TOKENS / 8][4] = {};
        uint32_t before = 0; /* full[] of the k step before */

#pragma unroll 1 /* see release_stage */
        for (int k_step = 0; k_step < k_steps; k_step++) {
            const uint32_t bar = full + 8 * pos.stage;
            const int slot = x_resident ? k_step : (int)pos.stage;
            uint32_t w[4][4];
            float ws[4][2];

            if (LATER && k_step)
                release_stage(before, lane);
            wait_step(bar, full, pos.phase, x_by_tma && (!x_resident || tile == blockIdx.x), x_resident, x_shift,
                      k_step);
            if (TOKENS == 8 && (!x_resident || slot != loaded_slot)) /* with one k step, x stays in registers */
                load_x_fragments(at.x[0] + slot * x_step, at.x_scales[0][0] + slot * x_scales_step,
                                 at.x_scales[0][1] + slot * x_scales_step, x, xs);
            if (RAW)
                load_w_raw<BOTH>(at.codes + pos.stage * STEP, lane, w, ws);
            else
                load_w_planes<BOTH>(at.codes + pos.stage * STEP, at.scales + pos.stage * (SUBS * SCALE_BYTES), w, ws);
#pragma unroll
            for (int n = 0; n < TOKENS / 8; n++) {
                if (TOKENS > 8)
                    load_x_fragments(at.x[n] + slot * x_step, at.x_scales[n][0] + slot * x_scales_step,
                                     at.x_scales[n][1] + slot * x_scales_step, x, xs);
                mma_step<BOTH>(w, ws, x, xs, acc[n]);
            }
            loaded_slot = slot;
            if (!LATER) /* the second products have waited for all loads (SASS), and there is no register */
                release_stage(bar, lane);
            before = bar;
            pipeline_advance(&pos, stages);
        }
        if (LATER)
            release_stage(before, lane);
        publish_sums<SUBS, TOKENS>(a, memory, sums_full, lane, &sums, acc);
    }
}
#endif

#endif
