/* gemm_tf32.cuh: the product of two f32 matrices for linear_mma.cu where rows begin at multiples of 16 bytes: the same
 * sums as linear_mma<F32, F32> in the same order (gemm_mma.cuh), so the same bits, from a ring of cp.async.
 *
 * A block computes 128 x 128, a warp 64 x 32; a stage has 16 of k. Of an operand that is contiguous along k a stage has
 * lines of 64 bytes, a row each, chunk c of 16 bytes of line r at c ^ (r / 2 % 4): ldmatrix gives a lane the words of
 * tf32's fragments. Of one that is contiguous along its rows it has 16 lines of 512 bytes, a k each, chunk c of line k
 * at c ^ (k % 4 * 2): the 32 words that a warp reads at once are in 32 banks. The parts are split in registers. */
#ifndef RIDGE_LINEAR_CE_GEMM_TF32_CUH
#define RIDGE_LINEAR_CE_GEMM_TF32_CUH

#include "gemm_mma.cuh"

enum { TF32_K = 16, TF32_STAGES = 4, TF32_B_AT = TILE * TF32_K * 4, TF32_STAGE = 2 * TF32_B_AT };
enum { TF32_SHARED = TF32_STAGES * TF32_STAGE, TF32_EACH = TILE * TF32_K / 4 / THREADS };

/* What a thread copies of an operand in each stage. */
template <int MN> struct tf32_copy {
    const float *from[MN ? 1 : TF32_EACH]; /* along k: of each row, beyond the last one of that; else of line 0 */
    uint32_t to;
    int line, bytes; /* MN: the first line, and the bytes of a chunk that the matrix has; else the chunk's first k */
    int row[MN ? TF32_EACH : 1]; /* MN, with a list: of the lines of the next stage */
};

/* The index of line `at` of k. */
static __device__ __forceinline__ int tf32_row(const linear_view &v, int64_t at, int64_t k)
{
    return at >= k ? 0 : v.list ? v.list[at] : (int)at;
}

/* first: the tile's first row; rows: of the matrix. */
template <int MN>
static __device__ __forceinline__ tf32_copy<MN> tf32_copy_of(const linear_view &v, int64_t first, int64_t rows,
                                                             int64_t k)
{
    enum { CHUNKS = MN ? TILE / 4 : TF32_K / 4, STEP = THREADS / CHUNKS };
    const int line = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const float *data = (const float *)v.data;
    tf32_copy<MN> c;

    c.line = MN ? line : chunk * 4;
    c.bytes = 16;
    if (MN) {
        c.bytes = (int)max((int64_t)0, min((int64_t)16, (rows - first - chunk * 4) * 4));
        c.from[0] = data + (c.bytes ? first + chunk * 4 : 0);
        c.to = line * (TILE * 4) + (chunk ^ line % 4 * 2) * 16;
#pragma unroll
        for (int i = 0; i < TF32_EACH; i++)
            c.row[MN ? i : 0] = tf32_row(v, line + i * STEP, k);
    } else {
        c.to = line * (TF32_K * 4) + (chunk ^ line / 2 % 4) * 16;
#pragma unroll
        for (int i = 0; i < TF32_EACH; i++) {
            const int64_t row = min(first + line + i * STEP, rows - 1);

            c.from[MN ? 0 : i] = data + (v.list ? v.list[row] : row) * v.line;
        }
    }
    return c;
}

/* Block `block` of k to shared memory; beyond the matrix zeros. */
template <int MN>
static __device__ __forceinline__ void tf32_copy_block(tf32_copy<MN> *c, const linear_view &v, uint32_t to,
                                                       int64_t block, int64_t k)
{
    enum { STEP = THREADS / (MN ? TILE / 4 : TF32_K / 4) };
    const int64_t at = block * TF32_K + c->line;

    to += c->to;
#pragma unroll
    for (int i = 0; i < TF32_EACH; i++)
        if (MN) {
            const int bytes = at + i * STEP < k ? c->bytes : 0;

            mma_copy16(to + i * STEP * (TILE * 4), c->from[0] + (int64_t)c->row[MN ? i : 0] * v.step, bytes);
            c->row[MN ? i : 0] = tf32_row(v, at + TF32_K + i * STEP, k);
        } else {
            const int bytes = (int)max((int64_t)0, min((int64_t)16, (k - at) * 4));

            mma_copy16(to + i * STEP * (TF32_K * 4), c->from[MN ? 0 : i] + (bytes ? at : 0), bytes);
        }
}

/* The upper and the lower part of x, each rounded to tf32, half away from 0; infinity has no lower part. By integers:
 * the units ignore the lower 13 bits, so only what is subtracted is cut, and cvt.rna.tf32 is seven instructions. */
