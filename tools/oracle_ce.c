/* oracle_ce.c: float64 references and bounds of cross entropy; nothing is shared with the library's arithmetic.
 *
 * Two gates. Elementwise: what logits that are off by `delta` (half a unit of x's dtype at the largest of the row) and
 * gradients of logits rounded to that dtype can do at worst. Per tensor: the rms error is no more than that of a model
 * that does round so. f32 inputs: 18 bits instead of the dtype's. Given logits are not rounded by the model. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

/* One evaluation in float64; `rounds` makes it the model. */
typedef struct result {
    double *z, *dz;                        /* [tokens, vocab] */
    double *lse, *target, *loss, *entropy; /* [tokens] */
    double *dx, *dw, *dbias;
    double mean;
} result;

typedef struct subject {
    const image *im;
    const unsigned char *got;
    int64_t tokens, hidden, vocab, total, offset;
    ridge_ce_options o;
    int bits; /* of a rounded logit's significand */
    bool given, hv;
    int bias_arg, weight_arg, up_arg, lse_arg, first_out, dx_arg;
    int64_t *y;          /* -1 ignored, -2 out of range */
    double *x, *w, *dot; /* [tokens, hidden], [vocab, hidden], [tokens, vocab] */
    double *cw;          /* [total] */
    double count, weight, weights;
    double *delta, *far; /* [tokens]: error of a logit; sum p |z - lse| */
    double *dz_error;    /* [tokens, vocab] */
    result ref, model;
    double worst;
    char *text;
    size_t size;
} subject;

static void note(subject *s, double ratio, const char *what, int64_t row, int64_t col)
{
    if (!(ratio <= s->worst)) {
        s->worst = ratio;
        snprintf(s->text, s->size, "%s[%" PRId64 ",%" PRId64 "] is off by %.3g of the bound", what, row, col, ratio);
    }
}

/* NaN where NaN is due, infinity likewise, else the error over the bound. */
static void compare(subject *s, double got, double ref, double bound, const char *what, int64_t row, int64_t col)
{
    if (isnan(ref) || isinf(ref))
        note(s, (isnan(ref) && isnan(got)) || got == ref ? 0 : INFINITY, what, row, col);
    else
        note(s, fabs(got - ref) / (bound + 0x1p-140), what, row, col);
}

static double rounded(double x, int bits)
{
    int exponent;

    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}

static double input(const subject *s, int arg, int64_t r, int64_t j)
{
    return dtype_load(oracle_address(s->im, s->im->host, arg, r, j), s->im->call.arg[arg].dtype);
}

static double output(const subject *s, int arg, int64_t r, int64_t j)
{
    return dtype_load(oracle_address(s->im, s->got, arg, r, j), s->im->call.arg[arg].dtype);
}

static bool has(const subject *s, int arg)
{
    return arg >= 0 && s->im->length[arg] > 0;
}

static double *room(int64_t count)
{
    return calloc((size_t)(count > 0 ? count : 1), sizeof(double));
}

/* ------------------------------------------------------------------------------------------------------ the inputs */

static void slots(subject *s)
{
    s->bias_arg = s->weight_arg = s->up_arg = s->lse_arg = s->first_out = s->dx_arg = -1;
    switch (s->im->call.op) {
    case RIDGE_LINEAR_CE_BACKWARD:
        s->bias_arg = RIDGE_LINEAR_CE_BACKWARD_BIAS;
        s->weight_arg = RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT;
        s->up_arg = RIDGE_LINEAR_CE_BACKWARD_DLOSS;
        s->lse_arg = RIDGE_LINEAR_CE_BACKWARD_LSE;
        s->dx_arg = RIDGE_LINEAR_CE_BACKWARD_DX;
        break;
    case RIDGE_CE_BWD:
        s->weight_arg = RIDGE_CE_BWD_CLASS_WEIGHT;
        s->up_arg = RIDGE_CE_BWD_DLOSS;
        s->lse_arg = RIDGE_CE_BWD_LSE;
        break;
    case RIDGE_CE_FWD:
        s->weight_arg = RIDGE_CE_FWD_CLASS_WEIGHT;
        s->first_out = RIDGE_CE_FWD_LOSS;
        break;
    default:
        s->bias_arg = RIDGE_LINEAR_CE_BIAS;
        s->weight_arg = RIDGE_LINEAR_CE_CLASS_WEIGHT;
        s->first_out = RIDGE_LINEAR_CE_LOSS;
        if (s->im->call.op == RIDGE_LINEAR_CE_TRAIN) {
            s->up_arg = RIDGE_LINEAR_CE_GRAD_SCALE;
            s->dx_arg = RIDGE_LINEAR_CE_DX;
        }
        break;
    }
}

