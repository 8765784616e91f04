/* op.h: what the builders and op rows of this folder share. */
#ifndef RIDGE_OPS_NORM_OP_H
#define RIDGE_OPS_NORM_OP_H

#include <math.h>

#include "src/ops.h"

#define NORM_CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)

static inline const char *norm_options_rule(const ridge_norm_options *o)
{
    if (!(o->eps >= 0.0f) || isinf(o->eps))
        return "option eps must be finite and not negative";
    return isfinite(o->mscale) ? NULL : "option mscale must be finite";
}

/* Of an op without a rotation. */
static inline const char *norm_rule(const ridge_norm_options *o)
{
    const char *reason = norm_options_rule(o);

    return reason || o->mscale == 1.0f ? reason : "option mscale belongs to the ops with a rotation";
}

static inline bool norm_plain(const ridge_call *call)
{
    return call->opt.norm.mscale == 1.0f;
}

/* An operand that is absent without data, whatever its dtype. */
static inline void norm_put_optional(ridge_call *call, int slot, ridge_tensor tensor)
{
    ridge_put(call, slot, tensor);
    if (!tensor.data)
        call->arg[slot].dtype = RIDGE_NONE;
}

/* The columns of [tokens, heads*head_dim]; a product that overflows is refused as a row of 2^62 elements. */
static inline int64_t norm_head_columns(const ridge_call *call)
{
    int64_t cols;

    return __builtin_mul_overflow(call->dim[1], call->dim[2], &cols) || cols < 0 ? INT64_C(1) << 62 : cols;
}

#endif
