/* decode_swap_ab_sm90.cuh: the MMA warpgroups of decode_sm90.cu with swapped operands (up to 32 tokens): the weights
 * are the instruction's 64 rows, the tokens its N columns. Mainloop, split-K reduction and epilogue. */
#ifndef RIDGE_GEMM_FP8_DECODE_SWAP_AB_CUH
#define RIDGE_GEMM_FP8_DECODE_SWAP_AB_CUH

#include "decode_pipeline_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Rank r of the cluster reduces and stores units r, r + split, ... of a tile: `own` units, of at most `max` a rank. */
typedef struct rank_units {
    int all, own, max;
} rank_units;

static __device__ __forceinline__ rank_units units_of(const decode_args &p, int rank)
{
    const int split = 1 << p.split_shift;
    rank_units u;

    u.all = p.block_n / 8;
    u.own = (u.all + split - 1 - rank) >> p.split_shift;
    u.max = (u.all + split - 1) >> p.split_shift;
    return u;
}

/* The offset in shared memory of lane's N / 4 partial sums of a unit, from the `from`th of the other ranks. A slot has
 * `max` units of each rank. */
template <int N>
static __device__ __forceinline__ uint32_t partial_offset(const decode_args &p, int slot, int from, int unit, int max,
                                                          int lane)
{
    return (uint32_t)(p.off_sums + ((slot * ((1 << p.split_shift) - 1) + from) * max + unit) * 8 * N * 4 +
                      lane * (N == 8 ? 8 : 16));
}

/* Sends the partial sums of a tile's units that other ranks reduce, to those ranks' shared memory. */
template <int N>
static __device__ __forceinline__ void swap_ab_send(const decode_args &p, decode_smem<N> *s, int rank, int slot,
                                                    uint32_t pass, const float *fin)
{
    const int warp = warp_in_group(), lane = threadIdx.x % 32, split = 1 << p.split_shift;
    const rank_units units = units_of(p, rank);

    /* All ranks have read the previous pass's sums: that phase of sums_full is complete, and ours may be expected. */
    ptx_mbarrier_wait(ptx_shared(&s->sums_free[slot]), (pass & 1) ^ 1);
    if (threadIdx.x % 128 == 0)
        ptx_mbarrier_expect(ptx_shared(&s->sums_full[slot]), (uint32_t)((split - 1) * units.own * 8 * N * 4));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int unit = 2 * warp + half, to = unit & (split - 1), from = rank < to ? rank : rank - 1;
        const uint32_t full = ptx_map(ptx_shared(&s->sums_full[slot]), (uint32_t)to);
        const uint32_t at = ptx_map(
            ptx_shared(s) + partial_offset<N>(p, slot, from, unit >> p.split_shift, units.max, lane), (uint32_t)to);

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

/* Adds the partial sums of all ranks of `unit` into the first half of fin, in ascending k. */
template <int N>
static __device__ __forceinline__ void swap_ab_reduce(const decode_args &p, const decode_smem<N> *s, int rank, int slot,
                                                      int unit, int max, float *fin)
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < (N + 15) / 16; j++) {
        float *own = fin + 8 * j, v[4] = {};

        for (int from = 0; from < 1 << p.split_shift; from++) {
            const uint8_t *at = (const uint8_t *)s +
                                partial_offset<N>(p, slot, from < rank ? from : from - 1, unit, max, lane) + 512 * j;
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

/* Scales (SCALE_EPILOGUE), adds bias and stores the first half of fin: row `row` of weights, N / 4 tokens, singly. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void swap_ab_store(const decode_args &p, const decode_smem<N> *s, int row,
                                                     float scale, const float *fin)
{
    int token = threadIdx.x % 4 * 2;
    int64_t at = token * p.ld_d + row;
    const float bias = load_bias(p, row);

#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float x = fin[i / 2 * 4 + i % 2];

        if (MODE == SCALE_EPILOGUE)
            x *= s->scale_x[0][token] * scale;
        if (p.bias)
            x += bias;
        if (token < p.m)
            num_store<DTYPE>(p.out, at, p.accumulate ? x + num_load<DTYPE>(p.out, at) : x);
        token += i % 2 ? 7 : 1;
        at += (i % 2 ? 7 : 1) * p.ld_d;
    }
}

/* The same for both units of a warp where k is not split: 16 rows of weights, so 32 bytes of D a token, 8 a lane. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void swap_ab_store16(const decode_args &p, const decode_smem<N> *s, int tile,
                                                       const float *scale, const float *fin)
{
    const int lane = threadIdx.x % 32, first = tile * p.block_n + threadIdx.x / 32 % 4 * 16, row = first + lane / 4;
    const int unit = threadIdx.x / 32 % 4 * 2 + lane % 4 / 2, from = lane & ~3 | lane % 2 * 2;
    const float bias[2] = {load_bias(p, min(row, p.n - 1)), load_bias(p, min(row + 8, p.n - 1))};
    uint16_t *to = (uint16_t *)p.out + (int64_t)(lane / 4) * p.ld_d + first + lane % 4 * 4;

#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float v[8] = {};
        uint4 words;
        uint2 upper, lower;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = fin[4 * j + i];
            if (MODE == SCALE_EPILOGUE)
                v[i] *= s->scale_x[0][8 * j + lane % 4 * 2 + i % 2] * scale[i / 2];
            if (p.bias)
                v[i] += bias[i / 2];
        }
        words = num_pack<DTYPE>(v);
        words.x = ptx_transpose(words.x); /* two rows of weights of a token instead of two tokens of a row */
        words.y = ptx_transpose(words.y);
        upper = make_uint2(__shfl_sync(~0u, words.x, from), __shfl_sync(~0u, words.x, from + 1));
        lower = make_uint2(__shfl_sync(~0u, words.y, from), __shfl_sync(~0u, words.y, from + 1));
        if (8 * j + lane / 4 < p.m && unit < p.block_n / 8 && first + lane % 4 * 4 < p.n)
            *(uint2 *)(to + (int64_t)(8 * j) * p.ld_d) = lane % 4 < 2 ? upper : lower;
    }
}

