/* ops.c: the ops of all families by number and by name, dtype names, the extent of scale tables, what builders share.
 * What each op computes is in docs/numerics.md; how, in ops/. */
#include <string.h>

#include "ops.h"

static const struct {
    const char *name;
    size_t size;
} dtype_table[RIDGE_DTYPES] = {
    [RIDGE_NONE] = {"none", 0},    [RIDGE_F32] = {"f32", 4},
    [RIDGE_F16] = {"f16", 2},      [RIDGE_BF16] = {"bf16", 2},
    [RIDGE_E4M3] = {"e4m3", 1},    [RIDGE_E5M2] = {"e5m2", 1},
    [RIDGE_F64] = {"f64", 8},      [RIDGE_I8] = {"i8", 1},
    [RIDGE_U8] = {"u8", 1},        [RIDGE_I32] = {"i32", 4},
    [RIDGE_I64] = {"i64", 8},      [RIDGE_Q4_0] = {"q4_0", 16},
    [RIDGE_Q4_1] = {"q4_1", 16},   [RIDGE_Q8_0] = {"q8_0", 16},
    [RIDGE_MXFP4] = {"mxfp4", 16}, [RIDGE_Q2_K] = {"q2_k", 16},
    [RIDGE_Q4_K] = {"q4_k", 16},   [RIDGE_Q5_K] = {"q5_k", 16},
    [RIDGE_Q6_K] = {"q6_k", 16},   [RIDGE_IQ2_XXS] = {"iq2_xxs", 16},
};

const char *ridge_dtype_name(uint32_t dtype)
{
    return dtype < RIDGE_DTYPES ? dtype_table[dtype].name : "unknown";
}

size_t ridge_dtype_size(uint32_t dtype)
{
    return dtype < RIDGE_DTYPES ? dtype_table[dtype].size : 0;
}

uint32_t ridge_dtype_find(const char *name, size_t length)
{
    uint32_t dtype = RIDGE_F32;

    while (dtype < RIDGE_DTYPES &&
           (strlen(dtype_table[dtype].name) != length || memcmp(dtype_table[dtype].name, name, length) != 0))
        dtype++;
    return dtype;
}

static int64_t blocks(int64_t n)
{
    return (n + 127) / 128;
}

void ridge_scale_extent(uint32_t mode, int64_t rows, int64_t cols, int64_t *table_rows, int64_t *table_cols)
{
    switch (mode) {
    case RIDGE_SCALE_TENSOR:
        *table_rows = *table_cols = 1;
        break;
    case RIDGE_SCALE_ROW:
        *table_rows = 1;
        *table_cols = rows;
        break;
    case RIDGE_SCALE_ROW128:
        *table_rows = blocks(cols);
        *table_cols = rows;
        break;
    default:
        *table_rows = blocks(rows);
        *table_cols = blocks(cols);
        break;
    }
}

const ridge_op_row *ridge_op_at(uint32_t id)
{
    uint32_t first = RIDGE_OP_NONE + 1;

    for (int i = 0; ridge_families[i]; i++) {
        if (id - first < ridge_families[i]->ops)
            return ridge_families[i]->op[id - first];
        first += ridge_families[i]->ops;
    }
    return NULL;
}

const ridge_op_row *ridge_op_find(const char *name, size_t length)
{
    const ridge_op_row *op;

    for (uint32_t id = RIDGE_OP_NONE + 1; (op = ridge_op_at(id)) != NULL; id++)
        if (strlen(op->name) == length && memcmp(op->name, name, length) == 0)
            return op;
    return NULL;
}

/* -------------------------------------------------------------------------------------------------------- builders */

ridge_tensor ridge_matrix(const void *data, ridge_dtype dtype)
{
    return (ridge_tensor){.data = (void *)(uintptr_t)data, .dtype = dtype};
}

ridge_tensor ridge_scaled(const void *data, ridge_dtype dtype, const void *scale, ridge_scaling scaling)
{
    return (ridge_tensor){(void *)(uintptr_t)data, dtype, 0, (void *)(uintptr_t)scale, scaling, 0};
}

void ridge_set(ridge_call *call, int slot, ridge_dtype dtype, const void *data, int64_t stride)
{
    if (slot >= 0 && slot < RIDGE_MAX_ARGS)
        call->arg[slot] = (ridge_operand){(void *)(uintptr_t)data, stride, (uint32_t)dtype, 0};
    else
        call->invalid = "ridge_set was given a slot that no op has";
}

ridge_call ridge_begin(ridge_op op, int64_t dim0, int64_t dim1, int64_t dim2, int64_t dim3)
{
    return (ridge_call){.struct_size = sizeof(ridge_call), .op = (uint32_t)op, .dim = {dim0, dim1, dim2, dim3}};
}

void ridge_put(ridge_call *call, int slot, ridge_tensor tensor)
{
    if (tensor.scale || tensor.scaling != RIDGE_SCALING_NONE)
        call->invalid = "scales are given for an operand that takes none";
    ridge_set(call, slot, tensor.dtype, tensor.data, tensor.stride);
}

void ridge_put_scaled(ridge_call *call, int slot, ridge_tensor tensor, ridge_dtype scale_dtype)
{
    ridge_set(call, slot, tensor.dtype, tensor.data, tensor.stride);
    ridge_set(call, slot + 1, scale_dtype, tensor.scale, tensor.scale_stride);
}
