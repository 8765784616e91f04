/* io_tool.c: ridge's side of tests/interop.py.
 *     io_tool dump FILE              all there is in it, a line each, fields between tabs, text and data in hexadecimal
 *     io_tool copy FROM TO FORMAT    reads one file and writes another (safetensors or gguf) of the same contents */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ridge_io.h"

static void die(const char *what)
{
    fprintf(stderr, "io_tool: %s: %s\n", what, ridge_io_error());
    exit(1);
}

static void hex(const void *data, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        printf("%02x", ((const unsigned char *)data)[i]);
}

static void *load(const ridge_file *file, const ridge_entry *t)
{
    void *memory = malloc((size_t)t->bytes + 1);

    if (!memory || ridge_file_read(file, t, 0, memory, t->bytes) != RIDGE_OK)
        die("read");
    return memory;
}

static void dump_tensor(const ridge_file *file, const ridge_entry *t)
{
    void *data = load(file, t);
    float *floats = malloc((size_t)t->elements * sizeof *floats + 1);

    if (!floats)
        die("memory");
    printf("tensor\t");
    hex(t->name, (int64_t)strlen(t->name));
    printf("\t%s\t", ridge_type_query(t->type)->name);
    for (int32_t i = 0; i < t->rank; i++)
        printf("%s%" PRId64, i ? "," : "", t->shape[i]);
    printf("\t");
    hex(data, t->bytes);
    printf("\t");
    if (ridge_dequantize(t->type, data, t->elements, floats) == RIDGE_OK)
        hex(floats, t->elements * 4);
    else
        printf("-");
    printf("\n");
    free(floats);
    free(data);
}

static void dump(const char *path)
{
    ridge_file *file;

    if (ridge_file_open(path, &file) != RIDGE_OK)
        die("open");
    printf("file\t%s\t%d\n", ridge_file_format(file) == RIDGE_GGUF ? "gguf" : "safetensors",
           (int)ridge_file_shards(file));
    for (int64_t i = 0; i < ridge_file_metas(file); i++) {
        const ridge_meta *meta = ridge_file_meta(file, i);
        printf("meta\t");
        hex(meta->key, (int64_t)strlen(meta->key));
        printf("\t%u\t%u\t%" PRId64 "\t", (unsigned)meta->kind, (unsigned)meta->element, meta->count);
        hex(meta->data, meta->bytes);
        printf("\n");
    }
    for (int64_t i = 0; i < ridge_file_tensors(file); i++)
        dump_tensor(file, ridge_file_tensor(file, i));
    ridge_file_close(file);
}

static void copy(const char *from, const char *to, ridge_format format)
{
    ridge_writer *writer;
    ridge_file *file;

    if (ridge_file_open(from, &file) != RIDGE_OK || ridge_writer_open(to, format, &writer) != RIDGE_OK)
        die("open");
    for (int64_t i = 0; i < ridge_file_metas(file); i++)
        if (ridge_writer_meta(writer, ridge_file_meta(file, i)) != RIDGE_OK)
            die("metadata");
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        if (ridge_writer_tensor(writer, t->name, t->type, t->rank, t->shape, NULL) != RIDGE_OK)
            die("tensor");
    }
    if (ridge_writer_begin(writer) != RIDGE_OK)
        die("begin");
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        void *data = load(file, t);
        if (ridge_writer_write(writer, i, 0, data, t->bytes) != RIDGE_OK)
            die("write");
        free(data);
    }
    if (ridge_writer_finish(writer) != RIDGE_OK)
        die("finish");
    ridge_file_close(file);
}

/* The values of all tensors, one after another, as floats. */
static void floats(const char *from, const char *to)
{
    FILE *out = fopen(to, "wb");
    ridge_file *file;

    if (!out || ridge_file_open(from, &file) != RIDGE_OK)
        die("open");
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);
        const size_t count = (size_t)(t->bytes / ridge_type_query(t->type)->bytes * ridge_type_query(t->type)->block);
        float *values = malloc(count * sizeof *values + 1);
        void *data = load(file, t);

        if (!values || ridge_dequantize(t->type, data, (int64_t)count, values) != RIDGE_OK)
            die("dequantize");
        if (fwrite(values, sizeof *values, count, out) != count)
            die("write");
        free(values);
        free(data);
    }
    if (fclose(out))
        die("write");
    ridge_file_close(file);
}

int main(int count, char **words)
{
    if (count == 3 && strcmp(words[1], "dump") == 0)
        dump(words[2]);
    else if (count == 4 && strcmp(words[1], "floats") == 0)
        floats(words[2], words[3]);
    else if (count == 5 && strcmp(words[1], "copy") == 0)
        copy(words[2], words[3], strcmp(words[4], "gguf") == 0 ? RIDGE_GGUF : RIDGE_SAFETENSORS);
    else
        return 2;
    return fflush(stdout) != 0;
}
