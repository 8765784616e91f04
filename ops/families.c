/* families.c: every family of ops, in the order of enum ridge_op. */
#include "src/internal.h"

extern const ridge_family ridge_family_swiglu, ridge_family_quantize_fp8, ridge_family_gemm_fp8, ridge_family_q8_0,
    ridge_family_norm, ridge_family_linear_ce, ridge_family_multiply;

const ridge_family *const ridge_families[] = {
    &ridge_family_swiglu,       //
    &ridge_family_quantize_fp8, //
    &ridge_family_gemm_fp8,     //
    &ridge_family_q8_0,         //
    &ridge_family_norm,         //
    &ridge_family_linear_ce,    //
    &ridge_family_multiply,     //
    NULL,
};
