/* cases.c: the test cases of cross entropy. */
#include <stdio.h>
#include <string.h>

#include "linear_ce.h"

static const char *const dtypes[] = {"bf16", "f16", "f32"};

/* tokens, hidden, vocab: one of each, ragged, and beyond every block of the CPU rows (chunk 512 and 32, 256 of hidden,
 * 1024 rows, 2016 columns, 4032 classes). */
static const struct {
    int tokens, hidden, vocab;
    test_case layout;
} shape_table[] = {
    {0, 16, 8, {.fill = FILL_UNIT}},
    {1, 1, 1, {.fill = FILL_UNIT}},
    {5, 24, 1, {.fill = FILL_UNIT}},
    {1, 64, 130, {.fill = FILL_UNIT, .variant = CE_VALID}},
    {7, 33, 50, {.fill = FILL_UNIT, .shift = 1}},
    {37, 128, 257, {.fill = FILL_UNIT, .repeats = 40}},
    {40, 72, 192, {.fill = FILL_UNIT, .pad = 8}},
    {21, 50, 99, {.fill = FILL_UNIT, .pad = 3, .shift = 3}},
    {70, 300, 1100, {.fill = FILL_UNIT}},
    {66, 265, 4100, {.fill = FILL_UNIT}},
    {530, 40, 300, {.fill = FILL_UNIT, .variant = CE_VALID}},
    {12, 2100, 70, {.fill = FILL_UNIT}},
    /* Several chunks of rows, and more classes than two bundles of Hopper; the CPU's blocks end before. */
    {300, 64, 4360, {.fill = FILL_UNIT, .gpu = true}},
    {300, 264, 3400, {.fill = FILL_UNIT, .gpu = true}}, /* P^T in dW's memory, two columns of tiles */
    {1, 64, 130, {.fill = FILL_UNIT, .variant = CE_VALID, .pad = 3, .pad_of = PAD_SINGLE_ROWS}},
    {70, 136, 1, {.fill = FILL_UNIT, .pad = 5, .pad_of = PAD_SINGLE_ROWS}},
    {140, 136, 4360, {.fill = FILL_UNIT, .repeats = 5, .gpu = true}}, /* add_halves */
    /* add_summed: several chunks where the workspace is small; of the first two, P^T of the first one lies in dW. */
    {400, 136, 4360, {.fill = FILL_UNIT, .repeats = 2, .gpu = true}},
    {520, 136, 4360, {.fill = FILL_UNIT, .gpu = true}},
    {400, 136, 328, {.fill = FILL_UNIT, .repeats = 2, .gpu = true}},
    {300, 72, 201, {.fill = FILL_UNIT, .pad = 8}},
    {130, 16, 17000, {.fill = FILL_UNIT, .gpu = true}},               /* lines of dW longer than a warp takes at once */
    {300, 136, 4360, {.fill = FILL_UNIT, .repeats = 2, .gpu = true}}, /* one chunk, P^T in dW and as much beside it */
    {300, 584, 1304, {.fill = FILL_UNIT, .repeats = 5, .gpu = true}}, /* add_listed */
    {70000, 8, 8, {.fill = FILL_UNIT, .repeats = 2, .gpu = true}}, /* the list is made by blocks of two rounds each */
};

enum { SHAPES = (int)(sizeof shape_table / sizeof shape_table[0]), MANY = SHAPES - 1, LISTED = SHAPES - 2 };
enum { HALVES = SHAPES - 9, SUMMED };

/* Words of options: for every op, for those with outputs of rows, for those with gradients. A word that an op does not
 * have is left out. */
typedef struct option {
    const char *every, *outputs, *gradients;
    int variant;
} option;

