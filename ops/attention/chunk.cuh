/* chunk.cuh: the arithmetic of chunk.cu: dot products, weights and values of a warp's chunk of 32 positions.
 *
 * Dot products of four queries with eight keys at a time: lane i has columns 2 (i % 8) and the next of every 16, which
 * are two of the sixteen partials, of keys i / 8 and 4 + i / 8, and the same columns of the queries in registers. At
 * every step of the sum a lane keeps what it has first and sends the rest: its local query r is query r ^ i % 4, and
 * its first key the upper one where i & 4, so that nothing is selected, and a lane ends with one dot product: of query
 * i % 4 and key i / 8 + (i & 4). Keys of floats come by TMA with the 128-byte swizzle, in which the eight rows are in
 * different banks.
 *
 * Weights of the lane's query and four keys: most of a maximum or a sum over keys stays in the lane. Values: N / 32
 * neighbouring columns a lane, and all queries. */
#ifndef RIDGE_ATTENTION_CHUNK_CUH
#define RIDGE_ATTENTION_CHUNK_CUH

#include "merge.cuh"

enum { CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE };
enum { QUERIES = 4 /* of a CTA, missing ones too */, HALF = 16 /* positions of a stage */, STAGES = CHUNK / HALF };
enum { GROUP_WARPS = PIECE / CHUNK, GROUP_THREADS = 32 * GROUP_WARPS };
enum { GROUPS = 4, WARPS = GROUPS * GROUP_WARPS, THREADS = 32 * WARPS };
enum { PANEL = HALF * 128 /* bytes: 64 columns of a stage of floats */ };

static_assert(CHUNK == 32 && STAGES == 2, "a chunk is four times eight keys in two stages");

/* What a kernel is compiled for: the cache's dtype and head_dim. */
template <int KV_, int N_> struct chunk_form {
    enum { KV = KV_, N = N_, COLUMNS = N / 32 };
    enum { BYTES = KV == RIDGE_U8 ? N / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES : 2 * N }; /* of a row of the cache */
};

template <class F> struct __align__(1024) chunk_shared
{
    char stage[WARPS][STAGES][HALF * F::BYTES];
    float query[GROUPS][QUERIES][F::N];
    __align__(16) float part[WARPS][QUERIES * F::N]; /* weights [CHUNK][QUERIES], then o [QUERIES][N] */
    float m[2][WARPS][QUERIES];                      /* by the parity of an item */
    float l[WARPS][QUERIES];
    uint64_t full[WARPS][STAGES]; /* the bytes of a stage have arrived: keys in even phases, values in odd ones */
    int2 range[QUERIES];          /* the positions that a query sees: [x, y) */
    int lowest, highest;          /* the hull of that */
    int common_first, common_end; /* what all queries see */
};

#if __CUDA_ARCH__ >= 900

/* ------------------------------------------------------------------------------------------------------------- dots */

/* Two codes and their scale as f32: a byte of the mantissa of 32768 is the code + 128. */
static __device__ __forceinline__ void unpack_codes(uint32_t codes, float d, float *x)
{
    codes ^= 0x8080u;
    x[0] = d * (__uint_as_float(ptx_prmt(codes, 0x47000000u, 0x7404)) - 32896.0f);
    x[1] = d * (__uint_as_float(ptx_prmt(codes, 0x47000000u, 0x7414)) - 32896.0f);
}

/* The lane's columns of 16 from 16 j on of a key of a stage. */
template <class F> static __device__ __forceinline__ void load_pair(const char *stage, int row, int j, float *x)
{
    const int lane = threadIdx.x % 32;

    if (F::KV == RIDGE_U8) {
        const char *block = stage + row * F::BYTES + j / 2 * RIDGE_Q8_0_BYTES;

        unpack_codes(*(const uint16_t *)(block + 2 + j % 2 * 16 + 2 * (lane % 8)),
                     ptx_f32_from_f16(*(const uint16_t *)block), x);
    } else {
        const int at = (2 * (j % 4) + lane / 4 % 2) ^ row % 8;

        num_unpack2<F::KV>(*(const uint32_t *)(stage + j / 4 * PANEL + row * 128 + at * 16 + lane % 4 * 4), x, x + 1);
    }
}

/* The lane's columns of the queries. */
template <int N> static __device__ __forceinline__ void hold_queries(const float (*query)[N], float (*q)[N / 8])
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < QUERIES; r++)
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const float2 x = *(const float2 *)(query[r ^ lane % 4] + 16 * j + 2 * (lane % 8));

            q[r][2 * j] = x.x;
            q[r][2 * j + 1] = x.y;
        }
}

