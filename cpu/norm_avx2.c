/* norm_avx2.c: rms_norm and RoPE for AVX2. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define NORM_ROW ridge_cpu_norm_avx2
#include "norm_simd.h"
#else
typedef int norm_avx2_is_empty;
#endif
