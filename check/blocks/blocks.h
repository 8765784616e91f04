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
/* The types of files that the formats have. */
extern const uint32_t block_file_types[RIDGE_DTYPES];
/* A row of blocks (w: as floats) times 32 by 32 codes with scales: float64, and how far sums of scales times integers
 * may be off. */
estimate oracle_block_product(uint32_t format, int64_t cols, const uint8_t *blocks, const float *w, const int8_t *codes,
                              const float *scales);
/* Scales of random blocks: ordinary ones; of each row a kind of its own, zeros, subnormals, NaN among them; each of the
 * 2^16 f16 numbers in some row. */
typedef enum fill_scales { SCALES_PLAIN, SCALES_HARD, SCALES_EVERY } fill_scales;

/* Makes `rows` rows of random blocks and lays them out as tiles. */
bool fill_tiles(uint32_t format, int64_t rows, int64_t cols, fill_scales scales, void *tiles, int64_t stride,
                uint64_t seed);
bool fill_blocks(const test_case *c, const image *im, int arg, uint64_t seed);
void oracle_blocks_moved(oracle_run *run);
void oracle_block_products(oracle_run *run);

#endif
