/* piece.cu: attention_decode of long caches, in the order of src/math/attention.h, sm_90 up.
 *
 * A CTA of eight warps has a multiprocessor, so that a warp has room for four queries in 128 registers. An item is a
 * piece of 128 positions of a KV head. As long as there are as many items as warps in the grid, a warp has one for
 * itself and waits for no other warp; of what is left, four warps of a CTA have an item, a chunk of 32 positions each,
 * and add their o. Keys, then values, of an item come in stages of 16 positions. In place of a stage that it has read,
 * a warp requests the one STAGES later, of its next item too. o, m and l of a piece go to the workspace; a second
 * kernel merges the pieces (merge.cuh). Registers and shared memory of both kernels fit on a multiprocessor, so that a
 * CTA of the merge is there when this kernel ends. */
#include "append_head.cuh"
#include "cache_map.cuh"
#include "piece.cuh"

typedef struct piece_args {
    CUtensorMap k, v; /* of floats: keys by panels of 64 columns, values by rows */
    attention_args p;
    int early; /* positions may be read before the primary grid has ended */
} piece_args;

#if __CUDA_ARCH__ >= 900

/* What the grid has to do, and the warp in it. Items are numbered by piece, from the first that is seen, and then by KV
 * head; those from `whole` on are for groups. */
typedef struct piece_work {
    int first;
    uint32_t all, whole, warp, group;
} piece_work;

/* A warp's item, or its share of one: `chunks` chunks from position `base` on. item: work.all where there is none. */
typedef struct piece_item {
    uint32_t item;
    int head, base, chunks;
} piece_item;

/* The next stage that is requested: positions from `row` on, of the item's keys or values, of which it is the first of
 * `left`. */
typedef struct piece_walk {
    piece_item of;
    int row, left;
    bool values;
} piece_walk;

/* Missing queries see what the last one does. */
static __device__ __forceinline__ piece_seen read_ranges(const attention_args &p, int rows)
{
    int64_t t, head, first, end;
    piece_seen seen;

    query_of(p, 0, min(own_query(), rows - 1), &t, &head);
    attention_range(&p, p.pos[t], &first, &end);
    const int low = (int)min(first, (int64_t)0x7fffffff), high = (int)end;

    seen.own = make_int2(low, high);
    seen.lowest = __reduce_min_sync(~0u, low < high ? low : 0x7fffffff);
    seen.highest = __reduce_max_sync(~0u, low < high ? high : 0);
    seen.common_first = __reduce_max_sync(~0u, low);
    seen.common_end = __reduce_min_sync(~0u, high);
    return seen;
}

/* The last items are one more round for all warps where groups would take four rounds. */
static __device__ __forceinline__ piece_work work_of(const attention_args &p, const piece_seen &seen, int warp)
{
    const uint32_t groups = gridDim.x * GROUPS;
    piece_work w = {};

    if (seen.lowest < seen.highest) {
        w.first = seen.lowest / PIECE;
        w.all = (uint32_t)(attention_pieces_of(seen.highest) - w.first) * (uint32_t)p.kv_heads;
    }
    w.warp = warp * gridDim.x + blockIdx.x;
    w.group = warp / CHUNKS * gridDim.x + blockIdx.x;
    w.whole = w.all / (4 * groups) * 4 * groups;
    if (w.all - w.whole > 3 * groups)
        w.whole = w.all;
    return w;
}

/* Item `item` as the warp has it. */
static __device__ __forceinline__ piece_item item_at(const attention_args &p, const piece_work &w, uint32_t item,
                                                     int warp)
{
    piece_item i = {};

    i.item = min(item, w.all);
    if (i.item < w.all) {
        const uint32_t piece = item / (uint32_t)p.kv_heads;

        i.head = (int)(item - piece * (uint32_t)p.kv_heads);
        i.chunks = item < w.whole ? CHUNKS : 1;
        i.base = (w.first + (int)piece) * PIECE + (item < w.whole ? 0 : warp % CHUNKS * CHUNK);
    }
    return i;
}

