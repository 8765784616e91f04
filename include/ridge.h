/* ridge.h: LLM kernels at the roofline, in plain C. The whole kernel API, in the one file that a user includes and
 * reads: that is why it is longer than other files may be.
 *
 *     ridge_device *dev;                                                  (NULL: the GPU if there is one, else the CPU)
 *     ridge_call call = ridge_swiglu_fwd(rows, cols, RIDGE_BF16, gate, up, out);
 *     if (ridge_open(NULL, &dev) != RIDGE_OK || ridge_run(dev, &call, NULL, 0, stream) != RIDGE_OK)
 *         puts(ridge_error());
 *     ridge_close(dev);
 *
 * A *builder* (ridge_swiglu_fwd) describes a call; ridge_run validates it, picks one kernel of the table and launches
 * it on the caller's stream. Nothing on that path allocates, synchronises, reads the environment or changes the current
 * CUDA device, and every call can be captured into a CUDA graph. A device is immutable and may be used by any number of
 * threads; two calls in flight need two workspaces. The library never prints (unless RIDGE_LOG asks), aborts or exits;
 * OpenMP's runtime, which the CPU kernels use, does where the system refuses it memory or a thread.
 *
 * Environment, read by ridge_open only:
 *     RIDGE_DEVICE   what ridge_open(NULL) opens: see ridge_open
 *     RIDGE_KERNEL   pins, "op=kernel" separated by commas
 *     RIDGE_TUNED    a tuning file that `ridge tune` wrote
 *     RIDGE_LOG      1: one line per call on stderr, itself a `ridge bench` command
 */
#ifndef RIDGE_H
#define RIDGE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RIDGE_VERSION_MAJOR 0
#define RIDGE_VERSION_MINOR 1
#define RIDGE_VERSION_PATCH 0

#if defined(__GNUC__)
#define RIDGE_API __attribute__((visibility("default")))
#else
#define RIDGE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ status and errors */

typedef enum ridge_status {
    RIDGE_OK = 0,
    RIDGE_ERR_ARG,         /* wrong on any device: null, misaligned, bad shape, mismatched dtype or option */
    RIDGE_ERR_UNSUPPORTED, /* valid, but no kernel of this build runs it here; ridge_explain says why, row by row */
    RIDGE_ERR_WORKSPACE,   /* the workspace is too small for every kernel that could run it */
    RIDGE_ERR_DEVICE,      /* the driver refused, or there is no such device */
    RIDGE_ERR_FILE         /* a file is malformed or cannot be read */
} ridge_status;

/* This thread's last message: op, operand, value. Empty before the first error. Valid until this thread's next error.
 */
RIDGE_API const char *ridge_error(void);

/* "RIDGE_OK", "RIDGE_ERR_ARG", ...; "RIDGE_ERR_UNKNOWN" for any other number. */
RIDGE_API const char *ridge_status_name(ridge_status status);

/* "0.1.0" */
RIDGE_API const char *ridge_version(void);

/* --------------------------------------------------------------------------------------------------------- devices */

/* Immutable once opened: backend, architecture, SM count, caches, pins, tuned rows. */
typedef struct ridge_device ridge_device;

/* Opens a device. spec:
 *     NULL or ""     RIDGE_DEVICE if it is set, else "auto"
 *     "auto"         the first CUDA device, else the CPU
 *     "cpu"          the CPU at its best instruction set; "cpu:avx512", "cpu:avx2" and "cpu:c" restrict it
 *     "cuda", "cuda:1"
 *     "model:sm100"  a device that answers ridge_explain, ridge_pick and ridge_workspace_bytes as that architecture
 *                    would and launches nothing (any name that `ridge info` lists)
 * Errors: RIDGE_ERR_ARG (unknown spec, unknown pin), RIDGE_ERR_DEVICE (no such device or no such instruction set; no
 * memory), RIDGE_ERR_FILE (the tuning file; the text gives the line). On error *device is NULL. */
RIDGE_API ridge_status ridge_open(const char *spec, ridge_device **device);

/* NULL is allowed. No function may be using the device. */
RIDGE_API void ridge_close(ridge_device *device);

typedef struct ridge_device_info {
    uint32_t struct_size; /* set by the caller to sizeof(ridge_device_info) */
    int32_t ordinal;      /* CUDA ordinal; -1 for the CPU and for models */
    char backend[16];     /* "cpu", "cuda"; of a model, that of its architecture */
    char arch[16];        /* "c", "avx2", "avx512", "sm80", ... */
    char name[128];       /* as the driver or the processor says */
    int32_t units;        /* streaming multiprocessors, or threads OpenMP would use */
    int32_t tuned_rows;   /* lines of tuning that apply to this device */
    int64_t l2_bytes;     /* last-level cache; 0 if unknown */
    int64_t memory_bytes; /* of the device, in all; 0 if unknown, as for models */
} ridge_device_info;

/* Errors: RIDGE_ERR_ARG (a pointer is NULL, struct_size is not this library's). */
RIDGE_API ridge_status ridge_device_query(const ridge_device *device, ridge_device_info *info);

/* ----------------------------------------------------------------------------------------------------------- calls */

typedef enum ridge_dtype {
    RIDGE_NONE = 0, /* an absent operand */
    RIDGE_F32,
    RIDGE_F16,
    RIDGE_BF16,
    RIDGE_E4M3, /* OCP E4M3FN */
    RIDGE_E5M2, /* OCP E5M2 */
    RIDGE_F64,
    RIDGE_I8,
    RIDGE_U8,
    RIDGE_I32,
    RIDGE_I64,
    RIDGE_DTYPES
} ridge_dtype;

typedef enum ridge_op {
    RIDGE_OP_NONE = 0,
    RIDGE_SWIGLU_FWD,
    RIDGE_SWIGLU_BWD,
    RIDGE_QUANTIZE_FP8,
    RIDGE_QUANTIZE_FP8_DUAL,
    RIDGE_SWIGLU_QUANTIZE,
    RIDGE_GEMM_FP8,
    RIDGE_Q8_0_QUANTIZE,
    RIDGE_Q8_0_REPACK,
    RIDGE_Q8_0_UNPACK,
    RIDGE_Q8_0_QUANTIZE_ROWS,
    RIDGE_Q8_0_MATMUL,
    RIDGE_Q8_0_PAIR,
    RIDGE_Q8_0_GATE_UP_SWIGLU,
    RIDGE_Q8_0_MATMUL_HC_EXPAND,
    RIDGE_RMS_NORM,
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL,
    RIDGE_LINEAR_CE_EVAL,
    RIDGE_LINEAR_CE_TRAIN,
    RIDGE_LINEAR_CE_BACKWARD,
    RIDGE_CE_FWD,
    RIDGE_CE_BWD,
    RIDGE_CE_COMBINE,
    RIDGE_MULTIPLY,
    RIDGE_OPS
} ridge_op;

enum { RIDGE_MAX_DIMS = 6, RIDGE_MAX_ARGS = 24 };

/* Flags of every op. */
/* only batch-invariant kernels (ops without that contract: stable ones), and gemm_fp8's bound on every input */
#define RIDGE_STRICT 0x1u
#define RIDGE_WEIGHTS_SETTLED 0x2u /* no earlier work still running on this stream writes the weights */

/* An operand: pointer, dtype and row stride in elements (0 = packed: the row's own length). Vectors have one row. */
typedef struct ridge_operand {
    void *data;     /* a multiple of the element's size; NULL is fine where there are no elements */
    int64_t stride; /* below 2^40 bytes; 0 for vectors */
    uint32_t dtype;
    uint32_t reserved;
} ridge_operand;

