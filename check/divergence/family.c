/* family.c: the cases of divergence, its float64 oracle, and the faults that it may have. */
#include <math.h>
#include <stdlib.h>

#include "check/family.h"

extern const ridge_family ridge_family_divergence;

static void divergence_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *shape;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1", {.fill = FILL_NORMAL}},
        {"rows=3 cols=7", {.fill = FILL_NORMAL}},
        {"rows=5 cols=4096", {.fill = FILL_UNIT, .slices = true}},
        {"rows=3 cols=1031", {.fill = FILL_NORMAL, .pad = 3, .shift = 1, .slices = true}},
        {"rows=4 cols=4104", {.fill = FILL_NORMAL, .pad = 8, .slices = true}},
        {"rows=9 cols=264", {.fill = FILL_EDGE}},
        {"rows=300 cols=2049", {.fill = FILL_NORMAL, .repeats = 20}},
        {"rows=2 cols=70000", {.fill = FILL_NORMAL}},
    };
    static const char *const options[] = {"",
                                          "beta=0 dlogits=f32",
                                          "beta=1 dlogits=bf16",
                                          "beta=0.5 dlogits=f16 scale=1",
                                          "beta=0.25 temperature=2 dlogits=bf16 scale=1",
                                          "beta=1 temperature=0.5 dlogits=f32 scale=1",
                                          "beta=0 temperature=3",
                                          "beta=0.9 dlogits=f32",
                                          "beta=0.5 lse=1 teacher_lse=1 own=1",
                                          "beta=0.25 temperature=2 lse=1 teacher_lse=1 own=1 scale=1",
                                          "beta=1 lse=1 teacher_lse=1 own=1 dlogits=f32",
                                          "beta=0.4 temperature=0.7 lse=1 teacher_lse=1 own=1 dlogits=bf16 scale=1",
                                          "beta=0 lse=1 teacher_lse=1",
                                          "beta=0 lse=1 teacher_lse=1 own=1 dlogits=f16"};
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    static const char *const longer[] = {
        "rows=3 cols=151936 dtype=f32 beta=0.5 dlogits=bf16 scale=1",
        "rows=2 cols=151936 dtype=bf16 beta=0.3 dlogits=bf16",
        "rows=2 cols=270008 dtype=f32 beta=0.25 temperature=2 dlogits=f32",
        "rows=2 cols=270008 dtype=f32 beta=0 dlogits=f16",
        "rows=1 cols=270008 dtype=f32 beta=1",
    };
    char text[128];

    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (size_t o = 0; o < sizeof options / sizeof options[0]; o++)
            for (size_t d = 0; d < 3; d++) {
                if (level == CASES_QUICK && (i + o + d) % 3)
                    continue;
                snprintf(text, sizeof text, "%s dtype=%s %s", shape[i].shape, dtypes[d], options[o]);
                cases_add(list, op, text, shape[i].layout);
            }
    /* More than a cluster of eight CTAs, or of sixteen, keeps of a row. */
    for (size_t i = 0; i < sizeof longer / sizeof longer[0]; i++)
        cases_add(list, op, longer[i], (test_case){.fill = FILL_NORMAL});
}

/* Of a row of logits, as if other slices had half as much again. */
static float lse_of(const test_case *c, const image *im, int arg, int64_t r)
{
    const double rate = 1 / (double)c->call.opt.divergence.temperature;
    double max = -INFINITY, sum = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = 0; j < c->call.dim[1]; j++) {
            const double z = dtype_load(oracle_address(im, im->host, arg, r, j), c->call.arg[arg].dtype);

            if (pass == 0)
                max = z > max || isnan(z) ? z : max;
            else
                sum += exp((z - max) * rate);
        }
    return (float)(max * rate + log(1.5 * sum));
}

