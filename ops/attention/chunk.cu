/* chunk.cu: attention_decode of long caches, in the order of src/math/attention.h, sm_90 up.
 *
 * A CTA has an SM: four warpgroups, or three where more than four queries take more registers. Each has a range of the
 * pieces of all KV heads and up to 16 queries of a group, a warp one of the four chunks of 32 positions of a piece.
 * Keys, then values, of the chunk come in two stages of 16 positions: a warp requests the values in place of the keys
 * that it has read and the next piece's keys in place of the values, so that memory is busy while it computes. dots of
 * four queries with eight keys at a time. Lane i has columns 2 (i % 8) and the next of every 16, which are two of the
 * sixteen partials, of keys i / 8 and 4 + i / 8, and the same columns of the queries in registers. At every step of the
 * sum a lane keeps what it has first and sends the rest: its local query r is query r ^ i % 4, and its first key the
 * upper one where i & 4, so that nothing is selected, and a lane ends with one dot product: of query i % 4 and key i /
 * 8 + (i & 4). Keys of floats come by TMA with the 128-byte swizzle, in which the eight rows are in different banks
 *   weights  of the lane's query and four keys: most of a maximum or a sum over keys stays in the lane
 *   values   N / 32 neighbouring columns a lane, and all queries
 * Barriers of the warpgroup: the warps' maxima are known, the warps' o are. o, m and l of a piece go to the workspace;
 * a second kernel merges the pieces (merge.cuh). */
#include "cache_map.cuh"
#include "merge.cuh"

enum { CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE, ROWS = 8 /* queries of a CTA */ };
enum { SIDE = 4 /* queries at a time */, HALF = 16 /* positions of a stage */, STAGES = CHUNK / HALF };
enum { GROUP_WARPS = PIECE / CHUNK, GROUP_THREADS = 32 * GROUP_WARPS };
enum { PANEL = HALF * 128 /* bytes: 64 columns of a stage of floats */ };

static_assert(CHUNK == 32 && STAGES == 2, "a chunk is four times eight keys in two stages");

/* What a kernel is compiled for: the cache's dtype, head_dim, slabs of SIDE queries. */
template <int KV_, int N_, int SLABS_> struct chunk_form {
    enum { KV = KV_, N = N_, SLABS = SLABS_, QUERIES = SIDE * SLABS, COLUMNS = N / 32 };
    enum { BYTES = KV == RIDGE_U8 ? N / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES : 2 * N }; /* of a row of the cache */
    enum { GROUPS = SLABS == 1 ? 4 : 3, WARPS = GROUPS * GROUP_WARPS, THREADS = 32 * WARPS };
    enum { QUERY_WORDS = (QUERIES * N + 4 * GROUP_THREADS - 1) / (4 * GROUP_THREADS) }; /* 16 bytes of a thread */
    enum { PART = SIDE * N > CHUNK *QUERIES ? SIDE *N : CHUNK *QUERIES };
};

template <class F> struct __align__(1024) chunk_shared
{
    enum { WARPS = F::WARPS };
    char stage[WARPS][STAGES][HALF * F::BYTES];
    float query[F::GROUPS][F::QUERIES][F::N];
    __align__(16) float part[WARPS][F::PART]; /* weights [CHUNK][QUERIES], then o of SIDE queries, [SIDE][N] */
    float m[2][WARPS][F::QUERIES];            /* by the parity of an item */
    float l[WARPS][F::QUERIES];
    uint64_t full[WARPS][STAGES]; /* the bytes of a stage have arrived: keys in even phases, values in odd ones */
    int2 range[F::QUERIES];       /* the positions that a query sees: [x, y) */
    int lowest, highest;          /* the hull of that */
    int common_first, common_end; /* what all queries see */
};

typedef struct chunk_args {
    CUtensorMap k;
    attention_args p;
} chunk_args;

#if __CUDA_ARCH__ >= 900

/* What is seen of every KV head: `count` pieces from `first` on. */
typedef struct chunk_work {
    int first, count;
} chunk_work;

/* A piece: its KV head and its number from the first that is seen. */
typedef struct chunk_item {
    int head, piece;
} chunk_item;

