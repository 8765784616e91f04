/* row_kernels.cu: the linear cross entropy in chunks: the kernels between its products, a warp or a block a row
 * (linear_chunks.cuh; linear_chunks.cu says in which order they run). */
#include "linear_chunks.cuh"
#include "phase.h"
#include "top.cuh"

enum { THREADS = CE_ROW_THREADS, WARPS = CE_ROW_WARPS };

/* In f16, p = 1 is stored as 2^10, so that the least p that matters is still a normal number. */
#define F16_BITS 10.0

/* Between these sums of E no element of P overflows, and none that matters underflows; nor may the factor. */
#define BF16_LEAST 0x1p-60
#define BF16_MOST 0x1p100
#define F16_LEAST 0x1p5
#define F16_MOST 0x1.8p15

static __device__ __forceinline__ int padded_rows(const ce_chunk &c)
{
    return (ce_chunk_rows(c) + 127) / 128 * 128;
}

/* The first launch of a chunk resets what the others count and link. */
static __device__ __forceinline__ void clear(const ce_chunk &c)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;

    if (at == 0)
        c.p.totals->redo = 0;
    if (!c.progress) /* eval */
        return;
    for (int64_t i = at; i < c.p.vocab && c.begin == 0; i += step) /* all chunks count their targets there */
        c.class_rows[i] = make_int2(INT32_MAX, 0);
    for (int64_t i = at; i < 2 * CE_PROGRESS_COUNTERS(c.p.vocab); i += step)
        c.progress[i] = 0;
    if (at == 0) {
        c.p.totals->frequent = 0;
        c.p.totals->largest = 0;
    }
}

/* Resets, and gathers x without ignored rows, with zeros to a multiple of 128 rows; no copy where no row is ignored. */
static __global__ void __launch_bounds__(THREADS) gather_x(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const ce_params &p = c.p;
    const int64_t r = blockIdx.x, vectors = p.hidden / 8;

    clear(c);
    if (r >= padded_rows(c) || p.totals->rows == p.tokens)
        return;
    const bool there = r < ce_chunk_rows(c);
    const uint4 *from = (const uint4 *)((const uint16_t *)p.x + (there ? p.list[c.begin + r] * p.x_stride : 0));
    uint4 *to = (uint4 *)c.x_compact + r * vectors;

    for (int64_t i = threadIdx.x; i < vectors; i += THREADS)
        to[i] = there ? from[i] : make_uint4(0, 0, 0, 0);
}

/* Sets the target's entry of P^T to 0, and links the row to the others with its target: first row, count, and a list in
 * any order. */
static __device__ __forceinline__ void link_target(const ce_chunk &c, int64_t row)
{
    const int v = c.p.label[row];

    if (v >= 0) {
        *ce_probs_at(c.probs, v, row - c.begin) = 0;
        atomicMin(&c.class_rows[v].x, (int)row);
        atomicAdd(&c.class_rows[v].y, 1);
        c.next_row[row] = atomicExch(&c.class_chain[v], (int)row);
    }
}

static __device__ __forceinline__ void note_largest(const ce_params &p, float factor)
{
    if (p.dtype == RIDGE_F16) /* bf16 needs no scaling */
        atomicMax(&p.totals->largest, __float_as_uint(factor) & 0x7fffffffu);
}

static __device__ __forceinline__ double stored_bits(const ce_params &p)
{
    return p.dtype == RIDGE_F16 ? F16_BITS : 0;
}

/* A lane's logits of the sample of row `in` of the chunk, -inf where there is no class; returns the largest. */
static __device__ __forceinline__ float sample_logits(const ce_chunk &c, int64_t in, float *z)
{
    const ce_params &p = c.p;
    const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;
    const int lane = threadIdx.x % 32;
    float max = -CUDART_INF_F;

    for (int split = 0; split < c.sample_splits; split++) {
        const float *u = c.sample_u + (split * c.rows + in) * CE_SAMPLE_CLASSES + lane;

#pragma unroll
        for (int i = 0; i < CE_SAMPLE_CLASSES / 32; i++)
            z[i] += u[32 * i];
    }
#pragma unroll
    for (int i = 0; i < CE_SAMPLE_CLASSES / 32; i++) {
        const int at = lane + 32 * i;

        z[i] = at < c.sample_classes ? ce_logit(p, z[i] + ce_bias(p, (int64_t)at * c.sample_stride), cap_inverse, cool)
                                     : -CUDART_INF_F;
        max = fmaxf(max, z[i]);
    }
    return max;
}

