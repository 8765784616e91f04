/* family.c: the cases, inputs, suites and planted faults of the training of experts, and what the family registers. */
#include <math.h>
#include <string.h>

#include "experts.h"

extern const ridge_family ridge_family_experts;

static void add(case_list *list, const ridge_op_row *op, test_case layout, int variant, const char *shape,
                const char *words)
{
    char text[512];

    layout.variant = variant;
    snprintf(text, sizeof text, "%s %s", shape, words);
    cases_add(list, op, text, layout);
}

static const struct {
    const char *permute, *rows; /* of moe_permute; tokens and slots of the others */
    test_case layout;
} shapes[] = {
    {"tokens=0 slots=2 experts=4", "tokens=0 slots=2", {.fill = FILL_NORMAL}},
    {"tokens=1 slots=1 experts=1", "tokens=1 slots=1", {.fill = FILL_NORMAL}},
    {"tokens=5 slots=3 experts=7", "tokens=5 slots=3", {.fill = FILL_UNIT, .pad = 5}},
    {"tokens=700 slots=8 experts=128", "tokens=70 slots=4", {.fill = FILL_NORMAL}},
    {"tokens=257 slots=16 experts=33", "tokens=131 slots=2", {.fill = FILL_GROUPS, .shift = 1}},
    {"tokens=2100 slots=2 experts=1024", "tokens=43 slots=7", {.fill = FILL_EDGE, .pad = 3}},
    {"tokens=4096 slots=1 experts=2", "tokens=300 slots=1", {.fill = FILL_NORMAL, .pad = 16}},
    {"tokens=65 slots=32 experts=64", "tokens=9 slots=32", {.fill = FILL_NORMAL, .repeats = 50}},
    {"tokens=3000 slots=6 experts=300", "tokens=90 slots=5", {.fill = FILL_SPECIAL}},
};

enum { SHAPES = (int)(sizeof shapes / sizeof shapes[0]) };

static void quantize_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const char *const cols[] = {"cols=128", "cols=1", "cols=272", "cols=137", "cols=0", "cols=520"};
    static const char *const experts[] = {"experts=4", "experts=1", "experts=9", "experts=200"};
    static const char *const form[] = {"", "q_t=0", "offsets_t=1 pow2=1", "floor=0.0001 offsets_t=1",
                                       "q_t=0 offsets_t=1"};
    static const char *const act[] = {"",
                                      "row_scale=1",
                                      "interleaved=1 row_scale=1 round_gate=1",
                                      "alpha=1.702 up_offset=1 limit=7",
                                      "act=gelu_tanh down_mul=1.5",
                                      "act=relu2 row_scale=1",
                                      "act=gelu_erf gate_mul=-0.75"};
    static const char *const bwd[] = {"",
                                      "row_scale=1 drow=1",
                                      "drow=1",
                                      "alpha=1.702 up_offset=1 limit=7 row_scale=1 drow=1",
                                      "act=gelu_tanh down_mul=1.5",
                                      "act=relu2 row_scale=1 drow=1",
                                      "act=gelu_erf gate_mul=-0.75"};
    static const char *const dtypes[] = {"bf16", "f16", "f32"};
    const bool backward = op->id == RIDGE_MOE_SWIGLU_BWD_QUANTIZE;
    const bool swiglu = op->id == RIDGE_MOE_SWIGLU_QUANTIZE || backward;
    char shape[128], words[192];
    int n = 0;

    for (int i = 0; i < SHAPES; i++)
        for (int c = 0; c < 6; c++)
            for (int f = 0; f < 5; f++, n++) {
                const char *given =
                    strcmp(shapes[i].rows + strlen(shapes[i].rows) - 8, " slots=1") || n % 2 ? "rows=1" : "";
                int tokens = 0, slots = 0;

                if (n % 3 || (level == CASES_QUICK && n % 2))
                    continue;
                sscanf(shapes[i].rows, "tokens=%d slots=%d", &tokens, &slots);
                if (swiglu)
                    snprintf(shape, sizeof shape, "rows=%d %s %s", tokens * slots, cols[c], experts[n % 4]);
                else
                    snprintf(shape, sizeof shape, "%s %s %s", shapes[i].rows, cols[c], experts[n % 4]);
                snprintf(words, sizeof words, "dtype=%s format=%s %s %s", dtypes[(n / 3 + i) % 3],
                         (n + f) % 4 == 1 ? "e5m2" : "e4m3", form[f],
                         backward ? bwd[(n / 3) % 7]
                         : swiglu ? act[(n / 3) % 7]
                                  : given);
                add(list, op, shapes[i].layout, n / 3 % 4, shape, words);
            }
    if (level == CASES_LARGE && !swiglu)
        add(list, op, (test_case){.fill = FILL_UNIT}, 0, "tokens=32768 slots=8 cols=2048 experts=128", "rows=1");
}

