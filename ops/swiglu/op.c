/* op.c: the op rows of swiglu_fwd and swiglu_bwd and their builders: operands, problem text, rules. */
#include <math.h>

#include "op.h"

#define FLOATS RIDGE_FLOATS
#define SWIGLU_FLAGS (RIDGE_ACTIVATION | RIDGE_ROUND_GATE | RIDGE_ROUND_GATE_BWD | RIDGE_INTERLEAVED)

const ridge_swiglu_options ridge_swiglu_defaults = {.gate_mul = 1.0f, .down_mul = 1.0f, .alpha = 1.0f};
const char *const ridge_activations[] = {"silu", "gelu_tanh", "gelu_erf", "relu2", NULL};

static const ridge_field swiglu_fwd_fields[] = {
    DTYPE("dtype", RIDGE_SWIGLU_FWD_GATE),
    RIDGE_ACT_FIELD,
    FLAG("round_gate", RIDGE_ROUND_GATE),
    FLAG("interleaved", RIDGE_INTERLEAVED),
    HAS("row_scale", RIDGE_SWIGLU_FWD_ROW_SCALE),
    RIDGE_SWIGLU_FIELDS,
    END,
};

static const ridge_field swiglu_bwd_fields[] = {
    DTYPE("dtype", RIDGE_SWIGLU_BWD_DOUT),
    RIDGE_ACT_FIELD,
    FLAG("round_gate_bwd", RIDGE_ROUND_GATE_BWD),
    FLAG("interleaved", RIDGE_INTERLEAVED),
    HAS("row_scale", RIDGE_SWIGLU_BWD_ROW_SCALE),
    HAS("drow", RIDGE_SWIGLU_BWD_DROW),
    RIDGE_SWIGLU_FIELDS,
    END,
};

const char *ridge_swiglu_options_rule(const ridge_swiglu_options *o, uint32_t flags)
{
    if (!isfinite(o->gate_mul))
        return "option gate_mul must be finite";
    if (!isfinite(o->down_mul))
        return "option down_mul must be finite";
    if (!isfinite(o->alpha))
        return "option alpha must be finite";
    if (!isfinite(o->up_offset))
        return "option up_offset must be finite";
    if (!(o->limit >= 0.0f) || isinf(o->limit))
        return "option limit must be finite and positive, or 0 for no clamp";
    if (o->alpha != 1.0f && (flags & RIDGE_ACTIVATION) != RIDGE_SILU)
        return "option alpha belongs to SiLU only";
    return NULL;
}

static const char *swiglu_rule(const ridge_call *call)
{
    const char *reason = ridge_swiglu_options_rule(&call->opt.swiglu, call->flags);
    int up = call->op == RIDGE_SWIGLU_FWD ? RIDGE_SWIGLU_FWD_UP : RIDGE_SWIGLU_BWD_UP;
    bool backward = call->op == RIDGE_SWIGLU_BWD;
    bool interleaved = (call->flags & RIDGE_INTERLEAVED) != 0;
    bool has_up = ridge_has(call, up);
    bool has_dup = backward && ridge_has(call, RIDGE_SWIGLU_BWD_DUP);

    if (reason)
        return reason;
    if (!backward && (call->flags & RIDGE_ROUND_GATE_BWD))
        return "flag RIDGE_ROUND_GATE_BWD belongs to swiglu_bwd";
    if (backward && (call->flags & RIDGE_ROUND_GATE))
        return "flag RIDGE_ROUND_GATE belongs to swiglu_fwd; the backward one is RIDGE_ROUND_GATE_BWD";
    if (call->dim[0] == 0 || call->dim[1] == 0)
        return NULL;
    if (interleaved && has_up)
        return "operand up must be absent with RIDGE_INTERLEAVED (gate holds both)";
    if (interleaved && has_dup)
        return "operand dup must be absent with RIDGE_INTERLEAVED (dgate holds both)";
    if (!interleaved && !has_up)
        return "operand up is NULL";
    if (!interleaved && backward && !has_dup)
        return "operand dup is NULL";
    return NULL;
}

static void swiglu_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    bool backward = call->op == RIDGE_SWIGLU_BWD;
    bool pair = backward ? arg == RIDGE_SWIGLU_BWD_GATE || arg == RIDGE_SWIGLU_BWD_DGATE : arg == RIDGE_SWIGLU_FWD_GATE;
    bool vector = backward ? arg >= RIDGE_SWIGLU_BWD_ROW_SCALE : arg >= RIDGE_SWIGLU_FWD_ROW_SCALE;

    *rows = vector ? 1 : call->dim[0];
    *cols = vector ? call->dim[0] : call->dim[1];
    if (pair && (call->flags & RIDGE_INTERLEAVED))
        *cols *= 2;
}

static void swiglu_derive(ridge_call *call)
{
    if (!(call->flags & RIDGE_INTERLEAVED))
        return;
    call->arg[call->op == RIDGE_SWIGLU_FWD ? RIDGE_SWIGLU_FWD_UP : RIDGE_SWIGLU_BWD_UP].dtype = RIDGE_NONE;
    if (call->op == RIDGE_SWIGLU_BWD)
        call->arg[RIDGE_SWIGLU_BWD_DUP].dtype = RIDGE_NONE;
}

bool ridge_swiglu_options_plain(const ridge_swiglu_options *o)
{
    return o->gate_mul == 1.0f && o->down_mul == 1.0f && o->alpha == 1.0f && o->up_offset == 0.0f && o->limit == 0.0f;
}

static bool swiglu_plain(const ridge_call *call)
{
    return ridge_swiglu_options_plain(&call->opt.swiglu);
}

