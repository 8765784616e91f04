/* tile.cuh: attention of heads of 64, 128 and 256 elements on CUDA cores, in the order of src/math/attention.h; the
 * kernels are in tile.cu and append_attention.cu.
 *
 * A CTA has a piece of 128 positions of a KV head and up to 16 queries of its group. Its keys and values come to shared
 * memory by cp.async, all in flight at once.
 *   dots     a warp four keys at a time, eight lanes a key: lane i has columns 2 i and 2 i + 1 of every 16, which are
 *            two of the sixteen partials, and the same columns of up to four queries in registers
 *   weights  a warp a query, a lane four keys
 *   values   a warp a chunk of 32 positions, some neighbouring columns a lane, and up to four queries
 * Then either o, m and l go to the workspace and a second kernel merges them (merge.cuh), or the CTAs of the pieces of
 * a KV head are a cluster and merge them in distributed shared memory. A warp alone issues an instruction in four
 * cycles, so few CTAs want many warps: 16 in a cluster, else 8 and two CTAs a multiprocessor. */
#ifndef RIDGE_ATTENTION_TILE_CUH
#define RIDGE_ATTENTION_TILE_CUH

#include "merge.cuh"

enum { CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE, CHUNKS = PIECE / CHUNK };
enum { ROWS = 16, SIDE = 4 };     /* queries of a CTA, and of a warp at a time */
enum { CLUSTER = 8 };             /* CTAs that merge by themselves */
enum { EARLY = CLUSTER * PIECE }; /* so few positions are loaded before it is known how many the queries see */

static_assert(CHUNK == 32 && CHUNKS == 4, "a lane has a key of each chunk");

/* What a kernel is compiled for: the cache's dtype, head_dim, warps. */
template <int KV_, int N_, int WARPS_> struct tile_form {
    enum { KV = KV_, N = N_, WARPS = WARPS_, THREADS = 32 * WARPS };
    enum { BYTES = KV == RIDGE_U8 ? N / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES : 2 * N }; /* of a row of the cache */
    /* Of a row of keys in shared memory: for floats 32 more than a multiple of 128, so that four lie in different
     * banks. */
    enum { PITCH = KV == RIDGE_U8 ? (int)BYTES : 2 * N + 32 };
    enum { HELD = N == 256 ? 2 : SIDE }; /* queries in a warp's registers */
    /* Where a CTA has no more than SIDE queries, the warps of a chunk divide its columns, then its queries. */
    enum { SHARES = WARPS / CHUNKS, BY_COLUMN = SHARES < N / 64 ? SHARES : N / 64, BY_ROW = SHARES / BY_COLUMN };
};

template <int N> struct __align__(128) tile_shared
{
    char k[PIECE * (2 * N + 32)]; /* then o of the chunks, [CHUNKS][rows][N] */
    char v[PIECE * 2 * N];
    int first[ROWS], end[ROWS], lowest, highest; /* what a query sees of the piece, and the hull of that */
    int piece_first[ROWS], piece_end[ROWS];      /* the pieces that it sees */
    float m[ROWS], l[ROWS];
    /* Of every query: its dot products, then weights, and its elements. Allocated for as many as there are. */
    __align__(16) float query[ROWS][PIECE + N];
};

static_assert(CHUNKS * ROWS * 4 <= PIECE * 2, "o of the chunks fits onto the keys");

/* Rows [low, high) of the piece, which are one range of bytes. */
template <int BYTES, int PITCH, int THREADS>
static __device__ __forceinline__ void load_rows(const char *from, char *to, int low, int high)
{
    const int end = high * BYTES;

#pragma unroll 8
    for (int i = low * BYTES / 16 * 16 + threadIdx.x * 16; i < end; i += THREADS * 16)
        mma_copy16(ptx_shared(to + (PITCH == BYTES ? i : i / BYTES * PITCH + i % BYTES)), from + i, min(end - i, 16));
    mma_copy_commit();
}

