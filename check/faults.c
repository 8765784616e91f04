/* faults.c: how a fault launches its row: on the call, or on a changed one. */
#include "faults.h"

bool fault_refused;

ridge_status fault_run(const faulty_run *r, const ridge_call *call)
{
    ridge_bound bound;
    const ridge_status status = ridge_validate(call, &bound);

    if (status)
        return status;
    bound.problem = *r->problem;
    return r->kernel->launch(r->device, r->kernel, &bound, r->workspace, r->bytes, r->stream);
}

/* The row can run a call that is not the one asked for. */
static ridge_status accepts(const faulty_run *r, const ridge_call *call, ridge_bound *bound)
{
    ridge_status status = ridge_validate(call, bound);
    const char *reason = status ? NULL : ridge_why_not(r->device, r->kernel, &bound->problem);

    if (reason)
        status = ridge_fail(RIDGE_ERR_UNSUPPORTED, "the row refuses the changed problem: %s", reason);
    else if (!status && ridge_kernel_workspace(r->device, r->kernel, &bound->problem) > r->bytes)
        status = ridge_fail(RIDGE_ERR_WORKSPACE, "the changed problem needs more workspace");
    return status;
}

ridge_status fault_run_first_of(const faulty_run *r, const ridge_call *list, int count)
{
    ridge_status status = RIDGE_OK;
    ridge_bound bound;

    for (int i = 0; i < count; i++) {
        status = accepts(r, &list[i], &bound);
        if (!status)
            return r->kernel->launch(r->device, r->kernel, &bound, r->workspace, r->bytes, r->stream);
    }
    fault_refused = true;
    return status;
}

ridge_status fault_run_changed(const faulty_run *r, const ridge_call *call)
{
    return fault_run_first_of(r, call, 1);
}

ridge_call fault_with_strides(const ridge_call *call)
{
    ridge_call copy = *call;
    const ridge_op_row *op = ridge_op_at(call->op);
    int64_t rows, cols;

    for (int arg = 0; arg < op->args; arg++)
        if (op->arg[arg].kind != RIDGE_VECTOR && copy.arg[arg].dtype != RIDGE_NONE && copy.arg[arg].stride == 0) {
            op->extent(call, arg, &rows, &cols);
            copy.arg[arg].stride = cols;
        }
    return copy;
}
