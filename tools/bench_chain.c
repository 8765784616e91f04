/* bench_chain.c: `ridge bench --chain --suite NAME`: the problems of a suite as one CUDA graph, in the order of the
 * suite, as a layer of a model runs them: what a kernel costs beside the stream of its bytes, launch gaps included.
 * Problems with the same number of tokens (or rows) form one chain; every problem has weights of its own, so that no
 * replay finds them in cache if the chain is larger than that. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { ROUNDS = 15 };

static bool grow(chain *c)
{
    const int room = c->room ? 2 * c->room : 32;
    image *link = realloc(c->link, (size_t)room * sizeof *link);
    unsigned char **memory;

    if (!link)
        return false;
    c->link = link;
    memory = realloc(c->memory, (size_t)room * sizeof *memory);
    if (!memory)
        return false;
    c->memory = memory;
    c->room = room;
    return true;
}

bool chain_add(chain *c, image *im)
{
    const ridge_backend *b = c->device->backend;
    ridge_call call = image_call(im, im->host);
    size_t need = 0;
    bool good = c->links < c->room || grow(c);

    if (!good) {
        image_free(im);
        return false;
    }
    c->memory[c->links] = NULL;
    good = ridge_workspace_bytes(c->device, &call, &need) == RIDGE_OK &&
           b->alloc(c->device, im->bytes, (void **)&c->memory[c->links]) == RIDGE_OK &&
           b->upload(c->device, c->memory[c->links], im->host, im->bytes) == RIDGE_OK;
    c->workspace_bytes = need > c->workspace_bytes ? need : c->workspace_bytes;
    c->bytes += ridge_problem_bytes(&call);
    image_free(im);
    c->link[c->links++] = *im;
    return good;
}

void chain_drop(chain *c)
{
    const ridge_backend *b = c->device->backend;

    for (int i = 0; i < c->links; i++)
        if (c->memory[i])
            b->release(c->device, c->memory[i]);
    if (c->workspace)
        b->release(c->device, c->workspace);
    if (c->read)
        b->release(c->device, c->read);
    if (c->stream)
        b->stream_free(c->device, c->stream);
    free(c->link);
    free(c->memory);
}

/* All links once; or, with a variant, one read of as many bytes. */
static ridge_status run(const chain *c, uint32_t flags, int variant)
{
    ridge_status status = RIDGE_OK;

    if (variant >= 0)
        return c->device->backend->stream_read(c->device, variant, c->read, (size_t)c->bytes / 16 * 16, c->stream);
    for (int i = 0; i < c->links && !status; i++) {
        ridge_call call = image_call(&c->link[i], c->memory[i]);

        call.flags |= flags;
        status = ridge_run(c->device, &call, c->workspace, c->workspace_bytes, c->stream);
    }
    return status;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Median, 20th and 80th percentile of a graph that holds the chain (or the read) `times` times, per chain. */
static bool measure(const chain *c, uint32_t flags, int variant, int times, double us[3])
{
    const ridge_backend *b = c->device->backend;
    double round[ROUNDS];
    void *graph = NULL;
    ridge_status status = b->graph_begin(c->device, c->stream);

    for (int i = 0; i < times && !status; i++)
        status = run(c, flags, variant);
    if (!status)
        status = b->graph_end(c->device, c->stream, &graph);
    for (int r = -3; r < ROUNDS && !status; r++) {
        status = b->mark(c->device, 0, c->stream);
        if (!status)
            status = b->graph_launch(c->device, graph, c->stream);
        if (!status)
            status = b->mark(c->device, 1, c->stream);
        if (!status)
            status = b->sync(c->device, c->stream);
        if (!status)
            status = b->elapsed(c->device, 0, 1, &us[0]);
        if (r >= 0)
            round[r] = us[0] / times;
    }
    if (graph)
        b->graph_free(c->device, graph);
    qsort(round, ROUNDS, sizeof round[0], ascending);
    us[0] = round[ROUNDS / 2];
    us[1] = round[ROUNDS / 5];
    us[2] = round[ROUNDS - 1 - ROUNDS / 5];
    return status == RIDGE_OK;
}

static void emit(bench *b, const chain *c, const char *suite, int tokens, const char *provider, const double us[3],
                 double floor_us)
{
    record r;

    record_begin(&r, b->device);
    memcpy(r.run, b->run, sizeof r.run);
    snprintf(r.suite, sizeof r.suite, "%s", suite);
    snprintf(r.op, sizeof r.op, "chain");
    snprintf(r.problem, sizeof r.problem, "tokens=%d kernels=%d mb=%.1f%s", tokens, c->links, c->bytes * 1e-6,
             b->o->settled ? " settled=1" : "");
    snprintf(r.provider, sizeof r.provider, "%s", provider);
    snprintf(r.kernel, sizeof r.kernel, "graph");
    r.us = us[0];
    r.us_p20 = us[1];
    r.us_p80 = us[2];
    r.gbps = c->bytes / us[0] * 1e-3;
    r.floor_us = floor_us;
    bench_emit(b, &r);
}

bool chain_time(bench *b, chain *c, const char *suite, int tokens, double us[3], double *floor_us)
{
    const ridge_backend *backend = b->device->backend;
    const uint32_t flags = b->o->settled ? RIDGE_WEIGHTS_SETTLED : 0;
    double best[3] = {1e30, 0, 0}, one[3];

    if (backend->stream_new(b->device, &c->stream) ||
        (c->workspace_bytes && backend->alloc(b->device, c->workspace_bytes, &c->workspace)) ||
        backend->alloc(b->device, (size_t)c->bytes + 16, (void **)&c->read))
        return false;
    for (int v = 0; v < backend->stream_variants; v++) {
        if (!measure(c, 0, v, 4, one))
            return false;
        if (one[0] < best[0])
            memcpy(best, one, sizeof one);
    }
    if (!measure(c, flags, -1, b->o->layers > 0 ? b->o->layers : 1, us))
        return false;
    emit(b, c, suite, tokens, "read", best, best[0]);
    emit(b, c, suite, tokens, "ridge", us, best[0]);
    *floor_us = best[0];
    return true;
}

/* The layer, and layers enough for a whole token. */
static bool report(bench *b, chain *c, const char *suite, int tokens)
{
    double us[3], floor_us;

    if (!chain_time(b, c, suite, tokens, us, &floor_us))
        return false;
    if (!b->json)
        printf(
            "%s tokens=%d: %d calls, %.1f MB, %d times in a graph: %.2f us each, %.1f GB/s, %.1f %% of one read of as "
            "many bytes; %.2f us a call beyond it\n",
            suite, tokens, c->links, c->bytes * 1e-6, b->o->layers > 0 ? b->o->layers : 1, us[0],
            c->bytes / us[0] * 1e-3, 100 * floor_us / us[0], (us[0] - floor_us) / c->links);
    return true;
}

/* The number after "tokens=" or "rows=", which is what makes a chain of consecutive lines. */
static int tokens_of(const char *text)
{
    const char *at = strstr(text, "tokens=");

    at = at ? at + 7 : strstr(text, " rows=") ? strstr(text, " rows=") + 6 : "0";
    return atoi(at);
}

static bool run_chain(bench *b, const char *suite, int *line)
{
    chain c = {.device = b->device};
    const int tokens = tokens_of(suite_at(*line).text);
    bool good = true;
    test_case t;
    image im;

    for (; suite_at(*line).suite && strcmp(suite_at(*line).suite, suite) == 0; ++*line) {
        if (tokens_of(suite_at(*line).text) != tokens)
            break;
        good = good && case_parse(suite_at(*line).text, &t) && image_build(&t, b->o->seed + (uint64_t)*line, &im) &&
               chain_add(&c, &im);
    }
    good = good && report(b, &c, suite, tokens);
    if (!good)
        fprintf(stderr, "ridge bench: chain %s tokens=%d: %s\n", suite, tokens, ridge_error());
    chain_drop(&c);
    return good;
}

bool bench_chain(bench *b)
{
    bool good = true;
    int ran = 0;

    if (!b->device->backend->graph_begin || !b->device->backend->stream_read) {
        fprintf(stderr, "ridge bench: --chain needs a device with graphs\n");
        return false;
    }
    for (int i = 0; suite_at(i).suite;) {
        if (!b->o->suite || strcmp(suite_at(i).suite, b->o->suite) != 0) {
            i++;
            continue;
        }
        good = run_chain(b, b->o->suite, &i) && good;
        ran++;
    }
    if (!ran)
        fprintf(stderr, "ridge bench: --chain needs --suite with the name of one suite\n");
    return good && ran;
}
