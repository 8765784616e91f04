/* bench_chain.c: `ridge bench --chain --suite NAME`: the problems of a suite as one CUDA graph, in the order of the
 * suite, as a layer of a model runs them: what a kernel costs beside the stream of its bytes, launch gaps included.
 * Problems with the same number of tokens (or rows) form one chain; every problem has weights of its own, so that no
 * replay finds them in cache if the chain is larger than that. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "measure.h"

enum { ROUNDS = 15, FEW_ROUNDS = 5, LEAST_ROUNDS = 3 };

static const double long_round = 30e3, longer_round = 100e3; /* us; then fewer rounds */

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
           image_upload(im, c->device, c->memory[c->links], c->stream) && b->sync(c->device, c->stream) == RIDGE_OK;
    c->workspace_bytes = need > c->workspace_bytes ? need : c->workspace_bytes;
    c->bytes += ridge_problem_bytes(&call);
    if (call.op == RIDGE_GEMM_FP8)
        c->products += 2.0 * (double)call.dim[0] * (double)call.dim[1] * (double)call.dim[2];
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

/* What a graph holds: all links, or with a variant one read of as many bytes, so many times. */
typedef struct replay {
    const chain *c;
    uint32_t flags;
    int variant, times;
} replay;

static ridge_status run_links(const chain *c, uint32_t flags)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < c->links && !status; i++) {
        ridge_call call = image_call(&c->link[i], c->memory[i]);

        call.flags |= flags;
        status = ridge_run(c->device, &call, c->workspace, c->workspace_bytes, c->stream);
    }
    return status;
}

static ridge_status run(const void *state)
{
    const replay *r = state;
    const chain *c = r->c;
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < r->times && !status; i++)
        status = r->variant < 0 ? run_links(c, r->flags)
                                : c->device->backend->stream_read(c->device, r->variant, c->read,
                                                                  (size_t)c->bytes / 16 * 16, c->stream);
    return status;
}

/* Median, 20th and 80th percentile of one time, in microseconds. */
static bool measure(const replay *what, double us[3])
{
    const chain *c = what->c;
    const work w = {run, what};
    double round[ROUNDS], one;
    int rounds = ROUNDS;
    void *graph = NULL;
    ridge_status status = measure_capture(c->device, c->stream, w, &graph);

    for (int r = -3; r < rounds && !status; r++) {
        status = measure_once(c->device, c->stream, graph, w, &one);
        if (r >= 0)
            round[r] = one / what->times;
        if (one > long_round && rounds == ROUNDS) { /* warm enough */
            rounds = one > longer_round ? LEAST_ROUNDS : FEW_ROUNDS;
            r = -2;
        }
    }
    if (graph)
        c->device->backend->graph_free(c->device, graph);
    measure_order(round, status ? 0 : rounds, us);
    return status == RIDGE_OK;
}

/* floor_us: negative if there is none. */
static void emit(bench *b, const chain *c, const char *suite, const char *what, const char *provider,
                 const double us[3], double floor_us)
{
    record r;

    record_begin(&r, b->device);
    memcpy(r.run, b->run, sizeof r.run);
    snprintf(r.suite, sizeof r.suite, "%s", suite);
    snprintf(r.op, sizeof r.op, "chain");
    snprintf(r.problem, sizeof r.problem, "%s kernels=%d mb=%.1f%s", what, c->links, c->bytes * 1e-6,
             b->o->settled ? " settled=1" : "");
    snprintf(r.provider, sizeof r.provider, "%s", provider);
    snprintf(r.kernel, sizeof r.kernel, "graph");
    r.us = us[0];
    r.us_p20 = us[1];
    r.us_p80 = us[2];
    r.gbps = c->bytes / us[0] * 1e-3;
    r.tflops = c->products / us[0] * 1e-6;
    r.floor_us = floor_us;
    bench_emit(b, &r);
}

/* Large products: FLOP of the products over the time of all. */
static bool report_products(bench *b, chain *c, const char *suite, const char *what)
{
    const ridge_backend *backend = b->device->backend;
    double us[3];

    if (backend->stream_new(b->device, &c->stream) ||
        (c->workspace_bytes && backend->alloc(b->device, c->workspace_bytes, &c->workspace)) ||
        !measure(&(replay){c, 0, -1, 1}, us))
        return false;
    emit(b, c, suite, what, "ridge", us, b->o->matrix_rate > 0 ? c->products / b->o->matrix_rate * 1e-6 : -1);
    if (!b->json)
        printf("%-8s %-32s %d calls %10.2f us %8.1f TFLOP/s\n", suite, what, c->links, us[0],
               c->products / us[0] * 1e-6);
    fflush(stdout);
    return true;
}

bool chain_time(bench *b, chain *c, const char *suite, int tokens, double us[3], double *floor_us)
{
    const ridge_backend *backend = b->device->backend;
    const uint32_t flags = b->o->settled ? RIDGE_WEIGHTS_SETTLED : 0;
    double best[3] = {-1, -1, -1}, one[3]; /* none yet */
    char what[32];

    snprintf(what, sizeof what, "tokens=%d", tokens);

    if (backend->stream_new(b->device, &c->stream) ||
        (c->workspace_bytes && backend->alloc(b->device, c->workspace_bytes, &c->workspace)) ||
        backend->alloc(b->device, (size_t)c->bytes + 16, (void **)&c->read))
        return false;
    for (int v = 0; v < backend->stream_variants; v++) {
        if (!measure(&(replay){c, 0, v, 4}, one))
            return false;
        if (best[0] < 0 || one[0] < best[0])
            memcpy(best, one, sizeof one);
    }
    if (!measure(&(replay){c, flags, -1, b->o->layers > 0 ? b->o->layers : 1}, us))
        return false;
    if (best[0] >= 0)
        emit(b, c, suite, what, "read", best, best[0]);
    emit(b, c, suite, what, "ridge", us, best[0]);
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

/* What makes a chain of consecutive lines: their group, or the number after "tokens=" or "rows=". */
static int key_of(const suite_line *line)
{
    const char *at = strstr(line->text, "tokens=");

    if (line->group)
        return line->group;
    at = at ? at + 7 : strstr(line->text, " rows=") ? strstr(line->text, " rows=") + 6 : "0";
    return atoi(at);
}

static bool run_chain(bench *b, const char *suite, int *line)
{
    chain c = {.device = b->device};
    const suite_line first = suite_at(*line);
    const int key = key_of(&first);
    bool good = true;
    char what[96] = "";
    test_case t;
    image im;

    for (;; ++*line) {
        const suite_line next = suite_at(*line);

        if (!next.suite || strcmp(next.suite, suite) != 0 || key_of(&next) != key)
            break;
        if (first.group && strncmp(next.text, "gemm_fp8 ", 9) == 0 && !what[0])
            snprintf(what, sizeof what, "%s", next.text + 9);
        good = good && case_parse(next.text, &t) && image_build_to_time(&t, b->o->seed + (uint64_t)*line, &im) &&
               chain_add(&c, &im);
    }
    good = good && (first.group ? report_products(b, &c, suite, what) : report(b, &c, suite, key));
    if (!good)
        fprintf(stderr, "ridge bench: chain %s %s%d: %s\n", suite, first.group ? what : "tokens=", key, ridge_error());
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