/* The same for one unit, the first half of fin: 16 bytes of D a token, 4 a lane. first: its first row. */
template <int N, int MODE, int DTYPE>
static __device__ __forceinline__ void swap_ab_store8(const decode_args &p, const decode_smem<N> *s, int first,
                                                      float scale, const float *fin)
{
    const int lane = threadIdx.x % 32;
    const float bias = load_bias(p, min(first + lane / 4, p.n - 1));
    uint16_t *to = (uint16_t *)p.out + (int64_t)(lane / 4) * p.ld_d + first + lane % 4 * 2;

#pragma unroll
    for (int from = 0; from < N / 8; from += 4) {
        float v[8] = {};
        uint4 words;

#pragma unroll
        for (int i = 0; i < (N < 32 ? N / 4 : 8); i++) {
            const int j = from + i / 2;

            v[i] = fin[4 * j + i % 2];
            if (MODE == SCALE_EPILOGUE)
                v[i] *= s->scale_x[0][8 * j + lane % 4 * 2 + i % 2] * scale;
            if (p.bias)
                v[i] += bias;
        }
        words = num_pack<DTYPE>(v);
#pragma unroll
        for (int j = 0; j < (N < 32 ? N / 8 : 4); j++) {
            const uint32_t word = ptx_transpose(j == 0 ? words.x : j == 1 ? words.y : j == 2 ? words.z : words.w);

            if (8 * (from + j) + lane / 4 < p.m && first < p.n)
                *(uint32_t *)(to + (int64_t)(8 * (from + j)) * p.ld_d) = word;
        }
    }
}

/* The epilogue of a tile: for each of this warp's two units that this rank owns, adds the partial sums and stores. */
template <int N, int MODE>
static __device__ __forceinline__ void swap_ab_epilogue(const decode_args &p, decode_smem<N> *s, const decode_work &a,
                                                        int tile, int slot, uint32_t pass, const float *scale,
                                                        float *fin)
{
    const int warp = warp_in_group(), lane = threadIdx.x % 32, split = 1 << p.split_shift;
    const rank_units units = units_of(p, a.rank);
    float own =
        scale[0]; /* not scale[half]: the array would be in local memory, stored before the first stage's loads */

    if (split == 1 && p.vector_d) {
        if (p.dtype == RIDGE_BF16)
            swap_ab_store16<N, MODE, RIDGE_BF16>(p, s, tile, scale, fin);
        else
            swap_ab_store16<N, MODE, RIDGE_F16>(p, s, tile, scale, fin);
        return;
    }
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int unit = 2 * warp + half, row = tile * p.block_n + unit * 8 + lane / 4;

        if (half) { /* one copy of the code below serves both units */
            own = scale[1];
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                fin[i / 2 * 4 + i % 2] = fin[i / 2 * 4 + 2 + i % 2];
        }
        if ((unit & (split - 1)) != a.rank || unit >= units.all)
            continue;
        if (split > 1) {
            ptx_mbarrier_wait(ptx_shared(&s->sums_full[slot]), pass & 1);
            swap_ab_reduce<N>(p, s, a.rank, slot, unit >> p.split_shift, units.max, fin);
            __syncwarp(); /* every lane's reads of the sums come before their release */
            if (lane < split && tile + TILES_PER_PASS < a.last) /* there is a next pass that sends */
                ptx_mbarrier_arrive_cluster(ptx_map(ptx_shared(&s->sums_free[slot]), (uint32_t)lane));
        }
        if (p.vector_d && p.dtype == RIDGE_BF16)
            swap_ab_store8<N, MODE, RIDGE_BF16>(p, s, tile * p.block_n + unit * 8, own, fin);
        else if (p.vector_d)
            swap_ab_store8<N, MODE, RIDGE_F16>(p, s, tile * p.block_n + unit * 8, own, fin);
        else if (row < p.n && p.dtype == RIDGE_BF16)
            swap_ab_store<N, MODE, RIDGE_BF16>(p, s, row, own, fin);
        else if (row < p.n && p.dtype == RIDGE_F16)
            swap_ab_store<N, MODE, RIDGE_F16>(p, s, row, own, fin);
        else if (row < p.n)
            swap_ab_store<N, MODE, RIDGE_F32>(p, s, row, own, fin);
    }
    __syncwarp(); /* converges lanes without rows or tokens before warp-wide instructions */
}