/* Options of swiglu_fwd, swiglu_bwd and q8_0_gate_up_swiglu; all finite. */
typedef struct ridge_swiglu_options {
    float gate_mul;  /* default 1 */
    float down_mul;  /* default 1 */
    float alpha;     /* sigmoid(alpha a'), SiLU only, default 1 (gpt-oss: 1.702) */
    float up_offset; /* added to the clamped up, default 0 (gpt-oss: 1) */
    float limit;     /* gate <= limit, up in [-limit, limit], > 0; default 0: no clamp */
} ridge_swiglu_options;

/* Options of quantize_fp8 and quantize_fp8_dual. */
typedef struct ridge_quantize_options {
    float floor; /* least amax of a group, finite and >= 0, default 0 */
} ridge_quantize_options;

/* Options of swiglu_quantize. */
typedef struct ridge_swiglu_quantize_options {
    ridge_swiglu_options swiglu;
    float floor; /* as in ridge_quantize_options */
} ridge_swiglu_quantize_options;

/* Options of rms_norm and head_rms_norm_rope_tail. */
typedef struct ridge_norm_options {
    float eps;    /* added to the mean square, finite and >= 0, default 1e-6 */
    float mscale; /* rope only (else 1): factor of sine and cosine (YaRN's attention factor), finite, default 1 */
} ridge_norm_options;

/* Options of linear_ce_*, ce_fwd, ce_bwd; of ce_combine only ignore_index, label_smoothing and lse_square_scale. */
typedef struct ridge_ce_options {
    int64_t ignore_index;   /* a row with this target is left out, default -100 */
    int64_t vocab_offset;   /* first class of this shard of the vocabulary, default 0 */
    int64_t vocab_total;    /* classes of all shards, default 0: this call has them all */
    float label_smoothing;  /* eps in [0, 1], default 0 */
    float softcap;          /* z = softcap tanh(u / softcap), finite and > 0, default 0: none */
    float temperature;      /* z / temperature, finite and > 0, default 1 */
    float lse_square_scale; /* z-loss: this times lse^2, finite and >= 0, default 0 */
    float grad_scale;       /* linear_ce_train: gradients are those of grad_scale * loss, finite, default 1 */
    float reserved;
} ridge_ce_options;

/* One call. Builders fill it; the layout is ABI and is checked through struct_size. Optional operands are named slots
 * of arg[], absent while their dtype is RIDGE_NONE: see ridge_set. After changing a pointer or stride by hand, nothing
 * else needs updating: the alignment class that dispatch sees is computed by ridge_run. */
typedef struct ridge_call {
    uint32_t struct_size;
    uint32_t op;
    uint32_t flags;
    uint32_t reserved;
    const char *kernel;          /* pin: a kernel's name; NULL lets the library pick */
    int64_t dim[RIDGE_MAX_DIMS]; /* in the builder's order, 0 .. 2^40; 0 beyond the op's */
    ridge_operand arg[RIDGE_MAX_ARGS];
    union {
        ridge_swiglu_options swiglu;
        ridge_quantize_options quantize;
        ridge_swiglu_quantize_options swiglu_quantize;
        ridge_norm_options norm;

        ridge_ce_options ce;
        double space[16];
    } opt;
} ridge_call;

/* Sets operand `slot` of a call: stride in elements, 0 = packed. A NULL pointer makes an optional operand absent. */
static inline void ridge_set(ridge_call *call, int slot, ridge_dtype dtype, const void *data, int64_t stride)
{
    call->arg[slot].data = (void *)(uintptr_t)data;
    call->arg[slot].stride = stride;
    call->arg[slot].dtype = (uint32_t)dtype;
}

/* Runs a call on `stream` (a cudaStream_t; ignored on the CPU, where the call returns when the work is done): operands
 * and workspace must stay until then, the struct need not. `workspace` is device memory, 256-byte aligned, beside all
 * operands, contents undefined at entry; ridge_workspace_bytes says how much. Of pointers only their numbers are
 * checked: memory of another device ends as the driver or a signal says. Errors leave every output untouched:
 * RIDGE_ERR_ARG, RIDGE_ERR_UNSUPPORTED, RIDGE_ERR_WORKSPACE, RIDGE_ERR_DEVICE. */
RIDGE_API ridge_status ridge_run(const ridge_device *device, const ridge_call *call, void *workspace,
                                 size_t workspace_bytes, void *stream);

/* The workspace, in bytes, of the kernel that an unlimited workspace would pick; 0 on error. A smaller one is legal
 * where another row can run. Errors, of ridge_pick too: as ridge_run's. */
RIDGE_API ridge_status ridge_workspace_bytes(const ridge_device *device, const ridge_call *call, size_t *bytes);

/* The name of the kernel that ridge_run would launch with this workspace; NULL on error. The string is static. */
RIDGE_API ridge_status ridge_pick(const ridge_device *device, const ridge_call *call, size_t workspace_bytes,
                                  const char **kernel);

/* Every kernel row of the op for the device's backend with its verdict, a line each, into text (terminated if size >
 * 0); *length (may be NULL) receives the full length. RIDGE_OK also where no row can run it. Errors: RIDGE_ERR_ARG. */
RIDGE_API ridge_status ridge_explain(const ridge_device *device, const ridge_call *call, char *text, size_t size,
                                     size_t *length);

/* ---------------------------------------------------------------------------------------------------------- swiglu
 *
 * Gate and up [rows, cols]; a' = gate * gate_mul, b = up + up_offset, gate and up clamped by `limit` before.
 *     forward    h = act(a');  out = ((h * b) * down_mul) * row_scale[row]
 *     backward   dy = (dout * down_mul) * row_scale[row];  dup = dy * h;  dgate = ((dy * b) * gate_mul) * act'(a')
 * act: SiLU a' * sigmoid(alpha a'), GELU (tanh form or erf), or max(a', 0)^2. A gate or up that was clamped has the
 * gradient 0. f32 arithmetic in that order, one rounding to the dtype. Contract: exact (the same bits on every backend
 * and kernel), batch-invariant. docs/numerics.md, SwiGLU. Layouts: two tensors; halves of one [rows, 2 cols] (up = gate
 * + cols, both strides 2 cols); RIDGE_INTERLEAVED. An output may be exactly one of the inputs (same pointer, stride and
 * dtype); otherwise operands must not overlap. */

#define RIDGE_SILU 0u
#define RIDGE_GELU_TANH 0x100u
#define RIDGE_GELU_ERF 0x200u
#define RIDGE_RELU2 0x300u
#define RIDGE_ACTIVATION 0x300u /* mask of the four above */
#define RIDGE_ROUND_GATE 0x400u /* forward: round h to the dtype before the product, as PyTorch eager and Liger do */
#define RIDGE_ROUND_GATE_BWD 0x800u /* backward: round h and dy * b to the dtype, as PyTorch eager does */
#define RIDGE_INTERLEAVED \
    0x1000u /* gate is [rows, 2 cols]: gate, up, gate, up, ...; up is absent (dgate, dup likewise) */

enum {
    RIDGE_SWIGLU_FWD_GATE = 0, /* [rows, cols] bf16, f16 or f32 */
    RIDGE_SWIGLU_FWD_UP,       /* [rows, cols], absent when interleaved */
    RIDGE_SWIGLU_FWD_OUT,      /* [rows, cols], dtype of gate */
    RIDGE_SWIGLU_FWD_ROW_SCALE /* [rows] f32, optional */
};
enum {
    RIDGE_SWIGLU_BWD_DOUT = 0,  /* [rows, cols] bf16, f16 or f32; the next four have its dtype */
    RIDGE_SWIGLU_BWD_GATE,      /* [rows, cols] */
    RIDGE_SWIGLU_BWD_UP,        /* [rows, cols], absent when interleaved */
    RIDGE_SWIGLU_BWD_DGATE,     /* [rows, cols] */
    RIDGE_SWIGLU_BWD_DUP,       /* [rows, cols], absent when interleaved */
    RIDGE_SWIGLU_BWD_ROW_SCALE, /* [rows] f32, optional */
    RIDGE_SWIGLU_BWD_DROW /* [rows] f32 output, optional: sum over columns of dout * ((h * b) * down_mul), fixed order
                           */
};

