/* hc.h: the arithmetic of hyper-connections' mixers, hc_mix and hc_split, in its bit-exact order.
 *
 * One source for the C reference and CUDA. A sum over the columns c of n_hc streams has 2048 partials; column c of
 * every stream belongs to partial c / 2 % 2048, which adds stream after stream, in each its columns ascending, one fma
 * a term from +0. Then neighbours are added, part[i] = part[2 i] + part[2 i + 1], until one is left. mix      dot(fn
 * row, res) * ridge_rms_factor(sum of res^2, n_hc cols, eps) z        fma(mix, scale, base); pre = sigmoid(z) + hc_eps;
 * post = 2 sigmoid(z) comb     K = exp(z - max) / sum + hc_eps, by rows; then Sinkhorn's factors u of rows and v of
 * columns, see below y        pre[0] res[0], then fma(pre[h], res[h], y) for h = 1, 2, ... out      y *
 * ridge_rms_factor(sum of y^2, cols, eps) * w docs/numerics.md, Hyper-connections. */
#ifndef RIDGE_HC_MATH_H
#define RIDGE_HC_MATH_H

#include "norm.h"
#include "ridge.h"

enum { RIDGE_HC_PARTS = 2048 };

/* Which scale number i of mix has: n_hc are of pre, n_hc of post, the rest of comb. */
RIDGE_FN int ridge_hc_scale_of(int n_hc, int i)
{
    return i < n_hc ? 0 : i < 2 * n_hc ? 1 : 2;
}

/* NaN of a NaN, of which ridge_sigmoid makes 0. */
RIDGE_FN float ridge_hc_sigmoid(float z)
{
    return z == z ? ridge_sigmoid(z) : z;
}

/* An entry of the mixture before the factors; `max` and `sum` are those of its row. The largest logit counts as 0, also
 * where it is infinite. */
RIDGE_FN float ridge_hc_exp(float z, float max)
{
    return z == max ? 1.0f : ridge_exp(z - max);
}

RIDGE_FN float ridge_hc_entry(float e, float sum, float eps)
{
    return e / sum + eps;
}

/* One factor of a row or column: *inverse is 1 over what it was before and becomes 1 over what it is. k: its n entries,
 * `step` apart; other: the factors of the columns or rows. Dividing a row by the sum of its entries and eps is this
 * step, because the entries are k times the row's old factor. */
RIDGE_FN float ridge_hc_factor(const float *k, int step, const float *other, int n, float eps, float *inverse)
{
    float sum = eps * *inverse;

    for (int i = 0; i < n; i++)
        sum = ridge_fma(k[i * step], other[i], sum);
    *inverse = sum;
    return ridge_rcp(sum);
}

/* n x n entries k become the mixture: the columns are divided, then rows and columns, iterations - 1 times. */
RIDGE_FN void ridge_hc_sinkhorn(float *k, int n, int64_t iterations, float eps)
{
    float u[RIDGE_MAX_HC], v[RIDGE_MAX_HC], row[RIDGE_MAX_HC], col[RIDGE_MAX_HC];

    for (int i = 0; i < n; i++)
        u[i] = v[i] = row[i] = col[i] = 1.0f;
    for (int64_t step = 0; step < 2 * iterations - 1; step++)
        for (int i = 0; i < n; i++) {
            if (step % 2)
                u[i] = ridge_hc_factor(k + i * n, 1, v, n, eps, &row[i]);
            else
                v[i] = ridge_hc_factor(k + i, n, u, n, eps, &col[i]);
        }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            k[i * n + j] = u[i] * k[i * n + j] * v[j];
}

#endif
