/* row.c: one case through one row, in every way that its contract speaks of.
 *
 * A run uploads the image (guards, inputs, poisoned outputs) and a poisoned workspace with a guard behind it, launches,
 * downloads, and compares every byte. The eager run is judged by the row's contract (image_judge). The others must give
 * the bits of that one: behind a kernel that writes the inputs late and in front of one that overwrites them
 * (row_late.c); captured in a graph over zeros and replayed twice; two copies on two streams at once; repeated while a
 * copy keeps the other stream busy; beside a kernel whose loads delay all others; parts of the rows in calls of their
 * own; exact rows as on a device of one and of seven multiprocessors; and on a CPU for a caller with another rounding
 * mode. */
#include <stdlib.h>
#include <string.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "family.h"
#include "row.h"

bool row_failed(const row_run *t, const char *what)
{
    snprintf(t->text, t->size, "%s: %s", what, ridge_error());
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

/* The op writes an operand that it reads. */
static bool updates(const image *im)
{
    for (int arg = 0; arg < ridge_op_at(im->call.op)->args; arg++)
        if (im->length[arg] && ridge_operand_role(&im->call, arg) == (RIDGE_IN | RIDGE_OUT))
            return true;
    return false;
}

/* Launches the row, or the fault that stands in for it, or where `picked` whatever row dispatch picks. */
static ridge_status launch(const row_run *t, const ridge_device *device, const image *im, row_lane *l, bool picked)
{
    void *const workspace = t->bytes ? l->workspace : NULL;
    ridge_call call = image_call(im, l->image);
    ridge_bound bound;
    ridge_status status = ridge_validate(&call, &bound);

    if (status)
        return status;
    if (!picked && t->row->fault)
        return t->row->fault->fault(&(faulty_run){t->row->fault, device, t->row->kernel, &bound.problem, im, &call,
                                                  l->image, workspace, t->bytes, l->stream});
    call.kernel = picked ? NULL : t->row->kernel->name;
    /* Every upload is waited for, and nothing on a stream writes weights; but parts of a call may write for each other.
     */
    if (l->launches++ & 1 && (im == t->im || !updates(im)))
        call.flags |= RIDGE_WEIGHTS_CONST;
    return check_run(device, &call, workspace, t->bytes, l->stream);
}

/* A launch on the first lane, as measure_capture runs it. */
ridge_status row_launch_again(const void *state)
{
    row_run *const *t = state;

    return launch(*t, (*t)->device, (*t)->im, &(*t)->l[0], false);
}

enum { WORKSPACE_GUARD = 256, GUARD_BYTE = 0xa5 };

/* Nothing wrote behind the workspace. */
static bool guard_is_intact(const row_run *t, const row_lane *l)
{
    const ridge_backend *b = t->device->backend;
    unsigned char guard[WORKSPACE_GUARD];

    if (!t->bytes)
        return true;
    if (b->download(t->device, guard, (char *)l->workspace + t->bytes, sizeof guard))
        return row_failed(t, "workspace");
    for (size_t i = 0; i < sizeof guard; i++)
        if (guard[i] != GUARD_BYTE) {
            snprintf(t->text, t->size, "workspace: wrote %zu bytes behind the end of %zu", i, t->bytes);
            return false;
        }
    return true;
}

/* A lane holds the bits of the eager run. */
static bool same_bits(const row_run *t, const row_lane *l, const char *way)
{
    const ridge_backend *b = t->device->backend;
    char reason[400];

    if (b->sync(t->device, l->stream) || b->download(t->device, t->again, l->image, t->im->bytes))
        return row_failed(t, way);
    if (image_equal(t->im, t->first, t->again, reason, sizeof reason))
        return guard_is_intact(t, l);
    snprintf(t->text, t->size, "%s: %s", way, reason);
    return false;
}

int64_t row_step_of(const image *im, int arg)
{
    const ridge_op_row *op = ridge_op_at(im->call.op);
    ridge_call longer = im->call;
    int64_t rows, cols, rows1, cols1, size = (int64_t)ridge_dtype_size(im->call.arg[arg].dtype);

    longer.dim[0]++;
    op->extent(&im->call, arg, &rows, &cols);
    op->extent(&longer, arg, &rows1, &cols1);
    if (rows1 != rows)
        return (im->call.arg[arg].stride ? im->call.arg[arg].stride : cols) * size;
    return (cols1 - cols) * size;
}

bool row_upload(const row_run *t, row_lane *l)
{
    const ridge_backend *b = t->device->backend;

    if (t->bytes) {
        const size_t all = t->bytes + WORKSPACE_GUARD;
        unsigned char *poison = malloc(all);
        ridge_status status;

        if (!poison)
            return ridge_fail(RIDGE_ERR_DEVICE, "cannot allocate %zu bytes", all) == RIDGE_OK;
        memset(poison, 0xff, t->bytes);
        memset(poison + t->bytes, GUARD_BYTE, WORKSPACE_GUARD);
        status = b->upload(t->device, l->workspace, poison, all);
        free(poison);
        if (status)
            return false;
    }
    return b->upload(t->device, l->image, t->im->host, t->im->bytes) == RIDGE_OK;
}

/* The eager run, judged by the contract. */
static bool run_first(row_run *t, const unsigned char *expected)
{
    const ridge_backend *b = t->device->backend;
    char reason[400];

    if (!row_upload(t, &t->l[0]))
        return row_failed(t, "upload");
    if (launch(t, t->device, t->im, &t->l[0], false) || b->sync(t->device, t->l[0].stream) ||
        b->download(t->device, t->first, t->l[0].image, t->im->bytes))
        return row_failed(t, "eager run");
    if (image_judge(t->im, t->row->kernel, expected, t->first, reason, sizeof reason))
        return guard_is_intact(t, &t->l[0]);
    snprintf(t->text, t->size, "eager run: %s", reason);
    return false;
}

static bool run_graph(row_run *t)
{
    const ridge_backend *b = t->device->backend;
    void *graph = NULL;
    bool good = true;

    if (!b->graph_begin)
        return true;
    memset(t->again, 0, t->im->bytes); /* shapes alone decide what is captured: ids, offsets and positions come later */
    if (b->upload(t->device, t->l[0].image, t->again, t->im->bytes))
        return row_failed(t, "upload");
    if (measure_capture(t->device, t->l[0].stream, (work){row_launch_again, &t}, &graph))
        return row_failed(t, "inside a graph capture");
    for (int replay = 0; replay < 2 && good; replay++) {
        good = row_upload(t, &t->l[0]) && b->graph_launch(t->device, graph, t->l[0].stream) == RIDGE_OK;
        good = good ? same_bits(t, &t->l[0], "graph replay") : row_failed(t, "graph replay");
    }
    b->graph_free(t->device, graph);
    return good;
}

/* The C reference, which is slow and made every case's expected bits already; not a fault that stands in for it. */
static bool is_reference(const test_row *row)
{
    return row->kernel->arch_max == RIDGE_ARCH_AVX512 && row->kernel->arch_min == RIDGE_ARCH_C && !row->fault;
}

static bool run_two(row_run *t)
{
    if (is_reference(t->row)) /* a CPU has no streams, and the expected bits were made in other memory than the row's */
        return true;
    for (int i = 0; i < 2; i++)
        if (!row_upload(t, &t->l[i]))
            return row_failed(t, "upload");
    for (int i = 0; i < 2; i++)
        if (launch(t, t->device, t->im, &t->l[i], false))
            return row_failed(t, "on two streams");
    return same_bits(t, &t->l[0], "first of two streams") && same_bits(t, &t->l[1], "second of two streams");
}

/* ----------------------------------------------------------------------------------------------- repeats and parts */

/* How often a case is repeated: the C reference has no tiles that could meet in another order, so twice is enough. */
static int repeats_of(const test_row *row, const test_case *c)
{
    return is_reference(row) && c->repeats > 2 ? 2 : c->repeats;
}

/* The same bits again and again while a copy keeps the other stream busy, in the workspace as the last run left it. */
static bool run_repeats(row_run *t)
{
    const bool restore = updates(t->im) || t->c->alias;
    row_lane *l = t->l;

    if (t->c->repeats && !row_upload(t, &l[0]))
        return row_failed(t, "upload");
    for (int i = 0; i < repeats_of(t->row, t->c); i++) {
        if (t->device->backend->copy(t->device, l[1].image, l[0].image, t->im->bytes, l[1].stream) ||
            ((restore || i % 50 == 0) &&
             t->device->backend->upload(t->device, l[0].image, t->im->host, t->im->bytes)) ||
            launch(t, t->device, t->im, &l[0], false))
            return row_failed(t, "repeated run");
        if (!same_bits(t, &l[0], "repeated run"))
            return false;
    }
    return true;
}

enum { NOISE_RUNS = 3, NOISE_US = 50 };

/* Beside a kernel whose loads fill the queues of all multiprocessors: a row that releases a stage of a ring, or fills
 * it again, before what its warps load from it has arrived gives other bits (docs/lessons.md, TMA). */
static bool run_beside(row_run *t)
{
    const char *const way = "beside another kernel's loads";
    const ridge_backend *b = t->device->backend;

    for (int i = 0; i < NOISE_RUNS && b->noise; i++) {
        if (!row_upload(t, &t->l[0]) || b->noise(t->device, NOISE_US, t->l[1].stream) ||
            launch(t, t->device, t->im, &t->l[0], false))
            return row_failed(t, way);
        if (!same_bits(t, &t->l[0], way))
            return false;
    }
    return true;
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
        part.offset[arg] = im->offset[arg] + (size_t)(begin * row_step_of(im, arg));
        if (op->arg[arg].kind != RIDGE_VECTOR && im->call.arg[arg].stride == 0)
            part.call.arg[arg].stride = wide;
    }
    return part;
}

