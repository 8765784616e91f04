/* teeth.c: mutation testing. Plants faults in copies of the kernel rows (check/faults.h): test_one must fail for every
 * one, and pass without. */
#include <stdlib.h>
#include <string.h>

#include "check/family.h"
#include "tools/args.h"
#include "tools/cli.h"

enum { SEED = 3, KINDS = 256, KINDS_WANTED = 60 };

/* The case of `text`, with what all cases have in common. */
static bool case_of(const char *text, const ridge_op_row *op, test_case *c)
{
    const int step = op->step[1];

    if (!case_parse(text, c))
        return false;
    c->fill = FILL_NORMAL;
    if (!strstr(text, " pad="))
        c->pad = step > 8 ? 2 * step : 8;
    c->slices = (op->contract & RIDGE_INVARIANT) != 0;
    c->repeats = 400;
    return true;
}

/* The first case of its family's problems that the row can run on the device. */
static bool find_case(const ridge_device *device, const ridge_kernel *kernel, test_case *c)
{
    const ridge_op_row *op = ridge_op_at(kernel->op);
    const size_t length = strlen(op->name);
    ridge_problem problem;
    ridge_call call;

    for (const char *const *text = check_family_of(op->id)->fault_problems; *text; text++) {
        if (strncmp(*text, op->name, length) != 0 || (*text)[length] != ' ' || !case_of(*text, op, c))
            continue;
        if (case_problem(c, &call, &problem) && !ridge_why_not(device, kernel, &problem))
            return true;
    }
    return false;
}

typedef struct options {
    const char *device, *kernel;
} options;

typedef struct tally {
    int caught, refused; /* copies of rows with a fault */
    int kinds;
    const planted_fault *kind[KINDS]; /* caught at least once */
} tally;

static void count_kind(tally *t, const planted_fault *fault)
{
    for (int i = 0; i < t->kinds; i++)
        if (t->kind[i] == fault)
            return;
    if (t->kinds < KINDS)
        t->kind[t->kinds++] = fault;
}

/* An option that has the fault's value already: nothing would change. */
static bool is_so_already(const planted_fault *fault, const ridge_call *call)
{
    return fault->fault == fault_changes_option &&
           memcmp((const char *)&call->opt + fault->option, &fault->value, sizeof fault->value) == 0;
}

/* The fault can be planted into the row's launch of this call. */
static bool applies(const planted_fault *fault, const ridge_device *device, const ridge_kernel *kernel,
                    const ridge_call *call)
{
    return !(fault->cpu && device->backend->graph_begin) && !(fault->applies && !fault->applies(kernel)) &&
           !(fault->op && fault->op != kernel->op) && !(fault->operand && fault_slot(call, fault->operand) < 0) &&
           !is_so_already(fault, call);
}

/* One row with each fault of a list that belongs to a problem (NULL: the row's usual one): the case must fail. Returns
 * how often it does not. */
static int plant_each(test_row *row, const planted_fault *fault, const char *problem, const ridge_device *device,
                      const test_case *c, const image *im, const unsigned char *expected, tally *t)
{
    char text[700];
    int wrong = 0;

    for (; fault && fault->name && !wrong; fault++) {
        if (fault->problem != problem || fault->special != (c->fill == FILL_SPECIAL) ||
            !applies(fault, device, row->kernel, &c->call))
            continue;
        row->fault = fault;
        fault_refused = false;
        if (test_one(row, device, c, im, expected, text, sizeof text)) {
            printf("NOT CAUGHT: a copy of %s that %s\n", row->kernel->name, fault->name);
            wrong++;
        } else if (!fault_refused && fault->by && strncmp(text, fault->by, strlen(fault->by)) != 0) {
            printf("CAUGHT BY CHANCE, not %s: a copy of %s that %s: %s\n", fault->by, row->kernel->name, fault->name,
                   text);
            wrong++;
        } else if (fault_refused) {
            t->refused++;
            printf("SKIP a copy of %s that %s: %s\n", row->kernel->name, fault->name, text);
        } else {
            t->caught++;
            count_kind(t, fault);
        }
    }
    return wrong;
}

/* One row on one image: the case must pass without a fault and fail with each. Returns the number of things that went
 * wrong. */
static int plant_on(const ridge_device *device, const ridge_kernel *kernel, const test_case *c, const char *problem,
                    tally *t)
{
    test_row row = {.kernel = kernel};
    unsigned char *expected = NULL;
    char what[512], text[700] = "out of memory";
    int wrong = 0;
    image im;

    if (image_build(c, SEED, &im))
        expected = malloc(im.bytes);
    if (!expected || image_reference(&im, expected) || !test_one(&row, device, c, &im, expected, text, sizeof text)) {
        case_print(c, what, sizeof what);
        printf("FAIL %s without a fault: %s\n     ridge test %s --seed %d --kernel %s\n", kernel->name, text, what,
               SEED, kernel->name);
        wrong = 1;
    } else {
        wrong = plant_each(&row, common_faults, problem, device, c, &im, expected, t);
        if (!wrong)
            wrong = plant_each(&row, check_family_of(kernel->op)->faults, problem, device, c, &im, expected, t);
    }
    free(expected);
    image_free(&im);
    return wrong;
}

