/* oracle.c: float64 references and bounds of swiglu_fwd and swiglu_bwd: what `close` means there. Shares no
 * arithmetic with the library, except that a value which the contract rounds to 16 bits midway (round_gate) is rounded
 * the same way here.
 *
 * SwiGLU: |y - ref| <= 1 ulp of the dtype at ref + 2^-24 * (E * |ref| + C), E the roundings of the f32 formula
 * (docs/numerics.md), C the terms that cancel. NaN and infinity must be where float64 has them; beyond the range of f32
 * NaN must be where float64 has it that overflows where f32 does. */
#include <math.h>

#include "cpu/num.h"
#include "swiglu.h"

/* act(a), act'(a), and the size of the terms whose difference act' is. */
typedef struct act_value {
    double h, dh, h_slack, dh_slack;
} act_value;

/* The f32 argument of the sigmoid carries a relative error of a few 2^-24; its effect is |v| s (1 - s) times that. */
static act_value act64(uint32_t act, double a, double alpha)
{
    act_value r = {0, 0, 0, 0};

    if (act == RIDGE_RELU2) {
        double p = a <= 0 ? 0 : a;
        r.h = p * p;
        r.dh = 2 * p;
    } else if (act == RIDGE_GELU_ERF) {
        double c = 0.5 * erfc(-a * M_SQRT1_2), bell = exp(-0.5 * a * a) / sqrt(2 * M_PI);
        r.h = a * c;
        r.dh = c + a * bell;
        r.h_slack = 8 * fabs(r.h);
        r.dh_slack = 8 * (c + fabs(a * bell));
    } else if (act == RIDGE_GELU_TANH) {
        double k = 2 * sqrt(2 / M_PI), a2 = a * a < 1e30 ? a * a : 1e30;
        double v = k * (a + 0.044715 * a * a * a), s = oracle_sigmoid(v), dv = k * (1 + 3 * 0.044715 * a2);
        double swing = s * (1 - s) * fabs(v) * 4;
        r.h = a * s;
        r.dh = s + a * s * (1 - s) * dv;
        r.h_slack = 4 * fabs(r.h) + fabs(a) * swing;
        r.dh_slack = 8 * (s + fabs(a * s * (1 - s) * dv)) + swing * (1 + fabs(a * dv)) + fabs(a * dv) * s +
                     0x1p24 * 0x1p-149 * fabs(a * dv);
    } else {
        double x = alpha * a, s = oracle_sigmoid(x);
        r.h = a * s;
        r.dh = s * (1 + x * (1 - s));
        r.h_slack = 4 * fabs(r.h) + fabs(a) * s * (1 - s) * fabs(x);
        r.dh_slack = 8 * s * (1 + fabs(x) * (1 - s)) + s * fabs(x) + s * (1 - s) * fabs(x) * (1 + fabs(x));
    }
    /* exp below the normal range is rounded to a multiple of 2^-149: an absolute error of the sigmoid. */
    r.h_slack += 0x1p24 * 0x1p-149 * (1 + fabs(a));
    r.dh_slack += 0x1p24 * 0x1p-149 * (1 + fabs(a)) * (1 + fabs(alpha));
    return r;
}

static double rounded(double x, uint32_t dtype)
{
    uint16_t half = dtype == RIDGE_BF16 ? ridge_bf16_from_f32((float)x) : ridge_f16_from_f32((float)x);

    return dtype == RIDGE_F32 ? (double)(float)x
                              : (double)(dtype == RIDGE_BF16 ? ridge_f32_from_bf16(half) : ridge_f32_from_f16(half));
}

/* x as f32 has it if it is too large or too small. */
static double in_range(double x)
{
    return fabs(x) > 0x1.fffffep127 ? copysign(INFINITY, x) : fabs(x) < 0x1p-150 ? 0 * x : x;
}

/* A product in the order in which f32 multiplies; factor `act` is act or act', with the error that it may have. */
typedef struct product {
    double factor[4];
    int count, act;
    double slack;
} product;

/* The product in float64 with the range of f32. */
static double product_in_range(const product *p)
{
    double x = in_range(p->factor[0]);

    for (int i = 1; i < p->count; i++)
        x = in_range(x * in_range(p->factor[i]));
    return x;
}

/* Whether NaN is where it must be: 0 times infinity is one. A factor of the size of its own error may be 0, or so much
 * larger that a product with it is not. */
static bool nan_fits(double got, const product *p)
{
    const double act = p->factor[p->act], error = 0x1p-24 * p->slack;
    product small = *p, large = *p;

    small.factor[p->act] = 0 * act;
    large.factor[p->act] = copysign(fabs(act) + error, act);
    return isnan(got) == isnan(product_in_range(p)) ||
           (fabs(act) <= error &&
            (isnan(got) == isnan(product_in_range(&small)) || isnan(got) == isnan(product_in_range(&large))));
}

/* error / bound of one output; > 1 fails. An f32 intermediate may overflow where float64 does not: slack is infinite
 * then, and only NaN is compared. */
