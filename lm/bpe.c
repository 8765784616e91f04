/* bpe.c: byte-level BPE: a piece of text begins as the tokens of its bytes; the pair of lowest rank, the leftmost among
 * equals, is merged until no pair has a rank. */
#include <inttypes.h>
#include <stdlib.h>

#include "lm.h"

typedef struct symbol {
    int32_t token;
    int64_t before, after; /* neighbours; -1 at the ends */
} symbol;

typedef struct candidate {
    int32_t rank, left, right, merged; /* tokens: it is stale where the symbols hold others */
    int64_t at;
} candidate;

typedef struct heap {
    candidate *at;
    int64_t count;
} heap;

static bool earlier(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(heap *h, candidate c)
{
    int64_t i = h->count++;

    for (; i > 0 && earlier(&c, &h->at[(i - 1) / 2]); i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = c;
}

static candidate pop(heap *h)
{
    const candidate top = h->at[0], last = h->at[--h->count];
    int64_t i = 0;

    for (int64_t child; (child = 2 * i + 1) < h->count; i = child) {
        if (child + 1 < h->count && earlier(&h->at[child + 1], &h->at[child]))
            child++;
        if (!earlier(&h->at[child], &last))
            break;
        h->at[i] = h->at[child];
    }
    if (h->count)
        h->at[i] = last;
    return top;
}

static const lm_pair *pair_of(const lm_vocab *v, int32_t left, int32_t right)
{
    uint32_t i = ((uint32_t)left * 0x9e3779b1u ^ (uint32_t)right * 0x85ebca6bu) & v->pair_mask;

    for (; v->pair[i].left >= 0; i = (i + 1) & v->pair_mask)
        if (v->pair[i].left == left && v->pair[i].right == right)
            return &v->pair[i];
    return NULL;
}

static void offer(const lm_vocab *v, heap *h, const symbol *s, int64_t i)
{
    const lm_pair *pair = i >= 0 && s[i].after >= 0 ? pair_of(v, s[i].token, s[s[i].after].token) : NULL;

    if (pair)
        push(h, (candidate){pair->rank, pair->left, pair->right, pair->merged, i});
}

/* One piece; room in s for its bytes, in h for three times as many. */
static ridge_status merge_piece(const lm_vocab *v, const unsigned char *text, int64_t bytes, symbol *s, heap *h,
                                lm_tokens *out)
{
    int64_t count = 0;

    h->count = 0;
    for (int64_t i = 0; i < bytes; i++) {
        const int32_t byte = v->byte_token[text[i]], token = byte < 0 ? v->unknown : byte;

        if (token < 0)
            return lm_fail(RIDGE_ERR_ARG,
                           "the text has a byte 0x%02x: the vocabulary has neither it nor an unknown token", text[i]);
        s[count] = (symbol){token, count - 1, count + 1};
        count++;
    }
    s[count - 1].after = -1;
    for (int64_t i = 0; i < count; i++)
        offer(v, h, s, i);
    while (h->count) {
        const candidate c = pop(h);
        symbol *left = &s[c.at], *right;

        if (left->token != c.left || left->after < 0 || s[left->after].token != c.right)
            continue;
        right = &s[left->after];
        left->token = c.merged;
        right->token = -1; /* no candidate names it any more */
        left->after = right->after;
        if (left->after >= 0)
            s[left->after].before = c.at;
        offer(v, h, s, left->before);
        offer(v, h, s, c.at);
    }
    for (int64_t i = 0; i >= 0; i = s[i].after)
        lm_put(out, s[i].token);
    return RIDGE_OK;
}

ridge_status lm_bpe(const lm_vocab *v, const char *text, int64_t bytes, lm_tokens *out)
{
    int64_t longest = 0, end;
    symbol *s;
    heap h = {NULL, 0};
    ridge_status status = RIDGE_OK;

    for (int64_t i = 0; i < bytes; i = end) {
        end = lm_split(v->pre, text, bytes, i);
        longest = end - i > longest ? end - i : longest;
    }
    s = malloc((size_t)(longest + 1) * sizeof *s);
    h.at = malloc((size_t)(3 * longest + 1) * sizeof *h.at);
    for (int64_t i = 0; i < bytes && s && h.at && !status; i = end) {
        int32_t whole;

        end = lm_split(v->pre, text, bytes, i);
        whole = v->whole_first ? lm_find(v, text + i, end - i) : -1;
        if (whole >= 0)
            lm_put(out, whole);
        else
            status = merge_piece(v, (const unsigned char *)text + i, end - i, s, &h, out);
    }
    free(h.at);
    free(s);
    return s && h.at ? status : lm_fail(RIDGE_ERR_ARG, "no memory for a text of %" PRId64 " bytes", bytes);
}