/* By the first warp. Missing queries see what the last one does. */
template <class S>
static __device__ __forceinline__ void read_ranges(const attention_args &p, S *s, int64_t first_row, int rows,
                                                   int queries)
{
    int64_t t, head, first, end;

    query_of(p, 0, first_row + min((int)threadIdx.x, rows - 1), &t, &head);
    attention_range(&p, p.pos[t], &first, &end);
    const int low = (int)min(first, (int64_t)0x7fffffff), high = (int)end;
    const int lowest = __reduce_min_sync(~0u, low < high ? low : 0x7fffffff);
    const int highest = __reduce_max_sync(~0u, low < high ? high : 0);
    const int common_first = __reduce_max_sync(~0u, low), common_end = __reduce_min_sync(~0u, high);

    if (threadIdx.x < queries)
        s->range[threadIdx.x] = make_int2(low, high);
    if (threadIdx.x == 0) {
        s->lowest = lowest;
        s->highest = highest;
        s->common_first = common_first;
        s->common_end = common_end;
    }
}

template <class S> static __device__ __forceinline__ chunk_work work_of(const S *s)
{
    chunk_work w = {};

    if (s->lowest < s->highest) {
        w.first = s->lowest / PIECE;
        w.count = (int)attention_pieces_of(s->highest) - w.first;
    }
    return w;
}

/* How many items the warpgroup has: a range of the pieces of KV head 0, then of 1, .... Warpgroups 0 of all CTAs have
 * those that are too many for even shares. */
template <int GROUPS>
static __device__ __forceinline__ int items_of(const attention_args &p, chunk_work w, chunk_item *first)
{
    const uint32_t share = threadIdx.x / GROUP_THREADS * gridDim.x + blockIdx.x, shares = gridDim.x * GROUPS;
    const uint32_t all = (uint32_t)w.count * (uint32_t)p.kv_heads, each = all / shares, more = all - each * shares;
    const uint32_t begin = share * each + min(share, more);

    if (all) {
        first->head = (int)(begin / (uint32_t)w.count);
        first->piece = (int)(begin - (uint32_t)first->head * (uint32_t)w.count);
    }
    return (int)(each + (share < more));
}

static __device__ __forceinline__ chunk_item item_after(chunk_work w, chunk_item at)
{
    at.piece++;
    if (at.piece == w.count) {
        at.piece = 0;
        at.head++;
    }
    return at;
}

/* The warp's first position in an item. */
static __device__ __forceinline__ int chunk_base(chunk_work w, chunk_item at)
{
    return (w.first + at.piece) * PIECE + (int)threadIdx.x / 32 % GROUP_WARPS * CHUNK;
}

/* Rows from `base` on of a head of the cache to a stage as they are, none beyond the cache's end. */
template <class F>
static __device__ __forceinline__ void load_rows(const attention_args &p, const char *head, int base, char *to,
                                                 uint64_t *full)
{
    const int bytes = (int)max(min(p.positions - base, (int64_t)HALF), (int64_t)0) * F::BYTES;

    ptx_mbarrier_expect(ptx_shared(full), bytes);
    if (bytes)
        ptx_bulk_load(ptx_shared(to), head + (int64_t)base * F::BYTES, bytes, ptx_shared(full));
}

/* Requests keys of one half of the warp's chunk of an item, by one lane. */
template <class F>
static __device__ __forceinline__ void load_keys(const chunk_args &a, chunk_shared<F> *s, chunk_work w, chunk_item at,
                                                 int half)
{
    const int warp = threadIdx.x / 32, base = chunk_base(w, at) + half * HALF;
    char *to = s->stage[warp][half];
    uint64_t *full = &s->full[warp][half];

    if (F::KV == RIDGE_U8) {
        load_rows<F>(a.p, a.p.k + at.head * a.p.k_stride, base, to, full);
    } else {
        ptx_mbarrier_expect(ptx_shared(full), HALF * F::BYTES);
#pragma unroll
        for (int i = 0; i < F::N / 64; i++)
            ptx_tma_load_3d(ptx_shared(to + i * PANEL), &a.k, 64 * i, base, at.head, ptx_shared(full));
    }
}

template <class F>
static __device__ __forceinline__ void load_values(const chunk_args &a, chunk_shared<F> *s, chunk_work w, chunk_item at,
                                                   int half)
{
    const int warp = threadIdx.x / 32;

    load_rows<F>(a.p, a.p.v + at.head * a.p.v_stride, chunk_base(w, at) + half * HALF, s->stage[warp][half],
                 &s->full[warp][half]);
}

