/* cpu_simd.h: the SIMD rows of Q8_0 decode, once an instruction set.
 *
 * A vector has one lane for each of the eight partitions, or with avx512vnni two rows of such lanes (16). Blocks 4p +
 * j, p = 0 .. 7, of a group of 32 are the j-th step of all eight: eight independent chains, and no lane is added to
 * another before the tree. For a step, the codes of its eight blocks are transposed: vector k has the k-th four codes
 * of each block, and x is laid out so once a call (prepare). Weights are read once for all tokens. With one token and
 * 256-bit VNNI the integer sums are transposed instead of the codes: 0.8 of the time.
 *
 * Dots: VNNI multiplies unsigned by signed bytes, so a weight is taken as w + 128 and 128 * (sum of x's block) is
 * subtracted up front, all exact in int32. Without VNNI, bytes are widened to 16 bits, even and odd ones apart
 * (pmaddubsw would saturate at -128 * -128 and needs signs). Leaves out: threads, argument checks, references (cpu.c).
 * Compiled for: avx2, avxvnni, vnni256, avx512vnni. */
#include <immintrin.h>
#include <string.h>

#include "cpu/num.h"
#include "cpu_source.h"

enum { PARTS = RIDGE_Q8_0_PARTS, RUN = RIDGE_Q8_0_RUN, WORDS = RIDGE_Q8_0_BLOCK / 4, TOKENS = Q8_0_PANEL };
enum { DECODE_TOKENS = RIDGE_Q8_0_MAX_TOKENS }; /* with more, rows are computed together */

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
enum { VNNI = 1, X_BYTES = 4 * PARTS };
#else
enum { VNNI = 0, X_BYTES = 8 * PARTS }; /* two halves of 16-bit codes */
#endif

/* A token's blocks 32 g .. 32 g + 31. */
typedef struct group {
    _Alignas(64) float scale[RUN][PARTS];
    int32_t start[RUN][PARTS]; /* of the dots: -128 times the sum of the block's codes, 0 without VNNI */
    union {
        uint8_t codes[RUN][WORDS][X_BYTES];
        uint8_t block[RUN][PARTS][X_BYTES]; /* BY_BLOCKS: block 4p + j as it is, in [j][p] */
    };
} group;

/* ------------------------------------------------------------------------------------------------------ intrinsics */

#if RIDGE_SIMD_avx512vnni
typedef __m512i ivec;
typedef __m512 fvec;
#define both_i(from) _mm512_broadcast_i32x8(_mm256_load_si256((const __m256i *)(const void *)(from)))
#define both_f(from) _mm512_broadcast_f32x8(_mm256_load_ps(from))
#define zero_f() _mm512_setzero_ps()
#define mul_f(a, b) _mm512_mul_ps(a, b)
#define fma_f(a, b, c) _mm512_fmadd_ps(a, b, c)
#define to_f(a) _mm512_cvtepi32_ps(a)
#define low32(a, b) _mm512_unpacklo_epi32(a, b)
#define high32(a, b) _mm512_unpackhi_epi32(a, b)
#define low64(a, b) _mm512_unpacklo_epi64(a, b)
#define high64(a, b) _mm512_unpackhi_epi64(a, b)
#define flip(a) _mm512_xor_si512(a, _mm512_set1_epi32((int)0x80808080u))
#define dot_bytes(acc, w, x) _mm512_dpbusd_epi32(acc, w, x)
#define low_half(a) _mm512_castps512_ps256(a)
#define high_half(a) _mm512_extractf32x8_ps(a, 1)
#define dot_words(acc, w, x) _mm512_add_epi32(acc, _mm512_madd_epi16(w, x))
#define even_words(a) _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8)
#define odd_words(a) _mm512_srai_epi16(a, 8)
#else
typedef __m256i ivec;
typedef __m256 fvec;
#define both_i(from) _mm256_load_si256((const __m256i *)(const void *)(from))
#define both_f(from) _mm256_load_ps(from)
#define zero_f() _mm256_setzero_ps()
#define mul_f(a, b) _mm256_mul_ps(a, b)
#define fma_f(a, b, c) _mm256_fmadd_ps(a, b, c)
#define to_f(a) _mm256_cvtepi32_ps(a)
#define low32(a, b) _mm256_unpacklo_epi32(a, b)
#define high32(a, b) _mm256_unpackhi_epi32(a, b)
#define low64(a, b) _mm256_unpacklo_epi64(a, b)
#define high64(a, b) _mm256_unpackhi_epi64(a, b)
#define flip(a) _mm256_xor_si256(a, _mm256_set1_epi32((int)0x80808080u))
#ifdef __AVX512VNNI__
#define dot_bytes(acc, w, x) _mm256_dpbusd_epi32(acc, w, x)
#else
#define dot_bytes(acc, w, x) _mm256_dpbusd_avx_epi32(acc, w, x)
#endif
#define low_half(a) (a)
#define high_half(a) (a)
#define dot_words(acc, w, x) _mm256_add_epi32(acc, _mm256_madd_epi16(w, x))
#define even_words(a) _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8)
#define odd_words(a) _mm256_srai_epi16(a, 8)
#endif

