/* problem.c: validates a call against its op row and resolves it: the bound call that rows launch. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ops.h"

#define COMMON_FLAGS (RIDGE_STRICT | RIDGE_WEIGHTS_CONST)

/* Where an operand lies: rows of `width` bytes, `pitch` bytes apart. */
typedef struct region {
    uintptr_t base;
    int64_t rows, width, pitch;
} region;

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* True if some byte belongs to both. Equal pitches are solved exactly (halves of one tensor do not overlap); with
 * unequal pitches any common address range counts, since no caller needs that case. */
static bool overlap(const region *a, const region *b)
{
    int64_t a_end = (a->rows - 1) * a->pitch + a->width, b_end = (b->rows - 1) * b->pitch + b->width;
    int64_t gap, row;

    if (a->rows == 0 || b->rows == 0 || a->width == 0 || b->width == 0)
        return false;
    if (a->base + (uint64_t)a_end <= b->base || b->base + (uint64_t)b_end <= a->base)
        return false;
    if (a->pitch != b->pitch || a->rows == 1 || b->rows == 1)
        return true;
    gap = (int64_t)(b->base - a->base);
    row = floor_div(gap, a->pitch); /* b's first row starts between a's rows `row` and `row + 1` */
    gap -= row * a->pitch;
    return (gap < a->width && row > -b->rows && row < a->rows) ||
           (a->pitch - gap < b->width && row + 1 > -b->rows && row + 1 < a->rows);
}

/* What is wrong, then the problem: where a reason speaks of several values, or of none. */
static ridge_status fail_with_values(const ridge_call *call, const char *format, ...)
{
    char what[256], text[512];
    va_list list;

    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    ridge_problem_print(call, NULL, text, sizeof text);
    return ridge_fail(RIDGE_ERR_ARG, "%s: %s: %s", ridge_op_at(call->op)->name, what, text);
}

/* Checks one present operand and describes where it lies. */
static ridge_status check_operand(const ridge_call *call, const ridge_op_row *op, int arg, region *where,
                                  ridge_bound *bound)
{
    const ridge_operand_row *row = &op->arg[arg];
    const ridge_operand *operand = &call->arg[arg];
    int64_t size, rows, cols, pitch, last;

    if (operand->dtype >= RIDGE_DTYPES)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has dtype %u, which does not exist", op->name, row->name,
                          operand->dtype);
    if (!(row->dtypes >> operand->dtype & 1u))
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has dtype %s, which this op does not take", op->name,
                          row->name, ridge_dtype_name(operand->dtype));
    if (row->same_dtype >= 0 && operand->dtype != call->arg[row->same_dtype].dtype)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has dtype %s but %s has %s", op->name, row->name,
                          ridge_dtype_name(operand->dtype), op->arg[row->same_dtype].name,
                          ridge_dtype_name(call->arg[row->same_dtype].dtype));
    size = (int64_t)ridge_dtype_size(operand->dtype);
    op->extent(call, arg, &rows, &cols);
    if (rows < 0 || cols < 0) /* an option that the rule will refuse */
        return fail_with_values(call, "operand %s would have %" PRId64 " rows x %" PRId64, row->name, rows, cols);
    if (operand->stride < 0 || (operand->stride != 0 && operand->stride < cols))
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has row stride %" PRId64 " below its row of %" PRId64,
                          op->name, row->name, operand->stride, cols);
    if (row->kind == RIDGE_VECTOR && operand->stride != 0)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is a vector, its stride must be 0, not %" PRId64, op->name,
                          row->name, operand->stride);
    pitch = operand->stride ? operand->stride : cols;
    if (__builtin_mul_overflow(pitch, size, &pitch) || pitch >= (INT64_C(1) << 40))
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has row stride %" PRId64 ", 2^40 bytes or more", op->name,
                          row->name, operand->stride ? operand->stride : cols);
    if (__builtin_mul_overflow(rows, pitch, &last) || last < 0 || last > (INT64_C(1) << 60) ||
        (uintptr_t)operand->data > UINTPTR_MAX - (uintptr_t)last)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s of %" PRId64 " rows x %" PRId64 " overflows the address space",
                          op->name, row->name, rows, cols);
    if ((uintptr_t)operand->data % (uintptr_t)size)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is misaligned: %p is not a multiple of %d bytes", op->name,
                          row->name, operand->data, (int)size);
    where->base = (uintptr_t)operand->data;
    where->rows = rows;
    where->width = cols * size;
    where->pitch = pitch;
    bound->rows[arg] = rows;
    bound->cols[arg] = cols;
    bound->call.arg[arg].stride = operand->stride ? operand->stride : cols;
    return RIDGE_OK;
}

