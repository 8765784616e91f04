/* op.h: what the builders of op.c and op_blocks.c share. */
#ifndef RIDGE_OPS_Q8_0_OP_H
#define RIDGE_OPS_Q8_0_OP_H

#include "src/ops.h"

/* Sets an operand of either form: with scales (RIDGE_SCALING_ROW32) in slot + 1, or without. */
void ridge_put_q8_0(ridge_call *call, int slot, ridge_tensor tensor, ridge_dtype scale_dtype);

/* The slot of the operand `norm`, or -1: the op has none. */
static inline int ridge_q8_0_norm_slot(uint32_t op)
{
    return op == RIDGE_Q8_0_MATMUL           ? (int)RIDGE_Q8_0_MATMUL_NORM
           : op == RIDGE_Q8_0_GATE_UP_SWIGLU ? (int)RIDGE_Q8_0_GATE_UP_SWIGLU_NORM
                                             : -1;
}

/* add_rms_norm of the x of a product with a norm, to codes. */
static inline ridge_call ridge_q8_0_norm_call(const ridge_call *call, ridge_tensor codes)
{
    const ridge_operand *x = &call->arg[0];
    const ridge_tensor none = ridge_matrix(NULL, RIDGE_NONE);
    ridge_tensor from = ridge_matrix(x->data, (ridge_dtype)x->dtype);
    ridge_call norm;

    from.stride = x->stride;
    norm = ridge_add_rms_norm(call->dim[0], call->dim[1], from, none,
                              ridge_matrix(call->arg[ridge_q8_0_norm_slot(call->op)].data, RIDGE_F32), none, codes);
    norm.opt.norm.eps = call->opt.q8_0.eps;
    norm.flags |= call->flags & RIDGE_WEIGHTS_CONST;
    return norm;
}

#endif
