/* ce_gemm_sm90.cu: the first product of the linear cross entropy on Hopper, logits x W^T, with its epilogue in
 * registers: maximum and sum of exponentials by row and cluster (CE_STATS), or P^T and the sum of E (CE_PROBS);
 * *_EXTRA: with whatever options and outputs; or u of a sample of the classes (CE_LOOK).
 *
 * Thread t of a warpgroup holds rows 16 (t / 32) + (t % 32) / 4 and 8 more, columns 8 j + 2 (t % 4) and the next:
 * acc[4 j], acc[4 j + 1] of the first row, acc[4 j + 2], acc[4 j + 3] of the second. */
#include "ce_sm90.cuh"

/* Named barriers beside gemm16_sm90.cuh's 1: the threads of a warpgroup; P^T's place in shared memory has been filled,
 * or has been read; by warpgroup. */
enum { GROUP = 3, FILLED = 5, FREE = 7, STORE_THREADS = 128 + 32 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* This thread's two rows of the tile: listed row, whether it is there, its target, and for CE_PROBS k_r and the sum of
 * E so far. They are loaded before the product and looked at after it, so that nobody waits for them. */
typedef struct tile_rows {
    int row[2], target[2];
    bool live[2];
    float exponent[2], sum[2];
} tile_rows;

static __device__ __forceinline__ ce_part *part_of(const ce_product &a, int row)
{
    return &a.c.p.part[(int64_t)row * a.c.p.splits + blockIdx.x / G16_CLUSTER];
}

template <int PROBS>
static __device__ __forceinline__ tile_rows rows_of(const ce_product &a, const gemm16_work &w, int first)
{
    tile_rows t = {};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = first + 8 * h;

        t.live[h] = r < w.m;
        t.row[h] = (int)a.c.begin + min(r, w.m - 1);
        t.target[h] = a.c.p.label[t.row[h]];
        if (PROBS) {
            t.exponent[h] = a.c.exponent[t.row[h]];
            t.sum[h] = a.sums ? part_of(a, t.row[h])->sum : 0.0f;
        }
    }
    return t;
}

/* Bias, or class weight, of the tile's columns to shared memory: with an address for each, registers would spill. */
static __device__ __forceinline__ void share_columns(const ce_product &a, const gemm16_work &w, gemm16_memory *s,
                                                     int group, int first_col, bool weights)
{
    const ce_params &p = a.c.p;

    ptx_barrier_sync(GROUP + group, 128); /* what was there has been read */
    for (int i = threadIdx.x % 128; i < G16_N; i += 128) {
        const int c = first_col + i;

        if (weights)
            s->column[group][i] = p.class_weight && c < w.n ? p.class_weight[p.offset + c] : 1.0f;
        else
            s->column[group][i] = c < w.n ? ce_bias(p, c) : 0.0f;
    }
    ptx_barrier_sync(GROUP + group, 128); /* before others read it */
}

static __device__ __forceinline__ float2 shared_columns(const gemm16_memory *s, int group, int j)
{
    return *(const float2 *)&s->column[group][8 * j + 2 * (threadIdx.x % 4)];
}

