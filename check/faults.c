/* faults.c: ways in which real kernels go wrong, each as a launch that spoils something (tests/teeth.c). */
#include <stdlib.h>
#include <string.h>

#include "cpu/num.h"
#include "faults.h"

/* Runs a call as the problem that another one was. */
static ridge_status run_row(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem,
                            const ridge_call *call, void *workspace, size_t bytes, void *stream)
{
    ridge_bound bound;
    const ridge_status status = ridge_validate(call, &bound);

    if (status)
        return status;
    bound.problem = *problem;
    return kernel->launch(device, kernel, &bound, workspace, bytes, stream);
}

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
static ridge_status edit(const ridge_device *device, void *memory, size_t at, const unsigned char *mask, size_t size,
                         void *stream)
{
    unsigned char bytes[8];
    ridge_status status = device->backend->sync(device, stream);

    if (!status)
        status = device->backend->download(device, bytes, (char *)memory + at, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] ^= mask[i];
    return status ? status : device->backend->upload(device, (char *)memory + at, bytes, size);
}

#define FAULT(name)                                                                                                \
    static ridge_status name(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem, \
                             const image *im, const ridge_call *call, void *memory, void *workspace, size_t bytes, \
                             void *stream)
#define RUN(c) run_row(device, kernel, problem, c, workspace, bytes, stream)

FAULT(writes_past_the_end)
{
    int out = first_output(im);
    ridge_status status = RUN(call);

    return status ? status
                  : edit(device, memory, im->offset[out] + im->length[out], (const unsigned char[]){1}, 1, stream);
}

FAULT(writes_before_the_start)
{
    ridge_status status = RUN(call);

    return status ? status
                  : edit(device, memory, im->offset[first_output(im)] - 1, (const unsigned char[]){1}, 1, stream);
}

FAULT(leaves_an_element_unwritten)
{
    int out = first_output(im);
    ridge_status status = RUN(call);

    if (!status)
        status = device->backend->sync(device, stream);
    return status ? status
                  : device->backend->upload(device, (char *)memory + middle(im, out), im->host + middle(im, out),
                                            ridge_dtype_size(call->arg[out].dtype));
}

FAULT(stores_a_nan)
{
    int out = first_output(im);
    const size_t at = middle(im, out);
    const uint32_t dtype = call->arg[out].dtype;
    const uint32_t nan = dtype == RIDGE_F32 ? 0x7fc00000u : dtype == RIDGE_BF16 ? 0x7fc0 : 0x7e00;
    ridge_status status = RUN(call);

    if (!status)
        status = device->backend->sync(device, stream);
    return status ? status : device->backend->upload(device, (char *)memory + at, &nan, dtype == RIDGE_F32 ? 4 : 2);
}

FAULT(is_one_ulp_off)
{
    ridge_status status = RUN(call);

    return status ? status
                  : edit(device, memory, im->offset[first_output(im)] + 16, (const unsigned char[]){1}, 1, stream);
}

FAULT(changes_an_input)
{
    ridge_status status = RUN(call);

    return status ? status : edit(device, memory, im->offset[0] + 6, (const unsigned char[]){4}, 1, stream);
}

/* Strides of the packed call, so that a narrower or shorter one still walks the same tensor. */
static ridge_call with_strides(const ridge_call *call)
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

bool teeth_refused;

/* The row can run a call that is not the one asked for. */
static ridge_status accepts(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                            size_t bytes, ridge_bound *bound)
{
    ridge_status status = ridge_validate(call, bound);
    const char *reason = status ? NULL : ridge_why_not(device, kernel, &bound->problem);

    if (reason)
        status = ridge_fail(RIDGE_ERR_UNSUPPORTED, "the row refuses the changed problem: %s", reason);
    else if (!status && ridge_kernel_workspace(device, kernel, &bound->problem) > bytes)
        status = ridge_fail(RIDGE_ERR_WORKSPACE, "the changed problem needs more workspace");
    return status;
}

/* Runs the first of some changed calls that the row can run. */
static ridge_status run_first_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *list,
                                 int count, void *workspace, size_t bytes, void *stream)
{
    ridge_status status = RIDGE_OK;
    ridge_bound bound;

    for (int i = 0; i < count; i++) {
        status = accepts(device, kernel, &list[i], bytes, &bound);
        if (!status)
            return kernel->launch(device, kernel, &bound, workspace, bytes, stream);
    }
    teeth_refused = true;
    return status;
}

