/* cublaslt.h: the prototypes and constants of cuBLASLt 12 and 13 that are used here, after NVIDIA's public
 * documentation; no CUDA header is needed. Opened at run time. */
#ifndef RIDGE_CUBLASLT_H
#define RIDGE_CUBLASLT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REAL_32F = 0,
    REAL_16F = 2,
    REAL_16BF = 14,
    REAL_8F_E4M3 = 28,
    REAL_8F_E5M2 = 29,
    COMPUTE_32F = 68,
    OPERATION_T = 1,
    DESC_TRANSA = 3,
    DESC_A_SCALE = 17,
    DESC_B_SCALE = 18,
    DESC_FAST_ACCUM = 25,
    DESC_A_SCALE_MODE = 31,
    DESC_B_SCALE_MODE = 32,
    PREFERENCE_WORKSPACE = 1
};

typedef struct heuristic {
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} heuristic;

typedef struct lt_api {
    int (*create)(void **);
    int (*destroy)(void *);
    int (*desc_create)(void **, int, int);
    int (*desc_destroy)(void *);
    int (*desc_set)(void *, int, const void *, size_t);
    int (*layout_create)(void **, int, uint64_t, uint64_t, int64_t);
    int (*layout_destroy)(void *);
    int (*preference_create)(void **);
    int (*preference_destroy)(void *);
    int (*preference_set)(void *, int, const void *, size_t);
    int (*choose)(void *, void *, void *, void *, void *, void *, void *, int, heuristic *, int *);
    int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                  void *, void *, void *, const uint64_t *, void *, size_t, void *);
} lt_api;

/* Fills the table, or says why not. */
bool cublaslt_load(lt_api *lt, char *why, size_t size);

#endif
