/* check.h: what the verbs of the CLI share. The CLI links the static library and walks its tables (src/internal.h). */
#ifndef RIDGE_TOOLS_H
#define RIDGE_TOOLS_H

#include <jansson.h>
#include <stdio.h>

#include "src/internal.h"

/* ----------------------------------------------------------------------------------------------- cases and images */

typedef enum fill_kind {
    FILL_NORMAL, /* N(0,1) scaled per row by 2^-6 .. 2^6 */
    FILL_UNIT,   /* N(0,1): what benchmarks use */
    FILL_EDGE,   /* special values mixed with random bit patterns */
    FILL_EVERY,  /* 16-bit dtypes: the first input counts through all 65,536 patterns */
    FILL_GROUPS, /* every 128 columns of a kind: zeros, powers of two, subnormal, huge, not finite */
    FILL_PERIOD, /* rows repeat with period 64: for tensors too large for the reference */
    FILL_EXACT   /* small integers, scales 1/2, 1 and 2: products and sums that f32 holds exactly */
} fill_kind;

/* Which operands have padded rows. */
typedef enum pad_of { PAD_ALL, PAD_OUTPUTS, PAD_SINGLE_ROWS } pad_of;

/* One call to test or time: a problem and how its operands lie in memory. */
typedef struct test_case {
    ridge_call call; /* no pointers */
    fill_kind fill;
    int pad; /* elements added to the row strides of those that pad_of names */
    pad_of pad_of;
    int shift;   /* elements by which every pointer is off its 256-byte boundary */
    bool fused;  /* gate and up (dgate and dup) are halves of one tensor */
    bool alias;  /* outputs lie on the inputs that they may alias */
    int repeats; /* > 0: run so often under load, every result bit for bit the same */
    bool slices; /* compare every row with a call of that row alone */
    int variant; /* cross entropy: ce_variant bits; multiply: the factor is 1 */
    bool gpu;    /* on CUDA devices only: no CPU row treats it unlike a smaller one, and its reference is slow */
} test_case;

/* Inputs of the cross entropy cases: which targets (the first is a mixture: every fifth row ignored), and the rest. */
enum ce_variant {
    CE_VALID = 1, /* every row has a target */
    CE_NO_ROW,    /* none has */
    CE_HALF,      /* every other */
    CE_WRONG,     /* some are out of range */
    CE_TARGETS = 7,
    CE_UP = 8,          /* logits near 1e4 (through the bias) */
    CE_DOWN = 16,       /* near -1e4 */
    CE_PEAK = 32,       /* p = 0.999 at the target (through the bias) */
    CE_MINUS = 64,      /* a bias of -infinity */
    CE_NO_WEIGHT = 128, /* all class weights are 0 */
    CE_FREQUENT = 256,  /* two of three rows have the same target */
    CE_SPECIAL = 512    /* a NaN in every 64th row of x or of the logits; each class twice, V/2 apart */
};

typedef struct case_list {
    test_case *at;
    int count, room;
} case_list;

typedef enum case_level { CASES_QUICK, CASES_FULL, CASES_LARGE } case_level;

/* Appends the test cases of an op. */
void cases_of(const ridge_op_row *op, case_level level, case_list *list);

/* Adds the case of a problem text (without the op's name) and a layout. */
void cases_add(case_list *list, const ridge_op_row *op, const char *text, test_case layout);
void cases_quantize(const ridge_op_row *op, case_list *list, case_level level);
void cases_q8_0(const ridge_op_row *op, case_list *list, case_level level);
void cases_gemm(const ridge_op_row *op, case_list *list, case_level level);
void cases_decode(const ridge_op_row *op, case_list *list, case_level level);
void cases_ce(const ridge_op_row *op, case_list *list, case_level level);
void cases_multiply(const ridge_op_row *op, case_list *list, case_level level);

/* Bench and tune suites: lines "op name=value ..." under a suite's name. */
typedef struct suite_line {
    const char *suite;
    const char *text;
    int group; /* lines of the same one that follow each other are a chain; 0: the number after "tokens=" or "rows=" */
} suite_line;
/* Line `index` over all suites, text valid until the next call; a NULL suite after the last. */
suite_line suite_at(int index);
/* Says that there is no suite of that name, and which there are. */
void suite_missing(const char *verb, const char *name);
suite_line suite_gemm(int index);

/* Text of a case: problem text and the layout; case_parse reads it. */
void case_print(const test_case *c, char *text, size_t size);

/* All operands of a case in one block of memory, with guard bands round each: the host image holds guards, inputs and
 * poisoned outputs; a device copy of it is one upload, and a check of everything is one comparison. */
enum { IMAGE_PERIOD = 64 };

