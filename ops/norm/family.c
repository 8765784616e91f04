/* family.c: what ops/norm registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_rms_norm, ridge_op_head_rms_norm_rope_tail, ridge_op_add_rms_norm;
extern const ridge_op_row ridge_op_rms_norm_bwd, ridge_op_rope;
extern const ridge_kernel_list ridge_cuda_norm, ridge_cuda_add_rms_norm, ridge_cuda_add_rms_norm_few,
    ridge_cuda_rms_norm_bwd, ridge_cuda_rope;
extern const ridge_kernel_list ridge_cpu_norm, ridge_cpu_norm_train;

static const ridge_op_row *const ops[] = {&ridge_op_rms_norm, &ridge_op_head_rms_norm_rope_tail, &ridge_op_add_rms_norm,
                                          &ridge_op_rms_norm_bwd, &ridge_op_rope};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_norm,         &ridge_cuda_add_rms_norm, &ridge_cuda_add_rms_norm_few,
    &ridge_cuda_rms_norm_bwd, &ridge_cuda_rope,
#endif
    &ridge_cpu_norm,          &ridge_cpu_norm_train,    NULL};

const ridge_family ridge_family_norm = {"norm", sizeof ops / sizeof ops[0], ops, rows};
