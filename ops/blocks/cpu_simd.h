/* cpu_simd.h: the SIMD rows of products with weights in block formats, once an instruction set.
 *
 * The order of codes in tiles (layout.h) leaves nothing to shuffle: the 64 bytes of nibbles of a row and a run are two
 * vectors whose 32-bit lanes are (t, j), and sums of four codes added up over them, over both nibbles and then over two
 * halves of a register, are the sums of the four blocks j. Of two runs they fill one vector, the eight blocks of a
 * unit. Four rows are transposed at a time, so that a lane has one run of one row and walks its blocks in canonical
 * order; accumulators are [unit % 4][four rows x two partitions].
 *
 * Codes are made unsigned by an offset, because the instructions multiply unsigned by signed bytes; the offset times
 * the sum of x is subtracted up front (`start`). Without VNNI sums of two products must fit 16 bits, which all formats
 * but Q8_0 do: its codes are widened.
 *
 * Leaves out: threads, argument checks, references (cpu.c).
 *
 * Compiled for: avx2, avxvnni, vnni256. */
#include <immintrin.h>
#include <string.h>

#include "cpu.h"
#include "cpu/num.h"
#include "src/math/iq2.h"

#if defined(__AVX512VNNI__)
#define dot_bytes(acc, w, x) _mm256_dpbusd_epi32(acc, w, x)
#elif defined(__AVXVNNI__)
#define dot_bytes(acc, w, x) _mm256_dpbusd_avx_epi32(acc, w, x)
#else
#define dot_bytes(acc, w, x) _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)))
#define WIDEN 1 /* Q8_0 */
#endif

enum { TOKENS = RIDGE_Q8_0_MAX_TOKENS };

/* A token's 256 columns of a unit. */
typedef struct x_unit {
    _Alignas(64) uint8_t codes[2][2][2][32]; /* run, half, pair of t */
    int32_t start[2][8];                     /* less what the offset adds: of blocks, or of their halves */
    float scale[4][8], sum[2][4][8];         /* of block j of both runs, four times each: j, run, row */
} x_unit;

