/* cpu.h: what the files of rms_norm and head_rms_norm_rope_tail on the CPU share. */
#ifndef RIDGE_CPU_NORM_H
#define RIDGE_CPU_NORM_H

#include "args.h"

/* The work of one instruction set: one row or head; c and s have n_rot/2 entries each. out may be x. */
typedef void norm_row(const norm_args *args, const void *x, const float *c, const float *s, void *out);

#if defined(__x86_64__)
norm_row ridge_cpu_norm_avx2, ridge_cpu_norm_avx512;
#endif

#endif
