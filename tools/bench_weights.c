/* bench_weights.c: `ridge bench --weights FILE`: the ops that read weights, and SwiGLU, on the tensors of a checkpoint,
 * each result against the C reference, or the float64 bound where an op promises no bits. Of tensors of the same shape
 * one is taken. An op is a line of weight_ops; its weights come from the file, activations are random. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../cpu/num.h"
#include "bench.h"
#include "ridge_io.h"

/* What an op takes: the weight as bf16, as FP8 with a scale a 128 x 128 block, in blocks or planes of Q8_0; gate and up
 * in blocks; the vector of a norm; the output matrix; or activations as wide as gate and up are high. */
typedef enum source {
    SOURCE_BF16,
    SOURCE_FP8,
    SOURCE_Q8_0,
    SOURCE_PLANES,
    SOURCE_PAIR,
    SOURCE_NORM,
    SOURCE_HEAD,
    SOURCE_GATE_UP
} source;

/* How an output follows from a band of the weight's rows: rows r / by, or columns r / by of every row. by 0: not an
 * output. */
typedef struct follow {
    int by;
    bool columns;
} follow;

typedef struct weight_op {
    const char *problem; /* %1: the weight's rows, %2: its columns; a vector is a column */
    source from;
    int slot; /* of the weight; its scales are the next, the second weight the one after */
    int step; /* cols is a multiple of this */
    follow out[RIDGE_MAX_ARGS];
} weight_op;

enum { BAND = 128, WHOLE_MOST = 24 << 20 };

#define ROWS "%1$" PRId64
#define COLS "%2$" PRId64

static const weight_op weight_ops[] = {
    {"quantize_fp8 rows=" ROWS " cols=" COLS " dtype=bf16 scale=blk128",
     SOURCE_BF16,
     0,
     1,
     {[RIDGE_QUANTIZE_FP8_Q] = {1, false}, [RIDGE_QUANTIZE_FP8_SCALE] = {128, false}}},
    {"quantize_fp8_dual rows=" ROWS " cols=" COLS " dtype=bf16 form=blk_blk",
     SOURCE_BF16,
     0,
     1,
     {[RIDGE_QUANTIZE_FP8_DUAL_Q] = {1, false},
      [RIDGE_QUANTIZE_FP8_DUAL_SCALE] = {128, false},
      [RIDGE_QUANTIZE_FP8_DUAL_Q_T] = {1, true},
      [RIDGE_QUANTIZE_FP8_DUAL_SCALE_T] = {128, true}}},
    {"gemm_fp8 m=128 n=" ROWS " k=" COLS, SOURCE_FP8, RIDGE_GEMM_FP8_B, 1, {[RIDGE_GEMM_FP8_D] = {1, true}}},
    {"q8_0_quantize rows=" ROWS " cols=" COLS " dtype=bf16",
     SOURCE_BF16,
     0,
     32,
     {[RIDGE_Q8_0_QUANTIZE_BLOCKS] = {1, false}}},
    {"q8_0_repack rows=" ROWS " cols=" COLS,
     SOURCE_Q8_0,
     RIDGE_Q8_0_REPACK_BLOCKS,
     32,
     {[RIDGE_Q8_0_REPACK_CODES] = {1, false}, [RIDGE_Q8_0_REPACK_SCALES] = {1, false}}},
    {"q8_0_unpack rows=" ROWS " cols=" COLS,
     SOURCE_PLANES,
     RIDGE_Q8_0_REPACK_CODES,
     32,
     {[RIDGE_Q8_0_REPACK_BLOCKS] = {1, false}}},
    {"q8_0_matmul tokens=1 rows=" ROWS " cols=" COLS " x=bf16 w=i8 out=bf16",
     SOURCE_PLANES,
     RIDGE_Q8_0_MATMUL_W,
     32,
     {[RIDGE_Q8_0_MATMUL_OUT] = {1, true}}},
    {"q8_0_pair tokens=1 rows0=" ROWS " rows1=" ROWS " cols=" COLS " x=bf16 w=u8 out=bf16",
     SOURCE_PAIR,
     RIDGE_Q8_0_PAIR_W0,
     32,
     {[RIDGE_Q8_0_PAIR_OUT0] = {1, true}, [RIDGE_Q8_0_PAIR_OUT1] = {1, true}}},
    {"q8_0_gate_up_swiglu tokens=1 rows=" ROWS " cols=" COLS " x=bf16 w=u8 out=bf16",
     SOURCE_PAIR,
     RIDGE_Q8_0_GATE_UP_SWIGLU_GATE,
     32,
     {[RIDGE_Q8_0_GATE_UP_SWIGLU_OUT] = {1, true}}},
    {"rms_norm rows=512 cols=" ROWS " x=bf16 w=bf16 out=bf16", SOURCE_NORM, RIDGE_RMS_NORM_W, 1, {{0, false}}},
    {"linear_ce_eval tokens=16 vocab=" ROWS " hidden=" COLS " dtype=bf16 target=i64",
     SOURCE_HEAD,
     RIDGE_LINEAR_CE_W,
     1,
     {{0, false}}},
    {"swiglu_fwd rows=512 cols=" ROWS " dtype=bf16", SOURCE_GATE_UP, 0, 1, {{0, false}}},
    {"swiglu_bwd rows=512 cols=" ROWS " dtype=bf16", SOURCE_GATE_UP, 0, 1, {{0, false}}},
    {"swiglu_quantize rows=512 cols=" ROWS " dtype=bf16", SOURCE_GATE_UP, 0, 1, {{0, false}}},
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

    *w = (weight){.t = t, .rows = t->shape[0], .cols = t->rank == 1 ? 1 : t->shape[1]};
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

/* An op and what it runs on; `up` with a gate. */
typedef struct subject {
    const weight_op *op;
    const weight *w, *up;
    uint64_t seed;
} subject;

/* Blocks of Q8_0 to a plane of codes and, in the next slot, one of scales. */
static void put_planes(const image *im, int slot, const unsigned char *block, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++) {
        unsigned char *codes = im->host + im->offset[slot] + r * cols;
        unsigned char *scales = im->host + im->offset[slot + 1] + r * cols / 32 * 2;

        for (int64_t i = 0; i < cols / 32; i++, block += 34) {
            memcpy(scales + i * 2, block, 2);
            memcpy(codes + i * 32, block + 2, 32);
        }
    }
}

