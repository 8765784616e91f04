/* oracle.c: float64 checks of Q8_0 decode, rms_norm and RoPE. Sums run over plain blocks in doubles (long
 * doubles for angles), with none of the library's arithmetic, except that codes which a product makes inside are taken
 * from the C reference of q8_0_quantize_rows, which has a check of its own here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/oracle.h"

/* A value with the largest error that f32 arithmetic may have made. */
typedef struct estimate {
    double value, error;
} estimate;

/* One output against its estimate. Beyond 2^120 an f32 intermediate may be infinite: only a NaN must show. */
static void check(oracle_run *s, int out, int64_t r, int64_t j, estimate e)
{
    const uint32_t dtype = s->im->call.arg[out].dtype;
    const double got = oracle_out(s, out, r, j);

    if (isnan(e.value))
        oracle_note(s, isnan(got) ? 0 : INFINITY, "a number where NaN belongs", r, j);
    else if (fabs(e.value) + e.error < 0x1p120)
        oracle_note(s, fabs(got - e.value) / (e.error + 0.5 * dtype_ulp(e.value, dtype) * (1 + 0x1p-20)),
                    s->im->call.arg[out].dtype == RIDGE_BF16 ? "bf16 result" : "result", r, j);
}

/* --------------------------------------------------------------------------------------------------------- products */

/* x as codes and scales. */
typedef struct activations {
    int8_t *codes;
    float *scales;
} activations;

static bool activations_of(const oracle_run *s, activations *x)
{
    const image *im = s->im;
    const int64_t tokens = im->call.dim[0], cols = im->call.dim[1];
    ridge_call call =
        ridge_q8_0_quantize_rows(tokens, cols, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_I8));
    ridge_device *cpu = NULL;
    bool good;

    x->codes = calloc((size_t)(tokens * cols) + 1, 1);
    x->scales = calloc((size_t)(tokens * cols / 32) + 1, sizeof *x->scales);
    good = x->codes && x->scales;
    if (good && im->call.arg[0].dtype == RIDGE_I8) {
        for (int64_t i = 0; i < tokens * cols; i++)
            x->codes[i] = *(const int8_t *)oracle_address(im, im->host, 0, i / cols, i % cols);
        for (int64_t i = 0; i < tokens * cols / 32; i++)
            memcpy(&x->scales[i], oracle_address(im, im->host, 1, i / (cols / 32), i % (cols / 32)), 4);
        return true;
    }
    call.arg[0] = image_call(im, im->host).arg[0];
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_CODES, RIDGE_I8, x->codes, 0);
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_SCALES, RIDGE_F32, x->scales, 0);
    good = good && ridge_open("cpu:c", &cpu) == RIDGE_OK && ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK;
    ridge_close(cpu);
    return good;
}

/* Row r of weight w times token t. */
static estimate product(const oracle_run *s, const activations *x, int w, int64_t t, int64_t r)
{
    const image *im = s->im;
    const bool planes = im->call.arg[w].dtype == RIDGE_I8;
    const int64_t cols = im->call.dim[1], blocks = cols / 32;
    double sum = 0, size = 0, tiny = 0;

    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *codes = oracle_address(im, im->host, w, r, planes ? 32 * b : 34 * b + 2);
        const double wd = dtype_load(
            planes ? oracle_address(im, im->host, w + 1, r, b) : oracle_address(im, im->host, w, r, 34 * b), RIDGE_F16);
        const double xs = (double)x->scales[t * blocks + b];
        double dot = 0;

        for (int i = 0; i < 32; i++)
            dot += (double)codes[i] * (double)x->codes[t * cols + 32 * b + i];
        sum += wd * xs * dot;
        size += fabs(wd * xs * dot);
        tiny += fabs(dot) * 0x1p-150; /* wd * xs may be subnormal */
        if (isnan(wd * xs))
            return (estimate){NAN, 0};
        if (isinf((float)(wd * xs))) /* infinity, or NaN with a dot of 0: not for a float64 sum to say */
            return (estimate){0, INFINITY};
    }
    return (estimate){sum, ((double)blocks / 8 + 13) * 0x1p-24 * size + tiny + (size > 0x1p120 ? INFINITY : 0)};
}

/* swiglu_fwd of one element; *slack: what its own f32 arithmetic may add, as in check/swiglu/oracle.c. */
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
    return h * rest;
}

