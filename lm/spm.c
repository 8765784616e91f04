/* spm.c: SentencePiece's BPE (Llama 1 and 2, Gemma): the adjacent pair whose text is the token of highest score, the
 * leftmost among equals, is merged until there is none. A symbol that is no token becomes the tokens of its bytes.
 * U+2581, which stands for a space in the files, is a space in the vocabulary's bytes and in the text. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lm.h"

typedef struct symbol {
    int64_t from, bytes, before, after; /* bytes 0: merged into the one before */
} symbol;

typedef struct candidate {
    float score;
    int64_t at, bytes; /* of both symbols: it is stale where they have others */
} candidate;

typedef struct work {
    const lm_vocab *v;
    char *text;
    int64_t bytes, count;
    symbol *s;
    candidate *heap;
    int64_t heaped;
} work;

static bool better(const candidate *a, const candidate *b)
{
    return a->score != b->score ? a->score > b->score : a->at < b->at;
}

static void push(work *w, candidate c)
{
    int64_t i = w->heaped++;

    for (; i > 0 && better(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static candidate pop(work *w)
{
    const candidate top = w->heap[0], last = w->heap[--w->heaped];
    int64_t i = 0;

    for (int64_t child; (child = 2 * i + 1) < w->heaped; i = child) {
        if (child + 1 < w->heaped && better(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!better(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
    }
    if (w->heaped)
        w->heap[i] = last;
    return top;
}

static void offer(work *w, int64_t i)
{
    const symbol *a = i >= 0 ? &w->s[i] : NULL;
    int64_t bytes;
    int32_t token;

    if (!a || a->after < 0)
        return;
    bytes = a->bytes + w->s[a->after].bytes;
    token = lm_find(w->v, w->text + a->from, bytes);
    if (token >= 0)
        push(w, (candidate){w->v->score[token], i, bytes});
}

/* Bytes of a character; 1 where it is cut off or none. */
static int64_t character(const unsigned char *at, int64_t left)
{
    const int64_t bytes = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc0 ? 2 : 1;

    for (int64_t i = 1; i < bytes; i++)
        if (i >= left || (at[i] & 0xc0) != 0x80)
            return 1;
    return bytes;
}

static void merge_all(work *w)
{
    for (int64_t i = 0; i < w->count; i++)
        offer(w, i);
    while (w->heaped) {
        const candidate c = pop(w);
        symbol *a = &w->s[c.at], *b;

        if (!a->bytes || a->after < 0 || a->bytes + w->s[a->after].bytes != c.bytes)
            continue;
        b = &w->s[a->after];
        a->bytes = c.bytes;
        b->bytes = 0;
        a->after = b->after;
        if (a->after >= 0)
            w->s[a->after].before = c.at;
        offer(w, a->before);
        offer(w, c.at);
    }
}

static void put_symbol(const work *w, const symbol *a, lm_tokens *out)
{
    const int32_t token = lm_find(w->v, w->text + a->from, a->bytes);

    if (token >= 0) {
        lm_put(out, token);
        return;
    }
    for (int64_t i = 0; i < a->bytes; i++) {
        const int32_t byte = w->v->byte_token[(unsigned char)w->text[a->from + i]];

        if (byte >= 0 || w->v->unknown >= 0)
            lm_put(out, byte >= 0 ? byte : w->v->unknown);
    }
}

ridge_status lm_spm(const lm_vocab *v, const char *text, int64_t bytes, bool prefix, lm_tokens *out)
{
    work w = {.v = v, .text = malloc((size_t)(bytes + 2))};

    if (prefix && w.text)
        w.text[w.bytes++] = ' ';
    for (int64_t i = 0; i < bytes && w.text; i++) {
        const bool mark = i + 2 < bytes && memcmp(text + i, "\xe2\x96\x81", 3) == 0;

        w.text[w.bytes++] = mark ? ' ' : text[i];
        i += mark ? 2 : 0;
    }
    w.s = malloc((size_t)(w.bytes + 1) * sizeof *w.s);
    w.heap = malloc((size_t)(3 * w.bytes + 1) * sizeof *w.heap);
    if (w.text && w.s && w.heap) {
        for (int64_t i = 0, length; i < w.bytes; i += length) {
            length = character((const unsigned char *)w.text + i, w.bytes - i);
            w.s[w.count] = (symbol){i, length, w.count - 1, w.count + 1};
            w.count++;
        }
        if (w.count)
            w.s[w.count - 1].after = -1;
        merge_all(&w);
        for (int64_t i = w.count ? 0 : -1; i >= 0; i = w.s[i].after)
            put_symbol(&w, &w.s[i], out);
    }
    free(w.heap);
    free(w.s);
    free(w.text);
    return w.text && w.s && w.heap ? RIDGE_OK
                                   : lm_fail(RIDGE_ERR_ARG, "no memory for a text of %" PRId64 " bytes", bytes);
}
