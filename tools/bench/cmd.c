/* cmd.c: `ridge bench`: problems or suites beside the measured floor, as a table, JSON and CSV records. The other
 * two things it measures, ceilings and the cost of a call, are in ceilings.c. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tools/args.h"
#include "bench.h"

void bench_emit(bench *b, const record *r)
{
    if (b->csv) {
        record_write(b->csv, r);
        fflush(b->csv);
    }
    if (b->json)
        json_array_append_new(b->json,
                              json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "suite", r->suite,
                                        "op", r->op, "problem", r->problem, "provider", r->provider, "kernel",
                                        r->kernel, "us", r->us, "us_p20", r->us_p20, "us_p80", r->us_p80, "tflops",
                                        r->tflops, "gbps", r->gbps, "floor_us", r->floor_us));
}

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

/* Weights that are read dwarf what is written: the floor is a read of the same total bytes. */
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

/* The matrix rate is given and leaves a copy far behind: no need to time one. */
static bool is_bound_by_products(const bench *b, const ridge_call *call)
{
    ridge_problem problem = {.op = call->op};

    memcpy(problem.dim, call->dim, sizeof problem.dim);
    return b->o->matrix_rate > 0 && call->op == RIDGE_GEMM_FP8 && b->device->copy_gbps > 0 &&
           ridge_op_at(call->op)->flops(&problem) / b->o->matrix_rate * 1e-6 >
               3 * ridge_problem_bytes(call) / b->device->copy_gbps * 1e-3;
}

/* One run of every row, compared by `check`, or with the whole of the C reference: only where that takes well under a
 * second. */
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
               ridge_run(b->device, &call, r->workspace, r->workspace_bytes, r->stream) == RIDGE_OK &&
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

/* The rivals that can do the call of the first copy, after the rows; *count goes up. */
static void add_rivals(const bench *b, const rotation *r, candidate *list, int *count)
{
    const ridge_call call = image_call(r->im, r->memory);
    char why[200] = "";

    for (int i = 0; b->o->rivals && rival_at(i); i++) {
        if (rival_at(i)->op != call.op)
            continue;
        list[*count].rival = rival_at(i);
        list[*count].state = rival_at(i)->open(b->device, &call, r->stream, why, sizeof why);
        if (list[*count].state) {
            ++*count;
            continue;
        }
        list[*count].rival = NULL;
        fprintf(stderr, "ridge bench: %s left out: %s\n", rival_at(i)->name, why);
    }
}

static const char *provider_of(const candidate *c)
{
    return c->kernel ? "ridge" : c->rival ? c->rival->name : c->read ? "read" : "copy";
}

/* The least that the call must take, in microseconds: the fastest copy or read (list[rows] on), or FLOP / matrix rate
 * if that is longer; *of names it. -1: not measured. */
static double floor_of(const bench *b, const ridge_problem *problem, const candidate *list, int rows, int count,
                       const char **of)
{
    double least = -1, matrix = -1;

    for (int i = rows; i < count; i++)
        least = least < 0 || list[i].us < least ? list[i].us : least;
    if (b->o->matrix_rate > 0 && problem->op == RIDGE_GEMM_FP8)
        matrix = ridge_op_at(problem->op)->flops(problem) / b->o->matrix_rate * 1e-6;
    *of = matrix > least ? "the matrix rate" : list[count - 1].read ? "a read" : "a copy";
    return matrix > least ? matrix : least;
}