static inline void ridge_call_init(ridge_call *call, ridge_op op)
{
    memset(call, 0, sizeof *call);
    call->struct_size = (uint32_t)sizeof *call;
    call->op = (uint32_t)op;
}

static inline void ridge_swiglu_defaults(ridge_call *call)
{
    call->opt.swiglu.gate_mul = 1.0f;
    call->opt.swiglu.down_mul = 1.0f;
    call->opt.swiglu.alpha = 1.0f;
    call->opt.swiglu.up_offset = 0.0f;
    call->opt.swiglu.limit = 0.0f;
}

/* out = act(gate) * up, all [rows, cols] and packed; change strides, options and flags in the result. */
static inline ridge_call ridge_swiglu_fwd(int64_t rows, int64_t cols, ridge_dtype dtype, const void *gate,
                                          const void *up, void *out)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_SWIGLU_FWD);
    ridge_swiglu_defaults(&call);
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_SWIGLU_FWD_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_SWIGLU_FWD_UP, dtype, up, 0);
    ridge_set(&call, RIDGE_SWIGLU_FWD_OUT, dtype, out, 0);
    return call;
}

/* dgate and dup from dout and the saved gate and up, all [rows, cols] and packed. Each may be gate, up or dout. */
static inline ridge_call ridge_swiglu_bwd(int64_t rows, int64_t cols, ridge_dtype dtype, const void *dout,
                                          const void *gate, const void *up, void *dgate, void *dup)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_SWIGLU_BWD);
    ridge_swiglu_defaults(&call);
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_SWIGLU_BWD_DOUT, dtype, dout, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_UP, dtype, up, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_DGATE, dtype, dgate, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_DUP, dtype, dup, 0);
    return call;
}

/* ---------------------------------------------------------------------------------------------------- FP8 quantise
 *
 * x [rows, cols] bf16, f16 or f32 -> codes e4m3 or e5m2 and f32 scales; value = code * scale. Each group of elements
 * has one scale: amax / 448 (e5m2: / 57344), 1 for a group of zeros, optionally rounded up to a power of two; codes are
 * x * (1 / scale), rounded to nearest even. A group that holds a NaN or an infinity gets scale NaN and codes 7F.
 * Contract: exact. docs/numerics.md, FP8. */

#define RIDGE_SCALE_TENSOR 0u       /* [1]: one scale */
#define RIDGE_SCALE_ROW 0x10000u    /* [rows]: one a row */
#define RIDGE_SCALE_ROW128 0x20000u /* [ceil(cols/128)][ld >= rows]: one per row and 128 columns */
#define RIDGE_SCALE_BLK128 0x30000u /* [ceil(rows/128)][ceil(cols/128)]: one per 128 x 128 */
#define RIDGE_SCALE 0x30000u        /* mask of the four above */
#define RIDGE_POW2 0x40000u         /* scales are powers of two */

/* Forms of quantize_fp8_dual and swiglu_quantize: the scales of q, and those of q_t. */
#define RIDGE_DUAL_ROW_ROW 0u       /* ROW128 and ROW128: activations and gradients */
#define RIDGE_DUAL_ROW_BLK 0x10000u /* ROW128 and BLK128 */
#define RIDGE_DUAL_BLK_BLK 0x20000u /* BLK128 and BLK128: weights */
#define RIDGE_DUAL 0x30000u         /* mask */

/* Row strides on the fast path: codes of `cols` columns, a ROW128 scale table of `rows` rows, and the int8 plane of
 * Q8_0. */
static inline int64_t ridge_ld_fp8(int64_t cols)
{
    return (cols + 15) / 16 * 16;
}

static inline int64_t ridge_ld_scale(int64_t rows)
{
    return (rows + 3) / 4 * 4;
}

static inline int64_t ridge_ld_q8_0(int64_t cols)
{
    return (cols + 127) / 128 * 128;
}

enum {
    RIDGE_QUANTIZE_FP8_X = 0, /* [rows, cols] bf16, f16 or f32 */
    RIDGE_QUANTIZE_FP8_Q,     /* [rows, cols] e4m3 or e5m2 */
    RIDGE_QUANTIZE_FP8_SCALE, /* f32, by the mode; absent when GIVEN is there */
    RIDGE_QUANTIZE_FP8_GIVEN, /* f32 input, optional, TENSOR and ROW, no floor, no POW2: the caller's scales (delayed
                                 scaling). One not finite and positive gives codes 7F, as do NaN and infinity in x */
    RIDGE_QUANTIZE_FP8_AMAX   /* f32 output, optional, TENSOR and ROW: the largest |x|; NaN if any is not finite */
};

/* The codes and scales of x. `scale` is one of RIDGE_SCALE_*, `format` RIDGE_E4M3 or RIDGE_E5M2. */
static inline ridge_call ridge_quantize_fp8(int64_t rows, int64_t cols, ridge_dtype dtype, const void *x,
                                            uint32_t scale, ridge_dtype format, void *q, float *scales)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_QUANTIZE_FP8);
    call.flags = scale;
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_QUANTIZE_FP8_X, dtype, x, 0);
    ridge_set(&call, RIDGE_QUANTIZE_FP8_Q, format, q, 0);
    ridge_set(&call, RIDGE_QUANTIZE_FP8_SCALE, RIDGE_F32, scales, 0);
    return call;
}

enum {
    RIDGE_QUANTIZE_FP8_DUAL_X = 0, /* [rows, cols] bf16, f16 or f32 */
    RIDGE_QUANTIZE_FP8_DUAL_Q,     /* [rows, cols] e4m3 or e5m2 */
    RIDGE_QUANTIZE_FP8_DUAL_SCALE, /* ROW128 [ceil(cols/128)][ld >= rows] or BLK128 [ceil(rows/128)][ceil(cols/128)] */
    RIDGE_QUANTIZE_FP8_DUAL_Q_T,   /* [cols, rows], as q */
    RIDGE_QUANTIZE_FP8_DUAL_SCALE_T, /* of q_t, likewise with rows and cols exchanged */
    RIDGE_QUANTIZE_FP8_DUAL_COLSUM   /* [cols] f32, optional: sums over rows in a fixed order (a bias gradient) */
};

/* x and its transpose in one read, both with the contraction dimension contiguous. `form` is one of RIDGE_DUAL_*. */
static inline ridge_call ridge_quantize_fp8_dual(int64_t rows, int64_t cols, ridge_dtype dtype, const void *x,
                                                 uint32_t form, ridge_dtype format, void *q, float *scale, void *q_t,
                                                 float *scale_t)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_QUANTIZE_FP8_DUAL);
    call.flags = form;
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_QUANTIZE_FP8_DUAL_X, dtype, x, 0);
    ridge_set(&call, RIDGE_QUANTIZE_FP8_DUAL_Q, format, q, 0);
    ridge_set(&call, RIDGE_QUANTIZE_FP8_DUAL_SCALE, RIDGE_F32, scale, 0);
    ridge_set(&call, RIDGE_QUANTIZE_FP8_DUAL_Q_T, format, q_t, 0);
    ridge_set(&call, RIDGE_QUANTIZE_FP8_DUAL_SCALE_T, RIDGE_F32, scale_t, 0);
    return call;
}

