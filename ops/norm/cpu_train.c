/* cpu_train.c: add_rms_norm, rms_norm_bwd and rope on the CPU: the C references, the threads, and the kernel lists.
 * Leaves out: the vector code (cpu_simd.h). */
#include "cpu.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/math/q8_0.h"

static float load(const norm_matrix *m, int64_t row, int64_t j)
{
    const char *from = m->data + row * m->stride + j * m->size;

    switch (m->dtype) {
    case RIDGE_BF16:
        return ridge_f32_from_bf16(*(const uint16_t *)from);
    case RIDGE_F16:
        return ridge_f32_from_f16(*(const uint16_t *)from);
    default:
        return *(const float *)from;
    }
}

static void store(const norm_matrix *m, int64_t row, int64_t j, float value)
{
    char *to = m->data + row * m->stride + j * m->size;

    switch (m->dtype) {
    case RIDGE_BF16:
        *(uint16_t *)to = ridge_bf16_from_f32(value);
        break;
    case RIDGE_F16:
        *(uint16_t *)to = ridge_f16_from_f32(value);
        break;
    default:
        *(float *)to = ridge_f32_canonical(value);
        break;
    }
}

/* Element j of what is normed: of x, or of the sum rounded to residual's dtype. */
static float summand(const add_norm_args *a, int64_t row, int64_t j)
{
    float v = load(&a->x, row, j);
    norm_matrix one = a->residual;

    if (!a->residual.data)
        return v;
    v += load(&a->residual, row, j);
    one.data = (char *)&v;
    store(&one, 0, 0, v);
    return load(&one, 0, 0);
}

