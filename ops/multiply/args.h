/* args.h: a multiply call as its CPU and CUDA rows take it. */
#ifndef RIDGE_MULTIPLY_ARGS_H
#define RIDGE_MULTIPLY_ARGS_H

#include "src/internal.h"

typedef struct multiply_args {
    const char *x;
    char *out;
    const float *factor;
    int64_t rows, cols, x_stride, out_stride; /* elements; a packed call is one long row */
    int vector;                               /* CUDA: rows begin at 16 bytes, cols are whole groups */
} multiply_args;

static inline multiply_args multiply_args_of(const ridge_bound *bound)
{
    const ridge_operand *x = &bound->call.arg[RIDGE_MULTIPLY_X], *out = &bound->call.arg[RIDGE_MULTIPLY_OUT];
    multiply_args p;

    p.x = (const char *)x->data;
    p.out = (char *)out->data;
    p.factor = (const float *)bound->call.arg[RIDGE_MULTIPLY_FACTOR].data;
    p.rows = bound->call.dim[0];
    p.cols = bound->call.dim[1];
    p.x_stride = x->stride;
    p.out_stride = out->stride;
    p.vector = 0;
    if (bound->problem.packed) {
        p.cols *= p.rows;
        p.x_stride = p.out_stride = p.cols;
        p.rows = 1;
    }
    return p;
}

#endif
