/* oracle_combine.c: the float64 reference of ce_combine: straight sums over the shards in the order they came. */
#include <math.h>

#include "oracle_ce.h"

/* One token of the whole vocabulary. */
typedef struct token {
    int64_t y, argmax;
    double lse, target, z, wz, entropy, size;
} token;

static void compare(oracle_run *s, int arg, int64_t i, double ref, double bound)
{
    oracle_compare(s, oracle_out(s, arg, 0, i), ref, bound, ridge_op_at(s->im->call.op)->arg[arg].name, 0, i);
}

static token token_of(const oracle_run *s, int64_t i)
{
    const ridge_call *call = &s->im->call;
    const int64_t t = (int64_t)oracle_in(s, RIDGE_CE_COMBINE_TARGET, 0, i), tokens = call->dim[0];
    const bool sums = (call->flags & RIDGE_CE_RECORD_SUMS) != 0;
    token v = {.y = t == call->opt.ce.ignore_index ? -1 : t < 0 || t >= call->dim[1] ? -2 : t, .target = -INFINITY};
    double max = -INFINITY, sum = 0, ez = 0, first = INFINITY, highest = -INFINITY;

    for (int64_t k = 0; k < call->dim[2]; k++)
        max = fmax(max, oracle_in(s, RIDGE_CE_COMBINE_RECORD, k * tokens + i, 0));
    for (int64_t k = 0; k < call->dim[2]; k++) {
        const int64_t row = k * tokens + i;
        const double m = oracle_in(s, RIDGE_CE_COMBINE_RECORD, row, 0),
                     offset = oracle_in(s, RIDGE_CE_COMBINE_OFFSET, 0, k);

        sum += exp(m - max) * oracle_in(s, RIDGE_CE_COMBINE_RECORD, row, 1);
        v.target = fmax(v.target, oracle_in(s, RIDGE_CE_COMBINE_RECORD, row, 2));
        if (sums) {
            v.z += oracle_in(s, RIDGE_CE_COMBINE_RECORD, row, 3);
            v.wz += oracle_in(s, RIDGE_CE_COMBINE_RECORD, row, 4);
            v.size += fabs(oracle_in(s, RIDGE_CE_COMBINE_RECORD, row, 4));
            ez += exp(m - max) * oracle_in(s, RIDGE_CE_COMBINE_RECORD, row, 5);
        }
        if (s->im->length[RIDGE_CE_COMBINE_SHARD_ARGMAX] && (m > highest || (m == highest && offset < first))) {
            highest = m;
            first = offset;
            v.argmax = (int64_t)oracle_in(s, RIDGE_CE_COMBINE_SHARD_ARGMAX, k, i);
        }
    }
    v.lse = max + log(sum);
    v.entropy = v.lse - ez / sum;
    return v;
}

/* Loss of a row without its z-loss. */
static double row_loss(const oracle_run *s, const token *v, double weights)
{
    const double eps = (double)s->im->call.opt.ce.label_smoothing;
    const double w =
        s->im->length[RIDGE_CE_COMBINE_CLASS_WEIGHT] ? oracle_in(s, RIDGE_CE_COMBINE_CLASS_WEIGHT, 0, v->y) : 1;
    const double smooth = eps / (double)s->im->call.dim[1] * (weights * v->lse - v->wz);

    return (w == 0 ? 0 : (1 - eps) * w * (v->lse - v->target)) + smooth;
}

static void check_token(oracle_run *s, const token *v, int64_t i, double loss, double bound)
{
    const bool ignored = v->y == -1;

    if (s->im->length[RIDGE_CE_COMBINE_TOKEN_LOSS])
        compare(s, RIDGE_CE_COMBINE_TOKEN_LOSS, i, ignored ? 0 : loss, bound);
    if ((s->im->call.flags & RIDGE_CE_REDUCTION) == RIDGE_CE_NONE)
        compare(s, RIDGE_CE_COMBINE_LOSS, i, ignored ? 0 : loss, bound);
    if (s->im->length[RIDGE_CE_COMBINE_LSE])
        compare(s, RIDGE_CE_COMBINE_LSE, i, ignored ? 0 : v->lse, 0x1p-23 * fabs(v->lse));
    if (s->im->length[RIDGE_CE_COMBINE_TARGET_LOGIT])
        compare(s, RIDGE_CE_COMBINE_TARGET_LOGIT, i, ignored ? 0 : v->y == -2 ? NAN : v->target, 0);
    if (s->im->length[RIDGE_CE_COMBINE_ENTROPY])
        compare(s, RIDGE_CE_COMBINE_ENTROPY, i, ignored ? 0 : v->entropy, 0x1p-22 * (fabs(v->lse) + 1));
    if (s->im->length[RIDGE_CE_COMBINE_ARGMAX])
        compare(s, RIDGE_CE_COMBINE_ARGMAX, i, ignored ? -1 : (double)v->argmax, 0);
}

void oracle_ce_combine(oracle_run *run)
{
    const image *im = run->im;
    const ridge_call *call = &im->call;
    const bool weighted = im->length[RIDGE_CE_COMBINE_CLASS_WEIGHT] > 0, mean = !(call->flags & RIDGE_CE_REDUCTION);
    double weights = weighted ? 0 : (double)call->dim[1], weight = 0, count = 0, ce = 0, square = 0, slack = 0;
    int64_t right = 0, errors = 0;

    for (int64_t c = 0; c < call->dim[1] && weighted; c++)
        weights += oracle_in(run, RIDGE_CE_COMBINE_CLASS_WEIGHT, 0, c);
    for (int64_t i = 0; i < call->dim[0]; i++) {
        const token v = token_of(run, i);
        const double loss = v.y == -2 ? NAN : v.y < 0 ? 0 : row_loss(run, &v, weights);
        const double add = v.y < 0 ? 0 : (double)call->opt.ce.lse_square_scale * v.lse * v.lse;
        const double bound = 0x1p-22 * (fabs(v.lse) + fabs(loss) + add + v.size / (double)call->dim[1]);

        check_token(run, &v, i, loss + add, bound);
        if (v.y == -1)
            continue;
        count += 1;
        errors += v.y == -2;
        weight += v.y < 0 || !weighted ? 1 : oracle_in(run, RIDGE_CE_COMBINE_CLASS_WEIGHT, 0, v.y);
        right += im->length[RIDGE_CE_COMBINE_SHARD_ARGMAX] && v.y == v.argmax;
        ce += loss;
        square += add;
        slack += v.y < 0 ? 0 : bound;
    }
    if (mean) {
        ce = isnan(ce) ? NAN : oracle_over(ce, weight);
        square = count > 0 ? square / count : 0;
        slack = count > 0 ? fmax(slack / count, oracle_over(slack, fabs(weight))) : 0;
    }
    if ((call->flags & RIDGE_CE_REDUCTION) != RIDGE_CE_NONE)
        compare(run, RIDGE_CE_COMBINE_LOSS, 0, ce + square, slack + 0x1p-23 * fabs(ce + square));
    if (im->length[RIDGE_CE_COMBINE_ACCURACY])
        compare(run, RIDGE_CE_COMBINE_ACCURACY, 0, count > 0 ? (double)right / count : 0, 0x1p-23);
    if (im->length[RIDGE_CE_COMBINE_ERRORS])
        compare(run, RIDGE_CE_COMBINE_ERRORS, 0, (double)errors, 0);
}
