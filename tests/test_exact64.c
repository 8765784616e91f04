/* test_exact64.c: ridge_sincos against MPFR at every distance from a multiple of pi/2 and every size of argument;
 * ridge_log64 against MPFR, and the words of Philox against published ones; ridge_rope_freqs: plain frequencies, YaRN's
 * two ends, refusals. */
#include <math.h>

#include <mpfr.h>

#include "unit.h"
#include "src/math/sample.h"
#include "src/internal.h"

/* Error of got in units of the last place of f32 at the exact value. */
static double ulps(float got, mpfr_srcptr exact)
{
    mpfr_t d;
    const double size = fabs(mpfr_get_d(exact, MPFR_RNDN));
    double unit;
    int exponent;

    frexp(size, &exponent);
    unit = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    mpfr_init2(d, 300);
    mpfr_sub_d(d, exact, (double)got, MPFR_RNDN);
    unit = fabs(mpfr_get_d(d, MPFR_RNDN)) / unit;
    mpfr_clear(d);
    return unit;
}

typedef struct tally {
    double sine, cosine;
    int count, wrong; /* wrong: not the f32 nearest to the exact value */
} tally;

static void one(tally *t, double x)
{
    mpfr_t a, s, c;
    float sine, cosine;

    mpfr_inits2(300, a, s, c, (mpfr_ptr)NULL);
    ridge_sincos(x, &sine, &cosine);
    mpfr_set_d(a, x, MPFR_RNDN);
    mpfr_sin_cos(s, c, a, MPFR_RNDN);
    t->sine = fmax(t->sine, ulps(sine, s));
    t->cosine = fmax(t->cosine, ulps(cosine, c));
    t->wrong += (sine != mpfr_get_flt(s, MPFR_RNDN)) + (cosine != mpfr_get_flt(c, MPFR_RNDN));
    t->count += 2;
    assert_true(sine == sine && cosine == cosine);
    mpfr_clears(a, s, c, (mpfr_ptr)NULL);
}

static uint64_t state = 1;

static uint64_t next(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state ^ state >> 29;
}

static double uniform(void)
{
    return (double)(next() >> 11) * 0x1p-53;
}

static void report(const char *what, const tally *t)
{
    printf("%-34s %d results: sin %.7f ulp, cos %.7f ulp, %d not the nearest f32\n", what, t->count, t->sine, t->cosine,
           t->wrong);
    assert_true(t->sine <= 0.50000002);
    assert_true(t->cosine <= 0.50000002);
}

/* Angles of RoPE: integer positions up to 2^20, a frequency in (0, 1]. */
TEST(rope_angles)
{
    tally t = {0};

    for (int i = 0; i < 100000; i++)
        one(&t, (double)(next() % 1048577) * pow(10000.0, -uniform()));
    one(&t, 1000000.0);
    report("positions below 2^20", &t);
}

/* Every size up to the limit, either sign. */
TEST(every_size)
{
    tally t = {0};

    for (int e = -60; e < 47; e++)
        for (int i = 0; i < 400; i++)
            one(&t, ldexp(1 + uniform(), e) * (i & 1 ? -1 : 1));
    report("2^-60 to 2^47", &t);
}

/* The doubles on both sides of n pi/2: where the reduction loses most. */
TEST(near_multiples)
{
    tally t = {0};
    mpfr_t pi;

    mpfr_init2(pi, 300);
    for (int i = 0; i < 40000; i++) {
        const double n = i < 1000 ? i : floor(ldexp(uniform(), 10 + i % 36));
        double x;

        mpfr_const_pi(pi, MPFR_RNDN);
        mpfr_mul_d(pi, pi, 0.5 * n, MPFR_RNDN);
        x = mpfr_get_d(pi, MPFR_RNDN);
        one(&t, x);
        one(&t, nextafter(x, INFINITY));
        one(&t, nextafter(x, -INFINITY));
    }
    mpfr_clear(pi);
    report("next to multiples of pi/2", &t);
}

TEST(edges)
{
    const double outside[] = {0x1p47, -0x1p47, 1e300, INFINITY, -INFINITY, NAN};
    float s, c;

    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        ridge_sincos(outside[i], &s, &c);
        assert_int_equal(ridge_bits(s), 0x7fc00000u);
        assert_int_equal(ridge_bits(c), 0x7fc00000u);
    }
    ridge_sincos(0.0, &s, &c);
    assert_int_equal(ridge_bits(s), 0);
    assert_true(c == 1.0f);
    ridge_sincos(0x1.fffffffffffffp46, &s, &c);
    assert_true(s == s && c == c);
}

