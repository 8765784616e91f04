/* cpu_reference.c: the C reference of linear_ce_*, ce_fwd and ce_bwd: float64, one element at a time, straight from
 * docs/numerics.md. No logits are kept: each is computed again where it is needed. */
#include <math.h>

#include "cpu.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "phase.h"

static double load(const unsigned char *base, int64_t i, uint32_t dtype)
{
    switch (dtype) {
    case RIDGE_BF16:
        return (double)ridge_f32_from_bf16(((const uint16_t *)(const void *)base)[i]);
    case RIDGE_F16:
        return (double)ridge_f32_from_f16(((const uint16_t *)(const void *)base)[i]);
    default:
        return (double)((const float *)(const void *)base)[i];
    }
}

static void store(unsigned char *base, int64_t i, uint32_t dtype, double value)
{
    switch (dtype) {
    case RIDGE_BF16:
        ((uint16_t *)(void *)base)[i] = ridge_bf16_from_f32((float)value);
        break;
    case RIDGE_F16:
        ((uint16_t *)(void *)base)[i] = ridge_f16_from_f32((float)value);
        break;
    default:
        ((float *)(void *)base)[i] = ridge_f32_canonical((float)value);
        break;
    }
}

static bool given(const ce_args *a)
{
    return a->op == RIDGE_CE_FWD || a->op == RIDGE_CE_BWD;
}

static int64_t w_index(const ce_args *a, int64_t c, int64_t j)
{
    return a->hv ? j * a->w_stride + c : c * a->w_stride + j;
}

/* z of a token and a class; *slope is dz/du. */
static double logit(const ce_args *a, int64_t token, int64_t c, double *slope)
{
    const double cap = (double)a->o.softcap, temperature = (double)a->o.temperature;
    double u = 0, t;

    if (given(a)) {
        u = load(a->x, token * a->x_stride + c, a->dtype);
    } else {
        for (int64_t j = 0; j < a->hidden; j++)
            u += load(a->x, token * a->x_stride + j, a->dtype) * load(a->w, w_index(a, c, j), a->dtype);
        if (a->bias)
            u += load(a->bias, c, a->bias_dtype);
    }
    *slope = 1 / temperature;
    if (cap > 0) {
        t = tanh(u / cap);
        *slope *= 1 - t * t;
        u = cap * t;
    }
    return u / temperature;
}

static ce_stat stat_of(const ce_args *a, int64_t token, int64_t target)
{
    ce_stat s = ridge_cpu_ce_empty();
    double max = -INFINITY, slope; /* s.max is float: the reference keeps its own */

    for (int64_t c = 0; c < a->vocab; c++) {
        const double z = logit(a, token, c, &slope);

        if (a->o.topk)
            ridge_cpu_ce_top(a, token, c, (float)z);
        if (a->sample_id)
            ridge_cpu_ce_draw(a, token, c, 1, &(float){(float)z});
        s.z += z;
        s.wz += (a->class_weight ? (double)a->class_weight[a->offset + c] : 1) * z;
        if (a->offset + c == target)
            s.target = z;
        if (!(z <= max) && !isnan(max)) {
            const double scale = exp(max - z);

            s.spread = s.sum > 0 ? scale * (s.spread + (max - z) * s.sum) : 0;
            s.sum = s.sum > 0 ? s.sum * scale + 1 : 1;
            max = z;
            s.argmax = a->offset + c;
        } else if (z > -INFINITY || isnan(max)) {
            s.sum += exp(z - max);
            s.spread += exp(z - max) * (z - max);
        }
        if (isnan(z) || z == INFINITY)
            s.sum = s.spread = NAN;
    }
    if (s.argmax < 0)
        s.argmax = a->offset; /* every logit is -inf */
    s.max = (float)max;       /* what a record can hold; the sums move to it */
    if (s.sum > 0 && !isinf(max)) {
        const double gap = max - (double)s.max;

        s.spread = exp(gap) * (s.spread + gap * s.sum);
        s.sum *= exp(gap);
    }
    return s;
}

