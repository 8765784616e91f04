/* io.h: what the files of io/ share. Reading: file.c opens a checkpoint and hands its ridge_file to a reader
 * (safetensors.c, index.c, gguf.c, parts.c), which fills it through builder.c. Writing: writer.c declares and writes,
 * and asks the format's layout (safetensors_layout.c, gguf_layout.c) for header and offsets. */
#ifndef RIDGE_IO_INTERNAL_H
#define RIDGE_IO_INTERNAL_H

#include <stdbool.h>

#include "ridge_io.h"

/* Every global name in libridge_io.a begins with ridge_ (tests/symbols.sh); these are short in the source. */
#define io_add_meta ridge_io_add_meta
#define io_add_shard ridge_io_add_shard
#define io_add_tensor ridge_io_add_tensor
#define io_bytes ridge_io_bytes
#define io_clear ridge_io_clear
#define io_close_shard ridge_io_close_shard
#define io_elements ridge_io_elements
#define io_fail ridge_io_fail
#define io_find_in_directory ridge_io_find_in_directory
#define io_grow ridge_io_grow
#define io_keep ridge_io_keep
#define io_layout_gguf ridge_io_layout_gguf
#define io_layout_safetensors ridge_io_layout_safetensors
#define io_multiply ridge_io_multiply
#define io_nameless ridge_io_nameless
#define io_names_add ridge_io_names_add
#define io_names_find ridge_io_names_find
#define io_names_free ridge_io_names_free
#define io_no_memory ridge_io_no_memory
#define io_open_index ridge_io_open_index
#define io_open_gguf ridge_io_open_gguf
#define io_parse_gguf ridge_io_parse_gguf
#define io_part_name ridge_io_part_name
#define io_parse_safetensors ridge_io_parse_safetensors
#define io_printable ridge_io_printable
#define io_read_at ridge_io_read_at
#define io_type_of_gguf ridge_io_type_of_gguf
#define io_utf8 ridge_io_utf8

/* error.c */
ridge_status io_fail(ridge_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
ridge_status io_no_memory(const char *path);

/* names.c: distinct strings, numbered in the order in which they were added; O(1) whatever they are (a keyed hash). */
typedef struct io_names {
    const char **name; /* not owned */
    uint64_t *slot;    /* a power of two of them, at most half in use; names.c says what is in them */
    int64_t count, capacity, slots;
    uint64_t key[2];
} io_names;

int64_t io_names_find(const io_names *names, const char *name); /* -1: not there */
int64_t io_names_add(io_names *names, const char *name);        /* -1: there already, -2: no memory */
void io_names_free(io_names *names);

typedef struct io_shard {
    char *path;
    int fd;                /* -1: opened for each read, in `directory` */
    int directory;         /* the file's */
    uint64_t device, node; /* which file it is */
    int64_t bytes;
} io_shard;

struct ridge_file {
    ridge_format format;
    io_shard *shard;
    int32_t shards;
    int directory; /* of shards that are opened for each read; -1: there are none */
    ridge_entry *tensor;
    int64_t tensors, tensor_capacity;
    ridge_meta *meta;
    int64_t metas, meta_capacity;
    io_names names, keys; /* of tensor and meta */
    void **block;         /* every other allocation (names, keys, values), freed by ridge_file_close */
    int64_t blocks, block_capacity;
};

/* builder.c: on failure all of these leave a message. */
void *io_keep(ridge_file *file, size_t bytes);                           /* memory freed with the file */
ridge_status io_add_tensor(ridge_file *file, const ridge_entry *tensor); /* a duplicate name is an error; O(1) */
ridge_status io_add_meta(ridge_file *file, const ridge_meta *meta);      /* a duplicate key too */
ridge_status io_add_shard(ridge_file *file, const char *path);           /* opens it */
ridge_status io_close_shard(ridge_file *file, int32_t index);            /* its header is read; if there are many */
void io_clear(ridge_file *file);                                         /* as it was before the first shard */
ridge_status io_read_at(const io_shard *shard, int64_t at, void *to, int64_t bytes); /* all of it or an error */

/* check.c */
bool io_multiply(int64_t a, int64_t b, int64_t *product); /* false on overflow or a negative */
bool io_grow(void *array, int64_t *capacity, int64_t need, size_t element);
bool io_utf8(const char *text, size_t length); /* valid UTF-8 without NUL */
/* Bytes of the character that text begins with, 0 if a terminal should not get it: no UTF-8, a control character (C0,
 * DEL, C1), or one that hides or reorders what follows. */
size_t io_printable(const char *text, size_t length);
bool io_elements(const int64_t *shape, int32_t rank,
                 int64_t *elements);                            /* false on overflow, zero sizes left out too */
bool io_bytes(uint32_t type, int64_t elements, int64_t *bytes); /* false on overflow or a broken block */

/* index.c: a model.safetensors.index.json with its shards; what a directory holds (*path: the caller frees it). */
ridge_status io_open_index(ridge_file *file, const char *path);
ridge_status io_find_in_directory(const char *directory, char **path);

/* types.c: RIDGE_TYPE_NONE if there is none */
uint32_t io_type_of_gguf(uint32_t id);

/* What a GGUF says of itself: part `number` (from 0) of `count`, which have `tensors` together; count 0: nothing. */
typedef struct io_part {
    int64_t number, count, tensors;
} io_part;

/* safetensors.c, gguf.c: parse the header of shard `index` and add its tensors and metadata to the file. Of metadata
 * that an earlier shard has too the earlier one's counts. */
ridge_status io_parse_safetensors(ridge_file *file, int32_t index);
ridge_status io_parse_gguf(ridge_file *file, int32_t index, io_part *part);

/* parts.c: reads a GGUF with all its parts; shard 0 is open. Is name that of a part, X-00002-of-00003.gguf? The length
 * of X then, else -1. */
ridge_status io_open_gguf(ridge_file *file, const char *path);
int64_t io_part_name(const char *name, int64_t *number, int64_t *count);

/* writer.c. Tests clear io_nameless to take the path of file systems without O_TMPFILE. */
extern bool io_nameless;

typedef struct io_out {
    char *name;
    uint32_t type;
    int32_t rank;
    int64_t shape[RIDGE_MAX_RANK];
    int64_t bytes, offset, written;
} io_out;

struct ridge_writer {
    ridge_format format;
    char *path;
    int fd, directory; /* both open, or fd is -1 */
    char temporary[48];
    bool named; /* the file is there as `temporary` */
    bool begun, failed;
    io_out *tensor;
    int64_t tensors, tensor_capacity;
    ridge_meta *meta; /* copies */
    int64_t metas, meta_capacity;
    io_names names, keys; /* of tensor and meta */
    int64_t data;         /* offset of the data section: the header's bytes */
    int64_t end;          /* bytes of the file; a layout may set it past the last tensor, relative to data */
};

/* Set the tensors' offsets (relative to data) and return the header, padded; the caller frees *header. */
ridge_status io_layout_safetensors(ridge_writer *writer, unsigned char **header, int64_t *bytes);
ridge_status io_layout_gguf(ridge_writer *writer, unsigned char **header, int64_t *bytes);

#endif
