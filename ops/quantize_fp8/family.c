/* family.c: what ops/quantize_fp8 registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_quantize_fp8, ridge_op_quantize_fp8_dual, ridge_op_swiglu_quantize;
extern const ridge_kernel_list ridge_cuda_quantize_tile, ridge_cuda_quantize_whole, ridge_cpu_quantize;

static const ridge_op_row *const ops[] = {&ridge_op_quantize_fp8, &ridge_op_quantize_fp8_dual,
                                          &ridge_op_swiglu_quantize};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_quantize_tile, &ridge_cuda_quantize_whole,
#endif
    &ridge_cpu_quantize, NULL};

const ridge_family ridge_family_quantize_fp8 = {"quantize_fp8", sizeof ops / sizeof ops[0], ops, rows};
