/* target_grads.cu: the linear cross entropy in chunks: what the targets' own du adds to dW and dbias, in f32,
 * class by class in the order of the rows. Most classes have a few rows, which are a linked list; but in source text
 * one token may be the target of a quarter of all rows: the sum of such a frequent target is formed beforehand by many
 * threads. */
#include "linear_chunks.cuh"

enum { THREADS = CE_ROW_THREADS, WARPS = CE_ROW_WARPS, AHEAD = 8, SEGMENT = THREADS * AHEAD, SLICE = 32 * 8 };

/* Sorts the list of a target by row, by the warp of its first row; a frequent target gets the index of its sum. */
static __global__ void __launch_bounds__(THREADS) link_targets(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const int64_t row = ce_warp_row(c);
    const int lane = threadIdx.x % 32, v = row < 0 ? -1 : c.p.label[row];
    const int2 same = v < 0 ? make_int2(0, 0) : c.class_rows[v];
    int mine = INT32_MAX, after = INT32_MAX;

    if (same.y < 2 || same.x != (int)row)
        return;
    if (same.y > CE_FREQUENT) {
        if (lane == 0) {
            const int index = atomicAdd(&c.p.totals->frequent, 1); /* the order of the indices changes no bits */

            c.next_row[row] = index;
            c.frequent[index] = v;
        }
        return;
    }
    for (int i = 0, at = c.class_chain[v]; i < same.y; i++) {
        mine = lane == i ? at : mine;
        at = i < same.y - 1 ? c.next_row[at] : at;
    }
    for (int i = 0; i < same.y; i++) {
        const int other = __shfl_sync(~0u, mine, i);

        after = other > mine ? min(after, other) : after;
    }
    __syncwarp(); /* orders the reads of all lanes before these writes */
    if (after != INT32_MAX)
        c.next_row[mine] = after;
}

/* A row of the class: its token and du_y. */
typedef struct target_row {
    int token;
    float g;
} target_row;

typedef struct sum_smem {
    target_row row[SEGMENT];
    int count[WARPS];
    float sum[WARPS][SLICE + 1];
} sum_smem;

/* The rows with target v among the SEGMENT from `first` on, in order, to shared memory. Returns how many. */
static __device__ __forceinline__ int list_rows(const ce_chunk &c, sum_smem *s, int v, int64_t first, int64_t end)
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
    __syncthreads(); /* orders the reads of the previous segment before these writes */
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
            s->row[before + __popc(mask[k] & ((1u << lane) - 1))] = {c.p.list[row], c.target_du[row]};
        before += __popc(mask[k]);
    }
    __syncthreads();
    return all;
}

/* Rows [i, i + AHEAD) of the list, as far as `end`, all loads in flight at once: 8 hidden units a thread. */
template <int DTYPE>
static __device__ __forceinline__ void add_rows(const ce_params &p, const sum_smem *s, int i, int end, int64_t h,
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

/* The sum of a frequent target, SLICE hidden units a block; each warp has an eighth of the rows of a segment. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) sum_frequent(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    __shared__ sum_smem s;
    const ce_params &p = c.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t slice = (int64_t)blockIdx.y * SLICE, h = slice + lane * 8, end = c.begin + ce_chunk_rows(c);
    float sum[8] = {}, bias = 0.0f, total = 0.0f;

    if ((int)blockIdx.x >= p.totals->frequent)
        return;
    const int v = c.frequent[blockIdx.x];
    float *to = c.frequent_sums + blockIdx.x * ce_frequent_length(p.hidden);

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

typedef struct add_args {
    ce_chunk c;
    float *dw;
    int64_t ld;
    ce_dw sum; /* of a 16-bit dW; own = NULL: there is none */
} add_args;

/* The sum of a class that is not frequent. */
template <int DTYPE>
static __device__ __forceinline__ void sum_rows(const add_args &a, int2 same, int64_t h, float *sum, float *bias)
{
    const ce_params &p = a.c.p;

    for (int row = same.x, left = same.y; left > 0; left--) {
        const float g = a.c.target_du[row];
        float x[8];

        *bias += g;
        if ((a.dw || a.sum.own) && h < p.hidden) {
            num_unpack<DTYPE>(*(const uint4 *)((const uint16_t *)p.x + p.list[row] * p.x_stride + h), x);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] = __fmaf_rn(g, x[e], sum[e]);
        }
        if (left > 1)
            row = a.c.next_row[row];
    }
}

/* Adds a class's sum for 8 hidden units to the f32 sum of a 16-bit dW. */
static __device__ __forceinline__ void add_to_sum(const ce_dw &to, int hv, int64_t v, int64_t h, const float *sum)
{
    if (!hv) {
        uint16_t *own = to.own + v * to.own_ld + h, *spare = to.spare + v * to.spare_ld + h;
        float old[8];

        ce_load_sum(own, spare, old);
#pragma unroll
        for (int e = 0; e < 8; e++)
            old[e] += sum[e];
        ce_store_sum(own, spare, old);
        return;
    }
    float *at = (float *)(v % 8 < 4 ? to.own : to.spare) + v / 8 * 4 + v % 4;
    const int64_t ld = (v % 8 < 4 ? to.own_ld : to.spare_ld) / 2;

#pragma unroll
    for (int e = 0; e < 8; e++)
        at[(h + e) * ld] += sum[e];
}

/* One class, by the block of its first row; 8 hidden units a thread. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) targets_to_dw(const add_args a)
{
    ptx_grid_dependency_wait();
    const ce_params &p = a.c.p;
    const int64_t h = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8, row = a.c.begin + blockIdx.x;
    float sum[8] = {}, bias = 0.0f;

    if (blockIdx.x >= ce_chunk_rows(a.c) || p.label[row] < 0)
        return;
    const int v = p.label[row];
    const int2 same = a.c.class_rows[v];

    if (same.x != (int)row) /* the block of the first row does it */
        return;
    if (same.y > CE_FREQUENT) {
        const float *from = a.c.frequent_sums + a.c.next_row[row] * ce_frequent_length(p.hidden);

        bias = from[p.hidden];
        for (int e = 0; e < 8 && h < p.hidden; e++)
            sum[e] = from[h + e];
    } else {
        sum_rows<DTYPE>(a, same, h, sum, &bias);
    }
    if (a.dw && h < p.hidden && !p.hv) { /* rows of dW are aligned to 16 bytes */
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

static const void *const functions[5] = {(const void *)link_targets, (const void *)sum_frequent<RIDGE_F16>,
                                         (const void *)sum_frequent<RIDGE_BF16>, (const void *)targets_to_dw<RIDGE_F16>,
                                         (const void *)targets_to_dw<RIDGE_BF16>};

ridge_status ce_targets_prepare(const ridge_device *device)
{
    return host_load(device, functions, 5, "linear_ce: loading kernels");
}

ridge_status ce_targets_find(const ridge_device *device, const char *name, ce_chunk *c, void *stream)
{
    const int64_t common = c->rows / (CE_FREQUENT + 1); /* there are no more than that */
    ridge_status status = host_launch(device, name, functions[0],
                                      dim3((unsigned)ridge_max((c->rows + WARPS - 1) / WARPS, 1)), THREADS, c, stream);

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
