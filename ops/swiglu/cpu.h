/* cpu.h: what cpu.c hands to its SIMD rows (cpu_simd.h, compiled once per instruction set), and what other families'
 * CPU code takes from here. */
#ifndef RIDGE_CPU_SWIGLU_H
#define RIDGE_CPU_SWIGLU_H

#include "args.h"

/* Computes columns begin..end-1 of one row. With drow: all columns, in one call. */
typedef void swiglu_columns(const swiglu_args *args, int64_t row, int64_t begin, int64_t end);

/* The C reference of a valid call with its strides resolved; swiglu_quantize is defined by it. */
void ridge_cpu_swiglu_reference(const ridge_call *call);
/* swiglu_args_of, and whether the call is plain. */
swiglu_args ridge_cpu_swiglu_args(const ridge_problem *problem, const ridge_call *call);

#if defined(__x86_64__)
swiglu_columns ridge_cpu_swiglu_avx2, ridge_cpu_swiglu_avx512;
#endif

#endif
