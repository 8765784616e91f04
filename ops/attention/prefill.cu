/* prefill.cu: attention_prefill by mma.sync, in the flash form: scores and weights stay in registers.
 *
 * A CTA has up to 128 queries of the group of a KV head (64 where head_dim is 256), neighbours in token and then head;
 * a warp has a quarter of them. Keys and values come in tiles of 64 positions, two in flight by cp.async.
 *   S = q K^T         q and K by ldmatrix
 *   x = c S           c = scale log2(e); -inf for keys that the query does not see
 *   m' = max(m, x)    O and l are multiplied by 2^(m - m')
 *   P = 2^(x - m')    rounded to the cache's dtype where it multiplies V, which comes by transposed ldmatrix
 * Tiles begin at multiples of 64 positions, and one of which a query sees nothing changes none of its bits: 2^0 = 1,
 * P = 0. So a query's bits depend on its keys alone. For that a V that is not finite must not meet P = 0: it is taken
 * out of tiles that a query sees in part, and a query that sees it gets NaN. */
#include <math.h>

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/num.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, TILE = 64, STAGES = 2 };

/* Rows are an odd number of 16 bytes apart, so that ldmatrix finds eight of them in different banks. */
template <int N> struct __align__(128) prefill_shared
{
    enum { SLABS = N <= 128 ? 2 : 1 }; /* of 16 queries a warp */
    enum { ROWS = 16 * WARPS * SLABS, PITCH = 2 * N + 16 };
    char q[ROWS][PITCH], k[STAGES][TILE][PITCH], v[STAGES][TILE][PITCH];
    int first[ROWS], end[ROWS];                         /* the keys that a query sees */
    int lowest, highest;                                /* the hull of that */
    int common_first, common_end;                       /* what all queries see */
    float m[2 * SLABS][THREADS], l[2 * SLABS][THREADS]; /* a thread's own, for the registers are full of O and S */
    uint32_t bad[TILE / 32 * N];                        /* keys of the tile whose value in a column is not finite */
};

static __device__ __forceinline__ void query(const attention_args &p, int64_t row, int64_t *t, int64_t *head)
{
    *t = (uint32_t)row / (uint32_t)p.group; /* fewer than 2^31 queries of a KV head */
    *head = blockIdx.y * p.group + (uint32_t)row % (uint32_t)p.group;
}

/* What every query sees; missing ones see nothing and do not narrow what all see. */
template <int N>
static __device__ __forceinline__ void read_ranges(const attention_args &p, prefill_shared<N> *s, int64_t first_row,
                                                   int rows)
{
    const int r = threadIdx.x;

    if (r == 0) {
        s->lowest = s->common_end = 0x7fffffff;
        s->highest = s->common_first = 0;
    }
    for (int i = r; i < TILE / 32 * N; i += THREADS)
        s->bad[i] = 0;
    __syncthreads(); /* the limits have their first values before any thread changes them */
    if (r < prefill_shared<N>::ROWS) {
        int64_t t, head, first = 0, end = 0;

        if (r < rows) {
            query(p, first_row + r, &t, &head);
            attention_range(&p, p.pos[t], &first, &end);
            if (first < end) {
                atomicMin(&s->lowest, (int)first);
                atomicMax(&s->highest, (int)end);
            }
            atomicMax(&s->common_first, (int)min(first, (int64_t)0x7fffffff));
            atomicMin(&s->common_end, (int)end);
        }
        s->first[r] = (int)min(first, (int64_t)0x7fffffff);
        s->end[r] = (int)end;
    }
}

/* The queries, rounded to the cache's dtype; zeros for missing ones. */
template <int KV, int N>
static __device__ __forceinline__ void load_queries(const attention_args &p, prefill_shared<N> *s, int64_t first_row,
                                                    int rows)
{
    for (int i = threadIdx.x; i < prefill_shared<N>::ROWS * N / 8; i += THREADS) {
        const int r = i / (N / 8), c = i % (N / 8) * 8;
        float x[8] = {};
        int64_t t, head;

        if (r < rows) {
            query(p, first_row + r, &t, &head);
            const char *from = p.q + t * p.q_stride + (head * N + c) * (p.q_bf16 ? 2 : 4);

            if (p.q_bf16) {
                num_unpack<RIDGE_BF16>(*(const uint4 *)from, x);
            } else {
                num_unpack<RIDGE_F32>(*(const uint4 *)from, x);
                num_unpack<RIDGE_F32>(*(const uint4 *)(from + 16), x + 4);
            }
        }
        *(uint4 *)&s->q[r][2 * c] = num_pack<KV>(x);
    }
}