static void read_targets(subject *s)
{
    for (int64_t b = 0; b < s->tokens; b++) {
        const int64_t t = (int64_t)input(s, s->given ? (int)RIDGE_CE_FWD_TARGET : (int)RIDGE_LINEAR_CE_TARGET, 0, b);

        s->y[b] = t == s->o.ignore_index ? -1 : t < 0 || t >= s->total ? -2 : t;
        s->count += s->y[b] != -1;
        s->weight += s->y[b] == -1 ? 0 : s->y[b] == -2 || !has(s, s->weight_arg) ? 1 : s->cw[s->y[b]];
    }
}

static void read_inputs(subject *s)
{
    for (int64_t c = 0; c < s->total; c++) {
        s->cw[c] = has(s, s->weight_arg) ? input(s, s->weight_arg, 0, c) : 1;
        s->weights += s->cw[c];
    }
    read_targets(s);
    if (s->given) {
        for (int64_t b = 0; b < s->tokens; b++)
            for (int64_t c = 0; c < s->vocab; c++)
                s->dot[b * s->vocab + c] = input(s, 0, b, c);
        return;
    }
    for (int64_t c = 0; c < s->vocab; c++)
        for (int64_t j = 0; j < s->hidden; j++)
            s->w[c * s->hidden + j] = s->hv ? input(s, 1, j, c) : input(s, 1, c, j);
    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t j = 0; j < s->hidden; j++)
            s->x[b * s->hidden + j] = input(s, 0, b, j);
#pragma omp parallel for schedule(static) if (s->tokens * s->vocab > 20000)
    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t c = 0; c < s->vocab; c++) {
            double sum[4] = {0};

            for (int64_t j = 0; j < s->hidden; j++)
                sum[j % 4] += s->x[b * s->hidden + j] * s->w[c * s->hidden + j];
            s->dot[b * s->vocab + c] = sum[0] + sum[1] + sum[2] + sum[3];
        }
}

/* -------------------------------------------------------------------------------------------------------- evaluation
 */

static double bias_at(const subject *s, int64_t c)
{
    return has(s, s->bias_arg) ? input(s, s->bias_arg, 0, c) : 0;
}

static double cap_of(const subject *s, double u)
{
    const double cap = (double)s->o.softcap;

    return (cap > 0 ? cap * tanh(u / cap) : u) / (double)s->o.temperature;
}

/* Logits, softmax sums and the loss of a row. */
static void forward_row(const subject *s, result *r, bool model, int64_t b)
{
    double *z = r->z + b * s->vocab, max = -INFINITY, sum = 0, pz = 0, smooth = 0, eps = (double)s->o.label_smoothing;

    for (int64_t c = 0; c < s->vocab; c++) {
        const double dot = s->dot[b * s->vocab + c];

        z[c] = cap_of(s, (model && !s->given ? rounded(dot, s->bits) : dot) + bias_at(s, c));
        max = fmax(max, z[c]);
    }
    for (int64_t c = 0; c < s->vocab; c++)
        sum += exp(z[c] - max);
    r->lse[b] = max + log(sum);
    for (int64_t c = 0; c < s->vocab; c++) {
        const double p = exp(z[c] - max) / sum;

        pz += p > 0 ? p * (z[c] - r->lse[b]) : 0;
        smooth += eps != 0 ? s->cw[s->offset + c] * (r->lse[b] - z[c]) : 0;
    }
    r->entropy[b] = -pz;
    r->target[b] = s->y[b] == -2                                            ? NAN
                   : s->y[b] < s->offset || s->y[b] >= s->offset + s->vocab ? -INFINITY
                                                                            : z[s->y[b] - s->offset];
    if (s->y[b] >= 0)
        r->loss[b] = (s->cw[s->y[b]] == 0 ? 0 : (1 - eps) * s->cw[s->y[b]] * (r->lse[b] - r->target[b])) +
                     eps / (double)s->total * smooth;
}

