/* quantize.c: the oracle of moe_permute_quantize, moe_swiglu_quantize and moe_swiglu_bwd_quantize in float64. A code is
 * decoded by the definition of its format and must be as near as any other can be; a scale is amax over the largest
 * number; codes of padding are those of zeros. */
#include <math.h>
#include <stdlib.h>

#include "experts.h"

typedef struct subject {
    oracle_run *run;
    const ridge_call *call;
    bool swiglu, backward;
    int q; /* the slots of q, scale, q_t, scale_t, offsets_t are consecutive */
    int64_t pairs, cols, experts, slots;
    bool e5m2, pow2;
    double floor;
    void *out;   /* of swiglu_fwd, or dgate and dup of swiglu_bwd side by side, packed */
    float *drow; /* of swiglu_bwd */
} subject;

/* An element before it is quantised. */
static double element(const subject *s, int64_t row, int64_t col)
{
    const double pair = !s->swiglu && s->run->im->length[RIDGE_MOE_PERMUTE_QUANTIZE_ROWS]
                            ? oracle_in(s->run, RIDGE_MOE_PERMUTE_QUANTIZE_ROWS, 0, row)
                            : (double)row;

    if (s->swiglu)
        return dtype_load((const char *)s->out +
                              (size_t)(row * s->cols + col) * ridge_dtype_size(s->call->arg[0].dtype),
                          s->call->arg[0].dtype);
    return pair >= 0 && pair < (double)s->pairs
               ? oracle_in(s->run, RIDGE_MOE_PERMUTE_QUANTIZE_X, (int64_t)pair / s->slots, col)
               : 0;
}

/* What swiglu_fwd's C reference stores, which has an oracle of its own. */
static bool run_swiglu(subject *s)
{
    const ridge_call all = image_call(s->run->im, s->run->im->host);
    const uint32_t dtype = s->call->arg[0].dtype;
    ridge_call call;
    ridge_device *cpu = NULL;
    bool good;

    s->out = calloc((size_t)(s->pairs * s->cols) + 1, ridge_dtype_size(dtype));
    call = ridge_swiglu_fwd(s->pairs, s->cols, (ridge_dtype)dtype, NULL, NULL, s->out);
    call.arg[RIDGE_SWIGLU_FWD_GATE] = all.arg[RIDGE_MOE_SWIGLU_QUANTIZE_GATE];
    call.arg[RIDGE_SWIGLU_FWD_UP] = all.arg[RIDGE_MOE_SWIGLU_QUANTIZE_UP];
    call.arg[RIDGE_SWIGLU_FWD_ROW_SCALE] = all.arg[RIDGE_MOE_SWIGLU_QUANTIZE_ROW_SCALE];
    call.flags = all.flags & (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_INTERLEAVED);
    call.opt.swiglu = all.opt.swiglu_quantize.swiglu;
    good = s->out && ridge_open("cpu:c", &cpu) == RIDGE_OK && ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK;
    ridge_close(cpu);
    return good;
}

/* What swiglu_bwd's C reference stores, which has an oracle of its own. */
static bool run_swiglu_bwd(subject *s)
{
    const ridge_call all = image_call(s->run->im, s->run->im->host);
    const uint32_t dtype = s->call->arg[0].dtype;
    const int64_t rows = s->pairs, cols = s->cols / 2;
    ridge_call call;
    ridge_device *cpu = NULL;
    bool good;

    s->out = calloc((size_t)(rows * s->cols) + 1, ridge_dtype_size(dtype));
    s->drow = calloc((size_t)rows + 1, sizeof *s->drow);
    call = ridge_swiglu_bwd(rows, cols, (ridge_dtype)dtype, NULL, NULL, NULL, s->out,
                            (char *)s->out + (size_t)cols * ridge_dtype_size(dtype));
    call.arg[RIDGE_SWIGLU_BWD_DOUT] = all.arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT];
    call.arg[RIDGE_SWIGLU_BWD_GATE] = all.arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_GATE];
    call.arg[RIDGE_SWIGLU_BWD_UP] = all.arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_UP];
    call.arg[RIDGE_SWIGLU_BWD_DGATE].stride = call.arg[RIDGE_SWIGLU_BWD_DUP].stride = s->cols;
    call.arg[RIDGE_SWIGLU_BWD_ROW_SCALE] = all.arg[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_ROW_SCALE];
    if (s->run->im->length[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW])
        call.arg[RIDGE_SWIGLU_BWD_DROW] = (ridge_operand){s->drow, 0, RIDGE_F32, 0};
    call.flags = all.flags & RIDGE_ACTIVATION;
    call.opt.swiglu = all.opt.swiglu_quantize.swiglu;
    good = s->out && s->drow && ridge_open("cpu:c", &cpu) == RIDGE_OK &&
           (s->cols == 0 || ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK);
    ridge_close(cpu);
    return good;
}

