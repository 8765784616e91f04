/* bench_weights.c: `ridge bench --weights FILE`: the ops on the tensors of a checkpoint, as bf16, each result against
 * the C reference. Of tensors of the same shape one is taken. An op is a line of weight_ops; what it reads comes from
 * the file, activations are N(0,1) from the seed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../cpu/num.h"
#include "bench.h"
#include "ridge_io.h"

/* What an op takes: the weight as bf16 or in blocks of Q8_0; or activations as wide as a layer's gate and up have rows.
 */
typedef enum source { SOURCE_BF16, SOURCE_Q8_0, SOURCE_GATE_UP } source;

/* How an output follows from a band of input rows: rows r / by, or columns r / by of every row. by 0: not an output. */
typedef struct follow {
    int by;
    bool columns;
} follow;

typedef struct weight_op {
    const char *problem; /* with rows and cols */
    source from;
    int step; /* cols is a multiple of this */
    follow out[RIDGE_MAX_ARGS];
} weight_op;

enum { TOKENS = 512, BAND = 128, WHOLE_MOST = 24 << 20 };

static const weight_op weight_ops[] = {
    {"quantize_fp8 rows=%" PRId64 " cols=%" PRId64 " dtype=bf16 scale=blk128",
     SOURCE_BF16,
     1,
     {[RIDGE_QUANTIZE_FP8_Q] = {1, false}, [RIDGE_QUANTIZE_FP8_SCALE] = {128, false}}},
    {"quantize_fp8_dual rows=%" PRId64 " cols=%" PRId64 " dtype=bf16 form=blk_blk",
     SOURCE_BF16,
     1,
     {[RIDGE_QUANTIZE_FP8_DUAL_Q] = {1, false},
      [RIDGE_QUANTIZE_FP8_DUAL_SCALE] = {128, false},
      [RIDGE_QUANTIZE_FP8_DUAL_Q_T] = {1, true},
      [RIDGE_QUANTIZE_FP8_DUAL_SCALE_T] = {128, true}}},
    {"q8_0_quantize rows=%" PRId64 " cols=%" PRId64 " dtype=bf16",
     SOURCE_BF16,
     32,
     {[RIDGE_Q8_0_QUANTIZE_BLOCKS] = {1, false}}},
    {"q8_0_repack rows=%" PRId64 " cols=%" PRId64,
     SOURCE_Q8_0,
     32,
     {[RIDGE_Q8_0_REPACK_CODES] = {1, false}, [RIDGE_Q8_0_REPACK_SCALES] = {1, false}}},
    {"swiglu_fwd rows=%" PRId64 " cols=%" PRId64 " dtype=bf16", SOURCE_GATE_UP, 1, {{0, false}}},
    {"swiglu_quantize rows=%" PRId64 " cols=%" PRId64 " dtype=bf16", SOURCE_GATE_UP, 1, {{0, false}}},
};

enum { WEIGHT_OPS = (int)(sizeof weight_ops / sizeof weight_ops[0]) };

static bool fail(const char *name, const char *why)
{
    fprintf(stderr, "ridge bench: %s: %s\n", name, why);
    return false;
}

/* ---------------------------------------------------------------------------------------------------------- loading */

void weight_free(weight *w)
{
    free(w->bf16);
    free(w->q8_0);
}

static void to_bf16(const ridge_tensor *t, const unsigned char *raw, uint16_t *to)
{
    const ridge_type_info *info = ridge_type_query(t->type);
    enum { SPAN = 4096 };

#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < t->elements; at += SPAN) {
        int64_t n = t->elements - at < SPAN ? t->elements - at : SPAN;
        float f[SPAN];

        ridge_dequantize(t->type, raw + at / info->block * info->bytes, n, f);
        for (int64_t i = 0; i < n; i++)
            to[at + i] = ridge_bf16_from_f32(f[i]);
    }
}

/* The file's own blocks where it has them. */
static bool to_q8_0(weight *w, const unsigned char *raw)
{
    size_t bytes = (size_t)(w->rows * w->cols / 32 * 34);
    ridge_device *cpu;
    ridge_call call;
    bool good;

    w->q8_0 = malloc(bytes);
    if (!w->q8_0 || ridge_open("cpu", &cpu) != RIDGE_OK)
        return false;
    call = ridge_q8_0_quantize(w->rows, w->cols, RIDGE_BF16, w->bf16, w->q8_0);
    good = w->t->type == RIDGE_TYPE_Q8_0 ? memcpy(w->q8_0, raw, bytes) != NULL
                                         : ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK;
    ridge_close(cpu);
    return good;
}

