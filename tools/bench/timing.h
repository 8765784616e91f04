/* timing.h: candidates on rotated operands, interleaved. */
#ifndef RIDGE_TIMING_H
#define RIDGE_TIMING_H

#include "check/check.h"
#include "tools/cli.h"

enum { TIMING_ROUNDS = 11, TIMING_CANDIDATES = 64 };

/* Another library's way to do the work of a call. */
typedef struct rival {
    const char *name;
    uint32_t op;
    /* What run and close take; NULL and the reason where it cannot do this call. The operands are there. */
    void *(*open)(const ridge_device *device, const ridge_call *call, void *stream, char *why, size_t size);
    ridge_status (*run)(void *state, const ridge_call *call, void *stream); /* can be captured */
    void (*close)(void *state);
} rival;

const rival *rival_at(int index); /* NULL after the last */

typedef struct candidate {
    const ridge_kernel *kernel; /* NULL: a rival, or a copy, or a read, of the same total bytes */
    const rival *rival;
    void *state; /* of the rival */
    int variant; /* of the copy or read */
    bool read;
    void *graph;
    double round[TIMING_ROUNDS];
    double us, us_p20, us_p80;
} candidate;

/* Copies of one image on a device: enough of them that the last-level cache holds none when it is its turn. */
typedef struct rotation {
    const ridge_device *device;
    const image *im;
    unsigned char *memory, *scratch; /* scratch: what the copies copy */
    void *workspace, *stream;
    size_t workspace_bytes, pitch;
    int copies;
    int times;          /* their bytes over the cache's; 0: the usual 4 */
    int rounds;         /* timed: fewer where a round takes long */
    bool weights_const; /* calls carry RIDGE_WEIGHTS_CONST */
} rotation;

/* False with ridge_error(); rotation_free in any case. */
bool rotation_build(const ridge_device *device, const image *im, size_t workspace_bytes, rotation *r);
void rotation_free(rotation *r);
/* Times all candidates, round by round in turn, and sorts out medians and percentiles. False with ridge_error(). */
bool timing_run(rotation *r, candidate *list, int count);
/* Keeps the clocks up for about this long. */
void timing_warm(rotation *r, double for_seconds);

/* The workspace of the candidate that wants most; candidates without a kernel (copies) want none. */
size_t timing_workspace(const ridge_device *device, const ridge_call *call, const candidate *list, int count);

#endif
