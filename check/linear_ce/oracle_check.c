/* oracle_check.c: cross entropy's outputs against the float64 evaluation, element by element and by rms. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_ce.h"

/* rms of a tensor's error against the model's; small tensors say nothing. lse: what an f32 lse does to the elements. */
typedef struct rms {
    double got, model, ref, bound, lse, count;
} rms;

/* Not what is infinite, or rounds to infinity in a narrow dtype: that is the elementwise check's. */
static void rms_add(rms *t, double got, double model, double ref, double bound, double lse)
{
    if (!isfinite(ref) || isinf(got))
        return;
    t->got += (got - ref) * (got - ref);
    t->model += (model - ref) * (model - ref);
    t->ref += ref * ref;
    t->bound += bound * bound;
    t->lse += lse * lse;
    t->count += 1;
}

static void rms_check(ce_subject *s, const rms *t, double unit, const char *what)
{
    /* the least f16, and a sliver of the elementwise bound for tensors that are exactly 0 */
    const double least = unit == 0x1p-11 ? 0x1p-25 * sqrt(t->count) : 0x1p-140;
    const double allowed =
        sqrt(t->model) + sqrt(t->lse) + (unit + 0x1p-22) * sqrt(t->ref) + 0x1p-12 * sqrt(t->bound) + least;

    if (t->count >= 64)
        oracle_note(s->run, sqrt(t->got) / allowed, what, -1, -1);
}

/* An element of a gradient: beyond the largest number of its dtype it is infinite. */
static void check_gradient(ce_subject *s, int arg, double got, double ref, double bound, const char *what, int64_t r,
                           int64_t j)
{
    oracle_note(s->run, oracle_ratio(got, ref, bound + 0x1p-140, s->im->call.arg[arg].dtype), what, r, j);
}

/* The weight of the row's target, 0 where that is in another slice. */
static double label_weight(const ce_subject *s, int64_t b, int64_t j)
{
    const int64_t c = s->y[b] - s->offset;

    return c >= 0 && c < s->vocab ? s->w[c * s->hidden + j] : 0;
}

static void check_dx(ce_subject *s)
{
    const uint32_t dtype = s->im->call.arg[s->dx_arg].dtype;
    rms t = {0};

    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t j = 0; j < s->hidden; j++) {
            const double ref = s->y[b] == -1 ? 0 : s->y[b] == -2 ? NAN : s->ref.dx[b * s->hidden + j];
            const double lse = s->y[b] >= 0 ? s->lse_error[b] * fabs(label_weight(s, b, j)) : 0;
            const double bound =
                dtype_unit(dtype) * fabs(ref) + (dtype == RIDGE_F16 ? 0x1p-25 : 0) + s->dx_error[b * s->hidden + j];

            for (int64_t at = b; at < s->rows; at += s->tokens) {
                const double got = oracle_out(s->run, s->dx_arg, at, j);

                check_gradient(s, s->dx_arg, got, ref, bound, "dx", at, j);
                rms_add(&t, got, s->model.dx[b * s->hidden + j], ref, bound, lse);
            }
        }
    rms_check(s, &t, dtype_unit(dtype), "rms of dx");
}

