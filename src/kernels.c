/* kernels.c: the kernel table: the rows of all families in the order in which they are registered, and which of them
 * can run a problem. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

/* List `index` over all families; NULL after the last. */
static const ridge_kernel_list *list_at(int index)
{
    for (int f = 0; ridge_families[f]; f++)
        for (int i = 0; ridge_families[f]->rows[i]; i++)
            if (index-- == 0)
                return ridge_families[f]->rows[i];
    return NULL;
}

int ridge_kernel_count(void)
{
    const ridge_kernel_list *list;
    int count = 0;

    for (int i = 0; (list = list_at(i)) != NULL; i++)
        count += list->count;
    return count;
}

const ridge_kernel *ridge_kernel_at(int index)
{
    for (int f = 0; ridge_families[f]; f++)
        for (int i = 0; ridge_families[f]->rows[i]; i++) {
            const ridge_kernel_list *list = ridge_families[f]->rows[i];

            if (index < list->count)
                return &list->row[index];
            index -= list->count;
        }
    return NULL;
}

/* The row of a list with this name; NULL if none has it. */
static const ridge_kernel *find_in(const ridge_kernel_list *list, const char *name, size_t length)
{
    for (int i = 0; i < list->count; i++)
        if (strncmp(list->row[i].name, name, length) == 0 && !list->row[i].name[length])
            return &list->row[i];
    return NULL;
}

const ridge_kernel *ridge_kernel_find(const char *name, size_t length)
{
    const ridge_kernel *kernel = NULL;

    for (int f = 0; ridge_families[f] && !kernel; f++)
        for (int i = 0; ridge_families[f]->rows[i] && !kernel; i++)
            kernel = find_in(ridge_families[f]->rows[i], name, length);
    return kernel;
}

ridge_backend_id ridge_kernel_backend(const ridge_kernel *kernel)
{
    return ridge_arch_table[kernel->arch_min].backend;
}

const char *ridge_why_not(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    static _Thread_local char text[96];
    uint32_t need = RIDGE_STABLE;

    if (ridge_kernel_backend(kernel) != device->backend_id)
        return "belongs to another backend";
    if ((int)device->arch < kernel->arch_min || (int)device->arch > kernel->arch_max) {
        const bool one = kernel->arch_min == kernel->arch_max;

        snprintf(text, sizeof text, "runs on %s%s%s, this is %s", ridge_arch_table[kernel->arch_min].name,
                 one ? "" : " to ", one ? "" : ridge_arch_table[kernel->arch_max].name,
                 ridge_arch_table[device->arch].name);
        return text;
    }
    if (ridge_op_at(problem->op)->contract & RIDGE_INVARIANT)
        need = RIDGE_INVARIANT;
    if ((problem->flags & RIDGE_STRICT) && !(kernel->contract & need))
        return "RIDGE_STRICT asks for a batch-invariant row";
    if ((problem->flags & RIDGE_STRICT) && (kernel->contract & RIDGE_TYPICAL))
        return "RIDGE_STRICT asks for a row that keeps the op's bound on every input";
    return kernel->why_not ? kernel->why_not(device, kernel, problem) : NULL;
}

size_t ridge_kernel_workspace(const ridge_device *device, const ridge_kernel *kernel, const ridge_problem *problem)
{
    return kernel->workspace ? kernel->workspace(device, kernel, problem) : 0;
}

ridge_status ridge_kernels_prepare(const ridge_device *device)
{
    const ridge_backend *backend = device->backend;
    const ridge_kernel_list *list;
    ridge_status status = RIDGE_OK;
    bool entered = false;

    if (backend->enter)
        status = backend->enter(device, &entered);
    for (int i = 0; !status && (list = list_at(i)) != NULL; i++)
        if (list->count && list->prepare && ridge_kernel_backend(list->row) == device->backend_id)
            status = list->prepare(device);
    if (backend->leave)
        backend->leave(device, entered);
    return status;
}