/* scale: every third row is left out; the others' factors are below and above 0. */
static bool divergence_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    float *to = (float *)(uintptr_t)oracle_address(im, im->host, arg, 0, 0);

    (void)seed;
    if (arg < RIDGE_DIVERGENCE_SCALE)
        return false;
    for (int64_t r = 0; r < c->call.dim[0]; r++)
        to[r] = arg == RIDGE_DIVERGENCE_SCALE         ? (r % 3 == 1 ? 0.0f : 0.5f * (float)(r % 5 - 2) + 0.125f)
                : arg == RIDGE_DIVERGENCE_LSE         ? lse_of(c, im, RIDGE_DIVERGENCE_STUDENT, r)
                : arg == RIDGE_DIVERGENCE_TEACHER_LSE ? lse_of(c, im, RIDGE_DIVERGENCE_TEACHER, r)
                                                      : 0.3f * (float)(r % 4);
    return true;
}

/* A row of logits: logarithms of the probabilities with the error that f32 makes in each. */
typedef struct exact_row {
    double *log_p, *error;
} exact_row;

static void exact_logs(const oracle_run *run, int arg, int64_t r, exact_row to)
{
    const int64_t cols = run->im->call.dim[1];
    const double rate = 1 / (double)run->im->call.opt.divergence.temperature;
    const int lse = arg == RIDGE_DIVERGENCE_STUDENT ? RIDGE_DIVERGENCE_LSE : RIDGE_DIVERGENCE_TEACHER_LSE;
    double max = -INFINITY, sum = 0, log_sum;

    if (run->im->call.arg[lse].dtype != RIDGE_NONE) { /* of a slice */
        const double given = oracle_in(run, lse, 0, r);

        for (int64_t j = 0; j < cols; j++) {
            to.log_p[j] = isfinite(given) ? oracle_in(run, arg, r, j) * rate - given : NAN;
            to.error[j] = 0x1p-20 * (1 + fmin(fabs(to.log_p[j]), 200));
        }
        return;
    }
    for (int64_t j = 0; j < cols; j++)
        max = fmax(max, oracle_in(run, arg, r, j));
    for (int64_t j = 0; j < cols; j++)
        sum += exp((oracle_in(run, arg, r, j) - max) * rate);
    log_sum = log(sum);
    for (int64_t j = 0; j < cols; j++) {
        const double gap = (max - oracle_in(run, arg, r, j)) * rate;

        to.log_p[j] = -gap - log_sum;
        to.error[j] = 0x1p-20 * (1 + log_sum + (gap < 200 ? gap : 200)); /* a smaller p is 0 in f32 */
    }
}

static double mixed(double beta, double log_p, double log_q)
{
    return beta == 0 ? log_p : beta == 1 ? log_q : log(beta * exp(log_q) + (1 - beta) * exp(log_p));
}

static double times(double p, double r)
{
    return p == 0 ? 0 : p * r;
}

/* own and other: sum p log(p / m) and sum q log(q / m), with the largest error of f32's. */
typedef struct exact_sums {
    estimate own, other;
} exact_sums;

static exact_sums sums_of(double beta, exact_row p, exact_row q, int64_t cols)
{
    exact_sums s = {{0, 0x1p-120}, {0, 0x1p-120}};

    for (int64_t j = 0; j < cols; j++) {
        const double m = mixed(beta, p.log_p[j], q.log_p[j]), each = p.error[j] + q.error[j] + 0x1p-20;
        const double a = exp(p.log_p[j]), b = exp(q.log_p[j]);
        const double one = times(a, p.log_p[j] - m), two = times(b, q.log_p[j] - m);

        s.own.value += one;
        s.other.value += two;
        s.own.error += a * each + fabs(one) * (each + 0x1p-15);
        s.other.error += b * each + fabs(two) * (each + 0x1p-15);
    }
    return s;
}