/* Faults that have a problem of their own, where the row can run it. */
static int plant_apart(const ridge_device *device, const ridge_kernel *kernel, tally *t)
{
    const planted_fault *fault = check_family_of(kernel->op)->faults;
    const char *last = NULL;
    ridge_problem problem;
    ridge_call call;
    int wrong = 0;
    test_case c;

    for (; fault && fault->name; fault++) { /* those of one problem follow each other */
        if (!fault->problem || fault->problem == last || !case_of(fault->problem, ridge_op_at(kernel->op), &c))
            continue;
        last = fault->problem;
        if (c.call.op == kernel->op && case_problem(&c, &call, &problem) && !ridge_why_not(device, kernel, &problem))
            wrong += plant_on(device, kernel, &c, last, t);
    }
    return wrong;
}

/* On random numbers, and where the family has faults of special ones on those. */
static int plant(const ridge_device *device, const ridge_kernel *kernel, const test_case *c, tally *t)
{
    const int wrong = plant_on(device, kernel, c, NULL, t) + plant_apart(device, kernel, t);
    test_case special = *c;
    bool has = false;

    for (const planted_fault *fault = check_family_of(kernel->op)->faults; fault && fault->name; fault++)
        has = has || (fault->special && applies(fault, device, kernel, &c->call));
    special.fill = FILL_SPECIAL;
    special.repeats = 0;
    return wrong || !has ? wrong : plant_on(device, kernel, &special, NULL, t);
}

/* Faults of a list that no row of the device was spoiled by; GPUs alone can have some. */
static int never_planted(const tally *t, const planted_fault *fault, bool cpu)
{
    int never = 0;

    for (; fault && fault->name; fault++) {
        bool found = cpu ? fault->by && strcmp(fault->by, "between late writes") == 0 : fault->cpu;

        for (int i = 0; i < t->kinds; i++)
            found |= t->kind[i] == fault;
        if (!found)
            printf("NEVER CAUGHT: a row that %s\n", fault->name);
        never += !found;
    }
    return never;
}

/* Of all rows of the device: every kind of fault was caught, and there are as many as there should be. */
static int kinds_missing(const tally *t, const ridge_device *device)
{
    const bool cpu = device->backend_id == RIDGE_CPU;
    int never = never_planted(t, common_faults, cpu);

    for (const check_family *const *family = check_families; *family; family++)
        never += never_planted(t, (*family)->faults, cpu);
    if (cpu && t->kinds < KINDS_WANTED)
        printf("%d kinds of fault, %d wanted\n", t->kinds, KINDS_WANTED);
    return never + (cpu && t->kinds < KINDS_WANTED);
}

/* On the device, or as on one of four multiprocessors, where fewer tiles fill the grid. */
static int plant_somewhere(const ridge_device *device, const ridge_kernel *kernel, tally *t)
{
    const bool belongs = device->arch >= kernel->arch_min && device->arch <= kernel->arch_max;
    ridge_device small = *device;
    test_case c;

    if (!belongs || ridge_kernel_backend(kernel) != device->backend_id)
        return 0;
    if (find_case(device, kernel, &c))
        return plant(device, kernel, &c, t);
    small.units = 4;
    if (device->backend_id == RIDGE_CUDA && find_case(&small, kernel, &c))
        return plant(&small, kernel, &c, t);
    printf("SKIP %s: no case that it can run\n", kernel->name);
    return 0;
}

int main(int argc, char **argv)
{
    options o = {.device = "cpu"};
    const args_option list[] = {{"device", 'd', "SPEC", "cpu, cuda:0, ... (default: cpu)", .text = &o.device},
                                {"kernel", 'k', "PATTERN", "only rows whose name matches", .text = &o.kernel},
                                {0}};
    const ridge_kernel *kernel;
    ridge_device *device;
    tally t = {0};
    int wrong = 0;

    args_parse(argc, argv, "", "Plants faults in copies of the rows.", list, NULL, 0);
    device = device_open(o.device);
    if (!device || !device->backend) {
        if (device)
            fprintf(stderr, "teeth: a model device runs nothing\n");
        ridge_close(device);
        return 1;
    }
    for (int i = 0; (kernel = ridge_kernel_at(i)) != NULL; i++)
        if (name_matches(o.kernel, kernel->name))
            wrong += plant_somewhere(device, kernel, &t);
    if (!o.kernel)
        wrong += kinds_missing(&t, device);
    printf("%d kinds of fault; %d copies of rows caught, %d not; %d could not be made\n", t.kinds, t.caught, wrong,
           t.refused);
    if (!t.caught && !wrong)
        fprintf(stderr, "teeth: no row%s%s was tested\n", o.kernel ? " that matches " : "", o.kernel ? o.kernel : "");
    ridge_close(device);
    return wrong || !t.caught;
}
