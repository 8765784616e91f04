/* oracle.c: float64 references and bounds of cross entropy; nothing is shared with the library's arithmetic.
 *
 * Two gates. Elementwise: what logits that are off by `delta` (half a unit of x's dtype at the largest of the row) and
 * gradients of logits rounded to that dtype can do at worst. Per tensor: the rms error is no more than that of a model
 * that does round so. f32 inputs: 18 bits instead of the dtype's. Given logits are not rounded by the model. */
#include <math.h>
#include <stdlib.h>

#include "oracle_ce.h"

static double rounded(double x, int bits)
{
    int exponent;

    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}

static double input(const ce_subject *s, int arg, int64_t r, int64_t j)
{
    return dtype_load(oracle_address(s->im, s->im->host, arg, r, j), s->im->call.arg[arg].dtype);
}

/* ------------------------------------------------------------------------------------------------------ the inputs */

static void slots(ce_subject *s)
{
    s->bias_arg = s->weight_arg = s->up_arg = s->lse_arg = s->first_out = s->dx_arg = s->bend_arg = -1;
    s->ids_arg = -1;
    switch (s->im->call.op) {
    case RIDGE_LINEAR_CE_BACKWARD:
        s->bias_arg = RIDGE_LINEAR_CE_BACKWARD_BIAS;
        s->weight_arg = RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT;
        s->up_arg = RIDGE_LINEAR_CE_BACKWARD_DLOSS;
        s->lse_arg = RIDGE_LINEAR_CE_BACKWARD_LSE;
        s->dx_arg = RIDGE_LINEAR_CE_BACKWARD_DX;
        s->bend_arg = RIDGE_LINEAR_CE_BACKWARD_DENTROPY;
        s->ids_arg = RIDGE_LINEAR_CE_BACKWARD_IDS;
        break;
    case RIDGE_CE_BWD:
        s->weight_arg = RIDGE_CE_BWD_CLASS_WEIGHT;
        s->up_arg = RIDGE_CE_BWD_DLOSS;
        s->lse_arg = RIDGE_CE_BWD_LSE;
        s->bend_arg = RIDGE_CE_BWD_DENTROPY;
        break;
    case RIDGE_CE_FWD:
        s->weight_arg = RIDGE_CE_FWD_CLASS_WEIGHT;
        s->first_out = RIDGE_CE_FWD_LOSS;
        break;
    default:
        s->bias_arg = RIDGE_LINEAR_CE_BIAS;
        s->weight_arg = RIDGE_LINEAR_CE_CLASS_WEIGHT;
        s->first_out = RIDGE_LINEAR_CE_LOSS;
        s->ids_arg = RIDGE_LINEAR_CE_IDS;
        if (s->im->call.op == RIDGE_LINEAR_CE_TRAIN) {
            s->up_arg = RIDGE_LINEAR_CE_GRAD_SCALE;
            s->dx_arg = RIDGE_LINEAR_CE_DX;
        }
        if (s->im->call.op == RIDGE_LINEAR_CE_TRAIN && s->im->call.flags & RIDGE_CE_PHASE) {
            s->lse_arg = RIDGE_LINEAR_CE_LSE;
            s->first_out = -1;
        }
        break;
    }
}

static void read_targets(ce_subject *s)
{
    for (int64_t b = 0; b < s->tokens; b++) {
        const int64_t t = (int64_t)input(s, s->given ? (int)RIDGE_CE_FWD_TARGET : (int)RIDGE_LINEAR_CE_TARGET, 0, b);

        s->y[b] = t == s->o.ignore_index ? -1 : t < 0 || t >= s->total ? -2 : t;
        s->count += s->y[b] != -1;
        s->weight += s->y[b] == -1 ? 0 : s->y[b] == -2 || !oracle_has(s, s->weight_arg) ? 1 : s->cw[s->y[b]];
    }
    s->count *= s->copies;
    s->weight *= s->copies;
}

