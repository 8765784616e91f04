/* q8_0_matmul_avxvnni.c: Q8_0 decode for AVX2 with AVX-VNNI. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define Q8_0_VECTORS ridge_cpu_q8_0_avxvnni
#define Q8_0_HIGH 1
#include "q8_0_matmul_simd.h"
#else
typedef int q8_0_matmul_avxvnni_is_empty;
#endif
