/* cmd_test.c: `ridge test`: every case through every row that can run it, against the C reference and the contracts.
 *
 * One run of a row: upload the image (guards, inputs, poisoned outputs), launch, download, compare every byte with the
 * image that the C reference left. Four ways: eager; captured in a graph and replayed twice; two copies on two streams
 * at once; and rows of the reference's bits as on a device of one and of seven multiprocessors. A row that does not
 * promise the reference's bits must be within the op's bound and leave all else alone in its eager run (image_judge);
 * the other runs must then give the bits of that one. Faulty rows for `ridge teeth` come in through test_row
 * (cmd_teeth.c). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "measure.h"
#include "test.h"

typedef struct lane {
    void *image, *workspace, *stream;
    unsigned launches;
} lane;

static bool failed(char *text, size_t size, const char *what)
{
    snprintf(text, size, "%s: %s", what, ridge_error());
    return false;
}

static size_t workspace_of(const test_row *row, const ridge_device *device, const ridge_problem *problem)
{
    return row->kernel->workspace ? row->kernel->workspace(device, row->kernel, problem) : 0;
}

/* Launches the row (NULL: the one that is picked) itself, so that a fault can stand in for it; the pin path of
 * ridge_run has its own tests. */
static ridge_status launch(const test_row *row, const ridge_device *device, const image *im, lane *l, size_t bytes)
{
    ridge_call call = image_call(im, l->image);
    ridge_problem problem;
    ridge_status status = ridge_validate(&call, &problem);

    if (status)
        return status;
    if (row && row->fault)
        return row->fault(device, row->kernel, &problem, im, &call, l->image, bytes ? l->workspace : NULL, bytes,
                          l->stream);
    call.kernel = row ? row->kernel->name : NULL;
    if (l->launches++ & 1) /* every upload is waited for, and nothing on a stream writes weights */
        call.flags |= RIDGE_WEIGHTS_SETTLED;
    return ridge_run(device, &call, bytes ? l->workspace : NULL, bytes, l->stream);
}

typedef struct launch_of {
    const test_row *row;
    const ridge_device *device;
    const image *im;
    lane *l;
    size_t bytes;
} launch_of;

static ridge_status launch_again(const void *state)
{
    const launch_of *what = state;

    return launch(what->row, what->device, what->im, what->l, what->bytes);
}

static bool check(const ridge_device *device, const image *im, const lane *l, const unsigned char *expected,
                  unsigned char *got, const char *way, char *text, size_t size)
{
    char reason[400];

    if (device->backend->sync(device, l->stream) || device->backend->download(device, got, l->image, im->bytes))
        return failed(text, size, way);
    if (image_equal(im, expected, got, reason, sizeof reason))
        return true;
    snprintf(text, size, "%s: %s", way, reason);
    return false;
}

static bool upload(const ridge_device *device, const image *im, lane *l, size_t bytes)
{
    if (bytes) { /* the workspace is poisoned too */
        unsigned char *poison = malloc(bytes);
        ridge_status status;

        if (!poison)
            return false;
        memset(poison, 0xff, bytes);
        status = device->backend->upload(device, l->workspace, poison, bytes);
        free(poison);
        if (status)
            return false;
    }
    return device->backend->upload(device, l->image, im->host, im->bytes) == RIDGE_OK;
}

static bool run_graph(const test_row *row, const ridge_device *device, const image *im, lane *l, size_t bytes,
                      const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    const ridge_backend *b = device->backend;
    const launch_of what = {row, device, im, l, bytes};
    void *graph = NULL;
    bool good = true;

    if (!b->graph_begin)
        return true;
    if (measure_capture(device, l->stream, (work){launch_again, &what}, &graph))
        return failed(text, size, "inside a graph capture");
    for (int replay = 0; replay < 2 && good; replay++) {
        good = upload(device, im, l, bytes) && b->graph_launch(device, graph, l->stream) == RIDGE_OK;
        good =
            good ? check(device, im, l, expected, got, "graph replay", text, size) : failed(text, size, "graph replay");
    }
    b->graph_free(device, graph);
    return good;
}

static bool run_two(const test_row *row, const ridge_device *device, const image *im, lane l[2], size_t bytes,
                    const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    for (int i = 0; i < 2; i++)
        if (!upload(device, im, &l[i], bytes))
            return failed(text, size, "upload");
    for (int i = 0; i < 2; i++)
        if (launch(row, device, im, &l[i], bytes))
            return failed(text, size, "on two streams");
    return check(device, im, &l[0], expected, got, "first of two streams", text, size) &&
           check(device, im, &l[1], expected, got, "second of two streams", text, size);
}

