/* family.h: what a folder check/<family>/ registers with the driver. */
#ifndef RIDGE_CHECK_FAMILY_H
#define RIDGE_CHECK_FAMILY_H

#include "faults.h"
#include "oracle.h"

/* A call that must be refused, and what the message names. */
typedef struct bad_call {
    ridge_call call;
    const char *what, *names;
} bad_call;

typedef struct suite_row {
    const char *suite, *text;
} suite_row;

typedef struct check_family {
    const ridge_family *family; /* its ops */
    /* Appends the test cases of one of its ops. */
    void (*cases)(const ridge_op_row *op, case_level level, case_list *list);
    /* Holds every output of a run against float64. */
    void (*oracle)(oracle_run *run);
    /* Fills one input of an image; false where the driver shall, by its dtype. NULL: the driver fills all. */
    bool (*fill)(const test_case *c, const image *im, int arg, uint64_t seed);
    int variants;      /* the largest value of the word variant=; 0: it means nothing here */
    bool exact_sums;   /* its sums are exact on small integers: takes fill=exact */
    uint64_t periodic; /* bit mask of ops whose inputs may repeat every IMAGE_PERIOD rows where a call is timed */
    /* A result row of this call depends on nothing but its own inputs; NULL: where the op promises it. */
    bool (*row_wise)(const ridge_call *call);
    /* Whether RIDGE_WEIGHTS_CONST speaks of an operand though it goes with the rows; NULL: of none. */
    bool (*steady)(const ridge_call *call, int arg);
    const suite_row *suites; /* bench and tune suites: rows, ending with a NULL suite, then lines by their index */
    suite_line (*suite)(int index);
    int suite_lines; /* of `suite` */

    /* A model of the hardware knows every bit of these rows; NULL: there is none. */
    bool (*has_bits)(const ridge_kernel *kernel);
    bool (*bits)(const image *im, const unsigned char *got, char *text, size_t size);
    /* The calls that must have run before this one, in the same workspace (CALLS_BEFORE at most); how many. NULL: none.
     */
    int (*before)(const ridge_call *call, ridge_call *list);
    /* Spoils a good call in the family's own ways; returns how many (BAD_CALLS at most). NULL: none. */
    int (*bad_calls)(const ridge_call *good, bad_call *list);
    /* What `ridge test exact` proves on the device beside exact.h: 1 for every float with bits first + i * step that
     * holds. NULL: nothing. */
    const char *proof_name;
    ridge_status (*proof)(const ridge_device *device, uint32_t first, uint32_t step, uint32_t count, float *holds);

    /* Where faults are planted: a row gets the first problem of its op that it can run. Ends with NULL. */
    const char *const *fault_problems;
    const planted_fault *faults; /* that only its ops can have; ends with a NULL name; NULL: none */
} check_family;

enum { BAD_CALLS = 12, CALLS_BEFORE = 2 };

/* families.c: all of them, in the order of ops/families.h; ends with NULL. */
extern const check_family *const check_families[];

const check_family *check_family_of(uint32_t op);

/* ridge_run, after the calls that must have run before. */
ridge_status check_run(const ridge_device *device, const ridge_call *call, void *workspace, size_t bytes, void *stream);

/* Every bit of the row is known by its family's model of the hardware. */
bool check_has_bits(const ridge_kernel *kernel);

#endif
