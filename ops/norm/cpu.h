/* cpu.h: what the files of this folder share on the CPU. */
#ifndef RIDGE_CPU_NORM_H
#define RIDGE_CPU_NORM_H

#include "args.h"

/* The work of one instruction set: one row or head; c and s have n_rot/2 entries each. out may be x. */
typedef void norm_row(const norm_args *args, const void *x, const float *c, const float *s, void *out);

/* One row of add_rms_norm. */
typedef void add_norm_row(const add_norm_args *args, int64_t row);

/* The rows of one group of rms_norm_bwd: dx, and their part of dw into args->partial if dw is asked for. */
typedef void norm_bwd_group(const norm_bwd_args *args, int64_t group);

/* The heads of one token of rope; angles: room for n_rot floats. */
typedef void rope_token(const rope_args *args, int64_t token, float *angles);

#if defined(__x86_64__)
add_norm_row ridge_cpu_add_norm_avx2, ridge_cpu_add_norm_avx512;
norm_bwd_group ridge_cpu_norm_bwd_avx2, ridge_cpu_norm_bwd_avx512;
rope_token ridge_cpu_rope_avx2, ridge_cpu_rope_avx512;
norm_row ridge_cpu_norm_avx2, ridge_cpu_norm_avx512;
#endif

#endif
