/* train.c: the cases and the float64 oracles of add_rms_norm, rms_norm_bwd and rope. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "norm.h"

typedef struct shape {
    const char *dims;
    test_case layout;
} shape;

static const shape row_shapes[] = {
    {"rows=0 cols=64", {.fill = FILL_NORMAL}},
    {"rows=3 cols=0", {.fill = FILL_NORMAL}},
    {"rows=1 cols=32", {.fill = FILL_NORMAL}},
    {"rows=5 cols=4096", {.fill = FILL_NORMAL, .slices = true}},
    {"rows=3 cols=255", {.fill = FILL_NORMAL, .pad = 8, .slices = true}},
    {"rows=4 cols=257", {.fill = FILL_EDGE}},
    {"rows=6 cols=16384", {.fill = FILL_NORMAL}},
    {"rows=6 cols=1031", {.fill = FILL_GROUPS, .pad = 3, .shift = 1}},
    {"rows=4 cols=544", {.fill = FILL_NORMAL, .alias = true}},
    {"rows=33 cols=1536", {.fill = FILL_NORMAL, .repeats = 100}},
    {"rows=300 cols=96", {.fill = FILL_NORMAL, .slices = true}},
    {"rows=19 cols=4352", {.fill = FILL_GROUPS}},
    {"rows=2 cols=8448", {.fill = FILL_NORMAL}},
    {"rows=2100 cols=24", {.fill = FILL_NORMAL}},
    {"rows=9 cols=3200", {.fill = FILL_GROUPS, .alias = true}},
    {"rows=2 cols=130", {.fill = FILL_NORMAL, .shift = 1}},
    {"rows=35 cols=2304", {.fill = FILL_NORMAL, .pad = 8}},
    {"rows=17 cols=288", {.fill = FILL_SPECIAL, .slices = true}},
    {"rows=9 cols=1120", {.fill = FILL_SPECIAL}},
};

static const shape rope_shapes[] = {
    {"tokens=0 heads=2 head_dim=64 n_rot=32", {.fill = FILL_NORMAL}},
    {"tokens=3 heads=0 head_dim=64 n_rot=32", {.fill = FILL_NORMAL}},
    {"tokens=1 heads=1 head_dim=2 n_rot=2", {.fill = FILL_NORMAL}},
    {"tokens=5 heads=8 head_dim=128 n_rot=128", {.fill = FILL_NORMAL, .slices = true}},
    {"tokens=9 heads=3 head_dim=66 n_rot=18", {.fill = FILL_NORMAL, .pad = 8, .slices = true}},
    {"tokens=2 heads=4 head_dim=128 n_rot=128", {.fill = FILL_EDGE}},
    {"tokens=3 heads=2 head_dim=514 n_rot=0", {.fill = FILL_NORMAL}},
    {"tokens=6 heads=5 head_dim=70 n_rot=22", {.fill = FILL_GROUPS, .pad = 3, .shift = 1}},
    {"tokens=4 heads=3 head_dim=192 n_rot=64", {.fill = FILL_NORMAL, .alias = true}},
    {"tokens=17 heads=4 head_dim=256 n_rot=64", {.fill = FILL_NORMAL, .repeats = 100}},
    {"tokens=300 heads=2 head_dim=64 n_rot=48", {.fill = FILL_NORMAL, .slices = true}},
    {"tokens=2 heads=2 head_dim=2100 n_rot=600", {.fill = FILL_NORMAL}},
    {"tokens=40 heads=33 head_dim=64 n_rot=64", {.fill = FILL_NORMAL, .alias = true}},
    {"tokens=7 heads=2 head_dim=96 n_rot=80", {.fill = FILL_NORMAL, .pad = 8}},
    {"tokens=17 heads=3 head_dim=64 n_rot=32", {.fill = FILL_SPECIAL, .slices = true}},
    {"tokens=9 heads=2 head_dim=300 n_rot=160", {.fill = FILL_SPECIAL}},
};

/* The first ones are of one dtype, as a call whose outputs lie on its inputs has to be. */
enum { ONE_DTYPE = 3 };

