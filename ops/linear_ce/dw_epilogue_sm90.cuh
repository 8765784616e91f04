/* dw_epilogue_sm90.cuh: the ends of a tile of dW in grads_sm90.cu: a warp's 16 rows of 64, 128 columns.
 *
 *     put_f32    f32, stored or added
 *     put_once   16 bits of one chunk, rounded
 *     put_added  16 bits of one chunk, added to what there is
 *     put_sums   16 bits of several chunks: the f32 sum of all but the last, which rounds it
 *
 * put_once and put_added come after add_targets. Thread t of the warp holds of acc what
 * logits_epilogue_sm90.cuh says. All this runs beside the other warpgroup's products; but 192 of 224 registers are
 * acc's, so that what is made beforehand, or kept for later, spills. */
#ifndef RIDGE_CE_DW_SM90_CUH
#define RIDGE_CE_DW_SM90_CUH

#include "linear_sm90.cuh"

/* The first target of a class. count: of the chunk's rows that have it; where their sum was made before, `token` is its
 * place. */
typedef struct dw_target {
    int count, row, token;
    float du;
} dw_target;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Before a tile's product: that of each of a warp's classes, 16 of each 64, so that only x is missing afterwards, which
 * is brought to L2. */
template <int M>
static __device__ __forceinline__ void note_targets(const ce_gradients &a, const gemm16_work &w, dw_target *note,
                                                    int first_row, int first_col)
{
    int i = threadIdx.x % 32;

    asm volatile("" : "+r"(i)); /* what is made of it is made here: kept from tile to tile it would spill */
#pragma unroll 1
    for (; i < M / 4; i += 32) {
        const int c = first_row + i / 16 * 64 + i % 16;
        const int2 same = c < w.m ? a.c.same[c] : make_int2(0, 0);
        dw_target t = {same.y, same.x, 0, 0.0f};

        if (same.y > CE_COMMON) {
            t.token = a.c.next[same.x];
        } else if (same.y > 0) {
            t.token = a.c.p.list[same.x];
            t.du = a.c.at_target[same.x];
            if (first_col < w.n)
                ptx_prefetch_l2_bulk((const uint16_t *)a.c.p.x + t.token * a.c.p.x_stride + first_col,
                                     2 * min(G16_TALL_N, w.n - first_col));
        }
        note[i] = t;
    }
}

/* du_y x of all rows of the chunk whose target is one of this thread's two classes, in order, or the sum made before,
 * times `scale`. note: of the first one. (To an f32 dW a step adds it.) */
template <int BF16>
static __device__ __forceinline__ void add_targets(const ce_gradients &a, const gemm16_work &w, const dw_target *note,
                                                   int col, float scale, float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;

    col += 2 * (threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        dw_target t = note[8 * h];

        if (t.count > CE_COMMON) {
            const float *sum = a.c.sums + t.token * ce_sum_length(a.c.p.hidden) + col;

            t.count = 0;
#pragma unroll
            for (int j = 0; j < G16_TALL_N / 8; j++)
                if (col + 8 * j < w.n) {
                    const float2 v = *(const float2 *)(sum + 8 * j);

                    acc[4 * j + 2 * h] += v.x * scale;
                    acc[4 * j + 2 * h + 1] += v.y * scale;
                }
        }
        for (; t.count > 0; t.count--) {
            const uint16_t *line = (const uint16_t *)a.c.p.x + t.token * a.c.p.x_stride + col;

            t.du *= scale;
#pragma unroll
            for (int j = 0; j < G16_TALL_N / 8; j++) {
                float x, y;

                if (col + 8 * j >= w.n)
                    continue;
                num_unpack2<dtype>(*(const uint32_t *)(line + 8 * j), &x, &y);
                acc[4 * j + 2 * h] = __fmaf_rn(t.du, x, acc[4 * j + 2 * h]);
                acc[4 * j + 2 * h + 1] = __fmaf_rn(t.du, y, acc[4 * j + 2 * h + 1]);
            }
            if (t.count > 1) {
                t.row = a.c.next[t.row];
                t.token = a.c.p.list[t.row];
                t.du = a.c.at_target[t.row];
            }
        }
    }
}