/* The lane's dot product with the eight keys of a stage from row `first` on. Partials four apart are two lanes apart;
 * then those two apart, a lane's own two, and the two eights. */
template <class F>
static __device__ __forceinline__ float multiply_keys(const char *stage, int first, const float (*q)[F::N / 8])
{
    const int lane = threadIdx.x % 32, row = first + lane / 8 + (lane & 4);
    float part[2][QUERIES][2] = {}, dot[2];

#pragma unroll
    for (int j = 0; j < F::N / 16; j++) {
        float x[2][2];

        load_pair<F>(stage, row, j, x[0]);
        load_pair<F>(stage, row ^ 4, j, x[1]);
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int r = 0; r < QUERIES; r++) {
                part[k][r][0] = ridge_fma(q[r][2 * j], x[k][0], part[k][r][0]);
                part[k][r][1] = ridge_fma(q[r][2 * j + 1], x[k][1], part[k][r][1]);
            }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int r = 0; r < QUERIES / 2; r++)
#pragma unroll
            for (int b = 0; b < 2; b++)
                part[k][r][b] += __shfl_xor_sync(~0u, part[k][r + 2][b], 2);
#pragma unroll
        for (int b = 0; b < 2; b++)
            part[k][0][b] += __shfl_xor_sync(~0u, part[k][1][b], 1);
        dot[k] = part[k][0][0] + part[k][0][1];
    }
    return dot[0] + __shfl_xor_sync(~0u, dot[1], 4);
}

/* ---------------------------------------------------------------------------------------------------------- weights */

/* Scores of the lane's query and its four keys, in place of its dot products; the largest of the chunk. */
template <class F>
static __device__ __forceinline__ void score_keys(const attention_args &p, chunk_shared<F> *s, int parity, int position,
                                                  float *x)
{
    const int lane = threadIdx.x % 32, r = lane % 4;
    const int2 range = s->range[r];
    float m = -INFINITY;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = position + 8 * i;

        x[i] = at >= range.x && at < range.y ? ridge_attention_score(x[i], p.scale, p.softcap) : -INFINITY;
        m = fmaxf(m, x[i]); /* ridge_attention_max but for the sign of a zero, which no weight depends on */
    }
#pragma unroll
    for (int h = 16; h > 2; h /= 2)
        m = fmaxf(m, __shfl_xor_sync(~0u, m, h));
    if (lane < QUERIES)
        s->m[parity][threadIdx.x / 32][r] = m;
}

/* The largest score of a query in the piece. */
template <class F> static __device__ __forceinline__ float piece_max(const chunk_shared<F> *s, int parity, int r)
{
    const float(*m)[QUERIES] = &s->m[parity][threadIdx.x / 32 / GROUP_WARPS * GROUP_WARPS];

    return fmaxf(fmaxf(m[0][r], m[1][r]), fmaxf(m[2][r], m[3][r]));
}

/* Weights of the lane's query and keys, and their sum over the chunk. x: the scores. */
template <class F>
static __device__ __forceinline__ void weigh_keys(chunk_shared<F> *s, int parity, int position, const float *x)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane % 4;
    const int2 range = s->range[r];
    const float m = piece_max(s, parity, r);
    float *to = s->part[warp] + (lane / 8 + (lane & 4)) * QUERIES + r, w[4], l;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = position + 8 * i;

        w[i] = at >= range.x && at < range.y ? ridge_attention_weight(m, x[i]) : 0.0f;
        to[8 * i * QUERIES] = w[i];
    }
    l = w[0] + w[2] + (w[1] + w[3]);
    l += __shfl_xor_sync(~0u, l, 4);
    l += __shfl_xor_sync(~0u, l, 16);
    l += __shfl_xor_sync(~0u, l, 8);
    if (lane < QUERIES)
        s->l[warp][r] = l;
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
static __device__ __forceinline__ void add_values(const chunk_shared<F> *s, const char *stage, const float *weight,
                                                  int base, bool all, float (*o)[F::COLUMNS])
{
    if (all) {
#pragma unroll 8
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
        const int low = max(s->lowest - base, 0), high = min(s->highest - base, (int)HALF);

#pragma unroll 1
        for (int i = low; i < high; i++) {
            float x[F::COLUMNS];

            load_columns<F>(stage + i * F::BYTES, x);
#pragma unroll
            for (int r = 0; r < QUERIES; r++)
                if (base + i >= s->range[r].x && base + i < s->range[r].y)
#pragma unroll
                    for (int c = 0; c < F::COLUMNS; c++)
                        o[r][c] = ridge_fma(weight[i * QUERIES + r], x[c], o[r][c]);
        }
    }
}

#endif

#endif