/* The row cannot run the call of an image. */
static bool refuses(const row_run *t, const image *im)
{
    ridge_call call = image_call(im, im->host);
    ridge_bound bound;

    return ridge_validate(&call, &bound) == RIDGE_OK && ridge_why_not(t->device, t->row->kernel, &bound.problem);
}

/* Rows in parts of `least` give what they gave together; the last part takes the rest where a smaller one would belong
 * to the op's other range of dim[0]. Nothing to compare where the row cannot run a part. */
static bool run_parts(row_run *t, int64_t least, bool picked)
{
    const int64_t all = t->im->call.dim[0], split = ridge_op_at(t->im->call.op)->invariant_split;
    int64_t rows;

    if (!row_upload(t, &t->l[0]))
        return row_failed(t, "upload");
    for (int64_t at = 0; at < all; at += rows) {
        image part;

        rows = all - at < least || (least > split && least > 1 && all - at < 2 * least) ? all - at : least;
        part = part_of(t->im, at, rows);
        if (!picked && refuses(t, &part))
            return true;
        if (launch(t, t->device, &part, &t->l[0], picked))
            return row_failed(t, "part of the rows");
    }
    return same_bits(t, &t->l[0], least == 1 ? "rows one by one" : "part of the rows");
}

/* Whether the row is what dispatch picks for the whole call. */
static bool is_pick(const row_run *t)
{
    ridge_call call = image_call(t->im, t->im->host);
    const ridge_kernel *picked;
    const char *because;
    ridge_bound bound;

    return !t->row->fault && ridge_validate(&call, &bound) == RIDGE_OK &&
           ridge_choose(t->device, call.kernel, &bound.problem, SIZE_MAX, &picked, &because) == RIDGE_OK &&
           picked == t->row->kernel;
}

