/* matmul_dp4a.cu: Q8_0 decode on any GPU: q8_0_quantize_rows, the portable rows of the four products, and the host side
 * that every row of theirs shares.
 *
 * Portable product: eight lanes own a row, one a partition of the canonical order (src/math/q8_0.h), so that no sum
 * crosses lanes but the tree at the end. A lane reads the 4 consecutive blocks of its partition, 128 bytes of a turn of
 * 1024, dp4a word by word. Operands of any alignment; the Hopper rows are in matmul_tma.cu. */
#include "args.cuh"
#include "ops/quantize_fp8/quantize.cuh"

enum { THREADS = 128, TOKENS = 4 };

/* --------------------------------------------------------------------------------------------------------- quantise */

typedef struct rows_args {
    const char *x;
    int8_t *codes;
    float *scales;
    int64_t stride, codes_stride, scales_stride; /* bytes, elements, elements */
    int64_t rows, cols, units;                   /* of 256 columns, a row */
    int vector_x, vector_codes;
} rows_args;

/* A warp quantises 256 columns: a lane 8, four lanes a block. */
template <int DTYPE>
static __global__ void __launch_bounds__(THREADS) q8_0_quantize_rows(const __grid_constant__ rows_args p)
{
    const int64_t index = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t row = index / p.units, first = index % p.units * 256 + threadIdx.x % 32 * 8;
    const int lane = threadIdx.x % 32, size = DTYPE == RIDGE_F32 ? 4 : 2;
    uint32_t words[QUANTIZE_WORDS(DTYPE)];
    float x[8], scale;
    int8_t *codes;
    uint2 v;

    ptx_grid_release();
    ptx_grid_wait();
    if (row >= p.rows) /* whole warps leave */
        return;
    quantize_load<DTYPE>(p.x + row * p.stride + first * size, p.cols - first, p.vector_x, words);
    quantize_unpack<DTYPE>(words, x);
    v = q8_0_quantise8(x, &scale);
    if (first >= p.cols)
        return;
    codes = p.codes + row * p.codes_stride + first;
    if (p.vector_codes)
        *(uint2 *)codes = v;
    else
        for (int i = 0; i < 8; i++)
            codes[i] = (int8_t)((i < 4 ? v.x : v.y) >> (i % 4 * 8));
    if (lane % 4 == 0)
        p.scales[row * p.scales_stride + first / RIDGE_Q8_0_BLOCK] = scale;
}

/* ----------------------------------------------------------------------------------------------------- portable row */

/* 32 codes from any address. */
static __device__ __forceinline__ void load32(const uint8_t *from, uint32_t *w)
{
    if ((uintptr_t)from % 16 == 0) {
        const uint4 a = ((const uint4 *)from)[0], b = ((const uint4 *)from)[1];

        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    } else if ((uintptr_t)from % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = ((const uint32_t *)from)[i];
    } else if ((uintptr_t)from % 2 == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = ((const uint16_t *)from)[2 * i] | (uint32_t)((const uint16_t *)from)[2 * i + 1] << 16;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w[i] = from[4 * i] | (uint32_t)from[4 * i + 1] << 8 | (uint32_t)from[4 * i + 2] << 16 |
                   (uint32_t)from[4 * i + 3] << 24;
    }
}

/* Four consecutive blocks of a partition. */
typedef struct run_regs {
    uint32_t code[RIDGE_Q8_0_RUN][8];
    uint16_t scale[RIDGE_Q8_0_RUN];
} run_regs;

/* `count` blocks of 32 codes, the others zero; all loads before the first use. */
static __device__ __forceinline__ void load_codes(const uint8_t *from, int64_t step, int count, uint32_t (*code)[8])
{
    const bool vectors = ((uintptr_t)from | (uintptr_t)step) % 16 == 0;

#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_RUN; i++) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            code[i][k] = 0;
        if (i < count && vectors) {
            const uint4 a = ((const uint4 *)(from + i * step))[0], b = ((const uint4 *)(from + i * step))[1];

            code[i][0] = a.x, code[i][1] = a.y, code[i][2] = a.z, code[i][3] = a.w;
            code[i][4] = b.x, code[i][5] = b.y, code[i][6] = b.z, code[i][7] = b.w;
        }
    }
    if (!vectors)
