/* decode_tokens_sm90.cuh: the MMA warpgroups of decode_sm90.cu without swapped operands (from 17 or 33 tokens on): the
 * tokens are the instruction's 64 rows, a tile's weights its H columns. So a thread's results belong to two tokens (two
 * block scales instead of N / 4), tiles of less than 64 rows need no padding rows, and neighbours in D are neighbours
 * in a warp. The instruction adds the same products in the same order, so the bits are those of
 * decode_swap_ab_sm90.cuh. */
#ifndef RIDGE_GEMM_FP8_DECODE_TOKENS_CUH
#define RIDGE_GEMM_FP8_DECODE_TOKENS_CUH

#include "decode_pipeline_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Issues the wgmma of one block into acc, as one group. */
template <int H, int FORMATS> static __device__ __forceinline__ void tokens_issue(uint32_t x, uint32_t w, float *acc)
{
    const uint64_t dx = wgmma_descriptor(x), dw = wgmma_descriptor(w);

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; k++)
        wgmma_fp8_narrow<H, FORMATS>(acc, dx + 2 * k, dw + 2 * k, k > 0);
    wgmma_commit();
}

/* The products of scales of a block of k: [block of 128 rows of weights][token]. */
typedef struct tokens_factors {
    float of[2][2];
} tokens_factors;

static __device__ __forceinline__ tokens_factors tokens_load_factors(const float *scale_x, const float *scale_w)
{
    const int token = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const float first = scale_x[token], second = scale_x[token + 8];
    const float2 w = *(const float2 *)scale_w;

    return {{{first * w.x, second * w.x}, {first * w.y, second * w.y}}};
}

/* fin = fma(factor, acc, fin), or fin + acc. From unit `edge` on, the tile lies in the next block of 128 rows. */
template <int H, int MODE>
static __device__ __forceinline__ void tokens_promote(const tokens_factors &f, int edge, float *acc, float *fin)
{
    wgmma_pin<H / 2>(acc); /* keeps the compiler from using acc before the wait */
#pragma unroll
    for (int j = 0; j < H / 8; j++) {
        const float upper = j < edge ? f.of[0][0] : f.of[1][0], lower = j < edge ? f.of[0][1] : f.of[1][1];

#pragma unroll
        for (int i = 0; i < 4; i++)
            fin[4 * j + i] = MODE == SCALE_BLOCK ? __fmaf_rn(i < 2 ? upper : lower, acc[4 * j + i], fin[4 * j + i])
                                                 : fin[4 * j + i] + acc[4 * j + i];
    }
}

/* A full stage, C blocks: a block's wgmma are in flight while the block before is promoted. The factors are loaded
 * before the wait for the weights: loads between wgmma delayed those. (With 64 rows there are registers for one block
 * only.) */
template <int H, int MODE, int FORMATS, int C>
static __device__ __forceinline__ void tokens_stage_full(const decode_smem<64> *s, const decode_consumer *r, int slot,
                                                         int edge, float *fin)
{
    enum { EARLY = H < 64 ? C : 1 };
    const uint32_t first = r->x.stage * C, x = r->base + FIXED_SMEM(64) + first * r->x_box,
                   w = r->w_at + r->w.stage * C * r->w_box;
    tokens_factors f[C] = {};
    float acc[2][H / 2];

    if (MODE == SCALE_BLOCK)
#pragma unroll
        for (int u = 0; u < EARLY; u++)
            f[u] = tokens_load_factors(s->scale_x[first + u], s->scale_w[first + u][slot]);
    consumer_wait(r);
#pragma unroll
    for (int u = 0; u <= C; u++) {
        if (u < C)
            tokens_issue<H, FORMATS>(x + u * r->x_box, w + u * r->w_box, acc[u % 2]);
        if (u == 0)
            continue;
        if (MODE == SCALE_BLOCK && u > EARLY)
            f[u - 1] = tokens_load_factors(s->scale_x[first + u - 1], s->scale_w[first + u - 1][slot]);
        if (u < C)
            wgmma_wait_before();
        else
            wgmma_wait();
        tokens_promote<H, MODE>(f[u - 1], edge, acc[(u - 1) % 2], fin);
    }
}

