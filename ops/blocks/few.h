/* few.h: products of many tokens by rows that take a few at a time. */
#ifndef RIDGE_BLOCKS_FEW_H
#define RIDGE_BLOCKS_FEW_H

#include "src/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef ridge_status block_launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream);

/* The problem with RIDGE_Q8_0_MAX_TOKENS tokens at most, for whose workspace a row asks. */
ridge_problem ridge_block_few(const ridge_problem *problem);

/* Launches so many tokens after so many. */
ridge_status ridge_block_by_sixteens(block_launch *launch, const ridge_device *device, const ridge_kernel *kernel,
                                     const ridge_bound *bound, void *workspace, size_t bytes, void *stream);

#ifdef __cplusplus
}
#endif

#endif
