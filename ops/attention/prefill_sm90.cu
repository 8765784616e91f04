/* prefill_sm90.cu: attention_prefill on Hopper for heads of 64 and 128 elements, in the flash form of prefill.cu.
 *
 * A CTA has up to 128 queries of the group of a KV head, neighbours in token and then head. Keys and values come in
 * tiles of 128 positions by TMA, two of each in flight.
 * Warpgroup 0: its first thread is the producer. Warpgroups 1 and 2: consumers of 64 queries each, in turn: while one's
 * products run, the other computes weights.
 *   S = q K^T         both from shared memory
 *   x = c S           c = |scale| log2(e); q has the sign of scale; -inf for keys that the query does not see
 *   m' = max(m, x)    O and l are multiplied by 2^(m - m')
 *   P = 2^(x - m')    rounded to the cache's dtype where it multiplies V, as the operand in registers of O += P V
 * Tiles begin at multiples of 128 positions, and one of which a query sees nothing changes none of its bits: 2^0 = 1,
 * P = 0. So a query's bits depend on its keys alone. For that a V that is not finite must not meet P = 0: it is taken
 * out of tiles that a query sees in part, and a query that sees it gets NaN.
 * Barriers: `full` of a stage orders TMA's writes before the consumers' reads, `empty` those before the next writes;
 * TURN + i: the other consumer's products are issued before those of consumer i; BOTH: the consumers' own; GROUP: the
 * first warpgroup's; ALL: what the consumers need to begin. */
#include <math.h>

#include "cache_map.cuh"
#include "cuda/num.cuh"
#include "cuda/sm90/pipeline.cuh"
#include "cuda/sm90/wgmma_registers.cuh"

enum { TILE = 128, ROWS = 128, HALF = 64, CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS), STAGES = 2 };
enum { PANEL = 128 * 128 /* bytes: 64 columns of a tile or of the queries */, TURN = 1, BOTH = 3, ALL = 4, GROUP = 5 };
static_assert(TILE == ROWS, "as many notes of a tile as of the queries");
enum { CONSUMER_THREADS = 128 * CONSUMERS, CONSUMER_WARPS = 4 * CONSUMERS };

template <int N> struct __align__(1024) wgmma_shared
{
    char q[N / 64][PANEL], k[STAGES][N / 64][PANEL], v[STAGES][N / 64][PANEL];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
    int4 hull[4]; /* by warp: the lowest first key, highest end, highest first, lowest end of its queries */
    uint32_t bad[TILE / 32][N]; /* keys of the tile whose value in a column is not finite */
    uint32_t nan[ROWS][N / 32]; /* columns in which a query sees such a value */
};

typedef struct wgmma_args {
    CUtensorMap k, v;
    attention_args p;
} wgmma_args;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What a consumer's thread has of its two rows, g and g + 8 of a warp's sixteen. */
typedef struct row_pair {
    int first[2], end[2]; /* the keys that the query sees */
    float m[2], l[2];
} row_pair;

static __device__ __forceinline__ void query(const attention_args &p, int64_t row, int64_t *t, int64_t *head)
{
    *t = (uint32_t)row / (uint32_t)p.group; /* fewer than 2^31 queries of a KV head */
    *head = blockIdx.y * p.group + (uint32_t)row % (uint32_t)p.group;
}

/* The keys that a query of the CTA sees; a missing query sees what the last one does. */
static __device__ __forceinline__ int2 range_of(const attention_args &p, int64_t first_row, int rows, int r)
{
    int64_t t, head, first, end;

    query(p, first_row + min(r, rows - 1), &t, &head);
    attention_range(&p, p.pos[t], &first, &end);
    return make_int2((int)min(first, (int64_t)0x7fffffff), (int)end);
}

/* By the first warpgroup, a query a thread. */
static __device__ __forceinline__ void read_hull(const attention_args &p, int4 *hull, int64_t first_row, int rows)
{
    const int2 range = range_of(p, first_row, rows, threadIdx.x);
    const bool any = range.x < range.y;
    const int lowest = __reduce_min_sync(~0u, any ? range.x : 0x7fffffff);
    const int highest = __reduce_max_sync(~0u, any ? range.y : 0);
    const int common_first = __reduce_max_sync(~0u, range.x), common_end = __reduce_min_sync(~0u, range.y);

    if (threadIdx.x % 32 == 0)
        hull[threadIdx.x / 32] = make_int4(lowest, highest, common_first, common_end);
}

