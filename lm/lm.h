/* lm.h: what the files of lm/ share. model.c opens a file: config.c reads the numbers of its family, vocab.c the
 * tokeniser, weights.c the weights (matrix.c: matrices). session.c makes the calls of a step and runs them. memory.c is
 * the device's memory. Uses ridge.h and ridge_io.h alone. */
#ifndef RIDGE_LM_INTERNAL_H
#define RIDGE_LM_INTERNAL_H

#include <stdbool.h>

#include "ridge_io.h"
#include "ridge_lm.h"

/* Every global name in libridge_lm.a begins with ridge_ (tests/symbols.sh); these are short in the source. */
#define lm_backend_of ridge_lm_backend_of
#define lm_begin ridge_lm_begin
#define lm_bpe ridge_lm_bpe
#define lm_chat_form ridge_lm_chat_form
#define lm_chat_system ridge_lm_chat_system
#define lm_check_sampling ridge_lm_check_sampling
#define lm_compose ridge_lm_compose
#define lm_config_read ridge_lm_config_read
#define lm_cuda_backend ridge_lm_cuda_backend
#define lm_cut ridge_lm_cut
#define lm_embed ridge_lm_embed
#define lm_embed_scale ridge_lm_embed_scale
#define lm_fail ridge_lm_fail
#define lm_expert_weights ridge_lm_expert_weights
#define lm_family_of ridge_lm_family_of
#define lm_find ridge_lm_find
#define lm_io_failed ridge_lm_io_failed
#define lm_meta_array ridge_lm_meta_array
#define lm_meta_flag ridge_lm_meta_flag
#define lm_meta_integer ridge_lm_meta_integer
#define lm_meta_number ridge_lm_meta_number
#define lm_meta_strings ridge_lm_meta_strings
#define lm_meta_text ridge_lm_meta_text
#define lm_next_string ridge_lm_next_string
#define lm_note ridge_lm_note
#define lm_open_shape ridge_lm_open_shape
#define lm_ridge_failed ridge_lm_ridge_failed
#define lm_skip ridge_lm_skip
#define lm_spm ridge_lm_spm
#define lm_split ridge_lm_split
#define lm_take ridge_lm_take
#define lm_tokens_done ridge_lm_tokens_done
#define lm_vocab_free ridge_lm_vocab_free
#define lm_vocab_read ridge_lm_vocab_read
#define lm_weights ridge_lm_weights
#define lm_weights_free ridge_lm_weights_free
#define lm_weights_load ridge_lm_weights_load

/* ----------------------------------------------------------------------------------------------------------- errors */

