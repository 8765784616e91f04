/* quantize.h: what the parts of `ridge quantize` share. cmd.c has plan.c decide about every tensor, then output.c
 * writes the plan: convert.c converts tensor by tensor, error.c measures the error, config.c writes the JSON beside
 * them. */
#ifndef RIDGE_TOOLS_QUANTIZE_H
#define RIDGE_TOOLS_QUANTIZE_H

#include <jansson.h>
#include <signal.h>

#include "ridge_io.h"
#include "src/internal.h"
#include "tools/args.h"
#include "tools/cli.h"

typedef enum quantize_to { TO_FP8_BLOCK128, TO_FP8_ROW, TO_Q8_0, TO_BF16, TO_F16, TO_FORMATS } quantize_to;

typedef struct quantize_options {
    const char *in, *out, *device;
    quantize_to to;
    args_list include, exclude; /* patterns of names */
    bool force, dry_run, json, no_stats, quiet;
} quantize_options;

/* The error of the decoded result. Elements that are not finite on either side are counted only. */
typedef struct error_stats {
    double signal, noise; /* sums of squares */
    float worst;          /* largest |error| */
    float value;          /* the input at that element */
    int64_t worst_at;     /* its index in the tensor, row by row; -1: none yet */
    int64_t not_finite;
} error_stats;

/* SNR in dB; infinity for no error at all. */
double error_snr(const error_stats *s);

typedef enum quantize_action {
    ACTION_KEEP,
    ACTION_CAST,
    ACTION_FP8_BLOCK128,
    ACTION_FP8_ROW,
    ACTION_Q8_0
} quantize_action;

/* What happens to one tensor. */
typedef struct plan_tensor {
    const ridge_entry *in;
    quantize_action action;
    uint32_t type;    /* of the output */
    const char *why;  /* why it is not quantised; NULL: it is */
    char *scale_name; /* of the scales of fp8; NULL: it has none */
    int64_t scale_shape[2];
    int64_t bytes;              /* of the output, with its scales */
    int64_t index, scale_index; /* handles of the writer */
    error_stats error;
} plan_tensor;

typedef struct plan {
    const quantize_options *o;
    const ridge_file *file;
    ridge_format format; /* of the output */
    bool directory;      /* the output is one */
    char *folder;        /* the input's directory, to copy from */
    plan_tensor *at;
    int64_t count;
    int64_t bytes_in, bytes_out, quantised, cast, kept;
} plan;

/* Decides about every tensor. False with the reason on stderr. */
bool plan_build(const quantize_options *o, const ridge_file *file, plan *p);
void plan_free(plan *p);
const char *quantize_to_name(quantize_to to);

/* A buffer that grows, in host or device memory. */
typedef struct buffer {
    void *at;
    size_t capacity;
} buffer;

/* The buffers of one thread, for one chunk of a tensor. */
typedef struct worker {
    buffer raw, floats, codes, scales;            /* host: as read, as f32, as written */
    buffer device_x, device_codes, device_scales; /* of a GPU only */
    buffer workspace;                             /* of the device */
    void *stream;
} worker;

/* What stays from tensor to tensor. */
typedef struct converter {
    const ridge_device *device;
    bool stats;
    worker *worker;
    int workers;
    progress progress;
    double bytes_done, bytes_total;
} converter;

/* The caller has set device, stats and bytes_total. False if memory is short. */
bool converter_start(converter *c);
/* Reads, converts and writes one tensor, a chunk at a time. False with the reason on stderr, or when interrupted. */
bool convert_tensor(converter *c, const ridge_file *file, plan_tensor *t, ridge_writer *writer);
void converter_free(converter *c);

/* Adds rows to the error of a tensor: x (rows x cols of type F32, BF16 or F16) against what was written. scale: of fp8,
 * one per 128 x 128 block with `scale_cols` a row of blocks, or one per row (scale_cols = 0). first: index of the first
 * element. */
typedef struct error_input {
    const void *x;
    uint32_t x_type;
    const void *y;
    uint32_t y_type; /* F8_E4M3, Q8_0, F32, BF16, F16 */
    const float *scale;
    int64_t scale_cols;
    int64_t rows, cols, first;
} error_input;

void error_add(error_stats *s, const error_input *in);
/* Adds `next`, the error of the chunk that follows. */
void error_merge(error_stats *s, const error_stats *next);

extern volatile sig_atomic_t quantize_stop; /* a signal asked to stop */

/* output.c. False, with the reason on stderr, if the output may not be written. */
bool output_allowed(const plan *p);
/* Carries the whole plan out. Exit status. */
int quantize_write(plan *p, converter *c);

/* config.c. NULL, said on stderr: out of memory. */
char *path_join(const char *folder, const char *name);
/* model.safetensors.index.json; config.json; config.json beside a single file in another directory than the input's,
 * where there is none yet; GGUF's general.architecture from config.json's model_type. False with the reason on stderr.
 */
bool config_index(const plan *p, const char *folder);
bool config_write(const plan *p, const char *folder);
bool config_beside(const plan *p, const char *out);
bool config_architecture(const plan *p, ridge_writer *w);

#endif
