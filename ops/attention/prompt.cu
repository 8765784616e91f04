/* prompt.cu: attention_decode of many queries on CUDA cores, in the order of src/math/attention.h: of a prompt whose
 * logits are to be those of decoding.
 *
 * A CTA has the keys and values of a piece of 128 positions of a KV head in shared memory, and each of its warps four
 * queries of the group for itself: their dots with all keys, their weights, their sums of values (tile.cuh), which go
 * to the workspace. So the only barriers are those of the piece's load, and the warps of a multiprocessor are at
 * different places. In the second kernel a warp has a query, whose pieces it merges. */
#include "tile.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS };
enum { PITCH = PIECE + 4 }; /* of weights: those of four queries and four keys lie in different banks */

template <int N> struct __align__(128) prompt_shared
{
    char k[PIECE * (2 * N + 32)], v[PIECE * 2 * N];
    float weight[WARPS][SIDE][PITCH];
};

/* Four queries of a KV head from row `first` on, the last one again where there are fewer: their tokens, and what they
 * see of the piece. */
typedef struct prompt_rows {
    int first, last, t[SIDE];
    int from[SIDE], to[SIDE], low, high; /* and the hull of that */
} prompt_rows;

static __device__ __forceinline__ void find_rows(const attention_args &p, int first, int last, prompt_rows *r)
{
    const int64_t base = (int64_t)blockIdx.x * PIECE;

    r->first = first;
    r->last = last;
    r->low = PIECE;
    r->high = 0;
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        int64_t t, head, low, high;

        query(p, min(first + i, last), &t, &head);
        attention_range(&p, p.pos[t], &low, &high);
        r->t[i] = (int)t;
        r->from[i] = (int)min(max(low - base, (int64_t)0), (int64_t)PIECE);
        r->to[i] = (int)min(max(high - base, (int64_t)0), (int64_t)PIECE);
        if (r->from[i] < r->to[i]) {
            r->low = min(r->low, r->from[i]);
            r->high = max(r->high, r->to[i]);
        }
    }
}

static __device__ __forceinline__ int head_of(const attention_args &p, const prompt_rows &r, int i, int t)
{
    return (blockIdx.y - t) * (int)p.group + min(r.first + i, r.last);
}

/* This lane's columns of the queries, those of query own ^ r in q[r]. */
template <int N>
static __device__ __forceinline__ void hold_queries(const attention_args &p, const prompt_rows &rows, int own,
                                                    float (*q)[N / 8])
{
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        const int i = r ^ own;
        const int t = i < 2 ? i ? rows.t[1] : rows.t[0] : i == 2 ? rows.t[2] : rows.t[3];
        const int head = head_of(p, rows, i, t);
        const char *from = p.q + t * p.q_stride + (int64_t)head * N * (p.q_bf16 ? 2 : 4);

#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const int at = 16 * j + threadIdx.x % 8 * 2;

            if (p.q_bf16) {
                num_unpack2<RIDGE_BF16>(*(const uint32_t *)(from + 2 * at), &q[r][2 * j], &q[r][2 * j + 1]);
            } else {
                const float2 x = *(const float2 *)(from + 4 * at);

                q[r][2 * j] = x.x;
                q[r][2 * j + 1] = x.y;
            }
        }
    }
}

/* The columns of a lane, 2 or 4, which lie at a multiple of their size. */
template <int COLUMNS> static __device__ __forceinline__ void put_columns(float *to, const float *x)
{
    if (COLUMNS == 4)
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[COLUMNS - 1]);
    else
        *(float2 *)to = make_float2(x[0], x[1]);
}

template <int COLUMNS> static __device__ __forceinline__ void get_columns(const float *from, float *x)
{
    if (COLUMNS == 4) {
        const float4 v = *(const float4 *)from;

        x[0] = v.x;
        x[1] = v.y;
        x[2] = v.z;
        x[COLUMNS - 1] = v.w;
    } else {
        const float2 v = *(const float2 *)from;

        x[0] = v.x;
        x[1] = v.y;
    }
}

