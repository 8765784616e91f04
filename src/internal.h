/* internal.h: the two tables (ops, kernels), the problem that both speak of, the device, and the backend interface.
 *
 * Data flows one way: ridge_run validates a call against its op row, turns it into a problem, picks a kernel row whose
 * why_not is NULL, and launches it. The driver (check/) reads the same tables. Owns no code beyond one-line helpers. */
#ifndef RIDGE_INTERNAL_H
#define RIDGE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ridge.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------- architectures */

/* In order within a backend: a row runs on every architecture from its arch_min to its arch_max. */
typedef enum ridge_arch {
    RIDGE_ARCH_C = 0,
    RIDGE_ARCH_AVX2,
    RIDGE_ARCH_AVX512,
    RIDGE_ARCH_SM80,
    RIDGE_ARCH_SM86,
    RIDGE_ARCH_SM89,
    RIDGE_ARCH_SM90,
    RIDGE_ARCH_SM100,
    RIDGE_ARCH_SM103,
    RIDGE_ARCH_SM120,
    RIDGE_ARCH_SM121,
    RIDGE_ARCHS,
    RIDGE_ARCH_CUDA_LAST = RIDGE_ARCHS - 1 /* arch_max of a row that later architectures run as well */
} ridge_arch;

typedef enum ridge_backend_id { RIDGE_CPU = 0, RIDGE_CUDA, RIDGE_BACKENDS } ridge_backend_id;

typedef struct ridge_arch_row {
    const char *name; /* "sm90" */
    ridge_backend_id backend;
    int compute;   /* 90 for sm90; 0 on the CPU */
    int shared_kb; /* shared memory that a CTA may have; 0 on the CPU */
} ridge_arch_row;

extern const ridge_arch_row ridge_arch_table[RIDGE_ARCHS];

/* ------------------------------------------------------------------------------------------------------- problems */

/* Flags of a problem that the public header does not have: masks of its choices, and the scalings of a call's operands,
 * which the builders put there. */
#define RIDGE_ACTIVATION 0x300u   /* RIDGE_SILU .. RIDGE_RELU2 */
#define RIDGE_CE_REDUCTION 0x300u /* RIDGE_CE_MEAN .. RIDGE_CE_NONE */
#define RIDGE_ROUTE_RULE 0x300u   /* RIDGE_ROUTE_SOFTMAX .. RIDGE_ROUTE_SQRT_SOFTPLUS */
#define RIDGE_GROUPED 0x300u      /* RIDGE_GROUPED_M .. RIDGE_GROUPED_MASKED */
#define RIDGE_SCALE_TENSOR 0u     /* quantize_fp8's q and gemm_fp8's A: ridge_scaling - 1, shifted */
#define RIDGE_SCALE_ROW 0x10000u
#define RIDGE_SCALE_ROW128 0x20000u
#define RIDGE_SCALE_BLK128 0x30000u
#define RIDGE_SCALE 0x30000u    /* mask */
#define RIDGE_SCALE_B_TENSOR 0u /* gemm_fp8's B */
#define RIDGE_SCALE_B_ROW 0x100000u
#define RIDGE_SCALE_B_ROW128 0x200000u
#define RIDGE_SCALE_B_BLK128 0x300000u
#define RIDGE_SCALE_B 0x300000u /* mask */
#define RIDGE_SCALE_T 0x800000u /* with ROW128: the table is transposed, of A and of B */
#define RIDGE_SCALE_B_T 0x1000000u
#define RIDGE_DUAL_ROW_ROW 0u       /* quantize_fp8_dual's q and q_t: ROW128 and ROW128 */
#define RIDGE_DUAL_ROW_BLK 0x10000u /* ROW128 and BLK128 */
#define RIDGE_DUAL_BLK_BLK 0x20000u /* BLK128 and BLK128 */
#define RIDGE_DUAL 0x30000u         /* mask */

/* Everything that decides which kernel runs; no pointers. Compared and hashed as bytes: zero it before filling. */
typedef struct ridge_problem {
    uint32_t op;
    uint32_t flags;
    int64_t dim[RIDGE_MAX_DIMS];
    uint8_t dtype[RIDGE_MAX_ARGS]; /* ridge_dtype; RIDGE_NONE = absent */
    /* log2 of the common alignment in bytes, at most 4, of the matrices' pointers and of row strides that are not
     * packed. Those that are follow from dim; where any operand's are not, the inputs' count as well */
    uint8_t align;
    uint8_t packed;       /* every matrix operand is packed; a single row too has the stride that its call states */
    uint8_t plain;        /* every option has its default value */
    uint8_t inputs_align; /* align of the inputs alone */
    uint8_t reserved[4];
} ridge_problem;