static __device__ __forceinline__ int4 whole_hull(const int4 *hull)
{
    int4 h = hull[0];

    for (int i = 1; i < 4; i++)
        h = make_int4(min(h.x, hull[i].x), max(h.y, hull[i].y), max(h.z, hull[i].z), min(h.w, hull[i].w));
    return h;
}

/* The tile behind the last one that a query sees. */
static __device__ __forceinline__ int tiles_of(int4 hull)
{
    return (int)(((int64_t)hull.y + TILE - 1) / TILE);
}

/* -------------------------------------------------------------------------------------------------------- producer */

template <int N>
static __device__ __forceinline__ void load_tile(const CUtensorMap *map, char (*to)[PANEL], int tile, uint32_t full)
{
    ptx_mbarrier_expect(full, TILE * 2 * N);
#pragma unroll
    for (int i = 0; i < N / 64; i++)
        ptx_tma_load_3d(ptx_shared(to[i]), map, 64 * i, tile * TILE, blockIdx.y, full);
}

template <int N>
static __device__ __forceinline__ void produce(const wgmma_args &a, wgmma_shared<N> *s, int begin, int tiles)
{
    pipeline_state at = PIPELINE_PRODUCER;

    for (int tile = begin; tile < tiles; tile++) {
        pipeline_acquire(ptx_shared(s->k_empty), at);
        load_tile<N>(&a.k, s->k[at.stage], tile, ptx_shared(&s->k_full[at.stage]));
        pipeline_acquire(ptx_shared(s->v_empty), at);
        load_tile<N>(&a.v, s->v[at.stage], tile, ptx_shared(&s->v_full[at.stage]));
        pipeline_advance(&at, STAGES);
    }
}

/* --------------------------------------------------------------------------------------------------------- queries */

/* Eight elements as f32 with the sign of the scale; zeros where that is 0. */
template <int KV> static __device__ __forceinline__ uint4 pack_queries(float *x, float sign)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = sign == 0.0f ? 0.0f : x[i] * sign;
    return num_pack<KV>(x);
}

/* The queries, rounded to the cache's dtype; zeros for missing ones. A thread's loads are all in flight at once. */
template <int KV, int N, int Q_BF16>
static __device__ __forceinline__ void load_queries(const attention_args &p, wgmma_shared<N> *s, int64_t first_row,
                                                    int rows, float sign)
{
    enum { PIECES = N / 8, STEP = CONSUMER_THREADS / PIECES, COUNT = ROWS / STEP, WORDS = Q_BF16 ? 1 : 2 };
    const int thread = threadIdx.x - 128, c = thread % PIECES, first = thread / PIECES;
    uint4 v[COUNT][WORDS] = {};

#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (first + i * STEP < rows) {
            int64_t t, head;

            query(p, first_row + first + i * STEP, &t, &head);
            const uint4 *from = (const uint4 *)(p.q + t * p.q_stride + (head * N + 8 * c) * (Q_BF16 ? 2 : 4));
#pragma unroll
            for (int j = 0; j < WORDS; j++)
                v[i][j] = from[j];
        }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int r = first + i * STEP;
        float x[8];

        if (Q_BF16) {
            num_unpack<RIDGE_BF16>(v[i][0], x);
        } else {
            num_unpack<RIDGE_F32>(v[i][0], x);
            num_unpack<RIDGE_F32>(v[i][WORDS - 1], x + 4);
        }
        *(uint4 *)(s->q[c / 8] + r * 128 + (c % 8 ^ r % 8) * 16) = pack_queries<KV>(x, sign);
    }
    ptx_fence_async(); /* the stores are visible to wgmma */
}

/* --------------------------------------------------------------------------------------------------------- weights */

/* S becomes P, in f32; m, l, and what O is multiplied by. base: the tile's first key; whole: all are seen. c S is
 * rounded before m is subtracted: fused, 2^(m - m) would be 2 to the error of that rounding, not 1. */