/* Everything for four queries, by a warp. weight: theirs. */
template <class F>
static __device__ __forceinline__ void attend_rows(const attention_args &p, const prompt_shared<F::N> *s,
                                                   float (*weight)[PITCH], const prompt_rows &rows)
{
    enum { N = F::N, COLUMNS = N / 32 };
    const int c0 = threadIdx.x % 32 * COLUMNS;
    float sum[SIDE][COLUMNS], o[SIDE][COLUMNS];
    const float *w[SIDE];
    int from[SIDE], to[SIDE];

    {
        float q[SIDE][N / 8];
        bool stores;
        const int own = own_query<SIDE>(&stores);

        hold_queries<N>(p, rows, own, q);
        multiply_held<F>(s->k, q, rows.low / 4 * 4, rows.high, 4, stores, weight[own]);
    }
    __syncwarp(); /* the dots are written before other lanes read them */
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        const float2 ml = weigh_row(p, weight[r], rows.from[r], rows.to[r]);

        if (threadIdx.x % 32 == 0 && rows.first + r <= rows.last && rows.from[r] < rows.to[r])
            piece_ml(p, rows.t[r], head_of(p, rows, r, rows.t[r]))[blockIdx.x] = ml;
    }
    __syncwarp(); /* the weights are written before other lanes read them */
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
#pragma unroll
        for (int r = 0; r < SIDE; r++) {
            w[r] = weight[r] + chunk * CHUNK;
            from[r] = rows.from[r] - chunk * CHUNK;
            to[r] = rows.to[r] - chunk * CHUNK;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                sum[r][c] = 0.0f;
        }
        sum_chunk<F, SIDE, COLUMNS>(s->v + chunk * CHUNK * F::BYTES, w, from, to, rows.low - chunk * CHUNK,
                                    rows.high - chunk * CHUNK, c0, sum);
#pragma unroll
        for (int r = 0; r < SIDE; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                o[r][c] = chunk ? o[r][c] + sum[r][c] : sum[r][c];
    }
#pragma unroll
    for (int r = 0; r < SIDE; r++)
        if (rows.first + r <= rows.last && rows.from[r] < rows.to[r])
            put_columns<COLUMNS>(piece_o(p, rows.t[r], head_of(p, rows, r, rows.t[r])) + (int64_t)blockIdx.x * N + c0,
                                 o[r]);
}

template <int KV, int N>
static __global__ void __launch_bounds__(THREADS, 2) prompt(const __grid_constant__ attention_args p)
{
    typedef tile_form<KV, N, WARPS> form;
    extern __shared__ float4 shared[];
    prompt_shared<N> *s = (prompt_shared<N> *)shared;
    const int warp = threadIdx.x / 32, first = ((int)blockIdx.z * WARPS + warp) * SIDE;
    const int last = (int)(p.tokens * p.group) - 1; /* less than 2^20 */
    const int64_t base = (int64_t)blockIdx.x * PIECE;
    const int there = (int)min(p.positions - base, (int64_t)PIECE);
    prompt_rows rows;

    ptx_grid_dependency_wait();
    ptx_launch_dependents(); /* after the wait: merge_rows reads positions before its own */
    rows.low = rows.high = 0;
    if (first <= last)
        find_rows(p, first, last, &rows);
    if (!__syncthreads_or(rows.low < rows.high)) /* no query sees the piece */
        return;
    load_rows<form::BYTES, form::PITCH, THREADS>(p.k + blockIdx.y * p.k_stride + base * form::BYTES, s->k, 0, there);
    load_rows<form::BYTES, form::BYTES, THREADS>(p.v + blockIdx.y * p.v_stride + base * form::BYTES, s->v, 0, there);
    mma_copy_wait_for<0>();
    __syncthreads(); /* keys and values are written before all threads read them */
    if (rows.low < rows.high)
        attend_rows<form>(p, s, s->weight[warp], rows);
}

