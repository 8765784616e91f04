/* matmul_tma_epilogue.cuh: the epilogue warps of matmul_tma.cuh, which make results of partial sums. */
#ifndef RIDGE_Q8_0_MATMUL_TMA_EPILOGUE_CUH
#define RIDGE_Q8_0_MATMUL_TMA_EPILOGUE_CUH

#include "matmul_tma.cuh"

#if __CUDA_ARCH__ >= 900
/* A thread of the epilogue warps: it has row r of every tile and the tokens begin, begin + step, ... */
typedef struct sums_reader {
    const float *from; /* its first partial sum */
    uint32_t sums_full, sums_free;
    pipeline_state at;
    int r, begin, step;
} sums_reader;

template <int SUBS, int TOKENS>
static __device__ __forceinline__ sums_reader start_reader(const q8_0_tma_args &a, char *memory, uint32_t shared)
{
    const int thread = threadIdx.x - 32 * (MMA_WARPS(SUBS) + 1), r = thread % a.tile_rows, begin = thread / a.tile_rows;
    const uint32_t sums_full = shared + a.off_bars + 8 * 2 * MAX_STAGES;

    return {(const float *)(memory + a.off_sums) + begin * SUMS_PITCH(SUBS) + r,
            sums_full,
            sums_full + 8 * SUM_BUFFERS,
            PIPELINE_CONSUMER,
            r,
            begin,
            32 * EPILOGUE_WARPS(SUBS, TOKENS) / a.tile_rows};
}

static __device__ __forceinline__ void release_sums(sums_reader *f)
{
    __syncwarp(); /* every lane's reads of the sums come before their release */
    if (threadIdx.x % 32 == 0)
        pipeline_release(f->sums_free, f->at.stage);
    pipeline_advance(&f->at, SUM_BUFFERS);
}

/* The epilogue warps begin with a tile before the first: they compute on whatever is in shared memory and store
 * nothing, but this brings their code and parameters into the SM's caches before the first tile's sums are complete. At
 * the end of that tile they wait for the primary grid. */
static __device__ __forceinline__ int warmup_tile(void)
{
    return (int)blockIdx.x - (int)gridDim.x;
}

/* Makes the compiler compute v here, also where it is not stored. */
static __device__ __forceinline__ float keep(float v)
{
    return __uint_as_float(opaque(__float_as_uint(v)));
}

/* Adds the eight partitions of four rows. */
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
        y[k] = keep(ridge_q8_0_tree(part));
    }
}

/* Where a thread stores. It is kept in registers: reads of kernel parameters are slow, and this warp has no other work
 * to hide them behind. */
typedef struct output {
    char *row0[2]; /* row 0 of its token, of either weight */
    int rows[2];
    bool vector[2]; /* four rows from a multiple of four on may be stored at once */
} output;

static __device__ __forceinline__ output find_output(const q8_0_tma_args &a, int token)
{
    const int size = a.p.bf16 ? 2 : 4;
    output to;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        to.row0[i] = (char *)a.p.out[i] + token * a.p.out_stride[i] * size;
        to.rows[i] = (int)a.p.weight[i].rows;
        to.vector[i] = (uintptr_t)to.row0[i] % (4 * size) == 0;
    }
    return to;
}

static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    const uint32_t v = num_pack2<RIDGE_BF16>(lo, hi);

    return num_canonical<RIDGE_BF16>(v & 0xffff) | num_canonical<RIDGE_BF16>(v >> 16) << 16;
}

/* Stores four rows, or as many of them as the matrix has. */
static __device__ __forceinline__ void store4(const float *y, bool bf16, char *row0, int row, int rows, bool vector,
                                              bool valid)
{
    if (!valid)
        return;
    if (vector && row + 4 <= rows) {
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

/* q8_0_matmul and q8_0_pair: a thread has four rows of one token. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void epilogue_store(const q8_0_tma_args &a, char *memory, uint32_t shared)
{
    enum { PITCH = SUMS_PITCH(SUBS), PLANE = TOKENS * PITCH, QUADS = SUBS * SUB / 4 };
    static_assert(TOKENS * QUADS <= 32 * EPILOGUE_WARPS(SUBS, TOKENS), "a thread each");
    const int thread = threadIdx.x - 32 * (MMA_WARPS(SUBS) + 1), token = thread / QUADS, r = thread % QUADS * 4;
    const int tiles = a.tiles, tiles0 = a.tiles0;
    sums_reader f = start_reader<SUBS, TOKENS>(a, memory, shared);
    const float *from = (const float *)(memory + a.off_sums) + token * PITCH + r;
    const output to = find_output(a, token);
    const bool bf16 = a.p.bf16, mine = token < a.tokens;

    for (int tile = warmup_tile(); tile < tiles; tile += gridDim.x) {
        const bool second = tile >= tiles0, valid = tile >= 0;
        const int row = (second ? tile - tiles0 : tile) * (SUBS * SUB) + r;
        const float *parts = from + f.at.stage * (RIDGE_Q8_0_PARTS * PLANE);
        float y[4];

        if (valid)
            pipeline_wait(f.sums_full, f.at);
        if (mine)
            sum_parts4<PLANE>(parts, y);
        if (valid)
            release_sums(&f);
        else
            ptx_grid_dependency_wait(); /* orders the primary grid before our stores, and its writes before our reads */
        if (mine)
            store4(y, bf16, second ? to.row0[1] : to.row0[0], row, second ? to.rows[1] : to.rows[0],
                   second ? to.vector[1] : to.vector[0], valid);
    }
}