static bool reads_an_output(const image *im)
{
    for (int arg = 0; arg < ridge_op_table[im->call.op]->args; arg++)
        if (im->length[arg] && ridge_operand_role(&im->call, arg) == (RIDGE_IN | RIDGE_OUT))
            return true;
    return false;
}

/* Of the C reference, which is slow and made every case's expected bits once already, few: it has no tiles to meet in
 * another order. Not where a fault stands in for it. */
static int repeats_of(const test_row *row, const test_case *c)
{
    const bool reference = row->kernel->arch_max == RIDGE_ARCH_AVX512 && row->kernel->arch_min == RIDGE_ARCH_C;

    return reference && !row->fault && c->repeats > 2 ? 2 : c->repeats;
}

/* The same bits again and again while a copy keeps the other stream busy. */
static bool run_repeats(const test_row *row, const ridge_device *device, const test_case *c, const image *im, lane l[2],
                        size_t bytes, const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    const bool restore = reads_an_output(im);

    for (int i = 0; i < repeats_of(row, c); i++) {
        if (device->backend->copy(device, l[1].image, l[0].image, im->bytes, l[1].stream) ||
            ((restore || (!c->alias && i % 50 == 0)) && !upload(device, im, &l[0], bytes)) ||
            launch(row, device, im, &l[0], bytes))
            return failed(text, size, "repeated run");
        if (!check(device, im, &l[0], expected, got, "repeated run", text, size))
            return false;
    }
    return true;
}

/* The operand's rows (or elements, for a vector) follow dim[0]: returns how many bytes one step is, or 0. */
static int64_t step_of(const image *im, int arg)
{
    const ridge_op_row *op = ridge_op_table[im->call.op];
    ridge_call longer = im->call;
    int64_t rows, cols, rows1, cols1, size = (int64_t)ridge_dtype_size(im->call.arg[arg].dtype);

    longer.dim[0]++;
    op->extent(&im->call, arg, &rows, &cols);
    op->extent(&longer, arg, &rows1, &cols1);
    if (rows1 != rows)
        return (im->call.arg[arg].stride ? im->call.arg[arg].stride : cols) * size;
    return cols1 != cols ? size : 0;
}

/* The call on rows [begin, begin + rows) of dim[0] alone, in place. */
static image part_of(const image *im, int64_t begin, int64_t rows)
{
    const ridge_op_row *op = ridge_op_table[im->call.op];
    image part = *im;

    part.call.dim[0] = rows;
    for (int arg = 0; arg < op->args; arg++) {
        int64_t high, wide;

        if (!im->length[arg])
            continue;
        op->extent(&im->call, arg, &high, &wide);
        part.offset[arg] = im->offset[arg] + (size_t)(begin * step_of(im, arg));
        if (op->arg[arg].kind != RIDGE_VECTOR && im->call.arg[arg].stride == 0)
            part.call.arg[arg].stride = wide;
    }
    return part;
}

/* Rows in parts of `least` give what they gave together; the last part takes the rest where a smaller one would belong
 * to the op's other range of dim[0]. */
static bool run_parts(const test_row *row, const ridge_device *device, const image *im, int64_t least, lane *l,
                      size_t bytes, const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    const int64_t all = im->call.dim[0], split = ridge_op_table[im->call.op]->invariant_split;
    int64_t rows;

    if (!upload(device, im, l, bytes))
        return failed(text, size, "upload");
    for (int64_t t = 0; t < all; t += rows) {
        image part;

        rows = all - t < least || (least > split && least > 1 && all - t < 2 * least) ? all - t : least;
        part = part_of(im, t, rows);
        if (launch(row, device, &part, l, bytes))
            return failed(text, size, "part of the rows");
    }
    return check(device, im, l, expected, got, least == 1 ? "rows one by one" : "part of the rows", text, size);
}

/* Whether a row is what dispatch picks for the whole call. */
static bool is_pick(const test_row *row, const ridge_device *device, const image *im)
{
    ridge_call call = image_call(im, im->host);
    const ridge_kernel *picked;
    const char *because;
    ridge_problem problem;

    return !row->fault && ridge_validate(&call, &problem) == RIDGE_OK &&
           ridge_choose(device, &call, &problem, SIZE_MAX, &picked, &because) == RIDGE_OK && picked == row->kernel;
}

