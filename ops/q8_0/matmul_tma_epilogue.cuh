/* matmul_tma_epilogue.cuh: the finishing warps of matmul_tma.cu: partial sums to results. */
#ifndef RIDGE_Q8_0_FINISH_CUH
#define RIDGE_Q8_0_FINISH_CUH

#include "matmul_tma_mainloop.cuh"

#if __CUDA_ARCH__ >= 900
/* What the finishing warps have in common: a thread has one row of every tile and every step-th token, begin first. */
typedef struct finisher {
    const float *from; /* its first partial sum */
    uint32_t summed, taken, parity;
    int sums, r, begin, step;
} finisher;

template <int SUBS, int TOKENS>
static __device__ __forceinline__ finisher start_finisher(const stream_args &a, char *memory, uint32_t shared)
{
    const int thread = threadIdx.x - 32 * (CONSUMERS(SUBS) + 1), r = thread % a.high, begin = thread / a.high;
    const uint32_t summed = shared + a.at_bars + 8 * 2 * MOST_STAGES;

    return {(const float *)(memory + a.at_sums) + begin * SUMS_PITCH(SUBS) + r,
            summed,
            summed + 8 * SUMS,
            0,
            0,
            r,
            begin,
            32 * FINISHERS(SUBS, TOKENS) / a.high};
}

static __device__ __forceinline__ void take_sums(finisher *f)
{
    __syncwarp(); /* every lane has read the sums */
    if (threadIdx.x % 32 == 0)
        ptx_mbarrier_arrive(f->taken + 8 * f->sums);
    f->sums ^= 1;
    f->parity ^= f->sums == 0;
}

/* Finishing warps begin with a tile that is not there: its sums are whatever lies in shared memory and nothing is
 * stored, but code and parameters, which come from far away the first time, are on the multiprocessor when the first
 * tile is done. The kernels in front have finished at its end. */
static __device__ __forceinline__ int first_tile(void)
{
    return (int)blockIdx.x - (int)gridDim.x;
}

/* Keeps the compiler from computing v only where it is stored. */
static __device__ __forceinline__ float computed(float v)
{
    return __uint_as_float(kept(__float_as_uint(v)));
}

/* The eight partitions' sums of four rows, added. */
template <int PLANE> static __device__ __forceinline__ void sum_parts4(const float *from, float *y)
{
    float4 v[RIDGE_Q8_0_PARTS];

#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_PARTS; i++)
        v[i] = *(const float4 *)(from + i * PLANE);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float part[RIDGE_Q8_0_PARTS];

#pragma unroll
        for (int i = 0; i < RIDGE_Q8_0_PARTS; i++)
            part[i] = k == 0 ? v[i].x : k == 1 ? v[i].y : k == 2 ? v[i].z : v[i].w;
        y[k] = computed(ridge_q8_0_tree(part));
    }
}

/* Where the results of a thread go. Everything is in registers: a warp that runs alone has only its own instructions to
 * hide behind, and reads of the kernel's parameters are slow. */
typedef struct target {
    char *row0[2]; /* its token's row 0 of either weight */
    int rows[2];
    bool whole[2]; /* four results at a multiple of four begin at a multiple of their size */
} target;

static __device__ __forceinline__ target start_target(const stream_args &a, int token)
{
    const int size = a.p.bf16 ? 2 : 4;
    target to;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        to.row0[i] = (char *)a.p.out[i] + token * a.p.out_stride[i] * size;
        to.rows[i] = (int)a.p.weight[i].rows;
        to.whole[i] = (uintptr_t)to.row0[i] % (4 * size) == 0;
    }
    return to;
}

static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    const uint32_t v = num_pack2<RIDGE_BF16>(lo, hi);

    return num_canonical<RIDGE_BF16>(v & 0xffff) | num_canonical<RIDGE_BF16>(v >> 16) << 16;
}

/* Four rows, or those of them that there are. */
static __device__ __forceinline__ void store4(const float *y, bool bf16, char *row0, int row, int rows, bool whole,
                                              bool there)
{
    if (!there)
        return;
    if (whole && row + 4 <= rows) {
        if (bf16)
            *(uint2 *)(row0 + row * 2) = make_uint2(pack2(y[0], y[1]), pack2(y[2], y[3]));
        else
            *(uint4 *)(row0 + row * 4) = num_pack<RIDGE_F32>(y);
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (row + k < rows && bf16)
            num_store<RIDGE_BF16>(row0, row + k, y[k]);
        else if (row + k < rows)
            num_store<RIDGE_F32>(row0, row + k, y[k]);
}

/* q8_0_matmul, q8_0_pair: a thread has four rows of a token, so no thread has more than one. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void finish(const stream_args &a, char *memory, uint32_t shared)
{
    enum { PITCH = SUMS_PITCH(SUBS), PLANE = TOKENS * PITCH, QUADS = SUBS * SUB / 4 };
    static_assert(TOKENS * QUADS <= 32 * FINISHERS(SUBS, TOKENS), "a thread each");
    const int thread = threadIdx.x - 32 * (CONSUMERS(SUBS) + 1), token = thread / QUADS, r = thread % QUADS * 4;
    const int tiles = a.tiles, tiles0 = a.tiles0;
    finisher f = start_finisher<SUBS, TOKENS>(a, memory, shared);
    const float *from = (const float *)(memory + a.at_sums) + token * PITCH + r;
    const target to = start_target(a, token);
    const bool bf16 = a.p.bf16, mine = token < a.tokens;

    for (int tile = first_tile(); tile < tiles; tile += gridDim.x) {
        const bool second = tile >= tiles0, there = tile >= 0;
        const int row = (second ? tile - tiles0 : tile) * (SUBS * SUB) + r;
        const float *parts = from + f.sums * (RIDGE_Q8_0_PARTS * PLANE);
        float y[4];

        if (there)
            ptx_mbarrier_wait(f.summed + 8 * f.sums, f.parity);
        if (mine)
            sum_parts4<PLANE>(parts, y);
        if (there)
            take_sums(&f);
        else
            ptx_grid_wait(); /* before anything of the results is written, or read by the epilogues */
        if (mine)
            store4(y, bf16, second ? to.row0[1] : to.row0[0], row, second ? to.rows[1] : to.rows[0],
                   second ? to.whole[1] : to.whole[0], there);
    }
}

