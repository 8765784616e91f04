/* target_grads_sm90.cu: the linear cross entropy on Hopper: what the targets' own du gives to dW and dbias, in f32,
 * class by class in the order of the rows. A class has a few rows as a rule, and these are a list; but in source text
 * one token may have a quarter of all rows, whose sum is formed beforehand by many threads. */
#include "linear_sm90.cuh"

enum { THREADS = CE_STEP_THREADS, WARPS = CE_STEP_WARPS, AHEAD = 8, SEGMENT = THREADS * AHEAD, SLICE = 32 * 8 };

/* `next` in the order of the rows, by the warp of a target's first row; a common target gets its place in sums. */
static __global__ void __launch_bounds__(THREADS) targets_find(const ce_chunk c)
{
    ptx_grid_wait();
    const int64_t row = ce_warp_row(c);
    const int lane = threadIdx.x % 32, v = row < 0 ? -1 : c.p.label[row];
    const int2 same = v < 0 ? make_int2(0, 0) : c.same[v];
    int mine = INT32_MAX, after = INT32_MAX;

    if (same.y < 2 || same.x != (int)row)
        return;
    if (same.y > CE_COMMON) {
        if (lane == 0) {
            const int place = atomicAdd(&c.p.totals->common, 1); /* which one it gets changes nothing */

            c.next[row] = place;
            c.common[place] = v;
        }
        return;
    }
    for (int i = 0, at = c.chain[v]; i < same.y; i++) {
        mine = lane == i ? at : mine;
        at = i < same.y - 1 ? c.next[at] : at;
    }
    for (int i = 0; i < same.y; i++) {
        const int other = __shfl_sync(~0u, mine, i);

        after = other > mine ? min(after, other) : after;
    }
    __syncwarp(); /* all lanes have gone through the chain */
    if (after != INT32_MAX)
        c.next[mine] = after;
}

/* A row of the class: its token and du_y. */
typedef struct target_row {
    int token;
    float g;
} target_row;

typedef struct sum_memory {
    target_row row[SEGMENT];
    int count[WARPS];
    float sum[WARPS][SLICE + 1];
} sum_memory;

/* The rows with target v among the SEGMENT from `first` on, in order, to shared memory. Returns how many. */
static __device__ __forceinline__ int list_rows(const ce_chunk &c, sum_memory *s, int v, int64_t first, int64_t end)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t mask[AHEAD];
    int before = 0, all = 0, at = 0;

    first += warp * (32 * AHEAD) + lane;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const bool here = first + 32 * k < end && c.p.label[first + 32 * k] == v;

        mask[k] = __ballot_sync(~0u, here && c.factor[first + 32 * k] != 0.0f);
        at += __popc(mask[k]);
    }
    __syncthreads(); /* the segment before has been added */
    if (lane == 0)
        s->count[warp] = at;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) {
        before += i < warp ? s->count[i] : 0;
        all += s->count[i];
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int64_t row = first + 32 * k;

        if (mask[k] >> lane & 1)
            s->row[before + __popc(mask[k] & ((1u << lane) - 1))] = {c.p.list[row], c.at_target[row]};
        before += __popc(mask[k]);
    }
    __syncthreads();
    return all;
}

/* Rows [i, i + AHEAD) of the list, those before `end`, all on their way at once: 8 hidden units a thread. */
template <int DTYPE>
static __device__ __forceinline__ void add_rows(const ce_params &p, const sum_memory *s, int i, int end, int64_t h,
                                                float *sum, float *bias)
{
    uint4 word[AHEAD];

#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (i + k < end && h < p.hidden)
            word[k] = *(const uint4 *)((const uint16_t *)p.x + s->row[i + k].token * p.x_stride + h);
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (i + k < end) {
            const float g = s->row[i + k].g;
            float x[8];

            *bias += g;
            if (h >= p.hidden)
                continue;
            num_unpack<DTYPE>(word[k], x);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = __fmaf_rn(g, x[e], sum[e]);
        }
}

/* The sum of a common target, SLICE hidden units a block; each warp has an eighth of the rows of a segment. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) targets_sum(const ce_chunk c)
{
    ptx_grid_wait();
    __shared__ sum_memory s;
    const ce_params &p = c.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t slice = (int64_t)blockIdx.y * SLICE, h = slice + lane * 8, end = c.begin + ce_chunk_rows(c);
    float sum[8] = {}, bias = 0.0f, total = 0.0f;

    if ((int)blockIdx.x >= p.totals->common)
        return;
    const int v = c.common[blockIdx.x];
    float *to = c.sums + blockIdx.x * ce_sum_length(p.hidden);

    for (int64_t first = c.begin; first < end; first += SEGMENT) {
        const int all = list_rows(c, &s, v, first, end);
        const int part = (all + WARPS - 1) / WARPS, last = min((warp + 1) * part, all);

        for (int i = warp * part; i < last; i += AHEAD)
            add_rows<DTYPE>(p, &s, i, last, h, sum, &bias);
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        s.sum[warp][8 * lane + e] = sum[e];
    s.sum[warp][SLICE] = bias;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        total += s.sum[i][threadIdx.x];
    if (slice + threadIdx.x < p.hidden)
        to[slice + threadIdx.x] = total;
    if (slice == 0 && threadIdx.x == 0) {
        total = 0.0f;
        for (int i = 0; i < WARPS; i++)
            total += s.sum[i][SLICE];
        to[p.hidden] = total;
    }
}

/* One class, by its first row; 8 hidden units a thread. */
typedef struct add_args {
    ce_chunk c;
    float *dw;
    int64_t ld;
    ce_dw sum; /* own: NULL or a 16-bit dW, whose sum is there */
} add_args;

