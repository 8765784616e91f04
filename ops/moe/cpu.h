/* cpu.h: what the files of moe_gate_up_swiglu and moe_down share on the CPU. */
#ifndef RIDGE_CPU_MOE_H
#define RIDGE_CPU_MOE_H

#include "products.h"

enum { MOE_CPU_ROWS = 32 }; /* of a part of the work: a block of codes */

/* cpu_products.c: column j of a slot, whose x begins at `at`, where x is floats or e4m3; xs: the scales of the slot. */
float ridge_cpu_moe_x(const moe_args *a, const float *xs, int64_t at, int64_t j);

/* cpu_products.c: what happens to finished products; all within ridge_fp_begin. One result of gate_up; rows first ..
 * first + count - 1 of a token's slot; the sum over slots of one row. */
float ridge_cpu_moe_swiglu(const moe_args *a, float gate, float up);
void ridge_cpu_moe_store_slot(const moe_args *a, int64_t t, int64_t s, int64_t first, int count, const float *y);
void ridge_cpu_moe_store_sum(const moe_args *a, int64_t t, int64_t r, float sum);

/* Sum of the products of a row with x, by chains; cols is a multiple of 32. Of bf16 (scales NULL), or of e4m3 with a
 * scale for every 128 columns. */
typedef float moe_dot(int form, const void *row, const float *scales, const float *x, int64_t cols);

#if defined(__x86_64__)
moe_dot ridge_cpu_moe_dot_avx2, ridge_cpu_moe_dot_avx512;
#endif

#endif