bool weight_load(const ridge_file *file, const ridge_tensor *t, weight *w)
{
    unsigned char *raw = malloc((size_t)t->bytes);
    bool good;

    *w = (weight){.t = t, .rows = t->shape[0], .cols = t->shape[1]};
    w->bf16 = malloc((size_t)t->elements * 2);
    good = raw && w->bf16;
    if (!good)
        fail(t->name, "out of memory");
    else if (ridge_file_read(file, t, 0, raw, t->bytes) != RIDGE_OK)
        good = fail(t->name, ridge_io_error());
    else
        to_bf16(t, raw, w->bf16);
    if (good && w->cols % 32 == 0 && !to_q8_0(w, raw))
        good = fail(t->name, "out of memory");
    free(raw);
    return good;
}

/* ------------------------------------------------------------------------------------------------------ verification
 */

/* The image of rows [begin, begin + rows) of the weight, as a problem of its own. */
static bool build(const weight_op *op, const weight *w, int64_t begin, int64_t rows, uint64_t seed, test_case *c,
                  image *im)
{
    char text[256];
    int64_t row_bytes;
    const unsigned char *from = op->from == SOURCE_Q8_0 ? w->q8_0 : (const unsigned char *)w->bf16;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the table's own */
    snprintf(text, sizeof text, op->problem, rows, op->from == SOURCE_GATE_UP ? w->rows : w->cols);
#pragma GCC diagnostic pop
    if (!case_parse(text, c) || !image_build(c, seed, im))
        return false;
    if (op->from == SOURCE_GATE_UP)
        return true;
    row_bytes = op->from == SOURCE_Q8_0 ? w->cols / 32 * 34 : 2 * w->cols;
    memcpy(im->host + im->offset[0], from + begin * row_bytes, (size_t)(rows * row_bytes)); /* slot 0 is the weight */
    return true;
}

/* The rows of `got`'s output that the band decides, against the band's own result. */
static bool same_output(const image *band, const unsigned char *expected, const image *im, const unsigned char *got,
                        int arg, follow f, int64_t begin)
{
    const ridge_op_row *op = ridge_op_table[im->call.op];
    const size_t size = ridge_dtype_size(im->call.arg[arg].dtype);
    int64_t rows, cols, all_rows, all_cols;

    op->extent(&band->call, arg, &rows, &cols);
    op->extent(&im->call, arg, &all_rows, &all_cols);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = f.columns ? r * all_cols + begin / f.by : (begin / f.by + r) * all_cols;

        if (memcmp(expected + band->offset[arg] + (size_t)(r * cols) * size, got + im->offset[arg] + (size_t)at * size,
                   (size_t)cols * size) != 0)
            return false;
    }
    return true;
}

typedef struct subject {
    const weight_op *op;
    const weight *w;
    uint64_t seed;
} subject;

static bool verify_band(const subject *s, const image *im, const unsigned char *got, int64_t begin, char *text,
                        size_t size)
{
    const int64_t rows = s->w->rows - begin < BAND ? s->w->rows - begin : BAND;
    unsigned char *expected;
    test_case c;
    image band;
    bool good;

    if (!build(s->op, s->w, begin, rows, s->seed, &c, &band))
        return snprintf(text, size, "out of memory") < 0;
    expected = malloc(band.bytes);
    good = expected && image_reference(&band, expected) == RIDGE_OK;
    for (int arg = 0; arg < RIDGE_MAX_ARGS && good; arg++)
        if (s->op->out[arg].by)
            good = same_output(&band, expected, im, got, arg, s->op->out[arg], begin);
    if (!good)
        snprintf(text, size, "rows %" PRId64 " to %" PRId64 " differ from the C reference", begin, begin + rows);
    free(expected);
    image_free(&band);
    return good;
}

/* The whole of it, or of a large tensor the first, the middle and the last band of rows. */
static bool verify(void *state, const image *im, const unsigned char *got, char *text, size_t size)
{
    const subject *s = state;
    unsigned char *expected;
    int64_t last;
    bool good;

    if (s->op->from != SOURCE_GATE_UP && s->w->rows * s->w->cols > WHOLE_MOST) {
        last = (s->w->rows - 1) / BAND * BAND;
        return verify_band(s, im, got, 0, text, size) && verify_band(s, im, got, last / 2 / BAND * BAND, text, size) &&
               verify_band(s, im, got, last, text, size);
    }
    expected = malloc(im->bytes);
    good = expected && image_reference(im, expected) == RIDGE_OK;
    if (!good)
        snprintf(text, size, "the C reference: %s", expected ? ridge_error() : "out of memory");
    good = good && image_equal(im, expected, got, text, size);
    free(expected);
    return good;
}

/* -------------------------------------------------------------------------------------------------------------- runs
 */

typedef struct tally {
    int ran, failed, skipped;
} tally;

static bool fits(const bench *b, const weight_op *op, const test_case *c)
{
    if (case_fits(b->device, c, 2, 3)) /* the reference's copy; some tens of MB more of a small one */
        return true;
    fprintf(stderr, "ridge bench: %.*s: left out: %s\n", (int)strcspn(op->problem, " "), op->problem, ridge_error());
    return false;
}

