/* gemm_fp8_stream_tokens.cuh: the multiplying warpgroups of gemm_fp8_stream_sm90.cu for many tokens: the 64
 * rows of a matrix instruction are tokens and its H columns a slice's rows of weights, so that a thread's results
 * belong to two tokens (two scales by block instead of N / 4), slices of less than 64 rows leave no rows of rubbish,
 * and neighbours in D are neighbours in a warp. The instruction adds the same products in the same way, so the bits are
 * those of gemm_fp8_stream.cuh. */
#ifndef RIDGE_GEMM_FP8_STREAM_TOKENS_CUH
#define RIDGE_GEMM_FP8_STREAM_TOKENS_CUH

#include "gemm_fp8_stream.cuh"

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

/* C blocks of a slice, a whole stage: a block's matrix instructions are under way while the one before is added up. */
template <int H, int MODE, int FORMATS, int C>
static __device__ __forceinline__ void tokens_whole(const stream_memory<64> *s, const stream_reader *r, int slot,
                                                    int edge, float *fin)
{
    const uint32_t first = r->x.stage * C, x = r->base + FIXED(64) + first * r->x_box,
                   w = r->boxes + r->w.stage * C * r->box;
    float acc[2][H / 2];

#pragma unroll
    for (int u = 0; u <= C; u++) {
        tokens_factors f = {};

        if (u < C)
            tokens_issue<H, FORMATS>(x + u * r->x_box, w + u * r->box, acc[u % 2]);
        if (u == 0)
            continue;
        if (MODE == SCALE_BLOCK)
            f = tokens_scales(s->scale_x[first + u - 1], s->scale_w[first + u - 1][slot]);
        if (u < C)
            wgmma_wait_before();
        else
            wgmma_wait();
        tokens_promote<H, MODE>(f, edge, acc[(u - 1) % 2], fin);
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
    stream_open(r);
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

/* Where the sums of one of a slot's units lie that rank `from` has: 8 rows of weights a token. A slot is a warpgroup
 * where k is not split: its slices follow one another then. */
static __device__ __forceinline__ uint32_t tokens_place(const stream_args &p, int slot, int from, int unit)
{
    return (uint32_t)(p.sums + ((((p.shift ? slot : slot % GROUPS) << p.shift) + from) * p.most + unit) * UNIT);
}

/* Units of a slice that rank finishes. */
static __device__ __forceinline__ int tokens_count(const stream_args &p, int rank)
{
    return max(0, min(p.most, p.high / 8 - rank * p.most));
}

/* A finished slice: its sums go to the shared memory of those that finish them, this CTA's own to its own. */
template <int H>
static __device__ __forceinline__ void tokens_send(const stream_args &p, stream_memory<64> *s, const stream_share &a,
                                                   int slot, uint32_t turn, bool dry, const float *fin)
{
    const int thread = threadIdx.x % 128, warps = (p.rows + 15) / 16, token = thread / 32 * 16 + thread % 32 / 4;
    const uint32_t full = ptx_shared(&s->sums_full[slot]);
    const int place = (int)tokens_place(p, slot, a.rank, 0) + token * 32 + thread % 4 * 8;
    uint8_t *const own = (uint8_t *)s + place - a.rank * p.most * UNIT;

    if (p.shift && !dry) {
        /* All have read the previous slice's, so its phase of sums_full is over and the next may be announced. */
        ptx_mbarrier_wait(ptx_shared(&s->sums_free[slot]), (turn & 1) ^ 1);
        if (thread == 0)
            ptx_mbarrier_expect(full, (uint32_t)(((1 << p.shift) - 1) * tokens_count(p, a.rank) * warps * 512));
    }
    if (thread / 32 >= warps)
        return;
    for (int i = 1; i < 1 << p.shift; i++) {
        const int to = (a.rank + i) & ((1 << p.shift) - 1), begin = to * p.most;
        const int end = dry ? begin : begin + tokens_count(p, to);
        const uint32_t bar = ptx_map(full, (uint32_t)to);
        const uint32_t at = ptx_map(ptx_shared(s) + (uint32_t)place, (uint32_t)to) - (uint32_t)(begin * UNIT);

#pragma unroll
        for (int u = 0; u < H / 8; u++)
            if (u >= begin && u < end) {
                ptx_store_async2(at + u * UNIT, fin[4 * u], fin[4 * u + 1], bar);
                ptx_store_async2(at + u * UNIT + 256, fin[4 * u + 2], fin[4 * u + 3], bar);
            }
    }
#pragma unroll
    for (int u = 0; u < H / 8; u++)
        if (u >= a.rank * p.most && u < (a.rank + 1) * p.most) {
            *(float2 *)(own + u * UNIT) = make_float2(fin[4 * u], fin[4 * u + 1]);
            *(float2 *)(own + u * UNIT + 256) = make_float2(fin[4 * u + 2], fin[4 * u + 3]);
        }
}

/* Of a row of weights: its scale (TENSOR, ROW) and bias. */
typedef struct tokens_row {
    float scale, bias;
} tokens_row;

template <int MODE> static __device__ __forceinline__ tokens_row tokens_begin(const stream_args &p, int slice)
{
    const int row = min(slice * p.high + (int)threadIdx.x % 128, p.n - 1);
    tokens_row v = {1, 0};

    if (MODE == SCALE_LAST)
        v.scale = p.scale_w[p.ld_w ? row : 0];
    if (p.bias)
        v.bias = p.bias_f32              ? ((const float *)p.bias)[row]
                 : p.dtype == RIDGE_BF16 ? num_load<RIDGE_BF16>(p.bias, row)
                                         : num_load<RIDGE_F16>(p.bias, row);
    return v;
}

/* Four results, of columns col to col + 3. One by one: any alignment, columns outside, accumulation. */
template <int DTYPE>
static __device__ __forceinline__ void tokens_store(const stream_args &p, int64_t at, int col, const float *v)
{
    const float x[8] = {v[0], v[1], v[2], v[3]};

    if (DTYPE != RIDGE_F32 && p.whole && col + 4 <= p.n) {
        const uint4 words = num_pack<DTYPE>(x);

        *(uint2 *)(p.out + 2 * at) = make_uint2(words.x, words.y);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 4 && col + i < p.n; i++) {
        const float y = i == 0 ? v[0] : i == 1 ? v[1] : i == 2 ? v[2] : v[3];

        num_store<DTYPE>(p.out, at + i, p.accumulate ? y + num_load<DTYPE>(p.out, at + i) : y);
    }
}

/* The units of a slice that are this CTA's own, two at a time: the partial sums are added in ascending k, scaled and
 * stored. A lane has four columns of a token, a warp 16 of 8 tokens. */
template <int MODE>
static __device__ __forceinline__ void tokens_end(const stream_args &p, stream_memory<64> *s, const stream_share &a,
                                                  int slice, int slot, uint32_t turn, bool dry)
{
    const int lane = threadIdx.x % 32, quarter = lane % 4, split = 1 << p.shift;
    const int count = dry ? 1 : tokens_count(p, a.rank), m = dry ? 0 : p.m;
    const int first = threadIdx.x / 32 % 4 * 8 + lane / 4; /* token, and 32 more */
    const uint8_t *at =
        (const uint8_t *)s + tokens_place(p, slot, 0, 0) + first * 32 + quarter / 2 * UNIT + quarter % 2 * 16;
    const float scale_x[2] = {s->scale_x[0][first], s->scale_x[0][first + 32]};

    if (split > 1 && !dry)
        ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), turn & 1);
#pragma unroll 1
    for (int u = 0; u < count; u += 2, at += 2 * UNIT) {
        const int row = (a.rank * p.most + u) * 8 + quarter * 4, col = slice * p.high + row;
        const float4 scale = *(const float4 *)&s->row_scale[slot][row], bias = *(const float4 *)&s->row_bias[slot][row];

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int token = first + 32 * i;
            const int64_t place = token * p.stride + col;
            float4 x = *(const float4 *)(at + 32 * 32 * i);

#pragma unroll 1
            for (int from = 1; from < split; from++) {
                const float4 y = *(const float4 *)(at + 32 * 32 * i + from * p.most * UNIT);

                x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
            }
            if (MODE == SCALE_LAST) {
                x.x *= scale_x[i] * scale.x, x.y *= scale_x[i] * scale.y;
                x.z *= scale_x[i] * scale.z, x.w *= scale_x[i] * scale.w;
            }
            if (p.bias)
                x.x += bias.x, x.y += bias.y, x.z += bias.z, x.w += bias.w;
            if (token >= m || u + quarter / 2 >= count || col >= p.n)
                continue;
            const float v[4] = {x.x, x.y, x.z, x.w};

            if (p.dtype == RIDGE_BF16)
                tokens_store<RIDGE_BF16>(p, place, col, v);
            else if (p.dtype == RIDGE_F16)
                tokens_store<RIDGE_F16>(p, place, col, v);
            else
                tokens_store<RIDGE_F32>(p, place, col, v);
        }
    }
    __syncwarp();                                                    /* the warp has read the sums */
    if (lane < split && split > 1 && slice + SLOTS < a.last && !dry) /* somebody will send again */
        ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
}

