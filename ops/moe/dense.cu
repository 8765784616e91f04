/* dense.cu: moe_down and moe_gate_up_swiglu of an only expert in bf16 or e4m3: the products of a dense layer for a few
 * tokens, which the stream of its weights bounds.
 *
 * Two warps compute ROWS rows for T tokens: lane i of warp h has the chains 128 h + 4 i .. + 3 (products.h) of each, so
 * that a step of 256 columns is 4 codes of a row. The codes of DEPTH steps are in flight, the first before the wait if
 * they are constant. x is in shared memory as f32, of e4m3 already multiplied by the scale of the CTA's rows, of which
 * 128 share one: so a weight costs its conversion and an fma a token. x that does not fit comes in chunks. */
#include "args.cuh"

enum { THREADS = 256, PAIRS = THREADS / 64, OWN = 4, DEPTH = 8, CHUNK_STEPS = DEPTH, X_BYTES = 96 * 1024 };

typedef struct dense_args {
    moe_args p;
    int first, count;       /* of tokens */
    int steps, chunk_steps; /* of 256 columns, in all and of x in shared memory */
} dense_args;

template <int FORM> struct dense_word {
    typedef uint32_t type;
};
template <> struct dense_word<RIDGE_BF16> {
    typedef uint2 type;
};

static __device__ __forceinline__ void dense_load(const char *from, uint32_t *to)
{
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(*to) : "l"(from));
}

static __device__ __forceinline__ void dense_load(const char *from, uint2 *to)
{
    *to = ptx_load8(from);
}

static __device__ __forceinline__ void dense_unpack(uint32_t w, float *v)
{
    moe_unpack_e4m3(w, v);
}

static __device__ __forceinline__ void dense_unpack(uint2 w, float *v)
{
    num_unpack2<RIDGE_BF16>(w.x, v, v + 1);
    num_unpack2<RIDGE_BF16>(w.y, v + 2, v + 3);
}

/* Columns from `column` on of all tokens to shared memory, [matrix][token][column]; what there is not is zero. */
template <int FORM, int SUBS, int T>
static __device__ __forceinline__ void dense_stage(const dense_args &a, int64_t row, int64_t column, float *x)
{
    enum { COPIES = FORM == RIDGE_E4M3 ? SUBS : 1 };
    const moe_args &p = a.p;
    const int cols = a.chunk_steps * MOE_CHAINS;
    const int64_t scales = row / 128 * ((p.cols + 127) / 128);

    for (int i = (int)threadIdx.x * OWN; i < T * cols; i += THREADS * OWN) {
        const int t = i / cols, c = i % cols;
        const int64_t at = (a.first + t) * p.x_stride + column + c;
        float v[OWN] = {};

        if (t < a.count && column + c < p.cols) {
            if (p.x_bf16) {
                const uint2 two = *(const uint2 *)(p.x + at * 2);

                dense_unpack(two, v);
            } else {
                num_unpack<RIDGE_F32>(*(const uint4 *)(p.x + at * 4), v);
            }
        }
#pragma unroll
        for (int s = 0; s < COPIES; s++) {
            const float scale = FORM == RIDGE_E4M3 && column + c < p.cols
                                    ? ((const float *)p.weight[s].scales)[scales + (column + c) / 128]
                                    : 0.0f;
            float4 to = make_float4(v[0], v[1], v[2], v[3]);

            if (FORM == RIDGE_E4M3)
                to = make_float4(__fmul_rn(v[0], scale), __fmul_rn(v[1], scale), __fmul_rn(v[2], scale),
                                 __fmul_rn(v[3], scale));
            *(float4 *)(x + (s * T + t) * cols + c) = to;
        }
    }
}

