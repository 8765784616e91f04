/* check.h: the test driver. It owns the loop over the two tables: for each op its cases, for each case an image in
 * memory, and for each kernel row that can run it the runs and comparisons which its contract asks for (row.c). It
 * knows no op: what depends on one (cases, inputs, the float64 oracle, suites, faults) is in check/<family>/,
 * registered in families.c as a check_family (family.h). `ridge test`, `bench` and `tune` are its users. */
#ifndef RIDGE_CHECK_H
#define RIDGE_CHECK_H

#include <stdio.h>

#include "number.h"
#include "src/internal.h"

/* ---------------------------------------------------------------------------------------------------------- cases */

typedef enum fill_kind {
    FILL_NORMAL, /* N(0,1) scaled per row by 2^-6 .. 2^6 */
    FILL_UNIT,   /* N(0,1): what benchmarks use */
    FILL_EDGE,   /* special values mixed with random bit patterns */
    FILL_EVERY,  /* 16-bit dtypes: the first input counts through all 65,536 patterns */
    FILL_GROUPS, /* every 128 columns of a kind: zeros, powers of two, subnormal, huge, not finite */
    FILL_PERIOD, /* rows repeat with period 64: for tensors too large for the reference */
    FILL_EXACT,  /* small integers, scales 1/2, 1 and 2: products and sums that f32 holds exactly */
    FILL_SPECIAL /* N(0,1); every other row has an infinity or a NaN, vectors have some */
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
    int variant; /* which special inputs: the op's family says what the number means (check_family.variants) */
    int units;   /* as on a GPU of so many multiprocessors, for rows whose plans depend on them; 0: as many as it has */
    bool gpu;    /* on CUDA devices only: no CPU row treats it unlike a smaller one, and its reference is slow */
} test_case;

typedef struct case_list {
    test_case *at;
    int count, capacity;
} case_list;

typedef enum case_level { CASES_QUICK, CASES_FULL, CASES_LARGE } case_level;

/* Appends the test cases of an op. */
void cases_of(const ridge_op_row *op, case_level level, case_list *list);
/* Appends the case of a problem text (without the op's name) and a layout. */
void cases_add(case_list *list, const ridge_op_row *op, const char *text, test_case layout);

/* The call and the problem of a case, its operands at addresses that nothing follows; false: no device takes it, and
 * ridge_error() says why. */
bool case_problem(const test_case *c, ridge_call *call, ridge_problem *problem);
/* False: there is no memory for so many copies of the operands on the host and on the device, or one of them is empty
 * but of a length that would be gone through for hours (ridge_error()). */
bool case_fits(const ridge_device *device, const test_case *c, int host, int on_device);

/* The device that a case is for: this one, said to have the case's multiprocessors. */
ridge_device case_device(const ridge_device *device, const test_case *c);

/* Text of a case: "op name=value ...", the words of the problem and of the layout. case_parse reads it back; it says
 * what is wrong on stderr and returns false. */
void case_print(const test_case *c, char *text, size_t size);
bool case_parse(const char *text, test_case *c);
extern const char case_blanks[]; /* what separates the words */

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

/* --------------------------------------------------------------------------------------------------------- images */

/* All operands of a case in one block of memory, with guard bands round each: the host image holds guards, inputs and
 * poisoned outputs; a device copy of it is one upload, and a check of everything is one comparison. */
enum { IMAGE_PERIOD = 64 };

typedef struct image {
    ridge_call call; /* no pointers; strides set */
    size_t bytes;
    size_t offset[RIDGE_MAX_ARGS];
    size_t length[RIDGE_MAX_ARGS]; /* 0 = absent */
    int64_t pitch[RIDGE_MAX_ARGS]; /* elements from a row to the next, of packed operands too; 0: not known */
    unsigned char *host;
    fill_kind fill;
    /* For timing only: the host has the first IMAGE_PERIOD rows of the inputs, and the others repeat them. */
    bool periodic;
    /* What an oracle computes on first use, once for all rows and runs of a case: the float64 reference and bound of
     * every output element, and the images as the family's model of the hardware (check_family.bits) leaves them. */
    struct image_memo {
        double *reference, *bound;
        unsigned char *bits[4];
        void *own; /* or another form of that, of one family */
        void (*free_own)(void *own);
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
/* The call with operands at base (a copy of the image, 256-byte aligned). */
ridge_call image_call(const image *im, void *base);
/* memcpy by all cores. */
void image_copy(unsigned char *to, const unsigned char *from, size_t bytes);

/* Compares; on a mismatch writes what, where and the values into text and returns false. */
bool image_equal(const image *im, const unsigned char *expected, const unsigned char *got, char *text, size_t size);
/* Compares all but the elements of outputs: guards, padding, inputs. */
bool image_intact(const image *im, const unsigned char *expected, const unsigned char *got, char *text, size_t size);

/* Runs the C reference row on the image; expected (im->bytes) receives the image as it must be afterwards. Of a large
 * image that only the oracle judges, only what no row may write to. */
ridge_status image_reference(const image *im, unsigned char *expected);
/* What the row's contract promises of one run: the reference's bits, or the bound and nothing else written; of rows
 * whose bits are known those bits, and the bound only where random data was promised to be within it. */
bool image_judge(const image *im, const ridge_kernel *kernel, const unsigned char *expected, const unsigned char *got,
                 char *text, size_t size);
/* The float64 bound of the op on the outputs of `got`; worst receives the largest error / bound. */
bool image_close(const image *im, const unsigned char *got, double *worst, char *text, size_t size);

#endif