/* Batch-invariance: single rows, or for an op of two ranges parts of several sizes within the range of this call; of
 * the row that is picked for the whole also by whatever rows are picked for the parts. */
static bool run_slices(row_run *t)
{
    const int64_t split = ridge_op_at(t->im->call.op)->invariant_split;
    const int64_t least = split && t->im->call.dim[0] > split ? split + 1 : 1;

    return run_parts(t, least, false) && (!split || run_parts(t, least + 7, false)) &&
           (!is_pick(t) || run_parts(t, least, true));
}

static size_t workspace_of(const row_run *t, const ridge_device *device, const ridge_problem *problem)
{
    return ridge_kernel_workspace(device, t->row->kernel, problem);
}

/* A grid of any size gives the same bits: the row on the same device, said to have few multiprocessors; and stores that
 * bypass a CPU's cache, which is said to be small. Only for rows of the reference's bits; a row with atomics in a fixed
 * order may be stable and still depend on its grid. */
static bool run_grids(row_run *t)
{
    static const int units[] = {1, 7};
    const bool cuda = t->device->backend_id == RIDGE_CUDA;
    const char *where = cuda ? "on few multiprocessors" : "with a small cache";

    if (is_reference(t->row) && t->im->call.op != RIDGE_Q8_0_REPACK && t->im->call.op != RIDGE_Q8_0_UNPACK)
        return true; /* of the references only these two store past the cache, and products in plain C take long */
    for (int i = 0; i < (cuda ? 2 : 1) && (t->row->kernel->contract & RIDGE_EXACT); i++) {
        ridge_device small = *t->device;
        ridge_call call = image_call(t->im, t->im->host);
        ridge_bound bound;

        if (cuda)
            small.units = units[i];
        else
            small.l2_bytes = 4;
        if (ridge_validate(&call, &bound) || ridge_why_not(&small, t->row->kernel, &bound.problem) ||
            workspace_of(t, &small, &bound.problem) > t->bytes)
            continue;
        if (!row_upload(t, &t->l[0]) || launch(t, &small, t->im, &t->l[0], false))
            return row_failed(t, where);
        if (!same_bits(t, &t->l[0], where))
            return false;
    }
    return true;
}

