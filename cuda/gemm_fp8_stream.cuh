/* gemm_fp8_stream.cuh: the device side of gemm_fp8_stream_sm90.cu, which says how it works: what the host hands over,
 * the rings, the two loading warps, the multiplying warpgroups and how they finish a slice. */
#ifndef RIDGE_GEMM_FP8_STREAM_CUH
#define RIDGE_GEMM_FP8_STREAM_CUH

#include <stddef.h>

#include "host.cuh"
#include "num.cuh"
#include "wgmma_narrow.cuh"

enum { ROWS = 64, BK = 128, GROUPS = 2, SPLIT_MOST = 8 };
enum {
    CONSUMERS = 128 * GROUPS,
    THREADS = CONSUMERS + 64,
    UNITS = 8 /* of 8 rows in a slice */,
    W_MOST = 16 /* a warpgroup */
};
enum { HALF = 115712 /* bytes of shared memory that leave room for a second CTA */, FULL = 232448, PLACE = 1024 };
enum { SCALE_LAST = 0, SCALE_BLOCK };

/* Boxes along k that are loaded before the next slice's: rows of memory are read that many times 128 bytes at a time.
 * The tokens of as many blocks must stay. */
#define CHUNK(n) ((n) == 64 ? 2 : 4)
/* Blocks that a warpgroup multiplies before it waits. */
#define TOGETHER(n) ((n) == 8 ? 4 : 2)
/* Stages of the tokens' ring at most. A box of tokens arrives behind the weights that were asked for before it, so this
 * ring must reach as far along k as the weights', and CHUNK more. */
#define X_MOST(n) ((n) == 64 ? 10 : (n) == 32 ? 14 : (n) == 16 ? 20 : 24)
/* Slices of a warpgroup and pass: as many as the registers allow. */
#define SLICES(n) ((n) == 64 ? 1 : 2)

typedef struct stream_args {
    CUtensorMap w, x;
    const float *scale_x, *scale_w;
    int64_t ld_x, ld_w; /* of the scale tables; 0: one scale for the tensor */
    char *out;
    const void *bias;
    int64_t stride; /* of D, elements */
    int m, n, blocks, slices, high, split;
    int x_stages, w_stages;
    int boxes, sums; /* where in shared memory they begin: the ring of weights, partial sums */
    int box;         /* bytes of a box */
    int dtype, accumulate, bias_f32, settled;
} stream_args;

/* The fixed part of shared memory; the rings of tokens (N x 128 bytes a stage) and of weights (8 KB) and the sums come
 * after it. */
template <int N> struct stream_memory {
    float scale_x[X_MOST(N)][N], scale_w[X_MOST(N)][GROUPS * SLICES(N)][2];
    uint64_t w_full[GROUPS * W_MOST], w_empty[GROUPS * W_MOST], x_full[X_MOST(N)], x_empty[X_MOST(N)];
    uint64_t sums_full[GROUPS], sums_free[GROUPS];
};

#define FIXED(n) (((int)sizeof(stream_memory<n>) + PLACE - 1) / PLACE * PLACE)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The address of shared memory, computed once: in a cluster each __cvta_generic_to_shared reads a special register. */
static __device__ __forceinline__ uint32_t stream_base(const void *shared)
{
    uint32_t base = ptx_shared(shared);

    asm volatile("" : "+r"(base));
    return base;
}

#define PLACE_OF(n, member) (uint32_t) offsetof(stream_memory<n>, member)

/* A place in a ring. */
typedef struct stream_ring {
    uint32_t stage, phase;
} stream_ring;

static __device__ __forceinline__ void stream_advance(stream_ring *r, uint32_t by, uint32_t stages)
{
    r->stage += by;
    if (r->stage >= stages) {
        r->stage -= stages;
        r->phase ^= 1;
    }
}

/* What a CTA does: slices [first, last), blocks of k [begin, end). */
typedef struct stream_share {
    int rank, first, last, begin, end;
} stream_share;

static __device__ __forceinline__ stream_share stream_locate(const stream_args &p)
{
    const int cluster = (int)blockIdx.x / p.split, clusters = (int)gridDim.x / p.split;
    stream_share a;

    a.rank = (int)blockIdx.x % p.split;
    a.first = (int)((int64_t)cluster * p.slices / clusters);
    a.last = (int)((int64_t)(cluster + 1) * p.slices / clusters);
    a.begin = (int)((int64_t)a.rank * p.blocks / p.split);
    a.end = (int)((int64_t)(a.rank + 1) * p.blocks / p.split);
    return a;
}

