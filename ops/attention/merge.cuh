/* merge.cuh: the pieces of attention_decode in the workspace, and the kernel that merges them. */
#ifndef RIDGE_ATTENTION_MERGE_CUH
#define RIDGE_ATTENTION_MERGE_CUH

#include "args.h"
#include "cuda/launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/num.cuh"

enum { MERGE_THREADS = 128, MERGE_COLUMNS = 32, MERGE_PANEL = 128 };

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

/* Copies the CTA's columns of up to 128 pieces to shared memory. */
static __device__ __forceinline__ void copy_panel(const float *o, int n, int columns, int count,
                                                  float (*to)[MERGE_COLUMNS])
{
    for (int i = threadIdx.x; i < count * (MERGE_COLUMNS / 4); i += MERGE_THREADS) {
        const int piece = i / (MERGE_COLUMNS / 4), c = i % (MERGE_COLUMNS / 4) * 4;

        if (c < columns)
            mma_copy16(ptx_shared(&to[piece][c]), o + (int64_t)piece * n + c, 16);
    }
    mma_copy_commit();
}

/* blockIdx.x: a query and head; blockIdx.y: 32 of its columns, each a thread of the first warp. Positions are read
 * before the wait: the kernel of the pieces lets this one begin when all its CTAs have passed theirs, so that whatever
 * wrote the positions has ended. */
static __global__ void __launch_bounds__(MERGE_THREADS) merge(const __grid_constant__ attention_args p)
{
    __shared__ __align__(16) float part[MERGE_PANEL][MERGE_COLUMNS];
    __shared__ float weight[MERGE_PANEL], length[MERGE_PANEL], most[MERGE_THREADS / 32];
    const int64_t t = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
    const int n = (int)p.n, first_column = blockIdx.y * MERGE_COLUMNS;
    const int columns = min(n - first_column, (int)MERGE_COLUMNS);
    const float *o = piece_o(p, t, head) + first_column;
    const float2 *ml = piece_ml(p, t, head);
    float x = 0.0f, top = -INFINITY, sum = 0.0f;
    int64_t first, end;

    attention_range(&p, p.pos[t], &first, &end);
    const int64_t last = first < end ? attention_pieces_of(end) : 0;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();

    first /= RIDGE_ATTENTION_PIECE;
    copy_panel(o + first * n, n, columns, (int)max(min(last - first, (int64_t)MERGE_PANEL), (int64_t)0), part);
    for (int64_t i = first + threadIdx.x; i < last; i += MERGE_THREADS)
        top = ridge_attention_max(top, ml[i].x);
#pragma unroll
    for (int h = 16; h > 0; h /= 2)
        top = ridge_attention_max(top, __shfl_xor_sync(~0u, top, h));
    if (threadIdx.x % 32 == 0)
        most[threadIdx.x / 32] = top;
    __syncthreads(); /* the warps' maxima are written before all threads read them */
#pragma unroll
    for (int i = 0; i < MERGE_THREADS / 32; i++)
        top = ridge_attention_max(top, most[i]);
    if (p.sinks)
        top = ridge_attention_max(top, p.sinks[head]);
    for (int64_t i = first; i < last; i += MERGE_PANEL) {
        const int count = (int)min(last - i, (int64_t)MERGE_PANEL);

        if (threadIdx.x < count) {
            const float2 of = ml[i + threadIdx.x];

            weight[threadIdx.x] = ridge_exp_neg(top - of.x);
            length[threadIdx.x] = of.y;
        }
        mma_copy_wait_for<0>();
        __syncthreads(); /* the panel is written before the first warp reads it */
        if (threadIdx.x < MERGE_COLUMNS)
#pragma unroll 8
            for (int j = 0; j < count; j++) {
                sum = ridge_fma(weight[j], length[j], sum);
                x = ridge_fma(weight[j], part[j][threadIdx.x], x);
            }
        __syncthreads(); /* it is read before the next one overwrites it */
        if (i + MERGE_PANEL < last)
            copy_panel(o + (i + MERGE_PANEL) * n, n, columns, (int)min(last - i - MERGE_PANEL, (int64_t)MERGE_PANEL),
                       part);
    }
    if (p.sinks)
        sum += ridge_attention_weight(top, p.sinks[head]);
    if (threadIdx.x < columns)
        store_out(p, t, head * n + first_column + threadIdx.x, x * ridge_attention_factor(sum));
}

static inline ridge_status merge_launch(const ridge_device *device, const char *name, attention_args *p, void *stream)
{
    const dim3 grid((unsigned)(p->tokens * p->heads), (unsigned)ridge_ceil_div(p->n, MERGE_COLUMNS));

    return host_launch(device, name, (const void *)merge, grid, MERGE_THREADS, p, stream);
}

#endif
