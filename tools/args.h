/* args.h: what the verbs share in reading their arguments. What is wrong ends the program with a message of argp's. */
#ifndef RIDGE_ARGS_H
#define RIDGE_ARGS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* argp_parse, which ends the program where it fails, memory being short included. */
void args_parse(const struct argp *parser, int argc, char **argv, void *options);

/* The value of an option: a whole number within low .. high (check/number.h), or a finite one above 0. */
uint64_t args_whole(const struct argp_state *state, const char *option, const char *arg, uint64_t low, uint64_t high);
double args_positive(const struct argp_state *state, const char *option, const char *arg);

/* Appends words of "op name=value ...", without the blanks round them. */
void args_word(const struct argp_state *state, const char *arg, char *text, size_t size);

typedef struct args_files {
    const char *at[256];
    int count;
} args_files;
void args_file(const struct argp_state *state, const char *arg, args_files *files);

#endif
