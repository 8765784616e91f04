/* oracle.c: elements of a run, and errors over their bounds. */
#include "oracle.h"

#include <inttypes.h>
#include <math.h>

const void *oracle_address(const image *im, const unsigned char *base, int arg, int64_t r, int64_t j)
{
    int64_t rows, pitch = im->call.arg[arg].stride ? im->call.arg[arg].stride : im->pitch[arg];

    if (!pitch && r)
        ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &pitch);
    return base + im->offset[arg] + (size_t)(r * pitch + j) * ridge_dtype_size(im->call.arg[arg].dtype);
}

double oracle_in(const oracle_run *run, int arg, int64_t r, int64_t j)
{
    return dtype_load(oracle_address(run->im, run->im->host, arg, r, j), run->im->call.arg[arg].dtype);
}

double oracle_out(const oracle_run *run, int arg, int64_t r, int64_t j)
{
    return dtype_load(oracle_address(run->im, run->got, arg, r, j), run->im->call.arg[arg].dtype);
}

void oracle_note(oracle_run *run, double ratio, const char *what, int64_t row, int64_t col)
{
    if (ratio <= run->worst)
        return;
    run->worst = isnan(ratio) ? INFINITY : ratio; /* anything that follows would replace a NaN */
    snprintf(run->text, run->size, "%s[%" PRId64 ",%" PRId64 "] is off by %.3g of the bound", what, row, col, ratio);
}

void oracle_fail(oracle_run *run, const char *why)
{
    run->worst = INFINITY;
    snprintf(run->text, run->size, "%s", why);
}

void oracle_compare(oracle_run *run, double got, double ref, double bound, const char *what, int64_t row, int64_t col)
{
    if (isnan(ref) || isinf(ref))
        oracle_note(run, (isnan(ref) && isnan(got)) || got == ref ? 0 : INFINITY, what, row, col);
    else
        oracle_note(run, fabs(got - ref) / (bound + 0x1p-140), what, row, col);
}

double oracle_ratio(double got, double reference, double bound, uint32_t dtype)
{
    const double ratio = fabs(got - reference) / bound;
    const double most = dtype == RIDGE_F16 ? 65520.0 : dtype == RIDGE_BF16 ? 0x1.ffp127 : 0x1.ffffffp127;

    if (isnan(reference) || isnan(got))
        return isnan(reference) && isnan(got) ? 0 : INFINITY;
    if (isinf(reference) || (isinf(got) && fabs(reference) + bound >= most))
        return isinf(got) && signbit(got) == signbit(reference) ? 0 : INFINITY;
    return ratio <= INFINITY ? ratio : INFINITY;
}

void oracle_estimate(oracle_run *run, int out, int64_t r, int64_t j, estimate e)
{
    const uint32_t dtype = run->im->call.arg[out].dtype;
    const double got = oracle_out(run, out, r, j);

    if (isnan(e.value))
        oracle_note(run, isnan(got) ? 0 : INFINITY, "a number where NaN belongs", r, j);
    else if (isinf(e.value))
        oracle_note(run, got == e.value ? 0 : INFINITY, "another number where infinity belongs", r, j);
    else if (fabs(e.value) + e.error < 0x1p120)
        oracle_note(run, fabs(got - e.value) / (e.error + 0.5 * dtype_ulp(e.value, dtype) * (1 + 0x1p-20)),
                    run->im->call.arg[out].dtype == RIDGE_BF16 ? "bf16 result" : "result", r, j);
}

double oracle_sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
