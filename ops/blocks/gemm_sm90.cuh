/* gemm_sm90.cuh: products of many tokens (prompts) with weights in block formats on Hopper, by wgmma on int8 tensor
 * cores; one kernel for all formats, with the bits of decoding.
 *
 * A cluster computes tiles of 128 weight rows by BN tokens: each of its CTAs goes through some of the eight partitions
 * of the canonical order, partition by partition, so that an element needs one running sum, and the tree a few sums of
 * earlier partitions (q8_0/gemm.cuh); the tree goes on over the CTAs' sums in distributed shared memory. A producer
 * warp brings stages of a run, 128 columns; two consumer warpgroups have 64 rows and all tokens each.
 *
 * Weights come as they are, a unit of each 16 rows in one bulk copy. The order of codes in tiles is that of the A
 * operand of wgmma in registers, so that a warp unpacks its 16 rows by the format's function for decoding (mma.cuh) and
 * multiplies; nothing is written back. Offsets are subtracted from the codes, and the sub-scales of Q2_K (codes of 6
 * bits then) multiplied into them; those of Q6_K make 13 bits, which two products sum, the upper 7 and the lower 6.
 *
 * A block of 32 columns is a wgmma onto zero of half of the tokens; while one half's sums are scaled, the other's are
 * computed. An element of a block costs three instructions: the conversion of the dot, the product of both scales, the
 * fma; one more for each minimum, and for Q6_K.
 *
 *     full[s]   the bytes of stage s have arrived: orders their writes before the consumers' reads
 *     empty[s]  an arrival of each consumer warp: its reads of stage s come before the next writes */
#ifndef RIDGE_BLOCKS_GEMM_SM90_CUH
#define RIDGE_BLOCKS_GEMM_SM90_CUH

#include "cuda/sm90/await.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/sm90/wgmma_s8.cuh"
#include "gemm_args.cuh"
#include "mma.cuh"
#include "ops/q8_0/gemm.cuh"

/* The numbers of a tile. THREADS, and ELEMENTS of a thread, are those of a warpgroup (gemm_fold). With 128 tokens a
 * cluster has at least two CTAs, so that two sums are kept at most. */
