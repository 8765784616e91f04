/* bench.h: the parts of `ridge bench`. cmd.c reads the options and calls one of problem.c (a problem), chain.c (a suite
 * as a graph), token.c (a token of a model as a graph), weights.c (the tensors of a checkpoint), decode_layer.c (their
 * products as a graph), model.c (a whole model) and ceilings.c; these time through timing.h and emit to a record_sink.
 */
#ifndef RIDGE_BENCH_H
#define RIDGE_BENCH_H

#include "record.h"
#include "ridge_io.h"
#include "timing.h"
#include "tools/args.h"

typedef struct bench_options {
    const char *suite, *device, *kernel, *csv, *weights, *against, *model;
    args_list tests; /* of a model */
    char text[1024];
    uint64_t seed, rotation;
    uint64_t chain;     /* times that a suite is repeated in a graph; 0: no graph */
    double matrix_rate; /* TFLOP/s; 0: every floor is a copy or a read */
    bool json, ceilings, overhead, every, weights_const, rivals;
} bench_options;

typedef struct bench {
    const bench_options *o;
    ridge_device *device;
    record_sink sink;
    bool warm; /* the clocks are up */
} bench;

/* problem.c. Judges a result (got, as large as the image); false with the reason in text. */
typedef bool bench_verify(void *state, const image *im, const ridge_kernel *kernel, const unsigned char *got,
                          char *text, size_t size);
/* Verifies a case whose image is built (by `check`; NULL: against the C reference if that is quick), times it and
 * reports. False with the reason on stderr. */
bool bench_image(bench *b, const char *suite, const test_case *c, const image *im, bench_verify *check, void *state);
/* against.c: opens the library of another build on the same device; false with the reason on stderr. */
bool against_load(const char *path, const ridge_device *device);
extern const rival against;
/* weights.c: the tensors of o->weights. */
bool bench_weights(bench *b);
/* A 2-D tensor in memory. weight_load: false, with the reason on stderr, if memory is short or the file unreadable;
 * weight_free in any case. */
typedef struct weight {
    const ridge_entry *t;
    uint16_t *bf16;
    unsigned char *q8_0; /* NULL if K is not a multiple of 32 */
    int64_t rows, cols;
} weight;
bool is_weight(const ridge_entry *t);
bool weight_load(const ridge_file *file, const ridge_entry *t, weight *w);
void weight_free(weight *w);

/* weight_ops.c: an op that runs on a weight, and which weights it takes: any; a gate with its up; the output matrix. */
typedef enum weight_use { USE_WEIGHT, USE_GATE, USE_HEAD, USES } weight_use;
typedef struct weight_op weight_op;
const weight_op *weight_op_at(int index); /* NULL after the last */
weight_use weight_op_use(const weight_op *op);
/* The op's problem for this weight; false: the op does not take its shape. */
bool weight_op_case(const weight_op *op, const weight *w, test_case *c);
/* False: the whole result would have to be verified, and the C reference takes too long for that. */
bool weight_op_is_verifiable(const weight_op *op, const test_case *c);
/* Copies of the operands that the host holds while a result is verified; where tokens are verified, one is W in
 * double. */
int weight_op_images(const weight_op *op);
/* Builds the image with the weight as its operand; false: out of memory. image_free in any case. */
bool weight_op_build(const weight_op *op, const weight *w, const weight *up, uint64_t seed, const test_case *c,
                     image *im);
/* Compares a result of `kernel` with the C reference: all of it, or of a large one the first, middle and last rows of
 * the weight (or tokens). */
bool weight_op_verify(const weight_op *op, const weight *w, const image *im, const ridge_kernel *kernel,
                      const unsigned char *got, char *text, size_t size);
/* Writes the weight's Q8_0 planes into operands arg and arg + 1 of the image. */
bool weight_planes(const weight *w, const image *im, int arg);
/* Runs a call of operands in host memory. */
bool bench_on_cpu(const ridge_call *call);

/* chain.c: the suite o->suite as graphs of all its problems. */
bool bench_chain(bench *b);
/* token.c: the suite ds4flash-token. */
bool bench_token(bench *b);
/* Calls in the order of a graph, each with its own operands on the device. */
typedef struct chain {
    const ridge_device *device;
    image *link;
    unsigned char **memory;
    int links, capacity;
    double bytes, products; /* products: FLOP */
    unsigned char *read;    /* as many bytes as all operands, for the floor */
    void *workspace, *stream;
    size_t workspace_bytes;
} chain;
/* Uploads the image and owns it from then on, also if it fails; its host block is freed. */
bool chain_add(chain *c, image *im);
/* Times the chain, o->chain times in a graph, and one read of as many bytes; us receives median, 20th and 80th
 * percentile of one chain, *floor_us the median of the read. */
bool chain_time(bench *b, chain *c, const char *suite, int tokens, double us[3], double *floor_us);
void chain_drop(chain *c);
/* decode_layer.c: all matrices of o->weights as Q8_0, one q8_0_matmul each in a graph: the products of a token. */
bool bench_decode(bench *b);
bool bench_ceilings(bench *b);
bool bench_overhead(bench *b);
/* model.c: tokens per second of the model o->model. */
bool bench_model(bench *b);

/* tools/bench/cublaslt.c: TFLOP/s of an n x n x n product of random data, bf16 or e4m3 (per-tensor scales), through a
 * cuBLASLt opened at run time; false with the reason. */
bool cublaslt_rate(const ridge_device *device, bool fp8, int n, double *tflops, char *why, size_t size);

#endif
