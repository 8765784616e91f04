/* counted.c: the tool once more, with every ridge_run watched: between a call's builder and its launch nothing is
 * allocated, freed or waited for, whatever the row. The linker's --wrap sends what the library's objects (and a static
 * CUDA runtime) call through here; `ridge test` then runs all rows. The first such call ends the test and is named. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ridge.h"

static atomic_int inside;
static const ridge_call *current;

static void seen(const char *name)
{
    if (!atomic_load(&inside))
        return;
    fprintf(stderr, "ridge_run calls %s (kernel %s)\n", name, current->kernel ? current->kernel : "as picked");
    _exit(3);
}

ridge_status __real_ridge_run(const ridge_device *, const ridge_call *, void *, size_t, void *);
ridge_status __wrap_ridge_run(const ridge_device *, const ridge_call *, void *, size_t, void *);

ridge_status __wrap_ridge_run(const ridge_device *device, const ridge_call *call, void *workspace, size_t bytes,
                              void *stream)
{
    ridge_status status;

    current = call;
    atomic_store(&inside, 1);
    status = __real_ridge_run(device, call, workspace, bytes, stream);
    atomic_store(&inside, 0);
    return status;
}

#define WATCH(type, name, parameters, arguments) \
    type __real_##name parameters;               \
    type __wrap_##name parameters;               \
    type __wrap_##name parameters                \
    {                                            \
        seen(#name);                             \
        return __real_##name arguments;          \
    }

WATCH(void *, malloc, (size_t a), (a))
WATCH(void *, calloc, (size_t a, size_t b), (a, b))
WATCH(void *, realloc, (void *a, size_t b), (a, b))
WATCH(void *, aligned_alloc, (size_t a, size_t b), (a, b))
WATCH(int, posix_memalign, (void **a, size_t b, size_t c), (a, b, c))
WATCH(void *, mmap, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f))
WATCH(int, munmap, (void *a, size_t b), (a, b))
WATCH(int, pthread_create, (pthread_t * a, const pthread_attr_t *b, void *(*c)(void *), void *d), (a, b, c, d))

void __real_free(void *);
void __wrap_free(void *);

void __wrap_free(void *a)
{
    seen("free");
    __real_free(a);
}

#if COUNTED_CUDA /* handles are pointers, enumerations int */
WATCH(int, cudaMalloc, (void **a, size_t b), (a, b))
WATCH(int, cudaMallocAsync, (void **a, size_t b, void *c), (a, b, c))
WATCH(int, cudaMallocHost, (void **a, size_t b), (a, b))
WATCH(int, cudaHostAlloc, (void **a, size_t b, unsigned c), (a, b, c))
WATCH(int, cudaFree, (void *a), (a))
WATCH(int, cudaFreeAsync, (void *a, void *b), (a, b))
WATCH(int, cudaFreeHost, (void *a), (a))
WATCH(int, cudaDeviceSynchronize, (void), ())
WATCH(int, cudaStreamSynchronize, (void *a), (a))
WATCH(int, cudaEventSynchronize, (void *a), (a))
WATCH(int, cudaMemcpy, (void *a, const void *b, size_t c, int d), (a, b, c, d))
WATCH(int, cudaMemset, (void *a, int b, size_t c), (a, b, c))
WATCH(int, cudaEventCreateWithFlags, (void **a, unsigned b), (a, b))
WATCH(int, cudaStreamCreateWithFlags, (void **a, unsigned b), (a, b))
WATCH(int, cudaFuncSetAttribute, (const void *a, int b, int c), (a, b, c))
#endif
