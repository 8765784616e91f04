/* grads_mma16.cu: the other two products of the linear cross entropy on every device from sm_80 on:
 *
 *     dX = n_r (P W)   -> the listed rows of dX, with the targets' du_y W_y; or a partial sum (split-K)
 *     dW = P^T (n_r x) -> f32, stored or added; or the f32 sum of a 16-bit dW; or that sum, rounded
 *
 * One launch computes both, a tile of 128 x 256 a CTA: those of dX first, whose k is the whole vocabulary, then those
 * of dW, whose k is the rows of the chunk and which fill the multiprocessors that dX leaves. gemm_bf16.cuh says which
 * elements of acc a thread has. */
#include "linear_mma16.cuh"

/* Row and column of acc[0][0][0] of a thread. */
typedef struct grads_place {
    int row, col;
} grads_place;

static __device__ __forceinline__ grads_place place_of(int first_row, int first_col)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = CE16_BLOCK_N / G80_WARP;

    return {first_row + warp / across * G80_WARP + lane / 4, first_col + warp % across * G80_WARP + lane % 4 * 2};
}

/* ---------------------------------------------------------------------------------------------------------------- dX
 */

/* The listed rows, each times its factor, with the target's part. */
template <int BF16>
static __device__ __forceinline__ void store_dx(const ce_chunk &c, const grads_place &at, int rows, const g80_acc acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16;
    const ce_params &p = c.p;
    const int64_t step = p.hv ? p.w_stride : 1;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int in = at.row + 8 * i;
        const int64_t row = c.begin + in;

        if (in >= rows)
            continue;
        const float f = c.factor[row];
        const int v = p.label[row];
        const float g = v >= 0 ? c.target_du[row] : 0.0f;
        const uint16_t *line = (const uint16_t *)p.w + (p.hv ? v : v * p.w_stride) + at.col * step;
        uint16_t *to = (uint16_t *)p.dx + p.list[row] * p.dx_stride + at.col;

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float *sum = &acc[i / 2][j][i % 2 * 2];
            float x = 0.0f, y = 0.0f;

            if (at.col + 8 * j >= p.hidden)
                continue;
            if (v >= 0) {
                x = num_load<dtype>(line, 8 * j * step);
                y = num_load<dtype>(line, (8 * j + 1) * step);
            }
            *(uint32_t *)(to + 8 * j) = num_pack2<dtype>(__fmaf_rn(g, x, sum[0] * f), __fmaf_rn(g, y, sum[1] * f));
        }
    }
}

/* A partial sum of dX (split-K): reduce_dx in row_kernels.cu adds them. */
static __device__ __forceinline__ void store_dx_partial(const ce_chunk &c, const grads_place &at, int rows, int split,
                                                        const g80_acc acc)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = at.row + 8 * i;
        float *to = c.dx_partial + (split * c.rows + row) * c.p.hidden + at.col;

        if (row < rows)
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (at.col + 8 * j < c.p.hidden)
                    *(float2 *)(to + 8 * j) = make_float2(acc[i / 2][j][i % 2 * 2], acc[i / 2][j][i % 2 * 2 + 1]);
    }
}

template <int BF16, int HV>
static __device__ __forceinline__ void compute_dx(const ce16_grads &a, int index, int rows, uint32_t shared)
{
    const ce_chunk &c = a.g.c;
    const ce_params &p = c.p;
    const int tiles = a.dx_tiles_m * a.dx_tiles_n, split = index / tiles;
    const int64_t k0 = (int64_t)split * a.dx_split_k;
    const int k = (int)min((int64_t)a.dx_split_k, p.vocab - k0);
    int tile_m, tile_n;

    ce16_tile(index % tiles, a.dx_tiles_m, a.dx_tiles_n, &tile_m, &tile_n);
    const int row = tile_m * CE16_BLOCK_M, col = tile_n * CE16_BLOCK_N;
    const uint16_t *w = (const uint16_t *)p.w;
    const g80_operand probs = {c.probs.data[0] + k0 * c.probs.ld[0] + row, c.probs.ld[0], rows - row, NULL};
    const g80_operand b = {HV ? w + col * p.w_stride + k0 : w + k0 * p.w_stride + col, p.w_stride, (int)p.hidden - col,
                           NULL};
    g80_acc acc;

    if (row >= rows)
        return;
    g80_mainloop<BF16, CE16_BLOCK_M, CE16_BLOCK_N, 1, !HV>(probs, b, k, shared, acc);
    if (a.dx_splits > 1)
        store_dx_partial(c, place_of(row, col), rows, split, acc);
    else
        store_dx<BF16>(c, place_of(row, col), rows, acc);
}

