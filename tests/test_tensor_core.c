/* test_tensor_core.c: the model of Hopper's matrix instructions (check/gemm_fp8/tensor_core.c) against sums made by
 * hand and against what an H200 gave; and that `ridge test` holds the rows that use them to its bits. */
#include "unit.h"
#include "cpu/num.h"
#include "check/gemm_fp8/gemm.h"
#include "check/gemm_fp8/tensor_core.h"

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
TEST(small_products_are_lost)
{
    assert_bits(add_e4m3(one_and(1.0f, 0x1.ep-6f), one_and(1.0f, 0x1p-8f), 0.0f), 1.0f);
    assert_bits(add_e4m3(one_and(-1.0f, 0x1.ep-6f), one_and(1.0f, 0x1p-8f), 0.0f), -1.0f);
    assert_bits(add_e4m3(one_and(1.0f, 0x1p-5f), one_and(1.0f, 0x1p-8f), 0.0f), 1.0f + 31 * 0x1p-13f);
    /* the accumulator is a term as the others */
    assert_bits(add_e4m3(one_and(0.0f, 0x1.ep-6f), one_and(1.0f, 0x1p-8f), 1.0f), 1.0f);
    assert_bits(add_e4m3(one_and(1.0f, 0.0f), one_and(1.0f, 0.0f), 0x1.fffp-14f), 1.0f);
    assert_bits(add_e4m3(one_and(1.0f, 0.0f), one_and(1.0f, 0.0f), -0x1.fffp-13f), 1.0f - 0x1p-13f);
}