#pragma unroll
        for (int i = 0; i < RIDGE_Q8_0_RUN; i++)
            if (i < count)
                load32(from + i * step, code[i]);
}

/* The run of `row` that begins at block b. A row that is not there (inside is false) has no blocks. */
static __device__ __forceinline__ void load_run(const q8_0_args &p, const q8_0_weight &m, int64_t row, int64_t b,
                                                bool inside, run_regs *w)
{
    const int count = inside ? (int)min((int64_t)RIDGE_Q8_0_RUN, max((int64_t)0, p.blocks - b)) : 0;
    const uint8_t *scale = m.scales + row * m.scale_stride + b * m.scale_step;

    load_codes(m.codes + row * m.stride + b * m.step, m.step, count, w->code);
#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_RUN; i++)
        w->scale[i] = i < count ? (uint16_t)(scale[i * m.scale_step] | scale[i * m.scale_step + 1] << 8) : 0;
}

/* This lane's partition of a row for `count` tokens from `first` on, then the tree over the eight lanes. w: the first
 * run. Blocks behind the last one are zeros, which change no bit. */
template <int COUNT>
static __device__ __forceinline__ void sum_row(const q8_0_args &p, const q8_0_weight &m, int64_t row, int first,
                                               int count, bool inside, run_regs *w, float *acc)
{
#pragma unroll
    for (int t = 0; t < COUNT; t++)
        acc[t] = 0.0f;
    for (int64_t b = threadIdx.x % RIDGE_Q8_0_PARTS * RIDGE_Q8_0_RUN; inside && b < p.blocks;) {
        const int there = (int)min((int64_t)RIDGE_Q8_0_RUN, p.blocks - b);

#pragma unroll
        for (int t = 0; t < COUNT; t++)
            if (t < count) {
                const float *scales = p.x_scales + (first + t) * p.x_ld + b;
                uint32_t x[RIDGE_Q8_0_RUN][8];
                float xs[RIDGE_Q8_0_RUN];

                load_codes((const uint8_t *)p.x + (first + t) * p.x_stride + b * RIDGE_Q8_0_BLOCK, RIDGE_Q8_0_BLOCK,
                           there, x);
#pragma unroll
                for (int i = 0; i < RIDGE_Q8_0_RUN; i++)
                    xs[i] = i < there ? scales[i] : 0.0f;
#pragma unroll
                for (int i = 0; i < RIDGE_Q8_0_RUN; i++) {
                    int32_t dot = 0;

#pragma unroll
                    for (int k = 0; k < 8; k++)
                        dot = __dp4a((int)w->code[i][k], (int)x[i][k], dot);
                    acc[t] = ridge_q8_0_step(acc[t], ptx_f32_from_f16(w->scale[i]), xs[i], dot);
                }
            }
        b += Q8_0_TURN;
        if (b < p.blocks)
            load_run(p, m, row, b, inside, w);
    }
#pragma unroll
    for (int s = 1; s < RIDGE_Q8_0_PARTS; s *= 2)
#pragma unroll
        for (int t = 0; t < COUNT; t++)
            acc[t] += __shfl_xor_sync(~0u, acc[t], s);
}

