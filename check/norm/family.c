/* family.c: the cases, inputs and float64 oracle of rms_norm and head_rms_norm_rope_tail; the rest of the family's are
 * train.c's. Sums run in doubles, angles
 * in long doubles, with none of the library's arithmetic. */
#include <math.h>
#include <string.h>

#include "norm.h"

extern const ridge_family ridge_family_norm;

static void norm_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *rms, *rope;
        test_case layout;
    } shape[] = {
        {"rows=0 cols=64", "tokens=0 heads=2 head_dim=64 n_rot=32", {.fill = FILL_NORMAL}},
        {"rows=3 cols=0", "tokens=3 heads=0 head_dim=64 n_rot=32", {.fill = FILL_NORMAL}},
        {"rows=1 cols=1", "tokens=1 heads=1 head_dim=2 n_rot=2", {.fill = FILL_NORMAL}},
        {"rows=5 cols=4096", "tokens=5 heads=8 head_dim=512 n_rot=64", {.fill = FILL_NORMAL, .slices = true}},
        {"rows=3 cols=255", "tokens=9 heads=3 head_dim=66 n_rot=18", {.fill = FILL_NORMAL, .pad = 8, .slices = true}},
        {"rows=4 cols=257", "tokens=2 heads=4 head_dim=128 n_rot=128", {.fill = FILL_EDGE}},
        {"rows=6 cols=16384", "tokens=3 heads=2 head_dim=514 n_rot=0", {.fill = FILL_NORMAL}},
        {"rows=6 cols=1031", "tokens=6 heads=5 head_dim=70 n_rot=22", {.fill = FILL_GROUPS, .pad = 3, .shift = 1}},
        {"rows=4 cols=520", "tokens=4 heads=3 head_dim=192 n_rot=64", {.fill = FILL_NORMAL, .alias = true}},
        {"rows=33 cols=1536", "tokens=17 heads=4 head_dim=256 n_rot=64", {.fill = FILL_NORMAL, .repeats = 100}},
        {"rows=300 cols=96", "tokens=300 heads=2 head_dim=48 n_rot=32", {.fill = FILL_NORMAL, .slices = true}},
        {"rows=2 cols=700", "tokens=2 heads=2 head_dim=2100 n_rot=600", {.fill = FILL_NORMAL}},
        {"rows=17 cols=264", "tokens=17 heads=3 head_dim=64 n_rot=32", {.fill = FILL_SPECIAL, .slices = true}},
        {"rows=9 cols=1100", "tokens=9 heads=2 head_dim=300 n_rot=160", {.fill = FILL_SPECIAL}},
        {"rows=7 cols=8192", "tokens=7 heads=2 head_dim=256 n_rot=64", {.fill = FILL_NORMAL, .alias = true}},
    };
    static const char *const more[] = {"", "inverse=1 mscale=1.25", "rope_only=1 pos=i64", "eps=0.001 pos=i64",
                                       "rope_only=1 inverse=1"};
    const bool rope = op->id == RIDGE_HEAD_RMS_NORM_ROPE_TAIL;
    static const char *const dtypes[] = {"f32", "bf16"};
    char text[256];

    if (op->id != RIDGE_RMS_NORM && !rope) {
        norm_train_cases(op, level, list);
        return;
    }
    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int form = 0; form < 6; form++) {
            const char *x = dtypes[form % 2], *out = dtypes[shape[i].layout.alias ? form % 2 : form / 2 % 2];

            if (level == CASES_QUICK && (i + form) % 3)
                continue;
            snprintf(text, sizeof text, "%s x=%s out=%s%s%s %s", rope ? shape[i].rope : shape[i].rms, x, out,
                     form % 3 ? " w=" : "", form % 3 == 0 ? "" : dtypes[form % 3 - 1],
                     rope        ? more[(i + form) % 5]
                     : form == 4 ? "eps=0"
                                 : "");
            cases_add(list, op, text, shape[i].layout);
        }
}

/* Positions near 0, near 2^20, 1,000,000 itself, and in i64 any up to 2^40. */
static void fill_positions(uint32_t dtype, unsigned char *to, int64_t count, uint64_t state)
{
    static const int32_t known[] = {1000000, 0, 1, 4095, 65536, 1048575, 131071, 7};

    for (int64_t i = 0; i < count; i++) {
        const uint64_t z = random_next(&state);
        const int32_t small = i < 8 ? known[i] : (int32_t)(z % 1050000);
        const int64_t wide = z % 4 == 0 ? (int64_t)(z >> 24) : small;

        if (dtype == RIDGE_I64)
            memcpy(to + 8 * i, &wide, 8);
        else
            memcpy(to + 4 * i, &small, 4);
    }
}