/* drow: as far from swiglu_bwd's as two orders of one sum can be. */
static void check_drow(const subject *s, int64_t row)
{
    const ridge_swiglu_options *o = &s->call->opt.swiglu_quantize.swiglu;
    const double got = oracle_out(s->run, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW, 0, row), want = (double)s->drow[row];
    double size = 0;

    for (int64_t c = 0; c < s->cols / 2; c++) {
        const double a = fabs(oracle_in(s->run, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_GATE, row, c));
        const double b = fabs(oracle_in(s->run, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_UP, row, c)) + fabs((double)o->up_offset);
        const double g = (a + 1) * fabs((double)o->gate_mul); /* no activation is larger, but the square of ReLU */

        size += fabs(oracle_in(s->run, RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DOUT, row, c)) * b * fabs((double)o->down_mul) *
                ((s->call->flags & RIDGE_ACTIVATION) == RIDGE_RELU2 ? g * g : g);
    }
    if (!(size < 1e37) || !isfinite(want)) /* a sum, or an activation, may overflow in between */
        return;
    oracle_note(s->run, fabs(got - want) / (0x1p-24 * ((double)s->cols / 128 + 40) * size + 0x1p-140), "drow", row, 0);
}

static double decode(const subject *s, unsigned code)
{
    const int fraction = s->e5m2 ? 2 : 3, bias = s->e5m2 ? 15 : 7;
    const int exponent = (int)(code & 127) >> fraction, low = (int)code & ((1 << fraction) - 1);
    const double v =
        exponent ? ldexp(low + (1 << fraction), exponent - bias - fraction) : ldexp(low, 1 - bias - fraction);

    return code & 128 ? -v : v;
}

/* The distance of neighbouring codes at v: of one that lies there. */
static double step_at(const subject *s, double v)
{
    int exponent;

    frexp(v, &exponent);
    exponent = exponent - 1 < (s->e5m2 ? -14 : -6) ? (s->e5m2 ? -14 : -6) : exponent - 1;
    return ldexp(1, exponent - (s->e5m2 ? 2 : 3));
}

/* `count` elements share a scale; their codes are in row `row` of operand q from column `at` on. */
static void check_group(const subject *s, const double *x, int64_t count, double scale, int q, int64_t row, int64_t at)
{
    double amax = 0, want;
    bool finite = true;

    for (int64_t i = 0; i < count; i++) {
        finite = finite && isfinite(x[i]);
        amax = fmax(amax, fabs(x[i]));
    }
    amax = fmax(amax, s->floor);
    want = amax == 0 ? 1 : fmax(amax / (s->e5m2 ? 57344.0 : 448.0), 0x1p-126);
    if (!finite) {
        oracle_note(s->run, isnan(scale) ? 0 : INFINITY, "scale of a group that is not finite", row, at);
    } else if (s->pow2) {
        int exponent;

        oracle_note(s->run,
                    frexp(scale, &exponent) == 0.5 && scale >= want * (1 - 0x1p-23) && scale < 2 * want ? 0 : INFINITY,
                    "power-of-two scale", row, at);
    } else {
        oracle_note(s->run, fabs(scale - want) / dtype_ulp(want, RIDGE_F32), "scale", row, at);
    }
    for (int64_t i = 0; i < count; i++) {
        const unsigned code = *(const uint8_t *)oracle_address(s->run->im, s->run->got, q, row, at + i);
        const double v = x[i] / scale, got = decode(s, code);

        if (!finite || (code & 127) >= (s->e5m2 ? 124u : 127u))
            oracle_note(s->run, !finite && code == 0x7f ? 0 : INFINITY, "code that is not finite", row, at + i);
        else
            oracle_note(s->run, fabs(got - v) / (step_at(s, v) * 0.5 * (1 + 0x1p-16) + 0x1p-40), "code", row, at + i);
    }
}