static estimate gate_up(const oracle_run *s, const activations *x, int64_t t, int64_t r)
{
    const ridge_call *call = &s->im->call;
    const estimate g = product(s, x, RIDGE_Q8_0_GATE_UP_SWIGLU_GATE, t, r);
    const estimate u = product(s, x, RIDGE_Q8_0_GATE_UP_SWIGLU_UP, t, r);
    const bool scaled = s->im->length[RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE] > 0;
    const double row = scaled ? oracle_in(s, RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE, 0, t) : 1;
    double slack, unused, centre, most = 0;

    if (isnan(g.value) || isnan(u.value))
        return (estimate){NAN, 0};
    if (!(g.error < 0x1p40 && u.error < 0x1p60 && fabs(g.value) < 0x1p40)) /* cubes of the gate overflow */
        return (estimate){0, INFINITY};
    centre = swiglu64(call, g.value, u.value, row, &slack);
    for (int i = 0; i < 9; i++)
        most = fmax(most, fabs(centre - swiglu64(call, g.value + (i / 3 - 1) * g.error, u.value + (i % 3 - 1) * u.error,
                                                 row, &unused)));
    return (estimate){centre, 1.5 * most + slack};
}

static void check_hc(oracle_run *s, const activations *x, int64_t t, int64_t r)
{
    const int64_t rows = s->im->call.dim[2], n = s->im->call.dim[3];
    const bool more = s->im->length[RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD] > 0;
    estimate v = product(s, x, RIDGE_Q8_0_MATMUL_HC_EXPAND_W, t, r);

    if (s->im->length[RIDGE_Q8_0_MATMUL_HC_EXPAND_Y])
        check(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_Y, t, r, v);
    if (more)
        v.value += oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD, t, r);
    v.error += more ? 0x1p-24 * fabs(v.value) : 0;
    for (int64_t dst = 0; dst < n; dst++) {
        const double post = oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_POST, t, dst);
        double sum = v.value * post, size = fabs(sum);

        for (int64_t src = 0; src < n; src++) {
            const double term = oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB, t, dst + n * src) *
                                oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_RES, t, src * rows + r);

            sum += term;
            size += fabs(term);
        }
        if (isnan(v.value) || size < 0x1p120)
            check(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT, t, dst * rows + r,
                  (estimate){sum, fabs(post) * v.error + ((double)n + 2) * (0x1p-24 * size + 0x1p-149)});
    }
}

static void check_row(oracle_run *s, const activations *x, int64_t t, int64_t r, int which)
{
    switch (s->im->call.op) {
    case RIDGE_Q8_0_MATMUL:
        check(s, RIDGE_Q8_0_MATMUL_OUT, t, r, product(s, x, RIDGE_Q8_0_MATMUL_W, t, r));
        break;
    case RIDGE_Q8_0_PAIR:
        check(s, RIDGE_Q8_0_PAIR_OUT0 + which, t, r, product(s, x, RIDGE_Q8_0_PAIR_W0 + 2 * which, t, r));
        break;
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
        check(s, RIDGE_Q8_0_GATE_UP_SWIGLU_OUT, t, r, gate_up(s, x, t, r));
        break;
    default:
        check_hc(s, x, t, r);
        break;
    }
}

void oracle_decode(oracle_run *run)
{
    const image *im = run->im;
    const int64_t high[2] = {im->call.dim[2], im->call.op == RIDGE_Q8_0_PAIR ? im->call.dim[3] : 0};
    activations x;
    const bool good = activations_of(run, &x);
    char why[300];

    snprintf(why, sizeof why, "the oracle cannot quantise x: %s", good ? "" : ridge_error());
    if (!good)
        oracle_fail(run, why);
    for (int which = 0; which < 2 && good; which++)
        for (int64_t r = 0; r < high[which]; r++)
            for (int64_t t = 0; t < im->call.dim[0]; t++)
                check_row(run, &x, t, r, which);
    free(x.codes);
    free(x.scales);
}

/* ---------------------------------------------------------------------------------------------- q8_0_quantize_rows */

void oracle_quantize_rows(oracle_run *run)
{
    const image *im = run->im;

    for (int64_t r = 0; r < im->call.dim[0]; r++)
        for (int64_t b = 0; b < im->call.dim[1] / 32; b++) {
            const double d = oracle_out(run, RIDGE_Q8_0_QUANTIZE_ROWS_SCALES, r, b);
            const int8_t *codes = oracle_address(im, run->got, RIDGE_Q8_0_QUANTIZE_ROWS_CODES, r, 32 * b);
            double amax = 0, want;
            bool finite = true;

            for (int i = 0; i < 32; i++) {
                finite = finite && isfinite(oracle_in(run, 0, r, 32 * b + i));
                amax = fmax(amax, fabs(oracle_in(run, 0, r, 32 * b + i)));
            }
            want = amax / 127;
            if (!finite)
                oracle_note(run, isnan(d) ? 0 : INFINITY, "scale of a group that is not finite", r, b);
            else if (want < 0x1p-126 * (1 - 0x1p-24)) /* just below it may round up to it */
                oracle_note(run, d == 0 ? 0 : INFINITY, "scale below 2^-126", r, b);
            else
                oracle_note(run, fabs(d - want) / dtype_ulp(want, RIDGE_F32), "scale", r, b);
            for (int i = 0; i < 32; i++) {
                const double v = finite && d > 0 ? oracle_in(run, 0, r, 32 * b + i) / want : 0;

                oracle_note(run, fabs(codes[i] - v) / (finite && d > 0 ? 0.5 + 0x1p-15 : 0x1p-99), "code", r,
                            32 * b + i);
            }
        }
}