/* u to z in place, -inf beyond the last column. */
template <int EXTRA>
static __device__ __forceinline__ void to_logits(const ce_product &a, const gemm16_work &w, gemm16_memory *s, int group,
                                                 int first_col, float *acc)
{
    const ce_params &p = a.c.p;
    const int col = first_col + 2 * (threadIdx.x % 4);

    if (EXTRA) {
        const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;

        share_columns(a, w, s, group, first_col, false);
#pragma unroll
        for (int j = 0; j < G16_N / 8; j++) {
            const float2 bias = shared_columns(s, group, j);

            acc[4 * j] = ce_logit(p, acc[4 * j] + bias.x, cap_inverse, cool);
            acc[4 * j + 1] = ce_logit(p, acc[4 * j + 1] + bias.y, cap_inverse, cool);
            acc[4 * j + 2] = ce_logit(p, acc[4 * j + 2] + bias.x, cap_inverse, cool);
            acc[4 * j + 3] = ce_logit(p, acc[4 * j + 3] + bias.y, cap_inverse, cool);
        }
    }
    if (first_col + G16_N > w.n)
#pragma unroll
        for (int j = 0; j < G16_N / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[4 * j + i] = col + 8 * j + i % 2 < w.n ? acc[4 * j + i] : -CUDART_INF_F;
}

/* acc[4 (at / 8) + 2 half + at % 8] of a thread's row: a tree of selects, 16 at a time to save registers. */
static __device__ __forceinline__ float pick(const float *acc, int half, int at)
{
    const int index = at / 8 * 2 + at % 2;
    float picked = 0.0f;

#pragma unroll
    for (int g = 0; g < G16_N / 4; g += 16) {
        float v[8];

#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int low = 4 * ((g + i) / 2) + 2 * half + i % 2;

            v[i] = index & 8 ? acc[low + 16] : acc[low];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = index & 4 ? v[i + 4] : v[i];
        v[0] = index & 2 ? v[2] : v[0];
        v[1] = index & 2 ? v[3] : v[1];
        v[0] = index & 1 ? v[1] : v[0];
        picked = index / 16 == g / 16 ? v[0] : picked;
    }
    return picked;
}

/* The target's logit, from the one thread that holds it. */
static __device__ __forceinline__ void put_target(const ce_product &a, const tile_rows &t, int first_col,
                                                  const float *acc)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int in_tile = t.target[h] - first_col, at = in_tile - 2 * (int)(threadIdx.x % 4);

        if (t.live[h] && t.target[h] >= 0 && in_tile >= 0 && in_tile < G16_N && at >= 0 && at % 8 < 2)
            a.c.p.target_z[t.row[h]] = pick(acc, h, at);
    }
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Maximum and sum of a row of the tile into this cluster's part. */
static __device__ __forceinline__ void put_stats(const ce_product &a, const tile_rows &t, int h, const float *acc)
{
    ce_part *part = part_of(a, t.row[h]);
    const bool mine = t.live[h] && threadIdx.x % 4 == 0;
    ce_part old = {-CUDART_INF_F, 0.0f};
    float high = -CUDART_INF_F, sum = 0.0f, base;

    if (mine)
        old = *part;
#pragma unroll
    for (int j = 0; j < G16_N / 8; j++)
        high = fmaxf(high, fmaxf(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
    base = high == -CUDART_INF_F ? 0.0f : high * CE_LOG2E;
#pragma unroll
    for (int j = 0; j < G16_N / 8; j++)
        sum += ptx_ex2(__fmaf_rn(acc[4 * j + 2 * h], CE_LOG2E, -base)) +
               ptx_ex2(__fmaf_rn(acc[4 * j + 2 * h + 1], CE_LOG2E, -base));
    sum = quad_sum(sum);
    if (!mine)
        return;
    if (old.sum != 0.0f) {
        const float top = fmaxf(high, old.max);

        sum = sum * (high == top ? 1.0f : ptx_ex2((high - top) * CE_LOG2E)) +
              old.sum * (old.max == top ? 1.0f : ptx_ex2((old.max - top) * CE_LOG2E));
        high = top;
    }
    *part = {high, sum};
}

/* The larger of two logits, the first of equals; NaN counts as largest. */
static __device__ __forceinline__ void keep_larger(float *best, int *at, float v, int c)
{
    const bool nan = *best != *best;

    if (v != v ? !nan || c < *at : !nan && (v > *best || (v == *best && c < *at))) {
        *best = v;
        *at = c;
    }
}

/* Adds a tile's sums of a row, whose maximum is `best` of class `at`, to this cluster's part. */
static __device__ __forceinline__ void merge_part(const ce_params &p, int64_t slot, float best, int at, float sum,
                                                  ce_more more)
{
    const ce_part old = p.part[slot];
    const ce_more had = p.full ? p.more[slot] : ce_more{0.0f, 0.0f, 0.0f, INT32_MAX};
    float top = best, scale = 1.0f, scale_old = 0.0f, gap = 0.0f, gap_old = 0.0f;
    int first = at;

    keep_larger(&top, &first, old.max, had.argmax);
    if (sum != 0.0f && best != top)
        scale = ptx_ex2((gap = best - top) * CE_LOG2E);
    if (old.sum != 0.0f)
        scale_old = ptx_ex2((gap_old = old.max - top) * CE_LOG2E);
    p.part[slot] = {top, sum * scale + old.sum * scale_old};
    if (p.full)
        p.more[slot] = {(scale != 0.0f ? scale * (more.spread + gap * sum) : 0.0f) +
                            (scale_old != 0.0f ? scale_old * (had.spread + gap_old * old.sum) : 0.0f),
                        more.z + had.z, more.wz + had.wz, first};
}

/* Everything that can be asked of a row of the tile. */
static __device__ __forceinline__ void put_stats_full(const ce_product &a, const gemm16_work &w, const gemm16_memory *s,
                                                      int group, const tile_rows &t, int h, int first_col,
                                                      const float *acc)
{
    const ce_params &p = a.c.p;
    const int col = first_col + 2 * (threadIdx.x % 4);
    float best = -CUDART_INF_F, base, sum = 0.0f;
    ce_more more = {0.0f, 0.0f, 0.0f, INT32_MAX};
    int left = w.n - col;

#pragma unroll
    for (int i = 0; i < G16_N / 4; i++)
        if (8 * (i / 2) + i % 2 < left)
            keep_larger(&best, &more.argmax, acc[4 * (i / 2) + 2 * h + i % 2], col + 8 * (i / 2) + i % 2);
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
        keep_larger(&best, &more.argmax, __shfl_xor_sync(~0u, best, step), __shfl_xor_sync(~0u, more.argmax, step));
    base = best == -CUDART_INF_F ? 0.0f : best;
#pragma unroll
    for (int i = 0; i < G16_N / 4; i++) {
        const float v = acc[4 * (i / 2) + 2 * h + i % 2], d = v - base, e = ptx_ex2(d * CE_LOG2E);
        const float2 weight = shared_columns(s, group, i / 2);

        asm volatile("" : "+r"(left)); /* 64 comparisons would be kept in registers */
        sum += e;
        more.spread += e > 0.0f ? e * d : 0.0f;
        if (8 * (i / 2) + i % 2 < left) {
            more.z += v;
            more.wz += (i % 2 ? weight.y : weight.x) * v;
        }
    }
    sum = quad_sum(sum);
    more.spread = quad_sum(more.spread);
    more.z = quad_sum(more.z);
    more.wz = quad_sum(more.wz);
    if (t.live[h] && threadIdx.x % 4 == 0)
        merge_part(p, (int64_t)t.row[h] * p.splits + blockIdx.x / G16_CLUSTER, best, more.argmax, sum, more);
}

/* One element of P from its logit; *e receives E. */
template <int EXTRA>
static __device__ __forceinline__ float prob_of(const ce_product &a, float z, float exponent, float2 mix, float weight,
                                                float *e)
{
    const ce_params &p = a.c.p;
    float v = ptx_ex2(__fmaf_rn(z, CE_LOG2E, -exponent));

    *e = v;
    if (EXTRA)
        v = __fmaf_rn(v, mix.x, -weight * mix.y) *
            ce_slope(p, z, p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, 1.0f / p.temperature);
    return v;
}

/* 64 x 256 logits to P^T, 128 classes at a time through shared memory, and the sums of E. */
template <int BF16, int EXTRA>
static __device__ __forceinline__ void put_probs(const ce_product &a, const gemm16_work &w, gemm16_memory *s, int group,
                                                 const tile_rows &t, int first_col, const float *acc)
{
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const int chunk = 2 * warp + (lane / 8) % 2, offset = lane / 16 * 8 + lane % 8;
    float exponent[2], sum[2] = {0.0f, 0.0f};
    float2 mix[2] = {{1.0f, 0.0f}, {1.0f, 0.0f}};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        exponent[h] = t.live[h] ? t.exponent[h] : CUDART_INF_F; /* rows that are not there: P is 0 */
        if (EXTRA && a.mixed)
            mix[h] = t.live[h] ? a.c.mix[t.row[h]] : make_float2(0.0f, 0.0f);
    }
    if (EXTRA)
        share_columns(a, w, s, group, first_col, true);
#pragma unroll
    for (int q = 0; q < 2; q++) {
        const uint32_t panel = ptx_shared(s->d[group][0]);
        uint32_t word[G16_N / 8];

#pragma unroll
        for (int i = 0; i < G16_N / 8; i++) { /* columns 8 (i / 2) .. of this half, row half i % 2 */
            const int at = q * (G16_N / 4) + 4 * (i / 2) + 2 * (i % 2);
            const float2 weight = EXTRA ? shared_columns(s, group, at / 4) : make_float2(1.0f, 1.0f);
            float e0, e1, v0, v1;

            v0 = prob_of<EXTRA>(a, acc[at], exponent[i % 2], mix[i % 2], weight.x, &e0);
            v1 = prob_of<EXTRA>(a, acc[at + 1], exponent[i % 2], mix[i % 2], weight.y, &e1);
            sum[i % 2] += e0 + e1;
            word[i] = BF16 ? ptx_bf16x2(v1, v0) : ptx_f16x2(v1, v0);
        }
#pragma unroll
        for (int i = 0; i < G16_N / 8; i++)
            asm volatile("" : "+r"(word[i])); /* all of them before anybody waits */
        ptx_barrier_sync(FREE + group, STORE_THREADS);
#pragma unroll
        for (int i = 0; i < G16_N / 8; i += 4) {
            const int row = 4 * i + offset;

            ptx_store_transposed(panel + row * 128 + ((chunk ^ (row & 7)) * 16), word[i], word[i + 1], word[i + 2],
                                 word[i + 3]);
        }
        ptx_fence_async();
        ptx_barrier_arrive(FILLED + group, STORE_THREADS);
    }
    if (!a.sums)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float all = quad_sum(sum[h]);

        if (t.live[h] && lane % 4 == 0)
            part_of(a, t.row[h])->sum = t.sum[h] + all;
    }
}

