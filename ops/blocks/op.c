/* op.c: the op rows of weights in GGUF's block formats and their builders: block_repack, block_unpack, block_matmul,
 * block_pair, block_gate_up_swiglu. dim[0] is tokens, so that one token is a slice of a call. */
#include <stdio.h>

#include "problem.h"
#include "layout.h"
#include "ops/swiglu/op.h"
#include "src/util.h"

#define CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define F32 (1u << RIDGE_F32)
#define FORMATS (((1u << RIDGE_DTYPES) - 1) & ~((1u << RIDGE_Q4_0) - 1))
#define X_FLOATS (1u << RIDGE_F32 | 1u << RIDGE_BF16)
#define FLOATS ridge_matrix(NULL, RIDGE_F32)
#define TILES ridge_matrix(NULL, RIDGE_Q4_0)
#define BOUND "(K/64 + 16) units of 2^-24 of the sum over blocks of |scale xs dot| and |min xs sum|, of the quantised x"

#define X_ROWS                                                                                          \
    {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_FLOATS | 1u << RIDGE_I8, 0, "[tokens, cols] f32, bf16, i8"}, \
    {                                                                                                   \
        "x_scales", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, cols/32], with i8"                  \
    }
#define W_ROW(name, same, rows)                                                                      \
    {                                                                                                \
        name, RIDGE_IN, 0, same, RIDGE_MATRIX, FORMATS, 0, "[ceil(" rows "/16), bytes of a tile/16]" \
    }
#define VECTOR_ROW(name, shape)                            \
    {                                                      \
        name, RIDGE_IN, 1, -1, RIDGE_VECTOR, F32, 0, shape \
    }

static int64_t tiles(int64_t rows)
{
    return ridge_ceil_div(rows, BLOCK_ROWS);
}

int64_t ridge_block_tile_bytes(ridge_dtype format, int64_t cols)
{
    const block_layout f = block_layout_of((uint32_t)format);

    return f.columns && cols > 0 && cols <= INT64_C(1) << 40 && cols % f.columns == 0 ? block_tile_bytes(f, cols) : 0;
}

static void tiles_extent(const ridge_call *call, int arg, int64_t height, int64_t *rows, int64_t *cols)
{
    ridge_set_extent(rows, cols, tiles(height),
                     ridge_block_tile_bytes((ridge_dtype)call->arg[arg].dtype, call->dim[1]) / 16);
}

static const char *cols_rule(const ridge_call *call, int arg)
{
    const block_layout f = block_layout_of(call->arg[arg].dtype);

    return f.columns && call->dim[1] % f.columns ? "cols is no multiple of 256, which a block of this format has"
                                                 : NULL;
}

/* ------------------------------------------------------------------------------------------------- a few tokens */

ridge_problem ridge_block_few(const ridge_problem *problem, int64_t most)
{
    ridge_problem few = *problem;

    few.dim[0] = ridge_min(few.dim[0], most);
    return few;
}

static void advance(ridge_operand *o, int64_t elements)
{
    if (o->data)
        o->data = (char *)o->data + elements * (int64_t)ridge_dtype_size(o->dtype);
}

ridge_status ridge_block_by_few(block_launch *launch, int64_t most, const ridge_device *device,
                                const ridge_kernel *kernel, const ridge_bound *bound, void *workspace, size_t bytes,
                                void *stream)
{
    const ridge_op_row *op = bound->op;
    int64_t left = bound->call.dim[0];
    ridge_status status;
    ridge_bound few = *bound;

    do {
        const int64_t n = ridge_min(left, most);

        few.problem.dim[0] = few.call.dim[0] = n;
        status = launch(device, kernel, &few, workspace, bytes, stream);
        for (int i = 0; i < op->args; i++) {
            ridge_operand *const o = &few.call.arg[i];
            const bool scale = op->id == RIDGE_BLOCK_GATE_UP_SWIGLU && i == RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE;

            if (scale || (op->arg[i].kind != RIDGE_VECTOR && o->dtype < RIDGE_Q4_0)) /* not of weights and biases */
                advance(o, n * (scale ? 1 : o->stride));
        }
        left -= n;
    } while (left > 0 && !status);
    return status;
}

