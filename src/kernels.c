/* kernels.c: the kernel table: the rows of all families, in the order in which they are registered. */
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
    const ridge_kernel_list *list;

    for (int i = 0; (list = list_at(i)) != NULL; i++) {
        if (index < list->count)
            return &list->row[index];
        index -= list->count;
    }
    return NULL;
}

const ridge_kernel *ridge_kernel_find(const char *name, size_t length)
{
    const ridge_kernel *kernel;

    for (int i = 0; (kernel = ridge_kernel_at(i)) != NULL; i++)
        if (strlen(kernel->name) == length && memcmp(kernel->name, name, length) == 0)
            return kernel;
    return NULL;
}

ridge_backend_id ridge_kernel_backend(const ridge_kernel *kernel)
{
    return ridge_arch_table[kernel->arch_min].backend;
}

ridge_status ridge_kernels_prepare(const ridge_device *device)
{
    const ridge_kernel_list *list;

    for (int i = 0; (list = list_at(i)) != NULL; i++) {
        ridge_status status = RIDGE_OK;

        if (list->count && list->prepare && ridge_kernel_backend(list->row) == device->backend_id)
            status = list->prepare(device);
        if (status)
            return status;
    }
    return RIDGE_OK;
}