/* One thread: the boxes of weights, pass by pass: CHUNK boxes along k of the first slice, then of the second, ... A
 * warpgroup has a ring of its own: boxes may arrive out of order, and one that does not wait for the other's could take
 * an older phase of a common barrier for the one it wants. */
template <int N> static __device__ void stream_load_weights(const stream_args &p, stream_memory<N> *s, stream_share a)
{
    const uint64_t policy = ptx_policy_evict_first();
    const uint32_t w = ptx_shared(s) + (uint32_t)p.boxes, full = ptx_shared(s->w_full), empty = ptx_shared(s->w_empty);
    const uint32_t bytes = (uint32_t)p.box, stages = (uint32_t)p.w_stages;
    stream_ring even = {0, 0}, odd = {0, 0};

    for (int slice = a.first; slice < a.last; slice += GROUPS * SLICES(N)) {
        const int count = min(GROUPS * SLICES(N), a.last - slice);

        for (int kb = a.begin; kb < a.end; kb += CHUNK(N))
            for (int g = 0; g < count; g++) {
                const uint32_t first = g % 2 ? stages : 0;
                stream_ring r = g % 2 ? odd : even;

                for (int k = kb; k < min(kb + CHUNK(N), a.end); k++) {
                    const uint32_t stage = first + r.stage;

                    ptx_mbarrier_wait(empty + 8 * stage, r.phase ^ 1);
                    ptx_mbarrier_expect(full + 8 * stage, bytes);
                    ptx_tma_load_2d_policy(w + stage * bytes, &p.w, k * BK, (slice + g) * p.high, full + 8 * stage,
                                           policy);
                    stream_advance(&r, 1, stages);
                }
                if (g % 2)
                    odd = r;
                else
                    even = r;
            }
    }
}

/* One warp: the tokens' boxes and, by block, the scales: a slice may lie in two blocks of 128 rows. */
template <int N, int MODE>
static __device__ void stream_load_tokens(const stream_args &p, stream_memory<N> *s, stream_share a)
{
    const int lane = threadIdx.x % 32;
    stream_ring r = {0, 0};

    for (int slice = a.first; slice < a.last; slice += GROUPS * SLICES(N)) {
        const int row = min((slice + lane / 2) * p.high + (lane & 1) * (p.high - 1), p.n - 1);

        for (int kb = a.begin; kb < a.end; kb++) {
            const uint32_t full = ptx_shared(&s->x_full[r.stage]);

            ptx_mbarrier_wait(ptx_shared(&s->x_empty[r.stage]), r.phase ^ 1);
            __syncwarp(); /* a lane that fell behind by two phases would wait for ever */
            if (lane == 0) {
                ptx_mbarrier_expect(full, N * BK);
                ptx_tma_load_2d(ptx_shared(s) + FIXED(N) + r.stage * (N * BK), &p.x, kb * BK, 0, full);
            }
            if (MODE == SCALE_BLOCK) {
                for (int t = lane; t < N; t += 32)
                    ptx_copy_async4(ptx_shared(&s->scale_x[r.stage][t]), p.scale_x + kb * p.ld_x + min(t, p.m - 1));
                if (lane < GROUPS * SLICES(N) * 2)
                    ptx_copy_async4(ptx_shared(&s->scale_w[r.stage][0][0]) + 4 * lane,
                                    p.scale_w + row / 128 * p.ld_w + kb);
                ptx_copy_async_arrive(full);
            }
            stream_advance(&r, 1, (uint32_t)p.x_stages);
        }
    }
}

/* Where thread `lane`'s N / 4 sums of a unit from sender `from` lie among a warpgroup's sums (floats). */
template <int N> static __device__ __forceinline__ int stream_place(int from, int unit, int units, int lane)
{
    return (from * units + unit) * 8 * N + lane * (N == 8 ? 2 : 4);
}

/* Sums of a warpgroup, bytes from the beginning of shared memory. */
template <int N> static __device__ __forceinline__ int stream_sums(const stream_args &p, int group)
{
    return p.sums + group * (p.split - 1) * (UNITS / p.split) * 8 * N * 4;
}