static const option option_table[] = {
    {"", "lse=1", "", CE_VALID},
    {"target=i32 reduction=sum", "token_loss=1 target_logit=1 errors=1", "dbias=1", CE_WRONG},
    {"label_smoothing=0.1", "lse=1 entropy=1", "accumulate=1", 0},
    {"class_weight=1", "argmax=1 accuracy=1", "dw=x", 0},
    {"class_weight=1 label_smoothing=0.2 target=i32", "token_loss=1 accuracy=1", "dx=0", CE_HALF},
    {"softcap=4", "lse=1 target_logit=1 entropy=1", "dw=0 dbias=1", 0},
    {"temperature=0.7", "entropy=1 argmax=1", "dbias=1 dx=0", CE_VALID},
    {"lse_square_scale=0.01", "lse=1", "bias=1 dbias=1", 0},
    {"lse_square_scale=0.01 class_weight=1 reduction=sum", "token_loss=1", "accumulate=1 dbias=1 dw=x", CE_WRONG},
    {"", "bias=1 token_loss=1 lse=1 accuracy=1", "bias=1", CE_PEAK},
    {"", "bias=1 token_loss=1 lse=1 entropy=1", "bias=1", CE_UP},
    {"label_smoothing=0.1", "bias=1 token_loss=1 lse=1", "bias=1 dbias=1", CE_DOWN},
    {"", "bias=1 lse=1 entropy=1 argmax=1", "bias=1 dbias=1", CE_MINUS},
    {"class_weight=1 lse_square_scale=0.1", "lse=1 errors=1 accuracy=1", "dbias=1", CE_NO_ROW},
    {"class_weight=1 lse_square_scale=0.1", "lse=1", "dbias=1", CE_NO_WEIGHT},
    {"ignore_index=2 target=i32", "errors=1 token_loss=1", "", CE_HALF},
    {"label_smoothing=1", "token_loss=1", "", CE_VALID},
    {"class_weight=1 label_smoothing=0.1 softcap=6 temperature=1.5 lse_square_scale=0.01",
     "bias=1 token_loss=1 lse=1 target_logit=1 entropy=1 argmax=1 accuracy=1 errors=1", "bias=1 dbias=1 accumulate=1",
     0},
};

enum { OPTIONS = (int)(sizeof option_table / sizeof option_table[0]) };

static bool is_given(const ridge_op_row *op)
{
    return op->id == RIDGE_CE_FWD || op->id == RIDGE_CE_BWD;
}

static bool makes_outputs(const ridge_op_row *op)
{
    return op->id == RIDGE_LINEAR_CE_EVAL || op->id == RIDGE_LINEAR_CE_TRAIN || op->id == RIDGE_CE_FWD;
}

/* Adds words that the op has; "dw=x" takes x's dtype. */
static void append_words(const ridge_op_row *op, char *text, size_t size, const char *words, const char *dtype)
{
    while (*words) {
        char name[32] = "", value[32] = "";
        int used = 0;

        if (sscanf(words, " %31[^= ]=%31s%n", name, value, &used) < 2)
            return;
        for (const ridge_field *field = op->fields; field->name; field++)
            if (strcmp(field->name, name) == 0) {
                const size_t at = strlen(text);

                snprintf(text + at, size - at, " %s=%s", name, strcmp(value, "x") == 0 ? dtype : value);
            }
        words += used;
    }
}

static void add(case_list *list, const ridge_op_row *op, int shape, const option *o, int n, const char *more)
{
    const char *dtype = dtypes[o->variant & (CE_UP | CE_DOWN) ? 2 : n % 3];
    test_case layout = shape_table[shape].layout;
    char text[400];

    if (is_given(op))
        snprintf(text, sizeof text, "tokens=%d vocab=%d dtype=%s", shape_table[shape].tokens, shape_table[shape].vocab,
                 dtype);
    else
        snprintf(text, sizeof text, "tokens=%d hidden=%d vocab=%d dtype=%s layout=%s", shape_table[shape].tokens,
                 shape_table[shape].hidden, shape_table[shape].vocab, dtype, n / 2 % 2 ? "hv" : "vh");
    append_words(op, text, sizeof text, o->every, dtype);
    if (makes_outputs(op))
        append_words(op, text, sizeof text, o->outputs, dtype);
    if (op->id != RIDGE_LINEAR_CE_EVAL)
        append_words(op, text, sizeof text, o->gradients, dtype);
    append_words(op, text, sizeof text, more, dtype);
    if (o->variant)
        layout.variant = o->variant;
    layout.alias = op->id == RIDGE_CE_BWD && n % 2;
    if (strstr(text, "accumulate=1") || layout.alias)
        layout.repeats = 0; /* a second run on the same memory differs */
    cases_add(list, op, text, layout);
}

/* Slices of a vocabulary: records, and the gradients of a slice. */
static void add_slices(case_list *list, const ridge_op_row *op)
{
    static const option plain = {"", "", "dbias=1", 0},
                        smooth = {"label_smoothing=0.1 class_weight=1", "", "", CE_WRONG};
    static const char *const slice[] = {"vocab_offset=100 vocab_total=1500", "vocab_total=1500",
                                        "vocab_offset=400 vocab_total=1500"};
    char more[160];

    for (int i = 0; i < 3; i++) {
        snprintf(more, sizeof more, "%s%s", slice[i],
                 op->id == RIDGE_LINEAR_CE_BACKWARD || op->id == RIDGE_CE_BWD
                     ? (i == 1 ? " reduction=none" : "")
                     : (i == 1 ? " record=1 loss=0" : " record=1 sums=1 loss=0 argmax=1"));
        add(list, op, 8, i == 2 ? &smooth : &plain, i, more);
    }
    if (makes_outputs(op))
        add(list, op, 5, &plain, 1, "record=1 sums=1 token_loss=1");
}