static __device__ __forceinline__ void weigh(float *S, int base, bool whole, float c, row_pair *rows, float *alpha)
{
    const int column = base + threadIdx.x % 4 * 2;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = rows->m[h], sum[2] = {};

        if (!whole)
#pragma unroll
            for (int i = 0; i < TILE / 4; i++) {
                const int key = column + i / 2 * 8 + i % 2;

                if (key < rows->first[h] || key >= rows->end[h])
                    S[i / 2 * 4 + 2 * h + i % 2] = -INFINITY;
            }
#pragma unroll
        for (int i = 0; i < TILE / 4; i++) {
            float *x = S + i / 2 * 4 + 2 * h + i % 2;

            *x *= c;
            top = fmaxf(top, *x);
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float from = top == -INFINITY ? 0.0f : top;

        alpha[h] = ptx_ex2(rows->m[h] - from);
        rows->m[h] = top;
#pragma unroll
        for (int i = 0; i < TILE / 4; i++) {
            float *x = S + i / 2 * 4 + 2 * h + i % 2;

            *x = ptx_ex2(*x - from);
            sum[i % 2] += *x;
        }
        rows->l[h] = ridge_fma(rows->l[h], alpha[h], sum[0] + sum[1]);
    }
}

/* Dot products become scores in units of log2(e). */
static __device__ __forceinline__ void cap_scores(const attention_args &p, float *S)
{
#pragma unroll
    for (int i = 0; i < TILE / 2; i++)
        S[i] = ridge_attention_score(S[i], fabsf(p.scale), p.softcap) * 0x1.715476p+0f;
}

/* ---------------------------------------------------------------------------------------------------------- values */

/* Which columns of which queries see a value that is not finite; then forgets the tile's. By both consumers. */
template <int N>
static __device__ __forceinline__ void note_nan(const attention_args &p, wgmma_shared<N> *s, int64_t first_row,
                                                int rows, int base)
{
    const int thread = threadIdx.x - 128;

    for (int i = thread; i < ROWS * (N / 32); i += CONSUMER_THREADS) {
        const int2 range = range_of(p, first_row, rows, i / (N / 32));
        uint32_t columns = 0;

        for (int key = max(range.x - base, 0); key < min(range.y - base, (int)TILE); key++)
            for (int c = 0; c < 32; c++)
                columns |= (s->bad[key / 32][i % (N / 32) * 32 + c] >> key % 32 & 1) << c;
        s->nan[i / (N / 32)][i % (N / 32)] |= columns;
    }
    ptx_barrier_sync(BOTH, CONSUMER_THREADS); /* the tile's are read before they are cleared */
    for (int i = thread; i < TILE / 32 * N; i += CONSUMER_THREADS)
        (&s->bad[0][0])[i] = 0;
    ptx_barrier_sync(BOTH, CONSUMER_THREADS); /* and cleared before the next tile's are written */
}

/* Takes values that are not finite out of a stage, by both consumers, and notes which queries see one. */
template <int KV, int N>
static __device__ __forceinline__ void take_out_bad(const attention_args &p, wgmma_shared<N> *s, int stage,
                                                    int64_t first_row, int rows, int base)
{
    const uint32_t exponent = KV == RIDGE_BF16 ? 0x7f80u : 0x7c00u, one = KV == RIDGE_BF16 ? 0x80u : 0x400u;
    const uint32_t both = exponent << 16 | exponent, ones = one << 16 | one;
    int found = 0;

#pragma unroll 2
    for (int i = threadIdx.x - 128; i < TILE * N / 8; i += CONSUMER_THREADS) {
        const int panel = i / (TILE * 8), key = i / 8 % TILE, c = panel * 64 + (i % 8 ^ key % 8) * 8;
        uint32_t *const at = (uint32_t *)(s->v[stage][panel] + key * 128 + i % 8 * 16);
        const uint4 v = *(const uint4 *)at;
        const uint32_t carry =
            ((v.x & both) + ones) | ((v.y & both) + ones) | ((v.z & both) + ones) | ((v.w & both) + ones);

        if (carry & 0x80008000u) /* an exponent of ones */
            for (int h = 0; h < 8; h++)
                if ((at[h / 2] >> h % 2 * 16 & exponent) == exponent) {
                    atomicOr(&s->bad[key / 32][c + h], 1u << key % 32);
                    at[h / 2] &= h % 2 ? 0x0000ffffu : 0xffff0000u;
                    found = 1;
                }
    }
    ptx_fence_async(); /* what was taken out is visible to wgmma */
    if (ptx_barrier_or(BOTH, CONSUMER_THREADS, found))
        note_nan(p, s, first_row, rows, base);
}

