/* mma.cuh: gemm_fp8 by mma.sync, for any shape, stride and alignment. Codes become f16 in registers, so that products
 * and sums are as good as f32, or go to the fp8 instruction as they are. The host side is in mma_rows.cu.
 *
 *     fin = fma(rn(sA sB), P_b, fin) over 128-blocks b of k, ascending; P_b by mma.sync, k ascending within the block
 *
 * There are two kernels. gemm_large (m above 64): a CTA of four warps computes 128 x (2 WIDTH) results, each warp 64 x
 * WIDTH. cp.async copies stages of one block of k to shared memory. Two or three CTAs share an SM, so that one copies
 * or scales while another multiplies. gemm_small (m up to 64): a CTA computes TOKENS x 32 results and splits k over its
 * warps: block b belongs to part b % 8, a warp computes a part with stages of its own, and the parts are added as
 * ((0+1)+(2+3))+((4+5)+(6+7)), whatever m is. The operands are swapped: B is on the instruction's 16-row side.
 *
 * A row of a stage has 128 bytes; the 16-byte chunk c of row r lies at c ^ (r % 8), so that cp.async and ldmatrix have
 * no bank conflicts. Operands that do not begin at multiples of 16 bytes are copied 4 bytes or one byte at a time. The
 * integer decoding makes a finite f16 of e4m3's NaN: each thread looks for NaN in the chunks that it copied and marks
 * the row of A or of B, and the epilogue makes NaN of that row's results. Beyond m, n and k stages hold zeros. */
#ifndef RIDGE_GEMM_FP8_MMA_CUH
#define RIDGE_GEMM_FP8_MMA_CUH

#include "cuda/num.cuh"
#include "mma_products.cuh"
#include "op.h"

enum { LARGE_M = 128, LARGE_THREADS = 128, WARP_M = 64, SMALL_N = 32, PARTS = 8, BUNDLE = 8 };
enum { SCRATCH_PITCH = 48 + 4 };

typedef struct mma_args {
    const uint8_t *a, *b;
    char *d;
    const void *bias;
    int64_t lda, ldb, ldd; /* elements */
    gemm_scale scale_a, scale_b;
    int m, n, k, blocks; /* blocks of k */
    int tiles_m, tiles_n;
    int copy_a, copy_b; /* bytes that one copy may have: 16, 4 or 1 */
    int stages;
    int dtype, bias_dtype; /* RIDGE_NONE: no bias */
    int scale_last;        /* scales that do not depend on k: the epilogue applies them */
    int accumulate;
    int paired; /* columns 2i and 2i + 1 of D are one aligned word */
    int weights_const;
    int whole; /* every copy is of 16 bytes */
} mma_args;

/* Bytes that one cp.async may copy from a matrix. */
static inline int mma_copy_bytes(const ridge_operand *x)
{
    const uint64_t both = (uint64_t)(uintptr_t)x->data | (uint64_t)x->stride;

    return both % 16 == 0 ? 16 : both % 4 == 0 ? 4 : 1;
}

static __device__ __forceinline__ float mma_scale_at(const gemm_scale &s, int row, int block)
{
    return s.at[(row >> s.shift) * s.row + block * s.block];
}

/* The rows of B in an aligned tile of 128 have one scale, or none that the k loop applies. */
static __device__ __forceinline__ bool mma_scale_of_tiles(const mma_args &p)
{
    return p.scale_last || p.scale_b.shift > 0;
}

static __device__ __forceinline__ uint32_t mma_chunk(int row, int chunk)
{
    return (uint32_t)(row * BK + ((chunk ^ (row & 7)) << 4));
}

/* ---------------------------------------------------------------------------------------------------------- copying */

/* Copies the first `bytes` of 16 bytes, `copy_bytes` at a time, and fills the rest with zeros. */
static __device__ __forceinline__ void mma_copy_partial(uint32_t to, const uint8_t *from, int copy_bytes, int bytes)
{
    uint32_t w[4] = {0, 0, 0, 0};

    if (copy_bytes == 16) {
        mma_copy16(to, from, bytes);
        return;
    }
    if (copy_bytes == 4) {
        for (int i = 0; i < 4; i++)
            mma_copy4(to + 4 * i, bytes > 4 * i ? from + 4 * i : from, min(max(bytes - 4 * i, 0), 4));
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < bytes)
            w[i / 4] |= (uint32_t)from[i] << i % 4 * 8;
    mma_write16(to, make_uint4(w[0], w[1], w[2], w[3]));
}

