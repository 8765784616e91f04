/* logits_epilogue_sm90.cuh: the logits' product of logits_coop_sm90.cu and logits_pingpong_sm90.cu: what is taken of it
 * at once, and the ends of its tiles, of N columns where both call it and else of G16_N.
 *
 * Thread t of a warpgroup holds rows 16 (t / 32) + (t % 32) / 4 and 8 more, columns 8 j + 2 (t % 4) and the next:
 * acc[4 j], acc[4 j + 1] of the first row, acc[4 j + 2], acc[4 j + 3] of the second. */
#ifndef RIDGE_CE_LOGITS_SM90_CUH
#define RIDGE_CE_LOGITS_SM90_CUH

#include "scheduler_sm90.cuh"
#include "linear_sm90.cuh"

/* Named barriers beside cuda/sm90/gemm_bf16.cuh's 1: the threads of a warpgroup; P^T's place in shared memory has been
 * filled, or has been read; by warpgroup. */
enum { GROUP = 3, FILLED = 5, FREE = 7, STORE_THREADS = 128 + 32 };

/* What a cluster takes: some tiles of a pair of row tiles, column after column, whose sums are one part of each row, or
 * two: every other tile's, where the warpgroups go in turn and want more than a sum of E. Wide ones come first, at last
 * those of one tile, so that all end together. Neither the parts nor the order in one depend on who makes them. */
typedef struct logits_plan {
    gemm16_work tiles, wide, single;
    int columns, parts; /* of a wide one */
    int items;
} logits_plan;

typedef struct logits_memory {
    gemm16_memory product;
    ce_items items;
    logits_plan plan;
} logits_memory;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Tiles `first`, `first` + `step`, .. as gemm16_locate counts. */
typedef struct logits_item {
    int first, step, count, part;
} logits_item;

/* This thread's two rows of an item: listed row, whether it is there, its target, and for CE_PROBS k_r; and its own
 * columns' sum of E. Where registers allow it they are loaded before the product and looked at after it, so that nobody
 * waits for them. */
typedef struct item_rows {
    int row[2], target[2];
    bool live[2];
    float exponent[2], sum[2];
} item_rows;

/* Of the thread's two rows, over an item's tiles: maximum and sum of its own columns. */
typedef struct item_sums {
    float high[2], sum[2];
} item_sums;

static __device__ __forceinline__ ce_part *part_of(const ce_product &a, int row, int part)
{
    return &a.c.p.part[(int64_t)row * a.c.p.splits + part];
}

/* The same tiles in columns of more than one. */
static __device__ __forceinline__ gemm16_work in_columns(gemm16_work w, int columns)
{
    w.tiles_n = columns;
    w.items = w.pairs * columns;
    w.by_bundle = gemm16_reciprocal(w.bundle * columns);
    return w;
}

/* look: every token, whether it is listed or not; pieces of k instead of columns. width: of a tile; parts: of an item.
 */
static __device__ __forceinline__ logits_plan plan_of(const ce_product &a, bool look, int width, int parts)
{
    logits_plan g = {};
    gemm16_work *w = &g.tiles;

    w->m = look ? (int)a.c.rows : ce_skipped(a.c) ? 0 : ce_chunk_rows(a.c);
    w->n = a.n;
    w->height = G16_M;
    w->width = width;
    w->bundle = a.bundle;
    gemm16_plan(w, (a.k + G16_K - 1) / G16_K, a.pieces);
    w->pick = a.c.compact && a.c.p.totals->rows != a.c.p.tokens;
    w->first_m = w->pick ? 0 : (int)a.c.begin;
    g.items = w->items;
    if (look)
        return g;
    g.columns = a.columns;
    g.parts = parts;
    g.wide = in_columns(*w, a.wide);
    g.single = in_columns(*w, max(w->tiles_n - a.wide * a.columns, 0));
    g.items = g.wide.items + g.single.items;
    return g;
}

static __device__ __forceinline__ logits_item item_of(const logits_plan &g, int index)
{
    const gemm16_work &w = g.tiles;
    int pair, part, place, column, count;

    if (index < g.wide.items) {
        gemm16_tile(g.wide, index, &pair, &part);
        column = part * g.columns;
        part *= g.parts;
        count = min(g.columns, w.tiles_n - column);
    } else {
        gemm16_tile(g.single, index - g.wide.items, &pair, &part);
        column = g.wide.tiles_n * g.columns + part;
        part += g.wide.tiles_n * g.parts;
        count = 1;
    }
    const int bundle = gemm16_divide(pair, w.bundle, w.by_pair, &place);
    const int step = (bundle + 1) * w.bundle >= w.pairs ? w.last : w.bundle;

    return {bundle * w.bundle * w.tiles_n + column * step + place, step, count, part};
}

