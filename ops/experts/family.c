/* family.c: what ops/experts registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_moe_permute, ridge_op_moe_permute_quantize, ridge_op_moe_swiglu_quantize,
    ridge_op_moe_combine, ridge_op_moe_combine_bwd, ridge_op_moe_route_bwd, ridge_op_moe_swiglu_bwd_quantize;
extern const ridge_kernel_list ridge_cuda_experts_permute, ridge_cuda_experts_quantize, ridge_cuda_experts_combine,
    ridge_cuda_experts_route, ridge_cuda_experts_swiglu_bwd, ridge_cpu_experts_pairs, ridge_cpu_experts_quantize,
    ridge_cpu_experts_route;

static const ridge_op_row *const ops[] = {
    &ridge_op_moe_permute,     &ridge_op_moe_permute_quantize, &ridge_op_moe_swiglu_quantize,    &ridge_op_moe_combine,
    &ridge_op_moe_combine_bwd, &ridge_op_moe_route_bwd,        &ridge_op_moe_swiglu_bwd_quantize};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_experts_permute,    &ridge_cuda_experts_quantize,
    &ridge_cuda_experts_combine,    &ridge_cuda_experts_route,
    &ridge_cuda_experts_swiglu_bwd,
#endif
    &ridge_cpu_experts_pairs,       &ridge_cpu_experts_quantize,
    &ridge_cpu_experts_route,       NULL};

const ridge_family ridge_family_experts = {"experts", sizeof ops / sizeof ops[0], ops, rows};
