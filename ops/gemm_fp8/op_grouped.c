/* op_grouped.c: the op row of gemm_fp8_grouped and its builder: operands, problem text, rules. */
#include "op.h"

#define FP8 (1u << RIDGE_E4M3 | 1u << RIDGE_E5M2)
#define F32 (1u << RIDGE_F32)
#define BY_M (RIDGE_SCALE_ROW128 | RIDGE_SCALE_B_BLK128)
#define BY_K (RIDGE_SCALE_ROW128 | RIDGE_SCALE_B_ROW128)
#define NO_PAIR                                                                                                  \
    "the scalings of a and b are no legal pair (tensor or row x tensor or row, row128 x blk128 or row128, of k " \
    "blk128 x row128 too; row128_t for all row128)"

/* The pairs of scale modes that are legal, those of blk128 x row128 with RIDGE_GROUPED_K alone. */
static const char *const pair_names[] = {"row128_blk128",
                                         "tensor",
                                         "row",
                                         "row_tensor",
                                         "tensor_row",
                                         "row128_t_blk128",
                                         "row128_row128",
                                         "blk128_row128",
                                         "row128_t_row128_t",
                                         "blk128_row128_t",
                                         NULL};
static const uint32_t pair_bits[] = {
    BY_M,
    RIDGE_SCALE_TENSOR | RIDGE_SCALE_B_TENSOR,
    RIDGE_SCALE_ROW | RIDGE_SCALE_B_ROW,
    RIDGE_SCALE_ROW | RIDGE_SCALE_B_TENSOR,
    RIDGE_SCALE_TENSOR | RIDGE_SCALE_B_ROW,
    RIDGE_SCALE_ROW128 | RIDGE_SCALE_T | RIDGE_SCALE_B_BLK128,
    BY_K,
    RIDGE_SCALE_BLK128 | RIDGE_SCALE_B_ROW128,
    RIDGE_SCALE_ROW128 | RIDGE_SCALE_T | RIDGE_SCALE_B_ROW128 | RIDGE_SCALE_B_T,
    RIDGE_SCALE_BLK128 | RIDGE_SCALE_B_ROW128 | RIDGE_SCALE_B_T,
};

static const char *const mode_names[] = {"m", "k", "masked", NULL};

static const ridge_field fields[] = {
    DTYPE("a", RIDGE_GEMM_FP8_GROUPED_A),
    DTYPE("b", RIDGE_GEMM_FP8_GROUPED_B),
    DTYPE("d", RIDGE_GEMM_FP8_GROUPED_D),
    CHOICE("mode", RIDGE_GROUPED, mode_names),
    {.name = "scales", .kind = RIDGE_FIELD_CHOICE, .mask = GEMM_SCALES, .choices = pair_names, .bits = pair_bits},
    DTYPE("offsets", RIDGE_GEMM_FP8_GROUPED_OFFSETS),
    HAS("bad", RIDGE_GEMM_FP8_GROUPED_BAD),
    HAS("bias", RIDGE_GEMM_FP8_GROUPED_BIAS),
    FLAG("accumulate", RIDGE_ACCUMULATE),
    END,
};

static bool too_large(const ridge_call *call)
{
    const uint32_t mode = call->flags & RIDGE_GROUPED;
    const int64_t m = call->dim[0], n = call->dim[1], k = call->dim[2], groups = call->dim[3];

    return m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || groups > INT32_MAX ||
           (mode != RIDGE_GROUPED_M && m * groups > INT32_MAX) || (mode != RIDGE_GROUPED_K && n * groups > INT32_MAX);
}