/* --------------------------------------------------------------------------------------------------- norm and RoPE */

/* n elements from (r, first): what they are multiplied by, and its relative error. */
static estimate factor_of(const oracle_run *s, int64_t r, int64_t first, int64_t n)
{
    double sum = 0;

    for (int64_t j = 0; j < n; j++)
        sum += oracle_in(s, 0, r, first + j) * oracle_in(s, 0, r, first + j);
    if (isnan(sum))
        return (estimate){NAN, 0};
    if (!(sum < 0x1p120)) /* f32 overflows earlier than float64 */
        return (estimate){0, INFINITY};
    if (sum < (double)n * 0x1p-100 && s->im->call.opt.norm.eps == 0.0f) /* squares that underflow */
        return (estimate){0, INFINITY};
    sum = sum / (double)n + (double)s->im->call.opt.norm.eps;
    return (estimate){1 / sqrt(sum), ((double)n / 512 + 7) * 0x1p-23};
}

/* Element j of the row or head that begins at column first, before the rotation. */
static estimate normed(const oracle_run *s, int64_t r, int64_t first, int64_t j, estimate factor, bool norm)
{
    const double w = s->im->length[1] ? oracle_in(s, 1, 0, j) : 1, x = oracle_in(s, 0, r, first + j);
    estimate e = {x * w, 0};

    if (norm) {
        e.value *= factor.value;
        e.error = fabs(e.value) * (factor.error + 0x1p-23) + 0x1p-148 * (1 + fabs(w));
    } else if (s->im->length[1])
        e.error = 0x1p-24 * fabs(e.value);
    if (norm && isinf(factor.error))
        e = (estimate){isnan(x) ? NAN : 0, INFINITY};
    return e;
}

static void check_pair(oracle_run *s, int64_t t, int64_t first, int64_t j, int64_t i, estimate factor)
{
    const ridge_call *call = &s->im->call;
    const bool norm = !(call->flags & RIDGE_ROPE_ONLY);
    const estimate a = normed(s, t, first, j, factor, norm), b = normed(s, t, first, j + 1, factor, norm);
    const double angle =
        oracle_in(s, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS, 0, t) * oracle_in(s, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS, 0, i);
    const double c = (double)cosl((long double)angle) * (double)call->opt.norm.mscale;
    const double sine = (double)sinl((long double)angle) * (double)call->opt.norm.mscale;
    const double turn = call->flags & RIDGE_ROPE_INVERSE ? -sine : sine;
    const double size0 = fabs(a.value * c) + fabs(b.value * turn), size1 = fabs(a.value * turn) + fabs(b.value * c);
    const double error = a.error + b.error;
    const int out = RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT;
    estimate y0 = {a.value * c - b.value * turn, 0x1p-22 * size0 + 0x1p-148}, y1 = y0;

    y0.error += error * (fabs(c) + fabs(turn));
    y1 = (estimate){a.value * turn + b.value * c, 0x1p-22 * size1 + 0x1p-148 + error * (fabs(c) + fabs(turn))};
    if (fabs(angle) >= 0x1p47)
        y0.value = y1.value = NAN;
    if (isinf(a.value) || isinf(b.value) || (isinf(error) && fabs(angle) < 0x1p47))
        return;
    check(s, out, t, first + j, y0);
    check(s, out, t, first + j + 1, y1);
}

static void check_rows(oracle_run *s, int64_t rows, int64_t heads, int64_t n, int64_t n_rot, int out)
{
    const bool norm = !(s->im->call.flags & RIDGE_ROPE_ONLY);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            const estimate factor = factor_of(s, r, h * n, n);

            for (int64_t j = 0; j < n - n_rot; j++)
                check(s, out, r, h * n + j, normed(s, r, h * n, j, factor, norm));
            for (int64_t i = 0; i < n_rot / 2; i++)
                check_pair(s, r, h * n, n - n_rot + 2 * i, i, factor);
        }
}

void oracle_norm(oracle_run *run)
{
    const int64_t *dim = run->im->call.dim;

    if (run->im->call.op == RIDGE_RMS_NORM)
        check_rows(run, dim[0], 1, dim[1], 0, RIDGE_RMS_NORM_OUT);
    else
        check_rows(run, dim[0], dim[1], dim[2], dim[3], RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT);
}
