/* softmax_rows.cu: cross entropy on CUDA: ce_fwd and ce_bwd: one thread block a row of logits, which reads it once
 * (forward: online maximum and sum) or reads and writes it once (backward); ce_combine; and the kernel rows of the
 * three. linear_mma.cu runs the same passes over blocks of f32 logits in the workspace. */
#include "ce.cuh"

enum { ROW = 256, GROUP = 8 };

/* --------------------------------------------------------------------------------------------------- rows of logits */

/* z of eight logits of a row from class i on; -inf beyond the end. first: the class of the row's first logit. */
template <int DTYPE>
static __device__ __forceinline__ void ce_load(const ce_params &p, const char *row, int64_t i, int64_t count,
                                               int64_t first, float *z)
{
    const int size = DTYPE == RIDGE_F32 ? 4 : 2;
    const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;

    if (i + GROUP <= count && (uintptr_t)(row + i * size) % 16 == 0) {
        num_unpack<DTYPE>(ptx_load_once(row + i * size), z);
        if (DTYPE == RIDGE_F32)
            num_unpack<DTYPE>(ptx_load_once(row + i * size + 16), z + 4);
    } else {
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            z[j] = i + j < count ? num_load<DTYPE>(row, i + j) : -CUDART_INF_F;
    }
    if (p.bias)
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            z[j] += i + j < count ? ce_bias(p, first + i + j) : 0.0f;
    if (p.softcap > 0.0f || cool != 1.0f)
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            z[j] = i + j < count ? ce_logit(p, z[j], cap_inverse, cool) : -CUDART_INF_F;
}

/* A thread's online sum. */
typedef struct row_sum {
    float max, sum, spread;
    double z, wz;
    int64_t argmax;
    int nan;
} row_sum;

static __device__ __forceinline__ float ce_exp(float x)
{
    return ptx_ex2(x * CE_LOG2E);
}

static __device__ __forceinline__ void ce_add(row_sum *s, const float *z)
{
    float high = s->max, sum = 0.0f, base;

#pragma unroll
    for (int j = 0; j < GROUP; j++)
        high = fmaxf(high, z[j]);
    if (high > s->max) {
        const float gap = s->max - high, scale = ce_exp(gap);

        if (s->sum != 0.0f) {
            s->spread = scale > 0.0f ? scale * (s->spread + gap * s->sum) : 0.0f;
            s->sum *= scale;
        }
        s->max = high;
    }
    base = high == -CUDART_INF_F ? 0.0f : high;
#pragma unroll
    for (int j = 0; j < GROUP; j++)
        sum += ce_exp(z[j] - base);
    s->sum += sum;
}

/* The sums of ce_more; after ce_add. */
static __device__ __forceinline__ void ce_add_more(const ce_params &p, row_sum *s, const float *z, float before,
                                                   int64_t i, int64_t count, int64_t first)
{
    const float base = s->max == -CUDART_INF_F ? 0.0f : s->max;
    double sum = 0, weighted = 0;

#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        const float v = z[j] - base, e = ce_exp(v);

        if (i + j >= count)
            continue;
        s->spread += e > 0.0f ? e * v : 0.0f;
        sum += (double)z[j];
        weighted += (double)z[j] * (p.class_weight ? (double)p.class_weight[p.offset + first + i + j] : 1);
        if (z[j] != z[j] && !s->nan) {
            s->nan = 1;
            s->argmax = first + i + j;
        } else if (!s->nan && (z[j] > before || s->argmax == INT64_MAX)) {
            before = z[j];
            s->argmax = first + i + j;
        }
    }
    s->z += sum;
    s->wz += weighted;
}

static __device__ __forceinline__ ce_sum ce_sum_of(const row_sum &s, const ce_params &p)
{
    ce_sum r = {(double)s.sum, (double)s.spread, s.z, s.wz, s.nan ? CUDART_NAN_F : s.max, INT64_MAX};

    r.argmax = s.argmax == INT64_MAX ? INT64_MAX : p.offset + s.argmax;
    return r;
}