/* ---------------------------------------------------------------------------------------------------------------- dW
 */

/* The power of two that keeps n_r x in the range of f16. */
static __device__ __forceinline__ float scale_back(const ce_params &p)
{
    const uint32_t exponent = p.totals->largest >> 23;

    return p.dtype != RIDGE_F16 || exponent == 0 || exponent == 255 ? 1.0f : __uint_as_float(max(exponent, 27u) << 23);
}

/* What the tile's epilogue reads to L2, all of it at once: registers hold an eighth, and each eighth would wait for
 * memory. A thread has half a row of an f32 dW, or a row of one of the two halves of a sum. n: columns. */
static __device__ __forceinline__ void prefetch_dw(const ce_grads &g, int first_row, int first_col, int m, int n)
{
    const int64_t row = first_row + threadIdx.x / 2;
    const bool half = threadIdx.x % 2, reads_sum = g.reads == CE_DW_SUM || g.writes == CE_DW_SUM_ADD;
    const int bytes = 2 * CE16_BLOCK_N, left = (n - first_col) * (g.dw_dtype == RIDGE_F32 ? 4 : 2);
    const char *from;

    if (row >= m || (g.reads == CE_DW_NONE && !reads_sum))
        return;
    if (g.dw_dtype == RIDGE_F32)
        from = (const char *)((const float *)g.dw_at.own + row * g.dw_at.own_ld + first_col) + half * bytes;
    else if (half && !reads_sum)
        return;
    else
        from = (const char *)(half ? g.dw_at.spare + row * g.dw_at.spare_ld : g.dw_at.own + row * g.dw_at.own_ld) +
               2 * first_col;
    for (int at = 0; at < bytes; at += 64)
        if (at + (g.dw_dtype == RIDGE_F32 && half ? bytes : 0) < left)
            ptx_prefetch_l2(from + at);
}

/* An f32 dW. */
static __device__ __forceinline__ void store_dw_f32(const ce_grads &g, const grads_place &at, int m, int n, float scale,
                                                    const g80_acc acc)
{
    float *dw = (float *)g.dw_at.own + at.row * g.dw_at.own_ld + at.col;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        float2 *to = (float2 *)(dw + 8 * i * g.dw_at.own_ld), old[8];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const bool there = at.row + 8 * i < m && at.col + 8 * j < n;

            old[j] = there && g.reads != CE_DW_NONE ? to[4 * j] : make_float2(0.0f, 0.0f);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (at.row + 8 * i < m && at.col + 8 * j < n)
                to[4 * j] = make_float2(__fmaf_rn(acc[i / 2][j][i % 2 * 2], scale, old[j].x),
                                        __fmaf_rn(acc[i / 2][j][i % 2 * 2 + 1], scale, old[j].y));
    }
}

/* A 16-bit dW: its f32 sum (ce_dw), or dW itself. Of eight columns, four threads have two each; the first two threads'
 * part of the sum lies where dW has all eight. Before any of the four writes, all have read. */
template <int BF16>
static __device__ __forceinline__ void store_dw_16(const ce_grads &g, const grads_place &at, int m, int n, float scale,
                                                   const g80_acc acc)
{
    const int dtype = BF16 ? (int)RIDGE_BF16 : (int)RIDGE_F16, t = threadIdx.x % 4;
    const ce_dw &d = g.dw_at;
    const bool sums = g.writes != CE_DW_OUT, reads_sum = g.reads == CE_DW_SUM || g.writes == CE_DW_SUM_ADD;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t row = at.row + 8 * i;
        uint16_t *own = d.own + row * d.own_ld + at.col - 2 * t, *spare = d.spare + row * d.spare_ld + at.col - 2 * t;
        float *sum = (float *)(t < 2 ? own : spare) + t % 2 * 2;
        const bool live = row < m;
        float2 v[8];

#pragma unroll
        for (int j = 0; j < 8; j++) {
            const bool there = live && at.col + 8 * j < n;

            v[j] = make_float2(0.0f, 0.0f);
            if (there && reads_sum)
                v[j] = *(const float2 *)(sum + 4 * j);
            else if (there && g.reads == CE_DW_OUT)
                num_unpack2<dtype>(*(const uint32_t *)(own + 8 * j + 2 * t), &v[j].x, &v[j].y);
        }
        __syncwarp(); /* orders the reads of all four before their writes */
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j].x = __fmaf_rn(acc[i / 2][j][i % 2 * 2], scale, v[j].x);
            v[j].y = __fmaf_rn(acc[i / 2][j][i % 2 * 2 + 1], scale, v[j].y);
            if (live && at.col + 8 * j < n && sums)
                *(float2 *)(sum + 4 * j) = v[j];
            else if (live && at.col + 8 * j < n)
                *(uint32_t *)(own + 8 * j + 2 * t) = num_pack2<dtype>(v[j].x, v[j].y);
        }
    }
}

