/* gemm_fp8_avx512.c: the tiles of gemm_fp8 for AVX-512. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define GEMM_TILE ridge_cpu_gemm_fp8_avx512
#define GEMM_WIDE 1
#include "gemm_fp8_simd.h"
#else
typedef int gemm_fp8_avx512_is_empty;
#endif
