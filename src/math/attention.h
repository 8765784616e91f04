/* attention.h: attention_decode in its bit-exact order: what the C reference, the SIMD rows and CUDA share.
 *
 *     dot:    column c belongs to partial c % 16; each adds fma(q, k, acc) from +0 in ascending c; within each eight
 *             part[i] += part[i + s] for i < s, s = 4, 2, 1; then the first of the eights plus the second
 *     score:  ridge_attention_score of the dot
 *     piece:  128 positions from a multiple of 128 on: m = max of its scores, p = ridge_attention_weight(m, s);
 *             l of a chunk of 32: part[i] += part[i + s] for i < s, s = 16 .. 1, over p (+0 of keys that are not seen);
 *             o of a chunk: fma(p, v, acc) from +0 in ascending position over the keys that are seen;
 *             l and o of the piece: those of its four chunks added in ascending order
 *     merge:  M = max of all m and of the sink; w = ridge_exp_neg(M - m); L and O: fma(w, l, L), fma(w, o, O) from +0
 * in ascending order of the pieces that hold a key; then L += ridge_exp_neg(M - sink); out = O * (1 / L)
 *
 * Everything is counted from position 0, so that a result depends on the keys alone and not on the length of the cache.
 * docs/numerics.md, Attention. */
#ifndef RIDGE_ATTENTION_MATH_H
#define RIDGE_ATTENTION_MATH_H

#include "exact.h"

enum { RIDGE_ATTENTION_CHUNK = 32, RIDGE_ATTENTION_PIECE = 128 };

RIDGE_FN float ridge_attention_score(float dot, float scale, float softcap)
{
    const float s = dot * scale;

    return softcap > 0.0f ? softcap * ridge_tanh(s / softcap) : s;
}

/* The larger one; x where y is NaN. */
RIDGE_FN float ridge_attention_max(float x, float y)
{
    return y > x ? y : x;
}

/* e^(s - m) of a score of a piece whose maximum is m; NaN stays NaN. */
RIDGE_FN float ridge_attention_weight(float m, float s)
{
    const float p = ridge_exp_neg(m - s);

    return s == s ? p : s;
}

/* What O is multiplied by; 0 where no key is seen. */
RIDGE_FN float ridge_attention_factor(float sum)
{
    return sum == 0.0f ? 0.0f : 1.0f / sum;
}

#endif
