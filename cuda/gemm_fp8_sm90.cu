/* gemm_fp8_sm90.cu: gemm_fp8 for large m on Hopper: TMA, wgmma, warp-specialised, persistent, clusters of two.
 *
 *     fin = fma(rn(sA sB), P_b, fin) over the 128-blocks b of k, ascending; P_b by four wgmma of k 32
 *
 * A cluster of two CTAs takes a pair of row tiles of one column tile: each loads its own 128 rows of A and half of the
 * BN rows of B, which it multicasts to both. In a CTA one thread loads codes, one warp scales (4 bytes at a time, so of
 * any alignment), and two warpgroups of 64 rows each multiply. They take turns at the tensor cores by named barriers:
 * while one promotes its accumulators to `fin` (one fma an element), the other one's matrix instructions run; left
 * alone they fall into step and the tensor cores idle (docs/measured.md). full[s]: stage s has its codes and scales
 * (orders those writes before wgmma's and the warps' reads). empty[s]: all 16 multiplying warps of the cluster have
 * finished with stage s (orders their reads before the next writes of either CTA). The result goes through shared
 * memory to a TMA store, which overlaps the next tile, or straight from registers where D is f32, added to, or not
 * aligned. */
#include "host.cuh"
#include "num.cuh"
#include "wgmma.cuh"

enum { BM = 128, BK = 128, THREADS = 384, PAIRS = 8 };
/* TENSOR and ROW: one product at the end. Else every block: the scales of B are BLK128, or ROW128 (with A's either). */
enum { SCALE_LAST = 0, SCALE_BLOCK, SCALE_COLUMN };

typedef struct gemm_args {
    CUtensorMap a, b, d;
    const float *scale_a, *scale_b;
    int64_t ld_a, ld_b; /* of the scale tables; 0: one scale for the tensor */
    char *out;
    const void *bias;
    int64_t stride;   /* of D, elements */
    int m, n, blocks; /* blocks of k */
    int tiles_n, pairs;
    int block_a; /* the scales of A are BLK128 */
    int dtype, tma_store, accumulate, bias_f32;
} gemm_args;

#define STAGES(bn) ((bn) == 128 ? 5 : 4)

