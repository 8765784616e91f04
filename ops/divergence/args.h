/* args.h: what the rows of divergence make of a call. Of a row with logits z of the student and y of the teacher, both
 * over the temperature:
 *
 *     p = softmax(z), q = softmax(y), m = beta q + (1 - beta) p, r = log p - log m, own = sum p r
 *     loss     beta sum q (log q - log m) + (1 - beta) own
 *     dlogits  scale (1 - beta) p (r - own) / temperature
 *
 * beta 0: sum q (log q - log p) and scale (p - q) / temperature; beta 1: own and scale p (r - own) / temperature, m =
 * q. A class of which p is 0 adds nothing to own, one of which q is 0 nothing to the other sum.
 *
 * Of a slice of the classes the softmax sums are given (lse), and a call makes either the slice's terms of loss and
 * own, or with the whole own its dlogits. */
#ifndef RIDGE_DIVERGENCE_ARGS_H
#define RIDGE_DIVERGENCE_ARGS_H

#include "src/internal.h"

typedef struct divergence_args {
    const char *student, *teacher;
    const float *scale;             /* NULL: 1 */
    const float *lse, *teacher_lse; /* of all classes, where the columns are a slice; else NULL */
    float *loss, *own;              /* own: with dlogits an input; NULL: not wanted */
    char *dlogits;                  /* NULL: not wanted */
    int64_t rows, cols;
    int64_t student_stride, teacher_stride, dlogits_stride; /* in elements */
    uint32_t student_dtype, teacher_dtype, dlogits_dtype;
    float beta, temperature;
    int vector; /* every row begins at a multiple of 16 bytes */
} divergence_args;

static inline float *divergence_vector(const ridge_call *call, int arg)
{
    return call->arg[arg].dtype == RIDGE_NONE ? NULL : (float *)call->arg[arg].data;
}

static inline divergence_args divergence_args_of(const ridge_bound *bound)
{
    const ridge_call *call = &bound->call;
    const ridge_operand *student = &call->arg[RIDGE_DIVERGENCE_STUDENT],
                        *teacher = &call->arg[RIDGE_DIVERGENCE_TEACHER];
    const ridge_operand *dlogits = &call->arg[RIDGE_DIVERGENCE_DLOGITS];
    divergence_args p;

    p.student = (const char *)student->data;
    p.teacher = (const char *)teacher->data;
    p.scale = divergence_vector(call, RIDGE_DIVERGENCE_SCALE);
    p.lse = divergence_vector(call, RIDGE_DIVERGENCE_LSE);
    p.teacher_lse = divergence_vector(call, RIDGE_DIVERGENCE_TEACHER_LSE);
    p.loss = divergence_vector(call, RIDGE_DIVERGENCE_LOSS);
    p.own = divergence_vector(call, RIDGE_DIVERGENCE_OWN);
    p.dlogits = dlogits->dtype == RIDGE_NONE ? NULL : (char *)dlogits->data;
    p.rows = bound->problem.dim[0];
    p.cols = bound->problem.dim[1];
    p.student_stride = student->stride;
    p.teacher_stride = teacher->stride;
    p.dlogits_stride = dlogits->stride;
    p.student_dtype = student->dtype;
    p.teacher_dtype = teacher->dtype;
    p.dlogits_dtype = dlogits->dtype;
    p.beta = call->opt.divergence.beta;
    p.temperature = call->opt.divergence.temperature;
    p.vector = 0;
    return p;
}

#endif