/* 31 products of 225/64 and one of 2^-8: 20 bits, of which 14 stay. */
TEST(sums_keep_14_bits)
{
    numbers a = one_and(0x1p-8f, 1.875f), b = one_and(1.0f, 1.875f);

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
TEST(exponents_are_the_codes)
{
    numbers a = one_and(1.875f, 0.0f), b = one_and(1.875f, 0.0f);

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

TEST(what_is_not_finite)
{
    assert_bits(add_fp8(one_and(INFINITY, 1.0f), one_and(-1.0f, 2.0f), TENSOR_E5M2, TENSOR_E4M3, 1.0f), -INFINITY);
    assert_true(isnan(add_fp8(one_and(INFINITY, 1.0f), one_and(0.0f, 2.0f), TENSOR_E5M2, TENSOR_E4M3, 1.0f)));
    assert_true(isnan(add_fp8(one_and(INFINITY, 1.0f), one_and(1.0f, 2.0f), TENSOR_E5M2, TENSOR_E4M3, -INFINITY)));
    assert_true(isnan(add_e4m3(one_and(1.0f, NAN), one_and(1.0f, 0.0f), 1.0f)));
}

/* The same of 16 products with 2^-25 and 24 bits. */
TEST(bf16_keeps_more)
{
    numbers a = one_and(1.0f, 0.0f), b = one_and(1.0f, 0.0f);

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

/* 32 codes of a, of b, an accumulator, and what an H200 gave. */
static const struct {
    int format_a, format_b;
    const char *a, *b;
    float acc, sum;
} known_fp8[] = {
    {TENSOR_E4M3, TENSOR_E4M3, "33a71fb3752921b5b93b2fbc3d35b8995caebbbb3a3bb8092fb9b9b0093a3d33",
     "b1bcb33326b7acb9aeb9afb6b8b74029a23f3131372e25b035322bb52c39b723", -0x1.bf1bb8p-8f, 0x1.2248p+5f},
    {TENSOR_E4M3, TENSOR_E4M3, "c60a965c481e73f5ed0f1dacfcfa15e8679e4033268225d8177b0c4c60f50dae",
     "bfdd7a7d72202830d3058703311cb141699623665c033b0117016572864b853d", 0x0p+0f, 0x1.e3f8p+13f},
    {TENSOR_E4M3, TENSOR_E4M3, "00b0089cd69d27008e01a080008007e3ce800100d98d93011c2a88801dd4bff9",
     "b0fafa92c98d0eac85f38e639f700366d9a5c059d5a8e3643884d54578c35cbd", 0x1.a9a8p+1f, -0x1.5dcp+10f},
    {TENSOR_E4M3, TENSOR_E4M3, "8a0000e5615c0000a9cff31a356a8067f9804cc3004a3fe5858031358030dd80",
     "a58ba46ab7bab33b2bbc2ab6b135abafb43ab0bcc0ab8e2eaa9933782db839af", -0x1.edb048p-2f, -0x1.e278p+11f},
    {TENSOR_E4M3, TENSOR_E5M2, "dc80d38000805200876c8080828d55c78d80e77335e4805700c08000007a00e0",
     "b3bab6b4363ca7b6bfb9be3baa3cb93c382cb335b0bab23336324140b8c1bdba", 0x1.7adfp-22f, -0x1.6de8p+9f},
    {TENSOR_E4M3, TENSOR_E5M2, "2b0871006d36ed9d4301fd83be143d1e9b8e3fd7e36c75f5dedb18031fea245f",
     "a5df061d970183b5331207cea88d4e6d7a7bf21c80ac804464ea0465410a4b98", 0x0p+0f, 0x1.338p+13f},
    {TENSOR_E4M3, TENSOR_E5M2, "b0bbb8b2ba3e373cb8b1c090b13a3faca9350cb2b4103c413dc2b9b5aeb125aa",
     "da0a80211f02d32f050c420c81c8302c480d10595fc6b4b1022702c29fa8a7a0", -0x1.30dp+4f, -0x1.abfp+8f},
    {TENSOR_E5M2, TENSOR_E4M3, "c1c8342b13c4bfe30aa8bc35d76727bac3c086042e07e91c203cb726d96361cb",
     "97c79e726b279493cc67e6a3cf74db874a74d98402b51cf107129baebf2e4ad3", 0x0p+0f, 0x1.543p+18f},
    {TENSOR_E5M2, TENSOR_E4M3, "28c127554ba342bb9d80ba8bad134c0489119652083f3ab61e5aa82fb65c2fa1",
     "6fe99cd17dbac1bc5ce0877a1381478f1907a6ba482d88a9d54c0397b841ebb3", 0x1.1a7p-22f, 0x1.b598p+12f},
    {TENSOR_E5M2, TENSOR_E4M3, "9b014001353533e8b425377b606d886af87b5ac9d1d0cbc04ffbb76a039b50bd",
     "9581000512002bdde4d200848794c4238080940180b2fb80e58080a285060083", 0x1.342908p+10f, 0x1.bfe8p+15f},
    {TENSOR_E5M2, TENSOR_E4M3, "438f8855b1804900b302dc8702063d24bc890698d592014b2e83810a3e9aaeba",
     "985d26801883809937b54c80a0eabda08055802b810087008089800004e46d72", 0x1.24b708p-1f, -0x1.a0dp+10f},
};

/* 8 numbers of a and of b, each twice: scales as dW's row cuts them. */
static const struct {
    const char *a, *b;
    float sum;
} known_bf16[] = {
    {"37cb37cb32c337cb2ecc32c332c32ecc", "37c333ef37c32f2637c333ef2f2633ef", 0x1.37087ap-30f},
    {"b71ab71ab2c3b71aaedeb2c3b2c3aede", "ba83b69bba83b2daba83b69bb2dab69b", 0x1.3d7866p-26f},
    {"c450c450c044c450bb24c044c044bb24", "3b8835cf3b8830003b8835cf300035cf", -0x1.bbcb0cp+2f},
};

/* Number i of a text of hexadecimal ones of `digits`. */
static unsigned number_at(const char *text, int i, int digits)
{
    char one[5] = {0};

    memcpy(one, text + i * digits, (size_t)digits);
    return (unsigned)strtoul(one, NULL, 16);
}

static numbers of_codes(const char *text, int format)
{
    numbers x;

    for (int i = 0; i < COUNT; i++)
        x.value[i] = ridge_f32_from_fp8((uint8_t)number_at(text, i, 2), format == TENSOR_E5M2);
    return x;
}

static numbers of_bf16(const char *text)
{
    numbers x = one_and(0.0f, 0.0f);

    for (int i = 0; i < 16; i++)
        x.value[i] = ridge_f32_from_bf16((uint16_t)number_at(text, i % 8, 4));
    return x;
}

TEST(an_h200_agrees)
{
    for (size_t i = 0; i < sizeof known_fp8 / sizeof known_fp8[0]; i++)
        assert_bits(add_fp8(of_codes(known_fp8[i].a, known_fp8[i].format_a),
                            of_codes(known_fp8[i].b, known_fp8[i].format_b), known_fp8[i].format_a,
                            known_fp8[i].format_b, known_fp8[i].acc),
                    known_fp8[i].sum);
    for (size_t i = 0; i < sizeof known_bf16 / sizeof known_bf16[0]; i++)
        assert_bits(add_bf16(of_bf16(known_bf16[i].a), of_bf16(known_bf16[i].b)), known_bf16[i].sum);
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
TEST(the_test_wants_the_bits)
{
    const ridge_kernel hopper = {.op = RIDGE_GEMM_FP8, .arch_max = RIDGE_ARCH_SM90, .contract = RIDGE_TYPICAL};
    const ridge_kernel ada = {.op = RIDGE_GEMM_FP8, .arch_max = RIDGE_ARCH_CUDA_LAST, .contract = RIDGE_TYPICAL};
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
        cmocka_unit_test(bf16_keeps_more),         cmocka_unit_test(an_h200_agrees),
        cmocka_unit_test(the_test_wants_the_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
