/* problem.c: times one problem: the kernel rows that are asked for, rivals, and the copies or reads that are its floor,
 * interleaved; verifies the rows' results first, and reports. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check/family.h"

/* The rows to time. */
static int choose_rows(const bench *b, const ridge_call *call, candidate *list)
{
    const ridge_kernel *picked = NULL;
    const char *because;
    ridge_bound bound;
    int count = 0;

    if (ridge_validate(call, &bound))
        return 0;
    if (!b->o->kernel) {
        if (ridge_choose(b->device, call->kernel, &bound.problem, SIZE_MAX, &picked, &because))
            return 0;
        list[count++].kernel = picked;
        return count;
    }
    for (int i = b->device->first[bound.problem.op]; i < b->device->first[bound.problem.op + 1] && count < 48; i++)
        if (name_matches(b->o->kernel, b->device->row[i]->name) &&
            !ridge_why_not(b->device, b->device->row[i], &bound.problem))
            list[count++].kernel = b->device->row[i];
    if (!count)
        ridge_fail(RIDGE_ERR_UNSUPPORTED, "no row matches '%s' and can run this problem", b->o->kernel);
    return count;
}

/* True where far more is read than written: the floor is then a read of the same total bytes. */
static bool reads_mostly(const bench *b, const ridge_call *call)
{
    const ridge_op_row *op = ridge_op_at(call->op);
    double written = 0;

    for (int arg = 0; arg < op->args; arg++) {
        int64_t rows, cols;

        op->extent(call, arg, &rows, &cols);
        if (ridge_operand_role(call, arg) & RIDGE_OUT)
            written += (double)rows * (double)cols * (double)ridge_dtype_size(call->arg[arg].dtype);
    }
    return b->device->backend->stream_read && written * 16 < ridge_problem_bytes(call);
}

/* The work of a call by the op's model, which counts the outputs that are asked for. */
static double flops_of(const ridge_call *call)
{
    ridge_problem problem = {.op = call->op, .flags = call->flags};

    memcpy(problem.dim, call->dim, sizeof problem.dim);
    for (int arg = 0; arg < ridge_op_at(call->op)->args; arg++)
        problem.dtype[arg] = (uint8_t)call->arg[arg].dtype;
    return ridge_op_at(call->op)->flops(&problem);
}

/* True where the matrix rate is given and takes far longer than a copy, which then need not be timed. */
static bool is_bound_by_products(const bench *b, const ridge_call *call)
{
    return b->o->matrix_rate > 0 && call->op == RIDGE_GEMM_FP8 && b->device->copy_gbps > 0 &&
           flops_of(call) / b->o->matrix_rate * 1e-6 > 3 * ridge_problem_bytes(call) / b->device->copy_gbps * 1e-3;
}

/* Judges one run of every row by `check`, or against the whole C reference (the caller sees that this is quick). */
static bool verify(const bench *b, rotation *r, const candidate *list, int count, bench_verify *check, void *state,
                   double *worst)
{
    const ridge_backend *backend = b->device->backend;
    unsigned char *expected = check ? NULL : malloc(r->im->bytes), *got = malloc(r->im->bytes);
    char text[400] = "out of memory";
    bool good = got && (check || (expected && image_reference(r->im, expected) == RIDGE_OK));

    if (good && !check)
        good = image_close(r->im, expected, worst, text, sizeof text);
    for (int i = 0; i < count && good; i++) {
        ridge_call call = image_call(r->im, r->memory);

        call.kernel = list[i].kernel->name;
        good = backend->upload(b->device, r->memory, r->im->host, r->im->bytes) == RIDGE_OK &&
               check_run(b->device, &call, r->workspace, r->workspace_bytes, r->stream) == RIDGE_OK &&
               backend->sync(b->device, r->stream) == RIDGE_OK &&
               backend->download(b->device, got, r->memory, r->im->bytes) == RIDGE_OK;
        if (!good)
            snprintf(text, sizeof text, "%s: %s", list[i].kernel->name, ridge_error());
        else
            good = check ? check(state, r->im, list[i].kernel, got, text, sizeof text)
                         : image_judge(r->im, list[i].kernel, expected, got, text, sizeof text);
    }
    if (!good)
        fprintf(stderr, "ridge bench: %s: %s\n", ridge_op_at(r->im->call.op)->name, text);
    free(expected);
    free(got);
    return good;
}

/* Appends a rival, if it can do the call. */
static void add_rival(const rival *rival, const rotation *r, candidate *list, int *count)
{
    ridge_call call = image_call(r->im, r->memory);
    char why[200] = "";
    void *state;

    if (rival->op != RIDGE_OP_NONE && rival->op != call.op)
        return;
    if (r->weights_const)
        call.flags |= RIDGE_WEIGHTS_CONST;
    state = rival->open(r->device, &call, r->stream, why, sizeof why);
    if (!state) {
        fprintf(stderr, "ridge bench: %s left out: %s\n", rival->name, why);
        return;
    }
    list[*count].rival = rival;
    list[(*count)++].state = state;
}

static void add_rivals(const bench *b, const rotation *r, candidate *list, int *count)
{
    if (b->o->against)
        add_rival(&against, r, list, count);
    for (int i = 0; b->o->rivals && rival_at(i); i++)
        add_rival(rival_at(i), r, list, count);
}

static const char *provider_of(const candidate *c)
{
    return c->kernel ? "ridge" : c->rival ? c->rival->name : c->read ? "read" : "copy";
}