/* The warp that sends what a warpgroup's put_probs leaves in shared memory, so that the warpgroup does not wait. */
static __device__ __forceinline__ void send_probs(const ce_product &a, const gemm16_work &w, gemm16_memory *s,
                                                  int group)
{
    const uint32_t panel = ptx_shared(s->d[group][0]);
    const int clusters = (int)gridDim.x / G16_CLUSTER;

    for (int half = (int)blockIdx.x / G16_CLUSTER * 2; half / 2 < w.items; half += half % 2 ? 2 * clusters - 1 : 1) {
        int pair, tile_n;

        gemm16_locate(w, half / 2, &pair, &tile_n);
        const int row = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + group * 64;
        const int c = tile_n * G16_N + half % 2 * (G16_N / 2);
        const bool more = row >= a.c.probs.more_at, tail = row >= a.c.probs.tail_at, first = c < a.c.probs.split;
        const int which = more ? 3 : tail ? 2 : !first;

        __syncwarp();
        ptx_barrier_arrive(FREE + group, STORE_THREADS);
        ptx_barrier_sync(FILLED + group, STORE_THREADS);
        if (threadIdx.x % 32)
            continue;
        if (c < w.n)
            ptx_tma_store_2d(&a.store[which],
                             row - (more   ? a.c.probs.more_at
                                    : tail ? a.c.probs.tail_at
                                           : 0),
                             tail || first ? c : c - a.c.probs.split, panel);
        ptx_tma_commit();
        ptx_tma_wait_read();
    }
    if (threadIdx.x % 32 == 0)
        ptx_tma_wait();
}

