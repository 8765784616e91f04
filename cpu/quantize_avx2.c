/* quantize_avx2.c: the SIMD spans of the quantisers for AVX2, FMA and F16C. Compiled with those flags; nothing
 * elsewhere. */
#if defined(__x86_64__)
#define QUANTIZE_VECTORS ridge_cpu_quantize_avx2
#include "quantize_simd.h"
#else
typedef int quantize_avx2_is_empty;
#endif
