/* session.h: what step.c, session.c and save.c share: sessions that were opened together, and a step of them. */
#ifndef RIDGE_LM_SESSION_H
#define RIDGE_LM_SESSION_H

#include "lm.h"

#define lm_batch_close ridge_lm_batch_close
#define lm_batch_open ridge_lm_batch_open
#define lm_run_step ridge_lm_run_step
#define lm_sum ridge_lm_sum

#define LM_TRY(expression)                    \
    do {                                      \
        const ridge_status s_ = (expression); \
        if (s_)                               \
            return s_;                        \
    } while (0)

/* Tokens of a step at most, and rows of logits; of a step that becomes a graph: larger ones are launched call by call.
 */
enum { LM_PANEL = LM_MOST_TOKENS, LM_ROWS = 64, LM_GRAPH_TOKENS = 16, LM_GRAPHS = 64 };
enum { LM_REACH = 256 }; /* positions that a step is made for at least */
/* Bytes of workspace that a call of attention takes at most, where that leaves it 16 tokens. */
enum { LM_ATTENTION_BYTES = 128 << 20 };

/* Consecutive tokens of a step that belong to one session. */
typedef struct lm_run {
    int32_t slot, count;
} lm_run;

/* What a captured step depends on. Compared byte by byte: zeroed before it is filled in. */
typedef struct lm_step {
    int64_t tokens, rows, positions; /* logits of the last `rows` tokens; positions of the cache that attention sees */
    int64_t runs, fast;              /* fast: attention_prefill in the place of attention_decode */
    lm_run run[RIDGE_LM_MAX_SESSIONS];
    int64_t sampled; /* rows that a token is drawn for: all or none */
    ridge_sample_options sample;
} lm_step;

/* What a step reads, on the device and in host memory that the device can read. */
typedef struct lm_inputs {
    int64_t seed[RIDGE_LM_MAX_SESSIONS], counter[RIDGE_LM_MAX_SESSIONS];
    int32_t pos[LM_PANEL];
    int32_t token[LM_PANEL]; /* last: a step may go on with the tokens that the one before it drew */
} lm_inputs;

typedef struct lm_graph {
    void *graph;
    lm_step step;
    int turn;
} lm_graph;

/* Sessions that were opened together: their caches, and what one step of them needs. */
typedef struct lm_batch {
    ridge_lm *lm;
    void *state;                           /* of the backend: a stream of its own */
    int64_t positions, slots, open, panel; /* panel: tokens of a step at most */
    char *k, *v;                           /* [layers][slots][kv_heads][positions][head_dim] f16 */
    float *x[2], *normed, *branch, *qkv, *q, *heads, *wide, *logits, *scales;
    int8_t *codes;                             /* of a norm, with scales */
    float *route, *route_weights, *mid_scales; /* of experts: logits, weights, what gate and up make */
    int32_t *ids;
    int8_t *mid;
    lm_inputs *inputs[2]; /* by turn, so that those of the next step arrive beside this one */
    void *workspace;
    int64_t workspace_bytes[2]; /* that a call of one token needs at most, and one of more */
    float *host_x;              /* embeddings that are not on the device */
    lm_inputs *host[2];         /* of two steps that may be in flight */
    int32_t *drawn[2];          /* the tokens that they drew */
    int turn;                   /* which of the two was launched last */
    bool prefill;               /* the device has attention_prefill for these heads */
    bool ahead;                 /* and whether a caller has yet to ask for it */
    lm_step ahead_step;
    lm_graph graph[LM_GRAPHS];
    int graphs;
} lm_batch;

struct ridge_lm_session {
    lm_batch *batch;
    int32_t slot;
    int64_t at;
    int32_t *text; /* the tokens */
};

ridge_status lm_batch_open(ridge_lm *lm, int64_t positions, int64_t slots, lm_batch **batch);
void lm_batch_close(lm_batch *b);
/* Runs a step whose inputs are on the device (or in x[0], where the embeddings are not). */
ridge_status lm_run_step(lm_batch *b, const lm_step *step);
/* save.c: the sum in a session's file. */
uint64_t lm_sum(uint64_t sum, const void *data, int64_t bytes);

#endif
