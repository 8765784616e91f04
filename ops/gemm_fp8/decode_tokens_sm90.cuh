/* decode_tokens_sm90.cuh: the multiplying warpgroups of decode_sm90.cu for many tokens: the 64
 * rows of a matrix instruction are tokens and its H columns a slice's rows of weights, so that a thread's results
 * belong to two tokens (two scales by block instead of N / 4), slices of less than 64 rows leave no rows of rubbish,
 * and neighbours in D are neighbours in a warp. The instruction adds the same products in the same way, so the bits are
 * those of decode_swap_ab_sm90.cuh. */
#ifndef RIDGE_GEMM_FP8_STREAM_TOKENS_CUH
#define RIDGE_GEMM_FP8_STREAM_TOKENS_CUH

#include "decode_swap_ab_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The matrix instructions of a block into acc, as a group of their own. */
template <int H, int FORMATS> static __device__ __forceinline__ void tokens_issue(uint32_t x, uint32_t w, float *acc)
{
    const uint64_t dx = wgmma_descriptor(x), dw = wgmma_descriptor(w);

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        wgmma_fp8_narrow<H, FORMATS>(acc, dx + 2 * k, dw + 2 * k, k > 0);
    wgmma_commit();
}

/* What the sums of a block are multiplied by: [block of 128 rows of weights][token]. */
typedef struct tokens_factors {
    float of[2][2];
} tokens_factors;

static __device__ __forceinline__ tokens_factors tokens_scales(const float *scale_x, const float *scale_w)
{
    const int token = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const float first = scale_x[token], second = scale_x[token + 8];
    const float2 w = *(const float2 *)scale_w;

    return {{{first * w.x, second * w.x}, {first * w.y, second * w.y}}};
}

/* fin = fma(factor, acc, fin), or fin + acc. From unit `edge` of 8 rows on the slice lies in the next block of 128. */
template <int H, int MODE>
static __device__ __forceinline__ void tokens_promote(const tokens_factors &f, int edge, float *acc, float *fin)
{
    wgmma_pin<H / 2>(acc); /* no use before the wait */
#pragma unroll
    for (int j = 0; j < H / 8; j++) {
        const float upper = j < edge ? f.of[0][0] : f.of[1][0], lower = j < edge ? f.of[0][1] : f.of[1][1];

#pragma unroll
        for (int i = 0; i < 4; i++)
            fin[4 * j + i] = MODE == SCALE_BLOCK ? __fmaf_rn(i < 2 ? upper : lower, acc[4 * j + i], fin[4 * j + i])
                                                 : fin[4 * j + i] + acc[4 * j + i];
    }
}

/* C blocks of a slice, a whole stage: a block's matrix instructions are under way while the one before is added up.
 * The factors are there before the weights: between matrix instructions their loads held those back. (For 64 rows there
 * are registers for one block only.) */
template <int H, int MODE, int FORMATS, int C>
static __device__ __forceinline__ void tokens_whole(const stream_memory<64> *s, const stream_reader *r, int slot,
                                                    int edge, float *fin)
{
    enum { EARLY = H < 64 ? C : 1 };
    const uint32_t first = r->x.stage * C, x = r->base + FIXED(64) + first * r->x_box,
                   w = r->boxes + r->w.stage * C * r->box;
    tokens_factors f[C] = {};
    float acc[2][H / 2];

    if (MODE == SCALE_BLOCK)
#pragma unroll
        for (int u = 0; u < EARLY; u++)
            f[u] = tokens_scales(s->scale_x[first + u], s->scale_w[first + u][slot]);
    stream_open(r);
#pragma unroll
    for (int u = 0; u <= C; u++) {
        if (u < C)
            tokens_issue<H, FORMATS>(x + u * r->x_box, w + u * r->box, acc[u % 2]);
        if (u == 0)
            continue;
        if (MODE == SCALE_BLOCK && u > EARLY)
            f[u - 1] = tokens_scales(s->scale_x[first + u - 1], s->scale_w[first + u - 1][slot]);
        if (u < C)
            wgmma_wait_before();
        else
            wgmma_wait();
        tokens_promote<H, MODE>(f[u - 1], edge, acc[(u - 1) % 2], fin);
    }
}