/* x of one token is laid out by blocks, for one_token_step. */
#if (defined(__AVX512VNNI__) || defined(__AVXVNNI__)) && !RIDGE_SIMD_avx512vnni
#define BY_BLOCKS(tokens) ((tokens) == 1)
#else
#define BY_BLOCKS(tokens) 0
#endif

enum { UNIT_VECTORS = (Q8_0_ROWS + VECTOR_ROWS - 1) / VECTOR_ROWS };
#if defined(__AVX512VNNI__)
enum { TILE_TOKENS = 4 }; /* 32 registers */
#else
enum { TILE_TOKENS = 2 };
#endif

static inline __m128i load16(const uint8_t *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

/* Half h of blocks 4q + j and 4(q + 4) + j, of every row of the vector. */
static inline __attribute__((always_inline)) ivec half_blocks(const source *at, int j, int q, int h)
{
    const uint8_t *low = at->codes[0] + (RUN * q + j) * at->step + 16 * h, *high = low + 4 * RUN * at->step;
    __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
#if RIDGE_SIMD_avx512vnni
    const uint8_t *low1 = at->codes[1] + (RUN * q + j) * at->step + 16 * h, *high1 = low1 + 4 * RUN * at->step;
    __m256i second = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low1)), load16(high1), 1);

    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
#else
    return first;
#endif
}

/* w[k]: in lane p (of each row) codes 4k .. 4k + 3 of block 4p + j. */
static inline __attribute__((always_inline)) void transpose(const source *at, int j, ivec *w)
{
    for (int h = 0; h < 2; h++) {
        const ivec a = half_blocks(at, j, 0, h), b = half_blocks(at, j, 1, h);
        const ivec c = half_blocks(at, j, 2, h), d = half_blocks(at, j, 3, h);
        const ivec ab0 = low32(a, b), ab1 = high32(a, b), cd0 = low32(c, d), cd1 = high32(c, d);

        w[4 * h] = low64(ab0, cd0);
        w[4 * h + 1] = high64(ab0, cd0);
        w[4 * h + 2] = low64(ab1, cd1);
        w[4 * h + 3] = high64(ab1, cd1);
    }
}

