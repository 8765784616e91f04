/* gemm_args.cuh: what the kernels of prompts in block formats share with their launch (gemm_sm90.cu). */
#ifndef RIDGE_BLOCKS_GEMM_ARGS_CUH
#define RIDGE_BLOCKS_GEMM_ARGS_CUH

#include "args.cuh"
#include "cuda/tensor_map.cuh"
#include "records.cuh"

enum {
    GEMM_BM = 128,     /* rows of a CTA; of gate and up 64 each */
    GEMM_WG_ROWS = 64, /* of a warpgroup */
    GEMM_TILES = GEMM_BM / BLOCK_ROWS,
    GEMM_CTA_THREADS = 3 * 128 /* the producer's warpgroup, and two of consumers */
};

/* Numbers of a token and block beside its codes: the scale, and sums of minima. Offsets of codes go into the weights'.
 */
#define GEMM_NUMBERS(kind) ((kind) == BLOCK_X_SUM ? 2 : (kind) == BLOCK_X_SUM_16 ? 3 : 1)

typedef struct block_gemm_args {
    CUtensorMap x, numbers;
    int tiles[2];    /* of GEMM_BM rows, of each weight */
    int token_tiles; /* neighbouring clusters have different tokens and the same weights */
    int work, runs;  /* tiles of the result; runs of k */
    int split;       /* CTAs of a cluster, which share a tile: each has 8 / split partitions */
    int planes;      /* rows of a plane of numbers */
    uint32_t none;   /* 0, see cuda/sm90/await.cuh */
    block_mma_args p;
} block_gemm_args;

#endif
