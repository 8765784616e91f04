/* safetensors_layout.c: writes the header of a safetensors file and decides where its tensors go. Sorted by descending
 * element size, each tensor lies at a multiple of its element size: the header is padded to 8 bytes, the largest. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"

typedef struct text {
    char *data;
    int64_t bytes, capacity;
    bool failed;
} text;

static void add(text *to, const char *from, size_t bytes)
{
    if (to->failed || !io_grow(&to->data, &to->capacity, to->bytes + (int64_t)bytes, 1)) {
        to->failed = true;
        return;
    }
    memcpy(to->data + to->bytes, from, bytes);
    to->bytes += (int64_t)bytes;
}

__attribute__((format(printf, 2, 3))) static void print(text *to, const char *format, ...)
{
    char line[128]; /* callers print numbers and type names */
    va_list list;
    int length;

    va_start(list, format);
    length = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (length < 0 || (size_t)length >= sizeof line)
        to->failed = true;
    else
        add(to, line, (size_t)length);
}

/* Writes a JSON string; characters that need no escape stay UTF-8. */
static void quote(text *to, const char *from, size_t length)
{
    size_t plain = 0;

    add(to, "\"", 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)from[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
            continue;
        add(to, from + plain, i - plain);
        plain = i + 1;
        if (c == '"' || c == '\\')
            print(to, "\\%c", c);
        else
            print(to, "\\u%04x", (unsigned)c);
    }
    add(to, from + plain, length - plain);
    add(to, "\"", 1);
}

static void print_metadata(text *to, const ridge_writer *w)
{
    add(to, "\"__metadata__\":{", 16);
    for (int64_t i = 0; i < w->metas; i++) {
        const ridge_meta *meta = &w->meta[i];
        add(to, ",", i != 0);
        quote(to, meta->key, strlen(meta->key));
        add(to, ":", 1);
        quote(to, (const char *)meta->data + 8, (size_t)meta->bytes - 8);
    }
    add(to, "}", 1);
}

static void print_tensor(text *to, const io_out *t)
{
    quote(to, t->name, strlen(t->name));
    print(to, ":{\"dtype\":\"%s\",\"shape\":[", ridge_type_query(t->type)->name);
    for (int32_t i = 0; i < t->rank; i++)
        print(to, "%s%" PRId64, i ? "," : "", t->shape[i]);
    print(to, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", t->offset, t->offset + t->bytes);
}

/* The alignment of an element of this type; types of less than a byte are packed. */
static int32_t alignment(uint32_t type)
{
    const ridge_type_info *info = ridge_type_query(type);

    return info->block == 1 ? info->bytes : 1;
}

/* Decides order and offsets, the largest alignment first. */
static ridge_status place(ridge_writer *w, int64_t *order)
{
    int64_t count = 0, at = 0;

    for (int32_t align = 8; align > 0; align /= 2)
        for (int64_t i = 0; i < w->tensors; i++) {
            io_out *t = &w->tensor[i];
            if (alignment(t->type) != align)
                continue;
            t->offset = at;
            order[count++] = i;
            if (__builtin_add_overflow(at, t->bytes, &at))
                return io_fail(RIDGE_ERR_ARG, "%s: tensor \"%.200s\": the file's size overflows", w->path, t->name);
        }
    return count == w->tensors ? RIDGE_OK : io_fail(RIDGE_ERR_ARG, "%s: a type of an odd size", w->path);
}

static ridge_status print_header(const ridge_writer *w, const int64_t *order, text *to)
{
    uint64_t bytes;

    add(to, "\0\0\0\0\0\0\0\0{", 9);
    if (w->metas)
        print_metadata(to, w);
    for (int64_t i = 0; i < w->tensors; i++) {
        add(to, ",", i != 0 || w->metas != 0);
        print_tensor(to, &w->tensor[order[i]]);
    }
    add(to, "}", 1);
    while (to->bytes % 8 && !to->failed)
        add(to, " ", 1);
    if (to->failed)
        return io_no_memory(w->path);
    bytes = (uint64_t)to->bytes - 8;
    if (bytes > IO_SAFETENSORS_HEADER)
        return io_fail(RIDGE_ERR_ARG, "%s: its header would have %" PRIu64 " bytes, safetensors takes %d", w->path,
                       bytes, IO_SAFETENSORS_HEADER);
    for (int i = 0; i < 8; i++)
        to->data[i] = (char)(bytes >> 8 * i & 0xff);
    return RIDGE_OK;
}

ridge_status io_layout_safetensors(ridge_writer *writer, unsigned char **header, int64_t *bytes)
{
    text to = {NULL, 0, 0, false};
    int64_t *order = calloc((size_t)writer->tensors + 1, sizeof *order);
    ridge_status status = order ? place(writer, order) : io_no_memory(writer->path);

    if (status == RIDGE_OK)
        status = print_header(writer, order, &to);
    if (status == RIDGE_OK) {
        *header = (unsigned char *)to.data;
        *bytes = to.bytes;
    } else {
        free(to.data);
    }
    free(order);
    return status;
}