/* A warp a query: merges its pieces. Positions are read before the wait, as by merge (merge.cuh). */
template <int N> static __global__ void __launch_bounds__(THREADS) merge_rows(const __grid_constant__ attention_args p)
{
    enum { COLUMNS = N / 32 };
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, t = i / p.heads, head = i - t * p.heads;
    const int lane = threadIdx.x % 32;
    const float *o = piece_o(p, t, head) + lane * COLUMNS;
    const float2 *ml = piece_ml(p, t, head);
    float x[COLUMNS] = {}, top = -INFINITY, sum = 0.0f;
    int64_t first = 0, end = 0;

    if (t < p.tokens)
        attention_range(&p, p.pos[t], &first, &end);
    end = first < end ? attention_pieces_of(end) : 0;
    first /= PIECE;
    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    if (t >= p.tokens)
        return;
    for (int64_t j = first + lane; j < end; j += 32)
        top = ridge_attention_max(top, ml[j].x);
#pragma unroll
    for (int h = 16; h > 0; h /= 2)
        top = ridge_attention_max(top, __shfl_xor_sync(~0u, top, h));
    if (p.sinks)
        top = ridge_attention_max(top, p.sinks[head]);
#pragma unroll 4
    for (int64_t j = first; j < end; j++) {
        const float2 of = ml[j];
        const float w = ridge_exp_neg(top - of.x);
        float v[COLUMNS];

        sum = ridge_fma(w, of.y, sum);
        get_columns<COLUMNS>(o + j * N, v);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            x[c] = ridge_fma(w, v[c], x[c]);
    }
    if (p.sinks)
        sum += ridge_attention_weight(top, p.sinks[head]);
    const float factor = ridge_attention_factor(sum);

#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        x[c] = __uint_as_float(num_canonical_f32(x[c] * factor));
    if (!p.out_bf16)
        put_columns<COLUMNS>((float *)(p.out + t * p.out_stride) + head * N + lane * COLUMNS, x);
    for (int c = 0; c < COLUMNS && p.out_bf16; c++)
        store_out(p, t, head * N + lane * COLUMNS + c, x[c]);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By the cache's dtype and head_dim 64, 128. */
#define FORMS(kv)                                                   \
    {                                                               \
        (const void *)prompt<kv, 64>, (const void *)prompt<kv, 128> \
    }
static const void *const functions[3][2] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16), FORMS(RIDGE_U8)};
static const void *const merges[2] = {(const void *)merge_rows<64>, (const void *)merge_rows<128>};
static const size_t shared_of[2] = {sizeof(prompt_shared<64>), sizeof(prompt_shared<128>)};

static ridge_status prepare(const ridge_device *device)
{
    const char *const what = "attention_decode: loading kernels";
    ridge_status status = host_load(device, merges, 2, what);

    for (int i = 0; i < 6 && !status; i++)
        status = host_prepare(device, &functions[i / 2][i % 2], 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (int)shared_of[i % 2], what);
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    attention_args p = attention_args_of(&bound->call, workspace);
    const int wide = p.n == 128, kv = p.kv == RIDGE_U8 ? 2 : p.kv == RIDGE_BF16;
    const dim3 grid((unsigned)attention_pieces_of(p.positions), (unsigned)p.kv_heads,
                    (unsigned)ridge_ceil_div(p.tokens * p.group, WARPS * SIDE));
    ridge_status status = RIDGE_OK;

    if (p.tokens * p.heads == 0)
        return RIDGE_OK;
    if (grid.x)
        status =
            host_launch_shared(device, kernel->name, functions[kv][wide], grid, THREADS, shared_of[wide], &p, stream);
    return status ? status
                  : host_launch(device, kernel->name, merges[wide],
                                dim3((unsigned)ridge_ceil_div(p.tokens * p.heads, WARPS)), THREADS, &p, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1];
    const char *why = tile_why_not(device, kernel, problem);

    if (why)
        return why;
    if (problem->dim[3] == 256)
        return "head_dim is not 64 or 128";
    if (problem->dim[2] > 65535 || (problem->dim[2] && queries / (double)problem->dim[2] > 65535.0 * ROWS))
        return "more than 65535 KV heads, or 2^20 queries of one";
    return queries > 2147483647.0 ? "more than 2^31 - 1 queries" : NULL;
}

/* Beside the other rows: from 160 queries of a KV head on (64 tokens of 32 and 8 heads 31.8 us, by tile 46.3; 32 tokens
 * 28.6 and 25.0, an H200). */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double queries = (double)problem->dim[0] * (double)problem->dim[1];

    return tile_cost(device, kernel, problem) + (queries < 160.0 * (double)problem->dim[2] ? 4 : -3);
}

static const ridge_kernel rows[] = {
    {"cuda.attention_decode.prompt",
     RIDGE_ATTENTION_DECODE,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {0},
     why_not,
     tile_workspace,
     cost,
     launch},
};

#undef FORMS
extern "C" const ridge_kernel_list ridge_cuda_attention_prompt = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
