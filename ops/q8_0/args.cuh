/* args.cuh: what the CUDA rows of the four Q8_0 products share: their arguments, the quantisation of activations, the
 * epilogues (what happens to a finished sum), and the host half (matmul_host.cu). */
#ifndef RIDGE_Q8_0_ARGS_CUH
#define RIDGE_Q8_0_ARGS_CUH

#include "cuda/launch.cuh"
#include "cuda/num.cuh"
#include "op.h"
#include "src/math/q8_0.h"
#include "src/math/swiglu.h"
#include "src/util.h"

/* Tokens that the rows of decoding take. */
enum { Q8_0_DECODE_TOKENS = 16 };

/* Blocks of a k step: one run of every partition, 1024 columns. */
enum { Q8_0_STEP = RIDGE_Q8_0_PARTS * RIDGE_Q8_0_RUN };

/* A weight matrix, in blocks or in planes: block b of row r has its codes at codes + r * stride + b * step and its f16
 * scale at scales + r * scale_stride + b * scale_step, all in bytes. */
typedef struct q8_0_weight {
    const uint8_t *codes, *scales;
    int64_t rows, stride, step, scale_stride, scale_step;
} q8_0_weight;

typedef struct q8_0_matmul_args {
    q8_0_weight weight[2]; /* the second: of pair and gate_up_swiglu, else rows = 0 */
    const int8_t *x;       /* codes; strides in elements from here on */
    const float *x_scales;
    int64_t x_stride, x_ld;
    int64_t blocks;
    int tokens, op;
    int weights_const; /* the kernel may read weights before the primary grid has ended */
    const float *norm; /* NULL: none */
    float eps;
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
} q8_0_matmul_args;

/* Activations to quantise. */
typedef struct q8_0_rows_args {
    const char *x;
    int8_t *codes;
    float *scales;
    int64_t stride, codes_stride, scales_stride; /* bytes, elements, elements */
    int64_t scales_step;                         /* elements from a block's scale to the next one's; 0: 1 */
    int paired;                                  /* a row's scale is at q8_0_scale_place */
    int64_t rows, cols, units;                   /* units: of 256 columns, a row */
    int vector_x, vector_codes;                  /* aligned for 16-byte loads of x and 8-byte stores of codes */
} q8_0_rows_args;

/* ------------------------------------------------------------------------------------------------------ activations */

/* Quantises a block of 32 activations by an aligned group of four lanes, each of which has 8 of them: returns this
 * lane's codes, and the scale of the block. */
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

/* Where the scale of a token is in a block's scales for wgmma: of 16 tokens the four that a thread has, 2 t, 2 t + 1 of
 * the first 8 and of the second 8, are next to each other. */
static __device__ __forceinline__ int64_t q8_0_scale_place(int64_t token)
{
    return (token & ~15) | (token & 6) << 1 | (token & 8) >> 2 | (token & 1);
}

/* Loads 8 floats of a row that begins at a multiple of 16 bytes. */
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

static __device__ __forceinline__ void q8_0_store(const q8_0_matmul_args &p, int which, int64_t row, int token, float y)
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

    return ridge_swiglu_scale(ridge_act_fwd_any(act, a, o.alpha) * b, scale, o);
}

/* The epilogue of gate_up_swiglu. */
static __device__ __forceinline__ void q8_0_epilogue_gate_up(const q8_0_matmul_args &p, int64_t row, int token,
                                                             float gate, float up)
{
    q8_0_store(p, 0, row, token, q8_0_swiglu(p.act, gate, up, p.token_scale ? p.token_scale[token] : 1.0f, p.swiglu));
}

/* What HC expand reads for one element, with the usual four residual streams. */
typedef struct q8_0_hc_inputs {
    float res[4], post[4], comb[16], add;
} q8_0_hc_inputs;

/* Loads what does not depend on the element's sum, so that the loads overlap with the product. */
static __device__ __forceinline__ void q8_0_load_hc(const q8_0_matmul_args &p, int64_t row, int token,
                                                    q8_0_hc_inputs *s)
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

/* The epilogue of HC expand. s: what q8_0_load_hc loaded; NULL in kernels that lack the registers for it. */
static __device__ __forceinline__ void q8_0_epilogue_hc(const q8_0_matmul_args &p, int64_t row, int token, float y,
                                                        const q8_0_hc_inputs *s)
{
    const float *post = p.post + token * p.post_ld, *comb = p.comb + token * p.comb_ld;
    const int64_t rows = p.weight[0].rows;
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
            num_store<RIDGE_F32>(p.out[0], token * p.out_stride[0] + dst * rows + row, acc);
        }
        return;
    }
    v = p.add ? y + p.add[token * p.add_stride + row] : y;
    for (int dst = 0; dst < n; dst++) {
        float acc = ridge_hc_start(v, post[dst]);

#pragma unroll 2 /* seldom used: a smaller kernel is fetched faster */
        for (int src = 0; src < n; src++)
            acc = ridge_hc_step(acc, comb[dst + n * src], p.res[token * p.res_stride + src * rows + row]);
        num_store<RIDGE_F32>(p.out[0], token * p.out_stride[0] + dst * rows + row, acc);
    }
}

/* The same of a single stream: a product that is added to a residual. */
typedef struct q8_0_hc1_inputs {
    float res, post, comb, add;
} q8_0_hc1_inputs;

static __device__ __forceinline__ void q8_0_load_hc1(const q8_0_matmul_args &p, int64_t row, int token,
                                                     q8_0_hc1_inputs *s)
{
    s->res = p.res[token * p.res_stride + row];
    s->post = p.post[token * p.post_ld];
    s->comb = p.comb[token * p.comb_ld];
    s->add = p.add ? p.add[token * p.add_stride + row] : 0.0f;
}

