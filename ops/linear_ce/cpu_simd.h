/* cpu_simd.h: the vector code of cross entropy, once an instruction set: the f32 matrix product (packing,
 * a register tile, blocks divided among the threads) and the passes over rows of logits.
 *
 * The product: both factors are converted to f32 and packed into panels, k by k, so that the tile reads both in order.
 * AVX-512: 8 x 48 accumulators (24 registers, 3 of b, 8 broadcasts from memory a k); AVX2: 4 x 24 (12, 3, 4). Each
 * element of d is one chain of fma over a group of CE_KC, then one addition into d, however the blocks are divided
 * among the threads. The row passes are plain loops that the compiler vectorises, with a fixed number of partial sums.
 * Compiled for: avx2, avx512. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "cpu_fast.h"
#include "cpu/num.h"
#include "src/util.h"

#if defined(__AVX512F__)
typedef __m512 vec;
enum { LANES = 16, MR = 8 };
#define VLOAD _mm512_loadu_ps
#define VSTORE _mm512_storeu_ps
#define VSET _mm512_set1_ps
#define VZERO _mm512_setzero_ps
#define VADD _mm512_add_ps
#define VFMA _mm512_fmadd_ps
#define EACH_ROW(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#else
typedef __m256 vec;
enum { LANES = 8, MR = 4 };
#define VLOAD _mm256_loadu_ps
#define VSTORE _mm256_storeu_ps
#define VSET _mm256_set1_ps
#define VZERO _mm256_setzero_ps
#define VADD _mm256_add_ps
#define VFMA _mm256_fmadd_ps
#define EACH_ROW(M) M(0) M(1) M(2) M(3)
#endif

enum { NR = 3 * LANES, TILE_M = 64 / MR, TILE_N = 5, PARTS = 64 };

/* ---------------------------------------------------------------------------------------------------------- packing */

static inline __m256 load8(const void *from, uint32_t dtype)
{
    if (dtype == RIDGE_F32)
        return _mm256_loadu_ps(from);
    if (dtype == RIDGE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), 16));
}

static inline float load1(const void *from, uint32_t dtype)
{
    uint16_t half;

    if (dtype == RIDGE_F32)
        return *(const float *)from;
    memcpy(&half, from, 2);
    return dtype == RIDGE_BF16 ? ridge_f32_from_bf16(half) : ridge_f32_from_f16(half);
}

static inline const char *line_at(const ce_matrix *x, int64_t line, int64_t at)
{
    const int64_t size = x->dtype == RIDGE_F32 ? 4 : 2;

    return (const char *)x->data + ((x->gather ? x->gather[line] : line) * x->stride + at) * size;
}

