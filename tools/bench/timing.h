/* timing.h: times candidates, interleaved, on operands that are not in the cache. */
#ifndef RIDGE_TIMING_H
#define RIDGE_TIMING_H

#include "check/check.h"
#include "tools/cli.h"

enum { TIMING_ROUNDS = 11, TIMING_CANDIDATES = 64 };

/* Another library's way to do the work of a call. */
typedef struct rival {
    const char *name;
    uint32_t op; /* RIDGE_OP_NONE: any */
    /* Returns the state that run and close take; NULL and the reason where it cannot do this call. The operands are on
     * the device. */
    void *(*open)(const ridge_device *device, const ridge_call *call, void *stream, char *why, size_t size);
    ridge_status (*run)(void *state, const ridge_call *call, void *stream); /* can be captured */
    void (*close)(void *state);
} rival;

const rival *rival_at(int index); /* NULL after the last */

typedef struct candidate {
    const ridge_kernel *kernel; /* NULL: a rival, or a copy or a read of the same total bytes */
    const rival *rival;
    void *state; /* of the rival */
    int variant; /* of the copy or read */
    bool read;
    void *graph;
    double round[TIMING_ROUNDS];
    double us, us_p20, us_p80;
} candidate;

/* Copies of one image on a device, which the calls use one after another: so many that a copy has left the last-level
 * cache before it is used again. */
typedef struct rotation {
    const ridge_device *device;
    const image *im;
    unsigned char *memory, *scratch; /* scratch: operands of copies and reads */
    void *workspace, *stream;
    size_t workspace_bytes, pitch;
    int copies;
    int times;          /* bytes of all copies, in sizes of the cache; 0: 16, on a CPU 4 */
    int rounds;         /* that are timed: fewer where a round takes long */
    bool weights_const; /* calls carry RIDGE_WEIGHTS_CONST */
} rotation;

/* False with ridge_error(); rotation_free in any case. */
bool rotation_build(const ridge_device *device, const image *im, size_t workspace_bytes, rotation *r);
void rotation_free(rotation *r);
/* Times all candidates once in every round and computes median and percentiles. False with ridge_error(). */
bool timing_run(rotation *r, candidate *list, int count);
/* Times all candidates once and leaves out those that take more than twice as long as the fastest, but not the first.
 * Returns how many are left; 0 with ridge_error(). */
int timing_sift(rotation *r, candidate *list, int count);
/* Copies for about this long, so that the clocks rise. */
void timing_warm(rotation *r, double for_seconds);

/* Runs a call once on a device copy of the image and judges the result by the row's contract; kernel NULL: the row that
 * is picked, which must give the C reference's bytes. False with the reason in text. */
bool timing_verify(const ridge_device *device, const image *im, const ridge_kernel *kernel, char *text, size_t size);

/* The largest workspace of the candidates; those without a kernel (copies, reads, rivals) need none. */
size_t timing_workspace(const ridge_device *device, const ridge_call *call, const candidate *list, int count);

#endif