/* Rows of bf16, from a multiple of 128 on, as FP8. */
static bool put_fp8(const image *im, int slot, const uint16_t *from, int64_t rows, int64_t cols)
{
    void *const codes = im->host + im->offset[slot], *const scales = im->host + im->offset[slot + 1];
    ridge_call call = ridge_quantize_fp8(rows, cols, RIDGE_BF16, from, RIDGE_SCALE_BLK128, RIDGE_E4M3, codes, scales);
    ridge_device *cpu;
    bool good;

    call.arg[RIDGE_QUANTIZE_FP8_Q].stride = im->call.arg[slot].stride;
    call.arg[RIDGE_QUANTIZE_FP8_SCALE].stride = im->call.arg[slot + 1].stride;
    if (ridge_open("cpu", &cpu) != RIDGE_OK)
        return false;
    good = ridge_run(cpu, &call, NULL, 0, NULL) == RIDGE_OK;
    ridge_close(cpu);
    return good;
}

/* The image of rows [begin, begin + rows) of the weight, as a problem of its own. */
static bool build(const subject *s, int64_t begin, int64_t rows, test_case *c, image *im)
{
    char text[256];
    const weight_op *op = s->op;
    const int64_t cols = s->w->cols, blocks = cols / 32 * 34;
    unsigned char *to;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the table's own */
    snprintf(text, sizeof text, op->problem, rows, cols);
#pragma GCC diagnostic pop
    if (!case_parse(text, c) || !image_build(c, s->seed, im))
        return false;
    to = im->host + im->offset[op->slot];
    if (op->from == SOURCE_FP8)
        return put_fp8(im, op->slot, s->w->bf16 + begin * cols, rows, cols);
    if (op->from == SOURCE_PLANES)
        put_planes(im, op->slot, s->w->q8_0 + begin * blocks, rows, cols);
    else if (op->from == SOURCE_Q8_0 || op->from == SOURCE_PAIR)
        memcpy(to, s->w->q8_0 + begin * blocks, (size_t)(rows * blocks));
    else if (op->from != SOURCE_GATE_UP)
        memcpy(to, s->w->bf16 + begin * cols, (size_t)(rows * cols) * 2);
    if (op->from == SOURCE_PAIR)
        memcpy(im->host + im->offset[op->slot + 2], s->up->q8_0 + begin * blocks, (size_t)(rows * blocks));
    return true;
}

