/* test_dequantize.c: ridge_dequantize, ridge_quantize and the op q8_0_quantize against fixed results.
 *
 * The hashes were taken when the results had been compared, bit by bit, with ggml's reference in C (the one that
 * llama-cpp-python 0.3.36 carries; 10^6 random blocks of every block type and 10^6 blocks to quantize, all 65536 codes
 * of F16 and BF16) and with the package gguf 0.19.0 (20000 blocks a type): no difference but in the bits of NaNs, which
 * are canonical here. MXFP4 and IQ2_XXS were compared with gguf 0.19.0 alone, 65536 blocks with every scale. F8 and F64
 * were compared with the formats' definitions. ridge_quantize: the same library's quantize_row_*_ref on this data and
 * on 440,000 blocks of 256 a type. */
#include <math.h>

#include "unit.h"
#include "cpu/num.h"
#include "ridge_io.h"

enum { BLOCKS = 512, ROOM = BLOCKS * 256 };

static uint8_t bytes[BLOCKS * 292 + 1];
static float values[ROOM];
static uint64_t seed;

static uint64_t next(void) /* xorshift64* */
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return seed * 2685821657736338717ull;
}

static uint64_t fnv(const void *data, size_t size)
{
    const uint8_t *at = data;
    uint64_t hash = 14695981039346656037ull;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 1099511628211ull;
    return hash;
}

static const struct {
    uint32_t type;
    uint64_t hash;
} expected[] = {
    {RIDGE_TYPE_F64, 0x777f2745ca36a636ull},     {RIDGE_TYPE_F32, 0x15c62ffd76600005ull},
    {RIDGE_TYPE_F16, 0x7fa21f6c3d62d6cdull},     {RIDGE_TYPE_BF16, 0x48aeff7210a40d5aull},
    {RIDGE_TYPE_F8_E4M3, 0x331c5d9ce0a471dcull}, {RIDGE_TYPE_F8_E5M2, 0x7f397e4debb78ae2ull},
    {RIDGE_TYPE_Q4_0, 0xf92a5c802e7bfabeull},    {RIDGE_TYPE_Q4_1, 0xac506073bffe9c99ull},
    {RIDGE_TYPE_Q5_0, 0x113b170077eacc7aull},    {RIDGE_TYPE_Q5_1, 0xe326afd08eb8d841ull},
    {RIDGE_TYPE_Q8_0, 0x00c77cfead04eaa5ull},    {RIDGE_TYPE_Q2_K, 0xead09880c0d52bafull},
    {RIDGE_TYPE_Q3_K, 0x053e34c8e2b219caull},    {RIDGE_TYPE_Q4_K, 0x115a67ca3d4cdf51ull},
    {RIDGE_TYPE_Q5_K, 0x2f3dbd95771ba2e6ull},    {RIDGE_TYPE_Q6_K, 0x1ab51d83342a1200ull},
    {RIDGE_TYPE_MXFP4, 0x8c816f833472a640ull},   {RIDGE_TYPE_IQ2_XXS, 0x4e8817d2b377bc36ull},
};

TEST(hashes)
{
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const ridge_type_info *info = ridge_type_query(expected[i].type);
        int64_t count = (int64_t)BLOCKS * info->block;

        /* all bytes random: one block in 32 has an infinite or NaN scale; from an odd address */
        seed = 1 + expected[i].type;
        for (int64_t b = 0; b < (int64_t)BLOCKS * info->bytes; b++)
            bytes[b + 1] = (uint8_t)(next() >> 56);
        assert_int_equal(ridge_dequantize(expected[i].type, bytes + 1, count, values), RIDGE_OK);
        if (getenv("RIDGE_PRINT_HASHES"))
            printf("    {RIDGE_TYPE_%s, 0x%016llxull},\n", info->name,
                   (unsigned long long)fnv(values, (size_t)count * 4));
        else if (fnv(values, (size_t)count * 4) != expected[i].hash)
            fail_msg("%s: the values have changed", info->name);
    }
}

/* What the hashes would not explain: a value of each kind, by hand. */
TEST(by_hand)
{
    static const uint8_t q8[34] = {0x00, 0x38, 1, 0xff, 0x7f, 0x80}; /* d = 0.5 */
    static const uint8_t e4m3[] = {0x00, 0x80, 0x01, 0x38, 0x7e, 0xfe, 0x7f};
    static const uint8_t e5m2[] = {0x01, 0x3c, 0x7b, 0x7c, 0xfd};
    static const double f64[] = {1.0, 1e300, -1e-320, 0x1.000001p0, 0x1.000003p0};
    uint8_t q4_1[20] = {0x00, 0x3c, 0x00, 0xc0, 0xf1}; /* d = 1, min = -2 */

    assert_int_equal(ridge_dequantize(RIDGE_TYPE_Q8_0, q8, 32, values), RIDGE_OK);
    assert_true(values[0] == 0.5f && values[1] == -0.5f && values[2] == 63.5f && values[3] == -64.0f);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_Q4_1, q4_1, 32, values), RIDGE_OK);
    assert_true(values[0] == -1.0f && values[16] == 13.0f && values[1] == -2.0f);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_F8_E4M3, e4m3, 7, values), RIDGE_OK);
    assert_true(values[0] == 0 && !signbit(values[0]) && values[1] == 0 && signbit(values[1]) && values[2] == 0x1p-9f &&
                values[3] == 1.0f && values[4] == 448.0f && values[5] == -448.0f && isnan(values[6]));
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_F8_E5M2, e5m2, 5, values), RIDGE_OK);
    assert_true(values[0] == 0x1p-16f && values[1] == 1.0f && values[2] == 57344.0f && isinf(values[3]) &&
                isnan(values[4]));
    assert_int_equal(ridge_bits(values[4]), RIDGE_NAN_F32);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_F64, f64, 5, values), RIDGE_OK);
    assert_true(values[0] == 1.0f && isinf(values[1]) && values[2] == 0 && signbit(values[2]) && values[3] == 1.0f &&
                values[4] == 0x1.000004p0f);
}

