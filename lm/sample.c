/* sample.c: which token comes next. Every choice is by (logit descending, number ascending); a draw is a function of
 * the seed and a counter, through Philox4x32-10 (Salmon et al. 2011), and not of what was drawn before. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lm.h"

typedef struct choice {
    float logit;
    int32_t token;
} choice;

static int by_logit(const void *a, const void *b)
{
    const choice *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

enum { FEW = 256 };

/* The first `most` choices in order, at the front of c; all of them where `most` is 0 or not few. */
static int32_t order(const float *logits, int32_t count, int32_t most, choice *c)
{
    int32_t left = 0;

    if (!most || most > FEW || most >= count) {
        for (int32_t i = 0; i < count; i++)
            c[i] = (choice){logits[i], i};
        qsort(c, (size_t)count, sizeof *c, by_logit);
        return count;
    }
    for (int32_t i = 0; i < count; i++) {
        int32_t at = left;

        if (left == most && !(logits[i] > c[most - 1].logit))
            continue;
        at = left < most ? left++ : most - 1;
        for (; at > 0 && logits[i] > c[at - 1].logit; at--)
            c[at] = c[at - 1];
        c[at] = (choice){logits[i], i};
    }
    return left;
}

/* The first of four words for this seed and counter. */
static uint32_t philox(uint64_t seed, uint64_t counter)
{
    uint32_t x[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0},
             key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * x[0], b = (uint64_t)0xcd9e8d57u * x[2];

        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ key[0];
        x[1] = (uint32_t)b;
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ key[1];
        x[3] = (uint32_t)a;
        key[0] += 0x9e3779b9u;
        key[1] += 0xbb67ae85u;
    }
    return x[0];
}

/* The largest of the logits, in lanes that the compiler makes vectors of; *number: none is NaN. */
static float largest(const float *logits, int32_t count, bool *number)
{
    enum { LANES = 32 };
    float most[LANES];
    uint32_t nan = 0;

    for (int j = 0; j < LANES; j++)
        most[j] = -INFINITY;
    for (int32_t i = 0; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) {
            most[j] = logits[i + j] > most[j] ? logits[i + j] : most[j];
            nan |= logits[i + j] != logits[i + j];
        }
    for (int32_t i = count / LANES * LANES; i < count; i++) {
        most[0] = logits[i] > most[0] ? logits[i] : most[0];
        nan |= logits[i] != logits[i];
    }
    for (int j = 1; j < LANES; j++)
        most[0] = most[j] > most[0] ? most[j] : most[0];
    *number = nan == 0;
    return most[0];
}

ridge_status ridge_lm_argmax(const ridge_lm *lm, const float *logits, int32_t *token)
{
    int32_t i = 0;
    bool number;
    float most;

    if (!lm || !logits || !token)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_argmax: a pointer is NULL");
    most = largest(logits, lm->vocab.count, &number);
    if (!number) {
        while (!isnan(logits[i]))
            i++;
        return lm_fail(RIDGE_ERR_ARG, "the logit of token %d is NaN", i);
    }
    while (logits[i] != most)
        i++;
    *token = i;
    return RIDGE_OK;
}

/* How many of the ordered choices are left; p receives their probabilities at temperature 1, times a constant. */
static int32_t cut(const ridge_lm_sampling *o, const choice *c, int32_t count, double *p)
{
    double sum = 0, before = 0;
    int32_t left = o->top_k && o->top_k < count ? o->top_k : count, i;

    for (i = 0; i < left; i++)
        sum += p[i] = exp((double)c[i].logit - (double)c[0].logit);
    for (i = 0; i < left && (i == 0 || before < (double)o->top_p * sum); i++)
        before += p[i];
    left = o->top_p < 1.0f ? i : left;
    for (i = 1; i < left && p[i] >= (double)o->min_p; i++)
        ;
    return left < i ? left : i;
}

ridge_status ridge_lm_sample(const ridge_lm *lm, const float *logits, const ridge_lm_sampling *o, int32_t *token)
{
    const int32_t count = lm ? lm->vocab.count : 0;
    ridge_status status = ridge_lm_argmax(lm, logits, token);
    double sum = 0, at, *p;
    int32_t left, i = 0;
    choice *c;

    if (status)
        return status;
    if (!o || o->struct_size != sizeof *o)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_sample: sampling is NULL or of another size");
    if (!(o->temperature >= 0) || isinf(o->temperature) || o->top_k < 0 || !(o->top_p > 0 && o->top_p <= 1) ||
        !(o->min_p >= 0 && o->min_p <= 1))
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_sample: temperature %g, top_k %d, top_p %g or min_p %g is out of range",
                       (double)o->temperature, o->top_k, (double)o->top_p, (double)o->min_p);
    if (o->temperature == 0.0f || isinf(logits[*token]))
        return RIDGE_OK;
    c = malloc((size_t)count * sizeof *c);
    p = malloc((size_t)count * sizeof *p);
    if (!c || !p) {
        free(c);
        free(p);
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for %d logits", count);
    }
    left = cut(o, c, order(logits, count, o->top_k, c), p);
    for (int32_t j = 0; j < left; j++)
        sum += p[j] = exp(((double)c[j].logit - (double)c[0].logit) / (double)o->temperature);
    at = ((double)philox(o->seed, o->counter) + 0.5) * 0x1p-32 * sum;
    while (i + 1 < left && at >= p[i])
        at -= p[i++];
    *token = c[i].token;
    free(p);
    free(c);
    return RIDGE_OK;
}
