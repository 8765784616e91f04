/* ceilings.c: measures the upper limits of this machine (`ridge bench --ceilings`), and the host time of a call
 * (`ridge bench --overhead`). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check/measure.h"

static void emit(bench *b, const char *problem, const char *kernel, double us, double gbps, double tflops)
{
    record r;

    record_begin(&b->sink, &r);
    snprintf(r.suite, sizeof r.suite, "ceilings");
    snprintf(r.op, sizeof r.op, "ceiling");
    snprintf(r.problem, sizeof r.problem, "%s", problem);
    snprintf(r.provider, sizeof r.provider, "%s", tflops > 0 ? "cublaslt" : "stream");
    snprintf(r.kernel, sizeof r.kernel, "%s", kernel);
    r.us = us;
    r.gbps = gbps;
    r.tflops = tflops;
    record_emit(&b->sink, &r);
    if (b->sink.json)
        return;
    if (tflops > 0)
        printf("%-28s %-10s %36.1f TFLOP/s\n", problem, kernel, tflops);
    else if (gbps > 0)
        printf("%-28s %-10s %10.2f us %10.1f GB/s\n", problem, kernel, us, gbps);
    else
        printf("%-28s %-10s %10.3f us\n", problem, kernel, us);
}

typedef enum what { COPY, READ, EMPTY } what;

typedef struct stream_test {
    const ridge_device *device;
    unsigned char *memory;
    void *stream;
    size_t size; /* of memory */
} stream_test;

/* `count` calls of a kind, each on the next bytes of the memory. */
typedef struct calls {
    const stream_test *t;
    what kind;
    int variant, count;
    size_t bytes;
} calls;

static ridge_status once(const calls *c, int index)
{
    const stream_test *t = c->t;
    const ridge_backend *b = t->device->backend;
    size_t slots = t->size / 2 / c->bytes ? t->size / 2 / c->bytes : 1;
    unsigned char *at = t->memory + (size_t)index % slots * c->bytes;

    if (c->kind == EMPTY)
        return b->empty(t->device, t->stream);
    if (c->kind == READ)
        return b->stream_read(t->device, c->variant, t->memory + (size_t)index % (2 * slots) * c->bytes, c->bytes,
                              t->stream);
    return b->stream_copy(t->device, c->variant, at + t->size / 2, at, c->bytes, t->stream);
}

static ridge_status run_calls(const void *state)
{
    const calls *c = state;
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < c->count && !status; i++)
        status = once(c, i);
    return status;
}

/* Median microseconds of one of the calls, launched back to back (in a graph where the device has them). */
static double median_us(calls c)
{
    enum { ROUNDS = 9 };
    const ridge_device *device = c.t->device;
    const work w = {run_calls, &c};
    void *graph = NULL;
    double round[ROUNDS], us[3];
    ridge_status status =
        device->backend->graph_begin ? measure_capture(device, c.t->stream, w, &graph) : (ridge_status)RIDGE_OK;

    for (int r = -2; r < ROUNDS && !status; r++)
        status = measure_once(device, c.t->stream, graph, w, &round[r < 0 ? 0 : r]);
    if (graph)
        device->backend->graph_free(device, graph);
    measure_order(round, status ? 0 : ROUNDS, us);
    return status ? INFINITY : us[0] / c.count;
}

/* Reports the fastest variant; false with ridge_error() if none ran. */
static bool sweep(bench *b, const stream_test *t, what kind, double megabytes, int variants)
{
    size_t bytes = (size_t)(megabytes * 1e6) / 32768 * 32768;
    int count = (int)(t->size / bytes), best = 0;
    double us = INFINITY;
    char problem[64], name[16];

    if (bytes > t->size / 2 || !variants)
        return true;
    count = count > 64 ? 64 : count < 2 ? 2 : count;
    for (int v = 0; v < variants; v++) {
        double one = median_us((calls){t, kind, v, count, bytes});

        if (one < us) {
            us = one;
            best = v;
        }
    }
    if (!isfinite(us))
        return false;
    snprintf(problem, sizeof problem, "%s mb=%g", kind == COPY ? "copy" : "read", megabytes);
    snprintf(name, sizeof name, "variant%d", best);
    emit(b, problem, name, us, (kind == COPY ? 2 : 1) * (double)bytes / us * 1e-3, -1);
    return true;
}

static bool start(const ridge_device *device, size_t size, stream_test *t)
{
    const ridge_backend *b = device->backend;
    size_t block = 64 << 20;
    uint64_t state = 3, *random = malloc(block);
    bool good = random != NULL;

    t->device = device;
    t->size = size;
    t->memory = NULL;
    t->stream = NULL;
    for (size_t i = 0; random && i < block / 8; i++)
        random[i] = random_next(&state);
    good = good && b->alloc(device, size, (void **)&t->memory) == RIDGE_OK &&
           b->stream_new(device, &t->stream) == RIDGE_OK;
    for (size_t at = 0; at + block <= size && good; at += block)
        good = b->upload(device, t->memory + at, random, block) == RIDGE_OK;
    free(random);
    return good;
}