/* What a format's row of a unit is: codes as x's, scales and minima of eight blocks, sub-scales of their halves. */
typedef struct w_row {
    __m256i codes[2][2][2];
    __m256 scale, min[2];
    __m256i sub[2];
} w_row;

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i load(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

INLINE __m128i load_half(const uint8_t *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

INLINE float half(const uint8_t *at)
{
    uint16_t bits;

    memcpy(&bits, at, sizeof bits);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

/* What is subtracted from a code that has been made unsigned. */
INLINE int offset_of(uint32_t format)
{
    return format == RIDGE_Q4_0      ? 8
           : format == RIDGE_MXFP4   ? 12
           : format == RIDGE_Q6_K    ? 32
           : format == RIDGE_IQ2_XXS ? 43
#ifndef WIDEN
           : format == RIDGE_Q8_0 ? 128
#endif
                                  : 0;
}

INLINE bool has_subs(uint32_t format)
{
    return format == RIDGE_Q2_K || format == RIDGE_Q6_K;
}

/* ---------------------------------------------------------------------------------------------------------- weights */

INLINE void nibbles(const uint8_t *unit, int row, w_row *w)
{
    const __m256i mask = _mm256_set1_epi8(15);

#pragma GCC unroll 8
    for (int q = 0; q < 2; q++)
#pragma GCC unroll 8
        for (int p = 0; p < 2; p++) {
            const __m256i v = load(unit + 1024 * q + 64 * row + 32 * p);

            w->codes[q][0][p] = _mm256_and_si256(v, mask);
            w->codes[q][1][p] = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
        }
}

/* Two bits of each code, from a plane of them: of run q, half, pair p. */
INLINE __m256i two_bits(const uint8_t *plane, int row, int q, int h, int p)
{
    const __m256i v = load(plane + 64 * row + 32 * p), shift = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const __m256i lanes = q   ? h ? _mm256_shuffle_epi32(v, 0xff) : _mm256_shuffle_epi32(v, 0xaa)
                            : h ? _mm256_shuffle_epi32(v, 0x55)
                              : _mm256_shuffle_epi32(v, 0x00);

    return _mm256_and_si256(_mm256_srlv_epi32(lanes, shift), _mm256_set1_epi8(3));
}

INLINE __m256i one_bit(const uint8_t *plane, int row, int q, int h, int p)
{
    const __m256i v = load(plane + 32 * row), at = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2);
    const __m256i shift = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const __m256i lanes = _mm256_permutevar8x32_epi32(v, _mm256_add_epi32(at, _mm256_set1_epi32(4 * p + q)));

    return _mm256_and_si256(_mm256_srlv_epi32(lanes, _mm256_add_epi32(shift, _mm256_set1_epi32(h))),
                            _mm256_set1_epi8(1));
}

INLINE void codes_q8_0(const uint8_t *unit, int row, w_row *w)
{
#pragma GCC unroll 8
    for (int q = 0; q < 2; q++)
#pragma GCC unroll 8
        for (int p = 0; p < 2; p++) {
            const __m256 a = _mm256_castsi256_ps(load(unit + 2048 * q + 64 * row + 32 * p));
            const __m256 b = _mm256_castsi256_ps(load(unit + 2048 * q + 1024 + 64 * row + 32 * p));

            w->codes[q][0][p] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
            w->codes[q][1][p] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
#ifndef WIDEN
#pragma GCC unroll 8
            for (int h = 0; h < 2; h++)
                w->codes[q][h][p] = _mm256_xor_si256(w->codes[q][h][p], _mm256_set1_epi8((char)0x80));
#endif
        }
}

INLINE void codes_mxfp4(const uint8_t *unit, int row, w_row *w)
{
    const __m256i values = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15,
                                            16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);

    nibbles(unit, row, w);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        w->codes[i >> 2][i >> 1 & 1][i & 1] = _mm256_shuffle_epi8(values, w->codes[i >> 2][i >> 1 & 1][i & 1]);
}

/* Entries of the codebook: eight bytes of 43 + magnitude. */
typedef struct iq2_tables {
    uint64_t grid[256];
} iq2_tables;

static void fill_tables(void *memory)
{
    iq2_tables *to = memory;

    for (int i = 0; i < 256; i++) {
        to->grid[i] = 0;
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            to->grid[i] |= (uint64_t)(43 + ridge_iq2_magnitude(ridge_iq2_xxs_grid[i] >> 2 * k & 3)) << 8 * k;
    }
}

/* Four entries, whose numbers are the low bytes of a word. */
INLINE __m256i iq2_entries(const iq2_tables *tables, uint64_t word)
{
#if defined(__AVX512VL__)
    const uint64_t *grid = tables->grid;
    __m256i v = _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)&grid[word & 255]));

    v = _mm256_mask_broadcastq_epi64(v, 2, _mm_loadl_epi64((const __m128i *)(const void *)&grid[word >> 8 & 255]));
    v = _mm256_mask_broadcastq_epi64(v, 4, _mm_loadl_epi64((const __m128i *)(const void *)&grid[word >> 16 & 255]));
    return _mm256_mask_broadcastq_epi64(v, 8, _mm_loadl_epi64((const __m128i *)(const void *)&grid[word >> 24 & 255]));
#else
    const long long a = (long long)tables->grid[word & 255], b = (long long)tables->grid[word >> 8 & 255];
    const long long c = (long long)tables->grid[word >> 16 & 255], d = (long long)tables->grid[word >> 24 & 255];

    return _mm256_set_epi64x(d, c, b, a);
#endif
}

/* Vector t of a run has entry t of blocks j = 0 .. 3, so that sums of four codes are halves of entries. Where minus,
 * 43 - g = 86 - (43 + g). */
