/* oracle.c: kv_append, attention_decode, attention_prefill and kv_append_attention in float64, with none of the
 * library's arithmetic and in another order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"

/* Element c of row `pos` of a head of the cache, before the run or after it. */
static double cache_element(const oracle_run *s, const unsigned char *base, int arg, int64_t head, int64_t pos,
                            int64_t c)
{
    const int64_t n = s->im->call.dim[3];
    const uint32_t dtype = s->im->call.arg[arg].dtype;
    const unsigned char *block;

    if (dtype != RIDGE_U8)
        return dtype_load(oracle_address(s->im, base, arg, head, pos * n + c), dtype);
    block = oracle_address(s->im, base, arg, head, pos * (n / 32 * 34) + c / 32 * 34);
    return dtype_load(block, RIDGE_F16) * ((const signed char *)block)[2 + c % 32];
}

static double cache_in(const oracle_run *s, int arg, int64_t head, int64_t pos, int64_t c)
{
    return cache_element(s, s->im->host, arg, head, pos, c);
}

/* ------------------------------------------------------------------------------------------------------- kv_append */

/* Element j of head h of a token with its bias, before the norm. */
static estimate biased(const oracle_run *s, int64_t t, int64_t col)
{
    const double x = oracle_in(s, RIDGE_KV_APPEND_QKV, t, col);
    const double b = s->im->length[RIDGE_KV_APPEND_BIAS] ? oracle_in(s, RIDGE_KV_APPEND_BIAS, 0, col) : 0;

    return (estimate){x + b, b != 0 ? 0x1p-24 * (fabs(x) + fabs(b)) + 0x1p-149 : 0};
}

/* The head with its norm (weight in slot `norm`, -1: none); false: beyond what f32 holds. */
static bool normed(const oracle_run *s, int64_t t, int64_t first, int norm, estimate *y)
{
    const int64_t n = s->im->call.dim[3];
    double sum = 0, slack = 0;

    for (int64_t j = 0; j < n; j++) {
        y[j] = biased(s, t, first + j);
        sum += y[j].value * y[j].value;
        slack += 2 * fabs(y[j].value) * y[j].error;
    }
    if (!(sum < 0x1p120))
        return false;
    if (norm < 0 || !s->im->length[norm])
        return true;
    if (sum < (double)n * 0x1p-100)
        return false;
    sum = sum / (double)n + (double)s->im->call.opt.kv_append.eps;
    for (int64_t j = 0; j < n; j++) {
        const double factor = oracle_in(s, norm, 0, j) / sqrt(sum);

        y[j].value *= factor;
        y[j].error = y[j].error * fabs(factor) +
                     fabs(y[j].value) * (((double)n / 512 + 8) * 0x1p-23 + slack / (double)n / sum) + 0x1p-140;
        if (!(fabs(y[j].value) < 0x1p120))
            return false;
    }
    return true;
}

static void turned(const oracle_run *s, int64_t t, estimate *y)
{
    const ridge_call *call = &s->im->call;
    const int64_t n_rot = call->opt.kv_append.n_rot ? call->opt.kv_append.n_rot : call->dim[3];
    const int64_t far = call->flags & RIDGE_ROPE_HALVES ? n_rot / 2 : 1, step = far == 1 ? 2 : 1;

    for (int64_t i = 0; i < n_rot / 2; i++) {
        const double angle = oracle_in(s, RIDGE_KV_APPEND_POS, 0, t) * oracle_in(s, RIDGE_KV_APPEND_FREQS, 0, i);
        const double c = (double)cosl((long double)angle) * (double)call->opt.kv_append.mscale;
        const double sine = (double)sinl((long double)angle) * (double)call->opt.kv_append.mscale;
        estimate *a = &y[step * i], *b = far == 1 && step == 2 ? a + 1 : a + far;
        const estimate a0 = *a, b0 = *b;
        const double error = (a0.error + b0.error) * (fabs(c) + fabs(sine)) +
                             0x1p-22 * (fabs(a0.value) + fabs(b0.value)) * (fabs(c) + fabs(sine)) + 0x1p-140;

        *a = (estimate){a0.value * c - b0.value * sine, error};
        *b = (estimate){a0.value * sine + b0.value * c, error};
    }
}