template <class F, int BN_, int KEEP_REGS_> struct block_gemm_tile {
    enum {
        BN = BN_,
        KEEP_REGS = KEEP_REGS_,
        THREADS = 128,
        ELEMENTS = GEMM_WG_ROWS * BN / THREADS,
        DEPTH = BN == 128 ? 2 : 3, /* kept sums */
        SUMS = F::X == BLOCK_X_START_16 ? 2 : 1,
        NUMBERS = GEMM_NUMBERS(F::X),
        CHUNK = BN / 2 / SUMS < 16 ? 16 : BN / 2 / SUMS, /* tokens of a product */
        CHUNKS = BN / CHUNK,
        PARTS = CHUNK / 2, /* elements of a thread in a chunk */
        /* Of a stage: codes of x, numbers of x [number][4 blocks][BN], units. */
        AT_NUMBERS = BN * BLOCK_RUN,
        X_BYTES = AT_NUMBERS + NUMBERS * 4 * BN * 4,
        AT_UNITS = X_BYTES,
        STAGE_BYTES = (AT_UNITS + GEMM_TILES * F::UNIT + 1023) / 1024 * 1024,
        /* Of a warpgroup: sums of earlier partitions, or the results before they are stored. */
        PITCH = GEMM_WG_ROWS + 4,
        KEPT = (DEPTH * ELEMENTS - KEEP_REGS) * THREADS,
        FLOATS = KEPT > BN *PITCH ? KEPT + 0 : BN *PITCH,
        FIXED = F::TABLES + 2 * FLOATS * 4 + 256,
        FIT = (232448 - FIXED) / STAGE_BYTES,
        RING = FIT > 6 ? 6 : FIT,
        AT_TABLES = RING * STAGE_BYTES,
        AT_FLOATS = AT_TABLES + F::TABLES,
        AT_BARS = AT_FLOATS + 2 * FLOATS * 4,
        SHARED = AT_BARS + 256
    };
    static_assert(RING >= 2 && F::UNIT % 16 == 0 && F::TABLES % 128 == 0, "a stage each for writes and reads");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Which weight's tile of 16 rows the i-th of a CTA's is. Of gate and up a warpgroup has two tiles each. */
static __device__ __forceinline__ const uint8_t *gemm_tile_of(const block_gemm_args &a, int tile, int i)
{
    int which = tile >= a.tiles[0], first = (which ? tile - a.tiles[0] : tile) * GEMM_TILES + i;

    if (a.p.gate_up) {
        which = i >> 1 & 1;
        first = tile * (GEMM_TILES / 2) + (i >> 2) * 2 + (i & 1);
    }
    /* beyond the last tile the last one again, whose results are not stored */
    return a.p.weight[which].tiles + min(first, (a.p.weight[which].rows - 1) / BLOCK_ROWS) * a.p.weight[which].stride;
}

/* --------------------------------------------------------------------------------------------------------- producer */

/* By one thread: all stages of a tile that this CTA has. */
template <class F, class T>
static __device__ __forceinline__ void gemm_load_tile(const block_gemm_args &a, int work, int first, int parts,
                                                      uint32_t ring, uint32_t full, uint32_t empty, pipeline_state *at)
{
    const int first_token = work % a.token_tiles * T::BN, tile = work / a.token_tiles;

#pragma unroll 1
    for (int part = first; part < first + parts; part++)
#pragma unroll 1
        for (int run = part; run < a.runs; run += RIDGE_Q8_0_PARTS) {
            const uint32_t to = ring + at->stage * T::STAGE_BYTES, bar = full + at->stage * 8;
            const bool tail = F::SMALL && a.p.tail && run >> 1 == a.p.units - 1;
            const int codes = tail ? F::CODES / 2 : F::CODES, scales = F::UNIT - F::CODES;
            const int64_t unit = (int64_t)(run >> 1) * F::UNIT;

            pipeline_acquire(empty, *at);
            ptx_mbarrier_expect(bar, (uint32_t)(T::X_BYTES + GEMM_TILES * (codes + scales)));
            ptx_tma_load_2d(to, &a.x, run * BLOCK_RUN, first_token, bar);
#pragma unroll
            for (int k = 0; k < T::NUMBERS; k++)
                ptx_tma_load_2d(to + T::AT_NUMBERS + k * 16 * T::BN, &a.numbers, first_token, k * a.planes + run * 4,
                                bar);
#pragma unroll 1
            for (int i = 0; i < GEMM_TILES; i++) {
                const uint8_t *from = gemm_tile_of(a, tile, i) + unit;

                ptx_bulk_load(to + T::AT_UNITS + i * F::UNIT, from, (uint32_t)(tail ? codes : F::UNIT), bar);
                if (tail) /* the scales lie where they always do */
                    ptx_bulk_load(to + T::AT_UNITS + i * F::UNIT + F::CODES, from + codes, (uint32_t)scales, bar);
            }
            pipeline_advance(at, T::RING);
        }
}

/* By four warps, of which one thread loads; all take part in the consumers' barriers. */
template <class F, class T>
static __device__ void gemm_produce(const block_gemm_args &a, int rank, uint32_t ring, uint32_t full, uint32_t empty)
{
    const int parts = RIDGE_Q8_0_PARTS / a.split;
    const bool loads = threadIdx.x < 32 && ptx_elect();
    pipeline_state at = PIPELINE_PRODUCER;

    for (int work = (int)blockIdx.x / a.split; work < a.work; work += (int)gridDim.x / a.split) {
        if (loads)
            gemm_load_tile<F, T>(a, work, rank * parts, parts, ring, full, empty, &at);
        __syncwarp(); /* the cluster barriers are .aligned */
        ptx_cluster_sync();
        ptx_cluster_sync();
    }
}

/* --------------------------------------------------------------------------------------------------------- consumers
 */

/* Each byte below 128 less `offset`. */
static __device__ __forceinline__ uint32_t gemm_less(uint32_t bytes, uint32_t offset)
{
    return ((bytes | 0x80808080u) - offset * 0x01010101u) ^ 0x80808080u;
}

/* Codes times a sub-scale, 13 bits: the upper 7 and the lower 6 of each, signed. */
static __device__ __forceinline__ void gemm_times_sub(uint32_t code, int sub, uint32_t *high, uint32_t *low)
{
    const uint32_t plus = (uint32_t)(8224 - 32 * sub) * 0x00010001u; /* 64 * 128 + 32, so that nothing is negative */
    const uint32_t even = (code & 0x00ff00ffu) * (uint32_t)sub + plus;
    const uint32_t odd = (code >> 8 & 0x00ff00ffu) * (uint32_t)sub + plus;

    *high = ((even >> 6 & 0x00ff00ffu) | (odd << 2 & 0xff00ff00u)) ^ 0x80808080u;
    *low = gemm_less((even & 0x003f003fu) | (odd << 8 & 0x3f003f00u), 32);
}

/* The A operands of block j of run q of a unit, out of its codes. */
template <class F, class T>
static __device__ __forceinline__ void gemm_operands(const block_scales *s, int q, int j, const uint32_t *codes,
                                                     uint32_t (*a)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int half = i >> 1;

        if (F::X == BLOCK_X_START) {
            a[0][i] = gemm_less(codes[i], F::OFFSET);
        } else if (F::X >= BLOCK_X_START_16) {
            const uint32_t sub = __shfl_sync(~0u, s->sub[j], (threadIdx.x & 28) + 2 * q + (i & 1));

            if (F::X == BLOCK_X_START_16)
                gemm_times_sub(codes[i], half ? (int32_t)sub >> 16 : (int32_t)(int16_t)sub, &a[0][i],
                               &a[T::SUMS - 1][i]);
            else
                a[0][i] = (codes[i] >> 2 * (j & 1)) * (sub >> 8 * half & 255);
        } else {
            a[0][i] = codes[i];
        }
    }
}

