/** @file ridge_lm.h
 * whole models: a GGUF file generates text. Library: ridge_lm. It holds no kernel: every step is calls of ridge.h.
 *
 *     ridge_lm *lm;
 *     ridge_lm_session *session;
 *     if (ridge_lm_open("model.gguf", device, NULL, &lm) || ridge_lm_session_open(lm, 512, &session))
 *         return puts(ridge_lm_error()), 1;
 *     ridge_lm_tokenize(lm, "Hello", 5, RIDGE_LM_BOS, tokens, 512, &count);
 *     while (!ridge_lm_decode(session, tokens, count, 0, logits) && !ridge_lm_argmax(lm, logits, &tokens[0]))
 *         count = 1; // tokens[0] is the next token; ridge_lm_token has its text
 *
 * Families: llama (Llama 1 to 3, Mistral, SmolLM2), qwen2, qwen3, qwen3moe, gpt-oss, gemma3; tokenisers: byte-level
 * BPE and SentencePiece. Products read weights in Q8_0, Q4_0, Q4_1, MXFP4, Q2_K, Q4_K, Q5_K, Q6_K and IQ2_XXS;
 * matrices of another type become Q8_0 when the file is opened. A note says what became of which. Results are exact
 * (without RIDGE_LM_FAST): a token's logits are the same bits on the CPU and on a GPU, however the prompt was cut.
 *
 * Nothing in a file is trusted: whatever it claims is checked, and refused with the key or tensor and the value. The
 * library never prints, aborts or exits. A model may be used by several threads, a session by one at a time. */
#ifndef RIDGE_LM_H
#define RIDGE_LM_H

#include "ridge.h"

