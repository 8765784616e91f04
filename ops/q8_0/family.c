/* family.c: what ops/q8_0 registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_q8_0_quantize, ridge_op_q8_0_repack, ridge_op_q8_0_unpack,
    ridge_op_q8_0_quantize_rows, ridge_op_q8_0_matmul, ridge_op_q8_0_pair, ridge_op_q8_0_gate_up_swiglu,
    ridge_op_q8_0_matmul_hc_expand;
extern const ridge_kernel_list ridge_cuda_q8_0_blocks, ridge_cuda_q8_0_one, ridge_cuda_q8_0_mma, ridge_cuda_q8_0_tma,
    ridge_cuda_q8_0_gemm, ridge_cuda_q8_0_wgmma, ridge_cuda_q8_0_quantize_rows, ridge_cuda_q8_0_dp4a, ridge_cpu_q8_0,
    ridge_cpu_q8_0_matmul;

static const ridge_op_row *const ops[] = {
    &ridge_op_q8_0_quantize, &ridge_op_q8_0_repack, &ridge_op_q8_0_unpack,         &ridge_op_q8_0_quantize_rows,
    &ridge_op_q8_0_matmul,   &ridge_op_q8_0_pair,   &ridge_op_q8_0_gate_up_swiglu, &ridge_op_q8_0_matmul_hc_expand};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_q8_0_blocks,
    &ridge_cuda_q8_0_one,
    &ridge_cuda_q8_0_mma,
    &ridge_cuda_q8_0_tma,
    &ridge_cuda_q8_0_wgmma,
    &ridge_cuda_q8_0_gemm,
    &ridge_cuda_q8_0_quantize_rows,
    &ridge_cuda_q8_0_dp4a,
#endif
    &ridge_cpu_q8_0,
    &ridge_cpu_q8_0_matmul,
    NULL};

const ridge_family ridge_family_q8_0 = {"q8_0", sizeof ops / sizeof ops[0], ops, rows};
