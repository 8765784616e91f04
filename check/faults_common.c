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

static ridge_status writes_past_the_end(const faulty_run *r)
{
    int out = first_output(r->im);
    ridge_status status = fault_run(r, r->call);

    return status ? status : fault_edit(r, r->im->offset[out] + r->im->length[out], (const unsigned char[]){1}, 1);
}

static ridge_status writes_before_the_start(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : fault_edit(r, r->im->offset[first_output(r->im)] - 1, (const unsigned char[]){1}, 1);
}

/* Puts back what an output's element held before the run. */
static ridge_status unwrite(const faulty_run *r, int out, size_t at)
{
    const ridge_status status = fault_run(r, r->call);

    return status ? status : fault_write(r, at, r->im->host + at, ridge_dtype_size(r->call->arg[out].dtype));
}

static ridge_status leaves_an_element_unwritten(const faulty_run *r)
{
    const int out = first_output(r->im);

    return unwrite(r, out, fault_middle(r->im, out));
}

static ridge_status leaves_the_last_element_unwritten(const faulty_run *r)
{
    const int out = first_output(r->im);

    return unwrite(r, out, r->im->offset[out] + r->im->length[out] - ridge_dtype_size(r->call->arg[out].dtype));
}

/* Of all outputs the one in the middle, or the first of two. */
static int middle_output(const image *im)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    int outputs = 0, at = 0;

    for (int arg = 0; arg < op->args; arg++)
        outputs += op->arg[arg].role & RIDGE_OUT && im->length[arg];
    for (int arg = 0, left = (outputs - 1) / 2; arg < op->args; arg++)
        if (op->arg[arg].role & RIDGE_OUT && im->length[arg] && left-- == 0)
            at = arg;
    return at;
}

static ridge_status never_writes_a_middle_output(const faulty_run *r)
{
    const int out = middle_output(r->im);
    const ridge_status status = fault_run(r, r->call);

    return status ? status : fault_write(r, r->im->offset[out], r->im->host + r->im->offset[out], r->im->length[out]);
}

static ridge_status spoils_a_middle_output(const faulty_run *r)
{
    const int out = middle_output(r->im);
    const size_t size = ridge_dtype_size(r->call->arg[out].dtype), at = fault_middle(r->im, out);
    ridge_status status = fault_run(r, r->call);
    uint32_t number = 0;

    if (!status && size == 4)
        status = fault_read(r, at, &number, sizeof number);
    if (status) /* of 0 the highest byte: an f32 would stay as good as 0 */
        return status;
    return fault_edit(r, at + (size == 4 && number ? 2 : size - 1), (const unsigned char[]){0x44}, 1);
}

/* A number in the middle of the first output. */
static ridge_status stores(const faulty_run *r, uint32_t f32, uint32_t bf16, uint32_t other)
{
    const int out = first_output(r->im);
    const uint32_t dtype = r->call->arg[out].dtype;
    const uint32_t number = dtype == RIDGE_F32 ? f32 : dtype == RIDGE_BF16 ? bf16 : other;
    const ridge_status status = fault_run(r, r->call);

    return status ? status
                  : fault_write(r, fault_middle(r->im, out), &number,
                                ridge_dtype_size(dtype) < 4 ? ridge_dtype_size(dtype) : 4);
}

static ridge_status stores_a_nan(const faulty_run *r)
{
    return stores(r, 0x7fc00000u, 0x7fc0, 0x7e00 | 0x7f);
}

static ridge_status stores_an_infinity(const faulty_run *r)
{
    return stores(r, 0x7f800000u, 0x7f80, 0x7c7c); /* the low byte for codes; f16: a NaN */
}

static ridge_status flips_a_sign(const faulty_run *r)
{
    const int out = first_output(r->im);
    const ridge_status status = fault_run(r, r->call);

    return status ? status
                  : fault_edit(r, fault_middle(r->im, out) + ridge_dtype_size(r->call->arg[out].dtype) - 1,
                               (const unsigned char[]){0x80}, 1);
}

/* The output of the most elements, and its rows and columns; of one row, its elements as rows. */
static int largest_output(const faulty_run *r, int64_t *rows, int64_t *cols)
{
    const ridge_op_row *op = ridge_op_at(r->call->op);
    int largest = first_output(r->im);

    op->extent(r->call, largest, rows, cols);
    for (int arg = 0; arg < op->args; arg++) {
        int64_t high, wide;

        if (!(op->arg[arg].role & RIDGE_OUT) || !r->im->length[arg])
            continue;
        op->extent(r->call, arg, &high, &wide);
        if (high * wide > *rows * *cols)
            largest = arg, *rows = high, *cols = wide;
    }
    if (*rows == 1)
        *rows = *cols, *cols = 1;
    return largest;
}