/* The loading thread. The first CTA's asks for the next item while it loads the last tile of one, and hands it to
 * everybody else; the last ticket of all puts the counter back. */
template <int MN_B, class MEMORY>
static __device__ __forceinline__ void load_items(const ce_product &a, const logits_plan &g, MEMORY *product,
                                                  ce_items *items)
{
    unsigned long long *taken = &a.c.p.totals->taken;
    const int clusters = (int)gridDim.x / G16_CLUSTER;
    ce_ring ring = ce_ring_of(items);
    uint32_t n = 0;

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.items;) {
        const logits_item item = item_of(g, i);
        const bool leads = ptx_cluster_rank() == 0;
        int ticket = 0;

        for (int k = 0; k < item.count; k++)
            gemm16_load<0, MN_B>(a.maps, g.tiles, product, item.first + k * item.step, &n,
                                 leads && k + 1 == item.count ? taken : NULL, &ticket);
        if (!leads) {
            i = ce_next_to_load(&ring);
            continue;
        }
        i = clusters + ticket;
        if (ticket == g.items - 1)
            *taken = 0;
        ce_hand_out(items, &ring, i);
    }
}

template <int PROBS>
static __device__ __forceinline__ item_rows rows_of(const ce_product &a, const gemm16_work &w, int first)
{
    item_rows t = {};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = first + 8 * h;

        t.live[h] = r < w.m;
        t.row[h] = (int)a.c.begin + min(r, w.m - 1);
        t.target[h] = a.c.p.label[t.row[h]];
        if (PROBS)
            t.exponent[h] = a.c.exponent[t.row[h]];
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

/* -inf beyond the last column. */
template <int N> static __device__ __forceinline__ void clip_columns(const gemm16_work &w, int first_col, float *acc)
{
    const int col = first_col + 2 * (threadIdx.x % 4);

    if (first_col + N > w.n)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[4 * j + i] = col + 8 * j + i % 2 < w.n ? acc[4 * j + i] : -CUDART_INF_F;
}

/* u to z in place, -inf beyond the last column. */
template <int EXTRA>
static __device__ __forceinline__ void to_logits(const ce_product &a, const gemm16_work &w, gemm16_memory *s, int group,
                                                 int first_col, float *acc)
{
    const ce_params &p = a.c.p;

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
    clip_columns<G16_N>(w, first_col, acc);
}

/* acc[4 (at / 8) + 2 half + at % 8] of a thread's row: a tree of selects, 16 at a time to save registers. */
template <int N> static __device__ __forceinline__ float pick(const float *acc, int half, int at)
{
    const int index = at / 8 * 2 + at % 2;
    float picked = 0.0f;

#pragma unroll
    for (int g = 0; g < N / 4; g += 16) {
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
template <int N>
static __device__ __forceinline__ void put_target(const ce_product &a, const item_rows &t, int first_col,
                                                  const float *acc)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int in_tile = t.target[h] - first_col, at = in_tile - 2 * (int)(threadIdx.x % 4);

        if (t.live[h] && t.target[h] >= 0 && in_tile >= 0 && in_tile < N && at >= 0 && at % 8 < 2)
            a.c.p.target_z[t.row[h]] = pick<N>(acc, h, at);
    }
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

static __device__ __forceinline__ float base_of(float high)
{
    return high == -CUDART_INF_F ? 0.0f : high * CE_LOG2E;
}

/* This thread's logits of a row to its maximum and sum. */
template <int N> static __device__ __forceinline__ void add_logits(item_sums *t, int h, const float *acc)
{
    const float before = t->high[h], old = t->sum[h];
    float high[2] = {before, -CUDART_INF_F}, sum[2] = {0.0f, 0.0f}, base;

#pragma unroll
    for (int j = 0; j < N / 8; j++)
        high[j % 2] = fmaxf(high[j % 2], fmaxf(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]));
    t->high[h] = fmaxf(high[0], high[1]);
    base = base_of(t->high[h]);
    if (old != 0.0f)
        sum[0] = old * ptx_ex2(base_of(before) - base);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        sum[0] += ptx_ex2(__fmaf_rn(acc[4 * j + 2 * h], CE_LOG2E, -base));
        sum[1] += ptx_ex2(__fmaf_rn(acc[4 * j + 2 * h + 1], CE_LOG2E, -base));
    }
    t->sum[h] = sum[0] + sum[1];
}