static void run_op(bench *b, const weight_op *op, const weight *w, tally *sum)
{
    subject s = {op, w, b->o->seed};
    const int64_t rows = op->from == SOURCE_GATE_UP ? TOKENS : w->rows;
    test_case c;
    image im;

    if ((op->from == SOURCE_Q8_0 && !w->q8_0) || w->cols % op->step || !build(op, w, 0, rows, s.seed, &c, &im))
        return;
    if (!fits(b, op, &c)) {
        sum->skipped++;
    } else {
        sum->ran++;
        sum->failed += !bench_image(b, "weights", &c, &im, verify, &s);
    }
    image_free(&im);
}

static bool is_fp8(uint32_t type)
{
    return type == RIDGE_TYPE_F8_E4M3 || type == RIDGE_TYPE_F8_E5M2; /* nothing without their scales */
}

bool is_weight(const ridge_tensor *t)
{
    return t->rank == 2 && t->elements > 0 && ridge_type_query(t->type)->dequantize && !is_fp8(t->type) &&
           !name_matches("*_scale", t->name) && !name_matches("*_scale_inv", t->name);
}

static bool same_shape(const ridge_tensor *a, const ridge_tensor *b)
{
    return a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
}

/* How many weights have this one's shape; *first: none before it does. */
static int64_t of_shape(const ridge_file *file, int64_t index, bool *first)
{
    int64_t count = 0;

    *first = true;
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_tensor *t = ridge_file_tensor(file, i);

        if (!is_weight(t) || !same_shape(t, ridge_file_tensor(file, index)))
            continue;
        count++;
        *first = *first && i >= index;
    }
    return count;
}

/* A gate whose up is there, by the names of Llama-family checkpoints and GGUF. */
static bool has_up(const ridge_file *file, const ridge_tensor *gate)
{
    static const char *const pair[][2] = {{"ffn_gate.", "ffn_up."}, {"gate_proj.", "up_proj."}};
    char name[512];

    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        const char *at = strstr(gate->name, pair[i][0]);
        const ridge_tensor *up;

        if (!at)
            continue;
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - gate->name), gate->name, pair[i][1],
                 at + strlen(pair[i][0]));
        up = ridge_file_find(file, name);
        if (up && up->rank == 2 && same_shape(up, gate))
            return true;
    }
    return false;
}

/* SwiGLU runs on activations, so that one gate of each width is enough, --all or not. */
static bool first_gate(const ridge_file *file, int64_t index)
{
    const ridge_tensor *gate = ridge_file_tensor(file, index);

    if (!has_up(file, gate))
        return false;
    for (int64_t i = 0; i < index; i++) {
        const ridge_tensor *t = ridge_file_tensor(file, i);

        if (is_weight(t) && t->shape[0] == gate->shape[0] && has_up(file, t))
            return false;
    }
    return true;
}

static void run_tensor(bench *b, const ridge_file *file, int64_t index, tally *sum)
{
    const ridge_tensor *t = ridge_file_tensor(file, index);
    bool first, gate;
    int64_t count = of_shape(file, index, &first);
    weight w;

    gate = first_gate(file, index);
    if (!first && !b->o->every && !gate)
        return;
    if (!weight_load(file, t, &w)) {
        sum->failed++;
        weight_free(&w);
        return;
    }
    if (!b->json && (first || b->o->every))
        printf("%s [%" PRId64 ", %" PRId64 "] %s, %" PRId64 " of this shape\n", t->name, w.rows, w.cols,
               ridge_type_query(t->type)->name, count);
    else if (!b->json)
        printf("%s: its width for SwiGLU, %d tokens\n", t->name, TOKENS);
    for (int i = 0; i < WEIGHT_OPS; i++)
        if (weight_ops[i].from == SOURCE_GATE_UP ? gate : first || b->o->every)
            run_op(b, &weight_ops[i], &w, sum);
    weight_free(&w);
}

bool bench_weights(bench *b)
{
    ridge_file *file;
    tally sum = {0};

    if (ridge_file_open(b->o->weights, &file) != RIDGE_OK) {
        fprintf(stderr, "ridge bench: %s\n", ridge_io_error());
        return false;
    }
    for (int64_t i = 0; i < ridge_file_tensors(file); i++)
        if (is_weight(ridge_file_tensor(file, i)))
            run_tensor(b, file, i, &sum);
    ridge_file_close(file);
    if (!sum.ran && !sum.failed)
        return fail(b->o->weights, "there is no 2-D tensor to run (FP8 ones are left out)");
    if (!b->json)
        printf("%d problems: %d verified against the C reference, %d failed, %d left out for memory\n",
               sum.ran + sum.skipped, sum.ran - sum.failed, sum.failed, sum.skipped);
    return sum.failed == 0;
}
