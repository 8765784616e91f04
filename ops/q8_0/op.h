/* op.h: what the builders of op.c and op_blocks.c share. */
#ifndef RIDGE_OPS_Q8_0_OP_H
#define RIDGE_OPS_Q8_0_OP_H

#include "src/ops.h"

/* Sets an operand of either form: with scales (RIDGE_SCALING_ROW32) in slot + 1, or without. */
void ridge_put_q8_0(ridge_call *call, int slot, ridge_tensor tensor, ridge_dtype scale_dtype);

#endif