/* THREADS threads, of which this is number `thread`, copy block kb of k of the ROWS rows from `first` on. The matrix
 * has `rows` rows. Where every copy is of 16 bytes no branch depends on the thread: on an H200 the largest tile is 4 %
 * faster so. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void mma_copy_rows(const mma_args &p, uint32_t to, const uint8_t *base, int64_t ld,
                                                     int copy_bytes, int first, int rows, int kb, int thread)
{
    const int chunk = thread % 8, row = thread / 8, left = rows - first - row, k0 = kb * BK + chunk * 16;
    const int bytes = min(max(p.k - k0, 0), 16);
    const uint8_t *from = base + (first + row) * ld + k0;

    if (p.whole) {
#pragma unroll
        for (int i = 0; i < ROWS; i += THREADS / 8, from += THREADS / 8 * ld)
            mma_copy16_if(to + mma_chunk(row + i, chunk), from, bytes && i < left);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < ROWS; i += THREADS / 8, from += THREADS / 8 * ld) {
        const bool inside = i < left && bytes;

        mma_copy_partial(to + mma_chunk(row + i, chunk), inside ? from : base, copy_bytes, inside ? bytes : 0);
    }
}

/* The scales of ROWS rows in block kb. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void mma_copy_scales(uint32_t to, const gemm_scale &s, int first, int rows, int kb,
                                                       int thread)
{
#pragma unroll
    for (int i = 0; i < ROWS; i += THREADS)
        if (ROWS % THREADS == 0 || thread + i < ROWS) {
            const int row = min(first + thread + i, rows - 1);

            mma_copy4(to + 4 * (thread + i), s.at + (row >> s.shift) * s.row + kb * s.block, 4);
        }
}

/* Marks the rows that have e4m3's NaN in a chunk of this stage that this thread copied. Four chunks are read before the
 * first is tested: one by one, this took a quarter of gemm_large's time on an H200. */
template <int ROWS, int THREADS>
static __device__ __forceinline__ void mma_mark_nan(const uint8_t *stage, int *mark, int thread)
{
    const int chunk = thread % 8, row = thread / 8, step = THREADS / 8;
    uint32_t found = 0;

#pragma unroll
    for (int i = 0; i < ROWS; i += 4 * step) {
        uint4 v[4] = {};

#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j * step < ROWS)
                v[j] = *(const uint4 *)(stage + mma_chunk(row + i + j * step, chunk));
#pragma unroll
        for (int j = 0; j < 4; j++)
            found |= mma_find_nan(v[j]);
    }
    if (found & 0x80808080u)
#pragma unroll 1
        for (int i = row; i < ROWS; i += step)
            if (mma_find_nan(*(const uint4 *)(stage + mma_chunk(i, chunk))) & 0x80808080u)
                mark[i] = 1;
}

/* --------------------------------------------------------------------------------------------------------- epilogue */

static __device__ __forceinline__ float mma_element(int dtype, const void *base, int64_t at)
{
    if (dtype == RIDGE_F32)
        return num_load<RIDGE_F32>(base, at);
    return dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(base, at) : num_load<RIDGE_F16>(base, at);
}

/* The value to store: scales that do not depend on k, bias, and D where it is added to. */
static __device__ __forceinline__ float mma_value(const mma_args &p, int row, int col, float x)
{
    if (p.scale_last && p.blocks)
        x *= mma_scale_at(p.scale_a, row, 0) * mma_scale_at(p.scale_b, col, 0);
    if (p.bias_dtype != RIDGE_NONE)
        x += mma_element(p.bias_dtype, p.bias, col);
    return p.accumulate ? x + mma_element(p.dtype, p.d, row * p.ldd + col) : x;
}

static __device__ __forceinline__ void mma_store(const mma_args &p, int row, int col, float x)
{
    const int64_t at = row * p.ldd + col;

    x = mma_value(p, row, col, x);
    if (p.dtype == RIDGE_F32)
        num_store<RIDGE_F32>(p.d, at, x);
    else if (p.dtype == RIDGE_BF16)
        num_store<RIDGE_BF16>(p.d, at, x);
    else
        num_store<RIDGE_F16>(p.d, at, x);
}

template <int DTYPE> static __device__ __forceinline__ uint32_t mma_word(float x, float y)
{
    const uint32_t w = num_pack2<DTYPE>(x, y);

    return num_canonical<DTYPE>(w & 0xffffu) | num_canonical<DTYPE>(w >> 16) << 16;
}