/* A valid call with everything resolved once; what a row launches. Slots beyond the op's are not set. */
typedef struct ridge_bound {
    const struct ridge_op_row *op;
    ridge_problem problem;
    ridge_call call; /* row strides in elements, never 0 for a present operand with columns; absent ones have no data */
    int64_t rows[RIDGE_MAX_ARGS], cols[RIDGE_MAX_ARGS]; /* of each operand that is present; 0 otherwise */
} ridge_bound;

typedef struct ridge_kernel ridge_kernel;

/* --------------------------------------------------------------------------------------------------------- op rows */

enum { RIDGE_IN = 1, RIDGE_OUT = 2 };

/* What an operand is: a matrix; a vector (one row, no stride); or a table of scales (rows and a stride, but neither its
 * alignment nor its packing is part of a problem). */
enum { RIDGE_MATRIX = 0, RIDGE_VECTOR, RIDGE_TABLE };

#define RIDGE_FLOATS (1u << RIDGE_BF16 | 1u << RIDGE_F16 | 1u << RIDGE_F32)

/* One operand slot. */
typedef struct ridge_operand_row {
    const char *name;
    uint8_t role;      /* RIDGE_IN, RIDGE_OUT or both */
    uint8_t optional;  /* may be absent */
    int8_t same_dtype; /* the dtype must equal that operand's; -1 = free within dtypes */
    uint8_t kind;      /* RIDGE_MATRIX, RIDGE_VECTOR, RIDGE_TABLE */
    uint32_t dtypes;   /* bit mask, 1u << ridge_dtype */
    uint32_t alias;    /* an output: mask of the inputs it may be exactly */
    const char *shape; /* for people: "[rows, cols]" */
} ridge_operand_row;

/* How problem text ("rows=64 cols=14336 dtype=bf16 act=silu") maps to a call. The same rows print and parse. */
typedef enum ridge_field_kind {
    RIDGE_FIELD_DTYPE,  /* index = operand; operands with same_dtype follow it */
    RIDGE_FIELD_FLAG,   /* mask = bit; 0 or 1 */
    RIDGE_FIELD_CHOICE, /* mask = bits, choices = names of values 0, 1, 2, ... */
    RIDGE_FIELD_HAS,    /* index = optional operand; 0, 1 (its first dtype) or a dtype */
    RIDGE_FIELD_F32,    /* index = byte offset in call.opt */
    RIDGE_FIELD_I64     /* likewise */
} ridge_field_kind;

typedef struct ridge_field {
    const char *name;
    ridge_field_kind kind;
    uint32_t mask;
    int index;
    float preset;               /* of an F32 or I64 field */
    const char *const *choices; /* NULL-terminated */
    const uint32_t *bits;       /* what each choice sets within mask; NULL = 0, 1, 2, ... */
} ridge_field;

typedef enum ridge_contract {
    RIDGE_EXACT = 1,     /* the C reference's bits */
    RIDGE_UNIFORM = 2,   /* every row of this op on this backend gives the same bits */
    RIDGE_STABLE = 4,    /* the same bits run to run */
    RIDGE_INVARIANT = 8, /* a result row depends on nothing but its own inputs */
    RIDGE_CLOSE = 16,    /* within the op's bound of a float64 reference, whatever the input */
    RIDGE_TYPICAL = 32,  /* instead of RIDGE_CLOSE: within it on random data only, as fp8 tensor cores add
                            (docs/numerics.md, FP8 GEMM, and what is tested). Not picked under RIDGE_STRICT */
    RIDGE_FALLBACK = 64, /* no promise: picked only where no other row can run, whatever the costs say */
    /* No promise either: a number from 0 to 3. Rows of an op with other numbers add in another order or to other
       precision, and so give other bits. Where results are batch-invariant but not exact, ridge_arithmetic chooses one
       number for a whole range of dim[0], and the costs decide among its rows only. */
    RIDGE_ARITHMETIC_1 = 0x100,
    RIDGE_ARITHMETIC_2 = 0x200,
    RIDGE_ARITHMETIC = 0x300 /* mask */
} ridge_contract;

