/* family.c: what ops/blocks registers with the core. */
#include "src/internal.h"

extern const ridge_op_row ridge_op_block_repack, ridge_op_block_unpack, ridge_op_block_matmul, ridge_op_block_pair,
    ridge_op_block_gate_up_swiglu;
extern const ridge_kernel_list ridge_cuda_blocks_tiles, ridge_cuda_blocks, ridge_cuda_blocks_gemm,
    ridge_cuda_blocks_prompt, ridge_cpu_blocks_tiles, ridge_cpu_blocks;

static const ridge_op_row *const ops[] = {&ridge_op_block_repack, &ridge_op_block_unpack, &ridge_op_block_matmul,
                                          &ridge_op_block_pair, &ridge_op_block_gate_up_swiglu};

static const ridge_kernel_list *const rows[] = {
#if RIDGE_HAVE_CUDA
    &ridge_cuda_blocks_tiles,  &ridge_cuda_blocks, &ridge_cuda_blocks_gemm,
    &ridge_cuda_blocks_prompt,
#endif
    &ridge_cpu_blocks_tiles,   &ridge_cpu_blocks,  NULL};

const ridge_family ridge_family_blocks = {"blocks", sizeof ops / sizeof ops[0], ops, rows};