/* Nominal: exp, division and products counted one each; SwiGLU is bound by bytes. */
static double swiglu_flops(const ridge_problem *problem)
{
    return (double)problem->dim[0] * (double)problem->dim[1] * (problem->op == RIDGE_SWIGLU_FWD ? 5.0 : 11.0);
}

ridge_call ridge_swiglu_fwd(int64_t rows, int64_t cols, ridge_dtype dtype, const void *gate, const void *up, void *out)
{
    ridge_call call = ridge_begin(RIDGE_SWIGLU_FWD, rows, cols, 0, 0);

    call.opt.swiglu = ridge_swiglu_defaults;
    ridge_set(&call, RIDGE_SWIGLU_FWD_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_SWIGLU_FWD_UP, dtype, up, 0);
    ridge_set(&call, RIDGE_SWIGLU_FWD_OUT, dtype, out, 0);
    return call;
}

ridge_call ridge_swiglu_bwd(int64_t rows, int64_t cols, ridge_dtype dtype, const void *dout, const void *gate,
                            const void *up, void *dgate, void *dup)
{
    ridge_call call = ridge_begin(RIDGE_SWIGLU_BWD, rows, cols, 0, 0);

    call.opt.swiglu = ridge_swiglu_defaults;
    ridge_set(&call, RIDGE_SWIGLU_BWD_DOUT, dtype, dout, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_GATE, dtype, gate, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_UP, dtype, up, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_DGATE, dtype, dgate, 0);
    ridge_set(&call, RIDGE_SWIGLU_BWD_DUP, dtype, dup, 0);
    return call;
}

RIDGE_DEFAULTS(swiglu_fwd_defaults, ridge_swiglu_fwd(0, 0, RIDGE_BF16, NULL, NULL, NULL))
RIDGE_DEFAULTS(swiglu_bwd_defaults, ridge_swiglu_bwd(0, 0, RIDGE_BF16, NULL, NULL, NULL, NULL, NULL))

#define ALL_CONTRACTS (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define SWIGLU_BOUND \
    "1 ulp of the dtype of the float64 result (with round_gate: of the two-rounding result), plus f32 evaluation"

const ridge_op_row ridge_op_swiglu_fwd = {
    .id = RIDGE_SWIGLU_FWD,
    .name = "swiglu_fwd",
    .summary = "out = act(gate * g) * up",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 4,
    .arg =
        {
            {"gate", RIDGE_IN, 0, -1, 0, FLOATS, 0, "[rows, cols], interleaved [rows, 2 cols]"},
            {"up", RIDGE_IN, 1, 0, 0, FLOATS, 0, "[rows, cols], absent when interleaved"},
            {"out", RIDGE_OUT, 0, 0, 0, FLOATS, 1u << RIDGE_SWIGLU_FWD_GATE | 1u << RIDGE_SWIGLU_FWD_UP,
             "[rows, cols]"},
            {"row_scale", RIDGE_IN, 1, -1, 1, 1u << RIDGE_F32, 0, "[rows]"},
        },
    .fields = swiglu_fwd_fields,
    .flags = SWIGLU_FLAGS,
    .contract = ALL_CONTRACTS,
    .invariant_max = INT64_MAX,
    .bound = SWIGLU_BOUND,
    .rule = swiglu_rule,
    .extent = swiglu_extent,
    .plain = swiglu_plain,
    .derive = swiglu_derive,
    .flops = swiglu_flops,
    .defaults = swiglu_fwd_defaults,
};

const ridge_op_row ridge_op_swiglu_bwd = {
    .id = RIDGE_SWIGLU_BWD,
    .name = "swiglu_bwd",
    .summary = "dgate, dup from dout and the saved gate and up",
    .dims = 2,
    .dim_name = {"rows", "cols"},
    .args = 7,
    .arg =
        {
            {"dout", RIDGE_IN, 0, -1, 0, FLOATS, 0, "[rows, cols]"},
            {"gate", RIDGE_IN, 0, 0, 0, FLOATS, 0, "[rows, cols], interleaved [rows, 2 cols]"},
            {"up", RIDGE_IN, 1, 0, 0, FLOATS, 0, "[rows, cols], absent when interleaved"},
            {"dgate", RIDGE_OUT, 0, 0, 0, FLOATS,
             1u << RIDGE_SWIGLU_BWD_DOUT | 1u << RIDGE_SWIGLU_BWD_GATE | 1u << RIDGE_SWIGLU_BWD_UP,
             "[rows, cols], interleaved [rows, 2 cols]"},
            {"dup", RIDGE_OUT, 1, 0, 0, FLOATS,
             1u << RIDGE_SWIGLU_BWD_DOUT | 1u << RIDGE_SWIGLU_BWD_GATE | 1u << RIDGE_SWIGLU_BWD_UP,
             "[rows, cols], absent when interleaved"},
            {"row_scale", RIDGE_IN, 1, -1, 1, 1u << RIDGE_F32, 0, "[rows]"},
            {"drow", RIDGE_OUT, 1, -1, 1, 1u << RIDGE_F32, 0, "[rows]"},
        },
    .fields = swiglu_bwd_fields,
    .flags = SWIGLU_FLAGS,
    .contract = ALL_CONTRACTS,
    .invariant_max = INT64_MAX,
    .bound = SWIGLU_BOUND,
    .rule = swiglu_rule,
    .extent = swiglu_extent,
    .plain = swiglu_plain,
    .derive = swiglu_derive,
    .flops = swiglu_flops,
    .defaults = swiglu_bwd_defaults,
};