/* The queries as f32; one group of cp.async. */
template <class F>
static __device__ __forceinline__ void load_queries(const attention_args &p, tile_shared<F::N> *s, int64_t first_row,
                                                    int rows)
{
    enum { N = F::N };

    for (int i = threadIdx.x * 4; i < rows * N; i += F::THREADS * 4) {
        float *to = s->query[i / N] + PIECE + i % N;
        int64_t t, head;

        query(p, first_row + i / N, &t, &head);
        const int64_t at = head * N + i % N;

        if (p.q_bf16) {
            const uint2 v = ptx_load8(p.q + t * p.q_stride + 2 * at);

            num_unpack2<RIDGE_BF16>(v.x, to, to + 1);
            num_unpack2<RIDGE_BF16>(v.y, to + 2, to + 3);
        } else {
            mma_copy16(ptx_shared(to), p.q + t * p.q_stride + 4 * at, 16);
        }
    }
    mma_copy_commit();
}

/* Keys of positions [low, high) of the piece, the queries, the values: three groups of cp.async. The keys' addresses
 * are ready first. */
template <class F>
static __device__ __forceinline__ void load_all(const attention_args &p, tile_shared<F::N> *s, int64_t first_row,
                                                int rows, int low, int high)
{
    const int64_t base = (int64_t)blockIdx.x * PIECE * F::BYTES;

    load_rows<F::BYTES, F::PITCH, F::THREADS>(p.k + blockIdx.y * p.k_stride + base, s->k, low, high);
    load_queries<F>(p, s, first_row, rows);
    load_rows<F::BYTES, F::BYTES, F::THREADS>(p.v + blockIdx.y * p.v_stride + base, s->v, low, high);
}

/* What every query sees. */
template <int N>
static __device__ __forceinline__ void read_ranges(const attention_args &p, tile_shared<N> *s, int64_t first_row,
                                                   int rows)
{
    if (threadIdx.x < 32) {
        const int64_t base = (int64_t)blockIdx.x * PIECE;
        int64_t t, head, first = 0, end = 0;

        if (threadIdx.x < rows) {
            query(p, first_row + threadIdx.x, &t, &head);
            attention_range(&p, p.pos[t], &first, &end);
        }
        const int low = (int)min(max(first - base, (int64_t)0), (int64_t)PIECE);
        const int high = (int)min(max(end - base, (int64_t)0), (int64_t)PIECE);
        const int lowest = __reduce_min_sync(~0u, low < high ? low : (int)PIECE);
        const int highest = __reduce_max_sync(~0u, low < high ? high : 0);

        if (threadIdx.x < ROWS) {
            s->first[threadIdx.x] = low;
            s->end[threadIdx.x] = high;
            s->piece_first[threadIdx.x] = (int)(first / PIECE);
            s->piece_end[threadIdx.x] = first < end ? (int)attention_pieces_of(end) : 0;
        }
        if (threadIdx.x == 0) {
            s->lowest = lowest;
            s->highest = highest;
        }
    }
    __syncthreads(); /* the ranges are written before all threads read them */
}

/* The sums over the eight lanes of a key, for each query; a lane gets that of its first one. Partials four apart are
 * two lanes apart: each of the two keeps the half of the queries that it has first, which is the other's second one.
 * Then those two apart, then a lane's own two, then the two eights. */
template <int HELD> static __device__ __forceinline__ float sum_lanes(const float (*part)[2])
{
    float sum[2];

#pragma unroll
    for (int b = 0; b < 2; b++) {
        float half[HELD / 2];

#pragma unroll
        for (int r = 0; r < HELD / 2; r++)
            half[r] = part[r][b] + __shfl_xor_sync(~0u, part[HELD / 2 + r][b], 2);
        sum[b] = half[0] + __shfl_xor_sync(~0u, half[HELD / 2 - 1], 1);
    }
    sum[0] += sum[1];
    return sum[0] + __shfl_xor_sync(~0u, sum[0], 4);
}

/* Dot products with keys [begin, end), four of them every `step`, of the queries in registers: query r of a lane is
 * own ^ r of the warp's. to: where the lane's first one has its dots, if it stores them; those of keys that are not
 * there are not read. */