/* `rows`: rows and rivals. */
static void report(bench *b, const char *suite, const test_case *c, candidate *list, int rows, int count, double err)
{
    const ridge_op_row *op = ridge_op_at(c->call.op);
    ridge_problem problem = {.op = c->call.op};
    double bytes = ridge_problem_bytes(&c->call), floor_us;
    record r;
    char text[400];
    const char *of;

    memcpy(problem.dim, c->call.dim, sizeof problem.dim);
    floor_us = floor_of(b, &problem, list, rows, count, &of);
    case_print(c, text, sizeof text);
    for (int i = 0; i < count; i++) {
        record_begin(&r, b->device);
        memcpy(r.run, b->run, sizeof r.run);
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
            r.tflops = op->flops(&problem) / r.us * 1e-6;
        if (list[i].kernel)
            r.err = err;
        bench_emit(b, &r);
        if (b->json || i >= rows)
            continue;
        printf("%-64s %-26s %10.2f us %8.1f GB/s %8.1f %s", text, r.kernel, r.us, r.gbps,
               r.tflops < 1 ? 1e3 * r.tflops : r.tflops, r.tflops < 1 ? "GFLOP/s" : "TFLOP/s");
        if (floor_us > 0)
            printf(" %6.1f %% of %s", 100 * floor_us / r.us, of);
        putchar('\n');
    }
    fflush(stdout);
}

bool bench_image(bench *b, const char *suite, const test_case *c, const image *im, bench_verify *check, void *state)
{
    candidate list[TIMING_CANDIDATES] = {{0}};
    int rows, count, timed;
    double err = -1;
    rotation r = {.device = b->device, .weights_const = b->o->weights_const, .times = (int)b->o->rotation};
    ridge_call call = image_call(im, im->host);
    size_t workspace = 0;
    char text[400];
    ridge_bound bound;
    bool good, read;

    case_print(c, text, sizeof text);
    if (b->o->weights_const)
        call.flags |= RIDGE_WEIGHTS_CONST; /* rows may be picked by it */
    rows = count = choose_rows(b, &call, list);
    workspace = timing_workspace(b->device, &call, list, rows);
    good = rows > 0;
    if (!good || !rotation_build(b->device, im, workspace, &r)) {
        fprintf(stderr, "ridge bench: %s: %s\n", text, ridge_error());
        rotation_free(&r);
        return false;
    }
    read = reads_mostly(b, &call);
    add_rivals(b, &r, list, &count);
    timed = count;
    for (int v = 0; v < (is_bound_by_products(b, &call) ? 0
                         : read                         ? b->device->backend->stream_variants
                                                        : b->device->backend->copy_variants);
         v++) {
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

static bool bench_one(bench *b, const char *suite, const char *line)
{
    ridge_problem problem;
    ridge_call call;
    test_case c;
    image im;
    bool good;

    if (!case_parse(line, &c))
        return false;
    if (!case_problem(&c, &call, &problem) || !case_fits(b->device, &c, 1, 2)) {
        fprintf(stderr, "ridge bench: %s: %s\n", line, ridge_error());
        return false;
    }
    good = image_build_to_time(&c, b->o->seed, &im);
    if (good)
        good = bench_image(b, suite, &c, &im, NULL, NULL);
    else
        fprintf(stderr, "ridge bench: %s: no memory for its operands\n", line);
    image_free(&im);
    return good;
}

static bool in_list(const char *names, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == 0 || at[length] == ','))
            return true;
    return false;
}

static bool is_suite(const char *name, size_t length)
{
    for (int i = 0; suite_at(i).suite; i++)
        if (strlen(suite_at(i).suite) == length && memcmp(suite_at(i).suite, name, length) == 0)
            return true;
    return false;
}

static bool bench_suites(bench *b)
{
    bool good = true;
    char name[64];

    for (const char *at = b->o->suite; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!is_suite(at, strcspn(at, ","))) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
            suite_missing("bench", name);
            return false;
        }
    for (int i = 0; suite_at(i).suite; i++) {
        const suite_line line = suite_at(i);

        if (in_list(b->o->suite, line.suite))
            good = bench_one(b, line.suite, line.text) && good;
    }
    return good;
}