/* d[j]: f32 scales of blocks 4p + j in lane p; zeros behind the row's last block, where they may be NaN. */
static inline __attribute__((always_inline)) void scales_of(const source *at, fvec *d)
{
#if RIDGE_SIMD_avx512vnni
    const __mmask32 there = (__mmask32)(UINT64_C(0xffffffff) >> (Q8_0_GROUP - at->left));
    const __m512i a = _mm512_maskz_loadu_epi16(there, at->scales[0]);
    const __m512i b = _mm512_maskz_loadu_epi16(there, at->scales[1]);
    const __m512i first =
        _mm512_set_epi16(60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0, 60, 56, 52, 48, 44, 40, 36, 32,
                         28, 24, 20, 16, 12, 8, 4, 0); /* 32 and above: the second row */

    for (int j = 0; j < RUN; j++)
        d[j] = _mm512_cvtph_ps(_mm512_castsi512_si256(
            _mm512_permutex2var_epi16(a, _mm512_add_epi16(first, _mm512_set1_epi16((short)j)), b)));
#else
    __m256 v[4];
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

    for (int i = 0; i < 4; i++) { /* blocks 8i .. 8i + 7: runs 2i and 2i + 1 */
        const __m128i number = _mm_add_epi16(_mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7), _mm_set1_epi16((short)(8 * i)));
        const __m128i there = _mm_cmpgt_epi16(_mm_set1_epi16((short)at->left), number);
        const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(at->scales[0] + 8 * i));

        v[i] = _mm256_cvtph_ps(at->left < Q8_0_GROUP ? _mm_and_si128(halves, there) : halves);
    }
    {
        const __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
        const __m256 c = _mm256_unpacklo_ps(v[2], v[3]), e = _mm256_unpackhi_ps(v[2], v[3]);
        /* even runs in the low half, odd ones in the high half */
        const __m256 t[4] = {_mm256_shuffle_ps(a, c, 0x44), _mm256_shuffle_ps(a, c, 0xee),
                             _mm256_shuffle_ps(b, e, 0x44), _mm256_shuffle_ps(b, e, 0xee)};

        for (int j = 0; j < RUN; j++)
            d[j] = _mm256_permutevar8x32_ps(t[j], order);
    }
#endif
}

/* ------------------------------------------------------------------------------------------------------ activations */

/* 32 activations as f32. */
static void widen(uint32_t dtype, const void *x, float *to)
{
    if (dtype == RIDGE_BF16) {
        uint16_t raw[RIDGE_Q8_0_BLOCK];

        memcpy(raw, x, sizeof raw);
        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            to[i] = ridge_f32_from_bf16(raw[i]);
    } else {
        memcpy(to, x, RIDGE_Q8_0_BLOCK * sizeof *to);
    }
}

static float quantize_block(uint32_t dtype, const void *x, int8_t *codes)
{
    float v[RIDGE_Q8_0_BLOCK], d, r;
    uint32_t amax = 0;

    widen(dtype, x, v);
    for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
        amax = ridge_magnitude(v[i]) > amax ? ridge_magnitude(v[i]) : amax;
    d = ridge_q8_0_x_scale(amax, &r);
    for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
        codes[i] = (int8_t)ridge_q8_0_x_code(v[i], r);
    return d;
}

static void quantize(uint32_t dtype, const void *x, int64_t cols, int8_t *codes, float *scales)
{
    const int64_t size = dtype == RIDGE_F32 ? 4 : 2;

    for (int64_t b = 0; b < cols / RIDGE_Q8_0_BLOCK; b++)
        scales[b] = quantize_block(dtype, (const char *)x + b * RIDGE_Q8_0_BLOCK * size, codes + b * RIDGE_Q8_0_BLOCK);
}