/* Adds a chunk of a block to the sums. w, m: of rows g and g + 8; numbers: of x in shared memory, a thread's. */
template <class F, class T>
static __device__ __forceinline__ void gemm_scale(const int32_t *d, const float *w, const float (*m)[2],
                                                  uint32_t numbers, float *acc)
{
#pragma unroll
    for (int n = 0; n < T::CHUNK / 16; n++) {
        float x[T::NUMBERS][4];

#pragma unroll
        for (int k = 0; k < T::NUMBERS; k++)
            ptx_load_shared4(x[k], numbers + n * 64 + k * 16 * T::BN);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int i = 8 * n + e, row = e >> 1 & 1, token = (e >> 2) * 2 + (e & 1);
            const int32_t dot = T::SUMS == 2 ? d[i] * 64 + d[T::PARTS + i] : d[i];

            acc[i] = __fmaf_rn(__fmul_rn(w[row], x[0][token]), __int2float_rn(dot), acc[i]);
#pragma unroll
            for (int k = 1; k < T::NUMBERS; k++)
                acc[i] = __fmaf_rn(m[row][k - 1], x[k][token], acc[i]);
        }
    }
}

template <class T> static __device__ __forceinline__ void gemm_issue(int32_t *d, const uint32_t (*a)[4], uint64_t x)
{
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < T::SUMS; k++)
        wgmma_s8_registers<T::CHUNK>(d + k * T::PARTS, a[k], x);
    wgmma_commit();
}