/* The sum of a class whose rows are few. */
template <int DTYPE>
static __device__ __forceinline__ void sum_rows(const add_args &a, int2 same, int64_t h, float *sum, float *bias)
{
    const ce_params &p = a.c.p;

    for (int row = same.x, left = same.y; left > 0; left--) {
        const float g = a.c.at_target[row];
        float x[8];

        *bias += g;
        if ((a.dw || a.sum.own) && h < p.hidden) {
            num_unpack<DTYPE>(*(const uint4 *)((const uint16_t *)p.x + p.list[row] * p.x_stride + h), x);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = __fmaf_rn(g, x[e], sum[e]);
        }
        if (left > 1)
            row = a.c.next[row];
    }
}

/* A class's sum for 8 hidden units to dW's. */
static __device__ __forceinline__ void add_to_sum(const ce_dw &to, int hv, int64_t v, int64_t h, const float *sum)
{
    if (!hv) {
        uint16_t *own = to.own + v * to.own_ld + h, *rest = to.rest + v * to.rest_ld + h;
        float old[8];

        ce_load_sum(own, rest, old);
#pragma unroll
        for (int e = 0; e < 8; e++)
            old[e] += sum[e];
        ce_store_sum(own, rest, old);
        return;
    }
    float *at = (float *)(v % 8 < 4 ? to.own : to.rest) + v / 8 * 4 + v % 4;
    const int64_t ld = (v % 8 < 4 ? to.own_ld : to.rest_ld) / 2;

#pragma unroll
    for (int e = 0; e < 8; e++)
        at[(h + e) * ld] += sum[e];
}

template <int DTYPE> static __global__ void __launch_bounds__(THREADS) targets_add(const add_args a)
{
    ptx_grid_wait();
    const ce_params &p = a.c.p;
    const int64_t h = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8, row = a.c.begin + blockIdx.x;
    float sum[8] = {}, bias = 0.0f;

    if (blockIdx.x >= ce_chunk_rows(a.c) || p.label[row] < 0)
        return;
    const int v = p.label[row];
    const int2 same = a.c.same[v];

    if (same.x != (int)row) /* the first of them does it */
        return;
    if (same.y > CE_COMMON) {
        const float *from = a.c.sums + a.c.next[row] * ce_sum_length(p.hidden);

        bias = from[p.hidden];
        for (int e = 0; e < 8 && h < p.hidden; e++)
            sum[e] = from[h + e];
    } else {
        sum_rows<DTYPE>(a, same, h, sum, &bias);
    }
    if (a.dw && h < p.hidden && !p.hv) { /* rows of dW begin at 16 bytes */
        float4 *to = (float4 *)(a.dw + v * a.ld + h), first = to[0], second = to[1];

        to[0] = make_float4(first.x + sum[0], first.y + sum[1], first.z + sum[2], first.w + sum[3]);
        to[1] = make_float4(second.x + sum[4], second.y + sum[5], second.z + sum[6], second.w + sum[7]);
    } else if (a.dw && h < p.hidden) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            a.dw[(h + e) * a.ld + v] += sum[e];
    } else if (a.sum.own && h < p.hidden) {
        add_to_sum(a.sum, p.hv, v, h, sum);
    }
    if (p.dbias && h == 0)
        p.dbias[v] = __uint_as_float(num_canonical_f32(p.dbias[v] + bias));
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[5] = {(const void *)targets_find, (const void *)targets_sum<RIDGE_F16>,
                                         (const void *)targets_sum<RIDGE_BF16>, (const void *)targets_add<RIDGE_F16>,
                                         (const void *)targets_add<RIDGE_BF16>};

ridge_status ce_targets_prepare(const ridge_device *device)
{
    if (device->arch != RIDGE_ARCH_SM90)
        return RIDGE_OK;
    return host_load(device, functions, 5, "linear_ce: loading kernels");
}

ridge_status ce_targets_find(const ridge_device *device, const char *name, ce_chunk *c, void *stream)
{
    const int64_t common = c->rows / (CE_COMMON + 1); /* no more than that */
    ridge_status status = host_launch(device, name, functions[0],
                                      dim3((unsigned)ce_most((c->rows + WARPS - 1) / WARPS, 1)), THREADS, c, stream);

    if (status || common == 0)
        return status;
    return host_launch(device, name, functions[1 + (c->p.dtype == RIDGE_BF16)],
                       dim3((unsigned)common, (unsigned)((c->p.hidden + SLICE - 1) / SLICE)), THREADS, c, stream);
}

ridge_status ce_targets_add(const ridge_device *device, const char *name, ce_chunk *c, float *dw, int64_t ld,
                            const ce_dw *sum, void *stream)
{
    add_args a = {*c, dw, ld, *sum};

    return host_launch(device, name, functions[3 + (c->p.dtype == RIDGE_BF16)],
                       dim3((unsigned)c->rows, (unsigned)((c->p.hidden + 8 * THREADS - 1) / (8 * THREADS))), THREADS,
                       &a, stream);
}
