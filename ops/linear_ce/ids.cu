/* ids.cu: the linear cross entropy's log-probabilities of given ids and their gradient, on CUDA. With g_k the gradient
 * of id k's log-probability and G their sum over a row,
 *
 *     dz_c = sum of g_k over the ids k that are class c, - G p_c
 *
 * The dense term is in ce_factors. The K ids of a row are few beside the vocabulary: their logits are dot products of
 * x with rows of W, 2 K H bytes a token, and their du, computed from the log-probabilities that eval gave, takes the
 * place of K elements of P^T or of the block of dlogits, rounded once as those are. An id that is the target adds to
 * the target's du. The ids of a row may repeat: the first of a class has the sum, so that no order counts. */
#include "linear_chunks.cuh"
#include "top.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, AHEAD = 4 };

static __device__ __forceinline__ int64_t id_class(const ce_params &p, int64_t token, int64_t k)
{
    return ce_class(p, p.ids, token * p.ids_stride + k);
}

/* ------------------------------------------------------------------------------------------------------------- eval */

/* x of a token times class v of W, by a warp. */
template <int DTYPE> static __device__ __forceinline__ float dot(const ce_params &p, int64_t token, int64_t v)
{
    enum { SIZE = DTYPE == RIDGE_F32 ? 4 : 2, EACH = 16 / SIZE };
    const char *x = (const char *)p.x + token * p.x_stride * SIZE;
    const char *w = (const char *)p.w + (p.hv ? v : v * p.w_stride) * SIZE;
    const bool vectors = !p.hv && (uintptr_t)x % 16 == 0 && (uintptr_t)w % 16 == 0;
    const int64_t whole = vectors ? p.hidden / EACH * EACH : 0, step = p.hv ? p.w_stride : 1;
    const int lane = threadIdx.x % 32;
    float sum = 0.0f;

    for (int64_t first = lane * EACH; first < whole; first += AHEAD * 32 * EACH) {
        uint4 a[AHEAD], b[AHEAD]; /* all loads in flight at once */

#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * 32 * EACH < whole) {
                a[i] = *(const uint4 *)(x + (first + i * 32 * EACH) * SIZE);
                b[i] = *(const uint4 *)(w + (first + i * 32 * EACH) * SIZE);
            }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * 32 * EACH < whole) {
                float u[8], v8[8];

                num_unpack<DTYPE>(a[i], u);
                num_unpack<DTYPE>(b[i], v8);
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    sum = __fmaf_rn(u[e], v8[e], sum);
            }
    }
    for (int64_t h = whole + lane; h < p.hidden; h += 32)
        sum = __fmaf_rn(num_load<DTYPE>(x, h), num_load<DTYPE>(w, h * step), sum);
    for (int at = 16; at > 0; at /= 2)
        sum += __shfl_xor_sync(~0u, sum, at);
    return sum;
}

/* A block a listed row: its ids by class, and equal ones by k. */
static __global__ void __launch_bounds__(THREADS) order_ids(const ce_block b)
{
    ptx_grid_dependency_wait();
    const ce_params &p = b.p;
    __shared__ int class_[CE_MOST_IDS];
    const int64_t row = b.begin + blockIdx.x;
    const int k = threadIdx.x;

    if (row >= p.totals->rows)
        return;
    if (k < p.k) {
        const int64_t c = id_class(p, p.list[row], k), v = c - p.offset;

        class_[k] = c >= 0 && v >= 0 && v < p.vocab ? (int)v : INT32_MAX;
    }
    __syncthreads(); /* orders these writes before the reads */
    if (k >= p.k)
        return;
    int at = 0;

    for (int i = 0; i < p.k; i++)
        at += class_[i] < class_[k] || (class_[i] == class_[k] && i < k);
    p.id_order[(int64_t)blockIdx.x * p.k + at] = make_int2(class_[k], k);
}

/* The log-probability of an id from its z, rounded once; a slice leaves z. Not above 0, whatever the roundings of z and
 * of the row's sum are. */
static __device__ __forceinline__ float id_value(const ce_params &p, const ce_sum &s, float z)
{
    const bool slice = p.offset != 0 || p.total != p.vocab;
    const double value = slice ? (double)z : -(log(s.sum) + ((double)s.max - (double)z));

    return __uint_as_float(num_canonical_f32((float)(!slice && value > 0 ? 0 : value)));
}

/* A warp a listed row: the log-probabilities from id_z. */
static __global__ void __launch_bounds__(THREADS) ids_from_z(const ce_block b)
{
    ptx_grid_dependency_wait();
    const ce_params &p = b.p;
    const int64_t in = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = b.begin + in;

    if (in >= b.rows || row >= p.totals->rows)
        return;
    const int64_t token = p.list[row];
    const ce_sum s = ce_row_sum<32>(p, row);

    for (int i = threadIdx.x % 32; i < p.k; i += 32) {
        const int2 id = p.id_order[in * p.k + i];
        const int64_t c = id_class(p, token, id.y);
        float value = c == CE_IGNORED ? 0.0f : CUDART_NAN_F;

        if (c >= 0)
            value = id_value(p, s, id.x == INT32_MAX ? -CUDART_INF_F : p.id_z[in * p.k + i]);
        p.id_logprob[token * p.id_stride + id.y] = value;
    }
}

