/* cpu.h: what cpu.c hands to its SIMD rows (cpu_simd.h, compiled once per instruction set). */
#ifndef RIDGE_CPU_SWIGLU_H
#define RIDGE_CPU_SWIGLU_H

#include <stdbool.h>

#include "src/internal.h"
#include "src/math/swiglu.h"

/* One matrix operand: row stride in bytes. NULL when absent. */
typedef struct swiglu_matrix {
    char *data;
    int64_t stride;
} swiglu_matrix;

/* A validated call. Forward leaves dout and second out, backward has out = dgate and second = dup. */
typedef struct swiglu_args {
    int64_t rows, cols;
    swiglu_matrix gate, up, dout, out, second;
    const float *row_scale;
    float *drow;
    ridge_swiglu_options o; /* resolved */
    uint32_t flags;
    uint32_t dtype;
    int size; /* bytes of an element */
    bool backward;
    bool plain;  /* default options, no row factor, no extra rounding, no drow */
    bool stream; /* outputs bypass the cache */
} swiglu_args;

/* Computes columns begin..end-1 of one row. With drow: all columns, in one call. */
typedef void swiglu_span(const swiglu_args *args, int64_t row, int64_t begin, int64_t end);

/* The C reference of a valid call; swiglu_quantize is defined by it. */
void ridge_cpu_swiglu_reference(const ridge_call *call);
/* The arguments of a swiglu_fwd call. */
swiglu_args ridge_cpu_swiglu_collect(const ridge_device *device, const ridge_problem *problem, const ridge_call *call);

#if defined(__x86_64__)
swiglu_span ridge_cpu_swiglu_avx2, ridge_cpu_swiglu_avx512;
#endif

#endif
