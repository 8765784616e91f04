/* op.c: the op rows of Q8_0 decode and their builders: q8_0_quantize_rows, q8_0_matmul, q8_0_pair,
 * q8_0_gate_up_swiglu, q8_0_matmul_hc_expand. Operands, problem text, rules. dim[0] is tokens, so that one token is a
 * slice of a call. */
#include <math.h>
#include <stdio.h>

#include "op.h"
#include "ops/swiglu/op.h"

#define CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define F32 (1u << RIDGE_F32)
#define X_FLOATS (1u << RIDGE_F32 | 1u << RIDGE_BF16)
#define X_DTYPES (X_FLOATS | 1u << RIDGE_I8)
#define W_DTYPES (1u << RIDGE_U8 | 1u << RIDGE_I8)
#define FLOATS ridge_matrix(NULL, RIDGE_F32)
#define BLOCKS ridge_matrix(NULL, RIDGE_U8)
#define BOUND \
    "(K/32/8 + 13) units of 2^-24 of the sum over blocks of |wd xs dot|, the exact sum being of the quantised x"

/* Operands that several ops have. */
#define X_ROWS                                                                         \
    {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_DTYPES, 0, "[tokens, cols] f32, bf16, i8"}, \
    {                                                                                  \
        "x_scales", RIDGE_IN, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, cols/32], with i8" \
    }
#define W_ROWS(name, same, rows)                                                                              \
    {name, RIDGE_IN, 0, same, RIDGE_MATRIX, W_DTYPES, 0, "[" rows ", cols/32*34] u8 or [" rows ", cols] i8"}, \
    {                                                                                                         \
        name "_scales", RIDGE_IN, 1, -1, RIDGE_TABLE, 1u << RIDGE_F16, 0, "[" rows ", cols/32], with i8"      \
    }

#define NORM_ROW                                                \
    {                                                           \
        "norm", RIDGE_IN, 1, -1, RIDGE_VECTOR, F32, 0, "[cols]" \
    }
#define DEFAULT_EPS 1e-6f

/* Columns of a weight operand of either form. */
static int64_t weight_cols(const ridge_call *call, int arg)
{
    return call->arg[arg].dtype == RIDGE_I8 ? call->dim[1] : call->dim[1] / 32 * 34;
}

/* Whether operand `arg` is a weight: blocks, or codes whose scales are the next operand. */
static bool is_weight(const ridge_op_row *op, int arg)
{
    return op->arg[arg].dtypes == W_DTYPES;
}

/* Of the operand `norm` and its option. */
static const char *norm_rule(const ridge_call *call)
{
    const int norm = ridge_q8_0_norm_slot(call->op);

    if (norm < 0)
        return NULL;
    if (!(call->opt.q8_0.eps >= 0.0f) || isinf(call->opt.q8_0.eps))
        return "option eps must be finite and not negative";
    return ridge_has(call, norm) && call->arg[0].dtype == RIDGE_I8 ? "operand norm must be absent, x is i8" : NULL;
}

/* What all products ask for. */
static const char *matmul_rule(const ridge_call *call)
{
    static _Thread_local char text[96];
    const ridge_op_row *op = ridge_op_at(call->op);
    const char *reason = norm_rule(call);

    if (reason)
        return reason;

    if (call->dim[0] > RIDGE_Q8_0_MAX_PROMPT)
        return "tokens is above 65536";
    if (call->dim[0] == 0 || call->dim[1] == 0)
        return NULL;
    if (call->arg[0].dtype == RIDGE_I8 && !ridge_has(call, 1))
        return "operand x_scales is NULL, x is i8";
    if (call->arg[0].dtype != RIDGE_I8 && ridge_has(call, 1))
        return "operand x_scales must be absent, x is not i8";
    for (int arg = 0; arg < op->args; arg++) {
        const bool planes = call->arg[arg].dtype == RIDGE_I8;
        const char *name = op->arg[arg].name;
        int64_t rows, cols;

        if (!is_weight(op, arg) || planes == ridge_has(call, arg + 1))
            continue;
        op->extent(call, arg, &rows, &cols);
        if (rows) {
            snprintf(text, sizeof text, "operand %s_scales %s, %s is %s", name, planes ? "is NULL" : "must be absent",
                     name, planes ? "a plane of codes" : "in blocks");
            return text;
        }
    }
    return NULL;
}

