/* epilogue_sm90.cuh: the epilogue of gemm_fp8 above 64 tokens on Hopper: scales by tensor and by row, bias,
 * accumulation, rounding, the stores to D. A warpgroup holds slices of 64 x BLOCK_N results, laid out as in
 * cuda/sm90/wgmma.cuh. */
#ifndef RIDGE_GEMM_FP8_EPILOGUE_SM90_CUH
#define RIDGE_GEMM_FP8_EPILOGUE_SM90_CUH

#include "args_sm90.cuh"
#include "scheduler_sm90.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* SCALE_EPILOGUE: the scales, once. The tile's rows end before `last`. Those of B pass through s->scale_b, which this
 * mode does not use otherwise: 48 loads with an address each would spill. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_scale_epilogue(const gemm_args &p, gemm_memory<T, MODE> *s, int warpgroup,
                                                           int local, int first_row, int last, int first_col,
                                                           int scale_b, float *fin)
{
    const int thread = threadIdx.x % 128, end = T::GROUPED ? last : p.m;
    float *columns = s->scale_b[warpgroup];
    const float upper = p.scale_a[p.ld_a ? min(first_row + local, end - 1) : 0];
    const float lower = p.scale_a[p.ld_a ? min(first_row + local + 8, end - 1) : 0];

    for (int i = thread; i < T::BLOCK_N; i += 128)
        columns[i] = p.scale_b[scale_b + (p.ld_b ? min(first_col + i, p.n - 1) : 0)];
    ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup,
                     128); /* orders the writes of `columns` before the reads of other threads */
#pragma unroll
    for (int j = 0; j < T::BLOCK_N / 8; j++) {
        const float2 v = *(const float2 *)&columns[8 * j + 2 * (thread % 4)];

        fin[4 * j] *= upper * v.x;
        fin[4 * j + 1] *= upper * v.y;
        fin[4 * j + 2] *= lower * v.x;
        fin[4 * j + 3] *= lower * v.y;
    }
    ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128); /* orders these reads before the next tile's writes */
}

/* `first`: of the tile's group. */
template <int DTYPE> static __device__ __forceinline__ float gemm_bias(const gemm_args &p, int first, int col)
{
    if (!p.bias || col >= p.n)
        return 0.0f;
    return p.bias_f32 ? ((const float *)p.bias)[first + col] : num_load<DTYPE>(p.bias, first + col);
}

/* The same by what the kernel writes. */
template <int OUT> static __device__ __forceinline__ float gemm_bias_of(const gemm_args &p, int first, int col)
{
    if (OUT == OUT_BF16 || (OUT == OUT_ANY && p.dtype == RIDGE_BF16))
        return gemm_bias<RIDGE_BF16>(p, first, col);
    if (OUT == OUT_ANY && p.dtype == RIDGE_F16)
        return gemm_bias<RIDGE_F16>(p, first, col);
    return gemm_bias<RIDGE_F32>(p, first, col);
}

/* Thread t of the warpgroup brings the bias of column t of the tile, loads that of column 128 + t, and reads those of
 * its own columns from shared memory. */
template <class T, int OUT>
static __device__ __forceinline__ void gemm_add_bias(const gemm_args &p, float *columns, int warpgroup, float bias,
                                                     int first, int col, float *fin)
{
    static_assert(T::BLOCK_N <= 256, "two columns a thread");
    if (threadIdx.x % 128 < T::BLOCK_N)
        columns[threadIdx.x % 128] = bias;
    if (T::BLOCK_N > 128 && threadIdx.x % 128 < T::BLOCK_N - 128)
        columns[128 + threadIdx.x % 128] = gemm_bias_of<OUT>(p, first, col + 128 + threadIdx.x % 128);
    ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128);
#pragma unroll
    for (int j = 0; j < T::BLOCK_N / 8; j++) {
        const float2 v = *(const float2 *)&columns[8 * j + 2 * (threadIdx.x % 4)];

        fin[4 * j] += v.x;
        fin[4 * j + 1] += v.y;
        fin[4 * j + 2] += v.x;
        fin[4 * j + 3] += v.y;
    }
    ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128); /* orders these reads before the next tile's writes */
}

