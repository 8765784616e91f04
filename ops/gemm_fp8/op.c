/* op.c: the op row of gemm_fp8 and its builder: operands, problem text, rules. */
#include "op.h"

#define FP8 (1u << RIDGE_E4M3 | 1u << RIDGE_E5M2)
#define F32 (1u << RIDGE_F32)
#define NO_PAIR                                                                                             \
    "the scalings of a and b are no legal pair (tensor or row x tensor or row, row128 x blk128 or row128, " \
    "blk128 x row128; row128_t for all row128)"

/* The pairs of scale modes that are legal. */
static const char *const pair_names[] = {
    "tensor",     "row",        "row128_blk128",   "row128_row128",     "blk128_row128",
    "row_tensor", "tensor_row", "row128_t_blk128", "row128_t_row128_t", "blk128_row128_t",
    NULL};
static const uint32_t pair_bits[] = {
    RIDGE_SCALE_TENSOR | RIDGE_SCALE_B_TENSOR,
    RIDGE_SCALE_ROW | RIDGE_SCALE_B_ROW,
    RIDGE_SCALE_ROW128 | RIDGE_SCALE_B_BLK128,
    RIDGE_SCALE_ROW128 | RIDGE_SCALE_B_ROW128,
    RIDGE_SCALE_BLK128 | RIDGE_SCALE_B_ROW128,
    RIDGE_SCALE_ROW | RIDGE_SCALE_B_TENSOR,
    RIDGE_SCALE_TENSOR | RIDGE_SCALE_B_ROW,
    RIDGE_SCALE_ROW128 | RIDGE_SCALE_T | RIDGE_SCALE_B_BLK128,
    RIDGE_SCALE_ROW128 | RIDGE_SCALE_T | RIDGE_SCALE_B_ROW128 | RIDGE_SCALE_B_T,
    RIDGE_SCALE_BLK128 | RIDGE_SCALE_B_ROW128 | RIDGE_SCALE_B_T,
};

static const ridge_field fields[] = {
    DTYPE("a", RIDGE_GEMM_FP8_A),
    DTYPE("b", RIDGE_GEMM_FP8_B),
    DTYPE("d", RIDGE_GEMM_FP8_D),
    {.name = "scales", .kind = RIDGE_FIELD_CHOICE, .mask = GEMM_SCALES, .choices = pair_names, .bits = pair_bits},
    HAS("bias", RIDGE_GEMM_FP8_BIAS),
    FLAG("accumulate", RIDGE_ACCUMULATE),
    END,
};

static const char *rule(const ridge_call *call)
{
    const uint32_t scales = call->flags & GEMM_SCALES, bias = call->arg[RIDGE_GEMM_FP8_BIAS].dtype;
    const uint32_t d = call->arg[RIDGE_GEMM_FP8_D].dtype;
    int pair = 0;

    while (pair_names[pair] && pair_bits[pair] != scales)
        pair++;
    if (!pair_names[pair])
        return NO_PAIR;
    if (call->arg[RIDGE_GEMM_FP8_A].dtype == RIDGE_E5M2 && call->arg[RIDGE_GEMM_FP8_B].dtype == RIDGE_E5M2)
        return "operands a and b are both e5m2; one must be e4m3";
    if ((call->flags & RIDGE_ACCUMULATE) && d == RIDGE_F16)
        return "operand d is f16; RIDGE_ACCUMULATE needs bf16 or f32";
    if (bias != RIDGE_NONE && bias != RIDGE_F32 && bias != d)
        return "operand bias has neither dtype f32 nor that of d";
    if (call->dim[0] > INT32_MAX || call->dim[1] > INT32_MAX || call->dim[2] > INT32_MAX)
        return "m, n and k must be below 2^31";
    return NULL;
}

void ridge_gemm_scales_extent(uint32_t mode, bool transposed, int64_t rows, int64_t k, int64_t *table_rows,
                              int64_t *table_cols)
{
    if (transposed)
        ridge_scale_extent(mode, rows, k, table_cols, table_rows);
    else
        ridge_scale_extent(mode, rows, k, table_rows, table_cols);
    if (rows == 0 || k == 0)
        *table_rows = 0;
}