enum {
    RIDGE_SWIGLU_QUANTIZE_GATE = 0, /* as swiglu_fwd */
    RIDGE_SWIGLU_QUANTIZE_UP,
    RIDGE_SWIGLU_QUANTIZE_Q, /* as quantize_fp8_dual of swiglu_fwd's out */
    RIDGE_SWIGLU_QUANTIZE_SCALE,
    RIDGE_SWIGLU_QUANTIZE_Q_T,
    RIDGE_SWIGLU_QUANTIZE_SCALE_T,
    RIDGE_SWIGLU_QUANTIZE_ROW_SCALE /* [rows] f32, optional */
};

/* swiglu_fwd followed by quantize_fp8_dual, bit for bit, without writing swiglu_fwd's out. Flags and options of both.
 */
static inline ridge_call ridge_swiglu_quantize(int64_t rows, int64_t cols, ridge_dtype dtype, const void *gate,
                                               const void *up, uint32_t form, ridge_dtype format, void *q, float *scale,
                                               void *q_t, float *scale_t)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_SWIGLU_QUANTIZE);
    ridge_swiglu_defaults(&call);
    call.flags = form;
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_UP, dtype, up, 0);
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_Q, format, q, 0);
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_SCALE, RIDGE_F32, scale, 0);
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_Q_T, format, q_t, 0);
    ridge_set(&call, RIDGE_SWIGLU_QUANTIZE_SCALE_T, RIDGE_F32, scale_t, 0);
    return call;
}

/* ------------------------------------------------------------------------------------------------------------ Q8_0
 *
 * GGUF's block of 32 weights in 34 bytes: f16 d, then 32 int8; weight = d * code. On a device ridge keeps two planes
 * instead: int8 codes and f16 d. cols is a multiple of 32. Contract: exact. docs/numerics.md, Q8_0. */

enum {
    RIDGE_Q8_0_QUANTIZE_X = 0, /* [rows, cols] bf16, f16 or f32 */
    RIDGE_Q8_0_QUANTIZE_BLOCKS /* [rows, cols/32*34] u8 */
};
enum {
    RIDGE_Q8_0_REPACK_BLOCKS = 0, /* [rows, cols/32*34] u8 */
    RIDGE_Q8_0_REPACK_CODES,      /* [rows, cols] i8; row stride ridge_ld_q8_0(cols) is the fast path */
    RIDGE_Q8_0_REPACK_SCALES      /* [rows, cols/32] f16 */
};

/* The blocks of x, byte for byte ggml's reference on finite input. */
static inline ridge_call ridge_q8_0_quantize(int64_t rows, int64_t cols, ridge_dtype dtype, const void *x, void *blocks)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_Q8_0_QUANTIZE);
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_X, dtype, x, 0);
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_BLOCKS, RIDGE_U8, blocks, 0);
    return call;
}

static inline ridge_call ridge_q8_0_planes(ridge_op op, int64_t rows, int64_t cols, const void *blocks,
                                           const void *codes, const void *scales)
{
    ridge_call call;
    ridge_call_init(&call, op);
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_Q8_0_REPACK_BLOCKS, RIDGE_U8, blocks, 0);
    ridge_set(&call, RIDGE_Q8_0_REPACK_CODES, RIDGE_I8, codes, 0);
    ridge_set(&call, RIDGE_Q8_0_REPACK_SCALES, RIDGE_F16, scales, 0);
    return call;
}

/* blocks -> planes. */
static inline ridge_call ridge_q8_0_repack(int64_t rows, int64_t cols, const void *blocks, void *codes, void *scales)
{
    return ridge_q8_0_planes(RIDGE_Q8_0_REPACK, rows, cols, blocks, codes, scales);
}

/* planes -> blocks, the inverse byte for byte. The operands have repack's slots. */
static inline ridge_call ridge_q8_0_unpack(int64_t rows, int64_t cols, void *blocks, const void *codes,
                                           const void *scales)
{
    return ridge_q8_0_planes(RIDGE_Q8_0_UNPACK, rows, cols, blocks, codes, scales);
}

/* ------------------------------------------------------------------------------------------------------------ FP8 GEMM
 *
 * D = A B^T (+ bias) (+ D): A [m, k] and B [n, k] are fp8 codes with f32 scales, both with the contraction dimension k
 * contiguous, as quantize_fp8 and quantize_fp8_dual write them; value = code * scale.
 *     TENSOR, ROW    D[i,j] = (sA * sB) * sum over k of a * b  + bias[j] + D[i,j]
 *     by 128 of k    D[i,j] = sum over the 128-blocks of k of (sA * sB) * (sum over the block of a * b)  + ...
 * f32 accumulation (at least every 128 of k), one rounding to D's dtype, overflow gives infinity. Any m, n, k below
 * 2^31; m = 0 or n = 0 writes nothing; k = 0 writes the bias or zero, or leaves D when accumulating. Nothing beyond m,
 * n and k is read into a result. Contract: stable, close, and batch-invariant for m in 1 .. 64 and for m > 64 (the two
 * ranges need not agree). docs/numerics.md, FP8 GEMM.
 * Errors (RIDGE_ERR_ARG): e5m2 times e5m2, a pair of scale modes that is not one of the five, accumulation into f16. */

/* Scale modes: those of A are RIDGE_SCALE_* above, with rows = m or n and cols = k; those of B are these. Legal pairs:
 * TENSOR x TENSOR, ROW x ROW, ROW128 x BLK128 (forward and dgrad), ROW128 x ROW128 (wgrad), BLK128 x ROW128. */
#define RIDGE_SCALE_B_TENSOR 0u        /* [1] */
#define RIDGE_SCALE_B_ROW 0x100000u    /* [n] */
#define RIDGE_SCALE_B_ROW128 0x200000u /* [ceil(k/128)][ld >= n] */
#define RIDGE_SCALE_B_BLK128 0x300000u /* [ceil(n/128)][ceil(k/128)] */
#define RIDGE_SCALE_B 0x300000u        /* mask of the four above */
#define RIDGE_ACCUMULATE 0x400000u     /* D is an input too: the result is added to it (f32 and bf16) */

enum {
    RIDGE_GEMM_FP8_A = 0,   /* [m, k] e4m3 or e5m2; a row stride that is a multiple of 16 is the fast path */
    RIDGE_GEMM_FP8_SCALE_A, /* f32: TENSOR [1], ROW [m], ROW128 [ceil(k/128)][ld >= m], BLK128
                             * [ceil(m/128)][ceil(k/128)]
                             */
    RIDGE_GEMM_FP8_B,       /* [n, k] e4m3 or e5m2, not e5m2 when A is */
    RIDGE_GEMM_FP8_SCALE_B, /* likewise with n for m */
    RIDGE_GEMM_FP8_D,       /* [m, n] bf16, f16 or f32; read as well with RIDGE_ACCUMULATE */
    RIDGE_GEMM_FP8_BIAS     /* [n] f32 or D's dtype, optional */
};

/* D [m, n] = A [m, k] B [n, k]^T, all packed. `scale_a_mode` is one of RIDGE_SCALE_*, `scale_b_mode` of
 * RIDGE_SCALE_B_*; with RIDGE_ACCUMULATE in the result's flags D is added to. */
static inline ridge_call ridge_gemm_fp8(int64_t m, int64_t n, int64_t k, ridge_dtype a_format, const void *a,
                                        uint32_t scale_a_mode, const float *scale_a, ridge_dtype b_format,
                                        const void *b, uint32_t scale_b_mode, const float *scale_b, ridge_dtype d_dtype,
                                        void *d)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_GEMM_FP8);
    call.flags = scale_a_mode | scale_b_mode;
    call.dim[0] = m;
    call.dim[1] = n;
    call.dim[2] = k;
    ridge_set(&call, RIDGE_GEMM_FP8_A, a_format, a, 0);
    ridge_set(&call, RIDGE_GEMM_FP8_SCALE_A, RIDGE_F32, scale_a, 0);
    ridge_set(&call, RIDGE_GEMM_FP8_B, b_format, b, 0);
    ridge_set(&call, RIDGE_GEMM_FP8_SCALE_B, RIDGE_F32, scale_b, 0);
    ridge_set(&call, RIDGE_GEMM_FP8_D, d_dtype, d, 0);
    return call;
}