typedef struct image {
    ridge_call call; /* no pointers; strides set */
    size_t bytes;
    size_t offset[RIDGE_MAX_ARGS];
    size_t length[RIDGE_MAX_ARGS]; /* 0 = absent */
    unsigned char *host;
    fill_kind fill;
    /* For timing only: the host has the first IMAGE_PERIOD rows of the inputs, and the others repeat them. */
    bool periodic;
    /* What the oracle computes on first use, once for all rows and runs of a case: the float64 reference and bound of
     * every output element. */
    struct image_memo {
        double *reference, *bound;
        unsigned char *bits[4]; /* the image as Hopper's rows of gemm_fp8 leave it, k in 1, 2, 4 or 8 runs */
    } * memo;
} image;

/* Offsets and size only; host is NULL. */
void image_place(const test_case *c, image *im);
/* Also fills the host block; false if out of memory. */
bool image_build(const test_case *c, uint64_t seed, image *im);
/* A periodic one if that saves time and the op's operands allow it. */
bool image_build_to_time(const test_case *c, uint64_t seed, image *im);
/* Its bytes on a device. */
bool image_upload(const image *im, const ridge_device *device, unsigned char *memory, void *stream);
void image_free(image *im);
/* Fills an input of a cross entropy op; false if the op is another. */
bool fill_ce(const test_case *c, const image *im, int arg, uint64_t seed);
/* The factor of multiply, where the case names it; false otherwise. */
bool fill_multiply(const test_case *c, const image *im, int arg);
/* The call with operands at base (a copy of the image, 256-byte aligned). */
ridge_call image_call(const image *im, void *base);

/* Runs the C reference row on the image; expected (im->bytes) receives the image as it must be afterwards. Of a large
 * image that the oracle alone judges, only what no row may write to. */
ridge_status image_reference(const image *im, unsigned char *expected);
/* Compares; on a mismatch writes what, where and the values into text and returns false. */
bool image_equal(const image *im, const unsigned char *expected, const unsigned char *got, char *text, size_t size);
/* What the row's contract promises of one run: the reference's bits, or the bound and nothing else written; of rows
 * whose bits are known those bits, and the bound only where random data was promised to be within it. */
bool image_judge(const image *im, const ridge_kernel *kernel, const unsigned char *expected, const unsigned char *got,
                 char *text, size_t size);
/* The float64 bound of the op on the outputs of `got`; worst receives the largest error / bound. */
bool image_close(const image *im, const unsigned char *got, double *worst, char *text, size_t size);

/* check/q8_0/fill.c: fills the operands of the decode ops that are no plain numbers; false: not one of those. */
bool fill_decode(const test_case *c, const image *im, int arg, uint64_t seed);

uint64_t random_next(uint64_t *state);
float random_normal(uint64_t *state);                        /* close to N(0,1): the sum of four uniform numbers */
double dtype_load(const void *memory, uint32_t dtype);       /* one element as a double */
void dtype_store(void *memory, uint32_t dtype, float value); /* f32, bf16 or f16 */
double dtype_ulp(double value, uint32_t dtype);              /* spacing of the dtype at |value| */
double dtype_unit(uint32_t dtype);                           /* of rounding: half of that at 1 */

/* -------------------------------------------------------------------------------------------------------- the verbs */

typedef struct verb {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the verb; returns the exit status */
} verb;

int cmd_info(int argc, char **argv);
int cmd_ops(int argc, char **argv);
int cmd_kernels(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_test(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_quantize(int argc, char **argv);

/* Opens --device or says why not on stderr; NULL on failure. */
ridge_device *device_open(const char *spec);
/* True if name matches a pattern with * and ?, or pattern is NULL. */
bool name_matches(const char *pattern, const char *name);

/* From json_watch on, json_whole is false once a part of any JSON was lost for want of memory, which it says on stderr.
 */
void json_watch(void);
bool json_whole(void);
/* Prints and frees it; false if that failed, or it is not whole. */
bool print_json(json_t *json);
/* Turns "op name=value ..." (words of argv) into a case; says what is wrong on stderr and returns false. */
bool case_parse(const char *text, test_case *c);
/* The call and the problem of a case, its operands at addresses that nothing follows; false: no device takes it, and
 * ridge_error() says why. */
bool case_problem(const test_case *c, ridge_call *call, ridge_problem *problem);
/* False: there is no memory for so many copies of the operands on the host and on the device, or one of them is empty
 * but of a length that would be gone through for hours (ridge_error()). */
bool case_fits(const ridge_device *device, const test_case *c, int host, int on_device);

/* A progress line on a terminal, plain lines otherwise; silent if quiet. */
typedef struct progress {
    bool terminal, quiet;
    double start, shown; /* when the last line of progress_bytes was */
    int done, total;
} progress;

void progress_start(progress *p, int total, bool quiet);
void progress_step(progress *p, const char *what); /* done so far, total, ETA */
/* The same for bytes done of a total: per cent, GB/s, ETA. */
void progress_bytes(progress *p, const char *what, double done, double total);
void progress_end(progress *p);
double seconds(void);

#endif