static void prepare(const q8_0_args *args, int64_t t, int64_t g)
{
    const ridge_operand *x = &args->call->arg[0], *s = &args->call->arg[1];
    const int64_t size = x->dtype == RIDGE_F32 ? 4 : x->dtype == RIDGE_BF16 ? 2 : 1;
    const char *from = (const char *)x->data + (t * x->stride + g * Q8_0_GROUP * RIDGE_Q8_0_BLOCK) * size;
    group *to = (group *)args->prepared + g * args->tokens + t;

    for (int b = 0; b < Q8_0_GROUP; b++) {
        const int p = b / RUN, j = b % RUN;
        int8_t codes[RIDGE_Q8_0_BLOCK] = {0};
        float scale = 0;
        int sum = 0;

        if (g * Q8_0_GROUP + b < args->blocks && x->dtype == RIDGE_I8) {
            memcpy(codes, from + b * RIDGE_Q8_0_BLOCK, sizeof codes);
            scale = ((const float *)s->data)[t * s->stride + g * Q8_0_GROUP + b];
        } else if (g * Q8_0_GROUP + b < args->blocks) {
            scale = quantize_block(x->dtype, from + b * RIDGE_Q8_0_BLOCK * size, codes);
        }
        for (int i = 0; i < RIDGE_Q8_0_BLOCK; i++)
            sum += codes[i];
        to->scale[j][p] = scale;
        to->start[j][p] = VNNI ? -128 * sum : 0;
        if (BY_BLOCKS(args->tokens)) {
            memcpy(to->block[j][p], codes, sizeof codes);
            continue;
        }
        for (int k = 0; k < WORDS; k++) {
            if (VNNI) {
                memcpy(&to->codes[j][k][4 * p], codes + 4 * k, 4);
            } else {
                const int16_t even[2] = {codes[4 * k], codes[4 * k + 2]}, odd[2] = {codes[4 * k + 1], codes[4 * k + 3]};

                memcpy(&to->codes[j][k][4 * p], even, 4);
                memcpy(&to->codes[j][k][X_BYTES / 2 + 4 * p], odd, 4);
            }
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- products */

/* Step j of a group for all tokens: acc[t] = fma(wd * xs, dot, acc[t]) in every partition. */
static inline __attribute__((always_inline)) void step(const source *at, int j, fvec wd, const group *x, int64_t tokens,
                                                       fvec *acc)
{
    ivec w[WORDS], odd[WORDS] __attribute__((unused));

    transpose(at, j, w);
    for (int k = 0; k < WORDS; k++) {
        odd[k] = odd_words(w[k]);
        w[k] = VNNI ? flip(w[k]) : even_words(w[k]);
    }
    for (int64_t t = 0; t < tokens; t++) {
        ivec dot = both_i(x[t].start[j]);

        for (int k = 0; k < WORDS; k++) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
            dot = dot_bytes(dot, w[k], both_i(x[t].codes[j][k]));
#else
            dot = dot_words(dot, w[k], both_i(x[t].codes[j][k]));
            dot = dot_words(dot, odd[k], both_i(x[t].codes[j][k] + X_BYTES / 2));
#endif
        }
        acc[t] = fma_f(mul_f(wd, both_f(x[t].scale[j])), to_f(dot), acc[t]);
    }
}

#if BY_BLOCKS(1)
/* Eight sums of four products each, whose sum is a block's dot. */
static inline __m256i block_sums(const source *at, int b, const uint8_t *x)
{
    const __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)(at->codes[0] + b * at->step));

    return dot_bytes(_mm256_setzero_si256(), flip(w), both_i(x));
}

/* In each half, lane i: the sum of the half of v[i]. */
static inline __attribute__((always_inline)) __m256i sum_halves(const __m256i *v)
{
    const __m256i ab = _mm256_add_epi32(low32(v[0], v[1]), high32(v[0], v[1]));
    const __m256i cd = _mm256_add_epi32(low32(v[2], v[3]), high32(v[2], v[3]));

    return _mm256_add_epi32(low64(ab, cd), high64(ab, cd));
}

/* A group of one token; the blocks that a short one lacks are left out. */
static inline __attribute__((always_inline)) void one_token_step(const source *at, const fvec *wd, const group *x,
                                                                 fvec *acc)
{
    for (int j = 0; j < RUN; j++) {
        __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, v[PARTS / 2], dot;

        for (int h = 0; h < 2 && Q8_0_GROUP / 2 * h + j < at->left; h++) {
            for (int p = 0; p < PARTS / 2; p++) {
                const int part = PARTS / 2 * h + p, b = RUN * part + j;

                v[p] = b < at->left ? block_sums(at, b, x->block[j][part]) : _mm256_setzero_si256();
            }
            sum[h] = sum_halves(v);
        }
        dot = _mm256_add_epi32(_mm256_permute2x128_si256(sum[0], sum[1], 0x20),
                               _mm256_permute2x128_si256(sum[0], sum[1], 0x31));
        *acc = fma_f(mul_f(wd[j], both_f(x->scale[j])), to_f(_mm256_add_epi32(dot, both_i(x->start[j]))), *acc);
    }
}
#endif

static inline __attribute__((always_inline)) void group_step(const source *at, const group *x, int64_t tokens,
                                                             fvec *acc)
{
    fvec wd[RUN];

    scales_of(at, wd);
#if BY_BLOCKS(1)
    if (tokens == 1) {
        one_token_step(at, wd, x, acc);
        return;
    }
#endif
    for (int j = 0; j < RUN; j++)
        step(at, j, wd[j], x, tokens, acc);
}

