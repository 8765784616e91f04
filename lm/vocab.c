/* vocab.c: the tokeniser's tables from a file's metadata: what every token stands for, tokens by their bytes, merges,
 * special tokens. Everything is checked: ids, counts, duplicates, bytes that no vocabulary writes. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lm.h"

#define TRY(expression)                       \
    do {                                      \
        const ridge_status s_ = (expression); \
        if (s_)                               \
            return s_;                        \
    } while (0)

enum { MOST_TOKENS = 1 << 24, MOST_BYTES = 65536 };

static ridge_status no_memory(void)
{
    return lm_fail(RIDGE_ERR_DEVICE, "no memory for the vocabulary");
}

static uint32_t hash_of(const char *text, int64_t bytes)
{
    uint32_t h = 2166136261u;

    for (int64_t i = 0; i < bytes; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h ^ h >> 15;
}

int32_t lm_find(const lm_vocab *v, const char *text, int64_t bytes)
{
    for (uint32_t i = hash_of(text, bytes) & v->table_mask; v->table[i] >= 0; i = (i + 1) & v->table_mask) {
        const int32_t token = v->table[i];
        const int64_t from = v->offset[token];

        if (v->offset[token + 1] - from == bytes && memcmp(v->bytes + from, text, (size_t)bytes) == 0)
            return token;
    }
    return -1;
}

/* ---------------------------------------------------------------------------------------- what tokens stand for */

/* Byte-level BPE writes each byte as a printable character: itself, or U+0100 and on for the others in order. Writes
 * the bytes of such a text; -1 where a character is none of the 256. */
static int64_t unmapped(const char *text, uint64_t length, char *to)
{
    int64_t count = 0;

    for (uint64_t i = 0; i < length; i++) {
        unsigned code = (unsigned char)text[i], other = 0;

        if (code >= 0xc2 && code <= 0xc5 && i + 1 < length && ((unsigned char)text[i + 1] & 0xc0) == 0x80)
            code = (code & 0x1fu) << 6 | ((unsigned char)text[++i] & 0x3fu);
        else if (code >= 128)
            return -1;
        if (code >= 0x100) { /* the n-th byte that is not printable */
            for (other = 0; other < 256; other++)
                if (!((other >= 0x21 && other <= 0x7e) || (other >= 0xa1 && other <= 0xac) || other >= 0xae) &&
                    code-- == 0x100)
                    break;
            if (other == 256)
                return -1;
            code = other;
        } else if (!((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) || code >= 0xae)) {
            return -1;
        }
        to[count++] = (char)code;
    }
    return count;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* Token `id` with this name: its bytes go to the end of v->bytes. */
static ridge_status add_token(lm_vocab *v, int32_t id, const char *name, uint64_t length)
{
    char *to = v->bytes + v->offset[id];
    int64_t count = -1;

    if (length == 0 || length > MOST_BYTES)
        return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.tokens: token %d has %" PRIu64 " bytes", id, length);
    if (v->type[id] == LM_BYTE) {
        if (length != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>' || hex(name[3]) < 0 || hex(name[4]) < 0)
            return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.tokens: token %d is a byte, but not named <0xXX>", id);
        *to = (char)(hex(name[3]) * 16 + hex(name[4]));
        if (v->byte_token[(unsigned char)*to] >= 0)
            return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.tokens: tokens %d and %d are the same byte",
                           v->byte_token[(unsigned char)*to], id);
        v->byte_token[(unsigned char)*to] = id;
        count = 1;
    } else if (v->type[id] == LM_NORMAL && !v->spm) {
        count = unmapped(name, length, to);
    } else if (v->spm) {
        count = 0;
        for (uint64_t i = 0; i < length; i++) {
            const bool mark = i + 2 < length && memcmp(name + i, "\xe2\x96\x81", 3) == 0;

            to[count++] = mark ? ' ' : name[i];
            i += mark ? 2 : 0;
        }
    }
    v->literal[id] = count < 0 || v->type[id] != LM_NORMAL;
    if (count < 0) {
        memcpy(to, name, length);
        count = (int64_t)length;
    }
    v->offset[id + 1] = v->offset[id] + count;
    return RIDGE_OK;
}

/* Types and scores; absent types mean normal tokens. */
static ridge_status read_types(const lm_meta *m, lm_vocab *v)
{
    const ridge_meta *types = lm_meta_array(m, "tokenizer.ggml.token_type", RIDGE_META_I32);
    const ridge_meta *scores = lm_meta_array(m, "tokenizer.ggml.scores", RIDGE_META_F32);

    types = types ? types : lm_meta_array(m, "tokenizer.ggml.token_type", RIDGE_META_U32);
    if (types && types->count != v->count)
        return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.token_type has %" PRId64 " entries for %d tokens", types->count,
                       v->count);
    if (v->spm && (!scores || scores->count != v->count))
        return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.scores has not one score (f32) a token");
    for (int32_t i = 0; i < v->count; i++) {
        int32_t type = LM_NORMAL;

        if (types)
            memcpy(&type, (const char *)types->data + 4 * (int64_t)i, 4);
        if (type < LM_NORMAL || type > LM_BYTE)
            return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.token_type: token %d has type %d, outside 1 .. 6", i, type);
        v->type[i] = (unsigned char)type;
        if (v->spm)
            memcpy(&v->score[i], (const char *)scores->data + 4 * (int64_t)i, 4);
        if (v->spm && !isfinite(v->score[i]))
            return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.scores: the score of token %d is not finite", i);
    }
    return RIDGE_OK;
}

