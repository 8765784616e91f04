/* gemm_fp8_stream.cuh: the device side of gemm_fp8_stream_sm90.cu, which says how it works: what the host hands over,
 * the rings, the two loading warps, the multiplying warpgroups and how they finish a slice. */
#ifndef RIDGE_GEMM_FP8_STREAM_CUH
#define RIDGE_GEMM_FP8_STREAM_CUH

#include <stddef.h>

#include "host.cuh"
#include "num.cuh"
#include "wgmma_narrow.cuh"

enum { ROWS = 64, BK = 128, GROUPS = 2, SPLIT_MOST = 8, QUAD = 4 /* blocks: k is split at multiples of these */ };
enum {
    CONSUMERS = 128 * GROUPS,
    THREADS = CONSUMERS + 64,
    SLICES = 2 /* of a warpgroup and pass */,
    SLOTS = GROUPS * SLICES,
    W_MOST = 12 /* stages of a warpgroup */
};
enum { HALF = 115712 /* bytes of shared memory that leave room for a second CTA */, FULL = 232448, PLACE = 1024 };
enum { SCALE_LAST = 0, SCALE_BLOCK };

/* Blocks of a stage at most, 4 or 2 of them: one instruction loads a slice's rows of all, as issuing one takes 100 to
 * 150 ns. */
enum { CHUNK_MOST = 4 };
/* Blocks that a warpgroup multiplies at a time; while they are under way it adds up those before. */
#define TOGETHER(n) ((n) >= 32 ? 1 : 2)
/* Blocks of the tokens' ring at most. A box of tokens arrives behind the weights that were asked for before it, so this
 * ring must reach as far along k as the weights', and a stage more. */
#define X_MOST(n) ((n) == 64 ? 16 : 40)

typedef struct stream_args {
    CUtensorMap w, x, tokens_scales;
    const float *scale_x, *scale_w;
    int64_t ld_x, ld_w; /* of the scale tables; 0: one scale for the tensor */
    char *out;
    const void *bias;
    int64_t stride;                        /* of D, elements */
    int m, n, blocks, slices, high, shift; /* k is split in 1 << shift */
    int chunk;                             /* blocks of a stage: 4 or 2 */
    int x_stages, w_stages;
    int boxes, sums, bytes; /* of shared memory: where the ring of weights and the partial sums begin, all */
    int box;                /* bytes of a slice's rows of one block */
    int lines;              /* the maps have lines of 128 bytes as their third dimension: whole stages an instruction */
    int scales_box;         /* bytes of a stage of the tokens' scales by block, which TMA brings; 0: it can not */
    int dtype, accumulate, bias_f32, settled;
    /* gemm_fp8_stream_tokens.cuh: */
    int rows;                         /* of a box of tokens, a multiple of 8 */
    int most, begins[SPLIT_MOST + 1]; /* rank r finishes units of 8 rows begins[r] to begins[r + 1] of a slice */
    int whole; /* four neighbours of D can be stored at a time: 16 bits, aligned, nothing added */
} stream_args;

