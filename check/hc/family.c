/* family.c: the cases, inputs and float64 oracle of hc_mix and hc_split, and the faults that they may have. The oracle
 * divides rows and columns of the mixture by their sums, as the definition says, where the kernels keep factors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/family.h"

extern const ridge_family ridge_family_hc;

enum { MOST = 16, MOST_MIXES = MOST * (2 + MOST) };

static void mix_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"tokens=0 cols=64 n_hc=4 mixes=24", {.fill = FILL_NORMAL}},
        {"tokens=3 cols=64 n_hc=4 mixes=0", {.fill = FILL_NORMAL}},
        {"tokens=1 cols=1 n_hc=1 mixes=1", {.fill = FILL_NORMAL}},
        {"tokens=2 cols=4096 n_hc=4 mixes=24", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=9 cols=288 n_hc=4 mixes=24", {.fill = FILL_SPECIAL, .pad = 8}},
        {"tokens=15 cols=64 n_hc=4 mixes=2", {.fill = FILL_GROUPS}},
        {"tokens=3 cols=4099 n_hc=3 mixes=7", {.fill = FILL_NORMAL, .pad = 3, .shift = 1}},
        {"tokens=2 cols=9000 n_hc=2 mixes=5", {.fill = FILL_NORMAL}},
        {"tokens=5 cols=520 n_hc=16 mixes=37", {.fill = FILL_NORMAL, .slices = true, .repeats = 50}},
    };
    static const char *const dtypes[] = {"f16", "bf16", "f32"};
    char text[128];

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int form = 0; form < 3; form++) {
            if (level == CASES_QUICK && (i + form) % 3)
                continue;
            snprintf(text, sizeof text, "%s fn=%s%s", shape[i].shape, dtypes[form], i == 3 ? " eps=0.25" : "");
            cases_add(list, op, text, shape[i].layout);
        }
}

static void hc_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"tokens=0 cols=64 n_hc=4", {.fill = FILL_NORMAL}},
        {"tokens=1 cols=32 n_hc=1", {.fill = FILL_NORMAL}},
        {"tokens=1 cols=4096 n_hc=4", {.fill = FILL_NORMAL, .repeats = 100}},
        {"tokens=17 cols=4096 n_hc=4", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=16 cols=4096 n_hc=4", {.fill = FILL_SPECIAL}},
        {"tokens=5 cols=3616 n_hc=4", {.fill = FILL_NORMAL, .pad = 32}},
        {"tokens=3 cols=288 n_hc=4", {.fill = FILL_NORMAL, .slices = true}},
        {"tokens=3 cols=288 n_hc=4", {.fill = FILL_NORMAL, .pad = 1, .shift = 1}},
        {"tokens=9 cols=7168 n_hc=4", {.fill = FILL_SPECIAL, .slices = true}},
        {"tokens=4 cols=9248 n_hc=2", {.fill = FILL_NORMAL}},
        {"tokens=6 cols=96 n_hc=16", {.fill = FILL_NORMAL, .pad = 8}},
        {"tokens=2 cols=512 n_hc=3", {.fill = FILL_NORMAL}},
        {"tokens=70 cols=1024 n_hc=4", {.fill = FILL_UNIT}},
    };
    static const char *const forms[] = {
        "fn=f16 out=i8 floats=1",    "fn=bf16 out=f32 w=bf16 iterations=7 hc_eps=0.01",
        "fn=f32 out=bf16 eps=0.01",  "fn=f16 out=f32 post=0",
        "fn=bf16 out=i8 post=0 w=0", "fn=f32 out=f32 iterations=1",
    };
    char text[160];

    if (op->id == RIDGE_HC_MIX) {
        mix_cases(op, level, list);
        return;
    }
    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int form = 0; form < (int)(sizeof forms / sizeof forms[0]); form++) {
            if (level == CASES_QUICK && (i + form) % 4)
                continue;
            snprintf(text, sizeof text, "%s %s", shape[i].shape, forms[form]);
            cases_add(list, op, text, shape[i].layout);
        }
    if (level != CASES_QUICK)
        cases_add(list, op, "tokens=2 cols=513 n_hc=5 fn=f16 out=f32 w=0", (test_case){.fill = FILL_NORMAL});
}

/* fn in the size of a model's: mix is then about N(0,2). */
static bool hc_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    int64_t rows, cols;

    (void)c;
    if (strcmp(op->arg[arg].name, "fn"))
        return false;
    op->extent(&im->call, arg, &rows, &cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++)
            dtype_store((void *)oracle_address(im, im->host, arg, r, j), im->call.arg[arg].dtype,
                        2 * random_normal(&seed) / sqrtf((float)cols));
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- oracle */

