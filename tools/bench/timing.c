/* timing.c: measures how long a call takes when its operands are not in the cache. On CUDA a graph holds one call per
 * copy of the operands and is replayed; on the CPU the calls run one after another. Every round times every candidate
 * once, so that drifting clocks affect all alike. */
#include "timing.h"

#include <stdlib.h>
#include <string.h>

#include "check/family.h"
#include "check/measure.h"

/* CUDA_TIMES: a graph's first call, which overlaps nothing, and the weights that the replay before left in L2 (loaded
 * evict_first) weigh the less the more copies there are: 4, 16 and 48 times an H200's L2 give 16.9, 15.8 and 15.5 us
 * for a Q8_0 product of 62 MB. MOST_COPIES for each size of the cache. */
enum { CPU_TIMES = 4, CUDA_TIMES = 16, MOST_COPIES = 16, FEW_ROUNDS = 5, LEAST_ROUNDS = 3 };

static const double long_round = 20e3, very_long_round = 200e3; /* us */

bool rotation_build(const ridge_device *device, const image *im, size_t workspace_bytes, rotation *r)
{
    const ridge_backend *b = device->backend;
    const bool weights_const = r->weights_const;
    const int times = r->times ? r->times : device->backend_id == RIDGE_CPU ? CPU_TIMES : CUDA_TIMES;
    const size_t cache = (size_t)(device->l2_bytes > 0 ? device->l2_bytes : 64 << 20);
    size_t used, most_bytes;
    bool good = true;

    memset(r, 0, sizeof *r);
    r->times = times;
    r->device = device;
    r->weights_const = weights_const;
    r->im = im;
    r->pitch = (im->bytes + 255) / 256 * 256;
    used = (size_t)ridge_problem_bytes(&im->call) + 1;
    used = used < r->pitch ? used : r->pitch;
    r->copies = (int)((size_t)times * cache / used) + 1;
    if (r->copies < 2 && used < 32 * cache) /* one larger copy evicts itself */
        r->copies = 2;
    r->copies = r->copies > MOST_COPIES * times ? MOST_COPIES * times : r->copies;
    most_bytes = (size_t)(0.3 * (double)device->memory_bytes);
    while (r->copies > 1 && (size_t)r->copies * r->pitch > most_bytes)
        r->copies--;
    r->workspace_bytes = workspace_bytes;
    good = b->stream_new(device, &r->stream) == RIDGE_OK &&
           b->alloc(device, (size_t)r->copies * r->pitch, (void **)&r->memory) == RIDGE_OK &&
           b->alloc(device, (size_t)r->copies * r->pitch, (void **)&r->scratch) == RIDGE_OK &&
           (!workspace_bytes || b->alloc(device, workspace_bytes, &r->workspace) == RIDGE_OK) &&
           image_upload(im, device, r->memory, r->stream);
    for (int i = 0; i < r->copies && good; i++)
        good = (i == 0 ||
                b->copy(device, r->memory + (size_t)i * r->pitch, r->memory, im->bytes, r->stream) == RIDGE_OK) &&
               b->copy(device, r->scratch + (size_t)i * r->pitch, r->memory, im->bytes, r->stream) == RIDGE_OK;
    return good && b->sync(device, r->stream) == RIDGE_OK;
}

void rotation_free(rotation *r)
{
    const ridge_backend *b = r->device->backend;

    if (r->memory)
        b->release(r->device, r->memory);
    if (r->scratch)
        b->release(r->device, r->scratch);
    if (r->workspace)
        b->release(r->device, r->workspace);
    if (r->stream)
        b->stream_free(r->device, r->stream);
}

static ridge_status call_once(const rotation *r, const candidate *c, int copy)
{
    size_t half = (size_t)(ridge_problem_bytes(&r->im->call) / 2) / 16 * 16;
    unsigned char *scratch = r->scratch + (size_t)copy * r->pitch;
    ridge_call call;

    if (!c->kernel && !c->rival && c->read)
        return r->device->backend->stream_read(r->device, c->variant, scratch,
                                               (size_t)ridge_problem_bytes(&r->im->call) / 16 * 16, r->stream);
    if (half > r->pitch / 2) /* an operand that is read and written counts twice but is stored once */
        half = r->pitch / 32 * 16;
    if (!c->kernel && !c->rival)
        return r->device->backend->stream_copy(r->device, c->variant, scratch + half, scratch, half, r->stream);
    call = image_call(r->im, r->memory + (size_t)copy * r->pitch);
    if (r->weights_const)
        call.flags |= RIDGE_WEIGHTS_CONST;
    if (c->rival)
        return c->rival->run(c->state, &call, r->stream);
    call.kernel = c->kernel->name;
    return check_run(r->device, &call, r->workspace, r->workspace_bytes, r->stream);
}

/* One candidate, to be called once for each copy of the operands. */
typedef struct round_of {
    const rotation *r;
    const candidate *c;
} round_of;

