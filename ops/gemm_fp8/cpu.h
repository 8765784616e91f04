/* cpu.h: what the files of gemm_fp8 on the CPU share: the arguments of a product and of its tiles. */
#ifndef RIDGE_CPU_GEMM_FP8_H
#define RIDGE_CPU_GEMM_FP8_H

#include <stdbool.h>
#include <stddef.h>

#include "op.h"

enum { GEMM_BLOCK = 128 }; /* of k: what one scale covers */

static inline float gemm_scale_at(const gemm_scale *s, int64_t r, int64_t b)
{
    return s->at[(r >> s->shift) * s->row + b * s->block];
}

typedef struct gemm_args {
    int64_t m, n, k;
    const uint8_t *a, *b;
    unsigned char *d;
    const void *bias;      /* NULL = none */
    int64_t lda, ldb, ldd; /* in elements */
    gemm_scale scale_a, scale_b;
    uint32_t dtype, bias_dtype;
    int a_e5m2, b_e5m2;
    bool whole; /* one scaling at the end: TENSOR and ROW */
    bool accumulate;
} gemm_args;

/* Rows [row, row + rows) and columns [col, col + cols) of D; work is one thread's, of gemm_work_floats(). */
typedef struct gemm_tile {
    int64_t row, rows, col, cols;
    float *work;
} gemm_tile;

typedef void gemm_tile_function(const gemm_args *args, const gemm_tile *tile);

/* Rows of a tile are a multiple of GEMM_ROWS, columns of GEMM_COLS, except at the edges. */
enum { GEMM_ROWS = 12, GEMM_COLS = 32, GEMM_PITCH = GEMM_BLOCK + 16 };
/* And at most so many: accumulators and A fit in a second-level cache. */
enum { GEMM_TILE_ROWS = 120, GEMM_TILE_COLS = 256 };

/* What a tile of that many rows and columns needs: accumulators, decoded A, a decoded panel of B, scales of A. */
static inline size_t gemm_work_floats(int64_t rows, int64_t cols)
{
    const size_t r = (size_t)((rows + 15) / 16 * 16), c = (size_t)((cols + GEMM_COLS - 1) / GEMM_COLS * GEMM_COLS);

    return r * c + r * GEMM_PITCH + (size_t)GEMM_BLOCK * GEMM_COLS + r;
}

#if defined(__x86_64__)
extern gemm_tile_function ridge_cpu_gemm_fp8_avx2, ridge_cpu_gemm_fp8_avx512;
#endif

#endif