static __device__ __forceinline__ void q8_0_epilogue_hc1(const q8_0_matmul_args &p, int64_t row, int token, float y,
                                                         const q8_0_hc1_inputs &s)
{
    const float v = p.add ? y + s.add : y;

    if (p.y)
        num_store<RIDGE_F32>(p.y, token * p.y_stride + row, y);
    num_store<RIDGE_F32>(p.out[0], token * p.out_stride[0] + row,
                         ridge_hc_step(ridge_hc_start(v, s.post), s.comb, s.res));
}

/* The epilogue of row `row` of weight `which`, for all ops but gate_up_swiglu. */
static __device__ __forceinline__ void q8_0_epilogue(const q8_0_matmul_args &p, int which, int64_t row, int token,
                                                     float y, const q8_0_hc_inputs *hc)
{
    if (p.op == RIDGE_Q8_0_MATMUL_HC_EXPAND)
        q8_0_epilogue_hc(p, row, token, y, hc);
    else
        q8_0_store(p, which, row, token, y);
}

/* ------------------------------------------------------------------------------------------------------------ host */

#define Q8_0_CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)

/* matmul_host.cu: the arguments of a call, without x if x is floats. */
q8_0_matmul_args q8_0_collect(const ridge_call *call);
/* If x is floats, launches a kernel that quantises x (with its norm) into the workspace, and sets x in the arguments.
 * Rows that quantise x themselves do not call it. */
ridge_status q8_0_quantise(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                           void *workspace, void *stream, q8_0_matmul_args *p);
/* The same with the scales as [blocks, tokens], so that neighbouring threads may read neighbouring tokens: x_ld becomes
 * 1 and *x_step the elements from block to block, a multiple of 16. Where x is codes, their scales are transposed.
 * paired: in the order of q8_0_scale_place. */
ridge_status q8_0_quantise_by_block(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                                    void *workspace, void *stream, bool paired, q8_0_matmul_args *p, int64_t *x_step);
/* The bytes of its workspace. */
size_t q8_0_gemm_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
/* The bytes of the workspace of q8_0_quantise. */
size_t q8_0_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
/* quantize_rows.cu: quantises p->rows x p->cols of x; the caller has set the outputs and their strides. */
ridge_status q8_0_launch_quantize(const ridge_device *device, const char *name, const ridge_operand *x,
                                  q8_0_rows_args *p, void *stream);
/* Transposes the scales x, of p->rows rows and p->cols blocks, to p->scales. */
ridge_status q8_0_launch_transpose(const ridge_device *device, const char *name, const ridge_operand *x,
                                   q8_0_rows_args *p, void *stream);
/* gemm_mma.cu: launches the row with tiles of 128 x 64, also for scales of weights that TMA cannot read. */
ridge_status q8_0_launch_gemm(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                              void *workspace, size_t bytes, void *stream);
/* matmul_dp4a.cu: launches any product, also for rows whose tables of scales turn out to be misaligned at launch: their
 * alignment is not part of a problem. */
ridge_status q8_0_launch_dp4a(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                              void *workspace, size_t bytes, void *stream);

/* Are the scales of the weights' planes aligned to `bytes`? */
static inline bool q8_0_scales_aligned(const q8_0_matmul_args *p, uintptr_t bytes)
{
    uintptr_t bits = 0;

    for (int i = 0; i < 2; i++)
        if (p->weight[i].rows)
            bits |= (uintptr_t)p->weight[i].scales | (uintptr_t)p->weight[i].scale_stride;
    return bits % bytes == 0;
}

/* Up to so many activations, every CTA quantises all of x itself: that takes less time than a launch. With a norm, and
 * by mma alone: so many columns of one token. (In the TMA rows x queues behind weights: Llama-3-8B 2528 -> 2935 us a
 * step.)
 */
enum { Q8_0_MAX_FUSED_X = 8192, Q8_0_MAX_FUSED_NORM = 2048 };

/* Weights of so many bytes are small: their products wait for latencies only (matmul_one.cu). */
static const double Q8_0_SMALL_BYTES = 2e6;

/* Bytes of a row of a bound operand. */
static inline int64_t q8_0_row_bytes(const ridge_operand *x)
{
    return x->stride * (int64_t)ridge_dtype_size(x->dtype);
}

static inline bool q8_0_has_norm(const ridge_problem *problem)
{
    const int slot = ridge_q8_0_norm_slot(problem->op);

    return slot >= 0 && problem->dtype[slot] != RIDGE_NONE;
}

static inline bool q8_0_fuses_x(const ridge_problem *problem)
{
    if (q8_0_has_norm(problem))
        return problem->dim[0] == 1 && problem->dim[1] <= Q8_0_MAX_FUSED_NORM;
    return problem->dtype[0] != RIDGE_I8 && problem->dim[0] * problem->dim[1] <= Q8_0_MAX_FUSED_X;
}

/* A product of one token's floats with constant weights: one of a step that generates text, behind other kernels. */
static inline bool q8_0_follows(const ridge_problem *problem)
{
    return problem->dim[0] == 1 && (problem->flags & RIDGE_WEIGHTS_CONST) && q8_0_fuses_x(problem);
}

/* Adds the partitions of an element, which lie PLANE floats apart. */
template <int PLANE> static __device__ __forceinline__ float q8_0_sum_parts(const float *from)
{
    float part[RIDGE_Q8_0_PARTS];

#pragma unroll
    for (int i = 0; i < RIDGE_Q8_0_PARTS; i++)
        part[i] = from[i * PLANE];
    return ridge_q8_0_tree(part);
}

/* Bytes of the weights. */
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
