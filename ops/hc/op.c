/* op.c: the op rows of hc_mix and hc_split and their builders: operands, problem text, rules. */
#include <math.h>

#include "args.h"
#include "src/math/hc.h"
#include "src/ops.h"

#define CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define F32 (1u << RIDGE_F32)

static const char *common_rule(const ridge_call *call)
{
    const ridge_hc_options *o = &call->opt.hc;

    if (!(o->eps >= 0.0f) || isinf(o->eps))
        return "option eps must be finite and not negative";
    if (!(o->hc_eps >= 1e-12f && o->hc_eps <= 1.0f))
        return "option hc_eps is outside 1e-12 .. 1";
    if (o->iterations < 1 || o->iterations > 1000)
        return "option iterations is outside 1 .. 1000";
    if (call->dim[1] < 1)
        return "cols is 0";
    return call->dim[2] < 1 || call->dim[2] > RIDGE_MAX_HC ? "n_hc is outside 1 .. 16" : NULL;
}

/* Columns of all streams; a product that overflows is refused as a row of 2^62 elements. */
static int64_t all_cols(const ridge_call *call)
{
    int64_t cols;

    return __builtin_mul_overflow(call->dim[1], call->dim[2], &cols) || cols < 0 ? INT64_C(1) << 62 : cols;
}

/* ---------------------------------------------------------------------------------------------------------- hc_mix */

static const ridge_field mix_fields[] = {
    DTYPE("fn", RIDGE_HC_MIX_FN),
    F32_OPTION(ridge_hc_options, eps, 1e-6),
    END,
};

static void mix_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    ridge_set_extent(rows, cols, call->dim[arg == RIDGE_HC_MIX_FN ? 3 : 0],
                     arg == RIDGE_HC_MIX_OUT ? call->dim[3] : all_cols(call));
}

static double mix_flops(const ridge_problem *problem)
{
    return 2.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[2] * (double)problem->dim[3];
}

static ridge_hc_options options(void)
{
    return (ridge_hc_options){.eps = 1e-6f, .hc_eps = 1e-6f, .iterations = 20};
}

ridge_call ridge_hc_mix(int64_t tokens, int64_t cols, int64_t n_hc, int64_t mixes, const float *res, ridge_tensor fn,
                        float *mix)
{
    ridge_call call = ridge_begin(RIDGE_HC_MIX, tokens, cols, n_hc, mixes);

    call.opt.hc = options();
    ridge_set(&call, RIDGE_HC_MIX_RES, RIDGE_F32, res, 0);
    ridge_put(&call, RIDGE_HC_MIX_FN, fn);
    ridge_set(&call, RIDGE_HC_MIX_OUT, RIDGE_F32, mix, 0);
    return call;
}

RIDGE_DEFAULTS(mix_defaults, ridge_hc_mix(0, 0, 4, 0, NULL, ridge_matrix(NULL, RIDGE_F16), NULL))

const ridge_op_row ridge_op_hc_mix = {
    .id = RIDGE_HC_MIX,
    .name = "hc_mix",
    .summary = "hyper-connections: the streams, normed as one row, times a small matrix",
    .dims = 4,
    .dim_name = {"tokens", "cols", "n_hc", "mixes"},
    .args = 3,
    .arg =
        {
            {"res", RIDGE_IN, 0, -1, RIDGE_MATRIX, F32, 0, "[tokens, n_hc*cols]"},
            {"fn", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[mixes, n_hc*cols]"},
            {"mix", RIDGE_OUT, 0, -1, RIDGE_MATRIX, F32, 0, "[tokens, mixes]"},
        },
    .fields = mix_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "(2 n_hc (cols/2048 + 2) + 32) units of 2^-24 of the sum of |terms|",
    .rule = common_rule,
    .extent = mix_extent,
    .flops = mix_flops,
    .defaults = mix_defaults,
};

/* -------------------------------------------------------------------------------------------------------- hc_split */

static const ridge_field split_fields[] = {
    DTYPE("fn", RIDGE_HC_SPLIT_FN),
    HAS("post", RIDGE_HC_SPLIT_POST),
    HAS("w", RIDGE_HC_SPLIT_W),
    HAS("floats", RIDGE_HC_SPLIT_FLOATS),
    DTYPE("out", RIDGE_HC_SPLIT_OUT),
    F32_OPTION(ridge_hc_options, eps, 1e-6),
    F32_OPTION(ridge_hc_options, hc_eps, 1e-6),
    I64_OPTION(ridge_hc_options, iterations, 20),
    END,
};

static const char *split_rule(const ridge_call *call)
{
    const bool codes = call->arg[RIDGE_HC_SPLIT_OUT].dtype == RIDGE_I8, work = call->dim[0] != 0;

    if (ridge_has(call, RIDGE_HC_SPLIT_POST) != ridge_has(call, RIDGE_HC_SPLIT_COMB))
        return "operands post and comb go together";
    if (!codes && ridge_has(call, RIDGE_HC_SPLIT_FLOATS))
        return "operand floats must be absent, out has no codes";
    if (codes && call->dim[1] % 32)
        return "out is i8, cols must be a multiple of 32";
    if (work && codes != ridge_has(call, RIDGE_HC_SPLIT_OUT_SCALES))
        return codes ? "operand out_scales is NULL, out has codes"
                     : "operand out_scales must be absent, out has no codes";
    return common_rule(call);
}

static void split_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool streams = call->dim[2] <= RIDGE_MAX_HC; /* of more the squares overflow; the rule refuses them */
    const int64_t tokens = call->dim[0], n = streams ? call->dim[2] : 0, mixes = streams ? hc_mixes(call) : 0;
    const int64_t c[] = {all_cols(call), all_cols(call),    mixes == n ? 1 : 3, mixes,
                         call->dim[1],   call->dim[1] / 32, call->dim[1],       n,
                         n * n,          call->dim[1]};

    ridge_set_extent(rows, cols, tokens, c[arg]);
    if (arg == RIDGE_HC_SPLIT_SCALE || arg == RIDGE_HC_SPLIT_BASE || arg == RIDGE_HC_SPLIT_W)
        *rows = 1;
    else if (arg == RIDGE_HC_SPLIT_FN)
        *rows = mixes;
}

