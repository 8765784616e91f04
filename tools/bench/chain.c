/* chain.c: `ridge bench --chain --suite NAME`: times the problems of a suite as one CUDA graph, in the order of the
 * suite, as a layer of a model runs them, so that launch gaps count. Problems with the same number of tokens (or rows)
 * form one chain. Every problem has its own weights, so that a replay does not find them in the cache if the chain is
 * larger.
 *
 * The gap between kernels is the time of the chain minus the times of its calls, divided by the number of calls. Each
 * call is timed in a graph that repeats it as often as the chain has calls, so that both include the begin and end of a
 * graph equally often. The gap is what a kernel costs more behind another kernel than behind itself; kernels overlap,
 * so it may be negative. No clock is read inside the graph, since that would separate the kernels. All of these replays
 * begin with a cold cache. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check/family.h"
#include "check/measure.h"

enum { ROUNDS = 15, FEW_ROUNDS = 5, LEAST_ROUNDS = 3 };

static const double long_round = 30e3, longer_round = 100e3; /* us; beyond these fewer rounds */

static bool grow(chain *c)
{
    const int capacity = c->capacity ? 2 * c->capacity : 32;
    image *link = realloc(c->link, (size_t)capacity * sizeof *link);
    unsigned char **memory;

    if (!link)
        return false;
    c->link = link;
    memory = realloc(c->memory, (size_t)capacity * sizeof *memory);
    if (!memory)
        return false;
    c->memory = memory;
    c->capacity = capacity;
    return true;
}

bool chain_add(chain *c, image *im)
{
    const ridge_backend *b = c->device->backend;
    ridge_call call = image_call(im, im->host);
    size_t need = 0;
    bool good = c->links < c->capacity || grow(c);

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

/* What a graph holds, `times` times: all links; or, with a variant, one read of as many bytes; or, with copies, one
 * link, on one copy of its operands after another. */
typedef struct replay {
    const chain *c;
    uint32_t flags;
    int variant, times;
    bool cold; /* each replay begins with no operand in the cache */
    int link, copies;
    size_t pitch;
    unsigned char *copy;
} replay;

static ridge_status run_link(const replay *r, int link, unsigned char *memory)
{
    const chain *c = r->c;
    ridge_call call = image_call(&c->link[link], memory);

    call.flags |= r->flags;
    return check_run(c->device, &call, c->workspace, c->workspace_bytes, c->stream);
}

static ridge_status run_links(const replay *r)
{
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < r->c->links && !status; i++)
        status = run_link(r, i, r->c->memory[i]);
    return status;
}

static ridge_status read_all(const chain *c, int variant)
{
    return c->device->backend->stream_read(c->device, variant, c->read, (size_t)c->bytes / 16 * 16, c->stream);
}