/* z of the ids, -inf outside this slice. */
static void id_logits(const ce_args *a, int64_t token)
{
    double slope;

    for (int64_t k = 0; k < a->o.ids; k++) {
        const int64_t c = ridge_cpu_ce_id(a, token, k) - a->offset;

        a->id_logprob[token * a->id_stride + k] =
            c >= 0 && c < a->vocab ? (float)logit(a, token, c, &slope) : -INFINITY;
    }
}

/* What one gradient needs of each token. */
typedef struct token_row {
    ce_factors f;
    double lse;
    int64_t target; /* below 0: adds nothing */
} token_row;

static double dlogit(const ce_args *a, const token_row *r, int64_t token, int64_t c)
{
    double slope, z = logit(a, token, c, &slope), p = exp(z - r->lse), dz, hit, of_id, target_hit = 0;

    for (int64_t k = 0; k < a->o.ids; k++)
        if (ridge_cpu_ce_id(a, token, k) == a->offset + c && ridge_cpu_ce_hit(a, token, k, &hit)) {
            dz = ridge_cpu_ce_id_du(a, &r->f, token, k, r->lse, hit, &of_id);
            if (a->offset + c != r->target)
                return dz;
            target_hit = hit * of_id;
        }

    if (a->offset + c == r->target)
        dz = (p - 1) * r->f.all + (r->f.all - r->f.label);
    else
        dz = p * r->f.all;
    if (r->f.bend != 0 && !(p <= 0))
        dz += r->f.bend * p * (z - r->lse);
    dz -= r->f.smooth * (a->class_weight ? (double)a->class_weight[a->offset + c] : 1);
    return dz * slope + target_hit;
}

static void dx_row(const ce_args *a, const token_row *r, int64_t token, double *sum)
{
    for (int64_t j = 0; j < a->hidden; j++)
        sum[j] = r->target == CE_BAD ? NAN : 0;
    if (r->target >= 0)
        for (int64_t c = 0; c < a->vocab; c++) {
            const double g = dlogit(a, r, token, c);

            for (int64_t j = 0; j < a->hidden; j++)
                sum[j] += g * load(a->w, w_index(a, c, j), a->dtype);
        }
    for (int64_t j = 0; j < a->hidden; j++)
        store(a->dx, token * a->dx_stride + j, a->dtype, sum[j]);
}

static void dw_row(const ce_args *a, const token_row *rows, int64_t c, double *sum)
{
    const bool add = (a->flags & RIDGE_ACCUMULATE) != 0;
    double bias = add && a->dbias ? (double)a->dbias[c] : 0;

    for (int64_t j = 0; j < a->hidden && a->dw; j++)
        sum[j] = add ? load(a->dw, a->hv ? j * a->dw_stride + c : c * a->dw_stride + j, a->dw_dtype) : 0;
    for (int64_t token = 0; token < a->tokens; token++) {
        double g;

        if (rows[token].target < 0)
            continue;
        g = dlogit(a, &rows[token], token, c);
        bias += g;
        for (int64_t j = 0; j < a->hidden && a->dw; j++)
            sum[j] += g * load(a->x, token * a->x_stride + j, a->dtype);
    }
    for (int64_t j = 0; j < a->hidden && a->dw; j++)
        store(a->dw, a->hv ? j * a->dw_stride + c : c * a->dw_stride + j, a->dw_dtype, sum[j]);
    if (a->dbias)
        a->dbias[c] = ridge_f32_canonical((float)bias);
}

static void given_row(const ce_args *a, const token_row *r, int64_t token)
{
    for (int64_t c = 0; c < a->vocab; c++)
        store(a->dx, token * a->dx_stride + c, a->dtype,
              r->target >= 0        ? dlogit(a, r, token, c)
              : r->target == CE_BAD ? NAN
                                    : 0);
}

