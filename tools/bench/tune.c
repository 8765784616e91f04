/* tune.c: `ridge tune`: times every row that a problem may get and writes the tuning file that src/tune.c reads. A
 * challenger must beat the cost model's pick by more than 1.5 % and by more than the noise, so that near-ties keep the
 * default and do not flip from run to run. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/args.h"
#include "tools/cli.h"
#include "out.h"
#include "timing.h"

typedef struct options {
    const char *suite, *device, *out;
    char text[1024];
    bool quiet;
} options;

/* The case with few rows, in the same range of batch invariance; of gemm_fp8, whose reference is slow, n and k shrink
 * too. */
static test_case shrink(test_case c)
{
    const int64_t split = ridge_op_at(c.call.op)->invariant_split;
    const int64_t rows = split && c.call.dim[0] > split ? split + 4 : 4;

    c.call.dim[0] = c.call.dim[0] < rows ? c.call.dim[0] : rows;
    for (int i = 1; i < 3 && c.call.op == RIDGE_GEMM_FP8; i++)
        c.call.dim[i] = c.call.dim[i] > 2048 ? 1024 + c.call.dim[i] % 1024 : c.call.dim[i];
    return c;
}

/* True if the row keeps its contract on a few rows of the problem, or does not run on so few (too few tiles to split,
 * say; `ridge test` covers it at other sizes). Else the reason. */
static bool row_is_right(const ridge_device *device, const ridge_kernel *kernel, const test_case *full, char *why,
                         size_t size)
{
    const test_case c = shrink(*full);
    ridge_problem problem;
    ridge_call call;
    image im;
    bool good;

    if (case_problem(&c, &call, &problem) && ridge_why_not(device, kernel, &problem))
        return true;
    snprintf(why, size, "out of memory");
    if (!image_build(&c, 5, &im))
        return false;
    good = timing_verify(device, &im, kernel, why, size);
    image_free(&im);
    return good;
}

/* The row that is picked without tuning files and pins. */
static const ridge_kernel *untuned(const ridge_device *device, const ridge_call *call, const ridge_problem *problem)
{
    ridge_device bare = *device;
    const ridge_kernel *kernel;
    const char *because;

    bare.tuned_count = 0;
    memset(bare.pin, 0, sizeof bare.pin);
    return ridge_choose(&bare, call->kernel, problem, SIZE_MAX, &kernel, &because) ? NULL : kernel;
}

/* The rows that may be chosen for the problem, the cost model's pick first. Left out are rows of another arithmetic,
 * since tuning must not change a result's bits, and rows of more than ten times the predicted time, such as the C
 * reference, of which a call could take minutes. */
static int candidates(const ridge_device *device, const ridge_call *call, candidate *list)
{
    const unsigned kind = RIDGE_FALLBACK | RIDGE_ARITHMETIC;
    ridge_bound bound;
    const ridge_kernel *first;
    double most;
    int count = 0;

    if (ridge_validate(call, &bound) || !(first = untuned(device, call, &bound.problem)))
        return 0;
    most = first->cost ? 10 * first->cost(device, first, &bound.problem) : 0;
    list[count++].kernel = first;
    for (int i = device->first[bound.problem.op]; i < device->first[bound.problem.op + 1] && count < TIMING_CANDIDATES;
         i++) {
        const ridge_kernel *row = device->row[i];

        if (row != first && !ridge_why_not(device, row, &bound.problem) &&
            (row->contract & kind) == (first->contract & kind) &&
            !(row->cost && row->cost(device, row, &bound.problem) > most))
            list[count++].kernel = row;
    }
    return count;
}

/* Leaves out rows that do not keep their contract. 0 if the first does not. */
static int verified(const ridge_device *device, const test_case *c, candidate *list, int count)
{
    char why[400];
    int kept = 0;

    for (int i = 0; i < count; i++)
        if (row_is_right(device, list[i].kernel, c, why, sizeof why)) {
            list[kept++] = list[i];
        } else if (i == 0) {
            ridge_fail(RIDGE_ERR_DEVICE, "%s, which is picked, fails: %s", list[0].kernel->name, why);
            return 0;
        } else {
            fprintf(stderr, "ridge tune: %s is left out: %s\n", list[i].kernel->name, why);
        }
    return kept;
}

/* Writes a line and returns 1 if a challenger wins against list[0], by more than 1.5 % and the noise. */
static int write_winner(const ridge_call *call, const candidate *list, int count, FILE *to)
{
    double noise = 0.5 * (list[0].us_p80 - list[0].us_p20) / list[0].us;
    ridge_bound bound;
    char text[320];
    int best = 0;

    noise = noise > 0.015 ? noise : 0.015;
    for (int i = 1; i < count; i++)
        if (list[i].us < list[best].us)
            best = i;
    if (!best || list[best].us >= list[0].us * (1 - noise) || ridge_validate(call, &bound))
        return 0;
    ridge_problem_print(call, &bound.problem, text, sizeof text);
    fprintf(to, "%s\t%s\t%.3f\t%s\t%.3f\n", text, list[best].kernel->name, list[best].us, list[0].kernel->name,
            list[0].us);
    return 1;
}

