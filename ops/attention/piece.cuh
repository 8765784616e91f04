/* piece.cuh: the arithmetic of piece.cu: dot products, weights and values of a warp.
 *
 * Dot products of four queries with eight keys at a time: four lanes a key, lane i has columns 4 (i % 4) .. 4 (i % 4) +
 * 3 of every 16, which are four of the sixteen partials, and the same columns of the queries in registers. At every
 * step of the sum a lane keeps the queries that it has first and sends the rest: its local query r is query r ^ own, so
 * that nothing is selected, and a lane ends with one dot product: of query `own` and of its key. Keys of floats come by
 * TMA with the 128-byte swizzle; a half warp has keys two apart, which lie in different banks.
 *
 * Weights of the lane's query and key of every eight: most of a maximum or a sum over keys stays in the lane. Values:
 * N / 32 neighbouring columns a lane, and all queries. */
#ifndef RIDGE_ATTENTION_PIECE_CUH
#define RIDGE_ATTENTION_PIECE_CUH

#include "merge.cuh"

enum { CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE, CHUNKS = PIECE / CHUNK };
enum { QUERIES = 4 /* of a CTA, missing ones too */, HALF = 16 /* positions of a stage */ };
enum { WARPS = 8, THREADS = 32 * WARPS, GROUP_THREADS = 32 * CHUNKS, GROUPS = WARPS / CHUNKS };
enum { PANEL = HALF * 128 /* bytes: 64 columns of a stage of floats */ };
enum { REGISTERS = 232 /* leave room for a CTA of the merge */ };

static_assert(CHUNK == 32 && CHUNKS == 4, "a chunk is two stages, a group four warps");

/* What a kernel is compiled for: the cache's dtype and head_dim. */
template <int KV_, int N_> struct piece_form {
    enum { KV = KV_, N = N_, COLUMNS = N / 32 };
    enum { BYTES = KV == RIDGE_U8 ? N / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES : 2 * N }; /* of a row of the cache */
    /* Stages of a warp: of floats 64 KB a CTA, of Q8_0 34 or 68. With more, all warps wait longer for their first keys
     * and at the end. */
    enum { STAGES = BYTES == 256 ? 2 : 4 };
    enum { PART = N < PIECE ? (int)PIECE : N };
};

template <class F> struct __align__(1024) piece_shared
{
    char stage[WARPS][F::STAGES][HALF * F::BYTES];
    /* Of a warp: its queries [QUERIES][N], then scores and weights [PIECE][QUERIES], then o [QUERIES][N]. */
    __align__(16) float part[WARPS][QUERIES * F::PART];
    float m[WARPS][QUERIES], l[WARPS][QUERIES];
    uint64_t full[WARPS][F::STAGES]; /* the bytes of a stage have arrived */
};

/* The positions that the lane's query sees, [x, y); the hull of that of all queries, and what all of them see. */
typedef struct piece_seen {
    int2 own;
    int lowest, highest, common_first, common_end;
} piece_seen;

#if __CUDA_ARCH__ >= 900

/* The query of which a lane gets dot products, and its key of every eight. */
static __device__ __forceinline__ int own_query(void)
{
    return (threadIdx.x & 1) << 1 | (threadIdx.x >> 1 & 1);
}

static __device__ __forceinline__ int own_key(void)
{
    return (threadIdx.x >> 2 & 3) << 1 | (threadIdx.x >> 4 & 1);
}

/* ------------------------------------------------------------------------------------------------------------- dots */

/* Two codes and their scale as f32: a byte of the mantissa of 32768 is the code + 128. */
static __device__ __forceinline__ void unpack_codes(uint32_t codes, float d, float *x)
{
    codes ^= 0x8080u;
    x[0] = d * (__uint_as_float(ptx_prmt(codes, 0x47000000u, 0x7404)) - 32896.0f);
    x[1] = d * (__uint_as_float(ptx_prmt(codes, 0x47000000u, 0x7414)) - 32896.0f);
}

/* Where the lane's columns of every fourth 16 lie in a stage, its key being one of the first eight. */
template <class F> static __device__ __forceinline__ void place_keys(int *at)
{
    const int lane = threadIdx.x % 32, row = own_key();

#pragma unroll
    for (int j = 0; j < 4; j++)
        at[j] = F::KV == RIDGE_U8 ? row * F::BYTES + j / 2 * RIDGE_Q8_0_BYTES + 2 + j % 2 * 16 + 4 * (lane % 4)
                                  : row * 128 + ((2 * j + lane / 2 % 2) ^ row) * 16 + lane % 2 * 8;
#pragma unroll
    for (int j = 0; j < 4; j++)
        asm volatile("" : "+r"(at[j])); /* computed once, not anew for every stage */
}

/* The lane's columns of 16 from 16 j on of key `own_key` of the eight from row `first` on. */
template <class F>
static __device__ __forceinline__ void load_key(const char *stage, const int *at, int first, int j, float *x)
{
    if (F::KV == RIDGE_U8) {
        const char *codes = stage + at[j % 4] + j / 4 * 2 * RIDGE_Q8_0_BYTES + first * F::BYTES;
        const float d =
            ptx_f32_from_f16(*(const uint16_t *)(stage + (first + own_key()) * F::BYTES + j / 2 * RIDGE_Q8_0_BYTES));

        unpack_codes(*(const uint16_t *)codes, d, x);
        unpack_codes(*(const uint16_t *)(codes + 2), d, x + 2);
    } else {
        const uint2 v = *(const uint2 *)(stage + at[j % 4] + j / 4 * PANEL + first * 128);

        num_unpack2<F::KV>(v.x, x, x + 1);
        num_unpack2<F::KV>(v.y, x + 2, x + 3);
    }
}

