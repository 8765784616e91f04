/* logits_epilogue_sm90.cuh: what the kernels of the product x W^T share (logits_coop_sm90.cu, logits_pingpong_sm90.cu):
 * their work tiles, their producer, and the functions of their epilogues. N: columns of a tile where both kernels call
 * a function, else G16_COOP_N.
 *
 * Thread t of a consumer has, of 64 rows, row 16 (t / 32) + (t % 32) / 4 and the row 8 below it, in columns
 * 8 j + 2 (t % 4) and the next one: acc[4 j], acc[4 j + 1] of the first row, acc[4 j + 2], acc[4 j + 3] of the second.
 */
#ifndef RIDGE_LINEAR_CE_LOGITS_SM90_CUH
#define RIDGE_LINEAR_CE_LOGITS_SM90_CUH

#include "linear_sm90.cuh"

/* Named barriers beside those of cuda/sm90/gemm_bf16.cuh, each + consumer. CONSUMER: its 128 threads. FULL and EMPTY: a
 * panel of P^T in shared memory has been filled by the consumer, has been read by TMA (the store warp arrives). */
enum { BARRIER_CONSUMER = 3, BARRIER_FULL = 5, BARRIER_EMPTY = 7, STORE_THREADS = 128 + 32 };

/* The work tiles of a launch. One is a pair of row tiles by one or more adjacent column tiles, which a cluster computes
 * one after another. A row's sums over it are one part of the row's sum, kept in registers; or, in the pingpong kernel
 * of CE_STATS, two parts: each consumer's over every second tile. Wide work tiles come first, single tiles last, so
 * that all clusters end together. Neither the parts nor the order of the sums in one depend on which cluster computes
 * it. */
typedef struct logits_plan {
    gemm16_plan tiles;
    raster wide, single;
    int tile_cols, parts; /* of a wide work tile: its tiles, its parts */
    int single_cols;      /* tiles of a single one: more than one where both have `parts` */
    int count;            /* work tiles */
    int first_m;          /* added to rows of A */
    int compact;          /* A is the compact x */
} logits_plan;

/* Of a thread's two rows, over the tiles of a work tile: of its own columns the maximum, the sum, and for the entropy
 * sum 2^t t, t = (z - max) log2 e. */
typedef struct row_sums {
    float max[2], sum[2], spread[2];
} row_sums;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Tiles `first`, `first` + `step`, ... in the order of gemm16_tile. */
typedef struct logits_tile {
    int first, step, count, part;
} logits_tile;

/* A thread's two rows of a work tile: the listed row, whether the chunk has it, its target, for CE_PROBS k_r, and the
 * sum of E over the thread's own columns. Where there are registers enough, they are loaded before the main loop and
 * used after it, which hides the latency. */
typedef struct row_state {
    int row[2], target[2];
    bool live[2];
    float exponent[2], sum[2];
} row_state;

static __device__ __forceinline__ ce_part *part_of(const ce_logits_args &a, int row, int part)
{
    return &a.c.p.part[(int64_t)row * a.c.p.parts + part];
}

/* sample: every token, whether it is listed or not; split-K, and every tile is a work tile. parts: of a work tile. */
static __device__ __forceinline__ logits_plan logits_plan_of(const ce_logits_args &a, bool sample, int block_n,
                                                             int parts)
{
    const int m = sample ? (int)a.c.rows : ce_skips(a.c) ? 0 : ce_chunk_rows(a.c);
    logits_plan g = {};

    g.tiles = gemm16_plan_of(m, a.n, a.k, G16_BLOCK_M, block_n, a.bundle, a.splits);
    g.compact = a.c.x_compact && a.c.p.totals->rows != a.c.p.tokens;
    g.first_m = g.compact ? 0 : (int)a.c.begin;
    g.count = g.tiles.count;
    if (sample)
        return g;
    const raster &r = g.tiles.tiles;

    g.tile_cols = a.tile_cols;
    g.parts = parts;
    g.wide = gemm16_raster(r.tiles_m, a.wide, a.bundle);
    g.single_cols = a.single_cols;
    g.single = gemm16_raster(r.tiles_m, (max(r.tiles_n - a.wide * a.tile_cols, 0) + a.single_cols - 1) / a.single_cols,
                             a.bundle);
    g.count = r.tiles_m * (g.wide.tiles_n + g.single.tiles_n);
    return g;
}