template <class F>
static __device__ __forceinline__ void multiply_held(const char *k, const float (*q)[F::N / 8], int begin, int end,
                                                     int step, bool stores, float *to)
{
    enum { N = F::N, HELD = F::HELD };
    const int lane = threadIdx.x % 32, pair = lane % 8;

#pragma unroll 2
    for (int i = begin; i < end; i += step) {
        const int key = i + lane / 8;
        float part[HELD][2] = {};

#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            float x[2];

            cache_pair<F::KV, 1>(k + key * F::PITCH, 16 * j + 2 * pair, x);
#pragma unroll
            for (int r = 0; r < HELD; r++) {
                part[r][0] = ridge_fma(q[r][2 * j], x[0], part[r][0]);
                part[r][1] = ridge_fma(q[r][2 * j + 1], x[1], part[r][1]);
            }
        }
        const float dot = sum_lanes<HELD>(part);

        if (stores)
            to[key] = dot;
    }
}

/* The query of the warp's that a lane has first, and whether it stores that one's dots. */
template <int HELD> static __device__ __forceinline__ int own_query(bool *stores)
{
    const int pair = threadIdx.x % 8;

    *stores = HELD == 2 ? pair == 0 || pair == 2 : pair < 4;
    return HELD == 2 ? pair / 2 % 2 : pair % 4;
}

/* Dot products with all keys. The warps divide the queries, HELD each, and then the keys. */
template <class F> static __device__ __forceinline__ void multiply_keys(tile_shared<F::N> *s, int rows)
{
    enum { N = F::N, HELD = F::HELD };
    const int pair = threadIdx.x % 8;
    int groups = 1;
    bool stores;

    while (groups * HELD < rows)
        groups *= 2;
    const int first = threadIdx.x / 32 % groups * HELD, own = own_query<HELD>(&stores), row = first + own;
    float q[HELD][N / 8];

    if (first >= rows)
        return;
#pragma unroll
    for (int r = 0; r < HELD; r++)
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const float2 x = *(const float2 *)(s->query[min(first + (r ^ own), rows - 1)] + PIECE + 16 * j + 2 * pair);

            q[r][2 * j] = x.x;
            q[r][2 * j + 1] = x.y;
        }
    multiply_held<F>(s->k, q, threadIdx.x / 32 / groups * 4, PIECE, F::WARPS / groups * 4, stores && row < rows,
                     s->query[min(row, (int)ROWS - 1)]);
}

/* Dot products of one query with a piece, of which it sees [first, end), become scores and then weights, by a warp.
 * Lane 0 gets m and l. */
static __device__ __forceinline__ float2 weigh_row(const attention_args &p, float *row, int first, int end)
{
    const int lane = threadIdx.x % 32;
    float m = -INFINITY, l = 0.0f, x[CHUNKS], sum[CHUNKS];

#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = c * CHUNK + lane;

        x[c] = at >= first && at < end ? ridge_attention_score(row[at], p.scale, p.softcap) : -INFINITY;
        m = ridge_attention_max(m, x[c]);
    }
#pragma unroll
    for (int h = 16; h > 0; h /= 2)
        m = ridge_attention_max(m, __shfl_xor_sync(~0u, m, h));
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = c * CHUNK + lane;

        sum[c] = at >= first && at < end ? ridge_attention_weight(m, x[c]) : 0.0f;
        row[at] = sum[c];
    }
#pragma unroll
    for (int h = 16; h > 0; h /= 2)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            sum[c] += __shfl_down_sync(~0u, sum[c], h);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        l = c ? l + sum[c] : sum[c];
    return make_float2(m, l);
}

/* COUNT neighbouring elements of a row of values from column c on as f32. */
template <int KV, int COUNT> static __device__ __forceinline__ void load_values(const char *row, int c, float *x)
{
    if (COUNT == 8 && KV != RIDGE_U8) {
        num_unpack<KV>(*(const uint4 *)(row + 2 * c), x);
    } else if (COUNT == 4 && KV != RIDGE_U8) {
        const uint2 v = *(const uint2 *)(row + 2 * c);

        num_unpack2<KV>(v.x, x, x + 1);
        num_unpack2<KV>(v.y, x + 2, x + 3);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2)
            cache_pair<KV, 1>(row, c + i, x + i);
    }
}

/* Values of a chunk, COLUMNS from column c0 on, of R queries: w: their weights; from, to: the keys of the chunk that
 * they see; low, high: the hull of those. */