#ifdef __SSE__
/* On the CPU: a caller, and threads of its team, that round up and flush subnormals to zero get the same bits, and keep
 * their mode. */
static bool run_modes(row_run *t)
{
    enum { FLAGS = 0x3f, UP_AND_FLUSH = 0x1f80 | 0x4000 | 0x8040 };
    const unsigned before = _mm_getcsr();
    ridge_status status;
    int changed = 0;

    if (t->device->backend_id != RIDGE_CPU)
        return true;
    if (!row_upload(t, &t->l[0]))
        return row_failed(t, "upload");
#pragma omp parallel
    _mm_setcsr(UP_AND_FLUSH);
    _mm_setcsr(UP_AND_FLUSH); /* once more for the caller: with LLVM's OpenMP a region ends in the mode it began in */
    status = launch(t, t->device, t->im, &t->l[0], false);
#pragma omp parallel reduction(+ : changed)
    {
        changed += (_mm_getcsr() & ~(unsigned)FLAGS) != UP_AND_FLUSH;
        _mm_setcsr(before);
    }
    _mm_setcsr(before);
    if (status)
        return row_failed(t, "in another rounding mode");
    if (changed) {
        snprintf(t->text, t->size, "in another rounding mode: %d threads did not get theirs back", changed);
        return false;
    }
    return same_bits(t, &t->l[0], "in another rounding mode");
}
#else
static bool run_modes(row_run *t)
{
    (void)t;
    return true;
}
#endif

bool test_is_large(const image *im)
{
    return im->fill == FILL_PERIOD || im->bytes > (size_t)1 << 31;
}

/* Enough for the call and for every part of it that run_slices may launch. */
static size_t workspace_of_all(const row_run *t, ridge_problem problem)
{
    size_t most = workspace_of(t, t->device, &problem), bytes;

    for (int64_t rows = problem.dim[0]; t->c->slices && rows > 0; rows--) {
        problem.dim[0] = rows;
        bytes = workspace_of(t, t->device, &problem);
        most = bytes > most ? bytes : most;
    }
    return t->row->fault ? 2 * most + 65536 : most; /* a fault may run a larger problem */
}

static bool allocate(row_run *t, int lanes)
{
    const ridge_backend *b = t->device->backend;
    bool good = true;

    t->first = result_of(t->im);
    t->again = lanes > 1 ? result_of(t->im) : NULL;
    good = t->first && (lanes == 1 || t->again);
    for (int i = 0; i < lanes && good; i++)
        good = b->alloc(t->device, t->im->bytes, &t->l[i].image) == RIDGE_OK &&
               b->stream_new(t->device, &t->l[i].stream) == RIDGE_OK &&
               (t->bytes == 0 || b->alloc(t->device, t->bytes + WORKSPACE_GUARD, &t->l[i].workspace) == RIDGE_OK);
    return good || row_failed(t, "allocation");
}

static void release(row_run *t)
{
    const ridge_backend *b = t->device->backend;

    for (row_lane *l = t->l; l < t->l + 2; l++) {
        if (l->image)
            b->release(t->device, l->image);
        if (l->workspace)
            b->release(t->device, l->workspace);
        if (l->stream)
            b->stream_free(t->device, l->stream);
    }
    free(t->again);
    free(t->first);
}

bool test_one(const test_row *row, const ridge_device *device, const test_case *c, const image *im,
              const unsigned char *expected, char *text, size_t size)
{
    row_run t = {.row = row, .device = device, .c = c, .im = im, .text = text, .size = size};
    const bool once = row->once || test_is_large(im);
    ridge_call call = image_call(im, im->host);
    ridge_bound bound;
    bool good;

    if (ridge_validate(&call, &bound))
        return row_failed(&t, "validation");
    t.bytes = workspace_of_all(&t, bound.problem);
    good = allocate(&t, once ? 1 : 2) && run_first(&t, expected);
    if (!once)
        good = good && row_run_late(&t) && run_graph(&t) && run_two(&t) && run_grids(&t) && run_modes(&t) &&
               (!c->slices || run_slices(&t)) && run_repeats(&t) && run_beside(&t);
    release(&t);
    return good;
}
