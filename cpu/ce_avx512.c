/* ce_avx512.c: the vector code of cross entropy for AVX-512. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#include "ce_simd.h"

const ce_vectors ridge_cpu_ce_avx512 = {gemm, load, store, logits, stats, gradient, columns};
#else
typedef int ce_avx512_is_empty;
#endif
