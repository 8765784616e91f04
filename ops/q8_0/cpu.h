/* cpu.h: what the files of Q8_0 decode on the CPU share: the arguments of a call, and the work of one
 * instruction set. */
#ifndef RIDGE_CPU_Q8_0_MATMUL_H
#define RIDGE_CPU_Q8_0_MATMUL_H

#include <stdbool.h>
#include <stddef.h>

#include "src/internal.h"
#include "src/math/q8_0.h"
#include "src/math/swiglu.h"

/* Blocks of one pass over all partitions. */
enum { Q8_0_GROUP = RIDGE_Q8_0_PARTS * RIDGE_Q8_0_RUN };

/* A weight matrix of either form: block b of row r has its codes at codes + r * stride + b * step and its f16 scale at
 * scales + r * scale_stride + b * scale_step, all in bytes. */
typedef struct q8_0_weight {
    const uint8_t *codes, *scales;
    int64_t rows, stride, step, scale_stride, scale_step;
} q8_0_weight;

/* A bound call of one of the four products. */
typedef struct q8_0_args {
    const ridge_call *call;
    int64_t tokens, blocks;
    int64_t first, count;        /* of the tokens: the panel that a pass over the weights computes */
    q8_0_weight weight[2];       /* the second: of pair and gate_up_swiglu, else rows = 0 */
    ridge_swiglu_options swiglu; /* resolved */
    void *prepared;              /* x as the instruction set wants it, in the workspace */
} q8_0_args;

enum { Q8_0_ROWS = 16, Q8_0_PANEL = 64 }; /* rows of a unit of work, tokens of a panel */

/* The work of one instruction set. */
typedef struct q8_0_vectors {
    size_t prepared; /* bytes of a token and a group of 32 blocks */
    /* Quantises (where needed) and lays out token t, blocks 32 g .. 32 g + 31. */
    void (*prepare)(const q8_0_args *args, int64_t t, int64_t g);
    /* Everything for the panel's tokens and rows row .. row + count - 1 of weight `which`, count <= Q8_0_ROWS: outputs
     * are written. */
    void (*rows)(const q8_0_args *args, int which, int64_t row, int count);
    /* y[i][t] of rows row + i, i < count, for all tokens, at most 16: the products alone. */
    void (*dots)(const q8_0_args *args, const q8_0_weight *w, int64_t row, int count,
                 float (*y)[RIDGE_Q8_0_MAX_TOKENS]);
    /* One row of q8_0_quantize_rows. */
    void (*quantize)(uint32_t dtype, const void *x, int64_t cols, int8_t *codes, float *scales);
} q8_0_vectors;

#if defined(__x86_64__)
extern const q8_0_vectors ridge_cpu_q8_0_avx2, ridge_cpu_q8_0_avxvnni, ridge_cpu_q8_0_vnni256,
    ridge_cpu_q8_0_avx512vnni;
#endif

#endif
