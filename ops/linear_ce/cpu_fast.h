/* cpu_fast.h: the fast rows of cross entropy: what the driver (cpu_fast.c) asks of an instruction set (cpu_simd.h). */
#ifndef RIDGE_CPU_CE_FAST_H
#define RIDGE_CPU_CE_FAST_H

#include "cpu.h"

/* A factor of a product. Its memory is lines of contiguous elements: along k, one line for each row of the result
 * (column, for the second factor); else along the rows (columns), one line for each k. */
typedef struct ce_matrix {
    const void *data;
    int64_t stride;        /* elements from line to line */
    const int64_t *gather; /* line i lies where line gather[i] would; NULL = i */
    uint32_t dtype;
    bool along_k;
} ce_matrix;

/* An f32 matrix in two planes of 16 bits: the upper halves of its bits, and the lower ones. */
typedef struct ce_planes {
    uint16_t *high, *low;
    int64_t high_ld, low_ld;
} ce_planes;

/* d [m, n] = (or +=, with add) a [m, k] b [k, n] in f32. Terms are summed in ascending k in groups of CE_KC, whatever
 * the number of threads. */
typedef struct ce_gemm {
    int64_t m, n, k;
    ce_matrix a, b;
    float *d;
    int64_t ld;
    bool add;
    float *pack_a, *pack_b; /* CE_PACK_A, CE_PACK_B floats */
    ce_planes planes;       /* where d is NULL */
} ce_gemm;

enum {
    CE_KC = 256,     /* both packed panels of a tile stay in the first and second cache */
    CE_MB = 1024,    /* rows and columns packed at a time */
    CE_NB = 2016,    /* a multiple of 48 and of 24 */
    CE_BLOCK = 4032, /* classes of a block of logits: two packings */
    CE_PACK_A = (CE_MB + 64) * CE_KC,
    CE_PACK_B = (CE_NB + 64) * CE_KC
};

/* A row of logits: classes [first, first + count) of this call's slice. */
typedef struct ce_span {
    const ce_args *a;
    float *z;
    int64_t first, count;
    int64_t target; /* in the whole vocabulary; below 0: none */
} ce_span;

/* The gradient's factors of a row in f32: dz = e^(z - shift) * (scale + bend * (z - shift)) - smooth * w_c; at the
 * target (p - 1) * all + excess takes the place of p * all. bend is 0 unless shift is lse. */
typedef struct ce_row {
    int64_t target;
    double shift, inverse_sum, all, excess; /* p = e^(z - shift) * inverse_sum; excess = all - label */
    float scale, smooth, bend;
} ce_row;

typedef struct ce_vectors {
    /* By all threads of a parallel region; it ends with a barrier. */
    void (*gemm)(const ce_gemm *g);
    void (*load)(const void *from, uint32_t dtype, int64_t count, float *to);
    void (*store)(void *to, uint32_t dtype, int64_t count, const float *from);
    /* u to z in place: bias, softcap, temperature. */
    void (*logits)(const ce_span *s);
    void (*stats)(const ce_span *s, bool spread, bool sums, ce_stat *into);
    /* z to du in place. */
    void (*gradient)(const ce_span *s, const ce_row *row);
    /* sum[c] += rows of z, one after another, for c < count. */
    void (*columns)(const float *z, int64_t ld, int64_t rows, int64_t count, float *sum);
} ce_vectors;

extern const ce_vectors ridge_cpu_ce_avx2, ridge_cpu_ce_avx512;

ridge_status ridge_cpu_ce_fast(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                               void *workspace, size_t bytes, void *stream);
size_t ridge_cpu_ce_fast_workspace(const ridge_device *device, const ridge_kernel *kernel,
                                   const ridge_problem *problem);

#endif