/* The last stage of k, if it is not full: block by block. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_stage_tail(const decode_smem<64> *s, const decode_consumer *r,
                                                         int stage_blocks, int length, int slot, int edge, float *fin)
{
    const uint32_t first = r->x.stage * stage_blocks, x = r->base + FIXED_SMEM(64) + first * r->x_box,
                   w = r->w_at + r->w.stage * stage_blocks * r->w_box;
    float acc[H / 2];

    consumer_wait(r);
#pragma unroll 1
    for (int j = 0; j < length; j++) {
        tokens_factors f = {};

        tokens_issue<H, FORMATS>(x + j * r->x_box, w + j * r->w_box, acc);
        if (MODE == SCALE_BLOCK)
            f = tokens_load_factors(s->scale_x[first + j], s->scale_w[first + j][slot]);
        wgmma_wait();
        tokens_promote<H, MODE>(f, edge, acc, fin);
    }
}

/* One stage of a tile's weights. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_stage(const decode_smem<64> *s, decode_consumer *r, int stage_blocks,
                                                    int length, int slot, int edge, float *fin)
{
    if (length < stage_blocks)
        tokens_stage_tail<H, MODE, FORMATS>(s, r, stage_blocks, length, slot, edge, fin);
    else if (stage_blocks == MAX_STAGE_BLOCKS)
        tokens_stage_full<H, MODE, FORMATS, MAX_STAGE_BLOCKS>(s, r, slot, edge, fin);
    else
        tokens_stage_full<H, MODE, FORMATS, MAX_STAGE_BLOCKS / 2>(s, r, slot, edge, fin);
    consumer_release(r);
}

/* The mainloop: this CTA's k for `own` tiles, 0 to TILES_PER_GROUP. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_mainloop(const decode_args &p, const decode_smem<64> *s,
                                                       const decode_work &a, decode_consumer *r, int own,
                                                       const int *edge, float (*fin)[H / 2])
{
    for (int kb = a.begin; kb < a.end; kb += p.stage_blocks) {
        const int length = min(p.stage_blocks, a.end - kb);

        pipeline_wait(r->base + SMEM_OFFSET(64, x_full), r->x);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < TILES_PER_GROUP; i++)
            if (i < own)
                tokens_stage<H, MODE, FORMATS>(s, r, p.stage_blocks, length, GROUPS * i + r->group, edge[i], fin[i]);
        __syncwarp(); /* every lane's reads of tokens and scales come before their release */
        if (threadIdx.x % 32 == 0)
            pipeline_release(r->base + SMEM_OFFSET(64, x_empty), r->x.stage);
        pipeline_advance(&r->x, r->x_stages);
    }
}

/* The offset in shared memory of a thread's four partial sums of a unit, from the `from`th of the other ranks. A slot
 * has max_units units of each rank. */
static __device__ __forceinline__ uint32_t tokens_partial_offset(const decode_args &p, int slot, int from, int unit,
                                                                 int thread)
{
    return (uint32_t)(p.off_sums +
                      (((slot * ((1 << p.split_shift) - 1) + from) * p.max_units + unit) * 8 * 64 + thread * 4) * 4);
}

/* Sends the partial sums of a tile's units that other ranks reduce, to those ranks' shared memory. */
template <int H>
static __device__ __forceinline__ void tokens_send(const decode_args &p, decode_smem<64> *s, const decode_work &a,
                                                   int slot, uint32_t pass, const float *fin)
{
    const int thread = threadIdx.x % 128, split = 1 << p.split_shift, warps = (p.x_rows + 15) / 16;
    const uint32_t full = ptx_shared(&s->sums_full[slot]);

    /* All ranks have read the previous pass's sums: that phase of sums_full is complete, and ours may be expected. */
    ptx_mbarrier_wait(ptx_shared(&s->sums_free[slot]), (pass & 1) ^ 1);
    if (thread == 0)
        ptx_mbarrier_expect(full,
                            (uint32_t)((split - 1) * (p.unit_begin[a.rank + 1] - p.unit_begin[a.rank]) * warps * 512));
    if (thread / 32 >= warps)
        return;
    for (int i = 1; i < split; i++) {
        const int to = (a.rank + i) & (split - 1), from = a.rank < to ? a.rank : a.rank - 1;
        const int begin = p.unit_begin[to], end = p.unit_begin[to + 1];
        const uint32_t bar = ptx_map(full, (uint32_t)to);
        const uint32_t at = ptx_map(ptx_shared(s) + tokens_partial_offset(p, slot, from, -begin, thread), (uint32_t)to);

#pragma unroll
        for (int u = 0; u < H / 8; u++)
            if (u >= begin && u < end)
                ptx_store_async4(at + (uint32_t)(u * 8 * 64 * 4), fin[4 * u], fin[4 * u + 1], fin[4 * u + 2],
                                 fin[4 * u + 3], bar);
    }
}