static uint32_t table_size(int64_t count)
{
    uint32_t size = 16;

    while (size < 2 * count)
        size *= 2;
    return size;
}

/* Tokens by their bytes. Normal ones, and for SentencePiece those of the user; names twice are refused. */
static ridge_status fill_table(lm_vocab *v)
{
    const uint32_t size = table_size(v->count);

    v->table = malloc(size * sizeof *v->table);
    if (!v->table)
        return no_memory();
    v->table_mask = size - 1;
    memset(v->table, 0xff, size * sizeof *v->table);
    for (int32_t id = 0; id < v->count; id++) {
        const char *bytes = v->bytes + v->offset[id];
        const int64_t length = v->offset[id + 1] - v->offset[id];
        uint32_t i = hash_of(bytes, length) & v->table_mask;

        if (!(v->type[id] == LM_NORMAL && !v->literal[id]) && !(v->spm && v->type[id] == LM_USER))
            continue;
        if (lm_find(v, bytes, length) >= 0)
            return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.tokens: tokens %d and %d stand for the same text",
                           lm_find(v, bytes, length), id);
        while (v->table[i] >= 0)
            i = (i + 1) & v->table_mask;
        v->table[i] = id;
        if (length == 1 && !v->spm)
            v->byte_token[(unsigned char)bytes[0]] = id;
    }
    return RIDGE_OK;
}

static ridge_status read_tokens(const lm_meta *m, lm_vocab *v)
{
    const ridge_meta *tokens = lm_meta_array(m, "tokenizer.ggml.tokens", RIDGE_META_STRING);
    lm_strings s;
    const char *name;
    uint64_t length;

    if (!tokens || tokens->count < 1 || tokens->count > MOST_TOKENS)
        return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.tokens has %" PRId64 " tokens, outside 1 .. 2^24",
                       tokens ? tokens->count : 0);
    v->count = (int32_t)tokens->count;
    v->bytes = malloc((size_t)tokens->bytes + 1);
    v->offset = calloc((size_t)v->count + 1, sizeof *v->offset);
    v->type = malloc((size_t)v->count);
    v->literal = calloc((size_t)v->count, sizeof *v->literal);
    v->ends = calloc((size_t)v->count, sizeof *v->ends);
    v->score = v->spm ? malloc((size_t)v->count * sizeof *v->score) : NULL;
    if (!v->bytes || !v->offset || !v->type || !v->literal || !v->ends || (v->spm && !v->score))
        return no_memory();
    memset(v->byte_token, 0xff, sizeof v->byte_token);
    TRY(read_types(m, v));
    s = lm_meta_strings(tokens);
    for (int32_t id = 0; (name = lm_next_string(&s, &length)) != NULL; id++)
        TRY(add_token(v, id, name, length));
    return fill_table(v);
}

/* ---------------------------------------------------------------------------------------------------------- merges */