template <int BN> struct gemm_memory {
    uint8_t a[STAGES(BN)][BM * BK];
    uint8_t b[STAGES(BN)][BN * BK];
    uint8_t d[2][BN / 64][64 * 128]; /* by warpgroup, panels of 64 columns of 16 bits */
    float scale_a[STAGES(BN)][BM], scale_b[STAGES(BN)][BN];
    uint64_t full[STAGES(BN)], empty[STAGES(BN)];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Addresses that a multiplying warpgroup computes once: descriptors of its rows of A and of B in stage 0, full[0], and
 * empty[0] in both CTAs. */
typedef struct gemm_places {
    uint64_t a, b;
    uint32_t full, empty[2];
} gemm_places;

/* Work item `index`: bundles of PAIRS row-tile pairs, column tiles within, so that what runs at once shares L2. */
static __device__ __forceinline__ void gemm_locate(const gemm_args &p, int index, int *pair, int *tile_n)
{
    const int bundle = index / (PAIRS * p.tiles_n), place = index % (PAIRS * p.tiles_n);
    const int down = min((int)PAIRS, p.pairs - bundle * PAIRS);

    *pair = bundle * PAIRS + place % down;
    *tile_n = place / down;
}

template <int BN> static __device__ void gemm_load(const gemm_args &p, gemm_memory<BN> *s)
{
    const uint32_t rank = ptx_cluster_rank(), bytes = BM * BK + BN * BK;
    uint32_t n = 0;

    for (int item = blockIdx.x / 2; item < p.pairs * p.tiles_n; item += gridDim.x / 2) {
        int pair, tile_n;

        gemm_locate(p, item, &pair, &tile_n);
        for (int kb = 0; kb < p.blocks; kb++, n++) {
            const uint32_t stage = n % STAGES(BN), full = ptx_shared(&s->full[stage]);

            ptx_mbarrier_wait(ptx_shared(&s->empty[stage]), (n / STAGES(BN) & 1) ^ 1);
            ptx_mbarrier_expect(full, bytes);
            ptx_tma_load_2d(ptx_shared(s->a[stage]), &p.a, kb * BK, (2 * pair + (int)rank) * BM, full);
            ptx_tma_load_2d_multicast(ptx_shared(s->b[stage] + rank * (BN / 2) * BK), &p.b, kb * BK,
                                      tile_n * BN + (int)rank * (BN / 2), full, 3);
        }
    }
}

/* One warp: the scales of every stage. SCALE_BLOCK: scale_b has one for each 64 columns. */
template <int BN, int MODE> static __device__ void gemm_load_scales(const gemm_args &p, gemm_memory<BN> *s)
{
    const int lane = threadIdx.x % 32, rank = (int)ptx_cluster_rank();
    uint32_t n = 0;

    for (int item = blockIdx.x / 2; item < p.pairs * p.tiles_n; item += gridDim.x / 2) {
        int pair, tile_n;

        gemm_locate(p, item, &pair, &tile_n);
        for (int kb = 0; kb < p.blocks; kb++, n++) {
            const uint32_t stage = n % STAGES(BN);
            const int row = (2 * pair + rank) * BM + lane, col = tile_n * BN;

            ptx_mbarrier_wait(ptx_shared(&s->empty[stage]), (n / STAGES(BN) & 1) ^ 1);
#pragma unroll
            for (int i = 0; i < BM; i += 32) {
                const int r = min(row + i, p.m - 1);

                ptx_copy_async4(ptx_shared(&s->scale_a[stage][lane + i]),
                                p.block_a ? p.scale_a + r / 128 * p.ld_a + kb : p.scale_a + kb * p.ld_a + r);
            }
            if (MODE == SCALE_BLOCK && lane < BN / 64)
                ptx_copy_async4(ptx_shared(&s->scale_b[stage][lane]),
                                p.scale_b + min(col + 64 * lane, p.n - 1) / 128 * p.ld_b + kb);
            if (MODE == SCALE_COLUMN)
#pragma unroll
                for (int i = 0; i < BN; i += 32)
                    ptx_copy_async4(ptx_shared(&s->scale_b[stage][lane + i]),
                                    p.scale_b + kb * p.ld_b + min(col + lane + i, p.n - 1));
            ptx_copy_async_arrive(ptx_shared(&s->full[stage]));
        }
    }
}

/* fin = fma(scale, acc, fin), one scale of B for each 64 columns. */
template <int BN>
static __device__ __forceinline__ void gemm_promote_block(float upper, float lower, const float *scale_b,
                                                          const float *acc, float *fin)
{
#pragma unroll
    for (int c = 0; c < BN / 64; c++) {
        const float first = upper * scale_b[c], second = lower * scale_b[c];

#pragma unroll
        for (int i = c * 32; i < c * 32 + 32; i++)
            fin[i] = __fmaf_rn(i & 2 ? second : first, acc[i], fin[i]);
    }
}

/* One scale of B for each column. */
template <int BN>
static __device__ __forceinline__ void gemm_promote_column(float upper, float lower, const float *scale_b,
                                                           const float *acc, float *fin)
{
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float2 v = *(const float2 *)(scale_b + 8 * j + 2 * (threadIdx.x % 4));

        fin[4 * j] = __fmaf_rn(upper * v.x, acc[4 * j], fin[4 * j]);
        fin[4 * j + 1] = __fmaf_rn(upper * v.y, acc[4 * j + 1], fin[4 * j + 1]);
        fin[4 * j + 2] = __fmaf_rn(lower * v.x, acc[4 * j + 2], fin[4 * j + 2]);
        fin[4 * j + 3] = __fmaf_rn(lower * v.y, acc[4 * j + 3], fin[4 * j + 3]);
    }
}

/* Scales of a block: of this thread's two rows and, in SCALE_BLOCK, of each 64 columns. */
template <int BN> struct gemm_scales {
    float upper, lower, b[BN / 64];
};

template <int BN, int MODE>
static __device__ __forceinline__ gemm_scales<BN> gemm_read_scales(const gemm_memory<BN> *s, uint32_t stage, int local)
{
    gemm_scales<BN> v = {};

    if (MODE != SCALE_LAST) {
        v.upper = s->scale_a[stage][local];
        v.lower = s->scale_a[stage][local + 8];
    }
    if (MODE == SCALE_BLOCK)
#pragma unroll
        for (int c = 0; c < BN / 64; c++)
            v.b[c] = s->scale_b[stage][c];
    return v;
}