static __device__ __forceinline__ logits_tile logits_tile_of(const logits_plan &g, int index)
{
    const raster &r = g.tiles.tiles;
    const int wide = r.tiles_m * g.wide.tiles_n;
    int pair, part, column, count, in_bundle;

    if (index < wide) {
        gemm16_tile(g.wide, index, &pair, &part);
        column = part * g.tile_cols;
        part *= g.parts;
        count = min(g.tile_cols, r.tiles_n - column);
    } else {
        gemm16_tile(g.single, index - wide, &pair, &part);
        column = g.wide.tiles_n * g.tile_cols + part * g.single_cols;
        part = g.wide.tiles_n * g.parts + part * (g.single_cols > 1 ? g.parts : 1);
        count = min(g.single_cols, r.tiles_n - column);
    }
    const uint32_t by_rows = r.by_rows;

    __builtin_assume(by_rows != 0);
    const int bundle = scheduler_divide(pair, r.bundle, by_rows, &in_bundle);
    const int step = min(r.tiles_m - bundle * r.bundle, r.bundle);

    return {bundle * r.bundle * r.tiles_n + column * step + in_bundle, step, count, part};
}

/* The producer. Each cluster begins with the work tile of its own number; the first CTA's producer draws the next
 * ticket while it loads the last tile of a work tile, and broadcasts it. The last ticket of the launch resets the
 * counter. */
template <int MN_B, class SMEM> static __device__ __forceinline__ void produce(const ce_logits_args &a, SMEM *s)
{
    const logits_plan &g = s->plan;
    unsigned long long *counter = &a.c.p.totals->queue;
    const int clusters = (int)gridDim.x / G16_CLUSTER;
    queue_state queue = queue_begin(&s->queue);
    uint32_t n = 0;

    for (int i = (int)blockIdx.x / G16_CLUSTER; i < g.count;) {
        const logits_tile work = logits_tile_of(g, i);
        const bool leads = ptx_cluster_rank() == 0;
        int ticket = 0;

        for (int k = 0; k < work.count; k++)
            gemm16_produce_tile<0, MN_B>(a.x[g.compact], a.w, g.tiles, g.first_m, &s->product,
                                         work.first + k * work.step, &n, leads && k + 1 == work.count ? counter : NULL,
                                         &ticket);
        if (!leads) {
            i = queue_next_producer(&queue);
            continue;
        }
        i = clusters + ticket;
        if (ticket == g.count - 1)
            *counter = 0;
        queue_broadcast<G16_CLUSTER>(&s->queue, &queue, i);
    }
}

