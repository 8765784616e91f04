/* family.c: what ops/quantize_fp8 registers with the core: two families, since the numbers of a family's ops follow
 * each other. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_quantize_fp8, ridge_op_quantize_fp8_dual, ridge_op_swiglu_quantize,
    ridge_op_transpose_fp8;
extern const ridge_kernel_list ridge_cuda_quantize_tile, ridge_cuda_quantize_whole, ridge_cpu_quantize,
    ridge_cuda_transpose_fp8, ridge_cpu_transpose_fp8;

static const ridge_op_row *const ops[] = {&ridge_op_quantize_fp8, &ridge_op_quantize_fp8_dual,
                                          &ridge_op_swiglu_quantize};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_quantize_tile, &ridge_cuda_quantize_whole,
#endif
    &ridge_cpu_quantize, NULL};

const ridge_family ridge_family_quantize_fp8 = {"quantize_fp8", sizeof ops / sizeof ops[0], ops, rows};

static const ridge_op_row *const transpose_ops[] = {&ridge_op_transpose_fp8};

static const ridge_kernel_list *const transpose_rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_transpose_fp8,
#endif
    &ridge_cpu_transpose_fp8, NULL};

const ridge_family ridge_family_transpose_fp8 = {"quantize_fp8", sizeof transpose_ops / sizeof transpose_ops[0],
                                                 transpose_ops, transpose_rows};