/* Columns col and col + 1, col even. */
static __device__ __forceinline__ void mma_store_two(const mma_args &p, int row, int col, float x, float y)
{
    const int64_t at = row * p.ldd + col;

    if (row >= p.m || col >= p.n)
        return;
    if (!p.paired || col + 1 == p.n) {
        mma_store(p, row, col, x);
        if (col + 1 < p.n)
            mma_store(p, row, col + 1, y);
        return;
    }
    x = mma_value(p, row, col, x);
    y = mma_value(p, row, col + 1, y);
    if (p.dtype == RIDGE_F32)
        *(uint2 *)(p.d + at * 4) = make_uint2(num_canonical_f32(x), num_canonical_f32(y));
    else
        *(uint32_t *)(p.d + at * 2) = p.dtype == RIDGE_BF16 ? mma_word<RIDGE_BF16>(x, y) : mma_word<RIDGE_F16>(x, y);
}

/* ---------------------------------------------------------------------------------------------------- m above 64 */

template <int BLOCK_N> struct alignas(128) mma_stage {
    uint8_t a[LARGE_M * BK], b[BLOCK_N * BK];
    float scale_a[LARGE_M], scale_b[BLOCK_N];
};

template <int BLOCK_N> struct mma_large_memory {
    int nan_a[LARGE_M], nan_b[BLOCK_N];
    mma_stage<BLOCK_N> stage[1]; /* p.stages of them; the epilogue reuses them for 16 x WIDTH results of each warp */
};

template <int BLOCK_N>
static __device__ __forceinline__ void mma_load_stage(const mma_args &p, mma_stage<BLOCK_N> *s, int row, int col,
                                                      int kb)
{
    const int thread = threadIdx.x;

    mma_copy_rows<LARGE_M, LARGE_THREADS>(p, ptx_shared(s->a), p.a, p.lda, p.copy_a, row, p.m, kb, thread);
    mma_copy_rows<BLOCK_N, LARGE_THREADS>(p, ptx_shared(s->b), p.b, p.ldb, p.copy_b, col, p.n, kb, thread);
    if (!p.scale_last) {
        mma_copy_scales<LARGE_M, LARGE_THREADS>(ptx_shared(s->scale_a), p.scale_a, row, p.m, kb, thread);
        mma_copy_scales<BLOCK_N, LARGE_THREADS>(ptx_shared(s->scale_b), p.scale_b, col, p.n, kb, thread);
    }
}

/* Stores a warp's 64 x WIDTH results, 16 rows at a time through the warp's shared memory, so that it writes whole rows.
 * MARKS: rows and columns may be marked as NaN. bf16 results that are only rounded take a shorter path. */
template <int WIDTH, bool MARKS>
static __device__ __forceinline__ void mma_store_warp(const mma_args &p, float *scratch, const int *nan_a,
                                                      const int *nan_b, int row, int col, float (*fin)[WIDTH / 8][4])
{
    const int lane = threadIdx.x % 32;
    const bool plain = p.paired && !p.scale_last && !p.accumulate && p.bias_dtype == RIDGE_NONE &&
                       p.dtype == RIDGE_BF16 && col + WIDTH <= p.n;

#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++) {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2 *)&scratch[(lane / 4 + 8 * h) * SCRATCH_PITCH + 8 * j + lane % 4 * 2] =
                    make_float2(fin[i][j][2 * h], fin[i][j][2 * h + 1]);
        __syncwarp(); /* the warp has written 16 rows before it reads them */
#pragma unroll 1
        for (int e = lane; e < 16 * WIDTH / 2; e += 32) {
            const int r = e / (WIDTH / 2), c = e % (WIDTH / 2) * 2, at = row + 16 * i + r;
            float2 v = *(const float2 *)&scratch[r * SCRATCH_PITCH + c];

            if (MARKS && (nan_a[16 * i + r] | nan_b[c]))
                v.x = __int_as_float(0x7fc00000);
            if (MARKS && (nan_a[16 * i + r] | nan_b[c + 1]))
                v.y = __int_as_float(0x7fc00000);
            if (!plain)
                mma_store_two(p, at, col + c, v.x, v.y);
            else if (at < p.m)
                *(uint32_t *)(p.d + (at * p.ldd + col + c) * 2) = mma_word<RIDGE_BF16>(v.x, v.y);
        }
        __syncwarp(); /* it has read them before it writes the next */
    }
}