/* The scales of a block of k that a thread needs: of its N / 4 tokens, and of its two rows of weights (bit h of `which`
 * picks the scale of half h). */
template <int N> struct block_scales {
    float2 x[N / 8];
    float upper, lower;
};

template <int N>
static __device__ __forceinline__ block_scales<N> load_block_scales(const decode_smem<N> *s, uint32_t block, int slot,
                                                                    uint32_t which)
{
    block_scales<N> v;

#pragma unroll
    for (int j = 0; j < N / 8; j++)
        v.x[j] = *(const float2 *)&s->scale_x[block][8 * j + threadIdx.x % 4 * 2];
    v.upper = s->scale_w[block][slot][which & 1];
    v.lower = s->scale_w[block][slot][which >> 1];
    return v;
}

/* The products of scales, in the order of fin. */
template <int N> static __device__ __forceinline__ void scale_products(const block_scales<N> &v, float *factor)
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
static __device__ __forceinline__ void swap_ab_promote(const float *factor, float *acc, float *fin)
{
    wgmma_pin<N / 2>(acc); /* keeps the compiler from using acc before the wait */
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        fin[i] = MODE == SCALE_BLOCK ? __fmaf_rn(factor[i], acc[i], fin[i]) : fin[i] + acc[i];
}

/* Issues the wgmma of T blocks into acc, as one group. w, x: the addresses of their first boxes. */
template <int N, int FORMATS, int T>
static __device__ __forceinline__ void swap_ab_issue(uint32_t w, uint32_t x, uint32_t box, float (*acc)[N / 2])
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

/* A full stage, C blocks: the wgmma of T blocks are in flight while the T before are promoted. The scales are loaded
 * before the wait for the weights. */
template <int N, int MODE, int FORMATS, int C>
static __device__ __forceinline__ void swap_ab_stage_full(const decode_smem<N> *s, const decode_consumer *r, int slot,
                                                          uint32_t which, float *fin)
{
    enum { T = BATCH(N), ALL = C / T };
    const uint32_t first = r->x.stage * C, x = r->base + FIXED_SMEM(N) + first * (N * BK),
                   w = r->w_at + r->w.stage * C * r->w_box;
    block_scales<N> scales[C] = {};
    float acc[2][T][N / 2], factor[T][N / 2];

    if (MODE == SCALE_BLOCK)
#pragma unroll
        for (int u = 0; u < C; u++)
            scales[u] = load_block_scales<N>(s, first + u, slot, which);
    consumer_wait(r);
#pragma unroll
    for (int u = 0; u <= ALL; u++) {
        if (u < ALL)
            swap_ab_issue<N, FORMATS, T>(w + u * T * r->w_box, x + u * T * (N * BK), r->w_box, acc[u % 2]);
        if (u == 0)
            continue;
        if (MODE == SCALE_BLOCK)
#pragma unroll
            for (int t = 0; t < T; t++)
                scale_products<N>(scales[(u - 1) * T + t], factor[t]);
        if (u < ALL)
            wgmma_wait_before();
        else
            wgmma_wait();
#pragma unroll
        for (int t = 0; t < T; t++)
            swap_ab_promote<N, MODE>(factor[t], acc[(u - 1) % 2][t], fin);
    }
}

