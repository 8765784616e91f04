/* test_quantize.c: the fp8 codes of every bf16 number by many scales, of every 257th f32, groups of every bf16 amax,
 * and Q8_0 blocks of every ratio to amax, through every row of the CPU, beside the C reference. What is told apart by a
 * scale's fraction (ops/quantize_fp8/cpu_tables.h) needs more scales than the cases of `ridge test` have. */
#include "unit.h"
#include "src/internal.h"

enum { NUMBERS = 65536, GROUP = 128, SIDE = 128 * GROUP /* columns: a group for every mantissa of amax */, TALL = 256 };

static const char *const sets[] = {"avx2", "avx512", "avx512vbmi"};
static uint64_t state = 11;

static uint32_t random32(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}

static float of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

/* Rows sets[i] must run here. */
static bool has(const ridge_device *device, int i)
{
    if (i == 0)
        return device->arch >= RIDGE_ARCH_AVX2;
    return device->arch >= RIDGE_ARCH_AVX512 && (i == 1 || device->features & RIDGE_HAS_AVX512_VBMI);
}

/* False if this processor has no such row. */
static bool run(const ridge_device *device, ridge_call call, const char *set)
{
    char name[64];
    ridge_status status;

    snprintf(name, sizeof name, "cpu.%s.%s",
             call.op == RIDGE_Q8_0_QUANTIZE  ? "q8_0_quantize"
             : call.op == RIDGE_QUANTIZE_FP8 ? "quantize_fp8"
                                             : "quantize_fp8_dual",
             set);
    call.kernel = name;
    status = ridge_run(device, &call, NULL, 0, NULL);
    if (status && status != RIDGE_ERR_UNSUPPORTED)
        printf("%s\n", ridge_error());
    assert_true(!status || status == RIDGE_ERR_UNSUPPORTED);
    return !status;
}

/* All numbers by one scale. In their order a group is one exponent's; in the other most groups have zeros too. */
static void by_scale(const ridge_device *device, const uint16_t *x, ridge_dtype format, float scale)
{
    static uint8_t expected[NUMBERS], q[NUMBERS];
    ridge_call call = ridge_quantize_fp8(NUMBERS / GROUP, GROUP, ridge_matrix(x, RIDGE_BF16),
                                         ridge_scaled(expected, format, NULL, RIDGE_SCALING_TENSOR));

    ridge_set(&call, RIDGE_QUANTIZE_FP8_SCALE, RIDGE_NONE, NULL, 0);
    ridge_set(&call, RIDGE_QUANTIZE_FP8_GIVEN, RIDGE_F32, &scale, 0);
    assert_true(run(device, call, "c"));
    for (int i = 0; i < 3; i++) {
        memset(q, 0xaa, sizeof q);
        call.arg[RIDGE_QUANTIZE_FP8_Q].data = q;
        assert_true(run(device, call, sets[i]) == has(device, i));
        if (has(device, i) && memcmp(q, expected, sizeof q) != 0)
            fail_msg("%s, scale %a", sets[i], (double)scale);
    }
}

TEST(every_number)
{
    static const float odd[] = {0x1p-126f, 0x1p126f, 0x1.8p-149f, 0x1.fffffep127f, 0, -1, 1, 448, 0x1p-117f, 0x1p-116f};
    static uint16_t x[2][NUMBERS];
    ridge_device *device;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (int i = 0; i < NUMBERS; i++) {
        x[0][i] = (uint16_t)i;
        x[1][i] = (uint16_t)(random32() % 3 ? i : i & 0x8000);
    }
    for (int format = 0; format < 2; format++) {
        const ridge_dtype type = format ? RIDGE_E5M2 : RIDGE_E4M3;

        for (int i = 0; i < 10; i++)
            by_scale(device, x[0], type, odd[i]);
        by_scale(device, x[0], type, of_bits(0x7f800000u));
        by_scale(device, x[0], type, of_bits(0x7fc00000u));
        for (uint32_t m = 0; m < 128; m++) /* scales of an amax */
            by_scale(device, x[m % 2], type, of_bits((60 + m) << 23 | m << 16) / (format ? 57344.0f : 448.0f));
        for (int i = 0; i < 300; i++)
            by_scale(device, x[i % 2], type, of_bits(random32() >> 1));
    }
    ridge_close(device);
}

/* Every 257th f32, all exponents and signs among them, as it is. */
TEST(every_float)
{
    static float x[NUMBERS];
    static uint8_t expected[NUMBERS], q[NUMBERS];
    const float one = 1;
    ridge_device *device;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (uint32_t block = 0; block < 256; block++) {
        for (uint32_t i = 0; i < NUMBERS; i++)
            x[i] = of_bits((block * NUMBERS + i) * 257);
        for (int format = 0; format < 2; format++) {
            ridge_call call = ridge_quantize_fp8(
                NUMBERS / GROUP, GROUP, ridge_matrix(x, RIDGE_F32),
                ridge_scaled(expected, format ? RIDGE_E5M2 : RIDGE_E4M3, NULL, RIDGE_SCALING_TENSOR));

            ridge_set(&call, RIDGE_QUANTIZE_FP8_SCALE, RIDGE_NONE, NULL, 0);
            ridge_set(&call, RIDGE_QUANTIZE_FP8_GIVEN, RIDGE_F32, &one, 0);
            assert_true(run(device, call, "c"));
            call.arg[RIDGE_QUANTIZE_FP8_Q].data = q;
            for (int i = 0; i < 3; i++)
                if (run(device, call, sets[i]) && memcmp(q, expected, sizeof q) != 0)
                    fail_msg("%s, format %d, floats from %08x on", sets[i], format, block * NUMBERS * 257);
        }
    }
    ridge_close(device);
}