/* The warpgroup's queries of a KV head as f32, 16 bytes a thread; zeros for missing ones. */
template <class F>
static __device__ __forceinline__ void fetch_queries(const attention_args &p, int64_t kv_head, int64_t first_row,
                                                     int rows, float4 *x)
{
#pragma unroll
    for (int i = 0; i < F::QUERIES * F::N; i += GROUP_THREADS * 4) {
        const int r = (i + threadIdx.x % GROUP_THREADS * 4) / F::N, c = (i + threadIdx.x % GROUP_THREADS * 4) % F::N;
        float4 *to = x + i / (GROUP_THREADS * 4);
        int64_t t, head;

        *to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (r >= rows)
            continue;
        query_of(p, kv_head, first_row + r, &t, &head);
        if (p.q_bf16) {
            const uint2 two = ptx_load8(p.q + t * p.q_stride + 2 * (head * F::N + c));

            num_unpack2<RIDGE_BF16>(two.x, &to->x, &to->y);
            num_unpack2<RIDGE_BF16>(two.y, &to->z, &to->w);
        } else {
            *to = *(const float4 *)(p.q + t * p.q_stride + 4 * (head * F::N + c));
        }
    }
}

template <class F> static __device__ __forceinline__ void put_queries(chunk_shared<F> *s, const float4 *x)
{
    float4 *to = (float4 *)s->query[threadIdx.x / GROUP_THREADS];

#pragma unroll
    for (int i = 0; i < F::QUERY_WORDS; i++)
        if ((i * GROUP_THREADS + threadIdx.x % GROUP_THREADS) * 4 < F::QUERIES * F::N)
            to[i * GROUP_THREADS + threadIdx.x % GROUP_THREADS] = x[i];
    ptx_barrier_sync(1 + threadIdx.x / GROUP_THREADS, GROUP_THREADS); /* they are written before they are read */
}

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

/* The lane's columns of a slab of queries. */
template <int N> static __device__ __forceinline__ void hold_queries(const float (*query)[N], float (*q)[N / 8])
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < SIDE; r++)
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
    float part[2][SIDE][2] = {}, dot[2];

#pragma unroll
    for (int j = 0; j < F::N / 16; j++) {
        float x[2][2];

        load_pair<F>(stage, row, j, x[0]);
        load_pair<F>(stage, row ^ 4, j, x[1]);
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int r = 0; r < SIDE; r++) {
                part[k][r][0] = ridge_fma(q[r][2 * j], x[k][0], part[k][r][0]);
                part[k][r][1] = ridge_fma(q[r][2 * j + 1], x[k][1], part[k][r][1]);
            }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int r = 0; r < SIDE / 2; r++)
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

/* Scores of the lane's query of a slab and its four keys, in place of its dot products; the largest of the chunk. */
template <class F>
static __device__ __forceinline__ void score_keys(const attention_args &p, chunk_shared<F> *s, int parity, int slab,
                                                  int position, float *x)
{
    const int lane = threadIdx.x % 32, r = slab * SIDE + lane % 4;
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
    if (lane < SIDE)
        s->m[parity][threadIdx.x / 32][r] = m;
}

/* The largest score of a query in the piece. */
template <class F> static __device__ __forceinline__ float piece_max(const chunk_shared<F> *s, int parity, int r)
{
    const float(*m)[F::QUERIES] = &s->m[parity][threadIdx.x / 32 / GROUP_WARPS * GROUP_WARPS];

    return fmaxf(fmaxf(m[0][r], m[1][r]), fmaxf(m[2][r], m[3][r]));
}

