/* cpu.h: what the files of rms_norm and head_rms_norm_rope_tail on the CPU share. */
#ifndef RIDGE_CPU_NORM_H
#define RIDGE_CPU_NORM_H

#include <stdbool.h>
#include <stddef.h>

#include "src/internal.h"
#include "src/math/norm.h"

/* n elements to be normalised (w NULL: no factor) and then, the last n_rot of them, turned. */
typedef struct norm_args {
    int64_t n, n_rot;
    uint32_t x_dtype, w_dtype, out_dtype;
    const void *w;
    bool norm;
    float eps;
} norm_args;

/* The work of one instruction set: one row or head; c and s have n_rot/2 entries each. out may be x. */
typedef void norm_row(const norm_args *args, const void *x, const float *c, const float *s, void *out);

#if defined(__x86_64__)
norm_row ridge_cpu_norm_avx2, ridge_cpu_norm_avx512;
#endif

#endif