static void route_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const char *const rules[] = {
        "experts=8 slots=2 normalise=1",
        "experts=128 slots=8 normalise=1 logits=bf16",
        "experts=60 slots=4",
        "experts=160 slots=6 scale=16",
        "experts=256 slots=8 rule=sigmoid normalise=1 scale=2.5 eps=1e-20",
        "experts=384 slots=6 rule=sqrt_softplus normalise=1 scale=1.5 eps=1e-20",
        "experts=128 slots=4 rule=topk_softmax logit_bias=1 logits=bf16",
        "experts=16 slots=1 rule=sigmoid",
        "experts=1024 slots=32 logit_bias=1",
        "experts=1 slots=1 normalise=1",
        "experts=40 slots=7 rule=topk_softmax normalise=1 scale=-3",
        "experts=513 slots=9 rule=sqrt_softplus",
    };
    static const struct {
        const char *tokens;
        test_case layout;
    } shape[] = {
        {"tokens=0", {.fill = FILL_NORMAL}},
        {"tokens=1", {.fill = FILL_UNIT}},
        {"tokens=6", {.fill = FILL_UNIT, .slices = true, .pad = 5}},
        {"tokens=17", {.fill = FILL_UNIT, .slices = true, .shift = 1}},
        {"tokens=33", {.fill = FILL_EDGE}},
        {"tokens=5", {.fill = FILL_NORMAL, .pad = 3, .repeats = 50}},
        {"tokens=9", {.fill = FILL_SPECIAL, .slices = true}},
    };

    for (int i = 0; i < 7; i++)
        for (int r = 0; r < 12; r++)
            if (level != CASES_QUICK || (i + r) % 2 == 0)
                add(list, op, shape[i].layout, (i + r) % 3 == 2 ? 2 : 0, shape[i].tokens, rules[r]);
}

static void experts_cases(const ridge_op_row *op, case_level level, case_list *list)
{
    static const char *const forward[] = {"weights=1", "y=f32 out=bf16", "y=f16 out=f32 weights=1 shared=bf16",
                                          "weights=1 shared=f16 residual=f32"};
    static const char *const backward[] = {"weights=1 dweights=1", "dtype=f32", "dtype=f16 weights=1", "dweights=1"};
    static const char *const cols[] = {"cols=64", "cols=1", "cols=0", "cols=1000", "cols=2056", "cols=37"};
    char text[128];

    if (op->id == RIDGE_MOE_ROUTE_BWD)
        route_cases(op, level, list);
    else if (op->id == RIDGE_MOE_PERMUTE_QUANTIZE || op->id == RIDGE_MOE_SWIGLU_QUANTIZE ||
             op->id == RIDGE_MOE_SWIGLU_BWD_QUANTIZE)
        quantize_cases(op, level, list);
    for (int i = 0; i < SHAPES && op->id == RIDGE_MOE_PERMUTE; i++)
        for (int variant = 0; variant < 4; variant++)
            add(list, op, shapes[i].layout, variant, shapes[i].permute, "");
    for (int i = 0; i < SHAPES && (op->id == RIDGE_MOE_COMBINE || op->id == RIDGE_MOE_COMBINE_BWD); i++)
        for (int c = 0; c < 6; c++) {
            if (level == CASES_QUICK && (i + c) % 2)
                continue;
            snprintf(text, sizeof text, "%s %s", shapes[i].rows, cols[c]);
            add(list, op, shapes[i].layout, (i + c) % 4, text,
                (op->id == RIDGE_MOE_COMBINE ? forward : backward)[(i * 5 + c) % 4]);
        }
}

