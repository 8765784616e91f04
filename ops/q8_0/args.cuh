/* args.cuh: what the files of Q8_0 decode on CUDA share: the arguments of the four products, what happens to a
 * finished sum (the epilogues), and the host side that fills the arguments and quantises activations first. */
#ifndef RIDGE_Q8_0_DECODE_CUH
#define RIDGE_Q8_0_DECODE_CUH

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "src/math/q8_0.h"
#include "src/math/swiglu.h"

/* Blocks of one turn through the partitions. */
enum { Q8_0_TURN = RIDGE_Q8_0_PARTS * RIDGE_Q8_0_RUN };

/* A weight matrix of either form: block b of row r has its codes at codes + r * stride + b * step and its f16 scale at
 * scales + r * scale_stride + b * scale_step, all in bytes. */
typedef struct q8_0_weight {
    const uint8_t *codes, *scales;
    int64_t rows, stride, step, scale_stride, scale_step;
} q8_0_weight;

typedef struct q8_0_args {
    q8_0_weight weight[2]; /* the second: of pair and gate_up_swiglu, else rows = 0 */
    const int8_t *x;       /* codes; strides in elements from here on */
    const float *x_scales;
    int64_t x_stride, x_ld;
    int64_t blocks;
    int tokens, op, settled;
    void *out[2];
    int64_t out_stride[2];
    int bf16;
    /* gate_up_swiglu */
    unsigned act;
    const float *token_scale;
    ridge_swiglu_options swiglu;
    /* hc_expand */
    int n_hc;
    const float *post, *comb, *res, *add;
    float *y;
    int64_t post_ld, comb_ld, res_stride, add_stride, y_stride;
} q8_0_args;

/* ------------------------------------------------------------------------------------------------------- activations
 */

/* 8 of 32 activations as codes; the other 24 are with the three neighbours of an aligned group of four lanes. */
static __device__ __forceinline__ uint2 q8_0_quantise8(const float *x, float *scale)
{
    const uint32_t four = 0xfu << (threadIdx.x % 32 & 28);
    uint32_t amax = 0, word[2] = {0, 0};
    float r;

#pragma unroll
    for (int i = 0; i < 8; i++)
        amax = max(amax, ridge_magnitude(x[i]));
    amax = max(amax, __shfl_xor_sync(four, amax, 1));
    amax = max(amax, __shfl_xor_sync(four, amax, 2));
    *scale = ridge_q8_0_x_scale(amax, &r);
#pragma unroll
    for (int i = 0; i < 8; i++)
        word[i / 4] |= (uint32_t)(ridge_q8_0_x_code(x[i], r) & 0xff) << (i % 4 * 8);
    return make_uint2(word[0], word[1]);
}

/* 8 floats of a row that begins at a multiple of 16 bytes. */
static __device__ __forceinline__ void q8_0_load8(const char *row, int64_t column, bool bf16, float *x)
{
    if (bf16) {
        num_unpack<RIDGE_BF16>(ptx_load_once(row + column * 2), x);
    } else {
        num_unpack<RIDGE_F32>(ptx_load_once(row + column * 4), x);
        num_unpack<RIDGE_F32>(ptx_load_once(row + column * 4 + 16), x + 4);
    }
}

/* -------------------------------------------------------------------------------------------------------- epilogues */

static __device__ __forceinline__ void q8_0_store(const q8_0_args &p, int which, int64_t row, int token, float y)
{
    const int64_t at = token * p.out_stride[which] + row;

    if (p.bf16)
        num_store<RIDGE_BF16>(p.out[which], at, y);
    else
        num_store<RIDGE_F32>(p.out[which], at, y);
}

static __device__ __noinline__ float q8_0_swiglu(unsigned act, float gate, float up, float scale,
                                                 ridge_swiglu_options o)
{
    const float a = ridge_swiglu_gate(gate, o), b = ridge_swiglu_up(up, o);
    float h;

    switch (act) { /* constants in the callee: one branch each */
    case RIDGE_GELU_TANH:
        h = ridge_act_fwd(RIDGE_GELU_TANH, a, o.alpha);
        break;
    case RIDGE_GELU_ERF:
        h = ridge_act_fwd(RIDGE_GELU_ERF, a, o.alpha);
        break;
    case RIDGE_RELU2:
        h = ridge_act_fwd(RIDGE_RELU2, a, o.alpha);
        break;
    default:
        h = ridge_act_fwd(RIDGE_SILU, a, o.alpha);
        break;
    }
    return ridge_swiglu_scale(h * b, scale, o);
}

