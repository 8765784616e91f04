/* cli.c: the device of a verb, JSON on standard output, name patterns and progress. */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"

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

/* Jansson leaves DEL, the one control character of ASCII that is a byte of JSON, as it is. */
static int print_part(const char *text, size_t length, void *to)
{
    for (size_t i = 0, run; i < length; i += run) {
        const char *del = memchr(text + i, 0x7f, length - i);

        run = del ? (size_t)(del - text) - i : length - i;
        fwrite(text + i, 1, run, to);
        if (del)
            fputs("\\u007f", to);
        run += del != NULL;
    }
    return ferror((FILE *)to) ? -1 : 0;
}

bool print_json(json_t *json)
{
    const bool good = json_dump_callback(json, print_part, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII) == 0;

    putchar('\n');
    json_decref(json);
    return good;
}

void text_print(FILE *to, const char *text, size_t length)
{
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = io_printable(text + i, length - i);
        if (bytes)
            fwrite(text + i, 1, bytes, to);
        else if (text[i] == '\n')
            fputs("\\n", to);
        else
            fprintf(to, "\\x%02x", (unsigned char)text[i]);
        bytes += !bytes;
    }
}

void line_print(FILE *to, const char *format, ...)
{
    char part[1024], *whole = NULL;
    const char *text;
    va_list list;

    va_start(list, format);
    text = vasprintf(&whole, format, list) < 0 ? NULL : whole;
    va_end(list);
    if (!text) { /* no memory */
        va_start(list, format);
        vsnprintf(part, sizeof part, format, list);
        va_end(list);
        text = part;
    }
    text_print(to, text, strlen(text));
    putc('\n', to);
    if (text == whole)
        free(whole);
}

/* Goes back to the last * only, so that no name and pattern take more than the product of their lengths. */
bool name_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *from = name;

    while (pattern && *name) {
        if (*pattern == '*') {
            star = pattern++;
            from = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    while (pattern && *pattern == '*')
        pattern++;
    return !pattern || !*pattern;
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

/* Columns that a line may have: one that fills the terminal would begin another. */
static int columns(void)
{
    struct winsize size;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && size.ws_col < 80 ? size.ws_col - 1 : 79;
}

/* Replaces the line on a terminal, else adds one. */
static void show(const progress *p, const char *text)
{
    const int width = columns(), length = (int)strlen(text);

    if (!p->terminal) {
        line_print(stderr, "%s", text);
        return;
    }
    putc('\r', stderr);
    text_print(stderr, text, (size_t)(length < width ? length : width));
    fprintf(stderr, "%*s", length < width ? width - length : 0, "");
}

void progress_step(progress *p, const char *what)
{
    double spent = seconds() - p->start;
    int tenth = p->total / 10 ? p->total / 10 : 1;
    char text[256];

    p->done++;
    if (p->quiet || (!p->terminal && p->done % tenth && p->done != p->total))
        return;
    snprintf(text, sizeof text, "%.200s %d/%d, %.0f s left", what, p->done, p->total,
             spent / p->done * (p->total - p->done));
    show(p, text);
}

void progress_bytes(progress *p, const char *what, double done, double total)
{
    double now = seconds(), spent = now - p->start;
    char text[256];

    if (p->quiet || now - p->shown < (p->terminal ? 0.1 : 5) || spent < (p->terminal ? 0.3 : 5) || !(done > 0))
        return;
    p->shown = now;
    snprintf(text, sizeof text, "%3.0f %%, %.2f GB/s, %.0f s left  %.40s", 100 * done / total, done / spent * 1e-9,
             spent / done * (total - done), what);
    show(p, text);
}

void progress_end(progress *p)
{
    if (p->terminal && !p->quiet)
        fprintf(stderr, "\r%*s\r", columns(), "");
}
