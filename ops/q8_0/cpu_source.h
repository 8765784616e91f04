/* cpu_source.h: where the vector code of Q8_0 decode (cpu_simd.h) finds the weights of a group of 32 blocks: in either
 * form of weights, and where a row ends in a short group. Each instruction set compiles it for itself. */
#ifndef RIDGE_CPU_Q8_0_SOURCE_H
#define RIDGE_CPU_Q8_0_SOURCE_H

#include <immintrin.h>
#include <string.h>

#include "cpu.h"

#if RIDGE_SIMD_avx512vnni
enum { VECTOR_ROWS = 2 };
#else
enum { VECTOR_ROWS = 1 };
#endif

/* Where the 32 blocks of a group lie, for the weight rows of a vector. */
typedef struct source {
    const uint8_t *codes[VECTOR_ROWS];
    const uint16_t *scales[VECTOR_ROWS]; /* 32 consecutive halves */
    int64_t step;                        /* bytes from block to block */
    int left;                            /* blocks of the row; the codes and scales behind them are of no meaning */
} source;

/* Group g of row `row` and, in the second half of a vector, of row + far. */
static inline source source_of(const q8_0_weight *w, int64_t row, int64_t far, int64_t g,
                               uint16_t (*halves)[Q8_0_GROUP])
{
    source at = {.step = w->step, .left = Q8_0_GROUP};

    for (int i = 0; i < VECTOR_ROWS; i++) {
        const int64_t r = row + i * far, block = g * Q8_0_GROUP;
        const uint8_t *scales = w->scales + r * w->scale_stride + block * w->scale_step;

        at.codes[i] = w->codes + r * w->stride + block * w->step;
        at.scales[i] = (const uint16_t *)(const void *)scales;
        if (w->scale_step != 2) {
            for (int b = 0; b < Q8_0_GROUP; b++)
                memcpy(&halves[i][b], scales + b * w->scale_step, 2);
            at.scales[i] = halves[i];
        }
    }
    return at;
}

/* Prefetches the codes of the group after next: with the processor's own prefetcher alone 16 cores reach 0.7 of this
 * speed. (Always inline: gcc takes a function that only prefetches for one without effect and drops its calls.) */
static inline __attribute__((always_inline)) void prefetch(const source *at)
{
    for (int i = 0; i < VECTOR_ROWS; i++)
        for (int64_t b = 0; b < at->left * at->step; b += 64)
            _mm_prefetch((const char *)at->codes[i] + 2 * Q8_0_GROUP * at->step + b, _MM_HINT_T0);
}

/* The last, short group: its blocks, and zeros behind them. */
typedef struct tail {
    uint8_t codes[VECTOR_ROWS][Q8_0_GROUP * RIDGE_Q8_0_BLOCK];
    uint16_t scales[VECTOR_ROWS][Q8_0_GROUP];
} tail;

/* Planes that hold a whole group from here on: the codes and scales of the next row serve as those behind this one's.
 * (Copies of rows of 576 columns took a quarter of a token's time of SmolLM2-135M.) */
static inline bool tail_in_place(const q8_0_weight *w, int64_t row, int64_t far, int64_t first, source *at)
{
    const int64_t beyond = w->rows - 1 - (row + (VECTOR_ROWS - 1) * far); /* rows */
    const int64_t missing = Q8_0_GROUP - at->left;

    if (w->step != RIDGE_Q8_0_BLOCK || w->scale_step != 2 || beyond * w->scale_stride < missing * 2 ||
        beyond * w->stride < missing * RIDGE_Q8_0_BLOCK)
        return false;
    for (int i = 0; i < VECTOR_ROWS; i++) {
        at->codes[i] = w->codes + (row + i * far) * w->stride + first * RIDGE_Q8_0_BLOCK;
        at->scales[i] =
            (const uint16_t *)(const void *)(w->scales + (row + i * far) * w->scale_stride + first * w->scale_step);
    }
    prefetch(at);
    return true;
}

static inline source tail_of(const q8_0_weight *w, int64_t row, int64_t far, int64_t g, int64_t blocks, tail *to)
{
    source at = {.step = RIDGE_Q8_0_BLOCK, .left = (int)(blocks - g * Q8_0_GROUP)};

    if (tail_in_place(w, row, far, g * Q8_0_GROUP, &at))
        return at;
    memset(to, 0, sizeof *to);
    for (int i = 0; i < VECTOR_ROWS; i++) {
        const int64_t r = row + i * far;

        for (int64_t b = g * Q8_0_GROUP; b < blocks; b++) {
            memcpy(to->codes[i] + b % Q8_0_GROUP * RIDGE_Q8_0_BLOCK, w->codes + r * w->stride + b * w->step,
                   RIDGE_Q8_0_BLOCK);
            memcpy(&to->scales[i][b % Q8_0_GROUP], w->scales + r * w->scale_stride + b * w->scale_step, 2);
        }
        at.codes[i] = to->codes[i];
        at.scales[i] = to->scales[i];
    }
    return at;
}

#endif
