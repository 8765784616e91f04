/* chunk.cu: attention_decode over long caches of floats, in the order of src/math/attention.h, sm_90 up.
 *
 * Persistent CTAs of four warps, each with a range of the pieces of all KV heads and up to 16 queries of a group. A
 * warp has one of the four chunks of 32 positions of a piece, and memory for the chunk's keys and values. It requests
 * the next piece's keys as soon as it has read these, and its values likewise, so that memory is busy while the piece
 * is computed. dots     of four queries with two keys a lane: lane k has columns 0 to 7 of every 16 of keys k and k +
 * 16, lane k + 16 columns 8 to 15, which are the two eights of partials; a shuffle leaves a key a lane. Keys come by
 *            TMA with the 128-byte swizzle, in which eight rows are in different banks; queries are read as f32
 *   weights  a key a lane
 *   values   some neighbouring columns a lane, and four queries
 * The CTA's barriers: the warps' maxima are known, the warps' o are. o, m and l of a piece go to the workspace; a
 * second kernel merges the pieces (merge.cuh). By instructions a piece of 128 elements a head costs half of what it
 * does in tile.cu. */
#include "cache_map.cuh"
#include "merge.cuh"

enum { WARPS = RIDGE_ATTENTION_PIECE / RIDGE_ATTENTION_CHUNK, THREADS = 32 * WARPS };
enum { CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE, SIDE = 4 /* queries at a time */, ROWS = 16 };
enum { PANEL = CHUNK * 128 /* bytes: 64 columns of a chunk */ };
enum { SM_SHARED = 228 << 10, CTA_RESERVED = 1 << 10 }; /* bytes of an SM, and what the system has of every CTA */

static_assert(CHUNK == 32, "a lane has a key");

/* SLABS: of SIDE queries. o begins with the weights of the chunk's keys, [CHUNK], until o itself is known. */
template <int N, int SLABS> struct __align__(1024) chunk_shared
{
    enum { QUERIES = SIDE * SLABS };
    char k[WARPS][N / 64][PANEL], v[WARPS][CHUNK * 2 * N];
    float query[QUERIES][N], o[WARPS][QUERIES][N];
    float m[2][WARPS][QUERIES]; /* by the parity of an item */
    float l[WARPS][QUERIES];
    uint64_t k_full[WARPS], v_full[WARPS]; /* the bytes of a chunk have arrived */
    int first[QUERIES], end[QUERIES];      /* the positions that a query sees */
    int lowest, highest;                   /* the hull of that */
};

typedef struct chunk_args {
    CUtensorMap k;
    attention_args p;
} chunk_args;

#if __CUDA_ARCH__ >= 900

/* What a CTA computes: pieces [begin, end) of the `count` from `first` on of KV head 0, then of 1, .... */
typedef struct chunk_work {
    int first, count, begin, end;
} chunk_work;

/* By the first warp. Missing queries see what the last one does. */
template <class S>
static __device__ __forceinline__ void read_ranges(const attention_args &p, S *s, int64_t first_row, int rows)
{
    int64_t t, head, first, end;

    query_of(p, 0, first_row + min((int)threadIdx.x, rows - 1), &t, &head);
    attention_range(&p, p.pos[t], &first, &end);
    const int lowest = __reduce_min_sync(~0u, first < end ? (int)first : 0x7fffffff);
    const int highest = __reduce_max_sync(~0u, first < end ? (int)end : 0);

    if (threadIdx.x < S::QUERIES) {
        s->first[threadIdx.x] = (int)first;
        s->end[threadIdx.x] = (int)end;
    }
    if (threadIdx.x == 0) {
        s->lowest = lowest;
        s->highest = highest;
    }
}

template <class S> static __device__ __forceinline__ chunk_work work_of(const attention_args &p, const S *s)
{
    chunk_work w = {};

    if (s->lowest < s->highest) {
        w.first = s->lowest / PIECE;
        w.count = (int)attention_pieces_of(s->highest) - w.first;
        w.begin = (int)(w.count * p.kv_heads * blockIdx.x / gridDim.x);
        w.end = (int)(w.count * p.kv_heads * (blockIdx.x + 1) / gridDim.x);
    }
    return w;
}

