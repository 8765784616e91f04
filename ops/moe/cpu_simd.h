/* cpu_simd.h: the product of a row of f32, bf16 or e4m3 with x, in plain loops that compilers turn into vectors: 64 of
 * the 256 chains of products.h at a time stay in registers. Compiled for: avx2, avx512. */
#include "cpu.h"
#include "cpu/num.h"

enum { PART = 64 };

/* Adds `count` columns, 32 or 64, to their chains. */
static inline __attribute__((always_inline)) void add_f32(const float *w, const float *x, int count, float *chain)
{
    for (int i = 0; i < count; i++)
        chain[i] = ridge_fma(w[i], x[i], chain[i]);
}

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

static inline __attribute__((always_inline)) void add(int form, const void *row, int64_t c, const float *scales,
                                                      const float *x, int count, float *chain)
{
    if (form == RIDGE_F32)
        add_f32((const float *)row + c, x + c, count, chain);
    else if (form == RIDGE_BF16)
        add_bf16((const uint16_t *)row + c, x + c, count, chain);
    else
        add_e4m3((const uint8_t *)row + c, scales[c / 128], x + c, count, chain);
}

/* form: a constant here. */
static inline __attribute__((always_inline)) float dot(int form, const void *row, const float *scales, const float *x,
                                                       int64_t cols)
{
    float part[MOE_CHAINS / PART];

    for (int p = 0; p < MOE_CHAINS / PART; p++) {
        float chain[PART] = {0};
        int64_t c = p * PART;

        for (; c + PART <= cols; c += MOE_CHAINS)
            add(form, row, c, scales, x, PART, chain);
        if (c < cols)
            add(form, row, c, scales, x, PART / 2, chain);
        for (int s = 1; s < PART; s *= 2)
            for (int i = 0; i < PART; i += 2 * s)
                chain[i] += chain[i + s];
        part[p] = chain[0];
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
}

float RIDGE_SIMD(ridge_cpu_moe_dot)(int form, const void *row, const float *scales, const float *x, int64_t cols)
{
    return form == RIDGE_F32    ? dot(RIDGE_F32, row, scales, x, cols)
           : form == RIDGE_BF16 ? dot(RIDGE_BF16, row, scales, x, cols)
                                : dot(RIDGE_E4M3, row, scales, x, cols);
}
