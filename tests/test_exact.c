/* test_exact.c: the accuracy of src/math/exact.h that docs/numerics.md states, over every 257th float. libm's doubles
 * are the reference, and MPFR of the worst float of each block of 4096, so that libm need not be trusted. */
#include <math.h>

#include <mpfr.h>

#include "unit.h"
#include "src/math/exact.h"

enum { STEP = 257, BLOCK = 4096 };

typedef struct function {
    const char *name;
    float (*of)(float x);
    double (*reference)(double x);
    int (*exact)(mpfr_ptr y, mpfr_srcptr x);
    float below;   /* |x| */
    double ulps;   /* of the exact result; of one below 2^-126, as if there were no subnormals */
    double beyond; /* smallest subnormals that a subnormal result may be off by, beside those */
} function;

/* The error as a share of what the function may be off by. */
static double share(const function *f, double got, double exact, double difference)
{
    int exponent;
    double most;

    if (isinf(got) && fabs(exact) >= 0x1.ffffffp127)
        return 0;
    frexp(exact, &exponent);
    most = f->ulps * ldexp(1.0, exponent - 24);
    if (fabs(exact) < 0x1p-126)
        most += f->beyond * 0x1p-149;
    return difference == 0 ? 0 : fabs(difference) / most;
}

static double share_by_libm(const function *f, float x)
{
    const double got = (double)f->of(x), exact = f->reference((double)x);

    return share(f, got, exact, got - exact);
}

static double share_by_mpfr(const function *f, float x)
{
    const double got = (double)f->of(x);
    double exact, difference;
    mpfr_t a, y;

    mpfr_inits2(200, a, y, (mpfr_ptr)NULL);
    mpfr_set_flt(a, x, MPFR_RNDN);
    f->exact(y, a);
    exact = mpfr_get_d(y, MPFR_RNDN);
    mpfr_sub_d(y, y, got, MPFR_RNDN);
    difference = mpfr_get_d(y, MPFR_RNDN);
    mpfr_clears(a, y, (mpfr_ptr)NULL);
    return share(f, got, exact, difference);
}

/* The worst of one block of floats, by MPFR. */
static double worst_of_block(const function *f, uint32_t block)
{
    double worst = -1, err;
    float at = 0;

    for (uint64_t i = 0; i < BLOCK; i++) {
        const uint64_t bits = ((uint64_t)block * BLOCK + i) * STEP;
        float x;

        if (bits > UINT32_MAX)
            break;
        x = ridge_float((uint32_t)bits);
        if (!(fabsf(x) < f->below))
            continue;
        err = share_by_libm(f, x);
        assert_true(err == err);
        if (err > worst)
            worst = err, at = x;
    }
    if (worst < 0)
        return 0;
    err = share_by_mpfr(f, at);
    assert_true(fabs(err - worst) < 1e-3);
    return err;
}

static void holds(const function *f)
{
    const uint32_t blocks = (uint32_t)((UINT64_C(1) << 32) / STEP / BLOCK) + 1;
    double worst = 0;

#pragma omp parallel for schedule(dynamic) reduction(max : worst)
    for (uint32_t block = 0; block < blocks; block++)
        worst = fmax(worst, worst_of_block(f, block));
    printf("%-28s %.3f of its bound\n", f->name, worst);
    assert_true(worst <= 1);
}

static double exp_neg_reference(double x)
{
    return exp(-fabs(x));
}

static int exp_neg_exact(mpfr_ptr y, mpfr_srcptr x)
{
    mpfr_abs(y, x, MPFR_RNDN);
    mpfr_neg(y, y, MPFR_RNDN);
    return mpfr_exp(y, y, MPFR_RNDN);
}

static int exp_exact(mpfr_ptr y, mpfr_srcptr x)
{
    return mpfr_exp(y, x, MPFR_RNDN);
}

static int tanh_exact(mpfr_ptr y, mpfr_srcptr x)
{
    return mpfr_tanh(y, x, MPFR_RNDN);
}