static double over(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* Mean or sum; leaves r->loss with the z-loss added. */
static void reduce(const subject *s, result *r)
{
    const bool mean = (s->im->call.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_MEAN;
    double ce = 0, square = 0;

    for (int64_t b = 0; b < s->tokens; b++) {
        const double lse = r->lse[b], add = s->y[b] < 0 ? 0 : (double)s->o.lse_square_scale * lse * lse;

        if (s->y[b] == -1)
            continue;
        ce += s->y[b] == -2 ? NAN : r->loss[b];
        square += add;
        r->loss[b] = s->y[b] == -2 ? NAN : r->loss[b] + add;
    }
    r->mean = !mean ? ce + square : isnan(ce) ? NAN : over(ce, s->weight) + over(square, s->count);
}

typedef struct factors {
    double label, smooth, square;
} factors;

static factors factors_of(const subject *s, int64_t b)
{
    const uint32_t reduction = s->im->call.flags & RIDGE_CE_REDUCTION;
    const double up =
        (has(s, s->up_arg) ? input(s, s->up_arg, 0, reduction == RIDGE_CE_NONE ? b : 0) : 1) * (double)s->o.grad_scale;
    const double eps = (double)s->o.label_smoothing, ce = reduction ? up : over(up, s->weight);

    return (factors){ce * (1 - eps) * s->cw[s->y[b]], ce * eps / (double)s->total,
                     (reduction ? up : over(up, s->count)) * 2 * (double)s->o.lse_square_scale};
}

/* dL/du of a row; for the reference also its error bound. */
static void gradient_row(subject *s, result *r, bool model, int64_t b)
{
    const factors f = factors_of(s, b);
    const double lse = s->lse_arg >= 0 ? input(s, s->lse_arg, 0, b) : r->lse[b], cap = (double)s->o.softcap;
    const double *z = r->z + b * s->vocab, delta = s->delta[b], fresh = s->lse_arg >= 0 ? 1 : 2;

    for (int64_t c = 0; c < s->vocab; c++) {
        const bool label = s->offset + c == s->y[b];
        const double p = exp(z[c] - lse), smooth = f.smooth * s->cw[s->offset + c];
        const double soft = p * (f.smooth * s->weights + f.square * lse), t = z[c] * (double)s->o.temperature / cap;
        const double slope = (cap > 0 ? 1 - t * t : 1) / (double)s->o.temperature;
        const double dz = ((label ? p - 1 : p) * f.label + soft - smooth) * slope;
        double error = p * fresh * delta * (fabs(f.label) * (label && fresh == 2 ? fabs(1 - p) + 0x1p-20 : 1));

        r->dz[b * s->vocab + c] = model ? rounded(dz, s->bits) : dz;
        if (model)
            continue;
        error += fabs(soft) * fresh * delta + p * fabs(f.square) * delta + 0x1p-20 * (fabs(soft) + fabs(smooth));
        error += 0x1p-20 * p * fabs(f.label) * (1 + fabs(f.square)) + 0x1p-22 * fabs(f.label) * (label ? 1 : 0);
        error *= fabs(slope);
        error += cap > 0 ? fabs(dz) * 4 * (delta + 0x1p-21 * cap) / cap + 0x1p-21 * fabs(dz / slope) : 0;
        s->dz_error[b * s->vocab + c] = error + ldexp(fabs(dz), -s->bits) + 0x1p-148;
    }
}

/* How far each logit of a row may be off: the rounding of the product, and f32 behind it. */
static void set_delta(subject *s, int64_t b)
{
    double product = 0, most = 0, far = 0;

    for (int64_t c = 0; c < s->vocab; c++) {
        const double dot = fabs(s->dot[b * s->vocab + c]), u = fabs(s->dot[b * s->vocab + c] + bias_at(s, c));
        const double gap = s->ref.z[b * s->vocab + c] - s->ref.lse[b];

        product = fmax(product, s->given ? 0 : dot);
        most = isfinite(u) ? fmax(most, u) : most;
        far += isfinite(gap) ? exp(gap) * fabs(gap) : 0;
    }
    s->delta[b] = (ldexp(product, -s->bits) + 0x1p-22 * (most + 1 + (double)s->o.softcap)) / (double)s->o.temperature +
                  0x1p-22 * (s->lse_arg >= 0 ? fabs(input(s, s->lse_arg, 0, b)) : fabs(s->ref.lse[b]));
    s->far[b] = far;
}

static void products(const subject *s, result *r)
{
    const bool add = (s->im->call.flags & RIDGE_ACCUMULATE) != 0;
    const int dw = s->dx_arg + 1;

#pragma omp parallel for schedule(static) if (s->tokens * s->vocab > 20000)
    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t c = 0; c < s->vocab && s->y[b] >= 0; c++)
            for (int64_t j = 0; j < s->hidden; j++)
                r->dx[b * s->hidden + j] += r->dz[b * s->vocab + c] * s->w[c * s->hidden + j];
#pragma omp parallel for schedule(static) if (s->tokens * s->vocab > 20000)
    for (int64_t c = 0; c < s->vocab; c++) {
        double *to = r->dw + c * s->hidden;

        for (int64_t j = 0; j < s->hidden && add && has(s, dw); j++)
            to[j] = s->hv ? input(s, dw, j, c) : input(s, dw, c, j);
        r->dbias[c] = add && has(s, dw + 1) ? input(s, dw + 1, 0, c) : 0;
        for (int64_t b = 0; b < s->tokens; b++) {
            if (s->y[b] < 0)
                continue;
            r->dbias[c] += r->dz[b * s->vocab + c];
            for (int64_t j = 0; j < s->hidden; j++)
                to[j] += r->dz[b * s->vocab + c] * s->x[b * s->hidden + j];
        }
    }
}

static bool makes_gradients(const subject *s)
{
    return s->dx_arg >= 0 || s->im->call.op == RIDGE_CE_BWD;
}

static void evaluate(subject *s, result *r, bool model)
{
#pragma omp parallel for schedule(static) if (s->tokens * s->vocab > 20000)
    for (int64_t b = 0; b < s->tokens; b++) {
        if (s->y[b] == -1)
            continue;
        forward_row(s, r, model, b);
        if (!model)
            set_delta(s, b);
        if (makes_gradients(s) && s->y[b] >= 0)
            gradient_row(s, r, model, b);
    }
    reduce(s, r);
    if (s->dx_arg >= 0)
        products(s, r);
}

/* -------------------------------------------------------------------------------------------------------- comparison
 */

/* rms of a tensor's error against the model's; small tensors say nothing. */
typedef struct rms {
    double got, model, ref, count;
} rms;

static void rms_add(rms *t, double got, double model, double ref)
{
    if (!isfinite(ref))
        return;
    t->got += (got - ref) * (got - ref);
    t->model += (model - ref) * (model - ref);
    t->ref += ref * ref;
    t->count += 1;
}

static void rms_check(subject *s, const rms *t, double unit, const char *what)
{
    const double room_for = sqrt(t->model) + (unit + 0x1p-22) * sqrt(t->ref) + 0x1p-140;

    if (t->count >= 64)
        note(s, sqrt(t->got) / room_for, what, -1, -1);
}

static double unit_of(uint32_t dtype)
{
    return dtype == RIDGE_BF16 ? 0x1p-8 : dtype == RIDGE_F16 ? 0x1p-11 : 0x1p-24;
}

static void check_dx(subject *s)
{
    const uint32_t dtype = s->im->call.arg[s->dx_arg].dtype;
    rms t = {0};

    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t j = 0; j < s->hidden; j++) {
            const double ref = s->y[b] == -1 ? 0 : s->y[b] == -2 ? NAN : s->ref.dx[b * s->hidden + j];
            double bound = unit_of(dtype) * fabs(ref) + (dtype == RIDGE_F16 ? 0x1p-25 : 0);

            for (int64_t c = 0; c < s->vocab && s->y[b] >= 0; c++)
                bound += (s->dz_error[b * s->vocab + c] + 0x1p-20 * fabs(s->ref.dz[b * s->vocab + c])) *
                         fabs(s->w[c * s->hidden + j]);
            compare(s, output(s, s->dx_arg, b, j), ref, bound, "dx", b, j);
            rms_add(&t, output(s, s->dx_arg, b, j), s->model.dx[b * s->hidden + j], ref);
        }
    rms_check(s, &t, unit_of(dtype), "rms of dx");
}