/* Rows [row, row + ROWS) of SUBS matrices times T tokens; sums: [half][token][matrix][row of the CTA]. */
template <int FORM, int SUBS, int T, int ROWS>
static __device__ __forceinline__ void dense_product(const dense_args &a, float *x, float *sums)
{
    typedef typename dense_word<FORM>::type word;
    enum { COPIES = FORM == RIDGE_E4M3 ? SUBS : 1, SIZE = FORM == RIDGE_BF16 ? 2 : 1 };
    const moe_args &p = a.p;
    const int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, pair = threadIdx.x / 64;
    const int64_t first = (int64_t)blockIdx.x * (PAIRS * ROWS), row = first + pair * ROWS;
    const int own = half * 128 + lane * OWN, cols = a.chunk_steps * MOE_CHAINS;
    const int mine = p.cols > own ? (int)((p.cols - own + MOE_CHAINS - 1) / MOE_CHAINS) : 0;
    const char *from[SUBS][ROWS];
    word code[DEPTH][SUBS][ROWS];
    float chain[SUBS][ROWS][T][OWN] = {};

#pragma unroll
    for (int s = 0; s < SUBS; s++)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            from[s][r] = p.weight[s].data + (min(row + r, p.rows - 1) * p.cols + own) * SIZE;
    if (!p.weights_const)
        ptx_grid_dependency_wait();
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
#pragma unroll
        for (int s = 0; s < SUBS; s++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (d < mine)
                    dense_load(from[s][r] + d * (MOE_CHAINS * SIZE), &code[d][s][r]);
    if (p.weights_const)
        ptx_grid_dependency_wait();
    for (int begin = 0; begin < a.steps; begin += a.chunk_steps) {
        if (begin)
            __syncthreads(); /* x has been read before it is overwritten */
        dense_stage<FORM, SUBS, T>(a, first, (int64_t)begin * MOE_CHAINS, x);
        __syncthreads(); /* x is written before it is read */
#pragma unroll 1
        for (int base = 0; base < a.chunk_steps && begin + base < mine; base += DEPTH)
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const int step = begin + base + d;
                float w[SUBS][ROWS][OWN];

                if (step >= mine)
                    continue;
#pragma unroll
                for (int s = 0; s < SUBS; s++)
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        dense_unpack(code[d][s][r], w[s][r]);
                        if (step + DEPTH < mine)
                            dense_load(from[s][r] + (int64_t)(step + DEPTH) * (MOE_CHAINS * SIZE), &code[d][s][r]);
                    }
#pragma unroll
                for (int t = 0; t < T; t++)
#pragma unroll
                    for (int s = 0; s < SUBS; s++) {
                        const float4 v =
                            *(const float4 *)(x + ((s % COPIES) * T + t) * cols + (base + d) * MOE_CHAINS + own);
                        const float four[OWN] = {v.x, v.y, v.z, v.w};

#pragma unroll
                        for (int r = 0; r < ROWS; r++)
#pragma unroll
                            for (int i = 0; i < OWN; i++)
                                chain[s][r][t][i] = __fmaf_rn(w[s][r][i], four[i], chain[s][r][t][i]);
                    }
            }
    }
#pragma unroll
    for (int t = 0; t < T; t++)
#pragma unroll
        for (int s = 0; s < SUBS; s++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float *v = chain[s][r][t];
                float y = (v[0] + v[1]) + (v[2] + v[3]);

#pragma unroll
                for (int far = 1; far < 32; far *= 2)
                    y += __shfl_xor_sync(0xffffffffu, y, far);
                if (lane == 0)
                    sums[((half * T + t) * SUBS + s) * (PAIRS * ROWS) + pair * ROWS + r] = y;
            }
    __syncthreads(); /* the sums are written before they are read */
}

template <int FORM, int SUBS, int T, int ROWS>
static __global__ void __launch_bounds__(THREADS) moe_dense(const __grid_constant__ dense_args a)
{
    enum { CTA_ROWS = PAIRS * ROWS };
    extern __shared__ __align__(16) char memory[];
    __shared__ float sums[2 * T * SUBS * CTA_ROWS];
    const moe_args &p = a.p;

    ptx_launch_dependents();
    dense_product<FORM, SUBS, T, ROWS>(a, (float *)memory, sums);
    for (int i = threadIdx.x; i < a.count * CTA_ROWS; i += THREADS) {
        const int t = i / CTA_ROWS, r = i % CTA_ROWS, token = a.first + t;
        const int64_t row = (int64_t)blockIdx.x * CTA_ROWS + r;
        const bool known = p.ids[token * p.ids_stride] == 0;
        float y[SUBS];

        if (row >= p.rows)
            continue;
#pragma unroll
        for (int s = 0; s < SUBS; s++)
            y[s] = moe_bias(p.weight[s], 0, row,
                            sums[(t * SUBS + s) * CTA_ROWS + r] + sums[((T + t) * SUBS + s) * CTA_ROWS + r]);
        if (SUBS == 2)
            moe_store(p, token * p.out_stride + row, known ? moe_swiglu(p.act, y[0], y[SUBS - 1], p.swiglu) : 0.0f);
        else
            moe_store_sum(p, token, row, known ? __fmaf_rn(p.weights[token * p.weights_stride], y[0], 0.0f) : 0.0f);
    }
}

/* ------------------------------------------------------------------------------------------------------------ host */

enum { WIDTHS = 4 }; /* 1, 2, 4 and, of down in e4m3, 8 tokens: elsewhere registers would spill */

