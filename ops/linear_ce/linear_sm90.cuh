/* linear_sm90.cuh: the linear cross entropy of Hopper: what its parts share. logits_pingpong_sm90.cu and
 * logits_coop_sm90.cu have the logits' product, without options and with all, grads_sm90.cu dX and dW,
 * row_kernels_sm90.cu the steps between (of size B, B H or V B at most once), target_grads_sm90.cu what the targets
 * add, workspace_sm90.cu the plan of a call, linear_sm90.cu the kernel rows.
 *
 * A chunk of listed rows: P^T [V, rows] in 16 bits holds dlogits up to a factor for each row:
 *     du = n_r P,   P = (alpha_r E - w_c sigma_r) dz/du,   E = 2^(z log2e - k_r)
 * so that P can be formed in the epilogue of the first product. There are two ways. The exponent k_r is guessed, from
 * the logits of a sample of 256 classes: alpha is 1, sigma 0, the sum of E gives lse and with it n_r; steps check
 * that the guess was good, and otherwise a second round, whose kernels else return at once, does it the other way: lse
 * is known (backward; or a product that only sums came first), k_r, alpha, sigma follow from it, and n_r is a power of
 * two, so that n_r x is exact. The entry of the target is 0 in P: its du, in which p - 1 is formed first, is never
 * rounded to 16 bits. So dX = n_r (P W) + du_y W_y, and to dW = P^T (n_r x) a step adds du_y x, class by class. */
#ifndef RIDGE_CE_SM90_CUH
#define RIDGE_CE_SM90_CUH

#include "ce.cuh"
#include "cuda/sm90/gemm_bf16.cuh"

/* Products with W. The plain ones know no bias, softcap, temperature, no alpha and sigma, and only maximum and sum;
 * their warpgroups go in turn. CE_LISTED: CE_STATS where some rows are ignored and there is no compact x, so that they
 * are loaded by their numbers. */
enum { CE_STATS = 0, CE_PROBS, CE_STATS_EXTRA, CE_PROBS_EXTRA, CE_LOOK, CE_LISTED };

/* CE_LOOK: u of a sample of the classes, in pieces of the hidden units, so that all clusters have some of it. */
enum { CE_SAMPLE = 256 };

/* A target of more rows than this has their sum formed beforehand: one by one they would hold up a tile of dW. */
enum { CE_COMMON = 32 };
#define CE_SUMS(hidden) ((hidden) / 8 + 1) /* bytes for each row of a chunk: a sum for every 32 rows */

/* Classes of a bundle of dW: a whole number of tiles in every way of cutting it, and of what P^T is stored in. P^T's
 * place begins at a whole bundle. */
enum { CE_BUNDLE = 1536 };

/* Numbers of ce_chunk's `turns`. */
#define CE_TURNS(vocab) (3 + (vocab) / CE_BUNDLE)

enum { CE_STEP_THREADS = 256, CE_STEP_WARPS = CE_STEP_THREADS / 32 };

/* P^T: rows (classes) below `split` lie in the workspace, the others, from `split` on, in `rest`: the memory of dW.
 * dW is made from the last class on, so that its row v - split is written after row v of P^T has been read. Columns
 * (rows of the chunk) from `tail_at` on, for which dW has no room, lie in `tail`, all classes of them; where there is
 * as much of the workspace as dW takes, in that, whose row v - split is row v of `tail`, and columns from `more_at` on
 * in `more`. */
typedef struct ce_probs {
    uint16_t *first, *rest, *tail, *more;
    int64_t first_ld, rest_ld, tail_ld, more_ld;
    int split, tail_at, more_at;
} ce_probs;

/* dW, and the f32 sum of a 16-bit one of several chunks: of each eight columns the first four lie where dW has these
 * eight, the other four at the same place of `rest`. Leading dimensions in elements of dW, of 16 bits. */
typedef struct ce_dw {
    uint16_t *own, *rest;
    int64_t own_ld, rest_ld;
} ce_dw;

