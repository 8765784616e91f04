/* swiglu.h: the formulas of swiglu_fwd and swiglu_bwd for one element, in their bit-exact order.
 *
 * One source for the C reference, the SIMD rows and CUDA. Everything is f32; each operation rounds once, and an fma is
 * where ridge_fma is written. `act` is a compile-time constant in every caller, so that only one branch is left.
 * Leaves out: loads, stores and dtype conversions, the two roundings of RIDGE_ROUND_GATE and RIDGE_ROUND_GATE_BWD (they
 * sit between the functions below) and the sum over columns of drow.
 *
 *     forward                                       backward
 *     a = ridge_swiglu_gate(gate, o)                a, b as in forward
 *     b = ridge_swiglu_up(up, o)                    h = ridge_act_bwd(act, a, alpha, &dh)
 *     h = ridge_act_fwd(act, a, alpha)              dyp = ridge_swiglu_scale(dout, row, o)
 *     [h = rounded h]                               db = ridge_swiglu_dup(dyp * [rounded] h, up, o)
 *     out = ridge_swiglu_scale(h * b, row, o)       da = ridge_swiglu_dgate([rounded] (dyp * b), dh, gate, o)
 *                                                   drow sums dout * ridge_swiglu_drow(h, b, o), h not rounded
 *
 * o has gone through ridge_swiglu_resolve; row is row_scale[t], or 1 where that is absent. */
#ifndef RIDGE_SWIGLU_MATH_H
#define RIDGE_SWIGLU_MATH_H

#include "exact.h"
#include "ridge.h"

/* Columns of drow: column j belongs to partial (j / 8) % 256, which adds from +0 in ascending j; then
 * part[p] += part[p + s] for p < s, s = 128, 64, ..., 1. */
enum { RIDGE_DROW_GROUP = 8, RIDGE_DROW_PARTS = 256 };

/* Makes the options branch-free: no clamp is a limit of infinity, and no offset is -0, the one number whose addition
 * keeps the sign of a zero (so that the default is bit for bit "no addition"). Call it once, on the host. */
RIDGE_FN ridge_swiglu_options ridge_swiglu_resolve(ridge_swiglu_options o)
{
    o.limit = o.limit > 0.0f ? o.limit : ridge_float(0x7f800000u);
    o.up_offset = o.up_offset == 0.0f ? -0.0f : o.up_offset;
    return o;
}

/* x held below hi, or above lo, neither of them 0; NaN stays NaN, on a GPU with other bits. */
RIDGE_FN float ridge_swiglu_at_most(float x, float hi)
{
#ifdef __CUDA_ARCH__
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(hi));
    return x;
#else
    return x > hi ? hi : x;
#endif
}

RIDGE_FN float ridge_swiglu_at_least(float x, float lo)
{
#ifdef __CUDA_ARCH__
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(lo));
    return x;
#else
    return x < lo ? lo : x;
#endif
}

/* a': the clamped gate times gate_mul. NaN stays NaN. */
RIDGE_FN float ridge_swiglu_gate(float gate, ridge_swiglu_options o)
{
    return ridge_swiglu_at_most(gate, o.limit) * o.gate_mul;
}

/* b: the clamped up plus up_offset. NaN stays NaN. */
RIDGE_FN float ridge_swiglu_up(float up, ridge_swiglu_options o)
{
    return ridge_swiglu_at_most(ridge_swiglu_at_least(up, -o.limit), o.limit) + o.up_offset;
}

/* (x * down_mul) * row: the last two products of out, and dy' from dout. */
RIDGE_FN float ridge_swiglu_scale(float x, float row, ridge_swiglu_options o)
{
    return (x * o.down_mul) * row;
}

/* h = act(a), a being a'. */
RIDGE_FN float ridge_act_fwd(unsigned act, float a, float alpha)
{
    if (act == RIDGE_GELU_TANH) {
        /* 0.5 (1 + tanh(w)) = sigmoid(2w); the constants are 2 sqrt(2/pi) and 0.044715 of that. */
        float v = a * ridge_fma(0x1.2444f2p-4f, a * a, 0x1.988454p+0f);
        return a * ridge_sigmoid(v);
    }
    if (act == RIDGE_GELU_ERF) {
        float bell;
        return a * ridge_normal_cdf(a, &bell);
    }
    if (act == RIDGE_RELU2) {
        float r = a <= 0.0f ? 0.0f : a; /* NaN stays */
        return r * r;
    }
    return a * ridge_sigmoid(alpha * a);
}

/* The same where act is known at run time only. */
RIDGE_FN float ridge_act_fwd_any(unsigned act, float a, float alpha)
{
    switch (act) { /* constants, so that each inlined function has one branch */
    case RIDGE_GELU_TANH:
        return ridge_act_fwd(RIDGE_GELU_TANH, a, alpha);
    case RIDGE_GELU_ERF:
        return ridge_act_fwd(RIDGE_GELU_ERF, a, alpha);
    case RIDGE_RELU2:
        return ridge_act_fwd(RIDGE_RELU2, a, alpha);
    default:
        return ridge_act_fwd(RIDGE_SILU, a, alpha);
    }
}

/* h = act(a), the same bits as ridge_act_fwd, and *dh = act'(a). */
RIDGE_FN float ridge_act_bwd(unsigned act, float a, float alpha, float *dh)
{
    if (act == RIDGE_GELU_TANH) {
        float sq = a * a;
        float v = a * ridge_fma(0x1.2444f2p-4f, sq, 0x1.988454p+0f);
        float s = ridge_sigmoid(v);
        float h = a * s;
        /* The bound keeps 0 * infinity away: beyond it h * (1 - s) is 0. */
        float dv = ridge_fma(0x1.b6676cp-3f, ridge_min_f32(sq, 1e30f), 0x1.988454p+0f);
        *dh = ridge_fma(h * (1.0f - s), dv, s);
        return h;
    }
    if (act == RIDGE_GELU_ERF) {
        float bell;
        float c = ridge_normal_cdf(a, &bell);
        *dh = ridge_fma(a * bell, 0x1.988454p-2f, c); /* 1/sqrt(2 pi) */
        return a * c;
    }
    if (act == RIDGE_RELU2) {
        float r = a <= 0.0f ? 0.0f : a;
        *dh = 2.0f * r;
        return r * r;
    }
    {
        float x = alpha * a;
        float s = ridge_sigmoid(x);
        /* Where alpha takes a finite a to infinity, the bound keeps 0 * infinity away; a - a is NaN for an infinite a,
           whose slope is NaN as in PyTorch, and else 0. */
        if (alpha != 1.0f) {
            x = ridge_min_f32(x, 0x1.fffffep+127f);
            x = (a - a) - ridge_min_f32(-x, 0x1.fffffep+127f);
        }
        *dh = s * ridge_fma(x, 1.0f - s, 1.0f);
        return a * s;
    }
}

/* dup: db where up was inside the clamp, else 0. */
RIDGE_FN float ridge_swiglu_dup(float db, float up, ridge_swiglu_options o)
{
    return up > o.limit || up < -o.limit ? 0.0f : db;
}

/* dgate: (dyb * gate_mul) * dh where gate was not clamped, else 0. */
RIDGE_FN float ridge_swiglu_dgate(float dyb, float dh, float gate, ridge_swiglu_options o)
{
    float da = (dyb * o.gate_mul) * dh;
    return gate > o.limit ? 0.0f : da;
}

/* What dout is multiplied by in drow's sum. */
RIDGE_FN float ridge_swiglu_drow(float h, float b, ridge_swiglu_options o)
{
    return (h * b) * o.down_mul;
}

#endif
