/* op.c: the op rows of kv_append, attention_decode, attention_prefill and kv_append_attention and their builders:
 * operands, problem text, rules. */
#include <math.h>

#include "args.h"
#include "src/ops.h"

#define CONTRACT (RIDGE_EXACT | RIDGE_UNIFORM | RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE)
#define X_FLOATS (1u << RIDGE_F32 | 1u << RIDGE_BF16)
#define KV_FLOATS (1u << RIDGE_F16 | 1u << RIDGE_BF16)
#define KV_DTYPES (KV_FLOATS | 1u << RIDGE_U8)
#define KV_SHAPE "[kv_heads, positions*head_dim], or positions*head_dim/32*34 u8"
#define ONLY(type) (1u << (type))

/* rows x (a * b); a product that overflows is refused as a row of 2^62 elements. */
static void product_extent(int64_t *rows, int64_t *cols, int64_t r, int64_t a, int64_t b)
{
    *rows = r;
    if (__builtin_mul_overflow(a, b, cols) || *cols < 0)
        *cols = INT64_C(1) << 62;
}

static const char *heads_rule(const ridge_call *call)
{
    const int64_t heads = call->dim[1], kv_heads = call->dim[2];

    if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)
        return "heads is no multiple of kv_heads";
    if (call->dim[3] > RIDGE_MAX_HEAD_DIM)
        return "head_dim is above 512";
    if (call->arg[attention_keys(call->op)].dtype == RIDGE_U8 && call->dim[3] % RIDGE_Q8_0_BLOCK)
        return "head_dim is no multiple of 32, the cache is Q8_0";
    return call->dim[4] > INT32_MAX ? "positions is above 2^31 - 1" : NULL;
}

/* ------------------------------------------------------------------------------------------------------- kv_append */

static const ridge_field append_fields[] = {
    DTYPE("qkv", RIDGE_KV_APPEND_QKV),
    DTYPE("out", RIDGE_KV_APPEND_OUT),
    DTYPE("kv", RIDGE_KV_APPEND_K),
    HAS("bias", RIDGE_KV_APPEND_BIAS),
    HAS("q_norm", RIDGE_KV_APPEND_Q_NORM),
    HAS("k_norm", RIDGE_KV_APPEND_K_NORM),
    FLAG("halves", RIDGE_ROPE_HALVES),
    I64_OPTION(ridge_kv_append_options, n_rot, 0),
    F32_OPTION(ridge_kv_append_options, eps, 1e-6),
    F32_OPTION(ridge_kv_append_options, mscale, 1.0),
    END,
};

static int64_t rotated(const ridge_call *call)
{
    return call->opt.kv_append.n_rot ? call->opt.kv_append.n_rot : call->dim[3];
}

static const char *append_rule(const ridge_call *call)
{
    const ridge_kv_append_options *o = &call->opt.kv_append;

    if (o->n_rot < 0 || o->n_rot > call->dim[3] || o->n_rot % 2)
        return "option n_rot must be even and between 0 and head_dim";
    if (!(o->eps >= 0.0f) || isinf(o->eps))
        return "option eps must be finite and not negative";
    if (!isfinite(o->mscale))
        return "option mscale must be finite";
    return heads_rule(call);
}

static void append_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    const int64_t tokens = call->dim[0], heads = call->dim[1], kv_heads = call->dim[2], n = call->dim[3];

    switch (arg) {
    case RIDGE_KV_APPEND_POS:
        ridge_set_extent(rows, cols, 1, tokens);
        break;
    case RIDGE_KV_APPEND_FREQS:
        ridge_set_extent(rows, cols, 1, rotated(call) > 0 ? rotated(call) / 2 : 0);
        break;
    case RIDGE_KV_APPEND_K:
    case RIDGE_KV_APPEND_V:
        product_extent(rows, cols, kv_heads, call->dim[4], attention_row_elements(call->arg[arg].dtype, n));
        break;
    case RIDGE_KV_APPEND_Q_NORM:
    case RIDGE_KV_APPEND_K_NORM:
        ridge_set_extent(rows, cols, 1, n);
        break;
    case RIDGE_KV_APPEND_OUT:
        product_extent(rows, cols, tokens, heads, n);
        break;
    default: /* at most 3 * 2^40 heads */
        product_extent(rows, cols, arg == RIDGE_KV_APPEND_BIAS ? 1 : tokens, heads + 2 * kv_heads, n);
        break;
    }
}