static const char *const add_forms[] = {
    "x=bf16 residual=bf16 w=bf16 out=bf16",
    "x=f32 residual=f32 w=f32 out=f32",
    "x=f16 residual=f16 w=f16 out=f16 eps=0.001",
    "x=bf16 residual=bf16 w=bf16 out=e4m3",
    "x=f32 residual=f32 w=f32 out=i8",
    "x=bf16 residual=f32 w=f32 out=bf16",
    "x=bf16 residual=0 w=0 out=e5m2 pow2=1",
    "x=f16 residual=0 w=bf16 out=f32",
    "x=bf16 residual=f16 sum=0 w=f16 out=e4m3 pow2=1 eps=0",
    "x=f32 residual=0 w=bf16 out=i8",
    "x=f32 residual=0 w=f32 out=i8 weights_const=1",
    "x=f32 residual=f32 sum=0 w=0 out=f32",
    "x=bf16 residual=bf16 sum=0 w=0 out=i8",
    NULL,
};

static const char *const bwd_forms[] = {
    "dout=bf16 x=bf16 w=bf16 dx=bf16 dw=0 dsum=bf16",
    "dout=f32 x=f32 w=f32 dx=f32 dw=0 dsum=f32",
    "dout=f16 x=f16 w=f16 dx=f16 dw=0 eps=0.001",
    "dout=bf16 x=bf16 w=bf16 dx=bf16 dw=bf16 dsum=bf16",
    "dout=bf16 x=bf16 w=bf16 dx=0 dw=f32",
    "dout=f32 x=f32 w=f32 dx=f32 dw=f32",
    "dout=bf16 x=f32 w=0 dx=bf16 dw=f16 dsum=f16",
    "dout=f16 x=bf16 w=f32 dx=f32 dw=f32 dsum=f32 eps=0",
    NULL,
};

static const char *const rope_forms[] = {
    "x=bf16 out=bf16 halves=1",
    "x=f32 out=f32",
    "x=f16 out=f16 halves=1 inverse=1 mscale=1.25",
    "x=bf16 out=bf16 pos=i64",
    "x=bf16 out=f32 halves=1 pos=i64",
    "x=f32 out=f16 inverse=1",
    NULL,
};

void norm_train_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    const bool rope = op->id == RIDGE_ROPE;
    const char *const *forms = rope ? rope_forms : op->id == RIDGE_ADD_RMS_NORM ? add_forms : bwd_forms;
    const shape *at = rope ? rope_shapes : row_shapes;
    const int shapes = (int)(rope ? sizeof rope_shapes / sizeof *at : sizeof row_shapes / sizeof *at);
    char text[256];

    for (int i = 0; i < shapes; i++)
        for (int form = 0; forms[form]; form++) {
            test_case layout = at[i].layout;
            int64_t cols;

            if ((level == CASES_QUICK && (i + form) % 3) || (layout.alias && form >= ONE_DTYPE))
                continue;
            cols = rope ? 0 : atoll(strstr(at[i].dims, "cols=") + 5);
            if (strstr(forms[form], "out=i8") && cols % 32)
                continue;
            layout.slices = layout.slices && (op->id != RIDGE_RMS_NORM_BWD || strstr(forms[form], "dw=0"));
            snprintf(text, sizeof text, "%s %s", at[i].dims, forms[form]);
            cases_add(list, op, text, layout);
        }
}

void norm_judge(oracle_run *s, int out, int64_t r, int64_t j, estimate e)
{
    const uint32_t dtype = s->im->call.arg[out].dtype;
    const double bound = e.error + 0.5 * dtype_ulp(e.value, dtype) * (1 + 0x1p-20);

    if (isfinite(e.value) && isnan(e.error))
        return;
    if (!isnan(e.value) && isnan(oracle_out(s, out, r, j)))
        oracle_note(s, INFINITY, "NaN where a number belongs", r, j);
    else if (dtype != RIDGE_F16 || isnan(e.value) || !(fabs(e.value) + e.error < 0x1p120))
        oracle_estimate(s, out, r, j, e);
    else
        oracle_note(s, oracle_ratio(oracle_out(s, out, r, j), e.value, bound, dtype), "f16 result", r, j);
}