static __device__ __forceinline__ uint32_t first_item(const piece_work &w)
{
    return w.warp < w.whole ? w.warp : w.whole + w.group;
}

/* The KV head of the warp's first item if the whole cache is seen. */
static __device__ __forceinline__ int first_head(const piece_args &a, int warp)
{
    const piece_seen all = {make_int2(0, 0), 0, (int)a.p.positions, 0, 0};
    const piece_work w = work_of(a.p, all, warp);

    return item_at(a.p, w, first_item(w), warp).head;
}

static __device__ __forceinline__ uint32_t item_after(const piece_work &w, uint32_t item)
{
    const uint32_t groups = gridDim.x * GROUPS;

    if (item >= w.whole)
        return item + groups;
    return item + groups * 4 < w.whole ? item + groups * 4 : w.whole + w.group;
}

static __device__ __forceinline__ void start_item(piece_walk *next, const piece_item &of)
{
    next->of = of;
    next->row = of.base;
    next->left = 2 * of.chunks;
    next->values = false;
}

/* Requests the stage `next` in slot `slot`, by one lane, and goes on to the one after it. */
template <class F>
static __device__ __forceinline__ void request(const piece_args &a, piece_shared<F> *s, const piece_work &w,
                                               piece_walk *next, int warp, int slot)
{
    if (next->of.item >= w.all)
        return;
    if (ptx_elect()) {
        const uint32_t to = ptx_shared(s->stage[warp][slot]), full = ptx_shared(&s->full[warp][slot]);

        if (F::KV == RIDGE_U8) {
            const char *head =
                next->values ? a.p.v + next->of.head * a.p.v_stride : a.p.k + next->of.head * a.p.k_stride;
            const int bytes = (int)max(min(a.p.positions - next->row, (int64_t)HALF), (int64_t)0) * F::BYTES;

            ptx_mbarrier_expect(full, bytes);
            if (bytes)
                ptx_bulk_load(to, head + (int64_t)next->row * F::BYTES, bytes, full);
        } else {
            const uint64_t once = ptx_policy_evict_first();

            ptx_mbarrier_expect(full, HALF * F::BYTES);
            if (next->values)
                ptx_tma_load_3d_policy(to, &a.v, 0, next->row, next->of.head, full, once);
            else
#pragma unroll
                for (int i = 0; i < F::N / 64; i++)
                    ptx_tma_load_3d_policy(to + i * PANEL, &a.k, 64 * i, next->row, next->of.head, full, once);
        }
    }
    __syncwarp();
    next->row += HALF;
    if (--next->left)
        return;
    if (next->values) {
        start_item(next, item_at(a.p, w, item_after(w, next->of.item), warp));
    } else {
        next->row = next->of.base;
        next->left = 2 * next->of.chunks;
        next->values = true;
    }
}