/* Adds the other rank's partial sums of a unit to v. Of two ranks the order does not matter: a + b is b + a. */
static __device__ __forceinline__ void tokens_reduce_two(const decode_args &p, const decode_smem<64> *s, int slot,
                                                         int unit, float *v)
{
    const float4 x = *(const float4 *)((const uint8_t *)s + tokens_partial_offset(p, slot, 0, unit, threadIdx.x % 128));

    v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
}

/* Adds the partial sums of all ranks of a unit into v, in ascending k. */
static __device__ __forceinline__ void tokens_reduce(const decode_args &p, const decode_smem<64> *s, int rank, int slot,
                                                     int unit, float *v)
{
    const uint8_t *at = (const uint8_t *)s + tokens_partial_offset(p, slot, 0, unit, threadIdx.x % 128);
    const float own[4] = {v[0], v[1], v[2], v[3]};
    float4 x;

    if (p.split_shift == 1) {
        tokens_reduce_two(p, s, slot, unit, v);
        return;
    }
#pragma unroll 1
    for (int from = 0; from < 1 << p.split_shift; from++) {
        if (from == rank)
            x = make_float4(own[0], own[1], own[2], own[3]);
        else
            x = *(const float4 *)(at + (from < rank ? from : from - 1) * p.max_units * 8 * 64 * 4);
        v[0] = from ? v[0] + x.x : x.x;
        v[1] = from ? v[1] + x.y : x.y;
        v[2] = from ? v[2] + x.z : x.z;
        v[3] = from ? v[3] + x.w : x.w;
    }
}

/* Scales (SCALE_EPILOGUE) and bias of rows lane and lane + 32 of a tile; other lanes get them by shuffles. */
typedef struct tokens_row_values {
    float scale[2], bias[2];
} tokens_row_values;

template <int MODE> static __device__ __forceinline__ tokens_row_values tokens_load_rows(const decode_args &p, int tile)
{
    tokens_row_values v = {};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = min(tile * p.block_n + 32 * i + (int)(threadIdx.x % 32), p.n - 1);

        if (MODE == SCALE_EPILOGUE)
            v.scale[i] = p.scale_w[p.ld_w ? row : 0];
        v.bias[i] = load_bias(p, row);
    }
    return v;
}

/* Scales the sums of unit u and adds the bias. scale_x: of this thread's two tokens. */
template <int MODE>
static __device__ __forceinline__ void tokens_scale(const decode_args &p, const tokens_row_values &rows, int u,
                                                    const float *scale_x, float *v)
{
    const int from = u * 8 + threadIdx.x % 4 * 2; /* the lane that has the row, modulo 32 */

#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (MODE == SCALE_EPILOGUE) {
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

template <int DTYPE> static __device__ __forceinline__ void tokens_store_one(const decode_args &p, int64_t at, float x)
{
    num_store<DTYPE>(p.out, at, p.accumulate ? x + num_load<DTYPE>(p.out, at) : x);
}

/* Stores a unit's results one by one: for any alignment, columns outside, or accumulation. col: this thread's first. */
static __device__ __forceinline__ void tokens_store(const decode_args &p, int token, int col, const float *v)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = token + i / 2 * 8;
        const int64_t at = row * p.ld_d + col + i % 2;

        if (row >= p.m || col + i % 2 >= p.n)
            continue;
        if (p.dtype == RIDGE_BF16)
            tokens_store_one<RIDGE_BF16>(p, at, v[i]);
        else if (p.dtype == RIDGE_F16)
            tokens_store_one<RIDGE_F16>(p, at, v[i]);
        else
            tokens_store_one<RIDGE_F32>(p, at, v[i]);
    }
}

/* Stores the results of two units, the second 8 columns of D after the first: 4 bytes a lane and token, 16 a token.
 * col: this thread's first. */