/* Keys and values of a tile into a stage, zeros outside the hull; one group of cp.async, empty behind the last tile. */
template <int N>
static __device__ __forceinline__ void load_tile(const attention_args &p, prefill_shared<N> *s, int tile, int tiles)
{
    if (tile < tiles) {
        const int64_t base = (int64_t)tile * TILE * N * 2;
        const char *k = p.k + blockIdx.y * p.k_stride + base, *v = p.v + blockIdx.y * p.v_stride + base;

#pragma unroll 4
        for (int i = threadIdx.x; i < TILE * N / 8; i += THREADS) {
            const int row = i / (N / 8), at = i % (N / 8) * 16, key = tile * TILE + row;
            const bool wanted = key >= s->lowest && key < s->highest;

            mma_copy16_if(ptx_shared(&s->k[tile % STAGES][row][at]), k + (int64_t)i * 16, wanted);
            mma_copy16_if(ptx_shared(&s->v[tile % STAGES][row][at]), v + (int64_t)i * 16, wanted);
        }
    }
    mma_copy_commit();
}

/* S of the warp's queries with the keys of a stage. */
template <int KV, int N, int SLABS>
static __device__ __forceinline__ void products(const prefill_shared<N> *s, int stage, float (*S)[TILE / 8][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = lane / 8;
    const uint32_t q = ptx_shared(&s->q[warp * 16 * SLABS + lane % 16][lane / 16 * 16]);
    const uint32_t k = ptx_shared(&s->k[stage][matrix / 2 * 8 + lane % 8][matrix % 2 * 16]);

#pragma unroll
    for (int m = 0; m < SLABS; m++)
#pragma unroll
        for (int i = 0; i < TILE / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                S[m][i][j] = 0.0f;
#pragma unroll
    for (int c = 0; c < N / 16; c++) {
        uint32_t a[SLABS][4];

#pragma unroll
        for (int m = 0; m < SLABS; m++)
            ptx_ldmatrix4(a[m], q + m * 16 * prefill_shared<N>::PITCH + c * 32);
#pragma unroll
        for (int i = 0; i < TILE / 16; i++) {
            uint32_t b[4];

            ptx_ldmatrix4(b, k + i * 16 * prefill_shared<N>::PITCH + c * 32);
#pragma unroll
            for (int m = 0; m < SLABS; m++) {
                mma_16<KV == RIDGE_BF16>(S[m][2 * i], a[m], b);
                mma_16<KV == RIDGE_BF16>(S[m][2 * i + 1], a[m], b + 2);
            }
        }
    }
}

/* Dot products become scores in units of log2(e). */
static __device__ __forceinline__ void scale_scores(const attention_args &p, float (*S)[4])
{
    const float log2e = 0x1.715476p+0f, factor = p.scale * log2e;

    if (p.softcap > 0.0f) {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                S[i][j] = ridge_attention_score(S[i][j], p.scale, p.softcap) * log2e;
    } else {
#pragma unroll
        for (int i = 0; i < TILE / 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                S[i][j] *= factor;
    }
}

/* One half (rows g or g + 8) of a slab: S becomes P; m, l and what O is multiplied by. base: the tile's first key. */
static __device__ __forceinline__ float weigh(float (*S)[4], int half, int base, int first, int end, bool whole,
                                              float *m, float *l)
{
    const int column = base + threadIdx.x % 4 * 2;
    float top = *m, sum = 0.0f, alpha;

#pragma unroll
    for (int i = 0; i < TILE / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float x = S[i][2 * half + j];
            const int key = column + 8 * i + j;

            if (!whole && (key < first || key >= end))
                x = -INFINITY;
            S[i][2 * half + j] = x;
            top = fmaxf(top, x);
        }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float from = top == -INFINITY ? 0.0f : top;

    alpha = ptx_ex2(*m - from);
    *m = top;
#pragma unroll
    for (int i = 0; i < TILE / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            S[i][2 * half + j] = ptx_ex2(S[i][2 * half + j] - from);
            sum += S[i][2 * half + j];
        }
    *l = ridge_fma(*l, alpha, sum);
    return alpha;
}

/* O += P V of a stage. */
template <int KV, int N, int SLABS>
static __device__ __forceinline__ void add_values(const prefill_shared<N> *s, int stage, const float (*S)[TILE / 8][4],
                                                  float (*O)[N / 8][4])
{
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    const uint32_t v = ptx_shared(&s->v[stage][matrix % 2 * 8 + lane % 8][matrix / 2 * 16]);

#pragma unroll
    for (int i = 0; i < TILE / 16; i++) {
        uint32_t a[SLABS][4];

#pragma unroll
        for (int m = 0; m < SLABS; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                a[m][2 * h] = num_pack2<KV>(S[m][2 * i + h][0], S[m][2 * i + h][1]);
                a[m][2 * h + 1] = num_pack2<KV>(S[m][2 * i + h][2], S[m][2 * i + h][3]);
            }
#pragma unroll
        for (int c = 0; c < N / 16; c++) {
            uint32_t b[4];

            ptx_ldmatrix4_transposed(b, v + i * 16 * prefill_shared<N>::PITCH + c * 32);
#pragma unroll
            for (int m = 0; m < SLABS; m++) {
                mma_16<KV == RIDGE_BF16>(O[m][2 * c], a[m], b);
                mma_16<KV == RIDGE_BF16>(O[m][2 * c + 1], a[m], b + 2);
            }
        }
    }
}

/* Takes values that are not finite out of a stage and notes where they were. Returns whether there are any, to all
 * threads. */
template <int KV, int N> static __device__ __forceinline__ int take_out_bad(prefill_shared<N> *s, int stage)
{
    const uint32_t exponent = KV == RIDGE_BF16 ? 0x7f80u : 0x7c00u;
    int found = 0;

    for (int i = threadIdx.x; i < TILE * N / 2; i += THREADS) {
        const int key = i / (N / 2), c = i % (N / 2) * 2;
        uint32_t *const at = (uint32_t *)&s->v[stage][key][2 * c], two = *at;

        for (int h = 0; h < 2; h++)
            if ((two >> 16 * h & exponent) == exponent) {
                atomicOr(&s->bad[key / 32 * N + c + h], 1u << key % 32);
                *at &= h ? 0x0000ffffu : 0xffff0000u;
                found = 1;
            }
    }
    return __syncthreads_or(found);
}

/* NaN for the queries that see one of them; then forgets them. */
template <int N, int SLABS>
static __device__ __forceinline__ void poison(prefill_shared<N> *s, int base, float (*O)[N / 8][4])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int m = 0; m < SLABS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = (warp * SLABS + m) * 16 + half * 8 + lane / 4;
            const int low = min(max(s->first[row] - base, 0), (int)TILE),
                      high = min(max(s->end[row] - base, 0), (int)TILE);
            uint32_t sees[2];

            for (int w = 0; w < 2; w++) {
                const int from = max(low - 32 * w, 0), to = min(high - 32 * w, 32);

                sees[w] = from < to ? ~0u >> (32 - (to - from)) << from : 0;
            }
#pragma unroll
            for (int c = 0; c < N / 8; c++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int column = 8 * c + lane % 4 * 2 + j;

                    if ((s->bad[column] & sees[0]) | (s->bad[N + column] & sees[1]))
                        O[m][c][2 * half + j] = NAN;
                }
        }
    __syncthreads(); /* the notes are read before they are cleared */
    for (int i = threadIdx.x; i < TILE / 32 * N; i += THREADS)
        s->bad[i] = 0;
}

/* O / l into out: zeros where no key is seen, NaN for what is not finite. */
template <int N, int SLABS>
static __device__ __forceinline__ void store_rows(const attention_args &p, const prefill_shared<N> *s,
                                                  int64_t first_row, int rows, float (*O)[N / 8][4])
{
    const float log2e = 0x1.715476p+0f;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int slab = 0; slab < SLABS; slab++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = (warp * SLABS + slab) * 16 + half * 8 + lane / 4;
            const float m = s->m[2 * slab + half][threadIdx.x];
            float sum = s->l[2 * slab + half][threadIdx.x], scale = 1.0f;
            int64_t t, head;

            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (row >= rows)
                continue;
            query(p, first_row + row, &t, &head);
            if (p.sinks) {
                const float sink = p.sinks[head] * log2e, top = fmaxf(m, sink);

                scale = top == -INFINITY ? 1.0f : ptx_ex2(m - top);
                sum = sum * scale + (top == -INFINITY ? 0.0f : ptx_ex2(sink - top));
            }
            const float factor = sum == 0.0f ? 0.0f : scale / sum;
            char *const to = p.out + t * p.out_stride + head * N * (p.out_bf16 ? 2 : 4);

#pragma unroll
            for (int c = 0; c < N / 8; c++) {
                const int at = 8 * c + lane % 4 * 2;
                float x[2];

#pragma unroll
                for (int j = 0; j < 2; j++)
                    x[j] = fabsf(O[slab][c][2 * half + j]) < INFINITY ? O[slab][c][2 * half + j] * factor + 0.0f : NAN;
                if (p.out_bf16) {
                    const uint32_t two = num_pack2<RIDGE_BF16>(x[0], x[1]);

                    *(uint32_t *)(to + 2 * at) =
                        num_canonical<RIDGE_BF16>(two & 0xffffu) | num_canonical<RIDGE_BF16>(two >> 16) << 16;
                } else {
                    *(uint2 *)(to + 4 * at) = make_uint2(num_canonical_f32(x[0]), num_canonical_f32(x[1]));
                }
            }
        }
}

