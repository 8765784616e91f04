/* op_blocks.c: the op rows of Q8_0 blocks and their builders: q8_0_quantize, q8_0_repack, q8_0_unpack. */
#include "op.h"
#include "src/util.h"

#define CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_CLOSE | RIDGE_INVARIANT)

static const ridge_field q8_0_quantize_fields[] = {
    DTYPE("dtype", RIDGE_Q8_0_QUANTIZE_X),
    END,
};

static const ridge_field q8_0_planes_fields[] = {
    END,
};

static void q8_0_quantize_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = call->dim[0];
    *cols = arg == RIDGE_Q8_0_QUANTIZE_X ? call->dim[1] : call->dim[1] / 32 * 34;
}

static void q8_0_planes_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = call->dim[0];
    *cols = arg == RIDGE_Q8_0_REPACK_BLOCKS  ? call->dim[1] / 32 * 34
            : arg == RIDGE_Q8_0_REPACK_CODES ? call->dim[1]
                                             : call->dim[1] / 32;
}

/* amax, a division per group, a product and an encoding per element: counted one each. */
static double q8_0_quantize_flops(const ridge_problem *problem)
{
    return 3.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

static double q8_0_planes_flops(const ridge_problem *problem)
{
    (void)problem;
    return 0;
}

int64_t ridge_ld_q8_0(int64_t cols)
{
    return cols >= 0 && cols <= INT64_C(1) << 40 ? ridge_round_up(cols, 128) : 0;
}

void ridge_put_q8_0(ridge_call *call, int slot, ridge_tensor tensor, ridge_dtype scale_dtype)
{
    const bool scaled = tensor.scaling == RIDGE_SCALING_ROW32;

    if (!scaled && (tensor.scaling != RIDGE_SCALING_NONE || tensor.scale))
        call->invalid = "the scaling of an operand is neither none nor row32";
    ridge_put_scaled(call, slot, tensor, scaled ? scale_dtype : RIDGE_NONE);
}

ridge_call ridge_q8_0_quantize(int64_t rows, int64_t cols, ridge_tensor x, void *blocks)
{
    ridge_call call = ridge_begin(RIDGE_Q8_0_QUANTIZE, rows, cols, 0, 0);

    ridge_put(&call, RIDGE_Q8_0_QUANTIZE_X, x);
    ridge_set(&call, RIDGE_Q8_0_QUANTIZE_BLOCKS, RIDGE_U8, blocks, 0);
    return call;
}

static ridge_call repack(ridge_op op, int64_t rows, int64_t cols, const void *blocks, ridge_tensor planes)
{
    ridge_call call = ridge_begin(op, rows, cols, 0, 0);

    ridge_set(&call, RIDGE_Q8_0_REPACK_BLOCKS, RIDGE_U8, blocks, 0);
    ridge_put_q8_0(&call, RIDGE_Q8_0_REPACK_CODES, planes, RIDGE_F16);
    return call;
}

ridge_call ridge_q8_0_repack(int64_t rows, int64_t cols, const void *blocks, ridge_tensor planes)
{
    return repack(RIDGE_Q8_0_REPACK, rows, cols, blocks, planes);
}

ridge_call ridge_q8_0_unpack(int64_t rows, int64_t cols, ridge_tensor planes, void *blocks)
{
    return repack(RIDGE_Q8_0_UNPACK, rows, cols, blocks, planes);
}

RIDGE_DEFAULTS(q8_0_quantize_defaults, ridge_q8_0_quantize(0, 0, ridge_matrix(NULL, RIDGE_F32), NULL))
RIDGE_DEFAULTS(q8_0_repack_defaults,
               ridge_q8_0_repack(0, 0, NULL, ridge_scaled(NULL, RIDGE_I8, NULL, RIDGE_SCALING_ROW32)))
RIDGE_DEFAULTS(q8_0_unpack_defaults,
               ridge_q8_0_unpack(0, 0, ridge_scaled(NULL, RIDGE_I8, NULL, RIDGE_SCALING_ROW32), NULL))

const ridge_op_row ridge_op_q8_0_quantize = {
    .id = RIDGE_Q8_0_QUANTIZE,
    .name = "q8_0_quantize",
    .summary = "x to GGUF Q8_0 blocks, byte for byte ggml's reference",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .step = {0, 32},
    .args = 2,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[rows, cols]"},
            {"blocks", RIDGE_OUT, 0, -1, RIDGE_MATRIX, 1u << RIDGE_U8, 0, "[rows, cols/32*34]"},
        },
    .fields = q8_0_quantize_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "d is amax / 127 in f32, then f16; codes are x / d before that, within half a unit and 2^-16",
    .extent = q8_0_quantize_extent,
    .flops = q8_0_quantize_flops,
    .defaults = q8_0_quantize_defaults,
};

#define PLANES(blocks_role, plane_role)                                                        \
    {                                                                                          \
        {"blocks", blocks_role, 0, -1, RIDGE_MATRIX, 1u << RIDGE_U8, 0, "[rows, cols/32*34]"}, \
            {"codes", plane_role, 0, -1, RIDGE_MATRIX, 1u << RIDGE_I8, 0, "[rows, cols]"},     \
            {"scales", plane_role, 0, -1, RIDGE_TABLE, 1u << RIDGE_F16, 0, "[rows, cols/32]"}, \
    }

const ridge_op_row ridge_op_q8_0_repack = {
    .id = RIDGE_Q8_0_REPACK,
    .name = "q8_0_repack",
    .summary = "Q8_0 blocks to a plane of codes and a plane of scales",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .step = {0, 32},
    .args = 3,
    .arg = PLANES(RIDGE_IN, RIDGE_OUT),
    .fields = q8_0_planes_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "the same bytes in another order",
    .extent = q8_0_planes_extent,
    .flops = q8_0_planes_flops,
    .defaults = q8_0_repack_defaults,
};

const ridge_op_row ridge_op_q8_0_unpack = {
    .id = RIDGE_Q8_0_UNPACK,
    .name = "q8_0_unpack",
    .summary = "the inverse of q8_0_repack",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .step = {0, 32},
    .args = 3,
    .arg = PLANES(RIDGE_OUT, RIDGE_IN),
    .fields = q8_0_planes_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "the same bytes in another order",
    .extent = q8_0_planes_extent,
    .flops = q8_0_planes_flops,
    .defaults = q8_0_unpack_defaults,
};
