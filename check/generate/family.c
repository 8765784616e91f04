/* family.c: the cases, inputs and oracle of embed and sample. The oracle of sample sorts, and takes exponentials and
 * sums in float64: a token must be among those that are left, and the draw within its part of the distribution. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/blocks/blocks.h"
#include "check/family.h"
#include "ops/blocks/layout.h"
#include "ridge_io.h"

extern const ridge_family ridge_family_generate;

static void generate_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const struct {
        const char *embed, *sample;
        test_case layout;
    } shape[] = {
        {"tokens=0 cols=64 vocab=100", "rows=0 vocab=100 history=0", {.fill = FILL_NORMAL}},
        {"tokens=3 cols=0 vocab=9", "rows=1 vocab=1 history=0", {.fill = FILL_NORMAL}},
        {"tokens=1 cols=32 vocab=1", "rows=2 vocab=7 history=3", {.fill = FILL_NORMAL}},
        {"tokens=5 cols=4096 vocab=50", "rows=5 vocab=4099 history=0", {.fill = FILL_UNIT, .slices = true}},
        {"tokens=9 cols=96 vocab=33", "rows=9 vocab=257 history=12", {.fill = FILL_UNIT, .pad = 8, .slices = true}},
        {"tokens=7 cols=320 vocab=17", "rows=7 vocab=300 history=5", {.fill = FILL_EDGE}},
        {"tokens=33 cols=1024 vocab=700", "rows=3 vocab=33000 history=64", {.fill = FILL_UNIT, .repeats = 50}},
        {"tokens=6 cols=64 vocab=40", "rows=40 vocab=1000 history=1", {.fill = FILL_NORMAL, .pad = 3, .shift = 1}},
        {"tokens=4 cols=160 vocab=9", "rows=6 vocab=1500 history=0", {.fill = FILL_GROUPS}},
        {"tokens=2 cols=2080 vocab=9", "rows=16 vocab=64 history=4", {.fill = FILL_EXACT}},
        {"tokens=3 cols=32 vocab=5", "rows=2 vocab=20000 history=0", {.fill = FILL_UNIT}}, /* many equal logits */
        {"tokens=1 cols=64 vocab=3", "rows=5 vocab=40003 history=0", {.fill = FILL_NORMAL, .repeats = 20}},
    };
    static const char *const embed[] = {"table=f32 out=f32",          "table=bf16 out=bf16 scale=16.5",
                                        "table=f16 out=f32 ids=i64",  "table=u8 out=f32 scale=2.75",
                                        "table=i8 out=bf16",          "table=u8 out=f16 ids=i64",
                                        "table=i8 out=f32 scale=7.25"};
    /* Whole blocks of 32 and of 256 columns, rows that leave a tile partly filled. */
    static const char *const tables[] = {"q4_0", "q4_1", "q8_0", "mxfp4", "q2_k", "q4_k", "q5_k", "q6_k"};
    static const char *const sample[] = {"",
                                         "temperature=0 penalty=1.25",
                                         "top_k=40 top_p=0.95 min_p=0.05 temperature=0.8",
                                         "top_p=0.7 token=i64",
                                         "top_k=5 temperature=2.5 penalty=1.5",
                                         "min_p=0.1 temperature=0.25 token=i64",
                                         "top_k=3 top_p=0.5",
                                         "top_p=0.001 temperature=9",
                                         "top_k=1000000 top_p=0.999999 min_p=0.001 penalty=0.75"};
    const bool is_embed = op->id == RIDGE_EMBED;
    char text[256];

    for (int i = 0; i < (int)(sizeof shape / sizeof shape[0]); i++)
        for (int form = 0; form < (is_embed ? 7 : 9); form++) {
            test_case layout = shape[i].layout;

            if (level == CASES_QUICK && (i + form) % 2)
                continue;
            if (layout.fill == FILL_EXACT)
                layout.fill = is_embed ? FILL_NORMAL : FILL_UNIT;
            snprintf(text, sizeof text, "%s %s", is_embed ? shape[i].embed : shape[i].sample,
                     is_embed ? embed[form] : sample[form]);
            cases_add(list, op, text, layout);
        }
    for (int i = 0; i < (is_embed ? 24 : 0); i++) {
        static const test_case layouts[] = {
            {.fill = FILL_NORMAL}, {.fill = FILL_EDGE, .slices = true}, {.fill = FILL_UNIT}};

        snprintf(text, sizeof text, "tokens=%d cols=%d vocab=%d table=%s out=%s", 9 - i % 3,
                 i % 3 == 1 && i / 3 < 4 ? 160 : 768, i % 3 == 2 ? 33 : 29, tables[i / 3],
                 i % 3 ? "f32" : "bf16 scale=3");
        if (level != CASES_QUICK || i % 3 < 2)
            cases_add(list, op, text, layouts[i % 3]);
    }
}