template <int BF16, int HV>
static __device__ __forceinline__ void compute_dw(const ce16_grads &a, int index, int rows, uint32_t shared)
{
    const ce_grads &g = a.g;
    const ce_chunk &c = g.c;
    const int m = (int)(HV ? c.p.hidden : c.p.vocab), n = (int)(HV ? c.p.vocab : c.p.hidden);
    int tile_m, tile_n;

    if (rows == 0 && (g.reads != CE_DW_NONE || g.writes == CE_DW_SUM_ADD))
        return; /* there is nothing to add, and round_dw rounds the sum */
    ce16_tile(index, a.dw_tiles_m, a.dw_tiles_n, &tile_m, &tile_n);
    const int row = tile_m * CE16_BLOCK_M, col = tile_n * CE16_BLOCK_N;
    const int64_t v = HV ? col : row, h = HV ? row : col;
    const g80_operand probs = {c.probs.data[0] + v * c.probs.ld[0], c.probs.ld[0], (int)(c.p.vocab - v), NULL};
    const g80_operand x = {(const uint16_t *)c.x_scaled + h, c.p.hidden, (int)(c.p.hidden - h), NULL};
    g80_acc acc;

    if (HV)
        g80_mainloop<BF16, CE16_BLOCK_M, CE16_BLOCK_N, 1, 0>(x, probs, rows, shared, acc);
    else
        g80_mainloop<BF16, CE16_BLOCK_M, CE16_BLOCK_N, 0, 1>(probs, x, rows, shared, acc);
    prefetch_dw(g, row, col, m, n);
    if (g.dw_dtype == RIDGE_F32)
        store_dw_f32(g, place_of(row, col), m, n, scale_back(c.p), acc);
    else
        store_dw_16<BF16>(g, place_of(row, col), m, n, scale_back(c.p), acc);
}

template <int BF16, int HV>
static __global__ void __launch_bounds__(G80_THREADS, 1) ce16_grads_kernel(const __grid_constant__ ce16_grads a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const int dx = a.dx_tiles_m * a.dx_tiles_n * a.dx_splits, index = blockIdx.x;

    ptx_grid_dependency_wait();
    const int rows = ce_chunk_rows(a.g.c);

    if (index < dx)
        compute_dx<BF16, HV>(a, index, rows, ptx_shared(shared));
    else
        compute_dw<BF16, HV>(a, index - dx, rows, ptx_shared(shared));
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype and layout of W. */
static const void *const functions[4] = {(const void *)ce16_grads_kernel<0, 0>, (const void *)ce16_grads_kernel<0, 1>,
                                         (const void *)ce16_grads_kernel<1, 0>, (const void *)ce16_grads_kernel<1, 1>};

ridge_status ce16_grads_prepare(const ridge_device *device)
{
    return host_prepare(device, functions, 4, cudaFuncAttributeMaxDynamicSharedMemorySize, G80_SHARED,
                        "linear_ce: loading kernels");
}

ridge_status ce16_grads_launch(const ce_job *j, ce16_grads *a)
{
    const ce_params *p = &a->g.c.p;
    const int64_t m = p->hv ? p->hidden : p->vocab, n = p->hv ? p->vocab : p->hidden;

    a->dx_splits = a->g.c.dx_splits;
    a->dx_split_k = (int)ridge_round_up(ridge_ceil_div(p->vocab, a->dx_splits), G80_BLOCK_K);
    if (a->g.dx) {
        a->dx_tiles_m = (int)ridge_ceil_div(a->g.c.rows, CE16_BLOCK_M);
        a->dx_tiles_n = (int)ridge_ceil_div(p->hidden, CE16_BLOCK_N);
    }
    if (a->g.dw) {
        a->dw_tiles_m = (int)ridge_ceil_div(m, CE16_BLOCK_M);
        a->dw_tiles_n = (int)ridge_ceil_div(n, CE16_BLOCK_N);
    }
    const int64_t blocks =
        (int64_t)a->dx_tiles_m * a->dx_tiles_n * a->dx_splits + (int64_t)a->dw_tiles_m * a->dw_tiles_n;

    if (blocks == 0)
        return RIDGE_OK;
    return host_launch_shared(j->device, j->name, functions[2 * (p->dtype == RIDGE_BF16) + p->hv],
                              dim3((unsigned)blocks), G80_THREADS, G80_SHARED, a, j->stream);
}