/* A lane's quarter of a KV head's queries as f32; zeros for missing ones. */
template <class F>
static __device__ __forceinline__ void fetch_queries(const attention_args &p, int64_t kv_head, int rows, float4 *x)
{
#pragma unroll
    for (int k = 0; k < F::N / 32; k++) {
        const int i = (k * 32 + threadIdx.x % 32) * 4, r = i / F::N, c = i % F::N;
        int64_t t, head;

        x[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (r >= rows)
            continue;
        query_of(p, kv_head, r, &t, &head);
        if (p.q_bf16) {
            const uint2 two = ptx_load8(p.q + t * p.q_stride + 2 * (head * F::N + c));

            num_unpack2<RIDGE_BF16>(two.x, &x[k].x, &x[k].y);
            num_unpack2<RIDGE_BF16>(two.y, &x[k].z, &x[k].w);
        } else {
            x[k] = *(const float4 *)(p.q + t * p.q_stride + 4 * (head * F::N + c));
        }
    }
}

template <class F> static __device__ __forceinline__ void put_queries(float *part, const float4 *x)
{
#pragma unroll
    for (int k = 0; k < F::N / 32; k++)
        ((float4 *)part)[k * 32 + threadIdx.x % 32] = x[k];
    __syncwarp(); /* they are written before other lanes read them */
}

/* ------------------------------------------------------------------------------------------------------------ piece */

/* The ring of a warp: where it reads, and the parity of that stage's phase. */
typedef struct piece_ring {
    int slot, parity;
} piece_ring;

template <class F>
static __device__ __forceinline__ const char *stage_wait(piece_shared<F> *s, const piece_ring &ring, int warp)
{
    ptx_mbarrier_wait(ptx_shared(&s->full[warp][ring.slot]), ring.parity);
    return s->stage[warp][ring.slot];
}

/* All lanes have read the stage. */
template <class F>
static __device__ __forceinline__ void stage_done(const piece_args &a, piece_shared<F> *s, const piece_work &w,
                                                  piece_walk *next, piece_ring *ring, int warp)
{
    __syncwarp();
    request<F>(a, s, w, next, warp, ring->slot);
    if (++ring->slot == F::STAGES) {
        ring->slot = 0;
        ring->parity ^= 1;
    }
}

/* The soft cap of the lane's scores in `part`, on `keys` of an item; returns the largest. Apart from the loop over
 * keys, since few models have one and its instructions, though passed over, cost time there. */
static __device__ __forceinline__ float cap_scores(const attention_args &p, float *part, int position, int keys,
                                                   int2 range)
{
    float m = -INFINITY;

#pragma unroll 1
    for (int i = 0; i < keys; i += 8, position += 8, part += 8 * QUERIES)
        if (position >= range.x && position < range.y) {
            *part = ridge_attention_score(*part, 1.0f, p.softcap);
            m = fmaxf(m, *part);
        }
    return m;
}

/* Scores of the lane's query and its key of every eight to `part`; returns the largest. */
template <class F>
static __device__ __forceinline__ float
keys_of_item(const piece_args &a, piece_shared<F> *s, const piece_work &w, const piece_item &of,
             const float (*q)[F::N / 4], const piece_seen &seen, piece_walk *next, piece_ring *ring, int warp)
{
    float *const part = s->part[warp] + own_key() * QUERIES + own_query(), *to = part, m = -INFINITY;
    int at[4], position = of.base + own_key();

    place_keys<F>(at);
#pragma unroll 1
    for (int i = 0; i < 2 * of.chunks; i++) {
        const char *stage = stage_wait<F>(s, *ring, warp);
        float x[2];

        x[0] = multiply_keys<F>(stage, at, 0, q);
        x[1] = multiply_keys<F>(stage, at, 8, q);
        stage_done<F>(a, s, w, next, ring, warp);
#pragma unroll
        for (int k = 0; k < 2; k++, position += 8, to += 8 * QUERIES) {
            x[k] = position >= seen.own.x && position < seen.own.y ? ridge_attention_score(x[k], a.p.scale, 0.0f)
                                                                   : -INFINITY;
            m = fmaxf(m, x[k]); /* ridge_attention_max but for the sign of a zero, which no weight depends on */
            *to = x[k];
        }
    }
    if (a.p.softcap > 0.0f)
        m = cap_scores(a.p, part, of.base + own_key(), of.chunks * CHUNK, seen.own);
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 4));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 8));
    return fmaxf(m, __shfl_xor_sync(~0u, m, 16));
}