#define FEW(form, subs, rows)                                                                   \
    (const void *)moe_dense<form, subs, 1, rows>, (const void *)moe_dense<form, subs, 2, rows>, \
        (const void *)moe_dense<form, subs, 4, rows>
#define EIGHT(rows) (const void *)moe_dense<RIDGE_E4M3, 1, 8, rows>

/* By form, down, many rows, tokens. */
static const void *const functions[2][2][2][WIDTHS] = {
    {{{FEW(RIDGE_BF16, 2, 1)}, {FEW(RIDGE_BF16, 2, 2)}}, {{FEW(RIDGE_BF16, 1, 1)}, {FEW(RIDGE_BF16, 1, 4)}}},
    {{{FEW(RIDGE_E4M3, 2, 1)}, {FEW(RIDGE_E4M3, 2, 2)}},
     {{FEW(RIDGE_E4M3, 1, 1), EIGHT(1)}, {FEW(RIDGE_E4M3, 1, 4), EIGHT(4)}}}};

/* Tokens of a launch. */
static int most_tokens(int e4m3, int down)
{
    return e4m3 && down ? 8 : 4;
}

static ridge_status prepare(const ridge_device *device)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < 8 && !status; i++)
        status = host_prepare(device, functions[i / 4][i / 2 % 2][i % 2], i / 2 == 3 ? WIDTHS : WIDTHS - 1,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, X_BYTES, "moe_down: loading kernels");
    return status;
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                           size_t, void *stream)
{
    ridge_status status = RIDGE_OK;
    dense_args a = {};
    int down, few, rows, copies;

    a.p = moe_args_of(&bound->call);
    down = a.p.down;
    /* where a CTA's rows would leave multiprocessors with less than two CTAs, it has fewer */
    few = a.p.rows < 2 * (int64_t)device->units * PAIRS * (down ? 4 : 2);
    rows = PAIRS * (few ? 1 : down ? 4 : 2);
    copies = a.p.form == RIDGE_E4M3 && !down ? 2 : 1;
    a.steps = (int)ridge_ceil_div(a.p.cols, MOE_CHAINS);
    for (a.first = 0; a.first < a.p.tokens && a.p.rows && !status; a.first += a.count) {
        int width = 0, most;

        a.count = (int)ridge_min(a.p.tokens - a.first, most_tokens(a.p.form == RIDGE_E4M3, down));
        while (1 << width < a.count)
            width++;
        most = X_BYTES / (copies * MOE_CHAINS * 4 << width) / CHUNK_STEPS * CHUNK_STEPS;
        a.chunk_steps = (int)ridge_min(most, ridge_round_up(a.steps, CHUNK_STEPS));
        status = host_launch_shared(device, kernel->name, functions[a.p.form == RIDGE_E4M3][down][!few][width],
                                    dim3((unsigned)ridge_ceil_div(a.p.rows, rows)), THREADS,
                                    (size_t)(a.chunk_steps * MOE_CHAINS * 4 * copies) << width, &a, stream);
    }
    return status;
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (problem->dtype[2] != RIDGE_BF16 && problem->dtype[2] != RIDGE_E4M3)
        return "weights are not bf16 or e4m3";
    if (problem->dim[3] != 1 || problem->dim[4] != 1)
        return "more than one expert or slot";
    if (problem->op == RIDGE_MOE_GATE_UP_SWIGLU && problem->dtype[RIDGE_MOE_GATE_UP_SWIGLU_OUT] == RIDGE_I8)
        return "out is codes";
    if (problem->align < 4 || problem->dim[1] % 32)
        return "needs rows that begin at multiples of 16 bytes";
    return problem->dim[1] > 1 << 30 || problem->dim[2] > 1 << 30 ? "more than 2^30 rows or columns" : NULL;
}

/* A launch, and the weights at the rate of a copy, or at that of fma: for eight tokens. */
static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double weights = (double)problem->dim[1] * (double)problem->dim[2] * (problem->op == RIDGE_MOE_DOWN ? 1 : 2) *
                           1e-3 / device->copy_gbps;
    const double size = problem->dtype[2] == RIDGE_BF16 ? 2 : 1, tokens = (double)problem->dim[0];

    return 3 + weights * (size * (double)ridge_ceil_div(problem->dim[0],
                                                        most_tokens(size == 1, problem->op == RIDGE_MOE_DOWN)) +
                          0.12 * tokens);
}

#define ROW(op_name, op_id)                                                                                         \
    {                                                                                                               \
        "cuda." op_name ".dense", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, NULL, \
            cost, launch                                                                                            \
    }

static const ridge_kernel rows[] = {ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
                                    ROW("moe_down", RIDGE_MOE_DOWN)};

extern "C" const ridge_kernel_list ridge_cuda_moe_dense = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