static void check_tile(const subject *s, int64_t first, int64_t rows, int64_t padded)
{
    double x[128];

    for (int64_t i = 0; i < rows && s->backward && s->run->im->length[RIDGE_MOE_SWIGLU_BWD_QUANTIZE_DROW]; i++)
        check_drow(s, first + i);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < s->cols; c += 128) {
            const int64_t n = s->cols - c < 128 ? s->cols - c : 128;

            for (int64_t j = 0; j < n; j++)
                x[j] = element(s, first + i, c + j);
            check_group(s, x, n, oracle_out(s->run, s->q + 1, c / 128, first + i), s->q, first + i, c);
        }
    for (int64_t c = 0; c < s->cols && s->run->im->length[s->q + 2]; c++) {
        for (int64_t i = 0; i < rows; i++)
            x[i] = element(s, first + i, c);
        check_group(s, x, rows, oracle_out(s->run, s->q + 3, padded / 128, c), s->q + 2, c, padded);
        for (int64_t i = rows; i < 128; i++) { /* rows of zeros; all of a group that is not finite is 7F */
            const unsigned code = *(const uint8_t *)oracle_address(s->run->im, s->run->got, s->q + 2, c, padded + i);
            const bool finite = isfinite(oracle_out(s->run, s->q + 3, padded / 128, c));

            oracle_note(s->run, code == (finite ? 0 : 0x7f) ? 0 : INFINITY, "code of padding", c, padded + i);
        }
    }
}

void oracle_experts_quantize(oracle_run *run)
{
    const ridge_call *call = &run->im->call;
    const bool backward = call->op == RIDGE_MOE_SWIGLU_BWD_QUANTIZE;
    const bool swiglu = call->op == RIDGE_MOE_SWIGLU_QUANTIZE || backward;
    const int offsets = backward ? (int)RIDGE_MOE_SWIGLU_BWD_QUANTIZE_OFFSETS
                        : swiglu ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_OFFSETS
                                 : (int)RIDGE_MOE_PERMUTE_QUANTIZE_OFFSETS;
    subject s = {.run = run, .call = call, .swiglu = swiglu, .backward = backward, .slots = swiglu ? 1 : call->dim[1]};
    double begin = 0, padded = 0;

    s.q = backward ? (int)RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q
          : swiglu ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_Q
                   : (int)RIDGE_MOE_PERMUTE_QUANTIZE_Q;
    s.pairs = call->dim[0] * s.slots;
    s.cols = backward ? 2 * call->dim[1] : call->dim[swiglu ? 1 : 2];
    s.experts = call->dim[swiglu ? 2 : 3];
    s.e5m2 = call->arg[s.q].dtype == RIDGE_E5M2;
    s.pow2 = (call->flags & RIDGE_POW2) != 0;
    s.floor = (double)(swiglu ? call->opt.swiglu_quantize.floor : call->opt.quantize.floor);
    if (swiglu && !(backward ? run_swiglu_bwd(&s) : run_swiglu(&s))) {
        oracle_fail(run, "the oracle ran out of memory");
        free(s.out);
        free(s.drow);
        return;
    }
    for (int64_t e = 0; e <= s.experts; e++) {
        const double end = fmin(fmax(oracle_in(run, offsets, 0, e), begin), (double)s.pairs);

        for (double row = begin; row < end && e > 0; row += 128) {
            check_tile(&s, (int64_t)row, (int64_t)fmin(128, end - row), (int64_t)padded);
            padded += 128;
        }
        if (run->im->length[s.q + 4])
            oracle_note(run, oracle_out(run, s.q + 4, 0, e) == padded ? 0 : INFINITY, "offset of the transpose", 0, e);
        begin = end;
    }
    free(s.out);
    free(s.drow);
}