/* A block of Q8_0: its scale d is amax / 127, rounded to f16, and codes are the nearest multiples. */
static void check_block(oracle_run *s, int arg, int64_t head, int64_t pos, int64_t first, const estimate *y)
{
    double amax = 0, error = 0, d;

    for (int64_t j = first; j < first + 32; j++) {
        amax = fmax(amax, fabs(y[j].value));
        error = fmax(error, y[j].error);
    }
    d = (amax + error) / 127;
    if (!(d < 65000))
        return;
    for (int64_t j = first; j < first + 32; j++) {
        const double bound = error + 0.501 * d + 128 * (0x1p-11 * d + 0x1p-25);

        oracle_compare(s, cache_element(s, s->got, arg, head, pos, j), y[j].value, bound, "an element of the cache",
                       head, pos);
    }
}

/* Row `pos` of a head of the cache: as f16 beyond 65504 only the exact contract is a test. */
static void check_cache(oracle_run *s, int arg, int64_t head, int64_t pos, const estimate *y)
{
    const int64_t n = s->im->call.dim[3];
    const double most = s->im->call.arg[arg].dtype == RIDGE_F16 ? 65000 : 0x1p120;

    for (int64_t j = 0; j < n && s->im->call.arg[arg].dtype == RIDGE_U8; j += 32)
        check_block(s, arg, head, pos, j, y);
    if (s->im->call.arg[arg].dtype == RIDGE_U8)
        return;

    for (int64_t j = 0; j < n; j++)
        if (fabs(y[j].value) + y[j].error < most)
            oracle_estimate(s, arg, head, pos * n + j, y[j]);
}

/* q: NULL, or room for the heads of q, which are not the call's output then; NaN: not known. */
static void append_oracle(oracle_run *s, estimate *q)
{
    const int64_t *dim = s->im->call.dim, n = dim[3];
    estimate y[RIDGE_MAX_HEAD_DIM];

    for (int64_t t = 0; t < dim[0]; t++) {
        const int64_t pos = (int64_t)oracle_in(s, RIDGE_KV_APPEND_POS, 0, t);
        const bool inside = pos >= 0 && pos < dim[4];

        for (int64_t h = 0; h < dim[1] + 2 * dim[2]; h++) {
            const int64_t kv = h - dim[1];
            const int norm = kv < 0 ? (int)RIDGE_KV_APPEND_Q_NORM : kv < dim[2] ? (int)RIDGE_KV_APPEND_K_NORM : -1;

            if (!normed(s, t, h * n, norm, y)) {
                for (int64_t j = 0; j < n && kv < 0 && q; j++)
                    q[(t * dim[1] + h) * n + j].value = NAN;
                continue;
            }
            if (kv < dim[2])
                turned(s, t, y);
            if (kv < 0 && q)
                memcpy(q + (t * dim[1] + h) * n, y, (size_t)n * sizeof *y);
            else if (kv < 0)
                for (int64_t j = 0; j < n; j++)
                    oracle_estimate(s, RIDGE_KV_APPEND_OUT, t, h * n + j, y[j]);
            else if (inside)
                check_cache(s, kv < dim[2] ? RIDGE_KV_APPEND_K : RIDGE_KV_APPEND_V, kv % dim[2], pos, y);
        }
    }
    for (int64_t p = 0; p < dim[4]; p++) { /* what no token's row is stays as it was */
        bool written = false;

        for (int64_t t = 0; t < dim[0]; t++)
            written |= (int64_t)oracle_in(s, RIDGE_KV_APPEND_POS, 0, t) == p;
        for (int arg = RIDGE_KV_APPEND_K; arg <= RIDGE_KV_APPEND_V && !written; arg++)
            for (int64_t i = 0; i < dim[2] * n; i++) {
                const double was = cache_in(s, arg, i / n, p, i % n),
                             is = cache_element(s, s->got, arg, i / n, p, i % n);

                if (was != is && !(isnan(was) && isnan(is)))
                    oracle_note(s, INFINITY, "a row of the cache that no token has", i / n, p);
            }
    }
}

