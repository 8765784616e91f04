/* oracle.c: float64 checks of the Q8_0 matmuls. Sums run over plain blocks in doubles, with none of the library's
 * arithmetic, except that codes which a product makes inside are taken from the C reference of q8_0_quantize_rows, or,
 * with a norm, of add_rms_norm, which have checks of their own (oracle_codes.c, check/norm). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "q8_0.h"

/* x as codes and scales. */
typedef struct activations {
    int8_t *codes;
    float *scales;
} activations;

static bool activations_of(const oracle_run *s, activations *x)
{
    const image *im = s->im;
    const int64_t tokens = im->call.dim[0], cols = im->call.dim[1];
    const int norm = im->call.op == RIDGE_Q8_0_MATMUL           ? (int)RIDGE_Q8_0_MATMUL_NORM
                     : im->call.op == RIDGE_Q8_0_GATE_UP_SWIGLU ? (int)RIDGE_Q8_0_GATE_UP_SWIGLU_NORM
                                                                : -1;
    ridge_call call =
        ridge_q8_0_quantize_rows(tokens, cols, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_I8));
    ridge_device *cpu = NULL;
    bool good;

    x->codes = calloc((size_t)(tokens * cols) + 1, 1);
    x->scales = calloc((size_t)(tokens * cols / 32) + 1, sizeof *x->scales);
    good = x->codes && x->scales;
    if (good && im->call.arg[0].dtype == RIDGE_I8) {
        for (int64_t i = 0; i < tokens * cols; i++)
            x->codes[i] = *(const int8_t *)oracle_address(im, im->host, 0, i / cols, i % cols);
        for (int64_t i = 0; i < tokens * cols / 32; i++)
            memcpy(&x->scales[i], oracle_address(im, im->host, 1, i / (cols / 32), i % (cols / 32)), 4);
        return true;
    }
    call.arg[0] = image_call(im, im->host).arg[0];
    if (norm >= 0 && im->length[norm]) {
        call = ridge_add_rms_norm(tokens, cols, ridge_matrix(NULL, RIDGE_F32), (ridge_tensor){0},
                                  ridge_matrix(oracle_address(im, im->host, norm, 0, 0), RIDGE_F32), (ridge_tensor){0},
                                  ridge_scaled(x->codes, RIDGE_I8, x->scales, RIDGE_SCALING_ROW32));
        call.opt.norm.eps = im->call.opt.q8_0.eps;
        call.arg[0] = image_call(im, im->host).arg[0];
    } else {
        ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_CODES, RIDGE_I8, x->codes, 0);
        ridge_set(&call, RIDGE_Q8_0_QUANTIZE_ROWS_SCALES, RIDGE_F32, x->scales, 0);
    }
    good = good && ridge_open("cpu:c", &cpu) == RIDGE_OK && ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK;
    ridge_close(cpu);
    return good;
}

/* Row r of weight w times token t. */
static estimate product(const oracle_run *s, const activations *x, int w, int64_t t, int64_t r)
{
    const image *im = s->im;
    const bool planes = im->call.arg[w].dtype == RIDGE_I8;
    const int64_t cols = im->call.dim[1], blocks = cols / 32;
    double sum = 0, size = 0, tiny = 0, infinite = 0; /* infinite: the sum of the terms that are not finite in f32 */

    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *codes = oracle_address(im, im->host, w, r, planes ? 32 * b : 34 * b + 2);
        const double wd = dtype_load(
            planes ? oracle_address(im, im->host, w + 1, r, b) : oracle_address(im, im->host, w, r, 34 * b), RIDGE_F16);
        const double xs = (double)x->scales[t * blocks + b];
        double dot = 0;

        for (int i = 0; i < 32; i++)
            dot += (double)codes[i] * (double)x->codes[t * cols + 32 * b + i];
        if (isnan(wd * xs))
            return (estimate){NAN, 0};
        if (isinf((float)(wd * xs))) {
            infinite += (double)(float)(wd * xs) * dot; /* NaN with a dot of 0, and where both signs meet */
            continue;
        }
        sum += wd * xs * dot;
        size += fabs(wd * xs * dot);
        tiny += fabs(dot) * 0x1p-150; /* wd * xs may be subnormal */
    }
    if (isnan(infinite) || (infinite != 0 && size < 0x1p120))
        return (estimate){infinite, 0};
    return (estimate){sum, ((double)blocks / 8 + 13) * 0x1p-24 * size + tiny + (size > 0x1p120 ? INFINITY : 0)};
}