static float tree(float *part)
{
    for (int s = RIDGE_NORM_PARTS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            part[p] += part[p + s];
    return part[0];
}

/* ------------------------------------------------------------------------------------------- add_rms_norm: reference
 */

/* Codes of one group of `n` columns from j on. */
static void reference_codes(const add_norm_args *a, int64_t row, int64_t j, int64_t n, const float *y)
{
    const bool q8_0 = a->out.dtype == RIDGE_I8;
    const int e5m2 = a->out.dtype == RIDGE_E5M2;
    uint32_t amax = 0;
    float scale, r;

    for (int64_t i = 0; i < n; i++)
        amax = ridge_magnitude(y[i]) > amax ? ridge_magnitude(y[i]) : amax;
    if (q8_0) {
        scale = ridge_q8_0_x_scale(amax, &r);
        a->scale[row * a->ld + j / RIDGE_Q8_0_BLOCK] = scale;
    } else {
        scale = ridge_fp8_scale(amax, 0.0f, e5m2, a->pow2);
        r = ridge_fp8_reciprocal(scale);
        a->scale[j / RIDGE_GROUP * a->ld + row] = scale;
    }
    for (int64_t i = 0; i < n; i++)
        a->out.data[row * a->out.stride + j + i] =
            (char)(q8_0 ? ridge_q8_0_x_code(y[i], r) : (int32_t)ridge_fp8_from_f32(y[i] * r, e5m2));
}

static void add_reference(const add_norm_args *a, int64_t row)
{
    const int64_t group = a->out.dtype == RIDGE_I8 ? RIDGE_Q8_0_BLOCK : RIDGE_GROUP;
    float part[RIDGE_NORM_PARTS] = {0}, y[RIDGE_GROUP], factor;

    for (int64_t j = 0; j < a->n; j++) {
        const float v = summand(a, row, j);

        part[j % RIDGE_NORM_PARTS] = ridge_fma(v, v, part[j % RIDGE_NORM_PARTS]);
    }
    factor = ridge_rms_factor(tree(part), a->n, a->eps);
    for (int64_t j = 0; j < a->n; j++) {
        const float v = summand(a, row, j); /* before sum, which may lie on residual, and out, which may lie on x */
        const float normed = a->w.data ? v * factor * load(&a->w, 0, j) : v * factor;

        if (a->sum.data)
            store(&a->sum, row, j, v);
        y[j % group] = normed;
        if (a->out.size > 1)
            store(&a->out, row, j, normed);
        else if (j % group == group - 1 || j == a->n - 1)
            reference_codes(a, row, j - j % group, j % group + 1, y);
    }
}

/* ------------------------------------------------------------------------------------------- rms_norm_bwd: reference
 */

static float weighted(const norm_bwd_args *a, int64_t row, int64_t j)
{
    const float dout = load(&a->dout, row, j);

    return a->w.data ? dout * load(&a->w, 0, j) : dout;
}

static void bwd_reference_row(const norm_bwd_args *a, int64_t row, float *sums)
{
    float squares[RIDGE_NORM_PARTS] = {0}, dots[RIDGE_NORM_PARTS] = {0}, r, mean;

    for (int64_t j = 0; j < a->n; j++) {
        const int64_t p = j % RIDGE_NORM_PARTS;
        const float x = load(&a->x, row, j);

        squares[p] = ridge_fma(x, x, squares[p]);
        dots[p] = ridge_fma(weighted(a, row, j), x, dots[p]);
    }
    r = ridge_rms_factor(tree(squares), a->n, a->eps);
    mean = ridge_rms_bwd_mean(tree(dots), a->n, r);
    for (int64_t j = 0; j < a->n; j++) {
        const float x = load(&a->x, row, j), dx = ridge_rms_bwd(weighted(a, row, j), x, mean, r);

        if (sums)
            sums[j] = ridge_fma(load(&a->dout, row, j), x * r, sums[j]);
        if (a->dx.data)
            store(&a->dx, row, j, a->dsum.data ? dx + load(&a->dsum, row, j) : dx);
    }
}

static void bwd_reference(const norm_bwd_args *a, int64_t group)
{
    float *sums = a->dw.data ? a->partial + group * a->n : NULL;

    for (int64_t j = 0; j < a->n && sums; j++)
        sums[j] = 0.0f;
    for (int64_t row = group * RIDGE_NORM_GROUP; row < (group + 1) * RIDGE_NORM_GROUP && row < a->rows; row++)
        bwd_reference_row(a, row, sums);
}

/* -------------------------------------------------------------------------------------------------- rope: reference */

static void rope_reference(const rope_args *a, int64_t token, float *angles)
{
    const int64_t pos = a->pos64 ? ((const int64_t *)a->pos)[token] : ((const int32_t *)a->pos)[token];
    const int64_t pairs = a->n_rot / 2;

    (void)angles;
    for (int64_t h = 0; h < a->heads; h++) {
        for (int64_t i = 0; i < pairs; i++) {
            const int64_t j0 = h * a->n + (a->halves ? i : 2 * i), j1 = h * a->n + (a->halves ? i + pairs : 2 * i + 1);
            float c, s, y0, y1;

            ridge_rope_angle(pos, a->freqs[i], a->mscale, a->inverse, &c, &s);
            ridge_rope_rotate(load(&a->x, token, j0), load(&a->x, token, j1), c, s, &y0, &y1);
            store(&a->out, token, j0, y0);
            store(&a->out, token, j1, y1);
        }
        for (int64_t j = h * a->n + a->n_rot; j < (h + 1) * a->n; j++)
            store(&a->out, token, j, load(&a->x, token, j));
    }
}

/* ---------------------------------------------------------------------------------------------------------- threads */

typedef struct add_work {
    add_norm_args a;
    add_norm_row *row;
} add_work;

static void add_one(const void *args, int64_t r)
{
    const add_work *w = args;

    w->row(&w->a, r);
}

static ridge_status run_add(const ridge_bound *bound, add_norm_row *row)
{
    const add_work w = {add_norm_args_of(&bound->call), row};

    if (w.a.n > 0)
        ridge_team_run((double)(w.a.rows * w.a.n) / 2048, w.a.rows, add_one, &w);
    return RIDGE_OK;
}

enum { SUM_COLUMNS = 32 };

/* Columns j .. j + n of dw from the groups' sums. */
static void sum_groups(const norm_bwd_args *a, int64_t j, int64_t n)
{
    float part[RIDGE_NORM_CHAINS][SUM_COLUMNS] = {{0}};

    for (int64_t g = 0; g < a->groups; g++)
        for (int64_t i = 0; i < n; i++)
            part[g % RIDGE_NORM_CHAINS][i] += a->partial[g * a->n + j + i];
    for (int s = RIDGE_NORM_CHAINS / 2; s > 0; s /= 2)
        for (int p = 0; p < s; p++)
            for (int64_t i = 0; i < n; i++)
                part[p][i] += part[p + s][i];
    for (int64_t i = 0; i < n; i++)
        store(&a->dw, 0, j + i, part[0][i]);
}

static ridge_status run_bwd(const ridge_bound *bound, norm_bwd_group *group, void *workspace)
{
    norm_bwd_group *volatile const one_group = group;
    void (*volatile const sum)(const norm_bwd_args *, int64_t, int64_t) = sum_groups;
    norm_bwd_args a = norm_bwd_args_of(&bound->call);
    ridge_team *team = ridge_team_begin((double)(a.rows * a.n) / 1024, a.groups);

    a.partial = (float *)workspace;
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static)
        for (int64_t g = 0; g < a.groups; g++)
            one_group(&a, g);
        if (a.dw.data) {
#pragma omp for schedule(static) nowait
            for (int64_t j = 0; j < a.n; j += SUM_COLUMNS)
                sum(&a, j, a.n - j < SUM_COLUMNS ? a.n - j : SUM_COLUMNS);
        }
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static ridge_status run_rope(const ridge_bound *bound, rope_token *token, float *workspace)
{
    rope_token *volatile const one_token = token;
    const rope_args a = rope_args_of(&bound->call);
    ridge_team *team;

    if (a.heads == 0 || a.n == 0)
        return RIDGE_OK;
    team = ridge_team_begin((double)(a.tokens * a.heads * a.n) / 2048, a.tokens);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t t = 0; t < a.tokens; t++)
            one_token(&a, t, workspace ? workspace + t * a.n_rot : NULL);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

/* The row's work by its instruction set, param[1]. */
enum { BY_C, BY_AVX2, BY_AVX512 };

#if defined(__x86_64__)
#define BY_LEVEL(name, reference)                                     \
    {                                                                 \
        reference, ridge_cpu_##name##_avx2, ridge_cpu_##name##_avx512 \
    }
#else
#define BY_LEVEL(name, reference) \
    {                             \
        reference, NULL, NULL     \
    }
#endif

static add_norm_row *const add_rows[] = BY_LEVEL(add_norm, add_reference);
static norm_bwd_group *const bwd_groups[] = BY_LEVEL(norm_bwd, bwd_reference);
static rope_token *const rope_tokens[] = BY_LEVEL(rope, rope_reference);

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const int level = kernel->param[1];

    (void)device, (void)bytes, (void)stream;
    if (kernel->op == RIDGE_ADD_RMS_NORM)
        return run_add(bound, add_rows[level]);
    return kernel->op == RIDGE_ROPE ? run_rope(bound, rope_tokens[level], (float *)workspace)
                                    : run_bwd(bound, bwd_groups[level], workspace);
}

