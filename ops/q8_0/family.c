/* family.c: what ops/q8_0 registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_q8_0_quantize, ridge_op_q8_0_repack, ridge_op_q8_0_unpack,
    ridge_op_q8_0_quantize_rows, ridge_op_q8_0_matmul, ridge_op_q8_0_pair, ridge_op_q8_0_gate_up_swiglu,
    ridge_op_q8_0_matmul_hc_expand;
extern const ridge_kernel_list ridge_cuda_q8_0, ridge_cuda_q8_0_direct, ridge_cuda_q8_0_stream, ridge_cuda_q8_0_decode,
    ridge_cpu_q8_0, ridge_cpu_q8_0_matmul;

static const ridge_op_row *const ops[] = {
    &ridge_op_q8_0_quantize, &ridge_op_q8_0_repack, &ridge_op_q8_0_unpack,         &ridge_op_q8_0_quantize_rows,
    &ridge_op_q8_0_matmul,   &ridge_op_q8_0_pair,   &ridge_op_q8_0_gate_up_swiglu, &ridge_op_q8_0_matmul_hc_expand};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_q8_0,        &ridge_cuda_q8_0_direct, &ridge_cuda_q8_0_stream,
    &ridge_cuda_q8_0_decode,
#endif
    &ridge_cpu_q8_0,         &ridge_cpu_q8_0_matmul,  NULL};

const ridge_family ridge_family_q8_0 = {"q8_0", sizeof ops / sizeof ops[0], ops, rows};