/* The fixed part of shared memory; the rings of tokens and of weights and the sums come after it. */
template <int N> struct stream_memory {
    alignas(128) float scale_x[X_MOST(N)][N];
    float scale_w[X_MOST(N)][SLOTS][2]; /* by block: stage * chunk + block of the stage */
    uint64_t w_full[GROUPS * W_MOST], w_empty[GROUPS * W_MOST], x_full[X_MOST(N) / 2], x_empty[X_MOST(N) / 2];
    uint64_t sums_full[SLOTS], sums_free[SLOTS];
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

static __device__ __forceinline__ void stream_advance(stream_ring *r, uint32_t stages)
{
    if (++r->stage == stages) {
        r->stage = 0;
        r->phase ^= 1;
    }
}

/* What a CTA does: slices [first, last), blocks of k [begin, end). */
typedef struct stream_share {
    int rank, first, last, begin, end;
} stream_share;

static __device__ __forceinline__ stream_share stream_locate(const stream_args &p)
{
    const int cluster = (int)blockIdx.x >> p.shift, clusters = (int)gridDim.x >> p.shift;
    const int64_t quads = (p.blocks + QUAD - 1) / QUAD;
    stream_share a;

    a.rank = (int)blockIdx.x & ((1 << p.shift) - 1);
    a.first = (int)((int64_t)cluster * p.slices / clusters);
    a.last = (int)((int64_t)(cluster + 1) * p.slices / clusters);
    a.begin = (int)(a.rank * quads >> p.shift) * QUAD;
    a.end = min((int)((a.rank + 1) * quads >> p.shift) * QUAD, p.blocks);
    return a;
}

/* One thread: the stages of weights, pass by pass: the first slice's, then the second's, ... A warpgroup has a ring of
 * its own: stages may be filled out of order, and one that does not wait for the other's could take an older phase of a
 * common barrier for the one it wants. */
template <int N> static __device__ void stream_load_weights(const stream_args &p, stream_memory<N> *s, stream_share a)
{
    const uint64_t policy = ptx_policy_evict_first();
    const uint32_t w = ptx_shared(s) + (uint32_t)p.boxes, full = ptx_shared(s->w_full), empty = ptx_shared(s->w_empty);
    const uint32_t bytes = (uint32_t)(p.box * p.chunk), stages = (uint32_t)p.w_stages;
    stream_ring even = {0, 0}, odd = {0, 0};
    bool hold = !p.settled; /* until the grid before has ended */

    for (int slice = a.first; slice < a.last; slice += SLOTS) {
        const int count = min((int)SLOTS, a.last - slice);

        for (int kb = a.begin; kb < a.end; kb += p.chunk)
            for (int g = 0; g < count; g++) {
                stream_ring r = g % 2 ? odd : even;
                const uint32_t stage = (g % 2 ? stages : 0) + r.stage, to = w + stage * bytes;
                const int row = (slice + g) * p.high;

                ptx_mbarrier_wait(empty + 8 * stage, r.phase ^ 1);
                ptx_mbarrier_expect(full + 8 * stage, bytes);
                if (hold) /* here: the instructions that load are there when it ends */
                    ptx_grid_wait();
                hold = false;
                if (p.lines)
                    ptx_tma_load_3d_policy(to, &p.w, 0, row, kb, full + 8 * stage, policy);
                else
                    for (int i = 0; i < p.chunk; i++)
                        ptx_tma_load_2d_policy(to + (uint32_t)(i * p.box), &p.w, (kb + i) * BK, row, full + 8 * stage,
                                               policy);
                stream_advance(&r, stages);
                if (g % 2)
                    odd = r;
                else
                    even = r;
            }
    }
}

/* The scales by block of a stage's tokens that TMA can not bring. Those of tokens that are not there stay rubbish. */
template <int N> static __device__ __forceinline__ void stream_load_scales(const stream_args &p, uint32_t to, int kb)
{
    for (int t = threadIdx.x % 32; t < p.chunk * N; t += 32)
        if (t % N < p.m)
            ptx_copy_async4(to + 4 * (uint32_t)t, p.scale_x + min(kb + t / N, p.blocks - 1) * p.ld_x + t % N);
}

/* One warp: the tokens and, by block, the scales: a slice may lie in two blocks of 128 rows. The tokens' scales that
 * do not depend on k come with the first stage, behind its tokens. */
template <int N, int MODE>
static __device__ void stream_load_tokens(const stream_args &p, stream_memory<N> *s, stream_share a)
{
    const int lane = threadIdx.x % 32, slot = lane % (2 * SLOTS);
    const uint32_t box = (uint32_t)((N == 64 ? p.rows : N) * BK);
    const uint32_t scales_box = MODE == SCALE_BLOCK ? (uint32_t)p.scales_box : 0;
    stream_ring r = {0, 0};
    bool hold = true; /* until the grid before has ended */

    for (int slice = a.first; slice < a.last; slice += SLOTS) {
        const int row = min((slice + slot / 2) * p.high + (slot & 1) * (p.high - 1), p.n - 1);

        for (int kb = a.begin; kb < a.end; kb += p.chunk) {
            const uint32_t full = ptx_shared(&s->x_full[r.stage]),
                           to = ptx_shared(s) + FIXED(N) + r.stage * (uint32_t)p.chunk * box;

            ptx_mbarrier_wait(ptx_shared(&s->x_empty[r.stage]), r.phase ^ 1);
            __syncwarp(); /* a lane that fell behind by two phases would wait for ever */
            if (lane == 0)
                ptx_mbarrier_expect(full, (uint32_t)p.chunk * box + scales_box);
            if (hold)
                ptx_grid_wait();
            if (lane == 0) {
                if (p.lines)
                    ptx_tma_load_3d(to, &p.x, 0, 0, kb, full);
                else
                    for (int i = 0; i < p.chunk; i++)
                        ptx_tma_load_2d(to + (uint32_t)i * box, &p.x, (kb + i) * BK, 0, full);
                if (MODE == SCALE_BLOCK && scales_box)
                    ptx_tma_load_2d(ptx_shared(s->scale_x[r.stage * p.chunk]), &p.tokens_scales, 0, kb, full);
            }
            if (MODE == SCALE_LAST && hold)
                for (int t = lane; t < N; t += 32)
                    ptx_copy_async4(ptx_shared(&s->scale_x[0][t]), p.scale_x + (p.ld_x ? min(t, p.m - 1) : 0));
            hold = false;
            if (MODE == SCALE_BLOCK) {
                if (!scales_box)
                    stream_load_scales<N>(p, ptx_shared(s->scale_x[r.stage * p.chunk]), kb);
                if (lane < p.chunk * SLOTS * 2)
                    ptx_copy_async4(ptx_shared(&s->scale_w[r.stage * p.chunk][0][0]) + 4 * (uint32_t)lane,
                                    p.scale_w + row / 128 * p.ld_w + min(kb + lane / (2 * SLOTS), p.blocks - 1));
            }
            ptx_copy_async_arrive(full);
            stream_advance(&r, (uint32_t)p.x_stages);
        }
    }
}

/* Of a slice's units of 8 rows, rank r of the cluster finishes r, r + split, ...: these are `own` of at most `most`. */
typedef struct stream_units {
    int all, own, most;
} stream_units;

static __device__ __forceinline__ stream_units stream_count(const stream_args &p, int rank)
{
    const int split = 1 << p.shift;
    stream_units u;

    u.all = p.high / 8;
    u.own = (u.all + split - 1 - rank) >> p.shift;
    u.most = (u.all + split - 1) >> p.shift;
    return u;
}

/* Where thread `lane`'s N / 4 sums of one of `most` units of a slot lie, from the `from`th of the others. */
template <int N>
static __device__ __forceinline__ uint32_t stream_place(const stream_args &p, int slot, int from, int unit, int most,
                                                        int lane)
{
    return (uint32_t)(p.sums + ((slot * ((1 << p.shift) - 1) + from) * most + unit) * 8 * N * 4 +
                      lane * (N == 8 ? 8 : 16));
}

/* A finished slice: sends the units that others finish. */
template <int N>
static __device__ __forceinline__ void stream_send(const stream_args &p, stream_memory<N> *s, int rank, int slot,
                                                   uint32_t turn, const float *fin)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, split = 1 << p.shift;
    const stream_units units = stream_count(p, rank);

    /* All have read the previous slice's, so its phase of sums_full is over and the next may be announced. */
    ptx_mbarrier_wait(ptx_shared(&s->sums_free[slot]), (turn & 1) ^ 1);
    if (threadIdx.x % 128 == 0)
        ptx_mbarrier_expect(ptx_shared(&s->sums_full[slot]), (uint32_t)((split - 1) * units.own * 8 * N * 4));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int unit = 2 * warp + half, to = unit & (split - 1), from = rank < to ? rank : rank - 1;
        const uint32_t full = ptx_map(ptx_shared(&s->sums_full[slot]), (uint32_t)to);
        const uint32_t at =
            ptx_map(ptx_shared(s) + stream_place<N>(p, slot, from, unit >> p.shift, units.most, lane), (uint32_t)to);

        if (to == rank || unit >= units.all)
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
static __device__ __forceinline__ void stream_sum(const stream_args &p, const stream_memory<N> *s, int rank, int slot,
                                                  int unit, int most, float *fin)
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < (N + 15) / 16; j++) {
        float *own = fin + 8 * j, v[4] = {};

        for (int from = 0; from < 1 << p.shift; from++) {
            const uint8_t *at = (const uint8_t *)s +
                                stream_place<N>(p, slot, from < rank ? from : from - 1, unit, most, lane) + 512 * j;
            float x[4] = {};

            if (from == rank) {
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

/* Scales (TENSOR and ROW), bias, D: the row `row` of weights, this thread's N / 4 tokens, the first half of fin. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void stream_store(const stream_args &p, const stream_memory<N> *s, int row,
                                                    float scale, const float *fin)
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
            x *= s->scale_x[0][token] * scale;
        if (p.bias)
            x += bias;
        if (token < p.m)
            num_store<DTYPE>(p.out, at, p.accumulate ? x + num_load<DTYPE>(p.out, at) : x);
        token += i % 2 ? 7 : 1;
        at += (i % 2 ? 7 : 1) * p.stride;
    }
}

/* The units of a slice that are this warp's own: the others' partial sums are added, the results stored. */
template <int N, int MODE>
static __device__ __forceinline__ void stream_finish(const stream_args &p, stream_memory<N> *s, const stream_share &a,
                                                     int slice, int slot, uint32_t turn, const float *scale, float *fin)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, split = 1 << p.shift;
    const stream_units units = stream_count(p, a.rank);

#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int unit = 2 * warp + half, row = slice * p.high + unit * 8 + lane / 4;

        if (half) /* one copy of the code below does both */
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                fin[i / 2 * 4 + i % 2] = fin[i / 2 * 4 + 2 + i % 2];
        if ((unit & (split - 1)) != a.rank || unit >= units.all)
            continue;
        if (split > 1) {
            ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), turn & 1);
            stream_sum<N>(p, s, a.rank, slot, unit >> p.shift, units.most, fin);
            __syncwarp();                               /* the warp has read the sums */
            if (lane < split && slice + SLOTS < a.last) /* somebody will send again */
                ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
        }
        if (row < p.n && p.dtype == RIDGE_BF16)
            stream_store<N, MODE, RIDGE_BF16>(p, s, row, scale[half], fin);
        else if (row < p.n && p.dtype == RIDGE_F16)
            stream_store<N, MODE, RIDGE_F16>(p, s, row, scale[half], fin);
        else if (row < p.n)
            stream_store<N, MODE, RIDGE_F32>(p, s, row, scale[half], fin);
    }
    __syncwarp(); /* lanes without rows or tokens are back before what wants whole warps */
}

