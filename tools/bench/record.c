/* record.c: CSV records, in and out. */
#include "record.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char record_header[] =
    "run,date,commit,device,driver,suite,op,problem,provider,kernel,us,us_p20,us_p80,tflops,gbps,"
    "floor_us,err,peak_bytes";

enum { TEXTS = 10, NUMBERS = 8 };

static void text_columns(record *r, char *text[TEXTS], size_t size[TEXTS])
{
    char *const at[TEXTS] = {r->run,   r->date, r->commit,  r->device,   r->driver,
                             r->suite, r->op,   r->problem, r->provider, r->kernel};
    const size_t room[TEXTS] = {sizeof r->run,      sizeof r->date,  sizeof r->commit, sizeof r->device,
                                sizeof r->driver,   sizeof r->suite, sizeof r->op,     sizeof r->problem,
                                sizeof r->provider, sizeof r->kernel};

    memcpy(text, at, sizeof at);
    memcpy(size, room, sizeof room);
}

void record_begin(record *r, const ridge_device *device)
{
    time_t now = time(NULL);
    struct tm utc;

    memset(r, 0, sizeof *r);
    gmtime_r(&now, &utc);
    strftime(r->date, sizeof r->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    strftime(r->run, sizeof r->run, "%Y%m%dT%H%M%S", &utc);
    snprintf(r->run + strlen(r->run), sizeof r->run - strlen(r->run), "-%d", (int)getpid());
    snprintf(r->commit, sizeof r->commit, "%s", RIDGE_COMMIT);
    snprintf(r->device, sizeof r->device, "%s", device->name);
    snprintf(r->driver, sizeof r->driver, "%s", device->driver);
    r->us = r->us_p20 = r->us_p80 = r->tflops = r->gbps = r->floor_us = r->err = r->peak_bytes = -1;
}

void record_write(FILE *to, const record *r)
{
    record copy = *r;
    const double number[NUMBERS] = {r->us,   r->us_p20,   r->us_p80, r->tflops,
                                    r->gbps, r->floor_us, r->err,    r->peak_bytes};
    char *text[TEXTS];
    size_t size[TEXTS];

    text_columns(&copy, text, size);
    for (int i = 0; i < TEXTS; i++) {
        for (char *c = text[i]; *c; c++) /* no column may hold what separates columns */
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

/* 0: none yet (or no file that could be looked into), 1: there, -1: something else is. */
static int header_in(const char *file)
{
    char first[sizeof record_header] = "";
    struct stat is;
    FILE *from;

    if (stat(file, &is) != 0 || !S_ISREG(is.st_mode) || is.st_size == 0)
        return 0;
    from = fopen(file, "r");
    if (from && !fgets(first, sizeof first, from))
        first[0] = 0;
    if (from)
        fclose(from);
    return strcmp(first, record_header) == 0 ? 1 : -1;
}

bool record_is(const char *file)
{
    return header_in(file) == 1;
}

/* Its last line was cut, by a full disk or a signal. */
static bool is_cut(const char *file)
{
    FILE *from = fopen(file, "r");
    const bool cut = from && fseek(from, -1, SEEK_END) == 0 && getc(from) != '\n';

    if (from)
        fclose(from);
    return cut;
}

FILE *record_open(const char *file)
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
        fputc('\n', to); /* that line stays lost, but not the next one with it */
    return to;
}

bool record_close(FILE *to, const char *file)
{
    bool good = fflush(to) == 0 && !ferror(to);

    good = fclose(to) == 0 && good;
    if (!good)
        fprintf(stderr, "ridge: cannot write %s: %s\n", file, strerror(errno));
    return good;
}

/* One line into r; returns NULL or what is wrong. */
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
        if (isnan(*number[i - TEXTS])) /* as some programs write what they have not measured */
            *number[i - TEXTS] = -1;
    }
    return at ? "too many columns" : NULL;
}

bool record_read(const char *file, record **at, int *count)
{
    FILE *from = fopen(file, "r");
    char line[4096];
    const char *wrong = NULL;
    int number = 0;

    if (!from) {
        fprintf(stderr, "ridge: cannot read '%s': %s\n", file, strerror(errno));
        return false;
    }
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
        fprintf(stderr, "%s:%d: %s\n", file, number, wrong);
    else if (wrong)
        fprintf(stderr, "ridge: cannot read '%s': %s\n", file, wrong);
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