INLINE void codes_iq2(const uint8_t *unit, int row, const iq2_tables *tables, w_row *w)
{
    const __m256i byte = _mm256_broadcastsi128_si256(_mm_setr_epi8(4, 4, 5, 5, 6, 6, 7, 7, 4, 4, 5, 5, 6, 6, 7, 7));
    const __m256i bit = _mm256_setr_epi8(1, 16, 1, 16, 1, 16, 1, 16, 2, 32, 2, 32, 2, 32, 2, 32, 4, 64, 4, 64, 4, 64, 4,
                                         64, 8, -128, 8, -128, 8, -128, 8, -128);
    const __m256i both = _mm256_set1_epi8(86);

#pragma GCC unroll 8
    for (int t = 0; t < 4; t++) {
        const uint8_t *at = unit + 64 * row + 16 * t; /* for each run four numbers and a word of parities */
        const __m256i words = _mm256_broadcastsi128_si256(load_half(at));
        const __m256i signs =
            _mm256_xor_si256(_mm256_and_si256(words, _mm256_set1_epi32(0x0fffffff)), _mm256_slli_epi32(words, 4));

#pragma GCC unroll 8
        for (int q = 0; q < 2; q++) {
            const __m256i g = iq2_entries(tables, block_read32(at + 8 * q));
            const __m256i placed = _mm256_shuffle_epi8(signs, _mm256_add_epi8(byte, _mm256_set1_epi8((char)(8 * q))));

#if defined(__AVX512VL__)
            w->codes[q][t >> 1][t & 1] = _mm256_mask_sub_epi8(g, _mm256_test_epi8_mask(placed, bit), both, g);
#else
            const __m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(placed, bit), bit);

            w->codes[q][t >> 1][t & 1] = _mm256_blendv_epi8(g, _mm256_sub_epi8(both, g), minus);
#endif
        }
    }
}

INLINE __m256 bytes_to_f(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

/* d, dmin and packed 6-bit scales of Q4_K and Q5_K. */
INLINE void k_scales(const uint8_t *at, w_row *w)
{
    const uint32_t a = block_read32(at + 4), b = block_read32(at + 8), c = block_read32(at + 12);
    const uint32_t high = (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u), low = a & 0x3f3f3f3fu;
    const uint32_t min_high = (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u), min_low = b & 0x3f3f3f3fu;

    w->scale = _mm256_mul_ps(_mm256_set1_ps(half(at)), bytes_to_f(_mm_set_epi32(0, 0, (int)high, (int)low)));
    w->min[0] =
        _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(_mm256_set1_ps(half(at + 2)),
                                                         bytes_to_f(_mm_set_epi32(0, 0, (int)min_high, (int)min_low))));
}

/* Even and odd ones of 16 numbers of 16 bits, as 32 bits. */
INLINE void halves(__m256i v, __m256i *to)
{
    to[0] = _mm256_srai_epi32(_mm256_slli_epi32(v, 16), 16);
    to[1] = _mm256_srai_epi32(v, 16);
}

INLINE void unpack_codes(uint32_t format, const uint8_t *unit, int row, const iq2_tables *tables, w_row *w)
{
    const block_layout f = block_layout_of(format);

    switch (format) {
    case RIDGE_Q8_0:
        codes_q8_0(unit, row, w);
        break;
    case RIDGE_MXFP4:
        codes_mxfp4(unit, row, w);
        break;
    case RIDGE_IQ2_XXS:
        codes_iq2(unit, row, tables, w);
        break;
    case RIDGE_Q2_K:
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            w->codes[i >> 2][i >> 1 & 1][i & 1] = two_bits(unit, row, i >> 2, i >> 1 & 1, i & 1);
        break;
    default:
        nibbles(unit, row, w);
        if (f.high == 0)
            break;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            __m256i *to = &w->codes[i >> 2][i >> 1 & 1][i & 1];
            const __m256i high = format == RIDGE_Q5_K ? one_bit(unit + 2048, row, i >> 2, i >> 1 & 1, i & 1)
                                                      : two_bits(unit + 2048, row, i >> 2, i >> 1 & 1, i & 1);

            *to = _mm256_or_si256(*to, _mm256_slli_epi16(high, 4));
        }
        break;
    }
}

INLINE void q4_1_scales(const uint8_t *scale, w_row *w)
{
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i v = _mm256_shuffle_epi8(load(scale), _mm256_broadcastsi128_si256(order));
    const __m256i apart = _mm256_permute4x64_epi64(v, 0xd8); /* eight scales, eight minima */

    w->scale = _mm256_cvtph_ps(_mm256_castsi256_si128(apart));
    w->min[0] = _mm256_cvtph_ps(_mm256_extracti128_si256(apart, 1));
}