/* ---------------------------------------------------------------------------------------------------- add_rms_norm */

/* Beyond these sizes f32 may overflow or lose bits where float64 does not; infinity and NaN are the same in both. */
static bool tame(double v)
{
    return v == 0 || !isfinite(v) || (fabs(v) > 0x1p-40 && fabs(v) < 0x1p40);
}

/* What is normed: x, or x + residual rounded as sum is. */
static double normed_input(const oracle_run *s, int64_t r, int64_t j)
{
    const uint32_t dtype = s->im->call.arg[RIDGE_ADD_RMS_NORM_RESIDUAL].dtype;
    double v = oracle_in(s, RIDGE_ADD_RMS_NORM_X, r, j);
    float rounded;

    if (!s->im->length[RIDGE_ADD_RMS_NORM_RESIDUAL])
        return v;
    v += oracle_in(s, RIDGE_ADD_RMS_NORM_RESIDUAL, r, j);
    dtype_store(&rounded, dtype, (float)v);
    return dtype_load(&rounded, dtype);
}

/* The factor of a row and its relative error; that is NaN where f32 cannot be followed. */
static estimate factor_of(const double *v, int64_t n, double eps)
{
    bool good = true;
    double sum = 0;

    for (int64_t j = 0; j < n; j++) {
        sum += v[j] * v[j];
        good = good && tame(v[j]);
    }
    if (!good && !isnan(sum))
        return (estimate){0, NAN};
    return (estimate){1 / sqrt(sum / (double)n + eps), ((double)n / 512 + 7) * 0x1p-23};
}

/* One group of codes: their scale, then each code within half a step of its value over that scale. */
static void check_codes(oracle_run *s, int64_t r, int64_t first, int64_t n, const estimate *y)
{
    const uint32_t dtype = s->im->call.arg[RIDGE_ADD_RMS_NORM_OUT].dtype;
    const bool q8_0 = dtype == RIDGE_I8, pow2 = s->im->call.flags & RIDGE_POW2;
    const double most = q8_0 ? 127 : dtype == RIDGE_E4M3 ? 448 : 57344;
    const double scale = q8_0 ? oracle_out(s, RIDGE_ADD_RMS_NORM_SCALE, r, first / 32)
                              : oracle_out(s, RIDGE_ADD_RMS_NORM_SCALE, first / 128, r);
    double amax = 0, error = 0;

    for (int64_t i = 0; i < n; i++) {
        if (isfinite(y[i].value) && isnan(y[i].error))
            return;
        amax = isfinite(amax) && isfinite(y[i].value) ? fmax(amax, fabs(y[i].value)) : NAN;
        error = fmax(error, y[i].error);
    }
    if (isnan(amax)) {
        oracle_note(s, isnan(scale) ? 0 : INFINITY, "a scale where NaN belongs", r, first);
        for (int64_t i = 0; i < n; i++)
            oracle_note(s, q8_0 == (oracle_out(s, RIDGE_ADD_RMS_NORM_OUT, r, first + i) == 0) ? 0 : INFINITY,
                        "code of NaN", r, first + i);
        return;
    }
    if (amax == 0)
        oracle_note(s, scale == (q8_0 ? 0 : 1) ? 0 : INFINITY, "scale of zeros", r, first);
    else if (pow2)
        oracle_note(s,
                    scale * most >= amax - error && scale * most < 2 * (amax + error) * (1 + 0x1p-22) &&
                            frexp(scale, &(int){0}) == 0.5
                        ? 0
                        : INFINITY,
                    "scale as a power of two", r, first);
    else
        oracle_note(s, fabs(scale - amax / most) / (error / most + 0x1p-22 * amax / most), "scale", r, first);
    for (int64_t i = 0; i < n && amax > 0; i++) {
        const double v = y[i].value, got = oracle_out(s, RIDGE_ADD_RMS_NORM_OUT, r, first + i) * scale;
        const int mantissa = dtype == RIDGE_E4M3 ? 3 : 2, least = dtype == RIDGE_E4M3 ? -6 : -14;
        const double size = fmax(fabs(v / scale), ldexp(1, least));
        const double step = q8_0 ? 1 : ldexp(1, ilogb(size * (1 + 0x1p-20)) - mantissa);

        oracle_note(s, fabs(got - v) / (0.5 * step * scale * (1 + 0x1p-18) + y[i].error + 0x1p-20 * fabs(v)), "code", r,
                    first + i);
    }
}

