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

#endif
