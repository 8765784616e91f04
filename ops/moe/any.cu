/* any.cu: moe_gate_up_swiglu and moe_down on any GPU, with every form of weights and operands of any alignment.
 *
 * A warp computes 4 rows of one expert for one token. Of floats, lane i has the chains 8 i .. 8 i + 7 of each row
 * (products.h), so that a warp reads 256 consecutive columns of a row; of codes eight lanes own a row, one lane each
 * partition of src/math/q8_0.h. A block of gate_up has 32 rows of one slot; one of down has 4 rows of a token, whose
 * slots are shared out over the warps and added in their order at the end. What an expert's tokens share is read once
 * from memory, and from L2 by each. */
#include "args.cuh"
#include "cuda/mma.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, ROWS = 4 };

typedef struct any_args {
    moe_args p;
    int vector; /* x and weights begin at multiples of 16 bytes */
} any_args;

/* ------------------------------------------------------------------------------------------------------------ codes */

/* 32 products of codes, from any address. */
static __device__ __forceinline__ int dot32(const int8_t *w, const int8_t *x)
{
    int dot = 0;

    if (((uintptr_t)w | (uintptr_t)x) % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            dot = __dp4a(((const int *)w)[i], ((const int *)x)[i], dot);
    } else {
#pragma unroll 4
        for (int i = 0; i < 32; i++)
            dot += w[i] * x[i];
    }
    return dot;
}

/* Row `row` of expert e: all eight lanes of it get the result. */
static __device__ __forceinline__ float dot_codes(const moe_args &p, const moe_weight &w, int e, int64_t row,
                                                  const int8_t *x, const float *xs)
{
    const int64_t blocks = p.cols / 32;
    const int8_t *codes = (const int8_t *)w.data + e * w.stride + row * p.cols;
    const uint16_t *scales = (const uint16_t *)(w.scales + e * w.scales_stride) + row * blocks;
    float acc = 0.0f;

    for (int64_t b = threadIdx.x % RIDGE_Q8_0_PARTS * RIDGE_Q8_0_RUN; b < blocks;
         b += RIDGE_Q8_0_PARTS * RIDGE_Q8_0_RUN)
#pragma unroll
        for (int i = 0; i < RIDGE_Q8_0_RUN; i++)
            if (b + i < blocks)
                acc = ridge_q8_0_step(acc, ptx_f32_from_f16(scales[b + i]), xs[b + i],
                                      dot32(codes + 32 * (b + i), x + 32 * (b + i)));
#pragma unroll
    for (int s = 1; s < RIDGE_Q8_0_PARTS; s *= 2)
        acc += __shfl_xor_sync(0xffffffffu, acc, s);
    return acc;
}

/* ----------------------------------------------------------------------------------------------------------- floats */

/* 8 weights. */
template <int FORM> static __device__ __forceinline__ void load_weights(const char *from, bool vector, float *v)
{
    if (FORM == RIDGE_F32 && vector) {
        num_unpack<RIDGE_F32>(ptx_load_stream(from), v);
        num_unpack<RIDGE_F32>(ptx_load_stream(from + 16), v + 4);
    } else if (FORM == RIDGE_F32) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = num_load<RIDGE_F32>(from, i);
    } else if (FORM == RIDGE_BF16 && vector) {
        num_unpack<RIDGE_BF16>(ptx_load_stream(from), v);
    } else if (FORM == RIDGE_BF16) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = num_load<RIDGE_BF16>(from, i);
    } else if (vector) {
        const uint2 w = ptx_load8(from);

        moe_unpack_e4m3(w.x, v);
        moe_unpack_e4m3(w.y, v + 4);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = moe_from_e4m3((uint8_t)from[i]);
    }
}

