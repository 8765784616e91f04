/* quantize_avx512vbmi.c: the SIMD spans of the quantisers for AVX-512 with VBMI: codes of bf16 come from tables.
 * Compiled with those flags; nothing elsewhere. */
#if defined(__x86_64__)
#define QUANTIZE_VECTORS ridge_cpu_quantize_avx512vbmi
#include "quantize_simd.h"
#else
typedef int quantize_avx512vbmi_is_empty;
#endif