/* All blocks of k into fin. What the next turn needs (its stage, its scales) is fetched while this turn's matrix
 * instructions run, so that a turn begins with them. The scales of a stage have been read by all of the warpgroup
 * before any of its warps gives the stage back: the barrier of the turn lies between. */
template <int BN, int MODE, int FORMATS>
static __device__ __forceinline__ void gemm_multiply(const gemm_args &p, gemm_memory<BN> *s, const gemm_places &at,
                                                     uint32_t *n, int group, int local, float *fin)
{
    const bool elected = threadIdx.x % 32 == 0;
    gemm_scales<BN> next;
    float acc[BN / 2];

#pragma unroll
    for (int i = 0; i < BN / 2; i++)
        fin[i] = 0.0f;
    ptx_mbarrier_wait(at.full + *n % STAGES(BN) * 8, *n / STAGES(BN) & 1);
    next = gemm_read_scales<BN, MODE>(s, *n % STAGES(BN), local);
    for (int kb = 0; kb < p.blocks; kb++) {
        const uint32_t stage = *n % STAGES(BN);
        const uint64_t a = at.a + stage * (BM * BK / 16), b = at.b + stage * (BN * BK / 16);
        const gemm_scales<BN> now = next;

        ptx_barrier_sync(1 + group, 256); /* our turn */
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / 32; k++)
            wgmma_fp8<BN, FORMATS>(acc, a + 2 * k, b + 2 * k, k > 0);
        wgmma_commit();
        ptx_barrier_arrive(2 - group, 256); /* the other warpgroup's turn */
        ++*n;
        if (kb + 1 < p.blocks) {
            ptx_mbarrier_wait(at.full + *n % STAGES(BN) * 8, *n / STAGES(BN) & 1);
            next = gemm_read_scales<BN, MODE>(s, *n % STAGES(BN), local);
        }
        wgmma_wait();
        if (MODE == SCALE_COLUMN)
            gemm_promote_column<BN>(now.upper, now.lower, s->scale_b[stage], acc, fin);
        __syncwarp(); /* the warp's matrix instructions are complete and it has read its column scales */
        if (elected) {
            ptx_mbarrier_arrive_cluster(at.empty[0] + stage * 8);
            ptx_mbarrier_arrive_cluster(at.empty[1] + stage * 8);
        }
        if (MODE == SCALE_BLOCK)
            gemm_promote_block<BN>(now.upper, now.lower, now.b, acc, fin);
        if (MODE == SCALE_LAST)
#pragma unroll
            for (int i = 0; i < BN / 2; i++)
                fin[i] += acc[i];
    }
}

/* TENSOR and ROW: the scales, once. They pass through shared memory, which nothing else uses in this mode: 48 loads
 * with an address each would spill. */
template <int BN>
static __device__ __forceinline__ void gemm_scale_last(const gemm_args &p, gemm_memory<BN> *s, int group, int local,
                                                       int first_row, int first_col, float *fin)
{
    const int thread = threadIdx.x % 128;
    float *columns = s->scale_b[group];
    const float upper = p.scale_a[p.ld_a ? min(first_row + local, p.m - 1) : 0];
    const float lower = p.scale_a[p.ld_a ? min(first_row + local + 8, p.m - 1) : 0];

    for (int i = thread; i < BN; i += 128)
        columns[i] = p.scale_b[p.ld_b ? min(first_col + i, p.n - 1) : 0];
    ptx_barrier_sync(3 + group, 128); /* columns before others read them */
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float2 v = *(const float2 *)&columns[8 * j + 2 * (thread % 4)];

        fin[4 * j] *= upper * v.x;
        fin[4 * j + 1] *= upper * v.y;
        fin[4 * j + 2] *= lower * v.x;
        fin[4 * j + 3] *= lower * v.y;
    }
    ptx_barrier_sync(3 + group, 128); /* read before the next tile's */
}

template <int DTYPE> static __device__ __forceinline__ float gemm_bias(const gemm_args &p, int col)
{
    if (!p.bias || col >= p.n)
        return 0.0f;
    return p.bias_f32 ? ((const float *)p.bias)[col] : num_load<DTYPE>(p.bias, col);
}

