/* quantize.c: f32 to GGUF's block types, the counterpart of dequantize.c, byte for byte what ggml's reference
 * quantisers (quantize_row_*_ref) give for finite input.
 *
 * Equal bytes need the same operations in the same order, so the searches for scales here follow ggml's: a weighted
 * least-squares fit over a few candidates (llama.cpp, ggml-quants.c: make_qkx2_quants for Q4_K and Q5_K, make_qx_quants
 * for Q6_K). They differ in layout alone: the groups of a super-block lie side by side, x[element][group], and every
 * loop over groups is innermost, so that compilers make vectors of it while each group keeps ggml's order of additions.
 *
 * Not finite: a block that holds NaN or infinity becomes a scale of NaN with codes 0 (MXFP4: e = 255 with codes 7,
 * which decode to infinity in ggml and NaN in OCP). A block of MXFP4 with amax below 2^-125 has e = 0, where ggml's
 * conversion to uint8_t wraps around. */
#ifdef __clang__ /* under the sanitizers it cannot vectorise these loops, and must not fail for it */
#pragma clang diagnostic ignored "-Wpass-failed"
#endif
#include <math.h>
#include <string.h>

#include "cpu/num.h"
#include "io.h"
#include "src/math/blocks.h"

enum { SUPER = 256 };

/* Compiled for several instruction sets, of which the loader takes one; contraction stays off, so that all give the
 * same bits. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

static void put_half(uint8_t *to, float x)
{
    const uint16_t bits = ridge_f16_from_f32(x);

    memcpy(to, &bits, sizeof bits);
}

/* x as f16 and back: what the decoder sees. */
static float as_half(float x)
{
    return ridge_f32_from_f16(ridge_f16_from_f32(x));
}

/* ggml's nearest_int: the sum with 1.5 * 2^23 rounds to nearest even. What is no number or too large gives some
 * integer, always the same. */
static inline int nearest(float x)
{
    return (int)(ridge_bits(x + 12582912.0f) & 0x7fffffu) - 0x400000;
}