typedef struct ridge_op_row {
    uint32_t id; /* ridge_op */
    const char *name;
    const char *summary;
    int dims;
    const char *dim_name[RIDGE_MAX_DIMS];
    int step[RIDGE_MAX_DIMS]; /* the dimension is a multiple of this; 0 = any */
    int args;
    ridge_operand_row arg[RIDGE_MAX_ARGS];
    const ridge_field *fields; /* after the dimensions; ends with a NULL name */
    uint32_t flags;            /* flags this op knows, besides those of every op */
    uint32_t contract;         /* what every row of the op promises */
    int64_t invariant_max;     /* batch-invariance holds for dim[0] up to this; 0 = the op does not promise it */
    int64_t invariant_split;   /* and in two ranges: up to this, and above it; 0 = one range */
    const char *bound;         /* the close bound, for people */
    /* Extra rules beyond the operand table: NULL, or the reason in words. */
    const char *(*rule)(const ridge_call *call);
    /* Logical extent of an operand of this call. */
    void (*extent)(const ridge_call *call, int arg, int64_t *rows, int64_t *cols);
    bool (*plain)(const ridge_call *call);
    /* What an operand of this call is (RIDGE_IN, RIDGE_OUT or both), where flags decide; NULL = as its row says. */
    uint8_t (*role)(const ridge_call *call, int arg);
    void (*derive)(ridge_call *call); /* after parsing: operands that flags and dtypes decide; NULL = none */
    double (*flops)(const ridge_problem *problem);
    double (*used)(const ridge_call *call, int arg); /* the share of an operand that a call touches; NULL = all */
    void (*defaults)(ridge_call *call);
} ridge_op_row;

/* The scale table of an fp8 matrix [rows, cols], mode RIDGE_SCALE_*. */
void ridge_scale_extent(uint32_t mode, int64_t rows, int64_t cols, int64_t *table_rows, int64_t *table_cols);

/* ----------------------------------------------------------------------------------------------------- kernel rows */

