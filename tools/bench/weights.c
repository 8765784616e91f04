/* weights.c: `ridge bench --weights FILE`: runs the ops of weight_ops.c on the tensors of a checkpoint, as bf16, and
 * compares each result with the C reference. One tensor of each shape is taken; a layer's gate comes with its up; the
 * output matrix, or the embedding that is tied to it, is the W of linear cross entropy. Activations are N(0,1). */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/num.h"
#include "bench.h"

enum { ACTIVATION_MOST = 8 }; /* of N(0,1) */

static bool fail(const char *name, const char *why)
{
    line_print(stderr, "ridge bench: %s: %s", name, why);
    return false;
}

/* ---------------------------------------------------------------------------------------------------------- loading */

void weight_free(weight *w)
{
    free(w->bf16);
    free(w->q8_0);
}

static void to_bf16(const ridge_entry *t, const unsigned char *raw, uint16_t *to)
{
    const ridge_type_info *info = ridge_type_query(t->type);
    enum { CHUNK = 4096 };

#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < t->elements; at += CHUNK) {
        int64_t n = t->elements - at < CHUNK ? t->elements - at : CHUNK;
        float f[CHUNK];

        (void)!ridge_dequantize(t->type, raw + at / info->block * info->bytes, n, f); /* a type that it knows */
        for (int64_t i = 0; i < n; i++)
            to[at + i] = ridge_bf16_from_f32(f[i]);
    }
}

/* Takes the file's own blocks where it has them. */
static bool to_q8_0(weight *w, const unsigned char *raw)
{
    size_t bytes = (size_t)(w->rows * w->cols / 32 * 34);
    ridge_call call;

    w->q8_0 = malloc(bytes);
    if (!w->q8_0)
        return fail(w->t->name, "out of memory");
    call = ridge_q8_0_quantize(w->rows, w->cols, ridge_matrix(w->bf16, RIDGE_BF16), w->q8_0);
    if (w->t->type == RIDGE_TYPE_Q8_0)
        memcpy(w->q8_0, raw, bytes);
    else if (!bench_on_cpu(&call))
        return fail(w->t->name, ridge_error());
    return true;
}

bool weight_load(const ridge_file *file, const ridge_entry *t, weight *w)
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
    good = good && (w->cols % 32 != 0 || to_q8_0(w, raw));
    free(raw);
    return good;
}

/* ------------------------------------------------------------------------------------------------------------- runs */

typedef struct tally {
    int ran, failed, skipped;
    int experts; /* tensors of all experts of a layer: no op here takes them */
} tally;

typedef struct subject {
    const weight_op *op;
    const weight *w;
} subject;

static bool verify(void *state, const image *im, const ridge_kernel *kernel, const unsigned char *got, char *text,
                   size_t size)
{
    const subject *s = state;

    return weight_op_verify(s->op, s->w, im, kernel, got, text, size);
}

/* Of what is finite: the oracle knows what else becomes of a logit. */
static float largest(const weight *w)
{
    float most = 0;

    for (int64_t i = 0; i < w->rows * w->cols; i++) {
        const float size = fabsf(ridge_f32_from_bf16(w->bf16[i]));

        most = isfinite(size) && size > most ? size : most;
    }
    return most;
}

/* False, with the reason on stderr. */
static bool can_run(const bench *b, const weight_op *op, const weight *w, const test_case *c)
{
    const char *name = ridge_op_at(c->call.op)->name;
    const float most = weight_op_use(op) == USE_HEAD ? largest(w) : 0;

    if ((double)most * (double)w->cols * ACTIVATION_MOST > FLT_MAX)
        line_print(stderr, "ridge bench: %s: left out: %s has an element of %g: logits may overflow f32", name,
                   w->t->name, (double)most);
    else if (!weight_op_is_verifiable(op, c))
        fprintf(stderr, "ridge bench: %s: left out: the C reference would take minutes\n", name);
    else if (!case_fits(b->device, c, weight_op_images(op), 3)) /* a small one takes some tens of MB more */
        fprintf(stderr, "ridge bench: %s: left out: %s\n", name, ridge_error());
    else
        return true;
    return false;
}

static void run_op(bench *b, const weight_op *op, const weight *w, const weight *up, tally *sum)
{
    subject s = {op, w};
    test_case c;
    image im = {0};

    if (!weight_op_case(op, w, &c))
        return;
    if (!can_run(b, op, w, &c)) {
        sum->skipped++;
        return;
    }
    sum->ran++;
    if (!weight_op_build(op, w, up, b->o->seed, &c, &im))
        sum->failed += !fail(ridge_op_at(c.call.op)->name, "out of memory");
    else
        sum->failed += !bench_image(b, "weights", &c, &im, verify, &s);
    image_free(&im);
}

static bool is_fp8(uint32_t type)
{
    return type == RIDGE_TYPE_F8_E4M3 || type == RIDGE_TYPE_F8_E5M2; /* meaningless without their scales */
}

bool is_weight(const ridge_entry *t)
{
    return t->rank == 2 && t->elements > 0 && ridge_type_query(t->type)->dequantize && !is_fp8(t->type) &&
           !name_matches("*_scale", t->name) && !name_matches("*_scale_inv", t->name);
}

static bool same_shape(const ridge_entry *a, const ridge_entry *b)
{
    return a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
}