/* By a warp: the sum over its lanes. */
static __device__ __forceinline__ float lanes_sum(float x)
{
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* By a warp: of the logits in z the largest one that at least `rank` of them reach, in top_entry's order. */
static __device__ __forceinline__ float sample_rank(const float *z, int rank)
{
    uint32_t low = 0, high = ~0u;

    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        int above = 0;

#pragma unroll
        for (int i = 0; i < CE_SAMPLE_CLASSES / 32; i++)
            above += (uint32_t)(top_entry(z[i], 0) >> 32) >= middle;
        above = (int)__reduce_add_sync(~0u, (uint32_t)above);
        low = above >= rank ? middle : low;
        high = above >= rank ? high : middle;
    }
    return top_value((uint64_t)low << 32);
}

/* TOP_SCALE: the bins of a row's logits (ce_params): from 1.5 standard deviations above their mean on to 5.5, as far as
 * the sample says. Bad bins cost time, nothing else. Without a finite deviation y is 0, and there are none. And the
 * logit of the sample above which lists begin, unless that has left too few (top_finish). */
static __global__ void __launch_bounds__(THREADS) top_scale(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const int64_t in = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int64_t row = in < c.rows ? c.p.row_of[c.begin + in] : -1;
    float z[CE_SAMPLE_CLASSES / 32] = {}, sum = 0.0f, square = 0.0f;
    int count = 0;

    if (row < 0)
        return;
    for (int i = threadIdx.x % 32; i < CE_TOP_BINS; i += 32)
        c.p.top_bins[row * CE_TOP_BINS + i] = 0;
    sample_logits(c, in, z);
#pragma unroll
    for (int i = 0; i < CE_SAMPLE_CLASSES / 32; i++) {
        count += __popc(__ballot_sync(~0u, z[i] > -CUDART_INF_F));
        sum += z[i] > -CUDART_INF_F ? z[i] : 0.0f;
    }
    const float each = __fdividef(1.0f, (float)count), mean = lanes_sum(sum) * each;
#pragma unroll
    for (int i = 0; i < CE_SAMPLE_CLASSES / 32; i++)
        square += z[i] > -CUDART_INF_F ? (z[i] - mean) * (z[i] - mean) : 0.0f;
    const float variance = lanes_sum(square) * each, inverse = rsqrtf(variance), rate = CE_TOP_BINS / 4 * inverse;

    const float least = c.top_rank ? sample_rank(z, c.top_rank) : CUDART_NAN_F;

    if (threadIdx.x % 32 == 0)
        c.p.top_least[row] = least;
    if (threadIdx.x % 32 == 0)
        c.p.top_scale[row] = rate > 0x1p-100f && rate < 0x1p100f ? make_float2(mean + 1.5f * variance * inverse, rate)
                                                                 : make_float2(CUDART_NAN_F, 0.0f);
}

/* PREDICT: the exponent from the sample's sum, as if all classes were like the sample; resets the parts of the sums. */
static __global__ void __launch_bounds__(THREADS) predict_exponent(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const ce_params &p = c.p;
    const int64_t in = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int64_t row = in < c.rows ? p.row_of[c.begin + in] : -1;
    const int lane = threadIdx.x % 32;
    float z[CE_SAMPLE_CLASSES / 32] = {}, sum = 0.0f;

    if (row < 0)
        return;
    float max = sample_logits(c, in, z);

    for (int step = 16; step > 0; step /= 2)
        max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
#pragma unroll
    for (int i = 0; i < CE_SAMPLE_CLASSES / 32; i++)
        sum += ptx_ex2((z[i] - max) * CE_LOG2E);
    sum = lanes_sum(sum);
    const double lse = (double)max + log((double)sum * (double)p.vocab / (double)c.sample_classes);
    double exponent = rint(lse * (double)CE_LOG2E - stored_bits(p));

    if (!(fabs(exponent) < 1e6))
        exponent = 0;
    for (int k = lane; k < p.parts; k += 32)
        p.part[row * p.parts + k] = {(float)(exponent * 0.69314718055994531), 0.0f};
    if (lane == 0)
        c.exponent[row] = (float)exponent;
}

static __device__ __forceinline__ ce_factors row_factors(const ce_chunk &c, int64_t row, double lse)
{
    const int64_t token = c.p.list[row], y = ce_target(c.p, token);
    const ce_factors none = {0, 0, 0, 0};

    return y >= 0 ? ce_factors_of(c.p, token, y, lse) : none;
}

