/* family.c: what ops/sum registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_sum;
extern const ridge_kernel_list ridge_cuda_sum, ridge_cpu_sum;

static const ridge_op_row *const ops[] = {&ridge_op_sum};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_sum,
#endif
    &ridge_cpu_sum, NULL};

const ridge_family ridge_family_sum = {"sum", sizeof ops / sizeof ops[0], ops, rows};