TEST(quantize)
{
    static const char *const spec[] = {"cpu:c", "cpu:avx2", "cpu:avx512"};
    static float x[BLOCKS * 32];

    seed = 7;
    for (int b = 0; b < BLOCKS; b++) { /* every exponent, subnormals too; every fourth block is full of ties */
        int exponent = (int)(next() % 276) - 148;
        for (int i = 0; i < 32; i++) {
            double r = (double)((int64_t)(next() >> 11) - (1ll << 52)) * 0x1p-52;
            x[32 * b + i] = (float)ldexp(b % 4 ? r : i ? floor(r * 254) / 2 : 127, b % 4 ? exponent : exponent % 100);
        }
    }
    for (size_t i = 0; i < sizeof spec / sizeof *spec; i++) {
        const ridge_call call = ridge_q8_0_quantize(1, BLOCKS * 32, ridge_matrix(x, RIDGE_F32), bytes);
        ridge_device *device;
        uint64_t hash;

        if (ridge_open(spec[i], &device) != RIDGE_OK)
            continue; /* not on this processor */
        memset(bytes, 0xee, sizeof bytes);
        assert_int_equal(ridge_run(device, &call, NULL, 0, NULL), RIDGE_OK);
        ridge_close(device);
        hash = fnv(bytes, BLOCKS * 34);
        if (getenv("RIDGE_PRINT_HASHES"))
            printf("quantize 0x%016llxull\n", (unsigned long long)hash);
        else
            assert_true(hash == 0x63cd5d044079bf64ull);
    }
}

static const struct {
    uint32_t type;
    uint64_t hash;
} quantized[] = {
    {RIDGE_TYPE_Q4_0, 0x41f57e136a4fec3cull}, {RIDGE_TYPE_Q4_1, 0x717851bc26e5c791ull},
    {RIDGE_TYPE_Q5_0, 0x33285126fa32f2dcull}, {RIDGE_TYPE_Q5_1, 0x315e8cc7e3bda5cfull},
    {RIDGE_TYPE_Q4_K, 0x7956ec6484d9ec7full}, {RIDGE_TYPE_Q5_K, 0xca710636c8203023ull},
    {RIDGE_TYPE_Q6_K, 0x3d4d0f5c81534c6aull}, {RIDGE_TYPE_MXFP4, 0x3491076c8e1d49beull},
};

/* Blocks of 256: dense ones of many sizes, sparse ones, ties, one sign, groups of very different sizes, constants. */
static void fill_blocks(void)
{
    seed = 11;
    for (int b = 0; b < BLOCKS; b++) {
        const int exponent = (int)(next() % 120) - 60;

        for (int i = 0; i < 256; i++) {
            double r = (double)((int64_t)(next() >> 11) - (1ll << 52)) * 0x1p-52;

            r = b % 8 == 1 && next() % 16 ? 0 : r;
            r = b % 8 == 2 ? floor(r * 16) / 8 : r;
            r = b % 8 == 3 ? fabs(r) + 1 : r;
            r = b % 8 == 4 ? -fabs(r) : r;
            r = b % 8 == 5 ? ldexp(r, -3 * (i / 16)) : r;
            r = b % 8 == 6 ? 0.75 + i / 64 : r;
            r = b % 8 == 7 ? r * r * r * r * r : r;
            values[256 * b + i] = (float)ldexp(r, exponent);
        }
    }
}

TEST(quantize_blocks)
{
    fill_blocks();
    for (size_t i = 0; i < sizeof quantized / sizeof quantized[0]; i++) {
        const ridge_type_info *info = ridge_type_query(quantized[i].type);
        const size_t size = (size_t)(ROOM / info->block * info->bytes);

        memset(bytes, 0xee, sizeof bytes);
        assert_int_equal(ridge_quantize(quantized[i].type, values, ROOM, bytes + 1), RIDGE_OK);
        if (getenv("RIDGE_PRINT_HASHES"))
            printf("    {RIDGE_TYPE_%s, 0x%016llxull},\n", info->name, (unsigned long long)fnv(bytes + 1, size));
        else if (fnv(bytes + 1, size) != quantized[i].hash)
            fail_msg("%s: the blocks have changed", info->name);
    }
}

