/* family.c: what ops/gemm_fp8 registers with the core: two families, since the numbers of a family's ops follow each
 * other. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_gemm_fp8, ridge_op_gemm_fp8_grouped;
extern const ridge_kernel_list ridge_cuda_gemm_sm90, ridge_cuda_gemm_decode_sm90, ridge_cuda_gemm_mma,
    ridge_cuda_gemm_fp8_grouped, ridge_cuda_gemm_fp8_grouped_mma, ridge_cpu_gemm_fp8, ridge_cpu_gemm_fp8_grouped;

static const ridge_op_row *const ops[] = {&ridge_op_gemm_fp8};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_gemm_sm90, &ridge_cuda_gemm_decode_sm90, &ridge_cuda_gemm_mma,
#endif
    &ridge_cpu_gemm_fp8, NULL};

const ridge_family ridge_family_gemm_fp8 = {"gemm_fp8", sizeof ops / sizeof ops[0], ops, rows};

static const ridge_op_row *const grouped_ops[] = {&ridge_op_gemm_fp8_grouped};

static const ridge_kernel_list *const grouped_rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_gemm_fp8_grouped, &ridge_cuda_gemm_fp8_grouped_mma,
#endif
    &ridge_cpu_gemm_fp8_grouped, NULL};

const ridge_family ridge_family_gemm_fp8_grouped = {"gemm_fp8", sizeof grouped_ops / sizeof grouped_ops[0], grouped_ops,
                                                    grouped_rows};
