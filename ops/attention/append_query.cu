/* append_query.cu: kv_append_attention of one token in a cache of at most 1024 positions, sm_90 up, in the order of
 * src/math/attention.h. In decoding the time is the latency of what follows the preceding product, so that little is
 * left for a CTA: one query and a piece of 128 positions, by 256 threads.
 *
 *   before the wait  (with RIDGE_WEIGHTS_CONST) keys and values by cp.async, bias, norms, and the angles
 *   heads            a warp each for q, k and v
 *   dots             two lanes a key, 8 columns of every 16 each, which are half of the sixteen partials; values
 *                    may still be in flight
 *   values           two warps a chunk of 32 positions
 *   merge            the pieces of a query are a cluster: o, m and l go to CTA 0 by st.async, which adds and stores
 *
 * Every CTA of a KV head computes k and v of the token anew where its piece has the position; the one of the group's
 * first query writes them to the cache. All take what was loaded for that row from themselves. Loops are short, since
 * the kernel is as slow as its code is fetched: each CTA runs it once, on a multiprocessor that ran other kernels. */
#include "cuda/keep.cuh"

#include "append_head.cuh"
#include "merge.cuh"

enum { CHUNK = RIDGE_ATTENTION_CHUNK, PIECE = RIDGE_ATTENTION_PIECE, CHUNKS = PIECE / CHUNK };
enum { WARPS = 8, THREADS = 32 * WARPS, CLUSTER = 8 };
enum { KEY_STEPS = 2 /* of 16 columns */, VALUE_STEP = 8 /* positions */ };
enum { HEADS = 3 /* q, k, v */, ANGLES = 32 * HEADS /* the first thread of those that compute them */ };

static_assert(2 * PIECE == THREADS && WARPS == 2 * CHUNKS, "two threads a key, two warps a chunk");

typedef struct append_query_args {
    attention_args p;
    append_args a;
    int early; /* positions and the cache may be read before the primary grid has ended */
} append_query_args;

template <int N> struct __align__(128) query_shared
{
    enum { PITCH = 2 * N + 16 }; /* eight keys begin in different banks */
    char k[PIECE * PITCH];
    char v[PIECE * 2 * N];
    float row[HEADS][N];
    float2 turn[N / 2]; /* cosines and sines */
    float weight[PIECE], most[WARPS], length[CHUNKS];
    float o[CHUNKS][N];
    float pieces[CLUSTER][N]; /* of the cluster, in CTA 0 */
    float2 ml[CLUSTER];
    uint64_t merged; /* their bytes have arrived */
};

#if __CUDA_ARCH__ >= 900

/* Rows of the piece: a group of cp.async. */
template <int N, int PITCH> static __device__ __forceinline__ void load_rows(const char *from, char *to, int there)
{
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < there * 2 * N; i += THREADS * 16)
        mma_copy16(ptx_shared(to + i / (2 * N) * PITCH + i % (2 * N)), from + i, 16);
    mma_copy_commit();
}

/* What a warp of q, k or v holds of bias and norm. */
template <int HELD> struct head_weights {
    float bias[HELD], norm[HELD];
};

template <int HELD>
static __device__ __forceinline__ void load_weights(const append_args &a, int which, int h, head_weights<HELD> *w)
{
    const float *norm = which == 0 ? a.q_norm : which == 1 ? a.k_norm : NULL;

#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int c = threadIdx.x % 32 + 32 * i;

        w->bias[i] = a.bias ? a.bias[(int64_t)h * a.n + c] : 0.0f;
        w->norm[i] = norm ? norm[c] : 0.0f;
    }
}

/* A head with bias and norm, in f32. x: the lane's first column. */
template <int HELD>
static __device__ __forceinline__ void make_head(const append_args &a, const char *x, int bf16, int normed,
                                                 const head_weights<HELD> *w, float *row)
{
    float y[HELD];

    if (bf16) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            y[i] = num_load<RIDGE_BF16>(x, 32 * i);
    } else {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            y[i] = num_load<RIDGE_F32>(x, 32 * i);
    }
    if (a.bias)