template <class F, int R, int COLUMNS>
static __device__ __forceinline__ void sum_chunk(const char *v, const float *const *w, const int *from, const int *to,
                                                 int low, int high, int c0, float (*sum)[COLUMNS])
{
    bool all = true;

#pragma unroll
    for (int r = 0; r < R; r++)
        all = all && from[r] <= 0 && to[r] >= CHUNK;
    if (all) {
#pragma unroll 2
        for (int i = 0; i < CHUNK; i += 4) {
            float4 weight[R];

#pragma unroll
            for (int r = 0; r < R; r++)
                weight[r] = *(const float4 *)(w[r] + i);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float x[COLUMNS];

                load_values<F::KV, COLUMNS>(v + (i + k) * F::BYTES, c0, x);
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++)
                        sum[r][c] = ridge_fma(k == 0   ? weight[r].x
                                              : k == 1 ? weight[r].y
                                              : k == 2 ? weight[r].z
                                                       : weight[r].w,
                                              x[c], sum[r][c]);
            }
        }
        return;
    }
    high = min(high, (int)CHUNK);
    for (int i = max(low, 0); i < high; i++) {
        float x[COLUMNS];

        load_values<F::KV, COLUMNS>(v + i * F::BYTES, c0, x);
#pragma unroll
        for (int r = 0; r < R; r++)
            if (i >= from[r] && i < to[r])
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    sum[r][c] = ridge_fma(w[r][i], x[c], sum[r][c]);
    }
}

/* The same of queries of the CTA, R from row `first` on. o: of the chunk's first query. */
template <class F, int R, int COLUMNS>
static __device__ __forceinline__ void sum_values(tile_shared<F::N> *s, int chunk, int first, int rows, int c0,
                                                  float *o)
{
    const int base = chunk * CHUNK;
    float sum[R][COLUMNS] = {};
    const float *w[R];
    int from[R], to[R];

#pragma unroll
    for (int r = 0; r < R; r++) {
        const int row = min(first + r, rows - 1);

        w[r] = s->query[row] + base;
        from[r] = s->first[row] - base;
        to[r] = s->end[row] - base;
    }
    sum_chunk<F, R, COLUMNS>(s->v + base * F::BYTES, w, from, to, s->lowest - base, s->highest - base, c0, sum);
#pragma unroll
    for (int r = 0; r < R; r++)
        if (first + r < rows)
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 2)
                *(float2 *)(o + (first + r) * F::N + c0 + c) = make_float2(sum[r][c], sum[r][c + 1]);
}

/* All values: few queries are divided among the warps of a chunk by columns, many by queries. */
template <class F> static __device__ __forceinline__ void sum_chunks(tile_shared<F::N> *s, int rows)
{
    enum { N = F::N, FEW = SIDE / F::BY_ROW, SHARE = N / 32 / F::BY_COLUMN };
    const int lane = threadIdx.x % 32, chunk = threadIdx.x / 32 % CHUNKS, share = threadIdx.x / 32 / CHUNKS;
    float *o = (float *)s->k + chunk * rows * N;

    if (rows <= SIDE) {
        const int first = share / F::BY_COLUMN * FEW;

        if (first < rows)
            sum_values<F, FEW, SHARE>(s, chunk, first, rows, (share % F::BY_COLUMN * 32 + lane) * SHARE, o);
    } else {
        for (int r = share * SIDE; r < rows; r += F::SHARES * SIDE)
            sum_values<F, SIDE, N / 32>(s, chunk, r, rows, lane * (N / 32), o);
    }
}