/* Eight lines, eight k: out[k][line], `wide` floats from k to k. */
static inline __attribute__((always_inline)) void transpose8(const char *const *line, int64_t at, uint32_t dtype,
                                                             float *out, int wide, bool whole)
{
    __m256 r[8], s[8], t[8];

    for (int i = 0; i < 8; i++)
        r[i] = load8(line[i] + at, dtype);
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        t[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        t[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        t[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        t[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        __m256 low = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20), high = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);

        if (whole) {
            _mm256_storeu_ps(out + i * wide, low);
            _mm256_storeu_ps(out + (i + 4) * wide, high);
        } else {
            _mm_storeu_ps(out + i * wide, _mm256_castps256_ps128(low));
            _mm_storeu_ps(out + (i + 4) * wide, _mm256_castps256_ps128(high));
        }
    }
}

/* A whole panel of `wide` lines along k. */
static inline __attribute__((always_inline)) void pack_along(const ce_matrix *x, int64_t first, int64_t k0, int64_t kc,
                                                             int wide, uint32_t dtype, float *out)
{
    const int64_t size = dtype == RIDGE_F32 ? 4 : 2;

    for (int i = 0; i < wide; i += 8) {
        const char *line[8];
        int64_t k = 0;

        for (int j = 0; j < 8; j++)
            line[j] = line_at(x, first + (i + j < wide ? i + j : wide - 1), k0);
        for (; k + 8 <= kc; k += 8)
            transpose8(line, k * size, dtype, out + k * wide + i, wide, i + 8 <= wide);
        for (; k < kc; k++)
            for (int j = 0; j < 8 && i + j < wide; j++)
                out[k * wide + i + j] = load1(line[j] + k * size, dtype);
    }
}

/* A whole panel of `wide` elements of each line. */
static inline __attribute__((always_inline)) void pack_across(const ce_matrix *x, int64_t first, int64_t k0, int64_t kc,
                                                              int wide, uint32_t dtype, float *out)
{
    const int64_t size = dtype == RIDGE_F32 ? 4 : 2;

    for (int64_t k = 0; k < kc; k++) {
        const char *line = line_at(x, k0 + k, first);

        if (wide % 8)
            for (int i = 0; i < wide; i++)
                out[k * wide + i] = load1(line + i * size, dtype);
        else
            for (int i = 0; i < wide; i += 8)
                _mm256_storeu_ps(out + k * wide + i, load8(line + i * size, dtype));
    }
}

/* The last panel of a side, padded with zeros. */
static void pack_ragged(const ce_matrix *x, int64_t first, int64_t count, int64_t k0, int64_t kc, int wide, float *out)
{
    for (int64_t k = 0; k < kc; k++)
        for (int i = 0; i < wide; i++)
            out[k * wide + i] = i >= count   ? 0.0f
                                : x->along_k ? load1(line_at(x, first + i, k0 + k), x->dtype)
                                             : load1(line_at(x, k0 + k, first + i), x->dtype);
}

#define PACK_CASE(dtype)                                     \
    case dtype:                                              \
        if (x->along_k)                                      \
            pack_along(x, first, k0, kc, wide, dtype, out);  \
        else                                                 \
            pack_across(x, first, k0, kc, wide, dtype, out); \
        break;

static inline __attribute__((always_inline)) void pack(const ce_matrix *x, int64_t first, int64_t count, int64_t k0,
                                                       int64_t kc, int wide, float *out)
{
    if (count < wide) {
        pack_ragged(x, first, count, k0, kc, wide, out);
        return;
    }
    switch (x->dtype) {
        PACK_CASE(RIDGE_BF16)
        PACK_CASE(RIDGE_F16)
        PACK_CASE(RIDGE_F32)
    default:
        break;
    }
}

static void pack_a(const ce_matrix *x, int64_t first, int64_t count, int64_t k0, int64_t kc, float *out)
{
    pack(x, first, count, k0, kc, MR, out);
}

static void pack_b(const ce_matrix *x, int64_t first, int64_t count, int64_t k0, int64_t kc, float *out)
{
    pack(x, first, count, k0, kc, NR, out);
}

/* ---------------------------------------------------------------------------------------------------------- product */

#define ZERO(i) vec c##i##0 = VZERO(), c##i##1 = VZERO(), c##i##2 = VZERO();
#define STEP(i)                         \
    {                                   \
        const vec s = VSET(a[i]);       \
        c##i##0 = VFMA(s, b0, c##i##0); \
        c##i##1 = VFMA(s, b1, c##i##1); \
        c##i##2 = VFMA(s, b2, c##i##2); \
    }
#define PUT(i)                           \
    VSTORE(d + i * ld, c##i##0);         \
    VSTORE(d + i * ld + LANES, c##i##1); \
    VSTORE(d + i * ld + 2 * LANES, c##i##2);
#define ADD(i)                                                            \
    VSTORE(d + i * ld, VADD(VLOAD(d + i * ld), c##i##0));                 \
    VSTORE(d + i * ld + LANES, VADD(VLOAD(d + i * ld + LANES), c##i##1)); \
    VSTORE(d + i * ld + 2 * LANES, VADD(VLOAD(d + i * ld + 2 * LANES), c##i##2));

/* d [MR, NR] = or += a panel times a panel. */
static void tile(int64_t k, const float *a, const float *b, float *d, int64_t ld, bool add)
{
    EACH_ROW(ZERO)

    for (; k > 0; k--, a += MR, b += NR) {
        const vec b0 = VLOAD(b), b1 = VLOAD(b + LANES), b2 = VLOAD(b + 2 * LANES);

        EACH_ROW(STEP)
    }
    if (add) {
        EACH_ROW(ADD)
    } else {
        EACH_ROW(PUT)
    }
}

/* A tile at the edge: computed as a whole one, of which the part inside is stored. */
static void edge_tile(int64_t k, const float *a, const float *b, float *d, int64_t ld, bool add, int64_t rows,
                      int64_t cols)
{
    _Alignas(64) float whole[MR * NR];

    tile(k, a, b, whole, NR, false);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            d[i * ld + j] = add ? d[i * ld + j] + whole[i * NR + j] : whole[i * NR + j];
}

/* The same, to planes. */
static void planes_tile(int64_t k, const float *a, const float *b, const ce_planes *d, int64_t row, int64_t col,
                        bool add, int64_t rows, int64_t cols)
{
    _Alignas(64) float whole[MR * NR];

    tile(k, a, b, whole, NR, false);
    for (int64_t i = 0; i < rows; i++) {
        uint16_t *restrict high = d->high + (row + i) * d->high_ld + col;
        uint16_t *restrict low = d->low + (row + i) * d->low_ld + col;

        for (int64_t j = 0; j < cols; j++) {
            const float sum = ridge_float((uint32_t)high[j] << 16 | low[j]) + whole[i * NR + j];
            const uint32_t bits = ridge_bits(add ? sum : whole[i * NR + j]);

            high[j] = (uint16_t)(bits >> 16);
            low[j] = (uint16_t)bits;
        }
    }
}

/* Block `task` of the packed rows [ic, ic + mc) and columns [jc, jc + nc): TILE_M x TILE_N tiles. */
static void block(const ce_gemm *g, int64_t task, int64_t ic, int64_t mc, int64_t jc, int64_t nc, int64_t kc, bool add)
{
    const int64_t across = ridge_ceil_div(ridge_ceil_div(nc, NR), TILE_N), i0 = task / across * TILE_M,
                  j0 = task % across * TILE_N;

    for (int64_t j = j0; j < j0 + TILE_N && j * NR < nc; j++)
        for (int64_t i = i0; i < i0 + TILE_M && i * MR < mc; i++) {
            const float *a = g->pack_a + i * MR * kc, *b = g->pack_b + j * NR * kc;
            const int64_t rows = ridge_min(mc - i * MR, MR), cols = ridge_min(nc - j * NR, NR);
            const int64_t row = ic + i * MR, col = jc + j * NR;

            if (!g->d)
                planes_tile(kc, a, b, &g->planes, row, col, add, rows, cols);
            else if (rows == MR && cols == NR)
                tile(kc, a, b, g->d + row * g->ld + col, g->ld, add);
            else
                edge_tile(kc, a, b, g->d + row * g->ld + col, g->ld, add, rows, cols);
        }
}

static void gemm(const ce_gemm *g)
{
    if (g->k == 0 && !g->add && g->d) { /* planes begin with a chunk of at least one row */
#pragma omp for schedule(static)
        for (int64_t i = 0; i < g->m; i++)
            memset(g->d + i * g->ld, 0, (size_t)g->n * sizeof *g->d);
    }
    for (int64_t jc = 0; jc < g->n; jc += CE_NB)
        for (int64_t pc = 0; pc < g->k; pc += CE_KC)
            for (int64_t ic = 0; ic < g->m; ic += CE_MB) {
                const int64_t nc = ridge_min(CE_NB, g->n - jc), kc = ridge_min(CE_KC, g->k - pc),
                              mc = ridge_min(CE_MB, g->m - ic);
                const int64_t tasks =
                    ridge_ceil_div(ridge_ceil_div(nc, NR), TILE_N) * ridge_ceil_div(ridge_ceil_div(mc, MR), TILE_M);

                if (ic == 0) {
#pragma omp for schedule(static) nowait
                    for (int64_t j = 0; j < nc; j += NR)
                        pack_b(&g->b, jc + j, ridge_min(NR, nc - j), pc, kc, g->pack_b + j * kc);
                }
#pragma omp for schedule(static)
                for (int64_t i = 0; i < mc; i += MR)
                    pack_a(&g->a, ic + i, ridge_min(MR, mc - i), pc, kc, g->pack_a + i * kc);
#pragma omp for schedule(dynamic)
                for (int64_t task = 0; task < tasks; task++)
                    block(g, task, ic, mc, jc, nc, kc, g->add || pc > 0);
            }
}

/* --------------------------------------------------------------------------------------------------- rows of logits */

static void load(const void *from, uint32_t dtype, int64_t count, float *to)
{
    const char *at = from;
    const int64_t size = dtype == RIDGE_F32 ? 4 : 2;
    int64_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, load8(at + i * size, dtype));
    for (; i < count; i++)
        to[i] = load1(at + i * size, dtype);
}

static void store(void *to, uint32_t dtype, int64_t count, const float *from)
{
    if (dtype == RIDGE_F32)
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i] = ridge_f32_canonical(from[i]);
    else if (dtype == RIDGE_BF16)
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = ridge_bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = ridge_f16_from_f32(from[i]);
}

static void logits(const ce_span *s)
{
    const float cap = s->a->o.softcap, inverse_cap = 1.0f / cap, cool = 1.0f / s->a->o.temperature;
    const int64_t size = s->a->bias_dtype == RIDGE_F32 ? 4 : 2;
    float *z = s->z;

    if (s->a->bias)
        for (int64_t c = 0; c < s->count; c += PARTS) {
            const int64_t count = ridge_min(PARTS, s->count - c);
            float bias[PARTS];

            load(s->a->bias + (s->first + c) * size, s->a->bias_dtype, count, bias);
            for (int64_t i = 0; i < count; i++)
                z[c + i] += bias[i];
        }
    if (cap > 0)
        for (int64_t c = 0; c < s->count; c++)
            z[c] = cap * ridge_tanh(z[c] * inverse_cap);
    if (cool != 1.0f)
        for (int64_t c = 0; c < s->count; c++)
            z[c] *= cool;
}

static double total_of(const float *part)
{
    double sum = 0;

    for (int i = 0; i < PARTS; i++)
        sum += (double)part[i];
    return sum;
}

static float largest(const float *z, int64_t count)
{
    float part[PARTS], most = -INFINITY;
    int64_t c = 0;

    for (int i = 0; i < PARTS; i++)
        part[i] = -INFINITY;
    for (; c + PARTS <= count; c += PARTS)
        for (int i = 0; i < PARTS; i++)
            part[i] = z[c + i] > part[i] ? z[c + i] : part[i];
    for (int i = 0; c < count; c++, i++)
        part[i] = z[c] > part[i] ? z[c] : part[i];
    for (int i = 0; i < PARTS; i++)
        most = part[i] > most ? part[i] : most;
    return most;
}

/* Sums of z - shift and w (z - shift), moved to z afterwards: with all logits near 1e4 the sums stay small. */
static void plain_sums(const ce_span *s, float shift, ce_stat *part)
{
    const float *w = s->a->class_weight ? s->a->class_weight + s->a->offset + s->first : NULL, *z = s->z;
    float sum[PARTS] = {0}, weighted[PARTS] = {0}, weights[PARTS] = {0};

    for (int64_t c = 0; c < s->count; c += PARTS) {
        const int64_t count = ridge_min(PARTS, s->count - c);

        for (int64_t i = 0; i < count; i++) {
            const float v = z[c + i] - shift, k = w ? w[c + i] : 1.0f;

            sum[i] += v;
            weighted[i] += k * v;
            weights[i] += k;
        }
    }
    part->z = total_of(sum) + (double)s->count * (double)shift;
    part->wz = total_of(weighted) + total_of(weights) * (double)shift;
}

static void stats(const ce_span *s, bool spread, bool sums, ce_stat *into)
{
    const float most = largest(s->z, s->count), shift = most > -INFINITY ? most : 0.0f, *z = s->z;
    const int64_t first = s->a->offset + s->first;
    float part[PARTS] = {0}, wide[PARTS] = {0};
    ce_stat more = ridge_cpu_ce_empty();
    int64_t c = 0;

    for (; c + PARTS <= s->count; c += PARTS)
        for (int i = 0; i < PARTS; i++)
            part[i] += ridge_exp(z[c + i] - shift);
    for (int i = 0; c < s->count; c++, i++)
        part[i] += ridge_exp(z[c] - shift);
    if (spread)
        for (c = 0; c < s->count; c++) { /* e^v v, 0 where v is -inf */
            const float v = z[c] - shift, low = v < -200.0f ? -200.0f : v;

            wide[c % PARTS] += ridge_exp(low) * low;
        }
    more.max = most;
    more.sum = total_of(part);
    more.spread = total_of(wide);
    more.argmax = first;
    for (c = 0; c < s->count; c++)
        if (z[c] == most) {
            more.argmax = first + c;
            break;
        }
    if (isnan(more.sum)) /* of a NaN or of +infinity */
        for (c = 0; c < s->count; c++)
            if (isnan(z[c])) {
                more.argmax = first + c;
                more.max = z[c];
                break;
            }
    if (sums)
        plain_sums(s, shift, &more);
    if (s->target >= first && s->target < first + s->count)
        more.target = (double)z[s->target - first];
    ridge_cpu_ce_merge(into, &more);
}

static void gradient(const ce_span *s, const ce_row *row)
{
    const float shift = (float)row->shift, scale = row->scale, smooth = row->smooth, cap = s->a->o.softcap;
    const float bend = row->bend;
    const float cool = 1.0f / s->a->o.temperature, uncap = s->a->o.temperature / cap;
    const float *w = s->a->class_weight ? s->a->class_weight + s->a->offset + s->first : NULL;
    const int64_t at = row->target - s->a->offset - s->first;
    const bool here = at >= 0 && at < s->count;
    float *z = s->z, label = here ? z[at] : 0;

    for (int64_t c = 0; c < s->count; c += PARTS) {
        const int64_t count = ridge_min(PARTS, s->count - c);
        float slope[PARTS];

        if (cap > 0)
            for (int64_t i = 0; i < count; i++)
                slope[i] = (1.0f - z[c + i] * uncap * (z[c + i] * uncap)) * cool;
        if (bend != 0.0f)
            for (int64_t i = 0; i < count; i++) { /* e^v v, 0 where v is -inf */
                const float v = z[c + i] - shift, low = v < -200.0f ? -200.0f : v;

                z[c + i] = ridge_exp(low) * (scale + bend * low);
            }
        else
            for (int64_t i = 0; i < count; i++)
                z[c + i] = ridge_exp(z[c + i] - shift) * scale;
        if (smooth != 0.0f)
            for (int64_t i = 0; i < count; i++)
                z[c + i] -= w ? smooth * w[c + i] : smooth;
        if (here && at >= c && at < c + count) {
            const double p = exp((double)label - row->shift) * row->inverse_sum;
            double d = (p - 1) * row->all + row->excess;

            if (bend != 0.0f && p > 0)
                d += (double)bend * p * log(p);
            z[at] = (float)(d - (double)smooth * (w ? (double)w[at] : 1));
        }
        if (cap > 0)
            for (int64_t i = 0; i < count; i++)
                z[c + i] *= slope[i];
        else if (cool != 1.0f)
            for (int64_t i = 0; i < count; i++)
                z[c + i] *= cool;
    }
}

static void columns(const float *z, int64_t ld, int64_t rows, int64_t count, float *sum)
{
    for (int64_t c = 0; c < count; c += PARTS) {
        const int64_t wide = ridge_min(PARTS, count - c);
        float part[PARTS] = {0};

        if (wide == PARTS)
            for (int64_t r = 0; r < rows; r++)
                for (int i = 0; i < PARTS; i++)
                    part[i] += z[r * ld + c + i];
        else
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < wide; i++)
                    part[i] += z[r * ld + c + i];
        for (int64_t i = 0; i < wide; i++)
            sum[c + i] += part[i];
    }
}

const ce_vectors RIDGE_SIMD(ridge_cpu_ce) = {gemm, load, store, logits, stats, gradient, columns};