/* Numbers of rows: now and then one outside the table; in a history half of them are in the vocabulary. */
static bool generate_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const ridge_operand *operand = &im->call.arg[arg];
    const bool ids = strcmp(op->arg[arg].name, "ids") == 0, past = strcmp(op->arg[arg].name, "past") == 0;
    const bool logits = strcmp(op->arg[arg].name, "logits") == 0;
    const int64_t vocab = im->call.op == RIDGE_EMBED ? im->call.dim[2] : im->call.dim[1];
    int64_t rows, cols;

    op->extent(&im->call, arg, &rows, &cols);
    seed += (uint64_t)arg * 977;
    if (is_block_format(operand->dtype))
        return fill_tiles(operand->dtype, vocab, im->call.dim[1], c->fill == FILL_EDGE ? SCALES_HARD : SCALES_PLAIN,
                          im->host + im->offset[arg], operand->stride, seed);
    if (operand->dtype == RIDGE_F16 && strcmp(op->arg[arg].name, "table_scales") == 0)
        return false;
    if (logits) { /* spread out, and many of them equal */
        const bool few = c->fill == FILL_UNIT && im->call.dim[0] % 2 == 0;

        if (c->fill != FILL_UNIT)
            return false;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < cols; j++) {
                float v = 4.0f * random_normal(&seed);

                v = few ? rintf(v) : v;
                dtype_store(im->host + im->offset[arg] + 4 * (r * (operand->stride ? operand->stride : cols) + j),
                            RIDGE_F32, v);
            }
        return true;
    }
    if (!ids && !past && operand->dtype != RIDGE_I64)
        return false;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) {
            unsigned char *to =
                im->host + im->offset[arg] +
                (size_t)(r * (operand->stride ? operand->stride : cols) + j) * ridge_dtype_size(operand->dtype);
            const uint64_t z = random_next(&seed);
            int64_t v = vocab ? (int64_t)(z >> 8) % vocab : 0;
            int32_t small;

            v = v < 0 ? -v : v;
            if ((ids && z % 16 == 3) || (past && z % 2))
                v = z & 32 ? -1 : vocab + (int64_t)(z & 1023);
            if (!ids && !past)
                v = (int64_t)z;
            small = (int32_t)v;
            memcpy(to, operand->dtype == RIDGE_I64 ? (const void *)&v : &small, ridge_dtype_size(operand->dtype));
        }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- oracles */

static double table_value(const oracle_run *s, int64_t id, int64_t j)
{
    const uint32_t dtype = s->im->call.arg[RIDGE_EMBED_TABLE].dtype;

    if (dtype == RIDGE_U8) {
        const unsigned char *block = oracle_address(s->im, s->im->host, RIDGE_EMBED_TABLE, id, j / 32 * 34);

        return dtype_load(block, RIDGE_F16) * (double)(int8_t)block[2 + j % 32];
    }
    if (dtype == RIDGE_I8)
        return oracle_in(s, RIDGE_EMBED_TABLE_SCALES, id, j / 32) * oracle_in(s, RIDGE_EMBED_TABLE, id, j);
    return oracle_in(s, RIDGE_EMBED_TABLE, id, j);
}

/* A table in tiles as ridge_dequantize has its rows, [vocab, cols]; NULL: it is none, or there is no memory. */
static float *table_of_tiles(oracle_run *s)
{
    const uint32_t format = s->im->call.arg[RIDGE_EMBED_TABLE].dtype;
    const int64_t cols = s->im->call.dim[1], vocab = s->im->call.dim[2];
    const ridge_call there = image_call(s->im, s->im->host);
    ridge_call call = ridge_block_unpack(vocab, cols, ridge_matrix(NULL, (ridge_dtype)format), NULL);
    ridge_device *cpu = NULL;
    unsigned char *blocks = NULL;
    float *values = NULL;

    if (!is_block_format(format) || vocab * cols == 0)
        return NULL;
    blocks = malloc((size_t)(vocab * block_row_bytes(block_layout_of(format), cols)));
    values = malloc((size_t)(vocab * cols) * sizeof *values);
    call.arg[RIDGE_BLOCK_REPACK_TILES] = there.arg[RIDGE_EMBED_TABLE];
    ridge_set(&call, RIDGE_BLOCK_REPACK_BLOCKS, RIDGE_U8, blocks, 0);
    if (!blocks || !values || ridge_open("cpu", &cpu) || ridge_run(cpu, &call, NULL, 0, NULL) ||
        ridge_dequantize(block_file_types[format], blocks, vocab * cols, values)) {
        free(values);
        values = NULL;
    }
    ridge_close(cpu);
    free(blocks);
    return values;
}

