/* linear_sm90.cuh: the products of the linear cross entropy on Hopper: the logits in logits_pingpong_sm90.cu and, with
 * options, logits_coop_sm90.cu; dX and dW in grads_sm90.cu. linear_sm90.cu has the kernel rows. */
#ifndef RIDGE_LINEAR_CE_SM90_CUH
#define RIDGE_LINEAR_CE_SM90_CUH

#include "cuda/sm90/gemm_bf16.cuh"
#include "linear_chunks.cuh"

/* Products x W^T beside CE_STATS and CE_PROBS, which are the pingpong kernels: no bias, softcap or temperature, no
 * alpha and sigma, and of a row only maximum and sum. *_OPTIONS: with any of these. CE_SAMPLE: u of a sample of the
 * classes, with split-K, so that all clusters have work. CE_STATS_GATHER: CE_STATS where rows are ignored and there is
 * no compact x: the producer gathers the listed rows. *_BEND: with the gradient of the
 * entropy; CE_STATS_SPREAD: with the entropy, and no other output of CE_STATS_OPTIONS. CE_STATS_TOP and
 * CE_STATS_DRAW: with options, the entropy, and the lists or the draws of top.cuh, but no other output of
 * CE_STATS_OPTIONS; CE_STATS_TOP_PLAIN: of the options only the temperature. CE_STATS_IDS: so too, and the ids' z in
 * place of lists. */
enum {
    CE_STATS_OPTIONS = CE_PROBS + 1,
    CE_PROBS_OPTIONS,
    CE_SAMPLE,
    CE_STATS_GATHER,
    CE_PROBS_OPTIONS_BEND,
    CE_STATS_TOP,
    CE_STATS_DRAW,
    CE_PROBS_BEND,
    CE_STATS_SPREAD,
    CE_STATS_TOP_PLAIN,
    CE_STATS_IDS
};

typedef struct ce_logits_args {
    CUtensorMap x[2]; /* all tokens; the compact x or, to be gathered, rows of x one by one */
    CUtensorMap w;
    CUtensorMap store[4]; /* the segments of P^T */
    ce_chunk c;
    int n, k;
    int splits;          /* CE_SAMPLE: split-K */
    int bundle;          /* row-tile pairs */
    int wide, tile_cols; /* the first `wide` columns of work tiles have tile_cols tiles each, the others single_cols */
    int single_cols;
    int mixed;        /* sigma */
    int sums;         /* CE_PROBS: also the sum of E */
    int only_gathers; /* CE_STATS_TOP: nothing unless rows are gathered */
    int only_top;     /* CE_STATS_TOP, CE_STATS_DRAW: the lists or draws, no sums */
} ce_logits_args;

ridge_status ce_logits_launch(const ridge_device *device, const char *name, int what, ce_logits_args *g, void *stream);
ridge_status ce_logits_prepare(const ridge_device *device);
/* logits_pingpong_sm90.cu: the kinds of ce_is_pingpong, after ce_logits_launch has chosen the parts. */
ridge_status ce_pingpong_launch(const ridge_device *device, const char *name, int what, ce_logits_args *g,
                                unsigned blocks, void *stream);
ridge_status ce_pingpong_prepare(const ridge_device *device);
static inline bool ce_is_pingpong(int what)
{
    return what <= CE_PROBS || what >= CE_PROBS_BEND;
}

/* Parts of a row's sum that a work tile of several tiles makes. */
static inline int ce_parts_of_tile(int what)
{
    return what == CE_STATS || what >= CE_STATS_SPREAD ? 2 : 1;
}

/* The most parts that a row's sum has: in train they take workspace from the chunks. */
int ce_row_parts(const ridge_device *device, const ridge_problem *problem);

/* dX, dW, or both in one launch, so that all clusters have the same amount of work; once a chunk. */
typedef struct ce_grads_args {
    CUtensorMap dx_probs[4], dx_w;        /* dX: A and B */
    CUtensorMap dw_probs[4], dw_x_scaled; /* dW: A and B; W [H, V]: B, in one segment, and A */
    ce_chunk c;
    ce_dw dw_at;
    int dx, dw; /* wanted */
    int dw_dtype, reads, writes;
    int targets; /* the epilogue of dW adds those of the chunk */
} ce_grads_args;

/* block_m of dW. f16 to f16 needs the registers of the other 64 rows. */
static inline int ce_dw_block_m(int dtype, int dw_dtype)
{
    return dtype == RIDGE_F16 && dw_dtype != RIDGE_F32 ? 128 : 192;
}

ridge_status ce_grads_launch(const ridge_device *device, const char *name, ce_grads_args *g, void *stream);
ridge_status ce_grads_prepare(const ridge_device *device);

#endif
