/* op.c: the op rows of embed and sample and their builders: operands, problem text, rules. */
#include <math.h>

#include "ops/blocks/layout.h"
#include "src/ops.h"
#include "src/util.h"

#define CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define WHOLE (1u << RIDGE_I32 | 1u << RIDGE_I64)
#define BLOCKS (((1u << RIDGE_IQ2_XXS) - 1) & ~((1u << RIDGE_Q4_0) - 1)) /* formats whose weights have one formula */

/* ----------------------------------------------------------------------------------------------------------- embed */

static const ridge_field embed_fields[] = {
    DTYPE("table", RIDGE_EMBED_TABLE),
    DTYPE("ids", RIDGE_EMBED_IDS),
    DTYPE("out", RIDGE_EMBED_OUT),
    F32_OPTION(ridge_embed_options, scale, 1.0),
    END,
};

static const char *embed_rule(const ridge_call *call)
{
    const uint32_t table = call->arg[RIDGE_EMBED_TABLE].dtype;
    const bool scaled = ridge_has(call, RIDGE_EMBED_TABLE_SCALES);

    if (!isfinite(call->opt.embed.scale))
        return "option scale must be finite";
    if ((table == RIDGE_U8 || table == RIDGE_I8) && call->dim[1] % 32)
        return "table is Q8_0, cols must be a multiple of 32";
    if (block_layout_of(table).columns && call->dim[1] % (table < RIDGE_Q2_K ? 32 : 256))
        return "cols is no whole number of the table's blocks";
    if (scaled != (table == RIDGE_I8) && call->dim[1] && call->dim[2])
        return scaled ? "operand table_scales must be absent, table is not i8" : "operand table_scales is NULL";
    return NULL;
}

static void embed_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    *rows = arg == RIDGE_EMBED_IDS ? 1 : arg == RIDGE_EMBED_OUT ? call->dim[0] : call->dim[2];
    *cols = arg == RIDGE_EMBED_IDS ? call->dim[0] : arg == RIDGE_EMBED_TABLE_SCALES ? call->dim[1] / 32 : call->dim[1];
    if (arg == RIDGE_EMBED_TABLE && call->arg[arg].dtype == RIDGE_U8)
        *cols = call->dim[1] / 32 * 34;
    if (arg == RIDGE_EMBED_TABLE && block_layout_of(call->arg[arg].dtype).columns)
        ridge_set_extent(rows, cols, ridge_ceil_div(call->dim[2], BLOCK_ROWS),
                         block_tile_bytes(block_layout_of(call->arg[arg].dtype), call->dim[1]) / 16);
}

static void embed_derive(ridge_call *call)
{
    call->arg[RIDGE_EMBED_TABLE_SCALES].dtype = call->arg[RIDGE_EMBED_TABLE].dtype == RIDGE_I8 ? RIDGE_F16 : RIDGE_NONE;
}

