/* util.h: integer helpers and the division of a workspace, for C and CUDA host code. */
#ifndef RIDGE_UTIL_H
#define RIDGE_UTIL_H

#include <stddef.h>
#include <stdint.h>

static inline int64_t ridge_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ridge_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t ridge_ceil_div(int64_t n, int64_t d)
{
    return (n + d - 1) / d;
}

/* n rounded up to a multiple of `step`. */
static inline int64_t ridge_round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* Takes `bytes`, rounded up to 256, from the front of a workspace. From NULL on, *at counts the bytes taken. */
static inline void *ridge_take(char **at, int64_t bytes)
{
    char *const taken = *at;

    *at = (char *)((uintptr_t)taken + (uintptr_t)ridge_round_up(bytes, 256));
    return taken;
}

#endif
