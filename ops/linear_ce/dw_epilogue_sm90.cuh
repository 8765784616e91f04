/* dw_epilogue_sm90.cuh: the epilogues of a tile of dW in grads_sm90.cu: 16 rows of each 64 a warp, 128 columns.
 *
 *     store_f32   f32, stored or added
 *     store_16    16 bits of one chunk, rounded
 *     add_16      16 bits of one chunk, added to the previous dW
 *     store_sums  16 bits of several chunks: the f32 sum; the last chunk rounds it
 *
 * add_targets runs before store_16 and add_16. logits_epilogue_sm90.cuh says which elements of acc thread t of the warp
 * has. All this overlaps the other consumer's main loop; but acc takes 192 of the 224 registers, so that values
 * computed early or kept for later spill. */
#ifndef RIDGE_LINEAR_CE_DW_SM90_CUH
#define RIDGE_LINEAR_CE_DW_SM90_CUH

#include "linear_sm90.cuh"

/* The targets of a class. count: the rows of the chunk that have it; row, token and du: the first of them. Of a
 * frequent target `token` is the index of its sum. */
typedef struct dw_target {
    int count, row, token;
    float du;
} dw_target;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The number of the thread among the consumers, read from its special register each time: what is computed from
 * threadIdx.x may be kept from tile to tile, and spills. */
static __device__ __forceinline__ uint32_t thread_anew(void)
{
    uint32_t thread;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread - 128;
}

/* Before the main loop of a tile: the targets of each class of a warp, 16 of each 64, so that only x is missing in the
 * epilogue, and x is prefetched into L2. */
template <int M>
static __device__ __forceinline__ void prefetch_targets(const ce_grads_args &a, const gemm16_plan &w, dw_target *note,
                                                        int first_row, int first_col)
{
#pragma unroll 1
    for (int i = (int)(thread_anew() % 32); i < M / 4; i += 32) {
        const int c = first_row + i / 16 * 64 + i % 16;
        const int2 same = c < w.m ? a.c.class_rows[c] : make_int2(0, 0);
        dw_target t = {same.y, same.x, 0, 0.0f};

        if (same.y > CE_FREQUENT) {
            t.token = a.c.next_row[same.x];
        } else if (same.y > 0) {
            t.token = a.c.p.list[same.x];
            t.du = a.c.target_du[same.x];
            if (first_col < w.n)
                ptx_prefetch_l2_bulk((const uint16_t *)a.c.p.x + t.token * a.c.p.x_stride + first_col,
                                     2 * min(G16_1X2_N, w.n - first_col));
        }
        note[i] = t;
    }
}

/* Adds du_y x of all rows of the chunk whose target is one of this thread's two classes, in order, or the sum formed
 * beforehand, times `scale`. note: of the thread's first class. (target_grads.cu adds them to an f32 dW.) */
template <int BF16>
static __device__ __forceinline__ void add_targets(const ce_grads_args &a, const gemm16_plan &w, const dw_target *note,
                                                   int col, float scale, float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;

    col += 2 * (threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        dw_target t = note[8 * h];

        if (t.count > CE_FREQUENT) {
            const float *sum = a.c.frequent_sums + t.token * ce_frequent_length(a.c.p.hidden) + col;

            t.count = 0;
#pragma unroll
            for (int j = 0; j < G16_1X2_N / 8; j++)
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
            for (int j = 0; j < G16_1X2_N / 8; j++) {
                float x, y;

                if (col + 8 * j >= w.n)
                    continue;
                num_unpack2<dtype>(*(const uint32_t *)(line + 8 * j), &x, &y);
                acc[4 * j + 2 * h] = __fmaf_rn(t.du, x, acc[4 * j + 2 * h]);
                acc[4 * j + 2 * h + 1] = __fmaf_rn(t.du, y, acc[4 * j + 2 * h + 1]);
            }
            if (t.count > 1) {
                t.row = a.c.next_row[t.row];
                t.token = a.c.p.list[t.row];
                t.du = a.c.target_du[t.row];
            }
        }
    }
}

