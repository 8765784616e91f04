/* bench.h: what cmd.c and ceilings.c share. */
#ifndef RIDGE_BENCH_H
#define RIDGE_BENCH_H

#include "record.h"
#include "ridge_io.h"
#include "timing.h"

typedef struct bench_options {
    const char *suite, *device, *kernel, *csv, *weights;
    char text[1024];
    uint64_t seed, rotation;
    uint64_t chain;     /* times that a suite is repeated in a graph; 0: no graph */
    double matrix_rate; /* TFLOP/s; 0 = floors are copies alone */
    bool json, ceilings, overhead, every, weights_const, rivals, all_kernels;
} bench_options;

typedef struct bench {
    const bench_options *o;
    ridge_device *device;
    FILE *csv;
    struct json_t *json;
    char run[40];
    bool warm;
} bench;

/* Adds a record to the CSV file and the JSON array, where there are any. */
void bench_emit(bench *b, const record *r);
/* Looks at a result (got, as large as the image); says what is wrong in text and returns false. */
typedef bool bench_verify(void *state, const image *im, const ridge_kernel *kernel, const unsigned char *got,
                          char *text, size_t size);
/* Verifies (by check; NULL: the whole of it, if that is quick), times and reports a case whose image is built. False
 * with the reason on stderr. */
bool bench_image(bench *b, const char *suite, const test_case *c, const image *im, bench_verify *check, void *state);
/* weights.c: the tensors of o->weights. */
bool bench_weights(bench *b);
/* A 2-D tensor in memory. False: out of memory or not readable, said on stderr; weight_free in any case. */
typedef struct weight {
    const ridge_entry *t;
    uint16_t *bf16;
    unsigned char *q8_0; /* NULL if K is not a multiple of 32 */
    int64_t rows, cols;
} weight;
bool is_weight(const ridge_entry *t);
bool weight_load(const ridge_file *file, const ridge_entry *t, weight *w);
void weight_free(weight *w);

/* weight_ops.c: an op that runs on a weight. What it needs: any weight; a gate and its up; the output matrix. */
typedef enum weight_use { USE_WEIGHT, USE_GATE, USE_HEAD, USES } weight_use;
typedef struct weight_op weight_op;
const weight_op *weight_op_at(int index); /* NULL after the last */
weight_use weight_op_use(const weight_op *op);
/* The op's problem for this weight; false: it can not have it. */
bool weight_op_case(const weight_op *op, const weight *w, test_case *c);
/* False: the whole of the result is to be verified, and the C reference takes too long for it. */
bool weight_op_is_verifiable(const weight_op *op, const test_case *c);
/* Copies of the operands that the host holds while a result is verified, W in double among them where tokens are
 * verified. */
int weight_op_images(const weight_op *op);
/* With the weight in its place; false: out of memory. image_free in any case. */
bool weight_op_build(const weight_op *op, const weight *w, const weight *up, uint64_t seed, const test_case *c,
                     image *im);
/* A result of `kernel` against the C reference: the whole of it, or of a large one the first, the middle and the last
 * rows of the weight (or tokens). */
bool weight_op_verify(const weight_op *op, const weight *w, const image *im, const ridge_kernel *kernel,
                      const unsigned char *got, char *text, size_t size);
/* Q8_0 planes of the weight in operands arg and arg + 1 of the image. */
bool weight_planes(const weight *w, const image *im, int arg);
/* Runs a call of operands in host memory. */
bool bench_on_cpu(const ridge_call *call);

/* chain.c: the suite o->suite as graphs of all its problems. */
bool bench_chain(bench *b);
/* Calls in the order of a graph, each with operands of its own on the device. */
typedef struct chain {
    const ridge_device *device;
    image *link;
    unsigned char **memory;
    int links, room;
    double bytes, products; /* products: FLOP */
    unsigned char *read;    /* as many bytes, for the floor */
    void *workspace, *stream;
    size_t workspace_bytes;
} chain;
/* Uploads the image and owns it from then on, in any case; its host block is freed. */
bool chain_add(chain *c, image *im);
/* Times the chain, o->layers times in a graph, and one read of as many bytes; us receives median, 20th and 80th
 * percentile of one chain, *floor_us the read's. */
bool chain_time(bench *b, chain *c, const char *suite, int tokens, double us[3], double *floor_us);
void chain_drop(chain *c);
/* decode_layer.c: all matrices of o->weights as Q8_0, one q8_0_matmul each in a graph: what a token's products cost. */
bool bench_decode(bench *b);
bool bench_ceilings(bench *b);
bool bench_overhead(bench *b);

/* tools/bench/cublaslt.c: TFLOP/s of an n x n x n product of random data, bf16 or e4m3 (per-tensor scales), through a
 * cuBLASLt opened at run time; false with the reason. */
bool cublaslt_rate(const ridge_device *device, bool fp8, int n, double *tflops, char *why, size_t size);

#endif