static void check_dw(ce_subject *s)
{
    /* what is there may dwarf what is added to it, once a chunk of no fewer than 32 tokens */
    const double sums = 0x1p-24 * (4 + (double)s->rows / 32), copies = s->copies;
    const int dw = s->dx_arg + 1, dbias = s->dx_arg + 2;
    const uint32_t dtype = s->im->call.arg[dw].dtype;
    rms t = {0}, tb = {0};

    for (int64_t c = 0; c < s->vocab; c++) {
        for (int64_t j = 0; j < s->hidden && oracle_has(s, dw); j++) {
            const double ref = s->ref.dw[c * s->hidden + j];
            const double got = s->hv ? oracle_out(s->run, dw, j, c) : oracle_out(s->run, dw, c, j);
            const double bound = (dtype_unit(dtype) + sums) * fabs(ref) + (dtype == RIDGE_F16 ? 0x1p-25 : 0) +
                                 s->dw_error[c * s->hidden + j];

            check_gradient(s, dw, got, ref, bound, "dw", c, j);
            rms_add(&t, got, s->model.dw[c * s->hidden + j], ref, bound, s->dw_lse_error[c * s->hidden + j]);
        }
        if (oracle_has(s, dbias)) {
            double bound = 0x1p-21 * fabs(s->ref.dbias[c]), got = oracle_out(s->run, dbias, 0, c), lse = 0;

            for (int64_t b = 0; b < s->tokens; b++) {
                if (s->y[b] < 0)
                    continue;
                bound += (s->dz_error[b * s->vocab + c] + 0x1p-20 * fabs(s->ref.dz[b * s->vocab + c])) * copies;
                lse += s->y[b] == s->offset + c ? s->lse_error[b] * copies : 0;
            }
            oracle_compare(s->run, got, s->ref.dbias[c], bound, "dbias", 0, c);
            rms_add(&tb, got, s->model.dbias[c], s->ref.dbias[c], bound, lse);
        }
    }
    rms_check(s, &t, dtype_unit(dtype), "rms of dw");
    rms_check(s, &tb, 0x1p-22, "rms of dbias");
}

/* Of a thousand copies of a row some 30, and the last ones. */
static int64_t next_copy(const ce_subject *s, int64_t at)
{
    const int64_t few = at + s->tokens, many = at + 37 * s->tokens;

    return s->rows > 256 * s->tokens && many < s->rows ? many : few;
}

static void check_dlogits(ce_subject *s)
{
    const uint32_t dtype = s->im->call.arg[RIDGE_CE_BWD_DLOGITS].dtype;

    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t c = 0; c < s->vocab; c++) {
            const double ref = s->y[b] == -1 ? 0 : s->y[b] == -2 ? NAN : s->ref.dz[b * s->vocab + c];
            const double rounding = dtype_unit(dtype) * fabs(ref) + (dtype == RIDGE_F16 ? 0x1p-25 : 0x1p-134);
            const double error = s->y[b] < 0 ? 0 : s->dz_error[b * s->vocab + c] - ldexp(fabs(ref), -s->bits);

            for (int64_t at = b; at < s->rows; at = next_copy(s, at))
                check_gradient(s, RIDGE_CE_BWD_DLOGITS, oracle_out(s->run, RIDGE_CE_BWD_DLOGITS, at, c), ref,
                               fabs(error) + rounding, "dlogits", at, c);
        }
}

/* What a rounding error is relative to; 0 for a NaN and infinity, beside which other numbers are as good as ever. */
static double size_of(double x)
{
    return isfinite(x) ? fabs(x) : 0;
}

/* Error of a row's loss. */
static double loss_bound(const ce_subject *s, int64_t b)
{
    const double lse = fabs(s->ref.lse[b]), w = s->y[b] >= 0 ? fabs(s->cw[s->y[b]]) : 1, d = s->delta[b];
    const double eps = (double)s->o.label_smoothing, mean_w = fabs(s->weights) / (double)s->total; /* of one sign */

    return (w + eps * mean_w) * 2 * d + (double)s->o.lse_square_scale * (2 * lse * d + d * d) +
           0x1p-22 * (fabs(s->ref.loss[b]) + eps * mean_w * lse + 1);
}

/* argmax within the error of the logits; the first of exact equals. `best`: the reference's of row b, `at`: a copy. */
static void check_argmax(ce_subject *s, int arg, int64_t b, int64_t at, int64_t best)
{
    const double *z = s->ref.z + b * s->vocab;
    const int64_t got = (int64_t)oracle_out(s->run, arg, 0, at) - s->offset;

    if (s->y[b] == -1)
        oracle_note(s->run, got + s->offset == -1 ? 0 : INFINITY, "argmax of an ignored row", at, 0);
    else if (got < 0 || got >= s->vocab)
        oracle_note(s->run, INFINITY, "argmax", at, 0);
    else
        oracle_note(s->run,
                    got == best            ? 0
                    : z[best] - z[got] > 0 ? (z[best] - z[got]) / (2 * s->delta[b])
                                           : INFINITY,
                    "argmax", at, 0);
}