/* The warp's first position in an item. */
static __device__ __forceinline__ int chunk_base(chunk_work w, int item)
{
    return (w.first + item % w.count) * PIECE + (int)threadIdx.x / 32 * CHUNK;
}

/* Whether any query sees a key of the chunk; else it is neither loaded nor computed. */
template <class S> static __device__ __forceinline__ bool is_seen(const S *s, int base)
{
    return base < s->highest && base + CHUNK > s->lowest;
}

/* Requests the keys of the warp's chunk of an item, by one lane. */
template <int N, class S>
static __device__ __forceinline__ void load_keys(const chunk_args &a, S *s, chunk_work w, int item)
{
    const int warp = threadIdx.x / 32, base = chunk_base(w, item);

    if (threadIdx.x % 32 || item >= w.end || !is_seen(s, base))
        return;
    ptx_mbarrier_expect(ptx_shared(&s->k_full[warp]), CHUNK * 2 * N);
#pragma unroll
    for (int i = 0; i < N / 64; i++)
        ptx_tma_load_3d(ptx_shared(s->k[warp][i]), &a.k, 64 * i, base, item / w.count, ptx_shared(&s->k_full[warp]));
}

/* The same of its values; those outside of the hull are not loaded. */
template <int N, class S>
static __device__ __forceinline__ void load_values(const chunk_args &a, S *s, chunk_work w, int item)
{
    const int warp = threadIdx.x / 32, base = chunk_base(w, item);
    const int low = max(base, s->lowest), high = min(base + CHUNK, s->highest);

    if (threadIdx.x % 32 || item >= w.end || !is_seen(s, base))
        return;
    ptx_mbarrier_expect(ptx_shared(&s->v_full[warp]), (high - low) * 2 * N);
    ptx_bulk_load(ptx_shared(s->v[warp] + (low - base) * 2 * N),
                  a.p.v + item / w.count * a.p.v_stride + (int64_t)low * 2 * N, (high - low) * 2 * N,
                  ptx_shared(&s->v_full[warp]));
}

/* The queries of a KV head as f32; zeros for missing ones. */
template <int N, class S>
static __device__ __forceinline__ void load_queries(const attention_args &p, S *s, int64_t kv_head, int64_t first_row,
                                                    int rows)
{
    for (int i = threadIdx.x * 4; i < S::QUERIES * N; i += THREADS * 4) {
        float4 x = {};
        int64_t t, head;

        if (i / N < rows) {
            query_of(p, kv_head, first_row + i / N, &t, &head);
            const int64_t at = head * N + i % N;

            if (p.q_bf16) {
                const uint2 two = ptx_load8(p.q + t * p.q_stride + 2 * at);

                num_unpack2<RIDGE_BF16>(two.x, &x.x, &x.y);
                num_unpack2<RIDGE_BF16>(two.y, &x.z, &x.w);
            } else {
                x = *(const float4 *)(p.q + t * p.q_stride + 4 * at);
            }
        }
        *(float4 *)&s->query[i / N][i % N] = x;
    }
}

/* Dot products of SIDE queries with the warp's keys, a key a lane. */
template <int KV, int N>
static __device__ __forceinline__ void dot_products(const char (*k)[PANEL], const float (*query)[N], float *dot)
{
    const int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
    float part[2][SIDE][8] = {};

#pragma unroll(N == 64 ? 4 : 2)
    for (int j = 0; j < N / 16; j++) {
        const char *at = k[j / 4] + row * 128 + ((2 * (j % 4) + half) ^ row % 8) * 16;
        float x[2][8];

        num_unpack<KV>(*(const uint4 *)at, x[0]);
        num_unpack<KV>(*(const uint4 *)(at + 16 * 128), x[1]);
#pragma unroll
        for (int r = 0; r < SIDE; r++)
#pragma unroll
            for (int c = 0; c < 8; c += 4) {
                const float4 q = *(const float4 *)(query[r] + 16 * j + 8 * half + c);

#pragma unroll
                for (int i = 0; i < 2; i++) {
                    part[i][r][c] = ridge_fma(q.x, x[i][c], part[i][r][c]);
                    part[i][r][c + 1] = ridge_fma(q.y, x[i][c + 1], part[i][r][c + 1]);
                    part[i][r][c + 2] = ridge_fma(q.z, x[i][c + 2], part[i][r][c + 2]);
                    part[i][r][c + 3] = ridge_fma(q.w, x[i][c + 3], part[i][r][c + 3]);
                }
            }
    }
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int h = 4; h > 0; h /= 2)
#pragma unroll
                for (int c = 0; c < h; c++)
                    part[i][r][c] += part[i][r][c + h];
        dot[r] =
            (half ? part[1][r][0] : part[0][r][0]) + __shfl_xor_sync(~0u, half ? part[0][r][0] : part[1][r][0], 16);
    }
}