/* --------------------------------------------------------------------------------------------------------- attention
 */

/* Where an op has attention's operands and options, and the q that kv_append_attention makes of its own. */
typedef struct attention_view {
    int k, v, pos, out, sinks; /* slots */
    ridge_attention_options o;
    const unsigned char *cache; /* the image that the keys and values are read from */
    const estimate *q;          /* NULL: an operand */
} attention_view;

static bool is_prefill(const oracle_run *s)
{
    return s->im->call.op == RIDGE_ATTENTION_PREFILL;
}

/* An element of q; attention_prefill rounds it to the cache's dtype. */
static estimate query_element(const oracle_run *s, const attention_view *view, int64_t t, int64_t col)
{
    const uint32_t dtype = s->im->call.arg[view->k].dtype;
    uint16_t rounded;
    double q;

    if (view->q)
        return view->q[t * s->im->call.dim[1] * s->im->call.dim[3] + col];
    q = oracle_in(s, RIDGE_ATTENTION_DECODE_Q, t, col);
    if (!is_prefill(s))
        return (estimate){q, 0};
    dtype_store(&rounded, dtype, (float)q);
    return (estimate){dtype_load(&rounded, dtype), 0};
}

/* The score of one key and its error. Tensor cores align every product of a sum to the largest and cut it off: 2^-23
 * of the sum of all for each of n products and n/16 sums. */
static estimate score(const oracle_run *s, const attention_view *view, int64_t t, int64_t h, int64_t kv, int64_t p)
{
    const ridge_attention_options *o = &view->o;
    const int64_t n = s->im->call.dim[3];
    double dot = 0, size = 0, slack = 0;
    estimate e;

    for (int64_t c = n - 1; c >= 0; c--) {
        const estimate q = query_element(s, view, t, h * n + c);
        const double k = cache_element(s, view->cache, view->k, kv, p, c);

        dot += q.value * k;
        size += fabs(q.value * k);
        slack += q.error * fabs(k);
    }
    e.value = dot * (double)o->scale;
    e.error = (is_prefill(s) ? 1.0625 * (double)n + 20 : (double)n / 16 + 10) * 0x1p-23 * size;
    e.error = (e.error + slack) * fabs((double)o->scale);
    if (o->softcap > 0) {
        e.value = (double)o->softcap * tanh(e.value / (double)o->softcap);
        e.error += 8 * 0x1p-23 * fabs(e.value);
    }
    return e;
}

/* The relative error of a sum over the keys whose scores have the error `error` and are at most `wide`, in both ops. */
static double sum_error(const oracle_run *s, const attention_view *view, double error, double wide)
{
    const double positions = (double)s->im->call.dim[4];

    error = 2 * error + 4 * wide * 0x1p-23;
    if (!is_prefill(s))
        return error + (positions / 128 + 120) * 0x1p-23;
    return error + dtype_unit(s->im->call.arg[view->v].dtype) + (2.25 * positions + 200) * 0x1p-23;
}

/* One query and head; keys: room for the weights. attention_prefill's weights of V are rounded, f16 below 2^-14 of the
 * largest to multiples of 2^-24 of it. */
