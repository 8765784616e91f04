/* gemm_f32_sm90.cuh: the product of two f32 matrices for linear_mma.cu on Hopper, by wgmma of tf32: A's fragments in
 * registers, B in shared memory.
 *
 * Each factor is the sum of two parts: the upper 11 bits of its significand, which is what the units take of an f32 as
 * it is, and the rest. The product of two lower parts is left out. The units truncate their sums, so they add up 32 of
 * k at a time, the small products first, and the rest is added in f32.
 *
 * A CTA computes 128 x 128. Warpgroup 0: one thread loads blocks of 32 of k by TMA. Warpgroup 1: the lower parts of B,
 * and, since wgmma takes tf32 only where k is contiguous, B with its sides exchanged where its rows are (MN_B).
 * Warpgroups 2 and 3: the products of 64 rows each; they take A apart in registers, from whichever side is contiguous.
 *
 * A stage has A and B as TMA brings them, lines of 128 bytes with the 128-byte swizzle: 32 of k of a row, or (MN) four
 * panels with 32 rows of each k; and B's parts with k contiguous. Three mbarriers a stage: full (TMA), ready (B's
 * parts), empty (the eight warps of the products).
 *
 * Where both sides are MN, a fragment of 8 of k has them in the order 0 2 4 6 1 3 5 7, of A and of B alike: then the 32
 * words that a warp reads of A at once lie in 32 banks. */
#ifndef RIDGE_LINEAR_CE_GEMM_F32_SM90_CUH
#define RIDGE_LINEAR_CE_GEMM_F32_SM90_CUH

#include "cuda/sm90/pipeline.cuh"
#include "cuda/sm90/wgmma.cuh"
#include "gemm_mma.cuh"

enum { F32_K = 32, F32_PANEL = F32_K * 128, F32_TILE = TILE * F32_K * 4, F32_THREADS = 512 };

template <int MN_B> struct f32_smem {
    enum { STAGES = MN_B ? 3 : 4 };
    uint8_t a[STAGES][F32_TILE], b[STAGES][F32_TILE], low[STAGES][F32_TILE];
    uint8_t high[MN_B ? (int)STAGES : 1][MN_B ? (int)F32_TILE : 1024]; /* else b is */
    uint64_t full[STAGES], ready[STAGES], empty[STAGES];
};

typedef struct f32_args {
    CUtensorMap a, b;
    linear_product p;
    int rows_first; /* neighbouring CTAs have neighbouring tiles of rows */
} f32_args;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The lower part of x; that of an infinity and of a NaN is NaN. */
static __device__ __forceinline__ float f32_low(float x)
{
    return x - __uint_as_float(__float_as_uint(x) & 0xffffe000);
}

/* clang-format off */
/* D (64 x 128) = A (64 x 8, registers) B (128 x 8)^T + (keep ? D : 0) */
static __device__ __forceinline__ void wgmma_tf32(float *d, const float *a, uint64_t b, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 " WGMMA_REGISTERS_128
                 ", {%64, %65, %66, %67}, %68, p, 1, 1;\n}"
                 : WGMMA_OPERANDS_128(d)
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "l"(b), "r"(keep));
}
/* clang-format on */

/* --------------------------------------------------------------------------------------------------------- producer */

template <int MN>
static __device__ __forceinline__ void f32_load(const CUtensorMap *map, uint32_t to, int row, int k, uint32_t full)
{
    if (!MN)
        ptx_tma_load_2d(to, map, k, row, full);
    else
#pragma unroll
        for (int i = 0; i < TILE / 32; i++)
            ptx_tma_load_2d(to + i * F32_PANEL, map, row + 32 * i, k, full);
}

template <int MN_A, int MN_B>
static __device__ __forceinline__ void f32_produce(const f32_args &g, f32_smem<MN_B> *s, const linear_tile &t,
                                                   int blocks)
{
    enum { STAGES = f32_smem<MN_B>::STAGES };
    pipeline_state at = PIPELINE_PRODUCER;

    for (int kb = 0; kb < blocks; kb++) {
        const uint32_t full = ptx_shared(&s->full[at.stage]);

        pipeline_acquire(ptx_shared(&s->empty[0]), at);
        ptx_mbarrier_expect(full, 2 * F32_TILE);
        f32_load<MN_A>(&g.a, ptx_shared(s->a[at.stage]), (int)t.i0, kb * F32_K, full);
        f32_load<MN_B>(&g.b, ptx_shared(s->b[at.stage]), (int)t.j0, kb * F32_K, full);
        pipeline_advance(&at, STAGES);
    }
}

