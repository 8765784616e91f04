/* linear_mma.cu: linear_ce_eval, linear_ce_train and linear_ce_backward on any device: any alignment, bf16, f16, f32;
 * and of f32 with rows of 16 bytes on Hopper (gemm_f32_sm90.cuh).
 *
 * For each chunk of listed rows and each block of classes: the logits in f32 by a product on the matrix units
 * (gemm_mma.cuh), then softmax_rows.cu's pass for the sums. For the gradients the logits again, unless train has those
 * of a chunk in memory; dlogits in place, dX += dz W, dW += dz^T x. */
#include "gemm_f32_sm90.cuh"
#include "gemm_tf32.cuh"
#include "phase.h"
#include "src/util.h"

enum { CHUNK = 1024, BLOCK = 8192 }; /* tokens, classes */
/* Train keeps the logits of a chunk of at least LEAST rows from the sums to the gradients, if they have so many bytes.
 */
enum { LEAST = 256, HELD = 256 << 20 };

/* Rows of f32 to the listed rows of a matrix. */
typedef struct linear_rows {
    const float *sum;
    void *out;
    const int32_t *list;
    const ce_totals *totals;
    int64_t stride, cols, begin, rows;
} linear_rows;

template <int DTYPE> static __global__ void __launch_bounds__(THREADS) linear_copy(const linear_rows p)
{
    const int64_t r = blockIdx.x;

    ptx_grid_dependency_wait();
    if (r >= rows_here(p.totals, p.begin, p.rows))
        return;
    const int64_t to = p.list[r] * p.stride;

    for (int64_t j = threadIdx.x; j < p.cols; j += THREADS)
        num_store<DTYPE>(p.out, to + j, p.sum[r * p.cols + j]);
}