/* q8_0_gate_up_swiglu: a tile has the rows of gate first, then those of up. */
template <int SUBS, int TOKENS>
static __device__ __forceinline__ void epilogue_gate_up(const q8_0_tma_args &a, char *memory, uint32_t shared)
{
    enum { PITCH = SUMS_PITCH(SUBS), PLANE = TOKENS * PITCH };
    sums_reader f = start_reader<SUBS, TOKENS>(a, memory, shared);
    const int tokens = a.tokens, tile_rows = a.tile_rows, size = a.p.bf16 ? 2 : 4, rows = (int)a.p.weight[0].rows;
    const int64_t token_step = a.p.out_stride[0] * size;
    char *const row0 = (char *)a.p.out[0] + f.begin * token_step;
    const unsigned act = a.p.act;
    const float *const scale = a.p.token_scale;
    const bool bf16 = a.p.bf16;

    for (int tile = warmup_tile(); tile < a.tiles; tile += gridDim.x) {
        const int row = tile * tile_rows + f.r;
        const bool valid = tile >= 0;

        if (valid)
            pipeline_wait(f.sums_full, f.at);
        for (int token = f.begin; token < tokens && row < rows;
             token += 2 * f.step) { /* two at a time hide each other's latency */
            const float *parts = f.from + f.at.stage * (RIDGE_Q8_0_PARTS * PLANE) + (token - f.begin) * PITCH;
            const int count = token + f.step < tokens ? 2 : 1;
            float y[2] = {}, up[2] = {};

#pragma unroll
            for (int i = 0; i < 2; i++)
                if (i < count) {
                    y[i] = q8_0_sum_parts<PLANE>(parts + i * f.step * PITCH);
                    up[i] = q8_0_sum_parts<PLANE>(parts + i * f.step * PITCH + tile_rows);
                }
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (i < count)
                    y[i] = keep(
                        q8_0_swiglu(act, y[i], up[i], scale && valid ? scale[token + i * f.step] : 1.0f, a.p.swiglu));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                char *const to = row0 + (token - f.begin + i * f.step) * token_step;

                if (i < count && bf16 && valid)
                    num_store<RIDGE_BF16>(to, row, y[i]);
                else if (i < count && valid)
                    num_store<RIDGE_F32>(to, row, y[i]);
            }
        }
        if (valid)
            release_sums(&f);
        else
            ptx_grid_dependency_wait(); /* as above */
    }
}

/* HC expand of four streams, or of one, which is a sum with a residual. With short tiles and up to four tokens, two
 * teams of epilogue warps alternate between tiles, so that one team's residuals are in flight while the other stores: a
 * thread has row r and every token_step-th token of its team's tiles. With 8 k steps a tile, two teams are slower than
 * all warps on one tile. */

/* Loads the residuals of each element of a thread in a tile (tokens t, t + step, ...), and what is added. */
template <int PER>
static __device__ __forceinline__ void load_residuals(const q8_0_tma_args &a, int64_t row, int t, int step,
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
            if (s < a.p.n_hc)
                v[i][s] = res[s * rows];
        v[i][HC_STREAMS] = a.p.add ? a.p.add[t * a.p.add_stride + row] : 0.0f;
    }
}

/* Prefetches the same into L2. */
static __device__ __forceinline__ void prefetch_residuals(const q8_0_tma_args &a, int64_t row, int t, int step)
{
    const int64_t rows = a.p.weight[0].rows;

    for (; t < a.tokens && row < rows; t += step) {
        for (int s = 0; s < a.p.n_hc; s++)
            ptx_prefetch_l2(&a.p.res[t * a.p.res_stride + s * rows + row]);
        if (a.p.add)
            ptx_prefetch_l2(&a.p.add[t * a.p.add_stride + row]);
    }
}

/* Computes and stores one element. factors: post and comb of its token. */
static __device__ __forceinline__ void store_hc(const q8_0_tma_args &a, int64_t row, int token, float y,
                                                const float *streams, const float *factors, bool valid)
{
    const float v = a.p.add ? y + streams[HC_STREAMS] : y;
    float *const out = (float *)a.p.out[0] + token * a.p.out_stride[0] + row;

    if (a.p.y && valid)
        num_store<RIDGE_F32>(a.p.y, token * a.p.y_stride + row, y);
#pragma unroll
    for (int dst = 0; dst < HC_STREAMS; dst++) {
        float acc = ridge_hc_start(v, factors[dst]);

        if (dst >= a.p.n_hc)
            break;
#pragma unroll
        for (int src = 0; src < HC_STREAMS; src++)
            if (src < a.p.n_hc)
                acc = ridge_hc_step(acc, factors[HC_STREAMS + dst + HC_STREAMS * src], streams[src]);
        acc = keep(acc);
        if (valid)
            num_store<RIDGE_F32>(out, dst * a.p.weight[0].rows, acc);
    }
}

