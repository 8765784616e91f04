/* family.c: what ops/swiglu registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_swiglu_fwd, ridge_op_swiglu_bwd;
extern const ridge_kernel_list ridge_cuda_swiglu_fwd, ridge_cuda_swiglu_bwd, ridge_cpu_swiglu;

static const ridge_op_row *const ops[] = {&ridge_op_swiglu_fwd, &ridge_op_swiglu_bwd};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_swiglu_fwd, &ridge_cuda_swiglu_bwd,
#endif
    &ridge_cpu_swiglu, NULL};

const ridge_family ridge_family_swiglu = {"swiglu", sizeof ops / sizeof ops[0], ops, rows};
