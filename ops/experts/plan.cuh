/* plan.cuh: the groups of the quantisers of sorted rows on CUDA: one CTA lists the tiles, 128 padded rows of one group
 * each, for the kernels that quantise them (quantize.cu, swiglu_bwd.cu). */
#ifndef RIDGE_EXPERTS_PLAN_CUH
#define RIDGE_EXPERTS_PLAN_CUH

#include "ops/quantize_fp8/tile.cuh"

enum { PLAN = RIDGE_MOE_MAX_EXPERTS };

typedef struct group_args {
    quantize_args q;
    const int32_t *rows, *offsets;
    int32_t *offsets_t;
    int2 *tile; /* of each tile: its first row, and how many it has; 0: it belongs to no group */
    int64_t pairs;
    int32_t slots, experts, tiles;
    uint32_t strip; /* columns of tiles that are done before the next ones are */
} group_args;

/* The largest, or the sum, of the values of the threads before this one and its own. */
template <bool SUM> static __device__ __forceinline__ int scan_block(int v, int *warps)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
        const int other = __shfl_up_sync(~0u, v, s);

        if (lane >= s)
            v = SUM ? v + other : max(v, other);
    }
    if (lane == 31)
        warps[warp] = v;
    __syncthreads(); /* the warps' results are written before they are read */
    for (int w = 0; w < warp; w++)
        v = SUM ? v + warps[w] : max(v, warps[w]);
    __syncthreads(); /* and read before the next scan writes */
    return v;
}

static __global__ void __launch_bounds__(PLAN) group_plan(const __grid_constant__ group_args p)
{
    __shared__ int warps[PLAN / 32], start[PLAN + 1], first[PLAN + 1];
    const int e = threadIdx.x, pairs = (int)p.pairs;
    int from, to, count, end;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    from = e < p.experts ? min(max(p.offsets[e], 0), pairs) : 0;
    from = scan_block<false>(from, warps);
    start[e] = from;
    if (e == 0)
        start[p.experts] = min(max(p.offsets[p.experts], 0), pairs);
    __syncthreads(); /* the starts are written before they are read */
    to = e < p.experts - 1 ? start[e + 1] : max(start[p.experts], from);
    __syncthreads(); /* and read before the last one is corrected */
    if (e == p.experts - 1)
        start[p.experts] = to;
    count = e < p.experts ? (to - from + 127) / 128 : 0;
    end = scan_block<true>(count, warps);
    if (e < p.experts) {
        first[e + 1] = end;
        if (p.offsets_t)
            p.offsets_t[e + 1] = end * 128;
    }
    if (e == 0) {
        first[0] = 0;
        if (p.offsets_t)
            p.offsets_t[0] = 0;
    }
    __syncthreads(); /* starts and first tiles are complete */
    for (int tile = e; tile < p.tiles; tile += PLAN) {
        int low = 0, high = p.experts; /* the last group whose first tile is not behind this one */

        while (high - low > 1) {
            const int middle = (low + high) / 2;

            if (first[middle] <= tile)
                low = middle;
            else
                high = middle;
        }
        from = start[low] + (tile - first[low]) * 128;
        p.tile[tile] = make_int2(from, tile < first[p.experts] ? min(128, start[low + 1] - from) : 0);
    }
}

/* A tile's outputs as if its first row were row tr * 128 of them; q is a copy of the launch's. */
static __device__ __forceinline__ void group_move(quantize_args *q, int tr, int2 tile)
{
    q->rows = (int64_t)tr * 128 + tile.y;
    q->row.q += (tile.x - (int64_t)tr * 128) * q->row.stride;
    q->row.scale += tile.x - (int64_t)tr * 128;
}

/* ------------------------------------------------------------------------------------------------------------ host */

static inline ridge_status group_prepare(const ridge_device *device)
{
    const void *const plan = (const void *)group_plan;

    return host_load(device, &plan, 1, "moe_permute_quantize: loading kernels");
}

/* The outputs, q in slot q, of `pairs` rows of `cols` columns. */
static inline void group_outputs(const ridge_call *call, int q, int64_t pairs, int64_t cols, int64_t experts,
                                 group_args *p)
{
    const ridge_operand *arg = call->arg;

    p->pairs = pairs;
    p->tiles = (int32_t)(ridge_ld_groups(pairs, experts) / 128);
    p->experts = (int32_t)experts;
    p->offsets_t = (int32_t *)arg[q + 4].data;
    p->q.rows_t = (int64_t)p->tiles * 128;
    p->q.cols = cols;
    p->q.across = (uint32_t)quantize_groups(cols);
    p->q.e5m2 = arg[q].dtype == RIDGE_E5M2;
    p->q.pow2 = (call->flags & RIDGE_POW2) != 0;
    p->q.row = quantize_output(call, q);
    p->q.vector_row = quantize_aligned(p->q.row.q, p->q.row.stride, 8);
    if (arg[q + 2].data) {
        p->q.col = quantize_output(call, q + 2);
        p->q.vector_col = quantize_aligned(p->q.col.q, p->q.col.stride, 16);
    }
    p->q.whole = p->q.vector_row && (!p->q.col.q || p->q.vector_col);
}

/* Launches the plan. */
static inline ridge_status group_begin(const ridge_device *device, const ridge_kernel *kernel, group_args *p,
                                       void *stream)
{
    return host_launch(device, kernel->name, (const void *)group_plan, dim3(1), PLAN, p, stream);
}

#endif
