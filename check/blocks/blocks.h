/* blocks.h: what the files of this folder share. */
#ifndef RIDGE_CHECK_BLOCKS_H
#define RIDGE_CHECK_BLOCKS_H

#include "check/family.h"

static inline bool is_block_product(uint32_t op)
{
    return op == RIDGE_BLOCK_MATMUL || op == RIDGE_BLOCK_PAIR || op == RIDGE_BLOCK_GATE_UP_SWIGLU;
}

static inline bool is_block_format(uint32_t dtype)
{
    return dtype >= RIDGE_Q4_0 && dtype < RIDGE_DTYPES;
}

void cases_blocks(const ridge_op_row *op, case_level level, case_list *list);
bool fill_blocks(const test_case *c, const image *im, int arg, uint64_t seed);
void oracle_blocks_moved(oracle_run *run);
void oracle_block_products(oracle_run *run);

#endif