/* Less than a whole stage at the end of k: block by block. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_rest(const stream_memory<64> *s, const stream_reader *r, int chunk,
                                                   int length, int slot, int edge, float *fin)
{
    const uint32_t first = r->x.stage * chunk, x = r->base + FIXED(64) + first * r->x_box,
                   w = r->boxes + r->w.stage * chunk * r->box;
    float acc[H / 2];

    stream_open(r);
#pragma unroll 1
    for (int j = 0; j < length; j++) {
        tokens_factors f = {};

        tokens_issue<H, FORMATS>(x + j * r->x_box, w + j * r->box, acc);
        if (MODE == SCALE_BLOCK)
            f = tokens_scales(s->scale_x[first + j], s->scale_w[first + j][slot]);
        wgmma_wait();
        tokens_promote<H, MODE>(f, edge, acc, fin);
    }
}

/* A stage of weights of a slice. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_stage(const stream_memory<64> *s, stream_reader *r, int chunk, int length,
                                                    int slot, int edge, float *fin)
{
    if (length < chunk)
        tokens_rest<H, MODE, FORMATS>(s, r, chunk, length, slot, edge, fin);
    else if (chunk == CHUNK_MOST)
        tokens_whole<H, MODE, FORMATS, CHUNK_MOST>(s, r, slot, edge, fin);
    else
        tokens_whole<H, MODE, FORMATS, CHUNK_MOST / 2>(s, r, slot, edge, fin);
    stream_close(r);
}

/* All k of this CTA for `own` slices, 0 to SLICES. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_pass(const stream_args &p, const stream_memory<64> *s,
                                                   const stream_share &a, stream_reader *r, int own, const int *edge,
                                                   float (*fin)[H / 2])
{
    for (int kb = a.begin; kb < a.end; kb += p.chunk) {
        const int length = min(p.chunk, a.end - kb);

        ptx_mbarrier_wait(r->base + PLACE_OF(64, x_full) + 8 * r->x.stage, r->x.phase);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SLICES; i++)
            if (i < own)
                tokens_stage<H, MODE, FORMATS>(s, r, p.chunk, length, GROUPS * i + r->group, edge[i], fin[i]);
        __syncwarp(); /* the warp has read the tokens and their scales */
        if (threadIdx.x % 32 == 0)
            ptx_mbarrier_arrive(r->base + PLACE_OF(64, x_empty) + 8 * r->x.stage);
        stream_advance(&r->x, r->x_stages);
    }
}

/* Where thread `thread` of a warpgroup's four sums of one of a slot's `most` units lie, from the `from`th of the
 * others. */
static __device__ __forceinline__ uint32_t tokens_place(const stream_args &p, int slot, int from, int unit, int thread)
{
    return (uint32_t)(p.sums + (((slot * ((1 << p.shift) - 1) + from) * p.most + unit) * 8 * 64 + thread * 4) * 4);
}

/* A finished slice: sends the units that others finish. */
template <int H>
static __device__ __forceinline__ void tokens_send(const stream_args &p, stream_memory<64> *s, const stream_share &a,
                                                   int slot, uint32_t turn, const float *fin)
{
    const int thread = threadIdx.x % 128, split = 1 << p.shift, warps = (p.rows + 15) / 16;
    const uint32_t full = ptx_shared(&s->sums_full[slot]);

    /* All have read the previous slice's, so its phase of sums_full is over and the next may be announced. */
    ptx_mbarrier_wait(ptx_shared(&s->sums_free[slot]), (turn & 1) ^ 1);
    if (thread == 0)
        ptx_mbarrier_expect(full, (uint32_t)((split - 1) * (p.begins[a.rank + 1] - p.begins[a.rank]) * warps * 512));
    if (thread / 32 >= warps)
        return;
    for (int i = 1; i < split; i++) {
        const int to = (a.rank + i) & (split - 1), from = a.rank < to ? a.rank : a.rank - 1;
        const int begin = p.begins[to], end = p.begins[to + 1];
        const uint32_t bar = ptx_map(full, (uint32_t)to);
        const uint32_t at = ptx_map(ptx_shared(s) + tokens_place(p, slot, from, -begin, thread), (uint32_t)to);

#pragma unroll
        for (int u = 0; u < H / 8; u++)
            if (u >= begin && u < end)
                ptx_store_async4(at + (uint32_t)(u * 8 * 64 * 4), fin[4 * u], fin[4 * u + 1], fin[4 * u + 2],
                                 fin[4 * u + 3], bar);
    }
}

