/* decode_swap_ab_sm90.cuh: the multiplying warpgroups of decode_sm90.cu for few tokens, the columns of the
 * matrix instruction, and how they finish a slice. */
#ifndef RIDGE_GEMM_FP8_STREAM_CUH
#define RIDGE_GEMM_FP8_STREAM_CUH

#include "decode_load_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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

/* This warp of its warpgroup, the same for all lanes as the compiler sees it: branches on it keep warps whole, without
 * which descriptors would be made lane by lane. */
static __device__ __forceinline__ int stream_warp(void)
{
    return __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0);
}

/* A finished slice: sends the units that others finish. */
template <int N>
static __device__ __forceinline__ void stream_send(const stream_args &p, stream_memory<N> *s, int rank, int slot,
                                                   uint32_t turn, const float *fin)
{
    const int warp = stream_warp(), lane = threadIdx.x % 32, split = 1 << p.shift;
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

static __device__ __forceinline__ float stream_bias(const stream_args &p, int row)
{
    if (!p.bias)
        return 0.0f;
    return p.bias_f32              ? ((const float *)p.bias)[row]
           : p.dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(p.bias, row)
                                   : num_load<RIDGE_F16>(p.bias, row);
}

/* Scales (TENSOR and ROW), bias, D: the row `row` of weights, this thread's N / 4 tokens, the first half of fin. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void stream_store(const stream_args &p, const stream_memory<N> *s, int row,
                                                    float scale, const float *fin)
{
    int token = threadIdx.x % 4 * 2;
    int64_t at = token * p.stride + row;
    const float bias = stream_bias(p, row);

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

/* Both units of a warp, 16 rows of weights, k not split: 32 bytes of D a token, 8 a lane. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void stream_store_whole(const stream_args &p, const stream_memory<N> *s, int slice,
                                                          const float *scale, const float *fin)
{
    const int lane = threadIdx.x % 32, first = slice * p.high + threadIdx.x / 32 % 4 * 16, row = first + lane / 4;
    const int unit = threadIdx.x / 32 % 4 * 2 + lane % 4 / 2, from = lane & ~3 | lane % 2 * 2;
    const float bias[2] = {stream_bias(p, min(row, p.n - 1)), stream_bias(p, min(row + 8, p.n - 1))};
    uint16_t *to = (uint16_t *)p.out + (int64_t)(lane / 4) * p.stride + first + lane % 4 * 4;

#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float v[8] = {};
        uint4 words;
        uint2 upper, lower;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = fin[4 * j + i];
            if (MODE == SCALE_LAST)
                v[i] *= s->scale_x[0][8 * j + lane % 4 * 2 + i % 2] * scale[i / 2];
            if (p.bias)
                v[i] += bias[i / 2];
        }
        words = num_pack<DTYPE>(v);
        words.x = ptx_transpose(words.x); /* a token's two rows of weights instead of a row's two tokens */
        words.y = ptx_transpose(words.y);
        upper = make_uint2(__shfl_sync(~0u, words.x, from), __shfl_sync(~0u, words.x, from + 1));
        lower = make_uint2(__shfl_sync(~0u, words.y, from), __shfl_sync(~0u, words.y, from + 1));
        if (8 * j + lane / 4 < p.m && unit < p.high / 8 && first + lane % 4 * 4 < p.n)
            *(uint2 *)(to + (int64_t)(8 * j) * p.stride) = lane % 4 < 2 ? upper : lower;
    }
}