/* Scores of the lane's key, in place of its dot products, and their largest in the chunk. position: of the key. */
template <class S>
static __device__ __forceinline__ void score_keys(const attention_args &p, S *s, int item, int first, int position,
                                                  float *x)
{
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        const bool seen = position >= s->first[first + r] && position < s->end[first + r];
        float m;

        x[r] = seen ? ridge_attention_score(x[r], p.scale, p.softcap) : -INFINITY;
        m = ridge_attention_max(-INFINITY, x[r]);
#pragma unroll
        for (int h = 16; h > 0; h /= 2)
            m = ridge_attention_max(m, __shfl_xor_sync(~0u, m, h));
        if (threadIdx.x % 32 == 0)
            s->m[item % 2][threadIdx.x / 32][first + r] = m;
    }
}

/* The largest score of a query in the piece. */
template <class S> static __device__ __forceinline__ float piece_max(const S *s, int item, int r)
{
    float m = s->m[item % 2][0][r];

#pragma unroll
    for (int i = 1; i < WARPS; i++)
        m = ridge_attention_max(m, s->m[item % 2][i][r]);
    return m;
}

/* Weights of the lane's key to where o will lie, and their sum in the chunk. x: its scores. */
template <class S>
static __device__ __forceinline__ void weigh_keys(S *s, int item, int first, int position, const float *x)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float l[SIDE];

#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        const bool seen = position >= s->first[first + r] && position < s->end[first + r];

        l[r] = seen ? ridge_attention_weight(piece_max(s, item, first + r), x[r]) : 0.0f;
        s->o[warp][first + r][lane] = l[r];
    }
#pragma unroll
    for (int h = 16; h > 0; h /= 2)
#pragma unroll
        for (int r = 0; r < SIDE; r++)
            l[r] += __shfl_down_sync(~0u, l[r], h);
    if (lane == 0)
#pragma unroll
        for (int r = 0; r < SIDE; r++)
            s->l[warp][first + r] = l[r];
    __syncwarp(); /* the weights are written before all lanes read them */
}

/* N / 32 neighbouring elements of a row of values. */
template <int KV, int N> static __device__ __forceinline__ void load_columns(const char *row, float *x)
{
    if (N == 128) {
        const uint2 v = *(const uint2 *)(row + threadIdx.x % 32 * 8);

        num_unpack2<KV>(v.x, x, x + 1);
        num_unpack2<KV>(v.y, x + 2, x + 3);
    } else {
        num_unpack2<KV>(*(const uint32_t *)(row + threadIdx.x % 32 * 4), x, x + 1);
    }
}