/* Sends the units that others finish. */
template <int N>
static __device__ __forceinline__ void stream_send(const stream_args &p, stream_memory<N> *s, const stream_share &a,
                                                   int group, const float *fin)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, units = UNITS / p.split;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int unit = 2 * warp + half, to = unit / units, from = a.rank < to ? a.rank : a.rank - 1;
        const uint32_t full = ptx_map(ptx_shared(&s->sums_full[group]), (uint32_t)to);
        const uint32_t at =
            ptx_map(ptx_shared(s) + stream_sums<N>(p, group) + 4 * stream_place<N>(from, unit % units, units, lane),
                    (uint32_t)to);

        if (to == a.rank)
            continue;
        if (N == 8)
            ptx_store_async2(at, fin[2 * half], fin[2 * half + 1], full);
        else
#pragma unroll
            for (int j = 0; j < N / 16; j++)
                ptx_store_async4(at + 512 * j, fin[8 * j + 2 * half], fin[8 * j + 2 * half + 1],
                                 fin[8 * j + 4 + 2 * half], fin[8 * j + 5 + 2 * half], full);
    }
}

/* The first half of fin becomes the sum of all partial sums of `unit`, in ascending k. */
template <int N>
static __device__ __forceinline__ void stream_sum(const stream_args &p, const stream_memory<N> *s,
                                                  const stream_share &a, int group, int unit, float *fin)
{
    const int lane = threadIdx.x % 32, units = UNITS / p.split;
    const float *sums = (const float *)((const uint8_t *)s + stream_sums<N>(p, group));

#pragma unroll
    for (int j = 0; j < (N + 15) / 16; j++) {
        float *own = fin + 8 * j, v[4] = {};

        for (int from = 0; from < p.split; from++) {
            const float *at = sums + stream_place<N>(from < a.rank ? from : from - 1, unit, units, lane) + 128 * j;
            float x[4] = {};

            if (from == a.rank) {
                x[0] = own[0], x[1] = own[1];
                if (N > 8)
                    x[2] = own[4], x[3] = own[5];
            } else if (N == 8) {
                *(float2 *)x = *(const float2 *)at;
            } else {
                *(float4 *)x = *(const float4 *)at;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = from ? v[i] + x[i] : x[i];
        }
        own[0] = v[0], own[1] = v[1];
        if (N > 8)
            own[4] = v[2], own[5] = v[3];
    }
}

/* The scales of this thread's N / 4 tokens (TENSOR and ROW), all loads at once. */
template <int N> static __device__ __forceinline__ void stream_factors(const stream_args &p, float *factor)
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        factor[i] = p.scale_x[p.ld_x ? min(i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2, p.m - 1) : 0];
}

/* Scales (TENSOR and ROW), bias, D: the row `row` of weights, this thread's N / 4 tokens, the first half of fin. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void stream_store(const stream_args &p, int row, float scale, const float *factor,
                                                    const float *fin)
{
    int token = threadIdx.x % 4 * 2;
    int64_t at = token * p.stride + row;
    float bias = 0;

    if (p.bias)
        bias = p.bias_f32 ? ((const float *)p.bias)[row] : num_load<DTYPE>(p.bias, row);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float x = fin[i / 2 * 4 + i % 2];

        if (MODE == SCALE_LAST)
            x *= factor[i] * scale;
        if (p.bias)
            x += bias;
        if (token < p.m)
            num_store<DTYPE>(p.out, at, p.accumulate ? x + num_load<DTYPE>(p.out, at) : x);
        token += i % 2 ? 7 : 1;
        at += (i % 2 ? 7 : 1) * p.stride;
    }
}

/* A finished slice: partial sums to those who finish them, then the units that are this warp's own. */
template <int N, int MODE>
static __device__ __forceinline__ void stream_finish(const stream_args &p, stream_memory<N> *s, const stream_share &a,
                                                     int group, int slice, uint32_t turn, const float *factor,
                                                     float *fin)
{
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, units = UNITS / p.split;

    if (p.split > 1) {
        /* All have read the previous slice's, so its phase of sums_full is over and the next may be announced. */
        ptx_mbarrier_wait(ptx_shared(&s->sums_free[group]), (turn & 1) ^ 1);
        if (thread == 0)
            ptx_mbarrier_expect(ptx_shared(&s->sums_full[group]), (uint32_t)((p.split - 1) * units * 8 * N * 4));
        stream_send<N>(p, s, a, group, fin);
    }
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int unit = 2 * warp + half, local = unit * 8 + lane / 4, row = slice * p.high + local;
        const bool real = local < p.high && row < p.n;
        float scale = 0;

        if (half) /* one copy of the code below does both */
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                fin[i / 2 * 4 + i % 2] = fin[i / 2 * 4 + 2 + i % 2];
        if (unit / units != a.rank)
            continue;
        if (MODE == SCALE_LAST)
            scale = p.scale_w[p.ld_w ? min(row, p.n - 1) : 0];
        if (p.split > 1)
            ptx_mbarrier_wait(ptx_shared(&s->sums_full[group]), turn & 1);
        stream_sum<N>(p, s, a, group, unit % units, fin);
        __syncwarp();                                                 /* the warp has read the sums */
        if (p.split > 1 && lane < p.split && slice + GROUPS < a.last) /* somebody will send again */
            ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[group]), (uint32_t)lane));
        if (real && p.dtype == RIDGE_BF16)
            stream_store<N, MODE, RIDGE_BF16>(p, row, scale, factor, fin);
        else if (real && p.dtype == RIDGE_F16)
            stream_store<N, MODE, RIDGE_F16>(p, row, scale, factor, fin);
        else if (real)
            stream_store<N, MODE, RIDGE_F32>(p, row, scale, factor, fin);
    }
    __syncwarp(); /* lanes without rows or tokens are back before what wants whole warps */
}

