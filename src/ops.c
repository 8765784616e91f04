/* ops.c: the op table (its rows are in ops_*.c, one file per family), and the dtype names. What each op computes is in
 * docs/numerics.md; how, in cpu/ and cuda/. */
#include <string.h>

#include "internal.h"

static const struct {
    const char *name;
    size_t size;
} dtype_table[RIDGE_DTYPES] = {
    [RIDGE_NONE] = {"none", 0}, [RIDGE_F32] = {"f32", 4},   [RIDGE_F16] = {"f16", 2}, [RIDGE_BF16] = {"bf16", 2},
    [RIDGE_E4M3] = {"e4m3", 1}, [RIDGE_E5M2] = {"e5m2", 1}, [RIDGE_F64] = {"f64", 8}, [RIDGE_I8] = {"i8", 1},
    [RIDGE_U8] = {"u8", 1},     [RIDGE_I32] = {"i32", 4},   [RIDGE_I64] = {"i64", 8},
};

const char *ridge_dtype_name(uint32_t dtype)
{
    return dtype < RIDGE_DTYPES ? dtype_table[dtype].name : "unknown";
}

size_t ridge_dtype_size(uint32_t dtype)
{
    return dtype < RIDGE_DTYPES ? dtype_table[dtype].size : 0;
}

uint32_t ridge_dtype_find(const char *name, size_t length)
{
    uint32_t dtype = RIDGE_F32;

    while (dtype < RIDGE_DTYPES &&
           (strlen(dtype_table[dtype].name) != length || memcmp(dtype_table[dtype].name, name, length) != 0))
        dtype++;
    return dtype;
}

const ridge_op_row *const ridge_op_table[RIDGE_OPS] = {
    [RIDGE_SWIGLU_FWD] = &ridge_op_swiglu_fwd,
    [RIDGE_SWIGLU_BWD] = &ridge_op_swiglu_bwd,
    [RIDGE_QUANTIZE_FP8] = &ridge_op_quantize_fp8,
    [RIDGE_QUANTIZE_FP8_DUAL] = &ridge_op_quantize_fp8_dual,
    [RIDGE_SWIGLU_QUANTIZE] = &ridge_op_swiglu_quantize,
    [RIDGE_Q8_0_QUANTIZE] = &ridge_op_q8_0_quantize,
    [RIDGE_Q8_0_REPACK] = &ridge_op_q8_0_repack,
    [RIDGE_Q8_0_UNPACK] = &ridge_op_q8_0_unpack,
    [RIDGE_GEMM_FP8] = &ridge_op_gemm_fp8,
    [RIDGE_Q8_0_QUANTIZE_ROWS] = &ridge_op_q8_0_quantize_rows,
    [RIDGE_Q8_0_MATMUL] = &ridge_op_q8_0_matmul,
    [RIDGE_Q8_0_PAIR] = &ridge_op_q8_0_pair,
    [RIDGE_Q8_0_GATE_UP_SWIGLU] = &ridge_op_q8_0_gate_up_swiglu,
    [RIDGE_Q8_0_MATMUL_HC_EXPAND] = &ridge_op_q8_0_matmul_hc_expand,
    [RIDGE_RMS_NORM] = &ridge_op_rms_norm,
    [RIDGE_HEAD_RMS_NORM_ROPE_TAIL] = &ridge_op_head_rms_norm_rope_tail,
    [RIDGE_LINEAR_CE_EVAL] = &ridge_op_linear_ce_eval,
    [RIDGE_LINEAR_CE_TRAIN] = &ridge_op_linear_ce_train,
    [RIDGE_LINEAR_CE_BACKWARD] = &ridge_op_linear_ce_backward,
    [RIDGE_CE_FWD] = &ridge_op_ce_fwd,
    [RIDGE_CE_BWD] = &ridge_op_ce_bwd,
    [RIDGE_CE_COMBINE] = &ridge_op_ce_combine,
    [RIDGE_MULTIPLY] = &ridge_op_multiply,
};

const ridge_op_row *ridge_op_find(const char *name, size_t length)
{
    for (int op = 1; op < RIDGE_OPS; op++)
        if (strlen(ridge_op_table[op]->name) == length && memcmp(ridge_op_table[op]->name, name, length) == 0)
            return ridge_op_table[op];
    return NULL;
}