/* O / l into out: zeros where no key is seen, NaN for what is not finite. */
template <int N>
static __device__ __forceinline__ void store_rows(const attention_args &p, const wgmma_shared<N> *s, int64_t first_row,
                                                  int rows, int first, const row_pair *of, const float *O)
{
    const float log2e = 0x1.715476p+0f;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + 8 * h;
        float sum = of->l[h], scale = 1.0f;
        int64_t t, head;

        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (row >= rows)
            continue;
        query(p, first_row + row, &t, &head);
        if (p.sinks) {
            const float m = of->m[h], sink = p.sinks[head] * log2e, top = fmaxf(m, sink);

            scale = top == -INFINITY ? 1.0f : ptx_ex2(m - top);
            sum = sum * scale + (top == -INFINITY ? 0.0f : ptx_ex2(sink - top));
        }
        const float factor = sum == 0.0f ? 0.0f : scale / sum;
        char *const to = p.out + t * p.out_stride + head * N * (p.out_bf16 ? 2 : 4);

#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            const int at = 8 * i + threadIdx.x % 4 * 2;
            float x[2];

#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float o = O[4 * i + 2 * h + j];

                x[j] = fabsf(o) < INFINITY && !(s->nan[row][at / 32] >> at % 32 + j & 1) ? o * factor + 0.0f : NAN;
            }
            if (p.out_bf16) {
                const uint32_t two = num_pack2<RIDGE_BF16>(x[0], x[1]);

                *(uint32_t *)(to + 2 * at) =
                    num_canonical<RIDGE_BF16>(two & 0xffffu) | num_canonical<RIDGE_BF16>(two >> 16) << 16;
            } else {
                *(uint2 *)(to + 4 * at) = make_uint2(num_canonical_f32(x[0]), num_canonical_f32(x[1]));
            }
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- consumer */

/* Issues S = q K^T of a stage. */
template <int KV, int N>
static __device__ __forceinline__ void issue_scores(const wgmma_shared<N> *s, int consumer, int stage, float *S)
{
    const uint64_t q = wgmma_descriptor(ptx_shared(s->q[0] + consumer * HALF * 128));
    const uint64_t k = wgmma_descriptor(ptx_shared(s->k[stage][0]));

#pragma unroll
    for (int i = 0; i < N / 16; i++)
        wgmma_16bit<TILE, KV == RIDGE_BF16, 0, 0>(S, q + i / 4 * (PANEL >> 4) + i % 4 * 2,
                                                  k + i / 4 * (PANEL >> 4) + i % 4 * 2, i > 0);
    wgmma_commit();
}

/* Issues O += P V of a stage. */
template <int KV, int N>
static __device__ __forceinline__ void issue_values(const wgmma_shared<N> *s, int stage, const uint32_t *P, float *O)
{
    const uint64_t v = wgmma_descriptor_mn(ptx_shared(s->v[stage][0]), PANEL);

#pragma unroll
    for (int i = 0; i < TILE / 16; i++)
        wgmma_from_registers<N, KV == RIDGE_BF16>(O, P + 4 * i, v + 128 * i);
    wgmma_commit();
}

/* Keeps the operand P in its registers until here. */
static __device__ __forceinline__ void pin_weights(uint32_t *P)
{
#pragma unroll
    for (int i = 0; i < TILE / 4; i++)
        asm volatile("" : "+r"(P[i])::"memory");
}

/* Scores of a tile become P; then the last tile's products are waited for, its stage is released, O rescaled, and the
 * tile's values are ready. */
template <int KV, int N, int CAP>
static __device__ __forceinline__ void weigh_tile(const attention_args &p, wgmma_shared<N> *s, int64_t first_row,
                                                  int rows, int4 hull, int tile, int i, float c, row_pair *of, float *S,
                                                  uint32_t *P, float *O)
{
    const int base = tile * TILE;
    const pipeline_state at = pipeline_at<STAGES>(i);
    const bool whole = hull.z <= base && hull.w >= base + TILE;
    float alpha[2];

    if (CAP)
        cap_scores(p, S);
    weigh(S, base, whole, c, of, alpha);
    wgmma_wait();
    wgmma_pin<N / 2>(O);
    pin_weights(P);
    if (i && threadIdx.x % 32 == 0)
        pipeline_release(ptx_shared(s->v_empty), at.stage ^ 1);
#pragma unroll
    for (int j = 0; j < N / 2; j++)
        O[j] *= alpha[j / 2 % 2];
#pragma unroll
    for (int j = 0; j < TILE / 4; j++)
        P[j] = num_pack2<KV>(S[2 * j], S[2 * j + 1]);
    pipeline_wait(ptx_shared(s->v_full), at);
    if (!whole)
        take_out_bad<KV, N>(p, s, at.stage, first_row, rows, base);
}

