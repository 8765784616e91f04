/* args.c: numbers, words and files on the command line. */
#include "args.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

void args_parse(const struct argp *parser, int argc, char **argv, void *options)
{
    const error_t error = argp_parse(parser, argc, argv, 0, NULL, options);

    if (error) {
        fprintf(stderr, "%s: %s\n", argv[0], strerror(error));
        exit(1);
    }
}

uint64_t args_whole(const struct argp_state *state, const char *option, const char *arg, uint64_t low, uint64_t high)
{
    uint64_t value = low;

    if (!number_whole(arg, low, high, &value))
        argp_error(state, "%s takes a whole number from %" PRIu64 " to %" PRIu64 ", not '%s'", option, low, high, arg);
    return value;
}

double args_positive(const struct argp_state *state, const char *option, const char *arg)
{
    char *end;
    const double value = strtod(arg, &end);

    if (end == arg || *end || !isfinite(value) || !(value > 0))
        argp_error(state, "%s takes a number above 0, not '%s'", option, arg);
    return value;
}

void args_word(const struct argp_state *state, const char *arg, char *text, size_t size)
{
    const size_t used = strlen(text);
    size_t length;

    arg += strspn(arg, case_blanks);
    length = strlen(arg);
    while (length && strchr(case_blanks, arg[length - 1]))
        length--;
    if (used + length + 2 > size)
        argp_error(state, "the problem is longer than %zu characters", size - 2);
    else
        snprintf(text + used, size - used, "%s%.*s", used && length ? " " : "", (int)length, arg);
}

void args_file(const struct argp_state *state, const char *arg, args_files *files)
{
    const int most = (int)(sizeof files->at / sizeof files->at[0]);

    if (files->count == most)
        argp_error(state, "more than %d files", most);
    else
        files->at[files->count++] = arg;
}