static bool append_plain(const ridge_call *call)
{
    return call->opt.kv_append.n_rot == 0 && call->opt.kv_append.mscale == 1.0f;
}

static double append_flops(const ridge_problem *problem)
{
    return 6.0 * (double)problem->dim[0] * (double)(problem->dim[1] + 2 * problem->dim[2]) * (double)problem->dim[3];
}

static ridge_call begin(ridge_op op, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        int64_t positions)
{
    ridge_call call = ridge_begin(op, tokens, heads, kv_heads, head_dim);

    call.dim[4] = positions;
    return call;
}

ridge_call ridge_kv_append(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t positions,
                           ridge_tensor qkv, const int32_t *pos, const double *freqs, ridge_tensor out, ridge_tensor k,
                           ridge_tensor v)
{
    ridge_call call = begin(RIDGE_KV_APPEND, tokens, heads, kv_heads, head_dim, positions);

    call.opt.kv_append = (ridge_kv_append_options){.eps = 1e-6f, .mscale = 1.0f};
    ridge_put(&call, RIDGE_KV_APPEND_QKV, qkv);
    ridge_set(&call, RIDGE_KV_APPEND_POS, RIDGE_I32, pos, 0);
    ridge_set(&call, RIDGE_KV_APPEND_FREQS, RIDGE_F64, freqs, 0);
    ridge_put(&call, RIDGE_KV_APPEND_OUT, out);
    ridge_put(&call, RIDGE_KV_APPEND_K, k);
    ridge_put(&call, RIDGE_KV_APPEND_V, v);
    return call;
}

RIDGE_DEFAULTS(append_defaults,
               ridge_kv_append(0, 0, 0, 0, 0, ridge_matrix(NULL, RIDGE_F32), NULL, NULL, ridge_matrix(NULL, RIDGE_F32),
                               ridge_matrix(NULL, RIDGE_F16), ridge_matrix(NULL, RIDGE_F16)))

#define APPEND_OPERANDS                                                                                 \
    {"qkv", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, (heads + 2 kv_heads)*head_dim]"},     \
        {"pos", RIDGE_IN, 0, -1, RIDGE_VECTOR, ONLY(RIDGE_I32), 0, "[tokens]"},                         \
        {"freqs", RIDGE_IN, 0, -1, RIDGE_VECTOR, ONLY(RIDGE_F64), 0, "[n_rot/2]"},                      \
        {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, heads*head_dim]"},               \
        {"k", RIDGE_IN | RIDGE_OUT, 0, -1, RIDGE_MATRIX, KV_DTYPES, 0, KV_SHAPE},                       \
        {"v", RIDGE_IN | RIDGE_OUT, 0, RIDGE_KV_APPEND_K, RIDGE_MATRIX, KV_DTYPES, 0, KV_SHAPE},        \
        {"bias", RIDGE_IN, 1, -1, RIDGE_VECTOR, ONLY(RIDGE_F32), 0, "[(heads + 2 kv_heads)*head_dim]"}, \
        {"q_norm", RIDGE_IN, 1, -1, RIDGE_VECTOR, ONLY(RIDGE_F32), 0, "[head_dim]"},                    \
        {"k_norm", RIDGE_IN, 1, -1, RIDGE_VECTOR, ONLY(RIDGE_F32), 0, "[head_dim]"},

const ridge_op_row ridge_op_kv_append = {
    .id = RIDGE_KV_APPEND,
    .name = "kv_append",
    .summary = "bias, norm and RoPE of q and k; k and v into the cache",
    .dims = 5,
    .dim_name = {"tokens", "heads", "kv_heads", "head_dim", "positions"},
    .step = {0, 0, 0, 16, 0},
    .args = 9,
    .arg = {APPEND_OPERANDS},
    .fields = append_fields,
    .flags = RIDGE_ROPE_HALVES,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "that of head_rms_norm_rope_tail, and 2^-24 of |qkv| + |bias| for the sum",
    .rule = append_rule,
    .extent = append_extent,
    .plain = append_plain,
    .flops = append_flops,
    .defaults = append_defaults,
};