static void check_gradient(oracle_run *run, int64_t r, exact_row p, exact_row q, exact_sums s)
{
    const ridge_divergence_options *o = &run->im->call.opt.divergence;
    const uint32_t dtype = run->im->call.arg[RIDGE_DIVERGENCE_DLOGITS].dtype;
    const bool scaled = run->im->call.arg[RIDGE_DIVERGENCE_SCALE].dtype != RIDGE_NONE;
    const double beta = (double)o->beta, scale = scaled ? oracle_in(run, RIDGE_DIVERGENCE_SCALE, 0, r) : 1;
    const double factor = scale / (double)o->temperature * (beta == 0 || beta == 1 ? 1 : 1 - beta);

    for (int64_t j = 0; j < run->im->call.dim[1]; j++) {
        const double a = exp(p.log_p[j]), b = exp(q.log_p[j]), each = p.error[j] + q.error[j] + 0x1p-20;
        const double ratio = p.log_p[j] - mixed(beta, p.log_p[j], q.log_p[j]);
        const double ref = factor * (beta == 0 ? a - b : times(a, ratio - s.own.value));
        const double error = beta == 0 ? a * p.error[j] + b * q.error[j]
                                       : a * (each + s.own.error) + times(a, fabs(ratio) + fabs(s.own.value)) * each;

        if (isinf(s.own.value) && a < 0x1p-100) /* 0 or -infinity, as p is in f32 */
            continue;
        const double least = 0x1p-120 * (1 + fabs(ratio) + fabs(s.own.value)); /* p below 2^-126 is 0 */
        const double bound = fabs(factor) * (error + (isfinite(least) ? least : 0x1p-120)) +
                             0.5 * dtype_ulp(ref, dtype) + 0x1p-22 * fabs(ref);

        oracle_note(run, oracle_ratio(oracle_out(run, RIDGE_DIVERGENCE_DLOGITS, r, j), ref, bound, dtype), "dlogits", r,
                    j);
    }
}

static bool has(const oracle_run *run, int arg)
{
    return run->im->call.arg[arg].dtype != RIDGE_NONE;
}

/* loss or own of row r. */
static void check_sum(oracle_run *run, int arg, int64_t r, estimate e)
{
    if (has(run, arg))
        oracle_note(run, oracle_ratio(oracle_out(run, arg, 0, r), e.value, e.error, RIDGE_F32),
                    arg == RIDGE_DIVERGENCE_LOSS ? "loss" : "own", r, 0);
}

static void check_left_out(oracle_run *run, int64_t r)
{
    const estimate zero = {0, 0x1p-149};

    check_sum(run, RIDGE_DIVERGENCE_LOSS, r, zero);
    if (!has(run, RIDGE_DIVERGENCE_DLOGITS))
        check_sum(run, RIDGE_DIVERGENCE_OWN, r, zero);
    for (int64_t j = 0; j < run->im->call.dim[1] && run->im->call.arg[RIDGE_DIVERGENCE_DLOGITS].dtype; j++)
        oracle_note(run,
                    oracle_ratio(oracle_out(run, RIDGE_DIVERGENCE_DLOGITS, r, j), 0, 0x1p-149,
                                 run->im->call.arg[RIDGE_DIVERGENCE_DLOGITS].dtype),
                    "dlogits", r, j);
}

static void divergence_oracle(oracle_run *run)
{
    const ridge_call *call = &run->im->call;
    const bool scaled = has(run, RIDGE_DIVERGENCE_SCALE);
    const double beta = (double)call->opt.divergence.beta;
    double *memory = malloc((size_t)call->dim[1] * 4 * sizeof *memory);
    const exact_row p = {memory, memory + call->dim[1]}, q = {memory + 2 * call->dim[1], memory + 3 * call->dim[1]};

    if (!memory) {
        oracle_fail(run, "out of memory");
        return;
    }
    for (int64_t r = 0; r < call->dim[0]; r++) {
        estimate loss;
        exact_sums s;

        if (scaled && oracle_in(run, RIDGE_DIVERGENCE_SCALE, 0, r) == 0) {
            check_left_out(run, r);
            continue;
        }
        exact_logs(run, RIDGE_DIVERGENCE_STUDENT, r, p);
        exact_logs(run, RIDGE_DIVERGENCE_TEACHER, r, q);
        s = sums_of(beta, p, q, call->dim[1]);
        loss.value = beta == 0   ? s.other.value
                     : beta == 1 ? s.own.value
                                 : beta * s.other.value + (1 - beta) * s.own.value;
        loss.error = beta == 0   ? s.other.error
                     : beta == 1 ? s.own.error
                                 : beta * s.other.error + (1 - beta) * s.own.error;
        loss.error += 0x1p-22 * fabs(loss.value);
        check_sum(run, RIDGE_DIVERGENCE_LOSS, r, loss);
        if (has(run, RIDGE_DIVERGENCE_OWN) && has(run, RIDGE_DIVERGENCE_DLOGITS))
            s.own = (estimate){oracle_in(run, RIDGE_DIVERGENCE_OWN, 0, r), 0};
        else
            check_sum(run, RIDGE_DIVERGENCE_OWN, r, (estimate){s.own.value, s.own.error + 0x1p-22 * fabs(s.own.value)});
        if (has(run, RIDGE_DIVERGENCE_DLOGITS))
            check_gradient(run, r, p, q, s);
    }
    free(memory);
}