/* A piece of the sample's u. */
static __device__ __forceinline__ void put_look(const ce_product &a, const gemm16_work &w, int first, int piece,
                                                const float *acc)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = a.c.look + (piece * a.c.rows + first + 8 * h) * CE_SAMPLE + 2 * (threadIdx.x % 4);

        if (first + 8 * h >= w.m)
            continue;
#pragma unroll
        for (int j = 0; j < G16_N / 8; j++)
            *(float2 *)(to + 8 * j) = make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    }
}

/* Rows of A by their numbers, where some are ignored and there is no compact x: each of the loading warps brings EACH
 * of them, a row a box, which TMA swizzles by the address as it does a row of a whole box. One elected lane sends them
 * off, STEP at a time without a branch: 32 lanes with a row each would leave 50 clocks apart, too late. */
enum { LOADERS = 4, EACH = G16_M / LOADERS };

template <int MN_B, int STEP>
static __device__ __forceinline__ void gather_item(const ce_product &a, const gemm16_work &w, gemm16_memory *s,
                                                   int item, uint32_t *n)
{
    const ce_params &p = a.c.p;
    const int rank = (int)ptx_cluster_rank(), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const uint32_t to = ptx_shared(s->a[0]) + warp * (EACH * 128);
    const bool one = ptx_elect();
    int pair, tile_n;

    gemm16_locate(w, item, &pair, &tile_n);
    const int row = (G16_CLUSTER * pair + rank) * G16_M + threadIdx.x;
    const int token = row < w.m ? p.list[a.c.begin + row] : (int)p.tokens; /* beyond the last one: zeros */

    for (int kb = 0; kb < w.blocks; kb++, ++*n) {
        const uint32_t stage = *n % G16_STAGES, full = ptx_shared(&s->full[stage]);

        ptx_mbarrier_wait(ptx_shared(&s->empty[stage]), (*n / G16_STAGES & 1) ^ 1);
        if (warp == 0 && one) {
            ptx_mbarrier_expect(full, (G16_M + G16_N) * G16_K * 2);
            gemm16_load_b<MN_B>(&a.maps.b, ptx_shared(s->b[stage] + rank * (G16_SHARE * G16_K * 2)),
                                tile_n * G16_N + rank * G16_SHARE, kb * G16_K, full);
        }
#pragma unroll STEP
        for (int i = 0; i < EACH; i++) {
            const int at = __shfl_sync(~0u, token, i);

            if (one)
                ptx_tma_load_2d(to + stage * (G16_M * G16_K * 2) + i * 128, &a.maps.a[1], kb * G16_K, at, full);
        }
    }
}

