/* io.h: what the files of io/ share: an open file, a writer, and the parser of each format. */
#ifndef RIDGE_IO_INTERNAL_H
#define RIDGE_IO_INTERNAL_H

#include <stdbool.h>

#include "ridge_io.h"

typedef struct io_shard {
    char *path;
    int fd;
    int64_t bytes;
} io_shard;

struct ridge_file {
    ridge_format format;
    io_shard *shard;
    int32_t shards;
    ridge_tensor *tensor;
    int64_t tensors, tensor_room;
    ridge_meta *meta;
    int64_t metas, meta_room;
    uint32_t *slot; /* hash table over tensor names: index + 1, 0 = free; a power of two */
    int64_t slots;
    void **block; /* every other allocation (names, keys, values), freed by ridge_file_close */
    int64_t blocks, block_room;
};

/* error.c */
ridge_status io_fail(ridge_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* file.c */
void *io_keep(ridge_file *file, size_t bytes);                                  /* memory freed with the file */
ridge_status io_add_tensor(ridge_file *file, const ridge_tensor *tensor);       /* a duplicate name is an error; O(1) */
ridge_status io_add_meta(ridge_file *file, const ridge_meta *meta);             /* duplicates: checked by the parser */
ridge_status io_read_at(const io_shard *shard, int64_t at, void *to, int64_t bytes); /* all of it or an error */
bool io_multiply(int64_t a, int64_t b, int64_t *product);                       /* false on overflow or a negative */
bool io_utf8(const char *text, size_t length); /* valid UTF-8 without NUL */

/* types.c: RIDGE_TYPE_NONE if there is none */
uint32_t io_type_of_gguf(uint32_t id);
uint32_t io_type_of_safetensors(const char *name);

/* safetensors.c, gguf.c: parse shard `index` into the file. */
ridge_status io_parse_safetensors(ridge_file *file, int32_t index);
ridge_status io_parse_gguf(ridge_file *file, int32_t index);

/* writer.c */
typedef struct io_out {
    char *name;
    uint32_t type;
    int32_t rank;
    int64_t shape[RIDGE_MAX_RANK];
    int64_t bytes, offset, written;
} io_out;

struct ridge_writer {
    ridge_format format;
    char *path, *temporary;
    int fd;
    bool begun;
    io_out *tensor;
    int64_t tensors, tensor_room;
    ridge_meta *meta; /* copies */
    int64_t metas, meta_room;
    int64_t data, end; /* offset of the data section and of the end of the file */
};

/* Lays out tensor offsets (relative to data) and gives the header's bytes, padded; the caller frees *header. */
ridge_status io_layout_safetensors(ridge_writer *writer, unsigned char **header, int64_t *bytes);
ridge_status io_layout_gguf(ridge_writer *writer, unsigned char **header, int64_t *bytes);

#endif
