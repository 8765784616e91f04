/* families.h: every family of ops, in the order of enum ridge_op: its folder in ops/, which the core knows as
 * ridge_family_NAME, and the one in check/, which the driver knows as check_NAME. gemm_fp8_grouped lies in those of
 * gemm_fp8, transpose_fp8 in those of quantize_fp8. */
#ifndef RIDGE_FAMILIES_H
#define RIDGE_FAMILIES_H

#define RIDGE_FAMILIES(FAMILY) \
    FAMILY(swiglu)             \
    FAMILY(quantize_fp8)       \
    FAMILY(gemm_fp8)           \
    FAMILY(q8_0)               \
    FAMILY(norm)               \
    FAMILY(linear_ce)          \
    FAMILY(multiply)           \
    FAMILY(sum)                \
    FAMILY(attention)          \
    FAMILY(generate)           \
    FAMILY(blocks)             \
    FAMILY(moe)                \
    FAMILY(gemm_fp8_grouped)   \
    FAMILY(experts)            \
    FAMILY(hc)                 \
    FAMILY(transpose_fp8)      \
    FAMILY(divergence)

#endif