bool bench_ceilings(bench *b)
{
    static const double read_mb[] = {0.5, 2.2, 4.5, 8.9, 14.7, 35.6, 58.7, 62.4, 67.1, 117, 235, 470, 1000};
    bool cuda = b->device->backend_id == RIDGE_CUDA;
    const ridge_backend *backend = b->device->backend;
    stream_test t;
    char why[256];
    double tflops;
    bool good = start(b->device, cuda ? (size_t)6 << 30 : (size_t)1 << 30, &t);

    for (int i = 0; i < 30 && good; i++)
        once(&(calls){&t, COPY, 0, 1, t.size / 2}, 0); /* so that the clocks rise */
    good = good && sweep(b, &t, COPY, cuda ? 2500 : 400, backend->copy_variants) &&
           sweep(b, &t, COPY, 100, backend->copy_variants);
    for (size_t i = 0; i < sizeof read_mb / sizeof read_mb[0] && good; i++)
        good = sweep(b, &t, READ, read_mb[i], backend->stream_variants);
    if (good && backend->empty) {
        const double us = median_us((calls){&t, EMPTY, 0, 64, 64});

        good = isfinite(us);
        if (good)
            emit(b, "empty kernel in a graph", "empty", us, -1, -1);
    }
    if (!good)
        fprintf(stderr, "ridge bench: ceilings: %s\n", ridge_error());
    if (t.memory)
        backend->release(b->device, t.memory);
    if (t.stream)
        backend->stream_free(b->device, t.stream);
    for (int fp8 = 0; fp8 < 2 && good && cuda; fp8++) {
        if (cublaslt_rate(b->device, fp8, 8192, &tflops, why, sizeof why))
            emit(b, fp8 ? "matrix n=8192 e4m3" : "matrix n=8192 bf16", "matmul", -1, -1, tflops);
        else
            fprintf(stderr, "ridge bench: ceilings: cuBLASLt not measured: %s\n", why);
    }
    return good;
}

/* --------------------------------------------------------------------------------------------------------- overhead */

enum { CALLS = 20000, BETWEEN_SYNCS = 200 };

typedef struct overhead {
    const ridge_device *device;
    unsigned char *memory;
    void *stream;
} overhead;

static ridge_status one_call(const overhead *o, int kind)
{
    ridge_call call;
    const char *name;

    if (kind == 0)
        return o->device->backend->empty(o->device, o->stream);
    call = ridge_swiglu_fwd(1, 8, RIDGE_BF16, o->memory, o->memory + 256, o->memory + 512);
    return kind == 1 ? ridge_run(o->device, &call, NULL, 0, o->stream) : ridge_pick(o->device, &call, 0, &name);
}

/* Nanoseconds of host time a call: the shortest of many runs between two syncs, so that the launch queue does not fill.
 */
static double host_ns(const overhead *o, int kind)
{
    double least = INFINITY;

    for (int i = 0; i < CALLS / BETWEEN_SYNCS; i++) {
        double begin = seconds(), spent;

        for (int k = 0; k < BETWEEN_SYNCS; k++)
            if (one_call(o, kind))
                return INFINITY;
        spent = (seconds() - begin) / BETWEEN_SYNCS * 1e9;
        least = spent < least ? spent : least;
        o->device->backend->sync(o->device, o->stream);
    }
    return least;
}

bool bench_overhead(bench *b)
{
    const ridge_backend *backend = b->device->backend;
    overhead o = {b->device, NULL, NULL};
    double empty = 0, run, pick;
    bool good = backend->alloc(b->device, 4096, (void **)&o.memory) == RIDGE_OK &&
                backend->stream_new(b->device, &o.stream) == RIDGE_OK;

    if (!good) {
        fprintf(stderr, "ridge bench: %s\n", ridge_error());
        return false;
    }
    if (backend->empty)
        empty = host_ns(&o, 0);
    run = host_ns(&o, 1);
    pick = host_ns(&o, 2);
    emit(b, "host us: builder and pick", "overhead", pick * 1e-3, -1, -1);
    emit(b, "host us: builder and run", "overhead", run * 1e-3, -1, -1);
    if (backend->empty)
        emit(b, "host us: empty launch", "overhead", empty * 1e-3, -1, -1);
    backend->release(b->device, o.memory);
    backend->stream_free(b->device, o.stream);
    return isfinite(run) && isfinite(pick) && isfinite(empty);
}
