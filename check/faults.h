/* faults.h: planted faults. A fault stands in for a row's launch and goes wrong as a real kernel might; the test must
 * then fail (tests/teeth.c). Those that any op can have are here, those of one family in its folder. Most only change
 * the call that the row runs, or its result; what they change is said in the fault's line. */
#ifndef RIDGE_FAULTS_H
#define RIDGE_FAULTS_H

#include "test.h"

typedef ridge_status row_fault(const faulty_run *run);

typedef struct planted_fault {
    const char *name; /* after "a copy of the row that ..." */
    row_fault *fault;
    bool (*applies)(const ridge_kernel *kernel); /* NULL: to every row of the family, or to every row */
    uint32_t op;                                 /* 0: of every op of the family */
    bool cpu;                                    /* cannot be captured into a graph */
    bool special;                                /* of inputs with infinities and NaN (FILL_SPECIAL) */
    const char *by;                              /* how the text of the run that must notice begins; NULL: any */
    const char *operand;                         /* for calls that have it */
    const char *problem;                         /* planted there instead of in the family's problems; NULL: there */
    uint32_t flags;                              /* of the call, taken the other way */
    size_t option;                               /* offset in call.opt of a float, and what it becomes */
    float value;
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

/* The slot of an operand of that name; -1: there is none, or it is absent. */
int fault_slot(const ridge_call *call, const char *name);
/* Bytes of the block after what ran before; and others in their place. */
ridge_status fault_read(const faulty_run *r, size_t at, void *bytes, size_t size);
ridge_status fault_write(const faulty_run *r, size_t at, const void *bytes, size_t size);
/* XORs up to 8 bytes. */
ridge_status fault_edit(const faulty_run *r, size_t at, const unsigned char *mask, size_t size);
/* Where element (row, col) of an operand begins, and one in its middle: not in its padding. */
size_t fault_at(const image *im, int arg, int64_t row, int64_t col);
size_t fault_middle(const image *im, int arg);
/* The launch cannot be spoiled so: says why. */
ridge_status fault_impossible(const char *why);

/* Faults of a line: leaves the operand out; takes it one row (of a vector one element) on; takes the flags the other
 * way; gives the option another value; never writes the operand; spoils one element in its middle; puts 0 in place of
 * the first NaN of its results. */
row_fault fault_forgets_operand, fault_takes_the_next, fault_changes_flags, fault_changes_option, fault_never_writes,
    fault_spoils_an_element, fault_swallows_a_nan;
#define FAULT_SWALLOWS_A_NAN                                                     \
    {                                                                            \
        .name = "swallows a NaN", .fault = fault_swallows_a_nan, .special = true \
    }

#endif