/* ----------------------------------------------------------------------------------------------------- Q8_0 decode
 *
 * Products of Q8_0 weights with the activations of 1 to 16 tokens. cols, the contraction dimension, is a multiple of
 * 32. A weight matrix [rows, cols] comes in one of two forms, which give the same bits:
 *     blocks   w u8 [rows, cols/32*34] as in a GGUF file, w_scales absent
 *     planes   w i8 [rows, cols] and w_scales f16 [rows, cols/32], the output of q8_0_repack
 * Activations likewise: x f32 or bf16 [tokens, cols], quantised inside, x_scales absent; or x i8 [tokens, cols] and
 * x_scales f32 [tokens, cols/32], the output of q8_0_quantize_rows. The sum over cols has one fixed order
 * (docs/numerics.md, Q8_0 decode). Contract: exact, batch-invariant: a token's result is the same bits whatever the
 * number of tokens, the form of the operands and the kernel; a fused op gives the bits of its parts one by one.
 * Errors: RIDGE_ERR_ARG for more than 16 tokens, cols that are no multiple of 32, a form whose scales are missing.
 * 0 tokens or rows write nothing; 0 cols is a sum of 0. Fast rows want the workspace that ridge_workspace_bytes names
 * (a few KB a token); with less, a slower row runs or RIDGE_ERR_WORKSPACE comes back. */

enum { RIDGE_Q8_0_MAX_TOKENS = 16, RIDGE_MAX_HC = 16 };

enum {
    RIDGE_Q8_0_QUANTIZE_ROWS_X = 0, /* [rows, cols] f32 or bf16, any number of rows */
    RIDGE_Q8_0_QUANTIZE_ROWS_CODES, /* [rows, cols] i8 */
    RIDGE_Q8_0_QUANTIZE_ROWS_SCALES /* [rows, cols/32] f32 */
};
enum {
    RIDGE_Q8_0_MATMUL_X = 0,    /* [tokens, cols] f32, bf16 or i8 */
    RIDGE_Q8_0_MATMUL_X_SCALES, /* [tokens, cols/32] f32, with x i8 */
    RIDGE_Q8_0_MATMUL_W,        /* [rows, cols/32*34] u8 or [rows, cols] i8 */
    RIDGE_Q8_0_MATMUL_W_SCALES, /* [rows, cols/32] f16, with w i8 */
    RIDGE_Q8_0_MATMUL_OUT       /* [tokens, rows] f32 or bf16 */
};
enum {
    RIDGE_Q8_0_PAIR_X = 0, /* x as q8_0_matmul; the two weights have one form, the two outs one dtype */
    RIDGE_Q8_0_PAIR_X_SCALES,
    RIDGE_Q8_0_PAIR_W0, /* rows0 high */
    RIDGE_Q8_0_PAIR_W0_SCALES,
    RIDGE_Q8_0_PAIR_W1, /* rows1 high */
    RIDGE_Q8_0_PAIR_W1_SCALES,
    RIDGE_Q8_0_PAIR_OUT0, /* [tokens, rows0] f32 or bf16 */
    RIDGE_Q8_0_PAIR_OUT1  /* [tokens, rows1] */
};
enum {
    RIDGE_Q8_0_GATE_UP_SWIGLU_X = 0, /* x as q8_0_matmul; the two weights have one form */
    RIDGE_Q8_0_GATE_UP_SWIGLU_X_SCALES,
    RIDGE_Q8_0_GATE_UP_SWIGLU_GATE,
    RIDGE_Q8_0_GATE_UP_SWIGLU_GATE_SCALES,
    RIDGE_Q8_0_GATE_UP_SWIGLU_UP,
    RIDGE_Q8_0_GATE_UP_SWIGLU_UP_SCALES,
    RIDGE_Q8_0_GATE_UP_SWIGLU_OUT,        /* [tokens, rows] f32 or bf16 */
    RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE /* [tokens] f32, optional: the weight of a mixture's expert */
};
enum {
    RIDGE_Q8_0_MATMUL_HC_EXPAND_X = 0, /* x and w as q8_0_matmul */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_X_SCALES,
    RIDGE_Q8_0_MATMUL_HC_EXPAND_W,
    RIDGE_Q8_0_MATMUL_HC_EXPAND_W_SCALES,
    RIDGE_Q8_0_MATMUL_HC_EXPAND_POST, /* [tokens, n_hc] f32 */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB, /* [tokens, n_hc*n_hc] f32, entry dst + n_hc*src */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_RES,  /* [tokens, n_hc*rows] f32: stream src at columns src*rows .. */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD,  /* [tokens, rows] f32, optional: added to W x */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT,  /* [tokens, n_hc*rows] f32 */
    RIDGE_Q8_0_MATMUL_HC_EXPAND_Y     /* [tokens, rows] f32 output, optional: W x itself */
};

/* codes and scales of x, a scale for every 32 columns: scale = amax/127, code = x * (1/scale) to nearest even. A group
 * that holds a NaN or an infinity gets scale NaN and codes 0; one whose scale would be below 2^-126, zeros. */
static inline ridge_call ridge_q8_0_quantize_rows(int64_t rows, int64_t cols, ridge_dtype dtype, const void *x,
                                                  void *codes, void *scales)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_Q8_0_QUANTIZE_ROWS);
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_X, dtype, x, 0);
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_CODES, RIDGE_I8, codes, 0);
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_SCALES, RIDGE_F32, scales, 0);
    return call;
}

/* Weights in slot and slot + 1: blocks if scales is NULL, else planes. For other strides, ridge_set the two slots. */
static inline void ridge_set_q8_0(ridge_call *call, int slot, const void *w, const void *scales)
{
    ridge_set(call, slot, scales ? RIDGE_I8 : RIDGE_U8, w, 0);
    ridge_set(call, slot + 1, scales ? RIDGE_F16 : RIDGE_NONE, scales, 0);
}

/* Activations in slots 0 and 1. */
static inline void ridge_set_q8_0_x(ridge_call *call, ridge_dtype dtype, const void *x, const void *scales)
{
    ridge_set(call, 0, dtype, x, 0);
    ridge_set(call, 1, scales ? RIDGE_F32 : RIDGE_NONE, scales, 0);
}

/* out[t, r] = sum over cols of w[r, :] * x[t, :]. */
static inline ridge_call ridge_q8_0_matmul(int64_t tokens, int64_t cols, int64_t rows, ridge_dtype x_dtype,
                                           const void *x, const void *x_scales, const void *w, const void *w_scales,
                                           ridge_dtype out_dtype, void *out)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_Q8_0_MATMUL);
    call.dim[0] = tokens;
    call.dim[1] = cols;
    call.dim[2] = rows;
    ridge_set_q8_0_x(&call, x_dtype, x, x_scales);
    ridge_set_q8_0(&call, RIDGE_Q8_0_MATMUL_W, w, w_scales);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_OUT, out_dtype, out, 0);
    return call;
}