/* The eight partitions of one row. */
static inline float tree(__m256 a)
{
    const __m256 pairs = _mm256_hadd_ps(a, a), fours = _mm256_hadd_ps(pairs, pairs);

    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}

/* The results of a vector for one token: y of its first row and, `far` floats on, of the row in its second half. */
static inline void put_tree(fvec acc, float *y, int64_t far)
{
    *y = tree(low_half(acc));
    if (VECTOR_ROWS > 1)
        y[far] = tree(far ? high_half(acc) : low_half(acc));
}

static inline __attribute__((always_inline)) void row_dots(const q8_0_args *args, const q8_0_weight *w, int64_t row,
                                                           int64_t far, int64_t tokens, fvec *acc)
{
    const int64_t whole = args->blocks / Q8_0_GROUP;
    const group *x = (const group *)args->prepared + args->first;
    uint16_t halves[VECTOR_ROWS][Q8_0_GROUP];
    tail rest;

    for (int64_t t = 0; t < tokens; t++)
        acc[t] = zero_f();
    for (int64_t g = 0; g < whole; g++, x += args->tokens) {
        const source at = source_of(w, row, far, g, halves);

        prefetch(&at);
        group_step(&at, x, tokens, acc);
    }
    if (whole * Q8_0_GROUP < args->blocks) {
        const source at = tail_of(w, row, far, whole, args->blocks, &rest);

        group_step(&at, x, tokens, acc);
    }
}

/* y[i * pitch + t] of rows row + i, i < count, for all tokens. One row after another reads memory in ascending order,
 * and a read from DRAM needs that more than x needs to stay in L1: several rows at a time through the same columns took
 * twice as long. For the same reason the second half of a vector takes its rows from the second half of the work unit.
 */
static void decode_dots(const q8_0_args *args, const q8_0_weight *w, int64_t row, int count, float *y, int64_t pitch)
{
    const int vectors = (count + VECTOR_ROWS - 1) / VECTOR_ROWS;

    for (int i = 0; i < vectors; i++) {
        const int far =
            i + vectors < count ? vectors : 0; /* the last of an odd number of rows fills both halves of its vector */
        fvec acc[DECODE_TOKENS];

        if (args->count == 1)
            row_dots(args, w, row + i, far, 1, acc);
        else
            row_dots(args, w, row + i, far, args->count, acc);
        for (int64_t t = 0; t < args->count; t++)
            put_tree(acc[t], y + i * pitch + t, far * pitch);
    }
}

/* The weights of a group and of all rows of the work unit, as the products want them: codes transposed once for all
 * tokens of the panel. 16 KB, without VNNI 32 KB: in the first cache, or nearly. */
typedef struct unit {
    ivec codes[UNIT_VECTORS][RUN][WORDS][VNNI ? 1 : 2];
    fvec scale[UNIT_VECTORS][RUN];
} unit;

static void transpose_unit(const q8_0_args *args, const q8_0_weight *w, int64_t row, int count, int64_t g, unit *to)
{
    const int vectors = (count + VECTOR_ROWS - 1) / VECTOR_ROWS;
    uint16_t halves[VECTOR_ROWS][Q8_0_GROUP];
    tail rest;

    for (int i = 0; i < vectors; i++) {
        const int far = i + vectors < count ? vectors : 0;
        const source at = g < args->blocks / Q8_0_GROUP ? source_of(w, row + i, far, g, halves)
                                                        : tail_of(w, row + i, far, g, args->blocks, &rest);

        scales_of(&at, to->scale[i]);
        for (int j = 0; j < RUN; j++) {
            ivec v[WORDS];

            transpose(&at, j, v);
            for (int k = 0; k < WORDS; k++) {
                to->codes[i][j][k][0] = VNNI ? flip(v[k]) : even_words(v[k]);
                if (!VNNI)
                    to->codes[i][j][k][!VNNI] = odd_words(v[k]);
            }
        }
    }
}