/* Threads exchange two columns, so that each has four in order. row: the thread's first. */
template <int BF16>
static __device__ __forceinline__ void store_f32(const ce_grads_args &a, const gemm16_plan &w, int row, int col,
                                                 float scale, const float *acc)
{
    const bool odd = threadIdx.x % 2;

    col += threadIdx.x % 4 / 2 * 4 + odd * 8;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = (float *)a.dw_at.own + (row + 8 * h) * a.dw_at.own_ld + col;
        const int cols = row + 8 * h < w.m ? w.n - col : 0;

#pragma unroll
        for (int j = 0; j < G16_1X2_N / 8; j += 2) {
            const float2 even_one = {acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]},
                         odd_one = {acc[4 * j + 4 + 2 * h], acc[4 * j + 5 + 2 * h]};
            const float x = __shfl_xor_sync(~0u, odd ? even_one.x : odd_one.x, 1),
                        y = __shfl_xor_sync(~0u, odd ? even_one.y : odd_one.y, 1);
            float4 v = odd ? make_float4(x, y, odd_one.x, odd_one.y) : make_float4(even_one.x, even_one.y, x, y);

            if (!BF16)
                v = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
            if (cols <= 8 * j)
                continue;
            if (a.reads != CE_DW_NONE)
                ptx_add_f32x4(to + 8 * j, v);
            else
                *(float4 *)(to + 8 * j) = v;
        }
    }
}

/* 64 columns at a time, transposed in shared memory so that whole lines are written. row: the warp's first. */
template <int BF16>
static __device__ __forceinline__ void store_16(const ce_grads_args &a, const gemm16_plan &w, uint8_t *panel, int row,
                                                int col, float scale, const float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    const int lane = (int)(thread_anew() % 32);
    const int from = lane % 16, line = lane / 8, vec = lane % 8, rows = w.m - row - line, cols = w.n - col - 8 * vec;

#pragma unroll
    for (int q = 0; q < G16_1X2_N / 64; q++) {
        __syncwarp(); /* orders the reads of the previous panel before these writes */
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
        __syncwarp(); /* orders the writes before the reads of other lanes */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 v = *(const uint4 *)(panel + (line + 4 * k) * 128 + (vec ^ (line + 4 * k & 7)) * 16);

            if (rows > 4 * k && cols > 64 * q)
                *(uint4 *)(a.dw_at.own + (row + line + 4 * k) * a.dw_at.own_ld + col + 8 * vec + 64 * q) = v;
        }
    }
}

/* The previous dW of a warp's rows, 16 of each 64, is prefetched into L2 while the first of it is loaded. (Prefetched
 * before the main loop it is 26 MB for all SMs, and a part of it has left L2 again when it is needed.) */
template <int M>
static __device__ __forceinline__ void prefetch_dw(const ce_grads_args &a, const gemm16_plan &w, int first_row,
                                                   int first_col)
{
    const int bytes = 2 * min(G16_1X2_N, w.n - first_col);
    const ce_dw &d = a.dw_at;
    const uint32_t lane = thread_anew() % 32;
    const bool own = lane < 16;

    if (bytes <= 0 || a.reads == CE_DW_NONE || (!own && a.reads == CE_DW_OUT))
        return;
#pragma unroll
    for (int i = 0; i < M / 64; i++) {
        const int row = first_row + 64 * i + (int)(lane % 16);

        if (row < w.m)
            ptx_prefetch_l2_bulk((own ? d.own + row * d.own_ld : d.spare + row * d.spare_ld) + first_col, bytes);
    }
}

/* A quad of threads has 32 columns of a row; of each 8 columns thread i has 2 i and 2 i + 1. Afterwards it has all 8 of
 * columns 8 i to 8 i + 7. */
static __device__ __forceinline__ void transpose_quad(const float *acc, int h, float *v)
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