static const char *rule(const ridge_call *call)
{
    const uint32_t mode = call->flags & RIDGE_GROUPED, d = call->arg[RIDGE_GEMM_FP8_GROUPED_D].dtype;
    const uint32_t bias = call->arg[RIDGE_GEMM_FP8_GROUPED_BIAS].dtype;
    int pair = 0;

    if (mode == RIDGE_GROUPED)
        return "RIDGE_GROUPED_K and RIDGE_GROUPED_MASKED exclude each other";
    while (pair_names[pair] && pair_bits[pair] != (call->flags & GEMM_SCALES))
        pair++;
    if (!pair_names[pair])
        return NO_PAIR;
    if ((call->flags & RIDGE_SCALE) == RIDGE_SCALE_BLK128 && mode != RIDGE_GROUPED_K)
        return "scales of a by 128 x 128 need RIDGE_GROUPED_K: two groups of rows would share a block";
    if (call->arg[RIDGE_GEMM_FP8_GROUPED_A].dtype == RIDGE_E5M2 &&
        call->arg[RIDGE_GEMM_FP8_GROUPED_B].dtype == RIDGE_E5M2)
        return "operands a and b are both e5m2; one must be e4m3";
    if ((call->flags & RIDGE_ACCUMULATE) && mode != RIDGE_GROUPED_K)
        return "RIDGE_ACCUMULATE needs RIDGE_GROUPED_K";
    if ((call->flags & RIDGE_ACCUMULATE) && d == RIDGE_F16)
        return "operand d is f16; RIDGE_ACCUMULATE needs bf16 or f32";
    if (bias != RIDGE_NONE && bias != RIDGE_F32 && bias != d)
        return "operand bias has neither dtype f32 nor that of d";
    if (too_large(call))
        return "m, n, k, groups * m and groups * n must be below 2^31";
    return NULL;
}

static void extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const uint32_t mode = call->flags & RIDGE_GROUPED;
    const int64_t n = call->dim[1], k = call->dim[2],
                  groups = too_large(call) ? 0 : call->dim[3]; /* the rule refuses it */
    const int64_t a_rows = mode == RIDGE_GROUPED_MASKED ? groups * call->dim[0] : call->dim[0];
    const int64_t b_rows = mode == RIDGE_GROUPED_K ? n : groups * n;
    const uint32_t mode_a = call->flags & RIDGE_SCALE, mode_b = (call->flags & RIDGE_SCALE_B) >> 4;

    switch (arg) {
    case RIDGE_GEMM_FP8_GROUPED_A:
        ridge_set_extent(rows, cols, a_rows, k);
        break;
    case RIDGE_GEMM_FP8_GROUPED_SCALE_A:
        ridge_gemm_scales_extent(mode_a, call->flags & RIDGE_SCALE_T, a_rows, k, rows, cols);
        if (mode == RIDGE_GROUPED_K && mode_a == RIDGE_SCALE_ROW)
            *cols *= groups;
        break;
    case RIDGE_GEMM_FP8_GROUPED_B:
        ridge_set_extent(rows, cols, b_rows, k);
        break;
    case RIDGE_GEMM_FP8_GROUPED_SCALE_B:
        ridge_gemm_scales_extent(mode_b, call->flags & RIDGE_SCALE_B_T, mode_b == RIDGE_SCALE_BLK128 ? n : b_rows, k,
                                 rows, cols);
        if (mode_b == RIDGE_SCALE_BLK128 && mode != RIDGE_GROUPED_K) /* the blocks begin anew in each group */
            *rows *= groups;
        if (mode_b == RIDGE_SCALE_TENSOR && mode != RIDGE_GROUPED_K)
            *cols = groups;
        if (mode_b == RIDGE_SCALE_ROW && mode == RIDGE_GROUPED_K)
            *cols *= groups;
        break;
    case RIDGE_GEMM_FP8_GROUPED_D:
        ridge_set_extent(rows, cols, mode == RIDGE_GROUPED_M ? call->dim[0] : groups * call->dim[0], n);
        break;
    case RIDGE_GEMM_FP8_GROUPED_OFFSETS:
        ridge_set_extent(rows, cols, 1, mode == RIDGE_GROUPED_MASKED ? groups : groups + 1);
        break;
    case RIDGE_GEMM_FP8_GROUPED_BIAS:
        ridge_set_extent(rows, cols, 1, groups * n);
        break;
    default:
        ridge_set_extent(rows, cols, 1, 1);
    }
}

