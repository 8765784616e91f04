/* cmd.c: `ridge test`: every case, or the one that is asked for, through every row that can run it, against the C
 * reference and the contracts (check/row.c). Copies of rows with planted faults go the same way (tests/teeth.c). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/args.h"
#include "tools/cli.h"
#include "check/test.h"

typedef struct options {
    const char *device, *kernel;
    const char *op;       /* pattern of names; NULL: all */
    const test_case *one; /* instead of the cases of the ops */
    char text[1024];      /* the arguments */
    bool once, quick, large, quiet;
    uint64_t seed, units; /* units: multiprocessors that the device is said to have; 0: what it has */
    uint64_t part, parts; /* only cases part, part + parts, ... of an op, from 1 on; 0: all */
    case_level level;
} options;

typedef struct tally {
    int passed, failed, skipped, hidden; /* hidden: of the failed */
    double worst;                        /* error / bound of the reference */
    unsigned char *used;                 /* kernel index -> ran at least once */
} tally;

enum { SHOWN = 50 };

/* The command that does the same again: `what`, through the row `kernel` alone if there is one. */
static void print_command(const options *o, const char *what, const char *kernel)
{
    printf("     ridge test %s --seed %" PRIu64, what, o->seed);
    if (o->device)
        printf(" --device %s", o->device);
    if (kernel)
        printf(" --kernel %s", kernel);
    if (o->units)
        printf(" --units %" PRIu64, o->units);
    printf("%s\n", o->once ? " --once" : "");
}

static void fail_line(const options *o, tally *t, const ridge_kernel *kernel, const char *what, const char *why)
{
    if (t->failed++ >= SHOWN) {
        t->hidden++;
        return;
    }
    printf("FAIL %s\n", kernel ? kernel->name : "the C reference");
    print_command(o, what, kernel ? kernel->name : NULL);
    printf("     %s\n", why);
}

static bool kernel_wanted(const options *o, const ridge_kernel *kernel)
{
    return name_matches(o->kernel, kernel->name);
}

/* Copies of the operands that a test has at once: the image, the reference's result, two of the row, one to compare,
 * and the bound in float64. */
static bool has_memory(const ridge_device *device, const test_case *c)
{
    image im;

    image_place(c, &im);
    return test_is_large(&im) ? case_fits(device, c, 4, 1) : case_fits(device, c, 7, 2);
}

/* The text that a failure prints must give the case back. */
static bool text_is_case(const test_case *c, const char *text)
{
    test_case again;

    return case_parse(text, &again) && memcmp(&c->call, &again.call, sizeof c->call) == 0 && c->fill == again.fill &&
           c->pad == again.pad && (!c->pad || c->pad_of == again.pad_of) && c->shift == again.shift &&
           c->fused == again.fused && c->alias == again.alias && c->repeats == again.repeats &&
           c->slices == again.slices && c->variant == again.variant && c->units == again.units;
}

/* One case: the reference once, its float64 bound, then every row. */
static void test_case_rows(const options *o, const ridge_device *whole, const test_case *c, tally *t)
{
    const ridge_device said = case_device(whole, c), *const device = &said;
    char what[512], why[700];
    unsigned char *expected;
    ridge_bound bound;
    ridge_call call;
    image im;
    double worst = 0;

    case_print(c, what, sizeof what);
    if (!has_memory(device, c)) {
        t->skipped++;
        printf("SKIP %s: %s\n", what, ridge_error());
        return;
    }
    if (!image_build(c, o->seed, &im) || !(expected = aligned_alloc(256, (im.bytes + 255) / 256 * 256))) {
        image_free(&im);
        fail_line(o, t, NULL, what, "out of memory");
        return;
    }
    call = image_call(&im, im.host);
    if (ridge_validate(&call, &bound) || image_reference(&im, expected))
        fail_line(o, t, NULL, what, ridge_error());
    else if (!test_is_large(&im) && !image_close(&im, expected, &worst, why, sizeof why))
        fail_line(o, t, NULL, what, why);
    else
        for (int i = 0; ridge_kernel_at(i); i++) {
            test_row row = {.kernel = ridge_kernel_at(i), .once = o->once};

            if (row.kernel->op != c->call.op || !kernel_wanted(o, row.kernel) ||
                ridge_why_not(device, row.kernel, &bound.problem))
                continue;
            t->used[i] = 1;
            if (test_one(&row, device, c, &im, expected, why, sizeof why))
                t->passed++;
            else
                fail_line(o, t, row.kernel, what, why);
        }
    t->worst = worst > t->worst ? worst : t->worst;
    free(expected);
    image_free(&im);
}

