/* op.h: what the op rows of gemm_fp8 and gemm_fp8_grouped share. */
#ifndef RIDGE_GEMM_FP8_OP_H
#define RIDGE_GEMM_FP8_OP_H

#include "src/ops.h"

#define GEMM_SCALES (RIDGE_SCALE | RIDGE_SCALE_B | RIDGE_SCALE_T | RIDGE_SCALE_B_T)

/* The scalings of A and B as RIDGE_SCALE_*; false: one of them is none that a product takes. */
bool ridge_gemm_scale_flags(ridge_scaling a, ridge_scaling b, uint32_t *flags);
/* The table of scales of a matrix. Those of an empty one are not read: they may be NULL. */
void ridge_gemm_scales_extent(uint32_t mode, bool transposed, int64_t rows, int64_t k, int64_t *table_rows,
                              int64_t *table_cols);

/* The scale of row r in block b of k is at[(r >> shift) * row + b * block]. */
typedef struct gemm_scale {
    const float *at;
    int64_t row, block;
    int shift;
} gemm_scale;

/* Of the table of A or B; groups of rows follow each other in it. mode: RIDGE_SCALE_*. */
static inline gemm_scale gemm_scale_of(const ridge_operand *table, uint32_t mode, bool transposed)
{
    gemm_scale s = {(const float *)table->data, 0, 0, 0};

    if (mode == RIDGE_SCALE_ROW || mode == RIDGE_SCALE_ROW128)
        s.row = transposed ? table->stride : 1;
    if (mode == RIDGE_SCALE_ROW128)
        s.block = transposed ? 1 : table->stride;
    if (mode == RIDGE_SCALE_BLK128) {
        s.row = table->stride;
        s.block = 1;
        s.shift = 7;
    }
    return s;
}

#endif
