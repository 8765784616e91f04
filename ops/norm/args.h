/* args.h: calls as the CPU and CUDA rows of this folder take them. */
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

/* ---------------------------------------------------------------------------------------------- the other ops */

typedef struct norm_matrix {
    char *data;     /* NULL: absent */
    int64_t stride; /* bytes */
    int32_t dtype, size;
} norm_matrix;

typedef struct add_norm_args {
    norm_matrix x, residual, w, sum, out;
    float *scale; /* of codes: [ceil(n/128)][ld] with fp8, [rows][ld] with i8 */
    int64_t ld, rows, n;
    float eps;
    int pow2;
} add_norm_args;

typedef struct norm_bwd_args {
    norm_matrix dout, x, w, dx, dw, dsum;
    float *partial; /* [groups][n]: dw of RIDGE_NORM_GROUP rows each */
    int64_t rows, n, groups;
    float eps;
} norm_bwd_args;

typedef struct rope_args {
    norm_matrix x, out;
    const void *pos;
    const double *freqs;
    int64_t tokens, heads, n, n_rot; /* n: columns of a head */
    float mscale;
    int inverse, halves, pos64;
    int batch; /* CUDA: tokens of a block */
} rope_args;

static inline norm_matrix norm_matrix_of(const ridge_operand *operand)
{
    norm_matrix m;

    m.data = (char *)operand->data;
    m.dtype = (int32_t)operand->dtype;
    m.size = operand->dtype == RIDGE_F32 ? 4 : operand->dtype == RIDGE_BF16 || operand->dtype == RIDGE_F16 ? 2 : 1;
    m.stride = operand->stride * m.size;
    return m;
}

/* Of rms_norm too: without residual, sum and codes. */
static inline add_norm_args add_norm_args_of(const ridge_call *call)
{
    const ridge_operand *scale = &call->arg[RIDGE_ADD_RMS_NORM_SCALE];
    add_norm_args p;

    memset(&p, 0, sizeof p);
    p.rows = call->dim[0];
    p.n = call->dim[1];
    p.eps = call->opt.norm.eps;
    if (call->op == RIDGE_RMS_NORM) {
        p.x = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_X]);
        p.w = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_W]);
        p.out = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_OUT]);
        return p;
    }
    p.x = norm_matrix_of(&call->arg[RIDGE_ADD_RMS_NORM_X]);
    p.residual = norm_matrix_of(&call->arg[RIDGE_ADD_RMS_NORM_RESIDUAL]);
    p.w = norm_matrix_of(&call->arg[RIDGE_ADD_RMS_NORM_W]);
    p.sum = norm_matrix_of(&call->arg[RIDGE_ADD_RMS_NORM_SUM]);
    p.out = norm_matrix_of(&call->arg[RIDGE_ADD_RMS_NORM_OUT]);
    p.scale = (float *)scale->data;
    p.ld = scale->stride;
    p.pow2 = (call->flags & RIDGE_POW2) != 0;
    return p;
}

static inline norm_bwd_args norm_bwd_args_of(const ridge_call *call)
{
    norm_bwd_args p;

    memset(&p, 0, sizeof p);
    p.dout = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_BWD_DOUT]);
    p.x = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_BWD_X]);
    p.w = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_BWD_W]);
    p.dx = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_BWD_DX]);
    p.dw = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_BWD_DW]);
    p.dsum = norm_matrix_of(&call->arg[RIDGE_RMS_NORM_BWD_DSUM]);
    p.rows = call->dim[0];
    p.n = call->dim[1];
    p.groups = (p.rows + RIDGE_NORM_GROUP - 1) / RIDGE_NORM_GROUP;
    p.eps = call->opt.norm.eps;
    return p;
}

static inline rope_args rope_args_of(const ridge_call *call)
{
    rope_args p;

    memset(&p, 0, sizeof p);
    p.x = norm_matrix_of(&call->arg[RIDGE_ROPE_X]);
    p.out = norm_matrix_of(&call->arg[RIDGE_ROPE_OUT]);
    p.pos = call->arg[RIDGE_ROPE_POS].data;
    p.pos64 = call->arg[RIDGE_ROPE_POS].dtype == RIDGE_I64;
    p.freqs = (const double *)call->arg[RIDGE_ROPE_FREQS].data;
    p.tokens = call->dim[0];
    p.heads = call->dim[1];
    p.n = call->dim[2];
    p.n_rot = call->dim[3];
    p.mscale = call->opt.norm.mscale;
    p.inverse = (call->flags & RIDGE_ROPE_INVERSE) != 0;
    p.halves = (call->flags & RIDGE_ROPE_HALVES) != 0;
    return p;
}

#endif