#ifdef __cplusplus
extern "C" {
#endif

/** This thread's last message of a ridge_lm function. Empty before the first error. Valid until this thread's next. */
RIDGE_API const char *ridge_lm_error(void);

/* ---------------------------------------------------------------------------------------------------------- models */

typedef struct ridge_lm ridge_lm;                 /**< An open model: weights on a device, and a tokeniser. */
typedef struct ridge_lm_session ridge_lm_session; /**< A text: its cache of keys and values. */

#define RIDGE_LM_Q8_0 1u /**< all matrices become Q8_0: more memory, other bits, faster prompts */

/** Options of ridge_lm_open. */
typedef struct ridge_lm_options {
    uint32_t struct_size; /**< set by the caller to sizeof(ridge_lm_options) */
    uint32_t flags;       /**< RIDGE_LM_Q8_0 or 0 */
    int64_t memory_limit; /**< bytes that the weights may take; 0: what the device has free */
    void (*note)(void *state,
                 const char *line); /**< receives what opening does, line by line; NULL: it is not reported */
    void *state;                    /**< of note */
} ridge_lm_options;

/** Opens a GGUF file; `device` must stay open as long as the model. options may be NULL. Errors: RIDGE_ERR_ARG (NULL,
 * struct_size), RIDGE_ERR_FILE (malformed, or not what its family's files hold), RIDGE_ERR_UNSUPPORTED (another family,
 * tokeniser or form of RoPE; a model device), RIDGE_ERR_DEVICE (it does not fit; the text says the bytes). On error *lm
 * is NULL. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_open(const char *path, const ridge_device *device,
                                                   const ridge_lm_options *options, ridge_lm **lm);

/** Closes a model whose sessions are closed; NULL is allowed. */
RIDGE_API void ridge_lm_close(ridge_lm *lm);

/** What ridge_lm_query tells. */
typedef struct ridge_lm_info {
    uint32_t struct_size;  /**< set by the caller to sizeof(ridge_lm_info) */
    int32_t vocabulary;    /**< tokens, and logits */
    int64_t context;       /**< positions that the model was trained for */
    int64_t layers;        /**< of the transformer */
    int64_t weight_bytes;  /**< on the device */
    int64_t step_bytes;    /**< of weights that a step reads, whatever its number of tokens */
    int64_t kv_bytes;      /**< of one position of a session's cache */
    char architecture[32]; /**< "llama", "qwen3", ... */
    char name[96];         /**< general.name; empty where the file has none */
    char chat[16];         /**< form of its chat template: "chatml", "llama3", "gemma", "mistral"; empty: none known */
} ridge_lm_info;

/** Describes a model. Errors: RIDGE_ERR_ARG. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_query(const ridge_lm *lm, ridge_lm_info *info);

/* ---------------------------------------------------------------------------------------------------------- tokens */

#define RIDGE_LM_SPECIAL 1u /**< names of control tokens in the text stand for those tokens: not for a user's text */
#define RIDGE_LM_BOS 2u     /**< the token that begins a text comes first, where the model wants one */

/** Cuts `bytes` bytes of text into tokens. Bytes that are no UTF-8 are kept as bytes; one that a vocabulary lacks
 * becomes its unknown token, and is RIDGE_ERR_ARG where there is none. *count receives how many there are; beyond
 * `capacity` none is written and the status is RIDGE_ERR_ARG. tokens may be NULL where capacity is 0. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_tokenize(const ridge_lm *lm, const char *text, int64_t bytes,
                                                       uint32_t flags, int32_t *tokens, int64_t capacity,
                                                       int64_t *count);

/** The bytes that a token stands for, as long as the model is open: not terminated, perhaps a part of a character.
 * A control token has none. Errors: RIDGE_ERR_ARG (no such token). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_token(const ridge_lm *lm, int32_t token, const char **text,
                                                    int64_t *bytes);

/** 1 if the token ends a text or a turn, else 0. */
RIDGE_API int ridge_lm_ends(const ridge_lm *lm, int32_t token);

/** One message of a chat. */
typedef struct ridge_lm_message {
    const char *role; /**< "system", "user" or "assistant" */
    const char *text; /**< names of control tokens in it are plain text */
} ridge_lm_message;

/** The tokens of messages in the model's chat form, and of the beginning of the answer. With `more` they follow an
 * answer, and the token that ends its turn comes first: do not decode that one yourself. As ridge_lm_tokenize;
 * RIDGE_ERR_UNSUPPORTED: the model has no chat form that is known. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_chat(const ridge_lm *lm, const ridge_lm_message *messages, int64_t number,
                                                   int more, int32_t *tokens, int64_t capacity, int64_t *count);

/* -------------------------------------------------------------------------------------------------------- sessions */

/** Begins an empty text of at most `positions` tokens. Errors: RIDGE_ERR_ARG (positions outside 1 .. 2^24),
 * RIDGE_ERR_DEVICE (it does not fit; the text says the bytes). On error *session is NULL. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_session_open(ridge_lm *lm, int64_t positions, ridge_lm_session **session);

/** Texts of one ridge_lm_sessions_open, and of one step. */
enum { RIDGE_LM_MAX_SESSIONS = 16 };

/** Begins `count` empty texts of at most `positions` tokens each, which ridge_lm_step can go on with together. They are
 * closed one by one; their memory is there until the last is. Two of them may not be used at the same time by two
 * threads. Errors: as ridge_lm_session_open; RIDGE_ERR_ARG (count outside 1 .. RIDGE_LM_MAX_SESSIONS). On error all of
 * sessions[count] are NULL. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_sessions_open(ridge_lm *lm, int64_t positions, int64_t count,
                                                            ridge_lm_session **sessions);

/** Ends a text; NULL is allowed. */
RIDGE_API void ridge_lm_session_close(ridge_lm_session *session);

/** Tokens that the text has. */
RIDGE_API int64_t ridge_lm_position(const ridge_lm_session *session);

/** Its tokens, ridge_lm_position of them; valid until the next call with the session. */
RIDGE_API const int32_t *ridge_lm_text(const ridge_lm_session *session);

/** Takes back tokens, so that the text has `position` of them. Errors: RIDGE_ERR_ARG (it has fewer). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_rewind(ridge_lm_session *session, int64_t position);

/** Writes the text to a file: its tokens and its cache, as safetensors. The file at `path` is replaced when all of it
 * is there. Errors: RIDGE_ERR_ARG (the text is empty), RIDGE_ERR_FILE, RIDGE_ERR_DEVICE. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_save(const ridge_lm_session *session, const char *path);

/** Replaces the text by one that ridge_lm_save wrote, on any device, from a session of the same model. What follows its
 * last token is computed by taking that one back and giving it again. Errors, after which the text is as before, or
 * empty if the file changed while it was read: RIDGE_ERR_ARG, RIDGE_ERR_FILE (no session, one of another model, one
 * that has more tokens than this session holds, a damaged one), RIDGE_ERR_DEVICE. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_load(ridge_lm_session *session, const char *path);

#define RIDGE_LM_ALL 1u  /**< logits of every token: [count, vocabulary]; else those after the last: [vocabulary] */
#define RIDGE_LM_FAST 4u /**< attention of these tokens by attention_prefill, faster in long prompts on a GPU */

/** Appends tokens to the text and computes what follows them. logits (host memory, f32) may be NULL. With RIDGE_LM_FAST
 * bits differ from those without it, and between devices, but not with how a prompt is cut; what a device's
 * attention_prefill cannot compute is computed without it. Errors, after
 * which the text is as before: RIDGE_ERR_ARG (no token, no such token, more than the session holds), RIDGE_ERR_FILE
 * (the file has become shorter), RIDGE_ERR_DEVICE. */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_decode(ridge_lm_session *session, const int32_t *tokens, int64_t count,
                                                     uint32_t flags, float *logits);

/* -------------------------------------------------------------------------------------------------------- sampling */

/** How a token is drawn. Tokens are ordered by logit, then by number. top_k, then top_p, then min_p take away from the
 * end of that order by the probabilities at temperature 1; the rest is drawn from at the temperature. */
typedef struct ridge_lm_sampling {
    uint32_t struct_size; /**< set by the caller to sizeof(ridge_lm_sampling) */
    int32_t top_k;        /**< tokens that are left at most; 0: all */
    float temperature;    /**< >= 0; 0: the largest logit */
    float top_p;          /**< in (0, 1]: the first tokens whose probabilities reach it */
    float min_p;          /**< in [0, 1]: tokens with at least so much of the largest probability */
    float reserved;       /**< 0 */
    uint64_t seed;        /**< the draw is a function of seed and counter alone (Philox4x32-10) */
    uint64_t counter;     /**< usually the position */
} ridge_lm_sampling;

#define RIDGE_LM_AHEAD 2u /**< on a GPU, the next step begins before this one is answered */

/** Appends a token to each of `count` texts and computes what follows, in one step. The sessions are different ones of
 * one ridge_lm_sessions_open. logits (host memory, [count, vocabulary]) may be NULL. With sampling[count], which may
 * differ in seed and counter, next[count] receives a token drawn after each, on the device: logits need not leave it.
 * RIDGE_LM_AHEAD is for a caller that will go on with these sessions, these tokens and the counters plus one: the
 * device has then done part of that step already; whatever else is called instead is correct too. A text gets the bits
 * that ridge_lm_decode and ridge_lm_sample give it alone. Errors, after which the texts are as before: RIDGE_ERR_ARG
 * (no such token, a text that is full, an option out of range, a logit that is NaN), RIDGE_ERR_FILE, RIDGE_ERR_DEVICE.
 */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_step(ridge_lm_session *const *sessions, int64_t count,
                                                   const int32_t *tokens, const ridge_lm_sampling *sampling,
                                                   uint32_t flags, int32_t *next, float *logits);

/** Draws a token. Errors: RIDGE_ERR_ARG (an option out of range; a logit that is NaN). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_sample(const ridge_lm *lm, const float *logits,
                                                     const ridge_lm_sampling *sampling, int32_t *token);

/** The token of the largest logit, the first of equals. Errors: RIDGE_ERR_ARG (a logit is NaN). */
RIDGE_API RIDGE_CHECKED ridge_status ridge_lm_argmax(const ridge_lm *lm, const float *logits, int32_t *token);

#ifdef __cplusplus
}
#endif

#endif