static void check_query(oracle_run *s, const attention_view *view, int64_t t, int64_t h, double *keys)
{
    const ridge_call *call = &s->im->call;
    const int64_t n = call->dim[3], kv = h / (call->dim[1] / call->dim[2]), window = view->o.window;
    const int64_t pos = (int64_t)oracle_in(s, view->pos, 0, t);
    const int64_t end = pos + 1 < call->dim[4] ? pos + 1 : call->dim[4],
                  first = window && pos >= window ? pos + 1 - window : 0;
    const bool has_sink = s->im->length[view->sinks] != 0;
    double top = has_sink ? oracle_in(s, view->sinks, 0, h) : -INFINITY, sum = 0, error = 0, wide = 0;
    double most = 0;

    for (int64_t p = first; p < end; p++) {
        const estimate e = score(s, view, t, h, kv, p);

        keys[p] = e.value;
        error = fmax(error, e.error);
        wide = fmax(wide, fabs(e.value));
        top = fmax(top, e.value);
        if (!isfinite(e.value) || fabs(e.value) > 0x1p100)
            return;
    }
    if (!isfinite(top) && first < end)
        return;
    if (has_sink) {
        sum = exp(oracle_in(s, view->sinks, 0, h) - top);
        wide = fmax(wide, fabs(oracle_in(s, view->sinks, 0, h)));
    }
    for (int64_t p = first; p < end; p++) {
        sum += keys[p] = exp(keys[p] - top);
        most = fmax(most, keys[p]);
    }
    error = sum_error(s, view, error, wide);
    most *= is_prefill(s) ? 0x1p-25 : 0;
    for (int64_t c = 0; c < n; c++) {
        estimate e = {0, 0};
        double size = 0;

        for (int64_t p = first; p < end; p++) {
            const double v = cache_element(s, view->cache, view->v, kv, p, c);

            e.value += keys[p] / sum * v;
            e.error += keys[p] / sum * fabs(v);
            size += fabs(v);
        }
        e.error = e.error * error + (end > first ? size * most / sum : 0) + 0x1p-120;
        if (isfinite(e.value) && isfinite(e.error) && isfinite(sum))
            oracle_estimate(s, view->out, t, h * n + c, e);
    }
}

static void attend_oracle(oracle_run *s, const attention_view *view)
{
    const int64_t *dim = s->im->call.dim;
    double *keys = malloc((size_t)(dim[4] + 1) * sizeof *keys);

    if (!keys)
        oracle_fail(s, "out of memory");
    for (int64_t t = 0; t < dim[0] && keys; t++)
        for (int64_t h = 0; h < dim[1]; h++)
            check_query(s, view, t, h, keys);
    free(keys);
}

static void decode_oracle(oracle_run *s)
{
    const attention_view view = {.k = RIDGE_ATTENTION_DECODE_K,
                                 .v = RIDGE_ATTENTION_DECODE_V,
                                 .pos = RIDGE_ATTENTION_DECODE_POS,
                                 .out = RIDGE_ATTENTION_DECODE_OUT,
                                 .sinks = RIDGE_ATTENTION_DECODE_SINKS,
                                 .o = s->im->call.opt.attention,
                                 .cache = s->im->host};

    attend_oracle(s, &view);
}

/* The cache is judged as kv_append's, and then is what attention reads. */
static void both_oracle(oracle_run *s)
{
    const ridge_kv_append_attention_options *o = &s->im->call.opt.kv_append_attention;
    const int64_t *dim = s->im->call.dim;
    estimate *q = malloc((size_t)(dim[0] * dim[1] * dim[3] + 1) * sizeof *q);
    const attention_view view = {.k = RIDGE_KV_APPEND_ATTENTION_K,
                                 .v = RIDGE_KV_APPEND_ATTENTION_V,
                                 .pos = RIDGE_KV_APPEND_ATTENTION_POS,
                                 .out = RIDGE_KV_APPEND_ATTENTION_OUT,
                                 .sinks = RIDGE_KV_APPEND_ATTENTION_SINKS,
                                 .o = {.window = o->window, .scale = o->scale, .softcap = o->softcap},
                                 .cache = s->got,
                                 .q = q};

    if (!q) {
        oracle_fail(s, "out of memory");
        return;
    }
    append_oracle(s, q);
    attend_oracle(s, &view);
    free(q);
}

void attention_oracle(oracle_run *run)
{
    if (run->im->call.op == RIDGE_KV_APPEND)
        append_oracle(run, NULL);
    else if (run->im->call.op == RIDGE_KV_APPEND_ATTENTION)
        both_oracle(run);
    else
        decode_oracle(run);
}