/* The floor of the call in microseconds: the fastest copy or read (list[rows] on), or FLOP / matrix rate if that is
 * longer; *of names it. -1: not measured. */
static double floor_of(const bench *b, const ridge_call *call, const candidate *list, int rows, int count,
                       const char **of)
{
    double least = -1, matrix = -1;

    for (int i = rows; i < count; i++)
        least = least < 0 || list[i].us < least ? list[i].us : least;
    if (b->o->matrix_rate > 0 && call->op == RIDGE_GEMM_FP8)
        matrix = flops_of(call) / b->o->matrix_rate * 1e-6;
    *of = matrix > least ? "the matrix rate" : list[count - 1].read ? "a read" : "a copy";
    return matrix > least ? matrix : least;
}

/* The first `rows` of the list are rows and rivals, the others copies or reads. */
static void report(bench *b, const char *suite, const test_case *c, candidate *list, int rows, int count, double err)
{
    const ridge_op_row *op = ridge_op_at(c->call.op);
    double bytes = ridge_problem_bytes(&c->call), floor_us;
    record r;
    char text[400];
    const char *of;

    floor_us = floor_of(b, &c->call, list, rows, count, &of);
    case_print(c, text, sizeof text);
    for (int i = 0; i < count; i++) {
        record_begin(&b->sink, &r);
        snprintf(r.suite, sizeof r.suite, "%s", suite);
        snprintf(r.op, sizeof r.op, "%s", op->name);
        snprintf(r.problem, sizeof r.problem, "%.240s%s", strchr(text, ' ') ? strchr(text, ' ') + 1 : "",
                 b->o->weights_const && !(c->call.flags & RIDGE_WEIGHTS_CONST) ? " weights_const=1" : "");
        snprintf(r.provider, sizeof r.provider, "%s", provider_of(&list[i]));
        if (list[i].kernel || list[i].rival)
            snprintf(r.kernel, sizeof r.kernel, "%s", list[i].kernel ? list[i].kernel->name : list[i].rival->name);
        else
            snprintf(r.kernel, sizeof r.kernel, "%s%d", r.provider, list[i].variant);
        r.us = list[i].us;
        r.us_p20 = list[i].us_p20;
        r.us_p80 = list[i].us_p80;
        r.gbps = bytes / r.us * 1e-3;
        r.floor_us = floor_us;
        if (i < rows)
            r.tflops = flops_of(&c->call) / r.us * 1e-6;
        if (list[i].kernel)
            r.err = err;
        record_emit(&b->sink, &r);
        if (b->sink.json || i >= rows)
            continue;
        printf("%-64s %-26s %10.2f us %8.1f GB/s %8.1f %s", text, r.kernel, r.us, r.gbps,
               r.tflops < 1 ? 1e3 * r.tflops : r.tflops, r.tflops < 1 ? "GFLOP/s" : "TFLOP/s");
        if (floor_us > 0)
            printf(" %6.1f %% of %s", 100 * floor_us / r.us, of);
        if (record_is_noisy(&r))
            printf(", noisy: %.2f to %.2f us", r.us_p20, r.us_p80);
        putchar('\n');
    }
    fflush(stdout);
}

bool bench_image(bench *b, const char *suite, const test_case *c, const image *im, bench_verify *check, void *state)
{
    candidate list[TIMING_CANDIDATES] = {{0}};
    int rows, count, timed, variants;
    double err = -1;
    rotation r = {.device = b->device, .weights_const = b->o->weights_const, .times = (int)b->o->rotation};
    ridge_call call = image_call(im, im->host);
    size_t workspace = 0;
    char text[400];
    ridge_bound bound;
    bool good, read;

    case_print(c, text, sizeof text);
    if (b->o->weights_const)
        call.flags |= RIDGE_WEIGHTS_CONST; /* the pick may depend on it */
    rows = count = choose_rows(b, &call, list);
    workspace = timing_workspace(b->device, &call, list, rows);
    good = rows > 0;
    if (!good || !rotation_build(b->device, im, workspace, &r)) {
        fprintf(stderr, "ridge bench: %s: %s\n", text, ridge_error());
        rotation_free(&r);
        return false;
    }
    read = reads_mostly(b, &call);
    variants = read ? b->device->backend->stream_variants : b->device->backend->copy_variants;
    add_rivals(b, &r, list, &count);
    timed = count;
    if (b->o->against ||
        is_bound_by_products(b, &call)) /* --against: each of the two follows the other in every round */
        variants = 0;
    for (int v = 0; v < variants; v++) {
        list[count].read = read;
        list[count++].variant = v;
    }
    if (check)
        good = verify(b, &r, list, rows, check, state, &err);
    else if (ridge_problem_bytes(&call) < 16e6 && ridge_validate(&call, &bound) == RIDGE_OK &&
             ridge_op_at(call.op)->flops(&bound.problem) < 4e9)
        good = verify(b, &r, list, rows, NULL, NULL, &err);
    if (good) {
        timing_warm(&r, b->warm ? 0.05 : 0.4);
        b->warm = true;
        good = timing_run(&r, list, count);
        if (!good)
            fprintf(stderr, "ridge bench: %s: %s\n", text, ridge_error());
    }
    if (good)
        report(b, suite, c, list, timed, count, err);
    for (int i = rows; i < timed; i++)
        list[i].rival->close(list[i].state);
    rotation_free(&r);
    return good;
}
