/* save.c: a session as a safetensors file: the text's tokens and its cache, in the metadata the form's version and
 * which model they belong to, and a sum over all of it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

#define VERSION_KEY "ridge_lm.session"
#define VERSION "1"
#define MODEL_KEY "ridge_lm.model"

enum { SAMPLE = 64 }; /* bytes of a tensor that go into a model's name, from its beginning and from its middle */

uint64_t lm_sum(uint64_t sum, const void *data, int64_t bytes)
{
    const unsigned char *at = data;

    for (; bytes > 0; at += 8, bytes -= 8) {
        uint64_t word = 0;

        memcpy(&word, at, bytes < 8 ? (size_t)bytes : 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}

/* Its family, what the cache's shape depends on, and a sum over the names of its tensors and some of their bytes: two
 * models of one family do not have the same. */
static ridge_status name_of(const ridge_lm *lm, char *text, size_t size)
{
    const lm_config *c = &lm->config;
    uint64_t sum = 0;

    for (int64_t i = 0; i < ridge_file_tensors(lm->file); i++) {
        const ridge_entry *e = ridge_file_tensor(lm->file, i);
        const int64_t some = e->bytes < SAMPLE ? e->bytes : SAMPLE;
        unsigned char bytes[2 * SAMPLE] = {0};

        LM_TRY(lm_io_failed(ridge_file_read(lm->file, e, 0, bytes, some)));
        LM_TRY(lm_io_failed(ridge_file_read(lm->file, e, (e->bytes - some) / 2, bytes + SAMPLE, some)));
        sum = lm_sum(sum, e->name, (int64_t)strlen(e->name));
        sum = lm_sum(sum, bytes, sizeof bytes);
    }
    snprintf(text, size, "%s, %" PRId64 " layers of %" PRId64 " x %" PRId64 ", %d tokens, %016" PRIx64, c->family->name,
             c->layers, c->kv_heads, c->head_dim, lm->vocab.count, sum);
    return RIDGE_OK;
}

/* ------------------------------------------------------------------------------------------------------- both ways */

/* The parts of a file in the order of its sum: tokens, then the keys and the values of every layer and head. */
typedef struct parts {
    const ridge_lm_session *s;
    int64_t tokens;
    char *row; /* of one layer and head */
    uint64_t sum;
    ridge_writer *writer;
    const ridge_file *file;
    int64_t index[4]; /* of the writer's tensors */
    const ridge_entry *entry[4];
} parts;

enum { TOKENS, KEYS, VALUES, SUM };
static const char *const names[] = {"tokens", "keys", "values", "sum"};

static int64_t row_bytes(const parts *p)
{
    return p->tokens * p->s->batch->lm->config.head_dim * 2;
}

/* Where the first position of unit i (layer and head) is in the cache; in the file it is at i * row_bytes. */
static char *row_at(const parts *p, char *cache, int64_t i)
{
    const lm_batch *b = p->s->batch;
    const lm_config *c = &b->lm->config;
    const int64_t layer = i / c->kv_heads, head = i % c->kv_heads;

    return cache + ((layer * b->slots + p->s->slot) * c->kv_heads + head) * b->positions * c->head_dim * 2;
}

typedef ridge_status on_row(parts *p, int which, char *cache, int64_t i);

static ridge_status each_row(parts *p, on_row *each)
{
    const lm_batch *b = p->s->batch;

    for (int64_t i = 0; i < b->lm->config.layers * b->lm->config.kv_heads; i++) {
        LM_TRY(each(p, KEYS, b->k, i));
        LM_TRY(each(p, VALUES, b->v, i));
    }
    return RIDGE_OK;
}

static void shape_of(const parts *p, int which, uint32_t *type, int32_t *rank, int64_t shape[4])
{
    const lm_config *c = &p->s->batch->lm->config;
    const int64_t cache[] = {c->layers, c->kv_heads, p->tokens, c->head_dim};

    *type = which == TOKENS ? RIDGE_TYPE_I32 : which == SUM ? RIDGE_TYPE_U64 : RIDGE_TYPE_F16;
    *rank = which == TOKENS || which == SUM ? 1 : 4;
    memcpy(shape, cache, sizeof cache);
    if (*rank == 1)
        shape[0] = which == TOKENS ? p->tokens : 1;
}

/* ------------------------------------------------------------------------------------------------------------- save */

static ridge_status save_row(parts *p, int which, char *cache, int64_t i)
{
    const lm_batch *b = p->s->batch;
    const int64_t bytes = row_bytes(p);

    LM_TRY(b->lm->backend->download(b->state, p->row, row_at(p, cache, i), bytes));
    p->sum = lm_sum(p->sum, p->row, bytes);
    return lm_io_failed(ridge_writer_write(p->writer, p->index[which], i * bytes, p->row, bytes));
}

static ridge_status write_all(parts *p)
{
    char model[160];

    LM_TRY(name_of(p->s->batch->lm, model, sizeof model));
    LM_TRY(lm_io_failed(ridge_writer_meta_string(p->writer, VERSION_KEY, VERSION)));
    LM_TRY(lm_io_failed(ridge_writer_meta_string(p->writer, MODEL_KEY, model)));
    for (int i = 0; i < 4; i++) {
        int64_t shape[4];
        uint32_t type;
        int32_t rank;

        shape_of(p, i, &type, &rank, shape);
        LM_TRY(lm_io_failed(ridge_writer_tensor(p->writer, names[i], type, rank, shape, &p->index[i])));
    }
    LM_TRY(lm_io_failed(ridge_writer_begin(p->writer)));
    p->sum = lm_sum(0, p->s->text, p->tokens * 4);
    LM_TRY(lm_io_failed(ridge_writer_write(p->writer, p->index[TOKENS], 0, p->s->text, p->tokens * 4)));
    LM_TRY(each_row(p, save_row));
    return lm_io_failed(ridge_writer_write(p->writer, p->index[SUM], 0, &p->sum, 8));
}

ridge_status ridge_lm_save(const ridge_lm_session *s, const char *path)
{
    parts p = {.s = s};
    ridge_status status;

    if (!s || !path || s->at == 0)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_save: a pointer is NULL, or the text is empty");
    p.tokens = s->at;
    p.row = malloc((size_t)row_bytes(&p));
    if (!p.row)
        return lm_fail(RIDGE_ERR_DEVICE, "no memory for %" PRId64 " bytes", row_bytes(&p));
    status = lm_io_failed(ridge_writer_open(path, RIDGE_SAFETENSORS, &p.writer));
    if (!status) {
        status = write_all(&p);
        if (status)
            ridge_writer_abort(p.writer);
        else
            status = lm_io_failed(ridge_writer_finish(p.writer));
    }
    free(p.row);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------- load */

static ridge_status sum_row(parts *p, int which, char *cache, int64_t i)
{
    const int64_t bytes = row_bytes(p);

    (void)cache;
    LM_TRY(lm_io_failed(ridge_file_read(p->file, p->entry[which], i * bytes, p->row, bytes)));
    p->sum = lm_sum(p->sum, p->row, bytes);
    return RIDGE_OK;
}

static ridge_status load_row(parts *p, int which, char *cache, int64_t i)
{
    const lm_batch *b = p->s->batch;

    LM_TRY(sum_row(p, which, cache, i));
    return b->lm->backend->upload(b->state, row_at(p, cache, i), p->row, row_bytes(p));
}

static ridge_status check_text(const ridge_file *file, const char *path, const char *key, const char *want)
{
    const ridge_meta *m = ridge_file_meta_find(file, key);
    const int64_t length = m && m->kind == RIDGE_META_STRING && m->bytes >= 8 ? m->bytes - 8 : -1;

    if (length < 0)
        return lm_fail(RIDGE_ERR_FILE, "%s is no session: it has no %s", path, key);
    if (length != (int64_t)strlen(want) || memcmp((const char *)m->data + 8, want, (size_t)length) != 0)
        return lm_fail(RIDGE_ERR_FILE, "%s: %s is '%.*s', not '%s'", path, key, (int)(length < 200 ? length : 200),
                       (const char *)m->data + 8, want);
    return RIDGE_OK;
}

static ridge_status check_file(parts *p, const char *path)
{
    const ridge_lm *lm = p->s->batch->lm;
    char model[160];

    if (ridge_file_format(p->file) != RIDGE_SAFETENSORS)
        return lm_fail(RIDGE_ERR_FILE, "%s is no session", path);
    LM_TRY(check_text(p->file, path, VERSION_KEY, VERSION));
    LM_TRY(name_of(lm, model, sizeof model));
    LM_TRY(check_text(p->file, path, MODEL_KEY, model));
    for (int i = 0; i < 4; i++) {
        const ridge_entry *e = p->entry[i] = ridge_file_find(p->file, names[i]);
        int64_t shape[4];
        uint32_t type;
        int32_t rank;

        if (i == TOKENS)
            p->tokens = e && e->rank == 1 ? e->shape[0] : 0;
        if (i == TOKENS && (p->tokens < 1 || p->tokens > p->s->batch->positions))
            return lm_fail(RIDGE_ERR_FILE, "%s has %" PRId64 " tokens, outside 1 .. %" PRId64, path, p->tokens,
                           p->s->batch->positions);
        shape_of(p, i, &type, &rank, shape);
        if (!e || e->type != type || e->rank != rank || memcmp(e->shape, shape, (size_t)rank * sizeof *shape) != 0)
            return lm_fail(RIDGE_ERR_FILE, "%s: tensor %s is missing, or of another type or shape", path, names[i]);
    }
    return RIDGE_OK;
}

/* Everything is read and checked before the session changes. */
static ridge_status read_all(parts *p, ridge_lm_session *s, const char *path)
{
    int32_t *tokens;
    ridge_status status;
    uint64_t sum, first;

    LM_TRY(check_file(p, path));
    tokens = malloc((size_t)p->tokens * sizeof *tokens);
    p->row = malloc((size_t)row_bytes(p));
    status = tokens && p->row ? lm_io_failed(ridge_file_read(p->file, p->entry[TOKENS], 0, tokens, p->tokens * 4))
                              : lm_fail(RIDGE_ERR_DEVICE, "no memory for %" PRId64 " bytes", row_bytes(p));
    if (!status)
        status = lm_io_failed(ridge_file_read(p->file, p->entry[SUM], 0, &sum, 8));
    if (!status) {
        first = p->sum = lm_sum(0, tokens, p->tokens * 4);
        status = each_row(p, sum_row);
    }
    for (int64_t i = 0; i < p->tokens && !status; i++)
        if (tokens[i] < 0 || tokens[i] >= s->batch->lm->vocab.count)
            status = lm_fail(RIDGE_ERR_FILE, "%s: token %" PRId64 " is %d, outside 0 .. %d", path, i, tokens[i],
                             s->batch->lm->vocab.count - 1);
    if (!status && p->sum != sum)
        status =
            lm_fail(RIDGE_ERR_FILE, "%s is damaged: its sum is %016" PRIx64 ", not %016" PRIx64, path, p->sum, sum);
    if (!status) {
        s->at = 0;
        p->sum = first;
        status = each_row(p, load_row);
        if (!status && p->sum != sum)
            status = lm_fail(RIDGE_ERR_FILE, "%s changed while it was read", path);
    }
    if (!status) {
        memcpy(s->text, tokens, (size_t)p->tokens * sizeof *tokens);
        s->at = p->tokens;
    }
    free(tokens);
    free(p->row);
    return status;
}

ridge_status ridge_lm_load(ridge_lm_session *s, const char *path)
{
    parts p = {.s = s};
    ridge_file *file;
    ridge_status status;

    if (!s || !path)
        return lm_fail(RIDGE_ERR_ARG, "ridge_lm_load: a pointer is NULL");
    LM_TRY(lm_io_failed(ridge_file_open(path, &file)));
    p.file = file;
    status = read_all(&p, s, path);
    ridge_file_close(file);
    return status;
}
