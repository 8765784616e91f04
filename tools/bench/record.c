/* record.c: writes and reads records. */
#include "record.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/file.h"
#include "tools/cli.h"

static const char record_header[] =
    "run,date,commit,device,driver,suite,op,problem,provider,kernel,us,us_p20,us_p80,tflops,gbps,"
    "floor_us,err,peak_bytes";

enum { TEXTS = 10, NUMBERS = 8 };

static void text_columns(record *r, char *text[TEXTS], size_t size[TEXTS])
{
    char *const at[TEXTS] = {r->run,   r->date, r->commit,  r->device,   r->driver,
                             r->suite, r->op,   r->problem, r->provider, r->kernel};
    const size_t sizes[TEXTS] = {sizeof r->run,      sizeof r->date,  sizeof r->commit, sizeof r->device,
                                 sizeof r->driver,   sizeof r->suite, sizeof r->op,     sizeof r->problem,
                                 sizeof r->provider, sizeof r->kernel};

    memcpy(text, at, sizeof at);
    memcpy(size, sizes, sizeof sizes);
}

void record_begin(const record_sink *sink, record *r)
{
    time_t now = time(NULL);
    struct tm utc;

    memset(r, 0, sizeof *r);
    strftime(r->date, sizeof r->date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    snprintf(r->run, sizeof r->run, "%s", sink->run);
    snprintf(r->commit, sizeof r->commit, "%s", RIDGE_COMMIT);
    snprintf(r->device, sizeof r->device, "%s", sink->device->name);
    snprintf(r->driver, sizeof r->driver, "%s", sink->device->driver);
    r->us = r->us_p20 = r->us_p80 = r->tflops = r->gbps = r->floor_us = r->err = r->peak_bytes = -1;
}

static void write_line(FILE *to, const record *r)
{
    record copy = *r;
    const double number[NUMBERS] = {r->us,   r->us_p20,   r->us_p80, r->tflops,
                                    r->gbps, r->floor_us, r->err,    r->peak_bytes};
    char *text[TEXTS];
    size_t size[TEXTS];

    text_columns(&copy, text, size);
    for (int i = 0; i < TEXTS; i++) {
        for (char *c = text[i]; *c; c++) /* no text may hold a separator of the CSV */
            if (*c == ',' || *c == '\n' || *c == '"')
                *c = ' ';
        fprintf(to, "%s%s", i ? "," : "", text[i]);
    }
    for (int i = 0; i < NUMBERS; i++)
        if (number[i] < 0)
            fputc(',', to);
        else
            fprintf(to, ",%.6g", number[i]);
    fputc('\n', to);
}

/* 0: no file, an empty one, or no regular file; 1: it begins with the header; -1: with something else. */
static int header_in(const char *file)
{
    char first[sizeof record_header] = "";
    const char *why;
    struct stat is;
    FILE *from;

    if (stat(file, &is) != 0 || !S_ISREG(is.st_mode) || is.st_size == 0)
        return 0;
    from = ridge_open_regular(file, &why);
    if (from && !fgets(first, sizeof first, from))
        first[0] = 0;
    if (from)
        fclose(from);
    return strcmp(first, record_header) == 0 ? 1 : -1;
}

/* The last line lacks its end: a full disk or a signal cut it. */
static bool is_cut(const char *file)
{
    const char *why;
    FILE *from = ridge_open_regular(file, &why);
    const bool cut = from && fseek(from, -1, SEEK_END) == 0 && getc(from) != '\n';

    if (from)
        fclose(from);
    return cut;
}

/* NULL with the reason on stderr. */
static FILE *open_csv(const char *file)
{
    const int header = header_in(file);
    const bool cut = header == 1 && is_cut(file);
    FILE *to;

    if (header < 0) {
        fprintf(stderr, "ridge: %s is there and is no record: nothing is added to it\n", file);
        return NULL;
    }
    to = fopen(file, "a");
    if (!to)
        fprintf(stderr, "ridge: cannot write %s: %s\n", file, strerror(errno));
    else if (!header)
        fprintf(to, "%s\n", record_header);
    else if (cut)
        fputc('\n', to); /* the cut line stays lost, but the next one does not join it */
    return to;
}

bool record_open(record_sink *sink, const ridge_device *device, const char *file, bool json)
{
    time_t now = time(NULL);
    struct tm utc;

    *sink = (record_sink){.device = device, .file = file, .json = json ? json_array() : NULL};
    strftime(sink->run, sizeof sink->run, "%Y%m%dT%H%M%S", gmtime_r(&now, &utc));
    snprintf(sink->run + strlen(sink->run), sizeof sink->run - strlen(sink->run), "-%d", (int)getpid());
    sink->csv = file ? open_csv(file) : NULL;
    return !file || sink->csv;
}

bool record_is_noisy(const record *r)
{
    return r->us_p20 > 0 && r->us_p80 > 1.5 * r->us_p20;
}

void record_emit(record_sink *sink, const record *r)
{
    if (sink->csv) {
        write_line(sink->csv, r);
        fflush(sink->csv);
    }
    if (sink->json)
        json_array_append_new(sink->json, json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:b}",
                                                    "suite", r->suite, "op", r->op, "problem", r->problem, "provider",
                                                    r->provider, "kernel", r->kernel, "us", r->us, "us_p20", r->us_p20,
                                                    "us_p80", r->us_p80, "tflops", r->tflops, "gbps", r->gbps,
                                                    "floor_us", r->floor_us, "noisy", record_is_noisy(r)));
}

