/** @file ridge.h
 * LLM kernels at the roofline, in plain C. Longer than 600 lines because it is the whole kernel API: one header is what
 * a program includes and what bindings are generated from. A complete program:
 * @code
 * #include <ridge.h>
 * #include <stdio.h>
 * int main(void)
 * {
 *     float gate[8] = {2}, up[8] = {2}, out[8]; // one row of 8
 *     ridge_device *device;
 *     ridge_call call = ridge_swiglu_fwd(1, 8, RIDGE_F32, gate, up, out);
 *     if (ridge_open("cpu", &device) != RIDGE_OK || ridge_run(device, &call, NULL, 0, NULL) != RIDGE_OK)
 *         return puts(ridge_error()), 1;
 *     printf("silu(2) * 2 = %g\n", (double)out[0]);
 *     ridge_close(device);
 *     return 0;
 * }
 * @endcode
 *
 * A *builder* (ridge_swiglu_fwd) describes a call: dimensions, then the operands it requires. What is optional is set
 * in the call afterwards: operands by ridge_set, flags and options by assignment (struct ridge_call, at the end).
 * ridge_run validates the call, picks one kernel and launches it on the caller's stream. Nothing on that path
 * allocates, synchronises, reads the environment or changes the current CUDA device, and every call can be captured
 * into a CUDA graph. A device is immutable and may be used by any number of threads; two calls in flight need two
 * workspaces. The library never prints (unless RIDGE_LOG asks), aborts or exits; OpenMP's runtime, which the CPU
 * kernels use, does where the system refuses it memory or a thread.
 *
 * A call on the CPU takes OMP_NUM_THREADS threads at most, or, where that is not set, one for each processor that the
 * affinity mask and the cgroup quota allow; short calls take one. No result depends on it. A process forked after
 * ridge_open computes with one thread.
 *
 * On CUDA a call runs in the primary context of its device, the one that CUDA's runtime and PyTorch use. Whatever is
 * current in the calling thread stays current, and no context is made on another GPU. Streams and memory belong to the
 * primary context; a stream of another one is an error. After cudaDeviceReset open the device again. In a process
 * forked after CUDA had started every call is an error, as all of CUDA is. A failed call leaves nothing in the
 * runtime's last error.
 *
 * Contracts: *exact*: every kernel, on CPU and GPU, gives the C reference's bits. *stable*: the same bits in every run.
 * *batch-invariant*: a row of the result depends on its own inputs only. *close*: within the op's bound of a float64
 * reference. `docs/numerics.md` has formulas and bounds.
 *
 * Environment, read by ridge_open only: RIDGE_DEVICE (what ridge_open(NULL) opens), RIDGE_KERNEL (pins, "op=kernel"
 * separated by commas), RIDGE_TUNED (a tuning file that `ridge tune` wrote), RIDGE_LOG (1: one line per call on stderr,
 * itself a `ridge bench` command). */
#ifndef RIDGE_H
#define RIDGE_H

#include <stddef.h>
#include <stdint.h>

#define RIDGE_VERSION_MAJOR 0
#define RIDGE_VERSION_MINOR 2
#define RIDGE_VERSION_PATCH 0

