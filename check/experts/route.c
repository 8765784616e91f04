/* route.c: the oracle of moe_route_bwd in float64: the Jacobian of each weight by each logit, column by column. */
#include <math.h>

#include "experts.h"

enum { MOST = RIDGE_MOE_MAX_EXPERTS, SLOTS = RIDGE_MOE_MAX_SLOTS };

typedef struct row64 {
    double l[MOST], score[MOST], slope[MOST]; /* slope: of a score by its own logit, where it depends on nothing else */
    double w[SLOTS], g[SLOTS];                /* score of each slot, and the gradient of its weight times the scale */
    int64_t id[SLOTS];                        /* -1: none */
    double z, far;      /* what weights are divided by; how far the chosen are below the largest */
    bool nan, infinite; /* infinite: so large that a product may be */
} row64;

static double softplus(double l)
{
    return (l > 0 ? l : 0) + log1p(exp(-fabs(l)));
}

static void load_row(const oracle_run *s, int64_t t, row64 *r)
{
    const ridge_call *call = &s->im->call;
    const uint32_t rule = call->flags & RIDGE_ROUTE_RULE;
    double max = -(double)INFINITY, sum = 0, best = -(double)INFINITY, chosen = 0;

    r->nan = r->infinite = false;
    r->z = r->far = 0;
    for (int64_t e = 0; e < call->dim[1]; e++) {
        r->l[e] = oracle_in(s, RIDGE_MOE_ROUTE_BWD_LOGITS, t, e);
        if (s->im->length[RIDGE_MOE_ROUTE_BWD_LOGIT_BIAS])
            r->l[e] = (double)(float)(r->l[e] + oracle_in(s, RIDGE_MOE_ROUTE_BWD_LOGIT_BIAS, 0, e));
        r->nan = r->nan || isnan(r->l[e]);
        r->infinite = r->infinite || isinf(r->l[e]);
        max = fmax(max, r->l[e]);
    }
    for (int64_t e = 0; e < call->dim[1]; e++)
        sum += exp(r->l[e] - max);
    for (int64_t e = 0; e < call->dim[1]; e++) {
        const double sigmoid = oracle_sigmoid(r->l[e]), root = sqrt(softplus(r->l[e]));

        r->score[e] = rule == RIDGE_ROUTE_SIGMOID         ? sigmoid
                      : rule == RIDGE_ROUTE_SQRT_SOFTPLUS ? root
                                                          : exp(r->l[e] - max) / sum;
        r->slope[e] = rule == RIDGE_ROUTE_SIGMOID ? sigmoid * (1 - sigmoid) : root > 0 ? sigmoid / (2 * root) : 0;
    }
    for (int64_t i = 0; i < call->dim[2]; i++) {
        const double id = oracle_in(s, RIDGE_MOE_ROUTE_BWD_IDS, t, i);

        r->id[i] = id >= 0 && id < (double)call->dim[1] ? (int64_t)id : -1;
        r->g[i] =
            r->id[i] < 0 ? 0 : oracle_in(s, RIDGE_MOE_ROUTE_BWD_DWEIGHTS, t, i) * (double)call->opt.moe_route.scale;
        r->infinite = r->infinite || !(fabs(r->g[i]) < 1e30);
        best = r->id[i] < 0 ? best : fmax(best, r->l[r->id[i]]);
    }
    for (int64_t i = 0; i < call->dim[2]; i++)
        chosen += r->id[i] < 0 ? 0 : exp(r->l[r->id[i]] - best);
    for (int64_t i = 0; i < call->dim[2]; i++) {
        r->w[i] = r->id[i] < 0                       ? 0
                  : rule == RIDGE_ROUTE_TOPK_SOFTMAX ? exp(r->l[r->id[i]] - best) / chosen
                                                     : r->score[r->id[i]];
        r->z += r->w[i];
        if (r->id[i] >= 0)
            r->far = fmax(r->far, fmin(max - r->l[r->id[i]], 104));
    }
    r->z = call->flags & RIDGE_ROUTE_NORMALISE ? r->z + (double)call->opt.moe_route.eps : 1;
}

/* The gradient of the score of slot i: the weights are score / z, and z may depend on the scores. `size` gets the sum
 * of the magnitudes of its terms. */
static double of_score(const ridge_call *call, const row64 *r, int64_t i, double *size)
{
    double d = r->g[i] / r->z;

    *size = fabs(d);
    for (int64_t k = 0; k < call->dim[2] && (call->flags & RIDGE_ROUTE_NORMALISE); k++) {
        d -= r->g[k] * r->w[k] / (r->z * r->z);
        *size += fabs(r->g[k] * r->w[k] / (r->z * r->z));
    }
    return d;
}

static void check_row(oracle_run *s, int64_t t, const row64 *r)
{
    const ridge_call *call = &s->im->call;
    const uint32_t rule = call->flags & RIDGE_ROUTE_RULE;
    double d[SLOTS], size[SLOTS];

    for (int64_t i = 0; i < call->dim[2]; i++)
        d[i] = r->id[i] < 0 ? 0 : of_score(call, r, i, &size[i]);
    for (int64_t e = 0; e < call->dim[1]; e++) {
        double sum = 0, terms = 0;

        for (int64_t i = 0; i < call->dim[2]; i++) {
            const double own = r->id[i] == e, other = rule == RIDGE_ROUTE_SOFTMAX ? r->score[e] : 0;
            double slope;

            if (r->id[i] < 0)
                continue;
            if (rule == RIDGE_ROUTE_SOFTMAX) {
                slope = r->w[i] * (own - other);
                terms += fabs(r->w[i] * size[i]) * (own + other);
            } else if (rule == RIDGE_ROUTE_TOPK_SOFTMAX) {
                double share = 0, named = 0;

                for (int64_t k = 0; k < call->dim[2]; k++) {
                    share += r->id[k] == e ? r->w[k] : 0;
                    named += r->id[k] == e;
                }
                slope = named > 0 ? r->w[i] * (own - share) : 0;
                terms += named > 0 ? fabs(r->w[i] * size[i]) * (own + share) : 0;
            } else {
                slope = own * r->slope[e];
                terms += own * fabs(r->slope[e] * size[i]);
                /* 1 - w of a w near 1 has the rounding of w */
                terms += rule == RIDGE_ROUTE_SIGMOID ? own * fabs(size[i]) * 0x1p-8 * r->score[e] * r->score[e] : 0;
                /* exp(l) is subnormal in f32, and the slope below 2^-57 */
                terms += rule == RIDGE_ROUTE_SQRT_SOFTPLUS && r->l[e] < -80 ? own * fabs(size[i]) * 0x1p-40 : 0;
            }
            sum += slope * d[i];
        }
        oracle_estimate(s, RIDGE_MOE_ROUTE_BWD_DLOGITS, t, e,
                        (estimate){sum, 0x1p-24 * (256 + 16 * r->far) * terms + 0x1p-110});
    }
}

void oracle_experts_route(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    static _Thread_local row64 row;

    for (int64_t t = 0; t < call->dim[0]; t++) {
        load_row(s, t, &row);
        for (int64_t e = 0; e < call->dim[1] && row.nan; e++)
            oracle_note(s, isnan(oracle_out(s, RIDGE_MOE_ROUTE_BWD_DLOGITS, t, e)) ? 0 : INFINITY,
                        "gradient in a row with NaN", t, e);
        if (!row.nan && !row.infinite && row.z > 0x1p-20)
            check_row(s, t, &row);
    }
}