/* The tile of a CTA. Raster order: bundles of BUNDLE row tiles, and column by column within a bundle, so that CTAs
 * that run at the same time share operands in L2. */
static __device__ __forceinline__ void mma_locate(const mma_args &p, int64_t index, int *tile_m, int *tile_n)
{
    const int64_t per = (int64_t)BUNDLE * p.tiles_n;
    const int bundle = (int)(index / per), in_bundle = (int)(index % per);
    const int bundle_m = min((int)BUNDLE, p.tiles_m - bundle * BUNDLE);

    *tile_m = bundle * BUNDLE + in_bundle % bundle_m;
    *tile_n = in_bundle / bundle_m;
}

/* Clears the NaN marks. Where the epilogue applies the scales, every block's scales are 1. */
template <int BLOCK_N> static __device__ __forceinline__ void mma_init(const mma_args &p, mma_large_memory<BLOCK_N> *s)
{
    for (int i = threadIdx.x; i < LARGE_M + BLOCK_N; i += LARGE_THREADS) {
        s->nan_a[i] = 0; /* nan_b follows */
        for (int stage = 0; stage < p.stages && p.scale_last; stage++)
            s->stage[stage].scale_a[i] = 1.0f; /* scale_b follows */
    }
    __syncthreads(); /* marks are cleared before a thread sets one */
}

/* Tile `index` of a CTA. WIDTH: columns of a warp's results. HALVES: by mma_block_halves, which needs one scale of B
 * for each 8 columns. */
template <int KIND, int E5_A, int E5_B, int WIDTH, bool HALVES = false>
static __device__ __forceinline__ void mma_large_tile(const mma_args &p, int64_t index, uint8_t *shared)
{
    enum { BLOCK_N = 2 * WIDTH };
    mma_large_memory<BLOCK_N> *s = (mma_large_memory<BLOCK_N> *)shared;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp % 2 * WARP_M, warp_col = warp / 2 * WIDTH;
    const int lane_a = warp_row * BK + (int)mma_chunk(lane, 0), lane_b = warp_col * BK + (int)mma_chunk(lane, 0);
    float fin[WARP_M / 16][WIDTH / 8][4] = {};
    int tile_m, tile_n, now = 0, next = p.stages - 1;

    mma_locate(p, index, &tile_m, &tile_n);
    const int row = tile_m * LARGE_M, col = tile_n * BLOCK_N;
    mma_init<BLOCK_N>(p, s);
    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    for (int kb = 0; kb < p.stages - 1; kb++) {
        if (kb < p.blocks)
            mma_load_stage<BLOCK_N>(p, &s->stage[kb], row, col, kb);
        mma_copy_commit();
    }
    for (int kb = 0; kb < p.blocks; kb++) {
        mma_stage<BLOCK_N> *stage = &s->stage[now];

        mma_copy_wait(p.stages);
        if (KIND == KIND_DECODE && !E5_A)
            mma_mark_nan<LARGE_M, LARGE_THREADS>(stage->a, s->nan_a, threadIdx.x);
        if (KIND == KIND_DECODE && !E5_B)
            mma_mark_nan<BLOCK_N, LARGE_THREADS>(stage->b, s->nan_b, threadIdx.x);
        /* orders all copies of this stage before reads of it, and all reads of stage `next` before its next copies */
        __syncthreads();
        if (kb + p.stages - 1 < p.blocks)
            mma_load_stage<BLOCK_N>(p, &s->stage[next], row, col, kb + p.stages - 1);
        mma_copy_commit();
        if constexpr (HALVES) {
            mma_block_halves<KIND, E5_A, E5_B, WIDTH / 8>(ptx_shared(stage->a) + lane_a, ptx_shared(stage->b) + lane_b,
                                                          stage->scale_a + warp_row, stage->scale_b + warp_col, fin);
        } else {
            float acc[WARP_M / 16][WIDTH / 8][4];

            mma_block<KIND, E5_A, E5_B, WARP_M / 16, WIDTH / 8>(ptx_shared(stage->a) + lane_a,
                                                                ptx_shared(stage->b) + lane_b, acc);
            if (mma_scale_of_tiles(p))
                mma_promote_tiles<WIDTH / 8>(0, WARP_M / 16 * WIDTH / 8, stage->scale_a + warp_row,
                                             stage->scale_b + warp_col, mma_unit<KIND, E5_A, E5_B>(), acc, fin);
            else
                mma_promote<WARP_M / 16, WIDTH / 8>(stage->scale_a + warp_row, stage->scale_b + warp_col,
                                                    mma_unit<KIND, E5_A, E5_B>(), acc, fin);
        }
        now = now + 1 == p.stages ? 0 : now + 1;
        next = next + 1 == p.stages ? 0 : next + 1;
    }
    __syncthreads(); /* all reads of stages, and all marks, before the epilogue reuses the stages and reads the marks */
    mma_store_warp<WIDTH, KIND == KIND_DECODE>(p, (float *)s->stage + warp * 16 * SCRATCH_PITCH, s->nan_a + warp_row,
                                               s->nan_b + warp_col, row + warp_row, col + warp_col, fin);
}