static void check_dw(subject *s)
{
    const int dw = s->dx_arg + 1, dbias = s->dx_arg + 2;
    const uint32_t dtype = s->im->call.arg[dw].dtype;
    rms t = {0}, tb = {0};

    for (int64_t c = 0; c < s->vocab; c++) {
        for (int64_t j = 0; j < s->hidden && has(s, dw); j++) {
            const double ref = s->ref.dw[c * s->hidden + j];
            const double got = s->hv ? output(s, dw, j, c) : output(s, dw, c, j);
            double bound = (unit_of(dtype) + 0x1p-22) * fabs(ref) + (dtype == RIDGE_F16 ? 0x1p-25 : 0);

            for (int64_t b = 0; b < s->tokens; b++)
                if (s->y[b] >= 0)
                    bound += (s->dz_error[b * s->vocab + c] + 0x1p-20 * fabs(s->ref.dz[b * s->vocab + c])) *
                             fabs(s->x[b * s->hidden + j]);
            compare(s, got, ref, bound, "dw", c, j);
            rms_add(&t, got, s->model.dw[c * s->hidden + j], ref);
        }
        if (has(s, dbias)) {
            double bound = 0x1p-21 * fabs(s->ref.dbias[c]), got = output(s, dbias, 0, c);

            for (int64_t b = 0; b < s->tokens; b++)
                if (s->y[b] >= 0)
                    bound += s->dz_error[b * s->vocab + c] + 0x1p-20 * fabs(s->ref.dz[b * s->vocab + c]);
            compare(s, got, s->ref.dbias[c], bound, "dbias", 0, c);
            rms_add(&tb, got, s->model.dbias[c], s->ref.dbias[c]);
        }
    }
    rms_check(s, &t, unit_of(dtype), "rms of dw");
    rms_check(s, &tb, 0x1p-22, "rms of dbias");
}