/* du of a row's target. */
static __device__ __forceinline__ float target_du(const ce_chunk &c, int64_t row, double lse, const ce_factors &f)
{
    const ce_params &p = c.p;
    const int v = p.label[row];
    const float z = p.target_z[row], cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f;
    const float slope = ce_slope(p, z, cap_inverse, 1.0f / p.temperature);
    const float w = p.class_weight && v >= 0 ? p.class_weight[p.offset + v] : 1.0f;
    const double far = (double)z - lse;
    double dz = expm1(far) * f.all + (f.all - f.label) - (double)w * f.smooth;

    if (f.bend != 0 && exp(far) != 0)
        dz += f.bend * exp(far) * far;
    return (float)(dz * (double)slope);
}

/* What the products need of a row; a row out of range or without weight has factor 0. If lse was given, the target's
 * logit is known only after P^T: scale_x computes target_du then. */
static __device__ __forceinline__ void put_row(const ce_chunk &c, int64_t row, double lse, float factor,
                                               const ce_factors &f)
{
    c.lse[row] = lse;
    c.factor[row] = factor;
    if (!c.p.lse_in)
        c.target_du[row] = factor == 0.0f ? 0.0f : target_du(c, row, lse, f);
    note_largest(c.p, factor);
}

static __device__ __forceinline__ bool is_good_sum(const ce_params &p, double sum)
{
    const bool f16 = p.dtype == RIDGE_F16;

    return sum >= (f16 ? F16_LEAST : BF16_LEAST) && sum <= (f16 ? F16_MOST : BF16_MOST);
}

/* CHECK: lse from the sums of E, and the row's factor; sets `redo` if the prediction was bad for any row. In phases
 * BEGIN checks the sum alone; by the next phase lse is known, and the sum is that of E over all slices. */
static __global__ void __launch_bounds__(THREADS) check_exponent(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const ce_params &p = c.p;
    const int64_t row = ce_warp_row(c);

    if (row < 0)
        return;
    const double base = (double)c.exponent[row] * 0.69314718055994531;
    const double known = p.lse_in ? (double)p.lse_in[p.list[row]] : 0;
    const double sum = p.lse_in ? exp(known - base) : ce_row_sum<32>(p, row).sum;
    const double lse = p.lse_in ? known : base + log(sum);
    const ce_factors f = row_factors(c, row, lse);
    const bool begins = (p.flags & RIDGE_CE_BEGIN) && p.op == RIDGE_LINEAR_CE_TRAIN;
    const bool good =
        is_good_sum(p, sum) &&
        (begins || (!(fabs(f.all) < 0x1p-6 * fabs(f.label)) && !(f.all != 0 && fabs(f.all) < sum * 0x1p-126)));

    if (threadIdx.x % 32)
        return;
    if (!good)
        p.totals->redo = 1; /* any number of threads may write it */
    if (!begins)
        put_row(c, row, lse, (float)(f.all / sum), f);
}

/* RESET, of the second pass: the parts of the sums. */
static __global__ void __launch_bounds__(THREADS) reset_parts(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const int64_t row = ce_warp_row(c);

    if (ce_skips(c) || row < 0)
        return;
    for (int k = threadIdx.x % 32; k < c.p.parts; k += 32)
        c.p.part[row * c.p.parts + k] = {-CUDART_INF_F, 0.0f};
    if (blockIdx.x == 0 && threadIdx.x == 0)
        c.p.totals->largest = 0;
}

static __device__ __forceinline__ double known_lse(const ce_params &p, int64_t row)
{
    const ce_sum s = p.lse_in ? ce_sum_empty() : ce_row_sum<32>(p, row);

    return p.lse_in ? (double)p.lse_in[p.list[row]] : (double)s.max + log(s.sum);
}