template <int GATE_UP, int COUNT>
static __global__ void __launch_bounds__(THREADS) q8_0_portable(const __grid_constant__ q8_0_args p)
{
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / RIDGE_Q8_0_PARTS) + threadIdx.x / RIDGE_Q8_0_PARTS;
    const int first = (int)blockIdx.y * COUNT, count = min(COUNT, p.tokens - first);
    const int part = threadIdx.x % RIDGE_Q8_0_PARTS, which = !GATE_UP && row >= p.weight[0].rows;
    const q8_0_weight &m = p.weight[which];
    float acc[COUNT], up[COUNT];
    run_regs w, v;
    bool inside;

    ptx_grid_release();
    row -= which ? p.weight[0].rows : 0;
    inside = row < m.rows;
    if (!p.settled)
        ptx_grid_wait();
    load_run(p, m, row, part * RIDGE_Q8_0_RUN, inside, &w);
    if (GATE_UP)
        load_run(p, p.weight[1], row, part * RIDGE_Q8_0_RUN, inside, &v);
    if (p.settled)
        ptx_grid_wait();
    sum_row<COUNT>(p, m, row, first, count, inside, &w, acc);
    if (GATE_UP)
        sum_row<COUNT>(p, p.weight[1], row, first, count, inside, &v, up);
#pragma unroll
    for (int t = 0; t < COUNT; t++) /* every lane has the sums: they share the tokens */
        if (inside && t < count && t == part) {
            if (GATE_UP) {
                q8_0_finish_gate_up(p, row, first + t, acc[t], up[t]);
            } else {
                q8_0_streams streams;

                q8_0_fetch(p, row, first + t, &streams);
                q8_0_finish(p, which, row, first + t, acc[t], &streams);
            }
        }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[6] = {
    (const void *)q8_0_portable<0, 1>,           (const void *)q8_0_portable<0, TOKENS>,
    (const void *)q8_0_portable<1, 1>,           (const void *)q8_0_portable<1, TOKENS>,
    (const void *)q8_0_quantize_rows<RIDGE_F32>, (const void *)q8_0_quantize_rows<RIDGE_BF16>,
};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 6, "q8_0_decode: loading kernels");
}

static int64_t stride_of(const ridge_operand *x, int64_t packed)
{
    return x->stride ? x->stride : packed;
}

static ridge_status quantize(const ridge_device *device, const char *name, uint32_t dtype, rows_args *p, void *stream)
{
    p->units = (p->cols + 255) / 256;
    p->vector_x = quantize_aligned(p->x, p->stride, 16);
    p->vector_codes = quantize_aligned(p->codes, p->codes_stride, 8);
    return host_launch(device, name, functions[dtype == RIDGE_BF16 ? 5 : 4],
                       dim3((unsigned)((p->rows * p->units + THREADS / 32 - 1) / (THREADS / 32))), THREADS, p, stream);
}

static ridge_status launch_quantize(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                    void *, size_t, void *stream)
{
    const ridge_call *call = &bound->call;

    const ridge_operand *x = &call->arg[RIDGE_Q8_0_QUANTIZE_ROWS_X], *q = &call->arg[RIDGE_Q8_0_QUANTIZE_ROWS_CODES],
                        *s = &call->arg[RIDGE_Q8_0_QUANTIZE_ROWS_SCALES];
    rows_args p = {};

    p.rows = call->dim[0];
    p.cols = call->dim[1];
    if (p.rows == 0 || p.cols == 0)
        return RIDGE_OK;
    p.x = (const char *)x->data;
    p.stride = stride_of(x, p.cols) * (x->dtype == RIDGE_F32 ? 4 : 2);
    p.codes = (int8_t *)q->data;
    p.codes_stride = stride_of(q, p.cols);
    p.scales = (float *)s->data;
    p.scales_stride = stride_of(s, p.cols / RIDGE_Q8_0_BLOCK);
    return quantize(device, kernel->name, x->dtype, &p, stream);
}

