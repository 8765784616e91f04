/* swiglu_avx2.c: the SIMD rows of SwiGLU for AVX2, FMA and F16C. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define SWIGLU_SPAN ridge_cpu_swiglu_avx2
#include "swiglu_simd.h"
#else
typedef int swiglu_avx2_is_empty;
#endif
