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

/* Fields of SwiGLU: the activation, and the options, with which the option struct of every op that has them begins. */
extern const char *const ridge_activations[];
#define RIDGE_ACT_FIELD                                                                                   \
    {                                                                                                     \
        .name = "act", .kind = RIDGE_FIELD_CHOICE, .mask = RIDGE_ACTIVATION, .choices = ridge_activations \
    }
#define RIDGE_SWIGLU_FIELD(option, value)                                                               \
    {                                                                                                   \
        .name = #option, .kind = RIDGE_FIELD_F32, .index = (int)offsetof(ridge_swiglu_options, option), \
        .preset = (value)                                                                               \
    }
#define RIDGE_SWIGLU_FIELDS                                                                         \
    RIDGE_SWIGLU_FIELD(gate_mul, 1), RIDGE_SWIGLU_FIELD(down_mul, 1), RIDGE_SWIGLU_FIELD(alpha, 1), \
        RIDGE_SWIGLU_FIELD(up_offset, 0), RIDGE_SWIGLU_FIELD(limit, 0)

#endif
