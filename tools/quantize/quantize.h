/* quantize.h: what the parts of `ridge quantize` share. cmd.c has plan.c decide about every tensor (mix.c knows the
 * types of a mixed GGUF file), then output.c writes the plan: convert.c converts tensor by tensor (scales.c has the
 * scales of FP8, block32.c makes that of blocks of 32 x 32, packed.c reads MXFP4 in two tensors), error.c measures the
 * error, config.c writes the JSON beside them and edit.c changes its text, folder.c copies and removes directories. */
#ifndef RIDGE_TOOLS_QUANTIZE_H
#define RIDGE_TOOLS_QUANTIZE_H

#include <jansson.h>
#include <signal.h>

#include "ridge_io.h"
#include "src/internal.h"
#include "tools/args.h"
#include "tools/cli.h"

typedef enum quantize_to {
    TO_FP8_BLOCK128,
    TO_FP8_ROW,
    TO_FP8_BLOCK32,
    TO_BF16,
    TO_F16,
    TO_Q8_0, /* from here on GGUF */
    TO_Q4_0,
    TO_Q4_K_M,
    TO_Q5_K_M,
    TO_Q6_K,
    TO_MXFP4,
    TO_FORMATS
} quantize_to;

static inline bool to_fp8(quantize_to to)
{
    return to <= TO_FP8_BLOCK32;
}

static inline bool to_gguf(quantize_to to)
{
    return to >= TO_Q8_0;
}

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
    int64_t blocks, inexact; /* of FP8 made from MXFP4 */
} error_stats;

/* SNR in dB; infinity for no error at all. */
double error_snr(const error_stats *s);

typedef enum quantize_action {
    ACTION_KEEP,
    ACTION_CAST,
    ACTION_FP8_BLOCK128,
    ACTION_FP8_ROW,
    ACTION_FP8_BLOCK32,
    ACTION_Q8_0,
    ACTION_BLOCKS, /* other blocks of GGUF, by ridge_quantize */
    ACTION_DROP    /* scales of FP8 input: they are applied to their weight */
} quantize_action;

/* Which scale an element of an FP8 tensor has: `per_matrix` scales for each matrix of the tensor, `cols` in a row of
 * them, each for a block of the matrix. */
typedef struct scale_map {
    int64_t per_matrix, cols, block_rows, block_cols;
} scale_map;

/* What happens to one tensor. */
typedef struct plan_tensor {
    const ridge_entry *in;
    quantize_action action;
    uint32_t type;            /* of the output */
    const char *why;          /* why it is not quantised; NULL: it is */
    const ridge_entry *scale; /* of FP8 input that is dequantised */
    scale_map map;
    char *scale_name;       /* of the scales of fp8 output; NULL: it has none */
    int64_t scale_shape[3]; /* of the tensor's rank, 2 or 3 */
    int64_t bytes;          /* of the output, with its scales */
    bool e8m0;              /* they are of that type */
    ridge_entry view;       /* MXFP4 of two tensors: `in` then, */
    char *view_name;
    const ridge_entry *packed, *exponents; /* and these */
    int64_t index, scale_index;            /* handles of the writer */
    error_stats error;
} plan_tensor;

typedef struct plan {
    const quantize_options *o;
    const ridge_file *file;
    ridge_format format; /* of the output */
    bool directory;      /* the output is one */
    bool many;           /* the input is a directory or an index */
    char *folder;        /* the input's directory, to copy from */
    char *config;        /* the text of its config.json, a JSON object; NULL: there is none */
    plan_tensor *at;
    int64_t count;
    int64_t bytes_in, bytes_out, quantised, cast, kept, dropped, packed;
} plan;

/* Decides about every tensor. False with the reason on stderr. */
bool plan_build(const quantize_options *o, const ridge_file *file, plan *p);
void plan_free(plan *p);
const char *quantize_to_name(quantize_to to);
uint32_t quantize_file_type(quantize_to to); /* GGUF's general.file_type */
/* mix.c: the type of a weight in a GGUF file of the plan's format. */
uint32_t mix_type(const plan *p, const ridge_entry *t);
/* A tensor as matrices: the last two dimensions. */
int64_t matrix_rows(const ridge_entry *t);
int64_t matrix_cols(const ridge_entry *t);

/* scales.c. The types of FP8. */
bool is_fp8(uint32_t type);
/* Finds the scales of an FP8 tensor of the input; they, and the scale of its activations, become ACTION_DROP. False,
 * with the reason on stderr, if there are none that ridge knows. */
