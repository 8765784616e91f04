/* swiglu_avx512.c: the SIMD rows of SwiGLU for AVX-512 F, BW, DQ, VL. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define SWIGLU_SPAN ridge_cpu_swiglu_avx512
#include "swiglu_simd.h"
#else
typedef int swiglu_avx512_is_empty;
#endif
