/* short_memory.c: a preloaded malloc whose allocation number SHORT_AT fails, once. A program that ends before that many
 * says so on descriptor SHORT_TO. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_long count;

static int fails(void)
{
    const char *at = getenv("SHORT_AT");

    if (!at || atomic_fetch_add(&count, 1) + 1 != atol(at))
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

__attribute__((destructor)) static void finish(void)
{
    const char *at = getenv("SHORT_AT"), *to = getenv("SHORT_TO");

    if (at && to && atomic_load(&count) < atol(at) && write(atoi(to), "x", 1) != 1)
        _exit(3);
}