static estimate gate_up(const oracle_run *s, const activations *x, int64_t t, int64_t r)
{
    const bool scaled = s->im->length[RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE] > 0;

    return oracle_gated(&s->im->call, product(s, x, RIDGE_Q8_0_GATE_UP_SWIGLU_GATE, t, r),
                        product(s, x, RIDGE_Q8_0_GATE_UP_SWIGLU_UP, t, r),
                        scaled ? oracle_in(s, RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE, 0, t) : 1);
}

static void check_hc(oracle_run *s, const activations *x, int64_t t, int64_t r)
{
    const int64_t rows = s->im->call.dim[2], n = s->im->call.dim[3];
    const bool more = s->im->length[RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD] > 0;
    estimate v = product(s, x, RIDGE_Q8_0_MATMUL_HC_EXPAND_W, t, r);

    if (s->im->length[RIDGE_Q8_0_MATMUL_HC_EXPAND_Y])
        oracle_estimate(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_Y, t, r, v);
    if (more)
        v.value += oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD, t, r);
    v.error += more ? 0x1p-24 * fabs(v.value) : 0;
    for (int64_t dst = 0; dst < n; dst++) {
        const double post = oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_POST, t, dst);
        double sum = v.value * post, size = fabs(sum);

        for (int64_t src = 0; src < n; src++) {
            const double term = oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB, t, dst + n * src) *
                                oracle_in(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_RES, t, src * rows + r);

            sum += term;
            size += fabs(term);
        }
        if (isnan(v.value) || size < 0x1p120) /* v may be infinite, and NaN with a post of 0 */
            oracle_estimate(s, RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT, t, dst * rows + r,
                            (estimate){sum, fabs(post) * v.error + ((double)n + 2) * (0x1p-24 * size + 0x1p-149)});
    }
}

static void check_row(oracle_run *s, const activations *x, int64_t t, int64_t r, int which)
{
    switch (s->im->call.op) {
    case RIDGE_Q8_0_MATMUL:
        oracle_estimate(s, RIDGE_Q8_0_MATMUL_OUT, t, r, product(s, x, RIDGE_Q8_0_MATMUL_W, t, r));
        break;
    case RIDGE_Q8_0_PAIR:
        oracle_estimate(s, RIDGE_Q8_0_PAIR_OUT0 + which, t, r, product(s, x, RIDGE_Q8_0_PAIR_W0 + 2 * which, t, r));
        break;
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
        oracle_estimate(s, RIDGE_Q8_0_GATE_UP_SWIGLU_OUT, t, r, gate_up(s, x, t, r));
        break;
    default:
        check_hc(s, x, t, r);
        break;
    }
}

void oracle_products(oracle_run *run)
{
    const image *im = run->im;
    const int64_t high[2] = {im->call.dim[2], im->call.op == RIDGE_Q8_0_PAIR ? im->call.dim[3] : 0};
    activations x;
    const bool good = activations_of(run, &x);
    char why[300];

    snprintf(why, sizeof why, "the oracle cannot quantise x: %s", good ? "" : ridge_error());
    if (!good)
        oracle_fail(run, why);
    for (int which = 0; which < 2 && good; which++)
        for (int64_t r = 0; r < high[which]; r++)
            for (int64_t t = 0; t < im->call.dim[0]; t++)
                check_row(run, &x, t, r, which);
    free(x.codes);
    free(x.scales);
}