struct ridge_kernel {
    const char *name; /* "cuda.swiglu_fwd.tile1024": the key in tuning files */
    uint32_t op;
    uint8_t arch_min, arch_max;
    uint16_t contract;   /* at least its op's contract; RIDGE_FALLBACK, RIDGE_ARITHMETIC */
    const void *variant; /* what sets this row's kernel apart from its siblings: a struct of the op's file, or NULL */
    int param[4];        /* the same as numbers, where they need no names */
    /* NULL = can run it on this device, else the reason in words (static text). Architecture is checked by the caller.
     */
    const char *(*why_not)(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
    /* Scratch bytes; NULL = 0. */
    size_t (*workspace)(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
    /* Predicted microseconds; only the order matters. */
    double (*cost)(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
    ridge_status (*launch)(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream);
};

/* Rows of one source file. A family lists them in table order: fast rows first, the C reference last. */
typedef struct ridge_kernel_list {
    const ridge_kernel *row;
    int count;
    /* Called once by ridge_open on a device that could run a row: loads the code of every kernel of the file and sets
     * its attributes, so that nothing is lazy on the call path. NULL = nothing to prepare. */
    ridge_status (*prepare)(const ridge_device *device);
} ridge_kernel_list;

/* What a folder of ops/ registers with the core: its op rows, in the order of enum ridge_op, and the lists of its
 * kernel rows in table order, CUDA before the CPU. */
typedef struct ridge_family {
    const char *name; /* the folder's */
    uint32_t ops;
    const ridge_op_row *const *op;
    const ridge_kernel_list *const *rows; /* ends with NULL */
} ridge_family;

/* ops/families.h lists them: all of them, in the order of enum ridge_op; ends with NULL. */
extern const ridge_family *const ridge_families[];

int ridge_kernel_count(void);
const ridge_kernel *ridge_kernel_at(int index);
const ridge_kernel *ridge_kernel_find(const char *name, size_t length); /* NULL if unknown */
ridge_backend_id ridge_kernel_backend(const ridge_kernel *kernel);
/* NULL if the row can run the problem on the device, else the reason: a static text, or this thread's. */
const char *ridge_why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
size_t ridge_kernel_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem);
ridge_status ridge_kernels_prepare(const ridge_device *device);

/* ---------------------------------------------------------------------------------------------------------- device */

typedef struct ridge_tuned_row {
    uint64_t hash;
    ridge_problem problem;
    const ridge_kernel *kernel;
    int order; /* of reading: the first line of a problem wins */
} ridge_tuned_row;

typedef struct ridge_backend ridge_backend;

/* Bytes that a kernel writes: a copy, or 0xff where `from` is NULL. */
typedef struct ridge_write {
    void *to;
    const void *from;
    size_t bytes;
} ridge_write;

enum { RIDGE_MAX_WRITES = RIDGE_MAX_ARGS + 1 }; /* every operand and the workspace */

enum { RIDGE_ENTRIES = 6 };

enum { RIDGE_HAS_AVX_VNNI = 1, RIDGE_HAS_AVX512_VNNI = 2, RIDGE_HAS_AVX512_VBMI = 4 };

struct ridge_device {
    const ridge_backend *backend; /* NULL for a model */
    ridge_backend_id backend_id;
    ridge_arch arch;
    int ordinal;
    int units;
    int64_t l2_bytes;
    int64_t memory_bytes;
    double copy_gbps, clock_ghz; /* nominal; scale cost models, as these do: */
    double tensor;               /* share of its architecture's tensor cores that the chip has */
    double mma_f16, mma_fp8;     /* multiply-adds a clock of an SM by mma.sync; 0: emulated, or a CPU */
    void *tensor_map_encode;     /* cuTensorMapEncodeTiled; NULL if the driver has none */
    void *context;               /* the primary context of the CUDA ordinal, and the number that the driver gave it */
    unsigned long long context_id;
    void *entry[RIDGE_ENTRIES]; /* functions of the CUDA driver (cuda/launch.cuh) */
    uint32_t features;          /* RIDGE_HAS_*: what a CPU level leaves open; models have all */
    char name[128];
    char driver[32]; /* "CUDA 13.0"; empty on the CPU */
    bool log;
    bool threads_chosen; /* OMP_NUM_THREADS is set */
    const ridge_kernel *pin[RIDGE_OPS];
    const ridge_kernel *
        *row; /* the rows of this backend, op by op; op's are row[first[op]] .. row[first[op + 1] - 1] */
    int first[RIDGE_OPS + 1];
    ridge_tuned_row *tuned; /* sorted by hash, one row a problem */
    int tuned_count;
};

/* What differs between the CPU and CUDA besides kernels. The driver allocates, copies and times through it; the library
 * itself uses only `count`, `open`, `enter`, `leave`, `together` and `order_graph`. Functions return RIDGE_OK or set
 * ridge_error(). */
struct ridge_backend {
    const char *name;
    int (*count)(char *why_none, size_t size); /* devices; if 0, why_none says why */
    ridge_status (*open)(ridge_device *device, int ordinal);
    /* Around the loading and the launches of kernels: the device is current in the calling thread. On the CPU only
     * enter: the call before is done. */
    ridge_status (*enter)(const ridge_device *device, bool *entered);
    void (*leave)(const ridge_device *device, bool entered);
    /* ridge_together; NULL where it only calls body (CUDA). */
    ridge_status (*together)(ridge_status (*body)(void *data), void *data);
    ridge_status (*order_graph)(const ridge_device *device, void *graph); /* ridge_order_graph; NULL: no graphs */
    ridge_status (*alloc)(const ridge_device *device, size_t bytes, void **memory);
    void (*release)(const ridge_device *device, void *memory);
    ridge_status (*upload)(const ridge_device *device, void *to, const void *from, size_t bytes);
    ridge_status (*download)(const ridge_device *device, void *to, const void *from, size_t bytes);
    ridge_status (*copy)(const ridge_device *device, void *to, const void *from, size_t bytes, void *stream);
    ridge_status (*stream_new)(const ridge_device *device, void **stream);
    void (*stream_free)(const ridge_device *device, void *stream);
    ridge_status (*sync)(const ridge_device *device, void *stream);
    /* Graphs: begin, calls on the stream, end -> graph; launch; free. NULL where there are none (the CPU). */
    ridge_status (*graph_begin)(const ridge_device *device, void *stream);
    ridge_status (*graph_end)(const ridge_device *device, void *stream, void **graph);
    ridge_status (*graph_launch)(const ridge_device *device, void *graph, void *stream);
    void (*graph_free)(const ridge_device *device, void *graph);
    /* Events in microseconds: mark(slot 0..63), then elapsed between two slots after a sync. */
    ridge_status (*mark)(const ridge_device *device, int slot, void *stream);
    ridge_status (*elapsed)(const ridge_device *device, int from, int to, double *us);
    /* Ceilings: a read-only stream over bytes of memory in one of `variants` ways; an empty kernel. NULL on the CPU. */
    int stream_variants; /* of stream_read */
    ridge_status (*stream_read)(const ridge_device *device, int variant, const void *memory, size_t bytes,
                                void *stream);
    int copy_variants; /* of stream_copy */
    ridge_status (*stream_copy)(const ridge_device *device, int variant, void *to, const void *from, size_t bytes,
                                void *stream);
    ridge_status (*empty)(const ridge_device *device, void *stream);
    /* Proof of exact.h and of the fp8 encoding: function 0 rcp, 1 exp_neg, 2 sigmoid, 3 normal_cdf, 4 e4m3 code, 5 e5m2
     * code of the floats with bits first + i * step, i < count, evaluated on the device. NULL on the CPU. */
    ridge_status (*exact)(const ridge_device *device, int function, uint32_t first, uint32_t step, uint32_t count,
                          float *out);
    /* For tests of programmatic launch: a kernel that lets its dependents start at once, waits for what is before it on
     * the stream, and after `microseconds` makes the writes, RIDGE_MAX_WRITES at most. NULL on the CPU. */
    ridge_status (*write_late)(const ridge_device *device, const ridge_write *list, int count, int microseconds,
                               void *stream);
    /* For tests of rings in shared memory: for `microseconds` a kernel loads from shared memory on all multiprocessors,
     * so that the loads of kernels beside it come late. NULL on the CPU. */
    ridge_status (*noise)(const ridge_device *device, int microseconds, void *stream);
};

extern const ridge_backend ridge_cpu_backend;
extern const ridge_backend ridge_cuda_backend;                        /* only with RIDGE_HAVE_CUDA */
const ridge_backend *ridge_backend_at(int id, const char **why_none); /* NULL and the reason if not built in */

/* Whether so many bytes of output bypass the CPU's caches: more than a quarter of the last one, or than 16 MB of one
 * that processes of others share. */
bool ridge_cpu_streams(const ridge_device *device, double bytes);

/* ------------------------------------------------------------------------------------------------------- functions */

/* chips.c */
const char *ridge_chip_name(int index, ridge_backend_id *backend); /* of the models; NULL after the last */
ridge_status ridge_chip_model(ridge_device *device, const char *name);
void ridge_chip_fill(ridge_device *device); /* what the driver does not tell; device->name is set */

/* error.c: sets this thread's message and returns the status. */
ridge_status ridge_fail(ridge_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ops.c */
const ridge_op_row *ridge_op_at(uint32_t id);                       /* NULL if there is none */
const ridge_op_row *ridge_op_find(const char *name, size_t length); /* NULL if unknown */
const char *ridge_dtype_name(uint32_t dtype);
uint32_t ridge_dtype_find(const char *name, size_t length); /* RIDGE_DTYPES if unknown */
size_t ridge_dtype_size(uint32_t dtype);

/* problem.c: a call against its op row. */
ridge_status ridge_validate(const ridge_call *call, ridge_bound *bound);
uint64_t ridge_problem_hash(const ridge_problem *problem);
uint8_t ridge_operand_role(const ridge_call *call, int arg);  /* RIDGE_IN, RIDGE_OUT or both */
int64_t ridge_operand_bytes(const ridge_call *call, int arg); /* last byte + 1 from the first, strides included */
double ridge_problem_bytes(const ridge_call *call); /* what is used of each operand once, strides not counted */

/* problem_text.c */
/* "op rows=.. cols=.." of a call without its pointers; returns the length as snprintf does. */
int ridge_problem_print(const ridge_call *call, const ridge_problem *problem, char *text, size_t size);
/* Fills flags, dims, dtypes (of present operands) and options of a call from "rows=.. cols=..". Unset fields take their
 * defaults (a dim without one is an error), align, inputs_align and packed of the problem those of aligned and packed
 * matrices; the rest of the problem is left as it is. */
ridge_status ridge_problem_parse(const ridge_op_row *op, const char *text, ridge_call *call, ridge_problem *problem);

/* run.c */
ridge_status ridge_choose(const ridge_device *device, const char *pinned, const ridge_problem *problem, size_t bytes,
                          const ridge_kernel **kernel, const char **because);
/* RIDGE_FALLBACK and RIDGE_ARITHMETIC of the rows among which the costs decide. */
unsigned ridge_arithmetic(const ridge_device *device, const ridge_problem *problem);

/* tune.c */
ridge_status ridge_tuned_load(ridge_device *device, const char *user_file);
/* The row that the tuning file names for this problem; NULL: none. */
const ridge_kernel *ridge_tuned_find(const ridge_device *device, const ridge_problem *problem);

#ifdef __cplusplus
}
#endif

#endif
