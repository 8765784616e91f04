/* linear_chunks.cuh: linear cross entropy in chunks of rows, in bf16 and f16: what its parts share. linear_chunks.cu
 * has the launches of a call, workspace.cu the plan of a call, row_kernels.cu what runs between the products (of size
 * B, B H or V B at most once), target_grads.cu what the targets add to dW. The products themselves, ce_products: on
 * Hopper linear_sm90.cu, elsewhere linear_mma16.cu.
 *
 * A chunk is a number of listed rows. P^T [V, rows] in 16 bits holds its dlogits up to a factor for each row:
 *
 *     du = n_r P,   P = ((alpha_r + beta_r t) E - w_c sigma_r) dz/du,   E = 2^t,   t = z log2e - k_r
 *
 * so that the epilogue of the first product can form P. Without the gradient of the entropy beta is 0 and alpha 1.
 * There are two ways to the exponent k_r:
 *
 *     predicted  from the logits of a sample of 256 classes. sigma is 0; the sum of E gives lse, and lse
 *                n_r. CHECK tests the prediction; if it was bad for any row, a second pass over the chunk computes it
 *                the other way (its kernels return at once otherwise)
 *     from lse   lse is known (backward), or a product that only sums came first. k_r, alpha and sigma follow from it,
 *                and n_r is a power of two, so that n_r x is exact
 *
 * In P the entry of the target is 0. Its du, in which p - 1 is formed first, is never rounded to 16 bits:
 * dX = n_r (P W) + du_y W_y, and to dW = P^T (n_r x) du_y x is added class by class. */
#ifndef RIDGE_LINEAR_CE_CHUNKS_CUH
#define RIDGE_LINEAR_CE_CHUNKS_CUH

#include "ce.cuh"
#include "src/util.h"

/* What a product x W^T makes of the logits: maximum and sum of each row, or P^T and the sums of E. linear_sm90.cuh has
 * more kinds. */
enum { CE_STATS = 0, CE_PROBS };

enum { CE_SAMPLE_CLASSES = 256 };

/* A target of more rows than this is frequent: the sum of its rows is formed beforehand, since one after another in the
 * epilogue they would hold up a tile of dW. */
enum { CE_FREQUENT = 32 };
#define CE_FREQUENT_BYTES(hidden) ((hidden) / 8 + 1) /* for each row of a chunk: a sum for every 32 rows */

/* Classes of a bundle of dW: a multiple of block_m of dW, of block_n of P^T and of block_k. Segment 1 of P^T begins at
 * a whole bundle. */
enum { CE_BUNDLE_CLASSES = 1536 };

/* Counters of ce_chunk's `progress`. */
#define CE_PROGRESS_COUNTERS(vocab) (3 + (vocab) / CE_BUNDLE_CLASSES)

enum { CE_ROW_THREADS = 256, CE_ROW_WARPS = CE_ROW_THREADS / 32 };

/* Where P^T of a chunk lies: in up to four segments of classes x rows.
 *
 *                  rows 0 ..        row2 ..            row3 ..
 *     class 0 ..   0: workspace     2: spare memory    3: workspace
 *     class1 ..    1: memory of dW  2                  3
 *
 * Segment 1: dW is made from the last class on, and row v - class1 of it is written after row v of P^T has been read.
 * Segments 2 and 3 have the rows for which the memory of dW has no columns left, all classes of them. Segment 2 is the
 * spare memory if there is any (as many bytes as dW; its row v - class1 is row v of the segment), else the workspace.
 */
typedef struct ce_probs {
    uint16_t *data[4];
    int64_t ld[4];
    int class1, row2, row3; /* INT32_MAX: there is no such segment */
} ce_probs;

/* dW, and the f32 sum of a 16-bit dW over several chunks: of each eight columns the first four lie in dW's own memory,
 * where dW has these eight, the other four in the same position of `spare`. Leading dimensions are in elements of dW's
 * dtype; the sum's in 16-bit elements. */
typedef struct ce_dw {
    uint16_t *own, *spare;
    int64_t own_ld, spare_ld;
} ce_dw;

