/* sample.h: how a token is drawn, so that no order of additions can be seen: in integers, or by the largest of sums.
 *
 * One source for the C reference and CUDA. Of a row of logits, l the largest:
 *     key     the bits of a logit as an unsigned number that grows with it (-0 below +0)
 *     weight  q = trunc(2^32 ridge_exp(logit - l)); drawing: trunc(2^32 ridge_exp((logit - l) / temperature))
 *     draw    the first token, by number, at which the sum of weights exceeds high64(philox * sum of all)
 * docs/numerics.md, Generation. Without the logits of a row in memory (linear_ce_eval) it is the class of the largest
 *     score   z - log(-log u), u in (0, 1) by class: z + a number of Gumbel's distribution, so p_c = softmax(z)_c
 * docs/numerics.md, Cross entropy. */
#ifndef RIDGE_SAMPLE_MATH_H
#define RIDGE_SAMPLE_MATH_H

#include "exact64.h"

RIDGE_FN uint32_t ridge_sample_key(float logit)
{
    const uint32_t u = ridge_bits(logit);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

RIDGE_FN float ridge_sample_logit(uint32_t key)
{
    return ridge_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* A logit of a token that is in the history. */
RIDGE_FN float ridge_sample_penalised(float logit, float penalty)
{
    return logit <= 0.0f ? logit * penalty : logit / penalty;
}

/* Probability at temperature 1 over that of the largest logit. */
RIDGE_FN float ridge_sample_ratio(float logit, float largest)
{
    return ridge_exp(logit - largest);
}

/* Of NaN 2^63: what x86 and PTX convert it to, and C leaves undefined. */
RIDGE_FN uint64_t ridge_sample_weight(float ratio)
{
    return ratio == ratio ? (uint64_t)(ratio * 0x1p32f) : UINT64_C(1) << 63;
}

/* The sum of weights that the tokens before one that top_p drops have at least. */
RIDGE_FN uint64_t ridge_sample_share(float top_p, uint64_t sum)
{
    return (uint64_t)((double)top_p * (double)sum);
}

/* Philox4x32-10 (Salmon et al. 2011): 128 bits for a key of 64 and a counter of 128. */
RIDGE_FN void ridge_philox4(uint64_t key, uint64_t low, uint64_t high, uint32_t *word)
{
    uint32_t x0 = (uint32_t)low, x1 = (uint32_t)(low >> 32), x2 = (uint32_t)high, x3 = (uint32_t)(high >> 32);
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * x0, b = (uint64_t)0xcd9e8d57u * x2;

        x0 = (uint32_t)(b >> 32) ^ x1 ^ key0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ key1;
        x3 = (uint32_t)a;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    word[0] = x0;
    word[1] = x1;
    word[2] = x2;
    word[3] = x3;
}

/* 64 bits for a seed and a counter. */
RIDGE_FN uint64_t ridge_philox(uint64_t seed, uint64_t counter)
{
    uint32_t word[4];

    ridge_philox4(seed, counter, 0, word);
    return (uint64_t)word[1] << 32 | word[0];
}

/* The words of classes 16 block + 2 part + {0, 1, 8, 9}, which one thread of a matrix fragment holds. */
RIDGE_FN void ridge_draw_words(uint64_t seed, uint64_t counter, int64_t block, int part, uint32_t *word)
{
    ridge_philox4(seed, (uint64_t)(4 * block + part), counter, word);
}

/* The score of a class from its word: u = 1 - (word + 1/2) / 2^32, so that small -log u, which win, have all bits. */
RIDGE_FN float ridge_draw_score(float z, uint32_t word)
{
    const double u = ((double)~word + 0.5) * 0x1p-32;

    return (float)((double)z - ridge_log64(-ridge_log64(u)));
}

RIDGE_FN uint64_t ridge_high64(uint64_t a, uint64_t b)
{
#ifdef __CUDA_ARCH__
    return __umul64hi(a, b);
#else
    const uint64_t low = (a & 0xffffffffu) * (b & 0xffffffffu), one = (a >> 32) * (b & 0xffffffffu) + (low >> 32);
    const uint64_t two = (a & 0xffffffffu) * (b >> 32) + (one & 0xffffffffu);

    return (a >> 32) * (b >> 32) + (one >> 32) + (two >> 32);
#endif
}

#endif