/* A block a token, a warp an id, the last one the class that was drawn: z, and from it the log-probability. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) id_logprobs(const ce_params p)
{
    ptx_grid_dependency_wait();
    const int64_t token = blockIdx.x, y = ce_target(p, token), row = p.row_of[token];
    const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;
    if (p.id_order && row >= 0) /* ids_from_z did it */
        return;
    const ce_sum s = ce_row_sum<32>(p, row);
    const uint64_t draw = p.draw && row >= 0 ? p.draw[row] : 0;

    for (int k = threadIdx.x / 32; k < p.k + (p.draw != NULL); k += WARPS) {
        const bool drawn = k == p.k;
        const int64_t c = drawn ? p.offset + top_class(draw) : id_class(p, token, k), v = c - p.offset;
        float value = y == CE_IGNORED || c == CE_IGNORED ? 0.0f : CUDART_NAN_F;

        if (y != CE_IGNORED && c >= 0) {
            float z = -CUDART_INF_F;

            if (v >= 0 && v < p.vocab)
                z = ce_logit(p, dot<DTYPE>(p, token, v) + ce_bias(p, v), cap_inverse, cool);
            value = id_value(p, s, z);
        }
        if (threadIdx.x % 32 == 0)
            *(drawn ? p.sample_logprob + token : p.id_logprob + token * p.id_stride + k) = value;
        if (threadIdx.x % 32 == 0 && drawn)
            p.sample_id[token] = y == CE_IGNORED ? -1 : c;
        if (threadIdx.x % 32 == 0 && drawn && p.sample_score)
            p.sample_score[token] = y == CE_IGNORED ? 0.0f : __uint_as_float(num_canonical_f32(top_value(draw)));
    }
}

/* --------------------------------------------------------------------------------------------------------- gradient */

/* Sum of a row's gradients and of their absolute values, a warp a token. */
static __global__ void __launch_bounds__(THREADS) id_sums(const ce_params p)
{
    ptx_grid_dependency_wait();
    const int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    double sum = 0, size = 0;

    if (token >= p.tokens)
        return;
    for (int k = threadIdx.x % 32; k < p.k; k += 32)
        if (id_class(p, token, k) >= 0) {
            const double g = (double)p.did[token * p.did_stride + k];

            sum += g;
            size += fabs(g);
        }
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(~0u, sum, step);
        size += __shfl_xor_sync(~0u, size, step);
    }
    if (threadIdx.x % 32 == 0)
        p.id_sums[token] = make_double2(sum, size);
}

/* By warp: the classes in this slice of a row's ids (below 0: none), and their gradients. */
typedef struct ids_smem {
    int v[WARPS][CE_MOST_IDS];
    float g[WARPS][CE_MOST_IDS];
} ids_smem;

static __device__ __forceinline__ void load_ids(const ce_params &p, ids_smem *s, int64_t token)
{
    const int warp = threadIdx.x / 32;

    for (int k = threadIdx.x % 32; k < p.k; k += 32) {
        const int64_t c = id_class(p, token, k), v = c - p.offset;

        s->v[warp][k] = c >= 0 && v >= 0 && v < p.vocab ? (int)v : -1;
        s->g[warp][k] = p.did[token * p.did_stride + k];
    }
    __syncwarp(); /* orders these writes before the other lanes' reads */
}

/* Whether id k is the first of its class; *hit: the sum of the gradients of that class. */
static __device__ __forceinline__ bool first_of_class(const ce_params &p, const ids_smem *s, int k, double *hit)
{
    const int *v = s->v[threadIdx.x / 32];

    for (int j = 0; j < k; j++)
        if (v[j] == v[k])
            return false;
    *hit = 0;
    for (int j = k; j < p.k; j++)
        if (v[j] == v[k])
            *hit += (double)s->g[threadIdx.x / 32][j];
    return v[k] >= 0;
}

/* du of id k's class, unless that is the target, whose du is added *slope * hit. */
static __device__ __forceinline__ double id_du(const ce_params &p, const ce_factors &f, int64_t token, int k, int v,
                                               double lse, double hit, double *slope)
{
    const double log_p = (double)p.id_logprob[token * p.id_stride + k], q = exp(log_p);
    const double t = p.softcap > 0.0f ? (log_p + lse) * (double)p.temperature / (double)p.softcap : 0;
    const double smooth = f.smooth * (p.class_weight ? (double)p.class_weight[p.offset + v] : 1);

    *slope = (1 - t * t) / (double)p.temperature;
    return (expm1(log_p) * f.all + (f.all + hit) + (q > 0 ? q * log_p * f.bend : 0) - smooth) * *slope;
}