/* Its own products come when the other consumer's have been issued. All operands in registers are final. */
template <int N> static __device__ __forceinline__ void take_turn(int consumer, float *S, uint32_t *P, float *O)
{
    ptx_barrier_sync(TURN + consumer, CONSUMER_THREADS);
    wgmma_pin<TILE / 2>(S);
    wgmma_pin<N / 2>(O);
    pin_weights(P);
    wgmma_fence();
}

/* The tiles of a consumer. While the product with a tile's values runs, so does that with the next tile's keys. */
template <int KV, int N, int CAP>
static __device__ __forceinline__ void consume_tiles(const attention_args &p, wgmma_shared<N> *s, int64_t first_row,
                                                     int rows, int4 hull, int begin, int tiles, float c, row_pair *of,
                                                     float *O)
{
    const int consumer = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, last = tiles - 1 - begin;
    float S[TILE / 2];
    uint32_t P[TILE / 4] = {};

    if (consumer == 1)
        ptx_barrier_arrive(TURN, CONSUMER_THREADS);
    pipeline_wait(ptx_shared(s->k_full), pipeline_at<STAGES>(0));
    wgmma_fence();
    issue_scores<KV, N>(s, consumer, 0, S);
    wgmma_wait();
    wgmma_pin<TILE / 2>(S);
    if (lane == 0)
        pipeline_release(ptx_shared(s->k_empty), 0);
    for (int i = 0; i < last; i++) {
        const pipeline_state next = pipeline_at<STAGES>(i + 1);

        weigh_tile<KV, N, CAP>(p, s, first_row, rows, hull, begin + i, i, c, of, S, P, O);
        pipeline_wait(ptx_shared(s->k_full), next);
        take_turn<N>(consumer, S, P, O);
        issue_scores<KV, N>(s, consumer, next.stage, S);
        issue_values<KV, N>(s, i % STAGES, P, O);
        ptx_barrier_arrive(TURN + (consumer ^ 1), CONSUMER_THREADS);
        wgmma_wait_before();
        wgmma_pin<TILE / 2>(S);
        if (lane == 0)
            pipeline_release(ptx_shared(s->k_empty), next.stage);
    }
    weigh_tile<KV, N, CAP>(p, s, first_row, rows, hull, tiles - 1, last, c, of, S, P, O);
    take_turn<N>(consumer, S, P, O);
    issue_values<KV, N>(s, last % STAGES, P, O);
    if (consumer == 0)
        ptx_barrier_arrive(TURN + 1, CONSUMER_THREADS);
    wgmma_wait();
    wgmma_pin<N / 2>(O);
    pin_weights(P);
}

template <int KV, int N, int CAP>
static __device__ __forceinline__ void consume(const attention_args &p, wgmma_shared<N> *s, int64_t first_row, int rows)
{
    const int first = (threadIdx.x / 32 - 4) * 16 + threadIdx.x % 32 / 4;
    const float log2e = 0x1.715476p+0f, sign = p.scale > 0.0f ? 1.0f : p.scale < 0.0f ? -1.0f : 0.0f;
    const float c = CAP || sign == 0.0f ? 1.0f : fabsf(p.scale) * log2e;
    float O[N / 2] = {};
    row_pair of = {{}, {}, {-INFINITY, -INFINITY}, {0.0f, 0.0f}};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int2 range = range_of(p, first_row, rows, first + 8 * h);

        of.first[h] = range.x;
        of.end[h] = range.y;
    }
    if (p.q_bf16)
        load_queries<KV, N, 1>(p, s, first_row, rows, sign);
    else
        load_queries<KV, N, 0>(p, s, first_row, rows, sign);
    ptx_barrier_sync(ALL, THREADS); /* the queries and the hull are written before consumers read them */
    const int4 hull = whole_hull(s->hull);
    const int begin = hull.x / TILE, tiles = tiles_of(hull);

    if (begin < tiles)
        consume_tiles<KV, N, CAP>(p, s, first_row, rows, hull, begin, tiles, c, &of, O);
    ptx_launch_dependents();
    store_rows<N>(p, s, first_row, rows, first, &of, O);
}
#endif