/* Threads exchange two columns so that each has four in order. row: the thread's first. */
template <int BF16>
static __device__ __forceinline__ void put_f32(const ce_gradients &a, const gemm16_work &w, int row, int col,
                                               float scale, const float *acc)
{
    const bool odd = threadIdx.x % 2;

    col += threadIdx.x % 4 / 2 * 4 + odd * 8;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = (float *)a.dw_at.own + (row + 8 * h) * a.dw_at.own_ld + col;
        const int cols = row + 8 * h < w.m ? w.n - col : 0;

#pragma unroll
        for (int j = 0; j < G16_TALL_N / 8; j += 2) {
            const float2 even_one = {acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]},
                         odd_one = {acc[4 * j + 4 + 2 * h], acc[4 * j + 5 + 2 * h]};
            const float x = __shfl_xor_sync(~0u, odd ? even_one.x : odd_one.x, 1),
                        y = __shfl_xor_sync(~0u, odd ? even_one.y : odd_one.y, 1);
            float4 v = odd ? make_float4(x, y, odd_one.x, odd_one.y) : make_float4(even_one.x, even_one.y, x, y);

            if (!BF16)
                v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
            if (cols <= 8 * j)
                continue;
            if (a.before != CE_DW_NOTHING)
                ptx_add_f32x4(to + 8 * j, v);
            else
                *(float4 *)(to + 8 * j) = v;
        }
    }
}

/* 64 columns at a time, turned in shared memory so that whole lines are written. row: the warp's first. */
template <int BF16>
static __device__ __forceinline__ void put_once(const ce_gradients &a, const gemm16_work &w, uint8_t *panel, int row,
                                                int col, float scale, const float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    int lane = threadIdx.x % 32;

    asm volatile("" : "+r"(lane)); /* addresses are made here: kept from tile to tile they would spill */
    const int from = lane % 16, line = lane / 8, piece = lane % 8, rows = w.m - row - line,
              cols = w.n - col - 8 * piece;

#pragma unroll
    for (int q = 0; q < G16_TALL_N / 64; q++) {
        __syncwarp(); /* what was in the panel has been read */
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const float *v = acc + 4 * (8 * q + i);
            uint32_t word[4];

#pragma unroll
            for (int e = 0; e < 4; e++)
                word[e] = BF16 ? num_pack2<dtype>(v[2 * e], v[2 * e + 1])
                               : num_pack2<dtype>(v[2 * e] * scale, v[2 * e + 1] * scale);
            ptx_store_matrix(ptx_shared(panel) + from * 128 + ((i + lane / 16) ^ (from & 7)) * 16, word[0], word[1],
                             word[2], word[3]);
        }
        __syncwarp(); /* all of the panel */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 v = *(const uint4 *)(panel + (line + 4 * k) * 128 + (piece ^ (line + 4 * k & 7)) * 16);

            if (rows > 4 * k && cols > 64 * q)
                *(uint4 *)(a.dw_at.own + (row + line + 4 * k) * a.dw_at.own_ld + col + 8 * piece + 64 * q) = v;
        }
    }
}

/* What there is of a warp's rows, 16 of each 64, is brought to L2 while the first of it is waited for. (Asked for
 * before the product it is 26 MB by all SMs, and a part of it has left L2 again when it is wanted.) */
template <int M>
static __device__ __forceinline__ void fetch_old(const ce_gradients &a, const gemm16_work &w, int first_row,
                                                 int first_col)
{
    const int bytes = 2 * min(G16_TALL_N, w.n - first_col);
    const ce_dw &d = a.dw_at;
    const bool own = threadIdx.x % 32 < 16;

    if (bytes <= 0 || a.before == CE_DW_NOTHING || (!own && a.before == CE_DW_ITSELF))
        return;
#pragma unroll
    for (int i = 0; i < M / 64; i++) {
        const int row = first_row + 64 * i + threadIdx.x % 16;

        if (row < w.m)
            ptx_prefetch_l2_bulk((own ? d.own + row * d.own_ld : d.rest + row * d.rest_ld) + first_col, bytes);
    }
}

/* A quad has a row of 32 columns: of each 8 a thread has two, by its place. Afterwards each has 8 in order, those of
 * its place. */
