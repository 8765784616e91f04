/* gemm_mma.cuh: the product of linear_mma.cu on the matrix units of sm_80 and later (mma.sync), any strides.
 *
 * Two factors of 16 bits: m16n8k16, exact products. Where one is f32, tf32 (m16n8k8): a factor of 16 bits is exact
 * there, an f32 one is split into two parts of 11 bits each; the product of two lower parts, 2^-22 of the whole, is
 * omitted. Two f32 factors: the units truncate their sums, so they add up 16 of k at a time and the rest is added in
 * f32.
 */
#ifndef RIDGE_LINEAR_CE_GEMM_MMA_CUH
#define RIDGE_LINEAR_CE_GEMM_MMA_CUH

#include "ce.cuh"
#include "cuda/mma.cuh"

enum { THREADS = 256, TILE = 128, WORDS = 16, LINE = WORDS + 4, EACH = TILE * WORDS / THREADS };

/* Element (i, k): data[i * line + k * step]. With a list, i (by_k: k) is an index into it. */
typedef struct linear_view {
    const void *data;
    int64_t line, step;
    const int32_t *list; /* from the chunk's first row */
    int by_k;
} linear_view;

/* The output of a product: f32, or f32 in two planes of 16 bits: the upper halves of its bits, and the lower ones. */
typedef struct linear_sum {
    float *f32;
    uint16_t *high, *low; /* where f32 is NULL */
    int64_t ld, low_ld;
} linear_sum;

/* d [m, n] = (add: +=) a [m, k] b [n, k]^T; m or k are at most the rows that the chunk has. */
typedef struct linear_product {
    linear_view a, b;
    linear_sum d;
    int64_t m, n, k, begin;
    const ce_totals *totals;
    int limit_m, limit_k, add;
} linear_product;

static __device__ __forceinline__ int64_t rows_here(const ce_totals *totals, int64_t begin, int64_t most)
{
    const int64_t rows = totals->rows - begin;

    return rows < 0 ? 0 : rows < most ? rows : most;
}

/* The tile of a thread block, at (i0, j0). any: there is work. */
typedef struct linear_tile {
    int64_t m, n, k, i0, j0;
    bool any;
} linear_tile;

static __device__ __forceinline__ linear_tile tile_at(const linear_product &p, unsigned row, unsigned col)
{
    const int64_t rows = rows_here(p.totals, p.begin, p.limit_m ? p.m : p.k);
    linear_tile t = {p.limit_m ? rows : p.m, p.n,  p.limit_k ? rows : p.k, (int64_t)row * TILE,
                     (int64_t)col * TILE,    false};

    t.any = t.i0 < t.m && t.j0 < t.n && !(p.add && t.k == 0);
    return t;
}

static __device__ __forceinline__ linear_tile tile_of(const linear_product &p)
{
    return tile_at(p, blockIdx.y, blockIdx.x);
}

static __device__ __forceinline__ void put_sum(const linear_product &p, const linear_tile &t, int64_t row, int64_t col,
                                               float sum)
{
    const int64_t at = row * p.d.ld + col;

    if (row >= t.m || col >= t.n)
        return;
    if (p.d.f32) {
        p.d.f32[at] = __uint_as_float(num_canonical_f32(p.add ? p.d.f32[at] + sum : sum));
        return;
    }
    uint16_t *low = p.d.low + row * p.d.low_ld + col;

    if (p.add)
        sum += __uint_as_float((uint32_t)p.d.high[at] << 16 | *low);
    p.d.high[at] = (uint16_t)(num_canonical_f32(sum) >> 16);
    *low = (uint16_t)num_canonical_f32(sum);
}

template <int DTYPE> static __device__ __forceinline__ float linear_at(const linear_view &v, int64_t i, int64_t k)
{
    if (v.list && v.by_k)
        k = v.list[k];
    else if (v.list)
        i = v.list[i];
    return num_load<DTYPE>(v.data, i * v.line + k * v.step);
}

/* A line of the tile in shared memory is 16 words: 16 elements of tf32, or 32 of 16 bits; each thread has 8 words of a
 * factor, along k where that is contiguous, else along i. */
static __device__ __forceinline__ void mma_position(const linear_view &v, int e, int *line, int *word)
{
    const int at = threadIdx.x + THREADS * e;

    *line = v.step == 1 ? at / WORDS : at % TILE;
    *word = v.step == 1 ? at % WORDS : at / TILE;
}

/* From (i0, k0): f32, or two elements of 16 bits (PAIR), or one as f32. */
template <int DTYPE, bool PAIR>
static __device__ __forceinline__ void mma_fetch(const linear_view &v, int64_t i0, int64_t lines, int64_t k0, int64_t k,
                                                 uint32_t *out)
{
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int line, word;

        mma_position(v, e, &line, &word);
        const int64_t i = i0 + line, at = k0 + (PAIR ? 2 : 1) * word;
        const bool first = i < lines && at < k, second = PAIR && i < lines && at + 1 < k;
        const float x = first ? linear_at<DTYPE>(v, i, at) : 0.0f;

        if (PAIR)
            out[e] = num_pack2<DTYPE>(x, second ? linear_at<DTYPE>(v, i, at + 1) : 0.0f);
        else
            out[e] = __float_as_uint(x);
    }
}