template <int KV, int N, int CAP>
static __global__ void __launch_bounds__(THREADS, 1) prefill_wgmma(const __grid_constant__ wgmma_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) char memory[];
    wgmma_shared<N> *s = (wgmma_shared<N> *)memory;
    const int64_t first_row = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS; /* long rows first */
    const int rows = (int)min(a.p.tokens * a.p.group - first_row, (int64_t)ROWS);

    if (threadIdx.x == 0) {
        ptx_prefetch_map(&a.k);
        ptx_prefetch_map(&a.v);
        pipeline_init(ptx_shared(s->k_full), ptx_shared(s->k_empty), STAGES, 1, CONSUMER_WARPS);
        pipeline_init(ptx_shared(s->v_full), ptx_shared(s->v_empty), STAGES, 1, CONSUMER_WARPS);
        ptx_mbarrier_fence_init();
    }
    for (int i = threadIdx.x; i < TILE / 32 * N; i += THREADS)
        (&s->bad[0][0])[i] = (&s->nan[0][0])[i] = 0;
    __syncthreads(); /* barriers are initialised and notes cleared before threads use them */
    ptx_grid_dependency_wait();
    if (threadIdx.x < 128) {
        ptx_setmaxnreg_dec<24>();
        read_hull(a.p, s->hull, first_row, rows);
        ptx_barrier_sync(GROUP, 128); /* the warps' hulls are written before all are read */
        ptx_barrier_arrive(ALL, THREADS);
        if (threadIdx.x == 0) {
            const int4 hull = whole_hull(s->hull);

            produce<N>(a, s, hull.x / TILE, tiles_of(hull));
        }
    } else {
        ptx_setmaxnreg_inc<240>();
        consume<KV, N, CAP>(a.p, s, first_row, rows);
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define FORMS(kv)                                                                            \
    {                                                                                        \
        {(const void *)prefill_wgmma<kv, 64, 0>, (const void *)prefill_wgmma<kv, 64, 1>},    \
        {                                                                                    \
            (const void *)prefill_wgmma<kv, 128, 0>, (const void *)prefill_wgmma<kv, 128, 1> \
        }                                                                                    \
    }

/* By the cache's dtype, head_dim 64 or 128, and whether there is a softcap. */
static const void *const functions[2][2][2] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16)};
static const int shared_of[2] = {(int)sizeof(wgmma_shared<64>), (int)sizeof(wgmma_shared<128>)};

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    for (int i = 0; i < 8 && !status; i++)
        status = host_prepare(device, &functions[0][0][0] + i, 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              shared_of[i / 2 % 2], "attention_prefill: loading kernels");
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    wgmma_args a = {{}, {}, attention_args_of(&bound->call, NULL)};
    const attention_args *p = &a.p;
    const int wide = p->n == 128;
    ridge_status status;

    if (p->tokens * p->heads == 0)
        return RIDGE_OK;
    status = cache_map(device, &a.k, p, p->k, p->k_stride, TILE);
    if (!status)
        status = cache_map(device, &a.v, p, p->v, p->v_stride, TILE);
    return status
               ? status
               : host_launch_shared(device, kernel->name, functions[p->kv == RIDGE_BF16][wide][p->softcap > 0.0f],
                                    dim3((unsigned)ridge_ceil_div(p->tokens * p->group, ROWS), (unsigned)p->kv_heads),
                                    THREADS, (size_t)shared_of[wide], &a, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dim[3] != 64 && problem->dim[3] != 128)
        return "head_dim is not 64 or 128";
    if (problem->align < 4)
        return "an operand or row stride is not a multiple of 16 bytes";
    if (problem->dim[2] > 65535)
        return "more than 65535 KV heads";
    return problem->dim[2] && (double)problem->dim[0] * (double)problem->dim[1] / (double)problem->dim[2] > 2147480000.0
               ? "more than 2^31 queries of a KV head"
               : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double rows = (double)problem->dim[0] * (double)problem->dim[1] +
                        (double)problem->dim[4] * (double)problem->dim[2]; /* q and out, k and v */

    return 4 + fmax(ridge_op_at(problem->op)->flops(problem) / (device->units * 4e6 * host_sm_share(device)),
                    rows * (double)problem->dim[3] * 4e-3 / device->copy_gbps);
}

static const ridge_kernel rows[] = {{.name = "cuda.attention_prefill.wgmma",
                                     .op = RIDGE_ATTENTION_PREFILL,
                                     .arch_min = RIDGE_ARCH_SM90,
                                     .arch_max = RIDGE_ARCH_SM90,
                                     .contract = RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
                                     .why_not = why_not,
                                     .cost = cost,
                                     .launch = launch}};

extern "C" const ridge_kernel_list ridge_cuda_attention_prefill_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]),
                                                                        prepare};
