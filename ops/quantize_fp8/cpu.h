/* cpu.h: what the files of the FP8 and Q8_0 quantisers on the CPU share: the argument of the SIMD functions. */
#ifndef RIDGE_CPU_QUANTIZE_H
#define RIDGE_CPU_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "src/internal.h"
#include "src/math/quantize.h"

/* How a form scales: not at all (absent), one scale per row of 128 columns, or one per 128 x 128. */
typedef enum quantize_form { QUANTIZE_ABSENT = 0, QUANTIZE_ROW128, QUANTIZE_BLK128 } quantize_form;

/* One form: codes and their scale table, both strides in elements. */
typedef struct quantize_out {
    quantize_form form;
    uint8_t *q;
    float *scale;
    int64_t stride, ld;
} quantize_out;

/* Codes of bf16 numbers by the fraction of what they are multiplied by (cpu_tables.h). Each thread has its own. Tag 0:
 * the slot is empty. */
typedef struct quantize_tables {
    _Alignas(64) uint8_t code[256][RIDGE_GROUP];
    uint32_t tag[256];
} quantize_tables;

typedef struct quantize_args {
    const unsigned char *x; /* NULL: the caller of tile() has the elements */
    int64_t stride;         /* of x, in bytes */
    int64_t rows, cols;
    uint32_t dtype;
    int size; /* of an element of x */
    int e5m2, pow2;
    float floor;
    quantize_out row, col;   /* of x and of its transpose */
    float *tile_sums;        /* [ceil(rows/128)][cols], or NULL */
    quantize_tables *tables; /* the thread's, or NULL */
    bool by_table;           /* the row uses tables */
    bool stream;             /* codes bypass the cache; cpu.c fences at the end of a thread's work */
} quantize_args;

enum { QUANTIZE_ROWS = 16, QUANTIZE_STRIP = 1024 /* bytes of a row */ };

/* The work of one instruction set. */
typedef struct quantize_vectors {
    /* The bits of the largest |x| of n elements. */
    uint32_t (*amax)(uint32_t dtype, const void *x, int64_t n);
    /* The codes of one row, x * reciprocal. `cached`: it was just read. `guard`: infinite elements become 7F too, and
     * the bits of the largest |x| are returned (else 0). `next`: as many elements that will be read after it, or NULL.
     */
    uint32_t (*encode)(const quantize_args *args, const void *x, float reciprocal, bool cached, bool guard, uint8_t *q,
                       const void *next);
    /* Up to QUANTIZE_ROWS rows, a scale for every 128 columns of each. */
    void (*row128)(const quantize_args *args, int64_t row, int64_t rows);
    /* Blocks side by side, up to QUANTIZE_STRIP bytes of x a row, only BLK128. `more`: as many to the right come next.
     */
    void (*blocks)(const quantize_args *args, int64_t tr, int64_t col, int64_t cols, bool more);
    /* All forms of the 128 x 128 tile (tr, tc), whose elements are at x, `stride` bytes a row. `next`: where as many
     * rows are that will be read after it, or NULL. */
    void (*tile)(const quantize_args *args, int64_t tr, int64_t tc, const void *x, int64_t stride, const void *next);
    /* One row of Q8_0 blocks. `next`: the row that comes next, or NULL. */
    void (*q8_0)(uint32_t dtype, const void *x, int64_t cols, uint8_t *blocks, bool stream, const void *next);
} quantize_vectors;

#if defined(__x86_64__)
extern const quantize_vectors ridge_cpu_quantize_avx2, ridge_cpu_quantize_avx512, ridge_cpu_quantize_avx512vbmi;
#endif

/* Option matrices of quantize_fp8_dual: each matrix as a call of the same row, which uses no workspace. */
ridge_status ridge_cpu_quantize_matrices(const ridge_device *device, const ridge_kernel *kernel,
                                         const ridge_bound *bound);

#endif
