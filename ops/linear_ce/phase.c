/* phase.c: a phase of linear_ce_train as a call of another op (phase.h). */
#include "op.h"

static ridge_tensor tensor_of(const ridge_call *call, int slot)
{
    ridge_tensor t = ridge_matrix(call->arg[slot].data, (ridge_dtype)call->arg[slot].dtype);

    t.stride = call->arg[slot].stride;
    return t;
}

/* The records of the slice; slots before RECORD are those of train. */
static ridge_call eval_of(const ridge_call *t)
{
    ridge_call c = ridge_linear_ce_eval(t->dim[0], t->dim[1], t->dim[2], tensor_of(t, RIDGE_LINEAR_CE_X),
                                        tensor_of(t, RIDGE_LINEAR_CE_W), tensor_of(t, RIDGE_LINEAR_CE_TARGET), NULL);

    c.arg[RIDGE_LINEAR_CE_BIAS] = t->arg[RIDGE_LINEAR_CE_BIAS];
    c.arg[RIDGE_LINEAR_CE_CLASS_WEIGHT] = t->arg[RIDGE_LINEAR_CE_CLASS_WEIGHT];
    c.arg[RIDGE_LINEAR_CE_RECORD] = t->arg[RIDGE_LINEAR_CE_RECORD];
    c.flags = t->flags & ~(RIDGE_CE_PHASE | RIDGE_ACCUMULATE);
    return c;
}

static ridge_call backward_of(const ridge_call *t)
{
    ridge_call c = ridge_linear_ce_backward(t->dim[0], t->dim[1], t->dim[2], tensor_of(t, RIDGE_LINEAR_CE_X),
                                            tensor_of(t, RIDGE_LINEAR_CE_W), tensor_of(t, RIDGE_LINEAR_CE_TARGET),
                                            (const float *)t->arg[RIDGE_LINEAR_CE_LSE].data,
                                            tensor_of(t, RIDGE_LINEAR_CE_DX), tensor_of(t, RIDGE_LINEAR_CE_DW));

    c.arg[RIDGE_LINEAR_CE_BACKWARD_DLOSS] = t->arg[RIDGE_LINEAR_CE_GRAD_SCALE];
    c.arg[RIDGE_LINEAR_CE_BACKWARD_BIAS] = t->arg[RIDGE_LINEAR_CE_BIAS];
    c.arg[RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT] = t->arg[RIDGE_LINEAR_CE_CLASS_WEIGHT];
    c.arg[RIDGE_LINEAR_CE_BACKWARD_DBIAS] = t->arg[RIDGE_LINEAR_CE_DBIAS];
    c.flags = t->flags & ~(RIDGE_CE_PHASE | RIDGE_CE_RECORD_SUMS);
    return c;
}

ridge_status ridge_ce_phase(const ridge_bound **bound, ridge_bound *other)
{
    const ridge_call *t = &(*bound)->call;
    ridge_status status;
    ridge_call c;

    if (t->op != RIDGE_LINEAR_CE_TRAIN || !(t->flags & RIDGE_CE_PHASE))
        return RIDGE_OK;
    if (t->flags & RIDGE_CE_DW) {
        *bound = NULL;
        return RIDGE_OK;
    }
    c = t->flags & RIDGE_CE_BEGIN ? eval_of(t) : backward_of(t);
    c.opt.ce = t->opt.ce;
    c.opt.ce.grad_scale = 1.0f; /* an option of train; the rows of backward know it all the same */
    for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++)
        if (arg < ridge_op_at(c.op)->args && ridge_op_at(c.op)->arg[arg].kind == RIDGE_VECTOR)
            c.arg[arg].stride = 0; /* a bound call has that of a row */
    status = ridge_validate(&c, other);
    other->call.opt.ce.grad_scale = t->opt.ce.grad_scale;
    *bound = other;
    return status;
}
