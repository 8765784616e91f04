/* faults.c: the faults of FP8 products: scales, tails of k, accumulation, tiles. */
#include "cpu/num.h"
#include "gemm.h"

static ridge_status takes_the_next_rows_scale_of_a(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.arg[RIDGE_GEMM_FP8_SCALE_A].data = (float *)copy.arg[RIDGE_GEMM_FP8_SCALE_A].data + 1;
    return fault_run_changed(r, &copy);
}

/* Of the next row of the table; where that would reach into d, of four columns on. */
static ridge_status takes_the_next_blocks_scale_of_b(const faulty_run *r)
{
    ridge_call list[] = {fault_with_strides(r->call), fault_with_strides(r->call)};
    ridge_operand *const next = &list[0].arg[RIDGE_GEMM_FP8_SCALE_B], *const on = &list[1].arg[RIDGE_GEMM_FP8_SCALE_B];

    next->data = (float *)next->data + next->stride;
    on->data = (float *)on->data + 4;
    return fault_run_first_of(r, list, 2);
}

static ridge_status drops_the_tail_of_k(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[2] = r->call->dim[2] / 128 * 128;
    return fault_run_changed(r, &copy);
}

static ridge_status drops_the_last_product(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[2]--;
    return fault_run_changed(r, &copy);
}

static ridge_status reads_beyond_k(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[2]++;
    return fault_run_changed(r, &copy);
}

static ridge_status accumulates_twice(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : fault_run(r, r->call);
}

static ridge_status reads_the_other_format(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.arg[RIDGE_GEMM_FP8_A].dtype = copy.arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E4M3 ? RIDGE_E5M2 : RIDGE_E4M3;
    return fault_run_changed(r, &copy);
}

/* A single row in two parts of k, as of another split-K: the sums round elsewhere. */
static ridge_status splits_k_for_a_single_row(const faulty_run *r)
{
    ridge_call part[2] = {fault_with_strides(r->call), fault_with_strides(r->call)};
    ridge_status status;

    if (r->call->dim[0] != 1 || r->call->dim[2] <= 128)
        return fault_run(r, r->call);
    part[0].dim[2] = 128;
    part[1].dim[2] -= 128;
    part[1].flags |= RIDGE_ACCUMULATE;
    ridge_set(&part[1], RIDGE_GEMM_FP8_BIAS, RIDGE_NONE, NULL, 0);
    part[1].arg[RIDGE_GEMM_FP8_A].data = (char *)part[1].arg[RIDGE_GEMM_FP8_A].data + 128;
    part[1].arg[RIDGE_GEMM_FP8_B].data = (char *)part[1].arg[RIDGE_GEMM_FP8_B].data + 128;
    for (int arg = RIDGE_GEMM_FP8_SCALE_A; arg <= RIDGE_GEMM_FP8_SCALE_B; arg++)
        if (arg == RIDGE_GEMM_FP8_SCALE_A || arg == RIDGE_GEMM_FP8_SCALE_B) {
            const bool by_row =
                arg == RIDGE_GEMM_FP8_SCALE_A || (r->call->flags & RIDGE_SCALE_B) == RIDGE_SCALE_B_ROW128;

            part[1].arg[arg].data = (float *)part[1].arg[arg].data + (by_row ? part[1].arg[arg].stride : 1);
        }
    status = fault_run_changed(r, &part[0]);
    return status ? status : fault_run_changed(r, &part[1]);
}

/* Rows [row, row + rows) and columns [col, col + cols) of D, f32 or bf16, times `factor`. */
static ridge_status scale_part(const faulty_run *r, int64_t row, int64_t rows, int64_t col, int64_t cols, float factor)
{
    const ridge_operand *d = &r->im->call.arg[RIDGE_GEMM_FP8_D];
    ridge_status status = r->device->backend->sync(r->device, r->stream);
    const size_t size = ridge_dtype_size(d->dtype);
    float line[1024];
    uint16_t half[1024];
    void *const buffer = size == 4 ? (void *)line : half;

    if (cols > (int64_t)(sizeof line / sizeof *line))
        return ridge_fail(RIDGE_ERR_ARG, "a row of the case is too long for this fault");
    for (int64_t i = row; i < row + rows && !status; i++) {
        void *at = (char *)r->memory + r->im->offset[RIDGE_GEMM_FP8_D] +
                   (size_t)(i * (d->stride ? d->stride : r->im->call.dim[1]) + col) * size;

        status = r->device->backend->download(r->device, buffer, at, (size_t)cols * size);
        for (int64_t j = 0; j < cols; j++)
            if (size == 4)
                line[j] *= factor;
            else
                half[j] = ridge_bf16_from_f32(ridge_f32_from_bf16(half[j]) * factor);
        status = status ? status : r->device->backend->upload(r->device, at, buffer, (size_t)cols * size);
    }
    return status;
}

static ridge_status skips_a_tile(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : scale_part(r, 16, 16, 64, 8, 0.0f);
}

static ridge_status gets_one_element_wrong(const faulty_run *r)
{
    ridge_status status = fault_run(r, r->call);

    return status ? status : scale_part(r, 21, 1, 77, 1, 1.125f);
}

/* Each element of f32 within its own bound, the tile as a whole not; of bf16 by one in the last place. */
static ridge_status loses_bits_everywhere(const faulty_run *r)
{
    const float factor = r->call->arg[RIDGE_GEMM_FP8_D].dtype == RIDGE_F32 ? 1.0f + 0x1p-10f : 1.0f + 0x1p-7f;
    ridge_status status = fault_run(r, r->call);

    return status ? status : scale_part(r, 0, r->call->dim[0], 0, r->call->dim[1], factor);
}

const planted_fault gemm_faults[] = {
    {.name = "takes the next row's scale of a", .fault = takes_the_next_rows_scale_of_a},
    {.name = "takes the next block's scale of b", .fault = takes_the_next_blocks_scale_of_b},
    {.name = "drops the tail of k", .fault = drops_the_tail_of_k},
    {.name = "drops the last product", .fault = drops_the_last_product},
    {.name = "reads beyond k", .fault = reads_beyond_k},
    {.name = "forgets to accumulate", .fault = fault_changes_flags, .flags = RIDGE_ACCUMULATE},
    {.name = "accumulates twice", .fault = accumulates_twice},
    {.name = "forgets the bias", .fault = fault_forgets_operand, .operand = "bias"},
    {.name = "takes the next column's bias", .fault = fault_takes_the_next, .operand = "bias"},
    {.name = "takes the next row of b", .fault = fault_takes_the_next, .operand = "b"},
    {.name = "reads the other format", .fault = reads_the_other_format},
    {.name = "splits k for a single row", .fault = splits_k_for_a_single_row, .cpu = true},
    {.name = "skips a tile", .fault = skips_a_tile},
    {.name = "gets one element wrong", .fault = gets_one_element_wrong},
    {.name = "loses bits everywhere", .fault = loses_bits_everywhere},
    FAULT_SWALLOWS_A_NAN,
    {0},
};