static void check_rows(ce_subject *s, int token_loss)
{
    static const char *const name[] = {"token_loss", "lse", "target_logit", "entropy"};
    int64_t right = 0, doubtful = 0, errors = 0;
    rms t = {0};

    for (int64_t b = 0; b < s->tokens; b++) {
        const double *ref[] = {s->ref.loss, s->ref.lse, s->ref.target, s->ref.entropy};
        const double d = s->delta[b], tiny = 0x1p-22 * (size_of(s->ref.lse[b]) + 1);
        const double bound[] = {loss_bound(s, b), d + tiny, d + tiny, d * (2 + 2 * s->far[b]) + tiny + 0x1p-20};
        const bool argmax = oracle_has(s, token_loss + 4);
        int64_t best = 0;

        for (int64_t c = 0; c < s->vocab; c++)
            best = oracle_larger(s->ref.z[b * s->vocab + c], s->ref.z[b * s->vocab + best]) ? c : best;
        for (int64_t at = b; at < s->rows; at += s->tokens) {
            for (int i = 0; i < 4; i++)
                if (oracle_has(s, token_loss + i))
                    oracle_compare(s->run, oracle_out(s->run, token_loss + i, 0, at), s->y[b] == -1 ? 0 : ref[i][b],
                                   bound[i], name[i], at, 0);
            if (oracle_has(s, token_loss + 1) && s->y[b] >= 0)
                rms_add(&t, oracle_out(s->run, token_loss + 1, 0, at), s->model.lse[b], s->ref.lse[b], bound[1], 0);
            if (argmax)
                check_argmax(s, token_loss + 4, b, at, best);
            right += s->y[b] >= 0 &&
                     (argmax ? (int64_t)oracle_out(s->run, token_loss + 4, 0, at) : best + s->offset) == s->y[b];
        }
        for (int64_t c = 0; c < s->vocab && s->y[b] >= 0 && !argmax; c++)
            if (c != best && s->ref.z[b * s->vocab + c] > s->ref.z[b * s->vocab + best] - 2 * d) {
                doubtful += (int64_t)s->copies;
                break;
            }
        errors += s->y[b] == -2 ? (int64_t)s->copies : 0;
    }
    rms_check(s, &t, 0x1p-22, "rms of lse");
    if (oracle_has(s, token_loss + 5))
        oracle_compare(s->run, oracle_out(s->run, token_loss + 5, 0, 0), oracle_over((double)right, s->count),
                       oracle_over((double)doubtful, s->count) + 0x1p-23, "accuracy", 0, 0);
    if (oracle_has(s, token_loss + 6))
        oracle_note(s->run, oracle_out(s->run, token_loss + 6, 0, 0) == (double)errors ? 0 : INFINITY, "errors", 0, 0);
}

/* Log-probabilities of the ids, never above 0; of a slice their z. */
static void check_ids(ce_subject *s)
{
    const bool slice = s->offset != 0 || s->total != s->vocab;

    for (int64_t b = 0; b < s->tokens; b++)
        for (int64_t k = 0; k < s->o.ids; k++) {
            const int64_t id = oracle_ce_id(s, b, k), c = id - s->offset;
            const double z = id >= 0 && c >= 0 && c < s->vocab ? s->ref.z[b * s->vocab + c] : -INFINITY;
            const double ref = s->y[b] == -1 || id == -1 ? 0 : id == -2 ? NAN : slice ? z : z - s->ref.lse[b];
            const double bound = 2 * s->delta[b] + 0x1p-22 * (size_of(s->ref.lse[b]) + 1);

            for (int64_t at = b; at < s->rows; at += s->tokens) {
                const double got = oracle_out(s->run, RIDGE_LINEAR_CE_ID_LOGPROB, at, k);

                oracle_compare(s->run, got, ref, bound, "id_logprob", at, k);
                oracle_note(s->run, !slice && got > 0 ? INFINITY : 0, "id_logprob is above 0", at, k);
            }
        }
}

typedef struct ranked {
    double z;
    int64_t c;
} ranked;

