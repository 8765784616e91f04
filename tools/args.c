/* args.c: a list of args_option as a parser of argp's. */
#include "args.h"

#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

enum { OPTIONS_MOST = 32, LONG_KEY = 256 /* of the first option; argp takes keys above 255 for no letter */ };

typedef struct parsing {
    const args_option *options;
    args_list *rest;
    int most;
} parsing;

static void append(args_list *list, const char *text, const char *what, struct argp_state *state)
{
    if (list->count == ARGS_MOST)
        argp_error(state, "more than %d %s", ARGS_MOST, what);
    else
        list->at[list->count++] = text;
}

static void set(const args_option *option, char *arg, struct argp_state *state)
{
    char *end;

    if (option->flag)
        *option->flag = true;
    else if (option->text)
        *option->text = arg;
    else if (option->list)
        append(option->list, arg, option->name, state);
    else if (option->positive) {
        *option->positive = strtod(arg, &end);
        if (end == arg || *end || !isfinite(*option->positive) || !(*option->positive > 0))
            argp_error(state, "--%s takes a number above 0, not '%s'", option->name, arg);
    } else if (!arg) {
        *option->whole = 1;
    } else if (!number_whole(arg, option->least, option->most, option->whole))
        argp_error(state, "--%s takes a whole number from %" PRIu64 " to %" PRIu64 ", not '%s'", option->name,
                   option->least, option->most, arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    const parsing *p = state->input;

    if (key == ARGP_KEY_ARG) {
        if (state->arg_num >= (unsigned)p->most)
            argp_error(state, "too many arguments: '%s'", arg);
        append(p->rest, arg, "arguments", state);
        return 0;
    }
    for (int i = 0; p->options[i].name; i++)
        if (key == (p->options[i].key ? p->options[i].key : LONG_KEY + i)) {
            set(&p->options[i], arg, state);
            return 0;
        }
    return ARGP_ERR_UNKNOWN;
}

void args_parse(int argc, char **argv, const char *synopsis, const char *doc, const args_option *options,
                args_list *rest, int most)
{
    struct argp_option table[OPTIONS_MOST + 1] = {{0}};
    const struct argp parser = {table, parse, synopsis, doc, NULL, NULL, NULL};
    parsing p = {options, rest, most};
    error_t error;

    for (int i = 0; options[i].name && i < OPTIONS_MOST; i++)
        table[i] = (struct argp_option){options[i].name,  options[i].key ? options[i].key : LONG_KEY + i,
                                        options[i].value, options[i].optional ? OPTION_ARG_OPTIONAL : 0,
                                        options[i].doc,   0};
    error = argp_parse(&parser, argc, argv, 0, NULL, &p);
    if (error) {
        fprintf(stderr, "%s: %s\n", argv[0], strerror(error));
        exit(1);
    }
}

void args_join(const char *verb, const args_list *words, char *text, size_t size)
{
    size_t used = 0;

    text[0] = 0;
    for (int i = 0; i < words->count; i++) {
        const char *word = words->at[i] + strspn(words->at[i], case_blanks);
        size_t length = strlen(word);

        while (length && strchr(case_blanks, word[length - 1]))
            length--;
        if (used + length + 2 > size) {
            fprintf(stderr, "%s: the problem is longer than %zu characters\n", verb, size - 2);
            exit(2);
        }
        used += (size_t)snprintf(text + used, size - used, "%s%.*s", used && length ? " " : "", (int)length, word);
    }
}
