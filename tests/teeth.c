/* teeth.c: mutation testing. Plants faults in copies of the kernel rows (check/faults.h): test_one must fail for every
 * one, and pass without. */
#include <stdlib.h>
#include <string.h>

#include "check/family.h"
#include "tools/args.h"
#include "tools/cli.h"

enum { SEED = 3 };

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
} tally;

/* One row with each fault of a list: the case must fail. Returns how often it does not. */
static int plant_each(test_row *row, const planted_fault *fault, const ridge_device *device, const test_case *c,
                      const image *im, const unsigned char *expected, tally *t)
{
    char text[700];
    int wrong = 0;

    for (; fault && fault->name && !wrong; fault++) {
        if ((fault->cpu && device->backend->graph_begin) || (fault->applies && !fault->applies(row->kernel)))
            continue;
        row->fault = fault->fault;
        fault_refused = false;
        if (test_one(row, device, c, im, expected, text, sizeof text)) {
            printf("NOT CAUGHT: a copy of %s that %s\n", row->kernel->name, fault->name);
            wrong++;
        } else if (fault_refused) {
            t->refused++;
            printf("SKIP a copy of %s that %s: %s\n", row->kernel->name, fault->name, text);
        } else {
            t->caught++;
        }
    }
    return wrong;
}

/* One row: the case must pass without a fault and fail with each. Returns the number of things that went wrong. */
static int plant(const ridge_device *device, const ridge_kernel *kernel, const test_case *c, tally *t)
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
        wrong = plant_each(&row, common_faults, device, c, &im, expected, t);
        if (!wrong)
            wrong = plant_each(&row, check_family_of(kernel->op)->faults, device, c, &im, expected, t);
    }
    free(expected);
    image_free(&im);
    return wrong;
}

/* How many kinds of fault there are. */
static int kinds_of_fault(void)
{
    int kinds = 0;

    while (common_faults[kinds].name)
        kinds++;
    for (const check_family *const *family = check_families; *family; family++)
        for (const planted_fault *fault = (*family)->faults; fault && fault->name; fault++)
            kinds++;
    return kinds;
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
    printf("%d kinds of fault; %d copies of rows caught, %d not; %d could not be made\n", kinds_of_fault(), t.caught,
           wrong, t.refused);
    if (!t.caught && !wrong)
        fprintf(stderr, "teeth: no row%s%s was tested\n", o.kernel ? " that matches " : "", o.kernel ? o.kernel : "");
    ridge_close(device);
    return wrong || !t.caught;
}