int cmd_bench(int argc, char **argv)
{
    bench_options o = {.seed = 1};
    const args_option list[] = {
        {"suite", 'S', "NAME", "suites, separated by commas; a name that is none lists them", .text = &o.suite},
        ARGS_DEVICE(&o.device),
        {"kernel", 'k', "PATTERN", "rows whose name matches (default: the row that is picked)", .text = &o.kernel},
        {"all-kernels", 0, NULL, "every row that can run", .flag = &o.all_kernels},
        {"csv", 'c', "FILE", "append records", .text = &o.csv},
        {"json", 'j', NULL, "JSON instead of a table", .flag = &o.json},
        ARGS_SEED(&o.seed),
        {"rivals", 0, NULL, "other libraries too, in the same rounds (gemm_fp8: cuBLASLt)", .flag = &o.rivals},
        {"ceilings", 0, NULL, "measure copy, read stream, empty kernel, matrix rates", .flag = &o.ceilings},
        {"matrix-rate", 0, "TFLOPS",
         "measured rate of products (see --ceilings): the floor of gemm_fp8 is the longer of a copy and FLOP / rate",
         .positive = &o.matrix_rate},
        {"overhead", 0, NULL, "measure the host cost of a call", .flag = &o.overhead},
        {"weights", 0, "FILE",
         "the 2-D tensors of a checkpoint, verified; one of each shape. With --suite decode: every one as Q8_0 in one "
         "graph, the products of a token",
         .text = &o.weights},
        {"weights-const", 0, NULL, "calls promise that nothing before them writes the weights", .flag = &o.weights_const},
        {"chain", 0, "TIMES",
         "--suite as a graph of all its problems in order, that many times (default 1): a layer, a token. Prints the "
         "gap between kernels too: what the graph takes more than its calls, each in a graph of as many calls of "
         "nothing but itself, over the number of calls",
         .whole = &o.chain, .least = 1, .most = 1000, .optional = true},
        {"rotation", 0, "TIMES",
         "copies of the operands that a graph goes through, in sizes of the last-level cache (default 4): with more, "
         "the first call of a graph, which overlaps nothing, weighs less",
         .whole = &o.rotation, .least = 1, .most = 100},
        {"all", 0, NULL, "--weights: every tensor, not one of each shape", .flag = &o.every},
        {0}};
    args_list words = {0};
    bench b = {.o = &o};
    test_case one;
    record first;
    bool good = true;

    args_parse(argc, argv, "[OP name=value...]", "Times problems beside a copy of the same total bytes.", list, &words,
               ARGS_MOST);
    args_join(argv[0], &words, o.text, sizeof o.text);
    if (o.all_kernels)
        o.kernel = "*";
    if (!o.suite && !o.text[0] && !o.ceilings && !o.overhead && !o.weights) {
        fprintf(stderr, "usage: ridge bench OP name=value... | --suite NAME | --weights FILE | --ceilings |"
                        " --overhead\n");
        return 2;
    }
    if (o.text[0] && !case_parse(o.text, &one)) /* which has said why */
        return 2;
    b.device = device_open(o.device);
    if (b.device && !b.device->backend) {
        fprintf(stderr, "ridge bench: a model device runs nothing\n");
        ridge_close(b.device);
        return 1;
    }
    if (!b.device || (o.csv && !(b.csv = record_open(o.csv)))) {
        ridge_close(b.device);
        return 1;
    }
    b.json = o.json ? json_array() : NULL;
    record_begin(&first, b.device);
    memcpy(b.run, first.run, sizeof b.run);
    if (o.ceilings)
        good = bench_ceilings(&b) && good;
    if (o.overhead)
        good = bench_overhead(&b) && good;
    if (o.weights && o.suite && strcmp(o.suite, "decode") == 0) {
        good = bench_decode(&b) && good;
    } else {
        if (o.chain)
            good = bench_chain(&b) && good;
        else if (o.suite)
            good = bench_suites(&b) && good;
        if (o.weights)
            good = bench_weights(&b) && good;
    }
    if (o.text[0])
        good = bench_one(&b, "", o.text) && good;
    if (b.json)
        good = print_json(b.json) && good;
    if (b.csv)
        good = record_close(b.csv, o.csv) && good;
    ridge_close(b.device);
    return !good;
}
