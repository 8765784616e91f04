/* matmul_dp4a.cu: the Q8_0 products on any GPU, with operands of any alignment.
 *
 * Eight lanes own a row of weights, one lane each partition of the canonical order (src/math/q8_0.h), so that no sum
 * crosses lanes before the tree at the end. Of each k step of 1024 columns a lane reads the 4 consecutive blocks of its
 * partition, 128 bytes, and multiplies them word by word with dp4a. */
#include "args.cuh"

enum { THREADS = 128, TOKENS = 4 };

/* Loads 32 codes from any address. */
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

/* Loads `count` blocks of 32 codes and clears the others; all loads are issued before the first use. */
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

/* Loads the run of `row` that begins at block b. A row outside of the matrix (inside is false) has no blocks. */
static __device__ __forceinline__ void load_run(const q8_0_matmul_args &p, const q8_0_weight &m, int64_t row, int64_t b,
                                                bool inside, run_regs *w)
{
    const int count = inside ? (int)min((int64_t)RIDGE_Q8_0_RUN, max((int64_t)0, p.blocks - b)) : 0;
    const uint8_t *scale = m.scales + row * m.scale_stride + b * m.scale_step;

    load_codes(m.codes + row * m.stride + b * m.step, m.step, count, w->code);
#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_RUN; i++)
        w->scale[i] = i < count ? (uint16_t)(scale[i * m.scale_step] | scale[i * m.scale_step + 1] << 8) : 0;
}

/* Sums this lane's partition of a row for `count` tokens from `first` on, then adds the eight lanes by the tree. w: the
 * first run. Blocks beyond the last one are zeros, which change no bit. */
template <int COUNT>
static __device__ __forceinline__ void sum_row(const q8_0_matmul_args &p, const q8_0_weight &m, int64_t row, int first,
                                               int count, bool inside, run_regs *w, float *acc)
{
#pragma unroll
    for (int t = 0; t < COUNT; t++)
        acc[t] = 0.0f;
    for (int64_t b = threadIdx.x % RIDGE_Q8_0_PARTS * RIDGE_Q8_0_RUN; inside && b < p.blocks;) {
        const int left = (int)min((int64_t)RIDGE_Q8_0_RUN, p.blocks - b);

#pragma unroll
        for (int t = 0; t < COUNT; t++)
            if (t < count) {
                const float *scales = p.x_scales + (first + t) * p.x_ld + b;
                uint32_t x[RIDGE_Q8_0_RUN][8];
                float xs[RIDGE_Q8_0_RUN];

                load_codes((const uint8_t *)p.x + (first + t) * p.x_stride + b * RIDGE_Q8_0_BLOCK, RIDGE_Q8_0_BLOCK,
                           left, x);
#pragma unroll
                for (int i = 0; i < RIDGE_Q8_0_RUN; i++)
                    xs[i] = i < left ? scales[i] : 0.0f;
#pragma unroll
                for (int i = 0; i < RIDGE_Q8_0_RUN; i++) {
                    int32_t dot = 0;

#pragma unroll
                    for (int k = 0; k < 8; k++)
                        dot = __dp4a((int)w->code[i][k], (int)x[i][k], dot);
                    acc[t] = ridge_q8_0_step(acc[t], ptx_f32_from_f16(w->scale[i]), xs[i], dot);
                }
            }
        b += Q8_0_STEP;
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
static __global__ void __launch_bounds__(THREADS) q8_0_dp4a(const __grid_constant__ q8_0_matmul_args p)
{
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / RIDGE_Q8_0_PARTS) + threadIdx.x / RIDGE_Q8_0_PARTS;
    const int first = (int)blockIdx.y * COUNT, count = min(COUNT, p.tokens - first);
    const int part = threadIdx.x % RIDGE_Q8_0_PARTS, which = !GATE_UP && row >= p.weight[0].rows;
    const q8_0_weight &m = p.weight[which];
    float acc[COUNT], up[COUNT];
    run_regs w, v;
    bool inside;

    ptx_launch_dependents();
    row -= which ? p.weight[0].rows : 0;
    inside = row < m.rows;
    if (!p.weights_const)
        ptx_grid_dependency_wait();
    load_run(p, m, row, part * RIDGE_Q8_0_RUN, inside, &w);
    if (GATE_UP)
        load_run(p, p.weight[1], row, part * RIDGE_Q8_0_RUN, inside, &v);
    if (p.weights_const)
        ptx_grid_dependency_wait();
    sum_row<COUNT>(p, m, row, first, count, inside, &w, acc);
    if (GATE_UP)
        sum_row<COUNT>(p, p.weight[1], row, first, count, inside, &v, up);
#pragma unroll
    for (int t = 0; t < COUNT; t++) /* every lane has the sums; lane t stores token t */
        if (inside && t < count && t == part) {
            if (GATE_UP) {
                q8_0_epilogue_gate_up(p, row, first + t, acc[t], up[t]);
            } else {
                q8_0_hc_inputs hc;

                q8_0_load_hc(p, row, first + t, &hc);
                q8_0_epilogue(p, which, row, first + t, acc[t], &hc);
            }
        }
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[4] = {
    (const void *)q8_0_dp4a<0, 1>,
    (const void *)q8_0_dp4a<0, TOKENS>,
    (const void *)q8_0_dp4a<1, 1>,
    (const void *)q8_0_dp4a<1, TOKENS>,
};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 4, "q8_0_matmul: loading kernels");
}

