/* faults.c: how a fault launches its row: on the call, or on a changed one; and the faults that a line describes. */
#include <math.h>
#include <string.h>

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

int fault_slot(const ridge_call *call, const char *name)
{
    const ridge_op_row *op = ridge_op_at(call->op);

    for (int arg = 0; arg < op->args; arg++)
        if (strcmp(op->arg[arg].name, name) == 0 && call->arg[arg].dtype != RIDGE_NONE)
            return arg;
    return -1;
}

ridge_status fault_impossible(const char *why)
{
    fault_refused = true;
    return ridge_fail(RIDGE_ERR_UNSUPPORTED, "%s", why);
}

ridge_status fault_read(const faulty_run *r, size_t at, void *bytes, size_t size)
{
    const ridge_status status = r->device->backend->sync(r->device, r->stream);

    return status ? status : r->device->backend->download(r->device, bytes, (char *)r->memory + at, size);
}

ridge_status fault_write(const faulty_run *r, size_t at, const void *bytes, size_t size)
{
    const ridge_status status = r->device->backend->sync(r->device, r->stream);

    return status ? status : r->device->backend->upload(r->device, (char *)r->memory + at, bytes, size);
}

ridge_status fault_edit(const faulty_run *r, size_t at, const unsigned char *mask, size_t size)
{
    unsigned char bytes[8];
    ridge_status status = fault_read(r, at, bytes, size);

    for (size_t i = 0; i < size; i++)
        bytes[i] ^= mask[i];
    return status ? status : fault_write(r, at, bytes, size);
}

size_t fault_at(const image *im, int arg, int64_t row, int64_t col)
{
    const ridge_operand *operand = &im->call.arg[arg];
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    return im->offset[arg] +
           (size_t)(row * (operand->stride ? operand->stride : cols) + col) * ridge_dtype_size(operand->dtype);
}

size_t fault_middle(const image *im, int arg)
{
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    return fault_at(im, arg, rows / 2, cols / 2);
}

ridge_status fault_forgets_operand(const faulty_run *r)
{
    ridge_call copy = *r->call;

    ridge_set(&copy, fault_slot(r->call, r->planted->operand), RIDGE_NONE, NULL, 0);
    return fault_run_changed(r, &copy);
}

ridge_status fault_takes_the_next(const faulty_run *r)
{
    const int arg = fault_slot(r->call, r->planted->operand);
    const bool vector = ridge_op_at(r->call->op)->arg[arg].kind == RIDGE_VECTOR;
    ridge_call copy = fault_with_strides(r->call);
    ridge_operand *operand = &copy.arg[arg];

    operand->data = (char *)operand->data + (vector ? 1 : operand->stride) * (int64_t)ridge_dtype_size(operand->dtype);
    return fault_run_changed(r, &copy);
}

ridge_status fault_changes_flags(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.flags ^= r->planted->flags;
    return fault_run_changed(r, &copy);
}

ridge_status fault_changes_option(const faulty_run *r)
{
    ridge_call copy = *r->call;

    memcpy((char *)&copy.opt + r->planted->option, &r->planted->value, sizeof r->planted->value);
    return fault_run_changed(r, &copy);
}

ridge_status fault_never_writes(const faulty_run *r)
{
    const int arg = fault_slot(r->call, r->planted->operand);
    const ridge_status status = fault_run(r, r->call);

    return status ? status : fault_write(r, r->im->offset[arg], r->im->host + r->im->offset[arg], r->im->length[arg]);
}

/* Of a float the highest bit of the exponent, of an integer the lowest. */
ridge_status fault_spoils_an_element(const faulty_run *r)
{
    const int arg = fault_slot(r->call, r->planted->operand);
    const size_t size = ridge_dtype_size(r->call->arg[arg].dtype);
    const bool whole = r->call->arg[arg].dtype == RIDGE_I32 || r->call->arg[arg].dtype == RIDGE_I64 || size == 1;
    const ridge_status status = fault_run(r, r->call);
    const size_t at = fault_middle(r->im, arg) + (whole ? 0 : size - 1);

    return status ? status : fault_edit(r, at, (const unsigned char[]){whole ? 1 : 0x40}, 1);
}

ridge_status fault_swallows_a_nan(const faulty_run *r)
{
    const ridge_op_row *op = ridge_op_at(r->call->op);
    ridge_status status = fault_run(r, r->call);

    for (int arg = 0; arg < op->args; arg++) {
        const uint32_t dtype = r->call->arg[arg].dtype;
        int64_t rows, cols;

        if (!r->im->length[arg] || !(op->arg[arg].role & RIDGE_OUT) ||
            (dtype != RIDGE_F32 && dtype != RIDGE_F16 && dtype != RIDGE_BF16))
            continue;
        op->extent(r->call, arg, &rows, &cols);
        for (int64_t i = 0; i < rows * cols && !status; i++) {
            const size_t at = fault_at(r->im, arg, i / cols, i % cols);
            unsigned char element[4] = {0};

            status = fault_read(r, at, element, ridge_dtype_size(dtype));
            if (!status && isnan(dtype_load(element, dtype)))
                return fault_write(r, at, (const unsigned char[4]){0}, ridge_dtype_size(dtype));
        }
    }
    return status ? status : fault_impossible("no result is a NaN");
}