static void embed_oracle(oracle_run *s)
{
    const int64_t cols = s->im->call.dim[1], vocab = s->im->call.dim[2];
    const uint32_t out = s->im->call.arg[RIDGE_EMBED_OUT].dtype;
    float *tiles = table_of_tiles(s);

    for (int64_t t = 0; t < s->im->call.dim[0]; t++)
        for (int64_t j = 0; j < cols; j++) {
            const double id = oracle_in(s, RIDGE_EMBED_IDS, 0, t);
            const bool known = id >= 0 && id < (double)vocab;
            const double ref = !known  ? (double)NAN
                               : tiles ? (double)tiles[(int64_t)id * cols + j] * (double)s->im->call.opt.embed.scale
                                       : table_value(s, (int64_t)id, j) * (double)s->im->call.opt.embed.scale;

            oracle_note(s,
                        oracle_ratio(oracle_out(s, RIDGE_EMBED_OUT, t, j), ref,
                                     0.5 * dtype_ulp(ref, out) * (1 + 0x1p-20) + 0x1p-24 * fabs(ref) + 0x1p-149, out),
                        "out", t, j);
        }
    free(tiles);
}

typedef struct choice {
    double logit, p, share;
    int64_t token;
    bool left;
} choice;

static int by_logit(const void *a, const void *b)
{
    const choice *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    if (signbit(x->logit) != signbit(y->logit)) /* -0 below +0 */
        return signbit(x->logit) ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

static int by_token(const void *a, const void *b)
{
    return ((const choice *)a)->token < ((const choice *)b)->token ? -1 : 1;
}

/* 64 bits of Philox4x32-10 by its definition: ten rounds of two products of 32 bits and a key schedule. */
static double uniform(uint64_t seed, uint64_t counter)
{
    uint32_t x[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};

    for (uint32_t round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)x[0] * 3528531795u, b = (uint64_t)x[2] * 3449720151u;
        const uint32_t k0 = (uint32_t)seed + round * 2654435769u, k1 = (uint32_t)(seed >> 32) + round * 3144134277u;
        const uint32_t y[4] = {(uint32_t)(b >> 32) ^ x[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ x[3] ^ k1,
                               (uint32_t)a};

        memcpy(x, y, sizeof x);
    }
    return ((double)x[1] * 0x1p32 + (double)x[0]) * 0x1p-64;
}

/* Fills the choices of a row; false: it holds a NaN. */
static bool choices_of(const oracle_run *s, int64_t row, choice *c)
{
    const int64_t n = s->im->call.dim[1], past = s->im->call.dim[2];
    const float penalty = s->im->call.opt.sample.penalty;
    bool good = true;

    for (int64_t i = 0; i < n; i++)
        c[i] = (choice){oracle_in(s, RIDGE_SAMPLE_LOGITS, row, i), 0, 0, i, true};
    for (int64_t h = 0; h < past; h++) {
        const double id = oracle_in(s, RIDGE_SAMPLE_HISTORY, row, h);

        if (id >= 0 && id < (double)n) {
            const float logit = (float)oracle_in(s, RIDGE_SAMPLE_LOGITS, row, (int64_t)id);

            c[(int64_t)id].logit = (double)(logit <= 0.0f ? logit * penalty : logit / penalty);
        }
    }
    for (int64_t i = 0; i < n; i++)
        good = good && !isnan(c[i].logit);
    return good;
}

/* What float64 says of one row's token; the sets by top_p and min_p may differ where a sum is as near as f32 is. */
static void check_token(oracle_run *s, int64_t row, choice *c)
{
    const ridge_sample_options *o = &s->im->call.opt.sample;
    const int64_t n = s->im->call.dim[1], token = (int64_t)oracle_out(s, RIDGE_SAMPLE_TOKEN, 0, row);
    const int64_t most = o->top_k && o->top_k < n ? o->top_k : n;
    double sum = 0, before = 0, all = 0, below = 0, u, slack;
    int64_t left = 0, at;

    if (!choices_of(s, row, c)) {
        oracle_note(s, token == -1 ? 0 : INFINITY, "token of a row with NaN", row, 0);
        return;
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (o->temperature == 0.0f || isinf(c[0].logit)) {
        oracle_note(s, token == c[0].token ? 0 : INFINITY, "token of the largest logit", row, 0);
        return;
    }
    for (int64_t i = 0; i < most; i++)
        sum += c[i].p = exp(c[i].logit - c[0].logit);
    slack = 0x1p-20 * sum + (double)n * 0x1p-31;
    for (int64_t i = 0; i < n; i++) {
        c[i].left = i < most && (i == 0 || o->top_p == 1.0f || before < (double)o->top_p * sum + slack) &&
                    c[i].p >= (double)o->min_p * (1 - 0x1p-20);
        before += c[i].p;
        c[i].share = c[i].left ? exp((c[i].logit - c[0].logit) / (double)o->temperature) : 0;
        all += c[i].share;
        left += c[i].left;
    }
    qsort(c, (size_t)n, sizeof *c, by_token);
    at = token < 0 || token >= n ? 0 : token;
    oracle_note(s, token == at && c[at].left ? 0 : INFINITY, "token that is not left", row, token);
    for (int64_t i = 0; i < at; i++)
        below += c[i].share;
    dtype_load(oracle_address(s->im, s->im->host, RIDGE_SAMPLE_SEED, 0, row), RIDGE_I64);
    u = uniform(*(const uint64_t *)oracle_address(s->im, s->im->host, RIDGE_SAMPLE_SEED, 0, row),
                *(const uint64_t *)oracle_address(s->im, s->im->host, RIDGE_SAMPLE_COUNTER, 0, row)) *
        all;
    /* a token at the edge of the sets may be missing, and every weight is cut to 2^-32 */
    slack =
        all * 0x1p-17 + (double)n * 0x1p-31 + (left > 1 && (o->top_p < 1.0f || o->min_p > 0) ? all / (double)left : 0);
    oracle_note(s, u >= below - slack && u <= below + c[at].share + slack ? 0 : INFINITY,
                "draw outside the token's share", row, token);
}

static void sample_oracle(oracle_run *s)
{
    choice *c = malloc((size_t)(s->im->call.dim[1] + 1) * sizeof *c);

    if (!c)
        oracle_fail(s, "out of memory");
    for (int64_t row = 0; row < s->im->call.dim[0] && c; row++)
        check_token(s, row, c);
    free(c);
}

static void generate_oracle(oracle_run *s)
{
    if (s->im->call.op == RIDGE_EMBED)
        embed_oracle(s);
    else
        sample_oracle(s);
}

static const suite_row suites[] = {
    {"generate", "embed tokens=1 cols=4096 vocab=128256 table=u8 out=f32"},
    {"generate", "embed tokens=512 cols=4096 vocab=128256 table=u8 out=f32"},
    {"generate", "sample rows=1 vocab=128256 history=0 temperature=0"},
    {"generate", "sample rows=1 vocab=128256 history=0 top_k=40 top_p=0.95 min_p=0.05 temperature=0.8"},
    {"generate", "sample rows=16 vocab=128256 history=64 top_k=40 top_p=0.95 min_p=0.05 temperature=0.8"},
    {NULL, NULL},
};

static const char *const fault_problems[] = {
    "embed tokens=5 cols=256 vocab=9 table=bf16 out=bf16 scale=3",
    "sample rows=37 vocab=25 history=4 top_k=9 temperature=0.75 penalty=3",
    "sample rows=37 vocab=25 history=0 top_k=9 temperature=0.75",
    NULL,
};

static ridge_status takes_the_counter_for_the_seed(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.arg[RIDGE_SAMPLE_SEED].data = copy.arg[RIDGE_SAMPLE_COUNTER].data;
    return fault_run_changed(r, &copy);
}

static ridge_status forgets_top_k(const faulty_run *r)
{
    ridge_call copy = *r->call;

    copy.opt.sample.top_k = 0;
    return fault_run_changed(r, &copy);
}

#define OPTION(field) .fault = fault_changes_option, .op = RIDGE_SAMPLE, .option = offsetof(ridge_sample_options, field)

static const planted_fault faults[] = {
    {.name = "takes the counter for the seed", .fault = takes_the_counter_for_the_seed, .op = RIDGE_SAMPLE},
    {.name = "forgets top_k", .fault = forgets_top_k, .op = RIDGE_SAMPLE},
    {.name = "draws at another temperature", OPTION(temperature), .value = 1},
    {.name = "forgets the penalty", OPTION(penalty), .value = 1},
    {0},
};

const check_family check_generate = {
    .family = &ridge_family_generate,
    .cases = generate_cases,
    .oracle = generate_oracle,
    .fill = generate_fill,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