template <int PROBS>
static __device__ __forceinline__ row_state rows_of(const ce_logits_args &a, const gemm16_plan &w, int first)
{
    row_state t = {};

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

/* Bias, or class weight, of the tile's columns to shared memory: an address for each column would spill registers. */
static __device__ __forceinline__ void columns_to_shared(const ce_logits_args &a, const gemm16_plan &w, gemm16_coop *s,
                                                         int consumer, int first_col, bool weights)
{
    const ce_params &p = a.c.p;

    ptx_barrier_sync(BARRIER_CONSUMER + consumer, 128); /* orders the reads of the values before these writes */
    for (int i = threadIdx.x % 128; i < G16_COOP_N; i += 128) {
        const int c = first_col + i;

        if (weights)
            s->column[consumer][i] = p.class_weight && c < w.n ? p.class_weight[p.offset + c] : 1.0f;
        else
            s->column[consumer][i] = c < w.n ? ce_bias(p, c) : 0.0f;
    }
    ptx_barrier_sync(BARRIER_CONSUMER + consumer, 128); /* orders these writes before the reads of the other threads */
}

static __device__ __forceinline__ float2 column_pair(const gemm16_coop *s, int consumer, int j)
{
    return *(const float2 *)&s->column[consumer][8 * j + 2 * (threadIdx.x % 4)];
}

/* -inf in columns beyond the last one. */
template <int N> static __device__ __forceinline__ void mask_columns(const gemm16_plan &w, int first_col, float *acc)
{
    const int col = first_col + 2 * (threadIdx.x % 4);

    if (first_col + N > w.n)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[4 * j + i] = col + 8 * j + i % 2 < w.n ? acc[4 * j + i] : -CUDART_INF_F;
}

/* A loop over groups of 16 of a thread's logits, 32 columns of its two rows: v[4 j + 2 h + i] is of row h, column 8 j +
 * i of the group. The epilogues with options are such loops: unrolled over all 128 logits their code had 230 to 350 KB,
 * more than the instruction caches, and a tile took 2.2 to 2.7 times as long. */
enum { GROUP = 16, GROUP_COLUMNS = 32, GROUPS = G16_COOP_N / GROUP_COLUMNS };

static __device__ __forceinline__ void take_group(const float *acc, int group, float *v)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (g == group)
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                v[i] = acc[GROUP * g + i];
}

static __device__ __forceinline__ void put_group(float *acc, int group, const float *v)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (g == group)
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                acc[GROUP * g + i] = v[i];
}

/* u to z in place, -inf in columns beyond the last one. */
template <int OPTIONS>
static __device__ __forceinline__ void to_logits(const ce_logits_args &a, const gemm16_plan &w, gemm16_coop *s,
                                                 int consumer, int first_col, float *acc)
{
    const ce_params &p = a.c.p;

    if (OPTIONS) {
        const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;

        if (p.bias) {
            columns_to_shared(a, w, s, consumer, first_col, false);
#pragma unroll
            for (int j = 0; j < G16_COOP_N / 8; j++) {
                const float2 bias = column_pair(s, consumer, j);

                acc[4 * j] += bias.x;
                acc[4 * j + 1] += bias.y;
                acc[4 * j + 2] += bias.x;
                acc[4 * j + 3] += bias.y;
            }
        }
        if (p.softcap > 0.0f)
#pragma unroll 1
            for (int g = 0; g < GROUPS; g++) {
                float v[GROUP];

                take_group(acc, g, v);
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    v[i] = p.softcap * ridge_tanh(v[i] * cap_inverse);
                put_group(acc, g, v);
            }
#pragma unroll
        for (int i = 0; i < G16_COOP_N / 2; i++)
            acc[i] *= cool;
    }
    mask_columns<G16_COOP_N>(w, first_col, acc);
}

/* acc[4 (at / 8) + 2 half + at % 8] of a thread's row: a tree of selects over 16 at a time, to save registers. */
template <int N> static __device__ __forceinline__ float select_column(const float *acc, int half, int at)
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

/* The target's logit, by the one thread that has it. */
template <int N>
static __device__ __forceinline__ void store_target_logit(const ce_logits_args &a, const row_state &t, int first_col,
                                                          const float *acc)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int in_tile = t.target[h] - first_col, at = in_tile - 2 * (int)(threadIdx.x % 4);

        if (t.live[h] && t.target[h] >= 0 && in_tile >= 0 && in_tile < N && at >= 0 && at % 8 < 2)
            a.c.p.target_z[t.row[h]] = select_column<N>(acc, h, at);
    }
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

static __device__ __forceinline__ float log2_base(float high)
{
    return high == -CUDART_INF_F ? 0.0f : high * CE_LOG2E;
}