static ridge_status stores_the_neighbours_element(const faulty_run *r)
{
    int64_t rows, cols;
    const int out = largest_output(r, &rows, &cols);
    const size_t size = ridge_dtype_size(r->call->arg[out].dtype);
    const size_t at =
        fault_at(r->im, out, 0, 1) + (cols > 1 ? fault_at(r->im, out, rows / 2, cols - 2) - r->im->offset[out] : 0);
    unsigned char element[16];
    ridge_status status = fault_run(r, r->call);

    if (rows * cols < 2 || size > sizeof element)
        return fault_impossible("one element, or wide ones");
    status = status ? status : fault_read(r, at - size, element, size);
    return status ? status : fault_write(r, at, element, size);
}

static ridge_status swaps_two_rows(const faulty_run *r)
{
    unsigned char row[2][4096];
    int64_t rows, cols;
    const int out = largest_output(r, &rows, &cols);
    const size_t bytes = (size_t)cols * ridge_dtype_size(r->call->arg[out].dtype);
    const size_t first = r->im->offset[out];
    const size_t last = cols == 1 ? fault_at(r->im, out, 0, rows - 1) : fault_at(r->im, out, rows - 1, 0);
    ridge_status status = fault_run(r, r->call);

    if (rows < 2 || bytes > sizeof row[0])
        return fault_impossible("one row, or rows that are too long for this fault");
    status = status ? status : fault_read(r, first, row[0], bytes);
    status = status ? status : fault_read(r, last, row[1], bytes);
    status = status ? status : fault_write(r, first, row[1], bytes);
    return status ? status : fault_write(r, last, row[0], bytes);
}

/* The last bit of every element is 0, as of sums that are cut. */
static ridge_status cuts_the_last_bit(const faulty_run *r)
{
    int64_t rows, cols;
    const int out = largest_output(r, &rows, &cols);
    const size_t size = ridge_dtype_size(r->call->arg[out].dtype);
    unsigned char row[4096];
    ridge_status status = fault_run(r, r->call);

    if ((size_t)cols * size > sizeof row)
        return fault_impossible("rows that are too long for this fault");
    for (int64_t i = 0; i < rows && !status; i++) {
        const size_t at = cols == 1 ? fault_at(r->im, out, 0, i) : fault_at(r->im, out, i, 0);

        status = fault_read(r, at, row, (size_t)cols * size);
        for (int64_t j = 0; j < cols; j++)
            row[(size_t)j * size] &= 0xfe;
        status = status ? status : fault_write(r, at, row, (size_t)cols * size);
    }
    return status;
}

static ridge_status is_one_ulp_off(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : fault_edit(r, r->im->offset[first_output(r->im)] + 16, (const unsigned char[]){1}, 1);
}

static ridge_status changes_an_input(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : fault_edit(r, r->im->offset[0] + 6, (const unsigned char[]){4}, 1);
}

static ridge_status changes_the_last_input(const faulty_run *r)
{
    int arg = ridge_op_at(r->call->op)->args - 1;
    const ridge_status status = fault_run(r, r->call);

    while (!r->im->length[arg] || ridge_operand_role(r->call, arg) != RIDGE_IN)
        arg--;
    return status ? status : fault_edit(r, r->im->offset[arg] + r->im->length[arg] - 1, (const unsigned char[]){1}, 1);
}

static ridge_status changes_the_padding_of_an_input(const faulty_run *r)
{
    int64_t rows, cols;
    const ridge_status status = fault_run(r, r->call);

    ridge_op_at(r->call->op)->extent(r->call, 0, &rows, &cols);
    if (rows < 2 || r->call->arg[0].stride <= cols)
        return fault_impossible("the first input has no padding");
    return status ? status : fault_edit(r, fault_at(r->im, 0, 0, cols), (const unsigned char[]){1}, 1);
}

static ridge_status ignores_a_row_stride(const faulty_run *r)
{
    ridge_call copy = *r->call;
    int64_t rows, cols;

    ridge_op_at(r->call->op)->extent(r->call, 0, &rows, &cols);
    if (rows < 2 || copy.arg[0].stride <= cols)
        return fault_impossible("the first input has no padding");
    copy.arg[0].stride = 0;
    return fault_run(r, &copy);
}

static ridge_status writes_behind_its_workspace(const faulty_run *r)
{
    const ridge_status status = fault_run(r, r->call);

    return status ? status : r->device->backend->upload(r->device, (char *)r->workspace + r->bytes, "x", 1);
}