/* ------------------------------------------------------------------------------------------------ attention_decode */

static const ridge_field attention_fields[] = {
    DTYPE("q", RIDGE_ATTENTION_DECODE_Q),
    DTYPE("kv", RIDGE_ATTENTION_DECODE_K),
    DTYPE("out", RIDGE_ATTENTION_DECODE_OUT),
    HAS("sinks", RIDGE_ATTENTION_DECODE_SINKS),
    I64_OPTION(ridge_attention_options, window, 0),
    F32_OPTION(ridge_attention_options, scale, 1.0),
    F32_OPTION(ridge_attention_options, softcap, 0.0),
    END,
};

static const char *score_rule(int64_t window, float scale, float softcap)
{
    if (window < 0)
        return "option window must not be negative";
    if (!isfinite(scale))
        return "option scale must be finite";
    return !(softcap >= 0.0f) || isinf(softcap) ? "option softcap must be finite and not negative" : NULL;
}

static const char *attention_rule(const ridge_call *call)
{
    const ridge_attention_options *o = &call->opt.attention;
    const char *reason = score_rule(o->window, o->scale, o->softcap);

    return reason ? reason : heads_rule(call);
}

static void attention_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    switch (arg) {
    case RIDGE_ATTENTION_DECODE_POS:
        ridge_set_extent(rows, cols, 1, call->dim[0]);
        break;
    case RIDGE_ATTENTION_DECODE_SINKS:
        ridge_set_extent(rows, cols, 1, call->dim[1]);
        break;
    case RIDGE_ATTENTION_DECODE_K:
    case RIDGE_ATTENTION_DECODE_V:
        product_extent(rows, cols, call->dim[2], call->dim[4],
                       attention_row_elements(call->arg[arg].dtype, call->dim[3]));
        break;
    default:
        product_extent(rows, cols, call->dim[0], call->dim[1], call->dim[3]);
        break;
    }
}

/* Of queries that see every position. */
static double attention_flops(const ridge_problem *problem)
{
    return 4.0 * (double)problem->dim[0] * (double)problem->dim[1] * (double)problem->dim[3] * (double)problem->dim[4];
}

static ridge_call attend(ridge_op op, const int64_t *dim, ridge_tensor q, ridge_tensor k, ridge_tensor v,
                         const int32_t *pos, ridge_tensor out)
{
    ridge_call call = begin(op, dim[0], dim[1], dim[2], dim[3], dim[4]);

    call.opt.attention = (ridge_attention_options){.scale = 1.0f};
    ridge_put(&call, RIDGE_ATTENTION_DECODE_Q, q);
    ridge_put(&call, RIDGE_ATTENTION_DECODE_K, k);
    ridge_put(&call, RIDGE_ATTENTION_DECODE_V, v);
    ridge_set(&call, RIDGE_ATTENTION_DECODE_POS, RIDGE_I32, pos, 0);
    ridge_put(&call, RIDGE_ATTENTION_DECODE_OUT, out);
    return call;
}

ridge_call ridge_attention_decode(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t positions,
                                  ridge_tensor q, ridge_tensor k, ridge_tensor v, const int32_t *pos, ridge_tensor out)
{
    const int64_t dim[5] = {tokens, heads, kv_heads, head_dim, positions};

    return attend(RIDGE_ATTENTION_DECODE, dim, q, k, v, pos, out);
}

RIDGE_DEFAULTS(attention_defaults,
               ridge_attention_decode(0, 0, 0, 0, 0, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_F16),
                                      ridge_matrix(NULL, RIDGE_F16), NULL, ridge_matrix(NULL, RIDGE_F32)))

