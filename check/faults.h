/* faults.h: the faults that `ridge teeth` plants. */
#ifndef RIDGE_TEETH_H
#define RIDGE_TEETH_H

#include "test.h"

/* The families of ops that a fault makes sense for, or of rows. */
enum { ALL_OPS = 0, SWIGLU_OPS, INVARIANT_OPS, EXACT_ROWS, GEMM_OPS, CE_OPS, LINEAR_CE_OPS, CE_LOSS_OPS };

typedef struct teeth_fault {
    const char *name;
    row_fault *fault;
    bool eager; /* works on a GPU; the others need a CPU (no capture) */
    int family;
} teeth_fault;

/* Set when a fault could not be planted, because the row refuses the call that it would make. */
extern bool teeth_refused;

/* Ends with a NULL name. */
extern const teeth_fault teeth_faults[];

#endif