/* Two q8_0_matmul of one x: w0 [rows0, cols] and w1 [rows1, cols]. */
static inline ridge_call ridge_q8_0_pair(int64_t tokens, int64_t cols, int64_t rows0, int64_t rows1,
                                         ridge_dtype x_dtype, const void *x, const void *x_scales, const void *w0,
                                         const void *w0_scales, const void *w1, const void *w1_scales,
                                         ridge_dtype out_dtype, void *out0, void *out1)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_Q8_0_PAIR);
    call.dim[0] = tokens;
    call.dim[1] = cols;
    call.dim[2] = rows0;
    call.dim[3] = rows1;
    ridge_set_q8_0_x(&call, x_dtype, x, x_scales);
    ridge_set_q8_0(&call, RIDGE_Q8_0_PAIR_W0, w0, w0_scales);
    ridge_set_q8_0(&call, RIDGE_Q8_0_PAIR_W1, w1, w1_scales);
    ridge_set(&call, RIDGE_Q8_0_PAIR_OUT0, out_dtype, out0, 0);
    ridge_set(&call, RIDGE_Q8_0_PAIR_OUT1, out_dtype, out1, 0);
    return call;
}

/* swiglu_fwd in f32 of two q8_0_matmul, with its options, its activations and token_scale for row_scale; one rounding
 * to out's dtype at the end. */
static inline ridge_call ridge_q8_0_gate_up_swiglu(int64_t tokens, int64_t cols, int64_t rows, ridge_dtype x_dtype,
                                                   const void *x, const void *x_scales, const void *gate,
                                                   const void *gate_scales, const void *up, const void *up_scales,
                                                   ridge_dtype out_dtype, void *out)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_Q8_0_GATE_UP_SWIGLU);
    ridge_swiglu_defaults(&call);
    call.dim[0] = tokens;
    call.dim[1] = cols;
    call.dim[2] = rows;
    ridge_set_q8_0_x(&call, x_dtype, x, x_scales);
    ridge_set_q8_0(&call, RIDGE_Q8_0_GATE_UP_SWIGLU_GATE, gate, gate_scales);
    ridge_set_q8_0(&call, RIDGE_Q8_0_GATE_UP_SWIGLU_UP, up, up_scales);
    ridge_set(&call, RIDGE_Q8_0_GATE_UP_SWIGLU_OUT, out_dtype, out, 0);
    return call;
}

/* Hyper-connections: v = W x (+ add); out[t, dst*rows + r] = v*post[t, dst] + sum over src of
 * comb[t, dst + n_hc*src] * res[t, src*rows + r], src ascending, each term one fma. n_hc is 1 to 16. */
static inline ridge_call ridge_q8_0_matmul_hc_expand(int64_t tokens, int64_t cols, int64_t rows, int64_t n_hc,
                                                     ridge_dtype x_dtype, const void *x, const void *x_scales,
                                                     const void *w, const void *w_scales, const float *post,
                                                     const float *comb, const float *res, float *out)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND);
    call.dim[0] = tokens;
    call.dim[1] = cols;
    call.dim[2] = rows;
    call.dim[3] = n_hc;
    ridge_set_q8_0_x(&call, x_dtype, x, x_scales);
    ridge_set_q8_0(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_W, w, w_scales);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_POST, RIDGE_F32, post, 0);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB, RIDGE_F32, comb, 0);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_RES, RIDGE_F32, res, 0);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT, RIDGE_F32, out, 0);
    return call;
}

/* --------------------------------------------------------------------------------------------------- norm and RoPE
 *
 * rms_norm: out = (x * (1/sqrt(mean(x^2) + eps))) * w over the columns of each row. head_rms_norm_rope_tail does that
 * for each head of each token, then turns the head's last n_rot elements in adjacent pairs by the angle pos * freqs[i]:
 *     y0 = x0 c - x1 s;  y1 = x0 s + x1 c
 * The norm and the rotation meet in f32; out is rounded once. The angle is a double, so that position 1,000,000 is as
 * good as position 1. Contract: exact, batch-invariant. docs/numerics.md, Norm and RoPE. out may be exactly x. */

#define RIDGE_ROPE_INVERSE 0x100u /* turns the other way */
#define RIDGE_ROPE_ONLY 0x200u    /* no norm: w absent, eps unused */

enum {
    RIDGE_RMS_NORM_X = 0, /* [rows, cols] f32 or bf16 */
    RIDGE_RMS_NORM_W,     /* [cols] f32 or bf16, optional: 1 */
    RIDGE_RMS_NORM_OUT    /* [rows, cols] f32 or bf16 */
};
enum {
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_X = 0, /* [tokens, heads*head_dim] f32 or bf16 */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W,     /* [head_dim] f32 or bf16, optional: 1 */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS,   /* [tokens] i32 or i64 */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS, /* [n_rot/2] f64, radians a position: see ridge_rope_freqs */
    RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT    /* [tokens, heads*head_dim] f32 or bf16 */
};

/* w may be NULL; w_dtype is then ignored. */
static inline ridge_call ridge_rms_norm(int64_t rows, int64_t cols, ridge_dtype x_dtype, const void *x,
                                        ridge_dtype w_dtype, const void *w, ridge_dtype out_dtype, void *out)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_RMS_NORM);
    call.opt.norm.eps = 1e-6f;
    call.opt.norm.mscale = 1.0f;
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_RMS_NORM_X, x_dtype, x, 0);
    ridge_set(&call, RIDGE_RMS_NORM_W, w ? w_dtype : RIDGE_NONE, w, 0);
    ridge_set(&call, RIDGE_RMS_NORM_OUT, out_dtype, out, 0);
    return call;
}

/* pos is i32; ridge_set its slot for i64. head_dim and n_rot are even, n_rot at most head_dim; 0: the norms alone. */
static inline ridge_call ridge_head_rms_norm_rope_tail(int64_t tokens, int64_t heads, int64_t head_dim, int64_t n_rot,
                                                       ridge_dtype x_dtype, const void *x, ridge_dtype w_dtype,
                                                       const void *w, const int32_t *pos, const double *freqs,
                                                       ridge_dtype out_dtype, void *out)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL);
    call.opt.norm.eps = 1e-6f;
    call.opt.norm.mscale = 1.0f;
    call.dim[0] = tokens;
    call.dim[1] = heads;
    call.dim[2] = head_dim;
    call.dim[3] = n_rot;
    ridge_set(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_X, x_dtype, x, 0);
    ridge_set(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_W, w ? w_dtype : RIDGE_NONE, w, 0);
    ridge_set(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS, RIDGE_I32, pos, 0);
    ridge_set(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS, RIDGE_F64, freqs, 0);
    ridge_set(&call, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT, out_dtype, out, 0);
    return call;
}

/* YaRN (Peng et al. 2023), with the parameters that GGUF files carry. */
typedef struct ridge_yarn {
    uint32_t struct_size; /* set by the caller to sizeof(ridge_yarn) */
    uint32_t reserved;
    double freq_scale;       /* 1 / (how many times the context was stretched), in (0, 1] */
    double original_context; /* tokens, before the stretch */
    double ext_factor;       /* share of the extrapolated frequencies, usually 1; 0: freq_scale alone */
    double attn_factor;      /* usually 1 */
    double beta_fast;        /* usually 32: pairs that turn more often than that in the context keep their frequency */
    double beta_slow;        /* usually 1: pairs that turn less often take freq_scale */
} ridge_yarn;

/* Host helper: the n_rot/2 frequencies base^(-2i/n_rot), through YaRN where yarn is not NULL, and *mscale (may be NULL)
 * = attn_factor * (1 + 0.1 ln(1/freq_scale)), without the second factor where ext_factor is 0, 1 without yarn. Uses
 * the C library's pow and log: make the table once and give every device the same one.
 * Errors: RIDGE_ERR_ARG (n_rot odd, negative or above 2^20, freqs NULL, base not above 1, a YaRN parameter wrong). */
RIDGE_API ridge_status ridge_rope_freqs(int64_t n_rot, double base, const ridge_yarn *yarn, double *freqs,
                                        float *mscale);

