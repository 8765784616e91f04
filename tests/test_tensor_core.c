/* test_tensor_core.c: the model of Hopper's matrix instructions (tools/tensor_core.c) against sums made by hand and
 * against what an H200 gave; and that `ridge test` holds the rows that use them to its bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../cpu/num.h"
#include "oracle.h"
#include "tensor_core.h"

enum { COUNT = 32 };

typedef struct numbers {
    float value[COUNT];
    int16_t exponent[COUNT];
} numbers;

static tensor_numbers of_format(numbers *x, int format)
{
    const tensor_numbers of = {x->value, x->exponent, true};

    for (int i = 0; i < COUNT; i++)
        x->exponent[i] = tensor_exponent(x->value[i], format);
    return of;
}

static float add_fp8(numbers a, numbers b, int format_a, int format_b, float acc)
{
    return tensor_add_fp8(of_format(&a, format_a), of_format(&b, format_b), acc);
}

static float add_e4m3(numbers a, numbers b, float acc)
{
    return add_fp8(a, b, TENSOR_E4M3, TENSOR_E4M3, acc);
}

static float add_bf16(numbers a, numbers b)
{
    return tensor_add_bf16(of_format(&a, TENSOR_BF16), of_format(&b, TENSOR_BF16));
}

/* x where `first` is, then `rest` in all others. */
static numbers one_and(float first, float rest)
{
    numbers x;

    for (int i = 0; i < COUNT; i++)
        x.value[i] = i ? rest : first;
    return x;
}

static void assert_bits(float got, float expected)
{
    assert_int_equal(ridge_bits(got), ridge_bits(expected));
}

/* docs/numerics.md: all of 31 products just below the largest one's 2^-13 are lost. */
static void small_products_are_lost(void **state)
{
    (void)state;
    assert_bits(add_e4m3(one_and(1.0f, 0x1.ep-6f), one_and(1.0f, 0x1p-8f), 0.0f), 1.0f);
    assert_bits(add_e4m3(one_and(-1.0f, 0x1.ep-6f), one_and(1.0f, 0x1p-8f), 0.0f), -1.0f);
    assert_bits(add_e4m3(one_and(1.0f, 0x1p-5f), one_and(1.0f, 0x1p-8f), 0.0f), 1.0f + 31 * 0x1p-13f);
    /* the accumulator is a term as the others */
    assert_bits(add_e4m3(one_and(0.0f, 0x1.ep-6f), one_and(1.0f, 0x1p-8f), 1.0f), 1.0f);
    assert_bits(add_e4m3(one_and(1.0f, 0.0f), one_and(1.0f, 0.0f), 0x1.fffp-14f), 1.0f);
    assert_bits(add_e4m3(one_and(1.0f, 0.0f), one_and(1.0f, 0.0f), -0x1.fffp-13f), 1.0f - 0x1p-13f);
}

/* 31 products of 225/64 and one of 2^-8: 20 bits, of which 14 stay. */
static void sums_keep_14_bits(void **state)
{
    numbers a = one_and(0x1p-8f, 1.875f), b = one_and(1.0f, 1.875f);

    (void)state;
    assert_bits(add_e4m3(a, b, 0.0f), 31 * 225 / 64.0f);
    b.value[0] = 2;
    assert_bits(add_e4m3(a, b, 0.0f), 31 * 225 / 64.0f + 0x1p-7f);
    for (int i = 1; i < COUNT; i++)
        a.value[i] = -a.value[i];
    a.value[0] = -0x1p-8f, b.value[0] = 1;
    assert_bits(add_e4m3(a, b, 0.0f), -31 * 225 / 64.0f);
    assert_bits(add_e4m3(one_and(0.0f, 0.0f), one_and(1.0f, 1.0f), 0x1.fffffep10f), 0x1.fff8p10f);
}

/* What counts are the exponents of the codes: not that of a product of 3.5, and of subnormal codes the smallest normal
 * one; a product of zero has none. */
static void exponents_are_the_codes(void **state)
{
    numbers a = one_and(1.875f, 0.0f), b = one_and(1.875f, 0.0f);

    (void)state;
    a.value[1] = -1.875f, b.value[1] = 1.875f;
    a.value[2] = 0x1p-6f, b.value[2] = 0x1p-7f;
    assert_bits(add_e4m3(a, b, 0.0f), 0x1p-13f);
    b.value[2] = 0x1.8p-8f;
    assert_bits(add_e4m3(a, b, 0.0f), 0.0f);
    a = one_and(0x1p-9f, 0.0f), b = one_and(256.0f, 0.0f);
    a.value[1] = 0x1p-4f, b.value[1] = 0x1p-8f;
    assert_bits(add_e4m3(a, b, 0.0f), 0.5f);
    assert_bits(add_fp8(a, b, TENSOR_E5M2, TENSOR_E4M3, 0.0f), 0.5f + 0x1p-12f);
    a.value[0] = 0;
    assert_bits(add_e4m3(a, b, 0.0f), 0x1p-12f);
}