void norm_add_oracle(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    const int64_t rows = call->dim[0], n = call->dim[1];
    const bool codes = s->im->length[RIDGE_ADD_RMS_NORM_SCALE];
    const int64_t group = call->arg[RIDGE_ADD_RMS_NORM_OUT].dtype == RIDGE_I8 ? 32 : 128;
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    estimate *y = malloc((size_t)(n + 1) * sizeof *y);

    if (!v || !y)
        oracle_fail(s, "out of memory");
    for (int64_t r = 0; r < rows && v && y; r++) {
        estimate factor;

        for (int64_t j = 0; j < n; j++) {
            v[j] = normed_input(s, r, j);
            if (s->im->length[RIDGE_ADD_RMS_NORM_SUM])
                norm_judge(s, RIDGE_ADD_RMS_NORM_SUM, r, j,
                           (estimate){oracle_in(s, RIDGE_ADD_RMS_NORM_X, r, j) +
                                          oracle_in(s, RIDGE_ADD_RMS_NORM_RESIDUAL, r, j),
                                      0x1p-24 * fabs(v[j])});
        }
        factor = factor_of(v, n, (double)call->opt.norm.eps);
        for (int64_t j = 0; j < n; j++) {
            const double w = s->im->length[RIDGE_ADD_RMS_NORM_W] ? oracle_in(s, RIDGE_ADD_RMS_NORM_W, 0, j) : 1;

            y[j].value = v[j] * factor.value * w;
            y[j].error = fabs(y[j].value) * (factor.error + 0x1p-23) + 0x1p-148 * (1 + fabs(w));
            if (isnan(factor.error) || !tame(w))
                y[j] = (estimate){0, NAN};
            if (!codes)
                norm_judge(s, RIDGE_ADD_RMS_NORM_OUT, r, j, y[j]);
        }
        for (int64_t j = 0; j < n && codes; j += group)
            check_codes(s, r, j, n - j < group ? n - j : group, y + j);
    }
    free(v);
    free(y);
}

/* ---------------------------------------------------------------------------------------------------- rms_norm_bwd */

/* What a row gives: 1/rms, mean(g x'), the sum of the sizes of its terms; wild where f32 cannot be followed. */
typedef struct bwd_row {
    double r, mean, size;
    bool wild, nan;
} bwd_row;

static double bwd_in(const oracle_run *s, int arg, int64_t r, int64_t j, double absent)
{
    return s->im->length[arg] ? oracle_in(s, arg, r, j) : absent;
}

static bwd_row look_at(const oracle_run *s, int64_t row)
{
    const int64_t n = s->im->call.dim[1];
    bwd_row b = {0, 0, 0, false, false};
    double squares = 0;

    for (int64_t j = 0; j < n; j++) {
        const double x = oracle_in(s, RIDGE_RMS_NORM_BWD_X, row, j),
                     dout = oracle_in(s, RIDGE_RMS_NORM_BWD_DOUT, row, j);
        const double w = bwd_in(s, RIDGE_RMS_NORM_BWD_W, 0, j, 1);

        b.nan = b.nan || isnan(x) || isnan(dout * w);
        b.wild = b.wild || !tame(x) || !tame(dout) || !tame(w);
        squares += x * x;
        b.mean += dout * w * x;
        b.size += fabs(dout * w * x);
    }
    b.r = 1 / sqrt(squares / (double)n + (double)s->im->call.opt.norm.eps);
    b.mean *= b.r / (double)n;
    b.size *= b.r / (double)n;
    return b;
}