static double embed_flops(const ridge_problem *problem)
{
    return (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_embed(int64_t tokens, int64_t cols, int64_t vocab, ridge_tensor table, ridge_tensor ids,
                       ridge_tensor out)
{
    const bool scaled = table.scaling == RIDGE_SCALING_ROW32;
    ridge_call call = ridge_begin(RIDGE_EMBED, tokens, cols, vocab, 0);

    call.opt.embed = (ridge_embed_options){.scale = 1.0f};
    if (!scaled && (table.scaling != RIDGE_SCALING_NONE || table.scale))
        call.invalid = "the scaling of table is neither none nor row32";
    ridge_put_scaled(&call, RIDGE_EMBED_TABLE, table, scaled ? RIDGE_F16 : RIDGE_NONE);
    ridge_put(&call, RIDGE_EMBED_IDS, ids);
    ridge_put(&call, RIDGE_EMBED_OUT, out);
    return call;
}

RIDGE_DEFAULTS(embed_defaults, ridge_embed(0, 0, 0, ridge_matrix(NULL, RIDGE_BF16), ridge_matrix(NULL, RIDGE_I32),
                                           ridge_matrix(NULL, RIDGE_BF16)))

const ridge_op_row ridge_op_embed = {
    .id = RIDGE_EMBED,
    .name = "embed",
    .summary = "rows of a table by numbers, times a factor",
    .dims = 3,
    .dim_name = {"tokens", "cols", "vocab"},
    .args = 4,
    .arg =
        {
            {"table", RIDGE_IN, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS | 1u << RIDGE_U8 | 1u << RIDGE_I8 | BLOCKS, 0,
             "[vocab, cols] floats or i8; [vocab, cols/32*34] u8; tiles"},
            {"table_scales", RIDGE_IN, 1, -1, RIDGE_TABLE, 1u << RIDGE_F16, 0, "[vocab, cols/32], with i8"},
            {"ids", RIDGE_IN, 0, -1, RIDGE_VECTOR, WHOLE, 0, "[tokens]"},
            {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, RIDGE_FLOATS, 0, "[tokens, cols]"},
        },
    .fields = embed_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "2^-24 of |ref|, and half an ulp of out",
    .rule = embed_rule,
    .extent = embed_extent,
    .derive = embed_derive,
    .flops = embed_flops,
    .defaults = embed_defaults,
};

/* ---------------------------------------------------------------------------------------------------------- sample */

static const ridge_field sample_fields[] = {
    DTYPE("token", RIDGE_SAMPLE_TOKEN),
    I64_OPTION(ridge_sample_options, top_k, 0),
    F32_OPTION(ridge_sample_options, temperature, 1.0),
    F32_OPTION(ridge_sample_options, top_p, 1.0),
    F32_OPTION(ridge_sample_options, min_p, 0.0),
    F32_OPTION(ridge_sample_options, penalty, 1.0),
    END,
};

static const char *sample_rule(const ridge_call *call)
{
    const ridge_sample_options *o = &call->opt.sample;

    if (!(o->temperature >= 0.0f) || isinf(o->temperature))
        return "option temperature must be finite and not negative";
    if (!(o->top_p > 0.0f && o->top_p <= 1.0f))
        return "option top_p must be above 0 and at most 1";
    if (!(o->min_p >= 0.0f && o->min_p <= 1.0f))
        return "option min_p must be within 0 and 1";
    if (!(o->penalty > 0.0f) || isinf(o->penalty))
        return "option penalty must be finite and above 0";
    if (o->top_k < 0)
        return "option top_k must not be negative";
    if (call->dim[0] && (call->dim[1] == 0 || call->dim[1] > (1 << 24)))
        return "vocab must be within 1 and 2^24";
    return call->dim[2] && !ridge_has(call, RIDGE_SAMPLE_HISTORY) ? "operand past is NULL, history is not 0" : NULL;
}

static void sample_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const bool matrix = arg == RIDGE_SAMPLE_LOGITS || arg == RIDGE_SAMPLE_HISTORY;

    *rows = matrix ? call->dim[0] : 1;
    *cols = arg == RIDGE_SAMPLE_LOGITS ? call->dim[1] : matrix ? call->dim[2] : call->dim[0];
}

static void sample_derive(ridge_call *call)
{
    call->arg[RIDGE_SAMPLE_HISTORY].dtype = call->dim[2] ? RIDGE_I32 : RIDGE_NONE;
}

static double sample_flops(const ridge_problem *problem)
{
    return 20.0 * (double)problem->dim[0] * (double)problem->dim[1];
}

ridge_call ridge_sample(int64_t rows, int64_t vocab, int64_t history, ridge_tensor logits, const int64_t *seed,
                        const int64_t *counter, ridge_tensor past, ridge_tensor token)
{
    ridge_call call = ridge_begin(RIDGE_SAMPLE, rows, vocab, history, 0);

    call.opt.sample = (ridge_sample_options){.temperature = 1.0f, .top_p = 1.0f, .penalty = 1.0f};
    ridge_put(&call, RIDGE_SAMPLE_LOGITS, logits);
    ridge_set(&call, RIDGE_SAMPLE_SEED, RIDGE_I64, seed, 0);
    ridge_set(&call, RIDGE_SAMPLE_COUNTER, RIDGE_I64, counter, 0);
    ridge_put(&call, RIDGE_SAMPLE_HISTORY, past);
    if (!past.data)
        call.arg[RIDGE_SAMPLE_HISTORY].dtype = RIDGE_NONE;
    ridge_put(&call, RIDGE_SAMPLE_TOKEN, token);
    return call;
}

static void sample_defaults(ridge_call *call)
{
    *call = ridge_sample(0, 0, 0, ridge_matrix(NULL, RIDGE_F32), NULL, NULL, ridge_matrix(NULL, RIDGE_I32),
                         ridge_matrix(NULL, RIDGE_I32));
    call->arg[RIDGE_SAMPLE_HISTORY].dtype = RIDGE_I32;
}

const ridge_op_row ridge_op_sample = {
    .id = RIDGE_SAMPLE,
    .name = "sample",
    .summary = "the next token of each row of logits",
    .dims = 3,
    .dim_name = {"rows", "vocab", "history"},
    .args = 5,
    .arg =
        {
            {"logits", RIDGE_IN, 0, -1, RIDGE_MATRIX, 1u << RIDGE_F32, 0, "[rows, vocab]"},
            {"seed", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_I64, 0, "[rows]"},
            {"counter", RIDGE_IN, 0, -1, RIDGE_VECTOR, 1u << RIDGE_I64, 0, "[rows]"},
            {"past", RIDGE_IN, 1, -1, RIDGE_MATRIX, 1u << RIDGE_I32, 0, "[rows, history]"},
            {"token", RIDGE_OUT, 0, -1, RIDGE_VECTOR, WHOLE, 0, "[rows]"},
        },
    .fields = sample_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "the token that float64 draws, or one within 2^-20 of its share of the distribution",
    .rule = sample_rule,
    .extent = sample_extent,
    .derive = sample_derive,
    .flops = sample_flops,
    .defaults = sample_defaults,
};