static double ratio_of(double got, double ref, double slack, const product *p, uint32_t dtype, bool midway)
{
    if (!isfinite(slack))
        return nan_fits(got, p) ? 0 : INFINITY;
    return oracle_ratio(got, ref, (midway ? 2 : 1) * dtype_ulp(ref, dtype) + 0x1p-24 * slack, dtype);
}

/* One element's operands as the formula sees them. */
typedef struct element {
    double gate, up, dout, row;
} element;

static element element_at(const image *im, int64_t r, int64_t j)
{
    bool backward = im->call.op == RIDGE_SWIGLU_BWD, pair = (im->call.flags & RIDGE_INTERLEAVED) != 0;
    int gate = backward ? RIDGE_SWIGLU_BWD_GATE : RIDGE_SWIGLU_FWD_GATE;
    int up = backward ? RIDGE_SWIGLU_BWD_UP : RIDGE_SWIGLU_FWD_UP;
    int row = backward ? RIDGE_SWIGLU_BWD_ROW_SCALE : RIDGE_SWIGLU_FWD_ROW_SCALE;
    uint32_t dtype = im->call.arg[gate].dtype;
    element e;

    e.gate = dtype_load(oracle_address(im, im->host, gate, r, pair ? 2 * j : j), dtype);
    e.up = dtype_load(pair ? oracle_address(im, im->host, gate, r, 2 * j + 1) : oracle_address(im, im->host, up, r, j),
                      dtype);
    e.dout = backward ? dtype_load(oracle_address(im, im->host, RIDGE_SWIGLU_BWD_DOUT, r, j), dtype) : 0;
    e.row = im->length[row] ? dtype_load(oracle_address(im, im->host, row, 0, r), RIDGE_F32) : 1;
    return e;
}

static double forward_ratio(const image *im, const unsigned char *got, int64_t r, int64_t j)
{
    const ridge_swiglu_options *o = &im->call.opt.swiglu;
    uint32_t dtype = im->call.arg[RIDGE_SWIGLU_FWD_OUT].dtype;
    double limit = o->limit > 0 ? (double)o->limit : INFINITY;
    element e = element_at(im, r, j);
    double a = (e.gate > limit ? limit : e.gate) * (double)o->gate_mul;
    double b = (e.up > limit ? limit : e.up < -limit ? -limit : e.up) + (double)o->up_offset;
    double factor = b * (double)o->down_mul * e.row;
    act_value v = act64(im->call.flags & RIDGE_ACTIVATION, a, (double)o->alpha);
    bool midway = (im->call.flags & RIDGE_ROUND_GATE) != 0;
    double h = midway ? rounded(v.h, dtype) : v.h, ref = h * factor, slack;
    const double h_slack = v.h_slack + (midway ? 0x1p24 * dtype_ulp(v.h, dtype) : 0);

    slack = fabs(factor) * v.h_slack + 6 * fabs(ref);
    if (midway) /* h may round the other way: one more ulp of h */
        slack += 0x1p24 * dtype_ulp(v.h, dtype) * fabs(factor);
    if (fabs(v.h) > 1e38 || fabs(v.h * b) > 1e38 || fabs(v.h * b * (double)o->down_mul) > 1e38 || fabs(a) > 1e18)
        slack = INFINITY;
    /* Subnormal intermediates: an absolute error of half a smallest f32, scaled by what follows. */
    slack += 0x1p24 * 0x1p-149 * (fabs(factor) + fabs((double)o->down_mul * e.row) + fabs(e.row) + 1);
    return ratio_of(dtype_load(oracle_address(im, got, RIDGE_SWIGLU_FWD_OUT, r, j), dtype), ref, slack,
                    &(product){{h, b, (double)o->down_mul, e.row}, 4, 0, h_slack}, dtype, midway);
}