static void experts_oracle(oracle_run *run)
{
    switch (run->im->call.op) {
    case RIDGE_MOE_PERMUTE:
        oracle_experts_permute(run);
        break;
    case RIDGE_MOE_ROUTE_BWD:
        oracle_experts_route(run);
        break;
    case RIDGE_MOE_COMBINE:
    case RIDGE_MOE_COMBINE_BWD:
        oracle_experts_combine(run);
        break;
    default:
        oracle_experts_quantize(run);
        break;
    }
}

/* ---------------------------------------------------------------------------------------------------------- inputs */

static void put(const image *im, int arg, int64_t r, int64_t j, int32_t value)
{
    int64_t rows, cols;

    ridge_op_at(im->call.op)->extent(&im->call, arg, &rows, &cols);
    memcpy(im->host + im->offset[arg] +
               (size_t)(r * (im->call.arg[arg].stride ? im->call.arg[arg].stride : cols) + j) * sizeof value,
           &value, sizeof value);
}

/* Experts, now and then none. variant: 1 one for all, 2 each the next, 3 none, 4 always one. */
static int32_t any_id(int variant, int64_t i, int64_t experts, uint64_t z)
{
    static const int32_t none[] = {-1, INT32_MIN, INT32_MAX};

    if (variant == 1)
        return (int32_t)(experts / 2);
    if (variant == 2)
        return (int32_t)(i % experts);
    return variant == 3 || (variant != 4 && z % 16 == 3) ? (z & 128 ? (int32_t)experts : none[(z >> 5 & 3) % 3])
                                                         : (int32_t)((z >> 8) % (uint64_t)experts);
}

/* Number i of a permutation of n, now and then none. variant: 1 each its own, 3 none, 4 always one. */
static int32_t any_place(int variant, int64_t i, int64_t n, uint64_t z)
{
    if (variant == 3 || (variant != 1 && variant != 4 && z % 16 == 3))
        return z & 128 ? (int32_t)n : z & 64 ? INT32_MIN : -1;
    return (int32_t)(variant == 1 ? i : (i * 7919 + 5) % n);
}

/* Offsets of groups of many sizes. variant: 1 all rows in one group, 2 anything, 3 and 4 equal ones. */
static void fill_offsets(const image *im, int arg, int64_t rows, int64_t experts, int variant, uint64_t seed)
{
    int64_t at = variant == 0 && random_next(&seed) % 2 ? rows / 9 : 0;

    for (int64_t e = 0; e <= experts; e++) {
        const uint64_t z = random_next(&seed);

        if (variant == 1)
            at = e > experts / 2 ? rows : 0;
        else if (variant == 2)
            at = z % 8 == 0 ? INT32_MAX : z % 8 == 1 ? INT32_MIN : (int64_t)(z >> 8) % (rows + 9) - 4;
        else if (variant >= 3)
            at = e * rows / experts;
        put(im, arg, 0, e, (int32_t)at);
        at += variant == 0 && z % 4 ? (int64_t)(z >> 8) % (2 * rows / experts + 2) : 0;
        at = variant == 0 && at > rows ? rows : at;
    }
}

