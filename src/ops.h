/* ops.h: what the files of op rows share. */
#ifndef RIDGE_OPS_H
#define RIDGE_OPS_H

#include "internal.h"

static inline bool ridge_has(const ridge_call *call, int arg)
{
    return call->arg[arg].dtype != RIDGE_NONE && call->arg[arg].data != NULL;
}

static inline void ridge_set_extent(int64_t *rows, int64_t *cols, int64_t r, int64_t c)
{
    *rows = r;
    *cols = c;
}

#endif