/* Rows of the filter that ran no case, with the reason from the one case or from an empty problem. */
static void list_skipped(const options *o, const ridge_device *device, tally *t)
{
    ridge_call call;
    int others = 0;

    for (int i = 0; ridge_kernel_at(i); i++) {
        const ridge_kernel *kernel = ridge_kernel_at(i);
        const char *why;
        ridge_problem problem;

        if (t->used[i] || !name_matches(o->op, ridge_op_at(kernel->op)->name) || !kernel_wanted(o, kernel))
            continue;
        t->skipped++;
        if (ridge_kernel_backend(kernel) != device->backend_id) {
            others++;
            continue;
        }
        memset(&problem, 0, sizeof problem);
        problem.op = kernel->op;
        if (o->one && !case_problem(o->one, &call, &problem))
            return;
        why = ridge_why_not(device, kernel, &problem);
        printf("SKIP %s: %s\n", kernel->name, why ? why : "no case that it can run");
    }
    if (others)
        printf("SKIP %d rows of the other backend\n", others);
}

/* Some row of the op is asked for: else its references would be computed for nothing. */
static bool op_wanted(const options *o, const ridge_op_row *op)
{
    for (int i = 0; ridge_kernel_at(i); i++)
        if (ridge_kernel_at(i)->op == op->id && kernel_wanted(o, ridge_kernel_at(i)))
            return true;
    return false;
}

static void test_op(const options *o, const ridge_device *device, const ridge_op_row *op, tally *t)
{
    case_list list = {0};
    char what[512];
    progress p;
    int errors, tried;

    if (!op_wanted(o, op))
        return;
    cases_of(op, o->level, &list);
    progress_start(&p, list.count, o->quiet);
    for (int i = 0; i < list.count; i++) {
        if (o->parts && (uint64_t)i % o->parts != o->part - 1)
            continue;
        case_print(&list.at[i], what, sizeof what);
        if (!text_is_case(&list.at[i], what))
            fail_line(o, t, NULL, what, "this text does not name the case that it is of");
        if (!list.at[i].gpu || device->backend_id == RIDGE_CUDA)
            test_case_rows(o, device, &list.at[i], t);
        progress_step(&p, op->name);
    }
    progress_end(&p);
    free(list.at);
    if (!o->kernel && o->part <= 1) {
        errors = test_bad_arguments(device, op, &tried);
        if (errors)
            print_command(o, op->name, NULL);
        t->failed += errors;
        t->passed += tried - errors;
    }
}

/* Says what is wrong with what was asked for. */
static bool something_wanted(const options *o, const ridge_device *device)
{
    const bool exact = name_matches(o->op, "exact") && !o->kernel;
    bool op = false, row = false;
    ridge_problem problem;
    ridge_call call;

    if (!device->backend) {
        fprintf(stderr, "ridge test: a model device runs nothing\n");
        return false;
    }
    if (o->units && device->backend_id != RIDGE_CUDA) {
        fprintf(stderr, "ridge test: --units is for a CUDA device: there is no grid on %s\n", device->name);
        return false;
    }
    if (o->one && (!case_problem(o->one, &call, &problem) || !has_memory(device, o->one))) {
        fprintf(stderr, "ridge test: %s: %s\n", o->text, ridge_error());
        return false;
    }
    for (uint32_t i = 1; i < RIDGE_OPS; i++)
        op |= name_matches(o->op, ridge_op_at(i)->name);
    for (int i = 0; ridge_kernel_at(i); i++)
        row |= name_matches(o->op, ridge_op_at(ridge_kernel_at(i)->op)->name) && kernel_wanted(o, ridge_kernel_at(i));
    if (row || (exact && device->backend->exact))
        return true;
    if (exact)
        fprintf(stderr, "ridge test: 'exact' compares a CUDA device with the host, and this is %s\n", device->name);
    else if (!op)
        fprintf(stderr, "ridge test: no op matches '%s' (see `ridge ops`)\n", o->op);
    else
        fprintf(stderr, "ridge test: no kernel row%s%s matches '%s' (see `ridge kernels`)\n", o->op ? " of " : "",
                o->op ? o->op : "", o->kernel);
    return false;
}

