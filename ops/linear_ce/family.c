/* family.c: what ops/linear_ce registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_linear_ce_eval, ridge_op_linear_ce_train, ridge_op_linear_ce_backward,
    ridge_op_ce_fwd, ridge_op_ce_bwd, ridge_op_ce_combine;
extern const ridge_kernel_list ridge_cuda_ce_sm90, ridge_cuda_ce_mma16, ridge_cuda_ce_linear, ridge_cuda_ce_rows,
    ridge_cpu_ce;

static const ridge_op_row *const ops[] = {
    &ridge_op_linear_ce_eval, &ridge_op_linear_ce_train, &ridge_op_linear_ce_backward,
    &ridge_op_ce_fwd,         &ridge_op_ce_bwd,          &ridge_op_ce_combine};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_ce_sm90,   &ridge_cuda_ce_mma16,
    &ridge_cuda_ce_linear, &ridge_cuda_ce_rows,
#endif
    &ridge_cpu_ce,         NULL};

const ridge_family ridge_family_linear_ce = {"linear_ce", sizeof ops / sizeof ops[0], ops, rows};