/* Sums of n terms in f32, of their sizes' sum; the longest chain of additions. */
static double rounding(int64_t streams, int64_t cols)
{
    return ((double)(streams * (cols / 2048 + 2)) + 16) * 0x1p-24;
}

/* Number i of token t. */
static estimate mix_of(const oracle_run *s, int fn, int64_t t, int64_t i)
{
    const ridge_call *call = &s->im->call;
    const int64_t n = call->dim[1] * call->dim[2];
    double dot = 0, size = 0, square = 0, factor;

    for (int64_t j = 0; j < n; j++) {
        const double x = oracle_in(s, 0, t, j), term = oracle_in(s, fn, i, j) * x;

        dot += term;
        size += fabs(term);
        square += x * x;
    }
    if (isfinite(square) && !(square < 0x1p120 && size < 0x1p120)) /* f32 may overflow where float64 does not */
        return (estimate){0, INFINITY};
    factor = 1 / sqrt(square / (double)n + (double)call->opt.hc.eps);
    return (estimate){dot * factor, 2 * rounding(call->dim[2], call->dim[1]) * size * factor + 0x1p-140};
}

static void mix_oracle(oracle_run *s)
{
    for (int64_t t = 0; t < s->im->call.dim[0]; t++)
        for (int64_t i = 0; i < s->im->call.dim[3]; i++)
            oracle_estimate(s, RIDGE_HC_MIX_OUT, t, i, mix_of(s, RIDGE_HC_MIX_FN, t, i));
}

static estimate sigmoid(estimate z, double factor, double more)
{
    const double v = oracle_sigmoid(z.value);

    return (estimate){factor * v + more, factor * (0.25 * z.error + 0x1p-21 * v) + 0x1p-23 * more};
}

/* The mixture of a token, z its n * n numbers. */
static void check_mixture(oracle_run *s, int64_t t, int n, const estimate *z)
{
    const double eps = (double)s->im->call.opt.hc.hc_eps;
    const int64_t iterations = s->im->call.opt.hc.iterations;
    double k[MOST * MOST], worst = 0;

    for (int r = 0; r < n; r++) {
        double max = -INFINITY, sum = 0, error = 0;

        for (int c = 0; c < n; c++) {
            max = isnan(z[r * n + c].value) || isnan(max) ? NAN : fmax(max, z[r * n + c].value);
            error = fmax(error, z[r * n + c].error);
        }
        for (int c = 0; c < n; c++) {
            const double v = z[r * n + c].value, d = fabs(v - max);

            k[r * n + c] = v == max ? 1 : exp(v - max);
            sum += k[r * n + c];
            if (d < 60) /* a smaller one is nothing beside eps */
                worst = fmax(worst, 2 * error + d * 0x1p-23);
        }
        for (int c = 0; c < n; c++)
            k[r * n + c] = k[r * n + c] / sum + eps;
    }
    for (int64_t step = 0; step < 2 * iterations - 1; step++)
        for (int i = 0; i < n; i++) {
            const int first = step % 2 ? i * n : i, stride = step % 2 ? 1 : n;
            double sum = eps;

            for (int j = 0; j < n; j++)
                sum += k[first + j * stride];
            for (int j = 0; j < n; j++)
                k[first + j * stride] /= sum;
        }
    worst = (double)(4 * iterations + 4) * (expm1(worst) + 0x1p-21);
    for (int i = 0; i < n * n; i++)
        oracle_estimate(s, RIDGE_HC_SPLIT_COMB, t, i, (estimate){k[i], k[i] * worst});
}

