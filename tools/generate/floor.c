/* floor.c: how fast this device reads memory: no step can be faster than a read of the weights. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "src/internal.h"
#include "tools/cli.h"

enum { LEAST = 64 << 20 }; /* bytes: less would be a read of caches, and of how long threads take to begin */

/* Seconds of the fastest of five reads by all threads. */
static double read_host(const uint64_t *memory, int64_t words)
{
    static volatile uint64_t sink;
    double best = 0;

    for (int round = 0; round < 5; round++) {
        const double start = seconds();
        uint64_t sum = 0;
        double spent;

#pragma omp parallel for reduction(+ : sum) schedule(static)
        for (int64_t i = 0; i < words / 4; i++)
            sum += (memory[4 * i] ^ memory[4 * i + 1]) + (memory[4 * i + 2] ^ memory[4 * i + 3]);
        sink = sum;
        spent = seconds() - start;
        best = round == 0 || spent < best ? spent : best;
    }
    (void)sink;
    return best;
}

/* The same on a GPU, by the fastest kernel that only reads. */
static double read_device(const ridge_device *device, void *memory, size_t bytes, void *stream)
{
    double best = 0, us;

    for (int variant = 0; variant < device->backend->stream_variants; variant++)
        for (int round = 0; round < 5; round++) {
            if (device->backend->mark(device, 0, stream) ||
                device->backend->stream_read(device, variant, memory, bytes / 16 * 16, stream) ||
                device->backend->mark(device, 1, stream) || device->backend->sync(device, stream) ||
                device->backend->elapsed(device, 0, 1, &us))
                return 0;
            best = best == 0 || us < best ? us : best;
        }
    return best * 1e-6;
}

double read_rate(const ridge_device *device, int64_t bytes)
{
    void *memory = NULL, *stream = NULL;
    double spent = 0;

    bytes = bytes < LEAST ? LEAST : bytes;
    if (device->backend_id == RIDGE_CPU) {
        bytes = bytes / 4096 * 4096;
        memory = bytes ? aligned_alloc(4096, (size_t)bytes) : NULL;
        if (!memory)
            return 0;
        memset(memory, 1, (size_t)bytes);
        spent = read_host(memory, bytes / 8);
        free(memory);
    } else if (!device->backend->stream_new(device, &stream)) {
        if (!device->backend->alloc(device, (size_t)bytes, &memory)) {
            spent = read_device(device, memory, (size_t)bytes, stream);
            device->backend->release(device, memory);
        }
        device->backend->stream_free(device, stream);
    }
    return spent > 0 ? (double)bytes * 1e-9 / spent : 0;
}