/* What the sums of a block are multiplied by, in the order of fin. scale_w: of a slot; bit h of which: the scale of the
 * rows of half h. */
template <int N>
static __device__ __forceinline__ void stream_factors(const float *scale_x, const float *scale_w, uint32_t which,
                                                      float *factor)
{
    const float upper = scale_w[which & 1], lower = scale_w[which >> 1];

#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 v = *(const float2 *)(scale_x + 8 * j + threadIdx.x % 4 * 2);

        factor[4 * j] = v.x * upper;
        factor[4 * j + 1] = v.y * upper;
        factor[4 * j + 2] = v.x * lower;
        factor[4 * j + 3] = v.y * lower;
    }
}

/* fin = fma(factor, acc, fin), or fin + acc. */
template <int N, int MODE>
static __device__ __forceinline__ void stream_promote(const float *factor, float *acc, float *fin)
{
    wgmma_pin<N / 2>(acc); /* no use before the wait */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        fin[i] = MODE == SCALE_BLOCK ? __fmaf_rn(factor[i], acc[i], fin[i]) : fin[i] + acc[i];
}

/* The matrix instructions of T blocks into acc, as a group of their own. w, x: addresses of their first boxes. */
template <int N, int FORMATS, int T>
static __device__ __forceinline__ void stream_issue(uint32_t w, uint32_t x, uint32_t box, float (*acc)[N / 2])
{
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < T; t++) {
        const uint64_t dw = wgmma_descriptor(w + t * box), dx = wgmma_descriptor(x + t * (N * BK));

#pragma unroll
        for (int k = 0; k < BK / 32; k++)
            wgmma_fp8_narrow<N, FORMATS>(acc[t], dw + 2 * k, dx + 2 * k, k > 0);
    }
    wgmma_commit();
}

