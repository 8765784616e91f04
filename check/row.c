/* row.c: one case through one row, in every way.
 *
 * One run of a row: upload the image (guards, inputs, poisoned outputs), launch, download, compare every byte with the
 * image that the C reference left. Four ways: eager; captured in a graph and replayed twice; two copies on two streams
 * at once; and rows of the reference's bits as on a device of one and of seven multiprocessors. A row that does not
 * promise the reference's bits must be within the op's bound and leave all else alone in its eager run (image_judge);
 * the other runs must then give the bits of that one. */
#include <stdlib.h>
#include <string.h>

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

/* Room on the host for an image's bytes; NULL sets ridge_error(). */
static unsigned char *result_of(const image *im)
{
    unsigned char *memory = aligned_alloc(256, (im->bytes + 255) / 256 * 256);

    if (!memory)
        ridge_fail(RIDGE_ERR_DEVICE, "cannot allocate %zu bytes", im->bytes);
    return memory;
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
    ridge_bound bound;
    ridge_status status = ridge_validate(&call, &bound);

    if (status)
        return status;
    if (row && row->fault)
        return row->fault(&(faulty_run){device, row->kernel, &bound.problem, im, &call, l->image,
                                        bytes ? l->workspace : NULL, bytes, l->stream});
    call.kernel = row ? row->kernel->name : NULL;
    if (l->launches++ & 1) /* every upload is waited for, and nothing on a stream writes weights */
        call.flags |= RIDGE_WEIGHTS_CONST;
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
            return ridge_fail(RIDGE_ERR_DEVICE, "cannot allocate %zu bytes", bytes) == RIDGE_OK;
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
    for (int arg = 0; arg < ridge_op_at(im->call.op)->args; arg++)
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
    const bool restore = reads_an_output(im) || c->alias;

    for (int i = 0; i < repeats_of(row, c); i++) {
        if (device->backend->copy(device, l[1].image, l[0].image, im->bytes, l[1].stream) ||
            ((restore || i % 50 == 0) && !upload(device, im, &l[0], bytes)) || launch(row, device, im, &l[0], bytes))
            return failed(text, size, "repeated run");
        if (!check(device, im, &l[0], expected, got, "repeated run", text, size))
            return false;
    }
    return true;
}

/* The operand's rows (or elements, for a vector) follow dim[0]: returns how many bytes one step is, or 0. */
static int64_t step_of(const image *im, int arg)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
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
    const ridge_op_row *op = ridge_op_at(im->call.op);
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

/* The row cannot run the call of an image. */
static bool refuses(const test_row *row, const ridge_device *device, const image *im)
{
    ridge_call call = image_call(im, im->host);
    ridge_bound bound;

    return ridge_validate(&call, &bound) == RIDGE_OK && ridge_why_not(device, row->kernel, &bound.problem) != NULL;
}

/* Rows in parts of `least` give what they gave together; the last part takes the rest where a smaller one would belong
 * to the op's other range of dim[0]. Nothing to compare where the row cannot run a part. */
static bool run_parts(const test_row *row, const ridge_device *device, const image *im, int64_t least, lane *l,
                      size_t bytes, const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    const int64_t all = im->call.dim[0], split = ridge_op_at(im->call.op)->invariant_split;
    int64_t rows;

    if (!upload(device, im, l, bytes))
        return failed(text, size, "upload");
    for (int64_t t = 0; t < all; t += rows) {
        image part;

        rows = all - t < least || (least > split && least > 1 && all - t < 2 * least) ? all - t : least;
        part = part_of(im, t, rows);
        if (row && refuses(row, device, &part))
            return true;
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
    ridge_bound bound;

    return !row->fault && ridge_validate(&call, &bound) == RIDGE_OK &&
           ridge_choose(device, call.kernel, &bound.problem, SIZE_MAX, &picked, &because) == RIDGE_OK &&
           picked == row->kernel;
}

/* Batch-invariance: single rows, or for an op of two ranges parts of several sizes within the range of this call; of
 * the row that is picked for the whole also by whatever rows are picked for the parts. */
static bool run_slices(const test_row *row, const ridge_device *device, const image *im, lane *l, size_t bytes,
                       const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    const int64_t split = ridge_op_at(im->call.op)->invariant_split;
    const int64_t least = split && im->call.dim[0] > split ? split + 1 : 1;

    return run_parts(row, device, im, least, l, bytes, expected, got, text, size) &&
           (!split || run_parts(row, device, im, least + 7, l, bytes, expected, got, text, size)) &&
           (!is_pick(row, device, im) || run_parts(NULL, device, im, least, l, bytes, expected, got, text, size));
}

/* A grid of any size gives the same bits: the row on the same device, said to have few multiprocessors; and stores that
 * bypass a CPU's cache, which is said to be small. Only for rows of the reference's bits; a row with atomics in a fixed
 * place may be stable and still depend on its grid. */
static bool run_grids(const test_row *row, const ridge_device *device, const image *im, lane *l, size_t bytes,
                      const unsigned char *expected, unsigned char *got, char *text, size_t size)
{
    static const int units[] = {1, 7};
    const bool cuda = device->backend_id == RIDGE_CUDA;
    const char *where = cuda ? "on few multiprocessors" : "with a small cache";

    for (int i = 0; i < (cuda ? 2 : 1) && (row->kernel->contract & RIDGE_EXACT); i++) {
        ridge_device small = *device;
        ridge_call call = image_call(im, im->host);
        ridge_bound bound;

        if (cuda)
            small.units = units[i];
        else
            small.l2_bytes = 4;
        if (ridge_validate(&call, &bound) || ridge_why_not(&small, row->kernel, &bound.problem) ||
            workspace_of(row, &small, &bound.problem) > bytes)
            continue;
        if (!upload(device, im, l, bytes) || launch(row, &small, im, l, bytes))
            return failed(text, size, where);
        if (!check(device, im, l, expected, got, where, text, size))
            return false;
    }
    return true;
}

bool test_is_large(const image *im)
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
    const bool once = row->once || test_is_large(im);
    unsigned char *got = result_of(im), *again = NULL;
    ridge_bound bound;
    lane l[2];
    bool good = got != NULL;
    size_t bytes;

    memset(l, 0, sizeof l);
    if (ridge_validate(&call, &bound)) {
        free(got);
        return failed(text, size, "validation");
    }
    bytes = workspace_of_all(row, device, c, bound.problem);
    if (row->fault) /* it may run a larger problem */
        bytes = 2 * bytes + 65536;
    for (int i = 0; i < (once ? 1 : 2) && good; i++)
        good = b->alloc(device, im->bytes, &l[i].image) == RIDGE_OK &&
               b->stream_new(device, &l[i].stream) == RIDGE_OK &&
               (bytes == 0 || b->alloc(device, bytes, &l[i].workspace) == RIDGE_OK);
    good =
        good ? run_first(row, device, im, &l[0], bytes, expected, got, text, size) : failed(text, size, "allocation");
    if (good && !once) {
        again = result_of(im);
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