static double backward_ratio(const image *im, const unsigned char *got, int64_t r, int64_t j)
{
    const ridge_swiglu_options *o = &im->call.opt.swiglu;
    uint32_t dtype = im->call.arg[RIDGE_SWIGLU_BWD_DGATE].dtype;
    double limit = o->limit > 0 ? (double)o->limit : INFINITY;
    element e = element_at(im, r, j);
    double a = (e.gate > limit ? limit : e.gate) * (double)o->gate_mul;
    double b = (e.up > limit ? limit : e.up < -limit ? -limit : e.up) + (double)o->up_offset;
    double dy = e.dout * (double)o->down_mul * e.row, g = (double)o->gate_mul;
    act_value v = act64(im->call.flags & RIDGE_ACTIVATION, a, (double)o->alpha);
    bool midway = (im->call.flags & RIDGE_ROUND_GATE_BWD) != 0, pair = (im->call.flags & RIDGE_INTERLEAVED) != 0;
    double h = midway ? rounded(v.h, dtype) : v.h, dyb = midway ? rounded(dy * b, dtype) : dy * b;
    double dup = fabs(e.up) > limit ? 0 : dy * h, dgate = e.gate > limit ? 0 : dyb * g * v.dh;
    double dup_slack = fabs(dy) * v.h_slack + 6 * fabs(dup), dgate_slack = fabs(dyb * g) * v.dh_slack + 8 * fabs(dgate);
    double tiny = 0x1p24 * 0x1p-149, worst;
    const double h_slack = v.h_slack + (midway ? 0x1p24 * dtype_ulp(v.h, dtype) : 0);
    const double dy32 = product_in_range(&(product){{e.dout, (double)o->down_mul, e.row}, 3, 0, 0});
    const double dyb32 = midway ? rounded(in_range(dy32 * b), dtype) : in_range(dy32 * b);
    const product of_dup = {{dy32, h}, 2, 1, h_slack}, of_dgate = {{dyb32, g, v.dh}, 3, 2, v.dh_slack};
    const product clamped = {{0}, 1, 0, 0};
    const void *at;

    if (midway) {
        dup_slack += 0x1p24 * dtype_ulp(v.h, dtype) * fabs(dy);
        dgate_slack += 0x1p24 * dtype_ulp(dy * b, dtype) * fabs(g * v.dh);
    }
    dup_slack += tiny * (fabs(dy) + fabs(v.h) * (1 + fabs(e.row)) + 1);
    dgate_slack += tiny * (fabs(dyb * g) + fabs(v.dh * g) * (1 + fabs(b) * (1 + fabs(e.row))) + fabs(v.dh) + 1);
    if (fabs(a) > 1e18 || fabs(dy) > 1e38 || fabs(e.dout * (double)o->down_mul) > 1e38 || fabs(v.h) > 1e38)
        dup_slack = dgate_slack = INFINITY;
    if (fabs(dy * b) > 1e38 || fabs(dy * b * g) > 1e38)
        dgate_slack = INFINITY;
    at = pair ? oracle_address(im, got, RIDGE_SWIGLU_BWD_DGATE, r, 2 * j + 1)
              : oracle_address(im, got, RIDGE_SWIGLU_BWD_DUP, r, j);
    worst = ratio_of(dtype_load(at, dtype), dup, dup_slack, fabs(e.up) > limit ? &clamped : &of_dup, dtype, midway);
    at = oracle_address(im, got, RIDGE_SWIGLU_BWD_DGATE, r, pair ? 2 * j : j);
    return fmax(worst, ratio_of(dtype_load(at, dtype), dgate, dgate_slack, e.gate > limit ? &clamped : &of_dgate, dtype,
                                midway));
}

/* drow: a sum of cols terms by 256 chains and a tree. */
static double drow_ratio(const image *im, const unsigned char *got, int64_t r)
{
    const ridge_swiglu_options *o = &im->call.opt.swiglu;
    double limit = o->limit > 0 ? (double)o->limit : INFINITY, ref = 0, slack = 0, size = 0;
    double sum[2] = {0, 0}; /* of what is above 0, and below */
    bool may_be_number = true, may_be_nan = false;
    const double got32 = dtype_load(oracle_address(im, got, RIDGE_SWIGLU_BWD_DROW, 0, r), RIDGE_F32);

    for (int64_t j = 0; j < im->call.dim[1]; j++) {
        element e = element_at(im, r, j);
        double a = (e.gate > limit ? limit : e.gate) * (double)o->gate_mul;
        double b = (e.up > limit ? limit : e.up < -limit ? -limit : e.up) + (double)o->up_offset;
        act_value v = act64(im->call.flags & RIDGE_ACTIVATION, a, (double)o->alpha);
        double term = e.dout * v.h * b * (double)o->down_mul;
        const product p = {{v.h, b, (double)o->down_mul, e.dout}, 4, 0, v.h_slack};

        ref += term;
        may_be_number &= nan_fits(0, &p);
        may_be_nan |= nan_fits(NAN, &p);
        sum[term < 0] += fabs(product_in_range(&p));
        size += fabs(term);
        slack += fabs(e.dout * b * (double)o->down_mul) * v.h_slack;
        if (fabs(a) > 1e18 || fabs(v.h * b) > 1e38 || fabs(term) > 1e38)
            slack = INFINITY;
    }
    slack += size * (16 + (double)im->call.dim[1] / 256) + 0x1p-100;
    if (size > 1e38)
        slack = INFINITY;
    if (isfinite(slack))
        return oracle_ratio(got32, ref, dtype_ulp(ref, RIDGE_F32) + 0x1p-24 * slack, RIDGE_F32);
    may_be_nan |= sum[0] > 1e38 && sum[1] > 1e38; /* the difference of two infinite partial sums */
    return isnan(got32) ? (may_be_nan ? 0 : INFINITY) : may_be_number ? 0 : INFINITY;
}

void oracle_swiglu(oracle_run *run)
{
    const image *im = run->im;
    const bool backward = im->call.op == RIDGE_SWIGLU_BWD, drow = backward && im->length[RIDGE_SWIGLU_BWD_DROW];

    for (int64_t r = 0; r < im->call.dim[0]; r++) {
        for (int64_t j = 0; j < im->call.dim[1]; j++)
            oracle_note(run, backward ? backward_ratio(im, run->got, r, j) : forward_ratio(im, run->got, r, j),
                        backward ? "dgate or dup" : "out", r, j);
        if (drow)
            oracle_note(run, drow_ratio(im, run->got, r), "drow", 0, r);
    }
}