#define ATTENTION_OPERANDS(KV, SHAPE)                                                     \
    {"q", RIDGE_IN, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, heads*head_dim]"},        \
        {"k", RIDGE_IN, 0, -1, RIDGE_MATRIX, KV, 0, SHAPE},                               \
        {"v", RIDGE_IN, 0, RIDGE_ATTENTION_DECODE_K, RIDGE_MATRIX, KV, 0, SHAPE},         \
        {"pos", RIDGE_IN, 0, -1, RIDGE_VECTOR, ONLY(RIDGE_I32), 0, "[tokens]"},           \
        {"out", RIDGE_OUT, 0, -1, RIDGE_MATRIX, X_FLOATS, 0, "[tokens, heads*head_dim]"}, \
        {"sinks", RIDGE_IN, 1, -1, RIDGE_VECTOR, ONLY(RIDGE_F32), 0, "[heads]"},

const ridge_op_row ridge_op_attention_decode = {
    .id = RIDGE_ATTENTION_DECODE,
    .name = "attention_decode",
    .summary = "softmax(scale q K^T) V of queries at given positions of a cache",
    .dims = 5,
    .dim_name = {"tokens", "heads", "kv_heads", "head_dim", "positions"},
    .step = {0, 0, 0, 16, 0},
    .args = 6,
    .arg = {ATTENTION_OPERANDS(KV_DTYPES, KV_SHAPE)},
    .fields = attention_fields,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound =
        "sum of the weights times |v|, times 2 E + (positions/128 + 120) 2^-23; E: (head_dim/16 + 10) 2^-23 of the "
        "largest scale * sum |q k|",
    .rule = attention_rule,
    .extent = attention_extent,
    .flops = attention_flops,
    .defaults = attention_defaults,
};

/* ----------------------------------------------------------------------------------------------- attention_prefill */

/* Of queries that are the last tokens of the cache. */
static double prefill_flops(const ridge_problem *problem)
{
    const double tokens = (double)problem->dim[0], positions = (double)problem->dim[4];

    return 4.0 * (double)problem->dim[1] * (double)problem->dim[3] *
           (tokens < positions ? tokens * (positions - (tokens - 1) / 2) : positions * (positions + 1) / 2);
}

ridge_call ridge_attention_prefill(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t positions,
                                   ridge_tensor q, ridge_tensor k, ridge_tensor v, const int32_t *pos, ridge_tensor out)
{
    const int64_t dim[5] = {tokens, heads, kv_heads, head_dim, positions};

    return attend(RIDGE_ATTENTION_PREFILL, dim, q, k, v, pos, out);
}

RIDGE_DEFAULTS(prefill_defaults,
               ridge_attention_prefill(0, 0, 0, 0, 0, ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_F16),
                                       ridge_matrix(NULL, RIDGE_F16), NULL, ridge_matrix(NULL, RIDGE_F32)))

_Static_assert((int)RIDGE_ATTENTION_PREFILL_SINKS == (int)RIDGE_ATTENTION_DECODE_SINKS, "operands in the same order");

const ridge_op_row ridge_op_attention_prefill = {
    .id = RIDGE_ATTENTION_PREFILL,
    .name = "attention_prefill",
    .summary = "attention_decode of many queries, q rounded to the cache's dtype",
    .dims = 5,
    .dim_name = {"tokens", "heads", "kv_heads", "head_dim", "positions"},
    .step = {0, 0, 0, 16, 0},
    .args = 6,
    .arg = {ATTENTION_OPERANDS(KV_FLOATS, "[kv_heads, positions*head_dim]")},
    .fields = attention_fields,
    .contract = RIDGE_STABLE | RIDGE_INVARIANT | RIDGE_CLOSE,
    .invariant_max = INT64_MAX,
    .bound =
        "sum of the weights times |v|, times 2 E + u + (2.25 positions + 200) 2^-23, u the cache's 2^-11 or 2^-8; "
        "2^-25 of the largest weight for every |v|; E: (17/16 head_dim + 20) 2^-23 of the largest scale * sum |q k|",
    .rule = attention_rule,
    .extent = attention_extent,
    .flops = prefill_flops,
    .defaults = prefill_defaults,
};

/* --------------------------------------------------------------------------------------------- kv_append_attention */

