/* cpu_draw.c: the class that a row draws on the CPU: the one with the largest score (src/math/sample.h). */
#include <math.h>

#include "cpu.h"
#include "src/math/sample.h"

/* Words of the 16 classes from a multiple of 16 on. */
static void words_of(const ce_args *a, int64_t token, int64_t from, uint32_t *word)
{
    for (int part = 0; part < 4; part++) {
        uint32_t own[4];

        ridge_draw_words((uint64_t)a->seed[token], (uint64_t)a->counter[token], from / 16, part, own);
        for (int i = 0; i < 4; i++)
            word[2 * part + 8 * (i / 2) + i % 2] = own[i];
    }
}

float ridge_cpu_ce_score(const ce_args *a, int64_t token, int64_t class_, float z)
{
    uint32_t word[16];

    words_of(a, token, class_ / 16 * 16, word);
    return ridge_draw_score(z, word[class_ % 16]);
}

void ridge_cpu_ce_draw(const ce_args *a, int64_t token, int64_t first, int64_t count, const float *z)
{
    const float none = -1; /* below 0: no class yet */
    float best = first == 0 ? none : ridge_cpu_ce_score(a, token, a->sample_id[token], a->sample_logprob[token]);
    uint32_t word[16];

    for (int64_t i = 0; i < count; i++) {
        const int64_t c = a->offset + first + i;
        float score, most;

        if (i == 0 || c % 16 == 0)
            words_of(a, token, c / 16 * 16, word);
        /* -log(-log(1 - v)) is below -log v, and v = (word + 1/2) / 2^32 at least the power of 2 below it */
        most = z[i] + (1 + (word[c % 16] ? (float)__builtin_clz(word[c % 16]) : 33)) * 0.6931472f;
        if (first + i > 0 && (isnan(best) || most < best - 1e-5f * (1 + fabsf(best))))
            continue;
        score = ridge_draw_score(z[i], word[c % 16]);
        if (first + i > 0 && !(isnan(score) || score > best))
            continue;
        best = score;
        a->sample_id[token] = c;
        a->sample_logprob[token] = z[i];
    }
}