/* ------------------------------------------------------------------------------------------------- repack, unpack */

static const ridge_field repack_fields[] = {
    DTYPE("format", RIDGE_BLOCK_REPACK_TILES),
    END,
};

static const char *repack_rule(const ridge_call *call)
{
    return cols_rule(call, RIDGE_BLOCK_REPACK_TILES);
}

static void repack_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg == RIDGE_BLOCK_REPACK_TILES)
        tiles_extent(call, arg, call->dim[0], rows, cols);
    else
        ridge_set_extent(rows, cols, call->dim[0],
                         block_row_bytes(block_layout_of(call->arg[RIDGE_BLOCK_REPACK_TILES].dtype), call->dim[1]));
}

static double repack_flops(const ridge_problem *problem)
{
    (void)problem;
    return 0;
}

static ridge_call repack(ridge_op op, int64_t rows, int64_t cols, const void *blocks, ridge_tensor tiles)
{
    ridge_call call = ridge_begin(op, rows, cols, 0, 0);

    ridge_set(&call, RIDGE_BLOCK_REPACK_BLOCKS, RIDGE_U8, blocks, 0);
    ridge_put(&call, RIDGE_BLOCK_REPACK_TILES, tiles);
    return call;
}

ridge_call ridge_block_repack(int64_t rows, int64_t cols, const void *blocks, ridge_tensor tiles)
{
    return repack(RIDGE_BLOCK_REPACK, rows, cols, blocks, tiles);
}

ridge_call ridge_block_unpack(int64_t rows, int64_t cols, ridge_tensor tiles, void *blocks)
{
    return repack(RIDGE_BLOCK_UNPACK, rows, cols, blocks, tiles);
}

RIDGE_DEFAULTS(repack_defaults, ridge_block_repack(0, 0, NULL, TILES))
RIDGE_DEFAULTS(unpack_defaults, ridge_block_unpack(0, 0, TILES, NULL))

#define REPACK_ROWS(blocks_role, tiles_role)                                                               \
    {                                                                                                      \
        {"blocks", blocks_role, 0, -1, RIDGE_MATRIX, 1u << RIDGE_U8, 0, "[rows, bytes of a row]"},         \
            {"tiles", tiles_role, 0, -1, RIDGE_MATRIX, FORMATS, 0, "[ceil(rows/16), bytes of a tile/16]"}, \
    }

/* A tile is made of 16 rows: no row of the result is one row's alone, so batch-invariance is not promised. */
#define REPACK_OP(number, text, sentence, blocks_role, tiles_role, preset)                                         \
    {                                                                                                              \
        .id = number, .name = text, .summary = sentence, .dims = 2, .dim_name = {"rows", "cols"}, .step = {0, 32}, \
        .args = 2, .arg = REPACK_ROWS(blocks_role, tiles_role), .fields = repack_fields,                           \
        .contract = CONTRACT & ~RIDGE_INVARIANT, .bound = "the same bits in another order", .rule = repack_rule,   \
        .extent = repack_extent, .flops = repack_flops, .defaults = preset                                         \
    }

const ridge_op_row ridge_op_block_repack = REPACK_OP(
    RIDGE_BLOCK_REPACK, "block_repack", "GGUF blocks to tiles of 16 rows", RIDGE_IN, RIDGE_OUT, repack_defaults);
const ridge_op_row ridge_op_block_unpack =
    REPACK_OP(RIDGE_BLOCK_UNPACK, "block_unpack", "the inverse of block_repack", RIDGE_OUT, RIDGE_IN, unpack_defaults);

/* -------------------------------------------------------------------------------------------------------- products */