/* Loads post and comb of all tokens, by all epilogue warps; of one stream, their first elements. */
template <int WIDTH>
static __device__ __forceinline__ void load_factors(const q8_0_tma_args &a, int thread, float *factors)
{
    for (int i = thread; i < a.tokens * HC_FACTORS; i += WIDTH) {
        const int t = i / HC_FACTORS, k = i % HC_FACTORS;

        if (k < HC_STREAMS ? k < a.p.n_hc : k - HC_STREAMS < a.p.n_hc * a.p.n_hc)
            factors[i] = k < HC_STREAMS ? a.p.post[t * a.p.post_ld + k] : a.p.comb[t * a.p.comb_ld + k - HC_STREAMS];
    }
}

template <int SUBS, int TOKENS>
static __device__ __forceinline__ void epilogue_hc(const q8_0_tma_args &a, char *memory, uint32_t shared)
{
    enum {
        WIDTH = 32 * EPILOGUE_WARPS(SUBS, TOKENS),
        ROWS = SUBS * SUB,
        PLANE = TOKENS * SUMS_PITCH(SUBS),
        PER = (TOKENS * ROWS + WIDTH - 1) / WIDTH
    };
    static_assert(WIDTH / 2 % ROWS == 0 && WIDTH / 2 / ROWS * PER >= 4, "either team has all elements of four tokens");
    const int thread = threadIdx.x - 32 * (MMA_WARPS(SUBS) + 1), two = TOKENS > 8 ? 0 : a.two_teams;
    const int team = two && thread >= WIDTH / 2;
    const int own = thread - team * (WIDTH / 2), r = own % ROWS, begin = own / ROWS, token_step = WIDTH / ROWS >> two;
    const int step = (int)gridDim.x << two, first = (int)blockIdx.x + team * (int)gridDim.x;
    const uint32_t sums_full = shared + a.off_bars + 8 * 2 * MAX_STAGES;
    const float *const from = (const float *)(memory + a.off_sums) + begin * SUMS_PITCH(SUBS) + r;
    float *const factors = (float *)(memory + a.off_factors);
    const bool ahead = a.p.n_hc == HC_STREAMS || a.p.n_hc == 1; /* what is read beside the product */
    float streams[PER][HC_STREAMS + 1] = {};
    uint32_t parity = 0;
    int buffer = team; /* of the sums: with two teams, each has a buffer of its own */

    for (int i = 0; ahead && i < 2 - two; i++)
        prefetch_residuals(a, ((int64_t)first + i * (int)gridDim.x) * ROWS + r, begin, token_step);
    for (int t = thread; ahead && t < a.tokens; t += WIDTH) {
        ptx_prefetch_l2(a.p.post + t * a.p.post_ld);
        ptx_prefetch_l2(a.p.comb + t * a.p.comb_ld);
        ptx_prefetch_l2(a.p.comb + t * a.p.comb_ld + a.p.n_hc * a.p.n_hc - 1);
    }
    for (int tile = first - step; tile < a.tiles; tile += step) { /* see warmup_tile */
        const int64_t row = (int64_t)tile * ROWS + r;
        const bool valid = tile >= 0;

        if (valid)
            ptx_mbarrier_wait(sums_full + 8 * buffer, parity);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int t = begin + i * token_step;
            float y;

            if (t >= a.tokens || row >= a.p.weight[0].rows)
                continue;
            y = q8_0_sum_parts<PLANE>(from + buffer * (RIDGE_Q8_0_PARTS * PLANE) + i * token_step * SUMS_PITCH(SUBS));
            if (ahead)
                store_hc(a, row, t, y, streams[i], factors + t * HC_FACTORS, valid);
            else if (valid)
                q8_0_epilogue_hc(a.p, row, t, y, NULL);
        }
        if (valid) {
            __syncwarp(); /* every lane's reads of the sums come before their release */
            if (threadIdx.x % 32 == 0)
                ptx_mbarrier_arrive(sums_full + 8 * (SUM_BUFFERS + buffer));
            parity ^= two | buffer;
            buffer ^= !two;
        } else {
            ptx_grid_dependency_wait(); /* as above */
        }
        if (ahead)
            load_residuals<PER>(a, row + (int64_t)step * ROWS, begin, token_step, streams);
        if (ahead && !valid) {
            load_factors<WIDTH>(a, thread, factors);
            ptx_barrier_sync(2, WIDTH);
        }
    }
}
#endif

#endif