/* The lane's columns of the queries. */
template <int N> static __device__ __forceinline__ void hold_queries(const float *query, float (*q)[N / 4])
{
#pragma unroll
    for (int r = 0; r < QUERIES; r++)
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const float4 x = *(const float4 *)(query + (r ^ own_query()) * N + 16 * j + 4 * (threadIdx.x % 4));

            q[r][4 * j] = x.x;
            q[r][4 * j + 1] = x.y;
            q[r][4 * j + 2] = x.z;
            q[r][4 * j + 3] = x.w;
        }
}

/* The lane's dot product with one of the eight keys of a stage from row `first` on. Partials four apart are a lane
 * apart; then a lane's own four, and the two eights. */
template <class F>
static __device__ __forceinline__ float multiply_keys(const char *stage, const int *at, int first,
                                                      const float (*q)[F::N / 4])
{
    float part[QUERIES][4] = {}, dot[2];

#pragma unroll
    for (int j = 0; j < F::N / 16; j++) {
        float x[4];

        load_key<F>(stage, at, first, j, x);
#pragma unroll
        for (int r = 0; r < QUERIES; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                part[r][c] = ridge_fma(q[r][4 * j + c], x[c], part[r][c]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int c = 0; c < 4; c++)
            part[r][c] += __shfl_xor_sync(~0u, part[r + 2][c], 1);
        dot[r] = part[r][0] + part[r][2] + (part[r][1] + part[r][3]);
    }
    return dot[0] + __shfl_xor_sync(~0u, dot[1], 2);
}

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Scores of `chunks` chunks from position `base` on become weights. m: the largest score of the lane's query in the
 * piece. Returns the sum, over the chunks in order. */
static __device__ __forceinline__ float weigh_keys(float *part, int base, int chunks, int2 range, float m)
{
    const int key = own_key();
    float *w = part + key * QUERIES + own_query(), sum = 0.0f;

#pragma unroll 1
    for (int c = 0; c < chunks; c++, w += CHUNK * QUERIES) {
        float p[4], l;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = base + c * CHUNK + 8 * i + key;

            p[i] = w[8 * i * QUERIES];
            p[i] = at >= range.x && at < range.y ? ridge_attention_weight(m, p[i]) : 0.0f;
            w[8 * i * QUERIES] = p[i];
        }
        l = p[0] + p[2] + (p[1] + p[3]);
        l += __shfl_xor_sync(~0u, l, 8);
        l += __shfl_xor_sync(~0u, l, 4);
        l += __shfl_xor_sync(~0u, l, 16);
        sum = c ? sum + l : l;
    }
    return sum;
}

/* ----------------------------------------------------------------------------------------------------------- values */

/* The lane's columns of a row of values. */
template <class F> static __device__ __forceinline__ void load_columns(const char *row, float *x)
{
    const int lane = threadIdx.x % 32, c = lane * F::COLUMNS;

    if (F::KV == RIDGE_U8) {
        const char *block = row + c / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES;
        const float d = ptx_f32_from_f16(*(const uint16_t *)block);

#pragma unroll
        for (int i = 0; i < F::COLUMNS; i += 2)
            unpack_codes(*(const uint16_t *)(block + 2 + c % RIDGE_Q8_0_BLOCK + i), d, x + i);
    } else if (F::COLUMNS == 4) {
        const uint2 v = *(const uint2 *)(row + 2 * c);

        num_unpack2<F::KV>(v.x, x, x + 1);
        num_unpack2<F::KV>(v.y, x + 2, x + 3);
    } else {
        num_unpack2<F::KV>(*(const uint32_t *)(row + 2 * c), x, x + 1);
    }
}

/* A stage of values, whose first position is `base` and whose first weights are `weight`, into o. all: every query
 * sees every position. */
template <class F>
static __device__ __forceinline__ void add_values(const piece_seen &seen, const char *stage, const float *weight,
                                                  int base, bool all, float (*o)[F::COLUMNS])
{
    if (all) {
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            float x[F::COLUMNS];

            load_columns<F>(stage + i * F::BYTES, x);
            const float4 w = *(const float4 *)(weight + i * QUERIES);

#pragma unroll
            for (int c = 0; c < F::COLUMNS; c++) {
                o[0][c] = ridge_fma(w.x, x[c], o[0][c]);
                o[1][c] = ridge_fma(w.y, x[c], o[1][c]);
                o[2][c] = ridge_fma(w.z, x[c], o[2][c]);
                o[3][c] = ridge_fma(w.w, x[c], o[3][c]);
            }
        }
    } else {
        const int low = max(seen.lowest - base, 0), high = min(seen.highest - base, (int)HALF);
        int first[QUERIES], end[QUERIES];

#pragma unroll
        for (int r = 0; r < QUERIES; r++) {
            first[r] = __shfl_sync(~0u, seen.own.x, (r & 1) << 1 | r >> 1) - base;
            end[r] = __shfl_sync(~0u, seen.own.y, (r & 1) << 1 | r >> 1) - base;
        }

#pragma unroll 1
        for (int i = low; i < high; i++) {
            float x[F::COLUMNS];

            load_columns<F>(stage + i * F::BYTES, x);
#pragma unroll
            for (int r = 0; r < QUERIES; r++)
                if (i >= first[r] && i < end[r])
#pragma unroll
                    for (int c = 0; c < F::COLUMNS; c++)
                        o[r][c] = ridge_fma(weight[i * QUERIES + r], x[c], o[r][c]);
        }
    }
}

#endif

#endif
