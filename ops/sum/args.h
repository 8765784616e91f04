/* args.h: a sum call as its CPU and CUDA rows take it. */
#ifndef RIDGE_SUM_ARGS_H
#define RIDGE_SUM_ARGS_H

#include "src/internal.h"

typedef struct sum_args {
    const char *x;
    char *out;
    int64_t rows, cols, parts, x_stride, out_stride, part; /* elements; part: from one part to the next */
    int vector;                                            /* CUDA: rows begin at 16 bytes, cols are whole groups */
} sum_args;

/* A packed call is one long row. */
static inline sum_args sum_args_of(const ridge_bound *bound)
{
    const ridge_operand *x = &bound->call.arg[RIDGE_SUM_X], *out = &bound->call.arg[RIDGE_SUM_OUT];
    sum_args p;

    p.x = (const char *)x->data;
    p.out = (char *)out->data;
    p.rows = bound->call.dim[0];
    p.cols = bound->call.dim[1];
    p.parts = bound->call.dim[2];
    p.x_stride = x->stride;
    p.out_stride = out->stride;
    p.part = p.rows * p.x_stride;
    p.vector = 0;
    if (bound->problem.packed) {
        p.cols *= p.rows;
        p.x_stride = p.out_stride = p.cols;
        p.rows = 1;
    }
    return p;
}

#endif