static void fill_frequencies(const test_case *c, unsigned char *to, int64_t count)
{
    const bool hard = c->fill == FILL_GROUPS || c->fill == FILL_EDGE || c->fill == FILL_EVERY;

    for (int64_t i = 0; i < count; i++) {
        double f = pow(10000.0, -(double)i / (double)count);

        if (hard && i == 3)
            f = 1e300; /* the angle is out of range: NaN */
        memcpy(to + 8 * i, &f, 8);
    }
}

static bool norm_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    unsigned char *base = im->host + im->offset[arg];
    int64_t rows, cols;

    op->extent(&im->call, arg, &rows, &cols);
    if (strcmp(op->arg[arg].name, "pos") == 0)
        fill_positions(im->call.arg[arg].dtype, base, cols, seed + (uint64_t)arg);
    else if (strcmp(op->arg[arg].name, "freqs") == 0)
        fill_frequencies(c, base, cols);
    else
        return false;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- oracle */

/* What n elements are multiplied by, and its relative error; and what f32 may multiply them by, whose squares overflow
 * and underflow earlier. */
typedef struct factor {
    double value, error, other;
} factor;

static factor factor_of(const oracle_run *s, int64_t r, int64_t first, int64_t n)
{
    const double eps = (double)s->im->call.opt.norm.eps;
    double sum = 0;
    factor f;

    for (int64_t j = 0; j < n; j++)
        sum += oracle_in(s, 0, r, first + j) * oracle_in(s, 0, r, first + j);
    f = (factor){1 / sqrt(sum / (double)n + eps), ((double)n / 512 + 7) * 0x1p-23, 0};
    f.other = isfinite(sum) && sum >= 0x1p120                     ? 0
              : sum > 0 && sum < (double)n * 0x1p-100 && eps == 0 ? INFINITY
                                                                  : f.value;
    return f;
}

/* Element j of the row or head that begins at column first, before the rotation. */
static estimate normed(const oracle_run *s, int64_t r, int64_t first, int64_t j, factor f, bool norm)
{
    const double w = s->im->length[1] ? oracle_in(s, 1, 0, j) : 1, x = oracle_in(s, 0, r, first + j);
    const double value = norm ? x * f.value * w : x * w, other = norm ? x * f.other * w : value;
    const double error = norm ? fabs(value) * (f.error + 0x1p-23) + 0x1p-148 * (1 + fabs(w))
                              : (s->im->length[1] ? 0x1p-24 * fabs(value) : 0);

    if (norm && isinf(w) && x != 0 && fabs(x * f.value) < 0x1p-120) /* f32 may have 0 times infinity */
        return (estimate){0, NAN};
    if (memcmp(&f.other, &f.value, sizeof f.value) != 0 && !(isnan(value) && isnan(other)))
        return (estimate){0, isnan(value) || isnan(other) ? NAN : INFINITY};
    return (estimate){value, error};
}

/* A number that may be infinite in f32. */
static bool overflows(double x)
{
    return isfinite(x) && fabs(x) > 0x1p127;
}

static void check_pair(oracle_run *s, int64_t t, int64_t first, int64_t j, int64_t i, factor f)
{
    const ridge_call *call = &s->im->call;
    const bool norm = !(call->flags & RIDGE_ROPE_ONLY);
    const estimate a = normed(s, t, first, j, f, norm), b = normed(s, t, first, j + 1, f, norm);
    const double angle =
        oracle_in(s, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_POS, 0, t) * oracle_in(s, RIDGE_HEAD_RMS_NORM_ROPE_TAIL_FREQS, 0, i);
    const double c = (double)cosl((long double)angle) * (double)call->opt.norm.mscale;
    const double sine = (double)sinl((long double)angle) * (double)call->opt.norm.mscale;
    const double turn = call->flags & RIDGE_ROPE_INVERSE ? -sine : sine;
    const double size0 = fabs(a.value * c) + fabs(b.value * turn), size1 = fabs(a.value * turn) + fabs(b.value * c);
    const double error = a.error + b.error;
    const int out = RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT;
    estimate y0 = {a.value * c - b.value * turn, 0x1p-22 * size0 + 0x1p-148}, y1 = y0;

    y0.error += error * (fabs(c) + fabs(turn));
    y1 = (estimate){a.value * turn + b.value * c, 0x1p-22 * size1 + 0x1p-148 + error * (fabs(c) + fabs(turn))};
    if (fabs(angle) >= 0x1p47)
        y0.value = y1.value = NAN;
    else if (isnan(error) || overflows(a.value) || overflows(b.value))
        y0.error = y1.error = NAN;
    norm_judge(s, out, t, first + j, y0);
    norm_judge(s, out, t, first + j + 1, y1);
}

static void check_rows(oracle_run *s, int64_t rows, int64_t heads, int64_t n, int64_t n_rot, int out)
{
    const bool norm = !(s->im->call.flags & RIDGE_ROPE_ONLY);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            const factor f = factor_of(s, r, h * n, n);

            for (int64_t j = 0; j < n - n_rot; j++)
                norm_judge(s, out, r, h * n + j, normed(s, r, h * n, j, f, norm));
            for (int64_t i = 0; i < n_rot / 2; i++)
                check_pair(s, r, h * n, n - n_rot + 2 * i, i, f);
        }
}