static ridge_status call_all(const void *state)
{
    const round_of *all = state;
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < all->r->copies && !status; i++)
        status = call_once(all->r, all->c, i);
    return status;
}

/* Microseconds a call. */
static ridge_status time_once(const rotation *r, const candidate *c, double *us)
{
    const round_of all = {r, c};
    const ridge_status status = measure_once(r->device, r->stream, c->graph, (work){call_all, &all}, us);

    *us /= r->copies;
    return status;
}

static void summarise(candidate *c, int rounds)
{
    double us[3];

    measure_order(c->round, rounds, us);
    c->us = us[0];
    c->us_p20 = us[1];
    c->us_p80 = us[2];
}

bool timing_run(rotation *r, candidate *list, int count)
{
    const ridge_backend *b = r->device->backend;
    ridge_status status = RIDGE_OK;
    double us, all = 0;

    for (int i = 0; i < count; i++) {
        const round_of calls = {r, &list[i]};

        list[i].graph = NULL;
        if (!status && b->graph_begin)
            status = measure_capture(r->device, r->stream, (work){call_all, &calls}, &list[i].graph);
    }
    r->rounds = TIMING_ROUNDS;
    for (int round = -2; round < r->rounds && !status; round++) { /* the first two only warm up */
        for (int i = 0; i < count && !status; i++) {
            status = time_once(r, &list[i], &us);
            if (round >= 0)
                list[i].round[round] = us;
            all += round == -2 ? us * r->copies : 0;
        }
        if (all > long_round && round == -2) { /* warm enough */
            r->rounds = all > very_long_round ? LEAST_ROUNDS : FEW_ROUNDS;
            round = -1;
        }
    }
    for (int i = 0; i < count; i++) {
        summarise(&list[i], status ? 0 : r->rounds);
        if (list[i].graph)
            b->graph_free(r->device, list[i].graph);
    }
    return status == RIDGE_OK;
}

int timing_sift(rotation *r, candidate *list, int count)
{
    double least = 0;
    int kept = 1;

    for (int i = 0; i < count; i++) {
        list[i].graph = NULL;
        if (call_once(r, &list[i], 0) || time_once(r, &list[i], &list[i].us)) /* the first call is slow */
            return 0;
        least = i == 0 || list[i].us < least ? list[i].us : least;
    }
    for (int i = 1; i < count; i++)
        if (list[i].us <= 2 * least)
            list[kept++] = list[i];
    return kept;
}

void timing_warm(rotation *r, double for_seconds)
{
    const candidate copy = {0};
    double start = seconds(), us;

    while (seconds() - start < for_seconds && time_once(r, &copy, &us) == RIDGE_OK)
        ;
}

static bool run_once(const ridge_device *device, const image *im, const ridge_kernel *kernel, unsigned char *got)
{
    const ridge_backend *b = device->backend;
    const candidate row = {.kernel = kernel};
    void *memory = NULL, *stream = NULL, *workspace = NULL;
    ridge_call call = image_call(im, im->host);
    size_t need = kernel ? timing_workspace(device, &call, &row, 1) : 0;
    bool good =
        (kernel || ridge_workspace_bytes(device, &call, &need) == RIDGE_OK) &&
        b->alloc(device, im->bytes, &memory) == RIDGE_OK && (!need || b->alloc(device, need, &workspace) == RIDGE_OK) &&
        b->stream_new(device, &stream) == RIDGE_OK && b->upload(device, memory, im->host, im->bytes) == RIDGE_OK;

    if (good) {
        call = image_call(im, memory);
        call.kernel = kernel ? kernel->name : NULL;
        good = check_run(device, &call, workspace, need, stream) == RIDGE_OK && b->sync(device, stream) == RIDGE_OK &&
               b->download(device, got, memory, im->bytes) == RIDGE_OK;
    }
    if (memory)
        b->release(device, memory);
    if (workspace)
        b->release(device, workspace);
    if (stream)
        b->stream_free(device, stream);
    return good;
}

bool timing_verify(const ridge_device *device, const image *im, const ridge_kernel *kernel, char *text, size_t size)
{
    unsigned char *expected = malloc(im->bytes), *got = malloc(im->bytes);
    bool good = expected && got;

    if (!good)
        snprintf(text, size, "out of memory");
    else if (image_reference(im, expected) != RIDGE_OK || !run_once(device, im, kernel, got))
        good = snprintf(text, size, "%s", ridge_error()) < 0;
    else
        good = kernel ? image_judge(im, kernel, expected, got, text, size) : image_equal(im, expected, got, text, size);
    free(expected);
    free(got);
    return good;
}

size_t timing_workspace(const ridge_device *device, const ridge_call *call, const candidate *list, int count)
{
    ridge_bound bound;
    size_t most = 0;

    if (ridge_validate(call, &bound))
        return 0;
    for (int i = 0; i < count; i++) {
        const ridge_kernel *kernel = list[i].kernel;
        const size_t need = kernel && kernel->workspace ? kernel->workspace(device, kernel, &bound.problem) : 0;

        most = need > most ? need : most;
    }
    return most;
}