/* --------------------------------------------------------------------------------------------------------- B's parts
 */

/* Which of 8 of k the place i of a fragment has. */
template <int MN_A> static __device__ __forceinline__ int f32_k_of(int i)
{
    return MN_A ? i % 4 * 2 + i / 4 : i;
}

static __device__ __forceinline__ float4 f32_low4(float4 v)
{
    return make_float4(f32_low(v.x), f32_low(v.y), f32_low(v.z), f32_low(v.w));
}

/* A stage of B whose k is contiguous: its lower parts, at the same places. */
static __device__ __forceinline__ void f32_split(const uint8_t *b, uint8_t *low)
{
#pragma unroll
    for (int i = 0; i < F32_TILE / 16 / 128; i++)
        ((float4 *)low)[threadIdx.x % 128 + 128 * i] = f32_low4(((const float4 *)b)[threadIdx.x % 128 + 128 * i]);
}

/* A stage of B whose rows are: a warp has a panel, a lane a row, 4 places of k at a time. k: what there is of it. */
template <int MN_A>
static __device__ __forceinline__ void f32_exchange(const uint8_t *b, uint8_t *high, uint8_t *low, int k)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = 32 * warp + lane;

    b += warp * F32_PANEL + lane % 4 * 4;
#pragma unroll
    for (int q = 0; q < F32_K / 4; q++) {
        const uint32_t to = row * 128 + (q ^ row % 8) * 16;
        float v[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = q / 2 * 8 + f32_k_of<MN_A>(q % 2 * 4 + i);

            v[i] = *(const float *)(b + at * 128 + (lane / 4 ^ at % 8) * 16);
            v[i] = at < k ? v[i] : 0.0f;
        }
        const float4 all = make_float4(v[0], v[1], v[2], v[3]);

        *(float4 *)(high + to) = all;
        *(float4 *)(low + to) = f32_low4(all);
    }
}

template <int MN_A, int MN_B>
static __device__ __forceinline__ void f32_prepare(f32_smem<MN_B> *s, int64_t k, int blocks)
{
    enum { STAGES = f32_smem<MN_B>::STAGES };
    pipeline_state at = PIPELINE_CONSUMER;

    for (int kb = 0; kb < blocks; kb++) {
        pipeline_wait(ptx_shared(&s->full[0]), at);
        if (MN_B)
            f32_exchange<MN_A>(s->b[at.stage], s->high[MN_B ? at.stage : 0], s->low[at.stage],
                               (int)min(k - kb * F32_K, (int64_t)F32_K));
        else
            f32_split(s->b[at.stage], s->low[at.stage]);
        ptx_fence_async();
        __syncwarp(); /* orders the writes of the warp before the arrival of one lane */
        if (threadIdx.x % 32 == 0)
            ptx_mbarrier_arrive(ptx_shared(&s->ready[at.stage]));
        pipeline_advance(&at, STAGES);
    }
}

/* ---------------------------------------------------------------------------------------------------------- products
 */

/* The fragments of 64 rows of a stage of A, from `first` on: of 8 of k rows g and g + 8 at place t, then at t + 4. */
template <int MN_A>
static __device__ __forceinline__ void f32_fragments(const uint8_t *a, int first, int k, float (*v)[4])
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int step = 0; step < F32_K / 8; step++)
        if (!MN_A) {
            const int row = first + lane % 16, chunk = 2 * step + lane / 16;

            ptx_ldmatrix4((uint32_t *)v[step], ptx_shared(a) + row * 128 + (chunk ^ row % 8) * 16);
        } else {
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int row = first + lane / 4 + q % 2 * 8, at = 8 * step + lane % 4 * 2 + q / 2;
                const float x =
                    *(const float *)(a + row / 32 * F32_PANEL + at * 128 + (row % 32 / 4 ^ at % 8) * 16 + row % 4 * 4);

                v[step][q] = at < k ? x : 0.0f;
            }
        }
}