void norm_bwd_oracle(oracle_run *s)
{
    const int64_t rows = s->im->call.dim[0], n = s->im->call.dim[1];
    const double unit = ((double)n / 512 + 16) * 0x1p-23;
    double *sum = calloc((size_t)(2 * n + 1), sizeof *sum), *size = sum + n;
    bool wild = false;

    for (int64_t r = 0; r < rows && sum; r++) {
        const bwd_row b = look_at(s, r);

        wild = wild || b.wild;
        for (int64_t j = 0; j < n; j++) {
            const double x = oracle_in(s, RIDGE_RMS_NORM_BWD_X, r, j) * b.r;
            const double dout = oracle_in(s, RIDGE_RMS_NORM_BWD_DOUT, r, j),
                         g = dout * bwd_in(s, RIDGE_RMS_NORM_BWD_W, 0, j, 1);
            const double more = bwd_in(s, RIDGE_RMS_NORM_BWD_DSUM, r, j, 0), dx = b.r * (g - x * b.mean);

            sum[j] += dout * x;
            size[j] += fabs(dout * x);
            if (!s->im->length[RIDGE_RMS_NORM_BWD_DX] || (b.wild && !b.nan))
                continue;
            norm_judge(s, RIDGE_RMS_NORM_BWD_DX, r, j,
                       (estimate){b.nan ? NAN : dx + more, b.r * (fabs(g) + fabs(x) * b.size) * unit +
                                                               0x1p-24 * (fabs(dx) + fabs(more)) + 0x1p-140});
        }
    }
    for (int64_t j = 0; j < n && s->im->length[RIDGE_RMS_NORM_BWD_DW] && sum && !wild; j++)
        norm_judge(s, RIDGE_RMS_NORM_BWD_DW, 0, j,
                   (estimate){sum[j], size[j] * (unit + ((double)rows / 2048 + 24) * 0x1p-24) + 0x1p-140});
    if (!sum)
        oracle_fail(s, "out of memory");
    free(sum);
}

/* ------------------------------------------------------------------------------------------------------------ rope */

static void check_pair(oracle_run *s, int64_t t, int64_t j0, int64_t j1, int64_t i)
{
    const ridge_call *call = &s->im->call;
    const long double angle = (long double)(oracle_in(s, RIDGE_ROPE_POS, 0, t) * oracle_in(s, RIDGE_ROPE_FREQS, 0, i));
    const double m = (double)call->opt.norm.mscale, c = (double)cosl(angle) * m, sine = (double)sinl(angle) * m;
    const double turn = call->flags & RIDGE_ROPE_INVERSE ? -sine : sine;
    const double x0 = oracle_in(s, RIDGE_ROPE_X, t, j0), x1 = oracle_in(s, RIDGE_ROPE_X, t, j1);
    estimate y0 = {x0 * c - x1 * turn, 0x1p-22 * (fabs(x0 * c) + fabs(x1 * turn)) + 0x1p-148};
    estimate y1 = {x0 * turn + x1 * c, 0x1p-22 * (fabs(x0 * turn) + fabs(x1 * c)) + 0x1p-148};

    if (fabsl(angle) >= 0x1p47L)
        y0.value = y1.value = NAN;
    norm_judge(s, RIDGE_ROPE_OUT, t, j0, y0);
    norm_judge(s, RIDGE_ROPE_OUT, t, j1, y1);
}

void norm_rope_oracle(oracle_run *s)
{
    const ridge_call *call = &s->im->call;
    const int64_t n = call->dim[2], n_rot = call->dim[3];
    const bool halves = call->flags & RIDGE_ROPE_HALVES;

    for (int64_t t = 0; t < call->dim[0]; t++)
        for (int64_t first = 0; first < call->dim[1] * n; first += n) {
            for (int64_t i = 0; i < n_rot / 2; i++)
                check_pair(s, t, first + (halves ? i : 2 * i), first + (halves ? i + n_rot / 2 : 2 * i + 1), i);
            for (int64_t j = first + n_rot; j < first + n; j++)
                norm_judge(s, RIDGE_ROPE_OUT, t, j, (estimate){oracle_in(s, RIDGE_ROPE_X, t, j), 0});
        }
}
