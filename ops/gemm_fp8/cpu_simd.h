/* cpu_simd.h: a tile of gemm_fp8, once an instruction set.
 *
 * For each 128-block of k: the tile's rows of A are decoded to f32 (row after row); then, panel by panel of PANEL
 * columns, B is decoded and transposed to [k][column], 16 KB that stay in L1 while all groups of rows of A are
 * multiplied by them; the block's sums stay in registers and are added, scaled, to the tile's accumulators. One element
 * is an ordered chain of fma over k within a block and of fma over blocks, whatever the tile, the group of rows or the
 * instruction set: hence the batch-invariance. Codes are read once a tile; nothing is read beyond m, n and k. Leaves
 * out: threads and the division into tiles (cpu.c).
 * Compiled for: avx2, avx512. */
#include <immintrin.h>
#include <string.h>

#include "cpu.h"
#include "cpu/num.h"

#if defined(__AVX512F__)
enum { LANES = 16, GROUP = 12, PANEL = 32 };
typedef __m512 vec;
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, x) _mm512_storeu_ps(p, x)
#define SPLAT(x) _mm512_set1_ps(x)
#define MUL(x, y) _mm512_mul_ps(x, y)
#define FMA(x, y, z) _mm512_fmadd_ps(x, y, z)
#else
enum { LANES = 8, GROUP = 6, PANEL = 16 };
typedef __m256 vec;
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, x) _mm256_storeu_ps(p, x)
#define SPLAT(x) _mm256_set1_ps(x)
#define MUL(x, y) _mm256_mul_ps(x, y)
#define FMA(x, y, z) _mm256_fmadd_ps(x, y, z)
#endif

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = GEMM_BLOCK, PITCH = GEMM_PITCH };

/* --------------------------------------------------------------------------------------------------------- decoding */

/* 16 codes to f32, exactly. e5m2 is the upper half of an f16; e4m3, shifted, is an f16 of 2^-8 times the value, except
 * for its NaN. */
INLINE void decode(__m128i codes, int e5m2, float *to)
{
    __m256i h = _mm256_cvtepu8_epi16(codes);
    float unit = 1.0f;

    if (e5m2) {
        h = _mm256_slli_epi16(h, 8);
    } else {
        const __m256i magnitude = _mm256_and_si256(h, _mm256_set1_epi16(0x7f));
        const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
        const __m256i sign = _mm256_slli_epi16(_mm256_srli_epi16(h, 7), 15);

        h = _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16(magnitude, 7)), nan);
        unit = 256.0f;
    }
#if defined(__AVX512F__)
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(unit)));
#else
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_set1_ps(unit)));
    _mm256_storeu_ps(to + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), _mm256_set1_ps(unit)));
#endif
}

/* depth <= 128 codes of one row; the rest of the block becomes zero. */
INLINE void decode_row(const uint8_t *codes, int64_t depth, int e5m2, float *to)
{
    uint8_t padded[BLOCK];

    if (depth < BLOCK) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, codes, (size_t)depth);
        codes = padded;
    }
    for (int k = 0; k < BLOCK; k += 16)
        decode(_mm_loadu_si128((const __m128i *)(const void *)(codes + k)), e5m2, to + k);
}

/* Transposes bytes: row r, column c of x becomes row c, column r of y. */
INLINE void transpose(__m128i x[16])
{
    __m128i y[16];

#define STAGE(from, to)                                                \
    for (int i = 0; i < 8; i++) {                                      \
        (to)[2 * i] = _mm_unpacklo_epi8((from)[i], (from)[i + 8]);     \
        (to)[2 * i + 1] = _mm_unpackhi_epi8((from)[i], (from)[i + 8]); \
    }
    STAGE(x, y)
    STAGE(y, x)
    STAGE(x, y)
    STAGE(y, x)
#undef STAGE
}