/* What a warpgroup knows of the rings: where they begin, where it is. */
typedef struct stream_reader {
    uint32_t base, boxes, box, full, empty, stages, x_stages; /* boxes, full and empty: of its own ring */
    uint32_t x_box;
    int group;
    stream_ring w, x;
} stream_reader;

/* C blocks of a slice, a whole stage: T blocks' matrix instructions are under way while those before are added up. What
 * these are multiplied by is there before the wait. */
template <int N, int MODE, int FORMATS, int C>
static __device__ __forceinline__ void stream_whole(const stream_memory<N> *s, const stream_reader *r, int slot,
                                                    uint32_t which, float *fin)
{
    enum { T = TOGETHER(N), ALL = C / T };
    const uint32_t first = r->x.stage * C, x = r->base + FIXED(N) + first * (N * BK),
                   w = r->boxes + r->w.stage * C * r->box;
    float acc[2][T][N / 2], factor[T][N / 2];

#pragma unroll
    for (int u = 0; u <= ALL; u++) {
        const uint32_t done = first + (u - 1) * T;

        if (u < ALL)
            stream_issue<N, FORMATS, T>(w + u * T * r->box, x + u * T * (N * BK), r->box, acc[u % 2]);
        if (u == 0)
            continue;
        if (MODE == SCALE_BLOCK)
#pragma unroll
            for (int t = 0; t < T; t++)
                stream_factors<N>(s->scale_x[done + t], s->scale_w[done + t][slot], which, factor[t]);
        if (u < ALL)
            wgmma_wait_before();
        else
            wgmma_wait();
#pragma unroll
        for (int t = 0; t < T; t++)
            stream_promote<N, MODE>(factor[t], acc[(u - 1) % 2][t], fin);
    }
}

