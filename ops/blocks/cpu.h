/* cpu.h: what the CPU files of block formats share: a decoded block, the arguments of a call, and the work of one
 * instruction set. */
#ifndef RIDGE_CPU_BLOCKS_H
#define RIDGE_CPU_BLOCKS_H

#include <stdbool.h>

#include "layout.h"
#include "src/internal.h"
#include "src/math/blocks.h"
#include "src/math/swiglu.h"

/* 32 columns of a row: weight = scale * sub[half] * code + min[half], half = column / 16. */
typedef struct block_values {
    int8_t code[32];
    float scale, min[2];
    int32_t sub[2];
} block_values;

/* To which sums of activations' codes minima belong. */
typedef enum block_minima { BLOCK_NO_MIN = 0, BLOCK_MIN_32, BLOCK_MIN_16 } block_minima;

block_minima ridge_block_minima(uint32_t format);

/* Decodes columns 32 b .. 32 b + 31 of a GGUF block; b is 0 in blocks of 32. */
void ridge_block_decode(uint32_t format, const uint8_t *block, int b, block_values *to);

/* Writes the GGUF blocks of a row of a unit; 8 blocks of 32 columns, or as many as `count` says. */
void ridge_block_row_of_unit(uint32_t format, const uint8_t *unit, int runs, int row, int count, uint8_t *blocks);

enum { BLOCK_MAX_ROW_BYTES = 8 * 34 }; /* of a unit: the most is Q8_0's */

/* Activations as codes and scales, row strides in elements. */
typedef struct block_quantised {
    const int8_t *codes;
    const float *scales;
    int64_t stride, ld;
} block_quantised;

/* cpu.c: row `row` of a tile times each of `tokens` tokens, RIDGE_Q8_0_MAX_TOKENS at most, by the C reference; within
 * ridge_fp_begin. */
void ridge_block_reference_row(uint32_t format, const uint8_t *tile, int row, int64_t cols, const block_quantised *x,
                               int64_t tokens, float *y);

/* A bound call of one of the three products. */
typedef struct block_args {
    const ridge_call *call;
    int64_t tokens, cols;
    uint32_t format;
    struct {
        const uint8_t *tiles;
        int64_t rows, stride; /* of tiles, in bytes */
        const float *bias;    /* NULL: none */
        ridge_operand out;
    } weight[2];                 /* the second: of pair and gate_up_swiglu, else rows = 0 */
    ridge_operand residual;      /* data NULL: none */
    const float *token_scale;    /* NULL: none */
    ridge_swiglu_options swiglu; /* resolved */
    bool gate_up;
    void *prepared, *tables; /* x as the instruction set wants it, and what it looks codes up in: in the workspace */
} block_args;

/* The work of one instruction set. */
typedef struct block_vectors {
    size_t prepared, tables; /* bytes of a token and a unit of x; of the tables, which IQ2_XXS has */
    void (*fill_tables)(void *tables);
    /* Lays out a block of a token's activations. */
    void (*prepare)(const block_args *args, const int8_t *codes, float scale, int64_t token, int64_t block);
    /* y[r][t] of a tile, for all tokens. */
    void (*product)(const block_args *args, const uint8_t *tile, float (*y)[RIDGE_Q8_0_MAX_TOKENS]);
} block_vectors;

#if defined(__x86_64__)
extern const block_vectors ridge_cpu_blocks_avx2, ridge_cpu_blocks_avxvnni, ridge_cpu_blocks_vnni256;
#endif

#endif
