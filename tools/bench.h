/* bench.h: what cmd_bench.c and ceilings.c share. */
#ifndef RIDGE_BENCH_H
#define RIDGE_BENCH_H

#include "record.h"
#include "timing.h"

typedef struct bench_options {
    const char *suite, *device, *kernel, *csv;
    char text[1024];
    uint64_t seed;
    double matrix_rate; /* TFLOP/s; 0 = floors are copies alone */
    bool json, ceilings, overhead;
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
bool bench_ceilings(bench *b);
bool bench_overhead(bench *b);

/* tools/rivals/cublaslt.c: TFLOP/s of an n x n x n product of random data, bf16 or e4m3 (per-tensor scales), through a
 * cuBLASLt opened at run time; false with the reason. */
bool cublaslt_rate(const ridge_device *device, bool fp8, int n, double *tflops, char *why, size_t size);

#endif