/* o of the warp's chunk, of SIDE queries, in place of their weights. base: the chunk's first position. */
template <int KV, int N, class S> static __device__ __forceinline__ void sum_values(S *s, int first, int base)
{
    enum { COLUMNS = N / 32 };
    const int warp = threadIdx.x / 32;
    const char *v = s->v[warp];
    float(*o)[N] = s->o[warp] + first, sum[SIDE][COLUMNS] = {};
    bool all = true;

#pragma unroll
    for (int r = 0; r < SIDE; r++)
        all = all && s->first[first + r] <= base && s->end[first + r] >= base + CHUNK;
    if (all) {
#pragma unroll 2
        for (int i = 0; i < CHUNK; i += 4) {
            float4 w[SIDE];

#pragma unroll
            for (int r = 0; r < SIDE; r++)
                w[r] = *(const float4 *)(o[r] + i);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float x[COLUMNS];

                load_columns<KV, N>(v + (i + k) * 2 * N, x);
#pragma unroll
                for (int r = 0; r < SIDE; r++)
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++)
                        sum[r][c] = ridge_fma(k == 0   ? w[r].x
                                              : k == 1 ? w[r].y
                                              : k == 2 ? w[r].z
                                                       : w[r].w,
                                              x[c], sum[r][c]);
            }
        }
    } else {
        const int high = min(s->highest - base, (int)CHUNK);

        for (int i = max(s->lowest - base, 0); i < high; i++) {
            float x[COLUMNS];

            load_columns<KV, N>(v + i * 2 * N, x);
#pragma unroll
            for (int r = 0; r < SIDE; r++)
                if (base + i >= s->first[first + r] && base + i < s->end[first + r])
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++)
                        sum[r][c] = ridge_fma(o[r][i], x[c], sum[r][c]);
        }
    }
    __syncwarp(); /* the weights are read before o overwrites them */
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 2)
            *(float2 *)(o[r] + threadIdx.x % 32 * COLUMNS + c) = make_float2(sum[r][c], sum[r][c + 1]);
}

/* o and l of the chunks added, and m, to the workspace. */
template <int N, class S>
static __device__ __forceinline__ void store_piece(const attention_args &p, const S *s, int64_t kv_head,
                                                   int64_t first_row, int rows, int piece, int item)
{
    int64_t t, head;

    for (int i = threadIdx.x * 4; i < rows * N; i += THREADS * 4) {
        const int r = i / N, c = i % N;
        float4 sum = *(const float4 *)(s->o[0][r] + c);

#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            const float4 x = *(const float4 *)(s->o[w][r] + c);

            sum.x += x.x;
            sum.y += x.y;
            sum.z += x.z;
            sum.w += x.w;
        }
        query_of(p, kv_head, first_row + r, &t, &head);
        *(float4 *)(piece_o(p, t, head) + (int64_t)piece * N + c) = sum;
    }
    if (threadIdx.x < rows) {
        const int r = threadIdx.x;

        query_of(p, kv_head, first_row + r, &t, &head);
        piece_ml(p, t, head)[piece] =
            make_float2(piece_max(s, item, r), s->l[0][r] + s->l[1][r] + s->l[2][r] + s->l[3][r]);
    }
}

/* An item. phase: the parity of the chunks that the warp has loaded. */
template <int KV, int N, int SLABS>
static __device__ __forceinline__ void compute_piece(const chunk_args &a, chunk_shared<N, SLABS> *s, chunk_work w,
                                                     int64_t first_row, int rows, int item, uint32_t *phase)
{
    const int warp = threadIdx.x / 32, base = chunk_base(w, item), position = base + (int)threadIdx.x % 32;
    const bool seen = is_seen(s, base);
    float x[SLABS][SIDE] = {};

    if (seen)
        ptx_mbarrier_wait(ptx_shared(&s->k_full[warp]), *phase);
#pragma unroll
    for (int i = 0; i < SLABS; i++) {
        if (seen)
            dot_products<KV, N>(s->k[warp], s->query + i * SIDE, x[i]);
        score_keys(a.p, s, item, i * SIDE, position, x[i]);
    }
    __syncwarp(); /* all lanes have read the keys */
    load_keys<N>(a, s, w, item + 1);
    __syncthreads(); /* the warps' maxima are written, and o of the last piece is read */
    if (seen)
        ptx_mbarrier_wait(ptx_shared(&s->v_full[warp]), *phase);
#pragma unroll
    for (int i = 0; i < SLABS; i++) {
        weigh_keys(s, item, i * SIDE, position, x[i]);
        sum_values<KV, N>(s, i * SIDE, base);
    }
    load_values<N>(a, s, w, item + 1); /* sum_values has waited for the lanes' reads */
    *phase ^= seen;
    __syncthreads(); /* o and l of all chunks are written before they are added */
    store_piece<N>(a.p, s, item / w.count, first_row, rows, w.first + item % w.count, item);
}
#endif