/* The two tokens of "left right", whose names may begin with a space. */
static ridge_status add_merge(lm_vocab *v, int32_t rank, const char *text, uint64_t length, char *room)
{
    const char *space = length > 1 ? memchr(text + 1, ' ', length - 1) : NULL;
    const uint64_t first = space ? (uint64_t)(space - text) : 0;
    const int64_t a = space && length <= MOST_BYTES ? unmapped(text, first, room) : -1;
    const int64_t b = a < 0 ? -1 : unmapped(space + 1, length - first - 1, room + a);
    lm_pair pair = {-1, -1, rank, -1};
    uint32_t i;

    if (a > 0 && b > 0) {
        pair.left = lm_find(v, room, a);
        pair.right = lm_find(v, room + a, b);
        pair.merged = lm_find(v, room, a + b);
    }
    if (pair.left < 0 || pair.right < 0 || pair.merged < 0)
        return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.merges: merge %d '%.*s' is not of two tokens to a third", rank,
                       (int)(length < 80 ? length : 80), text);
    i = ((uint32_t)pair.left * 0x9e3779b1u ^ (uint32_t)pair.right * 0x85ebca6bu) & v->pair_mask;
    for (; v->pair[i].left >= 0; i = (i + 1) & v->pair_mask)
        if (v->pair[i].left == pair.left && v->pair[i].right == pair.right)
            return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.merges: merges %d and %d are the same", v->pair[i].rank,
                           rank);
    v->pair[i] = pair;
    return RIDGE_OK;
}

static ridge_status read_merges(const lm_meta *m, lm_vocab *v)
{
    const ridge_meta *merges = lm_meta_array(m, "tokenizer.ggml.merges", RIDGE_META_STRING);
    char *room = malloc(2 * MOST_BYTES);
    ridge_status status = RIDGE_OK;
    const char *text;
    uint64_t length;
    lm_strings s;
    uint32_t size;

    if (!merges || merges->count > MOST_TOKENS) {
        free(room);
        return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.merges is missing or has more than 2^24 merges");
    }
    size = table_size(merges->count);
    v->pair = malloc(size * sizeof *v->pair);
    if (!v->pair || !room)
        status = no_memory();
    else
        memset(v->pair, 0xff, size * sizeof *v->pair);
    v->pair_mask = size - 1;
    s = lm_meta_strings(merges);
    for (int32_t rank = 0; !status && (text = lm_next_string(&s, &length)) != NULL; rank++)
        status = add_merge(v, rank, text, length, room);
    free(room);
    return status;
}

/* -------------------------------------------------------------------------------------------------- special tokens */

static bool named(const lm_vocab *v, int32_t id, const char *name)
{
    const int64_t length = v->offset[id + 1] - v->offset[id];

    return (size_t)length == strlen(name) && memcmp(v->bytes + v->offset[id], name, (size_t)length) == 0;
}

/* Rows that only fill a table up: "[PAD151936]". Text that looks like one is text. */
static bool is_padding(const lm_vocab *v, int32_t id)
{
    const int64_t length = v->offset[id + 1] - v->offset[id];
    const char *name = v->bytes + v->offset[id];

    return length > 6 && memcmp(name, "[PAD", 4) == 0 && name[4] >= '0' && name[4] <= '9' && name[length - 1] == ']';
}

static bool is_special(const lm_vocab *v, int32_t id)
{
    return (v->type[id] == LM_CONTROL || v->type[id] == LM_USER || v->type[id] == LM_UNKNOWN) && !is_padding(v, id);
}

/* By first byte, then longest first, then by number. */
static ridge_status order_specials(lm_vocab *v)
{
    int32_t count = 0;

    for (int32_t id = 0; id < v->count; id++)
        count += is_special(v, id);
    v->special = malloc(((size_t)count + 1) * sizeof *v->special);
    if (!v->special)
        return no_memory();
    count = 0;
    for (int byte = 0; byte < 256; byte++) {
        v->special_of[byte] = count;
        for (int32_t id = 0; id < v->count; id++) {
            const int64_t length = v->offset[id + 1] - v->offset[id];
            int32_t at = count;

            if ((unsigned char)v->bytes[v->offset[id]] != byte || !is_special(v, id))
                continue;
            for (; at > v->special_of[byte]; at--) {
                const int32_t other = v->special[at - 1];

                if (v->offset[other + 1] - v->offset[other] >= length)
                    break;
                v->special[at] = other;
            }
            v->special[at] = id;
            count++;
        }
    }
    v->special_of[256] = count;
    return RIDGE_OK;
}

static ridge_status read_id(const lm_meta *m, lm_vocab *v, const char *key, int64_t usual, int32_t *id)
{
    *id = -1;
    if (usual >= 0 && usual < v->count)
        *id = (int32_t)usual;
    usual = *id;
    TRY(lm_meta_integer(m, key, 0, v->count - 1, &usual));
    *id = (int32_t)usual;
    return RIDGE_OK;
}