static __device__ __forceinline__ uint32_t mma_tf32(float x)
{
    uint32_t v;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(v) : "f"(x));
    return v;
}

/* SPLIT: into the upper and the lower part. */
template <bool SPLIT>
static __device__ __forceinline__ void mma_put(const linear_view &v, uint32_t (*to)[TILE][LINE], const uint32_t *from)
{
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        int line, word;

        mma_position(v, e, &line, &word);
        if (SPLIT) {
            const float x = __uint_as_float(from[e]), high = __uint_as_float(mma_tf32(x)), low = x - high;

            to[0][line][word] = __float_as_uint(high);
            to[SPLIT][line][word] = low == low ? mma_tf32(low) : 0; /* infinity has no lower part */
        } else {
            to[0][line][word] = from[e];
        }
    }
}

/* d += a b: rows g and g + 8 of A, column g of B, g = lane / 4. */
template <int DTYPE> static __device__ __forceinline__ void mma_multiply(float *d, const uint32_t *a, const uint32_t *b)
{
    if (DTYPE == RIDGE_F32)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        mma_16<DTYPE == RIDGE_BF16>(d, a, b);
}

/* Fragments of a warp's 64 x 32: words 8 half + t and + 4 of the lines g, g + 8, ... */
static __device__ __forceinline__ void mma_fragments_a(const uint32_t (*from)[LINE], int half, uint32_t (*a)[4])
{
    const int g = threadIdx.x % 32 / 4, word = 8 * half + threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int q = 0; q < 4; q++)
            a[i][q] = from[16 * i + g + q % 2 * 8][word + q / 2 * 4];
}

static __device__ __forceinline__ void mma_fragments_b(const uint32_t (*from)[LINE], int half, uint32_t (*b)[2])
{
    const int g = threadIdx.x % 32 / 4, word = 8 * half + threadIdx.x % 4;

#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int q = 0; q < 2; q++)
            b[j][q] = from[8 * j + g][word + 4 * q];
}

/* A 128 x 128 tile a block, 64 x 32 a warp. */
template <int A, int B> static __global__ void __launch_bounds__(THREADS, 1) linear_mma(const linear_product p)
{
    constexpr bool PAIR = A == B && A != RIDGE_F32, SPLIT_A = A == RIDGE_F32, SPLIT_B = B == RIDGE_F32;
    constexpr bool APART = SPLIT_A && SPLIT_B;
    constexpr int UNIT = PAIR ? A : (int)RIDGE_F32, DEEP = PAIR ? 2 * WORDS : WORDS;
    __shared__ uint32_t a[1 + SPLIT_A][TILE][LINE], b[1 + SPLIT_B][TILE][LINE];
    const int warp = threadIdx.x / 32, ty = warp / 4 * 64, tx = warp % 4 * 32;
    float sum[4][4][4] = {};
    uint32_t next_a[EACH], next_b[EACH];

    ptx_grid_dependency_wait();
    const linear_tile t = tile_of(p);

    if (!t.any)
        return;
    mma_fetch<A, PAIR>(p.a, t.i0, t.m, 0, t.k, next_a);
    mma_fetch<B, PAIR>(p.b, t.j0, t.n, 0, t.k, next_b);
    for (int64_t k0 = 0; k0 < t.k; k0 += DEEP) {
        float part[APART ? 4 : 1][4][4] = {};

        mma_put<SPLIT_A>(p.a, a, next_a);
        mma_put<SPLIT_B>(p.b, b, next_b);
        __syncthreads(); /* orders the writes of the tile before its reads */
        mma_fetch<A, PAIR>(p.a, t.i0, t.m, k0 + DEEP, t.k, next_a);
        mma_fetch<B, PAIR>(p.b, t.j0, t.n, k0 + DEEP, t.k, next_b);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[1 + SPLIT_A][4][4], y[1 + SPLIT_B][4][2];

#pragma unroll
            for (int s = 0; s <= SPLIT_A; s++)
                mma_fragments_a(a[s] + ty, half, x[s]);
#pragma unroll
            for (int s = 0; s <= SPLIT_B; s++)
                mma_fragments_b(b[s] + tx, half, y[s]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float *d = APART ? part[APART ? i : 0][j] : sum[i][j];

                    if (SPLIT_A)
                        mma_multiply<UNIT>(d, x[SPLIT_A][i], y[0][j]);
                    if (SPLIT_B)
                        mma_multiply<UNIT>(d, x[0][i], y[SPLIT_B][j]);
                    mma_multiply<UNIT>(d, x[0][i], y[0][j]);
                }
        }
        if (APART)
#pragma unroll
            for (int at = 0; at < 64; at++)
                (&sum[0][0][0])[at] += (&part[0][0][0])[at];
        __syncthreads(); /* orders its reads before the writes of the next tile */
    }
#pragma unroll
    for (int at = 0; at < 64; at++) {
        const int i = at / 16, j = at / 4 % 4, q = at % 4;

        put_sum(p, t, t.i0 + ty + 16 * i + threadIdx.x % 32 / 4 + q / 2 * 8,
                t.j0 + tx + 8 * j + threadIdx.x % 4 * 2 + q % 2, sum[i][j][q]);
    }
}

#endif
