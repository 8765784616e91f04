/* cli.c: the device of a verb, JSON on standard output, name patterns and progress. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

ridge_device *device_open(const char *spec)
{
    ridge_device *device;

    if (ridge_open(spec, &device) == RIDGE_OK)
        return device;
    fprintf(stderr, "ridge: %s\n", ridge_error());
    return NULL;
}

/* Jansson's functions pass NULL on: a part would be missing from the output unnoticed. */
static void *json_memory(size_t size)
{
    void *memory = malloc(size);

    if (memory || !size)
        return memory;
    fprintf(stderr, "ridge: out of memory\n");
    exit(1);
}

void json_start(void)
{
    json_set_alloc_funcs(json_memory, free);
}

bool print_json(json_t *json)
{
    const bool good = json_dumpf(json, stdout, JSON_INDENT(1)) == 0;

    putchar('\n');
    json_decref(json);
    return good;
}

bool name_matches(const char *pattern, const char *name)
{
    if (!pattern)
        return true;
    if (*pattern == '*')
        return name_matches(pattern + 1, name) || (*name && name_matches(pattern, name + 1));
    if (!*pattern || !*name)
        return *pattern == *name;
    return (*pattern == '?' || *pattern == *name) && name_matches(pattern + 1, name + 1);
}

double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_start(progress *p, int total, bool quiet)
{
    p->terminal = isatty(STDERR_FILENO);
    p->quiet = quiet;
    p->start = seconds();
    p->shown = 0;
    p->done = 0;
    p->total = total;
}

void progress_step(progress *p, const char *what)
{
    double spent = seconds() - p->start;
    int tenth = p->total / 10 ? p->total / 10 : 1;

    p->done++;
    if (p->quiet || (!p->terminal && p->done % tenth && p->done != p->total))
        return;
    fprintf(stderr, "%s%s %d/%d, %.0f s left%s", p->terminal ? "\r" : "", what, p->done, p->total,
            spent / p->done * (p->total - p->done), p->terminal ? "   " : "\n");
}

void progress_bytes(progress *p, const char *what, double done, double total)
{
    double now = seconds(), spent = now - p->start;

    if (p->quiet || now - p->shown < (p->terminal ? 0.1 : 5) || spent < (p->terminal ? 0.3 : 5) || !(done > 0))
        return;
    p->shown = now;
    fprintf(stderr, "%s%-40.40s %3.0f %%, %.2f GB/s, %.0f s left%s", p->terminal ? "\r" : "", what, 100 * done / total,
            done / spent * 1e-9, spent / done * (total - done), p->terminal ? "   " : "\n");
}

void progress_end(progress *p)
{
    if (p->terminal && !p->quiet)
        fprintf(stderr, "\r%78s\r", "");
}