template <int DTYPE>
static __device__ __forceinline__ void tokens_store_two(const decode_args &p, int token, int col, bool second,
                                                        const float *v)
{
    const uint4 words = num_pack<DTYPE>(v);
    uint16_t *to = (uint16_t *)p.out + token * p.ld_d + col, *below = to + 8 * p.ld_d;

    if (token < p.m)
        *(uint32_t *)to = words.x;
    if (token + 8 < p.m)
        *(uint32_t *)below = words.y;
    if (second && token < p.m)
        *(uint32_t *)(to + 8) = words.z;
    if (second && token + 8 < p.m)
        *(uint32_t *)(below + 8) = words.w;
}

/* Moves the registers of all units down by `by` units. */
template <int H> static __device__ __forceinline__ void tokens_shift(int by, float *fin)
{
#pragma unroll
    for (int i = 0; i < H / 2; i++)
        fin[i] = i + 4 * by < H / 2 ? fin[i + 4 * by] : 0.0f;
}

/* Moves the second `units` units of a tile into the registers of the first. */
template <int H> static __device__ __forceinline__ void tokens_shift_half(int units, float *fin)
{
#pragma unroll
    for (int u = 1; u <= H / 16; u++)
        if (u == units)
#pragma unroll
            for (int i = 0; i < 4 * u; i++)
                fin[i] = fin[i + 4 * u];
}

/* The epilogue of a tile: adds the partial sums of this rank's units and stores them. The loop handles two units,
 * always in the same registers, and moves the other units' registers down: code that runs once costs as much as
 * fetching it. */
template <int H, int MODE>
static __device__ __forceinline__ void tokens_epilogue(const decode_args &p, decode_smem<64> *s, const decode_work &a,
                                                       int tile, int slot, uint32_t pass, const tokens_row_values &rows,
                                                       float *fin)
{
    const int lane = threadIdx.x % 32, split = 1 << p.split_shift, token = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int begin = p.unit_begin[a.rank], end = p.unit_begin[a.rank + 1];
    const float scale_x[2] = {s->scale_x[0][token], s->scale_x[0][token + 8]};
    int col = tile * p.block_n + 8 * begin;

#pragma unroll 1
    for (int u = 0; u < begin; u++)
        tokens_shift<H>(1, fin);
    if (split > 1) {
        ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), pass & 1);
        __syncwarp();
    }
#pragma unroll 1
    for (int u = begin; u < end; u += 2, col += 16) {
        const bool second = u + 1 < end;

        if (split > 1) {
            tokens_reduce(p, s, a.rank, slot, u - begin, fin);
            if (second)
                tokens_reduce(p, s, a.rank, slot, u + 1 - begin, fin + 4);
        }
        tokens_scale<MODE>(p, rows, u, scale_x, fin);
        tokens_scale<MODE>(p, rows, u + 1, scale_x, fin + 4);
        if (p.vector_d && col + (second ? 16 : 8) <= p.n) {
            if (p.dtype == RIDGE_BF16)
                tokens_store_two<RIDGE_BF16>(p, token, col + lane % 4 * 2, second, fin);
            else
                tokens_store_two<RIDGE_F16>(p, token, col + lane % 4 * 2, second, fin);
        } else {
            tokens_store(p, token, col + lane % 4 * 2, fin);
            if (second)
                tokens_store(p, token, col + 8 + lane % 4 * 2, fin + 4);
        }
        tokens_shift<H>(2, fin);
        __syncwarp(); /* converges lanes without rows or tokens before warp-wide instructions */
    }
    /* the warp has read the sums (the __syncwarp above); there is a next pass that sends */
    if (lane < split && split > 1 && tile + TILES_PER_PASS < a.last)
        ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
}

/* The same where k is split in two at most: results go to shared memory, and TMA stores a warp's 16 tokens as whole
 * rows. Straight code, two units at a time. */
template <int H, int MODE, int DTYPE>
static __device__ __forceinline__ void tokens_epilogue_tma(const decode_args &p, decode_smem<64> *s,
                                                           const decode_work &a, int tile, int slot, uint32_t pass,
                                                           const tokens_row_values &rows, float *fin)
{
    const int lane = threadIdx.x % 32, warp = warp_in_group(), token = warp * 16 + lane / 4, count = p.tma_units;
    const int begin = count * a.rank;
    const float scale_x[2] = {s->scale_x[0][token], s->scale_x[0][token + 8]};
    const uint32_t row = (uint32_t)count * 16,
                   panel = smem_base(s) + (uint32_t)p.off_d + (uint32_t)(slot % GROUPS * 4 + warp) * 16 * row,
                   at = panel + (uint32_t)(lane % 16) * row;

    if (begin)
        tokens_shift_half<H>(count, fin);
    if (lane == 0)
        ptx_tma_wait_read(); /* TMA has read the panel's previous tile */
    if (p.split_shift)
        ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), pass & 1);
    __syncwarp();