template <int KV, int N>
static __global__ void __launch_bounds__(THREADS, N <= 128 ? 2 : 1) prefill(const __grid_constant__ attention_args p)
{
    enum { SLABS = prefill_shared<N>::SLABS, ROWS = prefill_shared<N>::ROWS };
    extern __shared__ float4 shared[];
    prefill_shared<N> *s = (prefill_shared<N> *)shared;
    const int64_t first_row = (int64_t)(gridDim.x - 1 - blockIdx.x) * ROWS; /* long rows first */
    const int rows = (int)min(p.tokens * p.group - first_row, (int64_t)ROWS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float S[SLABS][TILE / 8][4], O[SLABS][N / 8][4] = {};

    ptx_grid_dependency_wait();
    read_ranges(p, s, first_row, rows);
    load_queries<KV>(p, s, first_row, rows);
    __syncthreads(); /* ranges and queries are written before all threads read them */
    const int begin = s->lowest / TILE, tiles = (int)(((int64_t)s->highest + TILE - 1) / TILE);

    for (int i = 0; i < 2 * SLABS; i++) {
        s->m[i][threadIdx.x] = -INFINITY;
        s->l[i][threadIdx.x] = 0.0f;
    }
    load_tile(p, s, begin, tiles);
    load_tile(p, s, begin + 1, tiles);
    for (int tile = begin; tile < tiles; tile++) {
        const int base = tile * TILE, stage = tile % STAGES;
        const bool whole = s->common_first <= base && s->common_end >= base + TILE;
        int bad = 0;

        mma_copy_wait_for<STAGES - 1>();
        __syncthreads(); /* the tile is written before all threads read it */
        if (!whole)
            bad = take_out_bad<KV>(s, stage);
        products<KV, N, SLABS>(s, stage, S);
#pragma unroll
        for (int i = 0; i < SLABS; i++) {
            scale_scores(p, S[i]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = (warp * SLABS + i) * 16 + h * 8 + lane / 4;
                const float alpha = weigh(S[i], h, base, s->first[row], s->end[row], whole,
                                          &s->m[2 * i + h][threadIdx.x], &s->l[2 * i + h][threadIdx.x]);

#pragma unroll
                for (int c = 0; c < N / 8; c++) {
                    O[i][c][2 * h] *= alpha;
                    O[i][c][2 * h + 1] *= alpha;
                }
            }
        }
        add_values<KV, N, SLABS>(s, stage, S, O);
        if (bad)
            poison<N, SLABS>(s, base, O);
        __syncthreads(); /* the tile is read before another takes its stage */
        load_tile(p, s, tile + STAGES, tiles);
    }
    ptx_launch_dependents();
    store_rows<N, SLABS>(p, s, first_row, rows, O);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define FORMS(kv)                                                                                    \
    {                                                                                                \
        (const void *)prefill<kv, 64>, (const void *)prefill<kv, 80>, (const void *)prefill<kv, 96>, \
            (const void *)prefill<kv, 128>, (const void *)prefill<kv, 256>                           \
    }

static const int64_t dims[] = {64, 80, 96, 128, 256};
static const size_t shared_of[] = {sizeof(prefill_shared<64>), sizeof(prefill_shared<80>), sizeof(prefill_shared<96>),
                                   sizeof(prefill_shared<128>), sizeof(prefill_shared<256>)};
static const int rows_of[] = {prefill_shared<64>::ROWS, prefill_shared<80>::ROWS, prefill_shared<96>::ROWS,
                              prefill_shared<128>::ROWS, prefill_shared<256>::ROWS};
enum { FORMS_OF_N = sizeof dims / sizeof dims[0] };
static const void *const functions[2][FORMS_OF_N] = {FORMS(RIDGE_F16), FORMS(RIDGE_BF16)};

/* Which of the forms; -1: none. */
static int form_of(int64_t n)
{
    for (int i = 0; i < FORMS_OF_N; i++)
        if (dims[i] == n)
            return i;
    return -1;
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < FORMS_OF_N && !status; i++)
        for (int kv = 0; kv < 2 && !status; kv++)
            if ((int)shared_of[i] <= host_max_shared(device))
                status = host_prepare(device, &functions[kv][i], 1, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared_of[i], "attention_prefill: loading kernels");
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    attention_args p = attention_args_of(&bound->call, NULL);
    const int form = form_of(p.n);

    if (p.tokens * p.heads == 0)
        return RIDGE_OK;
    return host_launch_shared(device, kernel->name, functions[p.kv == RIDGE_BF16][form],
                              dim3((unsigned)ridge_ceil_div(p.tokens * p.group, rows_of[form]), (unsigned)p.kv_heads),
                              THREADS, shared_of[form], &p, stream);
}

static const char *why_not(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int form = form_of(problem->dim[3]);

    if (form < 0)
        return "head_dim is not 64, 80, 96, 128 or 256";
    if (problem->align < 4)
        return "an operand or row stride is not a multiple of 16 bytes";
    if ((int)shared_of[form] > host_max_shared(device))
        return "the tiles do not fit in shared memory";
    if (problem->dim[2] > 65535)
        return "more than 65535 KV heads";
    return problem->dim[2] && (double)problem->dim[0] * (double)problem->dim[1] / (double)problem->dim[2] > 2147480000.0
               ? "more than 2^31 queries of a KV head"
               : NULL;
}

/* Microseconds: the products at 0.52 of what mma.sync has, as on an H200, or a read of the queries and the cache and a
 * write of the results. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const int64_t *dim = problem->dim;
    const double rows = 2 * ((double)dim[0] * (double)dim[1] + (double)dim[4] * (double)dim[2]);
    const double load = rows * (double)dim[3] * 2e-3 / device->copy_gbps;

    return 5 + fmax(ridge_op_at(problem->op)->flops(problem) /
                        (device->units * 0.52 * 2e3 * device->mma_f16 * device->clock_ghz),
                    load);
}

static const ridge_kernel rows[] = {
    {"cuda.attention_prefill.mma",
     RIDGE_ATTENTION_PREFILL,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_CUDA_LAST,
     RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     0,
     {},
     why_not,
     NULL,
     cost,
     launch},
};

extern "C" const ridge_kernel_list ridge_cuda_attention_prefill = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