/* o of an item's chunks, added in order. */
template <class F>
static __device__ __forceinline__ void values_of_item(const piece_args &a, piece_shared<F> *s, const piece_work &w,
                                                      const piece_item &of, const piece_seen &seen, piece_walk *next,
                                                      piece_ring *ring, int warp, float (*o)[F::COLUMNS])
{
    const float *weight = s->part[warp];

#pragma unroll 1
    for (int c = 0; c < of.chunks; c++) {
        const int base = of.base + c * CHUNK;
        const bool all = seen.common_first <= base && seen.common_end >= base + CHUNK;
        float chunk[QUERIES][F::COLUMNS] = {};

#pragma unroll 1
        for (int half = 0; half < 2; half++, weight += HALF * QUERIES) {
            const char *stage = stage_wait<F>(s, *ring, warp);

            add_values<F>(seen, stage, weight, base + half * HALF, all, chunk);
            stage_done<F>(a, s, w, next, ring, warp);
        }
#pragma unroll
        for (int r = 0; r < QUERIES; r++)
#pragma unroll
            for (int i = 0; i < F::COLUMNS; i++)
                o[r][i] = c ? o[r][i] + chunk[r][i] : chunk[r][i];
    }
}

template <int COLUMNS> static __device__ __forceinline__ void store_columns(float *to, const float *x)
{
    if (COLUMNS == 4)
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3 % COLUMNS]);
    else
        *(float2 *)to = make_float2(x[0], x[1]);
}

/* o, m and l of a warp's item to the workspace. */
template <class F>
static __device__ __forceinline__ void store_item(const attention_args &p, const piece_item &of, int rows,
                                                  const float (*o)[F::COLUMNS], float m, float l)
{
    const int lane = threadIdx.x % 32;
    int64_t t, head;

#pragma unroll
    for (int r = 0; r < QUERIES; r++)
        if (r < rows) {
            query_of(p, of.head, r, &t, &head);
            store_columns<F::COLUMNS>(piece_o(p, t, head) + (int64_t)(of.base / PIECE) * F::N + lane * F::COLUMNS,
                                      o[r]);
        }
    if (lane < QUERIES && own_query() < rows) {
        query_of(p, of.head, own_query(), &t, &head);
        piece_ml(p, t, head)[of.base / PIECE] = make_float2(m, l);
    }
}

/* The same of a group's item: a warp one of the queries. */
template <class F>
static __device__ __forceinline__ void store_group(const attention_args &p, piece_shared<F> *s, const piece_item &of,
                                                   int rows, int warp, const float (*o)[F::COLUMNS], float m, float l)
{
    const int lane = threadIdx.x % 32, r = warp % CHUNKS, c = lane * F::COLUMNS, first = warp - r;
    float sum[F::COLUMNS];
    int64_t t, head;

    __syncwarp(); /* all lanes have read their weights */
#pragma unroll
    for (int i = 0; i < QUERIES; i++)
        store_columns<F::COLUMNS>(s->part[warp] + i * F::N + c, o[i]);
    if (lane < QUERIES)
        s->l[warp][own_query()] = l;
    ptx_barrier_sync(1 + warp / CHUNKS, GROUP_THREADS); /* o and l of the chunks are written before they are added */
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
#pragma unroll
        for (int j = 0; j < F::COLUMNS; j++) {
            const float x = s->part[first + i][r * F::N + c + j];

            sum[j] = i ? sum[j] + x : x;
        }
    l = s->l[first][r] + s->l[first + 1][r] + s->l[first + 2][r] + s->l[first + 3][r];
    m = fmaxf(fmaxf(s->m[first][r], s->m[first + 1][r]), fmaxf(s->m[first + 2][r], s->m[first + 3][r]));
    ptx_barrier_sync(1 + warp / CHUNKS, GROUP_THREADS); /* they are read before the next item overwrites them */
    if (r >= rows)
        return;
    query_of(p, of.head, r, &t, &head);
    store_columns<F::COLUMNS>(piece_o(p, t, head) + (int64_t)(of.base / PIECE) * F::N + c, sum);
    if (lane == 0)
        piece_ml(p, t, head)[of.base / PIECE] = make_float2(m, l);
}

