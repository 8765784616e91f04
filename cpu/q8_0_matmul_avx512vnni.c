/* q8_0_matmul_avx512vnni.c: Q8_0 decode for AVX-512 with VNNI: two rows at a time, best for many tokens. Compiled with
 * those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define Q8_0_VECTORS ridge_cpu_q8_0_avx512vnni
#define Q8_0_HIGH 2
#include "q8_0_matmul_simd.h"
#else
typedef int q8_0_matmul_avx512vnni_is_empty;
#endif