/* Weights of the lane's query and keys, and their sum over the chunk. x: the scores. */
template <class F>
static __device__ __forceinline__ void weigh_keys(chunk_shared<F> *s, int parity, int slab, int position,
                                                  const float *x)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = slab * SIDE + lane % 4;
    const int2 range = s->range[r];
    const float m = piece_max(s, parity, r);
    float *to = s->part[warp] + (lane / 8 + (lane & 4)) * F::QUERIES + r, w[4], l;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = position + 8 * i;

        w[i] = at >= range.x && at < range.y ? ridge_attention_weight(m, x[i]) : 0.0f;
        to[8 * i * F::QUERIES] = w[i];
    }
    l = w[0] + w[2] + (w[1] + w[3]);
    l += __shfl_xor_sync(~0u, l, 4);
    l += __shfl_xor_sync(~0u, l, 16);
    l += __shfl_xor_sync(~0u, l, 8);
    if (lane < SIDE)
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
#pragma unroll(F::SLABS == 1 ? 8 : 2)
        for (int i = 0; i < HALF; i++) {
            float x[F::COLUMNS];

            load_columns<F>(stage + i * F::BYTES, x);
#pragma unroll
            for (int r = 0; r < F::QUERIES; r += 4) {
                const float4 w = *(const float4 *)(weight + i * F::QUERIES + r);

#pragma unroll
                for (int c = 0; c < F::COLUMNS; c++) {
                    o[r][c] = ridge_fma(w.x, x[c], o[r][c]);
                    o[r + 1][c] = ridge_fma(w.y, x[c], o[r + 1][c]);
                    o[r + 2][c] = ridge_fma(w.z, x[c], o[r + 2][c]);
                    o[r + 3][c] = ridge_fma(w.w, x[c], o[r + 3][c]);
                }
            }
        }
    } else {
        const int low = max(s->lowest - base, 0), high = min(s->highest - base, (int)HALF);

#pragma unroll 1
        for (int i = low; i < high; i++) {
            float x[F::COLUMNS];

            load_columns<F>(stage + i * F::BYTES, x);
#pragma unroll
            for (int r = 0; r < F::QUERIES; r++)
                if (base + i >= s->range[r].x && base + i < s->range[r].y)
#pragma unroll
                    for (int c = 0; c < F::COLUMNS; c++)
                        o[r][c] = ridge_fma(weight[i * F::QUERIES + r], x[c], o[r][c]);
        }
    }
}

/* o of the chunks added, of a slab: a warp one of its queries. */
template <class F>
static __device__ __forceinline__ void store_slab(const attention_args &p, chunk_shared<F> *s, int64_t kv_head,
                                                  int64_t first_row, int rows, int piece, int slab,
                                                  const float (*o)[F::COLUMNS])
{
    const int warp = threadIdx.x / 32, r = warp % GROUP_WARPS, c = threadIdx.x % 32 * F::COLUMNS;
    float sum[F::COLUMNS];
    int64_t t, head;

#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < F::COLUMNS; j += 2)
            *(float2 *)(s->part[warp] + i * F::N + c + j) = make_float2(o[i][j], o[i][j + 1]);
    ptx_barrier_sync(1 + threadIdx.x / GROUP_THREADS,
                     GROUP_THREADS); /* the warps' o are written before they are added */
    if (slab * SIDE + r < rows) {
#pragma unroll
        for (int i = 0; i < GROUP_WARPS; i++)
#pragma unroll
            for (int j = 0; j < F::COLUMNS; j++) {
                const float x = s->part[warp - r + i][r * F::N + c + j];

                sum[j] = i ? sum[j] + x : x;
            }
        query_of(p, kv_head, first_row + slab * SIDE + r, &t, &head);
#pragma unroll
        for (int j = 0; j < F::COLUMNS; j += 2)
            *(float2 *)(piece_o(p, t, head) + (int64_t)piece * F::N + c + j) = make_float2(sum[j], sum[j + 1]);
    }
}

/* m and l of the piece to the workspace, by the first threads of the warpgroup. */
template <class F>
static __device__ __forceinline__ void store_sums(const attention_args &p, const chunk_shared<F> *s, int64_t kv_head,
                                                  int64_t first_row, int rows, int piece, int parity)
{
    const int r = threadIdx.x % GROUP_THREADS;
    const float(*l)[F::QUERIES] = &s->l[threadIdx.x / 32 / GROUP_WARPS * GROUP_WARPS];

    if (r < rows) {
        int64_t t, head;

        query_of(p, kv_head, first_row + r, &t, &head);
        piece_ml(p, t, head)[piece] = make_float2(piece_max(s, parity, r), l[0][r] + l[1][r] + l[2][r] + l[3][r]);
    }
}

/* ------------------------------------------------------------------------------------------------------------ piece */

