/* family.c: what ops/divergence registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_divergence;
extern const ridge_kernel_list ridge_cuda_divergence, ridge_cuda_divergence_cluster, ridge_cpu_divergence;

static const ridge_op_row *const ops[] = {&ridge_op_divergence};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_divergence, &ridge_cuda_divergence_cluster,
#endif
    &ridge_cpu_divergence, NULL};

const ridge_family ridge_family_divergence = {"divergence", sizeof ops / sizeof ops[0], ops, rows};