/* FROM_LSE: exponent, mixture, and the factor, a power of two. */
static __global__ void __launch_bounds__(THREADS) exponent_from_lse(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const ce_params &p = c.p;
    const int64_t row = ce_warp_row(c);

    if (c.bend && blockIdx.x == 0 && threadIdx.x == 0)
        c.bend[p.tokens] = make_float4(CUDART_INF_F, 0.0f, 0.0f, 0.0f);
    if (ce_skips(c) || row < 0)
        return;
    const double lse = known_lse(p, row);
    const ce_factors f = row_factors(c, row, lse);
    const double most = f.all != f.all
                            ? f.all
                            : fmax(fmax(fmax(fabs(f.all), fabs(f.label)), fmax(fabs(f.smooth), fabs(f.bend))),
                                   p.id_sums ? p.id_sums[p.list[row]].y : 0);
    const double size = f.all < 0 ? -most : most;
    const double in_e = c.bend ? most : fabs(f.all); /* what E is p times, over the factor; else alpha has the rest */
    const double power = most > 0 ? exp2(floor(log2(most))) : 0;
    const double factor = copysign(power, size) * exp2(-stored_bits(p));

    if (threadIdx.x % 32)
        return;
    const float exponent =
        power > 0 ? (float)(lse * 1.4426950408889634 - stored_bits(p) - log2(in_e / power)) : CUDART_INF_F;
    const float sigma = power > 0 ? (float)(f.smooth / factor) : 0.0f;

    c.exponent[row] = exponent;
    c.mix[row] = make_float2(1.0f, sigma);
    if (c.bend) { /* log p = t ln 2 + k ln 2 - lse */
        const double at_0 = f.all + f.bend * ((double)exponent * 0.69314718055994531 - lse);

        c.bend[row] = make_float4(exponent, power > 0 ? (float)(f.bend * 0.69314718055994531 / size) : 0.0f,
                                  power > 0 ? (float)(at_0 / size) : 0.0f, sigma);
    }
    put_row(c, row, lse, most == most ? (float)factor : CUDART_NAN_F, f);
}

/* SCALE: n_r x (f16: times a power of two that keeps it in range) for dW, and the targets. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) scale_x(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const ce_params &p = c.p;
    const int64_t r = blockIdx.x, row = c.begin + r, vectors = p.hidden / 8;
    const uint32_t exponent = p.totals->largest >> 23;
    uint4 *to = (uint4 *)c.x_scaled + r * vectors;

    if (r >= padded_rows(c))
        return;
    if (r >= ce_chunk_rows(c) || c.factor[row] == 0.0f) { /* padding, out of range, or without weight */
        for (int64_t i = threadIdx.x; i < vectors; i += THREADS)
            to[i] = make_uint4(0, 0, 0, 0);
        if (p.lse_in && r < ce_chunk_rows(c) && threadIdx.x == 0)
            c.target_du[row] = 0.0f;
        return;
    }
    const uint4 *from = (const uint4 *)((const uint16_t *)p.x + p.list[row] * p.x_stride);
    float factor = c.factor[row];

    if (threadIdx.x == 0)
        link_target(c, row);
    if (p.lse_in && threadIdx.x == 32)
        c.target_du[row] = target_du(c, row, c.lse[row], row_factors(c, row, c.lse[row]));
    if (DTYPE == RIDGE_F16 && exponent != 0 && exponent != 255)
        factor *= __uint_as_float((254u - max(exponent, 27u)) << 23);
    for (int64_t i = threadIdx.x; i < vectors; i += THREADS) {
        float v[8];

        num_unpack<DTYPE>(from[i], v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] *= factor;
        to[i] = make_uint4(num_pack2<DTYPE>(v[0], v[1]), num_pack2<DTYPE>(v[2], v[3]), num_pack2<DTYPE>(v[4], v[5]),
                           num_pack2<DTYPE>(v[6], v[7]));
    }
}

