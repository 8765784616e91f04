/* cpu.c: divergence on the CPU: one kernel row for every instruction set, in double, a row a thread. */
#include <math.h>
#include <string.h>

#include "args.h"
#include "cpu/num.h"
#include "cpu/team.h"
#include "src/util.h"

enum { BLOCK = 512 };

/* Of a row of logits over the temperature: the largest, and the logarithm of the sum of e^(z - max). */
typedef struct softmax_of {
    double max, log_sum;
} softmax_of;

static int64_t size_of(uint32_t dtype)
{
    return dtype == RIDGE_F32 ? 4 : 2;
}

/* Logarithms of the probabilities of columns [col, col + n). */
static void logs(const divergence_args *p, const char *row, uint32_t dtype, softmax_of s, int64_t col, int64_t n,
                 double *to)
{
    float v[BLOCK];

    ridge_widen(dtype, row + col * size_of(dtype), n, v);
    for (int64_t i = 0; i < n; i++)
        to[i] = ((double)v[i] - s.max) / (double)p->temperature - s.log_sum;
}

/* lse: of row r, where it is given. */
static softmax_of softmax_row(const divergence_args *p, const char *row, uint32_t dtype, const float *lse, int64_t r)
{
    softmax_of s = {-INFINITY, 0};
    double v[BLOCK], sum = 0;
    float x[BLOCK];

    if (lse)
        return (softmax_of){0, (double)lse[r]};
    for (int64_t col = 0; col < p->cols; col += BLOCK) {
        const int64_t n = ridge_min(BLOCK, p->cols - col);

        ridge_widen(dtype, row + col * size_of(dtype), n, x);
        for (int64_t i = 0; i < n; i++)
            s.max = x[i] > s.max ? (double)x[i] : s.max;
    }
    for (int64_t col = 0; col < p->cols; col += BLOCK) {
        const int64_t n = ridge_min(BLOCK, p->cols - col);

        logs(p, row, dtype, s, col, n, v);
        for (int64_t i = 0; i < n; i++)
            sum += exp(v[i]);
    }
    s.log_sum = log(sum);
    return s;
}

/* log m of a class; the teacher's where beta is 1, the student's where it is 0. */
static double mixed(const divergence_args *p, double log_p, double log_q)
{
    const double beta = (double)p->beta;

    return beta == 0 ? log_p : beta == 1 ? log_q : log(beta * exp(log_q) + (1 - beta) * exp(log_p));
}

static double term(double log_a, double log_m)
{
    const double a = exp(log_a);

    return a == 0 ? 0 : a * (log_a - log_m);
}

static void write_gradient(const divergence_args *p, int64_t r, const double *log_p, const double *log_q, double own,
                           int64_t col, int64_t n)
{
    const double beta = (double)p->beta, scale = (p->scale ? (double)p->scale[r] : 1) / (double)p->temperature;
    float out[BLOCK];

    for (int64_t i = 0; i < n; i++) {
        const double probability = exp(log_p[i]);

        if (beta == 0)
            out[i] = (float)(scale * (probability - exp(log_q[i])));
        else
            out[i] = (float)(scale * (beta == 1 ? 1 : 1 - beta) *
                             (probability == 0 ? 0 : probability * (log_p[i] - mixed(p, log_p[i], log_q[i]) - own)));
    }
    ridge_narrow(p->dlogits_dtype, p->dlogits + (r * p->dlogits_stride + col) * size_of(p->dlogits_dtype), n, out);
}

static void clear(const divergence_args *p, int64_t r)
{
    if (p->loss)
        p->loss[r] = 0;
    if (p->own && !p->dlogits)
        p->own[r] = 0;
    if (!p->dlogits)
        return;
    memset(p->dlogits + r * p->dlogits_stride * size_of(p->dlogits_dtype), 0,
           (size_t)(p->cols * size_of(p->dlogits_dtype)));
}

static void one_row(const divergence_args *p, int64_t r)
{
    const char *student = p->student + r * p->student_stride * size_of(p->student_dtype);
    const char *teacher = p->teacher + r * p->teacher_stride * size_of(p->teacher_dtype);
    double log_p[BLOCK], log_q[BLOCK], own = 0, other = 0;
    softmax_of of_p, of_q;

    if (p->scale && p->scale[r] == 0.0f) {
        clear(p, r);
        return;
    }
    of_p = softmax_row(p, student, p->student_dtype, p->lse, r);
    of_q = softmax_row(p, teacher, p->teacher_dtype, p->teacher_lse, r);
    own = p->own && p->dlogits ? (double)p->own[r] : 0;
    for (int pass = p->loss ? 0 : 1; pass < (p->dlogits ? 2 : 1); pass++)
        for (int64_t col = 0; col < p->cols; col += BLOCK) {
            const int64_t n = ridge_min(BLOCK, p->cols - col);

            logs(p, student, p->student_dtype, of_p, col, n, log_p);
            logs(p, teacher, p->teacher_dtype, of_q, col, n, log_q);
            for (int64_t i = 0; i < n && pass == 0; i++) {
                const double m = mixed(p, log_p[i], log_q[i]);

                own += term(log_p[i], m);
                other += term(log_q[i], m);
            }
            if (pass == 1)
                write_gradient(p, r, log_p, log_q, own, col, n);
        }
    if (!p->loss)
        return;
    if (p->own)
        p->own[r] = (float)own;
    p->loss[r] = (float)(p->beta == 0.0f   ? other
                         : p->beta == 1.0f ? own
                                           : (double)p->beta * other + (1 - (double)p->beta) * own);
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    /* Through a pointer, so that no arithmetic moves across the change of mode. */
    void (*volatile const row)(const divergence_args *, int64_t) = one_row;
    const divergence_args p = divergence_args_of(bound);
    ridge_team *team;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    if (p.rows == 0)
        return RIDGE_OK;
    team = ridge_team_begin((double)p.rows * (double)p.cols / 16, p.rows);
#pragma omp parallel num_threads(team->threads)
    {
        unsigned mode = ridge_fp_begin();
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < p.rows; r++)
            row(&p, r);
        ridge_fp_end(mode);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

/* Some ten exponentials an element. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * 0.1 / (double)(device->units > 0 ? device->units : 1);
}

static const ridge_kernel rows[] = {
    {.name = "cpu.divergence.c",
     .op = RIDGE_DIVERGENCE,
     .arch_min = RIDGE_ARCH_C,
     .arch_max = RIDGE_ARCH_AVX512,
     .contract = RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
     .cost = cost,
     .launch = launch},
};

const ridge_kernel_list ridge_cpu_divergence = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
