/* attention.cu: attention_decode on CUDA cores, in the order of src/math/attention.h.
 *
 * One kernel computes o, m and l of the pieces, the next one (merge.cuh) merges them. A CTA of the first has a piece of
 * 128 positions of a KV head and up to 16 queries of its group; a warp has 32 of the positions. scores    two lanes a
 * key: lane k has columns 0 to 7 of every 16, lane k + 16 columns 8 to 15: the two eights of the partials, which one
 * shuffle adds weights   a warp a query, a lane four keys values    a lane two columns; the warp goes through its 32
 * positions K and V are read once for every 4 queries, by their first reader from global memory, then from L1. */
#include "append_head.cuh"
#include "merge.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE };
enum { ROWS = 16, SIDE = 4 }; /* queries of a CTA, and side by side */

static_assert(CHUNK == 32 && PIECE == WARPS * CHUNK, "a warp has a chunk, a CTA a piece");

/* Shared memory; q [ROWS][n] and o [WARPS][SIDE][n] follow, which are read 16 bytes at a time. */
struct __align__(16) piece_shared
{
    float p[ROWS][PIECE]; /* scores, then weights */
    int first[ROWS], end[ROWS], lowest, highest;
};

static __device__ __forceinline__ float *shared_q(piece_shared *s)
{
    return (float *)(s + 1);
}

static __device__ __forceinline__ float *shared_o(const attention_args &p, piece_shared *s)
{
    return shared_q(s) + ROWS * p.n;
}

/* What every query sees of the piece, and the queries as f32. Returns whether any sees a key. */
static __device__ bool load_queries(const attention_args &p, piece_shared *s, int64_t first_row, int rows)
{
    const int64_t base = (int64_t)blockIdx.x * PIECE;
    const int n = (int)p.n;

    if (threadIdx.x < ROWS) {
        int64_t t, head, first = 0, end = 0;

        if (threadIdx.x < rows) {
            query(p, first_row + threadIdx.x, &t, &head);
            attention_range(&p, p.pos[t], &first, &end);
        }
        s->first[threadIdx.x] = (int)min(max(first - base, (int64_t)0), (int64_t)PIECE);
        s->end[threadIdx.x] = (int)min(max(end - base, (int64_t)0), (int64_t)PIECE);
    }
    for (int r = 0; r < rows; r++) {
        int64_t t, head;

        query(p, first_row + r, &t, &head);
        for (int c = threadIdx.x; c < n; c += THREADS)
            shared_q(s)[r * n + c] = p.q_bf16 ? num_load<RIDGE_BF16>(p.q + t * p.q_stride, head * n + c)
                                              : num_load<RIDGE_F32>(p.q + t * p.q_stride, head * n + c);
    }
    __syncthreads(); /* queries and ranges are written before all threads read them */
    if (threadIdx.x == 0) {
        s->lowest = PIECE;
        s->highest = 0;
        for (int r = 0; r < rows; r++)
            if (s->first[r] < s->end[r]) {
                s->lowest = min(s->lowest, s->first[r]);
                s->highest = max(s->highest, s->end[r]);
            }
    }
    __syncthreads(); /* the hull of the ranges is written before all threads read it */
    return s->lowest < s->highest;
}

/* Eight, and two, elements of a row of the cache from column c on; without VECTOR at any address. */
template <int KV, int VECTOR> static __device__ __forceinline__ void load8(const char *row, int c, float *x)
{
    if (KV == RIDGE_U8)
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            cache_pair<KV, VECTOR>(row, c + i, x + i);
    else if (VECTOR)
        num_unpack<KV>(*(const uint4 *)(row + 2 * c), x);
    else
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = num_load<KV>(row, c + i);
}

template <int KV, int VECTOR> static __device__ __forceinline__ void load2(const char *row, int c, float *x)
{
    if (KV == RIDGE_U8 || VECTOR) {
        cache_pair<KV, VECTOR>(row, c, x);
    } else {
        x[0] = num_load<KV>(row, c);
        x[1] = num_load<KV>(row, c + 1);
    }
}