/* The largest score of the lane's query in a piece of which the group's warps have one chunk each. */
template <class F> static __device__ __forceinline__ float group_max(piece_shared<F> *s, int warp, float m)
{
    const int first = warp - warp % CHUNKS, r = own_query();

    if (threadIdx.x % 32 < QUERIES)
        s->m[warp][r] = m;
    ptx_barrier_sync(1 + warp / CHUNKS, GROUP_THREADS); /* the warps' maxima are written before they are read */
    return fmaxf(fmaxf(s->m[first][r], s->m[first + 1][r]), fmaxf(s->m[first + 2][r], s->m[first + 3][r]));
}

template <class F>
static __device__ __forceinline__ void
compute_item(const piece_args &a, piece_shared<F> *s, const piece_work &w, const piece_item &of,
             const float (*q)[F::N / 4], const piece_seen &seen, piece_walk *next, piece_ring *ring, int warp, int rows)
{
    const bool alone = of.item < w.whole;
    float o[QUERIES][F::COLUMNS], m, l;

    m = keys_of_item<F>(a, s, w, of, q, seen, next, ring, warp);
    if (!alone)
        m = group_max<F>(s, warp, m);
    l = weigh_keys(s->part[warp], of.base, of.chunks, seen.own, m);
    __syncwarp(); /* the weights are written before other lanes read them */
    values_of_item<F>(a, s, w, of, seen, next, ring, warp, o);
    if (alone)
        store_item<F>(a.p, of, rows, o, m, l);
    else
        store_group<F>(a.p, s, of, rows, warp, o, m, l);
    __syncwarp(); /* the weights are read before the next item's scores overwrite them */
}
#endif

template <int KV, int N> static __global__ void __maxnreg__(REGISTERS) piece(const __grid_constant__ piece_args a)
{
#if __CUDA_ARCH__ >= 900
    typedef piece_form<KV, N> form;
    extern __shared__ __align__(1024) char memory[];
    piece_shared<form> *s = (piece_shared<form> *)memory;
    const int rows = (int)(a.p.tokens * a.p.group), warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    float q[QUERIES][N / 4];
    float4 query[N / 32];
    piece_ring ring = {};
    piece_walk next = {};
    int held = -1;

    if (KV != RIDGE_U8 && threadIdx.x == 0) {
        ptx_prefetch_map(&a.k);
        ptx_prefetch_map(&a.v);
    }
    if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < form::STAGES; i++)
            ptx_mbarrier_init(ptx_shared(&s->full[warp][i]), 1);
        ptx_mbarrier_fence_init();
    }
    __syncwarp(); /* barriers are initialised before other lanes wait for them */
    const int guess = first_head(a, warp);

    if (!a.early) {
        ptx_grid_dependency_wait();
        fetch_queries<form>(a.p, guess, rows, query);
    }
    const piece_seen seen = read_ranges(a.p, rows);
    const piece_work w = work_of(a.p, seen, warp);
    piece_item at = item_at(a.p, w, first_item(w), warp);

    if (a.early)
        ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* after the wait: merge reads positions before its own */
    if (at.item >= w.all)
        return;
    if (a.early || at.head != guess)
        fetch_queries<form>(a.p, at.head, rows, query); /* before keys, behind which they would come late */
    start_item(&next, at);
    request<form>(a, s, w, &next, warp, 0); /* one stage: a second one would queue before other warps' first */
    for (; at.item < w.all; at = item_at(a.p, w, item_after(w, at.item), warp)) {
        if (at.head != held) {
            if (held >= 0)
                fetch_queries<form>(a.p, at.head, rows, query);
            put_queries<form>(s->part[warp], query);
            hold_queries<N>(s->part[warp], q);
            __syncwarp(); /* they are read before scores overwrite them */
            if (held < 0)
#pragma unroll 1
                for (int i = 1; i < form::STAGES; i++)
                    request<form>(a, s, w, &next, warp, i);
            held = at.head;
        }
        compute_item<form>(a, s, w, at, q, seen, &next, &ring, warp, rows);
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define FORMS(kv)                                                  \
    {                                                              \
        (const void *)piece<kv, 64>, (const void *)piece<kv, 128>, \
    }
#define BYTES(kv)                                                                            \
    {                                                                                        \
        sizeof(piece_shared<piece_form<kv, 64>>), sizeof(piece_shared<piece_form<kv, 128>>), \
    }

/* By the cache's dtype, and head_dim 64 or 128. */
static const void *const functions[3][2] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16), FORMS(RIDGE_U8)};
static const size_t shared_of[3][2] = {BYTES(RIDGE_F16), BYTES(RIDGE_BF16), BYTES(RIDGE_U8)};
static const void *const merge_function[1] = {(const void *)merge};