static const char *product_rule(const ridge_call *call)
{
    if (call->dim[0] > RIDGE_Q8_0_MAX_PROMPT)
        return "tokens is above 65536";
    if (call->dim[0] != 0 && call->dim[1] != 0 && call->arg[0].dtype == RIDGE_I8 && !ridge_has(call, 1))
        return "operand x_scales is NULL, x is i8";
    if (call->arg[0].dtype != RIDGE_I8 && ridge_has(call, 1))
        return "operand x_scales must be absent, x is not i8";
    if (call->op == RIDGE_BLOCK_MATMUL && ridge_has(call, RIDGE_BLOCK_MATMUL_RESIDUAL) &&
        call->arg[RIDGE_BLOCK_MATMUL_RESIDUAL].dtype != call->arg[RIDGE_BLOCK_MATMUL_OUT].dtype)
        return "operand residual has another dtype than out";
    return cols_rule(call, 2); /* the first weight of every product */
}

/* After parsing: the scales that x's form implies, and the dtype of the residual. */
static void derive(ridge_call *call)
{
    ridge_operand *residual = &call->arg[RIDGE_BLOCK_MATMUL_RESIDUAL];

    if (call->op == RIDGE_BLOCK_MATMUL && residual->dtype)
        residual->dtype = call->arg[RIDGE_BLOCK_MATMUL_OUT].dtype;
    call->arg[1].dtype = call->arg[0].dtype == RIDGE_I8 ? RIDGE_F32 : RIDGE_NONE;
}

static void x_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    ridge_set_extent(rows, cols, call->dim[0], arg == 0 ? call->dim[1] : call->dim[1] / 32);
}

static ridge_call begin(ridge_op op, int64_t tokens, int64_t cols, int64_t rows, int64_t rows1, ridge_tensor x)
{
    ridge_call call = ridge_begin(op, tokens, cols, rows, rows1);
    const bool scaled = x.scaling == RIDGE_SCALING_ROW32;

    if (!scaled && (x.scaling != RIDGE_SCALING_NONE || x.scale))
        call.invalid = "the scaling of x is neither none nor row32";
    ridge_put_scaled(&call, 0, x, scaled ? RIDGE_F32 : RIDGE_NONE);
    return call;
}

static double matmul_flops(const ridge_problem *problem)
{
    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2];
}

static const ridge_field matmul_fields[] = {
    DTYPE("x", RIDGE_BLOCK_MATMUL_X),
    DTYPE("w", RIDGE_BLOCK_MATMUL_W),
    DTYPE("out", RIDGE_BLOCK_MATMUL_OUT),
    HAS("bias", RIDGE_BLOCK_MATMUL_BIAS),
    HAS("residual", RIDGE_BLOCK_MATMUL_RESIDUAL),
    END,
};

static void matmul_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg < RIDGE_BLOCK_MATMUL_W)
        x_extent(call, arg, rows, cols);
    else if (arg == RIDGE_BLOCK_MATMUL_W)
        tiles_extent(call, arg, call->dim[2], rows, cols);
    else
        ridge_set_extent(rows, cols, arg == RIDGE_BLOCK_MATMUL_BIAS ? 1 : call->dim[0], call->dim[2]);
}

ridge_call ridge_block_matmul(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x, ridge_tensor w,
                              ridge_tensor out)
{
    ridge_call call = begin(RIDGE_BLOCK_MATMUL, tokens, cols, rows, 0, x);

    ridge_put(&call, RIDGE_BLOCK_MATMUL_W, w);
    ridge_put(&call, RIDGE_BLOCK_MATMUL_OUT, out);
    return call;
}

RIDGE_DEFAULTS(matmul_defaults, ridge_block_matmul(0, 0, 0, FLOATS, TILES, FLOATS))

