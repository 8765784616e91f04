/* cpu_grouped.c: gemm_fp8_grouped on the CPU: each group is a call of gemm_fp8's row of the same name. */
#include "cpu.h"
#include "src/util.h"

extern const ridge_kernel_list ridge_cpu_gemm_fp8;

static int64_t offset_at(const ridge_call *call, int64_t i)
{
    const ridge_operand *offsets = &call->arg[RIDGE_GEMM_FP8_GROUPED_OFFSETS];

    return offsets->dtype == RIDGE_I64 ? ((const int64_t *)offsets->data)[i] : ((const int32_t *)offsets->data)[i];
}

/* The rows, or the elements of k, of a group; false: it is bad. */
static bool group_of(const ridge_call *call, int64_t group, int64_t *from, int64_t *to)
{
    const uint32_t mode = call->flags & RIDGE_GROUPED;
    const bool masked = mode == RIDGE_GROUPED_MASKED, by_k = mode == RIDGE_GROUPED_K;

    *from = masked ? 0 : offset_at(call, group);
    *to = offset_at(call, masked ? group : group + 1);
    return 0 <= *from && *from <= *to && *to <= call->dim[by_k ? 2 : 0] &&
           !(by_k && (*from % GEMM_BLOCK || *to % GEMM_BLOCK));
}

/* An operand from (row, col) on. */
static ridge_operand operand_at(const ridge_operand *whole, int64_t row, int64_t col)
{
    ridge_operand part = *whole;

    if (part.data)
        part.data = (char *)part.data + (row * part.stride + col) * (int64_t)ridge_dtype_size(part.dtype);
    return part;
}

/* A table of scales from those of row `row` in block `block` of k on; by tensor from that of matrix `matrix`. */
static ridge_operand scales_at(const ridge_operand *table, uint32_t mode, bool transposed, int64_t row, int64_t matrix,
                               int64_t block)
{
    switch (mode) {
    case RIDGE_SCALE_TENSOR:
        return operand_at(table, 0, matrix);
    case RIDGE_SCALE_ROW:
        return operand_at(table, 0, row);
    case RIDGE_SCALE_ROW128:
        return transposed ? operand_at(table, row, block) : operand_at(table, block, row);
    default: /* RIDGE_SCALE_BLK128: a row of blocks */
        return operand_at(table, row, block);
    }
}

/* A group as a call of gemm_fp8. */
static void part_of(const ridge_call *call, int64_t group, int64_t from, int64_t to, ridge_call *part)
{
    const uint32_t mode = call->flags & RIDGE_GROUPED;
    const bool by_k = mode == RIDGE_GROUPED_K;
    const int64_t m = call->dim[0], n = call->dim[1], k = call->dim[2];
    const int64_t a_row = by_k ? 0 : mode == RIDGE_GROUPED_M ? from : group * m, b_row = by_k ? 0 : group * n;
    const int64_t d_row = mode == RIDGE_GROUPED_M ? from : group * m;
    const int64_t a_k = by_k ? from : 0, block = a_k / GEMM_BLOCK;
    const uint32_t of_a = call->flags & RIDGE_SCALE, of_b = (call->flags & RIDGE_SCALE_B) >> 4;
    const ridge_operand *arg = call->arg;

    *part = (ridge_call){.op = RIDGE_GEMM_FP8, .flags = call->flags & ~RIDGE_GROUPED};
    part->dim[0] = by_k ? m : to - from;
    part->dim[1] = n;
    part->dim[2] = by_k ? to - from : k;
    part->arg[RIDGE_GEMM_FP8_A] = operand_at(&arg[RIDGE_GEMM_FP8_GROUPED_A], a_row, a_k);
    part->arg[RIDGE_GEMM_FP8_SCALE_A] = scales_at(
        &arg[RIDGE_GEMM_FP8_GROUPED_SCALE_A], of_a, call->flags & RIDGE_SCALE_T,
        by_k && of_a == RIDGE_SCALE_ROW ? group * m : a_row, 0, block); /* BLK128: of k alone, from row 0 on */
    part->arg[RIDGE_GEMM_FP8_B] = operand_at(&arg[RIDGE_GEMM_FP8_GROUPED_B], b_row, a_k);
    part->arg[RIDGE_GEMM_FP8_SCALE_B] =
        scales_at(&arg[RIDGE_GEMM_FP8_GROUPED_SCALE_B], of_b, call->flags & RIDGE_SCALE_B_T,
                  by_k ? of_b == RIDGE_SCALE_ROW ? group * n : 0
                       : group * (of_b == RIDGE_SCALE_BLK128 ? ridge_ceil_div(n, GEMM_BLOCK) : n),
                  by_k ? 0 : group, block);
    part->arg[RIDGE_GEMM_FP8_D] = operand_at(&arg[RIDGE_GEMM_FP8_GROUPED_D], d_row, 0);
    part->arg[RIDGE_GEMM_FP8_BIAS] = operand_at(&arg[RIDGE_GEMM_FP8_GROUPED_BIAS], 0, group * n);
}