/* One chunk on its way through the steps. */
typedef struct ce_chunk {
    ce_params p;
    int64_t begin, rows; /* listed rows [begin, begin + rows), where there are so many */
    ce_probs probs;
    void *compact; /* [rows to a multiple of 128, hidden]: x without ignored rows, where there are any; NULL in eval */
    void *scaled;  /* likewise: n_r x, in the same place */
    float *exponent;  /* by row: k_r */
    float *factor;    /* n_r */
    double *lse;      /* log of the sum of e^z */
    float2 *mix;      /* alpha_r, sigma_r */
    float *at_target; /* du of the target */
    int2 *same;       /* by class: the first row with that target, and how many have it, of the chunks so far */
    int32_t *chain;   /* by class: one of those rows, from which `next` leads to the others */
    int32_t *next;    /* by row: the next one with that target; by the first row of a common one: its place in sums */
    int32_t *common;  /* targets of more than CE_COMMON rows of the chunk, in any order */
    float *sums;      /* [common targets][ce_sum_length]: du_y x of all their rows, and du_y */
    uint64_t *turns;  /* grads_sm90.cu: what has been taken and done */
    float *partial;   /* [pieces, rows, hidden]: dX in pieces of the vocabulary, where its tiles are too few */
    int pieces;
    float *look;                          /* [look_pieces, rows, CE_SAMPLE]: of tokens from `begin` on */
    int look_pieces, sample, sample_step; /* classes of the guess, and from one to the next */
    int known;                            /* no guess */
    int gated;                            /* only if the guess was bad */
} ce_chunk;

/* How a call is cut: workspace_sm90.cu. */
typedef struct ce_plan {
    int64_t chunk, overlaid; /* rows of a chunk; of the first one, if its P^T lies in dW too (else 0) */
    int64_t inside, beside;  /* of those: how many dW has room for, and as much of the workspace as dW takes */
    int64_t area;            /* bytes for n_r x, P^T, and dX in pieces */
    int ahead;               /* classes of dW that are made before the first one is whose place P^T had */
    int pieces[2];           /* of dX in a chunk, in the overlaid one */
    bool beyond;             /* there is as much of the workspace */
    bool sums;               /* there and in dW a 16-bit dW is summed in f32 */
} ce_plan;

typedef struct ce_area {
    void *area;
    uint16_t *rest; /* behind the area: as much as a 16-bit dW takes */
} ce_area;

ce_plan ce_plan_of(const ridge_device *device, const ridge_problem *problem, bool small, int64_t bytes);
int64_t ce_plan_place(ce_chunk *c, ce_area *space, const ridge_device *device, const ridge_problem *problem,
                      const ce_plan *plan, void *workspace);

typedef struct ce_product {
    gemm16_maps maps;
    CUtensorMap store[4]; /* P^T */
    ce_chunk c;
    int n, k;
    int pieces;        /* CE_LOOK */
    int bundle;        /* as in gemm16_work */
    int wide, columns; /* items of so many columns of tiles; the others have one */
    int mixed;         /* alpha and sigma */
    int sums;          /* CE_PROBS: also the sum of E */
} ce_product;

ridge_status ce_product_launch(const ridge_device *device, const char *name, int what, ce_product *g, void *stream);
ridge_status ce_product_prepare(const ridge_device *device);
/* CE_STATS and CE_PROBS of it, whose parts have been chosen: logits_pingpong_sm90.cu. */
ridge_status ce_turns_launch(const ridge_device *device, const char *name, int what, ce_product *g, unsigned blocks,
                             void *stream);
ridge_status ce_turns_prepare(const ridge_device *device);
static inline bool ce_in_turn(int what)
{
    return what == CE_STATS || what == CE_PROBS;
}

/* Parts of a row that an item of several tiles makes. */
static inline int ce_parts(int what)
{
    return what == CE_STATS ? 2 : 1;
}

/* Parts of a row, at most: in train they take room from the chunks. */
int ce_product_splits(const ridge_device *device, const ridge_problem *problem);

/* What a tile of dW reads of it, and what it makes: dW, its sum, or more of that, which it does not read. */
enum { CE_DW_NOTHING = 0, CE_DW_ITSELF, CE_DW_SUM, CE_DW_MORE };

/* dX, dW, or both in one launch, whose clusters then have the same amount of work; once a chunk. */
typedef struct ce_gradients {
    gemm16_maps dx_maps, dw_maps;
    ce_chunk c;
    ce_dw dw_at;
    int dx, dw; /* wanted here */
    int dw_dtype, before, after;
    int targets; /* dW's epilogue adds those of the chunk */
} ce_gradients;

