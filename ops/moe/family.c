/* family.c: what ops/moe registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_moe_route, ridge_op_moe_gate_up_swiglu, ridge_op_moe_down;
extern const ridge_kernel_list ridge_cuda_moe_route, ridge_cuda_moe_mma, ridge_cuda_moe_any, ridge_cuda_moe_blocks,
    ridge_cuda_moe_row, ridge_cuda_moe_dense, ridge_cuda_moe_floats, ridge_cuda_moe_pairs, ridge_cuda_moe_dp4a,
    ridge_cuda_moe_fp8, ridge_cpu_moe_route, ridge_cpu_moe_rows, ridge_cpu_moe_products;

static const ridge_op_row *const ops[] = {&ridge_op_moe_route, &ridge_op_moe_gate_up_swiglu, &ridge_op_moe_down};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_moe_route,   &ridge_cuda_moe_mma,
    &ridge_cuda_moe_any,     &ridge_cuda_moe_blocks,
    &ridge_cuda_moe_row,     &ridge_cuda_moe_dense,
    &ridge_cuda_moe_floats,  &ridge_cuda_moe_pairs,
    &ridge_cuda_moe_dp4a,    &ridge_cuda_moe_fp8,
#endif
    &ridge_cpu_moe_route,
#if defined(__x86_64__)
    &ridge_cpu_moe_rows,
#endif
    &ridge_cpu_moe_products, NULL};

const ridge_family ridge_family_moe = {"moe", sizeof ops / sizeof ops[0], ops, rows};