/* P^T of a chunk, a warp a row; after CE_ROW_SCALE, which sets the target's element to 0 and target_du. */
template <int DTYPE> static __global__ void __launch_bounds__(THREADS) id_probs(const ce_chunk c)
{
    ptx_grid_dependency_wait();
    __shared__ ids_smem s;
    const ce_params &p = c.p;
    const int64_t row = ce_warp_row(c);

    if (row < 0 || c.factor[row] == 0.0f)
        return;
    const int64_t token = p.list[row];
    const double lse = c.lse[row];
    const ce_factors f = ce_factors_of(p, token, ce_target(p, token), lse);

    load_ids(p, &s, token);
    for (int k = threadIdx.x % 32; k < p.k; k += 32) {
        const int v = s.v[threadIdx.x / 32][k];
        double hit, slope;

        if (!first_of_class(p, &s, k, &hit))
            continue;
        const double du = id_du(p, f, token, k, v, lse, hit, &slope);

        if (v == p.label[row])
            c.target_du[row] += (float)(hit * slope);
        else
            num_store<DTYPE>(ce_probs_at(c.probs, v, row - c.begin), 0, (float)(du / (double)c.factor[row]));
    }
}

/* A block of f32 dlogits, a warp a row. */
static __global__ void __launch_bounds__(THREADS) id_block(const ce_block b)
{
    ptx_grid_dependency_wait();
    __shared__ ids_smem s;
    const ce_params &p = b.p;
    const int64_t in = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = b.begin + in;

    if (in >= b.rows || row >= p.totals->rows)
        return;
    const int64_t token = p.list[row], y = ce_target(p, token);
    const double lse = (double)p.lse_in[token];
    const ce_factors f = ce_factors_of(p, token, y, lse);

    load_ids(p, &s, token);
    for (int k = threadIdx.x % 32; k < p.k; k += 32) {
        const int64_t v = s.v[threadIdx.x / 32][k], at = v - b.first;
        double hit, slope;

        if (at < 0 || at >= b.count || !first_of_class(p, &s, k, &hit))
            continue;
        const double du = id_du(p, f, token, k, (int)v, lse, hit, &slope);
        float *to = b.z + in * b.ld + at;

        *to = v == p.label[row] ? *to + (float)(hit * slope) : (float)du;
    }
}

/* ------------------------------------------------------------------------------------------------------------- host */

enum { LOGPROBS = 0, SUMS = 3, PROBS_F16, PROBS_BF16, BLOCK, ORDER, FROM_Z, FUNCTIONS };
static const void *const functions[FUNCTIONS] = {
    (const void *)id_logprobs<RIDGE_F32>,
    (const void *)id_logprobs<RIDGE_F16>,
    (const void *)id_logprobs<RIDGE_BF16>,
    (const void *)id_sums,
    (const void *)id_probs<RIDGE_F16>,
    (const void *)id_probs<RIDGE_BF16>,
    (const void *)id_block,
    (const void *)order_ids,
    (const void *)ids_from_z,
};

ridge_status ce_ids_prepare(const ridge_device *device)
{
    return host_load(device, functions, FUNCTIONS, "linear_ce: loading kernels");
}

static unsigned blocks_of(int64_t rows)
{
    return (unsigned)((rows + WARPS - 1) / WARPS);
}

ridge_status ce_ids_rows(const ridge_device *device, const char *name, ce_params *p, int64_t begin, int64_t rows,
                         bool summed, void *stream)
{
    ce_block b = {*p, NULL, 0, begin, rows, 0, 0};

    if (!p->id_order || rows == 0)
        return RIDGE_OK;
    return host_launch(device, name, functions[summed ? FROM_Z : ORDER],
                       dim3(summed ? blocks_of(rows) : (unsigned)rows), THREADS, &b, stream);
}

ridge_status ce_ids_eval(const ridge_device *device, const char *name, ce_params *p, void *stream)
{
    const int kind = p->dtype == RIDGE_F32 ? 0 : p->dtype == RIDGE_F16 ? 1 : 2;

    if ((!p->k && !p->draw) || p->tokens == 0)
        return RIDGE_OK;
    return host_launch(device, name, functions[LOGPROBS + kind], dim3((unsigned)p->tokens), THREADS, p, stream);
}

ridge_status ce_ids_begin(const ridge_device *device, const char *name, ce_params *p, void *stream)
{
    if (!p->k || p->tokens == 0)
        return RIDGE_OK;
    return host_launch(device, name, functions[SUMS], dim3(blocks_of(p->tokens)), THREADS, p, stream);
}

ridge_status ce_ids_chunk(const ridge_device *device, const char *name, ce_chunk *c, void *stream)
{
    if (!c->p.k || c->rows == 0)
        return RIDGE_OK;
    return host_launch(device, name, functions[c->p.dtype == RIDGE_BF16 ? PROBS_BF16 : PROBS_F16],
                       dim3(blocks_of(c->rows)), THREADS, c, stream);
}

ridge_status ce_ids_block(const ridge_device *device, const char *name, ce_block *b, void *stream)
{
    if (!b->p.k || b->rows == 0)
        return RIDGE_OK;
    return host_launch(device, name, functions[BLOCK], dim3(blocks_of(b->rows)), THREADS, b, stream);
}