/* One element from registers. */
template <int DTYPE>
static __device__ __forceinline__ void gemm_store_one(const gemm_args &p, int row, int col, float x)
{
    const int64_t at = row * p.stride + col;

    if (row >= p.m || col >= p.n)
        return;
    num_store<DTYPE>(p.out, at, p.accumulate ? x + num_load<DTYPE>(p.out, at) : x);
}

/* The warpgroup's 64 x BN results through shared memory to a TMA store. */
template <int BN, int DTYPE>
static __device__ __forceinline__ void gemm_store_panels(const gemm_args &p, gemm_memory<BN> *s, int group,
                                                         int first_row, int first_col, const float *fin)
{
    const int thread = threadIdx.x % 128, lane = thread % 32, local = thread / 32 * 16 + lane / 4, pair = lane % 4;
    uint32_t words[BN / 4], taint = 0;

#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
        words[i] = num_pack2<DTYPE>(fin[2 * i], fin[2 * i + 1]);
        taint = DTYPE == RIDGE_BF16 ? ptx_taint_bf16x2(words[i], taint) : ptx_taint_f16x2(words[i], taint);
    }
    if (taint & 0x7fff7fffu) /* a NaN or an infinity: rare */
#pragma unroll
        for (int i = 0; i < BN / 4; i++)
            words[i] = num_canonical<DTYPE>(words[i] & 0xffffu) | num_canonical<DTYPE>(words[i] >> 16) << 16;
    if (thread == 0)
        ptx_tma_wait_read(); /* the previous tile has left shared memory */
    ptx_barrier_sync(3 + group, 128);
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        /* panel of 64 columns; in a row of 128 bytes, 16-byte chunk j % 8 lies at chunk (j % 8) ^ (row % 8) */
        uint8_t *to = s->d[group][j / 8] + local * 128 + ((j % 8) ^ (local % 8)) * 16 + pair * 4;

        *(uint32_t *)to = words[2 * j];
        *(uint32_t *)(to + 8 * 128) = words[2 * j + 1];
    }
    ptx_fence_async();
    ptx_barrier_sync(3 + group, 128); /* all of the panels before TMA reads them */
    if (thread == 0) {
        for (int c = 0; c < BN / 64; c++)
            if (first_col + 64 * c < p.n && first_row < p.m)
                ptx_tma_store_2d(&p.d, first_col + 64 * c, first_row, ptx_shared(s->d[group][c]));
        ptx_tma_commit();
    }
}

/* The warpgroup's 64 x BN results. */
template <int BN, int DTYPE>
static __device__ __forceinline__ void gemm_store(const gemm_args &p, gemm_memory<BN> *s, int group, int first_row,
                                                  int first_col, float *fin)
{
    const int thread = threadIdx.x % 128, lane = thread % 32, local = thread / 32 * 16 + lane / 4, pair = lane % 4;

    if (p.bias)
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const float x = gemm_bias<DTYPE>(p, first_col + 8 * j + 2 * pair);
            const float y = gemm_bias<DTYPE>(p, first_col + 8 * j + 2 * pair + 1);

            fin[4 * j] += x;
            fin[4 * j + 1] += y;
            fin[4 * j + 2] += x;
            fin[4 * j + 3] += y;
        }
    if constexpr (DTYPE != RIDGE_F32)
        if (p.tma_store) {
            gemm_store_panels<BN, DTYPE>(p, s, group, first_row, first_col, fin);
            return;
        }
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            gemm_store_one<DTYPE>(p, first_row + local + i / 2 * 8, first_col + 8 * j + 2 * pair + i % 2,
                                  fin[4 * j + i]);
}

#endif