/* The part of `got`'s output that the band decides, to where the band's own would be. */
static void take_output(const image *band, unsigned char *to, const image *im, const unsigned char *got, int arg,
                        follow f, int64_t begin)
{
    const ridge_op_row *op = ridge_op_table[im->call.op];
    const size_t size = ridge_dtype_size(im->call.arg[arg].dtype);
    int64_t rows, cols, all_rows, all_cols;

    op->extent(&band->call, arg, &rows, &cols);
    op->extent(&im->call, arg, &all_rows, &all_cols);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = f.columns ? r * all_cols + begin / f.by : (begin / f.by + r) * all_cols;

        memcpy(to + band->offset[arg] + (size_t)(r * cols) * size, got + im->offset[arg] + (size_t)at * size,
               (size_t)cols * size);
    }
}

/* The C reference's bits, or the float64 bound of an op that promises none. */
static bool judge(const image *im, unsigned char *expected, const unsigned char *got, char *text, size_t size)
{
    double worst;

    if (image_reference(im, expected) != RIDGE_OK)
        return snprintf(text, size, "the C reference: %s", ridge_error()) < 0;
    if (ridge_op_table[im->call.op]->contract & RIDGE_EXACT)
        return image_equal(im, expected, got, text, size);
    return image_close(im, got, &worst, text, size);
}

static bool verify_band(const subject *s, const image *im, const unsigned char *got, int64_t begin, char *text,
                        size_t size)
{
    const int64_t rows = s->w->rows - begin < BAND ? s->w->rows - begin : BAND;
    unsigned char *expected, *mine;
    test_case c;
    image band;
    bool good;
    size_t used;

    if (!build(s, begin, rows, &c, &band))
        return snprintf(text, size, "out of memory") < 0;
    expected = malloc(band.bytes);
    mine = malloc(band.bytes);
    good = expected && mine;
    snprintf(text, size, "out of memory");
    if (good) {
        memcpy(mine, band.host, band.bytes);
        for (int arg = 0; arg < RIDGE_MAX_ARGS; arg++)
            if (s->op->out[arg].by)
                take_output(&band, mine, im, got, arg, s->op->out[arg], begin);
        used = (size_t)snprintf(text, size, "rows %" PRId64 " to %" PRId64 ": ", begin, begin + rows);
        good = judge(&band, expected, mine, text + used, size - used);
    }
    free(expected);
    free(mine);
    image_free(&band);
    return good;
}

/* The whole of it, or of a large tensor the first, the middle and the last band of rows. */
static bool verify(void *state, const image *im, const unsigned char *got, char *text, size_t size)
{
    const subject *s = state;
    const bool bands = s->op->from < SOURCE_NORM;
    unsigned char *expected;
    int64_t last;
    bool good;

    if (bands && (s->op->from == SOURCE_FP8 || s->w->rows * s->w->cols > WHOLE_MOST)) {
        last = (s->w->rows - 1) / BAND * BAND;
        return verify_band(s, im, got, 0, text, size) && verify_band(s, im, got, last / 2 / BAND * BAND, text, size) &&
               verify_band(s, im, got, last, text, size);
    }
    expected = malloc(im->bytes);
    good = expected ? judge(im, expected, got, text, size) : snprintf(text, size, "out of memory") < 0;
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

static void run_op(bench *b, const weight_op *op, const weight *w, const weight *up, tally *sum)
{
    subject s = {op, w, up, b->o->seed};
    const bool blocks = op->from == SOURCE_Q8_0 || op->from == SOURCE_PLANES || op->from == SOURCE_PAIR;
    test_case c;
    image im;

    if ((blocks && (!w->q8_0 || (op->from == SOURCE_PAIR && !up->q8_0))) || w->cols % op->step ||
        !build(&s, 0, w->rows, &c, &im))
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

/* The vector of a norm. */
static bool is_norm(const ridge_tensor *t)
{
    return t->rank == 1 && t->elements > 0 && ridge_type_query(t->type)->dequantize && !is_fp8(t->type) &&
           name_matches("*norm*weight", t->name);
}

static bool same_shape(const ridge_tensor *a, const ridge_tensor *b)
{
    return a->rank == b->rank && a->shape[0] == b->shape[0] && (a->rank == 1 || a->shape[1] == b->shape[1]);
}

/* How many weights have this one's shape; *first: none before it does. */
static int64_t of_shape(const ridge_file *file, int64_t index, bool *first)
{
    int64_t count = 0;

    *first = true;
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_tensor *t = ridge_file_tensor(file, i);

        if ((!is_weight(t) && !is_norm(t)) || !same_shape(t, ridge_file_tensor(file, index)))
            continue;
        count++;
        *first = *first && i >= index;
    }
    return count;
}

/* The up of a gate, by the names of Llama-family checkpoints and GGUF; NULL: no gate, or without one. */
static const ridge_tensor *up_of(const ridge_file *file, const ridge_tensor *gate)
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
        if (up && is_weight(up) && same_shape(up, gate))
            return up;
    }
    return NULL;
}