/* Merges the sums of all threads into thread 0's. */
static __device__ ce_sum ce_merge_block(ce_sum s)
{
    __shared__ ce_sum warp_sum[ROW / 32];

    for (int step = 16; step > 0; step /= 2)
        ce_sum_merge(&s, ce_sum_shuffle(s, step));
    if (threadIdx.x % 32 == 0)
        warp_sum[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < ROW / 32; i++)
            ce_sum_merge(&s, warp_sum[i]);
    return s;
}

/* A row of the block of logits; or, of given logits, the listed row. */
template <int DTYPE> static __device__ __forceinline__ const char *ce_row(const ce_block &b, int64_t row)
{
    return b.z ? (const char *)(b.z + (row - b.begin) * b.ld)
               : (const char *)b.p.x + b.p.list[row] * b.p.x_stride * (DTYPE == RIDGE_F32 ? 4 : 2);
}

template <int DTYPE> static __global__ void __launch_bounds__(ROW) ce_stats(const ce_block b)
{
    const ce_params &p = b.p;
    const int64_t row = b.begin + blockIdx.x;
    row_sum s = {-CUDART_INF_F, 0.0f, 0.0f, 0, 0, INT64_MAX, 0};

    ptx_grid_dependency_wait();
    if (row >= p.totals->rows)
        return;
    const char *from = ce_row<DTYPE>(b, row);
    const int64_t y = ce_target(p, p.list[row]) - p.offset - b.first;

    for (int64_t i = (int64_t)threadIdx.x * GROUP; i < b.count; i += ROW * GROUP) {
        float z[GROUP];
        const float before = s.max;

        ce_load<DTYPE>(p, from, i, b.count, b.first, z);
        ce_add(&s, z);
        if (p.full)
            ce_add_more(p, &s, z, before, i, b.count, b.first);
        if (y >= i && y < i + GROUP)
#pragma unroll
            for (int j = 0; j < GROUP; j++)
                if (y == i + j)
                    p.target_z[row] = z[j];
    }
    ce_sum all = ce_merge_block(ce_sum_of(s, p));

    if (threadIdx.x)
        return;
    if (b.first > 0) {
        ce_sum before = ce_sum_part(p, row, 0);

        ce_sum_merge(&before, all);
        all = before;
    }
    ce_sum_store(p, row, 0, all);
}

/* What a row's gradient needs. */
typedef struct row_gradient {
    float max, logsum, scale, smooth, bend; /* p = e^(z - max - logsum) */
    double all, label, lse;                 /* du of the target without its slope */
} row_gradient;

static __device__ __forceinline__ row_gradient ce_row_gradient(const ce_params &p, int64_t token, int64_t row,
                                                               int64_t y)
{
    const ce_part part = p.lse_in ? ce_part{p.lse_in[token], 1.0f} : p.part[row];
    const double logsum = log((double)part.sum);
    row_gradient r;
    ce_factors f;

    r.lse = (double)part.max + logsum;
    f = ce_factors_of(p, token, y, r.lse);
    r.max = part.max;
    r.logsum = (float)logsum;
    r.scale = (float)f.all;
    r.smooth = (float)f.smooth;
    r.bend = (float)f.bend;
    r.all = f.all;
    r.label = f.label;
    return r;
}

template <int DTYPE>
static __device__ __forceinline__ void ce_store(char *row, int64_t i, int64_t count, const float *v)
{
    const int size = DTYPE == RIDGE_F32 ? 4 : 2;

    if (i + GROUP <= count && (uintptr_t)(row + i * size) % 16 == 0) {
        *(uint4 *)(row + i * size) = num_pack<DTYPE>(v);
        if (DTYPE == RIDGE_F32)
            *(uint4 *)(row + i * size + 16) = num_pack<DTYPE>(v + 4);
        return;
    }
#pragma unroll
    for (int j = 0; j < GROUP; j++)
        if (i + j < count)
            num_store<DTYPE>(row, i + j, v[j]);
}