static q8_0_weight weight_of(const ridge_call *call, int slot, int64_t rows)
{
    const ridge_operand *w = &call->arg[slot], *s = &call->arg[slot + 1];
    const int64_t blocks = call->dim[1] / RIDGE_Q8_0_BLOCK;
    q8_0_weight m = {};

    m.rows = rows;
    m.codes = (const uint8_t *)w->data;
    if (w->dtype == RIDGE_I8) {
        m.stride = stride_of(w, call->dim[1]);
        m.step = RIDGE_Q8_0_BLOCK;
        m.scales = (const uint8_t *)s->data;
        m.scale_stride = 2 * stride_of(s, blocks);
        m.scale_step = 2;
    } else {
        m.stride = m.scale_stride = stride_of(w, blocks * RIDGE_Q8_0_BYTES);
        m.step = m.scale_step = RIDGE_Q8_0_BYTES;
        m.scales = m.codes;
        m.codes += 2;
    }
    return m;
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

size_t q8_0_workspace(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    const size_t n = (size_t)problem->dim[0] * (size_t)problem->dim[1];

    return problem->dtype[0] == RIDGE_I8 ? 0 : round_up(n) + round_up(n / RIDGE_Q8_0_BLOCK * sizeof(float));
}

static void collect_hc(const ridge_call *call, q8_0_args *p)
{
    const ridge_operand *arg = call->arg, *add = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD],
                        *y = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_Y];
    const int64_t rows = call->dim[2], n = call->dim[3];

    p->n_hc = (int)n;
    p->post = (const float *)arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_POST].data;
    p->post_ld = stride_of(&arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_POST], n);
    p->comb = (const float *)arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB].data;
    p->comb_ld = stride_of(&arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB], n * n);
    p->res = (const float *)arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_RES].data;
    p->res_stride = stride_of(&arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_RES], n * rows);
    p->add = add->dtype == RIDGE_NONE ? NULL : (const float *)add->data;
    p->add_stride = stride_of(add, rows);
    p->y = y->dtype == RIDGE_NONE ? NULL : (float *)y->data;
    p->y_stride = stride_of(y, rows);
    p->out[0] = arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT].data;
    p->out_stride[0] = stride_of(&arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT], n * rows);
}

static void collect(const ridge_call *call, q8_0_args *p)
{
    const ridge_operand *arg = call->arg;
    const bool pair = call->op == RIDGE_Q8_0_PAIR, gate_up = call->op == RIDGE_Q8_0_GATE_UP_SWIGLU;
    const int out = pair      ? (int)RIDGE_Q8_0_PAIR_OUT0
                    : gate_up ? (int)RIDGE_Q8_0_GATE_UP_SWIGLU_OUT
                              : (int)RIDGE_Q8_0_MATMUL_OUT;
    const int64_t rows = call->dim[2];

    p->op = (int)call->op;
    p->tokens = (int)call->dim[0];
    p->blocks = call->dim[1] / RIDGE_Q8_0_BLOCK;
    p->weight[0] = weight_of(call, 2, rows);
    if (pair || gate_up)
        p->weight[1] = weight_of(call, 4, pair ? call->dim[3] : rows);
    if (call->op == RIDGE_Q8_0_MATMUL_HC_EXPAND) {
        collect_hc(call, p);
        return;
    }
    p->bf16 = arg[out].dtype == RIDGE_BF16;
    for (int i = 0; i <= pair; i++) {
        p->out[i] = arg[out + i].data;
        p->out_stride[i] = stride_of(&arg[out + i], p->weight[i].rows);
    }
    if (gate_up) {
        const ridge_operand *scale = &arg[RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE];

        p->act = call->flags & RIDGE_ACTIVATION;
        p->token_scale = scale->dtype == RIDGE_NONE ? NULL : (const float *)scale->data;
        p->swiglu = ridge_swiglu_resolve(call->opt.swiglu);
    }
}

