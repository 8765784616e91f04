/* test.h: the tests of one row (row.c), of refused calls (bad_arguments.c), of shared arithmetic (exact.c). */
#ifndef RIDGE_TEST_H
#define RIDGE_TEST_H

#include "check.h"

struct planted_fault; /* faults.h */

/* A launch that a fault stands in for. */
typedef struct faulty_run {
    const struct planted_fault *planted;
    const ridge_device *device;
    const ridge_kernel *kernel;
    const ridge_problem *problem;
    const image *im;
    const ridge_call *call;
    void *memory; /* the image's block on the device */
    void *workspace;
    size_t bytes; /* of the workspace */
    void *stream;
} faulty_run;

/* A kernel row under test: the row itself, or a copy of it with a planted fault. */
typedef struct test_row {
    const ridge_kernel *kernel;
    const struct planted_fault *fault;
    bool once; /* only the eager run */
} test_row;

/* Single runs only: too large for two copies, repeats and the float64 bound. */
bool test_is_large(const image *im);

/* Runs the row on the image in every way and compares; on failure text says what. */
bool test_one(const test_row *row, const ridge_device *device, const test_case *c, const image *im,
              const unsigned char *expected, char *text, size_t size);

/* Bad input of an op: every one must be refused with a message that names the op and the operand or value, and nothing
 * written. Returns how many were not; *count says how many there are. */
int test_bad_arguments(const ridge_device *device, const ridge_op_row *op, int *count);

/* exact.h and the fp8 encoding give the host's bits on the device: every 257th float (or all) through each function;
 * the reciprocal over all mantissas of [1, 2). As test_bad_arguments. */
int test_exact(const ridge_device *device, bool all, int *count);

#endif