static double sigmoid_reference(double x)
{
    return 1 / (1 + exp(-x));
}

static int sigmoid_exact(mpfr_ptr y, mpfr_srcptr x)
{
    mpfr_neg(y, x, MPFR_RNDN);
    mpfr_exp(y, y, MPFR_RNDN);
    mpfr_add_ui(y, y, 1, MPFR_RNDN);
    return mpfr_ui_div(y, 1, y, MPFR_RNDN);
}

static float cdf(float x)
{
    float bell;

    return ridge_normal_cdf(x, &bell);
}

static double cdf_reference(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752);
}

static int cdf_exact(mpfr_ptr y, mpfr_srcptr x)
{
    mpfr_t root;

    mpfr_init2(root, 200);
    mpfr_sqrt_ui(root, 2, MPFR_RNDN);
    mpfr_div(y, x, root, MPFR_RNDN);
    mpfr_neg(y, y, MPFR_RNDN);
    mpfr_clear(root);
    mpfr_erfc(y, y, MPFR_RNDN);
    return mpfr_div_ui(y, y, 2, MPFR_RNDN);
}

static float bell(float x)
{
    float e;

    return ridge_normal_cdf(x, &e), e;
}

static double bell_reference(double x)
{
    return exp(-0.5 * x * x);
}

static int bell_exact(mpfr_ptr y, mpfr_srcptr x)
{
    mpfr_sqr(y, x, MPFR_RNDN);
    mpfr_div_si(y, y, -2, MPFR_RNDN);
    return mpfr_exp(y, y, MPFR_RNDN);
}

TEST(exp_neg)
{
    holds(&(function){"exp_neg, |x| < 10", ridge_exp_neg, exp_neg_reference, exp_neg_exact, 10, 2.3, 0});
    holds(&(function){"exp_neg, |x| < 87", ridge_exp_neg, exp_neg_reference, exp_neg_exact, 87, 4.9, 0});
    holds(&(function){"exp_neg", ridge_exp_neg, exp_neg_reference, exp_neg_exact, INFINITY, 4.9, 0.5});
}

TEST(exp_of_either_sign)
{
    holds(&(function){"exp, |x| < 87", ridge_exp, exp, exp_exact, 87, 1.1, 0});
    holds(&(function){"exp", ridge_exp, exp, exp_exact, INFINITY, 1.1, 0.5});
}

TEST(tanh_everywhere)
{
    holds(&(function){"tanh", ridge_tanh, tanh, tanh_exact, INFINITY, 2.7, 0});
}

TEST(sigmoid)
{
    holds(&(function){"sigmoid, |x| < 15", ridge_sigmoid, sigmoid_reference, sigmoid_exact, 15, 3.7, 0});
}

TEST(normal_cdf)
{
    holds(&(function){"normal_cdf", cdf, cdf_reference, cdf_exact, INFINITY, 7.2, 0.52});
    holds(&(function){"its exp, |x| < 13", bell, bell_reference, bell_exact, 13, 5.1, 0});
}

TEST(not_finite)
{
    assert_true(isnan(ridge_exp(NAN)) && ridge_exp(INFINITY) == INFINITY && ridge_exp(-INFINITY) == 0);
    assert_true(ridge_exp_neg(INFINITY) == 0 && ridge_exp_neg(-INFINITY) == 0 && ridge_exp_neg(NAN) == 0);
    assert_true(ridge_tanh(INFINITY) == 1 && ridge_tanh(-INFINITY) == -1 && isnan(ridge_tanh(NAN)));
    assert_true(cdf(INFINITY) == 1 && cdf(-INFINITY) == 0);
    assert_true(ridge_sigmoid(INFINITY) == 1 && ridge_sigmoid(-INFINITY) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_neg), cmocka_unit_test(exp_of_either_sign), cmocka_unit_test(tanh_everywhere),
        cmocka_unit_test(sigmoid), cmocka_unit_test(normal_cdf),         cmocka_unit_test(not_finite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
