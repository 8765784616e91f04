/* main.c: `ridge VERB ...`: finds the verb, whose function is in cmd_<verb>.c or <verb>/cmd.c, and runs it. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const verb verbs[] = {
    {"info", "devices of this machine, and why CUDA is absent if it is", cmd_info},
    {"ops", "ops: operands, dtypes, shapes, fields, contract, bound", cmd_ops},
    {"kernels", "kernel rows: architectures, contract", cmd_kernels},
    {"explain", "which row a problem gets, and why not the others", cmd_explain},
    {"test", "every case through every row, against the C reference and the contracts", cmd_test},
    {"bench", "time problems or suites beside the measured floor; --ceilings, --overhead", cmd_bench},
    {"tune", "time every row of a suite and write a tuning file", cmd_tune},
    {"inspect", "a checkpoint: format, metadata, tensors", cmd_inspect},
    {"quantize", "a checkpoint into FP8, a block format of GGUF, bf16 or f16", cmd_quantize},
#if RIDGE_HAVE_LM
    {"generate", "text from a GGUF model: goes on with a prompt, or answers", cmd_generate},
    {"perplexity", "how well a GGUF model foretells a text", cmd_perplexity},
#endif
    {"compare", "records: ratios to each provider, or old against new", cmd_compare},
};

enum { VERBS = (int)(sizeof verbs / sizeof verbs[0]) };

static int help(FILE *to)
{
    fprintf(to, "ridge %s: LLM kernels at the roofline, in plain C\n\nusage: ridge VERB [OPTION...]\n\n",
            ridge_version());
    for (int i = 0; i < VERBS; i++)
        fprintf(to, "  %-10s  %s\n", verbs[i].name, verbs[i].summary);
    fprintf(to, "\n`ridge VERB --help` or `ridge help VERB` says more.\n");
    return 0;
}

static const verb *find(const char *name)
{
    for (int i = 0; i < VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}

static bool is_help(const char *word)
{
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int run(const verb *v, int argc, char **argv)
{
    char name[32];

    snprintf(name, sizeof name, "ridge %s", v->name);
    argv[0] = name; /* argp prints it as the name of the program */
    return v->run(argc, argv);
}

/* Output that did not reach standard output (a full disk) is a failure, whatever the verb returned. */
static void check_output(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return;
    fprintf(stderr, "ridge: cannot write to standard output: %s\n", strerror(errno));
    _exit(1);
}

/* A file that is opened while a standard stream is closed would get its number, and what is printed with it. What holds
 * the number here refuses what the stream is for. */
static void hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(1);
}

int main(int argc, char **argv)
{
    static char help_option[] = "--help";
    char *help_of[] = {NULL, help_option, NULL};
    const bool wants_help = argc > 1 && is_help(argv[1]);
    const char *name = argc < 2 ? NULL : !wants_help ? argv[1] : argc > 2 ? argv[2] : NULL;

    hold_streams();
    atexit(check_output);
    json_start();
    argp_err_exit_status = 2; /* as all usage errors */
    if (!name || (wants_help && is_help(name)))
        return wants_help ? help(stdout) : help(stderr) + 2;
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0)
        return printf("ridge %s\n", ridge_version()) < 0;
    if (find(name))
        return wants_help ? run(find(name), 2, help_of) : run(find(name), argc - 1, argv + 1);
    fprintf(stderr, "ridge: there is no verb '%s'\n", name);
    return help(stderr) + 2;
}
