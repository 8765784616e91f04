/* kernels.cuh: the kernels of a format, which its file instantiates. */
#ifndef RIDGE_BLOCKS_KERNELS_CUH
#define RIDGE_BLOCKS_KERNELS_CUH

#include "experts.cuh"
#include "few.cuh"
#include "gemm_mma.cuh"
#include "gemm_sm90.cuh"

#define BLOCK_KERNELS_OF(F, BULK)                                                                                      \
    {                                                                                                                  \
        (const void *)block_mma<F, 1, BULK>, (const void *)block_mma<F, 8, BULK>, (const void *)block_mma<F, 16, BULK> \
    }
#define BLOCK_SIDES_OF(F, BULK)                                                 \
    {                                                                           \
        BLOCK_SIDE(F, 1, BULK), BLOCK_SIDE(F, 8, BULK), BLOCK_SIDE(F, 16, BULK) \
    }
#define BLOCK_EXPERTS_OF(F, COLUMNS, PAIRS)                                                                  \
    {                                                                                                        \
        (const void *)block_experts<F, COLUMNS, 0, PAIRS>, (const void *)block_experts<F, COLUMNS, 1, PAIRS> \
    }
/* Defines block_kernels_NAME, from struct block_NAME. */
#define BLOCK_KERNELS(name)                                                                                            \
    extern const block_kernels ridge_block_kernels_##name = {                                                          \
        {BLOCK_KERNELS_OF(block_##name, 0), BLOCK_KERNELS_OF(block_##name, 1)},                                        \
        {(const void *)block_records<block_##name, 1>, (const void *)block_records<block_##name, 8>,                   \
         (const void *)block_records<block_##name, 16>},                                                               \
        block_##name::UNIT,                                                                                            \
        block_##name::TABLES,                                                                                          \
        {block_##name::DEPTH, block_##name::BULK_DEPTH},                                                               \
        {BLOCK_SIDES_OF(block_##name, 0), BLOCK_SIDES_OF(block_##name, 1)},                                            \
        {BLOCK_RECORD_1(block_##name::X), BLOCK_RECORD_8(block_##name::X), 2 * BLOCK_RECORD_8(block_##name::X)},       \
        {BLOCK_TEAMS_OF(block_##name, 0), BLOCK_TEAMS_OF(block_##name, 1)},                                            \
        {BLOCK_EXPERTS_OF(block_##name, 1, RIDGE_MOE_MAX_SLOTS), BLOCK_EXPERTS_OF(block_##name, 1, MOE_PAIRS),         \
         BLOCK_EXPERTS_OF(block_##name, MOE_COLUMNS, MOE_PAIRS)},                                                      \
        (const void *)block_prompt<block_##name>,                                                                      \
        {(const void *)block_gemm_wgmma<block_##name, GEMM_TILE_128(block_##name)>,                                    \
         (const void *)block_gemm_wgmma<block_##name, GEMM_TILE_64(block_##name)>,                                     \
         (const void *)block_gemm_wgmma<block_##name, GEMM_TILE_32(block_##name)>},                                    \
        block_prompt_tile<block_##name>::SHARED,                                                                       \
        {GEMM_TILE_128(block_##name)::SHARED, GEMM_TILE_64(block_##name)::SHARED, GEMM_TILE_32(block_##name)::SHARED}, \
        block_##name::X,                                                                                               \
        block_##name::PAIRS,                                                                                           \
        block_##name::MIXED};

#endif
