/* row.h: a row under test, which row.c runs in every way but one: between late writes it is row_late.c's. */
#ifndef RIDGE_ROW_H
#define RIDGE_ROW_H

#include "faults.h"
#include "measure.h"

typedef struct row_lane {
    void *image, *workspace, *stream;
    unsigned launches;
} row_lane;

/* A row under test on an image. */
typedef struct row_run {
    const test_row *row;
    const ridge_device *device;
    const test_case *c;
    const image *im;
    size_t bytes;                 /* of the workspaces */
    row_lane l[2];                /* the second one for copies and two streams */
    unsigned char *first, *again; /* what the eager run left, and what another run did */
    char *text;                   /* what went wrong */
    size_t size;
} row_run;

/* Says what went wrong, with ridge_error(); false. */
bool row_failed(const row_run *t, const char *what);
/* The image and a poisoned workspace into a lane. */
bool row_upload(const row_run *t, row_lane *l);
/* A launch on the first lane of a run; state: a pointer to one. */
ridge_status row_launch_again(const void *state);
/* The operand's rows (or elements, for a vector) follow dim[0]: returns how many bytes one step is, or 0. */
int64_t row_step_of(const image *im, int arg);

/* Between a kernel that writes the inputs late and one that overwrites them early, where the device has such. */
bool row_run_late(row_run *t);

#endif