/* A group for `vectors` vectors of rows and `tokens` tokens (constants), whose sums stay in registers: each load of
 * weights serves all tokens, each load of x all vectors. acc[i * TOKENS + t]. */
static inline __attribute__((always_inline)) void tile_step(const unit *w, int first, int vectors, const group *x,
                                                            int tokens, fvec *acc)
{
    fvec sum[2][TILE_TOKENS];

    for (int i = 0; i < vectors; i++)
        for (int t = 0; t < tokens; t++)
            sum[i][t] = acc[i * TOKENS + t];
    for (int j = 0; j < RUN; j++) {
        ivec dot[2][TILE_TOKENS];

        for (int i = 0; i < vectors; i++)
            for (int t = 0; t < tokens; t++)
                dot[i][t] = both_i(x[t].start[j]);
        for (int k = 0; k < WORDS; k++)
            for (int i = 0; i < vectors; i++)
                for (int t = 0; t < tokens; t++) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
                    dot[i][t] = dot_bytes(dot[i][t], w->codes[first + i][j][k][0], both_i(x[t].codes[j][k]));
#else
                    dot[i][t] = dot_words(dot[i][t], w->codes[first + i][j][k][0], both_i(x[t].codes[j][k]));
                    dot[i][t] =
                        dot_words(dot[i][t], w->codes[first + i][j][k][1], both_i(x[t].codes[j][k] + X_BYTES / 2));
#endif
                }
        for (int i = 0; i < vectors; i++)
            for (int t = 0; t < tokens; t++)
                sum[i][t] = fma_f(mul_f(w->scale[first + i][j], both_f(x[t].scale[j])), to_f(dot[i][t]), sum[i][t]);
    }
    for (int i = 0; i < vectors; i++)
        for (int t = 0; t < tokens; t++)
            acc[i * TOKENS + t] = sum[i][t];
}

/* The same for many tokens: group by group, the rows of the unit together. */
static void prompt_dots(const q8_0_args *args, const q8_0_weight *w, int64_t row, int count, float (*y)[TOKENS])
{
    const int vectors = (count + VECTOR_ROWS - 1) / VECTOR_ROWS, tokens = (int)args->count;
    const int64_t groups = (args->blocks + Q8_0_GROUP - 1) / Q8_0_GROUP;
    const group *x = (const group *)args->prepared + args->first;
    fvec acc[UNIT_VECTORS * TOKENS];
    unit u;

    for (int i = 0; i < vectors * TOKENS; i++)
        acc[i] = zero_f();
    for (int64_t g = 0; g < groups; g++, x += args->tokens) {
        int t = 0;

        transpose_unit(args, w, row, count, g, &u);
        for (; t + TILE_TOKENS <= tokens; t += TILE_TOKENS) {
            int i = 0;

            for (; i + 2 <= vectors; i += 2)
                tile_step(&u, i, 2, x + t, TILE_TOKENS, acc + i * TOKENS + t);
            if (i < vectors)
                tile_step(&u, i, 1, x + t, TILE_TOKENS, acc + i * TOKENS + t);
        }
        for (; t < tokens; t++)
            for (int i = 0; i < vectors; i++)
                tile_step(&u, i, 1, x + t, 1, acc + i * TOKENS + t);
    }
    for (int i = 0; i < vectors; i++)
        for (int t = 0; t < tokens; t++)
            put_tree(acc[i * TOKENS + t], &y[i][t], i + vectors < count ? vectors * TOKENS : 0);
}

static void dots(const q8_0_args *args, const q8_0_weight *w, int64_t row, int count, float (*y)[TOKENS])
{
    if (args->count <= DECODE_TOKENS && args->tokens <= DECODE_TOKENS)
        decode_dots(args, w, row, count, y[0], TOKENS);
    else
        prompt_dots(args, w, row, count, y);
}

/* -------------------------------------------------------------------------------------------------------- epilogues */

static inline void put(const ridge_operand *out, int64_t i, float value)
{
    if (out->dtype == RIDGE_BF16)
        ((uint16_t *)out->data)[i] = ridge_bf16_from_f32(value);
    else
        ((float *)out->data)[i] = ridge_f32_canonical(value);
}