/* Less than a whole stage at the end of k: block by block. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void stream_rest(const stream_memory<N> *s, const stream_reader *r, int chunk,
                                                   int length, int slot, uint32_t which, float *fin)
{
    const uint32_t first = r->x.stage * chunk, x = r->base + FIXED(N) + first * (N * BK),
                   w = r->boxes + r->w.stage * chunk * r->box;
    float acc[1][N / 2], factor[N / 2];

#pragma unroll 1
    for (int j = 0; j < length; j++) {
        stream_issue<N, FORMATS, 1>(w + j * r->box, x + j * (N * BK), r->box, acc);
        if (MODE == SCALE_BLOCK)
            stream_factors<N>(s->scale_x[first + j], s->scale_w[first + j][slot], which, factor);
        wgmma_wait();
        stream_promote<N, MODE>(factor, acc[0], fin);
    }
}

/* Waits for a reader's stage of weights, and hands it back. */
static __device__ __forceinline__ void stream_open(const stream_reader *r)
{
    ptx_mbarrier_wait(r->full + 8 * r->w.stage, r->w.phase);
    __syncwarp();
}

static __device__ __forceinline__ void stream_close(stream_reader *r)
{
    __syncwarp(); /* the warp has read the stage */
    if (threadIdx.x % 32 == 0)
        ptx_mbarrier_arrive(r->empty + 8 * r->w.stage);
    stream_advance(&r->w, r->stages);
}

/* A stage of weights of a slice. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void stream_stage(const stream_memory<N> *s, stream_reader *r, int chunk, int length,
                                                    int slot, uint32_t which, float *fin)
{
    stream_open(r);
    if (length < chunk)
        stream_rest<N, MODE, FORMATS>(s, r, chunk, length, slot, which, fin);
    else if (chunk == CHUNK_MOST)
        stream_whole<N, MODE, FORMATS, CHUNK_MOST>(s, r, slot, which, fin);
    else
        stream_whole<N, MODE, FORMATS, CHUNK_MOST / 2>(s, r, slot, which, fin);
    stream_close(r);
}

/* What a thread needs of a slice: which scale by block its two rows have, or their scales. */
template <int MODE>
static __device__ __forceinline__ uint32_t stream_rows(const stream_args &p, int slice, float *scale)
{
    const int first = slice * p.high, row = first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;

    if (MODE == SCALE_BLOCK)
        return (uint32_t)(min(row / 128 - first / 128, 1) | min((row + 8) / 128 - first / 128, 1) << 1);
    scale[0] = p.scale_w[p.ld_w ? min(row, p.n - 1) : 0];
    scale[1] = p.scale_w[p.ld_w ? min(row + 8, p.n - 1) : 0];
    return 0;
}