static void test_all(const options *o, const ridge_device *device, tally *t)
{
    if (o->one)
        test_case_rows(o, device, o->one, t);
    for (uint32_t op = 1; op < RIDGE_OPS && !o->one; op++)
        if (name_matches(o->op, ridge_op_at(op)->name))
            test_op(o, device, ridge_op_at(op), t);
    if (device->backend->exact && name_matches(o->op, "exact") && !o->kernel) {
        int tried, wrong = test_exact(device, o->level == CASES_LARGE, &tried);

        if (wrong)
            print_command(o, o->level == CASES_LARGE ? "exact --large" : "exact", NULL);
        t->failed += wrong;
        t->passed += tried - wrong;
    }
    list_skipped(o, device, t);
}

/* All that is asked for, on the device as it is or said to have other units; whether something passed and nothing
 * failed.
 */
static bool test_device(const options *o, const ridge_device *device)
{
    tally t = {.used = calloc((size_t)ridge_kernel_count() + 1, 1)};
    ridge_device said = *device;

    if (!t.used) {
        fprintf(stderr, "ridge test: out of memory\n");
        return false;
    }
    if (o->units)
        said.units = (int)o->units;
    test_all(o, &said, &t);
    printf("device: %s, %s\n", ridge_arch_table[device->arch].name, device->name);
    printf("worst error of the reference: %.3f of its float64 bound\n", t.worst);
    if (t.hidden)
        printf("%d more failures are not shown\n", t.hidden);
    printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped);
    if (t.passed + t.failed == 0)
        fprintf(stderr, "ridge test: no case ran\n");
    free(t.used);
    return t.passed && !t.failed;
}

/* K/N of --part. */
static bool read_part(options *o, const char *text)
{
    char rest;

    if (!text)
        return true;
    if (sscanf(text, "%" SCNu64 "/%" SCNu64 "%c", &o->part, &o->parts, &rest) == 2 && o->part >= 1 &&
        o->part <= o->parts)
        return true;
    fprintf(stderr, "ridge test: --part %s is not K/N with K from 1 to N\n", text);
    return false;
}

int cmd_test(int argc, char **argv)
{
    const char *part = NULL;
    options o = {.seed = 1};
    const args_option list[] = {
        {"device", 'd', "SPEC", "cpu, cpu:avx2, cuda, cuda:1 (default: auto)", .text = &o.device},
        {"kernel", 'k', "PATTERN", "only rows whose name matches (* and ?)", .text = &o.kernel},
        ARGS_SEED(&o.seed),
        {"once", 'o', NULL, "one run of a row a case, no replays or repeats: for tools that slow every launch down",
         .flag = &o.once},
        {"units", 'u', "N", "as on a GPU of N multiprocessors: small grids, whatever row is tested", .whole = &o.units,
         .least = 1, .most = 1024},
        {"part", 'p', "K/N", "every N-th case from the K-th on: to split a run over processes", .text = &part},
        {"quick", 'q', NULL, "about a third of the cases", .flag = &o.quick},
        {"large", 'l', NULL, "also rows x cols above 2^31 (needs 35 GB on the host, 13 on the device)",
         .flag = &o.large},
        {"quiet", 'Q', NULL, "no progress", .flag = &o.quiet},
        {0}};
    args_list words = {0};
    test_case one;
    ridge_device *device;
    bool good;

    args_parse(argc, argv, "[OP-PATTERN]\nOP name=value...",
               "Runs every case, or the one of a problem text (that of a failure, say), through every kernel row and "
               "checks its contracts; 'exact' in place of an op: the arithmetic that host and device share.",
               list, &words, ARGS_MOST);
    args_join(argv[0], &words, o.text, sizeof o.text);
    if (!read_part(&o, part))
        return 2;
    o.level = o.large ? CASES_LARGE : o.quick ? CASES_QUICK : CASES_FULL;
    if (strpbrk(o.text, case_blanks)) {
        if (!case_parse(o.text, &one))
            return 2;
        o.one = &one;
        o.op = ridge_op_at(one.call.op)->name;
    } else if (words.count)
        o.op = o.text;
    device = device_open(o.device);
    if (!device)
        return 1;
    good = something_wanted(&o, device) && test_device(&o, device);
    ridge_close(device);
    return !good;
}