/* The dot products of SIDE queries with one key of a pair of lanes, which both get them. */
template <int KV, int VECTOR>
static __device__ __forceinline__ void dot(const char *k, int first, bool valid, const float *q, int n, int rows,
                                           float *out)
{
    float part[SIDE][8] = {};

#pragma unroll 4
    for (int c = 0; c < n; c += 16) {
        float x[8] = {};

        if (valid)
            load8<KV, VECTOR>(k, first + c, x);
#pragma unroll
        for (int r = 0; r < SIDE; r++) {
            const float4 a = *(const float4 *)(q + min(r, rows - 1) * n + c);
            const float4 b = *(const float4 *)(q + min(r, rows - 1) * n + c + 4);

            part[r][0] = ridge_fma(a.x, x[0], part[r][0]);
            part[r][1] = ridge_fma(a.y, x[1], part[r][1]);
            part[r][2] = ridge_fma(a.z, x[2], part[r][2]);
            part[r][3] = ridge_fma(a.w, x[3], part[r][3]);
            part[r][4] = ridge_fma(b.x, x[4], part[r][4]);
            part[r][5] = ridge_fma(b.y, x[5], part[r][5]);
            part[r][6] = ridge_fma(b.z, x[6], part[r][6]);
            part[r][7] = ridge_fma(b.w, x[7], part[r][7]);
        }
    }
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
#pragma unroll
        for (int h = 4; h > 0; h /= 2)
#pragma unroll
            for (int i = 0; i < h; i++)
                part[r][i] += part[r][i + h];
        out[r] = part[r][0] + __shfl_xor_sync(~0u, part[r][0], 16);
    }
}

/* Scores of the warp's chunk for SIDE queries from row `first` on; -inf for keys that a query does not see. */
template <int KV, int VECTOR>
static __device__ __forceinline__ void score_rows(const attention_args &p, piece_shared *s, int first, int rows)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = lane / 16, n = (int)p.n;

    for (int pass = 0; pass < 2; pass++) {
        const int at = warp * CHUNK + pass * 16 + lane % 16;
        const int64_t key = (int64_t)blockIdx.x * PIECE + at;
        const bool valid = at >= s->lowest && at < s->highest;
        float d[SIDE];

        dot<KV, VECTOR>(p.k + blockIdx.y * p.k_stride + key * p.kv_row, 8 * half, valid,
                        shared_q(s) + first * n + 8 * half, n, rows, d);
#pragma unroll
        for (int r = 0; r < SIDE; r++)
            if (r < rows && half == (r & 1)) {
                const bool sees = at >= s->first[first + r] && at < s->end[first + r];

                s->p[first + r][at] = sees ? ridge_attention_score(d[r], p.scale, p.softcap) : -INFINITY;
            }
    }
}

/* Scores of one query become weights, by a warp; m and l go to the workspace. */
static __device__ __forceinline__ void weigh_row(piece_shared *s, int r, float2 *ml)
{
    const int lane = threadIdx.x % 32, first = s->first[r], end = s->end[r];
    float m = -INFINITY, l = 0.0f, x[WARPS];

#pragma unroll
    for (int c = 0; c < WARPS; c++) {
        x[c] = s->p[r][c * CHUNK + lane];
        m = ridge_attention_max(m, x[c]);
    }
#pragma unroll
    for (int h = 16; h > 0; h /= 2)
        m = ridge_attention_max(m, __shfl_xor_sync(~0u, m, h));
#pragma unroll
    for (int c = 0; c < WARPS; c++) {
        const int at = c * CHUNK + lane;
        float sum;

        x[c] = at >= first && at < end ? ridge_attention_weight(m, x[c]) : 0.0f;
        s->p[r][at] = x[c];
        sum = x[c];
#pragma unroll
        for (int h = 16; h > 0; h /= 2)
            sum += __shfl_down_sync(~0u, sum, h);
        l = c ? l + sum : sum;
    }
    if (lane == 0)
        *ml = make_float2(m, l);
}

/* Values of the warp's chunk for SIDE queries from row `first` on, two columns a lane, into shared memory. */
template <int KV, int VECTOR>
static __device__ __forceinline__ void sum_values(const attention_args &p, piece_shared *s, int first, int rows)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = (int)p.n;
    const int low = max(s->lowest - warp * CHUNK, 0), high = min(s->highest - warp * CHUNK, (int)CHUNK);
    const char *v = p.v + blockIdx.y * p.v_stride + ((int64_t)blockIdx.x * PIECE + warp * CHUNK) * p.kv_row;
    int from[SIDE], to[SIDE];

#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        from[r] = s->first[first + min(r, rows - 1)] - warp * CHUNK;
        to[r] = s->end[first + min(r, rows - 1)] - warp * CHUNK;
    }
    for (int c = 2 * lane; c < n; c += 64) {
        float sum[SIDE][2] = {};

#pragma unroll 16
        for (int i = low; i < high; i++) {
            float x[2];

            load2<KV, VECTOR>(v + i * p.kv_row, c, x);
#pragma unroll
            for (int r = 0; r < SIDE; r++)
                if (i >= from[r] && i < to[r]) {
                    const float w = s->p[first + min(r, rows - 1)][warp * CHUNK + i];

                    sum[r][0] = ridge_fma(w, x[0], sum[r][0]);
                    sum[r][1] = ridge_fma(w, x[1], sum[r][1]);
                }
        }
#pragma unroll
        for (int r = 0; r < SIDE; r++)
            *(float2 *)(shared_o(p, s) + (warp * SIDE + r) * n + c) = make_float2(sum[r][0], sum[r][1]);
    }
}