/* After an item: maximum and sum of its rows. first: this thread's. */
static __device__ __forceinline__ void put_stats(const ce_product &a, const gemm16_work &w, const item_sums &t,
                                                 int first, int part)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float high = t.high[h], sum = t.sum[h];

        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        if (sum != 0.0f)
            sum *= ptx_ex2(base_of(t.high[h]) - base_of(high));
        sum = quad_sum(sum);
        if (first + 8 * h < w.m && threadIdx.x % 4 == 0)
            *part_of(a, (int)a.c.begin + first + 8 * h, part) = {high, sum};
    }
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

/* Adds a tile's sums of a row, whose maximum is `best` of class `at`, to the item's part. */
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
                                                      int group, const item_rows &t, int part, int h, int first_col,
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
        merge_part(p, (int64_t)t.row[h] * p.splits + part, best, more.argmax, sum, more);
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

/* 64 x N logits to P^T, half of the classes at a time through a panel in shared memory, and the sums of E. s: for
 * EXTRA. */
template <int BF16, int EXTRA, int N>
static __device__ __forceinline__ void put_probs(const ce_product &a, const gemm16_work &w, gemm16_memory *s,
                                                 uint32_t panel, int group, item_rows *t, int first_col,
                                                 const float *acc)
{
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const int chunk = 2 * warp + (lane / 8) % 2, offset = lane / 16 * 8 + lane % 8;
    float exponent[2];
    float2 mix[2] = {{1.0f, 0.0f}, {1.0f, 0.0f}};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        exponent[h] = t->live[h] ? t->exponent[h] : CUDART_INF_F; /* rows that are not there: P is 0 */
        if (EXTRA && a.mixed)
            mix[h] = t->live[h] ? a.c.mix[t->row[h]] : make_float2(0.0f, 0.0f);
    }
    if (EXTRA)
        share_columns(a, w, s, group, first_col, true);
#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint32_t word[N / 8];

#pragma unroll
        for (int i = 0; i < N / 8; i++) { /* columns 8 (i / 2) .. of this half, row half i % 2 */
            const int at = q * (N / 4) + 4 * (i / 2) + 2 * (i % 2);
            const float2 weight = EXTRA ? shared_columns(s, group, at / 4) : make_float2(1.0f, 1.0f);
            float e0, e1, v0, v1;

            v0 = prob_of<EXTRA>(a, acc[at], exponent[i % 2], mix[i % 2], weight.x, &e0);
            v1 = prob_of<EXTRA>(a, acc[at + 1], exponent[i % 2], mix[i % 2], weight.y, &e1);
            t->sum[i % 2] += e0 + e1;
            word[i] = BF16 ? ptx_bf16x2(v1, v0) : ptx_f16x2(v1, v0);
        }
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            asm volatile("" : "+r"(word[i])); /* all of them before anybody waits */
        __syncwarp();                         /* the barriers are aligned ones, and so is the store */
        ptx_barrier_sync(FREE + group, STORE_THREADS);
#pragma unroll
        for (int i = 0; i < N / 8; i += 4) {
            const int row = 4 * i + offset;

            ptx_store_transposed(panel + row * 128 + ((chunk ^ (row & 7)) * 16), word[i], word[i + 1], word[i + 2],
                                 word[i + 3]);
        }
        ptx_fence_async();
        __syncwarp();
        ptx_barrier_arrive(FILLED + group, STORE_THREADS);
    }
}

/* By the warp that sends them to P^T, so that the warpgroup does not wait: such a panel, of 64 rows from `row` on. */
static __device__ __forceinline__ void send_panel(const ce_product &a, const gemm16_work &w, uint32_t panel, int group,
                                                  int row, int class_)
{
    const ce_probs &q = a.c.probs;
    const bool more = row >= q.more_at, tail = row >= q.tail_at, rest = !tail && class_ >= q.split;

    __syncwarp();
    ptx_barrier_arrive(FREE + group, STORE_THREADS);
    ptx_barrier_sync(FILLED + group, STORE_THREADS);
    if (threadIdx.x % 32)
        return;
    if (class_ < w.n)
        ptx_tma_store_2d(&a.store[more   ? 3
                                  : tail ? 2
                                         : rest],
                         row - (more   ? q.more_at
                                : tail ? q.tail_at
                                       : 0),
                         class_ - (rest ? q.split : 0), panel);
    ptx_tma_commit();
    ptx_tma_wait_read();
}

/* After an item: the sums of E. */
static __device__ __forceinline__ void put_sums(const ce_product &a, const item_rows &t, int part)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float sum = quad_sum(t.sum[h]);

        if (t.live[h] && threadIdx.x % 4 == 0)
            part_of(a, t.row[h], part)->sum = sum;
    }
}

#endif

#endif