/* Batch-invariance: single rows, or for an op of two ranges parts of several sizes within the range of this call; of
 * the row that is picked for the whole also by whatever rows are picked for the parts. */
static bool run_slices(const test_row *row, const ridge_device *device, const image *im, lane *l, size_t bytes,
                       const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    const int64_t split = ridge_op_table[im->call.op]->invariant_split;
    const int64_t least = split && im->call.dim[0] > split ? split + 1 : 1;

    return run_parts(row, device, im, least, l, bytes, expected, got, text, size) &&
           (!split || run_parts(row, device, im, least + 7, l, bytes, expected, got, text, size)) &&
           (!is_pick(row, device, im) || run_parts(NULL, device, im, least, l, bytes, expected, got, text, size));
}

/* A grid of any size gives the same bits: the row on the same device, said to have few multiprocessors. Only for rows
 * of the reference's bits; a row with atomics in a fixed place may be stable and still depend on its grid. */
static bool run_grids(const test_row *row, const ridge_device *device, const image *im, lane *l, size_t bytes,
                      const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    static const int units[] = {1, 7};

    for (int i = 0; i < 2 && (row->kernel->contract & RIDGE_EXACT) && device->backend_id == RIDGE_CUDA; i++) {
        ridge_device small = *device;
        ridge_call call = image_call(im, im->host);
        ridge_problem problem;

        small.units = units[i];
        if (ridge_validate(&call, &problem) || ridge_why_not(&small, row->kernel, &problem) ||
            workspace_of(row, &small, &problem) > bytes)
            continue;
        if (!upload(device, im, l, bytes) || launch(row, &small, im, l, bytes))
            return failed(text, size, "on few multiprocessors");
        if (!check(device, im, l, expected, got, "on few multiprocessors", text, size))
            return false;
    }
    return true;
}

/* Single runs only: too large for two copies and repeats. */
static bool is_large(const image *im)
{
    return im->fill == FILL_PERIOD || im->bytes > (size_t)1 << 31;
}

/* The eager run: judged by the contract. `got` receives it. */
static bool run_first(const test_row *row, const ridge_device *device, const image *im, lane *l, size_t bytes,
                      const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    char reason[400];

    if (!upload(device, im, l, bytes))
        return failed(text, size, "upload");
    if (launch(row, device, im, l, bytes) || device->backend->sync(device, l->stream) ||
        device->backend->download(device, got, l->image, im->bytes))
        return failed(text, size, "eager run");
    if (image_judge(im, row->kernel, expected, got, reason, sizeof reason))
        return true;
    snprintf(text, size, "eager run: %s", reason);
    return false;
}

/* `expected`: the bits of the first run. */
static bool run_again(const test_row *row, const ridge_device *device, const test_case *c, const image *im, lane l[2],
                      size_t bytes, const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    if (!run_graph(row, device, im, &l[0], bytes, expected, got, text, size) ||
        !run_two(row, device, im, l, bytes, expected, got, text, size) ||
        !run_grids(row, device, im, &l[0], bytes, expected, got, text, size))
        return false;
    if (c->slices && !run_slices(row, device, im, &l[0], bytes, expected, got, text, size))
        return false;
    return !c->repeats || !upload(device, im, &l[0], bytes) ||
           run_repeats(row, device, c, im, l, bytes, expected, got, text, size);
}

/* Enough for the call and for every part of it that run_slices may launch. */
static size_t workspace_of_all(const test_row *row, const ridge_device *device, const test_case *c,
                               ridge_problem problem)
{
    size_t most = workspace_of(row, device, &problem), bytes;

    for (int64_t rows = problem.dim[0]; c->slices && rows > 0; rows--) {
        problem.dim[0] = rows;
        bytes = workspace_of(row, device, &problem);
        most = bytes > most ? bytes : most;
    }
    return most;
}