/* After parsing: the scales that the forms imply. */
static void derive(ridge_call *call)
{
    const ridge_op_row *op = ridge_op_at(call->op);

    call->arg[1].dtype = call->arg[0].dtype == RIDGE_I8 ? RIDGE_F32 : RIDGE_NONE;
    for (int arg = 0; arg < op->args; arg++)
        if (is_weight(op, arg))
            call->arg[arg + 1].dtype = call->arg[arg].dtype == RIDGE_I8 ? RIDGE_F16 : RIDGE_NONE;
}

/* x and x_scales: slots 0 and 1 of every op but the quantiser. */
static void x_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    ridge_set_extent(rows, cols, call->dim[0], arg == 0 ? call->dim[1] : call->dim[1] / 32);
}

/* ---------------------------------------------------------------------------------------------- q8_0_quantize_rows */

static const ridge_field quantize_fields[] = {
    DTYPE("dtype", RIDGE_Q8_0_QUANTIZE_ROWS_X),
    END,
};

static void quantize_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    ridge_set_extent(rows, cols, call->dim[0],
                     arg == RIDGE_Q8_0_QUANTIZE_ROWS_SCALES ? call->dim[1] / 32 : call->dim[1]);
}

static double quantize_flops(const ridge_problem *problem)
{
    return 3.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_q8_0_quantize_rows(int64_t rows, int64_t cols, ridge_tensor x, ridge_tensor codes)
{
    ridge_call call = ridge_begin(RIDGE_Q8_0_QUANTIZE_ROWS, rows, cols, 0, 0);

    ridge_put(&call, RIDGE_Q8_0_QUANTIZE_ROWS_X, x);
    ridge_put_q8_0(&call, RIDGE_Q8_0_QUANTIZE_ROWS_CODES, codes, RIDGE_F32);
    return call;
}

RIDGE_DEFAULTS(quantize_defaults, ridge_q8_0_quantize_rows(0, 0, ridge_matrix(NULL, RIDGE_F32),
                                                           ridge_scaled(NULL, RIDGE_I8, NULL, RIDGE_SCALING_ROW32)))

const ridge_op_row ridge_op_q8_0_quantize_rows = {
    .id = RIDGE_Q8_0_QUANTIZE_ROWS,
    .name = "q8_0_quantize_rows",
    .summary = "activations to int8 codes and an f32 scale for every 32",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .step = {0, 32},
    .args = 3,
    .arg =
        {
            {"x", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[rows, cols]"},
            {"codes", RIDGE_OUT, 0, -1, RIDGE_MATRIX, 1u << RIDGE_I8, 0, "[rows, cols]"},
            {"scales", RIDGE_OUT, 0, -1, RIDGE_TABLE, F32, 0, "[rows, cols/32]"},
        },
    .fields = quantize_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "scale within 1 ulp of amax / 127, code within 0.5 + 2^-15 of x / scale",
    .extent = quantize_extent,
    .flops = quantize_flops,
    .defaults = quantize_defaults,
};

/* ----------------------------------------------------------------------------------------------------- q8_0_matmul */

static const ridge_field matmul_fields[] = {
    DTYPE("x", RIDGE_Q8_0_MATMUL_X),     DTYPE("w", RIDGE_Q8_0_MATMUL_W),           DTYPE("out", RIDGE_Q8_0_MATMUL_OUT),
    HAS("norm", RIDGE_Q8_0_MATMUL_NORM), F32_OPTION(ridge_q8_0_options, eps, 1e-6), END,
};

static void matmul_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg < RIDGE_Q8_0_MATMUL_W)
        x_extent(call, arg, rows, cols);
    else if (arg == RIDGE_Q8_0_MATMUL_NORM)
        ridge_set_extent(rows, cols, 1, call->dim[1]);
    else if (arg == RIDGE_Q8_0_MATMUL_OUT)
        ridge_set_extent(rows, cols, call->dim[0], call->dim[2]);
    else
        ridge_set_extent(rows, cols, call->dim[2],
                         arg == RIDGE_Q8_0_MATMUL_W ? weight_cols(call, arg) : call->dim[1] / 32);
}

static double matmul_flops(const ridge_problem *problem)
{
    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2];
}

/* x and w of every product, in slots 0 and 2. */
static void put_product(ridge_call *call, ridge_tensor x, ridge_tensor w)
{
    ridge_put_q8_0(call, 0, x, RIDGE_F32);
    ridge_put_q8_0(call, 2, w, RIDGE_F16);
}

