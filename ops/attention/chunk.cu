/* chunk.cu: attention_decode of long caches, in the order of src/math/attention.h, sm_90 up.
 *
 * A CTA of four warpgroups has an SM. Each has a range of the pieces of all KV heads and up to four queries of one, a
 * warp one of the four chunks of 32 positions of a piece (chunk.cuh). Keys, then values, of the chunk come in two
 * stages of 16 positions: a warp requests the values in place of the keys that it has read and the next piece's keys in
 * place of the values, so that memory is busy while it computes. Barriers of the warpgroup: the warps' maxima are
 * known, the warps' o are. o, m and l of a piece go to the workspace; a second kernel merges the pieces (merge.cuh). */
#include "append_head.cuh"
#include "cache_map.cuh"
#include "chunk.cuh"

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
template <class S> static __device__ __forceinline__ void read_ranges(const attention_args &p, S *s, int rows)
{
    int64_t t, head, first, end;

    query_of(p, 0, min((int)threadIdx.x, rows - 1), &t, &head);
    attention_range(&p, p.pos[t], &first, &end);
    const int low = (int)min(first, (int64_t)0x7fffffff), high = (int)end;
    const int lowest = __reduce_min_sync(~0u, low < high ? low : 0x7fffffff);
    const int highest = __reduce_max_sync(~0u, low < high ? high : 0);
    const int common_first = __reduce_max_sync(~0u, low), common_end = __reduce_min_sync(~0u, high);

    if (threadIdx.x < QUERIES)
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

/* A thread's share of the warpgroup's queries of a KV head as f32; zeros for missing ones. */
template <class F>
static __device__ __forceinline__ float4 fetch_queries(const attention_args &p, int64_t kv_head, int rows)
{
    const int i = threadIdx.x % GROUP_THREADS * 4, r = i / F::N, c = i % F::N;
    float4 x = {};
    int64_t t, head;

    if (r >= rows)
        return x;
    query_of(p, kv_head, r, &t, &head);
    if (p.q_bf16) {
        const uint2 two = ptx_load8(p.q + t * p.q_stride + 2 * (head * F::N + c));

        num_unpack2<RIDGE_BF16>(two.x, &x.x, &x.y);
        num_unpack2<RIDGE_BF16>(two.y, &x.z, &x.w);
        return x;
    }
    return *(const float4 *)(p.q + t * p.q_stride + 4 * (head * F::N + c));
}

template <class F> static __device__ __forceinline__ void put_queries(chunk_shared<F> *s, float4 x)
{
    const int thread = threadIdx.x % GROUP_THREADS;

    if (thread * 4 < QUERIES * F::N)
        ((float4 *)s->query[threadIdx.x / GROUP_THREADS])[thread] = x;
    ptx_barrier_sync(1 + threadIdx.x / GROUP_THREADS, GROUP_THREADS); /* they are written before they are read */
}

/* o of the chunks added, to the workspace: a warp one of the queries. */
template <class F>
static __device__ __forceinline__ void store_values(const attention_args &p, chunk_shared<F> *s, int64_t kv_head,
                                                    int rows, int piece, const float (*o)[F::COLUMNS])
{
    const int warp = threadIdx.x / 32, r = warp % GROUP_WARPS, c = threadIdx.x % 32 * F::COLUMNS;
    float sum[F::COLUMNS];
    int64_t t, head;

#pragma unroll
    for (int i = 0; i < QUERIES; i++)
#pragma unroll
        for (int j = 0; j < F::COLUMNS; j += 2)
            *(float2 *)(s->part[warp] + i * F::N + c + j) = make_float2(o[i][j], o[i][j + 1]);
    ptx_barrier_sync(1 + threadIdx.x / GROUP_THREADS,
                     GROUP_THREADS); /* the warps' o are written before they are added */
    if (r >= rows)
        return;
#pragma unroll
    for (int i = 0; i < GROUP_WARPS; i++)
#pragma unroll
        for (int j = 0; j < F::COLUMNS; j++) {
            const float x = s->part[warp - r + i][r * F::N + c + j];

            sum[j] = i ? sum[j] + x : x;
        }
    query_of(p, kv_head, r, &t, &head);
#pragma unroll
    for (int j = 0; j < F::COLUMNS; j += 2)
        *(float2 *)(piece_o(p, t, head) + (int64_t)piece * F::N + c + j) = make_float2(sum[j], sum[j + 1]);
}

/* m and l of the piece to the workspace, by the first threads of the warpgroup. */
template <class F>
static __device__ __forceinline__ void store_sums(const attention_args &p, const chunk_shared<F> *s, int64_t kv_head,
                                                  int rows, int piece, int parity)
{
    const int r = threadIdx.x % GROUP_THREADS;
    const float(*l)[QUERIES] = &s->l[threadIdx.x / 32 / GROUP_WARPS * GROUP_WARPS];

    if (r < rows) {
        int64_t t, head;

        query_of(p, kv_head, r, &t, &head);
        piece_ml(p, t, head)[piece] = make_float2(piece_max(s, parity, r), l[0][r] + l[1][r] + l[2][r] + l[3][r]);
    }
}

/* ------------------------------------------------------------------------------------------------------------ piece */

/* Keys of the warp's chunk become scores of the lane's query and keys; values are requested in their place. */
template <class F>
static __device__ __forceinline__ void keys_of_item(const chunk_args &a, chunk_shared<F> *s, chunk_work w,
                                                    chunk_item at, int parity, float *x)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float q[QUERIES][F::N / 8];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        ptx_mbarrier_wait(ptx_shared(&s->full[warp][half]), 0);
        if (half == 0)
            hold_queries<F::N>(s->query[threadIdx.x / GROUP_THREADS], q);
        x[2 * half] = multiply_keys<F>(s->stage[warp][half], 0, q);
        x[2 * half + 1] = multiply_keys<F>(s->stage[warp][half], 8, q);
        __syncwarp(); /* all lanes have read the stage */
        if (lane == 0)
            load_values<F>(a, s, w, at, half);
    }
    score_keys<F>(a.p, s, parity, chunk_base(w, at) + lane / 8 + (lane & 4), x);
}