bool test_one(const test_row *row, const ridge_device *device, const test_case *c, const image *im,
              const unsigned char *expected, char *text, size_t size)
{
    ridge_call call = image_call(im, im->host);
    const ridge_backend *b = device->backend;
    unsigned char *got = aligned_alloc(256, (im->bytes + 255) / 256 * 256), *again = NULL;
    ridge_problem problem;
    lane l[2];
    bool good = got != NULL;
    size_t bytes;

    memset(l, 0, sizeof l);
    if (ridge_validate(&call, &problem)) {
        free(got);
        return failed(text, size, "validation");
    }
    bytes = workspace_of_all(row, device, c, problem);
    for (int i = 0; i < (is_large(im) ? 1 : 2) && good; i++)
        good = b->alloc(device, im->bytes, &l[i].image) == RIDGE_OK &&
               b->stream_new(device, &l[i].stream) == RIDGE_OK &&
               (bytes == 0 || b->alloc(device, bytes, &l[i].workspace) == RIDGE_OK);
    good =
        good ? run_first(row, device, im, &l[0], bytes, expected, got, text, size) : failed(text, size, "allocation");
    if (good && !is_large(im)) {
        again = aligned_alloc(256, (im->bytes + 255) / 256 * 256);
        good =
            again ? run_again(row, device, c, im, l, bytes, got, again, text, size) : failed(text, size, "allocation");
    }
    for (int i = 0; i < 2; i++) {
        if (l[i].image)
            b->release(device, l[i].image);
        if (l[i].workspace)
            b->release(device, l[i].workspace);
        if (l[i].stream)
            b->stream_free(device, l[i].stream);
    }
    free(again);
    free(got);
    return good;
}

/* ------------------------------------------------------------------------------------------------------- bookkeeping
 */

typedef struct options {
    const char *device, *kernel, *op;
    uint64_t seed;
    case_level level;
    bool quiet;
} options;

typedef struct tally {
    int passed, failed, skipped, shown;
    double worst;        /* error / bound of the reference */
    unsigned char *used; /* kernel index -> ran at least once */
} tally;

static void fail_line(tally *t, const char *who, const char *what, const char *why)
{
    t->failed++;
    if (t->shown++ < 50)
        printf("FAIL %s\n     %s\n     %s\n", who, what, why);
}

static bool kernel_wanted(const options *o, const ridge_kernel *kernel)
{
    return name_matches(o->kernel, kernel->name);
}

/* One case: the reference once, its float64 bound, then every row. */
static void test_case_rows(const options *o, const ridge_device *device, const test_case *c, tally *t)
{
    char what[320], why[700];
    unsigned char *expected;
    ridge_problem problem;
    ridge_call call;
    image im;
    double worst = 0;

    case_print(c, what, sizeof what);
    if (!image_build(c, o->seed, &im) || !(expected = aligned_alloc(256, (im.bytes + 255) / 256 * 256))) {
        image_free(&im);
        fail_line(t, "harness", what, "out of memory");
        return;
    }
    call = image_call(&im, im.host);
    if (ridge_validate(&call, &problem) || image_reference(&im, expected))
        fail_line(t, "the C reference", what, ridge_error());
    else if (!is_large(&im) && !image_close(&im, expected, &worst, why, sizeof why))
        fail_line(t, "the C reference", what, why);
    else
        for (int i = 0; ridge_kernel_at(i); i++) {
            test_row row = {ridge_kernel_at(i), NULL};

            if (row.kernel->op != c->call.op || !kernel_wanted(o, row.kernel) ||
                ridge_why_not(device, row.kernel, &problem))
                continue;
            t->used[i] = 1;
            if (test_one(&row, device, c, &im, expected, why, sizeof why))
                t->passed++;
            else
                fail_line(t, row.kernel->name, what, why);
        }
    t->worst = worst > t->worst ? worst : t->worst;
    free(expected);
    image_free(&im);
}

/* Rows of the filter that ran no case, with the reason from a typical problem. */
static void list_skipped(const options *o, const ridge_device *device, tally *t)
{
    for (int i = 0; ridge_kernel_at(i); i++) {
        const ridge_kernel *kernel = ridge_kernel_at(i);
        const char *why;
        ridge_problem problem;

        if (t->used[i] || !name_matches(o->op, ridge_op_table[kernel->op]->name) || !kernel_wanted(o, kernel))
            continue;
        memset(&problem, 0, sizeof problem);
        problem.op = kernel->op;
        why = ridge_why_not(device, kernel, &problem);
        printf("SKIP %s: %s\n", kernel->name, why ? why : "no case that it can run");
        t->skipped++;
    }
}

/* Some row of the op is asked for: else its references would be computed for nothing. */
static bool op_wanted(const options *o, const ridge_op_row *op)
{
    for (int i = 0; ridge_kernel_at(i); i++)
        if (ridge_kernel_at(i)->op == op->id && kernel_wanted(o, ridge_kernel_at(i)))
            return true;
    return false;
}