static void put_plain(const q8_0_args *args, int slot, int64_t row, int count, float (*y)[TOKENS])
{
    const ridge_operand *out = &args->call->arg[slot];

    for (int64_t t = 0; t < args->count; t++)
        for (int i = 0; i < count; i++)
            put(out, (args->first + t) * out->stride + row + i, y[i][t]);
}

static void put_swiglu(const q8_0_args *args, int64_t row, int count, float (*gate)[TOKENS], float (*up)[TOKENS])
{
    const ridge_call *call = args->call;
    const ridge_operand *out = &call->arg[RIDGE_Q8_0_GATE_UP_SWIGLU_OUT];
    const float *scale = call->arg[RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE].data;
    const ridge_swiglu_options o = args->swiglu;
    const uint32_t act = call->flags & RIDGE_ACTIVATION;

    for (int64_t t = 0; t < args->count; t++)
        for (int i = 0; i < count; i++) {
            const int64_t at = args->first + t;
            const float a = ridge_swiglu_gate(gate[i][t], o), b = ridge_swiglu_up(up[i][t], o);
            const float h = ridge_act_fwd(act, a, o.alpha);

            put(out, at * out->stride + row + i, ridge_swiglu_scale(h * b, scale ? scale[at] : 1.0f, o));
        }
}

static void put_streams(const q8_0_args *args, int64_t row, int count, float (*y)[TOKENS])
{
    const ridge_operand *arg = args->call->arg, *res = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_RES];
    const ridge_operand *out = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT], *add = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD];
    const ridge_operand *post = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_POST], *comb = &arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB];
    const int64_t height = args->call->dim[2], n = args->call->dim[3];

    for (int64_t t = 0; t < args->count; t++) {
        const int64_t at = args->first + t, first = at * out->stride + row;
        const float *p = (const float *)post->data + at * post->stride;
        const float *c = (const float *)comb->data + at * comb->stride;
        const float *x = (const float *)res->data + at * res->stride + row;
        const float *more = add->data ? (const float *)add->data + at * add->stride + row : NULL;

        for (int64_t dst = 0; dst < n; dst++)
            for (int i = 0; i < count; i++) {
                float acc = ridge_hc_start(more ? y[i][t] + more[i] : y[i][t], p[dst]);

                for (int64_t src = 0; src < n; src++)
                    acc = ridge_hc_step(acc, c[dst + n * src], x[src * height + i]);
                put(out, first + dst * height + i, acc);
            }
    }
}

static void rows(const q8_0_args *args, int which, int64_t row, int count)
{
    float y[Q8_0_ROWS][TOKENS], up[Q8_0_ROWS][TOKENS];
    const q8_0_weight *w = &args->weight[which];

    dots(args, w, row, count, y);
    switch (args->call->op) {
    case RIDGE_Q8_0_MATMUL:
        put_plain(args, RIDGE_Q8_0_MATMUL_OUT, row, count, y);
        break;
    case RIDGE_Q8_0_PAIR:
        put_plain(args, RIDGE_Q8_0_PAIR_OUT0 + which, row, count, y);
        break;
    case RIDGE_Q8_0_GATE_UP_SWIGLU:
        dots(args, &args->weight[1], row, count, up);
        put_swiglu(args, row, count, y, up);
        break;
    default:
        if (args->call->arg[RIDGE_Q8_0_MATMUL_HC_EXPAND_Y].data)
            put_plain(args, RIDGE_Q8_0_MATMUL_HC_EXPAND_Y, row, count, y);
        put_streams(args, row, count, y);
        break;
    }
}

static void few_dots(const q8_0_args *args, const q8_0_weight *w, int64_t row, int count, float (*y)[DECODE_TOKENS])
{
    q8_0_args all = *args;

    all.first = 0;
    all.count = all.tokens;
    decode_dots(&all, w, row, count, y[0], DECODE_TOKENS);
}

const q8_0_vectors RIDGE_SIMD(ridge_cpu_q8_0) = {sizeof(group), prepare, rows, few_dots, quantize};