/* --------------------------------------------------------------------------------------------------- cross entropy
 *
 * Tokens B, hidden H, vocabulary V. u = x W^T + bias in f32; z = softcap tanh(u / softcap) / temperature;
 *     lse = log sum_c e^z_c
 *     row = (1 - eps) w_y (lse - z_y) + eps/V sum_c w_c (lse - z_c) + lse_square_scale lse^2
 * w: class weights (1 when absent), y the row's target. loss: the rows (NONE), their sum, or their mean: the first two
 * terms divided by the sum of w_y, the third by the number of rows that are not ignored; a divisor of 0 gives 0.
 * No logits of B x V are written anywhere: the workspace holds a chunk of them, and its size decides how large.
 *
 * A row whose target is ignore_index costs nothing: x is not read, its dX is 0, its token_loss, lse, target_logit and
 * entropy are 0 and its argmax is -1. A target that is neither ignored nor in 0 .. V-1 makes token_loss, target_logit
 * and the loss NaN and its row of dX NaN; it counts in the mean (with weight 1), adds nothing to dW and dbias, and is
 * counted in `errors`. argmax: the lowest index among equals; NaN counts as largest. bias may hold -inf.
 * Contract: stable, close. docs/numerics.md, Cross entropy. Errors: RIDGE_ERR_ARG (no class, an option out of range).
 *
 * A vocabulary that is spread over devices: each runs linear_ce_eval (or ce_fwd) on its slice with vocab_offset and
 * vocab_total and asks for `record`; the records of all slices, in any order, go through ce_combine; its lse goes into
 * linear_ce_backward on each slice, which gives that slice of dW and a partial dX to be summed. class_weight and target
 * always speak of the whole vocabulary. */

#define RIDGE_CE_MEAN 0u
#define RIDGE_CE_SUM 0x100u
#define RIDGE_CE_NONE 0x200u      /* loss is [tokens] */
#define RIDGE_CE_REDUCTION 0x300u /* mask of the three above */
#define RIDGE_CE_W_HV 0x400u      /* W (and dW) is [hidden, vocab], as in JAX; else [vocab, hidden], as in PyTorch */
/* RIDGE_ACCUMULATE: dW and dbias are added to what is there. */
#define RIDGE_CE_RECORD_SUMS 0x1000u /* a record has 6 numbers and not 3 */

/* A record of a token: max z, sum e^(z - max), target logit (-inf if it is not in this slice); with
 * RIDGE_CE_RECORD_SUMS also sum z, sum w z and sum e^(z - max) z: what label smoothing and entropy need. */

enum {
    RIDGE_LINEAR_CE_X = 0,        /* [tokens, hidden] bf16, f16 or f32 */
    RIDGE_LINEAR_CE_W,            /* [vocab, hidden] or [hidden, vocab], dtype of x */
    RIDGE_LINEAR_CE_TARGET,       /* [tokens] i32 or i64 */
    RIDGE_LINEAR_CE_LOSS,         /* [1], NONE: [tokens]; f32 as all that follow unless said otherwise */
    RIDGE_LINEAR_CE_BIAS,         /* [vocab] f32, bf16 or f16, optional */
    RIDGE_LINEAR_CE_CLASS_WEIGHT, /* [vocab_total], optional, >= 0 */
    RIDGE_LINEAR_CE_TOKEN_LOSS,   /* [tokens], optional output: the row losses */
    RIDGE_LINEAR_CE_LSE,          /* [tokens], optional output */
    RIDGE_LINEAR_CE_TARGET_LOGIT, /* [tokens], optional output: z_y */
    RIDGE_LINEAR_CE_ENTROPY,      /* [tokens], optional output: of softmax(z), in nats */
    RIDGE_LINEAR_CE_ARGMAX,       /* [tokens] i64, optional output: class of the largest z */
    RIDGE_LINEAR_CE_ACCURACY, /* [1], optional output: the fraction of rows, of those not ignored, with argmax = y */
    RIDGE_LINEAR_CE_ERRORS,   /* [1] i32, optional output: how many targets are out of range */
    RIDGE_LINEAR_CE_RECORD,   /* eval: [tokens, 3 or 6], optional output; loss may then be absent */
    RIDGE_LINEAR_CE_GRAD_SCALE = RIDGE_LINEAR_CE_RECORD, /* train: [1] input, optional, times the option grad_scale */
    RIDGE_LINEAR_CE_DX,                                  /* [tokens, hidden], dtype of x; absent = x is frozen */
    RIDGE_LINEAR_CE_DW,   /* as W, f32 or dtype of x (summed in f32, rounded once); absent = W is frozen */
    RIDGE_LINEAR_CE_DBIAS /* [vocab], optional output */
};
enum {
    RIDGE_LINEAR_CE_BACKWARD_X = 0,        /* as above */
    RIDGE_LINEAR_CE_BACKWARD_W,            /* as above */
    RIDGE_LINEAR_CE_BACKWARD_TARGET,       /* as above */
    RIDGE_LINEAR_CE_BACKWARD_LSE,          /* [tokens] f32, from eval, train or ce_combine */
    RIDGE_LINEAR_CE_BACKWARD_DLOSS,        /* [1], NONE: [tokens]; f32, optional: gradient of the loss, else 1 */
    RIDGE_LINEAR_CE_BACKWARD_BIAS,         /* as above */
    RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT, /* as above */
    RIDGE_LINEAR_CE_BACKWARD_DX,           /* as above; of a slice of the vocabulary: its part of the sum */
    RIDGE_LINEAR_CE_BACKWARD_DW,           /* as above */
    RIDGE_LINEAR_CE_BACKWARD_DBIAS         /* as above */
};
enum {
    RIDGE_CE_FWD_LOGITS = 0, /* [tokens, vocab] bf16, f16 or f32: u */
    RIDGE_CE_FWD_TARGET,     /* what follows is as in linear_ce_eval */
    RIDGE_CE_FWD_LOSS,
    RIDGE_CE_FWD_CLASS_WEIGHT,
    RIDGE_CE_FWD_TOKEN_LOSS,
    RIDGE_CE_FWD_LSE,
    RIDGE_CE_FWD_TARGET_LOGIT,
    RIDGE_CE_FWD_ENTROPY,
    RIDGE_CE_FWD_ARGMAX,
    RIDGE_CE_FWD_ACCURACY,
    RIDGE_CE_FWD_ERRORS,
    RIDGE_CE_FWD_RECORD
};
enum {
    RIDGE_CE_BWD_LOGITS = 0, /* [tokens, vocab] */
    RIDGE_CE_BWD_TARGET,
    RIDGE_CE_BWD_LSE,          /* [tokens] */
    RIDGE_CE_BWD_DLOSS,        /* [1], NONE: [tokens]; optional */
    RIDGE_CE_BWD_CLASS_WEIGHT, /* [vocab_total], optional */
    RIDGE_CE_BWD_DLOGITS       /* [tokens, vocab], dtype of logits; may be logits */
};
enum {
    RIDGE_CE_COMBINE_RECORD = 0,   /* [shards * tokens, 3 or 6]: the record of shard 0's tokens, then shard 1's, ... */
    RIDGE_CE_COMBINE_OFFSET,       /* [shards] i64: vocab_offset of each; all different */
    RIDGE_CE_COMBINE_TARGET,       /* [tokens] i32 or i64 */
    RIDGE_CE_COMBINE_LOSS,         /* what follows is as in linear_ce_eval */
    RIDGE_CE_COMBINE_CLASS_WEIGHT, /* [vocab] */
    RIDGE_CE_COMBINE_TOKEN_LOSS,
    RIDGE_CE_COMBINE_LSE,
    RIDGE_CE_COMBINE_TARGET_LOGIT,
    RIDGE_CE_COMBINE_ENTROPY, /* needs RIDGE_CE_RECORD_SUMS, as label smoothing does */
    RIDGE_CE_COMBINE_ARGMAX,
    RIDGE_CE_COMBINE_ACCURACY,
    RIDGE_CE_COMBINE_ERRORS,
    RIDGE_CE_COMBINE_SHARD_ARGMAX /* [shards, tokens] i64, what each shard's eval gave; for argmax and accuracy */
};