/* row: the thread's first. DEEP: loads in flight; there are registers for more when the first 64 rows are stored. */
template <int BF16, int DEEP>
static __device__ __forceinline__ void add_16(const ce_grads_args &a, const gemm16_plan &w, int row, int col,
                                              float scale, const float *acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;

    col += threadIdx.x % 4 * 8;
    asm volatile("" : "+r"(row), "+r"(col)); /* addresses are computed here: kept they would spill */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint4 *to = (uint4 *)(a.dw_at.own + (row + 8 * h) * a.dw_at.own_ld + col), old[DEEP];
        const int cols = row + 8 * h < w.m ? w.n - col : 0;

#pragma unroll
        for (int q = 0; q < G16_1X2_N / 32; q++) {
            float v[8], sum[8];

#pragma unroll
            for (int i = 0; i < DEEP && q % DEEP == 0; i++)
                old[i] = cols > 32 * (q + i) ? to[4 * (q + i)] : make_uint4(0, 0, 0, 0);
            transpose_quad(acc + 16 * q, h, v);
            num_unpack<dtype>(old[q % DEEP], sum);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] += BF16 ? v[e] : v[e] * scale;
            if (cols > 32 * q)
                to[4 * q] = num_pack<dtype>(sum);
        }
    }
}

/* Eight columns of the previous 16-bit dW, or of its f32 sum. */
typedef struct dw_prior {
    uint4 own, spare;
} dw_prior;

static __device__ __forceinline__ dw_prior load_prior(const ce_grads_args &a, const uint16_t *own,
                                                      const uint16_t *spare, bool there)
{
    dw_prior old = {};

    if (there && a.reads != CE_DW_NONE)
        old.own = *(const uint4 *)own;
    if (there && a.reads == CE_DW_SUM)
        old.spare = *(const uint4 *)spare;
    return old;
}

/* v plus the previous value: rounded to dW, or to the f32 sum. */
template <int BF16>
static __device__ __forceinline__ void store_sum8(const ce_grads_args &a, uint16_t *own, uint16_t *spare, bool there,
                                                  const dw_prior &old, float *v)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    float sum[8];

    *(uint4 *)sum = old.own;
    *(uint4 *)(sum + 4) = old.spare;
    if (a.reads == CE_DW_OUT)
        num_unpack<dtype>(old.own, sum);
#pragma unroll
    for (int e = 0; e < 8; e++)
        v[e] += sum[e];
    if (!there)
        return;
    if (a.writes == CE_DW_OUT) {
        *(uint4 *)own = num_pack<dtype>(v);
    } else if (a.writes == CE_DW_SUM_ADD) {
        ptx_add_f32x4((float *)own, make_float4(v[0], v[1], v[2], v[3]));
        ptx_add_f32x4((float *)spare, make_float4(v[4], v[5], v[6], v[7]));
    } else {
        ce_store_sum(own, spare, v);
    }
}

/* row and DEEP: as in add_16. */
template <int BF16, int DEEP>
static __device__ __forceinline__ void store_sums(const ce_grads_args &a, const gemm16_plan &w, int row, int col,
                                                  float scale, const float *acc)
{
    const ce_dw &d = a.dw_at;

    col += threadIdx.x % 4 * 8;
    asm volatile("" : "+r"(row), "+r"(col)); /* addresses are computed here: kept they would spill */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint16_t *own = d.own + (row + 8 * h) * d.own_ld + col, *spare = d.spare + (row + 8 * h) * d.spare_ld + col;
        const bool live = row + 8 * h < w.m;
        dw_prior old[DEEP];

#pragma unroll
        for (int q = 0; q < G16_1X2_N / 32; q++) {
            float v[8];

#pragma unroll
            for (int i = 0; i < DEEP && q % DEEP == 0; i++)
                old[i] = load_prior(a, own + 32 * (q + i), spare + 32 * (q + i), live && w.n > col + 32 * (q + i));
            transpose_quad(acc + 16 * q, h, v);
#pragma unroll
            for (int e = 0; e < 8 && !BF16; e++)
                v[e] *= scale;
            store_sum8<BF16>(a, own + 32 * q, spare + 32 * q, live && w.n > col + 32 * q, old[q % DEEP], v);
        }
    }
}

#endif

#endif