ridge_status q8_0_launch_dp4a(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                              void *workspace, size_t, void *stream)
{
    q8_0_matmul_args p = q8_0_collect(&bound->call);
    const bool gate_up = p.op == RIDGE_Q8_0_GATE_UP_SWIGLU, many = p.tokens > 1;
    const int64_t rows = p.weight[0].rows + (p.op == RIDGE_Q8_0_PAIR ? p.weight[1].rows : 0);
    /* With few rows a CTA is one warp, so that more SMs load. */
    const int threads = rows * RIDGE_Q8_0_PARTS < (int64_t)device->units * 2 * THREADS ? 32 : THREADS;
    const int64_t blocks = ridge_ceil_div(rows, threads / RIDGE_Q8_0_PARTS);
    ridge_status status = RIDGE_OK;

    if (rows && p.tokens)
        status = q8_0_quantise(device, kernel, &bound->call, workspace, stream, &p);
    if (status || rows == 0 || p.tokens == 0)
        return status;
    return host_launch(device, kernel->name, functions[2 * gate_up + many],
                       dim3((unsigned)blocks, (unsigned)(many ? ridge_ceil_div(p.tokens, TOKENS) : 1)), threads, &p,
                       stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    return (double)problem->dim[2] + (double)problem->dim[3] > 2147483647.0 ? "more than 2^31 - 1 rows" : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    /* A lane loads one run of 4 blocks after another, so each k step costs a memory latency (1.6 us a 1024 columns). */
    return (problem->flags & RIDGE_WEIGHTS_CONST ? 1.2 : 1.7) + (problem->dtype[0] == RIDGE_I8 ? 0 : 3) +
           1.6 * ((double)problem->dim[1] / 1024 > 1 ? (double)problem->dim[1] / 1024 : 0) +
           0.35 * (double)(problem->dim[0] - 1) +
           q8_0_bytes(problem) * (1 + 0.55 * (double)(problem->dim[0] - 1)) * 2.3e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                   \
    {                                                                                                         \
        "cuda." op_name ".dp4a", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, Q8_0_CONTRACT, 0, {}, why_not, \
            q8_0_workspace, cost, q8_0_launch_dp4a                                                            \
    }

static const ridge_kernel rows[] = {
    ROW("q8_0_matmul", RIDGE_Q8_0_MATMUL),
    ROW("q8_0_pair", RIDGE_Q8_0_PAIR),
    ROW("q8_0_gate_up_swiglu", RIDGE_Q8_0_GATE_UP_SWIGLU),
    ROW("q8_0_matmul_hc_expand", RIDGE_Q8_0_MATMUL_HC_EXPAND),
};

extern "C" const ridge_kernel_list ridge_cuda_q8_0_dp4a = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
