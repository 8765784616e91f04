/* memory.c: the memory of the CPU, and which backend a device has. Matrices lie in blocks of huge pages, where Linux
 * has them: SmolLM2-135M's step reads 144 MB, which are 35000 pages of 4 KB. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "lm.h"

enum { HUGE_PAGE = 2 << 20, BLOCK = 32 << 20, SMALL = 64 << 10 }; /* what is smaller has memory of its own */

typedef struct block {
    struct block *next;
    char *memory;
    size_t size, used;
} block;

typedef struct cpu_state {
    block *first;
} cpu_state;

static ridge_status start(const ridge_device *device, void **state)
{
    (void)device;
    *state = calloc(1, sizeof(cpu_state));
    return *state ? RIDGE_OK : lm_fail(RIDGE_ERR_DEVICE, "no memory for a device");
}

static void stop(void *state)
{
    cpu_state *s = state;

    for (block *b = s->first, *next; b; b = next) {
        next = b->next;
        free(b->memory);
        free(b);
    }
    free(s);
}

/* A block with room for that much. */
static bool add_block(cpu_state *s, size_t bytes)
{
    block *b = calloc(1, sizeof *b);

    if (!b)
        return false;
    b->size = bytes > BLOCK ? (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : BLOCK;
    b->memory = aligned_alloc(HUGE_PAGE, b->size);
    if (!b->memory) {
        free(b);
        return false;
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(b->memory, b->size, MADV_HUGEPAGE); /* a wish: small pages do as well */
#endif
    b->next = s->first;
    s->first = b;
    return true;
}

static ridge_status take(void *state, int64_t bytes, void **memory)
{
    const size_t size = ((size_t)bytes + 255) / 256 * 256;
    cpu_state *s = state;

    *memory = NULL;
    if (size < SMALL) {
        *memory = aligned_alloc(256, size);
    } else if ((s->first && s->first->size - s->first->used >= size) || add_block(s, size)) {
        *memory = s->first->memory + s->first->used;
        s->first->used += size;
    }
    return *memory ? RIDGE_OK : lm_fail(RIDGE_ERR_DEVICE, "no memory for %" PRId64 " bytes", bytes);
}

/* Blocks are freed by stop. */
static void release(void *state, void *memory)
{
    const uintptr_t at = (uintptr_t)memory;

    for (const block *b = ((const cpu_state *)state)->first; b; b = b->next)
        if (at >= (uintptr_t)b->memory && at < (uintptr_t)b->memory + b->size)
            return;
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
    .send_beside = copy_to,
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