static ridge_status run(const void *state)
{
    const replay *r = state;
    ridge_status status = RIDGE_OK;

    for (int i = 0; i < r->times && !status; i++)
        status = r->variant >= 0 ? read_all(r->c, r->variant)
                 : r->copies     ? run_link(r, r->link, r->copy + (size_t)(i % r->copies) * r->pitch)
                                 : run_links(r);
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
        status = what->cold ? read_all(c, 0) : RIDGE_OK;
        if (!status)
            status = measure_once(c->device, c->stream, graph, w, &one);
        if (r >= 0 && !status)
            round[r] = one / what->times;
        if (!status && one > long_round && rounds == ROUNDS) { /* warm enough */
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

    record_begin(&b->sink, &r);
    snprintf(r.suite, sizeof r.suite, "%s", suite);
    snprintf(r.op, sizeof r.op, "chain");
    snprintf(r.problem, sizeof r.problem, "%s kernels=%d mb=%.1f%s", what, c->links, c->bytes * 1e-6,
             b->o->weights_const ? " weights_const=1" : "");
    snprintf(r.provider, sizeof r.provider, "%s", provider);
    snprintf(r.kernel, sizeof r.kernel, "graph");
    r.us = us[0];
    r.us_p20 = us[1];
    r.us_p80 = us[2];
    r.gbps = c->bytes / us[0] * 1e-3;
    r.tflops = c->products / us[0] * 1e-6;
    r.floor_us = floor_us;
    record_emit(&b->sink, &r);
}

/* Large products: reports their FLOP over the time of the chain. */
static bool report_products(bench *b, chain *c, const char *suite, const char *what)
{
    const ridge_backend *backend = b->device->backend;
    double us[3];

    if (backend->stream_new(b->device, &c->stream) ||
        (c->workspace_bytes && backend->alloc(b->device, c->workspace_bytes, &c->workspace)) ||
        !measure(&(replay){.c = c, .variant = -1, .times = 1}, us))
        return false;
    emit(b, c, suite, what, "ridge", us, b->o->matrix_rate > 0 ? c->products / b->o->matrix_rate * 1e-6 : -1);
    if (!b->sink.json)
        printf("%-8s %-32s %d calls %10.2f us %8.1f TFLOP/s\n", suite, what, c->links, us[0],
               c->products / us[0] * 1e-6);
    fflush(stdout);
    return true;
}

static uint32_t flags_of(const bench *b)
{
    return b->o->weights_const ? RIDGE_WEIGHTS_CONST : 0;
}

static int layers_of(const bench *b)
{
    return b->o->chain ? (int)b->o->chain : 1;
}

bool chain_time(bench *b, chain *c, const char *suite, int tokens, double us[3], double *floor_us)
{
    const ridge_backend *backend = b->device->backend;
    double best[3] = {-1, -1, -1}, one[3]; /* not measured yet */
    char what[32];

    snprintf(what, sizeof what, "tokens=%d", tokens);

    if (backend->stream_new(b->device, &c->stream) ||
        (c->workspace_bytes && backend->alloc(b->device, c->workspace_bytes, &c->workspace)) ||
        backend->alloc(b->device, (size_t)c->bytes + 16, (void **)&c->read))
        return false;
    for (int v = 0; v < backend->stream_variants; v++) {
        if (!measure(&(replay){.c = c, .variant = v, .times = 4}, one))
            return false;
        if (best[0] < 0 || one[0] < best[0])
            memcpy(best, one, sizeof one);
    }
    if (!measure(&(replay){.c = c, .flags = flags_of(b), .variant = -1, .times = layers_of(b)}, us))
        return false;
    if (best[0] >= 0)
        emit(b, c, suite, what, "read", best, best[0]);
    emit(b, c, suite, what, "ridge", us, best[0]);
    *floor_us = best[0];
    return true;
}

/* Adds up the times of the links, each in a graph that repeats it as often as the chain's graph has calls. A copy of
 * the operands is used again only after four times the cache was read. The chain is timed again beside them. */
static bool time_alone(bench *b, const chain *c, double us[3], double chain_us[3])
{
    const ridge_backend *backend = b->device->backend;
    bool good =
        measure(&(replay){.c = c, .flags = flags_of(b), .variant = -1, .times = layers_of(b), .cold = true}, chain_us);

    us[0] = us[1] = us[2] = 0;
    for (int i = 0; i < c->links && good; i++) {
        replay alone = {
            .c = c, .flags = flags_of(b), .variant = -1, .times = layers_of(b) * c->links, .cold = true, .link = i};
        double one[3];

        alone.pitch = (c->link[i].bytes + 255) / 256 * 256;
        alone.copies = (int)(4 * (size_t)b->device->l2_bytes / alone.pitch) + 2;
        alone.copies = alone.copies < alone.times ? alone.copies : alone.times;
        good = backend->alloc(b->device, (size_t)alone.copies * alone.pitch, (void **)&alone.copy) == RIDGE_OK;
        for (int k = 0; k < alone.copies && good; k++)
            good = backend->copy(b->device, alone.copy + (size_t)k * alone.pitch, c->memory[i], c->link[i].bytes,
                                 c->stream) == RIDGE_OK;
        good = good && measure(&alone, one);
        for (int k = 0; k < 3 && good; k++)
            us[k] += one[k];
        if (alone.copy)
            backend->release(b->device, alone.copy);
    }
    return good;
}

/* Reports the gap (see above), unless the chain fits into the cache: then it finds its operands there, and a repeated
 * call with rotated copies does not. */
static bool report_gap(bench *b, const chain *c, const char *suite, int tokens)
{
    double alone[3], us[3];
    char what[32];

    if (c->bytes <= (double)b->device->l2_bytes)
        return true;
    if (!time_alone(b, c, alone, us))
        return false;
    snprintf(what, sizeof what, "tokens=%d", tokens);
    emit(b, c, suite, what, "ridge:cold", us, -1);
    emit(b, c, suite, what, "ridge:alone", alone, -1);
    if (!b->sink.json)
        printf("%s tokens=%d: gap between kernels %.2f us: %.2f us each from a cold cache, %.2f us the calls, each in "
               "a graph of itself\n",
               suite, tokens, (us[0] - alone[0]) / c->links, us[0], alone[0]);
    return true;
}

/* Reports the time of the chain beside the read. */
static bool report(bench *b, chain *c, const char *suite, int tokens)
{
    double us[3], floor_us;

    if (!chain_time(b, c, suite, tokens, us, &floor_us))
        return false;
    if (!b->sink.json)
        printf(
            "%s tokens=%d: %d calls, %.1f MB, %d times in a graph: %.2f us each, %.1f GB/s, %.1f %% of one read of as "
            "many bytes; %.2f us a call beyond it\n",
            suite, tokens, c->links, c->bytes * 1e-6, layers_of(b), us[0], c->bytes / us[0] * 1e-3,
            100 * floor_us / us[0], (us[0] - floor_us) / c->links);
    return report_gap(b, c, suite, tokens);
}

/* Consecutive lines with the same key form a chain: their group, or the number after "tokens=" or "rows=". */
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
