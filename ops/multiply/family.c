/* family.c: what ops/multiply registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_multiply;
extern const ridge_kernel_list ridge_cuda_multiply, ridge_cpu_multiply;

static const ridge_op_row *const ops[] = {&ridge_op_multiply};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_multiply,
#endif
    &ridge_cpu_multiply, NULL};

const ridge_family ridge_family_multiply = {"multiply", sizeof ops / sizeof ops[0], ops, rows};