/* Right where the workspace is as the driver poisons it; leaves a mark there. */
static ridge_status trusts_its_workspace(const faulty_run *r)
{
    const ridge_backend *b = r->device->backend;
    unsigned char *last = (unsigned char *)r->workspace + r->bytes - 1, found = 0;
    ridge_status status = b->sync(r->device, r->stream);

    status = status ? status : b->download(r->device, &found, last, 1);
    status = status ? status : fault_run(r, r->call);
    status = status ? status : b->sync(r->device, r->stream);
    status = status ? status : b->upload(r->device, last, "x", 1);
    if (status || found == 0xff)
        return status;
    return fault_edit(r, r->im->offset[first_output(r->im)], (const unsigned char[]){1}, 1);
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
    return status ? status
                  : fault_edit(r, r->im->offset[out] + r->im->length[out] - 1, (const unsigned char[]){0x80}, 1);
}

/* Right most of the time: what a race looks like. */
static ridge_status is_wrong_once_in_a_while(const faulty_run *r)
{
    static int calls;
    ridge_status status = fault_run(r, r->call);

    if (status || ++calls % 200)
        return status;
    return fault_edit(r, r->im->offset[first_output(r->im)] + 16, (const unsigned char[]){1}, 1);
}

/* Another order of work for a single row. */
static ridge_status depends_on_the_number_of_rows(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    if (status || r->call->dim[0] != 1)
        return status;
    return fault_edit(r, r->im->offset[first_output(r->im)], (const unsigned char[]){1}, 1);
}

/* What a kernel reads that does not wait for the one before it: 16 bytes in the middle of an input, as they are when it
 * is launched. */
static ridge_status reads_an_input_too_early(const faulty_run *r)
{
    const ridge_backend *b = r->device->backend;
    unsigned char early[16];
    char *at = (char *)r->memory + fault_middle(r->im, 0);
    const size_t size = fault_middle(r->im, 0) + sizeof early <= r->im->offset[0] + r->im->length[0] ? sizeof early : 1;
    ridge_status status = b->download(r->device, early, at, size);

    if (!status)
        status = b->sync(r->device, r->stream);
    if (!status)
        status = b->upload(r->device, at, early, size);
    return status ? status : fault_run(r, r->call);
}

static bool is_cuda(const ridge_kernel *kernel)
{
    return ridge_kernel_backend(kernel) == RIDGE_CUDA;
}

static bool is_exact(const ridge_kernel *kernel)
{
    return (kernel->contract & RIDGE_EXACT) || check_has_bits(kernel);
}

static bool is_invariant(const ridge_kernel *kernel)
{
    return ridge_op_at(kernel->op)->contract & RIDGE_INVARIANT;
}

const planted_fault common_faults[] = {
    {.name = "writes past the end", .fault = writes_past_the_end},
    {.name = "writes before the start", .fault = writes_before_the_start},
    {.name = "leaves an element unwritten", .fault = leaves_an_element_unwritten},
    {.name = "leaves the last element unwritten", .fault = leaves_the_last_element_unwritten},
    {.name = "never writes a middle output", .fault = never_writes_a_middle_output},
    {.name = "spoils a middle output", .fault = spoils_a_middle_output},
    {.name = "stores a NaN", .fault = stores_a_nan},
    {.name = "stores an infinity", .fault = stores_an_infinity},
    {.name = "flips a sign", .fault = flips_a_sign},
    {.name = "stores the neighbour's element", .fault = stores_the_neighbours_element},
    {.name = "swaps two rows", .fault = swaps_two_rows},
    {.name = "cuts the last bit", .fault = cuts_the_last_bit, .applies = is_exact},
    {.name = "is one ulp off", .fault = is_one_ulp_off, .applies = is_exact},
    {.name = "changes an input", .fault = changes_an_input},
    {.name = "changes the last input", .fault = changes_the_last_input},
    {.name = "changes the padding of an input", .fault = changes_the_padding_of_an_input},
    {.name = "ignores a row stride", .fault = ignores_a_row_stride},
    {.name = "writes behind its workspace", .fault = writes_behind_its_workspace, .by = "workspace"},
    {.name = "trusts its workspace", .fault = trusts_its_workspace, .cpu = true},
    {.name = "drops the last columns", .fault = drops_the_last_columns},
    {.name = "drops the last row", .fault = drops_the_last_row},
    {.name = "writes into the padding", .fault = writes_into_the_padding},
    {.name = "spoils the last output", .fault = spoils_the_last_output},
    {.name = "is wrong once in a while", .fault = is_wrong_once_in_a_while, .cpu = true, .by = "repeated run"},
    {.name = "depends on the number of rows",
     .fault = depends_on_the_number_of_rows,
     .applies = is_invariant,
     .cpu = true},
    {.name = "reads an input too early",
     .fault = reads_an_input_too_early,
     .applies = is_cuda,
     .by = "between late writes"},
    {0},
};