#pragma unroll
    for (int u = 0; u < H / 8; u += 2) {
        uint4 words;
        uint32_t to;

        if (u >= count)
            break;
        if (p.split_shift) {
            tokens_reduce_two(p, s, slot, u, fin + 4 * u);
            if (u + 1 < count)
                tokens_reduce_two(p, s, slot, u + 1, fin + 4 * u + 4);
        }
        tokens_scale<MODE>(p, rows, begin + u, scale_x, fin + 4 * u);
        tokens_scale<MODE>(p, rows, begin + u + 1, scale_x, fin + 4 * u + 4);
        words = num_pack<DTYPE>(fin + 4 * u);
        if (u + 1 == count) /* the last unit twice, at the same address */
            words.z = words.x, words.w = words.y;
        to = at + (uint32_t)min(u + lane / 16, count - 1) * 16;
        __syncwarp();
        ptx_store_matrix(to ^ (to >> 3 & p.d_swizzle), words.x, words.y, words.z, words.w);
    }
    ptx_fence_async();
    __syncwarp();
    if (lane == 0 && warp * 16 < p.m) {
        ptx_tma_store_2d(&p.d, tile * p.block_n + 8 * begin, warp * 16, panel);
        ptx_tma_commit();
    }
    if (p.split_shift && lane < 2 && tile + TILES_PER_PASS < a.last)
        ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
    __syncwarp();
}

/* An MMA warpgroup: tiles group and group + 2 of every pass. It sends the partial sums of all tiles of a pass before it
 * reduces the first. */
template <int H, int MODE, int FORMATS>
static __device__ __forceinline__ void tokens_consume(const decode_args &p, decode_smem<64> *s, const decode_work &a,
                                                      int group)
{
    decode_consumer r = consumer_start<64>(p, s, group);
    uint32_t pass = 0;

    for (int tile = a.first; tile < a.last; tile += TILES_PER_PASS, pass++) {
        const int count = min((int)TILES_PER_PASS, a.last - tile), own = (count + 1 - group) / 2;
        float fin[TILES_PER_GROUP][H / 2];
        tokens_row_values rows[TILES_PER_GROUP];
        int edge[TILES_PER_GROUP];

#pragma unroll
        for (int i = 0; i < TILES_PER_GROUP; i++) {
            rows[i] = tokens_load_rows<MODE>(p, tile + GROUPS * i + group);
            edge[i] = (128 - (tile + GROUPS * i + group) * p.block_n % 128) / 8;
#pragma unroll
            for (int j = 0; j < H / 2; j++)
                fin[i][j] = 0.0f;
        }
        tokens_mainloop<H, MODE, FORMATS>(p, s, a, &r, own, edge, fin);
        if (p.split_shift)
#pragma unroll
            for (int i = 0; i < TILES_PER_GROUP; i++)
                if (i < own)
                    tokens_send<H>(p, s, a, GROUPS * i + group, pass, fin[i]);
#pragma unroll 1
        for (int i = 0; i < own; i++) { /* one copy of the code for both tiles */
            if (!p.tma_units)
                tokens_epilogue<H, MODE>(p, s, a, tile + GROUPS * i + group, GROUPS * i + group, pass, rows[0], fin[0]);
            else if (p.dtype == RIDGE_BF16)
                tokens_epilogue_tma<H, MODE, RIDGE_BF16>(p, s, a, tile + GROUPS * i + group, GROUPS * i + group, pass,
                                                         rows[0], fin[0]);
            else
                tokens_epilogue_tma<H, MODE, RIDGE_F16>(p, s, a, tile + GROUPS * i + group, GROUPS * i + group, pass,
                                                        rows[0], fin[0]);
            rows[0] = rows[1];
#pragma unroll
            for (int j = 0; j < H / 2; j++)
                fin[0][j] = fin[1][j];
        }
    }
    ptx_tma_wait_read(); /* TMA has read shared memory before the CTA exits */
}

#endif

#endif