static const ridge_field both_fields[] = {
    DTYPE("qkv", RIDGE_KV_APPEND_ATTENTION_QKV),
    DTYPE("out", RIDGE_KV_APPEND_ATTENTION_OUT),
    DTYPE("kv", RIDGE_KV_APPEND_ATTENTION_K),
    HAS("bias", RIDGE_KV_APPEND_ATTENTION_BIAS),
    HAS("q_norm", RIDGE_KV_APPEND_ATTENTION_Q_NORM),
    HAS("k_norm", RIDGE_KV_APPEND_ATTENTION_K_NORM),
    HAS("sinks", RIDGE_KV_APPEND_ATTENTION_SINKS),
    FLAG("halves", RIDGE_ROPE_HALVES),
    I64_OPTION(ridge_kv_append_attention_options, n_rot, 0),
    F32_OPTION(ridge_kv_append_attention_options, eps, 1e-6),
    F32_OPTION(ridge_kv_append_attention_options, mscale, 1.0),
    I64_OPTION(ridge_kv_append_attention_options, window, 0),
    F32_OPTION(ridge_kv_append_attention_options, scale, 1.0),
    F32_OPTION(ridge_kv_append_attention_options, softcap, 0.0),
    END,
};

/* append_args_of and the rules read the first options as kv_append's. */
_Static_assert(offsetof(ridge_kv_append_attention_options, window) == sizeof(ridge_kv_append_options),
               "options in the same order");
_Static_assert((int)RIDGE_KV_APPEND_ATTENTION_K_NORM == (int)RIDGE_KV_APPEND_K_NORM, "operands in the same order");

static const char *both_rule(const ridge_call *call)
{
    const ridge_kv_append_attention_options *o = &call->opt.kv_append_attention;
    const char *reason = score_rule(o->window, o->scale, o->softcap);

    return reason ? reason : append_rule(call);
}

static void both_extent(const ridge_call *call, int arg, int64_t *rows, int64_t *cols)
{
    if (arg == RIDGE_KV_APPEND_ATTENTION_SINKS)
        ridge_set_extent(rows, cols, 1, call->dim[1]);
    else
        append_extent(call, arg, rows, cols);
}

static double both_flops(const ridge_problem *problem)
{
    return append_flops(problem) + attention_flops(problem);
}

ridge_call ridge_kv_append_attention(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                     int64_t positions, ridge_tensor qkv, const int32_t *pos, const double *freqs,
                                     ridge_tensor out, ridge_tensor k, ridge_tensor v)
{
    ridge_call call = ridge_kv_append(tokens, heads, kv_heads, head_dim, positions, qkv, pos, freqs, out, k, v);

    call.op = RIDGE_KV_APPEND_ATTENTION;
    call.opt.kv_append_attention = (ridge_kv_append_attention_options){.eps = 1e-6f, .mscale = 1.0f, .scale = 1.0f};
    return call;
}

RIDGE_DEFAULTS(both_defaults, ridge_kv_append_attention(0, 0, 0, 0, 0, ridge_matrix(NULL, RIDGE_F32), NULL, NULL,
                                                        ridge_matrix(NULL, RIDGE_F32), ridge_matrix(NULL, RIDGE_F16),
                                                        ridge_matrix(NULL, RIDGE_F16)))

const ridge_op_row ridge_op_kv_append_attention = {
    .id = RIDGE_KV_APPEND_ATTENTION,
    .name = "kv_append_attention",
    .summary = "kv_append, then attention_decode of the same tokens",
    .dims = 5,
    .dim_name = {"tokens", "heads", "kv_heads", "head_dim", "positions"},
    .step = {0, 0, 0, 16, 0},
    .args = 10,
    .arg = {APPEND_OPERANDS{"sinks", RIDGE_IN, 1, -1, RIDGE_VECTOR, ONLY(RIDGE_F32), 0, "[heads]"}},
    .fields = both_fields,
    .flags = RIDGE_ROPE_HALVES,
    .contract = CONTRACT,
    .invariant_max = INT64_MAX,
    .bound = "that of kv_append for the cache; that of attention_decode with E more by scale * sum |k| times that of q",
    .rule = both_rule,
    .extent = both_extent,
    .flops = both_flops,
    .defaults = both_defaults,
};