static ridge_status check_aliases(const ridge_call *call, const ridge_op_row *op, const region *where)
{
    for (int out = 0; out < op->args; out++) {
        if (!(op->arg[out].role & RIDGE_OUT) || !ridge_has(call, out))
            continue;
        for (int other = 0; other < op->args; other++) {
            const region *a = &where[out], *b = &where[other];
            bool exact;

            if (other == out || !ridge_has(call, other) || ((op->arg[other].role & RIDGE_OUT) && other < out))
                continue;
            exact = a->base == b->base && a->pitch == b->pitch && a->width == b->width && a->rows == b->rows &&
                    call->arg[out].dtype == call->arg[other].dtype;
            if (exact && (op->arg[out].alias >> other & 1u))
                continue;
            if (overlap(a, b))
                return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s at %p overlaps %s at %p", op->name, op->arg[out].name,
                                  call->arg[out].data, op->arg[other].name, call->arg[other].data);
        }
    }
    return RIDGE_OK;
}

static ridge_status check_head(const ridge_call *call, const ridge_op_row **row)
{
    const ridge_op_row *op;

    if (!call)
        return ridge_fail(RIDGE_ERR_ARG, "the call is NULL");
    if (call->struct_size != sizeof *call)
        return ridge_fail(RIDGE_ERR_ARG, "call.struct_size is %u, this library's ridge_call has %u bytes",
                          call->struct_size, (unsigned)sizeof *call);
    if (call->op == RIDGE_OP_NONE || call->op >= RIDGE_OPS)
        return ridge_fail(RIDGE_ERR_ARG, "call.op is %u, there is no such op", call->op);
    op = ridge_op_at(call->op);
    if (call->invalid)
        return ridge_fail(RIDGE_ERR_ARG, "%s: %s", op->name, call->invalid);
    if (call->flags & ~(op->flags | COMMON_FLAGS))
        return ridge_fail(RIDGE_ERR_ARG, "%s: unknown flags 0x%x", op->name, call->flags & ~(op->flags | COMMON_FLAGS));
    for (int d = 0; d < RIDGE_MAX_DIMS; d++) {
        if (d < op->dims && (call->dim[d] < 0 || call->dim[d] > (INT64_C(1) << 40)))
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s is %" PRId64 ", outside 0 .. 2^40", op->name, op->dim_name[d],
                              call->dim[d]);
        if (d < op->dims && op->step[d] && call->dim[d] % op->step[d])
            return ridge_fail(RIDGE_ERR_ARG, "%s: %s is %" PRId64 ", no multiple of %d", op->name, op->dim_name[d],
                              call->dim[d], op->step[d]);
        if (d >= op->dims && call->dim[d] != 0)
            return ridge_fail(RIDGE_ERR_ARG, "%s: dim[%d] is %" PRId64 ", this op has %d", op->name, d, call->dim[d],
                              op->dims);
    }
    *row = op;
    return RIDGE_OK;
}

/* One operand slot: what is wrong with it, or where it lies. */
static ridge_status bind_operand(const ridge_call *call, const ridge_op_row *op, int arg, region *where,
                                 ridge_bound *bound)
{
    const ridge_operand *operand = &call->arg[arg];
    int64_t rows, cols;
    ridge_status status;

    if (arg >= op->args)
        return operand->dtype == RIDGE_NONE
                   ? RIDGE_OK
                   : ridge_fail(RIDGE_ERR_ARG, "%s: operand slot %d is set, this op has %d", op->name, arg, op->args);
    if (operand->dtype == RIDGE_NONE && operand->data)
        return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s has a pointer but no dtype", op->name, op->arg[arg].name);
    if (!ridge_has(call, arg)) {
        op->extent(call, arg, &rows, &cols);
        if (!op->arg[arg].optional && rows != 0 && cols != 0)
            return ridge_fail(RIDGE_ERR_ARG, "%s: operand %s is NULL", op->name, op->arg[arg].name);
        if (!op->arg[arg].optional)
            bound->problem.dtype[arg] = (uint8_t)operand->dtype;
        return RIDGE_OK;
    }
    status = check_operand(call, op, arg, where, bound);
    if (!status)
        bound->problem.dtype[arg] = (uint8_t)operand->dtype;
    return status;
}