static void check_block(oracle_run *s, int64_t t, int64_t first, const estimate *y)
{
    const double scale = oracle_out(s, RIDGE_HC_SPLIT_OUT_SCALES, t, first / 32);
    double amax = 0, error = 0;

    for (int i = 0; i < 32; i++) {
        if (isnan(y[i].error))
            return;
        amax = isfinite(amax) && isfinite(y[i].value) ? fmax(amax, fabs(y[i].value)) : NAN;
        error = fmax(error, y[i].error);
    }
    if (isnan(amax))
        oracle_note(s, isnan(scale) ? 0 : INFINITY, "a scale where NaN belongs", t, first);
    else
        oracle_note(s, fabs(127 * scale - amax) / (error + 0x1p-21 * amax + 0x1p-118), "scale", t, first);
    for (int i = 0; i < 32; i++) {
        const double code = oracle_out(s, RIDGE_HC_SPLIT_OUT, t, first + i);

        if (isnan(amax) || amax < 0x1p-110)
            oracle_note(s, code == 0 ? 0 : INFINITY, "code of nothing", t, first + i);
        else
            oracle_note(s, fabs(code * scale - y[i].value) / ((0.5 + 0x1p-14) * scale + error), "code", t, first + i);
    }
}

/* The streams weighted by pre, normed: out of a token. y has room for cols estimates. */
static void check_out(oracle_run *s, int64_t t, const estimate *pre, estimate *y)
{
    const ridge_call *call = &s->im->call;
    const int64_t cols = call->dim[1], n = call->dim[2];
    const bool codes = call->arg[RIDGE_HC_SPLIT_OUT].dtype == RIDGE_I8;
    double square = 0, slack = 0, factor, error;

    for (int64_t c = 0; c < cols; c++) {
        double size = 0;

        y[c] = (estimate){0, 0x1p-140};
        for (int64_t h = 0; h < n; h++) {
            const double x = oracle_in(s, RIDGE_HC_SPLIT_RES, t, h * cols + c);

            y[c].value += pre[h].value * x;
            y[c].error += pre[h].error * fabs(x);
            size += fabs(pre[h].value * x);
        }
        y[c].error += (double)n * 0x1p-23 * size;
        square += y[c].value * y[c].value;
        slack += (2 * fabs(y[c].value) + y[c].error) * y[c].error;
    }
    factor = 1 / sqrt(square / (double)cols + (double)call->opt.hc.eps);
    error = isfinite(square) ? 0.5 * slack / (square + (double)cols * (double)call->opt.hc.eps) + rounding(1, cols) : 0;
    for (int64_t c = 0; c < cols; c++) {
        const double w = s->im->length[RIDGE_HC_SPLIT_W] ? oracle_in(s, RIDGE_HC_SPLIT_W, 0, c) : 1;
        const double value = y[c].value * factor * w;

        if (isinf(w) && fabs(y[c].value) <= y[c].error) /* 0 times infinity, or another number */
            y[c] = (estimate){0, NAN};
        else
            y[c] = (estimate){value, isfinite(value) && factor > 0
                                         ? fabs(w) * factor * y[c].error + fabs(value) * (1.01 * error + 0x1p-22)
                                         : 0};
        if (isnan(y[c].error))
            continue;
        if (!codes)
            oracle_estimate(s, RIDGE_HC_SPLIT_OUT, t, c, y[c]);
        if (s->im->length[RIDGE_HC_SPLIT_FLOATS])
            oracle_estimate(s, RIDGE_HC_SPLIT_FLOATS, t, c, y[c]);
    }
    for (int64_t c = 0; c < cols && codes; c += 32)
        check_block(s, t, c, y + c);
}

