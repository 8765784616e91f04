/* family.c: what ops/norm registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_rms_norm, ridge_op_head_rms_norm_rope_tail;
extern const ridge_kernel_list ridge_cuda_norm, ridge_cpu_norm;

static const ridge_op_row *const ops[] = {&ridge_op_rms_norm, &ridge_op_head_rms_norm_rope_tail};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_norm,
#endif
    &ridge_cpu_norm, NULL};

const ridge_family ridge_family_norm = {"norm", sizeof ops / sizeof ops[0], ops, rows};