/* One element that is not finite: its block decodes to NaN, of MXFP4 to infinity; the next block is as it was. */
TEST(quantize_not_finite)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float x[512], y[512], good[512];
    uint8_t block[512];

    for (size_t i = 0; i < sizeof quantized / sizeof quantized[0]; i++)
        for (int k = 0; k < 3; k++) {
            const uint32_t type = quantized[i].type;
            const int size = ridge_type_query(type)->block;

            for (int j = 0; j < 512; j++)
                x[j] = (float)(j % 37 - 18);
            assert_int_equal(ridge_quantize(type, x, 512, block), RIDGE_OK);
            assert_int_equal(ridge_dequantize(type, block, 512, good), RIDGE_OK);
            x[17] = bad[k];
            assert_int_equal(ridge_quantize(type, x, 512, block), RIDGE_OK);
            assert_int_equal(ridge_dequantize(type, block, 512, y), RIDGE_OK);
            for (int j = 0; j < size; j++)
                assert_true(type == RIDGE_TYPE_MXFP4 ? isinf(y[j]) : isnan(y[j]));
            assert_memory_equal(y + size, good + size, (size_t)(512 - size) * sizeof *y);
        }
    for (int j = 0; j < 32; j++)
        x[j] = 0x1p-130f; /* an exponent that E8M0 lacks */
    assert_int_equal(ridge_quantize(RIDGE_TYPE_MXFP4, x, 32, block), RIDGE_OK);
    assert_int_equal(block[0], 0);
}

TEST(errors)
{
    assert_int_equal(ridge_quantize(RIDGE_TYPE_Q4_K, values, 128, bytes), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_io_error(), "128"));
    assert_int_equal(ridge_quantize(RIDGE_TYPE_Q6_K, values, -256, bytes), RIDGE_ERR_ARG);
    assert_int_equal(ridge_quantize(RIDGE_TYPE_Q6_K, NULL, 256, bytes), RIDGE_ERR_ARG);
    assert_int_equal(ridge_quantize(RIDGE_TYPE_Q6_K, values, 256, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_quantize(RIDGE_TYPE_Q6_K, NULL, 0, NULL), RIDGE_OK);
    assert_int_equal(ridge_quantize(RIDGE_TYPE_Q2_K, values, 256, bytes), RIDGE_ERR_UNSUPPORTED);
    assert_non_null(strstr(ridge_io_error(), "Q2_K"));
    assert_int_equal(ridge_quantize(~0u, values, 256, bytes), RIDGE_ERR_UNSUPPORTED);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_Q8_0, bytes, 33, values), RIDGE_ERR_ARG);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_Q4_K, bytes, 128, values), RIDGE_ERR_ARG);
    assert_non_null(strstr(ridge_io_error(), "128"));
    assert_non_null(strstr(ridge_io_error(), "Q4_K"));
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_F32, bytes, -1, values), RIDGE_ERR_ARG);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_F32, NULL, 1, values), RIDGE_ERR_ARG);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_F32, bytes, 1, NULL), RIDGE_ERR_ARG);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_F32, NULL, 0, NULL), RIDGE_OK);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_IQ4_NL, bytes, 32, values), RIDGE_ERR_UNSUPPORTED);
    assert_int_equal(ridge_dequantize(RIDGE_TYPE_NONE, bytes, 32, values), RIDGE_ERR_UNSUPPORTED);
    assert_int_equal(ridge_dequantize(~0u, bytes, 32, values), RIDGE_ERR_UNSUPPORTED);
}

/* Every type has a name of its own and a sensible size, every GGUF id is there once, and what is dequantized has a
 * hash above. */
TEST(table)
{
    size_t dequantized = 0;

    assert_null(ridge_type_query(RIDGE_TYPE_NONE));
    assert_null(ridge_type_query(RIDGE_TYPES));
    assert_null(ridge_type_query(~0u));
    for (uint32_t a = 1; a < RIDGE_TYPES; a++) {
        const ridge_type_info *info = ridge_type_query(a);
        assert_non_null(info->name);
        assert_true(info->block > 0 && info->bytes > 0 && info->block <= 256 && info->bytes <= 292);
        assert_true(info->gguf >= 0 || info->safetensors);
        dequantized += (size_t)info->dequantize;
        for (uint32_t b = 1; b < a; b++) {
            assert_string_not_equal(info->name, ridge_type_query(b)->name);
            assert_true(info->gguf < 0 || info->gguf != ridge_type_query(b)->gguf);
        }
    }
    assert_int_equal(dequantized, sizeof expected / sizeof expected[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(table),           cmocka_unit_test(hashes),
                                       cmocka_unit_test(by_hand),         cmocka_unit_test(quantize),
                                       cmocka_unit_test(quantize_blocks), cmocka_unit_test(quantize_not_finite),
                                       cmocka_unit_test(errors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