/* Adds a thread's logits of a row, the largest of which is `largest`, to its maximum and sum. */
template <int N, int SPREAD>
static __device__ __forceinline__ void add_logits(row_sums *t, int h, float largest, const float *acc)
{
    const float before = t->max[h], old = t->sum[h];
    float spread = 0.0f, sum[2] = {0.0f, 0.0f}, base;

    t->max[h] = fmaxf(before, largest);
    base = log2_base(t->max[h]);
    if (old != 0.0f)
        sum[0] = old * ptx_ex2(log2_base(before) - base);
    if (SPREAD && old != 0.0f) {
        const float gap = log2_base(before) - base;

        spread = ptx_ex2(gap) * __fmaf_rn(fmaxf(gap, -512.0f), old, t->spread[h]);
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float t0 = __fmaf_rn(acc[4 * j + 2 * h], CE_LOG2E, -base);
        const float t1 = __fmaf_rn(acc[4 * j + 2 * h + 1], CE_LOG2E, -base);
        const float e0 = ptx_ex2(t0), e1 = ptx_ex2(t1);

        sum[0] += e0;
        sum[1] += e1;
        if (SPREAD) { /* 2^t is 0 from -150 on; of a NaN it is NaN */
            spread = __fmaf_rn(e0, fmaxf(t0, -512.0f), spread);
            spread = __fmaf_rn(e1, fmaxf(t1, -512.0f), spread);
        }
    }
    t->sum[h] = sum[0] + sum[1];
    if (SPREAD)
        t->spread[h] = spread;
}

template <int N, int SPREAD> static __device__ __forceinline__ void add_logits(row_sums *t, int h, const float *acc)
{
    float high[2] = {-CUDART_INF_F, -CUDART_INF_F};

#pragma unroll
    for (int j = 0; j < N / 8; j++)
        high[j % 2] = fmaxf(high[j % 2], fmaxf(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]));
    add_logits<N, SPREAD>(t, h, fmaxf(high[0], high[1]), acc);
}

/* After a work tile: the maximum and sum of its rows. first: this thread's first row. */
template <int SPREAD>
static __device__ __forceinline__ void store_part(const ce_logits_args &a, const gemm16_plan &w, const row_sums &t,
                                                  int first, int part)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float high = t.max[h], sum = t.sum[h], spread = SPREAD ? t.spread[h] : 0.0f;

        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        if (SPREAD && sum != 0.0f) {
            const float gap = log2_base(t.max[h]) - log2_base(high);

            spread = ptx_ex2(gap) * __fmaf_rn(fmaxf(gap, -512.0f), sum, spread);
        }
        if (sum != 0.0f)
            sum *= ptx_ex2(log2_base(t.max[h]) - log2_base(high));
        sum = quad_sum(sum);
        if (SPREAD)
            spread = quad_sum(spread);
        if (first + 8 * h < w.m && threadIdx.x % 4 == 0) {
            *part_of(a, (int)a.c.begin + first + 8 * h, part) = {high, sum};
            if (SPREAD)
                a.c.p.more[((int64_t)a.c.begin + first + 8 * h) * a.c.p.parts + part] = {spread / CE_LOG2E, 0.0f, 0.0f,
                                                                                         INT32_MAX};
        }
    }
}

/* Argmax: of equal logits the first, NaN counts as largest. */
static __device__ __forceinline__ void argmax_update(float *best, int *at, float v, int c)
{
    const bool nan = *best != *best;

    if (v != v ? !nan || c < *at : !nan && (v > *best || (v == *best && c < *at))) {
        *best = v;
        *at = c;
    }
}