/* dW of 16 bits from one chunk of rows, whose P^T lies in dW's own memory (Hopper), and dW of f32 likewise; with
 * classes that are the target of one row and of many. */
static void add_halves(case_list *list, const ridge_op_row *op)
{
    static const option of[] = {{"", "lse=1", "dw=x", CE_VALID},
                                {"class_weight=1", "", "dw=x dbias=1", CE_FREQUENT},
                                {"lse_square_scale=0.01", "", "dbias=1", CE_HALF},
                                {"", "", "dbias=1", CE_VALID | CE_FREQUENT}};

    for (int i = 0; i < 4; i++)
        for (int n = i >= 2; n < 2; n++) /* bf16, f16 */
            add(list, op, HALVES, &of[i], n, "");
}

/* dW of 16 bits of several chunks, summed in f32 (Hopper; there any with W [H, V]): two, three or four of them, the
 * last ones without rows where half are ignored; or of one that takes as much memory. n: dtype and layout of W. */
static void add_summed(case_list *list, const ridge_op_row *op, case_level level)
{
    static const struct {
        option o;
        int shape, n;
    } of[] = {
        {{"", "lse=1", "dw=x", CE_VALID | CE_FREQUENT}, 0, 0},
        {{"label_smoothing=0.1", "", "dw=x accumulate=1 dbias=1", CE_VALID}, 2, 1},
        {{"class_weight=1", "", "dw=x", CE_FREQUENT}, 2, 3},
        {{"", "", "dw=x accumulate=1 dbias=1", CE_HALF}, 2, 0},
        {{"", "", "dw=x", CE_FREQUENT}, 3, 0},
        {{"lse_square_scale=0.01", "", "dw=x", CE_HALF}, 3, 1},
        {{"", "", "dw=x", CE_NO_ROW}, 2, 7},
        {{"", "", "dw=x accumulate=1", CE_NO_ROW}, 3, 0},
        {{"class_weight=1 label_smoothing=0.1", "", "dw=x accumulate=1 dbias=1", CE_VALID}, 3, 3}, /* also on CPUs */
        {{"", "", "dw=x accumulate=1", CE_VALID}, 4, 3},
        {{"", "", "dw=x", CE_FREQUENT}, 5, 0},
        {{"class_weight=1", "", "dw=x dbias=1", CE_HALF}, 5, 1},
        {{"", "", "dw=x", CE_HALF}, 0, 1}, /* this one and the next take seconds */
        {{"", "", "dw=x", CE_FREQUENT}, 1, 0},
    };
    const int count = level == CASES_QUICK || op->id == RIDGE_LINEAR_CE_BACKWARD ? 12 : 14;

    for (int i = 0; i < count; i++)
        add(list, op, SUMMED + of[i].shape, &of[i].o, of[i].n, "");
}

/* Eval loads only the listed rows (Hopper): more blocks of the hidden units than stages, the last one not full. */
static void add_listed(case_list *list, const ridge_op_row *op)
{
    static const option of[] = {{"", "lse=1", "", CE_HALF},
                                {"softcap=6", "token_loss=1 entropy=1 argmax=1", "", CE_WRONG},
                                {"", "target_logit=1", "", CE_VALID}};

    add(list, op, LISTED, &of[0], 0, ""); /* bf16, W [V, H] */
    add(list, op, LISTED, &of[1], 1, ""); /* f16 */
    add(list, op, LISTED, &of[0], 7, ""); /* f16, W [H, V] */
    add(list, op, LISTED, &of[2], 3, ""); /* bf16, W [H, V], no row ignored */
}

/* Grids that plan their work by the number of multiprocessors, as on GPUs with fewer; and more blocks of the hidden
 * units than a pipeline has stages. */
static void add_units(case_list *list, const ridge_op_row *op)
{
    static const struct {
        int shape, units;
    } of_units[] = {{8, 2}, {8, 16}, {8, 60}, {8, 78}, {8, 114}, {HALVES, 16}, {HALVES, 78}, {LISTED, 60}};
    static const option of[] = {{"", "lse=1", "dw=x", CE_VALID},
                                {"class_weight=1", "token_loss=1 entropy=1", "accumulate=1 dbias=1", CE_HALF},
                                {"label_smoothing=0.1", "target_logit=1", "dbias=1", CE_FREQUENT}};

    for (int i = 0; i < 8; i++) { /* few of the larger shapes: the oracle takes seconds for them */
        add(list, op, of_units[i].shape, &of[i % 3], i < 7 ? i : 0, "");
        list->at[list->count - 1].units = of_units[i].units;
        list->at[list->count - 1].gpu = true;
    }
}