bool scales_find(const plan *p, plan_tensor *t);
/* Reads them as f32; the caller frees them. NULL with the reason on stderr. */
float *scales_load(const ridge_file *file, const plan_tensor *t);
/* Multiplies elements from index `first` on, rows of the tensor's, by their scales. */
void scales_apply(const plan_tensor *t, const float *scale, int64_t first, int64_t elements, float *x);
/* The tensor called as t with its last `cut` characters replaced; NULL: none. */
const ridge_entry *tensor_beside(const plan *p, const ridge_entry *t, size_t cut, const char *end);
/* The name and the shape of the scales of fp8 output. */
bool scales_declare(const plan *p, plan_tensor *t);

/* block32.c. The side of a tensor's blocks of FP8: 128, 32, or 0: it has none. */
int64_t fp8_block(const plan_tensor *t);
/* decoded: what the codes decode to; or NULL. */
void block32_quantise(const float *x, int64_t rows, int64_t cols, uint8_t *code, uint8_t *scale, float *decoded);
void block128_decode(const uint8_t *code, const float *scale, int64_t rows, int64_t cols, float *to);
/* Counts the blocks, and those in which y is not x. */
void exact_count(const float *x, const float *y, int64_t rows, int64_t cols, int64_t side, error_stats *s);

/* packed.c. Finds MXFP4 in two tensors. False, said on stderr: out of memory. */
bool packed_find(const plan *p, plan_tensor *t);
/* Reads bytes of its blocks; room: for twice the blocks of 17 bytes that hold them. */
ridge_status packed_read(const ridge_file *file, const plan_tensor *t, int64_t begin, int64_t bytes, uint8_t *room);
void packed_join(const uint8_t *nibbles, const uint8_t *exponents, int64_t blocks, uint8_t *to);

/* A buffer that grows, in host or device memory. */
typedef struct buffer {
    void *at;
    size_t capacity;
} buffer;

/* The buffers of one thread, for one chunk of a tensor. */
typedef struct worker {
    buffer raw, floats, codes, scales, decoded;   /* host: as read, as f32, as written, and that as f32 */
    buffer device_x, device_codes, device_scales; /* of a GPU only */
    buffer workspace;                             /* of the device */
    void *stream;
} worker;

/* What stays from tensor to tensor. */
typedef struct converter {
    const ridge_device *device;
    double start; /* seconds() */
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

/* cmd.c. Prints the summary of what has been converted, before it gets its name: what cannot be said is not done. False
 * if standard output did not take it. */
bool quantize_report(const plan *p, converter *c);

/* output.c. False, with the reason on stderr, if the output may not be written. */
bool output_allowed(const plan *p);
/* Carries the whole plan out. Exit status. */
int quantize_write(plan *p, converter *c);

/* folder.c. NULL, said on stderr: out of memory. */
char *path_join(const char *folder, const char *name);
bool path_ends(const char *name, const char *end);
bool same_file(const char *a, const char *b);
/* What a link in the model's directory leads to must lie in that directory, or in the cache of downloads that it
 * belongs to. True for what is no link. */
bool link_stays(const char *folder, const char *path);
/* True for the files of a model's directory that are copied: all but weights, hidden files and what is rewritten. */
bool folder_copies(const char *name);
/* Copies them, directories too, but not `except`. False with the reason on stderr, or when interrupted. */
bool folder_copy(const char *from, const char *to, const char *except);
/* False if `path` holds a directory that `model` does not have at the same place. */
bool folder_resembles(const char *path, const char *model);
/* Removes a directory with all that is in it; links are removed, not followed. */
bool folder_remove(const char *path);
void folder_sync(const char *path);

/* config.c. Reads config.json into the plan. False, with the reason on stderr, if it is there and is no JSON object. */
bool config_load(plan *p);
/* model.safetensors.index.json: `shard` names the file of each tensor. */
bool config_index(const plan *p, const char *folder, char *const *shard);
/* Writes config.json; none if the input has none. False with the reason on stderr. */
bool config_write(const plan *p, const char *folder);
/* The same beside a single file, in another directory than the input's, where there is none yet; *made is its path
 * then, for the caller to free. */
bool config_beside(const plan *p, const char *out, char **made);
/* GGUF's general.architecture from config.json's model_type. */
bool config_architecture(const plan *p, ridge_writer *w);
/* A string of config.json; NULL: there is none. The caller frees it. */
char *config_string(const plan *p, const char *key, const char *inner);

/* edit.c. Gives a member of the JSON object in *text another value (JSON text), adds it, or removes it (NULL); every
 * other byte stays. *text is replaced. False: no memory. */
bool json_edit(char **text, const char *key, const char *value);

#endif