#pragma unroll
        for (int i = 0; i < HELD; i++)
            y[i] += w->bias[i];
    if (normed)
        append_norm<HELD>(a, w->norm, y);
#pragma unroll
    for (int i = 0; i < HELD; i++)
        row[threadIdx.x % 32 + 32 * i] = y[i];
}

/* Turns q and k; k and v of the token go to their row of the piece, and to the cache. own: that row, or -1. The value
 * is placed later, when its row has been loaded. */
template <int KV, int N>
static __device__ __forceinline__ void place_heads(const append_query_args &g, query_shared<N> *s, int own, int kv_head,
                                                   bool writes)
{
    const append_args &a = g.a;
    const int turned = (int)a.n_rot / 2;
    const int64_t at = ((int64_t)blockIdx.x * PIECE + own) * N;

#pragma unroll 1
    for (int i = threadIdx.x; i < (own < 0 ? 1 : HEADS) * (N / 2); i += THREADS) {
        const int which = i / (N / 2), pair = i % (N / 2);
        const bool turns = which < 2 && pair < turned;
        const int first = pair < turned ? (a.halves ? pair : 2 * pair) : 2 * pair;
        const int second = pair < turned && a.halves ? pair + turned : first + 1;
        const float2 angle = s->turn[pair];
        float *row = s->row[which], x0 = row[first], x1 = row[second];

        if (turns)
            ridge_rope_rotate(x0, x1, angle.x, angle.y, &x0, &x1);
        if (which == 0) {
            row[first] = x0;
            row[second] = x1;
            continue;
        }
        if (which == 1) {
            char *const to = s->k + own * query_shared<N>::PITCH;

            num_store<KV>(to, first, x0);
            num_store<KV>(to, second, x1);
        }
        if (writes) {
            char *const cache = which == 1 ? a.k + kv_head * a.k_stride : a.v + kv_head * a.v_stride;

            num_store<KV>(cache, at + first, x0);
            num_store<KV>(cache, at + second, x1);
        }
    }
}

/* With a soft cap: seldom used, so that its code lies apart. */
static __device__ __noinline__ float capped_score(float dot, float scale, float softcap)
{
    return ridge_attention_score(dot, scale, softcap);
}

/* The largest of the warps' maxima, none of which is NaN. */
static __device__ __forceinline__ float most_of(const float *most)
{
    float m[WARPS];

#pragma unroll
    for (int i = 0; i < WARPS; i++)
        m[i] = most[i];
#pragma unroll
    for (int h = WARPS / 2; h > 0; h /= 2)
#pragma unroll
        for (int i = 0; i < h; i++)
            m[i] = ridge_attention_max(m[i], m[i + h]);
    return m[0];
}

/* The dot product of the query with the thread's key, which two threads 16 lanes apart get. */
template <int KV, int N> static __device__ __forceinline__ float multiply_key(const query_shared<N> *s, int key)
{
    const int half = threadIdx.x % 32 / 16 * 8;
    const char *k = s->k + key * query_shared<N>::PITCH + 2 * half;
    float part[8] = {};

#pragma unroll KEY_STEPS
    for (int j = 0; j < N; j += 16) {
        const float4 a = *(const float4 *)(s->row[0] + j + half), b = *(const float4 *)(s->row[0] + j + half + 4);
        float x[8];

        num_unpack<KV>(*(const uint4 *)(k + 2 * j), x);
        part[0] = ridge_fma(a.x, x[0], part[0]);
        part[1] = ridge_fma(a.y, x[1], part[1]);
        part[2] = ridge_fma(a.z, x[2], part[2]);
        part[3] = ridge_fma(a.w, x[3], part[3]);
        part[4] = ridge_fma(b.x, x[4], part[4]);
        part[5] = ridge_fma(b.y, x[5], part[5]);
        part[6] = ridge_fma(b.z, x[6], part[6]);
        part[7] = ridge_fma(b.w, x[7], part[7]);
    }
#pragma unroll
    for (int h = 4; h > 0; h /= 2)
#pragma unroll
        for (int i = 0; i < h; i++)
            part[i] += part[i + h];
    return part[0] + __shfl_xor_sync(~0u, part[0], 16);
}