static uint8_t role(const ridge_call *call, int arg)
{
    if (arg == RIDGE_GEMM_FP8_GROUPED_D)
        return call->flags & RIDGE_ACCUMULATE ? RIDGE_IN | RIDGE_OUT : RIDGE_OUT;
    return arg == RIDGE_GEMM_FP8_GROUPED_BAD ? RIDGE_OUT : RIDGE_IN;
}

/* Of groups that share out all of m or k, or have all of their rows. */
static double flops(const ridge_problem *problem)
{
    const bool masked = (problem->flags & RIDGE_GROUPED) == RIDGE_GROUPED_MASKED;

    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] *
           (masked ? (double)problem->dim[3] : 1.0);
}

ridge_call ridge_gemm_fp8_grouped(int64_t m, int64_t n, int64_t k, int64_t groups, ridge_tensor a, ridge_tensor b,
                                  ridge_tensor d, ridge_tensor offsets)
{
    ridge_call call = ridge_begin(RIDGE_GEMM_FP8_GROUPED, m, n, k, groups);

    if (!ridge_gemm_scale_flags(a.scaling, b.scaling, &call.flags))
        call.invalid = NO_PAIR;
    ridge_put_scaled(&call, RIDGE_GEMM_FP8_GROUPED_A, a, RIDGE_F32);
    ridge_put_scaled(&call, RIDGE_GEMM_FP8_GROUPED_B, b, RIDGE_F32);
    ridge_put(&call, RIDGE_GEMM_FP8_GROUPED_D, d);
    ridge_put(&call, RIDGE_GEMM_FP8_GROUPED_OFFSETS, offsets);
    return call;
}

RIDGE_DEFAULTS(defaults, ridge_gemm_fp8_grouped(0, 0, 0, 0, ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128),
                                                ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_BLK128),
                                                ridge_matrix(NULL, RIDGE_BF16), ridge_matrix(NULL, RIDGE_I32)))

const ridge_op_row ridge_op_gemm_fp8_grouped = {
    .id = RIDGE_GEMM_FP8_GROUPED,
    .name = "gemm_fp8_grouped",
    .summary = "gemm_fp8 for each group of rows, or of k, by offsets on the device",
    .dims = 4,
    .dim_name = {"m", "n", "k", "groups"},
    .args = 8,
    .arg =
        {
            {"a", RIDGE_IN, 0, -1, RIDGE_MATRIX, FP8, 0, "[m, k]; mode=masked: [groups * m, k]"},
            {"scale_a", RIDGE_IN, 0, -1, RIDGE_TABLE, F32, 0,
             "[1]; [rows of a], mode=k: [groups * m]; [ceil(k/128), rows of a] or its transpose; mode=k: "
             "[ceil(m/128), ceil(k/128)]"},
            {"b", RIDGE_IN, 0, -1, RIDGE_MATRIX, FP8, 0, "[groups * n, k]; mode=k: [n, k]"},
            {"scale_b", RIDGE_IN, 0, -1, RIDGE_TABLE, F32, 0,
             "[groups], mode=k: [1]; [groups * n]; [groups * ceil(n/128), ceil(k/128)], mode=k: [ceil(n/128), "
             "ceil(k/128)]; "
             "[ceil(k/128), rows of b] or its transpose"},
            {"d", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0,
             "[m, n], else [groups * m, n]; an input too with accumulate"},
            {"offsets", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_I32 | 1u << RIDGE_I64, 0,
             "[groups + 1]; mode=masked: [groups]"},
            {"bad", RIDGE_OUT, 1, -1, RIDGE_VECTOR, 1u << RIDGE_I32, 0, "[1]"},
            {"bias", RIDGE_IN, 1, -1, RIDGE_VECTOR, RIDGE_FLOATS, 0, "[groups * n]"},
        },
    .fields = fields,
    .flags = GEMM_SCALES | RIDGE_GROUPED | RIDGE_ACCUMULATE,
    .contract = RIDGE_STABLE | RIDGE_CLOSE,
    .bound = "of each group as gemm_fp8's; nothing else of d is written",
    .rule = rule,
    .extent = extent,
    .role = role,
    .flops = flops,
    .defaults = defaults,
};