/* CTAS: the CTAs of an SM. By halves the wide tile is 3 % faster; with integer decoding it gains 0.5 % and spills on
 * sm_120. */
template <int KIND, int E5_A, int E5_B, int WIDTH, int CTAS>
static __global__ void __launch_bounds__(LARGE_THREADS, CTAS) gemm_large(const __grid_constant__ mma_args p)
{
    extern __shared__ __align__(128) uint8_t shared[];

    if (!MMA_RUNS(KIND))
        return;
    if constexpr (KIND == KIND_CONVERT && WIDTH == 48)
        if (mma_scale_of_tiles(p)) {
            mma_large_tile<KIND, E5_A, E5_B, WIDTH, true>(p, blockIdx.x, shared);
            return;
        }
    mma_large_tile<KIND, E5_A, E5_B, WIDTH>(p, blockIdx.x, shared);
}

/* ------------------------------------------------------------------------------------------------------ m up to 64 */

template <int TOKENS> struct alignas(128) mma_small_stage {
    uint8_t b[SMALL_N * BK], a[TOKENS * BK];
    float scale_b[SMALL_N], scale_a[TOKENS];
};

template <int TOKENS> struct mma_small_memory {
    int nan_b[SMALL_N], nan_a[TOKENS];
    /* warps * p.stages of them. The sums of the parts follow where there are fewer than eight warps; a warp that has
     * one part only writes its sum over its first stages */
    mma_small_stage<TOKENS> stage[1];
};

/* Block kb of k: of B, of A. */
template <int TOKENS>
static __device__ __forceinline__ void mma_load_small_b(const mma_args &p, mma_small_stage<TOKENS> *s, int col, int kb)
{
    const int lane = threadIdx.x % 32;

    mma_copy_rows<SMALL_N, 32>(p, ptx_shared(s->b), p.b, p.ldb, p.copy_b, col, p.n, kb, lane);
    if (!p.scale_last)
        mma_copy_scales<SMALL_N, 32>(ptx_shared(s->scale_b), p.scale_b, col, p.n, kb, lane);
}

template <int TOKENS>
static __device__ __forceinline__ void mma_load_small_a(const mma_args &p, mma_small_stage<TOKENS> *s, int row, int kb)
{
    const int lane = threadIdx.x % 32;

    mma_copy_rows<TOKENS, 32>(p, ptx_shared(s->a), p.a, p.lda, p.copy_a, row, p.m, kb, lane);
    if (!p.scale_last)
        mma_copy_scales<TOKENS, 32>(ptx_shared(s->scale_a), p.scale_a, row, p.m, kb, lane);
}

/* The sum of a part, in shared memory. */
template <int TOKENS>
static __device__ __forceinline__ float *mma_sum(const mma_args &p, mma_small_memory<TOKENS> *s, int warps, int part)
{
    if (warps == PARTS)
        return (float *)&s->stage[part * p.stages];
    return (float *)&s->stage[warps * p.stages] + part * TOKENS * SMALL_N;
}

