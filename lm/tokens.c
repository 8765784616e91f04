/* tokens.c: text to tokens and back: special tokens are cut out first, what lies between goes through BPE or
 * SentencePiece. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lm.h"

/* The special token that begins at `at`, the longest; -1: none. Those of the user count always. */
static int32_t special_at(const lm_vocab *v, const char *text, int64_t bytes, int64_t at, bool control)
{
    const int first = (unsigned char)text[at];

    for (int32_t i = v->special_of[first]; i < v->special_of[first + 1]; i++) {
        const int32_t id = v->special[i];
        const int64_t length = v->offset[id + 1] - v->offset[id];

        if ((control || v->type[id] == LM_USER) && length <= bytes - at &&
            memcmp(v->bytes + v->offset[id], text + at, (size_t)length) == 0)
            return id;
    }
    return -1;
}

/* Text without special tokens. */
static ridge_status plain(const lm_vocab *v, const char *text, int64_t bytes, bool prefix, lm_tokens *out)
{
    char *composed;
    int64_t length;
    ridge_status status;

    if (v->spm)
        return lm_spm(v, text, bytes, prefix, out);
    if (v->pre != LM_PRE_QWEN2)
        return lm_bpe(v, text, bytes, out);
    status = lm_compose(text, bytes, &composed, &length);
    if (!status)
        status = lm_bpe(v, composed, length, out);
    free(composed);
    return status;
}

ridge_status lm_cut(const lm_vocab *v, const char *text, int64_t bytes, bool control, bool prefix, lm_tokens *out)
{
    ridge_status status = RIDGE_OK;
    int64_t from = 0;

    for (int64_t i = 0; i <= bytes && !status;) {
        const int32_t id = i < bytes ? special_at(v, text, bytes, i, control) : -1;

        if (id < 0 && i < bytes) {
            i++;
            continue;
        }
        if (i > from)
            status = plain(v, text + from, i - from, prefix, out);
        if (id < 0)
            break;
        lm_put(out, id);
        i += v->offset[id + 1] - v->offset[id];
        from = i;
        prefix = v->space_prefix;
    }
    return status;
}

ridge_status lm_tokens_done(const lm_tokens *out, int64_t *count)
{
    *count = out->count;
    return out->count > out->capacity && out->capacity
               ? lm_fail(RIDGE_ERR_ARG, "the text has %" PRId64 " tokens, there is room for %" PRId64, out->count,
                         out->capacity)
               : RIDGE_OK;
}

ridge_status ridge_lm_tokenize(const ridge_lm *lm, const char *text, int64_t bytes, uint32_t flags, int32_t *tokens,
                               int64_t capacity, int64_t *count)
{
    lm_tokens out = {tokens, capacity, 0};
    ridge_status status;

    if (!lm || (!text && bytes) || bytes < 0 || bytes > INT64_C(1) << 30 || capacity < 0 || (!tokens && capacity) ||
        !count || flags & ~(RIDGE_LM_SPECIAL | RIDGE_LM_BOS))
        return lm_fail(RIDGE_ERR_ARG,
                       "ridge_lm_tokenize: a pointer is NULL, a size is negative or above 2^30, or a flag "
                       "is unknown");
    if ((flags & RIDGE_LM_BOS) && lm->vocab.add_bos)
        lm_put(&out, lm->vocab.bos);
    status = lm_cut(&lm->vocab, text, bytes, flags & RIDGE_LM_SPECIAL, lm->vocab.space_prefix, &out);
    return status ? status : lm_tokens_done(&out, count);
}

ridge_status ridge_lm_token(const ridge_lm *lm, int32_t token, const char **text, int64_t *bytes)
{
    const lm_vocab *v = lm ? &lm->vocab : NULL;

    if (!lm || !text || !bytes || token < 0 || token >= v->count)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_token: a pointer is NULL, or there is no token %d", token);
    *text = v->bytes + v->offset[token];
    *bytes = v->type[token] == LM_CONTROL || v->type[token] == LM_UNKNOWN ? 0 : v->offset[token + 1] - v->offset[token];
    return RIDGE_OK;
}

int ridge_lm_ends(const ridge_lm *lm, int32_t token)
{
    return lm && token >= 0 && token < lm->vocab.count && lm->vocab.ends[token];
}
