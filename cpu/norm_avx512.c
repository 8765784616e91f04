/* norm_avx512.c: rms_norm and RoPE for AVX512. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define NORM_ROW ridge_cpu_norm_avx512
#include "norm_simd.h"
#else
typedef int norm_avx512_is_empty;
#endif