/* One element from registers, if it lies in D. The tile's rows end before `last`. */
template <int DTYPE>
static __device__ __forceinline__ void gemm_store_one(const gemm_args &p, int row, int last, int col, float x)
{
    const int64_t at = row * p.stride + col;

    if (row >= last || col >= p.n)
        return;
    num_store<DTYPE>(p.out, at, p.accumulate ? x + num_load<DTYPE>(p.out, at) : x);
}

/* Results as words of two 16-bit elements, NaN canonical: one test a thread says whether any is NaN or infinite. */
template <int BLOCK_N, int DTYPE> static __device__ __forceinline__ void gemm_pack(const float *fin, uint32_t *words)
{
    uint32_t tail[4] = {0, 0, 0, 0}, taint;

#pragma unroll
    for (int i = 0; i < BLOCK_N / 4; i++) {
        words[i] = num_pack2<DTYPE>(fin[2 * i], fin[2 * i + 1]);
        tail[i % 4] =
            DTYPE == RIDGE_BF16 ? ptx_taint_bf16x2(words[i], tail[i % 4]) : ptx_taint_f16x2(words[i], tail[i % 4]);
    }
    taint = tail[0] | tail[1] | tail[2] | tail[3];
    if (taint & 0x7fff7fffu) /* rare */
#pragma unroll
        for (int i = 0; i < BLOCK_N / 4; i++)
            words[i] = num_canonical<DTYPE>(words[i] & 0xffffu) | num_canonical<DTYPE>(words[i] >> 16) << 16;
}

/* T::GROUPED: the first `rows` rows of a slice from its panels to D, by all threads of the warpgroup: the rows after
 * them belong to another group, so that TMA cannot store the panels. */
template <class T>
static __device__ void gemm_store_rows(const gemm_args &p, const uint8_t *panel, int first_row, int rows, int first_col)
{
    enum { COLS = T::BLOCK_N % 64 ? 32 : 64, CHUNKS = COLS / 8, BYTES = 64 * COLS * 2, ACROSS = T::BLOCK_N / 8 };

#pragma unroll 1
    for (int i = threadIdx.x % 128; i < rows * ACROSS; i += 128) {
        const int row = i / ACROSS, j = i % ACROSS, left = p.n - first_col - 8 * j;
        const int swizzle = COLS == 64 ? row % 8 : row / 2 % 4;
        const uint4 v = *(const uint4 *)(panel + j / CHUNKS * BYTES + row * (COLS * 2) + (j % CHUNKS ^ swizzle) * 16);
        uint16_t *to = (uint16_t *)p.out + (first_row + row) * p.stride + first_col + 8 * j;
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};

        if (left >= 8)
            *(uint4 *)to = v;
        else
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (c < left)
                    to[c] = (uint16_t)(words[c / 2] >> c % 2 * 16);
    }
}

/* Through shared memory to a TMA store, which overlaps the next tile. The tile's rows end before `last`. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_store_panels(const gemm_args &p, gemm_memory<T, MODE> *s, int warpgroup,
                                                         int slice, int first_row, int last, int first_col,
                                                         const uint32_t *words)
{
    /* panels of COLS columns; in a row of 128 bytes, the 16 bytes of columns 8 j lie at chunk (j % 8) ^ (row % 8), in
     * one of 64 at chunk (j % 4) ^ (row / 2 % 4) */
    enum { COLS = T::BLOCK_N % 64 ? 32 : 64, CHUNKS = COLS / 8, BYTES = 64 * COLS * 2 };
    const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 16;
    const int swizzle = thread % 32 / 16 ^ (COLS == 64 ? row % 8 : row / 2 % 4);
    const uint32_t panel = ptx_shared(s->d) + (warpgroup * T::SLICES + slice) * (T::BLOCK_N / COLS) * BYTES;
    const uint32_t to = panel + row * (COLS * 2);

    if (slice == 0) {
        if (thread == 0)
            ptx_tma_wait_read();                              /* TMA has read the previous tile from the panels, ... */
        ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128); /* ... before any thread writes them */
    }