/* The rows of gate come first in a tile, then those of up. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void finish_gate_up(const stream_args &a, char *memory, uint32_t shared)
{
    enum { PITCH = SUMS_PITCH(SUBS), PLANE = TOKENS * PITCH };
    finisher f = start_finisher<SUBS, TOKENS>(a, memory, shared);
    const int tokens = a.tokens, high = a.high, size = a.p.bf16 ? 2 : 4, rows = (int)a.p.weight[0].rows;
    const int64_t token_step = a.p.out_stride[0] * size;
    char *const row0 = (char *)a.p.out[0] + f.begin * token_step;
    const unsigned act = a.p.act;
    const float *const scale = a.p.token_scale;
    const bool bf16 = a.p.bf16;

    for (int tile = first_tile(); tile < a.tiles; tile += gridDim.x) {
        const int row = tile * high + f.r;
        const bool there = tile >= 0;

        if (there)
            ptx_mbarrier_wait(f.summed + 8 * f.sums, f.parity);
        for (int token = f.begin; token < tokens && row < rows; token += 2 * f.step) { /* two hide each other */
            const float *parts = f.from + f.sums * (RIDGE_Q8_0_PARTS * PLANE) + (token - f.begin) * PITCH;
            const int count = token + f.step < tokens ? 2 : 1;
            float y[2] = {}, up[2] = {};

#pragma unroll
            for (int i = 0; i < 2; i++)
                if (i < count) {
                    y[i] = q8_0_sum_parts<PLANE>(parts + i * f.step * PITCH);
                    up[i] = q8_0_sum_parts<PLANE>(parts + i * f.step * PITCH + high);
                }
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (i < count)
                    y[i] = computed(
                        q8_0_swiglu(act, y[i], up[i], scale && there ? scale[token + i * f.step] : 1.0f, a.p.swiglu));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                char *const to = row0 + (token - f.begin + i * f.step) * token_step;

                if (i < count && bf16 && there)
                    num_store<RIDGE_BF16>(to, row, y[i]);
                else if (i < count && there)
                    num_store<RIDGE_F32>(to, row, y[i]);
            }
        }
        if (there)
            take_sums(&f);
        else
            ptx_grid_wait(); /* before anything of the results is written, or read by the epilogues */
    }
}

/* HC expand. Of short tiles and up to four tokens two teams of finishing warps take the tiles in turn, so that a team's
 * residuals are on their way while the other one finishes: a thread has row r and every step-th token of its team's
 * tiles. With 8 turns a tile two teams are slower than all warps at one tile. */

/* The residuals of a thread's elements of a tile, tokens t, t + step and so on, with four streams; and what is added.
 */
template <int PER>
static __device__ __forceinline__ void fetch_streams(const stream_args &a, int64_t row, int t, int step,
                                                     float (*v)[HC_STREAMS + 1])
{
    const int64_t rows = a.p.weight[0].rows;

#pragma unroll
    for (int i = 0; i < PER; i++, t += step) {
        const float *const res = a.p.res + t * a.p.res_stride + row;

        if (t >= a.tokens || row >= rows)
            return;
#pragma unroll
        for (int s = 0; s < HC_STREAMS; s++)
            v[i][s] = res[s * rows];
        v[i][HC_STREAMS] = a.p.add ? a.p.add[t * a.p.add_stride + row] : 0.0f;
    }
}

/* The same to L2 only. */
static __device__ __forceinline__ void announce_streams(const stream_args &a, int64_t row, int t, int step)
{
    const int64_t rows = a.p.weight[0].rows;

    for (; t < a.tokens && row < rows; t += step) {
        for (int s = 0; s < HC_STREAMS; s++)
            ptx_prefetch_l2(&a.p.res[t * a.p.res_stride + s * rows + row]);
        if (a.p.add)
            ptx_prefetch_l2(&a.p.add[t * a.p.add_stride + row]);
    }
}

