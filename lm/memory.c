/* memory.c: the memory of the CPU, and which backend a device has. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lm.h"

static ridge_status start(const ridge_device *device, void **state)
{
    (void)device;
    *state = NULL;
    return RIDGE_OK;
}

static void stop(void *state)
{
    (void)state;
}

static ridge_status take(void *state, int64_t bytes, void **memory)
{
    (void)state;
    *memory = aligned_alloc(256, ((size_t)bytes + 255) / 256 * 256);
    return *memory ? RIDGE_OK : lm_fail(RIDGE_ERR_DEVICE, "no memory for %" PRId64 " bytes", bytes);
}

static void release(void *state, void *memory)
{
    (void)state;
    free(memory);
}

static ridge_status copy_to(void *state, void *to, const void *from, int64_t bytes)
{
    (void)state;
    memcpy(to, from, (size_t)bytes);
    return RIDGE_OK;
}

static ridge_status copy_from(void *state, void *to, const void *from, int64_t bytes, int mark)
{
    (void)mark;
    return copy_to(state, to, from, bytes);
}

static ridge_status no_wait(void *state, int mark)
{
    (void)state, (void)mark;
    return RIDGE_OK;
}

/* What Linux says can be had without swapping. */
static int64_t free_bytes(void *state)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    long long kb = 0;

    (void)state;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld", &kb) == 1)
            break;
    if (file)
        fclose(file);
    return (int64_t)kb * 1024;
}

static void *no_stream(void *state, int branch)
{
    (void)state, (void)branch;
    return NULL;
}

static const lm_backend cpu_backend = {
    .start = start,
    .stop = stop,
    .alloc = take,
    .release = release,
    .upload = copy_to,
    .download = copy_to,
    .host_alloc = take,
    .host_release = release,
    .send = copy_to,
    .fetch = copy_from,
    .wait = no_wait,
    .copy = copy_to,
    .free_bytes = free_bytes,
    .stream = no_stream,
    .host = true,
};

const lm_backend *lm_backend_of(const ridge_device *device)
{
    ridge_device_info info = {.struct_size = sizeof info};

    if (ridge_device_query(device, &info) != RIDGE_OK)
        return NULL;
    if (strcmp(info.backend, "cuda") == 0)
        return info.ordinal >= 0 ? &lm_cuda_backend : NULL;
    return strncmp(info.name, "model", 5) == 0 ? NULL : &cpu_backend;
}