/* scale: of e4m3 (CODES). */
template <int CODES>
static __device__ __forceinline__ void load_x(const moe_args &p, int64_t at, const float *scale, bool vector, float *v)
{
    const char *from = p.x + at * (CODES ? 1 : p.x_bf16 ? 2 : 4);

    if (CODES) {
        load_weights<RIDGE_E4M3>(from, vector, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __fmul_rn(v[i], *scale);
    } else if (vector && p.x_bf16) {
        num_unpack<RIDGE_BF16>(*(const uint4 *)from, v);
    } else if (vector) {
        num_unpack<RIDGE_F32>(((const uint4 *)from)[0], v);
        num_unpack<RIDGE_F32>(((const uint4 *)from)[1], v + 4);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = p.x_bf16 ? num_load<RIDGE_BF16>(from, i) : num_load<RIDGE_F32>(from, i);
    }
}

/* Rows [row, row + 4) of expert e, the last one for those beyond it, times the x at `at`: all lanes get the results. */
template <int FORM, int CODES>
static __device__ __forceinline__ void dot_floats(const any_args &a, const moe_weight &w, int e, int64_t row,
                                                  int64_t at, const float *xs, float *y)
{
    const moe_args &p = a.p;
    const int size = FORM == RIDGE_F32 ? 4 : FORM == RIDGE_BF16 ? 2 : 1;
    const int64_t last = p.rows - 1 - row, blocks = (p.cols + 127) / 128;
    const char *codes = w.data + e * w.stride + row * p.cols * size;
    const float *scales = (const float *)(w.scales + e * w.scales_stride);
    float chain[ROWS][8] = {};

#pragma unroll(FORM == RIDGE_F32 || CODES ? 1 : 2) /* or registers spill on sm_120 and sm_80 */
    for (int64_t c = threadIdx.x % 32 * 8; c < p.cols; c += MOE_CHAINS) {
        float x[8];

        load_x<CODES>(p, at + c, CODES ? xs + c / 128 * p.x_block : NULL, a.vector, x);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t own = r < last ? r : last;
            const float scale = FORM == RIDGE_E4M3 ? scales[(row + own) / 128 * blocks + c / 128] : 1.0f;
            float v[8];

            load_weights<FORM>(codes + (own * p.cols + c) * size, a.vector, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                chain[r][i] = __fmaf_rn(v[i], FORM == RIDGE_E4M3 ? __fmul_rn(x[i], scale) : x[i], chain[r][i]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float *v = chain[r];

        y[r] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
#pragma unroll
        for (int s = 1; s < 32; s *= 2)
            y[r] += __shfl_xor_sync(0xffffffffu, y[r], s);
    }
}

/* Rows [row, row + 4): the result of row + lane % 4, with the bias, for lanes 0 to 3. */
template <int FORM, int CODES>
static __device__ __forceinline__ float products(const any_args &a, const moe_weight &w, int e, int64_t row, int token,
                                                 int slot)
{
    const moe_args &p = a.p;
    const int lane = threadIdx.x % 32;
    const int64_t at = token * p.x_stride + slot * p.x_slot, own = min(row + lane % ROWS, p.rows - 1);
    float y[ROWS], mine;

    if (FORM == RIDGE_I8) {
        mine = dot_codes(p, w, e, min(row + lane / RIDGE_Q8_0_PARTS, p.rows - 1), (const int8_t *)p.x + at,
                         p.x_scales + token * p.x_ld + slot * p.x_slot_ld);
        mine = __shfl_sync(0xffffffffu, mine, lane % ROWS * RIDGE_Q8_0_PARTS);
    } else {
        dot_floats<FORM, CODES>(a, w, e, row, at, CODES ? p.x_scales + token * p.x_ld + slot * p.x_slot_ld : NULL, y);
        mine = lane % ROWS == 0 ? y[0] : lane % ROWS == 1 ? y[1] : lane % ROWS == 2 ? y[2] : y[3];
    }
    return moe_bias(w, e, own, mine);
}

/* ---------------------------------------------------------------------------------------------------------- kernels */

/* Block (x, y): rows [32 x, 32 x + 32) of token y / slots and slot y % slots. */
template <int FORM, int CODES>
static __global__ void __launch_bounds__(THREADS) moe_any_gate_up(const __grid_constant__ any_args a)
{
    __shared__ float shared[WARPS * ROWS];
    const moe_args &p = a.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int token = (int)blockIdx.y / p.slots, slot = (int)blockIdx.y % p.slots;
    const int64_t first = (int64_t)blockIdx.x * (WARPS * ROWS), row = first + warp * ROWS;
    float y = 0.0f;
    bool known;
    int e;

    ptx_grid_dependency_wait();
    ptx_launch_dependents();
    e = p.ids[token * p.ids_stride + slot];
    known = e >= 0 && e < p.experts;
    if (known && row < p.rows) {
        const float gate = products<FORM, CODES>(a, p.weight[0], e, row, token, slot);

        y = moe_swiglu(p.act, gate, products<FORM, CODES>(a, p.weight[1], e, row, token, slot), p.swiglu);
    }
    if (lane < ROWS)
        shared[warp * ROWS + lane] = y;
    __syncthreads(); /* the results are written before one warp reads them */
    if (warp == 0)
        moe_store_slot(p, token, slot, first, shared[lane]);
}

/* Block (x, y): rows [4 x, 4 x + 4) of token y. */
template <int FORM, int CODES>
static __global__ void __launch_bounds__(THREADS) moe_any_down(const __grid_constant__ any_args a)
{
    __shared__ float shared[RIDGE_MOE_MAX_SLOTS][ROWS];
    const moe_args &p = a.p;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, token = (int)blockIdx.y;
    const int64_t row = (int64_t)blockIdx.x * ROWS;
    float sum = 0.0f;

    ptx_launch_dependents();
    ptx_grid_dependency_wait();
    for (int slot = warp; slot < p.slots; slot += WARPS) {
        const int e = p.ids[token * p.ids_stride + slot];
        const float y = e >= 0 && e < p.experts ? products<FORM, CODES>(a, p.weight[0], e, row, token, slot) : 0.0f;

        if (lane < ROWS)
            shared[slot][lane] = y;
    }
    __syncthreads(); /* the results are written before four threads read them */
    if (threadIdx.x >= ROWS || row + threadIdx.x >= p.rows)
        return;
    for (int slot = 0; slot < p.slots; slot++) {
        const int e = p.ids[token * p.ids_stride + slot];

        if (e >= 0 && e < p.experts)
            sum = __fmaf_rn(p.weights[token * p.weights_stride + slot], shared[slot][lane], sum);
    }
    moe_store_sum<0>(p, token, row + lane, sum);
}

/* ------------------------------------------------------------------------------------------------------------ host */

static const void *const functions[10] = {
    (const void *)moe_any_gate_up<RIDGE_I8, 0>,   (const void *)moe_any_gate_up<RIDGE_BF16, 0>,
    (const void *)moe_any_gate_up<RIDGE_E4M3, 0>, (const void *)moe_any_gate_up<RIDGE_F32, 0>,
    (const void *)moe_any_gate_up<RIDGE_E4M3, 1>, (const void *)moe_any_down<RIDGE_I8, 0>,
    (const void *)moe_any_down<RIDGE_BF16, 0>,    (const void *)moe_any_down<RIDGE_E4M3, 0>,
    (const void *)moe_any_down<RIDGE_F32, 0>,     (const void *)moe_any_down<RIDGE_E4M3, 1>};

static ridge_status prepare(const ridge_device *device)
{
    return host_load(device, functions, 10, "moe: loading kernels");
}

ridge_status moe_launch_any(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound, void *,
                            size_t, void *stream)
{
    any_args a = {};
    int64_t blocks;
    int form;

    a.p = moe_args_of(&bound->call);
    a.vector = bound->problem.align >= 4;
    form = a.p.form == RIDGE_I8 ? 0 : a.p.form == RIDGE_BF16 ? 1 : a.p.form == RIDGE_F32 ? 3 : a.p.x_fp8 ? 4 : 2;
    blocks = ridge_ceil_div(a.p.rows, a.p.down ? ROWS : WARPS * ROWS);
    if (a.p.tokens == 0 || a.p.rows == 0)
        return RIDGE_OK;
    return host_launch(device, kernel->name, functions[5 * a.p.down + form],
                       dim3((unsigned)blocks, (unsigned)(a.p.tokens * (a.p.down ? 1 : a.p.slots))), THREADS, &a,
                       stream);
}

static const char *why_not(const ridge_device *, const ridge_kernel *, const ridge_problem *problem)
{
    if (moe_is_tiles(problem->dtype[2]))
        return "weights are in a block format";
    return problem->dim[2] > 0x7fffffff ? "more than 2^31 - 1 rows" : NULL;
}

static double cost(const ridge_device *device, const ridge_kernel *, const ridge_problem *problem)
{
    const double size = moe_weight_size((int)problem->dtype[2]), products = problem->op == RIDGE_MOE_DOWN ? 1 : 2;

    return 4 + (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * (double)problem->dim[4] *
                   products * size * 1.8e-3 / device->copy_gbps;
}

#define ROW(op_name, op_id)                                                                                       \
    {                                                                                                             \
        "cuda." op_name ".any", op_id, RIDGE_ARCH_SM80, RIDGE_ARCH_CUDA_LAST, MOE_CONTRACT, 0, {}, why_not, NULL, \
            cost, moe_launch_any                                                                                  \
    }

static const ridge_kernel rows[] = {
    ROW("moe_gate_up_swiglu", RIDGE_MOE_GATE_UP_SWIGLU),
    ROW("moe_down", RIDGE_MOE_DOWN),
};

extern "C" const ridge_kernel_list ridge_cuda_moe_any = {rows, (int)(sizeof rows / sizeof rows[0]), prepare};
