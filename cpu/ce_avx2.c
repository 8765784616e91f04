/* ce_avx2.c: the vector code of cross entropy for AVX2, FMA and F16C. Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#include "ce_simd.h"

const ce_vectors ridge_cpu_ce_avx2 = {gemm, load, store, logits, stats, gradient, columns};
#else
typedef int ce_avx2_is_empty;
#endif