#pragma unroll
    for (int j = 0; j < T::BLOCK_N / 8; j += 2)
        ptx_store_matrix(to + j / CHUNKS * BYTES + (j % CHUNKS ^ swizzle) * 16, words[2 * j], words[2 * j + 1],
                         words[2 * j + 2], words[2 * j + 3]);
    ptx_fence_async();
    ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128); /* orders all threads' writes before the reads of TMA */
    if (T::GROUPED && first_row + 64 > last) {
        gemm_store_rows<T>(p, s->d + (warpgroup * T::SLICES + slice) * (T::BLOCK_N / COLS) * BYTES, first_row,
                           last - first_row, first_col);
        return;
    }
    if (thread == 0) {
        const CUtensorMap *d = T::SMALL_M && warpgroup == p.warpgroups - 1 ? &p.d_tail : &p.d;

        for (int c = 0; c < T::BLOCK_N / COLS; c++)
            if (first_col + COLS * c < p.n && (T::GROUPED || first_row < p.m))
                ptx_tma_store_2d(d, first_col + COLS * c, first_row, panel + c * BYTES);
        ptx_tma_commit();
    }
}

/* OUT_BF16 */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_store_bf16(const gemm_args &p, gemm_memory<T, MODE> *s, int warpgroup,
                                                       int slice, int first_row, int last, int first_col,
                                                       const float *fin)
{
    uint32_t words[T::BLOCK_N / 4];

    gemm_pack<T::BLOCK_N, RIDGE_BF16>(fin, words);
    gemm_store_panels<T, MODE>(p, s, warpgroup, slice, first_row, last, first_col, words);
}

/* From registers, 32 bytes of a row at a time. With accumulation all loads of D are in flight at once. */
template <class T>
static __device__ __forceinline__ void gemm_store_f32_plain(const gemm_args &p, int first_row, int last, int first_col,
                                                            float *fin)
{
    const int thread = threadIdx.x % 128, lane = thread % 32, row = first_row + thread / 32 * 16 + lane / 4;
    const int col = first_col + 2 * (lane % 4);
    float2 *upper = (float2 *)((float *)p.out + row * p.stride + col), *lower = upper + 4 * p.stride;
    float2 old[T::BLOCK_N / 4];

    if (first_row + 64 > last || first_col + T::BLOCK_N > p.n) {
#pragma unroll
        for (int i = 0; i < T::BLOCK_N / 2; i++)
            gemm_store_one<RIDGE_F32>(p, row + i % 4 / 2 * 8, last, col + i / 4 * 8 + i % 2, fin[i]);
        return;
    }
    if (p.accumulate) {
#pragma unroll
        for (int j = 0; j < T::BLOCK_N / 8; j++) {
            old[2 * j] = upper[4 * j];
            old[2 * j + 1] = lower[4 * j];
        }
#pragma unroll
        for (int i = 0; i < T::BLOCK_N / 2; i++)
            fin[i] += i % 2 ? old[i / 2].y : old[i / 2].x;
    }
#pragma unroll
    for (int j = 0; j < T::BLOCK_N / 8; j++) {
        upper[4 * j] = make_float2(__uint_as_float(num_canonical_f32(fin[4 * j])),
                                   __uint_as_float(num_canonical_f32(fin[4 * j + 1])));
        lower[4 * j] = make_float2(__uint_as_float(num_canonical_f32(fin[4 * j + 2])),
                                   __uint_as_float(num_canonical_f32(fin[4 * j + 3])));
    }
}

/* T::STAGED_F32, one producer thread: loads D into panels of shared memory during a tile's main loop, where D is
 * accumulated to, and stores the results from there during the next tile's. D is not read again soon: it is evicted
 * from L2 first, so that the operands stay.
 *
 *     d_loaded[g]   the panels of warpgroup g hold D: orders the writes of TMA before the warpgroup's reads
 *     d_written[g]  they hold its results: orders the warpgroup's writes before the reads of TMA */
