/* cpu_matrices.c: option matrices of quantize_fp8_dual on the CPU: each matrix is a call of the same row. */
#include "cpu.h"
#include "src/util.h"

/* An operand from row, col on. */
static void move_operand(ridge_operand *x, int64_t row, int64_t col)
{
    x->data = (char *)x->data + (row * x->stride + col) * (int64_t)ridge_dtype_size(x->dtype);
}

/* Option matrices of quantize_fp8_dual: matrix i as a call of its own. */
static ridge_bound matrix_of(const ridge_bound *bound, int64_t i)
{
    ridge_bound part = *bound;
    ridge_call *call = &part.call;
    const uint32_t form = call->flags & RIDGE_DUAL;
    const int64_t rows = call->dim[0] / call->opt.quantize.matrices, cols = call->dim[1];
    ridge_operand *arg = call->arg;

    call->opt.quantize.matrices = 1;
    call->dim[0] = part.problem.dim[0] = rows;
    move_operand(&arg[RIDGE_QUANTIZE_FP8_DUAL_X], i * rows, 0);
    move_operand(&arg[RIDGE_QUANTIZE_FP8_DUAL_Q], i * rows, 0);
    move_operand(&arg[RIDGE_QUANTIZE_FP8_DUAL_Q_T], i * cols, 0);
    if (form == RIDGE_DUAL_BLK_BLK)
        move_operand(&arg[RIDGE_QUANTIZE_FP8_DUAL_SCALE], i * ridge_ceil_div(rows, RIDGE_GROUP), 0);
    else
        move_operand(&arg[RIDGE_QUANTIZE_FP8_DUAL_SCALE], 0, i * rows);
    if (form == RIDGE_DUAL_ROW_ROW)
        move_operand(&arg[RIDGE_QUANTIZE_FP8_DUAL_SCALE_T], 0, i * cols);
    else
        move_operand(&arg[RIDGE_QUANTIZE_FP8_DUAL_SCALE_T], i * ridge_ceil_div(cols, RIDGE_GROUP), 0);
    return part;
}

ridge_status ridge_cpu_quantize_matrices(const ridge_device *device, const ridge_kernel *kernel,
                                         const ridge_bound *bound)
{
    ridge_status status = RIDGE_OK;

    for (int64_t i = 0; i < bound->call.opt.quantize.matrices && !status; i++) {
        const ridge_bound part = matrix_of(bound, i);

        status = kernel->launch(device, kernel, &part, NULL, 0, NULL);
    }
    return status;
}