/* The largest first, NaN before that, of equals the lowest class. */
static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;

    return oracle_larger(x->z, y->z) ? -1 : oracle_larger(y->z, x->z) ? 1 : (x->c > y->c) - (x->c < y->c);
}

/* Top classes of a row. Each has the rank it is given within the error of the logits, none is there twice, and exact
 * equals come in their order. rank: of each class; seen: in the order of rank. */
static void check_top_row(ce_subject *s, const ranked *order, const int64_t *rank, char *seen, int64_t b, int64_t at)
{
    const bool slice = s->offset != 0 || s->total != s->vocab;
    const double bound = 2 * s->delta[b] + 0x1p-22 * (size_of(s->ref.lse[b]) + 1);
    double before = INFINITY;

    memset(seen, 0, (size_t)s->vocab);
    for (int64_t k = 0; k < s->o.topk; k++) {
        const int64_t id = (int64_t)oracle_out(s->run, RIDGE_LINEAR_CE_TOP_ID, at, k), c = id - s->offset;
        const double got = oracle_out(s->run, RIDGE_LINEAR_CE_TOP_LOGPROB, at, k);

        if (s->y[b] == -1) {
            oracle_note(s->run, id == -1 && got == 0 ? 0 : INFINITY, "top_id of an ignored row", at, k);
            continue;
        }
        if (c < 0 || c >= s->vocab || seen[rank[c]]) {
            oracle_note(s->run, INFINITY, "top_id", at, k);
            return;
        }
        const ranked *own = &order[rank[c]];

        seen[rank[c]] = 1;
        oracle_compare(s->run, own->z, order[k].z, 2 * s->delta[b], "top_id", at, k);
        if (rank[c] > 0 && (own[-1].z == own->z || (isnan(own[-1].z) && isnan(own->z))))
            oracle_note(s->run, seen[rank[c] - 1] ? 0 : INFINITY, "top_id of equals", at, k);
        oracle_compare(s->run, got, slice ? own->z : own->z - s->ref.lse[b], bound, "top_logprob", at, k);
        oracle_note(s->run, (!slice && got > 0) || got > before ? INFINITY : 0, "order of top_logprob", at, k);
        before = isnan(got) ? INFINITY : got;
    }
}

static void check_top(ce_subject *s)
{
    ranked *order = calloc((size_t)s->vocab, sizeof *order);
    int64_t *rank = calloc((size_t)s->vocab, sizeof *rank);
    char *seen = calloc((size_t)s->vocab, 1);

    for (int64_t b = 0; b < s->tokens && order && rank && seen; b++) {
        for (int64_t c = 0; c < s->vocab; c++)
            order[c] = (ranked){s->ref.z[b * s->vocab + c], c};
        qsort(order, (size_t)s->vocab, sizeof *order, by_rank);
        for (int64_t i = 0; i < s->vocab; i++)
            rank[order[i].c] = i;
        for (int64_t at = b; at < s->rows; at += s->tokens)
            check_top_row(s, order, rank, seen, b, at);
    }
    if (!order || !rank || !seen)
        oracle_note(s->run, INFINITY, "no memory for the top classes", 0, 0);
    free(order);
    free(rank);
    free(seen);
}

static void check_loss(ce_subject *s, int arg)
{
    const uint32_t reduction = s->im->call.flags & RIDGE_CE_REDUCTION;
    double bound = 0;

    for (int64_t b = 0; b < s->tokens; b++) {
        if (reduction == RIDGE_CE_NONE)
            for (int64_t at = b; at < s->rows; at += s->tokens)
                oracle_compare(s->run, oracle_out(s->run, arg, 0, at), s->y[b] == -1 ? 0 : s->ref.loss[b],
                               loss_bound(s, b), "loss", 0, at);
        bound += s->y[b] >= 0 ? loss_bound(s, b) * s->copies : 0;
    }
    if (reduction != RIDGE_CE_NONE)
        oracle_compare(s->run, oracle_out(s->run, arg, 0, 0), s->ref.mean,
                       (reduction ? bound : fmax(oracle_over(bound, fabs(s->weight)), oracle_over(bound, s->count))) +
                           0x1p-22 * fabs(s->ref.mean),
                       "loss", 0, 0);
}