/* Row `row` of gate_up_swiglu. */
static __device__ __forceinline__ void q8_0_finish_gate_up(const q8_0_args &p, int64_t row, int token, float gate,
                                                           float up)
{
    q8_0_store(p, 0, row, token, q8_0_swiglu(p.act, gate, up, p.token_scale ? p.token_scale[token] : 1.0f, p.swiglu));
}

/* What HC expand reads for one element with the usual four streams. */
typedef struct q8_0_streams {
    float res[4], post[4], comb[16], add;
} q8_0_streams;

/* The loads of an element that need not wait for its sum. */
static __device__ __forceinline__ void q8_0_fetch(const q8_0_args &p, int64_t row, int token, q8_0_streams *s)
{
    const float *post = p.post + token * p.post_ld, *comb = p.comb + token * p.comb_ld;

    if (p.op != RIDGE_Q8_0_MATMUL_HC_EXPAND || p.n_hc != 4)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s->res[i] = p.res[token * p.res_stride + i * p.weight[0].rows + row];
        s->post[i] = post[i];
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        s->comb[i] = comb[i];
    s->add = p.add ? p.add[token * p.add_stride + row] : 0.0f;
}

/* s: what q8_0_fetch loaded; NULL for kernels without the registers for it. */
static __device__ __forceinline__ void q8_0_finish_hc(const q8_0_args &p, int64_t row, int token, float y,
                                                      const q8_0_streams *s)
{
    const float *post = p.post + token * p.post_ld, *comb = p.comb + token * p.comb_ld;
    const int64_t high = p.weight[0].rows;
    const int n = p.n_hc;
    float v;

    if (p.y)
        num_store<RIDGE_F32>(p.y, token * p.y_stride + row, y);
    if (s && n == 4) {
        v = p.add ? y + s->add : y;
#pragma unroll
        for (int dst = 0; dst < 4; dst++) {
            float acc = ridge_hc_start(v, s->post[dst]);

#pragma unroll
            for (int src = 0; src < 4; src++)
                acc = ridge_hc_step(acc, s->comb[dst + 4 * src], s->res[src]);
            num_store<RIDGE_F32>(p.out[0], token * p.out_stride[0] + dst * high + row, acc);
        }
        return;
    }
    v = p.add ? y + p.add[token * p.add_stride + row] : y;
    for (int dst = 0; dst < n; dst++) {
        float acc = ridge_hc_start(v, post[dst]);

#pragma unroll 2 /* code that is seldom needed is in the way of what is */
        for (int src = 0; src < n; src++)
            acc = ridge_hc_step(acc, comb[dst + n * src], p.res[token * p.res_stride + src * high + row]);
        num_store<RIDGE_F32>(p.out[0], token * p.out_stride[0] + dst * high + row, acc);
    }
}

/* Row `row` of weight `which`: everything but gate_up_swiglu. */
static __device__ __forceinline__ void q8_0_finish(const q8_0_args &p, int which, int64_t row, int token, float y,
                                                   const q8_0_streams *streams)
{
    if (p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND)
        q8_0_finish_hc(p, row, token, y, streams);
    else
        q8_0_store(p, which, row, token, y);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define Q8_0_CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)

/* matmul_dp4a.cu: the arguments of a validated call. Activations that are not quantised yet are quantised into the
 * workspace by a launch of its own in front, unless the row does that itself (quantise is false). */
ridge_status q8_0_begin(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call, bool quantise,
                        void *workspace, void *stream, q8_0_args *p);
/* The bytes of that. */
size_t q8_0_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
/* The products of any call, for rows that find their operands not aligned only when they see the pointers. */
ridge_status q8_0_launch_portable(const ridge_device *device, const char *name, q8_0_args *p, void *stream);

/* Activations that a row quantises itself, once a block: few enough that it takes less than a launch. */
enum { Q8_0_INSIDE_MOST = 8192 };

static inline bool q8_0_inside(const ridge_problem *problem)
{
    return problem->dtype[0] != RIDGE_I8 && problem->dim[0] * problem->dim[1] <= Q8_0_INSIDE_MOST;
}

/* The sum of an element's partitions, which lie PLANE floats apart. */
template <int PLANE> static __device__ __forceinline__ float q8_0_sum_parts(const float *from)
{
    float part[RIDGE_Q8_0_PARTS];

#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_PARTS; i++)
        part[i] = from[i * PLANE];
    return ridge_q8_0_tree(part);
}

/* Bytes of weights. */
static inline double q8_0_bytes(const ridge_problem *problem)
{
    double rows = (double)problem->dim[2];

    if (problem->op == RIDGE_Q8_0_PAIR)
        rows += (double)problem->dim[3];
    if (problem->op == RIDGE_Q8_0_GATE_UP_SWIGLU)
        rows *= 2;
    return rows * (double)problem->dim[1] * (34.0 / 32.0);
}

#endif