/* A warp computes one part of k into sum[token][row of B]. */
template <int KIND, int E5_A, int E5_B, int TOKENS>
static __device__ __forceinline__ void mma_part(const mma_args &p, mma_small_memory<TOKENS> *s,
                                                mma_small_stage<TOKENS> *stages, int row, int col, int part, float *sum)
{
    const int lane = threadIdx.x % 32, count = (p.blocks - part + PARTS - 1) / PARTS;
    const uint32_t at = mma_chunk(lane, 0);
    float fin[SMALL_N / 16][TOKENS / 8][4] = {};
    int now = 0, next = p.stages - 1;

    for (int i = 0; i < p.stages - 1 && i < count; i++)
        mma_load_small_b<TOKENS>(p, &stages[i], col, part + i * PARTS);
    ptx_grid_dependency_wait(); /* with constant weights here, above B was loaded beside the primary grid */
    for (int i = 0; i < p.stages - 1; i++) {
        if (i < count)
            mma_load_small_a<TOKENS>(p, &stages[i], row, part + i * PARTS);
        mma_copy_commit();
    }
    for (int i = 0; i < count; i++) {
        mma_small_stage<TOKENS> *stage = &stages[now];
        float acc[SMALL_N / 16][TOKENS / 8][4];

        mma_copy_wait(p.stages);
        if (KIND == KIND_DECODE && !E5_B)
            mma_mark_nan<SMALL_N, 32>(stage->b, s->nan_b, lane);
        if (KIND == KIND_DECODE && !E5_A)
            mma_mark_nan<TOKENS, 32>(stage->a, s->nan_a, lane);
        /* orders the warp's copies of this stage before its reads, and its reads of stage `next` before the next copies
         */
        __syncwarp();
        if (i + p.stages - 1 < count) {
            mma_load_small_b<TOKENS>(p, &stages[next], col, part + (i + p.stages - 1) * PARTS);
            mma_load_small_a<TOKENS>(p, &stages[next], row, part + (i + p.stages - 1) * PARTS);
        }
        mma_copy_commit();
        mma_block<KIND, E5_B, E5_A, SMALL_N / 16, TOKENS / 8>(ptx_shared(stage->b) + at, ptx_shared(stage->a) + at,
                                                              acc);
        if (mma_scale_of_tiles(p))
            mma_promote_rows<SMALL_N / 16, TOKENS / 8>(stage->scale_b[0], stage->scale_a, mma_unit<KIND, E5_A, E5_B>(),
                                                       acc, fin);
        else
            mma_promote<SMALL_N / 16, TOKENS / 8>(stage->scale_b, stage->scale_a, mma_unit<KIND, E5_A, E5_B>(), acc,
                                                  fin);
        now = now + 1 == p.stages ? 0 : now + 1;
        next = next + 1 == p.stages ? 0 : next + 1;
    }
    __syncwarp(); /* orders the reads of the last stage before the next part's copies */
#pragma unroll
    for (int i = 0; i < SMALL_N / 16; i++)
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[(8 * j + lane % 4 * 2 + e % 2) * SMALL_N + 16 * i + lane / 4 + e / 2 * 8] = fin[i][j][e];
}

/* blockDim.x / 32 warps share the eight parts. */
template <int KIND, int E5_A, int E5_B, int TOKENS>
static __global__ void __launch_bounds__(256, TOKENS < 32 ? 2 : 1) gemm_small(const __grid_constant__ mma_args p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    mma_small_memory<TOKENS> *s = (mma_small_memory<TOKENS> *)shared;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int row = blockIdx.x % p.tiles_m * TOKENS, col = blockIdx.x / p.tiles_m * SMALL_N;
    mma_small_stage<TOKENS> *mine = &s->stage[warp * p.stages];

    if (!MMA_RUNS(KIND))
        return;
    if (threadIdx.x < SMALL_N + TOKENS)
        s->nan_b[threadIdx.x] = 0; /* nan_a follows */
    if (p.scale_last)
        for (int i = threadIdx.x % 32; i < (SMALL_N + TOKENS) * p.stages; i += 32)
            mine[i / (SMALL_N + TOKENS)].scale_b[i % (SMALL_N + TOKENS)] = 1.0f; /* scale_a follows */
    __syncthreads(); /* marks are cleared before a thread sets one */
    ptx_launch_dependents();
    if (!p.weights_const)
        ptx_grid_dependency_wait();
    for (int part = warp; part < PARTS; part += warps)
        mma_part<KIND, E5_A, E5_B, TOKENS>(p, s, mine, row, col, part, mma_sum<TOKENS>(p, s, warps, part));
    __syncthreads(); /* all sums and marks are written before they are read */
    for (int e = threadIdx.x; e < TOKENS * SMALL_N; e += blockDim.x) {
        const int t = e / SMALL_N, c = e % SMALL_N, at = t * SMALL_N + c;
        float v[PARTS], x;

#pragma unroll
        for (int part = 0; part < PARTS; part++)
            v[part] = mma_sum<TOKENS>(p, s, warps, part)[at];
        x = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
        if (s->nan_a[t] | s->nan_b[c])
            x = __int_as_float(0x7fc00000);
        if (row + t < p.m && col + c < p.n)
            mma_store(p, row + t, col + c, x);
    }
}

#endif
