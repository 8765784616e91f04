/* rope.c: ridge_rope_freqs, the frequency table of RoPE and its stretch by YaRN. Runs once on the host; the table is an
 * operand of the op, so that libm's last bits belong to the input and not to the contract. */
#include <math.h>

#include "src/internal.h"

/* The pair, as a real number, that turns `beta` times within the original context. */
static double pair_of(double beta, double n_rot, double base, double context)
{
    return n_rot * log(context / (beta * 2.0 * 3.14159265358979323846)) / (2.0 * log(base));
}

static ridge_status check(int64_t n_rot, double base, const ridge_yarn *y, const double *freqs)
{
    if (n_rot < 0 || n_rot % 2 || n_rot > (INT64_C(1) << 20))
        return ridge_fail(RIDGE_ERR_ARG, "ridge_rope_freqs: n_rot is %lld, not an even number up to 2^20",
                          (long long)n_rot);
    if (n_rot && !freqs)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_rope_freqs: freqs is NULL");
    if (!(base > 1.0) || isinf(base))
        return ridge_fail(RIDGE_ERR_ARG, "ridge_rope_freqs: base is %g, not finite and above 1", base);
    if (!y)
        return RIDGE_OK;
    if (y->struct_size != sizeof *y)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_rope_freqs: yarn.struct_size is %u, this library's has %u bytes",
                          y->struct_size, (unsigned)sizeof *y);
    if (!(y->freq_scale > 0.0 && y->freq_scale <= 1.0))
        return ridge_fail(RIDGE_ERR_ARG, "ridge_rope_freqs: yarn.freq_scale is %g, outside (0, 1]", y->freq_scale);
    if (!isfinite(y->ext_factor) || !isfinite(y->attn_factor))
        return ridge_fail(RIDGE_ERR_ARG, "ridge_rope_freqs: yarn.%s is not finite",
                          isfinite(y->ext_factor) ? "attn_factor" : "ext_factor");
    if (y->ext_factor != 0.0 && !(y->original_context >= 1.0 && y->original_context < 1e15))
        return ridge_fail(RIDGE_ERR_ARG, "ridge_rope_freqs: yarn.original_context is %g, outside 1 .. 1e15",
                          y->original_context);
    if (y->ext_factor != 0.0 && !(y->beta_slow > 0.0 && y->beta_fast >= y->beta_slow && y->beta_fast < 1e15))
        return ridge_fail(RIDGE_ERR_ARG,
                          "ridge_rope_freqs: yarn.beta_slow is %g, yarn.beta_fast is %g, not 0 < slow "
                          "<= fast < 1e15",
                          y->beta_slow, y->beta_fast);
    return RIDGE_OK;
}

ridge_status ridge_rope_freqs(int64_t n_rot, double base, const ridge_yarn *yarn, double *freqs, float *mscale)
{
    double low = 0, high = 0, factor = 1;
    ridge_status status = check(n_rot, base, yarn, freqs);

    if (status)
        return status;
    if (yarn) {
        factor = yarn->attn_factor;
        if (yarn->ext_factor != 0.0) {
            low = fmax(0.0, floor(pair_of(yarn->beta_fast, (double)n_rot, base, yarn->original_context)));
            high = fmin((double)n_rot - 1, ceil(pair_of(yarn->beta_slow, (double)n_rot, base, yarn->original_context)));
            factor *= 1.0 + 0.1 * log(1.0 / yarn->freq_scale);
        }
    }
    for (int64_t i = 0; i < n_rot / 2; i++) {
        const double whole = pow(base, -2.0 * (double)i / (double)n_rot);

        freqs[i] = whole;
        if (yarn) { /* the share of the unstretched frequency falls from ext_factor at `low` to 0 at `high` */
            const double ramp = fmin(1.0, fmax(0.0, ((double)i - low) / fmax(0.001, high - low)));
            const double share = yarn->ext_factor != 0.0 ? (1.0 - ramp) * yarn->ext_factor : 0.0;

            freqs[i] = whole * yarn->freq_scale * (1.0 - share) + whole * share;
        }
    }
    if (mscale)
        *mscale = (float)factor;
    return RIDGE_OK;
}
