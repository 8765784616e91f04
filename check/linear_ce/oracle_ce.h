/* oracle_ce.h: what the evaluation (oracle.c) and the comparison (oracle_check.c) of cross entropy share. */
#ifndef RIDGE_ORACLE_CE_H
#define RIDGE_ORACLE_CE_H

#include <math.h>

#include "linear_ce.h"

/* One evaluation in float64; `rounds` makes it the model. */
typedef struct ce_result {
    double *z, *dz;                        /* [tokens, vocab] */
    double *lse, *target, *loss, *entropy; /* [tokens] */
    double *dx, *dw, *dbias;
    double mean;
} ce_result;

typedef struct ce_subject {
    oracle_run *run;
    const image *im;
    int64_t rows;   /* of the call */
    int64_t tokens; /* that differ: where the rows repeat, the first period of them */
    double copies;  /* rows / tokens */
    int64_t hidden, vocab, total, offset;
    ridge_ce_options o;
    int bits; /* of a rounded logit's significand */
    bool given, hv;
    int bias_arg, weight_arg, up_arg, lse_arg, first_out, dx_arg, bend_arg; /* bend_arg: dentropy, after entropy */
    int ids_arg;                                                            /* ids; id_logprob and did_logprob follow */
    int64_t *y;                                                             /* -1 ignored, -2 out of range */
    double *x, *w, *dot; /* [tokens, hidden], [vocab, hidden], [tokens, vocab] */
    double *cw;          /* [total] */
    double count, weight, weights;
    double *delta, *far; /* [tokens]: error of a logit; sum p |z - lse| */
    double *dz_error;    /* [tokens, vocab] */
    double *lse_error;   /* [tokens]: of dL/du at the target, by the rounding of a fresh lse to f32 */
    double *dx_error, *dw_error, *dw_lse_error; /* of dx and dw, but for their own rounding; of dw by that of the lse */
    ce_result ref, model;
    double *memory; /* all of these */
} ce_subject;

static inline bool oracle_has(const ce_subject *s, int arg)
{
    return arg >= 0 && s->im->length[arg] > 0;
}

/* The class of id k of a row; -1 ignored, -2 out of range. */
int64_t oracle_ce_id(const ce_subject *s, int64_t b, int64_t k);

/* a / b, 0 where b is 0. */
static inline double oracle_over(double a, double b)
{
    return b != 0 ? a / b : 0;
}

/* NaN counts as largest; the first of equals and of NaN wins. */
static inline bool oracle_larger(double z, double best)
{
    return z > best || (isnan(z) && !isnan(best));
}

/* Holds every output of the call against s->ref. oracle_draw.c: the class that was drawn. */
void oracle_ce_check(ce_subject *s);
void oracle_ce_check_draw(ce_subject *s);

#endif