/* The slices of a pass: all are sent before any is finished; where nothing is sent, one after the other. */
template <int H, int MODE>
static __device__ __forceinline__ void tokens_finish(const stream_args &p, stream_memory<64> *s, const stream_share &a,
                                                     int slice, int group, int own, uint32_t turn, bool dry,
                                                     const tokens_row *rows, const float (*fin)[H / 2])
{
    const int thread = threadIdx.x % 128;

#pragma unroll 1
    for (int j = 0; j < own; j++) {
        if (!p.shift || j == 0) {
            ptx_barrier_sync(2 + group, 128); /* what lay there has been read */
#pragma unroll
            for (int i = 0; i < SLICES; i++) {
                const int slot = GROUPS * i + group;

                if (i >= own || (!p.shift && i != j))
                    continue;
                if (thread < p.high) {
                    s->row_scale[slot][thread] = rows[i].scale;
                    s->row_bias[slot][thread] = rows[i].bias;
                }
                tokens_send<H>(p, s, a, slot, turn, dry, fin[i]);
            }
            ptx_barrier_sync(2 + group, 128); /* this CTA's own sums are there */
        }
        tokens_end<MODE>(p, s, a, slice + GROUPS * j + group, GROUPS * j + group, turn, dry);
    }
}

/* One warpgroup: the slices group, group + 2 of every pass. While nothing has arrived yet it goes through the code of a
 * slice's end once, without effect: fetched then, that code does not have to be at the end. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_multiply(const stream_args &p, stream_memory<64> *s,
                                                       const stream_share &a, int group)
{
    stream_reader r = stream_begin<64>(p, s, group);
    uint32_t turn = ~0u;

#pragma unroll 1
    for (int slice = a.first - SLOTS; slice < a.last; slice += SLOTS, turn++) {
        const bool dry = slice < a.first;
        const int count = min((int)SLOTS, a.last - slice), own = (count + 1 - group) / 2;
        float fin[SLICES][H / 2];
        tokens_row rows[SLICES];
        int edge[SLICES];

#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            rows[i] = tokens_begin<MODE>(p, max(0, slice) + GROUPS * i + group);
            edge[i] = (128 - (slice + GROUPS * i + group) * p.high % 128) / 8;
#pragma unroll
            for (int j = 0; j < H / 2; j++)
                fin[i][j] = 0.0f;
        }
        if (!dry)
            tokens_pass<H, MODE, FORMATS>(p, s, a, &r, own, edge, fin);
        tokens_finish<H, MODE>(p, s, a, slice, group, dry ? 1 : own, turn, dry, rows, fin);
    }
}

#endif

#endif