/* Rows of a tile of dW. f16 to f16 needs the registers of the other 64. */
static inline int ce_dw_height(int dtype, int dw_dtype)
{
    return dtype == RIDGE_F16 && dw_dtype != RIDGE_F32 ? 128 : 192;
}

ridge_status ce_gradients_launch(const ridge_device *device, const char *name, ce_gradients *g, void *stream);
ridge_status ce_gradients_prepare(const ridge_device *device);

/* In the order of a chunk. */
enum {
    CE_STEP_GUESS = 0, /* of all tokens, before the first chunk */
    CE_STEP_GATHER,
    CE_STEP_CHECK,
    CE_STEP_RESET,
    CE_STEP_KNOWN,
    CE_STEP_SCALE,
    CE_STEP_ADD, /* pieces of dX */
    CE_STEPS
};
ridge_status ce_step(const ridge_device *device, const char *name, int step, ce_chunk *c, void *stream);
ridge_status ce_step_bias(const ridge_device *device, const char *name, ce_chunk *c, int add, void *stream);
/* dW from its sum, all of it; unless `always`, where the last chunk turned out to have no rows. */
ridge_status ce_step_merge(const ridge_device *device, const char *name, ce_chunk *c, const ce_dw *dw, int always,
                           void *stream);
ridge_status ce_step_prepare(const ridge_device *device);

/* The targets' du, target_grads_sm90.cu: after CE_STEP_SCALE the rows with the same target are found, of a chunk or of
 * all rows; at last what they give to dW (f32, `ld` from line to line, or the sum of a 16-bit one; NULL = not there)
 * and dbias is added. */
ridge_status ce_targets_find(const ridge_device *device, const char *name, ce_chunk *c, void *stream);
ridge_status ce_targets_add(const ridge_device *device, const char *name, ce_chunk *c, float *dw, int64_t ld,
                            const ce_dw *sum, void *stream);
ridge_status ce_targets_prepare(const ridge_device *device);

static inline int64_t ce_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ce_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t ce_up(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

#ifdef __CUDACC__

/* The sum of a common target: a row of dW, du_y, and what keeps the next one aligned. */
static __device__ __forceinline__ int64_t ce_sum_length(int64_t hidden)
{
    return hidden + 8;
}

static __device__ __forceinline__ int ce_chunk_rows(const ce_chunk &c)
{
    const int64_t rows = c.p.totals->rows - c.begin;

    return (int)(rows < 0 ? 0 : rows < c.rows ? rows : c.rows);
}

/* A warp's row of the chunk, or -1. */
static __device__ __forceinline__ int64_t ce_warp_row(const ce_chunk &c)
{
    const int64_t r = (int64_t)blockIdx.x * CE_STEP_WARPS + threadIdx.x / 32;

    return r < ce_chunk_rows(c) ? c.begin + r : -1;
}

/* The place of class v and row r of the chunk in P^T. */
static __device__ __forceinline__ uint16_t *ce_probs_at(const ce_probs &q, int64_t v, int64_t r)
{
    return r >= q.more_at   ? q.more + v * q.more_ld + r - q.more_at
           : r >= q.tail_at ? q.tail + v * q.tail_ld + r - q.tail_at
           : v < q.split    ? q.first + v * q.first_ld + r
                            : q.rest + (v - q.split) * q.rest_ld + r;
}

/* Eight columns of a sum. */
static __device__ __forceinline__ void ce_load_sum(const uint16_t *own, const uint16_t *rest, float *v)
{
    *(float4 *)v = *(const float4 *)own;
    *(float4 *)(v + 4) = *(const float4 *)rest;
}

static __device__ __forceinline__ void ce_store_sum(uint16_t *own, uint16_t *rest, const float *v)
{
    *(float4 *)own = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)rest = make_float4(v[4], v[5], v[6], v[7]);
}

/* Rows are loaded by their numbers: some are ignored, and there is no compact x. */
static __device__ __forceinline__ bool ce_by_number(const ce_chunk &c)
{
    return !c.compact && c.p.totals->rows != c.p.tokens;
}

static __device__ __forceinline__ bool ce_skipped(const ce_chunk &c)
{
    return c.gated && !c.p.totals->redo;
}

#endif

#endif