template <int KV, int N, int SLABS>
static __global__ void __launch_bounds__(THREADS, 3) chunk(const __grid_constant__ chunk_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char memory[];
    chunk_shared<N, SLABS> *s = (chunk_shared<N, SLABS> *)memory;
    const int64_t first_row = (int64_t)blockIdx.y * ROWS;
    const int rows = (int)min(a.p.tokens * a.p.group - first_row, (int64_t)ROWS);
    uint32_t phase = 0;

    if (threadIdx.x < WARPS) {
        ptx_mbarrier_init(ptx_shared(&s->k_full[threadIdx.x]), 1);
        ptx_mbarrier_init(ptx_shared(&s->v_full[threadIdx.x]), 1);
        ptx_mbarrier_fence_init();
    }
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (threadIdx.x < 32)
        read_ranges(a.p, s, first_row, rows);
    __syncthreads(); /* barriers are initialised and ranges written before all threads use them */
    const chunk_work w = work_of(a.p, s);

    if (w.begin == w.end)
        return;
    load_keys<N>(a, s, w, w.begin);
    load_values<N>(a, s, w, w.begin);
    for (int i = w.begin; i < w.end; i++) {
        if (i == w.begin || i % w.count == 0) {
            load_queries<N>(a.p, s, i / w.count, first_row, rows);
            __syncthreads(); /* the queries are written before all threads read them */
        }
        compute_piece<KV, N, SLABS>(a, s, w, first_row, rows, i, &phase);
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

typedef struct chunk_form {
    const void *function;
    int shared;
} chunk_form;

#define FORM(kv, n, slabs)                                                     \
    {                                                                          \
        (const void *)chunk<kv, n, slabs>, (int)sizeof(chunk_shared<n, slabs>) \
    }
#define FORMS(kv)                                                \
    {                                                            \
        {FORM(kv, 64, 1), FORM(kv, 64, 2), FORM(kv, 64, 4)},     \
        {                                                        \
            FORM(kv, 128, 1), FORM(kv, 128, 2), FORM(kv, 128, 4) \
        }                                                        \
    }

/* By the cache's dtype, head_dim 64 or 128, and up to 4, 8 or 16 queries a CTA. */
static const chunk_form forms[2][2][3] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16)};
static const void *const merge_function[1] = {(const void *)merge};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = host_load(device, merge_function, 1, "attention_decode: loading kernels");

    for (int i = 0; i < 12 && !status; i++) {
        const chunk_form *f = &forms[0][0][0] + i;

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
    const chunk_form *f = &forms[a.p.kv == RIDGE_BF16][a.p.n == 128][queries <= 4 ? 0 : queries <= 8 ? 1 : 2];
    const int64_t ctas = ridge_max(ridge_min((int64_t)SM_SHARED / (f->shared + CTA_RESERVED), 3), 1);
    ridge_status status;

    if (a.p.tokens * a.p.heads == 0)
        return RIDGE_OK;
    status = cache_map(device, &a.k, &a.p, a.p.k, a.p.k_stride, CHUNK);
    if (most && !status)
        status = host_launch_shared(
            device, kernel->name, f->function,
            dim3((unsigned)ridge_min(ridge_ceil_div((int64_t)device->units * ctas, blocks), most), (unsigned)blocks),
            THREADS, (size_t)f->shared, &a, stream);
    return status ? status : merge_launch(device, kernel->name, &a.p, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1];
    const int64_t n = problem->dim[3];

    if (n != 64 && n != 128)
        return "head_dim is not 64 or 128";
    if (problem->dtype[RIDGE_ATTENTION_DECODE_K] == RIDGE_U8)
        return "the cache is in Q8_0";
    if (problem->align < 4)
        return "an operand or row stride is not a multiple of 16 bytes";
    if (forms[0][n == 128][2].shared > host_max_shared(device))
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