const ridge_op_row ridge_op_block_matmul = {
    .id = RIDGE_BLOCK_MATMUL,
    .name = "block_matmul",
    .summary = "weights in a GGUF block format times tokens",
    .dims = 3,
    .dim_name = {"tokens", "cols", "rows"},
    .step = {0, 32, 0},
    .args = 6,
    .arg =
        {
            X_ROWS,
            W_ROW("w", -1, "rows"),
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 1u << RIDGE_BLOCK_MATMUL_RESIDUAL, "[tokens, rows]"},
            VECTOR_ROW("bias", "[rows]"),
            {"residual", RIDGE_IN, 1, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows]"},
        },
    .fields = matmul_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = BOUND,
    .rule = product_rule,
    .extent = matmul_extent,
    .derive = derive,
    .flops = matmul_flops,
    .defaults = matmul_defaults,
};

static const ridge_field pair_fields[] = {
    DTYPE("x", RIDGE_BLOCK_PAIR_X),       DTYPE("w", RIDGE_BLOCK_PAIR_W0),      DTYPE("out", RIDGE_BLOCK_PAIR_OUT0),
    HAS("bias0", RIDGE_BLOCK_PAIR_BIAS0), HAS("bias1", RIDGE_BLOCK_PAIR_BIAS1), END,
};

static void pair_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool second = arg == RIDGE_BLOCK_PAIR_W1 || arg == RIDGE_BLOCK_PAIR_OUT1 || arg == RIDGE_BLOCK_PAIR_BIAS1;
    const int64_t height = call->dim[second ? 3 : 2];

    if (arg < RIDGE_BLOCK_PAIR_W0)
        x_extent(call, arg, rows, cols);
    else if (arg < RIDGE_BLOCK_PAIR_OUT0)
        tiles_extent(call, arg, height, rows, cols);
    else
        ridge_set_extent(rows, cols, arg >= RIDGE_BLOCK_PAIR_BIAS0 ? 1 : call->dim[0], height);
}

static double pair_flops(const ridge_problem *problem)
{
    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] *
           ((double)problem->dim[2] + (double)problem->dim[3]);
}

ridge_call ridge_block_pair(int64_t tokens, int64_t cols, int64_t rows0, int64_t rows1, ridge_tensor x, ridge_tensor w0,
                            ridge_tensor w1, ridge_tensor out0, ridge_tensor out1)
{
    ridge_call call = begin(RIDGE_BLOCK_PAIR, tokens, cols, rows0, rows1, x);

    ridge_put(&call, RIDGE_BLOCK_PAIR_W0, w0);
    ridge_put(&call, RIDGE_BLOCK_PAIR_W1, w1);
    ridge_put(&call, RIDGE_BLOCK_PAIR_OUT0, out0);
    ridge_put(&call, RIDGE_BLOCK_PAIR_OUT1, out1);
    return call;
}

RIDGE_DEFAULTS(pair_defaults, ridge_block_pair(0, 0, 0, 0, FLOATS, TILES, TILES, FLOATS, FLOATS))

const ridge_op_row ridge_op_block_pair = {
    .id = RIDGE_BLOCK_PAIR,
    .name = "block_pair",
    .summary = "two block_matmul of one x",
    .dims = 4,
    .dim_name = {"tokens", "cols", "rows0", "rows1"},
    .step = {0, 32, 0, 0},
    .args = 8,
    .arg =
        {
            X_ROWS,
            W_ROW("w0", -1, "rows0"),
            W_ROW("w1", RIDGE_BLOCK_PAIR_W0, "rows1"),
            {"out0", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows0]"},
            {"out1", RIDGE_OUT, 0, RIDGE_BLOCK_PAIR_OUT0, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows1]"},
            VECTOR_ROW("bias0", "[rows0]"),
            VECTOR_ROW("bias1", "[rows1]"),
        },
    .fields = pair_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = BOUND,
    .rule = product_rule,
    .extent = pair_extent,
    .derive = derive,
    .flops = pair_flops,
    .defaults = pair_defaults,
};