#if __CUDA_ARCH__ >= 900
/* The pieces of the cluster's queries, which lie in the shared memory of its CTAs, into out. */
template <int N, int THREADS>
static __device__ __forceinline__ void merge_cluster(const attention_args &p, tile_shared<N> *s, int64_t first_row,
                                                     int rows)
{
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < rows * N; i += gridDim.x * THREADS) {
        const int r = i / N, first = s->piece_first[r], end = s->piece_end[r];
        float m[CLUSTER], l[CLUSTER], o[CLUSTER], top = -INFINITY, sum = 0.0f, x = 0.0f;
        int64_t t, head;

        query(p, first_row + r, &t, &head);
#pragma unroll
        for (int j = 0; j < CLUSTER; j++)
            if (j >= first && j < end) {
                m[j] = ptx_load_cluster(ptx_map(ptx_shared(&s->m[r]), j));
                l[j] = ptx_load_cluster(ptx_map(ptx_shared(&s->l[r]), j));
                o[j] = ptx_load_cluster(ptx_map(ptx_shared((float *)s->k + i), j));
            }
#pragma unroll
        for (int j = 0; j < CLUSTER; j++)
            if (j >= first && j < end)
                top = ridge_attention_max(top, m[j]);
        if (p.sinks)
            top = ridge_attention_max(top, p.sinks[head]);
#pragma unroll
        for (int j = 0; j < CLUSTER; j++)
            if (j >= first && j < end) {
                const float w = ridge_exp_neg(top - m[j]);

                sum = ridge_fma(w, l[j], sum);
                x = ridge_fma(w, o[j], x);
            }
        if (p.sinks)
            sum += ridge_attention_weight(top, p.sinks[head]);
        store_out(p, t, head * N + i % N, x * ridge_attention_factor(sum));
    }
    __syncwarp();
}
#endif

/* o of the chunks added; to the workspace, or to where the first chunk's lies. */
template <int N, int THREADS, int CLUSTERED>
static __device__ __forceinline__ void finish_piece(const attention_args &p, tile_shared<N> *s, int64_t first_row,
                                                    int rows)
{
    float *o = (float *)s->k;

    for (int i = threadIdx.x; i < rows * N; i += THREADS) {
        const float sum = o[i] + o[rows * N + i] + o[2 * rows * N + i] + o[3 * rows * N + i];
        int64_t t, head;

        if (CLUSTERED) {
            o[i] = sum;
        } else {
            query(p, first_row + i / N, &t, &head);
            piece_o(p, t, head)[(int64_t)blockIdx.x * N + i % N] = sum;
        }
    }
    if (!CLUSTERED && threadIdx.x < rows) {
        int64_t t, head;

        query(p, first_row + threadIdx.x, &t, &head);
        piece_ml(p, t, head)[blockIdx.x] = make_float2(s->m[threadIdx.x], s->l[threadIdx.x]);
    }
}

/* What follows the dot products: weights, values, and the piece's sums; then the cluster's.
 * All threads have read the keys, and the values are there. */
