/* cpu.h: cross entropy on the CPU: what the C reference (cpu_reference.c), the fast rows (cpu_fast.c, cpu_simd.h) and
 * the kernel list (cpu.c) share. A token's softmax is summarised in a ce_stat; cpu.c turns these into every output and
 * into the factors of the gradient, in double: this work is of size B, so its precision costs nothing. */
#ifndef RIDGE_CPU_CE_H
#define RIDGE_CPU_CE_H

#include "src/internal.h"

/* What is known of one token's logits z over the classes seen so far. */
typedef struct ce_stat {
    double sum;    /* sum e^(z - max) */
    double spread; /* sum e^(z - max) (z - max): the entropy without cancellation */
    double z, wz;  /* sum z, sum w z */
    double target; /* z of the target class; -inf if it is not among them */
    float max;
    int64_t argmax; /* in the whole vocabulary; -1 = none yet */
} ce_stat;

/* A call of any of the six ops; what an op or a call lacks is NULL or 0. */
typedef struct ce_args {
    uint32_t op, flags;
    int64_t tokens, hidden, vocab, shards;
    int64_t offset, total; /* this call's slice of the vocabulary begins at offset; classes of the whole */
    ridge_ce_options o;
    const unsigned char *x, *w, *bias; /* x: the logits in ce_fwd and ce_bwd */
    int64_t x_stride, w_stride;        /* elements */
    uint32_t dtype, bias_dtype;
    bool hv;
    const void *target;
    bool target64;
    const float *class_weight, *lse_in, *dloss, *entropy_in, *dentropy, *record_in;
    const int64_t *shard_offset, *shard_argmax;
    int64_t record_stride, shard_argmax_stride;
    unsigned char *dx, *dw; /* dx: dlogits in ce_bwd */
    int64_t dx_stride, dw_stride;
    uint32_t dw_dtype;
    float *dbias;
    const void *ids; /* [tokens, o.ids], of target's dtype */
    const float *did;
    float *id_logprob; /* backward: an input */
    int64_t ids_stride, id_stride, did_stride;
    int64_t *top_id; /* [tokens, o.topk] */
    float *top_logprob;
    int64_t top_id_stride, top_stride;
    const int64_t *seed, *counter;
    int64_t *sample_id; /* drawn, with sample_logprob, which holds its z at first */
    float *sample_logprob, *sample_score;
    float *loss, *token_loss, *lse, *target_logit, *entropy, *accuracy, *record;
    int64_t *argmax;
    int32_t *errors;
} ce_args;

/* What the mean divides by, and what smoothing sums. */
typedef struct ce_totals {
    double count;   /* rows that are not ignored */
    double weight;  /* sum of w_y over them; a target out of range has weight 1 */
    double weights; /* sum of the class weights of the whole vocabulary */
    int64_t errors;
} ce_totals;

/* dz_c = p_c * (all + bend * log p_c) - [c = y] * label - w_c * smooth; all - label apart, so that p_y - 1 is formed
 * first. bend: minus the gradient of the entropy H, whose -p_c (log p_c + H) is in `all` as to H. */
typedef struct ce_factors {
    double all, label, smooth, bend;
} ce_factors;

enum { CE_IGNORED = -1, CE_BAD = -2 };

/* Of a bound call: its strides are resolved. */
ce_args ridge_cpu_ce_args(const ridge_call *call);
/* The class of a token, CE_IGNORED, or CE_BAD when it is out of range. */
int64_t ridge_cpu_ce_target(const ce_args *a, int64_t token);
ce_totals ridge_cpu_ce_totals(const ce_args *a);
ce_factors ridge_cpu_ce_factors(const ce_args *a, const ce_totals *t, int64_t token, int64_t target, double lse);
double ridge_cpu_ce_lse(const ce_stat *s);
ce_stat ridge_cpu_ce_empty(void);
/* The class of a token's id, CE_IGNORED, or CE_BAD where there is no such class. */
int64_t ridge_cpu_ce_id(const ce_args *a, int64_t token, int64_t k);
/* Whether id k of a token is a class and the first of its ids with that class; *hit: the sum of their gradients. */
bool ridge_cpu_ce_hit(const ce_args *a, int64_t token, int64_t k, double *hit);
/* du of the class of id k unless it is the target; there *slope * hit is added. */
double ridge_cpu_ce_id_du(const ce_args *a, const ce_factors *f, int64_t token, int64_t k, double lse, double hit,
                          double *slope);
/* Puts class c of this slice, after all lower ones, among the token's top ones if it belongs there; they hold z. */
void ridge_cpu_ce_top(const ce_args *a, int64_t token, int64_t c, float z);
/* Classes [first, first + count) of this slice, after all lower ones: keeps the one with the largest score. */
void ridge_cpu_ce_draw(const ce_args *a, int64_t token, int64_t first, int64_t count, const float *z);
/* The score of a class of the whole vocabulary. */
float ridge_cpu_ce_score(const ce_args *a, int64_t token, int64_t class_, float z);
/* Adds what is known of later classes. */
void ridge_cpu_ce_merge(ce_stat *into, const ce_stat *more);
/* Every output but the gradients, from the stats of all tokens (those of ignored rows are not read). */
void ridge_cpu_ce_finish(const ce_args *a, const ce_totals *t, const ce_stat *stat);

/* cpu_reference.c */
ridge_status ridge_cpu_ce_reference(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                                    void *workspace, size_t bytes, void *stream);
size_t ridge_cpu_ce_reference_workspace(const ridge_device *device, const ridge_kernel *kernel,
                                        const ridge_problem *problem);

#endif