/* The chunk that the launches work on. */
typedef struct ce_chunk {
    ce_params p;
    int64_t begin, rows; /* listed rows [begin, begin + rows), as far as there are so many */
    ce_probs probs;
    void *x_compact;      /* [rows rounded up to 128, hidden]: x without ignored rows, if there are any; NULL in eval */
    void *x_scaled;       /* n_r x, in the same memory */
    float *exponent;      /* by row: k_r */
    float *factor;        /* n_r */
    double *lse;          /* log of the sum of e^z */
    float2 *mix;          /* alpha_r, sigma_r */
    float *target_du;     /* du of the target */
    int2 *class_rows;     /* by class: the first row with that target, and how many, of the chunks so far */
    int32_t *class_chain; /* by class: the head of a list of its rows, linked by next_row */
    int32_t *next_row;    /* by row: the next row with that target; a frequent target's first row: index of its sum */
    int32_t *frequent;    /* the frequent targets of the chunk, in any order */
    float *frequent_sums; /* [frequent targets][ce_frequent_length]: du_y x of all their rows, and du_y */
    uint64_t *progress;   /* linear_sm90.cuh: the queue, and what has been read */
    float *dx_partial;    /* [dx_splits, rows, hidden]: split-K partial sums of dX, where its tiles are too few */
    int dx_splits;
    float *sample_u; /* [sample_splits, rows, CE_SAMPLE_CLASSES]: of tokens from `begin` on */
    int sample_splits, sample_classes, sample_stride; /* the stride: from one class of the sample to the next */
    int lse_known;                                    /* no prediction */
    int if_redo;                                      /* second pass: only if the prediction was bad */
    float4 *bend; /* by row: k, beta, alpha, sigma; one more of +inf, 0, 0, 0; NULL without the entropy's gradient */
    int top_rank; /* TOP_SCALE: the one of the sample above which logits are listed at first; 0: all are */
} ce_chunk;

/* How a call is cut into chunks: workspace.cu. */
typedef struct ce_plan {
    int64_t chunk, aliased; /* rows of a chunk; of the first one, if a part of its P^T lies in dW's memory (else 0) */
    int64_t rows_in_dw, rows_in_spare; /* of those: rows for which dW's memory and the spare memory have columns */
    int64_t area;                      /* bytes for n_r x, P^T and partial sums of dX */
    int lead_classes;                  /* classes of dW that are made before the first one that P^T's memory holds */
    int dx_splits[2];                  /* of a chunk, of the aliased one */
    bool spare;                        /* the workspace has as many bytes again as dW */
    bool f32_sum;                      /* there and in dW a 16-bit dW is summed in f32 */
} ce_plan;

typedef struct ce_area {
    void *chunk;     /* eval: where classes are picked, the compact x */
    void *sample;    /* eval: u of the sample, where the top classes are wanted */
    uint16_t *spare; /* behind it: as many bytes as a 16-bit dW has */
} ce_area;

/* What the epilogue of dW reads and writes: dW, its f32 sum, or the sum by reductions in L2 (which reads nothing). */
enum { CE_DW_NONE = 0, CE_DW_OUT, CE_DW_SUM, CE_DW_SUM_ADD };

/* The products of a chunk that give gradients: dX, dW, or both. */
typedef struct ce_grads {
    ce_chunk c;
    ce_dw dw_at;
    int dx, dw; /* wanted */
    int dw_dtype, reads, writes;
    int targets; /* the epilogue of dW adds those of the chunk */
} ce_grads;

/* One call. */
typedef struct ce_job {
    const ridge_device *device;
    const char *name;
    void *stream;
    const struct ce_products *products;
    ce_chunk c;
    ce_plan plan;
    ce_area space;
    ce_dw dw;
} ce_job;

/* The three products by one family of kernels. */
typedef struct ce_products {
    int ctas;     /* that compute a tile of dX together, 128 rows each by 256 columns */
    bool ordered; /* dW is made from the last class on, so that P^T may lie in its memory; a 16-bit dW of one chunk
                     gets the targets' du in its epilogue */
    int (*parts)(const ridge_device *device, const ridge_problem *problem); /* of a row's sum, at most */
    ridge_status (*sample)(ce_job *j);                                      /* u of the sample, of all tokens of j->c */
    ridge_status (*logits)(const ce_job *j, int what, bool sums);           /* sums: CE_PROBS sums E too */
    ridge_status (*grads)(const ce_job *j, ce_grads *g);
} ce_products;

/* workspace.cu: the plan of a call, bytes = 0 for the usual workspace; pointers into it. */
ce_plan ce_plan_of(const ce_products *products, const ridge_device *device, const ridge_problem *problem, bool small,
                   int64_t bytes);
int64_t ce_plan_layout(const ce_products *products, ce_chunk *c, ce_area *space, const ridge_device *device,
                       const ridge_problem *problem, const ce_plan *plan, void *workspace);

/* linear_chunks.cu: a call, and the workspace that it needs. small: chunks of 128 rows, or more if the workspace
 * allows.
 */
ridge_status ce_chunks_run(const ce_products *products, bool small, const ridge_device *device, const char *name,
                           const ridge_bound *bound, void *workspace, size_t bytes, void *stream);
size_t ce_chunks_bytes(const ce_products *products, bool small, const ridge_device *device,
                       const ridge_problem *problem);
static inline bool ce_has_options(const ce_params *p)
{
    return p->bias || p->softcap > 0.0f || p->temperature != 1.0f;
}

/* More outputs of the sums than the entropy. */
static inline bool ce_has_more(const ce_params *p)
{
    return p->argmax || p->accuracy || (p->flags & RIDGE_CE_RECORD_SUMS) || p->smoothing != 0.0f;
}