template <int KV, int VECTOR>
static __global__ void __launch_bounds__(THREADS) pieces(const __grid_constant__ attention_args p)
{
    extern __shared__ float4 shared[];
    piece_shared *s = (piece_shared *)shared;
    const int64_t first_row = (int64_t)blockIdx.z * ROWS;
    const int rows = (int)min(p.tokens * p.group - first_row, (int64_t)ROWS), n = (int)p.n;

    ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* after the wait: merge reads positions before its own */
    if (!load_queries(p, s, first_row, rows))
        return;
    for (int r = 0; r < rows; r += SIDE)
        score_rows<KV, VECTOR>(p, s, r, min(rows - r, (int)SIDE));
    __syncthreads(); /* all scores of a query are written before they are read */
    for (int r = threadIdx.x / 32; r < rows; r += WARPS) {
        int64_t t, head;

        query(p, first_row + r, &t, &head);
        weigh_row(s, r, piece_ml(p, t, head) + blockIdx.x);
    }
    __syncthreads(); /* all weights are written before they are read */
    for (int r = 0; r < rows; r += SIDE) {
        const int side = min(rows - r, (int)SIDE);
        const float *o = shared_o(p, s);

        sum_values<KV, VECTOR>(p, s, r, side);
        __syncthreads(); /* the sums of all chunks are written before they are added */
        for (int i = threadIdx.x; i < side * n; i += THREADS) {
            int64_t t, head;

            query(p, first_row + r + i / n, &t, &head);
            piece_o(p, t, head)[(int64_t)blockIdx.x * n + i % n] =
                o[i] + o[SIDE * n + i] + o[2 * SIDE * n + i] + o[3 * SIDE * n + i];
        }
        __syncthreads(); /* they are read before the next queries' overwrite them */
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[5] = {(const void *)pieces<RIDGE_F16, 0>, (const void *)pieces<RIDGE_F16, 1>,
                                         (const void *)pieces<RIDGE_BF16, 0>, (const void *)pieces<RIDGE_BF16, 1>,
                                         (const void *)pieces<RIDGE_U8, 0>};

static const void *const merge_function[1] = {(const void *)merge};

static size_t shared_bytes(int64_t n)
{
    return sizeof(piece_shared) + (size_t)(ROWS + WARPS * SIDE) * (size_t)n * sizeof(float);
}

static ridge_status prepare(const ridge_device *device)
{
    const ridge_status status = host_prepare(device, functions, 5, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)shared_bytes(RIDGE_MAX_HEAD_DIM), "attention: loading kernels");

    return status ? status : host_load(device, merge_function, 1, "attention: loading kernels");
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    attention_args p;
    ridge_status status = append_first(device, kernel, &bound->call, workspace, stream, &p);
    const dim3 grid((unsigned)attention_pieces_of(p.positions), (unsigned)p.kv_heads,
                    (unsigned)ridge_ceil_div(p.tokens * p.group, ROWS));
    const int form = p.kv == RIDGE_U8 ? 4 : 2 * (p.kv == RIDGE_BF16) + (bound->problem.align == 4);

    if (p.tokens * p.heads * p.n == 0)
        return status;
    if (p.positions && !status)
        status =
            host_launch_shared(device, kernel->name, functions[form], grid, THREADS, shared_bytes(p.n), &p, stream);
    return status ? status : merge_launch(device, kernel->name, &p, 0, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1];

    if (problem->dim[2] > 65535 || (problem->dim[2] && queries / (double)problem->dim[2] > 65535.0 * ROWS))
        return "more than 65535 KV heads, or 2^20 queries of one";
    return queries > 2147483647.0 ? "more than 2^31 - 1 queries" : NULL;
}

static size_t workspace_bytes(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return attention_workspace(problem);
}

/* Latency, and the cache's bytes at the copy rate. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 8 + (problem->op == RIDGE_KV_APPEND_ATTENTION ? 3 : 0) +
           (problem->align < 4 || problem->dtype[attention_keys(problem->op)] == RIDGE_U8 ? 4.0 : 1.0) *
               (double)problem->dim[2] * (double)problem->dim[3] * (double)problem->dim[4] * 4e-3 / device->copy_gbps;
}

#define ROW(op, id)                                                                                     \
    {                                                                                                   \
        "cuda." op ".fma", id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST,                                   \
            RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, 0, {}, why_not, \
            workspace_bytes, cost, launch                                                               \
    }

static const ridge_kernel rows[] = {
    ROW("attention_decode", RIDGE_ATTENTION_DECODE),
    ROW("kv_append_attention", RIDGE_KV_APPEND_ATTENTION),
};

extern "C" const ridge_kernel_list ridge_cuda_attention = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
