/* oracle_draw.c: the class that linear_ce_eval draws, against scores in float64 from a Philox written for this file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_ce.h"

/* Ten rounds on four words and two words of key, as in the paper (Salmon et al., 2011, figure 4). */
static void philox(uint32_t *x, uint32_t *key)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t left = UINT64_C(0xd2511f53) * x[0], right = UINT64_C(0xcd9e8d57) * x[2];
        const uint32_t next[4] = {(uint32_t)(right >> 32) ^ x[1] ^ key[0], (uint32_t)right,
                                  (uint32_t)(left >> 32) ^ x[3] ^ key[1], (uint32_t)left};

        memcpy(x, next, sizeof next);
        key[0] += 0x9e3779b9;
        key[1] += 0xbb67ae85;
    }
}

static uint64_t whole(const ce_subject *s, int arg, int64_t b)
{
    uint64_t value;

    memcpy(&value, oracle_address(s->im, s->im->host, arg, 0, b), sizeof value);
    return value;
}

/* What is added to the logit of a class of the whole vocabulary. */
static double gumbel(const ce_subject *s, int64_t b, int64_t c)
{
    const uint64_t seed = whole(s, RIDGE_LINEAR_CE_SEED, b), counter = whole(s, RIDGE_LINEAR_CE_COUNTER, b);
    const uint64_t group = (uint64_t)(c / 16 * 4 + c % 8 / 2);
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t x[4] = {(uint32_t)group, (uint32_t)(group >> 32), (uint32_t)counter, (uint32_t)(counter >> 32)};

    philox(x, key);
    return -log(-log1p(-((double)x[c % 16 / 8 * 2 + c % 2] + 0.5) / 4294967296.0));
}

/* A row that repeats: whichever class came has the largest score within the error of the logits. */
static void check_row(ce_subject *s, const double *score, int64_t best, int64_t b, int64_t at)
{
    const bool slice = s->offset != 0 || s->total != s->vocab;
    const int64_t id = (int64_t)oracle_out(s->run, RIDGE_LINEAR_CE_SAMPLE_ID, 0, at), c = id - s->offset;
    const double log_p = oracle_out(s->run, RIDGE_LINEAR_CE_SAMPLE_LOGPROB, 0, at);
    const bool scores = oracle_has(s, RIDGE_LINEAR_CE_SAMPLE_SCORE);
    const double size = isfinite(score[best]) ? fabs(score[best]) : 0, lse = s->ref.lse[b];
    const double bound = 2 * s->delta[b] + 0x1p-22 * (size + (isfinite(lse) ? fabs(lse) : 0) + 1);

    if (s->y[b] == -1) {
        const double own = scores ? oracle_out(s->run, RIDGE_LINEAR_CE_SAMPLE_SCORE, 0, at) : 0;

        oracle_note(s->run, id == -1 && log_p == 0 && own == 0 ? 0 : INFINITY, "sample of an ignored row", at, 0);
        return;
    }
    if (c < 0 || c >= s->vocab) {
        oracle_note(s->run, INFINITY, "sample_id", at, 0);
        return;
    }
    oracle_note(s->run,
                c == best                    ? 0
                : score[best] - score[c] > 0 ? (score[best] - score[c]) / bound
                                             : INFINITY,
                "sample_id", at, 0);
    oracle_compare(s->run, log_p, slice ? s->ref.z[b * s->vocab + c] : s->ref.z[b * s->vocab + c] - lse, bound,
                   "sample_logprob", at, 0);
    oracle_note(s->run, !slice && log_p > 0 ? INFINITY : 0, "sample_logprob is above 0", at, 0);
    if (scores)
        oracle_compare(s->run, oracle_out(s->run, RIDGE_LINEAR_CE_SAMPLE_SCORE, 0, at), score[c], bound, "sample_score",
                       at, 0);
}

void oracle_ce_check_draw(ce_subject *s)
{
    double *score = calloc((size_t)s->vocab, sizeof *score);

    if (!score) {
        oracle_note(s->run, INFINITY, "no memory for the scores", 0, 0);
        return;
    }
    for (int64_t b = 0; b < s->tokens; b++) {
        int64_t best = 0;

        for (int64_t c = 0; c < s->vocab; c++) {
            score[c] = s->ref.z[b * s->vocab + c] + gumbel(s, b, s->offset + c);
            best = oracle_larger(score[c], score[best]) ? c : best;
        }
        for (int64_t at = b; at < s->rows; at += s->tokens)
            check_row(s, score, best, b, at);
    }
    free(score);
}