/* Targets out of range in a mean: they count for nothing in its divisor, which the gradients of the others show. */
static void add_wrong(case_list *list, const ridge_op_row *op)
{
    static const option of[] = {{"", "lse=1 errors=1", "dbias=1", CE_WRONG},
                                {"class_weight=1 lse_square_scale=0.01", "lse=1 errors=1", "", CE_WRONG}};

    for (int i = 0; i < 4; i++)
        add(list, op, i < 2 ? 5 : 7, &of[i % 2], i, "");
}

/* Equal logits and NaN: argmax, and everything that a NaN reaches and does not reach; negative class weights. */
static void add_special(case_list *list, const ridge_op_row *op)
{
    static const option of[] = {
        {"", "lse=1 token_loss=1 argmax=1 accuracy=1 entropy=1 target_logit=1 errors=1", "dbias=1", CE_SPECIAL},
        {"label_smoothing=0.1 reduction=sum", "bias=1 argmax=1 token_loss=1", "bias=1 dw=x", CE_SPECIAL | CE_HALF},
        {"softcap=4", "argmax=1 accuracy=1", "", CE_SPECIAL | CE_VALID}};
    static const option negative = {"class_weight=1 label_smoothing=0.1 lse_square_scale=0.1",
                                    "lse=1 token_loss=1 accuracy=1", "dbias=1", CE_NEGATIVE};
    static const int shape[] = {5, 7, 8, 12};

    for (int i = 0; i < 4; i++)
        for (int o = 0; o < 3; o++)
            if (i < 2 || o == 0) /* the larger ones take a second */
                add(list, op, shape[i], &of[o], i + o, op->id == RIDGE_LINEAR_CE_TRAIN ? "" : "reduction=none");
    for (int n = 0; n < 3; n++)
        add(list, op, shape[n], &negative, n, "");
    if (makes_outputs(op) && op->id != RIDGE_LINEAR_CE_TRAIN)
        add(list, op, 5, &of[0], 1, "record=1 sums=1");
    for (int i = 0; i < 3 && op->id != RIDGE_LINEAR_CE_TRAIN; i++) { /* given logits that are infinite too */
        add(list, op, shape[i], &of[0], i, "reduction=none");
        list->at[list->count - 1].fill = FILL_SPECIAL;
        list->at[list->count - 1].variant = i == 1 ? CE_VALID : 0;
    }
}

/* p near 1 at the target in every dtype: of f32 operands the rounding of lse is most of the gradients' error. And f16
 * gradients beyond 65504. */
static void add_peak(case_list *list, const ridge_op_row *op)
{
    static const option of[] = {{"", "bias=1 lse=1", "bias=1 dbias=1", CE_PEAK | CE_VALID},
                                {"reduction=sum", "", "dw=x", CE_VALID}};
    static const int peak[] = {1, 3, 5}, far[] = {3, 5};

    for (int i = 0; i < 3; i++)
        for (int n = 1; n < 3; n++) /* f16, f32; W [V, H] and [H, V] */
            add(list, op, peak[i], &of[0], n, "");
    for (int i = 0; i < 2 && op->id == RIDGE_LINEAR_CE_TRAIN; i++)
        add(list, op, far[i], &of[1], 1, "grad_scale=1e6");
}

/* The gradient of the entropy, beside that of the loss: every option, and what changes p or the row's factor. */
static void add_entropy(case_list *list, const ridge_op_row *op, case_level level)
{
    static const option of[] = {
        {"", "", "dentropy=1", CE_VALID},
        {"reduction=none", "", "dentropy=1 dbias=1", 0},
        {"label_smoothing=0.1 class_weight=1", "", "dentropy=1 dw=x", CE_HALF},
        {"softcap=4 temperature=0.7 reduction=sum", "", "dentropy=1 bias=1 dbias=1", 0},
        {"lse_square_scale=0.01", "", "dentropy=1 accumulate=1", CE_WRONG},
        {"reduction=none", "", "dentropy=1 bias=1 dbias=1", CE_MINUS},
        {"reduction=none", "", "dentropy=1 bias=1", CE_PEAK},
        {"reduction=none", "", "dentropy=1 bias=1", CE_UP},
        {"label_smoothing=0.1", "", "dentropy=1 bias=1 dbias=1", CE_DOWN},
        {"class_weight=1", "", "dentropy=1 dbias=1", CE_NO_WEIGHT}, /* the loss has no gradient */
        {"class_weight=1 label_smoothing=0.1", "", "dentropy=1", CE_NEGATIVE},
        {"reduction=none", "", "dentropy=1 dbias=1 dw=x", CE_SPECIAL},
        {"class_weight=1", "", "dentropy=1", CE_NO_ROW},
        {"reduction=none", "", "dentropy=1 dw=x dx=0", CE_VALID | CE_FREQUENT},
    };
    static const int shapes[] = {5, 3, 7, 6, 4, 8};
    const int count = (int)(sizeof of / sizeof of[0]);

    for (int i = 0; i < 6; i++)
        for (int o = 0; o < count; o++)
            if (i < 2 || (o + i) % (level == CASES_QUICK ? 7 : 3) == 0)
                add(list, op, shapes[i], &of[o], o + i, "");
    add(list, op, 8, &of[1], 0, "vocab_offset=100 vocab_total=1500");
    add(list, op, 8, &of[0], 1, "vocab_total=1500");
    if (is_given(op))
        return;
    add(list, op, HALVES, &of[13], 0, "");
    add(list, op, SUMMED, &of[2], 1, "");
    add(list, op, SUMMED + 2, &of[4], 0, "");
    add(list, op, SUMMED + 3, &of[3], 3, "");
}