static void check_dlogits(subject *s)
{
    const uint32_t dtype = s->im->call.arg[RIDGE_CE_BWD_DLOGITS].dtype;

    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t c = 0; c < s->vocab; c++) {
            const double ref = s->y[b] == -1 ? 0 : s->y[b] == -2 ? NAN : s->ref.dz[b * s->vocab + c];
            const double rounding = unit_of(dtype) * fabs(ref) + (dtype == RIDGE_F16 ? 0x1p-25 : 0x1p-134);
            const double error = s->y[b] < 0 ? 0 : s->dz_error[b * s->vocab + c] - ldexp(fabs(ref), -s->bits);

            compare(s, output(s, RIDGE_CE_BWD_DLOGITS, b, c), ref, fabs(error) + rounding, "dlogits", b, c);
        }
}

/* Error of a row's loss. */
static double loss_bound(const subject *s, int64_t b)
{
    const double lse = fabs(s->ref.lse[b]), w = s->y[b] >= 0 ? s->cw[s->y[b]] : 1, d = s->delta[b];
    const double eps = (double)s->o.label_smoothing, mean_w = s->weights / (double)s->total;

    return (w + eps * mean_w) * 2 * d + (double)s->o.lse_square_scale * (2 * lse * d + d * d) +
           0x1p-22 * (fabs(s->ref.loss[b]) + eps * mean_w * lse + 1);
}

/* argmax within the error of the logits; the first of exact equals. */
static bool check_argmax(subject *s, int arg, int64_t b, int64_t *found)
{
    const double *z = s->ref.z + b * s->vocab;
    int64_t got = (int64_t)output(s, arg, 0, b), best = 0;

    if (s->y[b] == -1) {
        note(s, got == -1 ? 0 : INFINITY, "argmax of an ignored row", b, 0);
        return false;
    }
    for (int64_t c = 1; c < s->vocab; c++)
        best = z[c] > z[best] ? c : best;
    *found = got;
    got -= s->offset;
    if (got < 0 || got >= s->vocab)
        note(s, INFINITY, "argmax", b, 0);
    else
        note(s,
             got == best            ? 0
             : z[best] - z[got] > 0 ? (z[best] - z[got]) / (2 * s->delta[b])
                                    : INFINITY,
             "argmax", b, 0);
    return true;
}