/* Every size, and next to 1, where the result is small. */
TEST(logarithm)
{
    double worst = 0;
    mpfr_t a;

    mpfr_init2(a, 300);
    for (int i = 0; i < 200000; i++) {
        const double x = i % 2 ? ldexp(1 + uniform(), i % 2000 - 1000) : 1 + ldexp(uniform() - 0.5, -(i / 2 % 52));
        double error;

        mpfr_set_d(a, x, MPFR_RNDN);
        mpfr_log(a, a, MPFR_RNDN);
        mpfr_sub_d(a, a, ridge_log64(x), MPFR_RNDN);
        error = fabs(mpfr_get_d(a, MPFR_RNDN));
        worst = fmax(worst, x == 1 ? error * 1e300 : error / fabs(log(x)));
    }
    mpfr_clear(a);
    printf("logarithm: 2^%.1f of the result\n", log2(worst));
    assert_true(worst <= 0x1p-46);
}

/* The vectors that come with the paper's library (Random123, philox4x32, 10 rounds). */
TEST(philox)
{
    uint32_t word[4];

    ridge_philox4(0, 0, 0, word);
    assert_true(word[0] == 0x6627e8d5 && word[1] == 0xe169c58d && word[2] == 0xbc57ac4c && word[3] == 0x9b00dbd8);
    ridge_philox4(UINT64_MAX, UINT64_MAX, UINT64_MAX, word);
    assert_true(word[0] == 0x408f276d && word[1] == 0x41c83b0e && word[2] == 0xa20bc7c6 && word[3] == 0x6d5451fd);
}

TEST(frequencies)
{
    ridge_yarn yarn = {sizeof yarn, 0, 1.0 / 16, 65536, 1, 1, 32, 1};
    double plain[32], stretched[32];
    float mscale;

    assert_int_equal(ridge_rope_freqs(64, 10000.0, NULL, plain, &mscale), RIDGE_OK);
    assert_true(mscale == 1.0f && plain[0] == 1.0);
    for (int i = 0; i < 32; i++)
        assert_true(fabs(plain[i] * pow(10000.0, i / 32.0) - 1) < 1e-14);
    assert_int_equal(ridge_rope_freqs(64, 10000.0, &yarn, stretched, &mscale), RIDGE_OK);
    assert_true(fabs((double)mscale - (1 + 0.1 * log(16))) < 1e-6);
    assert_true(stretched[0] == plain[0]);                     /* fast pairs keep theirs */
    assert_true(stretched[31] > plain[31] / 16 * (1 - 1e-12)); /* slow ones are stretched at most 16 times */
    for (int i = 1; i < 32; i++)
        assert_true(stretched[i] < stretched[i - 1] && stretched[i] <= plain[i]);
    yarn.ext_factor = 0;
    assert_int_equal(ridge_rope_freqs(64, 10000.0, &yarn, stretched, NULL), RIDGE_OK);
    for (int i = 0; i < 32; i++)
        assert_true(stretched[i] == plain[i] / 16);
}

TEST(refusals)
{
    ridge_yarn yarn = {sizeof yarn, 0, 1.0 / 16, 65536, 1, 1, 32, 1}, bad;
    double f[32];

    assert_int_equal(ridge_rope_freqs(63, 1e4, NULL, f, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_rope_freqs(-2, 1e4, NULL, f, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_rope_freqs(64, 1.0, NULL, f, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_rope_freqs(64, NAN, NULL, f, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_rope_freqs(64, 1e4, NULL, NULL, NULL), RIDGE_ERR_ARG);
    bad = yarn;
    bad.struct_size = 8;
    assert_int_equal(ridge_rope_freqs(64, 1e4, &bad, f, NULL), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_error(), "struct_size"));
    bad = yarn;
    bad.freq_scale = 0;
    assert_int_equal(ridge_rope_freqs(64, 1e4, &bad, f, NULL), RIDGE_ERR_ARG);
    bad = yarn;
    bad.beta_slow = 64;
    assert_int_equal(ridge_rope_freqs(64, 1e4, &bad, f, NULL), RIDGE_ERR_ARG);
    bad = yarn;
    bad.original_context = NAN;
    assert_int_equal(ridge_rope_freqs(64, 1e4, &bad, f, NULL), RIDGE_ERR_ARG);
    bad = yarn;
    bad.attn_factor = INFINITY;
    assert_int_equal(ridge_rope_freqs(64, 1e4, &bad, f, NULL), RIDGE_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_angles), cmocka_unit_test(every_size), cmocka_unit_test(near_multiples),
        cmocka_unit_test(edges),       cmocka_unit_test(logarithm),  cmocka_unit_test(philox),
        cmocka_unit_test(frequencies), cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
