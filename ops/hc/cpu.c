/* cpu.c: hc_mix and hc_split on the CPU, in C. A token of hc_split is one thread's, of hc_mix a number of a token. */
#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/math/hc.h"
#include "src/math/q8_0.h"

enum { RUN = 2 * RIDGE_HC_PARTS }; /* columns until the partials come again */

/* Adds the products of n columns, RUN at most, to the partials. */
static void add_products(const float *a, const float *b, int64_t n, float *part)
{
    for (int64_t i = 0; i < n / 2; i++) {
        part[i] = ridge_fma(a[2 * i], b[2 * i], part[i]);
        part[i] = ridge_fma(a[2 * i + 1], b[2 * i + 1], part[i]);
    }
    if (n % 2)
        part[n / 2] = ridge_fma(a[n - 1], b[n - 1], part[n / 2]);
}

static float add_partials(float *part)
{
    for (int n = RIDGE_HC_PARTS / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            part[i] = part[2 * i] + part[2 * i + 1];
    return part[0];
}

/* The product of all streams with row i of fn, or with themselves (i < 0). */
static float product(const hc_args *a, const float *res, int64_t i)
{
    const int64_t size = a->fn_dtype == RIDGE_F32 ? 4 : 2;
    float part[RIDGE_HC_PARTS] = {0}, fn[RUN];

    for (int64_t h = 0; h < a->n_hc; h++)
        for (int64_t c = 0; c < a->cols; c += RUN) {
            const int64_t n = ridge_min(RUN, a->cols - c), at = h * a->cols + c;

            if (i >= 0)
                ridge_widen(a->fn_dtype, (const char *)a->fn + (i * a->fn_stride + at) * size, n, fn);
            add_products(i >= 0 ? fn : res + at, res + at, n, part);
        }
    return add_partials(part);
}

static float mix_factor(const hc_args *a, const float *res)
{
    return ridge_rms_factor(product(a, res, -1), a->n_hc * a->cols, a->eps);
}

/* Number i of a token. */
static void mix_number(const hc_args *a, int64_t t, int64_t i)
{
    const float *res = a->res + t * a->res_stride;

    a->mix[t * a->mix_stride + i] = ridge_f32_canonical(product(a, res, i) * mix_factor(a, res));
}

/* The factors of a token out of its numbers z, which it overwrites. */
static void factors(const hc_args *a, int64_t t, float *z, float *pre)
{
    const int n = a->n_hc;
    float *comb = z + 2 * n;

    for (int i = 0; i < a->mixes; i++)
        z[i] = ridge_fma(z[i], a->scale[ridge_hc_scale_of(n, i)], a->base[i]);
    for (int h = 0; h < n; h++)
        pre[h] = ridge_hc_sigmoid(z[h]) + a->hc_eps;
    if (!a->post)
        return;
    for (int h = 0; h < n; h++)
        a->post[t * a->post_stride + h] = ridge_f32_canonical(2.0f * ridge_hc_sigmoid(z[n + h]));
    for (int r = 0; r < n; r++) {
        float *row = comb + r * n, max = row[0], sum = 0.0f;

        for (int c = 1; c < n; c++)
            max = row[c] > max || max != max ? row[c] : max;
        for (int c = 0; c < n; c++) {
            row[c] = ridge_hc_exp(row[c], max);
            sum += row[c];
        }
        for (int c = 0; c < n; c++)
            row[c] = ridge_hc_entry(row[c], sum, a->hc_eps);
    }
    ridge_hc_sinkhorn(comb, n, a->iterations, a->hc_eps);
    for (int i = 0; i < n * n; i++)
        a->comb[t * a->comb_stride + i] = ridge_f32_canonical(comb[i]);
}

/* The sublayer's input in column c before its norm. */
static float input(const hc_args *a, const float *res, const float *pre, int64_t c)
{
    float y = pre[0] * res[c];

    for (int h = 1; h < a->n_hc; h++)
        y = ridge_fma(pre[h], res[h * a->cols + c], y);
    return y;
}

/* Stores n columns from c on, 32 at most. */
static void store(const hc_args *a, int64_t t, int64_t c, int64_t n, const float *y)
{
    const int64_t at = t * a->out_stride + c;

    if (a->floats)
        ridge_narrow(RIDGE_F32, (char *)(a->floats + t * a->floats_stride + c), n, y);
    if (a->out_dtype == RIDGE_I8) {
        uint32_t most = 0;
        float factor;

        for (int64_t i = 0; i < n; i++)
            most = ridge_magnitude(y[i]) > most ? ridge_magnitude(y[i]) : most;
        a->out_scales[t * a->out_ld + c / 32] = ridge_q8_0_x_scale(most, &factor);
        for (int64_t i = 0; i < n; i++)
            ((int8_t *)a->out)[at + i] = (int8_t)ridge_q8_0_x_code(y[i], factor);
    } else {
        ridge_narrow(a->out_dtype, (char *)a->out + at * (a->out_dtype == RIDGE_F32 ? 4 : 2), n, y);
    }
}

static void split_token(const hc_args *a, int64_t t, int64_t unused)
{
    const float *res = a->res + t * a->res_stride;
    float z[RIDGE_MAX_HC * (2 + RIDGE_MAX_HC)], pre[RIDGE_MAX_HC], part[RIDGE_HC_PARTS] = {0}, y[32], factor;

    (void)unused;
    factor = mix_factor(a, res);
    for (int i = 0; i < a->mixes; i++)
        z[i] = ridge_f32_canonical(product(a, res, i) * factor);
    factors(a, t, z, pre);
    for (int64_t c = 0; c < a->cols; c++) {
        const float v = input(a, res, pre, c);

        part[c / 2 % RIDGE_HC_PARTS] = ridge_fma(v, v, part[c / 2 % RIDGE_HC_PARTS]);
    }
    factor = ridge_rms_factor(add_partials(part), a->cols, a->eps);
    for (int64_t c = 0; c < a->cols; c += 32) {
        const int64_t n = ridge_min(32, a->cols - c);

        for (int64_t i = 0; i < n; i++) {
            y[i] = input(a, res, pre, c + i) * factor;
            y[i] = a->w ? y[i] * ridge_load_element(a->w_dtype, a->w, c + i) : y[i];
        }
        store(a, t, c, n, y);
    }
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const one)(const hc_args *, int64_t, int64_t) =
        bound->call.op == RIDGE_HC_MIX ? mix_number : split_token;
    const hc_args a = hc_args_of(&bound->call);
    const int64_t items = bound->call.op == RIDGE_HC_MIX ? a.mixes : 1;
    ridge_team *team;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    team = ridge_team_begin((double)(a.tokens * a.mixes * a.n_hc * a.cols) / 1500, a.tokens * items);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < a.tokens * items; i++)
            one(&a, i / items, i % items);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)device, (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * 2e-2;
}

#define ROW(op_name, op_id)                                                                                   \
    {                                                                                                         \
        .name = "cpu." op_name ".c", .op = op_id, .arch_min = RIDGE_ARCH_C, .arch_max = RIDGE_ARCH_AVX512,    \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE, .cost = cost, \
        .launch = launch                                                                                      \
    }

static const ridge_kernel rows[] = {
    ROW("hc_mix", RIDGE_HC_MIX),
    ROW("hc_split", RIDGE_HC_SPLIT),
};

const ridge_kernel_list ridge_cpu_hc = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