static void check_rows(subject *s, int token_loss)
{
    static const char *const name[] = {"token_loss", "lse", "target_logit", "entropy"};
    int64_t right = 0, doubtful = 0, errors = 0;
    rms t = {0};

    for (int64_t b = 0; b < s->tokens; b++) {
        const double *ref[] = {s->ref.loss, s->ref.lse, s->ref.target, s->ref.entropy};
        const double d = s->delta[b], tiny = 0x1p-22 * (fabs(s->ref.lse[b]) + 1);
        const double bound[] = {loss_bound(s, b), d + tiny, d + tiny, d * (2 + 2 * s->far[b]) + tiny + 0x1p-20};
        int64_t best = 0, got = -1;

        for (int i = 0; i < 4; i++)
            if (has(s, token_loss + i))
                compare(s, output(s, token_loss + i, 0, b), s->y[b] == -1 ? 0 : ref[i][b], bound[i], name[i], b, 0);
        if (has(s, token_loss + 1) && s->y[b] >= 0)
            rms_add(&t, output(s, token_loss + 1, 0, b), s->model.lse[b], s->ref.lse[b]);
        if (has(s, token_loss + 4))
            check_argmax(s, token_loss + 4, b, &got);
        for (int64_t c = 0; c < s->vocab; c++)
            best = s->ref.z[b * s->vocab + c] > s->ref.z[b * s->vocab + best] ? c : best;
        right += s->y[b] >= 0 && (got >= 0 ? got : best + s->offset) == s->y[b];
        for (int64_t c = 0; c < s->vocab && s->y[b] >= 0 && got < 0; c++)
            if (c != best && s->ref.z[b * s->vocab + c] > s->ref.z[b * s->vocab + best] - 2 * d) {
                doubtful++;
                break;
            }
        errors += s->y[b] == -2;
    }
    rms_check(s, &t, 0x1p-22, "rms of lse");
    if (has(s, token_loss + 5))
        compare(s, output(s, token_loss + 5, 0, 0), over((double)right, s->count),
                over((double)doubtful, s->count) + 0x1p-23, "accuracy", 0, 0);
    if (has(s, token_loss + 6))
        note(s, output(s, token_loss + 6, 0, 0) == (double)errors ? 0 : INFINITY, "errors", 0, 0);
}

static void check_loss(subject *s, int arg)
{
    const uint32_t reduction = s->im->call.flags & RIDGE_CE_REDUCTION;
    double bound = 0;

    for (int64_t b = 0; b < s->tokens; b++) {
        if (reduction == RIDGE_CE_NONE)
            compare(s, output(s, arg, 0, b), s->y[b] == -1 ? 0 : s->ref.loss[b], loss_bound(s, b), "loss", 0, b);
        bound += s->y[b] >= 0 ? loss_bound(s, b) : 0;
    }
    if (reduction != RIDGE_CE_NONE)
        compare(s, output(s, arg, 0, 0), s->ref.mean,
                (reduction ? bound : fmax(over(bound, s->weight), over(bound, s->count))) + 0x1p-22 * fabs(s->ref.mean),
                "loss", 0, 0);
}

static void check_record(subject *s, int arg)
{
    const bool sums = (s->im->call.flags & RIDGE_CE_RECORD_SUMS) != 0;

    for (int64_t b = 0; b < s->tokens; b++) {
        const bool ignored = s->y[b] == -1;
        const double d = s->delta[b], lse = s->ref.lse[b], tiny = 0x1p-21 * (fabs(lse) + 1),
                     *z = s->ref.z + b * s->vocab;
        double max = -INFINITY, sum = 0, weighted = 0, size = 0;

        for (int64_t c = 0; c < s->vocab && !ignored; c++) {
            max = fmax(max, z[c]);
            sum += z[c];
            weighted += z[c] * s->cw[s->offset + c];
            size += 2 * d + 0x1p-21 * fabs(z[c]);
        }
        compare(s, output(s, arg, b, 0), max, d + tiny, "record max", b, 0);
        if (ignored)
            compare(s, output(s, arg, b, 1), 0, 0, "record sum", b, 1);
        else
            compare(s, output(s, arg, b, 0) + log(output(s, arg, b, 1)), lse, d + 2 * tiny, "record sum", b, 1);
        compare(s, output(s, arg, b, 2), s->y[b] < 0 ? -INFINITY : s->ref.target[b], d + tiny, "record target", b, 2);
        if (!sums)
            continue;
        compare(s, output(s, arg, b, 3), sum, size, "record sum z", b, 3);
        compare(s, output(s, arg, b, 4), weighted, 3 * size, "record sum wz", b, 4);
        compare(s, ignored ? output(s, arg, b, 5) : output(s, arg, b, 5) / output(s, arg, b, 1),
                ignored ? 0 : lse - s->ref.entropy[b], ignored ? 0 : d * (2 + 2 * s->far[b]) + 4 * tiny,
                "record sum ez", b, 5);
    }
}