/* An item, and requests the next one's keys. */
template <class F>
static __device__ __forceinline__ void compute_item(const chunk_args &a, chunk_shared<F> *s, chunk_work w, int rows,
                                                    chunk_item at, int parity, bool more)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = chunk_base(w, at);
    const chunk_item next = item_after(w, at);
    const bool all = s->common_first <= base && s->common_end >= base + CHUNK;
    float x[4], o[QUERIES][F::COLUMNS] = {};

    keys_of_item<F>(a, s, w, at, parity, x);
    /* The warps' maxima are written, and o of the last piece is read. */
    ptx_barrier_sync(1 + threadIdx.x / GROUP_THREADS, GROUP_THREADS);
    weigh_keys<F>(s, parity, base + lane / 8 + (lane & 4), x);
    __syncwarp(); /* the weights are written before all lanes read them */
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        ptx_mbarrier_wait(ptx_shared(&s->full[warp][half]), 1);
        add_values<F>(s, s->stage[warp][half], s->part[warp] + half * HALF * QUERIES, base + half * HALF, all, o);
        __syncwarp(); /* all lanes have read the stage, and its weights */
        if (more && lane == 0)
            load_keys<F>(a, s, w, next, half);
    }
    store_values<F>(a.p, s, at.head, rows, w.first + at.piece, o);
    store_sums<F>(a.p, s, at.head, rows, w.first + at.piece, parity);
}
#endif