/* Tokens that end a text: those that the file names, and control tokens by the names that models give them. */
static ridge_status read_ends(const lm_meta *m, lm_vocab *v)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    static const char *const names[] = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|endoftext|>",
                                        "</s>",       "<|eom_id|>", "<EOT>",         "<|end_of_text|>",
                                        "<eos>",      "<|end|>",    "<|return|>",    "<|call|>"};
    bool harmony = false;
    int32_t id;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        TRY(read_id(m, v, keys[i], v->spm && i == 0 ? 2 : -1, &id));
        if (id >= 0)
            v->ends[id] = true;
    }
    for (id = 0; id < v->count; id++)
        for (size_t i = 0; i < sizeof names / sizeof names[0] && v->type[id] == LM_CONTROL; i++)
            v->ends[id] |= named(v, id, names[i]);
    for (id = 0; id < v->count; id++)
        harmony |= v->type[id] == LM_CONTROL && named(v, id, "<|return|>");
    for (id = 0; id < v->count && harmony; id++) /* there <|end|> ends one message of an answer */
        v->ends[id] &= !named(v, id, "<|end|>");
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------------ all */

static ridge_status read_pre(const lm_meta *m, lm_vocab *v)
{
    static const struct {
        const char *name;
        lm_pre pre;
    } list[] = {{"gpt-2", LM_PRE_GPT2},
                {"smollm", LM_PRE_SMOLLM},
                {"llama-bpe", LM_PRE_LLAMA3},
                {"llama3", LM_PRE_LLAMA3},
                {"llama-v3", LM_PRE_LLAMA3},
                {"qwen2", LM_PRE_QWEN2},
                {"deepseek-r1-qwen", LM_PRE_QWEN2},
                {"gpt-4o", LM_PRE_GPT4O}};
    char name[64];
    bool found;

    TRY(lm_meta_text(m, "tokenizer.ggml.pre", name, sizeof name, &found));
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strcmp(name, list[i].name) == 0) {
            v->pre = list[i].pre;
            v->whole_first = v->add_bos = v->pre == LM_PRE_LLAMA3;
            return RIDGE_OK;
        }
    return lm_fail(RIDGE_ERR_UNSUPPORTED,
                   "tokenizer.ggml.pre is '%s': gpt-2, smollm, llama-bpe, qwen2 and gpt-4o are supported",
                   found ? name : "(missing)");
}

ridge_status lm_vocab_read(const lm_meta *m, lm_vocab *v)
{
    char model[32], *template = malloc(65536);

    if (!template)
        return no_memory();
    (void)lm_meta_text(m, "tokenizer.chat_template", template, 65536, NULL); /* a file may have none */
    snprintf(v->chat, sizeof v->chat, "%s", lm_chat_form(template));
    v->chat_system = lm_chat_system(template);
    free(template);
    TRY(lm_meta_text(m, "tokenizer.ggml.model", model, sizeof model, NULL));
    v->spm = strcmp(model, "llama") == 0;
    if (!v->spm && strcmp(model, "gpt2") != 0)
        return lm_fail(RIDGE_ERR_UNSUPPORTED, "tokenizer.ggml.model is '%s': gpt2 and llama are supported", model);
    v->add_bos = v->space_prefix = v->spm;
    if (!v->spm)
        TRY(read_pre(m, v));
    TRY(lm_meta_flag(m, "tokenizer.ggml.add_bos_token", &v->add_bos));
    if (v->spm)
        TRY(lm_meta_flag(m, "tokenizer.ggml.add_space_prefix", &v->space_prefix));
    TRY(read_tokens(m, v));
    if (!v->spm)
        TRY(read_merges(m, v));
    TRY(read_id(m, v, "tokenizer.ggml.bos_token_id", v->spm ? 1 : -1, &v->bos));
    TRY(read_id(m, v, "tokenizer.ggml.unknown_token_id", v->spm ? 0 : -1, &v->unknown));
    TRY(read_ends(m, v));
    if (v->add_bos && v->bos < 0)
        return lm_fail(RIDGE_ERR_FILE, "tokenizer.ggml.bos_token_id is missing, and texts begin with that token");
    return order_specials(v);
}

void lm_vocab_free(lm_vocab *v)
{
    free(v->bytes);
    free(v->offset);
    free(v->type);
    free(v->literal);
    free(v->score);
    free(v->table);
    free(v->pair);
    free(v->special);
    free(v->ends);
}
