/* xla_ffi.h: the part of XLA's FFI call interface (0.1 and later of major version 0) that jax_ffi.c uses, as
 * declarations of our own: jaxlib's header renames its types between releases (0.10 to 0.11), while the layout below
 * only grows at its ends. Every struct begins with its size; what is beyond the size that the other side states must
 * not be read. Checked against the header that the installed jaxlib ships by tests/test_jax.py. */
#ifndef RIDGE_XLA_FFI_H
#define RIDGE_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

typedef struct xla_extension {
    size_t struct_size;
    int type; /* 1: metadata is asked for */
    struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
    size_t struct_size;
    xla_extension *extension;
    int major, minor;
} xla_version;

typedef struct xla_error xla_error;

typedef struct xla_error_args {
    size_t struct_size;
    xla_extension *extension;
    const char *message;
    int code; /* of absl: 3 invalid argument, 8 resource exhausted, 12 unimplemented, 13 internal */
} xla_error_args;

typedef struct xla_buffer {
    size_t struct_size;
    xla_extension *extension;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xla_buffer;

typedef struct xla_span {
    const char *text;
    size_t length;
} xla_span;

typedef struct xla_array {
    int dtype;
    size_t size;
    void *data;
} xla_array;

/* Arguments and results alike: their kinds (1 = buffer) and pointers to them. */
typedef struct xla_values {
    size_t struct_size;
    xla_extension *extension;
    int64_t count;
    int *kind;
    void **at;
} xla_values;

typedef struct xla_attributes {
    size_t struct_size;
    xla_extension *extension;
    int64_t count;
    int *kind; /* 1 = array */
    xla_span **name;
    void **at;
} xla_attributes;

typedef struct xla_context xla_context;

typedef struct xla_stream_args {
    size_t struct_size;
    xla_extension *extension;
    xla_context *context;
    void *stream; /* out */
} xla_stream_args;

typedef struct xla_ordinal_args {
    size_t struct_size;
    xla_extension *extension;
    xla_context *context;
    int32_t ordinal; /* out */
} xla_ordinal_args;

typedef struct xla_api {
    size_t struct_size;
    xla_extension *extension;
    xla_version version;
    const void *internal;
    xla_error *(*error_create)(xla_error_args *);
    void (*skipped1[3])(void);
    xla_error *(*stream_get)(xla_stream_args *);
    void (*skipped2[12])(void);
    xla_error *(*ordinal_get)(xla_ordinal_args *);
} xla_api;

typedef struct xla_frame {
    size_t struct_size;
    xla_extension *extension;
    const xla_api *api;
    xla_context *context;
    int stage; /* 3: execute */
    xla_values args, results;
    xla_attributes attributes;
} xla_frame;

enum { XLA_COMMAND_BUFFER_COMPATIBLE = 1 };

typedef struct xla_metadata {
    size_t struct_size;
    xla_version version; /* out */
    uint32_t traits;     /* out */
} xla_metadata;

typedef struct xla_metadata_extension {
    xla_extension base;
    xla_metadata *metadata;
} xla_metadata_extension;

#endif
