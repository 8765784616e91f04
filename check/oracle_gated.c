/* oracle_gated.c: the float64 reference of swiglu_fwd on the results of two products, which several families fuse. */
#include <math.h>

#include "oracle.h"

/* swiglu_fwd of one element; *slack: what its own f32 arithmetic may add, as in check/swiglu/oracle.c; infinite where
 * the square of relu2 times up overflows before it is scaled. */
static double swiglu64(const ridge_call *call, double gate, double up, double row, double *slack)
{
    const ridge_swiglu_options *o = &call->opt.swiglu;
    const double limit = o->limit > 0 ? (double)o->limit : INFINITY;
    const double a = fmin(gate, limit) * (double)o->gate_mul;
    const double b = fmax(fmin(up, limit), -limit) + (double)o->up_offset;
    const double rest = b * (double)o->down_mul * row;
    double h, v = 0;

    switch (call->flags & RIDGE_ACTIVATION) {
    case RIDGE_GELU_TANH:
        v = 2 * sqrt(2 / M_PI) * (a + 0.044715 * a * a * a);
        h = a * oracle_sigmoid(v);
        break;
    case RIDGE_GELU_ERF:
        h = a * 0.5 * erfc(-a * M_SQRT1_2);
        break;
    case RIDGE_RELU2:
        h = a <= 0 ? 0 : a * a;
        break;
    default:
        v = (double)o->alpha * a;
        h = a * oracle_sigmoid(v);
        break;
    }
    *slack = 0x1p-24 * (16 + 4 * fmin(fabs(v), 104)) * fabs(h * rest) + 0x1p-146 * (1 + fabs(a)) * (1 + fabs(rest)) +
             0x1p-24 * fabs(h * (double)o->down_mul * row) * (fabs(up) + fabs((double)o->up_offset));
    if ((call->flags & RIDGE_ACTIVATION) == RIDGE_RELU2 && fabs(h * b) > 0x1p126)
        *slack = INFINITY;
    return h * rest;
}

estimate oracle_gated(const ridge_call *call, estimate gate, estimate up, double row)
{
    double slack, unused, centre, most = 0;

    if (isnan(gate.value) || isnan(up.value))
        return (estimate){NAN, 0};
    if (!(gate.error < 0x1p40 && up.error < 0x1p60 && fabs(gate.value) < 0x1p40 && isfinite(up.value)))
        return (estimate){0, INFINITY}; /* the cube of gate overflows */
    centre = swiglu64(call, gate.value, up.value, row, &slack);
    if (isinf(slack))
        return (estimate){0, INFINITY};
    for (int i = 0; i < 9; i++)
        most = fmax(most, fabs(centre - swiglu64(call, gate.value + (i / 3 - 1) * gate.error,
                                                 up.value + (i % 3 - 1) * up.error, row, &unused)));
    return (estimate){centre, 1.5 * most + slack};
}
