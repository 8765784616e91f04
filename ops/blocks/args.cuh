/* args.cuh: what the CUDA rows of products with weights in block formats share: arguments, the records in which x lies
 * in shared memory, the epilogue, and the table of kernels that a format's file fills. */
#ifndef RIDGE_BLOCKS_ARGS_CUH
#define RIDGE_BLOCKS_ARGS_CUH

#include "layout.h"
#include "ops/q8_0/args.cuh"
#include "src/math/blocks.h"

typedef struct block_weight {
    const uint8_t *tiles;
    const float *bias; /* NULL: none */
    void *out;
    int64_t stride, out_stride; /* bytes of a tile; elements */
    int rows;
} block_weight;

typedef struct block_mma_args {
    block_weight weight[2]; /* the second: of pair and gate_up_swiglu, else rows = 0 */
    int units, tail;        /* of 256 columns; the last unit has one run only */
    int tiles, work;        /* of the first weight; of all, or for gate_up_swiglu pairs of tiles */
    int gate_up, tokens, blocks, teams, depth, stage, bf16, weights_const; /* stage: bytes, with its tiles */
    uint32_t at_ring, at_sums, at_bars, at_hand;
    /* x: floats, or codes and scales; or records that a kernel has made, in global memory */
    int x_dtype, vector_x; /* rows begin at multiples of 16 bytes */
    int each;              /* tiles that a team computes side by side, 1 or 2: of gate and up, or neighbours */
    const void *x;
    const float *x_scales;
    int64_t x_stride, x_ld; /* bytes; elements */
    /* of experts, whose rows of x are tokens' slots: how many a token has (else 1), and how far apart they are */
    int x_slots;
    int64_t x_slot, x_slot_ld;
    const char *records;
    char *records_out; /* of the kernel that makes them */
    /* epilogue */
    const void *residual;
    int64_t residual_stride;
    unsigned act;
    int all; /* tiles of all weights; `work` counts pairs of them where a team has two */
    const float *token_scale;
    ridge_swiglu_options swiglu;
} block_mma_args;

/* The kernels of a format, by tokens (1, up to 8, up to 16), with weights copied by cp.async or by bulk copies. */
typedef struct block_kernels {
    const void *mma[2][3];
    const void *records[3];
    int unit, tables; /* bytes of a unit and of tables in shared memory */
    int depth[2];     /* stages of up to 8 tokens, at most, where all teams have tiles, as of mma */
    int side[2][3];   /* tiles side by side, at most, as of mma */
    int record[3];    /* bytes of x for 256 columns */
    int teams[2][3];  /* of a CTA, at most, as of mma */
    /* of one token, of one pair an entry, and of several; gate_up, down (experts.cuh) */
    const void *experts[3][2];
    /* of prompts: by mma.sync, by wgmma with tiles of 128, 64 and 32 tokens, and bytes of shared memory */
    const void *prompt, *gemm[3];
    int prompt_shared, gemm_shared[3];
    int x, pairs, mixed; /* how x is laid out */
} block_kernels;

/* mma.cu */
const block_kernels *ridge_block_kernels_of(uint32_t format);
/* The arguments of a product, with x as the call has it. */
block_mma_args block_collect(const ridge_call *call);

extern const block_kernels ridge_block_kernels_q4_0, ridge_block_kernels_q4_1, ridge_block_kernels_q8_0,
    ridge_block_kernels_mxfp4, ridge_block_kernels_q2_k, ridge_block_kernels_q4_k, ridge_block_kernels_q5_k,
    ridge_block_kernels_q6_k, ridge_block_kernels_iq2_xxs;

/* -------------------------------------------------------------------------------------------------------- epilogue */

static __device__ __forceinline__ float block_add_bias(const float *bias, int row, float y)
{
    return bias ? y + bias[row] : y;
}

static __device__ __forceinline__ void block_store(const block_mma_args &a, const block_weight &w, int row, int token,
                                                   float y)
{
    const int64_t at = token * w.out_stride + row;

    if (a.bf16)
        num_store<RIDGE_BF16>(w.out, at, y);
    else
        num_store<RIDGE_F32>(w.out, at, y);
}

static __device__ __forceinline__ float block_residual(const block_mma_args &a, int row, int token)
{
    const int64_t at = token * a.residual_stride + row;

    return a.bf16 ? __uint_as_float((uint32_t)((const uint16_t *)a.residual)[at] << 16)
                  : ((const float *)a.residual)[at];
}

#endif