/* One element; factors: post and comb of its token. */
static __device__ __forceinline__ void finish_four(const stream_args &a, int64_t row, int token, float y,
                                                   const float *streams, const float *factors, bool there)
{
    const float v = a.p.add ? y + streams[HC_STREAMS] : y;
    float *const out = (float *)a.p.out[0] + token * a.p.out_stride[0] + row;

    if (a.p.y && there)
        num_store<RIDGE_F32>(a.p.y, token * a.p.y_stride + row, y);
#pragma unroll
    for (int dst = 0; dst < HC_STREAMS; dst++) {
        float acc = ridge_hc_start(v, factors[dst]);

#pragma unroll
        for (int src = 0; src < HC_STREAMS; src++)
            acc = ridge_hc_step(acc, factors[HC_STREAMS + dst + HC_STREAMS * src], streams[src]);
        acc = computed(acc);
        if (there)
            num_store<RIDGE_F32>(out, dst * a.p.weight[0].rows, acc);
    }
}

/* post and comb of all tokens, by all finishing warps. */
template <int WIDTH>
static __device__ __forceinline__ void fetch_factors(const stream_args &a, int thread, float *factors)
{
    for (int i = thread; i < a.tokens * HC_FACTORS; i += WIDTH) {
        const int t = i / HC_FACTORS, k = i % HC_FACTORS;

        factors[i] = k < HC_STREAMS ? a.p.post[t * a.p.post_ld + k] : a.p.comb[t * a.p.comb_ld + k - HC_STREAMS];
    }
}

template <int SUBS, int TOKENS>
static __device__ __forceinline__ void finish_hc(const stream_args &a, char *memory, uint32_t shared)
{
    enum {
        WIDTH = 32 * FINISHERS(SUBS, TOKENS),
        ROWS = SUBS * SUB,
        PLANE = TOKENS * SUMS_PITCH(SUBS),
        PER = (TOKENS * ROWS + WIDTH - 1) / WIDTH
    };
    static_assert(WIDTH / 2 % ROWS == 0 && WIDTH / 2 / ROWS * PER >= 4, "either team has all elements of four tokens");
    const int thread = threadIdx.x - 32 * (CONSUMERS(SUBS) + 1), two = TOKENS > 8 ? 0 : a.two;
    const int team = two && thread >= WIDTH / 2;
    const int own = thread - team * (WIDTH / 2), r = own % ROWS, begin = own / ROWS, token_step = WIDTH / ROWS >> two;
    const int step = (int)gridDim.x << two, first = (int)blockIdx.x + team * (int)gridDim.x;
    const uint32_t summed = shared + a.at_bars + 8 * 2 * MOST_STAGES;
    const float *const from = (const float *)(memory + a.at_sums) + begin * SUMS_PITCH(SUBS) + r;
    float *const factors = (float *)(memory + a.at_factors);
    const bool four = a.p.n_hc == HC_STREAMS;
    float streams[PER][HC_STREAMS + 1] = {};
    uint32_t parity = 0;
    int sums = team; /* where they lie: with two teams always in the same place */

    for (int ahead = 0; four && ahead < 2 - two; ahead++)
        announce_streams(a, ((int64_t)first + ahead * (int)gridDim.x) * ROWS + r, begin, token_step);
    for (int t = thread; four && t < a.tokens; t += WIDTH) {
        ptx_prefetch_l2(a.p.post + t * a.p.post_ld);
        ptx_prefetch_l2(a.p.comb + t * a.p.comb_ld);
        ptx_prefetch_l2(a.p.comb + t * a.p.comb_ld + HC_STREAMS * HC_STREAMS - 1);
    }
    for (int tile = first - step; tile < a.tiles; tile += step) { /* the first is not there: see first_tile */
        const int64_t row = (int64_t)tile * ROWS + r;
        const bool there = tile >= 0;

        if (there)
            ptx_mbarrier_wait(summed + 8 * sums, parity);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int t = begin + i * token_step;
            float y;

            if (t >= a.tokens || row >= a.p.weight[0].rows)
                continue;
            y = q8_0_sum_parts<PLANE>(from + sums * (RIDGE_Q8_0_PARTS * PLANE) + i * token_step * SUMS_PITCH(SUBS));
            if (four)
                finish_four(a, row, t, y, streams[i], factors + t * HC_FACTORS, there);
            else if (there)
                q8_0_finish_hc(a.p, row, t, y, NULL);
        }
        if (there) {
            __syncwarp(); /* every lane has read the sums */
            if (threadIdx.x % 32 == 0)
                ptx_mbarrier_arrive(summed + 8 * (SUMS + sums));
            parity ^= two | sums;
            sums ^= !two;
        } else {
            ptx_grid_wait(); /* before anything of the results is written, or read by the epilogues */
        }
        if (four)
            fetch_streams<PER>(a, row + (int64_t)step * ROWS, begin, token_step, streams);
        if (four && !there) {
            fetch_factors<WIDTH>(a, thread, factors);
            ptx_barrier_sync(2, WIDTH);
        }
    }
}
#endif

#endif