static void extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const int64_t m = call->dim[0], n = call->dim[1], k = call->dim[2];

    switch (arg) {
    case RIDGE_GEMM_FP8_SCALE_A:
        ridge_gemm_scales_extent(call->flags & RIDGE_SCALE, call->flags & RIDGE_SCALE_T, m, k, rows, cols);
        break;
    case RIDGE_GEMM_FP8_SCALE_B:
        ridge_gemm_scales_extent((call->flags & RIDGE_SCALE_B) >> 4, call->flags & RIDGE_SCALE_B_T, n, k, rows, cols);
        break;
    default:
        *rows = arg == RIDGE_GEMM_FP8_BIAS ? 1 : arg == RIDGE_GEMM_FP8_B ? n : m;
        *cols = arg == RIDGE_GEMM_FP8_A || arg == RIDGE_GEMM_FP8_B ? k : n;
    }
}

static uint8_t role(const ridge_call *call, int arg)
{
    if (arg != RIDGE_GEMM_FP8_D)
        return RIDGE_IN;
    return call->flags & RIDGE_ACCUMULATE ? RIDGE_IN | RIDGE_OUT : RIDGE_OUT;
}

static double flops(const ridge_problem *problem)
{
    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2];
}

/* The scaling as RIDGE_SCALE_*, `t` for a transposed table; false: none that a product takes. */
static bool in_flags(ridge_scaling scaling, uint32_t t, uint32_t *flags)
{
    if (scaling == RIDGE_SCALING_ROW128_T)
        *flags = RIDGE_SCALE_ROW128 | t;
    else
        *flags = RIDGE_SCALE_ROW * (uint32_t)(scaling - 1);
    return scaling == RIDGE_SCALING_ROW128_T || (scaling >= RIDGE_SCALING_TENSOR && scaling <= RIDGE_SCALING_BLK128);
}

bool ridge_gemm_scale_flags(ridge_scaling a, ridge_scaling b, uint32_t *flags)
{
    uint32_t of_a, of_b;

    if (!in_flags(a, RIDGE_SCALE_T, &of_a) || !in_flags(b, RIDGE_SCALE_B_T >> 4, &of_b))
        return false;
    *flags = of_a | of_b << 4;
    return true;
}

ridge_call ridge_gemm_fp8(int64_t m, int64_t n, int64_t k, ridge_tensor a, ridge_tensor b, ridge_tensor d)
{
    ridge_call call = ridge_begin(RIDGE_GEMM_FP8, m, n, k, 0);

    if (!ridge_gemm_scale_flags(a.scaling, b.scaling, &call.flags))
        call.invalid = NO_PAIR;
    ridge_put_scaled(&call, RIDGE_GEMM_FP8_A, a, RIDGE_F32);
    ridge_put_scaled(&call, RIDGE_GEMM_FP8_B, b, RIDGE_F32);
    ridge_put(&call, RIDGE_GEMM_FP8_D, d);
    return call;
}

RIDGE_DEFAULTS(defaults, ridge_gemm_fp8(0, 0, 0, ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_ROW128),
                                        ridge_scaled(NULL, RIDGE_E4M3, NULL, RIDGE_SCALING_BLK128),
                                        ridge_matrix(NULL, RIDGE_BF16)))

const ridge_op_row ridge_op_gemm_fp8 = {
    .id = RIDGE_GEMM_FP8,
    .name = "gemm_fp8",
    .summary = "d = a b^T with scales per tensor, row, 1x128 or 128x128",
    .dims = 3,
    .dim_name = {"m", "n", "k"},
    .args = 6,
    .arg =
        {
            {"a", RIDGE_IN, 0, -1, RIDGE_MATRIX, FP8, 0, "[m, k]"},
            {"scale_a", RIDGE_IN, 0, -1, RIDGE_TABLE, F32, 0,
             "[1]; [m]; [ceil(k/128), m] or its transpose; [ceil(m/128), ceil(k/128)]"},
            {"b", RIDGE_IN, 0, -1, RIDGE_MATRIX, FP8, 0, "[n, k]"},
            {"scale_b", RIDGE_IN, 0, -1, RIDGE_TABLE, F32, 0,
             "[1]; [n]; [ceil(k/128), n] or its transpose; [ceil(n/128), ceil(k/128)]"},
            {"d", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[m, n], an input too with accumulate"},
            {"bias", RIDGE_IN, 1, -1, RIDGE_VECTOR, RIDGE_FLOATS, 0, "[n]"},
        },
    .fields = fields,
    .flags = GEMM_SCALES | RIDGE_ACCUMULATE,
    .contract = RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
    .invariant_max = INT64_MAX,
    .invariant_split = 64,
    .bound = "2^-10 sqrt(sum over 128-blocks of (scaled sum |a b|)^2) + u |ref|, and (2^-11 + u) of the norm of each "
             "128 x 128 tile; u is half a unit of d",
    .rule = rule,
    .extent = extent,
    .role = role,
    .flops = flops,
    .defaults = defaults,
};