/* fin = fma(scale, acc, fin), or fin + acc. Bit h of which: the scale of the rows of half h. */
template <int N, int MODE>
static __device__ __forceinline__ void stream_promote(const stream_memory<N> *s, uint32_t stage, int slot,
                                                      uint32_t which, const float *acc, float *fin)
{
    if (MODE == SCALE_BLOCK) {
        const float upper = s->scale_w[stage][slot][which & 1], lower = s->scale_w[stage][slot][which >> 1];

#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float2 v = *(const float2 *)&s->scale_x[stage][8 * j + threadIdx.x % 4 * 2];

            fin[4 * j] = __fmaf_rn(v.x * upper, acc[4 * j], fin[4 * j]);
            fin[4 * j + 1] = __fmaf_rn(v.y * upper, acc[4 * j + 1], fin[4 * j + 1]);
            fin[4 * j + 2] = __fmaf_rn(v.x * lower, acc[4 * j + 2], fin[4 * j + 2]);
            fin[4 * j + 3] = __fmaf_rn(v.y * lower, acc[4 * j + 3], fin[4 * j + 3]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            fin[i] += acc[i];
    }
}

/* What a warpgroup knows of the rings: where they begin, where it is. */
typedef struct stream_reader {
    uint32_t base, boxes, box, full, empty, stages, x_stages; /* boxes, full and empty: of its own ring */
    stream_ring w, x;
} stream_reader;

/* T boxes of a slice and the tokens of their blocks: all their matrix instructions, one wait, then into fin. The tokens
 * are given back by the warpgroup's last slice. */
template <int N, int MODE, int FORMATS, int T>
static __device__ __forceinline__ void stream_blocks(const stream_memory<N> *s, stream_reader *r, bool last, int slot,
                                                     uint32_t which, float *fin)
{
    uint32_t box[T], stage[T];
    float acc[T][N / 2];

#pragma unroll
    for (int t = 0; t < T; t++) {
        box[t] = r->w.stage;
        stage[t] = r->x.stage;
        ptx_mbarrier_wait(r->base + PLACE_OF(N, x_full) + 8 * stage[t], r->x.phase);
        ptx_mbarrier_wait(r->full + 8 * box[t], r->w.phase);
        stream_advance(&r->w, 1, r->stages);
        stream_advance(&r->x, 1, r->x_stages);
    }
    __syncwarp();
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < T; t++) {
        const uint64_t w = wgmma_descriptor(r->boxes + box[t] * r->box);
        const uint64_t x = wgmma_descriptor(r->base + FIXED(N) + stage[t] * (N * BK));

#pragma unroll
        for (int k = 0; k < BK / 32; k++)
            wgmma_fp8_narrow<N, FORMATS>(acc[t], w + 2 * k, x + 2 * k, k > 0);
    }
    wgmma_commit();
    wgmma_wait();
#pragma unroll
    for (int t = 0; t < T; t++)
        stream_promote<N, MODE>(s, stage[t], slot, which, acc[t], fin);
    __syncwarp(); /* the warp has read the stages */
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int t = 0; t < T; t++) {
            ptx_mbarrier_arrive(r->empty + 8 * box[t]);
            if (last)
                ptx_mbarrier_arrive(r->base + PLACE_OF(N, x_empty) + 8 * stage[t]);
        }
}

