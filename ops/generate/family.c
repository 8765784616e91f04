/* family.c: what ops/generate registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_embed, ridge_op_sample;
extern const ridge_kernel_list ridge_cuda_generate, ridge_cpu_generate;

static const ridge_op_row *const ops[] = {&ridge_op_embed, &ridge_op_sample};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_generate,
#endif
    &ridge_cpu_generate, NULL};

const ridge_family ridge_family_generate = {"generate", sizeof ops / sizeof ops[0], ops, rows};
