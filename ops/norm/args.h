/* args.h: a call of rms_norm or head_rms_norm_rope_tail as its CPU and CUDA rows take it. */
#ifndef RIDGE_NORM_ARGS_H
#define RIDGE_NORM_ARGS_H

#include <string.h>

#include "src/internal.h"
#include "src/math/norm.h"

typedef struct norm_args {
    const char *x;
    char *out;
    const void *w; /* NULL: no weights */
    const void *pos;
    const double *freqs;
    int64_t rows, heads, n, n_rot; /* rows: of rms_norm, or tokens; heads: 1 for rms_norm; n_rot: rotated columns */
    int64_t stride, out_stride;    /* bytes, of a token */
    float eps, mscale;
    int x_bf16, w_bf16, out_bf16, norm, inverse, pos64;
} norm_args;

static inline norm_args norm_args_of(const ridge_call *call)
{
    const bool rope = call->op == RIDGE_HEAD_RMS_NORM_ROPE_TAIL;
    const ridge_operand *x = &call->arg[0], *w = &call->arg[1]; /* slots 0 and 1 in both ops */
    const ridge_operand *out = &call->arg[rope ? (int)RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT : (int)RIDGE_RMS_NORM_OUT];
    norm_args p;

    memset(&p, 0, sizeof p);
    p.rows = call->dim[0];
    p.heads = rope ? call->dim[1] : 1;
    p.n = call->dim[rope ? 2 : 1];
    p.x = (const char *)x->data;
    p.x_bf16 = x->dtype == RIDGE_BF16;
    p.stride = x->stride * (p.x_bf16 ? 2 : 4);
    p.out = (char *)out->data;
    p.out_bf16 = out->dtype == RIDGE_BF16;
    p.out_stride = out->stride * (p.out_bf16 ? 2 : 4);
    p.w = w->data;
    p.w_bf16 = w->dtype == RIDGE_BF16;
    p.eps = call->opt.norm.eps;
    p.norm = 1;
    if (rope) {
        const ridge_operand *pos = &call->arg[RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS];

        p.n_rot = call->dim[3];
        p.pos = pos->data;
        p.pos64 = pos->dtype == RIDGE_I64;
        p.freqs = (const double *)call->arg[RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS].data;
        p.mscale = call->opt.norm.mscale;
        p.inverse = (call->flags & RIDGE_ROPE_INVERSE) != 0;
        p.norm = !(call->flags & RIDGE_ROPE_ONLY);
    }
    return p;
}

#endif