/* The warp's columns of its chunk's values, and l of the chunk. low, high: the positions of the piece that are seen.
 * Steps of 8 positions have no remainder: what is not seen is loaded and left out. */
template <int KV, int N> static __device__ __forceinline__ void sum_values(query_shared<N> *s, int low, int high)
{
    enum { COLUMNS = N / 64, STEP = VALUE_STEP };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunk = warp / 2;
    const int c0 = (warp % 2 * 32 + lane) * COLUMNS, end = min(high, (chunk + 1) * (int)CHUNK);
    float sum[COLUMNS] = {}, l = s->weight[chunk * CHUNK + lane];

    if (warp % 2 == 0) {
#pragma unroll
        for (int h = 16; h > 0; h /= 2)
            l += __shfl_down_sync(~0u, l, h);
        if (lane == 0)
            s->length[chunk] = l;
    }
#pragma unroll 1
    for (int base = chunk * (int)CHUNK; base < end; base += STEP) {
        float x[STEP][COLUMNS < 2 ? 2 : COLUMNS], w[STEP];

#pragma unroll
        for (int i = 0; i < STEP; i++) {
            const char *v = s->v + ((base + i) * N + c0) * 2;

            if (i % 4 == 0)
                *(float4 *)(w + i) = *(const float4 *)(s->weight + base + i);
            if (COLUMNS == 1)
                x[i][0] = num_load<KV>(v, 0);
            else
#pragma unroll
                for (int c = 0; c < COLUMNS; c += 2)
                    num_unpack2<KV>(*(const uint32_t *)(v + 2 * c), x[i] + c, x[i] + c + 1);
        }
#pragma unroll
        for (int i = 0; i < STEP; i++)
            if (base + i >= low && base + i < end)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    sum[c] = ridge_fma(w[i], x[i][c], sum[c]);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        s->o[chunk][c0 + c] = sum[c];
}

/* Four columns of o of the piece, and l. */
template <int N> static __device__ __forceinline__ float4 add_chunks(const query_shared<N> *s, int c, float *l)
{
    float4 sum = *(const float4 *)(s->o[0] + c);

    *l = s->length[0] + s->length[1] + s->length[2] + s->length[3];
#pragma unroll
    for (int j = 1; j < CHUNKS; j++) {
        const float4 x = *(const float4 *)(s->o[j] + c);

        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    return sum;
}

/* Four columns of the pieces [first, end), into out. */
template <int N>
static __device__ __forceinline__ void merge_pieces(const attention_args &p, const query_shared<N> *s, int64_t head,
                                                    int c, int first, int end)
{
    float top = -INFINITY, sum = 0.0f;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    for (int j = first; j < end; j++)
        top = ridge_attention_max(top, s->ml[j].x);
    if (p.sinks)
        top = ridge_attention_max(top, p.sinks[head]);
    for (int j = first; j < end; j++) {
        const float w = ridge_exp_neg(top - s->ml[j].x);
        const float4 o = *(const float4 *)(s->pieces[j] + c);

        sum = ridge_fma(w, s->ml[j].y, sum);
        x = make_float4(ridge_fma(w, o.x, x.x), ridge_fma(w, o.y, x.y), ridge_fma(w, o.z, x.z), ridge_fma(w, o.w, x.w));
    }
    if (p.sinks)
        sum += ridge_attention_weight(top, p.sinks[head]);
    const float factor = ridge_attention_factor(sum);

    store_out(p, 0, head * N + c, x.x * factor);
    store_out(p, 0, head * N + c + 1, x.y * factor);
    store_out(p, 0, head * N + c + 2, x.z * factor);
    store_out(p, 0, head * N + c + 3, x.w * factor);
}

#endif

template <int KV, int N>
static __global__ void __launch_bounds__(THREADS, 3) append_query(const __grid_constant__ append_query_args g)
{
#if __CUDA_ARCH__ >= 900
    enum { HELD = N / 32 };
    extern __shared__ float4 shared[];
    query_shared<N> *s = (query_shared<N> *)keep_shared(shared);
    const attention_args &p = g.p;
    const append_args &a = g.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, angle = (int)threadIdx.x - ANGLES;
    const int head = blockIdx.y, kv_head = head / (int)p.group, piece = blockIdx.x;
    const int there = (int)max(min(p.positions - (int64_t)piece * PIECE, (int64_t)PIECE), (int64_t)0);
    const int h = warp == 0 ? head : (int)(a.heads + (warp - 1) * a.kv_heads) + kv_head;
    head_weights<HELD> weights;
    int64_t low, high;

    if (threadIdx.x == 0) {
        ptx_mbarrier_init(ptx_shared(&s->merged), 1);
        ptx_mbarrier_fence_init();
    }
    __syncwarp();
    ptx_cluster_arrive_relaxed();
    ptx_launch_dependents();
    if (!g.early)
        ptx_grid_dependency_wait();
    load_rows<N, query_shared<N>::PITCH>(p.k + kv_head * p.k_stride + (int64_t)piece * PIECE * 2 * N, s->k, there);
    load_rows<N, 2 * N>(p.v + kv_head * p.v_stride + (int64_t)piece * PIECE * 2 * N, s->v, there);
    if (warp < HEADS)
        load_weights<HELD>(a, warp, h, &weights);
    else if (angle < a.n_rot / 2)
        ridge_rope_angle(p.pos[0], a.freqs[angle], a.mscale, 0, &s->turn[angle].x, &s->turn[angle].y);

    const int64_t pos = p.pos[0];

    attention_range(&p, pos, &low, &high);
    const int first = (int)(low / PIECE), end = low < high ? (int)attention_pieces_of(high) : 0; /* pieces */
    int own = pos >= 0 && pos < p.positions && pos / PIECE == piece ? (int)(pos % PIECE) : -1;
    int seen = piece >= first && piece < end;
    int from = (int)max(low - (int64_t)piece * PIECE, (int64_t)0); /* in the piece */
    int to = (int)min(high - (int64_t)piece * PIECE, (int64_t)PIECE);
    int writes = head % (int)p.group == 0, pieces = max(end - first, 0), begin = first;
    const char *const x = keep_global(a.x + ((int64_t)h * N + lane) * (a.x_bf16 ? 2 : 4));
    const int normed = warp == 0 ? a.q_norm != NULL : warp == 1 && a.k_norm;

    /* Computed here, not behind the barriers where they are used. */
    asm volatile("" : "+r"(from), "+r"(to), "+r"(own), "+r"(seen), "+r"(writes), "+r"(pieces), "+r"(begin));
    ptx_cluster_wait(); /* CTA 0 has initialised its mbarrier */
    if (g.early)
        ptx_grid_dependency_wait();
    if (warp < HEADS)
        make_head<HELD>(a, x, a.x_bf16, normed, &weights, s->row[warp]);
    mma_copy_wait_for<1>();
    __syncthreads(); /* heads, angles and keys are written before other threads read them */
    place_heads<KV>(g, s, own, kv_head, writes);
    __syncthreads(); /* the query and the new key are written before all threads read them */
    if (seen) {
        const int key = warp * 16 + lane % 16;
        const float dot = multiply_key<KV>(s, key);
        const bool sees = key >= from && key < to;
        const float open = p.softcap > 0.0f ? capped_score(dot, p.scale, p.softcap) : dot * p.scale;
        const float score = sees ? open : -INFINITY;
        float m = ridge_attention_max(-INFINITY, score);

#pragma unroll
        for (int i = 8; i > 0; i /= 2)
            m = ridge_attention_max(m, __shfl_xor_sync(~0u, m, i));
        if (lane == 0)
            s->most[warp] = m;
        mma_copy_wait_for<0>();
        __syncthreads(); /* the warps' maxima, and values, are written before all threads read them */
        if (own >= 0 && threadIdx.x < N)
            num_store<KV>(s->v + own * 2 * N, threadIdx.x, s->row[2][threadIdx.x]);
        m = most_of(s->most);
        if (lane < 16)
            s->weight[key] = sees ? ridge_attention_weight(m, score) : 0.0f;
        __syncthreads(); /* all weights are written before they are read */
        sum_values<KV>(s, from, to);
        __syncthreads(); /* o and l of the chunks are written before they are added */
        if (threadIdx.x < N / 4) {
            const uint32_t bar = ptx_map(ptx_shared(&s->merged), 0);
            float l;
            const float4 o = add_chunks(s, 4 * threadIdx.x, &l);

            ptx_store_async4(ptx_map(ptx_shared(s->pieces[piece] + 4 * threadIdx.x), 0), o.x, o.y, o.z, o.w, bar);
            if (threadIdx.x == 0)
                ptx_store_async2(ptx_map(ptx_shared(&s->ml[piece]), 0), m, l, bar);
        }
    } else {
        mma_copy_wait_for<0>();
    }
    if (piece > 0)
        return;
    if (threadIdx.x == 0)
        ptx_mbarrier_expect(ptx_shared(&s->merged), (uint32_t)pieces * (N + 2) * 4);
    if (threadIdx.x < N / 4) {
        ptx_mbarrier_wait(ptx_shared(&s->merged), 0);
        merge_pieces(p, s, head, 4 * threadIdx.x, begin, begin + pieces);
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define FORMS(kv)                                                                                                     \
    {                                                                                                                 \
        (const void *)append_query<kv, 64>, (const void *)append_query<kv, 128>, (const void *)append_query<kv, 256>, \
    }

/* By the cache's dtype, and head_dim 64, 128, 256. */
static const void *const functions[2][3] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16)};
static const size_t shared_of[3] = {sizeof(query_shared<64>), sizeof(query_shared<128>), sizeof(query_shared<256>)};

static int form_of(int64_t n)
{
    return n == 64 ? 0 : n == 128 ? 1 : 2;
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 6 && !status && device->arch >= RIDGE_ARCH_SM90; i++)
        if (shared_of[i % 3] <= (size_t)host_max_shared(device))
            status = host_prepare(device, &functions[i / 3][i % 3], 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared_of[i % 3], "kv_append_attention: loading kernels");
    if (!status && device->arch >= RIDGE_ARCH_SM90) /* the share that q8_0/matmul_one.cu asks for */
        status = host_prepare(device, &functions[0][0], 6, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared, "kv_append_attention: loading kernels");
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    append_query_args g = {attention_args_of(&bound->call, workspace), append_args_of(&bound->call),
                           (bound->call.flags & RIDGE_WEIGHTS_CONST) != 0};
    const int form = form_of(g.p.n);
    const int pieces = (int)ridge_max(attention_pieces_of(g.p.positions), 2); /* st.async wants a cluster */

    return host_launch_cluster(device, kernel->name, functions[g.p.kv == RIDGE_BF16][form],
                               dim3((unsigned)pieces, (unsigned)g.p.heads), pieces, THREADS, shared_of[form], &g,
                               stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t n = problem->dim[3];

    if (problem->dim[0] != 1)
        return "not one token";
    if (n != 64 && n != 128 && n != 256)
        return "head_dim is not 64, 128 or 256";
    if (problem->dtype[RIDGE_KV_APPEND_ATTENTION_K] == RIDGE_U8)
        return "a cache in Q8_0";
    if (problem->align < 4)
        return "an operand or row stride is not a multiple of 16 bytes";
    if (problem->dim[4] > CLUSTER * PIECE)
        return "more than 1024 positions";
    if (problem->dim[1] == 0 || problem->dim[1] > 65535)
        return "no queries, or more than 65535";
    return shared_of[form_of(n)] > (size_t)host_max_shared(device) ? "the piece does not fit in shared memory" : NULL;
}

/* Latency, and the bytes that all CTAs load, most of them from L2. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    return 3.5 + (double)problem->dim[1] * (double)problem->dim[3] * (double)problem->dim[4] * 1e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {"cuda.kv_append_attention.query",
     RIDGE_KV_APPEND_ATTENTION,
     RIDGE_ARCH_SM90,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_append_query = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
