/* faults_common.c: the faults that a kernel of any op may have, each as a launch that spoils something. */
#include "family.h"

static int first_output(const image *im)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    int arg = 0;

    while (!(op->arg[arg].role & RIDGE_OUT) || !im->length[arg])
        arg++;
    return arg;
}

/* Where an element in the middle of an operand begins: not in its padding. */
static size_t middle(const image *im, int arg)
{
    const ridge_operand *operand = &im->call.arg[arg];
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    return im->offset[arg] + (size_t)(rows / 2 * (operand->stride ? operand->stride : cols) + cols / 2) *
                                 ridge_dtype_size(operand->dtype);
}

/* XORs bytes of the block on the device. */
static ridge_status edit(const faulty_run *r, size_t at, const unsigned char *mask, size_t size)
{
    unsigned char bytes[8];
    ridge_status status = r->device->backend->sync(r->device, r->stream);

    if (!status)
        status = r->device->backend->download(r->device, bytes, (char *)r->memory + at, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] ^= mask[i];
    return status ? status : r->device->backend->upload(r->device, (char *)r->memory + at, bytes, size);
}

static ridge_status writes_past_the_end(const faulty_run *r)
{
    int out = first_output(r->im);
    ridge_status status = fault_run(r, r->call);

    return status ? status : edit(r, r->im->offset[out] + r->im->length[out], (const unsigned char[]){1}, 1);
}

static ridge_status writes_before_the_start(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : edit(r, r->im->offset[first_output(r->im)] - 1, (const unsigned char[]){1}, 1);
}

static ridge_status leaves_an_element_unwritten(const faulty_run *r)
{
    int out = first_output(r->im);
    ridge_status status = fault_run(r, r->call);

    if (!status)
        status = r->device->backend->sync(r->device, r->stream);
    return status ? status
                  : r->device->backend->upload(r->device, (char *)r->memory + middle(r->im, out),
                                               r->im->host + middle(r->im, out),
                                               ridge_dtype_size(r->call->arg[out].dtype));
}

static ridge_status stores_a_nan(const faulty_run *r)
{
    int out = first_output(r->im);
    const size_t at = middle(r->im, out);
    const uint32_t dtype = r->call->arg[out].dtype;
    const uint32_t nan = dtype == RIDGE_F32 ? 0x7fc00000u : dtype == RIDGE_BF16 ? 0x7fc0 : 0x7e00;
    ridge_status status = fault_run(r, r->call);

    if (!status)
        status = r->device->backend->sync(r->device, r->stream);
    return status ? status
                  : r->device->backend->upload(r->device, (char *)r->memory + at, &nan, dtype == RIDGE_F32 ? 4 : 2);
}

static ridge_status is_one_ulp_off(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : edit(r, r->im->offset[first_output(r->im)] + 16, (const unsigned char[]){1}, 1);
}

static ridge_status changes_an_input(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : edit(r, r->im->offset[0] + 6, (const unsigned char[]){4}, 1);
}

enum { WAYS = 7 };

/* The call with dim[1] changed by `by`, and by 8, 16, .. 256: rows want multiples of as much. */
static void other_columns(const ridge_call *call, int64_t by, ridge_call list[WAYS])
{
    const int64_t unit = by < 0 ? -8 : 8;

    for (int i = 0; i < WAYS; i++) {
        list[i] = fault_with_strides(call);
        list[i].dim[1] += i == 0 ? by : unit * (1 << (i - 1));
    }
}

static ridge_status drops_the_last_columns(const faulty_run *r)
{
    const int step = ridge_op_at(r->call->op)->step[1];
    ridge_call list[WAYS];

    other_columns(r->call, step > 1 ? -step : r->call->dim[1] / 8 * 8 - 1 - r->call->dim[1], list);
    return fault_run_first_of(r, list, WAYS);
}

static ridge_status drops_the_last_row(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[0]--;
    return fault_run_changed(r, &copy);
}

static ridge_status writes_into_the_padding(const faulty_run *r)
{
    const int step = ridge_op_at(r->call->op)->step[1];
    ridge_call list[WAYS];

    other_columns(r->call, step ? step : 1, list);
    return fault_run_first_of(r, list, WAYS);
}

static ridge_status spoils_the_last_output(const faulty_run *r)
{
    const ridge_op_row *op = ridge_op_at(r->im->call.op);
    int out = op->args - 1;
    ridge_status status = fault_run(r, r->call);

    while (!(op->arg[out].role & RIDGE_OUT) || !r->im->length[out])
        out--;
    return status ? status : edit(r, r->im->offset[out] + r->im->length[out] - 1, (const unsigned char[]){0x80}, 1);
}

/* Right most of the time: what a race looks like. */
static ridge_status is_wrong_once_in_a_while(const faulty_run *r)
{
    static int calls;
    ridge_status status = fault_run(r, r->call);

    if (status || ++calls % 200)
        return status;
    return edit(r, r->im->offset[first_output(r->im)] + 16, (const unsigned char[]){1}, 1);
}

/* Another order of work for a single row. */
static ridge_status depends_on_the_number_of_rows(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    if (status || r->call->dim[0] != 1)
        return status;
    return edit(r, r->im->offset[first_output(r->im)], (const unsigned char[]){1}, 1);
}

static bool is_exact(const ridge_kernel *kernel)
{
    return (ridge_op_at(kernel->op)->contract & RIDGE_EXACT) || check_has_bits(kernel);
}

static bool is_invariant(const ridge_kernel *kernel)
{
    return ridge_op_at(kernel->op)->contract & RIDGE_INVARIANT;
}

const planted_fault common_faults[] = {
    {"writes past the end", writes_past_the_end, NULL, false},
    {"writes before the start", writes_before_the_start, NULL, false},
    {"leaves an element unwritten", leaves_an_element_unwritten, NULL, false},
    {"stores a NaN", stores_a_nan, NULL, false},
    {"is one ulp off", is_one_ulp_off, is_exact, false},
    {"changes an input", changes_an_input, NULL, false},
    {"drops the last columns", drops_the_last_columns, NULL, false},
    {"drops the last row", drops_the_last_row, NULL, false},
    {"writes into the padding", writes_into_the_padding, NULL, false},
    {"spoils the last output", spoils_the_last_output, NULL, false},
    {"is wrong once in a while", is_wrong_once_in_a_while, NULL, true},
    {"depends on the number of rows", depends_on_the_number_of_rows, is_invariant, true},
    {NULL, NULL, NULL, false},
};