template <class T, int MODE> static __device__ void gemm_copy_d(const gemm_args &p, gemm_memory<T, MODE> *s)
{
    enum { ROWS = 64 * T::SLICES, ACROSS = T::BLOCK_N / 32, PANELS = T::SLICES * ACROSS };
    const uint64_t policy = ptx_policy_evict_first();
    uint32_t phase = 0;
    gemm_walk walk = {s->table};
    gemm_group group = {};

    ptx_grid_dependency_wait();
    for (int number = 0;; number++) {
        const gemm_unit unit = gemm_unit_of<T>(p, number, &walk, &group);

        if (!unit.end)
            break;
        if (!T::GROUPED && unit.end < p.k_blocks)
            continue;
        ptx_tma_wait_read(); /* TMA has read the previous results from the panels */
        for (int warpgroup = 0; warpgroup < gemm_warpgroups<T>(p); warpgroup++) {
            const uint32_t added = ptx_shared(&s->d_loaded[warpgroup]);
            const int row = unit.row + warpgroup * ROWS;
            const int tall = max(0, min((p.m - row + 63) / 64, (int)T::SLICES));
            const int across = max(0, min((p.n - unit.col + 31) / 32, (int)ACROSS)); /* 0: the tile lies beyond D */

            ptx_mbarrier_expect(added, p.accumulate ? (uint32_t)(tall * across * 64 * 128) : 0);
            for (int i = 0; i < PANELS; i++)
                if (p.accumulate && i / ACROSS < tall && i % ACROSS < across)
                    ptx_tma_load_2d_policy(ptx_shared(s->d) + (warpgroup * PANELS + i) * 8192, &p.d,
                                           unit.col + i % ACROSS * 32, group.d_row + row + i / ACROSS * 64, added,
                                           policy);
        }
        for (int warpgroup = 0; warpgroup < gemm_warpgroups<T>(p); warpgroup++) {
            const int row = unit.row + warpgroup * ROWS;

            ptx_mbarrier_wait(ptx_shared(&s->d_written[warpgroup]), phase);
            for (int i = 0; i < PANELS; i++)
                if (row + i / ACROSS * 64 < p.m && unit.col + i % ACROSS * 32 < p.n)
                    ptx_tma_store_2d_policy(&p.d, unit.col + i % ACROSS * 32, group.d_row + row + i / ACROSS * 64,
                                            ptx_shared(s->d) + (warpgroup * PANELS + i) * 8192, policy);
            ptx_tma_commit();
        }
        phase ^= 1;
    }
    ptx_tma_wait();
}

/* OUT_F32. parity: of the tiles that this warpgroup has finished. In a row of 128 bytes of a panel, the 16 bytes of
 * columns 4 j lie at chunk j ^ (row % 8). */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_store_f32(const gemm_args &p, gemm_memory<T, MODE> *s, int warpgroup,
                                                      int slice, int first_row, int last, int first_col, int parity,
                                                      float *fin)
{
    const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4, q = thread % 4;
    const int panel = (warpgroup * T::SLICES + slice) * (T::BLOCK_N / 32);

    if constexpr (!T::STAGED_F32) {
        gemm_store_f32_plain<T>(p, first_row, last, first_col, fin);
        return;
    }
    if (slice == 0)
        ptx_mbarrier_wait(ptx_shared(&s->d_loaded[warpgroup]), parity);
#pragma unroll
    for (int j = 0; j < T::BLOCK_N / 8; j++) {
        float2 *upper =
            (float2 *)(s->d + (panel + j / 4) * 8192 + row * 128 + ((j % 4 * 2 + q / 2) ^ row % 8) * 16 + q % 2 * 8);
        float2 *lower = upper + 8 * 128 / 8;
        float *x = fin + 4 * j;

        if (p.accumulate) {
            const float2 a = *upper, b = *lower;

            x[0] += a.x;
            x[1] += a.y;
            x[2] += b.x;
            x[3] += b.y;
        }
        *upper = make_float2(__uint_as_float(num_canonical_f32(x[0])), __uint_as_float(num_canonical_f32(x[1])));
        *lower = make_float2(__uint_as_float(num_canonical_f32(x[2])), __uint_as_float(num_canonical_f32(x[3])));
    }
    ptx_fence_async();
    if (slice == T::SLICES - 1)
        ptx_mbarrier_arrive(ptx_shared(&s->d_written[warpgroup]));
}

