/* q8_0_matmul_vnni256.c: Q8_0 decode for AVX-512 with VNNI in vectors of 256 bits: one row at a time,
 * best for one or two tokens. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define Q8_0_VECTORS ridge_cpu_q8_0_vnni256
#define Q8_0_HIGH 1
#include "q8_0_matmul_simd.h"
#else
typedef int q8_0_matmul_vnni256_is_empty;
#endif