static bool experts_fill(const test_case *c, const image *im, int arg, uint64_t seed)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    const char *name = op->arg[arg].name;
    const bool ids = strcmp(name, "ids") == 0, place = strcmp(name, "place") == 0 || strcmp(name, "rows") == 0;
    const bool route = op->id == RIDGE_MOE_ROUTE_BWD;
    int64_t rows, cols, experts;

    op->extent(&im->call, arg, &rows, &cols);
    seed += (uint64_t)arg * 977;
    random_next(&seed);
    if (strcmp(name, "offsets") == 0) {
        const int scale = op->id == RIDGE_MOE_SWIGLU_QUANTIZE       ? (int)RIDGE_MOE_SWIGLU_QUANTIZE_Q
                          : op->id == RIDGE_MOE_SWIGLU_BWD_QUANTIZE ? (int)RIDGE_MOE_SWIGLU_BWD_QUANTIZE_Q
                                                                    : (int)RIDGE_MOE_PERMUTE_QUANTIZE_Q;

        experts = cols - 1;
        op->extent(&im->call, scale, &rows, &cols);
        fill_offsets(im, arg, rows, experts, c->variant, seed);
        return true;
    }
    if (!ids && !place)
        return false;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) {
            const int64_t i = r * cols + j;
            const uint64_t z = random_next(&seed);

            put(im, arg, r, j,
                ids ? any_id(c->variant, i, im->call.dim[route ? 1 : 2], z) : any_place(c->variant, i, rows * cols, z));
        }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- suites */

static const suite_row suites[] = {
    /* Qwen3-30B-A3B, 32768 tokens, of which no pair is left out */
    {"moe-train", "moe_permute tokens=32768 slots=8 experts=128 variant=4"},
    {"moe-train", "moe_permute_quantize tokens=32768 slots=8 cols=2048 experts=128 rows=1 variant=4"},
    {"moe-train", "moe_swiglu_quantize rows=262144 cols=768 experts=128 row_scale=1 variant=4"},
    {"moe-train", "moe_swiglu_bwd_quantize rows=262144 cols=768 experts=128 row_scale=1 drow=1 variant=4"},
    {"moe-train", "moe_combine tokens=32768 slots=8 cols=2048 variant=4"},
    {"moe-train", "moe_combine tokens=32768 slots=8 cols=2048 weights=1 variant=4"},
    {"moe-train", "moe_combine_bwd tokens=32768 slots=8 cols=2048 weights=1 dweights=1 variant=4"},
    {"moe-train", "moe_permute_quantize tokens=262144 slots=1 cols=1536 experts=128 variant=4"},
    {"moe-train", "moe_route_bwd tokens=32768 experts=128 slots=8 normalise=1 variant=4"},
    {NULL, NULL},
};

/* ---------------------------------------------------------------------------------------------------------- faults */

/* A scale of a table, half of what it is. */
static ridge_status halves_a_scale(const faulty_run *r)
{
    const size_t at = fault_at(r->im, fault_slot(r->call, r->planted->operand), 0, 0);
    ridge_status status = fault_run(r, r->call);
    float scale = 0;

    status = status ? status : fault_read(r, at, &scale, sizeof scale);
    scale *= 0.5f;
    return status ? status : fault_write(r, at, &scale, sizeof scale);
}

/* The rows of two pairs of one expert, the other way round, and their places with them. */
static ridge_status is_not_stable(const faulty_run *r)
{
    const int64_t slots = r->call->dim[1];
    ridge_status status = fault_run(r, r->call);
    int32_t pair[2] = {0, 0};

    for (int i = 0; i < 2 && !status; i++)
        status = fault_read(r, fault_at(r->im, RIDGE_MOE_PERMUTE_ROWS, 0, i), &pair[i], 4);
    for (int i = 0; i < 2 && !status; i++) {
        const int32_t row = 1 - i;

        if (pair[i] < 0)
            return fault_impossible("there are not two rows");
        status = fault_write(r, fault_at(r->im, RIDGE_MOE_PERMUTE_ROWS, 0, row), &pair[i], 4);
        status = status ? status
                        : fault_write(r, fault_at(r->im, RIDGE_MOE_PERMUTE_PLACE, pair[i] / slots, pair[i] % slots),
                                      &row, 4);
    }
    return status;
}

static ridge_status drops_the_last_slot(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[1]--;
    return fault_run_changed(r, &copy);
}

static ridge_status counts_an_expert_less(const faulty_run *r)
{
    ridge_call copy = fault_with_strides(r->call);

    copy.dim[2]--;
    return fault_run_changed(r, &copy);
}

static bool is_quantiser(const ridge_kernel *kernel)
{
    return kernel->op == RIDGE_MOE_PERMUTE_QUANTIZE || kernel->op == RIDGE_MOE_SWIGLU_QUANTIZE ||
           kernel->op == RIDGE_MOE_SWIGLU_BWD_QUANTIZE;
}

