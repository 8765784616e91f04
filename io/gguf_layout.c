/* gguf_layout.c: writes the header of a GGUF file, version 3, and decides where its tensors go: in the order in which
 * they were declared, each at a multiple of 32, the alignment of files that state none. ridge_writer_meta has checked
 * the metadata's values and dropped general.alignment. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"

enum { ALIGNMENT = 32, KEY_MOST = 65535, DIMENSIONS_MOST = 4 };

typedef struct sink {
    unsigned char *at;
} sink;

static void put(sink *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to->at, from, bytes);
    to->at += bytes;
}

static void put_u32(sink *to, uint32_t value)
{
    put(to, &value, sizeof value);
}

static void put_u64(sink *to, uint64_t value)
{
    put(to, &value, sizeof value);
}

static void put_string(sink *to, const char *text)
{
    size_t length = strlen(text);

    put_u64(to, length);
    put(to, text, length);
}

/* *sum += bytes, then up to the next multiple of `align`; false on overflow. */
static bool add(int64_t *sum, int64_t bytes, int64_t align)
{
    if (bytes < 0 || __builtin_add_overflow(*sum, bytes, sum) || *sum > INT64_MAX - align)
        return false;
    *sum = (*sum + align - 1) / align * align;
    return true;
}

/* NULL, or why GGUF (or ggml, the usual reader) cannot hold this tensor. */
static const char *why_not(const io_out *t)
{
    const ridge_type_info *info = ridge_type_query(t->type);

    if (!info || info->gguf < 0)
        return "GGUF lacks its type";
    if (t->rank < 0 || t->rank > DIMENSIONS_MOST)
        return "GGUF takes at most 4 dimensions";
    for (int32_t i = 0; i < t->rank; i++)
        if (t->shape[i] < 1)
            return "a dimension is 0, which readers of GGUF refuse";
    if ((t->rank ? t->shape[t->rank - 1] : 1) % info->block)
        return "its rows are not whole blocks";
    return NULL;
}

/* Offsets of the tensors, and where the padding of the last one ends: ggml reads that padding too. */
static ridge_status place(ridge_writer *w)
{
    int64_t at = 0;

    for (int64_t i = 0; i < w->tensors; i++) {
        io_out *t = &w->tensor[i];
        const char *wrong = why_not(t);

        t->offset = at;
        if (!wrong && !add(&at, t->bytes, ALIGNMENT))
            wrong = "the file's size overflows";
        if (wrong)
            return io_fail(RIDGE_ERR_ARG, "%s: tensor \"%.200s\" (type %u, rank %d): %s", w->path, t->name,
                           (unsigned)t->type, (int)t->rank, wrong);
    }
    w->end = at;
    return RIDGE_OK;
}

static ridge_status measure(const ridge_writer *w, int64_t *bytes)
{
    int64_t sum = 4 + 4 + 8 + 8;
    bool good = true;

    for (int64_t i = 0; i < w->metas; i++) {
        const ridge_meta *meta = &w->meta[i];
        size_t key = strlen(meta->key);

        if (key == 0 || key > KEY_MOST)
            return io_fail(RIDGE_ERR_ARG, "%s: metadata \"%.200s\": its key has %zu bytes, must be 1 to %d", w->path,
                           meta->key, key, (int)KEY_MOST);
        good = good && add(&sum, 8 + (int64_t)key + 4 + (meta->kind == RIDGE_META_ARRAY ? 4 + 8 : 0), 1) &&
               add(&sum, meta->bytes, 1);
    }
    for (int64_t i = 0; i < w->tensors; i++)
        good = good && add(&sum, 8 + (int64_t)strlen(w->tensor[i].name) + 4 + 8 * w->tensor[i].rank + 4 + 8, 1);
    if (!good || !add(&sum, 0, ALIGNMENT))
        return io_fail(RIDGE_ERR_ARG, "%s: the header's size overflows", w->path);
    *bytes = sum;
    return RIDGE_OK;
}

static void put_meta(sink *to, const ridge_meta *meta)
{
    put_string(to, meta->key);
    put_u32(to, meta->kind);
    if (meta->kind == RIDGE_META_ARRAY) {
        put_u32(to, meta->element);
        put_u64(to, (uint64_t)meta->count);
    }
    put(to, meta->data, (size_t)meta->bytes);
}

static void put_tensor(sink *to, const io_out *t)
{
    put_string(to, t->name);
    put_u32(to, (uint32_t)t->rank);
    for (int32_t i = t->rank - 1; i >= 0; i--)
        put_u64(to, (uint64_t)t->shape[i]);
    put_u32(to, (uint32_t)ridge_type_query(t->type)->gguf);
    put_u64(to, (uint64_t)t->offset);
}

ridge_status io_layout_gguf(ridge_writer *writer, unsigned char **header, int64_t *bytes)
{
    int64_t size = 0;
    sink to;
    ridge_status status = place(writer);

    if (status == RIDGE_OK)
        status = measure(writer, &size);
    if (status != RIDGE_OK)
        return status;
    to.at = calloc(1, (size_t)size); /* zeros: the padding */
    if (!to.at)
        return io_fail(RIDGE_ERR_FILE, "%s: no memory for a header of %" PRId64 " bytes", writer->path, size);
    *header = to.at;
    *bytes = size;
    put(&to, "GGUF", 4);
    put_u32(&to, 3);
    put_u64(&to, (uint64_t)writer->tensors);
    put_u64(&to, (uint64_t)writer->metas);
    for (int64_t i = 0; i < writer->metas; i++)
        put_meta(&to, &writer->meta[i]);
    for (int64_t i = 0; i < writer->tensors; i++)
        put_tensor(&to, &writer->tensor[i]);
    return RIDGE_OK;
}