/* Keys of the warp's chunk become scores; values are requested in their place. */
template <class F>
static __device__ __forceinline__ void keys_of_item(const chunk_args &a, chunk_shared<F> *s, chunk_work w,
                                                    chunk_item at, int parity, float (*x)[4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int position = chunk_base(w, at) + lane / 8 + (lane & 4);
    float q[SIDE][F::N / 8];

#pragma unroll(F::SLABS == 1 ? 2 : 1)
    for (int half = 0; half < 2; half++) {
        ptx_mbarrier_wait(ptx_shared(&s->full[warp][half]), 0);
#pragma unroll
        for (int i = 0; i < F::SLABS; i++) {
            float dot[2];

            if (F::SLABS > 1 || half == 0)
                hold_queries<F::N>(s->query[threadIdx.x / GROUP_THREADS] + i * SIDE, q);
            dot[0] = multiply_keys<F>(s->stage[warp][half], 0, q);
            if (F::SLABS > 1)
                __syncwarp(); /* keeps loads of the second eight keys behind the first, for want of registers */
            dot[1] = multiply_keys<F>(s->stage[warp][half], 8, q);
            x[i][0] = half ? x[i][0] : dot[0];
            x[i][1] = half ? x[i][1] : dot[1];
            x[i][2] = half ? dot[0] : 0.0f;
            x[i][3] = half ? dot[1] : 0.0f;
        }
        __syncwarp(); /* all lanes have read the stage */
        if (lane == 0)
            load_values<F>(a, s, w, at, half);
    }
#pragma unroll
    for (int i = 0; i < F::SLABS; i++)
        score_keys<F>(a.p, s, parity, i, position, x[i]);
}

/* An item, and requests the next one's keys. */
template <class F>
static __device__ __forceinline__ void compute_item(const chunk_args &a, chunk_shared<F> *s, chunk_work w,
                                                    int64_t first_row, int rows, chunk_item at, int parity, bool more)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = chunk_base(w, at);
    const int piece = w.first + at.piece, group = 1 + threadIdx.x / GROUP_THREADS;
    const bool all = s->common_first <= base && s->common_end >= base + CHUNK;
    float x[F::SLABS][4], o[F::QUERIES][F::COLUMNS] = {};

    keys_of_item<F>(a, s, w, at, parity, x);
    ptx_barrier_sync(group, GROUP_THREADS); /* the warps' maxima are written, and o of the last piece is read */
#pragma unroll
    for (int i = 0; i < F::SLABS; i++)
        weigh_keys<F>(s, parity, i, base + lane / 8 + (lane & 4), x[i]);
    __syncwarp(); /* the weights are written before all lanes read them */
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        ptx_mbarrier_wait(ptx_shared(&s->full[warp][half]), 1);
        add_values<F>(s, s->stage[warp][half], s->part[warp] + half * HALF * F::QUERIES, base + half * HALF, all, o);
        __syncwarp(); /* all lanes have read the stage, and its weights */
        if (more && lane == 0)
            load_keys<F>(a, s, w, item_after(w, at), half);
    }
#pragma unroll
    for (int i = 0; i < F::SLABS; i++) {
        if (i)
            ptx_barrier_sync(group, GROUP_THREADS); /* the last slab's o are read */
        store_slab<F>(a.p, s, at.head, first_row, rows, piece, i, o + i * SIDE);
    }
    store_sums<F>(a.p, s, at.head, first_row, rows, piece, parity);
}
#endif