/* One unit, the first half of fin: 16 bytes of D a token, 4 a lane. first: its first row. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void stream_store_unit(const stream_args &p, const stream_memory<N> *s, int first,
                                                         float scale, const float *fin)
{
    const int lane = threadIdx.x % 32;
    const float bias = stream_bias(p, min(first + lane / 4, p.n - 1));
    uint16_t *to = (uint16_t *)p.out + (int64_t)(lane / 4) * p.stride + first + lane % 4 * 2;

#pragma unroll
    for (int from = 0; from < N / 8; from += 4) {
        float v[8] = {};
        uint4 words;

#pragma unroll
        for (int i = 0; i < (N < 32 ? N / 4 : 8); i++) {
            const int j = from + i / 2;

            v[i] = fin[4 * j + i % 2];
            if (MODE == SCALE_LAST)
                v[i] *= s->scale_x[0][8 * j + lane % 4 * 2 + i % 2] * scale;
            if (p.bias)
                v[i] += bias;
        }
        words = num_pack<DTYPE>(v);
#pragma unroll
        for (int j = 0; j < (N < 32 ? N / 8 : 4); j++) {
            const uint32_t word = ptx_transpose(j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w);

            if (8 * (from + j) + lane / 4 < p.m && first < p.n)
                *(uint32_t *)(to + (int64_t)(8 * (from + j)) * p.stride) = word;
        }
    }
}

/* The units of a slice that are this warp's own: the others' partial sums are added, the results stored. */
template <int N, int MODE>
static __device__ __forceinline__ void stream_finish(const stream_args &p, stream_memory<N> *s, const stream_share &a,
                                                     int slice, int slot, uint32_t turn, const float *scale, float *fin)
{
    const int warp = stream_warp(), lane = threadIdx.x % 32, split = 1 << p.shift;
    const stream_units units = stream_count(p, a.rank);
    float own = scale[0]; /* not scale[half]: local memory, stored before the first stage and after its loads */

    if (split == 1 && p.whole) {
        if (p.dtype == RIDGE_BF16)
            stream_store_whole<N, MODE, RIDGE_BF16>(p, s, slice, scale, fin);
        else
            stream_store_whole<N, MODE, RIDGE_F16>(p, s, slice, scale, fin);
        return;
    }
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int unit = 2 * warp + half, row = slice * p.high + unit * 8 + lane / 4;

        if (half) { /* one copy of the code below does both */
            own = scale[1];
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                fin[i / 2 * 4 + i % 2] = fin[i / 2 * 4 + 2 + i % 2];
        }
        if ((unit & (split - 1)) != a.rank || unit >= units.all)
            continue;
        if (split > 1) {
            ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), turn & 1);
            stream_sum<N>(p, s, a.rank, slot, unit >> p.shift, units.most, fin);
            __syncwarp();                               /* the warp has read the sums */
            if (lane < split && slice + SLOTS < a.last) /* somebody will send again */
                ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
        }
        if (p.whole && p.dtype == RIDGE_BF16)
            stream_store_unit<N, MODE, RIDGE_BF16>(p, s, slice * p.high + unit * 8, own, fin);
        else if (p.whole)
            stream_store_unit<N, MODE, RIDGE_F16>(p, s, slice * p.high + unit * 8, own, fin);
        else if (row < p.n && p.dtype == RIDGE_BF16)
            stream_store<N, MODE, RIDGE_BF16>(p, s, row, own, fin);
        else if (row < p.n && p.dtype == RIDGE_F16)
            stream_store<N, MODE, RIDGE_F16>(p, s, row, own, fin);
        else if (row < p.n)
            stream_store<N, MODE, RIDGE_F32>(p, s, row, own, fin);
    }
    __syncwarp(); /* lanes without rows or tokens are back before what wants whole warps */
}

/* The scales of a block that a thread's sums are multiplied by: of its N / 4 tokens, of its two rows of weights
 * (bit h of `which`: the scale of the rows of half h). */
template <int N> struct stream_scales {
    float2 x[N / 8];
    float upper, lower;
};

template <int N>
static __device__ __forceinline__ stream_scales<N> stream_fetch(const stream_memory<N> *s, uint32_t block, int slot,
                                                                uint32_t which)
{
    stream_scales<N> v;

#pragma unroll
    for (int j = 0; j < N / 8; j++)
        v.x[j] = *(const float2 *)&s->scale_x[block][8 * j + threadIdx.x % 4 * 2];
    v.upper = s->scale_w[block][slot][which & 1];
    v.lower = s->scale_w[block][slot][which >> 1];
    return v;
}

/* What the sums of a block are multiplied by, in the order of fin. */
template <int N> static __device__ __forceinline__ void stream_factors(const stream_scales<N> &v, float *factor)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        factor[4 * j] = v.x[j].x * v.upper;
        factor[4 * j + 1] = v.x[j].y * v.upper;
        factor[4 * j + 2] = v.x[j].x * v.lower;
        factor[4 * j + 3] = v.x[j].y * v.lower;
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

/* C blocks of a slice, a whole stage: T blocks' matrix instructions are under way while those before are added up. What
 * these are multiplied by is there before the wait. */
template <int N, int MODE, int FORMATS, int C>
static __device__ __forceinline__ void stream_whole(const stream_memory<N> *s, const stream_reader *r, int slot,
                                                    uint32_t which, float *fin)
{
    enum { T = TOGETHER(N), ALL = C / T };
    const uint32_t first = r->x.stage * C, x = r->base + FIXED(N) + first * (N * BK),
                   w = r->boxes + r->w.stage * C * r->box;
    stream_scales<N> scales[C] = {};
    float acc[2][T][N / 2], factor[T][N / 2];

    if (MODE == SCALE_BLOCK)
#pragma unroll
        for (int u = 0; u < C; u++)
            scales[u] = stream_fetch<N>(s, first + u, slot, which);
    stream_open(r);
#pragma unroll
    for (int u = 0; u <= ALL; u++) {
        if (u < ALL)
            stream_issue<N, FORMATS, T>(w + u * T * r->box, x + u * T * (N * BK), r->box, acc[u % 2]);
        if (u == 0)
            continue;
        if (MODE == SCALE_BLOCK)
#pragma unroll
            for (int t = 0; t < T; t++)
                stream_factors<N>(scales[(u - 1) * T + t], factor[t]);
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

    stream_open(r);
#pragma unroll 1
    for (int j = 0; j < length; j++) {
        stream_issue<N, FORMATS, 1>(w + j * r->box, x + j * (N * BK), r->box, acc);
        if (MODE == SCALE_BLOCK)
            stream_factors<N>(stream_fetch<N>(s, first + j, slot, which), factor);
        wgmma_wait();
        stream_promote<N, MODE>(factor, acc[0], fin);
    }
}

/* A stage of weights of a slice. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void stream_stage(const stream_memory<N> *s, stream_reader *r, int chunk, int length,
                                                    int slot, uint32_t which, float *fin)
{
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