/* 64 x COLS results from shared memory to D, by all threads of the warpgroup. With accumulation eight loads of D are in
 * flight a thread. */
template <int COLS, int DTYPE>
static __device__ __forceinline__ void gemm_store_columns(const gemm_args &p, const float *panel, int first_row,
                                                          int last, int first_col)
{
    enum { TOGETHER = 8 };
    static_assert(64 * COLS % (128 * TOGETHER) == 0, "no rest");

#pragma unroll 1
    for (int first = threadIdx.x % 128; first < 64 * COLS; first += 128 * TOGETHER) {
        float x[TOGETHER];

#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = first_row + (first + 128 * i) / COLS, col = first_col + (first + 128 * i) % COLS;

            x[i] = panel[first + 128 * i];
            if (p.accumulate && row < last && col < p.n)
                x[i] += num_load<DTYPE>(p.out, row * p.stride + col);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int row = first_row + (first + 128 * i) / COLS, col = first_col + (first + 128 * i) % COLS;

            if (row < last && col < p.n)
                num_store<DTYPE>(p.out, row * p.stride + col, x[i]);
        }
    }
}

/* OUT_ANY: 64 x BLOCK_N results to any dtype and address. Where TMA cannot store them, half of the columns at a time
 * go through the slice's panels as f32 and from there by a loop: unrolled over the registers, for each dtype, it was
 * half of gemm_fp8's device code. */
template <class T, int MODE>
static __device__ __forceinline__ void gemm_store_any(const gemm_args &p, gemm_memory<T, MODE> *s, int warpgroup,
                                                      int slice, int first_row, int last, int first_col,
                                                      const float *fin)
{
    enum { COLS = T::BLOCK_N / 2 };
    const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
    float *panel = (float *)(s->d + (warpgroup * T::SLICES + slice) * (64 * T::BLOCK_N * 2));

    if (p.dtype != RIDGE_F32 && p.aligned && !p.accumulate) {
        uint32_t words[T::BLOCK_N / 4];

        if (p.dtype == RIDGE_BF16)
            gemm_pack<T::BLOCK_N, RIDGE_BF16>(fin, words);
        else
            gemm_pack<T::BLOCK_N, RIDGE_F16>(fin, words);
        gemm_store_panels<T, MODE>(p, s, warpgroup, slice, first_row, last, first_col, words);
        return;
    }
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int col = first_col + half * COLS;

        ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128); /* orders earlier reads before these writes */
#pragma unroll
        for (int j = 0; j < T::BLOCK_N / 8; j++) {
            float *to = panel + row * COLS + 8 * j % COLS + 2 * (thread % 4);

            if (8 * j / COLS != half)
                continue;
            *(float2 *)to = make_float2(fin[4 * j], fin[4 * j + 1]);
            *(float2 *)(to + 8 * COLS) = make_float2(fin[4 * j + 2], fin[4 * j + 3]);
        }
        ptx_barrier_sync(1 + T::WARPGROUPS + warpgroup, 128); /* orders all threads' writes before the reads */
        if (p.dtype == RIDGE_BF16)
            gemm_store_columns<COLS, RIDGE_BF16>(p, panel, first_row, last, col);
        else if (p.dtype == RIDGE_F16)
            gemm_store_columns<COLS, RIDGE_F16>(p, panel, first_row, last, col);
        else
            gemm_store_columns<COLS, RIDGE_F32>(p, panel, first_row, last, col);
    }
}

#endif

#endif