/* 16 rows of B to columns of a panel: to[k * PANEL + column]. */
INLINE void pack_16(const uint8_t *const row[16], int e5m2, float *to)
{
    for (int k = 0; k < BLOCK; k += 16) {
        __m128i x[16];

        for (int c = 0; c < 16; c++)
            x[c] = _mm_loadu_si128((const __m128i *)(const void *)(row[c] + k));
        transpose(x);
        for (int i = 0; i < 16; i++)
            decode(x[i], e5m2, to + (k + i) * PANEL);
    }
}

/* Columns [col, col + cols) of D, cols <= PANEL, in block `block` of k. */
static __attribute__((noinline)) void pack_panel(const gemm_args *g, int64_t col, int64_t cols, int64_t block,
                                                 float *panel)
{
    static const uint8_t zeros[BLOCK];
    const int64_t depth = g->k - block * BLOCK < BLOCK ? g->k - block * BLOCK : BLOCK;
    const uint8_t *base = g->b + col * g->ldb + block * BLOCK, *row[16];
    uint8_t padded[16][BLOCK];

    for (int part = 0; part < PANEL; part += 16) {
        for (int c = 0; c < 16; c++) {
            const uint8_t *from = base + (part + c) * g->ldb;

            row[c] = zeros;
            if (part + c >= cols)
                continue;
            row[c] = from;
            _mm_prefetch((const char *)(from + BLOCK),
                         _MM_HINT_T0); /* the row's next block; a prefetch beyond the end does no harm */
            _mm_prefetch((const char *)(from + BLOCK + 64), _MM_HINT_T0);
            if (depth < BLOCK) {
                memset(padded[c], 0, BLOCK);
                memcpy(padded[c], from, (size_t)depth);
                row[c] = padded[c];
            }
        }
        if (g->b_e5m2)
            pack_16(row, 1, panel + part);
        else
            pack_16(row, 0, panel + part);
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* The sums of one block for `rows` rows and PANEL columns, added to sums[row][PANEL] with the scales sa[row], sb[col].
 */
INLINE void product(const int rows, const float *a, const float *panel, const float *sa, const float *sb, float *sums)
{
    vec p[GROUP][2];

#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        p[r][0] = p[r][1] = SPLAT(0.0f);
    for (int k = 0; k < BLOCK; k++) {
        const vec b0 = LOAD(panel + k * PANEL), b1 = LOAD(panel + k * PANEL + LANES);

#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const vec x = SPLAT(a[r * PITCH + k]);

            p[r][0] = FMA(x, b0, p[r][0]);
            p[r][1] = FMA(x, b1, p[r][1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const vec s = MUL(SPLAT(sa[r]), LOAD(sb + h * LANES));
            float *to = sums + r * PANEL + h * LANES;

            STORE(to, FMA(s, p[r][h], LOAD(to)));
        }
}

typedef void product_function(const float *a, const float *panel, const float *sa, const float *sb, float *sums);

#define PRODUCT(rows)                                                                                         \
    static __attribute__((noinline)) void product_##rows(const float *a, const float *panel, const float *sa, \
                                                         const float *sb, float *sums)                        \
    {                                                                                                         \
        product(rows, a, panel, sa, sb, sums);                                                                \
    }
PRODUCT(1)
PRODUCT(2)
PRODUCT(3)
PRODUCT(4)
PRODUCT(5)
PRODUCT(6)
#if defined(__AVX512F__)
PRODUCT(7)
PRODUCT(8)
PRODUCT(9)
PRODUCT(10)
PRODUCT(11)
PRODUCT(12)
#endif

static product_function *const products[GROUP] = {
    product_1, product_2, product_3, product_4,  product_5,  product_6,
#if defined(__AVX512F__)
    product_7, product_8, product_9, product_10, product_11, product_12,
#endif
};

/* --------------------------------------------------------------------------------------------------------- epilogue */

/* `count` <= PANEL elements of row i from column j on: scale at the end, bias, D, one rounding. */
static void finish(const gemm_args *g, int64_t i, int64_t j, int64_t count, const float *sums)
{
    unsigned char *d = g->d + (i * g->ldd + j) * (g->dtype == RIDGE_F32 ? 4 : 2);
    uint16_t *half = (uint16_t *)(void *)d;
    float v[PANEL];

    memcpy(v, sums, sizeof v);
    if (g->whole && g->k)
        for (int64_t c = 0; c < count; c++)
            v[c] *= gemm_scale_at(&g->scale_a, i, 0) * gemm_scale_at(&g->scale_b, j + c, 0);
    if (g->bias)
        for (int64_t c = 0; c < count; c++)
            v[c] += g->bias_dtype == RIDGE_F32    ? ((const float *)g->bias)[j + c]
                    : g->bias_dtype == RIDGE_BF16 ? ridge_f32_from_bf16(((const uint16_t *)g->bias)[j + c])
                                                  : ridge_f32_from_f16(((const uint16_t *)g->bias)[j + c]);
    if (g->dtype == RIDGE_F32) {
        float *to = (float *)(void *)d;

        for (int64_t c = 0; c < count; c++)
            to[c] = ridge_f32_canonical(g->accumulate ? v[c] + to[c] : v[c]);
    } else if (g->dtype == RIDGE_BF16) {
        for (int64_t c = 0; c < count; c++)
            half[c] = ridge_bf16_from_f32(g->accumulate ? v[c] + ridge_f32_from_bf16(half[c]) : v[c]);
    } else {
        for (int64_t c = 0; c < count; c++)
            half[c] = ridge_f16_from_f32(v[c]);
    }
}

/* ------------------------------------------------------------------------------------------------------------- tile */

/* The scales of a panel's columns; 1 where one scaling comes at the end, 0 beyond the edge. */
static void panel_scales(const gemm_args *g, int64_t col, int64_t cols, int64_t block, float *sb)
{
    for (int64_t c = 0; c < PANEL; c++)
        sb[c] = c >= cols ? 0.0f : g->whole ? 1.0f : gemm_scale_at(&g->scale_b, col + c, block);
}

static void decode_rows(const gemm_args *g, const gemm_tile *t, int64_t block, float *a, float *sa)
{
    const int64_t depth = g->k - block * BLOCK < BLOCK ? g->k - block * BLOCK : BLOCK;

    for (int64_t r = 0; r < t->rows; r++) {
        const uint8_t *from = g->a + (t->row + r) * g->lda + block * BLOCK;

        if (g->a_e5m2)
            decode_row(from, depth, 1, a + r * PITCH);
        else
            decode_row(from, depth, 0, a + r * PITCH);
        sa[r] = g->whole ? 1.0f : gemm_scale_at(&g->scale_a, t->row + r, block);
    }
}

void RIDGE_SIMD(ridge_cpu_gemm_fp8)(const gemm_args *g, const gemm_tile *t)
{
    const int64_t panels = (t->cols + PANEL - 1) / PANEL, blocks = (g->k + BLOCK - 1) / BLOCK;
    const size_t rows = (size_t)((t->rows + 15) / 16 * 16); /* so that every part of work is aligned to 64 bytes */
    float *sums = t->work, *panel = sums + rows * (size_t)panels * PANEL, *a = panel + BLOCK * PANEL;
    float *sa = a + rows * PITCH, sb[PANEL];

    memset(sums, 0, rows * (size_t)panels * PANEL * sizeof *sums);
    for (int64_t block = 0; block < blocks; block++) {
        decode_rows(g, t, block, a, sa);
        for (int64_t p = 0; p < panels; p++) {
            const int64_t col = t->col + p * PANEL, cols = t->cols - p * PANEL < PANEL ? t->cols - p * PANEL : PANEL;

            pack_panel(g, col, cols, block, panel);
            panel_scales(g, col, cols, block, sb);
            for (int64_t r = 0; r < t->rows; r += GROUP) {
                const int64_t count = t->rows - r < GROUP ? t->rows - r : GROUP;

                products[count - 1](a + r * PITCH, panel, sa + r, sb, sums + ((size_t)p * rows + (size_t)r) * PANEL);
            }
        }
    }
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t p = 0; p < panels; p++)
            finish(g, t->row + r, t->col + p * PANEL, t->cols - p * PANEL < PANEL ? t->cols - p * PANEL : PANEL,
                   sums + ((size_t)p * rows + (size_t)r) * PANEL);
}
