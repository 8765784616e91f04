/* cmd.c: `ridge bench`: reads the options and runs what they ask for; bench.h lists the parts. */
#include <string.h>

#include "tools/cli.h"
#include "bench.h"

static bool bench_one(bench *b, const char *suite, const char *line)
{
    ridge_problem problem;
    ridge_call call;
    test_case c;
    image im;
    bool good;

    if (!case_parse(line, &c))
        return false;
    if (!case_problem(&c, &call, &problem) || !case_fits(b->device, &c, 1, 2)) {
        fprintf(stderr, "ridge bench: %s: %s\n", line, ridge_error());
        return false;
    }
    good = image_build_to_time(&c, b->o->seed, &im);
    if (good)
        good = bench_image(b, suite, &c, &im, NULL, NULL);
    else
        fprintf(stderr, "ridge bench: %s: no memory for its operands\n", line);
    image_free(&im);
    return good;
}

static bool in_list(const char *names, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == 0 || at[length] == ','))
            return true;
    return false;
}

static bool is_suite(const char *name, size_t length)
{
    for (int i = 0; suite_at(i).suite; i++)
        if (strlen(suite_at(i).suite) == length && memcmp(suite_at(i).suite, name, length) == 0)
            return true;
    return false;
}

static bool bench_suites(bench *b)
{
    bool good = true;
    char name[64];

    for (const char *at = b->o->suite; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!is_suite(at, strcspn(at, ","))) {
            snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
            suite_missing("bench", name);
            return false;
        }
    for (int i = 0; suite_at(i).suite; i++) {
        const suite_line line = suite_at(i);

        if (in_list(b->o->suite, line.suite))
            good = bench_one(b, line.suite, line.text) && good;
    }
    return good;
}

static void parse(int argc, char **argv, bench_options *o)
{
    const args_option list[] = {
        {"suite", 'S', "NAME", "suites, separated by commas; a name that is none lists them", .text = &o->suite},
        ARGS_DEVICE(&o->device),
        {"kernel", 'k', "PATTERN", "rows whose name matches, '*' all that can run (default: the row that is picked)",
         .text = &o->kernel},
        {"csv", 'c', "FILE", "append records", .text = &o->csv},
        {"json", 'j', NULL, "JSON instead of a table", .flag = &o->json},
        ARGS_SEED(&o->seed),
        {"rivals", 0, NULL, "other libraries too, in the same rounds (gemm_fp8: cuBLASLt)", .flag = &o->rivals},
        {"against", 0, "LIBRIDGE.SO", "another build of ridge as well, in the same rounds", .text = &o->against},
        {"ceilings", 0, NULL, "measure copy, read stream, empty kernel, matrix rates", .flag = &o->ceilings},
        {"matrix-rate", 0, "TFLOPS",
         "measured rate of products (see --ceilings): the floor of gemm_fp8 is the longer of a copy and FLOP / rate",
         .positive = &o->matrix_rate},
        {"overhead", 0, NULL, "measure the host cost of a call", .flag = &o->overhead},
        {"weights", 0, "FILE",
         "the 2-D tensors of a checkpoint, verified; one of each shape. With --suite decode: every one as Q8_0 in one "
         "graph, the products of a token",
         .text = &o->weights},
#if RIDGE_HAVE_LM
        {"model", 'm', "MODEL",
         "tokens per second of MODEL.gguf, or of a shape with random weights: gpt-oss-20b, gpt-oss-120b, llama-3-8b, "
         "llama-3.2-1b, qwen3-0.6b, qwen3-30b-a3b or smollm2-135m with :q8_0, :q4_0, :q4_1, :q4_k_m, :q5_k_m, :q6_k, "
         ":q2_k, "
         ":iq2_xxs or :mxfp4 behind it",
         .text = &o->model},
        {"test", 't', "PATTERN", "--model: the tests whose name matches, 'tg128*' (repeatable; default: all)",
         .list = &o->tests},
#endif
        {"weights-const", 0, NULL, "calls promise that nothing before them writes the weights",
         .flag = &o->weights_const},
        {"chain", 0, "TIMES",
         "--suite as a graph of all its problems in order, that many times (default 1): a layer, a token. Prints the "
         "gap between kernels too: what the graph takes more than its calls, each in a graph of as many calls of "
         "nothing but itself, over the number of calls",
         .whole = &o->chain, .least = 1, .most = 1000, .optional = true},
        {"rotation", 0, "TIMES",
         "copies of the operands that a graph goes through, in sizes of the last-level cache (default 16, on a CPU 4): "
         "with more, a graph's first call and what the replay before left in the cache weigh less",
         .whole = &o->rotation, .least = 1, .most = 100},
        {"all", 0, NULL, "--weights: every tensor, not one of each shape", .flag = &o->every},
        {0}
    };
    args_list words = {0};

    args_parse(argc, argv, "[OP name=value...]", "Times problems beside a copy of the same total bytes.", list, &words,
               ARGS_MOST);
    args_join(argv[0], &words, o->text, sizeof o->text);
}

int cmd_bench(int argc, char **argv)
{
    bench_options o = {.seed = 1};
    bench b = {.o = &o};
    test_case one;
    bool good = true;

    parse(argc, argv, &o);
    if (!o.suite && !o.text[0] && !o.ceilings && !o.overhead && !o.weights && !o.model) {
        fprintf(stderr, "usage: ridge bench OP name=value... | --suite NAME | --weights FILE | --model MODEL |"
                        " --ceilings |"
                        " --overhead\n");
        return 2;
    }
    if (o.text[0] && !case_parse(o.text, &one)) /* which has said why */
        return 2;
    b.device = device_open(o.device);
    if (b.device && !b.device->backend) {
        fprintf(stderr, "ridge bench: a model device runs nothing\n");
        ridge_close(b.device);
        return 1;
    }
    if (!b.device || (o.against && !against_load(o.against, b.device)) ||
        !record_open(&b.sink, b.device, o.csv, o.json)) {
        ridge_close(b.device);
        return 1;
    }
    if (o.ceilings)
        good = bench_ceilings(&b) && good;
#if RIDGE_HAVE_LM
    if (o.model)
        good = bench_model(&b) && good;
#endif
    if (o.overhead)
        good = bench_overhead(&b) && good;
    if (o.weights && o.suite && strcmp(o.suite, "decode") == 0) {
        good = bench_decode(&b) && good;
    } else {
        if (o.suite && strcmp(o.suite, "ds4flash-token") == 0)
            good = bench_token(&b) && good;
        else if (o.chain)
            good = bench_chain(&b) && good;
        else if (o.suite)
            good = bench_suites(&b) && good;
        if (o.weights)
            good = bench_weights(&b) && good;
    }
    if (o.text[0])
        good = bench_one(&b, "", o.text) && good;
    good = record_close(&b.sink) && good;
    ridge_close(b.device);
    return !good;
}