/* REDUCE_DX: a row of dX from its partial sums, 8 hidden units a thread. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) reduce_dx(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    const ce_params &p = c.p;
    const int64_t row = c.begin + blockIdx.x, size = c.rows * p.hidden;

    if (blockIdx.x >= ce_chunk_rows(c))
        return;
    const float factor = c.factor[row];
    const int64_t v = p.label[row];
    const float g = v >= 0 ? c.target_du[row] : 0.0f;
    uint16_t *to = (uint16_t *)p.dx + p.list[row] * p.dx_stride;

    for (int64_t h = threadIdx.x * 8; h < p.hidden; h += THREADS * 8) {
        float sum[8] = {};

        for (int split = 0; split < c.dx_splits; split++) {
            const float4 *from = (const float4 *)(c.dx_partial + split * size + blockIdx.x * p.hidden + h);
            const float4 a = from[0], b = from[1];
            const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};

#pragma unroll
            for (int e = 0; e < 8; e++)
                sum[e] += x[e];
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            sum[e] *= factor;
            if (v >= 0)
                sum[e] = __fmaf_rn(g, num_load<DTYPE>(p.w, p.hv ? (h + e) * p.w_stride + v : v * p.w_stride + h + e),
                                   sum[e]);
        }
        *(uint4 *)(to + h) = num_pack<DTYPE>(sum);
    }
}

typedef struct bias_args {
    ce_chunk c;
    int add;
} bias_args;

/* dbias[c] = (or +=) sum_r n_r P^T[c, r], a warp a class. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) dbias(const bias_args a)
{
    ptx_grid_dependency_wait();
    const ce_chunk &c = a.c;
    const int64_t v = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int rows = ce_chunk_rows(c);
    float sum = 0.0f;

    if (v >= c.p.vocab)
        return;
    for (int r = threadIdx.x % 32; r < rows; r += 32)
        sum = __fmaf_rn(num_load<DTYPE>(ce_probs_at(c.probs, v, r), 0), c.factor[c.begin + r], sum);
    sum = lanes_sum(sum);
    if (threadIdx.x % 32 == 0)
        c.p.dbias[v] = __uint_as_float(num_canonical_f32(a.add ? c.p.dbias[v] + sum : sum));
}

typedef struct round_args {
    ce_chunk c;
    ce_dw dw;
    int always;
} round_args;

/* Rounds the f32 sum to dW in place, a line a warp. (A call without rows that adds to dW has made no sum.) */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) round_dw(const round_args a)
{
    ptx_grid_dependency_wait();
    enum { PARTS = 4 };
    const ce_params &p = a.c.p;
    const int64_t lines = p.hv ? p.hidden : p.vocab, length = p.hv ? p.vocab : p.hidden;
    const int64_t line = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    uint16_t *own = a.dw.own + line * a.dw.own_ld, *spare = a.dw.spare + line * a.dw.spare_ld;

    if (line >= lines || (!a.always && ce_chunk_rows(a.c) > 0) || ((p.flags & RIDGE_ACCUMULATE) && p.totals->rows == 0))
        return;
    for (int64_t at = threadIdx.x % 32 * 8; at < length; at += PARTS * 256) {
        float v[PARTS][8];

#pragma unroll
        for (int k = 0; k < PARTS; k++)
            if (at + 256 * k < length)
                ce_load_sum(own + at + 256 * k, spare + at + 256 * k, v[k]);
#pragma unroll
        for (int k = 0; k < PARTS; k++)
            if (at + 256 * k < length)
                *(uint4 *)(own + at + 256 * k) = num_pack<DTYPE>(v[k]);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* CE_ROW_* in order (the last two for f16), those two for bf16; dbias and round_dw for f16 and bf16. */
enum { FUNCTIONS = CE_ROW_KERNELS + 6 };
static const void *const functions[FUNCTIONS] = {
    (const void *)predict_exponent,
    (const void *)top_scale,
    (const void *)gather_x,
    (const void *)check_exponent,
    (const void *)reset_parts,
    (const void *)exponent_from_lse,
    (const void *)scale_x<RIDGE_F16>,
    (const void *)reduce_dx<RIDGE_F16>,
    (const void *)scale_x<RIDGE_BF16>,
    (const void *)reduce_dx<RIDGE_BF16>,
    (const void *)dbias<RIDGE_F16>,
    (const void *)dbias<RIDGE_BF16>,
    (const void *)round_dw<RIDGE_F16>,
    (const void *)round_dw<RIDGE_BF16>,
};

ridge_status ce_row_prepare(const ridge_device *device)
{
    return host_load(device, functions, FUNCTIONS, "linear_ce: loading kernels");
}

ridge_status ce_row_launch(const ridge_device *device, const char *name, int which, ce_chunk *c, void *stream)
{
    const bool whole = which == CE_ROW_GATHER || which == CE_ROW_SCALE; /* a block a row, padding rows too */
    const int64_t blocks = which == CE_ROW_REDUCE_DX ? c->rows
                           : whole                   ? (c->rows + 127) / 128 * 128
                                                     : (c->rows + WARPS - 1) / WARPS;

    return host_launch(device, name, functions[which + (which >= CE_ROW_SCALE && c->p.dtype == RIDGE_BF16 ? 2 : 0)],
                       dim3((unsigned)(blocks ? blocks : 1)), THREADS, c, stream);
}

ridge_status ce_dbias_launch(const ridge_device *device, const char *name, ce_chunk *c, int add, void *stream)
{
    bias_args a = {*c, add};

    return host_launch(device, name, functions[CE_ROW_KERNELS + 2 + (c->p.dtype == RIDGE_BF16)],
                       dim3((unsigned)((c->p.vocab + WARPS - 1) / WARPS)), THREADS, &a, stream);
}

ridge_status ce_round_dw_launch(const ridge_device *device, const char *name, ce_chunk *c, const ce_dw *dw, int always,
                                void *stream)
{
    round_args a = {*c, *dw, always};
    const int64_t lines = c->p.hv ? c->p.hidden : c->p.vocab;

    return host_launch(device, name, functions[CE_ROW_KERNELS + 4 + (c->p.dtype == RIDGE_BF16)],
                       dim3((unsigned)((lines + WARPS - 1) / WARPS)), THREADS, &a, stream);
}
