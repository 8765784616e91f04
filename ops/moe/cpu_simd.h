/* cpu_simd.h: the product of a row of bf16 or e4m3 with x, in plain loops that compilers turn into vectors: 64 of the
 * 256 chains of products.h at a time stay in registers. Compiled for: avx2, avx512. */
#include "cpu.h"
#include "cpu/num.h"

enum { PART = 64 };

/* Adds `count` columns, 32 or 64, to their chains. */
static inline __attribute__((always_inline)) void add_bf16(const uint16_t *w, const float *x, int count, float *chain)
{
    for (int i = 0; i < count; i++)
        chain[i] = ridge_fma(ridge_f32_from_bf16(w[i]), x[i], chain[i]);
}

static inline __attribute__((always_inline)) void add_e4m3(const uint8_t *w, float scale, const float *x, int count,
                                                           float *chain)
{
    for (int i = 0; i < count; i++)
        chain[i] = ridge_fma(ridge_f32_from_fp8(w[i], 0), x[i] * scale, chain[i]);
}

float RIDGE_SIMD(ridge_cpu_moe_dot)(const void *row, const float *scales, const float *x, int64_t cols)
{
    float part[MOE_CHAINS / PART];

    for (int p = 0; p < MOE_CHAINS / PART; p++) {
        float chain[PART] = {0};
        int64_t c = p * PART;

        if (!scales)
            for (; c + PART <= cols; c += MOE_CHAINS)
                add_bf16((const uint16_t *)row + c, x + c, PART, chain);
        else
            for (; c + PART <= cols; c += MOE_CHAINS)
                add_e4m3((const uint8_t *)row + c, scales[c / 128], x + c, PART, chain);
        if (c < cols && !scales)
            add_bf16((const uint16_t *)row + c, x + c, PART / 2, chain);
        else if (c < cols)
            add_e4m3((const uint8_t *)row + c, scales[c / 128], x + c, PART / 2, chain);
        for (int s = 1; s < PART; s *= 2)
            for (int i = 0; i < PART; i += 2 * s)
                chain[i] += chain[i + s];
        part[p] = chain[0];
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
}
