/* cli.h: what the verbs of the command-line tool share beside their arguments (args.h). */
#ifndef RIDGE_CLI_H
#define RIDGE_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "ridge.h"

typedef struct verb {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the verb; returns the exit status */
} verb;

int cmd_info(int argc, char **argv);
int cmd_ops(int argc, char **argv);
int cmd_kernels(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_test(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);

/* Opens --device or says why not on stderr; NULL on failure. */
ridge_device *device_open(const char *spec);
/* Text may come from a file that is not trusted: these are the only functions that print it. What io_printable does not
 * pass appears as \xNN, so that no name can move the cursor or forge a line. */
void text_print(FILE *to, const char *text, size_t length);
/* One line; its end is added. */
void line_print(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* True if name matches a pattern with * and ?, or pattern is NULL. */
bool name_matches(const char *pattern, const char *name);

/* From here on JSON that finds no memory ends the program with a message. */
void json_start(void);
/* Prints and frees it; false if that failed. */
bool print_json(json_t *json);

/* A progress line on a terminal, plain lines otherwise; silent if quiet. */
typedef struct progress {
    bool terminal, quiet;
    double start, shown; /* when the last line of progress_bytes was */
    int done, total;
} progress;

void progress_start(progress *p, int total, bool quiet);
void progress_step(progress *p, const char *what); /* done so far, total, ETA */
/* The same for bytes done of a total: per cent, GB/s, ETA. */
void progress_bytes(progress *p, const char *what, double done, double total);
void progress_end(progress *p);
double seconds(void);

#endif
