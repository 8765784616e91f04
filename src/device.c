/* device.c: architectures, and opening a device: spec, pins, tuning, the rows it may run. Reads the environment;
 * nothing else in the library does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Shared memory: CUDA C programming guide, technical specifications per compute capability. */
const ridge_arch_row ridge_arch_table[RIDGE_ARCHS] = {
    [RIDGE_ARCH_C] = {"c", RIDGE_CPU, 0, 0},
    [RIDGE_ARCH_AVX2] = {"avx2", RIDGE_CPU, 0, 0},
    [RIDGE_ARCH_AVX512] = {"avx512", RIDGE_CPU, 0, 0},
    [RIDGE_ARCH_SM80] = {"sm80", RIDGE_CUDA, 80, 163},
    [RIDGE_ARCH_SM86] = {"sm86", RIDGE_CUDA, 86, 99},
    [RIDGE_ARCH_SM89] = {"sm89", RIDGE_CUDA, 89, 99},
    [RIDGE_ARCH_SM90] = {"sm90", RIDGE_CUDA, 90, 227},
    [RIDGE_ARCH_SM100] = {"sm100", RIDGE_CUDA, 100, 227},
    [RIDGE_ARCH_SM103] = {"sm103", RIDGE_CUDA, 103, 227},
    [RIDGE_ARCH_SM120] = {"sm120", RIDGE_CUDA, 120, 99},
    [RIDGE_ARCH_SM121] = {"sm121", RIDGE_CUDA, 121, 99},
};

const ridge_backend *ridge_backend_at(int id, const char **why_none)
{
    *why_none = NULL;
    if (id == RIDGE_CPU)
        return &ridge_cpu_backend;
#if RIDGE_HAVE_CUDA
    if (id == RIDGE_CUDA)
        return &ridge_cuda_backend;
#endif
    *why_none = "this build has no CUDA backend (configured without nvcc, or with RIDGE_CUDA=OFF)";
    return NULL;
}

static ridge_status open_backend(ridge_device *device, int id, int ordinal)
{
    const char *why;
    char reason[256] = "";
    const ridge_backend *backend = ridge_backend_at(id, &why);
    int count;

    if (!backend)
        return ridge_fail(RIDGE_ERR_DEVICE, "no CUDA device: %s", why);
    count = backend->count(reason, sizeof reason);
    if (count == 0)
        return ridge_fail(RIDGE_ERR_DEVICE, "no %s device: %s", backend->name, reason);
    if (ordinal >= count)
        return ridge_fail(RIDGE_ERR_DEVICE, "no %s device %d: there %s %d", backend->name, ordinal,
                          count == 1 ? "is" : "are", count);
    device->backend = backend;
    device->backend_id = (ridge_backend_id)id;
    return backend->open(device, ordinal);
}

static ridge_status open_cpu(ridge_device *device, const char *level)
{
    ridge_status status = open_backend(device, RIDGE_CPU, 0);
    ridge_arch best = device->arch;

    if (status || !*level)
        return status;
    for (int arch = RIDGE_ARCH_C; arch <= RIDGE_ARCH_AVX512; arch++)
        if (strcmp(level, ridge_arch_table[arch].name) == 0) {
            if (arch > (int)best)
                return ridge_fail(RIDGE_ERR_DEVICE, "this CPU has no %s; its best level is %s", level,
                                  ridge_arch_table[best].name);
            device->arch = (ridge_arch)arch;
            return RIDGE_OK;
        }
    return ridge_fail(RIDGE_ERR_ARG, "unknown CPU level '%s' (c, avx2, avx512)", level);
}

/* "cuda", "cuda:1": the ordinal, or -1 */
static int cuda_ordinal(const char *spec)
{
    const size_t digits = strncmp(spec, "cuda:", 5) == 0 ? strspn(spec + 5, "0123456789") : 0;

    if (strcmp(spec, "cuda") == 0)
        return 0;
    return digits > 0 && digits < 6 && spec[5 + digits] == 0 ? atoi(spec + 5) : -1;
}

static ridge_status open_named(ridge_device *device, const char *spec)
{
    char reason[256];
    const char *why;

    if (strcmp(spec, "auto") == 0) {
        const ridge_backend *cuda = ridge_backend_at(RIDGE_CUDA, &why);
        int id = cuda && cuda->count(reason, sizeof reason) > 0 ? RIDGE_CUDA : RIDGE_CPU;

        return open_backend(device, id, 0);
    }
    if (strcmp(spec, "cpu") == 0)
        return open_cpu(device, "");
    if (strncmp(spec, "cpu:", 4) == 0)
        return open_cpu(device, spec + 4);
    if (strncmp(spec, "model:", 6) == 0)
        return ridge_chip_model(device, spec + 6);
    if (cuda_ordinal(spec) >= 0)
        return open_backend(device, RIDGE_CUDA, cuda_ordinal(spec));
    return ridge_fail(RIDGE_ERR_ARG,
                      "unknown device '%.100s' (auto, cpu, cpu:avx2, cuda, cuda:0, cuda:0/124, model:sm100)", spec);
}