ridge_status lm_fail(ridge_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
ridge_status lm_ridge_failed(ridge_status status); /* with ridge_error()'s message */
ridge_status lm_io_failed(ridge_status status);    /* with ridge_io_error()'s */

/* --------------------------------------------------------------------------------------------------------- metadata */

/* Keys of the model's architecture are asked for as ".block_count". A key of another kind is an error; one that is
 * absent leaves *value as it is. Numbers are accepted in any kind that holds them. */
typedef struct lm_meta {
    const ridge_file *file;
    const char *arch;
} lm_meta;

ridge_status lm_meta_integer(const lm_meta *m, const char *key, int64_t low, int64_t high, int64_t *value);
ridge_status lm_meta_number(const lm_meta *m, const char *key, double low, double high, double *value);
ridge_status lm_meta_flag(const lm_meta *m, const char *key, bool *value);
/* Copies a string, cut at size - 1 bytes; *found (or NULL) says whether it is there. */
ridge_status lm_meta_text(const lm_meta *m, const char *key, char *text, size_t size, bool *found);
/* NULL: absent or no array of this kind (RIDGE_META_*); the elements are not aligned. */
const ridge_meta *lm_meta_array(const lm_meta *m, const char *key, uint32_t element);

/* Goes through an array of strings. */
typedef struct lm_strings {
    const unsigned char *at;
    int64_t left;
} lm_strings;
lm_strings lm_meta_strings(const ridge_meta *array);
const char *lm_next_string(lm_strings *s, uint64_t *length); /* NULL after the last */

/* ----------------------------------------------------------------------------------------------------------- config */

/* What sets families apart. */
typedef struct lm_family {
    const char *name;
    bool halves;     /* RoPE's pairs; else adjacent */
    bool qk_norm;    /* of every head of q and k */
    bool post_norms; /* on both branches, before the residual */
    bool gelu;       /* GELU, tanh form, for SiLU */
    bool root_embed; /* embeddings times sqrt(hidden) */
    int64_t pattern; /* every such layer sees all, the others a window; 0: all of them */
    bool experts;    /* in the place of gate, up and down */
    bool oss;        /* gpt-oss: sinks, biases everywhere, a softmax of the chosen experts alone, a clamped SwiGLU */
} lm_family;

typedef struct lm_config {
    const lm_family *family;
    int64_t layers, context, hidden, ffn, heads, kv_heads, head_dim, n_rot, window, pattern;
    int64_t experts, used, expert_ffn;          /* experts of a layer, and of a token; 0: none */
    double eps, base, local_base, scale_factor; /* RoPE's bases; how many times the context was stretched */
    double original_context, ext_factor, attn_factor, beta_fast, beta_slow;
    bool yarn;
    double attention_scale, final_softcap;
} lm_config;

const lm_family *lm_family_of(const char *name); /* NULL: none that is known */
ridge_status lm_config_read(const lm_meta *m, lm_config *c);

/* ------------------------------------------------------------------------------------------------------- vocabulary */

enum { LM_NORMAL = 1, LM_UNKNOWN, LM_CONTROL, LM_USER, LM_UNUSED, LM_BYTE };
typedef enum lm_pre { LM_PRE_GPT2, LM_PRE_SMOLLM, LM_PRE_LLAMA3, LM_PRE_QWEN2, LM_PRE_GPT4O } lm_pre;

/* Open addressing from bytes or pairs to numbers; sizes are powers of two, at most half full. */
typedef struct lm_pair {
    int32_t left, right, rank, merged; /* left -1: free */
} lm_pair;

typedef struct lm_vocab {
    bool spm; /* SentencePiece, else byte-level BPE */
    lm_pre pre;
    int32_t count;
    char *bytes;     /* what the tokens stand for, one after the other */
    int64_t *offset; /* [count + 1] */
    unsigned char *type;
    bool *literal;           /* its bytes are those of its name: never the product of a merge */
    float *score;            /* SentencePiece */
    int32_t *table;          /* tokens by their bytes; -1: free */
    uint32_t table_mask;     /* its size - 1 */
    lm_pair *pair;           /* merges */
    uint32_t pair_mask;      /* its size - 1 */
    int32_t byte_token[256]; /* -1: none */
    int32_t *special;        /* tokens that text is cut at, by first byte, then longest first */
    int32_t special_of[257]; /* first of each first byte */
    int32_t bos, unknown;    /* -1: none */
    bool add_bos, space_prefix, whole_first;
    bool *ends; /* a text or a turn */
    char chat[16];
    const char *chat_system; /* what the template begins with by itself; NULL: nothing */
} lm_vocab;

ridge_status lm_vocab_read(const lm_meta *m, lm_vocab *v);
void lm_vocab_free(lm_vocab *v);
/* The token of these bytes among those that a merge or a lookup may give; -1: none. */
int32_t lm_find(const lm_vocab *v, const char *text, int64_t bytes);

/* Tokens that are being made; beyond `capacity` they are only counted. */
typedef struct lm_tokens {
    int32_t *at;
    int64_t capacity, count;
} lm_tokens;

static inline void lm_put(lm_tokens *t, int32_t token)
{
    if (t->count < t->capacity)
        t->at[t->count] = token;
    t->count++;
}

/* Text without special tokens. */
ridge_status lm_bpe(const lm_vocab *v, const char *text, int64_t bytes, lm_tokens *out);
ridge_status lm_spm(const lm_vocab *v, const char *text, int64_t bytes, bool prefix, lm_tokens *out);
/* NFC of a text, to be freed. */
ridge_status lm_compose(const char *text, int64_t bytes, char **to, int64_t *length);
/* Where the piece that begins at `at` ends. */
int64_t lm_split(lm_pre pre, const char *text, int64_t bytes, int64_t at);
/* Text with special tokens: those of the user, and with `control` all of them. */
ridge_status lm_cut(const lm_vocab *v, const char *text, int64_t bytes, bool control, bool prefix, lm_tokens *out);
ridge_status lm_tokens_done(const lm_tokens *out, int64_t *count);
const char *lm_chat_form(const char *chat_template); /* "": none that is known */
const char *lm_chat_system(const char *chat_template);

/* ----------------------------------------------------------------------------------------------------------- memory */

/* A device's memory, a stream, and graphs of calls where it has them: a state of their own for the model and for every
 * batch of sessions. Functions return RIDGE_OK or set the message. */
typedef struct lm_backend {
    ridge_status (*start)(const ridge_device *device, void **state); /* and a stream */
    void (*stop)(void *state);
    ridge_status (*alloc)(void *state, int64_t bytes, void **memory);
    void (*release)(void *state, void *memory);
    ridge_status (*upload)(void *state, void *to, const void *from, int64_t bytes);   /* both come after what is on */
    ridge_status (*download)(void *state, void *to, const void *from, int64_t bytes); /* the stream, and wait */
    /* Host memory for copies that the caller does not wait for; `fetch` (of no bytes too) leaves mark 0 or 1 behind it
     * on the stream, which `wait` waits for; one that was never left, it does not. */
    ridge_status (*host_alloc)(void *state, int64_t bytes, void **memory);
    void (*host_release)(void *state, void *memory);
    ridge_status (*send)(void *state, void *to, const void *from, int64_t bytes);
    /* The same beside what is on the stream; what comes next waits for it. */
    ridge_status (*send_beside)(void *state, void *to, const void *from, int64_t bytes);
    ridge_status (*fetch)(void *state, void *to, const void *from, int64_t bytes, int mark);
    ridge_status (*wait)(void *state, int mark);
    ridge_status (*copy)(void *state, void *to, const void *from, int64_t bytes); /* on the device */
    int64_t (*free_bytes)(void *state);                                           /* 0: not known */
    void *(*stream)(void *state, int branch); /* -1: the trunk, which is the only one where `fork` is NULL */
    bool host;                                /* its memory is the host's */
    /* NULL where there are none: calls between begin and end become a graph. */
    ridge_status (*graph_begin)(void *state);
    ridge_status (*graph_end)(void *state, void **graph);
    ridge_status (*graph_launch)(void *state, void *graph);
    void (*graph_free)(void *state, void *graph);
    /* Within a graph: `count` branches, made before by `branches`, follow the trunk; then the trunk follows them. */
    ridge_status (*branches)(void *state, int count);
    ridge_status (*fork)(void *state, int count);
    ridge_status (*join)(void *state, int count);
} lm_backend;

extern const lm_backend lm_cuda_backend;
/* NULL: of a model device. */
const lm_backend *lm_backend_of(const ridge_device *device);

/* ------------------------------------------------------------------------------------------------------------ model */

/* Weights on the device: planes of Q8_0, or the tiles of a block format. */
typedef struct lm_matrix {
    ridge_dtype format;   /* RIDGE_I8: planes */
    void *codes, *scales; /* tiles: codes alone */
    int64_t rows, cols;
} lm_matrix;

typedef struct lm_layer {
    float *attn_norm, *ffn_norm, *post_attn_norm, *post_ffw_norm, *q_norm, *k_norm, *bias; /* NULL: none */
    float *sinks, *out_bias, *router_bias, *gate_bias, *up_bias, *down_bias;               /* gpt-oss */
    lm_matrix qkv[3];              /* q, k, v: those of one format together, one after the other; of no rows: no more */
    lm_matrix out, gate, up, down; /* of experts: all of them, one after the other, their rows packed */
    void *router;                  /* bf16 or f32 [experts, hidden] */
    ridge_dtype router_dtype;
    int64_t window; /* 0: all */
    double *freqs;
    float mscale;
} lm_layer;

enum { LM_MOST_TOKENS = 512 }; /* of a step */

struct ridge_lm {
    const ridge_device *device;
    ridge_device *cpu; /* converts weights */
    const lm_backend *backend;
    void *state; /* of backend */
    bool started;
    ridge_lm_options options;
    ridge_file *file;
    lm_config config;
    lm_vocab vocab;
    char name[96];
    const ridge_entry *embedding;
    lm_layer *layer;
    float *output_norm, *ones; /* ones: [LM_MOST_TOKENS], factors of the residual's sum */
    int32_t *zeros;            /* [16], with experts: the router is an only expert's matrix */
    double *freqs, *local_freqs;
    float mscale;
    lm_matrix head;
    ridge_tensor table; /* embeddings on the device; of no type: they are read from the file */
    int64_t weight_bytes, step_bytes;
    void **owned; /* device memory */
    int64_t owned_count;
};

void lm_note(const ridge_lm *lm, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A model without weights on a device. */
ridge_status lm_begin(const ridge_device *device, const ridge_lm_options *options, ridge_lm **lm);
/* shape.c: "llama-3-8b:q8_0" and others, with random weights. */
ridge_status lm_open_shape(const char *name, const ridge_device *device, ridge_lm **lm);
/* Device memory that the model owns. */
ridge_status lm_take(ridge_lm *lm, int64_t bytes, void **memory);
/* matrix.c: a matrix as an operand; of experts, whose rows are packed. */
ridge_tensor lm_weights(const lm_matrix *m);
ridge_tensor lm_expert_weights(const lm_matrix *m);
ridge_status lm_weights_load(ridge_lm *lm);
void lm_weights_free(ridge_lm *lm);
/* Gives sessions that were opened together texts of `positions` tokens with random caches: to measure. */
ridge_status lm_skip(ridge_lm_session *const *s, int64_t count, int64_t positions);
/* The embeddings of tokens as f32, [count, hidden]. */
ridge_status lm_embed(const ridge_lm *lm, const int32_t *tokens, int64_t count, float *to);
float lm_embed_scale(const ridge_lm *lm); /* what embeddings are multiplied by */
ridge_status lm_check_sampling(const char *function, const ridge_lm_sampling *o);

#endif