/* Log-probabilities of given ids and their gradient: the target among them, one class several times, ignored ones, ones
 * that are no class; beside the gradients of the loss and of the entropy. */
static void add_ids(case_list *list, const ridge_op_row *op, case_level level)
{
    static const option of[] = {
        {"ids=5 reduction=none", "lse=1", "dbias=1", CE_VALID},
        {"ids=9 target=i32", "", "dw=x", 0},
        {"ids=64 softcap=4 temperature=0.7", "bias=1", "bias=1 dbias=1 dentropy=1", CE_WRONG},
        {"ids=3 label_smoothing=0.1 class_weight=1", "entropy=1", "accumulate=1", CE_HALF},
        {"ids=1 lse_square_scale=0.01", "", "dentropy=1 dx=0", CE_VALID},
        {"ids=8 class_weight=1", "", "dbias=1", CE_NO_WEIGHT}, /* the loss has no gradient */
        {"ids=7 reduction=none", "bias=1", "bias=1 dbias=1", CE_UP},
        {"ids=256", "", "dw=x dbias=1", CE_VALID | CE_FREQUENT},
        {"ids=4 reduction=none", "", "dw=0", CE_SPECIAL},
        {"ids=2", "", "", CE_NO_ROW},
        {"ids=6 reduction=none", "bias=1", "bias=1", CE_PEAK},
    };
    static const option of_slice = {"ids=5 reduction=none", "", "dbias=1", CE_VALID};
    static const int shapes[] = {5, 3, 7, 6, 4, 8, 2};
    const int count = (int)(sizeof of / sizeof of[0]);

    for (int i = 0; i < 7; i++)
        for (int o = 0; o < count; o++)
            if (i < 2 || (o + i) % (level == CASES_QUICK ? 5 : 3) == 0)
                add(list, op, shapes[i], &of[o], o + i, "");
    add(list, op, 8, &of_slice, 0, "vocab_offset=100 vocab_total=1500 loss=0 record=1");
    add(list, op, 8, &of_slice, 1, "vocab_total=1500 loss=0 record=1 target=i32");
    add(list, op, HALVES, &of[7], 0, "");
    add(list, op, SUMMED, &of[1], 1, "");
    add(list, op, SUMMED + 2, &of[0], 0, "");
    add(list, op, SUMMED + 3, &of[3], 3, "");
    if (op->id != RIDGE_LINEAR_CE_EVAL)
        return;
    add(list, op, LISTED, &of[1], 12, ""); /* rows are copied (Hopper) */
    add(list, op, LISTED, &of[5], 1, "temperature=0.7 entropy=1");
    add(list, op, MANY, &of[1], 0, ""); /* several chunks */
    add(list, op, MANY, &of[0], 1, "temperature=1.5");
}

/* The top classes: equals, NaN and -infinity among them, more than a step and than a list has room for, lists of
 * several parts, rows in falling and rising order (the bias), rows that are ignored, a sample unlike the rest. */