/* All k of this CTA for `own` slices, 0 to SLICES. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void stream_pass(const stream_args &p, const stream_memory<N> *s,
                                                   const stream_share &a, stream_reader *r, int own,
                                                   const uint32_t *which, float (*fin)[N / 2])
{
    for (int kb = a.begin; kb < a.end; kb += p.chunk) {
        const int length = min(p.chunk, a.end - kb);

        ptx_mbarrier_wait(r->base + PLACE_OF(N, x_full) + 8 * r->x.stage, r->x.phase);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SLICES; i++)
            if (i < own)
                stream_stage<N, MODE, FORMATS>(s, r, p.chunk, length, GROUPS * i + r->group, which[i], fin[i]);
        __syncwarp(); /* the warp has read the tokens' scales */
        if (threadIdx.x % 32 == 0)
            ptx_mbarrier_arrive(r->base + PLACE_OF(N, x_empty) + 8 * r->x.stage);
        stream_advance(&r->x, r->x_stages);
    }
}

template <int N>
static __device__ __forceinline__ stream_reader stream_begin(const stream_args &p, const stream_memory<N> *s, int group)
{
    const uint32_t base = stream_base(s), before = (uint32_t)(group * p.w_stages);

    return {base,
            base + (uint32_t)p.boxes + before * (uint32_t)(p.box * p.chunk),
            (uint32_t)p.box,
            base + PLACE_OF(N, w_full) + 8 * before,
            base + PLACE_OF(N, w_empty) + 8 * before,
            (uint32_t)p.w_stages,
            (uint32_t)p.x_stages,
            (uint32_t)(p.rows * BK),
            group,
            {0, 0},
            {0, 0}};
}

/* One warpgroup: the slices group, group + 2 of every pass. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void stream_multiply(const stream_args &p, stream_memory<N> *s, const stream_share &a,
                                                       int group)
{
    stream_reader r = stream_begin<N>(p, s, group);
    uint32_t turn = 0;

    for (int slice = a.first; slice < a.last; slice += SLOTS, turn++) {
        const int count = min((int)SLOTS, a.last - slice), own = (count + 1 - group) / 2;
        float fin[SLICES][N / 2], scale[SLICES][2];
        uint32_t which[SLICES];

#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            which[i] = stream_rows<MODE>(p, slice + GROUPS * i + group, scale[i]);
#pragma unroll
            for (int j = 0; j < N / 2; j++)
                fin[i][j] = 0.0f;
        }
        stream_pass<N, MODE, FORMATS>(p, s, a, &r, own, which, fin);
        if (p.shift)
#pragma unroll
            for (int i = 0; i < SLICES; i++)
                if (i < own)
                    stream_send<N>(p, s, a.rank, GROUPS * i + group, turn, fin[i]);
#pragma unroll
        for (int i = 0; i < SLICES; i++)
            if (i < own)
                stream_finish<N, MODE>(p, s, a, slice + GROUPS * i + group, GROUPS * i + group, turn, scale[i], fin[i]);
    }
}

template <int N> static __device__ void stream_prepare(const stream_args &p, stream_memory<N> *s)
{
    for (int i = 0; i < GROUPS * p.w_stages; i++) {
        ptx_mbarrier_init(ptx_shared(&s->w_full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->w_empty[i]), 4);
    }
    for (int i = 0; i < p.x_stages; i++) {
        ptx_mbarrier_init(ptx_shared(&s->x_full[i]), 33);
        ptx_mbarrier_init(ptx_shared(&s->x_empty[i]), 4 * GROUPS);
    }
    for (int i = 0; i < SLOTS; i++) {
        ptx_mbarrier_init(ptx_shared(&s->sums_full[i]), 1);
        ptx_mbarrier_init(ptx_shared(&s->sums_free[i]), N == 64 ? 4u << p.shift : (uint32_t)p.high / 8);
    }
    ptx_mbarrier_fence_init();
}

#endif

#endif
