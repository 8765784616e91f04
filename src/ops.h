/* ops.h: what the op.c files share: fields of problem text, builders. */
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

/* ----------------------------------------------------------------------------------------- fields of problem text */

/* clang-format off */
#define DTYPE(text, slot) {.name = text, .kind = RIDGE_FIELD_DTYPE, .index = (int)(slot)}
#define HAS(text, slot) {.name = text, .kind = RIDGE_FIELD_HAS, .index = (int)(slot)}
#define FLAG(text, bit) {.name = text, .kind = RIDGE_FIELD_FLAG, .mask = (bit)}
#define CHOICE(text, bits, names) {.name = text, .kind = RIDGE_FIELD_CHOICE, .mask = (bits), .choices = (names)}
#define F32_OPTION(type, option, value) \
    {.name = #option, .kind = RIDGE_FIELD_F32, .index = (int)offsetof(type, option), .preset = (float)(value)}
#define I64_OPTION(type, option, value) \
    {.name = #option, .kind = RIDGE_FIELD_I64, .index = (int)offsetof(type, option), .preset = (float)(value)}
#define END {.name = NULL}
/* An op row's `defaults`: what problem text begins with, as a call of the builder. */
#define RIDGE_DEFAULTS(name, ...) static void name(ridge_call *call) { *call = __VA_ARGS__; }
/* clang-format on */

/* -------------------------------------------------------------------------------------------------------- builders */

/* A call of the op without operands; dimensions beyond the op's are 0. */
ridge_call ridge_begin(ridge_op op, int64_t dim0, int64_t dim1, int64_t dim2, int64_t dim3);

/* Sets the operand in `slot`; the call is invalid if the tensor has scales. */
void ridge_put(ridge_call *call, int slot, ridge_tensor tensor);

/* Sets the operand in `slot` and its scales in slot + 1. */
void ridge_put_scaled(ridge_call *call, int slot, ridge_tensor tensor, ridge_dtype scale_dtype);

#endif
