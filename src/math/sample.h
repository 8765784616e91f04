/* sample.h: how a token is drawn, in integers, so that no order of additions can be seen.
 *
 * One source for the C reference and CUDA. Of a row of logits, l the largest:
 *     key     the bits of a logit as an unsigned number that grows with it (-0 below +0)
 *     weight  q = trunc(2^32 ridge_exp(logit - l)); drawing: trunc(2^32 ridge_exp((logit - l) / temperature))
 *     draw    the first token, by number, at which the sum of weights exceeds high64(philox * sum of all)
 * docs/numerics.md, Generation. */
#ifndef RIDGE_SAMPLE_MATH_H
#define RIDGE_SAMPLE_MATH_H

#include "exact.h"

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

RIDGE_FN uint64_t ridge_sample_weight(float ratio)
{
    return (uint64_t)(ratio * 0x1p32f);
}

/* The sum of weights that the tokens before one that top_p drops have at least. */
RIDGE_FN uint64_t ridge_sample_share(float top_p, uint64_t sum)
{
    return (uint64_t)((double)top_p * (double)sum);
}

/* 64 bits for a seed and a counter: Philox4x32-10 (Salmon et al. 2011), its first two words. */
RIDGE_FN uint64_t ridge_philox(uint64_t seed, uint64_t counter)
{
    uint32_t x0 = (uint32_t)counter, x1 = (uint32_t)(counter >> 32), x2 = 0, x3 = 0;
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * x0, b = (uint64_t)0xcd9e8d57u * x2;

        x0 = (uint32_t)(b >> 32) ^ x1 ^ key0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ key1;
        x3 = (uint32_t)a;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return (uint64_t)x1 << 32 | x0;
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