static const ridge_field gate_up_fields[] = {
    DTYPE("x", RIDGE_BLOCK_GATE_UP_SWIGLU_X),
    DTYPE("w", RIDGE_BLOCK_GATE_UP_SWIGLU_GATE),
    DTYPE("out", RIDGE_BLOCK_GATE_UP_SWIGLU_OUT),
    RIDGE_ACT_FIELD,
    HAS("gate_bias", RIDGE_BLOCK_GATE_UP_SWIGLU_GATE_BIAS),
    HAS("up_bias", RIDGE_BLOCK_GATE_UP_SWIGLU_UP_BIAS),
    HAS("token_scale", RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE),
    RIDGE_SWIGLU_FIELDS,
    END,
};

static const char *gate_up_rule(const ridge_call *call)
{
    const char *reason = ridge_swiglu_options_rule(&call->opt.swiglu, call->flags);

    return reason ? reason : product_rule(call);
}

static void gate_up_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg < RIDGE_BLOCK_GATE_UP_SWIGLU_GATE)
        x_extent(call, arg, rows, cols);
    else if (arg < RIDGE_BLOCK_GATE_UP_SWIGLU_OUT)
        tiles_extent(call, arg, call->dim[2], rows, cols);
    else if (arg == RIDGE_BLOCK_GATE_UP_SWIGLU_TOKEN_SCALE)
        ridge_set_extent(rows, cols, 1, call->dim[0]);
    else
        ridge_set_extent(rows, cols, arg == RIDGE_BLOCK_GATE_UP_SWIGLU_OUT ? call->dim[0] : 1, call->dim[2]);
}

static bool gate_up_plain(const ridge_call *call)
{
    return ridge_swiglu_options_plain(&call->opt.swiglu);
}

static double gate_up_flops(const ridge_problem *problem)
{
    return 2.0 * matmul_flops(problem);
}

ridge_call ridge_block_gate_up_swiglu(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x, ridge_tensor gate,
                                      ridge_tensor up, ridge_tensor out)
{
    ridge_call call = begin(RIDGE_BLOCK_GATE_UP_SWIGLU, tokens, cols, rows, 0, x);

    call.opt.swiglu = ridge_swiglu_defaults;
    ridge_put(&call, RIDGE_BLOCK_GATE_UP_SWIGLU_GATE, gate);
    ridge_put(&call, RIDGE_BLOCK_GATE_UP_SWIGLU_UP, up);
    ridge_put(&call, RIDGE_BLOCK_GATE_UP_SWIGLU_OUT, out);
    return call;
}

RIDGE_DEFAULTS(gate_up_defaults, ridge_block_gate_up_swiglu(0, 0, 0, FLOATS, TILES, TILES, FLOATS))

const ridge_op_row ridge_op_block_gate_up_swiglu = {
    .id = RIDGE_BLOCK_GATE_UP_SWIGLU,
    .name = "block_gate_up_swiglu",
    .summary = "two block_matmul of one x, then swiglu_fwd",
    .dims = 3,
    .dim_name = {"tokens", "cols", "rows"},
    .step = {0, 32, 0},
    .args = 8,
    .arg =
        {
            X_ROWS,
            W_ROW("gate", -1, "rows"),
            W_ROW("up", RIDGE_BLOCK_GATE_UP_SWIGLU_GATE, "rows"),
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows]"},
            VECTOR_ROW("gate_bias", "[rows]"),
            VECTOR_ROW("up_bias", "[rows]"),
            VECTOR_ROW("token_scale", "[tokens]"),
        },
    .fields = gate_up_fields,
    .flags = RIDGE_ACTIVATION,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "the bounds of block_matmul for gate and up, then of swiglu_fwd",
    .rule = gate_up_rule,
    .extent = gate_up_extent,
    .plain = gate_up_plain,
    .derive = derive,
    .flops = gate_up_flops,
    .defaults = gate_up_defaults,
};
