/* merge.cuh: the pieces of attention_decode in the workspace, and the kernel that merges them. */
#ifndef RIDGE_ATTENTION_MERGE_CUH
#define RIDGE_ATTENTION_MERGE_CUH

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/num.cuh"

enum { MERGE_THREADS = 128, MERGE_CTAS = 10 /* 48 registers: room beside a CTA of `piece` */ };
enum { MERGE_COLUMNS = 32, MERGE_PANEL = MERGE_THREADS /* pieces */ };

/* Token and head of a query of a KV head. */
static __device__ __forceinline__ void query_of(const attention_args &p, int64_t kv_head, int64_t row, int64_t *t,
                                                int64_t *head)
{
    *t = p.tokens == 1 ? 0 : (uint32_t)row / (uint32_t)p.group; /* at most 2^20 queries of a KV head */
    *head = kv_head * p.group + row - *t * p.group;
}

static __device__ __forceinline__ void query(const attention_args &p, int64_t row, int64_t *t, int64_t *head)
{
    query_of(p, blockIdx.y, row, t, head);
}

/* Two bytes of a row of the cache. Blocks of Q8_0 may lie at odd addresses; ALIGNED: not here. */
template <int ALIGNED> static __device__ __forceinline__ uint32_t cache_u16(const char *at)
{
    const unsigned char *byte = (const unsigned char *)at;

    return ALIGNED ? *(const uint16_t *)at : (uint32_t)byte[0] | (uint32_t)byte[1] << 8;
}

/* Elements c and c + 1 of a row of the cache, c even: 4 bytes, or two codes and their scale. */
template <int KV, int ALIGNED> static __device__ __forceinline__ void cache_pair(const char *row, int c, float *x)
{
    if (KV == RIDGE_U8) {
        const char *block = row + c / RIDGE_Q8_0_BLOCK * RIDGE_Q8_0_BYTES;
        const float d = ptx_f32_from_f16((uint16_t)cache_u16<ALIGNED>(block));
        const uint32_t codes = cache_u16<ALIGNED>(block + 2 + c % RIDGE_Q8_0_BLOCK);

        x[0] = d * (float)(int8_t)codes;
        x[1] = d * (float)(int8_t)(codes >> 8);
    } else {
        num_unpack2<KV>(*(const uint32_t *)(row + 2 * c), x, x + 1);
    }
}

/* Piece 0 of a query and head: its o [n], which those of its other pieces follow, and its m and l. */
static __device__ __forceinline__ float *piece_o(const attention_args &p, int64_t t, int64_t head)
{
    return p.pieces + (t * p.heads + head) * attention_pieces_of(p.positions) * p.n;
}

static __device__ __forceinline__ float2 *piece_ml(const attention_args &p, int64_t t, int64_t head)
{
    const int64_t pieces = attention_pieces_of(p.positions);

    return (float2 *)(p.pieces + p.tokens * p.heads * pieces * p.n) + (t * p.heads + head) * pieces;
}

static __device__ __forceinline__ void store_out(const attention_args &p, int64_t t, int64_t column, float x)
{
    if (p.out_bf16)
        num_store<RIDGE_BF16>(p.out + t * p.out_stride, column, x);
    else
        num_store<RIDGE_F32>(p.out + t * p.out_stride, column, x);
}

/* Copies the CTA's columns of up to 128 pieces from `first` on to shared memory: a group of cp.async. */
static __device__ __forceinline__ void copy_panel(const float *o, int n, int columns, int first, int last,
                                                  float (*to)[MERGE_COLUMNS])
{
    const int c = threadIdx.x % (MERGE_COLUMNS / 4) * 4, end = min(last - first, (int)MERGE_PANEL);

#pragma unroll 1
    for (int i = threadIdx.x / (MERGE_COLUMNS / 4); i < end && c < columns; i += MERGE_THREADS / (MERGE_COLUMNS / 4))
        mma_copy16(ptx_shared(&to[i][c]), o + (int64_t)(first + i) * n + c, 16);
    mma_copy_commit();
}

/* A panel's pieces into *sum and *x, the thread's column, in ascending order; `weight` has weights and sums of weights.
 * The loads of sixteen pieces come before the chain of their FMAs. */
static __device__ __forceinline__ void add_panel(const float2 *weight, const float (*part)[MERGE_COLUMNS], int count,
                                                 float *sum, float *x)
{
    const int column = threadIdx.x;
    int j = 0;

#pragma unroll 1
    for (; j + 16 <= count; j += 16) {
        float o[16];
        float4 w[8]; /* of two pieces */

#pragma unroll
        for (int i = 0; i < 16; i++)
            o[i] = part[j + i][column];
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = *(const float4 *)(weight + j + 2 * i);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            *sum = ridge_fma(w[i].x, w[i].y, *sum);
            *x = ridge_fma(w[i].x, o[2 * i], *x);
            *sum = ridge_fma(w[i].z, w[i].w, *sum);
            *x = ridge_fma(w[i].z, o[2 * i + 1], *x);
        }
    }
