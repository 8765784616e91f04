/* cases.c: lists of cases, the problem of a case, and whether there is memory for it. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"

/* What fails here is a bug of the table or no memory, and ends the program: a case less must not go unnoticed. */
static void must(bool good, const char *text, const char *why)
{
    if (good)
        return;
    fprintf(stderr, "ridge: a case of this program: %s: %s\n", text, why);
    exit(1);
}

void cases_add(case_list *list, const ridge_op_row *op, const char *text, test_case layout)
{
    ridge_problem problem;

    must(!ridge_problem_parse(op, text, &layout.call, &problem), text, ridge_error());
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 64;
        list->at = realloc(list->at, (size_t)list->capacity * sizeof *list->at);
        must(list->at, text, "out of memory");
    }
    list->at[list->count++] = layout;
}

bool case_problem(const test_case *c, ridge_call *call, ridge_problem *problem)
{
    ridge_status status;
    ridge_bound bound;
    image im;

    image_place(c, &im);
    *call = image_call(&im, (void *)(uintptr_t)(1u << 20));
    status = ridge_validate(call, &bound);
    *problem = bound.problem;
    return status == RIDGE_OK;
}

ridge_device case_device(const ridge_device *device, const test_case *c)
{
    ridge_device said = *device;

    if (c->units && device->backend_id == RIDGE_CUDA)
        said.units = c->units;
    return said;
}

/* Of the host, what can still be had; 0: not known. A container's own limit is not looked at: what its cgroup counts as
 * used holds the page cache, which would be given up. */
static double free_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    double kilobytes = 0;

    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %lf kB", &kilobytes) != 1)
        ;
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

/* Operands without a byte are still gone through by rows or columns. */
enum { EMPTY_MOST = 1 << 24 };

bool case_fits(const ridge_device *device, const test_case *c, int host, int on_device)
{
    const bool cpu = device->backend_id == RIDGE_CPU;
    const double free_here = free_memory(), free_there = (double)device->memory_bytes;
    const ridge_op_row *op = ridge_op_at(c->call.op);
    double bytes = 0, here, there;

    for (int arg = 0; arg < op->args; arg++) {
        int64_t rows, cols;

        op->extent(&c->call, arg, &rows, &cols);
        if (c->call.arg[arg].dtype != RIDGE_NONE && (rows == 0 || cols == 0) && rows + cols > EMPTY_MOST) {
            ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is %" PRId64 " x %" PRId64 ", empty ones are run up to %d",
                       op->name, op->arg[arg].name, rows, cols, EMPTY_MOST);
            return false;
        }
        bytes += (double)rows * ((double)cols * (c->fused ? 2 : 1) + c->pad) *
                 (double)ridge_dtype_size(c->call.arg[arg].dtype);
    }
    here = bytes * (host + (cpu ? on_device : 0));
    there = cpu ? 0 : bytes * on_device;
    if (free_here > 0 && here > free_here)
        ridge_fail(RIDGE_ERR_DEVICE, "it needs %.1f GB of memory, %.1f GB are free", 1e-9 * here, 1e-9 * free_here);
    else if (free_there > 0 && there > free_there)
        ridge_fail(RIDGE_ERR_DEVICE, "it needs %.1f GB on the device, which has %.1f GB", 1e-9 * there,
                   1e-9 * free_there);
    else
        return true;
    return false;
}