/* Rows of a chunk of x in f32, 16 bytes at a time, a row a thread block; zeros beyond the listed ones. */
static __global__ void __launch_bounds__(THREADS) linear_gather(const linear_rows p)
{
    const int64_t r = blockIdx.x;

    ptx_grid_dependency_wait();
    const bool listed = r < rows_here(p.totals, p.begin, p.rows);
    const float4 *from = (const float4 *)(p.sum + (listed ? p.list[r] * p.stride : 0));
    float4 *to = (float4 *)p.out + r * (p.cols / 4);

    for (int64_t j = threadIdx.x; j < p.cols / 4; j += THREADS)
        to[j] = listed ? from[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* A 16-bit matrix, a row a thread block, to the two planes of an f32 sum, the upper one in place; or back, rounded. */
typedef struct linear_planes {
    linear_sum sum;
    int64_t cols;
    int load;
} linear_planes;

template <int DTYPE> static __global__ void __launch_bounds__(THREADS) convert_planes(const linear_planes p)
{
    uint16_t *high = p.sum.high + blockIdx.x * p.sum.ld, *low = p.sum.low + blockIdx.x * p.sum.low_ld;

    ptx_grid_dependency_wait();
    for (int64_t j = threadIdx.x; j < p.cols; j += THREADS)
        if (p.load) {
            const uint32_t bits = __float_as_uint(num_load<DTYPE>(high, j));

            high[j] = (uint16_t)(bits >> 16);
            low[j] = (uint16_t)bits;
        } else {
            num_store<DTYPE>(high, j, __uint_as_float((uint32_t)high[j] << 16 | low[j]));
        }
}

/* dbias[c] = (or +=) the sum of the chunk's dlogits of a class, row after row. */
typedef struct linear_columns {
    const float *z;
    float *dbias;
    const ce_totals *totals;
    int64_t ld, begin, rows, count;
    int add;
} linear_columns;

static __global__ void __launch_bounds__(THREADS) linear_bias(const linear_columns p)
{
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;

    ptx_grid_dependency_wait();
    const int64_t rows = rows_here(p.totals, p.begin, p.rows);

    if (c >= p.count)
        return;
#pragma unroll 8
    for (int64_t r = 0; r < rows; r++)
        sum += p.z[r * p.ld + c];
    p.dbias[c] = p.add ? p.dbias[c] + sum : sum;
}

/* ------------------------------------------------------------------------------------------------------------ host */

/* By dtype (f32, f16, bf16): products of x and W, of dz and x or W, of x and dz; linear_copy. */
#define BY_TYPE(d)                                                               \
    {                                                                            \
        (const void *)linear_mma<d, d>, (const void *)linear_mma<RIDGE_F32, d>,  \
            (const void *)linear_mma<d, RIDGE_F32>, (const void *)linear_copy<d> \
    }

enum { PRODUCT = 0, PRODUCT_DZ, PRODUCT_BY_DZ, COPY, FUNCTIONS };
static const void *const by_dtype[3][FUNCTIONS] = {BY_TYPE(RIDGE_F32), BY_TYPE(RIDGE_F16), BY_TYPE(RIDGE_BF16)};
enum { BIAS = 0, PLANES_F16, PLANES_BF16, GATHER, OTHERS };
static const void *const other_functions[OTHERS] = {(const void *)linear_bias, (const void *)convert_planes<RIDGE_F16>,
                                                    (const void *)convert_planes<RIDGE_BF16>,
                                                    (const void *)linear_gather};

/* Of two f32 matrices whose rows begin at multiples of 16 bytes, by how many of them are contiguous along their rows
 * instead of along k: none or B; both for dW. */
static const void *const aligned_f32[3] = {(const void *)linear_tf32<0, 0>, (const void *)linear_tf32<0, 1>,
                                           (const void *)linear_tf32<1, 1>};

/* The same by wgmma. */
static const void *const wgmma_f32[3] = {(const void *)linear_f32<0, 0>, (const void *)linear_f32<0, 1>,
                                         (const void *)linear_f32<1, 1>};

/* Bytes of shared memory of wgmma_f32[i]. */
static int f32_shared(int i)
{
    return (int)(i ? sizeof(f32_smem<1>) : sizeof(f32_smem<0>));
}

static const void *function_of(int what, int dtype)
{
    return by_dtype[dtype == RIDGE_F32 ? 0 : dtype == RIDGE_F16 ? 1 : 2][what];
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = host_load(device, &by_dtype[0][0], 3 * FUNCTIONS, "linear_ce: loading kernels");

    if (!status)
        status = host_prepare(device, aligned_f32, 3, cudaFuncAttributeMaxDynamicSharedMemorySize, TF32_SHARED,
                              "linear_ce: loading kernels");
    if (!status)
        status = host_load(device, other_functions, OTHERS, "linear_ce: loading kernels");
    for (int i = 0; i < 3 && !status && device->arch == RIDGE_ARCH_SM90; i++)
        status = host_prepare(device, &wgmma_f32[i], 1, cudaFuncAttributeMaxDynamicSharedMemorySize, f32_shared(i),
                              "linear_ce: loading kernels");
    status = status ? status : ce_top_prepare(device);
    return status ? status : ce_ids_prepare(device);
}

/* One call. */
typedef struct linear_job {
    const ridge_device *device;
    const char *name;
    void *stream;
    ce_params p;
    float *z, *dx;
    float *x;      /* wgmma: the listed rows of the chunk */
    linear_sum dw; /* the caller's dW; of a 16-bit one the lower plane of the sum is in the workspace */
    int64_t chunk, block, ld;
    bool held; /* a block has all classes, and the sums leave its logits in z */
    bool wgmma;
} linear_job;

static void choose_chunk(linear_job *j, const ridge_problem *problem)
{
    const int64_t tokens = problem->dim[0], vocab = problem->dim[2], ld = (vocab + 7) / 8 * 8;

    j->chunk = ridge_min(tokens, CHUNK);
    j->block = ridge_min(vocab, BLOCK);
    j->held = false;
    if (problem->op != RIDGE_LINEAR_CE_TRAIN || problem->flags & RIDGE_CE_PHASE)
        return;
    for (int64_t rows = CHUNK; rows >= LEAST && !j->held; rows /= 2)
        if (ridge_min(tokens, rows) * ld * 4 <= HELD) {
            j->chunk = ridge_min(tokens, rows);
            j->block = vocab;
            j->held = true;
        }
}

/* Lays out the workspace; from NULL it only counts the bytes. */
static char *lay_out(linear_job *j, const ridge_problem *problem, void *workspace)
{
    const bool train = problem->op == RIDGE_LINEAR_CE_TRAIN, gradients = problem->op != RIDGE_LINEAR_CE_EVAL;
    const int dx = train ? (int)RIDGE_LINEAR_CE_DX : (int)RIDGE_LINEAR_CE_BACKWARD_DX;
    const uint8_t dw = problem->dtype[dx + 1];
    char *at = ce_layout(&j->p, problem, 1, workspace);

    choose_chunk(j, problem);
    j->ld = (j->block + 7) / 8 * 8;
    j->z = (float *)ridge_take(&at, j->chunk * j->ld * 4);
    if (gradients && problem->dtype[dx] != RIDGE_NONE)
        j->dx = (float *)ridge_take(&at, j->chunk * problem->dim[1] * 4);
    if (j->wgmma)
        j->x = (float *)ridge_take(&at, j->chunk * problem->dim[1] * 4);
    if (gradients && dw != RIDGE_NONE && dw != RIDGE_F32)
        j->dw.low = (uint16_t *)ridge_take(&at, problem->dim[1] * problem->dim[2] * 2);
    return at;
}

static linear_product product_of(linear_view a, linear_view b, linear_sum d, const ce_block *block)
{
    linear_product g = {};

    g.a = a;
    g.b = b;
    g.d = d;
    g.m = block->rows;
    g.n = block->count;
    g.begin = block->begin;
    return g;
}

/* Whether cp.async can copy 16 bytes along the contiguous side of an f32 matrix. */
static bool is_aligned_f32(const linear_view *v)
{
    return (v->step == 1 ? v->line : v->step) % 4 == 0 && (v->step == 1 || v->line == 1) &&
           (uintptr_t)v->data % 16 == 0;
}

static ridge_status f32_map(const linear_job *j, CUtensorMap *map, const linear_view *v, int64_t rows, int64_t k)
{
    return v->step == 1 ? host_tensor_map(j->device, map, RIDGE_F32, v->data, k, rows, v->line, F32_K, TILE, 128)
                        : host_tensor_map(j->device, map, RIDGE_F32, v->data, rows, k, v->step, 32, F32_K, 128);
}

/* The tiles of the shorter side are neighbours, so that what they share of the longer one stays in L2. */
static ridge_status multiply_wgmma(const linear_job *j, const linear_product *g)
{
    const int kind = (g->a.step != 1) + (g->b.step != 1);
    const unsigned rows = (unsigned)((g->m + TILE - 1) / TILE), cols = (unsigned)((g->n + TILE - 1) / TILE);
    f32_args a = {};
    ridge_status status = f32_map(j, &a.a, &g->a, g->m, g->k);

    if (!status)
        status = f32_map(j, &a.b, &g->b, g->n, g->k);
    a.p = *g;
    a.rows_first = rows < cols;
    return status ? status
                  : host_launch_shared(j->device, j->name, wgmma_f32[kind],
                                       a.rows_first ? dim3(rows, cols) : dim3(cols, rows), F32_THREADS,
                                       (size_t)f32_shared(kind), &a, j->stream);
}

static ridge_status multiply(const linear_job *j, int what, linear_product *g)
{
    const dim3 grid((unsigned)((g->n + TILE - 1) / TILE), (unsigned)((g->m + TILE - 1) / TILE));
    const int along_rows = (g->a.step != 1) + (g->b.step != 1);

    g->totals = j->p.totals;
    if (g->m == 0 || g->n == 0)
        return RIDGE_OK;
    if (j->wgmma)
        return multiply_wgmma(j, g);
    if (j->p.dtype == RIDGE_F32 && (g->a.step == 1 || along_rows == 2) && is_aligned_f32(&g->a) &&
        is_aligned_f32(&g->b))
        return host_launch_shared(j->device, j->name, aligned_f32[along_rows], grid, THREADS, TF32_SHARED, g,
                                  j->stream);
    return host_launch(j->device, j->name, function_of(what, j->p.dtype), grid, THREADS, g, j->stream);
}

static linear_sum sum_of(float *f32, int64_t ld)
{
    return {f32, NULL, NULL, ld, 0};
}

static linear_view x_view(const linear_job *j, int64_t begin, bool by_k)
{
    if (j->wgmma)
        return {j->x, by_k ? 1 : j->p.hidden, by_k ? j->p.hidden : 1, NULL, by_k};
    return {j->p.x, by_k ? 1 : j->p.x_stride, by_k ? j->p.x_stride : 1, j->p.list + begin, by_k};
}

/* W's classes from `first` as lines, hidden units as k; or the other way round. */
static linear_view w_view(const linear_job *j, int64_t first, bool by_class)
{
    const int64_t size = j->p.dtype == RIDGE_F32 ? 4 : 2, of_class = j->p.hv ? 1 : j->p.w_stride;
    const int64_t of_hidden = j->p.hv ? j->p.w_stride : 1;

    return {(const char *)j->p.w + first * of_class * size, by_class ? of_class : of_hidden,
            by_class ? of_hidden : of_class, NULL, 0};
}

static ridge_status logits(const linear_job *j, const ce_block *b)
{
    linear_product g = product_of(x_view(j, b->begin, false), w_view(j, b->first, true), sum_of(j->z, j->ld), b);

    g.k = j->p.hidden;
    g.limit_m = 1;
    return multiply(j, PRODUCT, &g);
}

static ridge_status dw_block(const linear_job *j, const ce_block *b)
{
    const linear_view dz = {j->z, 1, j->ld, NULL, 0}, x = x_view(j, b->begin, true);
    const int add = b->begin > 0 || (j->p.flags & RIDGE_ACCUMULATE);
    linear_product g = product_of(dz, x, j->dw, b);
    const int64_t at = b->first * (j->p.hv ? 1 : g.d.ld);
    ridge_status status = RIDGE_OK;

    if (g.d.f32) {
        g.d.f32 += at;
    } else if (j->p.dw) {
        g.d.high += at;
        g.d.low += b->first * (j->p.hv ? 1 : g.d.low_ld);
    }
    g.m = b->count;
    g.n = j->p.hidden;
    g.k = b->rows;
    g.limit_k = 1;
    g.add = add;
    if (j->p.hv) {
        g.a = x;
        g.b = dz;
        g.m = j->p.hidden;
        g.n = b->count;
    }
    if (j->p.dw)
        status = multiply(j, j->p.hv ? PRODUCT_BY_DZ : PRODUCT_DZ, &g);
    if (!status && j->p.dbias) {
        linear_columns c = {j->z, j->p.dbias + b->first, j->p.totals, j->ld, b->begin, b->rows, b->count, add};

        status = host_launch(j->device, j->name, other_functions[BIAS],
                             dim3((unsigned)((b->count + THREADS - 1) / THREADS)), THREADS, &c, j->stream);
    }
    return status;
}

static ridge_status gradient_block(const linear_job *j, ce_block *b)
{
    const linear_view dz = {j->z, j->ld, 1, NULL, 0};
    linear_product g = product_of(dz, w_view(j, b->first, false), sum_of(j->dx, j->p.hidden), b);
    ridge_status status = j->held ? RIDGE_OK : logits(j, b);

    g.n = j->p.hidden;
    g.k = b->count;
    g.limit_m = 1;
    g.add = b->first > 0;
    if (!status)
        status = ce_block_gradient(j->device, j->name, b, j->stream);
    if (!status)
        status = ce_ids_block(j->device, j->name, b, j->stream);
    if (!status && j->p.dx)
        status = multiply(j, PRODUCT_DZ, &g);
    return status ? status : dw_block(j, b);
}

static ridge_status copy_rows(const linear_job *j, linear_rows *c)
{
    if (c->rows == 0 || c->cols == 0)
        return RIDGE_OK;
    return host_launch(j->device, j->name, function_of(COPY, j->p.dtype), dim3((unsigned)c->rows), THREADS, c,
                       j->stream);
}

/* wgmma: the listed rows of a chunk of x, which TMA cannot gather. */
static ridge_status gather_rows(const linear_job *j, int64_t begin, int64_t rows)
{
    linear_rows c = {
        (const float *)j->p.x, j->x, j->p.list + begin, j->p.totals, j->p.x_stride, j->p.hidden, begin, rows};

    if (!j->wgmma || rows == 0)
        return RIDGE_OK;
    return host_launch(j->device, j->name, other_functions[GATHER], dim3((unsigned)rows), THREADS, &c, j->stream);
}

/* The f32 sum of a 16-bit dW: from dW (load), or rounded to it. */
static ridge_status convert_dw(const linear_job *j, int load)
{
    linear_planes c = {j->dw, j->p.hv ? j->p.vocab : j->p.hidden, load};
    const int64_t rows = j->p.hv ? j->p.hidden : j->p.vocab;

    if (!j->p.dw || j->p.dw_dtype == RIDGE_F32 || rows == 0 || c.cols == 0)
        return RIDGE_OK;
    return host_launch(j->device, j->name, other_functions[j->p.dw_dtype == RIDGE_BF16 ? PLANES_BF16 : PLANES_F16],
                       dim3((unsigned)rows), THREADS, &c, j->stream);
}

static ridge_status chunk_gradients(const linear_job *j, int64_t begin, int64_t rows)
{
    ridge_status status = RIDGE_OK;

    for (int64_t first = 0; first < j->p.vocab && !status; first += j->block) {
        ce_block b = {j->p, j->z, j->ld, begin, rows, first, ridge_min(j->block, j->p.vocab - first)};

        status = gradient_block(j, &b);
    }
    if (!status && j->p.dx) {
        linear_rows c = {j->dx, j->p.dx, j->p.list + begin, j->p.totals, j->p.dx_stride, j->p.hidden, begin, rows};

        status = copy_rows(j, &c);
    }
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    ridge_bound phase;
    ridge_status status = ridge_ce_phase(&bound, &phase);

    if (status || !bound)
        return status;
    const ridge_call *call = &bound->call;
    linear_job j = {};
    const bool gradients = call->op != RIDGE_LINEAR_CE_EVAL, stats = ce_needs_stats(call->op);

    j.device = device;
    j.name = kernel->name;
    j.stream = stream;
    j.p = ce_collect(bound);
    j.wgmma = kernel->param[0];
    lay_out(&j, &bound->problem, workspace);
    j.dw = {j.p.dw_dtype == RIDGE_F32 ? (float *)j.p.dw : NULL, (uint16_t *)j.p.dw, j.dw.low, j.p.dw_stride,
            j.p.hv ? j.p.vocab : j.p.hidden};
    status = ce_begin(device, j.name, &j.p, stream);
    if (!status && call->op == RIDGE_LINEAR_CE_BACKWARD)
        status = ce_ids_begin(device, j.name, &j.p, stream);
    if (!status && gradients && (call->flags & RIDGE_ACCUMULATE))
        status = convert_dw(&j, 1);
    /* a call without tokens has one empty chunk, which writes dW */
    for (int64_t begin = 0; (begin == 0 || begin < j.p.tokens) && !status; begin += ridge_max(j.chunk, 1)) {
        const int64_t rows = ridge_min(j.chunk, j.p.tokens - begin);

        status = gather_rows(&j, begin, rows);
        for (int64_t first = 0; first < j.p.vocab && stats && !status; first += j.block) {
            ce_block b = {j.p, j.z, j.ld, begin, rows, first, ridge_min(j.block, j.p.vocab - first)};

            status = logits(&j, &b);
            if (!status)
                status = ce_block_stats(device, j.name, &b, stream);
            if (!status)
                status = ce_top_block(device, j.name, &b, stream);
        }
        if (!status) {
            ce_top t = {j.p, begin, rows, 0, 0};

            status = ce_top_finish(device, j.name, &t, stream);
        }
        if (gradients && !status)
            status = chunk_gradients(&j, begin, rows);
    }
    if (!status && call->op == RIDGE_LINEAR_CE_EVAL)
        status = ce_ids_eval(device, j.name, &j.p, stream);
    if (!status && gradients)
        status = convert_dw(&j, 0);
    if (!status && gradients)
        status = ce_other_rows(device, j.name, &j.p, stream);
    return status || !stats ? status : ce_finish(device, j.name, &j.p, stream);
}

static size_t workspace(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    linear_job j = {};

    j.wgmma = kernel->param[0];
    return (size_t)(uintptr_t)lay_out(&j, problem, NULL);
}

static bool is_aligned(const ridge_problem *problem)
{
    const bool hv = (problem->flags & RIDGE_CE_W_HV) != 0;

    return problem->align == 4 && problem->dim[1] % 4 == 0 && (!hv || problem->dim[2] % 4 == 0);
}

static const char *why_not(const ridge_device *, const ridge_kernel *kernel, const ridge_problem *problem)
{
    if (kernel->param[0] && problem->dtype[0] != RIDGE_F32)
        return "is for f32";
    if (kernel->param[0] && (problem->dim[0] == 0 || problem->dim[1] == 0 || problem->dim[2] == 0))
        return "nothing to multiply";
    if (kernel->param[0] && !is_aligned(problem))
        return "TMA needs rows of x, W, dX and dW that begin at multiples of 16 bytes";
    for (int d = 0; d < 3; d++)
        if (problem->dim[d] > 0x7fffff00 / 2)
            return "more than 2^30 tokens, hidden units or classes";
    return NULL;
}

/* Multiply-adds a clock and SM as measured on an H200 (docs/measured.md): loads of single elements are the limit, not
 * the tensor cores; not less than x and W take to be read for each product. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double gemms = problem->op == RIDGE_LINEAR_CE_EVAL ? 1 : problem->op == RIDGE_LINEAR_CE_TRAIN ? 4 : 3;
    const bool f32 = problem->dtype[0] == RIDGE_F32, aligned = f32 && is_aligned(problem);
    const double tokens = 128.0 * (double)ridge_ceil_div(problem->dim[0], 128); /* tiles of 128 */
    const double hidden = (double)problem->dim[1], vocab = (double)problem->dim[2];
    const double rate = kernel->param[0] ? 200e3 : aligned ? 80e3 : f32 ? 8.4e3 : 34e3;
    const double multiply = tokens * hidden * vocab / (rate * device->clock_ghz * device->units);
    const double load = (tokens + vocab) * hidden * (f32 ? 4e-3 : 2e-3) / device->copy_gbps;

    return 50 + gemms * (multiply > load ? multiply : load);
}

#define ROW(op_name, variant, op_id, from, to, wgmma)                                                               \
    {                                                                                                               \
        "cuda." op_name variant, op_id, from, to, RIDGE_STABLE | RIDGE_CLOSE, 0, {wgmma}, why_not, workspace, cost, \
            launch                                                                                                  \
    }
#define ANY(op_name, op_id) ROW(op_name, ".mma128", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, 0)
#define HOPPER(op_name, op_id) ROW(op_name, ".wgmma_f32", op_id, RIDGE_ARCH_SM90, RIDGE_ARCH_SM90, 1)

static const ridge_kernel rows[] = {
    ANY("linear_ce_eval", RIDGE_LINEAR_CE_EVAL),         ANY("linear_ce_train", RIDGE_LINEAR_CE_TRAIN),
    ANY("linear_ce_backward", RIDGE_LINEAR_CE_BACKWARD), HOPPER("linear_ce_eval", RIDGE_LINEAR_CE_EVAL),
    HOPPER("linear_ce_train", RIDGE_LINEAR_CE_TRAIN),    HOPPER("linear_ce_backward", RIDGE_LINEAR_CE_BACKWARD),
};

extern "C" const ridge_kernel_list ridge_cuda_ce_linear = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