template <int MN_A, int MN_B>
static __device__ __forceinline__ void f32_multiply(f32_smem<MN_B> *s, int64_t k, int blocks, float *sum)
{
    enum { STAGES = f32_smem<MN_B>::STAGES };
    const int first = (int)threadIdx.x / 128 % 2 * 64 + threadIdx.x % 128 / 32 * 16;
    const uint64_t high = wgmma_descriptor(ptx_shared(MN_B ? s->high[0] : s->b[0])),
                   low = wgmma_descriptor(ptx_shared(s->low[0]));
    pipeline_state at = PIPELINE_CONSUMER;

#pragma unroll
    for (int i = 0; i < 64; i++)
        sum[i] = 0.0f;
    for (int kb = 0; kb < blocks; kb++) {
        const uint64_t stage = (uint64_t)(at.stage * (F32_TILE / 16));
        float part[64], a[F32_K / 8][4], rest[F32_K / 8][4];

        pipeline_wait(ptx_shared(&s->full[0]), at);
        f32_fragments<MN_A>(s->a[at.stage], first, (int)min(k - kb * F32_K, (int64_t)F32_K), a);
#pragma unroll
        for (int i = 0; i < F32_K / 2; i++)
            (&rest[0][0])[i] = f32_low((&a[0][0])[i]);
        pipeline_wait(ptx_shared(&s->ready[0]), at);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < F32_K / 8; step++) {
            wgmma_tf32(part, rest[step], high + stage + 2 * step, step > 0);
            wgmma_tf32(part, a[step], low + stage + 2 * step, 1);
        }
#pragma unroll
        for (int step = 0; step < F32_K / 8; step++)
            wgmma_tf32(part, a[step], high + stage + 2 * step, 1);
        wgmma_commit();
        wgmma_wait();
        wgmma_pin<64>(part);
        __syncwarp(); /* orders the warp's reads before the arrival of one lane */
        if (threadIdx.x % 32 == 0)
            pipeline_release(ptx_shared(&s->empty[0]), at.stage);
#pragma unroll
        for (int i = 0; i < 64; i++)
            sum[i] += part[i];
        pipeline_advance(&at, STAGES);
    }
}

/* Two columns of a row; an f32 matrix has them at a multiple of 8 bytes. */
static __device__ __forceinline__ void f32_put(const linear_product &p, const linear_tile &t, int64_t row, int64_t col,
                                               float x, float y)
{
    if (!p.d.f32 || row >= t.m || col + 1 >= t.n) {
        put_sum(p, t, row, col, x);
        put_sum(p, t, row, col + 1, y);
        return;
    }
    float2 *to = (float2 *)(p.d.f32 + row * p.d.ld + col);

    if (p.add) {
        const float2 v = *to;

        x += v.x;
        y += v.y;
    }
    *to = make_float2(__uint_as_float(num_canonical_f32(x)), __uint_as_float(num_canonical_f32(y)));
}

static __device__ __forceinline__ void f32_store(const linear_product &p, const linear_tile &t, const float *sum)
{
    const int thread = threadIdx.x % 256;
    const int64_t row = t.i0 + thread / 32 * 16 + thread % 32 / 4, col = t.j0 + thread % 4 * 2;

#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
            f32_put(p, t, row + 8 * h, col + 8 * j, sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
}

#endif

template <int MN_A, int MN_B>
static __global__ void __launch_bounds__(F32_THREADS, 1) linear_f32(const __grid_constant__ f32_args g)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t f32_stages[];
    f32_smem<MN_B> *s = (f32_smem<MN_B> *)f32_stages;
    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0);

    if (threadIdx.x == 0) {
        for (int i = 0; i < f32_smem<MN_B>::STAGES; i++) {
            ptx_mbarrier_init(ptx_shared(&s->full[i]), 1);
            ptx_mbarrier_init(ptx_shared(&s->ready[i]), 4);
            ptx_mbarrier_init(ptx_shared(&s->empty[i]), 8);
        }
        ptx_mbarrier_fence_init();
    }
    __syncthreads(); /* orders the initialisation of the mbarriers before their first use */
    ptx_grid_dependency_wait();
    const linear_tile t = tile_at(g.p, g.rows_first ? blockIdx.x : blockIdx.y, g.rows_first ? blockIdx.y : blockIdx.x);
    const int blocks = t.any ? (int)((t.k + F32_K - 1) / F32_K) : 0;

    if (role == 0) {
        ptx_setmaxnreg_dec<24>();
        if (threadIdx.x == 0)
            f32_produce<MN_A, MN_B>(g, s, t, blocks);
    } else if (role == 1) {
        ptx_setmaxnreg_dec<72>();
        f32_prepare<MN_A, MN_B>(s, t.k, blocks);
    } else {
        float sum[64];

        ptx_setmaxnreg_inc<208>();
        f32_multiply<MN_A, MN_B>(s, t.k, blocks, sum);
        if (t.any)
            f32_store(g.p, t, sum);
    }
#endif
}

#endif
