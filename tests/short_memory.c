/* short_memory.c: a preloaded malloc whose allocation number SHORT_AT fails, once. A program that ends before that many
 * says so on descriptor SHORT_TO. What comes before main is not counted: there a build with CUDA registers its kernels,
 * which takes over a thousand allocations in NVIDIA's static runtime and crashes where one of them fails.
 * libcuda.so is not found: its allocations are not ours either, and machines with and without a GPU run one test. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

typedef int main_function(int, char **, char **);
typedef int start_function(main_function *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static main_function *real_main;
static atomic_int counts;
static atomic_long count;

static int fails(void)
{
    const char *at = getenv("SHORT_AT");

    if (!at || !atomic_load(&counts) || atomic_fetch_add(&count, 1) + 1 != atol(at))
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t items, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(items, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

static int counted_main(int argc, char **argv, char **environment)
{
    atomic_store(&counts, 1);
    return real_main(argc, argv, environment);
}

int __libc_start_main(main_function *program, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*loader_fini)(void), void *stack)
{
    void *found = dlsym(RTLD_NEXT, "__libc_start_main");
    start_function *start;

    memcpy(&start, &found, sizeof start);
    real_main = program;
    return start(counted_main, argc, argv, init, fini, loader_fini, stack);
}

void *dlopen(const char *file, int mode)
{
    void *found = dlsym(RTLD_NEXT, "dlopen"), *(*open)(const char *, int);

    memcpy(&open, &found, sizeof open);
    return file && strstr(file, "libcuda.so") ? NULL : open(file, mode);
}

__attribute__((destructor)) static void finish(void)
{
    const char *at = getenv("SHORT_AT"), *to = getenv("SHORT_TO");

    if (at && to && atomic_load(&count) < atol(at) && write(atoi(to), "x", 1) != 1)
        _exit(3);
}