INLINE void q2_k_scales(const uint8_t *scale, w_row *w)
{
    const __m128i v = load_half(scale), mask = _mm_set1_epi8(15);
    __m256i min[2];

    halves(_mm256_cvtepu8_epi16(_mm_and_si128(v, mask)), w->sub);
    halves(_mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(v, 4), mask)), min);
#pragma GCC unroll 8
    for (int i = 0; i < 2; i++)
        w->min[i] = _mm256_cvtepi32_ps(min[i]);
}

/* Where d (and dmin, less) go with all blocks of a row: those of four rows, twice. */
INLINE __m256 four_scales(uint32_t format, const uint8_t *more, __m256 *less)
{
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m256 both;

    if (format == RIDGE_Q6_K)
        return _mm256_cvtph_ps(_mm_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)more)));
    both = _mm256_cvtph_ps(_mm_shuffle_epi8(load_half(more), order));
    *less = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_permute2f128_ps(both, both, 0x11));
    return _mm256_permute2f128_ps(both, both, 0x00);
}

/* ridge_block_e8m0 of eight bytes. */
INLINE __m256 e8m0_scales(const uint8_t *from)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);

    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e), small));
}

/* d times the four bits above the signs. */
INLINE void iq2_scales(const uint8_t *unit, const uint8_t *d, int row, w_row *w)
{
    const __m256i at = _mm256_setr_epi32(0, 8, 512, 520, 32, 40, 544, 552); /* block_iq2_scale_piece of row 0 */
    const __m256i word =
        _mm256_i32gather_epi32((const int *)(const void *)(unit + block_iq2_scale_piece(row, 0) + 4), at, 1);
    const __m256i odd = _mm256_or_si256(_mm256_slli_epi32(_mm256_srli_epi32(word, 28), 1), _mm256_set1_epi32(1));

    w->scale = _mm256_mul_ps(_mm256_set1_ps(half(d) * 0.125f), _mm256_cvtepi32_ps(odd));
}

INLINE void unpack_scales(uint32_t format, const uint8_t *unit, int row, w_row *w)
{
    const block_layout f = block_layout_of(format);
    const uint8_t *scale = unit + block_codes_bytes(f, 2) + row * f.scale;

    switch (format) {
    case RIDGE_Q4_0:
    case RIDGE_Q8_0:
        w->scale = _mm256_cvtph_ps(load_half(scale));
        break;
    case RIDGE_Q4_1:
        q4_1_scales(scale, w);
        break;
    case RIDGE_MXFP4:
        w->scale = e8m0_scales(scale);
        break;
    case RIDGE_Q4_K:
    case RIDGE_Q5_K:
        k_scales(scale, w);
        break;
    case RIDGE_Q6_K:
        halves(_mm256_cvtepi8_epi16(load_half(scale)), w->sub);
        break;
    case RIDGE_Q2_K:
        q2_k_scales(scale, w);
        break;
    default:
        iq2_scales(unit, scale, row, w);
        break;
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* The integers of eight blocks: sums of products, less the offset; of halves times sub-scales. */
INLINE __m256i integers(uint32_t format, const w_row *w, const x_unit *x)
{
    __m256i sum[2];

#pragma GCC unroll 8
    for (int k = 0; k < 2; k++) {
        __m256i run[2];

        if (k > 0 && !has_subs(format))
            break;
#pragma GCC unroll 8
        for (int q = 0; q < 2; q++) {
            run[q] = _mm256_setzero_si256();
#pragma GCC unroll 8
            for (int i = 0; i < 4; i++) {
                const __m256i codes = w->codes[q][i >> 1][i & 1], with = load(x->codes[q][i >> 1][i & 1]);

                if (has_subs(format) && i >> 1 != k)
                    continue;
#ifdef WIDEN
                if (format == RIDGE_Q8_0) {
                    run[q] =
                        _mm256_add_epi32(run[q], _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8),
                                                                   _mm256_srai_epi16(_mm256_slli_epi16(with, 8), 8)));
                    run[q] = _mm256_add_epi32(
                        run[q], _mm256_madd_epi16(_mm256_srai_epi16(codes, 8), _mm256_srai_epi16(with, 8)));
                    continue;
                }
#endif
                run[q] = dot_bytes(run[q], codes, with);
            }
        }
        if (format == RIDGE_IQ2_XXS)
            sum[k] = _mm256_permute4x64_epi64(_mm256_hadd_epi32(run[0], run[1]), 0xd8);
        else
            sum[k] = _mm256_add_epi32(_mm256_permute2x128_si256(run[0], run[1], 0x20),
                                      _mm256_permute2x128_si256(run[0], run[1], 0x31));
        if (offset_of(format))
            sum[k] = _mm256_add_epi32(sum[k], load((const uint8_t *)x->start[k]));
    }
    if (!has_subs(format))
        return sum[0];
    return _mm256_add_epi32(_mm256_mullo_epi32(sum[0], w->sub[0]), _mm256_mullo_epi32(sum[1], w->sub[1]));
}