static void check_record(ce_subject *s, int arg)
{
    const bool sums = (s->im->call.flags & RIDGE_CE_RECORD_SUMS) != 0;
    const bool phases = s->im->call.op == RIDGE_LINEAR_CE_TRAIN;

    for (int64_t b = 0; b < s->tokens; b++) {
        const bool ignored = s->y[b] == -1;
        const double d = s->delta[b], lse = s->ref.lse[b], tiny = 0x1p-21 * (size_of(lse) + 1),
                     *z = s->ref.z + b * s->vocab;
        double max = -INFINITY, sum = 0, weighted = 0, size = 0;

        for (int64_t c = 0; c < s->vocab && !ignored; c++) {
            max = oracle_larger(z[c], max) ? z[c] : max;
            sum += z[c];
            weighted += z[c] * s->cw[s->offset + c];
            size += 2 * d + 0x1p-21 * fabs(z[c]);
        }
        if (!phases || ignored) /* else it is what a row of phases took for the maximum: only both together count */
            oracle_compare(s->run, oracle_out(s->run, arg, b, 0), max, d + tiny, "record max", b, 0);
        if (ignored)
            oracle_compare(s->run, oracle_out(s->run, arg, b, 1), 0, 0, "record sum", b, 1);
        else
            oracle_compare(s->run, oracle_out(s->run, arg, b, 0) + log(oracle_out(s->run, arg, b, 1)), lse,
                           d + 2 * tiny, "record sum", b, 1);
        oracle_compare(s->run, oracle_out(s->run, arg, b, 2), s->y[b] < 0 ? -INFINITY : s->ref.target[b], d + tiny,
                       "record target", b, 2);
        if (!sums)
            continue;
        oracle_compare(s->run, oracle_out(s->run, arg, b, 3), sum, size, "record sum z", b, 3);
        oracle_compare(s->run, oracle_out(s->run, arg, b, 4), weighted, 3 * size, "record sum wz", b, 4);
        oracle_compare(s->run,
                       ignored ? oracle_out(s->run, arg, b, 5)
                               : oracle_out(s->run, arg, b, 5) / oracle_out(s->run, arg, b, 1),
                       ignored ? 0 : lse - s->ref.entropy[b], ignored ? 0 : d * (2 + 2 * s->far[b]) + 4 * tiny,
                       "record sum ez", b, 5);
    }
}

void oracle_ce_check(ce_subject *s)
{
    if (s->dx_arg >= 0 && oracle_has(s, s->dx_arg))
        check_dx(s);
    if (s->dx_arg >= 0)
        check_dw(s);
    if (s->im->call.op == RIDGE_CE_BWD)
        check_dlogits(s);
    if (s->im->call.op == RIDGE_LINEAR_CE_TRAIN && oracle_has(s, RIDGE_LINEAR_CE_RECORD))
        check_record(s, RIDGE_LINEAR_CE_RECORD);
    if (s->first_out < 0)
        return;
    if (oracle_has(s, s->first_out))
        check_loss(s, s->first_out);
    check_rows(s, s->weight_arg + 1);
    if (s->im->call.op == RIDGE_CE_FWD && oracle_has(s, RIDGE_CE_FWD_RECORD))
        check_record(s, RIDGE_CE_FWD_RECORD);
    if (s->im->call.op == RIDGE_LINEAR_CE_EVAL && s->o.ids)
        check_ids(s);
    if (s->im->call.op == RIDGE_LINEAR_CE_EVAL && s->o.topk)
        check_top(s);
    if (s->im->call.op == RIDGE_LINEAR_CE_EVAL && oracle_has(s, RIDGE_LINEAR_CE_SAMPLE_ID))
        oracle_ce_check_draw(s);
    if (s->im->call.op == RIDGE_LINEAR_CE_EVAL && oracle_has(s, RIDGE_LINEAR_CE_RECORD))
        check_record(s, RIDGE_LINEAR_CE_RECORD);
}