static bool split_plain(const ridge_call *call)
{
    return call->opt.hc.iterations == 20;
}

static void split_derive(ridge_call *call)
{
    const bool codes = call->arg[RIDGE_HC_SPLIT_OUT].dtype == RIDGE_I8;

    call->arg[RIDGE_HC_SPLIT_COMB].dtype = call->arg[RIDGE_HC_SPLIT_POST].dtype;
    call->arg[RIDGE_HC_SPLIT_OUT_SCALES].dtype = codes ? RIDGE_F32 : RIDGE_NONE;
}

static double split_flops(const ridge_problem *problem)
{
    const double n = (double)problem->dim[2];

    return (2 * n * (n * (n + 2) + 1) + 5) * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_hc_split(int64_t tokens, int64_t cols, int64_t n_hc, const float *res, ridge_tensor fn,
                          const float *scale, const float *base, ridge_tensor w, float *post, float *comb,
                          ridge_tensor out)
{
    ridge_call call = ridge_begin(RIDGE_HC_SPLIT, tokens, cols, n_hc, 0);

    call.opt.hc = options();
    ridge_set(&call, RIDGE_HC_SPLIT_RES, RIDGE_F32, res, 0);
    ridge_put(&call, RIDGE_HC_SPLIT_FN, fn);
    ridge_set(&call, RIDGE_HC_SPLIT_SCALE, RIDGE_F32, scale, 0);
    ridge_set(&call, RIDGE_HC_SPLIT_BASE, RIDGE_F32, base, 0);
    ridge_put(&call, RIDGE_HC_SPLIT_W, w);
    if (!w.data)
        call.arg[RIDGE_HC_SPLIT_W].dtype = RIDGE_NONE;
    ridge_set(&call, RIDGE_HC_SPLIT_POST, post ? RIDGE_F32 : RIDGE_NONE, post, 0);
    ridge_set(&call, RIDGE_HC_SPLIT_COMB, comb ? RIDGE_F32 : RIDGE_NONE, comb, 0);
    if (out.scaling != (out.dtype == RIDGE_I8 ? RIDGE_SCALING_ROW32 : RIDGE_SCALING_NONE))
        call.invalid = "the scaling of out is not that of its dtype: none; row32 of i8";
    ridge_put_scaled(&call, RIDGE_HC_SPLIT_OUT, out, out.dtype == RIDGE_I8 ? RIDGE_F32 : RIDGE_NONE);
    return call;
}

static void split_defaults(ridge_call *call)
{
    const ridge_tensor none = ridge_matrix(NULL, RIDGE_F32);

    *call = ridge_hc_split(0, 0, 4, NULL, ridge_matrix(NULL, RIDGE_F16), NULL, NULL, none, NULL, NULL, none);
    call->arg[RIDGE_HC_SPLIT_POST].dtype = RIDGE_F32;
    call->arg[RIDGE_HC_SPLIT_COMB].dtype = RIDGE_F32;
    call->arg[RIDGE_HC_SPLIT_W].dtype = RIDGE_F32;
}

const ridge_op_row ridge_op_hc_split = {
    .id = RIDGE_HC_SPLIT,
    .name = "hc_split",
    .summary = "hyper-connections: hc_mix, then a sublayer's input and its factors",
    .dims = 3,
    .dim_name = {"tokens", "cols", "n_hc"},
    .args = 10,
    .arg =
        {
            {"res", RIDGE_IN, 0, -1, RIDGE_MATRIX, F32, 0, "[tokens, n_hc*cols]"},
            {"fn", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0,
             "[n_hc*(2 + n_hc), n_hc*cols], without post [n_hc, ..]"},
            {"scale", RIDGE_IN, 0, -1, RIDGE_VECTOR, F32, 0, "[3], without post [1]"},
            {"base", RIDGE_IN, 0, -1, RIDGE_VECTOR, F32, 0, "[n_hc*(2 + n_hc)], without post [n_hc]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, F32 | 1u << RIDGE_BF16 | 1u << RIDGE_I8, 0, "[tokens, cols]"},
            {"out_scales", RIDGE_OUT, 1, -1, RIDGE_TABLE, F32, 0, "[tokens, cols/32] with i8"},
            {"w", RIDGE_IN, 1, -1, RIDGE_VECTOR, F32 | 1u << RIDGE_BF16, 0, "[cols]"},
            {"post", RIDGE_OUT, 1, -1, RIDGE_MATRIX, F32, 0, "[tokens, n_hc]"},
            {"comb", RIDGE_OUT, 1, -1, RIDGE_MATRIX, F32, 0, "[tokens, n_hc*n_hc]"},
            {"floats", RIDGE_OUT, 1, -1, RIDGE_MATRIX, F32, 0, "[tokens, cols]"},
        },
    .fields = split_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound =
        "what an error of mix within its bound makes of each result, and 2^-21 of it; codes those of a value so near",
    .rule = split_rule,
    .extent = split_extent,
    .plain = split_plain,
    .derive = split_derive,
    .flops = split_flops,
    .defaults = split_defaults,
};