template <int BN, int MODE, int FORMATS>
static __global__ void __launch_bounds__(THREADS, 1) gemm_sm90(const __grid_constant__ gemm_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    gemm_memory<BN> *s = (gemm_memory<BN> *)shared;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES(BN); i++) {
            ptx_mbarrier_init(ptx_shared(&s->full[i]), MODE == SCALE_LAST ? 1 : 33);
            ptx_mbarrier_init(ptx_shared(&s->empty[i]), 16);
        }
        ptx_mbarrier_fence_init();
    }
    ptx_cluster_sync(); /* the mbarriers of both CTAs before anybody uses them */
    ptx_grid_wait();
    ptx_grid_release();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            gemm_load<BN>(p, s);
        else if (MODE != SCALE_LAST && threadIdx.x / 32 == 1)
            gemm_load_scales<BN, MODE>(p, s);
    } else {
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1,
                  thread = threadIdx.x % 128; /* uniform registers */
        const int local = group * 64 + thread / 32 * 16 + thread % 32 / 4;
        const gemm_places at = {wgmma_descriptor(ptx_shared(s->a[0] + group * 64 * BK)),
                                wgmma_descriptor(ptx_shared(s->b[0])),
                                ptx_shared(&s->full[0]),
                                {ptx_map(ptx_shared(&s->empty[0]), 0), ptx_map(ptx_shared(&s->empty[0]), 1)}};
        uint32_t n = 0;

        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (group == 1)
            ptx_barrier_arrive(1, 256); /* the first warpgroup begins */
        for (int item = blockIdx.x / 2; item < p.pairs * p.tiles_n; item += gridDim.x / 2) {
            int pair, tile_n;
            float fin[BN / 2];

            gemm_locate(p, item, &pair, &tile_n);
            const int first = (2 * pair + (int)ptx_cluster_rank()) * BM;

            gemm_multiply<BN, MODE, FORMATS>(p, s, at, &n, group, local, fin);
            if (MODE == SCALE_LAST)
                gemm_scale_last<BN>(p, s, group, local, first, tile_n * BN, fin);
            if (p.dtype == RIDGE_BF16)
                gemm_store<BN, RIDGE_BF16>(p, s, group, first + group * 64, tile_n * BN, fin);
            else if (p.dtype == RIDGE_F16)
                gemm_store<BN, RIDGE_F16>(p, s, group, first + group * 64, tile_n * BN, fin);
            else
                gemm_store<BN, RIDGE_F32>(p, s, group, first + group * 64, tile_n * BN, fin);
        }
        if (thread == 0)
            ptx_tma_wait();
    }
    ptx_cluster_sync(); /* nobody leaves while the other one may write to it */
#endif
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define BY_FORMATS(BN, MODE)                                                                                    \
    {                                                                                                           \
        (const void *)gemm_sm90<BN, MODE, WGMMA_E4M3_E4M3>, (const void *)gemm_sm90<BN, MODE, WGMMA_E4M3_E5M2>, \
            (const void *)gemm_sm90<BN, MODE, WGMMA_E5M2_E4M3>                                                  \
    }
#define BY_MODE(BN)                                                                           \
    {                                                                                         \
        BY_FORMATS(BN, SCALE_LAST), BY_FORMATS(BN, SCALE_BLOCK), BY_FORMATS(BN, SCALE_COLUMN) \
    }

/* [128, 192][mode][formats] */
static const void *const functions[2][3][3] = {BY_MODE(128), BY_MODE(192)};

static size_t memory_of(int bn)
{
    return bn == 128 ? sizeof(gemm_memory<128>) : sizeof(gemm_memory<192>);
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int wide = 0; wide < 2 && !status && device->arch == RIDGE_ARCH_SM90; wide++)
        status = host_prepare(device, &functions[wide][0][0], 3 * 3, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              (int)memory_of(wide ? 192 : 128), "gemm_fp8: loading kernels");
    return status;
}

static int64_t stride_of(const ridge_operand *x, int64_t packed)
{
    return x->stride ? x->stride : packed;
}