/* Adds a run, which lies in a stage, to the sums. */
template <class F, class T>
static __device__ __forceinline__ void gemm_run(const char *unit, const char *tables, uint32_t stage, int q, float *acc)
{
    enum { STEPS = 4 * T::CHUNKS };
    const int lane = threadIdx.x % 32;
    const uint64_t x = wgmma_descriptor(stage);
    const uint32_t numbers = stage + T::AT_NUMBERS + lane % 4 * 16;
    uint32_t codes[4][4], a[4][T::SUMS][4];
    int32_t d[2][T::SUMS * T::PARTS];
    block_scales s;
    float w[2], m[2][2];

    block_own_scales(F(), unit, tables, lane, &s);
    block_codes(F(), unit, tables, lane, q, codes);
#pragma unroll
    for (int j = 0; j < 4; j++)
        gemm_operands<F, T>(&s, q, j, codes[j], a[j]);
    gemm_issue<T>(d[0], a[0], x);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const int j = step / T::CHUNKS, chunk = step % T::CHUNKS, next = step + 1;

        if (next < STEPS)
            gemm_issue<T>(d[next % 2], a[next / T::CHUNKS],
                          x + next / T::CHUNKS * 2 + next % T::CHUNKS * (T::CHUNK * BLOCK_RUN >> 4));
        if (chunk == 0) {
            uint32_t sub[2];
            float min[2];

            block_hand_out<F>(&s, q, j, lane, w, min, sub);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                m[h][0] = F::X == BLOCK_X_SUM_16 ? -__fmul_rn(min[h], block_byte_float(sub[h], 2)) : min[h];
                m[h][1] = F::X == BLOCK_X_SUM_16 ? -__fmul_rn(min[h], block_byte_float(sub[h], 3)) : 0.0f;
            }
        }
        if (next < STEPS)
            wgmma_wait_before();
        else
            wgmma_wait();
        wgmma_pin_s32<T::SUMS * T::PARTS>(d[step % 2]);
        gemm_scale<F, T>(d[step % 2], w, m, numbers + j * T::BN * 4 + chunk * T::CHUNK * 4, acc + chunk * T::PARTS);
    }
}

/* Results to the warpgroup's shared memory, [token][row], so that neighbouring threads store neighbouring rows. */
template <class T> static __device__ __forceinline__ void gemm_stage_results(float *memory, const float *acc)
{
    const int lane = threadIdx.x % 32;
    float *to = memory + lane % 4 * 2 * T::PITCH + threadIdx.x % T::THREADS / 32 * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < T::ELEMENTS; i++)
        to[(i / 4 * 8 + i % 2) * T::PITCH + i / 2 % 2 * 8] = acc[i];
}

/* The tree over the sums of a cluster's CTAs; those that are not there add +0, which changes no bit. */
static __device__ __forceinline__ float gemm_sum(const float *from, int split)
{
    float part[RIDGE_Q8_0_PARTS];

#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_PARTS; i++)
        part[i] = i < split ? ptx_load_cluster(ptx_map(ptx_shared(from), (uint32_t)i)) : 0.0f;
    return ridge_block_tree(part);
}

/* This CTA's share of a warpgroup's results: a thread has one row of every `step`-th token. */
template <class T>
static __device__ __forceinline__ void gemm_store_results(const block_gemm_args &a, int work, int rank, int warpgroup,
                                                          const float *memory)
{
    const int thread = threadIdx.x % T::THREADS, shift = a.p.gate_up ? 5 : 6, column = thread & ((1 << shift) - 1);
    const int first_token = work % a.token_tiles * T::BN, tile = work / a.token_tiles;
    const int tokens = min(a.p.tokens - first_token, (int)T::BN), step = T::THREADS * a.split >> shift;
    const int which = !a.p.gate_up && tile >= a.tiles[0];
    const block_weight &w = a.p.weight[which];
    const int row = (which ? tile - a.tiles[0] : tile) * (GEMM_BM >> a.p.gate_up) + (warpgroup << shift) + column;

    if (row >= w.rows)
        return;
    for (int i = (T::THREADS * rank + thread) >> shift; i < tokens; i += step) {
        const int token = first_token + i;
        float y = block_add_bias(w.bias, row, gemm_sum(memory + i * T::PITCH + column, a.split));

        if (a.p.gate_up) {
            const float up = block_add_bias(a.p.weight[1].bias, row,
                                            gemm_sum(memory + i * T::PITCH + column + GEMM_WG_ROWS / 2, a.split));

            y = q8_0_swiglu(a.p.act, y, up, a.p.token_scale ? a.p.token_scale[token] : 1.0f, a.p.swiglu);
        } else if (a.p.residual) {
            y += block_residual(a.p, row, token);
        }
        block_store(a.p, w, row, token, y);
    }
}