/* row_kernels.cu, in the order of a chunk; linear_chunks.cu says what they read and write. */
enum {
    CE_ROW_PREDICT = 0, /* for all tokens, before the first chunk */
    CE_ROW_TOP_SCALE,   /* for a chunk of listed rows */
    CE_ROW_GATHER,
    CE_ROW_CHECK,
    CE_ROW_RESET,
    CE_ROW_FROM_LSE,
    CE_ROW_SCALE,
    CE_ROW_REDUCE_DX, /* where dX has split-K */
    CE_ROW_KERNELS
};
ridge_status ce_row_launch(const ridge_device *device, const char *name, int which, ce_chunk *c, void *stream);
ridge_status ce_dbias_launch(const ridge_device *device, const char *name, ce_chunk *c, int add, void *stream);
/* Rounds the f32 sum to dW, all of it; unless `always`, only if the last chunk turned out to have no rows. */
ridge_status ce_round_dw_launch(const ridge_device *device, const char *name, ce_chunk *c, const ce_dw *dw, int always,
                                void *stream);
ridge_status ce_row_prepare(const ridge_device *device);

/* target_grads.cu: ce_targets_find links the rows of each target, of a chunk or of all rows, after CE_ROW_SCALE.
 * ce_targets_add adds what the targets' du gives to dW (f32 with leading dimension `ld`, or the f32 sum of a 16-bit dW;
 * NULL = there is none) and to dbias. */
ridge_status ce_targets_find(const ridge_device *device, const char *name, ce_chunk *c, void *stream);
ridge_status ce_targets_add(const ridge_device *device, const char *name, ce_chunk *c, float *dw, int64_t ld,
                            const ce_dw *sum, void *stream);
ridge_status ce_targets_prepare(const ridge_device *device);

/* ids.cu: the ids' elements of P^T and targets' du, after CE_ROW_SCALE. */
ridge_status ce_ids_chunk(const ridge_device *device, const char *name, ce_chunk *c, void *stream);

#ifdef __CUDACC__

/* Floats of a frequent target's sum: a row of dW, du_y, and padding that keeps the next one aligned. */
static __device__ __forceinline__ int64_t ce_frequent_length(int64_t hidden)
{
    return hidden + 8;
}

static __device__ __forceinline__ int ce_chunk_rows(const ce_chunk &c)
{
    const int64_t rows = c.p.totals->rows - c.begin;

    return (int)(rows < 0 ? 0 : rows < c.rows ? rows : c.rows);
}

/* The listed row of this warp, or -1 if the chunk has no such row. */
static __device__ __forceinline__ int64_t ce_warp_row(const ce_chunk &c)
{
    const int64_t r = (int64_t)blockIdx.x * CE_ROW_WARPS + threadIdx.x / 32;

    return r < ce_chunk_rows(c) ? c.begin + r : -1;
}

/* A segment of P^T, and the position of class v and row r of the chunk in it. */
typedef struct ce_segment {
    int index, v, r;
} ce_segment;

static __device__ __forceinline__ ce_segment ce_segment_of(const ce_probs &q, int v, int r)
{
    const int index = r >= q.row3 ? 3 : r >= q.row2 ? 2 : v >= q.class1;

    return {index, index == 1 ? v - q.class1 : v, r - (index == 3 ? q.row3 : index == 2 ? q.row2 : 0)};
}

/* The address of class v and row r of the chunk in P^T. */
static __device__ __forceinline__ uint16_t *ce_probs_at(const ce_probs &q, int64_t v, int64_t r)
{
    return r >= q.row3    ? q.data[3] + v * q.ld[3] + r - q.row3
           : r >= q.row2  ? q.data[2] + v * q.ld[2] + r - q.row2
           : v < q.class1 ? q.data[0] + v * q.ld[0] + r
                          : q.data[1] + (v - q.class1) * q.ld[1] + r;
}

/* Eight columns of the f32 sum of a 16-bit dW. */
static __device__ __forceinline__ void ce_load_sum(const uint16_t *own, const uint16_t *spare, float *v)
{
    *(float4 *)v = *(const float4 *)own;
    *(float4 *)(v + 4) = *(const float4 *)spare;
}

static __device__ __forceinline__ void ce_store_sum(uint16_t *own, uint16_t *spare, const float *v)
{
    *(float4 *)own = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)spare = make_float4(v[4], v[5], v[6], v[7]);
}

/* The producer gathers rows: some are ignored, and there is no compact x. */
static __device__ __forceinline__ bool ce_gathers_rows(const ce_chunk &c)
{
    return !c.x_compact && c.p.totals->rows != c.p.tokens;
}

static __device__ __forceinline__ bool ce_skips(const ce_chunk &c)
{
    return c.if_redo && !c.p.totals->redo;
}

#endif

#endif