template <int KV, int N, int SLABS>
static __global__ void __launch_bounds__((chunk_form<KV, N, SLABS>::THREADS), 1)
    chunk(const __grid_constant__ chunk_args a)
{
#if __CUDA_ARCH__ >= 900
    typedef chunk_form<KV, N, SLABS> form;
    extern __shared__ __align__(1024) char memory[];
    chunk_shared<form> *s = (chunk_shared<form> *)memory;
    const int64_t first_row = (int64_t)blockIdx.y * ROWS;
    const int rows = (int)min(a.p.tokens * a.p.group - first_row, (int64_t)ROWS);
    const int warp = threadIdx.x / 32;
    float4 query[form::QUERY_WORDS];
    chunk_item at = {};

    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < STAGES; i++)
            ptx_mbarrier_init(ptx_shared(&s->full[warp][i]), 1);
        ptx_mbarrier_fence_init();
    }
    ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* after the wait: merge reads positions before its own */
    if (threadIdx.x < 32)
        read_ranges(a.p, s, first_row, rows, form::QUERIES);
    __syncthreads(); /* barriers are initialised and ranges written before all threads use them */
    const chunk_work w = work_of(s);
    const int items = items_of<form::GROUPS>(a.p, w, &at);

    if (items == 0)
        return;
    fetch_queries<form>(a.p, at.head, first_row, rows, query); /* before keys, behind which they would come late */
    if (threadIdx.x % 32 == 0)
        for (int half = 0; half < 2; half++)
            load_keys<form>(a, s, w, at, half);
    put_queries<form>(s, query);
    for (int i = 0; i < items; i++) {
        if (i && at.piece == 0) {
            fetch_queries<form>(a.p, at.head, first_row, rows, query);
            put_queries<form>(s, query);
        }
        compute_item<form>(a, s, w, first_row, rows, at, i & 1, i + 1 < items);
        at = item_after(w, at);
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

typedef struct chunk_kernel {
    const void *function;
    int shared, threads;
} chunk_kernel;

#define FORM(kv, n, slabs)                                                                      \
    {                                                                                           \
        (const void *)chunk<kv, n, slabs>, (int)sizeof(chunk_shared<chunk_form<kv, n, slabs>>), \
            chunk_form<kv, n, slabs>::THREADS                                                   \
    }
#define FORMS(kv)                              \
    {                                          \
        {FORM(kv, 64, 1), FORM(kv, 64, 2)},    \
        {                                      \
            FORM(kv, 128, 1), FORM(kv, 128, 2) \
        }                                      \
    }

/* By the cache's dtype, head_dim 64 or 128, and up to 4 or 8 queries. */
static const chunk_kernel forms[3][2][2] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16), FORMS(RIDGE_U8)};
static const void *const merge_function[1] = {(const void *)merge};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = host_load(device, merge_function, 1, "attention_decode: loading kernels");

    for (int i = 0; i < 12 && !status; i++) {
        const chunk_kernel *f = &forms[0][0][0] + i;

        if (f->shared <= host_max_shared(device))
            status = host_prepare(device, &f->function, 1, cudaFuncAttributeMaxDynamicSharedMemorySize, f->shared,
                                  "attention_decode: loading kernels");
    }
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    chunk_args a = {{}, attention_args_of(&bound->call, workspace)};
    const int64_t queries = a.p.tokens * a.p.group, blocks = ridge_ceil_div(queries, (int64_t)ROWS);
    const int64_t most = a.p.kv_heads * attention_pieces_of(a.p.positions);
    const chunk_kernel *f = &forms[a.p.kv == RIDGE_U8 ? 2 : a.p.kv == RIDGE_BF16][a.p.n == 128][queries <= 4   ? 0
                                                                                                : queries <= 8 ? 1
                                                                                                               : 2];
    ridge_status status = RIDGE_OK;

    if (a.p.tokens * a.p.heads == 0)
        return RIDGE_OK;
    if (a.p.kv != RIDGE_U8)
        status = cache_map(device, &a.k, &a.p, a.p.k, a.p.k_stride, HALF);
    if (most && !status)
        status = host_launch_shared(
            device, kernel->name, f->function,
            dim3((unsigned)ridge_min(ridge_ceil_div((int64_t)device->units, blocks), most), (unsigned)blocks),
            f->threads, (size_t)f->shared, &a, stream);
    return status ? status : merge_launch(device, kernel->name, &a.p, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1];
    const int64_t n = problem->dim[3];

    if (n != 64 && n != 128)
        return "head_dim is not 64 or 128";
    if (problem->align < 4)
        return "an operand or row stride is not a multiple of 16 bytes";
    if (problem->dim[4] * attention_row_bytes(problem->dtype[RIDGE_ATTENTION_DECODE_K], n) % 16)
        return "a head of the cache is no multiple of 16 bytes";
    if (forms[0][n == 128][1].shared > host_max_shared(device))
        return "the chunks do not fit in shared memory";
    if (problem->dim[2] > 0 && queries / (double)problem->dim[2] > 65535.0 * ROWS)
        return "more than 2^20 queries of a KV head";
    if ((double)problem->dim[2] * (double)problem->dim[4] > 2147480000.0 * PIECE)
        return "more than 2^31 pieces";
    return queries > 2147483647.0 ? "more than 2^31 - 1 queries" : NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return attention_workspace(problem);
}

/* Not picked yet: dearer than the others. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 1000 +
           (double)problem->dim[2] * (double)problem->dim[3] * (double)problem->dim[4] * 4e-2 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.attention_decode.chunk",
     RIDGE_ATTENTION_DECODE,
     RIDGE_ARCH_SM90,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     why_not,
     workspace_bytes,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_attention_chunk = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