template <class F, class T>
static __device__ void gemm_consume(const block_gemm_args &a, int rank, int warpgroup, const char *memory,
                                    float *results, uint32_t full, uint32_t empty)
{
    const int thread = threadIdx.x % T::THREADS, parts = RIDGE_Q8_0_PARTS / a.split;
    const char *unit = memory + T::AT_UNITS + (warpgroup * 4 + thread / 32) * F::UNIT;
    const uint32_t ring = ptx_shared(memory);
    pipeline_state at = PIPELINE_CONSUMER;
    float acc[T::ELEMENTS];
    gemm_kept<T> kept;

    kept.shared = ptx_shared(results) + thread * 16;
    for (int work = (int)blockIdx.x / a.split; work < a.work; work += (int)gridDim.x / a.split) {
#pragma unroll
        for (int i = 0; i < T::ELEMENTS; i++)
            acc[i] = 0.0f;
#pragma unroll 1
        for (int part = 0; part < parts; part++) {
            const int first = rank * parts + part;

#pragma unroll 1
            for (int run = first; run < a.runs; run += RIDGE_Q8_0_PARTS) {
                pipeline_wait(full, at);
                gemm_run<F, T>(unit + at.stage * T::STAGE_BYTES, memory + T::AT_TABLES,
                               ring + at.stage * T::STAGE_BYTES, first & 1, acc);
                __syncwarp(); /* orders the warp's reads before the release */
                if (threadIdx.x % 32 == 0)
                    pipeline_release(empty + pipeline_behind_sums<T::ELEMENTS>(acc, a.none), at.stage);
                pipeline_advance(&at, T::RING);
            }
            gemm_fold<T>(&kept, part, acc);
        }
        if (parts < RIDGE_Q8_0_PARTS) /* acc is +0, which changes no bit of what has been put aside */
            gemm_add_kept<T>(kept, 0, acc);
        ptx_barrier_sync(1 + warpgroup, T::THREADS); /* orders the reads of earlier sums before these writes */
        gemm_stage_results<T>(results, acc);
        ptx_cluster_sync(); /* orders the results of all CTAs before their reads */
        gemm_store_results<T>(a, work, rank, warpgroup, results);
        ptx_cluster_sync(); /* and these before the next tile's sums, and before a CTA ends */
    }
}
#endif

template <class F, class T>
static __global__ void __launch_bounds__(GEMM_CTA_THREADS, 1)
    block_gemm_wgmma(const __grid_constant__ block_gemm_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char gemm_memory[];             /* a name of its own, for its alignment */
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1; /* of the consumers */
    const int rank = a.split == 1 ? 0 : (int)ptx_cluster_rank();
    const uint32_t ring = ptx_shared(gemm_memory), full = ring + T::AT_BARS, empty = full + 8 * T::RING;

    if (threadIdx.x == 0) {
        pipeline_init(full, empty, T::RING, 1, 8);
        ptx_mbarrier_fence_init();
    }
    block_fill_tables(F(), gemm_memory + T::AT_TABLES);
    __syncthreads(); /* orders initialisation and tables before any use */
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (warpgroup < 0) {
        ptx_setmaxnreg_dec<40>();
        gemm_produce<F, T>(a, rank, ring, full, empty);
    } else {
        ptx_setmaxnreg_inc<232>();
        gemm_consume<F, T>(a, rank, warpgroup, gemm_memory,
                           (float *)(gemm_memory + T::AT_FLOATS) + warpgroup * T::FLOATS, full, empty);
    }
#endif
}

/* Tokens of a tile, and how many of the kept sums are in registers. */
#define GEMM_TILE_128(F) block_gemm_tile<F, 128, F::X == BLOCK_X_SUM_16 ? 28 : 32>
#define GEMM_TILE_64(F) block_gemm_tile<F, 64, 64>
#define GEMM_TILE_32(F) block_gemm_tile<F, 32, 48>

#endif