/* Tokens and classes are divided among at most `units` threads, each with `hidden` doubles of scratch. */
static void gradients(const ce_args *a, const token_row *rows, double *scratch, int units)
{
    (void)units; /* without OpenMP */
#pragma omp parallel num_threads(units)
    {
        const unsigned mode = ridge_fp_begin();
        double *sum;
#pragma omp critical
        {
            sum = scratch; /* each thread takes its own part */
            scratch += a->hidden;
        }
#pragma omp barrier
        if (a->dx) {
#pragma omp for schedule(dynamic)
            for (int64_t token = 0; token < a->tokens; token++) {
                if (given(a))
                    given_row(a, &rows[token], token);
                else
                    dx_row(a, &rows[token], token, sum);
            }
        }
        if (a->dw || a->dbias) {
#pragma omp for schedule(dynamic)
            for (int64_t c = 0; c < a->vocab; c++)
                dw_row(a, rows, c, sum);
        }
        ridge_fp_end(mode);
    }
}

static bool makes_gradients(uint32_t op)
{
    return op == RIDGE_LINEAR_CE_TRAIN || op == RIDGE_LINEAR_CE_BACKWARD || op == RIDGE_CE_BWD;
}

static void work(const ce_args *a, int units, void *workspace)
{
    const ce_totals t = ridge_cpu_ce_totals(a);
    ce_stat *stat = workspace;
    token_row *rows = (token_row *)(stat + a->tokens);
    double *scratch = (double *)(rows + a->tokens);

    if (!a->lse_in) {
#pragma omp parallel num_threads(units)
        {
            const unsigned mode = ridge_fp_begin();
#pragma omp for schedule(dynamic)
            for (int64_t token = 0; token < a->tokens; token++) {
                const int64_t y = ridge_cpu_ce_target(a, token);

                if (y != CE_IGNORED) {
                    stat[token] = stat_of(a, token, y);
                    id_logits(a, token);
                }
            }
            ridge_fp_end(mode);
        }
        ridge_cpu_ce_finish(a, &t, stat);
    }
    if (!makes_gradients(a->op))
        return;
    for (int64_t token = 0; token < a->tokens; token++) {
        token_row *r = &rows[token];

        r->target = ridge_cpu_ce_target(a, token);
        if (r->target < 0)
            continue;
        r->lse = a->lse_in ? (double)a->lse_in[token] : ridge_cpu_ce_lse(&stat[token]);
        r->f = ridge_cpu_ce_factors(a, &t, token, r->target, r->lse);
    }
    gradients(a, rows, scratch, units);
}

static int threads(const ridge_device *device)
{
    return device->units > 0 ? device->units : 1;
}

ridge_status ridge_cpu_ce_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                    void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const all)(const ce_args *, int, void *) = work;
    ridge_bound phase;
    const ridge_status status = ridge_ce_phase(&bound, &phase);
    ridge_team *team;
    unsigned mode;
    ce_args a;

    (void)kernel, (void)bytes, (void)stream;
    if (status || !bound)
        return status;
    a = ridge_cpu_ce_args(&bound->call);
    mode = ridge_fp_begin();
    /* No more than the workspace has parts for. */
    team = ridge_team_begin((double)(a.tokens * a.vocab) / 1250, a.tokens);
    ridge_team_limit(team, threads(device));
    all(&a, team->threads, workspace);
    ridge_fp_end(mode);
    return RIDGE_OK;
}

size_t ridge_cpu_ce_reference_workspace(const ridge_device *device, const ridge_kernel *kernel,
                                        const ridge_problem *problem)
{
    const bool given_logits = problem->op == RIDGE_CE_FWD || problem->op == RIDGE_CE_BWD;

    (void)kernel;
    return (size_t)problem->dim[0] * (sizeof(ce_stat) + sizeof(token_row)) +
           (given_logits ? 0 : (size_t)threads(device) * (size_t)problem->dim[1] * sizeof(double));
}