static void check_all(subject *s)
{
    if (s->dx_arg >= 0 && has(s, s->dx_arg))
        check_dx(s);
    if (s->dx_arg >= 0)
        check_dw(s);
    if (s->im->call.op == RIDGE_CE_BWD)
        check_dlogits(s);
    if (s->first_out < 0)
        return;
    if (has(s, s->first_out))
        check_loss(s, s->first_out);
    check_rows(s, s->weight_arg + 1);
    if (s->im->call.op == RIDGE_CE_FWD && has(s, RIDGE_CE_FWD_RECORD))
        check_record(s, RIDGE_CE_FWD_RECORD);
    if (s->im->call.op == RIDGE_LINEAR_CE_EVAL && has(s, RIDGE_LINEAR_CE_RECORD))
        check_record(s, RIDGE_LINEAR_CE_RECORD);
}

/* -------------------------------------------------------------------------------------------------------------- call
 */

enum { TENSORS = 23 };

static bool allocate(subject *s, double **memory)
{
    const int64_t logits = s->tokens * s->vocab, x = s->tokens * s->hidden, w = s->vocab * s->hidden;
    const int64_t size[TENSORS] = {s->tokens, x,      w,         logits,    s->total,  s->tokens, s->tokens, logits,
                                   logits,    logits, s->tokens, s->tokens, s->tokens, s->tokens, x,         w,
                                   s->vocab,  logits, logits,    s->tokens, s->tokens, s->tokens, s->tokens};
    double **const at[TENSORS] = {NULL,
                                  &s->x,
                                  &s->w,
                                  &s->dot,
                                  &s->cw,
                                  &s->delta,
                                  &s->far,
                                  &s->dz_error,
                                  &s->ref.z,
                                  &s->ref.dz,
                                  &s->ref.lse,
                                  &s->ref.target,
                                  &s->ref.loss,
                                  &s->ref.entropy,
                                  &s->ref.dx,
                                  &s->ref.dw,
                                  &s->ref.dbias,
                                  &s->model.z,
                                  &s->model.dz,
                                  &s->model.lse,
                                  &s->model.target,
                                  &s->model.loss,
                                  &s->model.entropy};
    bool good = true;

    for (int i = 0; i < TENSORS; i++) {
        memory[i] = room(size[i]);
        good = good && memory[i];
        if (at[i])
            *at[i] = memory[i];
    }
    s->y = (int64_t *)(void *)memory[0];
    s->model.dx = room(x);
    s->model.dw = room(w);
    s->model.dbias = room(s->vocab);
    return good && s->model.dx && s->model.dw && s->model.dbias;
}

bool oracle_ce(const image *im, const unsigned char *got, double *worst, char *text, size_t size)
{
    const ridge_call *call = &im->call;
    const uint32_t dtype = call->arg[0].dtype;
    subject s = {.im = im, .got = got, .tokens = call->dim[0], .o = call->opt.ce, .text = text, .size = size};
    double *memory[TENSORS] = {0};
    bool good;

    s.given = call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD;
    s.hidden = s.given ? 0 : call->dim[1];
    s.vocab = call->dim[s.given ? 1 : 2];
    s.offset = s.o.vocab_offset;
    s.total = s.o.vocab_total ? s.o.vocab_total : s.vocab;
    s.hv = (call->flags & RIDGE_CE_W_HV) != 0;
    s.bits = dtype == RIDGE_BF16 ? 8 : dtype == RIDGE_F16 ? 11 : 18;
    slots(&s);
    good = allocate(&s, memory);
    if (good) {
        read_inputs(&s);
        evaluate(&s, &s.ref, false);
        evaluate(&s, &s.model, true);
        check_all(&s);
    } else {
        snprintf(text, size, "the oracle ran out of memory");
    }
    for (int i = 0; i < TENSORS; i++)
        free(memory[i]);
    free(s.model.dx);
    free(s.model.dw);
    free(s.model.dbias);
    *worst = s.worst;
    return good && s.worst <= 1;
}