/* The row of gemm_fp8 that a row here runs. */
static const ridge_kernel *row_of(const ridge_kernel *kernel)
{
    return &ridge_cpu_gemm_fp8.row[kernel->param[0]];
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const ridge_call *call = &bound->call;
    const ridge_operand *bad = &call->arg[RIDGE_GEMM_FP8_GROUPED_BAD];
    const ridge_kernel *row = row_of(kernel);
    int64_t group, from, to;
    ridge_status status = RIDGE_OK;
    ridge_bound part;

    for (group = 0; group < call->dim[3] && !status && group_of(call, group, &from, &to); group++) {
        part_of(call, group, from, to, &part.call);
        status = row->launch(device, row, &part, workspace, bytes, stream);
    }
    if (bad->dtype != RIDGE_NONE)
        *(int32_t *)bad->data = group < call->dim[3] ? (int32_t)group + 1 : 0;
    return status;
}

/* The problem of gemm_fp8 with the most rows that a group can have. */
static ridge_problem largest(const ridge_problem *problem)
{
    ridge_problem p = {.op = RIDGE_GEMM_FP8, .flags = problem->flags & ~RIDGE_GROUPED};

    for (int i = 0; i < 3; i++)
        p.dim[i] = problem->dim[i];
    return p;
}

#if defined(__x86_64__) /* plain C needs none */
/* The largest tiles for every thread: how a group is divided depends on its rows. */
static size_t workspace_of(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const int64_t rows = ridge_min(problem->dim[0], GEMM_TILE_ROWS), cols = ridge_min(problem->dim[1], GEMM_TILE_COLS);

    (void)kernel;
    return (size_t)device->units *
           (size_t)ridge_round_up((int64_t)(gemm_work_floats(rows, cols) * sizeof(float)), 4096);
}
#endif

/* As if the groups shared out all of m or k. */
static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    const ridge_kernel *row = row_of(kernel);
    const ridge_problem p = largest(problem);

    return row->cost(device, row, &p);
}

#define ROW(arch_name, low, index, need)                                                                            \
    {                                                                                                               \
        .name = "cpu.gemm_fp8_grouped." arch_name, .op = RIDGE_GEMM_FP8_GROUPED, .arch_min = low,                   \
        .arch_max = RIDGE_ARCH_AVX512, .contract = RIDGE_STABLE | RIDGE_CLOSE, .param = {index}, .workspace = need, \
        .cost = cost, .launch = launch                                                                              \
    }

static const ridge_kernel rows[] = {
#if defined(__x86_64__)
    ROW("avx512", RIDGE_ARCH_AVX512, 0, workspace_of),
    ROW("avx2", RIDGE_ARCH_AVX2, 1, workspace_of),
    ROW("c", RIDGE_ARCH_C, 2, NULL),
#else
    ROW("c", RIDGE_ARCH_C, 0, NULL),
#endif
};

const ridge_kernel_list ridge_cpu_gemm_fp8_grouped = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
