/* exact.c: `ridge test exact`: the arithmetic that host and device share, and the device's guesses of SwiGLU. */
#include <stdlib.h>

#include "cpu/num.h"
#include "ops/swiglu/op.h"
#include "test.h"

enum { RCP, EXP_NEG, SIGMOID, NORMAL_CDF, E4M3, E5M2, GUESS, FUNCTIONS };

static float on_host(int function, float x)
{
    float bell;

    switch (function) {
    case RCP:
        return ridge_rcp(x);
    case EXP_NEG:
        return ridge_exp_neg(x);
    case SIGMOID:
        return ridge_sigmoid(x);
    case NORMAL_CDF:
        return ridge_normal_cdf(x, &bell);
    case GUESS:
        return 1.0f; /* holds for every pair of bf16 gate and up */
    default:
        return (float)ridge_fp8_from_f32(x, function == E5M2);
    }
}

static ridge_status on_device(const ridge_device *device, int function, uint32_t first, uint32_t step, uint32_t count,
                              float *got)
{
#if RIDGE_HAVE_CUDA
    if (function == GUESS)
        return ridge_cuda_swiglu_approx(device, first, step, count, got);
#endif
    return device->backend->exact(device, function, first, step, count, got);
}

/* How many of the floats with bits first + i * step, i < count, have another result on the device. */
static uint64_t differ(const ridge_device *device, int function, uint32_t first, uint32_t step, uint32_t count,
                       float *got)
{
    uint64_t wrong = 0;

    if (on_device(device, function, first, step, count, got))
        return count;
#pragma omp parallel for reduction(+ : wrong)
    for (uint32_t i = 0; i < count; i++) {
        const float want = on_host(function, ridge_float(first + i * step));

        wrong += ridge_bits(want) != ridge_bits(got[i]) && (want == want || got[i] == got[i]);
    }
    return wrong;
}

int test_exact(const ridge_device *device, bool all, int *count)
{
    static const char *const name[] = {"rcp", "exp_neg", "sigmoid", "normal_cdf", "e4m3", "e5m2", "swiglu's guess"};
    enum { BLOCK = 1 << 24 };
    const uint32_t step = all ? 1 : 257;
    float *got = malloc((size_t)BLOCK * sizeof *got);
    int failed = 0;

    for (int f = 0; f < FUNCTIONS; f++) {
        uint64_t wrong = got ? 0 : 1;

        if (f == RCP && got)
            wrong = differ(device, f, 0x3f800000u, 1, 1u << 23, got);
        for (uint64_t b = 0; f != RCP && b < (UINT64_C(1) << 32) / BLOCK / step + 1 && !wrong; b++)
            wrong = differ(device, f, (uint32_t)(b * BLOCK * step), step, BLOCK, got);
        if (wrong)
            printf("FAIL exact.h on the device: %s differs from the host\n", name[f]);
        failed += wrong != 0;
    }
    free(got);
    *count = FUNCTIONS;
    return failed;
}