static inline int clamp(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

static bool is_finite(const float *x, int count)
{
    uint32_t most = 0;

    for (int i = 0; i < count; i++) {
        const uint32_t size = ridge_bits(x[i]) & 0x7fffffffu;

        most = size > most ? size : most;
    }
    return most < 0x7f800000u;
}

/* --------------------------------------------------------------------------------------------------- blocks of 32 */

/* The conversion to int8_t of ggml; what is out of range, which takes a subnormal scale, is 0 there too. */
static uint8_t truncated(float x, int most)
{
    const int code = x > -129.0f && x < 129.0f ? (int)x : 0;

    return (uint8_t)(code < most ? code : most);
}

/* Low 4 bits: nibbles of 16 bytes. The fifth: a word before them. */
static void put_codes(const uint8_t *code, int bits, uint8_t *to)
{
    uint32_t fifth = 0;

    for (int i = 0; i < 32; i++)
        fifth |= (uint32_t)(code[i] >> 4 & 1) << i;
    if (bits == 5) {
        memcpy(to, &fifth, sizeof fifth);
        to += sizeof fifth;
    }
    for (int i = 0; i < 16; i++)
        to[i] = (uint8_t)((code[i] & 15) | code[i + 16] << 4);
}

/* Q4_0 and Q5_0: the scale takes the extreme, with its sign, to the lowest code. */
static void symmetric(const float *x, int bits, uint8_t *to)
{
    const int zero = 1 << (bits - 1);
    float most = 0, extreme = 0, d, inverse;
    uint8_t code[32] = {0};

    if (!is_finite(x, 32)) {
        put_half(to, NAN);
        put_codes(code, bits, to + 2);
        return;
    }
    for (int i = 0; i < 32; i++)
        if (most < fabsf(x[i])) {
            most = fabsf(x[i]);
            extreme = x[i];
        }
    d = extreme / (float)-zero;
    inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(to, d);
    for (int i = 0; i < 32; i++)
        code[i] = truncated(x[i] * inverse + ((float)zero + 0.5f), 2 * zero - 1);
    put_codes(code, bits, to + 2);
}

/* Q4_1 and Q5_1: from the smallest to the largest element. */
static void affine(const float *x, int bits, uint8_t *to)
{
    const int most = (1 << bits) - 1;
    float low = x[0], high = x[0], d, inverse;
    uint8_t code[32] = {0};

    if (!is_finite(x, 32)) {
        put_half(to, NAN);
        put_half(to + 2, 0);
        put_codes(code, bits, to + 4);
        return;
    }
    for (int i = 1; i < 32; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    d = (high - low) / (float)most;
    inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(to, d);
    put_half(to + 2, low);
    for (int i = 0; i < 32; i++)
        code[i] = truncated((x[i] - low) * inverse + 0.5f, most);
    put_codes(code, bits, to + 4);
}

static void quantize_q4_0(const float *x, uint8_t *to)
{
    symmetric(x, 4, to);
}

static void quantize_q4_1(const float *x, uint8_t *to)
{
    affine(x, 4, to);
}

static void quantize_q5_0(const float *x, uint8_t *to)
{
    symmetric(x, 5, to);
}

static void quantize_q5_1(const float *x, uint8_t *to)
{
    affine(x, 5, to);
}

/* The nearest of the eight values of x's sign; of two equally near the lower code. */
static uint8_t nearest_e2m1(float x, float scale)
{
    const unsigned sign = x < 0 ? 8 : 0;
    float least = fabsf(x);
    uint8_t best = 0;

    for (unsigned code = 1; code < 8; code++) {
        const float error = fabsf((float)ridge_block_e2m1(code | sign) * scale - x);

        if (error < least) {
            least = error;
            best = (uint8_t)(code | sign);
        }
    }
    return best;
}

static void quantize_mxfp4(const float *x, uint8_t *to)
{
    float most = 0, e;
    uint8_t code[32];

    if (!is_finite(x, 32)) {
        to[0] = 255;
        memset(code, 7, sizeof code);
        put_codes(code, 4, to + 1);
        return;
    }
    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    e = most > 0 ? floorf((float)log2((double)most)) + 125.0f : 0.0f;
    to[0] = e < 0 ? 0 : (uint8_t)e;
    for (int i = 0; i < 32; i++)
        code[i] = nearest_e2m1(x[i], ridge_block_e8m0(to[0]));
    put_codes(code, 4, to + 1);
}

/* ------------------------------------------------------------- super-blocks with minima: 8 groups of 32 (Q4_K, Q5_K)
 */

enum { WIDE = 8 };

typedef struct affine_fit {
    float scale[WIDE], min[WIDE]; /* min: its negative, as the format stores it */
    int32_t code[32][WIDE];
} affine_fit;

typedef struct affine_sums {
    float x[32][WIDE], weight[32][WIDE];
    float low[WIDE], high[WIDE], sum_w[WIDE], sum_x[WIDE], error[WIDE];
} affine_sums;

/* Weights of the fit, the groups' ranges, and the first candidate: codes spread evenly over the range. */
CLONES static void affine_begin(const float *from, int most, affine_sums *s, affine_fit *fit)
{
    float mean[WIDE] = {0}, inverse[WIDE];

    for (int i = 0; i < 32; i++)
#pragma omp simd
        for (int g = 0; g < WIDE; g++)
            s->x[i][g] = from[32 * g + i];
    for (int i = 0; i < 32; i++)
#pragma omp simd
        for (int g = 0; g < WIDE; g++)
            mean[g] += s->x[i][g] * s->x[i][g];
#pragma omp simd
    for (int g = 0; g < WIDE; g++) {
        mean[g] = sqrtf(mean[g] / 32);
        s->low[g] = s->high[g] = s->x[0][g];
        s->sum_w[g] = s->sum_x[g] = s->error[g] = 0;
    }
    for (int i = 0; i < 32; i++)
#pragma omp simd
        for (int g = 0; g < WIDE; g++) {
            const float x = s->x[i][g], w = mean[g] + fabsf(x);

            s->weight[i][g] = w;
            s->low[g] = x < s->low[g] ? x : s->low[g];
            s->high[g] = x > s->high[g] ? x : s->high[g];
            s->sum_w[g] += w;
            s->sum_x[g] += w * x;
        }
#pragma omp simd
    for (int g = 0; g < WIDE; g++) {
        s->low[g] = s->low[g] > 0 ? 0 : s->low[g];
        inverse[g] = (float)most / (s->high[g] - s->low[g]);
        fit->scale[g] = 1 / inverse[g];
        fit->min[g] = s->low[g];
    }
    for (int i = 0; i < 32; i++)
#pragma omp simd
        for (int g = 0; g < WIDE; g++) {
            float off;

            fit->code[i][g] = clamp(nearest(inverse[g] * (s->x[i][g] - s->low[g])), 0, most);
            off = fit->scale[g] * (float)fit->code[i][g] + s->low[g] - s->x[i][g];
            s->error[g] += s->weight[i][g] * (off * off);
        }
}

/* One candidate: codes for a range, from the best minimum so far on, that is `reach` codes long, then the scale and the
 * minimum that fit them best. */
CLONES static void affine_try(float reach, int most, affine_sums *s, affine_fit *fit)
{
    float inverse[WIDE], sum_l[WIDE] = {0}, sum_l2[WIDE] = {0}, sum_xl[WIDE] = {0};
    float scale[WIDE], min[WIDE], error[WIDE] = {0};
    int32_t code[32][WIDE], better[WIDE];

#pragma omp simd
    for (int g = 0; g < WIDE; g++)
        inverse[g] = reach / (s->high[g] - fit->min[g]);
    for (int i = 0; i < 32; i++)
#pragma omp simd
        for (int g = 0; g < WIDE; g++) {
            const int l = clamp(nearest(inverse[g] * (s->x[i][g] - fit->min[g])), 0, most);
            const float wl = s->weight[i][g] * (float)l;

            code[i][g] = l;
            sum_l[g] += wl;
            sum_l2[g] += wl * (float)l;
            sum_xl[g] += wl * s->x[i][g];
        }
#pragma omp simd
    for (int g = 0; g < WIDE; g++) {
        const float d = s->sum_w[g] * sum_l2[g] - sum_l[g] * sum_l[g];
        const float m = (sum_l2[g] * s->sum_x[g] - sum_l[g] * sum_xl[g]) / d;

        scale[g] = m > 0 ? sum_xl[g] / sum_l2[g] : (s->sum_w[g] * sum_xl[g] - s->sum_x[g] * sum_l[g]) / d;
        min[g] = m > 0 ? 0 : m;
        better[g] = d > 0;
    }
    for (int i = 0; i < 32; i++)
#pragma omp simd
        for (int g = 0; g < WIDE; g++) {
            const float off = scale[g] * (float)code[i][g] + min[g] - s->x[i][g];

            error[g] += s->weight[i][g] * (off * off);
        }
#pragma omp simd
    for (int g = 0; g < WIDE; g++) {
        better[g] = better[g] && error[g] < s->error[g];
        s->error[g] = better[g] ? error[g] : s->error[g];
        fit->scale[g] = better[g] ? scale[g] : fit->scale[g];
        fit->min[g] = better[g] ? min[g] : fit->min[g];
    }
    for (int i = 0; i < 32; i++)
#pragma omp simd
        for (int g = 0; g < WIDE; g++)
            fit->code[i][g] = better[g] ? code[i][g] : fit->code[i][g];
}

static void affine_search(const float *x, int most, float first, int steps, affine_fit *fit)
{
    affine_sums s;

    affine_begin(x, most, &s, fit);
    for (int step = 0; step <= steps; step++)
        affine_try(first + 0.1f * (float)step + (float)most, most, &s, fit);
    for (int g = 0; g < WIDE; g++) {
        const bool flat = s.high[g] == s.low[g];

        fit->scale[g] = flat ? 0 : fit->scale[g];
        fit->min[g] = -(flat ? s.low[g] : fit->min[g]);
        for (int i = 0; i < 32 && flat; i++)
            fit->code[i][g] = 0;
    }
}

/* Eight 6-bit scales and minima in 12 bytes, as scales_q4_k of dequantize.c reads them. */
static void put_scales(const uint8_t *scale, const uint8_t *min, uint8_t *to)
{
    for (int i = 0; i < 4; i++) {
        to[i] = (uint8_t)(scale[i] | scale[4 + i] >> 4 << 6);
        to[4 + i] = (uint8_t)(min[i] | min[4 + i] >> 4 << 6);
        to[8 + i] = (uint8_t)((scale[4 + i] & 15) | (min[4 + i] & 15) << 4);
    }
}

/* Writes d, dmin and the scales of a super-block; code: 256 of them, those of the search where a group's scale is 0. */
static void affine_block(const float *x, int most, float first, int steps, uint8_t *to, uint8_t *code)
{
    float max_scale = 0, max_min = 0, d, dmin, inverse_scale, inverse_min;
    uint8_t scale[WIDE], min[WIDE];
    affine_fit fit;

    affine_search(x, most, first, steps, &fit);
    for (int g = 0; g < WIDE; g++) {
        max_scale = fit.scale[g] > max_scale ? fit.scale[g] : max_scale;
        max_min = fit.min[g] > max_min ? fit.min[g] : max_min;
    }
    inverse_scale = max_scale > 0 ? 63.0f / max_scale : 0.0f;
    inverse_min = max_min > 0 ? 63.0f / max_min : 0.0f;
    d = as_half(max_scale / 63.0f);
    dmin = as_half(max_min / 63.0f);
    put_half(to, d);
    put_half(to + 2, dmin);
    for (int g = 0; g < WIDE; g++) {
        scale[g] = (uint8_t)clamp((uint8_t)nearest(inverse_scale * fit.scale[g]), 0, 63);
        min[g] = (uint8_t)clamp((uint8_t)nearest(inverse_min * fit.min[g]), 0, 63);
    }
    put_scales(scale, min, to + 4);
    for (int g = 0; g < WIDE; g++) {
        const float of = d * (float)scale[g], add = dmin * (float)min[g];

        for (int i = 0; i < 32; i++)
            code[32 * g + i] =
                (uint8_t)(of == 0 ? fit.code[i][g] : clamp(nearest((x[32 * g + i] + add) / of), 0, most));
    }
}

/* NaN where x is not finite; else true. */
static bool begin_super(const float *x, uint8_t *to, int bytes, int d)
{
    memset(to, 0, (size_t)bytes);
    if (is_finite(x, SUPER))
        return true;
    put_half(to + d, NAN);
    return false;
}

static void quantize_q4_k(const float *x, uint8_t *to)
{
    uint8_t code[SUPER];

    if (!begin_super(x, to, 144, 0))
        return;
    affine_block(x, 15, -1.0f, 20, to, code);
    for (int i = 0; i < 128; i++)
        to[16 + i] = (uint8_t)(code[i / 32 * 64 + i % 32] | code[i / 32 * 64 + 32 + i % 32] << 4);
}

static void quantize_q5_k(const float *x, uint8_t *to)
{
    uint8_t code[SUPER];

    if (!begin_super(x, to, 176, 0))
        return;
    affine_block(x, 31, -0.5f, 15, to, code);
    for (int i = 0; i < SUPER; i++)
        to[16 + i % 32] = (uint8_t)(to[16 + i % 32] | code[i] >> 4 << i / 32);
    for (int i = 0; i < 128; i++)
        to[48 + i] = (uint8_t)((code[i / 32 * 64 + i % 32] & 15) | (code[i / 32 * 64 + 32 + i % 32] & 15) << 4);
}

/* ----------------------------------------------------------------- super-blocks without minima: 16 groups of 16 (Q6_K)
 */

enum { GROUPS = 16, HALF_RANGE = 32 };
static const float least_group = 1e-15f; /* groups and blocks below it are zero */

typedef struct linear_fit {
    float x[16][GROUPS], extreme[GROUPS], most[GROUPS];
    float scale[GROUPS], gain[GROUPS];
    int32_t code[16][GROUPS]; /* from 0 on */
} linear_fit;

/* Codes for an extreme at `reach`, then the scale that fits them best; the first one is taken, others if they fit
 * better. */
CLONES static void linear_try(linear_fit *f, float reach, bool first)
{
    float inverse[GROUPS], sum_xl[GROUPS] = {0}, sum_l2[GROUPS] = {0};
    int32_t code[16][GROUPS], better[GROUPS];

#pragma omp simd
    for (int g = 0; g < GROUPS; g++)
        inverse[g] = -reach / f->extreme[g];
    for (int i = 0; i < 16; i++)
#pragma omp simd
        for (int g = 0; g < GROUPS; g++) {
            const float x = f->x[i][g], w = x * x;
            const int l = clamp(nearest(inverse[g] * x), -HALF_RANGE, HALF_RANGE - 1);

            code[i][g] = l + HALF_RANGE;
            sum_xl[g] += w * x * (float)l;
            sum_l2[g] += w * (float)l * (float)l;
        }
#pragma omp simd
    for (int g = 0; g < GROUPS; g++) {
        const float scale = sum_l2[g] != 0 ? sum_xl[g] / sum_l2[g] : 0.0f;

        better[g] = first || (sum_l2[g] > 0 && sum_xl[g] * sum_xl[g] > f->gain[g] * sum_l2[g]);
        f->scale[g] = better[g] ? scale : f->scale[g];
        f->gain[g] = better[g] ? scale * sum_xl[g] : f->gain[g];
    }
    for (int i = 0; i < 16; i++)
#pragma omp simd
        for (int g = 0; g < GROUPS; g++)
            f->code[i][g] = better[g] ? code[i][g] : f->code[i][g];
}

static void linear_search(const float *from, linear_fit *f)
{
    for (int g = 0; g < GROUPS; g++)
        f->extreme[g] = f->most[g] = 0;
    for (int i = 0; i < 16; i++)
        for (int g = 0; g < GROUPS; g++) {
            const float x = from[16 * g + i], size = fabsf(x);

            f->x[i][g] = x;
            f->extreme[g] = size > f->most[g] ? x : f->extreme[g];
            f->most[g] = size > f->most[g] ? size : f->most[g];
        }
    linear_try(f, HALF_RANGE, true);
    for (int step = -9; step <= 9; step++)
        if (step)
            linear_try(f, (float)HALF_RANGE + 0.1f * (float)step, false);
    for (int g = 0; g < GROUPS; g++)
        if (f->most[g] < least_group) {
            f->scale[g] = 0;
            for (int i = 0; i < 16; i++)
                f->code[i][g] = 0;
        }
}

static void quantize_q6_k(const float *x, uint8_t *to)
{
    float most = 0, extreme = 0, inverse, d;
    linear_fit f;

    if (!begin_super(x, to, 210, 208))
        return;
    linear_search(x, &f);
    for (int g = 0; g < GROUPS; g++)
        if (fabsf(f.scale[g]) > most) {
            most = fabsf(f.scale[g]);
            extreme = f.scale[g];
        }
    if (most < least_group)
        return;
    inverse = -128.0f / extreme;
    d = as_half(1 / inverse);
    put_half(to + 208, d);
    for (int g = 0; g < GROUPS; g++) {
        const int scale = clamp(nearest(inverse * f.scale[g]), -128, 127);
        const float of = d * (float)scale;

        to[192 + g] = (uint8_t)scale;
        for (int i = 0; i < 16; i++) {
            const int at = 16 * g + i, part = at / 32, l = at % 32;
            const int code =
                of == 0 ? f.code[i][g] : clamp(nearest(x[at] / of), -HALF_RANGE, HALF_RANGE - 1) + HALF_RANGE;
            uint8_t *low = to + 64 * (part / 4) + 32 * (part % 2) + l, *high = to + 128 + 32 * (part / 4) + l;

            *low = (uint8_t)(*low | (code & 15) << 4 * (part / 2 % 2));
            *high = (uint8_t)(*high | code >> 4 << 2 * (part % 4));
        }
    }
}

/* -------------------------------------------------------------------------------------------------------------- all */

static void (*const quantizers[RIDGE_TYPES])(const float *x, uint8_t *to) = {
    [RIDGE_TYPE_Q4_0] = quantize_q4_0, [RIDGE_TYPE_Q4_1] = quantize_q4_1,   [RIDGE_TYPE_Q5_0] = quantize_q5_0,
    [RIDGE_TYPE_Q5_1] = quantize_q5_1, [RIDGE_TYPE_Q4_K] = quantize_q4_k,   [RIDGE_TYPE_Q5_K] = quantize_q5_k,
    [RIDGE_TYPE_Q6_K] = quantize_q6_k, [RIDGE_TYPE_MXFP4] = quantize_mxfp4,
};

/* Not inlined: the floating-point mode is set around it. */
static __attribute__((noinline)) void quantize(uint32_t type, const float *from, int64_t blocks, uint8_t *to)
{
    const ridge_type_info *info = ridge_type_query(type);

    for (int64_t b = 0; b < blocks; b++)
        quantizers[type](from + b * info->block, to + b * info->bytes);
}

ridge_status ridge_quantize(uint32_t type, const float *from, int64_t count, void *to)
{
    const ridge_type_info *info = ridge_type_query(type);
    unsigned mode;

    if (!info || !quantizers[type])
        return io_fail(RIDGE_ERR_UNSUPPORTED, "ridge_quantize: nothing can be quantized to type %u (%s)",
                       (unsigned)type, info ? info->name : "unknown");
    if (count < 0 || count % info->block)
        return io_fail(RIDGE_ERR_ARG, "ridge_quantize: %lld elements are not a whole number of %s blocks of %d",
                       (long long)count, info->name, (int)info->block);
    if (count == 0)
        return RIDGE_OK;
    if (!from || !to)
        return io_fail(RIDGE_ERR_ARG, "ridge_quantize: %s is NULL", from ? "to" : "from");
    mode = ridge_fp_begin();
    quantize(type, from, count / info->block, to);
    ridge_fp_end(mode);
    return RIDGE_OK;
}
