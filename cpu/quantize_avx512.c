/* quantize_avx512.c: the SIMD spans of the quantisers for AVX-512 (F, BW, DQ, VL). Compiled with those flags; nothing
 * elsewhere. */
#if defined(__x86_64__)
#define QUANTIZE_VECTORS ridge_cpu_quantize_avx512
#include "quantize_simd.h"
#else
typedef int quantize_avx512_is_empty;
#endif
