/* problem.h: what the rows of a product share: its weights and tiles, and many tokens by rows that take a few at a
 * time. */
#ifndef RIDGE_BLOCKS_PROBLEM_H
#define RIDGE_BLOCKS_PROBLEM_H

#include "layout.h"
#include "src/internal.h"
#include "src/util.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef ridge_status block_launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                  void *workspace, size_t bytes, void *stream);

/* The problem with `most` tokens at most, for whose workspace a row asks. */
ridge_problem ridge_block_few(const ridge_problem *problem, int64_t most);

/* Launches so many tokens after so many. */
ridge_status ridge_block_by_few(block_launch *launch, int64_t most, const ridge_device *device,
                                const ridge_kernel *kernel, const ridge_bound *bound, void *workspace, size_t bytes,
                                void *stream);

#ifdef __cplusplus
}
#endif

/* Tiles of bm rows that a weight has, bm / 2 of gate and up each. which: 1 of a pair's second one. */
static inline int64_t ridge_block_tiles(const ridge_problem *problem, int which, int bm)
{
    if (which)
        return problem->op == RIDGE_BLOCK_PAIR ? ridge_ceil_div(problem->dim[3], bm) : 0;
    return ridge_ceil_div(problem->dim[2], problem->op == RIDGE_BLOCK_GATE_UP_SWIGLU ? bm / 2 : bm);
}

/* Tiles of bm rows and bn tokens of the results. */
static inline int64_t ridge_block_work(const ridge_problem *problem, int bm, int bn)
{
    return (ridge_block_tiles(problem, 0, bm) + ridge_block_tiles(problem, 1, bm)) *
           ridge_ceil_div(problem->dim[0], bn);
}

/* Of a problem's weights: rows, and bytes. */
static inline double ridge_block_rows(const ridge_problem *problem)
{
    return (double)problem->dim[2] * (problem->op == RIDGE_BLOCK_GATE_UP_SWIGLU ? 2 : 1) +
           (problem->op == RIDGE_BLOCK_PAIR ? (double)problem->dim[3] : 0);
}

static inline double ridge_block_bytes(const ridge_problem *problem)
{
    return ridge_block_rows(problem) * (double)block_row_bytes(block_layout_of(problem->dtype[2]), problem->dim[1]);
}

#endif