static const suite_row suites[] = {
    {"divergence", "divergence rows=2048 cols=128256 dtype=f32 beta=0.5 dlogits=bf16"},
    {"divergence", "divergence rows=2048 cols=128256 dtype=f32 beta=0 dlogits=bf16"},
    {"divergence", "divergence rows=2048 cols=151936 dtype=bf16 beta=0.5 dlogits=bf16"},
    {"divergence", "divergence rows=2048 cols=128256 dtype=f32 beta=0.5"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "divergence rows=7 cols=264 dtype=f32 beta=0.25 temperature=2 dlogits=f32 scale=1",
    "divergence rows=7 cols=264 dtype=f32 beta=0.25 temperature=2 lse=1 teacher_lse=1 own=1",
    "divergence rows=7 cols=264 dtype=f32 beta=0.25 temperature=2 lse=1 teacher_lse=1 own=1 dlogits=f32",
    NULL,
};

/* The same call with other options. */
static ridge_status with_options(const faulty_run *r, float beta, float temperature)
{
    ridge_call other = *r->call;

    other.opt.divergence = (ridge_divergence_options){.beta = beta, .temperature = temperature};
    return fault_run_changed(r, &other);
}

static ridge_status mixes_the_other_way(const faulty_run *r)
{
    return with_options(r, 0.75f, 2.0f);
}

static ridge_status forgets_the_temperature(const faulty_run *r)
{
    return with_options(r, 0.25f, 1.0f);
}

/* The gradient of row 0 as though sum p log(p / m) were 0, which shifts it by a multiple of p. */
static ridge_status forgets_the_mean(const faulty_run *r)
{
    const int64_t cols = r->call->dim[1];
    ridge_status status = fault_run(r, r->call);
    float g, first;

    for (int64_t j = 0; j < cols && !status; j++) {
        status = fault_read(r, fault_at(r->im, RIDGE_DIVERGENCE_DLOGITS, 0, j), &g, sizeof g);
        first = j == 0 ? g : first;
        g += 1e-3f * fabsf(first);
        if (!status)
            status = fault_write(r, fault_at(r->im, RIDGE_DIVERGENCE_DLOGITS, 0, j), &g, sizeof g);
    }
    return status;
}

/* A slice as if it were all classes. */
static ridge_status forgets_the_slices(const faulty_run *r)
{
    ridge_call other = *r->call;

    other.arg[RIDGE_DIVERGENCE_LSE] = other.arg[RIDGE_DIVERGENCE_TEACHER_LSE] = (ridge_operand){0};
    return fault_run_changed(r, &other);
}

static const planted_fault faults[] = {
    {.name = "mixes the other way", .fault = mixes_the_other_way},
    {.name = "forgets the temperature", .fault = forgets_the_temperature},
    {.name = "shifts a row of gradients", .fault = forgets_the_mean, .operand = "dlogits"},
    {.name = "takes a slice for the whole",
     .fault = forgets_the_slices,
     .problem = "divergence rows=7 cols=264 dtype=f32 beta=0.25 temperature=2 lse=1 teacher_lse=1"},
    {0},
};

const check_family check_divergence = {
    .family = &ridge_family_divergence,
    .cases = divergence_cases,
    .oracle = divergence_oracle,
    .fill = divergence_fill,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