bool record_close(record_sink *sink)
{
    const bool printed = !sink->json || print_json(sink->json);
    bool written = true;

    if (sink->csv) {
        written = fflush(sink->csv) == 0 && !ferror(sink->csv);
        written = fclose(sink->csv) == 0 && written;
    }
    if (!written)
        fprintf(stderr, "ridge: cannot write %s: %s\n", sink->file, strerror(errno));
    return printed && written;
}

/* Records from before 0.2 call the field weights_const settled. */
static void rename_settled(char *problem, size_t size)
{
    char *at = strstr(problem, "settled=1"), rest[256];

    if (at && (at == problem || at[-1] == ' ')) {
        snprintf(rest, sizeof rest, "%s", at + strlen("settled=1"));
        snprintf(at, size - (size_t)(at - problem), "weights_const=1%s", rest);
    }
}

/* Parses one line into r; returns NULL or what is wrong with it. */
static const char *read_line(char *line, record *r)
{
    double *const number[NUMBERS] = {&r->us,   &r->us_p20,   &r->us_p80, &r->tflops,
                                     &r->gbps, &r->floor_us, &r->err,    &r->peak_bytes};
    char *text[TEXTS], *at = line, *end;
    size_t size[TEXTS];

    text_columns(r, text, size);
    for (int i = 0; i < TEXTS + NUMBERS; i++) {
        char *column = strsep(&at, ",");

        if (!column)
            return "too few columns";
        if (i < TEXTS) {
            snprintf(text[i], size[i], "%s", column);
            continue;
        }
        *number[i - TEXTS] = *column ? strtod(column, &end) : -1;
        if (*column && (*end || isinf(*number[i - TEXTS])))
            return "a figure is not a number";
        if (isnan(*number[i - TEXTS])) /* some programs write NaN for what they have not measured */
            *number[i - TEXTS] = -1;
    }
    rename_settled(r->problem, sizeof r->problem);
    return at ? "too many columns" : NULL;
}

bool record_read(const char *file, record **at, int *count)
{
    char line[4096];
    const char *wrong = NULL;
    FILE *from = ridge_open_regular(file, &wrong);
    int number = 0;

    if (!from) {
        line_print(stderr, "ridge: cannot read '%s': %s", file, wrong);
        return false;
    }
    wrong = NULL;
    while (!wrong && fgets(line, sizeof line, from)) {
        const bool whole = strlen(line) + 1 < sizeof line || strchr(line, '\n');
        record *grown;

        line[strcspn(line, "\r\n")] = 0;
        if (++number == 1) {
            wrong = strcmp(line, record_header) ? "not the header of a record" : NULL;
            continue;
        }
        if (!whole) {
            wrong = "the line is too long";
            continue;
        }
        grown = realloc(*at, (size_t)(*count + 1) * sizeof **at);
        if (!grown) {
            wrong = "out of memory";
            continue;
        }
        *at = grown;
        memset(&(*at)[*count], 0, sizeof **at);
        wrong = read_line(line, &(*at)[*count]);
        *count += !wrong;
    }
    if (ferror(from))
        wrong = strerror(errno);
    else if (number == 0)
        wrong = "it is empty";
    if (wrong && number)
        line_print(stderr, "%s:%d: %s", file, number, wrong);
    else if (wrong)
        line_print(stderr, "ridge: cannot read '%s': %s", file, wrong);
    fclose(from);
    return !wrong;
}

const record *record_of_ridge(const record *at, int count, const record *r, bool any)
{
    const record *best = NULL;

    for (int i = 0; i < count; i++)
        if (strcmp(at[i].provider, "ridge") == 0 && at[i].us > 0 && strcmp(at[i].op, r->op) == 0 &&
            strcmp(at[i].problem, r->problem) == 0 && (any || strcmp(at[i].run, r->run) == 0) &&
            (!best || at[i].us < best->us))
            best = &at[i];
    return best;
}
