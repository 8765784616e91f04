/* test_swiglu.c: the approximation of plain SwiGLU of bf16 (ops/swiglu/cpu_approx.h) beside the C reference, bit by
 * bit.
 *
 * Where nothing overflows or is subnormal, a result depends on the gate and on the significands that it meets: up's
 * (out), dout's (dup), and those of dout * up, which is exact (dgate). All of out and dup are tried, a sixteenth of
 * dgate, and other exponents at random. `test_swiglu all`: all pairs of a gate and an up or a dout, and all of dgate.
 * Where one column needs the exact formula, all columns of its step get it: each row has the gates in another order. */
#include <math.h>

#include "unit.h"
#include "src/internal.h"

/* Bf16 gates below 16 in size, of both signs, and as many others that one step in 64 meets one of. */
enum { APPROXIMATED = 2 * 0x4180, COLS = APPROXIMATED + APPROXIMATED / 64, ROWS = 64 };

static uint16_t gate[ROWS * COLS], up[ROWS * COLS], dout[ROWS * COLS], expected[2][ROWS * COLS], got[2][ROWS * COLS];
static uint64_t state = 3;
static bool all;

static uint32_t random32(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}

/* A row of every gate, with one up and one dout. */
static void fill_row(int row, uint16_t u, uint16_t dy)
{
    const int64_t first = (int64_t)row * COLS;
    const uint32_t factor = 2 * (random32() % 65) + 1, begin = random32(); /* coprime to 33536 = 2^8 * 131 */

    for (uint32_t i = 0; i < COLS; i++) {
        const uint32_t k = (uint32_t)((begin + (uint64_t)i * factor) % APPROXIMATED);
        gate[first + i] = (uint16_t)(i < APPROXIMATED ? k / 2 | k << 15 : random32());
        up[first + i] = u;
        dout[first + i] = dy;
    }
    for (int64_t n = APPROXIMATED, at; n < COLS; n++) { /* gates that the approximation never takes, anywhere */
        const uint16_t other = gate[first + n];
        at = first + random32() % (uint32_t)n;
        gate[first + n] = gate[at];
        gate[at] = other;
    }
}

static void compare(const ridge_device *device, bool backward)
{
    static const char *const sets[] = {"c", "avx2", "avx512"};

    for (int i = 0; i < 3; i++) {
        uint16_t(*out)[ROWS * COLS] = i ? got : expected;
        ridge_call call = backward ? ridge_swiglu_bwd(ROWS, COLS, RIDGE_BF16, dout, gate, up, out[0], out[1])
                                   : ridge_swiglu_fwd(ROWS, COLS, RIDGE_BF16, gate, up, out[0]);
        char name[64];
        ridge_status status;

        snprintf(name, sizeof name, "cpu.swiglu_%s.%s", backward ? "bwd" : "fwd", sets[i]);
        call.kernel = name;
        status = ridge_run(device, &call, NULL, 0, NULL);
        if (i && status == RIDGE_ERR_UNSUPPORTED)
            continue; /* not this processor's */
        assert_int_equal(status, RIDGE_OK);
        for (int64_t k = 0; i && k < ROWS * COLS; k++)
            if (got[0][k] != expected[0][k] || (backward && got[1][k] != expected[1][k]))
                fail_msg("%s: gate %04x, up %04x, dout %04x: %04x %04x, not %04x %04x", name, gate[k], up[k], dout[k],
                         got[0][k], got[1][k], expected[0][k], expected[1][k]);
    }
}

/* Every significand of up or dout, `exponents` of them in random order. */
TEST(every_pair)
{
    const int count = all ? 65536 : 512;
    ridge_device *device;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (int backward = 0; backward < 2; backward++)
        for (int i = 0; i < count; i++) {
            /* At first two rows of every significand with exponent 0, then any number, zero, infinity and NaN. */
            const uint32_t any = random32() & 0xffff;
            const uint16_t x = (uint16_t)(all ? i : i < 256 ? 0x3f80 | (i & 0x7f) | (i & 0x80) << 8 : any);
            fill_row(i % ROWS, backward ? (uint16_t)random32() : x, x);
            if (i % ROWS == ROWS - 1)
                compare(device, backward);
        }
    ridge_close(device);
}

TEST(every_product)
{
    ridge_device *device;
    int row = 0;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (uint32_t a = 0; a < 128; a++)
        for (uint32_t b = a; b < 128; b++) {
            if (!all && random32() % 16 != 0)
                continue;
            fill_row(row, (uint16_t)(0x3f80 | a), (uint16_t)(0xbf80 | b));
            row = (row + 1) % ROWS;
            if (row == 0)
                compare(device, true);
        }
    compare(device, true);
    ridge_close(device);
}

/* Gates that alpha takes beyond the largest float have the slope of SiLU there, 1 or 0; an infinite gate has none. */
TEST(alpha_of_large_gates)
{
    static const char *const sets[] = {"c", "avx2", "avx512"};
    static float g[] = {3e38f, 2.1e38f, 1e38f, -3e38f, -2.1e38f, 0.0f, INFINITY, -INFINITY, NAN}, one[9], dgate[9],
                 dup[9];
    static const float want[] = {1, 1, 1, 0, 0, 0.5f, NAN, NAN, NAN};
    ridge_device *device;

    assert_int_equal(ridge_open("cpu", &device), RIDGE_OK);
    for (int i = 0; i < 9; i++)
        one[i] = 1;
    for (int i = 0; i < 3; i++) {
        ridge_call call = ridge_swiglu_bwd(1, 9, RIDGE_F32, one, g, one, dgate, dup);
        char name[64];
        ridge_status status;

        snprintf(name, sizeof name, "cpu.swiglu_bwd.%s", sets[i]);
        call.kernel = name;
        call.opt.swiglu.alpha = 1.702f;
        status = ridge_run(device, &call, NULL, 0, NULL);
        if (i && status == RIDGE_ERR_UNSUPPORTED)
            continue;
        assert_int_equal(status, RIDGE_OK);
        for (int k = 0; k < 9; k++)
            if (isnan(want[k]) ? !isnan(dgate[k]) : dgate[k] != want[k])
                fail_msg("%s: gate %g: %g, not %g", name, (double)g[k], (double)dgate[k], (double)want[k]);
    }
    ridge_close(device);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair), cmocka_unit_test(every_product),
                                       cmocka_unit_test(alpha_of_large_gates)};

    all = argc > 1 && strcmp(argv[1], "all") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