static void test_op(const options *o, const ridge_device *device, const ridge_op_row *op, tally *t)
{
    case_list list = {0};
    progress p;
    int errors, tried;

    if (!op_wanted(o, op))
        return;
    cases_of(op, o->level, &list);
    progress_start(&p, list.count, o->quiet);
    for (int i = 0; i < list.count; i++) {
        if (!list.at[i].gpu || device->backend_id == RIDGE_CUDA)
            test_case_rows(o, device, &list.at[i], t);
        progress_step(&p, op->name);
    }
    progress_end(&p);
    free(list.at);
    if (!o->kernel) {
        errors = test_errors(device, op, &tried);
        t->failed += errors;
        t->passed += tried - errors;
    }
}

static const struct argp_option option_table[] = {
    {"device", 'd', "SPEC", 0, "cpu, cpu:avx2, cuda, cuda:1 (default: auto)", 0},
    {"kernel", 'k', "PATTERN", 0, "only rows whose name matches (* and ?)", 0},
    {"seed", 's', "N", 0, "seed of the inputs (default 1)", 0},
    {"quick", 'q', NULL, 0, "about a third of the cases", 0},
    {"large", 'l', NULL, 0, "also rows x cols above 2^31 (needs 13 GB on host and device)", 0},
    {"quiet", 'Q', NULL, 0, "no progress", 0},
    {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;

    switch (key) {
    case 'd':
        o->device = arg;
        break;
    case 'k':
        o->kernel = arg;
        break;
    case 's':
        o->seed = args_whole(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case 'q':
        o->level = CASES_QUICK;
        break;
    case 'l':
        o->level = CASES_LARGE;
        break;
    case 'Q':
        o->quiet = true;
        break;
    case ARGP_KEY_ARG:
        if (o->op)
            argp_usage(state);
        o->op = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Says what is wrong with what was asked for. */
static bool something_wanted(const options *o, const ridge_device *device)
{
    const bool exact = name_matches(o->op, "exact") && !o->kernel;
    bool op = false, row = false;

    if (!device->backend) {
        fprintf(stderr, "ridge test: a model device runs nothing\n");
        return false;
    }
    for (int i = 1; i < RIDGE_OPS; i++)
        op |= name_matches(o->op, ridge_op_table[i]->name);
    for (int i = 0; ridge_kernel_at(i); i++)
        row |=
            name_matches(o->op, ridge_op_table[ridge_kernel_at(i)->op]->name) && kernel_wanted(o, ridge_kernel_at(i));
    if (row || (exact && device->backend->exact))
        return true;
    if (exact)
        fprintf(stderr, "ridge test: 'exact' compares a CUDA device with the host, and this is %s\n", device->name);
    else if (!op)
        fprintf(stderr, "ridge test: no op matches '%s' (see `ridge ops`)\n", o->op);
    else
        fprintf(stderr, "ridge test: no kernel row%s%s matches '%s' (see `ridge kernels`)\n", o->op ? " of " : "",
                o->op ? o->op : "", o->kernel);
    return false;
}

int cmd_test(int argc, char **argv)
{
    static const struct argp parser = {option_table,
                                       parse_option,
                                       "[OP-PATTERN]",
                                       "Runs every case through every kernel row and checks its contracts; 'exact' in "
                                       "place of an op: the arithmetic that host and device share.",
                                       NULL,
                                       NULL,
                                       NULL};
    options o = {.seed = 1, .level = CASES_FULL};
    tally t = {0};
    ridge_device *device;
    bool wanted;

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    device = device_open(o.device);
    if (!device)
        return 1;
    wanted = something_wanted(&o, device);
    t.used = calloc((size_t)ridge_kernel_count() + 1, 1);
    if (!wanted || !t.used) {
        ridge_close(device);
        free(t.used);
        return 1;
    }
    for (int op = 1; op < RIDGE_OPS; op++)
        if (name_matches(o.op, ridge_op_table[op]->name))
            test_op(&o, device, ridge_op_table[op], &t);
    if (device->backend->exact && name_matches(o.op, "exact") && !o.kernel) {
        int tried, wrong = test_exact(device, o.level == CASES_LARGE, &tried);

        t.failed += wrong;
        t.passed += tried - wrong;
    }
    list_skipped(&o, device, &t);
    printf("device: %s, %s\n", ridge_arch_table[device->arch].name, device->name);
    printf("worst error of the reference: %.3f of its float64 bound\n", t.worst);
    printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped);
    if (t.passed + t.failed == 0)
        fprintf(stderr, "ridge test: no case ran\n");
    free(t.used);
    ridge_close(device);
    return t.failed || t.passed == 0;
}
