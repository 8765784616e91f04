/* cmd_tune.c: `ridge tune`: times every row of each problem and writes the tuning file that src/tune.c reads. A
 * challenger must beat the cost model's choice by more than 1.5 % and more than the noise; ties stay with that default,
 * so that near-ties do not flip from run to run. */
#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "timing.h"

typedef struct options {
    const char *suite, *device, *out;
    char text[1024];
    bool quiet;
} options;

static const struct argp_option option_table[] = {{"suite", 'S', "NAME", 0, "every problem of a suite", 0},
                                                  {"device", 'd', "SPEC", 0, "cpu, cuda:0, ... (default: auto)", 0},
                                                  {"output", 'o', "FILE", 0, "default: tuned.tsv", 0},
                                                  {"quiet", 'Q', NULL, 0, "no progress", 0},
                                                  {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;
    size_t used = strlen(o->text);

    switch (key) {
    case 'S':
        o->suite = arg;
        break;
    case 'd':
        o->device = arg;
        break;
    case 'o':
        o->out = arg;
        break;
    case 'Q':
        o->quiet = true;
        break;
    case ARGP_KEY_ARG:
        snprintf(o->text + used, sizeof o->text - used, "%s%s", used ? " " : "", arg);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* True if the row gives the reference's bits (or stays within the bound) on a few rows of the problem. */
static bool row_is_right(const ridge_device *device, const ridge_kernel *kernel, test_case c)
{
    const ridge_backend *b = device->backend;
    unsigned char *expected, *got;
    char text[400];
    void *memory = NULL, *stream = NULL, *workspace = NULL;
    const candidate row = {.kernel = kernel};
    ridge_call call;
    int64_t few;
    size_t bytes = 0;
    image im;
    bool good;

    few = ridge_op_table[c.call.op]->invariant_split;
    few = few && c.call.dim[0] > few ? few + 4 : 4; /* in the same range of dim[0] */
    c.call.dim[0] = c.call.dim[0] < few ? c.call.dim[0] : few;
    for (int i = 1; i < 3 && c.call.op == RIDGE_GEMM_FP8; i++) /* the reference is slow */
        c.call.dim[i] = c.call.dim[i] > 2048 ? 1024 + c.call.dim[i] % 1024 : c.call.dim[i];
    if (!image_build(&c, 5, &im))
        return false;
    expected = malloc(im.bytes);
    got = malloc(im.bytes);
    good = expected && got && image_reference(&im, expected) == RIDGE_OK &&
           b->alloc(device, im.bytes, &memory) == RIDGE_OK && b->stream_new(device, &stream) == RIDGE_OK &&
           b->upload(device, memory, im.host, im.bytes) == RIDGE_OK;
    call = image_call(&im, memory);
    bytes = timing_workspace(device, &call, &row, 1);
    good = good && (!bytes || b->alloc(device, bytes, &workspace) == RIDGE_OK);
    if (good) {
        call.kernel = kernel->name;
        good = ridge_run(device, &call, workspace, bytes, stream) == RIDGE_OK && b->sync(device, stream) == RIDGE_OK &&
               b->download(device, got, memory, im.bytes) == RIDGE_OK &&
               image_judge(&im, kernel, expected, got, text, sizeof text);
    }
    if (memory)
        b->release(device, memory);
    if (workspace)
        b->release(device, workspace);
    if (stream)
        b->stream_free(device, stream);
    free(expected);
    free(got);
    image_free(&im);
    return good;
}

/* What is picked without tuning files and pins. */
static const ridge_kernel *untuned(const ridge_device *device, const ridge_call *call, const ridge_problem *problem)
{
    ridge_device bare = *device;
    const ridge_kernel *kernel;
    const char *because;

    bare.tuned_count = 0;
    memset(bare.pin, 0, sizeof bare.pin);
    return ridge_choose(&bare, call, problem, SIZE_MAX, &kernel, &because) ? NULL : kernel;
}

/* The rows that can run, the cost model's choice first. Not those that it puts beyond twice that, nor fallbacks where
 * other rows run: a choice must not change a result's bits. */
static int candidates(const ridge_device *device, const test_case *c, const ridge_call *call, candidate *list)
{
    ridge_problem problem;
    const ridge_kernel *first;
    double least;
    int count = 0;

    if (ridge_validate(call, &problem) || !(first = untuned(device, call, &problem)))
        return 0;
    least = first->cost ? first->cost(device, first, &problem) : 0;
    if (row_is_right(device, first, *c))
        list[count++].kernel = first;
    else
        fprintf(stderr, "ridge tune: %s gives wrong results here and is left out\n", first->name);
    for (int i = device->first[problem.op]; i < device->first[problem.op + 1] && count < TIMING_CANDIDATES; i++) {
        const ridge_kernel *row = device->row[i];

        if (row == first || ridge_why_not(device, row, &problem) ||
            (row->contract & RIDGE_FALLBACK) > (first->contract & RIDGE_FALLBACK) ||
            (row->cost && row->cost(device, row, &problem) > 2 * least))
            continue;
        if (row_is_right(device, row, *c))
            list[count++].kernel = row;
        else
            fprintf(stderr, "ridge tune: %s gives wrong results here and is left out\n", row->name);
    }
    return count;
}

/* Writes one line if a challenger wins. Returns -1 on failure, else whether it did. */
static int tune_one(const ridge_device *device, const char *line, FILE *to)
{
    candidate list[TIMING_CANDIDATES] = {{0}};
    char text[320];
    test_case c;
    rotation r = {.device = NULL};
    ridge_call call;
    ridge_problem problem;
    image im;
    int count, best = 0;
    size_t most = 0;
    bool good;

    if (!case_parse(line, &c) || !image_build_to_time(&c, 1, &im))
        return -1;
    call = image_call(&im, im.host);
    count = candidates(device, &c, &call, list);
    if (count > 0 && ridge_validate(&call, &problem) == RIDGE_OK)
        for (int i = 0; i < count; i++) {
            const size_t bytes =
                list[i].kernel->workspace ? list[i].kernel->workspace(device, list[i].kernel, &problem) : 0;

            most = bytes > most ? bytes : most;
        }
    good = count > 0 && rotation_build(device, &im, most, &r);
    if (good) {
        timing_warm(&r, 0.1);
        good = timing_run(&r, list, count);
        rotation_free(&r);
    }
    for (int i = 1; i < count && good; i++)
        if (list[i].us < list[best].us)
            best = i;
    if (good && best) {
        double noise = 0.5 * (list[0].us_p80 - list[0].us_p20) / list[0].us;

        noise = noise > 0.015 ? noise : 0.015;
        best = list[best].us < list[0].us * (1 - noise) ? best : 0;
    }
    if (good && best && ridge_validate(&call, &problem) == RIDGE_OK) {
        ridge_problem_print(&call, &problem, text, sizeof text);
        fprintf(to, "%s\t%s\t%.3f\t%s\t%.3f\n", text, list[best].kernel->name, list[best].us, list[0].kernel->name,
                list[0].us);
    }
    image_free(&im);
    return good ? best > 0 : -1;
}

/* Suites name some problems twice: layers of models that are alike. */
static bool came_before(const char *suite, int index, const char *text)
{
    char now[320];

    snprintf(now, sizeof now, "%s", text);
    for (int i = 0; i < index; i++) {
        const suite_line s = suite_at(i);

        if (strcmp(s.suite, suite) == 0 && strcmp(s.text, now) == 0)
            return true;
    }
    return false;
}

static bool tune_all(const options *o, const ridge_device *device, FILE *to)
{
    progress p;
    int total = 0, done = 0, won = 0;

    for (int i = 0; suite_at(i).suite; i++)
        total += o->suite && strcmp(suite_at(i).suite, o->suite) == 0;
    total += o->text[0] != 0;
    if (!total) {
        fprintf(stderr, "ridge tune: there is no suite '%s'\n", o->suite ? o->suite : "");
        return false;
    }
    progress_start(&p, total, o->quiet);
    for (int i = 0; suite_at(i).suite || (o->text[0] && done < total); i++) {
        const suite_line s = suite_at(i);
        const char *line = s.suite ? s.text : o->text;
        int result;

        if (s.suite && !(o->suite && strcmp(s.suite, o->suite) == 0))
            continue;
        if (s.suite && came_before(s.suite, i, s.text)) {
            progress_step(&p, "tune");
            continue;
        }
        result = tune_one(device, s.suite ? suite_at(i).text : line, to);
        if (result < 0) {
            fprintf(stderr, "ridge tune: %s: %s\n", line, ridge_error());
            return false;
        }
        won += result;
        done++;
        progress_step(&p, "tune");
        if (!s.suite)
            break;
    }
    progress_end(&p);
    fprintf(to, "# %d problems, %d keep the default\n", done, done - won);
    printf("%d problems, %d keep the cost model's choice\n", done, done - won);
    return true;
}

int cmd_tune(int argc, char **argv)
{
    static const struct argp parser = {
        option_table, parse_option, "[OP name=value...]", "Times every row and writes a tuning file.", NULL,
        NULL,         NULL};
    options o = {.out = "tuned.tsv"};
    ridge_device *device;
    char temporary[1024], date[32];
    time_t now = time(NULL);
    struct tm utc;
    FILE *to;
    bool good;

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    if (!o.suite && !o.text[0]) {
        fprintf(stderr, "usage: ridge tune OP name=value... | --suite NAME [-o FILE]\n");
        return 2;
    }
    device = device_open(o.device);
    if (!device || !device->backend) {
        if (device)
            fprintf(stderr, "ridge tune: a model device runs nothing\n");
        ridge_close(device);
        return 1;
    }
    snprintf(temporary, sizeof temporary, "%s.%d", o.out, (int)getpid());
    to = fopen(temporary, "w");
    if (!to) {
        fprintf(stderr, "ridge tune: cannot write %s: %s\n", temporary, strerror(errno));
        ridge_close(device);
        return 1;
    }
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    fprintf(to, "# ridge %s, %s, %s, %s\n", ridge_version(), device->name, device->driver, date);
    fprintf(to, "# problem\tkernel\tus\tdefault kernel\tdefault us\n");
    good = tune_all(&o, device, to) && fflush(to) == 0 && fsync(fileno(to)) == 0;
    good = fclose(to) == 0 && good && rename(temporary, o.out) == 0;
    if (!good)
        unlink(temporary);
    ridge_close(device);
    return !good;
}