/* z to du, eight at a time. BEND: with the gradient of the entropy. */
template <int BEND>
static __device__ __forceinline__ void ce_gradient8(const ce_params &p, const row_gradient &r, int64_t at, int64_t i,
                                                    int64_t count, int64_t first, float *z)
{
    const float cap_inverse = p.softcap > 0.0f ? 1.0f / p.softcap : 0.0f, cool = 1.0f / p.temperature;

#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        const float v = z[j] - r.max - r.logsum, e = ce_exp(v);
        const float w =
            p.class_weight && r.smooth != 0.0f && i + j < count ? p.class_weight[p.offset + first + i + j] : 1.0f;
        float d = e * r.scale;

        if (BEND)
            d = e * __fmaf_rn(r.bend, fmaxf(v, -200.0f), r.scale);
        if (at == i + j) { /* p - 1 first */
            const double q = exp((double)z[j] - r.lse);

            d = (float)((q - 1) * r.all + (r.all - r.label));
            if (BEND && q != 0)
                d += (float)((double)r.bend * q * ((double)z[j] - r.lse));
        }
        if (r.smooth != 0.0f)
            d -= w * r.smooth;
        z[j] = d * ce_slope(p, z[j], cap_inverse, cool);
    }
}

/* Given logits: a thread block a token, every token. Else: a thread block a row. */
template <int DTYPE, int BEND> static __global__ void __launch_bounds__(ROW) ce_gradient(const ce_block b)
{
    const ce_params &p = b.p;
    const int64_t row = b.begin + blockIdx.x;

    ptx_grid_dependency_wait();
    if (b.z && row >= p.totals->rows)
        return;
    const int64_t token = b.z ? p.list[row] : row, y = ce_target(p, token), at = y - p.offset - b.first;
    const char *from = b.z ? (const char *)(b.z + (row - b.begin) * b.ld)
                           : (const char *)p.x + token * p.x_stride * (DTYPE == RIDGE_F32 ? 4 : 2);
    char *to = b.z ? (char *)from : (char *)p.dx + token * p.dx_stride * (DTYPE == RIDGE_F32 ? 4 : 2);
    row_gradient r = {};

    if (y >= 0)
        r = ce_row_gradient(p, token, row, y);
    for (int64_t i = (int64_t)threadIdx.x * GROUP; i < b.count; i += ROW * GROUP) {
        float z[GROUP];

        if (y >= 0) {
            ce_load<DTYPE>(p, from, i, b.count, b.first, z);
            ce_gradient8<BEND>(p, r, at, i, b.count, b.first, z);
        } else {
#pragma unroll
            for (int j = 0; j < GROUP; j++)
                z[j] = y == CE_BAD && !b.z ? CUDART_NAN_F : 0.0f;
        }
        ce_store<DTYPE>(to, i, b.count, z);
    }
}