static void norm_oracle(oracle_run *run)
{
    const int64_t *dim = run->im->call.dim;

    switch (run->im->call.op) {
    case RIDGE_RMS_NORM:
        check_rows(run, dim[0], 1, dim[1], 0, RIDGE_RMS_NORM_OUT);
        break;
    case RIDGE_HEAD_RMS_NORM_ROPE_TAIL:
        check_rows(run, dim[0], dim[1], dim[2], dim[3], RIDGE_HEAD_RMS_NORM_ROPE_TAIL_OUT);
        break;
    case RIDGE_ADD_RMS_NORM:
        norm_add_oracle(run);
        break;
    case RIDGE_RMS_NORM_BWD:
        norm_bwd_oracle(run);
        break;
    default:
        norm_rope_oracle(run);
        break;
    }
}

static const suite_row suites[] = {
    {"quick", "add_rms_norm rows=64 cols=1024"},
    {"norm", "rms_norm rows=8192 cols=4096 x=bf16 w=bf16 out=bf16"},
    {"norm", "add_rms_norm rows=8192 cols=4096"},
    {"norm", "add_rms_norm rows=8192 cols=8192"},
    {"norm", "add_rms_norm rows=8192 cols=4096 out=e4m3"},
    {"norm", "rms_norm_bwd rows=8192 cols=4096"},
    {"norm", "rms_norm_bwd rows=8192 cols=4096 dsum=bf16"},
    {"norm", "rms_norm_bwd rows=262144 cols=128"},
    {"norm", "rope tokens=8192 heads=32 head_dim=128 n_rot=128 halves=1"},
    {"norm", "rope tokens=8192 heads=32 head_dim=128 n_rot=128"},
    {"norm", "rope tokens=8192 heads=32 head_dim=128 n_rot=64 halves=1"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "rms_norm rows=5 cols=264 x=bf16 w=bf16 out=bf16 eps=0.01",
    "head_rms_norm_rope_tail tokens=5 heads=9 head_dim=8 n_rot=4 x=f32 w=f32 pos=i32 out=f32 eps=0.01 mscale=1.25",
    "add_rms_norm rows=5 cols=264 x=bf16 residual=bf16 w=bf16 out=bf16 eps=0.01",
    "rms_norm_bwd rows=37 cols=264 dout=bf16 x=bf16 w=bf16 dx=bf16 dw=0 dsum=bf16 eps=0.01",
    "add_rms_norm rows=5 cols=288 x=f32 residual=f32 w=f32 out=i8 eps=0.01 pad=16",
    "rms_norm_bwd rows=37 cols=128 dout=bf16 x=bf16 w=bf16 dx=bf16 dw=0 dsum=bf16 eps=0.01",
    "rope tokens=5 heads=9 head_dim=16 n_rot=16 x=bf16 pos=i32 out=bf16",
    NULL,
};

static bool rotates(const ridge_kernel *kernel)
{
    return kernel->op == RIDGE_HEAD_RMS_NORM_ROPE_TAIL || kernel->op == RIDGE_ROPE;
}

static bool normalises(const ridge_kernel *kernel)
{
    return kernel->op != RIDGE_ROPE;
}

#define OPTION(field) .option = offsetof(ridge_norm_options, field)

static const planted_fault faults[] = {
    {.name = "forgets the weight", .fault = fault_forgets_operand, .operand = "w"},
    {.name = "takes the next column's weight", .fault = fault_takes_the_next, .operand = "w"},
    {.name = "forgets eps", .fault = fault_changes_option, .applies = normalises, OPTION(eps), .value = 0},
    {.name = "forgets mscale",
     .fault = fault_changes_option,
     .op = RIDGE_HEAD_RMS_NORM_ROPE_TAIL,
     OPTION(mscale),
     .value = 1},
    {.name = "turns the other way", .fault = fault_changes_flags, .applies = rotates, .flags = RIDGE_ROPE_INVERSE},
    {.name = "rotates the other pairs", .fault = fault_changes_flags, .op = RIDGE_ROPE, .flags = RIDGE_ROPE_HALVES},
    {.name = "forgets the gradient of the sum", .fault = fault_forgets_operand, .operand = "dsum"},
    {.name = "takes the next token's position", .fault = fault_takes_the_next, .operand = "pos"},
    {.name = "takes the next pair's frequency", .fault = fault_takes_the_next, .operand = "freqs"},
    FAULT_SWALLOWS_A_NAN,
    {0},
};

const check_family check_norm = {
    .family = &ridge_family_norm,
    .cases = norm_cases,
    .oracle = norm_oracle,
    .fill = norm_fill,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
