/* cpu_simd.h: the SIMD functions of the FP8 and Q8_0 quantisers, once an instruction set. Leaves out: threads (cpu.c,
 * ops/q8_0/cpu_blocks.c), which also fence the stores that bypass the cache.
 * Compiled for: avx2, avx512, avx512vbmi. */
#include "cpu_q8_0.h"
#include "cpu_rows.h"
#include "cpu_tile.h"

const quantize_vectors RIDGE_SIMD(ridge_cpu_quantize) = {amax_all, encode_all, row128, blocks128, tile, q8_0};