/* ------------------------------------------------------------------------------------------------------------- list */

static size_t workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const size_t rows = (size_t)problem->dim[0];

    (void)device;
    if (kernel->op == RIDGE_ROPE && kernel->param[1] != BY_C && problem->dim[1])
        return rows * (size_t)problem->dim[3] * sizeof(float);
    if (kernel->op == RIDGE_RMS_NORM_BWD && problem->dtype[RIDGE_RMS_NORM_BWD_DW] != RIDGE_NONE)
        return (rows + RIDGE_NORM_GROUP - 1) / RIDGE_NORM_GROUP * (size_t)problem->dim[1] * sizeof(float);
    return 0;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const double heads = problem->op == RIDGE_ROPE ? (double)problem->dim[2] : 1.0;

    return (double)problem->dim[0] * (double)problem->dim[1] * heads * 8e-3 / device->copy_gbps * 0.01 *
           kernel->param[0];
}

#define ROW(op_name, op_id, arch_name, low, level, percent)                                                \
    {                                                                                                      \
        .name = "cpu." op_name "." arch_name, .op = op_id, .arch_min = low, .arch_max = RIDGE_ARCH_AVX512, \
        .contract = RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,            \
        .param = {percent, level}, .workspace = workspace, .cost = cost, .launch = launch                  \
    }
#if defined(__x86_64__)
#define ROWS(op_name, op_id)                                          \
    ROW(op_name, op_id, "avx512", RIDGE_ARCH_AVX512, BY_AVX512, 120), \
        ROW(op_name, op_id, "avx2", RIDGE_ARCH_AVX2, BY_AVX2, 130), ROW(op_name, op_id, "c", RIDGE_ARCH_C, BY_C, 5000)
#else
#define ROWS(op_name, op_id) ROW(op_name, op_id, "c", RIDGE_ARCH_C, BY_C, 5000)
#endif

static const ridge_kernel rows[] = {
    ROWS("add_rms_norm", RIDGE_ADD_RMS_NORM),
    ROWS("rms_norm_bwd", RIDGE_RMS_NORM_BWD),
    ROWS("rope", RIDGE_ROPE),
};

const ridge_kernel_list ridge_cpu_norm_train = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