static void read_inputs(ce_subject *s)
{
    for (int64_t c = 0; c < s->total; c++) {
        s->cw[c] = oracle_has(s, s->weight_arg) ? input(s, s->weight_arg, 0, c) : 1;
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

/* ------------------------------------------------------------------------------------------------------- evaluation */

static double bias_at(const ce_subject *s, int64_t c)
{
    return oracle_has(s, s->bias_arg) ? input(s, s->bias_arg, 0, c) : 0;
}

static double cap_of(const ce_subject *s, double u)
{
    const double cap = (double)s->o.softcap;

    return (cap > 0 ? cap * tanh(u / cap) : u) / (double)s->o.temperature;
}

/* Logits, softmax sums and the loss of a row. */
static void forward_row(const ce_subject *s, ce_result *r, bool model, int64_t b)
{
    double *z = r->z + b * s->vocab, max = -INFINITY, sum = 0, pz = 0, smooth = 0, eps = (double)s->o.label_smoothing;

    for (int64_t c = 0; c < s->vocab; c++) {
        const double dot = s->dot[b * s->vocab + c];

        z[c] = dot + bias_at(s, c);
        if (model && !s->given) /* the sum with the bias is an f32: twice its error */
            z[c] = rounded(rounded(dot, s->bits) + bias_at(s, c), 23);
        z[c] = cap_of(s, z[c]);
        max = fmax(max, z[c]);
    }
    for (int64_t c = 0; c < s->vocab; c++)
        sum += max > -INFINITY || isnan(z[c]) ? exp(z[c] - max) : 0;
    r->lse[b] = max + log(sum);
    for (int64_t c = 0; c < s->vocab; c++) {
        const double p = exp(z[c] - max) / sum;

        pz += p == 0 ? 0 : p * (z[c] - r->lse[b]);
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

/* Mean or sum; leaves r->loss with the z-loss added. */
static void reduce(const ce_subject *s, ce_result *r)
{
    const bool mean = (s->im->call.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_MEAN;
    double ce = 0, square = 0;

    for (int64_t b = 0; b < s->tokens; b++) {
        const double lse = r->lse[b], add = s->y[b] < 0 ? 0 : (double)s->o.lse_square_scale * lse * lse;

        if (s->y[b] == -1)
            continue;
        ce += s->y[b] == -2 ? NAN : r->loss[b] * s->copies;
        square += add * s->copies;
        r->loss[b] = s->y[b] == -2 ? NAN : r->loss[b] + add;
    }
    r->mean = !mean ? ce + square : isnan(ce) ? NAN : oracle_over(ce, s->weight) + oracle_over(square, s->count);
}

typedef struct factors {
    double label, smooth, square;
} factors;

static factors factors_of(const ce_subject *s, int64_t b)
{
    const uint32_t reduction = s->im->call.flags & RIDGE_CE_REDUCTION;
    const double up = (oracle_has(s, s->up_arg) ? input(s, s->up_arg, 0, reduction == RIDGE_CE_NONE ? b : 0) : 1) *
                      (double)s->o.grad_scale;
    const double eps = (double)s->o.label_smoothing, ce = reduction ? up : oracle_over(up, s->weight);

    return (factors){ce * (1 - eps) * s->cw[s->y[b]], ce * eps / (double)s->total,
                     (reduction ? up : oracle_over(up, s->count)) * 2 * (double)s->o.lse_square_scale};
}

/* A gradient of the logits as the model rounds it; in f16 P lies times 2^10, so `least` is the unit of its subnormals.
 */
static double rounded_gradient(const ce_subject *s, double dz, double least)
{
    return fabs(dz) < 0x1p10 * least ? nearbyint(dz / least) * least : rounded(dz, s->bits);
}

int64_t oracle_ce_id(const ce_subject *s, int64_t b, int64_t k)
{
    const int64_t c = (int64_t)input(s, s->ids_arg, b, k);

    return c == s->o.ignore_index ? -1 : c < 0 || c >= s->total ? -2 : c;
}

/* The ids of a row that are class c of the slice: the log-probability that is given for the first of them, and the sum
 * of their gradients. */
static bool ids_of(const ce_subject *s, int64_t b, int64_t c, double *log_p, double *sum)
{
    bool found = false;

    *sum = 0;
    for (int64_t k = 0; k < s->o.ids; k++) {
        if (oracle_ce_id(s, b, k) != s->offset + c)
            continue;
        if (!found)
            *log_p = input(s, s->ids_arg + 1, b, k);
        found = true;
        *sum += input(s, s->ids_arg + 2, b, k);
    }
    return found;
}

/* The sum of the gradients of all ids of a row that are classes, and of their sizes. */
static double hits_of(const ce_subject *s, int64_t b, double *size)
{
    double sum = 0;

    *size = 0;
    for (int64_t k = 0; k < s->o.ids; k++)
        if (oracle_ce_id(s, b, k) >= 0) {
            sum += input(s, s->ids_arg + 2, b, k);
            *size += fabs(input(s, s->ids_arg + 2, b, k));
        }
    return sum;
}

/* dz/du */
static double slope_of(const ce_subject *s, double z)
{
    const double t = s->o.softcap > 0 ? z * (double)s->o.temperature / (double)s->o.softcap : 0;

    return (1 - t * t) / (double)s->o.temperature;
}

/* dL/du of a row; for the reference also its error bound. */
static void gradient_row(ce_subject *s, ce_result *r, bool model, int64_t b)
{
    const factors f = factors_of(s, b);
    const double lse = s->lse_arg >= 0 ? input(s, s->lse_arg, 0, b) : r->lse[b], cap = (double)s->o.softcap;
    const double *z = r->z + b * s->vocab, fresh = s->lse_arg >= 0 ? 1 : 2;
    const double up = oracle_has(s, s->bend_arg) ? input(s, s->bend_arg, 0, b) : 0; /* of the entropy */
    const double entropy = up != 0 ? input(s, s->bend_arg - 1, 0, b) : 0;
    double sizes, log_p = 0;
    const double more = f.smooth * s->weights + f.square * lse - hits_of(s, b, &sizes);

    for (int64_t c = 0; c < s->vocab; c++) {
        double hit;
        const bool label = s->offset + c == s->y[b], id = ids_of(s, b, c, &log_p, &hit);
        const double zc = id && !label ? log_p + lse : z[c]; /* p of an id is given */
        const double delta = id && !label ? 0x1p-21 : s->delta[b];
        const double p = exp(zc - lse), smooth = f.smooth * s->cw[s->offset + c], soft = isfinite(p) ? p * more : 0;
        const double slope = slope_of(s, zc), far = up != 0 && p > 0 ? zc - lse + entropy : 0;
        const double uncapped = (label ? (p - 1) * f.label + soft : p * (f.label + more)) - smooth -
                                (up != 0 ? up * p * far : 0),
                     added = id ? hit * slope_of(s, log_p + lse) : 0, dz = uncapped * slope + added;
        double error = p * fresh * delta * (fabs(f.label) * (label && fresh == 2 ? fabs(1 - p) + 0x1p-20 : 1));

        const double all = fabs((f.label + more) * slope), most = fmax(all, fmax(fabs(up), sizes) * fabs(slope)),
                     least = s->bits == 11 && !s->given ? 0x1p-33 * most : 0;

        r->dz[b * s->vocab + c] = model ? rounded_gradient(s, dz, least) : dz;
        if (model)
            continue;
        if (label && fresh == 2) /* (p - 1) A with a lse that is an f32: docs/numerics.md */
            s->lse_error[b] = all * p * (isfinite(lse) ? fabs(lse) + 2 : 0) * 0x1p-23;
        error += fabs(soft) * fresh * delta + p * fabs(f.square) * delta + 0x1p-20 * (fabs(soft) + fabs(smooth));
        error += 0x1p-20 * p * fabs(f.label) * (1 + fabs(f.square)) + 0x1p-22 * fabs(f.label) * (label ? 1 : 0);
        if (up != 0) /* p and log p are off by delta; log p and the entropy may cancel */
            error += fabs(up) * p * ((fabs(far) + 1) * delta + 0x1p-20 * (fabs(entropy) + fabs(far) + 1));
        error *= fabs(slope);
        error += cap > 0 ? fabs(dz) * 4 * (delta + 0x1p-21 * cap) / cap + 0x1p-21 * fabs(uncapped) : 0;
        s->dz_error[b * s->vocab + c] =
            error + 0x1p-21 * fabs(added) + ldexp(fabs(dz), -s->bits) + least / 2 + 0x1p-148;
    }
}

/* How far each logit of a row may be off: the rounding of the product, and f32 behind it. */
static void set_delta(ce_subject *s, int64_t b)
{
    const double lse = s->lse_arg >= 0 ? input(s, s->lse_arg, 0, b) : s->ref.lse[b];
    double product = 0, most = 0, far = 0;

    for (int64_t c = 0; c < s->vocab; c++) {
        const double dot = fabs(s->dot[b * s->vocab + c]), u = fabs(s->dot[b * s->vocab + c] + bias_at(s, c));
        const double gap = s->ref.z[b * s->vocab + c] - s->ref.lse[b];

        product = fmax(product, s->given ? 0 : dot);
        most = isfinite(u) ? fmax(most, u) : most;
        far += isfinite(gap) ? exp(gap) * fabs(gap) : 0;
    }
    s->delta[b] = (ldexp(product, -s->bits) + 0x1p-22 * (most + 1 + (double)s->o.softcap)) / (double)s->o.temperature +
                  (isfinite(lse) ? 0x1p-22 * fabs(lse) : 0); /* beside a NaN, other logits are as good as ever */
    s->far[b] = far;
}

static void products(const ce_subject *s, ce_result *r)
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

        for (int64_t j = 0; j < s->hidden && add && oracle_has(s, dw); j++)
            to[j] = s->hv ? input(s, dw, j, c) : input(s, dw, c, j);
        r->dbias[c] = add && oracle_has(s, dw + 1) ? input(s, dw + 1, 0, c) : 0;
        for (int64_t b = 0; b < s->tokens; b++) {
            if (s->y[b] < 0)
                continue;
            r->dbias[c] += r->dz[b * s->vocab + c] * s->copies;
            for (int64_t j = 0; j < s->hidden; j++)
                to[j] += r->dz[b * s->vocab + c] * s->x[b * s->hidden + j] * s->copies;
        }
    }
}

/* How far the logits' gradients put dx and dw off. */
static void products_of_errors(ce_subject *s)
{
#pragma omp parallel for schedule(static) if (s->tokens * s->vocab > 20000)
    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t c = 0; c < s->vocab && s->y[b] >= 0; c++) {
            const double error = s->dz_error[b * s->vocab + c] + 0x1p-20 * fabs(s->ref.dz[b * s->vocab + c]);

            for (int64_t j = 0; j < s->hidden; j++)
                s->dx_error[b * s->hidden + j] += error * fabs(s->w[c * s->hidden + j]);
        }
#pragma omp parallel for schedule(static) if (s->tokens * s->vocab > 20000)
    for (int64_t c = 0; c < s->vocab; c++)
        for (int64_t b = 0; b < s->tokens; b++) {
            const double error = s->dz_error[b * s->vocab + c] + 0x1p-20 * fabs(s->ref.dz[b * s->vocab + c]);

            if (s->y[b] < 0)
                continue;
            for (int64_t j = 0; j < s->hidden; j++)
                s->dw_error[c * s->hidden + j] += error * fabs(s->x[b * s->hidden + j]) * s->copies;
            for (int64_t j = 0; j < s->hidden && s->y[b] == s->offset + c; j++)
                s->dw_lse_error[c * s->hidden + j] += s->lse_error[b] * fabs(s->x[b * s->hidden + j]) * s->copies;
        }
}

static bool makes_gradients(const ce_subject *s)
{
    return s->dx_arg >= 0 || s->im->call.op == RIDGE_CE_BWD;
}

static void evaluate(ce_subject *s, ce_result *r, bool model)
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

/* ------------------------------------------------------------------------------------------------------------- call */

static void free_subject(void *subject)
{
    ce_subject *s = subject;

    free(s->memory);
    free(s->y);
    free(s);
}

/* Zeros for all tensors; false: no memory. */
static bool allocate(ce_subject *s)
{
    const int64_t tokens = s->tokens, logits = s->tokens * s->vocab, x = s->tokens * s->hidden,
                  w = s->vocab * s->hidden;
    const struct {
        double **at;
        int64_t count;
    } tensor[] = {{&s->x, x},
                  {&s->w, w},
                  {&s->dot, logits},
                  {&s->cw, s->total},
                  {&s->delta, tokens},
                  {&s->far, tokens},
                  {&s->dz_error, logits},
                  {&s->lse_error, tokens},
                  {&s->dx_error, x},
                  {&s->dw_error, w},
                  {&s->dw_lse_error, w},
                  {&s->ref.z, logits},
                  {&s->ref.dz, logits},
                  {&s->ref.lse, tokens},
                  {&s->ref.target, tokens},
                  {&s->ref.loss, tokens},
                  {&s->ref.entropy, tokens},
                  {&s->ref.dx, x},
                  {&s->ref.dw, w},
                  {&s->ref.dbias, s->vocab},
                  {&s->model.z, logits},
                  {&s->model.dz, logits},
                  {&s->model.lse, tokens},
                  {&s->model.target, tokens},
                  {&s->model.loss, tokens},
                  {&s->model.entropy, tokens},
                  {&s->model.dx, x},
                  {&s->model.dw, w},
                  {&s->model.dbias, s->vocab}};
    int64_t all = 1;

    for (size_t i = 0; i < sizeof tensor / sizeof tensor[0]; i++)
        all += tensor[i].count;
    s->memory = calloc((size_t)all, sizeof(double));
    s->y = calloc((size_t)tokens + 1, sizeof *s->y);
    if (!s->memory || !s->y)
        return false;
    all = 0;
    for (size_t i = 0; i < sizeof tensor / sizeof tensor[0]; i++) {
        *tensor[i].at = s->memory + all;
        all += tensor[i].count;
    }
    return true;
}

/* The evaluations of an image's inputs; NULL: no memory. */
static ce_subject *evaluate_image(const image *im)
{
    const ridge_call *call = &im->call;
    const uint32_t dtype = call->arg[0].dtype;
    ce_subject *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->im = im;
    s->rows = call->dim[0];
    s->o = call->opt.ce;
    s->tokens = im->fill == FILL_PERIOD && s->rows % IMAGE_PERIOD == 0 ? IMAGE_PERIOD : s->rows;
    s->copies = s->tokens ? (double)s->rows / (double)s->tokens : 1;
    s->given = call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD;
    s->hidden = s->given ? 0 : call->dim[1];
    s->vocab = call->dim[s->given ? 1 : 2];
    s->offset = s->o.vocab_offset;
    s->total = s->o.vocab_total ? s->o.vocab_total : s->vocab;
    s->hv = (call->flags & RIDGE_CE_W_HV) != 0;
    s->bits = dtype == RIDGE_BF16 ? 8 : dtype == RIDGE_F16 ? 11 : 18;
    slots(s);
    if (!allocate(s)) {
        free_subject(s);
        return NULL;
    }
    read_inputs(s);
    evaluate(s, &s->ref, false);
    evaluate(s, &s->model, true);
    if (s->dx_arg >= 0)
        products_of_errors(s);
    return s;
}

void oracle_ce(oracle_run *run)
{
    struct image_memo *memo = run->im->memo;
    ce_subject *s = memo->own ? memo->own : evaluate_image(run->im);

    if (!s) {
        oracle_fail(run, "the oracle ran out of memory");
        return;
    }
    memo->own = s;
    memo->free_own = free_subject;
    s->im = run->im;
    s->run = run;
    oracle_ce_check(s);
}