/* A name, and behind a slash how many multiprocessors of it kernels may use. */
static ridge_status open_spec(ridge_device *device, const char *spec)
{
    const char *slash = strchr(spec, '/');
    char name[128];
    ridge_status status;
    int units;

    if (!slash)
        return open_named(device, spec);
    units =
        slash[1] && strspn(slash + 1, "0123456789") == strlen(slash + 1) && strlen(slash + 1) < 6 ? atoi(slash + 1) : 0;
    if (units < 1 || slash - spec >= (long)sizeof name)
        return ridge_fail(RIDGE_ERR_ARG, "device '%.100s': behind the slash is no number of multiprocessors", spec);
    snprintf(name, sizeof name, "%.*s", (int)(slash - spec), spec);
    status = open_named(device, name);
    if (status)
        return status;
    if (device->backend_id == RIDGE_CPU)
        return ridge_fail(RIDGE_ERR_ARG, "device '%.100s': a CPU's threads are limited by OMP_NUM_THREADS", spec);
    if (units > device->units)
        return ridge_fail(RIDGE_ERR_ARG, "device '%.100s': %s has %d multiprocessors", spec, name, device->units);
    device->units = units;
    return RIDGE_OK;
}

/* "op=kernel,op=kernel" */
static ridge_status read_pins(ridge_device *device, const char *text)
{
    while (text && *text) {
        size_t length = strcspn(text, ","), name = strcspn(text, "=,");
        const ridge_op_row *op = ridge_op_find(text, name);
        const ridge_kernel *kernel = name < length ? ridge_kernel_find(text + name + 1, length - name - 1) : NULL;

        if (!op)
            return ridge_fail(RIDGE_ERR_ARG, "RIDGE_KERNEL: unknown op in '%.*s'", (int)(length < 99 ? length : 99),
                              text);
        if (!kernel || kernel->op != op->id)
            return ridge_fail(RIDGE_ERR_ARG, "RIDGE_KERNEL: %s has no kernel named in '%.*s'", op->name,
                              (int)(length < 99 ? length : 99), text);
        device->pin[kernel->op] = kernel;
        text += length + (text[length] == ',');
    }
    return RIDGE_OK;
}

static ridge_status list_rows(ridge_device *device)
{
    const ridge_kernel *kernel;
    int next[RIDGE_OPS + 1] = {0};

    device->row = calloc((size_t)ridge_kernel_count() + 1, sizeof *device->row);
    if (!device->row)
        return ridge_fail(RIDGE_ERR_DEVICE, "out of memory");
    for (int i = 0; (kernel = ridge_kernel_at(i)) != NULL; i++)
        next[kernel->op + 1] += ridge_kernel_backend(kernel) == device->backend_id;
    for (int op = 0; op < RIDGE_OPS; op++)
        next[op + 1] += next[op];
    memcpy(device->first, next, sizeof next);
    for (int i = 0; (kernel = ridge_kernel_at(i)) != NULL; i++)
        if (ridge_kernel_backend(kernel) == device->backend_id)
            device->row[next[kernel->op]++] = kernel;
    return RIDGE_OK;
}

ridge_status ridge_open(const char *spec, ridge_device **out)
{
    const char *log = getenv("RIDGE_LOG");
    ridge_device *device;
    ridge_status status;
    bool named = false; /* by the environment */

    if (!out)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_open: device is NULL");
    *out = NULL;
    if (!spec || !*spec) {
        spec = getenv("RIDGE_DEVICE");
        named = spec && *spec;
    }
    if (!spec || !*spec)
        spec = "auto";
    device = calloc(1, sizeof *device);
    if (!device)
        return ridge_fail(RIDGE_ERR_DEVICE, "out of memory");
    device->threads_chosen = getenv("OMP_NUM_THREADS") != NULL;
    device->log = log && *log && strcmp(log, "0") != 0;
    status = open_spec(device, spec);
    if (status && named) {
        char reason[400];

        snprintf(reason, sizeof reason, "%s", ridge_error());
        status = ridge_fail(status, "RIDGE_DEVICE: %s", reason);
    }
    if (!status)
        status = list_rows(device);
    if (!status)
        status = read_pins(device, getenv("RIDGE_KERNEL"));
    if (!status)
        status = ridge_tuned_load(device, getenv("RIDGE_TUNED"));
    if (!status && device->backend)
        status = ridge_kernels_prepare(device);
    if (status) {
        ridge_close(device);
        return status;
    }
    *out = device;
    return RIDGE_OK;
}

void ridge_close(ridge_device *device)
{
    if (!device)
        return;
    free(device->tuned);
    free((void *)device->row);
    free(device);
}

ridge_status ridge_device_query(const ridge_device *device, ridge_device_info *info)
{
    if (!device || !info)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_device_query: %s is NULL", device ? "info" : "device");
    if (info->struct_size != sizeof *info)
        return ridge_fail(RIDGE_ERR_ARG, "ridge_device_query: struct_size is %u, this library's has %u bytes",
                          info->struct_size, (unsigned)sizeof *info);
    info->ordinal = device->ordinal;
    snprintf(info->backend, sizeof info->backend, "%s", device->backend_id == RIDGE_CPU ? "cpu" : "cuda");
    snprintf(info->arch, sizeof info->arch, "%s", ridge_arch_table[device->arch].name);
    snprintf(info->name, sizeof info->name, "%s", device->name);
    info->units = device->units;
    info->tuned_rows = device->tuned_count;
    info->l2_bytes = device->l2_bytes;
    info->memory_bytes = device->memory_bytes;
    return RIDGE_OK;
}