/* v becomes the sum of both CTAs' partial sums of a unit, in either order. */
static __device__ __forceinline__ void tokens_sum_two(const stream_args &p, const stream_memory<64> *s, int slot,
                                                      int unit, float *v)
{
    const float4 x = *(const float4 *)((const uint8_t *)s + tokens_place(p, slot, 0, unit, threadIdx.x % 128));

    v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
}

/* v becomes the sum of all partial sums of a unit, in ascending k. */
static __device__ __forceinline__ void tokens_sum(const stream_args &p, const stream_memory<64> *s, int rank, int slot,
                                                  int unit, float *v)
{
    const uint8_t *at = (const uint8_t *)s + tokens_place(p, slot, 0, unit, threadIdx.x % 128);
    const float own[4] = {v[0], v[1], v[2], v[3]};
    float4 x;

    if (p.shift == 1) {
        tokens_sum_two(p, s, slot, unit, v);
        return;
    }
#pragma unroll 1
    for (int from = 0; from < 1 << p.shift; from++) {
        if (from == rank)
            x = make_float4(own[0], own[1], own[2], own[3]);
        else
            x = *(const float4 *)(at + (from < rank ? from : from - 1) * p.most * 8 * 64 * 4);
        v[0] = from ? v[0] + x.x : x.x;
        v[1] = from ? v[1] + x.y : x.y;
        v[2] = from ? v[2] + x.z : x.z;
        v[3] = from ? v[3] + x.w : x.w;
    }
}

/* Of the rows of a slice that lane % 32 and 32 more are: scales (TENSOR, ROW) and bias. */
typedef struct tokens_rows {
    float scale[2], bias[2];
} tokens_rows;

template <int MODE> static __device__ __forceinline__ tokens_rows tokens_begin(const stream_args &p, int slice)
{
    tokens_rows v = {};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = min(slice * p.high + 32 * i + (int)(threadIdx.x % 32), p.n - 1);

        if (MODE == SCALE_LAST)
            v.scale[i] = p.scale_w[p.ld_w ? row : 0];
        if (p.bias)
            v.bias[i] = p.bias_f32              ? ((const float *)p.bias)[row]
                        : p.dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(p.bias, row)
                                                : num_load<RIDGE_F16>(p.bias, row);
    }
    return v;
}

/* Scales and bias of unit u: the sums become results. scale_x: of this thread's two tokens. */
template <int MODE>
static __device__ __forceinline__ void tokens_scale(const stream_args &p, const tokens_rows &rows, int u,
                                                    const float *scale_x, float *v)
{
    const int from = u * 8 + threadIdx.x % 4 * 2; /* the lane modulo 32 */

#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (MODE == SCALE_LAST) {
            const float scale = __shfl_sync(~0u, u < 4 ? rows.scale[0] : rows.scale[1], from + i);

            v[i] *= scale_x[0] * scale;
            v[2 + i] *= scale_x[1] * scale;
        }
        if (p.bias) {
            const float bias = __shfl_sync(~0u, u < 4 ? rows.bias[0] : rows.bias[1], from + i);

            v[i] += bias;
            v[2 + i] += bias;
        }
    }
}

template <int DTYPE> static __device__ __forceinline__ void tokens_add(const stream_args &p, int64_t at, float x)
{
    num_store<DTYPE>(p.out, at, p.accumulate ? x + num_load<DTYPE>(p.out, at) : x);
}

/* A unit's results one by one: any alignment, columns outside, accumulation. col: this thread's first. */
static __device__ __forceinline__ void tokens_store(const stream_args &p, int token, int col, const float *v)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = token + i / 2 * 8;
        const int64_t at = row * p.stride + col + i % 2;

        if (row >= p.m || col + i % 2 >= p.n)
            continue;
        if (p.dtype == RIDGE_BF16)
            tokens_add<RIDGE_BF16>(p, at, v[i]);
        else if (p.dtype == RIDGE_F16)
            tokens_add<RIDGE_F16>(p, at, v[i]);
        else
            tokens_add<RIDGE_F32>(p, at, v[i]);
    }
}