/* The up of a gate, by the names of Llama-family checkpoints and GGUF; NULL: this is no gate, or it has none. */
static const ridge_entry *up_of(const ridge_file *file, const ridge_entry *gate)
{
    static const char *const pair[][2] = {{"ffn_gate.", "ffn_up."}, {"gate_proj.", "up_proj."}};
    char name[512];

    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        const char *at = strstr(gate->name, pair[i][0]);
        const ridge_entry *up;

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

/* The weights of one shape: how many there are, the first, and the first that is a gate (-1: none is). */
typedef struct shape {
    int64_t rows, cols, count, first, gate;
} shape;

typedef struct shape_list {
    shape *at;
    int64_t count;
} shape_list;

static int by_shape(const void *left, const void *right)
{
    const shape *a = left, *b = right;

    if (a->rows != b->rows)
        return a->rows < b->rows ? -1 : 1;
    return (a->cols > b->cols) - (a->cols < b->cols);
}

static int by_shape_and_index(const void *left, const void *right)
{
    const shape *a = left, *b = right;
    const int order = by_shape(a, b);

    return order ? order : (a->first > b->first) - (a->first < b->first);
}

/* False if memory is short. Sorted, since a file may have a million tensors. */
static bool shapes_of(const ridge_file *file, shape_list *list)
{
    int64_t weights = 0;

    *list = (shape_list){calloc((size_t)ridge_file_tensors(file) + 1, sizeof *list->at), 0};
    if (!list->at)
        return false;
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        const ridge_entry *t = ridge_file_tensor(file, i);

        if (is_weight(t))
            list->at[weights++] = (shape){t->shape[0], t->shape[1], 1, i, up_of(file, t) ? i : -1};
    }
    qsort(list->at, (size_t)weights, sizeof *list->at, by_shape_and_index);
    for (int64_t i = 0; i < weights; i++) {
        shape *last = list->at + list->count - 1, next = list->at[i];

        if (!list->count || by_shape(last, &next) != 0) {
            list->at[list->count++] = next;
            continue;
        }
        last->count++;
        last->gate = last->gate < 0 ? next.gate : last->gate;
    }
    return true;
}

static const shape *shape_of(const shape_list *list, const ridge_entry *t)
{
    const shape key = {.rows = t->shape[0], .cols = t->shape[1]};

    return bsearch(&key, list->at, (size_t)list->count, sizeof key, by_shape);
}

/* True for the output matrix, or the embedding where the file has none. */
static bool is_head(const ridge_file *file, const ridge_entry *t)
{
    static const char *const name[] = {"output.weight", "lm_head.weight", "token_embd.weight",
                                       "model.embed_tokens.weight"};

    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        const ridge_entry *head = ridge_file_find(file, name[i]);

        if (head && is_weight(head))
            return head == t;
    }
    return false;
}

static void run_uses(bench *b, const weight *w, const weight *up, const bool use[], tally *sum)
{
    const weight_op *op;

    for (int i = 0; (op = weight_op_at(i)) != NULL; i++)
        if (use[weight_op_use(op)])
            run_op(b, op, w, up, sum);
}

/* One gate of each shape is enough, also with --all. */
static void run_tensor(bench *b, const ridge_file *file, const shape_list *shapes, int64_t index, tally *sum)
{
    const ridge_entry *t = ridge_file_tensor(file, index);
    const shape *same = shape_of(shapes, t);
    weight w = {0}, up = {0};
    bool use[USES];

    use[USE_WEIGHT] = same->first == index || b->o->every;
    use[USE_GATE] = same->gate == index;
    use[USE_HEAD] = is_head(file, t);
    if (!use[USE_WEIGHT] && !use[USE_GATE] && !use[USE_HEAD])
        return;
    if (!weight_load(file, t, &w) || (use[USE_GATE] && !weight_load(file, up_of(file, t), &up))) {
        sum->ran++;
        sum->failed++;
    } else {
        if (!b->sink.json)
            line_print(stdout, "%s [%" PRId64 ", %" PRId64 "] %s, %" PRId64 " of this shape%s%s", t->name, w.rows,
                       w.cols, ridge_type_query(t->type)->name, same->count, use[USE_GATE] ? ", with its up" : "",
                       use[USE_HEAD] ? ", the output matrix" : "");
        run_uses(b, &w, &up, use, sum);
    }
    weight_free(&w);
    weight_free(&up);
}

bool bench_weights(bench *b)
{
    ridge_file *file;
    shape_list shapes;
    tally sum = {0};

    if (ridge_file_open(b->o->weights, &file) != RIDGE_OK) {
        line_print(stderr, "ridge bench: %s", ridge_io_error());
        return false;
    }
    if (!shapes_of(file, &shapes)) {
        ridge_file_close(file);
        return fail(b->o->weights, "out of memory");
    }
    for (int64_t i = 0; i < ridge_file_tensors(file); i++) {
        sum.experts += ridge_file_tensor(file, i)->rank == 3;
        if (is_weight(ridge_file_tensor(file, i)))
            run_tensor(b, file, &shapes, i, &sum);
    }
    free(shapes.at);
    ridge_file_close(file);
    if (!sum.ran && !sum.skipped)
        return fail(b->o->weights, "there is no 2-D tensor to run (FP8 ones are left out)");
    if (sum.experts)
        fprintf(stderr, "ridge bench: %d tensors of experts are left out: suites moe-* and --model time such\n",
                sum.experts);
    if (!b->sink.json)
        printf("%d problems: %d verified against the C reference, %d failed, %d left out\n", sum.ran + sum.skipped,
               sum.ran - sum.failed, sum.failed, sum.skipped);
    return sum.failed == 0;
}