/* Four vectors of eight blocks of a row each to four of block j: lanes are rows, of run 0 and then of run 1. */
INLINE void transpose(__m256 *v)
{
    const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    const __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);

    v[0] = _mm256_shuffle_ps(a, c, 0x44);
    v[1] = _mm256_shuffle_ps(a, c, 0xee);
    v[2] = _mm256_shuffle_ps(b, d, 0x44);
    v[3] = _mm256_shuffle_ps(b, d, 0xee);
}

/* Adds four rows of a unit to their partitions, for all tokens. */
INLINE void four_rows(uint32_t format, const uint8_t *unit, int row, const iq2_tables *tables, const x_unit *x,
                      int64_t tokens, __m256 *acc)
{
    const block_minima minima = format == RIDGE_Q4_1 || format == RIDGE_Q4_K || format == RIDGE_Q5_K ? BLOCK_MIN_32
                                : format == RIDGE_Q2_K                                               ? BLOCK_MIN_16
                                                                                                     : BLOCK_NO_MIN;
    const block_layout f = block_layout_of(format);
    const bool common = has_subs(format); /* d and dmin of a row */
    __m256 scale[4], min[2][4], value[TOKENS][4];

#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        w_row w;

        unpack_codes(format, unit, row + i, tables, &w);
        unpack_scales(format, unit, row + i, &w);
        if (!common)
            scale[i] = w.scale;
#pragma GCC unroll 8
        for (int k = 0; k < (int)minima; k++)
            min[k][i] = w.min[k];
        for (int64_t t = 0; t < tokens; t++)
            value[t][i] = _mm256_cvtepi32_ps(integers(format, &w, &x[t]));
    }
#pragma GCC unroll 8
    for (int k = 0; k < (int)minima; k++)
        transpose(min[k]);
    if (common) {
        __m256 less = _mm256_setzero_ps();

        scale[0] = four_scales(format, unit + block_codes_bytes(f, 2) + BLOCK_ROWS * f.scale + row * f.more, &less);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            scale[j] = scale[0];
#pragma GCC unroll 8
            for (int k = 0; k < (int)minima; k++)
                min[k][j] = _mm256_mul_ps(less, min[k][j]);
        }
    } else {
        transpose(scale);
    }
    for (int64_t t = 0; t < tokens; t++) {
        __m256 sum = acc[t];

        transpose(value[t]);
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            sum = _mm256_fmadd_ps(_mm256_mul_ps(scale[j], _mm256_load_ps(x[t].scale[j])), value[t][j], sum);
#pragma GCC unroll 8
            for (int k = 0; k < (int)minima; k++)
                sum = _mm256_fmadd_ps(min[k][j], _mm256_load_ps(x[t].sum[k][j]), sum);
        }
        acc[t] = sum;
    }
}

