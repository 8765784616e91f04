/* gemm_fp8_avx2.c: the tiles of gemm_fp8 for AVX2, FMA and F16C. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define GEMM_TILE ridge_cpu_gemm_fp8_avx2
#define GEMM_WIDE 0
#include "gemm_fp8_simd.h"
#else
typedef int gemm_fp8_avx2_is_empty;
#endif