/* Merges a tile's sums of a row, whose maximum is `best` at class `at`, into a part of the row's sum. */
static __device__ __forceinline__ void merge_part(const ce_params &p, int64_t slot, float best, int at, float sum,
                                                  ce_more more)
{
    const ce_part old = p.part[slot];
    const ce_more had = p.full ? p.more[slot] : ce_more{0.0f, 0.0f, 0.0f, INT32_MAX};
    float top = best, scale = 1.0f, scale_old = 0.0f, gap = 0.0f, gap_old = 0.0f;
    int first = at;

    argmax_update(&top, &first, old.max, had.argmax);
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

/* Every statistic of a thread's rows over the tile: maximum, argmax, sum, and the sums for entropy and label smoothing.
 */
static __device__ __forceinline__ void add_stats_options(const ce_logits_args &a, const gemm16_plan &w,
                                                         const gemm16_coop *s, int consumer, const row_state &t,
                                                         int part, int first_col, const float *acc)
{
    const ce_params &p = a.c.p;
    const int col = first_col + 2 * (threadIdx.x % 4), left = w.n - col;
    float best[2] = {-CUDART_INF_F, -CUDART_INF_F}, base[2], sum[2] = {0.0f, 0.0f}, v[GROUP];
    ce_more more[2] = {{0.0f, 0.0f, 0.0f, INT32_MAX}, {0.0f, 0.0f, 0.0f, INT32_MAX}};

#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        take_group(acc, g, v);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const int at = g * GROUP_COLUMNS + i / 4 * 8 + i % 2, h = i / 2 % 2;

            if (at < left)
                argmax_update(&best[h], &more[h].argmax, v[i], col + at);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
            argmax_update(&best[h], &more[h].argmax, __shfl_xor_sync(~0u, best[h], step),
                          __shfl_xor_sync(~0u, more[h].argmax, step));
        base[h] = best[h] == -CUDART_INF_F ? 0.0f : best[h];
    }
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        take_group(acc, g, v);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const int at = g * GROUP_COLUMNS + i / 4 * 8 + i % 2, h = i / 2 % 2;
            const float d = v[i] - base[h], e = ptx_ex2(d * CE_LOG2E);
            const float2 weight = column_pair(s, consumer, at / 8);

            sum[h] += e;
            more[h].spread += e > 0.0f ? e * d : 0.0f;
            if (at < left) {
                more[h].z += v[i];
                more[h].wz += (i % 2 ? weight.y : weight.x) * v[i];
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = quad_sum(sum[h]);
        more[h].spread = quad_sum(more[h].spread);
        more[h].z = quad_sum(more[h].z);
        more[h].wz = quad_sum(more[h].wz);
        if (t.live[h] && threadIdx.x % 4 == 0)
            merge_part(p, (int64_t)t.row[h] * p.parts + part, best[h], more[h].argmax, sum[h], more[h]);
    }
}

/* What P is made of beside E: PROB_OPTIONS: alpha, sigma and dz/du; PROB_BEND: alpha and beta. */
enum { PROB_OPTIONS = 1, PROB_BEND = 2 };

/* One element of P from its logit; *e receives E. */
template <int WITH>
static __device__ __forceinline__ float prob_of(const ce_logits_args &a, float z, float exponent, float2 mix,
                                                float bend, float weight, float *e)
{
    const ce_params &p = a.c.p;
    const float t = __fmaf_rn(z, CE_LOG2E, -exponent);
    float v = ptx_ex2(t);

    *e = v;
    if (WITH & PROB_BEND) { /* E is 0 from 2^-150 on; of a NaN it is NaN */
        mix.x = __fmaf_rn(bend, fmaxf(t, -512.0f), mix.x);
        if (!(WITH & PROB_OPTIONS))
            v *= mix.x;
    }
    if (WITH & PROB_OPTIONS)
        v = __fmaf_rn(v, mix.x, -weight * mix.y) *
            ce_slope(p, z, p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, 1.0f / p.temperature);
    return v;
}

/* 64 x N logits to P^T, half of the classes at a time through a panel in shared memory, and the sums of E. s: the
 * columns' values, for PROB_OPTIONS. */
