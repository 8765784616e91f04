/* family.c: what ops/hc registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_hc_mix, ridge_op_hc_split;
extern const ridge_kernel_list ridge_cuda_hc, ridge_cuda_hc_cluster, ridge_cpu_hc;

static const ridge_op_row *const ops[] = {&ridge_op_hc_mix, &ridge_op_hc_split};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_hc_cluster, &ridge_cuda_hc,
#endif
    &ridge_cpu_hc, NULL};

const ridge_family ridge_family_hc = {"hc", sizeof ops / sizeof ops[0], ops, rows};