static __device__ __forceinline__ void turn_quad(const float *acc, int h, float *v)
{
    const bool odd = threadIdx.x % 2, late = threadIdx.x % 4 > 1;
    float half[2][4];

#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float even_one = acc[8 * i + 2 * h + e], odd_one = acc[8 * i + 4 + 2 * h + e];
            const float other = __shfl_xor_sync(~0u, odd ? even_one : odd_one, 1);

            half[i][e] = odd ? other : even_one;
            half[i][2 + e] = odd ? odd_one : other;
        }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float other = __shfl_xor_sync(~0u, late ? half[0][e] : half[1][e], 2);

        v[e] = late ? other : half[0][e];
        v[4 + e] = late ? half[1][e] : other;
    }
}

/* row: the thread's first. */
template <int BF16>
static __device__ __forceinline__ void put_added(const ce_gradients &a, const gemm16_work &w, int row, int col,
                                                 float scale, const float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;

    col += threadIdx.x % 4 * 8;
    asm volatile("" : "+r"(row), "+r"(col)); /* addresses are made here: kept they would spill */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint4 *to = (uint4 *)(a.dw_at.own + (row + 8 * h) * a.dw_at.own_ld + col), old[G16_TALL_N / 32];
        const int cols = row + 8 * h < w.m ? w.n - col : 0;

#pragma unroll
        for (int q = 0; q < G16_TALL_N / 32; q++)
            old[q] = cols > 32 * q ? to[4 * q] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int q = 0; q < G16_TALL_N / 32; q++) {
            float v[8], sum[8];

            turn_quad(acc + 16 * q, h, v);
            num_unpack<dtype>(old[q], sum);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] += BF16 ? v[e] : v[e] * scale;
            if (cols > 32 * q)
                to[4 * q] = num_pack<dtype>(sum);
        }
    }
}

/* Eight columns of a 16-bit dW, or of its sum. */
typedef struct dw_old {
    uint4 own, rest;
} dw_old;

static __device__ __forceinline__ dw_old load_old(const ce_gradients &a, const uint16_t *own, const uint16_t *rest,
                                                  bool there)
{
    dw_old old = {};

    if (there && a.before != CE_DW_NOTHING)
        old.own = *(const uint4 *)own;
    if (there && a.before == CE_DW_SUM)
        old.rest = *(const uint4 *)rest;
    return old;
}

/* v, with what there is: rounded, or to the sum. */
template <int BF16>
static __device__ __forceinline__ void put_sum(const ce_gradients &a, uint16_t *own, uint16_t *rest, bool there,
                                               const dw_old &old, float *v)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    float sum[8];

    *(uint4 *)sum = old.own;
    *(uint4 *)(sum + 4) = old.rest;
    if (a.before == CE_DW_ITSELF)
        num_unpack<dtype>(old.own, sum);
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] += sum[e];
    if (!there)
        return;
    if (a.after == CE_DW_ITSELF) {
        *(uint4 *)own = num_pack<dtype>(v);
    } else if (a.after == CE_DW_MORE) {
        ptx_add_f32x4((float *)own, make_float4(v[0], v[1], v[2], v[3]));
        ptx_add_f32x4((float *)rest, make_float4(v[4], v[5], v[6], v[7]));
    } else {
        ce_store_sum(own, rest, v);
    }
}

/* row: the thread's first. DEEP: loads in flight; registers are there when the first part of the tile is done. */
template <int BF16, int DEEP>
static __device__ __forceinline__ void put_sums(const ce_gradients &a, const gemm16_work &w, int row, int col,
                                                float scale, const float *acc)
{
    const ce_dw &d = a.dw_at;

    col += threadIdx.x % 4 * 8;
    asm volatile("" : "+r"(row), "+r"(col)); /* addresses are made here: kept they would spill */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint16_t *own = d.own + (row + 8 * h) * d.own_ld + col, *rest = d.rest + (row + 8 * h) * d.rest_ld + col;
        const bool live = row + 8 * h < w.m;
        dw_old old[DEEP];

#pragma unroll
        for (int q = 0; q < G16_TALL_N / 32; q++) {
            float v[8];

#pragma unroll
            for (int i = 0; i < DEEP && q % DEEP == 0; i++)
                old[i] = load_old(a, own + 32 * (q + i), rest + 32 * (q + i), live && w.n > col + 32 * (q + i));
            turn_quad(acc + 16 * q, h, v);
#pragma unroll
            for (int e = 0; e < 8 && !BF16; e++)
                v[e] *= scale;
            put_sum<BF16>(a, own + 32 * q, rest + 32 * q, live && w.n > col + 32 * q, old[q % DEEP], v);
        }
    }
}

#endif

#endif