static void what_is_not_finite(void **state)
{
    (void)state;
    assert_bits(add_fp8(one_and(INFINITY, 1.0f), one_and(-1.0f, 2.0f), TENSOR_E5M2, TENSOR_E4M3, 1.0f), -INFINITY);
    assert_true(isnan(add_fp8(one_and(INFINITY, 1.0f), one_and(0.0f, 2.0f), TENSOR_E5M2, TENSOR_E4M3, 1.0f)));
    assert_true(isnan(add_fp8(one_and(INFINITY, 1.0f), one_and(1.0f, 2.0f), TENSOR_E5M2, TENSOR_E4M3, -INFINITY)));
    assert_true(isnan(add_e4m3(one_and(1.0f, NAN), one_and(1.0f, 0.0f), 1.0f)));
}

/* The same of 16 products with 2^-25 and 24 bits. */
static void bf16_keeps_more(void **state)
{
    numbers a = one_and(1.0f, 0.0f), b = one_and(1.0f, 0.0f);

    (void)state;
    a.value[1] = -1.0f, b.value[1] = 1.0f;
    a.value[2] = 0x1p-10f, b.value[2] = 0x1p-15f;
    assert_bits(add_bf16(a, b), 0x1p-25f);
    b.value[2] = 0x1.fp-16f;
    assert_bits(add_bf16(a, b), 0.0f);
    a.value[1] = 1, a.value[3] = b.value[3] = 0x1p-11f;
    assert_bits(add_bf16(a, b), 2.0f + 0x1p-22f);
    a.value[3] = -0x1p-11f;
    assert_bits(add_bf16(a, b), 0x1.fffffcp0f);
}

/* An image with D as a Hopper row leaves it; known: one element that an H200 gave. */
static unsigned char *hopper_result(const char *problem, int64_t row, int64_t col, float known, image *im)
{
    char text[400];
    unsigned char *got;
    test_case c;

    snprintf(text, sizeof text, "gemm_fp8 m=65 n=129 k=96 fill=edge %s", problem);
    assert_true(case_parse(text, &c) && image_build(&c, 1, im));
    got = malloc(im->bytes);
    assert_non_null(got);
    assert_false(oracle_gemm_bits(im, im->host, text, sizeof text));
    memcpy(got, im->memo->bits[0], im->bytes);
    assert_bits(
        (float)dtype_load(oracle_address(im, got, RIDGE_GEMM_FP8_D, row, col), im->call.arg[RIDGE_GEMM_FP8_D].dtype),
        known);
    return got;
}

/* A row of Hopper that gives the bits passes where the float64 bound does not hold, and fails by any other bit. */
static void the_test_wants_the_bits(void **state)
{
    const ridge_kernel hopper = {.op = RIDGE_GEMM_FP8, .arch_max = RIDGE_ARCH_SM90, .contract = RIDGE_TYPICAL};
    const ridge_kernel ada = {.op = RIDGE_GEMM_FP8, .arch_max = RIDGE_ARCH_SM121, .contract = RIDGE_TYPICAL};
    static const struct {
        const char *problem;
        int row, col;
        float known;
    } seen[] = {
        {"a=e5m2 b=e4m3 d=f32 scales=tensor", 50, 49, 202.072495f},
        {"a=e4m3 b=e5m2 d=f16 scales=tensor bias=f16", 37, 123, -251.25f},
        {"a=e4m3 b=e5m2 d=f16 scales=row bias=1", 37, 123, -3.734375f},
        {"a=e5m2 b=e4m3 d=f32 scales=row", 50, 49, 9.82092476f},
        {"a=e5m2 b=e4m3 d=f32 scales=row128_blk128 accumulate=1", 50, 49, 35.2573547f},
        {"a=e4m3 b=e5m2 d=f16 scales=row128_blk128 bias=1", 26, 68, -65.625f},
    };

    (void)state;
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        char text[400];
        image im;
        unsigned char *got = hopper_result(seen[i].problem, seen[i].row, seen[i].col, seen[i].known, &im);

        assert_true(image_judge(&im, &hopper, im.host, got, text, sizeof text));
        assert_false(image_judge(&im, &ada, im.host, got, text, sizeof text));
        got[im.offset[RIDGE_GEMM_FP8_D]] ^= 1;
        assert_false(image_judge(&im, &hopper, im.host, got, text, sizeof text));
        free(got);
        image_free(&im);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_products_are_lost), cmocka_unit_test(sums_keep_14_bits),
        cmocka_unit_test(exponents_are_the_codes), cmocka_unit_test(what_is_not_finite),
        cmocka_unit_test(bf16_keeps_more),         cmocka_unit_test(the_test_wants_the_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