/* The last stage of k, if it is not full: block by block. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void swap_ab_stage_tail(const decode_smem<N> *s, const decode_consumer *r,
                                                          int stage_blocks, int length, int slot, uint32_t which,
                                                          float *fin)
{
    const uint32_t first = r->x.stage * stage_blocks, x = r->base + FIXED_SMEM(N) + first * (N * BK),
                   w = r->w_at + r->w.stage * stage_blocks * r->w_box;
    float acc[1][N / 2], factor[N / 2];

    consumer_wait(r);
#pragma unroll 1
    for (int j = 0; j < length; j++) {
        swap_ab_issue<N, FORMATS, 1>(w + j * r->w_box, x + j * (N * BK), r->w_box, acc);
        if (MODE == SCALE_BLOCK)
            scale_products<N>(load_block_scales<N>(s, first + j, slot, which), factor);
        wgmma_wait();
        swap_ab_promote<N, MODE>(factor, acc[0], fin);
    }
}

/* One stage of a tile's weights. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void swap_ab_stage(const decode_smem<N> *s, decode_consumer *r, int stage_blocks,
                                                     int length, int slot, uint32_t which, float *fin)
{
    if (length < stage_blocks)
        swap_ab_stage_tail<N, MODE, FORMATS>(s, r, stage_blocks, length, slot, which, fin);
    else if (stage_blocks == MAX_STAGE_BLOCKS)
        swap_ab_stage_full<N, MODE, FORMATS, MAX_STAGE_BLOCKS>(s, r, slot, which, fin);
    else
        swap_ab_stage_full<N, MODE, FORMATS, MAX_STAGE_BLOCKS / 2>(s, r, slot, which, fin);
    consumer_release(r);
}

/* A thread's two rows of a tile: which block scale each has (SCALE_BLOCK), or their scales. */
template <int MODE>
static __device__ __forceinline__ uint32_t load_tile_scales(const decode_args &p, int tile, float *scale)
{
    const int first = tile * p.block_n, row = first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;

    if (MODE == SCALE_BLOCK)
        return (uint32_t)(min(row / 128 - first / 128, 1) | min((row + 8) / 128 - first / 128, 1) << 1);
    scale[0] = p.scale_w[p.ld_w ? min(row, p.n - 1) : 0];
    scale[1] = p.scale_w[p.ld_w ? min(row + 8, p.n - 1) : 0];
    return 0;
}

/* The mainloop: this CTA's k for `own` tiles, 0 to TILES_PER_GROUP. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void swap_ab_mainloop(const decode_args &p, const decode_smem<N> *s,
                                                        const decode_work &a, decode_consumer *r, int own,
                                                        const uint32_t *which, float (*fin)[N / 2])
{
    for (int kb = a.begin; kb < a.end; kb += p.stage_blocks) {
        const int length = min(p.stage_blocks, a.end - kb);

        pipeline_wait(r->base + SMEM_OFFSET(N, x_full), r->x);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < TILES_PER_GROUP; i++)
            if (i < own)
                swap_ab_stage<N, MODE, FORMATS>(s, r, p.stage_blocks, length, GROUPS * i + r->group, which[i], fin[i]);
        __syncwarp(); /* every lane's reads of tokens and scales come before their release */
        if (threadIdx.x % 32 == 0)
            pipeline_release(r->base + SMEM_OFFSET(N, x_empty), r->x.stage);
        pipeline_advance(&r->x, r->x_stages);
    }
}

/* An MMA warpgroup: tiles group and group + 2 of every pass. It sends the partial sums of all tiles of a pass before it
 * reduces the first. */
template <int N, int MODE, int FORMATS>
static __device__ __forceinline__ void swap_ab_consume(const decode_args &p, decode_smem<N> *s, const decode_work &a,
                                                       int group)
{
    decode_consumer r = consumer_start<N>(p, s, group);
    uint32_t pass = 0;

    for (int tile = a.first; tile < a.last; tile += TILES_PER_PASS, pass++) {
        const int count = min((int)TILES_PER_PASS, a.last - tile), own = (count + 1 - group) / 2;
        float fin[TILES_PER_GROUP][N / 2], scale[TILES_PER_GROUP][2];
        uint32_t which[TILES_PER_GROUP];

#pragma unroll
        for (int i = 0; i < TILES_PER_GROUP; i++) {
            which[i] = load_tile_scales<MODE>(p, tile + GROUPS * i + group, scale[i]);
#pragma unroll
            for (int j = 0; j < N / 2; j++)
                fin[i][j] = 0.0f;
        }
        swap_ab_mainloop<N, MODE, FORMATS>(p, s, a, &r, own, which, fin);
        if (p.split_shift)
#pragma unroll
            for (int i = 0; i < TILES_PER_GROUP; i++)
                if (i < own)
                    swap_ab_send<N>(p, s, a.rank, GROUPS * i + group, pass, fin[i]);
#pragma unroll
        for (int i = 0; i < TILES_PER_GROUP; i++)
            if (i < own)
                swap_ab_epilogue<N, MODE>(p, s, a, tile + GROUPS * i + group, GROUPS * i + group, pass, scale[i],
                                          fin[i]);
    }
}

#endif

#endif