static void split_oracle(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    const int n = (int)call->dim[2];
    const bool all = s->im->length[RIDGE_HC_SPLIT_POST] != 0;
    estimate *y = malloc((size_t)call->dim[1] * sizeof *y), z[MOST_MIXES], pre[MOST];

    if (!y)
        oracle_fail(s, "out of memory");
    for (int64_t t = 0; t < call->dim[0] && y; t++) {
        for (int i = 0; i < (all ? n * (2 + n) : n); i++) {
            const double scale = oracle_in(s, RIDGE_HC_SPLIT_SCALE, 0, i < n ? 0 : i < 2 * n ? 1 : 2);
            const double base = oracle_in(s, RIDGE_HC_SPLIT_BASE, 0, i);
            const estimate mix = mix_of(s, RIDGE_HC_SPLIT_FN, t, i);

            z[i].value = mix.value * scale + base;
            z[i].error =
                isfinite(z[i].value) ? fabs(scale) * mix.error + 0x1p-23 * (fabs(mix.value * scale) + fabs(base)) : 0;
        }
        for (int h = 0; h < n; h++) {
            pre[h] = sigmoid(z[h], 1, (double)call->opt.hc.hc_eps);
            if (all)
                oracle_estimate(s, RIDGE_HC_SPLIT_POST, t, h, sigmoid(z[n + h], 2, 0));
        }
        if (all)
            check_mixture(s, t, n, z + 2 * n);
        check_out(s, t, pre, y);
    }
    free(y);
}

static void hc_oracle(oracle_run *run)
{
    if (run->im->call.op == RIDGE_HC_MIX)
        mix_oracle(run);
    else
        split_oracle(run);
}

static const suite_row suites[] = {
    {"hc", "hc_mix tokens=1 cols=4096 n_hc=4 mixes=24"},        {"hc", "hc_split tokens=1 cols=4096 n_hc=4 out=i8"},
    {"hc", "hc_split tokens=1 cols=4096 n_hc=4 out=i8 post=0"}, {"hc", "hc_split tokens=4 cols=4096 n_hc=4 out=i8"},
    {"hc", "hc_split tokens=16 cols=4096 n_hc=4 out=i8"},       {NULL, NULL},
};

static const char *const fault_problems[] = {
    "hc_mix tokens=5 cols=264 n_hc=4 mixes=24 eps=0.5",
    "hc_split tokens=5 cols=288 n_hc=4 out=i8 floats=1 eps=0.5",
    NULL,
};

static ridge_status leaves_out_a_round(const faulty_run *r)
{
    ridge_call less = *r->call;

    less.opt.hc.iterations = 2;
    return fault_run_changed(r, &less);
}

#define OPTION(field) .fault = fault_changes_option, .option = offsetof(ridge_hc_options, field)

static const planted_fault faults[] = {
    {.name = "forgets eps", OPTION(eps), .value = 0},
    {.name = "has another eps of the mixture", .op = RIDGE_HC_SPLIT, OPTION(hc_eps), .value = 0.01f},
    {.name = "ends the mixture early", .fault = leaves_out_a_round, .op = RIDGE_HC_SPLIT},
    {.name = "takes the next token's streams", .fault = fault_takes_the_next, .operand = "res"},
    {.name = "takes the next scale", .fault = fault_takes_the_next, .operand = "scale"},
    {.name = "takes the next number's base", .fault = fault_takes_the_next, .operand = "base"},
    {.name = "takes the next column's weight", .fault = fault_takes_the_next, .operand = "w"},
    FAULT_SWALLOWS_A_NAN,
    {0},
};

const check_family check_hc = {
    .family = &ridge_family_hc,
    .cases = hc_cases,
    .oracle = hc_oracle,
    .fill = hc_fill,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