ridge_status q8_0_begin(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call, bool quantise,
                        void *workspace, void *stream, q8_0_args *p)
{
    const ridge_operand *x = &call->arg[0];
    const int64_t tokens = call->dim[0], cols = call->dim[1];
    rows_args q = {};

    collect(call, p);
    p->settled = (call->flags & RIDGE_WEIGHTS_CONST) != 0;
    if (x->dtype == RIDGE_I8) {
        p->x = (const int8_t *)x->data;
        p->x_stride = stride_of(x, cols);
        p->x_scales = (const float *)call->arg[1].data;
        p->x_ld = stride_of(&call->arg[1], p->blocks);
        return RIDGE_OK;
    }
    if (!quantise)
        return RIDGE_OK;
    p->x = q.codes = (int8_t *)workspace;
    p->x_scales = q.scales = (float *)((char *)workspace + round_up((size_t)(tokens * cols)));
    p->x_stride = q.codes_stride = cols;
    p->x_ld = q.scales_stride = p->blocks;
    q.x = (const char *)x->data;
    q.stride = stride_of(x, cols) * (x->dtype == RIDGE_F32 ? 4 : 2);
    q.rows = tokens;
    q.cols = cols;
    return tokens && cols ? quantize(device, kernel->name, x->dtype, &q, stream) : RIDGE_OK;
}

ridge_status q8_0_launch_portable(const ridge_device *device, const char *name, q8_0_args *p, void *stream)
{
    const bool gate_up = p->op == RIDGE_Q8_0_GATE_UP_SWIGLU, many = p->tokens > 1;
    const int64_t rows = p->weight[0].rows + (p->op == RIDGE_Q8_0_PAIR ? p->weight[1].rows : 0);
    /* Few rows: a warp a block, so that more multiprocessors load. */
    const int threads = rows * RIDGE_Q8_0_PARTS < (int64_t)device->units * 2 * THREADS ? 32 : THREADS;
    const int64_t high = threads / RIDGE_Q8_0_PARTS, blocks = (rows + high - 1) / high;

    if (rows == 0 || p->tokens == 0)
        return RIDGE_OK;
    return host_launch(device, name, functions[2 * gate_up + many],
                       dim3((unsigned)blocks, (unsigned)(many ? (p->tokens + TOKENS - 1) / TOKENS : 1)), threads, p,
                       stream);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t, void *stream)
{
    const ridge_call *call = &bound->call;

    q8_0_args p = {};
    const ridge_status status = q8_0_begin(device, kernel, call, true, workspace, stream, &p);

    return status ? status : q8_0_launch_portable(device, kernel->name, &p, stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (double)problem->dim[2] + (double)problem->dim[3] > 2147483647.0 ? "more than 2^31 - 1 rows" : NULL;
}

static const char *quantize_why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (double)problem->dim[0] * ((double)problem->dim[1] / 1024 + 1) > 2147483647.0
               ? "more than 2^31 - 1 thread blocks"
               : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->op == RIDGE_Q8_0_QUANTIZE_ROWS)
        return 2 + 5.0 * (double)problem->dim[0] * (double)problem->dim[1] * 1e-3 / device->copy_gbps;
    /* A run of 4 blocks after another: the latency of memory each time. */
    return (problem->flags & RIDGE_WEIGHTS_CONST ? 1.2 : 1.7) + (problem->dtype[0] == RIDGE_I8 ? 0 : 3) +
           1.6 * ((double)problem->dim[1] / 1024 > 1 ? (double)problem->dim[1] / 1024 : 0) +
           0.35 * (double)(problem->dim[0] - 1) +
           q8_0_bytes(problem) * (1 + 0.55 * (double)(problem->dim[0] - 1)) * 2.3e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                               \
    {                                                                                                     \
        "cuda." op_name ".dp4a", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_SM121, Q8_0_CONTRACT, 0, {}, why_not, \
            q8_0_workspace, cost, launch                                                                  \
    }

static const ridge_kernel rows[] = {
    {"cuda.q8_0_quantize_rows.warp8",
     RIDGE_Q8_0_QUANTIZE_ROWS,
     RIDGE_ARCH_SM80,
     RIDGE_ARCH_SM121,
     Q8_0_CONTRACT,
     0,
     {},
     quantize_why_not,
     NULL,
     cost,
     launch_quantize},
    ROW("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROW("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROW("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROW("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_decode = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