static inline void ridge_ce_defaults(ridge_call *call)
{
    call->opt.ce.ignore_index = -100;
    call->opt.ce.temperature = 1.0f;
    call->opt.ce.grad_scale = 1.0f;
}

static inline void ridge_linear_ce_operands(ridge_call *call, int64_t tokens, int64_t hidden, int64_t vocab,
                                            ridge_dtype dtype, const void *x, const void *w, ridge_dtype target_dtype,
                                            const void *target)
{
    ridge_ce_defaults(call);
    call->dim[0] = tokens;
    call->dim[1] = hidden;
    call->dim[2] = vocab;
    ridge_set(call, RIDGE_LINEAR_CE_X, dtype, x, 0);
    ridge_set(call, RIDGE_LINEAR_CE_W, dtype, w, 0);
    ridge_set(call, RIDGE_LINEAR_CE_TARGET, target_dtype, target, 0);
}

/* The mean loss of softmax(x W^T) at the targets, 2BHV FLOP. W is [vocab, hidden]. target_dtype: RIDGE_I32 or
 * RIDGE_I64. */
static inline ridge_call ridge_linear_ce_eval(int64_t tokens, int64_t hidden, int64_t vocab, ridge_dtype dtype,
                                              const void *x, const void *w, ridge_dtype target_dtype,
                                              const void *target, float *loss)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_LINEAR_CE_EVAL);
    ridge_linear_ce_operands(&call, tokens, hidden, vocab, dtype, x, w, target_dtype, target);
    ridge_set(&call, RIDGE_LINEAR_CE_LOSS, RIDGE_F32, loss, 0);
    return call;
}

/* The loss as in eval and its gradients, 6BHV FLOP. dx has x's dtype, dw is f32; NULL leaves one out. Reductions: mean
 * and sum. A workspace larger than ridge_workspace_bytes says is faster too, here and in backward, up to what one chunk
 * of all tokens needs. */
static inline ridge_call ridge_linear_ce_train(int64_t tokens, int64_t hidden, int64_t vocab, ridge_dtype dtype,
                                               const void *x, const void *w, ridge_dtype target_dtype,
                                               const void *target, float *loss, void *dx, float *dw)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_LINEAR_CE_TRAIN);
    ridge_linear_ce_operands(&call, tokens, hidden, vocab, dtype, x, w, target_dtype, target);
    ridge_set(&call, RIDGE_LINEAR_CE_LOSS, RIDGE_F32, loss, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_DX, dtype, dx, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_DW, RIDGE_F32, dw, 0);
    return call;
}

/* The gradients alone, from lse: the logits are computed again, 6BHV FLOP. dloss: [1], with RIDGE_CE_NONE [tokens];
 * NULL = 1. */
static inline ridge_call ridge_linear_ce_backward(int64_t tokens, int64_t hidden, int64_t vocab, ridge_dtype dtype,
                                                  const void *x, const void *w, ridge_dtype target_dtype,
                                                  const void *target, const float *lse, const float *dloss, void *dx,
                                                  float *dw)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_LINEAR_CE_BACKWARD);
    ridge_linear_ce_operands(&call, tokens, hidden, vocab, dtype, x, w, target_dtype, target);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_LSE, RIDGE_F32, lse, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DLOSS, RIDGE_F32, dloss, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DX, dtype, dx, 0);
    ridge_set(&call, RIDGE_LINEAR_CE_BACKWARD_DW, RIDGE_F32, dw, 0);
    return call;
}

/* The mean loss of given logits [tokens, vocab]. */
static inline ridge_call ridge_ce_fwd(int64_t tokens, int64_t vocab, ridge_dtype dtype, const void *logits,
                                      ridge_dtype target_dtype, const void *target, float *loss)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_CE_FWD);
    ridge_ce_defaults(&call);
    call.dim[0] = tokens;
    call.dim[1] = vocab;
    ridge_set(&call, RIDGE_CE_FWD_LOGITS, dtype, logits, 0);
    ridge_set(&call, RIDGE_CE_FWD_TARGET, target_dtype, target, 0);
    ridge_set(&call, RIDGE_CE_FWD_LOSS, RIDGE_F32, loss, 0);
    return call;
}

/* The gradient of ce_fwd's loss by the logits. dloss as in linear_ce_backward. dlogits may be logits. */
static inline ridge_call ridge_ce_bwd(int64_t tokens, int64_t vocab, ridge_dtype dtype, const void *logits,
                                      ridge_dtype target_dtype, const void *target, const float *lse,
                                      const float *dloss, void *dlogits)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_CE_BWD);
    ridge_ce_defaults(&call);
    call.dim[0] = tokens;
    call.dim[1] = vocab;
    ridge_set(&call, RIDGE_CE_BWD_LOGITS, dtype, logits, 0);
    ridge_set(&call, RIDGE_CE_BWD_TARGET, target_dtype, target, 0);
    ridge_set(&call, RIDGE_CE_BWD_LSE, RIDGE_F32, lse, 0);
    ridge_set(&call, RIDGE_CE_BWD_DLOSS, RIDGE_F32, dloss, 0);
    ridge_set(&call, RIDGE_CE_BWD_DLOGITS, dtype, dlogits, 0);
    return call;
}

/* Records of 1 to 4096 slices of a vocabulary of `vocab` classes to the loss and lse of the whole. The shards are taken
 * in the order of their offsets, so that any order of arrival gives the same bits. */
static inline ridge_call ridge_ce_combine(int64_t tokens, int64_t vocab, int64_t shards, const float *record,
                                          const int64_t *offset, ridge_dtype target_dtype, const void *target,
                                          float *loss, float *lse)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_CE_COMBINE);
    ridge_ce_defaults(&call);
    call.dim[0] = tokens;
    call.dim[1] = vocab;
    call.dim[2] = shards;
    ridge_set(&call, RIDGE_CE_COMBINE_RECORD, RIDGE_F32, record, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_OFFSET, RIDGE_I64, offset, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_TARGET, target_dtype, target, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_LOSS, RIDGE_F32, loss, 0);
    ridge_set(&call, RIDGE_CE_COMBINE_LSE, RIDGE_F32, lse, 0);
    return call;
}

/* -------------------------------------------------------------------------------------------------------- multiply
 *
 * out = x * factor[0] in f32, rounded once to out's dtype: gradients made beforehand times the gradient of the loss,
 * which is on the device. out may be exactly x; where the factor then is 1 nothing is read or written: the kernel
 * returns at once. Contract: exact. */

enum {
    RIDGE_MULTIPLY_X = 0,  /* [rows, cols] bf16, f16 or f32 */
    RIDGE_MULTIPLY_FACTOR, /* [1] f32 */
    RIDGE_MULTIPLY_OUT     /* [rows, cols] bf16, f16 or f32 */
};

static inline ridge_call ridge_multiply(int64_t rows, int64_t cols, ridge_dtype x_dtype, const void *x,
                                        const float *factor, ridge_dtype out_dtype, void *out)
{
    ridge_call call;
    ridge_call_init(&call, RIDGE_MULTIPLY);
    call.dim[0] = rows;
    call.dim[1] = cols;
    ridge_set(&call, RIDGE_MULTIPLY_X, x_dtype, x, 0);
    ridge_set(&call, RIDGE_MULTIPLY_FACTOR, RIDGE_F32, factor, 0);
    ridge_set(&call, RIDGE_MULTIPLY_OUT, out_dtype, out, 0);
    return call;
}

#ifdef __cplusplus
}
#endif

#endif