static __device__ __forceinline__ void tf32_split(uint32_t word, uint32_t *high, uint32_t *low)
{
    const float x = __uint_as_float(word);
    const uint32_t upper = (word + 0x1000) & 0xffffe000;
    const float rest = x - __uint_as_float(upper);

    *high = upper;
    *low = __float_as_uint(rest) + 0x1000;
    if (rest != rest) { /* x is infinite or NaN */
        *high = __float_as_uint(x + x);
        *low = 0;
    }
}

/* 16 rows from `first` on by 8 of k, step `half` of the stage: words of rows g, g + 8 (B: k t, t + 4 of row g), then of
 * k + 4 (B: of row g + 8). */
template <int MN, bool B>
static __device__ __forceinline__ void tf32_fragment(uint32_t *v, uint32_t stage, int first, int half)
{
    const int lane = threadIdx.x % 32;

    if constexpr (!MN) {
        const int upper = lane / 16, quarter = lane / 8 % 2;
        const int row = first + (B ? upper : quarter) * 8 + lane % 8, chunk = 2 * half + (B ? quarter : upper);

        ptx_ldmatrix4(v, stage + row * (TF32_K * 4) + (chunk ^ row / 2 % 4) * 16);
    } else {
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int row = first + lane / 4 + (B ? q / 2 : q % 2) * 8,
                      k = 8 * half + lane % 4 + (B ? q % 2 : q / 2) * 4;

            v[q] = ptx_load_shared1(stage + k * (TILE * 4) + (row / 4 ^ lane % 4 * 2) * 16 + row % 4 * 4);
        }
    }
}

/* sum += the products of a stage. */
template <int MN_A, int MN_B>
static __device__ __forceinline__ void tf32_multiply(uint32_t stage, int ty, int tx, float (*sum)[4][4])
{
    float part[4][4][4] = {};

#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t b[2][2][4];

#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t v[4];

            tf32_fragment<MN_B, true>(v, stage + TF32_B_AT, tx + 16 * j, half);
#pragma unroll
            for (int q = 0; q < 4; q++)
                tf32_split(v[q], &b[0][j][q], &b[1][j][q]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t v[4], a[2][4];

            tf32_fragment<MN_A, false>(v, stage, ty + 16 * i, half);
#pragma unroll
            for (int q = 0; q < 4; q++)
                tf32_split(v[q], &a[0][q], &a[1][q]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                mma_multiply<RIDGE_F32>(part[i][j], a[1], b[0][j / 2] + j % 2 * 2);
                mma_multiply<RIDGE_F32>(part[i][j], a[0], b[1][j / 2] + j % 2 * 2);
                mma_multiply<RIDGE_F32>(part[i][j], a[0], b[0][j / 2] + j % 2 * 2);
            }
        }
    }
#pragma unroll
    for (int at = 0; at < 64; at++)
        (&sum[0][0][0])[at] += (&part[0][0][0])[at];
}

template <int MN_A, int MN_B> static __global__ void __launch_bounds__(THREADS, 1) linear_tf32(const linear_product p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = threadIdx.x / 32, ty = warp / 4 * 64, tx = warp % 4 * 32;
    const uint32_t base = ptx_shared(shared);
    float sum[4][4][4] = {};

    ptx_grid_dependency_wait();
    const linear_tile t = tile_of(p);

    if (!t.any)
        return;
    const int64_t blocks = (t.k + TF32_K - 1) / TF32_K;
    tf32_copy<MN_A> a = tf32_copy_of<MN_A>(p.a, t.i0, t.m, t.k);
    tf32_copy<MN_B> b = tf32_copy_of<MN_B>(p.b, t.j0, t.n, t.k);

    for (int s = 0; s < TF32_STAGES - 1; s++) {
        if (s < blocks) {
            tf32_copy_block<MN_A>(&a, p.a, base + s * TF32_STAGE, s, t.k);
            tf32_copy_block<MN_B>(&b, p.b, base + s * TF32_STAGE + TF32_B_AT, s, t.k);
        }
        mma_copy_commit();
    }
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t next = block + TF32_STAGES - 1;
        const uint32_t to = base + (uint32_t)(next % TF32_STAGES) * TF32_STAGE;

        mma_copy_wait_for<TF32_STAGES - 2>();
        __syncthreads(); /* orders the copies of this stage before its reads, the last stage's reads before its copies
                          */
        if (next < blocks) {
            tf32_copy_block<MN_A>(&a, p.a, to, next, t.k);
            tf32_copy_block<MN_B>(&b, p.b, to + TF32_B_AT, next, t.k);
        }
        mma_copy_commit();
        tf32_multiply<MN_A, MN_B>(base + (uint32_t)(block % TF32_STAGES) * TF32_STAGE, ty, tx, sum);
    }
#pragma unroll
    for (int at = 0; at < 64; at++) {
        const int i = at / 16, j = at / 4 % 4, q = at % 4;

        put_sum(p, t, t.i0 + ty + 16 * i + threadIdx.x % 32 / 4 + q / 2 * 8,
                t.j0 + tx + 8 * j + threadIdx.x % 4 * 2 + q % 2, sum[i][j][q]);
    }
}

#endif
