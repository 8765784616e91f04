/* ops/quantize_fp8/cpu.h: what the parts of `ridge quantize` share: the plan (plan.c), the conversion of one tensor
 * (convert.c), its error (error.c), and what is written where (output.c). */
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
    bool force, dry_run, json, no_stats, verbose, quiet;
} quantize_options;

/* What the decoded result differs by from the input. Elements that are not finite on either side are counted only. */
typedef struct error_stats {
    double signal, noise; /* sums of squares */
    float worst;          /* largest |error| */
    float value;          /* and the input there */
    int64_t worst_at;     /* its index in the tensor, row by row; -1 = none */
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

/* One tensor's part of the plan. */
typedef struct plan_tensor {
    const ridge_entry *in;
    quantize_action action;
    uint32_t type;    /* of the output */
    const char *why;  /* it is not quantised; NULL = it is */
    char *scale_name; /* of fp8 */
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
    char *folder;        /* of the input, to copy from */
    plan_tensor *at;
    int64_t count;
    int64_t bytes_in, bytes_out, quantised, cast, kept;
} plan;

/* Decides about every tensor. False with the reason on stderr. */
bool plan_build(const quantize_options *o, const ridge_file *file, plan *p);
void plan_free(plan *p);
const char *quantize_to_name(quantize_to to);

/* A buffer that grows, on the host or on a device. */
typedef struct buffer {
    void *at;
    size_t room;
} buffer;

/* What one thread needs for a piece of a tensor. */
typedef struct worker {
    buffer raw, floats, codes, scales;            /* host: as read, as f32, as written */
    buffer device_x, device_codes, device_scales; /* of a GPU; the CPU works in the host's */
    buffer workspace;                             /* of the device */
    void *stream;
} worker;

/* The conversion, from tensor to tensor. */
typedef struct converter {
    const ridge_device *device;
    bool stats;
    worker *worker;
    int workers;
    progress progress;
    double bytes_done, bytes_total;
} converter;

/* device, stats and bytes_total are set. False if there is no memory. */
bool converter_start(converter *c);
/* Reads, converts and writes one tensor, a piece at a time. False with the reason on stderr, or when interrupted. */
bool convert_tensor(converter *c, const ridge_file *file, plan_tensor *t, ridge_writer *writer);
void converter_free(converter *c);

/* Adds rows to the error of a tensor: x (rows x cols of type F32, BF16 or F16) against what was written. scale: of fp8,
 * one per row (block = 0) or per 128 x 128 with `scale_cols` a row. first: index of the first element. */
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
/* s becomes that of both; pieces come in order. */
void error_merge(error_stats *s, const error_stats *next);

/* output.c. Whether the output may be written; the reason on stderr. */
bool output_allowed(const plan *p);
char *path_join(const char *folder, const char *name);

/* config.c: model.safetensors.index.json, config.json in the output's folder, config.json beside a single file
 * in another directory than the input's, general.architecture from config.json's model_type. */
bool config_index(const plan *p, const char *folder);
bool config_write(const plan *p, const char *folder);
bool config_beside(const plan *p, const char *out);
bool config_architecture(const plan *p, ridge_writer *w);

/* Runs the whole plan into the output. Exit status. */
int quantize_write(plan *p, converter *c);

extern volatile sig_atomic_t quantize_stop; /* a signal asked to stop */

#endif