/* The rows of dX of tokens that are ignored or out of range, a warp a token. */
template <int DTYPE> static __global__ void __launch_bounds__(ROW) ce_other(const ce_params p)
{
    const int64_t token = (int64_t)blockIdx.x * (ROW / 32) + threadIdx.x / 32;

    ptx_grid_dependency_wait();
    const int64_t y = token < p.tokens ? ce_target(p, token) : 0;
    char *to = (char *)p.dx + token * p.dx_stride * (DTYPE == RIDGE_F32 ? 4 : 2);
    float v[GROUP];

    if (y >= 0)
        return;
#pragma unroll
    for (int j = 0; j < GROUP; j++)
        v[j] = y == CE_BAD ? CUDART_NAN_F : 0.0f;
    for (int64_t i = threadIdx.x % 32 * GROUP; i < p.hidden; i += 32 * GROUP)
        ce_store<DTYPE>(to, i, p.hidden, v);
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype: RIDGE_F32, RIDGE_F16, RIDGE_BF16. */
#define BY_DTYPE(name)                                                                               \
    {                                                                                                \
        (const void *)name<RIDGE_F32>, (const void *)name<RIDGE_F16>, (const void *)name<RIDGE_BF16> \
    }

enum { STATS = 0, GRADIENT, OTHER, BEND_GRADIENT, PASSES };
static const void *const by_dtype[PASSES][3] = {
    BY_DTYPE(ce_stats),
    {(const void *)ce_gradient<RIDGE_F32, 0>, (const void *)ce_gradient<RIDGE_F16, 0>,
     (const void *)ce_gradient<RIDGE_BF16, 0>},
    BY_DTYPE(ce_other),
    {(const void *)ce_gradient<RIDGE_F32, 1>, (const void *)ce_gradient<RIDGE_F16, 1>,
     (const void *)ce_gradient<RIDGE_BF16, 1>}};
static const void *function_of(int what, int dtype)
{
    return by_dtype[what][dtype == RIDGE_F32 ? 0 : dtype == RIDGE_F16 ? 1 : 2];
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = host_load(device, &by_dtype[0][0], 3 * PASSES, "cross entropy: loading kernels");

    return status ? status : ce_tokens_prepare(device);
}

ridge_status ce_other_rows(const ridge_device *device, const char *name, ce_params *p, void *stream)
{
    if (!p->dx || p->tokens == 0)
        return RIDGE_OK;
    return host_launch(device, name, function_of(OTHER, p->dtype),
                       dim3((unsigned)((p->tokens + ROW / 32 - 1) / (ROW / 32))), ROW, p, stream);
}

static ridge_status over_rows(const ridge_device *device, const char *name, int what, ce_block *b, void *stream)
{
    if (b->rows == 0)
        return RIDGE_OK;
    return host_launch(device, name, function_of(what, b->z ? (int)RIDGE_F32 : b->p.dtype), dim3((unsigned)b->rows),
                       ROW, b, stream);
}

ridge_status ce_block_stats(const ridge_device *device, const char *name, ce_block *b, void *stream)
{
    return over_rows(device, name, STATS, b, stream);
}

ridge_status ce_block_gradient(const ridge_device *device, const char *name, ce_block *b, void *stream)
{
    return over_rows(device, name, b->p.dentropy ? BEND_GRADIENT : GRADIENT, b, stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const ridge_call *call = &bound->call;
    ce_block b = {ce_collect(bound), NULL, 0, 0, call->dim[0], 0, call->dim[1]};
    ridge_status status;

    ce_layout(&b.p, &bound->problem, 1, workspace);
    status = ce_begin(device, kernel->name, &b.p, stream);
    if (!status && call->op == RIDGE_CE_FWD)
        status = ce_block_stats(device, kernel->name, &b, stream);
    if (!status && call->op == RIDGE_CE_BWD)
        return ce_block_gradient(device, kernel->name, &b, stream);
    return status ? status : ce_finish(device, kernel->name, &b.p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return problem->dim[0] > 0x7fffff00 || problem->dim[1] > 0x7fffff00 ? "more than 2^31 tokens or classes" : NULL;
}

static size_t workspace(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return ce_workspace_bytes(problem, 1);
}

/* Bytes at the copy rate (forward: read only), plus the launches. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double bytes = problem->op == RIDGE_CE_COMBINE
                             ? 24.0 * (double)problem->dim[2]
                             : (double)ridge_dtype_size(problem->dtype[0]) * (double)problem->dim[1];

    return 10 + (problem->op == RIDGE_CE_BWD ? 2 : 1) * (double)problem->dim[0] * bytes * 1e-3 / device->copy_gbps;
}

#define ROW_OF(op_name, variant, op_id)                                                                               \
    {                                                                                                                 \
        "cuda." op_name "." variant, op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, RIDGE_STABLE | RIDGE_CLOSE, 0, {}, \
            why_not, workspace, cost, launch                                                                          \
    }

static const ridge_kernel rows[] = {
    ROW_OF("ce_fwd", "row256", RIDGE_CE_FWD),
    ROW_OF("ce_bwd", "row256", RIDGE_CE_BWD),
    ROW_OF("ce_combine", "warp", RIDGE_CE_COMBINE),
};

extern "C" const ridge_kernel_list ridge_cuda_ce_rows = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