/* A tile times all tokens: y[r][t]. */
INLINE void tile(uint32_t format, const block_args *a, const uint8_t *tiles, const iq2_tables *tables,
                 float (*y)[TOKENS])
{
    const block_layout f = block_layout_of(format);
    const int64_t units = block_units(a->cols), tokens = a->tokens;
    const x_unit *x = a->prepared;
    _Alignas(32) uint8_t whole[16 * 272];
    __m256 acc[4][4][TOKENS]; /* unit % 4, four rows */

    for (int i = 0; i < 16; i++)
        for (int64_t t = 0; t < tokens; t++)
            acc[i >> 2][i & 3][t] = _mm256_setzero_ps();
    for (int64_t u = 0; u < units; u++, tiles += block_unit_bytes(f, 2), x += tokens) {
        const uint8_t *unit = tiles;

        if (u == units - 1 && block_last_runs(a->cols) == 1) { /* the second run is zeros */
            memset(whole, 0, sizeof whole);
            memcpy(whole, unit, (size_t)block_codes_bytes(f, 1));
            memcpy(whole + block_codes_bytes(f, 2), unit + block_codes_bytes(f, 1),
                   (size_t)(block_unit_bytes(f, 1) - block_codes_bytes(f, 1)));
            unit = whole;
        }
        for (int i = 0; i < 4; i++) { /* requests spread over the time that products take */
            for (int64_t b = block_unit_bytes(f, 2) / 4 * i; b < block_unit_bytes(f, 2) / 4 * (i + 1); b += 64)
                _mm_prefetch((const char *)tiles + 2 * block_unit_bytes(f, 2) + b, _MM_HINT_T0);
            four_rows(format, unit, 4 * i, tables, x, tokens, acc[u & 3][i]);
        }
    }
    for (int i = 0; i < 4; i++)
        for (int64_t t = 0; t < tokens; t++) {
            __m128 part[4], sum;
            _Alignas(16) float four[4];

            for (int m = 0; m < 4; m++)
                part[m] = _mm_add_ps(_mm256_castps256_ps128(acc[m][i][t]), _mm256_extractf128_ps(acc[m][i][t], 1));
            sum = _mm_add_ps(_mm_add_ps(part[0], part[1]), _mm_add_ps(part[2], part[3]));
            _mm_store_ps(four, _mm_add_ps(sum, _mm_setzero_ps()));
            for (int r = 0; r < 4; r++)
                y[4 * i + r][t] = four[r];
        }
}

#define TILE(format)                       \
    case format:                           \
        tile(format, a, tiles, tables, y); \
        break

static void product(const block_args *a, const uint8_t *tiles, float (*y)[TOKENS])
{
    const iq2_tables *tables = a->tables;

    switch (a->format) {
        TILE(RIDGE_Q4_0);
        TILE(RIDGE_Q4_1);
        TILE(RIDGE_Q8_0);
        TILE(RIDGE_MXFP4);
        TILE(RIDGE_Q2_K);
        TILE(RIDGE_Q4_K);
        TILE(RIDGE_Q5_K);
        TILE(RIDGE_Q6_K);
    default:
        tile(RIDGE_IQ2_XXS, a, tiles, tables, y);
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------ activations */

/* Lays out block b of a token's unit. */
static void prepare(const block_args *a, const int8_t *codes, float scale, int64_t token, int64_t block)
{
    x_unit *to = (x_unit *)a->prepared + block / 8 * a->tokens + token;
    const int q = (int)(block % 8) >> 2, j = (int)block & 3;
    int sum[2] = {0, 0};

    for (int i = 0; i < 32; i++)
        sum[i / 16] += codes[i];
    for (int word = 0; word < 8; word++) {
        const int t = word & 3, h = word >> 2;
        uint8_t *const at = a->format == RIDGE_IQ2_XXS ? &to->codes[q][word >> 2][word >> 1 & 1][8 * j + 4 * (word & 1)]
                                                       : &to->codes[q][h][t >> 1][16 * (t & 1) + 4 * j];

        memcpy(at, codes + 4 * word, 4);
    }
    to->start[0][4 * q + j] = -offset_of(a->format) * (has_subs(a->format) ? sum[0] : sum[0] + sum[1]);
    to->start[1][4 * q + j] = -offset_of(a->format) * sum[1];
    for (int r = 0; r < 4; r++) {
        to->scale[j][4 * q + r] = scale;
        to->sum[0][j][4 * q + r] = ridge_block_x_sum(scale, a->format == RIDGE_Q2_K ? sum[0] : sum[0] + sum[1]);
        to->sum[1][j][4 * q + r] = ridge_block_x_sum(scale, sum[1]);
    }
}

const block_vectors RIDGE_SIMD(ridge_cpu_blocks) = {sizeof(x_unit), sizeof(iq2_tables), fill_tables, prepare, product};