/* What the kernel needs besides the tensor maps. */
static gemm_args collect(const ridge_call *call, int bn)
{
    const ridge_operand *arg = call->arg, *d = &arg[RIDGE_GEMM_FP8_D];
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = call->flags & RIDGE_SCALE_B;
    gemm_args p = {};

    p.m = (int)call->dim[0];
    p.n = (int)call->dim[1];
    p.blocks = (int)((call->dim[2] + BK - 1) / BK);
    p.tiles_n = (p.n + bn - 1) / bn;
    p.pairs = (p.m + 2 * BM - 1) / (2 * BM);
    p.scale_a = (const float *)arg[RIDGE_GEMM_FP8_SCALE_A].data;
    p.scale_b = (const float *)arg[RIDGE_GEMM_FP8_SCALE_B].data;
    p.block_a = mode_a == RIDGE_SCALE_BLK128;
    p.ld_a = mode_a == RIDGE_SCALE_TENSOR ? 0 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_A], p.block_a ? p.blocks : p.m);
    p.ld_b = mode_b == RIDGE_SCALE_B_TENSOR
                 ? 0
                 : stride_of(&arg[RIDGE_GEMM_FP8_SCALE_B], mode_b == RIDGE_SCALE_B_BLK128 ? p.blocks : p.n);
    p.dtype = (int)d->dtype;
    p.out = (char *)d->data;
    p.stride = stride_of(d, p.n);
    p.bias = arg[RIDGE_GEMM_FP8_BIAS].data;
    p.bias_f32 = arg[RIDGE_GEMM_FP8_BIAS].dtype == RIDGE_F32;
    p.accumulate = (call->flags & RIDGE_ACCUMULATE) != 0;
    p.tma_store = d->dtype != RIDGE_F32 && !p.accumulate && ((uintptr_t)d->data | (uintptr_t)(p.stride * 2)) % 16 == 0;
    return p;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                           const ridge_call *call, void *, size_t, void *stream)
{
    const ridge_operand *a = &call->arg[RIDGE_GEMM_FP8_A], *b = &call->arg[RIDGE_GEMM_FP8_B];
    const int bn = kernel->param[0], d = problem->dtype[RIDGE_GEMM_FP8_D];
    const uint32_t mode_b = call->flags & RIDGE_SCALE_B;
    const int mode = mode_b == RIDGE_SCALE_B_BLK128   ? SCALE_BLOCK
                     : mode_b == RIDGE_SCALE_B_ROW128 ? SCALE_COLUMN
                                                      : SCALE_LAST;
    const int formats = a->dtype == RIDGE_E5M2   ? WGMMA_E5M2_E4M3
                        : b->dtype == RIDGE_E5M2 ? WGMMA_E4M3_E5M2
                                                 : WGMMA_E4M3_E4M3;
    const int64_t k = call->dim[2];
    gemm_args p = collect(call, bn);
    int64_t blocks = (int64_t)p.pairs * p.tiles_n * 2;
    ridge_status status;

    status = host_tensor_map(device, &p.a, RIDGE_E4M3, a->data, k, p.m, stride_of(a, k), BK, BM, 128);
    if (!status)
        status = host_tensor_map(device, &p.b, RIDGE_E4M3, b->data, k, p.n, stride_of(b, k), BK, bn / 2, 128);
    if (!status && p.tma_store)
        status = host_tensor_map(device, &p.d, d, p.out, p.n, p.m, p.stride, 64, 64, 128);
    if (status)
        return status;
    blocks = blocks < device->units / 2 * 2 ? blocks : device->units / 2 * 2;
    return host_launch_cluster(device, kernel->name, functions[bn == 192][mode][formats], dim3((unsigned)blocks), 2,
                               THREADS, memory_of(bn), &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t m = problem->dim[0], n = problem->dim[1], k = problem->dim[2];

    if (m <= 64)
        return "is for m above 64";
    if (n == 0 || k == 0)
        return "nothing to multiply";
    if (problem->align < 4 || (problem->packed && k % 16))
        return "TMA needs rows of a and b that begin at multiples of 16 bytes";
    if (m > 0x7fffff00 || n > 0x7fffff00 || k > 0x7fffff00 ||
        (double)((m + 255) / 256) * (double)((n + 127) / 128) > 2e9)
        return "more than 2^31 tiles";
    return NULL;
}

/* Matrix time at the measured rate of the inner loop, in whole waves, plus a fixed start. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double bn = kernel->param[0], pairs = (double)((problem->dim[0] + 255) / 256);
    const double items = pairs * (double)((problem->dim[1] + kernel->param[0] - 1) / kernel->param[0]);
    const double clusters = device->units / 2, blocks = (double)((problem->dim[2] + 127) / 128);
    double waves = items / clusters;

    waves = waves > (double)(int64_t)waves ? (double)(int64_t)waves + 1 : waves;
    return 4 + waves * (1.2 + blocks * 2 * BM * BK * bn / (kernel->param[1] * 1e6 / device->units));
}

#define ROW(bn, rate)                                                                                  \
    {                                                                                                  \
        "cuda.gemm_fp8.wgmma128x" #bn, RIDGE_GEMM_FP8, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90,               \
            RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_TYPICAL, 0, {bn, rate}, why_not, NULL, cost, launch \
    }

/* param: columns of a tile, TFLOP/s of the inner loop. */
static const ridge_kernel rows[] = {ROW(192, 1450), ROW(128, 1350)};

extern "C" const ridge_kernel_list ridge_cuda_gemm_sm90 = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