static const planted_fault faults[] = {
    {.name = "does not keep the order of pairs", .fault = is_not_stable, .op = RIDGE_MOE_PERMUTE},
    {.name = "drops the last expert", .fault = counts_an_expert_less, .op = RIDGE_MOE_PERMUTE},
    {.name = "gets an offset wrong", .fault = fault_spoils_an_element, .op = RIDGE_MOE_PERMUTE, .operand = "offsets"},
    {.name = "gets an offset of the transpose wrong", .fault = fault_spoils_an_element, .operand = "offsets_t"},
    {.name = "halves a scale of sorted rows", .fault = halves_a_scale, .operand = "scale"},
    {.name = "halves a scale of transposed groups", .fault = halves_a_scale, .operand = "scale_t"},
    {.name = "rounds a code of a group to its neighbour", .fault = fault_spoils_an_element, .operand = "q"},
    {.name = "rounds a transposed code of a group", .fault = fault_spoils_an_element, .operand = "q_t"},
    {.name = "forgets that scales of groups are powers of two",
     .fault = fault_changes_flags,
     .applies = is_quantiser,
     .flags = RIDGE_POW2},
    {.name = "forgets the weights of the rows", .fault = fault_forgets_operand, .operand = "row_scale"},
    {.name = "gets a gradient of a row's weight wrong",
     .fault = fault_spoils_an_element,
     .operand = "drow",
     .op = RIDGE_MOE_SWIGLU_BWD_QUANTIZE},
    {.name = "forgets the weights of the slots", .fault = fault_forgets_operand, .operand = "weights"},
    {.name = "forgets the shared rows", .fault = fault_forgets_operand, .operand = "shared"},
    {.name = "forgets the rows that are added", .fault = fault_forgets_operand, .operand = "residual"},
    {.name = "leaves out the last slot", .fault = drops_the_last_slot, .op = RIDGE_MOE_COMBINE},
    {.name = "gets a gradient of a weight wrong",
     .fault = fault_spoils_an_element,
     .operand = "dweights",
     .op = RIDGE_MOE_COMBINE_BWD},
    {.name = "forgets that weights are normalised",
     .fault = fault_changes_flags,
     .op = RIDGE_MOE_ROUTE_BWD,
     .flags = RIDGE_ROUTE_NORMALISE},
    {.name = "forgets the scale of the weights",
     .fault = fault_changes_option,
     .op = RIDGE_MOE_ROUTE_BWD,
     .option = offsetof(ridge_moe_route_options, scale),
     .value = 1},
    {.name = "forgets what is added to the logits", .fault = fault_forgets_operand, .operand = "logit_bias"},
    {0},
};

/* Of the quantisers so that the last column of the transpose holds a row. */
static const char *const fault_problems[] = {
    "moe_permute tokens=50 slots=3 experts=7",
    "moe_permute_quantize tokens=128 slots=2 cols=264 experts=1 rows=1 offsets_t=1 pow2=1 variant=1",
    "moe_swiglu_quantize rows=256 cols=264 experts=1 offsets_t=1 pow2=1 row_scale=1 variant=1",
    "moe_swiglu_bwd_quantize rows=256 cols=264 experts=1 offsets_t=1 pow2=1 row_scale=1 drow=1 variant=1",
    "moe_combine tokens=33 slots=3 cols=264 y=f32 out=f32 weights=1 shared=f32 residual=f32 variant=1",
    "moe_combine_bwd tokens=33 slots=3 cols=264 dtype=f32 weights=1 dweights=1 variant=1",
    "moe_route_bwd tokens=37 experts=48 slots=7 rule=sigmoid normalise=1 logit_bias=1 scale=3",
    NULL,
};

const check_family check_experts = {
    .family = &ridge_family_experts,
    .cases = experts_cases,
    .oracle = experts_oracle,
    .fill = experts_fill,
    .variants = 4,
    .suites = suites,
    .fault_problems = fault_problems,
    .faults = faults,
};