#if defined(__GNUC__)
#define RIDGE_API __attribute__((visibility("default")))
#define RIDGE_CHECKED __attribute__((warn_unused_result))
#define RIDGE_NONNULL(...) __attribute__((nonnull(__VA_ARGS__)))
#else
#define RIDGE_API
#define RIDGE_CHECKED
#define RIDGE_NONNULL(...)
#endif
#ifdef __cplusplus
#if defined(__clang__) /* builders return ridge_call, which is complete at the end of this file */
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#endif
extern "C" {
#endif

typedef struct ridge_device ridge_device; /**< Immutable once opened: backend, architecture, caches, pins, tuning. */
typedef struct ridge_call ridge_call;     /**< What builders make and ridge_run runs. */

/** What a function answers. */
typedef enum ridge_status {
    RIDGE_OK = 0,
    RIDGE_ERR_ARG,         /**< Wrong on any device: null, misaligned, bad shape, mismatched dtype or option. */
    RIDGE_ERR_UNSUPPORTED, /**< Valid, but no kernel of this build runs it here; ridge_explain says why, row by row. */
    RIDGE_ERR_WORKSPACE,   /**< The workspace is too small for every kernel that could run it. */
    RIDGE_ERR_DEVICE,      /**< The driver refused, or there is no such device. */
    RIDGE_ERR_FILE,        /**< A file is malformed or cannot be read. */
    RIDGE_ERR_PEER         /**< Of ridge_dist.h only: another rank failed, or did not answer in time. */
} ridge_status;

/* ----------------------------------------------------------------------------------------------------- run a call */

/** Runs a call on `stream` (a cudaStream_t; ignored on the CPU, where the call returns when the work is done). Operands
 * and workspace must stay until then, the struct need not. `workspace` is device memory, 256-byte aligned, apart from
 * all operands, contents undefined at entry; ridge_workspace_bytes says how much. Of pointers only their numbers are
 * checked: memory of another device ends as the driver or a signal says. Errors: RIDGE_ERR_ARG, RIDGE_ERR_UNSUPPORTED,
 * RIDGE_ERR_WORKSPACE, which leave every output untouched, and RIDGE_ERR_DEVICE, after which the kernels launched
 * before the one that failed have written. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_run(const ridge_device *device, const ridge_call *call, void *workspace,
                                               size_t workspace_bytes, void *stream);

/** Calls body(data), which makes calls of ridge_run one after the other, as a step of decoding does, and returns what
 * it returns. On the CPU the threads that share the work of a call stay together in between, so that short calls cost
 * less; while they wait, they use their processors. Only the thread that called it may run calls in it; OpenMP regions
 * of body's own have one thread there. Until the next ridge_run, or until ridge_together has returned, body neither
 * reads the results nor changes or frees the operands and the workspace of its last call. It must return: no longjmp,
 * no exception, no end of the thread; a child that it forks may run calls but not return from body. On a GPU
 * ridge_together only calls body. Errors: RIDGE_ERR_ARG. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_together(const ridge_device *device, ridge_status (*body)(void *data),
                                                    void *data);

/** Makes kernels behind a join of a captured CUDA graph start early. `graph` is a cudaGraph_t (CUgraph) that the
 * program has captured and not instantiated yet; no other thread may use it meanwhile. Of several programmatic edges
 * into a kernel CUDA lets one alone start it early, and of captured ones not the one from its own stream. So the edge
 * from the node that was captured last stays, those that a path of other edges implies go, and the rest become full
 * ones: the order of the kernels and the bits of their results stay as they were. Other kernels than ridge's that start
 * early in this graph must wait (griddepcontrol.wait), as CUDA demands. Without such joins a graph stays as it is; so
 * do all graphs on GPUs before Hopper and those of a library that was built with CUDA before 12.3. Child graphs are
 * graphs of their own. A second call changes nothing. It takes host memory and time by nodes and edges: 5000 kernels
 * 4 to 10 milliseconds. Errors: RIDGE_ERR_ARG (a pointer is NULL), RIDGE_ERR_UNSUPPORTED (the CPU and models have no
 * graphs), RIDGE_ERR_DEVICE, after which the graph must be captured anew. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_order_graph(const ridge_device *device, void *graph);

/** The workspace, in bytes, of the kernel that an unlimited workspace would pick; 0 on error. A smaller one is legal
 * where another kernel can run. Errors, of ridge_pick too: as ridge_run's. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_workspace_bytes(const ridge_device *device, const ridge_call *call,
                                                           size_t *bytes);

/** The name of the kernel that ridge_run would launch with this workspace; NULL on error. The string is static. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_pick(const ridge_device *device, const ridge_call *call,
                                                size_t workspace_bytes, const char **kernel);

/** Every kernel of the op for the device's backend with its verdict, a line each, into text (terminated if size > 0);
 * *length (may be NULL) receives the full length. RIDGE_OK also where no kernel can run it. Errors: RIDGE_ERR_ARG. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_explain(const ridge_device *device, const ridge_call *call, char *text,
                                                   size_t size, size_t *length);

/* --------------------------------------------------------------------------------------------------------- devices */

/** Opens a device. `spec` is one of
 * - NULL or "": RIDGE_DEVICE if it is set, else "auto"
 * - "auto": the first CUDA device, else the CPU
 * - "cpu": the CPU at its best instruction set; "cpu:avx512", "cpu:avx2" and "cpu:c" restrict it
 * - "cuda", "cuda:1"; "cuda:1/124": kernels that stay on their multiprocessors take 124 at most
 * - "model:h100-sxm", "model:sm100": answers ridge_explain, ridge_pick and ridge_workspace_bytes as that chip or
 *   architecture would and launches nothing (any chip that `ridge info` lists; "model:h100-sxm/124" too)
 *
 * Errors: RIDGE_ERR_ARG (unknown spec, unknown pin), RIDGE_ERR_DEVICE (no such device or no such instruction set; no
 * memory), RIDGE_ERR_FILE (the tuning file; the text gives the line). On error *device is NULL. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_open(const char *spec, ridge_device **device);

/** Closes a device; NULL is allowed. No function may be using it. */
RIDGE_API void ridge_close(ridge_device *device);

/** What ridge_device_query tells. */
typedef struct ridge_device_info {
    uint32_t struct_size; /**< set by the caller to sizeof(ridge_device_info) */
    int32_t ordinal;      /**< CUDA ordinal; -1 for the CPU and for models */
    char backend[16];     /**< "cpu", "cuda"; of a model, that of its architecture */
    char arch[16];        /**< "c", "avx2", "avx512", "sm80", ... */
    char name[128];       /**< as the driver or the processor says */
    int32_t units;        /**< streaming multiprocessors, or the most threads of a call */
    int32_t tuned_rows;   /**< lines of tuning that apply to this device */
    int64_t l2_bytes;     /**< last-level cache; 0 if unknown */
    int64_t memory_bytes; /**< of the device, in all; 0 if unknown, as for models */
} ridge_device_info;

/** Describes a device. Errors: RIDGE_ERR_ARG (a pointer is NULL, struct_size is not this library's). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_device_query(const ridge_device *device, ridge_device_info *info);

/* ---------------------------------------------------------------------------------------------------------- errors */

/** This thread's last message: op, operand, value. Empty before the first error. Valid until this thread's next one. */
RIDGE_API const char *ridge_error(void);

/** "RIDGE_OK", "RIDGE_ERR_ARG", ...; "RIDGE_ERR_UNKNOWN" for any other number. */
RIDGE_API const char *ridge_status_name(ridge_status status);

/** The library's version, "0.2.0". */
RIDGE_API const char *ridge_version(void);

/* --------------------------------------------------------------------------------------------------------- tensors */

/* clang-format off */
/* Below, a line of an enumeration holds the slots that belong together. */

/** Element types: RIDGE_NONE marks an absent operand, E4M3 and E5M2 are those of OCP (E4M3FN). From Q4_0 on they name
 * formats of GGUF blocks, whose matrices are tiles of 16-byte elements (block_repack). */
typedef enum ridge_dtype {
    RIDGE_NONE = 0, RIDGE_F32, RIDGE_F16, RIDGE_BF16, RIDGE_E4M3, RIDGE_E5M2, RIDGE_F64,
    RIDGE_I8, RIDGE_U8, RIDGE_I32, RIDGE_I64,
    RIDGE_Q4_0, RIDGE_Q4_1, RIDGE_Q8_0, RIDGE_MXFP4, RIDGE_Q2_K, RIDGE_Q4_K, RIDGE_Q5_K, RIDGE_Q6_K, RIDGE_IQ2_XXS,
    RIDGE_DTYPES
} ridge_dtype;

/** What shares a scale in a matrix [rows, cols] of codes, and the table's shape; value = code * scale. */
typedef enum ridge_scaling {
    RIDGE_SCALING_NONE = 0, /**< no scales */
    RIDGE_SCALING_TENSOR,   /**< [1]: the whole matrix */
    RIDGE_SCALING_ROW,      /**< [rows]: a row */
    RIDGE_SCALING_ROW128,   /**< [ceil(cols/128)][ld >= rows]: 128 columns of a row */
    RIDGE_SCALING_BLK128,   /**< [ceil(rows/128)][ceil(cols/128)]: a block of 128 x 128 */
    RIDGE_SCALING_ROW32,    /**< [rows][cols/32]: 32 columns of a row (Q8_0) */
    RIDGE_SCALING_ROW128_T  /**< [rows][ld >= ceil(cols/128)]: as ROW128, the table transposed (gemm_fp8 alone) */
} ridge_scaling;

/** A matrix and, where it holds codes, its scales. Zero-initialised: absent. The pointers are not const because a
 * tensor may be an output; an op writes to its outputs only. */
typedef struct ridge_tensor {
    void *data;            /**< a multiple of the element's size; NULL is fine where there are no elements */
    ridge_dtype dtype;     /**< RIDGE_NONE: the tensor is absent */
    int64_t stride;        /**< from row to row, in elements, below 2^40 bytes; 0 = packed: the row's own length */
    void *scale;           /**< f32 (f16 for Q8_0 weights) */
    ridge_scaling scaling; /**< of `scale` */
    int64_t scale_stride;  /**< of a table with rows; 0 = packed */
} ridge_tensor;

/** A packed matrix without scales. */
RIDGE_API ridge_tensor ridge_matrix(const void *data, ridge_dtype dtype);

/** A packed matrix of codes with its packed scales. */
RIDGE_API ridge_tensor ridge_scaled(const void *data, ridge_dtype dtype, const void *scale, ridge_scaling scaling);

/** Sets operand `slot` of a call (the enumeration at each builder); `stride` as in ridge_tensor, 0 for vectors. A NULL
 * pointer makes an optional operand absent. */
RIDGE_API RIDGE_NONNULL(1) void ridge_set(ridge_call *call, int slot, ridge_dtype dtype, const void *data,
                                          int64_t stride);

/* Flags of every op. */
#define RIDGE_STRICT 0x1u /**< only batch-invariant kernels (else stable ones); gemm_fp8: its bound on every input */
#define RIDGE_WEIGHTS_CONST 0x2u /**< weights are not written by earlier work that may still run on this stream */

/** @defgroup swiglu SwiGLU
 * Gate and up [rows, cols]; a' = gate * gate_mul, b = up + up_offset, gate and up clamped by `limit` before:
 *
 *     forward    h = act(a');  out = ((h * b) * down_mul) * row_scale[row]
 *     backward   dy = (dout * down_mul) * row_scale[row];  dup = dy * h;  dgate = ((dy * b) * gate_mul) * act'(a')
 *
 * act: SiLU a' * sigmoid(alpha a'), GELU (tanh form or erf), or max(a', 0)^2. A gate or up that was clamped has the
 * gradient 0. f32 arithmetic in that order, one rounding to the dtype. Contract: exact, batch-invariant. Layouts: two
 * tensors; halves of one [rows, 2 cols] (up = gate + cols, both strides 2 cols); RIDGE_INTERLEAVED. An output may be
 * exactly one of the inputs (same pointer, stride and dtype); otherwise operands must not overlap.
 *
 * @code
 * ridge_call call = ridge_swiglu_fwd(rows, cols, RIDGE_BF16, gate, up, out);
 * call.arg[RIDGE_SWIGLU_FWD_GATE].stride = call.arg[RIDGE_SWIGLU_FWD_UP].stride = 2 * cols; // halves of one tensor
 * call.flags |= RIDGE_GELU_TANH;
 * call.opt.swiglu.limit = 7.0f;
 * status = ridge_run(device, &call, NULL, 0, stream);
 * @endcode
 * @{ */
#define RIDGE_SILU 0u          /**< the default */
#define RIDGE_GELU_TANH 0x100u /**< GELU, tanh form */
#define RIDGE_GELU_ERF 0x200u  /**< GELU, with erf */
#define RIDGE_RELU2 0x300u     /**< max(a', 0)^2 */
#define RIDGE_ROUND_GATE 0x400u /**< forward: round h to the dtype before the product, as PyTorch eager and Liger do */
#define RIDGE_ROUND_GATE_BWD 0x800u /**< backward: round h and dy * b to the dtype, as PyTorch eager does */
#define RIDGE_INTERLEAVED 0x1000u /**< gate is [rows, 2 cols]: gate, up, gate, ...; up is absent (dgate and dup too) */

/** Options of swiglu_fwd, swiglu_bwd, q8_0_, block_ and moe_gate_up_swiglu; all finite. */
typedef struct ridge_swiglu_options {
    float gate_mul;  /**< default 1 */
    float down_mul;  /**< default 1 */
    float alpha;     /**< sigmoid(alpha a'), SiLU only, default 1 (gpt-oss: 1.702) */
    float up_offset; /**< added to the clamped up, default 0 (gpt-oss: 1) */
    float limit;     /**< gate <= limit, up in [-limit, limit], > 0; default 0: no clamp */
} ridge_swiglu_options;

/** out = act(gate) * up, all [rows, cols] and packed. */
RIDGE_API ridge_call ridge_swiglu_fwd(int64_t rows, int64_t cols, ridge_dtype dtype, const void *gate, const void *up,
                                      void *out);
enum {
    RIDGE_SWIGLU_FWD_GATE = 0, RIDGE_SWIGLU_FWD_UP, /**< [rows, cols] bf16, f16 or f32; up is absent when interleaved */
    RIDGE_SWIGLU_FWD_OUT, /**< [rows, cols], dtype of gate */
    RIDGE_SWIGLU_FWD_ROW_SCALE /**< [rows] f32, optional */
};

/** dgate and dup from dout and the saved gate and up, all [rows, cols] and packed. Each may be gate, up or dout. */
RIDGE_API ridge_call ridge_swiglu_bwd(int64_t rows, int64_t cols, ridge_dtype dtype, const void *dout, const void *gate,
                                      const void *up, void *dgate, void *dup);
enum {
    RIDGE_SWIGLU_BWD_DOUT = 0, RIDGE_SWIGLU_BWD_GATE, RIDGE_SWIGLU_BWD_UP, /**< as in swiglu_fwd, of one dtype */
    RIDGE_SWIGLU_BWD_DGATE, RIDGE_SWIGLU_BWD_DUP, /**< [rows, cols], dtype of dout; dup is absent when interleaved */
    RIDGE_SWIGLU_BWD_ROW_SCALE, /**< [rows] f32, optional */
    RIDGE_SWIGLU_BWD_DROW /**< [rows] f32 output, optional: sum over cols of dout * ((h * b) * down_mul), fixed order */
};
/** @} */

/** @defgroup quantize FP8 quantisers
 * x [rows, cols] bf16, f16 or f32 -> codes q, e4m3 or e5m2, and their f32 scales. Elements that share a scale
 * (q.scaling) are a group: scale = amax / 448 (e5m2: / 57344), 1 for a group of zeros, with RIDGE_POW2 rounded up to a
 * power of two; code = x * (1 / scale), rounded to nearest even. A group that holds a NaN or an infinity gets scale NaN
 * and codes 7F. Contract: exact. Errors (RIDGE_ERR_ARG): a scaling that the op does not write.
 *
 * @code
 * ridge_tensor codes = ridge_scaled(q, RIDGE_E4M3, scale, RIDGE_SCALING_ROW128);
 * codes.stride = ridge_ld_fp8(cols); // strides of the fast path
 * codes.scale_stride = ridge_ld_scale(rows);
 * ridge_call call = ridge_quantize_fp8(rows, cols, ridge_matrix(x, RIDGE_BF16), codes);
 * @endcode
 * @{ */
#define RIDGE_POW2 0x40000u /**< scales are powers of two */

/** Options of quantize_fp8 and quantize_fp8_dual. */
typedef struct ridge_quantize_options {
    float floor; /**< least amax of a group, finite and >= 0, default 0 */
    int64_t matrices; /**< quantize_fp8_dual: x is so many matrices one below another, each quantised by itself; default 1 */
} ridge_quantize_options;

/** Row stride of fp8 codes on the fast path: `cols` rounded up to 16; 0 outside 0 .. 2^40. */
RIDGE_API int64_t ridge_ld_fp8(int64_t cols);

/** Row stride of a table RIDGE_SCALING_ROW128 on the fast path: `rows` rounded up to 4; 0 as above. */
RIDGE_API int64_t ridge_ld_scale(int64_t rows);

/** The codes and scales of x: q is e4m3 or e5m2 with scaling TENSOR, ROW, ROW128 or BLK128. */
RIDGE_API ridge_call ridge_quantize_fp8(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor q);
enum {
    RIDGE_QUANTIZE_FP8_X = 0, RIDGE_QUANTIZE_FP8_Q, /**< [rows, cols] bf16, f16 or f32; e4m3 or e5m2 */
    RIDGE_QUANTIZE_FP8_SCALE, /**< f32, of q's scaling; absent when GIVEN is there */
    RIDGE_QUANTIZE_FP8_GIVEN, /**< f32 input, optional, TENSOR and ROW, no floor, no POW2: the caller's scales (delayed
                                 scaling). One not finite and positive gives codes 7F, as do NaN and infinity in x */
    RIDGE_QUANTIZE_FP8_AMAX   /**< f32 output, optional, TENSOR and ROW: the largest |x|; NaN if any is not finite */
};

/** x and its transpose in one read: q [rows, cols], q_t [cols, rows], both with their contraction contiguous. Scalings
 * of q and q_t: ROW128 and ROW128 (activations, gradients), ROW128 and BLK128, BLK128 and BLK128 (weights). */
RIDGE_API ridge_call ridge_quantize_fp8_dual(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor q,
                                             ridge_tensor q_t);
enum {
    RIDGE_QUANTIZE_FP8_DUAL_X = 0, /**< [rows, cols] bf16, f16 or f32 */
    RIDGE_QUANTIZE_FP8_DUAL_Q, RIDGE_QUANTIZE_FP8_DUAL_SCALE, /**< [rows, cols] e4m3 or e5m2, and its scales */
    RIDGE_QUANTIZE_FP8_DUAL_Q_T, RIDGE_QUANTIZE_FP8_DUAL_SCALE_T, /**< [cols, rows], dtype of q, and its scales */
    RIDGE_QUANTIZE_FP8_DUAL_COLSUM /**< [cols] f32, optional: sums over rows in a fixed order (a bias gradient) */
};

/** Codes and scales of blocks, BLK128 both, transposed: q [rows, cols] -> q_t [cols, rows]. Blocks are square, so that
 * these are the bits of quantising the transpose. Contract: exact. Errors (RIDGE_ERR_ARG): another scaling. */
RIDGE_API ridge_call ridge_transpose_fp8(int64_t rows, int64_t cols, ridge_tensor q, ridge_tensor q_t);
enum {
    RIDGE_TRANSPOSE_FP8_Q = 0, RIDGE_TRANSPOSE_FP8_SCALE, /**< [rows, cols] e4m3 or e5m2, and f32 scales */
    RIDGE_TRANSPOSE_FP8_Q_T, RIDGE_TRANSPOSE_FP8_SCALE_T  /**< [cols, rows], dtype of q, and its scales */
};

/** Options of swiglu_quantize. */
typedef struct ridge_swiglu_quantize_options {
    ridge_swiglu_options swiglu; /**< as of swiglu_fwd */
    float floor;                 /**< as of quantize_fp8 */
} ridge_swiglu_quantize_options;

/** swiglu_fwd followed by quantize_fp8_dual, bit for bit, without writing swiglu_fwd's out. Flags of both. */
RIDGE_API ridge_call ridge_swiglu_quantize(int64_t rows, int64_t cols, ridge_dtype dtype, const void *gate,
                                           const void *up, ridge_tensor q, ridge_tensor q_t);
enum {
    RIDGE_SWIGLU_QUANTIZE_GATE = 0, RIDGE_SWIGLU_QUANTIZE_UP, /**< as swiglu_fwd */
    RIDGE_SWIGLU_QUANTIZE_Q, RIDGE_SWIGLU_QUANTIZE_SCALE, /**< as quantize_fp8_dual of swiglu_fwd's out */
    RIDGE_SWIGLU_QUANTIZE_Q_T, RIDGE_SWIGLU_QUANTIZE_SCALE_T, /**< of the transpose */
    RIDGE_SWIGLU_QUANTIZE_ROW_SCALE /**< [rows] f32, optional */
};
/** @} */

/** @defgroup gemm FP8 GEMM
 * D = A B^T (+ bias) (+ D): A [m, k] and B [n, k] are fp8 codes with f32 scales, both with the contraction dimension k
 * contiguous, as quantize_fp8 and quantize_fp8_dual write them; value = code * scale.
 *
 *     TENSOR, ROW    D[i,j] = (sA * sB) * sum over k of a * b  + bias[j] + D[i,j]
 *     by 128 of k    D[i,j] = sum over the 128-blocks of k of (sA * sB) * (sum over the block of a * b)  + ...
 *
 * f32 accumulation (at least every 128 of k), one rounding to D's dtype, overflow gives infinity. Any m, n, k below
 * 2^31; m = 0 or n = 0 writes nothing; k = 0 writes the bias or zero, or leaves D when accumulating. Nothing beyond m,
 * n and k is read into a result. Contract: stable, close, and batch-invariant for m in 1 .. 64 and for m > 64 (the two
 * ranges need not agree). Errors (RIDGE_ERR_ARG): e5m2 times e5m2, scalings that are no pair, accumulation into f16.
 *
 * @code
 * ridge_tensor a = ridge_scaled(q, RIDGE_E4M3, scale, RIDGE_SCALING_ROW128);    // [m, k]: activations
 * ridge_tensor b = ridge_scaled(w, RIDGE_E4M3, w_scale, RIDGE_SCALING_BLK128);  // [n, k]: weights
 * ridge_call call = ridge_gemm_fp8(m, n, k, a, b, ridge_matrix(out, RIDGE_BF16));
 * ridge_set(&call, RIDGE_GEMM_FP8_BIAS, RIDGE_F32, bias, 0);
 * @endcode
 * @{ */
#define RIDGE_ACCUMULATE 0x400000u /**< D is an input too: the result is added to it (f32 and bf16) */

/** D [m, n] = A [m, k] B [n, k]^T. Scalings of A and B: each TENSOR or ROW (a scale for each token, a scale for each
 * channel); ROW128 and BLK128 (forward and dgrad), ROW128 and ROW128 (wgrad), BLK128 and ROW128. The last three take
 * ROW128_T in place of every ROW128, with the same bits; on Hopper TMA loads the scales of ROW128 only. */
RIDGE_API ridge_call ridge_gemm_fp8(int64_t m, int64_t n, int64_t k, ridge_tensor a, ridge_tensor b, ridge_tensor d);
enum {
    RIDGE_GEMM_FP8_A = 0, RIDGE_GEMM_FP8_SCALE_A, /**< [m, k] e4m3 or e5m2; a row stride 16 n is the fast path */
    RIDGE_GEMM_FP8_B, RIDGE_GEMM_FP8_SCALE_B,     /**< [n, k] e4m3 or e5m2, not e5m2 when A is */
    RIDGE_GEMM_FP8_D,       /**< [m, n] bf16, f16 or f32; read as well with RIDGE_ACCUMULATE */
    RIDGE_GEMM_FP8_BIAS     /**< [n] f32 or D's dtype, optional */
};

#define RIDGE_GROUPED_M 0u          /**< the default: A and D have the rows of one group after another */
#define RIDGE_GROUPED_K 0x100u      /**< A and B have the k of one group after another, D is a matrix a group */
#define RIDGE_GROUPED_MASKED 0x200u /**< A and D have m rows a group, of which the first count */

/** D_g = A_g B_g^T (+ bias_g) (+ D_g) for each group g (an expert), whose sizes only the device knows: `offsets` is read
 * by the kernels alone, and the grid follows from the dimensions. Bits of an element: as gemm_fp8's above 64 rows.
 * Scalings: gemm_fp8's pairs; BLK128 of A needs RIDGE_GROUPED_K, since two groups of rows would share a block. TENSOR:
 * A has one scale, B one a group (of k: one). ROW: each row of a group has one, of k [groups * m] of A, [groups * n] of B.
 * BLK128: the blocks begin anew in each group's B.
 *
 *     RIDGE_GROUPED_M       A [m, k], B [groups * n, k], D [m, n]; group g has the rows offsets[g] .. offsets[g + 1] of
 *                           A and D, any number of them
 *     RIDGE_GROUPED_K       A [m, k], B [n, k], D [groups * m, n]; group g has the elements offsets[g] .. offsets[g + 1]
 *                           of k, a multiple of 128 each. A group without any: a product with k = 0
 *     RIDGE_GROUPED_MASKED  A [groups * m, k], B [groups * n, k], D [groups * m, n]; the first offsets[g] rows of a
 *                           group count
 *
 * What no group has of D is not written. A group is bad if its offsets decrease or reach outside 0 .. m (of k: 0 .. k,
 * or are no multiple of 128); nothing is written for the first bad group and those after it. groups * m and groups * n
 * are below 2^31. Contract: stable, close. Errors: as gemm_fp8's; accumulation without RIDGE_GROUPED_K. */
RIDGE_API ridge_call ridge_gemm_fp8_grouped(int64_t m, int64_t n, int64_t k, int64_t groups, ridge_tensor a,
                                            ridge_tensor b, ridge_tensor d, ridge_tensor offsets);
enum {
    RIDGE_GEMM_FP8_GROUPED_A = 0, RIDGE_GEMM_FP8_GROUPED_SCALE_A, /**< e4m3 or e5m2, rows of a multiple of 16 bytes */
    RIDGE_GEMM_FP8_GROUPED_B, RIDGE_GEMM_FP8_GROUPED_SCALE_B, /**< e4m3 or e5m2, not e5m2 when A is */
    RIDGE_GEMM_FP8_GROUPED_D, /**< bf16, f16 or f32; read as well with RIDGE_ACCUMULATE */
    RIDGE_GEMM_FP8_GROUPED_OFFSETS, /**< [groups + 1], with RIDGE_GROUPED_MASKED [groups], i32 or i64 */
    RIDGE_GEMM_FP8_GROUPED_BAD, /**< [1] i32 output, optional: 0, or 1 + the number of the first bad group */
    RIDGE_GEMM_FP8_GROUPED_BIAS /**< [groups * n] f32 or D's dtype, optional */
};
/** @} */

/** @defgroup q8_0_blocks Q8_0 blocks and planes
 * GGUF's block of 32 weights in 34 bytes: f16 d, then 32 int8; weight = d * code. On a device two planes are faster:
 * int8 codes [rows, cols] and f16 scales [rows, cols/32] (RIDGE_SCALING_ROW32). cols is 32 n. Contract: exact.
 *
 * @code
 * ridge_tensor planes = ridge_scaled(w, RIDGE_I8, w_scale, RIDGE_SCALING_ROW32);
 * planes.stride = ridge_ld_q8_0(cols);
 * ridge_call call = ridge_q8_0_repack(rows, cols, blocks, planes);
 * @endcode
 * @{ */
/** The blocks of x, byte for byte ggml's reference on finite input. */
RIDGE_API ridge_call ridge_q8_0_quantize(int64_t rows, int64_t cols, ridge_tensor x, void *blocks);
enum { RIDGE_Q8_0_QUANTIZE_X = 0, RIDGE_Q8_0_QUANTIZE_BLOCKS }; /* [rows, cols] bf16, f16, f32; [rows, cols/32*34] u8 */

/** Operands of q8_0_repack and q8_0_unpack: [rows, cols/32*34] u8; the planes. */
enum { RIDGE_Q8_0_REPACK_BLOCKS = 0, RIDGE_Q8_0_REPACK_CODES, RIDGE_Q8_0_REPACK_SCALES };

/** Row stride of the plane of codes on the fast path: `cols` rounded up to 128; 0 outside 0 .. 2^40. */
RIDGE_API int64_t ridge_ld_q8_0(int64_t cols);

/** Blocks to planes. */
RIDGE_API ridge_call ridge_q8_0_repack(int64_t rows, int64_t cols, const void *blocks, ridge_tensor planes);

/** Planes to blocks, the inverse of q8_0_repack byte for byte. */
RIDGE_API ridge_call ridge_q8_0_unpack(int64_t rows, int64_t cols, ridge_tensor planes, void *blocks);
/** @} */

/** @defgroup q8_0_decode Q8_0 decode
 * Products of Q8_0 weights with the activations of tokens, one or a prompt. cols, the contraction dimension, is a multiple of
 * 32. A weight matrix [rows, cols] comes in one of two forms, which give the same bits:
 *
 *     blocks   u8 [rows, cols/32*34] as in a GGUF file, no scaling
 *     planes   i8 [rows, cols] and f16 scales RIDGE_SCALING_ROW32, the output of q8_0_repack
 *
 * Activations likewise: f32 or bf16 [tokens, cols] without scaling, quantised inside; or i8 with f32 scales
 * RIDGE_SCALING_ROW32, the output of q8_0_quantize_rows. The sum over cols has one fixed order. Contract: exact,
 * batch-invariant: a token's result is the same bits whatever the number of tokens, the form of the operands and the
 * kernel; a fused op gives the bits of its parts one by one. Errors: RIDGE_ERR_ARG for more than 65536 tokens, cols that
 * are no multiple of 32, a form whose scales are missing. 0 tokens or rows write nothing; 0 cols is a sum of 0. Fast
 * kernels want the workspace that ridge_workspace_bytes names (a little more than cols bytes a token); with less, a slower one runs or
 * ridge_run returns RIDGE_ERR_WORKSPACE.
 *
 * @code
 * ridge_tensor weight = ridge_matrix(blocks, RIDGE_U8);
 * ridge_call call = ridge_q8_0_matmul(1, cols, rows, ridge_matrix(x, RIDGE_F32), weight, ridge_matrix(y, RIDGE_F32));
 * call.flags |= RIDGE_WEIGHTS_CONST;
 * @endcode
 * @{ */
/** Limits: tokens of a call with weights of another format than Q8_0, and of Q8_0; streams of hyper-connections. */
enum { RIDGE_Q8_0_MAX_TOKENS = 16, RIDGE_Q8_0_MAX_PROMPT = 65536, RIDGE_MAX_HC = 16 };

/** Codes and scales of x, a scale for every 32 columns: scale = amax/127, code = x * (1/scale) to nearest even. A group
 * that holds a NaN or an infinity gets scale NaN and codes 0; one whose scale would be below 2^-126, zeros. */
RIDGE_API ridge_call ridge_q8_0_quantize_rows(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor codes);
enum {
    RIDGE_Q8_0_QUANTIZE_ROWS_X = 0, /**< [rows, cols] f32 or bf16, any number of rows */
    RIDGE_Q8_0_QUANTIZE_ROWS_CODES, RIDGE_Q8_0_QUANTIZE_ROWS_SCALES /**< [rows, cols] i8 and [rows, cols/32] f32 */
};

/** Options of q8_0_matmul, which has no use for `swiglu`, and of q8_0_gate_up_swiglu. */
typedef struct ridge_q8_0_options {
    ridge_swiglu_options swiglu; /**< as of swiglu_fwd */
    float eps;                   /**< of `norm`, finite and >= 0, default 1e-6 */
} ridge_q8_0_options;

/** out[t, r] = sum over cols of w[r, :] * x[t, :]. With `norm` x is floats, and its codes are those that add_rms_norm
 * makes of them with norm for its w: a layer's norm without a kernel of its own. */
RIDGE_API ridge_call ridge_q8_0_matmul(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x, ridge_tensor w,
                                       ridge_tensor out);
enum {
    RIDGE_Q8_0_MATMUL_X = 0, RIDGE_Q8_0_MATMUL_X_SCALES, /**< [tokens, cols] f32, bf16, or i8 with scales */
    RIDGE_Q8_0_MATMUL_W, RIDGE_Q8_0_MATMUL_W_SCALES, /**< [rows, cols/32*34] u8, or [rows, cols] i8 with scales */
    RIDGE_Q8_0_MATMUL_OUT, /**< [tokens, rows] f32 or bf16 */
    RIDGE_Q8_0_MATMUL_NORM /**< [cols] f32, optional */
};

/** Two q8_0_matmul of one x: w0 [rows0, cols] and w1 [rows1, cols]. */
RIDGE_API ridge_call ridge_q8_0_pair(int64_t tokens, int64_t cols, int64_t rows0, int64_t rows1, ridge_tensor x,
                                     ridge_tensor w0, ridge_tensor w1, ridge_tensor out0, ridge_tensor out1);
enum {
    RIDGE_Q8_0_PAIR_X = 0, RIDGE_Q8_0_PAIR_X_SCALES, /**< as q8_0_matmul */
    RIDGE_Q8_0_PAIR_W0, RIDGE_Q8_0_PAIR_W0_SCALES, /**< [rows0, cols] */
    RIDGE_Q8_0_PAIR_W1, RIDGE_Q8_0_PAIR_W1_SCALES, /**< [rows1, cols], of the form of w0 */
    RIDGE_Q8_0_PAIR_OUT0, RIDGE_Q8_0_PAIR_OUT1 /**< [tokens, rows0] and [tokens, rows1], f32 or bf16, of one dtype */
};

/** swiglu_fwd in f32 of two q8_0_matmul, with its options (opt.swiglu, or opt.q8_0), its activations and token_scale for
 * row_scale; one rounding to out's dtype at the end. `norm`: as of q8_0_matmul. */
RIDGE_API ridge_call ridge_q8_0_gate_up_swiglu(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x,
                                               ridge_tensor gate, ridge_tensor up, ridge_tensor out);
enum {
    RIDGE_Q8_0_GATE_UP_SWIGLU_X = 0, RIDGE_Q8_0_GATE_UP_SWIGLU_X_SCALES, /**< as q8_0_matmul */
    RIDGE_Q8_0_GATE_UP_SWIGLU_GATE, RIDGE_Q8_0_GATE_UP_SWIGLU_GATE_SCALES, /**< [rows, cols] */
    RIDGE_Q8_0_GATE_UP_SWIGLU_UP, RIDGE_Q8_0_GATE_UP_SWIGLU_UP_SCALES, /**< [rows, cols], of the form of gate */
    RIDGE_Q8_0_GATE_UP_SWIGLU_OUT, /**< [tokens, rows] f32 or bf16 */
    RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE, /**< [tokens] f32, optional: the weight of a mixture's expert */
    RIDGE_Q8_0_GATE_UP_SWIGLU_NORM /**< [cols] f32, optional */
};

/** Hyper-connections: v = W x (+ add); out[t, dst*rows + r] = v*post[t, dst] + sum over src of
 * comb[t, dst + n_hc*src] * res[t, src*rows + r], src ascending, each term one fma. n_hc is 1 to 16. */
RIDGE_API ridge_call ridge_q8_0_matmul_hc_expand(int64_t tokens, int64_t cols, int64_t rows, int64_t n_hc,
                                                 ridge_tensor x, ridge_tensor w, const float *post, const float *comb,
                                                 const float *res, float *out);
enum {
    RIDGE_Q8_0_MATMUL_HC_EXPAND_X = 0, RIDGE_Q8_0_MATMUL_HC_EXPAND_X_SCALES, /**< as q8_0_matmul */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_W, RIDGE_Q8_0_MATMUL_HC_EXPAND_W_SCALES, /**< as q8_0_matmul */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_POST, RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB, /**< [tokens, n_hc], [tokens, n_hc*n_hc] f32 */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_RES, /**< [tokens, n_hc*rows] f32: stream src from column src*rows on */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD, /**< [tokens, rows] f32, optional: added to W x */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT, /**< [tokens, n_hc*rows] f32 */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_Y /**< [tokens, rows] f32 output, optional: W x itself */
};
/** @} */

/** @defgroup blocks Weights in GGUF's block formats
 * Products of weights in any format of ridge_dtype from Q4_0 on with activations: of few tokens the bytes of a GGUF file
 * decide the speed. cols, the contraction dimension, is a multiple of 32, of 256 with the K and IQ formats.
 * block_repack turns a file's rows of blocks into tiles of 16 rows, once; the products read tiles:
 *
 *     blocks   u8 [rows, bytes of a row in the file]
 *     tiles    the format [ceil(rows/16), ridge_block_tile_bytes(format, cols)/16], in elements of 16 bytes
 *
 * Tiles take the space of the blocks, rows rounded up to 16, cols to 128 (an odd number of 128: up to 26 more); a
 * matrix may be cut between tiles. Activations are those of q8_0_matmul: f32 or bf16 [tokens, cols], quantised inside,
 * or i8 codes with f32 scales RIDGE_SCALING_ROW32. Products inside a block of 32 are integers and exact; sums over
 * blocks have one order, that of q8_0_matmul, whose bits RIDGE_Q8_0 has. Contract: exact, batch-invariant. Errors, 0
 * tokens, rows or cols, and the workspace: as q8_0_matmul.
 *
 * @code
 * ridge_tensor tiles = ridge_matrix(w, RIDGE_Q4_K); // ceil(rows/16) * ridge_block_tile_bytes(RIDGE_Q4_K, cols) bytes
 * ridge_call load = ridge_block_repack(rows, cols, blocks, tiles);
 * ridge_call call = ridge_block_matmul(1, cols, rows, ridge_matrix(x, RIDGE_F32), tiles, ridge_matrix(y, RIDGE_F32));
 * call.flags |= RIDGE_WEIGHTS_CONST;
 * @endcode
 * @{ */
/** Operands of block_repack and block_unpack: [rows, bytes of a row] u8; the tiles. */
enum { RIDGE_BLOCK_REPACK_BLOCKS = 0, RIDGE_BLOCK_REPACK_TILES };

/** Bytes of a tile of 16 rows; 0 for other dtypes, and for cols that the format cannot have. */
RIDGE_API int64_t ridge_block_tile_bytes(ridge_dtype format, int64_t cols);

/** Blocks to tiles of the format that tiles.dtype names; every byte of the tiles is written. */
RIDGE_API ridge_call ridge_block_repack(int64_t rows, int64_t cols, const void *blocks, ridge_tensor tiles);

/** Tiles to blocks, the inverse of block_repack byte for byte. */
RIDGE_API ridge_call ridge_block_unpack(int64_t rows, int64_t cols, ridge_tensor tiles, void *blocks);

/** out[t, r] = sum over cols of w[r, :] * x[t, :], + bias[r], + residual[t, r]; each addition in f32. */
RIDGE_API ridge_call ridge_block_matmul(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x, ridge_tensor w,
                                        ridge_tensor out);
enum {
    RIDGE_BLOCK_MATMUL_X = 0, RIDGE_BLOCK_MATMUL_X_SCALES, /**< as q8_0_matmul */
    RIDGE_BLOCK_MATMUL_W,        /**< tiles of [rows, cols] */
    RIDGE_BLOCK_MATMUL_OUT,      /**< [tokens, rows] f32 or bf16 */
    RIDGE_BLOCK_MATMUL_BIAS,     /**< [rows] f32, optional */
    RIDGE_BLOCK_MATMUL_RESIDUAL  /**< [tokens, rows], dtype of out, optional; may be out */
};

/** Two block_matmul of one x: w0 [rows0, cols] and w1 [rows1, cols], of one format. */
RIDGE_API ridge_call ridge_block_pair(int64_t tokens, int64_t cols, int64_t rows0, int64_t rows1, ridge_tensor x,
                                      ridge_tensor w0, ridge_tensor w1, ridge_tensor out0, ridge_tensor out1);
enum {
    RIDGE_BLOCK_PAIR_X = 0, RIDGE_BLOCK_PAIR_X_SCALES, /**< as q8_0_matmul */
    RIDGE_BLOCK_PAIR_W0, RIDGE_BLOCK_PAIR_W1, /**< tiles of [rows0, cols] and [rows1, cols] */
    RIDGE_BLOCK_PAIR_OUT0, RIDGE_BLOCK_PAIR_OUT1, /**< [tokens, rows0] and [tokens, rows1], f32 or bf16, of one dtype */
    RIDGE_BLOCK_PAIR_BIAS0, RIDGE_BLOCK_PAIR_BIAS1 /**< [rows0] and [rows1] f32, optional */
};

/** swiglu_fwd in f32 of two block_matmul with their biases, as q8_0_gate_up_swiglu is of two q8_0_matmul. */
RIDGE_API ridge_call ridge_block_gate_up_swiglu(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x,
                                                ridge_tensor gate, ridge_tensor up, ridge_tensor out);
enum {
    RIDGE_BLOCK_GATE_UP_SWIGLU_X = 0, RIDGE_BLOCK_GATE_UP_SWIGLU_X_SCALES, /**< as q8_0_matmul */
    RIDGE_BLOCK_GATE_UP_SWIGLU_GATE, RIDGE_BLOCK_GATE_UP_SWIGLU_UP, /**< tiles of [rows, cols], of one format */
    RIDGE_BLOCK_GATE_UP_SWIGLU_OUT, /**< [tokens, rows] f32 or bf16 */
    RIDGE_BLOCK_GATE_UP_SWIGLU_GATE_BIAS, RIDGE_BLOCK_GATE_UP_SWIGLU_UP_BIAS, /**< [rows] f32, optional */
    RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE /**< [tokens] f32, optional: the weight of a mixture's expert */
};
/** @} */

/** @defgroup norm Norm and RoPE
 * rms_norm: out = (x * (1/sqrt(mean(x^2) + eps))) * w over the columns of each row. head_rms_norm_rope_tail does that
 * for each head of each token, then rotates its last n_rot elements in adjacent pairs by the angle pos * freqs[i]; rope
 * rotates the first n_rot elements of each head, without a norm:
 *
 *     y0 = x0 c - x1 s;  y1 = x0 s + x1 c
 *
 * Between norm and rotation values stay f32; out is rounded once. The angle is a double, so that position 1,000,000 is
 * as good as position 1. Contract: exact, batch-invariant. An output may be exactly an input of its dtype. w absent
 * (data NULL): 1.
 *
 * @code
 * ridge_call call = ridge_rms_norm(rows, cols, ridge_matrix(x, RIDGE_BF16), ridge_matrix(w, RIDGE_F32),
 *                                  ridge_matrix(out, RIDGE_BF16));
 * call.opt.norm.eps = 1e-5f;
 * @endcode
 * @{ */
#define RIDGE_ROPE_INVERSE 0x100u /**< rotates the other way */
#define RIDGE_ROPE_ONLY 0x200u    /**< no norm: w absent, eps unused */
#define RIDGE_ROPE_HALVES 0x400u  /**< rope: pair i is elements i and i + n_rot/2 (Hugging Face), not 2i and 2i + 1 */

/** Options of the ops of this group. */
typedef struct ridge_norm_options {
    float eps;    /**< added to the mean square, finite and >= 0, default 1e-6 */
    float mscale; /**< rope only (else 1): factor of sine and cosine (YaRN's attention factor), finite, default 1 */
} ridge_norm_options;

/** out = x / sqrt(mean(x^2) + eps) * w, row by row. */
RIDGE_API ridge_call ridge_rms_norm(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor w, ridge_tensor out);
enum { RIDGE_RMS_NORM_X = 0, RIDGE_RMS_NORM_W, RIDGE_RMS_NORM_OUT }; /* each f32 or bf16; w [cols] is optional */

/** rms_norm of every head, then RoPE. head_dim and n_rot are even, n_rot at most head_dim; 0: the norms only. */
RIDGE_API ridge_call ridge_head_rms_norm_rope_tail(int64_t tokens, int64_t heads, int64_t head_dim, int64_t n_rot,
                                                   ridge_tensor x, ridge_tensor w, ridge_tensor pos,
                                                   const double *freqs, ridge_tensor out);
enum {
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_X = 0, /**< [tokens, heads*head_dim] f32 or bf16 */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W,     /**< [head_dim] f32 or bf16, optional: 1 */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS,   /**< [tokens] i32 or i64 */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS, /**< [n_rot/2] f64, radians a position: see ridge_rope_freqs */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT    /**< [tokens, heads*head_dim] f32 or bf16 */
};

/** sum = x + residual, rounded to residual's dtype; out = rms_norm(sum). Without residual (absent, as sum then is): out
 * = rms_norm(x). out is a matrix of floats; or e4m3 or e5m2 codes with scaling ROW128, or i8 codes with scaling ROW32:
 * then the bits of rms_norm to f32 and quantize_fp8 (floor 0; flag RIDGE_POW2) or q8_0_quantize_rows after it. ROW32
 * takes cols that are a multiple of 32. */
RIDGE_API ridge_call ridge_add_rms_norm(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor residual,
                                        ridge_tensor w, ridge_tensor sum, ridge_tensor out);
enum {
    RIDGE_ADD_RMS_NORM_X = 0, RIDGE_ADD_RMS_NORM_RESIDUAL, /**< [rows, cols] bf16, f16 or f32 */
    RIDGE_ADD_RMS_NORM_W,   /**< [cols] bf16, f16 or f32, optional */
    RIDGE_ADD_RMS_NORM_SUM, /**< [rows, cols], dtype of residual, optional output */
    RIDGE_ADD_RMS_NORM_OUT, RIDGE_ADD_RMS_NORM_SCALE /**< [rows, cols]; f32, only with codes */
};

/** The gradients of out = rms_norm(x, w), dout being that of out. With n columns, r = 1/sqrt(mean(x^2) + eps) and
 * x' = x r: dx = r (dout w - x' mean(dout w x')) + dsum, dw = sum over rows of dout x'. dsum, the gradient of what
 * else read x, makes it the backward of add_rms_norm: dx is then the gradient of both its x and its residual. A row of
 * dx depends on nothing but its own inputs; dw is summed over rows in a fixed order. dx or dw may be absent. */
RIDGE_API ridge_call ridge_rms_norm_bwd(int64_t rows, int64_t cols, ridge_tensor dout, ridge_tensor x, ridge_tensor w,
                                        ridge_tensor dx, ridge_tensor dw);
enum {
    RIDGE_RMS_NORM_BWD_DOUT = 0, RIDGE_RMS_NORM_BWD_X, /**< [rows, cols] bf16, f16 or f32 */
    RIDGE_RMS_NORM_BWD_W,    /**< [cols] bf16, f16 or f32, optional */
    RIDGE_RMS_NORM_BWD_DX,   /**< [rows, cols] bf16, f16 or f32, optional output */
    RIDGE_RMS_NORM_BWD_DW,   /**< [cols] bf16, f16 or f32, optional output */
    RIDGE_RMS_NORM_BWD_DSUM  /**< [rows, cols] bf16, f16 or f32, optional input */
};

/** RoPE of the first n_rot elements of every head; the others are copied. head_dim and n_rot are even, n_rot at most
 * head_dim. The gradient of a rotation is the rotation by the opposite angle: RIDGE_ROPE_INVERSE. */
RIDGE_API ridge_call ridge_rope(int64_t tokens, int64_t heads, int64_t head_dim, int64_t n_rot, ridge_tensor x,
                                ridge_tensor pos, const double *freqs, ridge_tensor out);
enum {
    RIDGE_ROPE_X = 0, /**< [tokens, heads*head_dim] bf16, f16 or f32 */
    RIDGE_ROPE_POS,   /**< [tokens] i32 or i64 */
    RIDGE_ROPE_FREQS, /**< [n_rot/2] f64, radians a position: see ridge_rope_freqs */
    RIDGE_ROPE_OUT    /**< [tokens, heads*head_dim] bf16, f16 or f32 */
};

/** YaRN (Peng et al. 2023), with the parameters that GGUF files carry. */
typedef struct ridge_yarn {
    uint32_t struct_size;    /**< set by the caller to sizeof(ridge_yarn) */
    uint32_t reserved;       /**< 0 */
    double freq_scale;       /**< 1 / (how many times the context was stretched), in (0, 1] */
    double original_context; /**< tokens, before the stretch */
    double ext_factor;       /**< share of the extrapolated frequencies, usually 1; 0: freq_scale everywhere */
    double attn_factor;      /**< usually 1 */
    double beta_fast;        /**< usually 32: pairs that rotate more often in the context keep their frequency */
    double beta_slow;        /**< usually 1: pairs that rotate less often take freq_scale */
} ridge_yarn;

/** Host helper: the n_rot/2 frequencies base^(-2i/n_rot), through YaRN where yarn is not NULL, and *mscale (or NULL)
 * = attn_factor * (1 + 0.1 ln(1/freq_scale)), without the second factor where ext_factor is 0, 1 without yarn. Uses the
 * C library's pow and log: make the table once and give every device the same one. Errors: RIDGE_ERR_ARG (n_rot odd,
 * negative or above 2^20, freqs NULL, base not above 1, a YaRN parameter wrong). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_rope_freqs(int64_t n_rot, double base, const ridge_yarn *yarn, double *freqs,
                                                      float *mscale);
/** @} */

/** @defgroup ce Cross entropy
 * Tokens B, hidden H, vocabulary V. u = x W^T + bias in f32; z = softcap tanh(u / softcap) / temperature;
 *
 *     lse = log sum_c e^z_c
 *     row = (1 - eps) w_y (lse - z_y) + eps/V sum_c w_c (lse - z_c) + lse_square_scale lse^2
 *
 * w: class weights (1 when absent), y the row's target. loss: the rows (NONE), their sum, or their mean: the first two
 * terms divided by the sum of w_y, the third by the number of rows that are not ignored; a divisor of 0 gives 0.
 * No logits of B x V are written anywhere: the workspace holds a chunk of them, and its size decides how large.
 *
 * A row whose target is ignore_index costs nothing: x is not read, its dX is 0, its token_loss, lse, target_logit and
 * entropy are 0 and its argmax is -1. A target that is neither ignored nor in 0 .. V-1 makes token_loss, target_logit
 * and the loss NaN and its row of dX NaN; it counts in the mean (with weight 1), adds nothing to dW and dbias, and is
 * counted in `errors`. argmax: the lowest index among equals; NaN counts as largest. bias may hold -inf.
 * Contract: stable, close. Errors: RIDGE_ERR_ARG (no class, an option out of range).
 *
 * A vocabulary that is spread over devices: each runs linear_ce_eval (or ce_fwd) on its slice with vocab_offset and
 * vocab_total and asks for `record`; the records of all slices, in any order, go through ce_combine; its lse goes into
 * linear_ce_backward on each slice, which gives that slice of dW and a partial dX to be summed. class_weight and target
 * always speak of the whole vocabulary. A record of a token is max z, sum e^(z - max), target logit (-inf if it is not
 * in this slice); with RIDGE_CE_RECORD_SUMS also sum z, sum w z and sum e^(z - max) z, for label smoothing and entropy.
 *
 * That computes the logits twice. linear_ce_train in phases keeps what they became (6BHV FLOP): three calls that differ
 * in one flag, RIDGE_CE_BEGIN, RIDGE_CE_DX, RIDGE_CE_DW, in this order, on one stream, with the same operands and
 * workspace. BEGIN writes record, whose first number is then any reference near max z. lse is an input, read from DX on,
 * and may be ce_combine's by then; loss and the other outputs by token are ce_combine's and absent. Until DW has ended
 * the workspace and dW's memory hold the state: a phase without the one before it is undefined. The workspace has room
 * for dlogits of all tokens, 2 bytes each, as far as dW's memory has none. Rows of kernels that keep nothing (f32, CPUs)
 * compute the logits again.
 *
 * Log-probabilities of more classes than the target: `ids`, up to 256 a token, in any order, also several times. An id
 * that is ignore_index has 0 and no gradient; one that is no class of the whole vocabulary has NaN and no gradient. Of a
 * slice, id_logprob is z instead, -inf for an id of another slice: the largest over all slices minus the combined lse is
 * what backward takes. Backward takes p of an id from its id_logprob.
 *
 * The classes of the `topk` largest z, up to 256 a token: in falling order, of equals the lowest first, NaN as largest.
 * top_id and top_logprob of an ignored row are -1 and 0. Of a slice, top_id speaks of the whole vocabulary and
 * top_logprob is z: the largest of all slices' minus the combined lse are those of the whole.
 *
 * A class drawn from softmax(z): sample_id, of ignored rows -1. The draw is a function of z, the row's seed and its
 * counter alone: the same beside other rows, in slices, and on every device where z is the same. Of a slice, whose
 * vocab_offset is a multiple of 16, sample_logprob is z: the slice with the largest sample_score (of equals the one with
 * the lowest id) has the draw of the whole.
 *
 * @code
 * ridge_call call = ridge_linear_ce_train(tokens, hidden, vocab, ridge_matrix(x, RIDGE_BF16),
 *                                         ridge_matrix(w, RIDGE_BF16), ridge_matrix(target, RIDGE_I64), loss,
 *                                         ridge_matrix(dx, RIDGE_BF16), ridge_matrix(dw, RIDGE_F32));
 * ridge_set(&call, RIDGE_LINEAR_CE_BIAS, RIDGE_F32, bias, 0);
 * call.opt.ce.label_smoothing = 0.1f;
 * @endcode
 * @{ */
#define RIDGE_CE_MEAN 0u             /**< the default */
#define RIDGE_CE_SUM 0x100u          /**< loss is the sum over tokens */
#define RIDGE_CE_NONE 0x200u         /**< loss is [tokens] */
#define RIDGE_CE_W_HV 0x400u         /**< W (and dW) is [hidden, vocab], as in JAX; else [vocab, hidden] (PyTorch) */
#define RIDGE_CE_RECORD_SUMS 0x1000u /**< a record has 6 numbers and not 3 */
#define RIDGE_CE_BEGIN 0x2000u       /**< linear_ce_train in phases: the records of this slice, 2BHV FLOP */
#define RIDGE_CE_DX 0x4000u          /**< then, from lse: dX, 2BHV */
#define RIDGE_CE_DW 0x8000u          /**< then dW and dbias, 2BHV */
/* RIDGE_ACCUMULATE: dW and dbias are added to what is there. */

/** Options of linear_ce_*, ce_fwd, ce_bwd; of ce_combine only ignore_index, label_smoothing and lse_square_scale. */
typedef struct ridge_ce_options {
    int64_t ignore_index;   /**< a row with this target is left out, default -100 */
    int64_t vocab_offset;   /**< first class of this shard of the vocabulary, default 0 */
    int64_t vocab_total;    /**< classes of all shards, default 0: this call has them all */
    int64_t ids;            /**< linear_ce_eval, _backward: ids a token whose log-probabilities are asked for, 0 .. 256 */
    int64_t topk;           /**< linear_ce_eval: most likely classes a token that are asked for, 0 .. 256, at most vocab */
    float label_smoothing;  /**< eps in [0, 1], default 0 */
    float softcap;          /**< z = softcap tanh(u / softcap), finite and > 0, default 0: none */
    float temperature;      /**< z / temperature, finite and > 0, default 1 */
    float lse_square_scale; /**< z-loss: this times lse^2, finite and >= 0, default 0 */
    float grad_scale;       /**< linear_ce_train: gradients are those of grad_scale * loss, finite, default 1 */
    float reserved;         /**< 0 */
} ridge_ce_options;

/** The mean loss of softmax(x W^T) at the targets, 2BHV FLOP. */
RIDGE_API ridge_call ridge_linear_ce_eval(int64_t tokens, int64_t hidden, int64_t vocab, ridge_tensor x, ridge_tensor w,
                                          ridge_tensor target, float *loss);
enum { /* and linear_ce_train */
    RIDGE_LINEAR_CE_X = 0, RIDGE_LINEAR_CE_W, /**< [tokens, hidden], [vocab, hidden] or transposed; bf16, f16, f32 */
    RIDGE_LINEAR_CE_TARGET, /**< [tokens] i32 or i64 */
    RIDGE_LINEAR_CE_LOSS,   /**< [1], NONE: [tokens]; f32 as all that follow unless said otherwise */
    RIDGE_LINEAR_CE_BIAS, RIDGE_LINEAR_CE_CLASS_WEIGHT, /**< [vocab] f32, bf16 or f16; [vocab_total]; optional */
    RIDGE_LINEAR_CE_TOKEN_LOSS, RIDGE_LINEAR_CE_LSE, RIDGE_LINEAR_CE_TARGET_LOGIT, /**< [tokens], optional outputs */
    RIDGE_LINEAR_CE_ENTROPY,    /**< [tokens], optional output: of softmax(z), in nats */
    RIDGE_LINEAR_CE_ARGMAX,     /**< [tokens] i64, optional output: class of the largest z */
    RIDGE_LINEAR_CE_ACCURACY,   /**< [1], optional output: the fraction of rows not ignored with argmax = y */
    RIDGE_LINEAR_CE_ERRORS,     /**< [1] i32, optional output: how many targets are out of range */
    RIDGE_LINEAR_CE_RECORD,     /**< eval: [tokens, 3 or 6], optional output; loss may then be absent. In phases too */
    RIDGE_LINEAR_CE_GRAD_SCALE, /**< train, as all that follow: [1], NONE: [tokens], input, times the option grad_scale */
    RIDGE_LINEAR_CE_DX,           /**< [tokens, hidden], dtype of x; absent: x is frozen */
    RIDGE_LINEAR_CE_DW,           /**< as W, f32 or dtype of x (summed in f32, rounded once); absent: W is frozen */
    RIDGE_LINEAR_CE_DBIAS,        /**< [vocab], optional output */
    RIDGE_LINEAR_CE_IDS,          /**< eval, with option ids: [tokens, ids] of target's dtype */
    RIDGE_LINEAR_CE_ID_LOGPROB,   /**< eval, with option ids: [tokens, ids] output: log p of each id, at most 0 */
    RIDGE_LINEAR_CE_TOP_ID,       /**< eval, with option topk: [tokens, topk] i64 output */
    RIDGE_LINEAR_CE_TOP_LOGPROB,  /**< eval, with option topk: [tokens, topk] output: their log p, at most 0 */
    RIDGE_LINEAR_CE_SAMPLE_ID,    /**< eval: [tokens] i64, optional output: a class drawn from softmax(z) */
    RIDGE_LINEAR_CE_SAMPLE_LOGPROB, /**< eval, with sample_id: [tokens] output: its log p, at most 0 */
    /* eval has these where train has gradients */
    RIDGE_LINEAR_CE_SEED = RIDGE_LINEAR_CE_GRAD_SCALE, /**< eval, with sample_id: [tokens] i64 */
    RIDGE_LINEAR_CE_COUNTER = RIDGE_LINEAR_CE_DX,      /**< eval, with sample_id: [tokens] i64 */
    RIDGE_LINEAR_CE_SAMPLE_SCORE = RIDGE_LINEAR_CE_DW  /**< eval, optional, with sample_id: [tokens] output: its score */
};

/** The loss as in eval and its gradients, 6BHV FLOP; dx or dw may be absent. With NONE, grad_scale is the gradient of
 * each row's loss, known beforehand (weights of tokens; advantages, where the policy is the one that sampled). A workspace
 * larger than ridge_workspace_bytes says is faster, here and in backward, up to what one chunk of all tokens needs. */
RIDGE_API ridge_call ridge_linear_ce_train(int64_t tokens, int64_t hidden, int64_t vocab, ridge_tensor x,
                                           ridge_tensor w, ridge_tensor target, float *loss, ridge_tensor dx,
                                           ridge_tensor dw);

/** The gradients only, from lse: the logits are computed again, 6BHV FLOP. dx or dw may be absent. */
RIDGE_API ridge_call ridge_linear_ce_backward(int64_t tokens, int64_t hidden, int64_t vocab, ridge_tensor x,
                                              ridge_tensor w, ridge_tensor target, const float *lse, ridge_tensor dx,
                                              ridge_tensor dw);
enum { /* as in linear_ce_train unless said otherwise */
    RIDGE_LINEAR_CE_BACKWARD_X = 0, RIDGE_LINEAR_CE_BACKWARD_W, RIDGE_LINEAR_CE_BACKWARD_TARGET,
    RIDGE_LINEAR_CE_BACKWARD_LSE, /**< [tokens] f32, from eval, train or ce_combine */
    RIDGE_LINEAR_CE_BACKWARD_DLOSS, /**< [1], NONE: [tokens]; f32, optional: gradient of the loss, else 1 */
    RIDGE_LINEAR_CE_BACKWARD_BIAS, RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT,
    RIDGE_LINEAR_CE_BACKWARD_DX, RIDGE_LINEAR_CE_BACKWARD_DW, RIDGE_LINEAR_CE_BACKWARD_DBIAS,
    /**< dx of a slice of the vocabulary: its part of the sum */
    RIDGE_LINEAR_CE_BACKWARD_ENTROPY, /**< [tokens] f32, from eval, train or ce_combine; read only with dentropy */
    RIDGE_LINEAR_CE_BACKWARD_DENTROPY, /**< [tokens] f32, optional: gradient of each row's entropy, whatever reduction */
    RIDGE_LINEAR_CE_BACKWARD_IDS,      /**< with option ids, as the next two: [tokens, ids] of target's dtype */
    RIDGE_LINEAR_CE_BACKWARD_ID_LOGPROB, RIDGE_LINEAR_CE_BACKWARD_DID_LOGPROB
    /**< [tokens, ids] f32: what eval gave, and the gradient of each, whatever reduction */
};

/** The mean loss of given logits [tokens, vocab]. */
RIDGE_API ridge_call ridge_ce_fwd(int64_t tokens, int64_t vocab, ridge_tensor logits, ridge_tensor target, float *loss);
enum { /* what follows `target` is as in linear_ce_eval */
    RIDGE_CE_FWD_LOGITS = 0, /**< [tokens, vocab] bf16, f16 or f32: u */
    RIDGE_CE_FWD_TARGET, RIDGE_CE_FWD_LOSS, RIDGE_CE_FWD_CLASS_WEIGHT, RIDGE_CE_FWD_TOKEN_LOSS,
    RIDGE_CE_FWD_LSE, RIDGE_CE_FWD_TARGET_LOGIT, RIDGE_CE_FWD_ENTROPY, RIDGE_CE_FWD_ARGMAX,
    RIDGE_CE_FWD_ACCURACY, RIDGE_CE_FWD_ERRORS, RIDGE_CE_FWD_RECORD
};

/** The gradient of ce_fwd's loss by the logits; dlogits has their dtype and may be logits. */
RIDGE_API ridge_call ridge_ce_bwd(int64_t tokens, int64_t vocab, ridge_tensor logits, ridge_tensor target,
                                  const float *lse, ridge_tensor dlogits);
enum {
    RIDGE_CE_BWD_LOGITS = 0, RIDGE_CE_BWD_TARGET, RIDGE_CE_BWD_LSE, /**< as in ce_fwd; [tokens] f32 */
    RIDGE_CE_BWD_DLOSS, RIDGE_CE_BWD_CLASS_WEIGHT, /**< as in linear_ce_backward */
    RIDGE_CE_BWD_DLOGITS, /**< [tokens, vocab], dtype of logits; may be logits */
    RIDGE_CE_BWD_ENTROPY, RIDGE_CE_BWD_DENTROPY /**< as in linear_ce_backward */
};

/** Records of 1 to 4096 slices of a vocabulary of `vocab` classes to the loss of the whole. The shards are taken in the
 * order of their offsets, so that any order of arrival gives the same bits. */
RIDGE_API ridge_call ridge_ce_combine(int64_t tokens, int64_t vocab, int64_t shards, const float *record,
                                      const int64_t *offset, ridge_tensor target, float *loss);
enum { /* as in linear_ce_eval unless said otherwise */
    RIDGE_CE_COMBINE_RECORD = 0, /**< [shards * tokens, 3 or 6]: the record of shard 0's tokens, then shard 1's, ... */
    RIDGE_CE_COMBINE_OFFSET, /**< [shards] i64: vocab_offset of each; all different */
    RIDGE_CE_COMBINE_TARGET, RIDGE_CE_COMBINE_LOSS, RIDGE_CE_COMBINE_CLASS_WEIGHT, RIDGE_CE_COMBINE_TOKEN_LOSS,
    RIDGE_CE_COMBINE_LSE, RIDGE_CE_COMBINE_TARGET_LOGIT,
    RIDGE_CE_COMBINE_ENTROPY, /**< needs RIDGE_CE_RECORD_SUMS, as label smoothing does */
    RIDGE_CE_COMBINE_ARGMAX, RIDGE_CE_COMBINE_ACCURACY, RIDGE_CE_COMBINE_ERRORS,
    RIDGE_CE_COMBINE_SHARD_ARGMAX /**< [shards, tokens] i64, what each shard's eval gave; for argmax and accuracy */
};
/** @} */

/** @defgroup multiply Multiply
 * out = x * factor[0] in f32, rounded once to out's dtype: gradients made beforehand times the gradient of the loss,
 * which is on the device. out may be exactly x; where the factor then is 1 nothing is read or written: the kernel
 * returns at once. Contract: exact.
 *
 * @code
 * ridge_call call = ridge_multiply(rows, cols, ridge_matrix(dx, RIDGE_BF16), factor, ridge_matrix(dx, RIDGE_BF16));
 * @endcode
 * @{ */
/** out = x * factor[0]. */
RIDGE_API ridge_call ridge_multiply(int64_t rows, int64_t cols, ridge_tensor x, const float *factor, ridge_tensor out);
enum {
    RIDGE_MULTIPLY_X = 0, RIDGE_MULTIPLY_FACTOR, RIDGE_MULTIPLY_OUT /**< x, out: [rows, cols]; factor: [1] f32 */
};
/** @} */

/** @defgroup sum Sum of parts
 * out = part 0 + part 1 + ... in this order, in f32, rounded once to out's dtype: the partial sums of several devices,
 * in the order of their ranks, so that the bits depend on no collective's algorithm. Part p is rows p * rows ..
 * (p + 1) * rows - 1 of x, as an all-gather or an all-to-all leaves them. Contract: exact. Errors: RIDGE_ERR_ARG (parts
 * not 1 .. 4096).
 *
 * @code
 * ridge_call call = ridge_sum(rows, cols, ranks, ridge_matrix(received, RIDGE_BF16), ridge_matrix(dx, RIDGE_BF16));
 * @endcode
 * @{ */
/** out = the sum of the parts of x. */
RIDGE_API ridge_call ridge_sum(int64_t rows, int64_t cols, int64_t parts, ridge_tensor x, ridge_tensor out);
enum { RIDGE_SUM_X = 0, RIDGE_SUM_OUT }; /**< [parts*rows, cols], [rows, cols]; f32, f16, bf16; they do not overlap */
/** @} */

/** @defgroup attention Attention with a cache
 * The ops of a layer beside its products. The cache of one layer and one sequence is two matrices K and V
 * [kv_heads, positions*head_dim], f16 or bf16: head by head, a row of head_dim for every position. Or u8: a row is
 * head_dim/32 blocks of GGUF's Q8_0, 34 bytes each (f16 scale, 32 codes; head_dim a multiple of 32; not for
 * attention_prefill), as q8_0_quantize makes them; an element is code * scale. The row stride of K and V may be larger
 * than that: a call then sees the first positions of a longer cache. Query head h reads head h / (heads/kv_heads) of
 * the cache.
 *
 * kv_append takes the rows that the product with the weights q|k|v made. It adds `bias`; normalises each head of q and k
 * as rms_norm does, where q_norm or k_norm is there; turns the first n_rot elements of the heads of q and k as rope does,
 * in adjacent pairs or with RIDGE_ROPE_HALVES in halves; writes q to `out` and k and v to row pos of the cache, rounded once.
 * A position outside 0 .. positions-1 writes nothing to the cache.
 *
 * attention_decode: out = softmax(scale q K^T) V over the keys 0 .. pos of each query, so that queries of one call are
 * causal among themselves. Sums run over 128 positions at a time, counted from position 0, in one fixed order.
 *
 *     s = scale * (q . k);  s = softcap * tanh(s / softcap);  keys p with pos - window < p <= pos
 *     out = (sum over keys of e^(s - max) v) / (e^(sink - max) + sum over keys of e^(s - max))
 *
 * A query that sees no key gives zeros. Contract of kv_append and attention_decode: exact, batch-invariant: a token's
 * result is the same bits whatever other tokens are in the call, and however many positions the cache has.
 *
 * attention_prefill is the same function for the many queries of a prompt, with q rounded to the dtype of the cache; on
 * tensor cores the weights of V are rounded to it too. Contract: close, batch-invariant, but not the bits of
 * attention_decode. (On a CPU it is exact: attention_decode's bits of the rounded q.)
 *
 * @code
 * ridge_call append = ridge_kv_append(tokens, heads, kv_heads, head_dim, positions, ridge_matrix(qkv, RIDGE_F32), pos,
 *                                     freqs, ridge_matrix(q, RIDGE_F32), ridge_matrix(k, RIDGE_F16),
 *                                     ridge_matrix(v, RIDGE_F16));
 * ridge_call attend = ridge_attention_decode(tokens, heads, kv_heads, head_dim, positions, ridge_matrix(q, RIDGE_F32),
 *                                            ridge_matrix(k, RIDGE_F16), ridge_matrix(v, RIDGE_F16), pos,
 *                                            ridge_matrix(out, RIDGE_F32));
 * attend.opt.attention.scale = 0.125f; // 1/sqrt(64)
 * @endcode
 * @{ */
/** The largest head_dim. */
enum { RIDGE_MAX_HEAD_DIM = 512 };

/** Options of kv_append. */
typedef struct ridge_kv_append_options {
    int64_t n_rot; /**< elements of a head that are turned, even, at most head_dim; default 0: head_dim */
    float eps;     /**< of the norms, finite and >= 0, default 1e-6 */
    float mscale;  /**< factor of sine and cosine (YaRN's attention factor), finite, default 1 */
} ridge_kv_append_options;

/** q, k and v of new tokens: bias, norm, RoPE, k and v into the cache. head_dim is a multiple of 16, at
 * most RIDGE_MAX_HEAD_DIM. */
RIDGE_API ridge_call ridge_kv_append(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                     int64_t positions, ridge_tensor qkv, const int32_t *pos, const double *freqs,
                                     ridge_tensor out, ridge_tensor k, ridge_tensor v);
enum {
    RIDGE_KV_APPEND_QKV = 0, /**< [tokens, (heads + 2 kv_heads)*head_dim] f32 or bf16 */
    RIDGE_KV_APPEND_POS,     /**< [tokens] i32, all different */
    RIDGE_KV_APPEND_FREQS,   /**< [n_rot/2] f64, radians a position: see ridge_rope_freqs */
    RIDGE_KV_APPEND_OUT,     /**< [tokens, heads*head_dim] f32 or bf16: q */
    RIDGE_KV_APPEND_K, RIDGE_KV_APPEND_V, /**< [kv_heads, positions*head_dim] f16, bf16 or Q8_0, read and written */
    RIDGE_KV_APPEND_BIAS,    /**< [(heads + 2 kv_heads)*head_dim] f32, optional */
    RIDGE_KV_APPEND_Q_NORM, RIDGE_KV_APPEND_K_NORM /**< [head_dim] f32, optional */
};

/** Options of attention_decode and attention_prefill. */
typedef struct ridge_attention_options {
    int64_t window; /**< keys that a query sees, itself included, >= 0; default 0: all */
    float scale;    /**< factor of the dot products, finite, default 1 */
    float softcap;  /**< finite and >= 0, default 0: none */
} ridge_attention_options;

/** out = softmax(scale q K^T) V for the queries at positions pos. heads is a multiple of kv_heads; head_dim
 * as in kv_append. The workspace holds (head_dim + 2) floats for every query, head and 128 positions. */
RIDGE_API ridge_call ridge_attention_decode(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                            int64_t positions, ridge_tensor q, ridge_tensor k, ridge_tensor v,
                                            const int32_t *pos, ridge_tensor out);
enum {
    RIDGE_ATTENTION_DECODE_Q = 0, /**< [tokens, heads*head_dim] f32 or bf16 */
    RIDGE_ATTENTION_DECODE_K, RIDGE_ATTENTION_DECODE_V, /**< [kv_heads, positions*head_dim] f16, bf16 or Q8_0 */
    RIDGE_ATTENTION_DECODE_POS, /**< [tokens] i32; keys beyond the cache are not seen */
    RIDGE_ATTENTION_DECODE_OUT, /**< [tokens, heads*head_dim] f32 or bf16 */
    RIDGE_ATTENTION_DECODE_SINKS /**< [heads] f32, optional: a score that has no value */
};

/** attention_decode of many queries, whose cost is products and not the read of the cache. The positions are best
 * ascending: neighbouring queries share the keys that one of them sees. */
RIDGE_API ridge_call ridge_attention_prefill(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                             int64_t positions, ridge_tensor q, ridge_tensor k, ridge_tensor v,
                                             const int32_t *pos, ridge_tensor out);
enum { /* as those of attention_decode */
    RIDGE_ATTENTION_PREFILL_Q = 0,
    RIDGE_ATTENTION_PREFILL_K, RIDGE_ATTENTION_PREFILL_V,
    RIDGE_ATTENTION_PREFILL_POS,
    RIDGE_ATTENTION_PREFILL_OUT,
    RIDGE_ATTENTION_PREFILL_SINKS
};

/** Options of kv_append_attention, as in kv_append and attention_decode. */
typedef struct ridge_kv_append_attention_options {
    int64_t n_rot;  /**< default 0: head_dim */
    float eps;      /**< default 1e-6 */
    float mscale;   /**< default 1 */
    int64_t window; /**< default 0: all */
    float scale;    /**< default 1 */
    float softcap;  /**< default 0: none */
} ridge_kv_append_attention_options;

/** kv_append, then attention_decode, q in f32 between them. RIDGE_WEIGHTS_CONST speaks of pos, freqs and earlier
 * rows too. */
RIDGE_API ridge_call ridge_kv_append_attention(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                               int64_t positions, ridge_tensor qkv, const int32_t *pos,
                                               const double *freqs, ridge_tensor out, ridge_tensor k, ridge_tensor v);
enum { /* as those of kv_append, but for the last one */
    RIDGE_KV_APPEND_ATTENTION_QKV = 0,
    RIDGE_KV_APPEND_ATTENTION_POS,
    RIDGE_KV_APPEND_ATTENTION_FREQS,
    RIDGE_KV_APPEND_ATTENTION_OUT, /**< [tokens, heads*head_dim] f32 or bf16: attention */
    RIDGE_KV_APPEND_ATTENTION_K, RIDGE_KV_APPEND_ATTENTION_V,
    RIDGE_KV_APPEND_ATTENTION_BIAS,
    RIDGE_KV_APPEND_ATTENTION_Q_NORM, RIDGE_KV_APPEND_ATTENTION_K_NORM,
    RIDGE_KV_APPEND_ATTENTION_SINKS /**< [heads] f32, optional */
};
/** @} */

/** @defgroup generate Generation
 * embed: out[t] = table[ids[t]] * scale, rounded once; a number outside the table gives a row of NaN. The table is a
 * matrix of floats, Q8_0 (blocks, or planes with scales RIDGE_SCALING_ROW32), or tiles of block_repack but IQ2_XXS.
 *
 * sample: the next token of each row of logits. Tokens are ordered by logit, then by number. First, a token in the
 * history has its logit multiplied (if <= 0) or divided by `penalty`; top_k, then top_p, then min_p take away from the
 * end of the order by the probabilities at temperature 1; one of the rest is drawn at the temperature (the order of
 * llama.cpp's default chain). Temperature 0: the first token of the order. The draw is a function of seed and counter,
 * usually the position, through Philox4x32-10, and weights are summed as integers: the same token on every device. A
 * row that holds a NaN gives -1; one whose largest logit is infinite, the first token of the order.
 * Contract of both: exact, batch-invariant.
 *
 * @code
 * ridge_call call = ridge_sample(1, vocab, 0, ridge_matrix(logits, RIDGE_F32), seed, position,
 *                                ridge_matrix(NULL, RIDGE_I32), ridge_matrix(token, RIDGE_I32));
 * call.opt.sample.top_k = 40;
 * call.opt.sample.temperature = 0.8f;
 * @endcode
 * @{ */
/** Options of embed. */
typedef struct ridge_embed_options {
    float scale; /**< finite, default 1 (Gemma: the square root of cols) */
} ridge_embed_options;

/** out = rows of table. */
RIDGE_API ridge_call ridge_embed(int64_t tokens, int64_t cols, int64_t vocab, ridge_tensor table, ridge_tensor ids,
                                 ridge_tensor out);
enum {
    RIDGE_EMBED_TABLE = 0, /**< [vocab, cols] bf16, f16, f32 or i8; [vocab, cols/32*34] u8; or tiles */
    RIDGE_EMBED_TABLE_SCALES, /**< [vocab, cols/32] f16, with i8 */
    RIDGE_EMBED_IDS, RIDGE_EMBED_OUT /**< [tokens] i32 or i64; [tokens, cols] bf16, f16 or f32 */
};

/** Options of sample. */
typedef struct ridge_sample_options {
    int64_t top_k;     /**< tokens that are left at most; default 0: all */
    float temperature; /**< >= 0, default 1; 0: no draw */
    float top_p;       /**< in (0, 1], default 1: the first tokens whose probabilities reach it */
    float min_p;       /**< in [0, 1], default 0: tokens with at least so much of the largest probability */
    float penalty;     /**< > 0, default 1: of tokens in the history */
} ridge_sample_options;

/** One token a row. history: how many numbers of each row `past` holds; 0: it is absent. Needs a workspace with it. */
RIDGE_API ridge_call ridge_sample(int64_t rows, int64_t vocab, int64_t history, ridge_tensor logits,
                                  const int64_t *seed, const int64_t *counter, ridge_tensor past, ridge_tensor token);
enum {
    RIDGE_SAMPLE_LOGITS = 0, /**< [rows, vocab] f32, vocab up to 2^24 */
    RIDGE_SAMPLE_SEED, RIDGE_SAMPLE_COUNTER, /**< [rows] i64 */
    RIDGE_SAMPLE_HISTORY, /**< [rows, history] i32; numbers outside the vocabulary are passed over */
    RIDGE_SAMPLE_TOKEN    /**< [rows] i32 or i64 */
};
/** @} */

/** @defgroup moe Mixtures of experts
 * moe_route chooses `slots` of the experts for each token. With l = logits + logit_bias, c = score + bias:
 *
 *     SOFTMAX         score = softmax(l) over all experts        weight = score
 *     TOPK_SOFTMAX    score = l                                  weight = softmax(l) over the chosen
 *     SIGMOID         score = 1 / (1 + exp(-l))                  weight = score
 *     SQRT_SOFTPLUS   score = sqrt(log(1 + exp(l)))              weight = score
 *
 * The experts with the largest c are chosen, the slots in the order of c, equal ones in the order of their numbers. With
 * `groups` of consecutive experts only those of the `top_groups` best groups can be: a group counts as the sum of its
 * two largest c, or with ROUTE_GROUP_MAX as the largest. weight = weight * scale, with ROUTE_NORMALISE
 * weight / (the sum of the chosen + eps) * scale. The ids are always different and within the experts; a NaN is below
 * every number, and the weights of a row in which any c is NaN are NaN.
 *
 *     Mixtral, Qwen3-MoE   SOFTMAX, NORMALISE             DeepSeek-V2   SOFTMAX, groups, GROUP_MAX, scale
 *     Qwen2-MoE            SOFTMAX                        DeepSeek-V3   SIGMOID, NORMALISE, bias, groups, eps, scale
 *     gpt-oss              TOPK_SOFTMAX, logit_bias       DeepSeek-V4   SQRT_SOFTPLUS, NORMALISE, bias, eps, scale
 *
 * Contract: exact, batch-invariant.
 *
 * @code
 * ridge_call call = ridge_moe_route(tokens, 256, 8, ridge_matrix(logits, RIDGE_F32), ids, weights);
 * call.flags |= RIDGE_ROUTE_SIGMOID | RIDGE_ROUTE_NORMALISE;
 * call.opt.moe_route = (ridge_moe_route_options){.groups = 8, .top_groups = 4, .scale = 2.5f, .eps = 1e-20f};
 * ridge_set(&call, RIDGE_MOE_ROUTE_BIAS, RIDGE_F32, bias, 0);
 * @endcode
 * @{ */
/** Limits of a call. */
enum { RIDGE_MOE_MAX_EXPERTS = 1024, RIDGE_MOE_MAX_SLOTS = 32 };

#define RIDGE_ROUTE_SOFTMAX 0u           /**< the default */
#define RIDGE_ROUTE_TOPK_SOFTMAX 0x100u  /**< softmax of the chosen logits */
#define RIDGE_ROUTE_SIGMOID 0x200u       /**< sigmoid of each logit */
#define RIDGE_ROUTE_SQRT_SOFTPLUS 0x300u /**< square root of softplus of each logit */
#define RIDGE_ROUTE_NORMALISE 0x400u     /**< weights over their sum */
#define RIDGE_ROUTE_GROUP_MAX 0x800u     /**< a group counts as its largest c */
#define RIDGE_ROUTE_GIVEN 0x1000u /**< ids is an input, weights alone are written; an id outside the experts gets 0 */

/** Options of moe_route. */
typedef struct ridge_moe_route_options {
    int64_t groups;     /**< divides experts, 1 to 32, default 1 */
    int64_t top_groups; /**< 1 to groups, with at least `slots` experts together, default 1 */
    float scale;        /**< finite, default 1 */
    float eps;          /**< added to the sum of ROUTE_NORMALISE, finite and >= 0, default 0 */
} ridge_moe_route_options;

/** ids and weights from logits. slots: 1 to 32, at most experts. */
RIDGE_API ridge_call ridge_moe_route(int64_t tokens, int64_t experts, int64_t slots, ridge_tensor logits, int32_t *ids,
                                     float *weights);
enum {
    RIDGE_MOE_ROUTE_LOGITS = 0, /**< [tokens, experts] f32 or bf16 */
    RIDGE_MOE_ROUTE_IDS, RIDGE_MOE_ROUTE_WEIGHTS, /**< [tokens, slots] i32 and f32 */
    RIDGE_MOE_ROUTE_BIAS,       /**< [experts] f32, optional: decides the choice only */
    RIDGE_MOE_ROUTE_LOGIT_BIAS  /**< [experts] f32, optional: added to the logits */
};
/** @} */

/** @defgroup moe_products Products of experts
 * Of the weights of all experts and the activations of 1 to 16 tokens, each with the experts that ids names: those of
 * moe_route. A weight is a matrix [rows, cols] for each expert, an operand [experts, rows*cols] whose stride is that from
 * expert to expert; fused gate and up are two operands with one stride. cols is a multiple of 32. Its forms, and what
 * they are multiplied by:
 *
 *     i8     codes, f16 scales RIDGE_SCALING_ROW32: planes of Q8_0    x: i8 codes, f32 scales RIDGE_SCALING_ROW32
 *     q4_0 and the other block formats: tiles of block_repack         x: the same
 *     f32, bf16: no scales; e4m3: f32 scales RIDGE_SCALING_BLK128     x: f32 or bf16
 *     e4m3 with these scales                                          x: e4m3, f32 scales RIDGE_SCALING_ROW128
 * The scales of an expert are a row of theirs: [experts, rows*cols/32] or [experts, ceil(rows/128)*ceil(cols/128)]. One
 * expert, ids of 0: a dense layer. What several tokens share is read from memory once. An id outside 0 .. experts-1 is
 * passed over: zeros from moe_gate_up_swiglu, no term in moe_down. A token may name an expert twice. No kernel's grid
 * depends on the ids: a captured graph may be replayed with any. Contract: exact, batch-invariant; x in e4m3: stable,
 * close, batch-invariant. With i8 and in block formats the sum over cols is that of q8_0_matmul and block_matmul. 0 tokens
 * or rows write nothing; 0 cols is a sum of 0. x in e4m3: quantize_fp8 of [tokens, cols], in down of [tokens*slots, cols].
 * Tiles are those of a block_repack of each expert; where rows is a multiple of 16, of one of all experts*rows rows.
 *
 * @code
 * ridge_tensor gate = ridge_scaled(w, RIDGE_I8, w_scale, RIDGE_SCALING_ROW32); // [experts][rows][cols]
 * ridge_call call = ridge_moe_gate_up_swiglu(1, 2048, 768, 128, 8, x, gate, up, ids, mid); // mid: codes and scales
 * ridge_call then = ridge_moe_down(1, 768, 2048, 128, 8, mid, down, ids, weights, ridge_matrix(y, RIDGE_F32));
 * @endcode
 * @{ */
enum { RIDGE_MOE_MAX_TOKENS = 16 }; /**< the most tokens of a call */

/** out of token t and slot s = act(gate x + gate_bias) * (up x + up_bias) of expert ids[t, s], with the options of
 * swiglu_fwd (opt.swiglu); f32, bf16, or i8 codes with scales RIDGE_SCALING_ROW32: q8_0_quantize_rows of the f32 result.
 * Codes take rows that are a multiple of 32. */
RIDGE_API ridge_call ridge_moe_gate_up_swiglu(int64_t tokens, int64_t cols, int64_t rows, int64_t experts,
                                              int64_t slots, ridge_tensor x, ridge_tensor gate, ridge_tensor up,
                                              const int32_t *ids, ridge_tensor out);
enum {
    RIDGE_MOE_GATE_UP_SWIGLU_X = 0, RIDGE_MOE_GATE_UP_SWIGLU_X_SCALES, /**< [tokens, cols]; [tokens, cols/32], of e4m3 [ceil(cols/128), tokens] */
    RIDGE_MOE_GATE_UP_SWIGLU_GATE, RIDGE_MOE_GATE_UP_SWIGLU_GATE_SCALES, /**< [experts, rows*cols] or tiles */
    RIDGE_MOE_GATE_UP_SWIGLU_UP, RIDGE_MOE_GATE_UP_SWIGLU_UP_SCALES, /**< the same, of the form of gate */
    RIDGE_MOE_GATE_UP_SWIGLU_IDS, /**< [tokens, slots] i32 */
    RIDGE_MOE_GATE_UP_SWIGLU_OUT, RIDGE_MOE_GATE_UP_SWIGLU_OUT_SCALES, /**< [tokens, slots*rows], and /32 with i8 */
    RIDGE_MOE_GATE_UP_SWIGLU_GATE_BIAS, RIDGE_MOE_GATE_UP_SWIGLU_UP_BIAS /**< [experts, rows] f32, optional */
};

/** Options of moe_down. */
typedef struct ridge_moe_down_options {
    int64_t n_hc; /**< 1 to 16: the result becomes streams of hyper-connections, see below; default 0 */
} ridge_moe_down_options;

/** out[t] = residual + (shared + the sum over slots of weights[t, s] (W x[t, s] + bias)), W and bias of expert ids[t, s].
 * The sum goes through the slots in order, each an fma. With opt.moe_down.n_hc that is v of q8_0_matmul_hc_expand, and
 * out, in f32, has the n_hc streams that it makes of v, post, comb and res. */
RIDGE_API ridge_call ridge_moe_down(int64_t tokens, int64_t cols, int64_t rows, int64_t experts, int64_t slots,
                                    ridge_tensor x, ridge_tensor w, const int32_t *ids, const float *weights,
                                    ridge_tensor out);
enum {
    RIDGE_MOE_DOWN_X = 0, RIDGE_MOE_DOWN_X_SCALES, /**< [tokens, slots*cols]; of e4m3 [ceil(cols/128), tokens*slots] */
    RIDGE_MOE_DOWN_W, RIDGE_MOE_DOWN_W_SCALES, /**< [experts, rows*cols] */
    RIDGE_MOE_DOWN_IDS, RIDGE_MOE_DOWN_WEIGHTS, /**< [tokens, slots] i32 and f32 */
    RIDGE_MOE_DOWN_OUT, /**< [tokens, rows] f32 or bf16; [tokens, n_hc*rows] f32 */
    RIDGE_MOE_DOWN_BIAS, /**< [experts, rows] f32, optional */
    RIDGE_MOE_DOWN_SHARED, RIDGE_MOE_DOWN_RESIDUAL, /**< [tokens, rows] f32 or bf16, optional: the shared expert's rows */
    RIDGE_MOE_DOWN_POST, RIDGE_MOE_DOWN_COMB, /**< with n_hc: [tokens, n_hc], [tokens, n_hc*n_hc] f32 */
    RIDGE_MOE_DOWN_RES /**< with n_hc: [tokens, n_hc*rows] f32: stream src from column src*rows on */
};
/** @} */

/** @defgroup experts Training of experts
 * What stands around the grouped products of gemm_fp8_grouped. A pair is a token and one of its slots, number
 * token * slots + slot; there are tokens * slots of them. moe_permute sorts the pairs by expert, those of an expert by
 * their numbers. The rows of expert e are then offsets[e] .. offsets[e + 1] - 1; pairs with an id outside the experts
 * are dropped: they have no row, and the rows from offsets[experts] on belong to none.
 *
 *     moe_route -> moe_permute -> moe_permute_quantize -> gate and up -> moe_swiglu_quantize -> down -> moe_combine
 *
 * A transposed copy has the groups of its columns padded to multiples of 128 by zeros: expert e begins at column
 * offsets_t[e], and its scales, one for 128 rows of a column of x, at row offsets_t[e] / 128 of their table. Columns and
 * scales from offsets_t[experts] on are not written; nor are rows of q that belong to no expert. Offsets are read on the
 * device: one outside 0 .. rows, or below one before it, counts as the nearest that is not.
 *
 * Contract: exact. No result depends on the order in which a GPU's threads run. Up to 2^31 - 2^17 pairs.
 *
 * @code
 * int64_t pairs = tokens * 8, padded = ridge_ld_groups(pairs, 128);
 * ridge_call call = ridge_moe_permute(tokens, 8, 128, ids, offsets, rows, place); // needs a workspace
 * ridge_tensor q = ridge_scaled(codes, RIDGE_E4M3, scale, RIDGE_SCALING_ROW128);
 * ridge_tensor q_t = ridge_scaled(codes_t, RIDGE_E4M3, scale_t, RIDGE_SCALING_ROW128); // [cols, padded]
 * ridge_call then = ridge_moe_permute_quantize(tokens, 8, cols, 128, x, rows, offsets, q, q_t, offsets_t);
 * @endcode
 * @{ */
/** The most columns of a transposed copy with `experts` groups: rows + 127 * experts, or fewer, down to a multiple of 128;
 * 0 where one of them is outside 0 .. 2^40. */
RIDGE_API int64_t ridge_ld_groups(int64_t rows, int64_t experts);

/** Sorts the pairs by ids. rows[i] is the pair of row i, -1 from offsets[experts] on; place, its inverse, the row of each
 * pair, -1 of a dropped one. */
RIDGE_API ridge_call ridge_moe_permute(int64_t tokens, int64_t slots, int64_t experts, const int32_t *ids,
                                       int32_t *offsets, int32_t *rows, int32_t *place);
enum {
    RIDGE_MOE_PERMUTE_IDS = 0, /**< [tokens, slots] i32; slots 1 to 32, experts 1 to 1024 */
    RIDGE_MOE_PERMUTE_OFFSETS, RIDGE_MOE_PERMUTE_ROWS, /**< [experts + 1] and [tokens * slots] i32 */
    RIDGE_MOE_PERMUTE_PLACE /**< [tokens, slots] i32 */
};

/** Codes and scales of the sorted rows, row i from row rows[i] / slots of x (zeros where rows[i] is no pair), a scale
 * for every 128 columns (options of quantize_fp8, opt.quantize; flag RIDGE_POW2), and of their transpose. rows NULL, with
 * slots = 1: x is sorted already. q_t without a dtype: no transpose. */
RIDGE_API ridge_call ridge_moe_permute_quantize(int64_t tokens, int64_t slots, int64_t cols, int64_t experts,
                                                ridge_tensor x, const int32_t *rows, const int32_t *offsets,
                                                ridge_tensor q, ridge_tensor q_t, int32_t *offsets_t);
enum {
    RIDGE_MOE_PERMUTE_QUANTIZE_X = 0, /**< [tokens, cols] bf16, f16 or f32 */
    RIDGE_MOE_PERMUTE_QUANTIZE_ROWS, RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS, /**< as of moe_permute; rows is optional */
    RIDGE_MOE_PERMUTE_QUANTIZE_Q, RIDGE_MOE_PERMUTE_QUANTIZE_SCALE, /**< [tokens * slots, cols] e4m3 or e5m2; ROW128 */
    RIDGE_MOE_PERMUTE_QUANTIZE_Q_T, RIDGE_MOE_PERMUTE_QUANTIZE_SCALE_T, /**< [cols, ld_groups], optional; ROW128 */
    RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS_T /**< [experts + 1] i32 output, optional */
};

/** moe_permute_quantize of swiglu_fwd's out, bit for bit, without writing it; the rows are sorted. Options of
 * swiglu_quantize, opt.swiglu_quantize; flags of both. */
RIDGE_API ridge_call ridge_moe_swiglu_quantize(int64_t rows, int64_t cols, int64_t experts, ridge_dtype dtype,
                                               const void *gate, const void *up, const int32_t *offsets, ridge_tensor q,
                                               ridge_tensor q_t, int32_t *offsets_t);
enum {
    RIDGE_MOE_SWIGLU_QUANTIZE_GATE = 0, RIDGE_MOE_SWIGLU_QUANTIZE_UP, /**< as swiglu_fwd */
    RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS, /**< [experts + 1] i32 */
    RIDGE_MOE_SWIGLU_QUANTIZE_Q, RIDGE_MOE_SWIGLU_QUANTIZE_SCALE, /**< as of moe_permute_quantize */
    RIDGE_MOE_SWIGLU_QUANTIZE_Q_T, RIDGE_MOE_SWIGLU_QUANTIZE_SCALE_T, /**< optional */
    RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS_T, /**< [experts + 1] i32 output, optional */
    RIDGE_MOE_SWIGLU_QUANTIZE_ROW_SCALE /**< [rows] f32, optional: the weight of each row's pair */
};

/** moe_permute_quantize of swiglu_bwd's dgate and dup side by side, bit for bit, without writing them; the rows are
 * sorted. Options of swiglu_quantize, opt.swiglu_quantize; flags RIDGE_POW2 and RIDGE_ACTIVATION. drow: swiglu_bwd's, in an
 * order of its own (docs/numerics.md). */
RIDGE_API ridge_call ridge_moe_swiglu_bwd_quantize(int64_t rows, int64_t cols, int64_t experts, ridge_dtype dtype,
                                                   const void *dout, const void *gate, const void *up,
                                                   const int32_t *offsets, ridge_tensor q, ridge_tensor q_t,
                                                   int32_t *offsets_t);
enum {
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT = 0, /**< [rows, cols] bf16, f16 or f32 */
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_GATE, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_UP, /**< [rows, cols] as dout */
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS, /**< [experts + 1] i32 */
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_SCALE, /**< of [rows, 2 cols], as of
                                                                               moe_permute_quantize */
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q_T, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_SCALE_T, /**< optional */
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS_T, /**< [experts + 1] i32 output, optional */
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_ROW_SCALE, /**< [rows] f32, optional: the weight of each row's pair */
    RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW /**< [rows] f32 output, optional; rows of no group are not written */
};

/** out[t] = residual + (shared + the sum over slots of weights[t, s] * y[place[t, s]]): the slots in order, each an fma in
 * f32 (a sum without weights), one rounding. A place outside 0 .. tokens * slots - 1 adds nothing. */
RIDGE_API ridge_call ridge_moe_combine(int64_t tokens, int64_t slots, int64_t cols, ridge_tensor y,
                                       const int32_t *place, const float *weights, ridge_tensor out);
enum {
    RIDGE_MOE_COMBINE_Y = 0, /**< [tokens * slots, cols] bf16, f16 or f32 */
    RIDGE_MOE_COMBINE_PLACE, RIDGE_MOE_COMBINE_WEIGHTS, /**< [tokens, slots] i32; f32, optional */
    RIDGE_MOE_COMBINE_OUT, /**< [tokens, cols] bf16, f16 or f32 */
    RIDGE_MOE_COMBINE_SHARED, RIDGE_MOE_COMBINE_RESIDUAL /**< [tokens, cols] bf16, f16 or f32, optional */
};

/** dy[place[t, s]] = weights[t, s] * dout[t] and dweights[t, s] = the sum over cols of dout[t] * y[place[t, s]], in a fixed
 * order; 0 for a pair without a row. Rows that no place names are not written; no two places may be equal. */
RIDGE_API ridge_call ridge_moe_combine_bwd(int64_t tokens, int64_t slots, int64_t cols, ridge_tensor dout,
                                           ridge_tensor y, const int32_t *place, const float *weights, ridge_tensor dy,
                                           float *dweights);
enum {
    RIDGE_MOE_COMBINE_BWD_DOUT = 0, RIDGE_MOE_COMBINE_BWD_Y, /**< [tokens, cols]; [tokens * slots, cols], dtype of dout */
    RIDGE_MOE_COMBINE_BWD_PLACE, RIDGE_MOE_COMBINE_BWD_WEIGHTS, /**< [tokens, slots] i32; f32, optional */
    RIDGE_MOE_COMBINE_BWD_DY, /**< [tokens * slots, cols], dtype of dout */
    RIDGE_MOE_COMBINE_BWD_DWEIGHTS /**< [tokens, slots] f32, optional; y may be absent without it */
};

/** The gradient of the logits from that of moe_route's weights, the choice held: the rule, ROUTE_NORMALISE, scale and eps
 * of that call. A row with a NaN among its logits gets NaN. */
RIDGE_API ridge_call ridge_moe_route_bwd(int64_t tokens, int64_t experts, int64_t slots, ridge_tensor logits,
                                         const int32_t *ids, const float *dweights, ridge_tensor dlogits);
enum {
    RIDGE_MOE_ROUTE_BWD_LOGITS = 0, /**< [tokens, experts] f32 or bf16 */
    RIDGE_MOE_ROUTE_BWD_IDS, RIDGE_MOE_ROUTE_BWD_DWEIGHTS, /**< [tokens, slots] i32; f32 */
    RIDGE_MOE_ROUTE_BWD_DLOGITS, /**< [tokens, experts], dtype of logits; 0 of experts that the weights do not depend on */
    RIDGE_MOE_ROUTE_BWD_LOGIT_BIAS /**< [experts] f32, optional: added to the logits */
};
/** @} */

/** @defgroup hc Hyper-connections
 * What surrounds a sublayer of a model with hyper-connections (DeepSeek-V4): the state of a token is n_hc streams of
 * cols floats. hc_mix multiplies the streams, normed as one row, by a small matrix; hc_split makes of these numbers the
 * sublayer's input and the factors with which q8_0_matmul_hc_expand puts its result back. Per token, with z = mix *
 * scale + base (scale[0] for the first n_hc numbers, scale[1] for the next, scale[2] for the rest):
 *
 *     pre[h]        sigmoid(z[h]) + hc_eps
 *     post[h]       2 * sigmoid(z[n_hc + h])
 *     comb[r, c]    softmax over c of z[2 n_hc + n_hc r + c], + hc_eps; then every column is divided by its sum + hc_eps,
 *                   and `iterations` - 1 times every row and then every column
 *     out           rms_norm(sum over h of pre[h] * res[h]) * w
 *
 * comb lies as q8_0_matmul_hc_expand reads it: [dst + n_hc * src] = comb[src, dst]. n_hc is 1 to 16. Contract: exact,
 * batch-invariant.
 *
 * @code
 * ridge_tensor codes = ridge_scaled(x, RIDGE_I8, x_scales, RIDGE_SCALING_ROW32); // what q8_0_matmul reads
 * ridge_call call = ridge_hc_split(1, 4096, 4, res, ridge_matrix(fn, RIDGE_F16), scale, base,
 *                                  ridge_matrix(norm, RIDGE_F32), post, comb, codes);
 * @endcode
 * @{ */
/** Options of hc_mix (eps) and hc_split. */
typedef struct ridge_hc_options {
    float eps;          /**< of both norms: added to the mean square, finite and >= 0, default 1e-6 */
    float hc_eps;       /**< see above, within 1e-12 .. 1, default 1e-6 */
    int64_t iterations; /**< of columns, 1 to 1000, default 20 */
} ridge_hc_options;

/** mix[t, i] = dot(fn[i, :], res[t, :]) / sqrt(mean(res[t]^2) + eps), over all n_hc*cols. */
RIDGE_API ridge_call ridge_hc_mix(int64_t tokens, int64_t cols, int64_t n_hc, int64_t mixes, const float *res,
                                  ridge_tensor fn, float *mix);
enum {
    RIDGE_HC_MIX_RES = 0, /**< [tokens, n_hc*cols] f32: stream h from column h*cols on */
    RIDGE_HC_MIX_FN,      /**< [mixes, n_hc*cols] f16, bf16 or f32 */
    RIDGE_HC_MIX_OUT      /**< [tokens, mixes] f32 */
};

/** The input and the factors of a sublayer, from the n_hc*(2 + n_hc) numbers that hc_mix computes; they are not written.
 * post and comb NULL: of the output head, which has n_hc numbers. */
RIDGE_API ridge_call ridge_hc_split(int64_t tokens, int64_t cols, int64_t n_hc, const float *res, ridge_tensor fn,
                                    const float *scale, const float *base, ridge_tensor w, float *post, float *comb,
                                    ridge_tensor out);
enum {
    RIDGE_HC_SPLIT_RES = 0, RIDGE_HC_SPLIT_FN, /**< [tokens, n_hc*cols] f32; [numbers, n_hc*cols] f16, bf16 or f32 */
    RIDGE_HC_SPLIT_SCALE, RIDGE_HC_SPLIT_BASE, /**< [3], or [1] without post; [numbers] f32 */
    RIDGE_HC_SPLIT_OUT, RIDGE_HC_SPLIT_OUT_SCALES, /**< [tokens, cols] f32 or bf16, or i8 with scales ROW32 */
    RIDGE_HC_SPLIT_W, /**< [cols] f32 or bf16, optional */
    RIDGE_HC_SPLIT_POST, RIDGE_HC_SPLIT_COMB, /**< [tokens, n_hc], [tokens, n_hc*n_hc] f32, both or neither */
    RIDGE_HC_SPLIT_FLOATS /**< [tokens, cols] f32 output, optional, with codes: the floats that became them */
};
/** @} */

/** @defgroup divergence Divergence from a teacher
 * Of rows of logits, those of a student and of a teacher: with p and q the softmax of student / temperature and of
 * teacher / temperature, and m = beta q + (1 - beta) p,
 *
 *     loss = beta sum q log(q / m) + (1 - beta) sum p log(p / m)
 *
 * the Jensen-Shannon divergence of weight beta; beta 0: sum q log(q / p), forward KL; beta 1: sum p log(p / q), reverse
 * KL. A class of which p (q) is 0 adds nothing to the sum over p (q). dlogits is its gradient by the student's logits,
 * times scale. A row whose scale is 0 is left out: its loss and gradient are 0, its logits are not read. Contract: close,
 * stable, batch-invariant. Errors: RIDGE_ERR_ARG (beta outside 0 .. 1, temperature not positive and finite, no class, lse
 * without teacher_lse).
 *
 * A slice of the classes, as a rank has it: lse and teacher_lse are the logarithms of the sums of e^(logit /
 * temperature) over all classes (ce_fwd gives a slice's). A first call makes the slice's terms of loss and of own, the
 * sum of p log(p / m); the caller adds both over the slices. A second one, with that own as an input and without loss,
 * makes the slice's dlogits.
 *
 * @code
 * ridge_call call = ridge_divergence(rows, vocab, ridge_matrix(z, RIDGE_F32), ridge_matrix(y, RIDGE_F32), loss);
 * ridge_set(&call, RIDGE_DIVERGENCE_DLOGITS, RIDGE_BF16, dz, 0); // for the products that follow
 * @endcode
 * @{ */
/** Options of divergence. */
typedef struct ridge_divergence_options {
    float beta;        /**< 0 to 1, default 0.5 */
    float temperature; /**< finite, above 0, default 1 */
} ridge_divergence_options;

/** loss[i] of row i. */
RIDGE_API ridge_call ridge_divergence(int64_t rows, int64_t cols, ridge_tensor student, ridge_tensor teacher,
                                      float *loss);
enum {
    RIDGE_DIVERGENCE_STUDENT = 0, RIDGE_DIVERGENCE_TEACHER, /**< [rows, cols] f32, f16 or bf16, both the same */
    RIDGE_DIVERGENCE_LOSS,    /**< [rows] f32; RIDGE_NONE where dlogits of a slice are made */
    RIDGE_DIVERGENCE_DLOGITS, /**< [rows, cols] f32, f16 or bf16 output, optional */
    RIDGE_DIVERGENCE_SCALE,   /**< [rows] f32, optional */
    RIDGE_DIVERGENCE_LSE, RIDGE_DIVERGENCE_TEACHER_LSE, /**< [rows] f32, of slices */
    RIDGE_DIVERGENCE_OWN      /**< [rows] f32, of slices: an output, optional; where dlogits are made an input */
};
/** @} */

/* -------------------------------------------------------------------------------------------------------- the call */

/** The ops, each with the builder of that name; RIDGE_OPS is one more than the last. */
typedef enum ridge_op {
    RIDGE_OP_NONE = 0, RIDGE_SWIGLU_FWD, RIDGE_SWIGLU_BWD, RIDGE_QUANTIZE_FP8, RIDGE_QUANTIZE_FP8_DUAL,
    RIDGE_SWIGLU_QUANTIZE, RIDGE_GEMM_FP8, RIDGE_Q8_0_QUANTIZE, RIDGE_Q8_0_REPACK, RIDGE_Q8_0_UNPACK,
    RIDGE_Q8_0_QUANTIZE_ROWS, RIDGE_Q8_0_MATMUL, RIDGE_Q8_0_PAIR, RIDGE_Q8_0_GATE_UP_SWIGLU,
    RIDGE_Q8_0_MATMUL_HC_EXPAND, RIDGE_RMS_NORM, RIDGE_HEAD_RMS_NORM_ROPE_TAIL, RIDGE_ADD_RMS_NORM,
    RIDGE_RMS_NORM_BWD, RIDGE_ROPE, RIDGE_LINEAR_CE_EVAL, RIDGE_LINEAR_CE_TRAIN, RIDGE_LINEAR_CE_BACKWARD,
    RIDGE_CE_FWD, RIDGE_CE_BWD, RIDGE_CE_COMBINE, RIDGE_MULTIPLY, RIDGE_SUM, RIDGE_KV_APPEND, RIDGE_ATTENTION_DECODE,
    RIDGE_ATTENTION_PREFILL, RIDGE_KV_APPEND_ATTENTION,
    RIDGE_EMBED, RIDGE_SAMPLE, RIDGE_BLOCK_REPACK, RIDGE_BLOCK_UNPACK, RIDGE_BLOCK_MATMUL,
    RIDGE_BLOCK_PAIR, RIDGE_BLOCK_GATE_UP_SWIGLU, RIDGE_MOE_ROUTE,
    RIDGE_MOE_GATE_UP_SWIGLU, RIDGE_MOE_DOWN, RIDGE_GEMM_FP8_GROUPED,
    RIDGE_MOE_PERMUTE, RIDGE_MOE_PERMUTE_QUANTIZE, RIDGE_MOE_SWIGLU_QUANTIZE, RIDGE_MOE_COMBINE,
    RIDGE_MOE_COMBINE_BWD, RIDGE_MOE_ROUTE_BWD, RIDGE_MOE_SWIGLU_BWD_QUANTIZE, RIDGE_HC_MIX, RIDGE_HC_SPLIT,
    RIDGE_TRANSPOSE_FP8, RIDGE_DIVERGENCE, RIDGE_OPS
} ridge_op;

/** Capacity of a call. */
enum { RIDGE_MAX_DIMS = 6, RIDGE_MAX_ARGS = 24 };

/** One operand of a call; what ridge_set writes. */
typedef struct ridge_operand {
    void *data;        /**< as in ridge_tensor */
    int64_t stride;    /**< as in ridge_tensor; 0 for vectors */
    uint32_t dtype;    /**< ridge_dtype; RIDGE_NONE: absent */
    uint32_t reserved; /**< 0 */
} ridge_operand;

/** One call. Builders fill it; the layout is ABI, checked through struct_size. Pointers, strides, flags and options may
 * be changed from call to call: ridge_run looks at everything anew. */
struct ridge_call {
    uint32_t struct_size;              /**< sizeof(ridge_call) */
    uint32_t op;                       /**< ridge_op */
    uint32_t flags;                    /**< the builder's bits say the scalings; add RIDGE_* of the op with |= */
    uint32_t reserved;                 /**< 0 */
    const char *kernel;                /**< pin: a kernel's name; NULL lets the library pick */
    const char *invalid;               /**< what no call can express of the builder's arguments: ridge_run's error */
    int64_t dim[RIDGE_MAX_DIMS];       /**< in the builder's order, 0 .. 2^40; 0 beyond the op's */
    ridge_operand arg[RIDGE_MAX_ARGS]; /**< by the op's slots */
    union {
        ridge_swiglu_options swiglu;
        ridge_quantize_options quantize;
        ridge_swiglu_quantize_options swiglu_quantize;
        ridge_q8_0_options q8_0;
        ridge_norm_options norm;
        ridge_ce_options ce;
        ridge_kv_append_options kv_append;
        ridge_attention_options attention;
        ridge_kv_append_attention_options kv_append_attention;
        ridge_embed_options embed;
        ridge_sample_options sample;
        ridge_moe_route_options moe_route;
        ridge_moe_down_options moe_down;
        ridge_hc_options hc;
        ridge_divergence_options divergence;
        double space[16];
    } opt; /**< the op's options, at their defaults */
};

#ifdef __cplusplus
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
#endif

#endif