/* The results of two units, the second 8 rows of weights after the first: 4 bytes a lane and token, 16 a token. col:
 * this thread's first. */
template <int DTYPE>
static __device__ __forceinline__ void tokens_store_two(const stream_args &p, int token, int col, bool second,
                                                        const float *v)
{
    const uint4 words = num_pack<DTYPE>(v);
    uint16_t *to = (uint16_t *)p.out + token * p.stride + col, *below = to + 8 * p.stride;

    if (token < p.m)
        *(uint32_t *)to = words.x;
    if (token + 8 < p.m)
        *(uint32_t *)below = words.y;
    if (second && token < p.m)
        *(uint32_t *)(to + 8) = words.z;
    if (second && token + 8 < p.m)
        *(uint32_t *)(below + 8) = words.w;
}

/* The registers of all units move up by `by`. */
template <int H> static __device__ __forceinline__ void tokens_up(int by, float *fin)
{
#pragma unroll
    for (int i = 0; i < H / 2; i++)
        fin[i] = i + 4 * by < H / 2 ? fin[i + 4 * by] : 0.0f;
}

/* The registers of the second `units` of a slice take the place of the first. */
template <int H> static __device__ __forceinline__ void tokens_down(int units, float *fin)
{
#pragma unroll
    for (int u = 1; u <= H / 16; u++)
        if (u == units)
#pragma unroll
            for (int i = 0; i < 4 * u; i++)
                fin[i] = fin[i + 4 * u];
}

/* The units of a slice that are this CTA's own: the others' partial sums are added, the results stored. Two units a
 * turn, which the registers of all others move up for: code that runs once costs what fetching it takes. */
template <int H, int MODE>
static __device__ __forceinline__ void tokens_end(const stream_args &p, stream_memory<64> *s, const stream_share &a,
                                                  int slice, int slot, uint32_t turn, const tokens_rows &rows,
                                                  float *fin)
{
    const int lane = threadIdx.x % 32, split = 1 << p.shift, token = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int begin = p.begins[a.rank], end = p.begins[a.rank + 1];
    const float scale_x[2] = {s->scale_x[0][token], s->scale_x[0][token + 8]};
    int col = slice * p.high + 8 * begin;

#pragma unroll 1
    for (int u = 0; u < begin; u++)
        tokens_up<H>(1, fin);
    if (split > 1) {
        ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), turn & 1);
        __syncwarp();
    }
#pragma unroll 1
    for (int u = begin; u < end; u += 2, col += 16) {
        const bool second = u + 1 < end;

        if (split > 1) {
            tokens_sum(p, s, a.rank, slot, u - begin, fin);
            if (second)
                tokens_sum(p, s, a.rank, slot, u + 1 - begin, fin + 4);
        }
        tokens_scale<MODE>(p, rows, u, scale_x, fin);
        tokens_scale<MODE>(p, rows, u + 1, scale_x, fin + 4);
        if (p.whole && col + (second ? 16 : 8) <= p.n) {
            if (p.dtype == RIDGE_BF16)
                tokens_store_two<RIDGE_BF16>(p, token, col + lane % 4 * 2, second, fin);
            else
                tokens_store_two<RIDGE_F16>(p, token, col + lane % 4 * 2, second, fin);
        } else {
            tokens_store(p, token, col + lane % 4 * 2, fin);
            if (second)
                tokens_store(p, token, col + 8 + lane % 4 * 2, fin + 4);
        }
        tokens_up<H>(2, fin);
        __syncwarp(); /* lanes without rows or tokens are back before what wants whole warps */
    }
    /* the warp has read the sums; somebody will send again */
    if (lane < split && split > 1 && slice + SLOTS < a.last)
        ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
}

/* The units of a slice that are this CTA's own where k is split in two at most: results go to shared memory, from where
 * TMA takes a warp's 16 tokens as whole rows. Straight code, two units at a time. */