template <int BF16, int WITH, int N>
static __device__ __forceinline__ void probs_to_shared(const ce_logits_args &a, const gemm16_plan &w, gemm16_coop *s,
                                                       uint32_t panel, int consumer, row_state *t, int first_col,
                                                       const float *acc)
{
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const int chunk = 2 * warp + (lane / 8) % 2, offset = lane / 16 * 8 + lane % 8;
    float exponent[2];
    float2 mix[2] = {{1.0f, 0.0f}, {1.0f, 0.0f}};
    float bend[2] = {0.0f, 0.0f};

#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (WITH & PROB_BEND) { /* the last one is for rows beyond the last one; to select it later would spill */
            const float4 *r = a.c.bend + (t->live[h] ? t->row[h] : (int)a.c.p.tokens);

            exponent[h] = r->x;
            bend[h] = r->y;
            mix[h].x = r->z;
            mix[h].y = WITH & PROB_OPTIONS ? r->w : 0.0f;
            continue;
        }
        exponent[h] = t->live[h] ? t->exponent[h] : CUDART_INF_F; /* rows beyond the last one: P is 0 */
        if (WITH && a.mixed)
            mix[h] = t->live[h] ? a.c.mix[t->row[h]] : make_float2(0.0f, 0.0f);
    }
    if (WITH & PROB_OPTIONS)
        columns_to_shared(a, w, s, consumer, first_col, true);
#pragma unroll
    for (int q = 0; q < 2; q++) {
        uint32_t word[N / 8];

#pragma unroll
        for (int i = 0; i < N / 8; i++) { /* columns from 8 (i / 2) on of this half, row i % 2 */
            const int at = q * (N / 4) + 4 * (i / 2) + 2 * (i % 2);
            const float2 weight = WITH & PROB_OPTIONS ? column_pair(s, consumer, at / 4) : make_float2(1.0f, 1.0f);
            float e0, e1, v0, v1;

            v0 = prob_of<WITH>(a, acc[at], exponent[i % 2], mix[i % 2], bend[i % 2], weight.x, &e0);
            v1 = prob_of<WITH>(a, acc[at + 1], exponent[i % 2], mix[i % 2], bend[i % 2], weight.y, &e1);
            if (!(WITH & PROB_BEND)) /* its lse is known */
                t->sum[i % 2] += e0 + e1;
            word[i] = BF16 ? ptx_bf16x2(v1, v0) : ptx_f16x2(v1, v0);
        }
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            asm volatile("" : "+r"(word[i])); /* computes all of them before the wait */
        __syncwarp();                         /* named barriers and stmatrix are .aligned */
        ptx_barrier_sync(BARRIER_EMPTY + consumer, STORE_THREADS);
#pragma unroll
        for (int i = 0; i < N / 8; i += 4) {
            const int row = 4 * i + offset;

            ptx_store_transposed(panel + row * 128 + ((chunk ^ (row & 7)) * 16), word[i], word[i + 1], word[i + 2],
                                 word[i + 3]);
        }
        ptx_fence_async();
        __syncwarp();
        ptx_barrier_arrive(BARRIER_FULL + consumer, STORE_THREADS);
    }
}

/* The store warp, so that the consumer does not wait for TMA: a panel of 64 rows from `row` on. BARRIER_EMPTY orders
 * TMA's reads of the previous panel before the consumer's writes, BARRIER_FULL these before TMA's reads. */
static __device__ __forceinline__ void store_panel(const ce_logits_args &a, const gemm16_plan &w, uint32_t panel,
                                                   int consumer, int row, int class_)
{
    const ce_segment to = ce_segment_of(a.c.probs, class_, row);

    __syncwarp();
    ptx_barrier_arrive(BARRIER_EMPTY + consumer, STORE_THREADS);
    ptx_barrier_sync(BARRIER_FULL + consumer, STORE_THREADS);
    if (threadIdx.x % 32)
        return;
    if (class_ < w.n)
        ptx_tma_store_2d(&a.store[to.index], to.r, to.v, panel);
    ptx_tma_commit();
    ptx_tma_wait_read();
}

/* After a work tile: the sums of E. */
static __device__ __forceinline__ void store_sums(const ce_logits_args &a, const row_state &t, int part)
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