/* Writes one line if a challenger wins. Returns whether it did; -1 on failure, -2 if that was said. */
static int tune_one(const ridge_device *device, const char *line, FILE *to)
{
    candidate list[TIMING_CANDIDATES] = {{0}};
    test_case c;
    rotation r = {.device = device};
    ridge_problem problem;
    ridge_call call;
    image im;
    int count, won = 0;
    bool good;

    if (!case_parse(line, &c)) /* which has said why */
        return -2;
    if (c.call.flags & RIDGE_STRICT) {
        ridge_fail(RIDGE_ERR_ARG, "strict=1 has no place in a tuning file");
        return -1;
    }
    if (!case_problem(&c, &call, &problem) || !case_fits(device, &c, 1, 2))
        return -1;
    if (!image_build_to_time(&c, 1, &im)) {
        ridge_fail(RIDGE_ERR_DEVICE, "no memory for its operands");
        return -1;
    }
    call = image_call(&im, im.host);
    count = candidates(device, &call, list);
    good = count > 0 && rotation_build(device, &im, timing_workspace(device, &call, list, count), &r);
    if (good) {
        timing_warm(&r, 0.1);
        count = timing_sift(&r, list, count);
        count = count > 0 ? verified(device, &c, list, count) : 0;
        good = count > 0 && timing_run(&r, list, count);
    }
    rotation_free(&r);
    if (good)
        won = write_winner(&call, list, count, to);
    image_free(&im);
    return good ? won : -1;
}

/* Suites list some problems twice: layers that several models share. */
static bool came_before(const char *suite, int index, const char *text)
{
    char now[320];

    snprintf(now, sizeof now, "%s", text);
    for (int i = 0; i < index; i++) {
        const suite_line s = suite_at(i);

        if (strcmp(s.suite, suite) == 0 && strcmp(s.text, now) == 0)
            return true;
    }
    return false;
}

static bool tune_all(const options *o, const ridge_device *device, FILE *to)
{
    progress p;
    int total = 0, done = 0, won = 0;

    for (int i = 0; suite_at(i).suite; i++)
        total += o->suite && strcmp(suite_at(i).suite, o->suite) == 0;
    total += o->text[0] != 0;
    if (!total) {
        suite_missing("tune", o->suite ? o->suite : "");
        return false;
    }
    progress_start(&p, total, o->quiet);
    for (int i = 0; suite_at(i).suite || (o->text[0] && done < total); i++) {
        const suite_line s = suite_at(i);
        const char *line = s.suite ? s.text : o->text;
        int result;

        if (s.suite && !(o->suite && strcmp(s.suite, o->suite) == 0))
            continue;
        if (s.suite && came_before(s.suite, i, s.text)) {
            progress_step(&p, "tune");
            continue;
        }
        result = tune_one(device, s.suite ? suite_at(i).text : line, to);
        if (result < 0) {
            if (result == -1)
                fprintf(stderr, "ridge tune: %s: %s\n", line, ridge_error());
            return false;
        }
        won += result;
        done++;
        progress_step(&p, "tune");
        if (!s.suite)
            break;
    }
    progress_end(&p);
    fprintf(to, "# %d problems, %d keep the default\n", done, done - won);
    printf("%d problems, %d keep the cost model's choice\n", done, done - won);
    return true;
}

int cmd_tune(int argc, char **argv)
{
    options o = {.out = "tuned.tsv"};
    const args_option list[] = {{"suite", 'S', "NAME", "every problem of a suite", .text = &o.suite},
                                ARGS_DEVICE(&o.device),
                                {"output", 'o', "FILE", "default: tuned.tsv", .text = &o.out},
                                {"quiet", 'Q', NULL, "no progress", .flag = &o.quiet},
                                {0}};
    args_list words = {0};
    ridge_device *device;
    test_case one;
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    out_file out;
    bool good;

    args_parse(argc, argv, "[OP name=value...]", "Times every row and writes a tuning file.", list, &words, ARGS_MOST);
    args_join(argv[0], &words, o.text, sizeof o.text);
    if (!o.suite && !o.text[0]) {
        fprintf(stderr, "usage: ridge tune OP name=value... | --suite NAME [-o FILE]\n");
        return 2;
    }
    if (o.text[0] && !case_parse(o.text, &one)) /* which has said why */
        return 2;
    device = device_open(o.device);
    if (!device || !device->backend) {
        if (device)
            fprintf(stderr, "ridge tune: a model device runs nothing\n");
        ridge_close(device);
        return 1;
    }
    if (!out_open(&out, "ridge tune", o.out)) {
        ridge_close(device);
        return 1;
    }
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    fprintf(out.to, "# ridge %s, %s, %s, %s\n", ridge_version(), device->name, device->driver, date);
    fprintf(out.to, "# problem\tkernel\tus\tdefault kernel\tdefault us\n");
    good = out_close(&out, tune_all(&o, device, out.to));
    ridge_close(device);
    return !good;
}