ridge_call ridge_q8_0_matmul(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x, ridge_tensor w,
                             ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_Q8_0_MATMUL, tokens, cols, rows, 0);

    call.opt.q8_0.eps = DEFAULT_EPS;
    put_product(&call, x, w);
    ridge_put(&call, RIDGE_Q8_0_MATMUL_OUT, out);
    return call;
}

RIDGE_DEFAULTS(matmul_defaults, ridge_q8_0_matmul(0, 0, 0, FLOATS, BLOCKS, FLOATS))

const ridge_op_row ridge_op_q8_0_matmul = {
    .id = RIDGE_Q8_0_MATMUL,
    .name = "q8_0_matmul",
    .summary = "Q8_0 weights times the activations of tokens",
    .dims = 3,
    .dim_name = {"tokens", "cols", "rows"},
    .step = {0, 32, 0},
    .args = 6,
    .arg = {X_ROWS,
            W_ROWS("w", -1, "rows"),
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows]"},
            NORM_ROW},
    .fields = matmul_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = BOUND,
    .rule = matmul_rule,
    .extent = matmul_extent,
    .derive = derive,
    .flops = matmul_flops,
    .defaults = matmul_defaults,
};

/* ------------------------------------------------------------------------------------------------------- q8_0_pair */

static const ridge_field pair_fields[] = {
    DTYPE("x", RIDGE_Q8_0_PAIR_X),
    DTYPE("w", RIDGE_Q8_0_PAIR_W0),
    DTYPE("out", RIDGE_Q8_0_PAIR_OUT0),
    END,
};

static void pair_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool second = arg == RIDGE_Q8_0_PAIR_W1 || arg == RIDGE_Q8_0_PAIR_W1_SCALES || arg == RIDGE_Q8_0_PAIR_OUT1;
    const int64_t height = call->dim[second ? 3 : 2];

    if (arg < RIDGE_Q8_0_PAIR_W0)
        x_extent(call, arg, rows, cols);
    else if (arg >= RIDGE_Q8_0_PAIR_OUT0)
        ridge_set_extent(rows, cols, call->dim[0], height);
    else
        ridge_set_extent(rows, cols, height,
                         arg == RIDGE_Q8_0_PAIR_W0 || arg == RIDGE_Q8_0_PAIR_W1 ? weight_cols(call, arg)
                                                                                : call->dim[1] / 32);
}

static double pair_flops(const ridge_problem *problem)
{
    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] *
           ((double)problem->dim[2] + (double)problem->dim[3]);
}

ridge_call ridge_q8_0_pair(int64_t tokens, int64_t cols, int64_t rows0, int64_t rows1, ridge_tensor x, ridge_tensor w0,
                           ridge_tensor w1, ridge_tensor out0, ridge_tensor out1)
{
    ridge_call call = ridge_begin(RIDGE_Q8_0_PAIR, tokens, cols, rows0, rows1);

    put_product(&call, x, w0);
    ridge_put_q8_0(&call, RIDGE_Q8_0_PAIR_W1, w1, RIDGE_F16);
    ridge_put(&call, RIDGE_Q8_0_PAIR_OUT0, out0);
    ridge_put(&call, RIDGE_Q8_0_PAIR_OUT1, out1);
    return call;
}

RIDGE_DEFAULTS(pair_defaults, ridge_q8_0_pair(0, 0, 0, 0, FLOATS, BLOCKS, BLOCKS, FLOATS, FLOATS))

const ridge_op_row ridge_op_q8_0_pair = {
    .id = RIDGE_Q8_0_PAIR,
    .name = "q8_0_pair",
    .summary = "two q8_0_matmul of one x",
    .dims = 4,
    .dim_name = {"tokens", "cols", "rows0", "rows1"},
    .step = {0, 32, 0, 0},
    .args = 8,
    .arg =
        {
            X_ROWS,
            W_ROWS("w0", -1, "rows0"),
            W_ROWS("w1", RIDGE_Q8_0_PAIR_W0, "rows1"),
            {"out0", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows0]"},
            {"out1", RIDGE_OUT, 0, RIDGE_Q8_0_PAIR_OUT0, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows1]"},
        },
    .fields = pair_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = BOUND,
    .rule = matmul_rule,
    .extent = pair_extent,
    .derive = derive,
    .flops = pair_flops,
    .defaults = pair_defaults,
};