static void add_topk(case_list *list, const ridge_op_row *op, case_level level)
{
    static const option of[] = {
        {"topk=5", "lse=1", "", CE_VALID},
        {"topk=20 reduction=none target=i32", "entropy=1", "", 0},
        {"topk=1", "argmax=1 accuracy=1", "", CE_HALF},
        {"topk=33 softcap=4 temperature=0.7", "bias=1 entropy=1", "", CE_WRONG},
        {"topk=9 label_smoothing=0.1 class_weight=1", "", "", CE_HALF},
        {"topk=40 reduction=none", "", "", CE_SPECIAL},
        {"topk=30 reduction=none", "bias=1 lse=1", "", CE_MINUS},
        {"topk=7 ids=3", "bias=1", "", CE_UP},
        {"topk=2", "lse=1", "", CE_NO_ROW},
        {"topk=8 reduction=none", "bias=1 entropy=1", "", CE_DOWN},
    };
    static const option large[] = {{"topk=256", "lse=1", "", CE_VALID},
                                   {"topk=64", "entropy=1", "", CE_HALF},
                                   {"topk=200 reduction=none", "bias=1", "", CE_SPECIAL}};
    static const option sampled[] = {{"topk=50", "lse=1 entropy=1", "", CE_SAMPLED},
                                     {"topk=60 temperature=0.7", "bias=1 entropy=1", "", CE_SAMPLED | CE_VALID},
                                     {"topk=50", "lse=1 argmax=1", "", CE_SAMPLED | CE_HALF}};
    static const option of_slice = {"topk=50 reduction=none", "", "", CE_VALID};
    static const test_case columns_left = {.fill = FILL_UNIT, .variant = CE_VALID, .gpu = true, .repeats = 2};
    static const int shapes[] = {5, 3, 7, 6, 4}, larger[] = {8, 9, 5};
    const int count = (int)(sizeof of / sizeof of[0]);

    for (int i = 0; i < 5; i++)
        for (int o = 0; o < count; o++)
            if (i < 2 || (o + i) % (level == CASES_QUICK ? 5 : 3) == 0)
                add(list, op, shapes[i], &of[o], o + i, "");
    for (int i = 0; i < 3; i++)
        for (int o = 0; o < 3; o++)
            if (i < 2 || o == 0)
                add(list, op, larger[i], &large[o], o + 2 * i, "");
    add(list, op, 0, &of[8], 0, "");
    add(list, op, 8, &of_slice, 0, "vocab_offset=100 vocab_total=1500 loss=0 record=1");
    add(list, op, 8, &of_slice, 1, "vocab_total=1500 loss=0 record=1 sums=1 argmax=1");
    add(list, op, LISTED, &large[1], 0, ""); /* rows are gathered (Hopper) */
    add(list, op, LISTED, &large[0], 1, "");
    add(list, op, LISTED, &of[4], 7, ""); /* two products */
    add(list, op, HALVES, &large[0], 0, "");
    add(list, op, HALVES, &large[1], 3, "");
    cases_add(list, op, "tokens=2100 hidden=24 vocab=5000 dtype=bf16 topk=20 lse=1", columns_left);
    add(list, op, MANY, &of[0], 0, ""); /* several chunks */
    for (int o = 0; o < 3; o++) {       /* the best are in the sample: all of it again (Hopper) */
        add(list, op, HALVES, &sampled[o], 12 * o, "");
        add(list, op, LISTED, &sampled[o], 12 * o + 1, "");
    }
    for (int units = 2; units < 100; units += 38) {
        add(list, op, 9, &large[units % 3], units, "");
        list->at[list->count - 1].units = units;
        list->at[list->count - 1].gpu = true;
    }
}

/* A class drawn: beside every other output, of rows that are ignored, equal, NaN or -infinity, and of slices. */
static void add_sample(case_list *list, const ridge_op_row *op, case_level level)
{
    static const option of[] = {
        {"sample=1", "lse=1", "", CE_VALID},
        {"sample=1 sample_score=1 reduction=none target=i32", "entropy=1", "", 0},
        {"sample=1 topk=6", "argmax=1 accuracy=1", "", CE_HALF},
        {"sample=1 softcap=4 temperature=0.7", "bias=1", "", CE_WRONG},
        {"sample=1 ids=3 label_smoothing=0.1 class_weight=1", "", "", CE_HALF},
        {"sample=1 sample_score=1 reduction=none", "", "", CE_SPECIAL},
        {"sample=1 temperature=0.05 reduction=none", "bias=1 lse=1", "", CE_MINUS},
        {"sample=1 sample_score=1", "bias=1", "", CE_UP},
        {"sample=1", "lse=1", "", CE_NO_ROW},
        {"sample=1 reduction=none", "bias=1 entropy=1", "", CE_DOWN},
        {"sample=1 sample_score=1", "bias=1", "", CE_PEAK},
    };
    static const option of_slice = {"sample=1 sample_score=1 reduction=none", "", "", CE_VALID};
    static const int shapes[] = {5, 3, 7, 6, 4, 2, 8, 9};
    const int count = (int)(sizeof of / sizeof of[0]);

    for (int i = 0; i < 8; i++)
        for (int o = 0; o < count; o++)
            if (i < 2 || (o + i) % (level == CASES_QUICK ? 5 : 3) == 0)
                add(list, op, shapes[i], &of[o], o + i, "");
    add(list, op, 0, &of[0], 0, "");
    add(list, op, 8, &of_slice, 0, "vocab_offset=96 vocab_total=1500 loss=0 record=1");
    add(list, op, 8, &of_slice, 1, "vocab_total=1500 loss=0 record=1 sums=1 argmax=1");
    add(list, op, LISTED, &of[2], 0, ""); /* rows are gathered (Hopper) */
    add(list, op, LISTED, &of[0], 1, "");
    add(list, op, LISTED, &of[4], 7, ""); /* two products */
    add(list, op, HALVES, &of[0], 0, "");
    add(list, op, HALVES, &of[1], 3, "");
    for (int units = 2; units < 100; units += 38) {
        add(list, op, 9, &of[units % 3], units, "");
        list->at[list->count - 1].units = units;
        list->at[list->count - 1].gpu = true;
    }
}