/* A warpgroup without a slice in this pass gives the tokens back. */
template <int N> static __device__ __forceinline__ void stream_skip(stream_reader *r, int length)
{
    for (int j = 0; j < length; j++) {
        ptx_mbarrier_wait(r->base + PLACE_OF(N, x_full) + 8 * r->x.stage, r->x.phase);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            ptx_mbarrier_arrive(r->base + PLACE_OF(N, x_empty) + 8 * r->x.stage);
        stream_advance(&r->x, 1, r->x_stages);
    }
}

/* One warpgroup: the slices group, group + 2 of every pass. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void stream_multiply(const stream_args &p, stream_memory<N> *s, const stream_share &a,
                                                       int group)
{
    const uint32_t base = stream_base(s), before = (uint32_t)(group * p.w_stages);
    stream_reader r = {base,
                       base + (uint32_t)p.boxes + before * (uint32_t)p.box,
                       (uint32_t)p.box,
                       base + PLACE_OF(N, w_full) + 8 * before,
                       base + PLACE_OF(N, w_empty) + 8 * before,
                       (uint32_t)p.w_stages,
                       (uint32_t)p.x_stages,
                       {0, 0},
                       {0, 0}};
    uint32_t turn = 0;
    float factor[N / 4];

    if (MODE == SCALE_LAST)
        stream_factors<N>(p, factor);
    for (int slice = a.first; slice < a.last; slice += GROUPS * SLICES(N)) {
        const int count = min(GROUPS * SLICES(N), a.last - slice), own = (count + 1 - group) / 2;
        float fin[SLICES(N)][N / 2];
        uint32_t which[SLICES(N)];

#pragma unroll
        for (int i = 0; i < SLICES(N); i++) {
            const int first = (slice + GROUPS * i + group) * p.high,
                      row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;

            which[i] = (uint32_t)(min((first + row) / 128 - first / 128, 1) |
                                  min((first + row + 8) / 128 - first / 128, 1) << 1);
#pragma unroll
            for (int j = 0; j < N / 2; j++)
                fin[i][j] = 0.0f;
        }
        for (int kb = a.begin; kb < a.end; kb += CHUNK(N)) {
            const int length = min(CHUNK(N), a.end - kb);
            const stream_ring x = r.x;

#pragma unroll
            for (int i = 0; i < SLICES(N); i++) {
                const int slot = GROUPS * i + group;
                int j = 0;

                if (i < own) {
                    r.x = x;
#pragma unroll 1
                    for (; j + TOGETHER(N) <= length; j += TOGETHER(N))
                        stream_blocks<N, MODE, FORMATS, TOGETHER(N)>(s, &r, i + 1 == own, slot, which[i], fin[i]);
#pragma unroll 1
                    for (; j < length; j++)
                        stream_blocks<N, MODE, FORMATS, 1>(s, &r, i + 1 == own, slot, which[i], fin[i]);
                }
            }
            if (own == 0)
                stream_skip<N>(&r, length);
        }
#pragma unroll
        for (int i = 0; i < SLICES(N); i++)
            if (i < own)
                stream_finish<N, MODE>(p, s, a, group, slice + GROUPS * i + group, turn++, factor, fin[i]);
    }
}

template <int N, int MODE> static __device__ void stream_prepare(const stream_args &p, stream_memory<N> *s)
{
    for (int i = 0; i < GROUPS * p.w_stages; i++) {
        ptx_mbarrier_init(ptx_shared(&s->w_full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->w_empty[i]), 4);
    }
    for (int i = 0; i < p.x_stages; i++) {
        ptx_mbarrier_init(ptx_shared(&s->x_full[i]), MODE == SCALE_LAST ? 1 : 33);
        ptx_mbarrier_init(ptx_shared(&s->x_empty[i]), 4 * GROUPS);
    }
    for (int g = 0; g < GROUPS; g++) {
        ptx_mbarrier_init(ptx_shared(&s->sums_full[g]), 1);
        ptx_mbarrier_init(ptx_shared(&s->sums_free[g]), UNITS);
    }
    ptx_mbarrier_fence_init();
}

#endif

#endif