/* SwiGLU runs on activations, so that one gate of each width is enough, --all or not. */
static const ridge_tensor *up_of_first(const ridge_file *file, int64_t index)
{
    const ridge_tensor *gate = ridge_file_tensor(file, index);

    for (int64_t i = 0; i < index; i++) {
        const ridge_tensor *t = ridge_file_tensor(file, i);

        if (is_weight(t) && t->shape[0] == gate->shape[0] && up_of(file, t))
            return NULL;
    }
    return is_weight(gate) ? up_of(file, gate) : NULL;
}

/* The output matrix; of tied embeddings, those. */
static bool is_head(const ridge_file *file, const ridge_tensor *t)
{
    static const char *const names[] = {"output.weight", "lm_head.weight", "token_embd.weight",
                                        "model.embed_tokens.weight"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const ridge_tensor *head = ridge_file_find(file, names[i]);

        if (head && is_weight(head))
            return head == t;
    }
    return false;
}

/* What of a tensor is wanted. */
typedef struct wanted {
    bool weight, norm, head;
    const ridge_tensor *up;
} wanted;

static bool wants(const wanted *want, source from)
{
    return from == SOURCE_NORM                             ? want->norm
           : from == SOURCE_HEAD                           ? want->head
           : from == SOURCE_PAIR || from == SOURCE_GATE_UP ? want->up != NULL
                                                           : want->weight;
}

static void run_tensor(bench *b, const ridge_file *file, int64_t index, tally *sum)
{
    const ridge_tensor *t = ridge_file_tensor(file, index);
    bool first;
    const int64_t count = of_shape(file, index, &first);
    const bool one = first || b->o->every;
    const wanted want = {one && is_weight(t), one && is_norm(t), is_head(file, t), up_of_first(file, index)};
    weight w = {0}, up = {0};

    if (!one && !want.head && !want.up)
        return;
    if (!weight_load(file, t, &w) || (want.up && !weight_load(file, want.up, &up))) {
        sum->failed++;
    } else {
        if (!b->json && one)
            printf("%s [%" PRId64 ", %" PRId64 "] %s, %" PRId64 " of this shape\n", t->name, w.rows, w.cols,
                   ridge_type_query(t->type)->name, count);
        else if (!b->json)
            printf("%s: its width for SwiGLU, or the output matrix\n", t->name);
        for (int i = 0; i < WEIGHT_OPS; i++)
            if (wants(&want, weight_ops[i].from))
                run_op(b, &weight_ops[i], &w, &up, sum);
    }
    weight_free(&w);
    weight_free(&up);
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
        if (is_weight(ridge_file_tensor(file, i)) || is_norm(ridge_file_tensor(file, i)))
            run_tensor(b, file, i, &sum);
    ridge_file_close(file);
    if (!sum.ran && !sum.failed)
        return fail(b->o->weights, "there is no tensor to run (FP8 ones are left out)");
    if (!b->json)
        printf("%d problems: %d verified against the reference, %d failed, %d left out for memory\n",
               sum.ran + sum.skipped, sum.ran - sum.failed, sum.failed, sum.skipped);
    return sum.failed == 0;
}
