/* args.h: a swiglu_fwd or swiglu_bwd call as its CPU and CUDA rows take it. Leaves out: swiglu_quantize and the fused
 * SwiGLU of Q8_0, which have arguments of their own. */
#ifndef RIDGE_SWIGLU_ARGS_H
#define RIDGE_SWIGLU_ARGS_H

#include <string.h>

#include "src/internal.h"
#include "src/math/swiglu.h"

/* One matrix operand; data is NULL when it is absent. */
typedef struct swiglu_matrix {
    char *data;
    int64_t stride; /* elements */
} swiglu_matrix;

typedef struct swiglu_args {
    swiglu_matrix gate, up, dout, out, second; /* forward: out; backward: out = dgate, second = dup */
    const float *row_scale;
    float *drow;
    int64_t rows, cols;
    int64_t tile;   /* columns of a work tile */
    uint32_t tiles; /* work tiles a row */
    uint32_t flags;
    int vectors;            /* CUDA: every group of 8 columns of every operand begins at a multiple of 16 bytes */
    ridge_swiglu_options o; /* resolved */
    uint32_t dtype;         /* of all matrices */
    int size;               /* bytes of an element */
    bool backward;
    bool plain;  /* CPU: default options, no row factor, no extra rounding, no drow */
    bool stream; /* CPU: outputs bypass the cache */
} swiglu_args;

static inline swiglu_matrix swiglu_operand(const ridge_operand *x)
{
    swiglu_matrix m;

    m.data = (char *)x->data;
    m.stride = x->stride;
    return m;
}

/* The call's own fields; those of a backend stay 0. Strides are resolved. */
static inline swiglu_args swiglu_args_of(const ridge_call *call)
{
    const ridge_operand *arg = call->arg;
    swiglu_args p;

    memset(&p, 0, sizeof p);
    p.backward = call->op == RIDGE_SWIGLU_BWD;
    p.rows = call->dim[0];
    p.cols = call->dim[1];
    p.flags = call->flags;
    p.dtype = arg[0].dtype;
    p.size = p.dtype == RIDGE_F32 ? 4 : 2;
    p.o = ridge_swiglu_resolve(call->opt.swiglu);
    if (p.backward) {
        p.dout = swiglu_operand(&arg[RIDGE_SWIGLU_BWD_DOUT]);
        p.gate = swiglu_operand(&arg[RIDGE_SWIGLU_BWD_GATE]);
        p.up = swiglu_operand(&arg[RIDGE_SWIGLU_BWD_UP]);
        p.out = swiglu_operand(&arg[RIDGE_SWIGLU_BWD_DGATE]);
        p.second = swiglu_operand(&arg[RIDGE_SWIGLU_BWD_DUP]);
        p.row_scale = (const float *)arg[RIDGE_SWIGLU_BWD_ROW_SCALE].data;
        p.drow = (float *)arg[RIDGE_SWIGLU_BWD_DROW].data;
    } else {
        p.gate = swiglu_operand(&arg[RIDGE_SWIGLU_FWD_GATE]);
        p.up = swiglu_operand(&arg[RIDGE_SWIGLU_FWD_UP]);
        p.out = swiglu_operand(&arg[RIDGE_SWIGLU_FWD_OUT]);
        p.row_scale = (const float *)arg[RIDGE_SWIGLU_FWD_ROW_SCALE].data;
    }
    return p;
}

#endif
