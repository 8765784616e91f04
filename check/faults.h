/* faults.h: planted faults. A fault stands in for a row's launch and goes wrong as a real kernel might; the test must
 * then fail (tests/teeth.c). Those that any op can have are here, those of one family in its folder. */
#ifndef RIDGE_FAULTS_H
#define RIDGE_FAULTS_H

#include "test.h"

typedef struct planted_fault {
    const char *name; /* after "a copy of the row that ..." */
    row_fault *fault;
    bool (*applies)(const ridge_kernel *kernel); /* NULL: to every row of the family, or to every row */
    bool cpu;                                    /* cannot be captured into a graph */
} planted_fault;

/* The faults of every op; ends with a NULL name. */
extern const planted_fault common_faults[];

/* Set when a fault could not be planted, because the row refuses the call that it would make. */
extern bool fault_refused;

/* Runs a call as the problem that the right call is. */
ridge_status fault_run(const faulty_run *r, const ridge_call *call);
/* Runs another call; the first of some that the row can run. */
ridge_status fault_run_changed(const faulty_run *r, const ridge_call *call);
ridge_status fault_run_first_of(const faulty_run *r, const ridge_call *list, int count);
/* The call with the strides of the packed one, so that a narrower or shorter call still reads the same tensor. */
ridge_call fault_with_strides(const ridge_call *call);

#endif
