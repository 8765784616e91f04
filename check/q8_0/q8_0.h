/* q8_0.h: what the files of this folder share. */
#ifndef RIDGE_CHECK_Q8_0_H
#define RIDGE_CHECK_Q8_0_H

#include "check/family.h"

/* Of a matmul, which takes activations and weights. */
static inline bool is_product(uint32_t op)
{
    return op == RIDGE_Q8_0_MATMUL || op == RIDGE_Q8_0_PAIR || op == RIDGE_Q8_0_GATE_UP_SWIGLU ||
           op == RIDGE_Q8_0_MATMUL_HC_EXPAND;
}

void cases_q8_0(const ridge_op_row *op, case_level level, case_list *list);
bool fill_q8_0(const test_case *c, const image *im, int arg, uint64_t seed);
void oracle_blocks(oracle_run *run);        /* q8_0_quantize, _repack, _unpack */
void oracle_quantize_rows(oracle_run *run); /* q8_0_quantize_rows */
void oracle_products(oracle_run *run);      /* the matmuls */

#endif
