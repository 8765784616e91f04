/* linear_mma16.cuh: the products of the linear cross entropy (linear_chunks.cuh) on every device from sm_80 on, by
 * cuda/sm80/gemm_bf16.cuh: the logits in logits_mma16.cu, dX and dW in grads_mma16.cu. linear_mma16.cu has the kernel
 * rows. A CTA computes one tile, or some tiles of the logits one after another; nothing is overlapped with the epilogue
 * but other CTAs' work. */
#ifndef RIDGE_LINEAR_CE_MMA16_CUH
#define RIDGE_LINEAR_CE_MMA16_CUH

#include "cuda/sm80/gemm_bf16.cuh"
#include "linear_chunks.cuh"

/* Tiles: of the logits, classes by tokens; of dX and dW, rows by columns; row tiles that share columns in L2. */
enum { CE16_CLASSES = 256, CE16_TOKENS = 128, CE16_BLOCK_M = 128, CE16_BLOCK_N = 256, CE16_BUNDLE = 8 };

typedef struct ce16_logits {
    ce_chunk c;
    int n, k;          /* classes, hidden units */
    int strips, each;  /* parts of the classes, and tiles of one: a CTA has the tokens of a tile and a strip */
    int splits, split; /* of the sample: split-K, and k of one */
    int mixed, sums;   /* sigma; CE_PROBS: also the sum of E */
} ce16_logits;

enum { CE16_STATS = 0, CE16_PROBS, CE16_STATS_FULL, CE16_PROBS_OPTIONS, CE16_SAMPLE, CE16_LOGITS };

ridge_status ce16_logits_launch(const ce_job *j, int what, ce16_logits *g);
ridge_status ce16_logits_prepare(const ridge_device *device);

typedef struct ce16_grads {
    ce_grads g;
    int dx_tiles_m, dx_tiles_n, dx_splits, dx_split_k;
    int dw_tiles_m, dw_tiles_n;
} ce16_grads;

ridge_status ce16_grads_launch(const ce_job *j, ce16_grads *g);
ridge_status ce16_grads_prepare(const ridge_device *device);

#ifdef __CUDACC__

/* Tile `index` of tiles_m x tiles_n, column by column in bundles of CE16_BUNDLE rows. */
static __device__ __forceinline__ void ce16_tile(int index, int tiles_m, int tiles_n, int *tile_m, int *tile_n)
{
    const int bundle = index / (CE16_BUNDLE * tiles_n), in = index % (CE16_BUNDLE * tiles_n);
    const int rows = min(tiles_m - bundle * CE16_BUNDLE, (int)CE16_BUNDLE);

    *tile_m = bundle * CE16_BUNDLE + in % rows;
    *tile_n = in / rows;
}

#endif

#endif