/* look: every token, whether it is listed or not. */
static __device__ __forceinline__ gemm16_work work_of(const ce_product &a, bool look)
{
    gemm16_work w = {};

    w.m = look ? (int)a.c.rows : ce_skipped(a.c) ? 0 : ce_chunk_rows(a.c);
    w.n = a.n;
    w.bundle = a.bundle;
    gemm16_plan(&w, (a.k + G16_K - 1) / G16_K, a.pieces);
    w.pick = a.c.compact && a.c.p.totals->rows != a.c.p.tokens;
    w.first_m = w.pick ? 0 : (int)a.c.begin;
    return w;
}

#endif

template <int BF16, int MN_B, int WHAT>
static __global__ void __launch_bounds__(G16_THREADS, 1) ce_gemm(const __grid_constant__ ce_product a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int EXTRA = WHAT == CE_STATS_EXTRA || WHAT == CE_PROBS_EXTRA;
    constexpr int PROBS = WHAT == CE_PROBS || WHAT == CE_PROBS_EXTRA;
    extern __shared__ __align__(1024) uint8_t shared[];
    gemm16_memory *s = (gemm16_memory *)shared;
    constexpr int STATS = WHAT == CE_STATS || WHAT == CE_STATS_EXTRA;
    const int clusters = (int)gridDim.x / G16_CLUSTER;

    gemm16_begin(s);
    const gemm16_work w = work_of(a, WHAT == CE_LOOK);
    const bool gather = STATS && !a.c.compact && a.c.p.totals->rows != a.c.p.tokens;

    if (threadIdx.x < 128) {
        uint32_t n = 0;

        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (gather) {
            for (int item = (int)blockIdx.x / G16_CLUSTER; item < w.items; item += clusters)
                gather_item<MN_B, WHAT == CE_STATS ? EACH : 4>(a, w, s, item, &n); /* more would spill */
        } else {
            for (int item = (int)blockIdx.x / G16_CLUSTER; threadIdx.x == 0 && item < w.items; item += clusters)
                gemm16_load<0, MN_B>(a.maps, w, s, item, &n);
        }
        if (PROBS && (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2))
            send_probs(a, w, s, (int)threadIdx.x / 32 - 1);
    } else {
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1, thread = threadIdx.x % 128;
        const gemm16_places at = gemm16_places_of<0, MN_B>(s, group);
        gemm16_turn turn = {0, false};

        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        gemm16_stagger(group, (int)blockIdx.x / G16_CLUSTER < w.items);
        for (int item = (int)blockIdx.x / G16_CLUSTER; item < w.items; item += clusters) {
            int pair, tile_n, first_block;
            const int piece = gemm16_locate(w, item, &pair, &tile_n);
            const int blocks = WHAT == CE_LOOK ? gemm16_blocks(w, piece, &first_block) : w.blocks;
            const int first = (G16_CLUSTER * pair + (int)ptx_cluster_rank()) * G16_M + group * 64, col = tile_n * G16_N;
            const int local = first + thread / 32 * 16 + thread % 32 / 4;
            float acc[G16_N / 2];
            tile_rows t = {};

            if (WHAT != CE_STATS_EXTRA && WHAT != CE_LOOK) /* there registers would spill */
                t = rows_of<PROBS>(a, w, local);
            gemm16_multiply<BF16, 0, MN_B>(at, blocks, group, &turn, acc);
            if (WHAT == CE_STATS_EXTRA)
                t = rows_of<PROBS>(a, w, local);
            if (WHAT == CE_LOOK) {
                put_look(a, w, local, piece, acc);
                continue;
            }
            to_logits<EXTRA>(a, w, s, group, col, acc);
            put_target(a, t, col, acc);
            if (WHAT == CE_STATS)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    put_stats(a, t, h, acc);
            if (WHAT == CE_STATS_EXTRA) {
                share_columns(a, w, s, group, col, true);
#pragma unroll
                for (int h = 0; h < 2; h++)
                    put_stats_full(a, w, s, group, t, h, col, acc);
            }
            if (PROBS)
                put_probs<BF16, EXTRA>(a, w, s, group, t, col, acc);
        }
    }
    __syncwarp();       /* one thread alone went through the loading loop, or sent P^T; the barrier is an aligned one */
    ptx_cluster_sync(); /* nobody leaves while the other one may write to it */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype, then: the five with W [V, H], and with W [H, V]. */
#define LOGITS_OF(bf16, mn_b)                                                                           \
    (const void *)ce_gemm<bf16, mn_b, CE_STATS>, (const void *)ce_gemm<bf16, mn_b, CE_STATS_EXTRA>,     \
        (const void *)ce_gemm<bf16, mn_b, CE_PROBS>, (const void *)ce_gemm<bf16, mn_b, CE_PROBS_EXTRA>, \
        (const void *)ce_gemm<bf16, mn_b, CE_LOOK>

enum { FUNCTIONS = 10 };
static const void *const functions[2][FUNCTIONS] = {{LOGITS_OF(0, 0), LOGITS_OF(0, 1)},
                                                    {LOGITS_OF(1, 0), LOGITS_OF(1, 1)}};

ridge_status ce_product_prepare(const ridge_device *device)
{
    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    return host_prepare(device, &functions[0][0], 2 * FUNCTIONS, cudaFuncAttributeMaxDynamicSharedMemorySize,
                        (int)sizeof(gemm16_memory), "linear_ce: loading kernels");
}

ridge_status ce_product_launch(const ridge_device *device, const char *name, int what, ce_product *g, void *stream)
{
    const int64_t rows = G16_CLUSTER * G16_M;
    const int64_t items = (g->c.rows + rows - 1) / rows * (((int64_t)g->n + G16_N - 1) / G16_N) * g->pieces;
    int64_t blocks = device->units / G16_CLUSTER;

    if (items == 0)
        return RIDGE_OK;
    blocks = (items < blocks ? items : blocks) * G16_CLUSTER;
    return host_launch_cluster(device, name, functions[g->c.p.dtype == RIDGE_BF16][what + 5 * g->c.p.hv],
                               dim3((unsigned)blocks), G16_CLUSTER, G16_THREADS, sizeof(gemm16_memory), g, stream);
}