template <int H, int MODE, int DTYPE>
static __device__ __forceinline__ void tokens_leave(const stream_args &p, stream_memory<64> *s, const stream_share &a,
                                                    int slice, int slot, uint32_t turn, const tokens_rows &rows,
                                                    float *fin)
{
    const int lane = threadIdx.x % 32, warp = stream_warp(), token = warp * 16 + lane / 4, count = p.leave_units;
    const int begin = count * a.rank;
    const float scale_x[2] = {s->scale_x[0][token], s->scale_x[0][token + 8]};
    const uint32_t row = (uint32_t)count * 16,
                   panel = stream_base(s) + (uint32_t)p.leave + (uint32_t)(slot % GROUPS * 4 + warp) * 16 * row,
                   at = panel + (uint32_t)(lane % 16) * row;

    if (begin)
        tokens_down<H>(count, fin);
    if (lane == 0)
        ptx_tma_wait_read(); /* the slice before has left */
    if (p.shift)
        ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), turn & 1);
    __syncwarp();
#pragma unroll
    for (int u = 0; u < H / 8; u += 2) {
        uint4 words;
        uint32_t to;

        if (u >= count)
            break;
        if (p.shift) {
            tokens_sum_two(p, s, slot, u, fin + 4 * u);
            if (u + 1 < count)
                tokens_sum_two(p, s, slot, u + 1, fin + 4 * u + 4);
        }
        tokens_scale<MODE>(p, rows, begin + u, scale_x, fin + 4 * u);
        tokens_scale<MODE>(p, rows, begin + u + 1, scale_x, fin + 4 * u + 4);
        words = num_pack<DTYPE>(fin + 4 * u);
        if (u + 1 == count) /* the last unit twice, at the same place */
            words.z = words.x, words.w = words.y;
        to = at + (uint32_t)min(u + lane / 16, count - 1) * 16;
        __syncwarp();
        ptx_store_matrix(to ^ (to >> 3 & p.leave_mask), words.x, words.y, words.z, words.w);
    }
    ptx_fence_async();
    __syncwarp();
    if (lane == 0 && warp * 16 < p.m) {
        ptx_tma_store_2d(&p.d, slice * p.high + 8 * begin, warp * 16, panel);
        ptx_tma_commit();
    }
    if (p.shift && lane < 2 && slice + SLOTS < a.last)
        ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
    __syncwarp();
}

/* One warpgroup: the slices group, group + 2 of every pass. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_multiply(const stream_args &p, stream_memory<64> *s,
                                                       const stream_share &a, int group)
{
    stream_reader r = stream_begin<64>(p, s, group);
    uint32_t turn = 0;

    for (int slice = a.first; slice < a.last; slice += SLOTS, turn++) {
        const int count = min((int)SLOTS, a.last - slice), own = (count + 1 - group) / 2;
        float fin[SLICES][H / 2];
        tokens_rows rows[SLICES];
        int edge[SLICES];

#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            rows[i] = tokens_begin<MODE>(p, slice + GROUPS * i + group);
            edge[i] = (128 - (slice + GROUPS * i + group) * p.high % 128) / 8;
#pragma unroll
            for (int j = 0; j < H / 2; j++)
                fin[i][j] = 0.0f;
        }
        tokens_pass<H, MODE, FORMATS>(p, s, a, &r, own, edge, fin);
        if (p.shift)
#pragma unroll
            for (int i = 0; i < SLICES; i++)
                if (i < own)
                    tokens_send<H>(p, s, a, GROUPS * i + group, turn, fin[i]);
#pragma unroll 1
        for (int i = 0; i < own; i++) { /* one copy of the code for all */
            if (!p.leave_units)
                tokens_end<H, MODE>(p, s, a, slice + GROUPS * i + group, GROUPS * i + group, turn, rows[0], fin[0]);
            else if (p.dtype == RIDGE_BF16)
                tokens_leave<H, MODE, RIDGE_BF16>(p, s, a, slice + GROUPS * i + group, GROUPS * i + group, turn,
                                                  rows[0], fin[0]);
            else
                tokens_leave<H, MODE, RIDGE_F16>(p, s, a, slice + GROUPS * i + group, GROUPS * i + group, turn, rows[0],
                                                 fin[0]);
            rows[0] = rows[1];
#pragma unroll
            for (int j = 0; j < H / 2; j++)
                fin[0][j] = fin[1][j];
        }
    }
    ptx_tma_wait_read(); /* shared memory is nobody's when the CTA has left */
}

#endif

#endif