/* linear_ce_train in phases, of slices and of the whole. A slice with a thousandth of the probability makes f16 take
 * P^T again for lse, a class that the sample of classes does not show makes every dtype do so. BEGIN alone gives
 * records, DX has no dW to hold its state, DW runs after both. No peak in a slice whose targets lie elsewhere: one
 * class is then all of the tensor, and its rms as luck has it. */
static void add_phases(case_list *list, const ridge_op_row *op, case_level level)
{
    static const option of[] = {
        {"", "", "dbias=1", CE_VALID},
        {"class_weight=1 target=i32", "", "dw=x", 0},
        {"label_smoothing=0.1 class_weight=1 sums=1", "", "dbias=1", CE_HALF},
        {"softcap=4 temperature=0.7", "", "bias=1 dw=x dbias=1 accumulate=1", 0},
        {"lse_square_scale=0.01 reduction=sum", "", "dbias=1 accumulate=1", CE_WRONG},
        {"", "", "bias=1 dbias=1", CE_PEAK},
        {"reduction=sum", "", "bias=1 dw=x", CE_MINUS},
        {"class_weight=1", "", "dbias=1", CE_NO_ROW},
        {"class_weight=1 lse_square_scale=0.1", "", "dw=x dbias=1", CE_NO_WEIGHT},
        {"", "", "dw=x dbias=1", CE_VALID | CE_FREQUENT},
        {"", "", "dbias=1 dx=0", CE_SPECIAL},
        {"", "", "bias=1", CE_UP},
        {"label_smoothing=0.2 sums=1", "", "dw=x", CE_VALID},
    };
    static const char *const phase[] = {"phase=dw", "phase=dw vocab_offset=37 vocab_total=1500000",
                                        "phase=dx dw=0 dbias=0", "phase=begin dx=0 dw=0 dbias=0"};
    /* A shape has every quick-th pair of an option and a phase, or at the full level every full-th. Few of the second
     * and of the last, which take a CPU up to six seconds each. */
    static const struct {
        int shape, quick, full;
    } shapes[] = {{5, 3, 1},   {8, 11, 5},      {1, 11, 2},      {4, 11, 2}, {0, 11, 5}, {12, 11, 5},
                  {13, 11, 5}, {HALVES, 11, 5}, {SUMMED, 11, 5}, {2, 11, 5}, {9, 11, 11}};
    const int count = (int)(sizeof of / sizeof of[0]);

    for (int i = 0; i < 11; i++)
        for (int o = 0; o < count; o++)
            for (int p = 0; p < 4; p++)
                if (!(p == 1 && of[o].variant == CE_PEAK) &&
                    (o + 3 * p + i) % (level == CASES_QUICK ? shapes[i].quick : shapes[i].full) == 0)
                    add(list, op, shapes[i].shape, &of[o], o + p + i, phase[p]);
    add(list, op, HALVES, &of[9], 0, "phase=dw grad_scale=0.5 scale=1");
    for (int units = 2; units < 100; units += 38) {
        add(list, op, HALVES, &of[units % 3], 0, "phase=dw");
        list->at[list->count - 1].units = units;
        list->at[list->count - 1].gpu = true;
    }
}

/* More logits than 2^31: given ones, whose index passes it, and made ones. */
static void add_large(case_list *list, const ridge_op_row *op)
{
    const char *const text = is_given(op)                      ? "dtype=bf16"
                             : op->id == RIDGE_LINEAR_CE_EVAL  ? "hidden=32 dtype=bf16 lse=1 argmax=1"
                             : op->id == RIDGE_LINEAR_CE_TRAIN ? "hidden=32 dtype=bf16 lse=1 dbias=1"
                                                               : "hidden=32 dtype=bf16 dbias=1 reduction=none";
    const char *const rows = op->id == RIDGE_CE_FWD ? "reduction=none lse=1 argmax=1" : "";
    char all[160];

    snprintf(all, sizeof all, "tokens=65664 vocab=32776 %s %s", text, rows);
    cases_add(list, op, all, (test_case){.fill = FILL_PERIOD, .alias = op->id == RIDGE_CE_BWD, .gpu = true});
}