template <class F, int CLUSTERED>
static __device__ __forceinline__ void finish(const attention_args &p, tile_shared<F::N> *s, int64_t first_row,
                                              int rows)
{
    if (s->lowest < s->highest) {
        for (int r = threadIdx.x / 32; r < rows; r += F::WARPS) {
            const float2 ml = weigh_row(p, s->query[r], s->first[r], s->end[r]);

            if (threadIdx.x % 32 == 0) {
                s->m[r] = ml.x;
                s->l[r] = ml.y;
            }
        }
        __syncthreads(); /* all weights are written before they are read */
        sum_chunks<F>(s, rows);
        __syncthreads(); /* the sums of all chunks are written before they are added */
        finish_piece<F::N, F::THREADS, CLUSTERED>(p, s, first_row, rows);
    }
#if __CUDA_ARCH__ >= 900
    if (CLUSTERED) {
        ptx_cluster_sync(); /* o, m and l of all CTAs are written before any reads them */
        merge_cluster<F::N, F::THREADS>(p, s, first_row, rows);
        ptx_cluster_sync(); /* they are read before their CTA ends */
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

static inline size_t shared_bytes(int64_t n, int64_t queries)
{
    const size_t one = (size_t)(PIECE + n) * sizeof(float);

    return (n == 64    ? sizeof(tile_shared<64>)
            : n == 128 ? sizeof(tile_shared<128>)
                       : sizeof(tile_shared<256>)) -
           one * (size_t)(ROWS - ridge_min(queries, ROWS));
}

/* Kernels by the cache's dtype, CLUSTERED, and head_dim 64, 128, 256. */
typedef const void *tile_functions[3][2][3];

#define TILE_FORMS(kernel, kv)                                                                                     \
    {                                                                                                              \
        {(const void *)kernel<kv, 64, 0>, (const void *)kernel<kv, 128, 0>, (const void *)kernel<kv, 256, 0>},     \
            {(const void *)kernel<kv, 64, 1>, (const void *)kernel<kv, 128, 1>, (const void *)kernel<kv, 256, 1>}, \
    }
#define TILE_FUNCTIONS(kernel)                                                                      \
    {                                                                                               \
        TILE_FORMS(kernel, RIDGE_F16), TILE_FORMS(kernel, RIDGE_BF16), TILE_FORMS(kernel, RIDGE_U8) \
    }

static inline ridge_status tile_prepare(const ridge_device *device, const tile_functions functions, const char *where)
{
    static const void *const merge_function[1] = {(const void *)merge};
    const int64_t n[3] = {64, 128, 256};
    ridge_status status = host_load(device, merge_function, 1, where);

    for (int i = 0; i < 18 && !status; i++)
        if (shared_bytes(n[i % 3], ROWS) <= (size_t)host_max_shared(device))
            status = host_prepare(device, &functions[0][0][0] + i, 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared_bytes(n[i % 3], ROWS), where);
    return status;
}

static inline bool tile_is_clustered(const ridge_kernel *kernel)
{
    return kernel->param[0] != 0;
}

/* queries: of a CTA, as many as have shared memory; argument: the kernel's. */
static inline ridge_status tile_launch(const ridge_device *device, const ridge_kernel *kernel,
                                       const tile_functions functions, attention_args *p, int64_t parts,
                                       int64_t queries, void *argument, void *stream)
{
    const int clustered = tile_is_clustered(kernel);
    const int wide = p->n == 64 ? 0 : p->n == 128 ? 1 : 2, kv = p->kv == RIDGE_U8 ? 2 : p->kv == RIDGE_BF16;
    dim3 grid((unsigned)attention_pieces_of(p->positions), (unsigned)p->kv_heads, (unsigned)parts);
    ridge_status status = RIDGE_OK;
    int cluster = 1;

    if (p->tokens * p->heads == 0)
        return RIDGE_OK;
    if (clustered) {
        while (cluster < (int)grid.x)
            cluster *= 2;
        grid.x = (unsigned)cluster;
    }
    if (grid.x)
        status = host_launch_cluster(device, kernel->name, functions[kv][clustered][wide], grid, cluster,
                                     clustered ? 512 : 256, shared_bytes(p->n, queries), argument, stream);
    return status || clustered ? status : merge_launch(device, kernel->name, p, 0, stream);
}

static inline const char *tile_why_not(const ridge_device *device, const ridge_kernel *kernel,
                                       const ridge_problem *problem)
{
    const int64_t n = problem->dim[3];

    if (n != 64 && n != 128 && n != 256)
        return "head_dim is not 64, 128 or 256";
    const int64_t head = problem->dim[4] * attention_row_bytes(problem->dtype[attention_keys(problem->op)], n);

    if (problem->align < 4 || (problem->packed && head % 16))
        return "an operand or row stride is not a multiple of 16 bytes";
    if (shared_bytes(n, ROWS) > (size_t)host_max_shared(device))
        return "the tiles do not fit in shared memory";
    return tile_is_clustered(kernel) && problem->dim[4] > CLUSTER * PIECE ? "more than 1024 positions" : NULL;
}

static inline size_t tile_workspace(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return tile_is_clustered(kernel) ? 0 : attention_workspace(problem);
}

/* Latency, and the cache's bytes at the copy rate. A cluster has fewer CTAs at a time, and loses from 40 queries of a
 * KV head on. */
static inline double tile_cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1] / (double)ridge_max(problem->dim[2], 1);

    return (tile_is_clustered(kernel) ? 4 + 0.05 * queries : 6) + (problem->op == RIDGE_KV_APPEND_ATTENTION ? 1 : 0) +
           (double)problem->dim[2] * (double)problem->dim[3] * (double)problem->dim[4] * 4e-3 / device->copy_gbps;
}

#define TILE_ROW(name, op, arch, clustered)                                                                      \
    {                                                                                                            \
        name, op, arch, RIDGE_ARCH_CUDA_LAST,                                                                    \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {clustered}, why_not, \
            tile_workspace, tile_cost, launch                                                                    \
    }

#endif