template <int KV, int N>
static __global__ void __launch_bounds__(THREADS, 1) chunk(const __grid_constant__ chunk_args a)
{
#if __CUDA_ARCH__ >= 900
    typedef chunk_form<KV, N> form;
    extern __shared__ __align__(1024) char memory[];
    chunk_shared<form> *s = (chunk_shared<form> *)memory;
    const int rows = (int)(a.p.tokens * a.p.group), warp = threadIdx.x / 32;
    chunk_item at = {};
    float4 query;

    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < STAGES; i++)
            ptx_mbarrier_init(ptx_shared(&s->full[warp][i]), 1);
        ptx_mbarrier_fence_init();
    }
    ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* after the wait: merge reads positions before its own */
    if (threadIdx.x < 32)
        read_ranges(a.p, s, rows);
    __syncthreads(); /* barriers are initialised and ranges written before all threads use them */
    const chunk_work w = work_of(s);
    int items = items_of(a.p, w, &at);

    if (items == 0)
        return;
    query = fetch_queries<form>(a.p, at.head, rows); /* before keys, behind which they would come late */
    if (threadIdx.x % 32 == 0)
        for (int half = 0; half < 2; half++)
            load_keys<form>(a, s, w, at, half);
    put_queries<form>(s, query);
    for (; items > 0; items--) {
        compute_item<form>(a, s, w, rows, at, items & 1, items > 1);
        at = item_after(w, at);
        if (at.piece == 0 && items > 1)
            put_queries<form>(s, fetch_queries<form>(a.p, at.head, rows));
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define FORMS(kv)                                                  \
    {                                                              \
        (const void *)chunk<kv, 64>, (const void *)chunk<kv, 128>, \
    }
#define BYTES(kv)                                                                            \
    {                                                                                        \
        sizeof(chunk_shared<chunk_form<kv, 64>>), sizeof(chunk_shared<chunk_form<kv, 128>>), \
    }

/* By the cache's dtype, and head_dim 64 or 128. */
static const void *const functions[3][2] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16), FORMS(RIDGE_U8)};
static const size_t shared_of[3][2] = {BYTES(RIDGE_F16), BYTES(RIDGE_BF16), BYTES(RIDGE_U8)};
static const void *const merge_function[1] = {(const void *)merge};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = host_load(device, merge_function, 1, "attention_decode: loading kernels");

    for (int i = 0; i < 6 && !status; i++)
        if (shared_of[i / 2][i % 2] <= (size_t)host_max_shared(device))
            status = host_prepare(device, &functions[i / 2][i % 2], 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared_of[i / 2][i % 2], "attention_decode: loading kernels");
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    chunk_args a = {};
    ridge_status status = append_first(device, kernel, &bound->call, workspace, stream, &a.p);
    const int64_t most = a.p.kv_heads * attention_pieces_of(a.p.positions);
    const int kv = a.p.kv == RIDGE_U8 ? 2 : a.p.kv == RIDGE_BF16, wide = a.p.n == 128;

    if (a.p.tokens * a.p.heads == 0)
        return status;
    if (a.p.kv != RIDGE_U8 && !status)
        status = cache_map(device, &a.k, &a.p, a.p.k, a.p.k_stride, HALF);
    if (most && !status)
        status = host_launch_shared(device, kernel->name, functions[kv][wide],
                                    dim3((unsigned)ridge_min((int64_t)device->units, most)), THREADS,
                                    shared_of[kv][wide], &a, stream);
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
    if (problem->dim[4] * attention_row_bytes(problem->dtype[attention_keys(problem->op)], n) % 16)
        return "a head of the cache is no multiple of 16 bytes";
    if (shared_of[0][n == 128] > (size_t)host_max_shared(device))
        return "the chunks do not fit in shared memory";
    if (queries > (double)QUERIES * (double)problem->dim[2])
        return "more than four queries of a KV head";
    if ((double)problem->dim[2] * (double)problem->dim[4] > 2147480000.0 * PIECE)
        return "more than 2^31 pieces";
    return queries > 2147483647.0 ? "more than 2^31 - 1 queries" : NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return attention_workspace(problem);
}

/* Latency, and the cache's bytes: less of both than tile's, from 8 MB of keys and values on. A CTA fills a
 * multiprocessor, so that calls beside each other wait: 8 texts of SmolLM2 with 4096 positions, 3 MB each, took 1757 us
 * a step by this row and 1294 by `tile` (H200, two jobs). */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double bytes = (double)problem->dim[2] * (double)problem->dim[3] * (double)problem->dim[4] * 4;

    return 5.9 + (problem->op == RIDGE_KV_APPEND_ATTENTION ? 3 : 0) + (bytes < 8e6 ? 20 : 0) +
           0.7 * bytes * 1e-3 / device->copy_gbps;
}

#define ROW(op, id)                                                                                     \
    {                                                                                                   \
        "cuda." op ".chunk", id, RIDGE_ARCH_SM90, RIDGE_ARCH_CUDA_LAST,                                 \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {}, why_not, \
            workspace_bytes, cost, launch                                                               \
    }

static const ridge_kernel rows[] = {
    ROW("attention_decode", RIDGE_ATTENTION_DECODE),
    ROW("kv_append_attention", RIDGE_KV_APPEND_ATTENTION),
};

extern "C" const ridge_kernel_list ridge_cuda_attention_chunk = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
