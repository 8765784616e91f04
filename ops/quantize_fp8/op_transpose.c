/* op_transpose.c: the op row of transpose_fp8, its builder, and its row on the CPU. */
#include "cpu/team.h"
#include "src/math/quantize.h"
#include "src/ops.h"
#include "src/util.h"

#define FP8 (1u << RIDGE_E4M3 | 1u << RIDGE_E5M2)
#define SCALES (1u << RIDGE_F32)
#define EXACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE)

static const ridge_field fields[] = {DTYPE("format", RIDGE_TRANSPOSE_FP8_Q), END};

static void extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool scale = arg == RIDGE_TRANSPOSE_FP8_SCALE || arg == RIDGE_TRANSPOSE_FP8_SCALE_T;
    const int64_t r = call->dim[arg >= RIDGE_TRANSPOSE_FP8_Q_T], c = call->dim[arg < RIDGE_TRANSPOSE_FP8_Q_T];

    *rows = scale ? ridge_ceil_div(r, RIDGE_GROUP) : r;
    *cols = scale ? ridge_ceil_div(c, RIDGE_GROUP) : c;
}

/* Codes are copied: one each is counted. */
static double flops(const ridge_problem *problem)
{
    return (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_transpose_fp8(int64_t rows, int64_t cols, ridge_tensor q, ridge_tensor q_t)
{
    ridge_call call = ridge_begin(RIDGE_TRANSPOSE_FP8, rows, cols, 0, 0);

    if (q.scaling != RIDGE_SCALING_BLK128 || q_t.scaling != RIDGE_SCALING_BLK128)
        call.invalid = "the scaling of q or of q_t is not blk128";
    ridge_put_scaled(&call, RIDGE_TRANSPOSE_FP8_Q, q, RIDGE_F32);
    ridge_put_scaled(&call, RIDGE_TRANSPOSE_FP8_Q_T, q_t, RIDGE_F32);
    return call;
}

RIDGE_DEFAULTS(defaults, ridge_transpose_fp8(0, 0, ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_BLK128),
                                             ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_BLK128)))

const ridge_op_row ridge_op_transpose_fp8 = {
    .id = RIDGE_TRANSPOSE_FP8,
    .name = "transpose_fp8",
    .summary = "codes and scales of blocks of 128 x 128, transposed",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 4,
    .arg =
        {
            {"q", RIDGE_IN, 0, -1, RIDGE_MATRIX, FP8, 0, "[rows, cols]"},
            {"scale", RIDGE_IN, 0, -1, RIDGE_TABLE, SCALES, 0, "[ceil(rows/128), ceil(cols/128)]"},
            {"q_t", RIDGE_OUT, 0, RIDGE_TRANSPOSE_FP8_Q, RIDGE_MATRIX, FP8, 0, "[cols, rows]"},
            {"scale_t", RIDGE_OUT, 0, -1, RIDGE_TABLE, SCALES, 0, "[ceil(cols/128), ceil(rows/128)]"},
        },
    .fields = fields,
    .contract = EXACT,
    .bound = "the same bits, in another place",
    .extent = extent,
    .flops = flops,
    .defaults = defaults,
};

/* ------------------------------------------------------------------------------------------------------------- CPU */

/* The codes of a block and its scale. */
static void block(const ridge_call *call, int64_t tr, int64_t tc)
{
    const ridge_operand *q = &call->arg[RIDGE_TRANSPOSE_FP8_Q], *q_t = &call->arg[RIDGE_TRANSPOSE_FP8_Q_T];
    const ridge_operand *scale = &call->arg[RIDGE_TRANSPOSE_FP8_SCALE],
                        *scale_t = &call->arg[RIDGE_TRANSPOSE_FP8_SCALE_T];
    const int64_t row = tr * RIDGE_GROUP, col = tc * RIDGE_GROUP;
    const int64_t rows = ridge_min(RIDGE_GROUP, call->dim[0] - row), cols = ridge_min(RIDGE_GROUP, call->dim[1] - col);

    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            ((uint8_t *)q_t->data)[(col + c) * q_t->stride + row + r] =
                ((const uint8_t *)q->data)[(row + r) * q->stride + col + c];
    /* As bits: a move through a register of the x87 would change a NaN. */
    ((uint32_t *)scale_t->data)[tc * scale_t->stride + tr] = ((const uint32_t *)scale->data)[tr * scale->stride + tc];
}

static ridge_status launch(const ridge_device *device, const ridge_kernel *kernel, const ridge_bound *bound,
                           void *workspace, size_t bytes, void *stream)
{
    const int64_t down = ridge_ceil_div(bound->call.dim[0], RIDGE_GROUP),
                  across = ridge_ceil_div(bound->call.dim[1], RIDGE_GROUP);
    ridge_team *team;

    (void)device, (void)kernel, (void)workspace, (void)bytes, (void)stream;
    if (down == 0 || across == 0)
        return RIDGE_OK;
    team = ridge_team_begin((double)(down * across) * 8, down * across);
#pragma omp parallel num_threads(team->threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < down * across; i++)
            block(&bound->call, i / across, i % across);
        ridge_team_end(team);
    }
    return RIDGE_OK;
}

static double cost(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    (void)kernel;
    return (double)problem->dim[0] * (double)problem->dim[1] * 2e-3 / device->copy_gbps;
}

static const ridge_kernel rows[] = {
    {.name = "cpu.transpose_fp8.c",
     .op = RIDGE_TRANSPOSE_FP8,
     .arch_min = RIDGE_ARCH_C,
     .arch_max = RIDGE_ARCH_AVX512,
     .contract = EXACT,
     .cost = cost,
     .launch = launch},
};

const ridge_kernel_list ridge_cpu_transpose_fp8 = {.row = rows, .count = (int)(sizeof rows / sizeof rows[0])};