#pragma unroll 1
    for (; j < count; j++) {
        *sum = ridge_fma(weight[j].x, weight[j].y, *sum);
        *x = ridge_fma(weight[j].x, part[j][column], *x);
    }
}

/* late: the next kernel requests weights when it begins, so that it may begin when the first panel is there. Before,
 * the panel's loads would queue behind the weights. */
typedef struct merge_args {
    attention_args p;
    int late;
} merge_args;

/* blockIdx.x: a query and head; blockIdx.y: 32 of its columns, each a thread of the first warp. Positions are read
 * before the wait: the kernel of the pieces lets this one begin when all its CTAs have passed theirs, so that whatever
 * wrote the positions has ended. */
static __global__ void __launch_bounds__(MERGE_THREADS, MERGE_CTAS) merge(const __grid_constant__ merge_args a)
{
    const attention_args &p = a.p;
    __shared__ __align__(16) float part[MERGE_PANEL][MERGE_COLUMNS];
    __shared__ __align__(16) float2 weight[MERGE_PANEL]; /* and l */
    __shared__ float most[MERGE_THREADS / 32];
    const int64_t t = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
    const int n = (int)p.n, first_column = blockIdx.y * MERGE_COLUMNS;
    const int columns = min(n - first_column, (int)MERGE_COLUMNS);
    const float *o = piece_o(p, t, head) + first_column;
    const float2 *ml = piece_ml(p, t, head);
    float2 own = make_float2(-INFINITY, 0.0f); /* m and l of the thread's piece of a panel */
    float x = 0.0f, top, sum = 0.0f;
    int64_t low, high;

    attention_range(&p, p.pos[t], &low, &high);
    const int first = (int)(low / RIDGE_ATTENTION_PIECE), last = low < high ? (int)attention_pieces_of(high) : 0;

    if (!a.late)
        ptx_launch_dependents();
    ptx_grid_dependency_wait();

    if (first + (int)threadIdx.x < last)
        own = ml[first + threadIdx.x];
    copy_panel(o, n, columns, first, last, part);
    top = ridge_attention_max(-INFINITY, own.x);
#pragma unroll 1
    for (int i = first + MERGE_PANEL + threadIdx.x; i < last; i += MERGE_THREADS)
        top = ridge_attention_max(top, ml[i].x);
#pragma unroll
    for (int h = 16; h > 0; h /= 2)
        top = ridge_attention_max(top, __shfl_xor_sync(~0u, top, h));
    if (threadIdx.x % 32 == 0)
        most[threadIdx.x / 32] = top;
    __syncthreads(); /* the warps' maxima are written before all threads read them */
    top = -INFINITY;
#pragma unroll
    for (int i = 0; i < MERGE_THREADS / 32; i++)
        top = ridge_attention_max(top, most[i]);
    if (p.sinks)
        top = ridge_attention_max(top, p.sinks[head]);
    if (a.late) {
        mma_copy_wait_for<0>();
        ptx_launch_dependents();
    }
#pragma unroll 1
    for (int i = first; i < last; i += MERGE_PANEL) {
        const int next = i + MERGE_PANEL;

        weight[threadIdx.x] = make_float2(ridge_exp_neg(top - own.x), own.y);
        if (next + (int)threadIdx.x < last)
            own = ml[next + threadIdx.x];
        mma_copy_wait_for<0>();
        __syncthreads(); /* the panel is written before the first warp reads it */
        if (threadIdx.x < MERGE_COLUMNS)
            add_panel(weight, part, min(last - i, (int)MERGE_PANEL), &sum, &x);
        __syncthreads(); /* it is read before the next one overwrites it */
        if (next < last)
            copy_panel(o, n, columns, next, last, part);
    }
    if (p.sinks)
        sum += ridge_attention_weight(top, p.sinks[head]);
    if (threadIdx.x < columns)
        store_out(p, t, head * n + first_column + threadIdx.x, x * ridge_attention_factor(sum));
}

static inline ridge_status merge_launch(const ridge_device *device, const char *name, const attention_args *p, int late,
                                        void *stream)
{
    merge_args a = {*p, late};
    const dim3 grid((unsigned)(p->tokens * p->heads), (unsigned)ridge_ceil_div(p->n, MERGE_COLUMNS));

    return host_launch(device, name, (const void *)merge, grid, MERGE_THREADS, &a, stream);
}

#endif