/* A gradient of each row, known beforehand. */
static void add_known(case_list *list, const ridge_op_row *op)
{
    static const option of[] = {
        {"", "lse=1", "", CE_VALID},
        {"class_weight=1", "token_loss=1", "dw=x dbias=1", CE_WRONG},
        {"label_smoothing=0.1 softcap=4", "", "bias=1 dbias=1 accumulate=1", 0},
        {"lse_square_scale=0.01 temperature=0.7", "", "dx=0", CE_HALF},
        {"", "", "bias=1", CE_PEAK},
        {"", "", "dw=0", CE_SPECIAL},
    };
    static const int shapes[] = {5, 3, 7, 8, HALVES, SUMMED + 2};

    for (int i = 0; i < 6; i++)
        for (int o = 0; o < 6; o++)
            if (i < 2 || o == i || (i > 3 && o < 2))
                add(list, op, shapes[i], &of[o], o + i, "reduction=none scale=1");
}

static void combine_cases(const ridge_op_row *op, case_list *list)
{
    static const char *const words[] = {
        "",
        "reduction=none token_loss=1 target=i32",
        "sums=1 label_smoothing=0.1 entropy=1 target_logit=1",
        "shard_argmax=1 argmax=1 accuracy=1 errors=1 class_weight=1 reduction=sum",
        "sums=1 class_weight=1 label_smoothing=0.3 lse_square_scale=0.01 token_loss=1",
    };
    static const int variants[] = {CE_VALID, CE_WRONG, CE_HALF, 0, CE_UP, CE_NO_ROW};
    static const int shards[] = {1, 2, 3, 4, 5, 8};
    char text[256];

    for (int i = 0; i < 30; i++) {
        test_case layout = {.fill = FILL_UNIT, .variant = variants[i % 6], .pad = i % 4 == 3 ? 2 : 0};

        snprintf(text, sizeof text, "tokens=%d vocab=%d shards=%d %s", i == 7 ? 0 : 1 + i * 7, 50 + 13 * i,
                 shards[i % 6], words[i % 5]);
        cases_add(list, op, text, layout);
    }
    /* enough for several threads on a CPU */
    cases_add(list, op, "tokens=3000 vocab=50 shards=4 sums=1 entropy=1", (test_case){.fill = FILL_UNIT});
}

void cases_ce(const ridge_op_row *op, case_level level, case_list *list)
{
    const bool backward = op->id == RIDGE_LINEAR_CE_BACKWARD || op->id == RIDGE_CE_BWD;
    const char *const none = op->id == RIDGE_LINEAR_CE_TRAIN ? "" : "reduction=none";
    int n = 0;

    if (op->id == RIDGE_CE_COMBINE) {
        combine_cases(op, list);
        return;
    }
    for (int shape = 0; shape < HALVES; shape++)
        for (int i = 0; i < OPTIONS; i++, n++) {
            const bool large = shape >= 8; /* an eighth of the options; also of shapes for strides alone */

            if ((large && (n + shape) % 8) || (level == CASES_QUICK && n % 4))
                continue;
            add(list, op, shape, &option_table[i], n, n % 4 == 1 ? (backward && n % 8 == 1 ? "dloss=0" : none) : "");
        }
    add_special(list, op);
    add_wrong(list, op);
    add_peak(list, op);
    if (op->id == RIDGE_LINEAR_CE_TRAIN || op->id == RIDGE_LINEAR_CE_BACKWARD)
        add_halves(list, op), add_summed(list, op, level);
    if (op->id == RIDGE_LINEAR_CE_EVAL)
        add_listed(list, op);
    if (!is_given(op))
        add_units(list, op);
    if (op->id == RIDGE_CE_FWD)
        add(list, op, MANY, &option_table[1], 0, "lse=1");
    if (backward)
        add_entropy(list, op, level);
    if (op->id == RIDGE_LINEAR_CE_EVAL || op->id == RIDGE_LINEAR_CE_BACKWARD)
        add_ids(list, op, level);
    if (op->id == RIDGE_LINEAR_CE_EVAL)
        add_topk(list, op, level), add_sample(list, op, level);
    if (op->id == RIDGE_LINEAR_CE_TRAIN)
        add_phases(list, op, level);
    if (level == CASES_LARGE)
        add_large(list, op);
    if (op->id != RIDGE_LINEAR_CE_TRAIN)
        add_slices(list, op);
    else
        add(list, op, 5, &option_table[0], 0, "grad_scale=0.5 scale=1"), add_known(list, op);
}