/* --------------------------------------------------------------------------------------------- q8_0_gate_up_swiglu */

static const ridge_field gate_up_fields[] = {
    DTYPE("x", RIDGE_Q8_0_GATE_UP_SWIGLU_X),
    DTYPE("w", RIDGE_Q8_0_GATE_UP_SWIGLU_GATE),
    DTYPE("out", RIDGE_Q8_0_GATE_UP_SWIGLU_OUT),
    RIDGE_ACT_FIELD,
    HAS("token_scale", RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE),
    RIDGE_SWIGLU_FIELDS,
    HAS("norm", RIDGE_Q8_0_GATE_UP_SWIGLU_NORM),
    F32_OPTION(ridge_q8_0_options, eps, 1e-6),
    END,
};

static const char *gate_up_rule(const ridge_call *call)
{
    const char *reason = ridge_swiglu_options_rule(&call->opt.swiglu, call->flags);

    return reason ? reason : matmul_rule(call);
}

static void gate_up_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg < RIDGE_Q8_0_GATE_UP_SWIGLU_GATE)
        x_extent(call, arg, rows, cols);
    else if (arg == RIDGE_Q8_0_GATE_UP_SWIGLU_OUT)
        ridge_set_extent(rows, cols, call->dim[0], call->dim[2]);
    else if (arg == RIDGE_Q8_0_GATE_UP_SWIGLU_TOKEN_SCALE)
        ridge_set_extent(rows, cols, 1, call->dim[0]);
    else if (arg == RIDGE_Q8_0_GATE_UP_SWIGLU_NORM)
        ridge_set_extent(rows, cols, 1, call->dim[1]);
    else
        ridge_set_extent(rows, cols, call->dim[2],
                         arg == RIDGE_Q8_0_GATE_UP_SWIGLU_GATE || arg == RIDGE_Q8_0_GATE_UP_SWIGLU_UP
                             ? weight_cols(call, arg)
                             : call->dim[1] / 32);
}

static bool gate_up_plain(const ridge_call *call)
{
    return ridge_swiglu_options_plain(&call->opt.swiglu);
}

static double gate_up_flops(const ridge_problem *problem)
{
    return 2.0 * matmul_flops(problem);
}

ridge_call ridge_q8_0_gate_up_swiglu(int64_t tokens, int64_t cols, int64_t rows, ridge_tensor x, ridge_tensor gate,
                                     ridge_tensor up, ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_Q8_0_GATE_UP_SWIGLU, tokens, cols, rows, 0);

    call.opt.q8_0 = (ridge_q8_0_options){ridge_swiglu_defaults, DEFAULT_EPS};
    put_product(&call, x, gate);
    ridge_put_q8_0(&call, RIDGE_Q8_0_GATE_UP_SWIGLU_UP, up, RIDGE_F16);
    ridge_put(&call, RIDGE_Q8_0_GATE_UP_SWIGLU_OUT, out);
    return call;
}

RIDGE_DEFAULTS(gate_up_defaults, ridge_q8_0_gate_up_swiglu(0, 0, 0, FLOATS, BLOCKS, BLOCKS, FLOATS))

const ridge_op_row ridge_op_q8_0_gate_up_swiglu = {
    .id = RIDGE_Q8_0_GATE_UP_SWIGLU,
    .name = "q8_0_gate_up_swiglu",
    .summary = "two q8_0_matmul of one x, then swiglu_fwd",
    .dims = 3,
    .dim_name = {"tokens", "cols", "rows"},
    .step = {0, 32, 0},
    .args = 9,
    .arg =
        {
            X_ROWS,
            W_ROWS("gate", -1, "rows"),
            W_ROWS("up", RIDGE_Q8_0_GATE_UP_SWIGLU_GATE, "rows"),
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, rows]"},
            {"token_scale", RIDGE_IN, 1, -1, RIDGE_VECTOR, F32, 0, "[tokens]"},
            NORM_ROW,
        },
    .fields = gate_up_fields,
    .flags = RIDGE_ACTIVATION,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "the bounds of q8_0_matmul for gate and up, then of swiglu_fwd",
    .rule = gate_up_rule,
    .extent = gate_up_extent,
    .plain = gate_up_plain,
    .derive = derive,
    .flops = gate_up_flops,
    .defaults = gate_up_defaults,
};