/* With as much shared memory as there is, a CTA of the merge fits beside one of these. */
static ridge_status prepare(const ridge_device *device)
{
    const char *const what = "attention_decode: loading kernels";
    ridge_status status = host_prepare(device, merge_function, 1, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared, what);

    if (!status)
        status = host_prepare(device, &functions[0][0], 6, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared, what);
    for (int i = 0; i < 6 && !status; i++)
        if (shared_of[i / 2][i % 2] <= (size_t)host_max_shared(device))
            status = host_prepare(device, &functions[i / 2][i % 2], 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared_of[i / 2][i % 2], what);
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    piece_args a = {};
    ridge_status status = append_first(device, kernel, &bound->call, workspace, stream, &a.p);

    a.early = bound->call.op == RIDGE_KV_APPEND_ATTENTION && (bound->call.flags & RIDGE_WEIGHTS_CONST) != 0;
    const int64_t most = a.p.kv_heads * attention_pieces_of(a.p.positions);
    const int kv = a.p.kv == RIDGE_U8 ? 2 : a.p.kv == RIDGE_BF16, wide = a.p.n == 128;

    if (a.p.tokens * a.p.heads == 0)
        return status;
    if (a.p.kv != RIDGE_U8 && !status)
        status = cache_map(device, &a.k, &a.p, a.p.k, a.p.k_stride, HALF);
    if (a.p.kv != RIDGE_U8 && !status)
        status = cache_boxes(device, &a.v, &a.p, a.p.v, a.p.v_stride, a.p.n, HALF, CU_TENSOR_MAP_SWIZZLE_NONE);
    if (most && !status)
        status = host_launch_shared(device, kernel->name, functions[kv][wide],
                                    dim3((unsigned)ridge_min((int64_t)device->units, most)), THREADS,
                                    shared_of[kv][wide], &a, stream);
    return status ? status : merge_launch(device, kernel->name, &a.p, a.early, stream);
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
        return "the stages do not fit in shared memory";
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
 * a step by the row that was here before and 1294 by `tile` (H200, two jobs). */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double bytes = (double)problem->dim[2] * (double)problem->dim[3] * (double)problem->dim[4] * 4;

    return 5.9 + (problem->op == RIDGE_KV_APPEND_ATTENTION ? 3 : 0) + (bytes < 8e6 ? 20 : 0) +
           0.7 * bytes * 1e-3 / device->copy_gbps;
}

#define ROW(op, id)                                                                                     \
    {                                                                                                   \
        "cuda." op ".piece", id, RIDGE_ARCH_SM90, RIDGE_ARCH_CUDA_LAST,                                 \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {}, why_not, \
            workspace_bytes, cost, launch                                                               \
    }

static const ridge_kernel rows[] = {
    ROW("attention_decode", RIDGE_ATTENTION_DECODE),
    ROW("kv_append_attention", RIDGE_KV_APPEND_ATTENTION),
};

extern "C" const ridge_kernel_list ridge_cuda_attention_piece = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