static ridge_status run_changed(const ridge_device *device, const ridge_kernel *kernel, const ridge_call *call,
                                void *workspace, size_t bytes, void *stream)
{
    return run_first_of(device, kernel, call, 1, workspace, bytes, stream);
}

enum { WAYS = 7 };

/* The call with dim[1] changed by `by`, and by 8, 16, .. 256: rows want multiples of as much. */
static void other_columns(const ridge_call *call, int64_t by, ridge_call list[WAYS])
{
    const int64_t unit = by < 0 ? -8 : 8;

    for (int i = 0; i < WAYS; i++) {
        list[i] = with_strides(call);
        list[i].dim[1] += i == 0 ? by : unit * (1 << (i - 1));
    }
}

FAULT(drops_the_last_columns)
{
    const int step = ridge_op_at(call->op)->step[1];
    ridge_call list[WAYS];

    (void)problem, (void)im, (void)memory;
    other_columns(call, step > 1 ? -step : call->dim[1] / 8 * 8 - 1 - call->dim[1], list);
    return run_first_of(device, kernel, list, WAYS, workspace, bytes, stream);
}

FAULT(drops_the_last_row)
{
    ridge_call copy = with_strides(call);

    (void)problem, (void)im, (void)memory;
    copy.dim[0]--;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(writes_into_the_padding)
{
    const int step = ridge_op_at(call->op)->step[1];
    ridge_call list[WAYS];

    (void)problem, (void)im, (void)memory;
    other_columns(call, step ? step : 1, list);
    return run_first_of(device, kernel, list, WAYS, workspace, bytes, stream);
}

FAULT(takes_the_next_rows_scale)
{
    int scale = call->op == RIDGE_SWIGLU_FWD ? RIDGE_SWIGLU_FWD_ROW_SCALE : RIDGE_SWIGLU_BWD_ROW_SCALE;
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    if (call->arg[scale].dtype == RIDGE_NONE) {
        teeth_refused = true;
        return ridge_fail(RIDGE_ERR_UNSUPPORTED, "the case has no row_scale");
    }
    copy.arg[scale].data = (float *)copy.arg[scale].data + 1;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(forgets_the_clamp)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.opt.swiglu.limit = 0;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(mixes_gate_and_up)
{
    int gate = call->op == RIDGE_SWIGLU_FWD ? RIDGE_SWIGLU_FWD_GATE : RIDGE_SWIGLU_BWD_GATE;
    ridge_call copy = *call;

    (void)im, (void)memory;
    copy.arg[gate].data = call->arg[gate + 1].data;
    copy.arg[gate + 1].data = call->arg[gate].data;
    return run_row(device, kernel, problem, &copy, workspace, bytes, stream);
}

/* Right most of the time: what a race looks like. */
FAULT(is_wrong_once_in_a_while)
{
    static int calls;
    ridge_status status = RUN(call);

    if (status || ++calls % 200)
        return status;
    return edit(device, memory, im->offset[first_output(im)] + 16, (const unsigned char[]){1}, 1, stream);
}

FAULT(spoils_the_last_output)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    int out = op->args - 1;
    ridge_status status = RUN(call);

    while (!(op->arg[out].role & RIDGE_OUT) || !im->length[out])
        out--;
    return status
               ? status
               : edit(device, memory, im->offset[out] + im->length[out] - 1, (const unsigned char[]){0x80}, 1, stream);
}

/* Another order of work for a single row. */
FAULT(depends_on_the_number_of_rows)
{
    ridge_status status = RUN(call);

    if (status || call->dim[0] != 1)
        return status;
    return edit(device, memory, im->offset[first_output(im)], (const unsigned char[]){1}, 1, stream);
}

/* ------------------------------------------------------------------------------------------------------ of products */

/* The call with one thing of an operand changed. */
FAULT(takes_the_next_rows_scale_of_a)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.arg[RIDGE_GEMM_FP8_SCALE_A].data = (float *)copy.arg[RIDGE_GEMM_FP8_SCALE_A].data + 1;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

/* Of the next row of the table; where that would reach into d, of four columns on. */
FAULT(takes_the_next_blocks_scale_of_b)
{
    ridge_call list[] = {with_strides(call), with_strides(call)};
    ridge_operand *const next = &list[0].arg[RIDGE_GEMM_FP8_SCALE_B], *const on = &list[1].arg[RIDGE_GEMM_FP8_SCALE_B];

    (void)problem, (void)im, (void)memory;
    next->data = (float *)next->data + next->stride;
    on->data = (float *)on->data + 4;
    return run_first_of(device, kernel, list, 2, workspace, bytes, stream);
}

FAULT(drops_the_tail_of_k)
{
    ridge_call copy = with_strides(call);

    (void)problem, (void)im, (void)memory;
    copy.dim[2] = call->dim[2] / 128 * 128;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(drops_the_last_product)
{
    ridge_call copy = with_strides(call);

    (void)problem, (void)im, (void)memory;
    copy.dim[2]--;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(reads_beyond_k)
{
    ridge_call copy = with_strides(call);

    (void)problem, (void)im, (void)memory;
    copy.dim[2]++;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(forgets_to_accumulate)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.flags &= ~RIDGE_ACCUMULATE;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(accumulates_twice)
{
    ridge_status status = RUN(call);

    (void)im, (void)memory;
    return status ? status : RUN(call);
}

FAULT(forgets_the_bias)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    ridge_set(&copy, RIDGE_GEMM_FP8_BIAS, RIDGE_NONE, NULL, 0);
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

/* Rows [row, row + rows) and columns [col, col + cols) of D, f32 or bf16, times `factor`. */
static ridge_status scale_part(const ridge_device *device, const image *im, void *memory, int64_t row, int64_t rows,
                               int64_t col, int64_t cols, float factor, void *stream)
{
    const ridge_operand *d = &im->call.arg[RIDGE_GEMM_FP8_D];
    ridge_status status = device->backend->sync(device, stream);
    const size_t size = ridge_dtype_size(d->dtype);
    float line[1024];
    uint16_t half[1024];
    void *const buffer = size == 4 ? (void *)line : half;

    if (cols > (int64_t)(sizeof line / sizeof *line))
        return ridge_fail(RIDGE_ERR_ARG, "a row of the case is too long for this fault");
    for (int64_t i = row; i < row + rows && !status; i++) {
        void *at = (char *)memory + im->offset[RIDGE_GEMM_FP8_D] +
                   (size_t)(i * (d->stride ? d->stride : im->call.dim[1]) + col) * size;

        status = device->backend->download(device, buffer, at, (size_t)cols * size);
        for (int64_t j = 0; j < cols; j++)
            if (size == 4)
                line[j] *= factor;
            else
                half[j] = ridge_bf16_from_f32(ridge_f32_from_bf16(half[j]) * factor);
        status = status ? status : device->backend->upload(device, at, buffer, (size_t)cols * size);
    }
    return status;
}

FAULT(skips_a_tile)
{
    ridge_status status = RUN(call);

    return status ? status : scale_part(device, im, memory, 16, 16, 64, 8, 0.0f, stream);
}

FAULT(gets_one_element_wrong)
{
    ridge_status status = RUN(call);

    return status ? status : scale_part(device, im, memory, 21, 1, 77, 1, 1.125f, stream);
}

/* Each element of f32 within its own bound, the tile as a whole not; of bf16 by one in the last place. */
FAULT(loses_bits_everywhere)
{
    const float factor = call->arg[RIDGE_GEMM_FP8_D].dtype == RIDGE_F32 ? 1.0f + 0x1p-10f : 1.0f + 0x1p-7f;
    ridge_status status = RUN(call);

    return status ? status : scale_part(device, im, memory, 0, call->dim[0], 0, call->dim[1], factor, stream);
}

/* ---- cross entropy: a call that is a little different from the one asked for */

static bool given_logits(const ridge_call *call)
{
    return call->op == RIDGE_CE_FWD || call->op == RIDGE_CE_BWD;
}

static int class_weight_of(const ridge_call *call)
{
    switch (call->op) {
    case RIDGE_LINEAR_CE_BACKWARD:
        return RIDGE_LINEAR_CE_BACKWARD_CLASS_WEIGHT;
    case RIDGE_CE_FWD:
        return RIDGE_CE_FWD_CLASS_WEIGHT;
    case RIDGE_CE_BWD:
        return RIDGE_CE_BWD_CLASS_WEIGHT;
    default:
        return call->op == RIDGE_CE_COMBINE ? (int)RIDGE_CE_COMBINE_CLASS_WEIGHT : (int)RIDGE_LINEAR_CE_CLASS_WEIGHT;
    }
}

FAULT(forgets_ignore_index)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.opt.ce.ignore_index = -1000;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(drops_a_block_of_classes)
{
    ridge_call copy = with_strides(call);
    const int vocab = given_logits(call) || call->op == RIDGE_CE_COMBINE ? 1 : 2;

    (void)problem, (void)im, (void)memory;
    copy.dim[vocab] -= 32;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(forgets_the_class_weights)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    ridge_set(&copy, class_weight_of(call), RIDGE_NONE, NULL, 0);
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(forgets_the_z_loss)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.opt.ce.lse_square_scale = 0;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(smooths_too_much)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.opt.ce.label_smoothing *= 1.25f;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(is_too_warm)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.opt.ce.temperature *= 1.01f;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

FAULT(forgets_the_softcap)
{
    ridge_call copy = *call;

    (void)problem, (void)im, (void)memory;
    copy.opt.ce.softcap = 0;
    return run_changed(device, kernel, &copy, workspace, bytes, stream);
}

/* The mean over all rows, not over those that are not ignored. */
FAULT(divides_by_all_rows)
{
    ridge_status status = RUN(call);
    const int loss = call->op == RIDGE_CE_FWD ? (int)RIDGE_CE_FWD_LOSS : (int)RIDGE_LINEAR_CE_LOSS; /* combine's too */
    char *at = (char *)memory + im->offset[loss];
    float value = 0;

    if (!status)
        status = device->backend->sync(device, stream);
    if (!status)
        status = device->backend->download(device, &value, at, sizeof value);
    value *= 0.8f; /* every fifth row of the case is ignored */
    return status ? status : device->backend->upload(device, at, &value, sizeof value);
}

const teeth_fault teeth_faults[] = {
    {"writes past the end", writes_past_the_end, true, ALL_OPS},
    {"writes before the start", writes_before_the_start, true, ALL_OPS},
    {"leaves an element unwritten", leaves_an_element_unwritten, true, ALL_OPS},
    {"stores a NaN", stores_a_nan, true, ALL_OPS},
    {"is one ulp off", is_one_ulp_off, true, EXACT_ROWS},
    {"changes an input", changes_an_input, true, ALL_OPS},
    {"drops the last columns", drops_the_last_columns, true, ALL_OPS},
    {"drops the last row", drops_the_last_row, true, ALL_OPS},
    {"writes into the padding", writes_into_the_padding, true, ALL_OPS},
    {"spoils the last output", spoils_the_last_output, true, ALL_OPS},
    {"takes the next row's scale", takes_the_next_rows_scale, true, SWIGLU_OPS},
    {"forgets the clamp", forgets_the_clamp, true, SWIGLU_OPS},
    {"mixes gate and up", mixes_gate_and_up, true, SWIGLU_OPS},
    {"takes the next row's scale of a", takes_the_next_rows_scale_of_a, true, GEMM_OPS},
    {"takes the next block's scale of b", takes_the_next_blocks_scale_of_b, true, GEMM_OPS},
    {"drops the tail of k", drops_the_tail_of_k, true, GEMM_OPS},
    {"drops the last product", drops_the_last_product, true, GEMM_OPS},
    {"reads beyond k", reads_beyond_k, true, GEMM_OPS},
    {"forgets to accumulate", forgets_to_accumulate, true, GEMM_OPS},
    {"accumulates twice", accumulates_twice, true, GEMM_OPS},
    {"forgets the bias", forgets_the_bias, true, GEMM_OPS},
    {"skips a tile", skips_a_tile, true, GEMM_OPS},
    {"gets one element wrong", gets_one_element_wrong, true, GEMM_OPS},
    {"loses bits everywhere", loses_bits_everywhere, true, GEMM_OPS},
    {"forgets ignore_index", forgets_ignore_index, true, CE_OPS},
    {"drops a block of classes", drops_a_block_of_classes, true, CE_OPS},
    {"forgets the class weights", forgets_the_class_weights, true, CE_OPS},
    {"forgets the z-loss", forgets_the_z_loss, true, CE_OPS},
    {"smooths too much", smooths_too_much, true, CE_OPS},
    {"is too warm", is_too_warm, true, LINEAR_CE_OPS},
    {"forgets the softcap", forgets_the_softcap, true, LINEAR_CE_OPS},
    {"divides by all rows", divides_by_all_rows, true, CE_LOSS_OPS},
    {"is wrong once in a while", is_wrong_once_in_a_while, false, ALL_OPS},
    {"depends on the number of rows", depends_on_the_number_of_rows, false, INVARIANT_OPS},
    {NULL, NULL, false, 0},
};