/* Groups whose amax has exponent field e and mantissa m: their other numbers are at most `depth` exponents less, of
 * both signs, or zero. */
static void fill_group(uint16_t *x, int64_t step, uint32_t e, uint32_t m)
{
    const uint32_t most = e << 7 | m, depth = 128 * (m % 4 ? 12 : 22);

    for (int k = 0; k < GROUP; k++) {
        const uint32_t u = random32(), less = (u & 0xffff) % depth, zero = u >> 28 == 0;

        x[k * step] = (uint16_t)((zero || less > most ? 0 : most - less) | (u >> 16 & 0x8000));
    }
    x[random32() % GROUP * (uint32_t)step] = (uint16_t)most;
}

typedef struct form {
    uint8_t q[TALL * SIDE], t[TALL * SIDE];
    float s[TALL * SIDE / GROUP], s_t[TALL * SIDE / GROUP];
} form;

static void compare(const ridge_device *device, const uint16_t *x, int64_t rows, int64_t cols, ridge_dtype format,
                    uint32_t flags, float floor)
{
    static form expected, got;

    for (int dual = 0; dual < 2; dual++)
        for (int i = -1; i < 3; i++) {
            form *o = i < 0 ? &expected : &got;
            const ridge_tensor q = ridge_scaled(o->q, format, o->s, RIDGE_SCALING_ROW128);
            const ridge_tensor q_t = ridge_scaled(o->t, format, o->s_t, RIDGE_SCALING_ROW128);
            ridge_call call = dual ? ridge_quantize_fp8_dual(rows, cols, ridge_matrix(x, RIDGE_BF16), q, q_t)
                                   : ridge_quantize_fp8(rows, cols, ridge_matrix(x, RIDGE_BF16), q);

            call.flags |= flags;
            call.opt.quantize.floor = floor;
            memset(o, 0xaa, sizeof *o);
            assert_true(run(device, call, i < 0 ? "c" : sets[i]) == (i < 0 || has(device, i)));
            if (i >= 0 && has(device, i) && memcmp(&expected, &got, sizeof got) != 0)
                fail_msg("%s, dual %d, format %d, floor %g", sets[i], dual, (int)format, (double)floor);
        }
}

TEST(every_amax)
{
    static uint16_t x[TALL * SIDE];
    ridge_device *device;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (int turned = 0; turned < 2; turned++) {
        const int64_t rows = turned ? SIDE : TALL, cols = turned ? TALL : SIDE;

        for (uint32_t e = 0; e < 256; e++)
            for (uint32_t m = 0; m < 128; m++)
                fill_group(turned ? x + m * GROUP * TALL + e : x + e * SIDE + m * GROUP, turned ? TALL : 1, e, m);
        compare(device, x, rows, cols, RIDGE_E4M3, 0, 0);
        compare(device, x, rows, cols, RIDGE_E5M2, 0, 0);
        compare(device, x, rows, cols, RIDGE_E4M3, RIDGE_POW2, 0.3f);
        for (int i = 0; i < 6; i++) /* some floors have a table in the place of another's */
            compare(device, x, rows, cols, i % 2 ? RIDGE_E4M3 : RIDGE_E5M2, 0, 0x1p-20f + 0x1p-43f * (float)random32());
    }
    ridge_close(device);
}

/* For each mantissa of amax a row of blocks with every number of its binade and of the nine below it, above which no
 * code but 0 is left. ops/quantize_fp8/cpu_q8_0.h rests on where their products with the reciprocal lie. */
static void ratios(const ridge_device *device, ridge_dtype dtype, uint32_t bits, uint32_t exponent)
{
    const int64_t rows = INT64_C(1) << bits, blocks = (10 * rows + 30) / 31, cols = blocks * 32;
    const size_t bytes = (size_t)(rows * blocks * 34);
    uint16_t *x = malloc((size_t)(rows * cols) * 2);
    uint8_t *expected = malloc(bytes), *out = malloc(bytes);

    assert_true(x && expected && out);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < cols; i++) {
            const int64_t amax = (int64_t)exponent << bits | row,
                          number = amax - i / 32 * 31 - (i % 32 ? i % 32 - 1 : 0);

            x[row * cols + i] = (uint16_t)((number > 0 ? number : 0) | (random32() & 0x8000));
        }
    assert_true(run(device, ridge_q8_0_quantize(rows, cols, ridge_matrix(x, dtype), expected), "c"));
    for (int i = 0; i < 2; i++) {
        memset(out, 0xee, bytes);
        if (has(device, i)) {
            assert_true(run(device, ridge_q8_0_quantize(rows, cols, ridge_matrix(x, dtype), out), sets[i]));
            assert_memory_equal(out, expected, bytes);
        }
    }
    free(x);
    free(expected);
    free(out);
}

TEST(every_ratio)
{
    ridge_device *device;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (uint32_t exponent = 1; exponent < 12; exponent++) /* d becomes subnormal */
        ratios(device, RIDGE_BF16, 7, exponent);
    ratios(device, RIDGE_BF16, 7, 127);
    ratios(device, RIDGE_BF16, 7, 254);
    ratios(device, RIDGE_F16, 10, 0);
    ratios(device, RIDGE_F16, 10, 15);
    ratios(device, RIDGE_F16, 10, 30);
    ridge_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_number), cmocka_unit_test(every_float),
                                       cmocka_unit_test(every_amax), cmocka_unit_test(every_ratio)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