/* ------------------------------------------------------------------------------------------- q8_0_matmul_hc_expand */

static const ridge_field hc_fields[] = {
    DTYPE("x", RIDGE_Q8_0_MATMUL_HC_EXPAND_X),
    DTYPE("w", RIDGE_Q8_0_MATMUL_HC_EXPAND_W),
    HAS("add", RIDGE_Q8_0_MATMUL_HC_EXPAND_ADD),
    HAS("y", RIDGE_Q8_0_MATMUL_HC_EXPAND_Y),
    END,
};

static const char *hc_rule(const ridge_call *call)
{
    if (call->dim[3] < 1 || call->dim[3] > RIDGE_MAX_HC)
        return "n_hc is outside 1 .. 16";
    return matmul_rule(call);
}

static void hc_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const int64_t n = call->dim[3], height = call->dim[2];

    ridge_set_extent(rows, cols, call->dim[0], height);
    switch (arg) {
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_X:
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_X_SCALES:
        x_extent(call, arg, rows, cols);
        break;
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_W:
        ridge_set_extent(rows, cols, height, weight_cols(call, arg));
        break;
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_W_SCALES:
        ridge_set_extent(rows, cols, height, call->dim[1] / 32);
        break;
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_POST:
        *cols = n;
        break;
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB: /* dimensions of up to 2^40 come here before the rule sees them */
        *cols = n > RIDGE_MAX_HC ? n : n * n;
        break;
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_RES:
    case RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT:
        *cols = n > RIDGE_MAX_HC ? height : n * height;
        break;
    default:
        break;
    }
}

static double hc_flops(const ridge_problem *problem)
{
    const double n = (double)problem->dim[3];

    return matmul_flops(problem) + (double)problem->dim[0] * (double)problem->dim[2] * n * (1 + 2 * n);
}

ridge_call ridge_q8_0_matmul_hc_expand(int64_t tokens, int64_t cols, int64_t rows, int64_t n_hc, ridge_tensor x,
                                       ridge_tensor w, const float *post, const float *comb, const float *res,
                                       float *out)
{
    ridge_call call = ridge_begin(RIDGE_Q8_0_MATMUL_HC_EXPAND, tokens, cols, rows, n_hc);

    put_product(&call, x, w);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_POST, RIDGE_F32, post, 0);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_COMB, RIDGE_F32, comb, 0);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_RES, RIDGE_F32, res, 0);
    ridge_set(&call, RIDGE_Q8_0_MATMUL_HC_EXPAND_OUT, RIDGE_F32, out, 0);
    return call;
}

RIDGE_DEFAULTS(hc_defaults, ridge_q8_0_matmul_hc_expand(0, 0, 0, 4, FLOATS, BLOCKS, NULL, NULL, NULL, NULL))

const ridge_op_row ridge_op_q8_0_matmul_hc_expand = {
    .id = RIDGE_Q8_0_MATMUL_HC_EXPAND,
    .name = "q8_0_matmul_hc_expand",
    .summary = "q8_0_matmul, then hyper-connections",
    .dims = 4,
    .dim_name = {"tokens", "cols", "rows", "n_hc"},
    .step = {0, 32, 0, 0},
    .args = 10,
    .arg =
        {
            X_ROWS,
            W_ROWS("w", -1, "rows"),
            {"post", RIDGE_IN, 0, -1, RIDGE_TABLE, F32, 0, "[tokens, n_hc]"},
            {"comb", RIDGE_IN, 0, -1, RIDGE_TABLE, F32, 0, "[tokens, n_hc*n_hc]"},
            {"res", RIDGE_IN, 0, -1, RIDGE_MATRIX, F32, 0, "[tokens, n_hc*rows]"},
            {"add", RIDGE_IN, 1, -1, RIDGE_MATRIX, F32, 0, "[tokens, rows]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, F32, 0, "[tokens, n_hc*rows]"},
            {"y", RIDGE_OUT, 1, -1, RIDGE_MATRIX, F32, 0, "[tokens, rows]"},
        },
    .fields = hc_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "the bound of q8_0_matmul through post, and (n_hc + 2) units of 2^-24 of the sum of |terms|",
    .rule = hc_rule,
    .extent = hc_extent,
    .derive = derive,
    .flops = hc_flops,
    .defaults = hc_defaults,
};
