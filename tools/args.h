/* args.h: the command line of a verb. A verb lists its options and where their values go; args_parse does the rest
 * through argp. An error on the command line ends the program with argp's message and status 2. */
#ifndef RIDGE_ARGS_H
#define RIDGE_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARGS_MOST = 256 };

typedef struct args_list {
    const char *at[ARGS_MOST];
    int count;
} args_list;

/* One option, --name and -key (0: none). One of the pointers says where its value goes, and so of what kind it is. */
typedef struct args_option {
    const char *name;
    char key;
    const char *value; /* its name in the help; NULL: a flag */
    const char *doc;
    bool *flag;
    const char **text;
    args_list *list;  /* repeatable */
    double *positive; /* finite and above 0 */
    uint64_t *whole;  /* least .. most in decimal digits; 1 where an optional value is missing */
    uint64_t least, most;
    bool optional;
} args_option;

/* Options that several verbs have. */
#define ARGS_DEVICE(to)                                                       \
    {                                                                         \
        "device", 'd', "SPEC", "cpu, cuda:0, ... (default: auto)", .text = to \
    }
#define ARGS_JSON(to)                         \
    {                                         \
        "json", 'j', NULL, "JSON", .flag = to \
    }
#define ARGS_SEED(to)                                                                       \
    {                                                                                       \
        "seed", 's', "N", "seed of the inputs (default 1)", .whole = to, .most = UINT64_MAX \
    }

/* Parses argv. `options` ends with an empty one; `synopsis` names the arguments beside them, of which there are at most
 * `most` (ARGS_MOST or fewer): they go to `rest`. */
void args_parse(int argc, char **argv, const char *synopsis, const char *doc, const args_option *options,
                args_list *rest, int most);

/* Joins words of "op name=value ..." without the blanks round them; ends the program if they are longer. */
void args_join(const char *verb, const args_list *words, char *text, size_t size);

#endif
