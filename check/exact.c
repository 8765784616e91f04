/* exact.c: `ridge test exact`: the arithmetic that host and device share, and what families prove on the device. */
#include <stdlib.h>

#include "cpu/num.h"
#include "family.h"

enum { BLOCK = 1 << 24 };

enum { RCP, EXP_NEG, SIGMOID, NORMAL_CDF, E4M3, E5M2, FUNCTIONS };

typedef struct proof {
    const char *name;
    int function;               /* of the above */
    const check_family *family; /* instead, one that holds where the device gives 1 */
} proof;

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
    default:
        return (float)ridge_fp8_from_f32(x, function == E5M2);
    }
}

/* How many of the floats with bits first + i * step, i < count, have another result on the device. */
static uint64_t differ(const ridge_device *device, const proof *p, uint32_t first, uint32_t step, uint32_t count,
                       float *got)
{
    uint64_t wrong = 0;

    if (p->family ? p->family->proof(device, first, step, count, got)
                  : device->backend->exact(device, p->function, first, step, count, got))
        return count;
#pragma omp parallel for reduction(+ : wrong)
    for (uint32_t i = 0; i < count; i++) {
        const float want = p->family ? 1.0f : on_host(p->function, ridge_float(first + i * step));

        wrong += ridge_bits(want) != ridge_bits(got[i]) && (want == want || got[i] == got[i]);
    }
    return wrong;
}

static bool holds(const ridge_device *device, const proof *p, bool all, float *got)
{
    const uint32_t step = all ? 1 : 257;
    uint64_t wrong = 0;

    if (!p->family && p->function == RCP)
        wrong = differ(device, p, 0x3f800000u, 1, 1u << 23, got);
    else
        for (uint64_t b = 0; b < (UINT64_C(1) << 32) / BLOCK / step + 1 && !wrong; b++)
            wrong = differ(device, p, (uint32_t)(b * BLOCK * step), step, BLOCK, got);
    if (wrong)
        printf("FAIL exact.h on the device: %s differs from the host\n", p->name);
    return !wrong;
}

int test_exact(const ridge_device *device, bool all, int *count)
{
    static const char *const name[] = {"rcp", "exp_neg", "sigmoid", "normal_cdf", "e4m3", "e5m2"};
    float *got = malloc((size_t)BLOCK * sizeof *got);
    int failed = 0;

    *count = FUNCTIONS;
    for (int f = 0; f < FUNCTIONS && got; f++)
        failed += !holds(device, &(proof){name[f], f, NULL}, all, got);
    for (const check_family *const *family = check_families; *family; family++)
        if ((*family)->proof) {
            ++*count;
            failed += got && !holds(device, &(proof){(*family)->proof_name, 0, *family}, all, got);
        }
    if (!got)
        printf("FAIL exact.h on the device: out of memory\n");
    free(got);
    return got ? failed : *count;
}
