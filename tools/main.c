/* main.c: `ridge VERB ...`. Each verb is one cmd_<verb>.c. */
#include <string.h>

#include "tools.h"

static const verb verbs[] = {
    {"info", "devices of this machine, and why CUDA is absent if it is", cmd_info},
    {"ops", "ops: operands, dtypes, shapes, fields, contract, bound", cmd_ops},
    {"kernels", "kernel rows: architectures, contract", cmd_kernels},
    {"explain", "which row a problem gets, and why not the others", cmd_explain},
    {"test", "every case through every row, against the C reference and the contracts", cmd_test},
    {"teeth", "plant faults in copies of the rows; every one must be caught", cmd_teeth},
    {"bench", "time problems or suites beside the measured floor; --ceilings, --overhead", cmd_bench},
    {"tune", "time every row of a suite and write a tuning file", cmd_tune},
    {"inspect", "a checkpoint: format, metadata, tensors", cmd_inspect},
    {"quantize", "a checkpoint into FP8, Q8_0, bf16 or f16", cmd_quantize},
    {"compare", "records: ratios to each provider, or old against new", cmd_compare},
    {"report", "records as one page: rooflines, bars beside rivals, what changed", cmd_report},
};

enum { VERBS = (int)(sizeof verbs / sizeof verbs[0]) };

static int help(FILE *to)
{
    fprintf(to, "ridge %s: LLM kernels at the roofline, in plain C\n\nusage: ridge VERB [OPTION...]\n\n",
            ridge_version());
    for (int i = 0; i < VERBS; i++)
        fprintf(to, "  %-8s  %s\n", verbs[i].name, verbs[i].summary);
    fprintf(to, "\n`ridge VERB --help` says more.\n");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return help(stderr) + 2;
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0)
        return help(stdout);
    if (strcmp(argv[1], "--version") == 0)
        return printf("ridge %s\n", ridge_version()) < 0;
    for (int i = 0; i < VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) {
            char name[32];

            snprintf(name, sizeof name, "ridge %s", verbs[i].name);
            argv[1] = name;
            return verbs[i].run(argc - 1, argv + 1);
        }
    fprintf(stderr, "ridge: there is no verb '%s'\n", argv[1]);
    return help(stderr) + 2;
}