/* log2 of the common alignment (ridge_problem), and whether all matrices are packed. The stride of a single row counts
 * as in a call with more rows, so that both get the same kernel. */
static void bind_alignment(const ridge_call *call, const ridge_op_row *op, const region *where, ridge_problem *problem)
{
    uintptr_t bits = 16, inputs = 16, packed_bits = 0, own;
    bool packed = true;

    for (int arg = 0; arg < op->args; arg++) {
        if (op->arg[arg].kind != RIDGE_MATRIX || !ridge_has(call, arg))
            continue;
        bits |= where[arg].base;
        own = where[arg].base;
        if (where[arg].pitch != where[arg].width) {
            own |= (uintptr_t)where[arg].pitch;
            packed = false;
        } else if (!(op->arg[arg].role & RIDGE_OUT)) {
            packed_bits |= (uintptr_t)where[arg].pitch;
        }
        bits |= own;
        if (!(op->arg[arg].role & RIDGE_OUT))
            inputs |= own;
    }
    if (!packed) {
        bits |= packed_bits;
        inputs |= packed_bits;
    }
    problem->align = (uint8_t)__builtin_ctzll(bits);
    problem->inputs_align = (uint8_t)__builtin_ctzll(inputs);
    problem->packed = packed;
}

ridge_status ridge_validate(const ridge_call *call, ridge_bound *bound)
{
    const ridge_op_row *op = NULL;
    region where[RIDGE_MAX_ARGS];
    const char *reason;
    ridge_status status = check_head(call, &op);

    if (status)
        return status;
    /* only the op's slots: all 24 would cost 40 ns of the 180 from builder to pick */
    memset(&bound->problem, 0, sizeof bound->problem);
    memset(bound->rows, 0, (size_t)op->args * sizeof bound->rows[0]);
    memset(bound->cols, 0, (size_t)op->args * sizeof bound->cols[0]);
    bound->op = op;
    memcpy(&bound->call, call, offsetof(ridge_call, arg) + (size_t)op->args * sizeof call->arg[0]);
    bound->call.opt = call->opt;
    for (int arg = 0; arg < RIDGE_MAX_ARGS && !status; arg++)
        status = bind_operand(call, op, arg, &where[arg], bound);
    if (status)
        return status;
    reason = op->rule ? op->rule(call) : NULL;
    if (reason)
        return fail_with_values(call, "%s", reason);
    status = check_aliases(call, op, where);
    if (status)
        return status;
    bound->problem.op = call->op;
    bound->problem.flags = call->flags;
    memcpy(bound->problem.dim, call->dim, sizeof bound->problem.dim);
    bind_alignment(call, op, where, &bound->problem);
    bound->problem.plain = !op->plain || op->plain(call);
    return RIDGE_OK;
}

uint8_t ridge_operand_role(const ridge_call *call, int arg)
{
    const ridge_op_row *op = ridge_op_at(call->op);

    return op->role ? op->role(call, arg) : op->arg[arg].role;
}

int64_t ridge_operand_bytes(const ridge_call *call, int arg)
{
    int64_t rows, cols, stride = call->arg[arg].stride, bytes;

    ridge_op_at(call->op)->extent(call, arg, &rows, &cols);
    if (rows == 0 || cols == 0)
        return 0;
    if (__builtin_mul_overflow(rows - 1, stride ? stride : cols, &bytes) ||
        __builtin_add_overflow(bytes, cols, &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)ridge_dtype_size(call->arg[arg].dtype), &bytes))
        return INT64_MAX;
    return bytes;
}

double ridge_problem_bytes(const ridge_call *call)
{
    const ridge_op_row *op = ridge_op_at(call->op);
    double sum = 0;

    for (int arg = 0; arg < op->args; arg++) {
        int64_t rows, cols;
        double once;

        op->extent(call, arg, &rows, &cols);
        once = (double)rows * (double)cols * (double)ridge_dtype_size(call->arg[arg].dtype);
        once *= op->used ? op->used(call, arg) : 1;
        sum += once * __builtin_popcount(ridge_operand_role(call, arg));
    }
    return sum;
}

uint64_t ridge_problem_hash(const ridge_problem *problem)
{
    ridge_problem p = *problem;
    uint64_t hash = UINT64_C(0x9e3779b97f4a7c15), word;

    p.flags &= ~COMMON_FLAGS;
    for (size_t at = 0; at + sizeof word <= sizeof p; at += sizeof word) {
        memcpy(&word, (const char *)&p + at, sizeof word);
        hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    return hash;
}
